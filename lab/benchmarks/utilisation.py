"""Model FLOP utilisation of a training step: its operations a second, over those of one large matrix product.

    python lab/benchmarks/utilisation.py [--threads 1] [--rounds 5] [--shape 6x512]

Operations are counted by torch, forward and backward. On a GPU in bfloat16, elsewhere in float32.
"""

import argparse
from collections.abc import Iterator

import torch
from overhead import build, train_step
from timing import Row, alternate, row_of
from torch.utils.flop_counter import FlopCounterMode


def rows(shape: str, rounds: int, vocab_size: int, batch_size: int, tokens: int, product: int) -> Iterator[Row]:
    """For the suite."""
    torch.manual_seed(0)
    gpu = torch.get_default_device().type == "cuda"
    kind = torch.bfloat16 if gpu else torch.float32
    for name, model in zip(("stock", "controlled"), build("marian", shape, vocab_size, False), strict=True):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        batch = {"input_ids": torch.randint(3, vocab_size, (batch_size, tokens))}
        batch["labels"] = torch.randint(3, vocab_size, (batch_size, tokens))
        square = torch.randn(product, product, dtype=kind)

        def step(model=model, optimizer=optimizer, batch=batch) -> None:
            with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=gpu):
                train_step(model, optimizer, batch)

        with FlopCounterMode(display=False) as counter:
            step()
        seconds = alternate({"step": step, "product": lambda square=square: square @ square}, rounds)
        most = [2 * product**3 / second for second in seconds["product"]]
        shares = [counter.get_total_flops() / s / m for s, m in zip(seconds["step"], most, strict=True)]
        label = f"{shape}: training step of {batch_size} pairs of {tokens} tokens, {name}"
        yield row_of(label, [100 * share for share in shares], f"% of a matrix product's FLOP/s, {str(kind)[6:]}")


def main(argv=None) -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", default="6x512")
    parser.add_argument("--batch_size", type=int, default=16)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    for row in rows(args.shape, args.rounds, 8000, args.batch_size, 60, 2048):
        print(f"{row.name}: {row.ratio} {row.what} ({row.spread[0]} to {row.spread[1]})", flush=True)


if __name__ == "__main__":
    main()
