"""Units of length that are finite automata over characters: a user's unit, a sum of costs, and terminal columns."""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from numbers import Integral
from typing import Any

import torch


try:
    from wcwidth import wcswidth
except ImportError:  # a checkpoint from the Hub loads without this package
    wcswidth = None  # type: ignore[assignment]


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")  # characters for which `wcswidth` returns -1, and U+0000
# One character of each kind that `wcswidth` treats differently: narrow, digit (wide before U+FE0F), narrow and wide
# emoji, ideograph, combining mark, spacing mark, virama, joiner, variation selectors, regional indicator, skin tone.
_KINDS = "a1\u00a9\u65e5\u231a\U0001f02c\U0001f0cf\u0301\u0903\u094d\u200d\ufe0e\ufe0f\U0001f1e6\U0001f3fd"
_AROUND = [  # (text before, text after) a character, so that the kinds have different widths
    *[("", ""), ("a", ""), ("\u65e5", ""), ("\u00a9", ""), ("", "\ufe0f"), ("", "\ufe0e"), ("", "\u0903")],
    *[("", "\u094da"), ("\u094d", ""), ("", "\U0001f3fd"), ("", "\u200da"), ("\U0001f1e6", "")],
    *[("\u00a9", "\ufe0f"), ("\u00a9", "a")],
]
_ENDINGS = ["".join(kinds) for n in (1, 2, 3) for kinds in itertools.product(_KINDS, repeat=n)]
_ENDINGS += ["\u0301" + ending for ending in _ENDINGS if len(ending) == 3]  # after a joiner, `wcswidth` skips the mark
_SEQUENCES = [  # joined emoji, flags, a keycap, jamo, conjuncts, a line end, ligatures, digraphs, words
    *("\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", "1\ufe0f\u20e3"),
    *("\U0001f3f4\U000e0067\U000e0062\U000e007f", "\u1112\u1161\u11ab", "\u0915\u094d\u0937\u093f", "\u0e01\u0e33"),
    *("e\u0301", "\r\n", "AVATAR", "office", "ij lj nj sz", "https://example.org/a", "two words, and 3.50 more."),
]
_PLANES = (0, 1, 2, 3, 14, 15, 16)  # planes of Unicode that have characters
# Ranges of code points of one kind each: ideographs, private-use characters, and the unused part of plane 14.
# The last two code points of a plane are not characters.
_UNIFORM = tuple(range(*ends) for ends in ((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xE000, 0xF900), (0xE1000, 0xEFFFE)))
_UNIFORM += tuple(range(plane << 16, (plane << 16) + 0xFFFE) for plane in (2, 3, 15, 16))
_COMMON = 100  # number of most frequent characters whose pairs `check_sum` checks
_DEAREST = 1024  # highest cost of one character; tables for exact lengths grow with this cost
_FEW_KINDS = 100  # number of kinds whose transitions are computed first
_MOST_CONTEXTS = 120  # maximum number of states; the unit table may need two for each, and stores a state in a byte


def count_columns(text: str) -> int:
    """
    Count the terminal columns of a text: the sum of `wcwidth.wcswidth` over the parts between control characters.
    Raise `ImportError` if the package `wcwidth` is not installed.
    """
    if wcswidth is None:
        raise ImportError("length_unit='width' counts with the package wcwidth; pip install wcwidth")
    return sum(map(wcswidth, _CONTROL.split(text)))


