"""The corpora of the recipes: docstrings and package lists, with the expected pairs written out by hand."""

import gzip
import json
import sys

import pytest
from recipe_runs import load_script


miner = load_script("recipes/headline/docstrings.py")
BODY = "Every line is read once and kept in the order of the file, so that a later call can return it without a file."

READER = '''"""
Keep the lines of one file in memory until the
reader is closed.

The lines are loaded when they are first asked for. Closing the reader frees them, and a closed
reader cannot be opened again.

A second paragraph of plain prose is part of the body too.

Args:
    path (`str`): The file to read from the disk, which must exist when the reader is built.
"""
if True:
    class Reader:
        async def numpy_style(self):
            """Return the longest line of the file.

            When several lines are the longest ones, the first of them is returned, without the
            character that ends it.

            Parameters
            ----------
            strip : bool
                Whether to remove the white space around the line before it is measured.
            """
'''


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def function(summary, body=BODY):
    return f'def f():\n    """{summary}\n\n    {body}\n    """\n'


def pairs(root):
    return [(row["package"], row["target"], row["source"]) for row in miner.mine([root], progress=False)]


def test_pairs_of_a_package(tmp_path):
    write(tmp_path, {"reader/core/lines.py": READER, "single.py": function("Read   lines only once", BODY)})
    lines = "The lines are loaded when they are first asked for. Closing the reader frees them, and a closed reader "
    lines += "cannot be opened again. A second paragraph of plain prose is part of the body too."
    longest = "When several lines are the longest ones, the first of them is returned, without the character that ends"
    assert pairs(tmp_path) == [
        ("reader", "Keep the lines of one file in memory until the reader is closed.", lines),
        ("reader", "Return the longest line of the file.", f"{longest} it."),
        ("single", "Read lines only once", BODY),
    ]


@pytest.mark.parametrize(
    "summary, kept",
    [
        ("Read all it.", True),  # 12 characters
        ("Do it all", False),  # 9 characters
        ("Read " + "the lines " * 7 + "twice.", False),  # 81 characters
        ("Read " + "the lines " * 4 + "\n    " + "the lines " * 5 + "once.", True),  # 100 characters in two lines
        ("Read " + "the lines " * 4 + "\n    " + "the lines " * 5 + "twice.", False),  # 101 characters
        ("Read lines", False),  # two words
        ("read(path, mode) -> lines", False),
        ("Lines of the file:", False),
        ("Lines and files\n    ~~~~~~~~~~~~~~~", False),
    ],
)
def test_summaries(tmp_path, summary, kept):
    write(tmp_path, {"a.py": function("Read text files line by line."), "b.py": function(summary)})
    expected = [("a", "Read text files line by line.", BODY)]
    assert pairs(tmp_path) == expected + [("b", " ".join(summary.split()), BODY)] * kept


@pytest.mark.parametrize(
    "end",
    [
        "Returns:\n        The lines of the file that were read.",
        ":param path: the file that the lines are read from, which must exist.",
        ".. note:: The file stays open.",
        "```python\n    read(path)\n    ```",
        "- one item of a list that is not prose.",
        "Performance of reading\n    ----------------------\n    It reads one file in one second.",
        "It is called as read(path, mode) and mode has a default of 3.",
        "    An indented block is code.",
        ("word " * 120).strip() + ".",
    ],
)
def test_body_ends_before_what_is_not_prose(tmp_path, end):
    text = function("Read text files line by line.", f"{BODY}\n\n    {end}\n\n    After the end comes nothing more.")
    assert pairs(write(tmp_path, {"a.py": text})) == [("a", "Read text files line by line.", BODY)]


def test_short_bodies_code_and_copies_are_dropped(tmp_path):
    fifteen = "It has just as many words as the fifteen words that each body needs here."
    files = {
        "a.py": function("Read the file of a body that is long enough.", fifteen),
        "b.py": function("Read the file of a short body.", fifteen.replace("just ", "")),
        "c.py": function("Read the file of a code body.", "x_1 y_2 z_3 a.b c.d e.f " * 4 + "and few other words."),
        "d.py": 'def f():\n    """Read a file that has no body."""\n',
        "e/one.py": function("Read text files line by line."),
        "e/two.py": function("Read text files line by line."),
        "f.py": function("Read TEXT files  line by line"),
        "g.py": function("Read 2 text files line by line.", BODY.replace("is read once", "is read 3 times")),
        "h.py": function("Read 4 text files line by line.", BODY.replace("is read once", "is read 5 times")),
    }
    assert [row[0] for row in pairs(write(tmp_path, files))] == ["a", "e", "g"]
    with pytest.raises(ValueError, match="got none in 1 files"):
        miner.mine([write(tmp_path / "none", {"a.py": '"""Short."""\n'})], progress=False)


@pytest.mark.filterwarnings("error")
def test_unreadable_and_skipped_files_are_left_out_and_no_code_is_run(tmp_path):
    text = function("Read text files line by line.") + "raise SystemExit('mining must not import')\n"
    text += 'PATTERN = "\\d"\n'  # an invalid escape, of which the parser warns
    files = {
        "a.py": text,
        "syntax.py": function("Read a file of bad syntax.") + "def :\n",
        "latin.py": function("Read the files of a caf\xe9.").encode("latin-1"),
        "null.py": function("Read a file of null bytes.") + "\0",
        "large.py": function("Read a file that is too large.") + "#" * 1_000_000,
        "pkg/tests/a.py": function("Read a file that is a test."),
        "pkg/_vendor/a.py": function("Read a file that is a copy."),
        "site-packages/a.py": function("Read a file of another root."),
        "pkg/readme.txt": function("Read a file that is not code."),
    }
    assert pairs(write(tmp_path, files)) == [("a", "Read text files line by line.", BODY)]


def rows_of(sizes):
    return [{"source": f"{name} {i}", "package": name} for name, size in sizes.items() for i in range(size)]


def test_a_package_is_in_one_split_whatever_the_order_of_the_rows():
    rows = rows_of({"giant": 5000, "large": 2000, **{f"p{i}": 7 * (i % 40) + 1 for i in range(100)}})
    train, test = miner.split_by_package(rows)
    assert not {row["package"] for row in train} & {row["package"] for row in test}
    assert "giant" not in {row["package"] for row in test}
    assert 0.05 <= len(test) / len(rows) <= 0.12
    assert sorted(map(json.dumps, train + test)) == sorted(map(json.dumps, rows))
    _, test = miner.split_by_package(rows_of({f"p{i:02}": 1 for i in range(40)}))
    # the first four by crc32, in any process, on any machine and release of Python
    assert [row["package"] for row in test] == ["p25", "p31", "p35", "p39"]
    with pytest.raises(ValueError, match="2 packages: got 1"):
        miner.split_by_package(rows_of({"a": 3}))


def test_command_line(tmp_path, monkeypatch, capsys):
    files = {"a.py": function("Read text files line by line."), "b.py": function("Read the lines of cafés.")}
    root = write(tmp_path / "site", files)
    monkeypatch.setattr(miner.sysconfig, "get_path", lambda name: str(root))
    monkeypatch.setattr(sys, "argv", ["docstrings.py", "--output_dir", str(tmp_path / "out" / "pairs")])
    miner.main()
    train, test = ((tmp_path / "out" / "pairs" / f"{name}.jsonl").read_text("utf-8") for name in ("train", "test"))
    assert json.loads(test) == {"source": BODY, "target": "Read text files line by line.", "package": "a"}
    assert json.loads(train)["target"] == "Read the lines of cafés." and "café" in train
    assert "2 pairs: 1 train, 1 test" in capsys.readouterr().out


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
