"""bfloat16 and torch.compile against float32 without either: a training step and beam-5 generation.

    python lab/benchmarks/precision.py [--threads 1] [--rounds 5] [--shape 3x256]

A length-controlled Marian (LDPE, characters) of random weights. Training in bfloat16 is autocast, as Trainer's
`bf16` has it; generation in bfloat16 has weights of that type. The compiled variants' first call, which compiles,
stands apart. Ratios are over float32 of the same round.
"""

import argparse
import copy
import time
from collections.abc import Callable, Iterator

import torch
from overhead import build, train_step
from timing import Row, alternate, ratio_row, row_of


def seconds_of(run: Callable[[], object]) -> float:
    """Of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def rows(shape: str, rounds: int, vocab_size: int, backend: str) -> Iterator[Row]:
    """For the suite."""
    torch.manual_seed(0)
    model = build("marian", shape, vocab_size, False)[1]
    batch: dict = {"input_ids": torch.randint(3, vocab_size, (16, 60))}
    batch["labels"] = torch.randint(3, vocab_size, (16, 20))
    batch["length"] = model.count_labels(batch["labels"])

    def step(bf16: bool, compiled: bool) -> Callable[[], None]:
        own = copy.deepcopy(model).train()
        adam = torch.optim.AdamW(own.parameters(), lr=1e-5)
        call = torch.compile(own, dynamic=True, backend=backend) if compiled else own

        def run() -> None:
            with torch.autocast(own.device.type, dtype=torch.bfloat16, enabled=bf16):
                train_step(call, adam, batch)

        return run

    def write(bf16: bool, static: bool, compiled: bool) -> Callable[[], object]:
        own = copy.deepcopy(model).eval()
        own = own.bfloat16() if bf16 else own
        if compiled:
            own.forward = torch.compile(own.forward, dynamic=True, backend=backend)
        options: dict = {"num_beams": 5, "min_new_tokens": 20, "max_new_tokens": 20, "length": 90}
        options |= {"cache_implementation": "static", "disable_compile": True} if static else {}
        return lambda: own.generate(batch["input_ids"][:4], **options)

    steps = {
        "float32": step(False, False),
        "bfloat16": step(True, False),
        "compiled": step(False, True),
    }
    writes = {
        "float32": write(False, False, False),
        "bfloat16": write(True, False, False),
        "static cache": write(False, True, False),
        "compiled static cache": write(False, True, True),
    }
    for task, runs in (("training step", steps), ("beam-5 generation", writes)):
        for name in runs:
            if name.startswith("compiled"):
                yield row_of(f"{shape}: {task}, {name}, first call", [seconds_of(runs[name])], "seconds")
        seconds = alternate(runs, rounds)
        for name in list(runs)[1:]:
            yield ratio_row(f"{shape}: {task}, {name}", seconds[name], seconds["float32"], "time, this / float32")


def main(argv=None) -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", default="3x256")
    parser.add_argument("--vocab_size", type=int, default=8000)
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    for row in rows(args.shape, args.rounds, args.vocab_size, args.backend):
        print(f"{row.name}: {row.ratio} {row.what} ({row.spread[0]} to {row.spread[1]})", flush=True)


if __name__ == "__main__":
    main()
