"""Options of the commands: from dataclasses, from one YAML file a run, and from the command line, which wins."""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from ..configuration_lenctrl import LENGTH_ENCODING_NAMES
from ..evaluation.metrics import ROUGE_UNITS
from ..length_tokens import LENGTH_TOKEN_KINDS
from ..length_units import LENGTH_UNITS, load_unit
from ..lengths import LENGTH_CONSTRAINTS, check_length, check_tolerance, parse_tolerance
from ..training.model_card import TASKS
from .recipes import did_you_mean, find_recipe, model_name


# these options name a folder or a model of the Hub
MODELS = """model_name_or_path base_model tokenizer_name_or_path encoder_name_or_path target_tokenizer
    length_predictor adapter""".split()
FAMILIES = ["marian", "bart"]  # families of new models; lab/reproduce/baselines adds to both
ENCODINGS = list(LENGTH_ENCODING_NAMES)
UNIT_HELP = f"{', '.join(LENGTH_UNITS)}, or your own, module:name"


def unit_name(value: str) -> str:
    """Check the name of a unit, and return it. A module of your own may be in the current folder."""
    if ":" in value and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        load_unit(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return value


def option(default: Any, help: str, choices: Iterable | None = None) -> Any:
    """Return a dataclass field for an option, with its help text and its choices."""
    metadata = {"help": help} | ({} if choices is None else {"choices": choices})
    if isinstance(default, list):
        return field(default_factory=list, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Specified:
    """The names of the options that a user set: in a recipe or on the command line, and on the command line alone."""

    anywhere: frozenset[str] = frozenset()
    on_command_line: frozenset[str] = frozenset()


@dataclass
class ModelArguments:
    """The model to train: a saved one to go on with, or the shape of a new one."""

    model_name_or_path: str | None = option(None, "Checkpoint to train further; a plain one: length_encoding none")
    base_model: str | None = option(None, "Plain encoder-decoder (BART, Marian, NLLB, T5, LED) to add length control")
    source_language: str | None = option(None, "Language code of a multilingual tokenizer")
    target_language: str | None = option(None, "Language code of the outputs")
    length_constraint: str | None = option(None, "Default constraint of the trained model", list(LENGTH_CONSTRAINTS))
    length_tolerance: list[str] = option([], "Window of 'exact': units (4), a share (0.1), or two, below and above")
    family: str = option("marian", "Family of a new model", FAMILIES)
    length_encoding: str = option("ldpe", "How the decoder is given the length; none for the plain model", ENCODINGS)
    absolute_positions: bool = option(False, "Keep absolute positions too (+PE), as none always does")
    encoder_length_embedding: bool = option(False, "Tell the encoder the length too (Nguyen et al. 2023)")
    length_head: bool = option(False, "Length head in cross-attention (Nguyen et al. 2023)")
    learned_lengths: int = option(512, "Rows of learned tables of lengths")
    length_scale: int = option(1, "Divides the length of 'scale'; a typical target's length")
    length_unit: str | None = option(None, "What a length counts: the checkpoint's, or characters", list(LENGTH_UNITS))
    layers: int = option(6, "Encoder layers, and decoder layers without decoder_layers")
    decoder_layers: int | None = option(None, "Decoder layers, if not as many as the encoder has")
    d_model: int = option(512, "Width of the model")
    attention_heads: int = option(8, "Attention heads of each layer")
    ffn_dim: int = option(2048, "Width of the feed-forward layers")
    dropout: float = option(0.1, "Dropout in training, of a new model or one to train further")
    activation_function: str = option("relu", "Activation of the feed-forward layers")
    attn_implementation: str | None = option(None, "eager is faster for short rows on a CPU", ["sdpa", "eager"])
    tokenizer_name_or_path: str | None = option(None, "Tokenizer; one is trained without it")
    vocab_size: int = option(16_000, "Subwords of a tokenizer trained here")
    target_vocabulary: str = option(
        "character", "Characters, alone or joined, or subwords", ["character", "joined", "shared"]
    )
    byte_fallback: bool = option(False, "A tokenizer trained here writes unknown characters as UTF-8 bytes")

    def __post_init__(self):
        window = parse_tolerance(self.length_tolerance) if self.length_tolerance else None
        check_tolerance(window, self.length_constraint)
        # these are fields of a configuration
        self.constraint = {"length_constraint": self.length_constraint, "length_tolerance": window}


@dataclass
class DataArguments:
    """The text: a `load_dataset` name, or local json, jsonl, csv (.gz too) or parquet files."""

    dataset_name: str | None = option(None, "Name for datasets.load_dataset")
    dataset_config_name: str | None = option(None, "Its configuration")
    train_file: str | None = option(None, "Local training file")
    validation_file: str | None = option(None, "Local validation file")
    test_file: str | None = option(None, "Local test file")
    source_column: str = option("source", "Column of the input text")
    target_column: str = option("target", "Column of the text to write")
    keep_length_column: str | None = option(None, "Column: true for pairs that always have their length")
    group_column: str | None = option(None, "Keep each group of rows in one split, e.g. package")
    group_separator: str | None = option(None, "The group is what stands before it in group_column, e.g. '-'")
    validation_share: float = option(0.02, "Share cut from train where no validation is given")
    test_share: float = option(0.02, "Share cut from train where no test is given; 0 for none")
    max_source_length: int | None = option(None, "Tokens of sources, which are cut (256, or the checkpoint's limit)")
    max_target_length: int = option(256, "Tokens; rows with longer targets are dropped, and counted")
    max_validation_rows: int | None = option(None, "Evaluate on the first so many rows")
    max_test_rows: int | None = option(None, "Test on the first so many rows")
    unseen_lengths: list[int] = option([], "Train without the pairs whose target has one of these lengths")
    length_tokens: str | None = option(None, "A token before the source for its length", list(LENGTH_TOKEN_KINDS))
    length_bins: int = option(10, "Bins of length_tokens=bins")
    preprocessing_num_workers: int | None = option(None, "Processes for tokenising")

    def __post_init__(self):
        for length in self.unseen_lengths:
            check_length(length)


@dataclass
class RunArguments:
    """How the run ends and what is done after training."""

    length_noise: int = option(0, "Half width of the window of noise on training lengths, in their unit")
    overshoot_share: float = option(0.0, "Share of training pairs that teach how a text ends at a used-up length")
    no_length_share: float = option(0.0, "Share of training pairs that are given no length, for calls without one")
    packing: bool = option(False, "Several pairs in a row of max_source_length and max_target_length tokens")
    r_drop: float = option(0.0, "Weight of R-Drop: two passes whose outputs are drawn together (Liang et al. 2021)")
    projection_lr_factor: float = option(1.0, "A base_model's new length projection learns so many times as fast")
    average_checkpoints: int = option(1, "Average the weights of the last so many checkpoints")
    test_lengths: list[int] = option([], "Test at each of these lengths")
    generation_early_stopping: bool = option(False, "A test's search ends with its num_beams-th text, as fairseq's")
    bleu_tokenizer: str | None = option(None, "Measure BLEU, with this sacrebleu tokenizer (ja-mecab), not ROUGE")
    rouge_unit: str = option("word", "ROUGE of words or, for Japanese, characters", list(ROUGE_UNITS))
    weights_dtype: str | None = option(None, "Round the final weights, to half the file", ["float16", "bfloat16"])
    length_predictor: str | None = option(None, "Length predictor to ship inside the model's folder")
    task: str | None = option(None, "Task for the card; else by bleu_tokenizer and the languages", list(TASKS))
    card_examples: int = option(0, "Test rows to publish in the model card: their references and outputs")
    language: str | None = option(None, "Language for the model card: en")
    license: str | None = option(None, "Licence for the model card: apache-2.0")
    rouge_max_bytes: int | None = option(None, "Cut outputs to so many bytes (75 in DUC)")

    def __post_init__(self):
        for length in self.test_lengths:
            check_length(length)


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    def _get_help_string(self, action):
        return action.help if action.default in (None, []) else super()._get_help_string(action)


class _Window(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, parse_tolerance(values))


class CommandParser(HfArgumentParser):
    """
    `HfArgumentParser` whose errors take one line and suggest a name for a misspelt option. It takes no abbreviations.
    `--bf16 auto` uses bfloat16 if the hardware has it.
    """

    def __init__(self, dataclass_types=None, **kwargs):
        super().__init__(dataclass_types, allow_abbrev=False, formatter_class=_Formatter, **kwargs)
        for action in self._actions:
            if action.dest == "bf16":
                action.type = lambda value: value if value == "auto" else string_to_bool(value)
            if action.dest == "hub_token":  # other users of the machine can see a command line
                action.help = "Leave out: sign in once by `hf auth login`, or set HF_TOKEN in the environment"

    def add_window(self, help: str) -> None:
        """Add the option `--length_tolerance`, with one or two values."""
        self.add_argument("--length_tolerance", nargs="+", action=_Window, help=help)

    def parse_known_args(self, args=None, namespace=None):
        found, rest = super().parse_known_args(args, namespace)
        if getattr(found, "bf16", None) == "auto":
            found.bf16 = has_bfloat16(found.use_cpu)
        return found, rest

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            options = [option for action in self._actions for option in action.option_strings]
            for word in message.split()[2:]:
                if word.startswith("--"):
                    message += did_you_mean(word.partition("=")[0], options)
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")  # the usage would take a screen


def has_bfloat16(use_cpu: bool = False) -> bool:
    """
    Return whether the hardware computes in bfloat16: a GPU, or a CPU on Linux. Elsewhere bfloat16 is emulated and
    slow.
    """
    if torch.cuda.is_available() and not use_cpu:
        return torch.cuda.is_bf16_supported(including_emulation=False)
    flags = Path("/proc/cpuinfo")
    return flags.is_file() and not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags.read_text(errors="replace").split())


def parse_arguments(
    classes: Sequence[type], argv: Sequence[str] | None = None, description: str | None = None
) -> tuple:
    """
    Parse `[file.yaml or recipe] [--key value ...]` into one instance of each dataclass. The YAML overrides defaults,
    the command line overrides the YAML. Raise `ValueError` for unknown keys of the YAML, and if `output_dir`, or an
    option that the YAML calls `required`, is missing.
    """
    return parse_specified(classes, argv, description)[0]


def parse_specified(
    classes: Sequence[type], argv: Sequence[str] | None = None, description: str | None = None
) -> tuple[tuple, Specified]:
    """Return the instances, see `parse_arguments`, and the names of the options that the user set."""
    on_line = list(sys.argv[1:] if argv is None else argv)
    parser = CommandParser(list(classes), description=description, usage="%(prog)s [recipe] [--option value ...]")
    # without it Trainer would use its default folder, the same for every run
    required = {f.name for cls in classes for f in fields(cls)} & {"output_dir"}
    words = on_line
    if on_line and not on_line[0].startswith("-"):
        path, *on_line = on_line
        words = [*_words_of(find_recipe(path), parser, required), *on_line]
    specified = Specified(_names(words), _names(on_line))
    *parsed, rest = parser.parse_args_into_dataclasses(args=words, return_remaining_strings=True)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if "model_name_or_path" in specified.on_command_line:
        required.discard("base_model")  # a model that the run continues to train has a base already
    if missing := sorted(required - specified.anywhere):
        raise ValueError(f"{missing[0]} is required; give --{missing[0]}, or a line of it in your own recipe")
    for value in [getattr(part, name, None) for part in parsed for name in MODELS]:
        if value is not None:
            model_name(value)
    return tuple(parsed), specified


def _names(words: Sequence[str]) -> frozenset[str]:
    """Return the names of the options among the words of a command line."""
    return frozenset(word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--"))


def given_options(argv: Sequence[str] | None = None) -> dict[str, str]:
    """Return the options of a recipe and of the command line as raw text, before they are parsed."""
    words = list(sys.argv[1:] if argv is None else argv)
    options: dict[str, str] = {}
    if words and not words[0].startswith("-"):
        with find_recipe(words[0]).open(encoding="utf-8-sig") as file:
            found = yaml.load(file, Loader=yaml.BaseLoader)
        options |= found if isinstance(found, dict) else {}
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            options[name.replace("-", "_")] = value if sign else after
    return options


def _words_of(path: Path, parser: CommandParser, required: set[str]) -> list[str]:
    """
    Convert a YAML to words of a command line, so that one parser converts and checks both: `language: no` is not a
    boolean, and `1.10` is not a number. An option whose value is `required` is added to `required` instead.
    """

    def load(loader) -> Any:
        with path.open(encoding="utf-8-sig") as file:
            return yaml.load(file, Loader=loader)

    values, texts = load(yaml.SafeLoader), load(yaml.BaseLoader)  # the second keeps the raw text of each value
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold `key: value` lines")
    options = {action.dest: action for action in parser._actions}
    if unknown := sorted(texts.keys() - options):
        near = did_you_mean(unknown[0], options)
        raise ValueError(f"{path} has unknown keys: {', '.join(unknown)}{near}; take them out")
    words: list[str] = []
    for (key, text), value in zip(texts.items(), values.values(), strict=True):
        action = options[key]
        if text == "required":
            required.add(key)
        elif value is None and action.default is None:  # no word of a command line means `None`
            parser.set_defaults(**{key: None})
        elif value in (None, []) and (action.nargs == "+" or key == "report_to"):
            parser.set_defaults(**{key: []})
        elif isinstance(value, list):
            words = [f"--{key}", *text, *words]  # the words come before an option, which ends the list
        elif isinstance(value, dict):
            words.append(f"--{key}={json.dumps(value)}")
        else:  # only YAML knows `on` and `off`
            text = text if action.type is str else {"on": "true", "off": "false"}.get(text, text)
            words.append(f"--{key}={text}")
    return words
