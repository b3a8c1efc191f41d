"""The folders of `custom_generate`, for plain models and without the package."""

import itertools
import math
import sys
from pathlib import Path

import pytest
import torch
from conftest import SHAPE, save_in, word_tokenizer
from family_models import stock_model, tokenizer_of
from recipe_runs import isolated
from test_causal import PROMPTS, build_plain, make_tokenizer
from transformers import BartConfig, BartForConditionalGeneration, GenerationConfig

from hf_lenctrl import UnitTable
from hf_lenctrl.training.fitted_cost import FittedCost


sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hub"))
import assemble  # noqa: E402


sys.path.pop(0)
FAMILIES = ["llama", "gpt2"]
WORK = """
import json, sys, torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
folder, models, prompts, search = json.loads(sys.argv[1])
answer = {"search": []}
for name in models:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(name), PreTrainedTokenizerFast.from_pretrained(name)
    prompt = tokenizer(prompts, return_tensors="pt", padding=True)
    prompt = {key: prompt[key] for key in ("input_ids", "attention_mask")}
    beams, sampled = {"num_beams": 3, "do_sample": False}, {"do_sample": True}
    calls = [("character", "exact", beams), ("character", "max", sampled), ("word", "max", beams)]

    def lengths_of(out, unit):
        texts = tokenizer.batch_decode(out[:, prompt["input_ids"].shape[1]:], skip_special_tokens=True)
        return [len(text) if unit == "character" else len(text.split()) for text in texts]

    for unit, constraint, how in calls:
        torch.manual_seed(1)
        bound = {"length": [5, 9], "length_unit": unit, "length_constraint": constraint}
        bound |= {"tokenizer": tokenizer, "custom_generate": folder, "trust_remote_code": True}
        out = model.generate(**prompt, **bound, **how)
        answer.setdefault(constraint, []).append(lengths_of(out, unit))
    found = {"length": [12, 5, 8], "length_unit": "character", "custom_generate": search, "trust_remote_code": True}
    answer["search"].append(lengths_of(model.generate(**prompt, **found, tokenizer=tokenizer).sequences, "character"))
print(json.dumps(answer))
"""
BOUND = {"bounded_generation", "cache", "character_costs", "length_constraint", "length_pair"}
BOUND |= {"length_rules", "length_units", "lengths", "saved_table", "text_units", "thoughts", "unit_vocabulary"}


def test_plain_models_of_several_families_keep_a_length_without_the_package(tmp_path):
    for name in ("length_bound", "search_by_length"):
        assemble.assemble(name, tmp_path / name)
    models = [str(save_in(tmp_path / family, build_plain(family), make_tokenizer())) for family in FAMILIES]
    folders = str(tmp_path / "length_bound"), str(tmp_path / "search_by_length")
    answer = isolated(WORK, folders[0], models, PROMPTS, folders[1], folder=tmp_path)
    assert answer["exact"] == [[5, 9]] * len(FAMILIES)
    assert len(answer["max"]) == 2 * len(FAMILIES)
    assert all(short <= 5 and long <= 9 for short, long in answer["max"])
    assert answer["search"] == [[12, 5, 8, 12, 5, 8]] * len(FAMILIES)


@pytest.mark.parametrize(("name", "more"), [("length_bound", set()), ("search_by_length", {"search"})])
def test_a_folder_holds_what_it_needs_and_no_more(name, more, tmp_path):
    assemble.assemble(name, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "custom_generate"}
    assert {path.stem for path in (tmp_path / "custom_generate").glob("*.py")} == {"generate", *BOUND, *more}


def vowels(text: str) -> int:
    return sum(character in "aeiou" for character in text)


def test_a_sequence_to_sequence_model_keeps_it_in_units_and_a_cost_and_what_is_missing_is_said(tmp_path):
    assemble.assemble("length_bound", tmp_path)
    model, tokenizer = stock_model("bart"), tokenizer_of("bart")
    prompt = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    bound = {"custom_generate": str(tmp_path), "trust_remote_code": True, "length_constraint": "exact"}
    out = model.generate(**prompt, **bound, length=8, length_unit="byte", tokenizer=tokenizer)
    assert UnitTable.from_tokenizer(tokenizer, "byte").count(out).tolist() == [8, 8]
    cost = FittedCost(0.01, dict.fromkeys("aeiou", 1), {"Lu": 0, "Ll": 0, "Zs": 0, "Po": 0, "Nd": 0}, 0)
    out = model.generate(**prompt, **bound, length=3, cost=cost, tokenizer=tokenizer)  # which cannot be hashed
    assert [cost(text) for text in tokenizer.batch_decode(out, skip_special_tokens=True)] == [3, 3]
    out = model.generate(**prompt, **bound, length=3, cost=vowels, tokenizer=tokenizer)
    assert [vowels(text) for text in tokenizer.batch_decode(out, skip_special_tokens=True)] == [3, 3]
    with pytest.raises(ValueError, match="length_bound needs length= and tokenizer="):
        model.generate(**prompt, **bound, length=8)
    embeds = {"inputs_embeds": model.get_input_embeddings()(prompt["input_ids"])}
    out = model.generate(**embeds, **bound, length=[8, 5], length_unit="byte", tokenizer=tokenizer)
    assert UnitTable.from_tokenizer(tokenizer, "byte").count(out).tolist() == [8, 5]
    model, tokenizer = build_plain("llama"), make_tokenizer()
    embeds = {"inputs_embeds": model.get_input_embeddings()(torch.tensor([[5, 6]]))}
    with pytest.raises(ValueError, match="needs the prompt's ids, got inputs_embeds; pass input_ids"):
        model.generate(**embeds, **bound, length=8, tokenizer=tokenizer)


