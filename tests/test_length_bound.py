"""The bound as `custom_generate`, for plain models and without the package."""

import sys
from pathlib import Path

import pytest
from conftest import save_in
from family_models import stock_model, tokenizer_of
from recipe_runs import isolated
from test_causal import PROMPTS, build_plain, make_tokenizer

from hf_lenctrl import UnitTable


sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hub" / "length_bound"))
import assemble  # noqa: E402


sys.path.pop(0)
FAMILIES = ["llama", "gpt2"]
WORK = """
import json, sys, torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
folder, models, prompts = json.loads(sys.argv[1])
answer = {}
for name in models:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(name), PreTrainedTokenizerFast.from_pretrained(name)
    prompt = tokenizer(prompts, return_tensors="pt", padding=True)
    prompt = {key: prompt[key] for key in ("input_ids", "attention_mask")}
    beams, sampled = {"num_beams": 3, "do_sample": False}, {"do_sample": True}
    calls = [("character", "exact", beams), ("character", "max", sampled), ("word", "max", beams)]
    for unit, constraint, how in calls:
        torch.manual_seed(1)
        bound = {"length": [5, 9], "length_unit": unit, "length_constraint": constraint}
        bound |= {"tokenizer": tokenizer, "custom_generate": folder, "trust_remote_code": True}
        out = model.generate(**prompt, **bound, **how)
        texts = tokenizer.batch_decode(out[:, prompt["input_ids"].shape[1]:], skip_special_tokens=True)
        lengths = [len(text) if unit == "character" else len(text.split()) for text in texts]
        answer.setdefault(constraint, []).append(lengths)
print(json.dumps(answer))
"""


def test_plain_models_of_several_families_keep_a_length_without_the_package(tmp_path):
    assemble.assemble(tmp_path / "bound")
    models = [str(save_in(tmp_path / family, build_plain(family), make_tokenizer())) for family in FAMILIES]
    answer = isolated(WORK, str(tmp_path / "bound"), models, PROMPTS, folder=tmp_path)
    assert answer["exact"] == [[5, 9]] * len(FAMILIES)
    assert len(answer["max"]) == 2 * len(FAMILIES)
    assert all(short <= 5 and long <= 9 for short, long in answer["max"])


def test_a_sequence_to_sequence_model_keeps_it_with_what_the_folder_holds_and_what_is_missing_is_said(tmp_path):
    assemble.assemble(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "custom_generate"}
    names = {path.stem for path in (tmp_path / "custom_generate").glob("*.py")}
    assert names == {"generate", *assemble.NEEDED}  # and no more
    model, tokenizer = stock_model("bart"), tokenizer_of("bart")
    prompt = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    bound = {"custom_generate": str(tmp_path), "trust_remote_code": True, "length_unit": "byte"}
    out = model.generate(**prompt, **bound, length=8, length_constraint="exact", tokenizer=tokenizer)
    assert UnitTable.from_tokenizer(tokenizer, "byte").count(out).tolist() == [8, 8]
    with pytest.raises(ValueError, match="length_bound needs length= and tokenizer="):
        model.generate(**prompt, **bound, length=8)
