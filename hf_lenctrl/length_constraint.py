"""The logits processor that keeps outputs within their requested lengths."""

import math
import threading

import torch
from transformers.generation import LogitsProcessor

from .length_units import UnitTable
from .lengths import LONGEST, as_length_tensor, check_constraint


_NEVER = LONGEST  # units that no entry costs and no state needs
_KEPT_ROWS = 1024  # masks of the vocabulary that are kept
_ROWS_LOCK = threading.Lock()  # a server's threads fill the same rows; of the module, so that processors can be copied


class LengthConstraintLogitsProcessor(LogitsProcessor):
    """
    A hard bound on the length of each output, in any unit, for any model: trained for length or not; greedy, beam
    search or sampling. Length-controlled models make one from `length_constraint=`; for others pass it to `generate`.

    Entries that no longer fit, that would cut a character in two (byte-level BPE) or write nothing are masked; EOS is
    masked as `constraint` demands. Scores of what remains are left as they are, so that with beams an output that had
    to end where the model would not have ended pays for it, and a finished one wins. A row never ends up empty: if no
    entry fits, EOS is let through, and an `"exact"` length is missed.

    Args:
        unit_table (`UnitTable`): What each entry of the model's vocabulary writes.
        length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`): The bound, for all or for each.
        constraint (`str`, *optional*, defaults to `"max"`): `"max"`, never longer; `"exact"`, this length.
        eos_token_id (`int` or `list[int]`): What ends an output.
        max_length (`int`, *optional*): The limit that `generate` works under, in positions, EOS among them: so that an
            output is complete before it. An exact length is steered for when steps become scarce.
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
        max_length: int | None = None,
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
        self.longest = int(self.length.max())
        self.max_length, self.prompt_length = max_length, prompt_length
        eos = [eos_token_id] if isinstance(eos_token_id, int) else torch.as_tensor(eos_token_id).reshape(-1).tolist()
        self.bounds = _bounds(unit_table, tuple(eos), constraint)
        self.reachable = None
        if constraint == "exact":
            reachable = self.bounds.reachable(self.longest)
            self.reachable = None if bool(reachable.all()) else reachable
        if constraint == "exact" and max_length is not None:
            needed = self.bounds.entries(self.longest) + start_length + 1
            if max_length - prompt_length < needed:
                raise ValueError(
                    f"exactly {self.longest} {unit_table.unit}s may need {needed} positions (start and EOS among "
                    f"them), max_length leaves {max_length - prompt_length}; raise max_length or max_new_tokens, or "
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
        bounds = self.bounds
        if bounds.cost.shape[1] != vocab_size or rows % len(self.length):
            raise ValueError(
                f"scores for {rows} rows and {vocab_size} entries do not go with {len(self.length)} lengths and a "
                f"unit table of {bounds.cost.shape[1]} entries; build it with the model's own tokenizer"
            )
        length = self.length.repeat_interleave(rows // len(self.length))  # (rows,)
        written = input_ids[:, self.prompt_length :]
        count, state = self.table.count_and_state(written)  # (rows,) each
        remaining = length - count  # (rows,)
        masked = bounds.bias(state, remaining).to(scores.dtype).add_(scores)  # (rows, V)
        if written.shape[1] <= 2:  # BOS, a language code: at the start or not at all
            start = (count == 0).unsqueeze(1)
            masked[:, bounds.silent] = torch.where(start, scores[:, bounds.silent], masked[:, bounds.silent])
        if self.reachable is not None:
            rest = (remaining.unsqueeze(1) - bounds.cost[state]).clamp(min=0)  # (rows, V)
            masked = self._if_possible(masked, _log_step(self.reachable[rest].int() - 1))
        if self.max_length is not None:
            left = self.max_length - input_ids.shape[1] - 2  # after this entry, and with EOS in the last position
            if left < bounds.most_steps or left < 0:
                ends = masked[:, bounds.eos]
                masked += bounds.ends_within(state, left)
                masked[:, bounds.eos] = ends
            scarce = (left - bounds.most_steps) * bounds.reach < bounds.pace * int(remaining.max())
            if self.constraint == "exact" and scarce:
                masked = self._if_possible(masked, bounds.steer(state, bounds.pace * remaining - left * bounds.reach))
        empty = masked.amax(dim=-1) == -math.inf  # (rows,)
        if bool(empty.any()):  # nothing fits, or another processor forces an entry that writes nothing
            masked[empty] = self._way_out(scores[empty])
        return masked

    def _if_possible(self, masked, more):
        """`masked + more`, made in `more`, EOS as it was, for the rows that are left with something to write."""
        ends = masked[:, self.bounds.eos]
        more += masked  # in place, as above: a fresh tensor of this size costs more than the sum
        more[:, self.bounds.eos] = ends
        impossible = more.amax(dim=-1) == -math.inf  # (rows,)
        if bool(impossible.any()):
            more[impossible] = masked[impossible]
        return more

    def _way_out(self, scores):
        """EOS; if that is masked too, what writes nothing; else EOS whatever its score."""
        ends, silent, forced = (torch.full_like(scores, -math.inf) for _ in range(3))
        ends[:, self.bounds.eos] = scores[:, self.bounds.eos]
        silent[:, self.bounds.silent] = scores[:, self.bounds.silent]
        forced[:, self.bounds.eos] = 0.0
        has_end, has_silent = ((s > -math.inf).any(dim=-1, keepdim=True) for s in (ends, silent))
        return torch.where(has_end, ends, torch.where(has_silent, silent, forced))


def _log_step(x: torch.Tensor) -> torch.Tensor:
    """0 for integers from 0 on, `-inf` below: faster to add than a mask is to fill."""
    return (x.float() + 1).clamp(0, 1).log()


class _Bounds:
    """
    What a table, its EOS and a constraint make of the vocabulary.

    Attributes:
        cost (`torch.IntTensor` of shape `(S, V)`): Units that an entry writes and those it makes necessary: the rest
            of an open character, a word after a last space. `_NEVER` for what may not be written.
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
        self.exact = constraint == "exact"
        allowed = weights >= 0
        never = weights.new_full((), _NEVER)
        ends = (weights[:, self.eos] >= 0).any(dim=1)  # (S,)
        reserve = steps = torch.where(ends, 0, never)  # (S,)
        for _ in range(4):  # bytes of a character, at most
            via = torch.where(allowed, weights + reserve[following], never)  # (S, V)
            reserve = torch.where(ends, 0, via.amin(dim=1))
        cheapest = allowed & (weights + reserve[following] == reserve.unsqueeze(1))
        for _ in range(4):
            steps = torch.where(ends, 0, torch.where(cheapest, 1 + steps[following], never).amin(dim=1))
        self.steps = steps

        keeps = (following == torch.arange(len(weights), device=weights.device).unsqueeze(1)).all(dim=0)  # (V,)
        silent = (keeps & allowed[0] & (torch.maximum(weights, ~weights) == 0).all(dim=0)).nonzero().squeeze(1)
        self.cost = torch.where(allowed, weights + reserve[following], never)
        self.cost[:, silent] = never
        self.cost[:, self.eos] = torch.where(weights[:, self.eos] >= 0, 0, never)
        self.silent = silent[~torch.isin(silent, self.eos)]

        self.most_steps = int(torch.where(steps < never, steps, 0).max())
        self.whole = allowed & (steps[following] == 0) & (self.cost < never)  # (S, V)
        self.after_text = min(1, len(weights) - 1)
        written = self._written()
        most = max(written, default=1)
        self.reach = max(next(n for n in range(most + 1) if n + 1 not in written) or most, 1)
        at_once = (self.whole & (weights == 1)).any(dim=1)  # (S,) states where an entry writes one unit
        self.pace = 2 if not written and bool(at_once.any()) else 1
        credit = (self.pace - 1) * at_once.int()
        self.gain = (self.pace * weights + credit[following] - self.reach * steps[following]).float()

        # beyond the dearest entry all remaining lengths are alike, and below the least gain all that must be written
        self._fits = _Rows(
            self._make_fits, len(weights), 0, int(torch.where(self.cost < never, self.cost, 0).max()) + 1
        )
        self._steers = _Rows(self._make_steer, len(weights), int(self.gain.min()), int(self.gain.max()) + 1)
        self._ends = _Rows(lambda state, left: _log_step(left[:, None] - steps[following[state]]), len(weights), -1, 4)

    def _written(self) -> set[int]:
        """Units that single entries write in the middle of a text."""
        return set(self.cost[self.after_text][self.whole[self.after_text]].unique().tolist()) - {0}

    def entries(self, length: int) -> int:
        """Entries that may be needed for so many units."""
        return math.ceil(self.pace * length / self.reach)

    def reachable(self, length: int) -> torch.Tensor:
        """Whether 0, 1 ... `length` units can be written: `(length + 1,)`."""
        written = self._written()
        can = [True]
        for n in range(1, length + 1):
            can.append(not written or 1 in written or any(w <= n and can[n - w] for w in written))
        return torch.tensor(can, device=self.cost.device)

    def bias(self, state: torch.Tensor, remaining: torch.Tensor) -> torch.Tensor:
        """0 for what may be written, `-inf` for the rest: `(rows,)` states and remaining units -> `(rows, V)`."""
        return self._fits(state, remaining)

    def steer(self, state: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
        """0 for what gains `least`, `-inf` for the rest: `(rows,)` states and units -> `(rows, V)`."""
        return self._steers(state, least)

    def ends_within(self, state: torch.Tensor, left: int) -> torch.Tensor:
        """0 for what can be followed by EOS after `left` more entries, `-inf` for the rest: `(rows, V)`."""
        return self._ends(state, torch.full_like(state, left))

    def _make_fits(self, state, remaining):
        rows = _log_step(remaining.unsqueeze(1) - self.cost[state])  # (keys, V)
        if self.exact:
            rows[:, self.eos] += _log_step(-remaining).unsqueeze(1)
        return rows

    def _make_steer(self, state, least):
        return _log_step(self.gain[state] - least.unsqueeze(1))


class _Rows:
    """Rows `(V,)` for pairs of a state and a number; the pairs are few, so a row is made once and kept."""

    def __init__(self, make, states: int, low: int, high: int):
        self.make, self.states, self.low, self.high = make, states, low, high
        self.kept: torch.Tensor | None = None
        self.made = 0

    def __call__(self, state: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        key = state * (self.high - self.low + 1) + number.clamp(self.low, self.high) - self.low  # (rows,)
        with _ROWS_LOCK:
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


def _bounds(table: UnitTable, eos: tuple[int, ...], constraint: str) -> _Bounds:
    """Made once for a table: `generate` is called many times."""
    key = (eos, constraint, table.weights.device, table.weights._version, table.next_state._version)
    bounds = table.bounds.get(key)
    if bounds is None:
        bounds = _Bounds(table, eos, constraint)
        kept = {known: other for known, other in table.bounds.items() if known[2:] == key[2:]}
        table.bounds = {**kept, key: bounds}  # at once: another thread may be reading
    return bounds
