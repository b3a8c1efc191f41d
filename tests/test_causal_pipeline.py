"""A causal language model with a length: texts and chats in, a graceful end, and the tools people use."""

import inspect
import math

import pytest
import torch
from conftest import save_in
from test_causal import ARCHITECTURES, LENGTHS, PROMPTS, answers, build, encode, make_tokenizer
from transformers import AutoModelForCausalLM, ByT5Tokenizer, TextStreamer, pipeline, set_seed
from transformers.generation import BaseStreamer

import hf_lenctrl
from hf_lenctrl.inference import pipeline as pipeline_module
from hf_lenctrl.inference import ranking
from hf_lenctrl.inference.chats import as_prompt, as_prompts
from hf_lenctrl.inference.finish import FinishLogitsProcessor, HeldStreamer
from hf_lenctrl.inference.ranking import first_changes, log_probabilities
from hf_lenctrl.inference.sentences import finished, last_sentence_end, settled


TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
CHAT = [{"role": "user", "content": "a small editor"}]
EXACT = {"length_constraint": "exact", "do_sample": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("causal")
    plain, model = build("llama")
    tokenizer = make_tokenizer().from_pretrained(save_in(folder, make_tokenizer()))
    tokenizer.chat_template, tokenizer.padding_side = TEMPLATE, "right"  # the pipeline pads on the left all the same
    for name, part in (("controlled", model), ("plain", plain)):
        save_in(folder / name, part, tokenizer)
    return folder


def test_texts_and_chats_in_answers_out(folder):
    write = pipeline("length-controlled-generation", model=str(folder / "controlled"))
    outputs = write(PROMPTS, length=[7, 23], **EXACT)
    assert [len(out["generated_text"]) for out in outputs] == [7, 23] == [out["length"] for out in outputs]
    assert not any(out["generated_text"].startswith(prompt) for out, prompt in zip(outputs, PROMPTS, strict=True))
    assert write(PROMPTS[0], length=7, **EXACT) == outputs[0]  # alone as in the padded batch
    several = write(PROMPTS[1], length=[5, 23], **EXACT)
    assert [out["length"] for out in several] == [5, 23] and several[1] == outputs[1]

    chat = write(CHAT, length=9, **EXACT)
    rendered = write.tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    prompt = write.tokenizer(rendered, return_tensors="pt")["input_ids"]
    assert rendered == "<s>user: a small editor\nassistant: "
    expected = write.model.generate(prompt, length=9, **EXACT)[0, prompt.shape[1] :]
    assert chat["generated_text"] == write.tokenizer.decode(expected, skip_special_tokens=True)
    assert write((messages for messages in [CHAT, CHAT]), length=[9, 4], **EXACT)[0] == chat
    with pytest.raises(ValueError, match="a chat has no length of its own for length_ratio=0.5"):
        write(CHAT, length_ratio=0.5)
    assert write("a small editor", length_ratio=0.5, **EXACT)["length"] == 7
    for message in ({"role": "user"}, {"role": "user", "content": None}):
        with pytest.raises(ValueError, match="message 1 of a chat has no content, got {'role': 'user'"):
            write([*CHAT, message], length=9)
    parts = [{"role": "user", "content": [{"type": "text", "text": "a small editor"}]}]
    for content in ("m['content']", "m['content'] | join", "m['content'].strip()"):
        write.tokenizer.chat_template = TEMPLATE.replace("+ m['content'] +", f"~ {content} ~")
        with pytest.raises(ValueError, match="takes a text as content, and no list of parts, got .*'a small editor'"):
            write(parts, length=9)
    write.tokenizer.chat_template = TEMPLATE.replace("m['content']", "m['content'][0]['text']")
    assert write(parts, length=9, **EXACT) == chat
    write.tokenizer.chat_template = TEMPLATE
    with pytest.raises(ValueError, match="takes a text as content, and no list of parts, got .*'a small editor'"):
        write(parts, length=9)
    write.tokenizer.chat_template = None
    with pytest.raises(ValueError, match="has no chat template"):
        write(CHAT, length=9)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ('He said "yes." And then', 'He said "yes."'),
        ("Is it? Yes! No… wait", "Is it? Yes! No…"),
        ("「はい。」と", "「はい。」"),
    ],
)
def test_the_last_end_of_a_sentence(text, end):
    assert text[: last_sentence_end(text)] == end


