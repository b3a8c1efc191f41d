"""Time to import, to the first text and to build a model, against Transformers alone.

    python lab/benchmarks/startup.py [--rounds 5]

The model is a small Marian of random weights, saved for the purpose: read from disk, its tokenizer with it, and asked
for one text, each in a process of its own. What does not have to do with length control, Python and torch, is in both
times. Models are built from a configuration, with random weights, in the shapes of BART-base and of Marian's models.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from timing import Row, alternate, marian_shape, ratio_row, row_of, sides
from transformers import BartForConditionalGeneration, MarianConfig, MarianMTModel

import hf_lenctrl


IMPORTS = {
    "stock": "from transformers import AutoTokenizer, BartForConditionalGeneration, MarianMTModel, Pipeline",
    "controlled": "from hf_lenctrl import LenCtrlBartForConditionalGeneration, LenCtrlMarianMTModel",
}
FIRST_TEXTS = {
    "stock": """
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained("stock"), AutoTokenizer.from_pretrained("stock")
ids = model.generate(**tokenizer("a small editor", return_tensors="pt"), num_beams=4, max_length=52)
tokenizer.batch_decode(ids, skip_special_tokens=True)
""",
    "controlled": """
import hf_lenctrl
from transformers import pipeline
write = pipeline("length-controlled-generation", model="controlled")
write("a small editor", length=10, num_beams=4, max_length=52)
""",
}
# facebook/bart-base and Helsinki-NLP/opus-mt-*
BART_BASE = {"vocab_size": 50265, "max_position_embeddings": 1024, **sides(6, 768)}
MARIAN_BASE = marian_shape("6x512", 58101)
SHAPES = {
    "BART-base": (BART_BASE, BartForConditionalGeneration, hf_lenctrl.LenCtrlBartForConditionalGeneration),
    "Marian-base": (MARIAN_BASE, MarianMTModel, hf_lenctrl.LenCtrlMarianMTModel),
}
SENTENCES = [f"a small editor for {text}" for text in ("plain text files", "pictures of all kinds", "long lists")]


def save(folder: Path, shape: str) -> None:
    """A stock model and a controlled one, with a tokenizer."""
    tokenizer = hf_lenctrl.train_marian_tokenizer(
        SENTENCES, SENTENCES, folder / "tokenizer", vocab_size=60, target_vocabulary="shared"
    )
    fields = marian_shape(shape, len(tokenizer))
    for name in ("pad", "eos", "unk"):
        fields[f"{name}_token_id"] = getattr(tokenizer, f"{name}_token_id")
    fields |= {"decoder_start_token_id": fields["pad_token_id"], "forced_eos_token_id": fields["eos_token_id"]}
    torch.manual_seed(0)
    controlled = hf_lenctrl.LenCtrlMarianMTModel(
        hf_lenctrl.LenCtrlMarianConfig(**fields, length_encoding="ldpe", length_unit="character")
    )
    controlled.set_unit_table(tokenizer)
    for name, model in (("stock", MarianMTModel(MarianConfig(**fields))), ("controlled", controlled)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def construction(rounds: int) -> Iterator[Row]:
    """Time to build a model, which is to be built once."""
    for name, (fields, stock, controlled) in SHAPES.items():
        builders = {
            "stock": lambda fields=fields, stock=stock: stock(stock.config_class(**fields)),
            "controlled": lambda fields=fields, head=controlled: head(head.config_class(**fields)),
        }
        seconds = alternate(builders, rounds)
        yield ratio_row(f"build {name}", seconds["controlled"], seconds["stock"], "time, controlled / stock")


def rows(rounds: int, shape: str) -> Iterator[Row]:
    """For the suite."""
    yield from construction(rounds)
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), shape)
        for name, scripts in (("import", IMPORTS), ("start to first text", FIRST_TEXTS)):

            def runner(script: str):
                return lambda: subprocess.run(
                    [sys.executable, "-c", script], cwd=folder, check=True, capture_output=True
                )

            seconds = alternate({side: runner(script) for side, script in scripts.items()}, rounds)
            yield ratio_row(name, seconds["controlled"], seconds["stock"], "time, controlled / stock")
            yield row_of(f"{name}, controlled", seconds["controlled"], "seconds")


def main(argv=None) -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    for row in rows(parser.parse_args(argv).rounds, "2x128"):
        print(f"{row.name}: {row.ratio} {row.what} ({row.spread[0]} to {row.spread[1]})", flush=True)


if __name__ == "__main__":
    main()
