"""Report how well texts have the lengths that were asked for: of recipes/generate.py, or of any other system.

    lenctrl evaluate --input_file out.jsonl --output_dir report
    lenctrl evaluate --input_file theirs.csv --output_column summary --length 75 --reference_column gold
    lenctrl evaluate --input_file out.jsonl --units character word --requested_column characters words
    lenctrl evaluate --systems transformer=t.jsonl ldpe:predict=a.jsonl ldpe:reference=b.jsonl
        --reference_column ja --tokenizer runs/ldpe --bleu_tokenizer ja-mecab --baseline transformer

The input is json, jsonl, csv or parquet (.gz too). The report is printed as Markdown; `--output_dir` receives it as
`report.json`, `report.md` and `report.png`. With `--systems` the tables of Oka et al. 2020 are printed for
the outputs of several translation systems, whose lengths were given by `predict`, `source` or `reference`; the folder
receives `translation.json` and `translation.md`.
"""

import argparse
import json
from pathlib import Path

from ..conversion import tokenizer_of
from ..evaluation.metrics import ROUGE_UNITS, lead, rouge_metrics, rouge_settings, text_quality
from ..evaluation.report import length_report
from ..length_units import LENGTH_UNITS
from ..lengths import parse_tolerance
from .arguments import CommandParser
from .recipes import model_name
from .rows import Rows
from .tables import load_systems, translation_tables


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


def compare(args: argparse.Namespace) -> None:
    """Tables for several systems."""
    unit, columns = args.units[0], (args.output_column, args.reference_column)
    tokenizer = None if args.tokenizer is None else tokenizer_of(args.tokenizer)
    systems, references, lengths = load_systems(args.systems, *columns, unit=unit, tokenizer=tokenizer)
    tables = translation_tables(
        systems, references, lengths, unit=unit, bleu_tokenizer=args.bleu_tokenizer, baseline=args.baseline
    )
    print(tables.markdown())
    if args.output_dir is not None:
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "translation.md").write_text(tables.markdown(), encoding="utf-8")
        (folder / "translation.json").write_text(json.dumps(tables.to_dict(), indent=1), encoding="utf-8")


def make_parser() -> CommandParser:
    """The options."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--input_file", help="outputs: json, jsonl, csv, parquet (.gz too)")
    parser.add_argument(
        "--systems", nargs="+", help="NAME=FILE or NAME:WAY=FILE; WAY is predict, source or reference; translations"
    )
    parser.add_argument("--baseline", help="system to test the others against, for --systems")
    parser.add_argument("--bleu_tokenizer", default="13a", help="sacrebleu's, e.g. ja-mecab, for --systems")
    parser.add_argument("--output_column", default="output", help="column of the texts")
    parser.add_argument("--requested_column", nargs="+", help="column of requested lengths, one for each unit")
    parser.add_argument("--length", type=int, nargs="+", help="length asked for, for every text; one for each unit")
    parser.add_argument("--units", nargs="+", choices=LENGTH_UNITS, help="characters, or tokens for --systems")
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
    return parser


def parse(argv) -> argparse.Namespace:
    """Options, checked for what does not go together."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if (args.input_file is None) == (args.systems is None):
        parser.error("give one of --input_file for a report of lengths and --systems to compare translations")
    args.units = args.units or ["character" if args.systems is None else "token"]
    if ("token" in args.units) != (args.tokenizer is not None):
        parser.error("--units token and --tokenizer go together: the tokenizer counts the tokens")
    (check_report if args.systems is None else check_systems)(parser, args)
    return args


def check_systems(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse options that do not go with `--systems`."""
    names = ("length", "requested_column", "rouge_max_bytes", "bucket_width", "length_tolerance")
    alien = [name for name in names if getattr(args, name)] + (["rouge_unit"] if args.rouge_unit != "word" else [])
    if alien or len(args.units) > 1 or args.reference_column is None:
        parser.error("--systems needs --reference_column and one unit, and takes no " + (", ".join(alien) or "other"))
    if args.output_dir is not None and (Path(args.output_dir) / "translation.json").exists():
        parser.error(f"{args.output_dir} holds a translation.json; remove it or name another folder")


def check_report(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse options that do not go with `--input_file`, and fill in the column of requested lengths."""
    if args.baseline is not None or args.bleu_tokenizer != "13a":
        parser.error("--baseline and --bleu_tokenizer are for --systems")
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
    if args.systems is not None:
        return compare(args)
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
