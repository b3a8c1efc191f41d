"""Length-controlled BART, Marian, mBART, Pegasus and M2M100: mixins over the untouched Hugging Face classes, then the
classes of each family."""

from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.models.bart.modeling_bart import (
    BartAttention,
    BartDecoder,
    BartEncoder,
    BartForConditionalGeneration,
    BartModel,
)
from transformers.models.m2m_100.modeling_m2m_100 import (
    M2M100Attention,
    M2M100Decoder,
    M2M100Encoder,
    M2M100ForConditionalGeneration,
    M2M100Model,
)
from transformers.models.marian.modeling_marian import (
    MarianAttention,
    MarianDecoder,
    MarianEncoder,
    MarianModel,
    MarianMTModel,
)
from transformers.models.mbart.modeling_mbart import (
    MBartAttention,
    MBartDecoder,
    MBartEncoder,
    MBartForConditionalGeneration,
    MBartModel,
)
from transformers.models.pegasus.modeling_pegasus import (
    PegasusAttention,
    PegasusDecoder,
    PegasusEncoder,
    PegasusForConditionalGeneration,
    PegasusModel,
)

from .configuration_lenctrl import (
    LenCtrlBartConfig,
    LenCtrlM2M100Config,
    LenCtrlMarianConfig,
    LenCtrlMBartConfig,
    LenCtrlPegasusConfig,
)
from .generation import LengthControlledGeneration, refuse_length
from .length_encoding import LENGTH_ENCODINGS
from .length_head import LengthHeadAttention, LengthHeadOutput
from .length_units import StoresUnitTable, UnitTable
from .lengths import as_length_tensor


