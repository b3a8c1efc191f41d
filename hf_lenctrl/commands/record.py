"""`_run/run.json`: the options that affect a run's result, which are compared on resume, and a log of its sittings."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from .. import __version__
from ..training.upload import check_upload
from .arguments import MODELS
from .checkpoints import checkpoints_of, trained_steps
from .identity import TOKENIZER, WEIGHTS, identity, short
from .lenctrl import POINT
from .locking import kept, locked
from .output_file import write_whole
from .run import remove_tokenizer


# These options of Trainer decide the result of a run. The others change where and how fast it runs, or its reports.
OPTIMISATION = """per_device_train_batch_size gradient_accumulation_steps learning_rate lr_scheduler_type
    lr_scheduler_kwargs warmup_steps weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm optim optim_args
    label_smoothing_factor train_sampling_strategy seed data_seed bf16 fp16""".split()
# These options may change when a run is resumed. A sitting records the first list; the second acts after training.
MAY_CHANGE = """max_steps num_train_epochs eval_strategy eval_steps save_steps save_total_limit logging_steps
    per_device_eval_batch_size generation_num_beams generation_early_stopping average_checkpoints max_validation_rows
    max_test_rows test_lengths""".split()
AFTER = """attn_implementation preprocessing_num_workers bleu_tokenizer rouge_unit rouge_max_bytes weights_dtype
    length_predictor task card_examples language license base_model_name""".split()
FILES = ("train_file", "validation_file", "test_file")
MODEL_FILES = ("config.json", "model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
WRITTEN = (*MODEL_FILES, "README.md", "test.jsonl", "test_predictions.jsonl", "predictor_table.json", "checkpoint-*")


def decisive_options(own: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the options that decide a run's result, as JSON has them; files and models as their identities."""
    names = [name for name in own if name not in (*MAY_CHANGE, *AFTER)]
    found = {name: values[name] for name in (*names, *OPTIMISATION, "processes")}
    # a generator may be trained further, so only its tokenizer counts; in a folder of data every file counts
    kinds = {"target_tokenizer": TOKENIZER, "dataset_name": ("*", "*/*", "*/*/*")}
    for name in (*FILES, *MODELS, "dataset_name"):
        value = found.get(name)
        if value is not None and (name != "dataset_name" or Path(value).is_dir()):  # otherwise it is on the Hub
            found[name] = identity(value, kinds.get(name, WEIGHTS))
    return json.loads(json.dumps(found, default=str))


class RunRecord:
    """
    The record of a run in its folder, `args.output_dir`. `others` are the run's other arguments, as dataclasses. A
    folder that holds a run with other options is refused.
    """

    def __init__(self, args, *others):
        self.output_dir, self.path = Path(args.output_dir), kept(args.output_dir, "run.json")
        self.writes = args.should_save
        own = {f.name: getattr(part, f.name) for part in others for f in fields(part) if f.init}
        values = own | args.to_dict() | {"processes": args.world_size}
        self.changeable = {name: values[name] for name in MAY_CHANGE if name in values}
        self.options = decisive_options(own, values)
        self.sittings: list[dict[str, Any]] = []
        saved = json.loads(self.path.read_text(encoding="utf-8")) if self.path.is_file() else None
        if saved is not None and (done := checkpoints_of(args.output_dir)):
            self._compare(saved["options"], trained_steps(done[-1]))
            self.sittings = saved["sittings"]
            return
        if saved is None or saved["options"] != self.options:
            self._refuse_others(WRITTEN if saved is None else MODEL_FILES)
            # there is no training to resume, but perhaps a tokenizer that was trained on other text
            if self.writes:
                remove_tokenizer(args.output_dir)
        self.save()

    def _refuse_others(self, patterns: Sequence[str]) -> None:
        """Raise `ValueError` if the folder holds files that another run wrote."""
        if found := sorted(path.name for pattern in patterns for path in self.output_dir.glob(pattern)):
            names = ", ".join(found)
            raise ValueError(f"{self.output_dir} holds {names}, which this run did not write; name another output_dir")

    def _compare(self, saved: dict, steps: int) -> None:
        most = self.changeable["max_steps"]
        pairs = {name: (saved.get(name), value) for name, value in self.options.items()}
        if 0 < most < steps:  # a run cannot end before the steps that it has trained
            pairs["max_steps"] = f"{steps} (trained)", most
        differ = [(name, old, new) for name, (old, new) in pairs.items() if old != new]
        if points := [f"{POINT}{name}={short(old, new)}, now {short(new, old)}" for name, old, new in differ]:
            raise ValueError(
                f"{self.output_dir} holds a run with other options. Name another --output_dir. Options that may "
                f"change: {', '.join(self.changeable)}. Those that differ:{''.join(points)}"
            )

    def begin(self, step: int, rows: int) -> None:
        """
        Record that a sitting of the run begins after `step` steps, on `rows` training rows. Raise `ValueError` if the
        sitting before had another number of rows, because a data set of the Hub may change under one name.
        """
        if self.sittings and rows != (before := self.sittings[-1]["rows"]):
            raise ValueError(f"{self.output_dir} was trained on {before} rows, got {rows}; name another --output_dir")
        sitting = {"from": step, "to": None, "rows": rows, "hf_lenctrl": __version__, "options": self.changeable}
        self.sittings.append(sitting)
        self.save()

    def end(self, step: int, epoch: float, why: str) -> None:
        """Record that the sitting ends after `step` steps and `epoch` passes over the data."""
        self.sittings[-1] |= {"to": step, "epochs": round(epoch, 2), "ended": why}
        self.save()

    def save(self) -> None:
        """Write `run.json`; only one process writes."""
        if self.writes:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"options": self.options, "sittings": self.sittings}, indent=1)
            write_whole(self.path, text, self.path.with_suffix(".part"))

    def history(self) -> list[str]:
        """Return the history of the training, one sentence for each sitting."""
        lines = []
        for i, sitting in enumerate(self.sittings):
            end, how = sitting["to"], "interrupted"
            if end is None:
                end = self.sittings[i + 1]["from"] if i + 1 < len(self.sittings) else "?"
            else:
                end, how = f"{end} ({sitting['epochs']} epochs in all)", sitting["ended"]
            before = self.sittings[max(0, i - 1)]["options"]
            changed = [f"`{k}` to {v}" for k, v in sitting["options"].items() if v != before.get(k)]
            note = f" Changed: {', '.join(changed)}." if changed else ""
            lines.append(f"Steps {sitting['from']} to {end}: {how}.{note}")
        return lines


@contextmanager
def begun(args, *others) -> Iterator[RunRecord]:
    """Lock the folder of a run and yield its `RunRecord`; check first that the run may upload."""
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    with locked(args.output_dir, args.should_save):
        check_upload(args)  # the check comes before the command writes any other file
        with args.main_process_first(desc="record"):
            record = RunRecord(args, *others)
        yield record
