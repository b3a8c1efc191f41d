"""The notebooks run from beginning to end, and are committed with their outputs."""

import copy
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import peft
import pytest
import torch
from conftest import plain_marian, save_in
from hub_server import Hub
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell
from processes import Process
from recipe_runs import ROOT, write_predictor
from test_causal import build_plain, make_tokenizer

from hf_lenctrl import add_length_control
from hf_lenctrl.adapters import save_control


NOTEBOOKS = {path.stem: nbformat.read(path, as_version=4) for path in (ROOT / "notebooks").glob("*.ipynb")}
NAMES = sorted(NOTEBOOKS)
CELLS = {name: [cell for cell in NOTEBOOKS[name].cells if cell.cell_type == "code"] for name in NAMES}
# run as a last cell of each notebook, where its variables are
FACTS = {
    "01_quickstart": """
assert [out["length"] for out in outputs["exact"]] == lengths and len(sentences) == 2
assert all(out["length"] <= length for out, length in zip(outputs["max"], lengths, strict=True))
assert exact == requested and len(unconstrained) == len(requested) == 6
assert [limited[unit]["length_unit"] for unit in limited] == ["word", "character", "byte", "token"]
assert all(limited[unit]["length"] <= length for unit, length in (("word", 7), ("byte", 36), ("token", 9)))
assert all(out["length"] <= out["requested_length"] for out in several) and "score" in several[0]
""",
    "02_finetune_your_checkpoint": """
assert same == [True, True] and not report.dropped
sources = {pair["source"] for pair in pairs}
assert len(pairs) == len({(pair["source"], pair["target"]) for pair in pairs}) > len(sources) == 56
assert not sources & {*tests, *chosen_by_hand} and list(errors) == [0, 1, 2]
assert torch.count_nonzero(reloaded.model.decoder.length_projection.weight) > 0
assert reloaded.config.length_unit == "character"
""",
    "03_predict_lengths": """
assert len(predicted) == len(own) == len(sentences) == 2 and min(predicted) >= 1
assert [out["requested_length"] for out in isometric["length of the source"]] == [len(text) for text in sentences]
assert set(shares) == set(isometric)
""",
    "04_evaluate_and_share": """
assert report.units["character"]["n"] == 3 * len(sources) == 6
assert [out["requested_length"] for out in at_reference] == [len(text) for text in references]
assert picture and len(card.data.eval_results) == 6  # four of length, BLEU and chrF
assert again == first and where == "user/lenctrl-notebook"
""",
    "05_causal_language_model": """
assert same == [True, True] and not report.dropped and list(report.new) == ["length_projection.weight"]
assert len(planned) == len(named) == len(TEXTS) == len(fitted)
assert all(out["length"] <= 50 for out in most) and all(45 <= out["length"] <= 55 for out in within)
assert all(one.length <= 60 or one.text in TEXTS and one.fault for one in fitted)
assert torch.count_nonzero(reloaded.length_projection.weight) > 0
""",
}


@pytest.fixture(scope="module")
def hub():
    with Hub() as hub:
        yield hub


