"""What a request to an engine asks for, and what was counted of its text; needs no engine."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from ..length_constraint import LengthConstraintLogitsProcessor
from ..length_units import LENGTH_UNITS, UnitTable
from ..lengths import LENGTH_CONSTRAINTS, check_length, check_name, check_tolerance, window_of


FIELDS = ("length", "length_unit", "length_constraint", "length_tolerance")
CALL = 'pass {"length": 75, "length_unit": "character", "length_constraint": "max"}'


@dataclass(frozen=True)
class Asked:
    """The length of a request: its unit, its constraint, and the units between which a text may end."""

    unit: str
    constraint: str
    low: int
    high: int

    @classmethod
    def of(cls, extra_args: dict[str, Any] | None) -> "Asked | None":
        """
        The length that the arguments of a request name; `None` where they name none.

        Args:
            extra_args (`dict`, *optional*): With `length` (`int`) and, where they are not the default,
                `length_unit` (`"token"`), `length_constraint` (`"max"`) and `length_tolerance`: units, a share, or a
                list of two, below and above.

        Raises:
            `ValueError`: for a length, unit, constraint or tolerance that is none, or without a length.
        """
        given = {name: extra_args[name] for name in FIELDS if extra_args and extra_args.get(name) is not None}
        if not given:
            return None
        if "length" not in given:
            raise ValueError(f"{next(iter(given))} goes with a length, got {given}; {CALL}")
        length, unit = given["length"], given.get("length_unit", "token")
        constraint, tolerance = given.get("length_constraint", "max"), given.get("length_tolerance")
        try:
            check_length(length)
            check_name("length_unit", unit, LENGTH_UNITS)
            check_name("length_constraint", constraint, LENGTH_CONSTRAINTS)
            tolerance = tuple(tolerance) if isinstance(tolerance, list) else tolerance
            check_tolerance(tolerance, constraint)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{error}; {CALL}") from error
        ends = ([length], [length]) if tolerance is None else window_of([length], tolerance)
        return cls(unit, constraint, ends[0][0], ends[1][0])


class Point(NamedTuple):
    """A text so far: its tokens, its units, and its state in the unit table."""

    tokens: int
    units: int
    state: int


class Counter:
    """The table of a unit, on the device for masks and on the host for counts."""

    def __init__(self, table: UnitTable, device: torch.device):
        self.weights, self.following = table.weights.cpu().numpy(), table.next_state.cpu().numpy()
        self.table = table.to(device)
        self.processes: dict[tuple, LengthConstraintLogitsProcessor] = {}

    def start(self, prompt: Sequence[int] | None) -> Point:
        """
        Where an output starts. An engine decodes it after the prompt, so that a space before its first word stays,
        unless the prompt has no text. A word begins there in any case.
        """
        ids = np.asarray(prompt if prompt else [], dtype=np.int64)
        known = ids[(ids >= 0) & (ids < self.following.shape[1])]  # an image stands beyond the vocabulary
        if len(self.following) == 1 or not self.following[0, known].any():
            return Point(0, 0, 0)
        return Point(0, 0, 2 if self.table.unit == "word" else 1)

    def after(self, point: Point, tokens: Sequence[int]) -> Point:
        """The text with more tokens; what no text may hold counts too."""
        written, units, state = point
        for token in tokens:
            token = max(int(token), 0)  # -1 is a draft that will be rejected
            weight = int(self.weights[state, token])
            written, units, state = written + 1, units + max(weight, ~weight), int(self.following[state, token])
        return Point(written, units, state)

    def process(self, constraint: str, eos: tuple[int, ...]) -> LengthConstraintLogitsProcessor:
        """The processor of a constraint and EOS, made once; `constrain` is given the lengths."""
        if (key := (constraint, eos)) not in self.processes:
            self.processes[key] = LengthConstraintLogitsProcessor(self.table, 1, constraint, eos_token_id=list(eos))
        return self.processes[key]


@dataclass
class Row:
    """A row of logits: what its request asks for, the text so far, what ends it and the most tokens it may have."""

    index: int
    asked: Asked
    point: Point
    eos: tuple[int, ...]
    limit: int


def mask(logits: torch.Tensor, rows: list[Row], counters: dict[str, Counter]) -> torch.Tensor:
    """
    Forbid what the constraint of each row forbids, as `LengthConstraintLogitsProcessor` does.

    Args:
        logits (`torch.FloatTensor` of shape `(rows, vocab_size)`): Also with rows that ask for nothing.
        rows (`list[Row]`): Those that ask for a length, in order.
        counters (`dict[str, Counter]`): For each unit.

    Returns:
        `torch.FloatTensor` of shape `(rows, vocab_size)`: `logits`, changed in place.
    """
    groups: dict[tuple, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.asked.unit, row.asked.constraint, row.eos].append(row)
    # on a CPU at most 8 MiB at a time: new pages of memory for larger tensors cost more than the mask
    most = len(logits) if logits.is_cuda else max(1, 2**21 // logits.shape[1])
    parts = [(key, group[i : i + most]) for key, group in groups.items() for i in range(0, len(group), most)]
    for (unit, constraint, eos), group in parts:
        asked, points = [r.asked for r in group], [r.point for r in group]
        facts = [
            (r.index, p.state, a.high - p.units, a.high - a.low, r.limit - p.tokens - 2)
            for r, a, p in zip(group, asked, points, strict=True)
        ]
        index, state, remaining, slack, left = torch.tensor(facts, device=logits.device).T
        window = slack if any(a.low < a.high for a in asked) else None
        begun = [p.tokens > 2 or p.units > 0 for p in points]
        start = None if all(begun) else ~torch.tensor(begun, device=logits.device)
        first, last = group[0].index, group[-1].index
        together = last - first + 1 == len(group)  # a slice is not copied
        part = logits[first : last + 1] if together else logits[index]
        counters[unit].process(constraint, eos).constrain(part, state, remaining, window, left, start)
        if not together:
            logits[index] = part
    return logits
