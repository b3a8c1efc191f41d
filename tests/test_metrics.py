"""Tests of the metrics: every expected figure was worked out by hand."""

import re

import numpy as np
import pytest
from transformers import EvalPrediction

from hf_lenctrl import length_metrics
from hf_lenctrl.evaluation.metrics import build_compute_metrics, rouge_metrics, rouge_settings


# length_metrics


def test_length_metrics_are_means_over_the_outputs():
    # differences 0, 5, -3, -1, 0: squares 35, absolute values 9, two exact, one over
    actual = length_metrics(produced=[20, 25, 17, 20, 60], requested=[20, 20, 20, 21, 60])
    assert actual == {"variance": 7.0, "mae": 1.8, "exact": 0.4, "over": 0.2}
    assert all(type(value) is float for value in actual.values())


def test_variance_is_taken_about_the_requested_length_not_the_mean():
    # every output is two too long: eq. 8 gives 4, the variance about the mean would be 0
    assert length_metrics([12, 12, 12], [10, 10, 10]) == {"variance": 4.0, "mae": 2.0, "exact": 0.0, "over": 1.0}


def test_length_metrics_take_arrays():
    assert length_metrics(np.array([3, 4]), np.array([3, 2])) == {
        "variance": 2.0,
        "mae": 1.0,
        "exact": 0.5,
        "over": 0.5,
    }


@pytest.mark.parametrize(
    "produced, requested, counts", [([], [], "0 and 0"), ([1, 2], [1], "2 and 1"), ([1], [], "1 and 0")]
)
def test_lengths_that_do_not_pair_up_are_refused(produced, requested, counts):
    with pytest.raises(ValueError, match=f"must have one length for each output, got {counts}"):
        length_metrics(produced, requested)


# rouge_metrics


def rouge(prediction: str, reference: str, **options) -> dict[str, float]:
    return rouge_metrics([prediction], [reference], **options)


def test_rouge_of_a_prediction_that_stops_early():
    # of 6 words 3 are found, all of the prediction's 3; of 5 pairs 2, all of its 2; the common subsequence is 3 long
    actual = rouge("the cat sat", "the cat sat on the mat")
    expected = {
        "rouge1_recall": 50.0,
        "rouge1_f1": 100 * 2 / 3,  # 2 * 1 * 1/2 / (3/2)
        "rouge2_recall": 40.0,
        "rouge2_f1": 100 * 4 / 7,  # 2 * 1 * 2/5 / (7/5)
        "rougeL_recall": 50.0,
        "rougeL_f1": 100 * 2 / 3,
    }
    assert actual == pytest.approx(expected)


ALL = ("rouge1_recall", "rouge1_f1", "rouge2_recall", "rouge2_f1", "rougeL_recall", "rougeL_f1")


@pytest.mark.parametrize(
    ("prediction", "reference", "options", "expected"),
    [
        ("mat the", "the mat", {}, dict(zip(ALL, (100, 100, 0, 0, 50, 50), strict=True))),  # another order
        ("a red cat", "cat", {}, {"rouge1_recall": 100, "rouge1_f1": 50}),  # recall divides by the reference
        ("editing images", "edit image", {}, {"rouge1_recall": 100}),
        ("editing images", "edit image", {"use_stemmer": False}, {"rouge1_recall": 0}),
        # five bytes of the prediction are "small", and the reference stays whole
        ("small text editor", "small text editor", {"max_bytes": 5}, {"rouge1_recall": 100 / 3, "rouge1_f1": 50}),
        # 7 characters in 10 bytes
        ("ééé cat", "cat", {"max_bytes": 7}, {"rouge1_recall": 0}),
        ("ééé cat", "cat", {"max_bytes": 10}, {"rouge1_recall": 100}),
        # "cat" and three of the four bytes of an emoji, or fewer: only the word is left
        *(("cat😀s", "cat", {"max_bytes": n}, {"rouge1_f1": 100}) for n in (4, 5, 6)),
        *((*texts, {}, dict.fromkeys(ALL, 0)) for texts in (("", "the cat"), ("the cat", ""), ("", ""))),
    ],
)
def test_rouge_of_one_text(prediction, reference, options, expected):
    actual = rouge(prediction, reference, **options)
    assert actual.keys() == set(ALL) and {name: actual[name] for name in expected} == pytest.approx(expected)


