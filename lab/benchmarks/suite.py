"""The measurements of time and memory on one process, in one run: `make bench`.

    python lab/benchmarks/suite.py [--parts overhead growth ...] [--output_dir lab/benchmarks]

Writes `results.json` after each part and `results.md` from it. A part that stands there, measured by the same code,
versions and settings, is kept, so that a stopped run resumes; parts that are named are measured anew.
One thread; see `timing.py` for how rounds alternate. Where there is a GPU, parts that can run there fill a column.
"""

import argparse
import hashlib
import importlib
import json
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from growth import SETTINGS as GROWTH
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from timing import Row

import hf_lenctrl


ROOT = Path(__file__).resolve().parents[2]
MARIAN: dict = {"families": ["marian"], "rounds": 5, "vocab_size": 8000}
# part -> module, and what its `rows` is given; small enough for ten minutes of one core together
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "startup": ("startup", {"rounds": 3, "shape": "2x128"}),
    "overhead": ("overhead", {"shapes": ["2x128", "6x512"], **MARIAN, "length_head": False}),
    "length head": ("overhead", {"shapes": ["2x128", "6x512"], **MARIAN, "length_head": True}),
    "constraints": (
        "constraints",
        {"shapes": ["6x512"], "units": ["token", "character", "word"], "constraints": ["exact"], "rounds": 3}
        | {"vocab_size": 50_000, "batch_size": 4},
    ),
    "unit tables": ("unit_tables", {"rounds": 5, "vocab_size": 50_000, "batch_size": 64, "tokens": 100}),
    "batching": ("batching", {"shape": "3x256", "rounds": 3, "source_tokens": 400, "file_rows": 96}),
    "growth": ("growth", {"rounds": 5, **GROWTH}),
    "precision": ("precision", {"shape": "2x128", "rounds": 7, "vocab_size": 8000, "backend": "inductor"}),
    "utilisation": (
        "utilisation",
        {"shape": "6x512", "rounds": 2, "vocab_size": 8000, "batch_size": 16, "tokens": 60, "product": 2048},
    ),
}
ON_GPU = ("overhead", "length head", "batching", "precision", "utilisation")


def code() -> str:
    """A name for what is measured and what measures it, and for their versions."""
    files = [path for folder in ("hf_lenctrl", "lab/benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
    text = b"".join(path.read_bytes() for path in files) + f"{torch.__version__} {transformers.__version__}".encode()
    return hashlib.sha256(text).hexdigest()[:12]


def measure(part: str, settings: Mapping[str, Any], device: str = "cpu") -> list[Row]:
    """The rows of a part."""
    with torch.device(device):
        return list(importlib.import_module(PARTS[part][0]).rows(**settings))


def markdown(results: Mapping[str, Any]) -> str:
    """A table for each part, a column for each device."""
    lines = [
        "# Benchmarks",
        "",
        "`make bench`: one thread, alternating rounds, the median and in brackets the middle half of the rounds.",
        f"{', '.join(f'{name} {value}' for name, value in results['machine'].items())}.",
    ]
    for part, devices in results["parts"].items():
        figures: dict[tuple[str, str], dict[str, str]] = {}
        for device, measured in devices.items():
            for name, ratio, (low, high), what in measured["rows"]:
                figures.setdefault((name, what), {})[device] = f"{ratio:g} ({low:g} to {high:g})"
        lines += ["", f"## {part}", "", f"| | {' | '.join(devices)} | |", "|---" * (len(devices) + 2) + "|"]
        for (name, what), cells in figures.items():
            lines.append(f"| {name} | {' | '.join(cells.get(device, '') for device in devices)} | {what} |")
    return "\n".join(lines) + "\n"


def main(argv=None) -> None:
    """Run the suite."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), help="these alone, and anew")
    parser.add_argument("--output_dir", type=Path, default=ROOT / "lab" / "benchmarks")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    file = args.output_dir / "results.json"
    results = json.loads(file.read_text("utf-8")) if file.exists() else {"parts": {}}
    machine = {"python": platform.python_version(), "torch": torch.__version__, "cores": os.cpu_count()}
    machine |= {"transformers": transformers.__version__, "hf_lenctrl": hf_lenctrl.__version__}
    gpu = ["cuda"] if torch.cuda.is_available() else []
    jobs = [(p, d) for p in args.parts or PARTS for d in ["cpu", *(gpu if p in ON_GPU else [])]]
    console = Console()
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("", total=len(jobs))
        for part, device in jobs:
            progress.update(bar, description=f"{part} ({device})")
            settings = {"code": code(), **PARTS[part][1]}
            known = results["parts"].get(part, {}).get(device, {})
            if args.parts or known.get("settings") != settings:
                start = time.perf_counter()
                rows = measure(part, PARTS[part][1], device)
                seconds = round(time.perf_counter() - start, 1)
                measured = {"settings": settings, "seconds": seconds, "rows": rows}
                results["parts"].setdefault(part, {})[device] = measured
                results["parts"] = {name: results["parts"][name] for name in PARTS if name in results["parts"]}
                results["machine"] = machine
                new = file.with_suffix(".new")
                new.write_text(json.dumps(results, indent=1), encoding="utf-8")
                new.replace(file)  # whole or not at all
                file.with_suffix(".md").write_text(markdown(results), encoding="utf-8")
                for name, figure, (low, high), what in rows:
                    console.print(f"{name}: {figure:g} {what} ({low:g} to {high:g})", highlight=False, soft_wrap=True)
                console.print(f"{part}: {seconds} s", style="dim", highlight=False, soft_wrap=True)
            progress.advance(bar)
    console.print(file.with_suffix(".md"))


if __name__ == "__main__":
    main()
