"""The evaluation recipe, run for real on small files."""

import csv
import json
from pathlib import Path

import pytest
from conftest import word_tokenizer
from recipe_runs import write_rows
from test_report import table_rows

from hf_lenctrl.commands import evaluate as recipe


# as recipes/generate.py writes them, with two columns more
ROWS = [
    {"output": "the cat sat", "requested": 11, "words": 3, "gold": "the cat sat on the mat"},
    {"output": "a dog", "requested": 6, "words": 2, "gold": "a dog"},
]
CHARACTERS = ["character", "2", "0.50", "0.50", "50.0 %", "100.0 %", "0.0 %", "50.0 %"]
TOKENS = ["token", "2", "0.00", "0.00", "100.0 %", "100.0 %", "0.0 %", "100.0 %"]


def write(path: Path, rows=ROWS) -> str:
    return str(write_rows(path, rows))


def printed(capsys, *options) -> list[list[str]]:
    recipe.main(options)
    return table_rows(capsys.readouterr().out)


def test_outputs_of_the_generation_recipe_need_no_options(tmp_path, capsys):
    rows = printed(capsys, "--input_file", write(tmp_path / "out.jsonl"))
    assert rows[1] == CHARACTERS
    assert rows[-1] == ["1", "6", "5", "-1", "a dog"]
    assert not list(tmp_path.rglob("report.*"))


def test_outputs_of_a_range_or_without_a_length_are_reported_too(tmp_path, capsys):
    texts = {"abcde": [3, 6], "ab": [3, 6], "abcdefgh": [3, 6], "abc": None}
    rows = [{"output": text, "requested": asked, "source": "abcdefg", "gold": "abc"} for text, asked in texts.items()]
    path = write(tmp_path / "out.jsonl", rows)
    recipe.main(["--input_file", path, "--reference_column", "gold", "--output_dir", str(tmp_path / "report")])
    out = capsys.readouterr().out
    header, figures = table_rows(out)[:2]
    # the texts differ by 0, -1 from 3, and 2 from 6
    assert figures == ["character", "3", "1.00", "1.67", "100.0 %", "33.3 %", "33.3 %", "33.3 %"]
    assert header[4:7] == ["distinct", "within the range", "over"]
    assert "\n1 of 4 rows left out: 1 without a requested length.\n" in out
    assert "(lead, `source` cut at the highest length of its range)" in out
    write(tmp_path / "out.jsonl", [rows[3]])
    with pytest.raises(ValueError, match="none of its 1 rows has a requested length; pass --length 40"):
        recipe.main(["--input_file", path])
    write(tmp_path / "out.jsonl", [rows[3], {"output": None, "dropped": "empty"}, rows[0]])
    recipe.main(["--input_file", path])
    assert "2 of 3 rows left out: they have no text, and say in `dropped` why, and 1 without a requested" in (
        capsys.readouterr().out
    )
    with pytest.raises(ValueError, match="a range takes no tolerance, got tolerance=4; leave tolerance out"):
        recipe.main(["--input_file", path, "--length_tolerance", "4"])


