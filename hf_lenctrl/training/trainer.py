"""Trainers that have a separate collator for training batches, and whose runs can be resumed exactly."""

import logging
import math
from collections.abc import Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils.data import Sampler, SequentialSampler
from transformers import Seq2SeqTrainer, TrainerCallback
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import has_length

from ..adapters import save_control
from .collator import DataCollatorForLengthControl, DrawsByExample
from .model_card import TrainingRun, model_card
from .packing import PackedRows
from .upload import HubTrainer


logger = logging.getLogger(__name__)


def range_of(lengths: Sequence[int]) -> dict[str, int]:
    """
    Return the 1st, 50th and 99th percentile and the maximum of target lengths, for the field `trained_lengths` of a
    configuration.

    Example:

    ```python
    >>> from hf_lenctrl.training.trainer import range_of
    >>> range_of(range(1, 201))
    {'1%': 2, '50%': 100, '99%': 198, 'max': 200}

    ```
    """
    ordered = sorted(lengths)
    places = {f"{percent}%": math.ceil(percent / 100 * len(ordered)) - 1 for percent in (1, 50, 99)}
    return {name: ordered[place] for name, place in places.items()} | {"max": ordered[-1]}


class ResumableTrainer(HubTrainer):
    """
    A `Trainer` with a separate collator for training. Training batches come from `train_collator`, and evaluation
    batches from `data_collator`; `train_collator` defaults to `data_collator`. A resumed run has the same batches as
    an uninterrupted run. The learning rate of the length projection, a layer that length control adds to a pretrained
    model, is multiplied by `projection_lr_factor`.

    If `run` (`hf_lenctrl.training.model_card.TrainingRun`) is set, the model card describes this run. If
    `weights_dtype` is `"float16"` or `"bfloat16"`, the final trained weights are rounded to this type and saved in it;
    the model in memory keeps its own type. If the model has an adapter, `save_control` also saves the
    configuration of its length control in the adapter's folder.
    """

    def __init__(
        self,
        *args,
        train_collator=None,
        projection_lr_factor: float = 1.0,
        weights_dtype: str | None = None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        if has_length(self.train_dataset) and not len(cast(Sized, self.train_dataset)):
            raise ValueError("train_dataset needs at least one example, got none; leave it out to evaluate only")
        self.run: TrainingRun | None = None
        self.weights_dtype = None if weights_dtype is None else getattr(torch, weights_dtype)
        self.projection_lr_factor = projection_lr_factor
        self.train_collator: Any = train_collator or self.data_collator
        if isinstance(self.train_collator, DrawsByExample):
            self.add_callback(_SetEpoch(self.train_collator))

    def _issue_warnings_after_load(self, load_result):
        # private method of transformers 5.23: Trainer warns that tied weights and constant positions are missing, but
        # no checkpoint has them
        left_out = {*(self.model._keys_to_ignore_on_save or ()), *getattr(self.model, "all_tied_weights_keys", ())}
        load_result.missing_keys[:] = [name for name in load_result.missing_keys if name not in left_out]
        super()._issue_warnings_after_load(load_result)

    def _get_train_sampler(self, train_dataset=None):
        rows = self.train_dataset if train_dataset is None else train_dataset
        columns, by_length = getattr(rows, "column_names", []), self.args.train_sampling_strategy == "group_by_length"
        if by_length and {"input_ids", "labels"} <= {*columns} and self.args.length_column_name not in columns:
            # Trainer's sampler groups by the source only, which doubles the padding, and reads the rows one by one
            pairs = zip(rows["input_ids"], rows["labels"], strict=True)
            lengths = [max(len(source), len(target)) for source, target in pairs]
            batch_size = self.args.train_batch_size * self.args.gradient_accumulation_steps
            sampler = LengthGroupedSampler(batch_size, lengths=lengths)
        else:
            sampler = super()._get_train_sampler(train_dataset)
        # private method of transformers 5.23: Trainer's sampler draws from the global generator, so a resumed epoch
        # would have other batches than an uninterrupted one
        return _Seeded(sampler, self.args.seed) if isinstance(sampler, LengthGroupedSampler) else sampler

    def _get_eval_sampler(self, eval_dataset):
        # private method of transformers 5.23: with `group_by_length` Trainer's sampler also orders these rows by
        # length, so outputs would not be in the order of the rows
        sampler = super()._get_eval_sampler(eval_dataset)
        return SequentialSampler(eval_dataset) if isinstance(sampler, LengthGroupedSampler) else sampler

    def get_train_dataloader(self):
        evaluation_collator, self.data_collator = self.data_collator, self.train_collator
        pairs, collator = self.train_dataset, self.train_collator
        if isinstance(collator, DataCollatorForLengthControl) and collator.packing is not None:
            batch_size = self.args.train_batch_size * self.args.world_size
            self.train_dataset = PackedRows(pairs, collator.packing, self.args.seed, batch_size)
        try:
            return super().get_train_dataloader()
        finally:
            self.data_collator, self.train_dataset = evaluation_collator, pairs

    def _get_dataloader(self, *args, **kwargs):
        # private method of transformers 5.23: new workers take a seed from the global generator, and workers that
        # outlive an epoch are new in other epochs of a resumed run, which would then have other dropout
        loader = super()._get_dataloader(*args, **kwargs)
        if self.args.dataloader_persistent_workers:
            getattr(loader, "base_dataloader", loader).generator = torch.Generator().manual_seed(self.args.seed)
        return loader

    def create_optimizer(self, model=None):
        if self.optimizer is not None or self.projection_lr_factor == 1.0:
            return super().create_optimizer(model)
        optimizer = super().create_optimizer(model)
        names = dict((self.model if model is None else model).named_parameters())
        # PEFT copies a module that it saves, so the name is longer
        new = [p for name, p in names.items() if "length_projection" in name.split(".") and p.requires_grad]
        if not new:
            raise ValueError(
                "projection_lr_factor needs a length projection, which a base_model gets, unless its encoder and "
                "decoder share a table of lengths; leave it out"
            )
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if not any(p is q for q in new)]
        rate = self.projection_lr_factor * self.args.learning_rate
        optimizer.add_param_group({"params": new, "lr": rate, "weight_decay": self.args.weight_decay})
        return optimizer

    def save_model(self, output_dir=None, _internal_call=False):
        # checkpoints are not rounded, because a resumed run continues from them
        if output_dir is not None or self.weights_dtype is None:
            super().save_model(output_dir, _internal_call)
            return self._settle_adapter(output_dir or self.args.output_dir)
        model = self.accelerator.unwrap_model(self.model)
        adapter = hasattr(model, "peft_config")
        with torch.no_grad():
            for weight in model.parameters():
                if weight.requires_grad or not adapter:  # an adapter's base is not saved
                    weight.copy_(weight.to(self.weights_dtype))  # so the tested weights equal the saved weights
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
            self._settle_adapter(self.args.output_dir)

    def _settle_adapter(self, folder) -> None:
        model: Any = self.accelerator.unwrap_model(self.model)
        if self.args.should_save and hasattr(model, "peft_config"):
            save_control(model, folder)

    def create_model_card(self, language=None, license=None, tags=None, model_name=None, **kwargs):
        """Write the card of `run`, and its picture if matplotlib is installed; without `run`, Trainer's card."""
        if self.run is None:
            return super().create_model_card(language, license, tags, model_name, **kwargs)
        if not self.is_world_process_zero():
            return
        model: Any = self.accelerator.unwrap_model(self.model)
        folder, unit = Path(str(self.args.output_dir)), getattr(model.config, "length_unit", self.run.length_unit)
        try:
            picture = self.run.save_picture(folder / "report.png", unit, self.processing_class)
        except ImportError as error:
            logger.info("the model card has no picture: %s", error)
            picture = False
        name = self.hub_model_id or model_name or folder.resolve().name
        if hasattr(model, "peft_config"):
            model = model.get_base_model()
        card = model_card(model, self.run, name, picture=picture, revision=self.args.hub_revision)
        card.save(folder / "README.md")


