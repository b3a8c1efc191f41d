"""Functions that load the rows of a data set, split them by group, tokenize them, and report the dropped rows."""

import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc
import torch
from datasets import Dataset, DatasetDict, Value, load_dataset

from ..length_tokens import LengthTokens
from ..length_units import UnitTable, count_texts
from ..lengths import plural
from .arguments import DataArguments, SplitArguments
from .rows import holds_null, load_rows


logger = logging.getLogger(__name__)


@dataclass
class RowReport:
    """
    A report on the rows of a split: the numbers of all rows, of dropped rows (`empty`, `target_too_long`), and of
    remaining rows with a cut source. `dropped` maps the index of each dropped row to the reason.
    """

    split: str
    rows: int = 0
    empty: int = 0
    target_too_long: int = 0
    source_cut: int = 0
    dropped: dict[int, str] = field(default_factory=dict, repr=False)  # row -> reason

    @property
    def kept(self) -> int:
        return self.rows - self.empty - self.target_too_long

    def __str__(self):
        return (
            f"{self.split}: {self.rows:,} rows, {self.empty:,} dropped for an empty text or a target of no units, "
            f"{self.target_too_long:,} for a target over the limit, {self.kept:,} kept, {self.source_cut:,} of these "
            "with the source cut"
        )


def load_splits(args: SplitArguments) -> DatasetDict:
    """
    Load the train, validation and test rows, with text columns `source` and `target`. If `args.keep_length_column` is
    set, train also has a boolean column `keep_length`. It is true for rows that are never trained without a length.

    If the validation or test split is missing, it is cut from train, unless its share is 0. A hash of each row's group
    (`args.group_column`), or of its source if there are no groups, chooses the rows. So a group is never in two
    splits, and the splits are the same on every machine. Raise `ValueError` if the data cannot be used, for example if
    a column is missing.
    """
    splits, files = _given_splits(args)
    if "train" not in splits:
        raise ValueError("there is nothing to train on; give --train_file, or --dataset_name with a train split")
    # OPUS and WMT sets on the Hub hold {"en": ..., "ja": ...} in a column `translation`
    splits = {name: rows.flatten() for name, rows in splits.items()}
    for name, rows in splits.items():
        _check_columns(rows, files[name], args)
    keeps = args.keep_length_column if isinstance(args, DataArguments) else None
    if keeps is not None and splits["train"].features.get(keeps) != Value("bool"):
        raise ValueError(f"{files['train']} must have a column {keeps!r} of true and false, for --keep_length_column")
    cuts = {"validation": args.validation_share, "test": args.test_share}
    cuts = {name: share for name, share in cuts.items() if name not in splits and share > 0}
    if cuts:
        splits |= _split(splits["train"], cuts, args)
    for name, limit in (("validation", args.max_validation_rows), ("test", args.max_test_rows)):
        if name in splits and limit is not None:
            splits[name] = splits[name].select(range(min(limit, len(splits[name]))))
    names = {args.source_column: "source", args.target_column: "target"}
    more = {} if keeps is None else {keeps: "keep_length"}
    return DatasetDict({k: _only(rows, names | more if k == "train" else names) for k, rows in splits.items()})


def _only(rows: Dataset, names: dict[str, str]) -> Dataset:
    """Return the rows with only the columns that are keys of `names`, renamed to the values."""
    rows = rows.select_columns(list(names))
    return rows if list(names) == list(names.values()) else rows.rename_columns(names)


def _given_splits(args: SplitArguments) -> tuple[dict[str, Any], dict[str, str]]:
    """Load the files or the data set. Return two dictionaries: split -> rows, and split -> name for messages."""
    given = {"train": args.train_file, "validation": args.validation_file, "test": args.test_file}
    if args.dataset_name is not None and any(given.values()):
        raise ValueError(f"--dataset_name {args.dataset_name} has its own splits, got files too; give one of them")
    if args.dataset_name is None:
        files = {name: path for name, path in given.items() if path is not None}
        return {name: load_rows(path) for name, path in files.items()}, files
    found = load_dataset(args.dataset_name, args.dataset_config_name)
    splits = {name: found[name] for name in ("train", "validation", "test") if name in found}
    return splits, dict.fromkeys(splits, args.dataset_name)