@pytest.mark.parametrize(
    ("text", "finish", "at_word", "expected"),
    [
        ("A first one. A seco", "sentence", False, ("A first one.", "sentence")),
        ("One. A second and a third tha", "sentence", False, ("One. A second and a third", "word")),  # under half
        ("A first one. A sec", "word", False, ("A first one. A", "word")),
        ("A first one.", "word", True, ("A first one.", "sentence")),
        ("Tides: 潮汐は月と太陽の引力によって", "word", False, ("Tides: 潮汐は月と太陽の引力によって", "cut")),
    ],
)
def test_what_was_cut_goes_back_to_its_last_end(text, finish, at_word, expected):
    enough = lambda short: len(short) >= len(text) / 2  # noqa: E731
    assert finished(text, finish, enough, at_word=at_word) == expected


def test_the_processor_ends_where_the_first_choice_has_no_room():
    tokenizer = make_tokenizer()
    table = hf_lenctrl.UnitTable.from_tokenizer(tokenizer, "character")
    dot, word, letter = (tokenizer(text)["input_ids"][0] for text in (".", " other", "x"))
    written = torch.tensor([tokenizer("some")["input_ids"]])
    scores = torch.full((1, len(tokenizer)), -9.0)
    scores[0, word], scores[0, letter], scores[0, dot], scores[0, 1] = 0.0, -1.0, -2.0, -8.0
    width = len(tokenizer.decode([word]))

    def after(length, finish):
        process = FinishLogitsProcessor(tokenizer, table, torch.tensor([length]), finish, eos_token_id=1)
        out = process(written, scores)
        return process, {int(i) for i in (out[0] > -math.inf).nonzero()}

    process, allowed = after(4 + width + 1, "sentence")  # the word and a mark have room
    assert word in allowed and letter in allowed and not process.cut
    process, allowed = after(4 + width, "sentence")  # the word has, no mark behind it: the output ends here
    assert word not in allowed and letter not in allowed and {dot, 1} <= allowed
    assert process.cut == {(0, tuple(written[0].tolist())): True}
    process, allowed = after(4 + width, "word")
    assert word in allowed and not process.cut
    process, allowed = after(4 + width - 1, "word")
    assert allowed == {1}
    assert process.ending(0, [*written[0].tolist(), 1], "some", lambda short: True) == ("some", "word")
    scores[0, dot] = -4.0  # less than a twentieth as likely as the word
    process = FinishLogitsProcessor(tokenizer, table, torch.tensor([4 + width]), "sentence", eos_token_id=1)
    assert int(process(written, scores).argmax()) == 1


@pytest.mark.parametrize("copies", [1, 2])
def test_outputs_of_two_texts_that_write_the_same_end_as_each_alone(copies):
    tokenizer = make_tokenizer()
    table = hf_lenctrl.UnitTable.from_tokenizer(tokenizer, "character")
    word, letter = (tokenizer(text)["input_ids"][0] for text in (" other", "x"))
    some = tokenizer("some")["input_ids"]
    process = FinishLogitsProcessor(tokenizer, table, torch.tensor([4, 4, 4]), "word", eos_token_id=1)
    scores = torch.full((3, len(tokenizer)), -9.0)
    scores[[0, 2], word] = scores[1, letter] = (
        0.0  # after the first text a new word follows, after the second more of it
    )
    process(torch.tensor([some] * 3 * copies), scores.repeat_interleave(copies, dim=0))
    ends = [process.ending(k, [*some, 1], "some", lambda short: True)[1] for k in range(3)]
    assert ends == ["word", "cut", "word"]


