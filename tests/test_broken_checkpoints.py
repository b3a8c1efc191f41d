"""What a run refuses to go on with: broken checkpoints and tokenizers, predictors of another model."""

import shutil

import datasets
import pytest
from recipe_runs import ROWS, assert_same_weights, train, write_predictor
from transformers import AutoTokenizer

import hf_lenctrl
from hf_lenctrl.experiment.checkpoints import check_checkpoint
from hf_lenctrl.experiment.run import add_length_predictor


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets_cache")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two checkpoints, and the words to go on with it."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder.parent / "datasets_cache")
        train(folder, rows=ROWS[:40], max_steps=2, save_steps=1, validation_share=0, test_share=0)
    return folder


@pytest.mark.parametrize("what", ["missing", "cut"])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "scheduler.pt"])
def test_a_checkpoint_that_is_not_whole_is_told(trained, tmp_path, name, what):
    folder = shutil.copytree(trained / "checkpoint-2", tmp_path / "checkpoint-2")
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if what == "cut":
        (folder / name).write_bytes(content[: len(content) // 2])
    verb = {"missing": "has no", "cut": "holds a broken"}[what]
    with pytest.raises(ValueError, match=f"checkpoint-2 {verb} {name}.*; remove the folder to go on from the one bef"):
        check_checkpoint(folder)


def test_a_run_does_not_go_on_without_its_optimizer(trained, own_cache, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "checkpoint-2" / "optimizer.pt").unlink()
    options = {"rows": ROWS[:40], "validation_share": 0, "test_share": 0}
    with pytest.raises(ValueError, match="checkpoint-2 has no optimizer.pt; remove the folder"):
        train(tmp_path / "run", max_steps=3, **options)
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    train(tmp_path / "run", max_steps=2, **options)
    assert_same_weights(trained, tmp_path / "run")


def test_whole_checkpoints_and_those_of_sharded_training_pass(trained, tmp_path):
    check_checkpoint(trained / "checkpoint-1")
    only = shutil.copytree(trained / "checkpoint-1", tmp_path / "only", ignore=shutil.ignore_patterns("*.pt"))
    check_checkpoint(only, weights_only=True)
    with pytest.raises(ValueError, match="has no optimizer.pt"):
        check_checkpoint(only)
    (only / "model.safetensors").unlink()
    (only / "pytorch_model_fsdp_0").mkdir()
    check_checkpoint(only)


@pytest.mark.parametrize("name", ["source.spm", "target.spm", "vocab.json", "target_vocab.json"])
def test_a_tokenizer_with_a_file_that_is_missing_or_cut_off_is_refused(trained, tmp_path, name):
    folder = shutil.copytree(trained, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoint-*"))
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises((RuntimeError, ValueError)):
        AutoTokenizer.from_pretrained(folder)
    (folder / name).unlink()
    with pytest.raises((TypeError, ValueError, OSError)):
        AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    return write_predictor(tmp_path_factory.mktemp("predictor"))


def test_a_predictor_of_another_unit_or_another_model_is_refused(trained, predictor, tmp_path):
    model = hf_lenctrl.LenCtrlMarianMTModel.from_pretrained(trained)
    model.config.length_unit = "word"
    with pytest.raises(ValueError, match="predicts characters, the model counts words; train one with length_unit=wo"):
        add_length_predictor(model, predictor, tmp_path)
    with pytest.raises(ValueError, match="holds a 'lenctrl_marian' model, not a length predictor"):
        add_length_predictor(model, trained, tmp_path)
    assert list(tmp_path.iterdir()) == [] and model.config.length_predictor is None


def test_a_run_that_goes_on_with_a_model_keeps_the_predictor_inside_it(trained, predictor, tmp_path):
    model = hf_lenctrl.LenCtrlMarianMTModel.from_pretrained(trained)
    add_length_predictor(model, predictor, tmp_path / "first")
    model.save_pretrained(tmp_path / "first")
    model = hf_lenctrl.LenCtrlMarianMTModel.from_pretrained(tmp_path / "first")
    add_length_predictor(model, None, tmp_path / "second")
    assert model.config.length_predictor == "./length_predictor"
    names = [sorted(path.name for path in (tmp_path / x / "length_predictor").iterdir()) for x in ("first", "second")]
    assert names[0] == names[1] and "training_args.bin" not in names[0]
    other = hf_lenctrl.LenCtrlMarianMTModel.from_pretrained(trained)
    add_length_predictor(other, None, tmp_path / "third")
    assert other.config.length_predictor is None and not (tmp_path / "third").exists()
