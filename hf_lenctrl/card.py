"""
Functions that write model cards: their common layout, and the card of a model that is pushed without a training run.
"""

import json
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

from .lengths import plural


TEXT = "Replace this sentence with a text of your own."
_STUB = "This model card has been automatically generated"  # text of `push_to_hub` of transformers
_METHODS = {
    "ldpe": "LDPE, the remaining length as sinusoids (Takase & Okazaki 2019, eq. 3-4)",
    "lrpe": "LRPE, progress and length as a ratio of sinusoids (Takase & Okazaki 2019, eq. 5-6)",
    "pre": "PRE, the share of the length that is written (Botcazou et al. 2026)",
    "pre_noise": "PRE, the share of the length that is written, with noise in training (Botcazou et al. 2026)",
    "learned": "an embedding of the remaining length (Kikuchi et al. 2016)",
    "scale": "the length, multiplied into token embeddings (Liu et al. 2018)",
}
_PIPELINE = """import hf_lenctrl  # registers the models and the pipeline
from transformers import pipeline

write = pipeline("length-controlled-generation", model={name})
text = {text!r}
out = write(text, length={length}, length_unit="{unit}", length_constraint="exact", num_beams=4)
print(out["length"], out["generated_text"])"""
_PREDICTOR = """from hf_lenctrl import load_predictor

predictor, tokenizer = load_predictor({name})
print(predictor.predict_lengths([{text!r}], tokenizer))"""


def methods_of(config) -> list[str]:
    """Return a description of each method by which the model of a configuration gets the length."""
    encoding, tokens = getattr(config, "length_encoding", "none"), getattr(config, "length_tokens", None)
    # An architecture from outside the package may have another encoding.
    found = [_METHODS.get(encoding, encoding)] if encoding != "none" else []
    if getattr(config, "encoder_length_embedding", False):
        found.append("a length embedding in the encoder (Nguyen et al. 2023, eq. 16-17)")
    if getattr(config, "length_head", False):
        found.append("a length head in cross-attention (Nguyen et al. 2023, eq. 20-24)")
    if tokens is not None:
        found.append(f"a token before the source for the length's class ({tokens['kind']})")
    return found


def kind_of(config) -> str:
    """
    Return the architecture of a model for its card, such as `"bart"`. For a wrapped causal model, add "language" to
    the architecture of the inner model, such as `"llama language"`.
    """
    inner = getattr(config, "text_config", None)
    kind = config.model_type.removeprefix("lenctrl_") if inner is None else inner.model_type
    return kind if config.is_encoder_decoder or inner is None else f"{kind} language"


def usage(config, name: str, *, text: str = TEXT, length: int | None = None, revision: str | None = None) -> str:
    """
    Return the usage section of a model card in Markdown: how to install the package, and how to run the model.

    Args:
        config (`PreTrainedConfig`), name (`str`): The model's configuration and name. The name is either `"user/name"`
            on the Hub, or a local folder.
        text (`str`, *optional*): Input of the example; by default a placeholder.
        revision (`str`, *optional*): Branch of the model on the Hub, if it is not `main`.
        length (`int`, *optional*): Requested length; by default the median of the training lengths, or a typical
            length if the median is unknown.
    """
    unit, predictor = getattr(config, "length_unit", "character"), config.model_type == "length_predictor"
    trained = getattr(config, "trained_lengths", None)  # it has the median of the training lengths
    code = (_PREDICTOR if predictor else _PIPELINE).format(
        name=json.dumps(name, ensure_ascii=False) + (f", revision={revision!r}" if revision else ""),
        text=text,
        length=length or (trained or {}).get("50%") or {"word": 10, "token": 20}.get(unit, 40),
        unit=unit,
    )
    where = "" if "/" in name else f"Run this in the folder that holds `{name}`:\n\n"
    install = "In a clone of the repository of `hf_lenctrl`:\n\n```bash\npip install .\n```"
    return f"{install}\n\n{where}```python\n{code}\n```"


def write_card(data: ModelCardData, title: str, about: str, use: str, *sections: str) -> ModelCard:
    """Build a model card from metadata, title, description, usage and more sections in Markdown."""
    parts = [f"---\n{data}\n---", f"# {title}", about, f"## Use\n\n{use}", *filter(None, sections)]
    return ModelCard("\n\n".join(parts) + "\n")


def minimal_card(model, name: str, revision: str | None = None, *sections: str) -> ModelCard:
    """
    Return the minimal card of a model or a `LengthPredictor`: a description and the usage, without measurements.

    Args:
        name (`str`), revision (`str`, *optional*): See `usage`.
        sections (`str`): More sections of the card, in Markdown.
    """
    config, title = model.config, name.rpartition("/")[2]
    methods, unit = methods_of(config), getattr(config, "length_unit", "character")
    size = f"{model.num_parameters() / 1e6:.1f}M parameters"
    if config.model_type == "length_predictor":
        about = f"Predicts the length of an output in {plural(unit)} from its source ({size}). Made with `hf_lenctrl`."
    elif methods:
        about = (
            f"A {kind_of(config)} model ({size}) that writes texts of a requested length, in {plural(unit)}. Made "
            f"with `hf_lenctrl`. How it is given the length:\n\n{bullets(methods)}"
        )
    else:
        about = f"A {kind_of(config)} model ({size}) without length control."
    tags = ["hf_lenctrl", *(["length-control"] if methods else [])]
    data = ModelCardData(library_name="transformers", tags=tags, model_name=title)
    return write_card(data, title, about, usage(config, name, revision=revision), *sections)


def bullets(lines) -> str:
    """Return a Markdown list with a bullet for each of the `lines`."""
    return "\n".join(f"- {line}" for line in lines)


class CardOnPush:
    """Mixin whose `push_to_hub` writes `minimal_card` in place of the empty card of transformers."""

    def _upload_modified_files(self, working_dir, repo_id, *args, revision=None, **kwargs):
        path = Path(working_dir, "README.md")
        if not path.is_file() or _STUB in (stub := path.read_text(encoding="utf-8")):
            card = minimal_card(self, repo_id, revision)
            if path.is_file():  # the stub of `push_to_hub` has the caller's tags
                card.data.tags += [tag for tag in ModelCard(stub).data.tags or [] if tag not in card.data.tags]
            card.save(path)
        upload = super()._upload_modified_files  # type: ignore[misc]
        return upload(working_dir, repo_id, *args, revision=revision, **kwargs)
