"""
Functions that find the Auto class and the tokenizer of a checkpoint, and functions that add or remove length control.
"""

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast, overload

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel

from .adapters import is_adapter, load_adapter
from .character_costs import Unit
from .configuration_lenctrl import LengthControlRules
from .length_encoding import LENGTH_ENCODINGS
from .length_tokens import LengthTokens
from .modeling_lenctrl import FAMILIES
from .modeling_lenctrl_causal import LenCtrlForCausalLM
from .modeling_lenctrl_seq2seq import LenCtrlForSeq2SeqLM
from .shards import check_shards
from .wrapper import LengthControlWrapper


if TYPE_CHECKING:  # the overloads use these
    from transformers import (
        BartForConditionalGeneration,
        M2M100ForConditionalGeneration,
        MarianMTModel,
        MBartForConditionalGeneration,
        MT5ForConditionalGeneration,
        PegasusForConditionalGeneration,
        T5ForConditionalGeneration,
        UMT5ForConditionalGeneration,
    )

    from .modeling_lenctrl import (
        LenCtrlBartForConditionalGeneration,
        LenCtrlM2M100ForConditionalGeneration,
        LenCtrlMarianMTModel,
        LenCtrlMBartForConditionalGeneration,
        LenCtrlMT5ForConditionalGeneration,
        LenCtrlPegasusForConditionalGeneration,
        LenCtrlT5ForConditionalGeneration,
        LenCtrlUMT5ForConditionalGeneration,
    )

logger = logging.getLogger(__name__)

_OF_THE_HUB = ("revision", "token", "cache_dir", "local_files_only", "subfolder", "trust_remote_code", "code_revision")
# Fields that belong to one class or folder; a configuration of another class does not copy them.
_OWN_FIELDS = ("model_type", "architectures", "transformers_version", "_name_or_path", "auto_map", "custom_pipelines")


class _AdaptedModel:
    """An Auto class for adapters, whose `from_pretrained` is `load_adapter`."""

    from_pretrained = staticmethod(load_adapter)


