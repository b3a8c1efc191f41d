"""What a run needs beside its Trainer: permission to upload, a length predictor."""

import logging
import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import create_repo, get_session, upload_file

from ..evaluation.metrics import rouge_metrics, translation_metrics
from ..length_predictor import load_predictor


logger = logging.getLogger(__name__)

HUB_TIMEOUT = 300.0  # seconds without an answer; by itself the Hub's client waits for ever
# what the public Hub leaves out when somebody uploads the folder by hand; our own uploads choose their files: hub.py
NOT_UPLOADED = b"*.jsonl\n.lock\n/tokenizer/\n/runs/\ntraining_args.bin\n"


def set_up(args) -> None:
    """Logging and seed of a run."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.INFO)
    transformers.utils.logging.set_verbosity(args.get_process_log_level())
    logging.getLogger("absl").setLevel(logging.WARNING)  # rouge_score says each time which tokenizer it takes
    if not torch.accelerator.is_available():
        args.dataloader_pin_memory = False  # there is no device to copy to, of which PyTorch warns
    transformers.set_seed(args.seed)
    logger.info("computing in %s, on %s", precision(args), args.device.type)


def precision(args) -> str:
    """What a run computes in; `run.json` has it as `bf16` and `fp16`."""
    return "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32"


def check_optional_parts(run_args) -> None:
    """
    See before the first step that what is measured after the last can be measured.

    Raises:
        `ImportError`: without a package that the figures need, such as MeCab.
    """
    if run_args.bleu_tokenizer is not None:
        translation_metrics(["a"], ["a"], bleu_tokenizer=run_args.bleu_tokenizer)
    else:
        rouge_metrics(["a"], ["a"], unit=run_args.rouge_unit)
    if find_spec("matplotlib") is None:
        logger.warning("the model card will have no picture: matplotlib is missing, pip install matplotlib")


def check_upload(args) -> None:
    """
    Check upload permission before training, by a commit: `create_repo` accepts a repository of somebody else.

    Args:
        args (`TrainingArguments`): Those of the run.

    Raises:
        `OSError`: when the upload is refused.
    """
    if not args.push_to_hub or args.process_index != 0:
        return
    name = args.hub_model_id or Path(args.output_dir).absolute().name
    get_session().timeout = HUB_TIMEOUT
    try:
        repo = create_repo(name, token=args.hub_token, private=args.hub_private_repo, exist_ok=True)
        upload_file(
            path_or_fileobj=NOT_UPLOADED,
            path_in_repo=".gitignore",
            repo_id=repo.repo_id,
            token=args.hub_token,
            revision=args.hub_revision,
            commit_message="Leave out data and arguments",
        )
    except Exception as error:  # the Hub's refusals, and those of the HTTP library below it
        raise OSError(
            f"cannot upload to {name}, so nothing was trained: {error}; sign in (hf auth login), name a repository of "
            "your own with hub_model_id=, or leave out push_to_hub"
        ) from error


def trained_tokenizer(output_dir: str | Path, train: Callable[[Path], Any]) -> Path:
    """
    The folder of the tokenizer that a run trains for itself. It has its name only when it is whole: what a run that
    was killed leaves is `tokenizer.part`. Call it in `main_process_first`.

    Args:
        output_dir (`str` or `Path`): The run's folder.
        train (`Callable`): Trains the tokenizer and saves it in the folder that it is given; called where none is.

    Raises:
        `ValueError`: where the folder holds something else.
        `RuntimeError`: in a process that is not the first, where the first has written none.
    """
    folder, part = Path(output_dir, "tokenizer"), Path(output_dir, "tokenizer.part")
    if (folder / "tokenizer_config.json").is_file():
        return folder
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder} holds files, but no tokenizer; remove it, or name another output_dir")
    if int(os.environ.get("LOCAL_RANK", 0)) > 0:
        raise RuntimeError(f"the first process writes {folder}, and has written none; look at its error")
    shutil.rmtree(part, ignore_errors=True)
    train(part)
    part.replace(folder)
    return folder


def remove_tokenizer(output_dir: str | Path) -> None:
    """Remove what `trained_tokenizer` wrote, so that no half of it keeps the name."""
    part = Path(output_dir, "tokenizer.part")
    shutil.rmtree(part, ignore_errors=True)
    Path(output_dir, "tokenizer").replace(part)
    shutil.rmtree(part)


def add_length_predictor(model, name: str | None, output_dir, save: bool = True) -> None:
    """
    Make a predictor part of a model's folder, so that `length="predict"` works with the folder or its Hub name alone.

    Args:
        model (`PreTrainedModel`): Whose configuration names it from now on.
        name (`str`, *optional*): Folder or Hub name of the predictor; by default the one inside the checkpoint that
            the run goes on with, if there is one.
        output_dir (`str` or `Path`): The model's folder.
        save (`bool`, *optional*, defaults to `True`): Whether this process writes.

    Raises:
        `ValueError`: for another model, or a predictor of another unit.
    """
    own, subfolder = getattr(model.config, "length_predictor", None), ""
    if name is None:
        if own is None or not own.startswith("./"):
            return
        name, subfolder = model.config.name_or_path, own[2:]
    predictor, tokenizer = load_predictor(name, subfolder=subfolder)
    unit = model.config.length_unit
    if predictor.config.length_unit != unit:
        raise ValueError(
            f"length_predictor={name} predicts {predictor.config.length_unit}s, the model counts {unit}s; train one "
            f"with length_unit={unit}"
        )
    folder = Path(output_dir, "length_predictor")
    if save:
        predictor.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    model.config.length_predictor = f"./{folder.name}"
