"""Loading, splitting and tokenising rows: files made by hand, counts and hashes written out."""

import csv
import gzip
import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import word_tokenizer

from hf_lenctrl.commands.arguments import DataArguments
from hf_lenctrl.commands.data import RowReport, leave_out_lengths, load_splits, tokenize
from hf_lenctrl.commands.rows import Rows, load_rows
from hf_lenctrl.training.collator import DataCollatorForLengthControl


ROWS = [
    {"source": 'Says "hello", naïvely', "target": "greeting, 日本語"},
    {"source": "two\nlines", "target": "one line"},
    {"source": "NA", "target": "null"},  # which pandas takes for missing values
]

# CRC-32 over 2^32 of each name, from the trailer that `printf NAME | gzip -c` writes
POINTS = {
    "theta": 0.0433,  # 0x0b188a09
    "zeta": 0.1025,  # 0x1a3c7b13
    "vim": 0.1563,  # 0x280100fb
    "git": 0.3186,  # 0x518e617c
    "fonts": 0.4493,  # 0x7303e8fb
    "café": 0.5964,  # 0x98ad42b5
    "omicron": 0.9622,  # 0xf653352e
}


def write(path: Path, rows: list[dict], mark: bytes = b"") -> str:
    """Write rows in the format that the name asks for, behind a mark."""
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            if kind == ".json":
                json.dump(rows, file, ensure_ascii=False, indent=1)
            elif kind == ".jsonl":
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            else:
                table = csv.DictWriter(file, fieldnames=list(rows[0]))
                table.writeheader()
                table.writerows(rows)
    data = mark + path.read_bytes()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return str(path)


def numbered(n: int, **columns) -> list[dict]:
    return [{"source": f"source {i}", "target": f"target {i}", **columns} for i in range(n)]


def whole(train_file: str, **options) -> DataArguments:
    """Arguments that take a file as it is and cut nothing from it."""
    return DataArguments(train_file=train_file, **{"validation_share": 0, "test_share": 0, **options})


NAMES = ["a.json", "a.jsonl", "a.csv", "a.parquet", "a.json.gz", "a.jsonl.gz", "a.csv.gz"]
NAMES += ["a.b-1.0.jsonl", "marked.jsonl", "marked.csv.gz"]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_loads_to_the_same_rows(tmp_path, name):
    mark = b"\xef\xbb\xbf" if name.startswith("marked") else b""  # of the order of bytes
    assert load_rows(write(tmp_path / name, ROWS, mark)).to_list() == ROWS


@pytest.mark.parametrize("name", ["rows[1].jsonl", "[!a].csv"])
def test_a_file_name_is_no_pattern(tmp_path, name, monkeypatch):
    folder = tmp_path / "runs[a-c]"
    folder.mkdir()
    write(folder / f"other{''.join(Path(name).suffixes)}", [{"source": "other", "target": "other"}])
    assert load_rows(write(folder / name, ROWS)).to_list() == ROWS
    monkeypatch.chdir(folder)
    assert load_rows(name).to_list() == ROWS


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        (("body", "headline"), {"source": "a b", "target": "c"}),
        (("target", "source"), {"source": "not this", "target": "nor this"}),
        (("both.en", "both.ja"), {"source": "word", "target": "言葉"}),  # as OPUS and WMT sets on the Hub have them
    ],
)
def test_columns_are_those_that_the_options_name(tmp_path, columns, found):
    row = {"body": "a b", "id": 7, "headline": "c", "target": "not this", "source": "nor this"}
    row |= {"both": {"en": "word", "ja": "言葉"}}
    args = whole(write(tmp_path / "a.parquet", [row]), source_column=columns[0], target_column=columns[1])
    assert load_splits(args)["train"].to_list() == [found]


def test_a_column_tells_which_training_rows_keep_their_length(tmp_path, shared_tokenizer):
    rows = [{"source": "a b", "target": "c", "reworded": i == 1} for i in range(3)]
    path = write(tmp_path / "a.jsonl", rows)
    args = whole(path, keep_length_column="reworded", validation_file=write(tmp_path / "b.jsonl", numbered(2)))
    splits = load_splits(args)
    assert splits["train"].to_list()[1] == {"source": "a b", "target": "c", "keep_length": True}
    tokenized, _ = tokenize(splits, shared_tokenizer, args)
    assert tokenized["train"]["keep_length"][:] == [False, True, False]
    assert tokenized["validation"].column_names == ["input_ids", "attention_mask", "labels"]
    for column in ("target", "kept"):
        with pytest.raises(ValueError, match=f"a.jsonl must have a column '{column}' of true and false"):
            load_splits(whole(path, keep_length_column=column))


