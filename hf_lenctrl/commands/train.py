"""Train a length-controlled sequence-to-sequence model.

    lenctrl train headline/small --train_file rows.jsonl --output_dir runs/ldpe

One YAML file, or a recipe that `lenctrl recipes` lists, is one run; options on the command line override it. To resume
an interrupted run, repeat the command; a folder that holds a run with other options is refused.
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import DatasetDict
from transformers import Seq2SeqTrainingArguments

from ..evaluation.metrics import build_compute_metrics
from ..length_tokens import LengthTokens
from ..training.collator import DataCollatorForLengthControl
from ..training.model_card import TrainingRun
from ..training.trainer import LengthControlTrainer
from .arguments import DataArguments, ModelArguments, RunArguments, parse_arguments
from .checkpoints import (
    check_checkpoint,
    check_writable,
    finished_with,
    keep_better,
    last_checkpoint,
    load_average,
    room_for,
    trained_steps,
)
from .data import leave_out_lengths, load_splits, tokenize
from .locking import locked
from .models import build_model, check_options, load_tokenizer, source_limit, target_limit, unit_and_tokens
from .quality import quality, warn_of_baselines
from .record import RunRecord
from .run import add_length_predictor, check_optional_parts, check_upload, set_up


logger = logging.getLogger("train_seq2seq")


@dataclass
class Data:
    """The rows of each split, as text and as token ids, and what they are tokenized and counted with."""

    splits: dict[str, Any]
    tokenized: dict[str, Any]
    dropped: dict[int, str]  # rows of splits["test"] that tokenized["test"] lacks, and why
    tokenizer: Any
    unit: str
    length_tokens: LengthTokens | None


def load_data(model_args: ModelArguments, data_args: DataArguments, args) -> Data:
    """Load, split and tokenize the rows; `test.jsonl` is left for `generate`."""
    splits = load_splits(data_args)
    with args.main_process_first(desc="tokenizer"):
        tokenizer = load_tokenizer(model_args, splits["train"], args.output_dir)
    data_args.max_source_length = source_limit(model_args, data_args, tokenizer)
    data_args.max_target_length = target_limit(model_args, data_args)
    unit, tokens = unit_and_tokens(model_args, data_args, splits["train"], tokenizer)
    if data_args.unseen_lengths:
        splits["train"] = leave_out_lengths(splits["train"], tokenizer, unit, data_args.unseen_lengths)
    with args.main_process_first(desc="tokenising"):
        # logs what it dropped
        tokenized, reports = tokenize(splits, tokenizer, data_args, length_tokens=tokens, unit=unit)
    tokenizer.model_max_length = data_args.max_source_length  # what is written later is cut where training was
    if "test" in splits and args.should_save:
        splits["test"].to_json(Path(args.output_dir, "test.jsonl"), force_ascii=False)
    dropped = reports[list(splits).index("test")].dropped if "test" in splits else {}
    return Data(splits, tokenized, dropped, tokenizer, unit, tokens)


def load_model(model_args: ModelArguments, data_args: DataArguments, run_args: RunArguments, args, data: Data):
    """The model to train, with the length predictor beside it, on a disk that has room for its checkpoints."""
    source: Any = data_args.max_source_length
    longest = max(source, data_args.max_target_length) + 1
    positions = max(512, longest)
    model = build_model(model_args, data.tokenizer, max_positions=positions, length_tokens=data.length_tokens)
    check_writable(args.output_dir, room_for(model, args))
    add_length_predictor(model, run_args.length_predictor, args.output_dir, args.should_save)
    logger.info("%s with %.1fM parameters", type(model).__name__, model.num_parameters() / 1e6)
    controlled = getattr(model.config, "length_controlled", False)  # a stock class has no such field
    if not controlled and model.generation_config.max_new_tokens is None:
        model.generation_config.max_length = data_args.max_target_length + 1  # the library's default is 20
    return model


def check_training(args, run_args: RunArguments, says_generate: bool) -> None:
    """Refuse options of Trainer that lose a training at its end; a run writes texts unless it is told not to."""
    args.predict_with_generate = args.predict_with_generate or not says_generate
    if isinstance(args.resume_from_checkpoint, str) and not Path(args.resume_from_checkpoint).is_dir():
        raise ValueError(
            f"resume_from_checkpoint names a folder, got {args.resume_from_checkpoint!r}; leave it out: a command "
            "that is repeated resumes from its last checkpoint"
        )
    if run_args.average_checkpoints > 1 and (args.load_best_model_at_end or args.save_strategy == "no"):
        other = "load_best_model_at_end" if args.load_best_model_at_end else "save_strategy=no"
        raise ValueError(
            f"average_checkpoints={run_args.average_checkpoints} takes the mean of saved checkpoints, so it does not "
            f"go with {other}; leave one of them out"
        )


def tolerance_of(model):
    """The window that the model keeps by default; a stock class has none."""
    return getattr(model.config, "length_tolerance", None)


def metrics_of(run_args: RunArguments, data: Data, tolerance, length: int | None = None):
    """`compute_metrics` of Trainer, at a requested length or at the references' own."""
    return build_compute_metrics(
        data.tokenizer,
        data.unit,
        length=length,
        tolerance=tolerance,
        max_bytes=run_args.rouge_max_bytes,
        rouge_unit=run_args.rouge_unit,
        bleu_tokenizer=run_args.bleu_tokenizer,
    )


