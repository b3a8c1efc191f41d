"""Android string resources, strings.xml: read by lxml; escapes are decoded, and encoded again for aapt2."""

import copy
import re
from pathlib import Path
from typing import Any

from entries import Catalogue, Entry, unique
from lxml import etree


FUZZY = " fuzzy "  # the comment before a string of a strings.xml
TEXTS = {"string", "plurals", "string-array"}  # other elements, such as style, array and item, stay
REFERENCE = re.compile(r"\s*[@?][+*]?(?:[\w.]+:)?(?:\w+/)?[\w.]+\s*")  # @string/ok, ?attr/title, @null
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.S)
TOKEN = re.compile(
    r"(?P<tag><[^>]*>)|\\u(?P<high>d[89ab][0-9a-f]{2})\\u(?P<low>d[c-f][0-9a-f]{2})"
    r"|\\u(?!d[89a-f]|0000)(?P<code>[0-9a-f]{4})|\\(?P<sign>[nt#@?\"'\\])|(?P<wrong>\\)"
    r"|(?P<quote>\")|(?P<space>[ \t\n\v\f\r]+)|(?P<rest>.)",
    re.S | re.I,
)
ESCAPES = {character: f"\\{character}" for character in "\\'\""} | {"\n": r"\n", "\t": r"\t"}
ESCAPES |= {character: f"\\u{ord(character):04x}" for character in " \r\v\f"}
SPACE = "\0"  # it stands for white space that collapses; no XML contains this character


def unescape(markup: str) -> str:
    """
    Return the text of a string resource, with its tags: escapes are decoded, white space outside of quotes collapses.

    Raises:
        `ValueError`: for an escape that Android does not know, and half a surrogate pair.

    >>> unescape(r"Wie sp\\u00e4t\\n ist  es\\?"), unescape('" Don\\'t "')
    ('Wie spät\\n ist es?', " Don't ")
    """
    quoted, found = False, []
    for match in TOKEN.finditer(markup):
        kind, value = match.lastgroup, match[0]
        if kind == "wrong":
            raise ValueError("an escape that Android does not know")
        quoted ^= kind == "quote"
        if kind == "low":
            value = f"{match['high']}{match['low']}"
            value = bytes.fromhex(value).decode("utf-16-be")
        elif kind == "code":
            value = chr(int(match["code"], 16))
            value = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}.get(value, value)
        elif kind == "sign":
            value = {"n": "\n", "t": "\t"}.get(match["sign"].lower(), match["sign"])
        elif kind == "space" and not quoted:
            value = SPACE
        found.append("" if kind == "quote" else value)
    text, again = "".join(found), ""
    while text != again:  # white space collapses across tags, too
        text, again = re.sub(rf"{SPACE}((?:<[^>]*>)*){SPACE}", rf"{SPACE}\1", text), text
    text = re.sub(rf"\A((?:<[^>]*>)*){SPACE}|{SPACE}((?:<[^>]*>)*)\Z", r"\1\2", text)
    return text.replace(SPACE, " ")


def escape(text: str, quoted: bool = False) -> str:
    """
    Return a text with tags as a string resource; `quoted` says that quotation marks surround it.

    Raises:
        `ValueError`: if Android would read another text.

    >>> escape("Don't! \\n?"), escape(" @ home")
    ("Don\\\\'t! \\\\n?", '\\\\u0020@ home')
    """
    found, may_collapse, last = [], True, None
    for token in re.findall(r"<[^>]+>|.", text, re.S):
        if len(token) > 1:  # this is a tag
            found.append(token)
            continue
        is_space = token == " " and not quoted and not may_collapse
        last = len(found) if is_space else None  # Android would cut a space at the end
        found.append(token if is_space or (token == " " and quoted) else ESCAPES.get(token, token))
        may_collapse = is_space
    if last is not None:
        found[last] = ESCAPES[" "]
    markup = "".join(found)
    markup = f"\\{markup}" if markup[:1] in ("@", "?") else markup
    if unescape(f'"{markup}"' if quoted else markup) != text:
        raise ValueError("Android would read another text than the output")
    return markup


class Android(Catalogue):
    """
    A strings.xml: `string`, the items of `plurals` and `string-array`. `translatable="false"`, references to other
    resources and other elements stay. The limit of a string is in the comment before it. A filled string has a comment
    `fuzzy` before it. Quotation marks around a whole string, which keep its white space, stay around it.
    """

    # XML allows these before and after the root
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
        self.values = 0
        for node in self.tree.getroot():
            if not isinstance(node.tag, str) or node.get("translatable") == "false":
                continue
            if node.tag not in TEXTS:
                self.values += len(node) or bool((node.text or "").strip())
                continue
            items = [node] if node.tag == "string" else node.findall("item")
            before = node.getprevious()
            comment = (before.text or "") if before is not None and before.tag is etree.Comment else ""
            for number, item in enumerate(items):
                part = "" if item is node else f"[{item.get('quantity') or number}]"
                part += f" ({node.get('product')})" if node.get("product") else ""
                key = unique(f"{node.get('name')}{part}", self._nodes)
                self._nodes[key] = item
                row = self._entry(key, inner(item))
                row.comment, row.fuzzy = comment, FUZZY in _comments(item)
                row.plural = self.tree.getpath(node) if node.tag == "plurals" else ""
                rows.append(row)
        return rows

    def _entry(self, key: str, markup: str) -> Entry:
        if QUOTED.fullmatch(markup):
            self._quoted.add(key)
        if "<![CDATA[" in markup or re.search(r"&(?!lt;|gt;|amp;|quot;|apos;|#)", markup):
            return Entry(key, markup, fault="CDATA or an own XML entity")
        if REFERENCE.fullmatch(markup):
            return Entry(key, markup, fault="a reference to another resource")
        try:
            return Entry(key, re.sub(r"&amp;(?!#?\w+;)", "&", unescape(markup)))
        except ValueError as error:
            return Entry(key, markup, fault=str(error))

    def set(self, row: Entry, text: str) -> None:
        node, quoted = self._nodes[row.key], row.key in self._quoted
        markup = escape(re.sub(r"&(?!#?\w+;)", "&amp;", text), quoted)
        markup = f'"{markup}"' if quoted else markup
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

    def copy(self, row: Entry, other: Any, key: str) -> None:
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
        for node in self._nodes.values():  # the texts are removed to compare the rest
            node.text, node[:] = None, []
        for comment in list(self.tree.getroot().iter(etree.Comment)):
            if comment.text == FUZZY:
                comment.getparent().remove(comment)
        rest = [(str(node.tag), dict(node.attrib), (node.text or "").strip()) for node in self.tree.getroot().iter()]
        return found | {"the rest": rest, "start": self.start, "end": self.end}

    def _mark(self, node) -> None:
        """Add the comment before a string, and before its own comment."""
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
    """Return the texts of up to two comments before a string, or before the plurals or array that it is an item of."""
    found: list[str] = []
    node = (node if node.tag != "item" else node.getparent()).getprevious()
    while node is not None and node.tag is etree.Comment and len(found) < 2:
        found.append(node.text or "")
        node = node.getprevious()
    return found


def inner(node) -> str:
    """Return the content of an element as XML."""
    text = etree.tostring(node, encoding="unicode", with_tail=False)
    body = re.sub(r"^<[^>]*?/>$|^<[^>]*>|</[^<>]*>$", "", text)
    return re.sub(r' xmlns:\w+="[^"]*"', "", body)
