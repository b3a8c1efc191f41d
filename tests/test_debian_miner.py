"""The corpus of the shipped model, from package lists written out by hand."""

import gzip
import json

import pytest
from recipe_runs import load_script


debian = load_script("recipes/headline/debian.py")

PROSE = (
    "It reads every file of a folder once and writes what it has found to a single table that other programs can use."
)
LISTS = f"""Package: reader
Description-md5: 1
Description-en: reader of whole folders
 {PROSE}
 .
 What it can do:
 * read
 * write
 .
 It is shown so:
   reader FOLDER
 .
 The table is plain text,
 with one file a line.
 .
 All packages of this family say this one sentence.

Package: reader-doc
Description-md5: 2
Description-en: reader of whole folders (documentation)
 {PROSE}
 .
 This package holds the manual.
 .
 All packages of this family say this one sentence.

Package: reader-data
Description-md5: 3
Description-en: reader of whole folders, its data
 Too short to be a source.
 .
 All packages of this family say this one sentence.

Package: twin
Description-md5: 4
Description-en: reader of whole folders
 Another package with the synopsis of the first, which must not stand in the corpus a second time, however long this
 text of it may be.

Package: word
Description-md5: 5
Description-en: unreasonably
 {PROSE} This one has a synopsis of a single word.
"""
PAIRS = [
    {
        "source": f"{PROSE} The table is plain text, with one file a line.",
        "target": "reader of whole folders",
        "package": "reader",
    },
    {
        "source": f"{PROSE} This package holds the manual.",
        "target": "reader of whole folders (documentation)",
        "package": "reader-doc",
    },
]


def test_a_line_ends_at_a_newline_alone():
    record = LISTS.split("\n\n")[0].replace("plain text,", "plain\u2028Package: evil\x85Description-en: evil\x0btext,")
    [row] = debian.mine([record])
    assert row["source"].startswith(f"{PROSE} The table is plain Package: evil Description-en: evil text, with one")


def test_the_same_lists_give_the_same_file_in_any_order(tmp_path, monkeypatch, capsys):
    records = LISTS.split("\n\n")
    written = []
    for texts in (["\n\n".join(records)], records[::-1]):
        monkeypatch.setattr(debian, "package_lists", lambda texts=texts: texts)
        debian.main(["--output_file", str(tmp_path / "rows.jsonl.gz")])
        written.append((tmp_path / "rows.jsonl.gz").read_bytes())
    assert written[0] == written[1]
    assert [json.loads(line) for line in gzip.decompress(written[0]).splitlines()] == PAIRS
    assert "2 pairs in" in capsys.readouterr().out


def test_lists_without_descriptions_and_machines_without_apt_are_told(monkeypatch):
    with pytest.raises(ValueError, match="no descriptions in English; fetch them with: sudo apt-get -o Acquire"):
        debian.mine(["Package: reader\nDescription-md5: 1\n"])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="apt-get is not on this machine; run it on Debian or Ubuntu"):
        debian.package_lists()
