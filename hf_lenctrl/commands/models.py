"""Make the tokenizer and the model of a run: load them from a checkpoint, or train and build them from the options."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
)
from transformers.activations import ACT2FN

from ..configuration_lenctrl import LenCtrlBartConfig, LenCtrlMarianConfig
from ..conversion import add_length_control, tokenizer_of
from ..length_predictor import load_predictor
from ..length_tokens import LengthTokens
from ..modeling_lenctrl import LenCtrlBartForConditionalGeneration, LenCtrlMarianMTModel
from ..training import initialize_weights
from ..training.tokenizer import train_marian_tokenizer
from .arguments import DataArguments, ModelArguments, RunArguments, Specified, check_heads
from .data import fit_length_tokens
from .locking import kept
from .recipes import did_you_mean
from .run import trained_tokenizer


logger = logging.getLogger(__name__)

# (family, plain) -> configuration class and model class of a new model; lab/reproduce/baselines adds entries
CLASSES: dict[tuple[str, bool], tuple[type, type]] = {
    ("bart", False): (LenCtrlBartConfig, LenCtrlBartForConditionalGeneration),
    ("bart", True): (BartConfig, BartForConditionalGeneration),
    ("marian", False): (LenCtrlMarianConfig, LenCtrlMarianMTModel),
    ("marian", True): (MarianConfig, MarianMTModel),
}
# option -> names of the configuration's field: first in most families, then in T5
_SHAPE = {
    "layers": ("encoder_layers", "num_layers"),
    "decoder_layers": ("decoder_layers", "num_decoder_layers"),
    "d_model": ("d_model",),
    "attention_heads": ("encoder_attention_heads", "num_heads"),
    "ffn_dim": ("encoder_ffn_dim", "d_ff"),
    "activation_function": ("activation_function", "dense_act_fn"),
    "vocab_size": ("vocab_size",),
}
_METHOD = """length_encoding absolute_positions encoder_length_embedding length_head learned_lengths
    length_scale""".split()
# these options are for a tokenizer that is trained here
_TOKENIZER = ("vocab_size", "target_vocabulary", "byte_fallback")
DRAWS = ("length_noise", "overshoot_share", "no_length_share")


def check_options(
    args: ModelArguments, data_args: DataArguments, run_args: RunArguments, specified: Specified
) -> None:
    """
    Raise `ValueError` if an option on the command line has no effect in this run, if the user set an option that the
    checkpoint fixes to another value, or if `base_model` already has length control. `specified` names the options
    that the user set.
    """
    name, config = _checkpoint(args)
    if name is None and (args.family, True) in CLASSES:  # the baselines of lab/reproduce may have no heads
        check_heads(args.d_model, args.attention_heads)
        if args.activation_function not in ACT2FN:
            near = did_you_mean(args.activation_function, ACT2FN)
            raise ValueError(
                f"--activation_function must be one of transformers, got {args.activation_function}{near}"
            )
    controlled = hasattr(config, "length_encoding")
    if controlled and args.model_name_or_path is None:
        raise ValueError(
            f"{name} has length control already; give it as --model_name_or_path {name}, not as --base_model"
        )
    if name is not None and (args.model_name_or_path is None or controlled or _stays_plain(args)):
        _check_fixed(args, data_args, config, specified)  # otherwise `_as_saved` refuses the plain model
    tables = name is not None or args.length_encoding == "learned" or args.encoder_length_embedding
    reads_length = args.length_encoding != "none" or args.encoder_length_embedding or controlled
    reads_length = reads_length or name is not None and not _stays_plain(args)
    used = {
        "length_bins": (name is not None or data_args.length_tokens == "bins", "--length_tokens bins"),
        "learned_lengths": (tables, "--length_encoding learned or --encoder_length_embedding"),
        "group_separator": (data_args.group_column is not None, "--group_column"),
        **dict.fromkeys(_TOKENIZER, (args.tokenizer_name_or_path is None, "a tokenizer that is trained here")),
        **{draw: (reads_length or not getattr(run_args, draw), "a model that is given the length") for draw in DRAWS},
    }
    for option, (is_used, needs) in used.items():
        if option in specified.on_command_line and not is_used:
            raise ValueError(f"--{option} has no effect without {needs}; leave it out")


def _checkpoint(args: ModelArguments) -> tuple[str | None, Any]:
    """Return name and configuration of the checkpoint that the run starts from; `(None, None)` if there is none."""
    name = args.model_name_or_path or args.base_model
    return name, None if name is None else AutoConfig.from_pretrained(name)


def _stays_plain(args: ModelArguments, length_tokens: LengthTokens | None = None) -> bool:
    """Return whether the arguments request no kind of length control."""
    ways = (args.encoder_length_embedding, args.length_head, args.length_constraint, length_tokens)
    return args.length_encoding == "none" and not any(ways)


def _check_fixed(args: ModelArguments, data_args: DataArguments, config, specified: Specified) -> None:
    """
    Raise `ValueError` if the user set an option that the checkpoint fixes to another value. The value of the run that
    trained the checkpoint is also valid: `vocab_size`, for example, is only the maximum of a new vocabulary.
    """
    has: dict[str, Any] = {"family": config.model_type.removeprefix("lenctrl_")}
    for option, fields in _SHAPE.items():
        has[option] = next((getattr(config, field) for field in fields if hasattr(config, field)), None)
    shared = getattr(config, "share_encoder_decoder_embeddings", True)
    has["target_vocabulary"] = "shared" if shared else "character"
    if hasattr(config, "length_encoding"):
        tokens: dict = config.length_tokens or {}
        has |= {option: getattr(config, option) for option in _METHOD}
        has |= {"length_tokens": tokens.get("kind"), "length_bins": len(tokens.get("thresholds", ())) + 1}
    else:  # no length control; a model that the run continues then gets no length tokens
        has |= {"absolute_positions": True, "learned_lengths": 512, "length_scale": 1}
        has |= {} if args.model_name_or_path is None else {"length_tokens": None}
    name = args.model_name_or_path or args.base_model
    record = kept(str(name), "run.json")
    before = json.loads(record.read_text(encoding="utf-8"))["options"] if record.is_file() else {}
    names = has.keys() & specified.anywhere
    given = {option: getattr(args, option, getattr(data_args, option, None)) for option in has if option in names}
    wrong = {option: value for option, value in given.items() if value not in (has[option], before.get(option))}
    if wrong:
        options = ", ".join(f"--{option} {value} ({has[option]})" for option, value in wrong.items())
        raise ValueError(f"{name} keeps its shape and its method, which stand in brackets; leave out {options}")


def limits(args: ModelArguments, data_args: DataArguments, tokenizer, specified: Specified) -> tuple[int, int]:
    """
    Return two values: the maximum number of tokens of a source, and of a target. Longer sources are cut, and rows with
    longer targets are dropped. A limit that the user did not set is at most the checkpoint's number of positions.
    Raise `ValueError` if the user set a limit above this number. The number does not limit targets if a length
    encoding replaces the decoder's positions.
    """
    name, config = _checkpoint(args)
    positions = getattr(config, "max_position_embeddings", None)
    read, most = data_args.max_source_length, data_args.max_target_length
    if read is None:
        read = 256 if name is None else positions or min(tokenizer.model_max_length, 512)
    elif positions is not None and read > positions:
        raise ValueError(f"--max_source_length {read}, but the encoder of {name} reads {positions} tokens; give less")
    if positions is None or most <= positions or not getattr(config, "absolute_positions", True):
        return read, most
    if "max_target_length" in specified.anywhere:
        raise ValueError(f"--max_target_length {most}, but the decoder of {name} has {positions} positions; give less")
    return read, positions


def load_tokenizer(args: ModelArguments, texts: Mapping[str, Sequence[str]], output_dir: str):
    """
    Load the tokenizer of `tokenizer_name_or_path`, or else of the checkpoint that the run starts from. If the
    arguments name neither, load the tokenizer that the run has trained before, or train it now on `texts` (the
    columns `source` and `target`).
    """
    name = args.tokenizer_name_or_path or args.model_name_or_path or args.base_model
    if name is not None:
        given = {"src_lang": args.source_language, "tgt_lang": args.target_language}
        languages = {key: code for key, code in given.items() if code is not None}
        for code in languages.values():
            language_id(tokenizer_of(name), code)
        return tokenizer_of(name, **languages)

    def train(folder: Path) -> None:
        logger.info("training a tokenizer: %d source subwords, %s target", args.vocab_size, args.target_vocabulary)
        shape: dict[str, Any] = {name: getattr(args, name) for name in _TOKENIZER}
        train_marian_tokenizer(texts["source"], texts["target"], folder, **shape)

    return tokenizer_of(trained_tokenizer(output_dir, train))


def language_id(tokenizer, code: str) -> int:
    """Return the id of a language token, such as M2M100's `__ja__`. Raise `ValueError` if the language is unknown."""
    tokens = getattr(tokenizer, "lang_code_to_token", None)
    found = tokenizer.convert_tokens_to_ids(code if tokens is None else tokens.get(code, tokenizer.unk_token))
    if found is None or found == tokenizer.unk_token_id:
        known = tokenizer.all_special_tokens if tokens is None else list(tokens)
        raise ValueError(f"the tokenizer knows no language {code!r}{did_you_mean(code, known)}")
    return found


