"""Find the ends of sentences and words in a text."""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from ..unit_vocabulary import UnitVocabulary, entries_of


@dataclass(frozen=True)
class Language:
    """
    The words and letters of a language that decide, in addition to punctuation marks, where sentences end.

    Attributes:
        abbreviations (`tuple[str, ...]`): Words, without their full stop, whose full stop does not end the sentence.
        final (`tuple[str, ...]`): Abbreviations, with their full stops, that may be the last word of a text, see
            `ends`. Inside a text, their full stop does not end the sentence.
        apostrophe (`str`): Letters after which a complete word may end in an apostrophe: "the boys'".
        clipped (`tuple[str, ...]`): Ends of complete words, without the apostrophe that replaces the last letter:
            "in" for "talkin'".
    """

    abbreviations: tuple[str, ...] = ()
    final: tuple[str, ...] = ()
    apostrophe: str = ""
    clipped: tuple[str, ...] = ()


# The pipeline does not know the language of a text, so the rules of all languages apply. An abbreviation that is a
# word of another language, such as "art.", must not be here.
LANGUAGES = {
    "en": Language(
        abbreviations=("Mr", "Mrs", "Ms", "Dr", "Prof", "St", "vs", "cf", "Fig", "Eq", "No"),
        final=("a.m.", "p.m."),
        apostrophe="sSxXzZ",
        clipped=("in",),
    ),
    "de": Language(abbreviations=("Hrn", "Nr", "bzw", "vgl"), apostrophe="sSxXzZ"),
    "fr": Language(abbreviations=("Mme", "Mlle")),
}


def _of_all(field: str) -> list[str]:
    return sorted({item for language in LANGUAGES.values() for item in getattr(language, field)})


_CLOSING = "\"'”’»›)]}」』）】〉》"
# A Latin mark ends a sentence only before white space or the text's end (not in "3.5"); CJK and Arabic marks always.
_END = re.compile(rf"(?:[.!?…]+[{re.escape(_CLOSING)}]*(?=\s|$)|[。！？｡؟۔।]+[{re.escape(_CLOSING)}]*)")
_ABBREVIATION = re.compile(rf"(?:^|[\s(\[])(?:(?:[^\W\d_]\.)*[^\W\d_]|{'|'.join(_of_all('abbreviations'))})\.$")
_FINAL = tuple(f" {word}" for word in _of_all("final"))
# These marks make the last word invalid: "now..", "now?.", "now.?", and a mark inside the word, except in "p.m." and
# "3.5".
_TWO_MARKS = re.compile(r"(?<!\.)\.\.(?!\.)|[?!]\.|(?<=\w\w)\.[?!]|(?<!\d)(?<!\b\w)[.!?…][^\s.!?…]+[.!?…]")
# An incomplete word ends in an apostrophe that ends no quotation: "it'." for "it's.".
_HALF_WORD = re.compile(
    "".join(f"(?<!{end})" for end in _of_all("clipped")) + rf"(?<=[^\W\d{''.join(_of_all('apostrophe'))}])['’][.!?…]+$"
)
_QUOTED = re.compile(r"(?:^|[\s(\[\"“«—–])['‘’]")


def is_abbreviated(text: str) -> bool:
    """Return whether a text ends with an abbreviation, whose full stop may not end a sentence."""
    return _ABBREVIATION.search(text) is not None


def sentence_ends(text: str) -> list[int]:
    """Return the position after each end of a sentence in the text."""
    return [match.end() for match in _END.finditer(text) if not is_abbreviated(text[: match.end()])]


def last_sentence_end(text: str) -> int:
    """
    Return the position after the last sentence end; 0 if there is none.

    Example:

    ```python
    >>> from hf_lenctrl.inference.sentences import last_sentence_end
    >>> text = "Dr. A. Smith paid 3.5 dollars. Then he"
    >>> text[: last_sentence_end(text)]
    'Dr. A. Smith paid 3.5 dollars.'

    ```
    """
    return max(sentence_ends(text), default=0)