@pytest.mark.parametrize("options", [{"num_beams": 3, "num_return_sequences": 2, "do_sample": False}, {}], ids=str)
def test_a_batch_is_finished_as_each_text_alone(folder, options):
    write = pipeline("length-controlled-generation", model=str(folder / "plain"))
    options = {"length_unit": "character", "length_constraint": "max", "finish": "word", "do_sample": False, **options}
    texts = [*"abcdefgh", "a"]
    assert write(texts, length=4, **options) == [write(text, length=4, **options) for text in texts]


@pytest.mark.parametrize("kind", ["bart", "bert", "byte fallback", "m2m_100", "marian", "t5"])
def test_where_a_word_begins_in_every_kind_of_tokenizer(kind, tokenizers_of_every_kind):
    tokenizer = tokenizers_of_every_kind[kind]
    table = hf_lenctrl.UnitTable.from_tokenizer(tokenizer, "character")
    eos = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    written = tokenizer(text_target="card", add_special_tokens=False)["input_ids"]

    def at_word(ids, following):
        length = table.count(torch.tensor([ids]))  # no room for more
        process = FinishLogitsProcessor(tokenizer, table, length, "word", eos_token_id=eos)
        scores = torch.zeros(1, table.weights.shape[1])
        scores[0, tokenizer.convert_tokens_to_ids(following)] = 1.0
        process(torch.tensor([ids]), scores)
        return process.cut[0, tuple(ids)]

    assert at_word(written, {"bart": "Ġd", "bert": "p"}.get(kind, "▁d")) is True
    assert at_word(written, "##p" if kind == "bert" else "p") is False
    assert at_word(written, ",") is True
    if kind in ("bert", "m2m_100", "marian"):  # no entry is a space, or no text ends on one
        return
    assert at_word([*written, tokenizer.convert_tokens_to_ids("Ġ" if kind == "bart" else "▁")], "p") is True


@pytest.mark.parametrize(
    ("text", "finish", "stays"),
    [
        ("A small", "word", "A small"),  # under half of the length, so no word is taken away
        ("A small edi", "word", "A small"),
        ("A small editor ", "word", "A small"),
        ("Yes it is. It wa", "word", "Yes it is. It"),
        ("Yes it is. It wa", "sentence", "Yes it is."),
        ("Yes it is 3.", "sentence", "Yes it is"),  # perhaps 3.5
        ("Yes it is Dr. Wh", "sentence", "Yes it is Dr."),
        ("No. It is wa", "sentence", "No. It is"),
        ("はい。そうです。ま", "sentence", "はい。そうです。"),
    ],
)
def test_what_is_streamed_is_final(text, finish, stays):
    assert text[: settled(text, finish, lambda short: len(short) >= 7)] == stays


class Kept(BaseStreamer):
    """Keeps what it receives."""

    def __init__(self):
        self.ids, self.ends = [], 0

    def put(self, value):
        self.ids.append(value.tolist())

    def end(self):
        self.ends += 1


@pytest.mark.parametrize("finish", ["sentence", "word"])
def test_the_streamed_text_is_the_finished_one(folder, finish):
    write = pipeline("length-controlled-generation", model=str(folder / "plain"))
    options = {"length_unit": "character", "length_constraint": "max", "do_sample": True, "finish": finish}
    decode = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    likely = write.tokenizer.convert_tokens_to_ids([*"abcde.", "Ġ"])
    options["sequence_bias"] = {(i,): 8.0 for i in likely} | {(1,): 6.0}  # and EOS
    kinds = set()
    for seed in range(12):
        set_seed(seed)
        streamer = Kept()
        out = write("a small editor", length=12 + seed, streamer=streamer, **options)
        ids = [token for new in streamer.ids[1:] for token in new]  # the first are the prompt
        assert write.tokenizer.decode(ids, **decode) == out["generated_text"] and streamer.ends == 1
        for k in range(len(ids)):  # nothing was taken back
            assert out["generated_text"].startswith(write.tokenizer.decode(ids[:k], **decode).rstrip("\ufffd"))
        kinds.add(out["finish"])
        set_seed(seed)
        assert write("a small editor", length=12 + seed, **options) == out
    assert len(kinds) > 1 and streamer.ids[0][0] == write.tokenizer("a small editor")["input_ids"]


