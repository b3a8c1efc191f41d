"""Make texts keep a limit: leave those that fit, take a candidate that fits, or let a model reword."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, overload

from transformers import pipeline

from ..length_units import check_sources, count_texts
from ..lengths import check_constraint, check_counts, check_length, check_tolerance, window_of
from .chats import as_prompts
from .finish import sentence_ends
from .ranking import endings, ends, similarity


INSTRUCTION = "Rewrite the text."  # the system message that our rewording model was trained with
BEAMS = 2  # rewordings of a text for each planned length; with guidance they take the time of 16 beams without it
# planned lengths: shares of the limit under "max", because a shorter text often reads better, and of a window's width
SHARES, PLACES = (1.0, 0.9, 0.8, 0.7), (0.1, 0.4, 0.7, 1.0)
GUIDANCE = 2.0  # `guidance_scale` of a model that also generates without a length
SIMILARITY_WEIGHT = 10.0  # nats for full similarity to the source; log-probability alone prefers to leave words out
LIKELY_END = -9.2  # nats; a text that ends less likely, once in 10,000, is unfinished; chosen on 18 texts
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_WORD = re.compile(r"\w[\w-]+")

Candidates = Sequence[str] | Sequence[Sequence[str]] | Callable[[str, int, list[str]], Any]


@dataclass(frozen=True)
class Candidate:
    """A text that could replace a source."""

    text: str
    length: int  # units
    origin: Literal["source", "candidate", "model"]
    lost: tuple[str, ...] = ()  # names and numbers of the source that the text lacks
    added: tuple[str, ...] = ()  # names and numbers of the text that the source lacks
    score: float | None = None  # log-probability without a length; `None` without a model that can tell
    ending: float | None = None  # how likely the end is, in nats; about 0 where a sentence may end

    @property
    def faults(self) -> list[str]:
        """Faults of the text, apart from its length."""
        kinds = {"lost": self.lost, "added": self.added}
        return [f"{kind}: {', '.join(words)}" for kind, words in kinds.items() if words]

    @property
    def broken(self) -> bool:
        """Whether the model would hardly ever end the text here."""
        return self.ending is not None and self.ending < LIKELY_END


@dataclass(frozen=True)
class Fitted:
    """
    The text that `fit` returns for a source, with its length and origin.

    `fault` is `None` if the text fits and has the names and numbers of the source. Otherwise it says what is wrong. If
    no text fits, `fit` returns the source unchanged; it never cuts a text.
    """

    text: str
    length: int
    requested: int
    origin: Literal["source", "candidate", "model"]
    score: float | None
    fault: str | None
    candidates: tuple[Candidate, ...]  # all texts that were considered, also those that do not fit


@dataclass
class _Request:
    """A source with its requested length, the window of allowed lengths, and the texts considered."""

    source: str
    requested: int
    low: int
    high: int
    considered: list[Candidate] = field(default_factory=list)

    def fits(self, candidate: Candidate) -> bool:
        return self.low <= candidate.length <= self.high

    @property
    def open(self) -> bool:
        """Whether the request still lacks a text that fits and has no fault."""
        return not any(self.fits(candidate) and not candidate.faults for candidate in self.considered)


@overload
def fit(texts: str, length: Any, **options: Any) -> Fitted: ...
@overload
def fit(texts: Iterable[str], length: Any, **options: Any) -> list[Fitted]: ...
def fit(texts, length, *, candidates: Candidates | None = None, attempts: int = 3, **options):
    """
    Fit texts to a length limit. The texts may come from a hosted model, a translator or a person.

    A text that fits is returned byte for byte. Otherwise the best of the `candidates` that fit replaces it. If none
    fits, the `model` rewords the text. A text is never cut.

    Args:
        texts (`str` or `list[str]`): Sources.
        length (`int` or `list[int]`): Units, for all texts or for each.
        unit (`str`, *optional*): `"character"`, `"word"`, `"byte"` or `"width"`; defaults to the model's, or
            characters.
        constraint (`str`, *optional*, defaults to `"max"`): `"max"`, or `"exact"` with a `tolerance`.
        tolerance (`int`, `float` or `tuple`, *optional*): With `"exact"`, a window, as `length_tolerance` of
            `generate`.
        candidates (`list` or function, *optional*): Other texts of the same meaning: a list for a single text, a list
            of lists for several. Or a function `(text, length, tried) -> str or list of str`, which asks your own
            model again; `tried` holds the texts that did not fit. It is called up to `attempts` times.
        attempts (`int`, *optional*, defaults to 3): Calls of the function for each text.
        model (`str` or pipeline, *optional*): Path or Hub name of a model that rewords, or a pipeline of the task
            `"length-controlled-generation"`. Any instruct model works under the constraint; a length-controlled one
            plans.
        instruction (`str`, *optional*): System message of the chat, for a model with a chat template.

    Returns:
        `Fitted` for a single text, else a list of them, in the order of the texts.

    Raises:
        `TypeError`, `ValueError`: for texts that are no texts, an invalid length, another number of lengths or
            candidates than of texts, or a unit that the model does not count.

    Example:

    ```python
    >>> from hf_lenctrl import fit
    >>> text = "The meeting has been moved to Thursday at 3 p.m."
    >>> fitted = fit(text, 30, candidates=["Meeting moved to Thursday.", "Meeting now Thursday 3 p.m."])
    >>> fitted.text, fitted.origin, fitted.fault
    ('Meeting now Thursday 3 p.m.', 'candidate', None)

    ```
    """
    job = _Job(texts, length, candidates=candidates, attempts=attempts, **options)
    for request in job.to_ask():
        for _ in range(attempts):
            if request.open:
                job.add(request, job.ask(request))
    job.reword()
    return job.results()


async def fit_async(texts, length, *, candidates=None, attempts: int = 3, **options):
    """Fit texts as `fit` does, with a `candidates` function that is a coroutine; it runs for all texts at once."""
    job = _Job(texts, length, candidates=candidates, attempts=attempts, **options)

    async def ask(request: _Request) -> None:
        for _ in range(attempts):
            if request.open:
                answer = job.ask(request, asynchronous=True)
                job.add(request, await answer if inspect.isawaitable(answer) else answer)

    await asyncio.gather(*map(ask, job.to_ask()))
    await asyncio.to_thread(job.reword)
    return job.results()


class _Job:
    """One call of `fit`: its requests and options."""

    def __init__(
        self,
        texts,
        length,
        *,
        candidates,
        attempts: int,
        unit: str | None = None,
        constraint: str = "max",
        tolerance=None,
        model=None,
        instruction: str = INSTRUCTION,
    ):
        self.single = isinstance(texts, str)
        sources = [texts] if self.single else list(texts)
        check_sources(sources)
        check_counts(attempts=attempts)
        if constraint is None:
            raise ValueError("fit keeps a limit, got constraint=None; pass constraint='max' or 'exact'")
        check_constraint(constraint)
        check_tolerance(tolerance, constraint)
        self.pipe: Any = model
        if isinstance(model, str | Path):
            self.pipe = pipeline("length-controlled-generation", model=str(model))  # type: ignore[call-overload]
        self.constraint, self.tolerance, self.instruction = constraint, tolerance, instruction
        own = getattr(getattr(getattr(self.pipe, "model", None), "config", None), "length_unit", None)
        self.unit = unit or own or "character"
        lengths = list(length) if isinstance(length, list | tuple) else [length] * len(sources)
        if len(lengths) != len(sources):
            raise ValueError(f"length must be one integer or one for each of the {len(sources)} texts, got {length}")
        for n in lengths:
            check_length(n)
        lows, highs = ([0] * len(lengths), lengths) if constraint == "max" else window_of(lengths, tolerance or 0)
        self.requests = [_Request(*row) for row in zip(sources, lengths, lows, highs, strict=True)]
        for request in self.requests:
            self.add(request, [request.source], "source")
        self.function: Any = candidates if callable(candidates) else None
        if candidates is not None and self.function is None:
            lists: Any = [candidates] if self.single else list(candidates)
            if len(lists) != len(sources) or any(isinstance(texts, str) for texts in lists):
                raise ValueError(
                    f"candidates must be a list of texts for each of the {len(sources)} texts, got {lists}"
                )
            for request, several in zip(self.requests, lists, strict=True):
                self.add(request, several)

    def add(self, request: _Request, texts, origin: Any = "candidate") -> None:
        """Add more texts to the candidates of a request, each with its length and its lost and added names."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        check_sources(texts)
        known = {candidate.text for candidate in request.considered}
        counts = count_texts(getattr(self.pipe, "tokenizer", None), texts, self.unit)
        for text, count in zip(texts, counts, strict=True):
            if text not in known:
                changed = lost(request.source, text), lost(text, request.source)
                request.considered.append(Candidate(text, count, origin, *changed))
                known.add(text)

    def to_ask(self) -> list[_Request]:
        """Return the open requests, for which the function is called."""
        return [request for request in self.requests if request.open] if self.function is not None else []

    def ask(self, request: _Request, asynchronous: bool = False) -> str | list[str] | Awaitable:
        """Ask the `candidates` function for texts for a request."""
        answer = self.function(request.source, request.requested, [one.text for one in request.considered[1:]])
        if inspect.isawaitable(answer) and not asynchronous:
            getattr(answer, "close", lambda: None)()  # Python warns of a coroutine that nobody awaits
            raise TypeError("the candidates function is a coroutine; call `await fit_async(...)` in place of fit")
        return answer

    def reword(self) -> None:
        """Let the model reword the sources without a text that fits, and score the texts that fit."""
        if self.pipe is None:
            return
        needed = [request for request in self.requests if request.open]
        config = self.pipe.model.config
        plans = getattr(config, "length_controlled", False)
        options: dict[str, Any] = {"length_constraint": "exact", "length_unit": self.unit, "choose": False}
        options |= {"num_beams": BEAMS, "num_return_sequences": BEAMS}
        if plans and config.length_optional:
            options["guidance_scale"] = GUIDANCE
        rows = [(request, *row) for request in needed for row in self._rows(request, plans)]
        if rows:
            options["length"] = [length for _, length, *_ in rows]
            options["length_tolerance"] = [(length - low, high - length) for _, length, low, high in rows]
            prompts = [self._prompt(request.source) for request, *_ in rows]
            for (request, *_), outputs in zip(rows, self.pipe(prompts, **options), strict=True):
                texts = [out["generated_text"].strip() for out in outputs]
                self.add(request, [text for text in texts if text], "model")
        self._score()

    def _rows(self, request: _Request, plans: bool) -> list[tuple[int, int, int]]:
        """Return the planned lengths of a request, each with its window; a model that does not plan stops there."""
        low, high = max(1, request.low), request.high
        if self.constraint == "max":
            lengths = [max(1, round(share * high)) for share in SHARES]
        else:
            lengths = [round(low + place * (high - low)) for place in PLACES]
        stops = self.constraint == "max" and not plans
        return [(length, low, length if stops else high) for length in dict.fromkeys(lengths)]

    def _score(self) -> None:
        """Score the texts that may be returned, if the model can generate without a length."""
        config = self.pipe.model.config
        if getattr(config, "length_controlled", False) and not getattr(config, "length_optional", False):
            return
        pairs = [
            (request, k)
            for request in self.requests
            for k, candidate in enumerate(request.considered)
            if request.fits(candidate) and candidate.origin != "source" and not request.fits(request.considered[0])
        ]
        prompts = as_prompts([self._prompt(request.source) for request, _ in pairs], self.pipe.tokenizer)
        texts = [request.considered[k].text for request, k in pairs]
        scores = endings(self.pipe.model, self.pipe.tokenizer, prompts, texts)
        for (request, k), (score, ending) in zip(pairs, scores, strict=True):
            request.considered[k] = replace(request.considered[k], score=score, ending=ending)

    def _prompt(self, source: str) -> Any:
        """Return the prompt for a source: a chat if the tokenizer has a template, otherwise the source."""
        if getattr(self.pipe.tokenizer, "chat_template", None) is None:
            return source
        return [{"role": "system", "content": self.instruction}, {"role": "user", "content": source}]

    def results(self) -> Any:
        """Return the results: the best text of each request."""
        results = [_best(request, self.unit) for request in self.requests]
        return results[0] if self.single else results


