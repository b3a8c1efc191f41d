"""Finding, averaging and checking the checkpoints of a training run."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import get_last_checkpoint


def last_checkpoint(output_dir: str) -> str | None:
    """The newest `checkpoint-<step>` folder of a run, or `None`."""
    return get_last_checkpoint(output_dir) if Path(output_dir).is_dir() else None


def trained_steps(checkpoint: str) -> int:
    """Steps that a checkpoint was trained."""
    return TrainerState.load_from_json(str(Path(checkpoint, TRAINER_STATE_NAME))).global_step


def average_checkpoints(folders: Sequence[str | Path]) -> dict[str, torch.Tensor]:
    """
    Mean of the weights of several checkpoints of one run (Vaswani et al. 2017, section 6.1, averages the last five).

    Args:
        folders (`Sequence[str]`): Folders that hold a `model.safetensors`, oldest first.

    Returns:
        `dict[str, torch.Tensor]`: a state dict. Floats are averaged in float32 and keep their dtype; integers, such as
        the unit table, are taken from the last folder.

    Raises:
        `ValueError`: without folders, or when they hold different tensors.
    """
    if not folders:
        raise ValueError("there is no checkpoint to average; save some: save_steps=, save_total_limit=")
    total: dict[str, torch.Tensor] = {}
    for i, folder in enumerate(folders):
        state = load_file(Path(folder, "model.safetensors"))
        shapes = {name: tensor.shape for name, tensor in state.items()}
        if i > 0 and shapes != {name: tensor.shape for name, tensor in total.items()}:
            raise ValueError(f"{folder} holds other tensors than {folders[0]}; average checkpoints of one run")
        for name, tensor in state.items():
            total[name] = tensor.float() + (total[name] if i > 0 else 0.0)
    return {
        name: (total[name] / len(folders)).to(tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }
