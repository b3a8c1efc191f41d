"""Avoid runs of punctuation marks, such as "....,,", in an output that must reach a length."""

import torch
from transformers.generation import LogitsProcessor

from ..unit_vocabulary import entries_of


MARKS = ".,;:!?…。，、；：！？"
PAIRS = (".,", ".;", ".:", ".?", ".!", "?!", "!?", "？！", "！？")  # marks that may follow each other: "etc., he"
_SPACES = "▁ĠĊ# "  # how tokenizers write white space, or mark a piece inside a word
_AVOIDED = 1e4  # nats; finite, so that marks stay possible if no other entry fits


class MarkRunsLogitsProcessor(LogitsProcessor):
    """
    A logits processor that avoids runs of punctuation marks. It lowers the score of each entry that begins with a
    mark, if the text so far ends with a mark and the two marks together are not in `PAIRS`. An ellipsis is still
    possible if it is a single entry.

    Without this processor, a model that does not plan would fill an `"exact"` length with marks, because marks are the
    most likely entries where the model would end the text.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        entries (`int`): Number of entries in the model's vocabulary.
        device (`torch.device`, *optional*): Device of the scores.
    """

    def __init__(self, tokenizer, entries: int, device: torch.device | None = None):
        pieces = tokenizer.convert_ids_to_tokens(list(range(entries_of(tokenizer)[0])))
        texts = [(piece or "").strip(_SPACES) for piece in pieces] + [""] * (entries - len(pieces))
        # (V,) each: 1 + the index of the mark that an entry begins or ends with; 0 if there is none
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
        """Return new scores `(rows, vocab_size)`, which are lower for entries that would make a run of marks."""
        run = self.run[self.last[input_ids[:, -1]]][:, self.first]  # (rows, V)
        return torch.where(run, scores - _AVOIDED, scores)
