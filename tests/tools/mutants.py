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
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
from pathlib import Path


os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}  # as conftest.py does, before the imports

import pytest  # noqa: E402
import transformers.models.marian.modeling_marian  # noqa: E402, F401


ROOT = Path(__file__).resolve().parents[2]
# module -> tests that should catch its faults, the quickest first
TESTS = {
    "length_units.py": ["length_units", "length_constraint", "character_costs", "unit_vocabulary"],
    "unit_vocabulary.py": ["length_units", "unit_vocabulary", "character_costs"],
    "length_rules.py": ["length_constraint", "length_window", "character_costs", "constrained_generation"],
    "length_constraint.py": ["length_constraint", "length_window", "constrained_generation"],
    "bounded_generation.py": "generation length_window pipeline_batches constrained_generation causal".split(),
    "generation.py": "generation length_window optional_length pipeline_batches constrained_generation causal".split(),
    "training/collator.py": ["data_collator", "trainer"],
}
TESTS = {f"hf_lenctrl/{module}": [f"test_{name}.py" for name in names] for module, names in TESTS.items()}
LEFT_OUT = (".git", ".venv", "__pycache__", "models", "runs", "demo", "*.egg-info")  # of the copy
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


def _test(copy_of: Path, tests: list[str], seconds: int) -> None:
    """In a process of its own: status 0 where no test of these files fails."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # a loop that never ends is caught too
    os.chdir(copy_of)
    sys.path[:0] = [str(copy_of), str(copy_of / "tests")]
    sys.dont_write_bytecode = True  # a mutant may have the size and the second of another
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    os._exit(int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests])))


def is_caught(copy_of: Path, module: str, text: str, seconds: int) -> bool:
    """Whether a test of the module fails with this text in its place."""
    file = copy_of / module
    whole = file.read_text(encoding="utf-8")
    file.write_text(text, encoding="utf-8")
    tests = [f"tests/{name}" for name in TESTS[module]]
    try:  # forked from a process that has imported all but the package
        process = multiprocessing.get_context("fork").Process(target=_test, args=(copy_of, tests, seconds))
        process.start()
        process.join()
        return process.exitcode != 0
    finally:
        file.write_text(whole, encoding="utf-8")


def main(argv=None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="files of the core; by default all with tests named here")
    parser.add_argument("--most", type=int, default=60, help="mutants, shared by the modules")
    parser.add_argument("--seed", type=int, default=1, help="which are drawn")
    parser.add_argument("--seconds", type=int, default=300, help="of the processor, for the tests of one mutant")
    args = parser.parse_args(argv)
    modules = args.modules or [name for name in TESTS if (ROOT / name).is_file()]
    caught = made = 0
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "repo")
        shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(*LEFT_OUT))
        for module in modules:
            drawn = mutants(ROOT / module)
            drawn = random.Random(args.seed).sample(drawn, min(len(drawn), args.most // len(modules)))
            assert not is_caught(clone, module, (ROOT / module).read_text(encoding="utf-8"), args.seconds), module
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
