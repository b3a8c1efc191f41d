"""The model that comes with the repository: small, loaded as any other, and as good as its card says."""

import re
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianTokenizer, pipeline

import hf_lenctrl
from hf_lenctrl.experiment.arguments import DataArguments
from hf_lenctrl.experiment.data import load_splits
from hf_lenctrl.metrics import length_metrics, rouge_metrics


FOLDER = Path(__file__).resolve().parents[1] / "models" / "debian_headlines"
CORPUS = Path(__file__).resolve().parents[2] / "shared" / "data" / "debian_headlines.jsonl.gz"
TEXTS = [
    "This program plays music files of all common formats. It shows the words of a song while it plays, keeps lists "
    "of what was heard most, and can be steered from a telephone in the same network.",
    "A library that reads and writes spreadsheets without an office suite. It keeps formulas, styles and charts.",
    "Two players move stones over a board of hexagons and try to reach the other side first.",
]


@pytest.fixture(scope="module")
def pipe():
    return pipeline("length-controlled-generation", model=str(FOLDER))


def test_it_is_small_safe_and_without_code():
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 16e6
    assert {path.suffix for path in files} == {".json", ".safetensors", ".spm", ".md", ".png"}
    weights = load_file(FOLDER / "model.safetensors")
    assert {t.dtype for t in weights.values() if t.is_floating_point()} == {torch.float16}


def test_the_auto_classes_load_it():
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(FOLDER), AutoTokenizer.from_pretrained(FOLDER)
    assert type(model) is hf_lenctrl.LenCtrlMarianMTModel and isinstance(tokenizer, MarianTokenizer)
    assert model.dtype == torch.float32  # half precision would be slow on CPUs
    assert (model.config.length_encoding, model.config.length_unit) == ("ldpe", "character")


def test_exact_lengths_are_exact(pipe):
    lengths = [20, 30, 50, 75, 100]
    for text, outputs in zip(
        TEXTS, pipe(TEXTS, length=[lengths] * 3, length_constraint="exact", num_beams=4), strict=True
    ):
        assert [out["length"] for out in outputs] == [len(out["generated_text"]) for out in outputs] == lengths, text


def test_alone_it_is_near(pipe):
    outputs = pipe(TEXTS, length=[[30, 50, 75]] * 3, num_beams=4)
    assert max(abs(out["length"] - out["requested_length"]) for row in outputs for out in row) <= 3


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.is_file(), reason="needs the Debian corpus")
def test_it_is_as_good_as_its_card_says(pipe):
    """On the card's test rows, though not all of them."""
    groups = {"group_column": "package", "group_separator": "-", "validation_share": 0.03, "test_share": 0.06}
    rows = load_splits(DataArguments(train_file=str(CORPUS), **groups))["test"].select(range(100))
    figures = {
        result.metric_name: result.metric_value for result in ModelCard.load(FOLDER / "README.md").data.eval_results
    }
    texts = [out["generated_text"] for out in pipe(rows["source"][:], length=50, num_beams=4)]
    measured = length_metrics([len(text) for text in texts], [50] * len(texts))
    assert abs(measured["mae"] - figures["mae at 50 characters"]) < 0.3
    lengths = [len(target) for target in rows["target"]]
    texts = [out["generated_text"] for out in pipe(rows["source"][:], length=lengths, num_beams=4)]
    assert (
        abs(rouge_metrics(texts, rows["target"][:])["rouge1_f1"] - figures["rouge1_f1 at the reference's length"]) < 6
    )


def test_its_card_says_how_to_load_it():
    card = (FOLDER / "README.md").read_text()
    assert "loses the control of the length" in card and "import hf_lenctrl" in card
    assert "trust_remote_code" not in card and not re.search(r"/(tmp|home|root|work)/", card)
