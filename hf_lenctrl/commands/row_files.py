"""Files of rows: json, jsonl, csv and parquet, each also with `.gz`."""

import contextlib
import csv
import gzip
import hashlib
import os
import re
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, load_dataset
from datasets.exceptions import DatasetGenerationError


ROW_FILES = ("json", "jsonl", "csv", "parquet")


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
        if kind == "csv":  # pandas would move the cells of a row that has more or fewer
            deque(csv_rows(path), maxlen=0)
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
    except (DatasetGenerationError, ValueError, OSError, EOFError, RecursionError, zlib.error, csv.Error) as error:
        cause: Any = error.__cause__ or error
        if isinstance(cause, RecursionError):
            cause = "its values are nested too deeply"
        if "corresponds to no data" in str(cause):
            raise ValueError(f"{path} has no rows") from None
        raise ValueError(f"{path} could not be read as {kind}: {cause}; mend or remove the broken row") from error
    return rows


def csv_rows(path: str) -> Iterator[dict[str, str]]:
    """Rows of a csv file. Raises `ValueError` for one with more or fewer cells than the header."""
    csv.field_size_limit(2**31 - 1)  # texts may be longer than the default of 128 KiB
    opener: Any = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        header = next(reader, [])
        other = next((mark for mark in (";", "\t") if len(header) == 1 and mark in header[0]), None)
        if other is not None:
            raise ValueError(f"its columns are separated by {other!r}; save it with commas, or as jsonl")
        if len(set(header)) < len(header):
            raise ValueError(f"two columns have one name: {', '.join(header)}")
        for cells in filter(None, reader):
            if len(cells) != len(header):
                raise ValueError(f"line {reader.line_num} has {len(cells)} cells, the header has {len(header)}")
            yield dict(zip(header, cells, strict=True))


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
