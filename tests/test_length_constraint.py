"""The processor of `max` and `exact`: hand-made tables, real tokenizers, and vocabularies of any shape."""

import copy
import pickle
import random
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from conftest import build_model
from family_models import CONSTRAINTS, NO, tokenizer_of
from test_length_window import ONE_TO_THREE, table, totals
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from hf_lenctrl import LengthConstraintLogitsProcessor, UnitTable
from hf_lenctrl.length_pair import PairConstraintLogitsProcessor
from hf_lenctrl.length_rules import Rows, Rules
from hf_lenctrl.length_units import LENGTH_UNITS


SCORES = [0.1, 0.2, 0.3, 0.4, 0.5]


def constrain(length, constraint, rows, scores=None, **options):
    """Entries that get through for each row of ids; their scores must be the ones given."""
    options = {"unit_table": table(), **options}
    process = LengthConstraintLogitsProcessor(length=length, constraint=constraint, eos_token_id=0, **options)
    scores = torch.tensor([SCORES] * len(rows) if scores is None else scores)
    before = scores.clone()
    masked = process(torch.tensor(rows), scores)
    assert torch.equal(scores, before)
    through = masked > NO
    assert torch.equal(masked[through], scores[through])
    return [row.nonzero().squeeze(1).tolist() for row in through]


TWOS = [[0, 0, 2, 2, 4]]
ENTRIES = [
    # max masks what does not fit, never EOS
    (6, "max", [[1, 2, 3], [1, 3, 3], [1, 3, 4], [1, 4, 4]], {}, [[0, 2, 3, 4], [0, 2, 3], [0, 2], [0]]),
    # exact masks EOS before the length, all else at it
    (6, "exact", [[1, 2, 3], [1, 3, 3], [1, 3, 4], [1, 4, 4]], {}, [[2, 3, 4], [2, 3], [2], [0]]),
    # each example has its own length
    ([5, 6, 7, 8], "max", [[1, 4, 3]] * 4, {}, [[0], [0, 2], [0, 2, 3], [0, 2, 3, 4]]),
    (torch.tensor([5, 6, 7, 8]), "exact", [[1, 4, 3]] * 4, {}, [[0], [2], [2, 3], [2, 3, 4]]),
    # beams of an example follow each other
    ([3, 6], "exact", [[1, 2, 2], [1, 3, 2], [1, 4, 3]] * 2, {}, [[2], [0], [0], [2, 3, 4], [2, 3, 4], [2]]),
    # past the length a row may only end
    *((2, constraint, [[1, 3, 3], [1, 2, 4]], {}, [[0], [0]]) for constraint in CONSTRAINTS),
    # where nothing fits EOS gets through
    (3, "exact", [[1, 0, 2], [1, 2, 3]], {"unit_table": table(TWOS)}, [[0], [0]]),
    (1, "exact", [[1, 1, 1]], {"unit_table": table(TWOS)}, [[0]]),
    # a BOS or a language code stands at the start alone
    (6, "max", [[0], [1]], {}, [[0, 1, 2, 3, 4]] * 2),
    (6, "max", [[0, 1, 2], [0, 2, 2]], {}, [[0, 2, 3, 4]] * 2),
    (2, "max", [[1, 2]], {}, [[0, 2]]),
    (2, "exact", [[1, 2]], {}, [[2]]),
    (1, "exact", [[1, 2]], {}, [[0]]),
    # exact keeps the larger entries when steps become scarce
    *((6, "exact", [row], {"max_length": 4}, [through]) for row, through in (([1], [4]), ([1, 4, 4], [0]))),
    (6, "exact", [[1]], {"max_length": 5}, [[1, 2, 3, 4]]),  # three to come: nothing is lost yet
    (6, "exact", [[1, 1], [1, 2]], {"max_length": 5}, [[4], [3, 4]]),  # two
    (6, "exact", [[1, 2, 3], [1, 3, 2], [1, 3, 3]], {"max_length": 5}, [[4], [4], [3]]),
    (6, "exact", [[1, 3, 3, 3]], {"max_length": 5}, [[0]]),
    # the last position is for EOS
    *((6, constraint, [[1, 2, 2, 2, 2]], {"max_length": 6}, [[0]]) for constraint in CONSTRAINTS),
    # a prompt does not count
    (2, "max", [[4, 4, 4]], {"prompt_length": 3}, [[0, 1, 2, 3]]),
    (3, "exact", [[4, 4, 4, 2, 2, 2]], {"prompt_length": 3}, [[0]]),
    *((2, "exact", [[4, 4, 4, 2]], {"prompt_length": 3, **most}, [[2]]) for most in ({}, {"max_length": 6})),
]


