"""
Reword a text by small edits: phrases that may replace each other, such as "do not" and "don't", and deletions.

The phrases are learned from groups of texts with the same meaning (`Edits.learn`), and the model decides which edits
are good in a text (`reword`). The rules are for languages that separate words by spaces.
"""

import json
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from transformers.utils.hub import cached_file

from .chats import Prompt
from .ranking import ChoiceConfig, first_changes, log_probabilities
from .sentences import ends, is_abbreviated, sentence_ends


logger = logging.getLogger(__name__)
# A number such as "3.5", an abbreviation such as "p.m.", a word, or a mark.
_WORD = re.compile(r"\d+(?:[.,:]\d+)+|(?:[^\W\d_]\.)+[^\W\d_]\b\.?|\w+(?:['’-]\w+)*|[^\w\s]")
_JOINED = re.compile(r"[,.;:!?…]")  # no space before these
_OPENING, _APART = "([\"'“‘«", ",.;:!?…–—-"  # characters that may touch a phrase; marks that no other mark may follow
# What follows a part of a longer expression: of "a/b", of "is.gd", of "the kids' room".
_PART = re.compile(r"[^\s,.;:!?…)\]\"”»]|[,.;:!?…]+\w")
_CLOSING = ")]\"'”’»"
_I = re.compile(r"I(?:['’]\w+)?")  # no name
_NUMBERS = re.compile(r"\d\s\d")  # "1 000", a telephone number
LONGEST = 3  # words of a phrase; a phrase that only adds words to a neighbour may have one more
# Limits of the search of `reword`. Half as many more give hardly likelier texts, on 30 sentences.
STARTS, SINGLES, COMBINED = 8, 64, 16  # texts to edit, texts with one edit, and texts with several edits to score
MOST_EDITS = 5  # in a text
LOWEST = -9.0  # nats that an edit may cost
DELETED = 5  # most successive words of a deletion
_AT_ONCE = 32  # tasks, because each holds many proposals

Phrase = tuple[str, ...]


@dataclass(frozen=True)
class Edit:
    """
    A change of a text: `words` replace the characters from `begin` to `end`. `count` is the number of groups of texts
    in which this change occurred, see `Edits.learn`; 1 for a deletion.
    """

    begin: int
    end: int
    words: str
    count: int = 1


def apply(text: str, edits: Iterable[Edit]) -> str:
    """Apply edits to a text, and return the new text. The edits must be sorted by position, and must not overlap."""
    for edit in reversed(list(edits)):
        text = text[: edit.begin] + edit.words + text[edit.end :]
    return text


