"""Length control for parts of a stock model, put over them in place: encoder, decoder, positions."""

from typing import Any

import torch
from torch import nn

from .cache import CACHE, takes_cache
from .length_head import LengthHeadAttention
from .length_signal import (
    EncoderLengthEmbedding,
    LengthSignal,
    fill_positions,
    init_length_weights,
    refuse_dora,
    refuse_frozen,
    required_length,
)
from .lengths import refuse_length


# (mixin, stock class) -> the class of a controlled part; filled by hf_lenctrl.modeling_lenctrl
CONTROLLED: dict[tuple[type, type], type] = {}


def control(part: Any, mixin: type) -> None:
    """
    Put `mixin` before a stock part's class, in place. To build the part again, with another class, would take twice
    the time and memory; so it keeps what it is and gets, from `add_length_control`, its few new modules.
    """
    part.__class__ = CONTROLLED[mixin, type(part)]
    part.add_length_control()


class _AddsNothing:
    """Mixin of a module of positions whose `forward` adds zero, whatever its arguments."""

    def forward(self, *args, **kwargs) -> torch.Tensor:
        given = next(value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        return torch.zeros((), device=given.device)


class _NoPositions(_AddsNothing, nn.Module):
    """Replaces the decoder's positions where the length encoding takes their place."""


class PositionsOfIds(_AddsNothing):
    """
    M2M100's positions, which leave out the padding among the ids. Its `forward` is handed embeddings and no ids, so
    encoder and decoder here add the positions themselves, with `of`, and it adds nothing more.
    """

    def add_length_control(self) -> None:
        """No new modules."""

    def of(self: Any, input_ids, embeds: torch.Tensor, cache) -> torch.Tensor:
        """Positions of ids, or of embeddings where there are none: `(batch_size, sequence_length, d_model)`."""
        ids = None if input_ids is None else input_ids.to(self.weights.device)
        seen = 0 if cache is None else cache.get_seq_length()
        return super(_AddsNothing, self).forward(ids, embeds, seen).to(embeds.device)


class _Part:
    """What encoder and decoder share."""

    def __init__(self: Any, *args, **kwargs):
        super().__init__(*args, **kwargs)  # of a part alone; in a model it is a stock part, see `control`
        self.add_length_control()
        self.post_init()

    def _take_positions(self: Any) -> None:
        positions: Any = getattr(self, "embed_positions", None)
        if (PositionsOfIds, type(positions)) in CONTROLLED:
            control(positions, PositionsOfIds)

    def _with_positions(self: Any, embeds, input_ids, cache=None):
        positions = getattr(self, "embed_positions", None)
        return embeds + positions.of(input_ids, embeds, cache) if isinstance(positions, PositionsOfIds) else embeds

    def resize_position_embeddings(self: Any, new_num_position_embeddings: int) -> None:
        """The base model's method; where the length encoding stands in place of positions it stays there."""
        positions = self.embed_positions
        super().resize_position_embeddings(new_num_position_embeddings)  # type: ignore[misc]
        if isinstance(positions, _NoPositions):
            self.embed_positions = positions
        fill_positions(self.embed_positions, self.config)

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        init_length_weights(module, self.config)


class LengthControlledEncoder(_Part):
    """
    Encoder that is given the length (Nguyen et al. 2023, eq. 16-17) with `config.encoder_length_embedding`.

    In a model whose decoder has the same table (`share_length_table`) the encoder looks lengths up there. The table is
    then one module, so it is saved once, and an adapter changes it for both.
    """

    _table_of: tuple[Any, ...] = ()  # the decoder; in a tuple, because it is no part of the encoder

    def add_length_control(self) -> None:
        """Make the new modules; called once, by `control` or for a part alone."""
        fill_positions(getattr(self, "embed_positions", None), self.config)
        if self.config.encoder_length_embedding:
            self.length_embedding = EncoderLengthEmbedding(self.config.learned_lengths, self.config.d_model)
            self._take_positions()

    def share_length_table(self, decoder: Any) -> None:
        """Take the table of lengths of the decoder in place of one's own (Nguyen et al. 2023, eq. 16 and 18)."""
        del self.length_embedding
        self._table_of = (decoder,)

    @property
    def length_table(self: Any) -> Any:
        """The embedding of lengths, `(learned_lengths, d_model)`."""
        return (*self._table_of, self)[0].length_embedding

    def state_dict(self: Any, *args, prefix: str = "", **kwargs):
        """The base class's method; an encoder that is saved alone takes the shared table with it."""
        found = super().state_dict(*args, prefix=prefix, **kwargs)  # type: ignore[misc]
        if self._table_of and not prefix:
            found["length_embedding.weight"] = self.length_table.weight.detach()
        return found

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, length=None, progress=None, **kwargs):
        """`length` as in `LengthControlledDecoder.forward`; the models hand both the same keyword arguments."""
        if self.config.encoder_length_embedding:
            if inputs_embeds is None:
                # unlike their decoders, the encoders of Marian and Pegasus scale what they look up, not what is given
                inputs_embeds = self.embed_tokens(input_ids) * getattr(self, "embed_scale", 1.0)  # (B, S, d)
            lengths = required_length(length, self.config, inputs_embeds, self.training)  # (B,)
            table = self.length_table
            refuse_dora(table)
            refuse_frozen(table, "length_embedding")
            rows = lengths.clamp(max=self.config.learned_lengths - 1)
            device = next(table.parameters()).device
            rows = rows if device.type == "meta" else rows.to(device)  # the decoder's; "meta" where it is offloaded
            embedding = table(rows).unsqueeze(1)
            inputs_embeds = self._with_positions(inputs_embeds + embedding.to(inputs_embeds), input_ids)
            input_ids = None
        return super().forward(input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs)


