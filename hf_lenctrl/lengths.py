"""Functions that check requested lengths and the windows around them, and convert them to tensors."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from typing import TYPE_CHECKING, Any, NoReturn

import torch


if TYPE_CHECKING:
    from typing_extensions import TypeIs

OPTIONS = ("length", "length_constraint", "length_tolerance")  # options of a call and of configurations
LENGTH_CONSTRAINTS = ("max", "exact", "min")
_MOST = 4  # with `"min"`, an output has at most this many times the requested length, so that it ends
LONGEST = 10**7  # more units than a model produces; sums of lengths stay far from overflow


def check_counts(**counts) -> None:
    """Raise `ValueError` unless each count is an integer of at least 1, see `is_integer`."""
    for name, count in counts.items():
        if not is_integer(count) or count < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {count!r}")


def is_integer(value) -> "TypeIs[int]":
    """Return whether `value` is an integer of Python or NumPy and not a `bool`."""
    return not isinstance(value, bool) and (isinstance(value, int) or isinstance(value, Integral))


def plural(unit: Any) -> str:
    """
    Return the plural of a length unit for a message: `"tokens"`, `"characters"`, `"words"`, `"bytes"` or
    `"graphemes"`. For any other name, return for example `"units of 'sms'"`. For a `Unit`, return `"units"`.
    """
    if unit in ("token", "character", "word", "byte", "grapheme"):
        return f"{unit}s"
    return f"units of {unit!r}" if isinstance(unit, str) else "units"


def check_name(option: str, name, known) -> None:
    """Raise `ValueError` unless `name` is one of the `known` names. `option` names the argument in the message."""
    if name not in known:
        raise ValueError(f"{option} must be one of {', '.join(known)}, got {name!r}")


def check_length(length) -> None:
    """Raise `TypeError` or `ValueError` unless `length` is an integer from 1 to `LONGEST` - 1."""
    if not is_integer(length):
        is_column = isinstance(length, Sequence) and not isinstance(length, str | list | tuple)  # of `datasets`
        hint = "; pass list(...)" if is_column else ""
        raise TypeError(f"length must be an int of at least 1, got {length!r} ({type(length).__name__}){hint}")
    if not 1 <= length < LONGEST:
        raise ValueError(f"length must be {'at least 1' if length < 1 else f'under {LONGEST}'}, got {length}")


def listed(length):
    """Return an array of NumPy or pandas as a list or a number. Return anything else unchanged."""
    return length if isinstance(length, torch.Tensor) or not hasattr(length, "tolist") else length.tolist()


def check_range(length) -> None:
    """Raise an error unless `length` is a tuple of two valid lengths, the lowest and the highest."""
    if not isinstance(length, tuple) or len(length) != 2:
        raise ValueError(f"a range of lengths is a tuple (lowest, highest), got {length!r}; several are a list")
    for end in length:
        check_length(end)
    if length[0] > length[1]:
        raise ValueError(f"a range of lengths begins with the lowest, got {length}; pass {length[::-1]}")


def check_constraint(constraint) -> None:
    """Raise `ValueError` unless `constraint` is None or one of `LENGTH_CONSTRAINTS`."""
    if constraint not in (None, *LENGTH_CONSTRAINTS):
        rule = "'max' (never longer), 'exact', 'min' (never shorter) or None"
        raise ValueError(f"length_constraint must be {rule}, got {constraint!r}")


def share_of(length: int, share: float) -> Fraction:
    """Return a share of a length as an exact fraction. The share 0.1 is one tenth, not the nearest binary number."""
    return Fraction(str(float(share))) * length


def check_tolerance(tolerance, constraint) -> None:
    """
    Raise `ValueError` if `tolerance` is invalid, or if the constraint is not `"exact"`. `None` is always valid. Other
    valid values are a number of units (an `int` from 0), a share of the length (a `float` from 0 to under 1), a pair
    of such values (for shorter and for longer outputs), or a list with one item for each row.
    """
    if tolerance is None:
        return
    if constraint != "exact":
        raise ValueError(f"length_tolerance={tolerance!r} is a window around an exact length, got {constraint!r}")
    for item in tolerance if isinstance(tolerance, list) else [tolerance]:
        for side in item if isinstance(item, tuple) and len(item) == 2 else (item,):
            units = is_integer(side) and 0 <= side < LONGEST
            if not units and not (isinstance(side, float) and 0 <= side < 1):
                rule = "units (4), a share of the length from 0 to under 1 (0.1), or a pair of these"
                raise ValueError(f"length_tolerance must be {rule}, got {item!r}")


def parse_tolerance(words: Sequence[str]):
    """
    Parse the tolerance of a command line: either one word for both sides of the length, or two words, for shorter and
    for longer outputs. A word is a number of units (`4`) or a share of the length (`0.1`). Return the number (an `int`
    or a `float`), or a tuple of two numbers. Raise `ValueError` if the tolerance is invalid, see `check_tolerance`.
    """
    sides: tuple = tuple(words)
    with suppress(ValueError):  # `check_tolerance` refuses a word that is no number
        sides = tuple(int(word) if word.isdecimal() else float(word) for word in words)
    tolerance = sides[0] if len(sides) == 1 else sides
    check_tolerance(tolerance, "exact")
    return tolerance


def window_in(options) -> dict[str, Any]:
    """
    Return `options.length_tolerance` as a keyword argument, such as `{"tolerance": 4}`, or `{}` if there is none.
    """
    tolerance = getattr(options, "length_tolerance", None)
    return {} if tolerance is None else {"tolerance": tolerance}


def units_of(length: int, side: int | float) -> int:
    """Return one side of a window around `length`, a number of units or a share of the length, in units."""
    if isinstance(side, float):
        return max(1, math.floor(share_of(length, side))) if side else 0
    return side


def window_of(lengths: Sequence[int], tolerance, constraint: str | None = "exact") -> tuple[list[int], list[int]]:
    """
    Return two lists: the lowest and the highest allowed length for each of `lengths`, in units. The tolerance must be
    valid, see `check_tolerance`. Raise `ValueError` if `tolerance` is a list with another number of items than
    `lengths`.

    Shares are rounded down: 0.1 of 36 is 3 units, and the window is 33 to 39. A share above 0 is at least one unit. No
    window goes below 1. For the constraint `"min"`, the window begins at the length and ends at four times the length.

    Example:

    ```python
    >>> from hf_lenctrl.lengths import window_of
    >>> window_of([40, 36], (0, 0.1))
    ([40, 36], [44, 39])

    ```
    """
    if constraint == "min":
        return list(lengths), [min(LONGEST - 1, _MOST * n) for n in lengths]
    items = tolerance if isinstance(tolerance, list) else [tolerance] * len(lengths)
    if len(items) != len(lengths):
        raise ValueError(f"length_tolerance needs one item for each of {len(lengths)} lengths, got {tolerance}")
    lowest, highest = [], []
    for n, item in zip(lengths, items, strict=True):
        sides = item if isinstance(item, tuple) else (item, item)
        below, above = (units_of(n, side) for side in sides)
        lowest.append(max(1, n - below))
        highest.append(min(LONGEST - 1, n + above))
    return lowest, highest


@dataclass(frozen=True)
class Target:
    """
    The target lengths of a batch.

    Attributes:
        length (`torch.Tensor` of shape `(batch_size,)`): The planned lengths, on which the decoder is conditioned.
        low, high (`torch.Tensor` of shape `(batch_size,)`): The lowest and the highest allowed length of each output.
            They are equal if no window (a range of allowed lengths) is requested.
        other (pair, *optional*): Set if the outputs also have a limit in a second unit, for example in words besides
            characters: the unit table of the second unit, and the limits in this unit, `(batch_size,)`.
        table (`UnitTable`, *optional*): The unit table of `low` and `high`. Set only if `length` may be in a different
            unit.
    """

    length: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    other: tuple[Any, torch.Tensor] | None = None
    table: Any = None


def as_target(length, constraint, tolerance, batch_size: int, device: torch.device) -> Target:
    """
    Check a length, a constraint and a tolerance, and return the lengths as a `Target`. Functions that get a `Target`
    do not check it again. Raise the errors of `as_length_tensor`, `check_constraint`, `check_tolerance` and
    `window_of`.
    """
    check_constraint(constraint)
    check_tolerance(tolerance, constraint)
    length = as_length_tensor(length, batch_size, device)  # (B,)
    if tolerance is None and constraint != "min":
        return Target(length, length, length)
    return Target(length, *map(length.new_tensor, window_of(length.tolist(), tolerance, constraint)))


def refuse_length() -> None:
    """Raise `ValueError`, because a length was given to a model that ignores lengths."""
    raise ValueError("length was given to a model with length_encoding='none'; pass a length_constraint too")


def given_or_default(length, config):
    """Return the argument `length`, or else the default `config.length`. Raise `ValueError` if both are `None`."""
    length = config.length if length is None else length
    return refuse_none() if length is None else length


def refuse_none() -> NoReturn:
    """Raise `ValueError`, because a length is needed but none was given."""
    raise ValueError("no length was given; pass it to the call (length=75), or a default to from_pretrained")


def as_length_tensor(
    length, batch_size: int, device: torch.device, *, synchronize: bool = True, least: int = 1
) -> torch.Tensor:
    """
    Check the requested length, and return it as a `torch.LongTensor` of shape `(batch_size,)`. `length` is either one
    number for all rows, or a list, a tensor or an array with one number for each row.

    If `synchronize` is `False`, the lengths in a tensor on an accelerator are not checked, because reading them would
    stall a training step. Raise `TypeError` if a length is not an integer (a `bool`, a float, NaN, a string). Raise
    `ValueError` if a length is below 1 or not below `LONGEST`, or if the number of lengths is not `batch_size`. For a
    tensor, `least` replaces the minimum 1. It is 0 if a row may have no length (`length_optional`).
    """
    if isinstance(length, torch.Tensor):
        if length.dtype.is_floating_point or length.dtype.is_complex or length.dtype == torch.bool:
            raise TypeError(f"length must be an integer tensor, got dtype {length.dtype}; pass length.long()")
    else:
        length = listed(length)
        for item in length if isinstance(length, list) else [length]:
            if isinstance(item, str | tuple):
                rule = "only the pipeline takes a range or a name; pass an int, a list or a LongTensor"
                raise TypeError(f"length must be an int of at least 1, got {item!r} ({type(item).__name__}): {rule}")
            check_length(item)
        if not isinstance(length, list):
            return torch.full((batch_size,), int(length), dtype=torch.long, device=device)
        length = torch.tensor([int(item) for item in length], dtype=torch.long)
    if length.dim() == 0:
        length = length.expand(batch_size)
    if (shape := tuple(length.shape)) != (batch_size,):
        hint = f"; pass length={length.item()} for all" if length.numel() == 1 else ""
        rule = f"length must be one for all or for each of the {batch_size} examples"
        raise ValueError(f"{rule}, got shape {shape}{hint}")
    length = length.long()  # `LONGEST` does not fit in 8 bits
    # No graph of torch.compile or torch.export may depend on the values.
    if (synchronize or length.device.type == "cpu") and not torch.compiler.is_compiling():
        if bool(((length < least) | (length >= LONGEST)).any()):
            short = bool((length < least).any())
            rule, hint = (f"at least {least}", "; drop empty targets") if short else (f"under {LONGEST}", "")
            raise ValueError(f"length must be {rule} for every example, got {length.tolist()}{hint}")
    return length.to(device)
