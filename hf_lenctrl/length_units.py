"""Units of length: what a text or a sequence of token ids counts."""

import json

import torch
from torch import nn


def count_units(text: str, unit: str) -> int:
    """
    Length of a text.

    Args:
        text (`str`): Decoded text, without special tokens.
        unit (`str`): `"character"`, Unicode code points. Tokens are counted from ids: `UnitTable.count`.

    Raises:
        `ValueError`: for a unit that a text alone does not have.

    Example:

    ```python
    >>> from hf_lenctrl.length_units import count_units
    >>> count_units("naïve 日本", "character")
    8

    ```
    """
    if unit == "character":
        return len(text)
    raise ValueError(
        f"count_units counts unit 'character', got {unit!r}; count tokens from ids, with UnitTable.count(ids)"
    )


class UnitTable(nn.Module):
    """
    Units that each vocabulary entry writes, kept as a buffer so that it is saved, loaded and moved with a model.

    Decoding drops the white space before the first word (SentencePiece marks it on every word), so an entry has two
    weights: `weights[id, 0]` where nothing but white space stands before it, `weights[id, 1]` after that.
    Special tokens weigh 0 in both.

    Args:
        weights (`torch.IntTensor` of shape `(vocab_size, 2)`): The two weights; -1 marks a table not filled yet.
    """

    weights: torch.Tensor

    def __init__(self, weights: torch.Tensor):
        super().__init__()
        # int32: NCCL and gloo cannot broadcast the smaller int16
        self.register_buffer("weights", weights.to(torch.int32))
        self._filled = False

    @classmethod
    def from_config(cls, config, vocab_size: int) -> "UnitTable":
        """Table without a tokenizer: 1 for all but the special ids of `config`; for characters, one to be filled."""
        if config.length_unit != "token":
            return cls(torch.full((vocab_size, 2), -1, dtype=torch.int32))
        weights = torch.ones(vocab_size, 2, dtype=torch.int32)
        for name in ("pad", "bos", "eos", "decoder_start", "forced_bos", "forced_eos"):
            ids = getattr(config, f"{name}_token_id", None)
            for special in ids if isinstance(ids, list) else [ids]:
                if special is not None and 0 <= special < vocab_size:
                    weights[special] = 0
        return cls(weights)

    @classmethod
    def from_tokenizer(cls, tokenizer, unit: str) -> "UnitTable":
        """
        Table of a tokenizer's target vocabulary.

        Args:
            tokenizer (`PreTrainedTokenizerBase`): For `"character"`, one that decodes SentencePiece (Marian) or
                byte-level BPE (BART).
            unit (`str`): `"token"` or `"character"`.

        Raises:
            `ValueError`: for an unknown unit, or a tokenizer whose pieces cannot be counted in it.
        """
        special = set(tokenizer.all_special_ids)
        separate = getattr(tokenizer, "separate_vocabs", False)
        vocab_size = len(tokenizer.target_encoder) if separate else len(tokenizer)
        if unit == "token":
            special.discard(tokenizer.unk_token_id)  # an unknown word is written, if not well
            weights = [(0, 0) if i in special else (1, 1) for i in range(vocab_size)]
        elif unit == "character":
            count = _character_counter(tokenizer)
            pieces = tokenizer.convert_ids_to_tokens(list(range(vocab_size)))
            weights = [(0, 0) if i in special else count(piece) for i, piece in enumerate(pieces)]
        else:
            raise ValueError(f"unit must be 'token' or 'character', got {unit!r}")
        return cls(torch.tensor(weights, dtype=torch.int32))

    def progress(self, ids: torch.LongTensor) -> torch.Tensor:
        """
        Units written up to and including each position, so that a decoder that reads `ids` learns what stands there
        before it predicts. One gather and two cumulative sums for the batch, no loop over rows.

        Args:
            ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`): Decoder input ids with special tokens.

        Returns:
            `torch.LongTensor` of shape `(batch_size, sequence_length)`; the last column is the count of the whole row.
        """
        if not self._filled and not torch.compiler.is_compiling():
            if bool((self.weights < 0).any()):
                raise ValueError(
                    "the model has no table of units for its vocabulary, so it cannot count characters; "
                    "call model.set_unit_table(tokenizer) once, before training or generating"
                )
            self._filled = True
        first, later = self.weights[ids].unbind(-1)  # (B, T) each
        text_before = first.cumsum(-1) > first  # (B, T): something other than white space stands before the token
        return torch.where(text_before, later, first).cumsum(-1)

    def count(self, ids: torch.LongTensor) -> torch.Tensor:
        """Units of each row: `(batch_size, sequence_length)` -> `(batch_size,)`."""
        return self.progress(ids)[:, -1]

    def _load_from_state_dict(self, *args, **kwargs):
        self._filled = False
        super()._load_from_state_dict(*args, **kwargs)


def _character_counter(tokenizer):
    """Function from a vocabulary piece to its two weights in characters."""
    if hasattr(tokenizer, "spm_target"):
        return _count_sentencepiece
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = json.loads(backend.to_str())["decoder"] if backend is not None else None
    if decoder is not None and decoder["type"] == "ByteLevel":
        return _count_byte_level
    raise ValueError(
        f"unit 'character' needs a tokenizer that decodes SentencePiece (MarianTokenizer) or byte-level BPE "
        f"(BartTokenizer), got {type(tokenizer).__name__}; use one of these or length_unit='token'"
    )


def _count_sentencepiece(piece: str) -> tuple[int, int]:
    text = piece.replace("▁", " ")
    return len(text.lstrip()), len(text)


def _count_byte_level(piece: str) -> tuple[int, int]:
    # A character of several bytes may be split over tokens: its lead byte counts it. The byte-level alphabet writes
    # the continuation bytes 0x80-0xA0 as U+0122-U+0142, 0xA1-0xAC and 0xAE-0xBF as themselves and 0xAD as U+0143.
    count = sum(not (0x122 <= ord(c) <= 0x143 or 0xA1 <= ord(c) <= 0xBF) for c in piece)
    return count, count
