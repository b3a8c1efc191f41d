"""A window around an exact length: what may be written is told by trying every text, and nothing ends outside."""

import random

import pytest
import torch
from conftest import build_model
from family_models import NO, SOURCE, controlled_model, lengths_of
from huggingface_hub.errors import StrictDataclassClassValidationError

from hf_lenctrl import LengthConstraintLogitsProcessor, UnitTable
from hf_lenctrl.lengths import check_tolerance, parse_tolerance, window_of


# Hand-made tables: entry 0 is EOS, 1 is BOS, which writes nothing; 2, 3 and 4 write 1, 2, 3 tokens
ONE_TO_THREE = [[0, 0, 1, 2, 3]]


def table(weights=ONE_TO_THREE, unit="token", next_state=None):
    return UnitTable(unit, torch.tensor(weights), None if next_state is None else torch.tensor(next_state))


@pytest.mark.parametrize(
    ("length", "tolerance", "low", "high"),
    [
        (40, 4, 36, 44),
        (9, 0.1, 8, 10),  # at least one unit
        (9, (0.0, 0.1), 9, 10),
        (1, 0.1, 1, 2),
        (30, 0.1, 27, 33),  # 0.1 * 30 is 3.0000000000000004 in floats
        (100, 0.29, 71, 129),  # 0.29 * 100 is 28.999999999999996
        (40, (0.25, 2), 30, 42),
        (40, (4, 0.0), 36, 40),
        (3, 5, 1, 8),
        (40, 0, 40, 40),
        (10**7 - 3, 5, 10**7 - 8, 10**7 - 1),
    ],
)
def test_a_window_never_goes_beyond_its_share(length, tolerance, low, high):
    assert window_of([length], tolerance) == ([low], [high])


@pytest.mark.parametrize(
    "wrong", [-1, 1.0, 4.0, -0.1, True, "4", float("nan"), (1,), (1, 2, 3), (1, -2), [4, "1"], 10**7, (0, [1])]
)
def test_a_wrong_tolerance_is_told(wrong):
    with pytest.raises(ValueError, match=r"length_tolerance must be units \(4\), a share .* from 0 to under 1"):
        check_tolerance(wrong, "exact")


def test_a_word_that_is_no_tolerance_is_told_with_the_rule():
    assert parse_tolerance(["4"]) == 4 and parse_tolerance(["0.1", "2"]) == (0.1, 2)
    with pytest.raises(ValueError, match=r"length_tolerance must be units \(4\), .*, or a pair of these, got '10%'"):
        parse_tolerance(["10%"])


@pytest.mark.parametrize("constraint", ["max", None])
def test_a_tolerance_goes_with_exact_alone(constraint):
    told = "length_tolerance=2 is a window around an exact length, got"
    with pytest.raises(ValueError, match=told):
        build_model("bart").generate(SOURCE, length=5, length_constraint=constraint, length_tolerance=2)
    with pytest.raises(StrictDataclassClassValidationError, match=told):
        build_model("bart", length_tolerance=2, length_constraint=constraint)


def random_machine(draw: random.Random):
    """Entry 0 is an EOS, 1 a BOS; `states_after` asks that what writes leads to one state."""
    states, size, most = draw.randint(1, 3), draw.randint(3, 6), draw.choice([1, 3, 5, 9])
    weights = [[0, 0, *(draw.randint(0, most) for _ in range(size - 2))] for _ in range(states)]
    following = [[state] * size for state in range(states)]
    for i in range(2, size):
        after, counts_first = draw.randint(1, states - 1) if states > 1 else 0, draw.random() < 0.5
        for state in range(states):
            following[state][i] = after if state or counts_first else 0
    if states == 3 and draw.random() < 0.5:
        weights[2][:2] = [~0, ~0]  # no text may end there
    if states > 1 and draw.random() < 0.3:  # one entry writes at the start alone: a longest text
        weights[1:] = [[row[0], row[1], *[0] * (size - 2)] for row in weights[1:]]
    return weights, following


def totals(weights, following, eos: list[int], start: tuple[int, int], high: int) -> set[int]:
    """Units of every text up to `high` that can follow `start`, a state and the units that were written."""
    seen, rest, found = {start}, [start], set()
    while rest:
        state, count = rest.pop()
        for i, (weight, after) in enumerate(zip(weights[state], following[state], strict=True)):
            if weight < 0 or i == 1 or count + weight > high:
                continue
            if i in eos:
                found |= {count + weight} if weights[after][0] >= 0 else set()
            elif (after, count + weight) not in seen:
                seen.add((after, count + weight))
                rest.append((after, count + weight))
    return found


