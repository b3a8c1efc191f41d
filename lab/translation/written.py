"""
Read the data set `data/everyday_en_de_fr`, which was written for the translator; its card says what it holds.

A row of `train` and `validation` has German, French, English, a shorter and a longer English text of the same meaning;
the last two may be empty. The list `rewordings` has more English texts of other lengths for some English sentences.
The list `condensed` has longer sentences with shorter texts that keep the whole meaning; a row of it has German or
French.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet


FOLDER = Path(__file__).resolve().parents[2] / "data" / "everyday_en_de_fr"
TEXTS = ("de", "fr", "en", "shorter", "longer")
# shares of the English text's characters; a shorter text says less, a longer one is wordy
SHORTEST, LONGEST = 0.6, 1.45


def read(name: str, folder: Path | None = None) -> list[dict[str, Any]]:
    """Return the rows of a split, `"train"` or `"validation"`, or of a list, such as `"words"`."""
    (path,) = (folder or FOLDER).glob(f"{name}*.parquet")
    return pyarrow.parquet.read_table(path).to_pylist()


def save(rows: list[dict[str, Any]], path: Path) -> None:
    """Write a file of the data set; the same rows and version of pyarrow make the same bytes."""
    table = pyarrow.Table.from_pylist(rows)
    # each column is one page, because each page is compressed separately
    options = {"row_group_size": len(rows), "data_page_size": 2**27, "use_dictionary": ["kind", "subject"]}
    pyarrow.parquet.write_table(table, path, compression="brotli", compression_level=11, **options)


def lines(split: str = "train", folder: Path | None = None) -> Iterator[tuple[str, ...]]:
    """Yield the five texts of each row of a split."""
    for row in read(split, folder):
        yield tuple(row[column] for column in TEXTS)


def pairs(code: str, split: str = "train", folder: Path | None = None) -> Iterator[dict[str, str]]:
    """Yield the pairs of a language, `"de"` or `"fr"`, to English, with the columns `source` and `target`."""
    for line in lines(split, folder):
        yield {"source": line[("de", "fr").index(code)], "target": line[2]}
    if split == "train":
        for row in condensed(code, folder):
            yield {"source": row[code], "target": row["en"]}


def lengths(code: str, folder: Path | None = None) -> Iterator[dict[str, str]]:
    """Yield the same sources with the English texts of other lengths."""
    more = rewordings(folder)
    for line in lines(folder=folder):
        for text in _of_its_length((*line[2:], *more.get(line[2], [])))[1:]:
            yield {"source": line[("de", "fr").index(code)], "target": text}
    for row in condensed(code, folder):
        for text in _of_its_length((row["en"], *row["texts"]))[1:]:
            yield {"source": row[code], "target": text}


def condensed(code: str, folder: Path | None = None) -> list[dict[str, Any]]:
    """Return the rows of the list `condensed` that have a sentence of a language, `"de"` or `"fr"`."""
    there = (folder or FOLDER) / "condensed.parquet"
    return [row for row in read("condensed", folder) if row[code]] if there.is_file() else []


def rewordings(folder: Path | None = None) -> dict[str, list[str]]:
    """Return the texts of the list `rewordings` for each of its English sentences."""
    there = (folder or FOLDER) / "rewordings.parquet"
    return {row["en"]: row["texts"] for row in read("rewordings", folder)} if there.is_file() else {}


def _of_its_length(texts: tuple[str, ...]) -> list[str]:
    """Return the English text, and which of the others it has within `SHORTEST` and `LONGEST`."""
    return [text for text in texts if SHORTEST * len(texts[0]) <= len(text) <= LONGEST * len(texts[0])]
