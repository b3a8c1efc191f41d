"""Classifier-free guidance towards the length, by comparison with the same model without a length."""

from typing import Any

import torch
from transformers.generation import LogitsProcessor

from .cache import CACHE, read_once
from .length_units import places_among


PLAUSIBLE = 4.0  # nats; guidance never raises the score of an entry that is this far below the best entry


class LengthGuidanceLogitsProcessor(LogitsProcessor):
    """
    Processor that guides a model with `length_optional` towards the length, by classifier-free guidance (Ho & Salimans
    2022; Sanchez et al. 2023).

    The guided scores are `log p0 + scale * (log p - log p0)`, where `p` is the model's distribution with the length,
    and `p0` is its distribution without a length. Guidance helps a model that learned little about the length, and
    takes about twice the time. If `log p` of an entry is more than 4 nats (`PLAUSIBLE`) below `log p` of the best
    entry, the guided score of the entry is at most `log p`, as in contrastive decoding (Li et al. 2023).

    Args:
        model (`PreTrainedModel`): The length-controlled model.
        scale (`float`): Strength of the guidance. 1 means no guidance; 1.5 to 3 are useful values.
        batch_size (`int`): Number of texts; the beams or samples of a text are neighbouring rows.
        inputs (`dict`): Arguments of `generate`: `attention_mask (batch_size, input_length)`, if given, and
            `encoder_outputs`, if the model has an encoder.
    """

    def __init__(self, model: Any, scale: float, batch_size: int, inputs: dict[str, Any]):
        self.model, self.scale, self.batch_size = model, scale, batch_size
        self.mask, encoded = inputs.get("attention_mask"), inputs.get("encoder_outputs")
        self.states = None if encoded is None else encoded[0]  # `generate` changes `encoder_outputs` in place
        self.ids: torch.Tensor | None = None
        self.cache: Any = None

    def __call__(self, input_ids, scores):
        """
        Return the guided log-probabilities of the next token, `(rows, vocab_size)`.
        `input_ids (rows, sequence_length)` are the ids so far, and `scores (rows, vocab_size)` are the model's scores
        with the length.
        """
        own = scores.float().log_softmax(dim=-1)
        without = self._without_length(input_ids).float().log_softmax(dim=-1)  # (rows, V)
        guided = without + self.scale * (own - without)
        odd = own < own.amax(dim=-1, keepdim=True) - PLAUSIBLE
        return torch.where(odd, torch.minimum(guided, own), guided).log_softmax(dim=-1)

    def _without_length(self, ids: torch.Tensor) -> torch.Tensor:
        """
        Return the logits of the next token without a length. If the last call's cache fits, read only the last ids.
        """
        origin = self._origin(ids)
        copies = len(ids) // self.batch_size
        mask = torch.ones_like(ids)
        if self.mask is not None and not self.model.config.is_encoder_decoder:
            mask[:, : self.mask.shape[1]] = self.mask.repeat_interleave(copies, dim=0)
        if origin is not None:
            self.cache.reorder_cache(origin)
        elif not self.model.config.is_encoder_decoder:
            self.cache = read_once(self.model, ids, mask)
        else:
            self.cache = None
        begin = 0 if self.cache is None else ids.shape[1] - 1
        options: dict[str, Any] = {CACHE: self.cache, "use_cache": True}
        if self.model.config.is_encoder_decoder:
            if self.mask is not None:
                options["attention_mask"] = self.mask.repeat_interleave(copies, dim=0)
            assert self.states is not None
            states = self.states.repeat_interleave(copies, dim=0)
            options |= {"encoder_outputs": (states,), "decoder_input_ids": ids[:, begin:]}
            none = ids.new_zeros(ids.shape[0], ids.shape[1] - begin)
            outputs = self.model(**options, length=none[:, 0], progress=none)
        else:
            # the prompt is padded on the left
            places = (mask.cumsum(dim=1) - 1).clamp(min=0)
            options |= {"attention_mask": mask, "position_ids": places[:, begin:], "logits_to_keep": 1}
            outputs = self.model.language_model(input_ids=ids[:, begin:], **options)
        self.ids, self.cache = ids, getattr(outputs, CACHE, None)
        return outputs.logits[:, -1]

    def _origin(self, ids: torch.Tensor) -> torch.Tensor | None:
        """
        Return the index that each row had in the last call, found by its ids, because beam search reorders rows.
        Return `None` if a row was not there, or if the cache cannot be reordered.
        """
        last = self.ids
        if last is None or not hasattr(self.cache, "reorder_cache") or ids.shape != (len(last), last.shape[1] + 1):
            return None
        copies = len(ids) // self.batch_size
        text = torch.arange(self.batch_size, device=ids.device).repeat_interleave(copies).unsqueeze(1)  # (rows, 1)
        return places_among(torch.cat([text, last], dim=1), torch.cat([text, ids[:, :-1]], dim=1))
