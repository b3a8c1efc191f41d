"""Tests of the unit tables: written-out rows for hand-made vocabularies, and counts held against decoded text."""

import copy
import json
import random
import re
from types import SimpleNamespace

import pytest
import sentencepiece
import torch
from conftest import MARIAN, TARGETS, build_model
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    BartTokenizer,
    BertTokenizer,
    M2M100Tokenizer,
    MarianTokenizer,
    PreTrainedTokenizerFast,
    T5Tokenizer,
)

from hf_lenctrl import LenCtrlBartConfig, LenCtrlMarianConfig, UnitTable, count_units, train_marian_tokenizer
from hf_lenctrl.length_units import NO_STATE, NOT_FILLED


UNITS = ["character", "word", "byte"]

# Three states: nothing but white space so far, after text, after white space
MARIAN_TABLE = {
    # piece: (characters, words, next state), each in the three states; "é" is an e with a combining accent
    "</s>": ([0, 0, ~0], [0, 0, 0], [0, 1, 2]),  # the last space of a text would be stripped: no text ends there
    "<unk>": ([0, 0, ~0], [0, 0, 0], [0, 1, 2]),  # decoding leaves it out as it does every special token
    "<pad>": ([0, 0, ~0], [0, 0, 0], [0, 1, 2]),
    "▁": ([0, 1, 1], [0, 0, 0], [0, 2, 2]),
    "▁small": ([5, 6, 6], [1, 1, 1], [1, 1, 1]),
    "▁a": ([1, 2, 2], [1, 1, 1], [1, 1, 1]),
    "ed": ([2, 2, 2], [1, 0, 1], [1, 1, 1]),
    "▁▁": ([0, 2, 2], [0, 0, 0], [0, 2, 2]),
    "▁▁b": ([1, 3, 3], [1, 1, 1], [1, 1, 1]),
    "a▁b": ([3, 3, 3], [2, 1, 2], [1, 1, 1]),
    "日本": ([2, 2, 2], [1, 0, 1], [1, 1, 1]),
    "e\u0301": ([2, 2, 2], [1, 0, 1], [1, 1, 1]),
    "s▁": ([2, 2, 2], [1, 0, 1], [2, 2, 2]),
}
MARIAN_VOCABULARY = {piece: i for i, piece in enumerate(MARIAN_TABLE)}


def columns(k: int) -> list[list[int]]:
    """One of the three columns of `MARIAN_TABLE`, states first."""
    return [list(row) for row in zip(*(entry[k] for entry in MARIAN_TABLE.values()), strict=True)]


BART_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def byte_alphabet() -> dict[int, str]:
    """Byte -> character of byte-level BPE: printable Latin-1 stands for itself, the others for U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


BYTES = byte_alphabet()


def pieces_of(text: str) -> list[str]:
    """A text in the byte-level alphabet, one piece a byte."""
    return [BYTES[byte] for byte in text.encode("utf-8")]


@pytest.fixture(scope="module")
def handmade_marian(tmp_path_factory):
    folder = tmp_path_factory.mktemp("handmade")
    # for the .spm, which only joins pieces
    train_marian_tokenizer(["a b"], ["a b"], folder, target_vocabulary="shared")
    vocabulary = folder / "handmade.json"
    vocabulary.write_text(json.dumps(MARIAN_VOCABULARY), encoding="utf-8")
    spm = str(folder / "source.spm")
    return MarianTokenizer(spm, spm, str(vocabulary), clean_up_tokenization_spaces=False)


@pytest.fixture(scope="module")
def handmade_bart():
    """All bytes and a few pieces, some of which end or begin within a character."""
    more = ["small", "Ġtext", "æĹ", "¥æ", "ľ¬", "ðŁ", "ĺĢ"]
    tokens = [*BART_SPECIAL, *BYTES.values(), *more]
    return BartTokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=[])


@pytest.fixture(scope="module")
def handmade_t5():
    """Metaspace: the spaces of a text's first piece are dropped, others are kept."""
    pieces = ["<pad>", "</s>", "<unk>", "▁small", "▁", "ed", "▁▁", "s▁a", "日本", "\u3000", "▁\n"]
    return T5Tokenizer(vocab=[(piece, 0.0) for piece in pieces], extra_ids=0)


