"""
LA, length attention (LenAtten: Yu et al., Findings of ACL 2021): the decoder's state attends over embeddings of
lengths, and the length context vector enters the output layer.

With the decoder's state h_t, the units r_t that remain and a fixed sinusoidal embedding E_l for each length l:

    e_t = V tanh(W_r r_t / S + W_h h_t + b)            one score for each length
    a_t = softmax(e_t),    c^len_t = sum over l of a_tl E_l
    p(y_t) = softmax(W_o tanh(W_c [c_t; h_t; c^len_t]) + b_o)

The paper puts it into PAULUS (Paulus et al. 2017: an LSTM with intra-temporal and intra-decoder attention). Here it is
on the LSTM of `lstm`: targets of under 80 characters give intra-decoder attention nothing to avoid, a decoder that
writes characters has no word to point to, and the row then differs from the row `lstm` in length attention alone.
S is `length_scale`; the table has `learned_lengths` rows.
"""

import torch
from huggingface_hub.dataclasses import strict
from torch import nn

from hf_lenctrl.length_encoding import LENGTH_ENCODINGS

from .common import BaselineConfig
from .lstm import Lstm


@strict
class LengthAttentionConfig(BaselineConfig):
    """`length_encoding`: `attention`."""

    model_type = "baseline_length_attention"
    encodings = ("attention",)


class LengthAttentionLstm(Lstm):
    """`Lstm` with the length context vector in its output layer."""

    config_class = LengthAttentionConfig

    def length_width(self) -> int:
        config = self.config
        self.length_key = nn.Linear(1, config.d_model, bias=False)
        self.state_key = nn.Linear(config.d_model, config.d_model)
        self.length_scores = nn.Linear(config.d_model, config.learned_lengths, bias=False)
        return config.d_model

    def length_weights(self, states: torch.Tensor, remaining: torch.Tensor) -> torch.Tensor:
        """
        Compute the attention weights over the lengths.

        Args:
            states (`torch.Tensor` of shape `(batch_size, target_length, d)`): The decoder's states.
            remaining (`torch.LongTensor` of shape `(batch_size, target_length)`): Units.

        Returns:
            `torch.Tensor` of shape `(batch_size, target_length, learned_lengths)`: they sum to 1.
        """
        share = remaining.unsqueeze(-1).to(states.dtype) / self.config.length_scale  # (B, T, 1)
        keys = torch.tanh(self.length_key(share) + self.state_key(states))  # (B, T, d)
        return self.length_scores(keys).float().softmax(dim=-1)

    def context(self, states, progress, length, encoder_outputs, mask):
        table = torch.arange(self.config.learned_lengths, device=states.device).unsqueeze(0)  # (1, L)
        whole = table.new_tensor([[self.config.learned_lengths - 1]])
        # LDPE at a remaining length l equals the sinusoids of the position l
        embeddings = LENGTH_ENCODINGS["ldpe"](whole - table, whole, self.config.d_model)[0]  # (L, d)
        weights = self.length_weights(states, length.unsqueeze(1) - progress)  # (B, T, L)
        of_length = weights.to(states.dtype) @ embeddings.to(states.dtype)
        return torch.cat([super().context(states, progress, length, encoder_outputs, mask), of_length], dim=-1)
