"""Units of length, and functions that count the units of a text or of a sequence of token ids."""

import importlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .character_costs import Cost, Unit
from .lengths import check_name, plural
from .saved_table import read_table, write_table
from .text_units import UNITS, unit_of
from .unit_vocabulary import CostVocabulary, UnitVocabulary, entries_of


LENGTH_UNITS = ("token", "character", "word", "byte", *UNITS)
COST = "cost"  # the unit of a table built with a user's unit or function; only the table can count this unit

_COUNTED: dict = {  # UTF-8 is the default of `str.encode`
    "character": len,
    "word": lambda text: len(text.split()),
    "byte": lambda text: len(text.encode()),
}
_CODES = (*LENGTH_UNITS[:5], COST, *LENGTH_UNITS[5:])  # a saved table stores the index of its unit in this tuple
NOT_FILLED = torch.iinfo(torch.int32).min  # weight of an entry before `set_unit_table`
NO_STATE = 255  # next state of an entry before `set_unit_table`


def check_unit(option: str, unit, known: Sequence[str] = LENGTH_UNITS) -> None:
    """Raise `ValueError` unless `unit` is a `Unit` or one of the `known` names."""
    if not isinstance(unit, Unit):
        check_name(option, unit, known)


def as_unit(unit: str | Unit | Callable[[str], int]) -> str | Unit:
    """Return a name or a `Unit` unchanged. For a cost function, return a `Cost`."""
    return unit if isinstance(unit, str | Unit) else Cost(unit)


def load_unit(name: str) -> str | Unit:
    """
    Return the unit that a command line names. The argument is either one of `LENGTH_UNITS`, or the place of a user's
    unit, `"module:object"`: a `Unit` or a cost function in a module that Python can import. Raise `ValueError` if the
    unit is not found.
    """
    module, _, attribute = name.partition(":")
    if not attribute:
        check_name("unit", name, [*LENGTH_UNITS, "module:name"])
        return name
    try:
        return as_unit(getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"a unit of your own is module:name, a Unit or a function, got {name!r}: {error}") from error


def count_units(text: str, unit: str | Unit) -> int:
    """
    Count the units of a decoded text that has no special tokens.

    Args:
        text (`str`): The text.
        unit (`str` or `Unit`): `"character"`, Unicode code points; `"word"`, the parts that `str.split()` returns;
            `"byte"`, bytes of UTF-8; `"width"`, columns of a terminal; another name in `docs/units.md`; or a unit of
            your own. `"token"` is invalid, because tokens are counted from ids, see `UnitTable.count`.

    Raises:
        `TypeError`: if the text is not a `str`.
        `ValueError`: if the unit is unknown.
        `ImportError`: if the unit is `"width"` and the package `wcwidth` is missing.

    Example:

    ```python
    >>> from hf_lenctrl.length_units import count_units
    >>> [count_units("naïve 日本", unit) for unit in ("character", "word", "byte", "width", "utf16", "zh_word")]
    [8, 2, 13, 10, 8, 3]

    ```
    """
    if not isinstance(text, str):
        raise TypeError(f"count_units takes one text, got {text!r} ({type(text).__name__}); call it for each text")
    check_unit("unit of a text", unit, LENGTH_UNITS[1:])
    return counter_of(unit)(text)


def counter_of(unit: str | Unit) -> Callable[[str], int]:
    """Return the function that counts the units of a text. The unit must not be `"token"`."""
    return unit.count if isinstance(unit, Unit) else _COUNTED.get(unit) or unit_of(unit).count


def count_texts(tokenizer, texts: Sequence[str], unit: str | Unit, *, target: bool = False) -> list[int]:
    """
    Return the number of units of each text. `unit` is one of `LENGTH_UNITS` or a `Unit`. Only the unit `"token"` uses
    the tokenizer, which encodes the texts as sources, or as targets if `target` is set. Special tokens do not count.
    """
    if unit != "token":
        check_unit("unit of a text", unit, LENGTH_UNITS[1:])
        return list(map(counter_of(unit), texts))
    if not texts:
        return []
    side = {"text_target" if target else "text": list(texts)}
    return [len(ids) for ids in tokenizer(**side, add_special_tokens=False, verbose=False)["input_ids"]]


