"""Run the fast tests on the newest or the lowest versions that pyproject.toml allows, in an environment of their own.

    python tests/tools/ranges.py newest|lowest [options of pytest]

The environment is `.venv-newest` or `.venv-lowest`, and is made again when the versions change. torch stays that of
constraints.txt, or of the variable TORCH, because an index may have its other versions with CUDA alone; where a CUDA
package would come with it, the script ends before it installs anything.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path


ROOT = Path(__file__).resolve().parents[2]


def lowest(project: dict) -> list[str]:
    """The lower bound of each requirement of the package and of its extra `test`, as constraints."""
    extras, waiting, requirements = project["optional-dependencies"], ["test"], list(project["dependencies"])
    while waiting:
        for requirement in extras[waiting.pop()]:
            own = re.fullmatch(r"hf-lenctrl\[(.*)\]", requirement)
            waiting += own[1].split(",") if own else []
            requirements += [] if own else [requirement]
    bounds = [re.match(r"([\w-]+)(?:\[.*\])?(?:>=|==)([\w.]+)", requirement) for requirement in requirements]
    return sorted({f"{bound[1]}=={bound[2]}" for bound in bounds if bound and bound[1] != "torch"})


def constraints(which: str) -> str:
    """The text of the constraints file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tested = re.search(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.M)
    torch = os.environ.get("TORCH") or (tested[1] if tested else "")
    return "\n".join([f"torch=={torch}", *(lowest(project) if which == "lowest" else [])]) + "\n"


def main(which: str, *options: str) -> int:
    """Make the environment and run the tests there; returns the exit status of pytest."""
    folder, text = ROOT / f".venv-{which}", constraints(which)
    python, file = folder / "bin" / "python", folder / "constraints.txt"
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        venv.create(folder, clear=True, with_pip=True)
        planned = folder / "planned.txt"
        planned.write_text(text, encoding="utf-8")
        install = [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-c",
            planned,
            "-e",
            ".[test]",
        ]
        plan = subprocess.run([*install, "--dry-run", "--report", "-"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
        names = [each["metadata"]["name"] for each in json.loads(plan.stdout)["install"]]
        cuda = [name for name in names if name.startswith(("nvidia-", "cuda-")) or name == "triton"]
        if cuda:
            raise SystemExit(f"{text.splitlines()[0]} brings {', '.join(cuda)}; set TORCH to a version for CPUs alone")
        subprocess.run(install, cwd=ROOT, check=True)
        planned.rename(file)
    fast = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *options]
    return subprocess.run(fast, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("newest", "lowest"):
        raise SystemExit(__doc__)
    raise SystemExit(main(*sys.argv[1:]))
