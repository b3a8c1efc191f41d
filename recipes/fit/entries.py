"""`Entry`, one string of a file; and `Catalogue`, the base class of all files of strings."""

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from files import splice, write


FUZZY = "fuzzy"  # the comment before a text that a person should check, in formats without another mark
BOMS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
NUMBER = r"(?P<number>\d{1,3}(?:[.,'’ \u00a0\u202f_]\d{3})+|\d+)"  # the number may have thousands separators
UNIT = (
    r"(?:(?:unicode|utf-?8|ascii|display|printable|visible|text)[ -])?"
    r"(?:characters?|chars?|chrs?|letters?|glyphs?|graphemes?|code ?points?|columns?|cols?"
    r"|Zeichen|Buchstaben?|Spalten?|Anschläge|caractères?|lettres?)\b"
)
# no other unit follows: the comment, the sentence or the line ends
END = (
    r"(?=\s*(?:\Z|[)\]};|\"”»]|,(?!\d)(?!\s*\d+\s*(?:,|or|and|und|oder)\b)|[.!](?:\s|\Z)|\s[-–—]\s+(?!\d)"
    r"|\n[ \t]*(?:\n|(?-i:(?![A-Z]{1,3}\b)[A-ZÄÖÜ\"\[(#@]))))"
)
TEXT = r"(?:text|string|label|message|translation|line|total|title|char(?:acter)?s?)"
SIZE = r"(?:length|len|width|limit|count|chars?|characters?|letters?|Zeichen(?:zahl|anzahl)?|(?:Text)?länge|Breite)"
MAXIMUM = (
    r"(?<![^\W_])(?:"
    r"m[aá]x(?:imum|imal(?:e[rsn]?)?|\.)?[\s_-]*(?:allowed |permitted )?(?:(?:number|count) of )?"
    rf"(?:(?:{TEXT}[\s_-]*)?{SIZE}\b)?\.?"
    rf"|(?:char(?:acter)?s?|length|len|width|text|string|label)[\s_-]*(?:limit|max(?:imum)?)\.?"
    r"|Maximallänge|Zeichen(?:limit|begrenzung)|(?:no|not) longer than|longueur maximale|limite de caractères"
    r")[\s:=(≤]*(?:(?:should be|must be|of|is|to|are|de|von|ist|est|beträgt)\b[\s:=]*)?"
)
LESS = r"(?P<less>(?:less|fewer|shorter) than|under|below)"
AT_MOST = (
    r"\b(?:at most|(?:no|not) (?:more|longer) than|up to|(?:not|n't|never) exceed|limit(?:ed)?(?: to| of| is|\s?[:=])?"
    rf"|restricted to|within|{LESS}|höchstens|bis zu|au plus|jusqu'à)\s+(?:of )?"
)
AFTER = r"[\s,(]*(?:max(?:imum|imal)?\b|limit\b|or (?:less|fewer)\b|at most\b|höchstens\b)"
OTHER_UNIT = re.compile(
    r"\s*(?:%|(?:[kMGT]i?B|bytes?|px|pixels?|pt|dp|sp|r?em|mm|cm|lines?|rows?|words?|files?|items?|entries|times"
    r"|seconds?|minutes?|hours?|days?|Zeilen?|Wörter|Dateien|Sekunden|Minuten|Stunden|Tage|lignes?|mots?|fichiers?)\b)",
    re.I,
)
LIMITS = [
    re.compile(pattern, re.I)
    for pattern in (
        rf"{MAXIMUM}{NUMBER}(?:[\s-]*\(?{UNIT}|{END})",
        rf"{AT_MOST}{NUMBER}[\s-]*{UNIT}",
        rf"(?<![\w.,-]){NUMBER}[\s-]*{UNIT}{AFTER}|(?<![\w.,-])(?P<bare>\d+)\s*max(?:imum\b|\.|\b){END}",
    )
]


def limit_of(comment: str) -> int | None:
    """
    Return the smallest maximum length that a comment states, or `None`.

    A number is a length if a unit of text follows it, or if nothing follows it.

    >>> limit_of("Max. length: 1,000"), limit_of("at most 12 characters"), limit_of("[CHAR LIMIT=30]")
    (1000, 12, 30)
    >>> limit_of("files of max 25 MB"), limit_of("max-width: 200px"), limit_of("at most 12 files")
    (None, None, None)
    """
    found = []
    lines = comment.splitlines()
    alone = [line for i, line in enumerate(lines) if not OTHER_UNIT.match("".join(lines[i + 1 : i + 2]))]
    for part in (comment, *alone):
        for match in (match for pattern in LIMITS for match in pattern.finditer(part)):
            groups = match.groupdict()
            # after a line with only the limit, anything but a unit may follow
            if part is comment or match[0] == part.strip():
                number = int(re.sub(r"\D", "", groups["number"] or groups["bare"]))
                found.append(number - bool(groups.get("less")))
    return min((number for number in found if number > 0), default=None)


