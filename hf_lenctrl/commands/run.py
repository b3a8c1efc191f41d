"""What every training has: its set-up, the files that it keeps for itself, and the training of its Trainer."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from .checkpoints import check_checkpoint, finished_with, last_checkpoint, trained_steps
from .locking import kept


logger = logging.getLogger(__name__)


def set_up(args) -> None:
    """Logging and seed of a run."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.INFO)
    transformers.utils.logging.set_verbosity(args.get_process_log_level())
    logging.getLogger("absl").setLevel(logging.WARNING)  # rouge_score says each time which tokenizer it takes
    if not torch.accelerator.is_available():
        args.dataloader_pin_memory = False  # there is no device to copy to, of which PyTorch warns
    transformers.set_seed(args.seed)
    precision = "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32"
    logger.info("computing in %s, on %s", precision, args.device.type)


def _tokenizer_of(output_dir: str | Path) -> tuple[Path, Path]:
    """The folder of a run's tokenizer, and one without its name, which another run removes."""
    folder = kept(output_dir, "tokenizer")
    shutil.rmtree(part := folder.with_suffix(".part"), ignore_errors=True)  # of a run that was killed
    return folder, part


def trained_tokenizer(output_dir: str | Path, train: Callable[[Path], Any]) -> Path:
    """
    The folder of the tokenizer that a run trains for itself: `train` saves one in the folder that it is given, where
    there is none yet; it has its name only when it is whole. Call it in `main_process_first`.
    """
    folder, part = _tokenizer_of(output_dir)
    if not folder.is_dir():
        train(part)
        part.replace(folder)
    return folder


def remove_tokenizer(output_dir: str | Path) -> None:
    """Remove what `trained_tokenizer` made, if anything, so that no half of it keeps the name."""
    folder, part = _tokenizer_of(output_dir)
    if folder.is_dir():
        folder.replace(part)
        shutil.rmtree(part)


def fit(trainer, record, settle: Callable[[Any], str | None] | None = None) -> tuple[dict[str, float], list[str]]:
    """
    Train, or resume, or load what is trained; save the model. `settle` is called with the Trainer before, and may
    return a sentence for the card. Returns the figures of the training, and sentences on what was trained.
    """
    args, metrics, done, trained = trainer.args, {}, 0, None
    checkpoint = args.resume_from_checkpoint or last_checkpoint(args.output_dir)
    if checkpoint is not None:
        check_checkpoint(checkpoint, args.save_only_model)
        done, trained = trained_steps(checkpoint), finished_with(checkpoint, args)
    if trained is not None:
        logger.info("training is finished: %s", trained)  # Trainer would take one more step
        trainer.load_trained(trained)
    else:
        if checkpoint is not None:
            logger.info("resuming from %s", checkpoint)
        record.begin(done)
        metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
        state = trainer.state
        # Trainer divides by the steps before a resumed run, too
        metrics["train_seconds_per_step"] = metrics["train_runtime"] / max(1, state.global_step - done)
        trainer.save_metrics("train", metrics)
        whole = state.global_step >= state.max_steps
        why = "the last step" if whole else f"ended before step {state.max_steps}, the last of its schedule"
        record.end(state.global_step, state.epoch or 0.0, why)
    trainer.accelerator.wait_for_everyone()  # the first process may still be writing or deleting checkpoints
    history = record.history()
    if settle is not None and (told := settle(trainer)) is not None:
        history.append(told)
        logger.info(told)
    trainer.save_model(_internal_call=True)  # uploaded once, at the end, with its card
    return metrics, history


def publish(trainer) -> None:
    """Upload the model with its card, where it was asked for, or write the card."""
    if trainer.args.push_to_hub:
        trainer.push_to_hub()
    else:
        trainer.create_model_card()
