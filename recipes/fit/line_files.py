"""Read and fill files of keys and values: Apple's .strings and Java's .properties."""

import json
import re
import sys
from collections.abc import Iterator

from entries import FUZZY, Catalogue, Entry, Slot


class Lines(Catalogue):
    """
    A file of keys and values. The comments above a string may state its limit, or mark the string as `fuzzy`.

    Attributes:
        before (`str`): Pattern of white space and comments.
        pair, rest (`re.Pattern`): Pattern of a key with its value and all before it; of the text after the last value.
        remark (`re.Pattern`): Pattern of a comment.
        mark (`str`): The comment `fuzzy`.
        escape (`re.Pattern`): Pattern of an escape with its `code` or `sign`; an escape without them has no text.
        signs (`dict[str, str]`): Sign of an escape -> its text.
    """

    before: str
    pair: re.Pattern
    rest: re.Pattern
    remark: re.Pattern
    mark: str
    escape: re.Pattern
    signs: dict[str, str]

    def decoded(self, raw: str) -> str:
        """Return the text of a key or value in the file; raise `ValueError` for an unknown escape."""

        def character(match: re.Match) -> str:
            if match["code"]:
                return chr(int(match["code"], 16))
            if match["sign"] and match["sign"] not in self.signs:
                raise ValueError("an escape that this recipe does not know")
            return self.signs.get(match["sign"], "")

        try:
            return self.escape.sub(character, raw).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError as error:
            raise ValueError("half a character (a lone surrogate)") from error

    def encoded(self, text: str) -> str:
        """Return a text with escapes, for the file; raise `ValueError` if a reader would get another text."""
        raise NotImplementedError

    def find(self) -> Iterator[tuple[Entry, Slot]]:
        at = 0
        while match := self.pair.match(self.text, at):
            comment, fuzzy, marks = self._comments(at, match.start("key"))
            named = "key" if match["value"] is None else "value"  # Apple's `"key";` means `"key" = "key";`
            row = Entry(match["key"], match[named], comment=comment, fuzzy=fuzzy)
            try:
                row.key = self.decoded(match["key"])
                row.source = self.decoded(match[named])
            except ValueError as error:
                row.fault = str(error)
            end = match.end("key")
            slot = Slot((end, end), self.encoded, marks, (" = ", ""))
            yield row, slot if named == "key" else Slot(match.span("value"), self.encoded, marks)
            at = match.end()
        if not self.rest.match(self.text, at):
            at = re.compile(self.before).match(self.text, at).end()  # type: ignore[union-attr]  # it may be empty
            line = self.text.count("\n", 0, at) + 1
            raise ValueError(f"no key with a value in line {line}: {self.text[at : at + 40]!r}")

    def _comments(self, at: int, key: int) -> tuple[str, bool, dict[tuple[int, int], str]]:
        """Return the comment before a key, whether it says fuzzy, and the edits that mark the string as fuzzy."""
        texts: list[str] = []
        place = key
        for match in reversed(list(self.remark.finditer(self.text, at, key))):
            if self.text.count("\n", match.end(), place) > 1 or (at and "\n" not in self.text[at : match.start()]):
                break  # an empty line follows the comment, or the comment is in the line of the string before
            place = match.start()
            texts.insert(0, re.sub(r"\A(?:/\*|//|[#!])|\*/\Z", "", match[0]).strip())
        lead = self.text[self.text.rfind("\n", 0, place) + 1 : place]
        mark = self.mark + self.newline + lead
        if lead.strip():  # the string before is in the same line
            mark = self.newline + self.mark + self.newline
        fuzzy = FUZZY in texts
        return "\n".join(text for text in texts if text != FUZZY), fuzzy, {} if fuzzy else {(place, place): mark}


class Strings(Lines):
    """A .strings file of Apple in UTF-8, or in UTF-16 with a byte order mark."""

    remark = re.compile(r"/\*(?:[^*]|\*(?!/))*\*/|//[^\r\n]*")
    before = rf"(?:\s|{remark.pattern})*+"
    token = r'(?:"(?:[^"\\]|\\.)*+"|[\w.$:-]++)'
    pair = re.compile(rf"{before}(?P<key>{token}){before}(?:={before}(?P<value>{token}){before})?;", re.S)
    rest = re.compile(rf"{before}\Z")
    mark = f"/* {FUZZY} */"
    escape = re.compile(r"\\(?:U(?P<code>[0-9a-fA-F]{4})|(?P<sign>.))", re.S)
    signs = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "'": "'", "\\": "\\"}
    escapes = str.maketrans({character: f"\\{sign}" for sign, character in signs.items() if sign != "'"})

    def decoded(self, raw: str) -> str:
        return super().decoded(raw[1:-1] if raw[0] == '"' else raw)

    def encoded(self, text: str) -> str:
        return f'"{text.translate(self.escapes)}"'


class Properties(Lines):
    """A .properties file of Java in UTF-8 or ISO 8859-1; an ASCII file stays ASCII."""

    end = r"(?:\r\n|[\r\n])"
    space = rf"(?:[ \t\f]|\\{end})*+"  # a line with a backslash at its end continues
    before = rf"(?:[ \t\f]*+(?:[#!][^\r\n]*+)?{end})*+[ \t\f]*+"
    pair = re.compile(
        rf"{before}(?![#!]|\Z)(?P<key>(?:[^\r\n\\ \t\f=:]|\\(?:\r\n|.|\Z))*+){space}(?:[=:]{space})?"
        r"(?P<value>(?:[^\r\n\\]|\\(?:\r\n|.|\Z))*+)",
        re.S,
    )
    rest = re.compile(rf"{before}(?:[#!][^\r\n]*+)?\Z")
    remark = re.compile(r"[#!][^\r\n]*")
    mark = f"# {FUZZY}"
    escape = re.compile(rf"\\(?:u(?P<code>[0-9a-fA-F]{{4}})|{end}[ \t\f]*+|(?P<sign>[nrtfu\\])|)", re.S)
    signs = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "\\": "\\"}
    escapes = str.maketrans({character: f"\\{sign}" for sign, character in signs.items()})

    def encoding_of(self, raw: bytes) -> str:
        try:
            raw.decode()
        except UnicodeDecodeError:
            return "iso-8859-1"
        return "utf-8"

    def encoded(self, text: str) -> str:
        if "'" in text and re.search(r"\{\d", text):
            raise ValueError("an apostrophe beside an argument, which MessageFormat takes for a quotation mark")
        text = re.sub(r"\A(?=[ ])", r"\\", text.translate(self.escapes))
        last = "\x7f" if self.text.isascii() else "\xff" if self.encoding == "iso-8859-1" else chr(sys.maxunicode)
        return re.sub(rf"[^\x00-{last}]", lambda match: json.dumps(match[0])[1:-1], text)