class AnswerTrainer(ResumableTrainer):
    """
    A `ResumableTrainer` for causal models. In training, the model computes logits only at positions (columns of the
    batch) where at least one row predicts a label. The loss is the same, but the logits of long prompts take no
    memory. The model computes all logits if it does not support this (see `computes_columns`), or with label smoothing
    or a loss function of the user.
    """

    def __init__(self, model=None, *args, **kwargs):
        super().__init__(model, *args, **kwargs)
        own = self.label_smoother is not None or self.compute_loss_func is not None
        # DataParallel would split the columns among the GPUs
        self._short = not own and self.args.n_gpu <= 1 and computes_columns(self.model)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if self._short and model.training and "labels" in inputs:
            following = torch.nn.functional.pad(inputs["labels"], (0, 1), value=-100)[:, 1:]  # (B, T)
            columns = (following != -100).any(dim=0).nonzero().squeeze(1)  # (C,)
            # the model counts the progress from `labels`, and takes the loss from `shift_labels`
            inputs = {**inputs, "logits_to_keep": columns, "shift_labels": following[:, columns].contiguous()}
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


@torch.no_grad()
def computes_columns(model: Any) -> bool:
    """
    Return whether a causal model can compute the loss from the logits of some positions only. Test this with a small
    batch: the model must take the positions as `logits_to_keep`, and their labels as `shift_labels`.
    """
    plain = model.get_base_model() if hasattr(model, "peft_config") else model
    plain = getattr(plain, "language_model", plain)
    ids, columns = torch.tensor([[0, 1, 2, 3]], device=plain.device), torch.tensor([1, 2], device=plain.device)
    arguments = {"input_ids": ids, "labels": ids, "use_cache": False}
    mode = plain.training
    plain.eval()  # dropout would change one of the losses
    try:
        some = plain(**arguments, logits_to_keep=columns, shift_labels=ids[:, 2:])
        expected = plain(**arguments | {"labels": ids.masked_fill(ids < 2, -100)})
    except Exception:  # any error of an unknown model
        return False
    finally:
        plain.train(mode)
    return some.logits.shape[1] == len(columns) and bool(torch.isclose(some.loss, expected.loss, rtol=1e-2))


