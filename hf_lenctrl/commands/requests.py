"""What `generate` and `evaluate` read: a user's rows as the file has them, so that they can be written unchanged."""

import csv
import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any

from ..inference.sources import check_range
from ..length_units import is_valid
from .row_files import ROW_FILES, csv_rows, kind_of_file, read_parquet


class Rows:
    """
    Rows of a file. Nothing is converted but what `texts` and `lengths` return.

    Args:
        path (`str`): json, jsonl, csv or parquet; with `plain_text` also txt, one text a line. Each may end in `.gz`.
        plain_text (`bool`, *optional*, defaults to `False`): Read txt too.

    Attributes:
        columns (`list[str]`): Names of the columns; `["source"]` of plain text.
        values (`list[dict]`): The rows; the cells of csv are strings.
        json (`list[str]`): Each row as JSON, without its braces: of json and jsonl the file's own characters.

    Raises:
        `FileNotFoundError`: for a file that is not there.
        `ValueError`: for another kind of file, one that cannot be read, or one without rows.
    """

    def __init__(self, path: str, plain_text: bool = False):
        self.path, self.kind = path, kind_of_file(path, [*(["txt"] if plain_text else []), *ROW_FILES])
        try:
            rows = list(_READERS[self.kind](path))
        except (ValueError, OSError, EOFError, RecursionError, zlib.error, csv.Error) as error:
            why = "its values are nested too deeply" if isinstance(error, RecursionError) else error
            raise ValueError(
                f"{path} could not be read as {self.kind}: {why}; mend or remove the broken row"
            ) from error
        if not rows:
            raise ValueError(f"{path} has no rows")
        self.values, self.json = [values for values, _ in rows], [text for _, text in rows]
        self.columns: list[str] = list(dict.fromkeys(chain.from_iterable(self.values)))

    def __len__(self):
        return len(self.values)

    def leave_out_dropped(self) -> None:
        """Leave out the rows that a run did not test, which `dropped` says in its `test_outputs.jsonl`."""
        kept = [i for i, row in enumerate(self.values) if row.get("output") is not None or not row.get("dropped")]
        self.values, self.json = [self.values[i] for i in kept], [self.json[i] for i in kept]

    def column(self, name: str) -> list:
        """Values of a column, `None` where a row lacks it. Raises `ValueError` for a column that no row has."""
        if name not in self.columns and self.kind == "txt":
            raise ValueError(f"{self.path} is plain text and has no column {name!r}; use jsonl")
        if name not in self.columns:
            raise ValueError(f"{self.path} has no column {name!r}, only {', '.join(self.columns)}")
        return [row.get(name) for row in self.values]

    def texts(self, name: str) -> list[str]:
        """A column of texts. Raises `ValueError` for a row that holds none."""
        texts = self.column(name)
        for i, text in enumerate(texts, start=1):
            if not isinstance(text, str):
                raise ValueError(f"row {i} of {self.path}: {name!r} must hold text, got {text!r}")
        return texts

    def lengths(self, name: str, ranges: bool = False) -> list:
        """
        A column of lengths: `40`, and `40.0` or `"40"` for it; or with `ranges` of ranges, `[30, 42]` or `"30-42"`.
        Raises `ValueError` for a row that holds none.
        """
        lengths: list = []
        for i, value in enumerate(self.column(name), start=1):
            try:
                lengths.append(length_or_range(value))
                if not ranges and isinstance(lengths[-1], tuple):
                    raise ValueError
            except (TypeError, ValueError, OverflowError):
                raise ValueError(
                    f"row {i} of {self.path}: {name!r} must hold an integer of at least 1"
                    f"{', or a range of them' if ranges else ''}, got {value!r}"
                ) from None
        kinds = [isinstance(length, tuple) for length in lengths]
        if any(kinds) and not all(kinds):
            raise ValueError(f"{self.path}: {name!r} must hold a length for every row or a range for every row")
        return lengths


def length_or_range(value) -> int | tuple[int, int]:
    """
    A length, `40`, `40.0` or `"40"`, or a range, `[30, 42]` or `"30-42"`. Raises `TypeError`, `ValueError` or
    `OverflowError` for anything else.
    """
    ends = value.split("-") if isinstance(value, str) and value.count("-") == 1 and value[0] != "-" else value
    if isinstance(ends, list):
        low, high = map(length_or_range, ends)
        check_range((low, high))
        return low, high  # type: ignore[return-value]
    number = float(value) if isinstance(value, str) else value
    if isinstance(number, bool) or number < 1 or number != int(number):
        raise ValueError
    return int(number)


def _open(path: str, newline: str | None = None) -> IO[str]:
    opener: Any = gzip.open if path.endswith(".gz") else open
    return opener(path, "rt", encoding="utf-8-sig", newline=newline)


def _text_rows(path: str) -> Iterator[tuple[dict, str]]:
    with _open(path) as file:
        lines = file.read().split("\n")  # `splitlines` splits at form feeds and Unicode separators too
    for line in lines if lines[-1] else lines[:-1]:
        yield {"source": line}, as_json({"source": line})


