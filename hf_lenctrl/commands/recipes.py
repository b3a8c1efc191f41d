"""
Functions that find the YAML recipes of the package by name, and check that a model's folder exists and that its index
of weights names no file outside the folder.
"""

import difflib
from collections.abc import Iterable
from pathlib import Path

from ..shards import check_shards


PACKAGE = Path(__file__).resolve().parents[1]
# in a wheel the recipes are inside the package; in a clone they are next to the package
FOLDER = PACKAGE / "recipes" if (PACKAGE / "recipes").is_dir() else PACKAGE.parent / "recipes"


def did_you_mean(word: object, words: Iterable) -> str:
    """Return a suggestion, such as `" (did you mean layers?)"`; an empty string if no word is similar."""
    near = difflib.get_close_matches(str(word), [str(known) for known in words], n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def model_name(name: str) -> str:
    """
    Check a model name (a Hub name or a folder) and return the name. Raise `OSError` if the folder does not exist, or
    if an index of its weights names a file outside the folder (see `check_shards`).
    """
    path = Path(name)
    is_folder = name.startswith((".", "/", "~")) or name.count("/") > 1
    if (is_folder or (len(path.parts) > 1 and path.parent.is_dir())) and not path.exists():
        others = [str(other) for other in path.parent.glob("*/")] if path.parent.is_dir() else []
        raise FileNotFoundError(f"there is no folder {name}{did_you_mean(name, others)}")
    check_shards(name)
    return name


def named_recipes() -> dict[str, Path]:
    """Return the recipes as name -> file; a name is for example `headline/small`."""
    files = [path for path in sorted(FOLDER.glob("*/*.yaml")) if path.parent.name != "accelerate"]
    return {f"{path.parent.name}/{path.stem}": path for path in files}


def find_recipe(name: str) -> Path:
    """
    Return the file of a recipe. `name` is the path of a YAML file, or a name that `lenctrl recipes` lists. Raise
    `ValueError` if the name is unknown.
    """
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    named = named_recipes()
    if name in named:
        return named[name]
    raise ValueError(f"there is no recipe {name!r}{did_you_mean(name, named)}; `lenctrl recipes` lists them")


def main(argv=None) -> None:
    """List the recipes of `lenctrl train` and `lenctrl train-predictor`, one line for each."""
    named = named_recipes()
    for name, path in named.items():
        print(f"{name:<{max(map(len, named))}}  {path.read_text(encoding='utf-8').splitlines()[0].removeprefix('# ')}")
    print(f"\nThe files are in {FOLDER}, with configurations for `accelerate launch` in accelerate/.")
