"""An entry, one string of a file, and the base class of all files of strings."""

import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


NUMBER = r"(?P<number>\d{1,3}(?:[.,'’ \u00a0\u202f_]\d{3})+|\d+)"  # the number may have thousands separators
UNIT = (
    r"(?:(?:unicode|utf-?8|ascii|display|printable|visible|text)[ -])?"
    r"(?:characters?|chars?|chrs?|letters?|glyphs?|graphemes?|code ?points?|columns?|cols?"
    r"|Zeichen|Buchstaben?|Spalten?|Anschläge|caractères?|lettres?)\b"
)
# no other unit may follow: the comment ends, or its sentence, or its line
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

    A number counts if a unit of text follows it, or if nothing follows it.

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
            # below a line that only has the limit, anything but a unit may follow
            if part is comment or match[0] == part.strip():
                number = int(re.sub(r"\D", "", groups["number"] or groups["bare"]))
                found.append(number - bool(groups.get("less")))
    return min((number for number in found if number > 0), default=None)


@dataclass
class Entry:
    """
    A string of a file.

    Attributes:
        key (`str`): Its name, unique in the file.
        source (`str`): The text to translate.
        target (`str`): The translation so far, else empty.
        comment (`str`): What the file says about it.
        fault (`str`): Why it cannot be translated, else empty.
        marked (`bool`): Whether `&` or `_` before a letter is its accelerator.
        fuzzy (`bool`): Whether the file marks the translation so far as one to be read again.
        plural (`str`): The plural that it is a form of, else empty.
    """

    key: str
    source: str
    target: str = ""
    comment: str = ""
    fault: str = ""
    marked: bool = False
    fuzzy: bool = False
    plural: str = ""

    @property
    def limit(self) -> int | None:
        """Return the maximum length that the comment states."""
        return limit_of(self.comment)


def unique(key: str, taken) -> str:
    """Return a key, with a number if another string has the same key."""
    number, name = 1, key
    while name in taken:
        number += 1
        name = f"{key} ({number})"
    return name


class Catalogue:
    """
    A file of strings. `filled` has what each changed part of it shall be; every other part stays as it was. `values`
    is the number of values that are no texts.
    """

    values = 0

    def __init__(self, path: str):
        self.path, self.filled = path, dict[str, Any]()

    def entries(self) -> list[Entry]:
        raise NotImplementedError

    def set(self, row: Entry, text: str) -> None:
        """Fill in a translation, and mark it as fuzzy; raise `ValueError` if the file cannot hold it."""
        raise NotImplementedError

    def copy(self, row: Entry, other: "Catalogue", key: str) -> None:
        """Copy a string from another file."""
        raise NotImplementedError

    def parts(self) -> dict[str, Any]:
        """Return the parts of the file by name, right after it was read."""
        raise NotImplementedError

    def content(self) -> bytes:
        """Return the content of the file with the filled translations."""
        raise NotImplementedError

    def opened(self, path: str) -> "Catalogue":
        """Read another file with the options of this one."""
        return type(self)(path)

    def differences(self) -> list[str]:
        """Return the parts that were not filled and that a second reading of the output finds changed."""
        with TemporaryDirectory() as folder:
            again = Path(folder) / Path(self.path).name
            again.write_bytes(self.content())
            try:
                written = self.opened(str(again)).parts()
            except (OSError, ValueError, SyntaxError) as error:  # the readers raise these errors for a broken file
                return [f"the whole file: {error}"]
        expected = self.opened(self.path).parts() | self.filled
        return [name for name in {**expected, **written} if expected.get(name) != written.get(name)]

    def save(self, path: str) -> None:
        """Write the file, unless a part changes that was not filled."""
        if names := self.differences():
            raise ValueError(f"the output would differ from input_file in {names[:5]}; nothing was written")
        aside = Path(f"{path}.part")
        aside.write_bytes(self.content())
        aside.replace(path)