def ends(text: str) -> bool:
    """
    Return whether a text ends like a sentence: with one punctuation mark, after a complete word.

    Example:

    ```python
    >>> from hf_lenctrl.inference.sentences import ends
    >>> [ends(text) for text in ("At 5 p.m.", "It costs 3.5.", "He said 'no'.", "The boys'.")]
    [True, True, True, True]
    >>> [ends(text) for text in ("Not now", "Not now..", "Not now.s.", "Though it'.")]
    [False, False, False, False]

    ```
    """
    text = text.rstrip()
    if not text or last_sentence_end(text) < len(text) and not text.endswith(_FINAL):
        return False
    is_half = _HALF_WORD.search(text) and not _QUOTED.search(text)
    return not is_half and not _TWO_MARKS.search(text.split()[-1])


def finished(text: str, finish: str, enough: Callable[[str], bool], *, at_word: bool) -> tuple[str, str]:
    """
    Shorten an output that the length limit cut. With `finish="sentence"`, keep the text up to its last sentence end.
    If this is not possible, or with `finish="word"`, keep the text up to its last word end. A shorter text is accepted
    only if `enough(text)` is true.

    Return two values: the text, and where it ends (`"sentence"`, `"word"`, or `"cut"` if neither is possible).
    `at_word` says whether the given text already ends with a complete word.
    """
    text = text.rstrip()
    end = last_sentence_end(text)
    if end == len(text) and end:
        return text, "sentence"
    if finish == "sentence" and end and enough(text[:end]):
        return text[:end], "sentence"
    if at_word:
        return text, "word"
    words = text.rsplit(maxsplit=1)
    return (words[0], "word") if len(words) == 2 and enough(words[0]) else (text, "cut")


def settled(text: str, finish: str, enough: Callable[[str], bool]) -> int:
    """
    Return the position in an incomplete output up to which `finished` will keep the text, whatever the model adds
    later.

    Example:

    ```python
    >>> from hf_lenctrl.inference.sentences import settled
    >>> text = "He left. She sta"
    >>> [text[: settled(text, finish, lambda text: True)] for finish in ("sentence", "word")]
    ['He left.', 'He left. She']

    ```
    """
    # A mark at the end of the text does not end a sentence yet: "3." may become "3.5".
    end = max((end for end in sentence_ends(text) if end < len(text)), default=0)
    if finish == "sentence" and end and enough(text[:end]):
        return end
    words = text.rsplit(maxsplit=1)
    return len(words[0]) if len(words) == 2 and enough(words[0]) else len(text.rstrip())


def goes_on(piece: str | None) -> bool:
    """
    Return whether `piece`, the text of a vocabulary entry, continues the word before it. "ed", "'s" and a vowel sign
    continue a word; " a" and "," do not. `None`, which stands for a piece that begins with part of a
    character, also continues the word.
    """
    if piece is None:
        return True
    first = piece.lstrip("'’")[:1]
    return first != "" and (unicodedata.category(first)[0] in "LMN" or first in "\u200c\u200d")


@lru_cache(maxsize=4)
def pieces_of(tokenizer, entries: int) -> list[str | None]:
    """
    Return a list with the text that each of the `entries` vocabulary entries adds after other text. The text is `""`
    if the entry adds nothing, and `None` if it begins with part of a character.
    """
    size, special = entries_of(tokenizer)
    vocabulary = UnitVocabulary(tokenizer, size, special)
    pieces = ["" if i in special else text_of(data) for i, data in enumerate(vocabulary.later)]
    return [*pieces, *[""] * (entries - size)][:entries]


def text_of(data: bytes) -> str | None:
    """
    Decode the complete characters at the start of `data`. Return `None` if `data` begins with part of a character.
    """
    text = data.decode("utf-8", errors="replace")
    whole = text.split("\ufffd")[0]
    return whole if whole or not data else None
