"""Generate texts of a requested length.

    lenctrl generate --model runs/ldpe --input_file texts.txt --length 40 60 --output_file out.jsonl
    lenctrl generate --model runs/ldpe --input_file rows.jsonl --length_column budget --output_file out.jsonl
    lenctrl generate --model runs/ldpe --length_ratio 0.9 1.1 ...
    lenctrl generate --model runs/ldpe --rerank 20 --length_constraint max ...
    lenctrl generate --model runs/ldpe --predictor runs/predictor --length predict ...

The input is a text file with one source in each line, or json, jsonl, csv (.gz too) or parquet. Each output line holds
an input row, in the same order, and also `source`, `requested`, `output` and `length` (the measured length). With
`--num_return_sequences` over 1, a line also holds `rank`, `row` (the number of the input row) and `score`. In beam
search, this score is the mean log-probability per token. With `--do_sample`, this score is the log-probability that
the model gives to the output if no length is requested, or null if the model does not have `length_optional`. If
`--length` has several values, each row gives a line for each value.

With `--min_score`, a line also holds `score`, the log-probability that the model gives to the output if no length is
requested. Lines with a score below `--min_score` are also written to the file `<output_file>.low.jsonl`, for a person
to read. `--min_score` does not work with `--num_return_sequences` over 1.

To resume an interrupted command, repeat it. `accelerate launch` splits the texts over processes.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from tqdm.auto import tqdm  # type: ignore[import-untyped]
from transformers import PreTrainedConfig

import hf_lenctrl

from ..inference.presets import PRESETS, limit_of
from ..inference.sources import length_or_range
from ..length_units import LENGTH_UNITS, load_unit
from ..lengths import LENGTH_CONSTRAINTS, check_counts, plural, window_in
from .arguments import UNIT_HELP, CommandParser, unit_name
from .identity import identity
from .locking import locked
from .output_file import OutputFile, check_loss, encoded, json_file, write_whole
from .processes import gathered, processes
from .recipes import model_name
from .rows import Request, Rows, requests_of


SAMPLING = (
    ("temperature", float, "temperature of sampling: under 1 favours likely tokens, over 1 others"),
    ("top_k", int, "sample only from this number of most likely tokens"),
    ("top_p", float, "sample only from the most likely tokens that have this share of the probability"),
    ("no_repeat_ngram_size", int, "size of n-grams that may not repeat in a text"),
    ("repetition_penalty", float, "penalty for tokens that the text already has; 1 means none"),
)
# these options belong to the command; the others go to the pipeline
OWN = """model base_model input_file output_file overwrite length length_column length_ratio reference_column
    source_column column_prefix do_sample seed dtype compile way""".split()


def length_source(value: str) -> int | tuple | str:
    """Parse one value of `--length`: a number, a range, or a word."""
    if value in ("predict", "source", "reference", *PRESETS):
        return value
    try:
        return length_or_range(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be an integer of at least 1, a range as 30-42, 'predict', 'source', 'reference' or a limit of "
            f"{', '.join(PRESETS)}, got {value!r}"
        ) from None


def unit_and_limit(value: str) -> tuple[str, int]:
    """Parse `--second_limit`, such as `word=6`: return the unit and the maximum length in this unit."""
    unit, _, most = value.partition("=")
    if unit not in LENGTH_UNITS or not most.isdecimal() or int(most) < 1:
        raise argparse.ArgumentTypeError(f"must be a unit and a number of at least 1, word=6, got {value!r}")
    return unit, int(most)


def make_parser() -> CommandParser:
    """Return the parser of the options."""
    parser = CommandParser(description=__doc__)
    add = parser.add_argument
    add("--model", required=True, type=model_name, help="folder or Hub name of the model")
    add("--base_model", type=model_name, help="base model, if --model is an adapter; default: the one it names")
    add("--input_file", required=True, help="texts: txt, json, jsonl, csv (.gz too), parquet")
    add("--output_file", required=True, type=json_file, help="JSON lines")
    add("--overwrite", action="store_true", help="begin again if --output_file exists, with any options")
    second = "limit in a second unit, word=6; the default constraint is then max"
    add("--second_limit", type=unit_and_limit, metavar="UNIT=N", help=second)
    lengths = parser.add_mutually_exclusive_group()
    lengths.add_argument(
        "--length",
        type=length_source,
        nargs="+",
        action="extend",  # a second --length adds to the first
        help="length of every output, or a range, 30-42; several values give an output for each; or the name of a "
        "limit, bluesky; or 'predict', by a length predictor; or the length of 'source' or 'reference'",
    )
    lengths.add_argument("--length_column", help="column with the length or the range of each text")
    lengths.add_argument("--length_ratio", type=float, nargs="+", help="ratio to the source's length; two are a range")
    add("--predictor", type=model_name, help="length predictor for --length predict; default: the model's predictor")
    add("--reference_column", help="column of the references for --length reference")
    add("--length_unit", type=unit_name, metavar="UNIT", help=f"default: the model's unit; {UNIT_HELP}")
    add("--length_constraint", choices=LENGTH_CONSTRAINTS, help="never longer, exact, never shorter")
    parser.add_window("window around an exact length: units (4), a share (0.1), or two values, below and above")
    add("--min_score", type=float, help="also write texts with a lower score to <output_file>.low.jsonl, to read them")
    add("--num_return_sequences", type=int, default=1, help="number of outputs for each text, the best first")
    add("--rerank", type=int, default=0, help="number of candidates; the output is the one with most source words")
    add("--source_column", default="source", help="column of the texts")
    add("--column_prefix", default="", help="prefix of the added columns, if the rows have columns of these names")
    add("--num_beams", type=int, help="number of beams; default: 4, or 1 with --do_sample")
    add("--do_sample", action="store_true", help="sample tokens, with one beam unless --num_beams is set")
    for name, kind, text in SAMPLING:
        add(f"--{name}", type=kind, help=text)
    add("--seed", type=int, default=0, help="seed of sampling")
    add("--batch_size", type=int, help="most rows of a batch; default: 32, or no limit with --batch_tokens")
    add("--batch_tokens", type=int, help="most tokens of a batch: rows times source and requested length")
    add("--dtype", choices=["float32", "bfloat16", "float16"], help="type of the weights")
    add("--compile", action="store_true", help="torch.compile (in a minute or two) and a static cache; not on CPUs")
    return parser


def parse(argv) -> argparse.Namespace:
    """Parse the options. Exit with a message if an option has no effect, or if options contradict each other."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.num_beams is None:
        args.num_beams = 1 if args.do_sample else 4
    counts = ("num_beams", "num_return_sequences", "batch_size", "batch_tokens")
    check_counts(**{name: count for name in counts if (count := getattr(args, name)) is not None})
    ways = [length for length in args.length or [] if isinstance(length, str)]
    args.way = ways[0] if ways else None
    sampling = [name for name in ("temperature", "top_k", "top_p") if getattr(args, name) is not None]
    if sampling and not args.do_sample:
        parser.error(f"--{sampling[0]} is for sampling: add --do_sample")
    if len({type(length) for length in args.length or []}) > 1 or len(ways) > 1:
        parser.error(f"--length takes lengths or ranges, not both, or one word, got {args.length}")
    if (args.way == "reference") != (args.reference_column is not None):
        parser.error("--length reference and --reference_column go together")
    if args.predictor is not None and args.way != "predict":
        parser.error("--predictor needs --length predict")
    if args.min_score is not None and args.num_return_sequences > 1:
        parser.error("--min_score needs one output for each text; leave out --num_return_sequences")
    return args


