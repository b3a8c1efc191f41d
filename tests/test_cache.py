"""Both names of the cache: `cache` from transformers 5.24 on, `past_key_values` before."""

import warnings

import pytest
import torch
from conftest import build_model_of, given_to
from test_causal import PROMPTS, build, encode
from transformers import DynamicCache
from transformers.cache_utils import EncoderDecoderCache

from hf_lenctrl.cache import CACHE


NAMES = ["cache", "past_key_values"]
SOURCE = torch.tensor([[5, 9, 20], [6, 7, 8]])
IDS, PROGRESS = torch.tensor([[2, 31, 32], [2, 41, 33]]), torch.tensor([[0, 1, 2], [0, 1, 2]])


@pytest.fixture(autouse=True)
def no_name_is_deprecated():
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        yield


def new_cache():
    return EncoderDecoderCache(DynamicCache(), DynamicCache())


@pytest.mark.parametrize("name", NAMES)
def test_a_cached_step_is_a_step_of_the_whole(any_family, name):
    model = build_model_of(any_family, absolute_positions=True, length_encoding="ldpe", init_std=0.3)
    whole = model(SOURCE, decoder_input_ids=IDS, length=9, progress=PROGRESS).logits
    out = model(SOURCE, decoder_input_ids=IDS[:, :2], length=9, progress=PROGRESS[:, :2], **{name: new_cache()})
    step = {"decoder_input_ids": IDS[:, 2:], "length": 9, name: out[CACHE]}
    last = model(SOURCE, progress=PROGRESS[:, 2:], **step).logits
    torch.testing.assert_close(last, whole[:, 2:], atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="progress cannot be counted from the last token"):
        model(SOURCE, **step)
    with pytest.raises(ValueError, match="progress cannot be counted from the last token"):
        model.get_decoder()(IDS[:, 2:], length=9, **{name: out[CACHE]})
    with pytest.raises(ValueError, match="two names of one argument, got both; pass one of them"):
        model(SOURCE, decoder_input_ids=IDS, length=9, cache=new_cache(), past_key_values=new_cache())


@pytest.mark.parametrize("name", NAMES)
def test_a_causal_model_reads_a_given_cache(name):
    _, model = build("llama")
    prompt = encode(PROMPTS[1:])
    options = {"length": 23, "length_constraint": "exact", "do_sample": False}
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model.language_model(prompt["input_ids"][:, :-1], **{CACHE: cache})
    seen, keys, read = cache.get_seq_length(), cache.layers[0].keys.clone(), given_to(model, "input_ids")
    out = model.generate(**prompt, **options, **{name: cache})
    assert read[0].shape[1] == 1  # the rest of the prompt is in the cache
    assert torch.equal(out, model.generate(**prompt, **options))
    assert cache.get_seq_length() == seen and torch.equal(cache.layers[0].keys, keys)  # the answer is removed
    several = options | {"length": [9, 23]}
    assert torch.equal(model.generate(**prompt, **several, **{name: cache}), model.generate(**prompt, **several))
    assert cache.get_seq_length() == seen and len(cache.layers[0].keys) == 1
    with pytest.raises(ValueError, match="progress cannot be counted from a cached sequence"):
        model(prompt["input_ids"][:, -1:], length=23, **{name: cache})
