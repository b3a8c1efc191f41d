"""Train a length-controlled sequence-to-sequence model.

    python recipes/train_seq2seq.py recipes/headline/ldpe_small.yaml --train_file rows.jsonl --output_dir runs/ldpe

One YAML file is one run; options on the command line win over it; `--help` lists them all. A run that was stopped
goes on from its last checkpoint when the same command is given again.
"""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from datasets import DatasetDict, IterableDataset
from transformers import Seq2SeqTrainingArguments, set_seed

from ..data_collator import DataCollatorForLengthControl
from ..metrics import build_compute_metrics
from ..model_card import TrainingRun
from ..trainer import LengthControlTrainer
from .arguments import DataArguments, ModelArguments, RunArguments, parse_arguments
from .checkpoints import (
    average_checkpoints,
    check_checkpoint,
    check_writable,
    checkpoints_of,
    last_checkpoint,
    room_for,
    trained_steps,
)
from .data import Stream, first_rows, leave_out_lengths, load_splits, tokenize
from .new_model import build_model, load_tokenizer, unit_and_tokens
from .run import StreamCollator, TimeBudget, add_length_predictor, prepare_streaming, prepare_upload


logger = logging.getLogger("train_seq2seq")


def main(argv=None) -> dict:
    """Run the recipe; returns the metrics that it also writes to `<output_dir>/all_results.json`."""
    classes = (ModelArguments, DataArguments, RunArguments, Seq2SeqTrainingArguments)
    model_args, data_args, run_args, args = parse_arguments(classes, argv, __doc__)
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.INFO)
    transformers.utils.logging.set_verbosity(args.get_process_log_level())
    set_seed(args.seed)

    # ---------------------------------------------------------------- data
    check_writable(args.output_dir)
    prepare_upload(args)
    if data_args.streaming:
        prepare_streaming(args)
    splits = load_splits(data_args)
    head = first_rows(splits["train"])
    with args.main_process_first(desc="tokenizer"):
        tokenizer = load_tokenizer(model_args, head, args.output_dir)
    unit, tokens = unit_and_tokens(model_args, data_args, head, tokenizer)
    if data_args.unseen_lengths:
        splits["train"] = leave_out_lengths(splits["train"], tokenizer, unit, data_args.unseen_lengths)
    with args.main_process_first(desc="tokenising"):
        tokenized, reports = tokenize(
            splits, tokenizer, data_args, length_tokens=tokens, unit=unit
        )  # logs what it dropped
    if "test" in splits and args.should_save:
        splits["test"].to_json(Path(args.output_dir, "test.jsonl"), force_ascii=False)  # for generate.py

    # ---------------------------------------------------------------- model
    longest = max(data_args.max_source_length, data_args.max_target_length) + 1
    model = build_model(model_args, tokenizer, max_positions=max(512, longest), length_tokens=tokens)
    check_writable(args.output_dir, room_for(model, args))
    add_length_predictor(model, run_args.length_predictor, args.output_dir, args.should_save)
    logger.info("%s with %.1fM parameters", type(model).__name__, model.num_parameters() / 1e6)
    if not model.config.length_controlled:
        model.generation_config.max_length = data_args.max_target_length + 1  # the library's default is 20

    # ---------------------------------------------------------------- training
    quality: dict[str, Any] = {"max_bytes": run_args.rouge_max_bytes, "rouge_unit": run_args.rouge_unit}
    quality |= {"bleu_tokenizer": run_args.bleu_tokenizer}
    train_rows = tokenized["train"]
    if isinstance(train_rows, IterableDataset):
        train_rows = Stream(train_rows, args.seed if args.train_sampling_strategy == "random" else None)
    trainer = LengthControlTrainer(
        model=model,
        args=args,
        train_dataset=train_rows,
        eval_dataset=tokenized.get("validation"),
        train_collator=(StreamCollator if data_args.streaming else DataCollatorForLengthControl)(
            tokenizer,
            model=model,
            length_noise=run_args.length_noise,
            overshoot_share=run_args.overshoot_share,
            seed=args.seed,
        ),
        projection_lr_factor=run_args.projection_lr_factor,
        weights_dtype=run_args.weights_dtype,
        data_collator=DataCollatorForLengthControl(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=build_compute_metrics(tokenizer, unit, **quality),
    )
    if run_args.max_train_minutes is not None:
        trainer.add_callback(TimeBudget(run_args.max_train_minutes))
    checkpoint = args.resume_from_checkpoint or last_checkpoint(args.output_dir, args.world_size)
    if checkpoint is not None:
        check_checkpoint(checkpoint, args.save_only_model, unit)
        logger.info("going on from %s", checkpoint)
    metrics: dict[str, Any] = {}
    if checkpoint is not None and 0 < args.max_steps <= trained_steps(checkpoint):
        logger.info("training is finished")  # Trainer would take one more step
        model.load_state_dict(average_checkpoints([checkpoint]), strict=False)
        model.tie_weights()
    else:
        metrics |= trainer.train(resume_from_checkpoint=checkpoint).metrics
        trainer.save_metrics("train", metrics)
    trainer.accelerator.wait_for_everyone()  # the first process may still be writing or deleting checkpoints
    if run_args.average_checkpoints > 1:
        folders = checkpoints_of(args.output_dir)[-run_args.average_checkpoints :]
        logger.info("averaging %s", ", ".join(folder.name for folder in folders))
        # safetensors leave tied weights and Marian's fixed positions out, so not every name is there
        model.load_state_dict(average_checkpoints(folders), strict=False)
        model.tie_weights()
    trainer.save_model(_internal_call=True)  # uploaded once, at the end, with its card

    # ---------------------------------------------------------------- test, card, upload
    rows = {name: len(split) for name, split in tokenized.items() if not isinstance(split, IterableDataset)}
    trainer.run = run = TrainingRun.of(model_args, data_args, run_args, args, rows)
    for length in [None, *run_args.test_lengths] if "test" in tokenized else []:
        name = "test" if length is None else f"test_{length}"
        trainer.data_collator = DataCollatorForLengthControl(tokenizer, model=model, length=length)
        if tokens is not None and length is not None:
            test = DatasetDict({"test": splits["test"]})
            tokenized |= tokenize(test, tokenizer, data_args, length_tokens=tokens, unit=unit, length=length)[0]
        trainer.compute_metrics = build_compute_metrics(tokenizer, unit, length=length, **quality)
        result = trainer.predict(tokenized["test"], metric_key_prefix=name)
        figures = result.metrics or {}
        trainer.save_metrics(name, figures)  # as soon as it is known
        if trainer.is_world_process_zero():
            outputs, references = (
                tokenizer.batch_decode(np.where(ids == -100, tokenizer.pad_token_id, ids), skip_special_tokens=True)
                for ids in (result.predictions, result.label_ids)
            )
            with open(Path(args.output_dir, f"{name}_outputs.jsonl"), "w", encoding="utf-8") as file:
                for output, reference in zip(outputs, references, strict=True):
                    file.write(json.dumps({"output": output, "reference": reference}, ensure_ascii=False) + "\n")
            run.tests["reference" if length is None else str(length)] = {
                key.removeprefix(f"{name}_"): value for key, value in figures.items()
            }
            run.sources = splits["test"].select(reports[list(splits).index("test")].indices)["source"][:]
            run.references = references
            if length is not None:
                run.outputs[length] = outputs
        logger.info(json.dumps(figures, indent=1))
        metrics |= figures
    trainer.create_model_card()
    if args.push_to_hub:
        trainer.push_to_hub()
    return metrics
