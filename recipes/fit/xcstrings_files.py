"""Read and fill string catalogs of Xcode, .xcstrings: JSON with the strings of all languages."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from entries import Catalogue, Entry, Slot
from json_files import parsed, quoted, whole


REVIEW = "needs_review"


class Xcstrings(Catalogue):
    """
    A string catalog, and its texts in one language. The sources are the texts in `sourceLanguage`, or else the keys. A
    missing text is added as Xcode would add it. A new text has the state `needs_review`.

    Args:
        language (`str`, *optional*, defaults to `"en"`): The language of the translations.
    """

    field = "target"
    takes = ("language",)

    def find(self) -> Iterator[tuple[Entry, Slot]]:
        data, self.places = parsed(self.text)
        self.language = self.options.get("language", "en")
        try:
            if self.language == data["sourceLanguage"]:
                raise ValueError(f"language must be another one than sourceLanguage, got {self.language!r} for both")
            for key, item in data["strings"].items():
                if item.get("shouldTranslate") is False:
                    self.values += 1
                else:
                    yield from self._strings(data["sourceLanguage"], key, item)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a string catalog of Xcode: {error}") from error

    def _strings(self, original: str, key: str, item: dict) -> Iterator[tuple[Entry, Slot]]:
        """Find all forms of a string, each with its slot."""
        texts, path = item.get("localizations", {}), ("strings", key, "localizations", self.language)
        source, own = texts.get(original, {"stringUnit": {"value": key}}), dict(_units(texts.get(self.language, {})))
        missing = None if self.language in texts else self._added(path, texts if "localizations" in item else item)
        for form, unit in _units(source):
            row = Entry(
                whole(".".join([key, *form[2::3]])), whole(unit["value"]), comment=whole(item.get("comment", ""))
            )
            row.plural = whole(repr((key, *form[:-1]))) if "plural" in form else ""
            row.fault = "substitutions" if "substitutions" in source else ""
            if missing is not None:
                span, around, written = missing
                yield row, Slot(span, partial(written, form), {}, around)
                continue
            if form not in own:
                row.fault = "other forms than the source has"
                yield row, Slot((0, 0), quoted)
                continue
            row.target, state = whole(own[form]["value"]), own[form].get("state", "")
            row.fuzzy = state in ("new", REVIEW)
            if state == "new" and row.target == row.source:
                row.target = ""
            place = (*path, *form, "stringUnit")
            at = self.places[place][0] + 1
            marks = {(at, at): f'"state" : "{REVIEW}", '}
            if "state" in own[form]:
                marks = {self.places[*place, "state"]: quoted(REVIEW)}
            yield row, Slot(self.places[*place, "value"], quoted, marks)

    def _added(self, path: tuple[str, ...], members: dict):
        """
        Prepare to add a language to a string: return the place, the text around, and a function that adds the text of
        a form and returns the JSON of all forms so far.
        """
        forms: dict[str, Any] = {}
        value = forms
        if path[:3] not in self.places:
            path, value = path[:3], {self.language: forms}
        *above, name = path
        depth, (start, end) = len(path), self.places[tuple(above)]
        indent = self.newline + "  " * depth
        earlier = [key for key in members if key < name]
        span, around = (start + 1, start + 1), (f"{indent}{quoted(name)} : ", ",")
        if not members:
            span, around = (start, end), (f"{{{indent}{quoted(name)} : ", f"{indent[:-2]}}}")
        elif earlier:
            at = self.places[*above, earlier[-1]][1]
            span, around = (at, at), (f",{indent}{quoted(name)} : ", "")

        def written(form: tuple[str, ...], text: str) -> str:
            node = forms
            for part in form:
                node = node.setdefault(part, {})
            node["stringUnit"] = {"state": REVIEW, "value": text}
            lines = json.dumps(value, ensure_ascii=False, indent=2, separators=(",", " : ")).split("\n")
            return indent.join(lines)

        return span, around, written


def _units(localization: dict, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict]]:
    """
    Yield each text of a localization, with its path in the variations.

    >>> list(_units({"variations": {"plural": {"one": {"stringUnit": {"value": "Ein Zug"}}}}}))
    [(('variations', 'plural', 'one'), {'value': 'Ein Zug'})]
    """
    if "stringUnit" in localization:
        yield path, localization["stringUnit"]
    for kind, forms in localization.get("variations", {}).items():
        for form, below in forms.items():
            yield from _units(below, (*path, "variations", kind, form))