@pytest.mark.parametrize(("length", "constraint", "rows", "options", "through"), ENTRIES)
def test_the_entries_that_get_through(length, constraint, rows, options, through):
    assert constrain(length, constraint, rows, **options) == through


def test_what_another_processor_masked_stays_masked_but_for_eos_where_nothing_fits():
    process = LengthConstraintLogitsProcessor(table([[0, 2, 2]]), 3, "exact", eos_token_id=0)
    assert process(torch.tensor([[1, 2, 2]]), torch.tensor([[NO, 0.2, 0.3]])).tolist() == [[0.0, NO, NO]]
    forced = [[NO, 0.0, NO, NO, NO]]  # a token that writes nothing
    for constraint in CONSTRAINTS:
        assert constrain(6, constraint, [[0]], scores=forced) == [[1]]
        # steps are scarce: without the force it would have been left out
        assert constrain(6, constraint, [[0]], scores=forced, max_length=4) == [[1]]


# Byte-level BPE: 日 is æ Ĺ ¥, three bytes; 😀 is ðŁ ĺĢ, four
BYTE_PIECES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "Ġ", "æ", "Ĺ", "¥", "ðŁ", "ĺĢ"]


def byte_names(length, constraint, unit, written, pieces=BYTE_PIECES, banned=(), **options):
    tokenizer = transformers.BartTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[])
    eos = tokenizer.eos_token_id
    units = UnitTable.from_tokenizer(tokenizer, unit)
    process = LengthConstraintLogitsProcessor(units, length, constraint, eos_token_id=eos, **options)
    ids = torch.tensor([[eos, 0, *map(BYTE_PIECES.index, written)]])
    masked = process(ids, torch.tensor([[NO if piece in banned else 0.0 for piece in pieces]]))
    return {piece for piece, score in zip(pieces, masked[0].tolist(), strict=True) if score > NO} - {"<s>", "<pad>"}


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("unit", ["character", "word", "byte"])
def test_after_a_lead_byte_only_bytes_that_finish_the_character_get_through(unit, constraint):
    length = {"character": 2, "word": 1, "byte": 4}[unit]
    assert byte_names(length, constraint, unit, ["æ"]) == {"Ĺ", "¥", "ĺĢ"}  # two bytes are open
    assert byte_names(length, constraint, unit, ["æ", "Ĺ"]) == {"Ĺ", "¥"}  # one is
    assert byte_names(length, constraint, unit, ["ðŁ"]) == {"Ĺ", "¥", "ĺĢ"}
    # a ban of n-grams holds as far as the character can be finished
    assert byte_names(length, constraint, unit, ["æ"], banned=["Ĺ"]) == {"¥", "ĺĢ"}
    assert byte_names(length, constraint, unit, ["æ", "Ĺ"], banned=["Ĺ", "¥"]) == {"Ĺ", "¥"}


def test_a_character_is_begun_only_where_its_bytes_fit():
    assert byte_names(5, "max", "byte", ["a"]) == {"</s>", "a", "Ġ", "æ", "ðŁ"}
    assert byte_names(4, "max", "byte", ["a"]) == {"</s>", "a", "Ġ", "æ"}
    assert byte_names(3, "max", "byte", ["a"]) == {"</s>", "a", "Ġ"}
    assert byte_names(2, "exact", "character", ["a"]) == {"a", "Ġ", "æ", "ðŁ"}
    assert byte_names(2, "exact", "character", ["a", "æ", "Ĺ", "¥"]) == {"</s>"}
    # before the last position: either goes on with one more entry, ĺĢ; EOS needs the position after it
    assert byte_names(9, "max", "character", ["a"], max_length=7) == {"</s>", "a", "Ġ", "æ", "ðŁ"}
    assert byte_names(9, "max", "character", ["a", "æ"], max_length=7) == {"Ĺ", "¥", "ĺĢ"}
    assert byte_names(9, "max", "character", ["a", "æ"], max_length=6) == {"ĺĢ"}
    assert byte_names(9, "max", "character", ["a", "æ", "ĺĢ"], max_length=6) == {"</s>"}
    assert byte_names(9, "max", "character", ["a"], max_length=6) == {"</s>", "a", "Ġ", "æ", "ðŁ"}
    assert byte_names(9, "max", "character", ["a"], max_length=5) == {"</s>", "a", "Ġ"}


def test_a_character_of_many_entries_is_not_begun_where_an_exact_length_needs_its_steps():
    """Three entries for two characters: 日 or 😀 alone would take all of them."""
    singles = BYTE_PIECES[:-1]  # without the piece of two bytes that could finish either
    for length, limit, begun in ((2, 6, set()), (2, 7, {"æ", "ðŁ"}), (4, 8, set()), (4, 9, {"æ", "ðŁ"})):
        names = byte_names(length, "exact", "character", [], pieces=singles, max_length=limit)
        assert names & {"a", "Ġ", "æ", "ðŁ"} == {"a", "Ġ"} | begun