@pytest.fixture(scope="module")
def handmade_bert():
    """WordPiece: a space between words, none before a continuation and some punctuation."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "dog", ".", "日", "##本", "n't", "not", "do"]
    return BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)})


def decode(tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def progress(tokenizer, ids: list[int], unit: str = "character") -> list[int]:
    return UnitTable.from_tokenizer(tokenizer, unit).progress(torch.LongTensor([ids]))[0].tolist()


# count_units


@pytest.mark.parametrize(
    "text, characters, words, utf8",
    [
        ("", 0, 0, 0),
        (" a ", 3, 1, 3),
        ("naïve 日本", 8, 2, 13),
        ("e\u0301", 2, 1, 3),
        ("👨\u200d👩\u200d👧", 5, 1, 18),
        ("a\nb\tc", 5, 3, 5),
        ("a\u3000b\xa0c\u2028d", 7, 4, 12),
        ("a\x1cb\x1fc\x85d", 7, 4, 8),
        ("a\u200bb", 3, 1, 5),  # of no width, but no white space
        (" \n\u1680 ", 4, 0, 6),
    ],
)
def test_count_units_counts_a_text(text, characters, words, utf8):
    assert [count_units(text, unit) for unit in UNITS] == [characters, words, utf8]


@pytest.mark.parametrize("unit", ["token", "sentence", "characters", None])
def test_count_units_refuses_a_unit_that_text_alone_does_not_have(unit):
    with pytest.raises(ValueError, match=f"got {unit!r}; count tokens from ids, with UnitTable.count"):
        count_units("some text", unit)


# Tables


def test_marian_tables_are_those_written_out(handmade_marian):
    for column, unit in enumerate(["character", "word"]):
        table = UnitTable.from_tokenizer(handmade_marian, unit)
        assert table.states == 3
        assert table.weights.tolist() == columns(column)
        assert table.next_state.tolist() == columns(2)


def test_token_weights_are_one_but_for_special_tokens(handmade_marian, handmade_bart):
    weights = UnitTable.from_tokenizer(handmade_marian, "token").weights.tolist()
    assert weights == [[0, 1, 0] + [1] * 10]  # an unknown word is written too
    weights = UnitTable.from_tokenizer(handmade_bart, "token").weights.tolist()
    assert weights == [[0, 0, 0, 1, 0] + [1] * (256 + 7)]


def test_entries_that_would_break_a_character_are_marked_and_count_what_they_write(handmade_bart):
    def entry(piece):
        return handmade_bart.convert_tokens_to_ids(piece)

    for unit, first, broken in (("character", 1, 5), ("byte", 2, 5), ("word", 0, 0)):
        table = UnitTable.from_tokenizer(handmade_bart, unit)
        weights = table.weights.tolist()
        assert weights[0][entry("æĹ")] == first
        waiting = int(table.next_state[0, entry("æĹ")])  # for the last byte of three
        assert weights[waiting][entry("¥æ")] == {"character": 1, "byte": 2, "word": 1}[unit]
        assert weights[waiting][entry("</s>")] == ~0  # a text cannot end here
        for piece in ("small", "æĹ", "ðŁ"):
            assert weights[waiting][entry(piece)] < 0
        assert weights[0][entry("¥æ")] < 0
        if unit != "word":
            assert weights[waiting][entry("small")] == ~broken


def test_a_table_has_one_column_for_each_entry_of_the_target_vocabulary(shared_tokenizer, character_tokenizer):
    for unit in ("token", *UNITS):
        table = UnitTable.from_tokenizer(shared_tokenizer, unit)
        assert table.weights.shape == table.next_state.shape == (table.states, len(shared_tokenizer.encoder))
        table = UnitTable.from_tokenizer(character_tokenizer, unit)
        assert table.weights.shape == (table.states, len(character_tokenizer.target_encoder))
        assert len(character_tokenizer.target_encoder) != len(character_tokenizer.encoder)


def test_a_config_gives_token_weights_without_a_tokenizer():
    marian = LenCtrlMarianConfig(
        vocab_size=5, pad_token_id=2, eos_token_id=0, decoder_start_token_id=2, forced_eos_token_id=0
    )
    assert UnitTable.from_config(marian, 5).weights.tolist() == [[0, 1, 0, 1, 1]]
    bart = LenCtrlBartConfig(vocab_size=5)  # bos 0, pad 1, eos 2
    assert UnitTable.from_config(bart, 5).weights.tolist() == [[0, 0, 0, 1, 1]]


def test_a_config_may_name_several_or_missing_or_foreign_special_ids():
    config = SimpleNamespace(length_unit="token", eos_token_id=[0, 3], pad_token_id=None, forced_bos_token_id=99)
    assert UnitTable.from_config(config, 4).weights.tolist() == [[0, 1, 1, 0]]


@pytest.mark.parametrize("unit", UNITS)
def test_a_config_gives_an_unfilled_table_of_its_states_for_other_units(unit):
    table = UnitTable.from_config(LenCtrlBartConfig(length_unit=unit, unit_states=3), 4)
    assert table.unit == unit
    assert table.weights.tolist() == [[NOT_FILLED] * 4] * 3
    assert table.next_state.tolist() == [[NO_STATE] * 4] * 3


@pytest.mark.parametrize("unit", ["sentence", "Character", None])
def test_an_unknown_unit_is_refused(handmade_bart, unit):
    with pytest.raises(ValueError, match=f"unit must be one of token, character, word, byte, got {unit!r}"):
        UnitTable.from_tokenizer(handmade_bart, unit)


@pytest.mark.parametrize("unit", UNITS)
def test_a_tokenizer_without_a_decoder_counts_tokens_only(unit):
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    message = (
        f"only tokens can be counted for {type(tokenizer).__name__}, which has no decoder; use a tokenizer of "
        "byte-level BPE, SentencePiece or WordPiece, or length_unit='token'"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        UnitTable.from_tokenizer(tokenizer, unit)
    assert progress(tokenizer, [1, 0, 1], "token") == [1, 2, 3]


@pytest.mark.parametrize("unit", ["character", "byte"])
def test_a_tokenizer_that_changes_text_across_pieces_is_refused(unit):
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    words.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    message = rf"^{unit}s of \w+ cannot be counted piece by piece: \[.*\] decodes to '[abc]+', \d+ {unit}s, not \d+; "
    with pytest.raises(ValueError, match=message + "use length_unit='token'$"):
        UnitTable.from_tokenizer(tokenizer, unit)


# Written-out rows


@pytest.mark.parametrize(
    "pieces, text, characters, words",
    [
        # decoder start, two words, and the step that must emit EOS; then EOS and padding
        (
            ["<pad>", "▁small", "ed", "▁", "▁small", "</s>", "<pad>"],
            "smalled  small",
            [0, 5, 7, 8, 14, 14, 14],
            [0, 1, 1, 1, 2, 2, 2],
        ),
        (["<pad>", "<pad>", "▁a", "▁a"], "a a", [0, 0, 1, 3], [0, 0, 1, 2]),
        (["▁", "▁", "▁small"], "small", [0, 0, 5], [0, 0, 1]),
        (["▁▁", "▁▁b", "a▁b"], "ba b", [0, 1, 4], [0, 1, 2]),
        (["日本", "e\u0301", "▁a"], "日本e\u0301 a", [2, 4, 6], [1, 1, 2]),
        (["<pad>", "<unk>", "▁small", "<unk>", "▁a", "</s>"], "small a", [0, 0, 5, 5, 7, 7], [0, 0, 1, 1, 2, 2]),
        (["s▁", "▁small", "s▁", "▁", "ed"], "s  smalls  ed", [2, 8, 10, 11, 13], [1, 2, 2, 2, 3]),
        (["s▁", "<unk>", "ed"], "s ed", [2, 2, 4], [1, 1, 2]),  # what is left out joins nothing
        (["▁", "▁▁", "</s>"], "", [0, 0, 0], [0, 0, 0]),
    ],
)
def test_marian_progress(handmade_marian, pieces, text, characters, words):
    ids = [MARIAN_VOCABULARY[piece] for piece in pieces]
    assert decode(handmade_marian, ids) == text  # the row was written for this text
    assert progress(handmade_marian, ids, "character") == characters
    assert progress(handmade_marian, ids, "word") == words


def test_marian_progress_in_bytes(handmade_marian):
    pieces = ["<pad>", "▁", "日本", "e\u0301", "▁a", "▁", "日本", "</s>"]
    ids = [MARIAN_VOCABULARY[piece] for piece in pieces]
    assert decode(handmade_marian, ids) == "日本e\u0301 a 日本"
    assert progress(handmade_marian, ids, "byte") == [0, 0, 6, 9, 11, 12, 18, 18]


@pytest.mark.parametrize(
    "pieces, text, characters, words, utf8",
    [
        # decoder start, forced BOS, text, EOS, padding
        (
            ["</s>", "<s>", "small", "Ġtext", "</s>", "<pad>", "<pad>"],
            "small text",
            [0, 0, 5, 10, 10, 10, 10],
            [0, 0, 1, 2, 2, 2, 2],
            [0, 0, 5, 10, 10, 10, 10],
        ),
        # a first space is part of the text
        (["<s>", "Ġtext", "Ġ", "Ġtext"], " text  text", [0, 5, 6, 11], [0, 1, 1, 2], [0, 5, 6, 11]),
        # a character counts with its first byte, a word with its first whole character
        (["<s>", "æĹ", "¥æ", "ľ¬", "</s>"], "日本", [0, 1, 2, 2, 2], [0, 0, 1, 1, 1], [0, 2, 4, 6, 6]),
        (["ðŁ", "ĺĢ", "ð", "Ł", "ĺ", "Ģ"], "😀😀", [1, 1, 2, 2, 2, 2], [0, 1, 1, 1, 1, 1], [2, 4, 5, 6, 7, 8]),
        (["e", "Ì", "ģ"], "e\u0301", [1, 2, 2], [1, 1, 1], [1, 2, 3]),
        (
            ["Â", "Ń", "a", "ġ", "Ā", "Ċ"],
            "\xada\x7f\x00\n",
            [1, 1, 2, 3, 4, 5],
            [0, 1, 1, 1, 1, 1],
            [1, 2, 3, 4, 5, 6],
        ),
        (["small", "<unk>", "<mask>", "Ġtext"], "small text", [5, 5, 5, 10], [1, 1, 1, 2], [5, 5, 5, 10]),
        (["small", "small", "Ġ", "<mask>", "small"], "smallsmall small", [5, 10, 11, 11, 16], [1, 1, 1, 1, 2], None),
    ],
)
def test_byte_level_progress(handmade_bart, pieces, text, characters, words, utf8):
    ids = handmade_bart.convert_tokens_to_ids(pieces)
    assert decode(handmade_bart, ids) == text
    assert progress(handmade_bart, ids, "character") == characters
    assert progress(handmade_bart, ids, "word") == words
    assert progress(handmade_bart, ids, "byte") == (utf8 or characters)


@pytest.mark.parametrize(
    "text, words",
    [
        ("a\x1cb\x1fc\nd", [1, 1, 2, 2, 3, 3, 4]),
        ("a\xa0b", [1, 1, 1, 2]),
        ("a\x85b", [1, 1, 1, 2]),
        ("a\u1680b", [1, 1, 1, 1, 2]),
        ("a\u2028b", [1, 1, 1, 1, 2]),
        ("a\u3000b", [1, 1, 1, 1, 2]),
        ("a\u200bb", [1, 1, 1, 1, 1]),  # of no width, but no white space
        ("é\xa0é", [0, 1, 1, 1, 1, 2]),
        ("\u2003語", [0, 0, 0, 0, 0, 1]),  # nearly the same bytes: e2 80 83, e8 aa 9e
        ("語\u2003語", [0, 0, 1, 1, 1, 1, 1, 1, 2]),
        ("\u3000〃\u3000\u3000、", [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2]),  # all of them start e3 80
        ("\u3000\u2003😀\u2009😀", [*[0] * 9, 1, 1, 1, 1, 1, 1, 1, 2]),
    ],
)
def test_words_of_single_byte_tokens_begin_after_wide_white_space(handmade_bart, text, words):
    ids = handmade_bart.convert_tokens_to_ids(pieces_of(text))
    assert decode(handmade_bart, ids) == text
    assert progress(handmade_bart, ids, "word") == words
    assert progress(handmade_bart, ids, "byte") == list(range(1, len(ids) + 1))


@pytest.mark.parametrize(
    "pieces, text, characters, words, utf8",
    [
        (["<pad>", "▁small", "ed", "▁small", "</s>"], "smalled small", [0, 5, 7, 13, 13], [0, 1, 1, 2, 2], None),
        (["▁", "▁small", "s▁a"], " smalls a", [0, 6, 9], [0, 1, 2], None),
        # every space of the first piece is dropped, in its middle too
        (["▁▁", "ed", "▁▁", "ed"], "ed  ed", [0, 2, 4, 6], [0, 1, 1, 2], None),
        (["<pad>", "s▁a", "s▁a"], "sas a", [0, 2, 5], [0, 1, 2], None),
        (["日本", "\u3000", "日本", "</s>"], "日本\u3000日本", [2, 3, 5, 5], [1, 1, 2, 2], [6, 9, 15, 15]),
        (["ed", "▁\n", "<unk>", "ed", "▁"], "ed \ned ", [2, 4, 4, 6, 7], [1, 1, 1, 2, 2], None),
    ],
)
def test_metaspace_progress(handmade_t5, pieces, text, characters, words, utf8):
    ids = handmade_t5.convert_tokens_to_ids(pieces)
    assert decode(handmade_t5, ids) == text
    assert progress(handmade_t5, ids, "character") == characters
    assert progress(handmade_t5, ids, "word") == words
    assert progress(handmade_t5, ids, "byte") == (utf8 or characters)


@pytest.mark.parametrize(
    "pieces, text, characters, words, utf8",
    [
        (["[CLS]", "a", "##b", "dog", ".", "[SEP]"], "ab dog.", [0, 1, 2, 6, 7, 7], [0, 1, 1, 2, 2, 2], None),
        (["a", "[UNK]", "[PAD]", "dog"], "a dog", [1, 1, 1, 5], [1, 1, 1, 2], None),
        (["日", "##本", "日"], "日本 日", [1, 2, 4], [1, 1, 2], [3, 6, 10]),
        (["do", "n't", "a"], "don't a", [2, 5, 7], [1, 1, 2], None),
    ],
)
def test_word_piece_progress(handmade_bert, pieces, text, characters, words, utf8):
    ids = handmade_bert.convert_tokens_to_ids(pieces)
    assert decode(handmade_bert, ids) == text
    assert progress(handmade_bert, ids, "character") == characters
    assert progress(handmade_bert, ids, "word") == words
    assert progress(handmade_bert, ids, "byte") == (utf8 or characters)


def test_progress_in_tokens(handmade_marian, handmade_bart):
    pieces = ["<pad>", "▁small", "<unk>", "▁", "ed", "</s>", "<pad>"]
    ids = [MARIAN_VOCABULARY[piece] for piece in pieces]
    assert progress(handmade_marian, ids, "token") == [0, 1, 2, 3, 4, 4, 4]
    ids = handmade_bart.convert_tokens_to_ids(["</s>", "<s>", "small", "Ġtext", "ðŁ", "ĺĢ", "</s>", "<pad>"])
    assert progress(handmade_bart, ids, "token") == [0, 0, 1, 2, 3, 4, 4, 4]


def test_a_batch_of_rows_of_different_lengths(handmade_marian):
    table = UnitTable.from_tokenizer(handmade_marian, "character")
    ids = torch.tensor([[2, 4, 3, 5, 0], [2, 5, 0, 2, 2], [2, 2, 2, 2, 2], [2, 3, 8, 8, 6]])
    expected = [[0, 5, 6, 8, 8], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 0, 1, 4, 6]]
    actual = table.progress(ids)
    assert actual.tolist() == expected
    assert actual.dtype == torch.int64
    assert table.count(ids).tolist() == [8, 1, 0, 6]
    assert table.states_after(ids).tolist() == [
        [0, 1, 2, 1, 1],
        [0, 1, 1, 1, 1],
        [0, 0, 0, 0, 0],
        [0, 0, 1, 1, 1],
    ]


def test_white_space_that_sentencepiece_keeps_is_dropped_before_the_first_word_too(tmp_path):
    # U+0085 is white space to Python, so decoding strips it, but SentencePiece does not turn it into a space
    tokenizer = train_marian_tokenizer(["a\x85b"], ["a\x85b"], tmp_path, target_vocabulary="character")
    ids = [tokenizer.target_encoder[c] for c in "\x85a\x85b"]
    assert decode(tokenizer, ids) == "a\x85b"
    assert progress(tokenizer, ids) == [0, 1, 2, 3]
    assert progress(tokenizer, ids, "word") == [0, 1, 1, 2]


# Counts against decoded text


KINDS = ["bart", "bert", "byte fallback", "m2m_100", "marian", "mbart", "nllb", "pegasus", "t5"]


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tokenizers_of_every_kind):
    """A tokenizer with its tables and the ids that its tests draw from."""
    tokenizer = tokenizers_of_every_kind[request.param]
    special = sorted(set(tokenizer.all_special_ids))
    vocabulary = {piece: i for piece, i in tokenizer.get_vocab().items() if i not in special}
    return SimpleNamespace(
        name=request.param,
        tokenizer=tokenizer,
        tables={unit: UnitTable.from_tokenizer(tokenizer, unit) for unit in UNITS},
        special=special,
        vocabulary=vocabulary,
        blank=[i for piece, i in vocabulary.items() if piece.startswith("▁")] or list(vocabulary.values()),
        # Marian and M2M100 strip white space that ends a text, the tables count it: rows end on one of these
        dark=[i for piece, i in vocabulary.items() if not piece.replace("▁", " ")[-1:].isspace()],
        strips=request.param in ("m2m_100", "marian"),
    )


def assert_counts_the_decoded_text(kind, ids: list[int]) -> str:
    text = decode(kind.tokenizer, ids)
    counted = {unit: int(table.count(torch.tensor([ids]))) for unit, table in kind.tables.items()}
    assert counted == {unit: count_units(text, unit) for unit in UNITS}, (ids, text)
    return text


SPACES = [*" \n\t\xa0\u1680\u2003\u2009\u2028\u2029\u3000\x1c\x1d\x1e\x1f\x85", "  ", " \u3000"]
LETTERS = [
    "日",
    "本",
    "語",
    "〃",
    "e\u0301",
    "a\u0308",
    "ï",
    "é",
    "😀",
    "👍🏽",
    "👨\u200d👩\u200d👧",
    "ש",
    "ל",
    "\u200b",
]
multilingual = st.one_of(
    st.lists(st.sampled_from([*"abcdelmst.,'▁", *LETTERS, *SPACES]), max_size=20).map("".join),
    st.lists(st.sampled_from([*TARGETS, *LETTERS, *SPACES]), max_size=6).map(" ".join),
    st.text(max_size=10),
)
wide = st.lists(
    st.sampled_from(["\u2003", "\u3000", "\u2028", "\u1680", "語", "〃", "é", "\xa0", "😀", "a"]), max_size=14
)
seeds = st.integers(0, 2**32 - 1)


def with_special_tokens(kind, ids: list[int], draw: random.Random, share: float) -> list[int]:
    """The row with special tokens sprinkled in, in runs as well."""
    row: list[int] = []
    for i in ids:
        while draw.random() < share:
            row.append(draw.choice(kind.special))
        row.append(i)
    return row


def pieces_for(kind, text: str, draw: random.Random, longest: int) -> list[int]:
    """Any split of a text into the pieces of a vocabulary that holds all bytes, none with more than `longest`."""
    ids = []
    if kind.name == "bart":
        rest = "".join(pieces_of(text))
        while rest:
            fitting = [n for n in range(1, longest + 1) if rest[:n] in kind.vocabulary]
            size = draw.choice(fitting)
            ids.append(kind.vocabulary[rest[:size]])
            rest = rest[size:]
        return ids
    for character in text.replace(" ", "▁"):
        if longest > 1 and character in kind.vocabulary and draw.random() < 0.5:
            ids.append(kind.vocabulary[character])
        else:
            ids += [kind.vocabulary[f"<0x{byte:02X}>"] for byte in character.replace("▁", " ").encode("utf-8")]
    return ids


@settings(deadline=None, max_examples=150)
@given(text=multilingual)
@example(text="日本語の文字 e\u0301a\u0308\u0323 👨\u200d👩\u200d👧👍🏽 שלום")
@example(text=" \u3000\xa0\xad\x00\x7f\x85\U0010ffff\x1c\u1680a\u2028 b")
@example(text="  small text editor,\n\nnaïve  café")
@example(text="")
def test_the_ids_of_a_text_count_what_they_decode_to(kind, text):
    ids = kind.tokenizer(text + "." if kind.strips else text)["input_ids"]
    decoded = assert_counts_the_decoded_text(kind, [*ids, kind.tokenizer.pad_token_id])
    if kind.name == "bart" and "<" not in text:
        assert decoded == text  # so the counts are those of the text


@settings(deadline=None, max_examples=150)
@given(text=multilingual, seed=seeds, size=st.integers(1, 12), share=st.sampled_from([0.0, 0.2, 0.6]))
def test_random_ids_count_what_they_decode_to(kind, text, seed, size, share):
    draw = random.Random(seed)
    if kind.name in ("bart", "byte fallback"):  # whole characters, cut anywhere
        ids = pieces_for(kind, text, draw, longest=size)
    else:
        every = list(kind.vocabulary.values())
        ids = [draw.choice(kind.blank if draw.random() < 0.3 else every) for _ in range(size)]
        ids.append(draw.choice(kind.dark))
    assert_counts_the_decoded_text(kind, [*with_special_tokens(kind, ids, draw, share), kind.special[0]])


@settings(deadline=None, max_examples=200)
@given(text=wide.map("".join), seed=seeds, share=st.sampled_from([0.0, 0.3]))
@example(text="語\u2003語\u2003\u2003〃\u3000〃", seed=0, share=0.0)
@pytest.mark.parametrize("kind", ["bart", "byte fallback"], indirect=True)
def test_single_byte_tokens_of_wide_white_space_count_what_they_decode_to(kind, text, seed, share):
    draw = random.Random(seed)
    ids = with_special_tokens(kind, pieces_for(kind, text, draw, longest=1), draw, share)
    ids.append(kind.special[0])
    decoded = assert_counts_the_decoded_text(kind, ids)
    assert kind.name != "bart" or decoded == text


@settings(deadline=None, max_examples=100)
@given(texts=st.lists(st.sampled_from(TARGETS), min_size=1, max_size=3).map(" ".join))
def test_progress_runs_from_zero_to_the_texts_length(shared_tokenizer, character_tokenizer, texts):
    for tokenizer in (shared_tokenizer, character_tokenizer):
        ids = tokenizer(text_target=texts)["input_ids"]  # ends on EOS
        assert decode(tokenizer, ids) == texts
        for unit, length in (("character", len(texts)), ("word", len(texts.split())), ("byte", len(texts))):
            row = progress(tokenizer, [tokenizer.pad_token_id, *ids[:-1]], unit)
            assert row[0] == 0
            assert row[-1] == length  # on the step that must emit EOS
            assert row == sorted(row)


def test_progress_of_a_character_decoder_is_its_position(character_tokenizer):
    for text in TARGETS:
        ids = [character_tokenizer.pad_token_id, *character_tokenizer(text_target=text)["input_ids"][:-1]]
        assert progress(character_tokenizer, ids) == list(range(len(text) + 1))
        assert progress(character_tokenizer, ids, "token") == list(range(len(text) + 1))


# The machine


def run_one_by_one(table: UnitTable, ids: list[int]) -> tuple[list[int], list[int]]:
    """States and units after each entry, by the rule that the table's docstring states."""
    weights, following = table.weights.tolist(), table.next_state.tolist()
    state = units = 0
    states, progress = [], []
    for i in ids:
        weight = weights[state][i]
        units += weight if weight >= 0 else -weight - 1
        state = following[state][i]
        states.append(state)
        progress.append(units)
    return states, progress


