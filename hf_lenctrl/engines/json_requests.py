"""
Keep the length limits of JSON strings in requests to an engine that already masks logits with a grammar. The module
itself needs no engine.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .json_places import Places, Reader
from .json_strings import StringLengths, forbid


JSON = "json_strings"  # name of the argument of a request
CALL = (
    f'pass extra_args={{"{JSON}": schema}} and StructuredOutputsParams(json=Places(schema).plain); '
    "from hf_lenctrl.engines.json_places import Places"
)


def schema_of(extra_args: Any, structured_outputs: Any) -> dict[str, Any]:
    """
    Return the JSON Schema with length limits that a request passes as the argument `json_strings`.

    Args:
        extra_args (`dict`): The arguments of the request. The schema is a dict, or a text of JSON.
        structured_outputs (`StructuredOutputsParams`, *optional*): The attribute `json` is the schema that the engine
            follows.

    Raises:
        `ValueError`: if the length limits cannot be kept, see `Places`; or if the schema of the engine is not
            `Places(schema).plain`, the schema without its length limits. With any other schema, the engine could mask
            the model's first choice, or the output might not be JSON.
    """
    given = [extra_args[JSON], getattr(structured_outputs, "json", None)]
    try:
        schema, grammar = [json.loads(each) if isinstance(each, str) else each for each in given]
        plain = Places(schema).plain
    except (TypeError, ValueError) as error:
        raise ValueError(f"{JSON}: {error}") from error
    if grammar != plain:
        raise ValueError(f"{JSON} needs a structured output of the schema without lengths, got {grammar!r}; {CALL}")
    return schema


class Text(NamedTuple):
    """
    An output so far: its number of tokens, and the reader of its JSON. The reader is `None` if the JSON is invalid (as
    in a rejected draft).
    """

    tokens: int
    reader: Reader | None


class JsonRequest:
    """
    The length limits of the strings in the output of a request. A `JsonRequest` reads the output, and masks a row of
    logits after the grammar has masked the row.
    """

    def __init__(self, schema: dict[str, Any], tokenizer):
        self.lengths = StringLengths(schema, tokenizer)

    def start(self, prompt: Sequence[int] | None = None) -> Text:
        """Return the `Text` of an empty output. The prompt is ignored."""
        return Text(0, Reader(self.lengths.places))

    def after(self, text: Text, tokens: Sequence[int]) -> Text:
        """
        Return the `Text` of an output after more tokens. `text` is the output before these tokens, and is not changed.
        """
        data = self.lengths.vocabulary.data
        if text.reader is None or any(not 0 <= token < len(data) for token in tokens):
            return Text(text.tokens + len(tokens), None)
        reader = text.reader.copy()
        try:
            reader.read(b"".join(data[token] for token in tokens))
        except (ValueError, IndexError):
            return Text(text.tokens + len(tokens), None)
        return Text(text.tokens + len(tokens), reader)

    def mask(self, logits: torch.Tensor, text: Text) -> None:
        """
        Mask, in place, the tokens that the length limits forbid. `logits (vocab_size,)` must already have the mask of
        the grammar, and `text` is the output so far. If the JSON is invalid, mask nothing.
        """
        if text.reader is not None:
            vocabulary = self.lengths.vocabulary
            grammar = vocabulary.bits((logits[: vocabulary.size] > -torch.inf).cpu().numpy())
            forbid(self.lengths.allowed(text.reader, grammar, logits)[0], logits)
