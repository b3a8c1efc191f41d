"""Counting units by a table of the vocabulary against decoding the text and counting there.

    python lab/benchmarks/unit_tables.py [--threads 1] [--rounds 7]

Made-up words of byte-level BPE with a vocabulary of 50,000 entries, 64 rows of 100 tokens.
"""

import argparse
from collections.abc import Iterator

import torch
from constraints import byte_level_tokenizer
from timing import Row, alternate, ratio_row, row_of

from hf_lenctrl.length_units import LENGTH_UNITS, UnitTable, count_units


def rows(rounds: int, vocab_size: int, batch_size: int, tokens: int) -> Iterator[Row]:
    """For the suite."""
    torch.manual_seed(0)
    tokenizer = byte_level_tokenizer(vocab_size)
    ids = torch.randint(300, vocab_size, (batch_size, tokens))  # past special tokens and single bytes

    def decode_and_count(unit: str) -> list[int]:
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return [count_units(text, unit) for text in texts]

    for unit in (unit for unit in LENGTH_UNITS if unit != "token"):
        build = alternate({"build": lambda unit=unit: UnitTable.from_tokenizer(tokenizer, unit)}, 1)["build"]
        yield row_of(f"table of {vocab_size} entries, {unit}s", build, "seconds to build, once for a model")
        table = UnitTable.from_tokenizer(tokenizer, unit)
        if table.count(ids).tolist() != decode_and_count(unit):
            raise RuntimeError(f"the table and the text differ in {unit}s")
        runs = {"table": lambda table=table: table.count(ids), "text": lambda unit=unit: decode_and_count(unit)}
        seconds = alternate(runs, rounds)
        name = f"{unit}s of {batch_size} rows of {tokens} tokens"
        yield ratio_row(name, seconds["text"], seconds["table"], "times as fast as decoding and counting")


def main(argv=None) -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    for row in rows(args.rounds, 50_000, 64, 100):
        print(f"{row.name}: {row.ratio} {row.what} ({row.spread[0]} to {row.spread[1]})", flush=True)


if __name__ == "__main__":
    main()
