"""One command at a time writes a file or a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


PRIVATE = "_run"  # in the folder of a run; Trainer uploads no name that begins with an underscore


@contextmanager
def locked(path: str | Path, writes: bool = True) -> Iterator[None]:
    """
    Lock a file or a folder that a command writes. The system frees the lock when the process ends, killed or not; the
    empty file that it is held on stays.

    Args:
        path (`str` or `Path`): Output file, whose folder exists, or folder of a run.
        writes (`bool`, *optional*, defaults to `True`): Whether this process writes; of several processes that run
            one command only one does.

    Raises:
        `ValueError`: where another command writes it.
    """
    path = Path(path)
    if not writes:
        yield
        return
    name = path / PRIVATE / "lock" if path.is_dir() else path.with_name(f".{path.name}.lock")
    name.parent.mkdir(exist_ok=True)
    lock = FileLock(name, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(f"another command is writing {path}; wait for its end, or name another output") from None
    try:
        yield
    finally:
        lock.release()
