"""A new model from the recipe's arguments."""

import os

import pytest
import torch
from conftest import SOURCES, TARGETS, build_model
from transformers import BartForConditionalGeneration, MarianMTModel, MarianTokenizer

from hf_lenctrl.commands import train as train_seq2seq
from hf_lenctrl.commands.arguments import ModelArguments
from hf_lenctrl.commands.run import remove_tokenizer


@pytest.mark.parametrize("family", ["marian", "bart"])
def test_a_new_model_has_the_shape_of_the_arguments(family, shared_tokenizer):
    args = ModelArguments(
        family=family, layers=3, d_model=48, attention_heads=4, ffn_dim=80, dropout=0.2, activation_function="gelu"
    )
    args.absolute_positions = True
    model = train_seq2seq.build_model(args, shared_tokenizer, max_positions=777)
    config = model.config
    assert (config.encoder_layers, config.decoder_layers, config.d_model) == (3, 3, 48)
    assert (config.encoder_attention_heads, config.decoder_attention_heads) == (4, 4)
    assert (config.encoder_ffn_dim, config.decoder_ffn_dim) == (80, 80)
    assert (config.dropout, config.activation_function, config.max_position_embeddings) == (0.2, "gelu", 777)
    assert (config.absolute_positions, config.length_encoding, config.length_unit) == (True, "ldpe", "character")
    assert config.pad_token_id == 2 and config.eos_token_id == 0 and config.vocab_size == len(shared_tokenizer)
    # the table is that of the tokenizer: "small text editor" is 17 characters
    assert model.count_labels(torch.tensor([shared_tokenizer(text_target=TARGETS[0])["input_ids"]])).tolist() == [17]


@pytest.mark.parametrize(("family", "stock"), [("marian", MarianMTModel), ("bart", BartForConditionalGeneration)])
def test_a_new_model_that_is_given_no_length_is_a_stock_model(family, stock, shared_tokenizer):
    shape = {"layers": 1, "d_model": 32, "attention_heads": 2, "ffn_dim": 32}
    args = ModelArguments(family=family, length_encoding="none", **shape)
    model = train_seq2seq.build_model(args, shared_tokenizer, max_positions=64)
    assert type(model) is stock and type(model.config) is stock.config_class
    assert not any("length" in name for name in model.config.to_dict())
    assert model.config.vocab_size == len(shared_tokenizer) and model.config.max_position_embeddings == 64
    for option in ({"length_head": True}, {"encoder_length_embedding": True}, {"length_constraint": "exact"}):
        args = ModelArguments(family=family, length_encoding="none", absolute_positions=True, **shape, **option)
        model = train_seq2seq.build_model(args, shared_tokenizer, max_positions=64)
        assert model.config.model_type == f"lenctrl_{family}"


def test_a_new_model_may_have_fewer_decoder_layers_and_another_attention(shared_tokenizer):
    shape = {"layers": 3, "decoder_layers": 1, "d_model": 32, "attention_heads": 2, "ffn_dim": 32}
    for encoding in ("ldpe", "none"):
        args = ModelArguments(length_encoding=encoding, attn_implementation="eager", **shape)
        model = train_seq2seq.build_model(args, shared_tokenizer, max_positions=64)
        assert (len(model.get_encoder().layers), len(model.model.decoder.layers)) == (3, 1)
        used = {module.config._attn_implementation for module in model.modules() if hasattr(module, "out_proj")}
        assert used == {"eager"}


# The tokenizer that a run trains

TEXTS = {"source": SOURCES, "target": TARGETS}


def killed(*args, **kwargs):
    raise KeyboardInterrupt


def test_a_run_keeps_a_tokenizer_only_when_it_is_whole(tmp_path, monkeypatch):
    args, own = ModelArguments(vocab_size=120), tmp_path / "_run"

    def names():
        return [path.name for path in own.iterdir()]

    with monkeypatch.context() as patch:
        patch.setattr(MarianTokenizer, "save_vocabulary", killed)
        with pytest.raises(KeyboardInterrupt):
            train_seq2seq.load_tokenizer(args, TEXTS, str(tmp_path))
    assert names() == ["tokenizer.part"]
    (own / "tokenizer.part" / "vocab.json").write_text("{")
    for _ in range(2):  # trained, then read
        tokenizer = train_seq2seq.load_tokenizer(args, TEXTS, str(tmp_path))
        ids = tokenizer(text_target="small")["input_ids"]
        assert len(ids) == 6 and 1 not in ids and ids[-1] == 0  # five characters, all known, and the end
        assert names() == ["tokenizer"] and "tokenizer.part" not in tokenizer.name_or_path
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_tokenizer(tmp_path)
    assert names() == ["tokenizer.part"]


def test_positions_that_no_checkpoint_holds_are_not_trained(shared_tokenizer, tmp_path):
    model = build_model("marian", vocab_size=len(shared_tokenizer), length_unit="token", absolute_positions=True)
    model.save_pretrained(tmp_path)
    args = ModelArguments(model_name_or_path=str(tmp_path))
    loaded = train_seq2seq.build_model(args, shared_tokenizer, max_positions=128)
    frozen = {name for name, weight in loaded.named_parameters() if not weight.requires_grad}
    assert frozen == {f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}
