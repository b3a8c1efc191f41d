"""Processes of tests that need not import torch again: forks of one that has imported nothing else, or of the test."""

import atexit
import functools
import gc
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


# SIGCHLD is ignored, so that a fork that has ended leaves nothing to wait for
TEMPLATE = """
import gc, json, os, runpy, signal, sys, traceback
import scipy.optimize, torch, torch._dynamo, torch.distributed.fsdp, torch.distributed.tensor
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
gc.freeze()
gc.set_threshold(20_000, 20, 20)
for line in iter(sys.stdin.readline, ""):
    start = json.loads(line)
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(start["environment"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.chdir(start["cwd"])
    for number, (name, how) in enumerate((("in", os.O_RDONLY), ("out", os.O_WRONLY), ("err", os.O_WRONLY))):
        os.dup2(os.open(f"{start['folder']}/{name}", how), number)
    sys.stdin, sys.argv, status = open(0, closefd=False), start["argv"], 0
    try:
        exec(start["code"], {"__name__": "__main__", "json": json, "os": os, "runpy": runpy, "sys": sys})
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    with open(f"{start['folder']}/status", "w") as file:
        file.write(str(status))
    os._exit(0)
"""


@functools.cache
def template() -> subprocess.Popen:
    """The process that is forked; it ends with its standard input."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-I", "-c", TEMPLATE], **pipes)


class Process:
    """A process that runs code, with `stdin` and `stdout`; its errors are in the file `log`."""

    def __init__(self, code: str, *argv: str, cwd: str | Path = ".", **environment: str):
        self.folder = Path(tempfile.mkdtemp(prefix="process"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self.log = self.folder / "err"
        self.log.touch()
        for name in ("in", "out"):
            os.mkfifo(self.folder / name)
        start = {"code": code, "argv": ["-c", *argv], "cwd": str(cwd), "folder": str(self.folder)}
        start["environment"] = environment or dict(os.environ)
        template().stdin.write(json.dumps(start) + "\n")
        template().stdin.flush()
        self.pid = int(template().stdout.readline())
        self.stdin, self.stdout = open(self.folder / "in", "w"), open(self.folder / "out")

    def poll(self) -> int | None:
        """The status of a process that has ended; that of a killed one is -9."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            status = self.folder / "status"
            return int(status.read_text()) if status.exists() else -signal.SIGKILL

    def wait(self, timeout: float = 60) -> int:
        end = time.monotonic() + timeout
        while (status := self.poll()) is None:
            assert time.monotonic() < end, f"process {self.pid} has not ended"
            time.sleep(0.01)
        return status

    def end(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def output_of(code: str, *argv: str, **options) -> str:
    """What code prints in a fresh process."""
    process = Process(code, *argv, **options)
    process.stdin.close()
    text = process.stdout.read()
    assert process.wait() == 0, process.log.read_text()[-3000:]
    return text


def fork(target, *args) -> multiprocessing.process.BaseProcess:
    """Start a function in a fork of this process, with all that it has imported."""
    process = multiprocessing.get_context("fork").Process(target=_frozen, args=(target, *args), daemon=True)
    gc.disable()
    try:
        process.start()
    finally:
        gc.enable()
    return process


def _frozen(target, *args) -> None:
    """
    Call a function, and never collect what other tests left: the end of a process group waits for threads that no
    fork has.
    """
    gc.freeze()
    gc.enable()
    target(*args)
