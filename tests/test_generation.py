"""Hard bounds on hand-made tables and on untrained models of every family, ensembles, and re-ranking."""

import copy
import functools
import itertools
import json
import logging
import math
import multiprocessing
import pickle
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from conftest import SHAPE, build_model, in_names_of, make_tokenizers
from huggingface_hub.errors import StrictDataclassClassValidationError
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSeq2SeqLM, LogitsProcessorList

import hf_lenctrl
from hf_lenctrl import (
    LengthConstraintLogitsProcessor,
    LengthControlEnsemble,
    UnitTable,
    count_units,
    rerank,
    train_marian_tokenizer,
)
from hf_lenctrl.length_constraint import _Rows


NO = -math.inf
UNITS = ["token", "character", "word", "byte"]
CONSTRAINTS = ["max", "exact"]

# Five families, each with a tokenizer of its kind trained on text of several scripts

MODEL_NAMES = {
    "bart": "Bart",
    "mbart": "MBart",
    "pegasus": "Pegasus",
    "m2m_100": "M2M100",
    "marian": "Marian",
    "t5": "T5",
}
FAMILIES = list(MODEL_NAMES)
TINY = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 256,
    "init_std": 0.3,  # wild outputs, of any length
}


def tokenizer_of(family: str):
    return make_tokenizers()[family]


def fields_of(family: str, **fields):
    """A tiny configuration's fields for the family's tokenizer."""
    tokenizer = tokenizer_of(family)
    start = tokenizer.pad_token_id if family in ("pegasus", "marian", "t5") else tokenizer.eos_token_id
    fields = {
        **TINY,
        "vocab_size": 108 + tokenizer.encoder_size if family == "m2m_100" else len(tokenizer),  # 100 codes, 8 unused
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": start,
        "scale_embedding": family != "bart",
        **fields,
    }
    return in_names_of(family, **fields)


def stock_model(family: str, **fields):
    """The untouched Hugging Face model, with random weights."""
    name = MODEL_NAMES[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**fields_of(family, **fields))
    head = (
        transformers.MarianMTModel if family == "marian" else getattr(transformers, f"{name}ForConditionalGeneration")
    )
    return head(config).eval()


def controlled_model(family: str, **fields):
    """The length-controlled model, with random weights and its tokenizer's table."""
    name = f"LenCtrl{MODEL_NAMES[family]}"
    torch.manual_seed(0)
    config = getattr(hf_lenctrl, f"{name}Config")(**fields_of(family, **fields))
    model = getattr(hf_lenctrl, f"{name}MTModel" if family == "marian" else f"{name}ForConditionalGeneration")(config)
    model.set_unit_table(tokenizer_of(family))
    return model.eval()


def lengths_of(family: str, unit: str, ids) -> list[int]:
    """What the outputs count, from the decoded text; tokens are all ids but special ones."""
    tokenizer = tokenizer_of(family)
    if unit == "token":
        silent = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        return [sum(i not in silent for i in row) for row in ids.tolist()]
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return [count_units(text, unit) for text in texts]


SOURCE = torch.tensor([[5, 9, 20, 31], [6, 7, 8, 10], [33, 12, 5, 40]])
MODES = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "samples": {"do_sample": True, "num_return_sequences": 3},
}


# The processor on hand-made tables. Entry 0 is EOS, 1 is BOS, which writes nothing; 2, 3 and 4 write 1, 2, 3 tokens.

ONE_TO_THREE = [[0, 0, 1, 2, 3]]
SCORES = [0.1, 0.2, 0.3, 0.4, 0.5]


def table(weights=ONE_TO_THREE, unit="token", next_state=None):
    return UnitTable(unit, torch.tensor(weights), None if next_state is None else torch.tensor(next_state))


def constrain(length, constraint, rows, scores=None, **options):
    """Entries that get through for each row of ids; their scores must be the ones given."""
    process = LengthConstraintLogitsProcessor(
        options.pop("unit_table", None) or table(), length, constraint, eos_token_id=0, **options
    )
    scores = torch.tensor([SCORES] * len(rows) if scores is None else scores)
    before = scores.clone()
    masked = process(torch.tensor(rows), scores)
    assert torch.equal(scores, before)
    through = masked > NO
    assert torch.equal(masked[through], scores[through])
    return [row.nonzero().squeeze(1).tolist() for row in through]


@pytest.mark.parametrize(
    ("written", "allowed"),
    [
        ([2, 3], [0, 2, 3, 4]),  # 3 of 6 tokens are left: all fit
        ([3, 3], [0, 2, 3]),
        ([3, 4], [0, 2]),
        ([4, 4], [0]),
    ],
)
def test_max_masks_what_does_not_fit_and_never_eos(written, allowed):
    assert constrain(6, "max", [[1, *written]]) == [allowed]


@pytest.mark.parametrize(
    ("written", "allowed"), [([2, 3], [2, 3, 4]), ([3, 3], [2, 3]), ([3, 4], [2]), ([4, 4], [0]), ([4, 3, 2], [0])]
)
def test_exact_masks_eos_before_the_length_and_all_else_at_it(written, allowed):
    assert constrain(6, "exact", [[1, *written]]) == [allowed]


def test_each_example_has_its_own_length():
    rows = [[1, 4, 3]] * 4
    assert constrain([5, 6, 7, 8], "max", rows) == [[0], [0, 2], [0, 2, 3], [0, 2, 3, 4]]
    assert constrain(torch.tensor([5, 6, 7, 8]), "exact", rows) == [[0], [2], [2, 3], [2, 3, 4]]


def test_beams_of_an_example_follow_each_other_and_share_its_length():
    rows = [[1, 2, 2], [1, 3, 2], [1, 4, 3], [1, 2, 2], [1, 3, 2], [1, 4, 3]]  # 2, 3 and 5 tokens
    assert constrain([3, 6], "exact", rows) == [[2], [0], [0], [2, 3, 4], [2, 3, 4], [2]]


def test_rows_past_their_length_may_only_end():
    assert constrain(2, "max", [[1, 3, 3], [1, 2, 4]]) == [[0], [0]]
    assert constrain(2, "exact", [[1, 3, 3], [1, 2, 4]]) == [[0], [0]]


def test_where_nothing_fits_eos_gets_through():
    twos = table([[0, 0, 2, 2, 4]])
    assert constrain(3, "exact", [[1, 0, 2], [1, 2, 3]], unit_table=twos) == [[0], [0]]
    assert constrain(1, "exact", [[1, 1, 1]], unit_table=twos) == [[0]]


def test_where_nothing_fits_eos_gets_through_even_if_another_processor_masked_it():
    process = LengthConstraintLogitsProcessor(table([[0, 2, 2]]), 3, "exact", eos_token_id=0)
    masked = process(torch.tensor([[1, 2, 2]]), torch.tensor([[NO, 0.2, 0.3]]))
    assert masked.tolist() == [[0.0, NO, NO]]


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_another_processor_may_force_a_token_that_writes_nothing(constraint):
    forced = [[NO, 0.0, NO, NO, NO]]
    assert constrain(6, constraint, [[0]], scores=forced) == [[1]]
    # steps are scarce: without the force it would have been left out
    assert constrain(6, constraint, [[0]], scores=forced, max_length=4) == [[1]]


def test_what_writes_nothing_is_masked_after_the_start():
    """BART and the multilingual models start with a BOS or a language code; later they would run on for nothing."""
    assert constrain(6, "max", [[0], [1]]) == [[0, 1, 2, 3, 4]] * 2
    assert constrain(6, "max", [[0, 1, 2], [0, 2, 2]]) == [[0, 2, 3, 4]] * 2


