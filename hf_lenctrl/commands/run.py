"""The steps that all training commands share: set-up, training of the tokenizer and the model, upload."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from .checkpoints import check_checkpoint, finished_with, last_checkpoint, state_of
from .locking import kept


logger = logging.getLogger(__name__)


def set_up(args) -> None:
    """Set the log levels and the random seeds of a run. `args` are the run's `TrainingArguments`."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.INFO)
    transformers.utils.logging.set_verbosity(args.get_process_log_level())
    logging.getLogger("absl").setLevel(logging.WARNING)  # rouge_score logs its tokenizer at each call
    if not torch.accelerator.is_available():
        args.dataloader_pin_memory = False  # PyTorch warns if there is no device to copy to
    transformers.set_seed(args.seed)
    precision = "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32"
    logger.info("computing in %s, on %s", precision, args.device.type)


def check_evaluation(args, rows) -> None:
    """Raise `ValueError` if `eval_strategy` asks for evaluations, but there are no validation rows."""
    strategy = args.eval_strategy.value
    if strategy != "no" and rows.get("validation") is None:
        raise ValueError(
            f"--eval_strategy {strategy} needs validation rows; give --validation_file, or --eval_strategy no"
        )


def _tokenizer_of(output_dir: str | Path) -> tuple[Path, Path]:
    """
    Return two paths: the folder of a run's tokenizer, and the place where it lies while it is written or deleted.
    """
    folder = kept(output_dir, "tokenizer")
    shutil.rmtree(part := folder.with_suffix(".part"), ignore_errors=True)  # left by a killed run
    return folder, part


def trained_tokenizer(output_dir: str | Path, train: Callable[[Path], Any]) -> Path:
    """
    Return the folder of the tokenizer that a run trains itself. If the folder does not exist, call `train` to save a
    tokenizer in a temporary folder, then rename this folder. Call this function in `main_process_first`, so that only
    one process trains.
    """
    folder, part = _tokenizer_of(output_dir)
    if not folder.is_dir():
        train(part)
        part.replace(folder)
    return folder


def remove_tokenizer(output_dir: str | Path) -> None:
    """
    Remove the tokenizer that `trained_tokenizer` saved for the run in `output_dir`. Rename the tokenizer's folder
    before deleting it, so that a killed command leaves no incomplete tokenizer under the usual name.
    """
    folder, part = _tokenizer_of(output_dir)
    if folder.is_dir():
        folder.replace(part)
        shutil.rmtree(part)


def fit(trainer, record, on_trained: Callable[[Any], str | None] | None = None) -> tuple[dict[str, float], list[str]]:
    """
    Train a model, or resume an interrupted training, or load the model if its training is finished. Then save the
    model. Before saving, call `on_trained` with the Trainer; this call may return a sentence for the card. `record` is
    the `RunRecord`.

    Return two values: the training metrics (empty if the training was already finished), and sentences about the
    history of the training.
    """
    args, metrics, done, trained = trainer.args, {}, 0, None
    checkpoint = args.resume_from_checkpoint or last_checkpoint(args.output_dir)
    if checkpoint is not None:
        check_checkpoint(checkpoint, args.save_only_model)
        state, trained = state_of(checkpoint), finished_with(checkpoint, args)
        done = state.global_step
    if trained is not None:
        logger.info("training is finished: %s", trained)  # Trainer would train one more step
        trainer.load_trained(trained)
    else:
        if checkpoint is not None:
            logger.info("resuming from %s", checkpoint)
        record.begin(done, len(trainer.train_dataset))
        metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
        state = trainer.state
        # the speed that Trainer measures also counts the steps before a resumed start
        metrics["train_seconds_per_step"] = metrics["train_runtime"] / max(1, state.global_step - done)
        trainer.save_metrics("train", metrics)
    trainer.accelerator.wait_for_everyone()  # the first process may still write or delete checkpoints
    history = record.history(state)
    if on_trained is not None and (sentence := on_trained(trainer)) is not None:
        history.append(sentence)
        logger.info(sentence)
    trainer.save_model(_internal_call=True)  # no upload, because `publish` uploads the model with its card
    return metrics, history


def publish(trainer) -> None:
    """Upload the model and its card if `push_to_hub` is set; otherwise only write the card."""
    if trainer.args.push_to_hub:
        trainer.push_to_hub()
    else:
        trainer.create_model_card()
