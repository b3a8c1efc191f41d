"""A reward for reinforcement learning: how close the length of an answer is to the requested length."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..length_units import Unit, count_units
from ..lengths import check_range


def length_reward(unit: str | Unit | Callable[[str], int] = "character") -> Callable[..., list[float]]:
    """
    Return a reward function for the trainers of TRL, such as `GRPOTrainer`. The function compares the length of each
    answer with the column `length` of the data set.

    The column holds a length, or a pair of the lowest and the highest length: `[1, 40]` means at most 40. An answer of
    an allowed length gets 1. Otherwise take the answer's length and the nearest allowed length, and divide the smaller
    by the larger: half or double the length gets 0.5, and an empty answer gets 0. This rule is our own.

    Args:
        unit (`str`, `Unit` or function, *optional*, defaults to `"character"`): A unit of a text, see `count_units`,
            or a function that counts the units of a text.

    Returns:
        A function that returns a reward from 0 to 1 for each completion. TRL calls it with `completions` and the
        column `length`. A completion is a text, or a list of chat messages; of a list, only the last message is
        counted.

    Raises:
        `ValueError`: if the unit is unknown. The returned function raises it if a row has no `length` of at least 1,
            or a pair that does not begin with the lowest length.
        `TypeError`: the returned function raises it if a length is not an integer.

    Example:

    ```python
    >>> from hf_lenctrl import length_reward
    >>> reward = length_reward("word")
    >>> reward(completions=["One two three four.", "One.", "One two."], length=[2, 2, [1, 5]])
    [0.5, 0.5, 1.0]

    ```
    """
    count = unit if callable(unit) else partial(count_units, unit=unit)
    count("")  # raises for an unknown unit
    return partial(length_rewards, count)  # TRL pickles a partial, and logs it by the name of its function


def length_rewards(
    count: Callable[[str], int], completions: Sequence, length: Sequence | None = None, **columns: Any
) -> list[float]:
    """
    Return the reward of each completion, see `length_reward`. `count` counts the units of a text. `columns` are other
    arguments of TRL, which are ignored. Raise `ValueError` if there is no column `length`.
    """
    if length is None:
        raise ValueError("length_reward needs a column 'length' in the data set; add the length of each row")
    rewards = []
    for completion, item in zip(completions, length, strict=True):
        ends = tuple(item) if isinstance(item, list | tuple) else (item, item)
        check_range(ends)
        low, high = ends
        units = count(completion if isinstance(completion, str) else completion[-1]["content"] or "")
        rewards.append(units / low if units < low else high / units if units > high else 1.0)
    return rewards
