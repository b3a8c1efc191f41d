"""Tests of the unit tables: written-out rows for hand-made vocabularies, and counts held against decoded text."""

import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from conftest import controlled_marian, save_in
from transformers.convert_slow_tokenizer import bytes_to_unicode

from hf_lenctrl import LenCtrlMarianConfig, UnitTable, count_units, train_marian_tokenizer
from hf_lenctrl.length_units import NO_STATE, NOT_FILLED, RunningCount


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


BYTES = bytes_to_unicode()  # byte -> character of byte-level BPE


def pieces_of(text: str) -> list[str]:
    """A text in the byte-level alphabet, one piece a byte."""
    return [BYTES[byte] for byte in text.encode("utf-8")]


@pytest.fixture(scope="module")
def handmade_marian(tmp_path_factory):
    folder = tmp_path_factory.mktemp("handmade")
    train_marian_tokenizer(["a b"], ["a b"], folder, target_vocabulary="shared")  # for the .spm, which joins pieces
    (folder / "handmade.json").write_text(json.dumps(MARIAN_VOCABULARY), encoding="utf-8")
    spm = str(folder / "source.spm")
    return transformers.MarianTokenizer(spm, spm, str(folder / "handmade.json"), clean_up_tokenization_spaces=False)


@pytest.fixture(scope="module")
def handmade_bart():
    """All bytes and a few pieces, some of which end or begin within a character."""
    more = ["small", "Ġtext", "æĹ", "¥æ", "ľ¬", "ðŁ", "ĺĢ"]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *BYTES.values(), *more]
    return transformers.BartTokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=[])


@pytest.fixture(scope="module")
def handmade_t5():
    """Metaspace: the spaces of a text's first piece are dropped, others are kept."""
    pieces = ["<pad>", "</s>", "<unk>", "▁small", "▁", "ed", "▁▁", "s▁a", "日本", "\u3000", "▁\n"]
    return transformers.T5Tokenizer(vocab=[(piece, 0.0) for piece in pieces], extra_ids=0)


