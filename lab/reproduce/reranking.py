"""The re-ranking of Takase & Okazaki 2019 by their own score, as their published code computes it."""

import re
from collections.abc import Sequence

from nltk.stem.porter import PorterStemmer


def rerank_as_published(source: str, candidates: Sequence[str]) -> list[int]:
    """
    Order candidates by how many of their words stand in the source, repeated words included.

    This is the score of Takase & Okazaki 2019, section 3.3, in the version of their code. `hf_lenctrl.rerank` is ours:
    there a stem counts once, and numbers count. Words are separated by white space and compared by their Porter stems.
    Only words of the source with a letter from a to z count, so a word in capitals does not; the data of the paper are
    in lower case. The length of a candidate is not considered, and ties keep the order of the beam.

    Args:
        source (`str`): The text of the candidates.
        candidates (`Sequence[str]`): The n best outputs, best first; the paper has n = 20.

    Returns:
        `list[int]`: Indices of `candidates`, the chosen one first.
    """
    stem = PorterStemmer().stem
    known = {stem(word) for word in source.split() if re.search("[a-z]", word)}
    found = [sum(stem(word) in known for word in candidate.split()) for candidate in candidates]
    return sorted(range(len(candidates)), key=lambda i: -found[i])
