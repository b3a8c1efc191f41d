"""The plain translator that comes with the repository: what its card says of it."""

import re
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianMTModel


FOLDER = Path(__file__).resolve().parents[1] / "models" / "translate_to_english_base"


@pytest.fixture(scope="module")
def translator():
    model = AutoModelForSeq2SeqLM.from_pretrained(FOLDER, dtype="float32")
    return model, AutoTokenizer.from_pretrained(FOLDER)


def test_it_is_a_stock_model_of_the_size_on_its_card(translator):
    model, _ = translator
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert type(model) is MarianMTModel
    stated = float(re.search(r"([\d.]+) million parameters", card)[1])
    assert stated == round(model.num_parameters() / 1e6, 1)
    assert "CC BY 2.0 FR" in card and "tatoeba.org" in card and "manythings.org/anki" in card


@pytest.mark.parametrize(
    ("source", "translation"),
    [
        ("Ich möchte in den Park gehen.", "I want to go to the park."),
        ("Faites-moi savoir où vous restez.", "Let me know where you're staying."),
    ],
)
def test_it_translates_german_and_french(translator, source, translation):
    model, tokenizer = translator
    ids = model.generate(**tokenizer(source, return_tensors="pt"))
    assert tokenizer.decode(ids[0], skip_special_tokens=True) == translation
