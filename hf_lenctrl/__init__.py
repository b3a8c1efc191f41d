"""Length control for Hugging Face language models: generate text of a requested length.

Importing this package registers the models in the Auto classes and `pipeline` of transformers. Each public name is
imported at its first use, from the module that `__init__.pyi` names.
"""

import ast
import importlib
from pathlib import Path

from .registration import load, register


__version__ = "0.1.0"


def _places() -> dict[str, str]:
    """Return a dictionary that maps each public name to the full name of its module, as `__init__.pyi` lists them."""
    names = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    found = (node for node in names.body if isinstance(node, ast.ImportFrom))
    return {alias.name: f"{__name__}.{node.module}" for node in found for alias in node.names}


_PLACES = _places()
__all__ = [*_PLACES, "__version__"]  # noqa: PLE0604


def __getattr__(name: str):
    if name in _PLACES:
        value = load(f"{_PLACES[name]}:{name}")
    elif f"{__name__}.{name}" in _PLACES.values():  # the name is a module, such as `hf_lenctrl.length_units`
        return importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register()
