"""The processes that run a command: several under `accelerate launch`, otherwise one."""

import os
from importlib.util import find_spec
from typing import Any

import torch


class Alone:
    """The state of a single process, with the attributes of `accelerate.PartialState`."""

    num_processes, process_index, is_main_process = 1, 0, True

    def __init__(self):
        self.device = torch.accelerator.current_accelerator() or torch.device("cpu")

    def wait_for_everyone(self) -> None:
        """Return at once, because there are no other processes."""


def processes() -> Any:
    """
    Return accelerate's `PartialState`, or `Alone` if accelerate is missing. Raise `ImportError` if several processes
    run, but accelerate is missing.
    """
    if find_spec("accelerate") is not None:
        from accelerate import PartialState

        # without `cpu=True` processes on CPUs would not find each other
        return PartialState(cpu=not torch.accelerator.is_available())
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ImportError('several processes need accelerate: pip install "hf_lenctrl[train]"')
    return Alone()


def gathered(lines: list, state: Any) -> list:
    """Return the lines of all processes in one list, in every process. `state` comes from `processes`."""
    if state.num_processes == 1:
        return lines
    from accelerate.utils import gather_object

    return gather_object(lines)
