"""The record of a run, `_run/run.json`: the options that determine its result, and a log of its starts."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from .. import __version__
from ..training.upload import CARD, MODEL, check_upload
from .arguments import MODELS
from .checkpoints import checkpoints_of, trained_steps
from .identity import TOKENIZER, WEIGHTS, differences, identity
from .locking import kept, locked
from .output_file import write_whole
from .run import remove_tokenizer


# These options of Trainer determine the result of a run. The others change where and how fast it runs, or its logs.
OPTIMISATION = """per_device_train_batch_size gradient_accumulation_steps learning_rate lr_scheduler_type
    lr_scheduler_kwargs warmup_steps weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm optim optim_args
    label_smoothing_factor train_sampling_strategy seed data_seed bf16 fp16""".split()
# The options of these lists may change when a run is resumed. Each start logs the options of `MAY_CHANGE`. The options
# of `AFTER` act after training, or change only how fast the run computes.
MAY_CHANGE = """max_steps num_train_epochs eval_strategy eval_steps save_steps save_total_limit logging_steps
    per_device_eval_batch_size generation_num_beams generation_early_stopping average_checkpoints max_validation_rows
    max_test_rows test_lengths""".split()
AFTER = """attn_implementation preprocessing_num_workers bleu_tokenizer rouge_unit rouge_max_bytes weights_dtype
    length_predictor task card_examples language license base_model_name""".split()
FILES = ("train_file", "validation_file", "test_file")
MODEL_FILES = ("config.json", "model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
NAMED = 4  # a message names at most this number of files
TESTED = ("test.jsonl", "test_outputs.jsonl", "test_[0-9]*_outputs.jsonl", "test_predictions.jsonl")
WRITTEN = (*MODEL_FILES, *CARD, *TESTED, "training_args.bin", "checkpoint-*", *MODEL)


def decisive_options(own: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """
    Return the options that determine a run's result, as JSON values. Replace the name of each file, local data
    folder or model by a value that identifies its content (see `identity`). `own` holds the options of this package,
    and `values` these options and those of Trainer.
    """
    names = [name for name in own if name not in (*MAY_CHANGE, *AFTER)]
    found = {name: values[name] for name in (*names, *OPTIMISATION, "processes")}
    # a generator named by `target_tokenizer` may be trained further, so only its tokenizer matters; in a data folder
    # every file matters
    kinds = {"target_tokenizer": TOKENIZER, "dataset_name": ("*", "*/*", "*/*/*")}
    for name in (*FILES, *MODELS, "dataset_name"):
        value = found.get(name)
        if value is not None and (name != "dataset_name" or Path(value).is_dir()):  # else the data set is on the Hub
            found[name] = identity(value, kinds.get(name, WEIGHTS))
    return json.loads(json.dumps(found, default=str))


class RunRecord:
    """
    The record of a run in its folder, `args.output_dir`: the options that determine its result, and a log of its
    starts. `args` are `TrainingArguments`, and `others` are dataclasses with the run's other arguments. Raises
    `ValueError` if the folder holds a run with other options, or files that this run did not write.
    """

    def __init__(self, args, *others):
        self.folder, self.path, self.writes = (
            Path(args.output_dir),
            kept(args.output_dir, "run.json"),
            args.should_save,
        )
        own = {f.name: getattr(part, f.name) for part in others for f in fields(part) if f.init}
        values = own | args.to_dict() | {"processes": args.world_size}
        self.changeable = {name: values[name] for name in MAY_CHANGE if name in values}
        self.options = decisive_options(own, values)
        self.starts: list[dict[str, Any]] = []
        saved = json.loads(self.path.read_text(encoding="utf-8")) if self.path.is_file() else {}
        if saved and (done := checkpoints_of(args.output_dir)):
            self._compare(saved["options"], trained_steps(done[-1]))
            self.starts = saved["starts"]
        elif saved.get("options") != self.options:
            patterns = MODEL_FILES if saved else WRITTEN
            predictor = own.get("length_predictor")  # it may lie where the run would save it
            if predictor and Path(predictor).resolve() == (self.folder / "length_predictor").resolve():
                patterns = tuple(name for name in patterns if not name.startswith("length_predictor/"))
            paths = [path for pattern in patterns for path in sorted(self.folder.glob(pattern))]
            if found := list(dict.fromkeys(path.relative_to(self.folder).as_posix() for path in paths)):
                names = ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if found[NAMED:] else "")
                raise ValueError(f"{self.folder} holds {names}, which this run did not write; name another output_dir")
            # there is no training to resume, but there may be a tokenizer that was trained on other text
            if self.writes:
                remove_tokenizer(args.output_dir)
        self._save()

    def _compare(self, saved: dict, steps: int) -> None:
        """Raise `ValueError` if the options differ from `saved`, or if `max_steps` is below the trained `steps`."""
        before, now, most = dict(saved), dict(self.options), self.changeable["max_steps"]
        if 0 < most < steps:  # a run cannot end before the steps that it has trained
            before["max_steps"], now["max_steps"] = f"{steps} (trained)", most
        if points := differences(before, now):
            raise ValueError(
                f"{self.folder} holds a run with other options. Name another --output_dir. Options that may change: "
                f"{', '.join(self.changeable)}. Those that differ:{points}"
            )

    def begin(self, step: int, rows: int) -> None:
        """
        Log a start of the run at step `step`, on `rows` training rows. Raise `ValueError` if the run had another
        number of rows at its last start, because a data set on the Hub may change without changing its name.
        """
        if self.starts and rows != (before := self.starts[-1]["rows"]):
            raise ValueError(f"{self.folder} was trained on {before} rows, got {rows}; name another --output_dir")
        self.starts.append({"step": step, "rows": rows, "hf_lenctrl": __version__, "options": self.changeable})
        self._save()

    def _save(self) -> None:
        if self.writes:  # only one process writes
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"options": self.options, "starts": self.starts}, indent=1)
            write_whole(self.path, text, self.path.with_suffix(".part"))

    def history(self, state) -> list[str]:
        """
        Return one sentence or two for each time that the run was started or resumed: the first and the last step, and
        the options that differ from those of the previous start. For the last start, also say whether the training
        reached its last step. `state` is the `TrainerState` at the end.
        """
        whole = state.global_step >= state.max_steps
        why = "the last step" if whole else f"ended before step {state.max_steps}, the last of its schedule"
        last = f"{state.global_step} ({round(state.epoch or 0.0, 2)} epochs in all): {why}"
        ends = [*(f"{start['step']}, then resumed" for start in self.starts[1:]), last]
        lines = []
        for i, (start, end) in enumerate(zip(self.starts, ends, strict=True)):
            before = self.starts[max(0, i - 1)]["options"]
            changed = [f"`{k}` to {v}" for k, v in start["options"].items() if v != before.get(k)]
            note = f" Changed: {', '.join(changed)}." if changed else ""
            lines.append(f"Steps {start['step']} to {end}.{note}")
        return lines


@contextmanager
def begun(args, *others) -> Iterator[RunRecord]:
    """
    Lock the folder of a run during a `with` block, and yield the run's `RunRecord`. If `push_to_hub` is set, first
    test that the user can upload to the Hub (see `check_upload`). The arguments are those of `RunRecord`.
    """
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    with locked(args.output_dir, args.should_save):
        check_upload(args)  # the check comes before the command writes any other file
        with args.main_process_first(desc="record"):
            record = RunRecord(args, *others)
        yield record
