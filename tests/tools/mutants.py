"""Faults made on purpose: how many do the tests of a module catch?

    python tests/tools/mutants.py --most 60 --seed 1
    python tests/tools/mutants.py hf_lenctrl/length_rules.py --most 20

Each mutant changes one operator, constant or condition of a module of the core in a copy of the repository, and runs
the tests of that module there until one fails. The script prints each mutant that survives, with its line, and the
share that was caught. Mutants that only change a message or a type hint are not made.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


ROOT = Path(__file__).resolve().parents[2]
# module -> tests that should catch its faults, the quickest first
TESTS = {
    "hf_lenctrl/length_units.py": ["test_length_units.py", "test_length_constraint.py", "test_modeling_units.py"],
    "hf_lenctrl/unit_vocabulary.py": ["test_unit_vocabulary.py", "test_length_units.py", "test_character_costs.py"],
    "hf_lenctrl/length_rules.py": ["test_length_window.py", "test_length_constraint.py", "test_character_costs.py"],
    "hf_lenctrl/length_constraint.py": ["test_length_constraint.py", "test_length_window.py", "test_length_bound.py"],
    "hf_lenctrl/generation.py": ["test_generation.py", "test_constrained_generation.py", "test_auto_classes.py"],
    "hf_lenctrl/training/collator.py": ["test_data_collator.py", "test_trainer.py"],
}
_COMPARE = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
_COMPARE |= {ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}
_BINARY = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}


def _changes(node: ast.AST) -> list:
    """Functions that make one fault each in a node of this kind."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
        return [lambda n: n.ops.__setitem__(0, _COMPARE[type(n.ops[0])]())]
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return [lambda n: setattr(n, "op", _BINARY[type(n.op)]())]
    if isinstance(node, ast.BoolOp):
        return [lambda n: setattr(n, "op", ast.Or() if isinstance(n.op, ast.And) else ast.And())]
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        return [lambda n: setattr(n, "value", not n.value)]
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return [lambda n: setattr(n, "value", n.value + 1)]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [lambda n: setattr(n, "op", ast.UAdd())]
    if isinstance(node, ast.IfExp):
        return [lambda n: (lambda a, b: (setattr(n, "body", b), setattr(n, "orelse", a)))(n.body, n.orelse)]
    return []


def _left_out(tree: ast.AST) -> set[int]:
    """Nodes without a behaviour of their own: annotations, messages, decorators, `if TYPE_CHECKING`."""
    out: set[int] = set()
    for node in ast.walk(tree):
        parts: list = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        parts += getattr(node, "decorator_list", [])
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and "logger" in ast.unparse(node.func)):
            parts.append(node)
        out |= {id(child) for part in parts if part is not None for child in ast.walk(part)}
    return out


def mutants(path: Path) -> list[tuple[int, str, str]]:
    """Line, description and text of each mutant of a file."""
    text = path.read_text(encoding="utf-8")
    tree, found = ast.parse(text), []
    skipped = _left_out(tree)
    for i, node in enumerate(ast.walk(tree)):
        for change in () if id(node) in skipped else _changes(node):
            other = copy.deepcopy(tree)
            same = next(n for k, n in enumerate(ast.walk(other)) if k == i)
            before = ast.unparse(same)
            change(same)
            found.append((getattr(node, "lineno", 0), f"{before} -> {ast.unparse(same)}", ast.unparse(other)))
    return found


def is_caught(copy_of: Path, module: str, text: str, seconds: float) -> bool:
    """Whether a test of the module fails with this text in its place."""
    file = copy_of / module
    whole = file.read_text(encoding="utf-8")
    file.write_text(text, encoding="utf-8")
    try:
        for name in TESTS[module]:
            if not (test := copy_of / "tests" / name).is_file():
                continue
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(test)]
            environment = {**os.environ, "PYTHONPATH": str(copy_of), "PYTHONDONTWRITEBYTECODE": "1"}
            try:
                if subprocess.run(
                    command, cwd=copy_of, env=environment, capture_output=True, timeout=seconds
                ).returncode:
                    return True
            except subprocess.TimeoutExpired:  # a loop that never ends is caught too
                return True
        return False
    finally:
        file.write_text(whole, encoding="utf-8")


def main(argv=None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="files of the core; by default all with tests named here")
    parser.add_argument("--most", type=int, default=60, help="mutants, shared by the modules")
    parser.add_argument("--seed", type=int, default=1, help="which are drawn")
    parser.add_argument("--seconds", type=float, default=600, help="of one test file")
    args = parser.parse_args(argv)
    modules = args.modules or [name for name in TESTS if (ROOT / name).is_file()]
    caught = made = 0
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "repo")
        shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(".git", ".venv", "runs", "demo", "*.egg-info"))
        for module in modules:
            drawn = mutants(ROOT / module)
            drawn = random.Random(args.seed).sample(drawn, min(len(drawn), args.most // len(modules)))
            for line, what, text in sorted(drawn):
                made += 1
                if is_caught(clone, module, text, args.seconds):
                    caught += 1
                else:
                    print(f"survives: {module}:{line}: {what}", flush=True)
            print(f"{module}: {caught} of {made} so far", flush=True)
    print(f"caught {caught} of {made}: {caught / max(1, made):.0%}")
    return caught / max(1, made)


if __name__ == "__main__":
    main()
