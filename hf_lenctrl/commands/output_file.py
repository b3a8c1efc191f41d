"""JSON lines that are written block by block, so that a stopped command resumes behind the last one."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .lenctrl import POINT


def check_begun(path: Path, options_path: Path, options: dict[str, Any], advice: str = "name another") -> None:
    """Raise `ValueError` unless the output at `path`, which exists, was begun with these options."""
    before = json.loads(options_path.read_text("utf-8")) if options_path.is_file() else {}
    pairs = [(name, before.get(name), options.get(name)) for name in sorted(before | options)]
    if points := [f"{POINT}{name}={old}, now {new}" for name, old, new in pairs if old != new]:
        told = f"{path} exists, and no command with these options began it; {advice}"
        raise ValueError("".join([told, *(points if before else [])]))


def write_whole(path: Path, text: str, part: Path | None = None) -> None:
    """Write a file, first under another name; a command that is killed leaves the old file or the new one."""
    part = part or path.with_name(f"{path.name}.part")
    part.write_bytes(text.encode())
    part.replace(path)


class OutputFile:
    """
    The whole `lines` of an output file, JSON, and, beside it in `<path>.options.json`, the options that they depend
    on; of the input a hash. A file that was begun with others is refused; with `overwrite` every file is begun again.
    """

    def __init__(self, path: str | Path, options: Mapping[str, Any], overwrite: bool | None = None):
        self.path, self.options = Path(path), json.loads(json.dumps(options))
        self.options_path = Path(f"{path}.options.json")
        self.lines: list[str] = []
        advice = "name another" if overwrite is None else "name another, or begin again with --overwrite"
        if self.path.exists() and not overwrite:
            check_begun(self.path, self.options_path, self.options, advice)
            text = self.path.read_bytes()
            self.lines = text[: text.rfind(b"\n") + 1].decode().split("\n")[:-1]

    def begin(self, kept: int) -> None:
        """Write the options, and the first lines again; a command that is killed leaves the old ones or the new."""
        self.lines = self.lines[:kept]
        lines = "".join(f"{line}\n" for line in self.lines)
        write_whole(self.options_path, json.dumps(self.options, indent=1))
        write_whole(self.path, lines)

    def append(self, lines: Iterable[str]) -> None:
        """Add lines."""
        new = list(lines)
        with self.path.open("ab") as file:
            file.write("".join(f"{line}\n" for line in new).encode())
        self.lines += new
