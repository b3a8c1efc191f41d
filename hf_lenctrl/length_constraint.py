"""The logits processor that keeps outputs within their requested lengths."""

import math
import threading
from weakref import WeakKeyDictionary

import torch
from transformers.generation import LogitsProcessor

from .length_units import UnitTable
from .lengths import LONGEST, as_length_tensor, check_constraint


_NEVER = LONGEST  # units that no entry costs and no state needs
_KEPT_ROWS = 1024  # masks of the vocabulary that are kept
_LOCK = threading.RLock()  # a server's threads fill the same rows; of the module, so that processors can be copied
# what constraints made of a table: not in the table, which is part of the model and is pickled with it
_KNOWN: WeakKeyDictionary = WeakKeyDictionary()


class LengthConstraintLogitsProcessor(LogitsProcessor):
    """
    A hard constraint on the length of each output, in any unit, for any model: trained for length or not; greedy, beam
    search or sampling. Length-controlled models make one from `length_constraint=`; for others pass it to `generate`.

    Entries that no longer fit, that would cut a character in two (byte-level BPE) or write nothing are masked; EOS is
    masked as `constraint` demands. The scores of the other entries do not change, so that beam search prefers outputs
    that end where the model would end. If no entry fits, EOS is let through. Where no entries add up to an `"exact"`
    length, the output has the next shorter length that can be written. Other processors hold too, except within an
    open character, which is always completed.

    Args:
        unit_table (`UnitTable`): What each entry of the model's vocabulary writes.
        length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`): Units, for all or for each.
        constraint (`str`, *optional*, defaults to `"max"`): `"max"`, never longer; `"exact"`, this length.
        eos_token_id (`int` or `list[int]`): What ends an output.
        max_length (`int` or `torch.LongTensor` of shape `(batch_size,)`, *optional*): The limit of `generate`, in
            positions with EOS, for all or for each; outputs are complete before it, and larger entries are chosen when
            an exact length needs them.
        prompt_length (`int`, *optional*, defaults to 0): First positions that do not count, for decoder-only models.
        start_length (`int`, *optional*, defaults to 1): Positions before the text that write nothing: the decoder
            start, a forced BOS or language code.

    Raises:
        `TypeError`, `ValueError`: for a constraint of another name, a length that is missing, no integer or under 1,
            no EOS, or a `max_length` too small for an exact length.

    Example:

    ```python
    >>> import torch
    >>> from hf_lenctrl import LengthConstraintLogitsProcessor, UnitTable
    >>> table = UnitTable("token", torch.tensor([[0, 1, 1]]))
    >>> process = LengthConstraintLogitsProcessor(table, 2, "exact", eos_token_id=0)
    >>> process(torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.3, 0.2]]))
    tensor([[  -inf, 0.3000, 0.2000]])
    >>> process(torch.tensor([[0, 1, 2]]), torch.tensor([[0.5, 0.3, 0.2]]))
    tensor([[0.5000,   -inf,   -inf]])

    ```
    """

    supports_continuous_batching = False

    def __init__(
        self,
        unit_table: UnitTable,
        length: int | list[int] | torch.Tensor,
        constraint: str = "max",
        *,
        eos_token_id: int | list[int],
        max_length: int | torch.Tensor | None = None,
        prompt_length: int = 0,
        start_length: int = 1,
    ):
        check_constraint(constraint)
        if constraint is None or length is None:
            raise ValueError(
                f"a constraint needs a length and a mode, got length={length!r} and constraint={constraint!r}; "
                "pass length=75, constraint='max' or 'exact'"
            )
        if eos_token_id is None:
            raise ValueError("a constraint ends outputs with EOS, got eos_token_id=None; pass the tokenizer's")
        unit_table.require_filled()
        self.table, self.constraint = unit_table, constraint
        device = unit_table.weights.device
        rows = 1 if not isinstance(length, torch.Tensor | list | tuple) else len(length)
        self.length = as_length_tensor(length, rows, device)  # (B,)
        self.max_length, self.prompt_length = max_length, prompt_length
        eos = [eos_token_id] if isinstance(eos_token_id, int) else torch.as_tensor(eos_token_id).reshape(-1).tolist()
        self.rules = _rules_of(unit_table, tuple(eos), constraint)
        if constraint == "exact" and max_length is not None:
            self._check_room(start_length)

    def _check_room(self, start_length: int) -> None:
        limits = torch.as_tensor(self.max_length).expand(len(self.length)).tolist()
        for length, limit in zip(self.length.tolist(), limits, strict=True):
            needed = math.ceil(self.rules.pace * length / self.rules.reach) + start_length + 1
            if limit - self.prompt_length < needed:
                raise ValueError(
                    f"exactly {length} {self.table.unit}s may need {needed} positions (start and EOS among "
                    f"them), max_length leaves {limit - self.prompt_length}; raise max_length or max_new_tokens, or "
                    "leave both out"
                )

    def __call__(self, input_ids, scores):
        """
        Args:
            input_ids (`torch.LongTensor` of shape `(rows, sequence_length)`): What stands there; rows are examples, or
                the beams or samples of each, in order.
            scores (`torch.FloatTensor` of shape `(rows, vocab_size)`): Logits or log-probabilities.

        Returns:
            `torch.FloatTensor` of shape `(rows, vocab_size)`, `-inf` for what the constraint forbids.
        """
        rows, vocab_size = scores.shape
        rules = self.rules
        if rules.cost.shape[1] != vocab_size or rows % len(self.length):
            raise ValueError(
                f"scores for {rows} rows and {vocab_size} entries do not go with {len(self.length)} lengths and a "
                f"unit table of {rules.cost.shape[1]} entries; build it with the model's own tokenizer"
            )
        copies = rows // len(self.length)
        length = self.length.repeat_interleave(copies)  # (rows,)
        written = input_ids[:, self.prompt_length :]
        count, state = self.table.count_and_state(written)  # (rows,) each
        remaining = length - count  # (rows,)
        masked = rules.fits(state, remaining).to(scores.dtype).add_(scores)  # (rows, V)
        if written.shape[1] <= 2:  # BOS, a language code: at the start or not at all
            start = (count == 0).unsqueeze(1)
            masked[:, rules.silent] = torch.where(start, scores[:, rules.silent], masked[:, rules.silent])
        left = None
        if (limit := self.max_length) is not None:
            limit = limit.repeat_interleave(copies) if isinstance(limit, torch.Tensor) else limit
            left = limit - input_ids.shape[1] - 2 + torch.zeros_like(length)  # (rows,) after this entry, before EOS
            if int(left.min()) < rules.most_steps:
                ends = masked[:, rules.eos]
                masked += rules.ends_within(state, left)
                masked[:, rules.eos] = ends
            if self.constraint == "exact":
                scarce = (left - rules.most_steps) * rules.reach < rules.pace * remaining  # (rows,)
                if bool(scarce.any()):
                    least = rules.pace * remaining - left * rules.reach
                    masked = self._if_possible(masked, rules.steers(state, least))
        empty = _nothing_in(masked)  # (rows,)
        if bool(empty.any()):  # nothing fits, or another processor forbids what does
            left = None if left is None else left[empty]
            masked[empty] = self._way_out(scores[empty], state[empty], remaining[empty], left)
        return masked

    def _if_possible(self, masked, more):
        """`masked + more`, made in `more`, EOS as it was, for the rows that are left with something to write."""
        ends = masked[:, self.rules.eos]
        more += masked  # in place, as above: a fresh tensor of this size costs more than the sum
        more[:, self.rules.eos] = ends
        impossible = _nothing_in(more)  # (rows,)
        if bool(impossible.any()):
            more[impossible] = masked[impossible]
        return more

    def _way_out(self, scores, state, remaining, left):
        """What completes a text that may not end here; else EOS, what writes nothing, EOS whatever its score."""
        rules = self.rules
        completes = rules.fits(state, remaining)
        if left is not None:
            completes += rules.ends_within(state, left)
        completes[rules.ends[state]] = -math.inf
        ends, silent, forced = (torch.full_like(scores, -math.inf) for _ in range(3))
        ends[:, rules.eos] = scores[:, rules.eos]
        silent[:, rules.silent] = scores[:, rules.silent]
        forced[:, rules.eos] = 0.0
        for way in (silent, ends, completes.to(scores.dtype)):  # the last one that is possible
            forced = torch.where(_nothing_in(way).unsqueeze(1), forced, way)
        return forced