def load(path: str, dtype: str | None = None, compiled: bool = False, base_model: str | None = None):
    """
    Load a model and its tokenizer. The model is in eval mode, on the device of this process. If `compiled` is true,
    compile its `forward`. If `path` is an adapter, `base_model` may name its base model. Raise `ValueError` if
    `base_model` is given but `path` is not an adapter.
    """
    from ..adapters import is_adapter  # `--help` does not need these imports
    from ..conversion import auto_class, tokenizer_of

    base = {} if base_model is None else {"base_model": base_model}
    if base and not is_adapter(path):
        raise ValueError(f"--base_model is for an adapter, and {path} holds a model; leave it out")
    model = auto_class(path).from_pretrained(path, dtype=dtype, **base).eval().to(processes().device)
    if compiled:
        model.forward = torch.compile(model.forward, dynamic=True)  # one graph for all lengths and batches
    return model, tokenizer_of(path)


def models_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the identity of the model and, if the command uses a length predictor, of the predictor."""
    found: dict[str, Any] = {"model": identity(args.model)}
    name = args.predictor
    if args.way == "predict" and name is None:
        name = PreTrainedConfig.get_config_dict(args.model)[0].get("length_predictor")
        name = name and (Path(args.model, name) if name.startswith("./") else name)
    return found | ({} if name is None else {"predictor": identity(name)})


def generation_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of the pipeline call, without those that the user did not set."""
    options = {name: value for name, value in vars(args).items() if name not in OWN and value is not None}
    if args.length_unit is not None:
        options["length_unit"] = load_unit(args.length_unit)
    if args.length_ratio is not None:
        options["length_ratio"] = tuple(args.length_ratio) if len(args.length_ratio) > 1 else args.length_ratio[0]
    if args.do_sample:
        options["do_sample"] = True
    elif args.num_return_sequences > 1:  # only beam search returns scores
        options |= {"return_dict_in_generate": True, "output_scores": True, "scores": False}
    if args.compile:
        # `generate` does not compile for beam search, so `load` compiles the model
        options |= {"cache_implementation": "static", "disable_compile": True}
    return options


