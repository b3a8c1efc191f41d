"""The pipeline: it takes a text and a length, and returns a text of that length."""

import logging
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Unpack, overload

import torch
from tqdm.auto import tqdm
from transformers import Pipeline

from ..bounded_generation import encode_once, eos_of, generate_for, prompt_of, rows_of_each
from ..cache import CACHE, read_once
from ..conversion import LoadedModel, PipelineModel, check_tokenizer
from ..length_tokens import LengthTokens
from ..length_units import COST, Unit, UnitTable, check_sources, count_texts, counter_of, known_table
from ..lengths import Target
from ..shards import check_shards
from ..thoughts import Thoughts, thoughts_of
from .candidates import Candidate, Job, Single, batches, plan_of
from .chats import Prompt, as_prompts, encode_prompts, is_single
from .edits import edits_of
from .finish import FinishLogitsProcessor, HeldStreamer
from .marks import MarkRunsLogitsProcessor
from .options import CallOptions, Chat, GeneratedText, Length
from .ranking import ChoiceConfig, log_probabilities, token_log_probabilities
from .request import Call, Request, requests_of
from .sources import Predictors


logger = logging.getLogger(__name__)


class LengthControlledGenerationPipeline(Pipeline):
    """
    The pipeline that `hf_lenctrl.pipeline(path)` returns. After `import hf_lenctrl`,
    `transformers.pipeline("length-controlled-generation", model=path)` returns the same pipeline.

    A length-controlled model plans its length, and a constraint guarantees the length. A plain model (without length
    control) needs a constraint to keep a length. The pipeline loads the length predictor from the model's repository,
    with the `revision` and `token` that were passed to `pipeline(...)` or `LengthControlledGenerationPipeline(...)`.

    Args of a call:
        inputs (`str` or `list[str]`): Sources. For a causal model, prompts or chats. A chat is a list of messages,
            which the tokenizer's template renders.
        length (`int`, `tuple`, `list` or `str`, *optional*): Requested length in units: an `int` for all texts, or a
            list or array with an item for each text. A list for a single text, or a list of lists, gives one output
            for each length. A tuple `(lowest, highest)` is a range: the output may have any length in the range. For a
            range without `choose`, the output is the candidate with the highest mean log-probability per token, given
            its own length. `"predict"` uses a length predictor (Oka et al. 2020), `"source"` uses the length of the
            source (Lakew et al. 2019), and `"reference"` uses the length of `references` (for experiments). A name in
            `inference.presets.PRESETS`, such as `"bluesky"`, means the limit with this name, in its own unit. Defaults
            to the model's length; `None` switches this default off. A dictionary with two units, such as
            `{"character": 30, "word": 6}`, has a length in the model's unit (if the model has none, in the first
            unit), and a limit in the other unit. The limit is an `int`, or a list with an item for each text. The
            output keeps both numbers; the default constraint is then `"max"`.
        predictor (`str` or `tuple`, *optional*): Path or Hub name of a `LengthPredictor`, or a pair of predictor and
            tokenizer; defaults to the predictor that the model's configuration names.
        truncation (`bool`, *optional*, defaults to `False`): If a text is too long for the predictor's encoder,
            predict the length from the beginning of the text.
        references (`list[str]`, *optional*): One reference for each source, for `length="reference"`.
        length_ratio (`float` or `tuple`, *optional*): Instead of `length`, the ratio of the length to the source's
            length. The length is rounded, and is at least 1. A tuple, such as `(0.9, 1.1)`, is a range of ratios, see
            `ratio_ranges`.
        length_unit (`str`, `Unit` or function, *optional*): The unit of the length: a name, or a unit of your own.
            Defaults to the model's unit. A length-controlled model always plans in its own unit. If
            `length_unit` is another unit, the planned length is converted to the model's unit, by the ratio of the
            source's lengths in both units.
        length_constraint (`str`, *optional*): `"max"`, `"exact"`, `"min"` or `None`; defaults to the model's
            constraint.
        length_tolerance (`int`, `float`, `tuple` or `list`, *optional*): With `"exact"`, a window around the length,
            see `LengthControlledGeneration.generate`; a list has one tolerance for each text. If no constraint is
            given, the default is the model's tolerance.
        finish (`str`, *optional*): For a model that does not plan, with the constraint `"max"`: if an output would
            otherwise be too long, end it after a complete `"sentence"` or `"word"`. If set, the output has an item
            `finish`, which says where the text ends: `"sentence"`, `"word"`, `"cut"` (inside a word), or `"model"` if
            the model ended the text.
        length_from (`str` or `list[int]`, *optional*): For a causal model that writes thoughts (reasoning text) before
            its answer: the marker that ends the thoughts, as a text such as `"</think>"` or as ids, see
            `LengthControlledGeneration.generate`. The generated text is the answer alone, without white space at its
            start; `thoughts` is the text before the marker. If the marker is missing, the answer is empty, no
            constraint was applied, and `fault` says so; otherwise `fault` is `None`.
        thinking_budget (`int`, *optional*): With `length_from`, the maximum number of tokens of the thoughts. If the
            thoughts have not ended by then, the marker is added.
        num_return_sequences (`int`, *optional*, defaults to 1): Number of outputs for each source.
        rerank (`bool` or `int`, *optional*, defaults to `False`): Generate this many candidates (`True`: 20), and rank
            candidates with more words of the source first (`hf_lenctrl.rerank`).
        choose (`bool`, *optional*): For a model with `length_optional` (which also generates without a length) and a
            constraint: generate candidates with several planned lengths and with no planned length, and return the
            best (`hf_lenctrl.inference.ranking.rank`) with its `score`, the log-probability without a length. The text
            that the model generates without a length is the best if it fits. `"max"` then returns the best text of at
            most this length, not the longest text. If a text has more than eight lengths, these lengths share the
            candidates of one search by length (`hf_lenctrl.inference.search`). Defaults to `True` where possible;
            `False` is faster, because there is only one search. Not with `finish`, `length_from`, two units, a
            streamer, `rerank`, `do_sample` or `num_return_sequences`.
        scores (`bool`, *optional*, defaults to `True`): `False` leaves `score` out of the output, which saves a
            forward pass. With `choose` or `min_score`, the output has a `score` nevertheless.
        min_score (`float`, *optional*): If set, the output has an item `low_score`, which says whether its `score` is
            below this number. Not for a model that cannot generate without a length.
        on_low_score (`str`, *optional*, defaults to `"flag"`): If the score of an output is below `min_score`:
            `"flag"` returns the output with the flag; `"natural"` replaces the output by the text that the model
            generates without a requested length, which may have any length; `"error"` raises `ValueError`.
        batch_size (`int`, *optional*, defaults to 32): Number of sources in a batch; similar lengths share a batch.
        batch_tokens (`int`, *optional*): Instead of `batch_size`, the maximum number of positions in a batch: rows
            times the sum of the longest source in tokens and the longest requested length in units. Short texts then
            come in large batches.
        progress_bar (`bool`, *optional*): Show a progress bar; by default if there is more than one batch.
        kwargs: For `generate`: `num_beams=4`, `do_sample=True`, ...

    Returns (of a call):
        `dict` with `generated_text`, `length` (the produced length), `requested_length` and `length_unit`. If there is
            a window, also `window`, the lowest and the highest allowed length. If the length is in two units, also
            `lengths`, the produced length in both units. If `min_score` is set, also `score`, the log-probability of
            the text without a length. A model with `length_optional` adds this `score` to each output, but not with
            `length_from` or `scores=False`. Otherwise, `return_dict_in_generate=True, output_scores=True` adds as
            `score` the mean log-probability per token in the search. If `num_return_sequences` is above 1, a list of
            such `dict`. For several lengths of a text, and for a list of sources, a list of these results.

    Raises:
        `TypeError`, `ValueError`: if an input is empty or not a text; if the length is missing or invalid (below 1 or
            not an integer), or `length` and `length_ratio` are both given; if a model with the unit `"cost"` (a unit
            of the user) gets another unit; if a model without length control gets a length but no constraint; or if
            the predictor is missing or has another unit.
    """

    model: Any
    tokenizer: Any
    _load_tokenizer = None  # None, because we raise our own error if the tokenizer is missing
    _load_processor: Any = False
    _load_image_processor: Any = False
    _load_feature_extractor: Any = False

    def __init__(self, model, *args, revision: str | None = None, token: str | bool | None = None, **kwargs):
        if isinstance(model, LoadedModel):
            loaded = model
        else:
            folder = getattr(model, "loaded_subfolder", "")
            loaded = LoadedModel(model, {"subfolder": folder} if folder else {})
        super().__init__(loaded.model, *args, **kwargs)
        name = getattr(self.model, "name_or_path", "the model")
        # again, because transformers tries its own class if ours raises an error
        check_shards(name, loaded.hub_options.get("subfolder"))
        check_tokenizer(self.tokenizer, name, self.model)
        given = {"revision": revision, "token": token}
        given = {name: value for name, value in given.items() if value is not None}
        self._predictors = Predictors(self.model, {**loaded.hub_options, **given})
        self.edits = edits_of(self.model, self._predictors.hub_options)
        tokens = getattr(self.model.config, "length_tokens", None)
        self._length_tokens = None if tokens is None else LengthTokens(**tokens)
        if self._length_tokens is not None:
            self._length_tokens.check_in(self.tokenizer)
        self._controlled = getattr(self.model.config, "length_controlled", False)
        self._causal = not self.model.config.is_encoder_decoder
        if self._causal and self.tokenizer.pad_token is None:  # like the text-generation pipeline of transformers
            self.tokenizer.pad_token = self.tokenizer.eos_token
        # Each job needs its own source if the encoder reads the length, or if the output contains the prompt.
        reads_length = tokens is not None or getattr(self.model.config, "encoder_length_embedding", False)
        self._encodes_each = reads_length or self._causal

    def _sanitize_parameters(self, **kwargs):
        return {}, kwargs, {}  # the arguments of `pipeline(...)` are defaults for each call

    def save_pretrained(self, save_directory, **kwargs):
        """
        Save the model, the tokenizer and, if they exist, the file with edits (see `Edits`) and a length predictor in
        the model's folder. If this predictor cannot be loaded, log a warning. Unlike the method of transformers, do
        not copy the code of the pipeline to the folder, because the package has this code.
        """
        self.model.save_pretrained(save_directory, **kwargs)
        self.tokenizer.save_pretrained(save_directory, **kwargs)
        if self.edits is not None:
            self.edits.save(Path(save_directory, str(ChoiceConfig.of(self.model.config).edits)))
        name = getattr(self.model.config, "length_predictor", None)
        if name is not None and name.startswith("./"):
            try:
                found = self._predictors.find()
            except (OSError, ValueError) as error:
                logger.warning("the length predictor %s is not saved: %s", name, error)
            else:
                for part in found:
                    part.save_pretrained(Path(save_directory, name))

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
        plan = plan_of(call, self.model, self.tokenizer, table, self.edits)
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
        return known_table(self.tokenizer, unit, self.model.get_output_embeddings().weight.shape[0], self.device)

    def _sizes(self, prompts: Sequence[Prompt]) -> dict[int, int]:
        """Map the index of each source in the input to its number of tokens, special tokens included."""
        counts = count_texts(self.tokenizer, [prompt.text for prompt in prompts], "token")
        return dict(enumerate(count + self.tokenizer.num_special_tokens_to_add() for count in counts))

    def _encode(self, jobs: Sequence[Job]) -> tuple[Any, torch.Tensor | None]:
        """
        Return the tokenized sources of a batch, and the row of each job's source, `(jobs,)`. Jobs with the same source
        share a row; the second value is `None` if each job has its own.
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
        """
        Add `window` and `score` to the outputs in `results`, in place. `window` is for `"exact"` and `"min"`, if its
        ends differ, but not for a range. `score` is the log-probability without a length, which replaces the score of
        a search. It is for a model with `length_optional`, but not with `length_from` or `scores=False`; with
        `min_score`, always. With `choose`, the outputs have it already.
        """
        several = [result if isinstance(result, list) else [result] for result in results]
        outputs = [(request, out) for request, own in zip(requests, several, strict=True) for out in own]
        if call.length_constraint in ("exact", "min") and not call.ranged:
            for request, out in outputs:
                out |= {"window": (request.low, request.high)} if request.low < request.high else {}
        is_optional = getattr(self.model.config, "length_optional", False) and call.length_from is None
        is_scored = is_optional and call.scores or call.min_score is not None
        # also the outputs with the score of a search, which is not this log-probability
        unscored = outputs if is_scored and not call.choose else []
        sources = [request.source for request, _ in unscored]
        texts = [out["generated_text"] for _, out in unscored]
        scores = log_probabilities(self.model, self.tokenizer, sources, texts)
        for (_, out), score in zip(unscored, scores, strict=True):
            out["score"] = score
        if call.min_score is not None:
            self._treat_low(call, outputs, call.min_score)

    def _treat_low(self, call: Call, outputs: list[tuple[Request, dict[str, Any]]], least: float) -> None:
        """
        Set `low_score` in each output, in place. For low scores, `on_low_score="error"` raises `ValueError`, and
        `"natural"` replaces the output by the text that the model generates without a length.
        """
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
        """
        Tokenize the sources of a batch, cut at the encoder's limit with a warning. `tokens` has the id of a length
        token for each source. The id is put before the ids of the source.
        """
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
        """
        Generate the outputs of a batch. Return their ids, `(outputs, positions)`, without the prompt, and what
        `postprocess` cannot get from the decoded texts: lengths in tokens or in a cost, scores, and thoughts. `table`
        and `other` count the requested and the second unit; for `rows` see `_encode`.
        """
        batch.pop("token_type_ids", None)
        if rows is not None:
            batch = encode_once(self.model, batch, rows.to(self.device))
        arguments, encoded = {**batch, **plan.options(jobs[0])}, batch.get("encoder_outputs")
        if arguments.get("stop_strings") or getattr(call.defaults, "stop_strings", None):
            arguments["tokenizer"] = self.tokenizer
        copies = rows_of_each(self.model, arguments) if self._causal else None
        if copies is not None:
            cache = read_once(self.model, batch["input_ids"], batch["attention_mask"], copies)
            arguments |= {} if cache is None else {CACHE: cache}
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
        # avoid runs of punctuation marks, unless `choose` ranks them low, or thoughts (without a limit) come first
        if call.length_constraint not in (None, "max") and not call.choose and call.length_from is None:
            arguments["logits_processor"] = [*(arguments.get("logits_processor") or []), self._mark_runs]
        target = target_of(jobs, call.length_constraint, table, other)
        found = generate_for(self.model, table, target, call.length_constraint, arguments)
        ids = found if isinstance(found, torch.Tensor) else found.sequences
        scores, token_scores = getattr(found, "sequences_scores", None), None
        if plan.scores_tokens:
            own = self.model.unit_table if self._controlled else table  # the model plans in its unit
            token_scores = token_log_probabilities(
                self.model, own, ids, inputs, self._causal * prompt, controlled=self._controlled
            )
        counts, others = None, None
        if table.unit in ("token", COST):  # only ids show these units, not texts
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
        """
        Add the logits processor of the option `finish` to the arguments of `generate`, in place, and return it. A
        streamer is wrapped in a `HeldStreamer`. `prompt` is the number of positions before the output.
        """
        limits = torch.tensor([job.high for job in jobs], device=table.weights.device)
        options: dict[str, Any] = {"eos_token_id": eos_of(self.model), "prompt_length": prompt, "thoughts": thoughts}
        process = FinishLogitsProcessor(self.tokenizer, table, limits, str(call.finish), **options)
        arguments["logits_processor"] = [*(arguments.get("logits_processor") or []), process]
        if arguments.get("streamer") is not None:
            enough = self._enough(jobs[0], call.unit)
            arguments["streamer"] = HeldStreamer(arguments["streamer"], self.tokenizer, process, enough)
        return process

    def _answers(self, thoughts: Thoughts, ids: torch.Tensor, prompt: int) -> list[tuple[str, str | None]]:
        """Split each output into thoughts and answer; the answer is `None` if there is no end-of-thoughts marker."""
        ends, closed = eos_of(self.model), thoughts.closed(ids[:, :prompt]).tolist()
        written = [[i for i in own if i not in ends] for own in ids[:, prompt:].tolist()]
        return [thoughts.marker.split(own, over) for own, over in zip(written, closed, strict=True)]

    def _enough(self, job: Job, unit: str | Unit) -> Callable[[str], bool]:
        """Return a function: whether a text has at least half the highest length that the job allows."""
        return lambda text: count_texts(self.tokenizer, [text], unit, target=True)[0] >= job.high / 2

    def postprocess(
        self, outputs: dict[str, Any], *, call: Call, jobs: Sequence[Job], other: UnitTable | None, **_
    ) -> list[Candidate]:
        """Decode the outputs of a batch, see `_forward`, and return them as candidates, in the order of the jobs."""
        unit, finish, answers = call.unit, outputs["finish"], outputs["answers"]
        texts = self.tokenizer.batch_decode(
            outputs["ids"], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        if answers is not None:
            texts = [answer or "" for _, answer in answers]
        counts = outputs["counts"]  # if the ids were not counted, count the texts; the unit table has checked the unit
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
    """Return the target lengths of a batch; `None` if there is no length. `table` and `other` count the units."""
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
