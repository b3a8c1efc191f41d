"""Training that is killed at random, again and again, ends with the weights of training that was not."""

import os
import random
import signal
import sys

import pytest
import torch
import transformers.modeling_utils
from processes import fork
from recipe_runs import ROWS, as_options, options_of, write_rows
from transformers import Trainer
from transformers.trainer_callback import TrainerState

from hf_lenctrl.commands import train as train_seq2seq


HALF_WEIGHTS = "half of the weights"
# where a run may die beside the loop: before one of the parts of a checkpoint is written, or in one
SAVING = ("_save_checkpoint", "_save_optimizer_and_scheduler", "_save_rng_state", "save_to_json", HALF_WEIGHTS)


def run(options: list[str], log: str, phase: str | None = None, step: int = 0) -> None:
    """Train, and die in a phase of a step; what is printed goes to a file."""
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = open(log, "a")
    save_file = transformers.modeling_utils.safe_save_file

    def half(tensors, path, **options):
        save_file(tensors, path, **options)
        if f"checkpoint-{step}" in str(path):
            os.truncate(path, os.path.getsize(path) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    if phase == HALF_WEIGHTS:
        transformers.modeling_utils.safe_save_file = half
    elif phase:
        owner = TrainerState if phase == "save_to_json" else Trainer
        original = getattr(owner, phase)

        def dies(self, *args, **kwargs):
            if (self if owner is TrainerState else self.state).global_step == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, *args, **kwargs)

        setattr(owner, phase, dies)
    train_seq2seq.main(options)


MAX_STEPS, SAVE_STEPS = 16, 3  # in two epochs of 9 steps
OPTIONS = options_of(
    "length_encoding=ldpe target_vocabulary=shared vocab_size=120 layers=1 d_model=16 attention_heads=2 ffn_dim=16 "
    "dropout=0.1 validation_share=0 test_share=0 length_noise=2 overshoot_share=0.2 save_total_limit=3 "
    "average_checkpoints=3 per_device_train_batch_size=4 train_sampling_strategy=group_by_length learning_rate=1e-2 "
    "report_to=none disable_tqdm=true use_cpu=true seed=3"
) | {"max_steps": MAX_STEPS, "save_steps": SAVE_STEPS}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Trains in a folder, in a process of its own that has imported all it needs; returns how it ended."""
    file = write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl", ROWS[:36])

    def start(folder, *where):
        options = as_options({**OPTIONS, "train_file": file, "output_dir": folder})
        process = fork(run, options, str(folder.with_suffix(".log")), *where)
        process.join(120)
        hangs = process.is_alive()
        process.kill()
        assert not hangs
        return process.exitcode

    return start


@pytest.mark.slow
def test_killed_in_each_phase_at_a_random_step_and_resumed_the_weights_are_those_of_a_whole_run(start, tmp_path):
    assert start(tmp_path / "whole") == 0
    expected = (tmp_path / "whole" / "model.safetensors").read_bytes()
    chance = random.Random(5)
    phases = chance.sample(SAVING, len(SAVING))
    points = dict(zip(range(SAVE_STEPS, MAX_STEPS, SAVE_STEPS), phases, strict=True))
    points[chance.choice([step for step in range(4, MAX_STEPS) if step not in points])] = "training_step"
    folder = tmp_path / "killed"
    for step, phase in sorted(points.items()):
        assert start(folder, phase, step) == -signal.SIGKILL, points
        assert not (folder / "model.safetensors").exists()
    assert start(folder) == 0, folder.with_suffix(".log").read_text()[-2000:]
    assert (folder / "model.safetensors").read_bytes() == expected, points
