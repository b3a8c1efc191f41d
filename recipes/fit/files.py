"""Replace parts of a text, and write a file whole or not at all."""

import os
from collections.abc import Iterable
from pathlib import Path


def splice(content: str, parts: Iterable[tuple[tuple[int, int], str]]) -> str:
    """
    Replace parts of a text, given as ((start, end), new text); the parts must not overlap.

    >>> splice("a = 1", [((4, 5), "20"), ((0, 0), "# x\\n")])
    '# x\\na = 20'
    """
    pieces, last = [], 0
    for (start, end), text in sorted(parts):
        pieces += [content[last:start], text]
        last = end
    return "".join([*pieces, content[last:]])


def write(path: str, content: bytes) -> None:
    """Write a file under another name, and rename it, so that no other program reads an incomplete file."""
    target = Path(path).resolve()
    aside = target.with_name(f"{target.name}.{os.getpid()}.part")  # no file of the user has this name
    try:
        aside.write_bytes(content)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