def decode(tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def progress(tokenizer, ids: list[int], unit: str = "character") -> list[int]:
    return UnitTable.from_tokenizer(tokenizer, unit).progress(torch.LongTensor([ids]))[0].tolist()


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


@pytest.mark.parametrize("text", [None, ["a", "b"]])
@pytest.mark.parametrize("unit", ["character", "word", "sms"])
def test_count_units_takes_one_text(text, unit):
    with pytest.raises(TypeError, match="count_units takes one text, got .*; call it for each text"):
        count_units(text, unit)


def test_marian_tables_are_those_written_out(handmade_marian):
    for column, unit in enumerate(["character", "word"]):
        table = UnitTable.from_tokenizer(handmade_marian, unit)
        assert table.states == 3
        assert table.weights.tolist() == columns(column)
        assert table.next_state.tolist() == columns(2)


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


def test_a_config_may_name_several_or_missing_or_foreign_special_ids():
    config = SimpleNamespace(length_unit="token", eos_token_id=[0, 3], pad_token_id=None, forced_bos_token_id=99)
    assert UnitTable.from_config(config, 4).weights.tolist() == [[0, 1, 1, 0]]


ROWS = {
    "marian": [
        # decoder start, two words, EOS and padding
        (["<pad>", "▁small", "ed", "▁", "▁small", "</s>"], "smalled  small", [0, 5, 7, 8, 14, 14], [0, 1, 1, 1, 2, 2]),
        (["▁a", "</s>", "<pad>"], "a", [1, 1, 1], [1, 1, 1]),
        (["<pad>", "<pad>", "▁a", "▁a"], "a a", [0, 0, 1, 3], [0, 0, 1, 2]),
        (["▁", "▁", "▁small"], "small", [0, 0, 5], [0, 0, 1]),
        (["▁▁", "▁▁b", "a▁b"], "ba b", [0, 1, 4], [0, 1, 2]),
        (["日本", "e\u0301", "▁a"], "日本e\u0301 a", [2, 4, 6], [1, 1, 2], [6, 9, 11]),
        (["<pad>", "<unk>", "▁small", "<unk>", "▁a", "</s>"], "small a", [0, 0, 5, 5, 7, 7], [0, 0, 1, 1, 2, 2]),
        (["s▁", "▁small", "s▁", "▁", "ed"], "s  smalls  ed", [2, 8, 10, 11, 13], [1, 2, 2, 2, 3]),
        (["s▁", "<unk>", "ed"], "s ed", [2, 2, 4], [1, 1, 2]),  # what is left out joins nothing
        (["▁", "▁▁", "</s>"], "", [0, 0, 0], [0, 0, 0]),
        (["▁", "日本", "▁", "日本", "</s>"], "日本 日本", [0, 2, 3, 5, 5], [0, 1, 1, 2, 2], [0, 6, 7, 13, 13]),
    ],
    "bart": [
        # decoder start, forced BOS, text, EOS, padding
        (["</s>", "<s>", "small", "Ġtext", "</s>", "<pad>"], "small text", [0, 0, 5, 10, 10, 10], [0, 0, 1, 2, 2, 2]),
        # a first space is part of the text
        (["<s>", "Ġtext", "Ġ", "Ġtext"], " text  text", [0, 5, 6, 11], [0, 1, 1, 2]),
        # a character counts with its first byte, a word with its first whole character
        (["<s>", "æĹ", "¥æ", "ľ¬", "</s>"], "日本", [0, 1, 2, 2, 2], [0, 0, 1, 1, 1], [0, 2, 4, 6, 6]),
        (["ðŁ", "ĺĢ", "ð", "Ł", "ĺ", "Ģ"], "😀😀", [1, 1, 2, 2, 2, 2], [0, 1, 1, 1, 1, 1], [2, 4, 5, 6, 7, 8]),
        (["e", "Ì", "ģ"], "e\u0301", [1, 2, 2], [1, 1, 1], [1, 2, 3]),
        (["Â", "Ń", "a", "ġ", "Ā"], "\xada\x7f\x00", [1, 1, 2, 3, 4], [0, 1, 1, 1, 1], [1, 2, 3, 4, 5]),
        (["a", "Ċ"], "a\n", [1, 2], [1, 1]),
        (["small", "<unk>", "<mask>", "Ġtext"], "small text", [5, 5, 5, 10], [1, 1, 1, 2]),
        (["small", "small", "Ġ", "<mask>", "small"], "smallsmall small", [5, 10, 11, 11, 16], [1, 1, 1, 1, 2]),
    ],
    "t5": [
        (["<pad>", "▁small", "ed", "▁small", "</s>"], "smalled small", [0, 5, 7, 13, 13], [0, 1, 1, 2, 2]),
        (["▁", "▁small", "s▁a"], " smalls a", [0, 6, 9], [0, 1, 2]),
        # every space of the first piece is dropped, in its middle too
        (["▁▁", "ed", "▁▁", "ed"], "ed  ed", [0, 2, 4, 6], [0, 1, 1, 2]),
        (["<pad>", "s▁a", "s▁a"], "sas a", [0, 2, 5], [0, 1, 2]),
        (["日本", "\u3000", "日本", "</s>"], "日本\u3000日本", [2, 3, 5, 5], [1, 1, 2, 2], [6, 9, 15, 15]),
        (["ed", "▁\n", "<unk>", "ed", "▁"], "ed \ned ", [2, 4, 4, 6, 7], [1, 1, 1, 2, 2]),
    ],
}


@pytest.mark.parametrize("kind, row", [(kind, row) for kind, rows in ROWS.items() for row in rows])
def test_progress_is_the_one_written_out(request, kind, row):
    tokenizer = request.getfixturevalue(f"handmade_{kind}")
    pieces, text, characters, words, *utf8 = row
    ids = [MARIAN_VOCABULARY[p] for p in pieces] if kind == "marian" else tokenizer.convert_tokens_to_ids(pieces)
    assert decode(tokenizer, ids) == text  # the row was written for this text
    expected = {"character": characters, "word": words, "byte": utf8[0] if utf8 else characters}
    assert {unit: progress(tokenizer, ids, unit) for unit in UNITS} == expected


@pytest.mark.parametrize(
    "text, words",
    [
        ("a\x1cb\x1fc\nd\x85e", [1, 1, 2, 2, 3, 3, 4, 4, 4, 5]),
        ("a\u200bb", [1, 1, 1, 1, 1]),  # of no width, but no white space
        ("語\u2003語", [0, 0, 1, 1, 1, 1, 1, 1, 2]),  # nearly the same bytes: e2 80 83, e8 aa 9e
        ("\u3000〃\u3000\u3000、", [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2]),  # all of them start e3 80
        ("\u3000\u2003😀\u2009😀", [*[0] * 9, 1, 1, 1, 1, 1, 1, 1, 2]),
    ],
)
def test_words_of_single_byte_tokens_begin_after_wide_white_space(handmade_bart, text, words):
    ids = handmade_bart.convert_tokens_to_ids(pieces_of(text))
    assert decode(handmade_bart, ids) == text
    assert progress(handmade_bart, ids, "word") == words
    assert progress(handmade_bart, ids, "byte") == list(range(1, len(ids) + 1))


def test_progress_in_tokens(handmade_marian, handmade_bart):
    pieces = ["<pad>", "▁small", "<unk>", "▁", "ed", "</s>", "<pad>"]
    ids = [MARIAN_VOCABULARY[piece] for piece in pieces]
    assert progress(handmade_marian, ids, "token") == [0, 1, 2, 3, 4, 4, 4]  # an unknown word is written too
    ids = handmade_bart.convert_tokens_to_ids(["</s>", "<s>", "small", "<unk>", "<mask>", "ĺĢ", "</s>", "<pad>"])
    assert progress(handmade_bart, ids, "token") == [0, 0, 1, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("unit", ["token", *UNITS])
def test_rows_without_ids_count_nothing_and_end_at_the_start(handmade_marian, unit):
    found = UnitTable.from_tokenizer(handmade_marian, unit).count_and_state(torch.zeros(2, 0, dtype=torch.long))
    assert [part.tolist() for part in found] == [[0, 0], [0, 0]]


@pytest.mark.parametrize("unit", UNITS)
def test_a_table_of_a_configuration_waits_for_a_tokenizer(unit):
    table = UnitTable.from_config(LenCtrlMarianConfig(length_unit=unit, unit_states=3), 4)
    assert table.unit == unit
    assert table.weights.tolist() == [[NOT_FILLED] * 4] * 3
    assert table.next_state.tolist() == [[NO_STATE] * 4] * 3
    for call in (table.progress, table.count, table.count_and_state):
        with pytest.raises(ValueError, match=rf"cannot count {unit}s; call model.set_unit_table\(tokenizer\)"):
            call(torch.tensor([[0, 1]]))


def test_a_resized_table_keeps_its_entries_and_marks_new_ones(handmade_marian):
    table = UnitTable.from_tokenizer(handmade_marian, "character")
    config = LenCtrlMarianConfig(length_unit="character", unit_states=3)
    larger = table.resized(15, config)
    assert larger.unit == "character"
    assert larger.weights.tolist() == [row + [NOT_FILLED] * 2 for row in columns(0)]
    assert larger.next_state.tolist() == [row + [NO_STATE] * 2 for row in columns(2)]
    smaller = table.resized(6, config)
    assert smaller.weights.tolist() == [row[:6] for row in columns(0)]
    assert smaller.progress(torch.tensor([[2, 4, 5]])).tolist() == [[0, 5, 7]]
    assert table.weights.tolist() == columns(0)  # left as it was


def test_weights_are_int32_whatever_the_model_is_cast_to():
    table = UnitTable("character", torch.tensor([[0, 1], [0, 2]]), torch.tensor([[0, 1], [1, 1]]))
    for cast in (table, table.to(torch.bfloat16), table.half()):
        assert (cast.weights.dtype, cast.next_state.dtype) == (torch.int32, torch.uint8)
    assert table.progress(torch.tensor([[1, 1]])).tolist() == [[1, 3]]


def test_a_table_in_use_notices_that_an_unfilled_one_was_loaded(handmade_marian):
    table = UnitTable.from_tokenizer(handmade_marian, "character")
    table.progress(torch.tensor([[2, 4, 5]]))
    config = LenCtrlMarianConfig(length_unit="character", unit_states=3)
    table.load_state_dict(UnitTable.from_config(config, len(MARIAN_VOCABULARY)).state_dict())
    with pytest.raises(ValueError, match="set_unit_table"):
        table.progress(torch.tensor([[2, 4, 5]]))


@pytest.fixture(scope="module")
def character_checkpoint(shared_tokenizer, tmp_path_factory):
    """A model with its tokenizer beside it, and the same without."""
    model, folders = controlled_marian(shared_tokenizer), tmp_path_factory.mktemp("checkpoints")
    return save_in(folders / "with", model, shared_tokenizer), save_in(folders / "without", model)


@pytest.mark.parametrize(("unit", "by"), [("token", "argument"), ("word", "config")])
def test_a_checkpoint_of_another_unit_is_counted_anew(character_checkpoint, shared_tokenizer, unit, by):
    folder, trained = character_checkpoint[0], {"1%": 20, "50%": 40, "99%": 80, "max": 90}
    how = {"length_unit": unit}
    if by == "config":
        config = transformers.AutoConfig.from_pretrained(folder, trained_lengths=trained)
        config.length_unit = unit
        how = {"config": config}
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, **how)
    expected = UnitTable.from_tokenizer(shared_tokenizer, unit)
    assert (model.unit_table.unit, model.config.unit_states) == (unit, expected.states)
    assert model.config.trained_lengths is None  # those of the checkpoint are numbers of characters
    assert torch.equal(model.unit_table.weights, expected.weights)
    assert torch.equal(model.unit_table.next_state, expected.next_state)
    base = transformers.AutoModel.from_pretrained(folder, **how)
    assert torch.equal(base.decoder.unit_table.weights, expected.weights)


def test_a_checkpoint_without_its_tokenizer_is_not_loaded_or_saved_in_another_unit(character_checkpoint, tmp_path):
    load = transformers.AutoModelForSeq2SeqLM.from_pretrained
    with pytest.raises(ValueError, match="which counts characters, has no tokenizer to count words with; save one"):
        load(character_checkpoint[1], length_unit="word")
    model = load(character_checkpoint[1])
    model.config.length_unit = "word"
    with pytest.raises(ValueError, match="config.length_unit='word', but the model's table counts characters; call"):
        model.save_pretrained(tmp_path)


def test_a_unit_that_was_edited_in_the_configuration_is_refused(character_checkpoint, tmp_path):
    folder = Path(shutil.copytree(character_checkpoint[0], tmp_path / "edited"))
    config = (folder / "config.json").read_text(encoding="utf-8")
    (folder / "config.json").write_text(config.replace('"character"', '"byte"'), encoding="utf-8")
    message = "has length_unit='byte', but the table there counts characters; write 'character' there"
    for auto_class in (transformers.AutoModelForSeq2SeqLM, transformers.AutoModel):
        with pytest.raises(ValueError, match=message):
            auto_class.from_pretrained(folder)
    assert transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, length_unit="word").unit_table.unit == "word"