class Unit:
    """
    A unit of length: a finite automaton that reads the characters of a text from left to right. A unit can count
    anything that needs only a finite memory, such as groups of vowels, or pixels with kerning.

    Args:
        start: The state before the text. A state is any hashable value; a unit may have at most 120 states.
        step (`Callable`): The transition function. Its arguments are a state and the kind of a character. The function
            returns `(units, state)`: the units that the character adds, an integer from 0 to 1024, and the next state.
            If a constraint must forbid the character in this state, the function returns `(units, state, False)`.
        kind (`Callable`, *optional*): A function from a character to its kind, any hashable value; by default the
            character itself. Characters of the same kind have the same transitions. A byte-level tokenizer can emit
            450,000 different characters, so a function with few kinds saves time.
        count (`Callable`, *optional*): A function from a text to its number of units; by default `add_up`.
        name (`str`, *optional*, defaults to `"unit"`): The name of the unit in messages.

    Raises:
        `ValueError`: if `step` returns an invalid number of units, or if there are too many states.

    Example:

    ```python
    >>> from hf_lenctrl import Unit
    >>> groups = Unit(False, lambda inside, vowel: (int(vowel and not inside), vowel), kind=lambda c: c in "aeiou")
    >>> groups.count("a queue of boats")
    4

    ```
    """

    def __init__(
        self,
        start: Hashable,
        step: Callable[[Any, Any], tuple],
        kind: Callable[[str], Hashable] = str,
        *,
        count: Callable[[str], int] | None = None,
        name: str = "unit",
    ):
        self.name, self.count = name, count or self.add_up
        self._step_of, self._kind_of = step, kind
        self._states, self._context_of = [start], {start: 0}
        self._values: list[Hashable] = []  # the kinds; the index of a kind is its id
        self._kind_number: dict[Hashable, int] = {}
        self._kinds: dict[str, int] = {}
        self.uniform: tuple[range, ...] = ()  # code points of a range have the same kind
        self._steps: dict[tuple[int, int], tuple[int, int, bool]] = {}

    def __str__(self) -> str:
        return self.name

    def add_up(self, text: str) -> int:
        """Return the number of units of a text: the sum of the units that its characters add."""
        units = context = 0
        for character in text:
            more, context, _ = self.step(context, self.kind(character))
            units += more
        return units

    def kind(self, character: str) -> int:
        """Return the id of a character's kind, an index from 0."""
        if character not in self._kinds:
            value = self._kind_of(character)
            if value not in self._kind_number:
                self._kind_number[value] = len(self._values)
                self._values.append(value)
            self._kinds[character] = self._kind_number[value]
        return self._kinds[character]

    def step(self, context: int, kind: int) -> tuple[int, int, bool]:
        """
        Return the transition from the state with the id `context`, for a character whose kind has the id `kind`. The
        transition is a tuple: the units that the character adds, the id of the next state, and whether a constraint
        may allow the character.
        """
        if (context, kind) not in self._steps:
            self._steps[context, kind] = self._first_step(context, self._values[kind])
        return self._steps[context, kind]

    def _first_step(self, context: int, value: Any) -> tuple[int, int, bool]:
        """Compute and check the transition of `step` for the kind `value`, and give a new next state an id."""
        units, state, *may = self._step_of(self._states[context], value)
        if not isinstance(units, Integral) or not 0 <= int(units) <= _DEAREST:
            raise ValueError(f"a step must add 0 to {_DEAREST} units, a whole number, got {units!r} for {value!r}")
        if state not in self._context_of:
            if len(self._states) == _MOST_CONTEXTS:
                raise ValueError(f"a unit may have {_MOST_CONTEXTS} states, got {state!r} as one more; merge some")
            self._context_of[state] = len(self._states)
            self._states.append(state)
        return int(units), self._context_of[state], all(may)

    def loose(self, context: int) -> int | None:
        """
        Return the id of the merged state that represents the state `context` and similar states. Return `None` if
        there is none, as always in this class; see `Columns.loose`.
        """
        return None

    def alike(self) -> list[int]:
        """
        Return a list with an item for each kind: the id of the first kind that has the same transition in every state.
        """
        for context, _ in enumerate(self._states):  # too many states are refused here, before the many kinds
            for value in self._values[:_FEW_KINDS]:
                self._first_step(context, value)
        classes = [0] * len(self._values)
        for context, _ in enumerate(self._states):  # the list grows, because a transition may add a state
            known: dict[tuple, int] = {}
            steps = (self._first_step(context, value) for value in self._values)
            classes = [known.setdefault(pair, len(known)) for pair in zip(classes, steps, strict=True)]
        first: dict[int, int] = {}
        return [first.setdefault(number, kind) for kind, number in enumerate(classes)]

    @functools.cached_property
    def opened(self) -> "OpenCharacters":
        """
        Return the groups of incomplete characters (characters of which only the first bytes are written). A unit table
        needs the groups if vocabulary entries split characters.
        """
        return OpenCharacters(self)


