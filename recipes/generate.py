"""Write texts of a wanted length.

    python recipes/generate.py --model runs/ldpe --input_file texts.txt --length 40 --output_file out.jsonl
    python recipes/generate.py --model runs/ldpe --input_file rows.jsonl --length_column budget --output_file out.jsonl
    python recipes/generate.py --model runs/a runs/b --rerank 20 --length_constraint max ...
    python recipes/generate.py --model runs/ldpe --predictor runs/predictor --length predict ...

The input is a text file, one source a line, or json, jsonl, csv or parquet (.gz too). Each line of the output holds
`source`, `requested`, `output` and `length`, the measured one, and the input's other columns, in the input's order.
Several models of one tokenizer write as an ensemble.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_lenctrl
from hf_lenctrl.configuration_lenctrl import LENGTH_CONSTRAINTS
from hf_lenctrl.data import load_rows
from hf_lenctrl.length_units import LENGTH_UNITS


def read_requests(args: argparse.Namespace) -> tuple[list[str], list[int | None], list[dict]]:
    """Sources, the length wanted for each, and other columns; every fault is found before a model is loaded."""
    path = Path(args.input_file)
    if path.suffix == ".txt":
        if args.length_column is not None:
            raise ValueError(f"{path} is plain text and has no column {args.length_column!r}; use jsonl or --length")
        sources = path.read_text(encoding="utf-8").split("\n")
        if not sources[-1]:
            sources.pop()
        if args.reference_column is not None:
            raise ValueError(f"{path} is plain text and has no column {args.reference_column!r}; use jsonl")
        lengths: list = [args.length] * len(sources)
        others: list = [{}] * len(sources)
    else:
        rows = load_rows(args.input_file)
        for column in (args.source_column, args.length_column, args.reference_column):
            if column is not None and column not in rows.column_names:
                raise ValueError(f"{path} has no column {column!r}, only {', '.join(rows.column_names)}")
        sources = rows[args.source_column][:]
        lengths = [args.length] * len(sources) if args.length_column is None else rows[args.length_column][:]
        written = {args.source_column, "source", "requested", "output", "length"}
        others = rows.remove_columns([name for name in rows.column_names if name in written]).to_list()
        others = others or [{}] * len(sources)  # no other column
    for i, (source, length) in enumerate(zip(sources, lengths, strict=True), start=1):
        if not isinstance(source, str | None):
            raise ValueError(f"row {i} of {path} must hold text, got {source!r}; name its column with --source_column")
        if not (source or "").strip():
            raise ValueError(f"row {i} of {path} has no text; remove it")
        given = args.length_column is not None
        if given and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
            raise ValueError(f"row {i} of {path}: the length must be an integer of at least 1, got {length!r}")
    if not sources:
        raise ValueError(f"{path} has no rows")
    return sources, lengths, others


def length_or_way(value: str) -> int | str:
    """`--length`: a number of units, or where the lengths come from."""
    if value in ("predict", "source", "reference"):
        return value
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(
            f"must be an integer of at least 1, 'predict', 'source' or 'reference', got {value!r}"
        )
    return int(value)


def load(paths: list[str]):
    """The model, or the ensemble of several, and their tokenizer."""
    models: list = [AutoModelForSeq2SeqLM.from_pretrained(path).eval() for path in paths]
    model: Any = models[0] if len(models) == 1 else hf_lenctrl.LengthControlEnsemble(models)
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), AutoTokenizer.from_pretrained(paths[0])


def generate(model, tokenizer, sources: list[str], lengths: list | str, **options) -> list[dict]:
    """
    Generate for each source at its length, in batches of like requests, with a progress bar.

    Args:
        sources (`list[str]`): Texts.
        lengths (`list[int]` or `str`): Wanted units for each, or the way to them, `"predict"`, `"source"` or
            `"reference"`; all `None` for the model's default, or for a plain model.
        options: See `hf_lenctrl.LengthControlledGenerationPipeline`, e.g. `num_beams=4`, `batch_size=50`.

    Returns:
        `list[dict]`: `source`, `requested`, `output`, `length`, in the order given; several for a source with
        `num_return_sequences`.
    """
    if isinstance(lengths, str) or lengths[0] is not None:
        options["length"] = lengths
    pipe = hf_lenctrl.LengthControlledGenerationPipeline(
        model=model, tokenizer=tokenizer, device=model.device, progress_bar=True
    )
    rows = []
    for source, outputs in zip(sources, pipe(sources, **options), strict=True):
        for output in outputs if isinstance(outputs, list) else [outputs]:
            rows.append(
                {
                    "source": source,
                    "requested": output["requested_length"],
                    "output": output["generated_text"],
                    "length": output["length"],
                }
            )
    return rows


def main(argv=None) -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, nargs="+", help="folder or Hub name; several are an ensemble")
    parser.add_argument("--input_file", required=True, help="texts: txt, json, jsonl, csv, parquet (.gz too)")
    parser.add_argument("--output_file", required=True, help="JSON lines")
    parser.add_argument(
        "--length",
        type=length_or_way,
        help="units to write, for every text; or 'predict' by a length predictor, 'source' or 'reference' for as many "
        "as the source or the reference has",
    )
    parser.add_argument("--predictor", help="length predictor for --length predict; defaults to the model's own")
    parser.add_argument("--reference_column", help="column of the references for --length reference")
    parser.add_argument("--length_column", help="column that holds the length of each text")
    parser.add_argument("--length_ratio", type=float, help="this many times the source's length, for every text")
    parser.add_argument("--length_unit", choices=LENGTH_UNITS, help="of a plain model's bound; others know theirs")
    parser.add_argument("--length_constraint", choices=LENGTH_CONSTRAINTS, help="never longer, or exactly so long")
    parser.add_argument("--num_return_sequences", type=int, default=1, help="outputs for each text")
    parser.add_argument(
        "--rerank", type=int, default=0, help="candidates, of which the one with most source words wins"
    )
    parser.add_argument("--source_column", default="source", help="column of the texts")
    parser.add_argument("--num_beams", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=32)
    args = parser.parse_args(argv)
    if sum(given is not None for given in (args.length, args.length_column, args.length_ratio)) > 1:
        parser.error("give one of --length for all texts, --length_column for each, --length_ratio to the source")
    if Path(args.output_file).exists():
        parser.error(f"{args.output_file} exists; remove it or name another file")
    if (args.length == "reference") != (args.reference_column is not None):
        parser.error("--length reference and --reference_column go together")
    if args.predictor is not None and args.length != "predict":
        parser.error("--predictor goes with --length predict")
    sources, lengths, others = read_requests(args)
    model, tokenizer = load(args.model)
    names = ("batch_size", "num_beams", "num_return_sequences", "rerank", "length_ratio", "length_unit")
    options = {name: getattr(args, name) for name in names}
    if args.length_constraint is not None:  # else the model's own default holds
        options["length_constraint"] = args.length_constraint
    ways: list | str = lengths
    if isinstance(args.length, str):
        ways = args.length
        options["predictor"] = args.predictor
        if args.length == "reference":
            options["references"] = [other[args.reference_column] for other in others]
    results = generate(model, tokenizer, sources, ways, **options)
    Path(args.output_file).parent.mkdir(parents=True, exist_ok=True)
    with open(args.output_file, "w", encoding="utf-8") as out:
        for i, row in enumerate(results):
            other = others[i // args.num_return_sequences]
            out.write(json.dumps(row | other, ensure_ascii=False, default=str) + "\n")
    if results[0]["requested"] is not None:
        figures = hf_lenctrl.length_metrics([row["length"] for row in results], [row["requested"] for row in results])
        print(", ".join(f"{name} {value:.3f}" for name, value in figures.items()), file=sys.stderr)


if __name__ == "__main__":
    main()
