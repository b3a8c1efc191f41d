"""JSON lines that are written block by block, so that a stopped command resumes behind the last one."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .identity import short
from .lenctrl import POINT
from .locking import kept


def check_begun(path: Path, options_path: Path, options: dict[str, Any], advice: str = "name another") -> None:
    """Raise `ValueError` unless the output at `path`, which exists, was begun with these options."""
    before = json.loads(options_path.read_text("utf-8")) if options_path.is_file() else {}
    pairs = [(name, before.get(name), options.get(name)) for name in sorted(before | options)]
    if points := [f"{POINT}{k}={short(old, new)}, now {short(new, old)}" for k, old, new in pairs if old != new]:
        told = f"{path} exists, and no command with these options began it; {advice}"
        raise ValueError("".join([told, *(points if before else [])]))


def begin_folder(folder: str | Path, options: Mapping[str, Any], begun: bool) -> None:
    """
    Write into `_run/` of a folder the options that its files depend on. Raises `ValueError` where the folder is
    `begun`, with others.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    own, path = json.loads(json.dumps(options)), kept(folder, "options.json")
    if begun:
        check_begun(Path(folder), path, own)
    path.parent.mkdir(exist_ok=True)
    write_whole(path, json.dumps(own, indent=1), kept(folder, "part"))


def write_whole(path: Path, text: str, part: Path) -> None:
    """Write a file, first as `part`; a command that is killed leaves the old file or the new one."""
    part.write_bytes(encoded(text))
    part.replace(path)


def encoded(text: str) -> bytes:
    """Return lines of JSON as UTF-8; half a character (a lone surrogate), which UTF-8 has not, keeps its escape."""
    return text.encode(errors="backslashreplace")


class OutputFile:
    """
    The whole `lines` of an output file, JSON, and, in `_run/<its name>.options.json` beside it, the options that they
    depend on; of the input and the models hashes. A file that was begun with others is refused; with `overwrite` every
    file is begun again.
    """

    def __init__(self, path: str | Path, options: Mapping[str, Any], overwrite: bool | None = None):
        self.path, self.options = Path(path), json.loads(json.dumps(options))
        self.options_path, self.part = kept(path, "options.json"), kept(path, "part")
        self.lines: list[str] = []
        advice = "name another" if overwrite is None else "name another, or begin again with --overwrite"
        if self.path.exists() and not overwrite:
            check_begun(self.path, self.options_path, self.options, advice)
            text = self.path.read_bytes()
            self.lines = text[: text.rfind(b"\n") + 1].decode().split("\n")[:-1]

    def begin(self, count: int) -> None:
        """Write the options, and the first lines again; a command that is killed leaves the old ones or the new."""
        self.lines = self.lines[:count]
        lines = "".join(f"{line}\n" for line in self.lines)
        self.part.parent.mkdir(exist_ok=True)
        write_whole(self.options_path, json.dumps(self.options, indent=1), self.part)
        write_whole(self.path, lines, self.part)

    def append(self, lines: Iterable[str]) -> None:
        """Add lines."""
        new = list(lines)
        with self.path.open("ab") as file:
            file.write(encoded("".join(f"{line}\n" for line in new)))
        self.lines += new
