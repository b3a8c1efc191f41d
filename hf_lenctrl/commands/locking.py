"""Locks for files and folders, so that only one command at a time writes to them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


PRIVATE = "_run"  # a folder next to the outputs; Trainer does not upload names that begin with an underscore


def kept(path: str | Path, name: str) -> Path:
    """
    Return the path of a private file `name`, which is never uploaded. If `path` is an existing folder, the private
    file is `_run/<name>` in this folder. Otherwise it is `_run/<name of path>.<name>` next to `path`.
    """
    path = Path(path)
    return path / PRIVATE / name if path.is_dir() else path.parent / PRIVATE / f"{path.name}.{name}"


@contextmanager
def locked(path: str | Path, writes: bool = True) -> Iterator[None]:
    """
    Lock an output file or the folder of a run during a `with` block. Raise `ValueError` if another command has the
    lock. If a command has several processes, only the process with `writes=True` takes the lock. The system frees the
    lock if this process is killed.
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
