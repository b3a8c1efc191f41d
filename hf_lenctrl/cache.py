"""Helpers for the key-value cache: the name of the cache argument in the installed transformers, and a function that
reads a shared prompt once.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import Seq2SeqLMOutput


CACHE_NAMES = ("cache", "past_key_values")  # the name is `cache` since transformers 5.24
CACHE = next(name for name in CACHE_NAMES if name in Seq2SeqLMOutput.__dataclass_fields__)  # the installed name


_Method = TypeVar("_Method", bound=Callable[..., Any])


def takes_cache(method: _Method) -> _Method:
    """
    Decorate a method that has an argument `cache`, so that a caller may also name this argument `past_key_values`. The
    method must pass the cache to transformers as `**{CACHE: cache}`, because the name depends on the installed
    version. The decorated method shows both names in its signature, because `generate` and PEFT read the signature. A
    call raises `ValueError` if both arguments have a value.
    """

    @functools.wraps(method)
    def call(*args, **kwargs):
        if "past_key_values" in kwargs:
            old = kwargs.pop("past_key_values")
            if old is not None and kwargs.get("cache") is not None:
                raise ValueError(
                    "cache and past_key_values are two names of one argument, got both; pass one of them "
                    "(generate with prefix tuning of PEFT 0.21 gives both to transformers 5.24; use 5.23 for it)"
                )
            kwargs["cache"] = kwargs.get("cache") if old is None else old
        return method(*args, **kwargs)

    signature = inspect.signature(method)
    old_name = inspect.Parameter("past_key_values", inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters = sorted([*signature.parameters.values(), old_name], key=lambda parameter: parameter.kind)
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return cast(_Method, call)


def without_length(model: Any) -> Any:
    """Return the model without length control: `model` itself, or the inner model of a `LenCtrlForCausalLM`."""
    return model.language_model if hasattr(model.config, "length_encoding") else model


@torch.no_grad()
def read_once(model: Any, ids: torch.Tensor, mask: torch.Tensor, copies: int = 1) -> DynamicCache | None:
    """
    Run the model once on each distinct prompt, and copy the resulting key-value cache to all rows with this prompt.

    Args:
        model (`PreTrainedModel`): A causal model. It is called without length control.
        ids, mask (`torch.LongTensor` of shape `(batch_size, n)`): The ids of the prompts, padded on the left to `n`
            tokens, and their attention mask.
        copies (`int`, *optional*, defaults to 1): Number of cache rows for each row of `ids`, such as beams.

    Returns:
        A cache of `batch_size * copies` rows and `n - 1` positions. The last position is left out, because a length
        encoding may be added there. The result is `None` if no two rows of the cache share a prompt, if `n` is 1, or
        if the model has no cache that stores all positions.
    """
    model = without_length(model)
    reads = inspect.signature(model.forward).parameters
    different, rows = torch.cat([ids, mask], dim=1).unique(dim=0, return_inverse=True)
    if CACHE not in reads or ids.shape[1] < 2 or len(different) == len(ids) * copies:
        return None
    cache = DynamicCache(config=model.config)
    if any(type(layer) is not DynamicLayer for layer in cache.layers):  # a sliding window lacks positions
        return None
    ids, mask = (part[:, :-1] for part in different.chunk(2, dim=1))
    options: dict[str, Any] = {"position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0), "logits_to_keep": 1}
    options = {name: value for name, value in options.items() if name in reads}
    model(input_ids=ids, attention_mask=mask, use_cache=True, **{CACHE: cache}, **options)
    cache.batch_select_indices(rows.repeat_interleave(copies))
    return cache
