"""Several checkpoints as one model, for the row of the ensemble in Takase & Okazaki 2019, Table 3."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from hf_lenctrl.cache import CACHE, takes_cache
from hf_lenctrl.generation import LengthControlledGeneration
from hf_lenctrl.length_units import UnitTable


class _Encoders(nn.Module):
    """Several encoders as one: their states are concatenated in the last dimension."""

    main_input_name = "input_ids"

    def __init__(self, encoders):
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, input_ids=None, attention_mask=None, length=None, **kwargs):
        states = [encoder(input_ids, attention_mask=attention_mask, length=length)[0] for encoder in self.encoders]
        return BaseModelOutput(last_hidden_state=torch.cat(states, dim=-1))  # (B, S, sum of widths)


class _Caches(EncoderDecoderCache):
    """The cache of the first model, which also holds and reorders the caches of the other models."""

    def __init__(self, caches: list[EncoderDecoderCache]):
        super().__init__(caches[0].self_attention_cache, caches[0].cross_attention_cache)
        self.others = caches[1:]

    def reorder_cache(self, beam_idx):
        super().reorder_cache(beam_idx)
        for cache in self.others:
            cache.reorder_cache(beam_idx)


class LengthControlEnsemble(LengthControlledGeneration, PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """
    Several checkpoints with the same tokenizer as one model. Each step uses the mean of their probabilities; each
    checkpoint has its own encoder and cache. Generation: `ensemble.generate(**inputs, length=75, num_beams=5)`.

    Args:
        models (`Sequence[PreTrainedModel]`): Length-controlled models, or plain ones of the classes here
            (`length_encoding="none"`) among them.

    Raises:
        `ValueError`: for a causal model or a stock class, or when they differ in vocabulary, special tokens or unit.
    """

    main_input_name = "input_ids"
    _supports_sdpa = True

    def __init__(self, models: Sequence[Any]):
        unit = next((m.config.length_unit for m in models if hasattr(m.config, "length_unit")), "character")
        for model in models:
            name = type(model).__name__
            if not model.config.is_encoder_decoder:
                raise ValueError(f"an ensemble takes models with an encoder, got a {name}; generate with one of them")
            if not hasattr(model.config, "length_encoding"):
                fields = f"length_encoding='none', absolute_positions=True, length_unit={unit!r}"
                load = f"LenCtrl{name}.from_pretrained({model.name_or_path!r}, {fields})"
                raise ValueError(f"an ensemble takes this package's models, got a {name}; load it with {load}")
        # The configuration of this model holds for all. It says whether encoders get the length, and the default one.
        lead = max(models, key=lambda m: (m.config.encoder_length_embedding, m.config.length_controlled))
        for model in models:
            for name in ("eos_token_id", "pad_token_id", "decoder_start_token_id", "length_unit"):
                value, other = getattr(lead.config, name), getattr(model.config, name)
                if value != other:
                    raise ValueError(f"the models of an ensemble must agree in {name}, got {value!r} and {other!r}")
            if not torch.equal(model.unit_table.weights.cpu(), lead.unit_table.weights.cpu()):
                raise ValueError("the models of an ensemble must have one vocabulary, but their unit tables differ")
        super().__init__(lead.config)
        models = [lead, *(model for model in models if model is not lead)]
        self.models: Any = nn.ModuleList(models)
        self.generation_config = lead.generation_config
        self.encoders = _Encoders([model.get_encoder() for model in models])
        self.eval()

    @property
    def unit_table(self) -> UnitTable:
        """Unit table of the first model; all models have the same."""
        return self.models[0].unit_table

    def get_encoder(self, modality=None):
        """Return all encoders as one module, see `forward`."""
        return self.encoders

    @takes_cache
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        decoder_input_ids=None,
        decoder_attention_mask=None,
        encoder_outputs=None,
        cache=None,
        length=None,
        progress=None,
        **kwargs,
    ):
        """Return the log of the mean probability as logits, `(batch_size, sequence_length, vocab_size)`."""
        if encoder_outputs is None:
            encoder_outputs = self.encoders(input_ids, attention_mask=attention_mask, length=length)
        widths = [model.config.d_model for model in self.models]
        caches = [None] * len(widths) if cache is None else [cache, *cache.others]
        total = None
        for model, states, own in zip(self.models, encoder_outputs[0].split(widths, dim=-1), caches, strict=True):
            given = {"length": length} if model.config.length_controlled else {}
            given |= {"progress": progress} if model.config.counts_progress else {}
            logits = model(
                attention_mask=attention_mask,
                decoder_input_ids=decoder_input_ids,
                decoder_attention_mask=decoder_attention_mask,
                encoder_outputs=BaseModelOutput(last_hidden_state=states),
                use_cache=own is not None,
                **{CACHE: own},
                **given,
            ).logits
            log_probabilities = logits.float().log_softmax(dim=-1)  # (B, T, V)
            total = log_probabilities if total is None else torch.logaddexp(total, log_probabilities)
        return Seq2SeqLMOutput(logits=total - math.log(len(self.models)), **{CACHE: cache})

    def get_output_embeddings(self):
        """Return the output embeddings of the first model; all models have the same vocabulary."""
        return self.models[0].get_output_embeddings()

    @property
    def _positions(self) -> int | None:
        return min((model._positions for model in self.models if model._positions is not None), default=None)

    def _reorder_cache(self, cache, beam_idx):
        for model, own in zip(self.models, [cache, *cache.others], strict=True):
            model._reorder_cache(own, beam_idx)
        return cache

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        """Prepare the inputs with the method of the first model that counts progress."""
        counts = next((model for model in self.models if model.config.counts_progress), self.models[0])
        return counts.prepare_inputs_for_generation(input_ids, **kwargs)

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs):
        if generation_config.use_cache is not False:
            configs = [model.config for model in self.models]
            caches = [EncoderDecoderCache(DynamicCache(config=c), DynamicCache(config=c)) for c in configs]
            model_kwargs[CACHE] = _Caches(caches)
