"""Functions that find, average and check the checkpoints of a training run."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState


logger = logging.getLogger(__name__)


def state_of(checkpoint: str | Path) -> Any:
    """
    Load the `TrainerState` of a checkpoint. Raise `OSError` if the file of the state is missing, or `ValueError` if it
    is not valid JSON. Trainer writes this file last, so the file is missing or invalid in an incomplete checkpoint.
    """
    return TrainerState.load_from_json(str(Path(checkpoint, TRAINER_STATE_NAME)))


def trained_steps(checkpoint: str | Path) -> int:
    """Return the number of optimizer steps after which a checkpoint was saved."""
    return state_of(checkpoint).global_step


def checkpoints_of(output_dir: str | Path) -> list[Path]:
    """Return the complete `checkpoint-<step>` folders of a run, oldest first. Warn of incomplete folders."""
    folders = [path for path in Path(output_dir).glob("checkpoint-*") if path.name.rpartition("-")[2].isdecimal()]
    complete = []
    for folder in sorted(folders, key=lambda path: int(path.name.rpartition("-")[2])):
        try:
            trained_steps(folder)
            complete.append(folder)
        except (OSError, ValueError):
            logger.warning("%s is incomplete and passed over: the run ended while it was saved", folder)
    return complete


def last_checkpoint(output_dir: str | Path) -> str | None:
    """Return the newest complete checkpoint of a run; `None` if there is no complete checkpoint."""
    folders = checkpoints_of(output_dir)
    return str(folders[-1]) if folders else None


def check_checkpoint(folder: str | Path, weights_only: bool = False) -> None:
    """
    Raise `ValueError` if a checkpoint lacks the state of the optimizer or of the learning-rate schedule, because
    Trainer would silently begin with a new state. Check nothing if the checkpoint is sharded, or if `weights_only` is
    true (the run saves only weights).
    """
    names = {path.name for path in Path(folder).iterdir()}
    sharded = any(name.startswith(("global_step", "optimizer_", "pytorch_model_fsdp")) for name in names)
    missing = {"optimizer.pt", "scheduler.pt"} - names
    if missing and not sharded and not weights_only:
        raise ValueError(f"{folder} has no {min(missing)}; remove the folder to go on from the one before it")


def finished_with(checkpoint: str | Path, args: TrainingArguments) -> Path | None:
    """
    Return the checkpoint with the result of a finished run: its last checkpoint, given as `checkpoint`, or its best
    checkpoint if `load_best_model_at_end` is set. Return `None` if the run is not finished, or if the arguments
    request more training.
    """
    state = state_of(checkpoint)
    longer = args.max_steps > state.max_steps or args.max_steps < 0 and args.num_train_epochs > state.num_train_epochs
    ended = state.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"] and not longer
    ended = ended or 0 < args.max_steps <= state.global_step
    best = state.best_model_checkpoint if args.load_best_model_at_end else None
    return Path(checkpoint).parent / Path(best or checkpoint).name if ended else None


def average_checkpoints(folders: Sequence[str | Path]) -> dict[str, torch.Tensor]:
    """
    Average the weights of several checkpoints of a run (Vaswani et al. 2017, section 6.1). Return the mean weights as
    a state dictionary. `folders` go from the oldest to the newest checkpoint. Floats are averaged in float32 and
    converted back to their dtype. Integers, such as the unit table, come from the newest checkpoint.
    """
    total: dict[str, torch.Tensor] = {}
    for folder in folders:
        state = load_file(Path(folder, "model.safetensors"))
        total = {name: tensor.float() + total.get(name, 0.0) for name, tensor in state.items()}
    return {
        name: (total[name] / len(folders)).to(tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }


def load_average(model, folders: Sequence[str | Path]) -> None:
    """Load the mean weights of checkpoints into a model, see `average_checkpoints`."""
    logger.info("loading %s", ", ".join(Path(folder).name for folder in folders))
    # the files lack tied weights and Marian's fixed positions, so `strict=True` would fail
    model.load_state_dict(average_checkpoints(folders), strict=False)
    model.tie_weights()


def is_worse(mean: dict[str, float], last: dict[str, float]) -> bool:
    """Return whether averaged weights have a higher validation loss, or a length error (`mae`) over 10 % higher."""
    return not mean["loss"] <= last["loss"] or mean.get("mae", 0.0) > 1.1 * last.get("mae", 0.0)


def keep_better(trainer, count: int) -> str:
    """
    Load averaged weights into the trainer's model, or the last checkpoint if the average is worse on the validation
    rows (see `is_worse`). The average is over the last `count` checkpoints, without those of the first half of the run
    or of the warm-up. If fewer than two are left, load the last checkpoint. If there are no validation rows, load the
    average. If there is no checkpoint, leave the model as it is. Return a sentence for the model card that says which
    weights the model has, and why.
    """
    folders = checkpoints_of(str(trainer.args.output_dir))
    if not folders:
        return "Weights: those of the last step; no checkpoint was saved."
    steps = trained_steps(folders[-1])
    first = max(steps / 2, trainer.args.get_warmup_steps(steps))
    late = [folder for folder in folders[-count:] if trained_steps(folder) > first]
    names = ", ".join(str(trained_steps(folder)) for folder in late)
    if len(late) < 2:
        load_average(trainer.model, folders[-1:])
        return "Weights: the last checkpoint; no other is of the second half of the run and past its warm-up."
    if trainer.eval_dataset is None:
        load_average(trainer.model, late)
        return f"Weights: the mean of the checkpoints {names}, compared with none, for want of validation rows."
    figures = {}
    for name, folders in (("last", late[-1:]), ("mean", late)):
        load_average(trainer.model, folders)
        found = trainer.evaluate(metric_key_prefix=name)
        figures[name] = {key: found[f"{name}_{key}"] for key in ("loss", "mae") if f"{name}_{key}" in found}
    if worse := is_worse(figures["mean"], figures["last"]):
        load_average(trainer.model, late[-1:])
    shown = {name: ", ".join(f"{key} {value:.3f}" for key, value in found.items()) for name, found in figures.items()}
    return (
        f"Weights: {'the last checkpoint, not ' if worse else ''}the mean of the checkpoints {names}; on the "
        f"validation rows the last has {shown['last']}, the mean {shown['mean']}."
    )