def _best(request: _Request, unit: str) -> Fitted:
    """Return the best text: the source, then texts that keep names and numbers, then texts that end as the source."""
    source, *others = request.considered
    fitting = [candidate for candidate in others if request.fits(candidate)]
    fault = None
    if request.fits(source) or not fitting:
        best = source
        if not request.fits(source):
            nearest = min(request.considered, key=lambda one: max(request.low - one.length, one.length - request.high))
            fault = f"no text fits: the nearest of {len(request.considered)} has {nearest.length} {unit}s"
    else:

        def worth(candidate: Candidate) -> tuple[bool, bool, float]:
            value = SIMILARITY_WEIGHT * similarity(candidate.text, source.text)
            value += (candidate.score or 0.0) + (candidate.ending or 0.0)
            finished = (ends(candidate.text) or not ends(source.text)) and not candidate.broken
            return not candidate.faults, finished, value

        best = max(fitting, key=worth)
        half = best.origin == "model" and (best.broken or ends(source.text) and not ends(best.text))
        fault = "; ".join([*best.faults, *(["unfinished"] if half else [])]) or None
    considered = tuple(request.considered)
    return Fitted(best.text, best.length, request.requested, best.origin, best.score, fault, considered)


def lost(source: str, text: str) -> tuple[str, ...]:
    """
    Return the lost words: numbers and names of a source that a text lacks. A name is a capitalized word that does not
    begin a sentence.

    Example:

    ```python
    >>> from hf_lenctrl.inference.fit import lost
    >>> lost("Yesterday Anna paid 3.50 to Mr. Weber.", "Anna paid Mr. Meyer 3.50.")
    ('Weber',)

    ```
    """
    starts = [0, *sentence_ends(source)]
    words = [(found[0], found.start()) for found in _WORD.finditer(source) if found[0][0].isupper()]
    names = [word for word, at in words if any(map(str.isalnum, source[max(n for n in starts if n <= at) : at]))]
    kept = {*_NUMBER.findall(text), *_WORD.findall(text)}
    return tuple(word for word in dict.fromkeys([*_NUMBER.findall(source), *names]) if word not in kept)
