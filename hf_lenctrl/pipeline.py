"""Text and a length in, text of that length out."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import Pipeline

from .generation import encode_once, limited, token_limit, warn_of_misses
from .length_predictor import load_predictor
from .length_tokens import LengthTokens
from .length_units import UnitTable, count_texts, count_units
from .lengths import check_constraint, check_length
from .reranking import rerank


logger = logging.getLogger(__name__)

_FROM_MODEL: Any = object()


class LengthControlledGenerationPipeline(Pipeline):
    """
    `pipeline("length-controlled-generation", model=path)`, after `import hf_lenctrl`.

    With a length-controlled model the length is planned for and, with a constraint, guaranteed. A plain
    sequence-to-sequence model takes a length with a constraint; without either it writes what it writes.

    Args of a call:
        inputs (`str` or `list[str]`): Sources.
        length (`int`, `list[int]`, `list[list[int]]` or `str`, *optional*): Wanted units, for all or for each source;
            a list for a single text or for each of several is written once for each length; `"predict"` asks a
            length predictor (Oka et al. 2020), `"source"` takes the source's length (Lakew et al. 2019), `"reference"`
            that of `references`, an upper bound. Defaults to the model's.
        predictor (`str` or `tuple`, *optional*): Path or Hub name of a `LengthPredictor`, or the model and its
            tokenizer; defaults to the one that the generator's configuration names.
        truncation (`bool`, *optional*, defaults to `False`): Predict the length for a text that is too long for the
            predictor's encoder from its beginning.
        references (`list[str]`, *optional*): One for each source, for `length="reference"`.
        length_ratio (`float`, *optional*): Ask for this many times the source's length instead, in the same unit,
            rounded, at least 1.
        length_unit (`str`, *optional*): Defaults to the model's; a length-controlled model knows no other.
        length_constraint (`str`, *optional*): `"max"`, `"exact"` or `None`; defaults to the model's.
        num_return_sequences (`int`, *optional*, defaults to 1): Outputs for each source.
        rerank (`bool` or `int`, *optional*, defaults to `False`): Write so many candidates (`True`: 20) and return
            those that contain most source words first (`hf_lenctrl.rerank`).
        batch_size (`int`, *optional*, defaults to 32): Sources generated together; like lengths share a batch.
        batch_tokens (`int`, *optional*): Make batches of so many positions instead, rows times the longest source in
            tokens and the longest requested length in units, so that short texts come in large batches.
        progress_bar (`bool`, *optional*): By default for more than one batch.
        kwargs: For `generate`: `num_beams=4`, `do_sample=True`, ...

    Returns (of a call):
        `dict` with `generated_text`, `length` (measured), `requested_length` and `length_unit`; a list of them for
        `num_return_sequences` above 1; a list of either for several lengths of a text, and for a list of sources, in
        their order.

    Raises:
        `TypeError`, `ValueError`: for inputs that are no texts or empty ones, a length that is missing, no integer or
            under 1, both `length` and `length_ratio`, a unit the checkpoint has no table for, a plain model without a
            constraint, a missing predictor or one of another unit.
    """

    model: Any
    tokenizer: Any
    _load_tokenizer: Any = True
    _load_processor: Any = False
    _load_image_processor: Any = False
    _load_feature_extractor: Any = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._predictors: dict = {}  # name -> predictor and tokenizer

    def _sanitize_parameters(self, **kwargs):
        return {}, kwargs, {}  # what `pipeline(...)` is given holds for every call

    def __call__(self, inputs, **kwargs):
        options = {**self._forward_params, **kwargs}
        if isinstance(inputs, Mapping) or not isinstance(inputs, Iterable):
            raise TypeError(f"inputs must be a text or a list of texts, got {inputs!r}")
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"every input must be a text, got {text!r} at position {i}")
        lengths = options.get("length")
        if isinstance(inputs, str) and isinstance(lengths, list | tuple):
            lengths = [list(lengths)]
        if not texts or not isinstance(lengths, list | tuple) or not any(isinstance(n, list | tuple) for n in lengths):
            results = self._generate_all(texts, **options) if texts else []
            return results[0] if isinstance(inputs, str) else results
        results = self._generate_many(texts, list(lengths), options)
        return results[0] if isinstance(inputs, str) else results

    def _generate_many(self, texts: list[str], lengths: list, options: dict) -> list[list]:
        """Several lengths for each text."""
        if len(lengths) != len(texts):
            raise ValueError(f"length must hold a list for each of the {len(texts)} texts, got {len(lengths)}")
        for i, several in enumerate(lengths):
            if not isinstance(several, list | tuple) or not several:
                raise ValueError(
                    f"length must hold a list of lengths for every text or for none, got {several!r} at position {i}"
                )
        if options.get("references") is not None:
            raise ValueError("references give one length for each text; leave them out where length holds lists")
        texts_of = [i for i, several in enumerate(lengths) for _ in several]
        options = {**options, "length": [n for several in lengths for n in several]}
        results = iter(self._generate_all([texts[i] for i in texts_of], texts_of=texts_of, **options))
        return [[next(results) for _ in several] for several in lengths]

    def _generate_all(
        self,
        texts: list[str],
        length=None,
        length_ratio: float | None = None,
        length_unit: str | None = None,
        length_constraint=_FROM_MODEL,
        predictor=None,
        references: Sequence[str] | None = None,
        truncation: bool = False,
        num_return_sequences: int = 1,
        rerank: bool | int = False,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        progress_bar: bool | None = None,
        texts_of: list[int] | None = None,  # for each row its text, where rows share texts
        **options,
    ) -> list:
        config: Any = self.model.config
        unit: str = length_unit or getattr(config, "length_unit", None) or "token"
        controlled = getattr(config, "length_controlled", False)
        if controlled and unit != config.length_unit:
            raise ValueError(
                f"length_unit={unit!r}, but the model was trained to count {config.length_unit}s and has a table for "
                f"these alone; leave length_unit out, or train one: add_length_control(..., length_unit={unit!r})"
            )
        if length_constraint is _FROM_MODEL:
            length_constraint = getattr(config, "length_constraint", None)
        check_constraint(length_constraint)
        most_rows = batch_size or (len(texts) if batch_tokens else None)
        batch_size = batch_size or self._batch_size or 32
        rerank = 20 if rerank is True else rerank or 1
        for name, number in (
            ("num_return_sequences", num_return_sequences),
            ("batch_size", batch_size),
            ("rerank", rerank),
            ("batch_tokens", 1 if batch_tokens is None else batch_tokens),
        ):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {number!r}")
        tokens = getattr(config, "length_tokens", None)
        tokens = None if tokens is None else LengthTokens(**tokens)
        needs_length = controlled or tokens is not None or length_constraint is not None
        if needs_length:
            length = getattr(config, "length", None) if length is None else length
        elif length is not None or length_ratio is not None:
            raise ValueError(
                f"{type(self.model).__name__} has no length control, so a length needs a bound; pass "
                "length_constraint='max' or 'exact', or use a length-controlled model"
            )
        if isinstance(length, str):
            length = self._lengths_from(length, texts, unit, predictor, references, batch_size, truncation)
        elif predictor is not None or references is not None:
            raise ValueError(
                f"predictor and references give the lengths with length='predict' and 'reference', got {length!r}"
            )
        lengths = self._lengths(texts, length, length_ratio, unit, required=needs_length)
        first: list = [None] * len(texts)
        if tokens is not None:
            if unit != config.length_unit:
                raise ValueError(
                    f"length_unit={unit!r}, but the model's length tokens are classes of {config.length_unit}s; leave "
                    "length_unit out"
                )
            classes = map(tokens.token_for, lengths, count_texts(self.tokenizer, texts, unit))
            first = self.tokenizer.convert_tokens_to_ids(list(classes))
        table = self._unit_table(unit)
        candidates = max(rerank, num_return_sequences)
        if candidates > 1:
            options["num_return_sequences"] = candidates
            if not options.get("do_sample"):
                options["num_beams"] = max(options.get("num_beams") or 1, candidates)

        # rows of like requested and source length end together and need the least padding; the longest come first, so
        # that a length the model cannot hold, or the memory, is told at once
        order = sorted(range(len(texts)), key=lambda i: (lengths[i] or 0, len(texts[i])), reverse=True)
        # rows of one text stay together, so that its encoder runs once; one that is told the length runs for each
        texts_of = texts_of or list(range(len(texts)))
        share = (
            len(set(texts_of)) < len(texts)
            and tokens is None
            and not getattr(config, "encoder_length_embedding", False)
        )
        place: dict[int, int] = {}  # of a text: that of its longest row
        if share:
            for k, i in enumerate(order):
                place.setdefault(texts_of[i], k)
            order.sort(key=lambda i: place[texts_of[i]])
        results: list = [None] * len(texts)
        show = len(texts) > batch_size if progress_bar is None else progress_bar
        with tqdm(total=len(texts), desc="Generating", unit="text", disable=not show) as bar:
            sizes = [(0, 0)] * len(texts)
            if batch_tokens is not None:
                counts = count_texts(self.tokenizer, texts, "token")
                special = self.tokenizer.num_special_tokens_to_add()
                sizes = [(count + special, wanted or 0) for count, wanted in zip(counts, lengths, strict=True)]
            for rows in _batches(order, sizes, most_rows or batch_size, batch_tokens):
                wanted = [lengths[i] for i in rows]
                distinct = list({texts_of[i] if share else i: i for i in rows}.values())
                batch = self.preprocess([texts[i] for i in distinct], first=[first[i] for i in distinct])
                where = {texts_of[i]: k for k, i in enumerate(distinct)}
                text_rows = torch.tensor([where[texts_of[i]] for i in rows]) if share else None
                if controlled:
                    given = {**options, "length": wanted, "length_constraint": length_constraint}
                else:
                    given = self._bound(table, wanted, length_constraint, options)
                written = self.postprocess(self.forward(batch, table=table, text_rows=text_rows, **given), unit=unit)
                if not controlled and length_constraint == "exact":
                    warn_of_misses([output["length"] for output in written], wanted, unit)
                for row, i in enumerate(rows):
                    outputs = [
                        {**output, "requested_length": lengths[i], "length_unit": unit}
                        for output in written[row * candidates : (row + 1) * candidates]
                    ]
                    if rerank > 1:
                        outputs = [outputs[k] for k in _rerank(texts[i], [o["generated_text"] for o in outputs])]
                    results[i] = outputs[0] if num_return_sequences == 1 else outputs[:num_return_sequences]
                bar.update(len(rows))
        return results

    def _lengths_from(
        self, how: str, texts, unit: str, predictor, references, batch_size: int, truncation: bool
    ) -> list[int]:
        """Lengths for `length="predict"`, `"source"` or `"reference"`."""
        if how == "source":
            return [max(1, count) for count in count_texts(self.tokenizer, texts, unit)]
        if how == "reference":
            many = len(references) if isinstance(references, list | tuple) else repr(references)
            if many != len(texts):
                raise ValueError(
                    f"length='reference' needs one reference for each of the {len(texts)} texts, got {many}; "
                    "pass references=[...]"
                )
            for i, reference in enumerate(references):
                if not isinstance(reference, str):
                    raise TypeError(f"every reference must be a text, got {reference!r} at position {i}")
            return [max(1, count) for count in count_texts(self.tokenizer, references, unit, target=True)]
        if how != "predict":
            raise ValueError(
                f"length must be an int, one for each text in a list, 'predict', 'source' or 'reference', got {how!r}"
            )
        model, tokenizer = self._find_predictor(predictor)
        if model.config.length_unit != unit:
            raise ValueError(
                f"the predictor predicts {model.config.length_unit}s, the generator counts {unit}s; use a predictor "
                f"trained with length_unit={unit!r}"
            )
        return model.predict_lengths(texts, tokenizer, batch_size=batch_size, truncation=truncation)

    def _find_predictor(self, predictor):
        """The predictor of the call or of the configuration, and its tokenizer."""
        if isinstance(predictor, tuple):
            return predictor
        config: Any = self.model.config
        name = predictor or getattr(config, "length_predictor", None)
        if name is None:
            raise ValueError(
                "length='predict' needs a length predictor; pass predictor='path or Hub name', or save the model with "
                "config.length_predictor"
            )
        if name not in self._predictors:
            inside = predictor is None and name.startswith("./")
            where, folder = (config.name_or_path, name[2:]) if inside else (name, "")
            model, tokenizer = load_predictor(where, subfolder=folder)
            self._predictors[name] = model.to(self.device), tokenizer
        return self._predictors[name]

    def _unit_table(self, unit: str) -> UnitTable:
        if hasattr(self.model, "unit_table") and unit == self.model.config.length_unit:
            return self.model.unit_table
        table = UnitTable.from_tokenizer(self.tokenizer, unit)
        return table.padded(self.model.get_output_embeddings().weight.shape[0]).to(self.device)

    def _lengths(self, texts: Sequence[str], length, ratio: float | None, unit: str, *, required: bool) -> list:
        if length is not None and ratio is not None:
            raise ValueError(f"give length or length_ratio, not both: got length={length!r}, length_ratio={ratio!r}")
        for i, text in enumerate(texts):
            if not text.strip():
                raise ValueError(f"the text at position {i} is empty and has no length to write for; remove it")
        if ratio is not None:
            if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < float("inf"):
                raise ValueError(f"length_ratio must be a number above 0, got {ratio!r}; pass length_ratio=0.5")
            lengths = [max(1, round(ratio * count)) for count in count_texts(self.tokenizer, texts, unit)]
            for item in lengths:
                check_length(item)
            return lengths
        if length is None and not required:
            return [None] * len(texts)
        if length is None:
            raise ValueError("no length was given; pass length=40, a list with one for each text, or length_ratio=0.5")
        lengths = length.tolist() if isinstance(length, torch.Tensor) else length
        lengths = list(lengths) if isinstance(lengths, list | tuple) else [lengths] * len(texts)
        if len(lengths) != len(texts):
            raise ValueError(f"length must be one integer or one for each of the {len(texts)} texts, got {lengths}")
        for item in lengths:
            check_length(item)
        return lengths

    def _bound(self, table: UnitTable, lengths: list, constraint: str | None, options: dict) -> dict:
        """Arguments of `generate` for a model that is not told the length."""
        # a model of this package would bind itself again, in its own unit
        own = {"length_constraint": None} if hasattr(self.model, "unit_table") else {}
        if constraint is None:
            return {**options, **own}
        positions = getattr(self.model.config, "max_position_embeddings", None)
        settings = options.get("generation_config")
        wanted = torch.tensor(lengths, device=table.weights.device)
        return own | limited(
            self.model, table, wanted, constraint, options, settings, partial(token_limit, table, positions=positions)
        )

    def preprocess(self, texts, *, first: list, **_) -> Any:
        encode = partial(self.tokenizer, texts, return_tensors="pt", padding=True, verbose=False)
        batch = encode()
        positions = getattr(self.model.config, "max_position_embeddings", None) or 10**9
        limit = min(self.tokenizer.model_max_length, positions) - (first[0] is not None)
        if batch["input_ids"].shape[1] > limit:
            logger.warning(
                "%d of %d sources are longer than the encoder's %d tokens and were cut",
                *(int((batch["attention_mask"].sum(dim=1) > limit).sum()), len(texts), limit),
            )
            batch = encode(truncation=True, max_length=limit)
        if first[0] is not None:
            ids = batch["input_ids"]
            batch["input_ids"] = torch.cat([torch.tensor(first, dtype=ids.dtype).unsqueeze(1), ids], dim=1)
            batch["attention_mask"] = torch.cat([ids.new_ones(len(ids), 1), batch["attention_mask"]], dim=1)
        return batch

    def _forward(self, batch, *, table: UnitTable, text_rows: torch.Tensor | None = None, **options):
        batch.pop("token_type_ids", None)
        if text_rows is not None:
            batch = encode_once(self.model, batch, text_rows.to(self.device))
        ids = self.model.generate(**batch, **options)
        ids = ids if isinstance(ids, torch.Tensor) else ids.sequences
        return {"ids": ids, "tokens": table.count(ids) if table.unit == "token" else None}

    def postprocess(self, outputs, *, unit: str, **_) -> list[dict]:
        texts = self.tokenizer.batch_decode(
            outputs["ids"], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        lengths = outputs["tokens"].tolist() if unit == "token" else [count_units(text, unit) for text in texts]
        return [{"generated_text": text, "length": length} for text, length in zip(texts, lengths, strict=True)]


def _batches(order: list[int], sizes: list[tuple[int, int]], most_rows: int, most: int | None) -> Iterator[list[int]]:
    """
    Neighbours in `order`, at most so many rows; the number of several rows times what they are padded to, the longest
    of each side (`sizes`: source, output), is within `most`.
    """
    batch: list[int] = []
    source = output = 0
    for i in order:
        source, output = max(source, sizes[i][0]), max(output, sizes[i][1])
        if batch and (len(batch) == most_rows or (most is not None and (source + output) * (len(batch) + 1) > most)):
            yield batch
            batch, (source, output) = [], sizes[i]
        batch.append(i)
    yield batch


_rerank = rerank  # the option of the same name hides it
