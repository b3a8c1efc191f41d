"""Finding, averaging and checking the checkpoints of a training run."""

import json
import logging
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from transformers import TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState


logger = logging.getLogger(__name__)


def checkpoints_of(output_dir: str | Path) -> list[Path]:
    """
    The complete `checkpoint-<step>` folders of a run, oldest first.

    A run that was killed while it saved leaves a folder without the state that Trainer writes last: it is passed over.
    """
    folders = [path for path in Path(output_dir).glob("checkpoint-*") if path.name.rpartition("-")[2].isdecimal()]
    complete = []
    for folder in sorted(folders, key=lambda path: int(path.name.rpartition("-")[2])):
        try:
            trained_steps(folder)
        except (OSError, ValueError):
            logger.warning("%s is incomplete and passed over: the run ended while it was saved", folder)
        else:
            complete.append(folder)
    return complete


def last_checkpoint(output_dir: str | Path, processes: int = 1) -> str | None:
    """
    The newest complete checkpoint of a run, or `None`.

    Args:
        processes (`int`, *optional*, defaults to 1): How many will go on from it.

    Raises:
        `ValueError`: where another number of processes wrote it: batches and noise would not be those of the run.
    """
    folders = checkpoints_of(output_dir)
    if not folders:
        return None
    # Trainer saves the state of the random generators once for each process
    before = len(list(folders[-1].glob("rng_state*.pth")))
    if before not in (0, processes):
        raise ValueError(
            f"{folders[-1]} was written by {before} processes, and {processes} would go on from it; launch {before}, "
            "or name another output_dir"
        )
    return str(folders[-1])


def check_writable(folder: str | Path, needed: int = 0) -> None:
    """
    Make a folder and see that files can be written to it, before hours of work are to be saved there.

    Args:
        needed (`int`, *optional*, defaults to 0): Bytes that will be written.

    Raises:
        `OSError`: where they cannot, or the disk has no room.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise type(error)(
            f"cannot write to {folder}: {error}; name a folder that is yours, or make it writable"
        ) from error
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            f"{folder} has {free / 1e9:.2f} GB left, and the checkpoints need about {needed / 1e9:.2f} GB; free some "
            "room, or keep fewer of them: save_total_limit="
        )


def room_for(model, args) -> int:
    """Bytes that the checkpoints of a run take: weights and two moments of Adam in float32, one more while saving."""
    kept = (args.save_total_limit or 1) + 1
    return 12 * model.num_parameters() * kept


def trained_steps(checkpoint: str | Path) -> int:
    """Steps that a checkpoint was trained."""
    return TrainerState.load_from_json(str(Path(checkpoint, TRAINER_STATE_NAME))).global_step


def finished_with(checkpoint: str | Path, args: TrainingArguments) -> Path | None:
    """The checkpoint to keep, if the run that wrote this one has ended and no longer one is asked for."""
    state: Any = TrainerState.load_from_json(str(Path(checkpoint, TRAINER_STATE_NAME)))
    longer = args.max_steps > state.max_steps or args.max_steps < 0 and args.num_train_epochs > state.num_train_epochs
    ended = state.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"] and not longer
    ended = ended or 0 < args.max_steps <= state.global_step
    best = state.best_model_checkpoint if args.load_best_model_at_end else None
    return Path(checkpoint).parent / Path(best or checkpoint).name if ended else None


def average_checkpoints(folders: Sequence[str | Path]) -> dict[str, torch.Tensor]:
    """
    Mean of the weights of several checkpoints of one run (Vaswani et al. 2017, section 6.1, averages the last five).

    Args:
        folders (`Sequence[str]`): Folders that hold a `model.safetensors`, oldest first.

    Returns:
        `dict[str, torch.Tensor]`: a state dict. Floats are averaged in float32 and keep their dtype; integers, such as
        the unit table, are taken from the last folder.

    Raises:
        `ValueError`: without folders, when they hold different tensors, or when a file is cut off.
    """
    if not folders:
        raise ValueError("there is no checkpoint to average; save some: save_steps=, save_total_limit=")
    total: dict[str, torch.Tensor] = {}
    for i, folder in enumerate(folders):
        try:
            state = load_file(Path(folder, "model.safetensors"))
        except SafetensorError as error:
            raise ValueError(f"{folder} holds a broken model.safetensors ({error}); remove the folder") from error
        shapes = {name: tensor.shape for name, tensor in state.items()}
        if i > 0 and shapes != {name: tensor.shape for name, tensor in total.items()}:
            raise ValueError(f"{folder} holds other tensors than {folders[0]}; average checkpoints of one run")
        for name, tensor in state.items():
            total[name] = tensor.float() + (total[name] if i > 0 else 0.0)
    return {
        name: (total[name] / len(folders)).to(tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }


def load_average(model, folders: Sequence[str | Path]) -> None:
    """Give a model the mean of the weights of checkpoints, see `average_checkpoints`."""
    logger.info("loading %s", ", ".join(Path(folder).name for folder in folders))
    # safetensors leave tied weights and Marian's fixed positions out, so not every name is there
    model.load_state_dict(average_checkpoints(folders), strict=False)
    model.tie_weights()


def is_worse(mean: dict[str, float], last: dict[str, float]) -> bool:
    """Whether the mean of checkpoints is worse than the last: in its loss, or by a tenth in its length error."""
    return not mean["loss"] <= last["loss"] or mean.get("mae", 0.0) > 1.1 * last.get("mae", 0.0)


def keep_better(trainer, count: int) -> str:
    """
    Load the mean of a run's last checkpoints, or the last alone where the mean is worse on the validation rows. Only
    checkpoints of the run's second half and past the warm-up count.

    Returns:
        `str`: a sentence on what was kept, and why.
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
    last, mean = figures["last"], figures["mean"]
    worse = is_worse(mean, last)
    if worse:
        load_average(trainer.model, late[-1:])
    told = {name: ", ".join(f"{key} {value:.3f}" for key, value in found.items()) for name, found in figures.items()}
    return (
        f"Weights: {'the last checkpoint, not ' if worse else ''}the mean of the checkpoints {names}; on the "
        f"validation rows the last has {told['last']}, the mean {told['mean']}."
    )


