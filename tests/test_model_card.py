"""Model cards: what they say is what the run did, the Hub can read them, and their snippet runs."""

import re

import pytest
from conftest import SOURCES, TARGETS, build_model
from huggingface_hub import ModelCard
from transformers import MarianConfig, MarianMTModel

from hf_lenctrl.metrics import build_compute_metrics
from hf_lenctrl.model_card import TrainingRun, model_card


class Evaluation:
    def __init__(self, predictions, label_ids):
        self.predictions, self.label_ids = predictions, label_ids


@pytest.fixture
def make_run(shared_tokenizer):
    """A run whose model wrote the references, tested at 13 characters."""
    ids = shared_tokenizer(text_target=TARGETS, padding=True, return_tensors="np")["input_ids"]
    figures = build_compute_metrics(shared_tokenizer, "character", length=13)(Evaluation(ids, ids))

    def make(**fields):
        known = {"tests": {"13": figures}, "outputs": {13: list(TARGETS)}, "sources": SOURCES, "references": TARGETS}
        return TrainingRun(**{**known, "data": "rows.jsonl", **fields})

    return make


@pytest.fixture
def saved(shared_tokenizer, tmp_path):
    model = build_model("marian", vocab_size=len(shared_tokenizer), length_encoding="ldpe", length_unit="character")
    model.set_unit_table(shared_tokenizer)
    model.save_pretrained(tmp_path / "model")
    shared_tokenizer.save_pretrained(tmp_path / "model")
    return model, tmp_path / "model"


def test_the_hub_reads_the_figures_and_what_the_model_is(saved, make_run, tmp_path):
    run = make_run(data="user/headlines", on_hub=True, base_model="user/base", language="en", license="apache-2.0")
    model_card(saved[0], run, "user/short").save(tmp_path / "README.md")
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "transformers" and card.data.pipeline_tag == "summarization"
    assert {"hf_lenctrl", "length-control", "ldpe"} <= set(card.data.tags)
    assert (card.data.datasets, card.data.base_model) == (["user/headlines"], "user/base")
    assert (card.data.language, card.data.license, card.data.model_name) == ("en", "apache-2.0", "short")
    results = {result.metric_type: result for result in card.data.eval_results}
    lengths = [len(target) for target in TARGETS]
    assert results["mae"].metric_value == round(sum(abs(n - 13) for n in lengths) / len(lengths), 4)
    assert results["rouge1_f1"].metric_value == 100  # each output is its reference
    assert results["exact"].metric_name == "exact at 13 characters"
    assert results["exact"].dataset_type == "user/headlines"
    assert "rouge_score" in results["rouge1_f1"].metric_args["settings"]


def test_the_card_of_a_local_run_names_no_folder(saved, make_run):
    folder = saved[1]
    card = model_card(saved[0], make_run(base_model=str(folder)), "short")
    assert card.data.base_model is None and card.data.datasets is None
    assert "Started from `model`." in card.text and str(folder.parent) not in str(card)


def test_the_usage_snippet_runs(saved, make_run, capsys):
    card = model_card(saved[0], make_run(), str(saved[1]))
    code = re.findall(r"```python\n(.*?)```", card.text, re.S)
    assert len(code) == 1
    exec(compile(code[0], "card", "exec"), {})
    assert capsys.readouterr().out.startswith("13 ")


def test_a_controlled_card_warns_of_plain_classes_and_a_plain_one_does_not(saved, make_run, shared_tokenizer):
    assert "loses the control of the length" in model_card(saved[0], make_run(), "short").text
    plain = MarianMTModel(MarianConfig(vocab_size=60, d_model=16, encoder_layers=1, decoder_layers=1, pad_token_id=0))
    card = model_card(plain, make_run(), "plain")
    assert "loses the control" not in card.text and "trained to compare with" in card.text
    assert "length-control" not in card.data.tags


def test_every_way_that_tells_the_length_is_listed(make_run):
    model = build_model("bart", length_encoding="learned", encoder_length_embedding=True, length_head=True)
    model.config.length_tokens = {"kind": "bins", "edges": [5]}
    text = model_card(model, make_run(), "full").text
    for words in ("Kikuchi et al. 2016", "eq. 16-17", "eq. 20-24", "class (bins)", "A bart model"):
        assert words in text


def test_texts_cannot_break_the_tables(saved, make_run):
    outputs = {13: ["a | b\nc" for _ in TARGETS], 40: ["x" * 500 for _ in TARGETS]}
    text = model_card(saved[0], make_run(outputs=outputs), "short").text
    assert f"| {TARGETS[0]} | a \\| b c | {'x' * 119}… |" in text


def test_a_run_without_a_test_has_a_card_too(saved, make_run):
    card = model_card(saved[0], make_run(tests={}, outputs={}, sources=[], references=[]), "short")
    assert card.data.eval_results is None and "## Measured" not in card.text and "## What it writes" not in card.text


def test_the_picture_is_drawn_where_there_are_outputs(make_run, shared_tokenizer, tmp_path):
    for unit in ("character", "token"):
        assert make_run().save_picture(tmp_path / f"{unit}.png", unit, shared_tokenizer)
        assert (tmp_path / f"{unit}.png").read_bytes().startswith(b"\x89PNG")
    assert not make_run(outputs={}).save_picture(tmp_path / "none.png", "character")
    assert not (tmp_path / "none.png").exists()


def test_another_task_is_refused(make_run):
    with pytest.raises(ValueError, match="task must be one of summarization, translation, got 'chat'"):
        make_run(task="chat")
