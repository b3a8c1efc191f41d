"""Files of rows, without a model: their values pass through, commands resume, faults are told."""

import json
import re
from io import BytesIO
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import SOURCES
from recipe_runs import write_rows, write_texts

from hf_lenctrl.commands import generate


def parquet_of(columns: dict) -> bytes:
    file = BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


@pytest.fixture
def stub(monkeypatch):
    """The recipe without a model: the output is the source in capitals, and its characters are the length."""

    def write(model, tokenizer, sources, lengths, num_return_sequences=1, **_):
        lengths = [None] * len(sources) if isinstance(lengths, str) else lengths
        return [
            {"source": source, "requested": length or 3, "output": source.upper() + "!" * k, "length": len(source) + k}
            for source, length in zip(sources, lengths, strict=True)
            for k in range(num_return_sequences)
        ]

    monkeypatch.setattr(generate, "load", lambda *_: (None, None))
    monkeypatch.setattr(generate, "generate", write)


def generated(file: Path, *options) -> str:
    """The recipe's output file as it stands."""
    write_texts(Path("stub"), file, *options)
    return file.with_name("out.jsonl").read_bytes().decode()


@pytest.mark.parametrize("options", [(), ("--num_return_sequences", 2)], ids=["one", "n-best"])
def test_a_command_that_was_stopped_goes_on_where_its_output_ends(stub, tmp_path, capsys, options):
    rows = [{"source": f"{source} {i}", "budget": 5 + i % 7, "id": i} for i, source in enumerate(SOURCES * 7)]
    file = write_rows(tmp_path / "in.jsonl", rows)
    options = ("--length_column", "budget", "--batch_size", 1, *options)
    whole = write_texts(Path("stub"), file, *options)
    assert [row["id"] for row in whole] == [row["id"] for row in rows for _ in range(len(whole) // len(rows))]
    out = tmp_path / "out.jsonl"
    text = out.read_bytes()
    lines = text.splitlines(keepends=True)
    ends = [0, len(lines[0]) - 9, *(sum(map(len, lines[:n])) + 5 for n in (1, 16, 33, len(lines) - 1))]
    for end in ends:  # in the middle of a line, of the n best, of a block
        out.write_bytes(text[:end])
        assert write_texts(Path("stub"), file, *options) == whole
        assert out.read_bytes() == text
    assert write_texts(Path("stub"), file, *options) == whole and "is complete" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no command with these options began it"):
        write_texts(Path("stub"), file, *options, "--length_constraint", "max")
    write_rows(file, [*rows[:-1], {**rows[-1], "id": 0}])
    with pytest.raises(ValueError, match="no command with these options began it[^*]*\\* input="):
        write_texts(Path("stub"), file, *options)
    assert out.read_bytes() == text


# what JSON readers that infer types make other values of: numbers, dates, empty texts; and columns that change
ODD = [
    '{"id": 12345678901234567890123, "text": "ab", "day": "2024-01-01", "x": 1.5, "n": "007", "none": "null"}',
    '{"text": "cé", "nested": {"b": [1.0, null, {}], "a": true}, "day": "not a day"}',
    '{"x": "now text", "text": "日本\u2028", "none": null, "id": 0}',
]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_values_of_json_pass_through(stub, tmp_path, ending):
    (tmp_path / "in.jsonl").write_bytes(("\ufeff" + ending.join([ODD[0], "", *ODD[1:]]) + ending).encode())
    text = generated(tmp_path / "in.jsonl", "--source_column", "text", "--length", 4)
    added = [("ab", "AB"), ("cé", "CÉ"), ("日本\u2028", "日本\u2028")]
    for line, row, (source, output) in zip(text.split("\n"), ODD, added, strict=False):
        ours = f'"source": "{source}", "requested": 4, "output": "{output}", "length": {len(source)}'
        assert line == row[:-1] + ", " + ours + "}"
    assert text.count("\n") == 3
    (tmp_path / "out.jsonl").unlink()
    (tmp_path / "in.json").write_text(f"[{', '.join(ODD)}]", encoding="utf-8")
    assert generated(tmp_path / "in.json", "--source_column", "text", "--length", 4) == text


def test_cells_of_csv_pass_through_as_text(stub, tmp_path):
    file = tmp_path / "in.csv"
    file.write_bytes(
        b"\xef\xbb\xbfid,source,day,code,missing\r\n12345678901234567890123,NA,2024-01-01,007,\r\n"
        b'1.10,"two\nlines, ""quoted""",nan,+1e3,NaN\r\n'
    )
    rows = [json.loads(line) for line in generated(file, "--length", 4).splitlines()]
    assert [{k: row[k] for k in ("id", "source", "day", "code", "missing")} for row in rows] == [
        {"id": "12345678901234567890123", "source": "NA", "day": "2024-01-01", "code": "007", "missing": ""},
        {"id": "1.10", "source": 'two\nlines, "quoted"', "day": "nan", "code": "+1e3", "missing": "NaN"},
    ]


def test_parquet_keeps_its_types(stub, tmp_path):
    columns = {"source": ["a", "b"], "n": [1, None], "x": [1.0, float("nan")], "code": ["007", "NA"], "l": [[1], []]}
    datasets.Dataset.from_dict(columns).to_parquet(tmp_path / "in.parquet")
    lines = generated(tmp_path / "in.parquet", "--length", 4).splitlines()
    assert lines[0].startswith('{"source": "a", "n": 1, "x": 1.0, "code": "007", "l": [1], "requested": 4')
    assert lines[1].startswith('{"source": "b", "n": null, "x": null, "code": "NA", "l": [], "requested": 4')


def test_a_column_of_an_outputs_name_is_refused_with_the_way_out(stub, tmp_path):
    row = {"source": "ab", "id": 1, "output": "mine"}
    with pytest.raises(ValueError, match="in.jsonl has columns output, and so has the output; rename yours, or"):
        refuse(tmp_path, [row], "--length", 4)
    file = write_rows(tmp_path / "in.jsonl", [row])
    written = json.loads(generated(file, "--length", 4, "--column_prefix", "new_"))
    assert written == row | {"new_requested": 4, "new_output": "AB", "new_length": 2}


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"source": "a"}\n{"source": \n', "could not be read as jsonl: line 2: "),
        ("a.json", b"[" * 3000 + b"]" * 3000, "could not be read as json: maximum recursion depth"),
        ("a.json", b"[1]", "could not be read as json: a row must be an object, got 1"),
        ("a.csv", b"source,id\na,1\nb,2,3\n", "could not be read as csv: line 3 has 3 cells, the header has 2"),
        ("a.csv", b"source,id,id\na,1,2\n", "could not be read as csv: two columns have one name: source, id, id"),
        ("a.parquet", b"no parquet", "could not be read as parquet: "),
        (
            "a.parquet",
            parquet_of({"source": ["a"], "raw": [b"\xff"]}),
            "could not be read as parquet: a column must hold text or numbers, got bytes b'.xff';",
        ),
        ("a.jsonl", b"\n", "has no rows"),
        ("a.xml", b"", "must end in .txt, .json, .jsonl, .csv, .parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    (tmp_path / "no_model").mkdir()
    with pytest.raises(ValueError, match=f"{name} {message}"):
        write_texts(tmp_path / "no_model", tmp_path / name, "--length", 4)


def test_lengths_may_be_whole_numbers_of_pandas_and_of_csv(stub, tmp_path):
    file = write_rows(tmp_path / "in.jsonl", [{"source": "a", "requested": n} for n in (40.0, "40", 40)])
    lines = generated(file, "--length_column", "requested").splitlines()
    # the column is kept as it is
    assert [line.split(", ")[1] for line in lines] == ['"requested": 40.0', '"requested": "40"', '"requested": 40']
    (tmp_path / "out.jsonl").unlink()
    (tmp_path / "in.csv").write_text("text,source,n\nab,a newspaper,40\nb,a book,30.0\n")
    options = ("--source_column", "text", "--length_column", "n")
    rows = [json.loads(line) for line in generated(tmp_path / "in.csv", *options).splitlines()]
    assert [(row["n"], row["requested"], row["source"]) for row in rows] == [
        ("40", 40, "a newspaper"),
        ("30.0", 30, "a book"),
    ]


# Refusals: the model's folder is empty, so each is told before a model is loaded


def refuse(tmp_path, rows, *options):
    file = tmp_path / ("in.jsonl" if isinstance(rows, list) else "in.txt")
    write_rows(file, rows) if isinstance(rows, list) else file.write_text(rows, encoding="utf-8")
    (tmp_path / "no_model").mkdir(exist_ok=True)
    write_texts(tmp_path / "no_model", file, *options)


def with_lengths(*lengths) -> list[dict]:
    return [{"source": "a", "n": n} for n in lengths]


AT_5, BY_COLUMN = ("--length", 5), ("--length_column", "n")


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"source": "a"}, {"source": " \t"}], AT_5, "row 2 of .*in.jsonl has no text; remove it"),
        ("one\n\ntwo\n", AT_5, "row 2 of .*in.txt has no text; remove it"),
        ([{"source": 7}, {"source": 8}], AT_5, "row 1 of .*in.jsonl: 'source' must hold text, got 7"),
        (with_lengths(3), ("--length_column", "budget"), "in.jsonl has no column 'budget', only source, n"),
        (
            with_lengths(0, 5),
            BY_COLUMN,
            "row 1 of .*in.jsonl: 'n' must hold an integer of at least 1, or a range of them, got 0$",
        ),
        *(
            (with_lengths(5, n), BY_COLUMN, f"row 2 of .*: 'n' must hold an .*, got {re.escape(repr(n))}$")
            for n in (-4, 2.5, "ten", "0", True, None, "", [5], float("nan"))
        ),
    ],
)
def test_an_input_that_cannot_be_used_is_told(tmp_path, rows, options, message):
    with pytest.raises(ValueError, match=message):
        refuse(tmp_path, rows, *options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--length", 5, "--length_column", "n"), "--length_column: not allowed with argument --length"),
        (("--length", "reference"), "--length reference and --reference_column go together"),
        (("--length", 5, "--predictor", "path"), "--predictor goes with --length predict"),
        (("--length", "guess"), "must be an integer of at least 1, a range as 30-42, .* got 'guess'"),
        (("--length", 0), "must be an integer of at least 1, .* got '0'"),
        (("--length", 5, "predict"), "--length takes numbers, or one of 'predict', 'source' and 'reference', got"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path, capsys, options, message):
    with pytest.raises(SystemExit):
        refuse(tmp_path, with_lengths(5), *options)
    assert re.search(message, capsys.readouterr().err)
