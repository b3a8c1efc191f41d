"""Train a causal language model, or a LoRA adapter for it, to write answers of a requested length.

    lenctrl train causal/acl --base_model path/or/name --train_file rows.jsonl --lora_r 16 --output_dir runs/lora

The rows have either the columns `prompt` and `completion`, or a column `messages` that holds a chat. The length is
counted from each answer. A chat with several answers gives one row for each answer, with the earlier answers in its
prompt. If `lora_r` is set, the output is an adapter; `pipeline` and `from_pretrained` load it with its base model. To
train an adapter further, give it as `adapter`. To resume an interrupted run, repeat the command.
"""

import copy
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    DataCollatorForSeq2Seq,
    TrainingArguments,
)

from ..adapters import BASE, load_adapter
from ..answers import answer_progress
from ..conversion import add_length_control, tokenizer_of
from ..length_units import LENGTH_UNITS, UnitTable
from ..thoughts import thoughts_of
from ..training.collator import DataCollatorForAnswers
from ..training.model_card import TrainingRun
from ..training.trainer import AnswerTrainer, range_of
from .answer_rows import load_answers
from .arguments import given_options, option, parse_arguments
from .record import begun
from .run import check_evaluation, fit, publish, set_up


logger = logging.getLogger(__name__)
_ENCODINGS = ["ldpe", "lrpe", "pre", "pre_noise", "learned", "none"]
_SETTINGS = """max_steps num_train_epochs per_device_train_batch_size gradient_accumulation_steps learning_rate
    lr_scheduler_type warmup_steps weight_decay bf16 fp16 seed""".split()
_OWN_SETTINGS = "overshoot_share no_length_share projection_lr_factor lora_r lora_target max_length".split()


@dataclass
class CausalArguments:
    """Options of a causal model: the base model, the rows, and how the model learns the length."""

    base_model: str = field(metadata={"help": "Plain causal model to start from"})
    train_file: str = field(metadata={"help": "Rows: json, jsonl, csv (these also as .gz) or parquet"})
    validation_file: str | None = option(None, "Rows of the validation loss")
    length_encoding: str = option("ldpe", "How the model reads the length; none for the plain model", _ENCODINGS)
    length_unit: str = option("character", "Unit of lengths", LENGTH_UNITS)
    max_length: int = option(512, "Most tokens of a row; longer rows are dropped, and their number is logged")
    overshoot_share: float = option(0.0, "Share of the rows that teach how a text ends when no length remains")
    no_length_share: float = option(0.0, "Share of the rows that are trained without a length, for calls without one")
    length_from: str | None = option(None, "Marker that ends the thoughts of a row, `</think>`; the answer follows it")
    projection_lr_factor: float = option(1.0, "Factor of the learning rate for the new length projection")
    lora_r: int = option(0, "Rank of LoRA; 0 trains the whole model")
    lora_target: str = option(
        "all-linear", "Layers of LoRA: all-linear, names (q_proj,v_proj), or a regular expression"
    )
    adapter: str | None = option(None, "Adapter with length control over base_model, to train it further")
    attn_implementation: str | None = option(None, "eager is faster for short rows on a CPU", ["sdpa", "eager"])
    load_in_4bit: bool = option(False, "Load the base model in 4 bits by bitsandbytes, for LoRA")
    weights_dtype: str | None = option(None, "Round the final weights, to halve the file", ["float16", "bfloat16"])
    base_model_name: str | None = option(None, "Hub name of the base model, if base_model is a folder")
    language: str | None = option(None, "Language for the model card: en")
    license: str | None = option(None, "Licence for the model card: apache-2.0")

    def __post_init__(self):
        if self.adapter is not None and self.lora_r:
            raise ValueError(f"the adapter {self.adapter} has a rank already, got lora_r={self.lora_r}; leave it out")
        for name, unused in (("overshoot_share", 0.0), ("no_length_share", 0.0), ("projection_lr_factor", 1.0)):
            value = getattr(self, name)
            if self.length_encoding == "none" and value != unused:
                raise ValueError(
                    f"{name}={value} is for models with a length, got length_encoding=none; give {name}={unused:g}"
                )
        if self.length_encoding == "none" and self.length_from is not None:
            raise ValueError(
                f"length_from={self.length_from!r} is for models with a length, got length_encoding=none; leave it out"
            )

    @property
    def trains_adapter(self) -> bool:
        """Return whether the run trains an adapter, not the whole model."""
        return bool(self.lora_r) or self.adapter is not None

    @property
    def name(self) -> str:
        """
        Return the base model's name for the adapter's configuration: a Hub name, or a folder's name without its path.
        """
        local = Path(self.base_model)
        return self.base_model_name or (local.resolve().name if local.is_dir() else self.base_model)


