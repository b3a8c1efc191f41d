"""A translator with length control beside the plain model it comes from: quality and lengths at several lengths.

    python lab/benchmarks/translation.py --model runs/controlled --base_model runs/base --test_file test_de.jsonl \
        --output_dir out

Lengths are the reference's, and the base model's own times 0.8, 0.9, 1, 1.1 and 1.2; each is written unconstrained and
with both constraints. The base model's text cut at the length is the comparison. The outputs are written to the
folder, a file for each row of the table, for `lab/benchmarks/reading.py`; a file that is there is not written again.
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_lenctrl import LengthControlledGenerationPipeline, length_metrics
from hf_lenctrl.commands.rows import Rows
from hf_lenctrl.evaluation.metrics import translation_metrics


RATIOS = (0.8, 0.9, 1.0, 1.1, 1.2)  # of the base model's own length


def write(pipe, rows: list[dict], length, path: Path, **options) -> list[dict]:
    """Outputs of a model, from the file where it is there."""
    if not path.is_file():
        outputs = pipe([row["source"] for row in rows], length=length, **options)
        save(rows, [o["generated_text"] for o in outputs], [o["requested_length"] for o in outputs], path)
    return Rows(str(path)).values


def save(rows: list[dict], texts: list[str], requested: list, path: Path) -> list[dict]:
    lines = [
        {"source": row["source"], "reference": row["target"], "requested": length, "output": text, "length": len(text)}
        for row, text, length in zip(rows, texts, requested, strict=True)
    ]
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    part.rename(path)
    return lines


def report(name: str, rows: list[dict]) -> None:
    quality = translation_metrics([row["output"] for row in rows], [row["reference"] for row in rows])
    cells = [f"{quality['bleu']:.1f}", f"{quality['chrf']:.1f}"]
    # the plain model was asked for no length: the reference's is what it should have had
    requested = [len(row["reference"]) if row["requested"] is None else row["requested"] for row in rows]
    figures = length_metrics([row["length"] for row in rows], requested)
    cells += [f"{figures['mae']:.2f}", f"{100 * figures['exact']:.1f}", f"{100 * figures['over']:.1f}"]
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base_model", required=True, help="plain model")
    parser.add_argument("--model", help="the length-controlled one; only the base is measured without it")
    parser.add_argument("--test_file", required=True, help="jsonl with source and target")
    parser.add_argument("--max_rows", type=int, help="only the first so many")
    parser.add_argument("--num_beams", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=50)
    parser.add_argument("--output_dir", required=True)
    args = parser.parse_args(argv)
    out = Path(args.output_dir)
    out.mkdir(parents=True, exist_ok=True)
    rows = Rows(args.test_file).values
    rows = rows[: args.max_rows]
    options = {"num_beams": args.num_beams, "batch_size": args.batch_size}
    print("| outputs | BLEU | chrF | MAE | exact % | over % |\n|---|---|---|---|---|---|", flush=True)

    def load(path):
        model = AutoModelForSeq2SeqLM.from_pretrained(path, dtype=torch.float32)
        return LengthControlledGenerationPipeline(model=model.eval(), tokenizer=AutoTokenizer.from_pretrained(path))

    plain = write(load(args.base_model), rows, None, out / "base.jsonl", length_unit="character", **options)
    report("base", plain)
    if args.model is None:
        return
    pipe, own = load(args.model), [row["length"] for row in plain]
    ways: dict = {"reference": [len(row["target"]) for row in rows]}
    ways |= {f"own_{ratio}": [max(1, round(ratio * n)) for n in own] for ratio in RATIOS}
    if pipe.model.config.length_predictor is not None:
        ways["predicted"] = "predict"
    for way, length in ways.items():
        for constraint in (None, "max", "exact"):
            path = out / f"{way}_{constraint or 'unconstrained'}.jsonl"
            written = write(pipe, rows, length, path, length_constraint=constraint, **options)
            report(f"{way}, {constraint or 'unconstrained'}", written)
        requested = [row["requested"] for row in written]
        cut = [row["output"][:n] for row, n in zip(plain, requested, strict=True)]
        report(f"{way}, base cut", save(rows, cut, requested, out / f"{way}_cut.jsonl"))


if __name__ == "__main__":
    main()
