"""Model cards: what they say is what the run did, the Hub can read them, and their snippet runs."""

import re

import pytest
from conftest import SOURCES, TARGETS, build_model
from family_models import stock_model
from huggingface_hub import ModelCard
from recipe_runs import save
from transformers import EvalPrediction, Seq2SeqTrainingArguments

from hf_lenctrl.card import minimal_card
from hf_lenctrl.commands.arguments import DataArguments, ModelArguments, RunArguments, parse_arguments
from hf_lenctrl.commands.train import card_of
from hf_lenctrl.evaluation.metrics import build_compute_metrics
from hf_lenctrl.training.model_card import TrainingRun, model_card


@pytest.fixture
def make_run(shared_tokenizer):
    """A run whose model wrote the references, tested at 13 characters."""
    ids = shared_tokenizer(text_target=TARGETS, padding=True, return_tensors="np")["input_ids"]
    figures = build_compute_metrics(shared_tokenizer, "character", length=13)(EvalPrediction(ids, ids))

    def make(**fields):
        known = {"tests": {"13": figures}, "outputs": {13: list(TARGETS)}, "sources": SOURCES, "references": TARGETS}
        return TrainingRun(**{**known, "data": "rows.jsonl", **fields})

    return make


@pytest.fixture
def saved(shared_tokenizer, tmp_path):
    model = build_model("marian", vocab_size=len(shared_tokenizer), length_encoding="ldpe", length_unit="character")
    return model, save(model, shared_tokenizer, tmp_path / "model")


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


def test_the_card_of_a_local_run_names_no_folder_and_every_way_that_tells_the_length(saved, make_run):
    folder = saved[1]
    model = build_model("bart", length_encoding="learned", encoder_length_embedding=True, length_head=True)
    model.config.length_tokens, model.config.length_constraint = {"kind": "bins", "edges": [5]}, "exact"
    card = model_card(model, make_run(base_model=str(folder)), "short")
    assert card.data.base_model is None and card.data.datasets is None and str(folder.parent) not in str(card)
    said = ("Kikuchi et al. 2016", "eq. 16-17", "eq. 20-24", "class (bins)", "A bart model", "Started from model.")
    assert [words for words in said if words not in card.text] == []
    assert 'test rows, with `length_constraint="exact"`.' in card.text
    assert " test rows, unconstrained." in model_card(saved[0], make_run(), "short").text


def test_the_usage_snippet_runs_as_printed(saved, make_run, monkeypatch, capsys):
    model, folder = saved
    cards = model_card(model, make_run(), "model"), minimal_card(model, "user/name", revision="dev")
    local, uploaded = (re.findall(r"```python\n(.*?)```", card.text, re.S) for card in cards)
    assert len(local) == len(uploaded) == 1 and "model=\"user/name\", revision='dev')" in uploaded[0]
    assert "In a clone of the repository of `hf_lenctrl`:\n\n```bash\npip install .\n```" in cards[1].text
    assert "Run this in the folder that holds `model`:" in cards[0].text
    monkeypatch.chdir(folder.parent)
    exec(local[0] + uploaded[0].replace("user/name", str(folder)), {})
    assert [line.split(" ")[0] for line in capsys.readouterr().out.splitlines()] == ["13", "40"]


def test_the_licence_is_the_given_one_or_that_of_the_base_model(saved, make_run, tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    for base, given, expected in (
        (tmp_path, None, "cc-by-4.0"),
        (tmp_path, "mit", "mit"),
        (saved[1], None, None),
        (None, None, None),
        ("user/not-cached", None, None),  # and no network
    ):
        run = make_run(base_model=base and str(base), license=given)
        assert model_card(saved[0], run, "short").data.license == expected


CLASSES = (ModelArguments, DataArguments, RunArguments, Seq2SeqTrainingArguments)


@pytest.mark.parametrize(
    ("options", "task"),
    [
        ({}, "summarization"),
        ({"bleu_tokenizer": "13a"}, "translation"),
        ({"source_language": "en_XX", "target_language": "ja_XX"}, "translation"),
        ({"bleu_tokenizer": "13a", "task": "summarization"}, "summarization"),
    ],
)
def test_a_translation_is_not_called_a_summary(options, task, tmp_path):
    known = {"output_dir": tmp_path, "train_file": "rows.jsonl", "use_cpu": True, **options}
    run = card_of(*parse_arguments(CLASSES, [f"--{k}={v}" for k, v in known.items()]), {})
    assert run.task == task and run.examples == 0


def test_a_local_folder_of_rows_is_no_data_set_of_the_hub(saved, tmp_path):
    (tmp_path / "private_rows").mkdir()
    argv = ["--dataset_name", str(tmp_path / "private_rows"), "--output_dir", str(tmp_path), "--use_cpu"]
    card = str(model_card(saved[0], card_of(*parse_arguments(CLASSES, argv), rows={"train": 5}), "name"))
    assert str(tmp_path) not in card and "huggingface.co/datasets" not in card and "Data: private\\_rows" in card


def test_a_controlled_card_warns_of_plain_classes_and_a_plain_one_does_not(saved, make_run):
    run = make_run(tests={}, outputs={}, sources=[], references=[])  # which tested nothing
    card = model_card(saved[0], run, "short")
    assert card.data.eval_results is None and "## Measured" not in card.text and "ignores the length" in card.text
    card = model_card(stock_model("marian"), make_run(), "plain")
    assert "ignores the length" not in card.text and "trained to compare with" in card.text
    assert "length-control" not in card.data.tags
    plain = build_model("bart", length_encoding="none", absolute_positions=True)
    assert "without length control" in minimal_card(plain, "user/name").text


def test_rows_are_published_where_it_is_asked_for_in_a_table(saved, make_run):
    assert not any(text in str(model_card(saved[0], make_run(), "user/name")) for text in (*SOURCES, *TARGETS))
    outputs = {13: ["a | b\nc" for _ in TARGETS], 40: ["x" * 500 for _ in TARGETS]}
    card = model_card(saved[0], make_run(outputs=outputs, examples=1), "short").text
    assert f"| {TARGETS[0]} | a \\| b c | {'x' * 119}… |\n\n## Training" in card
    assert SOURCES[0] in card and not any(text in card for text in (*SOURCES[1:], *TARGETS[1:]))
    measures = "mae | variance | exact % | distinct % | over % | rouge1_f1 | rouge2_f1 | rougeL_f1"
    assert re.search(rf"\n\| requested characters \| {re.escape(measures)} \|\n(\|---){{9}}\|\n\| 13 \|", card)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a | b\nc", "a \\| b c"),
        ("<script>R&D &amp;", "&lt;script&gt;R&amp;D &amp;amp;"),
        ("*a* _b_ `c` back\\|slash", "\\*a\\* \\_b\\_ \\`c\\` back\\\\\\|slash"),
        ("![x](y) $x$ ~~y~~", "!\\[x\\](y) \\$x\\$ \\~\\~y\\~\\~"),
    ],
)
def test_what_markdown_and_html_read_is_escaped(saved, make_run, text, shown):
    fields = {"references": [text] * 6, "outputs": {13: [text] * 6}, "settings": {"noise": text}, "data": text}
    card = model_card(saved[0], make_run(**fields, examples=1), "user/name").text
    assert f"| {shown} | {shown} |" in card and f"- `noise`: {shown}\n" in card and f"Data: {shown}." in card
