"""The models in the repository: loaded as any other, and as good as their cards say."""

import gzip
import json
import os
import re

import pytest
import torch
import transformers
from processes import output_of
from recipe_runs import ROOT, load_script
from safetensors.torch import load_file

import hf_lenctrl
from hf_lenctrl.evaluation.metrics import translation_metrics


MODELS = ROOT / "models"
FOLDER = MODELS / "translate_to_english"
CARD = (FOLDER / "README.md").read_text(encoding="utf-8")
SHARED = ROOT.parent / "shared" / "data" / "tatoeba_de_en.jsonl.gz"
SENTENCES = load_script("recipes/translation/translate_demo.py").sentences()[20:28]
OPTIONS = {"length_unit": "character", "num_beams": 4}


@pytest.fixture(scope="module")
def pipe():
    return transformers.pipeline("length-controlled-generation", model=str(FOLDER), **OPTIONS)


@pytest.fixture(scope="module")
def own_lengths(pipe):
    """Of the translations without a length."""
    return [out["length"] for out in pipe(SENTENCES)]


def test_it_is_small_and_safe():
    files = [path for path in FOLDER.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {path.suffix for path in files} == {".json", ".safetensors", ".spm", ".md", ".py"}
    assert sum(path.stat().st_size for path in (FOLDER / "predictor").iterdir()) < 10e6
    assert 0 < sum(path.stat().st_size for path in files) < 50e6
    weights = load_file(FOLDER / "model.safetensors")
    assert {t.dtype for t in weights.values() if t.is_floating_point()} == {torch.float16}


def test_it_is_loaded_in_single_precision(pipe):
    assert type(pipe.model) is hf_lenctrl.LenCtrlMarianMTModel
    assert isinstance(pipe.tokenizer, transformers.MarianTokenizer)
    assert pipe.model.dtype == torch.float32  # half precision would be slow on CPUs
    assert (pipe.model.config.length_encoding, pipe.model.config.length_unit) == ("ldpe", "character")


def test_without_the_package_the_message_says_what_is_missing(tmp_path):
    """In a process that cannot find the package."""
    code = f"""
sys.path[:] = [path for path in sys.path if path not in ("", {str(ROOT)!r})]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
from transformers import AutoModelForSeq2SeqLM
try:
    AutoModelForSeq2SeqLM.from_pretrained({str(FOLDER)!r}, trust_remote_code=True)
except ImportError as error:
    print(error)
"""
    environment = {**os.environ, "HF_HOME": str(tmp_path), "PYTHONPATH": ""}
    assert "pip install hf_lenctrl" in output_of(code, cwd=tmp_path, **environment)


def test_it_keeps_the_names_of_people(pipe):
    """Names that are whole tokens, which a training that has each a dozen times turns into other words."""
    names = "Anna Julia Laura Daniel Hannah Felix Camille Juliette Jonas Klaus".split()
    outputs = pipe([f"Nous avons rencontré {name} au marché." for name in names])
    assert [out["generated_text"] for out in outputs] == [f"We met {name} at the market." for name in names]


def test_exact_lengths_are_exact(pipe, own_lengths):
    lengths = [[round(ratio * n) for ratio in (0.7, 1.0, 1.4)] for n in own_lengths[:2]]
    outputs = pipe(SENTENCES[:2], length=lengths, length_constraint="exact")
    assert [[len(out["generated_text"]) for out in row] for row in outputs] == lengths


def test_its_default_is_a_window_of_ten_percent_and_exact_is_for_who_asks(pipe):
    source = "Könnten Sie mir bitte sagen, wo hier die nächste Tankstelle ist?"
    out = pipe(source, length=55)
    assert (out["requested_length"], out["window"]) == (55, (50, 60)) and 50 <= out["length"] <= 60
    assert pipe("Ja.", length=4)["window"] == (3, 5)  # at least one unit
    for options in ({"length_constraint": "exact"}, {"length_tolerance": 0}):
        exact = pipe(source, length=55, **options)
        assert exact["length"] == 55 and "window" not in exact
    free = pipe(source)
    assert free["requested_length"] is None and free["score"] < 0
    assert pipe(source, length=free["length"], length_constraint="max")["score"] == pytest.approx(
        free["score"], abs=0.01
    )


def test_no_final_mark_is_behind_half_a_word(pipe):
    outputs = pipe("Je serai là dans 20min.", length=[21, 24, 26])
    assert all(out["generated_text"].endswith(("20min.", "20 minutes.")) for out in outputs), outputs


def test_it_predicts_lengths_by_itself(pipe, own_lengths):
    outputs = pipe(SENTENCES, length="predict", length_constraint="exact")
    assert [out["length"] for out in outputs] == [out["requested_length"] for out in outputs]
    errors = [abs(out["length"] - n) / n for out, n in zip(outputs, own_lengths, strict=True)]
    assert sum(errors) / len(errors) < 0.2


def test_a_saved_pipeline_predicts_the_same_lengths(pipe, tmp_path, caplog):
    pipe.save_pretrained(tmp_path / "saved")
    saved = hf_lenctrl.pipeline(tmp_path / "saved")
    calls = {"length": "predict", "choose": False, "num_beams": 1}
    assert saved(SENTENCES[:2], **calls) == pipe(SENTENCES[:2], **calls)
    for path in (tmp_path / "saved" / "predictor").iterdir():
        path.unlink()
    hf_lenctrl.pipeline(tmp_path / "saved").save_pretrained(tmp_path / "again")
    assert "the length predictor ./predictor is not saved: " in caplog.text


def test_its_card_prints_what_it_says(capsys, monkeypatch):
    (code,), (printed,) = (re.findall(rf"```{kind}\n(.*?)```", CARD, flags=re.S) for kind in ("python", "text"))
    monkeypatch.chdir(MODELS.parent)
    exec(code, {})
    assert capsys.readouterr().out == printed


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_file(), reason="needs the Tatoeba pairs")
def test_it_is_as_good_as_its_card_says(pipe):
    """On German test rows of the card, without a length, though not on all of them."""
    with gzip.open(SHARED, "rt", encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if row["split"] == "test"][:50]
    said = re.search(r"^\| Tatoeba, German .*\| ([\d.]+) \|$", CARD, flags=re.M)
    outputs = pipe([row["de"] for row in rows])
    bleu = translation_metrics([out["generated_text"] for out in outputs], [row["en"] for row in rows])["bleu"]
    assert abs(bleu - float(said[1])) < 8


def test_its_card_says_how_to_load_it():
    assert "import hf_lenctrl" in CARD
    assert "CC BY 2.0 FR" in CARD and "tatoeba.org" in CARD and "manythings.org/anki" in CARD
    assert "trust_remote_code" not in CARD and not re.search(r"/(tmp|home|root|work)/", CARD)


@torch.no_grad()
def test_the_plain_model_within_it_is_a_stock_model_with_its_logits(pipe):
    plain = hf_lenctrl.remove_length_control(FOLDER)
    assert type(plain) is transformers.MarianMTModel
    assert re.search(r"([\d.]+) million parameters", CARD)[1] == f"{pipe.model.num_parameters() / 1e6:.1f}"
    batch = pipe.tokenizer(SENTENCES[:2], text_target=["Yes.", "No."], padding=True, return_tensors="pt")
    assert torch.equal(plain(**batch).logits, pipe.model(**batch, length=torch.zeros(2, dtype=torch.long)).logits)
