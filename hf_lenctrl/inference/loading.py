"""The function `hf_lenctrl.pipeline`: `transformers.pipeline` with type hints."""

import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack, cast

import torch
import transformers
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel

from .options import Defaults
from .pipeline import LengthControlledGenerationPipeline


def pipeline(
    model: str | Path | PreTrainedModel,
    tokenizer: Any = None,
    *,
    device: int | str | torch.device | None = None,
    device_map: str | dict[str, int | str] | None = None,
    dtype: str | torch.dtype | None = "auto",
    revision: str | None = None,
    token: str | bool | None = None,
    trust_remote_code: bool | None = None,
    model_kwargs: dict[str, Any] | None = None,
    **defaults: Unpack[Defaults],
) -> LengthControlledGenerationPipeline:
    """
    Return a pipeline for length-controlled generation. This function calls
    `transformers.pipeline("length-controlled-generation", ...)`, and adds type hints, because type checkers do not
    know this task.

    Args:
        model (`str`, `Path` or `PreTrainedModel`): Hub name or folder of the model, or the model itself.
        tokenizer (`str` or `PreTrainedTokenizerBase`, *optional*): Defaults to the model's own tokenizer.
        device, device_map, dtype, revision, token, trust_remote_code, model_kwargs: As for `transformers.pipeline`.
        defaults: Default options of each call of the pipeline, see `LengthControlledGenerationPipeline`.

    Raises:
        `TypeError`: if an option is unknown to the pipeline and to `generate`.
    """
    known = {
        *Defaults.__annotations__,
        *vars(GenerationConfig()),
        *inspect.signature(GenerationMixin.generate).parameters,
    }
    if unknown := [name for name in defaults if name not in known]:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise TypeError(f"pipeline has no option {unknown[0]}{meant}")
    given: dict[str, Any] = {"device": device, "device_map": device_map, "revision": revision, "token": token}
    given |= {"trust_remote_code": trust_remote_code, "model_kwargs": model_kwargs}
    given = {name: value for name, value in given.items() if value is not None}
    model = str(model) if isinstance(model, Path) else model
    options: dict[str, Any] = {"model": model, "tokenizer": tokenizer, "dtype": dtype, **given, **defaults}
    made: Callable[..., Any] = transformers.pipeline
    return cast(LengthControlledGenerationPipeline, made("length-controlled-generation", **options))
