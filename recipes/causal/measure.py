"""How well causal models keep requested lengths: a Markdown table of several models on the same prompts.

    python recipes/causal/measure.py runs/causal/base/data/test.jsonl runs/causal/base runs/causal/ldpe

The test file has the columns `prompt` and `completion`. A plain model writes without a length, with a prompt that
names the length ({length} in --named_prompt), and with constraints; a length-controlled one without and with them.
"""

import argparse
import json
from pathlib import Path

from transformers import AutoTokenizer

from hf_lenctrl import length_metrics
from hf_lenctrl.commands.generate import generate
from hf_lenctrl.commands.rows import Rows
from hf_lenctrl.conversion import auto_class
from hf_lenctrl.evaluation.metrics import rouge_metrics
from hf_lenctrl.length_units import LENGTH_UNITS, count_texts


def load(folder: str):
    """A model, or an adapter on the model beside it, and the tokenizer."""
    path = Path(folder)
    if (path / "adapter_config.json").exists():
        from peft import PeftModel

        base = path / "base"
        model = PeftModel.from_pretrained(auto_class(base).from_pretrained(base), path).merge_and_unload()
    else:
        model = auto_class(folder).from_pretrained(folder)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def ways(controlled: bool, named: str) -> list[tuple[str, dict]]:
    """How a model is asked: a name, and options of the pipeline."""
    bounds = [("max", {"length_constraint": "max"}), ("exact", {"length_constraint": "exact"})]
    free: list[tuple[str, dict]] = [] if controlled else [("no length", {"length": None})]
    free += [("unconstrained", {})] if controlled else [("named in the prompt", {"length": None, "named": named})]
    return free + bounds


def write(model, tokenizer, prompts: list[str], lengths: list[int], options: dict, args) -> list[str]:
    """What a model writes."""
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
    parser.add_argument("--output_file", help="outputs as JSON lines")
    args = parser.parse_args(argv)
    rows = Rows(args.test_file).values[: args.rows]
    prompts, references = [row["prompt"] for row in rows], [row["completion"] for row in rows]
    print(
        "| model | asked | length | variance | MAE | exact % | over % | ROUGE-1 |\n|---|---|---|---|---|---|---|---|"
    )
    kept = []
    for folder in args.models:
        model, tokenizer = load(folder)
        own = count_texts(tokenizer, references, args.unit, target=True)
        requests = {str(n): [n] * len(rows) for n in args.lengths} | {"reference": own}
        for name, options in ways(getattr(model.config, "length_controlled", False), args.named_prompt):
            if args.asked and name not in args.asked:
                continue
            known = None
            for label, lengths in requests.items():
                texts = known or write(model, tokenizer, prompts, lengths, options, args)
                known = texts if name == "no length" else None  # the same for every length
                figures = length_metrics(count_texts(tokenizer, texts, args.unit, target=True), lengths)
                rouge = rouge_metrics(texts, references)["rouge1_f1"]
                cells = [Path(folder).name, name, label, f"{figures['variance']:.3f}", f"{figures['mae']:.2f}"]
                cells += [f"{100 * figures['exact']:.1f}", f"{100 * figures['over']:.1f}", f"{rouge:.1f}"]
                print("| " + " | ".join(cells) + " |", flush=True)
                kept += [{"model": folder, "asked": name, "length": label, "output": text} for text in texts]
    if args.output_file:
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in kept]
        Path(args.output_file).write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
