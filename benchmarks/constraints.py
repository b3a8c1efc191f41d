"""Cost of a hard bound: beam-5 generation with and without `length_constraint`, at a vocabulary of 50,000 entries.

    python benchmarks/constraints.py [--threads 1] [--rounds 15] [--shapes 2x128 6x512]

One length-controlled BART whose vocabulary is byte-level BPE, the tables with most states; see overhead.py for how
rounds alternate. The free run takes as many decoding steps as the bound one did.
"""

import argparse
import json
import os
import platform
import random
import time

import torch
import transformers
from overhead import ratios
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


def generate(model, batch, **options) -> float:
    """Seconds of beam search."""
    start = time.perf_counter()
    model.generate(**batch, num_beams=5, **options)
    return time.perf_counter() - start


def count_steps(model, run) -> int:
    """Times that the decoder is called in a run."""
    calls: list[None] = []
    hook = model.model.decoder.register_forward_hook(lambda *_: calls.append(None))
    run()
    hook.remove()
    return len(calls)


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
        layers, d_model = map(int, shape.split("x"))
        for unit in args.units:
            torch.manual_seed(0)
            fields: dict = {"vocab_size": len(tokenizer), "d_model": d_model, "length_unit": unit}
            for side in ("encoder", "decoder"):
                fields |= {f"{side}_layers": layers, f"{side}_attention_heads": d_model // 64}
                fields |= {f"{side}_ffn_dim": 4 * d_model}
            model = hf_lenctrl.LenCtrlBartForConditionalGeneration(hf_lenctrl.LenCtrlBartConfig(**fields)).eval()
            model.set_unit_table(tokenizer)
            batch = {"input_ids": torch.randint(5, args.vocab_size, (args.batch_size, 60))}
            for constraint in ("max", "exact"):
                told = {"length": LENGTHS[unit], "length_constraint": constraint}
                if unit == "word":
                    told["max_new_tokens"] = 24  # made-up words go on and on

                def bound(model=model, batch=batch, told=told):
                    model.final_logits_bias.zero_()
                    return generate(model, batch, **told)

                steps = count_steps(model, bound)

                def free(model=model, batch=batch, length=LENGTHS[unit], steps=steps):
                    model.final_logits_bias[:, model.config.eos_token_id] = -1e9  # so that it takes all its steps
                    return generate(model, batch, length=length, max_new_tokens=steps)

                figures: dict = {"steps": steps} | ratios(free, bound, args.rounds)
                names = {"stock_s": "free_s", "controlled_s": "bound_s"}
                figures = {names.get(name, name): value for name, value in figures.items()}
                print(json.dumps({"shape": shape, "unit": unit, "constraint": constraint} | figures), flush=True)


if __name__ == "__main__":
    main()
