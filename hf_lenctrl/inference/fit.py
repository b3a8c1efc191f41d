"""Fit texts to a limit: leave a text that fits, take a candidate that fits, or let a model reword the text."""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

from transformers import Pipeline, pipeline

from ..length_units import Unit, as_unit, check_list, check_sources, count_texts
from ..lengths import check_constraint, check_counts, check_length, check_tolerance, plural, window_of
from .edits import Rewording, reword
from .fitted import Candidate, Fitted, lost, sentences_of
from .options import Tolerance
from .presets import limit_of
from .ranking import endings, log_probabilities
from .sentences import ends


# System messages of a chat, for a text that is too long, for one that is too short, and for the recall. Our rewording
# model was trained with them; asked to rewrite a text alone, an instruct model comments on it.
SHORTER, LONGER = "Rewrite the text to make it shorter.", "Rewrite the text to make it longer."
INSTRUCTION = "Rewrite the text."
FREE_BEAMS, FREE_STARTS = 8, 6  # beams without a planned length, and how many of their texts are edited
AGAIN, AGAIN_BEAMS = 3, 4  # how many of their texts that are still too long the model shortens again, and its beams
REACH = 6.0  # nats that an edit of a text that is too long may cost more if the text then fits
SAVING = 20.0  # nats that a text may lose by shortening as much as the limit asks
NUM_BEAMS = 2  # also the rewordings for each planned length; the edits of the source are further candidates
# planned lengths: with "max" as shares of the limit, because a shorter text often reads better; in a window as places
# from its lowest length (0) to its highest length (1)
SHARES, PLACES = (1.0, 0.9, 0.8, 0.7), (0.1, 0.4, 0.7, 1.0)
GUIDANCE = 2.0  # `guidance_scale` of a model that also generates without a length
COMPARED = 6  # edited texts that are considered, and texts that get a recall
# texts with one edit to score, of a source that is too long or too short, and texts with several edits
SHORTENED, LENGTHENED, COMBINED = 16, 32, 8

Candidates = Sequence[str] | Sequence[Sequence[str]] | Callable[[str, int, list[str]], Any]


@dataclass
class _Request:
    """
    A source with its requested length, the window of allowed lengths, and the texts that were considered (the source
    is the first).
    """

    source: str
    requested: int
    low: int
    high: int
    considered: list[Candidate] = field(default_factory=list)

    def fits(self, candidate: Candidate) -> bool:
        return self.low <= candidate.length <= self.high

    def others(self) -> list[int]:
        """Return the indices in `considered` of the texts that fit, without the source (index 0)."""
        return [k for k, candidate in enumerate(self.considered) if k and self.fits(candidate)]

    def starts(self) -> list[int]:
        """
        Return the indices in `considered` of the texts that `fit` may edit or shorten again: rewordings of the model
        that are shorter than the source, have no fault and are finished. The best are first; a shorter text may have
        a lower `value`, see `SAVING`.
        """
        most = self.considered[0].length
        pairs = [(k, one) for k, one in enumerate(self.considered) if one.origin == "model" and one.length < most]
        found = [k for k, one in pairs if not one.faults and one.finishes(self.source)]

        def worth(k: int) -> float:
            one = self.considered[k]
            saved = most - max(one.length, self.high) - max(0, self.low - one.length)  # units
            return one.value(self.source) + SAVING * saved / max(1, most - self.high)

        return sorted(found, key=worth, reverse=True)

    def likeliest(self) -> list[int]:
        """Return the indices in `considered` of the `COMPARED` likeliest texts that fit, best first."""

        def worth(k: int) -> tuple[bool, bool, float]:
            candidate = self.considered[k]
            return candidate.rank(self.source, (candidate.score or 0.0) + (candidate.ending or 0.0))

        return sorted(self.others(), key=worth, reverse=True)[:COMPARED]

    def rows(self, plans: bool) -> list[tuple[int, int, int]]:
        """
        Return a list of tuples `(length, lowest, highest)`, in units. The model generates once for each tuple: the
        first number is the requested length, the others are the window of allowed lengths. The requested lengths are
        spread over the window of the request or, if the request has only an upper limit, are shares of this limit.

        `plans` says whether the model plans its length. A model that does not plan ignores the requested length. For
        such a model, if the request has only an upper limit, each tuple has its requested length as highest length.
        """
        low, high = max(1, self.low), self.high
        if low > 1:
            return [(length, low, high) for length in {round(low + place * (high - low)): 0 for place in PLACES}]
        lengths = {max(1, round(share * high)): 0 for share in SHARES}
        return [(length, low, high if plans else length) for length in lengths]

    @property
    def open(self) -> bool:
        """Return whether the request still needs a text: every text so far has a fault or does not fit."""
        return not any(self.fits(candidate) and not candidate.faults for candidate in self.considered)

    @property
    def too_long(self) -> bool:
        """Return whether the source has more units than the limit allows."""
        return self.considered[0].length > self.high

    @property
    def instruction(self) -> str:
        """Return the default system message, which asks for a shorter or for a longer text."""
        return SHORTER if self.too_long else LONGER

    @property
    def needs_plans(self) -> bool:
        """
        Return whether the model must reword the source with planned lengths: no text that fits is finished and without
        faults.
        """
        fitting = (self.considered[k] for k in self.others())
        return not any(not one.faults and one.finishes(self.source) for one in fitting)


