"""
The sentences of the folder written/, by the makers of this package: German, French, English in two or three lengths.

A line has five fields with tabs between them: German, French, English, a shorter and a longer English text of the same
meaning; the last two may be empty. Collections of sentences lack the words of daily life; these lines were written to
have them, by subject, and by lists of frequent words that the collections lack (the files list_*.tsv).
"""

from collections.abc import Iterator
from pathlib import Path


FOLDER = Path(__file__).with_name("written")
SHORTEST, LONGEST = 0.6, 1.45  # of the English text's characters; a text beyond says less, or is wordy


def lines(folder: Path = FOLDER) -> Iterator[tuple[str, str, str, str, str]]:
    """The fields of each line."""
    for path in sorted(folder.glob("*.tsv")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            fields = [field.strip() for field in line.split("\t")]
            if len(fields) != 5 or not all(fields[:3]):
                raise ValueError(f"{path.name}, line {number} must have 5 fields, the first 3 not empty, got {line!r}")
            german, french, english, shorter, longer = fields
            yield german, french, english, shorter, longer


def pairs(code: str, folder: Path = FOLDER) -> Iterator[dict[str, str]]:
    """The pairs of a language, `"de"` or `"fr"`, to English, with the columns `source` and `target`."""
    for line in lines(folder):
        yield {"source": line[("de", "fr").index(code)], "target": line[2]}


def lengths(code: str, folder: Path = FOLDER) -> Iterator[dict[str, str]]:
    """The same sources to the shorter and longer English texts."""
    for line in lines(folder):
        for text in _of_its_length(line[2:])[1:]:
            yield {"source": line[("de", "fr").index(code)], "target": text}


def several(folder: Path = FOLDER) -> list[tuple[str, list[str]]]:
    """Sources, German and French in turn, with two or three English texts; each English text is there once."""
    found = {}
    for number, line in enumerate(lines(folder)):
        texts = _of_its_length(line[2:])
        if len(texts) > 1:
            found[line[2]] = line[number % 2], texts
    return list(found.values())


def _of_its_length(texts: tuple[str, ...]) -> list[str]:
    """The English text, and which of the others it has within `SHORTEST` and `LONGEST`."""
    return [text for text in texts if SHORTEST * len(texts[0]) <= len(text) <= LONGEST * len(texts[0])]
