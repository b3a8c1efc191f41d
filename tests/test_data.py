"""Loading, splitting and tokenising rows: files made by hand, counts and hashes written out."""

import csv
import gzip
import json
from pathlib import Path

import datasets
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hf_lenctrl.commands.arguments import DataArguments
from hf_lenctrl.commands.data import RowReport, leave_out_lengths, load_splits, tokenize
from hf_lenctrl.commands.rows import load_rows
from hf_lenctrl.training.collator import DataCollatorForLengthControl


ROWS = [
    {"source": 'Says "hello", naïvely', "target": "greeting, 日本語"},
    {"source": "two\nlines", "target": "one line"},
    {"source": "a b c", "target": "d"},
]
SIZES = {"train": 5, "validation": 2, "test": 3}

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


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """What `load_dataset` keeps of one test's files is not there for the next."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets_cache")


def write(path: Path, rows: list[dict]) -> str:
    """Write rows in the format that the name asks for."""
    suffixes = path.suffixes
    if suffixes[0] == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
        if suffixes[-1] == ".gz":
            path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        return str(path)
    with (
        gzip.open(path, "wt", encoding="utf-8", newline="")
        if suffixes[-1] == ".gz"
        else path.open("w", encoding="utf-8", newline="") as file
    ):
        if suffixes[0] == ".json":
            json.dump(rows, file, ensure_ascii=False, indent=1)
        elif suffixes[0] == ".jsonl":
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        else:
            table = csv.DictWriter(file, fieldnames=list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    return str(path)


def numbered(n: int, **columns) -> list[dict]:
    return [{"source": f"source {i}", "target": f"target {i}", **columns} for i in range(n)]


def whole(path: str, **options) -> DataArguments:
    """Arguments that take a file as it is and cut nothing from it."""
    return DataArguments(train_file=path, **{"validation_share": 0, "test_share": 0, **options})


# Loading


@pytest.mark.parametrize(
    "name",
    ["a.json", "a.jsonl", "a.csv", "a.parquet", "a.json.gz", "a.jsonl.gz", "a.csv.gz", "a.parquet.gz"]
    + ["a.b-1.0.jsonl"],
)
def test_every_format_loads_to_the_same_rows(tmp_path, name):
    # pathlib sees the suffixes .b-1, .0, .jsonl in the last name, and the loader has to see jsonl
    path = tmp_path / name
    write(path if name != "a.b-1.0.jsonl" else tmp_path / "plain.jsonl", ROWS)
    if name == "a.b-1.0.jsonl":
        (tmp_path / "plain.jsonl").rename(path)
    assert load_rows(str(path)).to_list() == ROWS


@pytest.mark.parametrize(
    "name",
    ["rows[1].jsonl", "[!a].csv", "*.jsonl", "what?.json", "x[2].parquet"],
)
def test_a_file_name_is_no_pattern(tmp_path, name, monkeypatch):
    folder = tmp_path / "runs[a-c]"
    folder.mkdir()
    write(folder / f"other{''.join(Path(name).suffixes)}", [{"source": "other", "target": "other"}])
    path = write(folder / name, ROWS)
    assert load_rows(path).to_list() == ROWS
    monkeypatch.chdir(folder)
    assert load_rows(name).to_list() == ROWS
    options = {f"{split}_file": path for split in SIZES}
    assert [rows["target"][:] for rows in load_splits(DataArguments(**options)).values()] == [
        [row["target"] for row in ROWS]
    ] * 3


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".json", ".jsonl.gz", ".csv.gz"])
def test_a_byte_order_mark_is_no_part_of_the_rows(tmp_path, suffix):
    path = Path(write(tmp_path / f"a{suffix}", ROWS))
    data = path.read_bytes()
    packed = suffix.endswith(".gz")
    data = b"\xef\xbb\xbf" + (gzip.decompress(data) if packed else data)
    path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
    assert load_rows(str(path)).to_list() == ROWS


@pytest.mark.parametrize("row", ["long text,short,", "long text", 'a,"b'])
def test_a_csv_row_with_other_cells_than_the_header_is_refused(tmp_path, row):
    (tmp_path / "rows.csv").write_text(f"source,target\n{row}\n")
    with pytest.raises(ValueError, match="rows.csv could not be read as csv: .*(cells, the header has 2|end of data)"):
        load_rows(str(tmp_path / "rows.csv"))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_texts_that_pandas_takes_for_missing_values_stay_text(tmp_path, suffix):
    rows = [{"source": text, "target": "x"} for text in ("NA", "null", "nan", "None", "n/a")]
    assert load_rows(write(tmp_path / f"a{suffix}", rows)).to_list() == rows


def test_train_validation_and_test_files_become_the_splits_of_these_names(tmp_path):
    files = {f"{name}_file": write(tmp_path / f"{name}.jsonl", numbered(n)) for name, n in SIZES.items()}
    splits = load_splits(DataArguments(**files))
    assert {name: len(rows) for name, rows in splits.items()} == SIZES
    assert all(rows.column_names == ["source", "target"] for rows in splits.values())


def test_column_options_name_the_columns_and_the_others_are_left_out(tmp_path):
    rows = [{"body": "a b", "id": 7, "headline": "c", "target": "not this"}]
    args = whole(write(tmp_path / "a.jsonl", rows), source_column="body", target_column="headline")
    assert load_splits(args)["train"].to_list() == [{"source": "a b", "target": "c"}]


def test_columns_may_be_swapped(tmp_path):
    args = whole(
        write(tmp_path / "a.jsonl", [{"source": "a", "target": "b"}]), source_column="target", target_column="source"
    )
    assert load_splits(args)["train"].to_list() == [{"source": "b", "target": "a"}]


@pytest.mark.parametrize("typed", [True, False], ids=["translation feature", "mapping"])
def test_columns_of_a_translation_are_named_with_a_dot(tmp_path, typed):
    # as OPUS and WMT sets on the Hub have them
    feature = (
        datasets.Translation(["en", "ja"])
        if typed
        else {"en": datasets.Value("string"), "ja": datasets.Value("string")}
    )
    rows = datasets.Dataset.from_list(
        [{"translation": {"en": f"word {i}", "ja": f"言葉 {i}"}} for i in range(3)],
        features=datasets.Features({"translation": feature}),
    )
    rows.to_parquet(tmp_path / "train.parquet")
    args = DataArguments(
        train_file=str(tmp_path / "train.parquet"),
        source_column="translation.en",
        target_column="translation.ja",
        validation_share=0,
        test_share=0,
    )
    assert load_splits(args)["train"][1] == {"source": "word 1", "target": "言葉 1"}


def test_rows_of_unseen_lengths_are_left_out_and_counted(shared_tokenizer, caplog):
    rows = datasets.Dataset.from_list(
        [{"source": "s", "target": target} for target in ("abc", " ab ", "abc", "a", "é")]
    )
    with caplog.at_level("INFO"):
        kept = leave_out_lengths(rows, shared_tokenizer, "character", [3, 2, 9])
    assert kept["target"][:] == ["a", "é"]
    assert "train: 5 rows, targets left out by their characters: 2 of 3, 1 of 2, 0 of 9" in caplog.text
    assert leave_out_lengths(rows, shared_tokenizer, "byte", [2])["target"][:] == ["abc", "abc", "a"]
    # training counts what the tokenizer makes of a text
    wide = datasets.Dataset.from_list([{"source": "s", "target": target} for target in ("ab  b", "abc b c")])
    assert leave_out_lengths(wide, shared_tokenizer, "character", [4])["target"][:] == ["abc b c"]
    with pytest.raises(ValueError, match=r"unseen_lengths=\[1, 2, 3\] leaves no training row; name fewer"):
        leave_out_lengths(rows, shared_tokenizer, "character", [1, 2, 3])
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        DataArguments(unseen_lengths=[30, 0])


def test_a_dataset_is_loaded_by_name(tmp_path):
    (tmp_path / "folder").mkdir()
    for name, n in SIZES.items():
        write(tmp_path / "folder" / f"{name}.jsonl", numbered(n))
    splits = load_splits(DataArguments(dataset_name=str(tmp_path / "folder")))
    assert {name: len(rows) for name, rows in splits.items()} == SIZES


def test_splits_that_a_named_dataset_lacks_are_cut_from_its_train_split(tmp_path):
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "train.jsonl", [{**row, "name": name} for name in POINTS for row in numbered(1)])
    write(tmp_path / "folder" / "test.jsonl", numbered(2, name="theta"))
    args = DataArguments(dataset_name=str(tmp_path / "folder"), group_column="name", validation_share=0.12)
    splits = load_splits(args)
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 5, "validation": 2, "test": 2}


def test_evaluation_takes_the_first_rows_where_a_limit_is_given(tmp_path):
    files = {f"{name}_file": write(tmp_path / f"{name}.jsonl", numbered(n)) for name, n in SIZES.items()}
    splits = load_splits(DataArguments(**files, max_validation_rows=1, max_test_rows=100))
    assert splits["validation"]["source"][:] == ["source 0"]
    assert len(splits["test"]) == 3 and len(splits["train"]) == 5


# Splitting


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


def test_an_own_validation_file_is_kept_and_only_test_is_cut(tmp_path):
    rows = [{"source": name, "target": "t", "package": name} for name in POINTS]
    own = write(tmp_path / "own.jsonl", [{"source": "mine", "target": "t", "package": "theta"}])
    path = write(tmp_path / "a.jsonl", rows)
    assert split_names(path, validation_file=own, group_column="package", test_share=0.15) == {
        "validation": ["mine"],
        "test": ["theta", "zeta"],
        "train": ["café", "fonts", "git", "omicron", "vim"],
    }


def test_without_groups_the_same_source_never_comes_to_stand_in_two_splits(tmp_path):
    rows = [{"source": name, "target": str(i)} for i in range(3) for name in POINTS]
    assert split_names(write(tmp_path / "a.jsonl", rows), validation_share=0.15, test_share=0) == {
        "validation": ["theta"] * 3 + ["zeta"] * 3,
        "train": sorted(["vim", "git", "fonts", "café", "omicron"] * 3),
    }


def test_groups_never_mix_and_shares_hold_within_chance(tmp_path):
    rows = [
        {"source": f"family{i}", "target": "t", "package": f"family{i}{tail}"}
        for i in range(4000)
        for tail in ("", "-dev", "-doc-html")
    ]
    options = {"group_column": "package", "group_separator": "-", "validation_share": 0.1, "test_share": 0.2}
    splits = split_names(write(tmp_path / "a.jsonl", rows), **options)
    families = {name: set(sources) for name, sources in splits.items()}
    assert sum(len(members) for members in families.values()) == 4000
    assert all(len(splits[name]) == 3 * len(families[name]) for name in splits)
    for name, share in (("validation", 0.1), ("test", 0.2)):
        five_sigma = 5 * (4000 * share * (1 - share)) ** 0.5
        assert abs(len(families[name]) - 4000 * share) < five_sigma


def test_without_a_separator_the_whole_value_is_the_group(tmp_path):
    rows = [{"source": name, "target": "t", "package": name} for name in ("theta", "zeta-1", "zeta")]
    # zeta-1 points to 0.86
    splits = split_names(
        write(tmp_path / "a.jsonl", rows), group_column="package", validation_share=0.15, test_share=0
    )
    assert splits == {"validation": ["theta", "zeta"], "train": ["zeta-1"]}


@pytest.mark.parametrize("shares", [(0.5, 0.5), (1.0, 0.0), (0.0, 1.5)])
def test_shares_that_leave_nothing_to_train_on_are_refused(tmp_path, shares):
    path = write(tmp_path / "a.jsonl", numbered(50))
    with pytest.raises(ValueError, match=rf"less than 1, got .*{max(shares)}"):
        load_splits(DataArguments(train_file=path, validation_share=shares[0], test_share=shares[1]))


@pytest.mark.parametrize(
    ("name", "empty"), [("omicron", "validation"), ("theta", "test"), ("git", "validation"), ("zeta", "test")]
)
def test_a_split_that_is_left_without_rows_is_refused_by_name(tmp_path, name, empty):
    path = write(tmp_path / "a.jsonl", [{"source": name, "target": "t"}] * 3)
    with pytest.raises(ValueError, match=f"3 rows left no rows for {empty}.*{empty}_file="):
        load_splits(DataArguments(train_file=path, validation_share=0.15, test_share=0.15))


# Tokenising


@pytest.fixture(scope="module")
def word_tokenizer():
    """One id a word, EOS at the end: a=3, b=4, c=5, d=6."""
    vocabulary = {"</s>": 0, "<unk>": 1, "<pad>": 2, "a": 3, "b": 4, "c": 5, "d": 6}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", unk_token="<unk>", pad_token="<pad>")


def tokenize_rows(pairs, tokenizer, **options):
    rows = datasets.Dataset.from_dict({"source": [p[0] for p in pairs], "target": [p[1] for p in pairs]})
    return tokenize(datasets.DatasetDict(train=rows), tokenizer, DataArguments(**options))


def test_rows_become_ids_with_eos(word_tokenizer):
    tokenized, _ = tokenize_rows([("a b", "c"), (" d ", "\tb a\n")], word_tokenizer)
    assert tokenized["train"].to_list() == [
        {"input_ids": [3, 4, 0], "attention_mask": [1, 1, 1], "labels": [5, 0]},
        {"input_ids": [6, 0], "attention_mask": [1, 1], "labels": [4, 3, 0]},
    ]


MIXED = [
    ("a b", "c d"),  # at both limits of 3 tokens
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


def test_the_report_counts_empty_too_long_and_cut_rows(word_tokenizer):
    tokenized, reports = tokenize_rows(MIXED, word_tokenizer, max_source_length=3, max_target_length=3)
    dropped = dict.fromkeys([1, 2, 3, 4, 7], "empty text") | dict.fromkeys([5, 6], "target over 3 tokens")
    assert reports == [RowReport("train", rows=10, empty=5, target_too_long=2, source_cut=2, dropped=dropped)]
    assert reports[0].kept == 3
    assert tokenized["train"]["input_ids"][:] == [[3, 4, 0], [3, 4, 0], [6, 5, 0]]
    assert tokenized["train"]["labels"][:] == [[5, 6, 0], [6, 0], [3, 0]]


def test_the_report_says_what_became_of_the_rows(caplog, word_tokenizer):
    tokenize_rows(MIXED, word_tokenizer, max_source_length=3, max_target_length=3)
    text = (
        "train: 10 rows, 5 dropped for an empty text, 2 for a target over the limit, 3 kept, 2 of these with the "
        "source cut"
    )
    assert [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "hf_lenctrl.commands.data"] == [
        ("WARNING", text),
        (
            "WARNING",
            "train: 2 of 3 sources are longer than 3 tokens and were cut; raise max_source_length if the model reads "
            "more",
        ),
    ]
    assert str(RowReport("test", rows=32_068, empty=1000, target_too_long=68, source_cut=1234)) == (
        "test: 32,068 rows, 1,000 dropped for an empty text, 68 for a target over the limit, 31,000 kept, 1,234 of "
        "these with the source cut"
    )


def test_each_split_has_its_report(word_tokenizer):
    split = {name: datasets.Dataset.from_list([{"source": "a", "target": "b"}] * n) for name, n in SIZES.items()}
    tokenized, reports = tokenize(datasets.DatasetDict(split), word_tokenizer, DataArguments())
    assert [(report.split, report.rows, report.kept) for report in reports] == [
        ("train", 5, 5),
        ("validation", 2, 2),
        ("test", 3, 3),
    ]
    assert {name: len(rows) for name, rows in tokenized.items()} == SIZES


def test_two_processes_give_what_one_gives(word_tokenizer):
    limits = {"max_source_length": 3, "max_target_length": 3}
    one, reports = tokenize_rows(MIXED, word_tokenizer, **limits)
    two, reports_of_two = tokenize_rows(MIXED, word_tokenizer, **limits, preprocessing_num_workers=2)
    assert two["train"].to_list() == one["train"].to_list()
    assert reports_of_two == reports


def test_a_separate_target_vocabulary_encodes_the_targets(character_tokenizer):
    tokenized, _ = tokenize_rows([("small editor", "text logs")], character_tokenizer)
    row = tokenized["train"][0]
    characters = character_tokenizer.target_encoder
    assert row["labels"] == [*(characters[c] for c in "text▁logs"), 0]
    assert row["input_ids"] == [
        *(character_tokenizer.encoder[p] for p in character_tokenizer.spm_source.encode("small editor", out_type=str)),
        0,
    ]


@pytest.mark.parametrize("unit", ["token", "character"])
@pytest.mark.parametrize("tokenizer", ["character_tokenizer", "shared_tokenizer"])
@pytest.mark.parametrize("target", ["日本", "日 本", "\u200b"], ids=["unknown", "unknown words", "zero-width space"])
def test_every_row_that_is_kept_has_a_length_to_train_on(request, tokenizer, unit, target):
    # A target of nothing but unknown letters or ignored characters must be dropped and counted here, not raise in the
    # collator in the middle of a run.
    tokenizer = request.getfixturevalue(tokenizer)
    tokenized, reports = tokenize_rows([("small editor", target), ("small editor", "logs")], tokenizer)
    assert len(tokenized["train"]) == reports[0].kept
    collator = DataCollatorForLengthControl(tokenizer, length_unit=unit)
    lengths = collator(tokenized["train"].to_list())["length"].tolist()
    assert lengths[-1] == (4 if unit == "character" else len(tokenizer(text_target="logs")["input_ids"]) - 1)
    assert all(length >= 1 for length in lengths)


def test_a_split_that_keeps_no_row_is_refused(word_tokenizer):
    with pytest.raises(ValueError, match="no row of train is left: train: 2 rows, 1 dropped .*max_target_length"):
        tokenize_rows([("a", "a b c"), ("a", "")], word_tokenizer, max_target_length=3)


# Bad input


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no data file .*missing.jsonl"):
        load_splits(DataArguments(train_file=str(tmp_path / "missing.jsonl")))


def test_a_missing_column_of_the_validation_file_is_named_too(tmp_path):
    own = write(tmp_path / "own.jsonl", [{"source": "a", "headline": "b"}])
    with pytest.raises(ValueError, match="own.jsonl has no column 'target'"):
        load_splits(whole(write(tmp_path / "a.jsonl", ROWS), validation_file=own))


GOOD = '{"source": "a", "target": "b"}\n'
BROKEN = {
    "cut_row.jsonl": (GOOD + '{"source": "a", "tar\n').encode(),
    "first_row.jsonl": ('{"source"\n' + GOOD).encode(),
    "cut.json": b'[{"source": "a", "target": "b"}, {"source"',
    "latin1.jsonl": '{"source": "naïve", "target": "b"}\n'.encode("latin-1"),
    "latin1.csv": "source,target\nnaïve,b\n".encode("latin-1"),
    "extra_field.csv": b"source,target\na,b\nc,d,e\n",
    "no.parquet": b"this is not parquet",
    "cut.jsonl.gz": gzip.compress(GOOD.encode() * 5000, mtime=0)[:-60],
    "garbled.jsonl.gz": gzip.compress(GOOD.encode(), mtime=0)[:10] + b"\xff" * 50,
    "not_gzip.jsonl.gz": GOOD.encode(),
}


WITHOUT_ROWS = {
    "empty.jsonl": b"",
    "empty.json": b"",
    "empty.csv": b"",
    "empty.jsonl.gz": gzip.compress(b"", mtime=0),
    "blank.jsonl": b"\n\n",
    "list.json": b"[]",
    "header.csv": b"source,target\n",
}


def test_no_data_to_train_on_is_refused(tmp_path):
    for files in ({}, {"validation_file": write(tmp_path / "a.jsonl", ROWS)}):
        with pytest.raises(ValueError, match="nothing to train on; give train_file="):
            load_splits(DataArguments(**files))


NUMBERS = "'target'.*int64"
NO_COLUMN = "a.jsonl has no column 'headline', only source, target; .*{}="


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        *((name, data, {}, f"{name} could not be read") for name, data in BROKEN.items()),
        *((name, data, {}, f"{name} (has no rows|could not be read)") for name, data in WITHOUT_ROWS.items()),
        ("a.txt", b"text", {}, "a.txt must end in .json, .jsonl, .csv, .parquet .*got '.txt'"),
        ("a.txt.gz", gzip.compress(b"text", mtime=0), {}, "a.txt.gz must end in .json, .*got '.gz'"),
        ("rows", b"text", {}, "rows must end in .json, .*got ''"),
        *(
            ("a.jsonl", GOOD.encode(), {option: "headline"}, NO_COLUMN.format(option))
            for option in ("source_column", "target_column", "group_column")
        ),
        ("a.jsonl", b'{"source": "a b", "target": 2024}', {}, NUMBERS),
        ("a.csv", b"source,target\na b,2024\n", {}, NUMBERS),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, name, data, options, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        load_splits(whole(str(tmp_path / name), **options))


@pytest.mark.parametrize(
    ("kind", "targets", "message"),
    [("string", [], "a.parquet (has no rows|could not be read)"), ("int64", [7], NUMBERS)],
)
def test_a_parquet_file_that_cannot_be_used_is_named(tmp_path, kind, targets, message):
    features = datasets.Features({"source": datasets.Value("string"), "target": datasets.Value(kind)})
    rows = datasets.Dataset.from_dict({"source": ["a"] * len(targets), "target": targets}, features=features)
    rows.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=message):
        load_splits(whole(str(tmp_path / "a.parquet")))