def check_base(name: str) -> None:
    """Raise `ValueError` if the model `name` is not a causal language model, or if it already has length control."""
    config = AutoConfig.from_pretrained(name)
    if hasattr(config, "length_encoding"):
        raise ValueError(f"base_model={name} has length control already; give the plain model")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not hasattr(config, "auto_map"):
        raise ValueError(f"base_model={name} is of no causal language model ({config.model_type}); give another")


def build(options: CausalArguments, args, tokenizer, rows: Dataset):
    """
    Load the base model, and return the model to train. Add length control unless `length_encoding` is `"none"`. If
    `lora_r` is above 0, add a new LoRA adapter. If `adapter` is set, load this adapter with its length control
    instead. `args` are the `TrainingArguments`, and `rows` the encoded training rows.
    """
    quantization = {}
    if options.load_in_4bit:
        from transformers import BitsAndBytesConfig  # if bitsandbytes is missing, transformers raises a clear error

        quantization = {"quantization_config": BitsAndBytesConfig(load_in_4bit=True)}
    # train in float32, even from a float16 file; but the frozen base model of an adapter keeps its dtype
    dtype = "auto" if options.trains_adapter else torch.float32
    attention = {} if options.attn_implementation is None else {"attn_implementation": options.attn_implementation}
    plain = AutoModelForCausalLM.from_pretrained(options.base_model, dtype=dtype, **quantization, **attention)
    if options.load_in_4bit:
        from peft import prepare_model_for_kbit_training

        plain = prepare_model_for_kbit_training(plain)
    if options.adapter is not None:
        return _train_further(plain, options, args, tokenizer, rows)
    if options.length_encoding == "none":
        model = plain
    else:
        model = add_length_control(
            plain, tokenizer=tokenizer, length_encoding=options.length_encoding, length_unit=options.length_unit
        )
        _prepare(model, options, tokenizer, rows)
    return _with_lora(model, options, args) if options.lora_r else model


def _prepare(model, options: CausalArguments, tokenizer, rows: Dataset) -> None:
    """Store percentiles of the training lengths, and make the length optional if `no_length_share` is above 0."""
    model.config.trained_lengths = trained_lengths(model, tokenizer, rows, options.length_from)
    if options.no_length_share:
        model.make_length_optional()


def _train_further(plain, options: CausalArguments, args, tokenizer, rows: Dataset):
    """
    Load the adapter `options.adapter` over `plain`, to train it further in float32. Raise `ValueError` if its length
    encoding or unit differs from the options.
    """
    model = load_adapter(options.adapter, plain, merge=False, is_trainable=True)
    control = model.get_base_model()
    for name in ["length_encoding"] + ["length_unit"] * (options.length_encoding != "none"):
        own, given = getattr(control.config, name, "none"), getattr(options, name)
        if own != given:
            raise ValueError(f"the adapter {options.adapter} has {name}={own}, got {given}; give {name}={own}")
    if options.length_encoding != "none":
        _prepare(control, options, tokenizer, rows)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    _name_base(options, args)
    return model


def _with_lora(model, options: CausalArguments, args):
    """Add a new LoRA adapter. It saves the complete weights of the layers that read the length."""
    from peft import LoraConfig, get_peft_model

    whole = [name for name in ("length_projection", "length_embedding") if getattr(model, name, None) is not None]
    names = options.lora_target.split(",")
    # PEFT compares a text with whole names, such as model.layers.0.self_attn.q_proj, and a list with their ends
    target = names if all(re.fullmatch(r"[\w.]+", name) for name in names) else options.lora_target
    lora = LoraConfig(r=options.lora_r, lora_alpha=2 * options.lora_r, target_modules=target)
    lora.task_type, lora.modules_to_save = "CAUSAL_LM", whole or None
    model.name_or_path = options.name
    try:
        adapted = get_peft_model(model, lora)
    except ValueError as error:  # PEFT raises it for a wrong rank, and for names that no layer has
        raise ValueError(
            f"lora_r={options.lora_r} and lora_target={options.lora_target} give no adapter: {error}"
        ) from error
    if whole:
        _bind_to_control(adapted.peft_config["default"])
    _name_base(options, args)
    return adapted


def _name_base(options: CausalArguments, args) -> None:
    """If the base model is a local folder, save its path in the run's folder, to load the adapter on this machine."""
    base = Path(options.base_model)
    if args.should_save and base.is_dir():
        Path(args.output_dir, BASE).parent.mkdir(parents=True, exist_ok=True)
        Path(args.output_dir, BASE).write_text(str(base.resolve()), encoding="utf-8")


def _bind_to_control(lora) -> None:
    """
    Limit the target layers of a LoRA configuration to those inside a `LenCtrlForCausalLM`. Then PEFT refuses to load
    the adapter over the plain base model, whose layers have the same short names.
    """
    names = lora.target_modules
    if not isinstance(names, str):
        names = rf"(.*\.)?({'|'.join(map(re.escape, sorted(names)))})"
    lora.target_modules = rf"(?=(.*\.)?language_model\.)({names})"