def generate(
    model, tokenizer, sources: list[str], lengths: list | str, progress_bar=True, second_limit=None, **options
) -> list[dict]:
    """
    Generate outputs. Return a dictionary for each output, in the order of the sources, with `source`, `requested`,
    `output`, `length` and `score`. If `num_return_sequences` is above 1, each source has several outputs.

    `lengths` is a list with one length or range for each source, in units. A list of `None` requests the model's
    default. `lengths` may also be the name of a limit, such as `"bluesky"`, or one of three words. `"predict"` means
    the length from a length predictor, `"source"` the length of each source, and `"reference"` the length of each text
    in the option `references`.

    `second_limit` is a pair: a second unit, and the maximum length in this unit. `options` are passed to the pipeline.
    """
    if isinstance(lengths, str) or lengths[0] is not None:
        options["length"] = lengths
    if second_limit is not None:
        if isinstance(lengths, str):
            _, options["length_unit"] = limit_of(lengths, options.get("length_unit"))
        unit = options.get("length_unit") or getattr(model.config, "length_unit", None) or "token"
        if second_limit[0] == unit:  # the pipeline's own message is about a dictionary
            example = "character=30" if unit == "word" else "word=6"
            raise ValueError(
                f"--second_limit takes another unit than the length, which counts {plural(unit)}, got "
                f"{unit}={second_limit[1]}; pass --second_limit {example}"
            )
        options["length"] = {unit: options.get("length"), second_limit[0]: second_limit[1]}
    pipe = hf_lenctrl.LengthControlledGenerationPipeline(
        model=model, tokenizer=tokenizer, device=model.device, progress_bar=progress_bar
    )
    names = {"requested": "requested_length", "output": "generated_text", "length": "length", "score": "score"}
    return [
        {"source": source, **{name: output.get(key) for name, key in names.items()}}
        for source, outputs in zip(sources, pipe(sources, **options), strict=True)
        for output in (outputs if isinstance(outputs, list) else [outputs])
    ]


