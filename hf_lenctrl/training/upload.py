"""What a `Trainer` uploads: the model alone, never a token, rows of text, or a pickle of its arguments."""

import shutil
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers import Trainer
from transformers.trainer_utils import HubStrategy, SaveStrategy
from transformers.utils import PushInProgress


_LOADED = (  # what `from_pretrained` reads
    *("config.json", "generation_config.json", "adapter_config.json", "adapter_model.safetensors"),
    *("model.safetensors", "model.safetensors.index.json", "model-?????-of-?????.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "*.spm", "*.model"),
    *("vocab.json", "vocab.txt", "merges.txt", "target_vocab.json", "bpe.codes", "chat_template.jinja"),
    *(path.name for path in Path(__file__).parents[1].glob("*.py")),  # for `trust_remote_code`
)
# `base` is the model of an adapter
MODEL = (*_LOADED, *(f"{folder}/{name}" for folder in ("length_predictor", "base") for name in _LOADED))
FIGURES = tuple(f"{name}_results.json" for name in ("all", "train", "eval", "validation", "test", "test_[0-9]*"))
CARD = ("README.md", "report.png", "predictor_table.json", *FIGURES)
STATE = (  # what training resumes from
    *("trainer_state.json", "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state*.pth"),
    *("pytorch_model_fsdp_*/*", "optimizer_*/*", "global_step*/*", "latest"),  # sharded
)


def uploaded(folder: str | Path, names: Iterable[str]) -> list[str]:
    """
    The files of a folder that an upload may hold.

    Args:
        folder (`str` or `Path`): A model's folder or a checkpoint.
        names (`Iterable[str]`): Of `MODEL`, `CARD` and `STATE`; each allows files at its own depth.

    Returns:
        `list[str]`: paths inside the folder, in order.
    """
    paths = [path.relative_to(folder).as_posix() for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    return [p for p in paths if any(p.count("/") == name.count("/") and fnmatchcase(p, name) for name in names)]


class _Token(str):
    """A token that pickles as `None`."""

    def __reduce_ex__(self, protocol):
        return type(None), ()

    def __deepcopy__(self, memo):
        return self


def hide_token(args) -> None:
    """Keep the token of `TrainingArguments` out of `training_args.bin`, which Trainer writes into each checkpoint."""
    if args.hub_token is not None:
        args.hub_token = _Token(args.hub_token)


class HubTrainer(Trainer):
    """
    `Trainer` whose uploads hold model, tokenizer, code, card and figures, and with `hub_strategy="checkpoint"` or
    `"all_checkpoints"` also the state to resume from. Stock uploads hold all that is in `output_dir`.

    The files are chosen here, by name: only the public Hub honours a `.gitignore`.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        hide_token(self.args)

    def push_to_hub(
        self, commit_message="End of training", blocking=True, token=None, revision=None, private=None, **kwargs
    ):
        """
        As `Trainer.push_to_hub`.

        Raises:
            `OSError`: when the Hub refuses; the folder is complete.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        try:
            self.create_model_card(**kwargs)
            self._finish_current_push()
            options = {"token": token or self.args.hub_token, "revision": revision or self.args.hub_revision}
            return self._upload(
                self.args.output_dir, (*MODEL, *CARD), commit_message, run_as_future=not blocking, **options
            )
        except Exception as error:  # the Hub's refusals, and those of the HTTP library below it
            raise OSError(
                f"{self.args.output_dir} holds the whole model, but it was not uploaded: {error}; give the same "
                "command again to upload it"
            ) from error

    def save_model(self, output_dir=None, _internal_call=False):
        if output_dir is None and self.args.push_to_hub:
            self._finish_current_push()  # of a checkpoint's weights, from the files that are written now
        backend = getattr(self.processing_class, "backend_tokenizer", None)
        if backend is not None:  # a fast tokenizer saves the truncation and padding of its last call
            backend.no_truncation()
            backend.no_padding()
        super().save_model(output_dir, _internal_call)

    def _push_from_checkpoint(self, checkpoint_folder):
        args, last = self.args, self.args.hub_strategy == HubStrategy.CHECKPOINT
        if not self.is_world_process_zero() or args.hub_strategy == HubStrategy.END:
            return
        with_state = last or args.hub_strategy == HubStrategy.ALL_CHECKPOINTS
        if with_state or args.hub_always_push:
            self._finish_current_push()  # its files are written anew or deleted next
        elif self.push_in_progress is not None and not self.push_in_progress.is_done():
            return
        self.callback_handler.on_push_begin(args, self.state, self.control)
        output_dir = Path(str(args.output_dir))
        for name in uploaded(checkpoint_folder, MODEL):  # the checkpoint may be deleted before they are uploaded
            shutil.copy(Path(checkpoint_folder, name), output_dir / name)
        in_steps = args.save_strategy == SaveStrategy.STEPS
        when = f"step {self.state.global_step}" if in_steps else f"epoch {int(self.state.epoch or 0)}"
        message = f"Training in progress, {when}"
        options = {"token": args.hub_token, "revision": args.hub_revision, "run_as_future": True}
        jobs = [self._upload(output_dir, MODEL, message, **options)]
        if with_state:
            options["path_in_repo"] = "last-checkpoint" if last else Path(checkpoint_folder).name
            jobs.append(self._upload(checkpoint_folder, (*MODEL, *STATE), f"{message}, checkpoint", **options))
        self.push_in_progress = PushInProgress(jobs)

    def _upload(self, folder, names, message: str, **options: Any):
        upload: Any = HfApi().upload_folder
        return upload(
            repo_id=self.hub_model_id,
            folder_path=folder,
            allow_patterns=uploaded(folder, names),
            commit_message=message,
            **options,
        )
