"""The shipped causal model: a stock Llama that writes titles, and takes length control."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from hf_lenctrl import add_length_control


FOLDER = Path(__file__).resolve().parents[1] / "models" / "write_titles_base"


@pytest.fixture(scope="module")
def titles():
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype="float32").eval()
    return model, AutoTokenizer.from_pretrained(FOLDER)


def test_it_is_a_stock_model_of_the_size_on_its_card(titles):
    model, tokenizer = titles
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert type(model) is LlamaForCausalLM and len(tokenizer) == model.config.vocab_size == 8000
    assert re.search(r"([\d.]+) million parameters", card)[1] == f"{model.num_parameters() / 1e6:.1f}"
    assert {path.suffix for path in FOLDER.iterdir()} == {".json", ".md", ".safetensors"}


def test_the_example_of_its_card_writes_a_title(titles, monkeypatch, capsys):
    monkeypatch.chdir(FOLDER.parents[1])
    exec(re.search(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(encoding="utf-8"), flags=re.S)[1], {})
    assert capsys.readouterr().out == "Sarcasm Detection in Social Media Text\n"


def test_it_takes_length_control_and_starts_as_it_was(titles):
    model, tokenizer = titles
    ids = tokenizer("We compare two parsers.\nTitle:\n", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        before = model(ids).logits
        fresh = AutoModelForCausalLM.from_pretrained(FOLDER, dtype="float32")
        controlled = add_length_control(fresh, length_encoding="ldpe", length_unit="character", tokenizer=tokenizer)
        assert torch.equal(controlled(ids, length=40).logits, before)
    out = controlled.generate(ids, length=40, length_constraint="exact", num_beams=2, do_sample=False)
    assert len(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)) == 40