class _NoPositions(nn.Module):
    """Stands where the decoder's positions stood when the length encoding replaces them."""

    def forward(self, *args, **kwargs) -> torch.Tensor:
        given = next(value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        return torch.zeros((), device=given.device)


class _LengthProjection(nn.Linear):
    """Takes the length encoding into a pretrained decoder; zero at first, so that the decoder starts as it was."""


class _EncoderLengthEmbedding(nn.Embedding):
    """The wanted length, added to each input of the encoder (Nguyen et al. 2023, eq. 16)."""


class _KeepsUnitTable:
    """Unit table of new models, of checkpoints that bring none, and after the embeddings were resized."""

    def resize_token_embeddings(self, *args, **kwargs):
        """The base model's method; tokens new to a character model must be counted again: `set_unit_table`."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        self.get_decoder().resize_unit_table()
        return embeddings

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, UnitTable):  # `init` leaves alone what was loaded
            table = UnitTable.from_config(self.config, module.weights.shape[1])
            init.copy_(module.weights, table.weights)
            init.copy_(module.next_state, table.next_state)
        elif isinstance(module, (_LengthProjection, _EncoderLengthEmbedding, LengthHeadOutput)):
            init.zeros_(module.weight)  # so that a pretrained model starts as it was


class LengthControlledEncoder(_KeepsUnitTable):
    """
    Encoder that may be told the length (Nguyen et al. 2023, eq. 16-17), with `config.encoder_length_embedding`.

    Without it length is left to the decoder: `generate` and the models hand both the same keyword arguments.
    """

    def __init__(self, config):
        super().__init__(config)
        if config.encoder_length_embedding:
            self.length_embedding = _EncoderLengthEmbedding(config.learned_lengths, config.d_model)

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, length=None, progress=None, **kwargs):
        """`length` as in `LengthControlledDecoder.forward`."""
        if self.config.encoder_length_embedding:
            if inputs_embeds is None:
                # unlike their decoders, the encoders of Marian and Pegasus scale what they look up, not what is given
                inputs_embeds = self.embed_tokens(input_ids) * getattr(self, "embed_scale", 1.0)  # (B, S, d)
            lengths = _required_length(length, self.config, inputs_embeds)  # (B,)
            embedding = self.length_embedding(lengths.clamp(max=self.config.learned_lengths - 1)).unsqueeze(1)
            input_ids, inputs_embeds = None, inputs_embeds + embedding.to(inputs_embeds.dtype)
        return super().forward(input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs)


def _required_length(length, config, rows: torch.Tensor) -> torch.Tensor:
    """The call's length or the configuration's, for each row: `(batch_size,)`."""
    length = config.length if length is None else length
    if length is None:
        raise ValueError(
            "no length was given; pass it to the call (model.generate(**inputs, length=75), model(..., length=75) "
            "or labels to count it from) or set a default: from_pretrained(path, length=75)"
        )
    return as_length_tensor(length, rows.shape[0], rows.device, synchronize=False)


class LengthControlledDecoder(_KeepsUnitTable):
    """
    Decoder that adds a length encoding to its token embeddings, or multiplies them by the length.

    The sum is handed to the parent's `forward` as `inputs_embeds`; nothing of it is copied. Without
    `config.absolute_positions` the decoder's own positions are left out, as in the papers' LDPE and LRPE.
    """

    attention_class: type

    def __init__(self, config):
        config.validate()  # a value set after construction (`from_pretrained(path, length=75)`) is checked here
        super().__init__(config)
        self.unit_table = UnitTable.from_config(config, self.embed_tokens.num_embeddings)
        if not config.absolute_positions:
            self.embed_positions = _NoPositions()
        if config.length_projection:
            self.length_projection = _LengthProjection(config.d_model, config.d_model, bias=False)
        if config.length_encoding == "learned":
            self.length_embedding = nn.Embedding(config.learned_lengths, config.d_model)
        if config.length_head:
            shape = {"num_heads": config.decoder_attention_heads, "dropout": config.attention_dropout}
            for i, layer in enumerate(self.layers):
                layer.encoder_attn = self.attention_class(
                    config.d_model, **shape, is_decoder=True, config=config, layer_idx=i
                )

    def resize_unit_table(self) -> None:
        """Give the unit table as many entries as the embedding has, new ones as in `UnitTable.from_config`."""
        size = self.embed_tokens.num_embeddings
        if self.unit_table.weights.shape[1] != size:
            self.unit_table = self.unit_table.resized(size, self.config)

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        *,
        inputs_embeds: torch.Tensor | None = None,
        past_key_values=None,
        length: int | list[int] | torch.Tensor | None = None,
        progress: Any = None,
        **kwargs,
    ):
        """
        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`): Decoder input ids.
            length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`, *optional*): Wanted units;
                defaults to `config.length`.
            progress (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*): Units written before
                each prediction; counted from `input_ids` when not given. A step with a filled cache, which sees the
                last token alone, and a call with embeddings instead of ids must bring it.

        Raises:
            `ValueError`: without any length, where progress can neither be counted nor was given, or past the last
                absolute position.
        """
        given = input_ids if inputs_embeds is None else inputs_embeds
        if given is not None and self.config.absolute_positions and not torch.compiler.is_compiling():
            tokens = given.shape[1]
            seen = 0 if past_key_values is None else past_key_values.get_seq_length()
            if seen + tokens > self.config.max_position_embeddings:
                raise ValueError(
                    f"the decoder was given {seen + tokens} tokens, its absolute positions end at "
                    f"{self.config.max_position_embeddings}; ask for less, or use a model with a larger "
                    "max_position_embeddings or with absolute_positions=False"
                )
        config, kwargs["past_key_values"] = self.config, past_key_values
        if length is not None and not config.length_controlled:
            refuse_length()
        if config.counts_progress and progress is None:
            progress = self._count_progress(input_ids, past_key_values)  # (B, T)
        if config.length_head:
            kwargs["progress"] = progress
        if config.length_encoding == "none":
            return super().forward(input_ids, inputs_embeds=inputs_embeds, **kwargs)
        rows: Any = given if progress is None else progress
        lengths = _required_length(length, config, rows).unsqueeze(1)  # (B, 1)
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)  # (B, T, d)
        if config.length_encoding == "scale":
            factor = lengths.unsqueeze(2).float() / config.length_scale  # bfloat16 cannot tell 257 from 256
            scaled = inputs_embeds * factor
            return super().forward(inputs_embeds=scaled.to(inputs_embeds.dtype), **kwargs)
        if config.length_encoding == "learned":
            encoding = self.length_embedding((lengths - progress).clamp(0, config.learned_lengths - 1))  # (B, T, d)
        else:
            encoding = LENGTH_ENCODINGS[config.length_encoding](progress, lengths, config.d_model)  # float32
        if config.length_projection:
            encoding = self.length_projection(encoding.to(self.length_projection.weight.dtype))
        # Marian's decoder multiplies the embeddings it is given by embed_scale, BART's did so in embed_tokens
        encoding = encoding / getattr(self, "embed_scale", 1.0)
        return super().forward(inputs_embeds=inputs_embeds + encoding.to(inputs_embeds.dtype), **kwargs)

    def _count_progress(self, input_ids, past_key_values):
        if input_ids is None:
            raise ValueError(
                "progress cannot be counted from decoder_inputs_embeds; pass decoder_input_ids, or "
                "progress=(batch_size, sequence_length) with the units written before each position"
            )
        if past_key_values is not None and past_key_values.get_seq_length() > 0:
            raise ValueError(
                "progress cannot be counted from the last token of a cached sequence; call generate(), or pass "
                "progress=(batch_size, sequence_length) with the units written before each position"
            )
        return self.unit_table.progress(input_ids)


class LengthControlledModel(StoresUnitTable, _KeepsUnitTable):
    """Encoder and decoder of the classes named by the family, in the base model's place."""

    encoder_class: type
    decoder_class: type

    def __init__(self, config):
        super().__init__(config)
        self.encoder = self.encoder_class(config)
        self.decoder = self.decoder_class(config)
        self.post_init()

    def set_unit_table(self, tokenizer) -> None:
        """
        Fill the table of units for the decoder's vocabulary; it is saved with the model.

        Raises:
            `ValueError`: when the tokenizer's vocabulary is not the decoder's, or cannot be counted in its unit.
        """
        table = UnitTable.from_tokenizer(tokenizer, self.config.length_unit).to(self.device)
        self.decoder.unit_table = table.padded(self.decoder.embed_tokens.num_embeddings)
        self.config.unit_states = table.states