def unit_and_tokens(model_args: ModelArguments, data_args: DataArguments, rows: Dataset, tokenizer):
    """
    Return two values: the unit of the run, and its `LengthTokens` or `None`. Take each value from the checkpoint that
    the run trains further, if that checkpoint has the value. Otherwise, take the unit from the arguments, and fit the
    length tokens to the training rows if the arguments request length tokens. Also set `model_args.length_unit` to the
    returned unit. Raise `ValueError` if the checkpoint and the argument have different units.
    """
    name = model_args.model_name_or_path
    saved = None if name is None else AutoConfig.from_pretrained(name)
    unit, given = getattr(saved, "length_unit", None), model_args.length_unit
    if unit is not None and given not in (None, unit):
        raise ValueError(f"{name} counts {unit}s, got --length_unit {given}; leave it out")
    unit = model_args.length_unit = unit or given or "character"
    if (tokens := getattr(saved, "length_tokens", None)) is not None:
        return unit, LengthTokens(**tokens)
    return unit, None if data_args.length_tokens is None else fit_length_tokens(rows, tokenizer, unit, data_args)


def build_model(args: ModelArguments, tokenizer, max_positions: int, length_tokens: LengthTokens | None = None) -> Any:
    """
    Build the model of a run. The model starts from a checkpoint without length control (`base_model`), or from a
    checkpoint to train further (`model_name_or_path`). If the arguments name no checkpoint, the weights are random,
    the shape comes from the arguments, and the model has `max_positions` positions. The model has length control only
    if the arguments or the checkpoint have it. Raise `ValueError` if the arguments name both checkpoints.
    """
    if args.base_model is not None and args.model_name_or_path is not None:
        raise ValueError("--base_model starts a new run, --model_name_or_path continues one; give one of them")
    if (name := args.base_model or args.model_name_or_path) is None:
        model = _new_model(args, tokenizer, max_positions, length_tokens)
    else:
        config = AutoConfig.from_pretrained(name)
        # T5's name is dropout_rate
        setattr(config, "dropout_rate" if hasattr(config, "dropout_rate") else "dropout", args.dropout)
        # train in float32, even from a float16 file
        model = AutoModelForSeq2SeqLM.from_pretrained(name, config=config, dtype=torch.float32)
        model = _as_base(model, args, tokenizer, length_tokens) if args.base_model else _as_saved(model, args)
    # Marian's sinusoids are constant and never saved, but `from_pretrained` leaves them trainable
    for name, weight in model.named_parameters():
        if name in (model._keys_to_ignore_on_save or ()):
            weight.requires_grad_(False)
    if args.attn_implementation is not None:
        model.set_attn_implementation(args.attn_implementation)
    if length_tokens is not None:
        model.config.length_tokens = length_tokens.to_dict()
    return model


