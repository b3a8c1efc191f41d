"""The training recipe for processes that tests fork and kill: imported once, in the server they are forked from."""

import os
import signal
import sys

import torch
import transformers.modeling_utils
from transformers import Trainer
from transformers.trainer_callback import TrainerState

from hf_lenctrl.commands import train as train_seq2seq


# where a run may die: in the loop, or before one of the parts of a checkpoint is written
PHASES = ("training_step", "_save_checkpoint", "_save_optimizer_and_scheduler", "_save_rng_state", "save_to_json")
HALF_WEIGHTS = "half of the weights"


def run(options: list[str], log: str, phase: str | None = None, step: int = 0) -> None:
    """Train, and die in a phase of a step; what is printed goes to a file."""
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = open(log, "a")
    steps = [0]

    def dies(name, owner):
        original = getattr(owner, name)

        def method(self, *args, **kwargs):
            state = self if owner is TrainerState else self.state
            steps[0] = state.global_step
            if name == phase and state.global_step == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, *args, **kwargs)

        setattr(owner, name, method)

    for name in PHASES:
        dies(name, TrainerState if name == "save_to_json" else Trainer)
    if phase == HALF_WEIGHTS:
        save_file = transformers.modeling_utils.safe_save_file

        def half(tensors, path, **options):
            save_file(tensors, path, **options)
            if steps[0] == step:
                os.truncate(path, os.path.getsize(path) // 2)
                os.kill(os.getpid(), signal.SIGKILL)

        transformers.modeling_utils.safe_save_file = half
    train_seq2seq.main(options)
