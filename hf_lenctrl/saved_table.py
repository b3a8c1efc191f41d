"""
Functions that save a unit table next to its tokenizer and read it again, because building a large table takes seconds.
"""

import hashlib
import json
import unicodedata
from pathlib import Path

import regex
import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from safetensors import safe_open
from safetensors.torch import save_file
from transformers.utils import logging

from .unit_vocabulary import columns_of, entries_of


try:
    from wcwidth import __version__ as columns_version
except ImportError:
    columns_version = ""

logger = logging.get_logger(__name__)
_SOURCES = ("character_costs.py", "length_units.py", "text_units.py", "unit_vocabulary.py")  # this code builds a table


def read_table(tokenizer, unit: str) -> tuple[torch.Tensor, torch.Tensor] | None:
    """
    Read the unit table that `write_table` saved next to a tokenizer. Return two tensors with a row for each state and
    a column for each vocabulary entry: the weights, and the next states. If there is no file, return `None`. If the
    file was made from a different tokenizer or package version, log a warning and return `None`.
    """
    file = _file_of(tokenizer, unit)
    if file is None or not file.is_file():
        return None
    with safe_open(file, "pt") as saved:
        if (saved.metadata() or {}).get("made_from") == _made_from(tokenizer, unit):
            column = saved.get_tensor("column").long()
            return tuple(saved.get_tensor(name).index_select(1, column) for name in ("weights", "next_state"))
    logger.warning(
        f"{file} was made from another tokenizer or with another version of a package, so the table is built again; "
        f"call hf_lenctrl.save_unit_table(tokenizer, {unit!r}) to replace it"
    )
    return None


def write_table(tokenizer, unit: str, weights: torch.Tensor, next_state: torch.Tensor) -> Path:
    """
    Save a unit table next to its tokenizer, and return the path of the file. `weights` and `next_state` have a row for
    each state and a column for each vocabulary entry. Equal columns are saved once. Raise `ValueError` if the
    tokenizer was not loaded from a folder or from the Hub.
    """
    file = _file_of(tokenizer, unit)
    if file is None:
        raise ValueError(
            f"a table is saved with its tokenizer, got name_or_path={tokenizer.name_or_path!r}, which is not a folder"
            "; call tokenizer.save_pretrained(folder) and load the tokenizer from there"
        )
    both = torch.cat([weights, next_state.to(weights.dtype)]).T.contiguous()  # (V, 2 S)
    column, entries = columns_of(map(bytes, both.numpy()))
    parts = {"weights": weights[:, entries].contiguous(), "next_state": next_state[:, entries].contiguous()}
    parts["column"] = torch.tensor(column, dtype=torch.int32)
    file.parent.mkdir(exist_ok=True)
    unfinished = file.with_suffix(".part")
    save_file(parts, unfinished, {"made_from": _made_from(tokenizer, unit)})
    unfinished.replace(file)  # so that no process reads half a file
    return file


def _file_of(tokenizer, unit: str) -> Path | None:
    """
    Return the path of a unit's table, which may not exist; `None` if the tokenizer has no folder. It is in a
    subfolder, because vLLM loads every safetensors file in a model's folder as weights.
    """
    name = str(getattr(tokenizer, "name_or_path", None) or "")
    folder = Path(name) if name and Path(name).is_dir() else None
    if folder is None:
        try:
            cached = try_to_load_from_cache(name, "tokenizer_config.json")
        except HFValidationError:
            return None
        folder = Path(cached).parent if isinstance(cached, str) else None
    return None if folder is None else folder / "unit_tables" / f"{unit}.safetensors"


def _made_from(tokenizer, unit: str) -> str:
    """Return a hash of all that determines a table: tokenizer, unit, package versions and code."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        size, special = entries_of(tokenizer)
        pieces, facts = tokenizer.convert_ids_to_tokens(list(range(size))), [size, sorted(special)]
    else:
        pieces = map(backend.id_to_token, range(entries_of(tokenizer)[0]))  # the ids may have gaps
        facts = [len(tokenizer), repr(tokenizer.added_tokens_decoder), repr(backend.decoder)]
    facts += [type(tokenizer).__name__, unit, unicodedata.unidata_version, regex.__version__, columns_version]
    known = hashlib.sha256(json.dumps(facts).encode())
    known.update("\n".join(f"{piece}" for piece in pieces).encode("utf-8", "surrogatepass"))
    for source in _SOURCES:
        known.update(Path(__file__).with_name(source).read_bytes())
    return known.hexdigest()
