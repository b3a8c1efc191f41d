"""Lock files and folders, so that only one command at a time writes to them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


PRIVATE = "_run"  # a folder next to the outputs; Trainer does not upload names that begin with an underscore


def kept(path: str | Path, name: str) -> Path:
    """
    Return the path of a private file: `_run/<name>` in the folder `path`, or `_run/<file>.<name>` next to the file
    `path`.
    """
    path = Path(path)
    return path / PRIVATE / name if path.is_dir() else path.parent / PRIVATE / f"{path.name}.{name}"


@contextmanager
def locked(path: str | Path, writes: bool = True) -> Iterator[None]:
    """
    Lock an output file or the folder of a run. Raise `ValueError` if another command has the lock. If a command has
    several processes, only the process with `writes` locks. The system frees the lock if this process is killed.
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
