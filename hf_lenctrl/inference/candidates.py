"""
Plans of pipeline calls. A plan says which candidates (texts) the model generates for each request, and which
candidates the pipeline returns.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ..length_units import COST, UnitTable, count_texts
from .chats import Prompt
from .edits import Edits, Rewording, reword
from .ranking import ChoiceConfig, Pair, add_scores, choose, rerank
from .request import Call, Request
from .search import SearchByLength


# Options of `generate` that forbid or demand tokens, which an edited text does not keep.
_ON_TOKENS = (
    *("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "prefix_allowed_tokens_fn"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "logits_processor"),
    *("stopping_criteria", "stop_strings"),
)
# Options that look at the rows of a beam search; the rows of a search by length are others.
_ON_ROWS = (
    *("prefix_allowed_tokens_fn", "stopping_criteria", "stop_strings"),
    *("encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "guidance_scale"),
)


@dataclass
class Candidate:
    """A generated text, with its output dictionary and its scores."""

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
    A generation job: the model generates `count` candidates for one request, with one planned length.

    Attributes:
        request (`Request`): The request. If all requests of a source share the job, this is the request with the
            greatest length.
        planned (`int`, *optional*): Planned length, on which the decoder is conditioned, in the unit that the model
            plans in. 0 means that the request has a length, but the job generates without a planned length. `None`
            means that the request has no length.
        low, high (`int`): The lowest and the highest length that a candidate may have, in the requested unit.
        count (`int`): Number of candidates that the model generates.
        search (`SearchByLength`, *optional*): A search by length, which replaces the beam search.
        candidates (`list[Candidate]`): The generated candidates, in the order in which the model returned them. The
            list is empty before the job runs.
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
        """Return one job for each planned length of each request, or one for a request without a length."""
        return [
            Job(request, planned, request.low, request.high)
            for request in requests
            for planned in (map(request.plan, request.planned) if request.planned else [None])
        ]

    def stages(self, jobs: list[Job], requests: Sequence[Request]) -> Iterator[list[Job]]:
        """
        Yield one list of jobs for each stage of the generation. The caller runs the jobs of a stage before it asks for
        the next stage, so a later stage may depend on the candidates of earlier stages. This plan has only one stage.
        """
        yield jobs

    def groups(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """
        Split the jobs into groups of neighbours. All jobs of a group are in the same batch, and `batch_size` is a
        number of groups. In this plan, each job is a group.
        """
        return [[job] for job in jobs]

    def options(self, job: Job) -> dict[str, Any]:
        """Return the options of `generate` for the batch that contains `job`; all jobs of a batch share them."""
        return self.call.options

    def select(self, requests: Sequence[Request], jobs: Sequence[Job], model, tokenizer) -> list[Any]:
        """Return the output of each request, after all jobs have run."""
        return [_with_score(job.candidates[0]) for job in jobs]


@dataclass  # because the `__init__` of `Single` does not call `__post_init__`
class NBest(Single):
    """
    A plan that generates several candidates for each request, and returns the `num_return_sequences` best candidates
    (by default one). The pipeline uses this plan for reranking, for several outputs of a source, and for ranges of
    lengths.
    """

    def __post_init__(self):
        self.scores_tokens = self.call.ranged

    def jobs(self, requests: Sequence[Request]) -> list[Job]:
        """
        Return one job for each planned length of each request. A request needs `self.call.outputs` candidates. Each of
        its jobs generates an equal share, rounded up. So if a narrow range has fewer planned lengths, each job
        generates more candidates.
        """
        jobs = super().jobs(requests)
        for job in jobs:
            job.count = math.ceil(self.call.outputs / max(1, len(job.request.planned)))
        return jobs

    def options(self, job: Job) -> dict[str, Any]:
        """Return the options of `generate` that give `job.count` candidates for each row, see `_with_beams`."""
        return self.call.options if job.count == 1 else _with_beams(self.call.options, self.call.defaults, job.count)

    def select(self, requests: Sequence[Request], jobs: Sequence[Job], model, tokenizer) -> list[Any]:
        """Return the best output of each request, or the `num_return_sequences` best in a list."""
        results: list[Any] = []
        for request, own in zip(requests, _of_each(requests, jobs), strict=True):
            best = self._ordered(request, [candidate for job in own for candidate in job.candidates])
            outputs = [_with_score(candidate) for candidate in best[: self.call.num_return_sequences]]
            results.append(outputs[0] if self.call.num_return_sequences == 1 else outputs)
        return results

    def _ordered(self, request: Request, candidates: list[Candidate]) -> list[Candidate]:
        """
        Sort the candidates of a request, best first: by `rerank` if the call asks for it, otherwise by `token_score`,
        if there are token scores. Candidates of a range that repeat a better text come last.
        """
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
    A plan that chooses the best of several candidates for each request. The model generates three kinds of candidates:
    (1) for each of several planned lengths; (2) with the constraint, but without a planned length; (3) without any
    length (the natural text). A request may get any candidate of its source. If a source has more than
    `config.few_lengths` requests, one search by length replaces the beam searches for these requests, unless an option
    in `_ON_ROWS` is set. If a request then has no candidate that fits, the model generates candidates for this request
    alone.
    """

    config: ChoiceConfig
    search: SearchByLength
    edits: Edits | None = None
    natural: dict[int, Job] = field(default_factory=dict, init=False)  # place of a source -> job of its natural text

    def jobs(self, requests: Sequence[Request]) -> list[Job]:
        """
        Return the jobs of the requests, grouped by source, and store those of the natural texts in `self.natural`.
        """
        jobs, config = [], self.config
        places: dict[int, list[Request]] = {}
        for request in requests:
            places.setdefault(request.place, []).append(request)
        for place, own in places.items():
            longest = max(own, key=lambda request: request.high)
            count = self._planned(longest)[0].count
            if len(own) > config.few_lengths and not self._given(_ON_ROWS):
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
        """Return one job for each planned length of a request; for `"max"`, these are shares of the maximum."""
        lengths = list(request.planned)
        if self.call.length_constraint == "max":
            lengths = [max(1, round(share * request.high)) for share in self.config.planned_shares]
        lengths = list(dict.fromkeys(lengths))
        count = max(1, self.config.beams // (len(lengths) + 2))  # two more jobs have no planned length
        return [Job(request, request.plan(length), request.low, request.high, count) for length in lengths]

    def stages(self, jobs: list[Job], requests: Sequence[Request]) -> Iterator[list[Job]]:
        """
        Yield one list of jobs for each stage. With the constraint `"max"`, the first stage generates the natural texts
        (without a length). The second stage generates the other candidates, but skips a request if the natural text
        fits the request. With other constraints, natural texts seldom fit, so one stage generates all these
        candidates, which is faster.

        With `"max"`, the second stage always runs a search by length that the requests of a source share (see
        `SearchByLength`). With any constraint, a last stage generates candidates for each request that shares such a
        search and has no candidate that fits.
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
        """Return one group of jobs for each source. `jobs` must be sorted by source."""
        return [list(own) for _, own in groupby(jobs, key=lambda job: job.request.place)]

    def options(self, job: Job) -> dict[str, Any]:
        """
        Return options with at least `job.count` beams, or with the search by length of the job. The model's default
        number of beams has no effect.
        """
        options = _with_beams(self.call.options, self.call.options.get("generation_config"), job.count)
        if job.search is None:
            return options
        return {**options, "num_beams": 1, "num_return_sequences": 1, "custom_generate": job.search}

    def _pools(self, requests: Sequence[Request], jobs: Sequence[Job]) -> list[list[Candidate]]:
        """
        Return the candidates of each request: all candidates of its source that fit the request. If none fits, return
        the candidates that the model generated for this request alone. The natural text and the results of a search by
        length are not among these, because several requests share them.
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
        """
        Return the output of the best candidate of each request, with its log-probability without a length as `score`.
        """
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
        given = (natural, plain, sources)
        best = choose(model, tokenizer, [list(pool) for pool in pools], *given)
        if self.edits is not None and self._may_edit(model.config.pad_token_id):
            self._add_edited(self.edits, pools, best, requests, jobs, model, tokenizer, plain)
            best = choose(model, tokenizer, [list(pool) for pool in pools], *given)
        return [
            pool[pair] | {"requested_length": request.requested, "score": plain[pair]}
            for request, pool, pair in zip(requests, pools, best, strict=True)
        ]

    def _may_edit(self, pad: int | None) -> bool:
        """
        Return whether the call allows edits: not for `"max"`, where readers found no gain, not for a cost, which
        cannot count texts, and not with an option in `_ON_TOKENS`, other than the usual ban of padding.
        """
        on_tokens = any(value != [[pad]] for value in self._given(_ON_TOKENS))
        return self.call.length_constraint != "max" and self.call.unit != COST and not on_tokens

    def _given(self, names: Sequence[str]) -> list[Any]:
        """Return the values of those options of `generate` in `names` that are set."""
        options, defaults = self.call.options, self.call.defaults
        return [value for name in names if (value := options.get(name, getattr(defaults, name, None)))]

    def _add_edited(
        self, edits: Edits, pools, best, requests, jobs, model, tokenizer, plain: dict[Pair, float]
    ) -> None:
        """
        Add edited candidates to each pool whose best candidate does not fit (they then replace the pool), or scores
        below `edit_below` and is not the natural text. Skip sources with a search by length.
        """
        natural = {(place, job.candidates[0].text) for place, job in self.natural.items()}
        starts: dict[int, dict[str, float]] = {}  # place -> texts to edit, with their scores
        searched = {job.request.place for job in jobs if job.search is not None}  # too many lengths to edit each
        fitting = [
            request.fits(pool[pair]["length"]) for request, pool, pair in zip(requests, pools, best, strict=True)
        ]
        low = [
            k
            for k, (pair, fits) in enumerate(zip(best, fitting, strict=True))
            if pair[0] not in searched and not (fits and (pair in natural or plain[pair] >= self.config.edit_below))
        ]
        for job in jobs:
            starts.setdefault(job.request.place, {}).update({each.text: 0.0 for each in job.candidates})
        sources = {requests[k].place: requests[k].source for k in low}
        add_scores(model, tokenizer, [(place, text) for place in sources for text in starts[place]], plain, sources)

        def count(texts: list[str]) -> list[int]:
            return count_texts(tokenizer, texts, self.call.unit, target=True)

        tasks = []
        for k in low:
            request, texts = requests[k], starts[requests[k].place]
            scores = {text: plain[request.place, text] for text in texts}
            tasks.append(Rewording(request.source, scores, max(1, request.low), request.high))
        for k, found in zip(low, reword(model, tokenizer, edits, tasks, count), strict=True):
            place = requests[k].place
            if found and not fitting[k]:
                pools[k].clear()  # a token limit has cut all candidates
            for text, length in zip(found, count(list(found)), strict=True):
                output = {"generated_text": text, "length": length, "length_unit": str(self.call.unit)}
                pools[k].setdefault((place, text), output)
                plain[place, text] = found[text]


def _with_score(candidate: Candidate) -> dict[str, Any]:
    """Return the output of a candidate. If the candidate has a search score, add the score to the output."""
    return candidate.output if candidate.score is None else candidate.output | {"score": candidate.score}


def _with_beams(options: dict[str, Any], defaults: Any, count: int) -> dict[str, Any]:
    """
    Return a copy of the options of `generate` that gives `count` candidates for each row: samples if sampling without
    beams is set, otherwise the best of at least `count` beams. `defaults` has options that `options` lacks.
    """
    beams, is_sampled = (
        options.get(name) or (name not in options and getattr(defaults, name, None))
        for name in ("num_beams", "do_sample")
    )
    options = {**options, "num_return_sequences": count}
    return options if is_sampled and (beams or 1) == 1 else {**options, "num_beams": max(beams or 1, count)}


def _of_each(requests: Sequence[Request], jobs: Sequence[Job]) -> list[list[Job]]:
    """Return the jobs of each request, compared by identity, because two requests may be equal."""
    found: dict[int, list[Job]] = {id(request): [] for request in requests}
    for job in jobs:
        found[id(job.request)].append(job)
    return list(found.values())


def batches(jobs: Sequence[Job], plan: Single, call: Call, sizes: dict[int, int] | None) -> Iterator[list[Job]]:
    """
    Yield batches of jobs. All jobs of a batch have the same number of candidates and the same search.

    Jobs with similar requested lengths and source lengths share a batch, because such batches need the least padding.
    The longest jobs come first, so that an impossible length or a lack of memory raises an error in the first batch.
    The jobs of a source stay together, so that the encoder reads the source once. If `batch_tokens` is set, `sizes`
    maps the index of each source in the input to its number of tokens; otherwise `sizes` is `None`.
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


def plan_of(call: Call, model, tokenizer, table: UnitTable, edits: Edits | None = None) -> Single:
    """Return the plan of a pipeline call. `table` is the unit table of the requested unit."""
    if call.choose:
        config = ChoiceConfig.of(model.config)
        marks = [tokenizer(text_target=text, add_special_tokens=False)["input_ids"][-1] for text in ("a.", "a?", "a!")]
        search = SearchByLength(table, config.shared_beams, marks=marks, branches=config.branches)
        return Choice(call, config, search, edits)
    return NBest(call) if call.outputs > 1 or call.plans > 1 else Single(call)
