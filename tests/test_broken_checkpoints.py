"""What a run refuses to go on with: broken checkpoints and tokenizers, predictors of another model."""

import shutil

import pytest
from conftest import build_model, build_model_of
from recipe_runs import ROWS, assert_same_weights, train, write_predictor
from transformers import pipeline

import hf_lenctrl
from hf_lenctrl.commands import generate
from hf_lenctrl.commands.arguments import ModelArguments
from hf_lenctrl.commands.checkpoints import check_checkpoint
from hf_lenctrl.commands.models import add_length_predictor, load_tokenizer


SMALL = {"rows": ROWS[:40], "validation_share": 0, "test_share": 0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two checkpoints."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder, **SMALL, max_steps=2, save_steps=1)
    return folder


def test_a_run_does_not_go_on_without_its_optimizer(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "checkpoint-2" / "optimizer.pt").unlink()
    with pytest.raises(ValueError, match="checkpoint-2 has no optimizer.pt; remove the folder"):
        train(tmp_path / "run", max_steps=3, **SMALL)
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    train(tmp_path / "run", max_steps=2, **SMALL)
    assert_same_weights(trained, tmp_path / "run")


def test_checkpoints_of_sharded_training_and_of_weights_alone_pass(tmp_path):
    check_checkpoint(tmp_path, weights_only=True)
    (tmp_path / "optimizer.pt").touch()
    with pytest.raises(ValueError, match="has no scheduler.pt"):
        check_checkpoint(tmp_path)
    (tmp_path / "pytorch_model_fsdp_0").mkdir()
    check_checkpoint(tmp_path)


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


@pytest.mark.parametrize("family", ["bart", "marian", "t5"])
def test_a_model_without_a_tokenizer_is_refused(family, tmp_path):
    """transformers makes a tokenizer of special tokens alone, with which every output is empty, or a TypeError."""
    build_model_of(family).save_pretrained(tmp_path)
    for load in (
        lambda: pipeline("length-controlled-generation", model=str(tmp_path)),
        lambda: generate.load([str(tmp_path)]),
        lambda: load_tokenizer(ModelArguments(model_name_or_path=str(tmp_path)), {}, str(tmp_path)),
    ):
        with pytest.raises(ValueError, match="has no tokenizer with a vocabulary; save one there"):
            load()


def test_a_tokenizer_of_another_model_is_refused(shared_tokenizer):
    model = build_model("marian", vocab_size=60)
    with pytest.raises(ValueError, match="tokenizer has 1[0-9]{2} entries, the model .*writes 60; pass the tokenizer"):
        hf_lenctrl.LengthControlledGenerationPipeline(model=model, tokenizer=shared_tokenizer, device="cpu")
