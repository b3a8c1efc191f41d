"""Gives a trained translator wider feed-forward layers, to train it further on more data.

    python recipes/translation/widen.py models/translate_to_english --width 2048 --output_dir runs/translation/wider
    lenctrl train translation/everyday_lengths --model_name_or_path runs/translation/wider \\
        --train_file data/everyday/train_lengths.jsonl --validation_file data/everyday/validation.jsonl

The new units have random weights into them and zeros out of them, so the wider model writes what the old one writes,
until it is trained (Chen, Goodfellow, Shlens 2016, Net2Net, keep the function too, by copies of units).
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM

import hf_lenctrl  # noqa: F401, registers the models


@torch.no_grad()
def widen(layer: Any, width: int) -> None:
    """Give the feed-forward network of a layer, `fc1` and `fc2`, `width` hidden units."""
    first, second = layer.fc1, layer.fc2
    had, size = first.weight.shape
    if width < had:
        raise ValueError(f"width must be at least {had}, the width that the layers have, got {width}")
    layer.fc1, layer.fc2 = torch.nn.Linear(size, width), torch.nn.Linear(width, size)
    layer.fc1.weight.normal_(std=first.weight.std().item())
    layer.fc1.bias.fill_(first.bias.mean())
    layer.fc1.weight[:had], layer.fc1.bias[:had] = first.weight, first.bias
    layer.fc2.weight.zero_()
    layer.fc2.weight[:, :had] = second.weight
    layer.fc2.bias.copy_(second.bias)


def main(argv=None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a Marian or BART checkpoint, with or without length control")
    parser.add_argument("--width", type=int, required=True, help="hidden units of each feed-forward network")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    torch.manual_seed(args.seed)
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(args.model, dtype=torch.float32)
    for layer in (*model.get_encoder().layers, *model.get_decoder().layers):
        widen(layer, args.width)
    model.config.encoder_ffn_dim = model.config.decoder_ffn_dim = args.width
    shutil.copytree(args.model, args.output_dir)  # the tokenizer and the length predictor stay
    model.save_pretrained(args.output_dir)
    print(f"{Path(args.output_dir)}: {model.num_parameters() / 1e6:.1f}M parameters")


if __name__ == "__main__":
    main()
