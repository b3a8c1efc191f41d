"""GOLC's loss and risk by hand, its gradient on a tiny model, and a run of it."""

import math

import pytest
import torch
from conftest import SOURCES, TARGETS, controlled_marian
from golc import GolcArguments, GolcTrainer, expected_risk, main, penalised_rouge
from recipe_runs import ROWS, TINY, as_options, write_rows
from transformers import Seq2SeqTrainingArguments

from hf_lenctrl import DataCollatorForLengthControl


def test_the_loss_of_an_output_is_rouge_of_what_fits_and_the_units_beyond():
    references = ["the cat sat", "the cat sat", "the cat sat"]
    outputs = ["the cat", "the cat sat down", "a dog"]
    # ROUGE-L F1: 2 of 2 and 2 of 3 words; "the cat sat" alone is compared, 5 characters are beyond; nothing shared
    assert penalised_rouge(outputs, references, [11] * 3, "character", None) == pytest.approx([-0.8, -1 + 5, 0.0])
    assert penalised_rouge(outputs, references, [2] * 3, "word", None) == pytest.approx([-0.8, -0.8 + 2, 0.0])
    pairs = ["日本語の文字", "日本", "слово"], ["日本語の文字", "日本語の", "слово"]  # by characters
    assert penalised_rouge(*pairs, [9] * 3, "character", None, "character") == pytest.approx([-1.0, -2 / 3, -1.0])


def test_the_risk_is_the_weighted_mean_of_the_losses():
    with pytest.raises(ValueError, match="golc_samples must be .*got 1"):  # one has no mean
        GolcArguments(golc_samples=1)
    log_probabilities = torch.log(torch.tensor([[0.2, 0.6], [0.5, 0.5]]))
    losses = torch.tensor([[1.0, -1.0], [3.0, 0.0]])
    # 0.25 - 0.75, and 1.5; with alpha 1/2 the first row weighs sqrt(0.2) and sqrt(0.6)
    assert float(expected_risk(log_probabilities, losses, 1.0)) == pytest.approx((-0.5 + 1.5) / 2)
    low, high = math.sqrt(0.2), math.sqrt(0.6)
    expected = ((low - high) / (low + high) + 1.5) / 2
    assert float(expected_risk(log_probabilities, losses, 0.5)) == pytest.approx(expected)


def test_a_step_against_the_risk_lowers_the_risk_of_the_same_samples(shared_tokenizer, tmp_path, monkeypatch):
    model = controlled_marian(shared_tokenizer, seed=0, init_std=0.02, dropout=0.0).train()
    args = Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    parts = {"data_collator": DataCollatorForLengthControl(shared_tokenizer, model=model)}
    parts |= {"processing_class": shared_tokenizer, "options": GolcArguments(golc_samples=4, golc_alpha=0.5)}
    trainer = GolcTrainer(model=model, args=args, **parts)
    batch = trainer.data_collator([dict(shared_tokenizer(SOURCES[i], text_target=TARGETS[i])) for i in (0, 3)])
    written = ["small text editor", "small", "editor of much too long a text", "a b", "measure", "disk", "b", "speed"]
    ids = shared_tokenizer(text_target=written, padding=True, return_tensors="pt")["input_ids"]
    start = ids.new_full((8, 1), shared_tokenizer.pad_token_id)
    monkeypatch.setattr(trainer, "sample", lambda model, inputs: torch.cat([start, ids], dim=1))
    before = trainer.risk(model, batch)
    before.backward()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.grad is not None:
                weight -= 0.01 * weight.grad
        after = trainer.risk(model, batch)
    assert after < before


@pytest.mark.slow
def test_the_script_trains_with_the_options_of_a_recipe(tmp_path, monkeypatch):
    (tmp_path / "golc.yaml").write_text("objective: golc\ngolc_samples: 2\n")
    sample, sampled = GolcTrainer.sample, []
    monkeypatch.setattr(GolcTrainer, "sample", lambda *given: sampled.append(sample(*given)) or sampled[-1])
    options = {**TINY, "max_steps": 2, "save_steps": 1, "eval_strategy": "no", "length_unit": "character"}
    options |= {"train_file": write_rows(tmp_path / "rows.jsonl", ROWS), "output_dir": tmp_path / "run"}
    metrics = main([str(tmp_path / "golc.yaml"), *as_options(options | {"length_encoding": "ldpe"})])
    assert metrics["train_loss"] > 0 and "test_mae" in metrics and (tmp_path / "run" / "model.safetensors").is_file()
    assert [len(ids) for ids in sampled] == [2 * 8] * 2  # golc_samples of each of the rows of a step
