"""The texts that `fit` considers and returns, and what a text keeps of its source."""

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from .sentences import ends, sentence_ends


LIKELY_END = -9.2  # nats, a ratio of 1 to 10,000; a text with a lower end score is unfinished; chosen on 18 texts
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_WORD = re.compile(r"\w[\w-]+")


@dataclass(frozen=True)
class Candidate:
    """A text that could replace a source, or the source itself."""

    text: str
    length: int  # units
    origin: Literal["source", "candidate", "model"]
    lost: tuple[str, ...] = ()  # names and numbers of the source that the text lacks
    added: tuple[str, ...] = ()  # names and numbers of the text that the source lacks
    score: float | None = None  # log-probability without a length; of texts that fit, and of some that are too long
    ending: float | None = None  # end score in nats, see `endings`; about 0 where a sentence may end
    recall: float | None = None  # log-probability of the source, given this text; of some of the texts with a score

    @property
    def faults(self) -> list[str]:
        """Return one message for each fault of the text, such as `"lost: Weber"`. A wrong length is not listed."""
        kinds = {"lost": self.lost, "added": self.added}
        return [f"{kind}: {', '.join(words)}" for kind, words in kinds.items() if words]

    def finishes(self, source: str) -> bool:
        """
        Return whether the text is finished: it ends like a sentence (unless `source` does not), and its end score,
        `ending`, is at least `LIKELY_END` (or unknown). For the end score, see `hf_lenctrl.inference.ranking.endings`.
        """
        return (ends(self.text) or not ends(source)) and (self.ending is None or self.ending >= LIKELY_END)

    def rank(self, source: str, value: float) -> tuple[bool, bool, float]:
        """Return a rank, higher is better: texts without faults first, then finished texts, then the highest value."""
        return not self.faults, self.finishes(source), value

    def value(self, source: str) -> float:
        """
        Return how well the text replaces `source`, as a number; higher is better. The number is the sum of the
        log-probability, the end score and the recall. A text without a recall has the lowest value. Without a
        log-probability, the number is the `similarity` to `source`.
        """
        if self.score is None:
            return similarity(self.text, source)
        recall = -math.inf if self.recall is None else self.recall
        return self.score + (self.ending or 0.0) + recall


@dataclass(frozen=True)
class Fitted:
    """
    The text that `fit` returns for a source, with its length and origin.

    `fault` is `None` if the text fits, has the same names and numbers as the source and, if the model wrote the text,
    is finished. Otherwise `fault` says what is wrong. If no text fits, `fit` returns the source unchanged; `fit` never
    cuts a text.
    """

    text: str
    length: int
    requested: int
    origin: Literal["source", "candidate", "model"]
    score: float | None
    fault: str | None
    candidates: tuple[Candidate, ...]  # all texts that were considered, also those that do not fit


def sentences_of(text: str) -> list[tuple[str, str]]:
    """
    Return a pair for each sentence of a text: the sentence, and the white space before the sentence. Return an empty
    list if there is only one sentence.
    """
    bounds = [0, *(end for end in sentence_ends(text) if text[end:].strip()), len(text)]
    pieces = [text[begin:end].rstrip() for begin, end in zip(bounds, bounds[1:], strict=False)]
    starts = [len(piece) - len(piece.lstrip()) for piece in pieces]
    found = [(piece[start:], piece[:start]) for piece, start in zip(pieces, starts, strict=True)]
    return found if len(found) > 1 else []


def similarity(text: str, other: str) -> float:
    """
    Return the similarity of a text to another text, from 0 to 1: the F2 score of the character trigrams, without white
    space.

    This is chrF (Popović 2015) with trigrams alone; the recall of the trigrams of `other` weighs twice as much as the
    precision.

    Example:

    ```python
    >>> from hf_lenctrl.inference.fitted import similarity
    >>> round(similarity("He saw the cat.", "He saw the black cat."), 3)
    0.571

    ```
    """
    own, known = _trigrams(text), _trigrams(other)
    return 5 * (own & known).total() / max(1, own.total() + 4 * known.total())


def _trigrams(text: str) -> Counter[str]:
    text = "".join(text.split())
    return Counter(text[i : i + 3] for i in range(len(text) - 2))


def lost(source: str, text: str) -> tuple[str, ...]:
    """
    Return the numbers and names that occur in `source` but not in `text`. A name is a capitalized word that does not
    begin a sentence.

    Example:

    ```python
    >>> from hf_lenctrl.inference.fitted import lost
    >>> lost("Yesterday Anna paid 3.50 to Mr. Weber.", "Anna paid Mr. Meyer 3.50.")
    ('Weber',)

    ```
    """
    starts = [0, *sentence_ends(source)]
    words = [(found[0], found.start()) for found in _WORD.finditer(source) if found[0][0].isupper()]
    names = [word for word, at in words if any(map(str.isalnum, source[max(n for n in starts if n <= at) : at]))]
    kept = {*_NUMBER.findall(text), *_WORD.findall(text)}
    return tuple(word for word in dict.fromkeys([*_NUMBER.findall(source), *names]) if word not in kept)
