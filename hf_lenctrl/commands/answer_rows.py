"""Functions that load rows of prompts and answers, or of chats, and encode them as token ids and labels."""

import logging

import datasets

from ..length_units import count_units
from ..lengths import plural
from . import rows as row_files


logger = logging.getLogger(__name__)


def encode(row: dict, tokenizer) -> list[dict[str, list[int]]]:
    """
    Encode a row of the data as training examples, dictionaries with `input_ids` and `labels`. A row with `prompt` and
    `completion` gives one example. A row with `messages` (a chat) gives one example for each message of the assistant.
    The labels of prompt tokens are -100. Raise `ValueError` if the row holds no answer or no valid text.
    """
    if row.get("messages"):
        messages = row["messages"]
        ends = [i + 1 for i, message in enumerate(messages) if message["role"] == "assistant"]
        if not ends:
            raise ValueError("messages hold no answer, a message of role assistant; correct or remove the row")
        return [_encode_answer(messages[:end], tokenizer) for end in ends]
    for name in ("prompt", "completion"):
        text = row.get(name)
        if not isinstance(text, str) or (name == "completion" and not text):
            raise ValueError(
                f"prompt and completion must be texts, the completion not empty, got {name}={text!r}; correct or "
                "remove the row"
            )
    prompt = tokenizer(row["prompt"])["input_ids"]
    answer = tokenizer(row["completion"], add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    return [_labelled(prompt, answer)]


def load_answers(
    path: str, tokenizer, max_length: int, unit: str = "token", length_from: str | None = None
) -> datasets.Dataset:
    """
    Load the rows of a file and encode them by `encode`. Drop the examples with more than `max_length` tokens. Raise
    `ValueError` if columns are missing, if a row is invalid, if an answer has no `unit` (after the marker
    `length_from`, if the answer has it), or if no example is left.
    """
    rows = row_files.load_rows(path)
    columns = rows.column_names
    if "messages" not in columns and not {"prompt", "completion"} <= {*columns}:
        raise ValueError(
            f"{path} must have the columns prompt and completion, or messages, to train a causal model, got "
            f"{', '.join(columns)}; rename them"
        )

    def numbered(batch, indices):
        row = {name: values[0] for name, values in batch.items()}
        try:
            answers = encode(row, tokenizer)
            for answer in answers if unit != "token" else []:
                ids = [token for token in answer["labels"] if token != -100]
                text = tokenizer.decode(ids, skip_special_tokens=True)
                if count_units(text.rpartition(length_from)[2] if length_from else text, unit) == 0:
                    raise ValueError(f"the answer has no {plural(unit)}, got {text!r}; correct or remove the row")
        except Exception as error:  # a chat template may raise any exception
            raise ValueError(f"row {indices[0] + 1} of {path}: {error}") from error
        return {name: [answer[name] for answer in answers] for name in ("input_ids", "labels")}

    one = {"batched": True, "batch_size": 1}  # one row may give several examples
    rows = rows.map(numbered, **one, with_indices=True, remove_columns=columns)
    kept = rows.filter(lambda row: len(row["input_ids"]) <= max_length)
    logger.info("%s: %s of %s rows have at most %d tokens", path, f"{len(kept):,}", f"{len(rows):,}", max_length)
    if len(kept) == 0:
        raise ValueError(
            f"no row of {path} has at most max_length={max_length} tokens, the shortest has "
            f"{min(map(len, rows['input_ids']), default=0)}; give a larger max_length"
        )
    return kept


def _labelled(prompt: list[int], answer: list[int]) -> dict[str, list[int]]:
    return {"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer}


def _encode_answer(messages: list[dict], tokenizer) -> dict[str, list[int]]:
    """Encode a chat whose last message is an answer, as ids and labels. Earlier answers are part of the prompt."""
    template = tokenizer.get_chat_template()  # this raises an error if there is no template
    if "generation %}" not in template and "generation -%}" not in template:
        return _by_difference(messages, tokenizer)
    ids = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    mask = list(ids["assistant_masks"])
    if not any(mask):
        raise ValueError("the chat template marks no text of the assistant; put {% generation %} around its text")
    end = len(mask) - mask[::-1].index(1)
    start = max((i + 1 for i in range(end) if not mask[i]), default=0)
    return _labelled(ids["input_ids"][:start], ids["input_ids"][start:end])


def _by_difference(messages: list[dict], tokenizer) -> dict[str, list[int]]:
    """
    Encode a chat whose template does not mark answers. The answer is the part of the rendered chat behind the rendered
    prompt, up to and including the special token that ends the message.
    """
    prompt = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
    whole, text = tokenizer.apply_chat_template(messages, tokenize=False), messages[-1]["content"]
    behind = whole[len(prompt) :] if whole.startswith(prompt) else ""
    before, found, rest = behind.partition(text.strip()) if isinstance(text, str) and text.strip() else ("", "", "")
    ends = [token for token in tokenizer.all_special_tokens if rest.lstrip().startswith(token)]
    if not found or before.strip() or not ends:
        raise ValueError(
            "the chat template does not mark the assistant's turns, and does not write them as the prompt, the text "
            "and a token that ends it; set a template with {% generation %} ... {% endgeneration %}, or give columns "
            "prompt and completion"
        )
    end = max(ends, key=len)
    answer = before + found + rest[: rest.index(end) + len(end)]
    return _labelled(*(tokenizer(part, add_special_tokens=False)["input_ids"] for part in (prompt, answer)))
