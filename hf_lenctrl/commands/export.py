"""Export a model: one length for CTranslate2, or any length for ONNX Runtime.

    lenctrl export runs/ldpe --length 75 --output_dir runs/ldpe-75
    lenctrl export runs/ldpe --length 75 --output_dir runs/ldpe-75-int8 --quantization int8
    lenctrl export runs/ldpe --format onnx --output_dir runs/ldpe-onnx --quantization int8

The first two commands freeze a length. The folder receives a plain transformers model with its tokenizer and a card,
and in `ctranslate2/` the same model for CTranslate2. `hf_lenctrl.FixedLengthTranslator(folder)(texts)` generates with
it. This needs `pip install "hf_lenctrl[fast]"`.

The third command keeps the length as an input, in every unit and encoding. The folder receives `onnx/`,
`lenctrl.json`, the configurations, the tokenizer and a card. `hf_lenctrl.engines.onnx_runner.OnnxModel(folder)`
generates with it. This needs `pip install "hf_lenctrl[onnx]"`.
"""

import shutil
from pathlib import Path

import torch
from huggingface_hub import ModelCard, ModelCardData
from transformers import AutoModelForSeq2SeqLM

import hf_lenctrl

from ..card import write_card
from ..conversion import tokenizer_of
from ..engines.onnx_export import export_onnx, import_onnxruntime
from ..fixed_length.ctranslate2 import FOLDER, import_ctranslate2
from .arguments import CommandParser
from .locking import kept, locked
from .recipes import model_name


USE = """```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model, tokenizer = (kind.from_pretrained(".") for kind in (AutoModelForSeq2SeqLM, AutoTokenizer))
ids = model.generate(**tokenizer("...", return_tensors="pt"), num_beams=4)
print(tokenizer.decode(ids[0], skip_special_tokens=True, clean_up_tokenization_spaces=False))
```"""

ONNX_USE = """from hf_lenctrl.engines.onnx_runner import OnnxModel
from transformers import AutoTokenizer

model, tokenizer = OnnxModel("."), AutoTokenizer.from_pretrained(".")
ids = model.generate(**tokenizer("...", return_tensors="pt"), length=40, length_constraint="exact", num_beams=4)
print(tokenizer.decode(ids[0], skip_special_tokens=True, clean_up_tokenization_spaces=False))"""


@torch.no_grad()
def export_ctranslate2(frozen, tokenizer, output_dir: str | Path, quantization: str | None = None) -> None:
    """
    Export a model that `freeze_length` returned to CTranslate2's format, into a folder that does not exist yet.
    CTranslate2's own converter takes `<pad>` for the last entry of each Marian vocabulary; here the tokenizer's ids
    do not change.
    """
    import_ctranslate2()
    from ctranslate2.converters.transformers import BartLoader, M2M100Loader

    config, settings = frozen.config, frozen.generation_config
    heads = config.encoder_attention_heads, config.decoder_attention_heads
    if heads[0] != heads[1]:
        raise ValueError(f"CTranslate2 wants as many heads in the encoder as in the decoder, got {heads}")
    # all families are BART with norms in other places; the configuration of a frozen model names the places
    loader = M2M100Loader() if config.model_type == "m2m_100" else BartLoader()
    spec = loader.get_model_spec(frozen)
    separate = getattr(tokenizer, "separate_vocabs", False)
    source = _entries(tokenizer, tokenizer.get_vocab(), frozen.get_encoder().embed_tokens.num_embeddings)
    vocabulary = tokenizer.target_encoder if separate else tokenizer.get_vocab()
    target = _entries(tokenizer, vocabulary, frozen.get_output_embeddings().weight.shape[0])
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    ends = settings.eos_token_id
    spec.config.eos_token = target[ends[0] if isinstance(ends, list) else ends]
    spec.config.bos_token = tokenizer.bos_token or spec.config.eos_token
    spec.config.unk_token = tokenizer.unk_token
    spec.config.decoder_start_token = target[settings.decoder_start_token_id]
    spec.validate()
    spec.optimize(quantization=quantization)
    Path(output_dir).mkdir(parents=True)
    spec.save(str(output_dir))


def _entries(tokenizer, vocabulary: dict[str, int], size: int) -> list[str]:
    """Return a name for each row of an embedding, also for rows that the tokenizer does not know."""
    names = [f"madeupword{i}" for i in range(size)]
    special = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    for name, i in (special | vocabulary).items():
        if i < size:
            names[i] = name
    return names


