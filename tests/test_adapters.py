"""Adapters of causal models: a folder that needs the plain base alone, its card, and how it is loaded."""

import json
import re
import shutil
from pathlib import Path

import peft
import pytest
import torch
from huggingface_hub import ModelCard
from processes import output_of
from recipe_runs import read_rows, save_stock, write_rows
from safetensors.torch import load_file
from test_causal import build_plain, make_tokenizer
from test_readme import ENVIRONMENT
from transformers import AutoModelForCausalLM, pipeline

import hf_lenctrl
from hf_lenctrl.commands import causal, fit, generate, train
from hf_lenctrl.commands.answer_rows import encode
from hf_lenctrl.commands.arguments import parse_arguments


IDS = torch.tensor([[5, 6, 7], [8, 9, 10]])
ROWS = [{"prompt": "a small editor:", "completion": text} for text in ("reads images", "one more text", "editor")]
OPTIONS = "--max_steps 2 --save_steps 1 --learning_rate 0.1 --use_cpu --disable_tqdm true --report_to none".split()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A plain base and an adapter that `lenctrl train` trained, in folders of their own."""
    folder = tmp_path_factory.mktemp("adapters")
    build_plain("llama").save_pretrained(folder / "secret_place" / "plain")
    make_tokenizer().save_pretrained(folder / "secret_place" / "plain")
    rows = write_rows(folder / "rows.jsonl", ROWS)
    words = ["--base_model", str(folder / "secret_place" / "plain"), "--train_file", str(rows), "--max_length", "60"]
    words += ["--lora_target", ".*_proj"]  # which would match layers of the plain base, too
    train.main([*words, "--lora_r", "4", "--output_dir", str(folder / "lora"), *OPTIONS])
    return folder


@torch.no_grad()
def logits(model, length=7):
    return model.eval()(input_ids=IDS, length=length).logits


WAYS = {
    "load_adapter": lambda folder: hf_lenctrl.load_adapter(folder),
    "unmerged": lambda folder: hf_lenctrl.load_adapter(folder, merge=False),
    "AutoModel": lambda folder: AutoModelForCausalLM.from_pretrained(folder),
    "own class": lambda folder: hf_lenctrl.LenCtrlForCausalLM.from_pretrained(folder),
    "pipeline": lambda folder: pipeline("length-controlled-generation", model=str(folder)).model,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("part", ["", "checkpoint-2"])
def test_an_adapter_loads_with_its_plain_base(trained, way, part):
    plain = AutoModelForCausalLM.from_pretrained(trained / "secret_place" / "plain")
    # an independent way: the converted base, and PEFT's own loader
    control = {"tokenizer": make_tokenizer(), "length_unit": "character"}
    expected = peft.PeftModel.from_pretrained(hf_lenctrl.add_length_control(plain, **control), trained / "lora" / part)
    model = WAYS[way](trained / "lora" / part)
    assert way == "unmerged" or all(weight.requires_grad for weight in model.parameters())  # as in any loaded model
    torch.testing.assert_close(logits(model), logits(expected), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(logits(model), logits(model, 9), atol=1e-4)
    assert model.config.length_unit == "character" and model.config.trained_lengths["max"] == len("one more text")


@pytest.mark.parametrize(
    "first",
    ["from transformers import AutoModelForCausalLM as auto", "from hf_lenctrl import LenCtrlForCausalLM as auto"],
)
def test_an_adapter_loads_where_nothing_else_of_the_package_was_used(trained, first):
    code = f"import hf_lenctrl, sys\n{first}\nprint(type(auto.from_pretrained(sys.argv[1])).__name__)"
    assert output_of(code, str(trained / "lora"), **ENVIRONMENT) == "LenCtrlForCausalLM\n"


def test_no_file_of_an_adapter_that_is_shared_names_a_path(trained):
    folder = trained / "lora"
    for path in folder.rglob("*"):
        if path.suffix in (".md", ".json", ".jinja", ".safetensors"):
            assert b"secret_place" not in path.read_bytes(), path
    assert not (folder / "checkpoint-2" / "README.md").exists()
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "plain"
    # the weights are those of the adapter and the projection
    assert {"length_projection" in name or "lora_" in name for name in load_file(folder / "adapter_model.safetensors")}
    assert not (folder / "model.safetensors").exists()


def test_the_card_says_the_base_the_task_and_the_lengths(trained, tmp_path):
    card = ModelCard.load(trained / "lora" / "README.md")
    assert card.data.pipeline_tag == "text-generation" and card.data.library_name == "peft"
    assert card.data.base_model is None and {"hf_lenctrl", "ldpe"} <= {*card.data.tags}
    said = ["Started from plain.", "lengths from 6 to 13 characters", "LoRA of rank 4", "rows.jsonl: 3 train rows"]
    assert [words for words in said if words not in card.text] == []
    words = ["--base_model", str(trained / "secret_place" / "plain"), "--train_file", str(trained / "rows.jsonl")]
    words += ["--base_model_name", "user/plain", "--weights_dtype", "bfloat16", "--lora_r", "4"]
    train.main([*words, "--output_dir", str(tmp_path / "half"), *OPTIONS])
    assert ModelCard.load(tmp_path / "half" / "README.md").data.base_model == "user/plain"
    half = load_file(tmp_path / "half" / "adapter_model.safetensors")
    assert {weight.dtype for weight in half.values()} == {torch.bfloat16}
    named = json.loads((tmp_path / "half" / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert named == "user/plain"
    assert torch.isfinite(logits(hf_lenctrl.load_adapter(tmp_path / "half"))).all()


@pytest.mark.parametrize("auto", [AutoModelForCausalLM, peft.AutoPeftModelForCausalLM])
def test_the_adapter_is_not_put_on_the_plain_base(trained, tmp_path, auto, monkeypatch):
    # as a download of the Hub is loaded, where transformers looks for the base alone
    monkeypatch.chdir(trained / "secret_place")
    left_out = shutil.ignore_patterns("_run", "checkpoint-*", "config.json")
    shutil.copytree(trained / "lora", tmp_path / "lora", ignore=left_out)
    fields = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    layer = "model.layers.0.mlp.up_proj"
    assert re.fullmatch(fields["target_modules"], f"language_model.{layer}")
    with pytest.raises(ValueError, match="not found in the base model"):
        auto.from_pretrained(tmp_path / "lora")


def test_a_base_that_is_elsewhere_or_another_is_said(trained, tmp_path):
    shutil.copytree(trained / "lora", tmp_path / "lora", ignore=shutil.ignore_patterns("_run", "checkpoint-*"))
    with pytest.raises(OSError, match="needs its base model plain, which cannot be loaded .*; give its folder or Hub"):
        hf_lenctrl.load_adapter(tmp_path / "lora")
    base = str(trained / "secret_place" / "plain")
    write = pipeline("length-controlled-generation", model=str(tmp_path / "lora"), model_kwargs={"base_model": base})
    assert torch.equal(logits(write.model), logits(hf_lenctrl.load_adapter(trained / "lora")))
    (tmp_path / "texts.txt").write_text("a small editor:\n")
    words = ["--model", str(tmp_path / "lora"), "--base_model", base, "--input_file", str(tmp_path / "texts.txt")]
    words += ["--output_file", str(tmp_path / "out.jsonl"), "--length", "9", "--length_constraint", "exact"]
    generate.main(words)
    assert [row["length"] for row in read_rows(tmp_path / "out.jsonl")] == [9]
    (tmp_path / "out.jsonl").unlink()
    fit.main([*words[:-2], "--dtype", "bfloat16"])
    assert [row["origin"] for row in read_rows(tmp_path / "out.jsonl")] == ["model"]
    with pytest.raises(ValueError, match="belongs to another base than .*, which has num_hidden_layers=1, not 2"):
        hf_lenctrl.load_adapter(tmp_path / "lora", base_model=build_plain("llama", num_hidden_layers=1))


def test_a_name_that_is_no_adapter_is_said(trained, tmp_path):
    words = ["--base_model", str(trained / "secret_place" / "plain"), "--train_file", str(trained / "rows.jsonl")]
    words += ["--adapter", str(tmp_path), "--output_dir", str(tmp_path / "run"), *OPTIONS]
    with pytest.raises(OSError, match=f"{tmp_path} is no adapter: Can't find 'adapter_config.json'"):
        train.main(words)


def test_an_adapter_of_a_saved_length_controlled_model_loads_too(tmp_path):
    control = {"tokenizer": make_tokenizer(), "length_unit": "byte"}
    model = hf_lenctrl.add_length_control(build_plain("gpt2"), **control)
    model.save_pretrained(tmp_path / "controlled")
    make_tokenizer().save_pretrained(tmp_path / "controlled")
    model.name_or_path = str(tmp_path / "controlled")
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["c_attn"], modules_to_save=["length_projection"])
    adapted = peft.get_peft_model(model, config)
    torch.nn.init.normal_(adapted.length_projection.modules_to_save["default"].weight, std=0.3)
    adapted.save_pretrained(tmp_path / "lora")
    make_tokenizer().save_pretrained(tmp_path / "lora")
    expected = logits(adapted)
    write = pipeline("length-controlled-generation", model=str(tmp_path / "lora"))
    for loaded in (write.model, hf_lenctrl.LenCtrlForCausalLM.from_pretrained(tmp_path / "lora")):
        torch.testing.assert_close(logits(loaded), expected, atol=1e-5, rtol=1e-5)
    assert loaded.config.length_unit == "byte"


def run_lines(words: list[str], folder: Path) -> str:
    with pytest.raises(ValueError) as error:
        train.main([*words, "--output_dir", str(folder / "run"), "--train_file", "rows.jsonl"])
    return str(error.value)


def test_the_kind_of_a_training_is_that_of_its_base(trained, tmp_path, monkeypatch, shared_tokenizer):
    base = str(trained / "secret_place" / "plain")
    monkeypatch.setattr(train, "load_data", None)  # the lines come before any data are read
    monkeypatch.setattr(causal, "load_answers", None)
    said = run_lines(["headline/pretrained", "--base_model", base], tmp_path)
    assert said.startswith(f"base_model={base} is a causal language model (llama), but these options are of an enc")
    assert "\n" not in said and "max_target_length" in said and "predict_with_generate" in said
    marian = str(save_stock(tmp_path / "marian", shared_tokenizer))
    said = run_lines(["causal/acl", "--base_model", marian], tmp_path)
    assert said.startswith(f"base_model={marian} is an encoder-decoder (marian), but these options are of a causal")
    assert "max_length" in said
    monkeypatch.undo()
    assert train.is_causal({"base_model": base}) and not train.is_causal({"base_model": marian})
    assert train.is_causal({"base_model": "required", "max_length": "9"}) and not train.is_causal({"layers": "2"})
    write_rows(tmp_path / "pairs.jsonl", [{"source": "a", "target": "b"}])
    words = ["--base_model", base, "--train_file", str(tmp_path / "pairs.jsonl"), "--output_dir", str(tmp_path)]
    with pytest.raises(ValueError, match="must have the columns prompt and completion, or messages, .*got source, t"):
        train.main([*words, *OPTIONS])
    options, args = parse_arguments(train.CAUSAL, ["causal/acl", "--base_model", base, "--use_cpu"])
    assert options.base_model == base and args.max_steps == 3000


CHATML = (
    "{% for m in messages %}{{ '<s>' + m.role + '\n' + m.content | trim + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)


def chat_tokenizer(template: str):
    known = make_tokenizer()
    tokenizer = known.__class__(tokenizer_object=known._tokenizer, eos_token="</s>", bos_token="<s>")
    tokenizer.chat_template = template
    return tokenizer


def test_a_chat_without_marks_trains_on_what_the_prompt_lacks():
    tokenizer = chat_tokenizer(CHATML)
    said = [("system", "one text"), ("user", "a small"), ("assistant", "editor ")]
    said += [("user", "more"), ("assistant", "images")]
    first, second = encode({"messages": [{"role": role, "content": text} for role, text in said]}, tokenizer)
    prompt = "<s>system\none text</s>\n<s>user\na small</s>\n<s>assistant\n"
    for row, before, answer in (
        (first, prompt, "editor</s>"),
        (second, f"{prompt}editor</s>\n<s>user\nmore</s>\n<s>assistant\n", "images</s>"),
    ):
        ids = [tokenizer(text)["input_ids"] for text in (before, answer)]
        assert row == {"input_ids": ids[0] + ids[1], "labels": [-100] * len(ids[0]) + ids[1]}
        assert row["labels"][-1] == tokenizer.eos_token_id


@pytest.mark.parametrize(
    "template",
    [
        CHATML.replace("m.content | trim + ", "('think: ' if m.role == 'assistant' else '') + m.content | trim + "),
        CHATML.replace("<s>assistant", "<s>answer"),  # the prompt is not how the chat goes on
        "{% for m in messages %}{{ m.content }}{% endfor %}",  # no end
    ],
    ids=["more than the text", "another prompt", "no end"],
)
def test_a_chat_whose_answer_is_not_clear_is_refused(template):
    row = {"messages": [{"role": "user", "content": "a small"}, {"role": "assistant", "content": "editor"}]}
    with pytest.raises(ValueError, match="does not mark the assistant's turns, and does not write them as"):
        encode(row, chat_tokenizer(template))


def test_batches_of_rows_with_random_lengths_have_little_padding(trained, tmp_path):
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 60, (800,), generator=generator).tolist()
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": "a " * n, "completion": "b"} for n in sizes])
    words = ["--base_model", str(trained / "secret_place" / "plain"), "--train_file", str(rows), "--use_cpu"]
    words += ["--output_dir", str(tmp_path / "run"), "--per_device_train_batch_size", "8"]
    options, args = causal.parse(words)
    trainer = causal.make_trainer(options, args, causal.load_tokenizer(options))
    masks = [batch["attention_mask"] for batch in trainer.get_train_dataloader()]
    padding = sum(int((mask == 0).sum()) for mask in masks) / sum(mask.numel() for mask in masks)
    assert padding < 0.1
