"""The wheel: what is in it, and that it works where the repository is not."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import hf_lenctrl


ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = """
import hf_lenctrl, torch
from importlib.metadata import version
from hf_lenctrl import LenCtrlMarianConfig, LenCtrlMarianMTModel, LengthConstraintLogitsProcessor, count_units
from hf_lenctrl.model_card import TEMPLATE

assert hf_lenctrl.__version__ == version("hf_lenctrl") and TEMPLATE.is_file(), hf_lenctrl.__file__
config = LenCtrlMarianConfig(
    length_encoding="ldpe", vocab_size=20, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, pad_token_id=1, eos_token_id=0,
    forced_eos_token_id=0, decoder_start_token_id=1,
)
model = LenCtrlMarianMTModel(config).eval()
ids = model.generate(torch.tensor([[5, 6, 7, 0]]), length=9, length_constraint="exact")
print(hf_lenctrl.__file__, int((ids > 1).sum()))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    # setuptools would write build/ and *.egg-info into the repository
    copy = folder / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    (copy / "hf_lenctrl").mkdir()
    for path in (ROOT / "hf_lenctrl").iterdir():
        if path.is_file():
            (copy / "hf_lenctrl" / path.name).write_bytes(path.read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", str(folder)]
    done = subprocess.run([*build, str(copy)], capture_output=True, text=True)
    if "Cannot import 'setuptools" in done.stderr or "No module named 'setuptools" in done.stderr:
        pytest.skip("building without a network needs setuptools 77 in this environment")
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    own = [path.name for path in (ROOT / "hf_lenctrl").iterdir() if path.suffix in (".py", ".typed", ".md")]
    assert sorted(names) == sorted(f"hf_lenctrl/{name}" for name in own)
    assert wheel.name == f"hf_lenctrl-{hf_lenctrl.__version__}-py3-none-any.whl"


@pytest.mark.slow
def test_the_wheel_works_where_the_repository_is_not(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=False)
    site = next((tmp_path / "venv").glob("lib*/python*/site-packages"))
    # the dependencies of this environment, though not its editable install of the repository: .pth files in a folder
    # that a .pth file names are not read
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    zipfile.ZipFile(wheel).extractall(site)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(tmp_path / "venv" / "bin" / "python"), "-W", "ignore", "-c", EXAMPLE],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"{re.escape(str(site))}/hf_lenctrl/__init__.py 9\n", done.stdout)


def test_every_hint_to_install_names_the_distribution_and_an_extra_of_it():  # issue 15.38
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    folders = ("hf_lenctrl", "recipes", "app", "benchmarks")
    code = "".join(path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py"))
    hints = re.findall(r"pip install '(hf.lenctrl)\[(\w+)\]'", code)
    assert {name for name, _ in hints} == {project["name"]}
    assert {"plot", "fast"} <= {extra for _, extra in hints} <= extras.keys()
    needs = {extra: {re.match(r"[\w-]+", line)[0] for line in lines} for extra, lines in extras.items()}
    assert needs["plot"] == {"matplotlib"} < needs["train"]  # a run draws its report
    assert project["optional-dependencies"]["plot"][0] in project["optional-dependencies"]["train"]


def test_the_version_stands_in_one_place():
    found = [path.name for path in (ROOT / "hf_lenctrl").glob("*.py") if hf_lenctrl.__version__ in path.read_text()]
    assert found == ["__init__.py"]
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project and not re.search('^version *= *"', project, re.M)
    assert hf_lenctrl.__version__ not in (ROOT / "CITATION.cff").read_text()