def test_rows_of_unseen_lengths_are_left_out_and_counted(shared_tokenizer, caplog):
    rows = datasets.Dataset.from_dict({"source": ["s"] * 5, "target": ["abc", " ab ", "abc", "a", "é"]})
    with caplog.at_level("INFO"):
        assert leave_out_lengths(rows, shared_tokenizer, "character", [3, 2, 9])["target"][:] == ["a", "é"]
    assert "train: 5 rows, targets left out by their characters: 2 of 3, 1 of 2, 0 of 9" in caplog.text
    assert leave_out_lengths(rows, shared_tokenizer, "byte", [2])["target"][:] == ["abc", "abc", "a"]
    # training counts what the tokenizer makes of a text
    wide = datasets.Dataset.from_list([{"source": "s", "target": target} for target in ("ab  b", "abc b c")])
    assert leave_out_lengths(wide, shared_tokenizer, "character", [4])["target"][:] == ["abc b c"]
    with pytest.raises(ValueError, match=r"--unseen_lengths 1 2 3 leaves no training row; name fewer"):
        leave_out_lengths(rows, shared_tokenizer, "character", [1, 2, 3])
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        DataArguments(unseen_lengths=[30, 0])


def test_splits_that_a_named_dataset_lacks_are_cut_from_its_train_split(tmp_path):
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "train.jsonl", [{**row, "name": name} for name in POINTS for row in numbered(1)])
    write(tmp_path / "folder" / "test.jsonl", numbered(2, name="theta"))
    args = DataArguments(dataset_name=str(tmp_path / "folder"), group_column="name", validation_share=0.12)
    splits = load_splits(args)
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 5, "validation": 2, "test": 2}


def test_evaluation_takes_the_first_rows_where_a_limit_is_given(tmp_path):
    sizes = {"train": 5, "validation": 2, "test": 3}
    files = {f"{name}_file": write(tmp_path / f"{name}.jsonl", numbered(n)) for name, n in sizes.items()}
    splits = load_splits(DataArguments(**files, max_validation_rows=1, max_test_rows=100))
    assert splits["validation"]["source"][:] == ["source 0"]
    assert len(splits["test"]) == 3 and len(splits["train"]) == 5


def split_names(path, **options) -> dict[str, list[str]]:
    """Names (the source column) of each split, sorted."""
    splits = load_splits(DataArguments(train_file=path, **options))
    return {name: sorted(rows["source"][:]) for name, rows in splits.items()}


def test_a_group_goes_where_the_crc_of_its_name_points(tmp_path):
    rows = [{"source": name, "target": "t", "package": f"{name}-{i}"} for name in POINTS for i in range(2)]
    options = {"group_column": "package", "group_separator": "-", "validation_share": 0.15, "test_share": 0.3}
    # validation under 0.15, test from there to 0.45
    assert split_names(write(tmp_path / "a.jsonl", rows), **options) == {
        "validation": ["theta", "theta", "zeta", "zeta"],
        "test": ["fonts", "fonts", "git", "git", "vim", "vim"],
        "train": ["café", "café", "omicron", "omicron"],
    }


def test_without_groups_and_with_an_own_file(tmp_path):
    """The same source is in one split; a separator belongs to a group column; a split that is given is kept."""
    rows = [{"source": name, "target": str(i)} for i in range(3) for name in [*POINTS, "zeta-1"]]  # which is at 0.86
    own = write(tmp_path / "own.jsonl", [{"source": "mine", "target": "t"}])
    path = write(tmp_path / "a.jsonl", rows)
    train = sorted(["vim", "git", "fonts", "café", "omicron", "zeta-1"] * 3)
    expected = {"validation": ["mine"], "test": ["theta"] * 3 + ["zeta"] * 3, "train": train}
    for options in ({}, {"group_column": "source"}):
        assert split_names(path, validation_file=own, test_share=0.15, **options) == expected


def test_a_small_file_has_a_row_in_each_split(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"source": name, "target": "t"} for name in ("zeta", "theta", "git", "vim")])
    expected = {"validation": ["theta"], "test": ["zeta"], "train": ["git", "vim"]}
    assert split_names(path, validation_share=0.001, test_share=0.001) == expected


