"""Text and a length in, text of that length out."""

from collections.abc import Sequence
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import Pipeline
from transformers.generation import LogitsProcessorList

from .configuration_lenctrl import check_constraint, check_length
from .generation import rerank, token_limit
from .length_constraint import LengthConstraintLogitsProcessor
from .length_units import UnitTable, count_units


_FROM_MODEL: Any = object()


class LengthControlledGenerationPipeline(Pipeline):
    """
    `pipeline("length-controlled-generation", model=path)`, after `import hf_lenctrl`.

    With a length-controlled model the length is planned for and, with a constraint, guaranteed. A plain
    sequence-to-sequence model takes a length with a constraint; without either it writes what it writes.

    Args of a call:
        inputs (`str` or `list[str]`): Sources.
        length (`int` or `list[int]`, *optional*): Wanted units, for all or for each source; defaults to the model's.
        length_ratio (`float`, *optional*): Ask for this many times the source's length instead, in the same unit,
            rounded, at least 1.
        length_unit (`str`, *optional*): Defaults to the model's; a length-controlled model knows no other.
        length_constraint (`str`, *optional*): `"max"`, `"exact"` or `None`; defaults to the model's.
        num_return_sequences (`int`, *optional*, defaults to 1): Outputs for each source.
        rerank (`bool` or `int`, *optional*, defaults to `False`): Write so many candidates (`True`: 20) and return
            those that contain most source words first (`hf_lenctrl.generation.rerank`).
        batch_size (`int`, *optional*, defaults to 32): Sources generated together; like lengths share a batch.
        progress_bar (`bool`, *optional*): By default for more than one batch.
        kwargs: For `generate`: `num_beams=4`, `do_sample=True`, ...

    Returns (of a call):
        `dict` with `generated_text`, `length` (measured), `requested_length` and `length_unit`; a list of them for
        `num_return_sequences` above 1; a list of either for a list of sources, in its order.

    Raises:
        `TypeError`, `ValueError`: for inputs that are no texts or empty ones, a length that is missing, no integer or
            under 1, both `length` and `length_ratio`, a unit the checkpoint has no table for, a plain model without a
            constraint.
    """

    model: Any
    tokenizer: Any
    _load_tokenizer: Any = True
    _load_processor: Any = False
    _load_image_processor: Any = False
    _load_feature_extractor: Any = False

    def _sanitize_parameters(self, **kwargs):
        return {}, kwargs, {}  # what `pipeline(...)` is given holds for every call

    def __call__(self, inputs, **kwargs):
        options = {**self._forward_params, **kwargs}
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"every input must be a text, got {text!r} at position {i}")
        results = self._generate_all(texts, **options)
        return results[0] if isinstance(inputs, str) else results

    def _generate_all(
        self,
        texts: list[str],
        length=None,
        length_ratio: float | None = None,
        length_unit: str | None = None,
        length_constraint=_FROM_MODEL,
        num_return_sequences: int = 1,
        rerank: bool | int = False,
        batch_size: int | None = None,
        progress_bar: bool | None = None,
        **options,
    ) -> list:
        config: Any = self.model.config
        unit: str = length_unit or getattr(config, "length_unit", None) or "token"
        controlled = getattr(config, "length_encoding", "none") != "none"
        if controlled and unit != config.length_unit:
            raise ValueError(
                f"length_unit={unit!r}, but the model was trained to count {config.length_unit}s and has a table for "
                f"these alone; leave length_unit out, or train one: add_length_control(..., length_unit={unit!r})"
            )
        if length_constraint is _FROM_MODEL:
            length_constraint = getattr(config, "length_constraint", None)
        check_constraint(length_constraint)
        lengths = self._lengths(
            texts, length, length_ratio, unit, required=controlled or length_constraint is not None
        )
        if not controlled and length_constraint is None and lengths[:1] != [None]:
            raise ValueError(
                f"{type(self.model).__name__} has no length control, so a length needs a bound; pass "
                "length_constraint='max' or 'exact', or use a length-controlled model"
            )
        table = self._unit_table(unit)
        candidates = num_return_sequences
        if rerank:
            candidates = max(20 if rerank is True else rerank, num_return_sequences)
        if candidates > 1:
            options["num_return_sequences"] = candidates
            if not options.get("do_sample"):
                options["num_beams"] = max(options.get("num_beams") or 1, candidates)

        # rows of like requested and source length end together and need the least padding; the longest come first, so
        # that a length the model cannot hold, or the memory, is told at once
        batch_size = batch_size or self._batch_size or 32
        order = sorted(range(len(texts)), key=lambda i: (lengths[i] or 0, len(texts[i])), reverse=True)
        results: list = [None] * len(texts)
        show = len(texts) > batch_size if progress_bar is None else progress_bar
        with tqdm(total=len(texts), desc="Generating", unit="text", disable=not show) as bar:
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                wanted = [lengths[i] for i in rows]
                batch = self.preprocess([texts[i] for i in rows])
                given = dict(options)
                if controlled:
                    given |= {"length": wanted, "length_constraint": length_constraint}
                elif length_constraint is not None:
                    given |= self._bound(table, wanted, length_constraint, options)
                ids = self.forward(batch, **given)["ids"]  # (B * candidates, T)
                written = self.postprocess(ids, table=table)
                for row, i in enumerate(rows):
                    outputs = [
                        {**output, "requested_length": lengths[i], "length_unit": unit}
                        for output in written[row * candidates : (row + 1) * candidates]
                    ]
                    if rerank:
                        outputs = [outputs[k] for k in _rerank(texts[i], [o["generated_text"] for o in outputs])]
                    results[i] = outputs[0] if num_return_sequences == 1 else outputs[:num_return_sequences]
                bar.update(len(rows))
        return results

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
            if unit == "token":
                counts = [len(self.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
            else:
                counts = [count_units(text, unit) for text in texts]
            return [max(1, round(ratio * count)) for count in counts]
        length = getattr(self.model.config, "length", None) if length is None else length
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

    def _bound(self, table: UnitTable, lengths: list[int], constraint: str, options: dict) -> dict:
        """Arguments of `generate` for a model that is not told the length."""
        given: dict = {"min_length": 0}
        limit = options.get("max_length")
        if options.get("max_new_tokens") is not None:
            limit = 1 + options["max_new_tokens"]
        elif limit is None:
            limit = given["max_length"] = 1 + token_limit(max(lengths), table)
        eos = options.get("eos_token_id", self.model.generation_config.eos_token_id)
        forced = options.get("forced_bos_token_id", self.model.generation_config.forced_bos_token_id) is not None
        processor = LengthConstraintLogitsProcessor(
            table, lengths, constraint, eos_token_id=eos, max_length=limit, start_length=1 + forced
        )
        processors = LogitsProcessorList([*(options.get("logits_processor") or []), processor])
        return {**given, "logits_processor": processors}

    def preprocess(self, texts, **_) -> Any:
        return self.tokenizer(texts, return_tensors="pt", padding=True, truncation=True)

    def _forward(self, batch, **options):
        batch.pop("token_type_ids", None)
        ids = self.model.generate(**batch, **options)
        return {"ids": ids if isinstance(ids, torch.Tensor) else ids.sequences}

    def postprocess(self, ids, *, table: UnitTable, **_) -> list[dict]:
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if table.unit == "token":
            lengths = table.to(ids.device).count(ids).tolist()
        else:
            lengths = [count_units(text, table.unit) for text in texts]
        return [{"generated_text": text, "length": length} for text, length in zip(texts, lengths, strict=True)]


_rerank = rerank  # the option of the same name hides it
