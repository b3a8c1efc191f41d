"""The rules of the house, from the syntax trees: imports that run one way, and no hidden channels."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from processes import output_of


ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "hf_lenctrl").rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path) -> set[str]:
    """Modules of the package that a file imports, wherever in it."""
    package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
    known, found = {name_of(other) for other in FILES}, set()
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
        elif isinstance(node, ast.ImportFrom):
            start = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(part for part in (start, node.module) if part)
            children = {f"{module}.{alias.name}" for alias in node.names} & known
            found |= children or {module} & known
    return found


# Names by which one part once knew another without an import: a test of an attribute, or a field that was written into
# an object of another library.
HIDDEN = {"progress_and_length", "answer_column", "length_asked", "length_point", "HUB_OPTIONS"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_part_knows_another_by_a_hidden_name(path):
    used: set[str] = set()
    for node in ast.walk(TREES[path]):
        used |= {name for name in (getattr(node, field, None) for field in ("attr", "id")) if isinstance(name, str)}
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            used.add(node.value)  # also in `hasattr(length, "...")` and in `vars(state)["..."]`
    assert used & HIDDEN == set()


def test_few_variables_have_any_type():
    """Any hides errors of a user's script."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in FILES
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Name) and node.annotation.id == "Any"
    ]
    assert len(found) < 30, found


def test_imports_make_no_circle_and_the_core_knows_no_command():
    graph = {name_of(path): imports_of(path) for path in FILES}
    # a command may ask for names of the whole package, which is above it
    graph = {name: {other for other in others if other != "hf_lenctrl"} for name, others in graph.items()}
    assert list(TopologicalSorter(graph).static_order())  # raises CycleError with the circle
    core = {name for name in graph if not name.startswith(("hf_lenctrl.commands", "hf_lenctrl.__main__"))}
    assert {(name, other) for name in core for other in graph[name] if other not in core} == set()
    assert "hf_lenctrl.length_units" in graph["hf_lenctrl.training.collator"]  # imports are found at all


def test_the_page_names_every_file_above_those_it_imports():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    core, rooms = re.findall(r"^## The (?:core|rooms)\n(.*?)(?=^## )", page, flags=re.M | re.S)
    floors, carried, floor = {}, set(), 0
    for number, files in re.findall(r"^\| (\d*) ?\| (.*?) \|", core, flags=re.M):
        floor = int(number or floor)
        floors |= dict.fromkeys(re.findall(r"`(\w+)\.py`", files), floor)
        carried |= set(re.findall(r"\*\*`(\w+)\.py`\*\*", files))
    imports = {path: {name.removeprefix("hf_lenctrl.") for name in imports_of(path)} for path in FILES}
    own = {path.stem: imports[path] & floors.keys() for path in FILES if path.parent.name == "hf_lenctrl"}
    assert floors.keys() == own.keys() and len(set(floors.values())) > 5
    assert [(name, other) for name in own for other in own[name] if floors[other] >= floors[name]] == []
    shipped: set[str] = set()  # `save_pretrained` copies what these import
    waiting = ["modeling_lenctrl", "modeling_lenctrl_causal", "modeling_lenctrl_seq2seq", "length_predictor"]
    while waiting:
        shipped.add(name := waiting.pop())
        waiting += own[name] - shipped
    assert carried == shipped
    order, named = [], set()
    for title, files in re.findall(r"^\| (?:`(\w+)/`)? ?\| (.*?) ?\|", rooms, flags=re.M):
        order += [title] if title else []
        named |= {f"hf_lenctrl.{order[-1]}.{name}" for name in re.findall(r"`(\w+)\.py`", files)}
    assert len(order) == len(set(order))  # each room once, so that its floor is known
    files = [path for path in FILES if path.parent.name in order[:-1] and path.stem != "__init__"]
    assert order[-1] == "commands" and {name_of(path) for path in files} == named
    for path in files:
        below = order[: order.index(path.parent.name) + 1]
        assert {name.split(".")[0] for name in imports[path] if "." in name} <= set(below), path


@pytest.mark.slow
def test_pytest_alone_collects_tests_that_import_folders_of_the_repository():
    # without the current folder on its path, as the program `pytest` starts
    collect = 'import pytest; sys.exit(pytest.main(["--collect-only", "-q", "lab/tests/test_benchmarks.py"]))'
    assert "test_benchmarks.py" in output_of(collect, cwd=ROOT)
