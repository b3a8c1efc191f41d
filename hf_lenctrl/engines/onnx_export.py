"""Export a length-controlled encoder-decoder to ONNX; the length is an input of the graph."""

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


FOLDER = "onnx"  # transformers.js and optimum look in this folder
ENCODER, DECODER = "encoder_model.onnx", "decoder_model_merged.onnx"
QUANTIZATIONS = ("float32", "int8")
_LARGEST = 1_900_000_000  # bytes; an ONNX file holds at most 2 GB, so more weights need a second file


def import_onnxruntime():
    """Import onnxruntime and return the module. Raise `ImportError` with the install command if it is missing."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError('ONNX needs onnx, onnxruntime and onnxscript: pip install "hf_lenctrl[onnx]"') from error
    return onnxruntime


def _mask(allowed: torch.Tensor) -> torch.Tensor:
    """
    Return the additive attention mask of the boolean tensor `allowed`: 0 where it is true, the lowest float32 number
    elsewhere.
    """
    return torch.where(allowed, 0.0, torch.finfo(torch.float32).min)


class _Encoder(nn.Module):
    """
    The graph of the encoder. It maps `input_ids` and `attention_mask`, `(B, S)` each for `B` sources of `S` tokens, to
    `last_hidden_state (B, S, d)`. The encoders of some models also read `length (B,)`.
    """

    def __init__(self, model):
        super().__init__()
        self.encoder = model.get_encoder()

    def forward(self, input_ids, attention_mask, length=None):
        # an additive mask is made here, because transformers would branch on the values of the mask
        seen = _mask(attention_mask[:, None, None, :] != 0)
        seen = seen.expand(-1, -1, input_ids.shape[1], -1)
        return self.encoder(input_ids, attention_mask=seen, length=length)[0]


class _Decoder(nn.Module):
    """
    The graph of the decoder with its head, for `T` new ids after `P` cached ids; `P` may be 0. The graph computes keys
    and values only for encoder states that are not yet in the cache: for all states at the first step, and for none
    later, even if the caller passes the states again. So one graph without branches serves every step.
    """

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, encoder_attention_mask, input_ids, encoder_hidden_states, length, progress, *past):
        cache = EncoderDecoderCache(
            *(DynamicCache(list(zip(past[i::4], past[i + 1 :: 4], strict=True))) for i in (0, 2))
        )
        cache.is_updated = dict.fromkeys(cache.is_updated, False)  # so that cross-attention appends the new states
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
    """
    Raise `ValueError` if the model has no encoder or no length control, if it has a length head, or if it wraps
    another model.
    """
    config = getattr(model, "config", None)
    if config is None or not config.is_encoder_decoder or not getattr(config, "length_controlled", False):
        raise ValueError(
            f"the export takes a length-controlled model with an encoder, got a {type(model).__name__}; export plain "
            "models with optimum"
        )
    if hasattr(config, "text_config"):
        raise ValueError(
            f"the export takes no model that wraps another, got {config.text_config.model_type}; generate with "
            "the model itself"
        )
    if config.length_head:
        raise ValueError(
            "the export takes a model without a length head, whose running sums a cache of ONNX does not hold, got "
            "length_head=True; generate with the model itself"
        )


def cache_names(layers: int) -> list[str]:
    """
    Return the names of the cache tensors of `layers` decoder layers, in the order in which the graph reads them. The
    names lack the prefix `past_key_values.` (inputs) or `present.` (outputs).
    """
    return [
        f"{i}.{side}.{kind}" for i in range(layers) for side in ("decoder", "encoder") for kind in ("key", "value")
    ]


def _graphs(model) -> Iterator[tuple[str, nn.Module, dict[str, tuple[torch.Tensor, dict]], list[str]]]:
    """
    Yield four values for each graph (encoder, decoder): the file name, the module, the inputs, and the names of the
    outputs. The inputs map each name to a pair: an example tensor, and a dictionary with the names of the tensor's
    dynamic dimensions.
    """
    # the exporter merges inputs that are the same tensor, and makes dimensions of size 0 or 1 constant
    batch, source, new, before, known = 2, 9, 3, 4, 5

    def ids(columns):
        return torch.ones(batch, columns, dtype=torch.long)

    states = model.get_encoder()(ids(source), attention_mask=ids(source), length=ids(1)[:, 0])[0]
    rows, length = {0: "batch_size"}, torch.full((batch,), 20)
    columns = rows | {1: "encoder_sequence_length"}
    inputs = {"input_ids": (ids(source), columns), "attention_mask": (ids(source), columns)}
    if model.config.encoder_length_embedding:  # only here, because transformers.js passes no length to an encoder
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
        # some encoder states are not cached here, so that the number of cached states stays dynamic
        kept = tensor if side == "decoder" else tensor[:, :, :known].clone()
        inputs[f"past_key_values.{name}"] = kept, rows | {2: f"past_{side}_sequence_length"}
    yield DECODER, _Decoder(model), inputs, ["logits", *(f"present.{name}" for name in names)]


@torch.no_grad()
def export_onnx(model, tokenizer, output_dir: str | Path, quantization: str = "float32") -> None:
    """
    Export a length-controlled model for ONNX Runtime, in Python or in a browser, into a folder.

    The function writes `onnx/encoder_model.onnx` and `onnx/decoder_model_merged.onnx`. Their inputs and outputs have
    the names that optimum and transformers.js use. Two inputs are new, for `B` rows and `T` decoder positions:
    `length (B,)`, and `progress (B, T)`, the units produced so far. The decoder needs an empty cache at the first
    step. The folder also gets the configurations, the tokenizer and `lenctrl.json`.

    Args:
        model (`PreTrainedModel`): A length-controlled encoder-decoder with its head, in float32 or half precision.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        output_dir (`str` or `Path`): A folder; it may exist.
        quantization (`str`, *optional*, defaults to `"float32"`): `"float32"`, or `"int8"` for weights of 8 bits.

    Raises:
        `ValueError`: if the model has no encoder or no length control; if the model has a length head or an unfilled
            unit table; if the model is a `LenCtrlForSeq2SeqLM`, which wraps another model; or if the quantization is
            unknown.
        `ImportError`: if onnxruntime is not installed.
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
    for name in ("auto_map", "custom_pipelines"):  # these name code that is not in this folder
        vars(config).pop(name, None)
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
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # the exporter warns that torchvision is missing
    with warnings.catch_warnings():
        for kind in (FutureWarning, UserWarning):  # the exporter warns about its own code and names of dimensions
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
    """
    Quantize the weights of the graph in a file to unsigned 8-bit integers, because signed products saturate on some
    processors. The file is overwritten.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    _transpose_tied(model.graph, onnx)
    quantize_dynamic(model, path, weight_type=QuantType.QUInt8)


def _transpose_tied(graph, onnx) -> None:
    """
    If an embedding shares its weights with the head, store these weights transposed, in the layout that the head
    reads. Otherwise a `Transpose` before the head would convert the weights to float32 at each step, and two copies of
    the weights would take twice the space. `graph` is changed in place; `onnx` is the imported module.
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
    """
    A converter of a `MarianTokenizer` to `tokenizer.json`, for JavaScript. The ids are those of `vocab.json`, not of
    SentencePiece.
    """

    def __init__(self, tokenizer):
        tokenizer.vocab_file = tokenizer.spm_files[0]  # the converter reads pieces and scores from this file
        super().__init__(tokenizer)

    def vocab(self, proto):
        scores = {piece.piece: piece.score for piece in proto.pieces}
        entries = sorted(self.original_tokenizer.encoder.items(), key=lambda entry: entry[1])
        lowest = min(scores.values()) - 10  # so low that the tokenizer never chooses an entry without a score
        return [(name, scores.get(name, lowest)) for name, _ in entries]

    def unk_id(self, proto):
        return self.original_tokenizer.unk_token_id

    def post_processor(self):
        eos = self.original_tokenizer.eos_token
        special = [(eos, self.original_tokenizer.eos_token_id)]
        return processors.TemplateProcessing(single=f"$A {eos}", pair=f"$A $B {eos}", special_tokens=special)
