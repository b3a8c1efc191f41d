"""`_run/run.json`: the options that affect a run's result. They are compared on resume, and listed in the card."""

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
FILES, DATA = ("train_file", "validation_file", "test_file"), "dataset_name"
MODEL_FILES = ("config.json", "model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
WRITTEN = (*MODEL_FILES, "README.md", "test.jsonl", "test_predictions.jsonl", "predictor_table.json", "checkpoint-*")


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
        names = [name for name in own if name not in (*MAY_CHANGE, *AFTER)]
        decides = {name: values[name] for name in (*names, *OPTIMISATION, "processes")}
        given = [name for name in (*FILES, *MODELS) if decides.get(name) is not None]
        if decides.get(DATA) is not None and Path(decides[DATA]).is_dir():  # otherwise it is on the Hub
            given.append(DATA)
        self.files = {name: Path(decides[name]).name for name in given}
        # a generator may be trained further, so only its tokenizer counts; in a folder of data every file counts
        kinds = {"target_tokenizer": TOKENIZER, DATA: ("*", "*/*", "*/*/*")}
        decides |= {name: identity(decides[name], kinds.get(name, WEIGHTS)) for name in given}
        self.decides = json.loads(json.dumps(decides, default=str))
        self.rows: dict[str, int] = {}
        self.sittings: list[dict[str, Any]] = []
        saved = json.loads(self.path.read_text(encoding="utf-8")) if self.path.is_file() else None
        if saved is not None and (done := checkpoints_of(args.output_dir)):
            self._compare(saved["decides"], trained_steps(done[-1]))
            self.rows, self.sittings = saved["rows"], saved["sittings"]
            return
        if saved is None or saved["decides"] != self.decides:
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
        pairs = {name: (saved.get(name), value) for name, value in self.decides.items()}
        if 0 < most < steps:  # a run cannot end before the steps that it has trained
            pairs["max_steps"] = f"{steps} (trained)", most
        differ = [(name, old, new) for name, (old, new) in pairs.items() if old != new]
        if points := [f"{POINT}{name}={short(old, new)}, now {short(new, old)}" for name, old, new in differ]:
            raise ValueError(
                f"{self.output_dir} holds a run with other options. Name another --output_dir. Options that may "
                f"change: {', '.join(self.changeable)}. Those that differ:{''.join(points)}"
            )

    def set_rows(self, rows: dict[str, int]) -> None:
        """
        Record the number of rows of each split; raise `ValueError` if the run was trained on another number of rows.
        """
        trained, now = self.rows.get("train"), rows.get("train")
        if trained is not None and self.sittings and now != trained:
            raise ValueError(f"{self.output_dir} was trained on {trained} rows, got {now}; name another --output_dir")
        self.rows = rows
        self.save()

    def begin(self, step: int) -> None:
        """Record that a sitting of the run begins after `step` steps."""
        self.sittings.append({"from": step, "to": None, "hf_lenctrl": __version__, "options": self.changeable})
        self.save()

    def end(self, step: int, epoch: float, why: str) -> None:
        """Record that the sitting ends after `step` steps and `epoch` passes over the data."""
        self.sittings[-1] |= {"to": step, "epochs": round(epoch, 2), "ended": why}
        self.save()

    def save(self) -> None:
        """Write `run.json`; only one process writes."""
        if self.writes:
            names = ("decides", "files", "rows", "sittings")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps({name: getattr(self, name) for name in names}, indent=1), encoding="utf-8")
            part.replace(self.path)  # the rename is atomic, so the file is never half written

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