@pytest.mark.parametrize(("constraint", "allowed"), [("max", [0, 2]), ("exact", [2])])
def test_what_writes_nothing_is_masked_once_something_is_written(constraint, allowed):
    assert constrain(2, constraint, [[1, 2]]) == [allowed]
    assert constrain(1, constraint, [[1, 2]]) == [[0]]


def test_scores_that_remain_are_not_renormalised():
    log_probabilities = torch.tensor([SCORES]).log_softmax(-1)
    process = LengthConstraintLogitsProcessor(table(), 2, "max", eos_token_id=0)
    masked = process(torch.tensor([[0, 1, 2]]), log_probabilities)
    assert masked.tolist() == [[log_probabilities[0, 0].item(), NO, log_probabilities[0, 2].item(), NO, NO]]


def test_each_of_several_eos_ends():
    process = LengthConstraintLogitsProcessor(table(), 2, "exact", eos_token_id=[0, 1])
    assert (process(torch.tensor([[0, 2], [0, 3]]), torch.tensor([SCORES] * 2)) > NO).tolist() == [
        [False, False, True, False, False],
        [True, True, False, False, False],
    ]


@pytest.mark.parametrize(
    ("max_length", "rows", "allowed"),
    [
        (4, [[1]], [4]),  # two entries to come: 3 + 3
        (4, [[1, 4]], [4]),
        (4, [[1, 4, 4]], [0]),
        (5, [[1]], [1, 2, 3, 4]),  # three to come: nothing is lost yet
        (5, [[1, 1]], [4]),
        (5, [[1, 2]], [3, 4]),  # 5 tokens in two entries
        (5, [[1, 2, 3]], [4]),
        (5, [[1, 3, 2]], [4]),
        (5, [[1, 3, 3]], [3]),
        (5, [[1, 3, 3, 3]], [0]),
    ],
)
def test_exact_keeps_the_larger_entries_when_steps_become_scarce(max_length, rows, allowed):
    assert constrain(6, "exact", rows, max_length=max_length) == [allowed]


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_the_last_position_is_for_eos(constraint):
    assert constrain(6, constraint, [[1, 2, 2, 2, 2]], max_length=6) == [[0]]


def test_a_prompt_of_a_decoder_only_model_does_not_count():
    prompt = [4, 4, 4]
    assert constrain(2, "max", [prompt], prompt_length=3) == [[0, 1, 2, 3]]
    assert constrain(2, "exact", [[*prompt, 2]], prompt_length=3) == [[2]]
    assert constrain(3, "exact", [[*prompt, 2, 2, 2]], prompt_length=3) == [[0]]
    assert constrain(2, "exact", [[*prompt, 2]], prompt_length=3, max_length=7) == [[2]]
    assert constrain(2, "exact", [[*prompt, 2]], prompt_length=3, max_length=6) == [[2]]


# Byte-level BPE: 日 is æ Ĺ ¥, three bytes; 😀 is ðŁ ĺĢ, four

BYTE_PIECES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "Ġ", "æ", "Ĺ", "¥", "ðŁ", "ĺĢ"]


def byte_names(length, constraint, unit, written, pieces=BYTE_PIECES, **options):
    tokenizer = transformers.BartTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[])
    eos = tokenizer.eos_token_id
    units = UnitTable.from_tokenizer(tokenizer, unit)
    process = LengthConstraintLogitsProcessor(units, length, constraint, eos_token_id=eos, **options)
    ids = torch.tensor([[eos, 0, *map(BYTE_PIECES.index, written)]])
    masked = process(ids, torch.zeros(1, len(pieces)))
    return {piece for piece, score in zip(pieces, masked[0].tolist(), strict=True) if score > NO} - {"<s>", "<pad>"}


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("unit", ["character", "word", "byte"])
def test_after_a_lead_byte_only_bytes_that_finish_the_character_get_through(unit, constraint):
    length = {"character": 2, "word": 1, "byte": 4}[unit]
    assert byte_names(length, constraint, unit, ["æ"]) == {"Ĺ", "¥", "ĺĢ"}  # two bytes are open
    assert byte_names(length, constraint, unit, ["æ", "Ĺ"]) == {"Ĺ", "¥"}  # one is
    assert byte_names(length, constraint, unit, ["ðŁ"]) == {"Ĺ", "¥", "ĺĢ"}


def test_a_character_is_begun_only_where_its_bytes_fit():
    assert byte_names(5, "max", "byte", ["a"]) == {"</s>", "a", "Ġ", "æ", "ðŁ"}
    assert byte_names(4, "max", "byte", ["a"]) == {"</s>", "a", "Ġ", "æ"}
    assert byte_names(3, "max", "byte", ["a"]) == {"</s>", "a", "Ġ"}
    assert byte_names(2, "exact", "character", ["a"]) == {"a", "Ġ", "æ", "ðŁ"}
    assert byte_names(2, "exact", "character", ["a", "æ", "Ĺ", "¥"]) == {"</s>"}


def test_a_character_is_begun_only_where_its_bytes_fit_before_the_last_position():
    """Either goes on with one more entry, ĺĢ; EOS needs the position after it."""
    assert byte_names(9, "max", "character", ["a"], max_length=7) == {"</s>", "a", "Ġ", "æ", "ðŁ"}
    assert byte_names(9, "max", "character", ["a", "æ"], max_length=7) == {"Ĺ", "¥", "ĺĢ"}
    assert byte_names(9, "max", "character", ["a", "æ"], max_length=6) == {"ĺĢ"}
    assert byte_names(9, "max", "character", ["a", "æ", "ĺĢ"], max_length=6) == {"</s>"}
    assert byte_names(9, "max", "character", ["a"], max_length=6) == {"</s>", "a", "Ġ", "æ", "ðŁ"}
    assert byte_names(9, "max", "character", ["a"], max_length=5) == {"</s>", "a", "Ġ"}


def test_a_character_of_many_entries_is_not_begun_where_an_exact_length_needs_its_steps():
    """Three entries for two characters: 日 or 😀 alone would take all of them."""
    singles = BYTE_PIECES[:-1]  # without the piece of two bytes that could finish either
    for length, more in ((2, 4), (4, 6)):
        names = byte_names(length, "exact", "character", [], pieces=singles, max_length=2 + more)
        assert names & {"a", "Ġ", "æ", "ðŁ"} == {"a", "Ġ"}
        names = byte_names(length, "exact", "character", [], pieces=singles, max_length=2 + more + 1)
        assert names & {"a", "Ġ", "æ", "ðŁ"} == {"a", "Ġ", "æ", "ðŁ"}


# Marian strips its text

MARIAN_PIECES = ["</s>", "<unk>", "<pad>", "▁", "▁a", "b", "b▁"]


@pytest.fixture(scope="module")
def marian_pieces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pieces")
    train_marian_tokenizer(["a b"], ["a b"], folder, target_vocabulary="shared")  # for the .spm, which joins pieces
    vocabulary = folder / "pieces.json"
    vocabulary.write_text(json.dumps({piece: i for i, piece in enumerate(MARIAN_PIECES)}), encoding="utf-8")
    spm = str(folder / "source.spm")
    tokenizer = transformers.MarianTokenizer(spm, spm, str(vocabulary), clean_up_tokenization_spaces=False)

    def names(length, constraint, unit, written):
        units = UnitTable.from_tokenizer(tokenizer, unit)
        process = LengthConstraintLogitsProcessor(units, length, constraint, eos_token_id=0)
        ids = torch.tensor([[2, *map(MARIAN_PIECES.index, written)]])
        masked = process(ids, torch.zeros(1, len(MARIAN_PIECES)))
        through = {piece for piece, score in zip(MARIAN_PIECES, masked[0].tolist(), strict=True) if score > NO}
        return through - {"<unk>", "<pad>"}  # which write nothing, and may stand at the start

    return names