@settings(deadline=None, max_examples=100)
@given(seed=seeds, special=st.sampled_from([0.0, 0.3, 0.8]), text=st.lists(multilingual, max_size=4).map("".join))
def test_long_rows_count_as_the_machine_run_one_entry_at_a_time(kind, seed, special, text):
    draw = random.Random(seed)
    every = list(kind.vocabulary.values())
    ids = [draw.choice(kind.special if draw.random() < special else every) for _ in range(60)]
    rows = [ids]
    if kind.name in ("bart", "byte fallback"):  # rows without a broken character, too
        row = with_special_tokens(kind, pieces_for(kind, text, draw, longest=draw.choice([1, 3])), draw, special)
        rows.append([*row, *[kind.special[0]] * 60][:60])
    for table in kind.tables.values():
        expected = [run_one_by_one(table, row) for row in rows]
        batch = torch.tensor(rows)
        assert table.states_after(batch).tolist() == [states for states, _ in expected]
        assert table.progress(batch).tolist() == [progress for _, progress in expected]
        count, state = table.count_and_state(batch)
        assert count.tolist() == [progress[-1] for _, progress in expected]
        assert state.tolist() == [states[-1] for states, _ in expected]


@pytest.mark.parametrize("unit", ["token", *UNITS])
def test_rows_without_ids_count_nothing_and_end_at_the_start(handmade_marian, unit):
    count, state = UnitTable.from_tokenizer(handmade_marian, unit).count_and_state(torch.zeros(2, 0, dtype=torch.long))
    assert (count.tolist(), state.tolist()) == ([0, 0], [0, 0])


