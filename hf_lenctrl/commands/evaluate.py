"""Report how well texts have the lengths that were asked for: of `lenctrl generate`, or of any other system.

    lenctrl evaluate --input_file out.jsonl --output_dir report
    lenctrl evaluate --input_file theirs.csv --output_column summary --length 75 --reference_column gold
    lenctrl evaluate --input_file out.jsonl --units character word --requested_column characters words

The input is json, jsonl, csv or parquet (.gz too). The report is printed as Markdown; `--output_dir` receives it as
`report.json`, `report.md` and `report.png`.
"""

import argparse
from pathlib import Path

from ..conversion import tokenizer_of
from ..evaluation.metrics import ROUGE_UNITS, lead, rouge_metrics, rouge_settings, text_quality
from ..evaluation.report import length_report
from ..length_units import LENGTH_UNITS
from ..lengths import parse_tolerance
from .parser import CommandParser
from .recipes import model_name
from .requests import Rows


def read_outputs(args: argparse.Namespace, rows: Rows) -> tuple[list[str], dict[str, list[int]], list[str] | None]:
    """Texts, the lengths requested in each unit, and references if there are any; faults are told by their row."""
    if args.length is not None:
        requested = {unit: [length] * len(rows) for unit, length in zip(args.units, args.length, strict=True)}
    else:
        requested = {unit: rows.lengths(name) for unit, name in zip(args.units, args.requested_column, strict=True)}
    references = None if args.reference_column is None else rows.texts(args.reference_column)
    return rows.texts(args.output_column), requested, references


def texts_of_baseline(args: argparse.Namespace, rows: Rows, requested: dict[str, list[int]]) -> tuple[str, list[str]]:
    """Name and texts of what the outputs are compared with; no texts where there is nothing."""
    if args.baseline_column is not None:
        return f"`{args.baseline_column}`", rows.texts(args.baseline_column)
    if args.reference_column is None or args.source_column not in rows.columns or args.units[0] == "token":
        return "", []
    lengths = requested[args.units[0]]
    texts = [lead(*row, args.units[0]) for row in zip(rows.texts(args.source_column), lengths, strict=True)]
    return "lead, the source cut at the requested length", texts


def parse(argv) -> argparse.Namespace:
    """Options, checked for what does not go together."""
    parser = CommandParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input_file", required=True, help="outputs: json, jsonl, csv, parquet (.gz too)")
    parser.add_argument("--output_column", default="output", help="column of the texts")
    parser.add_argument("--requested_column", nargs="+", help="column of requested lengths, one for each unit")
    parser.add_argument("--length", type=int, nargs="+", help="length asked for, for every text; one for each unit")
    parser.add_argument("--units", nargs="+", choices=LENGTH_UNITS, default=["character"], help="units to report on")
    parser.add_argument("--tokenizer", type=model_name, help="folder or Hub name of the tokenizer that counts tokens")
    parser.add_argument("--reference_column", help="column of references; adds ROUGE")
    parser.add_argument("--source_column", default="source", help="column of sources, whose beginning is the baseline")
    parser.add_argument("--baseline_column", help="column of another system's texts, to be the baseline instead")
    parser.add_argument("--rouge_unit", choices=ROUGE_UNITS, default="word", help="character for Japanese or Chinese")
    parser.add_argument("--rouge_max_bytes", type=int, help="cut outputs to so many bytes for ROUGE, 75 in DUC 2004")
    parser.add_argument(
        "--length_tolerance", nargs="+", help="window that the outputs had: units, a share, or two, below and above"
    )
    parser.add_argument("--bucket_width", type=int, help="requested lengths in each bucket of the report")
    parser.add_argument("--worst", type=int, default=5, help="examples to show, those with the largest differences")
    parser.add_argument("--output_dir", help="folder for report.json, report.md and report.png")
    args = parser.parse_args(argv)
    if ("token" in args.units) != (args.tokenizer is not None):
        parser.error("--units token and --tokenizer go together: the tokenizer counts the tokens")
    check_report(parser, args)
    return args


def check_report(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse options that do not go together, and fill in the column of requested lengths."""
    if args.length is not None and args.requested_column is not None:
        parser.error("give --length for all texts or --requested_column for each, not both")
    given = "requested_column" if args.length is None else "length"
    if args.length is None and args.requested_column is None:
        args.requested_column = ["requested"]
    values = getattr(args, given)
    if len(values) != len(args.units):
        parser.error(
            f"give one --{given} for each of the units {', '.join(args.units)}, got {', '.join(map(str, values))}"
        )
    if args.length is not None and min(args.length) < 1:
        parser.error(f"--length must be at least 1, got {min(args.length)}")
    args.requested_column = args.requested_column or []
    if args.baseline_column is not None and args.reference_column is None:
        parser.error("--baseline_column is compared by ROUGE, which needs --reference_column")
    if args.rouge_max_bytes is not None and args.reference_column is None:
        parser.error("--rouge_max_bytes is for ROUGE, which needs --reference_column")
    if args.output_dir is not None and (Path(args.output_dir) / "report.json").exists():
        parser.error(f"{args.output_dir} holds a report.json; remove it or name another folder")


def main(argv=None) -> None:
    """Run the recipe."""
    args = parse(argv)
    rows = Rows(args.input_file)
    rows.leave_out_dropped()
    texts, requested, references = read_outputs(args, rows)
    report = length_report(
        texts,
        requested,
        units=args.units,
        tokenizer=None if args.tokenizer is None else tokenizer_of(args.tokenizer),
        tolerance=None if args.length_tolerance is None else parse_tolerance(args.length_tolerance),
        bucket_width=args.bucket_width,
        worst=args.worst,
    )
    if references is not None:
        how = {"max_bytes": args.rouge_max_bytes, "unit": args.rouge_unit}
        report.rouge = {**rouge_metrics(texts, references, **how), "settings": rouge_settings(**how)}
        name, baseline = texts_of_baseline(args, rows, requested)
        if baseline:
            report.baseline = {"name": name, **rouge_metrics(baseline, references, **how)}
    report.text = text_quality(texts)
    print(report.markdown())
    if args.output_dir is not None:
        report.save(args.output_dir)
