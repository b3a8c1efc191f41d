"""How many answers of a plain model end with a finished sentence, with `finish` and without.

    python lab/benchmarks/finish.py runs/causal/base runs/causal/base/data/test.jsonl [--rows 500] [--length 200]

The column `prompt` of the file gives texts; the model continues the first words of each, by sampling, at most so many
characters. Prints a Markdown table: the share of answers that end with a finished sentence, with a whole word, and the
mean length. An answer that ends within a word counts for neither; where the model would have gone on is not known
without `finish`, so that column has no figure for it.
"""

import argparse
import statistics

import torch
from transformers import pipeline

import hf_lenctrl  # noqa: F401  # registers the pipeline
from hf_lenctrl.commands.rows import Rows
from hf_lenctrl.inference.sentences import last_sentence_end


def measure(write, prompts: list[str], length: int, finish: str | None, batch_size: int) -> dict[str, str]:
    """A row of the table."""
    torch.manual_seed(0)
    options = {"do_sample": True, "top_k": 20, "batch_size": batch_size, "progress_bar": False, "finish": finish}
    outputs = write(prompts, length=length, length_unit="character", length_constraint="max", **options)
    texts = [out["generated_text"].strip() for out in outputs]
    ended = sum(last_sentence_end(text) == len(text) > 0 for text in texts)
    cut = sum(out["finish"] == "cut" for out in outputs) if finish else None
    return {
        "finish": finish or "none",
        "finished sentence %": f"{100 * ended / len(texts):.1f}",
        "cut within a word %": "" if cut is None else f"{100 * cut / len(texts):.1f}",
        "mean length": f"{statistics.mean(out['length'] for out in outputs):.0f}",
        "longest": str(max(out["length"] for out in outputs)),
    }


def main(argv=None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("file")
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--length", type=int, default=200, help="characters")
    parser.add_argument("--words", type=int, default=20, help="words of a text that make the prompt")
    parser.add_argument("--batch_size", type=int, default=50)
    args = parser.parse_args(argv)
    prompts = [" ".join(text.split()[: args.words]) for text in Rows(args.file).texts("prompt")[: args.rows]]
    write = pipeline("length-controlled-generation", model=args.model)  # type: ignore[call-overload]
    for k, finish in enumerate((None, "word", "sentence")):
        row = measure(write, prompts, args.length, finish, args.batch_size)
        if k == 0:
            print("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|")
        print("| " + " | ".join(row.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
