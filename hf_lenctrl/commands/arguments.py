"""Options of the commands, as dataclasses. A YAML file sets options, and the command line overrides the file."""

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
from ..lengths import LENGTH_CONSTRAINTS, check_counts, check_length, check_tolerance, parse_tolerance
from ..training.model_card import TASKS
from .recipes import did_you_mean, find_recipe, model_name


# these options name a folder or a model of the Hub
MODELS = """model_name_or_path base_model tokenizer_name_or_path encoder_name_or_path target_tokenizer
    length_predictor adapter""".split()
FAMILIES = ["marian", "bart"]  # families of new models; lab/reproduce/baselines adds to FAMILIES and ENCODINGS
ENCODINGS = list(LENGTH_ENCODING_NAMES)
UNIT_HELP = f"{', '.join(LENGTH_UNITS)}, or module:name for your own unit"


def unit_name(value: str) -> str:
    """
    Check the name of a unit (such as `"word"`, or `"module:name"` for the user's own unit) and return the name. The
    module may be in the current folder. Raise `argparse.ArgumentTypeError` if the name is unknown.
    """
    if ":" in value and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        load_unit(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return value


def check_heads(d_model: int, attention_heads: int) -> None:
    """Raise `ValueError` if the width of a new model is not a multiple of its number of attention heads."""
    if d_model % attention_heads:
        raise ValueError(f"--d_model must be a multiple of --attention_heads {attention_heads}, got {d_model}")


def option(default: Any, help: str, choices: Iterable | None = None) -> Any:
    """Return a dataclass field for an option, with its default, its help text and, optionally, its allowed choices."""
    metadata = {"help": help} | ({} if choices is None else {"choices": choices})
    if isinstance(default, list):
        return field(default_factory=list, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Specified:
    """Names of options that the user set: `anywhere` (in a recipe or on the command line) and `on_command_line`."""

    anywhere: frozenset[str] = frozenset()
    on_command_line: frozenset[str] = frozenset()


@dataclass
class ModelArguments:
    """Options of the model to train: a checkpoint to start from, or the shape of a new model."""

    model_name_or_path: str | None = option(None, "Checkpoint to train further; if plain, with length_encoding none")
    base_model: str | None = option(None, "Plain encoder-decoder (BART, Marian, NLLB, T5, LED) to add length control")
    source_language: str | None = option(None, "Language code of a multilingual tokenizer")
    target_language: str | None = option(None, "Language code of the outputs")
    length_constraint: str | None = option(None, "Default constraint of the trained model", list(LENGTH_CONSTRAINTS))
    length_tolerance: list[str] = option([], "Window of 'exact': units (4), share (0.1), or two values, below, above")
    family: str = option("marian", "Family of a new model", FAMILIES)
    length_encoding: str = option("ldpe", "How the decoder reads the length; none for the plain model", ENCODINGS)
    absolute_positions: bool = option(False, "Also keep absolute positions (+PE); length_encoding none always does")
    encoder_length_embedding: bool = option(False, "The encoder reads the length too (Nguyen et al. 2023)")
    length_head: bool = option(False, "Length head in cross-attention (Nguyen et al. 2023)")
    learned_lengths: int = option(512, "Rows of learned length embeddings")
    length_scale: int = option(1, "Divisor of the length in 'scale': the length of a typical target")
    length_unit: str | None = option(None, "Unit of lengths (the checkpoint's, or character)", list(LENGTH_UNITS))
    layers: int = option(6, "Number of encoder layers, and by default of decoder layers")
    decoder_layers: int | None = option(None, "Number of decoder layers, if it differs")
    d_model: int = option(512, "Width of the model")
    attention_heads: int = option(8, "Attention heads of each layer")
    ffn_dim: int = option(2048, "Width of the feed-forward layers")
    dropout: float = option(0.1, "Dropout in training, of new models and of checkpoints")
    activation_function: str = option("relu", "Activation of the feed-forward layers")
    attn_implementation: str | None = option(None, "eager is faster for short rows on a CPU", ["sdpa", "eager"])
    tokenizer_name_or_path: str | None = option(None, "Tokenizer of a new model; by default the run trains one")
    vocab_size: int = option(16_000, "Subwords of a tokenizer that the run trains")
    target_vocabulary: str = option(
        "character", "Characters (own or joined vocabulary) or subwords", ["character", "joined", "shared"]
    )
    byte_fallback: bool = option(False, "A tokenizer that the run trains encodes unknown characters as UTF-8 bytes")

    def __post_init__(self):
        window = parse_tolerance(self.length_tolerance) if self.length_tolerance else None
        check_tolerance(window, self.length_constraint)
        shape = {"decoder_layers": 1 if self.decoder_layers is None else self.decoder_layers}
        shape |= {
            name: getattr(self, name) for name in ("layers", "d_model", "attention_heads", "ffn_dim", "vocab_size")
        }
        check_counts(**shape)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be a share of at least 0 and below 1, got {self.dropout}")
        # the keys are fields of a model's configuration
        self.constraint = {"length_constraint": self.length_constraint, "length_tolerance": window}


@dataclass
class SplitArguments:
    """Options of the data: a name for `datasets.load_dataset`, or local files, see `load_rows`."""

    dataset_name: str | None = option(None, "Name for datasets.load_dataset")
    dataset_config_name: str | None = option(None, "Configuration of the data set")
    train_file: str | None = option(None, "Local training file")
    validation_file: str | None = option(None, "Local validation file")
    test_file: str | None = option(None, "Local test file")
    source_column: str = option("source", "Column of the input text")
    target_column: str = option("target", "Column of the output text")
    group_column: str | None = option(None, "Column of groups; a group stays in one split, e.g. package")
    group_separator: str | None = option(None, "Separator that ends the group in group_column, e.g. '-'")
    validation_share: float = option(0.02, "Share cut from train if there is no validation split")
    test_share: float = option(0.02, "Share cut from train if there is no test split; 0 for none")
    max_source_length: int | None = option(None, "Most tokens of a source, which is cut (256, or the checkpoint's)")
    max_target_length: int = option(256, "Most tokens of a target; rows with more are dropped, and counted in the log")
    max_validation_rows: int | None = option(None, "Evaluate on this number of first rows")
    max_test_rows: int | None = option(None, "Test on this number of first rows")
    preprocessing_num_workers: int | None = option(None, "Number of processes for tokenising")

    def __post_init__(self):
        names = ("max_source_length", "max_target_length", "max_validation_rows", "max_test_rows")
        check_counts(**{name: value for name in names if (value := getattr(self, name)) is not None})
        for name in ("validation_share", "test_share"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}; 0 cuts no rows")


@dataclass
class DataArguments(SplitArguments):
    """Options of the data of a sequence-to-sequence model, also about lengths."""

    keep_length_column: str | None = option(None, "Column of true and false: true for rows that always have a length")
    unseen_lengths: list[int] = option([], "Train without rows whose target has one of these lengths")
    length_tokens: str | None = option(None, "A token before the source states the length", list(LENGTH_TOKEN_KINDS))
    length_bins: int = option(10, "Number of bins of length_tokens=bins")

    def __post_init__(self):
        super().__post_init__()
        for length in self.unseen_lengths:
            check_length(length)


@dataclass
class RunArguments:
    """Options of the training method, of the evaluation on the test rows, and of the model card."""

    length_noise: int = option(0, "Most units that noise adds to or takes from a training length")
    overshoot_share: float = option(0.0, "Share of training rows that teach how a text ends when no length remains")
    no_length_share: float = option(0.0, "Share of training rows without a length, for calls without one")
    packing: bool = option(False, "Pack several pairs into a row of max_source_length and max_target_length tokens")
    r_drop: float = option(0.0, "Weight of R-Drop: two passes should have equal outputs (Liang et al. 2021)")
    projection_lr_factor: float = option(1.0, "Factor of the learning rate for a base_model's new length projection")
    average_checkpoints: int = option(1, "Average the weights of this number of last checkpoints")
    test_lengths: list[int] = option([], "Test at each of these requested lengths")
    generation_early_stopping: bool = option(False, "End a test's search at num_beams complete texts, like fairseq")
    bleu_tokenizer: str | None = option(None, "Measure BLEU, with this sacrebleu tokenizer (ja-mecab), not ROUGE")
    rouge_unit: str = option("word", "Unit of ROUGE: word, or character for Japanese", list(ROUGE_UNITS))
    weights_dtype: str | None = option(None, "Round the final weights, to halve the file", ["float16", "bfloat16"])
    length_predictor: str | None = option(None, "Length predictor to save in the model's folder")
    task: str | None = option(None, "Task in the model card; default: by bleu_tokenizer and languages", list(TASKS))
    card_examples: int = option(0, "Number of test rows whose references and outputs the model card shows")
    language: str | None = option(None, "Language for the model card: en")
    license: str | None = option(None, "Licence for the model card: apache-2.0")
    rouge_max_bytes: int | None = option(None, "For ROUGE, cut outputs to this number of bytes (75 in DUC)")

    def __post_init__(self):
        check_counts(average_checkpoints=self.average_checkpoints)
        if self.card_examples < 0:
            raise ValueError(f"card_examples must be at least 0, got {self.card_examples}; 0 shows no rows")
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
    An `HfArgumentParser` whose error messages have one line and suggest a name for a misspelt option. The parser
    accepts no abbreviated options. `--bf16 auto` uses bfloat16 if the hardware supports it.
    """

    def __init__(self, dataclass_types=None, **kwargs):
        super().__init__(dataclass_types, allow_abbrev=False, formatter_class=_Formatter, **kwargs)
        for action in self._actions:
            if action.dest == "bf16":
                action.type = lambda value: value if value == "auto" else string_to_bool(value)
            if action.dest == "hub_token":  # other users of the machine can see a command line
                action.help = "Do not use it: sign in once by `hf auth login`, or set HF_TOKEN in the environment"

    def add_window(self, help: str) -> None:
        """Add the option `--length_tolerance`, of one value or two, see `parse_tolerance`."""
        self.add_argument("--length_tolerance", nargs="+", action=_Window, help=help)

    def parse_known_args(self, args=None, namespace=None):
        found, rest = super().parse_known_args(args, namespace)
        if getattr(found, "bf16", None) == "auto":
            found.bf16 = has_bfloat16(found.use_cpu)
            # on a CPU transformers takes bf16 only with this option
            found.use_cpu = found.use_cpu or (found.bf16 and not torch.accelerator.is_available())
        return found, rest

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            options = [option for action in self._actions for option in action.option_strings]
            for word in message.split()[2:]:
                if word.startswith("--"):
                    message += did_you_mean(word.partition("=")[0], options)
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")  # the usage message would fill a screen


def has_bfloat16(use_cpu: bool = False) -> bool:
    """
    Return whether the hardware computes in bfloat16 without slow emulation. The hardware is the CUDA GPU, or the CPU
    if there is no such GPU or `use_cpu` is true. On systems other than Linux, return `False` for a CPU.
    """
    if torch.cuda.is_available() and not use_cpu:
        return torch.cuda.is_bf16_supported(including_emulation=False)
    flags = Path("/proc/cpuinfo")
    return flags.is_file() and not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags.read_text(errors="replace").split())


def parse_arguments(
    classes: Sequence[type], argv: Sequence[str] | None = None, description: str | None = None
) -> tuple:
    """
    Parse the words of a command line, `[file.yaml or recipe] [--key value ...]`. Return one instance of each dataclass
    in `classes`, in this order. The YAML file overrides defaults, and the command line overrides the YAML file. `argv`
    holds the words, by default those of `sys.argv`; `--help` prints `description`. Raise `ValueError` if the YAML file
    has unknown keys, or if a required option is missing: `output_dir`, or an option with the value `required` in the
    YAML file.
    """
    return parse_specified(classes, argv, description)[0]


def parse_specified(
    classes: Sequence[type], argv: Sequence[str] | None = None, description: str | None = None
) -> tuple[tuple, Specified]:
    """
    Parse like `parse_arguments`. Return the instances of `classes`, and the names of the options that the user set.
    """
    on_line = list(sys.argv[1:] if argv is None else argv)
    parser = CommandParser(list(classes), description=description, usage="%(prog)s [recipe] [--option value ...]")
    # without `output_dir`, Trainer would use one default folder for every run
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
        required.discard("base_model")  # a model to train further needs no base model
    if missing := sorted(required - specified.anywhere):
        raise ValueError(f"{missing[0]} is required; give --{missing[0]}, or a line of it in your own recipe")
    for value in [getattr(part, name, None) for part in parsed for name in MODELS]:
        if value is not None:
            model_name(value)
    return tuple(parsed), specified


def _names(words: Sequence[str]) -> frozenset[str]:
    """Return the names of the options in the words of a command line, such as `seed` for `--seed=1`."""
    return frozenset(word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--"))


def given_options(argv: Sequence[str] | None = None) -> dict[str, str]:
    """Return the options as unparsed text. Options on the command line override the options of the recipe."""
    words = list(sys.argv[1:] if argv is None else argv)
    options: dict[str, str] = {}
    if words and not words[0].startswith("-"):
        found = _read_yaml(find_recipe(words[0]), yaml.BaseLoader)
        options |= found if isinstance(found, dict) else {}
    for word, after in zip(words, [*words, ""][1:], strict=True):
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            options[name.replace("-", "_")] = value if sign else after
    return options


def _read_yaml(path: Path, loader: Any) -> Any:
    """Read a YAML file. Raise `ValueError` if it is not YAML, or if it has an option twice."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            node = yaml.compose(file, Loader=loader)
            file.seek(0)
            found = yaml.load(file, Loader=loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} could not be read as YAML: {error}; correct it") from error
    names = [key.value for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ValueError(f"{path} has {twice[0]} twice; remove one of them")
    return found


def _words_of(path: Path, parser: CommandParser, required: set[str]) -> list[str]:
    """
    Convert the options in a YAML file to words of a command line, so that one parser checks both. The words are the
    raw text of the file: `no` in `language: no` is no boolean, and `1.10` no number. The names of options with the
    value `required` are added to `required`. A command line cannot express null or an empty list, so they become
    defaults of `parser` where the option takes them.
    """
    values = _read_yaml(path, yaml.SafeLoader)
    texts = _read_yaml(path, yaml.BaseLoader)  # the raw text of each value
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold `key: value` lines")
    options = {action.dest: action for action in parser._actions}
    if unknown := sorted(texts.keys() - options):
        near = did_you_mean(unknown[0], options)
        raise ValueError(f"{path} has unknown keys: {', '.join(unknown)}{near}; remove them")
    words: list[str] = []
    for (key, text), value in zip(texts.items(), values.values(), strict=True):
        action = options[key]
        if text == "required":
            required.add(key)
        elif value is None and action.default is None:  # a command line cannot express `None`
            parser.set_defaults(**{key: None})
        elif value in (None, []) and (action.nargs == "+" or key == "report_to"):
            parser.set_defaults(**{key: []})
        elif isinstance(value, list):
            words = [f"--{key}", *text, *words]  # at the front, so that the next option ends the list
        elif isinstance(value, dict):
            words.append(f"--{key}={json.dumps(value)}")
        else:  # the parser does not accept the booleans `on` and `off` of YAML
            text = text if action.type is str else {"on": "true", "off": "false"}.get(text, text)
            words.append(f"--{key}={text}")
    return words
