"""Get requested lengths from a number, a range, a list, a ratio, `"predict"`, `"source"` or `"reference"`."""

import json
import logging
import math
import posixpath
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import torch

from ..length_units import Unit, check_texts, count_texts
from ..lengths import check_length, check_range, is_integer, plural, share_of
from .presets import PRESETS


logger = logging.getLogger(__name__)

LENGTH_SOURCES = ("predict", "source", "reference")


def is_ranged(lengths) -> bool:
    """Return whether a length is a range (a tuple), or a list that holds a range."""
    return isinstance(lengths, tuple) or (isinstance(lengths, list) and any(map(is_ranged, lengths)))


def check_one_kind(lengths: Sequence, name: str = "length") -> None:
    """Raise `ValueError` if `lengths` holds both ranges and numbers. `name` names it in the message."""
    number = next((length for length in lengths if is_integer(length)), None)
    if number is not None and is_ranged(list(lengths)):
        rule = f"{name} must hold only lengths or only ranges, got {number} beside ranges"
        raise ValueError(f"{rule}; give it as the range from {number} to {number}")


def length_or_range(value) -> int | tuple[int, int]:
    """
    Parse a length or a range from a value of a data set column: `40`, `40.0`, `"40"`, `[30, 42]`, `"[30, 42]"` or
    `"30-42"`. Raise `TypeError`, `ValueError` or `OverflowError` if the value is neither a length nor a range.
    """
    value = json.loads(value) if isinstance(value, str) and value.startswith("[") else value
    ends = value.split("-") if isinstance(value, str) and value.count("-") == 1 and value[0] != "-" else value
    if isinstance(ends, list):
        low, high = map(length_or_range, ends)
        check_range((low, high))
        return low, high  # type: ignore[return-value]
    number = float(value) if isinstance(value, str) else value
    if isinstance(number, bool) or number < 1 or number != int(number):
        raise ValueError
    return int(number)