class FitOptions(TypedDict, total=False):
    """Options of `fit`, for type checkers and editors."""

    candidates: Candidates | None
    attempts: int
    unit: str | Unit | Callable[[str], int] | None
    constraint: str
    tolerance: Tolerance
    model: str | Path | Pipeline | None
    instruction: str | None
    num_beams: int


@overload
def fit(texts: str, length: Any, **options: Unpack[FitOptions]) -> Fitted: ...
@overload
def fit(texts: Iterable[str], length: Any, **options: Unpack[FitOptions]) -> list[Fitted]: ...
def fit(texts, length, *, candidates: Candidates | None = None, attempts: int = 3, **options):
    """
    Fit texts to a length limit. The texts may come from a hosted model, a translator or a person.

    A text that fits is returned unchanged, byte for byte. Otherwise the best candidate that fits replaces the text. If
    no candidate fits without a fault (a lost or added name or number), the `model`, if given, adds its rewordings to
    the candidates. A candidate with a fault is returned only if no candidate without a fault fits. If no candidate
    fits, the text is returned unchanged. In both cases, `Fitted.fault` says what is wrong. A text is never cut.

    Args:
        texts (`str` or `list[str]`): Sources.
        length (`int`, `list[int]` or `str`): Limit in units: an `int` for all texts, or a list with one limit for each
            text. Or the name of a limit, such as `"bluesky"`.
        unit (`str`, `Unit` or function, *optional*): A name, such as `"character"`, or a unit of your own. The
            default is the unit of a named limit, otherwise the model's unit, otherwise characters.
        constraint (`str`, *optional*, defaults to `"max"`): `"max"`, `"exact"` with a `tolerance`, or `"min"`.
        tolerance (`int`, `float` or `tuple`, *optional*): With `"exact"`, a window around the length, like
            `length_tolerance` of `generate`.
        candidates (`list` or function, *optional*): Other texts with the same meaning: a list for a single text; for
            several texts, a list that has a list or `None` for each text. Or a function
            `(text, length, tried) -> str, list of str or None` that asks your own model again; `tried` holds the
            candidates that did not fit or had a fault.
        attempts (`int`, *optional*, defaults to 3): Maximum number of calls of the function `candidates` for each
            text.
        model (`str` or pipeline, *optional*): Path or Hub name of a model that rewords texts, or a pipeline of the
            task `"length-controlled-generation"`. With any instruct model, the constraint keeps the length; a
            length-controlled model also plans its length. A model with edits first shortens a text that is too long,
            without a planned length, and `fit` edits the text and the results.
        instruction (`str`, *optional*): System message of the chat, for a model with a chat template. By default it
            asks for a shorter or for a longer text.
        num_beams (`int`, *optional*, defaults to 2): Number of beams, and number of rewordings, for each planned
            length. More beams take more time, and may give better texts.

    Returns:
        `Fitted` for a single text, else a list of `Fitted` in the order of the texts.

    Raises:
        `TypeError`, `ValueError`: if a text is not a `str`, a length is invalid, the number of lengths or candidates
            differs from the number of texts, or the model cannot count the unit.

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
    """
    Fit texts like `fit`. `candidates` may be a coroutine function, whose calls for different texts run concurrently.
    """
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
    """One call of `fit`: the requests and the options."""

    def __init__(
        self,
        texts,
        length,
        *,
        candidates,
        attempts: int,
        unit: Any = None,
        constraint: str = "max",
        tolerance=None,
        model=None,
        instruction: str | None = None,
        num_beams: int = NUM_BEAMS,
        **unknown,
    ):
        if unknown:
            raise TypeError(f"fit has no option {min(unknown)!r}, only {', '.join(FitOptions.__annotations__)}")
        self.single = isinstance(texts, str)
        check_list([] if self.single else texts)
        sources = [texts] if self.single else list(texts)
        check_sources(sources)
        check_counts(attempts=attempts, num_beams=num_beams)
        if constraint is None:
            raise ValueError("fit keeps a limit, got constraint=None; pass constraint='max', 'exact' or 'min'")
        check_constraint(constraint)
        check_tolerance(tolerance, constraint)
        self.pipe: Any = model
        if isinstance(model, str | Path):
            self.pipe = pipeline("length-controlled-generation", model=str(model))  # type: ignore[call-overload]
        self.constraint, self.tolerance = constraint, tolerance
        self.instruction, self.num_beams = instruction, num_beams
        # instruction, source, text -> log-probability, end score
        self.known: dict[tuple[str, str, str], tuple[float, float]] = {}
        own = getattr(getattr(getattr(self.pipe, "model", None), "config", None), "length_unit", None)
        length, unit = limit_of(length.tolist() if hasattr(length, "tolist") else length, unit)
        self.unit = as_unit(unit or own or "character")
        if self.unit == "token" and self.pipe is None:
            raise ValueError("unit='token' counts the tokens of a model; pass model=, or another unit")
        if isinstance(length, tuple):  # the pipeline takes it as a range
            raise ValueError(f"length must be one integer or a list, got the tuple {length}; fit takes no range")
        lengths = list(length) if isinstance(length, list) else [length] * len(sources)
        if len(lengths) != len(sources):
            raise ValueError(f"length must be one integer or one for each of the {len(sources)} texts, got {length}")
        for n in lengths:
            check_length(n)
        lows, highs = window_of(lengths, tolerance or 0, constraint)
        lows = [0] * len(lengths) if constraint == "max" else lows
        self.requests = [_Request(*row) for row in zip(sources, lengths, lows, highs, strict=True)]
        for request in self.requests:
            self.add(request, [request.source], "source")
        self.function: Callable[[str, int, list[str]], Any] | None = candidates if callable(candidates) else None
        if candidates is not None and self.function is None:
            is_one = self.single or not isinstance(candidates, Iterable)
            lists: list = [candidates] if is_one else list(candidates)
            if len(lists) != len(sources) or any(isinstance(texts, str) for texts in lists):
                raise ValueError(
                    f"candidates must be a list of texts for each of the {len(sources)} texts, got {lists}"
                )
            for request, several in zip(self.requests, lists, strict=True):
                self.add(request, several)

    def add(self, request: _Request, texts, origin: Any = "candidate") -> None:
        """
        Add texts to the texts considered for a request, each with its length and its lost and added names and numbers.
        Skip known and empty texts. `origin` is `"source"`, `"candidate"` or `"model"`. Raise `TypeError` or
        `ValueError` if `texts` is not a text, a list of texts or `None`.
        """
        own = [texts] if isinstance(texts, str) else [] if texts is None else texts
        own = list(own) if isinstance(own, Iterable) and not isinstance(own, Mapping) else [own]
        try:
            check_sources(own)
        except (TypeError, ValueError) as error:
            place = next(i for i, one in enumerate(self.requests) if one is request)
            rule = f"the candidates of the text at position {place} must be a text, a list of texts or None"
            raise type(error)(f"{rule}, got {texts!r}: {error}") from error
        known = {candidate.text for candidate in request.considered}
        for text, count in zip(own, self._count(own), strict=True):
            if text not in known and (text.strip() or origin == "source"):  # an empty text would fit every limit
                changed = lost(request.source, text), lost(text, request.source)
                request.considered.append(Candidate(text, count, origin, *changed))
                known.add(text)

    def to_ask(self) -> list[_Request]:
        """
        Return the requests for which the function `candidates` is called: all requests that are `open`. Return an
        empty list if `candidates` is not a function.
        """
        return [request for request in self.requests if request.open] if self.function is not None else []

    def ask(self, request: _Request, asynchronous: bool = False) -> str | list[str] | Awaitable:
        """
        Call the function `candidates` for a request, and return its result: texts, or an awaitable. Raise `TypeError`
        if the result is an awaitable but `asynchronous` is not set.
        """
        assert self.function is not None
        answer = self.function(request.source, request.requested, [one.text for one in request.considered[1:]])
        if inspect.isawaitable(answer) and not asynchronous:
            getattr(answer, "close", lambda: None)()  # Python warns if a coroutine is never awaited
            raise TypeError("the candidates function is a coroutine; call `await fit_async(...)` in place of fit")
        return answer

    def reword(self) -> None:
        """
        Let the model reword the source of each request that is `open`, first sentence by sentence, then as a whole.
        Then compute the scores of the texts that fit. Do nothing if there is no model.
        """
        if self.pipe is None:
            return
        requests = [request for request in self.requests if request.source.strip()]  # a model needs a source
        for request, texts in self._by_sentences([request for request in requests if request.open]):
            self.add(request, texts, "model")
        self._write([one for one in requests if one.open])
        self._score([one for one in self.requests if not one.fits(one.considered[0])])

    def _write(self, requests: list[_Request]) -> None:
        """
        Let the model shorten the sources that are too long, without a planned length. Edit each source and these
        rewordings, and compute the scores of the texts that fit. Texts with a planned length are often cut short, so
        let the model write them only where it must (`needs_plans`). Then compute the missing scores.
        """
        self._reword_freely([request for request in requests if request.too_long])
        self._edit(requests)
        self._score(requests)
        unfinished = [request for request in requests if request.needs_plans]
        self._generate(unfinished)
        self._score(unfinished)

    def _by_sentences(self, requests: list[_Request]) -> list[tuple[_Request, list[str]]]:
        """
        For each request whose source has several sentences, let the model reword each sentence separately. Then join
        one text for each sentence: the original sentence or a rewording. Return a pair for each such request: the
        request, and a list with the best joined text that fits. The list is empty if no joined text fits.
        """
        several = [(one, sentences) for one in requests if (sentences := sentences_of(one.source))]
        counts = iter(self._count([text for _, sentences in several for text, _ in sentences]))
        parts = [[self._part(one, text, next(counts)) for text, _ in sentences] for one, sentences in several]
        every = [part for own in parts for part in own]
        self._write(every)
        self._score(every, with_source=True)
        return [
            (one, self._combined(one, own, [gap for _, gap in sentences]))
            for (one, sentences), own in zip(several, parts, strict=True)
        ]

    @staticmethod
    def _part(request: _Request, sentence: str, n: int) -> _Request:
        """
        Return a request to reword one sentence of the source of `request`. The sentence has `n` units.

        If the source must become longer, the sentence may grow by up to twice the percentage by which the source must
        grow, because other sentences may stay unchanged. If the source must become shorter, the maximum length of the
        sentence is `n` times the ratio of the source's requested length to its length, plus 5 % of `n`. This maximum
        is at most 95 % of `n`.
        """
        share = request.requested / max(1, request.considered[0].length)
        low, high = 0, max(1, round(min(0.95, share + 0.05) * n))
        if share > 1:
            low, high = n + 1, max(n + 1, round((2 * share - 1) * n))
        return _Request(sentence, high, low, high, [Candidate(sentence, n, "source")])

    def _generate(self, requests: list[_Request]) -> None:
        """
        Let the model reword the source of each request, and add the rewordings to the texts considered for the
        request.
        """
        config = self.pipe.model.config
        plans = getattr(config, "length_controlled", False)
        options: dict[str, Any] = {"length_constraint": "exact", "length_unit": self.unit, "choose": False}
        options["scores"] = False  # only texts that fit need a score
        options |= {"num_beams": self.num_beams, "num_return_sequences": self.num_beams}
        if plans and config.length_optional:
            options["guidance_scale"] = GUIDANCE
        rows = [(request, *row) for request in requests for row in request.rows(plans)]
        if rows:
            options["length"] = [length for _, length, *_ in rows]
            options["length_tolerance"] = [(length - low, high - length) for _, length, low, high in rows]
            prompts = [self._prompt(request.source, request.instruction) for request, *_ in rows]
            for (request, *_), outputs in zip(rows, self.pipe(prompts, **options), strict=True):
                several = outputs if isinstance(outputs, list) else [outputs]
                texts = [out["generated_text"].strip() for out in several]
                self.add(request, [text for text in texts if text], "model")

    def _reword_freely(self, requests: list[_Request]) -> None:
        """
        For each request, let the model shorten the source. Then let the model shorten the best of the new texts that
        are still too long. Both steps have no planned length, because a planned length may cut a sentence. Add all new
        texts to the texts considered; `_edit` brings them to the length. Do nothing if the model has no edits.
        """
        if not requests or not self._has_edits():
            return
        self._shorten([(request, request.source) for request in requests], FREE_BEAMS)
        again = []
        for request, best in self._best_starts(requests):
            still = [request.considered[k] for k in best if request.considered[k].length > request.high]
            again += [(request, one.text) for one in still[:AGAIN]]
        self._shorten(again, AGAIN_BEAMS)

    def _best_starts(self, requests: list[_Request]) -> list[tuple[_Request, list[int]]]:
        """Return each request with its `starts`, which have a score and a recall."""
        pairs = [(request, k) for request in requests for k in request.starts()]
        pairs = [(request, k) for request, k in pairs if request.considered[k].recall is None]
        self._scored(pairs)
        self._recall(pairs)
        return [(request, request.starts()) for request in requests]

    def _shorten(self, texts: list[tuple[_Request, str]], beams: int) -> None:
        """Let the model shorten each text, and add the results to the texts considered for its request."""
        if not texts:
            return
        side = "text_target" if self.pipe.model.config.is_encoder_decoder else "text"
        ids = self.pipe.tokenizer(**{side: [text for _, text in texts]})["input_ids"]
        # steps of 16, so that the texts of a request do not depend on the other requests
        limits = [16 * math.ceil((len(each) + 2) / 16) for each in ids]
        for limit in dict.fromkeys(limits):
            some = [pair for pair, own in zip(texts, limits, strict=True) if own == limit]
            options: dict[str, Any] = {"num_beams": beams, "num_return_sequences": beams, "scores": False}
            options |= {"max_new_tokens": limit, **dict.fromkeys(("length", "length_constraint", "guidance_scale"))}
            outputs = self.pipe([self._prompt(text, one.instruction) for one, text in some], **options)
            for (request, _), several in zip(some, outputs, strict=True):
                found = [out["generated_text"].strip() for out in several]
                self.add(request, [text for text in found if text], "model")

    def _edit(self, requests: list[_Request]) -> None:
        """
        Edit the source of each request and its best rewordings so far, and add the best edited texts that fit to the
        texts considered for the request. Do nothing if the model has no edits, see
        `hf_lenctrl.inference.edits.Edits`.
        """
        if not self._has_edits():
            return
        tasks: list[tuple[_Request, Rewording]] = []
        best = [(one, [one.considered[k].text for k in order]) for one, order in self._best_starts(requests)]
        # apart, because a rewording has likelier edits than the source
        groups = [(one, texts) for one, found in best for texts in ([one.source], found[:FREE_STARTS]) if texts]
        scores = iter(self._endings([(one, text) for one, texts in groups for text in texts]))
        for request, texts in groups:
            starts = {text: next(scores)[0] for text in texts}
            prompt = self._prompt(request.source, request.instruction)
            singles, reach = SHORTENED if request.too_long else LENGTHENED, REACH * request.too_long
            limits = (max(1, request.low), request.high, singles, COMBINED, reach)
            tasks.append((request, Rewording(prompt, starts, *limits)))

        def score(pairs: list[tuple[int, str]]) -> list[float]:
            return [number for number, _ in self._endings([(tasks[k][0], text) for k, text in pairs])]

        given = (self.pipe.model, self.pipe.tokenizer, self.pipe.edits, [task for _, task in tasks])
        for (request, _), found in zip(tasks, reword(*given, self._count, score), strict=True):

            def worth(text: str, source=request.source, found=found) -> tuple[bool, bool, float]:
                has_all = not lost(source, text) and not lost(text, source)
                return has_all, ends(text) or not ends(source), found[text]

            self.add(request, sorted(found, key=worth, reverse=True)[:COMPARED], "model")

    def _combined(self, request: _Request, parts: list[_Request], gaps: list[str]) -> list[str]:
        """
        Choose one text for each sentence, and join these texts. Return a list with the joined text that fits `request`
        and has the highest sum of `Candidate.value`. The list is empty if no joined text fits. `parts` are the
        requests for the sentences, and `gaps` the white space before each sentence.
        """
        best: dict[int, tuple[float, str]] = {0: (0.0, "")}  # length -> value, text
        for part, gap in zip(parts, gaps, strict=True):
            grown: dict[int, tuple[float, str]] = {}
            scored = [part.considered[0], *(part.considered[k] for k in part.others())]
            chosen = [one for one in scored if not one.faults and one.finishes(part.source)]
            values = [one.value(part.source) for one in chosen]
            for total, (value, text) in best.items():
                for one, own in zip(chosen, values, strict=True):
                    length, more = total + one.length, value + own
                    if length <= request.high and (length not in grown or grown[length][0] < more):
                        grown[length] = more, text + gap + one.text
            best = grown
        texts = [text for _, text in sorted(best.values(), reverse=True)]
        # white space also has a length, and the counts of parts may not add up
        fitting = [text for text, n in zip(texts, self._count(texts), strict=True) if request.low <= n <= request.high]
        return fitting[:1]

    def _count(self, texts: list[str]) -> list[int]:
        """Return the number of units of each text."""
        return count_texts(getattr(self.pipe, "tokenizer", None), texts, self.unit)

    def _score(self, requests: list[_Request], with_source: bool = False) -> None:
        """
        Compute the log-probability without a length (`score`) and the end score (`ending`) of all texts that fit, and
        of the source if `with_source` is set, see `endings`. Then compute the `recall` of the `COMPARED` best of them.
        Store these numbers in the candidates; numbers that are there are not computed again. Do nothing if the model
        cannot generate without a length.
        """
        if not self._has_scores():
            return
        pairs = [(request, k) for request in requests for k in [0] * with_source + request.others()]
        self._scored([(request, k) for request, k in pairs if request.considered[k].score is None])
        pairs = [(request, k) for request in requests for k in request.likeliest()]
        self._recall([(request, k) for request, k in pairs if request.considered[k].recall is None])

    def _scored(self, pairs: list[tuple[_Request, int]]) -> None:
        """Compute the `score` and the `ending` of texts, given as pairs of a request and an index in `considered`."""
        scores = self._endings([(request, request.considered[k].text) for request, k in pairs])
        for (request, k), (score, ending) in zip(pairs, scores, strict=True):
            recall = request.considered[k].recall if k else score  # the text with the index 0 is the source
            request.considered[k] = replace(request.considered[k], score=score, ending=ending, recall=recall)

    def _recall(self, pairs: list[tuple[_Request, int]]) -> None:
        """Compute the `recall` of texts, given as pairs of a request and an index in `considered`."""
        prompts = [self._prompt(request.considered[k].text) for request, k in pairs]
        sources = [request.source for request, _ in pairs]
        recalls = log_probabilities(self.pipe.model, self.pipe.tokenizer, prompts, sources)
        for (request, k), recall in zip(pairs, recalls, strict=True):
            request.considered[k] = replace(request.considered[k], recall=recall)

    def _endings(self, pairs: list[tuple[_Request, str]]) -> list[tuple[float, float]]:
        """
        Return the log-probability without a length and the end score of each pair of a request and a text, given the
        source and instruction of the request. Compute the numbers of a pair only once.
        """
        asked = [(request.instruction, request.source, text) for request, text in pairs]
        missing = [each for each in dict.fromkeys(asked) if each not in self.known]
        prompts, texts = [self._prompt(source, how) for how, source, _ in missing], [text for *_, text in missing]
        self.known |= zip(missing, endings(self.pipe.model, self.pipe.tokenizer, prompts, texts), strict=True)
        return [self.known[each] for each in asked]

    def _has_scores(self) -> bool:
        """Return whether the model can compute the log-probability of a text without a length."""
        config = self.pipe.model.config
        return not getattr(config, "length_controlled", False) or bool(getattr(config, "length_optional", False))

    def _has_edits(self) -> bool:
        """Return whether the model has edits, and can score them."""
        return getattr(self.pipe, "edits", None) is not None and self._has_scores()

    def _prompt(self, source: str, instruction: str = INSTRUCTION) -> Any:
        """
        Return the prompt for a source: a chat if the tokenizer has a template, otherwise the source. An `instruction`
        of the user has priority over the given one.
        """
        if getattr(self.pipe.tokenizer, "chat_template", None) is None:
            return source
        content = instruction if self.instruction is None else self.instruction
        return [{"role": "system", "content": content}, {"role": "user", "content": source}]

    def results(self) -> Any:
        """
        Return the best text of each request: a `Fitted` for a single text, otherwise a list with one `Fitted` for each
        text.
        """
        results = [_best(request, str(self.unit)) for request in self.requests]
        return results[0] if self.single else results


def _best(request: _Request, unit: str) -> Fitted:
    """
    Choose the best text of a request, and return it as a `Fitted`. The best text is the source if the source fits or
    if no text fits. Otherwise prefer, among the texts that fit, texts without faults, then finished texts, then the
    highest `value`. `unit` is used only in the message `fault`.
    """
    source, *others = request.considered
    fitting = [candidate for candidate in others if request.fits(candidate)]
    fault = None
    if request.fits(source) or not fitting:
        best = source
        if not request.fits(source):
            nearest = min(request.considered, key=lambda one: max(request.low - one.length, one.length - request.high))
            fault = f"no text fits: the nearest of {len(request.considered)} has {nearest.length} {plural(unit)}"
    else:
        best = max(fitting, key=lambda one: one.rank(source.text, one.value(source.text)))
        half = best.origin == "model" and not best.finishes(source.text)
        fault = "; ".join([*best.faults, *(["unfinished"] if half else [])]) or None
    considered = tuple(request.considered)
    return Fitted(best.text, best.length, request.requested, best.origin, best.score, fault, considered)
