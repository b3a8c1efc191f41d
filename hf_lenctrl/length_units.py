"""Units of length: what a text or a sequence of token ids counts."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from .character_costs import CharacterCost, columns, count_columns
from .lengths import check_name
from .unit_vocabulary import CostVocabulary, UnitVocabulary, entries_of


LENGTH_UNITS = ("token", "character", "word", "byte", "width")
COST = "cost"  # the unit of a table that was made with a function of the user; nothing else counts it

_COUNTED: dict = {  # UTF-8 is the default of `str.encode`
    "character": len,
    "word": lambda text: len(text.split()),
    "byte": lambda text: len(text.encode()),
    "width": count_columns,
}
_CODES = (*LENGTH_UNITS, COST)  # a saved table names its unit by the position here
NOT_FILLED = torch.iinfo(torch.int32).min  # weight of an entry before `set_unit_table`
NO_STATE = 255  # its next state


def count_units(text: str, unit: str) -> int:
    """
    Length of a decoded text, without special tokens.

    Args:
        text (`str`): The text.
        unit (`str`): `"character"`, Unicode code points; `"word"`, what `str.split()` makes of the text; `"byte"`, its
            UTF-8; `"width"`, the columns it takes on a terminal. Tokens are counted from ids: `UnitTable.count`.

    Raises:
        `ValueError`, `ImportError`: for another unit; for `"width"` without the package `wcwidth`.

    Example:

    ```python
    >>> from hf_lenctrl.length_units import count_units
    >>> [count_units("naïve 日本", unit) for unit in ("character", "word", "byte", "width")]
    [8, 2, 13, 10]

    ```
    """
    check_name("unit of a text", unit, _COUNTED)
    return _COUNTED[unit](text)


def count_texts(tokenizer, texts: Sequence[str], unit: str, *, target: bool = False) -> list[int]:
    """
    Units of each text, one of `LENGTH_UNITS`; tokens are those of the source side, or with `target` of the target
    side, without special ones.
    """
    if unit != "token":
        return [count_units(text, unit) for text in texts]
    if not texts:
        return []
    side = {"text_target" if target else "text": list(texts)}
    return [len(ids) for ids in tokenizer(**side, add_special_tokens=False, verbose=False)["input_ids"]]


def check_texts(texts: Sequence[str], name: str = "input") -> None:
    """Raise `TypeError` for the first of `texts` that is no `str`."""
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"every {name} must be a text, got {text!r} at position {i}")


def check_sources(texts: Sequence[str]) -> None:
    """Raise `TypeError` for the first of `texts` that is no `str`, `ValueError` for one with half a character."""
    check_texts(texts)
    for i, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"every input must be valid Unicode, got a lone surrogate at position {i}") from error


class UnitTable(nn.Module):
    """
    Units that each vocabulary entry writes, kept as buffers so that they are saved, loaded and moved with a model.

    What an entry adds depends on the text before it: decoding drops the space before the first word, a piece without
    a space continues the last word, byte-level BPE can spread one character over tokens. So the table is a small
    machine: in state `s`, entry `v` writes `weights[s, v]` units and leads to state `next_state[s, v]`. State 0 is the
    start, where nothing but white space was written. Special tokens write nothing.

    Args:
        unit (`str`): One of `LENGTH_UNITS`, or `"cost"`.
        weights (`torch.IntTensor` of shape `(states, vocab_size)`): Units; `~units`, below 0, where the entry would
            leave an invalid text (a character cut in two, a last space that decoding strips).
        next_state (`torch.ByteTensor` of shape `(states, vocab_size)`, *optional*): All 0 by default.
    """

    weights: torch.Tensor
    next_state: torch.Tensor
    unit_code: torch.Tensor

    def __init__(self, unit: str, weights: torch.Tensor, next_state: torch.Tensor | None = None):
        super().__init__()
        self.unit, self.states = unit, len(weights)
        # int32: NCCL and gloo cannot broadcast the smaller int16
        self.register_buffer("weights", weights.to(torch.int32))
        next_state = torch.zeros(weights.shape) if next_state is None else next_state
        self.register_buffer("next_state", next_state.to(torch.uint8))
        self.register_buffer("unit_code", torch.tensor([_CODES.index(unit)], dtype=torch.uint8))
        self._filled = False

    @classmethod
    def from_config(cls, config, vocab_size: int) -> "UnitTable":
        """Table without a tokenizer: 1 for all but the special ids of `config`; one to be filled for other units."""
        shape = (getattr(config, "unit_states", 1), vocab_size)
        if config.length_unit != "token":
            return cls(config.length_unit, torch.full(shape, NOT_FILLED), torch.full(shape, NO_STATE))
        weights = torch.ones(shape)
        for name in ("pad", "bos", "eos", "decoder_start", "forced_bos", "forced_eos"):
            ids = getattr(config, f"{name}_token_id", None)
            for special in ids if isinstance(ids, list) else [ids]:
                if special is not None and 0 <= special < vocab_size:
                    weights[:, special] = 0
        return cls("token", weights)

    @classmethod
    def from_tokenizer(
        cls, tokenizer, unit: str | None = None, *, cost: Callable[[str], int] | None = None
    ) -> "UnitTable":
        """
        Table of a tokenizer's target vocabulary, checked against what the tokenizer decodes.

        Counts are those of `tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)`. Two
        things only the ids know: white space at the end of a text, which Marian and M2M100 strip, counts; and bytes
        that are no UTF-8, which byte-level BPE decodes to U+FFFD, count by their lead bytes (a model may write them,
        no text encodes to them).

        Args:
            tokenizer (`PreTrainedTokenizerBase`): For units other than tokens one that decodes byte-level BPE (BART),
                SentencePiece (Marian, mBART, T5, Pegasus, M2M100, NLLB) or WordPiece (BERT).
            unit (`str`, *optional*): `"token"`, `"character"`, `"word"`, `"byte"` or `"width"`.
            cost (`Callable[[str], int]`, *optional*): Instead, any cost of a text that is the sum of those of its
                characters, whole numbers from 0 to 1000. The table's unit is then `"cost"`.

        Where entries split characters (byte-level BPE), a character of `"width"` or of a `cost` counts when its last
        byte is written.

        Raises:
            `TypeError`, `ValueError`: for an unknown unit, a tokenizer whose text is not the sum of its pieces, a cost
                that does not add up, is no whole number, is below 0, or is 0 for every entry.
            `ImportError`: for `"width"` without the package `wcwidth`.
        """
        if unit == COST if cost is None else unit not in (None, COST):
            raise ValueError(f"unit='cost' is counted by cost=function, got unit={unit!r} and cost={cost!r}")
        if cost is None:
            check_name("unit", unit, LENGTH_UNITS)
        unit = unit or COST
        vocab_size, special = entries_of(tokenizer)
        if unit == "token":
            special.discard(tokenizer.unk_token_id)  # an unknown word is written, if not well
            return cls(unit, torch.tensor([[int(i not in special) for i in range(vocab_size)]]))
        vocabulary = UnitVocabulary(tokenizer, vocab_size, special)
        if unit not in (COST, "width"):
            table = cls(unit, *vocabulary.machine(unit))
            _check(table, vocabulary, _COUNTED[unit])
            return table
        costs: Any = columns() if cost is None else CharacterCost(cost)
        if cost is not None:
            costs.check_sum(vocabulary.texts())
        table = cls(unit, *CostVocabulary(vocabulary, costs).machine())
        if not bool((table.weights > 0).any()):
            raise ValueError(f"a {unit} must count something, but every entry of the vocabulary has 0; pass another")
        _check(table, vocabulary, costs.count)
        return table

    def progress(self, ids: torch.Tensor) -> torch.Tensor:
        """
        Units written up to and including each position, which a decoder that reads `ids` is given before it predicts:
        `(batch_size, sequence_length)` -> the same. The last column is the count of the whole row.
        """
        self.require_filled()
        if self.states == 1:
            return self._progress(ids, torch.zeros_like(ids), shifted=True)
        if self.unit in ("word", "width", COST):
            return self._progress(ids, self.states_after(ids))
        return self._progress(ids, self._started_before(ids).long(), shifted=True)  # past the start all weigh alike

    def _progress(self, ids, states, *, shifted: bool = False):
        before = states if shifted else torch.cat([torch.zeros_like(ids[:, :1]), states[:, :-1]], dim=-1)  # (B, T)
        weights = self.weights[before, ids]  # (B, T)
        return torch.maximum(weights, ~weights).cumsum(-1)

    def count_and_state(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Units of each row and the state it ends in, `(batch_size,)` each; 0 and the start for rows without ids."""
        self.require_filled()
        if ids.shape[1] == 0:
            return ids.new_zeros(len(ids)), ids.new_zeros(len(ids))
        states = self.states_after(ids)
        return self._progress(ids, states)[:, -1], states[:, -1]

    def count(self, ids: torch.Tensor) -> torch.Tensor:
        """Units of each row: `(batch_size, sequence_length)` -> `(batch_size,)`."""
        if ids.shape[1] == 0:
            return ids.new_zeros(len(ids))
        return self.progress(ids)[:, -1].contiguous()  # a view's stride would make torch.compile compile again

    def states_after(self, ids: torch.Tensor) -> torch.Tensor:
        """State after each position: `(batch_size, sequence_length)` -> the same."""
        count, following = self.states, self.next_state
        if count == 1:
            return torch.zeros_like(ids)
        started = self._started_before(ids)
        if count == 2:
            return (started | (following[0, ids] != 0)).long()
        # An entry that writes sets the state, whatever it was, but for the bytes that a character still waits for.
        # From any guess three rounds carry the four bytes of a character; words need those of the one before too,
        # which may be white space, and the first of this one. Special tokens keep the state.
        rounds = 1 if count == 3 else 7 if self.unit == "word" else 3
        if self.unit == "width":  # a flag's second half depends on all flags before it
            rounds = ids.shape[1]
        silent = (following[1, ids] == 1) & (following[2, ids] == 2)  # (B, T)
        if self.unit in ("width", COST):  # whose third state may be one of text, which a combining mark keeps too
            silent &= following[0, ids] == 0
        position = torch.arange(ids.shape[1], device=ids.device)
        last = torch.where(silent, 0, position).cummax(-1).values  # (B, T) the last entry that wrote, up to here
        state = following[1, ids].long()  # (B, T)
        for _ in range(rounds):
            state = state.gather(-1, last)
            before = torch.cat([torch.zeros_like(state[:, :1]), state[:, :-1]], dim=-1)
            known, state = state, following[torch.where(started, before, 0), ids].long()
            if self.unit == "width" and torch.equal(known, state):
                break
        return state

    def _started_before(self, ids):
        starts = (self.next_state[0, ids] != 0).int()
        return starts.cumsum(-1) > starts  # (B, T)

    def require_filled(self) -> None:
        """Raise `ValueError` if the table waits for a tokenizer."""
        if not self._filled and not torch.compiler.is_compiling():
            if bool((self.weights == NOT_FILLED).any() | (self.next_state == NO_STATE).any()):
                call = "call model.set_unit_table(tokenizer)"
                raise ValueError(f"the model has no table of units and cannot count {self.unit}s; {call}")
            self._filled = True

    def resized(self, vocab_size: int, config) -> "UnitTable":
        """A table of another size; new entries are as in `from_config`."""
        new = UnitTable.from_config(config, vocab_size).to(self.weights.device)
        kept = min(vocab_size, self.weights.shape[1])
        new.weights[:, :kept] = self.weights[:, :kept]
        new.next_state[:, :kept] = self.next_state[:, :kept]
        return new

    def padded(self, vocab_size: int) -> "UnitTable":
        """
        The table for an embedding that is larger than the tokenizer's vocabulary; no output holds the entries beyond.
        Raises `ValueError` where it is smaller, or larger by more than padding explains (Qwen's has 271 more).
        """
        entries = self.weights.shape[1]
        if not entries <= vocab_size < entries + 512:
            raise ValueError(
                f"the tokenizer's target vocabulary has {entries} entries, the decoder's embedding {vocab_size}"
            )
        weights = nn.functional.pad(self.weights, (0, vocab_size - entries), value=~0)
        own = torch.arange(self.states, dtype=torch.uint8, device=weights.device).unsqueeze(1)
        next_state = torch.cat([self.next_state, own.expand(-1, vocab_size - entries)], dim=1)
        return UnitTable(self.unit, weights, next_state)

    @property
    def loaded_unit(self) -> str:
        """Return the unit that the loaded weights count."""
        return _CODES[int(self.unit_code)]

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        self._filled = False
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _check(table: UnitTable, vocabulary: UnitVocabulary, counted: Callable, rows: int = 100) -> None:
    """Count rows of entries drawn at random, and compare with the text they decode to."""
    draw, tokenizer = random.Random(0), vocabulary.tokenizer
    weights, following = table.weights.tolist(), table.next_state.tolist()
    eos = next(iter(vocabulary.special), None)
    candidates = [i for i in range(len(vocabulary.later)) if i not in vocabulary.special]
    special = sorted(vocabulary.special) or candidates
    for row in range(rows if candidates else 0):
        ids, state, count = [], 0, 0
        for _ in range(1 + row % 8):
            i = draw.choice(candidates if draw.random() < 0.8 else special)
            if weights[state][i] >= 0:
                ids.append(i)
                count += weights[state][i]
                state = following[state][i]
        if eos is not None and weights[state][eos] < 0:
            continue  # ends within a character or on white space that is stripped
        text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if count != counted(text):
            pieces = f"{tokenizer.convert_ids_to_tokens(ids)} decodes to {text!r}, {counted(text)} {table.unit}s"
            rule = f"{table.unit}s of {type(tokenizer).__name__} cannot be counted piece by piece"
            raise ValueError(f"{rule}: {pieces}, not {count}; use length_unit='token'")