def trained_lengths(model, tokenizer, rows: Dataset, length_from: str | None = None) -> dict[str, int]:
    """Return percentiles of the answers' lengths, see `range_of`. Thoughts do not count."""
    lengths: list[int] = []
    table, eos = model.unit_table, [tokenizer.eos_token_id]
    thoughts = thoughts_of(length_from, tokenizer, table)
    for labels in rows["labels"]:
        lengths += answer_progress(table, torch.tensor([labels]), eos, thoughts=thoughts)[1].tolist()
    return range_of(lengths)


def make_trainer(options: CausalArguments, args, tokenizer) -> AnswerTrainer:
    """
    Load the rows and the model, and build the Trainer of a run. Only training batches have overshoot examples and rows
    without a length, see `DataCollatorForAnswers`.
    """
    pads_right = copy.deepcopy(tokenizer)  # then positions begin at the first token, as in generation
    pads_right.padding_side = "right"
    files = {"train": options.train_file, "validation": options.validation_file}
    with args.main_process_first(desc="tokenising"):
        unit = "token" if options.length_encoding == "none" else options.length_unit
        how: dict[str, Any] = {"max_length": options.max_length, "unit": unit, "length_from": options.length_from}
        rows = {name: load_answers(file, tokenizer, **how) for name, file in files.items() if file}
    check_evaluation(args, rows)
    model = build(options, args, tokenizer, rows["train"])
    collator, train_collator = DataCollatorForSeq2Seq(pads_right), None
    draws: dict[str, Any] = {name: getattr(options, name) for name in ("overshoot_share", "no_length_share")}
    if any(draws.values()) or options.length_from is not None:
        own: dict[str, Any] = {"table": UnitTable.from_tokenizer(tokenizer, options.length_unit), "seed": args.seed}
        own["length_from"] = options.length_from
        train_collator = DataCollatorForAnswers(pads_right, **own, **draws)
        collator = collator if options.length_from is None else DataCollatorForAnswers(pads_right, **own)
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    logger.info("%s trained parameters", f"{trained:,}")
    return AnswerTrainer(
        model=model,
        args=args,
        data_collator=collator,
        train_collator=train_collator,
        train_dataset=rows["train"],
        eval_dataset=rows.get("validation"),
        processing_class=tokenizer,
        projection_lr_factor=options.projection_lr_factor,
        weights_dtype=options.weights_dtype,
    )


def card_of(options: CausalArguments, args, trainer: AnswerTrainer, history) -> TrainingRun:
    """Collect the facts about a run for the model card. `history` holds sentences about the training."""
    settings = {name: getattr(options, name) for name in _OWN_SETTINGS if options.lora_r or "lora" not in name}
    settings |= {"adapter": Path(options.adapter).name} if options.adapter is not None else {}
    settings |= {"length_from": options.length_from} if options.length_from is not None else {}
    settings |= {name: args.to_dict()[name] for name in _SETTINGS} | {"processes": args.world_size}
    del settings["num_train_epochs" if args.max_steps > 0 else "max_steps"]  # the deleted option has no effect
    rows: dict[str, Any] = {"train": trainer.train_dataset, "validation": trainer.eval_dataset}
    empty: dict[str, Any] = {"tests": {}, "outputs": {}, "sources": [], "references": []}
    model: Any = trainer.model
    rank = getattr(getattr(model, "peft_config", {}).get("default"), "r", None)
    return TrainingRun(
        **empty,
        data=Path(options.train_file).name,
        rows={name: len(split) for name, split in rows.items() if split is not None},
        history=history,
        settings=settings,
        task="text-generation",
        adapter=f"LoRA of rank {rank}" if options.trains_adapter else None,
        base_model=options.base_model_name or options.base_model,
        language=options.language,
        license=options.license,
        length_unit=options.length_unit,
    )


def parse(argv=None) -> tuple[CausalArguments, TrainingArguments]:
    """Parse the options of a run. By default, each batch has rows of similar length."""
    options, args = parse_arguments((CausalArguments, TrainingArguments), argv, __doc__)
    if "train_sampling_strategy" not in given_options(argv):
        args.train_sampling_strategy = "group_by_length"  # random batches would be one third padding
    return options, args


def load_tokenizer(options: CausalArguments) -> Any:
    """Load the base model's tokenizer. If it has no padding token, set EOS as its padding token."""
    tokenizer = tokenizer_of(options.base_model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def main(argv=None) -> dict:
    """Train a causal model, save it, and write its card. Return the training metrics of Trainer, if it trained."""
    options, args = parse(argv)
    set_up(args)
    check_base(options.base_model)
    with begun(args, options) as record:
        trainer = make_trainer(options, args, load_tokenizer(options))
        metrics, history = fit(trainer, record)
        trainer.run = card_of(options, args, trainer, history)
        publish(trainer)
        return metrics
