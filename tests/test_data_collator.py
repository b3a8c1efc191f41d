"""Batches with lengths: ids and counts written out."""

from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from conftest import build_model
from torch.utils.data import DataLoader
from transformers import BartTokenizer

from hf_lenctrl import DataCollatorForLengthControl


@pytest.fixture(scope="module")
def byte_level_tokenizer():
    """Byte-level BPE of ten entries; Ġ is the space."""
    vocab = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, "a": 5, "b": 6, "Ġ": 7, "Ġa": 8, "ab": 9}
    return BartTokenizer(vocab=vocab, merges=[("Ġ", "a"), ("a", "b")])


FEATURES = [
    {"input_ids": [0, 5, 2], "attention_mask": [1, 1, 1], "labels": [0, 9, 8, 6, 2]},  # <s>"ab" " a" "b"</s>
    {"input_ids": [0, 2], "attention_mask": [1, 1], "labels": [0, 6, 2]},  # <s>"b"</s>
]
LENGTHS = {"token": [3, 1], "character": [5, 1], "word": [2, 1], "byte": [5, 1]}


@pytest.mark.parametrize(("unit", "pad"), [*((unit, -100) for unit in LENGTHS), ("character", -1)])
def test_a_batch_is_padded_and_gets_lengths(byte_level_tokenizer, unit, pad):
    batch = DataCollatorForLengthControl(byte_level_tokenizer, length_unit=unit, label_pad_token_id=pad)(FEATURES)
    assert {name: value.tolist() for name, value in batch.items()} == {
        "input_ids": [[0, 5, 2], [0, 2, 1]],
        "attention_mask": [[1, 1, 1], [1, 1, 0]],
        "labels": [[0, 9, 8, 6, 2], [0, 6, 2, pad, pad]],
        "length": LENGTHS[unit],
    }
    assert batch["length"].dtype == torch.long


@pytest.mark.parametrize(
    ("options", "lengths"), [({}, [5, 1]), ({"length_unit": "token"}, [3, 1]), ({"length": 40}, [40, 40])]
)
def test_lengths_are_in_the_models_unit_unless_another_or_a_fixed_one_is_given(byte_level_tokenizer, options, lengths):
    model = build_model("bart", vocab_size=10, length_unit="character")
    batch = DataCollatorForLengthControl(byte_level_tokenizer, model=model, **options)(FEATURES)
    assert batch["length"].tolist() == lengths and batch["length"].dtype == torch.long


@pytest.mark.parametrize("length", [None, 40])
def test_a_model_without_length_encoding_gets_no_length(family, byte_level_tokenizer, length):
    model = build_model(family, vocab_size=10, length_encoding="none", absolute_positions=True)
    batch = DataCollatorForLengthControl(byte_level_tokenizer, model=model, length=length)(FEATURES)
    assert set(batch) == {"input_ids", "attention_mask", "labels", "decoder_input_ids"}
    model(**batch)
    rows = [{**row, "length": 3} for row in FEATURES]  # a column of the rows
    assert set(DataCollatorForLengthControl(byte_level_tokenizer, model=model, length=length)(rows)) == set(batch)


@pytest.mark.parametrize("length", [None, 40])
def test_a_target_that_counts_nothing_is_refused(byte_level_tokenizer, length):
    collator = DataCollatorForLengthControl(byte_level_tokenizer, length_unit="character", length=length)
    with pytest.raises(ValueError, match=r"every target must hold at least one character, got \[5, 0\]"):
        collator([FEATURES[0], {**FEATURES[1], "labels": [0, 2]}])
    with pytest.raises(ValueError, match=r"every row must have labels; make them by tokenizer\(source, text_target="):
        collator([{"input_ids": [5, 2]}, {"input_ids": [6, 2], "labels": None}])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length_unit": "line"}, "unit must be one of token, character, word, .*, arial, got 'line'"),
        ({"length": 0}, "length must be .*at least 1, got 0"),
        ({"overshoot_share": -0.1}, "shares must be at least 0, .* got {'overshoot_share': -0.1"),
        ({"no_length_share": 1.0}, "shares must be at least 0, .* 'no_length_share': 1.0}"),
        ({"overshoot_share": 0.6, "no_length_share": 0.5}, "at most 1 together, got"),
        ({"length_noise": -1}, "length_noise must be at least 0, got -1"),
        ({"length": 7, "length_noise": 2}, "length=7 does not work with length_noise=2; give one"),
    ],
)
def test_wrong_options_are_told(byte_level_tokenizer, options, message):
    with pytest.raises(ValueError, match=message):
        DataCollatorForLengthControl(byte_level_tokenizer, **{"length_unit": "token", **options})


