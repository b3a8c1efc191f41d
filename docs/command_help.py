"""The help of every `lenctrl` command as plain text, so that `lenctrl train --help` need not import torch.

    python docs/command_help.py

writes `hf_lenctrl/commands/help.txt`. A test compares the file with what the commands say themselves.
"""

import contextlib
import importlib
import io
import os
import re
import sys
from pathlib import Path
from textwrap import fill

import lenctrl


FILE = Path(__file__).resolve().parents[1] / "hf_lenctrl" / "commands" / "help.txt"


def help_of(command: str) -> str:
    """What a command prints."""
    module, argv, columns = importlib.import_module(lenctrl.COMMANDS[command][0]), sys.argv, os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    sys.argv = [f"lenctrl {command}", "--help"]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
            module.main()
    finally:
        sys.argv = argv
        os.environ.pop("COLUMNS") if columns is None else os.environ.update(COLUMNS=columns)
    return text.getvalue()


def parts_of(command: str) -> dict[str, str]:
    """Name of a part -> its text: `"train"`, the overview, and `"train data"`, a group of options."""
    text = help_of(command)
    if not command.startswith("train"):
        return {command: text}
    head, *groups = re.split(r"\n\n(?=[A-Za-z ]+:\n  )", text.rstrip())
    groups = [group for group in groups if not group.startswith("options:")]
    groups[-1] = groups[-1].partition("\n\n")[0]
    titles = {group.partition(":\n")[0]: group for group in groups}
    named = {title.lower(): group for title, group in titles.items()}
    lines = [head, "", f"The options by subject; `lenctrl {command} --help data` explains those of one:", ""]
    for name, group in named.items():
        options = re.findall(r"^  (--\w+)", group, flags=re.MULTILINE)
        lines.append(fill(f"  {name:<10}{' '.join(options)}", 100, subsequent_indent=" " * 12, break_on_hyphens=False))
    lines += ["", "--help-all shows the other options of Trainer too."]
    return {command: "\n".join(lines), **{f"{command} {name}": group for name, group in named.items()}}


def every_help() -> str:
    """The whole file."""
    parts = [part for command in lenctrl.COMMANDS if command != "recipes" for part in parts_of(command).items()]
    return "".join(f"#: {name}\n{text.rstrip()}\n" for name, text in parts)


if __name__ == "__main__":
    FILE.write_text(every_help(), encoding="utf-8")
