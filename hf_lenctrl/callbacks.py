"""Trainer callbacks of the recipes."""

import logging
import time

from transformers import TrainerCallback


logger = logging.getLogger(__name__)


class TimeBudget(TrainerCallback):
    """Ends training in good order once `minutes` are over."""

    def __init__(self, minutes: float):
        self.seconds = 60 * minutes

    def on_train_begin(self, args, state, control, **kwargs):
        self.end = time.monotonic() + self.seconds

    def on_step_end(self, args, state, control, **kwargs):
        if time.monotonic() >= self.end:
            logger.info("the time budget is used up at step %d of %d", state.global_step, state.max_steps)
            control.should_training_stop = True
