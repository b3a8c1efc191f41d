"""The rules of the house, from the syntax trees: short files and functions, imports that run one way."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest


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


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_file_has_more_than_400_lines_and_no_function_more_than_60(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= 60, f"{node.name} has {lines} lines"


def test_imports_make_no_circle_and_the_core_knows_no_command():
    graph = {name_of(path): imports_of(path) for path in FILES}
    # a command may ask for names of the whole package, which is above it
    graph = {name: {other for other in others if other != "hf_lenctrl"} for name, others in graph.items()}
    assert list(TopologicalSorter(graph).static_order())  # raises CycleError with the circle
    core = {name for name in graph if not name.startswith("hf_lenctrl.commands")}
    climbs = {(name, other) for name in core for other in graph[name] if other not in core}
    assert climbs == set()
    assert "hf_lenctrl.length_units" in graph["hf_lenctrl.training.collator"]  # imports are found at all
    assert "hf_lenctrl.lengths" in graph["hf_lenctrl.commands.arguments"]
