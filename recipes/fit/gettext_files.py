"""Files of gettext, .po: read by polib, and changed line by line."""

import re
from io import StringIO
from pathlib import Path
from typing import Any

import polib
from entries import Catalogue, Entry


class Gettext(Catalogue):
    """
    A .po file: sources are its msgids, or the msgstrs of the same entries of `sources`, a .po of another language.
    A filled entry is marked fuzzy. Only the lines of its msgstr and of its flags change.
    """

    # polib does not read such an escape in a line of a text, for example \a
    ESCAPE = re.compile(r'(?<!\\)(?:\\\\)*\\[^\\ntrvbf"]')
    # a translator replaces these msgids by names and addresses
    CREDITS = re.compile(r"translators?[-_]credits?|your (?:names|emails)", re.I)

    def __init__(self, path: str, sources: str | None = None):
        super().__init__(path)
        options: dict[str, Any] = {"wrapwidth": 78, "check_for_duplicates": False}
        self.file = polib.pofile(path, **options)
        text = Path(path).read_bytes().decode(self.file.encoding)
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.lines = list(StringIO(text, newline=""))
        self.plural = "nplurals=2" in self.file.metadata.get("Plural-Forms", "").replace(" ", "")
        other = None if sources is None else polib.pofile(sources, **options)
        self._sources = None if other is None else {_id(entry): entry for entry in other if not entry.obsolete}
        self._entries: dict[str, tuple[int, Any, int | None]] = {}
        self._new: dict[int, dict[int | None, str]] = {}  # entry -> form -> text

    def entries(self) -> list[Entry]:
        rows = []
        for number, entry in enumerate(self.file, 1):
            if entry.obsolete:
                continue
            source = entry if self._sources is None else self._sources.get(_id(entry))
            comment = "\n\n".join([entry.comment, entry.tcomment, *entry.flags])  # Weblate has a flag max-length:30
            strange = any(self.ESCAPE.search(self.lines[n]) for own in self._places(entry).values() for n in own)
            for form in (0, 1) if entry.msgid_plural else (None,):
                key = f"{number}: {entry.msgid}" + ("" if form is None else f" [{form}]")
                target = entry.msgstr if form is None else entry.msgstr_plural.get(form, "")
                row = Entry(key, "", target, comment, marked=True, fuzzy="fuzzy" in entry.flags)
                row.plural = "" if form is None else str(number)
                if source is None or ("fuzzy" in source.flags and source is not entry):
                    row.fault = "no source in source_file"
                elif self._sources is not None:
                    row.source = source.msgstr if form is None else source.msgstr_plural.get(form, "")
                    row.fault = "" if row.source else "no source in source_file"
                else:
                    row.source = entry.msgid_plural if form else entry.msgid
                if form is not None and not self.plural:
                    row.fault = "plural forms: the header of the file does not say nplurals=2"
                row.fault = "an escape that this recipe does not know" if strange else row.fault
                row.fault = "the names of the translators" if self.CREDITS.fullmatch(entry.msgid) else row.fault
                self._entries[key] = number, entry, form
                rows.append(row)
        return rows

    def set(self, row: Entry, text: str) -> None:
        number, entry, form = self._entries[row.key]
        try:
            text.encode(self.file.encoding)
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the file is {self.file.encoding}, which has no {error.object[error.start]!r}"
            ) from error
        self._new.setdefault(number, {})[form] = text
        old = {None: entry.msgstr} if form is None else entry.msgstr_plural
        self.filled[f"{number} texts"] = {**old, **self._new[number]}
        self.filled[f"{number} flags"] = {*entry.flags, "fuzzy"}

    def parts(self) -> dict[str, Any]:
        found: dict[str, Any] = {"header": [self.file.header, self.file.metadata]}
        for number, entry in enumerate(self.file, 1):
            found[f"{number} texts"] = dict(entry.msgstr_plural) or {None: entry.msgstr}
            found[f"{number} flags"] = set(entry.flags)
            entry.msgstr, entry.msgstr_plural, entry.flags = "", {}, []
            found[f"{number}"] = str(entry)
        return found

    def content(self) -> bytes:
        lines = list(self.lines)
        ended = not lines or lines[-1].endswith("\n")
        lines[-1:] = [line if ended else line + self.newline for line in lines[-1:]]
        for number, entry in reversed(list(enumerate(self.file, 1))):
            if number not in self._new:
                continue
            places = self._places(entry)
            last = max(own.stop for own in places.values())
            # the last line is changed first, so that the places of the others stay valid
            for form, text in sorted(self._new[number].items(), key=lambda item: -(item[0] or 0)):
                name = "msgstr" if form is None else f"msgstr[{form}]"
                own = places.get(name, range(last, last))
                lines[own.start : own.stop] = self._wrapped(form, text)
            if "fuzzy" not in entry.flags:
                flags = places.get("#,")
                if flags is not None:
                    lines[flags.start] = lines[flags.start].replace("#,", "#, fuzzy,", 1)
                else:
                    lines.insert(min(own.start for own in places.values()), f"#, fuzzy{self.newline}")
        content = "".join(lines)
        return (content if ended else content.removesuffix(self.newline)).encode(self.file.encoding)

    def _places(self, entry) -> dict[str, range]:
        """Return the lines of each text of an entry, of its flags (`"#,"`) and of its former texts (`"#|"`)."""
        places: dict[str, range] = {}
        name = ""
        for number in range(max(entry.linenum, 1) - 1, len(self.lines)):
            line = self.lines[number].lstrip("\ufeff \t")
            match = re.match(r"msgctxt|msgid_plural|msgid|msgstr(?:\[\d\])?|#[,|]", line)
            if name.startswith("msgstr") and (line.startswith("#") or match and not match[0].startswith("msgstr")):
                break  # the next entry begins here
            if match:
                name = match[0]
                places.setdefault(name, range(number, number + 1))
            elif line.startswith('"'):
                places[name] = range(places[name].start, number + 1)
        return places

    def _wrapped(self, form: int | None, text: str) -> list[str]:
        own = {"msgstr": text} if form is None else {"msgid_plural": "x", "msgstr_plural": {form: text}}
        written = polib.POEntry(msgid="x", **own).__unicode__(wrapwidth=78)
        return [line + self.newline for line in written[written.index("msgstr") :].strip("\n").split("\n")]


def _id(entry) -> tuple:
    return entry.msgctxt, entry.msgid, entry.msgid_plural
