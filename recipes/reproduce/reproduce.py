"""Run the rows of a paper's table, and set them beside the paper's figures.

    python recipes/reproduce/reproduce.py recipes/reproduce/headline_en.yaml --train_file rows.jsonl
    python recipes/reproduce/reproduce.py recipes/reproduce/headline_en.yaml --train_file rows.jsonl --rows ldpe lrpe

Every row is trained on the same data, steps and seed by recipes/train_seq2seq.py, tested at the table's lengths, and
appended to `results.jsonl` as soon as it is known. The same command goes on where it was stopped, within a row too.
`tables.md` holds what is known so far.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml
from transformers import pipeline


HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # the recipes are scripts, not a package

import train_seq2seq  # noqa: E402

from hf_lenctrl.data import load_rows, texts_of  # noqa: E402
from hf_lenctrl.length_units import count_units  # noqa: E402
from hf_lenctrl.metrics import length_metrics, rouge_metrics  # noqa: E402


FORMAT = 1  # of a line of results.jsonl
MEASURES = ("variance", "mae", "exact", "over", *(f"rouge{n}_{p}" for n in "12L" for p in ("recall", "f1")))


def rows_of(spec: dict) -> dict[str, dict]:
    """The table's rows and, for those that the paper trains without the lengths of the test, a second one each."""
    rows = dict(spec["rows"])
    for name in spec.get("unseen", []):
        rows[f"{name}_unseen"] = {**rows[name], "unseen_lengths": spec["lengths"]}
    return rows


def load_results(path: Path) -> dict[str, dict]:
    """Row -> what `results.jsonl` says of it."""
    results = {}
    for i, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.is_file() else [], start=1):
        result = json.loads(line)
        if result.get("format") != FORMAT:
            raise ValueError(
                f"line {i} of {path} has format {result.get('format')!r}, this version writes {FORMAT}; name another "
                "--output_dir"
            )
        results[result["row"]] = result
    return results


def train(folder: Path, options: dict, lengths: list[int]) -> dict[str, dict]:
    """Train a row and test it at each length."""
    folder.mkdir(parents=True, exist_ok=True)
    run = folder / "run.yaml"
    run.write_text(yaml.safe_dump({**options, "output_dir": str(folder), "test_lengths": lengths}), encoding="utf-8")
    metrics = train_seq2seq.main([str(run)])
    return {str(n): {name: metrics[f"test_{n}_{name}"] for name in MEASURES} for n in lengths}


def bound(folder: Path, how: str, options: dict, lengths: list[int]) -> dict[str, dict]:
    """What a trained plain model writes when its scores are cut off at a length (`max`), or its text is (`cut`)."""
    rows = load_rows(str(folder / "test.jsonl"))
    sources, references = (texts_of(str(folder / "test.jsonl"), rows, column) for column in ("source", "target"))
    write: Any = pipeline("length-controlled-generation", model=str(folder))  # type: ignore[call-overload]
    beams = {"num_beams": options["generation_num_beams"], "batch_size": options["per_device_eval_batch_size"]}
    free = write(sources, length_constraint=None, **beams) if how == "cut" else []
    figures = {}
    for length in lengths:
        if how == "cut":
            texts = [row["generated_text"][:length] for row in free]
        else:
            unit = write.model.config.length_unit
            bound = write(sources, length=length, length_unit=unit, length_constraint=how, **beams)
            texts = [row["generated_text"] for row in bound]
        produced = [count_units(text, "character") for text in texts]
        how_to = {"max_bytes": options.get("rouge_max_bytes"), "unit": options.get("rouge_unit", "word")}
        rouge = rouge_metrics(texts, references, **how_to)
        measured = {**length_metrics(produced, [length] * len(texts)), **rouge}
        figures[str(length)] = {name: measured[name] for name in MEASURES}
    return figures


def render(spec: dict, results: dict[str, dict]) -> str:
    """Markdown: ROUGE as Tables 1 and 2 of Takase & Okazaki have it, variance as Table 4; the paper's in brackets."""
    lengths = [str(n) for n in spec["lengths"]]
    lines = [f"# {spec['title']}", "", "In brackets: the paper's figure, on its own data.", ""]
    for title, measures in (
        ("ROUGE recall (1, 2, L)", [f"rouge{n}_recall" for n in "12L"]),
        ("Variance", ["variance"]),
    ):
        lines += [f"## {title}", "", "| row | " + " | ".join(lengths) + " |", "|" + "---|" * (1 + len(lengths))]
        for name in rows_of(spec):
            if name not in results:
                continue
            cells = []
            for i, length in enumerate(lengths):
                ours = " / ".join(f"{results[name]['figures'][length][m]:.3f}"[:6] for m in measures)
                paper = [spec.get("paper", {}).get(name, {}).get(m, [])[i : i + 1] for m in measures]
                theirs = " / ".join(str(p[0]) for p in paper if p)
                cells.append(f"{ours} ({theirs})" if theirs else ours)
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def main(argv=None) -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="YAML of a table")
    parser.add_argument("--train_file", required=True, help="rows of all splits; see the table's options")
    parser.add_argument("--output_dir", help="folder of the rows, results.jsonl and tables.md")
    parser.add_argument("--rows", nargs="+", help="run these alone; all by default")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="options for every row's training")
    args = parser.parse_args(argv)
    if not Path(args.train_file).is_file():
        raise FileNotFoundError(f"there is no data file {args.train_file}; each row needs it")
    spec = yaml.safe_load(Path(args.table).read_text(encoding="utf-8"))
    rows, lengths = rows_of(spec), spec["lengths"]
    chosen = args.rows or list(rows)
    unknown = [name for name in chosen if name not in rows]
    if unknown:
        raise ValueError(f"{args.table} has no rows {', '.join(unknown)}, only {', '.join(rows)}")
    out = Path(args.output_dir or f"runs/reproduce/{Path(args.table).stem}")
    out.mkdir(parents=True, exist_ok=True)
    common = {**spec["options"], **{k: yaml.safe_load(v) for k, v in (item.split("=", 1) for item in args.set)}}
    for name in [rows[name]["of"] for name in chosen if "of" in rows[name]] + chosen:  # what others start from, first
        results = load_results(out / "results.jsonl")
        options = {**common, **rows[name]}
        if name in results:
            if results[name]["config"] != options:
                raise ValueError(
                    f"{out / 'results.jsonl'} holds {name!r} with another configuration; name another --output_dir, "
                    "or take the line out to run it again"
                )
            continue
        if "of" in options:
            figures = bound(out / options["of"], options["constraint"], options, lengths)
        else:
            figures = train(out / name, {**options, "train_file": args.train_file}, lengths)
        with (out / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"format": FORMAT, "row": name, "config": options, "figures": figures}) + "\n")
        (out / "tables.md").write_text(render(spec, load_results(out / "results.jsonl")), encoding="utf-8")
    tables = render(spec, load_results(out / "results.jsonl"))
    (out / "tables.md").write_text(tables, encoding="utf-8")
    print(tables)


if __name__ == "__main__":
    main()
