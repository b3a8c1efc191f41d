"""Convert a checkpoint of Takase & Okazaki's code (github.com/takase/control-length, a fork of fairseq 0.6).

    python lab/reproduce/from_fairseq.py theirs/checkpoint.pt --source_dictionary theirs/dict.source.txt \\
        --target_dictionary theirs/dict.target.txt --output_dir runs/theirs
    lenctrl generate --model runs/theirs --input_file texts.txt --length 75 --output_file out.jsonl

The folder holds a Marian model with `sinusoids: fairseq`, and a tokenizer. The model generates with the authors'
settings: 5 beams, and the search stops when 5 hypotheses have ended (`early_stopping`). The tokenizer splits texts at
white space, as fairseq does, so apply the authors' BPE to the sources first. Where the target dictionary has `@@@@`,
their character for a space, the model generates plain text and counts characters. Otherwise it generates entries of
the dictionary with spaces between them, and counts tokens.

Only tensors, plain Python values, `argparse.Namespace` and fairseq's meters are read from the file, so it cannot run
code. Models of other shapes (pre-norm, learned positions, adaptive softmax) and decoders without any position, which
are trained without `--represent-length-by-*` and `--ordinary-sinpos`, are refused.
"""

import argparse
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hf_lenctrl import LenCtrlMarianConfig, LenCtrlMarianMTModel


SPECIAL = ["<Lua heritage>", "<pad>", "</s>", "<unk>"]  # the first entries of every dictionary of fairseq 0.6
PAD, EOS, UNK = 1, 2, 3
SPACE = "@@@@"
# these options would make another network
UNKNOWN = [f"{side}_{name}" for side in ("encoder", "decoder") for name in ("normalize_before", "learned_pos")]
UNKNOWN += ["no_token_positional_embeddings", "adaptive_softmax_cutoff"]
# these tensors are constant, or not needed
_SKIPPED = re.compile(r"version|_float_tensor|embed_positions\w*\.weights")


class _Meter:
    """A substitute for fairseq's statistics of training, which are not used."""


def read_checkpoint(path: str | Path) -> tuple[dict[str, torch.Tensor], dict]:
    """
    Return the tensors and the training options of a checkpoint, without running code from it.

    Raises:
        `ValueError`: for a file that holds other classes, and for one that is no checkpoint of fairseq.
    """
    meters = [(_Meter, f"fairseq.meters.{name}") for name in ("AverageMeter", "StopwatchMeter", "TimeMeter")]
    try:
        with torch.serialization.safe_globals([argparse.Namespace, *meters]):
            state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        holds = f"holds {found[1]}" if found else "cannot be read safely"
        call = "torch.save({'args': state['args'], 'model': state['model']}, ...)"
        raise ValueError(
            f"a checkpoint must hold tensors, plain values and argparse.Namespace alone, but {path} {holds}; if you "
            f"trust it, load it where it was made and save these two parts: {call}"
        ) from error
    if not isinstance(state, dict) or not {"args", "model"} <= state.keys():
        raise ValueError(f"a checkpoint of fairseq 0.6 is a dict with 'args' and 'model', {path} is not")
    args = state["args"]
    return dict(state["model"]), dict(args if isinstance(args, Mapping) else vars(args))


def read_dictionary(path: str | Path) -> list[str]:
    """Return the entries of a `dict.*.txt` in the order of their ids; raise `ValueError` for another form."""
    symbols = list(SPECIAL)
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            symbol, _, count = line.rstrip("\n").rpartition(" ")
            if not symbol or not count.isdecimal():
                form = "a line of a dictionary must be an entry, a space and its count"
                raise ValueError(f"{form}, got {line!r} in line {number} of {path}")
            symbols.append(symbol)
    if len(set(symbols)) < len(symbols):
        raise ValueError(f"a dictionary must hold every entry once, {path} repeats some")
    return symbols


