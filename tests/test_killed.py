"""Training that is killed at random, again and again, ends with the weights of training that was not."""

import json
import multiprocessing
import random
import signal

import pytest
import training_child
from conftest import SOURCES, TARGETS


MAX_STEPS, SAVE_STEPS = 16, 3  # in two epochs of 9 steps
OPTIONS = {
    "length_encoding": "ldpe",
    "target_vocabulary": "shared",
    "vocab_size": 120,
    "layers": 1,
    "d_model": 16,
    "attention_heads": 2,
    "ffn_dim": 16,
    "dropout": 0.1,
    "validation_share": 0,
    "test_share": 0,
    "length_noise": 2,
    "overshoot_share": 0.2,
    "max_steps": MAX_STEPS,
    "save_steps": SAVE_STEPS,
    "save_total_limit": 3,
    "average_checkpoints": 3,
    "per_device_train_batch_size": 4,
    "train_sampling_strategy": "group_by_length",
    "learning_rate": 1e-2,
    "report_to": "none",
    "disable_tqdm": "true",
    "use_cpu": "true",
    "seed": 3,
}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Trains in a folder, in a process of its own that has imported all it needs; returns how it ended."""
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows = [
        {"source": f"{s} {i}", "target": f"{t} {i}"} for i in range(6) for s, t in zip(SOURCES, TARGETS, strict=True)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    context = multiprocessing.get_context("fork")

    def start(folder, *where):
        options = [f"--{k}={v}" for k, v in {**OPTIONS, "train_file": file, "output_dir": folder}.items()]
        process = context.Process(target=training_child.run, args=(options, str(folder.with_suffix(".log")), *where))
        process.start()
        process.join()
        return process.exitcode

    return start


@pytest.mark.slow
def test_killed_in_each_phase_at_a_random_step_and_resumed_the_weights_are_those_of_a_whole_run(start, tmp_path):
    assert start(tmp_path / "whole") == 0
    expected = (tmp_path / "whole" / "model.safetensors").read_bytes()
    chance = random.Random(5)
    phases = [*training_child.PHASES, training_child.HALF_WEIGHTS]
    phases.remove("training_step")  # the others come where it saves
    chance.shuffle(phases)
    points = dict(zip(range(SAVE_STEPS, MAX_STEPS, SAVE_STEPS), phases, strict=True))
    points[chance.choice([step for step in range(4, MAX_STEPS) if step not in points])] = "training_step"
    folder = tmp_path / "killed"
    for step, phase in sorted(points.items()):
        assert start(folder, phase, step) == -signal.SIGKILL, points
        assert not (folder / "model.safetensors").exists()
    assert start(folder) == 0, folder.with_suffix(".log").read_text()[-2000:]
    assert (folder / "model.safetensors").read_bytes() == expected, points
