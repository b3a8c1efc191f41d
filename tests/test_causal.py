"""Any causal language model with a length: every architecture against its own stock class."""

import functools

import pytest
import torch
from conftest import given_to
from huggingface_hub.errors import StrictDataclassClassValidationError
from tokenizers import ByteLevelBPETokenizer
from torch.nn.functional import cross_entropy
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
    PreTrainedTokenizerFast,
    StaticCache,
)
from transformers.generation import BaseStreamer

import hf_lenctrl
from hf_lenctrl import bounded_generation


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "initializer_range": 0.3}
LLAMA = {**SMALL, "intermediate_size": 48, "num_key_value_heads": 1, "max_position_embeddings": 128}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128, "initializer_range": 0.3}
# the configuration of each architecture, small; the table of docs/causal.md has these rows
ARCHITECTURES: dict[str, dict] = {
    "llama": LLAMA,
    "mistral": LLAMA | {"sliding_window": 16},
    "qwen2": LLAMA,
    "qwen3": LLAMA | {"head_dim": 16},
    "gemma": LLAMA | {"head_dim": 16},
    "gemma2": LLAMA | {"head_dim": 16, "sliding_window": 16},
    "gemma3_text": LLAMA | {"head_dim": 16, "sliding_window": 16},
    "phi3": LLAMA,
    "olmo2": LLAMA,
    "smollm3": LLAMA,
    "granite": LLAMA,
    "gpt2": GPT2,
    # embeddings narrower than the model
    "opt": SMALL | {"word_embed_proj_dim": 16, "ffn_dim": 48, "max_position_embeddings": 128, "init_std": 0.3},
    "gpt_neox": SMALL | {"intermediate_size": 48, "max_position_embeddings": 128},
    "falcon": SMALL | {"max_position_embeddings": 128},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 2, "initializer_range": 0.3},
    "gptj": GPT2 | {"rotary_dim": 8},
}
PROMPTS = ["a small editor", "reads and writes images in many formats"]
LENGTHS = [7, 23]


@functools.cache
def make_tokenizer() -> PreTrainedTokenizerFast:
    bpe = ByteLevelBPETokenizer()
    texts = [*PROMPTS, "für alle 文字", "one more text, with other words."] * 3
    bpe.train_from_iterator(texts, vocab_size=300, special_tokens=["<s>", "</s>", "<pad>"], show_progress=False)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "padding_side": "left"}
    return PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, **names)


def build_plain(architecture: str, **fields):
    """The stock class, with random weights."""
    torch.manual_seed(1)
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    size = {"vocab_size": len(make_tokenizer()), **special}
    config = AutoConfig.for_model(architecture, **size, **(ARCHITECTURES[architecture] | fields))
    return AutoModelForCausalLM.from_config(config).eval()


def build(architecture: str, *, zero: bool = False, unit: str = "character", **fields):
    """The plain model and the controlled one, as `add_length_control` makes it or with a length that is heard."""
    plain = build_plain(architecture, **fields)
    model = hf_lenctrl.add_length_control(plain, tokenizer=make_tokenizer(), length_unit=unit)
    if not zero:
        torch.manual_seed(2)
        torch.nn.init.normal_(model.length_projection.weight, std=0.3)
    return plain, model


def encode(texts):
    batch = make_tokenizer()(texts, return_tensors="pt", padding=True)
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def answers(model, out, prompt):
    return model.unit_table.count(out[:, prompt["input_ids"].shape[1] :]).tolist()


@pytest.fixture(params=ARCHITECTURES)
def architecture(request) -> str:
    return request.param