def make_tokenizer(symbols: Sequence[str], max_length: int = 1024) -> PreTrainedTokenizerFast:
    """Build a tokenizer that splits at white space, like fairseq, and decodes `@@@@` to a space."""
    tokenizer = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(symbols)}, unk_token=SPECIAL[UNK]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[(SPECIAL[EOS], EOS)])
    if SPACE in symbols:
        tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse()])
    names = {"pad_token": SPECIAL[PAD], "eos_token": SPECIAL[EOS], "unk_token": SPECIAL[UNK]}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_length, clean_up_tokenization_spaces=False, **names
    )


def make_config(state: Mapping[str, torch.Tensor], args: Mapping, length_unit: str) -> LenCtrlMarianConfig:
    """
    Build the configuration for the weights of `rename`; raise `ValueError` for a network that differs from Marian's.
    """
    for name in UNKNOWN:
        if args.get(name):
            raise ValueError(f"only checkpoints without {name} can be converted, got {args[name]!r}")
    flags = [name for name in ("ldpe", "lrpe") if args.get(f"represent_length_by_{name}")]
    positions = bool(args.get("ordinary_sinpos"))
    if len(flags) == 2 or not flags and not positions:
        raise ValueError(
            "only decoders with one of LDPE and LRPE, with or without positions, or with positions alone can be "
            f"converted, got {' and '.join(flags) or 'none of them'}"
        )
    target, source = (state[f"model.{side}.embed_tokens.weight"].shape for side in ("decoder", "encoder"))
    if target[1] != source[1]:
        raise ValueError(f"encoder and decoder must be of one width, got {source[1]} and {target[1]}")
    shape: dict = {"d_model": source[1], "vocab_size": source[0], "decoder_vocab_size": target[0]}
    for side in ("encoder", "decoder"):
        layers = {name.split(".")[3] for name in state if name.startswith(f"model.{side}.layers.")}
        shape |= {f"{side}_layers": len(layers), f"{side}_attention_heads": args[f"{side}_attention_heads"]}
        shape[f"{side}_ffn_dim"] = len(state[f"model.{side}.layers.0.fc1.bias"])
    dropout = {"dropout": args.get("dropout", 0.1), "attention_dropout": args.get("attention_dropout", 0.0)}
    most = max(args.get("max_source_positions", 1024), args.get("max_target_positions", 1024))
    return LenCtrlMarianConfig(
        **shape,
        **dropout,
        activation_dropout=args.get("relu_dropout", 0.0),
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=most,
        share_encoder_decoder_embeddings="model.shared.weight" in state,
        tie_word_embeddings=state["lm_head.weight"] is state["model.decoder.embed_tokens.weight"],
        pad_token_id=PAD,
        eos_token_id=EOS,
        forced_eos_token_id=EOS,
        decoder_start_token_id=EOS,
        length_encoding=flags[0] if flags else "none",
        absolute_positions=positions,
        sinusoids="fairseq",
        length_unit=length_unit,
    )


