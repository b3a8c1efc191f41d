"""Length embeddings in encoder and decoder, the length head, scaled embeddings: values by hand and stock classes."""

import copy

import numpy as np
import pytest
import torch
from conftest import FAMILIES, SHAPE, build_model_of
from family_models import stock_model, tokenizer_of
from test_modeling_lenctrl import stock_twin
from transformers import BartConfig, DynamicCache, EncoderDecoderCache
from transformers.models.bart.modeling_bart import BartAttention

from hf_lenctrl import add_length_control
from hf_lenctrl.length_head import LengthHeadAttention


# Nguyen et al. 2023, Table 1, and the baselines
FULL = {"length_encoding": "learned", "encoder_length_embedding": True, "length_head": True}
MODELS = {
    "full": FULL,
    "model 1": {"length_encoding": "learned", "length_head": True},
    "model 2": {"length_encoding": "none", "encoder_length_embedding": True, "length_head": True},
    "LenEmb": {"length_encoding": "learned"},
    "LC": {"length_encoding": "scale"},
    "head and LDPE": {"length_encoding": "ldpe", "length_head": True},
}
SOURCE = torch.tensor([[5, 8, 9, 6, 2], [7, 4, 2, 1, 1]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def wild(family: str, **fields):
    """An untrained model whose zero-initialised parts are not zero."""
    model = build_model_of(family, absolute_positions=True, learned_lengths=16, init_std=0.3, **fields)
    torch.manual_seed(4)
    for name, parameter in model.named_parameters():
        if "length_out" in name or "length_embedding" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def test_the_head_is_the_weighted_mean_of_the_equations():
    torch.manual_seed(0)
    config = BartConfig(**SHAPE)
    head = type("Attention", (LengthHeadAttention, BartAttention), {})
    attention = head(32, 4, is_decoder=True, config=config, layer_idx=0).eval()
    attention.add_length_control()
    plain = BartAttention(32, 4, is_decoder=True, config=config, layer_idx=0).eval()
    plain.load_state_dict(attention.state_dict(), strict=False)
    config._attn_implementation = "eager"
    states, memory = torch.randn(2, 5, 32), torch.randn(2, 7, 32)
    progress = torch.tensor([[0, 2, 3, 7, 8], [0, 1, 1, 4, 6]])
    with torch.no_grad():
        output, _ = attention(states, key_value_states=memory, progress=progress)
        without, _ = plain(states, key_value_states=memory)
        heads = (without - plain.out_proj.bias) @ torch.linalg.inv(plain.out_proj.weight).T  # (B, T, 32), 4 x 8
    z, heads = states.double().numpy(), heads.double().numpy()
    expected = np.zeros_like(z)
    for b in range(2):
        weights = []
        for k in range(5):
            summed = sum(heads[b, k, 8 * j : 8 * j + 8] for j in range(4))  # over heads, eq. 24
            weights.append((progress[b, k].item() + 1) * np.log1p(np.exp(summed.mean())))
            mean = sum(w * z[b, i] for i, w in enumerate(weights)) / sum(weights)  # eq. 22-23
            expected[b, k] = mean @ attention.length_out.weight.detach().double().numpy().T
    np.testing.assert_allclose((output - without).numpy(), expected, atol=2e-4)


@pytest.mark.parametrize(
    ("family", "name"),
    [*((family, "full") for family in FAMILIES), *(("bart", name) for name in MODELS if name != "full")],
)
def test_a_cache_changes_nothing(family, name):
    model = wild(family, **MODELS[name])
    given = {"attention_mask": MASK, "length": [4, 9], "max_new_tokens": 8}
    for options in ({}, {"num_beams": 3, "num_return_sequences": 2}):
        ids = [model.generate(SOURCE, **given, use_cache=cached, **options) for cached in (True, False)]
        assert torch.equal(*ids)


IDS = torch.tensor([[2, 5, 6, 7], [2, 9, 9, 4]])  # </s> starts BART's decoder; every token counts one
REMAINING = torch.tensor([[2, 1, 0, 0], [15, 15, 15, 14]])  # length - progress, from 0 and up to the last row
ENCODER = {"length_encoding": "none", "encoder_length_embedding": True}
SCALED = {"length_encoding": "scale", "length_scale": 4}


@pytest.mark.parametrize(
    ("fields", "lengths", "side", "change"),
    [
        # beyond the table of 16 rows: its last one
        (ENCODER, [3, 99], "", lambda x, table: x + table[torch.tensor([[3], [15]])]),
        (MODELS["LenEmb"], [2, 17], "decoder_", lambda x, table: x + table[REMAINING]),
        (MODELS["LC"], [3, 8], "decoder_", lambda x, _: x * torch.tensor([3.0, 8.0]).view(2, 1, 1)),
        (SCALED, [3, 8], "decoder_", lambda x, _: x * torch.tensor([0.75, 2.0]).view(2, 1, 1)),
    ],
    ids=["encoder", "remaining", "scale", "scale by 4"],
)
def test_embeddings_are_changed_as_in_the_papers(fields, lengths, side, change):
    model = wild("bart", **fields)
    stock, missing, _ = stock_twin("bart", model)
    assert not missing
    given = {"input_ids": SOURCE, "decoder_input_ids": IDS}
    table = next((value for name, value in model.named_parameters() if "length_embedding" in name), None)
    with torch.no_grad():
        logits = model(attention_mask=MASK, **given, length=lengths).logits
        given[f"{side}inputs_embeds"] = change(stock.get_input_embeddings()(given.pop(f"{side}input_ids")), table)
        torch.testing.assert_close(logits, stock(attention_mask=MASK, **given).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pretrained_start_is_the_base_model_at_step_0_and_then_learns(family):
    stock = stock_model(family, scale_embedding=True)
    model = add_length_control(stock, tokenizer=tokenizer_of(family), **FULL)
    new = {name.rsplit(".", 2)[-2] for name in model.conversion_report.new}
    assert new == {"length_embedding", "length_out"} and not model.conversion_report.dropped
    batch = {"input_ids": SOURCE, "attention_mask": MASK, "decoder_input_ids": IDS}
    with torch.no_grad():
        for length in (1, 7, 600):
            assert torch.equal(model(**batch, length=length).logits, stock(**batch).logits)
    model.train()
    model(**batch, length=5).logits.square().mean().backward()
    assert any(p.grad.abs().sum() > 0 for name, p in model.named_parameters() if "length_out" in name)
    used = model.get_decoder().length_embedding.weight.grad.abs().sum(dim=1).nonzero().flatten().tolist()
    assert {2, 3, 4, 5} <= set(used) <= set(range(6))  # of length 5 and of what remains: one table for both


def test_encoder_and_decoder_look_lengths_up_in_one_table(any_family, tmp_path):
    model = wild(any_family, **FULL)
    names = [name for name in model.state_dict() if "length_embedding" in name]
    assert len(names) == 1 and names[0].endswith("decoder.length_embedding.weight")
    batch = {"input_ids": SOURCE, "decoder_input_ids": IDS, "length": [3, 9]}
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        logits = model(**batch).logits
        again = type(model).from_pretrained(tmp_path)
        assert torch.equal(again(**batch).logits, logits)
        states = model.get_encoder()(SOURCE, length=[3, 9])[0]
        for other in (again, copy.deepcopy(again)):
            other.get_decoder().length_embedding.weight[9] += 1  # no other row than that of the second length
            moved = (other.get_encoder()(SOURCE, length=[3, 9])[0] != states).any(dim=(1, 2))
            assert moved.tolist() == [False, True]
        assert torch.equal(model(**batch).logits, logits)


def test_a_cache_of_a_model_without_a_head_is_refused():
    model, other = wild("bart", **FULL), wild("bart", length_encoding="ldpe")
    told = {"length": 9, "past_key_values": EncoderDecoderCache(DynamicCache(), DynamicCache()), "use_cache": True}
    with torch.no_grad():
        other(SOURCE, decoder_input_ids=IDS, **told)
        with pytest.raises(ValueError, match="the cache holds 4 tokens, the length head's sums 0; use a new cache"):
            model(SOURCE, decoder_input_ids=IDS[:, :1], progress=torch.tensor([[4], [4]]), **told)


def test_a_model_that_is_told_by_its_encoder_alone_needs_a_length():
    model = wild("bart", **MODELS["model 2"])
    with pytest.raises(ValueError, match="no length was given; pass it to the call"):
        model(SOURCE, decoder_input_ids=IDS)
    with pytest.raises(ValueError, match="no length was given"):
        model.generate(SOURCE)
    labels = torch.tensor([[5, 6, 7, 2], [9, 2, -100, -100]])
    counted = model(SOURCE, attention_mask=MASK, labels=labels).loss
    assert torch.equal(counted, model(SOURCE, attention_mask=MASK, labels=labels, length=[3, 1]).loss)
