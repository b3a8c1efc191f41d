"""The corpus of package descriptions, with the expected pairs written out by hand."""

import gzip
import json

import pytest
from recipe_runs import load_script


debian = load_script("recipes/headline/debian.py")

PROSE = "It reads every file of a folder and writes what it has found to a single table that other programs can use."
MANUAL = "This package holds the manual."
FAMILY = "All packages of this family say this one sentence."


def package(number: int, name: str, synopsis: str, text: str) -> str:
    """A record of a package list."""
    text = text.replace("\n", "\n ")
    return f"Package: {name}\nDescription-md5: {number}\nDescription-en: {synopsis}\n {text}"


LISTS = "What it can do:\n* read\n* write\n.\nIt is shown so:\n  reader FOLDER"
TABLE = "The table is plain text,\nwith one file a line."
RECORDS = [
    package(1, "reader", "reader of whole folders", f"{PROSE}\n.\n{LISTS}\n.\n{TABLE}\n.\n{FAMILY}"),
    package(2, "reader-doc", "reader of whole folders (documentation)", f"{PROSE}\n.\n{MANUAL}\n.\n{FAMILY}"),
    package(3, "reader-data", "reader of whole folders, its data", f"Too short to be a source.\n.\n{FAMILY}"),
    package(4, "twin", "reader of whole folders", f"{PROSE} Its synopsis must not stand in the corpus a second time."),
    package(5, "word", "unreasonably", f"{PROSE} This one has a synopsis of a single word."),
]


def test_the_same_lists_give_the_same_file_in_any_order(tmp_path, monkeypatch, capsys):
    written = []
    for texts in (["\n\n".join(RECORDS)], RECORDS[::-1]):
        monkeypatch.setattr(debian, "package_lists", lambda texts=texts: texts)
        debian.main(["--output_file", str(tmp_path / "rows.jsonl.gz")])
        written.append((tmp_path / "rows.jsonl.gz").read_bytes())
    assert written[0] == written[1]
    rows = [json.loads(line) for line in gzip.decompress(written[0]).splitlines()]
    assert [(row["package"], row["target"], row["source"]) for row in rows] == [
        ("reader", "reader of whole folders", f"{PROSE} The table is plain text, with one file a line."),
        ("reader-doc", "reader of whole folders (documentation)", f"{PROSE} {MANUAL}"),
    ]
    assert "2 pairs in" in capsys.readouterr().out


def test_lists_without_descriptions_and_machines_without_apt_are_told(monkeypatch):
    with pytest.raises(ValueError, match="no descriptions in English; fetch them with: sudo apt-get -o Acquire"):
        debian.mine(["Package: reader\nDescription-md5: 1\n"])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="apt-get is not on this machine; run it on Debian or Ubuntu"):
        debian.package_lists()
