"""
The decoded bytes of each entry of a tokenizer's target vocabulary, and the automata that count the units of entries.
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from functools import cache, partial, reduce
from typing import Any, NamedTuple

import torch
from transformers.convert_slow_tokenizer import bytes_to_unicode


_MOST_STATES = 250  # maximum number of states in the table of a `Unit`; the id of a state is one byte
_MOST_ENTRIES = 16_000_000  # maximum number of cells of the table; a large vocabulary gets fewer states
# These are the characters of more than one byte at which `str.split` splits.
_WIDE_SPACES = [c.encode("utf-8") for c in map(chr, range(0x80, 0x3001)) if c.isspace()]


def skipped_ids(tokenizer) -> set[int]:
    """Return the ids that `decode(skip_special_tokens=True)` skips. All other ids add something to a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return set(tokenizer.all_special_ids)
    special = [i for i, token in backend.get_added_tokens_decoder().items() if token.special]
    return {i for i in special if not backend.decode([i])}  # decoding may keep a normalized special token


def entries_of(tokenizer) -> tuple[int, set[int]]:
    """
    Return two values: the size of a tokenizer's target vocabulary, and the set of the ids of entries that add no text.
    An id without an entry is one of these: decoding skips it.
    """
    special = skipped_ids(tokenizer)
    # M2M100 does not count its language codes in its size.
    codes = special | set(getattr(tokenizer, "lang_code_to_id", {}).values())
    separate = getattr(tokenizer, "separate_vocabs", False)
    size = len(tokenizer.target_encoder) if separate else max(len(tokenizer), max(codes, default=0) + 1)
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:  # the ids may have gaps
        used = set(backend.get_vocab().values())
        size = max(size, max(used, default=-1) + 1)
        special |= set(range(size)) - used
    if hasattr(tokenizer, "spm_target") or hasattr(tokenizer, "sp_model"):
        model = _sentencepiece(tokenizer)
        silent = {model.id_to_piece(i) for i in range(model.get_piece_size()) if model.is_control(i)}  # such as <s>
        special |= {i for i, piece in enumerate(tokenizer.convert_ids_to_tokens(list(range(size)))) if piece in silent}
    return size, {i for i in special if i < size}  # a separate target vocabulary has no length tokens