def test_overshooting_examples_have_labels_only_where_the_length_is_used_up(shared_tokenizer):
    model = build_model("marian", vocab_size=len(shared_tokenizer))
    collate = DataCollatorForLengthControl(shared_tokenizer, model=model, overshoot_share=0.5)
    collate.set_epoch(0)
    targets = [[11, 12, 13, 14, 0], [15, 16, 0]]
    rows = [{"input_ids": [5, i, 0], "labels": labels} for i in range(20) for labels in targets]
    batch = collate(rows)
    # the target with 4 tokens, for each length that it may be given; 4 is the example left as it is
    wanted = {2: [-100, -100, 13, 14, 0], 3: [-100, -100, -100, 14, 0], 4: [11, 12, 13, 14, 0]}
    given = batch["length"][::2].tolist()
    assert set(given) == {2, 3, 4}  # 20 sources: every case is there
    assert batch["labels"][::2].tolist() == [wanted[n] for n in given]
    # with 2 tokens: padding stays padding
    two = {tuple(row) for row in batch["labels"][1::2].tolist()}
    assert two == {(-100, 16, 0, -100, -100), (15, 16, 0, -100, -100)}
    alone = collate([{"input_ids": [5, i, 0], "labels": [17, 0]} for i in range(20)])
    assert alone["labels"].tolist() == [[17, 0]] * 20  # of one token nothing is left out
    # the decoder still reads the whole target
    assert batch["decoder_input_ids"][:2].tolist() == [[2, 11, 12, 13, 14], [2, 15, 16, 0, 2]]


def test_a_share_of_the_examples_has_no_length_and_whole_labels(shared_tokenizer):
    model = build_model("marian", vocab_size=len(shared_tokenizer))
    collate = DataCollatorForLengthControl(shared_tokenizer, model=model, overshoot_share=0.2, no_length_share=0.3)
    collate.set_epoch(0)
    labels = [11, 12, 13, 14, 0]
    batch = collate([{"input_ids": [5, i, 0], "labels": labels} for i in range(1000)])
    without = batch["length"] == 0
    assert 240 < int(without.sum()) < 360  # 300; the limits are four standard deviations
    assert batch["labels"][without].tolist() == [labels] * int(without.sum())
    whole = (batch["labels"] != -100).all(dim=1)
    assert 150 < int((~whole).sum()) < 250
    assert batch["length"][whole & ~without].unique().tolist() == [4]
    kept = collate([{"input_ids": [5, i, 0], "labels": labels, "keep_length": i % 2 == 0} for i in range(1000)])
    assert kept.keys() == batch.keys()
    expected = batch["length"].clone()
    expected[::2] = expected[::2].masked_fill(without[::2], 4)
    assert kept["length"].tolist() == expected.tolist() and kept["labels"].tolist() == batch["labels"].tolist()


def test_a_share_keeps_the_lengths_of_a_column_and_a_fixed_length(shared_tokenizer):
    model, labels = build_model("marian", vocab_size=len(shared_tokenizer)), [11, 12, 13, 14, 0]
    rows = [{"input_ids": [5, i, 0], "labels": labels, "length": 9} for i in range(200)]
    for length in ("column", 9):
        collate = DataCollatorForLengthControl(shared_tokenizer, model=model, length=length, no_length_share=0.3)
        collate.set_epoch(0)
        assert collate(rows)["length"].unique().tolist() == [0, 9]


