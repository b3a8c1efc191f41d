"""Read and fill files of XML: the place of each element, by expat; .NET's .resx and Apple's .stringsdict."""

import html
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from xml.parsers import expat

from entries import FUZZY, Catalogue, Entry, Slot


COMMENT = "#comment"
FORMS = {"zero", "one", "two", "few", "many", "other"}
VARIABLE = re.compile(r"%(?:\d+\$)?#@\w+@")  # the variable of a plural in a .stringsdict
ATTRIBUTE = re.compile(r"""([^\s=<>/"']+)(\s*=\s*)("[^"]*"|'[^']*')""")
TAG = re.compile(r"""<([^\s/>]+)(?:[^"'>]|"[^"]*"|'[^']*')*>""")
CHARACTER = re.compile(r"&(?:#(\d+)|#x([0-9a-fA-F]+)|quot|apos);")
OWN_ENTITY = re.compile(r"<!\[CDATA\[|&(?!(?:lt|gt|amp|quot|apos);|#)")


@dataclass(eq=False)
class Element:
    """
    An element or a comment.

    Attributes:
        name (`str`): The name without its namespace.
        attributes (`dict[str, str]`): Attributes; a key is the name, or the namespace, a space and the name.
        start, first, last, end (`int`): Positions of the element's start, its content's start and end, and its end.
        children (`list[Element]`): Elements and comments inside, in order.
    """

    name: str
    attributes: dict[str, str]
    start: int
    first: int
    last: int = 0
    end: int = 0
    children: list["Element"] = field(default_factory=list)

    def child(self, name: str) -> "Element | None":
        """Return the first child of this name."""
        return next((child for child in self.children if child.name == name), None)


