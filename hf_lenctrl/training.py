"""What the recipes add to Trainer: a collator for training alone, checks before it begins, and a time budget."""

import logging
import time
import zipfile
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import create_repo, get_session, upload_file
from safetensors import SafetensorError, safe_open
from torch.utils.data import Sampler
from transformers import Seq2SeqTrainer, TrainerCallback
from transformers.trainer_pt_utils import LengthGroupedSampler

from .data_collator import DataCollatorForLengthControl
from .length_predictor import load_predictor
from .model_card import TrainingRun, model_card


logger = logging.getLogger(__name__)

HUB_TIMEOUT = 300.0  # seconds without an answer; by itself the Hub's client waits for ever
# not part of a model: the rows, the run's own state (pickles among it), and a second copy of the tokenizer
NOT_UPLOADED = ["*.jsonl", "/tokenizer/", "/runs/", "training_args.bin"]


def prepare_upload(args) -> None:
    """
    See that a run may upload its model, before hours of work are to be uploaded, and keep from the Hub what is none.

    The first process makes the repository and uploads a `.gitignore`. `create_repo` alone does not tell: it is content
    with a repository of somebody else. The Hub leaves out what the file names in this and in every later upload.

    Args:
        args (`TrainingArguments`): Those of the run.

    Raises:
        `OSError`: where it may not.
    """
    if not args.push_to_hub or args.process_index != 0:
        return
    name = args.hub_model_id or Path(args.output_dir).absolute().name
    file = Path(args.output_dir, ".gitignore")
    if not file.exists():
        kept = args.hub_strategy == "all_checkpoints"
        file.write_text("".join(f"{line}\n" for line in [*NOT_UPLOADED, *([] if kept else ["checkpoint-*/"])]))
    get_session().timeout = HUB_TIMEOUT
    try:
        repo = create_repo(name, token=args.hub_token, private=args.hub_private_repo, exist_ok=True)
        upload_file(
            path_or_fileobj=file,
            path_in_repo=".gitignore",
            repo_id=repo.repo_id,
            token=args.hub_token,
            revision=args.hub_revision,
            commit_message="Leave out checkpoints and data",
        )
    except Exception as error:  # the Hub's refusals, and those of an HTTP library that depends on the Hub's version
        raise OSError(
            f"cannot upload to {name}, so nothing was trained: {error}; sign in (hf auth login), name a repository of "
            "your own with hub_model_id=, or leave out push_to_hub"
        ) from error


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


def check_checkpoint(folder: str | Path, weights_only: bool = False) -> None:
    """
    See that a checkpoint is whole: where the optimizer's file is missing Trainer would begin a new one, silently.

    Args:
        weights_only (`bool`, *optional*, defaults to `False`): It was saved with `save_only_model`.

    Raises:
        `ValueError`: for a file that is missing or cut off.
    """
    folder = Path(folder)
    names = {path.name for path in folder.iterdir()}
    # sharded ones, in folders of FSDP and DeepSpeed, are checked by those
    sharded = any(name.startswith(("global_step", "optimizer_", "pytorch_model_fsdp")) for name in names)
    expected = [] if sharded or weights_only else ["optimizer.pt", "scheduler.pt"]
    if not sharded and "model.safetensors.index.json" not in names:
        expected.append("model.safetensors")
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


def prepare_streaming(args) -> None:
    """
    See that a run can train on a stream, and let Trainer hand its rows to the collator as they are.

    Raises:
        `ValueError`: without `max_steps`, or with batches of like lengths.
    """
    if args.max_steps <= 0:
        raise ValueError("streaming has no end that it knows; say after how many steps to stop: max_steps=")
    if args.train_sampling_strategy not in ("random", "sequential"):
        raise ValueError(
            f"streaming does not know the lengths of rows to come, so train_sampling_strategy="
            f"{args.train_sampling_strategy} is not possible; use random (of a buffer) or sequential"
        )
    args.remove_unused_columns = False  # the epoch of a row
    # each process collates its own rows: those of two could not be put together, being padded to other lengths
    args.accelerator_config.dispatch_batches = False


class StreamCollator(DataCollatorForLengthControl):
    """`DataCollatorForLengthControl` for rows of `hf_lenctrl.data.Stream`, which know their epoch."""

    def __call__(self, features, return_tensors=None):
        self._epochs = iter([feature["epoch"] for feature in features])
        features = [{name: value for name, value in row.items() if name != "epoch"} for row in features]
        return super().__call__(features, return_tensors)

    def _draw(self, feature):
        self.set_epoch(next(self._epochs))
        return super()._draw(feature)


