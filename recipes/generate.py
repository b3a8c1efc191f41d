"""Write texts of a wanted length.

    python recipes/generate.py --model runs/ldpe --input_file texts.txt --length 40 --output_file out.jsonl
    python recipes/generate.py --model runs/ldpe --input_file rows.jsonl --length_column budget --output_file out.jsonl

The input is a text file, one source a line, or json, jsonl, csv or parquet (.gz too). Each line of the output holds
`source`, `requested`, `output` and `length`, the measured one; the order is the input's.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from tqdm.auto import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_lenctrl
from hf_lenctrl.data import load_rows


def read_requests(args: argparse.Namespace) -> tuple[list[str], list[int | None]]:
    """Sources and the length wanted for each; every fault in the file is found before a model is loaded."""
    path = Path(args.input_file)
    if path.suffix == ".txt":
        if args.length_column is not None:
            raise ValueError(f"{path} is plain text and has no column {args.length_column!r}; use jsonl or --length")
        sources = path.read_text(encoding="utf-8").split("\n")
        if not sources[-1]:
            sources.pop()
        lengths: list = [args.length] * len(sources)
    else:
        rows = load_rows(args.input_file)
        for column in (args.source_column, args.length_column):
            if column is not None and column not in rows.column_names:
                raise ValueError(f"{path} has no column {column!r}, only {', '.join(rows.column_names)}")
        sources = rows[args.source_column][:]
        lengths = [args.length] * len(sources) if args.length_column is None else rows[args.length_column][:]
    for i, (source, length) in enumerate(zip(sources, lengths, strict=True), start=1):
        if not isinstance(source, str | None):
            raise ValueError(f"row {i} of {path} must hold text, got {source!r}; name its column with --source_column")
        if not (source or "").strip():
            raise ValueError(f"row {i} of {path} has no text; remove it")
        given = length is not None or args.length_column is not None
        if given and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
            raise ValueError(f"row {i} of {path}: the length must be an integer of at least 1, got {length!r}")
    if not sources:
        raise ValueError(f"{path} has no rows")
    return sources, lengths


def generate(model, tokenizer, sources: list[str], lengths: list, *, batch_size: int = 32, **options) -> list[dict]:
    """
    Generate for each source at its length, in batches of like requests, with a progress bar.

    Args:
        sources (`list[str]`): Texts.
        lengths (`list[int]`): Wanted units for each; `None` leaves it to the model's default, or to a plain model.
        options: Passed to `model.generate`, e.g. `num_beams=4`.

    Returns:
        `list[dict]`: `source`, `requested`, `output`, `length`, in the order given.
    """
    unit = getattr(model.config, "length_unit", "token")
    table = hf_lenctrl.UnitTable.from_tokenizer(tokenizer, unit).to(model.device)
    # rows of like requested and source length end together and need the least padding; the longest come first, so that
    # a length the model cannot hold, or the memory, is told at once
    order = sorted(range(len(sources)), key=lambda i: (lengths[i] or 0, len(sources[i])), reverse=True)
    results: list[dict] = [{}] * len(sources)
    with tqdm(total=len(sources), desc="Generating", unit="text") as bar:
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            wanted = [lengths[i] for i in indices]
            inputs = tokenizer([sources[i] for i in indices], return_tensors="pt", padding=True, truncation=True).to(
                model.device
            )
            if wanted[0] is not None:
                options["length"] = wanted
            ids = model.generate(**inputs, **options)
            texts = tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            for i, text, tokens in zip(indices, texts, table.count(ids).tolist(), strict=True):
                length = tokens if unit == "token" else hf_lenctrl.count_units(text, unit)
                results[i] = {"source": sources[i], "requested": lengths[i], "output": text, "length": length}
            bar.update(len(indices))
    return results


def main(argv=None) -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder or Hub name of a length-controlled model")
    parser.add_argument("--input_file", required=True, help="texts: txt, json, jsonl, csv, parquet (.gz too)")
    parser.add_argument("--output_file", required=True, help="JSON lines")
    parser.add_argument("--length", type=int, help="units to write, for every text")
    parser.add_argument("--length_column", help="column that holds the length of each text")
    parser.add_argument("--source_column", default="source", help="column of the texts")
    parser.add_argument("--num_beams", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=32)
    args = parser.parse_args(argv)
    if args.length is not None and args.length_column is not None:
        parser.error("give --length for all texts or --length_column for each, not both")
    if Path(args.output_file).exists():
        parser.error(f"{args.output_file} exists; remove it or name another file")
    sources, lengths = read_requests(args)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model).eval()
    if not hasattr(model.config, "length_encoding"):
        raise ValueError(f"{args.model} holds a {type(model).__name__}, which has no length control")
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    if lengths[0] is None and model.config.length_encoding != "none":
        lengths = [model.config.length] * len(sources)
        if model.config.length is None:
            raise ValueError("no length was given; pass --length 40, or --length_column for a length of each text")
    results = generate(model, tokenizer, sources, lengths, batch_size=args.batch_size, num_beams=args.num_beams)
    Path(args.output_file).parent.mkdir(parents=True, exist_ok=True)
    with open(args.output_file, "w", encoding="utf-8") as out:
        out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in results)
    if lengths[0] is not None:
        figures = hf_lenctrl.length_metrics([row["length"] for row in results], [row["requested"] for row in results])
        print(", ".join(f"{name} {value:.3f}" for name, value in figures.items()), file=sys.stderr)


if __name__ == "__main__":
    main()