@pytest.mark.parametrize(
    ("given", "scores", "message"),
    [
        ({"constraint": None}, (1, 5), "constraint=None"),
        ({}, (1, 6), "unit table of 5 entries"),
        ({"length": [5, 6]}, (3, 5), "3 rows and 5 entries do not go with 2 lengths"),
        ({"eos_token_id": None}, (1, 5), "eos_token_id=None"),
        ({"unit_table": None}, (1, 5), "call model.set_unit_table"),  # it waits for a tokenizer
    ],
)
def test_a_wrong_call_is_told(given, scores, message):
    options = {"unit_table": table(), "length": 5, "constraint": "max", "eos_token_id": 0, **given}
    options["unit_table"] = options["unit_table"] or build_model("bart", length_unit="character").unit_table
    with pytest.raises(ValueError, match=message):
        LengthConstraintLogitsProcessor(**options)(torch.tensor([[1]] * scores[0]), torch.zeros(scores))


@pytest.mark.parametrize(
    ("of", "length", "needed"),
    [
        *(([ONE_TO_THREE], length, needed) for length, needed in ((6, 4), (7, 5), ([1, 7], 5))),
        ([[[0, 0, 1, 3]]], 5, 7),  # without an entry of two it may take five of one
        ([TWOS], 6, 4),  # without one of one the largest tells how many
        # an entry of two writes three after the first, and a space, which is dropped there, one
        ([[[0, 0, 2, 0], [0, 0, 3, 1]], "character", [[0, 0, 1, 1], [1, 1, 1, 1]]], 5, 7),
    ],
)
def test_a_max_length_too_small_for_an_exact_length_is_told(of, length, needed):
    units = table(*of)
    LengthConstraintLogitsProcessor(units, length, "exact", eos_token_id=0, max_length=needed)
    message = rf"exactly [567] \w+ may need {needed} positions .* max_length leaves {needed - 1}; raise"
    with pytest.raises(ValueError, match=message):
        LengthConstraintLogitsProcessor(units, length, "exact", eos_token_id=0, max_length=needed - 1)
    LengthConstraintLogitsProcessor(units, 6, "max", eos_token_id=0, max_length=2)
    # a word takes two entries where white space is one of its own
    byte_names(3, "exact", "word", [], max_length=8)
    with pytest.raises(ValueError, match="exactly 3 words may need 8 positions"):
        byte_names(3, "exact", "word", [], max_length=7)


@pytest.mark.parametrize("unit", [unit for unit in LENGTH_UNITS if unit != "arial"])
@pytest.mark.parametrize("kind", ["characters", "words"])
def test_an_exact_length_is_kept_in_the_fewest_positions_that_are_accepted(character_tokenizer, kind, unit):
    """
    Whatever the scores prefer, with characters as entries, where a syllable or a word needs several, and with whole
    words, where few lengths are possible.
    """
    tokenizer = character_tokenizer if kind == "characters" else metaspace_tokenizer()
    units, eos = UnitTable.from_tokenizer(tokenizer, unit), tokenizer.eos_token_id
    prefers = torch.stack([(units.weights == 0).float().mean(dim=0), torch.arange(units.weights.shape[1]) == eos])
    for length in (1, 2, 5, 11):
        rows = torch.cat([9 * prefers, torch.zeros(2, prefers.shape[1])])
        options = {"constraint": "exact", "eos_token_id": eos}
        positions = next(n for n in range(99) if _accepted(units, length, max_length=n, **options))
        process = LengthConstraintLogitsProcessor(units, [length] * len(rows), max_length=positions, **options)
        torch.manual_seed(0)
        ids = torch.zeros(len(rows), 1, dtype=torch.long)
        while ids.shape[1] < positions:
            best = process(ids, rows + torch.randn(rows.shape)).argmax(dim=-1, keepdim=True)
            ids = torch.cat([ids, torch.where((ids == eos)[:, 1:].any(dim=-1, keepdim=True), eos, best)], dim=-1)
        assert units.count(ids).tolist() == [length] * len(rows)


