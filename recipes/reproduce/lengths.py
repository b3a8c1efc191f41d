"""Draw the lengths that each system wrote, where one was requested, and print its ROUGE F1.

    python recipes/reproduce/lengths.py runs/reproduce/headline_en --lengths 30 50 70 --output_file lengths.png
    python recipes/reproduce/lengths.py runs/reproduce/headline_en --rows lstm lenemb_lstm --output_file lengths.png

A row of panels for each system, from the outputs that run.py left in the folders of its rows; a column for each
requested length, in the unit of the table, with a line where it is. Nguyen et al. 2023 compare these systems by ROUGE
F1 at 30, 50 and 70 words (their figures 10 to 15). A length that the table does not test is written by the trained
models now, to `lengths_*_outputs.jsonl` in the same folders. To resume, repeat the command.
"""

import argparse
import json
from pathlib import Path

import baselines  # noqa: F401  registers the families of the papers' baselines
import yaml
from run import search_options

from hf_lenctrl.commands import generate
from hf_lenctrl.commands.rows import Rows
from hf_lenctrl.evaluation.metrics import rouge_metrics


# full, model 1, model 2 (without the encoder's and the decoder's embedding), LE, LA, LC, LPAS
SYSTEMS = ["nguyen", "nguyen_1", "nguyen_2", "lenemb_lstm", "la", "lc_convs2s", "lpas"]


def outputs_of(folder: Path, length: int) -> list[dict]:
    """What a row wrote at a requested length; its model writes now where it was not tested so."""
    file = folder / f"test_{length}_outputs.jsonl"
    if not (folder / "model.safetensors").is_file() and not file.is_file():
        raise FileNotFoundError(
            f"there is no {file}; run the row: python recipes/reproduce/run.py ... --rows {folder.name}"
        )
    if not file.is_file():
        file = folder / f"lengths_{length}_outputs.jsonl"
        options = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))
        rows, (model, tokenizer) = Rows(str(folder / "test.jsonl")), generate.load([str(folder)])
        sources = rows.texts("source")
        written = generate.generate(model, tokenizer, sources, [length] * len(sources), **search_options(options))
        pairs = zip(rows.values, written, strict=True)
        lines = [json.dumps(row | output, ensure_ascii=False) + "\n" for row, output in pairs]
        part = file.with_suffix(".part")
        part.write_text("".join(lines), encoding="utf-8")
        part.replace(file)  # never half of it
    return [row for row in Rows(str(file)).values if row["length"] is not None]


def rouge_of(outputs: list[dict], folder: Path) -> str:
    """ROUGE-1, 2 and L, F1, of a row's outputs."""
    options = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))
    references = [row["reference"] if "reference" in row else row["target"] for row in outputs]
    unit = options.get("rouge_unit", "word")
    figures = rouge_metrics([row["output"] for row in outputs], references, unit=unit)
    return " / ".join(f"{figures[f'rouge{n}_f1']:.1f}" for n in "12L")


def requested_in(folder: Path) -> list[int]:
    """The lengths that a row was tested at."""
    names = [path.name.split("_")[1] for path in folder.glob("test_*_outputs.jsonl")]
    return sorted(int(name) for name in names if name.isdecimal())


def draw(rows: dict[str, dict[int, list[int]]], path: Path) -> None:
    """
    Write the figure.

    Args:
        rows (`dict`): For each system, for each requested length, the units of the outputs.
        path (`Path`): A file whose ending matplotlib knows: `.png`, `.svg`, `.pdf`.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    requested = list(next(iter(rows.values())))
    size = (3 * len(requested), 1.2 * len(rows) + 0.6)
    shape = len(rows), len(requested)
    figure, axes = plt.subplots(*shape, sharex="col", squeeze=False, layout="constrained", figsize=size)
    for row, (name, found) in zip(axes, rows.items(), strict=True):
        for axis, length in zip(row, requested, strict=True):
            last = 2 * length  # what is longer counts as this long
            axis.hist([min(n, last) for n in found[length]], bins=range(0, last + 2), color="#4c72b0")
            axis.axvline(length + 0.5, color="#c44e52", linewidth=0.8)  # the middle of its bar
            axis.set_yticks([])
        row[0].set_ylabel(name, rotation=0, ha="right", va="center")
    for axis, length in zip(axes[0], requested, strict=True):
        axis.set_title(f"requested: {length}")
    figure.supxlabel("length of the output")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(argv=None) -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="--output_dir of run.py")
    parser.add_argument("--rows", nargs="+", default=SYSTEMS, help="systems, from top to bottom")
    parser.add_argument("--lengths", type=int, nargs="+", help="requested lengths; those of the table by default")
    parser.add_argument("--output_file", type=Path, required=True, help="the figure: png, svg or pdf")
    args = parser.parse_args(argv)
    requested = args.lengths or requested_in(args.folder / args.rows[0])
    if not requested:
        raise FileNotFoundError(
            f"{args.folder / args.rows[0]} holds no test_*_outputs.jsonl; run recipes/reproduce/run.py"
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