def test_before_training_it_is_the_stock_model_bit_for_bit_and_it_is_trained_and_saved(architecture, tmp_path):
    plain, model = build(architecture, zero=True)
    prompt = encode(PROMPTS)
    with torch.no_grad():
        for length in LENGTHS:
            assert torch.equal(model(**prompt, length=length).logits, plain(**prompt).logits)
        labels = prompt["input_ids"].masked_fill(prompt["attention_mask"] == 0, -100)
        labels[:, :4] = -100
        assert torch.equal(model(**prompt, labels=labels).loss, plain(**prompt, labels=labels).loss)
    expected = plain.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert torch.equal(model.generate(**prompt, max_new_tokens=8, do_sample=False, length=9), expected)
    assert model.conversion_report.new == ("length_projection.weight",)
    assert len(model.conversion_report.kept) == len(list(plain.parameters()))
    model.train()(**prompt, labels=labels).loss.backward()
    assert float(model.length_projection.weight.grad.abs().sum()) > 0
    torch.nn.init.normal_(model.length_projection.weight, std=0.3)
    model.eval().save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, length=9)
    assert type(again) is hf_lenctrl.LenCtrlForCausalLM and again.config.length == 9
    assert again.language_model.config._attn_implementation == model.language_model.config._attn_implementation
    with torch.no_grad():
        assert torch.equal(again(**prompt).logits, model(**prompt, length=9).logits)


# their positions, windows or caches differ; the others have Llama's or GPT-2's
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3_text", "gpt2", "opt", "falcon", "bloom", "gptj"])
def test_the_cache_changes_nothing_and_every_length_is_kept(architecture):
    _, model = build(architecture)
    prompt = encode(PROMPTS)
    options = {"num_beams": 3, "do_sample": False, "max_new_tokens": 24}
    cached = model.generate(**prompt, **options, length=LENGTHS)
    assert torch.equal(cached, model.generate(**prompt, **options, length=LENGTHS, use_cache=False))
    exact = model.generate(**prompt, num_beams=3, do_sample=False, length=LENGTHS, length_constraint="exact")
    assert answers(model, exact, prompt) == LENGTHS
    assert answers(model, cached, prompt) != LENGTHS
    alone, bound = encode(PROMPTS[:1]), {"length_constraint": "max", "do_sample": False}  # a padded row
    together = model.generate(**prompt, length=LENGTHS, **bound)[0, prompt["input_ids"].shape[1] :]
    single = model.generate(**alone, length=LENGTHS[0], **bound)[0, alone["input_ids"].shape[1] :]
    assert together[: len(single)].tolist() == single.tolist()


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt2", "opt", "falcon", "bloom"])
def test_training_reads_what_generation_read(architecture):
    _, model = build(architecture)
    prompt = encode(PROMPTS[1:])
    options = {"length": 15, "length_constraint": "exact", "do_sample": False}
    out = model.generate(**prompt, **options, output_logits=True, return_dict_in_generate=True)
    labels, columns = out.sequences.clone(), prompt["input_ids"].shape[1]
    labels[:, :columns] = -100
    with torch.no_grad():
        trained = model(out.sequences, labels=labels)  # 15 is counted from the labels
    steps = torch.stack(out.logits, dim=1)  # (1, answer, V)
    assert torch.allclose(trained.logits[:, columns - 1 : -1], steps, atol=2e-4)
    assert torch.allclose(trained.loss, cross_entropy(steps[0], out.sequences[0, columns:]), atol=1e-4)
    with torch.no_grad():
        other = model(out.sequences, labels=labels, length=40)
    assert not torch.allclose(other.logits[:, columns - 1 :], trained.logits[:, columns - 1 :], atol=1e-2)
    assert torch.equal(other.logits[:, : columns - 1], trained.logits[:, : columns - 1])  # the prompt is untouched


