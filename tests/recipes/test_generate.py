"""The generation recipe: files of rows pass through it, and each row is written at its length."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
from conftest import SOURCES, TARGETS, build_model
from pipeline_calls import spy
from recipe_runs import save, save_stock, write_rows, write_texts
from transformers import GenerationConfig

import hf_lenctrl
from hf_lenctrl.commands import generate


def test_a_length_that_the_model_cannot_hold_is_told_before_any_is_written(monkeypatch, shared_tokenizer, tmp_path):
    fields = {"length_unit": "token", "absolute_positions": True}  # 128 positions
    model = build_model("marian", vocab_size=len(shared_tokenizer), **fields)
    folder = save(model, shared_tokenizer, tmp_path / "positions")
    batches = spy(monkeypatch, hf_lenctrl.LenCtrlMarianMTModel)
    rows = [{"source": source, "n": n} for source, n in zip(SOURCES, [5, 6, 500, 7, 8, 9], strict=True)]
    file = write_rows(tmp_path / "in.jsonl", rows)
    with pytest.raises(ValueError, match="length=500 needs at least 501 decoder positions, the model has 128"):
        write_texts(folder, file, "--length_column", "n", "--batch_size", 1)
    assert not batches  # no hours of work before the error


def test_lengths_are_those_of_the_source_or_of_the_reference(saved, tmp_path):
    file = write_rows(tmp_path / "in.jsonl", [{"source": s, "gold": t} for s, t in zip(SOURCES, TARGETS, strict=True)])
    options = ("--length_constraint", "max")
    written = write_texts(saved, file, "--length", "source", *options)
    assert [row["requested"] for row in written] == [len(source) for source in SOURCES]
    (tmp_path / "out.jsonl").unlink()
    written = write_texts(saved, file, "--length", "reference", "--reference_column", "gold", *options)
    assert [row["requested"] for row in written] == [17, 33, 24, 29, 23, 25]
    assert [row["gold"] for row in written] == TARGETS


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("--length_ratio 0.9 1.1 --num_beams 2", {"length_ratio": (0.9, 1.1), "num_beams": 2}),
        ("--length predict --predictor some", {"predictor": "some"}),
        ("--length 5 --rerank 3 --length_unit word", {"rerank": 3, "length_unit": "word"}),
        ("--length 5 --length_constraint exact --length_tolerance 4", {"length_constraint": "exact"}),
        ("--length 5 --do_sample --top_p 0.9", {"do_sample": True, "top_p": 0.9, "num_beams": 1}),
        ("--length 5 --num_return_sequences 3", {"num_return_sequences": 3, "output_scores": True}),
        ("--length 30-42 --batch_size 7", {"batch_size": 7}),
        ("--length 6 --batch_tokens 4000", {"batch_tokens": 4000, "batch_size": None}),
    ],
)
def test_options_reach_the_pipeline(words, given):
    args = generate.parse(["--model", "m", "--input_file", "i", "--output_file", "o", *words.split()])
    options = generate.generation_options(args)
    assert {name: options.get(name) for name in given} == given


@pytest.mark.parametrize("name", ["num_beams", "num_return_sequences", "batch_size", "batch_tokens"])
def test_a_number_of_zero_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1, got 0"):
        generate.parse(["--model", "m", "--input_file", "i", "--output_file", "o", f"--{name}", "0"])


def test_a_second_length_adds_to_the_first():
    words = ["--model", "m", "--input_file", "i", "--output_file", "o", "--length", "40", "60", "--length", "80"]
    assert generate.parse(words).length == [40, 60, 80]


@pytest.fixture(scope="module")
def stock(shared_tokenizer, tmp_path_factory):
    return save_stock(tmp_path_factory.mktemp("stock"), shared_tokenizer)


def test_a_stock_model_needs_no_length(stock, tmp_path):
    rows = write_texts(stock, write_rows(tmp_path / "in.jsonl", [{"source": source} for source in SOURCES]))
    assert [row["source"] for row in rows] == SOURCES
    assert all(row["requested"] is None and row["length"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("stock", ("--length", 5), "MarianMTModel has no length control.*length_constraint='max' or 'exact'"),
        ("saved", (), "no length was given; pass length=40"),
    ],
)
def test_what_a_model_cannot_do_is_told(request, tmp_path, model, options, message):
    file = write_rows(tmp_path / "in.jsonl", [{"source": "a"}])
    with pytest.raises(ValueError, match=message):
        write_texts(request.getfixturevalue(model), file, *options)
    assert not (tmp_path / "out.jsonl").exists()


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

    config, own = SimpleNamespace(length_constraint="max"), {"length_constraint": "exact", "length_tolerance": [2, 2]}
    model = SimpleNamespace(config=config, generation_config=GenerationConfig(**own))
    monkeypatch.setattr(generate, "load", lambda *_: (model, None))
    monkeypatch.setattr(generate, "generate", write)


def generated(file: Path, *options) -> str:
    """The recipe's output file as it stands."""
    write_texts(Path("stub"), file, *options)
    return file.with_name("out.jsonl").read_bytes().decode()