class UnitVocabulary:
    """
    The bytes of each entry of a tokenizer's target vocabulary. Entry `i` adds the bytes `first[i]` at the start of a
    text, and the bytes `later[i]` at any other place. `special` are the ids of entries that add no text.
    """

    def __init__(self, tokenizer, vocab_size: int, special: set[int]):
        self.tokenizer, self.special = tokenizer, special
        pieces = [piece or "" for piece in tokenizer.convert_ids_to_tokens(list(range(vocab_size)))]
        backend = getattr(tokenizer, "backend_tokenizer", None)
        kept = None if backend is None else backend.decoder
        decoder = None if kept is None else json.loads(kept.__getstate__())
        # Marian and M2M100 strip the joined text, which then neither starts nor ends with white space.
        self.strips = hasattr(tokenizer, "spm_target") or hasattr(tokenizer, "sp_model")
        if self.strips:
            single = _single_bytes(tokenizer)
            self.later = [single.get(p) or p.replace("▁", " ").encode("utf-8") for p in pieces]
            self.first = [
                data if p in single and data >= b"\x80" else data.decode("utf-8").lstrip().encode("utf-8")
                for p, data in zip(pieces, self.later, strict=True)
            ]
        elif decoder is not None and decoder["type"] == "ByteLevel":
            self.first = self.later = list(map(_bytes_of, pieces))
        elif kept is not None:
            # The Rust decoder decodes the list piece by piece and knows which piece is the first.
            join = kept.decode
            anchor = join(["a"])
            steps = set(re.findall(r'"type": "(\w+)"', json.dumps(decoder)))
            fallback = "ByteFallback" in steps
            single = {p: bytes([int(p[3:5], 16)]) for p in pieces if fallback and _BYTE_PIECE.fullmatch(p)}
            self.later = [single.get(p) or join(["a", p])[len(anchor) :].encode("utf-8") for p in pieces]
            self.first = self.later  # these steps treat all pieces alike
            if not steps <= {"Sequence", "Replace", "ByteFallback", "Fuse"}:
                self.first = [single.get(p) or join([p]).encode("utf-8") for p in pieces]
        else:
            raise ValueError(
                f"{type(tokenizer).__name__} has no decoder, so only tokens can be counted; use length_unit='token'"
            )

    def texts(self, most: int = 1000) -> list[str]:
        """Return the texts of at most `most` entries, spread evenly, without empty ones and invalid UTF-8."""
        whole = [text for text, rest in map(_split_utf8, self.later) if text and not rest]
        return whole[:: len(whole) // most + 1]

    def machine(self, unit: str) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Build the automaton that counts `unit`: `"character"`, `"word"` or `"byte"`. Return two tensors with a row for
        each reachable state and a column for each vocabulary entry: the weights (added units), and the next states.
        """
        # A state holds: whether text has started, whether white space is last, the bytes of an incomplete character.
        order: list[tuple] = [(False, True, b""), (True, False, b"")]
        order += [(True, True, b"")] if unit == "word" or self.strips else []
        sort = cache(partial(self._sort, unit=unit))
        columns = _Columns(self.special, zip(map(sort, self.first), map(sort, self.later), strict=True))
        continuing = [i for i, data in enumerate(self.later) if data and 0x80 <= data[0] < 0xC0]
        strips = self.strips and unit != "word"
        rows = columns.run(order, partial(self._write, unit=unit), continuing, strips)
        return columns.tensors(order, rows)

    def _sort(self, data: bytes, unit: str) -> Hashable:
        """
        Return the class of an entry: entries of a class act alike from every state that is not inside a character.
        """
        text, rest = _split_utf8(data)
        if text is None:
            return data
        units = len(data) if unit == "byte" else len(text.split()) if unit == "word" else len(text)
        return units, bool(text), bool(text.strip()), text[:1].isspace(), text[-1:].isspace(), _canonical(rest, unit)

    def _write(self, state, i: int, unit: str):
        """
        Return the weight of entry `i` in a state (`~units` if a constraint forbids it there), and the next state.
        """
        started, white, waiting = state
        data = self.later[i] if started else self.first[i]
        text, rest = _split_utf8(waiting + data)
        broken = text is None
        if text is None:  # the first stray byte of a character counts, its other bytes do not
            text, rest = _split_utf8(data.lstrip(_CONTINUATION))
            text, waiting = "\ufffd" + (text or ""), b"?"
        if unit == "character":
            weight = len(text) + bool(rest) - bool(waiting)  # a character counts with its first byte
        elif unit == "byte":
            weight = len(data)
        else:  # a word counts with its first whole character
            weight = len(text.split()) - bool(text and not white and not text[0].isspace())
        weight = ~weight if broken else weight
        started = started or (bool(text.strip() or rest) if self.strips else True)
        if not started:
            return weight, state
        white = text[-1].isspace() if text else white
        if unit != "word" and not self.strips:
            white = False
        return weight, (True, white, _canonical(rest, unit))


class _Piece(NamedTuple):
    """The decoded text of an entry."""

    kinds: tuple[int, ...] | None  # kinds of its characters; `None` if its bytes are not a text by themselves
    open: bytes  # first bytes of an incomplete character at the end
    blank: bool  # whether it is only white space
    white: bool  # whether its last character is white space
    data: bytes  # its bytes if `kinds` is `None`


class _Kinds(dict):
    """A dictionary from a character to the id of its kind. Reading a dictionary is faster than calling `Unit.kind`."""

    def __init__(self, costs: Any):
        super().__init__()
        self.costs = costs

    def __missing__(self, character: str) -> int:
        self[character] = self.costs.kind(character)
        return self[character]


_Pair = tuple[int, int, int]  # context; number of missing bytes and group of an incomplete character


class CostVocabulary:
    """
    The automaton of a `Unit` over the entries of a vocabulary.

    A character that is split over entries counts at its last byte. A state holds the context (the state of the `Unit`)
    and the group of the incomplete character at the end (a character of which only the first bytes are written). A
    group is an equivalence class of first bytes with the same continuations. If there are too many groups, only the
    most useful groups get a state. A constraint forbids the characters of the other groups. Each of these characters
    counts as much as the most expensive character, so that no count is too low.

    Args:
        vocabulary (`UnitVocabulary`): The decoded entries.
        costs (`Unit`): The unit, whose automaton reads characters.
    """

    def __init__(self, vocabulary: UnitVocabulary, costs: Any):
        self.vocabulary, self.costs = vocabulary, costs
        self.steps = cache(self._steps)
        self.kind_of = _Kinds(costs)
        read = cache(self._read)
        self.first, self.later = (list(map(read, side)) for side in (vocabulary.first, vocabulary.later))
        self.whole = {kind for piece in self.later for kind in piece.kinds or ()}
        self.kept: dict = {}  # the representative of each `_Pair` that has a state
        if any(piece.open for piece in self.later):
            self._choose()

    def _read(self, data: bytes) -> "_Piece":
        text, rest = _split_utf8(data)
        if text is None:
            return _Piece(None, rest, False, False, data)
        kinds = tuple(map(self.kind_of.__getitem__, text))
        return _Piece(kinds, rest, not (text.strip() or rest), bool(text) and text[-1].isspace(), b"")

    def _steps(self, context: int, kinds: tuple[int, ...]) -> tuple[int, int, bool]:
        units, safe = 0, True
        for kind in kinds:
            more, context, may = self.costs.step(context, kind)
            units, safe = units + more, safe and may
        return units, context, safe

    def _choose(self) -> None:
        """Minimise the automaton, and choose by priority which groups of incomplete characters get a state."""
        begun = self._begun()
        class_of, priority = self._classes(begun)
        room = (min(_MOST_STATES, _MOST_ENTRIES // len(self.later)) - 6) // (1 + self.vocabulary.strips)
        best = sorted(priority, key=lambda name: -priority[name])
        few, many = 0, len(best) + 1  # binary search for how many of the best classes fit in `room` states
        while many - few > 1:
            names = set(best[: (few + many) // 2])
            kept = {key: name for key, name in class_of.items() if name in names}
            if self._reached(kept, list(begun)) <= room:
                few, self.kept = (few + many) // 2, kept
            else:
                many = (few + many) // 2

    def _begun(self) -> Counter:
        """Count how often characters in entries begin with the bytes of each group, a pair of missing bytes and id."""
        pieces = zip(self.vocabulary.later, self.later, strict=True)
        text = b"".join(data[: len(data) - len(piece.open)] for data, piece in pieces if not piece.data).decode()
        characters = [(one.encode(), number) for one, number in Counter(text).items()]
        rests = [(rest + b"?", number) for rest, number in Counter(piece.open for piece in self.later).items()]
        begun: Counter = Counter()
        for data, number in [*characters, *rests]:
            for end in range(1, len(data)):
                begun[self.costs.opened.begun(data[:end])] += number
        return begun

    def _contexts(self) -> list[int]:
        """Return the reachable contexts, sorted, so that merged contexts (see `Unit.loose`) come first."""
        kinds, contexts = self.costs.opened.kinds, [0]
        for context in contexts:  # the list grows: a breadth-first search
            reached = dict.fromkeys(self.costs.step(context, kind)[1] for kind in kinds)
            contexts += [new for new in reached if new not in contexts]
        self.most = max(self.costs.step(context, kind)[0] for context in contexts for kind in kinds)
        contexts += sorted({stands for context in contexts if (stands := self.costs.loose(context)) is not None})
        return sorted(contexts)  # merged contexts are below 0, so they come first

    def _classes(self, begun: Counter) -> tuple[dict[_Pair, _Pair], dict[_Pair, float]]:
        """
        Minimise the automaton, whose states are pairs of a context and an incomplete character: pairs with equivalent
        successors form a class. Return two dictionaries: from each pair to the representative of its class, and from
        each representative to its priority for a state.
        """
        opened, contexts = self.costs.opened, self._contexts()
        after = Counter(self.steps(0, piece.kinds)[1] for piece in self.later if piece.kinds)
        representatives: dict[tuple, _Pair] = {}  # successors -> the first pair that has them
        class_of: dict[_Pair, _Pair] = {}
        exact: dict[_Pair, set] = {}  # pair -> continuations that a constraint may allow
        priority: dict[_Pair, float] = defaultdict(float)
        for missing, group in opened.groups():  # pairs with one missing byte first, so that successors are known
            row, common = opened.row(missing, group), 1 if opened.is_common(missing, group) else 0.1
            for context in contexts:
                key, stands = (context, missing, group), self.costs.loose(context)
                successors = self._successors(context, missing, row, class_of)
                if missing == 1:
                    exact[key] = {to for to, step in successors.items() if step[2]}
                else:
                    exact[key] = {(to, one) for to in successors for one in exact[context, missing - 1, to]}
                class_of[key] = representatives.setdefault((missing, *map(successors.get, row)), key)
                if stands in (None, context) or exact[key] - exact[stands, missing, group]:
                    often = after.total() if context < 0 else after[context]
                    priority[class_of[key]] += common * (1 + math.log2(1 + begun[missing, group])) * (1 + often)
        return class_of, priority

    def _successors(self, context: int, missing: int, row, class_of: dict[_Pair, _Pair]) -> dict[int, tuple]:
        """
        Return the successors of an incomplete character of a group with this `row` (see `OpenCharacters`). If one byte
        is missing, each key is a kind of the complete character, and its value the transition from `context`.
        Otherwise each key is a group with one byte more, and its value the representative of this group after
        `context`.
        """
        reached = set(row) - {-1}
        if missing == 1:
            return {to: self.costs.step(context, to) for to in reached}
        return {to: class_of[context, missing - 1, to] for to in reached}

    def _name(self, kept: dict, context: int, opened) -> tuple | None:
        return kept.get((context, *opened)) or kept.get((self.costs.loose(context), *opened))

    def _completed(self, missing: int, group: int) -> set[int]:
        """Return the kinds of all characters that an incomplete character of a group can become."""
        row = set(self.costs.opened.row(missing, group)) - {-1}
        return row if missing == 1 else set().union(*(self._completed(missing - 1, to) for to in row))

    def _reached(self, kept: dict, begun: list[tuple[int, int]]) -> int:
        """
        Return the number of reachable states, contexts alone and with an incomplete character, if only the incomplete
        characters in `kept` get a state.
        """
        contexts, names = [0], dict[tuple, None]()
        todo = list(contexts)
        while todo:
            context = todo.pop()
            new = {name for opened in begun if (name := self._name(kept, context, opened))} - names.keys()
            met = {self.costs.step(context, kind)[1] for kind in self.whole}
            while new:
                names |= dict.fromkeys(new)
                after: set = set()
                for context, missing, group in new:
                    met |= {self.costs.step(context, kind)[1] for kind in self._completed(missing, group)}
                    if missing > 1:
                        row = set(self.costs.opened.row(missing, group)) - {-1}
                        after |= {self._name(kept, context, (missing - 1, to)) for to in row}
                new = after - names.keys() - {None}
            todo += met - set(contexts)
            contexts += met - set(contexts)
        return len(contexts) + len(names)

    def machine(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Build the automaton. Return the weights and the next states, see `UnitVocabulary.machine`."""
        strips = self.vocabulary.strips
        # A state holds: whether text has started, whether white space is last, context, incomplete character.
        order: list[tuple] = [(False, True, 0, None), (True, False, 0, None)] + [(True, True, 0, None)] * strips
        stray = [i for i, piece in enumerate(self.later) if piece.data]
        lost = self.costs.step(0, self.costs.kind("\ufffd"))[0]  # an incomplete character decodes to U+FFFD
        sort = cache(self._sort(stray))
        columns = _Columns(self.vocabulary.special, zip(map(sort, self.first), map(sort, self.later), strict=True))
        rows = columns.run(order, self._write, stray, strips, lost)
        return columns.tensors(self._live(order, rows), rows)

    def _sort(self, stray: list[int]) -> Callable[["_Piece"], Hashable]:
        """
        Return a function from a piece to its class: pieces of a class act alike from every state. A class includes the
        added units and the next context for each context. `stray` are the entries that are not valid UTF-8.
        """
        broken = "\ufffd".join(["", *(self.later[i].data.decode("utf-8", "replace") for i in stray)])
        kinds = self.whole | set(map(self.costs.kind, broken)) | set(self.costs.opened.kinds if self.kept else ())
        contexts = list(dict.fromkeys([0, *(name[0] for name in self.kept.values())]))
        for context in contexts:  # the list grows: a breadth-first search
            reached = dict.fromkeys(self.costs.step(context, kind)[1] for kind in kinds)
            contexts += [new for new in reached if new not in contexts]
        effects = {tuple((0, context, True) for context in contexts): 0}
        known = list(effects)

        @cache
        def after(effect: int, kind: int) -> int:
            steps = [(units, safe, *self.costs.step(context, kind)) for units, context, safe in known[effect]]
            new = tuple((units + more, to, safe and may) for units, safe, more, to, may in steps)
            if new not in effects:
                effects[new] = len(known)
                known.append(new)
            return effects[new]

        effect_of = cache(lambda kinds: reduce(after, kinds, 0))
        return lambda piece: (
            piece._replace(kinds=None),
            piece.kinds is None or bool(piece.kinds),
            effect_of(piece.kinds or ()),
        )

    def _live(self, order: list[tuple], rows: dict) -> list[tuple]:
        """
        Return the states of `order` that are not inside a character, or whose character allowed entries can complete.
        In `rows`, forbid the entries that lead to other states.
        """
        live = {state for state in order if not state[3]}
        for _ in range(3):
            live |= {s for s in order if any(w >= 0 and to in live for w, to in zip(*rows[s], strict=True))}
        for state in live:
            weights, following = rows[state]
            for i, to in enumerate(following):
                if to not in live:
                    weights[i], following[i] = min(weights[i], ~weights[i]), order[1]
        return [state for state in order if state in live]

    def _write(self, state, i: int):
        """Return the weight and the next state, as `UnitVocabulary._write` does."""
        started, white, context, opened = state
        piece, units, safe = (self.later if started else self.first)[i], 0, True
        if opened:
            units, context, opened, safe, left = self._continue(context, opened, piece.data)
            piece = self._read(left)
            if opened and left:
                piece = piece._replace(kinds=None, data=left)
        kinds, rest = piece.kinds, piece.open
        if kinds is None:  # the entry has stray bytes
            text, rest = _split_utf8(piece.data.lstrip(_CONTINUATION))
            context, opened, safe = 0, None, False
            kinds = tuple(map(self.costs.kind, "\ufffd" + (text or "")))
        more, context, may = self.steps(context, kinds)
        units, safe = units + more, safe and may
        if self.vocabulary.strips:
            if not started and piece.blank:
                return units if safe else ~units, state
            white = piece.white if kinds else white and not opened
        else:
            white = False
        if rest:
            opened = self.costs.opened.begun(rest)
        if opened:
            name = self._name(self.kept, context, opened)
            safe = safe and (name is not None or opened[1] is None)
            context, opened = (name[0], name[1:]) if name else (0, (opened[0], None))
        return units if safe else ~units, (True, white, context, opened)

    def _continue(self, context: int, opened, data: bytes):
        """
        Continue the incomplete character `opened` with the first bytes of `data`. Return the added units, the next
        context, the longer incomplete character (`None` if complete), whether a constraint may allow these bytes, and
        the unused bytes.
        """
        units, safe = 0, True
        while opened and data and 0x80 <= data[0] < 0xC0:
            missing, group = opened
            to = -1 if group is None else self.costs.opened.row(missing, group)[data[0] - 0x80]
            if to < 0 and group is not None:
                break  # the bytes are not a character
            data, opened = data[1:], (missing - 1, None if group is None else to) if missing > 1 else None
            if opened is None and group is None:
                units, context = units + self.most, 0
            elif opened is None:
                more, context, may = self.costs.step(context, to)
                units, safe = units + more, safe and may
        return units, context, opened, safe, data


def columns_of(sorts: Iterable[Hashable]) -> tuple[list[int], list[int]]:
    """Return the column of each entry and the first entry of each column; entries of a class in `sorts` share one."""
    columns: dict[Hashable, int] = {}
    of = [columns.setdefault(sort, len(columns)) for sort in sorts]
    first = dict(zip(reversed(of), reversed(range(len(of))), strict=True))
    return of, [first[column] for column in range(len(columns))]


class _Columns:
    """
    The distinct columns of an automaton's table. Entries of the same class, in `sorts`, act alike in every state, so
    the automaton is built for one entry of each class. All `special` entries share one class.
    """

    def __init__(self, special: set[int], sorts: Iterable[Hashable]):
        self.of, self.entries = columns_of(None if i in special else sort for i, sort in enumerate(sorts))
        self.special = next((self.of[i] for i in special), None)

    def run(self, order: list[tuple], write, continuing: list[int], strips: bool, lost: int = 0):
        """
        Build the automaton by breadth-first search. A column is a class of vocabulary entries with the same effect in
        every state. Return a dictionary from each state to two lists with one item for each column: the weights (added
        units; `~units`, a negative number, if the entry is forbidden), and the next states.

        A state is a tuple. Its first two fields are flags: text has begun, and white space is last. Its last field is
        the incomplete character at the end (first bytes only), or an empty value. Inside an incomplete character, only
        `continuing` entries are allowed. Any other entry is forbidden. From such a state, a forbidden entry leads to
        the same next state as from the state after text, but adds `lost` more units. A special entry never changes
        the state and adds no units.

        Args:
            order (`list[tuple]`): The first states: the start, the state after text, and the state after white space,
                as `UnitTable.states_after` expects. This method appends the states that it finds.
            write (`Callable`): A function from a state and the id of an entry to the weight and the next state.
            continuing (`list[int]`): Ids of the entries that can continue an incomplete character.
            strips (`bool`): Whether decoding strips white space at the end, so that no text may end with white space.
            lost (`int`, *optional*, defaults to 0): The units of an incomplete character that is not continued.
        """
        whole = [column for column in range(len(self.entries)) if column != self.special]
        going_on = dict.fromkeys(self.of[i] for i in continuing)
        rows: dict[tuple, tuple[list[int], list]] = {}
        for state in order:
            weights, following = [0] * len(self.entries), [state] * len(self.entries)
            if state[-1]:
                weights, following = [~(lost + max(w, ~w)) for w in rows[order[1]][0]], list(rows[order[1]][1])
            for column in going_on if state[-1] else whole:
                weights[column], following[column] = write(state, self.entries[column])
            if self.special is not None:
                may_end = not state[-1] and not (strips and state[0] and state[1])
                weights[self.special], following[self.special] = 0 if may_end else ~0, state
            rows[state] = weights, following
            order += [new for new in dict.fromkeys(following) if new not in order]
        return rows

    def tensors(self, order: list[tuple], rows: dict) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Return two tensors `(S, V)` for the states in `order`: the weights, and the next states as indices of rows.
        """
        number, of = {state: i for i, state in enumerate(order)}, torch.tensor(self.of)
        weights = torch.tensor([rows[state][0] for state in order], dtype=torch.int32)
        following = torch.tensor([[number[new] for new in rows[state][1]] for state in order], dtype=torch.uint8)
        return weights[:, of], following[:, of]


# The byte of each character of the byte-level alphabet; 256 for all other characters.
_BYTE_OF = defaultdict(lambda: 256, {ord(character): byte for byte, character in bytes_to_unicode().items()})
_CONTINUATION = bytes(range(0x80, 0xC0))
_BYTE_PIECE = re.compile(r"<0x([89A-Fa-f][0-9A-Fa-f])>")  # byte fallback; ASCII bytes are complete characters


def _bytes_of(piece: str) -> bytes:
    """Return the bytes of a piece of byte-level BPE; of a piece with other characters, its UTF-8."""
    try:
        return piece.translate(_BYTE_OF).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode("utf-8")


def _sentencepiece(tokenizer) -> Any:
    """Return the SentencePiece model that decodes the texts of a tokenizer."""
    if getattr(tokenizer, "separate_vocabs", True) is False:
        return tokenizer.spm_source  # MarianTokenizer decodes a shared vocabulary with this model
    return tokenizer.sp_model if hasattr(tokenizer, "sp_model") else tokenizer.spm_target


def _single_bytes(tokenizer) -> dict[str, bytes]:
    """Return a dictionary from piece to byte for the pieces that SentencePiece decodes to single bytes."""
    model = _sentencepiece(tokenizer)
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size()) if model.is_byte(i)]
    return {piece: bytes([int(piece[3:5], 16)]) for piece in pieces}


def _split_utf8(data: bytes) -> tuple[str | None, bytes]:
    """Split UTF-8 into its text (`None` if invalid) and the first bytes of an incomplete character at the end."""
    try:
        return data.decode("utf-8"), b""
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return None, b""
        return data[: error.start].decode("utf-8"), data[error.start :]


def _canonical(rest: bytes, unit: str) -> bytes:
    """
    Return the representative of all incomplete characters with the same continuations as `rest`, so that there are few
    states. In the unit `"word"`, characters that may become white space stay separate.
    """
    if not rest or (len(rest) == 1 and rest in (b"\xe0", b"\xed", b"\xf0", b"\xf4")):
        return rest  # not every continuation byte may follow
    if unit == "word" and any(space.startswith(rest) for space in _WIDE_SPACES):
        return rest  # the character may be white space
    missing = (2 if rest[0] < 0xE0 else 3 if rest[0] < 0xF0 else 4) - len(rest)
    return {1: b"\xc3", 2: b"\xe4", 3: b"\xf1"}[missing]