def test_a_cache_of_the_prompt_serves_every_length():
    _, model = build("llama")
    prompt = encode(PROMPTS[:1])
    with torch.no_grad():
        caches = [model(**prompt, length=n).past_key_values for n in LENGTHS]
    for one, other in zip(caches[0].layers, caches[1].layers, strict=True):
        assert torch.equal(one.keys[:, :, :-1], other.keys[:, :, :-1])
        assert torch.equal(one.values[:, :, :-1], other.values[:, :, :-1])
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model.language_model(prompt["input_ids"][:, :-1], past_key_values=cache)  # no length is needed for it
    options = {"length": 11, "length_constraint": "exact", "do_sample": False}
    shared = model.generate(**prompt, **options, past_key_values=cache)
    assert torch.equal(shared, model.generate(**prompt, **options))


@pytest.mark.parametrize("beams", [1, 3])
def test_a_prompt_read_in_chunks_changes_nothing(beams):
    _, model = build("llama")
    prompt, cut = encode(PROMPTS[1:]), 4
    same = {"do_sample": False, "max_new_tokens": 20, "num_beams": beams}
    options, several = {"length": 9, **same}, {"length": LENGTHS, **same}
    expected, both = model.generate(**prompt, **options), model.generate(**encode(PROMPTS), **several)
    read = given_to(model, "input_ids")
    for chunk in (1, 3, 100):
        read.clear()
        assert torch.equal(model.generate(**encode(PROMPTS), **several, prefill_chunk_size=chunk), both)
        assert max(ids.shape[1] for ids in read) <= chunk or chunk == 100
        for first in (0, cut):  # with a cache of the first columns: all ids, or those that are new
            cache = DynamicCache(config=model.config)
            with torch.no_grad():
                model.language_model(prompt["input_ids"][:, :cut].expand(beams, -1), past_key_values=cache)
            ids = {**prompt, "input_ids": prompt["input_ids"][:, first:], "past_key_values": cache}
            out = model.generate(**ids, **options, prefill_chunk_size=chunk)
            assert torch.equal(out, expected[:, first:])


def test_an_answer_is_counted_up_to_its_end_and_a_row_holds_one():
    tokenizer = make_tokenizer()
    _, model = build("llama")
    first, second = tokenizer("für alle")["input_ids"], tokenizer("文字")["input_ids"]
    newline = tokenizer("\n")["input_ids"]  # a template's, behind EOS: no part of the text
    count = functools.partial(hf_lenctrl.answers.answer_progress, model.unit_table, eos=[1])
    rows = [[-100] * 3 + [*first, 1, *newline], [-100] * 5 + [*second, 1, *newline]]
    labels = torch.tensor([row + [-100] * (18 - len(row)) for row in rows])
    progress, lengths = count(labels)
    assert lengths.tolist() == [8, 2]
    assert progress[0, :3].tolist() == [-1, -1, 0] and progress[1, :5].tolist() == [-1, -1, -1, -1, 0]
    end = len(rows[0])  # the last letter, EOS, the new line
    assert progress[0, end - 3 : end].tolist() == [8, 8, 8] and progress[0, end:].tolist() == [-1] * (18 - end)
    end = len(rows[1])
    assert progress[1, end - 3 : end].tolist() == [2, 2, 2] and progress[1, end:].tolist() == [-1] * (18 - end)
    both = torch.tensor([rows[0] + rows[1], rows[0] + [-100] * len(rows[1])])
    with pytest.raises(ValueError, match=r"a row holds one answer.*got \[2, 1\]; make a row for each answer"):
        model(both.clamp(min=3), labels=both)
    # the first label of a row is never predicted: it is the prompt's; and a row may have no answer
    progress, lengths = count(torch.tensor([[5, *second, 1], [-100] * (len(second) + 2)]))
    assert progress[0, 0] == 0 and lengths.tolist() == [2, 1] and progress[1].tolist() == [-1] * (len(second) + 2)
    with pytest.raises(ValueError, match="every answer .* at least one character, got \\[0\\]"):
        count(torch.tensor([[-100, 1, -100]]))


