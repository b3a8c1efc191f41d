"""Files of interface strings: gettext .po, Android strings.xml, JSON. Each is read, filled and written again."""

import csv
import json
import re
from dataclasses import dataclass
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
    """

    key: str
    source: str
    target: str = ""
    comment: str = ""
    fault: str = ""

    @property
    def limit(self) -> int | None:
        """The number after "max" in the comment."""
        found = LIMIT.search(self.comment)
        return int(found[1]) if found else None


class Gettext:
    """
    A .po file: sources are its msgids, or the msgstrs of the same entries of `sources`, a .po of another language.
    A filled entry is marked fuzzy.
    """

    def __init__(self, path: str, sources: str | None = None):
        options: dict[str, Any] = {"wrapwidth": 78, "check_for_duplicates": False}
        self.file = polib.pofile(path, **options)
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
                row = Entry(key, "", entry.msgstr if form is None else entry.msgstr_plural.get(form, ""), comment)
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
        if form is None:
            entry.msgstr = text
        else:
            entry.msgstr_plural = {0: "", 1: "", **entry.msgstr_plural, form: text}
        if fuzzy and "fuzzy" not in entry.flags:
            entry.flags.append("fuzzy")

    def save(self, path: str) -> None:
        self.file.save(path)


def _id(entry) -> tuple:
    return entry.msgctxt, entry.msgid, entry.msgid_plural


class Android:
    """
    A strings.xml: `string`, the items of `plurals` and `string-array`. `translatable="false"` stays. The limit of a
    string is in the comment before it. A filled string has a comment `fuzzy` before it.
    """

    def __init__(self, path: str, sources: str | None = None):
        if sources is not None:
            raise ValueError("source_file is for .po; of strings.xml and JSON, input_file has the sources")
        parser = etree.XMLParser(strip_cdata=False, resolve_entities=False, remove_blank_text=False)
        self.tree = etree.parse(path, parser)
        content, tag = Path(path).read_text(encoding="utf-8"), self.tree.getroot().tag
        self.start, self.end = (
            content[: content.index(f"<{tag}")],
            content[content.rindex(f"</{tag}>") + len(tag) + 3 :],
        )
        self._nodes: dict[str, Any] = {}

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
                key, text = f"{node.get('name')}{part}", inner(item)
                foreign = "<![CDATA[" in text or re.search(r"&(?!lt;|gt;|amp;|quot;|apos;|#)", text)
                fault = "CDATA or an own XML entity" if foreign else ""
                self._nodes[key] = item
                rows.append(Entry(key, text.replace("\\'", "'").replace('\\"', '"'), "", comment, fault))
        return rows

    def set(self, row: Entry, text: str, fuzzy: bool = True) -> None:
        node = self._nodes[row.key]
        markup = re.sub(r"(<[^>]+>)|(['\"])", lambda m: m[1] or f"\\{m[2]}", text)  # quotes of an attribute stay
        spaces = "".join(f' xmlns:{k}="{v}"' for k, v in node.nsmap.items() if k)
        filled = etree.fromstring(f"<x{spaces}>{markup}</x>")
        for child in list(node):
            node.remove(child)
        node.text = filled.text
        node.extend(list(filled))
        if fuzzy:
            self._mark(node if node.getparent() is self.tree.getroot() else node.getparent())

    def _mark(self, node) -> None:
        """A comment before a string, and before its own comment."""
        if node.getprevious() is not None and node.getprevious().tag is etree.Comment:
            node = node.getprevious()
        root = node.getparent()
        place, mark = root.index(node), etree.Comment(" fuzzy ")
        if node.text != mark.text:
            mark.tail = root[place - 1].tail if place else root.text
            root.insert(place, mark)

    def save(self, path: str) -> None:
        body = etree.tostring(self.tree.getroot(), encoding="unicode", with_tail=False)
        Path(path).write_text(self.start + body + self.end, encoding="utf-8")


def inner(node) -> str:
    """What is between the tags of an element, as XML."""
    text = etree.tostring(node, encoding="unicode", with_tail=False)
    body = re.sub(r"^<[^>]*?/>$|^<[^>]*>|</[^<>]*>$", "", text)
    return re.sub(r' xmlns:\w+="[^"]*"', "", body)


class Json:
    """
    Texts under flat or nested keys; a key that begins with @ is about another (ARB), its description may have the
    limit. Nothing in the file can mark a text as fuzzy, so the report does.
    """

    def __init__(self, path: str, sources: str | None = None):
        if sources is not None:
            raise ValueError("source_file is for .po; of strings.xml and JSON, input_file has the sources")
        text = Path(path).read_text(encoding="utf-8")
        self.data = json.loads(text)
        indent = re.search(r"\n([ \t]+)\S", text)
        self.indent, self.end = (indent[1] if indent else None), "\n" if text.endswith("\n") else ""
        self._places: dict[str, tuple[Any, Any]] = {}

    def entries(self) -> list[Entry]:
        return self._find(self.data, "")

    def _find(self, data: Any, path: str) -> list[Entry]:
        rows = []
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            name = f"{path}.{key}" if path else str(key)
            if isinstance(value, dict | list) and not str(key).startswith("@"):
                rows += self._find(value, name)
            elif isinstance(value, str) and not str(key).startswith("@"):
                about = data.get(f"@{key}") if isinstance(data, dict) else None
                comment = str(about.get("description", "")) if isinstance(about, dict) else ""
                self._places[name] = data, key
                rows.append(Entry(name, value, "", comment))
        return rows

    def set(self, row: Entry, text: str, fuzzy: bool = True) -> None:
        data, key = self._places[row.key]
        data[key] = text

    def save(self, path: str) -> None:
        text = json.dumps(self.data, ensure_ascii=False, indent=self.indent) + self.end
        Path(path).write_text(text, encoding="utf-8")


KINDS: dict[str, Any] = {".po": Gettext, ".pot": Gettext, ".xml": Android, ".json": Json, ".arb": Json}


def read(path: str, sources: str | None = None):
    """The file of a path, by its suffix."""
    kind = KINDS.get(Path(path).suffix.lower())
    if kind is None:
        raise ValueError(f"strings must be {', '.join(KINDS)}, got {path!r}")
    return kind(path, sources)


def limits(path: str | None) -> dict[str, int]:
    """Limits by key, from a CSV with the columns `key` and `max` or a JSON object."""
    if path is None:
        return {}
    if path.endswith(".json"):
        return {key: int(most) for key, most in json.loads(Path(path).read_text(encoding="utf-8")).items()}
    with open(path, encoding="utf-8", newline="") as file:
        return {row["key"]: int(row["max"]) for row in csv.DictReader(file)}
