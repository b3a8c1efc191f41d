"""The processes that share a command: those of `accelerate launch`, or this one alone, which needs no accelerate."""

import os
from importlib.util import find_spec
from typing import Any

import torch


class Alone:
    """Say of a single process what `accelerate.PartialState` says."""

    num_processes, process_index, is_main_process = 1, 0, True

    def __init__(self):
        self.device = torch.accelerator.current_accelerator() or torch.device("cpu")

    def wait_for_everyone(self) -> None:
        """Do nothing: there is nobody to wait for."""


def processes() -> Any:
    """Return accelerate's `PartialState`, or `Alone`; raise `ImportError` where several processes lack accelerate."""
    if find_spec("accelerate") is not None:
        from accelerate import PartialState

        # else processes on CPUs would not know each other
        return PartialState(cpu=not torch.accelerator.is_available())
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ImportError('several processes need accelerate: pip install "hf_lenctrl[train]"')
    return Alone()


def gathered(lines: list, state: Any) -> list:
    """Return the lines of all processes."""
    if state.num_processes == 1:
        return lines
    from accelerate.utils import gather_object

    return gather_object(lines)
