"""`generate` with a length: a small trained model whose right output can be counted out, and random models."""

import copy
import functools
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import MARIAN, TARGETS, build_model
from transformers import GenerationConfig
from transformers.cache_utils import DynamicLayer

from hf_lenctrl import UnitTable
from hf_lenctrl.bounded_generation import token_limit
from hf_lenctrl.generation import FROM_CONFIG, Resolved, resolve
from hf_lenctrl.lengths import as_target


# The trained model's task: the source starts with a letter of a cyclic alphabet, the target spells on from it.
FIRST, LETTERS, LONGEST = 4, 20, 30


def spelled(letter: int, count: int) -> list[int]:
    return [FIRST + (letter - FIRST + i) % LETTERS for i in range(count)]


@functools.cache
def trained_speller(family, **fields):
    model = build_model(family, vocab_size=FIRST + LETTERS, encoder_layers=1, dropout=0.0, **fields).train()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-2, total_steps=120)
    draw = torch.Generator().manual_seed(0)
    for _ in range(120):
        source = torch.randint(FIRST, FIRST + LETTERS, (32, 4), generator=draw)
        mask = (torch.arange(4) < torch.randint(1, 5, (32, 1), generator=draw)).long()
        length = torch.randint(1, LONGEST + 1, (32, 1), generator=draw)
        t = torch.arange(LONGEST + 1)
        letters = (source[:, :1] - FIRST + t) % LETTERS + FIRST
        labels = torch.where(t < length, letters, torch.where(t == length, model.config.eos_token_id, -100))
        source = source.masked_fill(mask == 0, model.config.pad_token_id)
        model(source, attention_mask=mask, labels=labels).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.fixture
def speller():
    return copy.deepcopy(trained_speller("bart"))


def inputs_of(model):
    """Three sources of different lengths, padded; they start with the letters 5, 9 and 20."""
    pad = model.config.pad_token_id
    ids = torch.tensor([[5, 11, 7, 8], [9, pad, pad, pad], [20, 6, pad, pad]])
    return {"input_ids": ids, "attention_mask": (ids != pad).long()}


@pytest.fixture
def inputs(speller):
    return inputs_of(speller)


def expected(model, lengths, letters=(5, 9, 20)):
    """Decoder start, the letters, EOS, padding."""
    config = model.config
    rows = [
        [config.decoder_start_token_id, *spelled(letter, n), config.eos_token_id]
        for letter, n in zip(letters, lengths, strict=True)
    ]
    width = max(map(len, rows))
    return [row + [config.pad_token_id] * (width - len(row)) for row in rows]


@pytest.mark.parametrize(
    ("family", "fields", "num_beams"),
    [("bart", {}, 1), ("bart", {}, 4), ("marian", {"length_encoding": "pre", "absolute_positions": True}, 4)],
)
def test_each_row_has_the_length_asked_for(family, fields, num_beams):
    model = trained_speller(family, **fields)
    for length in (1, 30, [3, 25, 11], torch.tensor([7, 2, 19], dtype=torch.int32), np.array([4, 9, 2])):
        lengths = [length] * 3 if isinstance(length, int) else [int(n) for n in length]
        output = model.generate(**inputs_of(model), num_beams=num_beams, length=length)
        assert output.tolist() == expected(model, lengths)


@pytest.mark.parametrize("constraint", ["max", "exact"])
@torch.no_grad()
def test_enough_beams_find_the_likeliest_of_all_outputs(constraint):
    """Of four letters, at most three or exactly three; each output is scored by a forward pass of its own."""
    model = build_model("bart", vocab_size=7, init_std=0.5, tie_word_embeddings=False).double()
    model.final_logits_bias[0, :2] = -1e4  # BOS and padding, which write nothing
    source, scored = torch.tensor([[4, 6]]), []
    for letters in range(4) if constraint == "max" else (3,):
        for text in itertools.product(range(3, 7), repeat=letters):
            logits = model(source, decoder_input_ids=torch.tensor([[2, *text]]), length=3).logits[0]
            steps = logits.log_softmax(-1)[range(letters + 1), [*text, 2]]
            scored.append((float(steps.sum()), [2, *text, 2]))
    best = sorted(scored, reverse=True)[:20]
    options = {"num_beams": 100, "num_return_sequences": 20, "length_penalty": 0.0, "output_scores": True}
    out = model.generate(source, length=3, length_constraint=constraint, return_dict_in_generate=True, **options)
    assert [row[: row.index(2, 1) + 1] for row in out.sequences.tolist()] == [text for _, text in best]
    assert out.sequences_scores.tolist() == pytest.approx([score for score, _ in best], abs=1e-6)