@pytest.mark.parametrize("architecture", ["llama", "mistral"])  # a cache with a window cannot be cut
def test_an_earlier_answer_is_prompt_in_training_and_generation(architecture):
    _, model = build(architecture)
    options = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True, "max_new_tokens": 8}
    first = model.generate(**encode(PROMPTS[1:]), length=15, **options)
    asked = encode(PROMPTS[:1])["input_ids"]
    ids = torch.cat([first.sequences, asked], dim=1)
    chat = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    fresh = model.generate(**chat, length=23, **options)
    continued = model.generate(**chat, length=23, **options, past_key_values=first.past_key_values)
    assert torch.equal(continued.sequences, fresh.sequences)
    labels = fresh.sequences.clone()
    labels[:, : ids.shape[1]] = -100
    with torch.no_grad():
        trained = model(fresh.sequences, labels=labels, length=23).logits[:, ids.shape[1] - 1 : -1]
    for out in (fresh, continued):
        torch.testing.assert_close(torch.stack(out.logits, dim=1), trained, atol=1e-5, rtol=1e-5)
    new = {"input_ids": asked, "attention_mask": chat["attention_mask"], "past_key_values": fresh.past_key_values}
    with pytest.raises(ValueError, match="tokens before its answer, so pass all ids of the chat"):
        model.generate(**new, length=23)


def test_a_cache_of_fixed_size_is_empty_after_a_call():
    _, model = build("llama")
    prompt, options = encode(PROMPTS[:1]), {"length": 11, "length_constraint": "exact", "do_sample": False}
    cache = StaticCache(config=model.config, max_cache_len=64)
    expected = model.generate(**prompt, **options)
    for _ in range(2):  # nothing is left for the second call
        out = model.generate(**prompt, **options, past_key_values=cache, disable_compile=True)
        assert torch.equal(out, expected) and int(cache.get_seq_length()) == 0


def test_the_length_of_a_right_padded_row_is_heard():
    _, model = build("llama")
    rows = [make_tokenizer()(text)["input_ids"] for text in PROMPTS]
    columns = max(map(len, rows))
    ids = torch.tensor([row + [2] * (columns - len(row)) for row in rows])
    with torch.no_grad():
        together = model(ids, attention_mask=(ids != 2).long(), length=LENGTHS).logits
        for row, logits, length in zip(rows, together, LENGTHS, strict=True):
            alone = model(torch.tensor([row]), length=length).logits[0]
            torch.testing.assert_close(logits[: len(row)], alone, atol=1e-4, rtol=1e-4)
            assert not torch.allclose(alone[-1], model(torch.tensor([row]), length=40).logits[0, -1], atol=1e-2)


def test_a_model_that_is_trained_from_scratch_ends_where_it_was_asked_to():
    """Its task is to spell on from the prompt's letter, in a cycle of twenty."""
    _, model = build("llama", zero=True, unit="token", initializer_range=0.05)
    optimizer = torch.optim.AdamW(model.train().parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-2, total_steps=100)
    t, draw = torch.arange(14), torch.Generator().manual_seed(0)
    for _ in range(100):  # a second
        first, last = (torch.randint(n, (32, 1), generator=draw) for n in (20, 12))  # 1 to 12 letters, and EOS
        ids = torch.where(t <= last + 1, 10 + (first + t) % 20, torch.where(t == last + 2, 1, 2))
        labels = ids.masked_fill((t < 1) | (t > last + 2), -100)
        model(ids, attention_mask=(t <= last + 2).long(), labels=labels).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    prompt, lengths = torch.tensor([[10], [17], [29], [20]]), [3, 12, 7, 1]
    out = model.eval().generate(prompt, attention_mask=torch.ones_like(prompt), length=lengths, do_sample=False)
    for row, length in zip(out.tolist(), lengths, strict=True):
        assert row[: length + 2] == [10 + (row[0] - 10 + i) % 20 for i in range(length + 1)] + [1]


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "opt", "falcon", "bloom"])
def test_the_base_model_hears_the_length_and_has_no_head(architecture):
    _, model = build(architecture)
    ids, progress = encode(PROMPTS[1:])["input_ids"], torch.tensor([[-1, -1, 0, 3, 7]])[:, :5]
    given = {"progress": torch.nn.functional.pad(progress, (ids.shape[1] - 5, 0), value=-1), "length": 9}
    with torch.no_grad():
        states = model.base_model(input_ids=ids, **given).last_hidden_state
        torch.testing.assert_close(model.get_output_embeddings()(states), model(ids, **given).logits)
    with pytest.raises(ValueError, match="training needs labels, -100 over the prompt, or progress= and length="):
        model.train().base_model(input_ids=ids)


