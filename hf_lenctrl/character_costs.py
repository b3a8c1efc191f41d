"""The cost of each character, which it adds to a length: columns of a terminal, or a cost that the user states."""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch


try:
    from wcwidth import wcswidth
except ImportError:  # a checkpoint from the Hub loads without this package
    wcswidth = None  # type: ignore[assignment]


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")  # characters without a width in `wcswidth`, and U+0000
# These are one character of each kind that `wcswidth` tells apart: narrow, digit (VS16 makes it wide), narrow and wide
# emoji, ideograph, combining mark, spacing mark, virama, joiner, variation selectors, regional indicator, skin tone.
_KINDS = "a1\u00a9\u65e5\u231a\U0001f02c\U0001f0cf\u0301\u0903\u094d\u200d\ufe0e\ufe0f\U0001f1e6\U0001f3fd"
_AROUND = [  # contexts that tell the kinds apart
    *[("", ""), ("a", ""), ("\u65e5", ""), ("\u00a9", ""), ("", "\ufe0f"), ("", "\ufe0e"), ("", "\u0903")],
    *[("", "\u094da"), ("\u094d", ""), ("", "\U0001f3fd"), ("", "\u200da"), ("\U0001f1e6", "")],
    *[("\u00a9", "\ufe0f"), ("\u00a9", "a")],
]
_ENDINGS = ["".join(kinds) for n in (1, 2, 3) for kinds in itertools.product(_KINDS, repeat=n)]
_ENDINGS += ["\u0301" + ending for ending in _ENDINGS if len(ending) == 3]  # a joiner takes the mark with it
_SEQUENCES = [  # joined emoji, flags, a keycap, jamo, conjuncts, a line end, ligatures, digraphs, words
    *("\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", "1\ufe0f\u20e3"),
    *("\U0001f3f4\U000e0067\U000e0062\U000e007f", "\u1112\u1161\u11ab", "\u0915\u094d\u0937\u093f", "\u0e01\u0e33"),
    *("e\u0301", "\r\n", "AVATAR", "office", "ij lj nj sz", "https://example.org/a", "two words, and 3.50 more."),
]
_PLANES = (0, 1, 2, 3, 14, 15, 16)  # planes of Unicode that have characters
_UNIFORM = (2, 3, 15, 16)  # planes of ideographs, which are all wide, and of private characters
_COMMON = 100  # most frequent characters of a vocabulary, whose pairs are checked
_DEAREST = 1000  # highest cost of one character; tables of exact lengths grow with it


def count_columns(text: str) -> int:
    """
    Count the columns of a text: `wcwidth.wcswidth` of the parts between control characters, which have no width.
    Raises `ImportError` without the package `wcwidth`.
    """
    if wcswidth is None:
        raise ImportError("length_unit='width' counts with the package wcwidth; pip install wcwidth")
    return sum(map(wcswidth, _CONTROL.split(text)))


