"""Plans: which candidates the model generates for the requests of a pipeline call, and which the pipeline returns."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ..length_units import UnitTable
from .chats import Prompt
from .ranking import ChoiceConfig, Pair, choose, rerank
from .request import Call, Request
from .search import SearchByLength


@dataclass
class Candidate:
    """A generated text."""

    output: dict[str, Any]  # the output for the user, see `GeneratedText`
    score: float | None = None  # log-probability in the search, if the call or the plan needs scores
    token_score: float | None = None  # mean log-probability per token, see `token_log_probabilities`

    @property
    def text(self) -> str:
        """Return the generated text."""
        return self.output["generated_text"]


@dataclass(eq=False)
class Job:
    """
    A generation job: a request, and the planned length for its candidates.

    Attributes:
        request (`Request`): The request. If all requests of a source share the job, the request with the greatest
            length.
        planned (`int`, *optional*): Length that the decoder is conditioned on; 0 if the request has a length but this
            job has no planned length, `None` if no length is requested.
        low, high (`int`): The lowest and the highest length of the output.
        count (`int`): Number of candidates that the model generates.
        search (`SearchByLength`, *optional*): A search by length, which this job uses instead of a beam search.
        candidates (`list[Candidate]`): The generated candidates, in the order of the model.
    """

    request: Request
    planned: int | None
    low: int
    high: int
    count: int = 1
    search: SearchByLength | None = None
    candidates: list[Candidate] = field(default_factory=list)


@dataclass
class Single:
    """A plan that generates one candidate for each request and returns this candidate."""

    call: Call
    scores_tokens: bool = field(default=False, init=False)  # whether candidates need a `token_score`

    def jobs(self, requests: Sequence[Request]) -> list[Job]:
        """Return the jobs of the requests. The method `stages` may add more jobs."""
        return [
            Job(request, planned, request.low, request.high)
            for request in requests
            for planned in (map(request.plan, request.planned) if request.planned else [None])
        ]

    def stages(self, jobs: list[Job], requests: Sequence[Request]) -> Iterator[list[Job]]:
        """Yield the jobs of each stage. A later stage may depend on the candidates of earlier stages."""
        yield jobs

    def groups(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Return groups of neighbouring jobs. A group stays in one batch, and `batch_size` counts groups."""
        return [[job] for job in jobs]

    def options(self, job: Job) -> dict[str, Any]:
        """Return the options of `generate` for the batch that contains `job`."""
        return self.call.options

    def select(self, requests: Sequence[Request], jobs: Sequence[Job], model, tokenizer) -> list[Any]:
        """Return the output of each request."""
        return [_with_score(job.candidates[0]) for job in jobs]


@dataclass  # because the `__init__` of `Single` does not call `__post_init__`
class NBest(Single):
    """
    A plan that generates several candidates for each request, and returns the `num_return_sequences` best candidates
    (by default one). The plan serves reranking, several outputs of a source, and ranges of lengths.
    """

    def __post_init__(self):
        self.scores_tokens = self.call.ranged

    def jobs(self, requests: Sequence[Request]) -> list[Job]:
        """
        Return the jobs of the requests. A narrow range has fewer planned lengths, so each planned length gets more
        candidates.
        """
        jobs = super().jobs(requests)
        for job in jobs:
            job.count = math.ceil(self.call.outputs / max(1, len(job.request.planned)))
        return jobs

    def options(self, job: Job) -> dict[str, Any]:
        """Return the options of `generate` for `job.count` candidates of each row, see `_with_beams`."""
        return self.call.options if job.count == 1 else _with_beams(self.call.options, self.call.defaults, job.count)

    def select(self, requests: Sequence[Request], jobs: Sequence[Job], model, tokenizer) -> list[Any]:
        """Return the best output of each request, or a list of the best if `num_return_sequences` is above 1."""
        results: list[Any] = []
        for request, own in zip(requests, _of_each(requests, jobs), strict=True):
            best = self._ordered(request, [candidate for job in own for candidate in job.candidates])
            outputs = [_with_score(candidate) for candidate in best[: self.call.num_return_sequences]]
            results.append(outputs[0] if self.call.num_return_sequences == 1 else outputs)
        return results

    def _ordered(self, request: Request, candidates: list[Candidate]) -> list[Candidate]:
        """Return the candidates of a request, best first."""
        scores = [candidate.token_score for candidate in candidates if candidate.token_score is not None] or None
        order, texts = list(range(len(candidates))), [candidate.text for candidate in candidates]
        if self.call.rerank > 1:
            order = rerank(request.source.text, texts, scores)
        elif scores is not None:
            order.sort(key=lambda k: -scores[k])
        if self.call.ranged:  # two planned lengths may give the same text, so repeated texts come last
            first = {texts[k]: k for k in reversed(order)}
            order.sort(key=lambda k: first[texts[k]] != k)
        return [candidates[k] for k in order]


