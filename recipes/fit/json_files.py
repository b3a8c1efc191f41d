"""Read and fill JSON and ARB files: find the texts that a program shows, by the shapes of known formats."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

from entries import Catalogue, Entry, Slot, unique


PLURALS = frozenset({"zero", "one", "two", "few", "many", "other"})
PLURAL = re.compile(r"(.+)_(?:zero|one|two|few|many|other|plural)", re.S)  # keys of i18next
META = re.compile(r"@|\$schema$|_+comments?$|//$|smartling$")  # keys that describe other keys, and settings
ABOUT = ("description", "comment", "developer_comment", "notes", "context")
LIMIT = "character_limit"


@dataclass(frozen=True)
class Shape:
    """
    A format whose messages are objects.

    Attributes:
        texts (`frozenset[str]`): Keys of a message whose values are texts that a program shows.
        others (`frozenset[str]`): The other keys that a message may have.
        plain (`bool`): Whether a message may be a text by itself.
    """

    texts: frozenset[str]
    others: frozenset[str]
    plain: bool = False

    def fits(self, value: Any) -> bool:
        """Return whether all messages in a value have this shape."""
        if not isinstance(value, dict | list):
            return self.plain or not isinstance(value, str)
        if isinstance(value, dict) and self.texts & value.keys():
            return value.keys() <= self.texts | self.others
        return all(map(self.fits, value.values() if isinstance(value, dict) else value))

    def messages(self, value: Any, path: tuple = ()) -> Iterator[tuple]:
        """Yield the path of each message that is an object."""
        if isinstance(value, dict) and self.texts & value.keys():
            yield path
        elif isinstance(value, dict | list):
            for key, child in value.items() if isinstance(value, dict) else enumerate(value):
                yield from self.messages(child, (*path, key))


SHAPES = [
    # web extensions, Crowdin, Smartling; Visual Studio Code; formatjs
    Shape(frozenset({"message"}), frozenset({"description", "placeholders", "hash", "id"})),
    Shape(frozenset({"message"}), frozenset({"comment"}), plain=True),
    Shape(frozenset({"defaultMessage"}), frozenset({"id", "description", "file", "start", "end"})),
    # Transifex; Lokalise and go-i18n 1; go-i18n 2
    Shape(frozenset({"string"}), frozenset({"context", "developer_comment", LIMIT})),
    Shape(frozenset({"translation"}), frozenset({"id", "notes", "description", "context", LIMIT, "limit"})),
    Shape(PLURALS, frozenset({"id", "description", "hash", "leftDelim", "rightDelim"}), plain=True),
]


class Json(Catalogue):
    """
    A JSON file. Its strings are texts under flat or nested keys, or texts of messages with a known `Shape`. A key that
    begins with @ describes another key (ARB); its description may state a limit. JSON cannot mark a text as fuzzy, so
    `en.fuzzy.json` next to `en.json` lists the fuzzy texts.

    Args:
        json_keys (`list[str]`, *optional*): The keys whose values are texts, for files of other shapes.
    """

    takes = ("json_keys",)

    def __init__(self, path: str, **options: Any):
        marks = self._marks(path)
        self.fuzzy: dict[str, str] = json.loads(marks.read_text(encoding="utf-8")) if marks.exists() else {}
        self._marked: dict[str, str] = {}
        super().__init__(path, **options)

    @staticmethod
    def _marks(path: str) -> Path:
        return Path(path).with_suffix(".fuzzy.json")

    def _known_shape(self) -> tuple[Shape | None, dict[tuple, Any]]:
        """Return the shape of the messages, and each message by its path."""
        data = self.data
        if isinstance(data, dict):
            data = {key: value for key, value in data.items() if not META.match(key)}
        for shape in SHAPES:
            messages = {path: _at(data, path) for path in shape.messages(data)}
            if messages and shape.fits(data):
                return shape, messages
        return None, {}

    def _message(self, path: tuple) -> tuple:
        """Return the path of the message to which a text belongs, or else the path of the text."""
        return next((path[:n] for n in range(len(path)) if path[:n] in self._messages), path)

    def _is_text(self, path: tuple) -> bool:
        names = [part for part in path if isinstance(part, str)]
        if (keys := self.options.get("json_keys")) is not None:
            return bool(names) and names[-1] in keys
        if any(META.match(name) for name in names):
            return False
        if isinstance(self.data, dict):
            known = self.data.keys()
            if "locale_data" in known:  # Jed; the empty key has the header
                return names[0] == "locale_data" and "" not in names
            if isinstance(self.data.get("translations"), dict) and "locale" in known:  # Angular
                return names[0] == "translations"
        own = self._message(path)
        return self._shape is None or own == path or path[len(own)] in self._shape.texts

    def find(self) -> Iterator[tuple[Entry, Slot]]:
        self.data, places = parsed(self.text)
        self._shape, self._messages = self._known_shape()
        strings = {path: _at(self.data, path) for path in places}
        strings = {path: value for path, value in strings.items() if isinstance(value, str)}
        paths = {path for path in strings if self._is_text(path)}
        self.values = len(strings) - len(paths)
        for path in (path for path in strings if path in paths):
            value, key = strings[path], whole(".".join(map(str, path)))
            comment = strings.get((*path[:-1], f"@{path[-1]}", "description"), "") if path else ""
            comment = comment or _comment(self._messages.get(self._message(path), {}))
            row = Entry(key, whole(value), "", whole(comment), plural=_plural(path, paths))
            row.fuzzy = self.fuzzy.get(unique(key, self.slots)) == row.source
            row.fault = "" if row.source == value else "half a character (a lone surrogate)"
            yield row, Slot(places[path], quoted)

    def set(self, row: Entry, text: str) -> None:
        super().set(row, text)
        self._marked[row.key] = text

    def copy(self, row: Entry, other: Catalogue, theirs: Entry) -> None:
        super().copy(row, other, theirs)
        if theirs.fuzzy:
            self._marked[row.key] = theirs.source

    def save(self, path: str) -> None:
        super().save(path)
        marks = json.dumps(self._marked, indent=1, ensure_ascii=False)
        self._marks(path).write_text(f"{marks}\n", encoding="utf-8")


def _at(value: Any, path: tuple) -> Any:
    for part in path:
        value = value[part]
    return value


def _comment(message: Any) -> str:
    """Return the comment of a message, with its limit."""
    if not isinstance(message, dict):
        return ""
    notes = [note for name in ABOUT for note in _listed(message.get(name)) if isinstance(note, str)]
    limit = message.get(LIMIT)
    return "\n\n".join([*notes, f"max {limit}"] if isinstance(limit, int) else notes)


def _listed(value: Any) -> list:
    return value if isinstance(value, list) else [value]


def _plural(path: tuple, paths: set[tuple]) -> str:
    """
    Return the name of the plural of which a text is a form, or an empty text.

    >>> paths = {("cat_one",), ("cat_other",), ("dog",), ("dog_plural",), ("hat", "one"), ("hat", "other")}
    >>> [_plural(path, paths) for path in sorted(paths)]
    ["('cat',)", "('cat',)", "('dog',)", "('dog',)", "('hat',)", "('hat',)"]
    """
    if not path or not isinstance(path[-1], str):
        return ""
    before, name = path[:-1], path[-1]
    if name in PLURALS and (*before, "other") in paths:
        return repr(before)
    if match := PLURAL.fullmatch(name):
        return repr((*before, match[1]))
    return repr(path) if (*before, f"{name}_plural") in paths else ""


def whole(text: str) -> str:
    """Replace each lone surrogate in a text by its escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def quoted(text: str) -> str:
    """Encode a text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def parsed(content: str) -> tuple[Any, dict[tuple, tuple[int, int]]]:
    """
    Parse JSON; return its value, and the span of each value inside: path -> (start, end).

    >>> parsed('{"a": ["x", 1]}')
    ({'a': ['x', 1]}, {(): (0, 15), ('a',): (6, 14), ('a', 0): (7, 10), ('a', 1): (12, 13)})
    """
    places: dict[tuple, tuple[int, int]] = {}
    try:
        data = json.loads(content)  # this raises an error for invalid JSON
        _find_places(content, 0, (), places)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply to be read") from error
    return data, places


def _find_places(content: str, start: int, path: tuple, places: dict) -> int:
    """Add the spans of a value that begins at `start`, and of all values inside; return the end of the value."""

    def skip(at: int) -> int:
        return re.compile(r"[\s,:]*").match(content, at).end()  # type: ignore[union-attr]  # it also matches the empty text

    start = skip(start)
    if path in places:  # if an object has a key twice, the last value counts
        for old in [old for old in places if old[: len(path)] == path]:
            del places[old]
    places[path] = (start, start)  # an object is before what it has
    if content[start] not in "{[":
        end = json.JSONDecoder().raw_decode(content, start)[1]
    else:
        at, number = skip(start + 1), 0
        while content[at] not in "}]":
            key: Any = number
            if content[start] == "{":
                key, at = scanstring(content, at + 1)
            at, number = skip(_find_places(content, at, (*path, key), places)), number + 1
        end = at + 1
    places[path] = (start, end)
    return end
