"""Readers of the rows of a user's file: as a `Dataset` for training, or as dictionaries for other commands."""

import csv
import glob
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..inference.sources import length_or_range


if TYPE_CHECKING:  # the core install does not have `datasets`
    from datasets import Dataset


ROW_FILES = ("json", "jsonl", "csv", "parquet")


def holds_null(row: int, path: str, name: str) -> str:
    """Return the error message for a text with U+0000. A UTF-16 file that is read as UTF-8 has this character."""
    return f"row {row} of {path}: {name!r} holds U+0000; save the file as UTF-8, or remove the character"


def load_rows(path: str) -> "Dataset":
    """Load a local json, jsonl, csv (these also as `.gz`) or parquet file as a memory-mapped `Dataset`."""
    kind = _kind_of(path, ROW_FILES)
    with _with_file_name(path, kind):
        return _dataset(path, kind)


class _NoRows(Exception):
    """A file is readable, but has no rows."""


def _dataset(path: str, kind: str) -> "Dataset":
    from datasets import Dataset, load_dataset
    from datasets.exceptions import DatasetGenerationError
    from pyarrow.parquet import read_metadata

    options = {}
    if kind == "csv":  # pandas would shift the cells of a row with missing or extra cells, and cut a text at U+0000
        count = 0
        for count, row in enumerate(_csv_rows(path), start=1):
            if names := [name for name, text in row.items() if "\0" in text]:
                raise ValueError(f"row {count}: {names[0]!r} holds U+0000")
        if not count:
            raise _NoRows
        options = {"keep_default_na": False}  # texts such as "NA" and "null" are not missing values
    elif kind == "parquet" and read_metadata(path).num_rows == 0:
        raise _NoRows
    builder = "json" if kind == "jsonl" else kind
    try:
        rows = load_dataset(builder, data_files=glob.escape(os.path.abspath(path)), split="train", **options)
    except DatasetGenerationError as error:
        raise ValueError(error.__cause__ or error) from error.__cause__
    except ValueError as error:  # such as a JSON file with an empty list
        if kind in ("json", "jsonl") and next(_json_rows(path), None) is None:
            raise _NoRows from error
        raise
    assert isinstance(rows, Dataset)
    rows.data.validate(full=True)  # the JSON reader does not check that texts are UTF-8
    return rows


class Rows:
    """
    The rows of a file: `values` holds the rows as dictionaries, `columns` the names of the columns, `numbers` the row
    numbers in the file. No type is inferred; for example, a date stays text. The file is json, jsonl, csv or parquet.
    If `plain_text` is set, the file may also be txt, with one `source` in each line. All formats but parquet may end
    in `.gz`.
    """

    def __init__(self, path: str, plain_text: bool = False):
        kind = _kind_of(path, [*(["txt"] if plain_text else []), *ROW_FILES])
        with _with_file_name(path, kind):
            self.values: list[dict] = list(_READERS[kind](path))
        if not self.values:
            raise ValueError(f"{path} has no rows")
        self.path, self.kind = path, kind
        self.columns: list[str] = list(dict.fromkeys(chain.from_iterable(self.values)))
        self.numbers, self.read = list(range(1, len(self.values) + 1)), len(self.values)

    def keep(self, chosen: Callable[[dict], bool], has: str = "a text") -> None:
        """
        Keep only the rows for which `chosen` returns true, and their row numbers. The attribute `read` remains the
        number of all rows in the file. Raise `ValueError` if no row is left. `has` is a phrase
        for the error message: what all rows lack.
        """
        pairs = [(n, row) for n, row in zip(self.numbers, self.values, strict=True) if chosen(row)]
        if not pairs:
            raise ValueError(f"no row of {self.path} is left: none of its {self.read} rows has {has}")
        self.numbers, self.values = map(list, zip(*pairs, strict=True))

    def __len__(self):
        return len(self.values)

    def column(self, name: str) -> list:
        """Return a column; rows without the column give `None`. Raise `ValueError` if all rows lack the column."""
        if name not in self.columns:
            raise ValueError(f"{self.path} has no column {name!r}, only {', '.join(self.columns)}")
        return [row.get(name) for row in self.values]

    def texts(self, name: str) -> list[str]:
        """Return a column of texts. Raise `ValueError` if a value is not a text, or holds U+0000."""
        texts = self.column(name)
        for i, text in zip(self.numbers, texts, strict=True):
            if not isinstance(text, str):
                raise ValueError(f"row {i} of {self.path}: {name!r} must hold text, got {text!r}")
            if "\0" in text:
                raise ValueError(holds_null(i, self.path, name))
        return texts

    def lengths(self, name: str, ranges: bool = False) -> list:
        """
        Return a column of lengths as integers. A value may be `40`, `40.0` or `"40"`. If `ranges` is true, a value may
        also be a range, `[30, 42]`, `"[30, 42]"` or `"30-42"`, which becomes a tuple. Raise `ValueError` if a value is
        anything else.
        """
        lengths: list = []
        for i, value in zip(self.numbers, self.column(name), strict=True):
            try:
                lengths.append(length_or_range(value))
                if not ranges and isinstance(lengths[-1], tuple):
                    raise ValueError
            except (TypeError, ValueError, OverflowError):
                form = ", as 30-42" if self.kind == "csv" else ""
                rule = f"an integer of at least 1{f', or a range of them{form}' if ranges else ''}"
                raise ValueError(f"row {i} of {self.path}: {name!r} must hold {rule}, got {value!r}") from None
        return lengths