def test_a_csv_of_another_system_is_measured_against_one_length(tmp_path, capsys):
    with open(tmp_path / "theirs.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["summary"], ["the cat sat"], ["NA"]])
    options = ("--output_column", "summary", "--length", "10", "--bucket_width", "10", "--worst", "1")
    rows = printed(capsys, "--input_file", str(tmp_path / "theirs.csv"), *options)
    assert rows[1] == ["character", "2", "4.50", "32.50", "0.0 %", "100.0 %", "50.0 %", "50.0 %"]
    assert rows[3][0] == "10–19"
    assert rows[5:] == [["1", "10", "2", "-8", "NA"]]


def test_each_unit_takes_its_own_length(tmp_path, capsys):
    word_tokenizer("the", "cat").save_pretrained(tmp_path / "tokenizer")
    path = write(tmp_path / "out.jsonl")
    options = ("--input_file", path, "--units", "character", "token", "--tokenizer", str(tmp_path / "tokenizer"))
    table = printed(capsys, *options, "--requested_column", "requested", "words")
    assert table[1:3] == [CHARACTERS, TOKENS]
    table = printed(capsys, *options, "--length", "11", "3")  # 11 and 5 characters, 3 and 2 words
    assert [row[:3] for row in table[1:3]] == [["character", "2", "3.00"], ["token", "2", "0.50"]]


def test_references_add_rouge_with_its_settings(tmp_path, capsys):
    path = write(tmp_path / "out.jsonl")
    recipe.main(["--input_file", path, "--reference_column", "gold", "--rouge_max_bytes", "3"])
    out = capsys.readouterr().out
    figures = dict(zip(*table_rows(out)[-2:], strict=True))
    # 1 of 6 words and 1 of 2; F1 2/7 and 1/2
    assert (figures["rouge1_recall"], figures["rouge1_f1"]) == ("33.33", "39.29")
    assert "stemmer=True, truncation=3 bytes" in out


def test_the_report_is_written_once(tmp_path, capsys):
    options = ["--input_file", write(tmp_path / "out.jsonl"), "--output_dir", str(tmp_path / "report")]
    recipe.main(options)
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"report.json", "report.md", "report.png"}
    before = (tmp_path / "report" / "report.json").read_text(encoding="utf-8")
    assert json.loads(before)["units"]["character"]["exact"] == 0.5
    with pytest.raises(SystemExit):
        recipe.main([*options, "--length", "4"])
    assert "report holds a report.json; remove it or name another folder" in capsys.readouterr().err
    assert (tmp_path / "report" / "report.json").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    "options, message",
    [
        (["--units", "character", "word"], "for each of the units character, word, got requested"),
        (["--units", "word", "byte", "--length", "4"], "one --length for each of the units word, byte, got"),
        (["--units", "token"], "--units token and --tokenizer go together"),
        (["--rouge_max_bytes", "75"], "--rouge_max_bytes is for ROUGE, which needs --reference_column"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_the_file_is_read(capsys, options, message):
    with pytest.raises(SystemExit):
        recipe.main(["--input_file", "absent.jsonl", *options])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "row, options, message",
    [
        ({"output": None}, [], "row 3 of .*out.jsonl: 'output' must hold text, got None"),
        ({"words": -1}, ["--requested_column", "words"], "row 3 of .*: 'words' must hold an integer .* got -1"),
        ({}, ["--output_column", "summary"], "out.jsonl has no column 'summary', only output, requested, words, gold"),
    ],
)
def test_faults_of_the_file_are_told_with_their_row(tmp_path, row, options, message):
    path = write(tmp_path / "out.jsonl", [*ROWS, {**ROWS[0], **row}])
    with pytest.raises(ValueError, match=message):
        recipe.main(["--input_file", path, *options])


def test_a_column_of_the_users_hides_no_row_and_rows_left_out_are_counted(tmp_path, capsys):
    rows = [
        {"x": "abc", "requested": 3, "dropped": "a file"},  # of the user, about something else
        {"x": "far too long", "requested": 3, "dropped": True},
        {"x": None, "requested": None, "dropped": "empty text"},
        {"x": "abcd", "requested": 4},
    ]
    options = ["--input_file", write(tmp_path / "out.jsonl", rows), "--output_column", "x"]
    recipe.main([*options, "--output_dir", str(tmp_path / "report")])
    out = capsys.readouterr().out
    assert table_rows(out)[1][:2] == ["character", "3"] and "\n1 of 4 rows left out: they have no text, and" in out
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert report["rows"] == {"read": 4, "left_out": 1}
    write(tmp_path / "out.jsonl", [rows[0], rows[3]])
    recipe.main(options)
    assert "\n0 of 2 rows left out.\n" in capsys.readouterr().out
    write(tmp_path / "out.jsonl", [rows[2], {"x": 5, "requested": 3}])
    with pytest.raises(ValueError, match="row 2 of .*out.jsonl: 'x' must hold text, got 5"):
        recipe.main(options)


@pytest.mark.parametrize("name", ["report.md", "report.png"])
def test_a_file_of_the_users_in_the_place_of_the_report_stays(tmp_path, capsys, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(SystemExit):
        recipe.main(["--input_file", write(tmp_path / "out.jsonl"), "--output_dir", str(tmp_path)])
    assert f"holds a {name}; remove it or name" in capsys.readouterr().err and (tmp_path / name).read_text() == "mine"


def test_half_a_character_is_shown_by_its_escape(tmp_path, capsys):
    (tmp_path / "out.jsonl").write_text('{"output": "a \\ud83d", "requested": 9}\n')
    assert printed(capsys, "--input_file", str(tmp_path / "out.jsonl"))[-1] == ["0", "9", "3", "-6", r"a \ud83d"]
