"""Training of a `MarianTokenizer` on the user's own text."""

import io
import itertools
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

import sentencepiece
from transformers.models.marian.tokenization_marian import MarianTokenizer

from ..lengths import check_name


# Sources and targets have the same special ids, because a model has one set for encoder and decoder.
SPECIAL_TOKENS = {"</s>": 0, "<unk>": 1, "<pad>": 2}
TARGET_VOCABULARIES = ("character", "joined", "shared")


def train_marian_tokenizer(
    sources: Iterable[str | None],
    targets: Iterable[str | None],
    save_directory: str | Path,
    *,
    vocab_size: int = 16_000,
    target_vocabulary: str = "character",
    character_coverage: float = 1.0,
    byte_fallback: bool = False,
    model_max_length: int = 512,
) -> MarianTokenizer:
    """
    Train a SentencePiece tokenizer on source and target texts, and save it.

    Args:
        sources (`Iterable[str]`), targets (`Iterable[str]`): Training texts; `None` and empty texts are left out.
        save_directory (`str` or `Path`): Folder for the tokenizer; `AutoTokenizer.from_pretrained` loads it.
        vocab_size (`int`, *optional*, defaults to 16,000): Maximum number of subwords, special tokens included. A
            small text gives fewer.
        target_vocabulary (`str`, *optional*, defaults to `"character"`): `"character"` splits sources into subwords
            and targets into characters, with two vocabularies (Takase & Okazaki 2019, section 3.1). `"joined"` splits
            in the same way but has one vocabulary, as in the authors' code, so that encoder and decoder can share
            embeddings. `"shared"` splits sources and targets into the same subwords.
        character_coverage (`float`, *optional*, defaults to 1.0): Share of the text's characters that the vocabulary
            covers; 0.9995 suits Japanese and Chinese.
        byte_fallback (`bool`, *optional*, defaults to `False`): In texts that are split into subwords, encode unknown
            characters as UTF-8 bytes instead of `<unk>`. The bytes take 256 entries of the vocabulary.
        model_max_length (`int`, *optional*, defaults to 512): Maximum number of tokens of a source.

    Returns:
        `MarianTokenizer`, with `separate_vocabs=True` if `target_vocabulary` is `"character"`.

    Raises:
        `ValueError`: if `target_vocabulary` is unknown, or if there is no text.
    """
    check_name("target_vocabulary", target_vocabulary, TARGET_VOCABULARIES)
    separate, shared = target_vocabulary == "character", target_vocabulary == "shared"
    source_spm = _train(
        itertools.chain(sources, targets) if shared else sources,
        vocab_size=vocab_size - len(SPECIAL_TOKENS) + 1,  # SentencePiece counts its own <unk>
        character_coverage=character_coverage,
        byte_fallback=byte_fallback,
        hard_vocab_limit=False,
    )
    # Without the dummy prefix every target token is one character of the output, so progress equals position.
    characters: dict = {"model_type": "char", "vocab_size": 2**15, "add_dummy_prefix": False}
    characters["character_coverage"] = character_coverage
    target_spm = source_spm if shared else _train(targets, **characters)
    spms = {"source": source_spm, "target": target_spm}
    vocabularies = {side: _vocabulary(*((spm,) if separate else spms.values())) for side, spm in spms.items()}
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for side, spm in spms.items():
            files[f"{side}_spm"] = Path(folder, f"{side}.spm")
            files[f"{side}_spm"].write_bytes(spm)
            files[f"{side}_vocab"] = Path(folder, f"{side}_vocab.json")
            files[f"{side}_vocab"].write_text(json.dumps(vocabularies[side], ensure_ascii=False), encoding="utf-8")
        MarianTokenizer(
            str(files["source_spm"]),
            str(files["target_spm"]),
            str(files["source_vocab"]),
            target_vocab_file=str(files["target_vocab"]) if separate else None,
            separate_vocabs=separate,
            model_max_length=model_max_length,
            clean_up_tokenization_spaces=False,  # the decoded text must have the counted length
        ).save_pretrained(save_directory)
    return MarianTokenizer.from_pretrained(save_directory)


def _train(texts: Iterable[str | None], **options) -> bytes:
    model = io.BytesIO()
    texts = (text for text in texts if text and text.strip())  # a column of a file may hold null
    first = next(texts, None)
    if first is None:
        raise ValueError("there is no text to train a tokenizer on: every source or target is empty")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=itertools.chain([first], texts),
        model_writer=model,
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        max_sentence_length=2**16,
        input_sentence_size=2_000_000,
        shuffle_input_sentence=True,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def _vocabulary(*spms: bytes) -> dict[str, int]:
    """Return the vocabulary of the special tokens and of all pieces of the SentencePiece models."""
    models = [sentencepiece.SentencePieceProcessor(model_proto=spm) for spm in spms]
    numbered = ((model, i) for model in models for i in range(1, model.get_piece_size()))  # piece 0 is <unk>
    pieces = dict.fromkeys(model.id_to_piece(i) for model, i in numbered)
    return SPECIAL_TOKENS | {piece: i for i, piece in enumerate(pieces, start=len(SPECIAL_TOKENS))}