class LengthControlledForConditionalGeneration(LengthControlledGeneration, StoresUnitTable, _KeepsUnitTable):
    """Language-model head with `length` in `forward` and `generate`."""

    # The loss is a mean. Trainer takes the **kwargs of `forward` for a promise to divide it by `num_items_in_batch`
    # and would multiply gradients by the number of accumulation steps and of processes.
    accepts_loss_kwargs = False
    model_class: type

    def __init__(self, config):
        super().__init__(config)
        self.model = self.model_class(config)
        self.post_init()

    @property
    def unit_table(self) -> UnitTable:
        """What each entry of the vocabulary writes; `unit_table.count(ids)` measures outputs."""
        return self.model.decoder.unit_table

    def set_unit_table(self, tokenizer) -> None:
        """Fill the table of units for the decoder's vocabulary; see `LengthControlledModel.set_unit_table`."""
        self.model.set_unit_table(tokenizer)

    # Every name is written out: Trainer keeps the columns and `generate` accepts the arguments that it finds here.
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs=None,
        past_key_values=None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        length: int | list[int] | torch.Tensor | None = None,
        progress: torch.LongTensor | None = None,
        **kwargs,
    ):
        """
        The base model's `forward` with two more arguments.

        Args:
            length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`, *optional*): Wanted units.
                Without it they are counted from `labels` (the training rule of Takase & Okazaki 2019, section 3.1),
                else `config.length` holds.
            progress (`torch.LongTensor` of shape `(batch_size, target_sequence_length)`, *optional*): See
                `LengthControlledDecoder.forward`.

        Raises:
            `ValueError`: without any length, for a length under 1, and for labels with nothing but padding.
        """
        if labels is not None and length is None and self.config.length_controlled:
            length = self.count_labels(labels)
        return super().forward(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            labels=labels,
            use_cache=use_cache,
            length=length,
            progress=progress,
            **kwargs,
        )

    def count_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Units of each row of `labels (batch_size, target_sequence_length)`, -100 for padding; never 0."""
        length = self.unit_table.count(labels.masked_fill(labels == -100, self.config.pad_token_id))
        if not torch.compiler.is_compiling() and bool((length < 1).any()):
            raise ValueError(
                f"every row of labels must hold at least one {self.config.length_unit}, got {length.tolist()}; "
                "drop the rows whose target is empty or all padding"
            )
        return length

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        """Add progress, counted over the whole running sequence, which beam search has already reordered."""
        model_inputs = super().prepare_inputs_for_generation(input_ids, **kwargs)
        if self.config.counts_progress:
            progress = self.unit_table.progress(input_ids)  # (B * beams, T)
            # a slice whose stride grows with each step would make torch.compile compile again
            model_inputs["progress"] = progress[:, -model_inputs["decoder_input_ids"].shape[1] :].contiguous()
        return model_inputs


class LenCtrlBartEncoder(LengthControlledEncoder, BartEncoder):
    """`BartEncoder` that may be told the length; see `LengthControlledEncoder`."""

    config_class = LenCtrlBartConfig


class LenCtrlBartAttention(LengthHeadAttention, BartAttention):
    """`BartAttention` with a length head, for cross-attention."""


class LenCtrlBartDecoder(LengthControlledDecoder, BartDecoder):
    """`BartDecoder` with a length encoding; see `LengthControlledDecoder`."""

    config_class = LenCtrlBartConfig
    attention_class = LenCtrlBartAttention


class LenCtrlBartModel(LengthControlledModel, BartModel):
    """`BartModel` whose `forward` takes `length`."""

    config_class = LenCtrlBartConfig
    encoder_class = LenCtrlBartEncoder
    decoder_class = LenCtrlBartDecoder


class LenCtrlBartForConditionalGeneration(LengthControlledForConditionalGeneration, BartForConditionalGeneration):
    """`BartForConditionalGeneration` whose `forward` and `generate` take `length`."""

    config_class = LenCtrlBartConfig
    model_class = LenCtrlBartModel


class LenCtrlMarianEncoder(LengthControlledEncoder, MarianEncoder):
    """`MarianEncoder` that may be told the length; see `LengthControlledEncoder`."""

    config_class = LenCtrlMarianConfig


class LenCtrlMarianAttention(LengthHeadAttention, MarianAttention):
    """`MarianAttention` with a length head, for cross-attention."""


class LenCtrlMarianDecoder(LengthControlledDecoder, MarianDecoder):
    """`MarianDecoder` with a length encoding; see `LengthControlledDecoder`."""

    config_class = LenCtrlMarianConfig
    attention_class = LenCtrlMarianAttention


class LenCtrlMarianModel(LengthControlledModel, MarianModel):
    """`MarianModel` whose `forward` takes `length`."""

    config_class = LenCtrlMarianConfig
    encoder_class = LenCtrlMarianEncoder
    decoder_class = LenCtrlMarianDecoder

    def resize_decoder_token_embeddings(self, *args, **kwargs):
        embeddings = super().resize_decoder_token_embeddings(*args, **kwargs)
        self.decoder.resize_unit_table()
        return embeddings


class LenCtrlMarianMTModel(LengthControlledForConditionalGeneration, MarianMTModel):
    """`MarianMTModel` whose `forward` and `generate` take `length`."""

    config_class = LenCtrlMarianConfig
    model_class = LenCtrlMarianModel

    def resize_decoder_token_embeddings(self, *args, **kwargs):
        embeddings = super().resize_decoder_token_embeddings(*args, **kwargs)
        self.model.decoder.resize_unit_table()
        return embeddings


class LenCtrlMBartEncoder(LengthControlledEncoder, MBartEncoder):
    """`MBartEncoder` that may be told the length; see `LengthControlledEncoder`."""

    config_class = LenCtrlMBartConfig


class LenCtrlMBartAttention(LengthHeadAttention, MBartAttention):
    """`MBartAttention` with a length head, for cross-attention."""


class LenCtrlMBartDecoder(LengthControlledDecoder, MBartDecoder):
    """`MBartDecoder` with a length encoding; see `LengthControlledDecoder`."""

    config_class = LenCtrlMBartConfig
    attention_class = LenCtrlMBartAttention


class LenCtrlMBartModel(LengthControlledModel, MBartModel):
    """`MBartModel` whose `forward` takes `length`."""

    config_class = LenCtrlMBartConfig
    encoder_class = LenCtrlMBartEncoder
    decoder_class = LenCtrlMBartDecoder


class LenCtrlMBartForConditionalGeneration(LengthControlledForConditionalGeneration, MBartForConditionalGeneration):
    """`MBartForConditionalGeneration` whose `forward` and `generate` take `length`."""

    config_class = LenCtrlMBartConfig
    model_class = LenCtrlMBartModel


class LenCtrlPegasusEncoder(LengthControlledEncoder, PegasusEncoder):
    """`PegasusEncoder` that may be told the length; see `LengthControlledEncoder`."""

    config_class = LenCtrlPegasusConfig


class LenCtrlPegasusAttention(LengthHeadAttention, PegasusAttention):
    """`PegasusAttention` with a length head, for cross-attention."""


class LenCtrlPegasusDecoder(LengthControlledDecoder, PegasusDecoder):
    """`PegasusDecoder` with a length encoding; see `LengthControlledDecoder`."""

    config_class = LenCtrlPegasusConfig
    attention_class = LenCtrlPegasusAttention


class LenCtrlPegasusModel(LengthControlledModel, PegasusModel):
    """`PegasusModel` whose `forward` takes `length`."""

    config_class = LenCtrlPegasusConfig
    encoder_class = LenCtrlPegasusEncoder
    decoder_class = LenCtrlPegasusDecoder


class LenCtrlPegasusForConditionalGeneration(
    LengthControlledForConditionalGeneration, PegasusForConditionalGeneration
):
    """`PegasusForConditionalGeneration` whose `forward` and `generate` take `length`."""

    config_class = LenCtrlPegasusConfig
    model_class = LenCtrlPegasusModel


class LenCtrlM2M100Encoder(LengthControlledEncoder, M2M100Encoder):
    """`M2M100Encoder` that may be told the length; see `LengthControlledEncoder`."""

    config_class = LenCtrlM2M100Config


class LenCtrlM2M100Attention(LengthHeadAttention, M2M100Attention):
    """`M2M100Attention` with a length head, for cross-attention."""


class LenCtrlM2M100Decoder(LengthControlledDecoder, M2M100Decoder):
    """`M2M100Decoder` with a length encoding; see `LengthControlledDecoder`."""

    config_class = LenCtrlM2M100Config
    attention_class = LenCtrlM2M100Attention


class LenCtrlM2M100Model(LengthControlledModel, M2M100Model):
    """`M2M100Model` whose `forward` takes `length`."""

    config_class = LenCtrlM2M100Config
    encoder_class = LenCtrlM2M100Encoder
    decoder_class = LenCtrlM2M100Decoder


class LenCtrlM2M100ForConditionalGeneration(LengthControlledForConditionalGeneration, M2M100ForConditionalGeneration):
    """`M2M100ForConditionalGeneration` whose `forward` and `generate` take `length`."""

    config_class = LenCtrlM2M100Config
    model_class = LenCtrlM2M100Model


# `save_pretrained` then ships this file and those it imports, for `trust_remote_code=True` without the package
for _head in (
    LenCtrlBartForConditionalGeneration,
    LenCtrlMarianMTModel,
    LenCtrlMBartForConditionalGeneration,
    LenCtrlPegasusForConditionalGeneration,
    LenCtrlM2M100ForConditionalGeneration,
):
    _head.model_class.register_for_auto_class("AutoModel")
    _head.register_for_auto_class("AutoModelForSeq2SeqLM")
