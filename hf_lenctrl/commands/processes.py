"""The processes that run a command: those of `accelerate launch`, or a single one without accelerate."""

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
        """Return immediately: there are no other processes to wait for."""


def processes() -> Any:
    """Return accelerate's `PartialState`, or `Alone`; raise `ImportError` if several processes have no accelerate."""
    if find_spec("accelerate") is not None:
        from accelerate import PartialState

        # without `cpu=True` processes on CPUs would not find each other
        return PartialState(cpu=not torch.accelerator.is_available())
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ImportError('several processes need accelerate: pip install "hf_lenctrl[train]"')
    return Alone()


def gathered(lines: list, state: Any) -> list:
    """Gather the lines of all processes, and return them."""
    if state.num_processes == 1:
        return lines
    from accelerate.utils import gather_object

    return gather_object(lines)
