"""Tests of the unit tables: written-out rows for hand-made vocabularies, and counts held against decoded text."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from conftest import TARGETS
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn
from transformers import BartTokenizer, BertTokenizer, MarianTokenizer, PreTrainedTokenizerFast

from hf_lenctrl import LenCtrlBartConfig, LenCtrlMarianConfig, UnitTable, count_units, train_marian_tokenizer


MARIAN_VOCABULARY = {
    piece: i
    for i, piece in enumerate(
        # "é" is here an e with a combining accent: two code points
        ["</s>", "<unk>", "<pad>", "▁", "▁small", "▁a", "ed", "▁▁", "▁▁b", "a▁b", "日本", "e\u0301", "s▁"]
    )
}
MARIAN_WEIGHTS = [
    [0, 0],  # </s>
    [0, 0],  # <unk>, which decoding leaves out as it does every special token
    [0, 0],  # <pad>
    [0, 1],  # ▁
    [5, 6],  # ▁small
    [1, 2],  # ▁a
    [2, 2],  # ed
    [0, 2],  # ▁▁
    [1, 3],  # ▁▁b
    [3, 3],  # a▁b
    [2, 2],  # 日本
    [2, 2],  # e + accent
    [2, 2],  # s▁
]

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
    train_marian_tokenizer(
        ["a b"], ["a b"], folder, target_vocabulary="shared"
    )  # for the .spm, which only joins pieces
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
def trained_bart():
    """Byte-level BPE with merges learnt from text of several scripts, across characters too."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=BART_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        [*TARGETS, "日本語の文字", "文字の日本語", "naïve café", "😀👍🏽😀", "e\u0301a\u0308"] * 3, trainer
    )
    model = json.loads(tokenizer.to_str())["model"]
    return BartTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])