def test_a_text_that_ends_within_an_entry_is_streamed_to_its_end():
    class Process:
        prompt_length, finish = 1, "word"
        pieces = ["", " ", "a", "b", "c", "bc", "c a"]

        def ending(self, example, ids, text, enough):
            return text[:3], "word"

    class Letters:
        def decode(self, ids, **_):
            return "".join(Process.pieces[i] for i in ids)

    kept = Kept()
    stream = HeldStreamer(kept, Letters(), Process(), lambda text: True)
    for ids in ([[0]], [2], [5], [6], [2]):
        stream.put(torch.tensor(ids))
    stream.end()
    assert kept.ids == [[[0]], [2], [5]]  # "a", "bc"
    kept = Kept()
    stream = HeldStreamer(kept, Letters(), Process(), lambda text: True)
    for ids in ([[0]], [2], [3], [6], [2]):
        stream.put(torch.tensor(ids))
    stream.end()
    assert kept.ids == [[[0]], [2], [3], [4]]  # "a", "b", and the "c" of "c a"


def test_a_streamer_takes_one_text_of_one_length(folder):
    write = pipeline("length-controlled-generation", model=str(folder / "controlled"))
    streamer = TextStreamer(write.tokenizer)
    for texts, length in ((PROMPTS, 7), (PROMPTS[0], [7, 9]), (PROMPTS[0], (7, 9))):
        with pytest.raises(ValueError, match="a streamer takes one text of one length, got [23]; call once for each"):
            write(texts, length=length, streamer=streamer)
    write = pipeline("length-controlled-generation", model=str(folder / "plain"))
    with pytest.raises(ValueError, match="replaces a text that was streamed"):
        write(PROMPTS[0], min_score=-1, on_low_score="natural", streamer=streamer)


@pytest.mark.parametrize("finish", ["sentence", "word"])
def test_an_output_that_was_cut_says_where_it_ends(folder, finish):
    write = pipeline("length-controlled-generation", model=str(folder / "plain"))
    options = {"length_unit": "character", "length_constraint": "max", "do_sample": False}
    for out in write(PROMPTS, length=40, finish=finish, num_beams=3, **options):
        text, end = out["generated_text"], out["finish"]
        assert end in ("sentence", "word", "cut", "model") and out["length"] == len(text) <= 40
        assert end == "model" or (end == "sentence") == (bool(text) and last_sentence_end(text) == len(text))
    # tokens are those that were written: the text alone may have more
    how = {"length_constraint": "max", "do_sample": True, "temperature": 2.0, "num_return_sequences": 40}
    several = write(PROMPTS, length=5, length_unit="token", finish=finish, **how)
    assert all(out["length"] <= 5 for outputs in several for out in outputs)
    with pytest.raises(ValueError, match="finish='word' needs length_constraint='max', got 'exact'"):
        write("a", length=40, finish="word", **(options | {"length_constraint": "exact"}))
    with pytest.raises(ValueError, match="got 'line'"):
        write("a", length=40, finish="line", **options)
    table = hf_lenctrl.UnitTable("token", torch.ones(1, 384))
    with pytest.raises(ValueError, match="ByT5Tokenizer has no decoder"):
        FinishLogitsProcessor(ByT5Tokenizer(), table, 5, "word", eos_token_id=1)


