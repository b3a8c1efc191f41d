"""Initial weights of a new encoder-decoder, so that it learns to read its source early in training."""

import torch
from torch import nn
from transformers import PreTrainedModel


_ATTENTION_INPUTS = ("q_proj", "k_proj", "v_proj")
TARGET_SCALE = 0.5
# of a table of lengths that the encoder reads too; a larger one, the same at each position, hides the source
SHARED_TABLE_STD = 0.02


@torch.no_grad()
def initialize_weights(model: PreTrainedModel) -> None:
    """
    Initialize the weights of a new BART- or Marian-style model, in place, before training from scratch.

    The classes of Transformers draw every weight from N(0, 0.02), a normal distribution with the standard deviation
    0.02, which suits pretrained models of width 1,024. In a small model, layers with such weights pass on almost
    nothing of the source. Then a length-controlled decoder learns to count long before it reads the source, and all
    outputs are similar. Here the standard deviation depends on the width:

    - linear layers: Xavier (Glorot & Bengio 2010). The projections of queries, keys and values count as one matrix, so
      their standard deviation is `1 / sqrt(2 * d_model)`, as in the code of Vaswani et al. (2017) and of Takase &
      Okazaki (2019).
    - source embeddings: N(0, 1 / sqrt(d_model)), which is N(0, 1) after `scale_embedding` (Vaswani et al. 2017,
      section 3.4).
    - target embeddings, if the decoder has its own vocabulary: half of the standard deviation of source embeddings.
      Larger embeddings would be too large next to the length encoding, whose root mean square is 0.7.
    - length embeddings (`length_encoding="learned"`): the standard deviation of the target embeddings after
      `scale_embedding`. It is 0.5 if the decoder has its own vocabulary, otherwise 1. If the encoder reads the same
      table (`encoder_length_embedding`), it is 0.02.

    Biases stay 0, the weights of layer norms stay 1, and `length_projection` and `length_out` stay 0. T5-style models
    raise an error, because their classes already draw weights that depend on the width.

    Args:
        model (`PreTrainedModel`): A model made from a configuration, with or without length control.

    Raises:
        `ValueError`: if the model is not BART- or Marian-style.

    Example:

    ```python
    >>> import torch
    >>> from hf_lenctrl import LenCtrlMarianConfig, LenCtrlMarianMTModel
    >>> from hf_lenctrl.training.initial_weights import initialize_weights
    >>> shape = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 100, "pad_token_id": 2}
    >>> model = LenCtrlMarianMTModel(LenCtrlMarianConfig(**shape, scale_embedding=True, length_encoding="ldpe"))
    >>> initialize_weights(model)
    >>> round(float(model.model.encoder.layers[0].self_attn.q_proj.weight.std()), 2)  # the class draws 0.02
    0.09

    ```
    """
    if not hasattr(model.get_encoder(), "layers"):  # T5 has blocks
        raise ValueError(f"initialize_weights takes a BART- or Marian-style model, got a {type(model).__name__}")
    output, width = model.get_output_embeddings(), model.config.d_model
    for name, module in model.named_modules():
        if type(module) is nn.Linear and module is not output:
            joint = name.rpartition(".")[2] in _ATTENTION_INPUTS
            nn.init.xavier_uniform_(module.weight, gain=2**-0.5 if joint else 1.0)
    source, target = model.get_encoder().embed_tokens, model.get_decoder().embed_tokens
    separate = source.weight is not target.weight
    if separate:
        _draw_embedding(target, TARGET_SCALE * width**-0.5)
    _draw_embedding(source, width**-0.5)
    lengths = getattr(model.get_decoder(), "length_embedding", None)
    if lengths is not None:
        shared = getattr(model.config, "encoder_length_embedding", False)
        nn.init.normal_(lengths.weight, std=SHARED_TABLE_STD if shared else TARGET_SCALE if separate else 1.0)


def _draw_embedding(embedding: nn.Embedding, std: float) -> None:
    nn.init.normal_(embedding.weight, std=std)
    if embedding.padding_idx is not None:
        nn.init.zeros_(embedding.weight[embedding.padding_idx])
