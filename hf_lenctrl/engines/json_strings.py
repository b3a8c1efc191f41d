"""Generate JSON whose strings keep their length limits and end after a whole word, with any grammar engine."""

import functools
import json
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers.generation import LogitsProcessor

from ..inference.sentences import finished, goes_on, text_of
from ..lengths import check_name, is_integer
from ..unit_vocabulary import UnitVocabulary, entries_of
from .json_grammars import GRAMMARS, Matcher, compile_schema
from .json_places import PLAIN, STATES, Places, Reader, read_character


_NEVER = 2**30  # number of characters that stands for a forbidden entry


class StringVocabulary:
    """
    The effect of each vocabulary entry inside a string and at the start of a string. A set of entries is a bit mask:
    an array `(words,)` of 32-bit words with one bit for each entry.

    An entry that ends a string may also open the next string, but must not add characters to the next string. An entry
    that begins a string must not end the same string. Entries that break these rules are forbidden. They are not
    needed, because the model can emit two entries instead.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.

    Raises:
        `ValueError`: if the tokenizer has no decoder, or no entry `"` that ends a string.
    """

    def __init__(self, tokenizer):
        self.size, special = entries_of(tokenizer)
        written = UnitVocabulary(tokenizer, self.size, special).later
        self.data = [b"" if i in special else data for i, data in enumerate(written)]
        if b'"' not in self.data:
            raise ValueError(f"no string can end: {type(tokenizer).__name__} has no entry of one quote; pass another")
        self.pieces = [text_of(data) for data in self.data]
        self.words = -(-self.size // 32)
        # for each state: (V,) number of added characters, and (V,) whether the entry ends the string
        self.facts = [self._facts(state) for state in STATES]
        added, closes = self.facts[PLAIN]
        self.longest = int(added[added < _NEVER].max())
        self._start_facts()
        ends = [end and _closes_word(data) for data, end in zip(self.data, closes.tolist(), strict=True)]
        # (words,) entries that end a string, with only punctuation before the quote
        self.ends = self.bits(np.array(ends))
        self.fits, self.long_enough = cache(self._fits), cache(self._long_enough)
        for left in range(self.longest + 1):  # fill the cache now, so that no step waits
            self.fits(PLAIN, left)

    def bits(self, allowed: np.ndarray) -> np.ndarray:
        """
        Pack a set of vocabulary entries into an `int32` array `(words,)` with one bit for each entry. The booleans
        `allowed (n,)` say which of the first `n` entries are in the set. Later entries are not in the set.
        """
        padded = np.zeros(32 * self.words, dtype=bool)
        padded[: len(allowed)] = allowed
        return np.packbits(padded, bitorder="little").view(np.int32)

    @staticmethod
    def _inside(data: bytes, state: int) -> tuple[int, bool]:
        """
        Return two values for an entry that follows a text inside a string: how many characters the entry adds to the
        string (`_NEVER` if the entry is forbidden), and whether the entry ends the string. `data` are the bytes of the
        entry, and `state` is the state of the string automaton after the text.
        """
        count = 0
        for i, byte in enumerate(data):
            if byte == 0x22 and state == PLAIN:
                rest = data[i + 1 :]
                return (count, True) if b'"' not in rest[:-1] else (_NEVER, True)
            count += state == PLAIN
            state = read_character(state, byte)
            if state < 0:
                return _NEVER, False
        return count, False

    def _facts(self, state: int) -> tuple[np.ndarray, np.ndarray]:
        begins = {byte for byte in range(256) if read_character(state, byte) >= 0} | (
            {0x22} if state == PLAIN else set()
        )
        never = (_NEVER, False)
        facts = np.array([self._inside(d, state) if d and d[0] in begins else never for d in self.data])
        return facts[:, 0], facts[:, 1].astype(bool)

    def _fits(self, state: int, left: int) -> np.ndarray:
        return self.bits(self.facts[state][0] <= left)

    def _long_enough(self, state: int, missing: int) -> np.ndarray:
        added, closes = self.facts[state]
        return self.bits(~closes | (added >= missing))

    def _start_facts(self) -> None:
        heads: dict[bytes, int] = {}  # text before the first quote -> index
        self.head = np.full(self.size, -1)  # (V,) index of this text, -1 if no string begins
        self.added = np.zeros(self.size, dtype=int)  # (V,) characters after the quote
        for i, data in enumerate(self.data):
            before, quote, behind = data.partition(b'"')
            if quote:
                added, closes = self._inside(behind, PLAIN)
                self.head[i] = heads.setdefault(before, len(heads))
                self.added[i] = _NEVER if closes else added
        self.heads = list(heads)

    def begins(self, reader: Reader) -> np.ndarray:
        """
        Return the entries that may follow a text that ends outside of strings, as a bit mask (see `StringVocabulary`).
        `reader` has read this text. An entry that begins a string is allowed only if the characters that the entry
        adds fit the `maxLength` of the string, and if the entry does not end the string. All entries without a quote
        are allowed, because the caller combines this mask with the mask of the JSON grammar.
        """
        highs = []
        for head in self.heads:
            high = _NEVER - 1
            if not head.strip(b" \t\r\n,:{[]}0123456789.eE+-truefalsn"):
                after = reader.copy()
                after.read(head + b'"')
                high = high if after.bounds.high is None else after.bounds.high
            highs.append(high)
        return self.bits((self.head < 0) | (self.added <= np.array(highs)[self.head]))


def _closes_word(data: bytes) -> bool:
    before = data.partition(b'"')[0].decode("utf-8", errors="replace")
    return all(unicodedata.category(c)[0] == "P" and c != "\\" for c in before)


def _has(low: int, text: str) -> bool:
    return len(text) >= low


@cache
def _vocabulary(tokenizer) -> StringVocabulary:
    return StringVocabulary(tokenizer)


class StringLengths:
    """
    The length limits of the strings of a schema, as masks over a vocabulary. The limits only remove entries from the
    mask of a grammar.

    Args:
        schema (`dict`): A JSON Schema; `Places` says which schemas raise an error.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
    """

    def __init__(self, schema: dict[str, Any], tokenizer):
        self.places, self.vocabulary = Places(schema), _vocabulary(tokenizer)
        self.begins: dict[tuple, np.ndarray] = {}  # `Reader.where` -> mask

    def allowed(self, reader: Reader, grammar: np.ndarray, scores: torch.Tensor) -> tuple[np.ndarray, int | None]:
        """
        Return two values: (1) the entries allowed after a text, as a bit mask `(words,)`; (2) an id or `None`.

        If the text ends inside a string, find the most likely entry that the grammar allows. If this entry is too long
        for the string, and the string may end, then the string must end. In this case, the mask allows only entries
        that end the string, and the id is that of the entry that is too long. Otherwise the second value is `None`.

        Args:
            reader (`Reader`): A reader that has read the text so far.
            grammar (`np.ndarray` of shape `(words,)`): Bit mask of the entries that the grammar of `places.plain`
                allows.
            scores (`torch.FloatTensor` of shape `(vocab_size,)`): The model's scores.
        """
        if not reader.inside:
            if (where := reader.where) not in self.begins:
                self.begins[where] = self.vocabulary.begins(reader)
            return grammar & self.begins[where], None
        allowed = grammar & self._fits(reader)
        if self._is_late(reader) and (ends := allowed & self.vocabulary.ends).any():
            first = _first(grammar, scores)
            if not _holds(allowed, first):
                return ends, first
        return allowed, None

    def _fits(self, reader: Reader) -> np.ndarray:
        """
        Return the set of entries that keep the length limits of the current string, as an `int32` array `(words,)`
        with one bit for each vocabulary entry.
        """
        (low, high), longest = reader.bounds, self.vocabulary.longest
        left = longest if high is None else min(max(high - reader.count, 0), longest)
        fits = self.vocabulary.fits(reader.state, left)
        missing = min(low - reader.count, longest + 1)
        return fits & self.vocabulary.long_enough(reader.state, missing) if missing > 0 else fits

    def _is_late(self, reader: Reader) -> bool:
        """Return whether the current string may end here and has no room for the longest entry."""
        (low, high), count = reader.bounds, reader.count
        has_room = high is None or high - count >= self.vocabulary.longest
        return reader.state == PLAIN and count >= low and not has_room

    def finish(self, ids: Sequence[int], firsts: Sequence[int | None]) -> str:
        """
        Return the JSON of an output. If a string had to end inside a word, remove the word and the white space before
        the word, provided that at least one word and `minLength` characters remain.

        Args:
            ids (`list[int]` of length `positions`): The ids of the output, with or without EOS.
            firsts (`list[int | None]` of length `positions`): At each position where a string had to end, the id of
                the most likely entry that the grammar allows. `None` at all other positions.
        """
        reader, text, edits, pieces = Reader(self.places), bytearray(), [], self.vocabulary.pieces
        for k, (i, first) in enumerate(zip(ids, firsts, strict=True)):
            cut, low, opened = False, reader.bounds.low, reader.opened
            if first is not None and reader.inside and self._is_late(reader):
                cut = not _holds(self._fits(reader), first) and goes_on(pieces[first])
                cut &= not (pieces[ids[k - 1]] or "")[-1:].isspace()
            reader.read(self.vocabulary.data[i])
            text += self.vocabulary.data[i]
            if cut and reader.closed >= opened:  # the entry has ended the string
                value = json.loads(b'"' + bytes(text[opened : reader.closed]) + b'"')
                enough = functools.partial(_has, low)
                shorter = finished(value, "word", enough, at_word=False)[0]
                if enough(shorter):
                    edits.append((opened, reader.closed, json.dumps(shorter, ensure_ascii=False)[1:-1].encode()))
        for start, end, new in reversed(edits):
            text[start:end] = new
        return text.decode("utf-8", errors="replace")


def _holds(bits: np.ndarray, entry: int) -> bool:
    return bool(bits[entry // 32] >> entry % 32 & 1)


def _first(grammar: np.ndarray, scores: torch.Tensor) -> int:
    """Return the id of the entry with the highest score among the entries in the bit mask `grammar (words,)`."""
    first = int(scores.argmax())
    return first if _holds(grammar, first) else int(forbid(grammar, scores.clone()).argmax())


def forbid(allowed: np.ndarray, scores: torch.Tensor) -> torch.Tensor:
    """
    Set the scores `(vocab_size,)` of all entries outside the bit mask `allowed (words,)` to `-inf`, in place. Return
    the scores.
    """
    bits = np.unpackbits(allowed.view(np.uint8), count=len(scores), bitorder="little").view(bool)
    return scores.masked_fill_(~torch.from_numpy(bits).to(scores.device), -torch.inf)


class _Row:
    """An output so far: its state in the grammar and in the schema."""

    def __init__(self, matcher: Matcher, reader: Reader):
        self.matcher, self.reader = matcher, reader

    def copy(self) -> "_Row":
        return _Row(self.matcher.copy(), self.reader.copy())


class JsonStringsLogitsProcessor(LogitsProcessor):
    """
    A logits processor for JSON that follows a schema, so that each string has from `minLength` to `maxLength`
    characters. The processor works with any causal model and with greedy search, beam search or sampling, and needs a
    grammar engine: `pip install "hf_lenctrl[json]"`.

    The grammar engine gets the schema without length limits, so large limits do not make a step slower. In a string,
    entries that are too long are masked, and the closing quote is masked until the string is long enough. An escape
    (`\\n`, `\\u00e9`) is one character. If the model's first choice is too long, the string ends; `finish` later
    removes a word that is cut. Each call of `generate` needs its own processor.

    Args:
        schema (`dict`): A JSON Schema.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        prompt_length (`int`, *optional*, defaults to 0): Number of ids before the JSON.
        eos_token_id (`int` or `list[int]`, *optional*): Ids that end an output; by default the tokenizer's EOS.
        grammar (`str`, *optional*, defaults to `"xgrammar"`): The grammar engine, `"xgrammar"` or `"llguidance"`.

    Raises:
        `TypeError`, `ValueError`, `ImportError`: if the lengths of the schema cannot be kept, see `Places`; if the
            texts of the tokenizer's entries are unknown; or if the grammar engine is unknown or not installed.
    """

    supports_continuous_batching = False

    def __init__(
        self,
        schema: dict[str, Any],
        tokenizer,
        *,
        prompt_length: int = 0,
        eos_token_id=None,
        grammar: str = "xgrammar",
    ):
        check_name("grammar", grammar, GRAMMARS)
        self.lengths, self.prompt_length = StringLengths(schema, tokenizer), prompt_length
        self.vocabulary = self.lengths.vocabulary
        eos = tokenizer.eos_token_id if eos_token_id is None else eos_token_id
        self.eos = (eos,) if is_integer(eos) else tuple(eos)
        places = self.lengths.places
        self.matcher = compile_schema(grammar, places.plain, tokenizer, self.vocabulary.size, self.eos)
        # (rows, positions) the ids of the last step, without the prompt
        self.written = torch.empty(0, 0, dtype=torch.long)
        self.rows: list[_Row] = []
        # all ids before the quote of a string that had to end -> the model's first choice; the key includes the
        # prompt's ids, because the same JSON may continue differently after another prompt
        self.firsts: dict[tuple[int, ...], int] = {}

    def __call__(self, input_ids, scores):
        """
        Return new scores `(rows, vocab_size)`, in which forbidden entries have `-inf`.
        `input_ids (rows, sequence_length)` are the ids so far, with the prompt.
        """
        size = self.vocabulary.size
        if scores.shape[1] < size:
            raise ValueError(
                f"got scores of {scores.shape[1]} entries, the tokenizer has {size}; pass the model's own"
            )
        scores = scores.clone()
        self._follow(input_ids)
        for i, row in enumerate(self.rows):
            if not row.matcher.ended:
                allowed, first = self.lengths.allowed(row.reader, row.matcher.allowed(), scores[i, :size])
                if first is not None:
                    self.firsts[tuple(input_ids[i].tolist())] = first
                forbid(allowed, scores[i])
        return scores

    def _follow(self, input_ids: torch.Tensor) -> None:
        """Store the ids after the prompt in `written`, and update `rows`, the state of each output (see `_rows`)."""
        before, self.written = self.written, input_ids[:, self.prompt_length :]
        self.rows = self._rows(before)

    def _rows(self, before: torch.Tensor) -> list[_Row]:
        """
        Return the state of each output in `written`. `before (rows, positions)` are the ids that `written` held in the
        previous step. If an output is a row of `before` and one more id, continue the state of this row, and read only
        the new id. Otherwise read all ids of the output.
        """
        parents, same = [], before.shape[1] + 1 == self.written.shape[1]
        for i, ids in enumerate(self.written):
            others = [i, *range(len(self.rows))] if same else []  # beam search may have reordered the rows
            parents.append(next((j for j in others if j < len(before) and torch.equal(before[j], ids[:-1])), None))
        rows = []
        for i, parent in enumerate(parents):
            if parent is None:
                row = self._start()
            else:  # copy only if needed, because the cost grows with the text
                row = self.rows[parent].copy() if parent in parents[i + 1 :] else self.rows[parent]
            rows.append(row)
            for entry in self.written[i, 0 if parent is None else -1 :].tolist():
                self._read(row, entry)
        return rows

    def _start(self) -> _Row:
        return _Row(self.matcher(), Reader(self.lengths.places))

    def _read(self, row: _Row, entry: int) -> None:
        if row.matcher.ended:
            return  # the rest is padding
        if not row.matcher.read(entry):
            piece = self.vocabulary.pieces[entry] if entry < self.vocabulary.size else None
            raise ValueError(f"the output is not JSON of the schema at entry {entry} ({piece!r}); pass prompt_length")
        row.reader.read(self.vocabulary.data[entry])

    def finish(self, ids: Sequence[int]) -> str:
        """
        Return the JSON of an output, see `StringLengths.finish`.

        `ids (sequence_length,)` are one row of the ids that `generate` returned. Give the row with its prompt, because
        this processor may have seen the same JSON after several prompts. Raise `ValueError` if the ids are not longer
        than the prompt.
        """
        ids, start = tuple(int(i) for i in ids), self.prompt_length
        if len(ids) <= start:
            raise ValueError(f"ids must be those of generate with the prompt of {start}, got {len(ids)}")
        row, end = self._start(), next((k for k in range(start, len(ids)) if ids[k] in self.eos), len(ids))
        for i in ids[start:end]:
            self._read(row, i)
        return self.lengths.finish(ids[start:end], [self.firsts.get(ids[:k]) for k in range(start, end)])
