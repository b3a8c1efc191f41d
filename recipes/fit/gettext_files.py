"""Read and fill .po files of gettext, by polib."""

import re
from collections.abc import Iterator
from functools import partial
from io import StringIO
from itertools import accumulate
from typing import Any

import polib
from entries import Catalogue, Entry, Slot


class Gettext(Catalogue):
    """
    A .po file. The sources are its msgids, or the msgstrs of the same entries in `source_file`, a .po file of another
    language. A filled entry is marked as fuzzy. Only the lines of its msgstr and of its flags change.
    """

    # polib cannot read such an escape, for example \a
    ESCAPE = re.compile(r'(?<!\\)(?:\\\\)*\\[^\\ntrvbf"]')
    # for these msgids a translator writes names and addresses, not a translation
    CREDITS = re.compile(r"translators?[-_]credits?|your (?:names|emails)", re.I)

    field = "target"
    takes = ("source_file",)

    def encoding_of(self, raw: bytes) -> str:
        return polib.detect_encoding(self.path)

    def find(self) -> Iterator[tuple[Entry, Slot]]:
        options: dict[str, Any] = {"wrapwidth": 78, "check_for_duplicates": False, "encoding": self.encoding}
        file, sources = polib.pofile(self.path, **options), self.options.get("source_file")
        plural = "nplurals=2" in file.metadata.get("Plural-Forms", "").replace(" ", "")
        others = polib.pofile(sources, wrapwidth=78, check_for_duplicates=False) if sources else []
        known = {_id(entry): entry for entry in others if not entry.obsolete}
        self.lines = list(StringIO(self.text, newline=""))
        starts = [0, *accumulate(map(len, self.lines))]
        for number, entry in enumerate(file, 1):
            if entry.obsolete:
                continue
            source = known.get(_id(entry)) if sources else entry
            flags = [flag for flag in entry.flags if flag != "fuzzy"]  # Weblate has a flag max-length:30
            comment = "\n\n".join([entry.comment, entry.tcomment, *flags])
            places = self._places(entry)
            strange = any(self.ESCAPE.search(self.lines[n]) for own in places.values() for n in own)
            marks = {} if "fuzzy" in entry.flags else self._mark(places, starts)
            for form in (0, 1) if entry.msgid_plural else (None,):
                key = f"{number}: {entry.msgid}" + ("" if form is None else f" [{form}]")
                target = entry.msgstr if form is None else entry.msgstr_plural.get(form, "")
                row = Entry(key, "", target, comment, marked=True, fuzzy="fuzzy" in entry.flags)
                row.plural = "" if form is None else str(number)
                if source is None or ("fuzzy" in source.flags and source is not entry):
                    row.fault = "no source in source_file"
                elif source is not entry:
                    row.source = source.msgstr if form is None else source.msgstr_plural.get(form, "")
                    row.fault = "" if row.source else "no source in source_file"
                else:
                    row.source = entry.msgid_plural if form else entry.msgid
                if form is not None and not plural:
                    row.fault = "plural forms: the header of the file does not say nplurals=2"
                row.fault = "an escape that this recipe does not know" if strange else row.fault
                row.fault = "the names of the translators" if self.CREDITS.fullmatch(entry.msgid) else row.fault
                yield row, Slot(self._span(places, form, starts), partial(self._written, form), marks)

    def _mark(self, places: dict[str, range], starts: list[int]) -> dict[tuple[int, int], str]:
        """Return the edit that marks an entry as fuzzy: a flag in the line of its flags, or a new line."""
        if flags := places.get("#,"):
            at = self.text.index("#,", starts[flags.start]) + 2
            return {(at, at): " fuzzy,"}
        at = starts[min(own.start for own in places.values())]
        return {(at, at): f"#, fuzzy{self.newline}"}

    def _span(self, places: dict[str, range], form: int | None, starts: list[int]) -> tuple[int, int]:
        """Return the span of a msgstr, with the line end before it; for a missing msgstr, where it belongs."""
        last = max(own.stop for own in places.values())
        own = places.get("msgstr" if form is None else f"msgstr[{form}]", range(last, last))
        before, end = (starts[n] + len(self.lines[n].rstrip("\r\n")) for n in (own.start - 1, own.stop - 1))
        return before, end

    def _places(self, entry) -> dict[str, range]:
        """Return the lines of each part of an entry: its texts, flags (`"#,"`) and previous texts (`"#|"`)."""
        places: dict[str, range] = {}
        name = ""
        for number in range(max(entry.linenum, 1) - 1, len(self.lines)):
            line = self.lines[number].lstrip(" \t")
            match = re.match(r"msgctxt|msgid_plural|msgid|msgstr(?:\[\d\])?|#[,|]", line)
            if name.startswith("msgstr") and (line.startswith("#") or match and not match[0].startswith("msgstr")):
                break  # the next entry begins here
            if match:
                name = match[0]
                places.setdefault(name, range(number, number + 1))
            elif line.startswith('"'):
                places[name] = range(places[name].start, number + 1)
        return places

    def _written(self, form: int | None, text: str) -> str:
        own: dict[str, Any] = {"msgstr": text}
        if form is not None:
            own = {"msgid_plural": "x", "msgstr_plural": {form: text}}
        written = polib.POEntry(msgid="x", **own).__unicode__(wrapwidth=78)
        return "".join(self.newline + line for line in written[written.index("msgstr") :].strip("\n").split("\n"))


def _id(entry) -> tuple:
    return entry.msgctxt, entry.msgid, entry.msgid_plural