@settings(deadline=None, max_examples=40)
@given(seed=seeds, sizes=st.lists(st.integers(1, 9), min_size=2, max_size=5))
def test_a_row_in_a_padded_batch_is_counted_as_it_is_alone(kind, seed, sizes):
    draw = random.Random(seed)
    every = [*kind.vocabulary.values(), *kind.special * 5]
    rows = [[draw.choice(every) for _ in range(size)] for size in sizes]
    width = max(sizes)
    batch = torch.tensor([row + [kind.tokenizer.pad_token_id] * (width - len(row)) for row in rows])
    for table in (*kind.tables.values(), UnitTable.from_tokenizer(kind.tokenizer, "token")):
        actual = table.progress(batch)
        alone = [table.progress(torch.tensor([row]))[0].tolist() for row in rows]
        assert [line[: len(row)] for line, row in zip(actual.tolist(), alone, strict=True)] == alone
        assert table.count(batch).tolist() == [row[-1] for row in alone]


# The table as a module


def test_a_resized_table_keeps_its_entries_and_marks_new_ones(handmade_marian):
    table = UnitTable.from_tokenizer(handmade_marian, "character")
    config = LenCtrlMarianConfig(length_unit="character", unit_states=3)
    larger = table.resized(15, config)
    assert larger.unit == "character"
    assert larger.weights.tolist() == [row + [NOT_FILLED] * 2 for row in columns(0)]
    assert larger.next_state.tolist() == [row + [NO_STATE] * 2 for row in columns(2)]
    with pytest.raises(ValueError, match=r"cannot count characters; call model.set_unit_table\(tokenizer\)"):
        larger.count(torch.tensor([[4]]))
    smaller = table.resized(6, config)
    assert smaller.weights.tolist() == [row[:6] for row in columns(0)]
    assert smaller.progress(torch.tensor([[2, 4, 5]])).tolist() == [[0, 5, 7]]
    assert table.weights.tolist() == columns(0)  # left as it was


