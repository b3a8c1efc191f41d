"""Read and fill XLIFF 1.2 and 2 files, within the size limits that a file states."""

import html
import re
from collections.abc import Iterator

from entries import Entry, Slot
from xml_files import Element, Xml, markup_of, parse, text_of, with_attributes


SLR = "urn:oasis:names:tc:xliff:sizerestriction:2.0"
UNITS = {  # size units of XLIFF -> units of the package; other units keep their names
    "char": "character", "glyph": "grapheme", "byte": "byte", "col": "width",
    "xliff:codepoints": "character", "xliff:utf8": "byte", "xliff:utf16": "utf16", "xliff:utf32": "character",
}  # fmt: skip
PROFILES = {"size": ("generalProfile", "xliff:codepoints"), "storage": ("storageProfile", "xliff:utf8")}
UNTRANSLATED = {"new", "initial", "needs-translation"}  # states of a target that may be a copy of its source
OWN_RULES = re.compile(r"""mtype\s*=\s*["']protected|translate\s*=\s*["']no|(?:size|storage)Restriction\s*=""")
REVIEW = {"state": "needs-review-translation"}
READ_AGAIN = "hf_lenctrl:fuzzy"  # a sub-state of version 2, which marks a new text that is not a copy of the source


class Xliff(Xml):
    """
    An XLIFF file. Its strings are the targets of each `trans-unit`, or of each `segment` of a `unit`. Limits are
    `maxwidth` and `maxbytes` of a `trans-unit` or its groups, and those of the size restriction module. A new text
    gets the state `needs-review-translation`, or `initial` in version 2.
    """

    field = "target"

    def find(self) -> Iterator[tuple[Entry, Slot]]:
        root = parse(self.text)
        if root.name != "xliff":
            raise ValueError(f"the root of XLIFF must be xliff, got {root.name!r}")
        yield from self._units(root, {})

    def _units(self, parent: Element, above: dict[str, str]) -> Iterator[tuple[Entry, Slot]]:
        """Find the strings below an element; `above` holds the attributes of the elements around it."""
        for node in parent.children:
            own = above | ({"size-unit": "pixel"} if "maxwidth" in node.attributes else {}) | node.attributes
            if node.name in ("file", "body", "group"):
                if profiles := node.child("profiles"):
                    own |= profiles.attributes | (profiles.child("normalization") or profiles).attributes
                if own.get("restype") == "x-gettext-plurals":
                    own["plural"] = own.get("id", "")
                yield from self._units(node, own)
            elif node.name in ("trans-unit", "unit"):
                holders = [node] if node.name == "trans-unit" else [s for s in node.children if s.name == "segment"]
                for number, holder in enumerate(holders, 1):
                    if own.get("translate") == "no" or not holder.child("source"):
                        self.values += 1
                        continue
                    row, slot = self._string(node, holder)
                    if len(holders) > 1:
                        row.key += f"::{holder.attributes.get('id', number)}"
                    name, of_xcode, _ = row.key.partition("|==|")
                    row.plural = name if of_xcode else own.get("plural", "")
                    shared = len(holders) > 1 or any(name.startswith(SLR) for name in above)
                    _set_limits(row, own, node.name == "unit", shared)
                    yield row, slot

    def _string(self, unit: Element, holder: Element) -> tuple[Entry, Slot]:
        """Return the entry and the slot of `holder`, an element of `unit` with a `source`."""
        source, target, version_2 = holder.child("source"), holder.child("target"), unit.name == "unit"
        assert source is not None
        own = (holder if version_2 or target is None else target).attributes
        (markup, fault), (so_far, other) = self.markup(source), self.markup(target)
        notes = [note for node in (unit, unit.child("notes")) if node for note in node.children if note.name == "note"]
        comment = "\n\n".join(html.unescape(self.markup(note)[0]) for note in notes)
        row = Entry(unit.attributes.get("id", ""), text_of(markup), text_of(so_far), comment, fault or other)
        row.is_markup = True
        state = own.get("state", "")
        row.fuzzy = state in UNTRANSLATED or state.startswith("needs-")
        if state in UNTRANSLATED and own.get("subState") != READ_AGAIN and row.target == row.source:
            row.target = ""
        if holder.child("seg-source"):
            row.fault = "sentences that are marked in a seg-source"
        elif OWN_RULES.search(markup):
            row.fault = "a part that is protected or has a limit of its own"

        if target is None:
            name = self.qualified(source).removesuffix("source") + "target"
            space = self.space_before(holder, holder.children.index(source))
            slot = Slot((source.end, source.end), markup_of, {}, (f"{space}<{name}>", f"</{name}>"))
        else:
            slot = self.slot(target, markup_of, {})
        if version_2:
            slot.marks |= self._tagged(holder, {"state": "initial", "subState": READ_AGAIN})
        elif any(slot.around):
            slot.around = with_attributes(slot.around[0], REVIEW), slot.around[1]
        else:
            assert target is not None
            slot.marks |= self._tagged(target, REVIEW)
        if unit.attributes.get("approved") == "yes":
            slot.marks |= self._tagged(unit, {"approved": "no"})
        return row, slot

    def _tagged(self, node: Element, attributes: dict[str, str]) -> dict[tuple[int, int], str]:
        """Return the start tag of an element with these attributes, as place -> tag."""
        return {(node.start, node.first): with_attributes(self.text[node.start : node.first], attributes)}


def _set_limits(row: Entry, own: dict[str, str], version_2: bool, shared: bool) -> None:
    """Set the limits of an entry, or its fault if this recipe cannot keep a limit."""
    stated = [(own.get("maxwidth"), own.get("size-unit", "")), (own.get("maxbytes"), "byte")]
    if version_2:
        stated = [(own.get(f"{SLR} {name}Restriction"), own.get(*profile)) for name, profile in PROFILES.items()]
    for value, unit in stated:
        least, _, most = (value or "*").replace(" ", "").rpartition(",")
        if most == "*":
            continue
        if not (most.isdecimal() and least in ("", "0")):
            row.fault = row.fault or f"a limit that is not a maximum: {value!r}"
        elif version_2 and shared:
            row.fault = row.fault or "a limit that several strings share"
        elif version_2 and {own.get("general", "none"), own.get("storage", "none")} != {"none"}:
            row.fault = row.fault or "a limit of the normalized text"
        else:
            name = UNITS.get(unit, unit)
            row.limits[name] = min(int(most), row.limits.get(name, int(most)))