class Edits:
    """
    Phrases that may replace each other, and words that may not be deleted.

    Args:
        counts (`dict`): For each pair of phrases (tuples of words), the number of groups of texts in which the second
            phrase replaced the first, see `learn`.
        kept (`Iterable[str]`, *optional*): Words in lower case that change the meaning if they are deleted, such as
            "not". If given, an edit may also delete up to five successive words, but none of these, no number with
            its unit, and no name inside a sentence. Without it, there are no deletions.

    Example:

    ```python
    >>> from hf_lenctrl.inference.edits import Edits
    >>> edits = Edits.learn([["I do not know.", "I don't know."], ["We do not eat.", "We don't eat."]], least=2)
    >>> edits.of("They do not come.")
    [Edit(begin=5, end=11, words="don't", count=2)]

    ```
    """

    def __init__(self, counts: dict[tuple[Phrase, Phrase], int], kept: Iterable[str] | None = None):
        self.counts, self.kept = counts, None if kept is None else frozenset(kept)
        self._others: dict[Phrase, list[tuple[Phrase, int]]] = {}
        for (phrase, other), count in counts.items():
            self._others.setdefault(phrase, []).append((other, count))
        self._longest = max(map(len, self._others), default=0)

    @classmethod
    def learn(cls, groups: Iterable[Sequence[str]], least: int = 3) -> "Edits":
        """
        Learn the phrases from groups of texts with the same meaning. Two texts of a group that differ in one place
        give a pair of phrases. Keep only pairs that occur in at least `least` groups. Raise `TypeError` if a group is
        a text.
        """
        counts: Counter[tuple[Phrase, Phrase]] = Counter()
        for texts in groups:
            if isinstance(texts, str):
                raise TypeError(f"a group is a list of texts with the same meaning, got the text {texts!r}")
            words = [_WORD.findall(text) for text in dict.fromkeys(texts)]
            pairs = {pair for one, other in combinations(words, 2) for pair in _changes(one, other)}
            counts.update(pairs | {(other, phrase) for phrase, other in pairs})
        frequent = sorted((-count, pair) for pair, count in counts.items() if count >= least)
        return cls({pair: -count for count, pair in frequent})

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Edits":
        """
        Load the edits that `save` wrote to the file `path`. Raise `ValueError` if the file does not have the format
        that `save` writes.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            counts = {(tuple(a.split()), tuple(b.split())): int(count) for a, b, count in content["phrases"]}
            if not all(a and b and count > 0 for (a, b), count in counts.items()):
                raise ValueError("a phrase is empty, or a number is below 1")
            kept = content["kept"]
            if kept is not None and not (isinstance(kept, list) and all(isinstance(word, str) for word in kept)):
                raise ValueError(f"kept is a list of words or null, got {kept!r}")
            return cls(counts, kept)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            rule = (
                'a file of edits has {"phrases": [["do not", "don\'t", 3]], "kept": ["not"]}: pairs of phrases with '
                "the number of their groups, and words that are never deleted, or null"
            )
            raise ValueError(f"{rule}, which {path} has not: {error}") from error

    def save(self, path: str | os.PathLike) -> None:
        """Write the edits to a JSON file, which the field `choice` of a model's configuration may name."""
        rows = ",\n".join(
            json.dumps([" ".join(a), " ".join(b), count], ensure_ascii=False) for (a, b), count in self.counts.items()
        )
        kept = json.dumps(None if self.kept is None else sorted(self.kept), ensure_ascii=False)
        Path(path).write_text(f'{{"phrases": [\n{rows}\n],\n"kept": {kept}}}\n', encoding="utf-8")

    def of(self, text: str) -> list[Edit]:
        """Return the edits that are possible in a text."""
        return [*self._replacements(text), *self._deletions(text)]

    def _deletions(self, text: str) -> list[Edit]:
        """
        Return the edits that delete up to `DELETED` successive words of a sentence, with the commas between them and a
        comma before or after them. The next word gets the capital letter of a sentence whose first words are deleted.
        """
        edits: list[Edit] = []
        found = [] if self.kept is None else list(_WORD.finditer(text))
        bounds = [0, *sentence_ends(text)]
        for first, match in enumerate(found):
            if first and any(map(str.isdigit, found[first - 1][0])):
                continue  # the unit of a number
            start = max(each for each in bounds if each <= match.start())
            opens, words = not any(map(str.isalnum, text[start : match.start()])), 0
            for last in found[first:]:
                word, end = last[0], last.end()
                words += word[0].isalnum()
                is_capital = word[0].isupper() and not _I.fullmatch(word) and not (opens and last is match)
                if word != "," and (not word[0].isalnum() or is_capital or any(map(str.isdigit, word))):
                    break
                if words > DELETED or word.lower().replace("’", "'") in (self.kept or ()):
                    break
                if words and (edit := _deletion(text, match.start(), end, opens)) is not None:
                    edits.append(edit)
        return edits

    def _replacements(self, text: str) -> list[Edit]:
        """Return the edits that replace a phrase by another one."""
        found, edits = list(_WORD.finditer(text)), []
        bounds = [0, *sentence_ends(text)]
        for first, match in enumerate(found):
            words, begin = [each[0] for each in found[first : first + self._longest]], match.start()
            opens = not any(map(str.isalnum, text[max(each for each in bounds if each <= begin) : begin]))
            for n in range(1, len(words) + 1):
                phrase = tuple(words[:n])
                end = found[first + n - 1].end()
                is_joined = _JOINED.fullmatch(phrase[0]) is not None
                before, last = text[:begin][-1:], text[:begin].rstrip()[-1:]
                if (before.strip() and before not in _OPENING and not is_joined) or _PART.match(text[end:]):
                    continue
                if any(map(_NUMBERS.match, (text[max(0, begin - 2) : begin + 1], text[end - 1 : end + 2]))):
                    continue
                if is_joined and is_abbreviated(text[: begin + 1]):
                    continue  # the full stop of "Mr."
                others = dict(self._others.get(phrase, ()))
                if not first:  # the first word may have its capital letter from its place alone
                    others |= self._others.get((_uncapitalized(phrase[0]), *phrase[1:]), ())
                for other, count in others.items():
                    new = "".join(word if _JOINED.fullmatch(word) else f" {word}" for word in other)
                    doubled = _JOINED.match(other[-1][-1]) and _JOINED.match(text[end:])
                    if doubled or (is_joined or new[0] != " ") and (opens or last in _APART):
                        continue  # a mark at the start of a sentence, or beside another one
                    if new[0] != " " and before.strip() and not is_joined:
                        continue  # a mark behind an opening bracket or quotation mark
                    if opens and match[0][0].isupper():
                        new = f" {new[1:2].upper()}{new[2:]}"
                    start = len(text[:begin].rstrip()) if new[0] != " " or is_joined else begin
                    edits.append(Edit(start, end, new if first and is_joined else new.lstrip(), count))
        return edits


