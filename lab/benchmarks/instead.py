"""Isometric translation: length control beside what people do instead, with the seconds for each text that fits.

    python lab/benchmarks/instead.py lab/benchmarks/isometric.yaml \\
        --test_file data/tatoeba/test_tatoeba_de_en.jsonl

A text fits if its characters are within 10 % of the source's; a source of at most 10 characters fits always (the
protocol of IWSLT 2022, https://iwslt.org/2022/isometric). The ways take turns, one batch of sentences each, on the
given threads, so that what slows one slows all. Prints a Markdown table: texts that fit, BLEU, chrF, BLEU on the
sentences whose reference fits, seconds for 1,000 sentences, and milliseconds for each text that fits. `n_best` takes
the first of so many that fits, else the best; `tries` samples again those that do not fit yet, in one batch, and keeps
the last.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
import yaml
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_lenctrl import LengthControlledGenerationPipeline
from hf_lenctrl.commands.rows import Rows
from hf_lenctrl.evaluation.metrics import translation_metrics


SHORT = 10  # characters of a source that every output fits


def fits(source: str, output: str, tolerance: float) -> bool:
    """Whether the output is as long as its source, within `tolerance`."""
    return len(source) <= SHORT or abs(len(output) - len(source)) <= tolerance * len(source)


def load(path: str) -> LengthControlledGenerationPipeline:
    model = AutoModelForSeq2SeqLM.from_pretrained(path, dtype=torch.float32).eval()
    return LengthControlledGenerationPipeline(model=model, tokenizer=AutoTokenizer.from_pretrained(path))


def write(pipe, sources: list[str], way: dict, tolerance: float) -> list[str]:
    """What one way makes of a batch."""
    options = {name: value for name, value in way.items() if name not in ("of", "most", "n_best", "tries")}
    if "length_ratio" in options:
        options["length_ratio"] = tuple(options["length_ratio"])
    if "most" in way:
        options["length"] = [max(1, math.floor(way["most"] * len(source))) for source in sources]
    if "n_best" in way:
        several = pipe(sources, num_return_sequences=way["n_best"], **options)
        chosen = []
        for source, outputs in zip(sources, several, strict=True):
            best = [out["generated_text"] for out in outputs]
            chosen.append(next((text for text in best if fits(source, text, tolerance)), best[0]))
        return chosen
    if "tries" not in way:
        return [out["generated_text"] for out in pipe(sources, **options)]
    options |= {"do_sample": True, "num_beams": 1}
    texts, open_rows = [""] * len(sources), list(range(len(sources)))
    for _ in range(way["tries"]):
        for i, out in zip(open_rows, pipe([sources[i] for i in open_rows], **options), strict=True):
            texts[i] = out["generated_text"]
        open_rows = [i for i in open_rows if not fits(sources[i], texts[i], tolerance)]
        if not open_rows:
            break
    return texts


def main(argv=None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="YAML file with the models and the ways")
    parser.add_argument("--test_file", required=True, help="jsonl with source and target")
    parser.add_argument("--max_rows", type=int, help="only the first so many")
    parser.add_argument("--ways", nargs="+", help="only these")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output_file", help="outputs as JSON lines")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    spec = yaml.safe_load(Path(args.recipe).read_text(encoding="utf-8"))
    rows = Rows(args.test_file).values[: args.max_rows]
    names = args.ways or list(spec["ways"])
    common = {"num_beams": spec["num_beams"], "batch_size": spec["batch_size"], "length_unit": "character"}
    ways = {name: {**common, **spec["ways"][name]} for name in names}
    pipes = {None: load(spec["model"]), "base": load(spec["base_model"])}
    written: dict[str, list[str]] = {name: [] for name in names}
    seconds = dict.fromkeys(names, 0.0)
    for start in range(0, len(rows), spec["batch_size"]):
        sources = [row["source"] for row in rows[start : start + spec["batch_size"]]]
        for name in names[:: 1 if start // spec["batch_size"] % 2 == 0 else -1]:
            begin = time.perf_counter()
            written[name] += write(pipes[ways[name].get("of")], sources, ways[name], spec["tolerance"])
            seconds[name] += time.perf_counter() - begin
    known = [i for i, row in enumerate(rows) if fits(row["source"], row["target"], spec["tolerance"])]
    print(f"{len(known)} of {len(rows)} references fit.\n")
    print("| way | fit % | BLEU | chrF | BLEU where the reference fits | s for 1,000 | ms for each that fits |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        good = sum(fits(row["source"], text, spec["tolerance"]) for row, text in zip(rows, written[name], strict=True))
        quality = translation_metrics(written[name], [row["target"] for row in rows])
        cells = [f"{100 * good / len(rows):.1f}", f"{quality['bleu']:.1f}", f"{quality['chrf']:.1f}"]
        pairs = [(written[name][i], rows[i]["target"]) for i in known]
        cells += [f"{translation_metrics(*zip(*pairs, strict=True))['bleu']:.1f}" if pairs else ""]
        cells += [f"{1000 * seconds[name] / len(rows):.1f}", f"{1000 * seconds[name] / max(good, 1):.1f}"]
        print(f"| {name} | " + " | ".join(cells) + " |")
    if args.output_file:
        outputs = [row | {"outputs": {name: written[name][i] for name in names}} for i, row in enumerate(rows)]
        text = "".join(json.dumps(output, ensure_ascii=False) + "\n" for output in outputs)
        Path(args.output_file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
