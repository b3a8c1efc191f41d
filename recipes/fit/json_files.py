"""JSON and ARB: find the texts that a program shows, by the shapes of known formats; nothing else changes."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

from entries import Catalogue, Entry, unique


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
        texts (`frozenset[str]`): Keys of a message whose values are shown.
        others (`frozenset[str]`): The other keys that a message may have.
        plain (`bool`): Whether a message may be a text by itself.
    """

    texts: frozenset[str]
    others: frozenset[str]
    plain: bool = False

    def fits(self, value: Any) -> bool:
        """Return whether all of a value has this shape."""
        if not isinstance(value, dict | list):
            return self.plain or not isinstance(value, str)
        if isinstance(value, dict) and self.texts & value.keys():
            return value.keys() <= self.texts | self.others
        return all(map(self.fits, value.values() if isinstance(value, dict) else value))

    def messages(self, value: Any, path: tuple = ()) -> Iterator[tuple]:
        """Return the path of each message that is an object."""
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
    Texts under flat or nested keys, or those of messages with a known `Shape`. A key that begins with @ is about
    another (ARB), its description may have the limit. Nothing in the file can mark a text as fuzzy, so `en.fuzzy.json`
    beside `en.json` lists these texts. Only the texts change, to the character.

    Args:
        keys (`list[str]`, *optional*): The keys whose values are texts, for other shapes.
    """

    def __init__(self, path: str, sources: str | None = None, keys: list[str] | None = None):
        if sources is not None:
            raise ValueError("source_file is for .po; of strings.xml and JSON, input_file has the sources")
        super().__init__(path)
        raw, marks = Path(path).read_bytes(), self._marks(path)
        self.encoding = "utf-8-sig" if raw.startswith(b"\xef\xbb\xbf") else "utf-8"
        self.text, self.keys = raw.decode(self.encoding), keys
        try:
            self.data = json.loads(self.text)  # this raises an error for invalid JSON
        except RecursionError as error:
            raise ValueError(f"{path} is nested too deeply to be read") from error
        self.fuzzy: dict[str, str] = json.loads(marks.read_text(encoding="utf-8")) if marks.exists() else {}
        self._places: dict[str, tuple[int, int]] = {}
        self._new: dict[str, str] = {}
        self._marked: dict[str, str] = {}
        self._shape, self._messages = self._known_shape()

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
        """Return the path of the message that a text belongs to, or else its own path."""
        return next((path[:n] for n in range(len(path)) if path[:n] in self._messages), path)

    def _is_text(self, path: tuple) -> bool:
        names = [part for part in path if isinstance(part, str)]
        if self.keys is not None:
            return bool(names) and names[-1] in self.keys
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

    def entries(self) -> list[Entry]:
        found: list[tuple[tuple, str, tuple[int, int]]] = []
        find_strings(self.text, 0, (), found)
        taken = [row for row in found if self._is_text(row[0])]
        self.values = len(found) - len(taken)
        about = {path: value for path, value, _ in found}
        paths = {path for path, _, _ in taken}
        rows = []
        for path, value, place in taken:
            key = unique(whole(".".join(map(str, path))), self._places)
            self._places[key] = place
            comment = about.get((*path[:-1], f"@{path[-1]}", "description"), "") if path else ""
            comment = comment or _comment(self._messages.get(self._message(path), {}))
            row = Entry(key, whole(value), "", whole(comment), plural=_plural(path, paths))
            row.fuzzy = self.fuzzy.get(key) == row.source
            row.fault = "" if row.source == value else "half a character (a lone surrogate)"
            rows.append(row)
        return rows

    def set(self, row: Entry, text: str) -> None:
        self._new[row.key], self.filled[row.key] = json.dumps(text, ensure_ascii=False), text
        self._marked[row.key] = text

    def copy(self, row: Entry, other: Any, key: str) -> None:
        start, end = other._places[key]
        self._new[row.key] = other.text[start:end]
        self.filled[row.key] = whole(json.loads(other.text[start:end]))
        if other.fuzzy.get(key) == self.filled[row.key]:
            self._marked[row.key] = self.filled[row.key]

    def parts(self) -> dict[str, Any]:
        """Return each string by its path; only the entries of this file have names."""
        found: list[tuple[tuple, str, tuple[int, int]]] = []
        find_strings(self.text, 0, (), found)
        rest = [(path, value) for path, value, _ in found if not self._is_text(path)]
        return {"the rest": rest} | {row.key: row.source for row in self.entries()}

    def opened(self, path: str) -> "Json":
        return Json(path, keys=self.keys)

    def content(self) -> bytes:
        content = self.text
        for key, (start, end) in sorted(self._places.items(), key=lambda item: -item[1][0]):
            content = content[:start] + self._new.get(key, content[start:end]) + content[end:]
        return content.encode(self.encoding)

    def save(self, path: str) -> None:
        super().save(path)
        marks = json.dumps(self._marked, indent=1, ensure_ascii=False)
        self._marks(path).write_text(f"{marks}\n", encoding="utf-8")


def _at(value: Any, path: tuple) -> Any:
    for part in path:
        value = value[part]
    return value


def _comment(message: Any) -> str:
    """Return the comment of a message."""
    if not isinstance(message, dict):
        return ""
    notes = [note for name in ABOUT for note in _listed(message.get(name)) if isinstance(note, str)]
    limit = message.get(LIMIT)
    return "\n\n".join([*notes, f"max {limit}"] if isinstance(limit, int) else notes)


def _listed(value: Any) -> list:
    return value if isinstance(value, list) else [value]


def _plural(path: tuple, paths: set[tuple]) -> str:
    """
    Return the plural that a text is a form of, or an empty text.

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
    """Replace each half of a surrogate pair in a text by its escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def find_strings(content: str, start: int, path: tuple, found: list) -> int:
    """
    Find the path, the value and the place of each text of a JSON value that begins at `start`; add them to `found`.

    Returns:
        `int`: The position where the value ends.

    >>> found = []
    >>> find_strings('{"a": ["x", 1]}', 0, (), found), found
    (15, [(('a', 0), 'x', (7, 10))])
    """

    def skip(at: int) -> int:
        return re.compile(r"[\s,:]*").match(content, at).end()  # type: ignore[union-attr]  # it also matches the empty text

    start = skip(start)
    if content[start] == '"':
        value, end = scanstring(content, start + 1)
        found.append((path, value, (start, end)))
        return end
    if content[start] not in "{[":
        return json.JSONDecoder().raw_decode(content, start)[1]
    at, number = skip(start + 1), 0
    while content[at] not in "}]":
        key: Any = number
        if content[start] == "{":
            key, at = scanstring(content, at + 1)
        at, number = skip(find_strings(content, at, (*path, key), found)), number + 1
    return at + 1
