"""Export a model for ONNX Runtime, with the length as an input.

    lenctrl export runs/ldpe --output_dir runs/ldpe-onnx
    lenctrl export runs/ldpe --output_dir runs/ldpe-onnx --quantization int8

The exported model accepts any length. The command exports models of every length unit and length encoding. The output
folder has `onnx/`, `lenctrl.json`, the configurations, the tokenizer and a card. To generate with the exported model,
use `hf_lenctrl.engines.onnx_runner.OnnxModel(folder)`. The command needs `pip install "hf_lenctrl[onnx]"`.
"""

import shutil
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

import hf_lenctrl  # noqa: F401, registers the models

from ..card import write_card
from ..conversion import auto_class, tokenizer_of
from ..engines.onnx_export import export_onnx, import_onnxruntime
from .arguments import CommandParser
from .locking import kept, locked
from .recipes import model_name


USE = """from hf_lenctrl.engines.onnx_runner import OnnxModel
from transformers import AutoTokenizer

model, tokenizer = OnnxModel("."), AutoTokenizer.from_pretrained(".")
ids = model.generate(**tokenizer("...", return_tensors="pt"), length=40, length_constraint="exact", num_beams=4)
print(tokenizer.decode(ids[0], skip_special_tokens=True, clean_up_tokenization_spaces=False))"""


def _copied(folder: Path) -> dict:
    """Return the fields of the model card in `folder` that are also true for the exported model."""
    known = ModelCard.load(folder / "README.md").data.to_dict() if (folder / "README.md").is_file() else {}
    names = ("language", "license", "license_name", "license_link", "datasets", "pipeline_tag", "base_model")
    return {name: known[name] for name in names if known.get(name) is not None}


def onnx_card(model, folder: str | Path) -> ModelCard:
    """Build the card of an exported model, with fields such as the license of the original in `folder`."""
    folder = Path(folder)
    use = (
        "`onnx/` holds this model for ONNX Runtime, `lenctrl.json` what a program without `hf_lenctrl` needs to keep "
        f"a constraint.\n\n```python\n{USE}\n```"
    )
    about = f"A model that writes texts of a requested length, in {model.config.length_unit}s, exported to ONNX."
    data = ModelCardData(library_name="onnx", tags=["hf_lenctrl", "length-control"], **_copied(folder))
    return write_card(data, folder.resolve().name, about, use)


def export(model_folder: str | Path, output_dir: str | Path, quantization: str | None = None) -> Path:
    """
    Export a model into a new folder, and return the folder. `quantization` is the type of the weights, `"float32"`
    (the default) or `"int8"`. Raise `ValueError` if the folder exists. If the export fails, no folder remains. If the
    process is killed, an incomplete export remains in the folder `_run/` next to `output_dir`. The next command with
    the same `output_dir` removes this export.
    """
    output_dir = Path(output_dir)
    if output_dir.exists():
        raise ValueError(f"{output_dir} exists; remove it or name another folder: --output_dir")
    import_onnxruntime()  # a missing library raises an error before a large model is loaded
    model = auto_class(model_folder).from_pretrained(model_folder)
    tokenizer = tokenizer_of(model_folder)
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    with locked(output_dir):
        shutil.rmtree(part := kept(output_dir, "part"), ignore_errors=True)
        try:
            export_onnx(model, tokenizer, part, quantization or "float32")
            onnx_card(model, model_folder).save(part / "README.md")
            part.rename(output_dir)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return output_dir


def make_parser() -> CommandParser:
    """Return the parser of the options."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("model_folder", type=model_name, help="folder or Hub name of a length-controlled model")
    parser.add_argument("--output_dir", required=True, help="a new folder")
    parser.add_argument("--quantization", help="type of the weights: float32, the default, or int8")
    return parser


def main(argv=None) -> None:
    """Run the command: export the model and print the folder."""
    print(export(**vars(make_parser().parse_args(argv))))
