"""Adapters and quantizers over length-controlled models."""

import contextlib
import re

import peft
import pytest
import torch
from conftest import build_model_of, given_to
from test_causal import LENGTHS, PROMPTS, answers, build, encode

from hf_lenctrl.cache import CACHE


SOURCE = torch.tensor([[11, 12, 13, 14], [5, 6, 7, 8]])
LABELS = torch.tensor([[31, 32, 2], [35, 36, 2]])
FULL = {"length_encoding": "learned", "length_head": True, "encoder_length_embedding": True}


def controlled(family, **fields):
    """As `add_length_control` makes it: the length modules start at zero."""
    return build_model_of(family, absolute_positions=True, length_projection=True, **fields)


def train(model, steps=2):
    model.train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=5.0)
    for _ in range(steps):
        model(input_ids=SOURCE, labels=LABELS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@torch.no_grad()
def logits(model, length):
    return model(input_ids=SOURCE, labels=LABELS, length=length).logits


def test_lora_without_targets_trains_and_saves_the_length(any_family, tmp_path):
    model = peft.get_peft_model(controlled(any_family, **FULL), peft.LoraConfig(init_lora_weights=True))
    assert torch.equal(logits(model.eval(), 3), logits(model, 9))  # as pretrained
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    for module in ("length_projection", "length_embedding", "length_out"):
        assert any(module in name for name in trained), module
    train(model)
    expected = logits(model, 3)
    assert not torch.allclose(expected, logits(model, 9), atol=1e-5)
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(controlled(any_family, **FULL), tmp_path)
    assert torch.equal(logits(again, 3), expected)


def test_dora_on_modules_that_are_zero_is_refused_with_what_works():
    names = ["length_projection", "length_embedding", "length_out"]
    message = re.escape(f"LoraConfig(use_dora=True, exclude_modules={names}, modules_to_save={names})")
    with pytest.raises(ValueError, match=f"DoRA divides by the norm of modules at zero; pass {message}"):
        train(peft.get_peft_model(controlled("bart", **FULL), peft.LoraConfig(use_dora=True)))
    with pytest.raises(ValueError, match="DoRA divides by the norm of modules at zero"):  # the logits would be NaN
        logits(peft.get_peft_model(controlled("bart"), peft.LoraConfig(use_dora=True)).eval(), 3)
    config = peft.LoraConfig(use_dora=True, exclude_modules=names, modules_to_save=names)
    model = peft.get_peft_model(controlled("bart", **FULL), config)
    assert torch.equal(logits(model.eval(), 3), logits(model, 9))  # as pretrained
    train(model)
    assert logits(model, 3).isfinite().all() and not torch.allclose(logits(model, 3), logits(model, 9), atol=1e-5)


def test_lora_on_the_output_projections_leaves_the_length_head_whole(any_family):
    model = controlled(any_family, **FULL)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "length" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    expected = logits(model, 3)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["out_proj", "o", "length_projection"])).eval()
    assert torch.equal(logits(adapted, 3), expected)  # an adapter starts as nothing
    train(adapted, 1)
    assert not torch.allclose(logits(adapted, 3), expected, atol=1e-5)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(logits(merged, 3), logits(adapted, 3))


def refused_under_two_names():
    """PEFT 0.21 gives its prefix to `generate` under the old name; from transformers 5.24 on it would be dropped."""
    error = pytest.raises(ValueError, match="prefix tuning of PEFT 0.21 gives both")
    return error if CACHE == "cache" else contextlib.nullcontext()


def test_prefix_tuning_counts_the_text_and_not_its_virtual_tokens(any_family):
    model = build_model_of(any_family, absolute_positions=True, length_encoding="ldpe")
    seen = given_to(model.get_decoder(), "progress")
    config = peft.PrefixTuningConfig(task_type=peft.TaskType.SEQ_2_SEQ_LM, num_virtual_tokens=4)
    tuned = peft.get_peft_model(model, config)
    assert torch.isfinite(train(tuned, 1)(input_ids=SOURCE, labels=LABELS).loss)
    assert seen[0].tolist() == [[0, 1, 2], [0, 1, 2]]
    with refused_under_two_names():
        ids = tuned.generate(input_ids=SOURCE, length=5, max_new_tokens=6)
        assert ids.shape[0] == 2 and seen[-1].shape == (2, 1)


ON_EMBEDDINGS = {"all tokens": {"target_modules": ["embed_tokens"]}}
ON_EMBEDDINGS["some tokens"] = {"target_modules": ["q_proj", "q"], "trainable_token_indices": [31, 35]}


