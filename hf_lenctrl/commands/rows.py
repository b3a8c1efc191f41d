"""Rows of a user's files: a `Dataset` to train on, or values that `generate` and `evaluate` pass on."""

import csv
import glob
import gzip
import json
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..inference.sources import length_or_range


if TYPE_CHECKING:  # the core install has neither
    import pyarrow.parquet as pq
    from datasets import Dataset


ROW_FILES = ("json", "jsonl", "csv", "parquet")


def holds_null(row: int, path: str, name: str) -> str:
    """Return what to say of a text with U+0000, which a file of UTF-16 has where UTF-8 is read."""
    return f"row {row} of {path}: {name!r} holds U+0000; save the file as UTF-8, or take the character out"


def load_rows(path: str) -> "Dataset":
    """Rows of a local json, jsonl, csv or parquet file, or one of these with `.gz`, mapped into memory."""
    from datasets import Dataset, load_dataset
    from datasets.exceptions import DatasetGenerationError

    kind = _kind_of(path, ROW_FILES)
    with _told(path, kind):
        if path.endswith(".parquet.gz"):  # `datasets` does not unpack it
            return Dataset(_parquet_file(path).read())
        if kind == "parquet":
            _parquet_file(path)
        else:  # pandas would move the cells of a row that has more or fewer, and take the last of two values
            deque(_READERS[kind](path), maxlen=0)
        # pandas would take texts such as "NA" and "null" for missing ones
        options: dict[str, Any] = {"keep_default_na": False} if kind == "csv" else {}
        builder = "json" if kind == "jsonl" else kind
        files = glob.escape(os.path.abspath(path))
        try:
            rows: Any = load_dataset(builder, data_files=files, split="train", **options)
        except DatasetGenerationError as error:
            raise ValueError(error.__cause__ or error) from error.__cause__
        rows.data.validate(full=True)  # the JSON reader does not check that texts are UTF-8
        return rows


class Rows:
    """
    The rows of a file as `values`, dictionaries, with the names of their `columns`. Nothing infers types: a date stays
    the text that it is in the file. The file is json, jsonl, csv or parquet, with `plain_text` also txt, one `source`
    a line; each may end in `.gz`. `blocks` reads it in parts, of which the `first` row has a number.
    """

    def __init__(self, path: str, plain_text: bool = False):
        kind = _kind_of(path, [*(["txt"] if plain_text else []), *ROW_FILES])
        with _told(path, kind):
            self._set(path, kind, list(_READERS[kind](path)), first=1)
        if not self.values:
            raise ValueError(f"{path} has no rows")

    def _set(self, path: str, kind: str, values: list[dict], first: int) -> None:
        self.path, self.kind, self.values, self.first = path, kind, values, first
        self.columns: list[str] = list(dict.fromkeys(chain.from_iterable(values)))
        self.numbers, self.read = list(range(first, first + len(values))), len(values)

    def keep(self, chosen: Callable[[dict], bool]) -> None:
        """Leave out the other rows; each keeps its number, and `read` says how many there were."""
        pairs = [(n, row) for n, row in zip(self.numbers, self.values, strict=True) if chosen(row)]
        if not pairs:
            raise ValueError(f"no row of {self.path} is left: none of its {self.read} rows has a text")
        self.numbers, self.values = map(list, zip(*pairs, strict=True))

    @classmethod
    def blocks(cls, path: str, size: int) -> "Iterator[Rows]":
        """So many rows at a time of a file, plain text too, so that memory does not grow with the file."""
        kind = _kind_of(path, ["txt", *ROW_FILES])
        with _told(path, kind):
            values, first = _READERS[kind](path), 1
            while block := list(islice(values, size)):
                rows = cls.__new__(cls)
                rows._set(path, kind, block, first)
                yield rows
                first += len(block)
        if first == 1:
            raise ValueError(f"{path} has no rows")

    def __len__(self):
        return len(self.values)

    def column(self, name: str) -> list:
        """Values of a column, `None` where a row lacks it."""
        if name not in self.columns:
            raise ValueError(f"{self.path} has no column {name!r}, only {', '.join(self.columns)}")
        return [row.get(name) for row in self.values]

    def texts(self, name: str) -> list[str]:
        """A column of texts."""
        texts = self.column(name)
        for i, text in zip(self.numbers, texts, strict=True):
            if not isinstance(text, str):
                raise ValueError(f"row {i} of {self.path}: {name!r} must hold text, got {text!r}")
            if "\0" in text:
                raise ValueError(holds_null(i, self.path, name))
        return texts

    def lengths(self, name: str, ranges: bool = False) -> list:
        """A column of lengths, `40`, `40.0` or `"40"`, or with `ranges` of ranges, `[30, 42]` or `"30-42"`."""
        lengths: list = []
        for i, value in zip(self.numbers, self.column(name), strict=True):
            try:
                lengths.append(length_or_range(value))
                if not ranges and isinstance(lengths[-1], tuple):
                    raise ValueError
            except (TypeError, ValueError, OverflowError):
                rule = f"an integer of at least 1{', or a range of them' if ranges else ''}"
                raise ValueError(f"row {i} of {self.path}: {name!r} must hold {rule}, got {value!r}") from None
        return lengths