@pytest.fixture(scope="module", params=["shared_tokenizer", "character_tokenizer"])
def marian_tokenizer(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module", params=["shared_tokenizer", "character_tokenizer", "handmade_marian"])
def any_marian_tokenizer(request):
    return request.getfixturevalue(request.param)


def target_vocabulary(tokenizer) -> dict[str, int]:
    return tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder


def decode(tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def progress(tokenizer, ids: list[int], unit: str = "character") -> list[int]:
    return UnitTable.from_tokenizer(tokenizer, unit).progress(torch.LongTensor([ids]))[0].tolist()


# count_units


@pytest.mark.parametrize(
    "text, expected",
    [("", 0), (" a ", 3), ("naïve 日本", 8), ("e\u0301", 2), ("👨\u200d👩\u200d👧", 5), ("a\nb\tc", 5)],
)
def test_count_units_counts_code_points(text, expected):
    assert count_units(text, "character") == expected


@pytest.mark.parametrize("unit", ["token", "sentence", "characters", None])
def test_count_units_refuses_a_unit_that_text_alone_does_not_have(unit):
    with pytest.raises(ValueError, match=f"got {unit!r}; count tokens from ids, with UnitTable.count"):
        count_units("some text", unit)


# Tables


def test_marian_weights_leave_out_white_space_before_the_first_word(handmade_marian):
    assert UnitTable.from_tokenizer(handmade_marian, "character").weights.tolist() == MARIAN_WEIGHTS


def test_token_weights_are_one_but_for_special_tokens(handmade_marian, handmade_bart):
    weights = UnitTable.from_tokenizer(handmade_marian, "token").weights.tolist()
    assert weights == [[0, 0], [1, 1], [0, 0]] + [[1, 1]] * 10  # an unknown word is written too
    weights = UnitTable.from_tokenizer(handmade_bart, "token").weights.tolist()
    assert weights == [[0, 0], [0, 0], [0, 0], [1, 1], [0, 0]] + [[1, 1]] * (256 + 7)


def test_a_table_has_one_row_for_each_entry_of_the_target_vocabulary(shared_tokenizer, character_tokenizer):
    for unit in ("token", "character"):
        assert len(UnitTable.from_tokenizer(shared_tokenizer, unit).weights) == len(shared_tokenizer.encoder)
        table = UnitTable.from_tokenizer(character_tokenizer, unit)
        assert len(table.weights) == len(character_tokenizer.target_encoder) != len(character_tokenizer.encoder)


def test_a_config_gives_token_weights_without_a_tokenizer():
    marian = LenCtrlMarianConfig(
        vocab_size=5, pad_token_id=2, eos_token_id=0, decoder_start_token_id=2, forced_eos_token_id=0
    )
    assert UnitTable.from_config(marian, 5).weights.tolist() == [[0, 0], [1, 1], [0, 0], [1, 1], [1, 1]]
    bart = LenCtrlBartConfig(vocab_size=5)  # bos 0, pad 1, eos 2
    assert UnitTable.from_config(bart, 5).weights.tolist() == [[0, 0], [0, 0], [0, 0], [1, 1], [1, 1]]


def test_a_config_may_name_several_or_missing_or_foreign_special_ids():
    config = SimpleNamespace(length_unit="token", eos_token_id=[0, 3], pad_token_id=None, forced_bos_token_id=99)
    assert UnitTable.from_config(config, 4).weights.tolist() == [[0, 0], [1, 1], [1, 1], [0, 0]]


@pytest.mark.parametrize("unit", ["sentence", "Character", None])
def test_an_unknown_unit_is_refused(handmade_bart, unit):
    with pytest.raises(ValueError, match=f"unit must be .*'token'.*'character'.* got {unit!r}"):
        UnitTable.from_tokenizer(handmade_bart, unit)


def test_characters_of_a_wordpiece_tokenizer_are_refused():
    tokenizer = BertTokenizer(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "a": 5, "##b": 6})
    message = re.escape("byte-level BPE (BartTokenizer), got BertTokenizer; use one of these or length_unit='token'")
    with pytest.raises(ValueError, match=message):
        UnitTable.from_tokenizer(tokenizer, "character")
    assert progress(tokenizer, [2, 5, 6, 1, 3, 0], "token") == [0, 1, 2, 3, 3, 3]


def test_characters_of_a_tokenizer_without_a_decoder_are_refused():
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    with pytest.raises(ValueError, match="unit 'character' needs a tokenizer that decodes SentencePiece"):
        UnitTable.from_tokenizer(tokenizer, "character")


# Written-out rows


@pytest.mark.parametrize(
    "pieces, text, expected",
    [
        # decoder start, two words, and the step that must emit EOS; then EOS and padding
        (["<pad>", "▁small", "ed", "▁", "▁small", "</s>", "<pad>"], "smalled  small", [0, 5, 7, 8, 14, 14, 14]),
        (["<pad>", "<pad>", "▁a", "▁a"], "a a", [0, 0, 1, 3]),
        (["▁", "▁", "▁small"], "small", [0, 0, 5]),
        (["▁▁", "▁▁b", "a▁b"], "ba b", [0, 1, 4]),
        (["日本", "e\u0301", "▁a"], "日本e\u0301 a", [2, 4, 6]),
        (["<pad>", "<unk>", "▁small", "<unk>", "▁a", "</s>"], "small a", [0, 0, 5, 5, 7, 7]),
        (["s▁", "▁small", "s▁", "▁", "ed"], "s  smalls  ed", [2, 8, 10, 11, 13]),
        (["▁", "▁▁", "</s>"], "", [0, 0, 0]),
    ],
)
def test_marian_progress_in_characters(handmade_marian, pieces, text, expected):
    ids = [MARIAN_VOCABULARY[piece] for piece in pieces]
    assert decode(handmade_marian, ids) == text  # the row was written for this text
    assert progress(handmade_marian, ids) == expected


@pytest.mark.parametrize(
    "pieces, text, expected",
    [
        # decoder start, forced BOS, text, EOS, padding
        (["</s>", "<s>", "small", "Ġtext", "</s>", "<pad>", "<pad>"], "small text", [0, 0, 5, 10, 10, 10, 10]),
        (["<s>", "Ġtext", "Ġ", "Ġtext"], " text  text", [0, 5, 6, 11]),  # a first space is part of the text
        # pieces that end within a character count it, the rest of it counts nothing
        (["<s>", "æĹ", "¥æ", "ľ¬", "</s>"], "日本", [0, 1, 2, 2, 2]),
        (["ðŁ", "ĺĢ", "ð", "Ł", "ĺ", "Ģ"], "😀😀", [1, 1, 2, 2, 2, 2]),
        (["e", "Ì", "ģ"], "e\u0301", [1, 2, 2]),
        (["Â", "Ń", "a", "ġ", "Ā", "Ċ"], "\xada\x7f\x00\n", [1, 1, 2, 3, 4, 5]),
        (["small", "<unk>", "<mask>", "Ġtext"], "small text", [5, 5, 5, 10]),
    ],
)
def test_byte_level_progress_in_characters(handmade_bart, pieces, text, expected):
    ids = handmade_bart.convert_tokens_to_ids(pieces)
    assert decode(handmade_bart, ids) == text
    assert progress(handmade_bart, ids) == expected


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


def test_white_space_that_sentencepiece_keeps_is_dropped_before_the_first_word_too(tmp_path):
    # U+0085 is white space to Python, so decoding strips it, but SentencePiece does not turn it into a space
    tokenizer = train_marian_tokenizer(["a\x85b"], ["a\x85b"], tmp_path, target_vocabulary="character")
    ids = [tokenizer.target_encoder[c] for c in "\x85a\x85b"]
    assert decode(tokenizer, ids) == "a\x85b"
    assert progress(tokenizer, ids) == [0, 1, 2, 3]


# Counts against decoded text


words = st.text(alphabet=sorted(set("".join(TARGETS)) - {" "}), min_size=1, max_size=8)


@settings(deadline=None)
@given(texts=st.lists(words, min_size=1, max_size=6).map(" ".join))
def test_marian_progress_runs_from_zero_to_the_texts_length(marian_tokenizer, texts):
    ids = marian_tokenizer(text_target=texts)["input_ids"]  # ends on EOS
    assert decode(marian_tokenizer, ids) == texts
    decoder_input_ids = [marian_tokenizer.pad_token_id, *ids[:-1]]
    row = progress(marian_tokenizer, decoder_input_ids)
    assert row[0] == 0
    assert row[-1] == len(texts)  # on the step that must emit EOS
    assert row == sorted(row)


@settings(deadline=None)
@given(texts=st.lists(words, min_size=1, max_size=6).map(" ".join))
def test_progress_of_a_character_decoder_is_its_position(character_tokenizer, texts):
    decoder_input_ids = [character_tokenizer.pad_token_id, *character_tokenizer(text_target=texts)["input_ids"][:-1]]
    assert progress(character_tokenizer, decoder_input_ids) == list(range(len(texts) + 1))
    assert progress(character_tokenizer, decoder_input_ids, "token") == list(range(len(texts) + 1))


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_marian_counts_what_random_ids_decode_to(any_marian_tokenizer, data):
    tokenizer = any_marian_tokenizer
    vocabulary = target_vocabulary(tokenizer)
    any_id = st.sampled_from(sorted(vocabulary.values()))
    blank = st.sampled_from([i for piece, i in sorted(vocabulary.items()) if piece.startswith("▁")])
    special = st.sampled_from([0, 1, 2])
    # Marian strips white space from the end of a text as well: end on a piece that has none there
    last = st.sampled_from([i for piece, i in sorted(vocabulary.items()) if i > 2 and not piece.endswith("▁")])
    ids = data.draw(st.lists(st.one_of(any_id, blank, special), max_size=8))
    ids = [*ids, data.draw(last), *data.draw(st.lists(special, max_size=3))]
    assert int(UnitTable.from_tokenizer(tokenizer, "character").count(torch.tensor([ids]))) == len(
        decode(tokenizer, ids)
    )


@settings(deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="<")))
@example(text="日本語の文字")
@example(text="e\u0301a\u0308\u0323")
@example(text="👨\u200d👩\u200d👧👍🏽")
@example(text=" \u3000\xa0\xad\x00\x7f\x85\U0010ffff ")
@example(text="small text editor, naïve café")
def test_byte_level_counts_the_characters_of_a_text(trained_bart, text):
    ids = trained_bart(text)["input_ids"]
    assert decode(trained_bart, ids) == text
    row = progress(trained_bart, [trained_bart.eos_token_id, *ids[:-1]])
    assert row[:2] == [0, 0]  # decoder start and BOS
    assert row[-1] == len(text)


