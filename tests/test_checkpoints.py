"""Averaging of checkpoints: tensors written out."""

from types import SimpleNamespace

import pytest
import torch
from conftest import build_model
from safetensors.torch import save_file
from transformers.trainer_callback import TrainerState

from hf_lenctrl.commands.arguments import ModelArguments
from hf_lenctrl.commands.checkpoints import average_checkpoints, checkpoints_of, last_checkpoint
from hf_lenctrl.commands.models import unit_and_tokens


def save(folder, **tensors):
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_floats_are_averaged_and_integers_are_those_of_the_last_checkpoint(tmp_path):
    integers = torch.tensor([1, 2], dtype=torch.int32), torch.tensor([4, 7], dtype=torch.int32)
    folders = [
        save(tmp_path / "a", w=torch.tensor([[1.0, 2.0], [3.0, -4.0]]), table=integers[0], flag=torch.tensor([True])),
        save(tmp_path / "b", w=torch.tensor([[3.0, 2.0], [0.0, 4.0]]), table=integers[1], flag=torch.tensor([False])),
    ]
    mean = average_checkpoints(folders)
    assert {name: value.tolist() for name, value in mean.items()} == {
        "w": [[2.0, 2.0], [1.5, 0.0]],
        "table": [4, 7],
        "flag": [False],
    }
    assert [mean[name].dtype for name in ("w", "table", "flag")] == [torch.float32, torch.int32, torch.bool]


# In half precision 256 + 1 + 1 (2048 + 1 + 1) stays what it was, and a third of that is 85.5 (682.5).
@pytest.mark.parametrize(("dtype", "large", "mean"), [(torch.bfloat16, 256, 86.0), (torch.float16, 2048, 683.5)])
def test_half_precision_keeps_its_dtype_and_is_summed_in_float32(tmp_path, dtype, large, mean):
    folders = [save(tmp_path / str(i), w=torch.tensor([v], dtype=dtype)) for i, v in enumerate((large, 1, 1))]
    result = average_checkpoints(folders)["w"]
    assert result.dtype == dtype
    assert result.item() == mean


def test_the_last_checkpoint_is_the_whole_one_of_most_steps(tmp_path, caplog):
    for name in ("checkpoint-5", "checkpoint-40", "checkpoint-100", "checkpoint-110", "checkpoint-final"):
        (tmp_path / name).mkdir()
        TrainerState(global_step=7).save_to_json(str(tmp_path / name / "trainer_state.json"))
    (tmp_path / "checkpoint-900").write_text("a file")
    (tmp_path / "checkpoint-110" / "trainer_state.json").unlink()
    assert last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-100")
    assert "checkpoint-110 is incomplete and passed over" in caplog.text
    state = tmp_path / "checkpoint-100" / "trainer_state.json"
    state.write_text(state.read_text()[:-20])
    assert [folder.name for folder in checkpoints_of(tmp_path)] == ["checkpoint-5", "checkpoint-40"]
    assert last_checkpoint(tmp_path / "missing") is None


def test_a_model_of_another_unit_is_not_trained_further(tmp_path):
    build_model("marian", length_unit="byte").save_pretrained(tmp_path)
    data, rows = SimpleNamespace(length_tokens=None), None
    with pytest.raises(ValueError, match="counts bytes, got length_unit=token"):
        unit_and_tokens(ModelArguments(model_name_or_path=str(tmp_path), length_unit="token"), data, rows, None)
    for given in (None, "byte"):
        args = ModelArguments(model_name_or_path=str(tmp_path), length_unit=given)
        assert (unit_and_tokens(args, data, rows, None)[0], args.length_unit) == ("byte", "byte")
    assert unit_and_tokens(ModelArguments(), data, rows, None)[0] == "character"