@pytest.mark.parametrize(
    ("options", "within"),
    [
        (("--length", 5), "within 0.500"),  # of 5 and 2 characters, the default window has 3 to 7
        (("--length", "4-6"), "within 0.500"),
        (("--length", 5, "--length_constraint", "exact", "--length_tolerance", 3), "within 1.000"),
        (("--length", 5, "--length_constraint", "max"), None),
        (("--length", "bluesky"), None),
        (("--length", 5, "--second_limit", "word=3"), None),
    ],
)
def test_the_summary_has_the_window_that_holds(stub, tmp_path, capsys, options, within):
    write_texts(Path("stub"), write_rows(tmp_path / "in.jsonl", [{"source": "abcde"}, {"source": "ab"}]), *options)
    (summary,) = [line for line in capsys.readouterr().err.splitlines() if re.match("(variance|within)", line)]
    assert summary.endswith(within) if within else "within" not in summary


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
    with pytest.raises(ValueError, match="began it; name another, or begin again with --overwrite[^*]*\\* input="):
        write_texts(Path("stub"), file, *options)
    assert out.read_bytes() == text
    assert write_texts(Path("stub"), file, *options, "--overwrite")[-1]["id"] == 0


@pytest.mark.parametrize("changed", ["model", "predictor", "own"])
def test_other_weights_under_one_name_are_not_resumed_with(stub, tmp_path, changed):
    for name in ("model", "predictor", "model/own"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("one")
    (tmp_path / "model" / "config.json").write_text('{"length_predictor": "./own"}')
    file = write_rows(tmp_path / "in.jsonl", [{"source": "a"}, {"source": "b"}])
    words = ["--model", str(tmp_path / "model"), "--output_file", str(tmp_path / "out")]
    words += ["--input_file", str(file), "--length", *(["predict"] if changed in ("predictor", "own") else ["5"])]
    words += ["--predictor", str(tmp_path / "predictor")] if changed == "predictor" else []
    generate.main(words)
    generate.main(words)  # nothing has changed
    (tmp_path / ("model/own" if changed == "own" else changed) / "model.safetensors").write_text("two")
    with pytest.raises(
        ValueError,
        match=r"began it; name another[^*]*\* \w+=model.safetensors sha256 7692c3ad, now",
    ):
        generate.main(words)


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


def test_half_a_character_in_another_column_passes_through(stub, tmp_path, monkeypatch):
    row = '{"source": "ab", "emoji": "\\ud83d", "\\udc4d": 1'
    (tmp_path / "in.jsonl").write_text(row + "}\n" + row + "}\n")
    expected = row + ', "requested": 4, "output": "AB", "length": 2}\n'
    assert generated(tmp_path / "in.jsonl", "--length", 4) == 2 * expected
    (tmp_path / "out.jsonl").write_text(expected)  # the command was stopped
    assert generated(tmp_path / "in.jsonl", "--length", 4) == 2 * expected


def test_files_of_the_user_beside_the_output_stay(stub, tmp_path):
    names = [f"out.jsonl.{end}" for end in ("options.json", "part", "low.jsonl", "lock", "options.json.part")]
    for name in (*names, ".out.jsonl.lock"):
        (tmp_path / name).write_text("mine")
    generated(write_rows(tmp_path / "in.jsonl", [{"source": "a"}]), "--length", 4)
    assert {(tmp_path / name).read_text() for name in (*names, ".out.jsonl.lock")} == {"mine"}
    (tmp_path / "out.jsonl").unlink()
    with pytest.raises(ValueError, match="out.jsonl.low.jsonl exists, with other lines than .*out.jsonl; move it, or"):
        generated(tmp_path / "in.jsonl", "--length", 4, "--min_score", -5)
    assert (tmp_path / "out.jsonl.low.jsonl").read_text() == "mine" and not (tmp_path / "out.jsonl").exists()


def test_cells_of_csv_pass_through_as_text(stub, tmp_path):
    file = tmp_path / "in.csv"
    file.write_bytes(
        b"\xef\xbb\xbfid,source,n,code,missing\r\n12345678901234567890123,NA,40,007,\r\n"
        b'1.10,"two\nlines, ""so""",30.0,+1e3,NaN\r\n'
    )
    rows = write_texts(Path("stub"), file, "--length_column", "n")
    assert [{k: row[k] for k in ("id", "source", "n", "requested", "code", "missing")} for row in rows] == [
        {"id": "12345678901234567890123", "source": "NA", "n": "40", "requested": 40, "code": "007", "missing": ""},
        {"id": "1.10", "source": 'two\nlines, "so"', "n": "30.0", "requested": 30, "code": "+1e3", "missing": "NaN"},
    ]


def test_a_column_of_csv_holds_ranges_in_both_forms(stub, tmp_path):
    file = tmp_path / "in.csv"
    file.write_text('source,n\nab,10-12\nab,"[30, 42]"\n')
    rows = write_texts(Path("stub"), file, "--length_column", "n")
    assert [row["requested"] for row in rows] == [[10, 12], [30, 42]]
    for cell in ("10 to 12", '"[30, 42"', "[30]"):
        file.write_text(f"source,n\nab,{cell}\n")
        with pytest.raises(ValueError, match="an integer of at least 1, or a range of them, as 30-42, got"):
            write_texts(Path("stub"), file, "--length_column", "n", "--overwrite")


def test_parquet_keeps_its_types(stub, tmp_path):
    columns = {"source": ["a", "b"], "n": [1, None], "x": [1.0, float("nan")], "code": ["007", "NA"], "l": [[1], []]}
    datasets.Dataset.from_dict(columns).to_parquet(tmp_path / "in.parquet")
    lines = generated(tmp_path / "in.parquet", "--length", 4).splitlines()
    assert lines[0].startswith('{"source": "a", "n": 1, "x": 1.0, "code": "007", "l": [1], "requested": 4')
    assert lines[1].startswith('{"source": "b", "n": null, "x": null, "code": "NA", "l": [], "requested": 4')


def test_a_column_of_an_outputs_name_is_refused_with_the_way_out(stub, tmp_path):
    row = {"source": "ab", "id": 1, "output": "mine"}
    with pytest.raises(ValueError, match="in.jsonl has columns output, as the output; give --column_prefix"):
        refuse(tmp_path, [row], "--length", 4)
    file = write_rows(tmp_path / "in.jsonl", [row])
    written = json.loads(generated(file, "--length", 4, "--column_prefix", "new_"))
    assert written == row | {"new_requested": 4, "new_output": "AB", "new_length": 2}


@pytest.mark.parametrize("name", ["length", "output"])
def test_a_column_of_lengths_has_no_name_of_an_outputs_other_columns(stub, tmp_path, name):
    file = write_rows(tmp_path / "in.jsonl", [{"source": "abc", name: 5}])
    with pytest.raises(ValueError, match=f"in.jsonl has columns {name}, as the output; give --column_prefix"):
        write_texts(Path("stub"), file, "--length_column", name)
    (written,) = write_texts(Path("stub"), file, "--length_column", name, "--column_prefix", "new_")
    assert (written[name], written["new_requested"], written["new_length"]) == (5, 5, 3)


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
            for n in (2.5, "ten", True, None, [5], float("nan"))
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
        (("--length", 5, "--predictor", "path"), "--predictor needs --length predict"),
        (("--length", "guess"), "must be an integer of at least 1, a range as 30-42, .* got 'guess'"),
        (("--length", 0), "must be an integer of at least 1, .* got '0'"),
        (("--length", 5, "predict"), "--length takes lengths or ranges, not both, or one word, got"),
        (("--length", "8-12", "9"), "--length takes lengths or ranges, not both"),
        (("--length", "12-8"), "a range as 30-42"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path, capsys, options, message):
    with pytest.raises(SystemExit):
        refuse(tmp_path, with_lengths(5), *options)
    assert re.search(message, capsys.readouterr().err)