def _deletion(text: str, begin: int, end: int, opens: bool) -> Edit | None:
    """
    Return the edit that deletes the characters from `begin` to `end`, with the space on one side. Return `None` if the
    rest is not written as text is. `opens` says whether a sentence begins at `begin`.
    """
    before, after = text[:begin].rstrip(), text[end:]
    if "\n" in text[len(before) : end] or (opens and "\n" in after[: len(after) - len(after.lstrip())]):
        return None  # lines stay apart
    apart = before[-1:] in _APART and before != ""
    if _PART.match(after) or (text[:begin] and not text[:begin][-1].isspace() and text[begin] != ","):
        return None  # a part of a longer expression, or beside an opening mark
    if not opens:
        rest = after.lstrip()
        return None if apart and (not rest or rest[0] in _APART + _CLOSING) else Edit(len(before), end, "")
    following = after.lstrip()
    if not following[:1].isalnum():
        return None  # a sentence does not begin with a mark
    place = len(text) - len(following)
    return Edit(begin, place + 1, following[0].upper())


def edits_of(model, hub_options: dict[str, Any]) -> Edits | None:
    """
    Load the edits that the field `choice` of a model's configuration names, from the model's folder or repository.
    Return `None` if the field names no file. If the file is missing, as in the folder of a model that was trained
    further, log this and return `None`. Raise `ValueError` if the name is a path. `hub_options` are options of the
    Hub, such as `token`.
    """
    name = ChoiceConfig.of(model.config).edits
    if name is None:
        return None
    if not isinstance(name, str) or os.path.basename(name) != name or name in ("", ".", ".."):
        raise ValueError(f"edits of the choice are a file in the model's folder, got {name!r}; give its name alone")
    commit = getattr(model.config, "_commit_hash", None)  # the revision of a model that the user loaded
    options = hub_options if commit is None else {"revision": commit, **hub_options}
    try:
        path = cached_file(model.config.name_or_path, name, **options)
    except OSError as error:
        logger.info("candidates get no edits, because %s is missing: %s", name, error)
        return None
    return Edits.load(str(path))


def _uncapitalized(word: str) -> str:
    return word[:1].lower() + word[1:]


def _changes(one: list[str], other: list[str]) -> list[tuple[Phrase, Phrase]]:
    """
    Return pairs of phrases in which two lists of words differ: the phrase of `one`, and the phrase of `other`. Return
    an empty list if no phrases can be learned, for example because the lists differ at the first word or in more than
    `LONGEST` successive words.

    If the only difference is additional words in one list, a phrase would be empty. Then return up to two pairs: one
    pair also contains the word before the additional words, the other pair the word after the additional words.
    """
    first = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    last = 0
    while last < min(len(one), len(other)) - first and one[-1 - last] == other[-1 - last]:
        last += 1
    parts = tuple(one[first : len(one) - last]), tuple(other[first : len(other) - last])
    if one == other or not first or max(map(len, parts)) > LONGEST or min(len(one), len(other)) < LONGEST:
        return []
    if any(not word[0].isalnum() and not _JOINED.fullmatch(word) for part in parts for word in part):
        return []  # the spaces beside other marks are not known
    if all(parts):
        return [parts]
    before, after = one[first - 1 : first] if first > 1 else [], one[len(one) - last :][:1]
    return [
        ((*left, *parts[0], *right), (*left, *parts[1], *right))
        for left, right in ((before, []), ([], after))
        if left or right
    ]