def rename(state: Mapping[str, torch.Tensor], shared: bool) -> dict[str, torch.Tensor]:
    """Return fairseq's weights under Marian's names; with `shared`, one table for encoder, decoder and output."""
    renamed = {}
    for name, value in state.items():
        name = re.sub(r"^(encoder.*)\.layer_norms\.0\.", r"\1.self_attn_layer_norm.", name)
        name = re.sub(r"^(encoder.*)\.layer_norms\.1\.", r"\1.final_layer_norm.", name)
        if _SKIPPED.search(name):
            continue
        if ".in_proj_" in name:  # fairseq has one matrix for these
            for part, chunk in zip("qkv", value.float().chunk(3), strict=True):
                renamed["model." + name.replace("in_proj_", f"{part}_proj.")] = chunk
        else:
            renamed["lm_head.weight" if name == "decoder.embed_out" else f"model.{name}"] = value.float()
    tables = [f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    if shared:
        renamed |= dict.fromkeys([*tables, "model.shared.weight"], renamed[tables[0]])
    renamed.setdefault("lm_head.weight", renamed[tables[1]])
    return renamed


def make_model(
    state: Mapping[str, torch.Tensor], args: Mapping, *, shared: bool, length_unit: str = "token"
) -> LenCtrlMarianMTModel:
    """
    Build the model of a checkpoint.

    Args:
        state (`Mapping[str, torch.Tensor]`), args (`Mapping`): The results of `read_checkpoint`.
        shared (`bool`): Whether encoder, decoder and output have one table of embeddings.
        length_unit (`str`, *optional*, defaults to `"token"`): What the authors' code counts, where each of their
            tokens is one unit.

    Raises:
        `ValueError`: for a network that differs from Marian's.
    """
    weights = rename(state, shared)
    model = LenCtrlMarianMTModel(make_config(weights, args, length_unit))
    made = {"final_logits_bias"} | {name for name in model.state_dict() if "embed_positions" in name}
    made |= {name for name in model.state_dict() if "unit_table" in name}
    found = model.load_state_dict(weights, strict=False)
    missing = set(found.missing_keys) - made
    if missing or found.unexpected_keys:
        raise ValueError(
            f"the checkpoint has another network than the authors': it lacks {sorted(missing)} and has "
            f"{sorted(found.unexpected_keys)} besides"
        )
    # the authors' search: no padding, at least one token, and an end with the fifth finished hypothesis
    model.generation_config.update(num_beams=5, early_stopping=True, suppress_tokens=[PAD], min_new_tokens=1)
    return model.eval()


def _with_union(
    state: dict[str, torch.Tensor], source: list[str], target: list[str]
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """
    Return the weights and entries of a tokenizer for two dictionaries: the target's ids stay as they are, and the
    source's entries follow. An entry of the target that the source lacks is `<unk>` to the encoder.
    """
    own = {symbol: i for i, symbol in enumerate(source)}
    known = set(target)
    union = target + [symbol for symbol in source if symbol not in known]
    name = "encoder.embed_tokens.weight"
    return {**state, name: state[name][[own.get(symbol, UNK) for symbol in union]]}, union


def convert(
    checkpoint: str | Path, source_dictionary: str | Path, target_dictionary: str | Path, output_dir: str | Path
) -> LenCtrlMarianMTModel:
    """
    Convert a checkpoint and save it with its tokenizer.

    Args:
        checkpoint (`str` or `Path`): `checkpoint_best.pt`, or an average of several.
        source_dictionary (`str` or `Path`), target_dictionary (`str` or `Path`): The `dict.*.txt` of the binarized
            data. With `--joined-dictionary` they are the same.
        output_dir (`str` or `Path`): Where the model is saved; `AutoModelForSeq2SeqLM.from_pretrained` loads it.

    Returns:
        `LenCtrlMarianMTModel`

    Raises:
        `ValueError`: for a checkpoint that cannot be read safely, another network, or other dictionaries.
    """
    state, args = read_checkpoint(checkpoint)
    source, target = read_dictionary(source_dictionary), read_dictionary(target_dictionary)
    for side, symbols in (("encoder", source), ("decoder", target)):
        table = state.get(f"{side}.embed_tokens.weight")
        if table is None or len(table) != len(symbols):
            rows = "no table" if table is None else f"{len(table)} rows"
            raise ValueError(f"the {side}'s dictionary has {len(symbols)} entries, but its embeddings have {rows}")
    shared = bool(args.get("share_all_embeddings"))
    if shared and source != target:
        raise ValueError("a checkpoint with share_all_embeddings has one dictionary, got two that differ")
    if not shared:
        state, source = _with_union(state, source, target)
    unit = "character" if SPACE in target else "token"
    model = make_model(state, args, shared=shared, length_unit=unit)
    model.set_unit_table(make_tokenizer(target))
    model.save_pretrained(output_dir)
    make_tokenizer(source, model.config.max_position_embeddings).save_pretrained(output_dir)
    return model


def main(argv=None) -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="file of fairseq, .pt")
    parser.add_argument("--source_dictionary", required=True, help="dict.*.txt of the source side")
    parser.add_argument("--target_dictionary", required=True, help="dict.*.txt of the target side")
    parser.add_argument("--output_dir", required=True, help="folder of the model")
    args = parser.parse_args(argv)
    convert(args.checkpoint, args.source_dictionary, args.target_dictionary, args.output_dir)


if __name__ == "__main__":
    main()