@dataclass
class Entry:
    """
    A string of a file.

    Attributes:
        key (`str`): The name, unique in the file.
        source (`str`): The text to translate.
        target (`str`): The translation so far, or an empty text.
        comment (`str`): The comment in the file.
        fault (`str`): The reason why the string cannot be translated, or an empty text.
        marked (`bool`): Whether `&` or `_` before a letter marks an accelerator.
        fuzzy (`bool`): Whether the file marks the translation so far as fuzzy: a person should check it.
        plural (`str`): The name of the plural of which the string is a form, or an empty text.
        limits (`dict[str, int]`): The maximum in each unit, in formats that have a field for it.
        is_markup (`bool`): Whether `&lt;` in the texts means `<`.
    """

    key: str
    source: str
    target: str = ""
    comment: str = ""
    fault: str = ""
    marked: bool = False
    fuzzy: bool = field(default=False, compare=False)
    plural: str = ""
    limits: dict[str, int] = field(default_factory=dict)
    is_markup: bool = False

    @property
    def limit(self) -> int | None:
        """Return the maximum length that the comment states."""
        return limit_of(self.comment)


@dataclass
class Slot:
    """
    The place of an entry's text in its file.

    Attributes:
        span (`tuple[int, int]`): Start and end of the text in the file.
        written (`Callable`): Encodes a new text for the file; raises `ValueError` if the file cannot hold it.
        marks (`dict[tuple[int, int], str]`): Edits at other places that mark a new text as fuzzy.
        around (`tuple[str, str]`): The characters before and after a text that is missing in the file.
    """

    span: tuple[int, int]
    written: Callable[[str], str]
    marks: dict[tuple[int, int], str] = field(default_factory=dict)
    around: tuple[str, str] = ("", "")


def unique(key: str, taken) -> str:
    """Return a key, with a number if another string has the same key."""
    number, name = 1, key
    while name in taken:
        number += 1
        name = f"{key} ({number})"
    return name


class Catalogue:
    """
    A file of strings. A translation replaces the characters of its slot; every other part of the file stays.

    Attributes:
        field (`str`): The text that a translation replaces: `"source"`, or `"target"` in a file of two languages.
        takes (`tuple[str, ...]`): The options of `read` that the format accepts.
        errors (`str`): The error handler for characters that the encoding lacks.
        values (`int`): The number of values that are not texts.
    """

    field = "source"
    takes: tuple[str, ...] = ()
    errors = "strict"

    def __init__(self, path: str, **options: Any):
        self.path, self.options, self.values = path, options, 0
        raw = Path(path).read_bytes()
        self.bom = next((bom for bom in BOMS if raw.startswith(bom)), b"")
        self.encoding = BOMS[self.bom] if self.bom else self.encoding_of(raw)
        self.text = raw.removeprefix(self.bom).decode(self.encoding)
        self.newline = "\r\n" if "\r\n" in self.text else "\n"
        self.entries: list[Entry] = []
        self.slots: dict[str, Slot] = {}
        self.edits: dict[tuple[int, int], str] = {}
        self.filled: dict[str, dict[str, str]] = {}
        for row, slot in self.find():
            row.key = unique(row.key, self.slots)
            self.entries.append(row)
            self.slots[row.key] = slot

    def encoding_of(self, raw: bytes) -> str:
        """Return the encoding of a file without a byte order mark."""
        return "utf-8"

    def find(self) -> Iterator[tuple[Entry, Slot]]:
        """Find the strings of the file, each with its slot; raise `ValueError` for a file of another format."""
        raise NotImplementedError

    def set(self, row: Entry, text: str) -> None:
        """Fill in a translation, and mark it as fuzzy; raise `ValueError` if the file cannot hold it."""
        slot = self.slots[row.key]
        written = slot.written(text).join(slot.around)
        try:
            written.encode(self.encoding, self.errors)
        except UnicodeEncodeError as error:
            raise ValueError(f"the file is {self.encoding}, which has no {written[error.start]!r}") from error
        self.edits |= {slot.span: written, **slot.marks}
        self.filled[row.key] = {self.field: text}

    def copy(self, row: Entry, other: "Catalogue", theirs: Entry) -> None:
        """Copy a string of another file, with its fuzzy mark, as the translation so far."""
        slot, there = self.slots[row.key], other.slots[theirs.key]
        raw = "" if any(there.around) else other.text[slice(*there.span)]
        self.edits[slot.span] = raw.join(slot.around)
        self.edits |= slot.marks if theirs.fuzzy else {}
        self.filled[row.key] = {"source": theirs.source, "fault": theirs.fault}
        row.target, row.fuzzy = theirs.source, theirs.fuzzy

    def content(self) -> bytes:
        """Return the content of the file with the filled translations."""
        return self.bom + splice(self.text, self.edits.items()).encode(self.encoding, self.errors)

    def differences(self) -> list[str]:
        """Read the output again; return the keys of the strings that differ from the filled translations."""
        with TemporaryDirectory() as folder:
            again = Path(folder) / Path(self.path).name
            again.write_bytes(self.content())
            try:
                written = {row.key: row for row in type(self)(str(again), **self.options).entries}
            except (OSError, ValueError) as error:  # the readers raise these errors for a broken file
                return [f"the whole file: {error}"]
        rows = type(self)(self.path, **self.options).entries
        expected = {row.key: replace(row, **self.filled.get(row.key, {})) for row in rows}  # type: ignore[arg-type]
        return [key for key in {**expected, **written} if expected.get(key) != written.get(key)]

    def save(self, path: str) -> None:
        """Write the file; raise `ValueError` if another string would change too."""
        if names := self.differences():
            raise ValueError(f"the output would differ from input_file in {names[:5]}; nothing was written")
        write(path, self.content())