@torch.no_grad()
def test_the_search_finds_the_likeliest_text_of_each_length(tmp_path):
    """Of five words, with enough beams; each text is scored by a forward pass of its own."""
    assemble.assemble("search_by_length", tmp_path)
    tokenizer, marked = word_tokenizer("a", "b", "c", "a.", "d"), 6
    shape = {**SHAPE, "vocab_size": len(tokenizer), "init_std": 0.5, "tie_word_embeddings": False}
    special = {"pad_token_id": 2, "bos_token_id": 2, "eos_token_id": 0, "decoder_start_token_id": 2}
    torch.manual_seed(0)
    model = BartForConditionalGeneration(BartConfig(**shape, **special, forced_eos_token_id=0)).eval().double()
    model.final_logits_bias[0, 1:3] = -1e4  # unknown words and padding
    source, lengths = torch.tensor([[3, 5, 0], [6, 4, 0]]), [3, 1, 2]
    best: dict[tuple, list] = {}
    for row, length in itertools.product(range(2), lengths):
        found = []
        for words in itertools.product(range(3, 8), repeat=length):
            logits = model(source[row : row + 1], decoder_input_ids=torch.tensor([[2, *words]])).logits[0]
            score = float(logits.log_softmax(-1)[range(length + 1), [*words, 0]].sum())
            found.append((score, [2, *words, 0]))
        best[row, length, ()] = max(found)
        best[row, length, (".",)] = max(each for each in found if each[1][-2] == marked)
    given = {"custom_generate": str(tmp_path), "trust_remote_code": True, "tokenizer": tokenizer, "beams": 99}
    for marks in ((), (".",)):
        out = model.generate(source, **given, length=lengths, marks=marks)
        expected = [best[row, length, marks] for row in range(2) for length in lengths]
        assert [row[: row.index(0) + 1] for row in out.sequences.tolist()] == [ids for _, ids in expected]
        assert out.sequences_scores.tolist() == pytest.approx([score for score, _ in expected], abs=1e-5)
    assert best[0, 2, ()] != best[0, 2, (".",)]
    with pytest.raises(ValueError, match=r"search_by_length needs ids, a list of lengths .*; got length=8"):
        model.generate(source, **given, length=8)


def test_a_length_that_no_text_has_is_an_empty_row(tmp_path):
    assemble.assemble("search_by_length", tmp_path)
    tokenizer, model = make_tokenizer(), build_plain("llama")
    model.config.pad_token_id = None  # as of many causal models; EOS then fills the rows
    prompt = tokenizer(PROMPTS[:1], return_tensors="pt")["input_ids"]
    given = {"custom_generate": str(tmp_path), "trust_remote_code": True, "tokenizer": tokenizer}
    out = model.generate(prompt, **given, length=[5, 6], cost=lambda text: 2 * len(text))
    written = tokenizer.batch_decode(out.sequences[:, prompt.shape[1] :], skip_special_tokens=True)
    assert [len(text) for text in written] == [0, 3]
    assert out.sequences_scores[0] == -math.inf and out.sequences_scores[1] > -math.inf


def test_stop_strings_end_a_searched_text_and_options_on_other_rows_are_refused(tmp_path):
    assemble.assemble("search_by_length", tmp_path)
    tokenizer, model = make_tokenizer(), build_plain("llama")
    prompt = tokenizer(PROMPTS[:1], return_tensors="pt")["input_ids"]
    given = {"custom_generate": str(tmp_path), "trust_remote_code": True, "tokenizer": tokenizer}
    given |= {"length": [5, 8], "length_unit": "character"}
    for ids, length in zip(model.generate(prompt, **given, stop_strings="e").sequences, (5, 8), strict=True):
        pieces = tokenizer.batch_decode(ids[prompt.shape[1] :].unsqueeze(1), skip_special_tokens=True)
        *before, last = [piece for piece in pieces if piece]
        assert "e" in last and not any("e" in piece for piece in before)
        assert len("".join([*before, last])) == length
    for config in (GenerationConfig(stop_strings="e"), None):
        model.generation_config.stop_strings = "e" if config is None else None
        with pytest.raises(ValueError, match="only as an argument, got .*'e'; set this to None, and pass stop_str"):
            model.generate(prompt, **given, generation_config=config)
    model.generation_config.stop_strings = None
    with pytest.raises(ValueError, match="has other rows than the options prefix_allowed_tokens_fn"):
        model.generate(prompt, **given, prefix_allowed_tokens_fn=lambda row, ids: list(range(len(tokenizer))))