def _check_columns(rows: Dataset, file: str, args: SplitArguments) -> None:
    """Raise `ValueError` if there are no rows, if a column is missing, or if sources or targets are not valid text."""
    if args.source_column == args.target_column:
        raise ValueError(f"--source_column and --target_column are both {args.source_column!r}; name two columns")
    if len(rows) == 0:
        raise ValueError(f"{file} has no rows")
    for option in ("source_column", "target_column", *(["group_column"] if args.group_column is not None else [])):
        column, advice = getattr(args, option), f"name the right one with --{option}"
        if column not in rows.column_names:
            raise ValueError(f"{file} has no column {column!r}, only {', '.join(rows.column_names)}; {advice}")
        kind = getattr(rows.features[column], "dtype", "other values")
        if option != "group_column" and kind not in ("string", "large_string", "null"):
            raise ValueError(f"column {column!r} of {file} must hold text, got {kind}; {advice}")
        if option != "group_column" and kind != "null":
            null = pc.index(pc.match_substring(rows.data.column(column), "\0"), True).as_py()
            if null >= 0:
                raise ValueError(holds_null(null + 1, file, column))


def _split(rows: Dataset, shares: dict[str, float], args: SplitArguments) -> dict[str, Dataset]:
    """
    Cut new splits from the training rows, by a hash of each group. `shares` maps the name of a new split to its share,
    such as 0.02. Each split gets at least one group.
    """
    if sum(shares.values()) >= 1:
        raise ValueError(f"the shares cut from train must add up to less than 1, got {shares}")
    column = args.group_column or args.source_column
    groups: dict[str, list[int]] = {}  # rows of each group
    for i, value in enumerate(rows[column]):
        group = str(value)
        if args.group_column is not None and args.group_separator:
            group = group.split(args.group_separator, 1)[0]
        groups.setdefault(group, []).append(i)
    points = {group: zlib.crc32(group.encode("utf-8")) / 2**32 for group in groups}  # uniform in [0, 1)
    left, taken, end = sorted(groups, key=lambda group: points[group]), {}, 0.0
    for name, share in shares.items():
        end += share
        # a small file may have no group in the share; then the split gets the next group
        taken[name] = [group for group in left if points[group] < end] or left[:1]
        left = left[len(taken[name]) :]
    taken["train"] = left
    members = {name: sorted(i for group in own for i in groups[group]) for name, own in taken.items()}
    if not all(members.values()):
        advice = f"give --{next(iter(shares))}_file, or set --{next(iter(shares))}_share 0"
        raise ValueError(f"{len(groups)} different groups of rows cannot fill {len(members)} splits; {advice}")
    return {name: rows.select(indices) for name, indices in members.items()}


def leave_out_lengths(rows, tokenizer, unit: str, lengths: Sequence[int]):
    """
    Drop the training rows whose target has one of the `lengths`, counted in `unit`, to test later at lengths that
    training has not seen (Takase & Okazaki 2019, Tables 1, 2, 4). Raise `ValueError` if no row is left.
    """
    table, unseen = UnitTable.from_tokenizer(tokenizer, unit), set(lengths)

    def found(targets) -> list[set[int]]:
        """Return for each target its lengths, as text and as tokens in training, that are in `lengths`."""
        texts = [(text or "").strip() for text in targets]
        ids = tokenizer(text_target=texts, verbose=False)["input_ids"]
        tokens = [int(table.count(torch.tensor([row]))) if row else 0 for row in ids]
        counts = count_texts(tokenizer, texts, unit, target=True)
        return [{*pair} & unseen for pair in zip(counts, tokens, strict=True)]

    counts = found(rows["target"])
    kept = [i for i, own in enumerate(counts) if not own]
    left_out = ", ".join(f"{sum(length in own for own in counts):,} of {length}" for length in lengths)
    logger.info("train: %s rows, targets left out by their %ss: %s", f"{len(rows):,}", unit, left_out)
    if not kept:
        raise ValueError(f"--unseen_lengths {' '.join(map(str, lengths))} leaves no training row; name fewer lengths")
    return rows.select(kept)


