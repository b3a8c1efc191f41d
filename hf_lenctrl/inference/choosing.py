"""The choice among the outputs of a text: by the model that wrote them, by another, or by words of the source."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from ..length_units import UnitTable
from ..loading import auto_class, tokenizer_of
from .ranking import log_probabilities, rerank


_AT_ONCE = 16  # outputs: their logits take more memory than a step of generation


class Chooser:
    """The models that rank candidates, each loaded once; `device` is where they run."""

    def __init__(self, device: torch.device):
        self.device = device
        self.loaded: dict[str, tuple] = {}

    def order(self, source: str, candidates: Sequence[str], ranker: Any, scores: Sequence[float] | None) -> list[int]:
        """
        The candidates of a source, the best first.

        Args:
            source (`str`): What they were written for.
            candidates (`Sequence[str]`): Texts.
            ranker (`str` or `tuple`, *optional*): A plain model, see `rerank_model` of the pipeline; by default the
                words of the source rank.
            scores (`Sequence[float]`, *optional*): For candidates of several lengths, to break ties among the words
                of the source; higher is better.
        """
        if ranker is None:
            return rerank(source, candidates, scores)
        model, tokenizer = self._load(ranker) if isinstance(ranker, str) else ranker
        ranks = log_probabilities(model, tokenizer, [source] * len(candidates), candidates)
        return sorted(range(len(candidates)), key=lambda k: -ranks[k])

    def _load(self, name: str) -> tuple:
        if name not in self.loaded:
            model = auto_class(name).from_pretrained(name).eval().to(self.device)
            self.loaded[name] = model, tokenizer_of(name)
        return self.loaded[name]


def _each(value, change):
    """A tensor, or each of an encoder's outputs, changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    return type(value)(**{name: change(tensor) for name, tensor in value.items()})


@torch.no_grad()
def token_log_probabilities(
    model, table: UnitTable, ids: torch.Tensor, inputs: dict, prompt: int, *, controlled: bool
) -> list[float]:
    """
    Mean log-probability of a token of each output, EOS among them, under the model that wrote it.

    A length-controlled model gets the output's own length, not the planned one. It expects EOS there and nowhere else,
    so that the means of texts of different lengths can be compared.

    Args:
        model (`PreTrainedModel`): Of the outputs.
        table (`UnitTable`): Of the model's vocabulary.
        ids (`torch.LongTensor` of shape `(outputs, sequence_length)`): As `generate` gives them.
        inputs (`dict`): What it was given for each row; the outputs of a row follow each other.
        prompt (`int`): First positions of a causal model's `ids`, 0 for other models.
        controlled (`bool`): Whether the model is given the length.

    Returns:
        `list[float]`: one for each output; higher is better.
    """
    given = {name: value for name, value in inputs.items() if value is not None}
    copies, eos = len(ids) // len(inputs["attention_mask"]), model.generation_config.eos_token_id
    eos = torch.as_tensor(model.config.eos_token_id if eos is None else eos, device=ids.device).reshape(-1)
    targets = ids[:, 1:]  # (outputs, T - 1)
    written = torch.arange(1, ids.shape[1], device=ids.device) >= prompt
    ends = torch.isin(targets, eos) & written
    written = written & (ends.cumsum(dim=-1) - ends.int() == 0)  # up to the first EOS
    given = {name: _each(value, lambda x: x.repeat_interleave(copies, dim=0)) for name, value in given.items()}
    if controlled:
        given["length"] = table.count(ids[:, prompt:]).clamp(min=1)
    if prompt:
        mask = torch.nn.functional.pad(given["attention_mask"], (0, ids.shape[1] - prompt), value=1)
        given |= {"input_ids": ids, "attention_mask": mask}
        if "position_ids" in inspect.signature(model.forward).parameters:  # the prompts are padded on the left
            given["position_ids"] = (mask.cumsum(dim=-1) - 1).clamp(min=0)
        if controlled:
            progress = torch.nn.functional.pad(table.progress(ids[:, prompt:]), (1, 0))  # before each of the answer
            given["progress"] = torch.nn.functional.pad(progress, (prompt - 1, 0), value=-1)
    else:
        given["decoder_input_ids"] = ids[:, :-1]
    means: list[float] = []
    for start in range(0, len(ids), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        own = {name: _each(value, lambda x, part=part: x[part]) for name, value in given.items()}
        logits = model(**own).logits[:, : targets.shape[1]]  # (outputs, T - 1, V)
        chosen = logits.float().log_softmax(dim=-1).gather(-1, targets[part].unsqueeze(-1)).squeeze(-1)
        kept = written[part]
        means += ((chosen * kept).sum(dim=-1) / kept.sum(dim=-1).clamp(min=1)).tolist()
    return means
