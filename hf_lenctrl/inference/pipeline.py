"""The pipeline: it takes a text and a length, and returns a text of that length."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import Any, Unpack, overload

import torch
from tqdm.auto import tqdm
from transformers import Pipeline

from ..conversion import HUB_OPTIONS, PipelineModel, check_tokenizer
from ..generation import encode_once, eos_of, generate_for, prompt_of
from ..length_tokens import LengthTokens
from ..length_units import COST, UnitTable, check_sources, count_texts
from ..shards import check_shards
from ..thoughts import Thoughts, thoughts_of
from .chats import as_prompts, check_length_source, encode_prompts
from .finish import FinishLogitsProcessor, HeldStreamer
from .options import CallOptions, Chat, GeneratedText, Length
from .pipeline_call import Call, Row, batches, over
from .ranking import choose, log_probabilities, rerank, token_log_probabilities
from .search import SearchByLength
from .sources import Predictors, requested_lengths


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
            case. Defaults to the model's; `None` switches that off. A dictionary of two units, `{"character": 30,
            "word": 6}`, has a length in the model's unit (or the first), and a limit in another unit, an `int` or a
            list with one for each text; both are kept, by default by `"max"`.
        predictor (`str` or `tuple`, *optional*): Path or Hub name of a `LengthPredictor`, or the model and its
            tokenizer; defaults to the one that the model's configuration names.
        truncation (`bool`, *optional*, defaults to `False`): Predict the length for a text that is too long for the
            predictor's encoder from its beginning.
        references (`list[str]`, *optional*): One for each source, for `length="reference"`.
        length_ratio (`float` or `tuple`, *optional*): Instead of a length, this many times the source's, rounded, at
            least 1; or a range of ratios, `(0.9, 1.1)`, rounded so that no range goes beyond it.
        length_unit (`str`, *optional*): Defaults to the model's; a length-controlled model has no other.
        length_constraint (`str`, *optional*): `"max"`, `"exact"` or `None`; defaults to the model's.
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
            not an integer), both `length` and `length_ratio`, a unit the checkpoint has no table for, a plain model
            without a constraint, and a predictor that is missing or has another unit.
    """

    model: Any
    tokenizer: Any
    _load_tokenizer: Any = None  # None, because we raise our own error if it is missing
    _load_processor: Any = False
    _load_image_processor: Any = False
    _load_feature_extractor: Any = False

    def __init__(self, *args, revision: str | None = None, token: str | bool | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        name = getattr(self.model, "name_or_path", "the model")
        check_shards(name)  # again here, because transformers tries the stock class if our class raises
        check_tokenizer(self.tokenizer, name, self.model)
        given = {"revision": revision, "token": token}
        given = {name: value for name, value in given.items() if value is not None}
        self._predictors = Predictors(self.model, {**HUB_OPTIONS.get(self.model, {}), **given})
        tokens = getattr(self.model.config, "length_tokens", None)
        self._length_tokens = None if tokens is None else LengthTokens(**tokens)
        self._controlled = getattr(self.model.config, "length_controlled", False)
        self._causal = not self.model.config.is_encoder_decoder
        if self._causal and self.tokenizer.pad_token is None:  # like the text-generation pipeline of transformers
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self._needs_length = self._controlled or tokens is not None  # such a model counts in its own unit

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
        inputs = as_prompts(inputs, self.tokenizer)
        if isinstance(inputs, Mapping) or not isinstance(inputs, Iterable):
            raise TypeError(f"inputs must be a text or a list of texts, got {inputs!r}")
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        check_sources(texts)
        if not texts:
            return []
        call = self._read(texts, over(self._forward_params, kwargs), isinstance(inputs, str))
        self._set_lengths(call)
        call.check_streamer()
        table = self._unit_table(call.length_unit)
        call.other_table = None if call.other is None else self._unit_table(call.other[0])
        requests: dict[int, list[Row]] = {}
        for row in call.rows:
            requests.setdefault(row.request, []).append(row)
        total = sum(not row.spare for row in call.rows)
        show = total > (call.batch_size or 32) if call.progress_bar is None else call.progress_bar
        with tqdm(total=total, desc="Generating", unit="text", disable=not show) as bar:
            for some in call.stages():
                for rows in self._batches(call, some):
                    self._generate(call, rows, table)
                    bar.update(len(rows))
            bar.update(total - bar.n)
        results: list[Any]
        if call.choose:
            missing = [row for own, pool in call.candidates_per_request() if not pool for row in own]
            for rows in self._batches(call, missing):
                self._generate(call, rows, table)
            results = self._chosen(call)
        else:
            results = [self._best(call, rows) for rows in requests.values()]
        self._judge(call, [own[0] for own in requests.values()], results)
        if call.lists:
            places = [own[0].place for own in requests.values()]
            results = [[out for out, at in zip(results, places, strict=True) if at == k] for k in range(len(texts))]
        return results[0] if isinstance(inputs, str) else results

    def _read(self, texts: list[str], options: dict, single: bool) -> Call:
        """Read the options of a call, check them, and make its rows (step 1)."""
        call = Call.of(options, self.model)
        config = self.model.config
        unit = getattr(config, "length_unit", None)
        call.set_unit(unit)
        if self._needs_length and call.length_unit != unit:
            given, only = f"length_unit={call.length_unit!r}", "a table" if self._controlled else "length tokens"
            raise ValueError(
                f"{given}, but the model was trained to count {unit}s and has {only} for these alone; leave "
                f"length_unit out, or train one: add_length_control(..., {given})"
            )
        call.set_constraint(config)
        if call.batch_size is None and call.batch_tokens is None:
            call.batch_size = self._batch_size or 32
        call.set_candidates(plans=self._needs_length)
        call.set_choice(getattr(config, "length_optional", False))
        call.check_score(needs_length=self._needs_length and not getattr(config, "length_optional", False))
        call.check_thinking(self._causal)
        call.set_rows(texts, single)
        call.set_other(len(texts))
        return call

    def _set_lengths(self, call: Call) -> None:
        """Set the requested length of each row, and its length token (step 2)."""
        length, ratio = call.length, call.length_ratio
        texts = [row.text for row in call.rows]
        check_length_source(texts, length, ratio)
        for row in call.rows:
            if not row.text.strip():
                raise ValueError(f"the text at position {row.place} is empty; remove it")
        for name, source in (("predictor", "predict"), ("references", "reference")):
            if getattr(call, name) is not None and not (isinstance(length, str) and length == source):
                raise ValueError(f"{name} gives the lengths with length={source!r}, got length={length!r}")
        length = call.own["length"] if length is None and ratio is None else length
        if not self._needs_length and call.length_constraint is None:
            if length is not None or ratio is not None:
                raise ValueError(
                    f"{type(self.model).__name__} has no length control, so a length needs a constraint; pass "
                    "length_constraint='max' or 'exact', or use a length-controlled model"
                )
            return
        if length is None and ratio is None:
            optional = getattr(self.model.config, "length_optional", False)
            if optional and call.length_constraint is None:
                return
        options: dict[str, Any] = {"batch_size": call.batch_size or 32, "truncation": call.truncation}
        lengths = requested_lengths(
            texts,
            length,
            unit=call.length_unit,
            tokenizer=self.tokenizer,
            ratio=ratio,
            references=call.references,
            predict=partial(self._predictors.predict, unit=call.length_unit, predictor=call.predictor, **options),
        )
        call.set_lengths(lengths)
        # An encoder that gets the length runs for each row.
        runs = self._length_tokens is not None or getattr(self.model.config, "encoder_length_embedding", False)
        call.shared = len({row.place for row in call.rows}) < len(call.rows) and not runs and not self._causal
        if self._length_tokens is not None:
            counts = count_texts(self.tokenizer, [row.text for row in call.rows], call.length_unit)
            for row, count in zip(call.rows, counts, strict=True):
                row.token = self.tokenizer.convert_tokens_to_ids(self._length_tokens.token_for(row.length, count))

    def _unit_table(self, unit: str) -> UnitTable:
        if hasattr(self.model, "unit_table") and unit == self.model.config.length_unit:
            return self.model.unit_table
        table = UnitTable.from_tokenizer(self.tokenizer, unit)
        return table.padded(self.model.get_output_embeddings().weight.shape[0]).to(self.device)

    def _batches(self, call: Call, some: list[Row]) -> Iterator[list[Row]]:
        """
        Yield batches of rows with the same number of candidates (step 3). Rows of similar requested and source length
        need the least padding. The longest come first, so that an impossible length or a lack of memory fails in the
        first batch.
        """
        longest: dict[int, int] = {}  # longest length of each request
        for row in call.rows:
            if not row.natural:
                longest[row.request] = max(longest.get(row.request, 0), row.length or 0)
        order = sorted(some, key=lambda row: (-longest[row.request], -len(row.text), row.request))
        if call.shared:  # rows of one text stay together, so that its encoder runs once
            first: dict[int, int] = {}  # index of the longest row of each text
            for k, row in enumerate(order):
                first.setdefault(row.place, k)
            order.sort(key=lambda row: first[row.place])
        if call.batch_tokens is not None:
            counts = count_texts(self.tokenizer, [row.text for row in order], "token")
            special = self.tokenizer.num_special_tokens_to_add()
            for row, count in zip(order, counts, strict=True):
                row.size = (count + special, row.length or 0)
        for kind in dict.fromkeys((row.candidates, row.search) for row in order):
            alike = [row for row in order if (row.candidates, row.search) == kind]
            if call.choose:  # all rows of a text are one group
                groups = [list(rows) for _, rows in groupby(alike, key=lambda row: row.place)]
            else:
                groups = [[row] for row in alike]
            yield from batches(groups, call.batch_size or len(groups), call.batch_tokens)

    def _generate(self, call: Call, rows: list[Row], table: UnitTable) -> None:
        """Generate the outputs of each row of a batch, in the order of the model (step 4)."""
        encoded = list({row.place: row for row in rows}.values()) if call.shared else rows
        batch = self.preprocess([row.text for row in encoded], tokens=[row.token for row in encoded])
        place = {row.place: k for k, row in enumerate(encoded)}
        text_rows = torch.tensor([place[row.place] for row in rows]) if call.shared else None
        outputs = self.forward(batch, call=call, rows=rows, table=table, text_rows=text_rows)
        written = self.postprocess(outputs, call=call, rows=rows)
        candidates = len(written) // len(rows)
        for k, row in enumerate(rows):
            row.outputs = written[k * candidates : (k + 1) * candidates]

    def _chosen(self, call: Call) -> list[dict]:
        """Return the chosen text of each request (step 5 with `choose`)."""
        natural: dict[int, list[str]] = {}  # texts for each place, since a source may come twice; the best text first
        plain: dict[tuple[int, str], float] = {}  # log-probability of each place and text
        texts_in = {row.place: row.text for row in call.rows}
        for row in call.rows:
            if row.natural and row.outputs:
                natural[row.place] = list(dict.fromkeys(out["generated_text"] for out in row.outputs))
            if row.search:  # its scores are without a length
                outputs = reversed(row.outputs or [])  # if a text comes twice, its best score overrides the other
                plain |= {(row.place, out["generated_text"]): out.pop("score") for out in outputs}
        rows = [own[0] for own, _ in call.candidates_per_request()]
        pools = [{out["generated_text"]: out for out in outputs} for _, outputs in call.candidates_per_request()]
        pairs = [[(row.place, text) for text in pool] for row, pool in zip(rows, pools, strict=True)]
        best = choose(self.model, self.tokenizer, pairs, natural, plain, texts_in)
        return [
            pool[pair[1]] | {"requested_length": row.requested, "score": plain[pair]}
            for row, pool, pair in zip(rows, pools, best, strict=True)
        ]

    def _best(self, call: Call, rows: list[Row]):
        """Return the best output of a request, or a list of the best ones (step 5)."""
        outputs = [out for row in rows for out in row.outputs or []]
        scores = [out.pop("of_a_token") for out in outputs] if "of_a_token" in outputs[0] else None
        order, texts = list(range(len(outputs))), [out["generated_text"] for out in outputs]
        if call.rerank > 1:
            order = rerank(rows[0].text, texts, scores)
        elif scores is not None:
            order.sort(key=lambda k: -scores[k])
        if call.ranged:  # two planned lengths may lead to the same text; texts that differ come first
            first = {texts[k]: k for k in reversed(order)}
            order.sort(key=lambda k: first[texts[k]] != k)
        outputs = [outputs[k] for k in order[: call.num_return_sequences]]
        return outputs[0] if call.num_return_sequences == 1 else outputs

    def _judge(self, call: Call, rows: list[Row], results: list) -> None:
        """Add the window and the score to each output, and treat outputs of a low score, in place (step 6)."""
        several = (result if isinstance(result, list) else [result] for result in results)
        outputs = [(row, out) for row, own in zip(rows, several, strict=True) for out in own]
        for row, out in outputs:
            out |= call.shown_window(row)
        optional = getattr(self.model.config, "length_optional", False) and call.length_from is None
        unscored = [(row, out) for row, out in outputs if optional and "score" not in out]
        if call.min_score is not None and not call.choose:
            unscored = outputs  # the score of a search is not this log-probability
        pairs = [(row.text, out["generated_text"]) for row, out in unscored]
        scores = log_probabilities(self.model, self.tokenizer, *map(list, zip(*pairs, strict=True))) if pairs else []
        for (_, out), score in zip(unscored, scores, strict=True):
            out["score"] = score
        low = call.flag_low(outputs)
        if low and call.on_low_score == "natural":
            texts = list({row.text: None for row, _ in low})
            natural = dict(zip(texts, self(texts, **call.natural_options()), strict=True))
            for row, out in low:
                kept = {"requested_length": out["requested_length"], "low_score": True}
                out.clear()
                out |= natural[row.text] | kept

    def preprocess(self, texts, *, tokens: list, **_) -> Any:
        if self._causal:
            return encode_prompts(self.tokenizer, texts)
        encode = partial(self.tokenizer, texts, return_tensors="pt", padding=True, verbose=False)
        batch = encode()
        positions = getattr(self.model.config, "max_position_embeddings", None) or 10**9
        most = self.tokenizer.model_max_length
        limit = min(most, positions) - (tokens[0] is not None)
        if batch["input_ids"].shape[1] > limit:
            whose = "the encoder's %d tokens" if positions <= most else "%d tokens, the tokenizer's model_max_length,"
            logger.warning(
                f"%d of %d sources are longer than {whose} and were cut",
                *(int((batch["attention_mask"].sum(dim=1) > limit).sum()), len(texts), limit),
            )
            batch = encode(truncation=True, max_length=limit)
        if tokens[0] is not None:
            ids = batch["input_ids"]
            batch["input_ids"] = torch.cat([torch.tensor(tokens, dtype=ids.dtype).unsqueeze(1), ids], dim=1)
            batch["attention_mask"] = torch.cat([ids.new_ones(len(ids), 1), batch["attention_mask"]], dim=1)
        return batch

    def _forward(self, batch, *, call: Call, rows: list[Row], table: UnitTable, text_rows):
        batch.pop("token_type_ids", None)
        if text_rows is not None:
            batch = encode_once(self.model, batch, text_rows.to(self.device))
        arguments, encoded = {**batch, **call.options_for(rows[0].candidates)}, batch.get("encoder_outputs")
        if rows[0].search:
            ends = self.tokenizer(text_target=["a.", "a?", "a!"], add_special_tokens=False)["input_ids"]
            search = SearchByLength(table, rows[0].candidates, marks=[own[-1] for own in ends])
            arguments |= {"num_beams": 1, "num_return_sequences": 1, "custom_generate": search}
        inputs = {name: batch.get(name) for name in ("input_ids", "attention_mask")}
        # A copy, because `generate` changes the encoder's outputs.
        inputs["encoder_outputs"] = None if encoded is None else type(encoded)(**encoded)
        prompt = prompt_of(self.model, arguments)[1]
        finish, thoughts = None, thoughts_of(call.length_from, self.tokenizer, table, call.thinking_budget)
        if thoughts is not None:
            arguments["length_from"] = thoughts
        if call.finish is not None:
            prompt = prompt or 1  # the decoder's start token
            limits = torch.tensor([row.length for row in rows], device=table.weights.device)
            options: dict[str, Any] = {"eos_token_id": eos_of(self.model), "prompt_length": prompt}
            options["thoughts"] = thoughts
            finish = FinishLogitsProcessor(self.tokenizer, table, limits, call.finish, **options)
            arguments["logits_processor"] = [*(call.options.get("logits_processor") or []), finish]
            if arguments.get("streamer") is not None:
                enough = self._enough(rows[0], table.unit)
                arguments["streamer"] = HeldStreamer(arguments["streamer"], self.tokenizer, finish, enough)
        target = call.target(rows, table.weights.device, call.other_table)
        ids = generate_for(self.model, table, target, call.length_constraint, arguments)
        figures = {}
        if getattr(ids, "sequences_scores", None) is not None:
            figures["score"] = ids.sequences_scores.tolist()
        ids = ids if isinstance(ids, torch.Tensor) else ids.sequences
        if call.ranged and not call.choose and call.plans * rows[0].candidates > 1:
            figures["of_a_token"] = token_log_probabilities(
                self.model, table, ids, inputs, self._causal * prompt, controlled=self._controlled
            )
        answers = None if thoughts is None else self._answers(thoughts, ids, prompt)
        counts = None
        if table.unit in ("token", COST):  # a text does not show these units, only its ids
            counts = table.count(ids[:, prompt:]) if thoughts is None else thoughts.count_and_state(ids, prompt)[0]
        ids, other = ids[:, prompt:], call.other_table
        others = other.count(ids).tolist() if other is not None and other.unit == "token" else None
        given = {"ids": ids, "counts": counts, "others": others, "figures": figures, "finish": finish}
        return given | {"answers": answers}

    def _answers(self, thoughts: Thoughts, ids: torch.Tensor, prompt: int) -> list[tuple[str, str | None]]:
        """Return the thoughts and the answer of each output, `ids (outputs, positions)`; `None` without an answer."""
        ends, closed = eos_of(self.model), thoughts.closed(ids[:, :prompt]).tolist()
        written = [[i for i in own if i not in ends] for own in ids[:, prompt:].tolist()]
        return [thoughts.marker.split(own, over) for own, over in zip(written, closed, strict=True)]

    def _enough(self, row: Row, unit: str) -> Callable[[str], bool]:
        """Return a function that says whether a text has at least half the length of a row."""
        return lambda text: count_texts(self.tokenizer, [text], unit, target=True)[0] >= row.length / 2

    def postprocess(self, outputs, *, call: Call, rows: list[Row], **_) -> list[dict]:
        unit, finish = call.length_unit, outputs["finish"]
        texts = self.tokenizer.batch_decode(
            outputs["ids"], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        answers = outputs["answers"]
        if answers is not None:
            texts = [answer or "" for _, answer in answers]
        counts = count_texts(self.tokenizer, texts, unit) if outputs["counts"] is None else outputs["counts"].tolist()
        written = [{"generated_text": text, "length": n} for text, n in zip(texts, counts, strict=True)]
        for out, (before, answer) in zip(written, answers or [], strict=answers is not None):
            missing = f"the output has no {call.length_from!r}, so it has no answer, and nothing kept the length"
            out |= {"thoughts": before, "fault": missing if answer is None else None}
        for name, values in outputs["figures"].items():
            for out, value in zip(written, values, strict=True):
                out[name] = value
        others = outputs["others"]
        if others is None and call.other_table is not None:
            others = count_texts(self.tokenizer, texts, call.other_table.unit)
        count, copies = partial(count_texts, self.tokenizer, unit=unit, target=True), len(texts) // len(rows)
        for k, (ids, text) in enumerate(zip(outputs["ids"].tolist(), texts, strict=True)):
            row, out = rows[k // copies], written[k]
            if finish is not None:
                ending = finish.ending(k // copies, ids, text, self._enough(row, unit))
                out["generated_text"], out["finish"] = ending
                # Encoding the text again may give more tokens than were generated.
                if out["generated_text"] != text:
                    out["length"] = min(out["length"], count([out["generated_text"]])[0])
            out |= {"requested_length": row.requested, "length_unit": unit}
            if others is not None:
                out["lengths"] = {unit: out["length"], call.other_table.unit: others[k]}
        return written


# The entry for the table of tasks in transformers; see `registration.py`.
TASK = {"impl": LengthControlledGenerationPipeline, "pt": (PipelineModel,), "type": "text"}