def fit_length_tokens(rows: Dataset, tokenizer, unit: str, args: DataArguments) -> LengthTokens:
    """Choose the length tokens for the training rows, add them to the tokenizer, and return them."""
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
    Tokenize the splits. Return two values: (1) the tokenized splits, with `input_ids`, `attention_mask`, `labels`, and
    `keep_length` (see `load_splits`) if a split has this column; (2) a list with a `RowReport` for each split.

    Rows with an empty text, a target of no units, or a target over `args.max_target_length` tokens are dropped.
    Sources over `args.max_source_length` tokens are cut. If `length_tokens` is given, each source begins with the
    length token for `length` units; by default, for the length of the target in `unit`. Raise `ValueError` if a split
    has no row left.
    """
    given = {"tokenizer": tokenizer, "args": args, "tokens": length_tokens, "unit": unit, "length": length}
    encode: dict[str, Any] = {"function": _encode, "batched": True, "fn_kwargs": given}
    tokenized: dict[str, Any] = {}
    reports = []
    for name, rows in splits.items():
        how = {"num_proc": args.preprocessing_num_workers, "desc": f"Tokenising {name}"}
        kept = [column for column in rows.column_names if column == "keep_length"]
        encoded = rows.map(**encode, **how, remove_columns=[name for name in rows.column_names if name not in kept])
        empty, too_long, cut = (encoded[column][:] for column in ("empty", "too_long", "source_cut"))
        over = f"target over {args.max_target_length} tokens"
        dropped = {i: empty[i] or over for i in range(len(encoded)) if empty[i] or too_long[i]}
        keep = [i for i in range(len(encoded)) if i not in dropped]
        report = RowReport(name, rows=len(encoded), empty=sum(map(bool, empty)), dropped=dropped)
        report.target_too_long = len(dropped) - report.empty
        report.source_cut = sum(cut[i] for i in keep)
        logger.warning(str(report)) if report.kept < report.rows else logger.info(str(report))
        if report.source_cut > 0.1 * len(keep):
            share = f"{report.source_cut:,} of {len(keep):,} sources are longer than {args.max_source_length} tokens"
            logger.warning("%s: %s and were cut; raise --max_source_length if the model reads more", name, share)
        if not keep:
            raise ValueError(f"no row of {name} is left: {report}; look at the columns and at --max_target_length")
        tokenized[name] = encoded.select(keep).select_columns(["input_ids", "attention_mask", "labels", *kept])
        reports.append(report)
    return DatasetDict(tokenized), reports


def _encode(batch, *, tokenizer, args: DataArguments, tokens: LengthTokens | None, unit: str, length: int | None):
    sources, targets = ([(text or "").strip() for text in batch[column]] for column in ("source", "target"))
    room = (args.max_source_length or 256) - (tokens is not None)
    columns = tokenizer(sources, truncation=True, max_length=room)
    whole = tokenizer(sources)["input_ids"] if sources else []
    columns["labels"] = tokenizer(text_target=targets)["input_ids"]
    # a target of only unknown letters, or of dots if the unit is the syllable, has no length to train on
    written = [text.strip() for text in tokenizer.batch_decode(columns["labels"], skip_special_tokens=True)]
    counts = list(map(len, written)) if unit == "token" else count_texts(tokenizer, written, unit, target=True)
    columns["empty"] = [
        "empty text" if not (source and text) else "" if n else f"target without {plural(unit)}"
        for source, text, n in zip(sources, written, counts, strict=True)
    ]
    columns["source_cut"] = [len(ids) > room for ids in whole]
    if tokens is not None:
        requested = count_texts(tokenizer, targets, unit, target=True) if length is None else [length] * len(targets)
        have = count_texts(tokenizer, sources, unit)
        first = tokenizer.convert_tokens_to_ids([tokens.token_for(*n) for n in zip(requested, have, strict=True)])
        columns["input_ids"] = [[i, *ids] for i, ids in zip(first, columns["input_ids"], strict=True)]
        columns["attention_mask"] = [[1, *mask] for mask in columns["attention_mask"]]
    columns["too_long"] = [len(ids) > args.max_target_length for ids in columns["labels"]]
    return columns