@dataclass
class Request:
    """A source to generate from, and the input row that the output line repeats."""

    source: str
    length: int | tuple[int, int] | None  # requested length or range; `None` if the model decides
    reference: str | None  # the requested length may be the length of this text
    number: int  # number of the row in the file, from 1
    columns: str  # the row as JSON, without braces
    names: Mapping[str, str]  # field of an output -> its column in the file

    def line(self, output: Mapping[str, Any]) -> str:
        """Return the input row and the output as one line of JSON."""
        added = _as_json({self.names[name]: value for name, value in output.items() if name in self.names})
        return "{" + ", ".join(filter(None, [self.columns, added])) + "}"


def requests_of(
    rows: Rows,
    source_column: str,
    length_column: str | None,
    reference_column: str | None = None,
    *,
    lengths: Sequence,
    ranges: bool = True,
    prefix: str = "",
    added: Sequence[str] = (),
) -> list[Request]:
    """
    Build the requests of rows. If `length_column` is given, each row gives one request, for the length in this column,
    or if `ranges` is true also for the range. Otherwise each row gives one request for each of `lengths`.

    An output adds the columns `requested`, `output`, `length` and the columns in `added`, such as `score`, to its row.
    The names of these columns begin with `prefix`. Raise `ValueError` if the rows already have such a column, or if a
    source is empty.
    """
    path = rows.path
    sources = rows.texts("source" if rows.kind == "txt" else source_column)
    if empty := [i for i, source in zip(rows.numbers, sources, strict=True) if not source.strip()]:
        raise ValueError(f"row {empty[0]} of {path} has no text; remove it")
    own = None if length_column is None else rows.lengths(length_column, ranges)
    if own and len({isinstance(length, tuple) for length in own}) > 1:
        i, length = next(row for row in zip(rows.numbers, own, strict=True) if not isinstance(row[1], tuple))
        rule = f"{length_column!r} must hold a range in each row or in none"
        raise ValueError(f"row {i} of {rows.path}: {rule}, got {length}; write {length}-{length}")
    references = None if reference_column is None else rows.texts(reference_column)
    added = ["requested", "output", "length", *added]
    names = {name: prefix + name for name in added if name != "requested" or prefix + name != length_column}
    if taken := [name for name in names.values() if name in rows.columns]:
        raise ValueError(f"{path} has columns {', '.join(taken)}, as the output; give --column_prefix generated_")
    if "source" not in rows.columns:
        names["source"] = "source"
    return [
        Request(source, length, references[i] if references else None, number, _as_json(rows.values[i]), names)
        for i, (number, source) in enumerate(zip(rows.numbers, sources, strict=True))
        for length in (lengths if own is None else [own[i]])
    ]


def _as_json(row: Mapping[str, Any]) -> str:
    """Return a row as JSON, without its braces."""
    return json.dumps(row, ensure_ascii=False)[1:-1]