@pytest.mark.parametrize("trees", [True, False])
def test_the_scores_of_answers_are_the_stock_loss_of_prompt_and_answer(folder, trees, monkeypatch):
    if not trees:  # as for a model with a sliding window
        monkeypatch.setattr(ranking, "takes_trees", lambda model: False)
    write = pipeline("length-controlled-generation", model=str(folder / "controlled"))
    plain, tokenizer = AutoModelForCausalLM.from_pretrained(folder / "plain"), write.tokenizer

    def score(prompt: str, answer: str, special: bool = True) -> float:
        before = tokenizer(prompt, add_special_tokens=special)["input_ids"]
        after = tokenizer(answer, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        labels = torch.tensor([[-100] * len(before) + after])
        return -float(plain(torch.tensor([before + after]), labels=labels).loss.detach()) * len(after)

    several = {"length": 9, "length_constraint": "exact", "num_beams": 4, "do_sample": False}
    texts = [out["generated_text"] for out in write(PROMPTS[0], **several, num_return_sequences=4)]
    scores = [score(PROMPTS[0], text) for text in texts]
    assert len(set(texts)) > 1
    assert log_probabilities(plain, tokenizer, PROMPTS[:1] * 4, texts) == pytest.approx(scores, rel=1e-4)
    two = [score(prompt, text) for prompt, text in zip(PROMPTS[:2], texts[:2], strict=True)]
    assert log_probabilities(plain, tokenizer, PROMPTS[:2], texts[:2]) == pytest.approx(two, rel=1e-4)
    variants = ["zzz", f"{texts[0]}!"]  # another first token; one token more before the end
    (changes,) = first_changes(plain, tokenizer, [(PROMPTS[0], texts[0], variants)])
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (texts[0], *variants)]
    begin = tokenizer(PROMPTS[0])["input_ids"]
    with torch.no_grad():
        logits = plain(torch.tensor([begin + ids[0]])).logits[0, len(begin) - 1 :].log_softmax(dim=-1)
    eos = tokenizer.eos_token_id
    assert ids[2][:-1] == ids[0] and ids[1][0] != ids[0][0]
    expected = [logits[0, ids[1][0]] - logits[0, ids[0][0]], logits[-1, ids[2][-1]] - logits[-1, eos]]
    assert changes == pytest.approx([float(each) for each in expected], abs=1e-4)
    [chat] = as_prompts(CHAT, tokenizer)
    expected = pytest.approx([score(chat.text, texts[0], False)], rel=1e-4)
    assert log_probabilities(plain, tokenizer, [chat], texts[:1]) == expected
    assert log_probabilities(plain, tokenizer, [CHAT], texts[:1]) == expected


