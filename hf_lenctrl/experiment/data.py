"""Rows in, token ids out: loading, splitting by group, tokenising, and a report of what was dropped."""

import contextlib
import gzip
import hashlib
import itertools
import logging
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from datasets import Dataset, DatasetDict, IterableDataset, load_dataset
from datasets.exceptions import DatasetGenerationError

from ..length_tokens import LengthTokens
from ..length_units import count_texts
from .arguments import DataArguments


logger = logging.getLogger(__name__)

STREAM_HEAD = 100_000  # rows of a stream that a tokenizer is trained on
STREAM_BUFFER = 10_000  # rows that its order is drawn from
ROW_FILES = ("json", "jsonl", "csv", "parquet")


@dataclass
class RowReport:
    """What became of a split's rows."""

    split: str
    rows: int = 0
    empty: int = 0
    target_too_long: int = 0
    source_cut: int = 0
    dropped: dict[int, str] = field(default_factory=dict, repr=False)  # row -> why

    @property
    def kept(self) -> int:
        return self.rows - self.empty - self.target_too_long

    def __str__(self):
        return (
            f"{self.split}: {self.rows:,} rows, {self.empty:,} dropped for an empty text, {self.target_too_long:,} "
            f"for a target over the limit, {self.kept:,} kept, {self.source_cut:,} of these with the source cut"
        )


def load_splits(args: DataArguments) -> DatasetDict:
    """
    Load train, validation and test rows with string columns `source` and `target`.

    A split that is not given is cut from train: by a hash of the row's group (`args.group_column`), so that groups
    never mix and the split is the same on every machine, or without groups by a hash of the source. With
    `args.streaming` train is an `IterableDataset`, and nothing is cut from it.

    Raises:
        `FileNotFoundError`: for a file that is not there.
        `ValueError`: without any data, for an unknown file type, an unreadable file, a missing column, or no rows.
    """
    limits = {"validation": args.max_validation_rows, "test": args.max_test_rows}
    splits, files = _given_splits(args, limits)
    if "train" not in splits:
        raise ValueError(
            "there is nothing to train on; give train_file=rows.jsonl, or dataset_name= with a train split"
        )
    # OPUS and WMT sets on the Hub hold {"en": ..., "ja": ...} in a column `translation`
    splits = {name: _flatten(rows) for name, rows in splits.items()}
    for name, rows in splits.items():
        _check_columns(rows, files[name], args)
    cuts = {"validation": args.validation_share, "test": args.test_share}
    cuts = {name: share for name, share in cuts.items() if name not in splits and share > 0}
    if cuts:
        splits |= _split(splits["train"], cuts, args)
    for name, limit in limits.items():
        if name in splits and limit is not None:
            splits[name] = splits[name].select(range(min(limit, len(splits[name]))))
    names = {args.source_column: "source", args.target_column: "target"}
    renamed = {} if list(names) == ["source", "target"] else names
    return DatasetDict({k: rows.select_columns(list(names)).rename_columns(renamed) for k, rows in splits.items()})


def _given_splits(args: DataArguments, limits: dict[str, int | None]) -> tuple[dict[str, Any], dict[str, str]]:
    """The splits that have rows of their own, and where each comes from, for messages."""
    if args.dataset_name is None:
        given = {"train": args.train_file, "validation": args.validation_file, "test": args.test_file}
        files = {name: path for name, path in given.items() if path is not None}
        return {name: load_rows(path, args.streaming and name == "train") for name, path in files.items()}, files
    found = load_dataset(args.dataset_name, args.dataset_config_name, streaming=args.streaming)
    splits = {name: found[name] for name in ("train", "validation", "test") if name in found}
    if args.streaming:  # what is evaluated on is small, and read as a whole
        splits = {name: rows if name == "train" else _read(rows, limits.get(name)) for name, rows in splits.items()}
    return splits, dict.fromkeys(splits, args.dataset_name)