def expected_entries(weights, following, eos, state, count, low, high) -> set[int]:
    """Entries that lead to a text within the window, or where there is none to the longest one below it."""
    possible = totals(weights, following, eos, (state, count), high)
    if not possible:
        return set()
    least = min(low, max(possible))
    found = set()
    for i, (weight, after) in enumerate(zip(weights[state], following[state], strict=True)):
        written = count + weight
        if weight < 0 or i == 1 or written > high:
            continue
        if i in eos:
            found |= {i} if least <= written and weights[after][0] >= 0 else set()
        elif any(least <= n for n in totals(weights, following, eos, (after, written), high)):
            found.add(i)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_the_entries_that_get_through_are_those_that_trying_every_text_finds(seed):
    """Within a window, of an exact length and up to one."""
    draw = random.Random(seed)
    compared = missed = free = 0
    for case in range(120):
        eos = draw.choice([[0], [0, 2]])  # the second one writes
        weights, following = random_machine(draw)
        length, below, above = draw.randint(1, 40), draw.randint(0, 9), draw.randint(0, 9)
        low, high = max(1, length - below), length + above
        constraint, tolerance = ("exact", (below, above))
        if case % 3:
            constraint, tolerance, low, high = (*(("exact", None, length), ("max", None, 0))[case % 3 - 1], length)
        units, options = table(weights, "word", following), {"tolerance": tolerance, "eos_token_id": eos}
        process = LengthConstraintLogitsProcessor(units, length, constraint, **options)
        ids, state, count = [1], 0, 0
        while ids[-1] not in eos and len(ids) < 30:
            scores = process(torch.tensor([ids]), torch.zeros(1, len(weights[0])))[0].tolist()
            through = {i for i, score in enumerate(scores) if score > NO and i != 1}
            expected = expected_entries(weights, following, eos, state, count, low, high)
            states, others = range(len(weights)), set(range(2, len(weights[0]))) - set(eos)
            silent = {i for i in others if all(weights[s][i] == 0 and following[s][i] == s for s in states)}
            if expected - silent and not (silent and len(ids) <= 2):
                assert through - silent == expected - silent, (weights, following, eos, low, high, ids)
                compared += 1
                missed += max(totals(weights, following, eos, (state, count), high)) < low
                free += bool(expected & set(eos)) and len(expected) > 1
            i = draw.choice(sorted(through))
            ids.append(i)
            count += max(weights[state][i], ~weights[state][i])
            state = following[state][i]
    assert compared > 300 and missed > 5 and free > 20


def test_a_scarce_limit_asks_for_the_lowest_end_alone():
    """Entries of 1, 2 and 3 tokens: 10 to 20 within four entries and EOS is 3 + 3 + 3 + 1 at least."""
    options = {"tolerance": (5, 5), "eos_token_id": 0}
    process = LengthConstraintLogitsProcessor(table(), 15, "exact", max_length=6, **options)

    def through(*written):
        return (process(torch.tensor([[1, *written]]), torch.zeros(1, 5))[0] > NO).nonzero().squeeze(1).tolist()

    assert through(4, 2) == through(4, 4, 2) == [4]  # two entries for 6 of 10, one for 3
    assert through(4, 4) == through(4, 4, 4) == [2, 3, 4] and through(4, 4, 4, 2) == [0]
    with pytest.raises(ValueError, match="^10 to 20 tokens may need 6 positions"):
        LengthConstraintLogitsProcessor(table(), 15, "exact", max_length=5, **options)
    with pytest.raises(ValueError, match="^at least 10 tokens may need 6 positions"):
        LengthConstraintLogitsProcessor(table(), 10, "min", max_length=5, eos_token_id=0)


def test_the_window_of_a_configuration_is_the_default_of_exact(tmp_path):
    model = controlled_model("bart", length_constraint="exact", length_tolerance=(0, 5), length_unit="character")
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert again.config.length_tolerance == (0, 5)
    options = ({}, {"length_tolerance": (0, 5)}, {"length_tolerance": 0})
    default, same, none = (again.generate(SOURCE, length=[3, 7, 23], **given) for given in options)
    assert torch.equal(default, same)
    assert lengths_of("bart", "character", none) == [3, 7, 23] != lengths_of("bart", "character", default)
    named = again.generate(SOURCE, length=[3, 7, 23], length_constraint="exact")  # has no window but its own
    assert torch.equal(named, none)
    again.generate(SOURCE, length=5, length_constraint="max")
    for constraint in ("max", "exact"):
        config = type(model).from_pretrained(tmp_path, length_constraint=constraint).config
        assert (config.length_constraint, config.length_tolerance) == (constraint, None)
    assert type(model).from_pretrained(tmp_path, length_tolerance=0.5).config.length_tolerance == 0.5
