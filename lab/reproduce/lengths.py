"""Plot the produced lengths of each system at each requested length, and print its ROUGE F1.

    python lab/reproduce/lengths.py runs/reproduce/headline_en --lengths 30 50 70 --output_file lengths.png
    python lab/reproduce/lengths.py runs/reproduce/headline_en --rows lstm lenemb_lstm --output_file lengths.png
    python lab/reproduce/lengths.py runs/reproduce/headline_en --difference --output_file difference.png

A row of panels for each system, from the outputs that run.py left in the folders of its rows; a column
for each requested length, with a line where it is. Lengths are in the unit of the table: characters in headline_en.
Nguyen et al. 2023 compare these systems by ROUGE F1 at 30, 50 and 70 words (their figures 10 to 15). A length that the
table does not test is written by the trained models now, to `lengths_*_outputs.jsonl` in the same folders. To resume,
repeat the command.

`--difference` draws another figure, Figure 1 of Takase & Okazaki 2019: for each system the length of each output less
that of its reference. Their system is an LSTM without a length; a system that is given one gets that of the reference.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import baselines  # noqa: F401  registers the families of the papers' baselines
import yaml
from run import search_options

from hf_lenctrl.commands import generate
from hf_lenctrl.commands.rows import Rows
from hf_lenctrl.evaluation.metrics import rouge_metrics


# full, model 1, model 2 (without the encoder's and the decoder's embedding), LE, LA, LC, LPAS
SYSTEMS = ["nguyen", "nguyen_1", "nguyen_2", "lenemb_lstm", "la", "lc_convs2s", "lpas"]
PLAIN = ["lstm", "transformer"]


def outputs_of(folder: Path, length: int) -> list[dict]:
    """Return the outputs of a row at a requested length; its model generates now if the row was not tested there."""
    file = folder / f"test_{length}_outputs.jsonl"
    if not (folder / "model.safetensors").is_file() and not file.is_file():
        raise FileNotFoundError(
            f"there is no {file}; run the row: python lab/reproduce/run.py ... --rows {folder.name}"
        )
    if not file.is_file():
        file = folder / f"lengths_{length}_outputs.jsonl"
        options = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))
        rows, (model, tokenizer) = Rows(str(folder / "test.jsonl")), generate.load(str(folder))
        sources = rows.texts("source")
        written = generate.generate(model, tokenizer, sources, [length] * len(sources), **search_options(options))
        pairs = zip(rows.values, written, strict=True)
        lines = [json.dumps(row | output, ensure_ascii=False) + "\n" for row, output in pairs]
        part = file.with_suffix(".part")
        part.write_text("".join(lines), encoding="utf-8")
        part.replace(file)  # the rename is atomic, so the file is never half written
    return [row for row in Rows(str(file)).values if row["length"] is not None]


def rouge_of(outputs: list[dict], folder: Path) -> str:
    """Return ROUGE-1, 2 and L, F1, of a row's outputs, as text."""
    options = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))
    references = [row["reference"] if "reference" in row else row["target"] for row in outputs]
    unit = options.get("rouge_unit", "word")
    figures = rouge_metrics([row["output"] for row in outputs], references, unit=unit)
    return " / ".join(f"{figures[f'rouge{n}_f1']:.1f}" for n in "12L")


def differences_of(folder: Path) -> list[int]:
    """Return produced minus reference length for each output; raise `FileNotFoundError` if the row was not tested."""
    file = folder / "test_outputs.jsonl"
    if not file.is_file():
        raise FileNotFoundError(f"there is no {file}; run the row: python lab/reproduce/run.py ...")
    return [row["length"] - row["requested"] for row in Rows(str(file)).values if row["length"] is not None]


def requested_in(folder: Path) -> list[int]:
    """Return the requested lengths at which a row was tested."""
    names = [path.name.split("_")[1] for path in folder.glob("test_*_outputs.jsonl")]
    return sorted(int(name) for name in names if name.isdecimal())


