"""Locks, so that one command at a time writes a file or a folder."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


PRIVATE = "_run"  # the folder lies beside the outputs; Trainer uploads no name that begins with an underscore


def kept(path: str | Path, name: str) -> Path:
    """Return the path of a command's private file: `_run/<name>` in a folder, `_run/<file>.<name>` beside a file."""
    path = Path(path)
    return path / PRIVATE / name if path.is_dir() else path.parent / PRIVATE / f"{path.name}.{name}"


@contextmanager
def locked(path: str | Path, writes: bool = True) -> Iterator[None]:
    """
    Lock an output file or the folder of a run. If several processes run one command, only one of them `writes`. The
    system frees the lock when the process ends, killed or not; the empty lock file stays.
    """
    name = kept(path, "lock")
    with ExitStack() as stack:
        if writes:
            name.parent.mkdir(exist_ok=True)
            try:
                stack.enter_context(FileLock(name, timeout=0))
            except Timeout:
                raise ValueError(f"another command is writing {path}; wait for its end") from None
        yield
