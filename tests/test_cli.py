"""`lenctrl`: what its commands are, how it starts, and what it says of a mistake."""

import json
import multiprocessing
import re
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SOURCES
from processes import fork
from test_readme import ENVIRONMENT, ROOT

import hf_lenctrl
from hf_lenctrl.commands import lenctrl as cli
from hf_lenctrl.commands import locking


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command in this process: its status, or 0, and what it wrote to stderr."""
    monkeypatch.setattr(sys, "argv", [])

    def run(*words: str) -> tuple:
        with pytest.raises(SystemExit) as end:
            cli.main(list(words))
        error = capsys.readouterr().err
        if isinstance(end.value.code, str):  # Python prints it, with status 1
            return 1, end.value.code
        return end.value.code, error

    return run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "train-predictor  train a"),
        (["--version"], f"lenctrl {hf_lenctrl.__version__}"),
        (["recipes"], "headline/small "),
    ],
)
def test_help_and_version_come_without_torch(words, said):
    code = f"import sys; from hf_lenctrl.commands.lenctrl import main; main({words!r})"
    code += "; print({'torch', 'transformers'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.stdout.endswith("set()\n") and said in done.stdout, done.stderr


def test_the_recipes_are_listed_with_a_line_each(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    cli.main(["recipes"])
    text = capsys.readouterr().out
    names = re.findall(r"^([a-z]+/\w+)  +\S.{20,}", text, flags=re.M)
    headlines = "debian nguyen paper paper_as_run pretrained small subword_small".split()
    assert [name for name in names if name.startswith("headline/")] == [f"headline/{name}" for name in headlines]
    files = {f"{path.parent.name}/{path.stem}" for path in (ROOT / "recipes").glob("[!a]*/*.yaml")}
    assert set(names) == files
    assert str(ROOT / "recipes") in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "lenctrl: there is no command 'trian'; did you mean train?"),
        (["evaluate", "--input_file", "y", "--untis", "word"], "--untis word (did you mean --units?)"),
        (["generate", "--length_unit", "words"], "unit must be one of token, character, word, byte, width, "),
        (["train", "--layer=2"], "unrecognized arguments: --layer=2 (did you mean --layers?)"),
        (["train", "--colour=red"], "unrecognized arguments: --colour=red;"),
        (["train", "headline/small", "second.yaml"], "unrecognized arguments: second.yaml;"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_right_one(run, words, message):
    status, error = run(*words)
    assert status == 2 and message in error and "Traceback" not in error
    assert error.count("\n") == 1 and (words == ["trian"] or error.endswith(f"; see lenctrl {words[0]} --help\n"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "headlin/small"], "there is no recipe 'headlin/small' (did you mean headline/small?)"),
        (["train", "causal/acl"], "there is no folder runs/causal/base"),
        (["evaluate", "--input_file", "rows.csv"], "rows.csv has no column 'requested', only output;requested"),
        (["train"], "output_dir is required; give --output_dir"),
        (["train", "broken.yaml"], "broken.yaml could not be read as YAML: "),
        (["train", "latin1.yaml"], "latin1.yaml could not be read as YAML: "),
        (["train", "missing.yaml"], "No such file or directory: 'missing.yaml'"),
        (["train", "headline/small", "--train_file", "gone.jsonl", "--use_cpu"], "there is no data file gone.jsonl"),
        (["train", "headline/pretrained", "--train_file", "gone.jsonl"], "base_model is required; give --base_model"),
        (["export", "models/gone", "--output_dir", "z"], "there is no folder models/gone (did you m"),
        # the next three come from transformers
        (
            ["generate", "--model", "models/done", "--input_file", "texts.txt", "--output_file", "o"],
            "Unrecognized model",
        ),
        (["train", "--output_dir", "x", "--load_best_model_at_end"], "requires the save and eval strategy to match"),
        (["generate", "--model", "gone", "--input_file", "texts.txt", "--output_file", "o"], "We couldn't connect to"),
    ],
)
def test_a_mistake_is_told_in_one_line_and_with_debug_by_its_traceback(run, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("models", "done").mkdir(parents=True)
    Path("texts.txt").write_text(SOURCES[0])
    Path("rows.csv").write_text("output;requested\na;1\n")
    Path("broken.yaml").write_text("layers: 2: 3\n")
    Path("latin1.yaml").write_bytes("language: é\n".encode("latin-1"))
    status, error = run(*words)
    assert status == 1 and message in error and "\n" not in error.strip()
    assert error.startswith(f"lenctrl {words[0]}: ") and error.endswith(f"lenctrl --debug {words[0]} ...)")
    with pytest.raises((ValueError, OSError), match=re.escape(message)):
        cli.main(["--debug", *words])


@pytest.mark.parametrize(
    "words", ["generate --model m --overwrite", "fit --length 5", "fit-cost --overwrite", "evaluate"]
)
@pytest.mark.parametrize("output", ["report.json", "./report.json", "link/report.json"])
def test_no_command_overwrites_its_input(run, words, output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to(tmp_path)
    text = json.dumps([{"source": "a", "text": "a", "seconds": 1}] * 20)
    Path("report.json").write_text(text)
    command, *options = words.split()
    place = ["--output_dir", str(Path(output).parent)] if command == "evaluate" else ["--output_file", output]
    status, error = run(command, *options, "--input_file", "report.json", *place)
    assert status == 1 and "would replace the input report.json; name another output" in error
    assert Path("report.json").read_text() == text and not Path("_run").exists()


@pytest.mark.parametrize("name", ["out.csv", "out.TXT", "out.jsonl.gz"])
@pytest.mark.parametrize("command", ["generate", "fit", "fit-cost"])
def test_a_name_of_another_format_is_refused_because_the_output_is_json(run, command, name):
    status, error = run(command, "--input_file", "rows.jsonl", "--output_file", name)
    rule = f"argument --output_file: the output is JSON, got the name '{name}'; end it in .jsonl or .json"
    assert status == 2 and error == f"lenctrl {command}: {rule}; see lenctrl {command} --help\n"


@pytest.mark.parametrize("command", ["generate", "train", "train-predictor"])
def test_a_second_command_does_not_write_where_the_first_does_until_that_is_killed(run, command, tmp_path):
    (tmp_path / "texts.txt").write_text(SOURCES[0])
    out = tmp_path / "out"
    shape = "--layers 1 --d_model 8 --attention_heads 1 --vocab_size 50 --length_unit character"
    options = {
        "generate": f"--model gone --input_file {tmp_path / 'texts.txt'} --output_file {out}",
        "train": f"headline/small --train_file gone.jsonl --output_dir {out}",
        "train-predictor": f"--train_file gone.jsonl {shape} --output_dir {out}",
    }[command].split()
    if command != "generate":
        out.mkdir()
    locked_there = multiprocessing.get_context("fork").Event()

    def hold():
        with locking.locked(out):
            locked_there.set()
            signal.pause()

    first = fork(hold)
    assert locked_there.wait(60)
    status, error = run(command, *options)
    assert status == 1 and f"another command is writing {out}; wait for its end" in error
    assert "\n" not in error.strip() and not list(tmp_path.glob("*.json")) and not (out / "run.json").exists()
    first.kill()
    first.join()
    assert "another command" not in run(command, *options)[1]  # but the file that is not there


def test_a_fault_of_the_program_keeps_its_traceback(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    (tmp_path / "faulty.py").write_text("def main():\n    int('one')\n")  # a ValueError, though none of ours
    with pytest.raises(ValueError, match="invalid literal"):
        cli.run("faulty", "faulty", [])
    (tmp_path / "lacking.py").write_text("import a_package_that_is_not_there\n")
    with pytest.raises(SystemExit, match="that_is_not_there'; pip install a_package_that_is_not_there$"):
        cli.run("lacking", "lacking", [])
    (tmp_path / "asking.py").write_text("raise ImportError('4 bits need bitsandbytes: pip install it')\n")
    with pytest.raises(
        SystemExit, match="^lenctrl asking: 4 bits need bitsandbytes: pip install it .for the traceback"
    ):
        cli.run("asking", "asking", [])
    (tmp_path / "listing.py").write_text(r"raise ImportError('These differ:\n  * seed=1, now 2\n  * bf16=0, now 1')")
    with pytest.raises(SystemExit) as end:
        cli.run("listing", "listing", [])
    points = "\n  * seed=1, now 2\n  * bf16=0, now 1\n(for the traceback: lenctrl --debug listing ...)"
    assert end.value.code == f"lenctrl listing: These differ:{points}"
    (tmp_path / "wrong.py").write_text("from json import nothing\n")
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        cli.run("wrong", "wrong", [])
    (tmp_path / "without_data.py").write_text("raise ModuleNotFoundError('No module', name='datasets')\n")
    with pytest.raises(SystemExit, match=r'No module; pip install "hf_lenctrl\[train\]"$'):
        cli.run("lacking", "without_data", [])


SCRIPTS = ["hf_lenctrl", *sorted((ROOT / "recipes").glob("*.py"))]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: Path(path).stem)
def test_a_command_is_a_script_of_the_repository_too(path, capsys, monkeypatch):
    """As `accelerate launch` runs it: by its path, or by `-m hf_lenctrl`."""
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(path, run_name="__main__") if path == "hf_lenctrl" else runpy.run_path(
            str(path), run_name="__main__"
        )
        raise SystemExit
    assert end.value.code in (0, None) and "usage: " in capsys.readouterr().out.lower()


def test_an_absurd_value_of_a_configuration_is_told_in_one_line(run, saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"length_encoding": "scale", "length_scale": 0}))
    (tmp_path / "texts.txt").write_text(SOURCES[0])
    words = ["--model", folder, "--input_file", tmp_path / "texts.txt", "--output_file", tmp_path / "out"]
    status, error = run("generate", *map(str, words), "--length", "9")
    assert status == 1 and "\n" not in error.strip()
    assert "length_scale must be from 1 to 10000000, got 0" in error


def test_a_wrong_option_of_sampling_is_told_in_one_line(run, saved, tmp_path):
    (tmp_path / "in.txt").write_text("one\n")
    words = f"--model {saved} --input_file {tmp_path / 'in.txt'} --output_file {tmp_path / 'out.jsonl'} --length 5"
    status, error = run("generate", *words.split(), "--do_sample", "--temperature", "0")
    assert status == 1 and error.startswith("lenctrl generate: `temperature` (=0.0) has to be a strictly positive")
    assert "\n" not in error and not (tmp_path / "out.jsonl").exists()
