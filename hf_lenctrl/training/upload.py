"""A `Trainer` that uploads only the model and its card: no access token, test outputs or pickled arguments."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from huggingface_hub import HfApi, create_repo, get_session, upload_file
from transformers import Trainer
from transformers.trainer_utils import HubStrategy


_LOADED = (  # `from_pretrained` reads these files
    *("config.json", "generation_config.json", "adapter_config.json", "adapter_model.safetensors"),
    *("model.safetensors", "model.safetensors.index.json", "model-?????-of-?????.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "*.spm", "*.model"),
    *("vocab.json", "vocab.txt", "merges.txt", "target_vocab.json", "bpe.codes", "chat_template.jinja"),
    *(path.name for path in Path(__file__).parents[1].glob("*.py")),  # `trust_remote_code` needs the code
)
MODEL = (*_LOADED, *(f"length_predictor/{name}" for name in _LOADED))
FIGURES = tuple(f"{name}_results.json" for name in ("all", "train", "eval", "validation", "test", "test_[0-9]*"))
CARD = ("README.md", "report.png", "predictor_table.json", *FIGURES)
HUB_TIMEOUT = 300.0  # seconds without an answer; by default the Hub's client waits for ever
# the public Hub ignores these files if somebody uploads the folder by hand
NOT_UPLOADED = b"_run/\ncheckpoint-*/\n*.jsonl\n/runs/\ntraining_args.bin\n"


def uploaded(folder: str | Path, names: Iterable[str]) -> list[str]:
    """
    Return the paths of the files in `folder` that match a pattern in `names`, sorted and relative to `folder`. In a
    pattern, `*` does not match a slash.
    """
    paths = [path.relative_to(folder).as_posix() for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    return [p for p in paths if any(p.count("/") == name.count("/") and fnmatchcase(p, name) for name in names)]


class _Token(str):
    """An access token that is pickled as `None`."""

    def __reduce_ex__(self, protocol):
        return type(None), ()

    def __deepcopy__(self, memo):
        return self


def hide_token(args) -> None:
    """Keep the access token out of `training_args.bin`, which Trainer writes into each checkpoint."""
    if args.hub_token is not None:
        args.hub_token = _Token(args.hub_token)


def check_upload(args) -> None:
    """
    Test before training that an upload is allowed, if `push_to_hub` is set. The test makes the repository and commits
    a `.gitignore`, because `create_repo` alone also accepts an existing repository of another user. Raise `OSError` if
    the test fails.
    """
    if not args.push_to_hub or args.process_index != 0:
        return
    only_at_the_end(args)
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
    except Exception as error:  # errors of the Hub and of the HTTP library
        raise OSError(f"cannot upload to {name}, so nothing was trained: {error}; sign in by hf auth login") from error


def only_at_the_end(args) -> None:
    """Let Trainer upload only once, at the end. Raise `ValueError` if `hub_strategy` uploads checkpoints."""
    if args.push_to_hub and args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
        raise ValueError(f"hub_strategy={args.hub_strategy.value} uploads checkpoints; use hub_strategy=end")
    args.hub_strategy = HubStrategy.END  # no error for `every_save`, because it is the default


class HubTrainer(Trainer):
    """
    A `Trainer` that uploads once, at the end: model, tokenizer, code, card and metrics. The base class would upload
    all files of `output_dir`. The files are chosen by name, because only the public Hub respects a `.gitignore`.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        only_at_the_end(self.args)
        hide_token(self.args)

    def load_trained(self, checkpoint: str | Path) -> None:
        """Load the weights of a checkpoint of a finished run, instead of training."""
        # this method of transformers 5.23 is private, but no public method loads adapters, shards and whole models
        self._load_from_checkpoint(str(checkpoint))

    def push_to_hub(
        self, commit_message="End of training", blocking=True, token=None, revision=None, private=None, **kwargs
    ):
        """Upload the model and its card, see `Trainer.push_to_hub`. Raise `OSError` if the upload fails."""
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        folder = str(self.args.output_dir)
        try:
            self.create_model_card(**kwargs)
            return HfApi().upload_folder(
                repo_id=str(self.hub_model_id),
                folder_path=folder,
                allow_patterns=uploaded(folder, (*MODEL, *CARD)),
                commit_message=commit_message or "End of training",
                token=token or self.args.hub_token,
                revision=revision or self.args.hub_revision,
                run_as_future=not blocking,
            )
        except Exception as error:  # errors of the Hub and of the HTTP library
            raise OSError(f"{folder} holds the model, which was not uploaded: {error}; repeat the command") from error

    def save_model(self, output_dir=None, _internal_call=False):
        backend = getattr(self.processing_class, "backend_tokenizer", None)
        if backend is not None:  # a fast tokenizer saves the truncation and padding of its last call
            backend.no_truncation()
            backend.no_padding()
        super().save_model(output_dir, _internal_call)
