"""A folder of JSON lines in parts, each written atomically; a stopped command finds its rows by their keys."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .locking import kept
from .output_file import begin_folder, write_whole
from .rows import Request


KEY = 16  # bytes


def _digest(text: str, *more: bytes) -> bytes:
    return hashlib.blake2b(b"".join([text.encode(errors="surrogatepass"), *more]), digest_size=KEY).digest()


def _as_array(keys: Iterable[bytes]) -> np.ndarray:
    buffer = bytearray()  # this takes 16 bytes a row, a list would take 60
    for key in keys:
        buffer += key
    return np.frombuffer(buffer, f"S{KEY}")  # numpy can sort this type


def _occurrences(keys: np.ndarray) -> np.ndarray:
    """Count for each key the equal keys before it."""
    order = np.argsort(keys, kind="stable")
    ordered, places = keys[order], np.arange(len(keys))
    first = np.r_[True, ordered[1:] != ordered[:-1]]
    found = np.empty(len(keys), dtype=np.int64)
    found[order] = places - np.maximum.accumulate(np.where(first, places, 0))
    return found


def keys_of(requests: Iterable[Request], column: str | None = None) -> np.ndarray:
    """
    Return the key of each row, of shape `(rows,)`, 16 bytes: a hash of a `column`, whose values must differ, or of the
    whole row and the number of equal rows before it. So a row keeps its key if later rows are added or removed.
    """
    if column is None:
        keys = _as_array(_digest(request.columns) for request in requests)
        counts = _occurrences(keys)
        return _as_array(_digest("", bytes(key), count.tobytes()) for key, count in zip(keys, counts, strict=True))
    keys = _as_array(_digest(_value(request, column)) for request in requests)
    counts = _occurrences(keys)
    if counts.any():
        last = int(np.argmax(counts > 0))
        first = int(np.argmax(keys == keys[last]))
        raise ValueError(f"rows {first + 1} and {last + 1} have one {column!r}; give a column whose values differ")
    return keys


def _value(request: Request, column: str) -> str:
    """Return the value of a row's key column, as JSON."""
    row = json.loads("{" + request.columns + "}")
    if row.get(column) is None:
        raise ValueError(f"row {request.number} has no {column!r}; give a column that each row has")
    return json.dumps(row[column])


class Parts:
    """
    A folder of parts, `part-<number of the first row>-<its keys>.jsonl`, whose names sort in the input's order. The
    options that they depend on are in `_run/`. `key` is the column that holds the key of each row.
    """

    def __init__(self, folder: str | Path, options: Mapping[str, Any], key: str):
        self.folder, self.key = Path(folder), key
        begin_folder(folder, options, begun=bool(self.files()))

    def files(self) -> list[Path]:
        """Return the paths of the complete parts."""
        return sorted(self.folder.glob("part-*.jsonl"))

    def lines(self) -> Iterator[dict]:
        """Yield the rows of all parts."""
        for file in self.files():
            with file.open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)

    def done(self, keyed: bool) -> np.ndarray:
        """Return the keys of the written rows; with `keyed` the column is the input's, and its values are hashed."""
        return _as_array(
            _digest(json.dumps(row[self.key])) if keyed else bytes.fromhex(row[self.key]) for row in self.lines()
        )

    def write(self, first: int, keys: Iterable[str], lines: Iterable[str]) -> None:
        """Write a part, named after its rows, so that the same rows never make a second part."""
        name = f"part-{first:09}-{_digest(' '.join(keys)).hex()[:8]}.jsonl"
        # this command holds the lock of the folder, so no other one uses the name in `_run/`
        write_whole(self.folder / name, "".join(f"{line}\n" for line in lines), kept(self.folder, "part"))
