"""The command `lenctrl`.

A module beside the package: `import hf_lenctrl` may import torch, and `lenctrl --help` shall not wait for that.
"""

import difflib
import sys
from importlib.metadata import version


# name -> module of its `main()`, and what it does
COMMANDS = {
    "train": ("hf_lenctrl.commands.train", "train a length-controlled model"),
    "train-predictor": ("hf_lenctrl.commands.predictor", "train a predictor of output lengths"),
    "generate": ("hf_lenctrl.commands.generate", "generate texts of requested lengths"),
    "fit": ("hf_lenctrl.commands.fit", "make texts of anywhere keep a limit"),
    "evaluate": ("hf_lenctrl.commands.evaluate", "report how well lengths were met"),
    "export": ("hf_lenctrl.commands.export", "freeze a length into a model, and export it for CTranslate2"),
    "recipes": ("hf_lenctrl.commands.recipes", "list the recipes that come with the package"),
}
HELP = """usage: lenctrl [--debug] command [options]

Length control for Hugging Face sequence-to-sequence models.

commands:
{commands}

options:
  --help     show this text; `lenctrl train --help` shows the options of a command
  --version  show the version
  --debug    show the traceback of an error

    lenctrl train headline/small --train_file rows.jsonl --output_dir runs/ldpe
    lenctrl generate --model runs/ldpe --input_file texts.txt --length 40 --output_file out.jsonl
    lenctrl evaluate --input_file out.jsonl --output_dir report"""


def main(argv: list[str] | None = None) -> None:
    """Run the command that the first word names."""
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = argv[:1] == ["--debug"]
    command, *options = argv[debug:] or ["--help"]
    if command in ("-h", "--help"):
        print(HELP.format(commands="\n".join(f"  {name:<17}{text}" for name, (_, text) in COMMANDS.items())))
    elif command == "--version":
        print(f"lenctrl {version('hf-lenctrl')}")
    elif command in COMMANDS:
        from hf_lenctrl.commands.lenctrl import run

        run(command, COMMANDS[command][0], options, debug)
    else:
        near = difflib.get_close_matches(command, COMMANDS, n=1)
        meant = f"; did you mean {near[0]}?" if near else f", only {', '.join(COMMANDS)}"
        print(f"lenctrl: there is no command {command!r}{meant}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
