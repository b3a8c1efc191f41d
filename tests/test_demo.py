"""`make demo`: what it prints and draws is what the docs show."""

import json
import re

import pyarrow.parquet
import pytest
from recipe_runs import ROOT, load_script


demo = load_script("recipes/translation/translate_demo.py")


@pytest.mark.slow
def test_the_demo_prints_and_draws_what_the_docs_show(tmp_path, capsys, monkeypatch):
    """Three of its ten sentences, and six of the hundred of its picture."""
    sentences = demo.sentences()
    assert len(sentences) == len(set(sentences)) == 300
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "SHOWN", dict(list(demo.SHOWN.items())[:3]))
    monkeypatch.setattr(demo, "DRAWN", 6)
    demo.main([])
    shown = capsys.readouterr().out.split("\n\n")
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    assert [part for part in shown[:4] if part not in page] == []
    # the lengths of each, all of them within their windows
    rows = re.findall(r"^ +(\d+) +(\d+) to (\d+) +(\d+)  (.+)$", "\n".join(shown), flags=re.M)
    assert [int(requested) for requested, *_ in rows] == sum(demo.SHOWN.values(), [])
    assert [(int(low), int(high)) for _, low, high, *_ in rows][:3] == [(29, 35), (38, 46), (41, 49)]
    assert all(int(low) <= int(produced) == len(text) <= int(high) for _, low, high, produced, text in rows)
    lengths = json.loads((tmp_path / "demo" / "lengths.json").read_text(encoding="utf-8"))
    assert all(0.9 <= len(row["text"]) / row["requested"] <= 1.1 for row in lengths) and len(lengths) == 6
    assert all(0.79 < row["requested"] / len(row["natural"]) < 1.21 for row in lengths)
    picture = (tmp_path / "demo" / "lengths.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000


def test_the_finetune_demo_is_measured_and_shown_on_sentences_that_are_not_trained_on(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "recipes" / "translation"))
    script = load_script("recipes/translation/finetune_demo.py")
    train, validation = script.pairs()
    assert script.pairs() == (train, validation)  # drawn with a seed
    sources = {row["source"] for row in train}
    assert len(sources) > 1900 and len({row["source"] for row in validation}) == script.HELD_OUT
    assert not sources & {*script.SHOWN, *(row["source"] for row in validation)}


def test_the_finetune_demo_takes_german_and_french_in_turn_with_each_english_text_once(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "recipes" / "translation"))
    where = ("Wo ist er?", "Où est-il ?", "Where is he?", "Where's he?", "Where is he at the moment?")  # twice as long
    rows = [where, where, ("Ja", "Oui", "Yes", "", ""), ("Danke", "Merci", "Thank you", "Thanks", "")]
    columns = ("de", "fr", "en", "shorter", "longer")
    table = pyarrow.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in rows])
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    found = load_script("recipes/translation/finetune_demo.py").several("train", tmp_path)
    assert found == [("Où est-il ?", ["Where is he?", "Where's he?"]), ("Merci", ["Thank you", "Thanks"])]