def ratio_ranges(counts: Sequence[int], ratio: tuple[float, float]) -> list[tuple[int, int]]:
    """
    Return the range of lengths of each source, `(lowest, highest)`. `counts` has the number of units of each source,
    and `ratio` the lowest and the highest ratio. The range holds all integers from the lowest to the highest ratio
    times the number of units.

    If no integer of at least 1 lies between these limits, the range is the single length nearest to their middle, and
    a warning is logged.

    Example:

    ```python
    >>> from hf_lenctrl.inference.sources import ratio_ranges
    >>> ratio_ranges([40, 36], (0.9, 1.1))
    [(36, 44), (33, 39)]

    ```
    """
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
    Return at most `most` planned lengths from `low` to `high`, evenly spread, with both ends. A single planned length
    is the middle of the range.

    Example:

    ```python
    >>> from hf_lenctrl.inference.sources import plans_of
    >>> plans_of(30, 42, 5), plans_of(30, 42, 1), plans_of(30, 31, 5)
    ([30, 33, 36, 39, 42], [36], [30, 31])

    ```
    """
    count = min(most, high - low + 1)
    if count == 1:
        return [(low + high) // 2]
    return [low + round(i * (high - low) / (count - 1)) for i in range(count)]


def requested_lengths(
    texts: Sequence[str],
    length,
    *,
    unit: str | Unit,
    tokenizer,
    ratio: float | tuple[float, float] | None = None,
    references: Sequence[str] | None = None,
    predict: Callable[[Sequence[str]], list[int]] | None = None,
) -> list:
    """
    Return the requested length of each text, or its range of lengths, `(lowest, highest)`.

    Args:
        texts (`Sequence[str]`): Sources.
        length (`int`, `tuple`, `list`, `torch.LongTensor` or `str`): Length in units: an `int` or a range for all
            texts, or a list with an item for each text. Or a name in `LENGTH_SOURCES`. `None` if there is a ratio.
        unit (`str` or `Unit`): Unit of the lengths.
        tokenizer (`PreTrainedTokenizerBase`): Counts tokens, if the unit is `"token"`.
        ratio (`float` or `tuple`, *optional*): The length is this ratio times the length of the source, rounded, at
            least 1. For a range of ratios, see `ratio_ranges`.
        references (`Sequence[str]`, *optional*): A reference for each text, for `"reference"`.
        predict (`Callable`, *optional*): A function from texts to lengths, for `"predict"`.

    Raises:
        `TypeError`, `ValueError`: if a length is missing, not an integer or below 1; if both a length and a ratio are
            given; or if the number of lengths or references differs from the number of texts.
    """
    if ratio is not None:
        if length is not None:
            raise ValueError(f"give length or length_ratio, not both: got length={length!r}, length_ratio={ratio!r}")
        ends = ratio if isinstance(ratio, tuple) and len(ratio) == 2 else (ratio, ratio)
        numbers = all(isinstance(end, Real) and not isinstance(end, bool) for end in ends)
        if not numbers or not 0 < ends[0] <= ends[1] < math.inf:
            raise ValueError(f"length_ratio must be a number, or a tuple (lowest, highest), above 0, got {ratio!r}")
        counts = count_texts(tokenizer, texts, unit)
        if isinstance(ratio, tuple):
            return ratio_ranges(counts, ratio)
        return [max(1, round(ratio * count)) for count in counts]
    if isinstance(length, str):
        if length == "predict" and predict is not None:
            return predict(texts)
        counted = {"source": texts, "reference": references}
        if length not in counted:
            names = f"a limit of {', '.join(PRESETS)}, or 'predict', 'source' or 'reference'"
            raise ValueError(f"length must be an int, a list, {names}, got {length!r}")
        known: Any = counted[length]
        many = len(known) if isinstance(known, list | tuple) else repr(known)
        if many != len(texts):
            raise ValueError(f"length='reference' needs references=, one for each of {len(texts)} texts, got {many}")
        check_texts(known, "reference")
        return [max(1, count) for count in count_texts(tokenizer, known, unit, target=length == "reference")]
    if length is None:
        raise ValueError("no length was given; pass length=40, a list with one for each text, or length_ratio=0.5")
    lengths = length.tolist() if isinstance(length, torch.Tensor) else length
    lengths = list(lengths) if isinstance(lengths, list) else [lengths] * len(texts)
    if len(lengths) != len(texts):
        raise ValueError(f"length must be one integer or one for each of the {len(texts)} texts, got {lengths}")
    if ranged := is_ranged(lengths):
        check_one_kind(lengths)
    for item in lengths:
        (check_range if ranged else check_length)(item)
    return [tuple(map(int, item)) if isinstance(item, tuple) else int(item) for item in lengths]  # no NumPy types


class Predictors:
    """
    The length predictors of a generator (the model that generates texts). Each predictor is loaded only once. The
    generator's configuration names the default predictor; the name `"./folder"` means a folder inside the generator's
    own folder or repository. `hub_options` are the options, such as `token`, with which the generator was loaded.
    """

    def __init__(self, model, hub_options: dict[str, Any]):
        self.model, self.hub_options = model, hub_options
        self.loaded: dict[tuple, tuple] = {}

    def find(self, predictor=None) -> tuple:
        """
        Return a predictor and its tokenizer. If `predictor` is already such a pair, return the pair. Otherwise
        `predictor` is a path or a Hub name; the default is the name in the generator's configuration. Raise
        `ValueError` if there is no name.
        """
        if isinstance(predictor, tuple):
            return predictor
        config, options = self.model.config, dict(self.hub_options)
        folder = options.pop("subfolder", "")  # this is the folder of the generator
        name = predictor or getattr(config, "length_predictor", None)
        if name is None:
            raise ValueError("length='predict' needs a length predictor; pass predictor='path or Hub name'")
        if predictor is None and name.startswith("./"):
            where, options["subfolder"] = config.name_or_path, posixpath.join(folder, name[2:])
        else:
            where = name
            options.pop("revision", None)  # this is the revision of the generator
        key = (str(where), options.get("subfolder"))
        if key not in self.loaded:
            from ..length_predictor import load_predictor  # a late import, because few calls predict

            model, tokenizer = load_predictor(where, **options)
            self.loaded[key] = model.to(self.model.device), tokenizer
        return self.loaded[key]

    def predict(self, texts: Sequence[str], unit: str, predictor=None, **options) -> list[int]:
        """Return the predicted lengths in `unit`. Raise `ValueError` if the predictor was trained for another unit."""
        model, tokenizer = self.find(predictor)
        if model.config.length_unit != unit:
            predicts = model.config.length_unit
            raise ValueError(
                f"the predictor predicts {plural(predicts)}, the generator counts {plural(unit)}; train one for these"
            )
        return model.predict_lengths(texts, tokenizer, **options)