class LengthControlledDecoder(_Part, LengthSignal):
    """
    Decoder that adds a length encoding to its token embeddings, or multiplies them by the length.

    The sum is handed to the parent's `forward` as `inputs_embeds`; nothing of it is copied. Without
    `config.absolute_positions` the decoder's own positions are left out, as in the papers' LDPE and LRPE.
    """

    def add_length_control(self) -> None:
        """Make the new modules; called once, by `control` or for a part alone."""
        config = self.config
        self.add_length_signal()
        fill_positions(getattr(self, "embed_positions", None), config)
        if not config.absolute_positions:
            self.embed_positions = _NoPositions()
        elif config.length_encoding != "none":
            self._take_positions()
        if config.length_head:
            for name, module in list(self.named_modules()):
                if name.endswith(("encoder_attn", "EncDecAttention")):
                    control(module, LengthHeadAttention)

    @takes_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        *,
        inputs_embeds: torch.Tensor | None = None,
        cache=None,
        length: int | list[int] | torch.Tensor | None = None,
        progress: Any = None,
        **kwargs,
    ):
        """
        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`): Decoder input ids.
            length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`, *optional*): Requested units;
                defaults to `config.length`, but in training.
            progress (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*): Units written before
                each prediction; counted from `input_ids` when not given. A step with a filled cache, which sees the
                last token alone, and a call with embeddings instead of ids must bring it.

        Raises:
            `ValueError`: without any length, and where progress can neither be counted nor was given.
        """
        config, kwargs[CACHE] = self.config, cache
        encoding = config.length_encoding
        if length is not None and encoding == "none" and not config.length_controlled:
            refuse_length()
        if progress is None and config.counts_progress:
            progress = self.count_progress(input_ids, cache)  # (B, T)
        if config.length_head:
            kwargs["progress"] = progress
        if encoding == "none":
            return super().forward(input_ids, inputs_embeds=inputs_embeds, **kwargs)
        embeds: Any = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds  # (B, T, d)
        lengths = required_length(length, config, embeds if progress is None else progress, self.training)  # (B,)
        embeds = self.add_signal(embeds, progress, lengths)
        return super().forward(inputs_embeds=self._with_positions(embeds, input_ids, cache), **kwargs)