@pytest.mark.parametrize("constraint", ["max", "exact"])
def test_a_text_ends_where_the_model_would_add_another_unit(constraint):
    """Entry 2 is a word, and 3 goes on with a word: the model that wants entry 2 must not take 3 in its place."""
    words = UnitTable("word", torch.tensor([[0, 0, 1, 0]] * 2), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]]))
    process = LengthConstraintLogitsProcessor(words, 2, constraint, eos_token_id=0)
    pair = PairConstraintLogitsProcessor(
        LengthConstraintLogitsProcessor(UnitTable("token", torch.tensor([[0, 0, 1, 1]])), 9, eos_token_id=0),
        words,
        torch.tensor([2]),
    )
    for one in (process, pair) if constraint == "max" else (process,):
        for scores, through in (
            ([-7.0, -9.0, 3.0, -1.0], [0]),
            ([-7.0, -9.0, 3.0, 1.0], [0, 3]),
            ([-7.0, -9.0, 3.0, 4.0], [0, 3]),
        ):
            kept = one(torch.tensor([[1, 2, 2]]), torch.tensor([scores]))[0]
            assert (kept > NO).nonzero().squeeze(1).tolist() == through and kept[0] == -7
        assert (one(torch.tensor([[1, 2]]), torch.tensor([scores]))[0] > NO).sum() > 1  # a word is left


def metaspace_tokenizer():
    """Words of one to three letters, each with the white space before it."""
    vocabulary = {word: i for i, word in enumerate(("</s>", "<unk>", "▁a", "▁to", "▁the", "▁cat", "▁is", "▁I"))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")


def _accepted(units, length, **options) -> bool:
    try:
        return bool(LengthConstraintLogitsProcessor(units, length, **options))
    except ValueError:
        return False


def test_threads_share_the_masks_that_they_make():
    def make(states, numbers):
        values = torch.stack([states * 100 + numbers] * 3, dim=1).float()
        time.sleep(0.002)  # other threads run here
        return values

    rows = Rows(make, low=0, high=19)

    def ask(seed):
        generator = torch.Generator().manual_seed(seed)
        state, number = (torch.randint(n, (5,), generator=generator) for n in (40, 20))
        return torch.equal(rows(state, number)[:, 0], (state * 100 + number).float())

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(300)))


def test_reachable_lengths_repeat_however_long():
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


def test_exact_lengths_of_hundreds_a_character_take_little_memory():
    """A cost of a character is up to 1000; a table that splits characters over bytes has many states."""
    draw = random.Random(0)
    weights = [[0, 0, *(draw.randint(200, 800) for _ in range(11))] for _ in range(60)]
    following = [[state, state, *(draw.randrange(60) for _ in range(11))] for state in range(60)]
    units = table(weights, "word", following)
    tracemalloc.start()
    best = Rules(units, (0,), "exact").best
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000  # 60 states, each with 1,000 to 3,000 numbers
    for length in (199, 200, 801, 950, 1100):
        assert int(best[0, length]) == max(totals(weights, following, [0], (0, 0), length), default=-1)


def test_what_fits_may_stand_anywhere_in_a_large_vocabulary():
    units, scores = table([[0, *[5] * 19_998, 1]]), torch.rand(1, 20_000)
    for constraint, rows, through in (
        ("exact", [[0]], [19_999]),
        ("max", [[0]], [0, 19_999]),
        ("exact", [[0, 19_999]], [0]),
    ):
        assert constrain(1, constraint, rows, scores, unit_table=units) == [through]


def test_a_bound_leaves_nothing_on_the_model():
    units = UnitTable.from_tokenizer(tokenizer_of("bart"), "character")
    before = sorted(vars(units))
    process = LengthConstraintLogitsProcessor(units, [3, 5], "exact", eos_token_id=2, max_length=20)
    ids, scores = torch.tensor([[2, 9], [2, 11]]), torch.zeros(2, units.weights.shape[1])
    masked = process(ids, scores)
    assert sorted(vars(units)) == before
    for copied in (pickle.loads(pickle.dumps(process)), copy.deepcopy(process)):
        assert torch.equal(copied(ids, scores), masked)


def test_a_table_that_is_changed_in_place_is_read_again():
    units = table()
    assert constrain(2, "max", [[0, 1, 1]], unit_table=units) == [[0, 2, 3]]
    units.weights[0, 3] = 5
    assert constrain(2, "max", [[0, 1, 1]], unit_table=units) == [[0, 2]]
    units.weights = torch.tensor([[0, 0, 9, 2, 2]], dtype=torch.int32)
    assert constrain(2, "max", [[0, 1, 1]], unit_table=units) == [[0, 3, 4]]


@pytest.mark.parametrize("eos", [[], -1, 3, [0, 3]])
def test_an_eos_that_is_no_entry_is_refused(eos):
    table = UnitTable("token", torch.tensor([[0, 1, 1]]))
    with pytest.raises(ValueError, match="eos_token_id must be ids of the 3 entries of the unit table, got"):
        LengthConstraintLogitsProcessor(table, 2, eos_token_id=eos)