def panels(rows: int, columns: int, width: float) -> tuple[Any, Any]:
    """Make an empty figure, and its axes `(rows, columns)`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 1.2 * rows + 0.6), layout="constrained")
    return figure, figure.subplots(rows, columns, sharex="col", squeeze=False)


def draw(rows: dict[str, dict[int, list[int]]], path: Path) -> None:
    """
    Write the figure.

    Args:
        rows (`dict`): For each system, for each requested length, the units of the outputs.
        path (`Path`): A file whose ending matplotlib knows: `.png`, `.svg`, `.pdf`.
    """
    requested = list(next(iter(rows.values())))
    figure, axes = panels(len(rows), len(requested), width=3 * len(requested))
    for row, (name, found) in zip(axes, rows.items(), strict=True):
        for axis, length in zip(row, requested, strict=True):
            last = 2 * length  # a longer output counts in the last bar
            axis.hist([min(n, last) for n in found[length]], bins=range(0, last + 2), color="#4c72b0")
            axis.axvline(length + 0.5, color="#c44e52", linewidth=0.8)  # the line is at the middle of the bar
            axis.set_yticks([])
        row[0].set_ylabel(name, rotation=0, ha="right", va="center")
    for axis, length in zip(axes[0], requested, strict=True):
        axis.set_title(f"requested: {length}")
    figure.supxlabel("length of the output")
    figure.savefig(path, dpi=120)


def draw_differences(found: dict[str, list[int]], path: Path, last: int = 100) -> None:
    """Write the figure of differences, a panel for each system; what is farther than `last` from 0 counts as that."""
    figure, axes = panels(len(found), 1, width=6)
    for (axis,), (name, differences) in zip(axes, found.items(), strict=True):
        bins = range(-last, last + 2)
        axis.hist([max(-last, min(n, last)) for n in differences], bins=bins, color="#4c72b0")
        axis.set_ylabel(name, rotation=0, ha="right", va="center")
        axis.set_yticks([])
    figure.supxlabel("length of the output less that of the reference")
    figure.savefig(path, dpi=120)


def main(argv=None) -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="--output_dir of run.py")
    parser.add_argument("--rows", nargs="+", help="systems, from top to bottom")
    parser.add_argument("--difference", action="store_true", help="draw output length less reference length")
    parser.add_argument("--lengths", type=int, nargs="+", help="requested lengths; those of the table by default")
    parser.add_argument("--output_file", type=Path, required=True, help="the figure: png, svg or pdf")
    args = parser.parse_args(argv)
    args.rows = args.rows or (PLAIN if args.difference else SYSTEMS)
    if args.difference:
        if args.lengths:
            raise ValueError(f"--lengths {args.lengths} has no effect with --difference; leave it out")
        differences = {name: differences_of(args.folder / name) for name in args.rows}
        print("| system | mean difference | mean of its square |\n|---|---|---|")
        for name, values in differences.items():
            print(f"| {name} | {fmean(values):.2f} | {fmean(n * n for n in values):.1f} |")
        draw_differences(differences, args.output_file)
        return
    requested = args.lengths or requested_in(args.folder / args.rows[0])
    if not requested:
        raise FileNotFoundError(
            f"{args.folder / args.rows[0]} holds no test_*_outputs.jsonl; run lab/reproduce/run.py"
        )
    written = {name: {n: outputs_of(args.folder / name, n) for n in requested} for name in args.rows}
    print(f"| ROUGE F1 (1 / 2 / L) | {' | '.join(map(str, requested))} |\n|{'---|' * (1 + len(requested))}")
    for name, found in written.items():
        print(f"| {name} | {' | '.join(rouge_of(found[n], args.folder / name) for n in requested)} |")
    draw(
        {name: {n: [row["length"] for row in found[n]] for n in requested} for name, found in written.items()},
        args.output_file,
    )


if __name__ == "__main__":
    main()
