"""A class for `Dataset.map_batches` of Ray Data; see `docs/ray.md`. This module does not import Ray."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..conversion import auto_class, tokenizer_of
from ..inference.pipeline import LengthControlledGenerationPipeline
from ..inference.request import Call
from ..inference.sources import check_one_kind, length_or_range


ADDED = ("generated_text", "generated_length", "requested_length", "within")


class LengthControlledGenerator:
    """
    A callable class that adds generated texts to a batch. Each Ray actor makes one instance, which loads the model:

        dataset.map_batches(
            LengthControlledGenerator,
            fn_constructor_kwargs={"model": "models/translate_to_english", "length_constraint": "max"},
            compute=ray.data.ActorPoolStrategy(size=2),
            num_cpus=0.5,
            batch_size=512,
        )

    Args:
        model (`str`): Folder or Hub name of the model.
        text_column (`str`, *optional*, defaults to `"text"`): Column of the sources.
        length_column (`str`, *optional*, defaults to `"length"`): Column of lengths (40 or `"40"`) or ranges
            (`[30, 42]` or `"30-42"`). The column is ignored if the options have `length` or `length_ratio`. With
            `length_column=None`, the model's default length is used.
        dtype (`str`, *optional*): Type of the weights, such as `"bfloat16"`.
        options: Options of a call of `LengthControlledGenerationPipeline`: `length_constraint="max"`, `num_beams=4`,
            `batch_size=32` (the number of texts in one batch of the model), and others.

    Raises:
        `TypeError`, `ValueError`: if the options have `num_return_sequences` above 1, `references` or a list as
            `length`; if a batch has no text column or length column; if a batch already has one of the columns that
            this class adds; or if a length is invalid. Also the errors of the pipeline.
    """

    def __init__(
        self,
        model: str,
        *,
        text_column: str = "text",
        length_column: str | None = "length",
        dtype: str | None = None,
        **options: Any,
    ):
        for name in ("num_return_sequences", "references"):
            if options.get(name) not in (None, 1):
                raise ValueError(f"a row has one text and one output, got {name}={options[name]!r}; leave {name} out")
        if isinstance(options.get("length"), list):
            raise ValueError(f"length must be one for all rows, got {options['length']!r}; give a column of lengths")
        self.text_column, self.options = text_column, options
        self.length_column = None if {"length", "length_ratio"} & options.keys() else length_column
        self.pipeline = LengthControlledGenerationPipeline(
            model=auto_class(model).from_pretrained(model, dtype=dtype).eval(),
            tokenizer=tokenizer_of(model),
        )  # the pipeline runs on the accelerator that Ray gives to the actor, or else on the CPU

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """
        Generate an output for each row.

        Args:
            batch (`Mapping[str, np.ndarray]`): Columns of shape `(batch_size,)`, in Ray's `batch_format="numpy"`.

        Returns:
            `dict`: the columns of the batch, and `generated_text`; `generated_length` in units; `requested_length`, an
                integer or `[low, high]`; `within`, whether the generated length is in the window of the constraint. If
                there is no constraint, `within` is whether the lengths are equal. If no length was requested, `within`
                is true.
        """
        if taken := [name for name in ADDED if name in batch]:
            raise ValueError(f"the batch has columns {', '.join(taken)}, which are added here; rename or drop them")
        texts = list(self._column(batch, self.text_column))
        options = {"progress_bar": False, **self.options}
        if self.length_column is not None:
            options["length"] = [self._length(value) for value in self._column(batch, self.length_column)]
            check_one_kind(options["length"], f"column {self.length_column!r}")
        outputs = self.pipeline(texts, **options)
        requested = [out["requested_length"] for out in outputs]
        windows: list[Any] = [None] * len(requested)
        if None not in requested:
            call = Call.read(options, self.pipeline.model, {})
            windows = call.windows(requested, call.length_tolerance)
        lengths = [out["length"] for out in outputs]
        return {
            **batch,
            "generated_text": [out["generated_text"] for out in outputs],
            "generated_length": lengths,
            "requested_length": [list(n) if isinstance(n, tuple) else n for n in requested],
            "within": [w is None or w[0] <= n <= w[1] for n, w in zip(lengths, windows, strict=True)],
        }

    def _column(self, batch: Mapping[str, np.ndarray], name: str) -> np.ndarray:
        if name not in batch:
            option = "text_column" if name == self.text_column else "length, or length_column"
            raise ValueError(f"the batch has no column {name!r}, only {', '.join(batch)}; pass {option}")
        return batch[name]

    def _length(self, value: Any) -> int | tuple[int, int]:
        try:
            return length_or_range(value.tolist() if isinstance(value, np.generic | np.ndarray) else value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(
                f"column {self.length_column!r} must hold integers of at least 1, or ranges of them, got {value!r}"
            ) from None
