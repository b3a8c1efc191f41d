"""Columns of a terminal and costs of the user: counts of ids against the decoded text, and constraints in them."""

import functools
import itertools
import random
import re
import string
import unicodedata

import pytest
import regex
import torch
import transformers
import wcwidth
from conftest import TARGETS, plain_marian
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_length_units import decode

import hf_lenctrl
from hf_lenctrl import character_costs
from hf_lenctrl.text_units import unit_of


MORSE = {"a": 9, "e": 5, "t": 7, "o": 15, "n": 9, "i": 7, "s": 9, " ": 4}  # dots of time, with the pause after
COSTS = {
    "vowels": lambda text: sum(text.count(vowel) for vowel in "aeiouyAEIOUY日"),
    "morse": lambda text: sum(MORSE.get(character, 13) for character in text),
}
KINDS = ["bart", "bert", "byte fallback", "m2m_100", "marian", "nllb", "t5"]
WHOLE = ["bert", "m2m_100", "marian", "nllb", "t5"]  # no character is split over entries


@pytest.fixture(scope="module")
def tables(tokenizers_of_every_kind):
    """Name of a tokenizer and of a cost -> its table, built once."""

    @functools.cache
    def table_of(kind: str, cost: str) -> hf_lenctrl.UnitTable:
        named = {"unit": "width"} if cost == "width" else {"cost": COSTS[cost]}
        return hf_lenctrl.UnitTable.from_tokenizer(tokenizers_of_every_kind[kind], **named)

    return table_of


def columns_of(text: str) -> int:
    """`wcswidth` of the parts between control characters, which have no width."""
    return sum(max(0, wcwidth.wcswidth(part)) for part in re.split("[\x01-\x1f\x7f-\x9f]", text))


def test_a_text_has_the_columns_written_here():
    columns = {"": 0, "abc": 3, "日本": 4, "ﾊﾝｶｸ": 4, "한국": 4, "ab\ncd": 4, "a\tb": 2, "e\u0301": 1, "a\u200db": 1}
    columns |= {"👩\u200d👩\u200d👧": 2, "👍🏽": 2, "❤": 1, "❤\ufe0f": 2, "🇩🇪🇫🇷": 4}  # joined, or asked to be an emoji
    assert {text: hf_lenctrl.count_units(text, "width") for text in columns} == columns


texts = st.lists(
    st.one_of(
        st.sampled_from("ab1 #©日本☺⌚❤👩👧👍🏽🇩🇪क्षिम한กำ\u0301\u0903\u200d\ufe0e\ufe0f\u1160"),
        st.characters(min_codepoint=0x20, exclude_categories=["Cc", "Cs"]),
    ),
    max_size=12,
).map("".join)


@settings(deadline=None, max_examples=200)
@given(text=texts)
@example(text="⌚\ufe0e")
@example(text="क\u094d\u200d\u0937\u093f👩\u200d👧\ufe0f")
def test_the_machine_has_learned_wcswidth(text):
    """Character by character: the same columns, but more where one makes the text narrower."""
    machine = unit_of("width")
    context = columns = 0
    every_one_may_be_written = True
    for character in text:
        more, context, may = machine.step(context, machine.kind(character))
        columns, every_one_may_be_written = columns + more, every_one_may_be_written and may
    assert columns >= wcwidth.wcswidth(text)
    if every_one_may_be_written:
        assert columns == wcwidth.wcswidth(text)
    else:
        assert "\ufe0e" in text


def test_without_wcwidth_only_the_width_is_refused(monkeypatch, tokenizers_of_every_kind):
    monkeypatch.setattr(hf_lenctrl.character_costs, "wcswidth", None)
    unit_of.cache_clear()
    for call in (
        lambda: hf_lenctrl.count_units("a", "width"),
        lambda: hf_lenctrl.UnitTable.from_tokenizer(tokenizers_of_every_kind["bert"], "width"),
    ):
        with pytest.raises(ImportError, match="'width' counts with the package wcwidth; pip install wcwidth"):
            call()
    assert hf_lenctrl.UnitTable.from_tokenizer(tokenizers_of_every_kind["bert"], "character").states > 0
    unit_of.cache_clear()