@pytest.mark.parametrize("unit", ["character", "byte"])
def test_white_space_is_never_the_last_thing_that_marian_writes(marian_pieces, unit):
    # "ab" with two more to come
    assert marian_pieces(4, "max", unit, ["▁a", "b"]) == {"</s>", "▁", "▁a", "b"}
    assert marian_pieces(4, "exact", unit, ["▁a", "b"]) == {"▁", "▁a", "b"}
    # "ab b" with one more: a space would be the last thing
    assert marian_pieces(5, "max", unit, ["▁a", "b", "▁", "b"]) == {"</s>", "b"}
    # after the space the text may not end, and another one would have no room for what follows
    for constraint in CONSTRAINTS:
        assert marian_pieces(4, constraint, unit, ["▁a", "b", "▁"]) == {"b"}
        assert marian_pieces(4, constraint, unit, ["▁a", "b▁"]) == {"b"}
        assert marian_pieces(5, constraint, unit, ["▁a", "b▁"]) == {"▁", "▁a", "b"}


def test_white_space_before_the_text_is_stripped_and_does_not_count(marian_pieces):
    assert marian_pieces(1, "exact", "character", ["▁", "▁"]) == {"▁", "▁a", "b"}
    assert marian_pieces(1, "exact", "character", ["▁", "▁", "▁a"]) == {"</s>"}


def test_words_go_on_at_their_limit_and_no_new_one_begins(marian_pieces):
    assert marian_pieces(2, "max", "word", ["▁a", "b", "▁a"]) == {"</s>", "▁", "b", "b▁"}
    assert marian_pieces(2, "exact", "word", ["▁a", "b"]) == {"▁", "▁a", "b", "b▁"}
    assert marian_pieces(2, "exact", "word", ["▁a", "▁a", "▁"]) == {"</s>", "▁"}


# Errors of the processor


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((5, "min"), ValueError, "length_constraint must be 'max' .* got 'min'"),
        ((5, None), ValueError, "needs a length and a mode, got length=5 and constraint=None; pass length=75"),
        ((None, "max"), ValueError, "needs a length and a mode, got length=None and constraint='max'; pass length=75"),
        ((5.0, "max"), TypeError, r"length must be an int of at least 1, got 5.0 \(float\); pass length=75"),
        ((True, "max"), TypeError, r"length must be an int of at least 1, got True \(bool\)"),
        (([5, 2.5], "max"), TypeError, r"got 2.5 \(float\)"),
        ((torch.tensor([5.0]), "max"), TypeError, "integer tensor, got dtype torch.float32; pass length.long"),
        ((0, "max"), ValueError, "length must be at least 1, got 0; pass length=75"),
        (([5, 0], "exact"), ValueError, "length must be at least 1, got 0"),
        ((torch.tensor([5, 0]), "exact"), ValueError, r"at least 1 for every example, got \[5, 0\]"),
        ((torch.tensor([5, 10**7]), "max"), ValueError, r"under 10000000 for every example, got \[5, 10000000\]"),
    ],
)
def test_a_wrong_length_or_constraint_is_told(arguments, error, message):
    with pytest.raises(error, match=message):
        LengthConstraintLogitsProcessor(table(), *arguments, eos_token_id=0)


def test_a_missing_eos_is_told():
    with pytest.raises(ValueError, match="ends outputs with EOS, got eos_token_id=None; pass the tokenizer's"):
        LengthConstraintLogitsProcessor(table(), 5, eos_token_id=None)


def test_a_max_length_too_small_for_an_exact_length_is_told():
    for length, needed in ((6, 4), (7, 5), ([1, 7], 5)):
        LengthConstraintLogitsProcessor(table(), length, "exact", eos_token_id=0, max_length=needed)
        with pytest.raises(
            ValueError,
            match=rf"exactly {6 if length == 6 else 7} tokens may need {needed} positions .* max_length leaves "
            rf"{needed - 1}; raise max_length or max_new_tokens, or leave both out",
        ):
            LengthConstraintLogitsProcessor(table(), length, "exact", eos_token_id=0, max_length=needed - 1)
    LengthConstraintLogitsProcessor(table(), 6, "max", eos_token_id=0, max_length=2)


def test_a_table_of_another_vocabulary_is_told():
    process = LengthConstraintLogitsProcessor(table(), 5, eos_token_id=0)
    with pytest.raises(ValueError, match="1 rows and 6 entries .* 1 lengths and a unit table of 5 entries; build it"):
        process(torch.tensor([[1]]), torch.zeros(1, 6))


def test_rows_that_are_no_multiple_of_the_lengths_are_told():
    process = LengthConstraintLogitsProcessor(table(), [5, 6], eos_token_id=0)
    with pytest.raises(ValueError, match="3 rows and 5 entries do not go with 2 lengths"):
        process(torch.tensor([[1]] * 3), torch.zeros(3, 5))


def test_a_table_that_waits_for_a_tokenizer_is_told():
    model = build_model("bart", length_unit="character")
    with pytest.raises(ValueError, match=r"cannot count characters; call model.set_unit_table\(tokenizer\) once"):
        LengthConstraintLogitsProcessor(model.unit_table, 5, eos_token_id=2)


# Properties


@st.composite
def cases(draw):
    """A table of one to three states as tokenizers make them, rows of ids and scores for them."""
    size, states = draw(st.integers(3, 7)), draw(st.integers(1, 3))
    entry = st.lists(st.integers(0, 4), min_size=size - 2, max_size=size - 2)
    weights = [[0, 0, *draw(entry)] for _ in range(states)]  # EOS, a silent entry, and others
    next_state = [[state] * size for state in range(states)]
    for i in range(2, size):
        after = draw(st.integers(1, states - 1)) if states > 1 else 0
        for state in range(states):
            next_state[state][i] = after if state or draw(st.booleans()) else 0
    if states == 3:
        weights[2][0] = weights[2][1] = ~0  # no text may end there
    score = st.one_of(st.just(NO), st.floats(-9, 9, width=32))
    rows = draw(st.lists(st.lists(st.integers(0, size - 1), min_size=4, max_size=4), min_size=2, max_size=4))
    rows = rows[: len(rows) // 2 * 2]
    scores = [draw(st.lists(score, min_size=size, max_size=size)) for _ in rows]
    return weights, next_state, rows, scores


@settings(max_examples=200, deadline=None)
@given(
    case=cases(),
    lengths=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    constraint=st.sampled_from(CONSTRAINTS),
    more=st.one_of(st.none(), st.integers(0, 6)),
)
def test_a_row_never_ends_up_empty_and_no_entry_exceeds_what_is_left(case, lengths, constraint, more):
    weights, next_state, rows, scores = case
    process = LengthConstraintLogitsProcessor(
        table(weights, "word", next_state), list(lengths), constraint, eos_token_id=0
    )
    process.max_length = None if more is None else len(rows[0]) + more
    masked = process(torch.tensor(rows), torch.tensor(scores)).tolist()
    for n, (row, given_scores, left_scores) in enumerate(zip(rows, scores, masked, strict=True)):
        state, remaining = 0, lengths[n // (len(rows) // 2)]
        for i in row:
            remaining -= max(weights[state][i], ~weights[state][i])
            state = next_state[state][i]
        through = [i for i, score in enumerate(left_scores) if score > NO]
        assert through
        for i in through:
            assert i == 0 or weights[state][i] <= max(remaining, 0)
            given = [given_scores[k] for k in through]
            assert left_scores[i] == (0.0 if given == [NO] * len(given) else given_scores[i])
        if all(score == NO for score in given_scores):  # then only EOS, or what completes an open text
            assert through == [0] or weights[state][0] < 0


@functools.cache
def unit_table_of(family, unit):
    return UnitTable.from_tokenizer(tokenizer_of(family), unit)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=10, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=4, max_size=4), more=st.integers(0, 3), seed=st.integers(0, 999))
