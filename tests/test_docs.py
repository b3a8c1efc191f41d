"""The pages' commands and examples run, what they name exists, their figures are measured, and the site builds."""

import contextlib
import csv
import dataclasses
import importlib
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise

import from_fairseq
import pytest
import test_seq2seq
import torch
import translations
import yaml
from accelerate.commands.launch import launch_command_parser
from conftest import MARIAN, SHAPE, SOURCES, save_in
from processes import output_of
from recipe_runs import run_lenctrl
from test_causal import build_plain, make_tokenizer
from test_from_fairseq import SOURCE, TARGET, make_checkpoint
from test_readme import ENVIRONMENT, README, ROOT
from transformers import BertConfig, BertModel, BertTokenizer, MarianConfig, MarianMTModel

import hf_lenctrl
from hf_lenctrl.commands import lenctrl, train
from hf_lenctrl.commands.causal import CausalArguments
from hf_lenctrl.commands.generate import SAMPLING
from hf_lenctrl.commands.predictor import PredictorArguments
from hf_lenctrl.commands.recipes import find_recipe


DOCS = ROOT / "docs"
# in the order in which a reader makes what the later ones use; results/ is a record of measurements
ORDER = ["train", "finetune", "quickstart", "generate", "units", "limits", "causal", "decoding", "predict", "evaluate"]
ORDER += ["share", "serve"]
ORDER += ["onnx", "methods", "subtitles", "strings", "service", "vllm", "continuous_batching", "ray", "json"]
ORDER += ["architecture", "index", "which", "faq", "fit", "thinking", "families", "commands"]
REFERENCE = [f"reference/{path.stem}" for path in (DOCS / "reference").glob("*.md")]
RESULTS = sorted(f"results/{path.stem}" for path in (DOCS / "results").glob("*.md"))
PAGES = {name: (DOCS / f"{name}.md").read_text(encoding="utf-8") for name in [*ORDER, *REFERENCE, *RESULTS]}
BLOCK = re.compile(r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```', flags=re.M | re.S)
FIGURE = re.compile(r"(?<![\d.])\d+\.\d+(?!\.?\d)")
BLOCKS = {name: BLOCK.findall(text) for name, text in PAGES.items()}
# names on the Hub, and what stands in their place
LOCAL = {"facebook/bart-large-cnn": "plain", "google-bert/bert-base-uncased": "bert", "user/name": "runs/ldpe"}
LOCAL |= {"Qwen/Qwen2.5-0.5B-Instruct": "chat", "Qwen/Qwen3-0.6B": "chat", "allenai/led-base-16384": "led"}
OPTIONS = {
    field.name for cls in (*train.CLASSES, CausalArguments, PredictorArguments) for field in dataclasses.fields(cls)
}
TINY = "--max_steps 2 --save_steps 1 --eval_steps 1 --use_cpu"
TINY_MODEL = "--layers 1 --d_model 32 --ffn_dim 32 --attention_heads 2 --vocab_size 150"
TINY_TESTS = "--test_lengths 20 --max_test_rows 4 --max_validation_rows 4 --generation_num_beams 1"


def commands(name: str) -> list[str]:
    blocks = (text.replace("\\\n", "") for kind, _, text in BLOCKS[name] if kind == "bash")
    lines = [line for text in blocks for line in text.splitlines()]
    return [line for line in lines if line.startswith(("lenctrl ", "python ", "accelerate launch"))]


def local(text: str) -> str:
    for name, folder in LOCAL.items():
        text = text.replace(name, folder)
    return text


@pytest.fixture
def reader(tmp_path, shared_tokenizer, monkeypatch):
    """The folder of a reader who has the repository, the files that the pages name, and checkpoints of the Hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)  # tests/test_precision.py compiles
    for folder in ("recipes", "models"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "docs").mkdir()
    samples = tmp_path / "docs" / "samples"
    shutil.copytree(DOCS / "samples", samples)
    for name, rows in {
        "rows.jsonl": [{"source": source, "budget": 12} for source in SOURCES],
    }.items():
        assert json.loads((samples / name).read_text(encoding="utf-8").splitlines()[0]).keys() == rows[0].keys()
        (samples / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (samples / "texts.txt").write_text("\n".join(SOURCES))
    for kind, title, text in (block for blocks in BLOCKS.values() for block in blocks):
        if kind == "yaml" and title:
            (tmp_path / title).write_text(text)
    (tmp_path / "theirs").mkdir()
    make_checkpoint(tmp_path / "theirs", SOURCE, TARGET)
    torch.manual_seed(0)  # the pages' examples print what this model writes; another one may write nothing
    plain = MarianMTModel(MarianConfig(**{**SHAPE, **MARIAN, "vocab_size": len(shared_tokenizer)}))
    save_in("plain", plain, shared_tokenizer)
    chat = make_tokenizer()
    chat.chat_template = "{% for m in messages %}{{ m.content }}: {% endfor %}"
    save_in("chat", build_plain("llama"), chat)
    save_in("led", test_seq2seq.build_plain("led"), test_seq2seq.tokenizer_of("led"))
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    words = BertTokenizer(vocab={word: i for i, word in enumerate(vocabulary)})
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    save_in("bert", BertModel(BertConfig(vocab_size=30, **small)), words)
    return tmp_path


def run_command(command: str, monkeypatch) -> None:
    words = shlex.split(command)
    if "train" in command.split("--")[0] or "recipes/train_" in command:
        words += TINY.split()
        words += TINY_TESTS.split() if "train-predictor" not in command else []
        named = "train-predictor" in command or "--base_model" in words or "--model_name_or_path" in words
        words += [] if named else TINY_MODEL.split()  # a checkpoint has its shape
    if words[0] == "accelerate":  # launched in tests/test_accelerate.py; here the script's options in this process
        args = launch_command_parser().parse_args(words[2:])
        assert args.training_script == "recipes/train_seq2seq.py"
        run_lenctrl(["train", *args.training_script_args], monkeypatch)
    elif "--push_to_hub" in words:  # the command of a run that has ended, which tests/test_hub.py uploads
        run_lenctrl([word for word in words[1:] if word != "--push_to_hub"], monkeypatch)
    elif words[:2] == ["python", "lab/reproduce/translations.py"]:
        translations.main(words[2:])
    elif words[:2] == ["python", "lab/reproduce/from_fairseq.py"]:
        from_fairseq.main(words[2:])
    else:
        assert words[0] == "lenctrl", command
        run_lenctrl([local(word) for word in words[1:]], monkeypatch)


def run_example(code: str, claimed: str | None) -> None:
    code = local(code)
    if "trust_remote_code" in code:  # in a process without the package: tests/test_auto_classes.py
        compile(code, "page", "exec")
        exec("".join(re.findall(r"^(?:import|from) .*\n", code, flags=re.M)), {})
        return
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "page", "exec"), {})
    assert printed.getvalue().strip()  # every example shows something
    if claimed is not None:
        assert printed.getvalue() == claimed


@pytest.mark.slow
def test_commands_and_examples_of_the_pages_run(reader, monkeypatch):
    assert sum(len(commands(name)) for name in ORDER) == 19
    for name in [name for name in ORDER if name != "onnx"]:  # which runs in tests/test_onnx.py
        for command in commands(name):
            run_command(command, monkeypatch)
        for (kind, _, code), (after, _, claimed) in pairwise([*BLOCKS[name], ("", "", "")]):
            if kind == "python":
                run_example(code, claimed if after == "text" else None)
    limited = [json.loads(line) for line in (reader / "constrained.jsonl").read_text().splitlines()]
    assert all(row["length"] <= row["requested"] == row["budget"] == 12 for row in limited)
    outputs = [json.loads(line) for line in (reader / "out.jsonl").read_text().splitlines()]
    assert [(row["source"], row["requested"]) for row in outputs] == [(source, 40) for source in SOURCES]
    files = "README.md all_results.json test.jsonl model.safetensors tokenizer_config.json".split()
    assert [name for name in files if not (reader / "runs" / "ldpe" / name).is_file()] == []
    assert all((reader / "report" / f"report.{suffix}").is_file() for suffix in ("md", "json", "png"))


def test_every_option_in_the_pages_exists():
    recipes = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("recipes", "hf_lenctrl", "lab", "tests/tools")
        for path in (ROOT / folder).rglob("*.py")
    )
    known = OPTIONS | set(re.findall(r"^    (\w+): .*field\(", recipes, flags=re.M))
    known |= set(re.findall(r'"--(\w+)"', recipes)) | {"help", "multi_gpu", "num_processes", "config_file"}
    known |= {"app", "port"}  # of uvicorn
    known |= {"additional", "logits"}  # of vllm serve
    known |= {"head"}  # of ray start
    known |= {"tasks", "model_args", "apply_chat_template", "include_path", "gen_kwargs", "metadata"}  # of lm_eval run
    known |= {name for name, *_ in SAMPLING}
    for name, text in PAGES.items():
        assert set(re.findall(r"(?<![\w-])--(\w+)", text)) <= known, name
        for kind, _, values in BLOCKS[name]:
            if kind == "yaml":
                assert yaml.safe_load(values).keys() <= OPTIONS, name


def test_every_command_and_recipe_in_the_pages_exists():
    found = set()
    for name, text in PAGES.items():
        named = re.findall(r"\blenctrl ([a-z-]+)(?: ([\w./]+)(?!\S))?", text)
        assert {command for command, _ in named} <= lenctrl.COMMANDS.keys(), name
        tables = re.findall(r"python lab/reproduce/run\.py ([\w./]+)", text)
        assert [table for table in tables if not (ROOT / f"lab/reproduce/{table}.yaml").is_file()] == [], name
        found |= {*tables}
        for command, recipe in named:
            if recipe and command not in ("generate", "evaluate", "export") and f'title="{recipe}"' not in text:
                found.add(recipe)
                assert recipe == "run.yaml" or find_recipe(recipe).is_file(), f"{name}: {recipe}"
    assert len(found) > 8


def test_the_reference_has_every_public_name_where_it_is_defined():
    named = re.findall(r"^::: (hf_lenctrl[a-z0-9_.]*)\.(\w+)", "".join(map(PAGES.get, REFERENCE)), flags=re.M)
    assert {name for _, name in named} >= set(hf_lenctrl.__all__) - {"__version__"}
    for module, name in named:
        assert getattr(importlib.import_module(module), name).__module__ == module


def test_figures_of_the_pages_are_those_of_the_results():
    measured = set()
    files = [*(DOCS / "results").glob("*.*"), ROOT / "lab/reproduce/headline_en.yaml"]
    for path in files:
        measured |= set(FIGURE.findall(path.read_text(encoding="utf-8")))
    pages = ["quickstart", "finetune", "generate", "predict", "serve", "methods", "which"]
    for name in [*pages, "README"]:
        text = {**PAGES, "README": README}[name]
        prose = re.sub(r"```.*?```|\]\(.*?\)|`[^`]*`|section \S+|Python [\d.]+", "", text, flags=re.S)
        assert [figure for figure in FIGURE.findall(prose) if figure not in measured] == [], name


def rows_of(page: str, columns: list[str]) -> list[list[str]]:
    """Return the rows of the table of a page of results that begins with these columns."""
    header = "| " + " | ".join(columns) + " |"
    (table,) = re.findall(rf"^{re.escape(header)}.*\n\|[-|]+\n((?:\|.*\n)+)", PAGES[f"results/{page}"], flags=re.M)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def file_of(name: str) -> list[list[str]]:
    with open(DOCS / "results" / name, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


def test_tables_of_the_results_are_rows_of_their_files():
    outputs = file_of("outputs.csv")
    assert len(outputs) == 100 and rows_of("outputs", ["source", "natural"]) == outputs[:10]
    for name, count in (("methods_en.csv", 17), ("methods_ja.csv", 5)):
        with open(DOCS / "results" / name, encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        first = list(lines[0])[: 2 if "system" in lines[0] else 1]
        variance = next(column for column in lines[0] if column.startswith("variance at"))
        header = re.search(rf"^\| {' [|] '.join(first)} \| {variance} \|.*", PAGES["results/methods"], flags=re.M)[0]
        columns = header.strip("| ").split(" | ")
        shown = rows_of("methods", columns)
        assert len(shown) == count, name
        assert all(row in [[line[column] for column in columns] for line in lines] for row in shown), name
    shown = rows_of("causal", ["model", "length control", "length"])
    assert all(row in file_of("causal.csv") for row in shown)
    settings = {(row[0], row[1]): row for row in file_of("control.csv")}
    systems = {"cut": "cut at a word", "filtered": "filtered 16 best", "default": "**default**"}
    columns = ["max, × 0.8", "exact, × 0.8", "exact, × 1.2", "10 %, × 0.9", "10 %, × 1.2"]
    shown = rows_of("control", ["system", "at most × 0.8"])
    assert len(shown) == 6
    names = {text: name for name, text in systems.items()}
    for row in shown:
        for setting, cell in zip(columns, row[1:], strict=True):
            measured = settings[setting, names.get(row[0], row[0])]
            fits, cos, final = measured[2], measured[5], measured[6]
            assert cell == (f"{fits} % fit" if fits != "100" else f"{cos}, {final}"), (setting, row[0])


def test_the_messages_of_the_errors_page_are_those_of_the_package():
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "hf_lenctrl").rglob("*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # a message over two lines
    messages = re.findall(r"\*\*`(.+?)`\*\*", PAGES["faq"])
    assert len(messages) > 10
    for message in messages:
        parts = [part.strip() for part in re.split(r"\.\.\.|'\w+'|=", message)]
        assert all(part in code for part in parts if len(part) > 8), message


def test_the_page_of_the_commands_has_their_options():
    code = "import sys; sys.path.append('docs'); import commands; print(commands.page(), end='')"
    # a process of its own: here the families and encodings of the baselines may be known too
    assert output_of(code, cwd=ROOT, **ENVIRONMENT) == PAGES["commands"], "run `python docs/commands.py`"


def test_pages_are_short_and_in_the_navigation():
    assert {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")} == PAGES.keys()
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("nav:\n")[1].split("\n\n")[0]
    assert sorted(re.findall(r"(\S+)\.md$", navigation, flags=re.M)) == sorted(PAGES)
    for name in {*ORDER} - {"methods", "commands"}:
        written = re.sub(r"```.*?```", "", PAGES[name], flags=re.S)  # code is as long as it is
        assert len(written.splitlines()) <= 110, name


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed: pip install '.[docs]'"
)
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr[-3000:]
    for name in PAGES:
        html = (tmp_path / "site" / (name.removesuffix("index")) / "index.html").read_text(encoding="utf-8")
        loaded = r'<(?:script|img|iframe)[^>]*src="(?:https?:)?//[^"]*|<link[^>]*href="https?:[^"]*'
        assert re.findall(loaded, html) == [] and str(ROOT) not in html
