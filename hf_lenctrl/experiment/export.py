"""Freeze a length into a model, and export it for CTranslate2.

    python recipes/export.py runs/ldpe --length 75 --output_dir runs/ldpe-75
    python recipes/export.py runs/ldpe --length 75 --output_dir runs/ldpe-75-int8 --quantization int8

The folder receives a plain transformers model with its tokenizer and a card, and in `ctranslate2/` the same model for
CTranslate2. `hf_lenctrl.FixedLengthTranslator(folder)(texts)` writes with it. Needs `pip install 'hf_lenctrl[fast]'`.
"""

import argparse
import tempfile
from pathlib import Path

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_lenctrl

from ..fixed_length import FOLDER, check_quantization, export_ctranslate2
from ..freezing import frozen_card
from .checkpoints import check_writable
from .parser import CommandParser


def export(model_folder: str | Path, length: int, output_dir: str | Path, quantization: str | None = None) -> Path:
    """
    Freeze and export; nothing is left behind where it fails.

    Args:
        model_folder (`str` or `Path`): Folder or Hub name of a length-controlled model and its tokenizer.
        length (`int`): Wanted units.
        output_dir (`str` or `Path`): A folder that does not exist.
        quantization (`str`, *optional*): Of CTranslate2's weights, `"float32"`, `"int8"`, ...

    Returns:
        `Path` of the folder.

    Raises:
        `ImportError`: without CTranslate2.
        `ValueError`: for a folder that exists, a quantisation that this CPU lacks, a model that tells no length or
            that cannot be frozen, see `hf_lenctrl.freeze_length`.
    """
    output_dir = Path(output_dir)
    if output_dir.exists():
        raise ValueError(f"{output_dir} exists; remove it or name another folder: --output_dir")
    check_quantization(quantization)  # before a large model is loaded
    model = AutoModelForSeq2SeqLM.from_pretrained(model_folder)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    frozen = hf_lenctrl.freeze_length(model, length, tokenizer=tokenizer)
    if frozen.config.frozen_length is None:
        raise ValueError(f"{model_folder} holds a model with length_encoding='none', which has no length to freeze")
    check_writable(output_dir.parent)
    with tempfile.TemporaryDirectory(dir=output_dir.parent) as folder:
        part = Path(folder, output_dir.name)
        frozen.save_pretrained(part)
        tokenizer.save_pretrained(part)
        frozen_card(frozen, model_folder).save(part / "README.md")
        export_ctranslate2(frozen, tokenizer, part / FOLDER, quantization)
        part.rename(output_dir)
    return output_dir


def main(argv=None) -> None:
    """Run the recipe."""
    parser = CommandParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_folder", help="folder or Hub name of a length-controlled model and its tokenizer")
    parser.add_argument("--length", required=True, type=int, help="units that every text shall have")
    parser.add_argument("--output_dir", required=True, help="a folder that does not exist")
    parser.add_argument("--quantization", help="of CTranslate2's weights: float32, int8, ...; by default as they are")
    args = parser.parse_args(argv)
    print(export(args.model_folder, args.length, args.output_dir, args.quantization))


if __name__ == "__main__":
    main()