class LengthControlTrainer(Seq2SeqTrainer):
    """
    `Seq2SeqTrainer` whose training batches come from `train_collator`, the others from `data_collator`, and whose
    length projection, the one new layer of a pretrained model, learns at `projection_lr_factor` times the rate.

    Each target token weighs the same in an optimizer step, whichever process or accumulated batch it is in.

    Once `run` (`hf_lenctrl.model_card.TrainingRun`) is set, the model card is written from it. With `weights_dtype`
    (`"float16"`, `"bfloat16"`) the final model's weights are rounded and saved so, though computed with as before.
    """

    def __init__(
        self, *args, train_collator, projection_lr_factor: float = 1.0, weights_dtype: str | None = None, **kwargs
    ):
        super().__init__(*args, **kwargs)
        if self.args.torch_compile:  # one graph for batches of every size, instead of one for each new length
            self.accelerator.state.dynamo_plugin.dynamic = True
        self.compute_loss_func = self._token_mean
        self.run: TrainingRun | None = None
        self.weights_dtype = None if weights_dtype is None else getattr(torch, weights_dtype)
        self.train_collator = train_collator
        self.projection_lr_factor = projection_lr_factor
        self.add_callback(_SetEpoch(train_collator))

    def _token_mean(self, outputs, labels, num_items_in_batch=None):
        # a model's own loss is the mean of its batch, and the mean of two means is not that of all their tokens
        if self.label_smoother is not None:
            return self.label_smoother(outputs, labels, num_items_in_batch=num_items_in_batch)
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        total = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
        return total / ((labels != -100).sum() if num_items_in_batch is None else num_items_in_batch)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        # nothing is generated here, but a model that sees no labels keeps a cache
        inputs = {"use_cache": False, **inputs}
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def evaluation_loop(self, *args, **kwargs):
        # Seq2SeqTrainer's keeps the rows that fill up the last batch of several processes, and they would count twice
        self.gather_function = self.accelerator.gather_for_metrics
        return super().evaluation_loop(*args, **kwargs)

    def create_optimizer(self, model=None):
        if self.optimizer is not None or self.projection_lr_factor == 1.0:
            return super().create_optimizer(model)
        optimizer = super().create_optimizer(model)
        names = dict((self.model if model is None else model).named_parameters())
        new = [p for name, p in names.items() if name.endswith("length_projection.weight")]
        if not new:
            raise ValueError(
                f"projection_lr_factor={self.projection_lr_factor} needs a model with a length projection; start from "
                "a plain checkpoint (base_model=), or leave it out"
            )
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if not any(p is q for q in new)]
        optimizer.add_param_group({"params": new, "lr": self.projection_lr_factor * self.args.learning_rate})
        return optimizer

    def push_to_hub(self, *args, **kwargs):
        try:
            return super().push_to_hub(*args, **kwargs)
        except Exception as error:  # see prepare_upload
            raise OSError(
                f"{self.args.output_dir} holds the whole model, but it was not uploaded: {error}; give the same "
                "command again to upload it"
            ) from error

    def save_model(self, output_dir=None, _internal_call=False):
        if output_dir is None and self.args.push_to_hub:
            self._finish_current_push()  # of a checkpoint's weights, from the files that are written now
        if output_dir is not None or self.weights_dtype is None:  # checkpoints, to go on from, stay as they are
            return super().save_model(output_dir, _internal_call)
        model = self.accelerator.unwrap_model(self.model)
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(weight.to(self.weights_dtype))  # what is tested is what is saved
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            weights: dict[int, torch.Tensor] = {}  # tied weights stay one tensor
            state = {
                name: weights.setdefault(value.data_ptr(), value.to(self.weights_dtype))
                if value.is_floating_point()
                else value
                for name, value in model.state_dict().items()
            }
            model.save_pretrained(self.args.output_dir, state_dict=state)

    def create_model_card(self, language=None, license=None, tags=None, model_name=None, **kwargs):
        """Write `README.md`, and `report.png` where matplotlib is there, from `run`; without a run as Trainer does."""
        if self.run is None:
            return super().create_model_card(language, license, tags, model_name, **kwargs)
        if not self.is_world_process_zero():
            return
        model: Any = self.accelerator.unwrap_model(self.model)
        folder, unit = Path(str(self.args.output_dir)), getattr(model.config, "length_unit", "character")
        try:
            picture = self.run.save_picture(folder / "report.png", unit, self.processing_class)
        except ImportError as error:
            logger.info("the model card has no picture: %s", error)
            picture = False
        name = self.args.hub_model_id or model_name or folder.resolve().name
        model_card(model, self.run, name, picture=picture).save(folder / "README.md")

    def _get_train_sampler(self, train_dataset=None):
        sampler = super()._get_train_sampler(train_dataset)
        # Trainer's draws from the global generator, so that a resumed epoch would have other batches than a whole one
        return _Seeded(sampler, self.args.seed) if isinstance(sampler, LengthGroupedSampler) else sampler

    def get_train_dataloader(self):
        evaluation_collator, self.data_collator = self.data_collator, self.train_collator
        try:
            return super().get_train_dataloader()
        finally:
            self.data_collator = evaluation_collator


class _Seeded(Sampler):
    """A sampler whose order is a function of seed and epoch."""

    def __init__(self, sampler: LengthGroupedSampler, seed: int):
        self.sampler, self.seed, self.epoch = sampler, seed, 0
        sampler.generator = torch.Generator()

    def set_epoch(self, epoch: int):
        self.epoch = epoch

    def __len__(self):
        return len(self.sampler)

    def __iter__(self):
        self.sampler.generator.manual_seed(self.seed + self.epoch)
        return iter(self.sampler)


class _SetEpoch(TrainerCallback):
    """Tells a collator the epoch, before dataloader workers start."""

    def __init__(self, collator):
        self.collator = collator

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.collator.set_epoch(int(state.epoch or 0))


class TimeBudget(TrainerCallback):
    """Ends training in good order once `minutes` are over."""

    def __init__(self, minutes: float):
        self.seconds = 60 * minutes

    def on_train_begin(self, args, state, control, **kwargs):
        self.end = time.monotonic() + self.seconds

    def on_step_end(self, args, state, control, **kwargs):
        over = time.monotonic() >= self.end
        if args.world_size > 1:  # all stop at the same step, or those that go on wait for the others for ever
            flag = torch.tensor(float(over), device=args.device)
            torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
            over = bool(flag)
        if over:
            logger.info("the time budget is used up at step %d of %d", state.global_step, state.max_steps)
            control.should_training_stop = True
            control.should_save = True  # to go on from, and to average
