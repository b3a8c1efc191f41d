"""One text at several lengths from one reading, and batches of like lengths, against calls without either.

    python benchmarks/batching.py [--threads 1] [--rounds 5] [--shape 6x512]

Random weights; an exact length in tokens makes both sides write the same number. Each figure is the median over
alternating rounds of the ratio of the two times.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable

import torch

from hf_lenctrl import LenCtrlMarianConfig, LenCtrlMarianMTModel


def build(layers: int, d_model: int, vocab_size: int = 8000) -> LenCtrlMarianMTModel:
    """LDPE, lengths in tokens."""
    shape: dict = {"vocab_size": vocab_size, "d_model": d_model, "max_position_embeddings": 1024}
    for side in ("encoder", "decoder"):
        shape |= {f"{side}_layers": layers, f"{side}_attention_heads": d_model // 64, f"{side}_ffn_dim": 4 * d_model}
    shape |= {"pad_token_id": 2, "eos_token_id": 0, "forced_eos_token_id": 0, "decoder_start_token_id": 2}
    torch.manual_seed(0)
    return LenCtrlMarianMTModel(LenCtrlMarianConfig(**shape, length_encoding="ldpe", length_unit="token")).eval()


def ratio(one: Callable[[], None], other: Callable[[], None], rounds: int) -> tuple[float, float, float]:
    """Median seconds of each, and the median ratio of `one` to `other`."""
    for function in (one, other):
        function()  # warm up
    times = []
    for i in range(rounds):
        order = (one, other) if i % 2 else (other, one)
        seconds = {}
        for function in order:
            start = time.perf_counter()
            function()
            seconds[function] = time.perf_counter() - start
        times.append((seconds[one], seconds[other], seconds[one] / seconds[other]))
    first, second, both = (statistics.median(column) for column in zip(*times, strict=True))
    return first, second, both


def main(argv=None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", default="6x512")
    parser.add_argument("--rows", type=int, default=96, help="rows of the file with lengths from 10 to 100")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    model = build(*map(int, args.shape.split("x")))
    options: dict = {"length_constraint": "exact", "do_sample": False}
    print(f"Marian {args.shape}, {args.threads} thread(s), median of {args.rounds} rounds\n")

    text = torch.randint(3, 8000, (1, 400))
    lengths = [18, 20, 22]

    def together() -> None:
        model.generate(text, length=lengths, **options)

    def apart() -> None:
        for length in lengths:
            model.generate(text, length=length, **options)

    one, three, both = ratio(together, apart, args.rounds)
    print("| source 400 tokens, lengths 18, 20, 22 | seconds |\n|---|---|")
    print(f"| one call | {one:.3f} |\n| three calls | {three:.3f} |\n| ratio | {both:.3f} |\n")

    chance = random.Random(0)
    rows = [chance.randint(10, 100) for _ in range(args.rows)]
    sources = torch.randint(3, 8000, (args.rows, 20))

    def in_batches(order: list[int]) -> Callable[[], None]:
        batches = [order[i : i + 16] for i in range(0, len(order), 16)]

        def write() -> None:
            for batch in batches:
                model.generate(sources[batch], length=[rows[i] for i in batch], **options)

        return write

    def padding(order: list[int]) -> float:
        batches = [[rows[k] for k in order[i : i + 16]] for i in range(0, len(order), 16)]
        return 1 - sum(rows) / sum(max(batch) * len(batch) for batch in batches)

    by_length = sorted(range(args.rows), key=lambda i: rows[i], reverse=True)
    given = list(range(args.rows))
    fast, slow, both = ratio(in_batches(by_length), in_batches(given), args.rounds)
    print(f"| {args.rows} rows, lengths uniform in 10 to 100, 16 a batch | seconds | padding % |\n|---|---|---|")
    print(f"| sorted by length | {fast:.2f} | {100 * padding(by_length):.1f} |")
    print(f"| as they come | {slow:.2f} | {100 * padding(given):.1f} |\n| times as fast | {1 / both:.2f} | |")


if __name__ == "__main__":
    main()
