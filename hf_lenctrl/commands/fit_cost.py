"""Fit a cost of each character to the seconds that a voice needs to speak texts.

    lenctrl fit-cost --input_file docs/samples/spoken.jsonl --output_file cost.json

The rows have the columns `text` and `seconds`. `hf_lenctrl.load_cost` loads the output as a function for the argument
`cost`. The command first fits nine of ten rows, and prints the mean absolute error (MAE) on the held-out rows. Then it
fits all rows, and writes the result.
"""

import math
from pathlib import Path
from statistics import mean

from ..training.fitted_cost import fit_cost
from .arguments import CommandParser
from .output_file import check_loss, json_file
from .rows import Rows


HELD_OUT = 10  # the error is measured on every tenth row


def make_parser() -> CommandParser:
    """Return the parser of the options."""
    parser = CommandParser(description=__doc__)
    add = parser.add_argument
    add("--input_file", required=True, help="spoken texts: json, jsonl, csv (these also as .gz) or parquet")
    add("--output_file", required=True, type=json_file, help="JSON")
    add("--overwrite", action="store_true", help="replace --output_file if it exists")
    add("--text_column", default="text", help="column of the texts")
    add("--seconds_column", default="seconds", help="column of the seconds of each text")
    return parser


def seconds_of(rows: Rows, column: str) -> list[float]:
    """
    Return a column of numbers as floats; in csv the numbers are text. Raise `ValueError` if a value is not a finite
    number of at least 0.
    """
    found = []
    for i, value in zip(rows.numbers, rows.column(column), strict=True):
        try:
            found.append(float(value))
            if not 0 <= found[-1] < math.inf:
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            rule = f"{column!r} must hold a finite number of at least 0"
            raise ValueError(f"row {i} of {rows.path}: {rule}, got {value!r}") from None
    return found


def main(argv=None) -> None:
    """Run the command: measure the error on held-out rows, then fit the cost to all rows and write it."""
    args = make_parser().parse_args(argv)
    rows = Rows(args.input_file)
    check_loss(args.output_file, args.input_file, overwrite=args.overwrite)
    pairs = list(zip(rows.texts(args.text_column), seconds_of(rows, args.seconds_column), strict=True))
    if len(pairs) < 2 * HELD_OUT:
        raise ValueError(f"{args.input_file} must have at least {2 * HELD_OUT} rows, got {len(pairs)}")
    fitted = fit_cost(*zip(*(pair for i, pair in enumerate(pairs, 1) if i % HELD_OUT), strict=True))
    held_out = pairs[HELD_OUT - 1 :: HELD_OUT]
    error = mean(abs(fitted.seconds(text) - seconds) for text, seconds in held_out)
    print(f"{len(held_out)} held-out texts of {mean(of for _, of in held_out):.2f} s: MAE {error:.3f} s")
    Path(args.output_file).parent.mkdir(parents=True, exist_ok=True)
    fit_cost(*zip(*pairs, strict=True)).save(args.output_file)