def auto_class(name, **kwargs) -> Any:
    """
    Return the class whose `from_pretrained` loads the checkpoint `name`. This is `AutoModelForSeq2SeqLM` or
    `AutoModelForCausalLM`, as the checkpoint's configuration says. For an adapter, it is a class whose
    `from_pretrained` is `load_adapter`. `kwargs` are options of `from_pretrained`.
    """
    if is_adapter(name, **kwargs):
        return _AdaptedModel
    where = {key: kwargs[key] for key in _OF_THE_HUB if kwargs.get(key) is not None}
    check_shards(name, kwargs.get("subfolder"))
    config = kwargs.get("config") or AutoConfig.from_pretrained(name, **where)
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def tokenizer_of(name, **kwargs) -> Any:
    """
    Load the tokenizer of a checkpoint with `AutoTokenizer.from_pretrained`. Raise `ValueError` if there is no
    tokenizer. Transformers itself would either return a tokenizer without a vocabulary, or raise a `TypeError`.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **kwargs)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{_no_tokenizer(name)} ({error})") from error
    check_tokenizer(tokenizer, name)
    return tokenizer


def check_tokenizer(tokenizer, name, model=None) -> None:
    """
    Raise `ValueError` if the tokenizer is `None`, if it has only special entries, or if its number of entries does not
    fit the model. `name` is the name of the checkpoint in messages. Without a model, skip the last check.
    """
    separate = getattr(tokenizer, "separate_vocabs", False)
    special = () if tokenizer is None else {*tokenizer.all_special_tokens, "<mask>"}
    vocabulary = {} if tokenizer is None else tokenizer.target_encoder if separate else tokenizer.get_vocab()
    entries = max((i + 1 for token, i in vocabulary.items() if token.strip("▁") and token not in special), default=0)
    if entries == 0:
        raise ValueError(_no_tokenizer(name))
    rows = entries if model is None else model.get_output_embeddings().weight.shape[0]
    if not separate and not getattr(getattr(model, "config", None), "share_encoder_decoder_embeddings", True):
        rows = model.config.vocab_size  # the encoder's vocabulary, which begins with the decoder's
    padding = 512 if hasattr(model, "unit_table") else rows  # limit of `UnitTable.padded`, if the model has this table
    if not entries <= rows < entries + padding:
        raise ValueError(f"the tokenizer has {entries} entries, the model {name} has {rows}; pass the model's own")


def _no_tokenizer(name) -> str:
    return f"{name} has no tokenizer with a vocabulary; save one there: tokenizer.save_pretrained(...)"


@dataclass(frozen=True)
class LoadedModel:
    """
    A model that `pipeline(...)` has loaded, with the Hub options of this call. The pipeline uses the options again to
    load edits and a length predictor from the model's folder or repository.
    """

    model: PreTrainedModel
    hub_options: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self):
        """Return the configuration of the model, which `pipeline(...)` reads."""
        return self.model.config


class PipelineModel(AutoModelForSeq2SeqLM):
    """An Auto class for the pipeline, which loads any model or adapter as a `LoadedModel`."""

    @classmethod
    def from_pretrained(cls, name, *args, **kwargs):
        model = auto_class(name, **kwargs).from_pretrained(name, *args, **kwargs)
        names = ("revision", "token", "cache_dir", "local_files_only", "subfolder")
        return LoadedModel(model, {name: kwargs[name] for name in names if kwargs.get(name) is not None})


@dataclass(frozen=True)
class ConversionReport:
    """
    The names of parameters, as a report of `add_length_control`: `kept` are the parameters of the given model that the
    new model also has, `new` are added, and `dropped` exist only in the given model.
    """

    kept: tuple[str, ...]
    new: tuple[str, ...]
    dropped: tuple[str, ...]

    def __str__(self):
        return f"{len(self.kept)} parameters kept, new: {list(self.new)}, dropped: {list(self.dropped)}"


def _report(model, theirs: set[str]) -> ConversionReport:
    ours = [name for name, _ in model.named_parameters()]
    kept = tuple(name for name in ours if name in theirs)
    new = tuple(name for name in ours if name not in theirs)
    return ConversionReport(kept, new, tuple(sorted(theirs.difference(ours))))


class ConversionOptions(TypedDict, total=False):
    """Keyword arguments of `add_length_control`, for type checkers."""

    length_encoding: str
    length_unit: str
    cost: Unit | Callable[[str], int] | None
    length_tokens: LengthTokens | dict | None
    length: int | None
    length_constraint: str | None
    length_tolerance: int | float | list | tuple | None
    length_predictor: str | None
    unit_states: int
    encoder_length_embedding: bool
    length_head: bool
    learned_lengths: int
    length_scale: int
    trained_lengths: dict | None
    length_optional: bool


@overload
def add_length_control(
    model_or_path: "BartForConditionalGeneration", *, tokenizer: Any, **options: Unpack[ConversionOptions]
) -> "LenCtrlBartForConditionalGeneration": ...
@overload
def add_length_control(
    model_or_path: "MarianMTModel", *, tokenizer: Any, **options: Unpack[ConversionOptions]
) -> "LenCtrlMarianMTModel": ...
@overload
def add_length_control(
    model_or_path: "MBartForConditionalGeneration", *, tokenizer: Any, **options: Unpack[ConversionOptions]
) -> "LenCtrlMBartForConditionalGeneration": ...
@overload
def add_length_control(
    model_or_path: "PegasusForConditionalGeneration", *, tokenizer: Any, **options: Unpack[ConversionOptions]
) -> "LenCtrlPegasusForConditionalGeneration": ...
@overload
def add_length_control(
    model_or_path: "M2M100ForConditionalGeneration", *, tokenizer: Any, **options: Unpack[ConversionOptions]
) -> "LenCtrlM2M100ForConditionalGeneration": ...
@overload
def add_length_control(
    model_or_path: "T5ForConditionalGeneration", *, tokenizer: Any, **options: Unpack[ConversionOptions]
) -> "LenCtrlT5ForConditionalGeneration": ...
@overload
def add_length_control(
    model_or_path: "MT5ForConditionalGeneration", *, tokenizer: Any, **options: Unpack[ConversionOptions]
) -> "LenCtrlMT5ForConditionalGeneration": ...
@overload
def add_length_control(
    model_or_path: "UMT5ForConditionalGeneration", *, tokenizer: Any, **options: Unpack[ConversionOptions]
) -> "LenCtrlUMT5ForConditionalGeneration": ...
@overload
def add_length_control(
    model_or_path: PreTrainedModel, *, tokenizer: Any, **options: Unpack[ConversionOptions]
) -> Any: ...
@overload
def add_length_control(
    model_or_path: str | Path, *, tokenizer: Any = ..., **options: Unpack[ConversionOptions]
) -> Any: ...
def add_length_control(
    model_or_path: PreTrainedModel | str | Path,
    *,
    length_encoding: str = "ldpe",
    length_unit: str = "token",
    cost: Unit | Callable[[str], int] | None = None,
    tokenizer=None,
    length_tokens: LengthTokens | dict | None = None,
    **options,
) -> Any:
    """
    Add length control to a BART, mBART, Pegasus, Marian, M2M100/NLLB or T5 (mT5, UMT5) model. A model of most other
    architectures is wrapped: in a `LenCtrlForSeq2SeqLM` if the model has an encoder, otherwise in a
    `LenCtrlForCausalLM`.

    The decoder keeps its positions. The length encoding passes through a new linear layer. This layer starts at zero,
    and so do the optional length embedding of the encoder and the projection of the optional length head. So before
    training, the new model has the logits of the given model, bit for bit, at any length. If encoder and decoder share
    a `"learned"` embedding, there is no linear layer, and the shared embedding starts at zero. Weights, dtype,
    configuration and generation configuration are copied; the given model does not change.

    Args:
        model_or_path (`PreTrainedModel` or `str`): A model without length control, or its folder or Hub name.
        length_encoding (`str`, *optional*, defaults to `"ldpe"`): `"ldpe"`, `"lrpe"`, `"pre"`, `"pre_noise"` or
            `"learned"`.
        length_unit (`str`, *optional*, defaults to `"token"`): The name of a unit, see `docs/units.md`, or `"cost"`.
        cost (`Unit` or `Callable[[str], int]`, *optional*): For the unit `"cost"`: a unit or function of your own, see
            `UnitTable.from_tokenizer`.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): The model's tokenizer; by default the tokenizer in the
            model's folder. Required if the model is passed as an object.
        length_tokens (`LengthTokens` or `dict`, *optional*): Tokens before the source that state the length, or their
            `to_dict()`. The model's embedding must have rows for these tokens. If there are length tokens or
            `encoder_length_embedding`, `length_encoding="none"` is allowed.
        options: Other fields of the new model's configuration (see `LengthControlRules`), except `sinusoids`. For
            example, `length` and `length_constraint` are the defaults of `generate`.

    Returns:
        The length-controlled model, in eval mode. Its attribute `conversion_report` is a `ConversionReport`, which
        names the kept, new and dropped parameters.

    Raises:
        `ValueError`: if the architecture cannot read a length, if the model has length control already, if the
            encoding cannot be added, if there is no tokenizer, if the tokenizer lacks the length tokens, or if fields
            of the configuration are invalid.
        `TypeError`: if an option is unknown, or if the model is no `PreTrainedModel`, folder or Hub name.
    """
    if isinstance(model_or_path, PreTrainedModel):
        plain: Any = model_or_path
        if tokenizer is None:
            raise ValueError(f"add_length_control needs the tokenizer of the {type(plain).__name__}; pass tokenizer=")
    else:
        _check_path(model_or_path)
        plain = auto_class(model_or_path).from_pretrained(model_or_path)
        tokenizer = tokenizer or tokenizer_of(model_or_path)
    tokens = LengthTokens(**length_tokens) if isinstance(length_tokens, dict) else length_tokens
    addable = (*LENGTH_ENCODINGS, "learned")
    # If encoder and decoder share an embedding table, the table itself starts at zero.
    shared = length_encoding == "learned" and bool(options.get("encoder_length_embedding"))
    in_the_source = tokens is not None or options.get("encoder_length_embedding")
    if length_encoding not in addable and not (length_encoding == "none" and in_the_source):
        raise ValueError(f"length_encoding={length_encoding!r} cannot be added; choose one of {', '.join(addable)}")
    control: dict[str, Any] = {
        "length_encoding": length_encoding,
        "absolute_positions": True,
        "length_unit": length_unit,
        "length_projection": length_encoding != "none" and not shared,
        "length_tokens": None if tokens is None else tokens.to_dict(),
    }
    if tokens is not None:
        tokens.check_in(tokenizer)
    # `sinusoids` would change the positions of a Marian checkpoint when it is loaded again
    if unknown := sorted(options.keys() - (LengthControlRules.__annotations__.keys() - {*control, "sinusoids"})):
        raise TypeError(f"add_length_control has no option {', '.join(unknown)}")
    control |= options
    if hasattr(plain.config, "length_encoding") or not plain.can_generate():
        has = "has length control already" if hasattr(plain.config, "length_encoding") else "does not generate"
        raise ValueError(f"{type(plain).__name__} {has}; pass a plain language model")
    if (wrapper := _wrapper_of(plain)) is not None:
        model: Any = wrapper.around(copy.deepcopy(plain) if plain is model_or_path else plain, **control)
        model.set_unit_table(tokenizer, cost=cost)
        model.conversion_report = _report(model, {f"language_model.{name}" for name, _ in plain.named_parameters()})
        return model
    head = FAMILIES[plain.config.model_type]
    fields = {name: value for name, value in plain.config.to_dict().items() if name not in _OWN_FIELDS}
    config = head.config_class(**fields, **control)
    config._attn_implementation = plain.config._attn_implementation
    model = head(config).to(plain.dtype)
    _take_dtypes(model, plain)
    missing, unexpected = model.load_state_dict(plain.state_dict(), strict=False)
    model.tie_weights()
    model.to(plain.device)
    model.set_unit_table(tokenizer, cost=cost)
    model.generation_config = copy.deepcopy(plain.generation_config)
    theirs = {name for name, _ in plain.named_parameters()}
    model.conversion_report = _report(model, theirs)
    unknown = [name for name in missing if name in theirs] + list(unexpected)
    if unknown:
        raise ValueError(f"these weights of the {type(plain).__name__} found no place: {', '.join(unknown)}")
    logger.info("%s -> %s: %s", type(plain).__name__, type(model).__name__, model.conversion_report)
    return model.eval()


def remove_length_control(model_or_path: PreTrainedModel | str | Path) -> Any:
    """
    Return the plain model (without length control) inside a model with `length_optional`. The plain model has the same
    weights, but no modules of length control. This is the inverse of `add_length_control`.

    The plain model has, bit for bit, the logits that the given model has if no length is given. Dtype, configuration
    and generation configuration are copied; the given model does not change.

    Args:
        model_or_path (`PreTrainedModel` or `str`): A model with `length_optional`, or its folder or Hub name. The
            plain model uses the same tokenizer.

    Returns:
        The plain model, in eval mode.

    Raises:
        `ValueError`: if the model always needs a length, or uses fairseq's sinusoids.
    """
    loaded = isinstance(model_or_path, PreTrainedModel)
    if not loaded:
        _check_path(model_or_path)
    model = cast(Any, model_or_path) if loaded else auto_class(model_or_path).from_pretrained(model_or_path)
    config = model.config
    if not getattr(config, "length_optional", False) or config.sinusoids != "paper":
        rule = "needs a model that also generates without a length (length_optional), with sinusoids='paper'"
        raise ValueError(f"remove_length_control {rule}; this {type(model).__name__} has no plain model within")
    if isinstance(model, LengthControlWrapper):
        plain = copy.deepcopy(model.language_model) if loaded else model.language_model
    else:
        left_out = (*_OWN_FIELDS, *LengthControlRules.__annotations__)
        fields = {name: value for name, value in config.to_dict().items() if name not in left_out}
        stock = AutoConfig.for_model(config.model_type.removeprefix("lenctrl_"), **fields)
        plain = AutoModelForSeq2SeqLM.from_config(stock, attn_implementation=config._attn_implementation)
        plain.to(device=model.device, dtype=model.dtype)
        _take_dtypes(plain, model)
        weights = model.state_dict()
        plain.load_state_dict({name: weights[name] for name in plain.state_dict()})
    plain.generation_config = copy.deepcopy(model.generation_config)
    return plain.eval()


def _check_path(name: Any) -> None:
    """Raise `TypeError` unless `name`, which is no `PreTrainedModel`, is a folder or a Hub name."""
    if not isinstance(name, str | Path):
        rule = "the model must be a PreTrainedModel, a folder or a Hub name"
        hint = "; pass model.merge_and_unload()" if hasattr(name, "merge_and_unload") else ""
        raise TypeError(f"{rule}, got {type(name).__name__}{hint}")


def _take_dtypes(model: Any, given: Any) -> None:
    """Convert each parameter to the dtype of its namesake in `given`: a T5 in float16 has some in float32."""
    theirs = dict(given.named_parameters())
    for name, parameter in model.named_parameters():
        if name in theirs:
            parameter.data = parameter.data.to(theirs[name].dtype)


def _wrapper_of(plain: Any) -> type[LengthControlWrapper] | None:
    """Return the wrapper class for `plain`; `None` if this package has length-controlled classes for it."""
    if not plain.config.is_encoder_decoder:
        return LenCtrlForCausalLM
    return None if plain.config.model_type in FAMILIES else LenCtrlForSeq2SeqLM
