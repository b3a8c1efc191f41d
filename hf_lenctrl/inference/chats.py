"""Prompts of causal models: a text as it is, or a chat as the tokenizer's template writes it."""

from collections.abc import Iterable, Mapping
from typing import Any


class Chat(str):
    """A chat as its template writes it, special tokens included."""


def _is_chat(value) -> bool:
    return (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(m, Mapping) and "role" in m for m in value)
    )


def as_prompts(inputs, tokenizer) -> Any:
    """
    Inputs of a pipeline: texts as they are; chats, lists of messages `{"role": "user", "content": "..."}`, as the text
    of a `Chat` that the tokenizer's template writes, up to where the answer begins. Raises `ValueError` without one.
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
    """The ids of texts and chats; a chat's template has written its special tokens."""
    return [tokenizer(text, add_special_tokens=not isinstance(text, Chat))["input_ids"] for text in texts]


def encode_prompts(tokenizer, texts) -> Any:
    """A batch of texts and chats, padded on the left, so that answers begin in one column."""
    return tokenizer.pad({"input_ids": prompt_ids(tokenizer, texts)}, padding_side="left", return_tensors="pt")


def check_length_source(texts, length, ratio) -> None:
    """Raise `ValueError` for a length that would be counted from a chat's markup."""
    if any(isinstance(text, Chat) for text in texts) and (ratio is not None or length in ("source", "predict")):
        given = f"length_ratio={ratio}" if ratio is not None else f"length={length!r}"
        raise ValueError(f"a chat has no length of its own for {given}; pass length=75, or the text alone")
