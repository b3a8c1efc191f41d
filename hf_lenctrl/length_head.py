"""The length head of Nguyen et al. 2023: an additional head of cross-attention, over the decoder positions so far."""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import DynamicLayer, StaticLayer

from .cache import CACHE, takes_cache


class _Watched:
    """
    A proxy of an attention module for one call of `forward`. It stores the argument of the output projection `name`,
    the concatenated heads, and calls the module's current projection, which PEFT or a quantizer may have replaced.
    """

    heads: torch.Tensor  # (B, T, heads * width), set by `_project`

    def __init__(self, attention: nn.Module, name: str):
        self._attention, self._name = attention, name

    def __getattr__(self, name):
        return self._project if name == self._name else getattr(self._attention, name)

    def _project(self, heads: torch.Tensor) -> torch.Tensor:
        self.heads = heads
        return getattr(self._attention, self._name)(heads)


class LengthHeadOutput(nn.Linear):
    """Linear layer for the length head, a part of the output projection (Nguyen et al. 2023, eq. 20)."""


class LengthHeadAttention:
    r"""
    Mixin for the attention class of a model: cross-attention with a length head (Nguyen et al. 2023, eq. 20-24).

    At decoder position `t`, the head is a weighted mean over the positions so far,

        head_t = sum_{k <= t} a_k Z_k / sum_{k <= t} a_k,    a_k = (l + 1 - l_k) softplus(mean(sum_j head_{k, j}))

    where `Z_k` is the input of this attention at position `k`, `l` is the length, `l_k` is the number of units that
    remain at position `k` (so `l + 1 - l_k` is the progress plus 1), and `head_{k, j}` are the `h` other heads at
    position `k`. All heads are concatenated and projected (eq. 20).

    The equations in the paper divide by a sum that can be zero. Here the weight `a_k` of a position is one positive
    number: the sum of the heads is averaged over the width of a head, and softplus makes the mean positive. The sum of
    eq. 22 ends at position `t`, the last position that the decoder knows. The factor of eq. 24 is computed at position
    `k`, because a factor common to all positions would cancel in eq. 23. The projection of eq. 20 is split into two
    blocks of rows, `out_proj` and `length_out`.

    Numerator and denominator are running sums. The decoder's cache stores them as an additional layer for each layer
    of the decoder. So a step with a cache adds one term, and beam search reorders the sums with the cache.
    """

    stock: type[nn.Module]  # the attention class of Transformers

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.stock = cls.__bases__[-1]

    def add_length_control(self: Any) -> None:
        """Add the linear layer `length_out`, the only new parameter; `control` calls this method once."""
        output = self.out_proj if hasattr(self, "out_proj") else self.o  # T5's name
        self.length_out = LengthHeadOutput(output.out_features, output.out_features, bias=False)

    @takes_cache
    def forward(self: Any, hidden_states, *args, cache=None, progress=None, **kwargs):
        """
        Return the results of the parent's `forward`, with the projected length head added to the attention output.
        `progress (batch_size, sequence_length)` is the number of units produced before each position. Raise
        `ValueError` if a model without a length head has filled the cache.
        """
        watched = _Watched(self, "out_proj" if hasattr(self, "out_proj") else "o")
        output, *others = self.stock.forward(watched, hidden_states, *args, **{CACHE: cache}, **kwargs)
        width = self.head_dim if hasattr(self, "head_dim") else self.key_value_proj_dim
        per_head = watched.heads.unflatten(-1, (-1, width))  # (B, T, h, d/h)
        strength = nn.functional.softplus(per_head.float().sum(dim=2).mean(dim=-1))  # (B, T)
        weight = ((progress + 1) * strength).unsqueeze(-1)  # (B, T, 1)
        numerator = (weight * hidden_states.float()).cumsum(dim=1)  # (B, T, d)
        denominator = weight.cumsum(dim=1)  # (B, T, 1)
        if cache is not None:
            numerator, denominator = self._add_to_cache(cache, numerator, denominator)
        length_head = (numerator / denominator).to(hidden_states.dtype)
        return (output + self.length_out(length_head), *others)

    def _add_to_cache(self, cache, numerator, denominator):
        """Add the running sums in the cache to the sums over the new positions, store both totals, and return them."""
        own = getattr(cache, "self_attention_cache", cache)
        layers = getattr(self.config, "decoder_layers", None) or self.config.num_decoder_layers  # T5's name
        index, tokens = layers + self.layer_idx, numerator.shape[1]
        like = own.layers[self.layer_idx]
        while len(own.layers) <= index:
            own.layers.append(StaticLayer(like.max_cache_len) if like.is_compileable else DynamicLayer())
        sums = own.layers[index]
        if not torch.compiler.is_compiling():  # a static cache counts in a tensor
            before, summed = int(own.get_seq_length(self.layer_idx)) - tokens, int(sums.get_seq_length())
            if before != summed:
                raise ValueError(f"the cache holds {before} tokens, the length head's sums {summed}; use a new cache")
        if sums.is_initialized and sums.keys.numel() > 0:
            # A static cache has zeros where it has no sum yet; no shape or branch depends on the number of sums.
            last = torch.as_tensor(sums.get_seq_length() - 1, device=numerator.device).clamp(min=0).reshape(1)
            numerator = numerator + sums.keys[:, 0].index_select(1, last)
            denominator = denominator + sums.values[:, 0].index_select(1, last)
        sums.update(numerator.unsqueeze(1), denominator.unsqueeze(1))
        return numerator, denominator
