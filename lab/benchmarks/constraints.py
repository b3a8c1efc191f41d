"""Cost of a hard constraint: beam-5 generation with and without `length_constraint`, on 50,000 vocabulary entries.

    python lab/benchmarks/constraints.py [--threads 1] [--rounds 15] [--shapes 2x128 6x512]

One length-controlled BART whose vocabulary is byte-level BPE, the tables with most states; see timing.py for how
rounds alternate. The unconstrained run takes as many decoding steps as the constrained one.
"""

import argparse
import json
import os
import platform
import random
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import transformers
from timing import alternate, ratio, sides
from tokenizers import pre_tokenizers
from transformers import BartTokenizer

import hf_lenctrl


def byte_level_tokenizer(vocab_size: int) -> BartTokenizer:
    """All bytes, and made-up words of 1 to 12 letters."""
    draw = random.Random(0)
    tokens = dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet())])
    while len(tokens) < vocab_size:
        word = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(1, 12)))
        tokens[draw.choice(["", "Ġ"]) + word] = None
    return BartTokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=[])


LENGTHS = {"token": 20, "character": 110, "word": 20, "byte": 110}  # about 20 steps


def count_steps(model, run) -> int:
    """Times that the decoder is called in a run."""
    calls: list[None] = []
    hook = model.model.decoder.register_forward_hook(lambda *_: calls.append(None))
    run()
    hook.remove()
    return len(calls)


def measure(
    shape: str, tokenizer, unit: str, constraints: Sequence[str], batch_size: int, rounds: int
) -> Iterator[tuple[str, int, dict[str, list[float]]]]:
    """For each constraint its name, the decoding steps, and the seconds of each round, `free` and `constrained`."""
    torch.manual_seed(0)
    fields: dict = {"vocab_size": len(tokenizer), "length_unit": unit, **sides(*map(int, shape.split("x")))}
    model: Any = hf_lenctrl.LenCtrlBartForConditionalGeneration(hf_lenctrl.LenCtrlBartConfig(**fields)).eval()
    model.set_unit_table(tokenizer)
    batch: dict = {"input_ids": torch.randint(5, len(tokenizer), (batch_size, 60)), "num_beams": 5}
    for constraint in constraints:
        options = {"length": LENGTHS[unit], "length_constraint": constraint}
        if unit == "word":
            options["max_new_tokens"] = 24  # made-up words never end

        def constrained(options=options):
            model.final_logits_bias.zero_()
            model.generate(**batch, **options)

        steps = count_steps(model, constrained)

        def free(steps=steps):
            model.final_logits_bias[:, model.config.eos_token_id] = -1e9  # so that it takes all its steps
            model.generate(**batch, length=LENGTHS[unit], max_new_tokens=steps)

        yield constraint, steps, alternate({"free": free, "constrained": constrained}, rounds)


def main(argv=None) -> None:
    """Print one JSON line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shapes", nargs="+", default=["2x128", "6x512"], help="layers x d_model")
    parser.add_argument("--units", nargs="+", default=["token", "character", "word", "byte"])
    parser.add_argument("--vocab_size", type=int, default=50_000)
    parser.add_argument("--batch_size", type=int, default=4)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    transformers.utils.logging.set_verbosity_error()
    machine = {"torch": torch.__version__, "transformers": transformers.__version__, "cores": os.cpu_count()}
    print(json.dumps(machine | {"machine": platform.machine(), "threads": args.threads, "rounds": args.rounds}))
    tokenizer = byte_level_tokenizer(args.vocab_size)
    for shape in args.shapes:
        for unit in args.units:
            sizes = (("max", "exact"), args.batch_size, args.rounds)
            for constraint, steps, seconds in measure(shape, tokenizer, unit, *sizes):
                figures: dict = {"steps": steps}
                figures |= {f"{name}_s": round(statistics.median(each), 4) for name, each in seconds.items()}
                figures["ratio"] = round(ratio(seconds["constrained"], seconds["free"]), 4)
                print(json.dumps({"shape": shape, "unit": unit, "constraint": constraint} | figures), flush=True)


if __name__ == "__main__":
    main()