def test_rouge_is_the_mean_over_the_examples():
    actual = rouge_metrics(["the cat sat", "mat the"], ["the cat sat on the mat", "the mat"])
    assert actual["rouge1_recall"] == pytest.approx(75.0)  # 50 and 100
    assert actual["rouge2_recall"] == pytest.approx(20.0)  # 40 and 0
    assert actual["rougeL_f1"] == pytest.approx(100 * 7 / 12)  # 2/3 and 1/2


@pytest.mark.parametrize("predictions, references, counts", [([], [], "0 and 0"), (["a"], ["a", "b"], "1 and 2")])
def test_texts_that_do_not_pair_up_are_refused(predictions, references, counts):
    with pytest.raises(ValueError, match=f"each prediction needs one reference, got {counts}"):
        rouge_metrics(predictions, references)


def test_rouge_of_characters_sees_japanese():
    # 6 of 8 characters, white space left out; 4 of 7 pairs; the longest common subsequence has 6
    actual = rouge_metrics(["日本の 地図です"], ["日本の古い地図で"], unit="character", use_stemmer=False)
    assert actual["rouge1_recall"] == pytest.approx(100 * 6 / 8) and actual["rouge1_f1"] == pytest.approx(
        100 * 12 / 15
    )
    assert actual["rouge2_recall"] == pytest.approx(100 * 4 / 7)
    assert actual["rougeL_recall"] == pytest.approx(100 * 6 / 8)
    assert rouge_metrics(["日本"], ["日本"])["rouge1_f1"] == 0  # no word that rouge_score knows
    assert ", characters, truncation=none" in rouge_settings(unit="character")
    with pytest.raises(ValueError, match="unit of ROUGE must be one of word, character, got 'byte'"):
        rouge_metrics(["a"], ["a"], unit="byte")


def test_words_of_japanese_are_told_to_be_none(caplog):
    assert rouge_metrics(["日本語"], ["日本語"])["rouge1_f1"] == 0
    assert "no reference has a Latin word, so ROUGE of words is 0; compare characters" in caplog.text


def test_rouge_settings_name_version_stemmer_and_cut():
    signature = r"rouge_score \d+\.\d+\S*, stemmer={}, truncation={}, mean over examples x 100"
    assert re.fullmatch(signature.format("True", "none"), rouge_settings())
    assert re.fullmatch(signature.format("False", "75 bytes"), rouge_settings(max_bytes=75, use_stemmer=False))


# build_compute_metrics


def rows(*rows: list[int]) -> np.ndarray:
    """As Trainer hands them over: filled up with -100."""
    width = max(map(len, rows))
    return np.array([row + [-100] * (width - len(row)) for row in rows])