class Cost(Unit):
    """
    A unit whose automaton has one state: the cost of a text is the sum of the costs of its characters. `cost` is a
    function from a text to its cost. The kind of a character is its cost. Raise `ValueError` if the cost of a
    character is not an integer from 0 to 1024, or if the empty text has a cost other than 0.
    """

    def __init__(self, cost: Callable[[str], int], name: str = "cost"):
        super().__init__(None, lambda state, units: (units, state), self._check, count=cost, name=name)
        if self._check(""):
            raise ValueError(f"a text of no characters must cost 0, but cost('') is {cost('')!r}")

    def _check(self, text: str) -> int:
        units = self.count(text)
        if isinstance(units, bool) or not isinstance(units, Integral) or not 0 <= units <= _DEAREST:
            raise ValueError(f"a character must cost 0 to {_DEAREST}, a whole number, but cost({text!r}) is {units!r}")
        return int(units)

    def check_sum(self, texts: list[str]) -> None:
        """
        Raise `ValueError` if the cost of a text is not the sum of the costs of its characters. Check `texts` (texts of
        vocabulary entries), the pairs of their most frequent characters, and built-in sequences. The built-in
        sequences are characters that combine, such as the characters of a flag emoji; vocabulary entries seldom
        contain them.
        """
        common = [character for character, _ in Counter("".join(texts)).most_common(_COMMON)]
        pairs = ["".join(first + second for second in common) for first in common]
        probes = [text for text in [*_SEQUENCES, *_ENDINGS] if all(map(self._is_known, text))]
        for text in [*texts, *probes, *pairs]:
            whole, parts = self.count(text), self.add_up(text)
            if whole != parts:
                raise ValueError(f"a cost must add up over characters, but cost({text!r}) is {whole!r}, not {parts}")

    def _is_known(self, character: str) -> bool:
        """Return whether the user's function has a cost for a character, and does not raise an error."""
        try:
            return self.kind(character) >= 0
        except Exception:
            return False


class Learned(Unit):
    """
    A unit whose automaton is learned from `measure`, a function from a text to its number of units. `endings` are
    texts to append. Two texts lead to the same state if each ending adds the same number of units to both texts.
    `kind` is a function from a character to the character that represents all similar characters. `options` are
    further arguments of `Unit`.

    A constraint forbids a character that reduces the number of units of a text.
    """

    def __init__(
        self, measure: Callable[[str], int], endings: Sequence[str], kind: Callable[[str], str], **options: Any
    ):
        self._measure, self._endings = measure, endings
        self._text_of = {self._signature(""): ""}
        self._grown: dict[str, tuple[int, str, bool]] = {}
        super().__init__("", self._grow, kind, **{"count": measure, **options})

    def _signature(self, text: str) -> tuple[int, ...]:
        base = self._measure(text)
        return tuple([units - base for units in map(self._measure, map(text.__add__, self._endings))])

    def _grow(self, text: str, character: str) -> tuple[int, str, bool]:
        grown = text + character
        if grown not in self._grown:
            units = self._measure(grown) - self._measure(text)
            state = self._text_of.setdefault(self._signature(grown), grown)
            self._grown[grown] = max(units, 0), state, units >= 0
        return self._grown[grown]


class Columns(Learned):
    """
    The unit `"width"`, which counts terminal columns like `count_columns`. The automaton is learned from the installed
    version of `wcswidth`. The width of a sequence with joiners, variation selectors, flags or conjuncts is not the sum
    of the widths of its characters, so a `Cost` is not enough.

    A constraint forbids control characters other than the newline. It also forbids U+FE0E after a wide emoji, because
    U+FE0E makes the emoji narrow.
    """

    def __init__(self):
        count_columns("")
        self._examples: dict[tuple[int, ...], str] = {}  # one character of each kind
        super().__init__(wcswidth, _ENDINGS, self._example, count=count_columns)
        self.uniform = _UNIFORM
        for character in ["\n", "\t", *_KINDS]:
            self.kind(character)

    def _example(self, character: str) -> str:
        point = ord(character)
        for points in _UNIFORM:
            if point in points and point != points.start:
                return str(self._values[self.kind(chr(points.start))])
        if _CONTROL.match(character):
            return "\n" if character == "\n" else "\t"
        widths = tuple([wcswidth(before + character + after) for before, after in _AROUND])
        return self._examples.setdefault(widths, character)

    def _grow(self, text: str, character: str) -> tuple[int, str, bool]:
        return (0, "", character == "\n") if character in "\n\t" else super()._grow(text, character)

    def step(self, context: int, kind: int) -> tuple[int, int, bool]:
        """Return a transition, as `Unit.step` does, also from a merged state, whose id is below 0, see `loose`."""
        if context < 0 and (context, kind) not in self._steps:
            self._steps[context, kind] = self._loose_step(context, kind)
        return super().step(context, kind)

    def loose(self, context: int) -> int | None:
        """
        Return the id of the merged state that represents the state `context`. The id is -1 for states in which each
        base character (such as a letter, an ideograph or an emoji) has the same transition as at the start of a text.
        The id is -2 for other states that follow a joiner (U+200D) after one of these states. Return `None` for all
        other states.
        """
        return self._stands.get(context)

    @functools.cached_property
    def _stands(self) -> dict[int, int]:
        several = reversed(self._several.items())
        return {one: stands for stands, contexts in several for one in (stands, *contexts)}

    @functools.cached_property
    def _several(self) -> dict[int, list[int]]:
        kinds, contexts = range(len(self._values)), [0]
        for context in contexts:
            contexts += dict.fromkeys(to for k in kinds if (to := self.step(context, k)[1]) not in contexts)
        bases, joiner = [self.kind(base) for base in _KINDS[:7] + "\U0001f1e6"], self.kind("\u200d")
        text = [c for c in contexts if all(self.step(c, base) == self.step(0, base) for base in bases)]
        return {-1: text, -2: sorted({self.step(c, joiner)[1] for c in text})}

    def _loose_step(self, context: int, kind: int) -> tuple[int, int, bool]:
        """
        Return the transition from a merged state: the most units over its states. A constraint may allow the character
        only if all these states allow it and add the same units, and one state, original or merged, represents all
        their next states.
        """
        steps = {self.step(one, kind) for one in self._several[context]}
        units, to = {units for units, _, _ in steps}, {to for _, to, _ in steps}
        around = [stands for stands, several in self._several.items() if to <= set(several)]
        safe = len(units) == 1 and all(may for _, _, may in steps) and bool(len(to) == 1 or around)
        return max(units), to.pop() if len(to) == 1 else (around or [-1])[0], safe


