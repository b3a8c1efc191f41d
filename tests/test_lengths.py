"""What a requested length may be: the one check of it, and the target that it becomes."""

import json

import numpy as np
import pandas
import pytest
import torch

from hf_lenctrl.inference.sources import requested_lengths
from hf_lenctrl.lengths import (
    as_length_tensor,
    as_target,
    check_constraint,
    check_counts,
    check_tolerance,
    window_of,
)


WRONG = {
    "zero": (0, ValueError, "length must be at least 1, got 0"),
    "float": (5.0, TypeError, r"length must be an int of at least 1, got 5\.0 \(float\)"),
    "bool": (True, TypeError, r"got True \(bool\)"),
    "none": (None, TypeError, r"got None \(NoneType\)"),
    "list with too many": ([5, 10**7], ValueError, "length must be under 10000000, got 10000000"),
    "tensor with too many": (torch.tensor([5, 10**7]), ValueError, r"for every example, got \[5, 10000000\]"),
    "short list": ([5], ValueError, r"each of the 2 examples.*got shape \(1,\); pass length=5 for all"),
    "range": ((12, 30), TypeError, r"got \(12, 30\) \(tuple\): only the pipeline takes a range or a name"),
    "ranges": ([(5, 6), (7, 8)], TypeError, "only the pipeline takes a range"),
    "name": ("bluesky", TypeError, r"got 'bluesky' \(str\): only the pipeline takes a range or a name"),
    "float array": (np.array([5.0, 6.0]), TypeError, r"got 5\.0 \(float\)"),
    "column": (range(5, 7), TypeError, r"\(range\); pass list\(\.\.\.\)"),
    "list with zero": ([5, 0], ValueError, "at least 1.*got 0"),
    "list in list": ([[5], [6]], TypeError, r"got \[5\] \(list\)"),
    "float tensor": (torch.tensor([5.0, 6.0]), TypeError, r"integer tensor, got dtype torch\.float32"),
    "bool tensor": (torch.tensor([True, True]), TypeError, r"integer tensor, got dtype torch\.bool"),
    "column tensor": (torch.tensor([[5], [6]]), ValueError, r"each of the 2 examples.*got shape \(2, 1\)"),
    "tensor with zero": (torch.tensor([30, 0]), ValueError, r"at least 1 for every example, got \[30, 0\]"),
}


@pytest.mark.parametrize("length, error, message", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_length_is_told(length, error, message):
    with pytest.raises(error, match=message):
        as_length_tensor(length, 2, torch.device("cpu"))


FORMS = {
    "list": ([1, 9_999_999], [1, 9_999_999]),
    "int": (7, [7, 7]),
    "tensor": (torch.tensor([7, 7], dtype=torch.uint8), [7, 7]),
    "number": (torch.tensor(7), [7, 7]),
    "numpy": (np.array([7, 8]), [7, 8]),
    "pandas": (pandas.Series([7, 8], index=[3, 1]), [7, 8]),
}


@pytest.mark.parametrize("length, expected", FORMS.values(), ids=FORMS.keys())
def test_every_form_of_a_length_is_one_for_each_row(length, expected):
    lengths = as_length_tensor(length, 2, torch.device("cpu"))
    assert lengths.tolist() == expected and lengths.dtype == torch.int64


@pytest.mark.parametrize(
    ("length", "constraint", "tolerance", "expected"),
    [
        (40, "max", None, [[40, 40]] * 3),
        ([40, 36], None, None, [[40, 36]] * 3),
        ([40, 36], "exact", 0.1, [[40, 36], [36, 33], [44, 39]]),  # 32.4 and 39.6
        (40, "exact", [(0, 4), 2], [[40, 40], [40, 38], [44, 42]]),
    ],
)
def test_a_request_becomes_a_target(length, constraint, tolerance, expected):
    target = as_target(length, constraint, tolerance, 2, torch.device("cpu"))
    assert [ends.tolist() for ends in (target.length, target.low, target.high)] == expected


def test_constraints_are_max_exact_min_or_none():
    for other in ("Max", "", True):
        with pytest.raises(ValueError, match=rf"length_constraint must be 'max' .*, got {other!r}"):
            check_constraint(other)


def test_an_integer_of_numpy_is_an_integer():
    forty = np.int64(40)
    assert as_length_tensor(forty, 2, torch.device("cpu")).tolist() == [40, 40]
    assert as_length_tensor([forty, np.uint8(3)], 2, torch.device("cpu")).tolist() == [40, 3]
    lengths = requested_lengths(["a", "b"], [forty, 41], unit="character", tokenizer=None)
    assert json.dumps(lengths) == "[40, 41]"
    assert (
        json.dumps(requested_lengths(["a"], (forty, np.int32(44)), unit="character", tokenizer=None)) == "[[40, 44]]"
    )
    check_tolerance(np.int64(4), "exact")
    check_counts(batch_size=np.int64(1))
    assert window_of([40], np.int64(4)) == ([36], [44])
    for wrong in (np.float64(40), np.bool_(True), True):
        with pytest.raises(TypeError, match="length must be an int of at least 1"):
            as_length_tensor(wrong, 2, torch.device("cpu"))
