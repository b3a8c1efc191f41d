"""The name of the cache in the arguments and outputs of a model; transformers 5.24 changed it."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from transformers.modeling_outputs import Seq2SeqLMOutput


CACHE_NAMES = ("cache", "past_key_values")  # the first is for transformers 5.24 and later
CACHE = next(name for name in CACHE_NAMES if name in Seq2SeqLMOutput.__dataclass_fields__)  # in this version


_Method = TypeVar("_Method", bound=Callable[..., Any])


def takes_cache(method: _Method) -> _Method:
    """
    Let a method with the argument `cache` accept both names of the cache. Inside, it passes `**{CACHE: cache}` on. The
    signature has both names, because `generate` and PEFT look for them there. Raises `ValueError` for two caches.
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
