"""The tree that reads shared prefixes once: hf_lenctrl/inference/prefix_tree.py."""

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from hf_lenctrl.inference import prefix_tree
from hf_lenctrl.inference.prefix_tree import read_trees, takes_trees


SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
MORE = {**SIZES, "intermediate_size": 32, "num_key_value_heads": 1, "initializer_range": 0.5}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**MORE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**MORE, head_dim=8)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.5)
    ),
}
# a shared beginning, one row inside another, the same row again, other starts, and a row that shares nothing
ROWS = [
    ([1, 2, 3, 4, 5], 2),
    ([1, 2, 3, 7, 5, 9], 2),
    ([1, 2, 3], 1),
    ([1, 2, 3, 4, 5], 4),
    ([8, 3, 4], 0),
    ([1, 2, 9, 4, 5], 3),
]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("most", [512, 4])
def test_a_tree_gives_the_probabilities_of_each_row(name, attention, most, monkeypatch):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    model.set_attn_implementation(attention)
    monkeypatch.setattr(prefix_tree, "MOST", most)
    assert takes_trees(model)
    found = list(read_trees(model, ROWS))
    assert len(found) == len(ROWS)
    for (ids, start), scores in zip(ROWS, found, strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0, start:].log_softmax(dim=-1)
        torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-4)
    assert list(read_trees(model, [])) == []


def reads(model) -> list[int]:
    """Return a list that grows by the number of tokens of each forward pass."""
    read: list[int] = []
    model.register_forward_pre_hook(lambda _, args, kwargs: read.append(kwargs["input_ids"].numel()), with_kwargs=True)
    return read


def test_a_tree_reads_a_shared_prefix_once(monkeypatch):
    model = MODELS["llama"]()
    read = reads(model)
    list(read_trees(model, ROWS))
    assert read == [5 + 3 + 3 + 3]  # the first row; then, of the rows 2, 5 and 6, the ids that are new
    read.clear()
    monkeypatch.setattr(prefix_tree, "MOST", 4)  # new tokens, so that a long prompt is shared too
    list(read_trees(model, [([*range(20), 30 + k, 31], 19) for k in range(5)]))
    assert read == [22 + 4, 22 + 2]  # three rows, then the prompt again with the others


def test_rows_are_made_one_at_a_time(monkeypatch):
    made = []
    own = torch.searchsorted
    monkeypatch.setattr(torch, "searchsorted", lambda *args: made.append(1) or own(*args))
    rows = read_trees(MODELS["llama"](), [([1, 2, 3], 0)] * 9)
    next(rows)
    assert len(made) == 1  # many rows of few tokens would take much memory


@pytest.mark.parametrize(
    "model",
    [
        lambda: MistralForCausalLM(MistralConfig(**MORE, sliding_window=4)),
        lambda: BloomForCausalLM(BloomConfig(vocab_size=40, hidden_size=16, n_layer=1, n_head=2)),
        lambda: FalconForCausalLM(FalconConfig(**SIZES, alibi=True)),
        lambda: GPTNeoForCausalLM(
            GPTNeoConfig(
                vocab_size=40, hidden_size=16, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]]
            )
        ),
        lambda: OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=40, n_embd=16, n_layer=1, n_head=2)),
        lambda: MambaForCausalLM(MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1)),
    ],
)
def test_a_model_whose_past_is_no_mask_reads_rows(model):
    assert not takes_trees(model())
