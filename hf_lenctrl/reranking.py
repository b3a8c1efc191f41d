"""Order the n best outputs by the words of the source."""

import re
from collections.abc import Sequence


def rerank(source: str, candidates: Sequence[str], scores: Sequence[float] | None = None) -> list[int]:
    """
    Order candidates by how many words of the source they contain (Takase & Okazaki 2019, section 3.3, n = 20).

    Words are lower-cased runs of letters and digits, compared by their Porter stems; each distinct stem of a candidate
    that stands in the source counts once, so that repeating a word gains nothing. Ties go to the better score.

    Args:
        source (`str`): The text that the candidates were written for.
        candidates (`Sequence[str]`): The n best outputs, best first.
        scores (`Sequence[float]`, *optional*): One for each, higher is better; by default the order given.

    Returns:
        `list[int]`: Indices of `candidates`, the chosen one first.

    Raises:
        `ValueError`: without candidates, or with another number of scores.

    Example:

    ```python
    >>> from hf_lenctrl import rerank
    >>> rerank("Police arrested three men in Oslo", ["two held", "oslo police arrest men", "police in oslo"])
    [1, 2, 0]

    ```
    """
    if not candidates or (scores is not None and len(scores) != len(candidates)):
        given = "no" if scores is None else len(scores)
        raise ValueError(f"rerank needs candidates and a score for each, got {len(candidates)} and {given} scores")
    known = _stems(source)
    overlap = [len(_stems(candidate) & known) for candidate in candidates]
    rank = [-i for i in range(len(candidates))] if scores is None else list(scores)
    return sorted(range(len(candidates)), key=lambda i: (-overlap[i], -rank[i]))


def _stems(text: str) -> set[str]:
    try:
        from nltk.stem.porter import PorterStemmer
    except ImportError as error:
        raise ImportError("rerank compares Porter stems and needs nltk: pip install nltk") from error
    return {PorterStemmer().stem(word) for word in re.findall(r"\w+", text.lower())}
