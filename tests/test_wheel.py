"""The wheel: what is in it, and that it works where the repository is not."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile

import pytest
from recipe_runs import ROOT, ROWS, write_rows

import hf_lenctrl


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    # setuptools would write build/ and *.egg-info into the repository
    copy = folder / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("hf_lenctrl", "recipes"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--verbose", "-w", str(folder)]
    done = subprocess.run([*build, str(copy)], capture_output=True, text=True)
    if "Cannot import 'setuptools" in done.stderr or "No module named 'setuptools" in done.stderr:
        pytest.skip("building without a network needs setuptools 77 in this environment")
    assert done.returncode == 0, done.stderr
    assert "importable" not in done.stdout + done.stderr  # as setuptools warns of folders that it takes for packages
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_the_package_the_command_the_recipes_and_nothing_else(wheel):
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    own = [path for path in (ROOT / "hf_lenctrl").rglob("*") if path.suffix in (".py", ".pyi", ".typed", ".md")]
    files = [path.relative_to(ROOT).as_posix() for path in own]
    recipes = [path for pattern in ("*.py", "*/*.yaml") for path in (ROOT / "recipes").glob(pattern)]
    files += [f"hf_lenctrl/{path.relative_to(ROOT).as_posix()}" for path in recipes]
    assert sorted(names) == sorted(files) and {name.split("/")[0] for name in names} == {"hf_lenctrl"}
    assert "hf_lenctrl/recipes/headline/small.yaml" in names
    assert wheel.name == f"hf_lenctrl-{hf_lenctrl.__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A fresh environment with the wheel, and a function that runs one of its programs where the repository is not."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=False)
    site = next((folder / "venv").glob("lib*/python*/site-packages"))
    # the dependencies of this environment, though not its editable install of the repository: .pth files in a folder
    # that a .pth file names are not read
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    bin = folder / "venv" / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(bin / "python"), "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*pip, "--ignore-installed", str(wheel)], check=True, capture_output=True, text=True)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    environment["HF_HOME"] = str(folder / "home")

    def run(program: str, *words: str) -> str:
        command, how = [str(bin / program), *words], {"capture_output": True, "text": True, "timeout": 300}
        done = subprocess.run(command, **how, cwd=folder, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    run.folder, run.site = folder, site
    return run


@pytest.mark.slow
def test_the_installed_command_lists_its_recipes_and_trains_by_one(installed):
    listed = installed("lenctrl", "recipes")
    assert re.search(r"^headline/small +Headlines on two CPU cores", listed, flags=re.M)
    assert f"{installed.site}/hf_lenctrl/recipes" in listed
    write_rows(installed.folder / "rows.jsonl", ROWS[:50])
    options = "--max_steps 2 --save_steps 1 --eval_steps 2 --d_model 32 --ffn_dim 32 --attention_heads 2 --use_cpu"
    options += " --vocab_size 150 --test_lengths 20 --validation_share 0.1 --test_share 0.1 --generation_num_beams 1"
    where = ["--train_file", "rows.jsonl", "--output_dir", "run"]
    installed("lenctrl", "train", "headline/small", *where, *options.split())
    results = json.loads((installed.folder / "run" / "all_results.json").read_text())
    assert {"test_mae", "test_20_mae"} <= results.keys()
    run = installed.folder / "run"  # the model's code is the installed one, and so is the template of its report
    assert (run / "modeling_lenctrl.py").is_file() and (run / "report.png").is_file()


def test_hints_to_install_name_extras_and_no_package_of_an_index():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    folders = ("hf_lenctrl", "recipes", "lab", "docs", "hub", "models", "notebooks")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    files = [path for path in files if path.suffix in (".py", ".md", ".txt", ".ipynb", ".yaml")]
    text = "".join(path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *files])
    found = re.findall(r"""pip install (?:'\.|"hf_lenctrl)\[([\w,]+)\]""", text)
    hints = {name for group in found for name in group.split(",")}
    assert {"train", "onnx", "json", "plot", "ja", "ray"} <= hints <= extras.keys()
    # it is on no index, so a hint adds an extra to what is installed, or has an address
    assert re.findall(r"pip install (?:-\S+ )*[\"']?hf.lenctrl(?!\S* @|\[)\S*", text) == []
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "hf_lenctrl").rglob("*.py"))
    assert re.findall(r"pip install '?\.\[.*", code) == []  # an error is also read where there is no clone
    assert "hf-lenctrl\n" not in (ROOT / "lab" / "app" / "requirements.txt").read_text()
    needs = {extra: {re.match(r"[\w-]+", line)[0] for line in lines} for extra, lines in extras.items()}
    assert needs["plot"] == {"matplotlib"} < needs["train"]  # a run draws its report
    assert extras["plot"][0] in extras["train"]


def test_the_version_stands_in_one_place():
    found = [path.name for path in (ROOT / "hf_lenctrl").glob("*.py") if hf_lenctrl.__version__ in path.read_text()]
    assert found == ["__init__.py"]
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project and not re.search('^version *= *"', project, re.M)


def test_the_lowest_versions_are_the_bounds_of_the_project(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests" / "tools")
    ranges = importlib.import_module("ranges")
    extras = {"test": ["hf-lenctrl[train,fit]", "c-c==3"], "train": ["b>=2.1"], "fit": ["d[x]>=4"], "docs": ["e>=5"]}
    project = {"dependencies": ["torch>=2.6", "a>=1.0,<2"], "optional-dependencies": extras}
    assert ranges.lowest(project) == ["a==1.0", "b==2.1", "c-c==3", "d==4"]
    monkeypatch.setenv("TORCH", "2.6.0+cpu")
    assert ranges.constraints("newest") == "torch==2.6.0+cpu\n"


def test_every_page_names_the_python_that_the_packages_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["requires-python"] == ">=3.11"  # transformers 5.21 and later
    assert project["tool"]["ruff"]["target-version"] == "py311"
    assert "Python 3.11.5+" in (ROOT / "Makefile").read_text()  # pymdown-extensions, of the documentation
    text = "".join(
        path.read_text() for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]
    )
    assert set(re.findall(r"Python (3\.\d+)", text)) == {"3.11"}
