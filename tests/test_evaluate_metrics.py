"""The `evaluate` wrappers on numbers worked out by hand; nothing may reach the network."""

import socket

import pytest

from hf_lenctrl.evaluation.evaluate_metrics import LengthControl, TruncatedRouge


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a metric opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def length_control(tmp_path):
    return LengthControl(cache_dir=str(tmp_path))


@pytest.fixture
def rouge(tmp_path):
    return TruncatedRouge(cache_dir=str(tmp_path))


# differences 0, 3, 1, 0
FIGURES = {"variance": 2.5, "mae": 1.0, "exact": 0.5, "over": 0.5}


def test_lengths_are_compared(length_control):
    assert length_control.compute(predictions=[20, 23, 21, 20], references=[20, 20, 20, 20]) == FIGURES


def test_lengths_may_come_in_batches(length_control):
    length_control.add_batch(predictions=[20, 23], references=[20, 20])
    length_control.add(prediction=21, reference=20)
    length_control.add_batch(predictions=[20], references=[20])
    assert length_control.compute() == FIGURES
    # and nothing of them is left for the next
    assert length_control.compute(predictions=[9], references=[10]) == {
        "variance": 1.0,
        "mae": 1.0,
        "exact": 0.0,
        "over": 0.0,
    }


def test_two_metrics_in_use_do_not_mix(tmp_path):
    one, two = (LengthControl(cache_dir=str(tmp_path)) for _ in range(2))
    one.add_batch(predictions=[3], references=[1])
    two.add_batch(predictions=[1], references=[1])
    assert one.compute()["mae"] == 2.0
    assert two.compute()["mae"] == 0.0


# "the cat sat" against "the cat sat down": 3 of 4 words, 2 of 3 pairs; precision 1
WHOLE = {
    "rouge1_recall": 75.0,
    "rouge1_f1": 100 * 2 * 0.75 / 1.75,
    "rouge2_recall": 100 * 2 / 3,
    "rouge2_f1": 80.0,
    "rougeL_recall": 75.0,
    "rougeL_f1": 100 * 2 * 0.75 / 1.75,
}
# cut to "the cat": 2 of 4 words, 1 of 3 pairs
CUT = {
    "rouge1_recall": 50.0,
    "rouge1_f1": 100 * 2 / 3,
    "rouge2_recall": 100 / 3,
    "rouge2_f1": 50.0,
    "rougeL_recall": 50.0,
    "rougeL_f1": 100 * 2 / 3,
}


@pytest.mark.parametrize(("options", "figures"), [({}, WHOLE), ({"max_bytes": 7}, CUT), ({"max_bytes": 75}, WHOLE)])
def test_rouge_is_that_of_the_cut_prediction(rouge, options, figures):
    result = rouge.compute(predictions=["the cat sat"], references=["the cat sat down"], **options)
    settings = result.pop("settings")
    assert result == pytest.approx(figures)
    cut = f"{options['max_bytes']} bytes" if options else "none"
    assert settings.startswith("rouge_score 0.") and f"stemmer=True, truncation={cut}, " in settings


def test_rouge_is_the_mean_over_batches(rouge):
    rouge.add_batch(predictions=["the cat sat"], references=["the cat sat down"])
    rouge.add_batch(predictions=["nothing alike"], references=["the cat sat down"])
    result = rouge.compute()
    assert {name: result[name] for name in WHOLE} == pytest.approx({name: value / 2 for name, value in WHOLE.items()})


@pytest.mark.parametrize("metric", ["length_control", "rouge"])
def test_nothing_to_compare_is_refused(request, metric):
    with pytest.raises(ValueError, match="got 0 and 0"):
        request.getfixturevalue(metric).compute(predictions=[], references=[])


@pytest.mark.parametrize(("metric", "value"), [("length_control", 3), ("rouge", "text")])
def test_unequal_numbers_of_predictions_and_references_are_refused(request, metric, value):
    with pytest.raises(ValueError, match=r"predictions \(2\) and references \(1\)"):
        request.getfixturevalue(metric).compute(predictions=[value] * 2, references=[value])