def save_chat_model(base: Path, adapter: Path) -> None:
    """Save a small plain chat model, and an adapter over it that counts characters."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}: {% endfor %}"
    save_in(base, build_plain("llama"), tokenizer)
    model = add_length_control(str(base), length_unit="character")
    model.make_length_optional()
    options = {"target_modules": ["q_proj"], "modules_to_save": ["length_projection"]}
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options))
    torch.nn.init.normal_(adapted.length_projection.modules_to_save["default"].weight, std=0.3)
    save_in(adapter, adapted, tokenizer)
    save_control(adapted, adapter)


class Fork(AsyncKernelManager):
    """The manager of a kernel that is a fork: nbclient would start a second one, for the same ports, elsewhere."""

    has_kernel = True


@pytest.fixture(scope="module")
def execute(tmp_path_factory, shared_tokenizer, hub):
    """Runs a notebook on a tiny budget, in a copy of the repository's layout with small models; all in one kernel."""
    tmp_path = tmp_path_factory.mktemp("clone")
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "notebooks").mkdir()
    models, plain = tmp_path / "models", plain_marian(shared_tokenizer, encoder_layers=1, decoder_layers=1)
    save_chat_model(tmp_path / "runs" / "smollm2", models / "rewrite_english")
    model = add_length_control(plain, tokenizer=shared_tokenizer, length_unit="character")
    model.make_length_optional()
    model.config.length_predictor, model.config.length_constraint = "./predictor", "exact"
    write_predictor(save_in(models / "translate_to_english", model, shared_tokenizer) / "predictor")
    # what would change where the kernel draws, or what it loads
    unset = {"MPLBACKEND", "LENCTRL_MODEL"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"LENCTRL_NOTEBOOK_STEPS": "2", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    environment |= {"HF_HOME": str(tmp_path / "home"), "NO_PROXY": "127.0.0.1"}
    kernel = Fork(owns_kernel=False)
    kernel.write_connection_file()
    code, file = "runpy.run_module('ipykernel_launcher', run_name='__main__')", kernel.connection_file
    process = Process(code, "-f", file, cwd=tmp_path / "notebooks", **environment)

    def execute(name: str):
        notebook = copy.deepcopy(NOTEBOOKS[name])
        # its imports take longer than a notebook; the names of the last one are gone
        notebook.cells = [new_code_cell("%reset -f"), *notebook.cells, new_code_cell(FACTS[name])]
        client = NotebookClient(notebook, timeout=200, km=kernel)
        executed = client.execute()  # an error is raised
        client.kc.stop_channels()
        return executed

    yield execute
    process.end()
    kernel.cleanup_connection_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_notebook_runs(execute, hub, name):
    pictures = [output for cell in execute(name).cells for output in cell.get("outputs", []) if "data" in output]
    assert any("image/png" in output["data"] for output in pictures) or name.startswith("05")
    if name.startswith("04"):  # which uploads a model and loads it
        files = hub.files("user/lenctrl-notebook")
        assert hub.repos["user/lenctrl-notebook"]["private"]
        assert {"README.md", "report.png", "model.safetensors", "modeling_lenctrl.py", "source.spm"} <= files.keys()
        assert b'model="user/lenctrl-notebook"' in files["README.md"]


@pytest.mark.parametrize("name", NAMES)
def test_committed_notebook_is_whole_and_clean(name):
    text = (ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    assert len(text.encode()) < 400_000
    # nothing of the machine it was run on; a picture's letters may spell anything
    assert not re.search(r"(?<![\w.])/(tmp|home|root|work)\b", re.sub(r'"image/png": ".*"', "", text))
    cells = CELLS[name]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))  # in one go, from the top
    steps = r'^STEPS = int\(os\.environ\.get\("LENCTRL_NOTEBOOK_STEPS", \d+\)\)'
    assert re.search(steps, cells[1].source, flags=re.M) or name.startswith("05")  # which trains nothing
    for cell in cells:
        outputs = [output["output_type"] for output in cell.outputs]
        assert "error" not in outputs and not any(output.get("name") == "stderr" for output in cell.outputs)
        if re.search(r"^ *(print|display|show|plt\.show)\(", cell.source, flags=re.M):
            assert outputs, f"without its output: {cell.source[:80]}"


def test_the_committed_outputs_show_what_the_text_says():
    outputs = ([output for cell in CELLS[name] for output in cell.outputs] for name in NAMES[1:])
    finetune, predict, share, causal = ("".join(output.get("text", "") for output in each) for each in outputs)
    before, after = map(float, re.findall(r"(?:prompt|adapter): mean error ([\d.]+) characters", causal))
    assert after < 2 / 3 * before
    errors = [float(error) for error in re.findall(r"mean error ([\d.]+) characters", finetune)]
    assert errors[-1] < 2 / 3 * errors[0]
    source, predictor = re.findall(r"^(?:length of the source|predictor) +([\d.]+) ", predict, flags=re.M)
    assert float(predictor) < float(source)
    plain, *isometric = map(int, re.findall(r"(\d+)% within", predict))
    assert len(isometric) == 2 and min(isometric) > plain + 20
    assert "the same translations as before: True" in share


@pytest.mark.parametrize("name", NAMES)
def test_the_first_cell_clones_and_installs_where_the_package_is_missing(name, tmp_path, monkeypatch):
    first, asked = CELLS[name][0], []

    def run(command, check):
        asked.append(command)
        if command[0] == "git":
            shutil.copytree(ROOT / "notebooks", tmp_path / "clone" / "notebooks")
            for folder in ("models", "recipes"):
                (tmp_path / "clone" / folder).symlink_to(ROOT / folder)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    exec(first.source, {})
    assert asked == [] and Path.cwd() == tmp_path  # the package is here
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    exec(first.source, {})
    assert [command[:2] for command in asked] == [["git", "clone"], [sys.executable, "-m"]]
    assert asked[1][-1] == "./clone[train,notebooks]" and (tmp_path / asked[0][-1]).is_dir()
    paths = re.findall(r'"(\.\./[\w/.]+)"', "".join(cell.source for cell in CELLS[name]))
    assert paths and all(Path(path).exists() for path in paths)