@settings(deadline=None)
@given(text=st.text(min_size=1, max_size=12), data=st.data())
@example(text="日本語の文字😀👍🏽", data=None)
def test_byte_level_counts_any_split_of_a_text_into_pieces(trained_bart, text, data):
    vocabulary = trained_bart.get_vocab()
    special = set(trained_bart.all_special_ids)
    rest, ids = "".join(pieces_of(text)), []
    while rest:
        fitting = sorted(
            (piece for piece, i in vocabulary.items() if i not in special and rest.startswith(piece)), key=len
        )
        piece = data.draw(st.sampled_from(fitting)) if data else fitting[-1]
        rest = rest.removeprefix(piece)
        ids.append(vocabulary[piece])
        if data and data.draw(st.booleans()):
            ids.append(data.draw(st.sampled_from(sorted(special))))
    assert decode(trained_bart, ids) == text
    assert int(UnitTable.from_tokenizer(trained_bart, "character").count(torch.tensor([ids]))) == len(text)


@settings(deadline=None)
@given(data=st.data(), unit=st.sampled_from(["token", "character"]))
def test_a_row_in_a_batch_is_counted_as_it_is_alone(handmade_marian, data, unit):
    ids = st.sampled_from(sorted(MARIAN_VOCABULARY.values()))
    rows = data.draw(st.lists(st.lists(ids, min_size=1, max_size=7), min_size=2, max_size=5))
    width = max(map(len, rows))
    batch = torch.tensor([row + [2] * (width - len(row)) for row in rows])  # right-padded
    table = UnitTable.from_tokenizer(handmade_marian, unit)
    actual = table.progress(batch)
    alone = [table.progress(torch.tensor([row]))[0].tolist() for row in rows]
    assert [line[: len(row)] for line, row in zip(actual.tolist(), alone, strict=True)] == alone
    assert table.count(batch).tolist() == [row[-1] for row in alone]


