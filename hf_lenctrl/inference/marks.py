"""Keep a text that must reach a length from being filled up with marks: "....,,"."""

import torch
from transformers.generation import LogitsProcessor

from ..unit_vocabulary import entries_of


MARKS = ".,;:!?…。，、；：！？"
PAIRS = (".,", ".;", ".:", ".?", ".!", "?!", "!?", "？！", "！？")  # marks that may follow each other: "etc., he"
_SPACES = "▁ĠĊ# "  # how tokenizers write white space, and that a piece continues
_AVOIDED = 1e4  # nats; finite, so that a length that only marks can reach is reached


class MarkRunsLogitsProcessor(LogitsProcessor):
    """
    A logits processor that avoids runs of marks: an entry that begins with a mark, behind one that ends with one, but
    for the `PAIRS`. An ellipsis is possible where it is one entry.

    Without it a model that does not plan fills an `"exact"` length with marks, because where it would end the text
    they are the likeliest entries.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The model's.
        entries (`int`): Entries of the model's vocabulary.
        device (`torch.device`, *optional*): Where the scores are.
    """

    def __init__(self, tokenizer, entries: int, device: torch.device | None = None):
        pieces = tokenizer.convert_ids_to_tokens(list(range(entries_of(tokenizer)[0])))
        texts = [(piece or "").strip(_SPACES) for piece in pieces] + [""] * (entries - len(pieces))
        # the number of the mark that an entry begins or ends with, and 0 for none, (V,) each
        self.first, self.last = (
            torch.tensor([1 + MARKS.find(text[end]) if text else 0 for text in texts[:entries]], device=device)
            for end in (0, -1)
        )
        run = [
            [before != "" and mark != "" and before + mark not in PAIRS for mark in ("", *MARKS)]
            for before in ("", *MARKS)
        ]
        self.run = torch.tensor(run, device=device)  # (marks + 1, marks + 1)

    def __call__(self, input_ids, scores):
        """Return the scores `(rows, vocab_size)`, lower for entries that make a run, for ids `(rows, positions)`."""
        run = self.run[self.last[input_ids[:, -1]]][:, self.first]  # (rows, V)
        return torch.where(run, scores - _AVOIDED, scores)
