"""Files of interface strings: gettext .po, Android strings.xml, JSON. Each is read, filled and written again."""

import copy
import csv
import json
import re
from dataclasses import dataclass
from io import StringIO
from json.decoder import scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

import polib
from lxml import etree


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


class Gettext:
    """
    A .po file: sources are its msgids, or the msgstrs of the same entries of `sources`, a .po of another language.
    A filled entry is marked fuzzy.
    """

    def __init__(self, path: str, sources: str | None = None):
        options: dict[str, Any] = {"wrapwidth": 78, "check_for_duplicates": False}
        self.file = polib.pofile(path, **options)
        self.newline = "\r\n" if b"\r\n" in Path(path).read_bytes() else "\n"
        self.plural = "nplurals=2" in self.file.metadata.get("Plural-Forms", "").replace(" ", "")
        other = None if sources is None else polib.pofile(sources, **options)
        self._sources = None if other is None else {_id(entry): entry for entry in other if not entry.obsolete}
        self._entries: dict[str, tuple[Any, int | None]] = {}

    def entries(self) -> list[Entry]:
        rows = []
        for number, entry in enumerate(self.file, 1):
            if entry.obsolete:
                continue
            source = entry if self._sources is None else self._sources.get(_id(entry))
            comment = f"{entry.comment}\n{entry.tcomment}"
            for form in (0, 1) if entry.msgid_plural else (None,):
                key = f"{number}: {entry.msgid}" + ("" if form is None else f" [{form}]")
                target = entry.msgstr if form is None else entry.msgstr_plural.get(form, "")
                row = Entry(key, "", target, comment, marked=True)
                if source is None or ("fuzzy" in source.flags and source is not entry):
                    row.fault = "no source in source_file"
                elif self._sources is not None:
                    row.source = source.msgstr if form is None else source.msgstr_plural.get(form, "")
                    row.fault = "" if row.source else "no source in source_file"
                else:
                    row.source = entry.msgid_plural if form else entry.msgid
                if form is not None and not self.plural:
                    row.fault = "plural forms: the header of the file does not say nplurals=2"
                self._entries[key] = entry, form
                rows.append(row)
        return rows

    def set(self, row: Entry, text: str, fuzzy: bool = True) -> None:
        entry, form = self._entries[row.key]
        try:
            text.encode(self.file.encoding)
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the file is {self.file.encoding}, which has no {error.object[error.start]!r}"
            ) from error
        if form is None:
            entry.msgstr = text
        else:
            entry.msgstr_plural = {0: "", 1: "", **entry.msgstr_plural, form: text}
        if fuzzy and "fuzzy" not in entry.flags:
            entry.flags.append("fuzzy")

    def save(self, path: str) -> None:
        self.file.save(path, newline=self.newline)


def _id(entry) -> tuple:
    return entry.msgctxt, entry.msgid, entry.msgid_plural


class Android:
    """
    A strings.xml: `string`, the items of `plurals` and `string-array`. `translatable="false"` stays. The limit of a
    string is in the comment before it. A filled string has a comment `fuzzy` before it. Quotation marks around a whole
    string, which keep its white space, stay around it.
    """

    # what may stand before and after the root
    OUTSIDE = r"(?:\s|<\?.*?\?>|<!--(?:(?!-->).)*-->|<!DOCTYPE(?:\[.*?\]|[^\[>])*>)*"

    def __init__(self, path: str, sources: str | None = None):
        if sources is not None:
            raise ValueError("source_file is for .po; of strings.xml and JSON, input_file has the sources")
        parser = etree.XMLParser(strip_cdata=False, resolve_entities=False, remove_blank_text=False)
        self.tree = etree.parse(path, parser)
        raw, self.encoding = Path(path).read_bytes(), self.tree.docinfo.encoding or "utf-8"
        if raw.startswith(b"\xef\xbb\xbf"):
            self.encoding = "utf-8-sig"
        self.newline = "\r\n" if b"\r\n" in raw else "\n"
        content = raw.decode(self.encoding).replace("\r\n", "\n")
        end: Any = re.search(rf"(?:</{self.tree.getroot().tag}\s*>|/>)(?P<after>{self.OUTSIDE})\Z", content, re.S)
        start: Any = re.match(self.OUTSIDE, content, re.S)
        self.start, self.end = start[0], end["after"]
        self._nodes: dict[str, Any] = {}
        self._quoted: set[str] = set()

    def entries(self) -> list[Entry]:
        rows = []
        for node in self.tree.getroot():
            if not isinstance(node.tag, str) or node.get("translatable") == "false":
                continue
            items = [node] if node.tag == "string" else node.findall("item")
            before = node.getprevious()
            comment = (before.text or "") if before is not None and before.tag is etree.Comment else ""
            for number, item in enumerate(items):
                part = "" if item is node else f"[{item.get('quantity') or number}]"
                part += f" ({node.get('product')})" if node.get("product") else ""
                key, text = unique(f"{node.get('name')}{part}", self._nodes), inner(item)
                if quoted := re.fullmatch(r'"(.*[^\\])"', text, re.S):
                    self._quoted.add(key)
                    text = quoted[1]
                foreign = "<![CDATA[" in text or re.search(r"&(?!lt;|gt;|amp;|quot;|apos;|#)", text)
                fault = "CDATA or an own XML entity" if foreign else ""
                self._nodes[key] = item
                rows.append(Entry(key, text.replace("\\'", "'").replace('\\"', '"'), "", comment, fault))
        return rows

    def set(self, row: Entry, text: str, fuzzy: bool = True) -> None:
        node = self._nodes[row.key]
        markup = re.sub(r"(<[^>]+>)|(['\"])", lambda m: m[1] or f"\\{m[2]}", text)  # quotes of an attribute stay
        markup = re.sub(r"&(?!#?\w+;)", "&amp;", markup)
        markup = f'"{markup}"' if row.key in self._quoted else markup
        spaces = "".join(f' xmlns:{k}="{v}"' for k, v in node.nsmap.items() if k)
        try:
            filled = etree.fromstring(f"<x{spaces}>{markup}</x>")
        except etree.XMLSyntaxError as error:
            raise ValueError(f"the output is no valid XML: {error}") from error
        for child in list(node):
            node.remove(child)
        node.text = filled.text
        node.extend(list(filled))
        if fuzzy:
            self._mark(node if node.getparent() is self.tree.getroot() else node.getparent())

    def copy(self, row: Entry, other: "Android", key: str) -> None:
        """A string as another file has it."""
        node, filled = self._nodes[row.key], copy.deepcopy(other._nodes[key])
        filled.tail = node.tail
        node.getparent().replace(node, filled)
        self._nodes[row.key] = filled

    def _mark(self, node) -> None:
        """A comment before a string, and before its own comment."""
        mark = etree.Comment(" fuzzy ")
        own = node.getprevious()
        if own is not None and own.tag is etree.Comment:
            before = own.getprevious()
            if own.text == mark.text or (
                before is not None and before.tag is etree.Comment and before.text == mark.text
            ):
                return
            node = own
        root = node.getparent()
        place = root.index(node)
        mark.tail = root[place - 1].tail if place else root.text
        root.insert(place, mark)

    def save(self, path: str) -> None:
        body = etree.tostring(self.tree.getroot(), encoding="unicode", with_tail=False)
        content = (self.start + body + self.end).replace("\n", self.newline).encode(self.encoding, "xmlcharrefreplace")
        etree.fromstring(content, etree.XMLParser(resolve_entities=False))  # nothing broken is written
        Path(path).write_bytes(content)


