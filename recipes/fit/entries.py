"""A string of a file, and what every file of strings can do."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any


LIMIT = re.compile(
    r"\bmax(?:imum|imal|\.)?(?:[ _-]?(?:length|len|width|chars|characters|Länge|Zeichen))?\.?\s*[:=]?\s*(\d+)", re.I
)


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
    """

    key: str
    source: str
    target: str = ""
    comment: str = ""
    fault: str = ""
    marked: bool = False

    @property
    def limit(self) -> int | None:
        """The number after "max" in the comment."""
        found = LIMIT.search(self.comment)
        return int(found[1]) if found else None


def unique(key: str, taken) -> str:
    """A key, numbered where another string has it too."""
    number, name = 1, key
    while name in taken:
        number += 1
        name = f"{key} ({number})"
    return name


class Catalogue:
    """A file of strings. `filled` has what each changed part of it shall be; every other part stays as it was."""

    def __init__(self, path: str):
        self.path, self.filled = path, dict[str, Any]()

    def entries(self) -> list[Entry]:
        raise NotImplementedError

    def parts(self) -> dict[str, Any]:
        """What the file says, by name, of a file that was just read."""
        raise NotImplementedError

    def content(self) -> bytes:
        """The file with what was filled."""
        raise NotImplementedError

    def save(self, path: str) -> None:
        """Write the file, unless a second reading finds a change in a part that was not filled."""
        aside = Path(f"{path}.part")
        aside.write_bytes(self.content())
        try:
            expected, written = type(self)(self.path).parts() | self.filled, type(self)(str(aside)).parts()
            names = [name for name in {**expected, **written} if expected.get(name) != written.get(name)]
            if names:
                raise ValueError(f"the output would differ from input_file in {names[:5]}; nothing was written")
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
