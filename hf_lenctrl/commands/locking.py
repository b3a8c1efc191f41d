"""One command at a time writes a file or a folder."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


PRIVATE = "_run"  # in the folder of a run; Trainer uploads no name that begins with an underscore


@contextmanager
def locked(path: str | Path, writes: bool = True) -> Iterator[None]:
    """
    Lock an output file or the folder of a run; of several processes that run one command only one `writes`. The system
    frees the lock when the process ends, killed or not; the empty file that it is held on stays.
    """
    path = Path(path)
    name = path / PRIVATE / "lock" if path.is_dir() else path.with_name(f".{path.name}.lock")
    with ExitStack() as stack:
        if writes:
            name.parent.mkdir(exist_ok=True)
            try:
                stack.enter_context(FileLock(name, timeout=0))
            except Timeout:
                raise ValueError(f"another command is writing {path}; wait for its end") from None
        yield
