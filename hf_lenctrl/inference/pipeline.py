"""The pipeline: it takes a text and a length, and returns a text of that length."""

import logging
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Unpack, overload

import torch
from tqdm.auto import tqdm
from transformers import Pipeline

from ..bounded_generation import encode_once, eos_of, generate_for, prompt_of, rows_of_each
from ..cache import CACHE, read_once
from ..conversion import LoadedModel, PipelineModel, check_tokenizer
from ..length_tokens import LengthTokens
from ..length_units import COST, Unit, UnitTable, check_sources, count_texts, counter_of
from ..lengths import Target
from ..shards import check_shards
from ..thoughts import Thoughts, thoughts_of
from .candidates import Candidate, Job, Single, batches, plan_of
from .chats import Prompt, as_prompts, encode_prompts, is_single
from .finish import FinishLogitsProcessor, HeldStreamer
from .marks import MarkRunsLogitsProcessor
from .options import CallOptions, Chat, GeneratedText, Length
from .ranking import log_probabilities, token_log_probabilities
from .request import Call, Request, requests_of
from .sources import Predictors


logger = logging.getLogger(__name__)


class LengthControlledGenerationPipeline(Pipeline):
    """
    `hf_lenctrl.pipeline(path)`, or `transformers.pipeline("length-controlled-generation", model=path)` after `import
    hf_lenctrl`.

    A length-controlled model plans its length; a constraint guarantees it. A plain sequence-to-sequence model needs a
    constraint for a length. The pipeline loads the length predictor in the model's repository with the `revision` and
    `token` of `pipeline(...)`, or of `LengthControlledGenerationPipeline(model=..., revision=..., token=...)`.

    Args of a call:
        inputs (`str` or `list[str]`): Sources; for a causal model prompts, or chats: lists of messages, which the
            tokenizer's template renders.
        length (`int`, `tuple`, `list` or `str`, *optional*): Units, for all texts or for each; a list for a single
            text, or for each of several, gives one output for each length. A tuple `(lowest, highest)` is a range: one
            output, of any length within; a model that does not choose takes the candidate with the highest mean
            log-probability of a token at the candidate's own length. `"predict"` uses a length predictor (Oka et al.
            2020), `"source"` the source's length (Lakew et al. 2019), `"reference"` that of `references`, the best
            case; a name in `inference.presets.PRESETS`, such as `"bluesky"`, is this limit, in its unit. Defaults to
            the model's; `None` switches that off. A dictionary of two units, `{"character": 30, "word": 6}`, has a
            length in the model's unit (or the first), and a limit in another unit, an `int` or a list with one for
            each text; both are kept, by default by `"max"`.
        predictor (`str` or `tuple`, *optional*): Path or Hub name of a `LengthPredictor`, or the model and its
            tokenizer; defaults to the one that the model's configuration names.
        truncation (`bool`, *optional*, defaults to `False`): Predict the length for a text that is too long for the
            predictor's encoder from its beginning.
        references (`list[str]`, *optional*): One for each source, for `length="reference"`.
        length_ratio (`float` or `tuple`, *optional*): Instead of a length, this many times the source's, rounded, at
            least 1; or a range of ratios, `(0.9, 1.1)`, rounded so that no range goes beyond it.
        length_unit (`str`, `Unit` or function, *optional*): The unit of the length, a name or your own; defaults to
            the model's. A length-controlled model plans in its own unit, by the ratio of both units in the source.
        length_constraint (`str`, *optional*): `"max"`, `"exact"`, `"min"` or `None`; defaults to the model's.
        length_tolerance (`int`, `float`, `tuple` or `list`, *optional*): With `"exact"`, a window around the length,
            see `LengthControlledGeneration.generate`; a list holds one for each text. A call without a constraint has
            the model's.
        finish (`str`, *optional*): With `"max"`, for a model that does not plan: end an output that is too long after
            a `"sentence"` or a `"word"`. Adds `finish` to the output: `"sentence"`, `"word"`, `"cut"` (within a word),
            or `"model"` if the model ended it.
        length_from (`str` or `list[int]`, *optional*): For a causal model that thinks, the marker that ends its
            thoughts: `"</think>"`, or ids, see `LengthControlledGeneration.generate`. The output has the answer alone,
            without white space at its start, and `thoughts`, the text before the marker. If the marker is missing,
            the `fault` says so, the answer is empty, and nothing kept the length; otherwise the `fault` is `None`.
        thinking_budget (`int`, *optional*): With `length_from`, new tokens after which the marker is added.
        num_return_sequences (`int`, *optional*, defaults to 1): Outputs for each source.
        rerank (`bool` or `int`, *optional*, defaults to `False`): Generate this many candidates (`True`: 20) and
            return first those that contain most source words (`hf_lenctrl.rerank`).
        choose (`bool`, *optional*): For a model with `length_optional` and a constraint: generate candidates with
            several planned lengths and with none, and return the best, with its `score`, the log-probability without a
            length (`hf_lenctrl.inference.ranking.rank`). The text that the model generates without a length is the
            best if it fits. `"max"` then returns the best text of at most this length, not the longest. More than
            eight lengths of a text share the candidates of one search by length (`hf_lenctrl.inference.search`). By
            default yes; `False` is faster, with one search. Not with `finish`, `rerank`, `do_sample` or
            `num_return_sequences`.
        scores (`bool`, *optional*, defaults to `True`): `False` leaves the `score` out where no choice needs it, which
            saves a pass of the model.
        min_score (`float`, *optional*): Adds `low_score` to the output: whether its `score` is lower. Not for a model
            that needs a length.
        on_low_score (`str`, *optional*, defaults to `"flag"`): With a `min_score`, return an output of a low score
            with the flag; `"natural"`, return instead the text that the model generates without a length, however
            long it is; `"error"`, raise `ValueError`.
        batch_size (`int`, *optional*, defaults to 32): Sources generated together; similar lengths share a batch.
        batch_tokens (`int`, *optional*): Make batches of this many positions instead: rows times the longest source in
            tokens plus the longest requested length in units, so that short texts come in large batches.
        progress_bar (`bool`, *optional*): By default for more than one batch.
        kwargs: For `generate`: `num_beams=4`, `do_sample=True`, ...

    Returns (of a call):
        `dict` with `generated_text`, `length` (measured), `requested_length`, `length_unit`, `window` (its lowest and
            highest length, where there is one), `lengths` in each unit of a length in two, and `score`, the
            log-probability of the text without a length, of a model with `length_optional` or with a `min_score` (else
            with `return_dict_in_generate=True, output_scores=True` the mean log-probability of a token in the search).
            A list of them for `num_return_sequences` above 1; a list of either for several lengths of a text, and for
            sources in a list.

    Raises:
        `TypeError`, `ValueError`: for inputs that are not texts or are empty, a missing or invalid length (below 1 or
            not an integer), both `length` and `length_ratio`, another unit for a model that plans in a cost, a plain
            model without a constraint, and a predictor that is missing or has another unit.
    """

    model: Any
    tokenizer: Any
    _load_tokenizer = None  # None, because we raise our own error if it is missing
    _load_processor: Any = False
    _load_image_processor: Any = False
    _load_feature_extractor: Any = False

    def __init__(self, model, *args, revision: str | None = None, token: str | bool | None = None, **kwargs):
        loaded = model if isinstance(model, LoadedModel) else LoadedModel(model)
        super().__init__(loaded.model, *args, **kwargs)
        name = getattr(self.model, "name_or_path", "the model")
        check_shards(name)  # again here, because transformers tries the stock class if our class raises
        check_tokenizer(self.tokenizer, name, self.model)
        given = {"revision": revision, "token": token}
        given = {name: value for name, value in given.items() if value is not None}
        self._predictors = Predictors(self.model, {**loaded.hub_options, **given})
        tokens = getattr(self.model.config, "length_tokens", None)
        self._length_tokens = None if tokens is None else LengthTokens(**tokens)
        self._tables: dict[tuple[str | Unit, int], UnitTable] = {}  # of other units than the model's
        self._controlled = getattr(self.model.config, "length_controlled", False)
        self._causal = not self.model.config.is_encoder_decoder
        if self._causal and self.tokenizer.pad_token is None:  # like the text-generation pipeline of transformers
            self.tokenizer.pad_token = self.tokenizer.eos_token
        # An encoder that gets the length runs for each job, and the prompt of a causal model is in its output.
        reads_length = tokens is not None or getattr(self.model.config, "encoder_length_embedding", False)
        self._encodes_each = reads_length or self._causal

    def _sanitize_parameters(self, **kwargs):
        return {}, kwargs, {}  # the arguments of `pipeline(...)` are defaults for each call

    def save_pretrained(self, save_directory, **kwargs):
        """Save model and tokenizer, not the code of the task as the base method does: the package brings the task."""
        self.model.save_pretrained(save_directory, **kwargs)
        self.tokenizer.save_pretrained(save_directory, **kwargs)

    @overload
    def __call__(
        self, inputs: Any, *, num_return_sequences: int, length: Any = ..., **kwargs: Unpack[CallOptions]
    ) -> list[Any]: ...
    @overload
    def __call__(self, inputs: str | Chat, *, length: list[Any], **kwargs: Unpack[CallOptions]) -> list[Any]: ...
    @overload
    def __call__(
        self, inputs: str | Chat, *, length: Length = ..., **kwargs: Unpack[CallOptions]
    ) -> GeneratedText: ...
    @overload
    def __call__(
        self, inputs: list[str] | list[Chat], *, length: Length | list[Any] = ..., **kwargs: Unpack[CallOptions]
    ) -> list[GeneratedText]: ...
    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        prompts = as_prompts(inputs, self.tokenizer)
        check_sources([prompt.text if isinstance(prompt, Prompt) else prompt for prompt in prompts])
        if not prompts:
            return []
        single = is_single(inputs)
        call = Call.read(kwargs, self.model, self._forward_params, self._batch_size or 32)
        requests, has_lists = requests_of(call, prompts, single, self.model, self.tokenizer, self._predictors.predict)
        table = self._unit_table(call.unit)
        other = None if call.other is None else self._unit_table(call.other[0])
        plan = plan_of(call, self.model, self.tokenizer, table)
        jobs = plan.jobs(requests)
        if call.options.get("streamer") is not None:
            call.check_streamer(len(jobs))
        sizes = None if call.batch_tokens is None else self._sizes(prompts)
        show = len(jobs) > (call.batch_size or 32) if call.progress_bar is None else call.progress_bar
        with tqdm(total=len(jobs), desc="Generating", unit="text", disable=not show) as bar:
            for stage in plan.stages(jobs, requests):
                for batch in batches(stage, plan, call, sizes):
                    encoded, rows = self._encode(batch)
                    run: dict[str, Any] = {"call": call, "plan": plan, "jobs": batch, "table": table, "other": other}
                    generated = self.forward(encoded, rows=rows, **run)
                    written = self.postprocess(generated, **run)
                    for k, job in enumerate(batch):
                        job.candidates = written[k * len(written) // len(batch) : (k + 1) * len(written) // len(batch)]
                    bar.update(min(len(batch), len(jobs) - bar.n))
            bar.update(len(jobs) - bar.n)
        results = plan.select(requests, jobs, self.model, self.tokenizer)
        self._add_scores(call, requests, results)
        if has_lists:
            results = [
                [result for result, request in zip(results, requests, strict=True) if request.place == place]
                for place in range(len(prompts))
            ]
        return results[0] if single else results

    def _unit_table(self, unit: str | Unit) -> UnitTable:
        own = getattr(self.model, "unit_table", None)
        if own is not None and own.unit == unit:
            return own
        size = self.model.get_output_embeddings().weight.shape[0]
        if (unit, size) not in self._tables:
            if len(self._tables) == 8:
                self._tables.clear()  # a caller may pass a new function in each call
            self._tables[unit, size] = UnitTable.from_tokenizer(self.tokenizer, unit).padded(size)
        return self._tables[unit, size].to(self.device)

    def _sizes(self, prompts: Sequence[Prompt]) -> dict[int, int]:
        """Return the tokens of each source."""
        counts = count_texts(self.tokenizer, [prompt.text for prompt in prompts], "token")
        return dict(enumerate(count + self.tokenizer.num_special_tokens_to_add() for count in counts))

    def _encode(self, jobs: Sequence[Job]) -> tuple[Any, torch.Tensor | None]:
        """
        Return the encoded sources of a batch, and the source of each job, `(jobs,)`; `None` where each job has its
        own. A source is encoded once for all its jobs, but for an encoder that gets the length.
        """
        sources = {job.request.place: job.request.source for job in jobs}
        if self._encodes_each or len(sources) == len(jobs):
            tokens = None if self._length_tokens is None else self._tokens_of(self._length_tokens, jobs)
            return self.preprocess([job.request.source for job in jobs], tokens=tokens), None
        place = {place: k for k, place in enumerate(sources)}
        rows = torch.tensor([place[job.request.place] for job in jobs])
        return self.preprocess(list(sources.values()), tokens=None), rows

    def _tokens_of(self, tokens: LengthTokens, jobs: Sequence[Job]) -> list[int]:
        """Return the id of the length token of each job."""
        texts = [job.request.source.text for job in jobs]
        counts = count_texts(self.tokenizer, texts, self.model.config.length_unit)
        named = [tokens.token_for(job.planned or 0, count) for job, count in zip(jobs, counts, strict=True)]
        return [self.tokenizer.convert_tokens_to_ids(name) for name in named]

    def _add_scores(self, call: Call, requests: Sequence[Request], results: list[Any]) -> None:
        """Add the window and the score to each output, and treat outputs of a low score, in place."""
        several = [result if isinstance(result, list) else [result] for result in results]
        outputs = [(request, out) for request, own in zip(requests, several, strict=True) for out in own]
        if call.length_constraint in ("exact", "min") and not call.ranged:
            for request, out in outputs:
                out |= {"window": (request.low, request.high)} if request.low < request.high else {}
        is_optional = getattr(self.model.config, "length_optional", False) and call.length_from is None
        is_optional = is_optional and call.scores
        unscored = [(request, out) for request, out in outputs if is_optional and "score" not in out]
        if call.min_score is not None and not call.choose:
            unscored = outputs  # the score of a search is not this log-probability
        sources = [request.source for request, _ in unscored]
        texts = [out["generated_text"] for _, out in unscored]
        scores = log_probabilities(self.model, self.tokenizer, sources, texts)
        for (_, out), score in zip(unscored, scores, strict=True):
            out["score"] = score
        if call.min_score is not None:
            self._treat_low(call, outputs, call.min_score)

    def _treat_low(self, call: Call, outputs: list[tuple[Request, dict[str, Any]]], least: float) -> None:
        """Flag outputs with a score below `least`; raise with `"error"`, replace them in place with `"natural"`."""
        for _, out in outputs:
            out["low_score"] = out["score"] < least
        low = [(request, out) for request, out in outputs if out["low_score"]]
        if low and call.on_low_score == "error":
            first = "{generated_text!r} ({score:.1f})".format_map(low[0][1])
            raise ValueError(
                f"the score must be at least min_score={least}, got {len(low)} of {len(outputs)} texts under it, the "
                f"first is {first}; ask for another length, or pass on_low_score='flag' or 'natural'"
            )
        if low and call.on_low_score == "natural":
            sources = list(dict.fromkeys(request.source for request, _ in low))
            natural = dict(zip(sources, self(sources, **call.natural_options()), strict=True))
            for request, out in low:
                kept = {"requested_length": out["requested_length"], "low_score": True}
                out.clear()
                out |= natural[request.source] | kept

    def preprocess(self, prompts: Sequence[Prompt], *, tokens: list[int] | None = None, **_) -> Any:
        """Encode the sources of a batch, each behind its length token if there are such tokens."""
        if self._causal:
            return encode_prompts(self.tokenizer, prompts)
        encode = partial(
            self.tokenizer, [prompt.text for prompt in prompts], return_tensors="pt", padding=True, verbose=False
        )
        batch = encode()
        positions = getattr(self.model.config, "max_position_embeddings", None) or 10**9
        most = self.tokenizer.model_max_length
        limit = min(most, positions) - (tokens is not None)
        if batch["input_ids"].shape[1] > limit:
            whose = "the encoder's %d tokens" if positions <= most else "%d tokens, the tokenizer's model_max_length,"
            logger.warning(
                f"%d of %d sources are longer than {whose} and were cut",
                *(int((batch["attention_mask"].sum(dim=1) > limit).sum()), len(prompts), limit),
            )
            batch = encode(truncation=True, max_length=limit)
        if tokens is not None:
            ids = batch["input_ids"]
            batch["input_ids"] = torch.cat([torch.tensor(tokens, dtype=ids.dtype).unsqueeze(1), ids], dim=1)
            batch["attention_mask"] = torch.cat([ids.new_ones(len(ids), 1), batch["attention_mask"]], dim=1)
        return batch

    def _forward(
        self,
        batch,
        *,
        call: Call,
        plan: Single,
        jobs: Sequence[Job],
        table: UnitTable,
        other: UnitTable | None,
        rows: torch.Tensor | None,
    ) -> dict[str, Any]:
        """Generate the outputs of a batch of jobs: their ids, and what can be known from these alone."""
        batch.pop("token_type_ids", None)
        if rows is not None:
            batch = encode_once(self.model, batch, rows.to(self.device))
        arguments, encoded = {**batch, **plan.options(jobs[0])}, batch.get("encoder_outputs")
        copies = rows_of_each(self.model, arguments) if self._causal else None
        if copies is not None:
            cache = read_once(self.model, batch["input_ids"], batch["attention_mask"], copies)
            arguments |= {} if cache is None else {CACHE: cache}
        if arguments.get("stop_strings") is not None:
            arguments["tokenizer"] = self.tokenizer
        inputs = {name: batch.get(name) for name in ("input_ids", "attention_mask")}
        # A copy, because `generate` changes the encoder's outputs.
        inputs["encoder_outputs"] = None if encoded is None else type(encoded)(**encoded)
        prompt = prompt_of(self.model, arguments)[1]
        thoughts = None
        if call.length_from is not None or call.thinking_budget is not None:
            thoughts = thoughts_of(call.length_from, self.tokenizer, table, call.thinking_budget)
        if thoughts is not None:
            arguments["length_from"] = thoughts
        finish = None
        if call.finish is not None:
            prompt = prompt or 1  # the decoder's start token
            finish = self._finish(call, jobs, table, prompt, thoughts, arguments)
        # the choice ranks such texts low, and thoughts are free
        if call.length_constraint not in (None, "max") and not call.choose and call.length_from is None:
            arguments["logits_processor"] = [*(arguments.get("logits_processor") or []), self._mark_runs]
        target = target_of(jobs, call.length_constraint, table, other)
        found = generate_for(self.model, table, target, call.length_constraint, arguments)
        ids = found if isinstance(found, torch.Tensor) else found.sequences
        scores, token_scores = getattr(found, "sequences_scores", None), None
        if plan.scores_tokens:
            own = self.model.unit_table if self._controlled else table  # the model plans in it
            token_scores = token_log_probabilities(
                self.model, own, ids, inputs, self._causal * prompt, controlled=self._controlled
            )
        counts, others = None, None
        if table.unit in ("token", COST):  # a text does not show these units, only its ids
            counts = table.count(ids[:, prompt:]) if thoughts is None else thoughts.count_and_state(ids, prompt)[0]
        if other is not None and other.unit == "token":
            others = other.count(ids[:, prompt:]).tolist()
        return {
            "ids": ids[:, prompt:],
            "counts": counts,
            "others": others,
            "scores": None if scores is None else scores.tolist(),
            "token_scores": token_scores,
            "finish": finish,
            "answers": None if thoughts is None else self._answers(thoughts, ids, prompt),
        }

    @cached_property
    def _mark_runs(self) -> MarkRunsLogitsProcessor:
        entries = self.model.get_output_embeddings().weight.shape[0]
        return MarkRunsLogitsProcessor(self.tokenizer, entries, self.device)

    def _finish(
        self,
        call: Call,
        jobs: Sequence[Job],
        table: UnitTable,
        prompt: int,
        thoughts: Thoughts | None,
        arguments: dict[str, Any],
    ) -> FinishLogitsProcessor:
        """Return the processor of `finish`, and add it to the arguments of `generate`; hold the text of a streamer."""
        limits = torch.tensor([job.high for job in jobs], device=table.weights.device)
        options: dict[str, Any] = {"eos_token_id": eos_of(self.model), "prompt_length": prompt, "thoughts": thoughts}
        process = FinishLogitsProcessor(self.tokenizer, table, limits, str(call.finish), **options)
        arguments["logits_processor"] = [*(arguments.get("logits_processor") or []), process]
        if arguments.get("streamer") is not None:
            enough = self._enough(jobs[0], call.unit)
            arguments["streamer"] = HeldStreamer(arguments["streamer"], self.tokenizer, process, enough)
        return process

    def _answers(self, thoughts: Thoughts, ids: torch.Tensor, prompt: int) -> list[tuple[str, str | None]]:
        """Return the thoughts and the answer of each output, `ids (outputs, positions)`; `None` without an answer."""
        ends, closed = eos_of(self.model), thoughts.closed(ids[:, :prompt]).tolist()
        written = [[i for i in own if i not in ends] for own in ids[:, prompt:].tolist()]
        return [thoughts.marker.split(own, over) for own, over in zip(written, closed, strict=True)]

    def _enough(self, job: Job, unit: str | Unit) -> Callable[[str], bool]:
        """Return a function that says whether a text has at least half the length of a job."""
        return lambda text: count_texts(self.tokenizer, [text], unit, target=True)[0] >= job.high / 2

    def postprocess(
        self, outputs: dict[str, Any], *, call: Call, jobs: Sequence[Job], other: UnitTable | None, **_
    ) -> list[Candidate]:
        """Decode the outputs of a batch, and count their units."""
        unit, finish, answers = call.unit, outputs["finish"], outputs["answers"]
        texts = self.tokenizer.batch_decode(
            outputs["ids"], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        if answers is not None:
            texts = [answer or "" for _, answer in answers]
        counts = outputs["counts"]  # of the ids, or of the texts, in a unit that the table has checked
        counts = list(map(counter_of(unit), texts)) if counts is None else counts.tolist()
        others = outputs["others"]
        if others is None and call.other is not None:
            others = count_texts(self.tokenizer, texts, call.other[0])
        written, copies = [], len(texts) // len(jobs)
        for k, text in enumerate(texts):
            job, out = jobs[k // copies], {"generated_text": text, "length": counts[k]}
            if answers is not None:
                missing = f"the output has no {call.length_from!r}, so it has no answer, and nothing kept the length"
                out |= {"thoughts": answers[k][0], "fault": missing if answers[k][1] is None else None}
            if finish is not None:
                ids = outputs["ids"][k].tolist()
                out["generated_text"], out["finish"] = finish.ending(k // copies, ids, text, self._enough(job, unit))
                if out["generated_text"] != text:  # encoding the text again may give more tokens than were generated
                    again = count_texts(self.tokenizer, [out["generated_text"]], unit, target=True)[0]
                    out["length"] = min(out["length"], again)
            out |= {"requested_length": job.request.requested, "length_unit": str(unit)}
            if call.other is not None:
                out["lengths"] = {str(unit): out["length"], str(call.other[0]): others[k]}
            scores = (outputs[name] and outputs[name][k] for name in ("scores", "token_scores"))
            written.append(Candidate(out, *scores))
        return written


def target_of(jobs: Sequence[Job], constraint: str | None, table: UnitTable, other: UnitTable | None) -> Target | None:
    """Return the target of a batch of jobs, in units of a table and of another one; `None` for jobs without length."""
    if jobs[0].planned is None:
        return None
    planned, low, high, limit = (
        torch.tensor(values, device=table.weights.device)
        for values in zip(*((job.planned, job.low, job.high, job.request.limit or 0) for job in jobs), strict=True)
    )
    pair = None if other is None else (other, limit)
    return Target(planned, high if constraint == "max" else low, high, pair, table)


# The entry for the table of tasks in transformers; see `registration.py`.
TASK = {"impl": LengthControlledGenerationPipeline, "pt": (PipelineModel,), "type": "text"}