def write(requests: list[Request], args: argparse.Namespace, file: OutputFile, state) -> dict[str, Any]:
    """
    Generate the outputs that the file does not hold yet, block by block. Each process generates a part of a block.
    `state` describes the processes, see `processes`. Return the model's defaults for the length options.
    """
    from ..generation import defaults_for

    # a block is short, so that a killed command loses little, and long enough to batch similar lengths
    block, count = 16 * (args.batch_size or 32) * state.num_processes, args.num_return_sequences
    done = len(file.lines) // count
    done -= done % block  # a resumed command begins with a whole block, so that it has the same batches
    model, tokenizer = load(args.model, args.dtype, args.compile, args.base_model)
    options = generation_options(args)
    state.wait_for_everyone()  # all processes must have read the file before it changes
    bar = tqdm(desc="Generating", total=len(requests), initial=done, unit="text", disable=not state.is_main_process)
    for start in range(done, len(requests), block):
        rows = range(start, min(start + block, len(requests)))
        own = rows[state.process_index :: state.num_processes]
        if args.way == "reference":
            options["references"] = [requests[i].reference for i in own]
        sources, lengths = [requests[i].source for i in own], args.way or [requests[i].length for i in own]
        transformers.set_seed(args.seed + start)  # a block has the same outputs in a repeated command
        outputs = generate(model, tokenizer, sources, lengths, progress_bar=False, **options) if sources else []
        lines: list[tuple[int, str]] = []
        for k, output in enumerate(outputs):
            request = requests[own[k // count]]
            lines.append((own[k // count], request.line(output | {"rank": k % count + 1, "row": request.number})))
        # the sort is stable, so the n best outputs stay in order
        lines = sorted(gathered(lines, state), key=lambda line: line[0])
        if state.is_main_process:
            if start == done:
                file.begin(done * count)
            file.append(line for _, line in lines)
        bar.update(len(rows))
    bar.close()
    return defaults_for(model)


def low_file(args: argparse.Namespace, file: OutputFile) -> Path:
    """
    Return the path of the file for texts with low scores, `<output_file>.low.jsonl`. Raise `ValueError` if this file
    exists and holds lines that `file` lacks, because the command would delete them.
    """
    path = Path(f"{args.output_file}.low.jsonl")
    if path.exists() and not set(path.read_bytes().splitlines()) <= {encoded(line) for line in file.lines}:
        raise ValueError(f"{path} exists, with other lines than {args.output_file}; move it, or name another output")
    return path


def write_low(requests: list[Request], file: OutputFile, args: argparse.Namespace) -> None:
    """Write the lines with a score under `--min_score` to `<output_file>.low.jsonl`, and print their number."""
    name, path = requests[0].names["score"], low_file(args, file)
    low = [line for line in file.lines if json.loads(line)[name] < args.min_score]
    write_whole(path, "".join(f"{line}\n" for line in low), file.part)
    print(f"{len(low)} of {len(file.lines)} texts have a score under {args.min_score}: {path}", file=sys.stderr)


def print_figures(requests: list[Request], lines: list[str], args: argparse.Namespace, defaults: dict) -> None:
    """
    Print metrics of how well the outputs keep their requested lengths: those of `length_metrics`, or for ranges the
    share of outputs inside their range. `lines` are the output lines. `defaults` are the model's defaults for the
    length options. The metrics use the default `length_tolerance` (a window of allowed lengths around a requested
    length) only if the command sets no constraint, tolerance, second limit or named limit.
    """
    names, rows = requests[0].names, [json.loads(line) for line in lines]
    count = len(lines) // len(requests)
    requested: list[Any] = [requests[i // count].length or row[names["requested"]] for i, row in enumerate(rows)]
    produced = [row[names["length"]] for row in rows]
    figures = {}
    if isinstance(requested[0], list | tuple):
        inside = [low <= n <= high for n, (low, high) in zip(produced, requested, strict=True)]
        figures["within"] = sum(inside) / len(inside)
    elif requested[0] is not None:
        given = (args.length_constraint, args.length_tolerance, args.second_limit)
        # a named limit and a second limit are maxima, so the default window does not hold
        named = args.way in PRESETS or any(option is not None for option in given)
        window = window_in(args if named else argparse.Namespace(**defaults))
        figures = hf_lenctrl.length_metrics(produced, requested, **window)
    if figures:
        print(", ".join(f"{name} {value:.3f}" for name, value in figures.items()), file=sys.stderr)


def main(argv=None) -> None:
    """Run the command: generate the outputs that the output file does not hold yet."""
    args = parse(argv)
    check_loss(args.output_file, args.input_file)
    scored = args.min_score is not None
    requests = requests_of(
        Rows(args.input_file, plain_text=True),
        args.source_column,
        args.length_column,
        args.reference_column,
        lengths=args.length if args.length and args.way is None else [None],
        prefix=args.column_prefix,
        added=["rank", "score", "row"] if args.num_return_sequences > 1 else ["score"] if scored else [],
    )
    digest = hashlib.sha256("\n".join(request.columns for request in requests).encode(errors="surrogatepass"))
    others = ("input_file", "output_file", "overwrite")
    options = {name: value for name, value in vars(args).items() if name not in others}
    options |= models_of(args) | {"min_score": scored or None}  # another `--min_score` does not change the texts
    state = processes()
    Path(args.output_file).parent.mkdir(parents=True, exist_ok=True)
    with locked(args.output_file, state.is_main_process):
        file = OutputFile(args.output_file, {"input": digest.hexdigest(), **options}, args.overwrite)
        if scored:
            low_file(args, file)  # check this before hours of work
        if len(file.lines) == len(requests) * args.num_return_sequences:
            print(f"{args.output_file} is complete", file=sys.stderr)
        else:
            defaults = write(requests, args, file, state)
            if state.is_main_process:
                print_figures(requests, file.lines, args, defaults)
        if scored and state.is_main_process:
            write_low(requests, file, args)