def noisy(tokenizer, **options):
    collate = DataCollatorForLengthControl(tokenizer, length_unit="token", **{"length_noise": 2, **options})
    collate.set_epoch(0)
    return collate


def rows_of(lengths):
    return [{"input_ids": [5, i, 2], "labels": [6] * n + [2]} for i, n in enumerate(lengths)]


@pytest.mark.parametrize(("window", "share"), [(1, 1667), (2, 1000)])
def test_noise_is_uniform_over_the_window_and_leaves_one_unit(byte_level_tokenizer, window, share):
    collate = noisy(byte_level_tokenizer, length_noise=window)
    values, counts = (collate(rows_of([9] * 5000))["length"] - 9).unique(return_counts=True)
    assert values.tolist() == list(range(-window, window + 1))
    assert all(abs(count - share) < 130 for count in counts.tolist())  # four standard deviations
    assert collate(rows_of([1] * 100))["length"].unique().tolist() == list(range(1, window + 2))


def test_noise_depends_on_seed_epoch_and_example_and_on_nothing_else(byte_level_tokenizer):
    rows = rows_of([20] * 64)
    collate = noisy(byte_level_tokenizer, seed=3)
    first = collate(rows)["length"].tolist()
    torch.manual_seed(99)
    again = noisy(byte_level_tokenizer, seed=3)
    one_by_one = [again([row])["length"].item() for row in reversed(rows)]
    assert one_by_one[::-1] == first  # whatever the batch, the order and the generators
    collate.set_epoch(1)
    second = collate(rows)["length"].tolist()
    other_seed = noisy(byte_level_tokenizer, seed=4)(rows)["length"].tolist()
    collate.set_epoch(0)
    assert collate(rows)["length"].tolist() == first
    # four of five of independent draws differ
    for other in (second, other_seed):
        assert 40 <= sum(a != b for a, b in zip(first, other, strict=True)) <= 62


def test_workers_that_outlive_an_epoch_draw_anew_forked_or_spawned(byte_level_tokenizer):
    collate, rows = noisy(byte_level_tokenizer), rows_of([20] * 32)
    sent = ForkingPickler.loads(ForkingPickler.dumps(collate))  # as it comes to a spawned process
    workers = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"}
    loader = DataLoader(rows, batch_size=8, collate_fn=collate, **workers)
    for epoch in (0, 1):
        collate.set_epoch(epoch)
        alone = noisy(byte_level_tokenizer)
        alone.set_epoch(epoch)
        expected = alone(rows)["length"].tolist()
        assert [n for batch in loader for n in batch["length"].tolist()] == expected
        assert sent(rows)["length"].tolist() == expected


def test_an_overshoot_is_inside_the_target_whatever_the_noise(shared_tokenizer):
    model = build_model("marian", vocab_size=len(shared_tokenizer), length_unit="character")
    collate = DataCollatorForLengthControl(shared_tokenizer, model=model, length_noise=4, overshoot_share=0.9)
    collate.set_epoch(0)
    batch = collate([dict(shared_tokenizer(f"source {i}", text_target="abc")) for i in range(60)])
    assert bool((batch["labels"] != -100).any(dim=1).all())  # no row is without a label
    over = (batch["labels"] == -100).any(dim=1)
    assert bool(over.any()) and bool((batch["length"][over] < 3).all())


def test_a_column_of_no_whole_numbers_is_refused(byte_level_tokenizer):
    collate = DataCollatorForLengthControl(byte_level_tokenizer, length_unit="character", length="column")
    rows = [{**dict(byte_level_tokenizer("a", text_target="b")), "length": value} for value in (40.7, 3)]
    with pytest.raises((TypeError, ValueError), match="40.7"):
        collate(rows)
