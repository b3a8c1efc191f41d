"""Read and fill Android string resources, strings.xml: decode escapes, and encode them again for aapt2."""

import re
from collections.abc import Iterator

from entries import Entry, Slot
from xml_files import COMMENT, Element, Xml, markup_of, parse, text_of


TEXTS = {"string", "plurals", "string-array"}  # other elements, such as style, array and item, do not change
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
SPACE = "\0"  # replaces white space that collapses; no XML contains this character


def unescape(markup: str) -> str:
    """
    Return the text of a string resource, with its tags: decode escapes, and collapse white space outside of quotes.

    Raises:
        `ValueError`: for an unknown escape, and for half a surrogate pair.

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
    Encode a text with tags as a string resource; with `quoted`, quotation marks will surround the result.

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


class Android(Xml):
    """
    A strings.xml file. Its strings are `string` and the items of `plurals` and `string-array`, but not references and
    elements with `translatable="false"`. The comment before a string may state its limit. A filled string gets a
    comment `fuzzy`. Quotation marks around a whole string, which keep its white space, stay.
    """

    def find(self) -> Iterator[tuple[Entry, Slot]]:
        root = parse(self.text)
        for place, node in enumerate(root.children):
            if node.name == COMMENT or node.attributes.get("translatable") == "false":
                continue
            if node.name not in TEXTS:
                self.values += len(node.children) or bool(self.inner(node).strip())
                continue
            comment, fuzzy, marks = self.mark(root, place)
            name, product = node.attributes.get("name"), node.attributes.get("product")
            of_product = f" ({product})" if product else ""
            items = [node] if node.name == "string" else [item for item in node.children if item.name == "item"]
            for number, item in enumerate(items):
                part = "" if item is node else f"[{item.attributes.get('quantity') or number}]"
                row = Entry(f"{name}{part}{of_product}", "", comment=comment, fuzzy=fuzzy, is_markup=True)
                row.plural = f"{name}{of_product}" if node.name == "plurals" else ""
                yield row, self._slot(row, item, marks)

    def _slot(self, row: Entry, node: Element, marks: dict) -> Slot:
        """Return the slot of an entry, and set the entry's source or fault."""
        markup, row.fault = self.markup(node)
        row.source, quotes = markup, QUOTED.fullmatch(markup) is not None
        if REFERENCE.fullmatch(markup):
            row.fault = "a reference to another resource"
        elif not row.fault:
            try:
                row.source = text_of(unescape(markup))
            except ValueError as error:
                row.fault = str(error)

        def written(text: str) -> str:
            markup = escape(markup_of(text), quotes)
            return f'"{markup}"' if quotes else markup

        return self.slot(node, written, marks)
