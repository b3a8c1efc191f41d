"""Constraints in two units at the same time: a constraint on the length, and a maximum in a second unit."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from transformers.generation import LogitsProcessor

from .length_rules import Rules, end_spent, rules_of
from .length_units import RunningCount, Unit, UnitTable, check_unit, known_table
from .lengths import LONGEST, as_length_tensor, plural


_NEVER = LONGEST


def units_apart(length, unit: str | Unit) -> tuple[Any, tuple[str, Any] | None]:
    """
    Separate the units of a length such as `{"character": 30, "word": 6}`. Return two values: the length in `unit`, and
    the pair `(other unit, its limit)`. If `length` is not a dictionary, return `length` and `None`. Raise `ValueError`
    unless the dictionary has exactly two known units, including `unit`.
    """
    if not isinstance(length, Mapping):
        return length, None
    for name in length:
        check_unit("unit of a length", name)
    if len(length) != 2 or unit not in length:
        raise ValueError(
            f"a length in several units has two, one of them {unit!r}, got {dict(length)}; "
            f"pass length={{{unit!r}: 30, {'byte' if unit == 'word' else 'word'!r}: 6}}"
        )
    other = next(name for name in length if name != unit)
    return length[unit], (other, length[other])


def check_pair(constraint: str | None) -> str:
    """Return `constraint`. Raise `ValueError` if it is `None`, because two units need a constraint."""
    if constraint is None:
        raise ValueError("a length in two units needs a constraint, got None; pass 'max' or 'exact', or one unit")
    return constraint


def other_limit(
    other: tuple[str, Any], tokenizer, table: UnitTable, batch_size: int
) -> tuple[UnitTable, torch.Tensor]:
    """
    Convert `other`, a pair of the second unit and its limit, to the form of `Target.other`. Return a pair: the unit
    table of the second unit, padded to the size of `table`, and the limit of each example, `(batch_size,)`. `table` is
    the unit table of the first unit. Raise `ValueError` if the tokenizer is missing, and `TypeError` or `ValueError`
    if the unit or the limit is invalid.
    """
    unit, most = other
    if tokenizer is None:
        raise ValueError(
            f"length={{{table.unit!r}: ..., {unit!r}: ...}} needs a tokenizer to count {plural(unit)}; "
            "pass tokenizer=tokenizer"
        )
    device = table.weights.device
    return known_table(tokenizer, unit, table.weights.shape[1], device), as_length_tensor(most, batch_size, device)


class PairConstraintLogitsProcessor(LogitsProcessor):
    """
    A logits processor for a constraint on the length and a limit in a second unit. A vocabulary entry is allowed only
    if the text can still end within both limits.

    Two separate masks are not enough, because the ending with the fewest words may have too many characters. So this
    class searches the product of the two automata. For each pair of states and each remaining length in the first
    unit, a dynamic program finds the minimum length that the rest of the text needs in the second unit. No output
    exceeds a limit. An output may miss an exact length if it reaches the maximum number of tokens too early, for
    example because some of its entries add no units in the first unit. `generate` then warns.

    Args:
        first (`LengthConstraintLogitsProcessor`): The constraint on the length in the first unit.
        table (`UnitTable`): Unit table of the second unit, for the same vocabulary.
        most (`torch.LongTensor` of shape `(batch_size,)`): The limits in the second unit.

    Raises:
        `ValueError`: if no text can keep both limits.
    """

    supports_continuous_batching = False

    def __init__(self, first: Any, table: UnitTable, most: torch.Tensor):
        table.require_filled()
        self.first, self.second, self.most = first, table, most
        self.running = first.running, RunningCount(table, first.prompt_length)
        self.rules = first.rules, rules_of(table, tuple(first.rules.eos.tolist()), "max")
        exact = first.constraint == "exact"
        slack = first.high - first.low if exact else torch.full_like(first.high, _NEVER)  # (B,)
        kinds, self.kind = slack.unique(return_inverse=True)  # (B,) index of each example's table in `needs`
        self.slack = slack
        pairs = _Pairs(*self.rules)
        needs = torch.stack([pairs.needs(kind, int(first.high.max())) for kind in kinds.tolist()])  # (kinds, P, K)
        self.needs, self.index = needs.to(most.device), pairs.index.to(most.device)
        self._check_start()

    def _check_start(self) -> None:
        last = self.needs.shape[2] - 1
        least = self.needs[self.kind, 0, self.first.high.clamp(max=last)]  # (B,)
        for i in (least > self.most).nonzero().squeeze(1).tolist():
            needed = (
                f"need at least {int(least[i])} {plural(self.second.unit)}"
                if least[i] < _NEVER
                else "cannot be written"
            )
            limit = f"the limit is {int(self.most[i])} {plural(self.second.unit)}"
            raise ValueError(f"{self.first.asked(i)} {needed}, {limit}; raise it, or pass length_constraint='max'")

    def __call__(self, input_ids, scores):
        """Return a copy of `scores` with `-inf` for entries after which the text cannot end within both limits."""
        kept = self.first(input_ids, scores)
        copies = len(scores) // len(self.most)
        counts, states = zip(*(running(input_ids) for running in self.running), strict=True)
        left = tuple(
            limit.repeat_interleave(copies) - count
            for limit, count in zip((self.first.high, self.most), counts, strict=True)
        )  # (rows,) each
        allowed, may_end = self._allowed(states, left, copies)
        if input_ids.shape[1] - self.first.prompt_length <= 2:  # allow a language code, as the first constraint does
            start = (counts[0] == 0) & (counts[1] == 0)
            silent = self.rules[0].silent
            allowed[:, silent] |= start.unsqueeze(1)
        kept = kept.masked_fill(~allowed, -math.inf)
        spent = (left[1] <= 0).nonzero().squeeze(1)
        end_spent(kept, spent, scores[spent].max(dim=-1), self.rules[0].eos)
        empty = ~(kept > torch.finfo(kept.dtype).min).any(dim=1)
        if bool(empty.any()):
            if (room := self.first.entries_left(input_ids)) is not None:
                allowed &= self.rules[0].ends_within(states[0], room) == 0
            kept[empty] = self._fallback_scores(scores[empty], allowed[empty], may_end[empty]).to(kept.dtype)
        return kept

    # `generate` inspects the signature at each step.
    __call__.__signature__ = inspect.signature(__call__)  # type: ignore[attr-defined]

    def _allowed(self, states, left, copies: int):
        """
        Return two boolean tensors: which entries are allowed, `(rows, V)`, and in which rows EOS stays within both
        upper limits, `(rows,)`. `states` and `left`, the units that remain, are pairs of tensors `(rows,)`, one for
        each unit.
        """
        first, second = self.rules
        slack = self.slack.repeat_interleave(copies)
        kind = self.kind.repeat_interleave(copies).unsqueeze(1)
        places = [(state.unsqueeze(1), rules.column) for rules, state in zip(self.rules, states, strict=True)]
        weights = [rules.weights[place] for rules, place in zip(self.rules, places, strict=True)]  # (rows, V) each
        following = self.index[first.following[places[0]], second.following[places[1]]]  # (rows, V)
        after = left[0].unsqueeze(1) - weights[0]
        needed = self.needs[kind, following.clamp(min=0), after.clamp(0, self.needs.shape[2] - 1)]
        allowed = (first.cost[places[0]] < _NEVER) & (second.cost[places[1]] < _NEVER)
        allowed &= (following >= 0) & (after >= 0) & (weights[1] + needed <= left[1].unsqueeze(1))
        ends = [rules.last[state] for rules, state in zip(self.rules, states, strict=True)]  # (rows, eos) each
        fits = (ends[0] <= left[0].unsqueeze(1)) & (ends[1] <= left[1].unsqueeze(1))
        allowed[:, first.eos] = fits & (left[0].unsqueeze(1) - ends[0] <= slack.unsqueeze(1))
        return allowed, fits.any(dim=1)

    def _fallback_scores(self, scores, allowed, may_end):
        """
        Return new scores for rows in which the masks of `__call__` left no entry. Allow the first of these that is
        possible: (1) the entries in `allowed`, with their `scores`; (2) EOS, if the text may end here or if `allowed`
        is empty; (3) the entries in `allowed`, with score 0, although other processors forbid them.
        """
        given = scores.masked_fill(~allowed, -math.inf)
        ends = torch.full_like(scores, -math.inf)
        ends[:, self.rules[0].eos] = 0.0
        completes = torch.zeros_like(scores).masked_fill(~allowed, -math.inf)
        out = torch.where((may_end | ~allowed.any(dim=1)).unsqueeze(1), ends, completes)
        possible = (given > torch.finfo(given.dtype).min).any(dim=1, keepdim=True)
        return torch.where(possible, given, out)


class _Pairs:
    """
    The product automaton of two unit tables, with `S1` and `S2` states: the pairs of states that a text can reach, and
    the transitions between the pairs.

    Attributes:
        index (`torch.LongTensor` of shape `(S1, S2)`): Id of each pair: 0 for the start, -1 if unreachable.
        moves (`torch.LongTensor` of shape `(4, M)`): A column for each transition: the id of the pair before, the id
            of the pair after, and the added units in the first and in the second table.
        ends (`torch.LongTensor` of shape `(3, E)`): A column for each possible end: the id of the pair, and the units
            of EOS in the first and in the second table.
    """

    def __init__(self, first: Rules, second: Rules):
        counts = len(first.weights), len(second.weights)
        self.index = torch.full(counts, -1, dtype=torch.long)
        self.index[0, 0] = 0
        widths = [int(rules.weights.max()) + 1 for rules in (first, second)]
        size, text = second.cost.shape[1], ~torch.isin(first.column, first.eos_column)
        columns = (first.column * size + second.column)[text].unique()
        mine, its = columns // size, columns % size  # (N,) each: the distinct column pairs of entries
        pairs: list[tuple[int, int]] = [(0, 0)]
        moves: list[torch.Tensor] = []
        ends: list[tuple[int, ...]] = []
        for number, (a, b) in enumerate(pairs):  # breadth-first search: `pairs` grows in the loop
            use = (first.cost[a, mine] < _NEVER) & (second.cost[b, its] < _NEVER)  # (N,)
            code = first.following[a, mine] * counts[1] + second.following[b, its]
            code = ((code * widths[0] + first.weights[a, mine]) * widths[1] + second.weights[b, its])[use]
            code = code.unique().cpu()
            code, units = code // widths[1], code % widths[1]
            to, own = code // widths[0], code % widths[0]
            for state in to.unique().tolist():
                place = divmod(state, counts[1])
                if self.index[place] < 0:
                    self.index[place] = len(pairs)
                    pairs.append(place)
            to = self.index.flatten()[to]
            moves.append(torch.stack([torch.full_like(to, number), to, own, units]))
            for units_of in zip(first.last[a].tolist(), second.last[b].tolist(), strict=True):
                if max(units_of) < _NEVER:
                    ends.append((number, *units_of))
        self.count = len(pairs)
        self.moves = torch.cat(moves, dim=1)
        self.ends = torch.tensor(ends, dtype=torch.long).reshape(-1, 3).T

    def _cheapest(self) -> torch.Tensor:
        """
        Return the `moves` that are needed if a text may also end earlier. A move is not needed if another move between
        the same pairs adds at most as many units in the first table and at most as many in the second table.
        """
        here, to, _, units = self.moves  # columns between the same pairs are neighbours, in the order of their units
        group = (here * self.count + to).unique_consecutive(return_inverse=True)[1]
        rank = units - group * (int(units.max()) + 1 if len(units) else 1)  # so that each group begins a new minimum
        kept = torch.ones_like(rank, dtype=torch.bool)
        kept[1:] = rank[1:] < rank.cummin(0).values[:-1]
        return self.moves[:, kept]

    def needs(self, slack: int, high: int) -> torch.Tensor:
        """
        Return a tensor `(P, K)` with a row for each of the `P` pairs of states (one state of each unit table). Column
        `k` is for texts that end after `k - slack` to `k` more units of the first table. The value is the minimum
        number of units of the second table that such a text still adds, or `_NEVER` if no text can end in this way.
        `k` goes from 0 to `high`. The tensor ends earlier if all later columns equal the last one.
        """
        moves = self._cheapest() if slack >= _NEVER else self.moves
        here, to, own, units = moves
        width = max(int(own.max()) if len(own) else 0, int(self.ends[1].max()) if len(self.ends[1]) else 0, 1)
        idle = own == 0
        later = [part[~idle] for part in moves]
        same = [part[idle] for part in moves]
        found = torch.full((self.count, width + high + 1), _NEVER)  # the first `width` columns are for `k` below 0
        for k in range(high + 1):
            best = torch.full((self.count,), _NEVER)
            ending = (self.ends[1] <= k) & (k - self.ends[1] <= slack)
            best.scatter_reduce_(0, self.ends[0][ending], self.ends[2][ending], "amin")
            best.scatter_reduce_(0, later[0], later[3] + found[later[1], width + k - later[2]], "amin")
            while len(same[0]):  # fixed-point iteration over entries that add no units of the first table
                less = best.scatter_reduce(0, same[0], same[3] + best[same[1]], "amin")
                if torch.equal(less, best):
                    break
                best = less
            found[:, width + k] = best.clamp(max=_NEVER)
            if (
                slack >= _NEVER
                and k >= width
                and bool((found[:, k : width + k] == best.clamp(max=_NEVER)[:, None]).all())
            ):
                return found[:, width : width + k + 1]
        return found[:, width:]
