"""An exported model in ONNX Runtime against PyTorch and CTranslate2: the same texts, size, speed.

    python lab/translation/plain.py models/translate_to_english runs/plain
    python lab/benchmarks/onnx_runtime.py --model models/translate_to_english --base runs/plain \\
        --input_file recipes/translation/german.txt recipes/translation/french.txt --rows 500

The model is exported in float32 and int8. Every text is generated with beam 4 at a length around its natural one,
exact, in PyTorch and in both exports, and compared. Speed is of batches, round by round in turn, in one process.
CTranslate2 knows no length, so that it runs the plain model. Prints JSON lines.
"""

import argparse
import json
import logging
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

import ctranslate2
import torch
from timing import alternate
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_lenctrl.commands.export import export
from hf_lenctrl.engines.onnx_runner import OnnxModel


sys.path.append(str(Path(__file__).resolve().parents[2]))  # lab/ is not an installed package

from lab.translation.to_ctranslate2 import export_ctranslate2  # noqa: E402


def generate(model, tokenizer, texts: list[str], lengths: list[int], batch_size: int, **options) -> list[str]:
    """Texts of exact lengths, in the order of the sources."""
    written = []
    for i in range(0, len(texts), batch_size):
        batch = tokenizer(texts[i : i + batch_size], return_tensors="pt", padding=True)
        ids = model.generate(**batch, length=lengths[i : i + batch_size], **options)
        written += tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return written


def main(argv=None) -> None:
    """Print one JSON line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--input_file", required=True, nargs="+")
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--timed_rows", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    logging.disable(logging.WARNING)
    lines = [line for path in args.input_file for line in Path(path).read_text(encoding="utf-8").splitlines()]
    texts = sorted([line for line in lines if line.strip()][: args.rows], key=len)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    options = {"num_beams": 4, "length_constraint": "exact"}
    with tempfile.TemporaryDirectory() as folder:
        models = {"PyTorch": AutoModelForSeq2SeqLM.from_pretrained(args.model).float().eval()}
        for kind in ("float32", "int8"):
            where = export(args.model, Path(folder, kind), kind)
            models[kind] = OnnxModel(where, threads=args.threads)
            size = sum(path.stat().st_size for path in (where / "onnx").iterdir())
            print(json.dumps({"size_mb": round(size / 1e6, 1), "of": kind}), flush=True)
        # 0.8 to 1.2 times the source's length, which is near the natural one
        lengths = [max(4, round(len(text) * (0.8 + 0.1 * (i % 5)))) for i, text in enumerate(texts)]
        first = None
        for name, model in models.items():
            written = generate(model, tokenizer, texts, lengths, args.batch_size, **options)
            exact = sum(len(text) == length for text, length in zip(written, lengths, strict=True))
            first = first or written
            same = sum(a == b for a, b in zip(written, first, strict=True))
            print(json.dumps({"by": name, "rows": len(texts), "same": same, "exact": exact}), flush=True)
        base = AutoModelForSeq2SeqLM.from_pretrained(args.base).float().eval()
        base.config.normalize_before = base.config.normalize_embedding = False
        timed, at = texts[:: max(1, len(texts) // args.timed_rows)], lengths[:: max(1, len(texts) // args.timed_rows)]
        runs = {
            name: partial(generate, m, tokenizer, timed, at, args.batch_size, **options) for name, m in models.items()
        }
        sources = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(timed)["input_ids"]]
        for kind in ("float32", "int8"):
            export_ctranslate2(base, tokenizer, Path(folder, f"ctranslate2-{kind}"), kind)
            threads = {"intra_threads": args.threads, "compute_type": kind}
            fast = ctranslate2.Translator(str(Path(folder, f"ctranslate2-{kind}")), **threads)
            runs[f"CTranslate2 {kind}"] = partial(
                fast.translate_batch, sources, beam_size=4, max_batch_size=args.batch_size
            )
        for name, seconds in alternate(runs, args.rounds).items():
            median = statistics.median(seconds)
            print(
                json.dumps({"by": name, "seconds": round(median, 2), "texts": len(timed), "all": seconds}), flush=True
            )


if __name__ == "__main__":
    main()
