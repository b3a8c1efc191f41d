"""Files of interface strings: gettext .po, Android strings.xml, JSON. Each is read, filled and written again."""

import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any

from android_files import Android
from gettext_files import Gettext
from json_files import Json


KINDS: dict[str, Any] = {".po": Gettext, ".pot": Gettext, ".xml": Android, ".json": Json, ".arb": Json}


def read(path: str, sources: str | None = None, json_keys: list[str] | None = None):
    """Read the file of a path, by its suffix."""
    kind = KINDS.get(Path(path).suffix.lower())
    if kind is None:
        raise ValueError(f"strings must be {', '.join(KINDS)}, got {path!r}")
    if json_keys is None:
        return kind(path, sources)
    if kind is not Json:
        raise ValueError(f"json_keys is for JSON and ARB, got {path!r}; leave it out")
    return Json(path, sources, json_keys)


def limits(path: str | None) -> dict[str, int]:
    """Read limits by key, from a CSV with the columns `key` and `max`, or a JSON object."""
    if path is None:
        return {}
    text = Path(path).read_text(encoding="utf-8-sig")
    if Path(path).suffix.lower() == ".json":
        found = json.loads(text)
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