@dataclass
class Choice(Single):
    """
    A plan that chooses the best of several candidates. The model generates candidates with several planned lengths,
    with only the constraint, and without any length (the natural text). The requests of a source share its candidates.
    If a source has many requests, one search by length replaces the searches for each request. If no candidate fits a
    request, the model generates more candidates for this request.
    """

    config: ChoiceConfig
    search: SearchByLength
    natural: dict[int, Job] = field(default_factory=dict, init=False)  # place of a source -> job of its natural text

    def jobs(self, requests: Sequence[Request]) -> list[Job]:
        """Return the jobs of the requests, grouped by source."""
        jobs, config = [], self.config
        places: dict[int, list[Request]] = {}
        for request in requests:
            places.setdefault(request.place, []).append(request)
        for place, own in places.items():
            longest = max(own, key=lambda request: request.high)
            count = self._planned(longest)[0].count
            if len(own) > config.few_lengths:
                count, low = config.shared_beams, min(request.low for request in own)
                jobs.append(Job(longest, 0, max(1, low), longest.high, count, self.search))
            else:
                for request in own:
                    planned = self._planned(request)
                    jobs += [*planned, Job(request, 0, request.low, request.high, planned[0].count)]
            self.natural[place] = Job(longest, 0, 1, config.natural_room * longest.high + 32, count)
            jobs.append(self.natural[place])
        return jobs

    def _planned(self, request: Request) -> list[Job]:
        """Return one job for each planned length of a request."""
        lengths = list(request.planned)
        if self.call.length_constraint == "max":
            lengths = [max(1, round(share * request.high)) for share in self.config.planned_shares]
        lengths = list(dict.fromkeys(lengths))
        count = max(1, self.config.beams // (len(lengths) + 2))  # two more jobs have no planned length
        return [Job(request, request.plan(length), request.low, request.high, count) for length in lengths]

    def stages(self, jobs: list[Job], requests: Sequence[Request]) -> Iterator[list[Job]]:
        """
        Yield the jobs of each stage. With `"max"`, the first stage generates the natural texts, which the model
        generates without a length. If a natural text fits its request, no other candidate is needed. With other
        constraints, natural texts seldom fit, so one stage generates all candidates, which is faster. The last stage
        generates more candidates for requests for which no candidate fits.
        """
        if self.call.length_constraint == "max":
            natural = list(self.natural.values())
            yield natural
            lengths = {job.request.place: job.candidates[0].output["length"] for job in natural}
            others = [job for job in jobs if job is not self.natural[job.request.place]]
            yield [job for job in others if job.search or job.request.high < lengths[job.request.place]]
        else:
            yield jobs
        pools = zip(requests, self._pools(requests, jobs), strict=True)
        missing = [job for request, pool in pools if not pool for job in self._planned(request)]
        jobs += missing
        yield missing

    def groups(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Return one group of jobs for each source."""
        return [list(own) for _, own in groupby(jobs, key=lambda job: job.request.place)]

    def options(self, job: Job) -> dict[str, Any]:
        """
        Return the options of `generate`: either a search by length, or at least `job.count` beams. Ignore the model's
        default number of beams.
        """
        options = _with_beams(self.call.options, self.call.options.get("generation_config"), job.count)
        if job.search is None:
            return options
        return {**options, "num_beams": 1, "num_return_sequences": 1, "custom_generate": job.search}

    def _pools(self, requests: Sequence[Request], jobs: Sequence[Job]) -> list[list[Candidate]]:
        """
        Return for each request the candidates of its source that fit. If none of these fits, return the candidates of
        the request's own jobs.
        """
        found: dict[int, list[Candidate]] = {}
        for job in jobs:
            found.setdefault(job.request.place, []).extend(job.candidates)
        pools = []
        for request, jobs_of in zip(requests, _of_each(requests, jobs), strict=True):
            fitting = [each for each in found[request.place] if request.fits(each.output["length"])]
            own = [job for job in jobs_of if job.search is None and job is not self.natural[request.place]]
            pools.append(fitting or [candidate for job in own for candidate in job.candidates])
        return pools

    def select(self, requests: Sequence[Request], jobs: Sequence[Job], model, tokenizer) -> list[Any]:
        """Return the best output of each request, with its score."""
        natural = {place: job.candidates[0].text for place, job in self.natural.items()}
        plain: dict[Pair, float] = {}  # log-probability without a length
        for job in jobs:
            if job.search is not None:  # scores without a length; reversed, so that the best score of a text is kept
                plain |= {(job.request.place, each.text): each.score or 0.0 for each in reversed(job.candidates)}
        pools = [
            {(request.place, each.text): each.output for each in pool}
            for request, pool in zip(requests, self._pools(requests, jobs), strict=True)
        ]
        sources: dict[int, Prompt] = {request.place: request.source for request in requests}
        best = choose(model, tokenizer, [list(pool) for pool in pools], natural, plain, sources)
        return [
            pool[pair] | {"requested_length": request.requested, "score": plain[pair]}
            for request, pool, pair in zip(requests, pools, best, strict=True)
        ]


def _with_score(candidate: Candidate) -> dict[str, Any]:
    """Return the output of a candidate. If the candidate has a search score, add the score to the output."""
    return candidate.output if candidate.score is None else candidate.output | {"score": candidate.score}


def _with_beams(options: dict[str, Any], defaults: Any, count: int) -> dict[str, Any]:
    """
    Return the options of `generate` for `count` candidates of each row. Use `count` samples if the options ask for
    sampling without beams, otherwise at least `count` beams.
    """
    beams, is_sampled = (
        options.get(name) or (name not in options and getattr(defaults, name, None))
        for name in ("num_beams", "do_sample")
    )
    options = {**options, "num_return_sequences": count}
    return options if is_sampled and (beams or 1) == 1 else {**options, "num_beams": max(beams or 1, count)}


def _of_each(requests: Sequence[Request], jobs: Sequence[Job]) -> list[list[Job]]:
    """Return the jobs of each request. Compare requests by identity, because two requests may be equal."""
    found: dict[int, list[Job]] = {id(request): [] for request in requests}
    for job in jobs:
        found[id(job.request)].append(job)
    return list(found.values())


def batches(jobs: Sequence[Job], plan: Single, call: Call, sizes: dict[int, int] | None) -> Iterator[list[Job]]:
    """
    Yield batches of jobs with the same number of candidates and the same search.

    Jobs with similar requested lengths and source lengths share a batch, because they need the least padding. The
    longest jobs come first, so that an impossible length or a lack of memory raises an error in the first batch. The
    jobs of a source stay together, so that its encoder runs once. If `batch_tokens` is set, `sizes` maps the place of
    each source to its number of tokens.
    """
    order = sorted(jobs, key=lambda job: (-job.request.high, -len(job.request.source.text)))
    first: dict[int, int] = {}  # index of the longest job of each source
    for k, job in enumerate(order):
        first.setdefault(job.request.place, k)
    order.sort(key=lambda job: first[job.request.place])
    most = call.batch_tokens
    for kind in dict.fromkeys((job.count, job.search) for job in order):
        batch: list[Job] = []
        groups = source = output = 0
        for group in plan.groups([job for job in order if (job.count, job.search) == kind]):
            longest = max(job.high for job in group)
            own = 0 if sizes is None else sizes[group[0].request.place]
            positions = (max(source, own) + max(output, longest)) * (len(batch) + len(group))
            if batch and (groups == call.batch_size or (most is not None and positions > most)):
                yield batch
                batch, groups, source, output = [], 0, 0, 0
            batch, groups = batch + group, groups + 1
            source, output = max(source, own), max(output, longest)
        yield batch


def plan_of(call: Call, model, tokenizer, table: UnitTable) -> Single:
    """Return the plan of a pipeline call. `table` is the unit table, which counts the units of token ids."""
    if call.choose:
        config = ChoiceConfig.of(model.config)
        marks = [tokenizer(text_target=text, add_special_tokens=False)["input_ids"][-1] for text in ("a.", "a?", "a!")]
        search = SearchByLength(table, config.shared_beams, marks=marks, branches=config.branches)
        return Choice(call, config, search)
    return NBest(call) if call.outputs > 1 or call.plans > 1 else Single(call)