def _as_base(model, args: ModelArguments, tokenizer, length_tokens: LengthTokens | None) -> Any:
    """Add the length control that the arguments describe, if any, to a base model."""
    if length_tokens is not None and len(tokenizer) > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(len(tokenizer))
    if not _stays_plain(args, length_tokens):
        model = add_length_control(
            model,
            length_encoding=args.length_encoding,
            length_unit=args.length_unit or "character",
            tokenizer=tokenizer,
            encoder_length_embedding=args.encoder_length_embedding,
            length_head=args.length_head,
            length_tokens=length_tokens,
            **args.constraint,
        )
    if args.target_language is not None:
        model.generation_config.forced_bos_token_id = language_id(tokenizer, args.target_language)
    return model


def _as_saved(model, args: ModelArguments) -> Any:
    """
    Set the default constraint of the arguments, if any, in a model that the run trains further. Raise `ValueError` if
    the arguments request length control but the model has none.
    """
    if not hasattr(model.config, "length_encoding") and not _stays_plain(args):
        holds = f"{args.model_name_or_path} holds a {type(model).__name__}, which has no length control"
        raise ValueError(f"{holds}; give it as --base_model, or --length_encoding none to train it as it is")
    if args.length_constraint is not None:
        model.config.update(args.constraint)
    return model