@dataclass
class Request:
    """A text to generate from, and the output's row for it."""

    source: str
    length: Any  # units or a range, where they are known
    reference: str | None  # whose length is requested
    number: int  # of the row in the file, from 1
    columns: str  # the row as JSON, without braces
    names: Mapping[str, str]  # of the columns that an output adds: in the file

    def line(self, output: Mapping[str, Any]) -> str:
        """The row and the output, as a line of JSON."""
        added = _as_json({self.names[name]: value for name, value in output.items() if name in self.names})
        return "{" + ", ".join(filter(None, [self.columns, added])) + "}"


def read_requests(
    path: str,
    source_column: str = "source",
    length_column: str | None = None,
    reference_column: str | None = None,
    *,
    lengths: Sequence = (None,),
    prefix: str = "",
    added: Sequence[str] = (),
) -> list[Request]:
    """
    Texts to generate from, of a text file (one a line) or a file of rows: of each row one, at the length in
    `length_column`, or without it one at each of `lengths`. An output adds columns, whose names begin with `prefix`;
    those of `added` are among them, such as its `score`.
    """
    return requests_of(
        Rows(path, plain_text=True),
        source_column,
        length_column,
        reference_column,
        lengths=lengths,
        prefix=prefix,
        added=added,
    )


def requests_of(
    rows: Rows,
    source_column: str,
    length_column: str | None,
    reference_column: str | None = None,
    *,
    lengths: Sequence = (None,),
    prefix: str = "",
    added: Sequence[str] = (),
) -> list[Request]:
    """Those of rows, see `read_requests`; an output adds the columns `added` too."""
    path = rows.path
    sources = rows.texts("source" if rows.kind == "txt" else source_column)
    if empty := [i for i, source in enumerate(sources, start=rows.first) if not source.strip()]:
        raise ValueError(f"row {empty[0]} of {path} has no text; remove it")
    own = None if length_column is None else rows.lengths(length_column, ranges=True)
    references = None if reference_column is None else rows.texts(reference_column)
    added = ["requested", "output", "length", *added]
    names = {name: prefix + name for name in added if name != "requested" or prefix + name != length_column}
    if taken := [name for name in names.values() if name in rows.columns]:
        raise ValueError(f"{path} has columns {', '.join(taken)}, as the output; give --column_prefix generated_")
    if "source" not in rows.columns:
        names["source"] = "source"
    return [
        Request(source, length, references[i] if references else None, rows.first + i, _as_json(rows.values[i]), names)
        for i, source in enumerate(sources)
        for length in (lengths if own is None else [own[i]])
    ]


def _as_json(row: Mapping[str, Any]) -> str:
    """A row as JSON, without its braces."""
    return json.dumps(row, ensure_ascii=False)[1:-1]


def _kind_of(path: str, kinds: Sequence[str]) -> str:
    """What a file holds, by its name without `.gz`: `"jsonl"`."""
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"there is no data file {path}")
    kind = (Path(file.stem).suffix if file.suffix == ".gz" else file.suffix)[1:]
    if kind not in kinds:
        endings = ", ".join(f".{kind}" for kind in kinds)
        raise ValueError(f"{path} must end in {endings} (or these and .gz), got {file.suffix!r}")
    return kind