def check_checkpoint(folder: str | Path, weights_only: bool = False, length_unit: str | None = None) -> None:
    """
    See that a checkpoint is whole: where the optimizer's file is missing Trainer would begin a new one, silently.

    Args:
        weights_only (`bool`, *optional*, defaults to `False`): It was saved with `save_only_model`.
        length_unit (`str`, *optional*): What the run counts.

    Raises:
        `ValueError`: for a file that is missing or cut off, or a checkpoint of another unit.
    """
    folder = Path(folder)
    names = {path.name for path in folder.iterdir()}
    config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8")) if "config.json" in names else {}
    counted = config.get("length_unit")
    if None not in (counted, length_unit) and counted != length_unit:
        raise ValueError(
            f"{folder} counts {counted}s, got length_unit={length_unit}; resume with length_unit={counted}, or start "
            "a run in another output_dir"
        )
    # sharded ones, in folders of FSDP and DeepSpeed, are checked by those
    sharded = any(name.startswith(("global_step", "optimizer_", "pytorch_model_fsdp")) for name in names)
    expected = [] if sharded or weights_only else ["optimizer.pt", "scheduler.pt"]
    if not sharded and "model.safetensors.index.json" not in names:
        expected.append(f"{'adapter_' * ('adapter_config.json' in names)}model.safetensors")
    broken = next((f"has no {name}" for name in expected if name not in names), None)
    for path in sorted(folder.iterdir()):
        if path.suffix in (".pt", ".pth") and not zipfile.is_zipfile(path):  # as torch.save writes them
            broken = f"holds a broken {path.name}"
        if path.suffix == ".safetensors":
            try:
                with safe_open(path, "pt"):
                    pass
            except (SafetensorError, OSError) as error:
                broken = f"holds a broken {path.name} ({error})"
    if broken is not None:
        raise ValueError(f"{folder} {broken}; remove the folder to go on from the one before it")
