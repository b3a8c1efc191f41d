"""Train a length-controlled model.

    lenctrl train headline/small --train_file rows.jsonl --output_dir runs/ldpe
    lenctrl train causal/acl --base_model path/or/name --train_file rows.jsonl --output_dir runs/causal

The first word may name a recipe, which describes a run: a name that `lenctrl recipes` lists, or a YAML file. Options
on the command line override the recipe. To resume an interrupted run, repeat the command. The command fails if the
folder holds a run with other options. `lenctrl train causal/acl --help` shows the options of a causal language model.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import DatasetDict
from transformers import AutoConfig, PreTrainedTokenizerBase, Seq2SeqTrainingArguments, TrainingArguments

from ..evaluation.metrics import build_compute_metrics, rouge_metrics, translation_metrics
from ..length_tokens import LengthTokens
from ..lengths import window_in
from ..training.collator import DataCollatorForLengthControl
from ..training.model_card import TrainingRun
from ..training.trainer import LengthControlTrainer
from . import causal
from .arguments import DataArguments, ModelArguments, RunArguments, Specified, given_options, parse_specified
from .checkpoints import keep_better
from .data import leave_out_lengths, load_splits, tokenize
from .models import DRAWS, add_length_predictor, build_model, check_options, limits, load_tokenizer, unit_and_tokens
from .quality import quality, warn_of_baselines
from .record import begun
from .run import check_evaluation, fit, publish, set_up


logger = logging.getLogger("train_seq2seq")
CLASSES = (ModelArguments, DataArguments, RunArguments, Seq2SeqTrainingArguments)
CAUSAL = (causal.CausalArguments, TrainingArguments)
HYPERPARAMETERS = """max_steps num_train_epochs per_device_train_batch_size gradient_accumulation_steps learning_rate
    lr_scheduler_type warmup_steps label_smoothing_factor bf16 fp16 seed""".split()


@dataclass
class Data:
    """The rows of each split as texts and as token ids, and the tokenizer, unit and length tokens of the run."""

    splits: dict[str, Any]
    tokenized: dict[str, Any]
    dropped: dict[int, str]  # row of splits["test"] that tokenized["test"] lacks -> reason
    tokenizer: PreTrainedTokenizerBase
    unit: str
    length_tokens: LengthTokens | None
    limits: tuple[int, int]  # maximum numbers of tokens of a source and of a target


def load_data(model_args: ModelArguments, data_args: DataArguments, args, specified: Specified) -> Data:
    """Load, split and tokenize the rows. Write the test rows to `test.jsonl`, for `lenctrl generate`."""
    splits = load_splits(data_args)
    with args.main_process_first(desc="tokenizer"):
        tokenizer = load_tokenizer(model_args, splits["train"], args.output_dir)
    data_args.max_source_length, data_args.max_target_length = limits(model_args, data_args, tokenizer, specified)
    unit, tokens = unit_and_tokens(model_args, data_args, splits["train"], tokenizer)
    if data_args.unseen_lengths:
        splits["train"] = leave_out_lengths(splits["train"], tokenizer, unit, data_args.unseen_lengths)
    with args.main_process_first(desc="tokenising"):
        # `tokenize` logs the dropped rows
        tokenized, reports = tokenize(splits, tokenizer, data_args, length_tokens=tokens, unit=unit)
    tokenizer.model_max_length = data_args.max_source_length  # later inputs are cut at the same limit as in training
    if "test" in splits and args.should_save:
        splits["test"].to_json(Path(args.output_dir, "test.jsonl"), force_ascii=False)
    dropped = reports[list(splits).index("test")].dropped if "test" in splits else {}
    limit = data_args.max_source_length, data_args.max_target_length
    return Data(splits, tokenized, dropped, tokenizer, unit, tokens, limit)


def load_model(model_args: ModelArguments, data_args: DataArguments, run_args: RunArguments, args, data: Data):
    """Build the model to train. If there is a length predictor, save it in the output folder."""
    source = data_args.max_source_length
    assert source is not None  # `load_data` has set it
    positions = max(512, source + 1, data_args.max_target_length + 1)
    model = build_model(model_args, data.tokenizer, max_positions=positions, length_tokens=data.length_tokens)
    add_length_predictor(model, run_args.length_predictor, args.output_dir, args.should_save)
    logger.info("%s with %.1fM parameters", type(model).__name__, model.num_parameters() / 1e6)
    controlled = getattr(model.config, "length_controlled", False)  # a stock configuration has no such field
    free = not controlled or run_args.no_length_share  # whether it generates without a length
    if free and model.generation_config.max_new_tokens is None:
        model.generation_config.max_length = data_args.max_target_length + 1  # the library's default is 20
    return model


def check_before(run_args: RunArguments, args) -> None:
    """
    Check before training that the later steps can work. Raise `ImportError` or `ValueError` if the metrics cannot be
    computed, and `ValueError` if options about checkpoints contradict each other. Warn if matplotlib is missing.
    """
    if run_args.average_checkpoints > 1 and args.load_best_model_at_end:
        raise ValueError("--average_checkpoints takes the mean, --load_best_model_at_end one; leave one of them out")
    if run_args.bleu_tokenizer is not None:
        translation_metrics(["a"], ["a"], bleu_tokenizer=run_args.bleu_tokenizer)
    else:
        rouge_metrics(["a"], ["a"], unit=run_args.rouge_unit)
    if find_spec("matplotlib") is None:
        logger.warning('the model card will have no picture, which needs matplotlib: pip install "hf_lenctrl[plot]"')


def collator_and_metrics(model, run_args: RunArguments, data: Data, length: int | None = None) -> dict[str, Any]:
    """Return the Trainer's collator and metrics for one requested `length`, or for those of the references."""
    measures: dict[str, Any] = {"max_bytes": run_args.rouge_max_bytes, "rouge_unit": run_args.rouge_unit}
    measures |= {"bleu_tokenizer": run_args.bleu_tokenizer, "length": length, **window_in(model.config)}
    return {
        "data_collator": DataCollatorForLengthControl(
            data.tokenizer, model=model, length_unit=data.unit, length=length
        ),
        "compute_metrics": build_compute_metrics(data.tokenizer, data.unit, **measures),
    }


