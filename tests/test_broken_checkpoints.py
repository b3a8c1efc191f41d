"""What a run refuses to go on with: broken checkpoints and tokenizers, predictors of another model."""

import shutil

import datasets
import pytest
from conftest import build_model, build_model_of
from recipe_runs import ROWS, assert_same_weights, train, write_predictor, write_rows
from transformers import AutoTokenizer, pipeline

import hf_lenctrl
from hf_lenctrl.commands import generate
from hf_lenctrl.commands import train as train_seq2seq
from hf_lenctrl.commands.checkpoints import check_checkpoint
from hf_lenctrl.commands.models import add_length_predictor


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
    with pytest.raises(ValueError, match="only has no optimizer.pt; remove the folder"):
        check_checkpoint(only)
    (only / "optimizer.pt").touch()
    with pytest.raises(ValueError, match="only has no scheduler.pt"):
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


@pytest.mark.parametrize("family", ["bart", "marian", "t5", "mbart", "pegasus"])
def test_a_model_without_a_tokenizer_is_refused(family, own_cache, tmp_path, monkeypatch):
    # transformers makes a tokenizer of special tokens alone, with which every output is empty, or raises a TypeError
    monkeypatch.chdir(tmp_path)
    build_model_of(family).save_pretrained("model")
    (tmp_path / "texts.txt").write_text("A text")
    rows = write_rows(tmp_path / "rows.jsonl", ROWS[:40])
    said = "model has no tokenizer with a vocabulary; save one there"
    with pytest.raises(ValueError, match=said):
        pipeline("length-controlled-generation", model="model")
    files = ["--input_file", "texts.txt", "--output_file", "out.jsonl"]
    with pytest.raises(ValueError, match=said):
        generate.main(["--model", "model", "--length", "10", *files])
    with pytest.raises(ValueError, match=said):
        train_seq2seq.main(["--model_name_or_path", "model", "--train_file", str(rows), "--output_dir", "run"])
    assert not (tmp_path / "out.jsonl").exists()


def test_a_tokenizer_of_another_model_is_refused(shared_tokenizer):
    model = build_model("marian", vocab_size=60)
    with pytest.raises(ValueError, match="tokenizer has 1[0-9]{2} entries, the model .*writes 60; pass the tokenizer"):
        hf_lenctrl.LengthControlledGenerationPipeline(model=model, tokenizer=shared_tokenizer, device="cpu")
