"""One text at several lengths from one reading, and batches of similar lengths, against calls without either.

    python lab/benchmarks/batching.py [--threads 1] [--rounds 5] [--shape 6x512]

Random weights; an exact length in tokens makes both sides write the same number. Each figure is the median over
alternating rounds of the ratio of the two times.
"""

import argparse
import random
import statistics
from collections.abc import Callable, Iterator

import torch
from timing import Row, alternate, marian_shape, ratio, ratio_row

from hf_lenctrl import LenCtrlMarianConfig, LenCtrlMarianMTModel


VOCAB_SIZE = 8000
OPTIONS: dict = {"length_constraint": "exact", "do_sample": False}


def build(shape: str) -> LenCtrlMarianMTModel:
    """LDPE, lengths in tokens."""
    torch.manual_seed(0)
    fields = marian_shape(shape, VOCAB_SIZE, positions=1024) | {"scale_embedding": False}
    return LenCtrlMarianMTModel(LenCtrlMarianConfig(**fields, length_encoding="ldpe", length_unit="token")).eval()


def several_lengths(model, source_tokens: int, lengths: list[int], rounds: int) -> dict[str, list[float]]:
    """Seconds of each round: one text at all lengths in one call, `together`, and in a call for each, `apart`."""
    text = torch.randint(3, VOCAB_SIZE, (1, source_tokens))

    def apart() -> None:
        for length in lengths:
            model.generate(text, length=length, **OPTIONS)

    return alternate({"together": lambda: model.generate(text, length=lengths, **OPTIONS), "apart": apart}, rounds)


class File:
    """Sources of 20 tokens, each with a length to write, uniform in 10 to 100, 16 a batch."""

    def __init__(self, rows: int):
        chance = random.Random(0)
        self.lengths = [chance.randint(10, 100) for _ in range(rows)]
        self.sources = torch.randint(3, VOCAB_SIZE, (rows, 20))
        self.given = list(range(rows))
        self.by_length = sorted(self.given, key=lambda i: self.lengths[i], reverse=True)

    def writer(self, model, order: list[int]) -> Callable[[], None]:
        """Writes all rows in this order."""

        def write() -> None:
            for batch in self.batches(order):
                model.generate(self.sources[batch], length=[self.lengths[i] for i in batch], **OPTIONS)

        return write

    def batches(self, order: list[int]) -> list[list[int]]:
        """16 rows each."""
        return [order[i : i + 16] for i in range(0, len(order), 16)]

    def padding(self, order: list[int]) -> float:
        """Share of positions that are padding."""
        written = sum(max(self.lengths[i] for i in batch) * len(batch) for batch in self.batches(order))
        return 1 - sum(self.lengths) / written

    def measure(self, model, rounds: int) -> dict[str, list[float]]:
        """Seconds of each round: `by length`, and in the order `given`."""
        orders = {"by length": self.by_length, "given": self.given}
        return alternate({name: self.writer(model, order) for name, order in orders.items()}, rounds)


def rows(shape: str, rounds: int, source_tokens: int, file_rows: int) -> Iterator[Row]:
    """For the suite."""
    model = build(shape)
    seconds = several_lengths(model, source_tokens, [18, 20, 22], rounds)
    name = f"{shape}: lengths 18, 20, 22 of a source of {source_tokens} tokens"
    yield ratio_row(name, seconds["together"], seconds["apart"], "time, one call / three calls")
    seconds = File(file_rows).measure(model, rounds)
    name = f"{shape}: {file_rows} rows of 10 to 100 tokens, 16 a batch"
    yield ratio_row(name, seconds["given"], seconds["by length"], "times as fast by length as in the order given")


def main(argv=None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", default="6x512")
    parser.add_argument("--rows", type=int, default=96, help="rows of the file with lengths from 10 to 100")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    model = build(args.shape)
    print(f"Marian {args.shape}, {args.threads} thread(s), median of {args.rounds} rounds\n")

    seconds = several_lengths(model, 400, [18, 20, 22], args.rounds)
    one, three = (statistics.median(seconds[name]) for name in ("together", "apart"))
    print("| source 400 tokens, lengths 18, 20, 22 | seconds |\n|---|---|")
    print(f"| one call | {one:.3f} |\n| three calls | {three:.3f} |")
    print(f"| ratio | {ratio(seconds['together'], seconds['apart']):.3f} |\n")

    file = File(args.rows)
    seconds = file.measure(model, args.rounds)
    fast, slow = (statistics.median(seconds[name]) for name in ("by length", "given"))
    print(f"| {args.rows} rows, lengths uniform in 10 to 100, 16 a batch | seconds | padding % |\n|---|---|---|")
    print(f"| sorted by length | {fast:.2f} | {100 * file.padding(file.by_length):.1f} |")
    print(f"| as they come | {slow:.2f} | {100 * file.padding(file.given):.1f} |")
    print(f"| times as fast | {ratio(seconds['given'], seconds['by length']):.2f} | |")


if __name__ == "__main__":
    main()
