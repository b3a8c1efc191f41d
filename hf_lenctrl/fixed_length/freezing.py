"""Conversion of a length-controlled model to a plain one that generates one fixed length, at a plain model's speed."""

import copy
import logging
from typing import Any

import torch
from transformers import PegasusForConditionalGeneration, PreTrainedModel

from ..configuration_lenctrl import LengthControlRules
from ..generation import defaults_for, eos_of, token_limit
from ..length_units import UnitTable
from ..lengths import OPTIONS, as_target, check_length


logger = logging.getLogger(__name__)

_DECODER_TABLE = "model.decoder.embed_positions.weight"
_ENCODER_TABLE = "model.encoder.embed_positions.weight"
_LEFT_OUT = {*LengthControlRules.__annotations__, "model_type", "architectures", "auto_map", "transformers_version"}
_ALIKE = ("start", "in a text", "after white space")  # the states of a table whose entries are characters


def freeze_length(model, length: int, *, tokenizer=None) -> Any:
    """
    Freeze a length into a model: return a plain model that generates one length.

    If each entry adds one unit, progress is the position minus a constant, so an encoding at one length is a table of
    positions. Added to the decoder's own positions, it makes a stock model whose logits equal the controlled model's
    logits at that length. The argument `model` does not change.

    The stock class is the family's own, except for M2M100 and NLLB: their class computes its positions and does not
    save them, so they become a Pegasus model, which has the same layers. Its encoder also counts padding, so pad
    sources on the right. Marian's class does not save its positions. The model returned here does, and `MarianMTModel`
    loads them, but the loaded model loses them if it is saved again.

    The positions before the text are the decoder start and, if the generation configuration has one, the forced BOS
    (BART, or a language code): set `model.generation_config.forced_bos_token_id` before. The generation configuration
    forbids the other entries that add no text (`bad_words_ids`), because after them progress would differ from the
    position. One difference remains: a character vocabulary's space at the start of a text counts as a unit. The
    result has no `length_constraint`, and it generates one text, without a choice among candidates.

    Args:
        model (`PreTrainedModel`): A length-controlled model with its head. With `length_encoding="none"` nothing
            depends on the length, and the result is the stock model.
        length (`int`): Requested units.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): The model's tokenizer, to check that its targets begin like
            generated texts.

    Returns:
        A model of the stock class, in eval mode, with `config.frozen_length` (None for `"none"`) and
        `config.frozen_length_unit`. The configuration also names the places of the layer norms (`normalize_before`,
        `normalize_embedding`), for tools such as CTranslate2.

    Raises:
        `TypeError`, `ValueError`: for an invalid length; for a model whose control cannot be a table of positions
            (subwords counted in characters, words or bytes; `"scale"`, a length head, the encoder's length embedding,
            length tokens); for targets that begin with an entry that generation does not force.
    """
    _check_kind(model)
    check_length(length)
    config, decoder = model.config, model.model.decoder
    has_length = config.length_encoding != "none"
    stock = next(kind for kind in type(model).__mro__ if kind.__module__.startswith("transformers.models."))
    if has_length and config.model_type.endswith("m2m_100"):
        stock = PegasusForConditionalGeneration
    plain = _stock_model(stock, model)
    state = {name: value for name, value in model.state_dict().items() if name in plain.state_dict()}
    if has_length:
        table = decoder.unit_table
        silent = _silent_entries(table)
        starts = _starts(model)
        if tokenizer is not None:
            _check_start(tokenizer, table, silent, len(starts) - 1)
        rows = config.max_position_embeddings
        if (needed := length + len(starts)) > rows:
            raise ValueError(f"length={length} needs {needed} positions, the model has {rows}; ask for less")
        state[_DECODER_TABLE] = _decoder_table(decoder, _progress(table, starts, rows), length, plain)
        if stock is PegasusForConditionalGeneration and _ENCODER_TABLE not in state:
            state[_ENCODER_TABLE] = _own_positions(model.model.encoder.embed_positions, rows)
    plain.load_state_dict(state, strict=False)
    plain.tie_weights()
    plain.to(model.device)
    plain.generation_config = copy.deepcopy(model.generation_config)
    for name in vars(plain.generation_config).keys() & {*OPTIONS}:
        delattr(plain.generation_config, name)
    if has_length:
        _limit(plain, table, length, rows, silent)
    own = {_DECODER_TABLE} if has_length else set()
    own |= {_DECODER_TABLE, _ENCODER_TABLE} if config.sinusoids == "fairseq" else set()
    # only this model changes, not Marian's class; transformers 5.23 has no public name for it
    if plain._keys_to_ignore_on_save:
        plain._keys_to_ignore_on_save -= own
    constraint = defaults_for(model)["length_constraint"]
    if constraint is not None:
        logger.warning("length_constraint=%r is no part of a frozen model; it only plans", constraint)
    plain.config.frozen_length = length if has_length else None
    plain.config.frozen_length_unit = config.length_unit
    family = plain.config.model_type
    plain.config.normalize_before = family not in ("bart", "marian")
    plain.config.normalize_embedding = family in ("bart", "mbart")
    return plain.eval()


