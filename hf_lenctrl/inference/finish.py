"""End an output after a whole sentence or a whole word, if the model does not plan the length of the output."""

import math
from collections.abc import Callable

import torch
from transformers.generation import BaseStreamer, LogitsProcessor

from ..length_rules import rules_of
from ..length_units import COST, RunningCount, Unit, UnitTable
from ..lengths import check_name
from .sentences import finished, goes_on, last_sentence_end, pieces_of, settled


FINISHES = ("sentence", "word")
# If the model's first choice does not fit, a punctuation mark that ends the sentence is chosen if its probability is
# at least this share (a logarithm) of the first choice's.
_MARK_SHARE = math.log(0.05)


def check_finish(finish: str, constraint: str | None, unit: str | Unit) -> None:
    """Raise `ValueError` if `finish` is unknown, or if the constraint is not `"max"`, or if the unit is `"cost"`."""
    check_name("finish", finish, FINISHES)
    if constraint != "max":
        raise ValueError(f"finish={finish!r} needs length_constraint='max', got {constraint!r}")
    if unit == COST:
        raise ValueError("a model that was saved with a cost cannot count a text; leave finish out")


class FinishLogitsProcessor(LogitsProcessor):
    """
    A logits processor for `length_constraint="max"`. It ends the output if the model's first choice (the most likely
    vocabulary entry) is too long. Without this processor, less likely entries that still fit would fill the rest of
    the output.

    With `finish="sentence"`, the processor allows an entry only if a punctuation mark that ends the sentence still
    fits after it, or if the entry is such a mark. When the output must end, the processor allows only EOS and
    such marks that fit. EOS then gets at least 5 % of the probability of the first choice. So greedy search adds a
    mark only if the mark is then more likely than EOS. Each call of `generate` needs its own processor.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        unit_table (`UnitTable`): Unit table of the length.
        length (`torch.LongTensor` of shape `(batch_size,)`): The maximum lengths in units.
        finish (`str`): `"sentence"` or `"word"`.
        eos_token_id (`int` or `list[int]`): Ids that end an output.
        prompt_length (`int`, *optional*, defaults to 0): Number of ids in each row before the output.
        thoughts (`Thoughts`, *optional*): If given, only the answer after the thoughts (reasoning text) counts.
    """

    def __init__(
        self, tokenizer, unit_table: UnitTable, length, finish: str, *, eos_token_id, prompt_length=0, thoughts=None
    ):
        self.finish, self.prompt_length, self.thoughts = finish, prompt_length, thoughts
        unit_table = unit_table if thoughts is None else thoughts.table
        device, entries = unit_table.weights.device, unit_table.weights.shape[1]
        self.pieces = pieces_of(tokenizer, entries)
        stripped = [(piece or "").strip() for piece in self.pieces]
        ends = [bool(text) and last_sentence_end(text) == len(text) for text in stripped]
        self.ends = torch.tensor(ends, device=device) & (finish == "sentence")  # (V,)
        self.eos = torch.as_tensor(eos_token_id, device=device).reshape(-1)
        mark = 0
        if bool(self.ends.any()):
            costs = unit_table.weights[min(1, unit_table.states - 1)][self.ends]
            mark = int(costs[costs >= 0].min())
        self.length, self.room = length, (length - mark).clamp(min=1)  # (B,) each
        self.running = RunningCount(unit_table if thoughts is None else thoughts, prompt_length)
        self.rules = rules_of(unit_table, tuple(self.eos.tolist()), "max")
        # (example, ids of an output that had to end) -> whether a word ends after these ids; two examples may have the
        # same ids
        self.cut: dict[tuple[int, tuple[int, ...]], bool] = {}

    def __call__(self, input_ids, scores):
        """Return new scores `(rows, vocab_size)` with `-inf` for forbidden entries. `input_ids` include the prompt."""
        copies = len(scores) // len(self.length)
        count, state = self.running(input_ids)  # (rows,) each
        begun = None if self.thoughts is None else state >= 0  # (rows,) whether an answer has begun
        state = state.clamp(min=0)
        fits, leaves_room = (
            self.rules.fits(state, length.repeat_interleave(copies) - count) == 0
            for length in (self.length, self.room)
        )  # (rows, V) each
        fits[:, self.eos] |= ~fits.any(dim=1, keepdim=True)
        allowed = fits & (leaves_room | self.ends)
        allowed[:, self.eos] = fits[:, self.eos]
        if input_ids.shape[1] - self.prompt_length <= 2:  # allow a language code, as the constraint does
            allowed[:, self.rules.silent] |= (count == 0).unsqueeze(1)
        if begun is not None:
            fits, allowed = fits | ~begun.unsqueeze(1), allowed | ~begun.unsqueeze(1)
        first = scores.argmax(dim=-1, keepdim=True)  # (rows, 1)
        pressed = ~allowed.gather(1, first).squeeze(1) & fits[:, self.eos].any(dim=1)  # (rows,)
        if bool(pressed.any()):
            for row in pressed.nonzero().squeeze(1).tolist():
                ids = tuple(input_ids[row, self.prompt_length :].tolist())
                self.cut[row // copies, ids] = self._at_word(ids, int(first[row, 0]))
            ending = fits & self.ends
            allowed = torch.where(pressed.unsqueeze(1), ending, allowed)
            allowed[:, self.eos] = fits[:, self.eos]
            share = scores.gather(1, first) + _MARK_SHARE  # (rows, 1)
            least = torch.where(pressed.unsqueeze(1), share, -math.inf)
            scores = scores.clone()
            scores[:, self.eos] = torch.maximum(scores[:, self.eos], least)
        return scores.masked_fill(~allowed, -math.inf)

    def _at_word(self, ids: tuple[int, ...], following: int) -> bool:
        """Return whether the output `ids` ends with a complete word, if the model would add `following` next."""
        last = next((self.pieces[i] for i in reversed(ids) if self.pieces[i] != ""), None)
        return not goes_on(self.pieces[following]) or (last or "")[-1:].isspace()

    def ending(self, example: int, ids: list[int], text: str, enough: Callable[[str], bool]) -> tuple[str, str]:
        """
        Shorten the text of an output if the length limit cut it. Return two values: the text, and where it ends
        (`"model"` if the model ended the text, otherwise see `finished`).

        `example` is the index of the output's source in the batch. `ids`, without the prompt, decode to `text`.
        `enough` says whether a shorter text is long enough.
        """
        eos = self.eos.tolist()
        end = next((k for k, i in enumerate(ids) if i in eos), len(ids))
        at_word = self.cut.get((example, tuple(ids[:end])))
        return (text, "model") if at_word is None else finished(text, self.finish, enough, at_word=at_word)


class HeldStreamer(BaseStreamer):
    """
    A streamer that passes the tokens of one output to another streamer, but with a delay. Each token waits until the
    function `finished`, which shortens cut texts, can no longer remove the token. So the streamed text is the text
    that the pipeline returns.

    Args:
        streamer (`BaseStreamer`): The streamer that receives the tokens.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer, which decodes the tokens.
        process (`FinishLogitsProcessor`): The processor of the same call of `generate`.
        enough (`Callable[[str], bool]`): A function that says whether a shortened text is long enough, see `finished`.
    """

    def __init__(self, streamer, tokenizer, process: FinishLogitsProcessor, enough: Callable[[str], bool]):
        self.streamer, self.tokenizer, self.process, self.enough = streamer, tokenizer, process, enough
        self.ids: list[int] | None = None  # ids of the output
        self.sent = 0

    def put(self, value):
        """
        Receive new token ids, `(1, count)` or `(count,)`, and pass on the tokens that can no longer be removed. In the
        first call, `value` is the prompt or the decoder's start token, which is passed on at once.
        """
        new = value.reshape(-1).tolist()
        if self.ids is None:
            self.ids = new[self.process.prompt_length :]
            self.sent = len(self.ids)
            self.streamer.put(value)
            return
        self.ids += new
        text = self._decode(self.ids)
        self._send(text[: settled(text, self.process.finish, self.enough)])

    def end(self):
        """Pass on the rest of the finished text, and end the stream."""
        ids = self.ids or []
        whole = self._decode(ids)
        text, _ = self.process.ending(0, ids, whole, self.enough)
        if text == whole:
            self.streamer.put(torch.tensor(ids[self.sent :]))
        else:
            self._send(text)
            rest = text[len(self._decode(ids[: self.sent])) :]
            if rest:  # the text ends inside an entry
                self.streamer.put(torch.tensor(self._entries(rest)))
        self.streamer.end()

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _send(self, text: str) -> None:
        """Pass on the waiting tokens, as long as their decoded text is a prefix of `text`."""
        assert self.ids is not None
        first = self.sent
        while self.sent < len(self.ids) and text.startswith(self._decode(self.ids[: self.sent + 1])):
            self.sent += 1
        if self.sent > first:
            self.streamer.put(torch.tensor(self.ids[first : self.sent]))

    def _entries(self, text: str) -> list[int]:
        """Split `text` into the longest vocabulary entries that match, and return their ids. Skip other characters."""
        found = []
        while text:
            fits = [i for i, piece in enumerate(self.process.pieces) if piece and text.startswith(piece)]
            found += [max(fits, key=lambda i: len(self.process.pieces[i] or ""))] if fits else []
            text = text[len(self.process.pieces[found[-1]] or "") if fits else 1 :]
        return found
