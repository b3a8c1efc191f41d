"""Measure how well causal models keep requested lengths: a Markdown table of several models on the same prompts.

    python lab/causal/measure.py runs/causal/base/data/test.jsonl runs/causal/base runs/causal/ldpe

The test file has the columns `prompt` and `completion`. A plain model generates without a length, with a prompt that
names the length ({length} in --named_prompt), and with constraints. A length-controlled model generates without and
with constraints; if it also works without a length (`length_optional`), its texts are also chosen among candidates.
"Whole" is the share of outputs whose last word is also in the test file or in --words_file.
"""

import argparse
import json
import sys
from pathlib import Path

from transformers import AutoTokenizer

from hf_lenctrl import length_metrics
from hf_lenctrl.commands.generate import generate
from hf_lenctrl.commands.rows import Rows
from hf_lenctrl.conversion import auto_class
from hf_lenctrl.evaluation.metrics import rouge_metrics
from hf_lenctrl.length_units import LENGTH_UNITS, count_texts


sys.path.append(str(Path(__file__).resolve().parents[2]))  # lab/ is not an installed package

from lab.benchmarks.reading import WORD, words_of  # noqa: E402


def load(folder: str):
    """Load a model, or an adapter over its base, and the tokenizer."""
    model = auto_class(folder).from_pretrained(folder)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def ways(config, named: str) -> list[tuple[str, dict]]:
    """Return the ways to request a length from a model: names, and options of the pipeline."""
    controlled, optional = (getattr(config, name, False) for name in ("length_controlled", "length_optional"))
    choose: dict = {"choose": False} if optional else {}
    bounds = [(name, {"length_constraint": name, **choose}) for name in ("max", "exact")]
    chosen = [(f"{name}, chosen", {"length_constraint": name, "num_beams": 1}) for name in ("max", "exact")]
    free: list[tuple[str, dict]] = [("no length", {"length": None})] if optional or not controlled else []
    free += [("unconstrained", choose)] if controlled else [("named in the prompt", {"length": None, "named": named})]
    return free + bounds + (chosen if optional else [])


def whole(texts: list[str], known: set[str]) -> float:
    """Return the share of the texts whose last word is known, in percent."""
    last = [WORD.findall(text)[-1:] for text in texts]
    return 100 * sum(bool(word) and word[0].lower() in known for word in last) / len(texts)


def write(model, tokenizer, prompts: list[str], lengths: list[int], options: dict, args) -> list[str]:
    """Generate the outputs of a model."""
    options = dict(options)
    named, free = options.pop("named", None), "length" in options
    if named is not None:
        pairs = [(prompt, *named.format(length=n).split("=>")) for prompt, n in zip(prompts, lengths, strict=True)]
        prompts = [new.join(prompt.rsplit(old, 1)) for prompt, old, new in pairs]
    requested = [None] * len(prompts) if options.pop("length", 0) is None else lengths
    extra = {"max_new_tokens": 60} if free else {"length_unit": args.unit}
    how = {"num_beams": args.num_beams, "batch_size": args.batch_size, "do_sample": False, **extra, **options}
    return [row["output"] for row in generate(model, tokenizer, prompts, requested, progress_bar=False, **how)]


def main(argv=None) -> None:
    """Run the evaluation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("test_file")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--unit", default="character", choices=LENGTH_UNITS)
    parser.add_argument("--lengths", type=int, nargs="+", default=[50, 75, 100])
    parser.add_argument("--asked", nargs="+", help="only these ways, by their names in the table")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--num_beams", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=50)
    parser.add_argument(
        "--named_prompt", default="Title:=>Title ({length} characters):", help="old=>new in the prompt"
    )
    parser.add_argument("--words_file", help="more rows whose words are known, such as train.jsonl")
    parser.add_argument("--output_file", help="outputs as JSON lines")
    args = parser.parse_args(argv)
    rows = Rows(args.test_file).values[: args.rows]
    prompts, references = [row["prompt"] for row in rows], [row["completion"] for row in rows]
    files = [args.test_file, *([args.words_file] if args.words_file else [])]
    known = words_of(row[name] for file in files for row in Rows(file).values for name in ("prompt", "completion"))
    print("| model | asked | length | variance | MAE | exact % | over % | ROUGE-1 | whole % |\n" + "|---" * 9 + "|")
    kept = []
    for folder in args.models:
        model, tokenizer = load(folder)
        own = count_texts(tokenizer, references, args.unit, target=True)
        requests = {str(n): [n] * len(rows) for n in args.lengths} | {"reference": own}
        for name, options in ways(model.config, args.named_prompt):
            if args.asked and name not in args.asked:
                continue
            same = None
            for label, lengths in requests.items():
                texts = same or write(model, tokenizer, prompts, lengths, options, args)
                same = texts if name == "no length" else None  # these texts are the same for every length
                figures = length_metrics(count_texts(tokenizer, texts, args.unit, target=True), lengths)
                rouge = rouge_metrics(texts, references)["rouge1_f1"]
                cells = [Path(folder).name, name, label, f"{figures['variance']:.3f}", f"{figures['mae']:.2f}"]
                cells += [f"{100 * figures['exact']:.1f}", f"{100 * figures['over']:.1f}", f"{rouge:.1f}"]
                cells += [f"{whole(texts, known):.1f}"]
                print("| " + " | ".join(cells) + " |", flush=True)
                kept += [{"model": folder, "asked": name, "length": label, "output": text} for text in texts]
    if args.output_file:
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in kept]
        Path(args.output_file).write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
