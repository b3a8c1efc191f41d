"""Identities of files by their content, not by their names, so that a resumed command can compare them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.utils.sha import sha_fileobj
from transformers import PreTrainedConfig

from ..training.upload import MODEL, uploaded
from .lenctrl import POINT


TOKENIZER = ("tokenizer.json", "vocab.json", "vocab.txt", "target_vocab.json", "*.spm", "*.model")
WEIGHTS = tuple(name for name in MODEL if not name.endswith(".py")) + ("*.safetensors", "*_model*.bin")
ADAPTER = "adapter_config.json"


def identity(name: str | Path, patterns: tuple[str, ...] = WEIGHTS) -> dict[str, Any] | str:
    """
    Return a value that identifies the content of a file, a folder or a model. The value changes if the content
    changes, and has no local path. But if `name` is not a local path and the commit on
    the Hub is unknown, the value is only `name`.

    Args:
        name (`str` or `Path`): A file, a folder, or a model on the Hub.
        patterns (`tuple[str, ...]`): Patterns of file names, as in `training.upload.uploaded`. In a folder, only files
            that match a pattern are identified; by default the files of a model, its tokenizer and its predictor. The
            base model of an adapter is identified too.

    Returns:
        `dict` or `str`: `{"size": ..., "sha256": ...}` for a file, `{"<file>": {"size": ...}, ...}` for a folder, and
            a text with the name and the commit for a model on the Hub.
    """
    path = Path(name)
    if path.is_dir():
        found: dict[str, Any] = {file: identity(path / file) for file in uploaded(path, patterns)}
        adapter = json.loads((path / ADAPTER).read_text(encoding="utf-8")) if ADAPTER in found else {}
        base = adapter.get("base_model_name_or_path")
        below = {} if base is None else identity(base, patterns)
        return found | ({"base": below} if isinstance(below, str) else {f"base/{k}": v for k, v in below.items()})
    if path.is_file():
        with path.open("rb") as file:
            return {"size": path.stat().st_size, "sha256": sha_fileobj(file).hex()}
    try:
        commit = PreTrainedConfig.get_config_dict(str(name))[0].get("_commit_hash")
    except (OSError, ValueError):
        # the repository has no configuration; a wrong name raises an error when the model is loaded
        commit = None
    return str(name) if commit is None else f"{name} at {commit}"


def short(value: Any, other: Any = None) -> str:
    """
    Return the value of an option as a short text for a message. `value` may be an identity (see `identity`). A file is
    shown by its hash. A folder is shown as a list of its files; if `other` is an identity of the folder at another
    time, only files that differ between both are listed.
    """
    if not isinstance(value, dict):
        return str(value)
    if "sha256" in value:
        return f"sha256 {value['sha256'][:8]}"
    others = other if isinstance(other, dict) else {}
    return ", ".join(f"{name} {short(file)}" for name, file in value.items() if file != others.get(name)) or "no file"


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return a text with one line for each option in `now` whose value differs from its value in `before`."""
    pairs = {name: (before.get(name), value) for name, value in now.items()}
    return "".join(
        f"{POINT}{name}={short(old, new)}, now {short(new, old)}" for name, (old, new) in pairs.items() if old != new
    )
