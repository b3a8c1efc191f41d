"""What a hard constraint does to the text: length and ROUGE with and without `length_constraint`.

    python lab/benchmarks/bounds.py --model runs/ldpe --input_file runs/ldpe/test.jsonl --lengths 20 40 60

For each length one JSON line unconstrained, for that output cut at the length, for `max` and for `exact`. A model
without length control ignores the length, and is cut or constrained in `--length_unit`.
"""

import argparse
import json
from typing import Any

import torch
import transformers
from transformers import pipeline

import hf_lenctrl
from hf_lenctrl.commands.rows import load_rows
from hf_lenctrl.evaluation.metrics import rouge_metrics


def cut(text: str, length: int, unit: str, tokenizer) -> str:
    """The first `length` units of a text, as truncation would have it."""
    if unit == "word":
        return " ".join(text.split()[:length])
    if unit == "byte":
        return text.encode("utf-8")[:length].decode("utf-8", errors="ignore")
    if unit == "character":
        return text[:length]
    ids = tokenizer(text_target=text, add_special_tokens=False)["input_ids"][:length]
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def main(argv=None) -> None:
    """Print one JSON line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--input_file", required=True, help="rows with columns source and target")
    parser.add_argument("--lengths", type=int, nargs="+", required=True)
    parser.add_argument("--length_unit", help="of a model without length control")
    parser.add_argument("--num_beams", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    transformers.utils.logging.set_verbosity_error()
    rows = load_rows(args.input_file)
    sources, references = rows["source"][:], rows["target"][:]
    write: Any = pipeline("length-controlled-generation", model=args.model, device="cpu")  # type: ignore[call-overload]
    options = {"num_beams": args.num_beams, "batch_size": args.batch_size}
    controlled = getattr(write.model.config, "length_controlled", False)
    unit = write.model.config.length_unit if controlled else args.length_unit
    unconstrained = None
    for length in args.lengths:
        outputs = {}
        if controlled or unconstrained is None:
            unconstrained = write(sources, length_unit=unit, **({"length": length} if controlled else {}), **options)
        free = outputs["unconstrained"] = [(row["generated_text"], row["length"]) for row in unconstrained]
        outputs["cut"] = [(cut(text, length, unit, write.tokenizer), min(n, length)) for text, n in free]
        for constraint in ("max", "exact"):
            constrained = write(sources, length=length, length_unit=unit, length_constraint=constraint, **options)
            outputs[constraint] = [(row["generated_text"], row["length"]) for row in constrained]
        for name, pairs in outputs.items():
            figures = hf_lenctrl.length_metrics([n for _, n in pairs], [length] * len(pairs))
            rouge = rouge_metrics([text for text, _ in pairs], references)
            line = {"unit": unit, "length": length, "output": name, "n": len(pairs)}
            line |= {"over": sum(n > length for _, n in pairs), "missed": sum(n != length for _, n in pairs)}
            line |= {"mae": round(figures["mae"], 3), "rouge1_f1": round(rouge["rouge1_f1"], 2)}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