def make_trainer(model, run_args: RunArguments, args, data: Data, trainer_class) -> LengthControlTrainer:
    """Build the Trainer of a run. Noise, overshoot, rows without a length and packing are for training rows only."""
    # the metrics find rows of the same source by their inputs
    args.include_for_metrics = [*{*args.include_for_metrics, "inputs"}]
    draws: dict[str, Any] = {name: getattr(run_args, name) for name in DRAWS} | {"seed": args.seed}
    args.remove_unused_columns = False  # Trainer would remove `keep_length`; there are no unused columns
    draws |= {"packing": data.limits if run_args.packing else None}
    return trainer_class(
        model=model,
        args=args,
        train_dataset=data.tokenized["train"],
        eval_dataset=data.tokenized.get("validation"),
        train_collator=DataCollatorForLengthControl(data.tokenizer, model=model, length_unit=data.unit, **draws),
        r_drop=run_args.r_drop,
        projection_lr_factor=run_args.projection_lr_factor,
        weights_dtype=run_args.weights_dtype,
        processing_class=data.tokenizer,
        **collator_and_metrics(model, run_args, data),
    )


def test_at(length: int | None, trainer: LengthControlTrainer, data: Data, model_args, data_args, run_args) -> dict:
    """
    Generate and save outputs for the test rows, with one requested `length`. If `length` is `None`, the requested
    lengths are the lengths of the references. Return the metrics, and add them to the model card's facts, the
    `TrainingRun` in `trainer.run`.
    """
    name, tokenizer = "test" if length is None else f"test_{length}", data.tokenizer
    run = trainer.run
    assert run is not None
    parts = collator_and_metrics(trainer.model, run_args, data, length)
    trainer.data_collator, trainer.compute_metrics = parts["data_collator"], parts["compute_metrics"]
    rows = data.tokenized["test"]
    if data.length_tokens is not None and length is not None:
        test = DatasetDict({"test": data.splits["test"]})
        options: dict[str, Any] = {"length_tokens": data.length_tokens, "unit": data.unit, "length": length}
        rows = tokenize(test, tokenizer, data_args, **options)[0]["test"]
    # rows of similar length share a batch, to save padding; the outputs are put back in the order of the rows
    order = sorted(range(len(rows)), key=lambda i: (len(rows[i]["labels"]), len(rows[i]["input_ids"])))
    search: dict[str, Any] = {"early_stopping": True} if run_args.generation_early_stopping else {}
    result = trainer.predict(rows.select(order), metric_key_prefix=name, **search)
    figures = result.metrics or {}
    if trainer.is_world_process_zero():
        ids = [torch.as_tensor(found)[np.argsort(order)] for found in (result.predictions, result.label_ids)]
        ids = [found.masked_fill(found == -100, tokenizer.pad_token_id) for found in ids]
        outputs, references = (
            tokenizer.batch_decode(found, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            for found in ids
        )
        produced, own = (parts["data_collator"].unit_table.count(found).tolist() for found in ids)
        requested = own if length is None else [length] * len(own)
        write_outputs(Path(str(trainer.args.output_dir), f"{name}_outputs.jsonl"), data, requested, outputs, produced)
        kept = [i for i in range(len(data.splits["test"])) if i not in data.dropped]
        sources = data.splits["test"].select(kept)["source"][:]
        found = quality(outputs, sources, references, requested, length, trainer, data, model_args, run_args)
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
    """Write a line for each row of `test.jsonl`; for a dropped row, which the lists lack, the reason."""
    tested = iter(zip(requested, outputs, produced, strict=True))
    with path.open("w", encoding="utf-8") as file:
        for i, row in enumerate(data.splits["test"]):
            line, dropped = {"source": row["source"], "reference": row["target"]}, data.dropped.get(i)
            found = (None, None, None) if dropped else next(tested)
            line |= dict(zip(("requested", "output", "length"), found, strict=True))
            file.write(json.dumps(line | ({"dropped": dropped} if dropped else {}), ensure_ascii=False) + "\n")


def card_of(model_args, data_args, run_args: RunArguments, args, rows: dict, history=()) -> TrainingRun:
    """Collect the facts for the model card that are known before the tests. `rows` maps splits to numbers."""
    settings = {name: getattr(run_args, name) for name in DRAWS}
    settings |= {name: args.to_dict()[name] for name in HYPERPARAMETERS} | {"processes": args.world_size}
    settings |= {name: getattr(run_args, name) for name in ("packing", "r_drop") if getattr(run_args, name)}
    settings |= {"dropout": model_args.dropout, "average_checkpoints": run_args.average_checkpoints}
    del settings["num_train_epochs" if args.max_steps > 0 else "max_steps"]  # the deleted option has no effect
    # only translations are measured by BLEU
    translates = run_args.bleu_tokenizer or model_args.source_language != model_args.target_language
    name = data_args.dataset_name
    on_hub = name is not None and not Path(name).exists()  # `load_dataset` also takes folders
    empty: dict[str, Any] = {"tests": {}, "outputs": {}, "sources": [], "references": []}  # filled by `test_at`
    return TrainingRun(
        **empty,
        data=name if on_hub else Path(name or data_args.train_file).name,  # the card does not show the local path
        on_hub=on_hub,
        rows=rows,
        history=history,
        settings=settings,
        task=run_args.task or ("translation" if translates else "summarization"),
        base_model=model_args.base_model or model_args.model_name_or_path,
        language=run_args.language,
        license=run_args.license,
        length_unit=model_args.length_unit,
        examples=run_args.card_examples,
    )


def main(argv=None) -> dict:
    """Train and test a model. Return the metrics, which are also in `<output_dir>/all_results.json`."""
    if is_causal(given_options(argv)):
        return causal.main(argv)
    arguments, specified = parse_specified(CLASSES, argv, __doc__)
    return run(*arguments, specified=specified)


def is_causal(given: dict[str, str]) -> bool:
    """
    Return whether a run trains a causal model, not an encoder-decoder. `given` holds the options as raw text, see
    `given_options`. If the options name a model, the model's configuration decides. If they name no model, or if the
    configuration cannot be loaded, return whether there are options only for causal models and no options only for
    encoder-decoders. Raise `ValueError` if the model is known and there are options only for the other kind.
    """
    names = [{f.name for cls in classes for f in fields(cls) if f.init} for classes in (CLASSES, CAUSAL)]
    seq2seq, only_causal = (sorted(given.keys() & (own - other)) for own, other in (names, names[::-1]))
    option = "model_name_or_path" if given.get("model_name_or_path") else "base_model"
    name, by_options = given.get(option) or "required", bool(only_causal) and not seq2seq
    if name in ("required", "null"):
        return by_options
    try:
        config = AutoConfig.from_pretrained(name)
    except (OSError, ValueError):  # the code that loads the model raises a clear error
        return by_options
    found = not config.is_encoder_decoder
    if wrong := seq2seq if found else only_causal:
        kinds = ["an encoder-decoder", "a causal language model"]
        advice = "take causal/acl or a recipe of your own" if found else "take headline/pretrained"
        raise ValueError(
            f"{option}={name} is {kinds[found]} ({config.model_type}), but these options are of {kinds[not found]}: "
            f"{', '.join(wrong)}; {advice}, or give another {option}"
        )
    return found


def run(
    model_args,
    data_args,
    run_args: RunArguments,
    args,
    trainer_class: Callable[..., LengthControlTrainer] = LengthControlTrainer,
    *,
    specified: Specified,
) -> dict:
    """Train and test a model, write its card, and return the metrics. `trainer_class` builds the Trainer."""
    set_up(args)  # before anything is logged
    check_before(run_args, args)
    check_options(model_args, data_args, run_args, specified)
    args.predict_with_generate = True  # the lengths of generated texts are measured
    with begun(args, model_args, data_args, run_args) as record:
        data = load_data(model_args, data_args, args, specified)
        check_evaluation(args, data.tokenized)
        rows = {name: len(split) for name, split in data.tokenized.items()}
        model = load_model(model_args, data_args, run_args, args, data)
        trainer = make_trainer(model, run_args, args, data, trainer_class)
        count = run_args.average_checkpoints
        metrics, history = fit(trainer, record, partial(keep_better, count=count) if count > 1 else None)
        trainer.run = card_of(model_args, data_args, run_args, args, rows, history)
        for length in [None, *run_args.test_lengths] if "test" in data.tokenized else []:
            metrics |= test_at(length, trainer, data, model_args, data_args, run_args)
        warn_of_baselines(trainer.run.tests, data.unit)
        publish(trainer)
        return metrics
