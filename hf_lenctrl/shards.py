"""A check of the file names in an index of sharded weights."""

import json
from pathlib import Path, PureWindowsPath


def check_shards(name, subfolder: str | None = None) -> None:
    """
    Raise `OSError` if an index of weights in a model's folder names a file outside the folder, because transformers
    would read that file. A name on the Hub always passes, because the Hub has no file outside the repository.
    """
    if not name:
        return
    for path in Path(name, subfolder or "").glob("*.index*.json"):  # a variant's is model.safetensors.index.fp16.json
        index = json.loads(path.read_text(encoding="utf-8"))
        # another program's file may have such a name
        weights: dict[str, str] = index.get("weight_map", {}) if isinstance(index, dict) else {}
        for shard in sorted(set(weights.values())):
            inside = PureWindowsPath(shard)  # splits at both kinds of slashes
            if inside.anchor or ".." in inside.parts:
                raise OSError(f"{path} names {shard!r}, which lies outside its folder; do not load this model")