def check_texts(texts: Sequence[str], name: str = "input") -> None:
    """Raise `TypeError` if an item of `texts` is not a `str`. `name` is the word for an item in the message."""
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"every {name} must be a text, got {text!r} at position {i}")


def check_list(texts) -> None:
    """Raise `TypeError` if `texts` is no iterable, or a dictionary or a table, whose items are names."""
    if not isinstance(texts, Iterable) or isinstance(texts, Mapping) or hasattr(texts, "columns"):
        raise TypeError(f"inputs must be a text or a list of texts, got {texts!r}")


def check_sources(texts: Sequence[str]) -> None:
    """Raise `TypeError` if an item of `texts` is not a `str`, and `ValueError` if a text has a lone surrogate."""
    check_texts(texts)
    for i, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"every input must be valid Unicode, got a lone surrogate at position {i}") from error


class UnitTable(nn.Module):
    """
    A table of the units that each vocabulary entry adds to a text. Its buffers are saved, loaded and moved with a
    model.

    The units of an entry depend on the text before it. For example, decoding drops the space before the first word, a
    piece without a space continues the last word, and byte-level BPE can split one character over tokens. So the table
    is a finite automaton: in state `s`, entry `v` adds `weights[s, v]` units and leads to state `next_state[s, v]`.
    State 0 is the start, where the text is empty or white space. Special tokens add no units.

    Args:
        unit (`str`): One of `LENGTH_UNITS`, or `"cost"`.
        weights (`torch.IntTensor` of shape `(states, vocab_size)`): Units of each entry. A constraint forbids an entry
            if the text would be invalid (a character cut in two, or a last space that decoding strips). The weight of
            such an entry is `~units` (the bitwise complement), which is below 0.
        next_state (`torch.ByteTensor` of shape `(states, vocab_size)`, *optional*): The state after each entry in each
            state; all 0 by default.
    """

    weights: torch.Tensor
    next_state: torch.Tensor
    unit_code: torch.Tensor

    def __init__(self, unit: str, weights: torch.Tensor, next_state: torch.Tensor | None = None):
        super().__init__()
        self.unit, self.states = unit, len(weights)
        # The type is int32, because NCCL and gloo cannot broadcast int16.
        self.register_buffer("weights", weights.to(torch.int32))
        next_state = torch.zeros(weights.shape) if next_state is None else next_state
        self.register_buffer("next_state", next_state.to(torch.uint8))
        self.register_buffer("unit_code", torch.tensor([_CODES.index(unit)], dtype=torch.uint8))
        self._filled = False

    @classmethod
    def from_config(cls, config, vocab_size: int) -> "UnitTable":
        """
        Build a table without a tokenizer. If the unit is `"token"`, special ids of the configuration add 0 units, and
        other ids add 1 unit. For other units, the table is not filled, see `set_unit_table`.
        """
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
        cls, tokenizer, unit: str | Unit | None = None, *, cost: Unit | Callable[[str], int] | None = None
    ) -> "UnitTable":
        """
        Build the table of a tokenizer's target vocabulary, and check it against decoded texts.

        Counts are those of `tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)`, with
        two exceptions. White space at the end of a text counts, although Marian and M2M100 strip this white space.
        Bytes that are invalid UTF-8, which byte-level BPE decodes to U+FFFD, may count differently from the decoded
        text. In the unit `"byte"`, each of these bytes counts. In the unit `"character"`, the first byte of a broken
        character counts as 1, and other bytes count as 0. A model may emit such bytes, but no text encodes to them.

        Args:
            tokenizer (`PreTrainedTokenizerBase`): The tokenizer; for units other than tokens it must decode byte-level
                BPE (BART), SentencePiece (Marian, mBART, T5, Pegasus, M2M100, NLLB) or WordPiece (BERT).
            unit (`str` or `Unit`, *optional*): One of `LENGTH_UNITS`, or a `Unit`, which has the same effect as
                the argument `cost`. Required if `cost` is `None`.
            cost (`Unit` or `Callable[[str], int]`, *optional*): A unit of your own, given instead of
                `unit`: either a `Unit`, or a function that returns the cost of a text. The cost must be the sum of the
                costs of the characters, which are integers from 0 to 1024. The table's unit is then `"cost"`.

        If `save_unit_table` saved this table next to the tokenizer, the table is loaded instead.

        In byte-level BPE, several entries may form one character. The unit `"character"` counts this character at its
        first byte. The following units count it at its last byte: a `cost`, `"width"`, and the names after `"width"`
        in `LENGTH_UNITS`.

        Raises:
            `TypeError`, `ValueError`: if the unit is unknown; if the units of a decoded text are not the sum of the
                units of its pieces; if the cost does not add up, is not an integer, is below 0, or is 0 for every
                entry.
            `ImportError`: if the unit is `"width"` and the package `wcwidth` is missing.
        """
        if isinstance(unit, Unit) and cost is None:
            return cls.from_tokenizer(tokenizer, cost=unit)
        if unit == COST if cost is None else unit not in (None, COST):
            raise ValueError(f"unit='cost' is counted by cost=function, got unit={unit!r} and cost={cost!r}")
        if cost is None:
            check_name("unit", unit, LENGTH_UNITS)
        unit = unit if isinstance(unit, str) else COST
        if unit != COST and (saved := read_table(tokenizer, unit)) is not None:
            return cls(unit, *saved)
        vocab_size, special = entries_of(tokenizer)
        if unit == "token":
            special.discard(tokenizer.unk_token_id)  # an unknown token stands for a word
            return cls(unit, torch.tensor([[int(i not in special) for i in range(vocab_size)]]))
        vocabulary = UnitVocabulary(tokenizer, vocab_size, special)
        if unit in _COUNTED:
            table = cls(unit, *vocabulary.machine(unit))
            _check(table, vocabulary, _COUNTED[unit])
            return table
        own = unit_of(unit) if cost is None else cost if isinstance(cost, Unit) else Cost(cost)
        if isinstance(own, Cost):
            own.check_sum(vocabulary.texts())
        table = cls(unit, *CostVocabulary(vocabulary, own).machine())
        if not bool((table.weights > 0).any()):
            raise ValueError(f"a {unit} must count something, but every entry of the vocabulary has 0; pass another")
        _check(table, vocabulary, own.count)
        return table

    def progress(self, ids: torch.Tensor) -> torch.Tensor:
        """
        Return the progress: the number of units in a row up to and including each position. `ids` and the result have
        the shape `(batch_size, sequence_length)`. The decoder position that reads an id gets the progress after this
        id. The last column is the number of units in the whole row.
        """
        self.require_filled()
        if self.states == 1:
            return self._progress(ids, torch.zeros_like(ids), shifted=True)
        if self.unit in ("character", "byte"):  # all states but the start add the same units
            return self._progress(ids, self._started_before(ids).long(), shifted=True)
        return self._progress(ids, self.states_after(ids))

    def _progress(self, ids, states, *, shifted: bool = False):
        before = states if shifted else torch.cat([torch.zeros_like(ids[:, :1]), states[:, :-1]], dim=-1)  # (B, T)
        weights = self.weights[before, ids]  # (B, T)
        return torch.maximum(weights, ~weights).cumsum(-1)

    def count_and_state(self, ids: torch.Tensor, prompt: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Return two tensors `(batch_size,)`: the units of each row, and the last state of each row. The first `prompt`
        ids of a row do not count. If a row has no other ids, return 0 and the start state.
        """
        self.require_filled()
        ids = ids[:, prompt:]
        if ids.shape[1] == 0:
            return ids.new_zeros(len(ids)), ids.new_zeros(len(ids))
        states = self.states_after(ids)
        return self._progress(ids, states)[:, -1], states[:, -1]

    def after(self, count: torch.Tensor, state: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Return the number of units and the state of each row after one more token. `count` and `state` belong to the
        row before this token, and `ids` are the ids of the token. All shapes are `(batch_size,)`.
        """
        weights = self.weights[state, ids]
        return count + torch.maximum(weights, ~weights), self.next_state[state, ids].long()

    def count(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the number of units in each row, `(batch_size,)`, of `ids (batch_size, sequence_length)`."""
        if ids.shape[1] == 0:
            return ids.new_zeros(len(ids))
        return self.progress(ids)[:, -1].contiguous()  # a view's stride would make torch.compile compile again

    def states_after(self, ids: torch.Tensor) -> torch.Tensor:
        """
        Return the state after each position. `ids` and the result have the shape `(batch_size, sequence_length)`.

        This is a fixed-point iteration over all positions at once. The number of rounds depends on the unit.
        """
        count, following = self.states, self.next_state
        if count == 1:
            return torch.zeros_like(ids)
        started = self._started_before(ids)
        if count == 2:
            return (started | (following[0, ids] != 0)).long()
        # The state after an entry with text does not depend on earlier entries, except for the bytes of an incomplete
        # character. So three rounds are enough for the four bytes of a character. Words also need the bytes of the
        # previous character, which may be white space, and the first byte of the current one. Special tokens keep the
        # state. In other units the state may depend on the whole text, as in a row of flag emoji.
        known_rounds = {"character": 3, "byte": 3, "word": 7}.get(self.unit)
        rounds = ids.shape[1] if known_rounds is None else 1 if count == 3 else known_rounds
        # Only a special token keeps the start state; a combining mark may keep the other two states.
        silent = (following[0, ids] == 0) & (following[1, ids] == 1) & (following[2, ids] == 2)  # (B, T)
        position = torch.arange(ids.shape[1], device=ids.device)
        last = torch.where(silent, 0, position).cummax(-1).values  # (B, T) position of the last entry with text
        state = following[1, ids].long()  # (B, T)
        for _ in range(rounds):
            state = state.gather(-1, last)
            before = torch.cat([torch.zeros_like(state[:, :1]), state[:, :-1]], dim=-1)
            known, state = state, following[torch.where(started, before, 0), ids].long()
            if known_rounds is None and torch.equal(known, state):
                break
        return state

    def _started_before(self, ids):
        starts = (self.next_state[0, ids] != 0).int()
        return starts.cumsum(-1) > starts  # (B, T)

    def require_filled(self) -> None:
        """Raise `ValueError` if the table is not filled yet, see `set_unit_table`."""
        if not self._filled and not torch.compiler.is_compiling():
            if bool((self.weights == NOT_FILLED).any() | (self.next_state == NO_STATE).any()):
                call = "call model.set_unit_table(tokenizer)"
                raise ValueError(f"the model has no table of units and cannot count {plural(self.unit)}; {call}")
            self._filled = True

    def resized(self, vocab_size: int, config) -> "UnitTable":
        """Return a copy of the table with `vocab_size` entries. `from_config` gives the values of new entries."""
        new = UnitTable.from_config(config, vocab_size).to(self.weights.device)
        kept = min(vocab_size, self.weights.shape[1])
        new.weights[:, :kept] = self.weights[:, :kept]
        new.next_state[:, :kept] = self.next_state[:, :kept]
        return new

    def padded(self, vocab_size: int) -> "UnitTable":
        """
        Return a copy of the table with `vocab_size` entries, the size of an embedding, which may be larger than the
        tokenizer's vocabulary. Constraints forbid the added entries. Raise `ValueError` if the embedding is smaller
        than the table, or larger by more than 511 entries (Qwen's embedding is larger by 271).
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
        """Return the name of the unit of the loaded weights, which may differ from `unit`."""
        return _CODES[int(self.unit_code)]

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        self._filled = False
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def known_table(tokenizer, unit: str | Unit | Callable[[str], int], vocab_size: int, device: Any) -> UnitTable:
    """
    Return the unit table of a tokenizer, padded to `vocab_size` entries, on a device. The last tables of units that
    are no functions are cached, because the table and the masks of its constraints take seconds with a large
    vocabulary. See `UnitTable.from_tokenizer` and `UnitTable.padded` for the errors.
    """
    if not isinstance(unit, str | Unit):  # a function may be unhashable, or new in each call
        return UnitTable.from_tokenizer(tokenizer, cost=unit).padded(vocab_size).to(device)
    return _known_table(tokenizer, unit, vocab_size, torch.device(device), len(tokenizer))


@lru_cache(maxsize=8)
@torch.inference_mode(False)  # calls outside inference mode use the same table
def _known_table(tokenizer, unit: str | Unit, vocab_size: int, device: torch.device, entries: int) -> UnitTable:
    return UnitTable.from_tokenizer(tokenizer, unit).padded(vocab_size).to(device)


def save_unit_table(tokenizer, unit: str) -> Path:
    """
    Save the unit table of a tokenizer as `unit_tables/<unit>.safetensors` in the tokenizer's folder, and return the
    path of the file. `UnitTable.from_tokenizer`, the pipeline and vLLM then load the file, which saves time with large
    vocabularies. These callers log a warning and build the table again if one of the following has changed: the
    tokenizer, the code that builds the table, or a package that the counting uses (such as `wcwidth`).

    Args:
        tokenizer (`PreTrainedTokenizerBase`): A tokenizer that was loaded from a folder or from the Hub. For a
            tokenizer from the Hub, the file is in the local cache of the Hub.
        unit (`str`): One of `LENGTH_UNITS`. A unit of your own is not possible, because the file is found by the
            unit's name.

    Raises:
        `ValueError`: if the tokenizer has no folder; also the errors of `UnitTable.from_tokenizer`.
    """
    check_name("unit of a saved table", unit, LENGTH_UNITS)
    table = UnitTable.from_tokenizer(tokenizer, unit)
    return write_table(tokenizer, unit, table.weights, table.next_state)


class RunningCount:
    """
    A counter of the units in each row of a search. Each step of the search appends one token to every row. The counter
    stores the ids and the counts of the last step, so the time of a step does not grow with the text. The counter
    finds a row by its ids, because beam search reorders rows. If it does not find a row, the counter counts all rows
    from the start.

    Args:
        counter (`UnitTable` or `Thoughts`): The object that counts the units of ids.
        prompt_length (`int`, *optional*, defaults to 0): Number of ids at the start of each row that do not count.
    """

    def __init__(self, counter: Any, prompt_length: int = 0):
        self.counter, self.prompt_length = counter, prompt_length
        self._kept: tuple[torch.Tensor, ...] | None = None  # ids (rows, T), units and states (rows,)

    def __call__(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the units and the last state of each row, `(rows,)` each, see `UnitTable.count_and_state`."""
        kept = self._kept
        if kept is not None and torch.equal(kept[0], ids):
            return kept[1], kept[2]
        places = None if kept is None or ids.shape[1] <= self.prompt_length else places_among(kept[0], ids[:, :-1])
        if kept is None or places is None:
            count, state = self.counter.count_and_state(ids, self.prompt_length)
        else:
            count, state = self.counter.after(kept[1][places], kept[2][places], ids[:, -1])
        self._kept = ids.clone(), count, state
        return count, state


def places_among(known: torch.Tensor, rows: torch.Tensor) -> torch.Tensor | None:
    """Return the index in `known` of each row of `rows`, `(rows,)`; `None` if a row is missing."""
    if rows.shape[1] != known.shape[1]:
        return None
    if torch.equal(rows, known):
        return torch.arange(len(rows), device=rows.device)
    number = torch.cat([rows, known]).unique(dim=0, return_inverse=True)[1]  # equal rows have equal numbers
    same = number[: len(rows), None] == number[len(rows) :]  # (rows, known)
    return same.long().argmax(dim=1) if bool(same.any(dim=1).all()) else None


def _check(table: UnitTable, vocabulary: UnitVocabulary, counted: Callable[[str], int]) -> None:
    """
    Raise `ValueError` if the table counts one of 100 random sequences of vocabulary entries differently from
    `counted`, which counts the units of the decoded text.
    """
    draw, tokenizer = random.Random(0), vocabulary.tokenizer
    weights, following = table.weights, table.next_state
    eos = next(iter(vocabulary.special), None)
    candidates = [i for i in range(len(vocabulary.later)) if i not in vocabulary.special]
    special = sorted(vocabulary.special) or candidates
    for row in range(100 if candidates else 0):
        ids, state, count = [], 0, 0
        for _ in range(1 + row % 8):
            i = draw.choice(candidates if draw.random() < 0.8 else special)
            if (units := int(weights[state, i])) >= 0:
                ids.append(i)
                count, state = count + units, int(following[state, i])
        if eos is not None and weights[state, eos] < 0:
            continue  # the row ends inside a character, or with white space that decoding strips
        text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if count != counted(text):
            pieces = (
                f"{tokenizer.convert_ids_to_tokens(ids)} decodes to {text!r}, {counted(text)} {plural(table.unit)}"
            )
            rule = f"{plural(table.unit)} of {type(tokenizer).__name__} cannot be counted piece by piece"
            raise ValueError(f"{rule}: {pieces}, not {count}; use length_unit='token'")
