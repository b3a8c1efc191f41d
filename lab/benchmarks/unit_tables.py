"""Counting units by a table of the vocabulary against decoding the text and counting there.

    python lab/benchmarks/unit_tables.py [--threads 1] [--rounds 7] [--tokenizer tokenizer.json]

Made-up words of byte-level BPE with a vocabulary of 50,000 entries, 64 rows of 100 tokens. With a tokenizer's file:
CPU seconds of its tables and rules, and of a decoding step.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from constraints import byte_level_tokenizer
from timing import Row, alternate, ratio_row, row_of
from transformers import PreTrainedTokenizerFast

from hf_lenctrl import LengthConstraintLogitsProcessor
from hf_lenctrl.length_rules import Rules
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


def seconds_of(run: Callable, *arguments) -> tuple[float, Any]:
    """CPU seconds of a call, and its result."""
    start = time.process_time()
    result = run(*arguments)
    return time.process_time() - start, result


def of_tokenizer(file: str, rounds: int) -> Iterator[str]:
    """A line for each unit: seconds of table and rules, and of a step of 4 beams behind 20 and 1,000 tokens."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=file)
    for unit in (unit for unit in LENGTH_UNITS if unit != "token"):
        built, table = seconds_of(UnitTable.from_tokenizer, tokenizer, unit)
        ruled, _ = seconds_of(Rules, table, (1,), "exact")
        steps = [_step(table, tokens, rounds) for tokens in (20, 1000)]
        shape = f"{table.states} states of {table.weights.shape[1]} entries"
        yield f"{unit}: table {built:.2f} s, rules {ruled:.2f} s, step {steps[0]:.2f} and {steps[1]:.2f} ms, {shape}"


def _step(table: UnitTable, tokens: int, rounds: int) -> float:
    process = LengthConstraintLogitsProcessor(table, 10**6, "max", eos_token_id=1)
    entries, taken = table.weights.shape[1], []
    ids, scores = torch.randint(entries, (4, tokens)), torch.randn(4, entries)
    for _ in range(10 + rounds):
        ids = torch.cat([ids[torch.randperm(4)], torch.randint(entries, (4, 1))], dim=1)
        taken.append(1000 * seconds_of(process, ids, scores)[0])
    return statistics.median(taken[10:])


def main(argv=None) -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokenizer", help="a tokenizer.json, instead of made-up words")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    if args.tokenizer:
        for line in of_tokenizer(args.tokenizer, args.rounds):
            print(line, flush=True)
        return
    for row in rows(args.rounds, 50_000, 64, 100):
        print(f"{row.name}: {row.ratio} {row.what} ({row.spread[0]} to {row.spread[1]})", flush=True)


if __name__ == "__main__":
    main()