@pytest.mark.parametrize(("kind", "piece"), [("bart", "Ā"), ("byte fallback", "<0x00>")])
def test_no_null_character_is_written_within_a_width(tables, tokenizers_of_every_kind, kind, piece):
    entry = tokenizers_of_every_kind[kind].convert_tokens_to_ids(piece)
    assert bool((tables(kind, "width").weights[:, entry] < 0).all())
    assert hf_lenctrl.count_units("a\0b", "width") == 2


@pytest.mark.parametrize(
    ("kind", "cost"), [*((kind, "width") for kind in KINDS), *itertools.product(WHOLE, COSTS), ("bart", "morse")]
)
def test_random_ids_count_what_they_decode_to(tokenizers_of_every_kind, tables, kind, cost):
    """Of whatever a constraint lets a model write: single bytes, marks, joiners, special tokens in between."""
    tokenizer, table, draw = tokenizers_of_every_kind[kind], tables(kind, cost), random.Random(7)
    weights, following = table.weights.tolist(), table.next_state.tolist()
    special = sorted(set(tokenizer.all_special_ids))
    entries = [i for i in range(len(weights[0])) if i not in special]

    @functools.cache
    def ways(state):  # states are rare that few entries lead to
        by: dict = {}
        for i in entries:
            if weights[state][i] >= 0:
                by.setdefault(following[state][i], []).append(i)
        return list(by.values())

    rows = []
    while len(rows) < 200:
        ids, state = [], 0
        least = draw.randint(1, 12)
        while len(ids) < least or (weights[state][special[0]] < 0 and len(ids) < 30):
            some = ways(state) if draw.random() < 0.5 else [entries]
            i = draw.choice(draw.choice(some)) if draw.random() < 0.9 else draw.choice(special)
            if weights[state][i] >= 0:
                ids.append(i)
                state = following[state][i]
        if weights[state][special[0]] >= 0:
            rows.append(ids)
    padded = torch.tensor([row + [tokenizer.pad_token_id] * (30 - len(row)) for row in rows])
    for ids, counted in zip(rows, table.count(padded).tolist(), strict=True):
        text = decode(tokenizer, ids)
        assert counted == (columns_of(text) if cost == "width" else COSTS[cost](text)), (ids, text)


@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_of_a_text_count_its_columns_and_never_fewer(tokenizers_of_every_kind, tables, kind):
    tokenizer, table, draw, exact = tokenizers_of_every_kind[kind], tables(kind, "width"), random.Random(3), 0
    pool = [*"abc日本語の文字éïש☺👍", "e\u0301", "👨\u200d👩\u200d👧", "👍🏽", "🇩🇪", "❤\ufe0f", "क्षि", "กำ", "한", " "]
    for _ in range(300):
        text = "".join(draw.choice(pool) for _ in range(8)) + "."
        ids = tokenizer(text)["input_ids"]
        counted, columns = int(table.count(torch.tensor([ids]))), columns_of(decode(tokenizer, ids))
        assert counted >= columns, text
        exact += counted == columns
    assert table.states <= 250  # a byte numbers them
    assert exact == 300 if kind in WHOLE else exact > 75, exact  # there is no state for every split flag and conjunct


def test_a_split_character_costs_when_its_last_byte_is_written(tokenizers_of_every_kind, tables):
    tokenizer = tokenizers_of_every_kind["byte fallback"]
    ids = [tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in "語e\u0301".encode()]
    assert tables("byte fallback", "width").progress(torch.tensor([ids])).tolist() == [[0, 0, 2, 3, 3, 3]]


def letters(text: str) -> int:
    return sum(character in string.ascii_letters for character in text)


