"""`make demo`: what it prints and draws is what the docs show."""

import json
import re
from pathlib import Path

import pytest
from recipe_runs import load_script


ROOT = Path(__file__).resolve().parents[1]
demo = load_script("recipes/translation/translate_demo.py")


@pytest.mark.slow
def test_the_demo_prints_and_draws_what_the_docs_show(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    demo.main([])
    printed = capsys.readouterr().out
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    assert re.search(r"```text\n(Requested and produced.*?)```", page, flags=re.S)[1] == printed
    # ten sentences, four lengths each, all of them met
    rows = re.findall(r"^ +(\d+) +(\d+)  (.+)$", printed, flags=re.M)
    assert len(rows) == 40
    assert all(requested == produced == str(len(text)) for requested, produced, text in rows)
    lengths = json.loads((tmp_path / "demo" / "lengths.json").read_text(encoding="utf-8"))
    assert len(lengths) == len(set(demo.sentences())) == 300
    assert {row["requested"] for row in lengths} == set(range(15, 81))
    picture = (tmp_path / "demo" / "lengths.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000
