"""JSON lines that are written block by block, so that a stopped command resumes behind the last one."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .lenctrl import POINT


class OutputFile:
    """
    The whole `lines` of an output file, JSON, and, beside it in `<path>.options.json`, the options that they depend
    on; of the input a hash. A file that was begun with others is refused.
    """

    def __init__(self, path: str | Path, options: Mapping[str, Any]):
        self.path, self.options = Path(path), json.loads(json.dumps(options))
        self.options_path = Path(f"{path}.options.json")
        self.lines: list[str] = []
        if self.path.exists():
            before = json.loads(self.options_path.read_text("utf-8")) if self.options_path.is_file() else {}
            pairs = [(name, before.get(name), self.options.get(name)) for name in sorted(before | self.options)]
            if points := [f"{POINT}{name}={old}, now {new}" for name, old, new in pairs if old != new]:
                told = f"{self.path} exists, and no command with these options began it; name another file"
                raise ValueError(told + "".join(points if before else []))
            text = self.path.read_bytes()
            self.lines = text[: text.rfind(b"\n") + 1].decode().split("\n")[:-1]

    def begin(self, kept: int) -> None:
        """Write the options, and the first lines again; a command that is killed leaves the old ones or the new."""
        self.lines = self.lines[:kept]
        lines = "".join(f"{line}\n" for line in self.lines)
        for path, text in ((self.options_path, json.dumps(self.options, indent=1)), (self.path, lines)):
            part = path.with_name(f"{path.name}.part")
            part.write_bytes(text.encode())
            part.replace(path)

    def append(self, lines: Iterable[str]) -> None:
        """Add lines."""
        new = list(lines)
        with self.path.open("ab") as file:
            file.write("".join(f"{line}\n" for line in new).encode())
        self.lines += new
