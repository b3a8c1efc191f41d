"""Averaging of checkpoints: tensors written out."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import build_model
from safetensors.torch import save_file
from transformers.trainer_callback import TrainerState

from hf_lenctrl.commands.arguments import ModelArguments
from hf_lenctrl.commands.checkpoints import (
    average_checkpoints,
    checkpoints_of,
    last_checkpoint,
)
from hf_lenctrl.commands.models import unit_and_tokens


def save(folder, **tensors):
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_floats_are_averaged(tmp_path):
    folders = [
        save(tmp_path / "a", w=torch.tensor([[1.0, 2.0], [3.0, -4.0]]), b=torch.tensor([0.5])),
        save(tmp_path / "b", w=torch.tensor([[3.0, 2.0], [0.0, 4.0]]), b=torch.tensor([1.0])),
        save(tmp_path / "c", w=torch.tensor([[5.0, -1.0], [0.0, 3.0]]), b=torch.tensor([0.0])),
    ]
    mean = average_checkpoints(folders)
    assert {name: value.tolist() for name, value in mean.items()} == {"w": [[3.0, 1.0], [1.0, 1.0]], "b": [0.5]}
    assert mean["w"].dtype == torch.float32


def test_integers_are_those_of_the_last_checkpoint(tmp_path):
    folders = [
        save(tmp_path / "a", table=torch.tensor([1, 2], dtype=torch.int32), flag=torch.tensor([True])),
        save(tmp_path / "b", table=torch.tensor([4, 7], dtype=torch.int32), flag=torch.tensor([False])),
    ]
    mean = average_checkpoints(folders)
    assert mean["table"].tolist() == [4, 7] and mean["table"].dtype == torch.int32
    assert mean["flag"].tolist() == [False] and mean["flag"].dtype == torch.bool


# In half precision 256 + 1 + 1 (2048 + 1 + 1) stays what it was, and a third of that is 85.5 (682.5).
@pytest.mark.parametrize(("dtype", "large", "mean"), [(torch.bfloat16, 256, 86.0), (torch.float16, 2048, 683.5)])
def test_half_precision_keeps_its_dtype_and_is_summed_in_float32(tmp_path, dtype, large, mean):
    folders = [save(tmp_path / str(i), w=torch.tensor([v], dtype=dtype)) for i, v in enumerate((large, 1, 1))]
    result = average_checkpoints(folders)["w"]
    assert result.dtype == dtype
    assert result.item() == mean


def test_the_mean_of_two_saved_models_loads_into_the_model(family, tmp_path):
    one, two = (build_model(family, seed=seed, length_unit="token") for seed in (1, 2))
    for name, model in (("one", one), ("two", two)):
        model.save_pretrained(tmp_path / name)
    model = build_model(family, seed=3)
    missing, unexpected = model.load_state_dict(
        average_checkpoints([tmp_path / "one", tmp_path / "two"]), strict=False
    )
    model.tie_weights()
    assert not unexpected
    # what safetensors leave out: tied weights, and Marian's fixed positions
    assert all("embed" in name or name == "lm_head.weight" for name in missing)
    state, other = one.state_dict(), two.state_dict()
    for name, value in model.state_dict().items():
        expected = (state[name] + other[name]) / 2 if value.is_floating_point() else other[name]
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-7)


def test_the_last_checkpoint_is_the_one_of_most_steps(tmp_path):
    for name in ("checkpoint-5", "checkpoint-40", "checkpoint-100", "checkpoint-final", "tokenizer"):
        make_checkpoint(tmp_path / name)
    (tmp_path / "checkpoint-900").write_text("a file")
    assert last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-100")
    assert last_checkpoint(tmp_path / "missing") is None


def make_checkpoint(folder: Path):
    folder.mkdir()
    TrainerState(global_step=7).save_to_json(str(folder / "trainer_state.json"))


def test_a_checkpoint_that_was_cut_off_is_passed_over(tmp_path, caplog):
    for step in (5, 10, 15):
        make_checkpoint(tmp_path / f"checkpoint-{step}")
    (tmp_path / "checkpoint-15" / "trainer_state.json").unlink()
    state = tmp_path / "checkpoint-10" / "trainer_state.json"
    state.write_text(state.read_text()[:-20])
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-5")
    assert [folder.name for folder in checkpoints_of(tmp_path)] == ["checkpoint-5"]
    assert "checkpoint-15 is incomplete and passed over" in caplog.text


def test_a_model_of_another_unit_is_not_trained_further(tmp_path):
    build_model("marian", length_unit="byte").save_pretrained(tmp_path)
    data, rows = SimpleNamespace(length_tokens=None), None
    for given in ("character", "token"):
        with pytest.raises(ValueError, match=f"counts bytes, got length_unit={given}; leave it out"):
            unit_and_tokens(ModelArguments(model_name_or_path=str(tmp_path), length_unit=given), data, rows, None)
    for given in (None, "byte"):
        args = ModelArguments(model_name_or_path=str(tmp_path), length_unit=given)
        assert (unit_and_tokens(args, data, rows, None)[0], args.length_unit) == ("byte", "byte")
    assert unit_and_tokens(ModelArguments(), data, rows, None)[0] == "character"