def test_random_outputs_within_few_positions_have_exactly_their_lengths(family, unit, lengths, more, seed):
    """One entry of one unit for each unit, the start and EOS are enough, and mostly more than that."""
    eos = tokenizer_of(family).eos_token_id
    max_length = max(lengths) + 2 + more
    process = LengthConstraintLogitsProcessor(
        unit_table_of(family, unit), lengths, "exact", eos_token_id=eos, max_length=max_length
    )
    draw = torch.Generator().manual_seed(seed)
    ids = torch.full((4, 1), eos)
    ended = torch.zeros(4, dtype=torch.bool)
    while not ended.all():
        scores = process(ids, torch.rand(4, process.table.weights.shape[1], generator=draw) * 9)
        chosen = torch.multinomial(scores.softmax(-1), 1, generator=draw).squeeze(1)
        ids = torch.cat([ids, torch.where(ended, eos, chosen).unsqueeze(1)], dim=1)
        ended |= chosen == eos
    assert ids.shape[1] <= max_length
    assert lengths_of(family, unit, ids) == lengths


# `generate`


@pytest.fixture(scope="module", params=FAMILIES)
def random_models(request):
    """A model of the family for each unit; all have the same weights."""
    return request.param, {unit: controlled_model(request.param, length_unit=unit) for unit in UNITS}


def forced_start(family):
    """BART is made to start with BOS, mBART with a language code."""
    tokenizer = tokenizer_of(family)
    token = {"bart": tokenizer.bos_token, "mbart": "ro_RO"}.get(family)
    return {} if token is None else {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(token)}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
@pytest.mark.parametrize("unit", UNITS)
def test_decoded_outputs_keep_their_bound(random_models, unit, mode):
    family, by_unit = random_models
    lengths = [1, 7, 23]
    copies = mode.get("num_return_sequences", 1)
    bounds = [n for n in lengths for _ in range(copies)]
    options = {"max_new_tokens": 60} if unit == "word" else {}
    options |= forced_start(family) | mode
    torch.manual_seed(0)
    output = by_unit[unit].generate(SOURCE, length=lengths, length_constraint="max", **options)
    produced = lengths_of(family, unit, output)
    assert all(n <= bound for n, bound in zip(produced, bounds, strict=True))
    output = by_unit[unit].generate(SOURCE, length=lengths, length_constraint="exact", **options)
    assert lengths_of(family, unit, output) == bounds
    eos = by_unit[unit].config.eos_token_id
    assert (output[:, 1:] == eos).any(dim=1).all()  # each is complete
    if "forced_bos_token_id" in options:
        assert (output[:, 1] == options["forced_bos_token_id"]).all()


def test_without_a_constraint_the_random_models_miss_their_lengths(random_models):
    """Else the tests of the bound could not fail."""
    family, by_unit = random_models
    torch.manual_seed(0)
    options = {"max_new_tokens": 30, "do_sample": True, "num_return_sequences": 4}
    output = by_unit["character"].generate(SOURCE, length=3, length_constraint=None, **options)
    produced = lengths_of(family, "character", output)
    assert max(produced) > 3 and produced != [3] * 12


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("family", ["bart", "marian"])
def test_stock_models_keep_the_bound_of_a_processor(family, unit, mode):
    model = stock_model(family)
    bounds = [n for n in [1, 7, 23] for _ in range(mode.get("num_return_sequences", 1))]
    torch.manual_seed(0)
    for constraint in CONSTRAINTS:
        process = LengthConstraintLogitsProcessor(
            unit_table_of(family, unit),
            [1, 7, 23],
            constraint,
            eos_token_id=model.config.eos_token_id,
            max_length=50,
        )
        output = model.generate(SOURCE, max_length=50, logits_processor=LogitsProcessorList([process]), **mode)
        produced = lengths_of(family, unit, output)
        if constraint == "exact":
            assert produced == bounds
        assert all(n <= bound for n, bound in zip(produced, bounds, strict=True))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("options", [{}, {"max_new_tokens": 60}], ids=["default limit", "60 tokens"])
def test_a_character_vocabulary_meets_exact_lengths(character_tokenizer, unit, options):
    """A word takes two entries at least, a space and a letter: 23 words need 46 and EOS."""
    model = build_model(
        "marian",
        vocab_size=len(character_tokenizer),
        decoder_vocab_size=len(character_tokenizer.target_encoder),
        share_encoder_decoder_embeddings=False,
        tie_word_embeddings=False,
        length_unit=unit,
        init_std=0.3,
    )
    model.set_unit_table(character_tokenizer)
    output = model.generate(SOURCE, length=[1, 7, 23], length_constraint="exact", **options)
    if unit == "token":
        assert model.unit_table.count(output).tolist() == [1, 7, 23]
    else:
        texts = character_tokenizer.batch_decode(output, skip_special_tokens=True)
        assert [count_units(text, unit) for text in texts] == [1, 7, 23]


def test_entries_beyond_the_tokenizer_are_never_written():
    model = controlled_model("marian", vocab_size=len(tokenizer_of("marian")) + 100, length_unit="character")
    torch.manual_seed(0)
    output = model.generate(SOURCE, length=9, length_constraint="exact", do_sample=True, num_return_sequences=4)
    assert int(output.max()) < len(tokenizer_of("marian"))
    assert lengths_of("marian", "character", output) == [9] * 12


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_the_language_code_of_m2m100_is_kept(constraint):
    """Its checkpoints' embeddings hold the codes, 100 of them, and 8 more; `len(tokenizer)` leaves all of them out."""
    tokenizer = tokenizer_of("m2m_100")
    code = tokenizer.get_lang_id("fr")
    model = controlled_model("m2m_100", length_unit="character")
    output = model.generate(SOURCE, length=[1, 7, 23], length_constraint=constraint, forced_bos_token_id=code)
    assert output[:, 1].tolist() == [code] * 3
    produced = lengths_of("m2m_100", "character", output)
    assert produced == [1, 7, 23] if constraint == "exact" else max(produced) > 0


def test_a_forced_start_takes_a_position_of_its_own():
    """Start, BOS, five tokens and EOS need eight positions; with seven the call is refused."""
    model = build_model("bart", init_std=0.3)
    options = {"length": 5, "length_constraint": "exact", "forced_bos_token_id": 0}
    assert model.unit_table.count(model.generate(SOURCE, max_new_tokens=7, **options)).tolist() == [5, 5, 5]
    with pytest.raises(ValueError, match="exactly 5 tokens may need"):
        model.generate(SOURCE, max_new_tokens=6, **options)


def test_the_units_of_a_decoder_prompt_count_towards_the_bound():
    model = build_model("bart", init_std=0.3)
    prompt = torch.tensor([[2, 11, 12, 13], [2, 21, 22, 23]])
    source = SOURCE[:2]
    output = model.generate(source, decoder_input_ids=prompt, length=[3, 6], length_constraint="exact")
    assert output[:, :4].tolist() == prompt.tolist()
    assert model.unit_table.count(output).tolist() == [3, 6]
    output = model.generate(
        source, decoder_input_ids=prompt, length=[3, 6], length_constraint="exact", max_new_tokens=4
    )
    assert model.unit_table.count(output).tolist() == [3, 6]


