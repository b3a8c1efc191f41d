"""JSON lines that are written block by block, so that a command that was stopped goes on where they end."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .checkpoints import check_writable


class OutputFile:
    """
    Rows of an output file and, beside it, the options that made them.

    Args:
        path (`str` or `Path`): JSON lines; `<path>.options.json` holds the options.
        options (`Mapping[str, Any]`): What the rows depend on, as JSON.

    Raises:
        `ValueError`: for a file that was not begun with these options.
        `OSError`: where its folder cannot be made or written to.
    """

    def __init__(self, path: str | Path, options: Mapping[str, Any]):
        self.path, self.options = Path(path), json.loads(json.dumps(options))
        self.options_path = Path(f"{path}.options.json")
        self.rows: list[dict] = []
        check_writable(self.path.parent)
        if self.path.exists():
            if not self.options_path.is_file() or json.loads(self.options_path.read_text("utf-8")) != self.options:
                raise ValueError(
                    f"{self.path} exists, and no command with these options began it; remove it or name another file"
                )
            text = self.path.read_bytes()
            # the last line may have been cut off
            self.rows = [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]

    def keep(self, known: Sequence[Mapping[str, Any]]) -> int:
        """
        Keep the rows that were written for the first of `known`.

        Args:
            known (`Sequence[Mapping]`): What is known of each row before it is written; `None` is any value.

        Returns:
            `int`: Number of rows that stand in the file.

        Raises:
            `ValueError`: for a row that is another one.
        """
        for i, row in enumerate(self.rows):
            if i >= len(known) or any(v is not None and row.get(k) != v for k, v in known[i].items()):
                raise ValueError(
                    f"row {i + 1} of {self.path} is of other input than this command's; remove it or name another file"
                )
        return len(self.rows)

    def begin(self) -> None:
        """Write the options, and the rows that are kept."""
        self.options_path.write_text(json.dumps(self.options, indent=1), encoding="utf-8")
        self._write(self.rows, "w")

    def append(self, rows: Iterable[dict]) -> None:
        """Add rows."""
        rows = list(rows)
        self._write(rows, "a")
        self.rows += rows

    def _write(self, rows: Iterable[dict], mode: str) -> None:
        with self.path.open(mode, encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
