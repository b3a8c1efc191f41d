"""What each entry of a tokenizer's target vocabulary decodes to."""

import json
import re
from typing import Any

import torch
from transformers.convert_slow_tokenizer import bytes_to_unicode


# The characters that `str.split` splits at and that take more than one byte
_WIDE_SPACES = [c.encode("utf-8") for c in map(chr, range(0x80, 0x3001)) if c.isspace()]


def skipped_ids(tokenizer) -> set[int]:
    """Ids that `decode(skip_special_tokens=True)` leaves out: the one definition of what writes nothing."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return set(tokenizer.all_special_ids)
    special = [i for i, token in backend.get_added_tokens_decoder().items() if token.special]
    return {i for i in special if not backend.decode([i])}  # one that is normalized may not be recognized, and stay


class UnitVocabulary:
    """What each entry of a tokenizer's target vocabulary decodes to: first in a text, and later."""

    def __init__(self, tokenizer, vocab_size: int, special: set[int]):
        self.tokenizer, self.special = tokenizer, special
        pieces = [piece or "" for piece in tokenizer.convert_ids_to_tokens(list(range(vocab_size)))]
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        decoder = json.loads(backend.to_str())["decoder"] if backend is not None else None
        # Marian and M2M100 strip the text they join: white space alone starts none, and none ends on it
        self.strips = hasattr(tokenizer, "spm_target") or hasattr(tokenizer, "sp_model")
        if self.strips:
            single = _single_bytes(tokenizer)
            self.later = [single.get(p) or p.replace("▁", " ").encode("utf-8") for p in pieces]
            self.first = [
                data if p in single and data >= b"\x80" else data.decode("utf-8").lstrip().encode("utf-8")
                for p, data in zip(pieces, self.later, strict=True)
            ]
        elif decoder is not None and decoder["type"] == "ByteLevel":
            # Rust takes a piece with any other character for plain text
            self.later = [
                bytes(map(_BYTE_OF.__getitem__, p)) if _BYTE_OF.keys() >= set(p) else p.encode("utf-8") for p in pieces
            ]
            self.first = self.later
        elif decoder is not None:
            # Rust decodes the list piece by piece and knows which one is the first
            join = backend.decoder.decode
            anchor = join(["a"])
            fallback = "ByteFallback" in json.dumps(decoder)
            single = {p: bytes([int(p[3:5], 16)]) for p in pieces if fallback and _BYTE_PIECE.fullmatch(p)}
            self.first = [single.get(p) or join([p]).encode("utf-8") for p in pieces]
            self.later = [single.get(p) or join(["a", p])[len(anchor) :].encode("utf-8") for p in pieces]
        else:
            raise ValueError(
                f"only tokens can be counted for {type(tokenizer).__name__}, which has no decoder; use a tokenizer "
                "of byte-level BPE, SentencePiece or WordPiece, or length_unit='token'"
            )

    def machine(self, unit: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and next states: the states that the pieces can lead to, each run over all pieces."""
        start: tuple[bool, bool, bytes] = (False, True, b"")  # started, white space last, bytes of an open character
        rows: dict[tuple[bool, bool, bytes], tuple[list[int], list]] = {}
        after_text = [(True, False, b""), (True, True, b"")] if unit == "word" or self.strips else [(True, False, b"")]
        order = [start, *after_text]  # `states_after` relies on the first three
        continuing = [i for i, data in enumerate(self.later) if data and 0x80 <= data[0] < 0xC0]
        for state in order:
            started, white, waiting = state
            may_end = not waiting and not (self.strips and unit != "word" and started and white)
            if waiting:  # all but the bytes it waits for break the character, and lead where they lead after text
                weights, following = [min(w, ~w) for w in rows[after_text[0]][0]], list(rows[after_text[0]][1])
            else:
                weights, following = [0] * len(self.later), [state] * len(self.later)
            for i in continuing if waiting else range(len(self.later)):
                weights[i], following[i] = self._write(state, i, unit)
            for i in self.special:
                weights[i], following[i] = 0 if may_end else ~0, state
            rows[state] = weights, following
            order += [new for new in dict.fromkeys(following) if new not in order]
        number = {state: i for i, state in enumerate(order)}
        return (
            torch.tensor([rows[state][0] for state in order]),
            torch.tensor([[number[new] for new in rows[state][1]] for state in order], dtype=torch.uint8),
        )

    def _write(self, state, i: int, unit: str):
        """Weight of entry `i` and the state after it."""
        started, white, waiting = state
        data = self.later[i] if started else self.first[i]
        text, rest = _split_utf8(waiting + data)
        broken = text is None
        if text is None:  # stray bytes: no white space, and of a character only the first byte counts
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


_BYTE_OF = {character: byte for byte, character in bytes_to_unicode().items()}  # the byte-level alphabet
_CONTINUATION = bytes(range(0x80, 0xC0))
_BYTE_PIECE = re.compile(r"<0x([89A-Fa-f][0-9A-Fa-f])>")  # of byte fallback; ASCII bytes are whole characters


def _single_bytes(tokenizer) -> dict[str, bytes]:
    """Pieces that the SentencePiece model of `tokenizer` decodes to one byte."""
    model = tokenizer.sp_model if hasattr(tokenizer, "sp_model") else tokenizer.spm_target
    if getattr(tokenizer, "separate_vocabs", True) is False:
        model = tokenizer.spm_source  # MarianTokenizer decodes a shared vocabulary with it
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size()) if model.is_byte(i)]
    return {piece: bytes([int(piece[3:5], 16)]) for piece in pieces}


def _split_utf8(data: bytes) -> tuple[str | None, bytes]:
    """Text and the open character at its end; no text where the bytes are no UTF-8."""
    try:
        return data.decode("utf-8"), b""
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return None, b""
        return data[: error.start].decode("utf-8"), data[error.start :]


def _canonical(rest: bytes, unit: str) -> bytes:
    """One open character for all that continue alike, so that there are few states."""
    if not rest or (len(rest) == 1 and rest in (b"\xe0", b"\xed", b"\xf0", b"\xf4")):
        return rest  # their second byte is restricted
    if unit == "word" and any(space.startswith(rest) for space in _WIDE_SPACES):
        return rest  # may turn out to be white space
    missing = (2 if rest[0] < 0xE0 else 3 if rest[0] < 0xF0 else 4) - len(rest)
    return {1: b"\xc3", 2: b"\xe4", 3: b"\xf1"}[missing]
