"""Write texts of a wanted length.

    python recipes/generate.py --model runs/ldpe --input_file texts.txt --length 40 --output_file out.jsonl
    python recipes/generate.py --model runs/ldpe --input_file rows.jsonl --length_column budget --output_file out.jsonl
    python recipes/generate.py --model runs/a runs/b --rerank 20 --length_constraint max ...
    python recipes/generate.py --model runs/ldpe --predictor runs/predictor --length predict ...

The input is a text file, one source a line, or json, jsonl, csv or parquet (.gz too). Each line of the output holds
`source`, `requested`, `output` and `length`, the measured one, and the input's other columns, in the input's order.
Several models of one tokenizer write as an ensemble. A command that was stopped goes on where its output file ends
when it is given again. `accelerate launch` splits the texts over processes.
"""

import argparse
import sys
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm.auto import tqdm  # type: ignore[import-untyped]
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_lenctrl

from ..configuration_lenctrl import LENGTH_CONSTRAINTS
from ..length_units import LENGTH_UNITS
from .data import load_requests
from .output_file import OutputFile
from .parser import CommandParser


def length_or_way(value: str) -> int | str:
    """`--length`: a number of units, or where the lengths come from."""
    if value in ("predict", "source", "reference"):
        return value
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(
            f"must be an integer of at least 1, 'predict', 'source' or 'reference', got {value!r}"
        )
    return int(value)


def load(paths: list[str], dtype: str | None = None, compiled: bool = False):
    """The model, or the ensemble of several, and their tokenizer."""
    models: list = [AutoModelForSeq2SeqLM.from_pretrained(path, dtype=dtype).eval() for path in paths]
    model: Any = models[0] if len(models) == 1 else hf_lenctrl.LengthControlEnsemble(models)
    model = model.to(PartialState().device)
    if compiled:
        model.forward = torch.compile(model.forward, dynamic=True)  # one graph for all lengths and batches
    return model, AutoTokenizer.from_pretrained(paths[0])


def generate(model, tokenizer, sources: list[str], lengths: list | str, progress_bar=True, **options) -> list[dict]:
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
        model=model, tokenizer=tokenizer, device=model.device, progress_bar=progress_bar
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
    parser = CommandParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    parser.add_argument("--batch_size", type=int, help="most rows of a batch; 32, or no limit with --batch_tokens")
    parser.add_argument("--batch_tokens", type=int, help="most rows times source and requested length of a batch")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="of the weights")
    parser.add_argument("--compile", action="store_true", help="torch.compile and a static cache; for many texts")
    args = parser.parse_args(argv)
    if args.compile and len(args.model) > 1:
        parser.error("--compile takes one --model: an ensemble has no static cache")
    if sum(given is not None for given in (args.length, args.length_column, args.length_ratio)) > 1:
        parser.error("give one of --length for all texts, --length_column for each, --length_ratio to the source")
    if (args.length == "reference") != (args.reference_column is not None):
        parser.error("--length reference and --reference_column go together")
    if args.predictor is not None and args.length != "predict":
        parser.error("--predictor goes with --length predict")
    columns = (args.source_column, args.length_column, args.reference_column)
    sources, lengths, others = load_requests(args.input_file, *columns, length=args.length)
    count = args.num_return_sequences
    file = OutputFile(args.output_file, {k: v for k, v in vars(args).items() if k != "output_file"})
    known = [{"source": source, "requested": length} for source, length in zip(sources, lengths, strict=True)]
    if isinstance(args.length, str):
        known = [{"source": source} for source in sources]
    state = PartialState(cpu=not torch.accelerator.is_available())  # else processes on CPUs would not know each other
    # blocks, so that little is lost, of so many rows that there are batches of like lengths
    block = 16 * (args.batch_size or 32) * state.num_processes
    done = file.keep([row for row in known for _ in range(count)]) // count
    if done == len(sources):
        return print(f"{args.output_file} is complete", file=sys.stderr)
    done -= done % block  # the batches of a command that was not stopped
    model, tokenizer = load(args.model, args.dtype, args.compile)
    names: tuple[str, ...] = ("batch_size", "num_beams", "num_return_sequences", "rerank")
    names += ("length_ratio", "length_unit", "batch_tokens")
    options = {name: getattr(args, name) for name in names}
    if args.compile:
        options |= {"cache_implementation": "static", "disable_compile": True}  # by `generate`, which leaves out beams
    if args.length_constraint is not None:  # else the model's own default holds
        options["length_constraint"] = args.length_constraint
    if isinstance(args.length, str):
        options["predictor"] = args.predictor

    state.wait_for_everyone()  # all have read what was written
    bar = tqdm(total=len(sources), initial=done, unit="text", disable=not state.is_main_process)
    for start in range(done, len(sources), block):
        rows = range(start, min(start + block, len(sources)))
        own = rows[state.process_index :: state.num_processes]
        if args.length == "reference":
            options["references"] = [others[i][args.reference_column] for i in own]
        wanted = args.length if isinstance(args.length, str) else [lengths[i] for i in own]
        texts = [sources[i] for i in own]
        written = generate(model, tokenizer, texts, wanted, progress_bar=False, **options) if texts else []
        numbers = [i for i in own for _ in range(count)]
        pairs: list[Any] = [(i, row | others[i]) for i, row in zip(numbers, written, strict=True)]
        pairs = sorted(gather_object(pairs), key=lambda pair: pair[0])  # stable: n best stay in order
        if state.is_main_process:
            if start == done:
                del file.rows[done * count :]
                file.begin()
            file.append(row for _, row in pairs)
        bar.update(len(rows))
    bar.close()
    if state.is_main_process and file.rows[0]["requested"] is not None:
        produced, requested = ([row[name] for row in file.rows] for name in ("length", "requested"))
        figures = hf_lenctrl.length_metrics(produced, requested)
        print(", ".join(f"{name} {value:.3f}" for name, value in figures.items()), file=sys.stderr)


if __name__ == "__main__":  # accelerate launch -m
    main()
    PartialState().destroy_process_group()  # gloo's threads would abort a process that ends with them