def _check_kind(model) -> None:
    """Raise `ValueError` for a model whose control is not a function of the position and the length."""
    config: Any = getattr(model, "config", None)
    decoder = getattr(getattr(model, "model", None), "decoder", None)
    if not isinstance(model, PreTrainedModel) or not hasattr(config, "length_encoding") or decoder is None:
        raise ValueError(
            f"freeze_length takes one length-controlled model with head and positions, got a {type(model).__name__}"
        )
    for name in ("length_encoding", "encoder_length_embedding", "length_head", "length_tokens"):
        value = getattr(config, name)
        if value == "scale" or value and name != "length_encoding":
            raise ValueError(
                f"only a decoder whose positions hold the length can be frozen, got {name}={value!r}; export it with "
                "its length as an input: lenctrl export --format onnx"
            )


def _silent_entries(table: UnitTable) -> list[int]:
    """
    Return the entries that add no text; raise `ValueError` unless every other entry adds one unit anywhere in a text.
    """
    table.require_filled()
    weights = torch.maximum(table.weights, ~table.weights)  # (S, V)
    writes = weights.amax(dim=0) > 0  # (V,)
    in_text = weights[min(1, table.states - 1) :, writes]
    if table.unit in ("word", "byte", "width", "cost") or table.states > len(_ALIKE) or bool((in_text != 1).any()):
        raise ValueError(
            f"a frozen length needs a vocabulary whose every entry writes one {table.unit}; this one has subwords, so "
            "export the model with its length as an input: lenctrl export --format onnx"
        )
    return (~writes).nonzero().squeeze(1).tolist()


def _starts(model) -> list[int]:
    """Return the ids before the text: the decoder start, then a forced BOS or language code."""
    settings = model.generation_config
    start = settings.decoder_start_token_id
    start = model.config.pad_token_id if start is None else start  # padding adds no text, like every decoder start
    forced = settings.forced_bos_token_id
    return [start] if forced is None else [start, forced]


def _check_start(tokenizer, table: UnitTable, silent: list[int], forced: int) -> None:
    """Raise `ValueError` unless targets begin with as many entries without text as generation forces."""
    known, text = set(silent), ""
    for i in range(table.weights.shape[1]):  # find a text that the vocabulary has
        text = "" if i in known else tokenizer.decode([i], clean_up_tokenization_spaces=False).strip()
        if text:
            break
    ids = tokenizer(text_target=text)["input_ids"]
    progress = table.progress(torch.tensor([ids], device=table.weights.device))[0]
    before = int((progress == 0).sum())
    if before not in (forced, len(ids)):
        first = f"begin with {tokenizer.convert_ids_to_tokens(ids[:before])}, which write nothing"
        raise ValueError(
            f"targets of the {type(tokenizer).__name__} {first}, and generation forces {forced} such entries; set "
            "model.generation_config.forced_bos_token_id"
        )


def _progress(table: UnitTable, starts: list[int], rows: int) -> torch.Tensor:
    """Return the progress in units at each position, if every position after `starts` adds one unit: `(1, rows)`."""
    first = table.progress(torch.tensor([starts], device=table.weights.device))  # (1, 1) or (1, 2)
    after = torch.arange(1, rows - len(starts) + 1, device=first.device)
    return torch.cat([first, first[:, -1:] + after], dim=1)


@torch.no_grad()
def _decoder_table(decoder, progress: torch.Tensor, length: int, plain) -> torch.Tensor:
    """
    Build the stock decoder's table of positions: own positions plus encoding, after the offset rows of its class.
    """
    config, rows = decoder.config, progress.shape[1]
    table = decoder.encode_length(progress, torch.full_like(progress[:, :1], length), decoder.config.d_model)[
        0
    ].float()  # (rows, d)
    if config.length_projection:
        table = torch.nn.functional.linear(table, decoder.length_projection.weight.float())
    offset = getattr(plain.model.decoder.embed_positions, "offset", 0)  # BART's table has 2 unused rows
    if config.absolute_positions:
        table = table + _own_positions(decoder.embed_positions, rows)
    return torch.cat([table.new_zeros(offset, table.shape[1]), table])


def _own_positions(module, rows: int) -> torch.Tensor:
    """Return the vectors of a module of positions at the first `rows` positions: `(rows, d)` in float32."""
    if hasattr(module, "weights"):  # M2M100's positions begin after its padding entry
        first = module.padding_idx + 1
        table = module.get_embedding(first + rows, module.embedding_dim, module.padding_idx)
        return table[first:].to(module.weights.device, torch.float32)
    offset = getattr(module, "offset", 0)
    return module.weight.detach()[offset : offset + rows].float()


def _stock_model(stock: type, model) -> Any:
    """Build a model of the stock class with the configuration's own fields, without the weights."""
    kind: Any = stock
    fields = {name: value for name, value in model.config.to_dict().items() if name not in _LEFT_OUT}
    if kind is PegasusForConditionalGeneration:  # Pegasus's default would end M2M100's outputs with padding
        fields.setdefault("forced_eos_token_id", None)
    return kind(kind.config_class(**fields)).to(model.dtype)


def _limit(plain, table: UnitTable, length: int, rows: int, silent: list[int]) -> None:
    """Set the limits of generation for the length, like `LengthControlledGeneration`, and forbid uncounted entries."""
    settings = plain.generation_config
    target = as_target(length, None, None, 1, table.weights.device)
    settings.max_new_tokens = int(token_limit(table, target, 1, rows)) - 1  # the limit includes the start
    settings.max_length, settings.min_length = None, 0
    # suppress_tokens would also suppress a forced BOS
    known, ends = settings.bad_words_ids or [], eos_of(plain)
    new = [[i] for i in silent if i not in ends and [i] not in known]
    settings.bad_words_ids = [*known, *new] or None
