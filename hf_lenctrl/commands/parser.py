"""Command lines: options in groups, and a suggestion for what is misspelt."""

import argparse
from dataclasses import Field
from pathlib import Path
from typing import NoReturn

import torch
from transformers import HfArgumentParser, TrainingArguments
from transformers.hf_argparser import string_to_bool

from .recipes import did_you_mean


# the options of Trainer that a run is likely to need, with a shorter help than Trainer's
TRAINING = {
    "output_dir": "Folder of the run. To resume it, repeat the command",
    "max_steps": "Optimizer steps, overrides num_train_epochs",
    "num_train_epochs": "Passes over the training rows",
    "per_device_train_batch_size": "Rows of a step on each device",
    "per_device_eval_batch_size": "Rows of a batch in evaluation, on each device",
    "gradient_accumulation_steps": "Batches of one optimizer step",
    "learning_rate": "The highest learning rate",
    "lr_scheduler_type": "How the learning rate changes: linear, inverse_sqrt, cosine, constant, ...",
    "warmup_steps": "Steps in which the learning rate rises",
    "label_smoothing_factor": "Probability spread over the other entries of the vocabulary",
    "train_sampling_strategy": "Order of the rows",
    "seed": "Of weights, order and noise",
    "eval_strategy": "When to evaluate",
    "eval_steps": "Steps between evaluations",
    "save_steps": "Steps between checkpoints",
    "save_total_limit": "Checkpoints to keep",
    "logging_steps": "Steps between lines of the log",
    "predict_with_generate": "Evaluate texts that the model writes",
    "generation_num_beams": "Beams when it writes",
    "bf16": "Compute in bfloat16: true, false, or auto, where the hardware has it",
    "gradient_checkpointing": "Less memory for more time",
    "use_cpu": "Use no GPU",
    "report_to": "Trackers: none, tensorboard, wandb, ...",
}
LENGTH = """absolute_positions encoder_length_embedding learned_lengths length_bins length_constraint length_encoding
    length_head length_noise length_predictor length_scale length_tokens length_tolerance length_unit overshoot_share
    projection_lr_factor test_lengths unseen_lengths""".split()
HUB = """card_examples hub_model_id hub_private_repo hub_revision hub_strategy hub_token language license push_to_hub
    task""".split()
GROUPS = {"length": LENGTH, "training": TRAINING, "Hub": HUB}
TITLES = ("model", "data", "length", "training", "Hub", "other options of Trainer")


def has_bfloat16(use_cpu: bool = False) -> bool:
    """Whether the hardware computes in bfloat16: a GPU, or a CPU on Linux. Elsewhere it is emulated, and slow."""
    if torch.cuda.is_available() and not use_cpu:
        return torch.cuda.is_bf16_supported(including_emulation=False)
    flags = Path("/proc/cpuinfo")
    return flags.is_file() and not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags.read_text(errors="replace").split())


def _bool_or_auto(value: str) -> bool | str:
    return value if value == "auto" else string_to_bool(value)


class CommandParser(argparse.ArgumentParser):
    """`ArgumentParser` that suggests an option or a choice for one that is misspelt, and takes no abbreviations."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def _check_value(self, action, value):
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            raise argparse.ArgumentError(action, error.message + did_you_mean(value, action.choices or ())) from None

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            options = [option for action in self._actions for option in action.option_strings]
            for word in message.split()[2:]:
                if word.startswith("--"):
                    message += did_you_mean(word.partition("=")[0], options)
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")  # the usage would take a screen


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Each option under one of its names, with its choices, and its default if it has one."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=30)

    def _get_help_string(self, action):
        return action.help if action.default in (None, []) else super()._get_help_string(action)

    def _format_action_invocation(self, action):
        few = action.choices if action.choices is not None and len(list(action.choices)) < 7 else None
        return action.option_strings[0] + ("" if few is None else f" {{{','.join(map(str, few))}}}")


class GroupedParser(CommandParser, HfArgumentParser):
    """
    `HfArgumentParser` whose `--help` has a group for each subject. Most of Trainer's options are shown by `--help-all`
    alone.

    Args:
        classes (`Sequence[type]`): Dataclasses. `group` names the group of a class, Trainer's have none.
        description (`str`, *optional*): Shown above the options.
    """

    def __init__(self, classes, description: str | None = None):
        self.hidden: dict[argparse.Action, str | None] = {}
        super().__init__(
            classes,
            description=description,
            formatter_class=_Formatter,
            usage="%(prog)s [recipe] [--option value ...]",
            epilog="--help-all shows the other options of Trainer too.",
        )
        self.add_argument("--help-all", "--help_all", action=_HelpAll, help="show the other options of Trainer too")

    def _add_dataclass_arguments(self, dtype):
        if not hasattr(self, "titled"):
            self.titled = {title: self.add_argument_group(title) for title in TITLES}
        self.group = getattr(dtype, "group", TITLES[-1] if issubclass(dtype, TrainingArguments) else TITLES[0])
        super()._add_dataclass_arguments(dtype)

    def _parse_dataclass_field(self, parser, field: Field):  # type: ignore[override]
        title = next((title for title, names in GROUPS.items() if field.name in names), self.group)
        before = len(self._actions)
        super()._parse_dataclass_field(self.titled[title], field)
        for action in self._actions[before:]:
            if field.name == "bf16":
                action.type = _bool_or_auto
            if field.name in TRAINING:
                action.help = TRAINING[field.name]
            if title == TITLES[-1] or action.option_strings[0].startswith("--no_"):
                self.hidden[action], action.help = action.help, argparse.SUPPRESS

    def parse_known_args(self, args=None, namespace=None):
        found, rest = super().parse_known_args(args, namespace)
        if getattr(found, "bf16", None) == "auto":
            found.bf16 = has_bfloat16(found.use_cpu)
        return found, rest


class _HelpAll(argparse.Action):
    """`--help` with the options that it leaves out."""

    def __init__(self, option_strings, dest, help=None):
        super().__init__(option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser, namespace, values, option_string=None):
        for action, text in parser.hidden.items():
            action.help = text
        parser.print_help()
        parser.exit()
