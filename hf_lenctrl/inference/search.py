"""Search by length: a beam search in which a hypothesis competes only with hypotheses of the same length."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers.generation import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.utils import ModelOutput

from ..bounded_generation import eos_of, rows_of
from ..length_constraint import LengthConstraintLogitsProcessor
from ..length_units import UnitTable


_ON_ROWS = (  # processors that know the example of a row by the row's number
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)


@dataclass(eq=False)
class SearchByLength:
    """
    A beam search for `generate(custom_generate=...)` in which a hypothesis competes only with hypotheses of the same
    number of units, even if their numbers of tokens differ.

    A usual beam search compares hypotheses with unequal numbers of units left. This search has two groups for each
    number of units: the best `beams` hypotheses whose last entry is one of the `marks`, and the best `beams` others.
    The groups are separate, so that hypotheses that stop inside a sentence, which can have higher scores, do not
    displace the hypotheses that end a sentence. One search produces texts of every length.

    Transformers gives such a search no tokenizer, so pass `stopping_criteria=[StopStringCriteria(tokenizer, "end")]`
    in the place of `stop_strings`.

    Args:
        table (`UnitTable`): Unit table, which counts the units of the model's token ids.
        beams (`int`): Maximum number of hypotheses, and of returned texts, in each group.
        marks (`Sequence[int]`, *optional*): Ids of punctuation marks that end a sentence.
        branches (`int`, *optional*, defaults to 8): Number of most likely next entries that the search tries for each
            hypothesis.

    Returns (of `generate`):
        `ModelOutput` with the same number of texts for each example, best first: `sequences` of shape
            `(texts, positions)`, and with the shape `(texts,)`, `sequences_scores` (log-probabilities), `lengths`
            (units) and `marked` (1 if the text ends with a mark). An example with fewer texts repeats its last text.
    """

    table: UnitTable
    beams: int
    marks: Sequence[int] = ()
    branches: int = 8

    def __call__(self, model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs):
        eos, ids = torch.tensor(eos_of(model), device=input_ids.device), input_ids  # (examples, T)
        example = torch.arange(len(ids), device=ids.device)  # (rows,) the example of each hypothesis
        scores = torch.zeros(len(ids), device=ids.device)  # (rows,)
        count, state, mark = (torch.zeros_like(example) for _ in range(3))  # (rows,)
        past = [scores[:0], example[:0], count[:0], mark[:0]]  # the best hypotheses of each group in all steps so far
        marks = torch.tensor(self.marks, dtype=torch.long, device=ids.device)
        # If no hypothesis of an example ends, the example gets an empty text with the score -inf.
        empty = torch.cat([ids, eos[:1].expand(len(ids), 1)], dim=1)
        ended: list[tuple] = [(scores - torch.inf, example, count, mark, list(empty))]
        stopped = torch.zeros_like(example, dtype=torch.bool)  # (rows,) by a stopping criterion such as a stop string
        outputs = model._prefill(ids, generation_config, model_kwargs)
        while True:
            kwargs = {"is_encoder_decoder": model.config.is_encoder_decoder}
            model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs, **kwargs)
            own = outputs.logits[:, -1].float().log_softmax(dim=-1)  # (rows, V)
            for process in logits_processor:
                own = _restricted(process, example)(ids, own)
            ends, token = own[:, eos].max(dim=1)  # (rows,)
            may = ends > -torch.inf
            ends = ends.masked_fill(stopped, 0.0)  # the model did not choose this end
            texts = torch.cat([ids, eos[token].unsqueeze(1)], dim=1)[may]
            ended.append(((scores + ends)[may], example[may], count[may], mark[may], list(texts)))
            own[:, eos] = -torch.inf
            own[stopped] = -torch.inf
            top, entries = own.topk(self.branches, dim=1)  # (rows, branches)
            top += scores.unsqueeze(1)
            writes = self.table.weights[state.unsqueeze(1), entries]
            counts = count.unsqueeze(1) + torch.maximum(writes, ~writes)
            row, branch = (top > -torch.inf).nonzero(as_tuple=True)
            is_mark = torch.isin(entries[row, branch], marks).long()
            found = [top[row, branch], example[row], counts[row, branch], is_mark]
            every = [torch.cat(pair) for pair in zip(past, found, strict=True)]
            best = best_of_each(*every, most=self.beams)
            new, past = best[best >= len(past[0])] - len(past[0]), [each[best] for each in every]
            if not len(new) or ids.shape[1] + 1 >= generation_config.max_length:
                break
            scores, example, count, mark = (each[new] for each in found)
            row, entry = row[new], entries[row[new], branch[new]]
            state = self.table.next_state[state[row], entry].long()
            ids = torch.cat([ids[row], entry.unsqueeze(1)], dim=1)
            stopped = stopping_criteria(ids, None)
            model_kwargs = {name: _select(value, row) for name, value in model_kwargs.items()}
            new_ids = 1 if model_kwargs.get("use_cache") else None  # without a cache the model reads all ids again
            inputs = model.prepare_inputs_for_generation(ids, next_sequence_length=new_ids, **model_kwargs)
            outputs = model(**inputs, return_dict=True)
        pad = model.config.pad_token_id
        return self._result(ended, len(input_ids), int(eos[0]) if pad is None else pad)

    def _result(self, ended: list[tuple], examples: int, pad: int) -> ModelOutput:
        """
        Build the result from the hypotheses that ended. `ended` has a tuple for each step: four tensors
        `(hypotheses,)` (scores, indices of the examples, units, and whether a mark is last), and the ids of each
        hypothesis.
        """
        scores, example, *groups = (torch.cat([each[k] for each in ended]) for k in range(4))
        texts = [text for each in ended for text in each[4]]
        best = best_of_each(scores, example, *groups, most=self.beams)
        best = best[scores[best].argsort(descending=True, stable=True)]
        own = [best[example[best] == k] for k in range(examples)]
        own = [each[: max(1, len(each) - 1)] for each in own]  # drop the last, empty text if there are others
        most = max(map(len, own))
        places = torch.cat([torch.cat([each, each[-1:].expand(most - len(each))]) for each in own])
        sequences = pad_sequence([texts[k] for k in places.tolist()], batch_first=True, padding_value=pad)
        lengths, marked = (group[places] for group in groups)
        return ModelOutput(sequences=sequences, sequences_scores=scores[places], lengths=lengths, marked=marked)


def best_of_each(scores: torch.Tensor, *groups: torch.Tensor, most: int) -> torch.Tensor:
    """
    Return the row indices of the (at most) `most` highest scores of each group, sorted by group, best first. Two rows
    are in the same group if every tensor in `groups` has the same value in both rows. These values are integers from
    0. All tensors have the shape `(rows,)`.

    Example:

    ```python
    >>> import torch
    >>> from hf_lenctrl.inference.search import best_of_each
    >>> best_of_each(torch.tensor([0.1, 0.4, 0.3, 0.2]), torch.tensor([7, 5, 7, 7]), most=2)
    tensor([1, 2, 3])

    ```
    """
    group = torch.zeros_like(groups[0])
    for own in groups:
        group = group * (int(own.max()) + 1 if len(own) else 1) + own
    order = scores.argsort(descending=True, stable=True)
    order = order[group[order].argsort(stable=True)]
    own = group[order].contiguous()
    return order[torch.arange(len(own), device=own.device) - torch.searchsorted(own, own) < most]


def _restricted(process, example: torch.Tensor):
    """
    Adapt a logits processor to rows of hypotheses, and return the processor. `example (rows,)` has the index of the
    example of each row. For a `LengthConstraintLogitsProcessor`, return a copy for these rows, because its lengths
    belong to examples. Return any other processor unchanged. Raise `ValueError` for a processor of transformers that
    needs the rows of `generate`.
    """
    if isinstance(process, _ON_ROWS):
        raise ValueError(
            "a search by length has other rows than the options prefix_allowed_tokens_fn, guidance_scale, "
            "encoder_no_repeat_ngram_size and encoder_repetition_penalty need, got "
            f"{type(process).__name__}; leave the option out"
        )
    return process.of(example) if isinstance(process, LengthConstraintLogitsProcessor) else process


def _select(value: Any, rows: torch.Tensor) -> Any:
    """Select rows in an argument of the model. A cache is changed in place; other values stay as they are."""
    if hasattr(value, "reorder_cache"):
        value.reorder_cache(rows)
    return rows_of(value, rows) if isinstance(value, torch.Tensor | ModelOutput) else value
