"""
Separation of thoughts (reasoning text) from the answer. Thoughts do not count, and no constraint applies to them.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.functional import pad
from transformers.generation import LogitsProcessor

from .lengths import is_integer, plural
from .unit_vocabulary import UnitVocabulary, entries_of


WHITE = b" \t\r\n"  # white space between the marker and the answer, which does not count
_ROOM = 32_768  # maximum tokens of thoughts if a call sets no budget, as makers of thinking models recommend
_BLANKS = 8  # maximum number of white-space entries between a marker and the end of a prompt


class AnswerMarker:
    """
    The marker that ends the thoughts, such as `</think>`, and an automaton that finds the marker in ids. A marker is
    either a text, which vocabulary entries may split anywhere, or a list of ids.

    The automaton reads symbols: the bytes of vocabulary entries if the marker is a text, otherwise ids. Its state is
    the number of symbols of the marker that it has just read (Knuth, Morris & Pratt 1977). From state `s`, entry `v`
    leads to the state `following[s, v]`. A state of `len(symbols)` or more means that the marker ends inside the
    entry. Then the state is `len(symbols) + rests[rest]`, where `rest` are the bytes of the entry after the marker,
    without leading white space. The dictionary `rests` has a number for each `rest`. An empty `rest` has 0.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): A tokenizer that decodes by pieces, see `UnitTable.from_tokenizer`.
        marker (`str` or `list[int]`): Either a text, which may contain special tokens, or a list of ids, which matches
            only exactly these ids.

    Raises:
        `ValueError`: if the tokenizer cannot encode the marker.
    """

    def __init__(self, tokenizer, marker: str | Sequence[int]):
        self.marker, text = marker, isinstance(marker, str)
        size, self.special = entries_of(tokenizer)
        vocabulary = UnitVocabulary(tokenizer, size, self.special)
        self.first, self.later = vocabulary.first, vocabulary.later
        self.data = list(self.later)
        for i, name in zip(self.special, tokenizer.convert_ids_to_tokens(list(self.special)), strict=True):
            # A special token adds nothing, but may belong to the marker.
            self.data[i] = name.encode() if isinstance(marker, str) and name and name in marker else b""
        self.blank = torch.tensor([bool(data) and not data.strip(WHITE) for data in self.data])  # (V,)
        self.symbols: Sequence[int] = marker.encode() if isinstance(marker, str) else tuple(marker)
        own = tokenizer(marker, add_special_tokens=False)["input_ids"] if isinstance(marker, str) else marker
        self.ids: list[int] = list(own)
        self.rests: dict[bytes, int] = {b"": 0}
        self.following = self._machine(self.data if text else [(i,) for i in range(size)])  # (L, V)
        self._made: WeakKeyDictionary = WeakKeyDictionary()
        if self._end(self.ids) != len(self.ids):
            raise ValueError(f"length_from must be what the tokenizer can encode, got {marker!r}; pass another marker")

    def _machine(self, entries: Sequence[Sequence[int]]) -> torch.Tensor:
        symbols, most = self.symbols, len(self.symbols)
        shorter = [0] * (most + 1)  # symbols that still match if the next symbol differs (failure function)

        def step(state: int, symbol: int) -> int:
            while state and symbol != symbols[state]:
                state = shorter[state]
            return state + (symbol == symbols[state])

        for end in range(2, most + 1):
            shorter[end] = step(shorter[end - 1], symbols[end - 1])
        # `apart` holds, for each first symbol, the states with another successor than the start state. From all other
        # states an entry leads to the same state as from the start state.
        apart = {x: [s for s in range(1, most) if step(s, x) != step(0, x)] for x in {*symbols}}
        following = torch.zeros(most, len(entries), dtype=torch.long)
        for i, entry in enumerate(entries):
            own = apart.get(entry[0], []) if entry else range(1, most)
            for start in [0] * (symbols[0] in entry) + [*own]:
                state = start
                for k, symbol in enumerate(entry):
                    state = step(state, symbol)
                    if state == most:
                        rest = entry[k + 1 :].lstrip(WHITE) if isinstance(entry, bytes) else b""
                        state += self.rests.setdefault(rest, len(self.rests))
                        break
                following[[start] if start else [s for s in range(most) if s not in own], i] = state
        return following

    def _end(self, ids: Sequence[int]) -> int | None:
        state = 0
        for k, i in enumerate(ids):
            state = int(self.following[state, i]) if i < len(self.data) else 0
            if state >= len(self.symbols):
                return k + 1
        return None

    def split(self, ids: Sequence[int], closed: bool = False) -> tuple[str, str | None]:
        """
        Split generated `ids` at the marker. Return two texts: the thoughts, and the answer. Remove the white space
        around the thoughts and before the answer. If there is no marker, the answer is `None`. If `closed` is set, the
        marker is already in the prompt, so all ids are the answer.
        """
        ids = [i for i in ids if i < len(self.data)]  # no tokenizer decodes larger ids
        end = 0 if closed else self._end(ids)
        before = b"".join(self.data[i] for i in ids[:end])
        behind = b""
        if end is None:
            before = b"".join(self.later[i] for i in ids if i not in self.special)
        elif isinstance(self.marker, str) and not closed:
            before, _, behind = before.partition(bytes(self.symbols))
        elif not closed:
            before = b"".join(self.data[i] for i in ids[: end - len(self.symbols)])
        thoughts = before.decode(errors="replace").strip()
        if end is None:
            return thoughts, None
        behind += b"".join(self.later[i] for i in ids[end:] if i not in self.special)
        return thoughts, behind.decode(errors="replace").lstrip(WHITE.decode())

    def tables(self, table: Any) -> tuple[Any, Any]:
        """
        Return two unit tables for answers after the marker, made from `table`. The first does not count white space at
        the start of an answer. The second is a copy of the first with an additional entry for each item of `rests`:
        the part of a vocabulary entry after the end of the marker. Both tables are cached.
        """
        made = self._made.get(table)
        if made is None or made[0] is not table.weights:
            self._made[table] = made = (table.weights, *self._tables(table))
        return made[1:]

    def _tables(self, table: Any) -> tuple[Any, Any]:
        table.require_filled()
        weights, following = table.weights.cpu(), table.next_state.cpu().long()  # (S, V) each
        tokens = len(weights) == 1
        if tokens:  # tokens need a state before the first token
            following = torch.stack([(weights[0] != 0).long(), torch.ones_like(following[0])])
            weights = weights.repeat(2, 1)
        count = _Count(self, weights, following)
        units, states = weights[0].tolist(), following[0].tolist()
        for i, data in enumerate(self.later):
            text = data.lstrip(WHITE)
            if data and not text and i not in self.special:
                units[i], states[i] = 0, 0
            elif text != self.first[i] and i not in self.special and not tokens:
                # An entry that cannot be counted is forbidden.
                units[i], states[i] = count.of(text) or (min(units[i], ~units[i]), states[i])
        rests = [(0, 0), *((1, 1) if tokens else count.of(rest) for rest in [*self.rests][1:])]
        if None in rests:
            rest = [*self.rests][rests.index(None)].decode(errors="replace")
            raise ValueError(
                f"{rest!r} after a marker cannot be counted in {plural(table.unit)}; pass length_unit='token'"
            )
        weights, following = weights.clone(), following.clone()
        weights[0], following[0] = torch.tensor(units), torch.tensor(states)
        own = torch.arange(len(weights)).unsqueeze(1)
        new = torch.tensor(rests).T.unsqueeze(1).expand(-1, len(weights), -1)  # (2, S, rests)
        more = torch.maximum(new[0], ~new[0]), torch.cat([own, new[1, :, 1:]], dim=1)
        longer = (torch.cat(pair, dim=1) for pair in zip((weights, following), more, strict=True))
        device = table.weights.device
        return type(table)(table.unit, weights, following).to(device), type(table)(table.unit, *longer).to(device)


class _Count:
    """A counter of the units in a byte string that need not be a vocabulary entry: it is split into entries."""

    def __init__(self, marker: AnswerMarker, weights: torch.Tensor, following: torch.Tensor):
        self.weights, self.following = weights.numpy(), following.numpy()
        self.first, self.later = (
            {data: i for i, data in enumerate(side) if i not in marker.special}
            for side in (marker.first, marker.later)
        )

    def of(self, data: bytes) -> tuple[int, int] | None:
        """
        Return the units of `data`, the first bytes of a text, and the state after it; `None` if no entries have these
        bytes. If a constraint would forbid one of the entries, the first value is `~units`.
        """
        entries = self._entries(data, self.first)
        if entries is None:
            return None
        units, state, valid = 0, 0, True
        for i in entries:
            weight, state = int(self.weights[state, i]), int(self.following[state, i])
            units, valid = units + max(weight, ~weight), valid and weight >= 0
        return units if valid else ~units, state

    def _entries(self, data: bytes, known: dict[bytes, int]) -> list[int] | None:
        for end in range(len(data), 0, -1):
            if data[:end] in known and (rest := self._entries(data[end:], self.later)) is not None:
                return [known[data[:end]], *rest]
        return None if data else []


class Thoughts:
    """
    A counter of the units of the answers in a batch. Only the text after the end-of-thoughts marker counts.

    After the marker, the state of a text is its state in `table`. Before the marker, it is the bitwise complement
    `~s`, which is below 0, of a state `s` of the marker's automaton.

    Args:
        marker (`AnswerMarker`): The marker that ends the thoughts.
        table (`UnitTable`): Unit table of the model's vocabulary.
        budget (`int`, *optional*): Maximum number of tokens of the thoughts.
    """

    def __init__(self, marker: AnswerMarker, table: Any, budget: int | None = None):
        self.marker, self.budget = marker, budget
        self.table, self._longer = marker.tables(table)
        device, unknown = table.weights.device, table.weights.shape[1] - len(marker.data)
        self._following = pad(marker.following, (0, unknown)).to(device)  # (L, V)
        # For each state of the automaton, these entries end the marker and begin the answer.
        self.endings = [(row > len(marker.symbols)).nonzero().squeeze(1) for row in self._following]
        self._blank = pad(marker.blank, (0, unknown)).to(device)  # (V,)

    def __repr__(self) -> str:
        return repr(self.marker.marker)

    @property
    def room(self) -> int:
        """Return the maximum number of tokens of the thoughts and the marker together."""
        return _ROOM if self.budget is None else self.budget + len(self.marker.ids)

    def _read(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the state of the marker's automaton after each of the `ids`. After a marker it starts again."""
        state = torch.zeros_like(ids)
        while True:  # fixed-point iteration; few rounds, because only the last symbols matter
            reached = self._following[pad(state, (1, 0))[:, :-1], ids]
            known, state = state, reached.masked_fill(reached >= len(self._following), 0)
            if torch.equal(known, state):
                return reached

    def behind(self, state: int | torch.Tensor, entries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Return two tensors `(n,)` for vocabulary entries that may follow thoughts, `entries (n,)`: the units of the
        answer, and the state, after each entry. `state`, below 0, is the state of the thoughts before the entry:
        either one state for all entries, or a tensor `(n,)`.
        """
        reached = self._following[~state, entries]
        rest = reached - len(self._following)
        column = self.table.weights.shape[1] + rest.clamp(min=0)
        units, to = self._longer.weights[0, column], self._longer.next_state[0, column].long()
        return torch.where(rest < 0, 0, units), torch.where(rest < 0, ~reached, to)

    def closed(self, prompt: torch.Tensor) -> torch.Tensor:
        """Return whether each row of `prompt` ends with the marker, optionally followed by white space, `(rows,)`."""
        end = prompt[:, -len(self._following) - _BLANKS :]
        blank = pad(self._blank[end].long().flip(1).cumprod(1).flip(1), (0, 1), value=1)[:, 1:]
        return ((self._read(end) == len(self._following)) & (blank == 1)).any(dim=1)

    def _answers(self, written: torch.Tensor, closed: torch.Tensor | None):
        """
        Find the answers in `written (rows, T)`, the ids after the prompt. `closed (rows,)` says which prompts end with
        the marker. Return four tensors: (1) the last state of the marker's automaton, `(rows,)`; (2) whether a row has
        a marker, `(rows,)`; (3) the number of ids up to the end of the marker, `(rows,)`, 0 if the marker is in the
        prompt, `T` if there is no marker; (4) the ids of the answers, `(rows, columns)`.

        Column 0 of (4) is the id of an additional entry (see `AnswerMarker.tables`): the bytes after the marker in the
        entry in which the marker ends. These bytes are empty if the marker is in the prompt or missing. The other
        columns are the ids after that entry. Short rows are filled with copies of their last id.
        """
        most = len(self._following)
        before = written.new_zeros(len(written)) if closed is None else most * closed.long()
        reached = torch.cat([before.unsqueeze(1), self._read(written)], dim=1)  # (rows, T + 1)
        begun = (reached >= most).any(dim=1)
        last = written.shape[1]
        start = torch.where(begun, (reached >= most).long().argmax(dim=1), last)  # (rows,)
        column = torch.arange(last + 1 - int(start.min()), device=written.device)
        answers = pad(written, (1, 0)).gather(1, (start.unsqueeze(1) + column).clamp(max=last))
        rest = reached.gather(1, start.unsqueeze(1)).squeeze(1) - most
        answers[:, 0] = self.table.weights.shape[1] + rest.clamp(min=0)
        return reached[:, -1], begun, start, answers

    def progress(self, ids: torch.Tensor, closed: torch.Tensor | None = None) -> torch.Tensor:
        """
        Return the progress of each answer in units, `(rows, positions + 1)`. Column 0 is the progress after the
        prompt; the other columns are the progress after each of the `ids (rows, positions)`. The progress is -1 before
        the end of the marker. `closed (rows,)` says which prompts end with the marker; by default no prompt does.
        """
        device = self._blank.device
        _, begun, start, answers = self._answers(ids.to(device), None if closed is None else closed.to(device))
        column = torch.arange(ids.shape[1] + 1, device=device) - start.unsqueeze(1)
        written = self._longer.progress(answers).gather(1, column.clamp(0, answers.shape[1] - 1))
        return torch.where(begun.unsqueeze(1) & (column >= 0), written, -1).to(ids.device)

    def count_and_state(self, ids: torch.Tensor, prompt: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Return two tensors `(rows,)`: the number of units of each answer, and the state of each row, which is below 0
        inside thoughts. The first `prompt` columns of `ids (rows, positions)` are the prompt.
        """
        read, begun, start, answers = self._answers(ids[:, prompt:], self.closed(ids[:, :prompt]))
        last = (ids.shape[1] - prompt - start).unsqueeze(1)
        count, state = (
            of.gather(1, last).squeeze(1)
            for of in (self._longer.progress(answers), self._longer.states_after(answers))
        )
        return count, torch.where(begun, state, ~read)

    def after(self, count: torch.Tensor, state: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the units and the state of each row, `(rows,)` each, after one more token, see `UnitTable.after`."""
        units, to = self.table.after(count, state.clamp(min=0), ids)
        first, begun = self.behind(state.clamp(max=-1), ids)
        return torch.where(state < 0, first, units), torch.where(state < 0, begun, to)


class ThinkingBudgetLogitsProcessor(LogitsProcessor):
    """A logits processor that forces the end-of-thoughts marker in rows whose thoughts have used up their budget."""

    def __init__(self, thoughts: Thoughts, prompt_length: int = 0):
        self.thoughts, self.prompt_length = thoughts, prompt_length

    def __call__(self, input_ids, scores):
        """Allow only the next id of the marker in rows still in their thoughts, from `thoughts.budget` ids on."""
        over, marker = input_ids.shape[1] - self.prompt_length - self.thoughts.budget, self.thoughts.marker.ids
        if not 0 <= over < len(marker):
            return scores
        begun = self.thoughts.count_and_state(input_ids, self.prompt_length)[1] >= 0
        forced = torch.full_like(scores, -math.inf)
        forced[:, marker[over]] = 0.0
        return torch.where(begun.unsqueeze(1), scores, forced)


_marker = lru_cache(maxsize=8)(AnswerMarker)


def check_thinking(length_from, budget) -> None:
    """
    Raise `TypeError` or `ValueError` if `length_from`, the end-of-thoughts marker, or `budget`, the maximum number of
    tokens of thoughts, is invalid. Raise `ValueError` if there is a budget but no marker.
    """
    if budget is not None and (not is_integer(budget) or budget < 0):
        raise ValueError(f"thinking_budget must be an integer of at least 0, got {budget!r}; pass 500")
    if length_from is None:
        if budget is not None:
            raise ValueError(f"thinking_budget={budget} needs what ends the thoughts; pass length_from='</think>'")
        return
    ids = isinstance(length_from, list | tuple) and all(is_integer(i) and i >= 0 for i in length_from)
    if not isinstance(length_from, str) and not ids:
        raise TypeError(f"length_from must be a text or a list of ids, got {length_from!r}; pass '</think>'")
    if not length_from:
        raise ValueError(f"length_from must not be empty, got {length_from!r}; pass '</think>'")


def marker_of(length_from: str | Sequence[int], tokenizer) -> AnswerMarker:
    """Return the cached `AnswerMarker`. Raise `ValueError` if the tokenizer is missing or cannot encode it."""
    if tokenizer is None:
        raise ValueError(f"length_from={length_from!r} needs the model's tokenizer; pass tokenizer=tokenizer")
    return _marker(tokenizer, length_from if isinstance(length_from, str) else tuple(length_from))


def thoughts_of(length_from, tokenizer, table: Any, budget: int | None = None) -> Thoughts | None:
    """
    Return a `Thoughts` for the marker `length_from`, the unit table `table` and the budget. If `length_from` is
    `None`, return `None`. If `length_from` is already a `Thoughts`, return it. Raise the errors of `check_thinking`
    and `marker_of`.
    """
    if isinstance(length_from, Thoughts):
        return length_from
    check_thinking(length_from, budget)
    return None if length_from is None else Thoughts(marker_of(length_from, tokenizer), table, budget)