def tokenize_rows(pairs, tokenizer, unit="token", **options):
    rows = datasets.Dataset.from_dict({"source": [p[0] for p in pairs], "target": [p[1] for p in pairs]})
    return tokenize(datasets.DatasetDict(train=rows), tokenizer, DataArguments(**options), unit=unit)


MIXED = [
    (" a b ", "\tc d\n"),  # at both limits of 3 tokens
    ("", "a"),  # empty
    ("a", " \n\t"),  # empty
    (None, "a"),  # empty
    ("a", None),  # empty
    ("a", "a b c"),  # target over the limit
    ("a b c d", "a b c d"),  # target over the limit; its source does not count as cut
    (" ", "a b c d"),  # empty, and not counted again as too long
    ("a b c d", "d"),  # source cut
    ("d c b", "a"),  # source cut
]


def test_the_report_counts_empty_too_long_and_cut_rows(caplog):
    words = word_tokenizer("a", "b", "c", "d")
    tokenized, reports = tokenize_rows(MIXED, words, max_source_length=3, max_target_length=3)
    dropped = dict.fromkeys([1, 2, 3, 4, 7], "empty text") | dict.fromkeys([5, 6], "target over 3 tokens")
    assert reports == [RowReport("train", rows=10, empty=5, target_too_long=2, source_cut=2, dropped=dropped)]
    assert reports[0].kept == 3
    assert tokenized["train"]["input_ids"][:] == [[3, 4, 0], [3, 4, 0], [6, 5, 0]]
    assert tokenized["train"]["labels"][:] == [[5, 6, 0], [6, 0], [3, 0]]
    assert "train: 2 of 3 sources are longer than 3 tokens and were cut" in caplog.text
    with pytest.raises(ValueError, match="no row of train is left: train: 2 rows, 1 dropped .*max_target_length"):
        tokenize_rows([("a", "a b c"), ("a", "")], words, max_target_length=3)


@pytest.mark.parametrize("tokenizer", ["character_tokenizer", "shared_tokenizer"])
@pytest.mark.parametrize("target", ["日 本", "\u200b"], ids=["unknown words", "zero-width space"])
def test_every_row_that_is_kept_has_a_length_to_train_on(request, tokenizer, target):
    # A target of nothing but unknown letters or ignored characters must be dropped and counted here, not raise in the
    # collator in the middle of a run.
    tokenizer = request.getfixturevalue(tokenizer)
    tokenized, reports = tokenize_rows([("small editor", target), ("small editor", "logs")], tokenizer)
    assert len(tokenized["train"]) == reports[0].kept
    for unit, last in (("character", 4), ("token", len(tokenizer(text_target="logs")["input_ids"]) - 1)):
        collator = DataCollatorForLengthControl(tokenizer, length_unit=unit)
        lengths = collator(tokenized["train"].to_list())["length"].tolist()
        assert lengths[-1] == last and min(lengths) >= 1


def test_a_target_without_units_is_dropped_not_only_one_without_text(shared_tokenizer):
    pairs = [("small editor", "."), ("small editor", "logs"), ("", ".")]
    tokenized, reports = tokenize_rows(pairs, shared_tokenizer, unit="syllable_en")
    assert reports[0].dropped == {0: "target without units of 'syllable_en'", 2: "empty text"}
    assert reports[0].kept == len(tokenized["train"]) == 1
    collator = DataCollatorForLengthControl(shared_tokenizer, length_unit="syllable_en")
    assert collator(tokenized["train"].to_list())["length"].tolist() == [1]