def make_trainer(model, run_args: RunArguments, args, data: Data, trainer_class) -> LengthControlTrainer:
    """The Trainer of a run, with noise on the lengths of training rows alone."""
    return trainer_class(
        model=model,
        args=args,
        train_dataset=data.tokenized["train"],
        eval_dataset=data.tokenized.get("validation"),
        train_collator=DataCollatorForLengthControl(
            data.tokenizer,
            model=model,
            length_unit=data.unit,
            length_noise=run_args.length_noise,
            overshoot_share=run_args.overshoot_share,
            seed=args.seed,
        ),
        projection_lr_factor=run_args.projection_lr_factor,
        weights_dtype=run_args.weights_dtype,
        data_collator=DataCollatorForLengthControl(data.tokenizer, model=model, length_unit=data.unit),
        processing_class=data.tokenizer,
        compute_metrics=metrics_of(run_args, data, tolerance_of(model)),
    )


def fit(trainer: LengthControlTrainer, run_args: RunArguments, record: RunRecord, unit: str) -> tuple[dict, list[str]]:
    """Train, or resume, or load what is trained; save the model. Returns the figures, and what the card says of it."""
    model: Any = trainer.model
    args = trainer.args
    checkpoint = args.resume_from_checkpoint or last_checkpoint(str(args.output_dir), args.world_size)
    if checkpoint is not None:
        check_checkpoint(checkpoint, args.save_only_model, unit)
        logger.info("resuming from %s", checkpoint)
    metrics: dict[str, float] = {}
    done = 0 if checkpoint is None else trained_steps(checkpoint)
    kept = None if checkpoint is None else finished_with(checkpoint, args)
    if kept is not None:
        logger.info("training is finished")
        load_average(model, [kept])
        trainer.remember_lengths()
    else:
        record.begin(done)
        metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
        state = trainer.state
        # Trainer divides by the steps before a resumed run, too
        metrics["train_seconds_per_step"] = metrics["train_runtime"] / max(1, state.global_step - done)
        trainer.save_metrics("train", metrics)
        whole = state.global_step >= state.max_steps
        why = "the last step" if whole else f"ended before step {state.max_steps}, the last of its schedule"
        record.end(state.global_step, state.epoch or 0.0, why)
    trainer.accelerator.wait_for_everyone()  # the first process may still be writing or deleting checkpoints
    history = record.history()
    if run_args.average_checkpoints > 1:
        history.append(keep_better(trainer, run_args.average_checkpoints))
        logger.info(history[-1])
    trainer.save_model(_internal_call=True)  # uploaded once, at the end, with its card
    return metrics, history