def inner(node) -> str:
    """What is between the tags of an element, as XML."""
    text = etree.tostring(node, encoding="unicode", with_tail=False)
    body = re.sub(r"^<[^>]*?/>$|^<[^>]*>|</[^<>]*>$", "", text)
    return re.sub(r' xmlns:\w+="[^"]*"', "", body)


class Json:
    """
    Texts under flat or nested keys; a key that begins with @ is about another (ARB), its description may have the
    limit. Nothing in the file can mark a text as fuzzy, so the report does. Only the texts change, to the character.
    """

    def __init__(self, path: str, sources: str | None = None):
        if sources is not None:
            raise ValueError("source_file is for .po; of strings.xml and JSON, input_file has the sources")
        raw = Path(path).read_bytes()
        self.encoding = "utf-8-sig" if raw.startswith(b"\xef\xbb\xbf") else "utf-8"
        self.content = raw.decode(self.encoding)
        try:
            json.loads(self.content)  # raises for what is no JSON
        except RecursionError as error:
            raise ValueError(f"{path} is nested too deeply to be read") from error
        self._places: dict[str, tuple[int, int]] = {}
        self._filled: dict[str, str] = {}

    def entries(self) -> list[Entry]:
        found: list[tuple[tuple, str, tuple[int, int]]] = []
        find_strings(self.content, 0, (), found)
        about = {path: value for path, value, _ in found}
        rows = []
        for path, value, place in found:
            if any(str(part).startswith("@") for part in path):
                continue
            key = unique(".".join(map(str, path)), self._places)
            self._places[key] = place
            comment = about.get((*path[:-1], f"@{path[-1]}", "description"), "") if path else ""
            rows.append(Entry(key, value, "", comment))
        return rows

    def set(self, row: Entry, text: str, fuzzy: bool = True) -> None:
        self._filled[row.key] = json.dumps(text, ensure_ascii=False)

    def copy(self, row: Entry, other: "Json", key: str) -> None:
        """A text as another file has it."""
        start, end = other._places[key]
        self._filled[row.key] = other.content[start:end]

    def save(self, path: str) -> None:
        content = self.content
        for key, (start, end) in sorted(self._places.items(), key=lambda item: -item[1][0]):
            content = content[:start] + self._filled.get(key, content[start:end]) + content[end:]
        Path(path).write_bytes(content.encode(self.encoding))


def find_strings(content: str, start: int, path: tuple, found: list) -> int:
    """
    Add the path, the value and the place of each text of a JSON value that begins at `start`.

    Returns:
        `int`: Where the value ends.

    >>> found = []
    >>> find_strings('{"a": ["x", 1]}', 0, (), found), found
    (15, [(('a', 0), 'x', (7, 10))])
    """

    def skip(at: int) -> int:
        return re.compile(r"[\s,:]*").match(content, at).end()  # type: ignore[union-attr]  # it matches nothing too

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


KINDS: dict[str, Any] = {".po": Gettext, ".pot": Gettext, ".xml": Android, ".json": Json, ".arb": Json}


def read(path: str, sources: str | None = None):
    """The file of a path, by its suffix."""
    kind = KINDS.get(Path(path).suffix.lower())
    if kind is None:
        raise ValueError(f"strings must be {', '.join(KINDS)}, got {path!r}")
    return kind(path, sources)


def limits(path: str | None) -> dict[str, int]:
    """Limits by key, from a CSV with the columns `key` and `max` or a JSON object; a row without a number has none."""
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