def test_a_model_counts_a_cost_of_the_user_and_keeps_its_table(shared_tokenizer, tmp_path):
    cost = {"length_unit": "cost", "cost": letters}
    model = hf_lenctrl.add_length_control(plain_marian(shared_tokenizer), tokenizer=shared_tokenizer, **cost)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert loaded.unit_table.unit == loaded.config.length_unit == "cost"
    write = hf_lenctrl.LengthControlledGenerationPipeline(model=loaded, tokenizer=shared_tokenizer, device="cpu")
    for out in write(TARGETS[:2], length=[6, 11], length_constraint="exact"):
        assert out["length"] == letters(out["generated_text"]) == out["requested_length"]
    with pytest.raises(ValueError, match="unit of a text must be one of .* got 'cost'"):
        write(TARGETS[0], length_ratio=0.5)
    with pytest.raises(ValueError, match="saved with a cost cannot count a text; leave finish out"):
        write(TARGETS[0], length=9, length_constraint="max", finish="word")
    with pytest.raises(ValueError, match="unit='cost' is counted by cost=function"):
        hf_lenctrl.DataCollatorForLengthControl(shared_tokenizer, model=loaded)


NOT_SUMS = {
    "characters that a reader sees": lambda text: len(regex.findall(r"\X", text)),
    "composed characters": lambda text: len(unicodedata.normalize("NFC", text)),
    "emoji without their joiners": lambda text: len(re.sub("\u200d.", "", text)),
    "flags": lambda text: len(re.sub("[\U0001f1e6-\U0001f1ff]{2}", "x", text)),
    "a letter of two": lambda text: len(text.replace("gb", "x")),
    "kerning": lambda text: 10 * len(text) - text.count("xv"),
    "a link": lambda text: len(re.sub(r"https?://\S+", "x" * 23, text)),
    "words": lambda text: len(text.split()),
}


@pytest.mark.parametrize("cost", NOT_SUMS)
@pytest.mark.parametrize("kind", ["marian", "bart"])
def test_a_cost_that_joins_characters_is_refused(tokenizers_of_every_kind, kind, cost):
    with pytest.raises(ValueError, match="a cost must add up over characters, but cost"):
        hf_lenctrl.UnitTable.from_tokenizer(tokenizers_of_every_kind[kind], cost=NOT_SUMS[cost])


def test_a_cost_may_know_no_more_than_the_characters_of_the_vocabulary(shared_tokenizer):
    known = dict.fromkeys([*map(chr, range(32, 127)), "\ufffd"], 2)  # U+FFFD for an unknown token
    table = hf_lenctrl.UnitTable.from_tokenizer(shared_tokenizer, cost=lambda text: sum(known[c] for c in text))
    ids = shared_tokenizer("small editor", add_special_tokens=False)["input_ids"]
    assert int(table.count(torch.tensor([ids]))) == 24


@pytest.mark.parametrize(
    "given, message",
    [
        ({"cost": lambda text: len(text) * 0.5}, r"whole number, but cost\(''\) is 0\.0"),
        ({"cost": lambda text: bool(text)}, "whole number, but .* is False"),
        ({"cost": lambda text: -len(text)}, r"must cost 0 to 1024, a whole number, but cost\('.'\) is -1"),
        ({"cost": lambda text: 5000 * len(text)}, "must cost 0 to 1024, .* is 5000"),
        ({"cost": lambda text: 1 + len(text)}, r"no characters must cost 0, but cost\(''\) is 1"),
        ({"cost": lambda text: 0}, "a cost must count something"),
        ({"cost": lambda text: len(set(text))}, "must add up over characters, but cost"),
        ({"cost": len, "unit": "word"}, "is counted by cost=function, got unit='word'"),
        ({"unit": "cost"}, "unit='cost' is counted by cost=function"),
    ],
)
def test_a_cost_that_is_none_or_does_not_add_up_is_refused(shared_tokenizer, given, message):
    with pytest.raises(ValueError, match=message):
        hf_lenctrl.UnitTable.from_tokenizer(shared_tokenizer, **given)


def test_characters_that_are_not_asked_for_have_the_columns_of_the_first_one():
    around = [*character_costs._AROUND, ("\u1100", ""), ("", "\u1161"), ("", "\u200d\u00a9"), ("\U0001f3fd", "")]
    for points in character_costs._UNIFORM:
        columns = [
            {wcwidth.wcswidth(before + chr(point) + after) for point in points[::37]} for before, after in around
        ]
        assert columns == [{wcwidth.wcswidth(before + chr(points.start) + after)} for before, after in around]