@pytest.fixture(params=["shared_tokenizer", "character_tokenizer"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def evaluation(tokenizer):
    """Predictions "small text" and "card game" for the references "small text editor" and "card game"."""

    def ids(text):
        return tokenizer(text_target=text)["input_ids"]

    start = [tokenizer.pad_token_id]
    predictions = rows(start + ids("small text"), start + ids("card game") + [tokenizer.pad_token_id])
    return EvalPrediction(predictions=predictions, label_ids=rows(ids("small text editor"), ids("card game")))


ROUGE = {
    "rouge1_recall": 100 * 5 / 6,  # 2/3 and 1
    "rouge1_f1": 90.0,  # 4/5 and 1
    "rouge2_recall": 75.0,  # 1/2 and 1
    "rouge2_f1": 100 * 5 / 6,  # 2/3 and 1
    "rougeL_recall": 100 * 5 / 6,
    "rougeL_f1": 90.0,
}


@pytest.mark.parametrize(
    ("length", "expected", "against"),
    [
        (None, {"variance": 24.5, "mae": 3.5, "exact": 0.5, "over": 0.0}, "the reference"),  # 10 and 9 of 17 and 9
        (9, {"variance": 0.5, "mae": 0.5, "exact": 0.5, "over": 0.5}, "9"),
    ],
)
def test_characters_are_measured(tokenizer, evaluation, length, expected, against):
    before = evaluation.predictions.copy(), evaluation.label_ids.copy()
    actual = build_compute_metrics(tokenizer, "character", length=length)(evaluation)
    settings = actual.pop("settings")
    assert actual == pytest.approx(expected | ROUGE)
    assert settings.startswith(f"length: characters against {against}; ROUGE: rouge_score ")
    assert "stemmer=True, truncation=none" in settings
    assert (evaluation.predictions == before[0]).all() and (evaluation.label_ids == before[1]).all()


def test_a_cut_for_rouge_leaves_the_lengths_alone(tokenizer, evaluation):
    actual = build_compute_metrics(tokenizer, "character", length=10, max_bytes=4)(evaluation)
    # "smal" is not found in 3 words, "card" in 2: recall 0 and 1/2
    assert actual["rouge1_recall"] == pytest.approx(25.0)
    assert actual["mae"] == 0.5  # produced 10 and 9
    assert "truncation=4 bytes" in actual["settings"]


@pytest.mark.parametrize(
    "length, expected",
    [
        (None, {"variance": 2.0, "mae": 1.0, "exact": 0.5, "over": 0.0}),  # 3 and 2 against 5 and 2
        (2, {"variance": 0.5, "mae": 0.5, "exact": 0.5, "over": 0.5}),  # 3 and 2 against 2 and 2
    ],
)
def test_tokens_are_counted_from_ids(tokenizer, length, expected):
    end, unknown, pad = tokenizer.eos_token_id, tokenizer.unk_token_id, tokenizer.pad_token_id
    a, b, c = 3, 4, 5  # any three pieces
    evaluation = EvalPrediction(
        predictions=rows([pad, a, b, c, end], [pad, a, unknown, end, pad, pad]),
        label_ids=rows([a, b, c, a, b, end], [a, b, end]),
    )
    actual = build_compute_metrics(tokenizer, "token", length=length)(evaluation)
    assert {name: actual[name] for name in expected} == expected
    assert actual["settings"].startswith(f"length: tokens against {length or 'the reference'}; ROUGE: ")


def test_characters_are_those_of_the_decoded_text(tokenizer):
    ids = tokenizer(text_target="text")["input_ids"]
    vocabulary = tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder
    blank_at_the_end = [*ids[:-1], vocabulary["▁"], ids[-1]]  # decoding strips it
    evaluation = EvalPrediction(predictions=rows(blank_at_the_end), label_ids=rows(ids))
    assert build_compute_metrics(tokenizer, "character")(evaluation)["mae"] == 0.0
    assert build_compute_metrics(tokenizer, "token")(evaluation)["mae"] == 1.0


@pytest.mark.parametrize("unit", ["token", "character"])
def test_an_empty_output_has_length_zero(tokenizer, unit):
    ids = tokenizer(text_target="text")["input_ids"]
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    evaluation = EvalPrediction(predictions=rows([pad, end, pad], [-100] * 3), label_ids=rows(ids, ids))
    actual = build_compute_metrics(tokenizer, unit, length=4)(evaluation)
    assert (actual["mae"], actual["exact"], actual["over"]) == (4.0, 0.0, 0.0)
    assert actual["rouge1_recall"] == 0.0


def test_an_unknown_unit_is_refused_before_any_evaluation(tokenizer):
    with pytest.raises(ValueError, match="unit must be .* got 'sentence'"):
        build_compute_metrics(tokenizer, "sentence")
