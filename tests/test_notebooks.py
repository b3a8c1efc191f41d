"""The notebooks run from beginning to end, and are committed with their outputs."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from conftest import build_model
from hub_server import Hub
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell


ROOT = Path(__file__).resolve().parents[1]
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in PATHS]
NOTEBOOKS = {path.stem: nbformat.read(path, as_version=4) for path in PATHS}
# run as a last cell of each notebook, where its variables are
FACTS = {
    "01_quickstart": """
assert [out["length"] for out in bound["exact"]] == [LENGTH] * len(TEXTS) == [40] * 2
assert max(out["length"] for out in bound["max"]) <= LENGTH
assert exact == asked and len(alone) == len(asked)
""",
    "02_finetune_your_checkpoint": """
assert same == [True, True] and not report.dropped
assert [out["length"] for out in exact] == [20, 40, 60]
assert all(len(produced_after[n]) == len(tests) for n in LENGTHS)
assert torch.count_nonzero(reloaded.model.decoder.length_projection.weight) > 0
assert reloaded.config.length_unit == "character"
""",
    "03_predict_lengths": """
assert len(predicted) == len(true) == len(tests) and min(predicted) >= 1
assert figures["predictor"]["mae"] < figures["source's length"]["mae"]
assert [out["length"] for out in outputs] == [out["requested_length"] for out in outputs] == predicted[:4]
""",
    "04_evaluate_and_share": """
assert report.units["character"]["n"] == 3 * len(tests) == 6
assert [out["requested_length"] for out in at_reference] == [len(text) for text in references]
assert picture and len(card.data.eval_results) == 4 * 7
assert again == first and where == "user/lenctrl-notebook"
""",
}


@pytest.fixture
def execute(tmp_path, shared_tokenizer):
    """Runs a notebook on a tiny budget, in a copy of the repository's layout with a small model."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "notebooks").mkdir()
    model = build_model("marian", vocab_size=len(shared_tokenizer), length_encoding="ldpe", length_unit="character")
    model.set_unit_table(shared_tokenizer)
    model.save_pretrained(tmp_path / "models" / "debian_headlines")
    shared_tokenizer.save_pretrained(tmp_path / "models" / "debian_headlines")
    # what would change where the kernel draws, or what it loads
    unset = {"MPLBACKEND", "LENCTRL_MODEL", "HF_TOKEN", "HF_ENDPOINT"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"LENCTRL_NOTEBOOK_STEPS": "2", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}

    def execute(name: str, **more: str):
        notebook = nbformat.from_dict({**NOTEBOOKS[name]})
        notebook.cells = [*notebook.cells, new_code_cell(FACTS[name])]
        where = {"metadata": {"path": str(tmp_path / "notebooks")}}
        client = NotebookClient(notebook, timeout=200, kernel_name="python3", resources=where)
        return client.execute(env=environment | {"HF_HOME": str(tmp_path / "home")} | more)  # an error is raised

    return execute


def test_every_notebook_is_tested():
    assert NAMES == sorted(FACTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["01_quickstart", "02_finetune_your_checkpoint", "03_predict_lengths"])
def test_notebook_runs(execute, name):
    pictures = [output for cell in execute(name).cells for output in cell.get("outputs", []) if "data" in output]
    assert any("image/png" in output["data"] for output in pictures)


@pytest.mark.slow
def test_notebook_uploads_and_loads_back(execute):
    with Hub() as hub:
        names = {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token, "HF_HUB_OFFLINE": "0"}
        execute("04_evaluate_and_share", **names, HF_HUB_DISABLE_XET="1", NO_PROXY="127.0.0.1")
        files = hub.files("user/lenctrl-notebook")
        assert hub.repos["user/lenctrl-notebook"]["private"]
    assert {"README.md", "report.png", "model.safetensors", "modeling_lenctrl.py", "source.spm"} <= files.keys()
    assert b'model="user/lenctrl-notebook"' in files["README.md"]


# what is committed


@pytest.mark.parametrize("name", NAMES)
def test_committed_notebook_is_whole_and_clean(name):
    text = (ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    assert len(text.encode()) < 400_000
    # nothing of the machine it was run on; a picture's letters may spell anything
    assert not re.search(r"(?<![\w.])/(tmp|home|root|work)\b", re.sub(r'"image/png": ".*"', "", text))
    cells = [cell for cell in NOTEBOOKS[name].cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))  # in one go, from the top
    for cell in cells:
        outputs = [output["output_type"] for output in cell.outputs]
        assert "error" not in outputs and not any(output.get("name") == "stderr" for output in cell.outputs)
        if re.search(r"^ *(print|display|show|plt\.show)\(", cell.source, flags=re.M):
            assert outputs, f"without its output: {cell.source[:80]}"


def test_the_committed_predictor_found_more_than_the_mean():
    text = (ROOT / "notebooks" / "03_predict_lengths.ipynb").read_text(encoding="utf-8")
    mean, predictor = (float(re.search(rf'"{guess} +([\d.]+) ', text)[1]) for guess in ("mean of .*rows", "predictor"))
    assert predictor < mean


@pytest.mark.parametrize("name", NAMES)
def test_budget_is_a_variable_at_the_top(name):
    first = next(cell for cell in NOTEBOOKS[name].cells if cell.cell_type == "code")
    assert re.search(r'^STEPS = int\(os\.environ\.get\("LENCTRL_NOTEBOOK_STEPS", \d+\)\)', first.source, flags=re.M)
