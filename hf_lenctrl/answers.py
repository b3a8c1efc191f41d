"""Functions for causal models that compute the progress: the number of units of the answer so far."""

from typing import Any

import torch

from .length_units import UnitTable


def first_progress(columns: int, rows: int, device, mask: torch.Tensor | None = None) -> torch.Tensor:
    """
    Return the progress (units of the answer so far) at each position of the prompts, `(rows, columns)`. The last token
    of a prompt that is not padding has 0, because it predicts the first token of the answer. All other positions have
    -1. `mask (rows, columns)` is 0 at padding; without a mask, there is no padding.
    """
    position = torch.arange(columns, device=device).expand(rows, -1)  # (rows, columns)
    last = position if mask is None else position * (mask != 0)
    return (position == last.amax(dim=1, keepdim=True)).long() - 1


def answer_progress(
    table: UnitTable, labels: torch.Tensor, eos: list[int], least: int = 1, thoughts: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Return the progress and the length of the answers in a batch. The answer of a row consists of the labels that are
    not -100. EOS and the labels after EOS belong to the answer, but they add no units. The first label of a row
    belongs to the prompt, because no position predicts this label.

    Args:
        table (`UnitTable`): The unit table of the labels' vocabulary.
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`): Labels, one for each input id, not
            shifted.
        eos (`list[int]`): Ids that end an answer.
        least (`int`, *optional*, defaults to 1): Minimum number of units in an answer.
        thoughts (`Thoughts`, *optional*): Counter for answers after thoughts (reasoning text). If a row has the marker
            that ends the thoughts, only the text after the marker is the answer.

    Returns:
        Two `torch.LongTensor`. (1) The progress, `(batch_size, sequence_length)`. At each token of the answer, this is
        the number of units of the answer up to and including the token. It is 0 at the token before the answer, and -1
        at all other tokens, including thoughts. (2) The length of each answer in units, `(batch_size,)`; 1 if a row
        has no answer.

    Raises:
        `ValueError`: if an answer has fewer than `least` units, or if a row has several answers, with labels of -100
            between them.
    """
    column = torch.arange(labels.shape[1], device=labels.device).unsqueeze(0)  # (1, T)
    answer = (labels != -100) & (column > 0)  # (B, T)
    many, start = answer.sum(dim=1, keepdim=True), answer.long().argmax(dim=1, keepdim=True)  # (B, 1) each
    has_answer = many > 0  # (B, 1)
    # Move every answer to the first column, count its units there, and move the counts back.
    ids = labels.gather(1, (start + column).clamp(max=labels.shape[1] - 1))  # (B, T)
    ids = ids.masked_fill((column >= many) | (ids < 0), 0)
    if eos:
        ended = torch.isin(ids, torch.tensor(eos, device=ids.device)).cumsum(1) > 0
        ids = torch.where(ended, eos[0], ids)  # a chat template may add a line end after EOS, which is not text
    written = table.progress(ids.to(table.weights.device)).to(ids.device)  # (B, T)
    first = torch.zeros_like(many)  # (B, 1), progress before the answer
    if thoughts is not None:
        behind = thoughts.progress(ids)  # (B, T + 1)
        thinks = behind.gather(1, many) >= 0  # (B, 1)
        written, first = torch.where(thinks, behind[:, 1:], written), torch.where(thinks, behind[:, :1], first)
    length = torch.where(has_answer, written.gather(1, (many - 1).clamp(min=0)), 1)  # (B, 1)
    progress = torch.where(answer, written.gather(1, (column - start).clamp(min=0)), -1)  # (B, T)
    progress, length = torch.where(has_answer & (column == start - 1), first, progress), length.squeeze(1)
    if torch.compiler.is_compiling():
        return progress, length
    answers = (answer[:, 1:] & ~answer[:, :-1]).sum(dim=1)  # (B,)
    if bool((answers > 1).any()):
        raise ValueError(
            f"a row holds one answer, labels that are not -100, got {answers.tolist()}; make a row for each answer, "
            "without packing"
        )
    if bool((length < least).any()):
        raise ValueError(f"every answer must hold at least one {table.unit}, got {length.tolist()}; drop the others")
    return progress, length
