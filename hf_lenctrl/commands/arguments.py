"""Arguments of the recipes: one YAML file is one run, and the command line wins over it."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml
from transformers import HfArgumentParser

from .. import __version__
from ..configuration_lenctrl import LENGTH_ENCODING_NAMES
from ..evaluation.metrics import ROUGE_UNITS
from ..length_tokens import LENGTH_TOKEN_KINDS
from ..length_units import LENGTH_UNITS
from ..lengths import check_length, check_tolerance, parse_tolerance
from ..training.model_card import TASKS
from .parser import GroupedParser
from .recipes import command_of, did_you_mean, find_recipe, model_name, named_recipes


# options that name a folder or a model of the Hub
MODELS = """model_name_or_path base_model tokenizer_name_or_path encoder_name_or_path target_tokenizer
    length_predictor""".split()
FAMILIES = ["marian", "bart"]  # of new models; new_model.register_family adds to both
ENCODINGS = list(LENGTH_ENCODING_NAMES)
_UNIONS = (Union, UnionType)


@dataclass
class ModelArguments:
    """The model to train: a saved one to go on with, or the shape of a new one."""

    group = "model"  # of `--help`
    # names of options that `parse_arguments` was given: all, and those on the command line
    given: frozenset[str] = field(default=frozenset(), init=False)
    typed: frozenset[str] = field(default=frozenset(), init=False)

    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "Checkpoint to train further: length-controlled, or plain with length_encoding none"},
    )
    base_model: str | None = field(
        default=None,
        metadata={"help": "Plain BART, mBART, Pegasus, Marian, M2M100/NLLB or T5 checkpoint to add length control to"},
    )
    source_language: str | None = field(default=None, metadata={"help": "Language code of a multilingual tokenizer"})
    target_language: str | None = field(default=None, metadata={"help": "Language code of what is written"})
    length_constraint: str | None = field(
        default=None,
        metadata={"help": "Default constraint of the trained model: max or exact", "choices": ["max", "exact"]},
    )
    length_tolerance: list[str] = field(
        default_factory=list,
        metadata={"help": "Window of 'exact': units (4), a share (0.1), or two of them, below and above"},
    )
    family: str = field(default="marian", metadata={"help": "New model: marian or bart", "choices": FAMILIES})
    length_encoding: str = field(
        default="ldpe",
        metadata={"help": "How the decoder is given the length; none for the plain model"} | {"choices": ENCODINGS},
    )
    absolute_positions: bool = field(
        default=False, metadata={"help": "Keep absolute positions too (+PE), as none always does"}
    )
    encoder_length_embedding: bool = field(
        default=False, metadata={"help": "Tell the encoder the length too (Nguyen et al. 2023)"}
    )
    length_head: bool = field(default=False, metadata={"help": "Length head in cross-attention (Nguyen et al. 2023)"})
    learned_lengths: int = field(default=512, metadata={"help": "Rows of learned tables of lengths"})
    length_scale: int = field(default=1, metadata={"help": "Divides the length of 'scale'; a typical target's length"})
    length_unit: str | None = field(
        default=None,
        metadata={"help": "What a length counts; by default what the checkpoint counts, or characters"}
        | {"choices": list(LENGTH_UNITS)},
    )
    layers: int = field(default=6, metadata={"help": "Encoder layers, and decoder layers without decoder_layers"})
    decoder_layers: int | None = field(
        default=None, metadata={"help": "Decoder layers, if not as many as the encoder has"}
    )
    d_model: int = field(default=512, metadata={"help": "Width of the model"})
    attention_heads: int = field(default=8, metadata={"help": "Attention heads of each layer"})
    ffn_dim: int = field(default=2048, metadata={"help": "Width of the feed-forward layers"})
    dropout: float = field(
        default=0.1, metadata={"help": "Dropout in training, of a new model or one to train further"}
    )
    activation_function: str = field(default="relu", metadata={"help": "Activation of the feed-forward layers"})
    attn_implementation: str | None = field(
        default=None,
        metadata={"help": "Attention: sdpa, or eager, which is faster for short rows on a CPU"}
        | {"choices": ["sdpa", "eager"]},
    )
    tokenizer_name_or_path: str | None = field(default=None, metadata={"help": "Tokenizer; one is trained without it"})
    vocab_size: int = field(default=16_000, metadata={"help": "Subwords of a tokenizer trained here"})
    target_vocabulary: str = field(
        default="character",
        metadata={"help": "The decoder writes characters, or the subwords that both sides share"}
        | {"choices": ["character", "shared"]},
    )
    byte_fallback: bool = field(
        default=False, metadata={"help": "A tokenizer trained here writes unknown characters as UTF-8 bytes"}
    )

    @property
    def tolerance(self):
        """`length_tolerance` as `generate` takes it."""
        return parse_tolerance(self.length_tolerance) if self.length_tolerance else None

    def __post_init__(self):
        check_tolerance(self.tolerance, self.length_constraint)


@dataclass
class DataArguments:
    """The text: a `load_dataset` name, or local json, jsonl, csv or parquet files (.gz too)."""

    group = "data"  # of `--help`

    dataset_name: str | None = field(default=None, metadata={"help": "Name for datasets.load_dataset"})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration"})
    train_file: str | None = field(default=None, metadata={"help": "Local training file"})
    validation_file: str | None = field(default=None, metadata={"help": "Local validation file"})
    test_file: str | None = field(default=None, metadata={"help": "Local test file"})
    source_column: str = field(default="source", metadata={"help": "Column of the input text"})
    target_column: str = field(default="target", metadata={"help": "Column of the text to write"})
    group_column: str | None = field(
        default=None, metadata={"help": "Rows of one group never come to stand in two splits, e.g. package"}
    )
    group_separator: str | None = field(
        default=None,
        metadata={"help": "The group is the part of group_column before it, e.g. '-' for package families"},
    )
    validation_share: float = field(
        default=0.02, metadata={"help": "Share cut from train where no validation is given"}
    )
    test_share: float = field(
        default=0.02, metadata={"help": "Share cut from train where no test is given; 0 for none"}
    )
    max_source_length: int | None = field(
        default=None,
        metadata={"help": "Tokens; longer sources are cut, and counted (default: 256, or the checkpoint's limit)"},
    )
    max_target_length: int = field(
        default=256, metadata={"help": "Tokens; rows with longer targets are dropped, and counted"}
    )
    max_validation_rows: int | None = field(default=None, metadata={"help": "Evaluate on the first so many rows"})
    max_test_rows: int | None = field(default=None, metadata={"help": "Test on the first so many rows"})
    unseen_lengths: list[int] = field(
        default_factory=list, metadata={"help": "Train without the pairs whose target has one of these lengths"}
    )
    length_tokens: str | None = field(
        default=None,
        metadata={"help": "A token before the source for its target's length: ratio classes or bins"}
        | {"choices": list(LENGTH_TOKEN_KINDS)},
    )
    length_bins: int = field(default=10, metadata={"help": "Bins of length_tokens=bins"})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for tokenising"})
    streaming: bool = field(
        default=False,
        metadata={
            "help": "Read training rows while training, again and again, never all at once; needs max_steps. A "
            "tokenizer trained here, and length tokens, come from the first 100,000 rows; random order is that of a "
            "buffer of 10,000"
        },
    )

    def __post_init__(self):
        for length in self.unseen_lengths:
            check_length(length)


@dataclass
class RunArguments:
    """How the run ends and what is done after training."""

    group = "training"  # of `--help`

    length_noise: int = field(
        default=0, metadata={"help": "Half width of the window of noise on training lengths, in their unit"}
    )
    overshoot_share: float = field(
        default=0.0, metadata={"help": "Share of training pairs that teach to stop once the length is passed"}
    )
    projection_lr_factor: float = field(
        default=1.0, metadata={"help": "Learning rate of a base_model's new length projection, times learning_rate"}
    )
    objective: str = field(
        default="mle",
        metadata={"help": "Cross-entropy alone, or GOLC: with the risk of samples", "choices": ["mle", "golc"]},
    )
    golc_lambda: float = field(default=0.5, metadata={"help": "Weight of GOLC's risk, 0 to 1; cross-entropy the rest"})
    golc_samples: int = field(default=8, metadata={"help": "Outputs that GOLC samples for each source"})
    golc_temperature: float = field(default=1.0, metadata={"help": "Temperature of GOLC's samples"})
    golc_alpha: float = field(default=0.05, metadata={"help": "Sharpness of GOLC's weights over samples"})
    average_checkpoints: int = field(
        default=1, metadata={"help": "Average the weights of the last so many checkpoints"}
    )
    test_lengths: list[int] = field(default_factory=list, metadata={"help": "Test at each of these lengths"})
    bleu_tokenizer: str | None = field(
        default=None, metadata={"help": "Measure BLEU and chrF with this sacrebleu tokenizer (ja-mecab), not ROUGE"}
    )
    rouge_unit: str = field(
        default="word", metadata={"help": "ROUGE of words or, for Japanese, characters", "choices": list(ROUGE_UNITS)}
    )
    weights_dtype: str | None = field(
        default=None,
        metadata={"help": "Round and save the final weights so, float16 halves the file"}
        | {"choices": ["float16", "bfloat16"]},
    )
    length_predictor: str | None = field(
        default=None,
        metadata={"help": "Length predictor to ship inside the model's folder, for length='predict'"},
    )
    task: str | None = field(
        default=None,
        metadata={
            "help": "Task on the Hub, for the model card: by default summarization, or translation with "
            "bleu_tokenizer or with another target_language than source_language",
            "choices": list(TASKS),
        },
    )
    card_examples: int = field(
        default=0, metadata={"help": "Test rows to publish in the model card: their references and outputs"}
    )
    language: str | None = field(default=None, metadata={"help": "Language for the model card: en"})
    license: str | None = field(default=None, metadata={"help": "Licence for the model card: apache-2.0"})
    rouge_max_bytes: int | None = field(default=None, metadata={"help": "Cut outputs to so many bytes (75 in DUC)"})

    def __post_init__(self):
        for length in self.test_lengths:
            check_length(length)
        if not 0 < self.golc_lambda <= 1:
            raise ValueError(f"golc_lambda must be above 0 and at most 1, got {self.golc_lambda}; pass objective=mle")
        if self.golc_samples < 2:
            raise ValueError(f"golc_samples must be at least 2, to weigh one against another; got {self.golc_samples}")
        for name in ("golc_temperature", "golc_alpha"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


def parse_arguments(
    classes: Sequence[type], argv: Sequence[str] | None = None, description: str | None = None
) -> tuple:
    """
    Parse `[file.yaml or recipe] [--key value ...]` into one instance of each dataclass.

    Args:
        classes (`Sequence[type]`): Dataclasses, `Seq2SeqTrainingArguments` among them.
        argv (`Sequence[str]`, *optional*): Defaults to the command line.

    Returns:
        `tuple` of one instance for each class: YAML over defaults, the command line over YAML.

    Raises:
        `ValueError`: for a YAML that is no mapping, keys that no class has, each named, or one without a value; for
            an option that the YAML calls `required`, and `output_dir`, where it is not given.
        `SystemExit`: for an unknown command-line option, as argparse does.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    types: Any = list(classes)
    parser = GroupedParser(types, description=description)
    for action in parser._actions:  # a command line is seen by other users of the machine
        if action.dest == "hub_token":
            action.help = "Leave out: sign in once by `hf auth login`, or set HF_TOKEN in the environment"
    typed = argv
    # Trainer would take a folder of its own, the same for every run
    required = {f.name for cls in classes for f in fields(cls)} & {"output_dir"}
    if argv and not argv[0].startswith("-"):
        typed = argv[1:]
        argv = [*_options(parser, find_recipe(argv[0]), classes, required), *typed]
    given, by_hand = (
        frozenset(word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--"))
        for words in (argv, typed)
    )
    *parsed, rest = parser.parse_args_into_dataclasses(args=argv, return_remaining_strings=True)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if "model_name_or_path" in by_hand:
        required.discard("base_model")  # a run that goes on with a model has had its base
    if missing := sorted(required - given):
        raise ValueError(f"{missing[0]} is required; give --{missing[0]}, or a line of it in your own recipe")
    for value in [getattr(part, name, None) for part in parsed for name in MODELS]:
        if value is not None:
            model_name(value)
    if isinstance(parsed[0], ModelArguments):
        parsed[0].given, parsed[0].typed = given, by_hand
    return tuple(parsed)


class _TextLoader(yaml.SafeLoader):
    """YAML whose values are text, but for null: `language: no` is no boolean, `1.10` no number."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":null", ":merge"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _options(parser: HfArgumentParser, path: Path, classes: Sequence[type], required: set[str]) -> list[str]:
    """
    A YAML's values as command-line options, so that both are converted and checked alike. Those whose value is
    `required` are added to `required` instead.
    """
    values, texts = _load(path, yaml.SafeLoader), _load(path, _TextLoader)
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold `key: value` lines, got {type(values).__name__}")
    hints = {name: hint for cls in classes for name, hint in get_type_hints(cls).items()}
    known = {f.name for cls in classes for f in fields(cls) if f.init}
    unknown = sorted(str(key) for key in values if key not in known)
    if unknown and (command := command_of(path)) != "lenctrl train" and path in named_recipes().values():
        raise ValueError(f"{path.parent.name}/{path.stem} is a recipe of another command: {command} {path}")
    if unknown:
        raise ValueError(
            f"{path} has unknown keys: {', '.join(unknown)}{did_you_mean(unknown[0], known)}; `--help-all` lists "
            f"those of hf_lenctrl {__version__}, it may be written for another version"
        )
    options: list[str] = []
    for key, value in values.items():
        hint = hints[key]
        kinds = [get_origin(kind) or kind for kind in (get_args(hint) if get_origin(hint) in _UNIONS else [hint])]
        if value is None and type(None) not in kinds and list not in kinds:
            raise ValueError(f"{path}: {key} has no value; give it one, or take the line out")
        if value == [] and list not in kinds:
            raise ValueError(f"{path}: {key} takes no list; give it one value, or take the line out")
        if value == "required":
            required.add(key)
        elif value is None or value == []:  # no option says so
            parser.set_defaults(**{key: None if value is None and type(None) in kinds else []})
        elif isinstance(value, list):
            options = [f"--{key}", *map(str, texts[key]), *options]  # before an option, so that it ends there
        elif isinstance(value, dict):
            options.append(f"--{key}={json.dumps(value)}")
        else:
            options.append(f"--{key}={value if bool in kinds and isinstance(value, bool) else texts[key]}")
    return options


def _load(path: Path, loader: type[yaml.SafeLoader]) -> Any:
    with path.open(encoding="utf-8-sig") as file:
        return yaml.load(file, Loader=loader)