class FromTheStart:
    """A table that notes how many rows it counts from the start."""

    def __init__(self, table: UnitTable):
        self.table, self.after, self.rows = table, table.after, 0

    def count_and_state(self, ids, prompt):
        self.rows += len(ids)
        return self.table.count_and_state(ids, prompt)


@pytest.mark.parametrize("unit", UNITS)
def test_the_rows_of_a_search_are_counted_one_entry_a_step(handmade_bart, unit):
    table, draw = UnitTable.from_tokenizer(handmade_bart, unit), random.Random(0)
    counted = FromTheStart(table)
    running, rows = RunningCount(counted, prompt_length=2), [[5, 6, 7], [5, 6, 7], [8, 9, 10]]

    def check(ids):
        for _ in range(2):  # another processor asks again
            assert [each.tolist() for each in running(ids)] == [x.tolist() for x in table.count_and_state(ids[:, 2:])]

    for _ in range(40):
        check(torch.tensor(rows))
        kept = draw.choices(rows, k=draw.randint(1, 6))  # in another order and number, some twice
        rows = [[*row, draw.randrange(len(handmade_bart))] for row in kept]
    assert counted.rows == 3  # those of the first step
    check(torch.tensor([rows[0], [9] * len(rows[0])]))  # a row that no step had
    check(torch.tensor([rows[0][:9]]))
    check(torch.tensor([[5, 6]]))  # nothing but a prompt
    assert counted.rows == 3 + 2 + 1 + 1