def only_pieces_of_two(encoding="ldpe"):
    model = build_model("marian", init_std=0.3, length_encoding=encoding, absolute_positions=encoding == "none")
    model.model.decoder.unit_table = UnitTable("token", 2 * model.unit_table.weights)
    return model


@pytest.mark.parametrize("mode", [{}, {"num_beams": 3, "num_return_sequences": 2}], ids=["greedy", "beams"])
def test_an_exact_length_that_cannot_be_is_missed_with_a_warning_and_never_passed(mode, caplog):
    model = only_pieces_of_two()
    copies = mode.get("num_return_sequences", 1)
    with caplog.at_level(logging.WARNING, logger="hf_lenctrl.generation"):
        output = model.generate(SOURCE, length=[3, 6, 7], length_constraint="exact", **mode)
    assert model.unit_table.count(output).tolist() == [n for n in (2, 6, 6) for _ in range(copies)]
    (record,) = caplog.records
    missed = [
        "rows [0, 2] have [2, 6] tokens, not [3, 7]",
        "rows [0, 1, 4, 5] have [2, 2, 6, 6] tokens, not [3, 3, 7, 7]",
    ]
    assert record.getMessage() == (
        f"{2 * copies} of {3 * copies} outputs missed their exact length, "
        "because no entries fit or positions ran out: " + missed[copies - 1]
    )


def test_an_exact_length_that_is_met_gives_no_warning(caplog):
    model = only_pieces_of_two()
    with caplog.at_level(logging.WARNING, logger="hf_lenctrl.generation"):
        model.generate(SOURCE, length=[2, 4, 8], length_constraint="exact")
        model.generate(SOURCE, length=[3, 5, 7], length_constraint="max")
        model.generate(SOURCE, length=[3, 5, 7], max_new_tokens=3)
    assert not caplog.records


# Where length and constraint come from


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    controlled_model("marian", length_unit="character").save_pretrained(folder)
    return folder


def characters(output):
    return lengths_of("marian", "character", output)


def test_length_and_constraint_of_the_config_hold_and_a_call_overrides_them(saved):
    model = AutoModelForSeq2SeqLM.from_pretrained(saved, length=9, length_constraint="exact")
    assert characters(model.generate(SOURCE)) == [9, 9, 9]
    assert characters(model.generate(SOURCE, length=[2, 9, 5])) == [2, 9, 5]
    assert all(n <= 9 for n in characters(model.generate(SOURCE, length_constraint="max")))
    free = AutoModelForSeq2SeqLM.from_pretrained(saved)
    off = model.generate(SOURCE, length_constraint=None, max_new_tokens=20)
    assert characters(off) != [9, 9, 9]
    assert off.tolist() == free.generate(SOURCE, length=9, max_new_tokens=20).tolist()
    assert model.generation_config.to_dict() == free.generation_config.to_dict()


def test_a_saved_constraint_holds_after_loading(saved, tmp_path):
    AutoModelForSeq2SeqLM.from_pretrained(saved, length=4, length_constraint="exact").save_pretrained(tmp_path)
    assert characters(AutoModelForSeq2SeqLM.from_pretrained(tmp_path).generate(SOURCE)) == [4, 4, 4]


def test_a_constraint_of_another_name_is_told(saved):
    message = "length_constraint must be 'max' .*, 'exact' or None .* got 'min'"
    with pytest.raises(StrictDataclassClassValidationError, match=message):
        AutoModelForSeq2SeqLM.from_pretrained(saved, length_constraint="min")
    model = AutoModelForSeq2SeqLM.from_pretrained(saved)
    with pytest.raises(ValueError, match=message):
        model.generate(SOURCE, length=5, length_constraint="min")


def test_a_constraint_without_a_length_is_told(saved):
    for constraint in CONSTRAINTS:
        model = AutoModelForSeq2SeqLM.from_pretrained(saved, length_constraint=constraint)
        with pytest.raises(ValueError, match="no length was given; pass it to the call, model.generate"):
            model.generate(SOURCE)


def plain_class_model(**fields):
    return controlled_model(
        "marian", length_unit="character", length_encoding="none", absolute_positions=True, **fields
    )


def test_a_model_that_is_not_told_the_length_takes_one_with_a_constraint_only():
    model = plain_class_model()
    assert characters(model.generate(SOURCE, length=[2, 9, 5], length_constraint="exact")) == [2, 9, 5]
    assert characters(plain_class_model(length=5, length_constraint="exact").generate(SOURCE)) == [5, 5, 5]
    with pytest.raises(ValueError, match="length was given to a model with length_encoding='none'"):
        model.generate(SOURCE, length=5)
    with pytest.raises(ValueError, match="no length was given; pass it to the call"):
        model.generate(SOURCE, length_constraint="max")
    stock = stock_model("marian")
    stock.load_state_dict(model.state_dict(), strict=False)
    assert model.generate(SOURCE, max_length=12).tolist() == stock.generate(SOURCE, max_length=12).tolist()


def test_a_call_switches_off_the_constraint_of_a_model_that_is_not_told_the_length():
    model = plain_class_model(length=5, length_constraint="exact")
    off = model.generate(SOURCE, length_constraint=None, max_length=12)
    assert off.tolist() == plain_class_model().generate(SOURCE, max_length=12).tolist()


def test_max_new_tokens_too_small_for_an_exact_length_is_told():
    model = controlled_model("marian", length_unit="token")
    output = model.generate(SOURCE, length=9, length_constraint="exact", max_new_tokens=10)  # nine and EOS
    assert lengths_of("marian", "token", output) == [9, 9, 9]
    for options in ({"max_new_tokens": 9}, {"max_length": 10}):
        with pytest.raises(ValueError, match="exactly 9 tokens may need 11 positions .* max_length leaves 10; raise"):
            model.generate(SOURCE, length=9, length_constraint="exact", **options)
        generation_config = transformers.GenerationConfig(
            **options, eos_token_id=0, pad_token_id=2, decoder_start_token_id=2
        )
        with pytest.raises(ValueError, match="exactly 9 tokens may need 11 positions"):
            model.generate(SOURCE, generation_config, length=9, length_constraint="exact")
    output = model.generate(SOURCE, length=9, length_constraint="max", max_new_tokens=4)
    assert all(n <= 3 for n in lengths_of("marian", "token", output))
    assert (output[:, 1:] == 0).any(dim=1).all()


def test_a_min_length_that_the_checkpoint_brings_gives_way():
    model = controlled_model("marian", length_unit="character")
    model.generation_config.min_length = 40
    assert characters(model.generate(SOURCE, length=[1, 3, 9], length_constraint="exact")) == [1, 3, 9]
    short = model.generate(SOURCE, length=[1, 3, 9], length_constraint="exact", num_beams=2)
    assert short.shape[1] < 40
    assert model.generation_config.min_length == 40


# Beams: scores are the model's own log-probabilities, so that a complete output that the model likes best wins


def log_probabilities(model, source, sequences, length):
    """Sum for each row up to and with EOS, and the entries it takes, by teacher forcing."""
    logits = model(input_ids=source, decoder_input_ids=sequences[:, :-1], length=length).logits
    chosen = sequences[:, 1:]
    each = logits.log_softmax(-1).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)  # (B, T)
    ended = (chosen == model.config.eos_token_id).int()
    counts = ended.cumsum(-1) - ended == 0
    return (each * counts).sum(-1), counts.sum(-1)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("length_penalty", [1.0, 0.5])
