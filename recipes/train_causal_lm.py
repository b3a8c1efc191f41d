"""Train a causal language model to write answers of a requested length, whole or by LoRA.

    python recipes/train_causal_lm.py recipes/causal/acl.yaml --base_model runs/causal/base --train_file train.jsonl
    python recipes/train_causal_lm.py recipes/causal/acl.yaml ... --lora_r 16 --output_dir runs/causal/lora

The rows have the columns `prompt` and `completion`, or `messages`, a chat, for a tokenizer whose template marks what
the assistant says with {% generation %}. The length is counted from each answer; a chat with several gives a row for
each, and those before it are prompt. With --lora_r the folder receives the adapter, and in `base` the model to load it
on. Options on the command line override the YAML file; a run that was stopped resumes from its last whole checkpoint
when the same command is given again.
"""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, TrainingArguments

import hf_lenctrl
from hf_lenctrl.answers import answer_progress
from hf_lenctrl.commands import rows as row_files
from hf_lenctrl.commands.arguments import parse_arguments
from hf_lenctrl.commands.record import begun
from hf_lenctrl.commands.run import fit, set_up
from hf_lenctrl.length_units import UnitTable
from hf_lenctrl.training.collator import DrawsByExample
from hf_lenctrl.training.trainer import ResumableTrainer, range_of


@dataclass
class Options:
    """What Trainer does not know."""

    base_model: str = field(metadata={"help": "Plain causal model to start from"})
    train_file: str = field(metadata={"help": "Rows: jsonl, json (.gz too)"})
    validation_file: str | None = field(default=None, metadata={"help": "Rows of the validation loss"})
    length_encoding: str = field(default="ldpe", metadata={"help": "ldpe, lrpe, pre, learned, or none: plain"})
    length_unit: str = field(default="character", metadata={"help": "character, word, byte or token"})
    max_length: int = field(default=512, metadata={"help": "Rows with more tokens are dropped"})
    overshoot_share: float = field(default=0.0, metadata={"help": "Share of the rows that teach how a text ends"})
    no_length_share: float = field(default=0.0, metadata={"help": "Share of the rows that are given no length"})
    projection_lr_factor: float = field(default=1.0, metadata={"help": "The new layer learns so many times as fast"})
    lora_r: int = field(default=0, metadata={"help": "Rank of LoRA; 0 trains the whole model"})
    lora_target: str = field(default="all-linear", metadata={"help": "Layers of LoRA"})
    lora_merge: bool = field(default=False, metadata={"help": "Save the model with the adapter merged into it"})
    load_in_4bit: bool = field(default=False, metadata={"help": "Load the base by bitsandbytes, for LoRA"})

    def __post_init__(self):
        if self.lora_merge and not self.lora_r:
            raise ValueError("lora_merge needs an adapter to merge, got lora_r=0; give lora_r=16, or leave it out")
        for name, unused in (("overshoot_share", 0.0), ("no_length_share", 0.0), ("projection_lr_factor", 1.0)):
            value = getattr(self, name)
            if self.length_encoding == "none" and value != unused:
                raise ValueError(
                    f"{name}={value} is for models with a length, got length_encoding=none; give {name}={unused:g}"
                )


def encode_answer(messages: list[dict], tokenizer) -> dict[str, list[int]]:
    """The last answer of a chat as ids and labels, -100 over what is before it: earlier answers are prompt."""
    ids = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    mask = list(ids["assistant_masks"])
    if not any(mask):
        raise ValueError(
            "the chat template does not mark the assistant's turns; set one with {% generation %} ... "
            "{% endgeneration %}, or give columns prompt and completion"
        )
    end = len(mask) - mask[::-1].index(1)
    start = max((i + 1 for i in range(end) if not mask[i]), default=0)
    return {"input_ids": ids["input_ids"][:end], "labels": [-100] * start + ids["input_ids"][start:end]}