def _kind_of(path: str, kinds: Sequence[str]) -> str:
    """Return the kind of a file from its extension before `.gz`. Raise an error if there is no such file or kind."""
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"there is no data file {path}")
    kind = (Path(file.stem).suffix if file.suffix == ".gz" else file.suffix)[1:]
    if kind not in kinds or path.endswith(".parquet.gz"):
        endings = ", ".join(f".{kind}" for kind in kinds)
        raise ValueError(f"{path} must end in {endings} (but for .parquet also .gz), got {file.suffix!r}")
    return kind


@contextmanager
def _with_file_name(path: str, kind: str) -> Iterator[None]:
    """Turn errors of a reader into `ValueError`, with the file name and advice."""
    try:
        yield
    except (_NoRows, StopIteration):  # `datasets` raises `StopIteration` for an empty file
        raise ValueError(f"{path} has no rows") from None
    except (ValueError, OSError, EOFError, RecursionError, zlib.error, csv.Error) as error:
        cause = error.__cause__ or error
        wrong = isinstance(cause, UnicodeDecodeError) or _is_utf16(path, kind)  # such as cp1252 of Excel
        advice = "save it as UTF-8" if wrong else "correct or remove the broken row"
        raise ValueError(f"{path} could not be read as {kind}: {cause}; {advice}") from error


def _is_utf16(path: str, kind: str) -> bool:
    """Return whether the first bytes of a text file look like UTF-16, with or without a byte order mark."""
    if kind == "parquet" or path.endswith(".gz"):
        return False
    with open(path, "rb") as file:
        head = file.read(64)
    return b"\0" in head or head[:2] in (b"\xff\xfe", b"\xfe\xff")


def _open(path: str, newline: str | None = None) -> IO[str]:
    if path.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline=newline)
    return open(path, encoding="utf-8-sig", newline=newline)


def _text_rows(path: str) -> Iterator[dict]:
    with _open(path) as file:
        yield from ({"source": line.removesuffix("\n")} for line in file)  # a form feed does not end a line


def _json_rows(path: str) -> Iterator[dict]:
    with _open(path) as file:
        lines = enumerate(file, start=1)
        start, first = next(((number, line) for number, line in lines if line.strip()), (1, ""))
        if first.lstrip().startswith("["):
            first += file.read()
        for number, line in chain([(start, first)], lines):
            if line.strip():
                try:
                    found = json.loads(line, object_pairs_hook=_object)
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from None
                for row in found if isinstance(found, list) else [found]:
                    if not isinstance(row, dict):
                        raise ValueError(f"a row must be an object, got {str(row)[:40]}")
                    yield row


def _object(pairs: list[tuple[str, Any]]) -> dict:
    _check_names([name for name, _ in pairs])  # a dictionary would keep only the last value of a name
    return dict(pairs)


def _csv_rows(path: str) -> Iterator[dict[str, str]]:
    csv.field_size_limit(2**31 - 1)  # a text may be longer than the default of 128 KiB
    with _open(path, newline="") as file:
        reader = csv.reader(file, strict=True)
        header = next(reader, [])
        _check_names(header)
        for cells in filter(None, reader):
            if len(cells) != len(header):
                raise ValueError(f"line {reader.line_num} has {len(cells)} cells, the header has {len(header)}")
            yield dict(zip(header, cells, strict=True))


def _check_names(names: list[str]) -> None:
    """Raise `ValueError` if a name occurs twice."""
    if len(set(names)) < len(names):
        raise ValueError(f"two values have the name {max(names, key=names.count)!r}")


def _parquet_rows(path: str) -> Iterator[dict]:
    rows = _dataset(path, "parquet")
    # JSON has no NaN, so NaN becomes `None`
    return (json.loads(json.dumps(row, default=_as_text), parse_constant=lambda _: None) for row in rows)


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        raise ValueError(f"a column must hold text or numbers, got bytes {value[:20]!r}; decode or drop it")
    return str(value)  # dates and decimals become text


_READERS: dict[str, Callable[[str], Iterator[dict]]] = {
    "json": _json_rows,
    "jsonl": _json_rows,
    "csv": _csv_rows,
    "parquet": _parquet_rows,
    "txt": _text_rows,
}
