"""Files of interface strings: gettext .po, Android strings.xml, JSON. Each is read, filled and written again."""

import copy
import csv
import json
import re
from io import StringIO
from json.decoder import scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

from entries import Catalogue, Entry, unique
from gettext_files import Gettext
from lxml import etree


FUZZY = " fuzzy "  # the comment before a string of a strings.xml


class Android(Catalogue):
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
        super().__init__(path)
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

    def set(self, row: Entry, text: str) -> None:
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
        self.filled[row.key] = inner(node)
        self._mark(node)

    def copy(self, row: Entry, other: "Android", key: str) -> None:
        """A string as another file has it."""
        node, filled = self._nodes[row.key], copy.deepcopy(other._nodes[key])
        filled.tail = node.tail
        node.getparent().replace(node, filled)
        self._nodes[row.key] = filled
        self.filled[row.key] = inner(filled)
        if FUZZY in _comments(other._nodes[key]):
            self._mark(filled)

    def parts(self) -> dict[str, Any]:
        self.entries()
        found: dict[str, Any] = {key: inner(node) for key, node in self._nodes.items()}
        for node in self._nodes.values():  # the rest is compared without the texts
            node.text, node[:] = None, []
        for comment in list(self.tree.getroot().iter(etree.Comment)):
            if comment.text == FUZZY:
                comment.getparent().remove(comment)
        rest = [(str(node.tag), dict(node.attrib), (node.text or "").strip()) for node in self.tree.getroot().iter()]
        return found | {"the rest": rest, "start": self.start, "end": self.end}

    def _mark(self, node) -> None:
        """A comment before a string, and before its own comment."""
        comments = _comments(node)
        if FUZZY in comments:
            return
        root = self.tree.getroot()
        node = node if node.getparent() is root else node.getparent()
        node = node.getprevious() if comments else node
        mark = etree.Comment(FUZZY)
        place = root.index(node)
        mark.tail = root[place - 1].tail if place else root.text
        root.insert(place, mark)

    def content(self) -> bytes:
        body = etree.tostring(self.tree.getroot(), encoding="unicode", with_tail=False)
        content = (self.start + body + self.end).replace("\n", self.newline)
        return content.encode(self.encoding, "xmlcharrefreplace")


def _comments(node) -> list[str]:
    """The texts of up to two comments before a string, or before the plurals or the array that it is an item of."""
    found: list[str] = []
    node = (node if node.tag != "item" else node.getparent()).getprevious()
    while node is not None and node.tag is etree.Comment and len(found) < 2:
        found.append(node.text or "")
        node = node.getprevious()
    return found


def inner(node) -> str:
    """What is between the tags of an element, as XML."""
    text = etree.tostring(node, encoding="unicode", with_tail=False)
    body = re.sub(r"^<[^>]*?/>$|^<[^>]*>|</[^<>]*>$", "", text)
    return re.sub(r' xmlns:\w+="[^"]*"', "", body)


class Json(Catalogue):
    """
    Texts under flat or nested keys; a key that begins with @ is about another (ARB), its description may have the
    limit. Nothing in the file can mark a text as fuzzy, so `en.fuzzy.json` beside `en.json` lists these texts.
    Only the texts change, to the character.
    """

    def __init__(self, path: str, sources: str | None = None):
        if sources is not None:
            raise ValueError("source_file is for .po; of strings.xml and JSON, input_file has the sources")
        super().__init__(path)
        raw, marks = Path(path).read_bytes(), self._marks(path)
        self.encoding = "utf-8-sig" if raw.startswith(b"\xef\xbb\xbf") else "utf-8"
        self.text = raw.decode(self.encoding)
        try:
            json.loads(self.text)  # raises for what is no JSON
        except RecursionError as error:
            raise ValueError(f"{path} is nested too deeply to be read") from error
        self.fuzzy: dict[str, str] = json.loads(marks.read_text(encoding="utf-8")) if marks.exists() else {}
        self._places: dict[str, tuple[int, int]] = {}
        self._new: dict[str, str] = {}
        self._marked: dict[str, str] = {}

    @staticmethod
    def _marks(path: str) -> Path:
        return Path(path).with_suffix(".fuzzy.json")

    def entries(self) -> list[Entry]:
        found: list[tuple[tuple, str, tuple[int, int]]] = []
        find_strings(self.text, 0, (), found)
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

    def set(self, row: Entry, text: str) -> None:
        self._new[row.key], self.filled[row.key] = json.dumps(text, ensure_ascii=False), text
        self._marked[row.key] = text

    def copy(self, row: Entry, other: "Json", key: str) -> None:
        """A text as another file has it."""
        start, end = other._places[key]
        self._new[row.key] = other.text[start:end]
        self.filled[row.key] = json.loads(other.text[start:end])
        if other.fuzzy.get(key) == self.filled[row.key]:
            self._marked[row.key] = self.filled[row.key]

    def parts(self) -> dict[str, Any]:
        rest: list[tuple[tuple, str, tuple[int, int]]] = []
        find_strings(self.text, 0, (), rest)
        about = [(path, value) for path, value, _ in rest if any(str(part).startswith("@") for part in path)]
        return {"the rest": about} | {row.key: row.source for row in self.entries()}

    def content(self) -> bytes:
        content = self.text
        for key, (start, end) in sorted(self._places.items(), key=lambda item: -item[1][0]):
            content = content[:start] + self._new.get(key, content[start:end]) + content[end:]
        return content.encode(self.encoding)

    def save(self, path: str) -> None:
        super().save(path)
        marks = json.dumps(self._marked, indent=1, ensure_ascii=False)
        self._marks(path).write_text(f"{marks}\n", encoding="utf-8")


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
