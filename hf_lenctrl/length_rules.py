"""Masks over the vocabulary for each state of a unit table and each remaining length, for the length constraints."""

import math
import threading
from collections import defaultdict
from functools import cache
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch

from .lengths import LONGEST
from .unit_vocabulary import columns_of


_NEVER = LONGEST  # the units of an entry that is never allowed
_SHARE = math.log(0.05)  # see `end_spent`
_MOST_ENTRIES = 16  # entries that one unit may take, such as white space and a word, each in bytes
_KEPT_ROWS = 1024  # maximum number of cached masks; smaller if the masks would take more than 256 MiB
_KEPT_ENTRIES = 2**26
_LOCK = threading.RLock()  # threads of a server fill the same rows; a processor with its own lock could not be copied
# The `Rules` of each unit table. They are not stored in the table, because the table is pickled with the model.
_KNOWN: WeakKeyDictionary = WeakKeyDictionary()


def _log_step(x: torch.Tensor) -> torch.Tensor:
    """Return 0 where `x` is at least 0, and `-inf` elsewhere. Adding it is faster than filling scores with `-inf`."""
    return (x.float() + 1).clamp(0, 1).log()


def end_spent(scores: torch.Tensor, spent: torch.Tensor, best: Any, eos: torch.Tensor) -> None:
    """
    End texts that have no units left, if the model would add another unit, such as the next word. Without this step,
    such a text would get entries that add no units: white space, or more letters of the last word.

    `best` holds the most likely entry of each of these rows before any mask. If this entry is masked in `scores` and
    an EOS is allowed, mask other entries of the row in place. EOS stays allowed, and so do allowed entries with at
    least 5 % of the probability of the most likely entry, such as a full stop.

    Args:
        scores (`torch.FloatTensor` of shape `(rows, vocab_size)`): The masked scores.
        spent (`torch.LongTensor` of shape `(n,)`): Indices of the rows that have no units left.
        best: The result of `max(dim=-1)` for these rows before any mask.
        eos (`torch.LongTensor`): The EOS ids.
    """
    least = torch.finfo(scores.dtype).min
    ends = scores[spent][:, eos].amax(dim=-1) > least
    refused = (scores[spent, best.indices] <= least) & ends
    if bool(refused.any()):
        rows = spent[refused]
        unlikely = scores[rows] < best.values[refused].unsqueeze(1) + _SHARE
        unlikely[:, eos] = False
        scores[rows] = scores[rows].masked_fill(unlikely, -math.inf)


class Table(Protocol):
    """
    The finite automaton of a unit, with `S` states and `V` vocabulary entries: a `UnitTable`. For an answer after
    thoughts (reasoning text), it is a modified copy of the model's table, see `AnswerMarker.tables`.
    """

    weights: torch.Tensor  # (S, V)
    next_state: torch.Tensor  # (S, V)

    def __hash__(self) -> int: ...