@contextmanager
def _told(path: str, kind: str) -> Iterator[None]:
    """Name the file in what its reader says."""
    try:
        yield
    except StopIteration:  # from `datasets`, for an empty file
        raise ValueError(f"{path} has no rows") from None
    except (ValueError, OSError, EOFError, RecursionError, zlib.error, csv.Error) as error:
        cause: Any = error.__cause__ or error
        advice = "save it as UTF-8" if _is_utf16(path, kind) else "mend or remove the broken row"
        raise ValueError(f"{path} could not be read as {kind}: {cause}; {advice}") from error


def _is_utf16(path: str, kind: str) -> bool:
    """Return whether a text file begins as one of UTF-16 does, with or without a mark."""
    if kind == "parquet" or path.endswith(".gz"):
        return False
    with open(path, "rb") as file:
        head = file.read(64)
    return b"\0" in head or head[:2] in (b"\xff\xfe", b"\xfe\xff")


def _open(path: str, newline: str | None = None) -> IO[str]:
    opener: Any = gzip.open if path.endswith(".gz") else open
    return opener(path, "rt", encoding="utf-8-sig", newline=newline)


def _text_rows(path: str) -> Iterator[dict]:
    with _open(path) as file:
        yield from ({"source": line.removesuffix("\n")} for line in file)  # form feeds end none of these


def _json_rows(path: str) -> Iterator[dict]:
    doubled: list[tuple[str, dict]] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict:
        found = dict(pairs)
        if len(found) < len(pairs):  # a name again, whose value would be the last
            names = [name for name, _ in pairs]
            doubled.append((max(names, key=names.count), found))
        return found

    count = 0
    with _open(path) as file:
        lines = enumerate(file, start=1)
        start, first = next(((number, line) for number, line in lines if line.strip()), (1, ""))
        if first.lstrip().startswith("["):
            first += file.read()
        for number, line in chain([(start, first)], lines):
            if line.strip():
                try:
                    found = json.loads(line, object_pairs_hook=unique)
                except json.JSONDecodeError as error:
                    raise ValueError(f"line {number}: {error}") from None
                for row in found if isinstance(found, list) else [found]:
                    count += 1
                    if not isinstance(row, dict):
                        raise ValueError(f"a row must be an object, got {str(row)[:40]}")
                    if doubled and _holds(row, doubled[0][1]):
                        raise ValueError(f"row {count} has two values of the name {doubled[0][0]!r}")
                    yield row


def _holds(value: Any, part: dict) -> bool:
    """Return whether a value of JSON is or has an object, that very one."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is part or any(_holds(each, part) for each in parts)


def _csv_rows(path: str) -> Iterator[dict[str, str]]:
    csv.field_size_limit(2**31 - 1)  # texts may be longer than the default of 128 KiB
    with _open(path, newline="") as file:
        reader = csv.reader(file, strict=True)
        header = next(reader, [])
        _check_names(header)
        for cells in filter(None, reader):
            if len(cells) != len(header):
                raise ValueError(f"line {reader.line_num} has {len(cells)} cells, the header has {len(header)}")
            yield dict(zip(header, cells, strict=True))


def _parquet_file(path: str) -> "pq.ParquetFile":
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError('parquet files need pyarrow: pip install "hf_lenctrl[train]"') from error
    file = pq.ParquetFile(BytesIO(gzip.decompress(Path(path).read_bytes())) if path.endswith(".gz") else path)
    kinds: list[Any] = [pa.struct(list(file.schema_arrow))]
    for kind in kinds:  # and those within
        fields = [kind.field(i) for i in range(kind.num_fields)]
        _check_names([field.name for field in fields])
        kinds += [field.type for field in fields]
    return file


def _check_names(names: list[str]) -> None:
    """Raise `ValueError` for a column that is there twice."""
    if len(set(names)) < len(names):
        raise ValueError(f"two columns have the name {max(names, key=names.count)!r}")


def _parquet_rows(path: str) -> Iterator[dict]:
    for batch in _parquet_file(path).iter_batches(batch_size=1024):
        for row in batch.to_pylist():  # JSON has no NaN
            yield json.loads(json.dumps(row, default=_as_text), parse_constant=lambda _: None)


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        raise ValueError(f"a column must hold text or numbers, got bytes {value[:20]!r}; decode or drop it")
    return str(value)  # dates and decimals


_READERS: dict[str, Any] = {"json": _json_rows, "jsonl": _json_rows, "csv": _csv_rows}
_READERS |= {"parquet": _parquet_rows, "txt": _text_rows}
