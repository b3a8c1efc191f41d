"""Units of random token sequences by the table against those of the decoded text: columns, and three costs.

    python lab/benchmarks/costs.py [--rows 100000]

Byte-level BPE, SentencePiece with byte fallback and WordPiece, each of some hundred entries trained on texts of
several scripts. A sequence holds what a constraint lets a model write: it ends where a text may end.
"""

import argparse
import random
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from PIL import ImageFont
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hf_lenctrl import UnitTable, count_units


TEXTS = [
    *("a small text editor", "image reading and writing library", "naïve café", "it's a dog, do n't .", "ﾊﾝｶｸ 1234"),
    *("日本語の文字", "文字の日本語", "한국어 문장", "שלום עליכם", "مرحبا بالعالم", "क्षत्रिय हिन्दी", "ภาษาไทยกำ"),
    *("😀👍🏽😀", "👨\u200d👩\u200d👧", "🇩🇪🇫🇷", "❤\ufe0f☺", "e\u0301a\u0308", "a\u3000b\xa0c", "x\u2028y\u1680w"),
]
VOCABULARY = 600
MORSE = {"a": 9, "e": 5, "t": 7, "o": 15, "n": 9, "i": 7, "s": 9, " ": 4}  # dots, with the pause after
FONT = ImageFont.load_default(16)
_quarter_pixels = cache(lambda character: round(4 * FONT.getlength(character)))
COSTS: dict[str, Callable[[str], int]] = {
    "width": lambda text: count_units(text, "width"),
    "vowels": lambda text: sum(map(text.count, "aeiouyAEIOUY")),
    "morse": lambda text: sum(MORSE.get(character, 13) for character in text),
    "quarter pixels": lambda text: sum(map(_quarter_pixels, text)),
}


def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    """One of each kind, trained on `TEXTS`."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), special, strict=True))
    options: Any = {"vocab_size": VOCABULARY, "special_tokens": special, "show_progress": False}
    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    byte_level.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(initial_alphabet=alphabet, **options))
    word_piece = Tokenizer(models.WordPiece(unk_token="<unk>"))
    word_piece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    word_piece.decoder = decoders.WordPiece(cleanup=False)
    word_piece.train_from_iterator(TEXTS * 3, trainers.WordPieceTrainer(**options))
    unigram = Tokenizer(models.Unigram())
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.train_from_iterator(TEXTS * 3, trainers.UnigramTrainer(unk_token="<unk>", **options))
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [piece for piece in unigram.get_vocab() if piece not in special]
    scores = [(piece, -float(i)) for i, piece in enumerate(pieces)]
    fallback = Tokenizer(models.Unigram(scores, unk_id=3, byte_fallback=True))
    fallback.pre_tokenizer = pre_tokenizers.Metaspace()
    joined = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    fallback.decoder = decoders.Sequence(joined)
    made = {"byte-level BPE": byte_level, "SentencePiece with bytes": fallback, "WordPiece": word_piece}
    return {name: PreTrainedTokenizerFast(tokenizer_object=one, **names) for name, one in made.items()}


def sequences(table: UnitTable, special: list[int], rows: int, draw: random.Random):
    """Rows of entries that a constraint allows, up to twelve, more where a character is open."""
    weights, following = table.weights.tolist(), table.next_state.tolist()

    @cache
    def ways(state: int) -> list[list[int]]:
        """Entries by what they lead to, so that rare states are met as often as common ones."""
        by: dict[int, list[int]] = {}
        for i, weight in enumerate(weights[state]):
            if weight >= 0:
                by.setdefault(following[state][i], []).append(i)
        return list(by.values())

    while rows:
        ids: list[int] = []
        state, least = 0, draw.randint(1, 12)
        while len(ids) < least or (weights[state][special[0]] < 0 and len(ids) < 40):
            ids.append(draw.choice(draw.choice(ways(state))))
            state = following[state][ids[-1]]
        if weights[state][special[0]] >= 0:
            rows -= 1
            yield ids


def main(argv=None) -> None:
    """Print a line for each tokenizer and cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="sequences of each cost, over all tokenizers")
    args = parser.parse_args(argv)
    made = tokenizers()
    for cost, count in COSTS.items():
        for name, tokenizer in made.items():
            start = time.perf_counter()
            unit = {"unit": "width"} if cost == "width" else {"cost": count}
            table = UnitTable.from_tokenizer(tokenizer, **unit)  # type: ignore[arg-type]
            built, wrong = time.perf_counter() - start, 0
            rows = list(sequences(table, tokenizer.all_special_ids, -(-args.rows // len(made)), random.Random(0)))
            longest = max(map(len, rows))
            padded = torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows])
            texts = tokenizer.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            for some, theirs in zip(
                padded.split(500), (texts[i : i + 500] for i in range(0, len(texts), 500)), strict=True
            ):
                wrong += sum(a != count(b) for a, b in zip(table.count(some).tolist(), theirs, strict=True))
            facts = f"{table.states} states, built in {built:.1f} s"
            print(f"{cost}, {name}: {wrong} of {len(rows)} sequences differ ({facts})", flush=True)


if __name__ == "__main__":
    main()
