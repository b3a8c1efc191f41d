"""The program `lenctrl`. It imports the module of a command only to run the command, so `--help` needs no torch."""

import difflib
import importlib
import sys
import traceback
from importlib.metadata import requires, version
from pathlib import Path


POINT = "\n  * "  # begins each line of a list in a message
_REFUSALS = (ValueError, TypeError, ImportError)
PACKAGE = Path(__file__).resolve().parents[1]
# name -> module of its `main()`, and help text
COMMANDS = {
    "train": ("train", "train a length-controlled model"),
    "train-predictor": ("predictor", "train a predictor of output lengths"),
    "generate": ("generate", "generate texts of requested lengths"),
    "fit": ("fit", "make texts of any origin keep a limit"),
    "fit-cost": ("fit_cost", "fit the cost of characters to seconds of speech"),
    "evaluate": ("evaluate", "report how well texts keep their lengths"),
    "export": ("export", "export a model for ONNX Runtime"),
    "recipes": ("recipes", "list the recipes that come with the package"),
}
HELP = """usage: lenctrl [--debug] command [options]

Length control for Hugging Face language models.

commands:
{commands}

options:
  --help     show this text; `lenctrl train --help` shows the options of a command
  --version  show the version
  --debug    show the traceback of an error

    lenctrl train headline/small --train_file rows.jsonl --output_dir runs/ldpe
    lenctrl generate --model runs/ldpe --input_file texts.txt --length 40 --output_file out.jsonl
    lenctrl evaluate --input_file out.jsonl --output_dir report"""


def run(name: str, module: str, argv: list[str], debug: bool = False) -> None:
    """
    Run the command `name` with the options `argv`: call `main()` of a module such as `"hf_lenctrl.commands.train"`. If
    the user can correct the error, exit with status 1 and the error's message: one line, or if the message lists
    items, one more line for each item and for the hint at the end. Show the traceback of all other errors, and with
    `debug` of every error.
    """
    sys.argv = [f"lenctrl {name}", *argv]  # argparse shows the first word in its messages
    try:
        importlib.import_module(module).main()
    except Exception as error:
        if debug or not _is_refusal(error):
            raise
        hint = f" (for the traceback: lenctrl --debug {name} ...)"
        if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("hf_lenctrl"):
            hint = f"; pip install {_package_of(error.name or '')}"
        first, *points = (" ".join(part.split()) for part in str(error).split(POINT))
        last = f"\n{hint.strip()}" if points else hint
        sys.exit(POINT.join([f"lenctrl {name}: {first}", *points]) + last)
    if (accelerate := sys.modules.get("accelerate")) is not None:
        accelerate.PartialState().destroy_process_group()  # a process that ends while gloo's threads run would abort


def _package_of(module: str) -> str:
    """Return the argument of `pip install` for a missing module."""
    of_train = [item for item in requires("hf-lenctrl") or [] if "train" in item and item.startswith(module)]
    return '"hf_lenctrl[train]"' if of_train else module


def _is_refusal(error: Exception) -> bool:
    """Return whether the user can correct the error, such as an invalid input or a missing file or package."""
    from huggingface_hub.errors import StrictDataclassError  # raised for a wrong field in a configuration

    if isinstance(error, StrictDataclassError):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    last = Path(frames[-1].filename)
    # `AutoConfig` raises ValueError for a folder that holds no model, and `generate` for a temperature of 0
    told = last.name in ("configuration_auto.py", "logits_process.py")
    told = told or any(frame.name == "parse_specified" for frame in frames)
    # a library that asks for another one raises ImportError without a name; a wrong `from` gives it a name
    lacks = isinstance(error, ModuleNotFoundError) or isinstance(error, ImportError) and error.name is None
    return isinstance(error, OSError) or lacks or isinstance(error, _REFUSALS) and (told or PACKAGE in last.parents)


def main(argv: list[str] | None = None) -> None:
    """Run the command that the first word of `argv` names. `argv` defaults to the words of the command line."""
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = argv[:1] == ["--debug"]
    command, *options = argv[debug:] or ["--help"]
    if command in ("-h", "--help"):
        print(HELP.format(commands="\n".join(f"  {name:<17}{text}" for name, (_, text) in COMMANDS.items())))
    elif command == "--version":
        print(f"lenctrl {version('hf-lenctrl')}")
    elif command in COMMANDS:
        run(command, f"hf_lenctrl.commands.{COMMANDS[command][0]}", options, debug)
    else:
        near = difflib.get_close_matches(command, COMMANDS, n=1)
        meant = f"; did you mean {near[0]}?" if near else f", only {', '.join(COMMANDS)}"
        print(f"lenctrl: there is no command {command!r}{meant}", file=sys.stderr)
        sys.exit(2)