def test_beams_leave_the_cross_attention_of_their_text_in_place(monkeypatch):
    reordered = []
    monkeypatch.setattr(DynamicLayer, "reorder_cache", lambda layer, rows: reordered.append(layer.keys.shape[2]))
    model = build_model("marian")
    ids = torch.tensor([[4, 5, 6, 7, 8, 9, 10, 11]])
    model.generate(ids, num_beams=3, length=4, max_new_tokens=4, min_new_tokens=4)
    # the decoder's two layers hold one position more at each step, the source has 8
    assert reordered == [1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize(("num_beams", "chunk"), [(1, None), (4, None), (1, 2)])
def test_letters_of_a_decoder_prompt_count(speller, num_beams, chunk):
    start = speller.config.decoder_start_token_id
    prompt = torch.tensor([[start, 5, 6, 7], [start, 9, 10, 11]])
    options = {"decoder_input_ids": prompt, "num_beams": num_beams, "prefill_chunk_size": chunk}
    output = speller.generate(torch.tensor([[5], [9]]), **options, length=[3, 12])
    assert output.tolist() == expected(speller, [3, 12], letters=(5, 9))


def test_padding_before_a_decoder_prompt_does_not_count(speller):
    start, pad = speller.config.decoder_start_token_id, speller.config.pad_token_id
    prompt = torch.tensor([[start, 5, 6, 7], [pad, pad, start, 9]])
    given = {"decoder_input_ids": prompt, "decoder_attention_mask": torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])}
    output = speller.generate(torch.tensor([[5], [9]]), **given, length=[4, 12])
    assert output[0, :6].tolist() == expected(speller, [4], letters=[5])[0]
    assert output[1, 2:].tolist() == expected(speller, [12], letters=[9])[0]


def test_encoder_outputs_and_embeddings_do_as_source_ids_do(speller, inputs):
    mask = inputs["attention_mask"]
    encoded = speller.get_encoder()(**inputs)
    output = speller.generate(encoder_outputs=encoded, attention_mask=mask, length=[3, 25, 11], num_beams=2)
    assert output.tolist() == expected(speller, [3, 25, 11])
    embeds = speller.model.encoder.embed_tokens(inputs["input_ids"])
    output = speller.generate(inputs_embeds=embeds, attention_mask=mask, length=[3, 25, 11])
    assert output.tolist() == expected(speller, [3, 25, 11])


def watch(model, monkeypatch):
    """Running rows with the progress and length that the decoder gets for them, one entry a step."""
    steps, running = [], []
    prepare = model.prepare_inputs_for_generation

    def note_rows(input_ids, **kwargs):
        running.append(input_ids.tolist())
        return prepare(input_ids, **kwargs)

    def note_inputs(module, args, kwargs):
        steps.append((running[-1], kwargs["progress"].tolist(), kwargs["length"].tolist()))

    monkeypatch.setattr(model, "prepare_inputs_for_generation", note_rows)
    model.model.decoder.register_forward_pre_hook(note_inputs, with_kwargs=True)
    return steps


SAMPLED_BEAMS = {"do_sample": True, "num_beams": 3, "num_return_sequences": 2}


@pytest.mark.parametrize(
    ("family", "mode", "use_cache"),
    [
        ("bart", {"num_beams": 4}, True),
        ("marian", {"do_sample": True, "num_return_sequences": 3}, True),
        ("bart", SAMPLED_BEAMS, True),
        ("marian", SAMPLED_BEAMS, False),
    ],
)
def test_progress_of_a_step_is_the_length_of_the_text_so_far(family, shared_tokenizer, monkeypatch, mode, use_cache):
    fields = {**MARIAN, "vocab_size": len(shared_tokenizer), "length_unit": "character"}
    model = build_model(family, **fields, init_std=0.2, tie_word_embeddings=False)
    model.set_unit_table(shared_tokenizer)
    steps = watch(model, monkeypatch)
    source = shared_tokenizer(TARGETS[:2], padding=True, return_tensors="pt")
    torch.manual_seed(0)
    model.generate(**source, **mode, length=[10, 20], max_new_tokens=8, use_cache=use_cache)
    assert len(steps) == 8
    copies = len(steps[0][0]) // 2
    reordered = False
    for (before, _, _), (rows, _, _) in zip(steps, steps[1:], strict=False):
        reordered |= [row[:-1] for row in rows] != before
    assert reordered == ("num_beams" in mode)  # else nothing here would see a progress that stays behind its beam
    for t, (rows, progress, length) in enumerate(steps):
        assert length == [10] * copies + [20] * copies
        for row, told in zip(rows, progress, strict=True):
            prefixes = range(t + 1, t + 2) if use_cache else range(1, t + 2)
            assert told == [len(shared_tokenizer.decode(row[:n], skip_special_tokens=True)) for n in prefixes]
    assert len({row[-1] for row in steps[-1][1]}) > 1  # rows had written different numbers of characters