def test_new_entries_of_a_token_table_count_one():
    config = LenCtrlBartConfig()
    table = UnitTable.from_config(config, 5).resized(8, config)
    assert table.weights.tolist() == [[0, 0, 0, 1, 1, 1, 1, 1]]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("config_class", [LenCtrlBartConfig, LenCtrlMarianConfig])
def test_an_unfilled_table_says_how_to_fill_it(config_class, unit):
    table = UnitTable.from_config(config_class(length_unit=unit), 6)
    with pytest.raises(ValueError, match=rf"cannot count {unit}s; call model.set_unit_table\(tokenizer\)"):
        table.progress(torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match="set_unit_table"):
        table.count(torch.tensor([[0, 1]]))


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_weights_are_int32_whatever_the_model_is_cast_to(dtype):
    table = UnitTable("character", torch.tensor([[0, 1], [0, 2]], dtype=dtype), torch.tensor([[0, 1], [1, 1]]))
    for cast in (table, table.to(torch.bfloat16), table.half()):
        assert (cast.weights.dtype, cast.next_state.dtype) == (torch.int32, torch.uint8)
    assert table.progress(torch.tensor([[1, 1]])).tolist() == [[1, 3]]


class Holder(nn.Module):
    """Stands for a decoder."""

    def __init__(self, table: UnitTable):
        super().__init__()
        self.unit_table = table


