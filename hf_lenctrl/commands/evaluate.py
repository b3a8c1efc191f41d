"""Report how well texts keep their requested lengths. The texts may come from `lenctrl generate` or any system.

    lenctrl evaluate --input_file out.jsonl --output_dir report
    lenctrl evaluate --input_file theirs.csv --output_column summary --length 75 --reference_column gold
    lenctrl evaluate --input_file out.jsonl --units character word --requested_column characters words

The input is json, jsonl, csv (.gz too) or parquet. The command prints the report as Markdown. With `--output_dir` it
also writes `report.json`, `report.md` and `report.png`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from ..evaluation.metrics import ROUGE_UNITS, lead, rouge_metrics, rouge_settings, text_quality
from ..evaluation.report import FILES, length_report
from ..length_units import LENGTH_UNITS
from ..lengths import window_in
from .arguments import CommandParser
from .output_file import check_loss
from .recipes import model_name
from .rows import Rows


def make_parser() -> CommandParser:
    """Return the parser of the options."""
    parser = CommandParser(description=__doc__)
    add = parser.add_argument
    add("--input_file", required=True, help="outputs: json, jsonl, csv (.gz too), parquet")
    add("--output_column", default="output", help="column of the texts")
    lengths = parser.add_mutually_exclusive_group()
    columns = "column of the requested lengths; one column for each unit"
    lengths.add_argument("--requested_column", nargs="+", default=["requested"], help=columns)
    one = "requested length of every text; one for each unit"
    lengths.add_argument("--length", type=int, nargs="+", action="extend", help=one)
    add("--units", nargs="+", choices=LENGTH_UNITS, default=["character"], help="units to report on")
    add("--tokenizer", type=model_name, help="folder or Hub name of the tokenizer that counts tokens")
    add("--reference_column", help="column of references; adds ROUGE")
    add(
        "--source_column",
        default="source",
        help="column of sources; their beginnings are the baseline, and they show which texts have one source",
    )
    add("--baseline_column", help="column of another system's texts, the baseline instead of the sources")
    add("--rouge_unit", choices=ROUGE_UNITS, default="word", help="character for Japanese or Chinese")
    add("--rouge_max_bytes", type=int, help="for ROUGE, cut outputs to this number of bytes, 75 in DUC 2004")
    parser.add_window("window of the requested lengths: units, a share, or two values, below and above")
    add("--bucket_width", type=int, help="number of requested lengths in a bucket of the report")
    add("--worst", type=int, default=5, help="number of examples with the largest differences to show")
    add("--output_dir", help="folder for report.json, report.md and report.png")
    return parser


def parse(argv) -> argparse.Namespace:
    """Parse the options. Exit with a message if they do not fit together, or if there is a report already."""
    parser = make_parser()
    args = parser.parse_args(argv)
    given = "requested_column" if args.length is None else "length"
    if len(values := getattr(args, given)) != len(args.units):
        units = ", ".join(args.units)
        parser.error(f"give one --{given} for each of the units {units}, got {', '.join(map(str, values))}")
    if ("token" in args.units) != (args.tokenizer is not None):
        parser.error("--units token and --tokenizer go together: the tokenizer counts the tokens")
    for name in ("baseline_column", "rouge_max_bytes"):
        if getattr(args, name) is not None and args.reference_column is None:
            parser.error(f"--{name} is for ROUGE, which needs --reference_column")
    names = [name for name in FILES if args.output_dir is not None and (Path(args.output_dir) / name).exists()]
    for name in names:
        check_loss(Path(args.output_dir, name), args.input_file)
    if names:
        parser.error(f"{args.output_dir} holds a {names[0]}; remove it or name another folder")
    return args


def baseline_of(args: argparse.Namespace, rows: Rows, requested: dict[str, list]) -> tuple[str, list[str]]:
    """
    Return the name and the texts of the baseline for ROUGE: the column `--baseline_column`, or else each source, cut
    at its requested length (or at the highest length of its range). Without that option, both are empty if the file
    has no sources or the first unit is the token. `requested` maps a unit to the requested lengths of the rows.
    """
    unit = args.units[0]
    if args.baseline_column is not None:
        return f"`{args.baseline_column}`", rows.texts(args.baseline_column)
    if args.source_column not in rows.columns or unit == "token":
        return "", []
    highest = [length[1] if isinstance(length, tuple) else length for length in requested[unit]]
    end = "requested length" if highest == requested[unit] else "highest length of its range"
    pairs = zip(rows.texts(args.source_column), highest, strict=True)
    return f"lead, `{args.source_column}` cut at the {end}", [lead(source, length, unit) for source, length in pairs]


def sources_in(args: argparse.Namespace, rows: Rows) -> list[str] | None:
    """
    Return a key for each row, so that rows with equal sources have equal keys. A missing source gets its own key.
    Return `None` if the file has no column of sources.
    """
    if args.source_column not in rows.columns:
        return None
    sources = zip(rows.numbers, rows.column(args.source_column), strict=True)
    return [f"row {n}" if source is None else json.dumps(source, sort_keys=True) for n, source in sources]


def main(argv=None) -> None:
    """Run the command: print the report, and save it if `--output_dir` is given."""
    args = parse(argv)
    rows = Rows(args.input_file)
    # the column `dropped` in the `test_outputs.jsonl` of a run marks rows that were not tested and have no text
    rows.keep(lambda row: row.get(args.output_column) is not None or not isinstance(row.get("dropped"), str))
    without_length = 0
    if args.length is None:
        columns, count = args.requested_column, len(rows)
        # a row that `lenctrl generate` wrote without a length holds null; a column that the file lacks is told below
        asked = [name for name in columns if name in rows.columns]
        rows.keep(
            lambda row: all(row.get(name) not in (None, "") for name in asked), "a requested length; pass --length 40"
        )
        without_length = count - len(rows)
        requested = {unit: rows.lengths(name, True) for unit, name in zip(args.units, columns, strict=True)}
    else:
        requested = {unit: [length] * len(rows) for unit, length in zip(args.units, args.length, strict=True)}
    texts, sources, tokenizer = rows.texts(args.output_column), sources_in(args, rows), None
    if args.tokenizer is not None:
        from ..conversion import tokenizer_of  # this import takes seconds

        tokenizer = tokenizer_of(args.tokenizer)
    report = length_report(
        texts,
        requested,
        units=args.units,
        sources=sources,
        tokenizer=tokenizer,
        bucket_width=args.bucket_width,
        worst=args.worst,
        **window_in(args),
    )
    report.rows = {"read": rows.read, "left_out": rows.read - len(rows)}
    report.rows |= {"without_length": without_length} if without_length else {}
    if args.reference_column is not None:
        references = rows.texts(args.reference_column)
        how: dict[str, Any] = {"max_bytes": args.rouge_max_bytes, "unit": args.rouge_unit}
        report.rouge = {**rouge_metrics(texts, references, **how), "settings": rouge_settings(**how)}
        name, baseline = baseline_of(args, rows, requested)
        if baseline:
            report.baseline = {"name": name, **rouge_metrics(baseline, references, **how)}
    report.text = text_quality(texts)
    # a lone surrogate in a text is invalid UTF-8
    print(report.markdown().encode(errors="backslashreplace").decode())
    if args.output_dir is not None:
        report.save(args.output_dir)