def test_training_is_one_graph():
    _, model = build("llama")
    ids = encode(PROMPTS[1:])["input_ids"].repeat(2, 1)
    labels = ids.clone()
    labels[0, :4], labels[1, :6] = -100, -100
    expected = model.train()(ids, labels=labels).loss
    torch._dynamo.reset()
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(ids, labels=labels).loss, expected)


def test_tokens_are_streamed_as_they_are_generated():
    class Streamer(BaseStreamer):
        def __init__(self):
            self.pieces, self.ended = [], False

        def put(self, value):
            self.pieces.append(value.flatten().tolist())

        def end(self):
            self.ended = True

    _, model = build("llama")
    streamer, ids = Streamer(), torch.tensor([[5, 6, 7]])
    whole = model.generate(ids, length=6, length_constraint="exact")
    assert torch.equal(model.generate(ids, length=6, length_constraint="exact", streamer=streamer), whole)
    assert streamer.pieces == [[5, 6, 7], *([token] for token in whole[0, 3:].tolist())] and streamer.ended


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model, ids: model(ids), "no length was given"),
        (lambda model, ids: model.train()(ids, length=4), "training needs labels"),
        (lambda model, ids: model.generate(ids), "no length was given"),
        (lambda model, ids: model.generate(ids, length=0), "length must be at least 1"),
        (lambda model, ids: model.generate(inputs_embeds=model.embed_tokens(ids), length=4), "pass input_ids"),
        (lambda model, ids: model.generate(ids, length=4, guidance_scale=2.0), "needs a model with length_optional"),
        (lambda model, ids: model.generate(ids.repeat(1, 40), length=4000), "or with a prompt shorter than 40 tokens"),
        (lambda model, ids: model.generate(ids, length=4, assistant_early_exit=1), "=1; pass assistant_model=draft"),
        (lambda model, ids: hf_lenctrl.add_length_control(model, tokenizer=make_tokenizer()), "has length control"),
        (lambda model, ids: hf_lenctrl.LenCtrlCausalLMConfig(length_head=True), "needs an encoder"),
        (lambda model, ids: hf_lenctrl.LenCtrlCausalLMConfig(absolute_positions=False), "positions"),
        (lambda model, ids: hf_lenctrl.LenCtrlCausalLMConfig(length_encoding="scale"), "prompt"),
    ],
)
def test_what_cannot_be_is_refused(call, words):
    _, model = build("llama")
    with pytest.raises((ValueError, StrictDataclassClassValidationError), match=words):
        call(model, torch.tensor([[5]]))


@pytest.mark.parametrize("is_configured", [False, True])
def test_a_limit_of_new_tokens_counts_without_the_prompt(caplog, monkeypatch, is_configured):
    model, ids = build("llama")[1], make_tokenizer()(PROMPTS[:1], return_tensors="pt")
    limit = {"max_new_tokens": 3}
    config = GenerationConfig(**limit, eos_token_id=1, pad_token_id=2)
    monkeypatch.setattr(bounded_generation, "_SAID", set())
    model.generate(**ids, **({"generation_config": config} if is_configured else limit), length=40)
    assert f"cut at {ids['input_ids'].shape[1] + 3} tokens" in caplog.text