@pytest.fixture
def endless():
    """A model that never ends by itself, so that what comes out is the limit."""
    model = build_model("bart")
    model.final_logits_bias[0, model.config.eos_token_id] = -1e4
    return model


SOURCE = torch.tensor([[11, 12], [21, 22]])


@pytest.mark.parametrize(
    "fields", [{"max_length": 20}, {"max_new_tokens": 5}, {"min_length": 25}, {"min_new_tokens": 25}]
)
def test_limits_of_the_checkpoint_give_way_to_the_length_and_those_of_a_call_hold(speller, inputs, fields):
    # Seq2SeqTrainer writes the library's default of 20 into model.generation_config
    speller.generation_config.update(**fields)
    for config in (None, GenerationConfig(num_beams=2)):
        output = speller.generate(**inputs, generation_config=config, length=[3, 30, 11])
        assert output.tolist() == expected(speller, [3, 30, 11])
    bound = speller.generate(**inputs, length=[3, 20, 11], length_constraint="max")
    assert bound.tolist() == expected(speller, [3, 20, 11])
    own = speller.generate(**inputs, length=[3, 20, 11], **fields)
    assert own.shape[1] == fields.get("max_length", 6) if "max" in "".join(fields) else own.shape[1] >= 25


@pytest.mark.parametrize(
    ("unit", "states", "limit"),
    [
        ("token", 1, 53),  # 2 entries for each of 10 units, the decoder's start, and 32
        ("byte", 1, 53),
        ("character", 3, 53),
        ("character", 4, 113),  # 8: bytes of a character are entries
        ("width", 4, 113),
        ("word", 3, 273),  # 24
        ("cost", 1, 73),  # 4: an entry writes 2 on average, and is taken to write half of one
    ],
)
def test_the_limit_is_made_from_the_length_and_the_unit(unit, states, limit):
    weights = [[0, 1, 2, 3, 3]] * (states > 1) + [[0, 1, 2, 3, 4]] * max(1, states - 1)
    table = UnitTable(unit, torch.tensor(weights), torch.tensor([[0] * 5] * states))
    target = as_target([10, 3], None, None, 2, torch.device("cpu"))
    for endless in (None, -1):  # -1 of XLNet
        assert int(token_limit(table, target, 1, endless)[0]) == limit
    assert token_limit(table, target, 1, 20).tolist()[0] == 21  # of the model's positions
    assert token_limit(table, target, 1, 4).tolist() == [5, 5]  # ten units are three entries of at most four, and EOS
    for positions in (1, 3):
        message = f"length=10 needs at least 4 decoder positions, the model has {positions}"
        with pytest.raises(ValueError, match=message):
            token_limit(table, target, 1, positions)
    with pytest.raises(ValueError, match="a length of at least 9 needs at least 4 decoder positions"):
        token_limit(table, as_target(10, "exact", (1, 2), 1, torch.device("cpu")), 1, 3)


def test_limit_of_the_caller_is_respected_and_counts_after_a_prompt(endless):
    endless.generation_config.max_length = 20
    assert endless.generate(SOURCE, max_new_tokens=35, length=10).shape == (2, 36)
    assert endless.generate(SOURCE, max_length=6, length=10).shape == (2, 6)
    for config in (GenerationConfig(max_new_tokens=3), GenerationConfig(max_length=4)):
        assert endless.generate(SOURCE, config, length=10).shape == (2, 4)
        assert endless.generate(SOURCE, generation_config=config, length=10).shape == (2, 4)
    assert endless.generate(SOURCE, GenerationConfig(max_length=4), max_new_tokens=8, length=10).shape == (2, 9)
    prompt = torch.tensor([[2, 30, 31], [2, 40, 41]])
    assert endless.generate(SOURCE, decoder_input_ids=prompt, max_new_tokens=4, length=10).shape == (2, 7)
    assert endless.generate(SOURCE, decoder_input_ids=prompt, length=[3, 10]).shape[1] > 3 + 10 + 20
    long_prompt = torch.full((2, 90), 30).index_fill(1, torch.tensor([0]), 2)
    assert endless.generate(SOURCE, decoder_input_ids=long_prompt, length=10).shape[1] > 90


def test_the_max_length_of_a_call_replaces_the_max_new_tokens_of_the_checkpoint():
    """transformers prefers the checkpoint's `max_new_tokens`, and would end an exact text early."""
    model = build_model("marian", length_encoding="ldpe")
    model.generation_config.max_new_tokens = 4
    for options in ({"max_length": 20}, {"generation_config": GenerationConfig(max_length=20)}):
        ids = model.generate(SOURCE, length=10, length_constraint="exact", **options)
        assert model.unit_table.count(ids).tolist() == [10] * len(SOURCE)


