"""The shared parts of the baselines: a configuration, an encoder-decoder with `generate`, and a decoder's state."""

from typing import Any, ClassVar, cast

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from hf_lenctrl.cache import CACHE, takes_cache
from hf_lenctrl.configuration_lenctrl import LenCtrlMarianConfig
from hf_lenctrl.generation import LengthControlledGeneration
from hf_lenctrl.length_signal import StoresUnitTable
from hf_lenctrl.length_units import LENGTH_UNITS, UnitTable
from hf_lenctrl.lengths import as_length_tensor, check_constraint, check_name, given_or_default


@strict
class BaselineConfig(LenCtrlMarianConfig):
    """Marian's fields, those of length control, and the names of `length_encoding` that an architecture has."""

    encodings: ClassVar[tuple[str, ...]] = ()

    def validate_length_control(self):
        check_name("length_encoding", self.length_encoding, self.encodings)
        check_name("length_unit", self.length_unit, LENGTH_UNITS)
        check_constraint(self.length_constraint)


class State:
    """The state of a decoder between steps: `tensors`, `(batch_size, ...)` each. Beam search reorders them."""

    is_compileable = False
    is_linear = (False,)  # transformers 5.24 reads one value for each layer

    def __init__(self):
        self.tensors: dict[str, torch.Tensor] = {}
        self.steps = 0

    def get_seq_length(self, *_) -> int:
        return self.steps

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.tensors = {name: x.index_select(0, beam_idx.to(x.device)) for name, x in self.tensors.items()}


class Encoder(nn.Module):
    """The encoder that `generate` calls: source ids to states; the source embedding is `embed_tokens`."""

    main_input_name = "input_ids"

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_token_id)
        self.dropout = nn.Dropout(config.dropout)


class Baseline(StoresUnitTable, LengthControlledGeneration, PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """
    An encoder-decoder that is given a length. A subclass makes `self.encoder`, whose outputs are what `decode` reads.

    `decode` returns `(batch_size, target_length, vocab_size)`. With a `State` it is called with the last ids alone,
    and keeps there what it needs of the earlier ones.
    """

    config_class: Any = BaselineConfig
    main_input_name = "input_ids"
    accepts_loss_kwargs = False  # the loss is already a mean
    encoder: Any

    def __init__(self, config):
        config.validate()
        super().__init__(config)
        self.units = UnitTable.from_config(config, config.decoder_vocab_size)

    def decode(self, ids, progress, length, encoder_outputs, mask, state: State | None) -> torch.Tensor:
        """Compute the scores of the next tokens; `forward` describes the shapes."""
        raise NotImplementedError

    @property
    def unit_table(self) -> UnitTable:
        return self.units

    @property
    def _positions(self) -> int | None:
        return None

    def set_unit_table(self, tokenizer) -> None:  # type: ignore[override]
        """Fill the unit table for the decoder's vocabulary."""
        table = UnitTable.from_tokenizer(tokenizer, self.config.length_unit)
        self.units = table.padded(self.config.decoder_vocab_size).to(self.units.weights.device)
        self.config.unit_states = table.states

    def get_encoder(self, modality=None):
        return self.encoder

    def get_output_embeddings(self):
        return self.output

    @torch.no_grad()
    def _init_weights(self, module):
        """
        Keep PyTorch's own initial weights; draw smaller embeddings, so that training starts without saturated gates.
        """
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.1)
            if module.padding_idx is not None:
                module.weight[module.padding_idx].zero_()

    @takes_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        encoder_outputs=None,
        cache: State | None = None,
        labels: torch.LongTensor | None = None,
        length: Any = None,
        progress: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ):
        """
        Compute the logits of the next tokens.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, source_length)`), attention_mask: The source.
            decoder_input_ids (`torch.LongTensor` of shape `(batch_size, target_length)`): With a state the last ids.
            labels (`torch.LongTensor` of shape `(batch_size, target_length)`, *optional*): -100 for padding.
            length (`torch.LongTensor` of shape `(batch_size,)`): Requested units; not read without length control.
            progress (`torch.LongTensor` of shape `(batch_size, target_length)`, *optional*): Units written before
                each position; counted from `decoder_input_ids` where these are whole.

        Returns:
            `Seq2SeqLMOutput`: `logits` of shape `(batch_size, target_length, decoder_vocab_size)`.
        """
        if decoder_input_ids is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        ids: Any = decoder_input_ids
        if self.config.length_controlled:
            length = as_length_tensor(given_or_default(length, self.config), len(ids), ids.device, synchronize=False)
        if encoder_outputs is None:
            encoder_outputs = self.encode(input_ids, attention_mask, length, ids)
        if attention_mask is None:
            attention_mask = encoder_outputs[0].new_ones(encoder_outputs[0].shape[:2])
        counted = self.units.progress(ids) if progress is None else progress
        logits = self.decode(ids, counted, length, encoder_outputs, attention_mask, cache)
        if cache is not None:
            cache.steps += ids.shape[1]
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        # the state is not a `Cache` of transformers
        return Seq2SeqLMOutput(loss=loss, logits=logits, **cast(Any, {CACHE: cache}))

    def encode(self, input_ids, attention_mask, length, decoder_input_ids):
        """Run the encoder; `length` and the target's ids are for an encoder that reads them."""
        return self.encoder(input_ids, attention_mask=attention_mask)

    def prepare_decoder_input_ids_from_labels(self, labels: Any) -> Any:
        """Shift the labels to the right."""
        start = labels.new_full((len(labels), 1), self.config.decoder_start_token_id)
        return torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] == -100, self.config.pad_token_id)], dim=1)

    @takes_cache
    def prepare_inputs_for_generation(self, input_ids, cache=None, **kwargs):
        """Add the progress of the whole sequence; with a state keep only the new ids."""
        progress, seen = self.units.progress(input_ids), 0
        if cache is not None:
            seen = cache.get_seq_length()
        given = {name: kwargs.get(name) for name in ("encoder_outputs", "attention_mask", "length")}
        ids = {"decoder_input_ids": input_ids[:, seen:], "progress": progress[:, seen:]}
        return {**given, **ids, CACHE: cache}

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs):
        if generation_config.use_cache is not False:
            model_kwargs[CACHE] = State()


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """
    Compute dot-product attention.

    Args:
        query (`torch.Tensor` of shape `(batch_size, target_length, d)`), keys, values (`(batch_size, source_length,
            d)`), mask (`(batch_size, source_length)`): 1 for real positions.

    Returns:
        `torch.Tensor` of shape `(batch_size, target_length, d)`.
    """
    scores = torch.bmm(query, keys.transpose(1, 2).to(query.dtype)).float()  # (B, T, S)
    weights = scores.masked_fill(mask.unsqueeze(1) == 0, float("-inf")).softmax(dim=-1)
    return torch.bmm(weights.to(query.dtype), values.to(query.dtype))


__all__ = ["Baseline", "BaselineConfig", "BaseModelOutput", "Encoder", "State", "attend"]
