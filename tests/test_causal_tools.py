"""A causal language model with a length in the tools people use."""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from test_causal import ARCHITECTURES, LENGTHS, PROMPTS, answers, build, encode, make_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

import hf_lenctrl


EXACT = {"length_constraint": "exact", "do_sample": False}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A folder with a controlled model that the length changes, tied embeddings, and its tokenizer."""
    folder = tmp_path_factory.mktemp("causal")
    _, model = build("llama", tie_word_embeddings=True)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "unit"), [("bart", "token"), ("bart", "word"), ("byte fallback", "character"), ("byte fallback", "word")]
)
def test_every_unit_is_kept_with_every_way_of_decoding(tokenizers_of_every_kind, kind, unit):
    tokenizer = tokenizers_of_every_kind[kind]
    torch.manual_seed(1)
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = AutoConfig.for_model("llama", **ARCHITECTURES["llama"], vocab_size=len(tokenizer), **special)
    plain = AutoModelForCausalLM.from_config(config)
    model = hf_lenctrl.add_length_control(plain, tokenizer=tokenizer, length_unit=unit, length_encoding="lrpe")
    torch.nn.init.normal_(model.length_projection.weight, std=0.3)
    prompt = tokenizer("文字 a", return_tensors="pt")["input_ids"]
    out = model.generate(prompt, length=[3, 8], **EXACT)[:, prompt.shape[1] :]
    texts = tokenizer.batch_decode(out, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    if unit == "token":
        assert [sum(i not in special.values() for i in row) for row in out.tolist()] == [3, 8]
    else:
        assert [hf_lenctrl.count_units(text, unit) for text in texts] == [3, 8], texts


def test_several_outputs_and_the_ways_to_ask(checkpoint):
    model = AutoModelForCausalLM.from_pretrained(checkpoint, length=9)
    prompt = encode(PROMPTS)
    assert answers(model, model.generate(**prompt, **EXACT), prompt) == [9, 9]
    sampled = {"length_constraint": "exact", "do_sample": True, "num_return_sequences": 2}
    out = model.generate(**prompt, **sampled, length=torch.tensor(LENGTHS))
    assert answers(model, out, prompt) == [7, 7, 23, 23]
    out = model.generate(**prompt, num_beams=4, num_return_sequences=2, length=LENGTHS, **EXACT)
    assert answers(model, out, prompt) == [7, 7, 23, 23]
    assert max(answers(model, model.generate(**prompt, length=5, length_constraint="max"), prompt)) <= 5
    static = {"cache_implementation": "static", "disable_compile": True}
    expected = model.generate(**prompt, length=LENGTHS, **EXACT)
    assert torch.equal(model.generate(**prompt, length=LENGTHS, **EXACT, **static), expected)
    limited = model.generate(**prompt, length=LENGTHS, max_new_tokens=3)
    assert limited.shape[1] <= prompt["input_ids"].shape[1] + 3
    words = AutoModelForCausalLM.from_pretrained(checkpoint, length_unit="word")  # of the tokenizer that lies there
    assert answers(words, words.generate(**prompt, length=[2, 4], **EXACT), prompt) == [2, 4]


def test_the_settings_of_the_inner_model_are_those_of_the_whole(checkpoint):
    model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager")
    prompt = encode(PROMPTS)
    assert model(**prompt, length=5).hidden_states is None
    model.config.use_cache, model.config.output_hidden_states, model.config.output_attentions = False, True, True
    out = model(**prompt, length=5)
    assert out.past_key_values is None and len(out.hidden_states) == 3 and len(out.attentions) == 2
    model.loss_function = lambda **kwargs: torch.tensor(7.0)
    assert float(model(**prompt, labels=prompt["input_ids"]).loss) == 7.0
    assert (model.config.num_hidden_layers, model.config.tie_word_embeddings) == (2, True)

    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}
    fields = {"use_cache": False, "attention_dropout": 0.25, "rope_parameters": rope}
    model = AutoModelForCausalLM.from_pretrained(checkpoint, **fields)
    assert model(**prompt, length=5).past_key_values is None
    inner = model.language_model.model
    assert inner.layers[0].self_attn.attention_dropout == 0.25 and inner.rotary_emb.config.rope_parameters == rope
    saved = model.config.to_dict()
    assert not fields.keys() & saved.keys() and saved["text_config"]["attention_dropout"] == 0.25


def test_a_loaded_model_has_the_buffers_that_no_checkpoint_holds(tmp_path, monkeypatch):
    mamba = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8}
    monkeypatch.setitem(ARCHITECTURES, "falcon_h1", ARCHITECTURES["llama"] | mamba)
    _, model = build("falcon_h1", ssm_multipliers=[0.5, 0.7, 0.9, 1.1, 1.3])
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    multipliers = again.language_model.model.layers[0].mamba.mup_vector.flatten()
    expected = torch.tensor([0.5] * 32 + [0.7] * 32 + [0.9] * 8 + [1.1] * 8 + [1.3] * 4)  # z, x, B, C, dt
    assert torch.equal(multipliers, expected)
    prompt = encode(PROMPTS[1:])
    with torch.no_grad():
        assert torch.equal(again(**prompt, length=5).logits, model(**prompt, length=5).logits)


def test_tied_and_resized_embeddings(checkpoint, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    size = model.config.vocab_size
    model.resize_token_embeddings(size + 3)
    assert model.unit_table.weights.shape[1] == model.config.vocab_size == size + 3
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    tokenizer = make_tokenizer().from_pretrained(checkpoint)
    tokenizer.add_tokens(["<one>", "<two>", "<three>"])
    model.set_unit_table(tokenizer)
    assert model.unit_table.count(torch.tensor([[size, size + 2]])).tolist() == [len("<one><three>")]
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again.unit_table.weights, model.unit_table.weights)


def test_half_precision_a_device_map_and_gradient_checkpointing(checkpoint):
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16, device_map="cpu")
    assert model.language_model.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
    assert model.length_projection.weight.dtype == torch.float32
    prompt = encode(PROMPTS)
    assert answers(model, model.generate(**prompt, length=LENGTHS, **EXACT), prompt) == LENGTHS
    plain, half = build("llama", zero=True)
    plain, half = plain.bfloat16(), hf_lenctrl.add_length_control(plain.bfloat16(), tokenizer=make_tokenizer())
    with torch.no_grad():
        assert torch.equal(half(**prompt, length=5).logits, plain(**prompt).logits)

    _, model = build("llama")
    labels = encode(PROMPTS[1:])["input_ids"].clone()
    labels[:, :3] = -100
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.train().zero_grad()
        model(encode(PROMPTS[1:])["input_ids"], labels=labels).loss.backward()
        gradients.append(model.length_projection.weight.grad.clone())
    assert model.language_model.model.gradient_checkpointing
    assert torch.allclose(*gradients, atol=1e-6)


def rows_of(texts, answer):
    tokenizer = make_tokenizer()
    rows = []
    for text in texts:
        prompt, target = tokenizer(text)["input_ids"], tokenizer(answer)["input_ids"] + [1]
        rows.append({"input_ids": prompt + target, "labels": [-100] * len(prompt) + target})
    return rows


def test_lora_trains_the_projection_whole_and_loads_in_five_lines(checkpoint, tmp_path):
    _, model = build("llama", zero=True)
    model.language_model.bfloat16()
    model.save_pretrained(tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    lora = LoraConfig(r=4, task_type="CAUSAL_LM", modules_to_save=["length_projection"])
    model = get_peft_model(model, lora)
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert {name.split(".")[-2] for name in trained if "lora" not in name} == {"default"}
    assert all("length_projection" in name or "lora" in name for name in trained)
    assert {weight.dtype for weight in trained.values()} == {torch.float32}
    frozen = [weight for name, weight in model.named_parameters() if name not in trained and "embed" in name]
    assert frozen[0].dtype == torch.bfloat16
    args = TrainingArguments(str(tmp_path / "run"), max_steps=3, learning_rate=0.05, report_to="none", use_cpu=True)
    rows = rows_of(PROMPTS[:1] * 8, "a small editor")
    Trainer(model=model, args=args, train_dataset=rows).train()
    model.eval().save_pretrained(tmp_path / "adapter")
    ids = torch.tensor([rows[0]["input_ids"][:4]])
    with torch.no_grad():
        expected = [model(ids, length=n).logits for n in LENGTHS]
    assert not torch.allclose(*expected)
    # docs/causal.md has these lines
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    again = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    with torch.no_grad():
        assert torch.equal(again(ids, length=LENGTHS[0]).logits, expected[0])
    merged = again.merge_and_unload()
    out = merged.generate(ids, length=LENGTHS, **EXACT)
    assert merged.unit_table.count(out[:, 4:]).tolist() == LENGTHS
    with pytest.raises(ValueError, match="frozen at zero"):
        alone = build("llama", zero=True)[1]
        alone = get_peft_model(alone, LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
        Trainer(model=alone, args=args, train_dataset=rows).train()