@pytest.mark.parametrize(("num_beams", "forced"), [(1, None), (1, "eos"), (3, "eos")])
def test_a_runaway_row_is_cut_at_its_own_limit(endless, num_beams, forced, caplog):
    endless.generation_config.forced_eos_token_id = endless.config.eos_token_id if forced else None
    batch = endless.generate(SOURCE, length=[2, 12], num_beams=num_beams)
    for row, (source, length) in enumerate(((SOURCE[:1], 2), (SOURCE[1:], 12))):
        alone = endless.generate(source, length=length, num_beams=num_beams)[0].tolist()
        pad = [endless.config.pad_token_id] * (batch.shape[1] - len(alone))
        assert batch[row].tolist() == alone + pad
    assert batch.shape[1] > 50 and (batch[0] == endless.config.pad_token_id).sum() > 15
    weights = torch.tensor([[0] * 4 + [1] * 56, [0] * 60])  # the first token is a word, the others go on with it
    words = UnitTable("word", weights, torch.tensor([[0] * 4 + [1] * 56, [1] * 60]))
    endless.model.decoder.unit_table = words
    caplog.clear()
    endless.generate(SOURCE, length=[2, 9])  # the limit is the package's own
    assert caplog.text.count("its tokens add too few units") == 1 and "max_new_tokens" not in caplog.text
    bound = endless.generate(SOURCE, length=[2, 9], length_constraint="max")
    alone = endless.generate(SOURCE[:1], length=2, length_constraint="max")[0].tolist()
    assert bound[0].tolist() == alone + [endless.config.pad_token_id] * (bound.shape[1] - len(alone))


def test_the_default_limit_of_the_library_is_not_saved(tmp_path):
    model = build_model("marian")
    model.generation_config.max_length = 20  # as Seq2SeqTrainer does
    model.save_pretrained(tmp_path)
    assert "max_length" not in GenerationConfig.from_pretrained(tmp_path).to_diff_dict()
    model.generation_config.max_length = 21
    model.save_pretrained(tmp_path)
    assert GenerationConfig.from_pretrained(tmp_path).max_length == 21


PLAIN = SimpleNamespace(length_controlled=False, length_optional=False)
NEEDS = SimpleNamespace(length_controlled=True, length_optional=False)
TAKES = SimpleNamespace(length_controlled=True, length_optional=True)
OWN = {"length": 30, "length_constraint": "exact", "length_tolerance": 0.1}
RESOLVED = [
    # model, defaults, (length, constraint, tolerance) of the call -> the options in force
    (PLAIN, {}, (FROM_CONFIG, FROM_CONFIG, None), Resolved("stock")),
    (PLAIN, {}, (9, FROM_CONFIG, None), Resolved("stock", 9)),  # refused: nothing would use it
    (PLAIN, {}, (9, "max", None), Resolved("length", 9, None, "max")),
    (PLAIN, OWN, (FROM_CONFIG, FROM_CONFIG, None), Resolved("length", 30, None, "exact", 0.1)),
    (PLAIN, OWN, (FROM_CONFIG, None, None), Resolved("stock")),
    (PLAIN, OWN, (FROM_CONFIG, "max", None), Resolved("length", 30, None, "max")),
    (NEEDS, OWN, (None, FROM_CONFIG, None), Resolved("length")),  # refused: it needs a length
    (NEEDS, OWN, (FROM_CONFIG, None, None), Resolved("length", 30)),
    (NEEDS, OWN, (12, FROM_CONFIG, 3), Resolved("length", 12, None, "exact", 3)),
    (NEEDS, {}, ({"word": 4, "character": 20}, FROM_CONFIG, None), Resolved("length", 20, ("word", 4), "max")),
    (TAKES, OWN, (None, FROM_CONFIG, None), Resolved("none")),
    (TAKES, OWN, (0, FROM_CONFIG, None), Resolved("none", 0)),
    (TAKES, OWN, (0, "max", None), Resolved("length", 0, None, "max")),
    (TAKES, OWN, (FROM_CONFIG, FROM_CONFIG, None), Resolved("length", 30, None, "exact", 0.1)),
]


@pytest.mark.parametrize("config, defaults, call, expected", RESOLVED)
def test_the_options_of_a_call_are_resolved_without_a_model(config, defaults, call, expected):
    defaults = dict.fromkeys(OWN) | defaults
    assert resolve(config, defaults, "character", *call) == expected