def _new_model(args: ModelArguments, tokenizer, max_positions: int, length_tokens: LengthTokens | None) -> Any:
    """Build a model with random weights, in the shape that the arguments give."""
    plain = _stays_plain(args, length_tokens) and (args.family, True) in CLASSES
    config_class, model_class = CLASSES[args.family, plain]
    control: dict[str, Any] = {} if plain else {name: getattr(args, name) for name in _METHOD} | args.constraint
    if not plain:  # with these encodings the decoder has no other position
        control["absolute_positions"] = args.absolute_positions or args.length_encoding in ("none", "scale")
        control["length_unit"] = args.length_unit or "character"
    model = model_class(config_class(**_shape(args, tokenizer, max_positions), **control))
    if not plain:
        model.set_unit_table(tokenizer)
    if (args.family, True) in CLASSES:  # the baselines of lab/reproduce initialize their own weights
        initialize_weights(model)
    return model


def _shape(args: ModelArguments, tokenizer, max_positions: int) -> dict[str, Any]:
    """Return the configuration fields of a new model, except those of length control."""
    separate = getattr(tokenizer, "separate_vocabs", False)
    if separate and args.family == "bart":
        raise ValueError("--family bart has one vocabulary for both sides; give --target_vocabulary shared or joined")
    shape: dict[str, Any] = {name: getattr(args, name) for name in ("d_model", "dropout", "activation_function")}
    shape |= {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    eos, start = tokenizer.eos_token_id, "eos_token_id" if args.family == "bart" else "pad_token_id"
    shape |= {"forced_eos_token_id": eos, "decoder_start_token_id": shape[start], "vocab_size": len(tokenizer)}
    shape |= {"scale_embedding": True, "max_position_embeddings": max_positions}
    for side, layers in (("encoder", args.layers), ("decoder", args.decoder_layers or args.layers)):
        shape |= {f"{side}_layers": layers, f"{side}_attention_heads": args.attention_heads}
        shape |= {f"{side}_ffn_dim": args.ffn_dim}
    if separate:
        shape |= {"decoder_vocab_size": len(tokenizer.target_encoder), "share_encoder_decoder_embeddings": False}
    return shape


def add_length_predictor(model, name: str | None, output_dir, save: bool = True) -> None:
    """
    Save a length predictor in the model's folder and set it in the model's configuration, so that `length="predict"`
    needs no other folder. `name` is the predictor's folder or Hub name; by default, take the predictor of the
    checkpoint that the run trains further. If there is no predictor, do nothing. If `save` is false, only set the
    configuration. Raise `ValueError` if the predictor and the model have different units.
    """
    own, subfolder = getattr(model.config, "length_predictor", None), ""
    if name is None:
        if own is None or not own.startswith("./"):
            return
        name, subfolder = model.config.name_or_path, own[2:]
    predictor, tokenizer = load_predictor(name, subfolder=subfolder)
    predicts, unit = predictor.config.length_unit, getattr(model.config, "length_unit", None)
    if unit is None:
        raise ValueError(
            f"--length_predictor {name} is for models with a length, got a {type(model).__name__}; leave it out"
        )
    if predicts != unit:
        raise ValueError(f"--length_predictor {name} predicts {predicts}s, the model counts {unit}s; train another")
    folder = Path(output_dir, "length_predictor")
    if save:
        predictor.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    model.config.length_predictor = f"./{folder.name}"
