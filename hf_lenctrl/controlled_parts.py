"""Classes and functions that add length control to modules of a Transformers model: encoder, decoder, positions."""

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
    refuse_at_zero,
    required_length,
)
from .lengths import refuse_length


# The length-controlled class for each (mixin, Transformers class); hf_lenctrl.modeling_lenctrl fills this dictionary.
CONTROLLED: dict[tuple[type, type], type] = {}


def control(part: Any, mixin: type) -> None:
    """
    Add length control to `part`, a module of a Transformers model, in place. The class of `part` becomes a subclass
    that inherits first from `mixin` and then from the old class, as in the library `adapters`. This takes half the
    time and memory of building the module again. The existing submodules stay; the method `add_length_control` of
    `mixin` adds new submodules.
    """
    part.__class__ = CONTROLLED[mixin, type(part)]
    part.add_length_control()


def pair_mask(queries: torch.Tensor, keys: torch.Tensor, dtype: torch.dtype, causal: bool = False) -> torch.Tensor:
    """
    Return the additive attention mask of packed rows, `(batch_size, 1, queries, keys)`. A packed row holds several
    sources, or the targets of these sources. A source and its target are a pair. A token attends only to the tokens of
    its pair. If `causal` is set, it attends only to itself and to earlier tokens of its pair.

    Args:
        queries (`torch.LongTensor` of shape `(batch_size, queries)`): The id of each attending token's pair, 0 for
            padding.
        keys (`torch.LongTensor` of shape `(batch_size, keys)`): The id of each attended token's pair, 0 for padding.
        dtype (`torch.dtype`): The mask's dtype. The mask is 0 where attention is allowed, and the lowest number of
            this dtype elsewhere.
    """
    seen = (queries.unsqueeze(2) == keys.unsqueeze(1)).unsqueeze(1)
    seen = seen.tril() if causal else seen
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)


class _AddsNothing:
    """Mixin of position embeddings whose `forward` returns zero, so that the base class adds no positions."""

    def forward(self, *args, **kwargs) -> torch.Tensor:
        given = next(value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        return torch.zeros((), device=given.device)


class _NoPositions(_AddsNothing, nn.Module):
    """Module in place of the decoder's position embeddings, for a length encoding that replaces the positions."""


class PositionsOfIds(_AddsNothing):
    """
    Mixin for the position embeddings of M2M100, which give no position to padding. The encoder and decoder of
    Transformers would call `forward` with token embeddings, from which padding cannot be recognized. So the
    length-controlled encoder and decoder call the method `of` with the ids and add its result themselves, and
    `forward` returns zero.
    """

    def add_length_control(self) -> None:
        """Do nothing, because positions need no new module."""

    def of(self: Any, input_ids, embeds: torch.Tensor, cache) -> torch.Tensor:
        """
        Return the position embeddings, `(batch_size, sequence_length, d_model)`, for `input_ids`, or for `embeds` if
        there are no ids. The positions continue after those in the cache.
        """
        ids = None if input_ids is None else input_ids.to(self.weights.device)
        seen = 0 if cache is None else cache.get_seq_length()
        return super(_AddsNothing, self).forward(ids, embeds, seen).to(embeds.device)


class _Part:
    """Common base class of the length-controlled encoders and decoders."""

    def __init__(self: Any, *args, **kwargs):
        super().__init__(*args, **kwargs)  # runs only if a part is built alone; `control` runs no `__init__`
        self.add_length_control()
        self.post_init()

    def _take_positions(self: Any) -> None:
        positions = getattr(self, "embed_positions", None)
        if (PositionsOfIds, type(positions)) in CONTROLLED:
            control(positions, PositionsOfIds)

    def _with_positions(self: Any, embeds, input_ids, cache=None):
        positions = getattr(self, "embed_positions", None)
        return embeds + positions.of(input_ids, embeds, cache) if isinstance(positions, PositionsOfIds) else embeds

    def _with_positions_of_pairs(self: Any, embeds, pair_ids, scale: float = 1.0):
        """
        Return the embeddings of packed rows, corrected so that positions restart at each pair: the parent's `forward`
        adds the position in the row, so this adds the difference to the position in the pair. It divides by `scale`,
        because the parent multiplies embeddings by it.
        """
        positions = getattr(self, "embed_positions", None)
        if positions is None or isinstance(positions, _NoPositions):
            return embeds
        row = torch.arange(pair_ids.shape[1], device=pair_ids.device).expand_as(pair_ids)  # (B, T)
        begins = pair_ids != torch.nn.functional.pad(pair_ids, (1, 0), value=-1)[:, :-1]
        start = (row * begins).cummax(1).values
        own, stock = (positions(embeds, position_ids=ids.flatten()).view_as(embeds) for ids in (row - start, row))
        return embeds + (own - stock).to(embeds) / scale

    def resize_position_embeddings(self: Any, new_num_position_embeddings: int) -> None:
        """Resize the position embeddings, unless a length encoding has replaced them."""
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
    Encoder that reads the length if `config.encoder_length_embedding` is set (Nguyen et al. 2023, eq. 16-17).

    If the decoder has an embedding table of lengths too, the encoder uses the decoder's table (`share_length_table`).
    This shared module is saved once, and an adapter of it changes both encoder and decoder.
    """

    _table_of: tuple[Any, ...] = ()  # the decoder; in a tuple, so that it does not become a submodule of the encoder

    def add_length_control(self) -> None:
        """Add the new modules of the encoder; `control` or the constructor calls this method once."""
        fill_positions(getattr(self, "embed_positions", None), self.config)
        if self.config.encoder_length_embedding:
            self.length_embedding = EncoderLengthEmbedding(self.config.learned_lengths, self.config.d_model)
            self._take_positions()

    def share_length_table(self, decoder: Any) -> None:
        """Use the decoder's table of lengths in the encoder too (Nguyen et al. 2023, eq. 16 and 18)."""
        del self.length_embedding
        self._table_of = (decoder,)

    @property
    def length_table(self: Any) -> Any:
        """Return the embedding of lengths: the decoder's if `share_length_table` was called, or the encoder's own."""
        return (*self._table_of, self)[0].length_embedding

    def state_dict(self: Any, *args, prefix: str = "", **kwargs):
        """Return the state dictionary. For an encoder alone, add the table that it shares with the decoder."""
        found = super().state_dict(*args, prefix=prefix, **kwargs)  # type: ignore[misc]
        if self._table_of and not prefix:
            found["length_embedding.weight"] = self.length_table.weight.detach()
        return found

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        inputs_embeds=None,
        length=None,
        progress=None,
        pair_ids: torch.Tensor | None = None,
        **kwargs,
    ):
        """
        Run the encoder. For `length` and `pair_ids` see `LengthControlledDecoder.forward`. `progress` is ignored; the
        argument exists because a model passes the same arguments to its encoder and its decoder.
        """
        if pair_ids is not None:
            inputs_embeds = self.embed_tokens(input_ids) * getattr(self, "embed_scale", 1.0)  # (B, S, d)
            inputs_embeds, input_ids = self._with_positions_of_pairs(inputs_embeds, pair_ids), None
        if self.config.encoder_length_embedding:
            if inputs_embeds is None:
                # The encoders of Marian and Pegasus, unlike their decoders, scale the embeddings that they look up,
                # but not embeddings that a caller passes.
                inputs_embeds = self.embed_tokens(input_ids) * getattr(self, "embed_scale", 1.0)  # (B, S, d)
            lengths = required_length(length, self.config, inputs_embeds, self.training)  # (B,)
            table = self.length_table
            refuse_at_zero(table, "length_embedding")
            rows = lengths.clamp(max=self.config.learned_lengths - 1)
            device = next(table.parameters()).device
            rows = rows if device.type == "meta" else rows.to(device)  # "meta" means that the table is offloaded
            embedding = table(rows).unsqueeze(1)
            inputs_embeds = self._with_positions(inputs_embeds + embedding.to(inputs_embeds), input_ids)
            input_ids = None
        return super().forward(input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs)


