"""Run a command of `lenctrl`."""

import importlib
import sys
import traceback
from pathlib import Path


POINT = "\n  * "  # begins a line of its own in a message that has several
PACKAGE = Path(__file__).resolve().parents[1]


def run(name: str, module: str, argv: list[str], debug: bool = False) -> None:
    """
    Run the command `name` with the options `argv`: the `main()` of a module, `"hf_lenctrl.commands.train"`. What the
    user gave wrongly ends it with one line, and one for each point of a list, and status 1; with `debug` every error
    has its traceback.
    """
    sys.argv = [f"lenctrl {name}", *argv]  # argparse shows the first word
    try:
        importlib.import_module(module).main()
    except Exception as error:
        if debug or not _is_refusal(error):
            raise
        hint = f" (for the traceback: lenctrl --debug {name} ...)"
        if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("hf_lenctrl"):
            hint = "; in a clone of hf_lenctrl: pip install '.[train]'"
        first, *points = (" ".join(part.split()) for part in str(error).split(POINT))
        sys.exit(POINT.join([f"lenctrl {name}: {first}{hint}", *points]))
    if (accelerate := sys.modules.get("accelerate")) is not None:
        accelerate.PartialState().destroy_process_group()  # gloo's threads would abort a process that ends with them


def _is_refusal(error: Exception) -> bool:
    """Whether a check of this package, of the options or of a file refused what the user gave."""
    from huggingface_hub.errors import StrictDataclassError  # of a field in a checkpoint's configuration

    if isinstance(error, StrictDataclassError):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    ours = PACKAGE in Path(frames[-1].filename).parents or any(frame.name == "parse_arguments" for frame in frames)
    return isinstance(error, (OSError, ModuleNotFoundError)) or isinstance(error, (ValueError, TypeError)) and ours