def test_a_table_is_saved_and_loaded_with_the_model_that_holds_it(handmade_marian, tmp_path):
    torch.save(Holder(UnitTable.from_tokenizer(handmade_marian, "character")).state_dict(), tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert list(state) == ["unit_table.weights", "unit_table.next_state"]
    assert [value.dtype for value in state.values()] == [torch.int32, torch.uint8]
    config = LenCtrlMarianConfig(length_unit="character", unit_states=3)
    loaded = Holder(UnitTable.from_config(config, len(MARIAN_VOCABULARY)))
    loaded.load_state_dict(state)
    assert loaded.unit_table.weights.tolist() == columns(0)
    assert loaded.unit_table.next_state.tolist() == columns(2)
    assert loaded.unit_table.progress(torch.tensor([[2, 4, 5]])).tolist() == [[0, 5, 7]]


def test_a_table_in_use_notices_that_an_unfilled_one_was_loaded(handmade_marian):
    table = UnitTable.from_tokenizer(handmade_marian, "character")
    table.progress(torch.tensor([[2, 4, 5]]))
    config = LenCtrlMarianConfig(length_unit="character", unit_states=3)
    table.load_state_dict(UnitTable.from_config(config, len(MARIAN_VOCABULARY)).state_dict())
    with pytest.raises(ValueError, match="set_unit_table"):
        table.progress(torch.tensor([[2, 4, 5]]))


# What decoding skips, and single bytes


SPECIAL_AND_PLAIN = [("<S>", True), ("<T U>", True), ("<N>", False), ("é", False), ("Ġq", False), ("\n", False)]


@pytest.mark.parametrize("name", KINDS)
def test_what_decoding_skips_weighs_nothing(tokenizers_of_every_kind, name):  # issue 15.2
    """An `AddedToken(special=True)` is in no `all_special_ids`, and yet fast tokenizers skip it."""
    tokenizer = copy.deepcopy(tokenizers_of_every_kind[name])
    tokenizer.add_tokens([AddedToken(text, special=special) for text, special in SPECIAL_AND_PLAIN])
    added = [tokenizer.convert_tokens_to_ids(text) for text, _ in SPECIAL_AND_PLAIN]
    tables = {unit: UnitTable.from_tokenizer(tokenizer, unit) for unit in UNITS}
    draw = random.Random(0)
    every = list(range(len(tokenizer)))
    checked = 0
    for row in range(300):
        ids = [draw.choice(added if draw.random() < 0.4 else every) for _ in range(row % 7)] + [added[2]]
        text = decode(tokenizer, ids)
        if "\ufffd" in text:
            continue  # bytes that are no text: only the ids know them
        for unit, table in tables.items():
            if (table.weights[0, ids] >= 0).all() and table.weights[1:2, ids].ge(0).all():
                assert int(table.count(torch.tensor([ids]))) == count_units(text, unit), (unit, ids, text)
                checked += 1
    assert checked > 150


@pytest.fixture(scope="module", params=["marian", "m2m_100"])
def stripping_byte_fallback(request, tmp_path_factory):
    """SentencePiece whose unknown characters are bytes, in the two tokenizers that call it from Python."""
    folder = tmp_path_factory.mktemp("fallback")
    (folder / "text.txt").write_text("\n".join(TARGETS * 9), encoding="utf-8")
    options = {"vocab_size": 300, "byte_fallback": True, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"), model_prefix=str(folder / "source"), **options
    )
    spm = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.model"))
    special = ["</s>", "<unk>", "<pad>"] if request.param == "marian" else ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = special + [spm.id_to_piece(i) for i in range(3, len(spm))]
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), encoding="utf-8")
    model = str(folder / "source.model")
    if request.param == "marian":
        return MarianTokenizer(model, model, str(vocabulary), clean_up_tokenization_spaces=False)
    return M2M100Tokenizer(str(vocabulary), model)