class CharacterCost:
    """
    A cost of a text that is the sum of the costs of its characters, integers from 0 to 1000; it raises `ValueError`
    for another cost.

    Both costs here are finite automata: in a `context`, a character of a `kind` adds units and leads to a context.
    This one has one context, and the kind of a character is its cost.
    """

    def __init__(self, cost: Callable[[str], int]):
        self.count = cost
        if self._check(""):
            raise ValueError(f"a text of no characters must cost 0, but cost('') is {cost('')!r}")

    def _check(self, text: str) -> int:
        units = self.count(text)
        if isinstance(units, bool) or not isinstance(units, Integral) or not 0 <= units <= _DEAREST:
            raise ValueError(f"a character must cost 0 to {_DEAREST}, a whole number, but cost({text!r}) is {units!r}")
        return int(units)

    @functools.cached_property
    def kind(self) -> Callable[[str], int]:
        """Return the kind of a character: its cost."""
        return functools.cache(self._check)

    def step(self, context: int, kind: int) -> tuple[int, int, bool]:
        """Return the units of a step, the next context, and whether a constraint may allow the character."""
        return kind, context, True

    def loose(self, context: int) -> int | None:
        """Return the loose context that represents this one and others; this cost has only one context."""
        return None

    def check_sum(self, texts: list[str]) -> None:
        """
        Raise `ValueError` for the first text whose cost is not the sum over its characters. It checks the entries of a
        vocabulary, and sequences, because joined characters are seldom one entry.
        """
        common = [character for character, _ in Counter("".join(texts)).most_common(_COMMON)]
        pairs = ["".join(first + second for second in common) for first in common]
        probes = [text for text in [*_SEQUENCES, *_ENDINGS] if all(map(self._is_known, text))]
        for text in [*texts, *probes, *pairs]:
            whole, parts = self.count(text), sum(map(self.kind, text))
            if whole != parts:
                raise ValueError(f"a cost must add up over characters, but cost({text!r}) is {whole!r}, not {parts}")

    def _is_known(self, character: str) -> bool:
        """Return whether a character has a cost: a user's table may omit characters that the vocabulary lacks."""
        try:
            return self.kind(character) >= 0
        except Exception:
            return False

    @functools.cached_property
    def opened(self) -> "OpenCharacters":
        """Characters that are split over entries of a vocabulary, as first bytes."""
        return OpenCharacters(self._check)


class Columns:
    """
    `count_columns` as a finite automaton, learned from `wcswidth`. Two texts have the same context if all endings of
    three kinds add the same columns to both. So the automaton follows the rules of the installed version for joiners,
    variation selectors, flags and conjuncts, whose width is not the sum over their characters.

    A constraint forbids control characters, except the newline, and characters that make a text narrower (U+FE0E
    after a wide emoji).
    """

    def __init__(self):
        self.count = count_columns
        self.count("")
        self._texts, self._contexts, self._steps = [""], {self._signature(""): 0}, {}
        self._number: dict[Any, int] = {}
        self._example: list[str] = []  # one character of each kind
        self.kind = functools.cache(self._kind)
        for character in ["\n", "\t", *_KINDS]:
            self.kind(character)

    @staticmethod
    def _signature(text: str) -> tuple[int, ...]:
        base = wcswidth(text)
        return tuple([wcswidth(text + ending) - base for ending in _ENDINGS])

    def _kind(self, character: str) -> int:
        plane, place = divmod(ord(character), 0x10000)
        if plane in _UNIFORM and 0 < place < 0xFFFE:  # the last two are no characters
            return self.kind(chr(plane << 16))
        key: bool | tuple[tuple[int, ...], ...] | tuple[int, ...] = character == "\n"
        if not _CONTROL.match(character):
            key = tuple([wcswidth(before + character + after) for before, after in _AROUND])
        if key not in self._number:
            self._number[key] = len(self._example)
            self._example.append(character)
        return self._number[key]

    def step(self, context: int, kind: int) -> tuple[int, int, bool]:
        """Return the units of a step, the next context, and whether a constraint may allow the character."""
        if kind < 2:  # control characters
            return 0, 0, kind == 0
        if (context, kind) not in self._steps and context < 0:
            self._steps[context, kind] = self._loose_step(context, kind)
        elif (context, kind) not in self._steps:
            text = self._texts[context] + self._example[kind]
            columns, signature = wcswidth(text) - wcswidth(self._texts[context]), self._signature(text)
            if signature not in self._contexts:
                self._contexts[signature] = len(self._texts)
                self._texts.append(text)
            self._steps[context, kind] = max(columns, 0), self._contexts[signature], columns >= 0
        return self._steps[context, kind]

    def loose(self, context: int) -> int | None:
        """Return the loose context that represents this one and others: -1 after text, -2 after a joiner."""
        return self._stands.get(context)

    @functools.cached_property
    def _stands(self) -> dict[int, int]:
        several = reversed(self._several.items())
        return {one: stands for stands, contexts in several for one in (stands, *contexts)}

    @functools.cached_property
    def _several(self) -> dict[int, list[int]]:
        kinds, contexts = range(len(self._example)), [0]
        for context in contexts:
            contexts += dict.fromkeys(to for k in kinds if (to := self.step(context, k)[1]) not in contexts)
        bases, joiner = [self.kind(base) for base in _KINDS[:7] + "\U0001f1e6"], self.kind("\u200d")
        text = [c for c in contexts if all(self.step(c, base) == self.step(0, base) for base in bases)]
        return {-1: text, -2: sorted({self.step(c, joiner)[1] for c in text})}

    def _loose_step(self, context: int, kind: int) -> tuple[int, int, bool]:
        """Return the step of a loose context: the most units of its contexts; forbidden if these differ."""
        steps = {self.step(one, kind) for one in self._several[context]}
        units, to = {units for units, _, _ in steps}, {to for _, to, _ in steps}
        around = [stands for stands, several in self._several.items() if to <= set(several)]
        safe = len(units) == 1 and all(may for _, _, may in steps) and bool(len(to) == 1 or around)
        return max(units), to.pop() if len(to) == 1 else (around or [-1])[0], safe

    @functools.cached_property
    def opened(self) -> "OpenCharacters":
        """Characters that are split over entries of a vocabulary, as first bytes."""
        return OpenCharacters(self._kind)