def test_scores_of_constrained_beams_are_the_models_log_probabilities(constraint, length_penalty):
    model = controlled_model("marian", length_unit="character")
    output = model.generate(
        SOURCE,
        length=[1, 7, 23],
        length_constraint=constraint,
        num_beams=4,
        num_return_sequences=2,
        length_penalty=length_penalty,
        return_dict_in_generate=True,
        output_scores=True,
    )
    length = [1, 1, 7, 7, 23, 23]
    total, entries = log_probabilities(model, SOURCE.repeat_interleave(2, dim=0), output.sequences, length)
    torch.testing.assert_close(output.sequences_scores, total / entries**length_penalty, atol=1e-4, rtol=0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_the_best_of_all_complete_outputs_wins_with_beams_enough(constraint, seed):
    """Three letters and at most four of them: 120 outputs and the empty one, scored one by one."""
    model = build_model("bart", seed=seed, vocab_size=6, init_std=0.5)
    letters, bos, pad, eos, start = (3, 4, 5), 0, 1, 2, 2
    source = torch.tensor([[3, 4, 5, 3]])
    counts = range(5) if constraint == "max" else [4]
    outputs = [[start, *row, eos] for n in counts for row in itertools.product(letters, repeat=n)]
    sums = [log_probabilities(model, source, torch.tensor([row]), 4)[0].item() for row in outputs]
    output = model.generate(
        source,
        length=4,
        length_constraint=constraint,
        num_beams=81,
        length_penalty=0.0,
        suppress_tokens=[bos, pad],
        forced_eos_token_id=None,
        return_dict_in_generate=True,
        output_scores=True,
    )
    assert output.sequences.tolist() == [outputs[max(range(len(outputs)), key=sums.__getitem__)]]
    assert output.sequences_scores.item() == pytest.approx(max(sums), abs=1e-4)


# Ensembles


def members():
    """Mixed in encoding, width and positions, one of them without length control."""
    return [
        build_model("bart", seed=1, init_std=0.2),
        build_model("bart", seed=2, init_std=0.2, length_encoding="none", absolute_positions=True),
        build_model("bart", seed=3, init_std=0.2, length_encoding="pre", d_model=16),
    ]


def logits_of(model, **inputs):
    if model.config.length_encoding == "none":
        inputs.pop("length")
    return model(**inputs).logits.double()


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("constraint", [None, "exact"])
def test_an_ensemble_of_one_generates_what_the_model_does(family, num_beams, constraint):
    model = build_model(family, init_std=0.2)
    options = {"length": [3, 9, 6], "num_beams": num_beams, "max_new_tokens": 12, "length_constraint": constraint}
    expected = model.generate(SOURCE, **options).tolist()
    assert LengthControlEnsemble([model]).generate(SOURCE, **options).tolist() == expected


@pytest.mark.parametrize("chosen", [(0, 2), (0, 1, 2), (1, 0)])
def test_logits_of_an_ensemble_are_the_log_of_the_mean_probability(chosen):
    models = [members()[i] for i in chosen]
    inputs = {
        "input_ids": SOURCE,
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]),
        "decoder_input_ids": torch.tensor([[2, 5, 6], [2, 7, 8], [2, 9, 10]]),
        "length": [3, 9, 40],
    }
    mean = torch.stack([logits_of(model, **inputs).softmax(-1) for model in models]).mean(0)
    logits = LengthControlEnsemble(models)(**inputs).logits
    torch.testing.assert_close(logits.double(), mean.log(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("constraint", [None, "exact"])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_an_ensemble_generates_the_same_without_cache(num_beams, constraint):
    ensemble = LengthControlEnsemble(members())
    options = {
        "length": [3, 9, 6],
        "length_constraint": constraint,
        "num_beams": num_beams,
        "max_new_tokens": 12,
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]),
    }
    cached = ensemble.generate(SOURCE, **options)
    assert cached.tolist() == ensemble.generate(SOURCE, use_cache=False, **options).tolist()
    assert len({row for row in map(tuple, cached.tolist())}) == 3


def test_greedy_output_of_an_ensemble_takes_the_best_mean_at_each_step():
    models = members()
    output = LengthControlEnsemble(models).generate(SOURCE, length=[3, 9, 6], max_new_tokens=8, min_new_tokens=8)
    inputs = {"input_ids": SOURCE, "decoder_input_ids": output[:, :-1], "length": [3, 9, 6]}
    mean = torch.stack([logits_of(model, **inputs).softmax(-1) for model in models]).mean(0)
    mean[:, :7, 2] = 0  # the minimum forbids EOS
    mean[:, 7, :2] = mean[:, 7, 3:] = 0  # BART's configuration forces it in the last position
    assert mean.argmax(-1).tolist() == output[:, 1:].tolist()


def test_an_ensemble_keeps_a_bound_and_takes_it_from_the_config_too():
    models = members()
    ensemble = LengthControlEnsemble(models)
    for options in ({}, {"num_beams": 3}):
        output = ensemble.generate(SOURCE, length=[1, 7, 23], length_constraint="exact", **options)
        assert ensemble.unit_table.count(output).tolist() == [1, 7, 23]
    models[0].config.length, models[0].config.length_constraint = 5, "exact"
    assert ensemble.unit_table.count(ensemble.generate(SOURCE)).tolist() == [5, 5, 5]


def test_an_ensemble_tells_a_missing_length():
    with pytest.raises(ValueError, match="no length was given; pass it to the call"):
        LengthControlEnsemble(members()).generate(SOURCE)


def test_an_ensemble_that_is_not_told_the_length_refuses_one_without_a_constraint():
    fields = {"length_encoding": "none", "absolute_positions": True}
    ensemble = LengthControlEnsemble([build_model("bart", seed=seed, **fields) for seed in (1, 2)])
    output = ensemble.generate(SOURCE, length=[1, 7, 23], length_constraint="exact")
    assert ensemble.unit_table.count(output).tolist() == [1, 7, 23]
    with pytest.raises(ValueError, match="length was given to a model with length_encoding='none'"):
        ensemble.generate(SOURCE, length=5, max_new_tokens=5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 61}, "must have one vocabulary, their unit tables differ; use checkpoints trained with one"),
        ({"eos_token_id": 7}, "must agree in eos_token_id, got 2 and 7; use checkpoints trained with one tokenizer"),
        ({"pad_token_id": 7}, "must agree in pad_token_id, got 1 and 7"),
        ({"decoder_start_token_id": 7}, "must agree in decoder_start_token_id, got 2 and 7"),
        ({"length_unit": "character"}, "must agree in length_unit, got 'token' and 'character'"),
    ],
)
def test_an_ensemble_refuses_models_that_do_not_go_together(fields, message):
    with pytest.raises(ValueError, match=message):
        LengthControlEnsemble([build_model("bart"), build_model("bart", **fields)])


def test_an_ensemble_refuses_no_models():
    with pytest.raises(ValueError, match="an ensemble needs at least one model, got none"):
        LengthControlEnsemble([])


# Re-ranking


@pytest.mark.parametrize(
    ("candidates", "scores", "order"),
    [
        # police, arrest, oslo / three, men / none
        (["three men", "police arrests: Oslo!", "a robbery"], None, [1, 0, 2]),
        (["police police police", "police men"], None, [1, 0]),  # a stem counts once
        (["arrest arrests arresting arrested", "men in jail"], None, [1, 0]),  # men, in / one stem
        (["three dogs", "oslo dogs", "four dogs"], None, [0, 1, 2]),  # a tie keeps the order
        (["three dogs", "oslo dogs", "four dogs"], [-2.0, -1.0, -0.5], [1, 0, 2]),  # or goes to the better score
        (["four dogs", "oslo"], [-0.1, -9.0], [1, 0]),  # words before scores
        (["", "POLICE"], None, [1, 0]),
        (["policies"], None, [0]),
    ],
)
def test_candidates_are_ordered_by_the_stems_they_share_with_the_source(candidates, scores, order):
    assert rerank("Police arrested three men in Oslo", candidates, scores) == order