def encode(row: dict, tokenizer) -> list[dict[str, list[int]]]:
    """A row as ids and labels, -100 over the prompt: one for each answer of a chat."""
    if row.get("messages"):
        messages = row["messages"]
        ends = [i + 1 for i, message in enumerate(messages) if message["role"] == "assistant"]
        if not ends:
            raise ValueError("messages hold no answer, a message of role assistant; mend or remove the row")
        return [encode_answer(messages[:end], tokenizer) for end in ends]
    for name in ("prompt", "completion"):
        text = row.get(name)
        if not isinstance(text, str) or (name == "completion" and not text):
            raise ValueError(
                f"prompt and completion must be texts, the completion not empty, got {name}={text!r}; mend or remove "
                "the row"
            )
    prompt = tokenizer(row["prompt"])["input_ids"]
    answer = tokenizer(row["completion"], add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    return [{"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer}]


def load_rows(path: str, tokenizer, max_length: int) -> datasets.Dataset:
    """The rows of a file, encoded, without those that are too long."""

    def numbered(batch, indices):
        row = {name: values[0] for name, values in batch.items()}
        try:
            answers = encode(row, tokenizer)
        except Exception as error:  # those of a chat template, too
            raise ValueError(f"row {indices[0] + 1} of {path}: {error}") from error
        return {name: [answer[name] for answer in answers] for name in ("input_ids", "labels")}

    rows = row_files.load_rows(path)
    one = {"batched": True, "batch_size": 1}  # of which several may come
    rows = rows.map(numbered, **one, with_indices=True, remove_columns=rows.column_names)
    kept = rows.filter(lambda row: len(row["input_ids"]) <= max_length)
    print(f"{path}: {len(kept):,} of {len(rows):,} rows have at most {max_length} tokens")
    if len(kept) == 0:
        raise ValueError(
            f"no row of {path} has at most max_length={max_length} tokens, the shortest has "
            f"{min(map(len, rows['input_ids']), default=0)}; give a larger max_length"
        )
    return kept


def trained_lengths(model, tokenizer, rows: datasets.Dataset) -> dict[str, int]:
    """What the configuration keeps of the lengths of answers, so that `generate` warns of others."""
    lengths: list[int] = []
    for labels in rows["labels"]:
        lengths += answer_progress(model.unit_table, torch.tensor([labels]), [tokenizer.eos_token_id])[1].tolist()
    return range_of(lengths)


@dataclass
class CollatorWithOvershoot(DrawsByExample, DataCollatorForSeq2Seq):
    """
    The parent's batch; `share` of its rows are given a length shorter than the answer's, and labels only where the
    answer has reached it; `without` of them are given no length. See `DataCollatorForLengthControl`. What is drawn
    depends on `seed`, the epoch and the row alone, so a resumed run has the same batches.
    """

    table: Any = None
    share: float = 0.0
    without: float = 0.0
    seed: int = 0

    def __call__(self, features, return_tensors=None):
        draws = torch.tensor([self._draw(row) for row in features], dtype=torch.float64)  # (B, 3)
        batch = super().__call__(features, return_tensors)
        eos, labels = self.tokenizer.eos_token_id, batch["labels"]
        progress, length = answer_progress(self.table, labels, [eos])  # (B, T) and (B,)
        chosen = (draws[:, 0] < self.share) & (length > 1)  # (B,)
        half = (length // 2).clamp(min=1)
        shorter = half + (draws[:, 1] * (length - half)).long()  # (B,), half ... length - 1
        early = torch.nn.functional.pad(progress, (1, 0), value=-1)[:, :-1] < shorter.unsqueeze(1)  # (B, T)
        batch["labels"] = labels.masked_fill(chosen.unsqueeze(1) & early, -100)
        free = (draws[:, 0] >= self.share) & (draws[:, 0] < self.share + self.without)
        return batch | {"progress": progress, "length": torch.where(chosen, shorter, length).masked_fill(free, 0)}


def build(options: Options, args: TrainingArguments, tokenizer, rows: datasets.Dataset):
    """The model to train: length-controlled, and with an adapter for LoRA."""
    quantization = {}
    if options.load_in_4bit:
        from transformers import BitsAndBytesConfig  # bitsandbytes says so itself where it is missing

        quantization = {"quantization_config": BitsAndBytesConfig(load_in_4bit=True)}
    # a float16 file is for serving: weights that are trained are float32; those under an adapter stay as they are
    dtype = "auto" if options.lora_r else torch.float32
    plain = AutoModelForCausalLM.from_pretrained(options.base_model, dtype=dtype, **quantization)
    if options.length_encoding == "none":
        model = plain
    else:
        control: Any = {"length_encoding": options.length_encoding, "length_unit": options.length_unit}
        model = hf_lenctrl.add_length_control(plain, tokenizer=tokenizer, **control)
        model.config.trained_lengths = trained_lengths(model, tokenizer, rows)
        if options.no_length_share:
            model.make_length_optional()
    if not options.lora_r:
        return model
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    folder = Path(str(args.output_dir), "base")
    if args.should_save:  # one process alone
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    model.name_or_path = str(folder)
    if options.load_in_4bit:
        model = prepare_model_for_kbit_training(model)
    whole = None if options.length_encoding == "none" else ["length_projection"]
    lora = LoraConfig(r=options.lora_r, lora_alpha=2 * options.lora_r, target_modules=options.lora_target)
    lora.task_type, lora.modules_to_save = "CAUSAL_LM", whole
    return get_peft_model(model, lora)


def make_optimizer(model, args: TrainingArguments, factor: float) -> torch.optim.Optimizer:
    """AdamW, with a rate of its own for the length projection."""
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    new = [weight for name, weight in trained if "length_projection" in name]
    matrices = [weight for name, weight in trained if "length_projection" not in name and weight.dim() > 1]
    vectors = [weight for name, weight in trained if "length_projection" not in name and weight.dim() < 2]
    print(f"{sum(weight.numel() for _, weight in trained):,} trained parameters")
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": args.weight_decay}, {"params": vectors}]
    groups += [{"params": new, "lr": args.learning_rate * factor}] if new else []
    betas = (args.adam_beta1, args.adam_beta2)
    return torch.optim.AdamW(groups, lr=args.learning_rate, betas=betas, eps=args.adam_epsilon, weight_decay=0.0)


def make_trainer(options: Options, args: TrainingArguments, tokenizer) -> ResumableTrainer:
    """The Trainer of a run, with overshoot in the training batches alone."""
    pads_right = copy.deepcopy(tokenizer)  # positions count from the first token, as in generation
    pads_right.padding_side = "right"
    files = {"train": options.train_file, "validation": options.validation_file}
    rows = {name: load_rows(file, tokenizer, options.max_length) for name, file in files.items() if file}
    model = build(options, args, tokenizer, rows["train"])
    train_collator = None
    if options.overshoot_share or options.no_length_share:
        table = UnitTable.from_tokenizer(tokenizer, options.length_unit)
        shares: Any = {"share": options.overshoot_share, "without": options.no_length_share}
        train_collator = CollatorWithOvershoot(pads_right, table=table, seed=args.seed, **shares)
    return ResumableTrainer(
        model=model,
        args=args,
        data_collator=DataCollatorForSeq2Seq(pads_right),
        train_collator=train_collator,
        train_dataset=rows["train"],
        eval_dataset=rows.get("validation"),
        processing_class=tokenizer,
        optimizers=(make_optimizer(model, args, options.projection_lr_factor), None),
    )


def merge(trainer: ResumableTrainer) -> None:
    """Put the adapter's weights into those of the model."""
    adapted: Any = trainer.model
    trainer.model = adapted.merge_and_unload()


def main(argv=None) -> None:
    """Run the recipe."""
    options, args = parse_arguments((Options, TrainingArguments), argv, __doc__)
    set_up(args)
    with begun(args, options) as record:
        tokenizer = AutoTokenizer.from_pretrained(options.base_model)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        trainer = make_trainer(options, args, tokenizer)
        fit(trainer, record, merge if options.lora_merge else None)
        if args.push_to_hub:
            trainer.push_to_hub()


if __name__ == "__main__":
    main()