class LengthControlledDecoder(_Part, LengthSignal):
    """
    Decoder that adds a length encoding to its token embeddings, or multiplies the embeddings by the length.

    It passes the result as `inputs_embeds` to the `forward` of the parent class, so no code of the parent class is
    copied. If `config.absolute_positions` is false, the length encoding replaces the positions, as in the published
    LDPE and LRPE.
    """

    def add_length_control(self) -> None:
        """Add the new modules of the decoder; `control` or the constructor calls this method once."""
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
        pair_ids: torch.Tensor | None = None,
        **kwargs,
    ):
        """
        Run the decoder.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`): Decoder input ids.
            length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`, *optional*): Length to condition
                on, in units; defaults to `config.length`, except in training.
            progress (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*): Number of units
                produced before each prediction; by default counted from `input_ids`. Required if embeddings are given
                instead of ids. Also required if the cache is filled, because only the last token is then given.
            pair_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*): For packed rows (see
                `pair_mask`), the id of each token's pair. `length` and `progress` then have the shape of `pair_ids`.

        Raises:
            `ValueError`: if no length is known, if the model ignores lengths but `length` is given, or if the progress
                is missing and cannot be counted.
        """
        config, kwargs[CACHE] = self.config, cache
        encoding = config.length_encoding
        if length is not None and encoding == "none" and not config.length_controlled:
            refuse_length()
        if progress is None and config.counts_progress:
            progress = self.count_progress(input_ids, cache)  # (B, T)
        if config.length_head:
            kwargs["progress"] = progress
        if encoding == "none" and pair_ids is None:
            return super().forward(input_ids, inputs_embeds=inputs_embeds, **kwargs)
        embeds: Any = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds  # (B, T, d)
        if encoding != "none":
            if pair_ids is None:
                rows = embeds if progress is None else progress
                lengths = required_length(length, config, rows, self.training)  # (B,)
            else:
                assert isinstance(length, torch.Tensor)  # (B, T)
                lengths = required_length(length.flatten(), config, pair_ids.flatten(), self.training)
                lengths = lengths.view_as(pair_ids)
            embeds = self.add_signal(embeds, progress, lengths)
        if pair_ids is not None:
            embeds = self._with_positions_of_pairs(embeds, pair_ids, getattr(self, "embed_scale", 1.0))
        return super().forward(inputs_embeds=self._with_positions(embeds, input_ids, cache), **kwargs)