@pytest.mark.parametrize("fields", ON_EMBEDDINGS.values(), ids=list(ON_EMBEDDINGS))
def test_an_adapter_may_train_token_embeddings(any_family, fields):
    expected = logits(controlled(any_family), 3)
    options = fields | {"modules_to_save": ["length_projection"]}
    model = peft.get_peft_model(controlled(any_family), peft.LoraConfig(**options))
    assert torch.equal(logits(model.eval(), 3), expected)
    train(model)
    assert not torch.allclose(logits(model, 3), logits(model, 9), atol=1e-5)


def test_an_adapter_that_leaves_a_new_projection_out_is_told_the_setting_that_works():
    model = peft.get_peft_model(controlled("bart"), peft.LoraConfig(target_modules=["q_proj"])).train()
    with pytest.raises(ValueError, match=r"length_projection is frozen .*modules_to_save=\['length_projection'\]"):
        model(input_ids=SOURCE, labels=LABELS)  # that it works is test_an_adapter_may_train_token_embeddings


@pytest.mark.parametrize("encoding", ["learned", "none"])
def test_an_adapter_that_leaves_a_new_table_of_lengths_out_is_told_the_setting_that_works(encoding):
    fields = {"length_encoding": encoding, "encoder_length_embedding": True, "absolute_positions": True}
    config = peft.LoraConfig(target_modules=["q_proj"])
    model = peft.get_peft_model(build_model_of("bart", **fields), config).train()
    with pytest.raises(ValueError, match=r"length_embedding is frozen .*modules_to_save=\['length_embedding'\]"):
        model(input_ids=SOURCE, labels=LABELS)
    config = peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["length_embedding"])
    tuned = train(peft.get_peft_model(build_model_of("bart", **fields), config))
    assert not torch.allclose(logits(tuned, 2), logits(tuned, 9), atol=1e-5)  # the labels have two tokens


def test_an_adapter_changes_the_shared_table_for_both_sides_and_merges_as_it_was_trained(any_family):
    model = build_model_of(any_family, absolute_positions=True, **FULL)
    tuned = train(peft.get_peft_model(model, peft.LoraConfig(target_modules=["length_embedding"])))
    expected, states = logits(tuned, 3), tuned.get_base_model().get_encoder()(SOURCE, length=3)[0]
    assert not torch.allclose(expected, logits(tuned, 9), atol=1e-5)
    merged = tuned.merge_and_unload()
    torch.testing.assert_close(merged.get_encoder()(SOURCE, length=3)[0], states)
    torch.testing.assert_close(logits(merged, 3), expected)


CAUSAL = {
    "prompt tuning": peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "p-tuning": peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=4, encoder_hidden_size=8),
    "prefix tuning": peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "lora": peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"),
    "lora of tokens": peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["embed_tokens", "q_proj"]),
    "ia3": peft.IA3Config(
        task_type="CAUSAL_LM", target_modules=["k_proj", "up_proj"], feedforward_modules=["up_proj"]
    ),
}


@pytest.mark.skipif(CACHE != "cache", reason="transformers before 5.24")
def test_a_prefix_that_generate_would_drop_is_refused():
    tuned = peft.get_peft_model(build("llama")[1], CAUSAL["prefix tuning"])
    with refused_under_two_names():
        tuned.generate(**encode(PROMPTS), length=LENGTHS)


@pytest.mark.parametrize("adapter", [name for name in CAUSAL if (name, CACHE) != ("prefix tuning", "cache")])
def test_a_causal_model_generates_with_an_adapter(adapter, tmp_path):
    def adapted(model):
        torch.manual_seed(5)  # of the virtual tokens
        return peft.get_peft_model(model.train(), CAUSAL[adapter]).eval()

    prompt, options = encode(PROMPTS), {"num_beams": 3, "do_sample": False}
    plain, model = build("llama", zero=True)
    expected = adapted(plain).generate(**prompt, **options, max_new_tokens=12)
    tuned = adapted(model)
    assert torch.equal(tuned.generate(**prompt, **options, max_new_tokens=12, length=LENGTHS), expected)

    tuned = adapted(build("llama")[1])  # the length is heard
    assert not torch.equal(tuned.generate(**prompt, **options, max_new_tokens=12, length=LENGTHS), expected)
    exact = tuned.generate(**prompt, **options, length=LENGTHS, length_constraint="exact")
    assert answers(tuned.get_base_model(), exact, prompt) == LENGTHS
    tuned.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(build("llama")[1], tmp_path)
    assert torch.equal(again.generate(**prompt, **options, length=LENGTHS, length_constraint="exact"), exact)