def _log_step(x: torch.Tensor) -> torch.Tensor:
    """0 for integers from 0 on, `-inf` below: faster to add than a mask is to fill."""
    return (x.float() + 1).clamp(0, 1).log()


def _nothing_in(scores: torch.Tensor) -> torch.Tensor:
    """Rows without a possible entry; `remove_invalid_values=True` writes the smallest number for `-inf`."""
    return scores.amax(dim=-1) <= torch.finfo(scores.dtype).min


class _Rules:
    """
    What a table, its EOS and a constraint make of the vocabulary.

    Attributes:
        fits, steers, ends_within (`_Rows`): 0 for what may be written and `-inf` for the rest, `(rows, V)`: within the
            remaining units; gaining so many units at least; with so many entries left before EOS.
        ends (`torch.BoolTensor` of shape `(S,)`): States that a text may end in.
        cost (`torch.IntTensor` of shape `(S, V)`): Units that an entry writes and those it makes necessary: the rest
            of an open character, a word after a last space, an EOS that writes. `_NEVER` for what may not be written.
        steps (`torch.LongTensor` of shape `(S,)`), most_steps (`int`): Entries that a state needs before EOS.
        silent (`torch.LongTensor`): Entries that write nothing, EOS apart.
        pace, reach (`int`): So many entries write so many units at least: n in 1 where entries of 1, 2 ... n units
            exist; one word in 2 where white space is an entry of its own.
        gain (`torch.FloatTensor` of shape `(S, V)`): Units of an entry in `pace`, less `reach` for each entry it makes
            necessary.
    """

    def __init__(self, table: UnitTable, eos: tuple[int, ...], constraint: str):
        weights, following = table.weights, table.next_state.long()  # (S, V)
        self.eos = torch.tensor(eos, device=weights.device)
        self.weights, self.following = weights, following
        allowed = weights >= 0
        keeps = (following == torch.arange(len(weights), device=weights.device).unsqueeze(1)).all(dim=0)  # (V,)
        silent = keeps & allowed[0] & (torch.maximum(weights, ~weights) == 0).all(dim=0)  # (V,)
        self.silent = (silent & ~self._is_eos()).nonzero().squeeze(1)

        never = weights.new_full((), _NEVER)
        last = self._last(allowed, silent)  # (S, eos)
        self.ends = (last < never).any(dim=1)  # (S,)
        reserve = last.amin(dim=1)  # (S,)
        steps = torch.where(self.ends, 0, never)  # (S,)
        for _ in range(4):  # bytes of a character, at most
            via = torch.where(allowed, weights + reserve[following], never)  # (S, V)
            reserve = torch.where(self.ends, reserve, via.amin(dim=1))
        cheapest = allowed & (weights + reserve[following] == reserve.unsqueeze(1))
        for _ in range(4):
            steps = torch.where(self.ends, 0, torch.where(cheapest, 1 + steps[following], never).amin(dim=1))
        self.steps = steps
        self.cost = torch.where(allowed, weights + reserve[following], never)
        self.cost[:, silent] = never
        self.cost[:, self.eos] = last

        self.most_steps = int(torch.where(steps < never, steps, 0).max())
        self._set_pace()
        # beyond the dearest entry all remaining lengths are alike, and below the least gain all that must be written
        if constraint == "exact":
            self.best, period = self._best()
            self.fits = _Rows(self._make_exact, len(weights), 0, self.best.shape[1] - 1, period)
        else:
            dearest = int(torch.where(self.cost < never, self.cost, 0).max())
            self.fits = _Rows(self._make_fits, len(weights), 0, dearest + 1)
        self.steers = _Rows(self._make_steer, len(weights), int(self.gain.min()), int(self.gain.max()) + 1)
        self.ends_within = _Rows(self._make_ends, len(weights), -1, 4)

    def _is_eos(self) -> torch.Tensor:
        return torch.zeros_like(self.weights[0], dtype=torch.bool).index_fill(0, self.eos, True)  # (V,)

    def _last(self, allowed, silent) -> torch.Tensor:
        """Units that each EOS writes where a text may end on it, else `_NEVER`: `(S, eos)`."""
        may_end = allowed[:, silent].any(dim=1) if bool(silent.any()) else torch.ones_like(allowed[:, 0])  # (S,)
        first = allowed[:, self.eos]
        ends = first & may_end[self.following[:, self.eos]]  # an EOS of white space that decoding strips ends nothing
        ends = ends if bool(ends.any()) else first
        return torch.where(ends, self.weights[:, self.eos], _NEVER)

    def _set_pace(self) -> None:
        weights, following = self.weights, self.following
        whole = (weights >= 0) & (self.steps[following] == 0) & (self.cost < _NEVER) & ~self._is_eos()  # (S, V)
        after_text = min(1, len(weights) - 1)
        written = set(weights[after_text][whole[after_text]].unique().tolist()) - {0}
        most = max(written, default=1)
        self.reach = max(next(n for n in range(most + 1) if n + 1 not in written) or most, 1)
        at_once = (whole & (weights == 1)).any(dim=1)  # (S,) states where an entry writes one unit
        self.pace = 2 if not written and bool(at_once.any()) else 1
        credit = (self.pace - 1) * at_once.int()
        self.gain = (self.pace * weights + credit[following] - self.reach * self.steps[following]).float()

    def _best(self) -> tuple[torch.Tensor, int]:
        """
        The most units, up to each number, that can be written from each state and ended with EOS; `-_NEVER` for none.

        Which numbers can be written repeats with a period (1 where all large ones can), so that a table of the first
        ones serves all: `(S, N)`.
        """
        states = range(len(self.weights))
        usable = (self.weights >= 0) & (self.cost < _NEVER) & ~self._is_eos()
        moves = []  # of each state: units that an entry writes, and the state after it
        for s in states:
            pairs = torch.stack([self.weights[s][usable[s]].long(), self.following[s][usable[s]]])
            moves.append(pairs.unique(dim=1).T.tolist())
        idle = [(s, to) for s in states for w, to in moves[s] if w == 0 and to != s]
        ending = [set(row) for row in self.cost[:, self.eos].tolist()]
        width = 1 + max(w for w in [0, *(w for s in states for w, _ in moves[s]), *set().union(*ending)] if w < _NEVER)
        can: list[list[bool]] = []  # for each number of units, whether each state can write it
        seen: dict = {}
        while True:
            n = len(can)
            can.append([n in ending[s] or any(0 < w <= n and can[n - w][to] for w, to in moves[s]) for s in states])
            while any(can[n][to] and not can[n][s] for s, to in idle):
                for s, to in idle:
                    can[n][s] |= can[n][to]
            window = str(can[-width:])  # all that the next number depends on
            if n >= width and window in seen:
                break
            seen[window] = n
        period = n - seen[window]
        while len(can) < seen[window] + 1 + 2 * period:
            can.append(can[len(can) - period])
        best = [[-_NEVER] * len(states)]
        for n, here in enumerate(can):
            best.append([n if here[s] else best[-1][s] for s in states])
        return torch.tensor(best[1:], dtype=self.cost.dtype, device=self.cost.device).T.contiguous(), period

    def _make_fits(self, state, remaining):
        return _log_step(remaining.unsqueeze(1) - self.cost[state])  # (keys, V)

    def _make_exact(self, state, remaining):
        """What leads to the most units that can be written within `remaining`."""
        after = remaining.unsqueeze(1) - self.weights[state]  # (keys, V)
        total = self.best[self.following[state], after.clamp(0, self.best.shape[1] - 1)] + self.weights[state]
        total[(after < 0) | (self.cost[state] >= _NEVER)] = -1
        total[:, self.eos] = self.cost[state][:, self.eos]
        most = self.best[state, remaining].unsqueeze(1)  # (keys, 1)
        return torch.where((total == most) & (most >= 0), 0.0, -math.inf)

    def _make_steer(self, state, least):
        return _log_step(self.gain[state] - least.unsqueeze(1))

    def _make_ends(self, state, left):
        return _log_step(left.unsqueeze(1) - self.steps[self.following[state]])