@pytest.mark.parametrize("why", ["a long text", "a prompt without tokens", "two devices"])
def test_what_no_tree_can_read_is_read_in_rows(folder, why, monkeypatch):
    plain, tokenizer = AutoModelForCausalLM.from_pretrained(folder / "plain"), make_tokenizer()
    prompts, texts = [PROMPTS[0], PROMPTS[0]], ["He came.", "She came home."]
    expected = log_probabilities(plain, tokenizer, prompts, texts)
    monkeypatch.setattr(ranking, "read_trees", lambda *_: pytest.fail("a tree was read"))
    if why == "a long text":
        monkeypatch.setattr(ranking, "MOST", 5)
    elif why == "two devices":
        plain.hf_device_map = {"model.layers.0": 0, "model.layers.1": 1}
    else:  # beside a prompt that has tokens
        prompts, texts = [*prompts, as_prompt("", tokenizer)], [*texts, "It is."]
        assert tokenizer("")["input_ids"] == []
    assert log_probabilities(plain, tokenizer, prompts, texts)[:2] == pytest.approx(expected, abs=1e-4)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A folder with a controlled model that the length changes, tied embeddings, and its tokenizer."""
    _, model = build("llama", tie_word_embeddings=True)
    return save_in(tmp_path_factory.mktemp("causal"), model, make_tokenizer())


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
    plain = build("llama", zero=True)[0].bfloat16()
    half = hf_lenctrl.add_length_control(plain, tokenizer=make_tokenizer())
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


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_a_prompt_is_read_once_for_all_its_lengths_and_beams(name, monkeypatch):
    plain, model = build(name)
    write = hf_lenctrl.LengthControlledGenerationPipeline(model=model, tokenizer=make_tokenizer())
    call = {"length": [5, 9, 23], "length_constraint": "exact", "num_beams": 3, "num_return_sequences": 2}
    read, forward = [], type(plain).forward

    def counted(self, *args, **kwargs):
        given = kwargs.get("inputs_embeds") if kwargs.get("input_ids") is None else kwargs["input_ids"]
        read.append(given.shape[0] * given.shape[1])
        return forward(self, *args, **kwargs)

    counted.__signature__ = inspect.signature(forward)
    monkeypatch.setattr(type(plain), "forward", counted)
    outputs = write(PROMPTS[1], **call)
    shared, tokens = list(read), len(write.tokenizer(PROMPTS[1])["input_ids"])
    scores = log_probabilities(model, write.tokenizer, [PROMPTS[1]] * 3, ["an editor", "a", "a small editor"])
    monkeypatch.setattr(pipeline_module, "read_once", lambda *args: None)
    monkeypatch.setattr(ranking, "read_once", lambda *args: None)
    read.clear()
    assert write(PROMPTS[1], **call) == outputs
    if name == "gemma2":  # its cache has windows
        assert shared == read
    else:
        assert shared[:2] == [tokens - 1, 9] and read[0] == 9 * tokens and shared[2:] == read[1:]
    again = log_probabilities(model, write.tokenizer, [PROMPTS[1]] * 3, ["an editor", "a", "a small editor"])
    assert scores == pytest.approx(again, abs=1e-4)


def test_the_text_generation_pipeline_takes_a_length(folder):
    write = pipeline("text-generation", model=str(folder / "controlled"), device="cpu", return_full_text=False)
    prompt = encode(PROMPTS[:1])["input_ids"]
    expected = write.model.generate(prompt, length=9, **EXACT)[0, prompt.shape[1] :]
    (out,) = write(PROMPTS[0], length=9, **EXACT)
    assert out["generated_text"] == write.tokenizer.decode(expected, skip_special_tokens=True)
    write.tokenizer.padding_side = "left"
    both = write(PROMPTS, length=LENGTHS, batch_size=2, **EXACT)
    assert [len(out["generated_text"]) for (out,) in both] == LENGTHS


def test_drafts_change_no_text_and_a_stop_string_ends_it(folder, caplog):
    write = hf_lenctrl.pipeline(folder / "controlled", device="cpu", do_sample=False, length_constraint="exact")
    plain = AutoModelForCausalLM.from_pretrained(folder / "plain")
    expected = write(PROMPTS[0], length=23)
    controlled = AutoModelForCausalLM.from_pretrained(folder / "controlled", length_constraint="exact")
    for draft in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": plain}, {"assistant_model": controlled}):
        assert write(PROMPTS[0], length=23, **draft) == expected
    text = expected["generated_text"]
    stop = text[9:11]
    end = text.index(stop) + 2
    stopped = write(PROMPTS[0], length=23, length_constraint="max", stop_strings=[stop])
    assert (stopped["generated_text"], stopped["length"]) == (text[:end], end) and end < 23
    caplog.clear()
    assert write(PROMPTS[0], length=23, stop_strings=[stop])["length"] == end
    assert "no entries fit, positions ran out or a stop string came first: rows [0] have" in caplog.text
    write.model.generation_config.stop_strings = [stop]
    assert write(PROMPTS[0], length=23, length_constraint="max") == stopped