def _json_rows(path: str) -> Iterator[tuple[dict, str]]:
    with _open(path, newline="\n") as file:
        text = file.read()
    rows = _elements(text) if text.lstrip().startswith("[") else _values(text)
    for row, written in rows:
        if not isinstance(row, dict):
            raise ValueError(f"a row must be an object, got {written[:40]}")
        yield row, written[1:-1].strip()


def _values(text: str) -> Iterator[tuple[Any, str]]:
    """The values of JSON lines, and how each is written."""
    for number, line in enumerate(text.split("\n"), start=1):
        if written := line.strip():
            try:
                yield json.loads(written), written
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number}: {error.msg} at character {error.pos + 1}") from error


def _elements(text: str) -> Iterator[tuple[Any, str]]:
    """The elements of a JSON list, and how each is written, on one line."""
    json.loads(text)  # it is a list, or this raises
    decode, gap = json.JSONDecoder().raw_decode, re.compile(r"[\s,]*")
    position = text.index("[") + 1
    while text[position := gap.match(text, position).end()] != "]":  # type: ignore[union-attr]
        value, end = decode(text, position)
        yield value, re.sub(r"\s*[\r\n]\s*", " ", text[position:end])  # no JSON string holds a line break
        position = end


def _csv_rows(path: str) -> Iterator[tuple[dict, str]]:
    return ((row, as_json(row)) for row in csv_rows(path))


def _parquet_rows(path: str) -> Iterator[tuple[dict, str]]:
    return ((row, as_json(_without_nan(row))) for row in read_parquet(path).to_pylist())


def _without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_READERS = {"txt": _text_rows, "json": _json_rows, "jsonl": _json_rows, "csv": _csv_rows, "parquet": _parquet_rows}


def as_json(row: Mapping[str, Any]) -> str:
    """A row as JSON, without its braces. Raises `ValueError` for bytes."""
    return json.dumps(row, ensure_ascii=False, default=_as_text)[1:-1]


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        raise ValueError(f"a column must hold text or numbers, got bytes {value[:20]!r}; decode or drop it")
    return str(value)


@dataclass
class Request:
    """
    A text to write, and the output's row for it.

    Args:
        source (`str`): Text to write from.
        length (`int`, `tuple` or `None`): Units or a range, where they are known.
        reference (`str` or `None`): Text whose length is requested.
        columns (`str`): The row as JSON, without braces.
        names (`Mapping[str, str]`): Columns that an output adds, and their names in the file.
    """

    source: str
    length: Any
    reference: str | None
    columns: str
    names: Mapping[str, str]

    def beginning(self) -> str:
        """The output's row up to where it is not yet known."""
        known = {"source": self.source} | ({} if self.length is None else {"requested": self.length})
        return self.line(known)[:-1]

    def line(self, output: Mapping[str, Any]) -> str:
        """The row, unchanged, and the output, as a line of JSON."""
        added = as_json({self.names[name]: value for name, value in output.items() if name in self.names})
        return "{" + ", ".join(filter(None, [self.columns, added])) + "}"


def read_requests(
    path: str,
    source_column: str = "source",
    length_column: str | None = None,
    reference_column: str | None = None,
    *,
    lengths: Sequence = (None,),
    prefix: str = "",
    ranked: bool = False,
) -> list[Request]:
    """
    Texts to write from, of a text file (one a line) or a file of rows; every fault is told by its row.

    Args:
        path (`str`): See `Rows`.
        source_column (`str`, *optional*, defaults to `"source"`): Column of the texts.
        length_column (`str`, *optional*): Column with the length or the range requested for each row.
        reference_column (`str`, *optional*): Column of the references.
        lengths (`Sequence[int]`, *optional*): Without `length_column`: each row is written at each of these.
        prefix (`str`, *optional*): Of the names of the columns that an output adds.
        ranked (`bool`, *optional*, defaults to `False`): An output adds its rank among those of the request,
            its score, and the number of the input row, too.

    Raises:
        `FileNotFoundError`: for a file that is not there.
        `ValueError`: for a file without rows, a missing column, one that has the name of an added one, a row without
            text, or with a wrong length.
    """
    rows = Rows(path, plain_text=True)
    source_column = "source" if rows.kind == "txt" else source_column
    for i, text in enumerate(rows.column(source_column), start=1):
        if text is None or (isinstance(text, str) and not text.strip()):
            raise ValueError(f"row {i} of {path} has no text; remove it")
    sources = rows.texts(source_column)
    for i, source in enumerate(sources, start=1):
        if not is_valid(source):
            raise ValueError(f"row {i} of {path}: {source_column!r} must be valid Unicode, got {source!r}")
    own = None if length_column is None else rows.lengths(length_column, ranges=True)
    references = None if reference_column is None else rows.texts(reference_column)
    names = {
        name: prefix + name
        for name in ("requested", "output", "length", *(["rank", "score", "row"] if ranked else []))
    }
    if names["requested"] == length_column:
        del names["requested"]  # the row has it
    taken = [name for name in names.values() if name in rows.columns]
    if taken:
        raise ValueError(
            f"{path} has columns {', '.join(taken)}, and so has the output; rename yours, or the output's by "
            "--column_prefix generated_"
        )
    if "source" not in rows.columns:
        names["source"] = "source"
    return [
        Request(source, length, references[i] if references else None, rows.json[i], names)
        for i, source in enumerate(sources)
        for length in (lengths if own is None else [own[i]])
    ]