def test_words_of_other_scripts_count():
    assert rerank("новости из Осло", ["погода", "Новости"]) == [1, 0]


@pytest.mark.parametrize(
    ("candidates", "scores", "message"),
    [
        ([], None, "needs candidates and a score for each, got 0 and no scores"),
        (["a", "b"], [0.5], "got 2 and 1 scores"),
        ([], [], "got 0 and 0 scores"),
    ],
)
def test_missing_candidates_or_scores_are_told(candidates, scores, message):
    with pytest.raises(ValueError, match=message):
        rerank("source", candidates, scores)


def test_threads_share_the_masks_that_they_make():
    def make(states, numbers):
        values = torch.stack([states * 100 + numbers] * 3, dim=1).float()
        time.sleep(0.002)  # other threads run here
        return values

    rows = _Rows(make, states=40, low=0, high=19)

    def ask(seed):
        generator = torch.Generator().manual_seed(seed)
        state, number = (torch.randint(n, (5,), generator=generator) for n in (40, 20))
        return torch.equal(rows(state, number)[:, 0], (state * 100 + number).float())

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(300)))


# Vocabularies of any shape: no output is over, and an exact length that cannot be is missed by as little as can be


def random_table(draw: random.Random, eos: list[int]):
    """Entry 0 is an EOS that writes nothing, 1 a BOS; `states_after` asks that what writes leads to one state."""
    states, size, most = draw.randint(1, 3), draw.randint(3, 7), draw.choice([3, 5, 9])
    weights = [[0, 0, *(draw.randint(0, most) for _ in range(size - 2))] for _ in range(states)]
    following = [[state] * size for state in range(states)]
    for i in range(2, size):
        after, counts_first = draw.randint(1, states - 1) if states > 1 else 0, draw.random() < 0.5
        for state in range(states):
            following[state][i] = after if state or counts_first else 0
    if states == 3 and draw.random() < 0.5:
        weights[2][:2] = [~0, ~0]  # no text may end there
    return weights, following


def most_units(weights, following, eos: list[int], length: int) -> int:
    """The most units, up to `length`, of all the texts that can be written: by trying them all; -1 for none."""
    seen, rest, best = {(0, 0)}, [(0, 0)], -1
    while rest:
        state, count = rest.pop()
        for i, (weight, after) in enumerate(zip(weights[state], following[state], strict=True)):
            if weight < 0 or i == 1 or count + weight > length:
                continue
            if i in eos and weights[after][0] >= 0:
                best = max(best, count + weight)
            elif i not in eos and (after, count + weight) not in seen:
                seen.add((after, count + weight))
                rest.append((after, count + weight))
    return best


@pytest.mark.parametrize("seed", range(4))
def test_an_exact_length_is_missed_by_as_little_as_can_be(seed):  # issues 15.4 and 15.17
    draw = random.Random(seed)
    unreachable = 0
    for _ in range(60):
        eos = draw.choice([[0], [0, 2]])  # the second one writes
        weights, following = random_table(draw, eos)
        length = draw.randint(1, 30)
        most = most_units(weights, following, eos, length)
        unreachable += most != length
        for constraint in CONSTRAINTS:
            process = LengthConstraintLogitsProcessor(
                table(weights, "word", following), length, constraint, eos_token_id=eos
            )
            ids, state, count = [1], 0, 0
            while ids[-1] not in eos and len(ids) < 200:
                scores = process(torch.tensor([ids]), torch.zeros(1, len(weights[0])))[0].tolist()
                i = draw.choice([i for i, score in enumerate(scores) if score > NO and i != 1])
                ids.append(i)
                count += max(weights[state][i], ~weights[state][i])
                state = following[state][i]
            if most >= 0:
                assert count <= length
                if constraint == "exact" and ids[-1] in eos:
                    assert count == most, (weights, following, eos, length, ids)
    assert unreachable > 5


def test_reachable_lengths_repeat_however_long():  # issue 15.17
    """Entries of 6 and 10 after a first one of 3: 3, 9, 13, 15, 19 and then every odd number but 17."""
    units = table([[0, 0, 3, 3], [0, 0, 6, 10]], "word", [[0, 0, 1, 1], [1, 1, 1, 1]])
    for length, most in ((14, 13), (17, 15), (18, 15), (20, 19), (22, 21), (23, 23), (998, 997), (999, 999)):
        process = LengthConstraintLogitsProcessor(units, length, "exact", eos_token_id=0)
        ids, count = [1, 2], 3
        while ids[-1] != 0:
            scores = process(torch.tensor([ids]), torch.tensor([[0.0, -1.0, 2.0, 1.0]]))[0].tolist()
            ids.append(max(range(4), key=scores.__getitem__))
            count += [0, 0, 6, 10][ids[-1]]
        assert count == most
    # as after 999: the period holds for lengths that no table could list
    near, far = (LengthConstraintLogitsProcessor(units, n, "exact", eos_token_id=0) for n in (998, 9_999_998))
    ids, scores = torch.tensor([[1, 2]]), torch.zeros(1, 4)
    assert near(ids, scores).tolist() == far(ids, scores).tolist()


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_an_eos_that_writes_counts(constraint, num_beams):  # issue 15.4
    """A letter is an EOS too, as a line feed may be."""
    model = controlled_model("bart", length_unit="character")
    letter = tokenizer_of("bart").convert_tokens_to_ids("a")
    model.generation_config.eos_token_id = [2, letter]
    model.final_logits_bias[0, letter] = 2.0
    bounds = [n for n in (1, 2, 9) for _ in range(20)]
    options = {"do_sample": True, "num_return_sequences": 20, "num_beams": 20 if num_beams > 1 else 1}
    torch.manual_seed(0)
    output = model.generate(SOURCE, length=[1, 2, 9], length_constraint=constraint, **options)
    produced = lengths_of("bart", "character", output)
    assert produced == bounds if constraint == "exact" else all(map(int.__le__, produced, bounds))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("unit", ["word", "byte"])
def test_a_ban_of_ngrams_cuts_no_character(unit, size):  # issue 15.16
    """A character that cannot be completed decodes to U+FFFD: a word of its own, and three bytes."""
    model = controlled_model("bart", length_unit=unit, init_std=0.6)
    wide = tokenizer_of("bart").convert_tokens_to_ids(["ã", "Ģ", "Ġ", "Â", "ħ"])
    bias = torch.full_like(model.final_logits_bias, -9.0)
    bias[:, wide] = 9.0
    model.final_logits_bias = bias
    bounds = [n for n in (1, 2, 5) for _ in range(20)]
    for seed in range(3):
        torch.manual_seed(seed)
        options = {"no_repeat_ngram_size": size, "do_sample": True, "num_return_sequences": 20, "temperature": 2.0}
        output = model.generate(SOURCE, length=[1, 2, 5], length_constraint="max", max_new_tokens=30, **options)
        produced = lengths_of("bart", unit, output)
        assert all(map(int.__le__, produced, bounds)), produced


# What a call may bring along


