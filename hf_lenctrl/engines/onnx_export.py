"""A length-controlled encoder-decoder as ONNX: any length, which is an input of the graph."""

import copy
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import processors
from torch import nn
from transformers import MarianTokenizer
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.convert_slow_tokenizer import SpmConverter

from .rules_file import write_rules


FOLDER = "onnx"  # in the exported folder, where transformers.js and optimum look
ENCODER, DECODER = "encoder_model.onnx", "decoder_model_merged.onnx"
QUANTIZATIONS = ("float32", "int8")
_LARGEST = 1_900_000_000  # bytes; a file of ONNX holds 2 GB, beyond which weights lie beside it


def import_onnxruntime():
    """The library."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError('ONNX needs onnx, onnxruntime and onnxscript: pip install "hf_lenctrl[onnx]"') from error
    return onnxruntime


def _mask(allowed: torch.Tensor) -> torch.Tensor:
    """0 where a position may be seen, the smallest number elsewhere."""
    return torch.where(allowed, 0.0, torch.finfo(torch.float32).min)


class _Encoder(nn.Module):
    """`input_ids` and `attention_mask`, each `(B, S)`, to `last_hidden_state (B, S, d)`; some read `length (B,)`."""

    def __init__(self, model):
        super().__init__()
        self.encoder = model.get_encoder()

    def forward(self, input_ids, attention_mask, length=None):
        seen = _mask(attention_mask[:, None, None, :] != 0)  # made here, so that no branch depends on its values
        seen = seen.expand(-1, -1, input_ids.shape[1], -1)
        return self.encoder(input_ids, attention_mask=seen, length=length)[0]


class _Decoder(nn.Module):
    """
    The decoder with its head, `T` ids after `P` earlier ones, `P` from 0. It projects the encoder's states that are
    not in the cache yet: all at the first step, none later, whether the caller gives them again or not. So one graph
    serves every step, without a branch.
    """

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, encoder_attention_mask, input_ids, encoder_hidden_states, length, progress, *past):
        cache = EncoderDecoderCache(
            *(DynamicCache(list(zip(past[i::4], past[i + 1 :: 4], strict=True))) for i in (0, 2))
        )
        cache.is_updated = dict.fromkeys(cache.is_updated, False)  # the cross-attention appends what is new
        new, before, known = input_ids.shape[1], past[0].shape[2], past[2].shape[2]
        query = torch.arange(new).unsqueeze(1) + before  # (T, 1)
        causal = _mask(torch.arange(before + new) <= query)[None, None]  # (1, 1, T, P + T)
        cross = _mask(encoder_attention_mask[:, None, None, :] != 0)  # (B, 1, 1, S)
        logits = self.model(
            attention_mask=cross.expand(-1, -1, new, -1),
            decoder_input_ids=input_ids,
            decoder_attention_mask=causal.expand(input_ids.shape[0], -1, -1, -1),
            encoder_outputs=(encoder_hidden_states[:, known:],),
            cache=cache,
            length=length,
            progress=progress,
        ).logits
        layers = zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True)
        present = [tensor for pair in layers for layer in pair for tensor in (layer.keys, layer.values)]
        return logits, *present


def _check_kind(model) -> None:
    """Raise for a model that these graphs do not hold."""
    config: Any = getattr(model, "config", None)
    if not getattr(config, "is_encoder_decoder", False) or not getattr(config, "length_controlled", False):
        raise ValueError(
            f"the export takes a length-controlled model with an encoder, got a {type(model).__name__}; export plain "
            "models with optimum"
        )
    if config.length_head:
        raise ValueError(
            "the export takes a model without a length head, whose running sums a cache of ONNX does not hold, got "
            "length_head=True; generate with the model itself"
        )


def cache_names(layers: int) -> list[str]:
    """What stands behind `past_key_values.` and `present.`, in the order of the inputs."""
    return [
        f"{i}.{side}.{kind}" for i in range(layers) for side in ("decoder", "encoder") for kind in ("key", "value")
    ]


def _graphs(model) -> Iterator[tuple[str, nn.Module, dict[str, tuple[torch.Tensor, dict]], list[str]]]:
    """File, module, inputs with an example and the names of their free dimensions, and outputs of each graph."""
    # no two inputs may be one tensor, or they become one input; a size of 0 or 1 would become fixed
    batch, source, new, before, known = 2, 9, 3, 4, 5

    def ids(columns):
        return torch.ones(batch, columns, dtype=torch.long)

    states = model.get_encoder()(ids(source), attention_mask=ids(source), length=ids(1)[:, 0])[0]
    rows, length = {0: "batch_size"}, torch.full((batch,), 20)
    columns = rows | {1: "encoder_sequence_length"}
    inputs = {"input_ids": (ids(source), columns), "attention_mask": (ids(source), columns)}
    if model.config.encoder_length_embedding:  # transformers.js gives an encoder nothing else
        inputs["length"] = (length, rows)
    yield ENCODER, _Encoder(model), inputs, ["last_hidden_state"]

    cache: Any = EncoderDecoderCache(DynamicCache(), DynamicCache())
    model(encoder_outputs=(states,), decoder_input_ids=ids(before), cache=cache, use_cache=True, length=length)
    both = (cache.self_attention_cache.layers, cache.cross_attention_cache.layers)
    names = cache_names(len(both[0]))
    tensors = [tensor for pair in zip(*both, strict=True) for layer in pair for tensor in (layer.keys, layer.values)]
    steps = rows | {1: "decoder_sequence_length"}
    inputs = {
        "encoder_attention_mask": (ids(source), columns),
        "input_ids": (ids(new), steps),
        "encoder_hidden_states": (states, columns),
        "length": (length, rows),
        "progress": (ids(new), steps),
    }
    for name, tensor in zip(names, tensors, strict=True):
        side = "decoder" if "decoder" in name else "encoder"
        kept = tensor if side == "decoder" else tensor[:, :, :known].clone()  # so that some are missing
        inputs[f"past_key_values.{name}"] = kept, rows | {2: f"past_{side}_sequence_length"}
    yield DECODER, _Decoder(model), inputs, ["logits", *(f"present.{name}" for name in names)]


@torch.no_grad()
def export_onnx(model, tokenizer, output_dir: str | Path, quantization: str = "float32") -> None:
    """
    Write a length-controlled model for ONNX Runtime, in Python or in a browser, into a folder.

    `onnx/` receives `encoder_model.onnx` and `decoder_model_merged.onnx` with the names of inputs and outputs that
    optimum and transformers.js know, and `length (B,)` and `progress (B, T)` beside them; the decoder takes an empty
    cache at the first step. The folder receives the configurations, the tokenizer and `lenctrl.json`.

    Args:
        model (`PreTrainedModel`): A length-controlled encoder-decoder with its head, in float32 or less.
        tokenizer (`PreTrainedTokenizerBase`): The model's.
        output_dir (`str` or `Path`): It may exist.
        quantization (`str`, *optional*, defaults to `"float32"`): `"int8"`, weights of 8 bits.

    Raises:
        `ValueError`: for a model without an encoder or without length control, with a length head or with a table
            that waits for a tokenizer, and for another quantization.
        `ImportError`: without onnxruntime.
    """
    import_onnxruntime()
    _check_kind(model)
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization of ONNX must be one of {', '.join(QUANTIZATIONS)}, got {quantization!r}")
    folder = Path(output_dir, FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    write_rules(model, output_dir)
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__], "float32"
    vars(config).pop("auto_map", None)  # its code is not in this folder
    config.to_json_file(Path(output_dir, "config.json"), use_diff=False)
    model.generation_config.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    if isinstance(tokenizer, MarianTokenizer) and not tokenizer.separate_vocabs:
        fast = _MarianConverter(tokenizer).converted()
        fast.add_special_tokens(tokenizer.all_special_tokens)
        fast.save(str(Path(output_dir, "tokenizer.json")))
    model = copy.deepcopy(model).float().eval()
    for name, module, inputs, outputs in _graphs(model):
        _write(module.eval(), inputs, outputs, folder / name)
        if quantization == "int8":
            _quantize(folder / name)


def _write(module: nn.Module, inputs: dict, outputs: list[str], path: Path) -> None:
    tensors, names = zip(*inputs.values(), strict=True)
    size = sum(p.numel() * p.element_size() for p in module.parameters())
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it says that torchvision is missing
    with warnings.catch_warnings():
        for kind in (FutureWarning, UserWarning):  # of the exporter about itself and about names of dimensions
            warnings.simplefilter("ignore", kind)
        torch.onnx.export(
            module,
            tensors,
            str(path),
            input_names=list(inputs),
            output_names=outputs,
            dynamic_shapes=names if not isinstance(module, _Decoder) else (*names[:5], names[5:]),
            external_data=size > _LARGEST,
            dynamo=True,
            verbose=False,
        )


def _quantize(path: Path) -> None:
    """Weights of 8 bits in place of those of 32; unsigned ones, whose products no processor saturates."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    _transpose_tied(model.graph, onnx)
    quantize_dynamic(model, path, weight_type=QuantType.QUInt8)


