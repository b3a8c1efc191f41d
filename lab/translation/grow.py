"""Give a trained plain translator a new vocabulary and a deeper encoder, to train it further.

    python lab/translation/grow.py runs/translation/base --rows data/everyday/train.jsonl \\
        --output_dir runs/translation/grown
    lenctrl train translation/everyday --train_file data/everyday/train.jsonl \\
        --validation_file data/everyday/validation.jsonl

The vocabulary is trained on the rows. An entry that the old one has too keeps its embedding; any other begins with the
mean of the old embeddings of its parts. Each new encoder layer begins as a copy of the layer before it.
"""

import argparse
import json
import re
from copy import deepcopy
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_lenctrl.training.tokenizer import train_marian_tokenizer


BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@torch.no_grad()
def with_vocabulary(model: Any, old, new) -> None:
    """Give `model` the vocabulary of the tokenizer `new`, its weights from those of the tokenizer `old`."""
    before = model.get_input_embeddings().weight.clone()  # (V_old, d)
    after = torch.empty(len(new), before.shape[1]).normal_(std=before.std().item())  # (V_new, d), random for bytes
    known = old.get_vocab()
    for entry, place in new.get_vocab().items():
        if entry in known:
            after[place] = before[known[entry]]
        elif not BYTE.fullmatch(entry):
            parts = old.spm_source.encode(entry, out_type=str)
            after[place] = before[old.convert_tokens_to_ids(parts)].mean(0)
    model.resize_token_embeddings(len(new), mean_resizing=False)
    model.get_input_embeddings().weight.copy_(after)
    model.tie_weights()


def with_layers(model: Any, layers: int) -> None:
    """Give the encoder `layers` layers; the copies are spread over its depth."""
    encoder = model.get_encoder()
    had = len(encoder.layers)
    encoder.layers = torch.nn.ModuleList(deepcopy(encoder.layers[place * had // layers]) for place in range(layers))
    model.config.encoder_layers = model.config.num_hidden_layers = layers


def main(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    with open(args.rows, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    sources, targets = ([row[side] for row in rows] for side in ("source", "target"))
    model, old = AutoModelForSeq2SeqLM.from_pretrained(args.model).float(), AutoTokenizer.from_pretrained(args.model)
    new = train_marian_tokenizer(
        sources, targets, args.output_dir, vocab_size=len(old), target_vocabulary="shared", byte_fallback=True
    )
    kept = len(old.get_vocab().keys() & new.get_vocab().keys())
    with_vocabulary(model, old, new)
    with_layers(model, args.layers)
    model.save_pretrained(args.output_dir)
    print(f"{args.output_dir}: {model.num_parameters() / 1e6:.1f}M parameters, {kept:,} of {len(new):,} entries kept")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a Marian checkpoint with one vocabulary")
    parser.add_argument("--rows", required=True, help="training rows: JSON Lines with source and target")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--layers", type=int, default=6, help="of the encoder")
    parser.add_argument("--seed", type=int, default=1)
    main(parser.parse_args())