class OpenCharacters:
    """
    The groups of incomplete UTF-8 characters (characters of which only the first bytes are written). A group is an
    equivalence class of first bytes that have the same continuations. Each group has a row with a value for each of
    the 64 possible next bytes. If the byte completes the character, the value is the id of the character's kind in
    `unit`. Otherwise the value is the group of the longer incomplete character. A value of -1 means that no character
    has these bytes.
    """

    def __init__(self, unit: Unit):
        kinds = torch.full((0x110000,), -1)
        for points in unit.uniform:
            kinds[points.start : points.stop] = unit.kind(chr(points.start))
        for plane in _PLANES:
            first = max(0x80, plane << 16)
            left = first + (kinds[first : (plane + 1) << 16] < 0).nonzero().squeeze(1)  # (points,)
            kinds[left] = torch.tensor([-1 if p >> 11 == 27 else unit.kind(chr(p)) for p in left.tolist()])
        kinds = torch.tensor([*unit.alike(), -1])[kinds]
        of_one = self._grouped(kinds)
        of_one[1][864:896] = -1  # surrogates
        self.kinds = sorted(set(kinds.tolist()) - {-1})
        after_lead = of_one[1].clone()
        after_lead[:32] = -1  # these characters have a shorter form, of two bytes
        of_two = self._grouped(after_lead)
        after_lead = torch.cat([of_two[1], of_two[1].new_full((48,), -1)])
        after_lead[:16] = -1  # these characters have a shorter form, of three bytes
        of_three = self._grouped(after_lead)
        # For each number of missing bytes: the row of each group, and the group for the first bits of each code point.
        self._rows = {n: of[0].tolist() for n, of in enumerate((of_one, of_two, of_three), 1)}
        self._group = {n: of[1].tolist() for n, of in enumerate((of_one, of_two, of_three), 1)}

    @staticmethod
    def _grouped(values):
        rows, group = values.view(-1, 64).unique(dim=0, return_inverse=True)
        return rows, torch.where((rows < 0).all(dim=1)[group], -1, group)

    def groups(self) -> list[tuple[int, int]]:
        """Return a pair for each group: the number of missing bytes, and the id of the group."""
        return [(missing, group) for missing, of in self._group.items() for group in sorted({*of} - {-1})]

    def is_common(self, missing: int, group: int) -> bool:
        """
        Return whether a group of incomplete characters is common. A group is common if two or more bytes are missing,
        or if its lowest code point is below U+3400, from U+F900 to U+FFFF, or from U+1F000 to U+1FAFF (emoji).
        """
        first = self._group[missing].index(group) << 6 * missing
        return first < 0x3400 or 0xF900 <= first < 0x10000 or 0x1F000 <= first < 0x1FB00 or missing > 1

    def row(self, missing: int, group: int) -> list[int]:
        """Return the row of a group: 64 values, one for each possible next byte, see `OpenCharacters`."""
        return self._rows[missing][group]

    def begun(self, data: bytes) -> tuple[int, int]:
        """
        Return two values for an incomplete character of which the bytes `data` are written: the number of missing
        bytes, and the id of the group. The id is -1 if no character begins with these bytes.
        """
        missing = 1 if data[0] < 0xE0 else 2 if data[0] < 0xF0 else 3
        group = self._group[missing][data[0] & (0x1F, 0x0F, 0x07)[missing - 1]]
        for byte in data[1:]:
            group, missing = self._rows[missing][group][byte - 0x80] if group >= 0 else -1, missing - 1
        return missing, group
