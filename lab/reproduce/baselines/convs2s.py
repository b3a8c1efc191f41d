"""
Convolutional encoder-decoder (Gehring et al. 2017) with LC (Liu et al. 2018).

Every block is a convolution with a gated linear unit and a residual connection, each sum scaled by sqrt(0.5):

    v_i = GLU(W [h_{i-k+1}, ..., h_i] + b),   GLU([a; b]) = a * sigmoid(b)

In the encoder the window is centred on i. In the decoder it ends at i, and each block attends (multi-step attention),
with g_i the embedding of the token at i, z_j the encoder's outputs, e_j its inputs and S the source's positions:

    d_i = W_d v_i + b_d + g_i,   a_ij = softmax over j of d_i' z_j
    c_i = sqrt(S) (sum over j of a_ij (z_j + e_j)),   block's output = h_i + v_i + W_c c_i, scaled

Inputs are token embeddings plus learned positions. LC: the decoder's first block reads len / length_scale x g_i plus
its position instead; nothing else sees the length.

A Transformer layer is two blocks here, of width 3 in the encoder and 5 in the decoder, so that the decoder sees 17
characters with two layers. Weight normalisation is left out; the initial weights are those of the paper's section 3.5.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from transformers.utils import ModelOutput

from .common import Baseline, BaselineConfig, Encoder, attend


WIDTHS = {"encoder": 3, "decoder": 5}


@strict
class ConvS2SConfig(BaselineConfig):
    """`length_encoding`: none; `scale` (LC)."""

    model_type = "baseline_convs2s"
    encodings = ("none", "scale")


@dataclass
class ConvS2SEncoderOutput(ModelOutput):
    """The encoder's outputs z_j and inputs e_j, `(batch_size, source_length, d)` each."""

    last_hidden_state: torch.FloatTensor | None = None
    inputs: torch.FloatTensor | None = None


class Block(nn.Module):
    """Convolution and gated linear unit: `(batch_size, positions, d)` -> the same, shorter by `width - 1`."""

    def __init__(self, d: int, width: int, dropout: float):
        super().__init__()
        self.width = width
        self.convolution = nn.Linear(width * d, 2 * d)  # it maps a window; on a CPU this is faster than nn.Conv1d
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.convolution.weight, std=sqrt(4 * (1 - dropout) / (width * d)))
        nn.init.zeros_(self.convolution.bias)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        windows = self.dropout(states).unfold(1, self.width, 1).flatten(2)  # (B, T, d * width)
        return nn.functional.glu(self.convolution(windows), dim=-1)


class ConvS2SEncoder(Encoder):
    """Source ids to z_j and e_j."""

    def __init__(self, config):
        super().__init__(config)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.d_model)
        sizes = config.d_model, WIDTHS["encoder"], config.dropout
        self.blocks = nn.ModuleList(Block(*sizes) for _ in range(2 * config.encoder_layers))

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        mask = (torch.ones_like(input_ids) if attention_mask is None else attention_mask).unsqueeze(-1)  # (B, S, 1)
        positions = self.embed_positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        inputs = self.dropout(self.embed_tokens(input_ids) + positions)  # (B, S, d)
        states, half = inputs, WIDTHS["encoder"] // 2
        for block in self.blocks:
            # padding is zero, so that a row's states do not depend on its batch
            padded = nn.functional.pad(states * mask, (0, 0, half, half))
            states = (states + block(padded)) * sqrt(0.5)
        return ConvS2SEncoderOutput(last_hidden_state=states, inputs=inputs)


class ConvS2S(Baseline):
    """The encoder-decoder; with `length_encoding="scale"` LC."""

    config_class = ConvS2SConfig
    base_model_prefix = "convs2s"

    def __init__(self, config):
        super().__init__(config)
        d, count = config.d_model, 2 * config.decoder_layers
        self.encoder = ConvS2SEncoder(config)
        self.embed_tokens = nn.Embedding(config.decoder_vocab_size, d, padding_idx=config.pad_token_id)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, d)
        self.blocks = nn.ModuleList(Block(d, WIDTHS["decoder"], config.dropout) for _ in range(count))
        self.queries = nn.ModuleList(nn.Linear(d, d) for _ in range(count))
        self.contexts = nn.ModuleList(nn.Linear(d, d) for _ in range(count))
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(d, config.decoder_vocab_size)
        self.post_init()

    @property
    def _positions(self) -> int | None:
        return self.config.max_position_embeddings

    def token_inputs(self, ids: torch.Tensor, length: Any) -> torch.Tensor:
        """Return the token embeddings, multiplied by the length with LC: `(batch_size, target_length, d)`."""
        embeds = self.embed_tokens(ids)
        if self.config.length_encoding == "scale":
            embeds = embeds * (length.view(-1, 1, 1) / self.config.length_scale)
        return embeds

    def decode(self, ids, progress, length, encoder_outputs, mask, state=None):
        seen = 0 if state is None else state.steps
        positions = torch.arange(seen, seen + ids.shape[1], device=ids.device)
        tokens = self.token_inputs(ids, length) + self.embed_positions(positions)  # (B, T, d)
        states = self.dropout(tokens)
        keys, values = encoder_outputs["last_hidden_state"], sum(encoder_outputs.to_tuple())
        scale = mask.sum(dim=1).sqrt().view(-1, 1, 1)  # the scale of a sum of S vectors, each weighted by about 1 / S
        for i, (block, query, context) in enumerate(zip(self.blocks, self.queries, self.contexts, strict=True)):
            if seen:
                before = state.tensors[f"block_{i}"]
            else:
                before = states.new_zeros(len(ids), block.width - 1, states.shape[-1])
            window = torch.cat([before.to(states.dtype), states], dim=1)  # (B, width - 1 + T, d)
            if state is not None:
                state.tensors[f"block_{i}"] = window[:, 1 - block.width :]
            new = block(window)
            wanted = (query(new) + self.embed_tokens(ids)) * sqrt(0.5)
            found = context(attend(wanted, keys, values, mask) * scale)
            states = (states + (new + found) * sqrt(0.5)) * sqrt(0.5)
        return self.output(self.dropout(states))
