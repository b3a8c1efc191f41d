"""Make each text of a file keep its limit.

    lenctrl fit --input_file texts.txt --length 60 --model runs/rewrite --output_file fitted.jsonl
    lenctrl fit --input_file rows.jsonl --length_column budget --candidates_column others --output_file fitted.jsonl

A text that fits does not change. Otherwise the best candidate that fits replaces the text. The candidates are the
other texts of the row. A candidate has a fault if it lost or added a name or a number. If no candidate fits without a
fault, the texts that `--model` generates become candidates too. If all candidates that fit have faults, the best of
these candidates replaces the text. If no candidate fits, the text does not change. No text is cut.

Each output line holds the input row, and also `requested`, `output`, `length` (the measured length), `origin`
(`source`, `candidate` or `model`), `score` and `fault`. `score` is the log-probability that the model gives to the
output if no length is requested. `score` is null if the output is the source, if there is no `--model`, or if the
model cannot generate without a length. `fault` is null, or it names what is wrong: lost or added names or numbers, an
unfinished text of the model, or that no text fits. To resume an interrupted command, repeat it.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm  # type: ignore[import-untyped]

from ..inference.fit import NUM_BEAMS, fit
from ..inference.presets import PRESETS
from ..length_units import load_unit
from ..lengths import LENGTH_CONSTRAINTS, check_length
from .arguments import UNIT_HELP, CommandParser, unit_name
from .identity import identity
from .locking import locked
from .output_file import OutputFile, check_loss, json_file
from .recipes import model_name
from .rows import Request, Rows, requests_of


ADDED = ("origin", "score", "fault")
BLOCK = 64  # a killed command loses at most this many texts


def limit(value: str) -> int | str:
    """Parse `--length`: a number of units, or the name of a limit, such as `bluesky`."""
    if value not in PRESETS and not value.isdecimal():
        raise argparse.ArgumentTypeError(f"must be an integer or one of {', '.join(PRESETS)}, got {value!r}")
    return value if value in PRESETS else int(value)


def make_parser() -> CommandParser:
    """Return the parser of the options."""
    parser = CommandParser(description=__doc__)
    add = parser.add_argument
    add("--input_file", required=True, help="texts: txt, json, jsonl, csv (.gz too), parquet")
    add("--output_file", required=True, type=json_file, help="JSON lines")
    lengths = parser.add_mutually_exclusive_group(required=True)
    lengths.add_argument("--length", type=limit, help="length of every text in units, or a limit such as bluesky")
    lengths.add_argument("--length_column", help="column of the length of each text")
    add("--length_unit", type=unit_name, metavar="UNIT", help=f"default: the model's unit, or characters; {UNIT_HELP}")
    add("--length_constraint", choices=LENGTH_CONSTRAINTS, default="max", help="never longer, exact, never shorter")
    parser.add_window("window around an exact length: units (4), a share (0.1), or two values, below and above")
    add("--model", type=model_name, help="folder or Hub name of a model that rewords; by default only candidates")
    add("--base_model", type=model_name, help="base model, if --model is an adapter; default: the one it names")
    add("--dtype", choices=["float32", "bfloat16", "float16"], help="type of the weights")
    add("--instruction", help="system message of the chat; default: it asks for a shorter or for a longer text")
    add("--num_beams", type=int, default=NUM_BEAMS, help="beams of a planned length; more take more time")
    add("--source_column", default="source", help="column of the texts")
    add("--candidates_column", help="column with a list of other texts for each row")
    add("--column_prefix", default="", help="prefix of the added columns, if the rows have columns of these names")
    return parser


def candidates_of(rows: Rows, column: str | None) -> list[list[str]]:
    """
    Return a list of candidates for each row, from the column `column`. The list is empty if the cell is empty or null,
    or if `column` is `None`. In csv, a cell holds the list as JSON. Raise `ValueError` if a cell holds anything but a
    list of texts.
    """
    if column is None:
        return [[] for _ in rows.values]
    lists = []
    for i, value in zip(rows.numbers, rows.column(column), strict=True):
        own = value
        if isinstance(value, str) and rows.kind == "csv":
            with suppress(ValueError):
                own = json.loads(value)
        own = [] if own in (None, "") else own
        if not isinstance(own, list) or not all(isinstance(text, str) for text in own):
            rule = "a list of texts" + (', as ["one", "two"]' if rows.kind == "csv" else "")
            raise ValueError(f"row {i} of {rows.path}: {column!r} must hold {rule}, got {value!r}")
        lists.append(own)
    return lists


def write(requests: list[Request], candidates: list[list[str]], args: Any, file: OutputFile) -> None:
    """Fit the texts that the output file lacks, append their lines, and print how many texts have each origin."""
    unit = None if args.length_unit is None else load_unit(args.length_unit)
    options: dict[str, Any] = {"unit": unit, "constraint": args.length_constraint}
    options |= {"tolerance": args.length_tolerance, "instruction": args.instruction, "num_beams": args.num_beams}
    if args.model is not None:
        from ..inference.pipeline import LengthControlledGenerationPipeline  # `--help` does not need these imports
        from .generate import load

        model, tokenizer = load(args.model, args.dtype, base_model=args.base_model)
        options["model"] = LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device=model.device)
    done = len(file.lines) - len(file.lines) % BLOCK
    origins: Counter[str] = Counter()
    for start in tqdm(range(done, len(requests), BLOCK), desc="Fitting", unit="block"):
        block = slice(start, start + BLOCK)
        sources = [request.source for request in requests[block]]
        lengths = args.length or [request.length for request in requests[block]]
        lines = []
        for request, fitted in zip(
            requests[block], fit(sources, lengths, candidates=candidates[block], **options), strict=True
        ):
            origins["fault" if fitted.fault else fitted.origin] += 1
            output = {name: getattr(fitted, name) for name in ("requested", "length", *ADDED)}
            lines.append(request.line({"source": request.source, "output": fitted.text, **output}))
        if start == done:  # options that `fit` refuses leave no file
            file.begin(done)
        file.append(lines)
    print(", ".join(f"{name} {count}" for name, count in origins.most_common()), file=sys.stderr)


def parse(argv) -> argparse.Namespace:
    """Parse the options. Exit with a message if an option has no effect without a model."""
    parser = make_parser()
    args = parser.parse_args(argv)
    for name in ("base_model", "dtype", "instruction", "num_beams"):
        if args.model is None and getattr(args, name) != parser.get_default(name):
            parser.error(f"--{name} is for a model: add --model")
    return args


def main(argv=None) -> None:
    """Run the command: fit the texts that the output file does not hold yet."""
    args = parse(argv)
    rows = Rows(args.input_file, plain_text=True)
    check_loss(args.output_file, args.input_file)
    how: dict[str, Any] = {"lengths": [args.length], "ranges": False, "prefix": args.column_prefix, "added": ADDED}
    requests = requests_of(rows, args.source_column, args.length_column, **how)
    for request in requests if args.length is None else []:
        check_length(request.length)  # before a block of outputs is written
    candidates = candidates_of(rows, args.candidates_column)
    digest = hashlib.sha256("\n".join(request.columns for request in requests).encode(errors="surrogatepass"))
    options = {name: value for name, value in vars(args).items() if name not in ("input_file", "output_file")}
    options["model"] = None if args.model is None else identity(args.model)
    Path(args.output_file).parent.mkdir(parents=True, exist_ok=True)
    with locked(args.output_file):
        file = OutputFile(args.output_file, {"input": digest.hexdigest(), **options})
        if len(file.lines) == len(requests):
            print(f"{args.output_file} is complete", file=sys.stderr)
        else:
            write(requests, candidates, args, file)
