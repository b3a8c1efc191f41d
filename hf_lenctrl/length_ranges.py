"""Ranges of lengths: an output of any length within one."""

import logging
import math
from collections.abc import Sequence

from .lengths import check_length, share_of


logger = logging.getLogger(__name__)


def is_ranged(lengths) -> bool:
    """Whether a length is a range, a tuple, or a list that holds one."""
    return isinstance(lengths, tuple) or (isinstance(lengths, list) and any(map(is_ranged, lengths)))


def check_range(length) -> None:
    """Raise `ValueError` unless `length` is a tuple of two lengths, the lowest and the highest."""
    if not isinstance(length, tuple) or len(length) != 2:
        raise ValueError(
            f"a range of lengths is a tuple (lowest, highest), got {length!r}; several lengths are a list, [30, 42]"
        )
    for end in length:
        check_length(end)
    if length[0] > length[1]:
        raise ValueError(f"a range of lengths begins with the lowest, got {length}; pass {length[::-1]}")


def ratio_ranges(counts: Sequence[int], ratio: tuple[float, float]) -> list[tuple[int, int]]:
    """
    The range of each source: the whole numbers from the lowest to the highest ratio times its length.

    No range goes beyond its ratios. Where no whole number of at least 1 lies between them, the range is the one that
    is nearest to their middle, which is logged.

    Args:
        counts (`Sequence[int]`): Units of each source.
        ratio (`tuple[float, float]`): Lowest and highest, above 0.

    Raises:
        `ValueError`: for anything but two numbers above 0 in order.

    Example:

    ```python
    >>> from hf_lenctrl.length_ranges import ratio_ranges
    >>> ratio_ranges([40, 36], (0.9, 1.1))
    [(36, 44), (33, 39)]

    ```
    """
    numbers = len(ratio) == 2 and all(isinstance(r, int | float) and not isinstance(r, bool) for r in ratio)
    if not numbers or not 0 < ratio[0] <= ratio[1] < math.inf:
        raise ValueError(f"length_ratio must be a number above 0 or a tuple (lowest, highest) of them, got {ratio!r}")
    ranges, empty = [], 0
    for count in counts:
        low, high = (share_of(count, end) for end in ratio)
        least, most = max(1, math.ceil(low)), math.floor(high)
        if least > most:
            empty += 1
            least = most = max(1, round((low + high) / 2))
        ranges.append((least, most))
    if empty:
        logger.warning(
            "%d of %d texts have no whole length from %g to %g times their own; the nearest was taken",
            *(empty, len(ranges), *ratio),
        )
    return ranges


def plans_of(low: int, high: int, most: int) -> list[int]:
    """
    At most so many lengths of a range, evenly spread, both ends among them; the middle where it is one.

    Example:

    ```python
    >>> from hf_lenctrl.length_ranges import plans_of
    >>> plans_of(30, 42, 5), plans_of(30, 42, 1), plans_of(30, 31, 5)
    ([30, 33, 36, 39, 42], [36], [30, 31])

    ```
    """
    count = min(most, high - low + 1)
    if count == 1:
        return [(low + high) // 2]
    return [low + round(i * (high - low) / (count - 1)) for i in range(count)]
