"""JSON lines that are written block by block, so that a command that was stopped goes on where they end."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .lenctrl import POINT


class OutputFile:
    """
    Lines of an output file and, beside it, the options that made them.

    Args:
        path (`str` or `Path`): JSON lines; `<path>.options.json` holds the options.
        options (`Mapping[str, Any]`): What the lines depend on, as JSON.

    Raises:
        `ValueError`: for a file that was not begun with these options.
    """

    def __init__(self, path: str | Path, options: Mapping[str, Any]):
        self.path, self.options = Path(path), json.loads(json.dumps(options))
        self.options_path = Path(f"{path}.options.json")
        self.lines: list[str] = []
        if self.path.exists():
            before = json.loads(self.options_path.read_text("utf-8")) if self.options_path.is_file() else {}
            if before != self.options:
                names = sorted(before | self.options) if before else []
                pairs = [(name, before.get(name), self.options.get(name)) for name in names]
                points = [f"{POINT}{name}={old}, now {new}" for name, old, new in pairs if old != new]
                raise ValueError(
                    f"{self.path} exists, and no command with these options began it; remove it or name another file"
                    + "".join(points)
                )
            text = self.path.read_bytes()  # the last line may have been cut off
            self.lines = text[: text.rfind(b"\n") + 1].decode().split("\n")[:-1]

    def keep(self, beginnings: Sequence[str]) -> int:
        """
        Keep the lines that were written for the first requests.

        Args:
            beginnings (`Sequence[str]`): What is known of each line before it is written.

        Returns:
            `int`: Number of lines that stand in the file.

        Raises:
            `ValueError`: for a line that is another one.
        """
        for i, line in enumerate(self.lines):
            if i >= len(beginnings) or not line.startswith(beginnings[i]):
                raise ValueError(
                    f"row {i + 1} of {self.path} is of other input than this command's; remove it or name another file"
                )
        return len(self.lines)

    def begin(self, kept: int) -> None:
        """Write the options, and the first lines again."""
        part = self.options_path.with_suffix(".part")
        part.write_text(json.dumps(self.options, indent=1), encoding="utf-8")
        part.replace(self.options_path)  # never half of it
        lines, self.lines = self.lines[:kept], []
        self.append(lines, "w")

    def append(self, lines: Iterable[str], mode: str = "a") -> None:
        """Add lines."""
        lines = list(lines)
        with self.path.open(mode, encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in lines)
        self.lines += lines
