"""lab/translation/tatoeba.py: the pairs of all languages, with the expected files written out by hand."""

import gzip
import json
from pathlib import Path

import pytest
from recipe_runs import load_script


tatoeba = load_script("lab/translation/tatoeba.py")


def write_splits(path: Path, code: str, texts: list[str]) -> str:
    """A file with a pair of each split."""
    splits = ("train", "validation", "test")
    rows = [{"split": name, code: text, "en": text.upper()} for name, text in zip(splits, texts, strict=True)]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_pairs_of_all_languages_are_written(tmp_path):
    files = [write_splits(tmp_path / f"{code}.gz", code, [f"{code} {i}" for i in range(3)]) for code in ("de", "fr")]
    tatoeba.main([*files, "--output_dir", str(tmp_path / "data")])
    written = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "data").iterdir()}
    assert sorted(written) == ["test_de.jsonl", "test_fr.jsonl", "train.jsonl", "validation.jsonl"]
    assert written["train.jsonl"] == '{"source": "de 0", "target": "DE 0"}\n{"source": "fr 0", "target": "FR 0"}\n'
    assert written["test_fr.jsonl"] == '{"source": "fr 2", "target": "FR 2"}\n'
    files = [write_splits(tmp_path / f"{name}.gz", "de", [f"{name} {i}" for i in range(3)]) for name in ("one", "two")]
    with pytest.raises(ValueError, match="two.gz is a second file of the language de"):
        tatoeba.main([*files, "--output_dir", str(tmp_path / "none")])
    assert list((tmp_path / "none").iterdir()) == []
