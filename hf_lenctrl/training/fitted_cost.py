"""Costs of characters in units of speaking time, fitted to texts whose speaking times were measured."""

import json
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np


SECONDS_PER_UNIT = 0.01
PRIOR = 10.0  # weight of the penalty; chosen among 1, 10, 30 and 100 on 100 to 1,800 English and German lines
SWEEPS = 100  # maximum number of rounds of the coordinate descent
_SPOKEN = "LN"  # first letters of the Unicode categories of letters and digits


@dataclass(frozen=True)
class FittedCost:
    """
    A function that returns the speaking time of a text in units: the sum of the costs of its characters. Use this
    object as `cost=`, for example in `UnitTable.from_tokenizer`.

    A character costs as much as its lower-case form. A character that was in no training text costs as much as its
    class (Unicode category). If the class was in no training text either, a letter or digit costs `other`, and any
    other character costs 0.

    Attributes:
        seconds_per_unit (`float`): Duration of one unit in seconds.
        characters (`dict[str, int]`), classes (`dict[str, int]`), other (`int`): Cost in units of each character, of
            each class, and of a letter or digit whose class is not in `classes`.
    """

    seconds_per_unit: float
    characters: dict[str, int]
    classes: dict[str, int]
    other: int

    def __call__(self, text: str) -> int:
        """Return the speaking time of a text in units."""
        return sum(map(self._units, text))

    def seconds(self, text: str) -> float:
        """Return the speaking time of a text in seconds."""
        return self(text) * self.seconds_per_unit

    def _units(self, character: str) -> int:
        name = _class_of(character)
        of_class = self.classes.get(name, self.other if name[0] in _SPOKEN else 0)
        return self.characters.get(character.lower(), of_class)

    def save(self, path: str | Path) -> None:
        """Write the costs as JSON to a file, which `load_cost` reads."""
        text = json.dumps({"kind": "hf_lenctrl cost", **asdict(self)}, ensure_ascii=False, indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8")


def fit_cost(texts: Sequence[str], seconds: Sequence[float]) -> FittedCost:
    """
    Fit the cost of each character to texts and their speaking times.

    This is a ridge regression: least squares, with a penalty that pulls the cost of a character to the cost of its
    class (Unicode category). The penalty gives rare characters a useful cost. The costs are integers of at least 0, in
    units of 10 ms. They are rounded and then improved one by one (coordinate descent).

    Args:
        texts (`Sequence[str]`): Spoken texts.
        seconds (`Sequence[float]`): The speaking time of each text.

    Returns:
        `FittedCost`.

    Raises:
        `ValueError`: if there is no text, if the numbers of texts and durations differ, or if a duration is not a
            finite number of at least 0.

    Example:

    ```python
    >>> from hf_lenctrl import fit_cost
    >>> cost = fit_cost(["a" * 40, "b" * 40] * 10, [2.8, 3.6] * 10)
    >>> cost.characters, cost("Ab!"), cost.seconds("Ab!")
    ({'a': 7, 'b': 9}, 16, 0.16)

    ```
    """
    if not any(texts) or len(texts) != len(seconds):
        raise ValueError(f"fit_cost needs texts and the seconds of each, got {len(texts)} texts, {len(seconds)} times")
    if wrong := [(i, value) for i, value in enumerate(seconds) if not 0 <= value < math.inf]:
        got = "got {1!r} at position {0}".format(*wrong[0])
        raise ValueError(f"the seconds of a text must be a finite number of at least 0, {got}")
    units = np.array(seconds) / SECONDS_PER_UNIT  # (T,)
    known = sorted({character.lower() for text in texts for character in text})
    place = {character: i for i, character in enumerate(known)}
    counts = np.zeros((len(texts), len(known)))  # (T, C)
    for row, text in zip(counts, texts, strict=True):
        np.add.at(row, [place[character.lower()] for character in text], 1)
    classes = sorted(set(map(_class_of, known)))
    member = np.array(
        [[_class_of(character) == name for name in classes] for character in known], dtype=float
    )  # (C, K)
    other = max(1, round(units.sum() / counts.sum()))
    spoken = np.array([other if name[0] in _SPOKEN else 0.0 for name in classes])
    of_classes = _whole_costs(counts @ member, units, spoken)
    of_characters = _whole_costs(counts, units, member @ of_classes)
    costs = [
        dict(zip(keys, map(int, of), strict=True)) for keys, of in ((known, of_characters), (classes, of_classes))
    ]
    return FittedCost(SECONDS_PER_UNIT, costs[0], costs[1], other)


def _whole_costs(counts: np.ndarray, units: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """
    Fit integer costs `(C,)` to texts with the `counts (T, C)` of each character or class and the speaking times `units
    (T,)`. A penalty pulls the costs to `prior (C,)`.
    """
    gram = counts.T @ counts + PRIOR * np.eye(len(prior))
    target = counts.T @ units + PRIOR * prior
    costs = np.rint(np.linalg.solve(gram, target)).clip(min=0)
    for _ in range(SWEEPS):
        before = costs.copy()
        for i, row in enumerate(gram):
            costs[i] = max(0.0, np.rint(costs[i] + (target[i] - row @ costs) / row[i]))
        if (costs == before).all():
            break
    return costs


def _class_of(character: str) -> str:
    """Return the class of a character: the Unicode category of its lower-case form."""
    return unicodedata.category(character.lower()[0])


def load_cost(path: str | Path) -> FittedCost:
    """
    Load the costs of characters from a file that `lenctrl fit-cost` or `FittedCost.save` wrote.

    Raises:
        `ValueError`: if the file holds anything else.
    """
    found = json.loads(Path(path).read_text(encoding="utf-8"))
    own = {"kind", *(own.name for own in fields(FittedCost))}
    if not isinstance(found, dict) or found.keys() != own or found.pop("kind") != "hf_lenctrl cost":
        raise ValueError(f"{path} must be a file that `lenctrl fit-cost` wrote, got other JSON")
    return FittedCost(**found)
