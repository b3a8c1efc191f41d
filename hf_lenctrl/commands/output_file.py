"""Files of JSON lines, written block by block, so that an interrupted command resumes after the complete blocks."""

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .identity import differences
from .locking import kept


def json_file(value: str) -> str:
    """Parse `--output_file`: return the name. Raise `argparse.ArgumentTypeError` if it names another format."""
    if Path(value).suffix.lower() in (".csv", ".tsv", ".txt", ".parquet", ".xlsx", ".gz"):
        raise argparse.ArgumentTypeError(f"the output is JSON, got the name {value!r}; end it in .jsonl or .json")
    return value


def check_loss(path: str | Path, *inputs: str | Path | None, overwrite: bool = True) -> None:
    """
    Raise `ValueError` if the output `path` is the same file as one of the `inputs`, also if a link or another spelling
    of the path leads to it. If `overwrite` is false, raise `ValueError` if `path` exists.
    """
    if not Path(path).exists():
        return
    for file in inputs:
        if file is not None and Path(file).exists() and Path(path).samefile(file):
            raise ValueError(f"the output {path} would replace the input {file}; name another output")
    if not overwrite:
        raise ValueError(f"{path} exists; name another output, or replace it with --overwrite")


def check_begun(path: Path, options_path: Path, options: dict[str, Any], advice: str = "name another") -> None:
    """
    Raise `ValueError` unless a command with the same `options` began the output `path`. The JSON file `options_path`
    holds the options of the command that began `path`. A missing file counts as a file without options.
    The error message includes `advice`, which says what the user can do.
    """
    before = json.loads(options_path.read_text("utf-8")) if options_path.is_file() else {}
    if points := differences(before, dict.fromkeys(before) | options):
        raise ValueError(
            f"{path} exists, and no command with these options began it; {advice}{points if before else ''}"
        )


def begin_folder(folder: str | Path, options: Mapping[str, Any], begun: bool) -> None:
    """
    Make a folder for output files that depend on `options`, and save `options` in the folder as `_run/options.json`.
    `begun` says whether the folder already has output files. If `begun` is true and the options in
    the folder differ from `options`, save nothing and raise `ValueError`.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    own, path = json.loads(json.dumps(options)), kept(folder, "options.json")
    if begun:
        check_begun(Path(folder), path, own)
    path.parent.mkdir(exist_ok=True)
    write_whole(path, json.dumps(own, indent=1), kept(folder, "part"))


def write_whole(path: Path, text: str, part: Path) -> None:
    """
    Write a text to `part` and rename `part` to `path`, so that a killed command leaves the old file or the new file.
    """
    part.write_bytes(encoded(text))
    part.replace(path)


def encoded(text: str) -> bytes:
    """Encode lines of JSON as UTF-8. Write a lone surrogate, which UTF-8 cannot encode, as its JSON escape."""
    return text.encode(errors="backslashreplace")


class OutputFile:
    """
    An output file of JSON lines. If the file exists, `lines` holds its complete lines, so that a command can resume.
    `_run/<file name>.options.json` next to the file holds the options of the command that began it, with hashes of the
    input and the models.

    Raises `ValueError` if the file exists and these options differ from `options`. If `overwrite` is true, ignores the
    existing lines instead.
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
        """
        Begin or resume the file. Keep only the first `count` lines. Save the options and these lines by `write_whole`.
        """
        self.lines = self.lines[:count]
        lines = "".join(f"{line}\n" for line in self.lines)
        self.part.parent.mkdir(exist_ok=True)
        write_whole(self.options_path, json.dumps(self.options, indent=1), self.part)
        write_whole(self.path, lines, self.part)

    def append(self, lines: Iterable[str]) -> None:
        """Append lines to the file."""
        new = list(lines)
        with self.path.open("ab") as file:
            file.write(encoded("".join(f"{line}\n" for line in new)))
        self.lines += new
