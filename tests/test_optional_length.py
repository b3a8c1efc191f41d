"""A model that was trained on rows without a length too."""

import copy

import pytest
import torch
from conftest import build_model
from family_models import stock_model, tokenizer_of
from test_causal import build_plain, make_tokenizer

from hf_lenctrl import add_length_control


@pytest.fixture(scope="module", params=["marian", "t5", "llama"])
def optional(request):
    """A model whose length projection is not zero, and the stock model that it was made from."""
    causal = request.param == "llama"
    stock = build_plain("llama") if causal else stock_model(request.param)
    tokenizer = make_tokenizer() if causal else tokenizer_of(request.param)
    options = {"length_encoding": "lrpe", "length_unit": "character"}
    model = add_length_control(copy.deepcopy(stock), tokenizer=tokenizer, **options)
    torch.manual_seed(0)
    with torch.no_grad():
        model._counting_part().length_projection.weight.normal_()
    model.make_length_optional()
    return model.eval(), stock.eval()


def test_without_a_length_an_optional_model_is_the_stock_model(optional):
    model, stock = optional
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    options = {"max_new_tokens": 12, "num_beams": 2}
    assert torch.equal(model.generate(**inputs, **options), stock.generate(**inputs, **options))
    labels = torch.tensor([[5, 6, 7, 8]])
    expected = stock(**inputs, labels=labels).logits
    # row by row: 0 is no length, and a row with a length is another
    both = {name: torch.cat([value, value]) for name, value in (*inputs.items(), ("labels", labels))}
    none, five = model(**both, length=torch.tensor([0, 5])).logits
    assert torch.allclose(none, expected[0], atol=1e-5)
    assert not torch.allclose(five, expected[0], atol=1e-2)


def test_a_constraint_needs_a_length_of_an_optional_model_too(optional):
    ids = torch.tensor([[5, 6, 7, 8]])
    with pytest.raises(ValueError, match="no length was given"):
        optional[0].generate(ids, attention_mask=torch.ones_like(ids), length_constraint="max")


def test_rows_without_a_length_train_what_rows_with_one_do_not(optional):
    model, _ = optional
    ids = torch.tensor([[5, 6, 7, 8]])
    weight = model._counting_part().length_projection.weight
    for length, learns in ((0, False), (4, True)):
        model.zero_grad()
        model(input_ids=ids, labels=ids, length=torch.tensor([length])).loss.backward()
        assert bool(torch.isfinite(weight.grad).all()) and bool(weight.grad.any()) == learns
    model.zero_grad()


def test_what_cannot_be_switched_off_is_not_optional():
    model = build_model("marian", length_encoding="ldpe")  # in place of the positions
    with pytest.raises(ValueError, match="length_optional=True switches off"):
        model.make_length_optional()