def _copied(folder: Path) -> dict:
    """Copy the fields of the original model's card that also hold for the export, such as the license."""
    known = ModelCard.load(folder / "README.md").data.to_dict() if (folder / "README.md").is_file() else {}
    names = ("language", "license", "license_name", "license_link", "datasets", "pipeline_tag", "base_model")
    return {name: known[name] for name in names if known.get(name) is not None}


def frozen_card(frozen, folder: str | Path) -> ModelCard:
    """Build the card of a frozen model; fields such as the license come from the original model's card in `folder`."""
    config, folder = frozen.config, Path(folder)
    copied = _copied(folder)
    length, unit = config.frozen_length, f"{config.frozen_length_unit}s"
    about = (
        f"A plain {config.model_type} model that writes texts of **{length} {unit}**, and of no other length: the "
        "requested length is part of the positions of its decoder. Made with `hf_lenctrl.freeze_length`; it needs "
        "nothing but transformers. It plans for its length, but no constraint guarantees it."
    )
    copy = "Marian's class leaves positions out of what it saves: copy this folder instead of saving the model again."
    fast = f'`{FOLDER}/` holds it for CTranslate2: `hf_lenctrl.FixedLengthTranslator(".")("...")` loads both.'
    data = ModelCardData(library_name="transformers", tags=["hf_lenctrl", "fixed-length"], **copied)
    title = f"{folder.resolve().name}, {length} {unit}"
    return write_card(data, title, about, USE, copy if config.model_type == "marian" else "", fast)


def onnx_card(model, folder: str | Path) -> ModelCard:
    """Build the card of an exported model; fields such as the license come from the model's card in `folder`."""
    folder = Path(folder)
    use = (
        "`onnx/` holds this model for ONNX Runtime, `lenctrl.json` what a program without `hf_lenctrl` needs to keep "
        f"a constraint.\n\n```python\n{ONNX_USE}\n```"
    )
    about = f"A model that writes texts of a requested length, in {model.config.length_unit}s, exported to ONNX."
    data = ModelCardData(library_name="onnx", tags=["hf_lenctrl", "length-control"], **_copied(folder))
    return write_card(data, folder.resolve().name, about, use)


def export(
    model_folder: str | Path,
    length: int | None,
    output_dir: str | Path,
    quantization: str | None = None,
    format: str = "ctranslate2",
) -> Path:
    """
    Export a model into a folder that does not exist yet. A failure leaves no folder. A killed command leaves one in
    `_run/`; the next command for the same folder removes it.
    """
    output_dir = Path(output_dir)
    if output_dir.exists():
        raise ValueError(f"{output_dir} exists; remove it or name another folder: --output_dir")
    if (length is None) != (format == "onnx"):
        raise ValueError(f"--length is for CTranslate2, of onnx it is an input; got {format=} and {length=}")
    # a missing library is found before a large model is loaded
    import_onnxruntime() if format == "onnx" else import_ctranslate2()
    model = AutoModelForSeq2SeqLM.from_pretrained(model_folder)
    tokenizer = tokenizer_of(model_folder)
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    with locked(output_dir):
        shutil.rmtree(part := kept(output_dir, "part"), ignore_errors=True)
        try:
            if format == "onnx":
                export_onnx(model, tokenizer, part, quantization or "float32")
                onnx_card(model, model_folder).save(part / "README.md")
            else:
                _export_frozen(model, tokenizer, length, part, model_folder, quantization)
            part.rename(output_dir)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return output_dir


def _export_frozen(model, tokenizer, length, part: Path, model_folder, quantization) -> None:
    frozen = hf_lenctrl.freeze_length(model, length, tokenizer=tokenizer)
    if frozen.config.frozen_length is None:
        raise ValueError(f"{model_folder} holds a model with length_encoding='none', which has no length to freeze")
    frozen.save_pretrained(part)
    tokenizer.save_pretrained(part)
    frozen_card(frozen, model_folder).save(part / "README.md")
    export_ctranslate2(frozen, tokenizer, part / FOLDER, quantization)


def make_parser() -> CommandParser:
    """Return the parser of the options."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("model_folder", type=model_name, help="folder or Hub name of a controlled model")
    parser.add_argument("--format", default="ctranslate2", choices=["ctranslate2", "onnx"], help="what runs it")
    parser.add_argument("--length", type=int, help="for CTranslate2: length of every text, in units")
    parser.add_argument("--output_dir", required=True, help="a folder that does not exist")
    parser.add_argument("--quantization", help="of the weights: float32, int8, ...; by default as they are")
    return parser


def main(argv=None) -> None:
    """Run the command: export the model and print the folder."""
    print(export(**vars(make_parser().parse_args(argv))))
