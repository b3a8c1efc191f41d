"""README's code runs, its commands name things that exist, and its outputs are what comes out."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import SHAPE, SOURCES, TARGETS
from tokenizers import pre_tokenizers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartTokenizer,
    BertConfig,
    BertModel,
    BertTokenizer,
    MarianConfig,
    MarianMTModel,
)


ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}  # offline: conftest says so
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.S)


def run(code: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def code_block(containing: str) -> tuple[str, str]:
    """A python block and the text block after it, the output it claims."""
    for (kind, code), following in zip(BLOCKS, [*BLOCKS[1:], ("", "")], strict=True):
        if kind == "python" and containing in code:
            return code, following[1]
    raise AssertionError(f"README has no python block with {containing!r}")


@pytest.fixture(scope="module")
def byte_level_bart():
    """An untrained stock BART and its tokenizer."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = BartTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[])
    torch.manual_seed(0)
    return BartForConditionalGeneration(
        BartConfig(**{**SHAPE, "vocab_size": len(pieces), "init_std": 0.3, "forced_bos_token_id": 0})
    ).eval(), tokenizer


def test_the_first_example_prints_what_the_readme_says():
    code, claimed = code_block("models/debian_headlines")
    assert run(code, ROOT) == claimed
    assert len(code.strip().splitlines()) <= 10
    for line in claimed.splitlines():
        length, text = line.split(" ", 1)
        assert len(text) == int(length)


def test_training_example_prints_what_the_readme_says(tmp_path):
    code, claimed = code_block("DataCollatorForLengthControl(tokenizer")
    assert run(code, tmp_path) == claimed


def test_the_bound_for_any_model_holds(byte_level_bart):
    code, _ = code_block("LengthConstraintLogitsProcessor")
    names: dict = {}
    exec(code, names)
    texts = {length: names["bytes_at_most"](*byte_level_bart, SOURCES[0], length) for length in (1, 5, 12, 60)}
    assert all(len(text.encode("utf-8")) <= length for length, text in texts.items())
    assert len(texts[60].encode("utf-8")) > 12  # the model alone would have gone on


def test_the_pretrained_start_reports_what_it_kept(byte_level_bart, tmp_path):
    model, tokenizer = byte_level_bart
    model.save_pretrained(tmp_path / "plain")
    tokenizer.save_pretrained(tmp_path / "plain")
    code, _ = code_block("add_length_control(")
    printed = run(code.replace("facebook/bart-large-cnn", str(tmp_path / "plain")), tmp_path)
    assert printed.strip().endswith("new: ['model.decoder.length_projection.weight'], dropped: []")


def test_every_path_in_the_docs_exists():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"\b(?:hf_lenctrl|recipes|benchmarks|docs|tests|models|notebooks)/[\w./*-]*\w", text):
            assert list(ROOT.glob(path)), f"{page.name} names {path}, which does not exist"
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", text):
            assert (page.parent / link).exists(), f"{page.name} links to {link}, which does not exist"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_every_make_target_in_the_docs_exists():
    for page in (README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        for target in re.findall(r"\bmake ([a-z]+)", page):
            done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, f"make {target}: {done.stderr}"


@pytest.mark.slow
def test_recipe_commands_of_the_readme_run(tmp_path, shared_tokenizer):
    """The commands as printed, with a small run's options added to training and a plain checkpoint in its place."""
    special = {"pad_token_id": 2, "eos_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": 0}
    MarianMTModel(MarianConfig(**{**SHAPE, **special, "vocab_size": len(shared_tokenizer)})).save_pretrained(
        tmp_path / "plain"
    )
    shared_tokenizer.save_pretrained(tmp_path / "plain")
    pairs = [
        {"source": f"{s} Number {i}.", "target": f"{t} {i}", "package": f"{i}-x"}
        for i in range(40)
        for s, t in zip(SOURCES, TARGETS, strict=True)
    ]
    (tmp_path / "headlines.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    for part in (
        BertModel(BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)),
        BertTokenizer(vocab={word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])}),
    ):
        part.save_pretrained(tmp_path / "bert")
    (tmp_path / "pairs.jsonl").write_text(
        "".join(json.dumps({"en": row["source"], "ja": row["target"]}) + "\n" for row in pairs)
    )
    (tmp_path / "texts.txt").write_text("\n".join(SOURCES))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"source": s, "budget": 12}) + "\n" for s in SOURCES))
    small = (
        "--max_steps 2 --save_steps 1 --eval_steps 2 --d_model 32 --ffn_dim 32 --attention_heads 2 --vocab_size 150 "
        "--test_lengths 20 --max_test_rows 4 --max_validation_rows 4 --generation_num_beams 1 "
        "--validation_share 0.2 --test_share 0.2"
    )
    predictor = "--max_steps 2 --eval_steps 1 --save_steps 1 --validation_share 0.2 --test_share 0.2"
    commands = [
        line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines() if line.startswith("python ")
    ]
    assert len(commands) == 9
    for command in sorted(commands, key=lambda command: "--base_model" in command):  # as in the text but for this one
        command = command.replace("path/or/name", str(tmp_path / "plain"))
        words = command.replace("path/or/bert", str(tmp_path / "bert")).split()
        words = [sys.executable, *(str(ROOT / w) if w.startswith("recipes/") else w for w in words[1:])]
        if "train_seq2seq" in command:
            words += small.split()
        elif "train_length_predictor" in command:
            words += predictor.split()
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "report" / "report.png").is_file()
    bound = [json.loads(line) for line in (tmp_path / "bound.jsonl").read_text().splitlines()]
    assert all(row["length"] <= row["requested"] == 12 for row in bound)
    outputs = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["source"] for row in outputs] == SOURCES
    assert all(row["requested"] == 40 and row["length"] == len(row["output"]) for row in outputs)