def _transpose_tied(graph, onnx) -> None:
    """
    Save an embedding that is the head's weight too as the head reads it. Behind a `Transpose` it would be made float32
    anew at each step; saved twice it would take twice the space.
    """
    weights = {weight.name: weight for weight in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "Transpose" and node.input[0] in weights]:
        weight, name = weights[node.input[0]], node.output[0]
        readers = [other for other in graph.node if weight.name in other.input and other is not node]
        if len(weight.dims) != 2 or any(other.op_type != "Gather" for other in readers):
            continue
        weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight).T.copy(), name))
        for reader in readers:
            rows, columns = reader.output[0], f"{reader.output[0]}_columns"
            place = next(i for i, other in enumerate(graph.node) if other is reader)
            turned = [
                onnx.helper.make_node("Gather", [name, reader.input[1]], [columns], axis=1),  # (d, B, T)
                onnx.helper.make_node("Transpose", [columns], [rows], perm=[1, 2, 0]),
            ]
            graph.node.remove(reader)
            for new in reversed(turned):
                graph.node.insert(place, new)
        graph.node.remove(node)


class _MarianConverter(SpmConverter):
    """MarianTokenizer as `tokenizer.json`, for JavaScript: its ids are those of `vocab.json`, not SentencePiece's."""

    def __init__(self, tokenizer):
        tokenizer.vocab_file = tokenizer.spm_files[0]  # where the converter looks for pieces and scores
        super().__init__(tokenizer)

    def vocab(self, proto):
        scores = {piece.piece: piece.score for piece in proto.pieces}
        entries = sorted(self.original_tokenizer.encoder.items(), key=lambda entry: entry[1])
        lowest = min(scores.values()) - 10  # an entry that SentencePiece does not know is never chosen
        return [(name, scores.get(name, lowest)) for name, _ in entries]

    def unk_id(self, proto):
        return self.original_tokenizer.unk_token_id

    def post_processor(self):
        eos = self.original_tokenizer.eos_token
        special = [(eos, self.original_tokenizer.eos_token_id)]
        return processors.TemplateProcessing(single=f"$A {eos}", pair=f"$A $B {eos}", special_tokens=special)