GOOD = '{"source": "a", "target": "b"}\n'
BROKEN = {
    "cut_row.jsonl": (GOOD + '{"source": "a", "tar\n').encode(),
    "cut.json": b'[{"source": "a", "target": "b"}, {"source"',
    "deep.json": b"[" * 3000 + b"]" * 3000,
    "latin1.csv": "source,target\nnaïve,b\n".encode("latin-1"),
    "more_cells.csv": b"source,target\na,b\nc,d,e\n",
    "two_of_a_name.csv": b"source,target,target\na,1,2\n",
    "open_quote.csv": b'source,target\na,"b\n',
    "no.parquet": b"this is not parquet",
    "cut.jsonl.gz": gzip.compress(GOOD.encode() * 5000, mtime=0)[:-60],
    "not_gzip.jsonl.gz": GOOD.encode(),
}
WITHOUT_ROWS = {"empty.jsonl": b"", "empty.csv": b"", "blank.jsonl": b"\n\n", "empty.json": b"[]"}
WITHOUT_ROWS |= {"header.csv": b"source,target\n", "header.csv.gz": gzip.compress(b"source,target\n", mtime=0)}
pq.write_table(pa.table({"source": pa.array([], pa.string())}), sink := pa.BufferOutputStream())
WITHOUT_ROWS["no_rows.parquet"] = sink.getvalue().to_pybytes()
NO_COLUMN = "a.jsonl has no column 'headline', only source, target; .*--{}"


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        *((name, data, {}, f"{name} could not be read") for name, data in BROKEN.items()),
        *((name, data, {}, f"{name} has no rows") for name, data in WITHOUT_ROWS.items()),
        ("a.txt", b"text", {}, "a.txt must end in .json, .jsonl, .csv, .parquet .*got '.txt'"),
        *(
            ("a.jsonl", GOOD.encode(), {option: "headline"}, NO_COLUMN.format(option))
            for option in ("source_column", "target_column", "group_column")
        ),
        ("a.jsonl", b'{"source": "a b", "target": 2024}', {}, "'target'.*int64"),
        ("a.jsonl", GOOD.encode(), {"train_file": None}, "nothing to train on; give --train_file"),
        ("a.jsonl", GOOD.encode(), {"test_share": 1.5}, "less than 1, got .*1.5"),
        ("a.jsonl", GOOD.encode(), {"test_share": 0.15}, "1 different groups .* 2 splits; give --test_file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, name, data, options, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        load_splits(whole(**{"train_file": str(tmp_path / name), **options}))
    if "has no rows" in message:
        with pytest.raises(ValueError, match=message):
            Rows(str(tmp_path / name))


TWICE = b'{"source": "a", "target": "t"}\n\n{"source": "b", "source": "c", "target": "t"}\n'


@pytest.mark.parametrize("read", [load_rows, Rows], ids=["train", "generate"])
@pytest.mark.parametrize(
    "name, data, message",
    [
        ("a.jsonl", TWICE, "source"),
        ("a.jsonl.gz", gzip.compress(TWICE, mtime=0), "source"),
        ("a.csv", b"source,target,source\na,b,c\n", "two values have the name 'source'"),
        ("a.parquet", None, "source"),
        ("utf-16.csv", "source,target\na,b\n".encode("utf-16"), "; save it as UTF-8"),
        ("utf-16le.csv", "source,target\na,b\n".encode("utf-16le"), "; save it as UTF-8"),
        ("utf-16be.jsonl", GOOD.encode("utf-16be"), "; save it as UTF-8"),
        ("cp1252.csv", "source,target\nCafé,b\n".encode("cp1252"), "; save it as UTF-8"),
    ],
)
def test_two_values_of_one_name_and_other_encodings_are_refused(tmp_path, read, name, data, message):
    if data is None:
        columns = [pa.array([text]) for text in "abc"]
        pq.write_table(pa.Table.from_arrays(columns, names=["source", "target", "source"]), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=f"{name} could not be read as .*{message}"):
        read(str(tmp_path / name))


@pytest.mark.parametrize("column", ["source", "target"])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_text_with_u0000_is_refused_with_its_row(tmp_path, column, kind):
    row = {"source": "one", "target": "two"}
    path = tmp_path / f"rows.{kind}"
    lines = [row, row, row | {column: "a\0b"}, row]
    texts = {
        "jsonl": [json.dumps(line) for line in lines],
        "csv": ["source,target", *(map(",".join, map(dict.values, lines)))],
    }
    path.write_text("\n".join(texts[kind]) + "\n")
    message = f"row 3 of .*rows.{kind}: '{column}' holds U.0000; save the file as UTF-8, or remove the character"
    with pytest.raises(ValueError, match=message):
        Rows(str(path)).texts(column)
    if kind == "csv":  # pandas 2 would cut the text
        message = f"rows.csv could not be read as csv: row 3: '{column}' holds U.0000; save it as UTF-8"
    with pytest.raises(ValueError, match=message):
        load_splits(whole(train_file=str(path)))


@pytest.mark.parametrize("code", ["utf-16le", "utf-16be"])
def test_lines_of_utf_16_without_a_mark_are_no_texts(tmp_path, code):
    (tmp_path / "in.txt").write_bytes("one\ntwo\n".encode(code))
    with pytest.raises(ValueError, match="row 1 of .*in.txt: 'source' holds U.0000; save the file as UTF-8"):
        Rows(str(tmp_path / "in.txt"), plain_text=True).texts("source")
