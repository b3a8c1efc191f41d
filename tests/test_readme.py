"""README's code runs, its commands name things that exist, and its outputs are what comes out."""

import os
import re
import shutil
import subprocess

import pytest
import yaml
from conftest import SOURCES
from recipe_runs import ROOT, read_rows, run_lenctrl

import hf_lenctrl


README = (ROOT / "README.md").read_text(encoding="utf-8")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}  # offline: conftest says so
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.S)


def code_block(containing: str) -> tuple[str, str]:
    """A python block and the text block after it, the output it claims."""
    for (kind, code), following in zip(BLOCKS, [*BLOCKS[1:], ("", "")], strict=True):
        if kind == "python" and containing in code:
            return code, following[1]
    raise AssertionError(f"README has no python block with {containing!r}")


def test_the_first_example_prints_what_the_readme_says(monkeypatch, capsys):
    code, claimed = code_block("length=[46, 64]")
    monkeypatch.chdir(ROOT)
    exec(code, {})
    assert capsys.readouterr().out == claimed
    assert len(code.strip().splitlines()) <= 10
    natural, limited, *rows = claimed.splitlines()
    assert len(limited) <= 45 < len(natural)
    found = [re.fullmatch(r"\((\d+), (\d+)\) (\d+) (.+)", row).groups() for row in rows]
    assert [(low, high) for low, high, *_ in found] == [("42", "50"), ("58", "70")]
    assert all(int(low) <= int(length) == len(text) <= int(high) for low, high, length, text in found)


def test_the_example_of_a_checkpoint_is_that_of_its_page():
    """Which runs in tests/test_docs.py; that of a language model runs in tests/test_smollm2.py."""
    code, _ = code_block("add_length_control(")
    assert f"```python\n{code}```" in (ROOT / "docs" / "finetune.md").read_text("utf-8")


def test_the_citation_is_of_this_version():
    assert f"version = {{{hf_lenctrl.__version__}}}" in README
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == hf_lenctrl.__version__ and f"year = {{{citation['date-released'].year}}}" in README


def test_every_path_in_the_docs_exists():
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "lab/README.md")]
    for page in (*pages, *(ROOT / "docs").rglob("*.md")):
        text = re.sub(r"https?:\S+", "http", page.read_text(encoding="utf-8"))
        for path in re.findall(r"\b(?:hf_lenctrl|recipes|lab|docs|tests|models|notebooks)/[\w./*-]*\w", text):
            made = path.startswith("lab/browser/dist")  # by `make browser`
            assert made or list(ROOT.glob(path)), f"{page.name} names {path}, which does not exist"
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", text):
            assert (page.parent / link).exists(), f"{page.name} links to {link}, which does not exist"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_every_make_target_in_the_docs_exists():
    for page in (README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        for target in re.findall(r"\bmake ([a-z-]*[a-z])", page):
            done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, f"make {target}: {done.stderr}"


@pytest.mark.slow
def test_commands_of_the_readme_run(tmp_path, plain_pipe, monkeypatch):
    """The commands as printed, with a small run's options added to training and a plain checkpoint in its place."""
    plain_pipe.save_pretrained(tmp_path / "plain")
    samples = tmp_path / "docs" / "samples"
    samples.mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "samples" / "headlines.jsonl", samples)
    (samples / "texts.txt").write_text("\n".join(SOURCES))
    small = "--max_steps 2 --save_steps 1 --eval_steps 2 --max_test_rows 4 --max_validation_rows 4 "
    small += "--generation_num_beams 1"
    lines = [line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines()]
    commands = [line for line in lines if line.startswith("lenctrl ")]
    assert [command.split()[1] for command in commands] == ["train", "generate", "evaluate"]
    monkeypatch.chdir(tmp_path)
    for command in commands:
        words = command.replace("path/or/name", str(tmp_path / "plain")).split()[1:]
        run_lenctrl([*words, *(small.split() if "train" in words else [])], monkeypatch)
    assert (tmp_path / "report" / "report.png").is_file()
    outputs = read_rows(tmp_path / "out.jsonl")
    assert [row["source"] for row in outputs] == SOURCES
    assert all(row["length"] == len(row["output"]) <= row["requested"] == 40 for row in outputs)
