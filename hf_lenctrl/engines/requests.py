"""
Read the requested length of a request to an engine, count the units of the text, and mask the logits. The module
itself needs no engine.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from ..inference.presets import limit_of
from ..length_constraint import LengthConstraintLogitsProcessor
from ..length_units import LENGTH_UNITS, UnitTable
from ..lengths import LENGTH_CONSTRAINTS, check_length, check_name, check_tolerance, window_of
from ..thoughts import AnswerMarker, Thoughts, check_thinking


FIELDS = ("length", "length_unit", "length_constraint", "length_tolerance", "length_from", "thinking_budget")
CALL = 'pass {"length": 75, "length_unit": "character", "length_constraint": "max"}'


@dataclass(frozen=True)
class Asked:
    """The requested length of a request: unit, constraint, lowest and highest length."""

    unit: str
    constraint: str
    low: int
    high: int
    length_from: str | tuple[int, ...] | None = None  # the marker that ends the thoughts (reasoning text)
    budget: int | None = None  # maximum number of tokens of the thoughts

    @property
    def counted(self) -> Any:
        """
        Return the key of this request in a dictionary of `Counter` objects: the unit, or the pair of the unit and
        `length_from` if the request has this marker.
        """
        return self.unit if self.length_from is None else (self.unit, self.length_from)

    @classmethod
    def of(cls, extra_args: dict[str, Any] | None) -> "Asked | None":
        """
        Return the requested length from the arguments of a request; `None` if the request has no length options.

        Args:
            extra_args (`dict`, *optional*): Length options of the request. `length` is an `int`, or the name of a
                predefined limit, such as `"bluesky"`. The others are optional. `length_unit` is a name in
                `LENGTH_UNITS` (default `"token"`), or `"module:name"` for a unit that the server has loaded.
                `length_constraint` has the default `"max"`. `length_tolerance` is a number of units, a share of the
                length, or a list of two such numbers, below and above the length. For a thinking model,
                `length_from` is the end-of-thoughts marker (a text or ids), after which the length is counted, and
                `thinking_budget` is the maximum number of tokens of the thoughts.

        Raises:
            `ValueError`: if the length is missing, or if the length, unit, constraint, tolerance, marker or budget is
                invalid.
        """
        given = {name: extra_args[name] for name in FIELDS if extra_args and extra_args.get(name) is not None}
        if not given:
            return None
        if "length" not in given:
            raise ValueError(f"{next(iter(given))} needs a length, got {given}; {CALL}")
        constraint, tolerance = given.get("length_constraint", "max"), given.get("length_tolerance")
        try:
            length, unit = limit_of(given["length"], given.get("length_unit"))
            unit = unit or "token"
            check_length(length)
            if not isinstance(unit, str) or ":" not in unit:  # a unit of the server's own has a colon
                check_name("length_unit", unit, LENGTH_UNITS)
            check_name("length_constraint", constraint, LENGTH_CONSTRAINTS)
            tolerance = tuple(tolerance) if isinstance(tolerance, list) else tolerance
            check_tolerance(tolerance, constraint)
            check_thinking(given.get("length_from"), given.get("thinking_budget"))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{error}; {CALL}") from error
        ends = window_of([length], tolerance or 0, constraint)
        marker = given.get("length_from")
        marker = tuple(marker) if isinstance(marker, list) else marker
        return cls(unit, constraint, ends[0][0], ends[1][0], marker, given.get("thinking_budget"))


class Point(NamedTuple):
    """
    The state of a text so far: its number of tokens (thoughts included), its number of units, and its state in the
    automaton of the unit table. This state is below 0 inside thoughts (reasoning text), see `Thoughts`.
    """

    tokens: int
    units: int
    state: int


class Counter:
    """
    A counter of the units of texts. It stores the unit table twice: on `device` for masks, and on the CPU for counts.
    With a `marker`, it counts only the answer after the marker.
    """

    def __init__(self, table: UnitTable, device: torch.device, marker: AnswerMarker | None = None):
        self.thoughts = None if marker is None else Thoughts(marker, table)
        if self.thoughts is not None:
            table = self.thoughts.table
        self.weights, self.following = table.weights.cpu().numpy(), table.next_state.cpu().numpy()
        self.table = table.to(device)
        self.processes: dict[tuple, LengthConstraintLogitsProcessor] = {}

    def start(self, prompt: Sequence[int] | None) -> Point:
        """
        Return the `Point` of an empty output after a prompt. Only its `state` depends on the prompt.

        An engine decodes the output as a continuation of the prompt. If the prompt has text, the state is therefore
        not the start state of the unit table, and a space before the first word of the output counts. The first word
        of the output always counts as a new word. With a `marker`, the state is inside the thoughts, unless the prompt
        ends with the marker.
        """
        ids = np.asarray(prompt if prompt else [], dtype=np.int64)
        known = ids[(ids >= 0) & (ids < self.following.shape[1])]  # the id of an image is beyond the vocabulary
        if self.thoughts is not None:
            return Point(0, 0, 0 if bool(self.thoughts.closed(torch.from_numpy(known).unsqueeze(0))) else ~0)
        if len(self.following) == 1 or not self.following[0, known].any():
            return Point(0, 0, 0)
        return Point(0, 0, 2 if self.table.unit == "word" else 1)

    def after(self, point: Point, tokens: Sequence[int]) -> Point:
        """
        Return the `Point` of a text after more tokens. `point` is the text before these tokens. Tokens that the unit
        table forbids (see `UnitTable`) also add their units.
        """
        written, units, state = point
        for token in tokens:
            token = max(int(token), 0)  # -1 is a draft that will be rejected
            if state < 0 and self.thoughts is not None:
                units, state = map(int, self.thoughts.behind(state, torch.tensor(token)))
                written += 1
                continue
            weight = int(self.weights[state, token])
            written, units, state = written + 1, units + max(weight, ~weight), int(self.following[state, token])
        return Point(written, units, state)

    def forced(self, row: "Row") -> int | None:
        """
        Return the id that `row` must produce next: the next id of the end-of-thoughts marker, if the thoughts of the
        row have used up their budget. Otherwise return `None`.
        """
        if self.thoughts is None or row.asked.budget is None or row.point.state >= 0:
            return None
        ids, over = self.thoughts.marker.ids, row.point.tokens - row.asked.budget
        return ids[over] if 0 <= over < len(ids) else None

    def process(self, constraint: str, eos: tuple[int, ...]) -> LengthConstraintLogitsProcessor:
        """
        Return the logits processor for a constraint and EOS ids, from a cache. The lengths are arguments of the
        processor's method `constrain`.
        """
        if (key := (constraint, eos)) not in self.processes:
            self.processes[key] = LengthConstraintLogitsProcessor(
                self.table, 1, constraint, eos_token_id=list(eos), length_from=self.thoughts
            )
        return self.processes[key]


@dataclass
class Row:
    """
    A row of logits: its `index`, the requested length (`asked`), the text so far (`point`), the EOS ids, and the
    maximum number of tokens in the text (`limit`).
    """

    index: int
    asked: Asked
    point: Point
    eos: tuple[int, ...]
    limit: int


def mask(logits: torch.Tensor, rows: list[Row], counters: dict[Any, Counter]) -> torch.Tensor:
    """
    Mask the tokens that the constraint of each row forbids, like `LengthConstraintLogitsProcessor`. A row inside its
    thoughts has no length constraint. When the thoughts have used up their budget, only the next token of the
    end-of-thoughts marker is allowed.

    Args:
        logits (`torch.FloatTensor` of shape `(rows, vocab_size)`): Logits, also of rows without a requested length.
        rows (`list[Row]`): Rows with a requested length, sorted by index.
        counters (`dict`): Maps `Asked.counted` of each row to its `Counter`.

    Returns:
        `torch.FloatTensor` of shape `(rows, vocab_size)`: `logits`, changed in place.
    """
    groups: dict[tuple, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.asked.counted, row.asked.constraint, row.eos].append(row)
    # on a CPU mask at most 8 MiB at a time, because allocating larger tensors takes longer than masking
    most = len(logits) if logits.is_cuda else max(1, 2**21 // logits.shape[1])
    parts = [(key, group[i : i + most]) for key, group in groups.items() for i in range(0, len(group), most)]
    for (counted, constraint, eos), group in parts:
        asked, points = [r.asked for r in group], [r.point for r in group]
        facts = [
            (r.index, p.state, a.high - p.units, a.high - a.low, r.limit - p.tokens - 2)
            for r, a, p in zip(group, asked, points, strict=True)
        ]
        index, state, remaining, slack, left = torch.tensor(facts, device=logits.device).T
        window = slack if any(a.low < a.high for a in asked) else None
        begun = [p.tokens > 2 or p.units > 0 or a.length_from is not None for p, a in zip(points, asked, strict=True)]
        start = None if all(begun) else ~torch.tensor(begun, device=logits.device)
        first, last = group[0].index, group[-1].index
        together = last - first + 1 == len(group)  # a slice is not copied
        part = logits[first : last + 1] if together else logits[index]
        counters[counted].process(constraint, eos).constrain(part, state, remaining, window, left, start)
        if not together:
            logits[index] = part
        for row in group:
            if (token := counters[counted].forced(row)) is not None:
                logits[row.index] = -math.inf
                logits[row.index, token] = 0.0
    return logits