def _check_columns(found: Dataset | IterableDataset, file: str, args: DataArguments) -> None:
    rows = _read(found, 100) if isinstance(found, IterableDataset) else found
    columns = {"source_column": args.source_column, "target_column": args.target_column}
    groups = {} if args.group_column is None else {"group_column": args.group_column}
    for option, column in (columns | groups).items():
        if column not in rows.column_names:
            raise ValueError(
                f"{file} has no column {column!r}, only {', '.join(rows.column_names)}; name the right one with "
                f"{option}="
            )
    if len(rows) == 0:
        raise ValueError(f"{file} has no rows")
    for option, column in columns.items():
        kind = getattr(rows.features[column], "dtype", "other values")
        if kind not in ("string", "large_string", "null"):
            raise ValueError(
                f"column {column!r} of {file} must hold text, got {kind}; name the right one with {option}="
            )


def _read(rows: IterableDataset, limit: int | None) -> Dataset:
    """The first rows of a stream, or all."""
    return Dataset.from_list(list(rows if limit is None else rows.take(limit)))


def _flatten(rows):
    if isinstance(rows, Dataset):
        return rows.flatten()
    nested: dict[str, dict] = {}  # column -> its keys; some rows have none of them
    for row in rows.take(100):
        for name, value in row.items():
            if isinstance(value, dict):
                nested.setdefault(name, {}).update(dict.fromkeys(value))
    if not nested:
        return rows

    def flat(row):
        return {f"{name}.{key}": (row[name] or {}).get(key) for name, keys in nested.items() for key in keys}

    return rows.map(flat, remove_columns=list(nested))


def first_rows(rows) -> Dataset:
    """What a tokenizer is trained on: all rows, or the first `STREAM_HEAD` of a stream."""
    return _read(rows, STREAM_HEAD) if isinstance(rows, IterableDataset) else rows


class Stream(torch.utils.data.IterableDataset):
    """
    The rows of a stream again and again, each with its `epoch`, so that a run that goes on need not know how many
    there are.

    Args:
        rows (`datasets.IterableDataset`): Rows.
        seed (`int`, *optional*): Draw their order, anew each time, from a buffer of `STREAM_BUFFER`.
    """

    def __init__(self, rows: IterableDataset, seed: int | None = None):
        self.rows = rows if seed is None else rows.shuffle(seed=seed, buffer_size=STREAM_BUFFER)

    def __iter__(self) -> Iterator[dict]:
        for epoch in itertools.count():
            self.rows.set_epoch(epoch)
            row = None
            for row in self.rows:
                yield {**row, "epoch": epoch}
            if row is None:  # nothing for this worker
                return


