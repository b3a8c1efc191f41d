"""A run that is repeated after its end keeps what it has; options that would lose a training are refused before it."""

import pytest
import recipe_runs
import torch
from recipe_runs import ROWS, assert_same_weights, train
from transformers import M2M100Config, M2M100ForConditionalGeneration, T5Config, T5ForConditionalGeneration

from hf_lenctrl.commands.arguments import ModelArguments
from hf_lenctrl.commands.models import build_model, language_id, load_tokenizer


SMALL = {"rows": ROWS[:60], "max_steps": 4, "save_steps": 2, "test_share": 0}


def test_a_repeated_run_keeps_its_best_checkpoint_and_its_files(tmp_path, monkeypatch):
    monkeypatch.delitem(recipe_runs.TINY, "predict_with_generate")  # texts are written without being told
    best = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "greater_is_better": True}
    best |= {"metric_for_best_model": "loss"}  # the first is the worst, so the best one here is not the last
    train(tmp_path / "run", **SMALL, **best)
    assert_same_weights(tmp_path / "run", tmp_path / "run" / "checkpoint-2")
    assert "eval_variance" in (tmp_path / "run" / "checkpoint-2" / "trainer_state.json").read_text()
    files = [tmp_path / "run" / name for name in ("config.json", "train_results.json", "README.md")]
    before = [path.read_bytes() for path in files]
    assert b"trained_lengths" in before[0] and b"It was trained on lengths from" in before[2]
    train(tmp_path / "run", **SMALL, **best)
    assert_same_weights(tmp_path / "run", tmp_path / "run" / "checkpoint-2")
    assert [path.read_bytes() for path in files] == before


def test_a_run_of_epochs_that_is_repeated_is_not_trained_on(tmp_path):
    epochs = {"rows": ROWS[:40], "num_train_epochs": 1, "save_steps": 2, "validation_share": 0, "test_share": 0}
    train(tmp_path / "run", **epochs)
    files = [tmp_path / "run" / name for name in ("train_results.json", "model.safetensors")]
    before = [path.read_bytes() for path in files]
    train(tmp_path / "run", **epochs)
    assert [path.read_bytes() for path in files] == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"average_checkpoints": 2, "load_best_model_at_end": True}, "average_checkpoints=2 takes the mean"),
        ({"dataset_name": "some/name"}, "dataset_name=some/name has its own splits, got .*run.jsonl"),
        ({"source_column": "target"}, "source_column and target_column are both 'target'"),
    ],
)
def test_what_would_lose_a_training_is_refused_before_it(tmp_path, options, message):
    evaluated = {"eval_strategy": "steps", "eval_steps": 2}
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "run", **(SMALL | evaluated | options))
    assert not list((tmp_path / "run").glob("checkpoint-*"))


# Base models


@pytest.fixture
def m2m(tokenizers_of_every_kind, tmp_path):
    tokenizer = tokenizers_of_every_kind["m2m_100"]
    size = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    size |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 108 + tokenizer.encoder_size}
    M2M100ForConditionalGeneration(M2M100Config(**size)).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return ModelArguments(base_model=str(tmp_path / "base"), source_language="en", target_language="ja")


def test_a_language_is_forced_by_its_token(m2m, tmp_path):
    tokenizer = load_tokenizer(m2m, {}, str(tmp_path))
    labels = tokenizer(text_target="text")["input_ids"]
    model = build_model(m2m, tokenizer, 64)
    assert tokenizer.convert_ids_to_tokens(labels)[0] == "__ja__"
    assert model.generation_config.forced_bos_token_id == labels[0] == language_id(tokenizer, "ja")
    m2m.target_language = "jaa"
    with pytest.raises(ValueError, match=r"the tokenizer knows no language 'jaa' \(did you mean ja\?\)"):
        load_tokenizer(m2m, {}, str(tmp_path))


def test_the_dropout_of_t5_is_the_runs(tokenizers_of_every_kind, tmp_path):
    tokenizer = tokenizers_of_every_kind["t5"]
    size = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": len(tokenizer)}
    T5ForConditionalGeneration(T5Config(**size)).save_pretrained(tmp_path)
    model = build_model(ModelArguments(base_model=str(tmp_path), dropout=0.0), tokenizer, 64)
    assert {part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)} == {0.0}