@functools.cache
def columns() -> Columns:
    """Return the `Columns`; cached, because learning the widths takes a second."""
    return Columns()


class OpenCharacters:
    """
    The first bytes of UTF-8 characters, in equivalence classes: the bytes of one group have the same continuations. A
    group is the list of kinds, or groups, that the 64 next bytes lead to; -1 means no character. `kind` returns the
    kind of a character.
    """

    def __init__(self, kind: Callable[[str], int]):
        kinds = torch.full((0x110000,), -1)
        for plane in _PLANES:
            first = max(0x80, plane << 16)
            points = range(first, (plane + 1) << 16)
            kinds[first : points[-1] + 1] = torch.tensor([-1 if p >> 11 == 27 else kind(chr(p)) for p in points])
        of_one = self._grouped(kinds)
        of_one[1][864:896] = -1  # surrogates
        self.kinds = sorted(set(kinds.tolist()) - {-1})
        after_lead = of_one[1].clone()
        after_lead[:32] = -1  # two bytes would do
        of_two = self._grouped(after_lead)
        after_lead = torch.cat([of_two[1], of_two[1].new_full((48,), -1)])
        after_lead[:16] = -1  # three bytes would do
        of_three = self._grouped(after_lead)
        # For each number of missing bytes these are the successors of each group, and the group of the first bits of
        # each code point.
        self._rows = {n: of[0].tolist() for n, of in enumerate((of_one, of_two, of_three), 1)}
        self._group = {n: of[1].tolist() for n, of in enumerate((of_one, of_two, of_three), 1)}

    @staticmethod
    def _grouped(values):
        rows, group = values.view(-1, 64).unique(dim=0, return_inverse=True)
        return rows, torch.where((rows < 0).all(dim=1)[group], -1, group)

    def groups(self) -> list[tuple[int, int]]:
        """Return the groups: missing bytes and group of all incomplete characters."""
        return [(missing, group) for missing, of in self._group.items() for group in sorted({*of} - {-1})]

    def is_common(self, missing: int, group: int) -> bool:
        """Return whether a group is common: its first character is in a block of living scripts or emoji."""
        first = self._group[missing].index(group) << 6 * missing
        return first < 0x3400 or 0xF900 <= first < 0x10000 or 0x1F000 <= first < 0x1FB00 or missing > 1

    def row(self, missing: int, group: int) -> list[int]:
        """Return the group or kind that each of the 64 next bytes leads to."""
        return self._rows[missing][group]

    def begun(self, data: bytes) -> tuple[int, int]:
        """Return the missing bytes and the group of a begun character, from its first bytes."""
        missing = 1 if data[0] < 0xE0 else 2 if data[0] < 0xF0 else 3
        group = self._group[missing][data[0] & (0x1F, 0x0F, 0x07)[missing - 1]]
        for byte in data[1:]:
            group, missing = self._rows[missing][group][byte - 0x80] if group >= 0 else -1, missing - 1
        return missing, group