class LengthControlTrainer(ResumableTrainer, Seq2SeqTrainer):
    """
    A `Seq2SeqTrainer` with the features of `ResumableTrainer`. The collator's random changes of examples, such as
    noise on the lengths, apply only to training batches, and differ in each epoch.

    `data_collator` builds the batches; the default is a `DataCollatorForLengthControl`. Evaluation uses a copy of this
    collator, with `length_noise`, `overshoot_share`, `no_length_share` and `packing` switched off. If `train_collator`
    is given, it builds the training batches. If `packing` is set, a training batch has `per_device_train_batch_size`
    packed rows.

    Each target token has the same weight in an optimizer step, even across processes and accumulated batches.

    If `r_drop` is above 0, the model runs twice on each training batch, with different dropout. The loss then includes
    `r_drop` times the KL divergence of the two outputs. The divergence is a mean over tokens and over both directions
    (Liang et al. 2021; their weight alpha equals `2 * r_drop`).
    """

    def __init__(
        self,
        model=None,
        args=None,
        data_collator=None,
        *others,
        train_collator=None,
        r_drop: float = 0.0,
        **kwargs,
    ):
        if r_drop < 0 or r_drop and kwargs.get("compute_loss_func") is not None:
            raise ValueError(f"r_drop must be at least 0, and does not work with compute_loss_func, got {r_drop}")
        self.r_drop = r_drop
        if data_collator is None and kwargs.get("processing_class") is not None:
            data_collator = DataCollatorForLengthControl(kwargs["processing_class"], model=model)
        train_collator = train_collator or data_collator
        for collator in (data_collator, train_collator):
            if isinstance(collator, DataCollatorForLengthControl) and collator.model is None:
                collator.model = model  # the collator needs the model to build decoder inputs from labels
        own = train_collator if isinstance(train_collator, DataCollatorForLengthControl) else None
        if own is not None and own.no_length_share:
            model.make_length_optional()
        packed = own is not None and own.packing is not None
        if isinstance(data_collator, DataCollatorForLengthControl) and (data_collator.draws or data_collator.packing):
            data_collator = replace(
                data_collator, length_noise=0, overshoot_share=0.0, no_length_share=0.0, packing=None
            )
        super().__init__(model, args, data_collator, *others, train_collator=train_collator, **kwargs)
        if packed and self.args.train_sampling_strategy != "random":
            strategy = self.args.train_sampling_strategy
            raise ValueError(f"packing needs train_sampling_strategy=random, got {strategy}; packed rows are full")
        # compile one graph for batches of all sizes, not one for each size; all packed rows have the same size
        if self.args.torch_compile and not packed:
            self.accelerator.state.dynamo_plugin.dynamic = True
        self.compute_loss_func = self.compute_loss_func or self._token_mean

    def train(self, *args, **kwargs):
        self.remember_lengths()
        return super().train(*args, **kwargs)

    def load_trained(self, checkpoint):
        super().load_trained(checkpoint)
        self.remember_lengths()

    def remember_lengths(self) -> None:
        """Count the lengths of the training targets, and save their percentiles as `config.trained_lengths`."""
        rows, collator = self.train_dataset, self.train_collator
        config = self.accelerator.unwrap_model(self.model).config
        counts = isinstance(collator, DataCollatorForLengthControl) and hasattr(config, "trained_lengths")
        if counts and isinstance(rows, Sized):
            padding = config.pad_token_id
            lengths: list[int] = []
            for start in range(0, len(rows), 1000):
                own = range(start, min(start + 1000, len(rows)))
                part = [torch.as_tensor(rows[i]["labels"]) for i in own]  # type: ignore[index]
                ids = torch.nn.utils.rnn.pad_sequence(part, batch_first=True, padding_value=padding)
                lengths += collator.unit_table.count(ids.masked_fill(ids == -100, padding)).tolist()
            config.trained_lengths = range_of(lengths)

    def _token_mean(self, outputs, labels, num_items_in_batch=None):
        # the model's own loss is a mean over a batch, so tokens in a batch with few tokens have too much weight;
        # mixture-of-experts models also have an auxiliary loss
        more = outputs.get("aux_loss") if isinstance(outputs, dict) else None
        more = 0.0 if more is None else more
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        # Trainer's own label smoother takes more time and memory, and computes in half precision
        options: dict[str, Any] = {"reduction": "sum", "label_smoothing": self.args.label_smoothing_factor}
        total = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), **options)
        if self.r_drop and self.model.training:
            one, two = (part.flatten(0, 1).float().log_softmax(1) for part in logits.chunk(2))
            divergence = ((one.exp() - two.exp()) * (one - two)).sum(1)  # (B * T,), both directions
            total = total + self.r_drop * divergence[labels.chunk(2)[0].flatten() != -100].sum()
        return total / ((labels != -100).sum() if num_items_in_batch is None else num_items_in_batch) + more

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        # Trainer removes the labels, and a model without labels would build a cache for generation
        inputs = {"use_cache": False, **inputs}
        if self.r_drop and model.training:
            inputs = {name: torch.cat([v, v]) if isinstance(v, torch.Tensor) else v for name, v in inputs.items()}
            num_items_in_batch = None if num_items_in_batch is None else 2 * num_items_in_batch
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def evaluation_loop(self, *args, **kwargs):
        # several processes repeat rows to fill the last batch; Seq2SeqTrainer's function would count these rows twice
        self.gather_function = self.accelerator.gather_for_metrics
        return super().evaluation_loop(*args, **kwargs)


class _Seeded(Sampler):
    """A sampler whose order depends only on the seed and the epoch."""

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
    """A callback that sets the epoch of a collator, before dataloader workers start."""

    def __init__(self, collator):
        self.collator = collator

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.collator.set_epoch(int(state.epoch or 0))