@dataclass(frozen=True)
class Rewording:
    """
    Texts of one source to edit, for `reword`.

    Args:
        source (`Prompt`, `str` or `list[dict]`): The source of the texts: a text or a chat, see `log_probabilities`.
        starts (`dict[str, float]`): The texts, with their log-probabilities without a length.
        low, high (`int`): The lowest and the highest length that fits, in the units that `reword` counts.
        singles, combined (`int`, *optional*): Numbers of texts with one edit, and with several edits, for which the
            model computes the log-probability. The defaults are 64 and 16.
        reach (`float`, *optional*, defaults to 0): Nats that an edit may cost more if the text then fits; less if the
            text only comes nearer to the limit.
    """

    source: Prompt | str | list[dict[str, str]]
    starts: dict[str, float]
    low: int
    high: int
    singles: int = SINGLES
    combined: int = COMBINED
    reach: float = 0.0

    @property
    def best(self) -> list[str]:
        """Return the texts that are edited, best first."""
        return sorted(self.starts, key=lambda text: -self.starts[text])[:STARTS]


def reword(
    model,
    tokenizer,
    edits: Edits,
    tasks: Sequence[Rewording],
    count: Callable[[list[str]], list[int]],
    score: Callable[[list[tuple[int, str]]], list[float]] | None = None,
) -> list[dict[str, float]]:
    """
    Edit the texts of each task, and return the texts that fit, with their log-probabilities without a length.

    First make texts with one edit. `first_changes` estimates how likely each edit is, from the first vocabulary entry
    that the edit changes. The model computes the log-probabilities of the texts with the likeliest edits. Then combine
    several of these edits in one text. To estimate the log-probability of a combination, add the change by each edit
    to the log-probability of the text before the edits. The model computes the log-probabilities of the likeliest
    combinations. A step is done for several tasks at once, because a few long forward passes are faster than many.

    Args:
        model, tokenizer: The model, which can generate without a length, and its tokenizer.
        edits (`Edits`): The phrases that may replace each other.
        tasks (`Sequence[Rewording]`): The texts to edit.
        count (`Callable`): Function that returns the number of units of each text of a list.
        score (`Callable`, *optional*): Function that returns the log-probability of each text of a list of pairs: the
            place of a task, and a text. Defaults to `log_probabilities`.

    Returns:
        `list[dict[str, float]]`: For each task, the texts that fit, with their log-probabilities. Texts of `starts`
        that fit are included.
    """

    def score_of(pairs: list[tuple[int, str]]) -> list[float]:
        sources = [tasks[k].source for k, _ in pairs]
        return log_probabilities(model, tokenizer, sources, [text for _, text in pairs])

    score, results = score or score_of, []
    for start in range(0, len(tasks), _AT_ONCE):
        places = range(start, min(start + _AT_ONCE, len(tasks)))
        proposals = [_Proposals(k, tasks[k], edits, count) for k in places]
        rows = [(own.task.source, text, list(some)) for own in proposals for text, some in own.variants.items()]
        changes = iter(first_changes(model, tokenizer, rows))
        for own in proposals:
            own.add_changes([next(changes) for _ in own.variants])
        once = _scored(proposals, [own.likeliest() for own in proposals], score)
        several = [own.combinations(numbers, count) for own, numbers in zip(proposals, once, strict=True)]
        new = [[text for text in own if text not in seen] for own, seen in zip(several, once, strict=True)]
        both = _scored(proposals, new, score)
        for own, single, more in zip(proposals, once, both, strict=True):
            found = {**own.task.starts, **single, **more}
            fits = [own.task.low <= n <= own.task.high for n in count(list(found))]
            results.append({text: number for (text, number), fit in zip(found.items(), fits, strict=True) if fit})
    return results