class _Rows:
    """
    Rows `(V,)` for pairs of a state and a number; the pairs are few, so a row is made once and kept.

    A number below `low` counts as `low`; one above `high` as the one in the last `period` numbers that it repeats.
    """

    def __init__(self, make, states: int, low: int, high: int, period: int = 1):
        self.make, self.states, self.low, self.high, self.period = make, states, low, high, period
        self.kept: torch.Tensor | None = None
        self.made = 0

    @torch.inference_mode(False)  # a row made by a call in inference mode is read by others
    def __call__(self, state: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        first = self.high - self.period + 1
        number = number.clamp(self.low, first) + (number - first).clamp(min=0) % self.period
        key = state * (self.high - self.low + 1) + number - self.low  # (rows,)
        with _LOCK:
            if self.kept is None:
                self.slot = torch.full((self.states * (self.high - self.low + 1),), -1, device=key.device)
            slots = self.slot[key]
            if bool((slots < 0).any()):
                self._add(key)
                slots = self.slot[key]
            assert self.kept is not None
            return self.kept.index_select(0, slots)

    def _add(self, keys: torch.Tensor) -> None:
        if self.made > _KEPT_ROWS:
            self.slot.fill_(-1)
            self.made = 0
        keys = keys.unique()
        keys = keys[self.slot[keys] < 0]
        width = self.high - self.low + 1
        new = self.make(keys // width, keys % width + self.low)
        end = self.made + len(keys)
        if self.kept is None or end > len(self.kept):  # room for twice as many, so that few copies are made
            room = new.new_empty((2 * end, new.shape[1]))
            if self.kept is not None:
                room[: self.made] = self.kept[: self.made]
            self.kept = room
        self.kept[self.made : end] = new
        self.slot[keys] = torch.arange(self.made, end, device=keys.device)
        self.made = end


@torch.inference_mode(False)
def _rules_of(table: UnitTable, eos: tuple[int, ...], constraint: str) -> _Rules:
    """Made once for a table: `generate` is called many times."""
    tensors = (table.weights, table.next_state)
    if any(tensor.is_inference() for tensor in tensors):  # these do not tell whether they were changed
        return _Rules(table, eos, constraint)
    versions = [tensor._version for tensor in tensors]
    with _LOCK:
        of, at, known = _KNOWN.get(table, ((None, None), [], {}))
        if at != versions or any(old is not new for old, new in zip(of, tensors, strict=True)):
            known = {}
        if (eos, constraint) not in known:
            known[eos, constraint] = _Rules(table, eos, constraint)
        _KNOWN[table] = tensors, versions, known
        return known[eos, constraint]