def test_a_byte_piece_is_the_character_it_decodes_to(stripping_byte_fallback):  # issue 15.15
    tokenizer = stripping_byte_fallback
    texts = ["a\x0bb", "a\tb", "x\x0b\x0by", "日\x0b本", "a\x1cb", "~{}~", "é"]
    letter = {piece: i for piece, i in tokenizer.get_vocab().items()}
    for text in texts:
        ids = [letter[f"<0x{byte:02X}>"] for byte in text.encode("utf-8")]
        assert decode(tokenizer, ids) == text
        for unit in UNITS:
            assert progress(tokenizer, ids, unit)[-1] == count_units(text, unit), (unit, text)
    assert progress(tokenizer, [letter["<0x0B>"], letter["<0x61>"], letter["<0x0B>"], letter["<0x61>"]]) == [
        0,
        1,
        2,
        3,
    ]


# The unit of a checkpoint's table


@pytest.fixture(scope="module")
def character_checkpoint(shared_tokenizer, tmp_path_factory):
    """A model with its tokenizer beside it, and the same without."""
    folder, bare = tmp_path_factory.mktemp("with"), tmp_path_factory.mktemp("without")
    model = build_model("marian", **{**MARIAN, "vocab_size": len(shared_tokenizer)}, length_unit="character")
    model.set_unit_table(shared_tokenizer)
    model.save_pretrained(folder)
    model.save_pretrained(bare)
    shared_tokenizer.save_pretrained(folder)
    return folder, bare