def test_a_bound_works_after_a_call_in_inference_mode():  # issue 15.18
    model = build_model("bart", init_std=0.3)
    for constraint in CONSTRAINTS:
        with torch.inference_mode():
            inside = model.generate(SOURCE, length=[1, 2, 3], length_constraint=constraint)
        again = model.generate(SOURCE, length=[1, 2, 3], length_constraint=constraint)
        assert inside.tolist() == again.tolist()
        longer = model.generate(SOURCE, length=[5, 9, 13], length_constraint=constraint)  # rows not seen before
        assert all(map(int.__le__, model.unit_table.count(longer).tolist(), [5, 9, 13]))
    with torch.inference_mode():
        made_inside = build_model("bart", init_std=0.3)
        made_inside.generate(SOURCE, length=4, length_constraint="exact")
    assert (
        made_inside.unit_table.count(made_inside.generate(SOURCE, length=6, length_constraint="exact")).tolist()
        == [6] * 3
    )


@pytest.mark.parametrize("where", ["config", "model"])
def test_eos_comes_from_the_models_own_configuration(where):  # issue 15.21
    model = build_model("bart", init_std=0.3)
    if where == "model":
        model.generation_config.eos_token_id = None
    config = transformers.GenerationConfig() if where == "config" else None
    for constraint in CONSTRAINTS:
        output = model.generate(SOURCE, config, length=[1, 7, 23], length_constraint=constraint)
        produced = model.unit_table.count(output).tolist()
        assert produced == [1, 7, 23] if constraint == "exact" else all(map(int.__le__, produced, [1, 7, 23]))
        assert (output[:, 1:] == 2).any(dim=1).all()


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_a_bound_samples_with_invalid_values_removed(constraint):  # issue 15.22
    """`InfNanRemoveLogitsProcessor` writes the least number for -inf, and dividing it by a temperature gives -inf."""
    model = build_model("bart", init_std=0.3)
    torch.manual_seed(0)
    options = {"remove_invalid_values": True, "do_sample": True, "temperature": 0.5, "forced_bos_token_id": 0}
    output = model.generate(SOURCE, length=[1, 7, 23], length_constraint=constraint, min_new_tokens=9, **options)
    produced = model.unit_table.count(output).tolist()
    assert produced == [1, 7, 23] if constraint == "exact" else all(map(int.__le__, produced, [1, 7, 23]))


@pytest.mark.parametrize("draft", ["controlled", "plain class", "stock"])
@pytest.mark.parametrize("constraint", [None, *CONSTRAINTS])
def test_assisted_generation_gives_what_greedy_does(constraint, draft):  # issue 15.23
    model = build_model("bart", init_std=0.2)
    torch.manual_seed(3)
    assistant = {
        "controlled": lambda: build_model("bart", seed=3, init_std=0.2),
        "plain class": lambda: build_model("bart", seed=3, length_encoding="none", absolute_positions=True),
        "stock": lambda: transformers.BartForConditionalGeneration(transformers.BartConfig(**SHAPE)).eval(),
    }[draft]()
    options = {"length": 9, "length_constraint": constraint, "max_new_tokens": 20}
    expected = model.generate(SOURCE[:1], **options)
    assert model.generate(SOURCE[:1], assistant_model=assistant, **options).tolist() == expected.tolist()
    assert constraint is None or int(model.unit_table.count(expected)) <= 9


def length_of_a_sent_model(model, source):
    return model.unit_table.count(model.generate(source, length=5, length_constraint="exact")).tolist()


def test_a_bound_leaves_nothing_on_the_model():  # issue 15.24
    units = UnitTable.from_tokenizer(tokenizer_of("bart"), "character")
    before = sorted(vars(units))
    process = LengthConstraintLogitsProcessor(units, [3, 5], "exact", eos_token_id=2, max_length=20)
    scores = torch.zeros(2, units.weights.shape[1])
    masked = process(torch.tensor([[2, 9], [2, 11]]), scores)
    assert sorted(vars(units)) == before
    for copied in (pickle.loads(pickle.dumps(process)), copy.deepcopy(process)):
        assert torch.equal(copied(torch.tensor([[2, 9], [2, 11]]), scores), masked)
    for copied in (pickle.loads(pickle.dumps(units)), copy.deepcopy(units)):
        again = LengthConstraintLogitsProcessor(copied, [3, 5], "exact", eos_token_id=2, max_length=20)
        assert torch.equal(again(torch.tensor([[2, 9], [2, 11]]), scores), masked)


def test_a_table_that_is_changed_in_place_is_read_again():
    units = table()
    assert constrain(2, "max", [[0, 1, 1]], unit_table=units) == [[0, 2, 3]]
    units.weights[0, 3] = 5
    assert constrain(2, "max", [[0, 1, 1]], unit_table=units) == [[0, 2]]
    units.weights = torch.tensor([[0, 0, 9, 2, 2]], dtype=torch.int32)
    assert constrain(2, "max", [[0, 1, 1]], unit_table=units) == [[0, 3, 4]]


@pytest.mark.slow
def test_a_model_is_sent_to_a_spawned_worker_after_a_bound():  # issue 15.24
    model = build_model("bart", init_std=0.3)
    model.generate(SOURCE, length=5, length_constraint="exact")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(length_of_a_sent_model, (model, SOURCE)) == [5, 5, 5]


@pytest.mark.parametrize("constraint", [None, "max"])
def test_logits_processors_may_be_positional(constraint):  # issue 15.26
    model = build_model("bart", init_std=0.3)

    def only_seven(input_ids, scores):
        return torch.full_like(scores, NO).index_fill(1, torch.tensor([7]), 0.0)

    for arguments, named in (((SOURCE, None, [only_seven]), {}), ((SOURCE,), {"logits_processor": [only_seven]})):
        output = model.generate(*arguments, **named, length=5, length_constraint=constraint, max_new_tokens=4)
        assert output[:, 1:4].tolist() == [[7, 7, 7]] * 3


def told_encoder(seed, **fields):
    model = build_model("bart", seed=seed, init_std=0.2, encoder_length_embedding=True, **fields)
    torch.nn.init.normal_(model.model.encoder.length_embedding.weight, std=0.5)
    return model


@pytest.mark.parametrize("plain_decoder", [False, True])
def test_an_ensemble_gives_each_encoder_the_length(plain_decoder):  # issue 15.5
    fields = {"length_encoding": "none", "absolute_positions": True} if plain_decoder else {}
    models = [build_model("bart", seed=1, init_std=0.2), told_encoder(2, **fields)]
    inputs = {"input_ids": SOURCE, "decoder_input_ids": torch.tensor([[2, 5], [2, 7], [2, 9]]), "length": [3, 9, 40]}
    mean = torch.stack([model(**inputs).logits.double().softmax(-1) for model in models]).mean(0)
    ensemble = LengthControlEnsemble(models)
    torch.testing.assert_close(ensemble(**inputs).logits.double(), mean.log(), atol=1e-5, rtol=0)
    options = {"max_new_tokens": 8, "min_new_tokens": 8}
    output = ensemble.generate(SOURCE, length=[3, 9, 40], **options)
    inputs |= {"decoder_input_ids": output[:, :-1]}
    mean = torch.stack([model(**inputs).logits.double().softmax(-1) for model in models]).mean(0)
    mean[:, :, 2] = 0  # EOS is forced in the last position alone
    assert mean.argmax(-1)[:, :-1].tolist() == output[:, 1:-1].tolist()
    several = ensemble.generate(SOURCE[:1], length=[3, 9, 40], **options)
    alone = [ensemble.generate(SOURCE[:1], length=n, **options)[0].tolist() for n in (3, 9, 40)]
    assert several.tolist() == alone
