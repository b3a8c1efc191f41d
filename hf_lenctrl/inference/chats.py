"""Prompts: plain texts, and chats that the tokenizer's chat template converts to texts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import UndefinedError

from ..length_units import check_list


@dataclass(frozen=True)
class Prompt:
    """
    An input text for the model. If `is_chat` is true, `text` is a chat that the tokenizer's template has rendered, and
    already has the special tokens.
    """

    text: str
    is_chat: bool = False


def _is_chat(value) -> bool:
    return (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(m, Mapping) and "role" in m for m in value)
    )


def as_prompt(source, tokenizer) -> Any:
    """
    Convert a text or a chat to a `Prompt`; return anything else unchanged. A chat is a list of messages
    `{"role": "user", "content": "..."}`. The tokenizer's template renders the chat up to the start of the answer.
    Raise `ValueError` if `source` is a chat but the tokenizer has no template, if a message has no content, or if the
    content is a list of parts and the template takes only texts.
    """
    if isinstance(source, str):
        return Prompt(source)
    if not _is_chat(source):
        return source
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError(f"the tokenizer ({type(tokenizer).__name__}) has no chat template; set one, or pass texts")
    for i, message in enumerate(source):  # a message of the assistant may have only calls of tools
        if message.get("content") is None and not message.get("tool_calls"):
            raise ValueError(
                f"message {i} of a chat has no content, got {message!r}; pass {{'role': 'user', 'content': '...'}}"
            )
    lists = [message["content"] for message in source if isinstance(message.get("content"), list)]
    rule = "the tokenizer's chat template takes a text as content, and no list of parts"
    try:
        text = tokenizer.apply_chat_template(list(source), tokenize=False, add_generation_prompt=True)
    except (TypeError, UndefinedError) as error:  # a template adds a text to the content, or calls its `strip`
        if not lists:
            raise
        raise ValueError(f"{rule}, got {lists[0]!r}; pass the text alone") from error
    for parts in lists:  # a template may also write the list, or each of its dictionaries, as Python shows it
        if any(repr(shown) in text for shown in (parts, *parts) if shown and not isinstance(shown, str)):
            raise ValueError(f"{rule}, got {parts!r}; pass the text alone")
    return Prompt(text, is_chat=True)


def is_single(inputs) -> bool:
    """Return whether `inputs`, the inputs of a pipeline call, are a single source and not a list of sources."""
    return isinstance(inputs, str | Prompt) or _is_chat(inputs)


def as_prompts(inputs, tokenizer) -> list[Any]:
    """
    Convert the inputs of a pipeline call, one source or several, to a list of prompts, see `as_prompt`. Raise
    `TypeError` if `inputs` is neither a source nor an iterable of sources, see `check_list`.
    """
    if is_single(inputs):
        return [as_prompt(inputs, tokenizer)]
    check_list(inputs)
    return [as_prompt(item, tokenizer) for item in inputs]


def prompt_ids(tokenizer, prompts: Iterable[Prompt]) -> list[list[int]]:
    """Return the token ids of each prompt. The template of a chat has already added special tokens."""
    return [tokenizer(prompt.text, add_special_tokens=not prompt.is_chat)["input_ids"] for prompt in prompts]


def encode_prompts(tokenizer, prompts: Iterable[Prompt]) -> Any:
    """Return the ids and masks of prompts, padded on the left, so that all outputs begin in the same column."""
    return tokenizer.pad({"input_ids": prompt_ids(tokenizer, prompts)}, padding_side="left", return_tensors="pt")