class _Proposals:
    """The texts with one edit of a task."""

    def __init__(self, place: int, task: Rewording, edits: Edits, count: Callable[[list[str]], list[int]]):
        self.place, self.task = place, task
        self.variants: dict[str, dict[str, Edit]] = {}  # text -> texts with one useful edit, and this edit
        self._shares: dict[tuple[str, str], float] = {}  # text, text with an edit -> share of the missing units
        self._proposals: dict[str, tuple[float, str, Edit]] = {}  # text -> how likely it looks, text before, edit
        self._lengths = dict(zip(task.best, count(task.best), strict=True))
        for text, n in self._lengths.items():
            some = {apply(text, [edit]): edit for edit in edits.of(text)}
            needed = (n < task.low) - (n > task.high)  # the sign of the change that the text needs
            grown = zip(some, count(list(some)), strict=True)
            useful = {one: m for one, m in grown if (m - n) * needed >= -2 and one not in task.starts}
            self.variants[text] = {one: some[one] for one in useful}
            missing = max(1, task.low - n, n - task.high)
            for one, m in useful.items():
                beyond = (needed < 0 and m < task.low) or (needed > 0 and m > task.high)
                self._shares[text, one] = 0.0 if beyond else min(1.0, (m - n) * needed / missing)

    def add_changes(self, changes: Sequence[Sequence[float]]) -> None:
        """Estimate how likely each edit is; `changes` has a number for each variant of each text."""
        for (text, own), numbers in zip(self.variants.items(), changes, strict=True):
            for (variant, edit), change in zip(own.items(), numbers, strict=True):
                value = change + 0.3 * math.log(edit.count) + 0.5 * self.task.starts[text]
                value += self.task.reach * self._shares[text, variant]
                if variant not in self._proposals or self._proposals[variant][0] < value:
                    self._proposals[variant] = value, text, edit

    def likeliest(self) -> list[str]:
        """Return the `singles` likeliest texts with one edit."""
        return sorted(self._proposals, key=lambda variant: -self._proposals[variant][0])[: self.task.singles]

    def combinations(self, once: dict[str, float], count: Callable[[list[str]], list[int]]) -> list[str]:
        """
        Return up to `combined` texts that are expected to fit, each with one or more edits. Texts that end like a
        sentence come first, then likelier texts. `once` maps each text with one edit to its log-probability.
        """
        several: dict[str, float] = {}
        for text, length in self._lengths.items():
            score = self.task.starts[text]
            edited = [one for one, n in once.items() if self._proposals[one][1] == text and n - score > LOWEST]
            rows = [
                (self._proposals[one][2], once[one] - score, n - length)
                for one, n in zip(edited, count(edited), strict=True)
            ]
            several |= _combined(text, score, rows, self.task.low - length, self.task.high - length)
        return sorted(several, key=lambda text: (ends(text), several[text]), reverse=True)[: self.task.combined]


def _scored(
    proposals: list[_Proposals], texts: list[list[str]], score: Callable[[list[tuple[int, str]]], list[float]]
) -> list[dict[str, float]]:
    """Return the log-probabilities of the texts of each task."""
    # an encoder-decoder reads these texts in batches, where similar sizes need less padding
    rows = [sorted(own, key=len) for own in texts]
    pairs = [(task.place, text) for task, own in zip(proposals, rows, strict=True) for text in own]
    numbers = iter(score(pairs))
    return [{text: next(numbers) for text in own} for own in rows]


def _combined(text: str, score: float, rows: list[tuple[Edit, float, int]], least: int, most: int) -> dict[str, float]:
    """
    Combine up to `MOST_EDITS` edits in a text. Return a dictionary that maps each new text to its expected
    log-probability. The total growth of a new text is from `least` to `most` units. `score` is the log-probability of
    the given text. Each of `rows` is an edit, its change of the log-probability, and its growth in units.
    """
    states: dict[tuple[int, int], tuple[float, tuple[Edit, ...]]] = {(0, 0): (score, ())}  # (growth, end of last edit)
    for edit, change, growth in sorted(rows, key=lambda row: (row[0].end, row[0].begin)):
        more: dict[tuple[int, int], tuple[float, tuple[Edit, ...]]] = {}
        for (total, end), (value, chosen) in states.items():
            key, grown = (total + growth, edit.end), value + change
            if (chosen and edit.begin <= end) or len(chosen) == MOST_EDITS:
                continue
            if grown > max(own.get(key, (-math.inf,))[0] for own in (states, more)):
                more[key] = grown, (*chosen, edit)
        states = dict(sorted((states | more).items(), key=lambda item: -item[1][0])[:400])
    results: dict[str, float] = {}
    for (growth, _), (value, chosen) in states.items():
        if chosen and least <= growth <= most:
            new = apply(text, chosen)
            results[new] = max(results.get(new, -math.inf), value)
    return results