@pytest.mark.parametrize("unit", ["token", "word", "byte"])
@pytest.mark.parametrize("by", ["argument", "config"])
def test_a_checkpoint_of_another_unit_is_counted_anew(character_checkpoint, shared_tokenizer, unit, by):  # issue 15.3
    folder, _ = character_checkpoint
    how = {"length_unit": unit}
    if by == "config":
        config = AutoConfig.from_pretrained(folder)
        config.length_unit = unit
        how = {"config": config}
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, **how)
    expected = UnitTable.from_tokenizer(shared_tokenizer, unit)
    assert (model.unit_table.unit, model.config.unit_states) == (unit, expected.states)
    assert torch.equal(model.unit_table.weights, expected.weights)
    assert torch.equal(model.unit_table.next_state, expected.next_state)
    base = AutoModel.from_pretrained(folder, **how)
    assert torch.equal(base.decoder.unit_table.weights, expected.weights)


@pytest.mark.parametrize("unit", ["token", "word", "byte"])
def test_a_checkpoint_of_another_unit_without_its_tokenizer_is_refused(character_checkpoint, unit):  # issue 15.3
    _, bare = character_checkpoint
    message = f"counts characters and has no tokenizer to count {unit}s with; leave length_unit='{unit}' out, or save"
    with pytest.raises(ValueError, match=message):
        AutoModelForSeq2SeqLM.from_pretrained(bare, length_unit=unit)
    assert AutoModelForSeq2SeqLM.from_pretrained(bare).unit_table.unit == "character"


def test_a_table_of_another_unit_than_the_configuration_names_is_not_saved(character_checkpoint, tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(character_checkpoint[1])  # issue 15.3
    model.config.length_unit = "word"
    with pytest.raises(ValueError, match="config.length_unit='word', but the model's table counts characters; call"):
        model.save_pretrained(tmp_path)
