"""The file `lenctrl.json`: the unit table and rules of a model, for engines that cannot import this package."""

import json
from pathlib import Path
from typing import Any

import torch

from ..bounded_generation import token_limit
from ..length_rules import rules_of
from ..length_units import UnitTable
from ..lengths import LONGEST, as_target


RULES = "lenctrl.json"  # this file is in the folder of the exported model
VERSION = 2


def describe(model) -> dict[str, Any]:
    """
    Return the unit table (which counts the units of token ids) and the rules of a length-controlled model as a
    dictionary for JSON. `docs/onnx.md` explains each item.

    Vocabulary entries that behave equally in all states of the table share a class, so there are far fewer
    classes than entries. `None` means infinity, such as the cost of a forbidden entry.

    Args:
        model (`PreTrainedModel`): A model with a filled unit table.

    Raises:
        `ValueError`: if the unit table is not filled yet.
    """
    table, settings = model.unit_table, model.generation_config
    table.require_filled()
    eos = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
    rules = rules_of(table, tuple(eos), "exact")  # "max" needs only the costs, which are the same
    parts = {"units": rules.weights, "next": rules.following, "cost": rules.cost, "gain": rules.gain}  # (S, C) each
    forced = settings.forced_bos_token_id
    return {
        "version": VERSION,
        "unit": table.unit,
        "states": table.states,
        "start": [settings.decoder_start_token_id, *([] if forced is None else [forced])],
        "end": eos,
        "limit": _limit(model),
        "pace": rules.pace,
        "reach": rules.reach,
        "steps": _numbers(rules.steps),
        "most_steps": rules.most_steps,
        "last": _numbers(rules.last),
        "best": _numbers(rules.best),
        "period": rules.period,
        "grows": rules.grows.tolist(),
        "silent": rules.silent.tolist(),
        "classes": [{name: _numbers(part[:, c]) for name, part in parts.items()} for c in range(rules.cost.shape[1])],
        "class_of": rules.column.tolist(),
    }


def _numbers(values: torch.Tensor) -> Any:
    """
    Convert a tensor to nested lists. Numbers whose absolute value is at least `LONGEST` mean infinity, and become
    `None`.
    """
    if values.dim() > 1:
        return [_numbers(row) for row in values]
    return [None if abs(value) >= LONGEST else int(value) for value in values.tolist()]


def _limit(model) -> dict[str, Any]:
    """
    Return a dictionary with `per_unit` and `more`, the slope and the constant of `token_limit`, which is linear in the
    length, and with `positions`, the model's number of decoder positions.
    """
    table = model.unit_table
    many, more = (
        int(token_limit(table, as_target(length, None, None, 1, table.weights.device), 0, None))
        for length in (10**6, 2 * 10**6)
    )
    return {"per_unit": (more - many) / 10**6, "more": 2 * many - more, "positions": model._positions}


def write_rules(model, folder: str | Path) -> None:
    """Write the dictionary `describe(model)` into the file `lenctrl.json` of a folder."""
    Path(folder, RULES).write_text(json.dumps(describe(model), separators=(",", ":")), encoding="utf-8")


def read_table(folder: str | Path) -> UnitTable:
    """
    Read the unit table from the file `lenctrl.json` of a folder, which `write_rules` wrote.

    Raises:
        `ValueError`: if the file has another format version than the one this package reads.
    """
    rules = json.loads(Path(folder, RULES).read_text(encoding="utf-8"))
    if rules["version"] != VERSION:
        raise ValueError(f"{RULES} must be of version {VERSION}, got {rules['version']}; export the model again")
    class_of = torch.tensor(rules["class_of"])
    weights, following = (
        torch.tensor([kind[name] for kind in rules["classes"]])[class_of].T.contiguous() for name in ("units", "next")
    )
    return UnitTable(rules["unit"], weights, following)
