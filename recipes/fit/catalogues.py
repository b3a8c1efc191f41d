"""Open files of interface strings by their suffix, and read limits."""

import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any

from android_files import Android
from entries import Catalogue
from gettext_files import Gettext
from json_files import Json
from line_files import Properties, Strings
from xcstrings_files import Xcstrings
from xliff_files import Xliff
from xml_files import Resx, Stringsdict


KINDS: dict[str, type[Catalogue]] = {
    **dict.fromkeys((".po", ".pot"), Gettext),
    **dict.fromkeys((".xlf", ".xliff"), Xliff),
    ".xcstrings": Xcstrings,
    ".strings": Strings,
    ".stringsdict": Stringsdict,
    ".xml": Android,
    **dict.fromkeys((".json", ".arb"), Json),
    **dict.fromkeys((".resx", ".resw"), Resx),
    ".properties": Properties,
}


def read(path: str, **options: Any) -> Catalogue:
    """
    Read a file of strings, in the format of its suffix.

    Args:
        options: `source_file`, `json_keys` and `language`, for formats that have them; `None` means not set.

    Raises:
        `ValueError`: for another suffix, an option that the format does not have, and a file that is broken.
    """
    kind = KINDS.get(Path(path).suffix.lower())
    if kind is None:
        raise ValueError(f"strings must be {', '.join(KINDS)}, got {path!r}")
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in kind.takes:
            others = ", ".join(suffix for suffix, other in KINDS.items() if name in other.takes)
            raise ValueError(f"{name} is for {others}, got {path!r}; leave it out")
    try:
        return kind(path, **given)
    except (LookupError, ValueError) as error:  # also for an unknown encoding
        raise ValueError(f"{path}: {error}") from error


def read_limits(path: str | None) -> dict[str, int]:
    """Read limits, key -> limit, from a CSV file with the columns `key` and `max`, or from a JSON object."""
    if path is None:
        return {}
    text = Path(path).read_text(encoding="utf-8-sig")
    if Path(path).suffix.lower() == ".json":
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError(f"limits_file must hold a JSON object, key to limit, got {text[:40]!r}")
    else:
        header = text.partition("\n")[0]
        rows = csv.DictReader(StringIO(text), delimiter=max(",;\t", key=header.count))
        if not {"key", "max"} <= set(rows.fieldnames or ()):
            raise ValueError(f"limits_file needs the columns key and max, got {rows.fieldnames}")
        found = {row["key"]: row["max"].strip() for row in rows if (row["max"] or "").strip()}
    for key, most in found.items():
        if not str(most).isdecimal() or int(most) < 1:
            raise ValueError(f"a limit is a whole number of at least 1, got {most!r} for {key!r} in limits_file")
    return {key: int(most) for key, most in found.items()}
