"""
LSTM encoder-decoder with attention (Luong et al. 2015; the two-layer one of Takase & Okazaki 2019, section 3.2), with
LenInit and LenEmb (Kikuchi et al. 2016).

Encoder states s_j; decoder, from the last states of the encoder:

    h_t = LSTM(x_t, h_{t-1})                          x_t the embedding of the token at t
    a_tj = softmax over j of h_t' W s_j,   c_t = sum over j of a_tj s_j
    h~_t = tanh(W_c [c_t; h_t]),           p(y_t) = softmax(W_o h~_t + b_o)

LenInit (Takase & Okazaki, eq. 7): the decoder's first memory cell is m = len x b, b a trained vector for each layer.
LenEmb: x_t = [embedding of the token; embedding of the units that remain].

Luong et al. feed h~_{t-1} to the next step as well. It is left out: the whole target is then one call of `nn.LSTM`, a
step of training four times as fast. The encoder reads in both directions, with half of the width in each.
"""

from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers.utils import ModelOutput

from .common import Baseline, BaselineConfig, Encoder, attend


@strict
class LstmConfig(BaselineConfig):
    """`length_encoding`: none; `initial_cell` (LenInit); `learned` (LenEmb)."""

    model_type = "baseline_lstm"
    encodings = ("none", "initial_cell", "learned")


@dataclass
class LstmEncoderOutput(ModelOutput):
    """States `(batch_size, source_length, d)`, and the last hidden and memory state `(batch_size, layers, d)` each."""

    last_hidden_state: torch.FloatTensor | None = None
    hidden: torch.FloatTensor | None = None
    cell: torch.FloatTensor | None = None


class LstmEncoder(Encoder):
    """The encoder from source ids to states."""

    def __init__(self, config):
        super().__init__(config)
        width, layers = config.d_model, config.encoder_layers
        dropout = config.dropout if layers > 1 else 0.0
        how = {"batch_first": True, "bidirectional": True, "dropout": dropout}
        self.lstm = nn.LSTM(width, width // 2, layers, **how)

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        embeds = self.dropout(self.embed_tokens(input_ids))  # (B, S, d)
        packed = pack_padded_sequence(embeds, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        states, last = self.lstm(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=input_ids.shape[1])
        # (layers * 2, B, d / 2) -> (B, layers, d)
        hidden, cell = (x.unflatten(0, (-1, 2)).permute(2, 0, 1, 3).flatten(2) for x in last)
        return LstmEncoderOutput(last_hidden_state=states, hidden=hidden, cell=cell)


class Lstm(Baseline):
    """The encoder-decoder; `length_encoding` adds LenInit or LenEmb. LA is in `length_attention`."""

    config_class: Any = LstmConfig
    base_model_prefix = "lstm"

    def __init__(self, config):
        super().__init__(config)
        width, layers = config.d_model, config.decoder_layers
        if config.encoder_layers != layers:
            raise ValueError(
                f"the decoder starts from the encoder's states, layer by layer; got {config.encoder_layers} encoder "
                f"and {layers} decoder layers, leave out decoder_layers"
            )
        self.encoder = LstmEncoder(config)
        self.embed_tokens = nn.Embedding(config.decoder_vocab_size, width, padding_idx=config.pad_token_id)
        self.dropout = nn.Dropout(config.dropout)
        beside = 0
        if config.length_encoding == "learned":
            beside = width // 2
            self.length_embedding = nn.Embedding(config.learned_lengths, beside)
        if config.length_encoding == "initial_cell":
            self.length_cell = nn.Parameter(torch.empty(layers, width))
        self.lstm = nn.LSTM(
            width + beside, width, layers, batch_first=True, dropout=config.dropout if layers > 1 else 0.0
        )
        self.score = nn.Linear(width, width, bias=False)
        self.combine = nn.Linear(2 * width + self.length_width(), width, bias=False)
        self.output = nn.Linear(width, config.decoder_vocab_size)
        self.post_init()

    def length_width(self) -> int:
        """Return the width of a length context vector beside the state and the context."""
        return 0

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if module is self and hasattr(self, "length_cell"):
            # lengths are tens of units, so a larger vector would saturate the memory from the start
            nn.init.normal_(self.length_cell, std=0.01)

    def first_state(self, encoder_outputs, length) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Return hidden and memory state before the first step, `(batch_size, layers, d)`; LenInit's memory is eq. 7.
        """
        hidden, cell = encoder_outputs["hidden"], encoder_outputs["cell"]
        if self.config.length_encoding == "initial_cell":
            cell = length.view(-1, 1, 1) * self.length_cell  # (B, layers, d)
        return hidden, cell

    def inputs(self, ids, progress, length) -> torch.Tensor:
        """Return the input of the first layer: `(batch_size, target_length, width)`."""
        embeds = self.embed_tokens(ids)  # (B, T, d)
        if self.config.length_encoding == "learned":
            remaining = (length.unsqueeze(1) - progress).clamp(0, self.config.learned_lengths - 1)  # (B, T)
            embeds = torch.cat([embeds, self.length_embedding(remaining)], dim=-1)
        return self.dropout(embeds)

    def context(self, states, progress, length, encoder_outputs, mask) -> torch.Tensor:
        """Return the parts that make the output's state: the source's context and the state."""
        source = encoder_outputs[0]
        return torch.cat([attend(states, self.score(source), source, mask), states], dim=-1)

    def decode(self, ids, progress, length, encoder_outputs, mask, state=None):
        if state is not None and state.steps > 0:
            hidden, cell = state.tensors["hidden"], state.tensors["cell"]
        else:
            hidden, cell = self.first_state(encoder_outputs, length)
        before = (hidden.transpose(0, 1).contiguous(), cell.to(hidden.dtype).transpose(0, 1).contiguous())
        states, (hidden, cell) = self.lstm(self.inputs(ids, progress, length), before)
        if state is not None:
            state.tensors = {"hidden": hidden.transpose(0, 1), "cell": cell.transpose(0, 1)}
        context = self.context(states, progress, length, encoder_outputs, mask)
        return self.output(self.dropout(torch.tanh(self.combine(context))))