def kind_of_file(path: str | Path, kinds: Sequence[str]) -> str:
    """
    What a file holds, by its name without `.gz`: `"jsonl"`.

    Raises:
        `FileNotFoundError`: for a file that is not there.
        `ValueError`: for a kind that is none of `kinds`.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"there is no data file {path}")
    kind = (Path(file.stem).suffix if file.suffix == ".gz" else file.suffix)[1:]
    if kind not in kinds:
        endings = ", ".join(f".{kind}" for kind in kinds)
        raise ValueError(f"{path} must end in {endings} (or these and .gz), got {file.suffix!r}")
    return kind


def load_rows(path: str, streaming: bool = False) -> Any:
    """
    Rows of a local json, jsonl, csv or parquet file, or one of these with `.gz`; all of them, or as a stream.

    Raises:
        `FileNotFoundError`: for a file that is not there.
        `ValueError`: for another type of file, or one that cannot be read.
    """
    kind = kind_of_file(path, ROW_FILES)
    # pandas would take texts such as "NA" and "null" for missing ones
    options: dict[str, Any] = {"keep_default_na": False} if kind == "csv" else {}
    rows: Any
    try:
        if path.endswith(".parquet.gz"):  # `datasets` does not unpack it
            rows = Dataset(read_parquet(path))
            rows = rows.to_iterable_dataset() if streaming else rows
        else:
            options |= {"split": "train", "streaming": streaming}
            rows = load_dataset("json" if kind == "jsonl" else kind, data_files=_plain_name(path, kind), **options)
        if streaming:
            next(iter(rows))  # what cannot be read is told before the model is made
            return rows
        rows.data.validate(full=True)  # the JSON reader does not check that texts are UTF-8
    except StopIteration:  # from an empty file
        raise ValueError(f"{path} has no rows") from None
    except (DatasetGenerationError, ValueError, OSError, EOFError, zlib.error) as error:
        cause = error.__cause__ or error
        if "corresponds to no data" in str(cause):
            raise ValueError(f"{path} has no rows") from None
        raise ValueError(f"{path} could not be read as {kind}: {cause}; mend or remove the broken row") from error
    return rows


def read_parquet(path: str) -> pa.Table:
    """A parquet file, or one with `.gz`, as a whole."""
    data = Path(path).read_bytes()
    return pq.read_table(BytesIO(gzip.decompress(data) if path.endswith(".gz") else data))


def _plain_name(path: str, kind: str) -> str:
    """The file under a name that `datasets` takes for one: `[1]` is a pattern there, `a::b` a chain of archives."""
    name = os.path.abspath(path).replace(os.sep, "/")
    if not re.search(r"[][*?\\]|::", name):
        return path
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    link = Path(datasets.config.HF_DATASETS_CACHE, "links", f"{digest}.{kind}{'.gz' * name.endswith('.gz')}")
    link.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):  # it leads to the same file
        link.symlink_to(name)
    return str(link)


def _split(rows: Dataset, shares: dict[str, float], args: DataArguments) -> dict[str, Dataset]:
    """Cut splits from the training rows, by a hash of the group."""
    if args.streaming:
        raise ValueError(
            f"streaming reads train as it comes and cannot cut {' and '.join(shares)} rows from it; give "
            f"{', '.join(f'{name}_file=' for name in shares)}, or do without: "
            f"{', '.join(f'{name}_share=0' for name in shares)}"
        )
    if sum(shares.values()) >= 1:
        raise ValueError(f"the shares cut from train must add up to less than 1, got {shares}")
    column = args.group_column or args.source_column
    members: dict[str, list[int]] = {name: [] for name in [*shares, "train"]}
    for i, value in enumerate(rows[column]):
        group = str(value)
        if args.group_column is not None and args.group_separator:
            group = group.split(args.group_separator, 1)[0]
        point = zlib.crc32(group.encode("utf-8")) / 2**32  # uniform in [0, 1)
        for name, share in shares.items():
            if point < share:
                members[name].append(i)
                break
            point -= share
        else:
            members["train"].append(i)
    for name, indices in members.items():
        if not indices:
            raise ValueError(
                f"cutting {shares} from {len(rows)} rows left no rows for {name}; give larger shares, more rows, or "
                f"files of your own: {name}_file="
            )
    return {name: rows.select(indices) for name, indices in members.items()}


def leave_out_lengths(rows, tokenizer, unit: str, lengths: Sequence[int]):
    """
    Rows whose target has none of the lengths, so that a test at these is one at unseen lengths (Takase & Okazaki 2019,
    lower halves of Tables 1, 2 and 4).

    Raises:
        `ValueError`: when no row is left.
    """
    if isinstance(rows, IterableDataset):

        def others(targets):
            counts = count_texts(tokenizer, [(text or "").strip() for text in targets], unit, target=True)
            return [count not in set(lengths) for count in counts]

        return rows.filter(others, input_columns="target", batched=True)
    counts = count_texts(tokenizer, [(text or "").strip() for text in rows["target"]], unit, target=True)
    kept = [i for i, count in enumerate(counts) if count not in set(lengths)]
    left_out = ", ".join(f"{counts.count(length):,} of {length}" for length in lengths)
    logger.info("train: %s rows, targets left out by their %ss: %s", f"{len(rows):,}", unit, left_out)
    if not kept:
        raise ValueError(
            f"unseen_lengths={list(lengths)} leaves none of {len(rows)} training rows; name fewer lengths"
        )
    return rows.select(kept)


def fit_length_tokens(rows: Dataset, tokenizer, unit: str, args: DataArguments) -> LengthTokens:
    """Classes of length from training rows, see `LengthTokens.fit`; the tokenizer gets their tokens."""
    pairs = [(s.strip(), t.strip()) for s, t in zip(rows["source"], rows["target"], strict=True) if s and t]
    sources, targets = (count_texts(tokenizer, [pair[i] for pair in pairs], unit, target=bool(i)) for i in (0, 1))
    tokens = LengthTokens.fit(args.length_tokens or "", sources, targets, bins=args.length_bins)
    tokens.add_to(tokenizer)
    logger.info("length tokens %s, limits %s", " ".join(tokens.tokens), list(tokens.thresholds))
    return tokens


def tokenize(
    splits: DatasetDict,
    tokenizer,
    args: DataArguments,
    *,
    length_tokens: LengthTokens | None = None,
    unit: str = "token",
    length: int | None = None,
) -> tuple[DatasetDict, list[RowReport]]:
    """
    Tokenise with `datasets.map` (cached, `args.preprocessing_num_workers` processes, with a progress bar).

    Rows with an empty text or with a target over `args.max_target_length` tokens are dropped and counted; sources over
    `args.max_source_length` are cut and counted; of a stream they are dropped and cut as they come. With
    `length_tokens` each source begins with the token of its target's length in `unit`, or of `length`.

    Returns:
        `(DatasetDict, list[RowReport])`: columns `input_ids`, `attention_mask`, `labels`; and a report for each split.

    Raises:
        `ValueError`: when a split keeps no row.
    """
    given = {"tokenizer": tokenizer, "args": args, "tokens": length_tokens, "unit": unit, "length": length}
    encode: dict[str, Any] = {"function": _encode, "batched": True, "fn_kwargs": given}
    tokenized: dict[str, Any] = {}
    reports = []
    for name, rows in splits.items():
        if isinstance(rows, IterableDataset):
            stream = rows.map(**encode, remove_columns=["source", "target"])
            stream = stream.filter(lambda empty, long: not empty and not long, input_columns=["empty", "too_long"])
            tokenized[name] = stream.select_columns(["input_ids", "attention_mask", "labels"])
            if next(iter(tokenized[name]), None) is None:
                raise ValueError(
                    f"no row of {name} is left; look at the columns, at max_target_length and at unseen_lengths"
                )
            reports.append(RowReport(name))
            continue
        how = {"num_proc": args.preprocessing_num_workers, "desc": f"Tokenising {name}"}
        encoded = rows.map(**encode, **how, remove_columns=rows.column_names)
        empty, too_long, cut = (encoded[column][:] for column in ("empty", "too_long", "source_cut"))
        over = f"target over {args.max_target_length} tokens"
        dropped = {i: "empty text" if empty[i] else over for i in range(len(encoded)) if empty[i] or too_long[i]}
        keep = [i for i in range(len(encoded)) if i not in dropped]
        report = RowReport(name, rows=len(encoded), empty=sum(empty), dropped=dropped)
        report.target_too_long = len(dropped) - report.empty
        report.source_cut = sum(cut[i] for i in keep)
        logger.warning(str(report)) if report.kept < report.rows else logger.info(str(report))
        if report.source_cut > 0.1 * len(keep):
            share = f"{report.source_cut:,} of {len(keep):,} sources are longer than {args.max_source_length} tokens"
            logger.warning("%s: %s and were cut; raise max_source_length if the model reads more", name, share)
        if not keep:
            raise ValueError(f"no row of {name} is left: {report}; look at the columns and at max_target_length")
        tokenized[name] = encoded.select(keep).select_columns(["input_ids", "attention_mask", "labels"])
        reports.append(report)
    return DatasetDict(tokenized), reports


def _encode(batch, *, tokenizer, args: DataArguments, tokens: LengthTokens | None, unit: str, length: int | None):
    sources, targets = ([(text or "").strip() for text in batch[column]] for column in ("source", "target"))
    room = (args.max_source_length or 256) - (tokens is not None)
    columns = tokenizer(sources, truncation=True, max_length=room)
    whole = tokenizer(sources)["input_ids"] if sources else []
    columns["labels"] = tokenizer(text_target=targets)["input_ids"]
    # a target of nothing but unknown letters has no length to train on
    written = tokenizer.batch_decode(columns["labels"], skip_special_tokens=True)
    columns["empty"] = [not (source and text.strip()) for source, text in zip(sources, written, strict=True)]
    columns["source_cut"] = [len(ids) > room for ids in whole]
    if tokens is not None:
        requested = count_texts(tokenizer, targets, unit, target=True) if length is None else [length] * len(targets)
        have = count_texts(tokenizer, sources, unit)
        first = tokenizer.convert_tokens_to_ids([tokens.token_for(*n) for n in zip(requested, have, strict=True)])
        columns["input_ids"] = [[i, *ids] for i, ids in zip(first, columns["input_ids"], strict=True)]
        columns["attention_mask"] = [[1, *mask] for mask in columns["attention_mask"]]
    columns["too_long"] = [len(ids) > args.max_target_length for ids in columns["labels"]]
    return columns
