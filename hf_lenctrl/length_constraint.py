"""The logits processor that restricts outputs to their requested lengths."""

import copy
import inspect
import math
from typing import Any

import torch
from transformers.generation import LogitsProcessor

from .length_rules import end_spent, rules_of
from .length_units import RunningCount, UnitTable
from .lengths import Target, as_target, is_integer, listed, plural
from .thoughts import thoughts_of


class LengthConstraintLogitsProcessor(LogitsProcessor):
    """
    A hard constraint on the length of each output. The constraint works in any unit, with any model (length-controlled
    or not), and with greedy search, beam search or sampling. A length-controlled model builds this processor if
    `generate` gets `length_constraint`. For other models, pass the processor to `generate`.

    The processor masks vocabulary entries that do not fit into the remaining length, that would leave a character
    incomplete (byte-level BPE; not in the unit `"token"`), or that add no units. EOS is masked while the constraint
    does not allow the text to end. The scores of other entries do not change, so beam search prefers outputs that end
    where the model would end. If no entry fits, EOS is allowed. If no entries add up to an `"exact"` length, the
    output has the next shorter possible length. Masks of other processors stay, with two exceptions: a character that
    is split over entries is always completed, and EOS is allowed if no other entry is allowed.

    Args:
        unit_table (`UnitTable`): Table of the units that each entry of the model's vocabulary adds.
        length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`): Requested length in units, one for
            all examples or one for each example.
        constraint (`str`, *optional*, defaults to `"max"`): `"max"`: outputs are never longer than `length`.
            `"exact"`: outputs have this length. `"min"`: outputs are never shorter than `length`, and at most four
            times as long.
        tolerance (`int`, `float`, `tuple` or `list`, *optional*): A window around the length for the constraint
            `"exact"`, see `length_tolerance` of `generate`.
        eos_token_id (`int` or `list[int]`): Ids that end an output.
        max_length (`int` or `torch.LongTensor` of shape `(batch_size,)`, *optional*): The limit of `generate` in
            positions, EOS included, for all examples or for each example. Outputs are complete before the limit. If an
            exact length would take too many entries, entries that add more units are chosen. In a unit in which no
            entry adds 1, such as `"arial"`, this may still miss the length; `generate` then logs a warning.
        prompt_length (`int`, *optional*, defaults to 0): Number of positions of the prompt, which do not count.
        start_length (`int`, *optional*, defaults to 1): Number of positions before the text that add no units: the
            decoder start, a forced BOS or language code.
        length_from (`str` or `list[int]`, *optional*): The marker that ends the thoughts (reasoning text) of a model:
            either a text, such as `"</think>"`, or ids. Entries up to the marker do not count, and are not masked.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): The model's tokenizer, for `length_from`.

    Raises:
        `TypeError`, `ValueError`: if the constraint is unknown, if a length is missing, not an integer or below 1, if
            a tolerance is given without `"exact"`, if EOS is missing, or if `max_length` is too small for the lowest
            allowed length.

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
        length: int | list[int] | torch.Tensor | Target,
        constraint: str = "max",
        *,
        tolerance=None,
        eos_token_id: int | list[int],
        max_length: int | torch.Tensor | None = None,
        prompt_length: int = 0,
        start_length: int = 1,
        length_from: Any = None,
        tokenizer: Any = None,
    ):
        if constraint is None or eos_token_id is None:
            raise ValueError(f"a constraint needs a mode and an EOS, got {constraint=} and {eos_token_id=}")
        unit_table.require_filled()
        self.thoughts = None if length_from is None else thoughts_of(length_from, tokenizer, unit_table)
        unit_table = unit_table if self.thoughts is None else self.thoughts.table
        self.table, self.constraint = unit_table, "max" if constraint == "max" else "exact"  # "min" has a window
        self.is_minimum = constraint == "min"
        if not isinstance(length, Target):
            length = listed(length)
            rows = len(length) if isinstance(length, list) or isinstance(length, torch.Tensor) and length.dim() else 1
            length = as_target(length, constraint, tolerance, rows, unit_table.weights.device)
        self.low, self.high = length.low, length.high  # (B,) each
        self.window = bool((self.low < self.high).any())
        self.max_length, self.prompt_length = max_length, prompt_length
        self.running = RunningCount(unit_table if self.thoughts is None else self.thoughts, prompt_length)
        eos = [eos_token_id] if is_integer(eos_token_id) else torch.as_tensor(eos_token_id).reshape(-1).tolist()
        if not eos or not all(0 <= end < unit_table.weights.shape[1] for end in eos):
            rule = f"eos_token_id must be ids of the {unit_table.weights.shape[1]} entries of the unit table"
            raise ValueError(f"{rule}, got {eos_token_id}")
        self.rules = rules_of(unit_table, tuple(eos), self.constraint)
        if self.constraint == "exact" and max_length is not None:
            self._check_room(start_length)

    def _check_room(self, start_length: int) -> None:
        limits = torch.as_tensor(self.max_length).expand(len(self.low)).tolist()
        for example, (length, limit) in enumerate(zip(self.low.tolist(), limits, strict=True)):
            pace, reach, (units, gain) = self.rules.pace, self.rules.reach, self.rules.first
            best = max(gain[units <= length].int().tolist(), default=0)  # of the first entry
            needed = math.ceil(max(pace * length, pace * length + reach - best) / reach) + start_length + 1
            if limit - self.prompt_length < needed:
                need = f"{self.asked(example)} may need {needed} positions with start and EOS"
                raise ValueError(f"{need}, max_length leaves {limit - self.prompt_length}; raise it or max_new_tokens")

    def asked(self, example: int) -> str:
        """Return the lengths that an example may have, for a message, such as `"10 to 20 words"`."""
        low, high = int(self.low[example]), int(self.high[example])
        ends = f"at least {low}" if self.is_minimum else f"exactly {low}" if low == high else f"{low} to {high}"
        return f"{ends} {plural(self.table.unit)}"

    def of(self, examples: torch.Tensor) -> "LengthConstraintLogitsProcessor":
        """
        Return a copy of this processor for a batch with other rows. Row `i` of the new batch belongs to the example
        with the index `examples[i]`; several rows may belong to the same example. `examples` has the shape `(rows,)`.
        """
        own = copy.copy(self)
        own.low, own.high = self.low[examples], self.high[examples]
        if isinstance(self.max_length, torch.Tensor):
            own.max_length = self.max_length[examples]
        return own

    def __call__(self, input_ids, scores):
        """
        Return a copy of `scores` with `-inf` for entries that the constraint forbids.

        Args:
            input_ids (`torch.LongTensor` of shape `(rows, sequence_length)`): Ids of the prompt and of the texts so
                far. Each example has one or more consecutive rows (beams, samples).
            scores (`torch.FloatTensor` of shape `(rows, vocab_size)`): Logits or log-probabilities of the next entry.
        """
        rows, vocab_size = scores.shape
        rules = self.rules
        examples = self.high.shape[0]
        if len(rules.column) != vocab_size or rows % examples:
            own = f"{examples} lengths and a unit table of {len(rules.column)} entries"
            raise ValueError(f"scores for {rows} rows and {vocab_size} entries do not go with {own}")
        copies = rows // examples
        count, state = self.running(input_ids)  # (rows,) each
        # Entries that add no units (BOS or a language code) are allowed only at the start.
        at_start = input_ids.shape[1] - self.prompt_length <= 2 and self.thoughts is None
        start = count == 0 if at_start else None  # (rows,)
        left = self.entries_left(input_ids)
        remaining = self.high.repeat_interleave(copies) - count  # (rows,)
        slack = (self.high - self.low).repeat_interleave(copies) if self.window else None  # (rows,)
        return self.constrain(scores.clone(), state, remaining, slack, left, start)

    def entries_left(self, input_ids) -> torch.Tensor | None:
        """
        Return the maximum number of entries between the next entry and EOS, `(rows,)`, or `None` without `max_length`.
        """
        if (limit := self.max_length) is None:
            return None
        rows = len(input_ids)
        if isinstance(limit, torch.Tensor):
            limit = limit.repeat_interleave(rows // len(limit))
        return limit - input_ids.shape[1] - 2 + input_ids.new_zeros(rows)

    def constrain(self, scores, state, remaining, slack=None, left=None, start=None):
        """
        Mask in place the scores of entries that the constraint forbids. The caller has counted the units of the texts.
        The order of the steps matters:

        1. Copy the scores of EOS and of entries that add no units, because the masks change these scores.
        2. Mask entries that do not fit the remaining units.
        3. At the start, restore the scores of entries that add no units.
        4. Mask entries, but not EOS, if the text cannot end after them within the positions that are left.
        5. For an exact length, mask entries that add too few units for the positions that are left.
        6. Where no units remain and the best entry is masked, prefer EOS, see `end_spent`.
        7. In rows without an allowed entry, use `_fallback_scores`, with the scores of step 1.

        Args:
            scores (`torch.FloatTensor` of shape `(rows, vocab_size)`): Logits or log-probabilities.
            state, remaining (`torch.LongTensor` of shape `(rows,)`): The state of each text in the unit table (below 0
                in thoughts), and the number of units that remain up to the highest allowed length.
            slack (`torch.LongTensor` of shape `(rows,)`, *optional*): The highest minus the lowest allowed length.
            left (`torch.LongTensor` of shape `(rows,)`, *optional*): Maximum number of entries between the next entry
                and EOS.
            start (`torch.BoolTensor` of shape `(rows,)`, *optional*): Rows where entries that add no units are
                allowed.

        Returns:
            `torch.FloatTensor` of shape `(rows, vocab_size)`: `scores`, with `-inf` for forbidden entries.
        """
        if self.thoughts is not None and bool((state < 0).any()):
            return self._beside_thoughts(scores, state, remaining, slack, left, start)
        rules = self.rules
        ends, silent = scores[:, rules.eos], scores[:, rules.silent]  # before any mask
        spent = (remaining <= 0).nonzero().squeeze(1)
        best = scores[spent].max(dim=-1)
        if slack is None:
            rules.fits(state, remaining, scores)
        else:
            scores += rules.fits_window(state, remaining, slack)
        if start is not None:
            scores[:, rules.silent] = torch.where(start.unsqueeze(1), silent, scores[:, rules.silent])
        if left is not None:
            if int(left.min()) < rules.most_steps:
                fitting = scores[:, rules.eos]
                rules.ends_within(state, left, scores)
                scores[:, rules.eos] = fitting
            if self.constraint == "exact":
                missing = remaining if slack is None else remaining - slack  # (rows,) units up to the lowest length
                scarce = (left - rules.most_steps) * rules.reach < rules.pace * missing  # (rows,)
                if bool(scarce.any()):
                    self._steer(scores, rules.steers(state, rules.pace * missing - left * rules.reach))
        end_spent(scores, spent, best, rules.eos)
        empty = _nothing_in(scores)  # (rows,)
        if bool(empty.any()):  # no entry fits, or other processors forbid what fits
            left, slack = (None if each is None else each[empty] for each in (left, slack))
            scores[empty] = self._fallback_scores(
                ends[empty], silent[empty], state[empty], remaining[empty], slack, left
            )
        return scores

    def _beside_thoughts(self, scores, state, remaining, *others):
        """
        Constrain a batch in which some rows are still in their thoughts. In these rows, mask only entries that
        complete the end-of-thoughts marker and begin an answer that cannot get an allowed length. `others` are
        `slack`, `left` and `start` of `constrain`.
        """
        assert self.thoughts is not None
        answers = (state >= 0).nonzero().squeeze(1)
        if len(answers):
            own = (None if x is None else x[answers] for x in (state, remaining, *others))
            scores[answers] = self.constrain(scores[answers], *own)
        slack = torch.zeros_like(remaining) if others[0] is None else others[0]
        for row, place in enumerate(state.tolist()):
            if place < 0 and len(endings := self.thoughts.endings[~place]):
                units, to = (x.to(scores.device) for x in self.thoughts.behind(place, endings))
                fits = self.rules.can_end(to, remaining[row] - units, slack[row])
                scores[row, endings.to(scores.device)[~fits]] = -math.inf
        return scores

    # `generate` inspects the signature at each step.
    __call__.__signature__ = inspect.signature(__call__)  # type: ignore[attr-defined]

    def _steer(self, scores, more):
        """Add the mask `more` to `scores` in place, but not to EOS, and not to rows in which no entry would stay."""
        more[:, self.rules.eos] = 0.0
        more += scores  # in place, because a new tensor costs more time than the sum
        possible = ~_nothing_in(more)  # (rows,)
        scores[possible] = more[possible].to(scores.dtype)

    def _fallback_scores(self, ends, silent, state, remaining, slack, left):
        """
        Return the scores of rows without an allowed entry. Allow the first of these that is possible: (1) inside a
        character, entries after which the text can still get an allowed length, even if other processors forbid them;
        (2) EOS; (3) entries that add no units; (4) EOS, even if other processors forbid it. `ends` and `silent` are
        the scores of EOS and of entries that add no units, before any mask.
        """
        rules = self.rules
        completes = rules.fits_window(state, remaining, slack)
        if left is not None:
            completes += rules.ends_within(state, left)
        completes[rules.ends[state]] = -math.inf
        completes = completes.to(ends.dtype)
        last, still, forced = (torch.full_like(completes, -math.inf) for _ in range(3))
        last[:, rules.eos], still[:, rules.silent], forced[:, rules.eos] = ends, silent, 0.0
        for way in (still, last, completes):  # a later possible choice replaces an earlier choice
            forced = torch.where(_nothing_in(way).unsqueeze(1), forced, way)
        return forced


def _nothing_in(scores: torch.Tensor) -> torch.Tensor:
    """Return for each row whether no entry is allowed: all have `-inf` or the lowest number of the dtype."""
    least = torch.finfo(scores.dtype).min
    empty = scores[:, :4096].amax(dim=-1) <= least  # most rows have an allowed entry here
    if scores.shape[1] > 4096 and bool(empty.any()):
        empty = scores.amax(dim=-1) <= least
    return empty
