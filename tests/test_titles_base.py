"""The shipped causal model: a stock Llama that writes titles."""

import re
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM


FOLDER = Path(__file__).resolve().parents[1] / "models" / "write_titles_base"


def test_it_is_a_stock_model_of_the_size_on_its_card():
    model, tokenizer = AutoModelForCausalLM.from_pretrained(FOLDER), AutoTokenizer.from_pretrained(FOLDER)
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert type(model) is LlamaForCausalLM and len(tokenizer) == model.config.vocab_size == 8000
    assert re.search(r"([\d.]+) million parameters", card)[1] == f"{model.num_parameters() / 1e6:.1f}"
    assert {path.suffix for path in FOLDER.iterdir()} == {".json", ".md", ".safetensors"}


def test_the_example_of_its_card_writes_a_title(monkeypatch, capsys):
    monkeypatch.chdir(FOLDER.parents[1])
    exec(re.search(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(encoding="utf-8"), flags=re.S)[1], {})
    assert capsys.readouterr().out == "Sarcasm Detection in Social Media Text\n"