def parse(text: str) -> Element:
    """
    Parse a document; return its root.

    Raises:
        `ValueError`: for a document that is not well-formed.

    >>> root = parse('<a><!-- b --><c d="e">f</c></a>')
    >>> [(child.name, child.start, child.end) for child in root.children]
    [('#comment', 3, 13), ('c', 13, 27)]
    """
    lines = [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", text))]
    document = Element("", {}, 0, 0)
    above = [document]
    parser = expat.ParserCreate("utf-8", " ")

    def here() -> int:
        return lines[parser.CurrentLineNumber - 1] + parser.CurrentColumnNumber

    def begin(name: str, attributes: dict[str, str]) -> None:
        match = TAG.match(text, here())
        assert match is not None  # expat has read a start tag here
        above[-1].children.append(Element(name.rpartition(" ")[2], attributes, match.start(), match.end()))
        above.append(above[-1].children[-1])

    def finish(name: str) -> None:
        node = above.pop()
        node.last = here()
        node.end = text.index(">", node.last) + 1 if text.startswith("</", node.last) else node.last
        if text[node.first - 2] == "/":  # <a/> has its end where it begins
            node.last = node.end = node.first

    def comment(data: str) -> None:
        if len(above) > 1:  # comments outside the root are not part of the content
            end = text.index("-->", here()) + 3
            above[-1].children.append(Element(COMMENT, {}, here(), here() + 4, end - 3, end))

    parser.StartElementHandler, parser.EndElementHandler, parser.CommentHandler = begin, finish, comment
    parser.DefaultHandler = lambda data: None  # with this, entities of the document are not replaced
    try:
        parser.Parse(text.encode(), True)
    except (expat.ExpatError, UnicodeEncodeError) as error:
        raise ValueError(f"not valid XML: {error}") from error
    return document.children[0]


def with_attributes(tag: str, attributes: dict[str, str]) -> str:
    """
    Return a start tag with these attributes.

    >>> with_attributes('<a b="c">', {"b": "d", "e": "f"}), with_attributes("<a b='c'/>", {"d": "e"})
    ('<a b="d" e="f">', '<a b=\\'c\\' d="e"/>')
    """
    left = dict(attributes)
    tag = ATTRIBUTE.sub(lambda m: f'{m[1]}{m[2]}"{left.pop(m[1])}"' if m[1] in left else m[0], tag)
    return re.sub(r"\s*/?>\Z", lambda m: "".join(f' {name}="{value}"' for name, value in left.items()) + m[0], tag)


def text_of(markup: str) -> str:
    """Return markup as text: replace `&amp;` by `&`; other entities, such as `&lt;`, and tags stay."""
    return re.sub(r"&amp;(?!#?\w+;)", "&", markup)


def markup_of(text: str) -> str:
    """Return the markup of a text of `text_of`."""
    return re.sub(r"&(?!#?\w+;)", "&amp;", text)


class Xml(Catalogue):
    """A file of XML, in which a comment `fuzzy` before a string marks it."""

    errors = "xmlcharrefreplace"

    def encoding_of(self, raw: bytes) -> str:
        declared = re.match(rb"""<\?xml[^>]*?encoding\s*=\s*["']([\w.-]+)""", raw)
        return declared[1].decode() if declared else "utf-8"

    def inner(self, node: Element | None) -> str:
        """Return the content of an element."""
        return "" if node is None else self.text[node.first : node.last]

    def markup(self, node: Element | None) -> tuple[str, str]:
        """Return the content of an element, with character references decoded, and its fault."""
        markup = self.inner(node)
        if OWN_ENTITY.search(markup):
            return markup, "CDATA or an own XML entity"

        def character(match: re.Match) -> str:
            number = int(match[1]) if match[1] else int(match[2], 16) if match[2] else None
            return html.escape(chr(number), quote=False) if number is not None else html.unescape(match[0])

        return CHARACTER.sub(character, markup), ""

    def set(self, row: Entry, text: str) -> None:
        try:
            expat.ParserCreate().Parse(f"<x>{self.slots[row.key].written(text)}</x>".encode(), True)
        except expat.ExpatError as error:
            raise ValueError(f"the output is not valid XML: {error}") from error
        super().set(row, text)

    def slot(self, node: Element, written: Callable[[str], str], marks: dict[tuple[int, int], str]) -> Slot:
        """Return the slot of an element's content."""
        if self.text[node.first - 2] != "/":
            return Slot((node.first, node.last), written, marks)
        tag = self.text[node.start : node.end]
        return Slot((node.start, node.end), written, marks, (f"{tag[:-2].rstrip()}>", f"</{self.qualified(node)}>"))

    def qualified(self, node: Element) -> str:
        """Return the name of an element with its prefix."""
        return TAG.match(self.text, node.start)[1]  # type: ignore[index]  # a tag begins here

    def space_before(self, parent: Element, place: int) -> str:
        """Return the white space before child number `place` of an element."""
        last = parent.children[place - 1].end if place else parent.first
        space = self.text[last : parent.children[place].start]
        return space if space.isspace() else ""

    def mark(self, parent: Element, place: int) -> tuple[str, bool, dict[tuple[int, int], str]]:
        """Return the comment before child number `place`, whether the child is fuzzy, and the edits that mark it."""
        first = place
        while first and place - first < 2 and parent.children[first - 1].name == COMMENT:
            first -= 1
        texts = [self.inner(node).strip() for node in parent.children[first:place]][::-1]
        own = next((text for text in texts if text != FUZZY), "")
        if FUZZY in texts:
            return own, True, {}
        place -= bool(texts)
        start = parent.children[place].start
        return own, False, {(start, start): f"<!-- {FUZZY} -->{self.space_before(parent, place)}"}


class Resx(Xml):
    """A .resx or .resw file. Its strings are the values of `data` without a type; `comment` may state a limit."""

    def find(self) -> Iterator[tuple[Entry, Slot]]:
        root = parse(self.text)
        for place, node in enumerate(root.children):
            if node.name != "data":
                continue
            name, value = node.attributes.get("name", ""), node.child("value")
            if value is None or {"type", "mimetype"} & node.attributes.keys() or name.startswith(">>"):
                self.values += 1
                continue
            _, fuzzy, marks = self.mark(root, place)
            markup, fault = self.markup(value)
            comment = html.unescape(self.markup(node.child("comment"))[0])
            row = Entry(name, html.unescape(markup), comment=comment, fault=fault, fuzzy=fuzzy)
            yield row, self.slot(value, partial(html.escape, quote=False), marks)


class Stringsdict(Xml):
    """
    A .stringsdict file of Apple, a property list. Its strings are the plural forms of each key, which are one plural,
    and the format of a key, unless it is only a variable. The comment before a key may state the limit.
    """

    def find(self) -> Iterator[tuple[Entry, Slot]]:
        root = parse(self.text)
        if root.name != "plist" or (strings := root.child("dict")) is None:
            raise ValueError(f"the root of a .stringsdict must be a plist of a dict, got {root.name!r}")
        for place, name, string in self._pairs(strings):
            comment, fuzzy, marks = self.mark(strings, place)
            found = [(f"{name}.{key}", value) for _, key, value in self._pairs(string) if value.name == "string"]
            for _, variable, rule in self._pairs(string):
                forms = [(key, form) for _, key, form in self._pairs(rule) if form.name == "string"]
                found += [(f"{name}.{variable}.{key}", form) for key, form in forms if key in FORMS]
                self.values += sum(key not in FORMS for key, _ in forms)
            for key, node in found:
                markup, fault = self.markup(node)
                text = html.unescape(markup)
                if VARIABLE.fullmatch(text):
                    self.values += 1
                    continue
                fault = fault or ("a variable of a plural in a text" if VARIABLE.search(text) else "")
                row = Entry(key, text, comment=comment, fault=fault, fuzzy=fuzzy, plural=name)
                yield row, self.slot(node, partial(html.escape, quote=False), marks)

    def _pairs(self, node: Element) -> Iterator[tuple[int, str, Element]]:
        """Yield for each key of a dict: its index among the children, the key, the value."""
        places = [i for i, child in enumerate(node.children) if child.name != COMMENT] if node.name == "dict" else []
        for at, then in zip(places[::2], places[1::2], strict=False):
            yield at, html.unescape(self.inner(node.children[at])), node.children[then]
