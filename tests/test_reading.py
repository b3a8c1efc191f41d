"""The reading test: faults of texts written by hand."""

import json

import pytest

from benchmarks import reading


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("Tom bought 3 books.", []),
        ("Tom Tom bought 3 books.", ["repeated"]),
        ("Tom bought bought 3 books.", ["repeated"]),
        ("Tom bought a book bought a book 3.", []),  # three words, twice: not what is looked for
        ("Tom a book a book, 3.", ["repeated"]),
        ("Tom bought 3 books of", ["dangling end", "no final mark"]),
        ("Tom bought 3 books of.", ["dangling end"]),
        ("Tom bought 3 books..", ["filled end"]),
        ("Tom bought 3 books,.", ["filled end"]),
        ("Tom bought 3 books", ["no final mark"]),
        ('Tom bought "3 books.', ["quotes"]),
        ("Tom bought “3” books.", []),
        ("Tom bought books.", ["numbers"]),
        ("Tom bought 33 books.", ["numbers"]),
        ("He bought 3 books.", ["names"]),
    ],
)
def test_each_fault_is_found_and_nothing_else(output, found):
    faults = reading.faults("Tom hat 3 Bücher gekauft.", "Tom bought 3 books.", output)
    three = {"repeated", "dangling end", "filled end"} & set(found)
    assert [name for name, there in faults.items() if there] == found + ["one of these three"] * bool(three)


def test_what_the_reference_does_is_no_fault():
    reference = "What is he up to... He had had it of"
    assert not any(reading.faults("Was hat er vor?", reference, reference).values())
    assert not reading.faults("Die Katze schläft.", "The cat sleeps.", "A cat is asleep.")["names"]


def test_percentages_are_of_words_and_of_texts(tmp_path, capsys):
    rows = [
        {"source": "Hallo.", "reference": "Hello there.", "output": "Hello theree."},
        {"source": "Nein!", "reference": "No!", "output": "No no no"},
    ]
    (tmp_path / "out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "train.jsonl").write_text(json.dumps({"target": "No, hello there."}) + "\n")
    figures = reading.reading(rows, {"hello", "there", "no"})
    assert figures["unknown words"] == 20  # theree, of five words
    assert (figures["repeated"], figures["no final mark"], figures["names"]) == (50, 50, 0)
    reading.main(["--train_file", str(tmp_path / "train.jsonl"), "--systems", f"a={tmp_path / 'out.jsonl'}"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| references | 2 | " + " | ".join(["0.00"] * 9) + " |"
    assert lines[3].startswith("| a | 2 | 20.00 | 50.00 | 0.00 |")
