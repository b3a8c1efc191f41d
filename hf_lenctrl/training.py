"""What the recipes add to Trainer: a collator for training alone, a learning rate of its own, and a time budget."""

import logging
import time

import torch
from transformers import Seq2SeqTrainer, TrainerCallback


logger = logging.getLogger(__name__)


class LengthControlTrainer(Seq2SeqTrainer):
    """
    `Seq2SeqTrainer` whose training batches come from `train_collator`, the others from `data_collator`, and whose
    length projection, the one new layer of a pretrained model, learns at `projection_lr_factor` times the rate.
    """

    def __init__(self, *args, train_collator, projection_lr_factor: float = 1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.train_collator = train_collator
        self.projection_lr_factor = projection_lr_factor
        self.add_callback(_SetEpoch(train_collator))

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

    def get_train_dataloader(self):
        evaluation_collator, self.data_collator = self.data_collator, self.train_collator
        try:
            return super().get_train_dataloader()
        finally:
            self.data_collator = evaluation_collator


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
