"""Prompts of causal models: a text as it is, or a chat as the tokenizer's template writes it."""

from collections.abc import Iterable, Mapping
from typing import Any


class Chat(str):
    """The text of a chat, rendered by the tokenizer's template; it includes the special tokens."""


def _is_chat(value) -> bool:
    return (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(m, Mapping) and "role" in m for m in value)
    )


def as_prompts(inputs, tokenizer) -> Any:
    """
    Return the prompts for the inputs of a pipeline. A text does not change. A chat, a list of messages
    `{"role": "user", "content": "..."}`, becomes a `Chat`: the tokenizer's template renders it, up to the start of the
    answer. Raises `ValueError` if the tokenizer has no template.
    """

    def write(messages) -> Chat:
        if getattr(tokenizer, "chat_template", None) is None:
            raise ValueError(
                f"the tokenizer ({type(tokenizer).__name__}) has no chat template; set one, or pass texts"
            )
        return Chat(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))

    if _is_chat(inputs):
        return write(inputs)
    if isinstance(inputs, str | Mapping) or not isinstance(inputs, Iterable):
        return inputs
    return [write(item) if _is_chat(item) else item for item in inputs]


def prompt_ids(tokenizer, texts) -> list[list[int]]:
    """Return the ids of texts and chats. A chat gets no more special tokens, because its template has added them."""
    return [tokenizer(text, add_special_tokens=not isinstance(text, Chat))["input_ids"] for text in texts]


def encode_prompts(tokenizer, texts) -> Any:
    """Encode texts and chats as a batch, padded on the left, so that all answers begin in the same column."""
    return tokenizer.pad({"input_ids": prompt_ids(tokenizer, texts)}, padding_side="left", return_tensors="pt")


def check_length_source(texts, length, ratio) -> None:
    """Raise `ValueError` if the length would be counted from a chat, because a chat contains markup."""
    if any(isinstance(text, Chat) for text in texts) and (ratio is not None or length in ("source", "predict")):
        given = f"length_ratio={ratio}" if ratio is not None else f"length={length!r}"
        raise ValueError(f"a chat has no length of its own for {given}; pass length=75, or the text alone")
