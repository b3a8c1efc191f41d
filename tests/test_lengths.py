"""What a requested length may be: the one check of it."""

import math

import pytest
import torch

from hf_lenctrl.lengths import as_length_tensor, check_constraint, check_length


WRONG = {
    "zero": (0, ValueError, "length must be at least 1, got 0"),
    "negative": (-3, ValueError, "length must be at least 1, got -3"),
    "float": (5.0, TypeError, r"length must be an int of at least 1, got 5\.0 \(float\)"),
    "nan": (math.nan, TypeError, "length must be an int of at least 1, got nan"),
    "bool": (True, TypeError, r"got True \(bool\)"),
    "none": (None, TypeError, r"got None \(NoneType\)"),
    "too many": (10**7, ValueError, "length must be under 10000000, got 10000000"),
    "list with too many": ([5, 10**7], ValueError, "length must be under 10000000, got 10000000"),
    "tensor with too many": (torch.tensor([5, 10**7]), ValueError, r"for every example, got \[5, 10000000\]"),
    "string": ("5", TypeError, r"got '5' \(str\)"),
    "empty list": ([], ValueError, r"each of the 2 examples.*got shape \(0,\)"),
    "short list": ([5], ValueError, r"each of the 2 examples.*got shape \(1,\)"),
    "long list": ([5, 6, 7], ValueError, r"each of the 2 examples.*got shape \(3,\)"),
    "list with zero": ([5, 0], ValueError, "at least 1.*got 0"),
    "list with bool": ([5, True], TypeError, r"got True \(bool\)"),
    "list with float": ([5, 6.5], TypeError, r"got 6\.5 \(float\)"),
    "list with None": ([5, None], TypeError, r"got None \(NoneType\)"),
    "list in list": ([[5], [6]], TypeError, r"got \[5\] \(list\)"),
    "float tensor": (torch.tensor([5.0, 6.0]), TypeError, r"integer tensor, got dtype torch\.float32"),
    "bool tensor": (torch.tensor([True, True]), TypeError, r"integer tensor, got dtype torch\.bool"),
    "scalar tensor": (torch.tensor(5), ValueError, r"each of the 2 examples.*got shape \(\)"),
    "short tensor": (torch.tensor([5]), ValueError, r"each of the 2 examples.*got shape \(1,\)"),
    "column tensor": (torch.tensor([[5], [6]]), ValueError, r"each of the 2 examples.*got shape \(2, 1\)"),
    "tensor with zero": (torch.tensor([30, 0]), ValueError, r"at least 1 for every example, got \[30, 0\]"),
    "tensor with negative": (torch.tensor([-1, 30]), ValueError, r"at least 1 for every example, got \[-1, 30\]"),
}


@pytest.mark.parametrize("length, error, message", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_length_is_told(length, error, message):
    with pytest.raises(error, match=message):
        as_length_tensor(length, 2, torch.device("cpu"))


@pytest.mark.parametrize("length", [7, [7, 7], *(torch.tensor([7, 7], dtype=d) for d in (torch.int64, torch.uint8))])
def test_every_form_of_a_length_is_one_for_each_row(length):
    lengths = as_length_tensor(length, 2, torch.device("cpu"))
    assert lengths.tolist() == [7, 7] and lengths.dtype == torch.int64


def test_the_shortest_and_the_longest_length_pass():
    assert as_length_tensor([1, 9_999_999], 2, torch.device("cpu")).tolist() == [1, 9_999_999]
    check_length(1)
    check_length(9_999_999)


def test_constraints_are_max_exact_or_none():
    for constraint in (None, "max", "exact"):
        check_constraint(constraint)
    for other in ("min", "Max", "", True):
        message = rf"length_constraint must be 'max' \(never longer\), 'exact' or None .*, got {other!r}"
        with pytest.raises(ValueError, match=message):
            check_constraint(other)