def _columns(table: Table, eos: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return the column of each vocabulary entry, and the first entry of each column, see `Rules`."""
    rows = torch.stack([*table.weights.cpu(), *table.next_state.cpu()])  # (2 S, V)
    draw = torch.Generator().manual_seed(0)
    while True:  # two different columns almost never have the same random weighted sum
        factors = torch.randint(-(2**63), 2**63 - 1, (len(rows),), generator=draw)
        sorts: list = sum((row * factor for row, factor in zip(rows, factors, strict=True)), factors[0] * 0).tolist()
        for end in eos:
            sorts[end] = (end,)
        column, entries = columns_of(sorts)
        if torch.equal(rows[:, entries][:, column], rows):
            return column, entries


class Rules:
    """
    Precomputed masks for a unit table with `S` states and `V` vocabulary entries, for EOS ids and a constraint.

    Two entries share a column if, in every state, they add the same units and lead to the same next state. There are
    `C` columns, some hundreds for any vocabulary. Each EOS has a separate column.

    Attributes:
        column (`torch.LongTensor` of shape `(V,)`): Column of each entry.
        eos, eos_column (`torch.LongTensor` of shape `(eos,)`): EOS ids, and their columns.
        weights (`torch.IntTensor`), following (`torch.LongTensor`), `(S, C)` each: For each state and column, the
            added units and the next state.
        fits, steers, ends_within (`Rows`): Masks `(rows, V)`: 0 for allowed entries, `-inf` for others. `fits` allows
            entries that fit the remaining units. `steers` allows entries with at least a given `gain`. `ends_within`
            allows entries after which at most a given number of entries must come before EOS.
        last (`torch.IntTensor` of shape `(S, eos)`): Units that each EOS adds in each state; `_NEVER` if no text may
            end with this EOS there.
        spread (`int`): Only for the constraint `"exact"`: the largest gap between a requested length and the next
            shorter possible length.
        ends (`torch.BoolTensor` of shape `(S,)`): Whether a text may end in each state.
        cost (`torch.IntTensor` of shape `(S, C)`): Units of an entry plus the units that must follow (the rest of a
            split character, a word after a last space, or an EOS with units). `_NEVER` for forbidden entries.
        steps (`torch.LongTensor` of shape `(S,)`): Number of entries that must come between each state and EOS.
        most_steps (`int`): A number that is at least the maximum of `steps`. Only if fewer entries than this are left,
            `ends_within` masks entries.
        silent (`torch.LongTensor`): Ids of entries, except EOS, that add no units and keep the state.
        pace, reach (`int`): For each number of units from 1 to `reach`, a text can add this number with at most `pace`
            entries, again and again. If entries of 1, 2 ... n units can follow each other, `pace` is 1 and `reach` is
            n. If each word needs a separate white-space entry, or each vowel a consonant, `pace` is 2. If no pace has
            this property, `pace` is 1 and `reach` is the most units of an entry after which the text may end.
        gain (`torch.FloatTensor` of shape `(S, C)`): How much an entry helps to reach an exact length in few
            positions: its units times `pace`, minus `reach` for each entry that must follow before the text may end,
            plus a correction for the next state. The correction is above 0 if the next unit needs fewer than `pace`
            entries there, and below 0 if it needs more.
        first (pair of tensors of shape `(n,)`): Units and `gain` of the `n` columns that are allowed in state 0, the
            start, without EOS and `silent` entries.
    """

    def __init__(self, table: Table, eos: tuple[int, ...], constraint: str):
        column, entries = _columns(table, eos)
        self.column = torch.tensor(column, device=table.weights.device)
        self.eos = torch.tensor(eos, device=table.weights.device)
        self.eos_column = self.column[self.eos]
        self.weights, self.following = table.weights[:, entries], table.next_state[:, entries].long()
        weights, following = self.weights, self.following
        allowed = weights >= 0
        keeps = (following == torch.arange(len(weights), device=weights.device).unsqueeze(1)).all(dim=0)  # (C,)
        silent = keeps & allowed[0] & (torch.maximum(weights, ~weights) == 0).all(dim=0)  # (C,)
        self.silent = (silent & ~self._is_eos())[self.column].nonzero().squeeze(1)

        never = weights.new_full((), _NEVER)
        self.last = self._last(allowed, silent)  # (S, eos)
        self.ends = (self.last < never).any(dim=1)  # (S,)
        reserve = self.last.amin(dim=1)  # (S,)
        steps = torch.where(self.ends, 0, never)  # (S,)
        for _ in range(4):  # a character has at most 4 bytes
            via = torch.where(allowed, weights + reserve[following], never)  # (S, C)
            reserve = torch.where(self.ends, reserve, via.amin(dim=1))
        cheapest = allowed & (weights + reserve[following] == reserve.unsqueeze(1))
        for _ in range(4):
            steps = torch.where(self.ends, 0, torch.where(cheapest, 1 + steps[following], never).amin(dim=1))
        self.steps = steps
        self.cost = torch.where(allowed, weights + reserve[following], never)
        self.cost[:, silent] = never
        self.cost[:, self.eos_column] = self.last

        self.most_steps = int(torch.where(steps < never, steps, 0).max())
        self._set_pace()
        # All remaining lengths above the highest cost share a mask. All minimum gains below the lowest gain do so too.
        if constraint == "exact":
            self.best, self.period = self._best()
            self._set_spread()
            self.fits = Rows(self._make_exact, 0, self.best.shape[1] - 1, self.period)
        else:
            dearest = int(torch.where(self.cost < never, self.cost, 0).max())
            self.fits = Rows(self._make_fits, 0, dearest + 1)
        self.steers = Rows(self._make_steer, int(self.gain.min()), int(self.gain.max()) + 1)
        self.ends_within = Rows(self._make_ends, -1, 4)

    def _is_eos(self) -> torch.Tensor:
        return torch.zeros_like(self.weights[0], dtype=torch.bool).index_fill(0, self.eos_column, True)  # (C,)

    def _last(self, allowed, silent) -> torch.Tensor:
        """Return the units that each EOS adds, `(S, eos)`; `_NEVER` if no text may end with this EOS in this state."""
        may_end = allowed[:, silent].any(dim=1) if bool(silent.any()) else torch.ones_like(allowed[:, 0])  # (S,)
        first = allowed[:, self.eos_column]
        # An EOS that is white space ends no text, since decoding strips it.
        ends = first & may_end[self.following[:, self.eos_column]]
        ends = ends if bool(ends.any()) else first
        return torch.where(ends, self.weights[:, self.eos_column], _NEVER)

    def _set_pace(self) -> None:
        """
        Set `pace`, `reach`, `gain` and `first`, and increase `most_steps`. A text may end in a good state, and can add
        any number of units from 1 to `reach` in at most `pace` entries and be in a good state again. From other states
        it may need more entries; `most_steps` grows by the most of these.
        """
        usable = (self.weights >= 0) & (self.cost < _NEVER) & ~self._is_eos()  # (S, C)
        whole = self.steps == 0  # (S,) states in which a text may end
        after_text = min(1, len(self.weights) - 1)
        ended = usable & whole[self.following]
        self.pace, self.reach = 1, max([1, *self.weights[after_text][ended[after_text]].tolist()])
        credit = torch.zeros_like(self.steps)
        written = set(self.weights[ended].unique().tolist())
        moves = [self._targets(usable & (self.weights == n)) for n in (0, 1)]
        for pace in range(1, _MOST_ENTRIES) if 1 in written else ():
            good, entries = self._good(whole, pace, moves)
            if not bool(good[after_text]):
                continue
            self.pace, self.reach = pace, 1
            while pace == 1 and self.reach + 1 in written:
                moves.append(self._targets(usable & (self.weights == self.reach + 1)))
                more, needed = self._good(whole, 1, moves)
                if not bool(more[after_text]):
                    break
                good, entries, self.reach = more, needed, self.reach + 1
            credit = pace - self.reach * (entries - self.steps)
            credit = torch.where(good, credit.clamp(min=0), credit) * (self.steps < _NEVER)
            self.most_steps += math.ceil(-min(0, int(credit[entries < _MOST_ENTRIES].min())) / self.reach)
            break
        self.gain = (
            self.pace * self.weights + credit[self.following] - self.reach * self.steps[self.following]
        ).float()
        self.first = self.weights[0][usable[0]], self.gain[0][usable[0]]

    def _targets(self, moves: torch.Tensor) -> torch.Tensor:
        """Return a boolean tensor `(S, S)`: whether an entry in `moves (S, C)` leads from one state to another."""
        count = len(moves)
        found = torch.zeros(count, count, dtype=torch.int, device=moves.device)
        return found.scatter_add_(1, self.following, moves.int()) > 0

    def _good(self, good, pace: int, moves: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Return two tensors `(S,)`. (1) Which states are in the largest subset of `good` from which a text can add units
        and return to the subset: one unit in at most `pace` entries, and each number from 2 to `len(moves) - 1` in
        one entry. (2) The number of entries that a text in each state needs to add one unit and reach the subset, at
        most `_MOST_ENTRIES`. `good (S,)` is a boolean tensor. `moves[n] (S, S)` says which states lead to which by an
        entry of `n` units, as in `_targets`.
        """
        none, one, *several = moves
        limit = torch.full_like(self.steps, _MOST_ENTRIES)
        while True:
            inside, entries = torch.where(good, 0, limit), limit  # entries to the set: without units, with one unit
            for _ in range(_MOST_ENTRIES):  # the distances in a graph (Bellman-Ford)
                inside = torch.minimum(inside, 1 + torch.where(none, inside, limit).amin(dim=1))
                entries = torch.minimum(entries, 1 + torch.where(one, inside, limit).amin(dim=1))
                entries = torch.minimum(entries, 1 + torch.where(none, entries, limit).amin(dim=1))
            kept = good & (entries <= pace)
            for move in several:
                kept &= (move & good).any(dim=1)
            if bool((kept == good).all()):
                return good, entries
            good = kept

    def _best(self) -> tuple[torch.Tensor, int]:
        """
        Return two values. (1) A table `(S, N)`: for each state and each limit from 0 to `N - 1`, the maximum number of
        units, at most the limit, that a text can still add until it ends; `-_NEVER` if no text can end. (2) The period
        with which the possible numbers of units repeat, 1 if all large numbers are possible. Because of the period,
        `N` limits are enough.
        """
        can, period = self._writable()
        count = len(self.weights)
        data = b"".join(here.to_bytes(count // 8 + 1, "little") for here in can)
        bits = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(len(can), -1)
        writable = torch.stack([bits[:, s // 8] >> s % 8 & 1 for s in range(count)])  # (S, N)
        numbers = torch.arange(len(can), dtype=self.cost.dtype)
        best = torch.where(writable.bool(), numbers, -_NEVER).cummax(dim=1).values
        return best.to(self.cost.device, self.cost.dtype), period

    def _writable(self) -> tuple[list[int], int]:
        """
        Return two values. (1) A list with an integer for each number of units. Bit `s` of this integer is 1 if a text
        in state `s` can add exactly this number of units before it ends. (2) The period with which the list repeats at
        its end.

        This is a dynamic program over the number of units, as in the coin problem. The next item depends only on a
        window of the last items, so the program stops when the window repeats.

        Example: with entries of 4 and 6 units, and an EOS of 0, every even number except 2 is possible.

        ```python
        >>> import torch
        >>> from hf_lenctrl.length_rules import rules_of
        >>> from hf_lenctrl.length_units import UnitTable
        >>> can, period = rules_of(UnitTable("token", torch.tensor([[0, 4, 6]])), (0,), "exact")._writable()
        >>> [number for number, states in enumerate(can[:13]) if states], period
        ([0, 4, 6, 8, 10, 12], 2)

        ```
        """
        moves, idle, ending, width = self._moves()
        before = cache(lambda direct: sum(1 << s for s, reached in enumerate(idle) if reached & direct))
        # Only the targets of transitions matter later. Bit w - 1 of a target is 1 if n - w units are possible from it.
        recent, window = dict.fromkeys((to for to, _ in moves), 0), (1 << width) - 1
        can: list[int] = []
        kept, at, following = None, 0, width
        while True:
            direct = ending.get(len(can), 0)
            for (to, units), states in moves.items():
                if recent[to] & units:
                    direct |= states
            can.append(before(direct))
            recent = {to: (past << 1 | can[-1] >> to & 1) & window for to, past in recent.items()}
            if recent == kept:  # the window repeats
                break
            if len(can) == following:  # keep each window for longer than the last one, so that any period is found
                kept, at, following = recent, following, following * 5 // 4 + 1
        period = len(can) - at
        while at > width and can[at - 1 - width] == can[at - 1 - width + period]:
            at -= 1
        return can[: at + period] + can[at : at + period], period

    def _moves(self) -> tuple[dict[tuple[int, int], int], list[int], dict[int, int], int]:
        """
        Return four values that describe the transitions. A set of states is an integer whose bit `s` stands for state
        `s`. A set of numbers of units is an integer whose bit `w - 1` stands for `w` units.

        (1) A dictionary. Each key is a pair `(target, units)`: a state, and a set of numbers of units. The value is
        the set of all states `s` for which `units` holds exactly the numbers above 0 that entries from `s` to `target`
        add.
        (2) A list. Item `s` is the set of states that a text in state `s` can reach by any number of entries that add
        no units. State `s` itself is in the set.
        (3) A dictionary. Each key is a number of units. The value is the set of states in which an EOS may end the
        text and adds this number of units.
        (4) The maximum number of units of an entry or EOS, plus 1.
        """
        usable = (self.weights >= 0) & (self.cost < _NEVER) & ~self._is_eos()
        moves: dict[tuple[int, int], int] = defaultdict(int)
        idle = [1 << s for s in range(len(usable))]
        for s, row in enumerate(usable):
            units: dict[int, int] = defaultdict(int)
            pairs = torch.stack([self.following[s][row], self.weights[s][row].long()]).unique(dim=1).T
            for to, weight in pairs.tolist():
                if weight:
                    units[to] |= 1 << weight - 1
                else:
                    idle[s] |= 1 << to
            for move in units.items():
                moves[move] |= 1 << s
        for via in range(len(idle)):  # transitive closure (Warshall)
            idle = [reached | idle[via] if reached >> via & 1 else reached for reached in idle]
        ending: dict[int, int] = defaultdict(int)
        for s, row in enumerate(self.cost[:, self.eos_column].tolist()):
            for written in {*row} - {_NEVER}:
                ending[written] |= 1 << s
        return moves, idle, ending, 1 + max([0, *(units.bit_length() for _, units in moves), *ending])

    def _make_fits(self, state, remaining):
        return _log_step(remaining.unsqueeze(1) - self.cost[state])[:, self.column]  # (keys, V)

    def _set_spread(self) -> None:
        highest = self.best.shape[1] - 1
        missing = torch.arange(highest + 1, device=self.best.device) - self.best  # (S, N) each limit minus `best`
        self.spread = int(torch.where(self.best < 0, 0, missing).max())
        self.grows = missing[:, -1] < self.period  # (S,) states after which any length is possible, except for gaps
        self.bounded = bool((~self.grows & (self.best[:, -1] >= 0)).any())

    def _most(self, state, number):
        """
        Return the most units, at most `number`, that a text in `state` can add until it ends, see `_best`. `number`
        may be above the limits of the table.
        """
        highest = self.best.shape[1] - 1
        first = highest - self.period + 1
        inside = torch.where(number > highest, first + (number - first) % self.period, number)
        return self.best[state, inside] + (number - inside) * self.grows[state]

    def can_end(self, state, remaining, slack):
        """
        Return a boolean tensor `(keys,)`: whether a text in each `state` can end after `remaining - slack` to
        `remaining` more units. All arguments have the shape `(keys,)`. If the constraint is `"max"`, ignore `slack`.
        """
        if not hasattr(self, "best"):
            return self.cost.amin(dim=1)[state] <= remaining
        most = self._most(state, remaining.clamp(min=0))
        return (remaining >= 0) & (most >= (remaining - slack).clamp(min=0))

    def _make_exact(self, key, remaining):
        return self._leading(key % len(self.weights), remaining, key // len(self.weights))[:, self.column]

    def _leading(self, state, remaining, slack):
        """
        Return a mask `(keys, C)` of the columns that lead to texts of `remaining - slack` to `remaining` more units
        or, if there is no such text, to the longest shorter text.
        """
        most = self._most(state, remaining)  # (keys,)
        least = torch.minimum(most, remaining - slack).clamp(min=0).unsqueeze(1)
        after = remaining.unsqueeze(1) - self.weights[state]  # (keys, C)
        total = self._most(self.following[state], after.clamp(min=0)) + self.weights[state]
        total[(after < 0) | (self.cost[state] >= _NEVER)] = -1
        total[:, self.eos_column] = self.last[state].to(total.dtype)
        leads = (total >= least) & (total <= remaining.unsqueeze(1)) & (most >= 0).unsqueeze(1)
        return torch.where(leads, 0.0, -math.inf)

    def fits_window(self, state, remaining, slack):
        """
        Return the `fits` mask, `(rows, V)`, for texts that must end after `remaining - slack` to `remaining` more
        units. `state`, `remaining` and `slack` have the shape `(rows,)`; `slack` is `None` if there is no window.

        A slack above `spread` allows the same entries as `spread`, so large windows share cached rows. Only EOS
        depends on the full slack.
        """
        if slack is None:
            return self.fits(state, remaining)
        mask = self.fits(state + len(self.weights) * slack.clamp(max=self.spread), remaining)  # (rows, V)
        remaining = remaining.clamp(min=0)
        beyond = remaining >= self.best.shape[1]
        if self.bounded and bool(beyond.any()):  # entries that lead to the longest text have no period
            mask[beyond] = self._leading(state[beyond], remaining[beyond], slack[beyond])[:, self.column]
        most = self._most(state, remaining)  # (rows,)
        least = torch.minimum(most, remaining - slack).clamp(min=0).unsqueeze(1)
        ends = self.last[state]  # (rows, eos)
        ends = (ends >= least) & (ends <= remaining.unsqueeze(1)) & (most >= 0).unsqueeze(1)
        mask[:, self.eos] = torch.where(ends, 0.0, -math.inf)
        return mask

    def _make_steer(self, state, least):
        return _log_step(self.gain[state] - least.unsqueeze(1))[:, self.column]

    def _make_ends(self, state, left):
        return _log_step(left.unsqueeze(1) - self.steps[self.following[state]])[:, self.column]


class Rows:
    """
    A cache of mask rows `(V,)`, one for each pair of a state and a number. There are few pairs, so each row is
    computed only once, by the function `make(states, numbers)`.

    A number below `low` has the row of `low`. A number above `high` has the row of one of the last `period` numbers up
    to `high`, because the rows repeat.
    """

    def __init__(self, make, low: int, high: int, period: int = 1):
        self.make, self.low, self.high, self.period = make, low, high, period
        self.kept: torch.Tensor | None = None
        self.made = 0
        self.keys = self.slot = torch.empty(0, dtype=torch.long)  # sorted keys of the computed rows, and their slots

    def __call__(self, state: torch.Tensor, number: torch.Tensor, scores: torch.Tensor | None = None) -> torch.Tensor:
        """
        Return a row for each pair of `state (rows,)` and `number (rows,)`, `(rows, V)`. If `scores (rows, V)` are
        given, instead add the rows to the scores in place, and return the scores.
        """
        first = self.high - self.period + 1
        if self.period > 1:
            number = torch.where(number > first, first + (number - first) % self.period, number)
        key = state * (self.high - self.low + 1) + number.clamp(self.low, self.high) - self.low  # (rows,)
        with _LOCK:
            slots = self._slots(key)
            if slots is None:
                self._add(key)
                slots = self._slots(key)
            assert self.kept is not None and slots is not None
            if scores is None or not scores.is_cpu or scores.shape[1] < 2**14:
                chosen = self.kept.index_select(0, slots)
                return chosen if scores is None else scores.add_(chosen)
            for i, slot in enumerate(slots.tolist()):  # on a CPU, copying long rows costs more than adding them
                scores[i].add_(self.kept[slot])
            return scores

    def _slots(self, keys: torch.Tensor) -> torch.Tensor | None:
        """Return the place in `kept` of the row of each key; `None` if a row is missing."""
        if self.made == 0:
            return None
        place = torch.searchsorted(self.keys, keys).clamp(max=self.made - 1)
        return self.slot[place] if torch.equal(self.keys[place], keys) else None

    @torch.inference_mode(False)  # calls outside inference mode read the new rows
    def _add(self, keys: torch.Tensor) -> None:
        most = 0 if self.kept is None else min(_KEPT_ROWS, _KEPT_ENTRIES // self.kept.shape[1])
        if self.made > most:
            self.made = 0
        keys = keys.unique()
        if self.made:
            keys = keys[~torch.isin(keys, self.keys)]
        width = self.high - self.low + 1
        new = self.make(keys // width, keys % width + self.low)
        end = self.made + len(keys)
        if self.kept is None or end > len(self.kept):  # doubling the size needs few copies
            room = new.new_empty((max(end, min(2 * end, most)), new.shape[1]))
            if self.kept is not None:
                room[: self.made] = self.kept[: self.made]
            self.kept = room
        self.kept[self.made : end] = new
        slots = torch.arange(self.made, end, device=keys.device)
        if self.made:
            keys, slots = torch.cat([self.keys, keys]), torch.cat([self.slot, slots])
        self.keys, order = keys.sort()
        self.slot, self.made = slots[order], end


@torch.inference_mode(False)
def rules_of(table: Table, eos: tuple[int, ...], constraint: str) -> Rules:
    """Return the cached `Rules` of a unit table for EOS ids and a constraint."""
    tensors = (table.weights, table.next_state)
    if any(tensor.is_inference() for tensor in tensors):  # inference tensors have no version counter
        return Rules(table, eos, constraint)
    versions = [tensor._version for tensor in tensors]
    with _LOCK:
        of, at, known = _KNOWN.get(table, ((None, None), [], {}))
        if at != versions or any(old is not new for old, new in zip(of, tensors, strict=True)):
            known = {}
        if (eos, constraint) not in known:
            known[eos, constraint] = Rules(table, eos, constraint)
        _KNOWN[table] = tensors, versions, known
        return known[eos, constraint]
