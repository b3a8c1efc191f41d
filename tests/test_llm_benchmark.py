"""benchmarks/llm.py runs with small models, and its columns are right."""

import json

import llm
import pytest
import torch
from conftest import save_in
from test_causal import build_plain, make_tokenizer

from hf_lenctrl import add_length_control


def test_every_system_has_a_row(tmp_path, monkeypatch):
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    plain = build_plain("llama")
    save_in(tmp_path / "base", plain, tokenizer)
    tuned = add_length_control(plain, tokenizer=tokenizer, length_unit="character")
    tuned.make_length_optional()
    save_in(tmp_path / "tuned", tuned, tokenizer)
    groups = [{"texts": ["Anna is here at 10.", "Anna's here."]}, {"texts": ["We left."]}, {"texts": ["It ran."]}]
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps(group) + "\n" for group in groups))
    monkeypatch.setattr(llm, "Cosine", lambda: lambda texts, others: [0.5] * len(texts))
    monkeypatch.setattr(llm, "SETTINGS", [("max", 0.6), ("10 %", 1.2)])
    monkeypatch.setattr(llm, "BEAMS", 2)
    folders = ["--base_model", str(tmp_path / "base"), "--model", str(tmp_path / "tuned")]
    options = ["--held_out", str(tmp_path / "held_out.jsonl"), "--sentences", "1", "--paragraphs", "1"]
    llm.main([*folders, *options, "--output_dir", str(tmp_path / "out")])
    rows = json.loads((tmp_path / "out" / "table.json").read_text())
    assert len(rows) == 14 and {row["system"] for row in rows} >= {"cut", "prompt", "filtered", "fit"}
    for row in rows:
        assert row["cos"] == 0.5
        if (
            row["system"] in ("cut", "constraint, 16 beams", "tuned, 16 beams", "fit")
            and row["length"] == "max, × 0.6"
        ):
            assert row["fits %"] == 100


def test_columns():
    assert llm.fits("abcd", 4, "max") and not llm.fits("abcde", 4, "max")
    assert llm.fits("a" * 36, 40, "10 %") and not llm.fits("a" * 35, 40, "10 %")
    assert llm.told("Hi.", 3, "max")[0]["content"].startswith("Rewrite the text in at most 3 characters.")


@pytest.mark.parametrize(("sentences", "paragraphs"), [(2, 1)])
def test_paragraphs_have_other_sentences(tmp_path, sentences, paragraphs):
    groups = [{"texts": [f"Text number {i} is here.", f"Text {i}."]} for i in range(8)]
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps(group) + "\n" for group in groups))
    *single, paragraph = llm.read_texts(tmp_path / "held_out.jsonl", sentences, paragraphs, seed=1)
    assert len(single) == 2 and 2 <= paragraph.count("Text number") <= 4
    assert not any(text in paragraph for text in single)
