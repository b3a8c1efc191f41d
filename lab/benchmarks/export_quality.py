"""What a trained model of one length writes by CTranslate2, beside the same model in transformers.

    python lab/benchmarks/export_quality.py --model runs/ldpe --input_file runs/ldpe/test.jsonl --length 50

A JSON line for each: texts that are the same as those of transformers, greedily; length accuracy (unconstrained, in
its unit) and ROUGE against column `target`; the largest difference of a text's mean log-probability per token (teacher
forcing, on transformers' texts). Lengths are measured in the decoded texts.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_lenctrl
from hf_lenctrl.commands.export import export
from hf_lenctrl.commands.rows import load_rows
from hf_lenctrl.evaluation.metrics import length_metrics, rouge_metrics
from hf_lenctrl.length_units import count_texts


@torch.no_grad()
def write(model, tokenizer, texts: list[str], batch_size: int) -> tuple[list[str], list[list[int]], list[float]]:
    """Greedy texts of the frozen model, their ids up to the end, and the mean log-probability of an id of each."""
    written: list[str] = []
    ids, scores = [], []
    for start in range(0, len(texts), batch_size):
        batch = tokenizer(texts[start : start + batch_size], return_tensors="pt", padding=True, truncation=True)
        out = model.generate(**batch, num_beams=1)
        logits = model(**batch, decoder_input_ids=out[:, :-1]).logits.log_softmax(-1)
        chosen = logits.gather(-1, out[:, 1:, None])[..., 0]
        for row, values in zip(out[:, 1:].tolist(), chosen.tolist(), strict=True):
            end = row.index(model.config.eos_token_id) if model.config.eos_token_id in row else len(row)
            ids.append(row[:end])
            scores.append(sum(values[: end + 1]) / len(values[: end + 1]))
        written += tokenizer.batch_decode(out, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return written, ids, scores


def main(argv=None) -> None:
    """Print a JSON line for transformers and one for each quantisation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model that freeze_length can freeze")
    parser.add_argument("--input_file", required=True, help="rows with columns source and target")
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--batch_size", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quantization", nargs="+", default=["float32", "int8"])
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    rows = load_rows(args.input_file)
    rows = rows.select(range(min(args.rows, len(rows))))
    sources, targets = rows["source"][:], rows["target"][:]

    def report(name: str, texts: list[str], **more) -> None:
        lengths = count_texts(tokenizer, texts, unit, target=True)
        figures = length_metrics(lengths, [args.length] * len(texts))
        figures = {key: figures[key] for key in ("mae", "exact", "over")} | rouge_metrics(texts, targets)
        print(json.dumps({"by": name, "rows": len(texts)} | figures | more), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        for quantization in args.quantization:
            where = export(args.model, args.length, Path(folder, quantization), quantization)
            if quantization == args.quantization[0]:
                model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(where), AutoTokenizer.from_pretrained(where)
                unit = model.config.frozen_length_unit
                expected, ids, scores = write(model.eval(), tokenizer, sources, args.batch_size)
                report("transformers", expected)
            translate = hf_lenctrl.FixedLengthTranslator(where, threads=args.threads)
            texts = [out["generated_text"] for out in translate(sources, num_beams=1)]
            tokens = [[translate.target[i] for i in row] for row in ids]
            forced = translate.translator.score_batch(translate._sources(sources), tokens)
            apart = max(
                abs(sum(one.log_probs) / len(one.log_probs) - two) for one, two in zip(forced, scores, strict=True)
            )
            same = sum(one == two for one, two in zip(texts, expected, strict=True)) / len(texts)
            report(quantization, texts, same_text=same, log_probability_apart=apart)


if __name__ == "__main__":
    main()
