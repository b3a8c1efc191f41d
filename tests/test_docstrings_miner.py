"""Tests of the docstring miner: packages written to a temporary folder, expected pairs written out by hand."""

import json
import sys

import pytest
from recipe_runs import load_script


miner = load_script("recipes/headline/docstrings.py")
BODY = (
    "Every line is read once and kept in the order of the file, so that a later call "
    "can return the same lines without opening the file again."
)

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
    assert miner.mine([tmp_path], progress=False) == [
        {
            "source": "The lines are loaded when they are first asked for. Closing the reader frees them, and a "
            "closed reader cannot be opened again. A second paragraph of plain prose is part of the body too.",
            "target": "Keep the lines of one file in memory until the reader is closed.",
            "package": "reader",
        },
        {
            "source": "When several lines are the longest ones, the first of them is returned, without the "
            "character that ends it.",
            "target": "Return the longest line of the file.",
            "package": "reader",
        },
        {"source": BODY, "target": "Read lines only once", "package": "single"},
    ]


@pytest.mark.parametrize(
    "summary, kept",
    [
        ("Read all it.", True),  # 12 characters
        ("Do it all", False),  # 9 characters
        ("Read " + "the lines " * 7 + "once.", True),  # 80 characters
        ("Read " + "the lines " * 7 + "twice.", False),  # 81 characters
        ("Read " + "the lines " * 4 + "\n    " + "the lines " * 5 + "once.", True),  # 100 characters in two lines
        ("Read " + "the lines " * 4 + "\n    " + "the lines " * 5 + "twice.", False),  # 101 characters
        ("Read lines", False),  # two words
        ("read(path, mode) -> lines", False),
        ("Copyright of the people who wrote it", False),
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
        "Note: the file must not be open in another process while it is read.",
        ".. note:: The file stays open.",
        "Speed of the reading\n    ....................",
        "```python\n    read(path)\n    ```",
        "| name | value |",
        "- one item of a list that is not prose.",
        "Performance of reading\n    ----------------------\n    It reads one file in one second.",
        "It is called as read(path, mode) and mode has a default of 3.",
        "    An indented block is code.",
        "The modes that can be used are these:",
        ("word " * 120).strip() + ".",
    ],
)
def test_body_ends_before_what_is_not_prose(tmp_path, end):
    text = function("Read text files line by line.", f"{BODY}\n\n    {end}\n\n    After the end comes nothing more.")
    assert pairs(write(tmp_path, {"a.py": text})) == [("a", "Read text files line by line.", BODY)]


def test_short_bodies_code_and_copies_are_dropped(tmp_path):
    fourteen_words = "It has one word less than the fifteen words that each body needs here."
    fifteen_words = "It has just as many words as the fifteen words that each body needs here."
    files = {
        "a.py": function("Read the file of a body that is long enough.", fifteen_words),
        "b.py": function("Read the file of a short body.", fourteen_words),
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
    shuffled_train, shuffled_test = miner.split_by_package(rows[::-1])
    assert (shuffled_train[::-1], shuffled_test[::-1]) == (train, test)
    _, test = miner.split_by_package(rows_of({f"p{i:02}": 1 for i in range(40)}))
    # the first four by crc32, in any process, on any machine and release of Python
    assert [row["package"] for row in test] == ["p25", "p31", "p35", "p39"]
    _, test = miner.split_by_package(rows_of({"a": 6, "b": 3, "c": 5}))
    assert [row["package"] for row in test] == ["b"] * 3  # of large packages the smallest
    with pytest.raises(ValueError, match="2 packages: got 1"):
        miner.split_by_package(rows_of({"a": 3}))


def test_command_line(tmp_path, monkeypatch, capsys):
    files = {"a.py": function("Read text files line by line."), "b.py": function("Read the lines of cafés.")}
    files["b.py"] += function("Read the other files of the café.")
    root = write(tmp_path / "site", files)
    monkeypatch.setattr(miner.sysconfig, "get_path", lambda name: str(root))
    monkeypatch.setattr(sys, "argv", ["docstrings.py", "--output_dir", str(tmp_path / "out" / "pairs")])
    outputs = []
    for _ in range(2):
        miner.main()
        outputs.append([(tmp_path / "out" / "pairs" / f"{name}.jsonl").read_bytes() for name in ("train", "test")])
    assert outputs[0] == outputs[1]
    train, test = ([json.loads(line) for line in text.decode().splitlines()] for text in outputs[0])
    assert test == [{"source": BODY, "target": "Read text files line by line.", "package": "a"}]
    assert [row["target"] for row in train] == ["Read the lines of cafés.", "Read the other files of the café."]
    assert "café" in outputs[0][0].decode()
    printed = capsys.readouterr().out
    assert "3 pairs: 2 train, 1 test" in printed and "50%: 29" in printed and "held-out packages: a" in printed