def test_at(length: int | None, trainer: LengthControlTrainer, data: Data, model_args, data_args, run_args) -> dict:
    """Write the test rows at a length, or at their references'; returns the figures and adds them to `trainer.run`."""
    name, tokenizer = "test" if length is None else f"test_{length}", data.tokenizer
    run: Any = trainer.run
    trainer.data_collator = DataCollatorForLengthControl(
        tokenizer, model=trainer.model, length_unit=data.unit, length=length
    )
    trainer.compute_metrics = metrics_of(run_args, data, tolerance_of(trainer.model), length)
    rows = data.tokenized["test"]
    if data.length_tokens is not None and length is not None:
        test = DatasetDict({"test": data.splits["test"]})
        options: dict[str, Any] = {"length_tokens": data.length_tokens, "unit": data.unit, "length": length}
        rows = tokenize(test, tokenizer, data_args, **options)[0]["test"]
    # rows of similar length share a batch, to save padding; the outputs return in the order of the rows
    order = sorted(range(len(rows)), key=lambda i: (len(rows[i]["labels"]), len(rows[i]["input_ids"])))
    result = trainer.predict(rows.select(order), metric_key_prefix=name)
    figures = result.metrics or {}
    if trainer.is_world_process_zero():
        ids = [torch.as_tensor(found)[np.argsort(order)] for found in (result.predictions, result.label_ids)]
        ids = [found.masked_fill(found == -100, tokenizer.pad_token_id) for found in ids]
        outputs, references = (
            tokenizer.batch_decode(found, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            for found in ids
        )
        produced, own = (trainer.data_collator.unit_table.count(found).tolist() for found in ids)
        requested = own if length is None else [length] * len(own)
        write_outputs(Path(str(trainer.args.output_dir), f"{name}_outputs.jsonl"), data, requested, outputs, produced)
        kept = [i for i in range(len(data.splits["test"])) if i not in data.dropped]
        sources = data.splits["test"].select(kept)["source"][:]
        found = quality(outputs, sources, references, requested, length, trainer, data, (model_args, run_args))
        figures |= {f"{name}_{key}": value for key, value in found.items()}
        run.tests["reference" if length is None else str(length)] = {
            key.removeprefix(f"{name}_"): value for key, value in figures.items()
        }
        run.sources, run.references = sources, references
        if length is not None:
            run.outputs[length] = outputs
    trainer.save_metrics(name, figures)
    logger.info(json.dumps(figures, indent=1))
    return figures


def write_outputs(path: Path, data: Data, requested: list[int], outputs: list[str], produced: list[int]) -> None:
    """One line for each row of `test.jsonl`, in its order. A row that was not tested says why."""
    tested = iter(zip(requested, outputs, produced, strict=True))
    with path.open("w", encoding="utf-8") as file:
        for i, row in enumerate(data.splits["test"]):
            dropped = data.dropped.get(i)
            found = (None, None, None) if dropped is not None else next(tested)
            line = {"source": row["source"], "reference": row["target"]}
            line |= dict(zip(("requested", "output", "length"), found, strict=True))
            file.write(json.dumps(line | ({"dropped": dropped} if dropped else {}), ensure_ascii=False) + "\n")


def main(argv=None) -> dict:
    """Run the recipe; returns the metrics that it also writes to `<output_dir>/all_results.json`."""
    classes = (ModelArguments, DataArguments, RunArguments, Seq2SeqTrainingArguments)
    return run(*parse_arguments(classes, argv, __doc__))


def run(
    model_args: ModelArguments,
    data_args: DataArguments,
    run_args: RunArguments,
    args,
    trainer_class: Any = LengthControlTrainer,
) -> dict:
    """
    Train, test, and write the card, in the run's folder, which one command at a time writes.

    Args:
        trainer_class (`Callable`): `LengthControlTrainer`, or what makes another Trainer of its arguments.
    """
    set_up(args)
    check_writable(args.output_dir)
    with locked(args.output_dir, args.should_save):
        return _run(model_args, data_args, run_args, args, trainer_class)


def _run(model_args: ModelArguments, data_args: DataArguments, run_args: RunArguments, args, trainer_class) -> dict:
    check_optional_parts(run_args)
    check_options(model_args, data_args, run_args)
    check_training(args, run_args, "predict_with_generate" in model_args.given)
    check_upload(args)  # before anything is written
    with args.main_process_first(desc="record"):
        record = RunRecord(args, model_args, data_args, run_args)
    data = load_data(model_args, data_args, args)
    rows = {name: len(split) for name, split in data.tokenized.items()}
    record.set_rows(rows)
    if not args.predict_with_generate and {"validation", "test"} & data.tokenized.keys():
        raise ValueError(
            "predict_with_generate=False writes no texts, and lengths are measured on these; leave it out"
        )
    model = load_model(model_args, data_args, run_args, args, data)
    trainer = make_trainer(model, run_args, args, data, trainer_class)
    metrics, history = fit(trainer, run_args, record, data.unit)
    trainer.run = TrainingRun.of(model_args, data_args, run_args, args, rows, history)
    for length in [None, *run_args.test_lengths] if "test" in data.tokenized else []:
        metrics |= test_at(length, trainer, data, model_args, data_args, run_args)
    warn_of_baselines(trainer.run.tests, data.unit)
    if args.push_to_hub:
        trainer.push_to_hub()  # with its card
    else:
        trainer.create_model_card()
    return metrics
