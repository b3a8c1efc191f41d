"""Initial weights of new models."""

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel

from hf_lenctrl import LenCtrlMarianConfig, LenCtrlMarianMTModel, LenCtrlT5Config, LenCtrlT5ForConditionalGeneration
from hf_lenctrl.training import initialize_weights


SHAPE = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 400, "pad_token_id": 2}
SHAPE |= {"encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "scale_embedding": True, "max_position_embeddings": 40}
SHAPE |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "eos_token_id": 0, "decoder_start_token_id": 2}
SEPARATE = {"decoder_vocab_size": 400, "share_encoder_decoder_embeddings": False}


def deviation(weight: torch.Tensor) -> float:
    return float(weight.detach().float().std())


@pytest.mark.parametrize("controlled", [False, True])
def test_the_weights_of_a_new_model_depend_on_its_width(controlled):
    config_class, model_class = (
        (LenCtrlMarianConfig, LenCtrlMarianMTModel) if controlled else (MarianConfig, MarianMTModel)
    )
    model = model_class(config_class(**SHAPE, **SEPARATE, **({"length_encoding": "ldpe"} if controlled else {})))
    initialize_weights(model)
    layer = model.model.decoder.layers[0]
    # Xavier: sqrt(2 / (inputs + outputs)); queries, keys and values are one matrix of 64 inputs and 192 outputs
    assert deviation(layer.fc1.weight) == pytest.approx((2 / 320) ** 0.5, rel=0.03)
    assert deviation(layer.encoder_attn.out_proj.weight) == pytest.approx((2 / 128) ** 0.5, rel=0.03)
    for name in ("q_proj", "k_proj", "v_proj"):
        assert deviation(getattr(layer.self_attn, name).weight) == pytest.approx((2 / 256) ** 0.5, rel=0.03)
    source, target = model.get_encoder().embed_tokens.weight, model.get_decoder().embed_tokens.weight
    assert deviation(source[3:]) == pytest.approx(1 / 8, rel=0.03)
    assert deviation(target[3:]) == pytest.approx(1 / 16, rel=0.03)
    assert not source[2].any()
    assert not target[2].any()
    assert model.lm_head.weight is target  # tied as before


def test_a_shared_vocabulary_is_as_loud_as_a_source():
    model = BartForConditionalGeneration(BartConfig(**SHAPE))
    initialize_weights(model)
    assert deviation(model.model.shared.weight[3:]) == pytest.approx(1 / 8, rel=0.03)


def test_learned_lengths_are_heard_beside_the_words():
    control = {"length_encoding": "learned", "learned_lengths": 64, "absolute_positions": True}
    model = LenCtrlMarianMTModel(LenCtrlMarianConfig(**SHAPE, **SEPARATE, **control, length_head=True))
    initialize_weights(model)
    assert deviation(model.get_decoder().length_embedding.weight) == pytest.approx(0.5, rel=0.03)
    assert not model.get_decoder().layers[0].encoder_attn.length_out.weight.any()
    model = LenCtrlMarianMTModel(LenCtrlMarianConfig(**SHAPE, **SEPARATE, **control, encoder_length_embedding=True))
    initialize_weights(model)  # the encoder reads the table too
    assert deviation(model.get_encoder().length_table.weight) == pytest.approx(0.02, rel=0.05)


def test_a_model_of_t5_is_refused():
    config = LenCtrlT5Config(d_model=16, d_ff=16, d_kv=8, num_heads=2, num_layers=1, vocab_size=20)
    with pytest.raises(
        ValueError, match="takes a BART- or Marian-style model, got a LenCtrlT5ForConditionalGeneration"
    ):
        initialize_weights(LenCtrlT5ForConditionalGeneration(config))