# The table as a module


@pytest.mark.parametrize("config_class", [LenCtrlBartConfig, LenCtrlMarianConfig])
def test_an_unfilled_table_says_how_to_fill_it(config_class):
    table = UnitTable.from_config(config_class(length_unit="character"), 6)
    with pytest.raises(ValueError, match=r"cannot count characters; call model.set_unit_table\(tokenizer\)"):
        table.progress(torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match="set_unit_table"):
        table.count(torch.tensor([[0, 1]]))


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_weights_are_int32_whatever_the_model_is_cast_to(dtype):
    table = UnitTable(torch.tensor([[0, 0], [1, 2]], dtype=dtype))
    assert table.weights.dtype == torch.int32
    assert table.to(torch.bfloat16).weights.dtype == torch.int32
    assert table.half().weights.dtype == torch.int32
    assert table.progress(torch.tensor([[1, 1]])).tolist() == [[1, 3]]


class Holder(nn.Module):
    """Stands for a decoder."""

    def __init__(self, table: UnitTable):
        super().__init__()
        self.unit_table = table


def test_a_table_is_saved_and_loaded_with_the_model_that_holds_it(handmade_marian, tmp_path):
    torch.save(Holder(UnitTable.from_tokenizer(handmade_marian, "character")).state_dict(), tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert list(state) == ["unit_table.weights"]
    assert state["unit_table.weights"].dtype == torch.int32
    config = LenCtrlMarianConfig(length_unit="character")
    loaded = Holder(UnitTable.from_config(config, len(MARIAN_VOCABULARY)))
    loaded.load_state_dict(state)
    assert loaded.unit_table.weights.tolist() == MARIAN_WEIGHTS
    assert loaded.unit_table.progress(torch.tensor([[2, 4, 5]])).tolist() == [[0, 5, 7]]


def test_a_table_in_use_notices_that_an_unfilled_one_was_loaded(handmade_marian):
    table = UnitTable.from_tokenizer(handmade_marian, "character")
    table.progress(torch.tensor([[2, 4, 5]]))
    empty = UnitTable.from_config(LenCtrlMarianConfig(length_unit="character"), len(MARIAN_VOCABULARY))
    table.load_state_dict(empty.state_dict())
    with pytest.raises(ValueError, match="set_unit_table"):
        table.progress(torch.tensor([[2, 4, 5]]))
