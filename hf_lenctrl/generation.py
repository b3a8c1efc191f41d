"""The method `generate` that takes a length, for all models of this package."""

import copy
import inspect
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal

import torch
from transformers import PreTrainedConfig
from transformers.generation import GenerationConfig

from .bounded_generation import check_stop_strings, encode_once, generate_within, mask_of_padding, rows_of, warn_once
from .cache import CACHE, takes_cache
from .length_guidance import LengthGuidanceLogitsProcessor
from .length_pair import check_pair, other_limit, units_apart
from .length_units import UnitTable
from .lengths import OPTIONS, Target, as_target, check_tolerance, listed, refuse_length, refuse_none
from .thoughts import Thoughts, thoughts_of


FROM_CONFIG: Any = object()  # the call does not set the option; None means "no length" or "no constraint"
_OURS = ("length", "decoder_length", "progress", "prompt")


@dataclass(frozen=True)
class PromptSpan:
    """
    The columns of a causal model's prompt in the attention mask of a call of `generate`, and the counter for an answer
    after thoughts (reasoning text).
    """

    start: int  # cached columns before the ids
    columns: int  # columns of the prompt's ids
    thoughts: Thoughts | None = None
    closed: torch.Tensor | None = None  # (batch_size,) whether each prompt has the end of the thoughts


def defaults_for(model, generation_config=None) -> dict[str, Any]:
    """
    Return a dictionary with the default of each option in `lengths.OPTIONS`; `None` for an option without a default.

    A default comes from the model's configuration, the model's generation configuration or the argument
    `generation_config`. A later configuration in this list overrides an earlier configuration. Warn once if the length
    or the constraint differs between the model's two configurations. If a configuration sets a constraint but no
    tolerance window, it removes the window of earlier configurations. A window that is a list (a pair in JSON) becomes
    a tuple.

    Raises:
        `ValueError`: if there is a window but the constraint is not `"exact"`, or if a generation configuration has a
            misspelt length option.
    """
    found: dict[str, Any] = dict.fromkeys(OPTIONS)
    known = vars(GenerationConfig()).keys() | {*OPTIONS}
    for config in (model.config, model.generation_config, generation_config):
        unknown = vars(config).keys() - known if isinstance(config, GenerationConfig) else ()
        for name in sorted(unknown):
            if name.startswith("length") or get_close_matches(name, OPTIONS, cutoff=0.8):
                names = ", ".join(OPTIONS)
                raise ValueError(f"length options of a generation configuration are {names}, got {name!r}")
        given = {name: getattr(config, name, None) for name in OPTIONS}
        if given["length_constraint"] is not None:
            found["length_tolerance"] = None
        found |= {name: value for name, value in given.items() if value is not None}
    tolerance = found["length_tolerance"]
    found["length_tolerance"] = tuple(tolerance) if isinstance(tolerance, list) else tolerance
    if tolerance is not None and found["length_constraint"] != "exact":  # else the call checks the tolerance
        check_tolerance(tolerance, found["length_constraint"])
    for name in OPTIONS[:2]:
        own, other = getattr(model.config, name, None), getattr(model.generation_config, name, None)
        if own is not None and other is not None and own != other:
            warn_once(
                (name, own, str(other)),
                "generation_config.%s=%s overrides config.%s=%s, even if from_pretrained set the latter; set the "
                "former to None, or pass %s",
                *(name, other, name, own, name),
            )
    return found


def warn_of_range(length: torch.Tensor, trained: dict | None, unit: str) -> None:
    """
    Warn if a length in `length (batch_size,)` is far outside the lengths of the training targets. `trained` is the
    field `trained_lengths` of the model's configuration, and `unit` is the model's unit. Warn only once for each
    model.
    """
    length = length[length > 0]  # 0 means no length
    if trained and len(length) and bool(((length < 0.9 * trained["1%"]) | (length > 1.1 * trained["99%"])).any()):
        warn_once(
            (unit, *trained.values()),
            "a length of %d to %d %ss was requested; the model was trained on %d to %d (98 %% of its targets, the "
            "longest %d), outside of which its texts are poor",
            *(int(length.min()), int(length.max()), unit, trained["1%"], trained["99%"], trained["max"]),
        )


@dataclass(frozen=True)
class Resolved:
    """The length options of a call of `generate`, in which defaults replace the options that the call does not set."""

    # "stock": call the base class; "none": call a length-controlled model, but without a length
    mode: Literal["stock", "none", "length"]
    length: int | list[int] | torch.Tensor | Target | None = None
    other: tuple[str, Any] | None = None  # the second unit and its limit, see `units_apart`
    constraint: str | None = None
    tolerance: int | float | tuple | list | None = None


def resolve(config, defaults: dict[str, Any], unit: str, length, constraint, tolerance) -> Resolved:
    """
    Resolve the length options of a call of `generate`: fill in the defaults, and choose one of three modes. In the
    mode `"stock"`, `generate` calls the base class without length options. In the mode `"none"`, it calls a
    length-controlled model without a length. In the mode `"length"`, it requires a length.

    Args:
        config (`PreTrainedConfig`): The model's configuration; only `length_controlled` and `length_optional` are
            read.
        defaults (`dict`): The defaults of the options, see `defaults_for`.
        unit (`str`): The model's unit.
        length, constraint, tolerance: The arguments of `generate`; `FROM_CONFIG` if the length or the constraint is
            not given.

    Example:

    ```python
    >>> from types import SimpleNamespace
    >>> from hf_lenctrl.generation import FROM_CONFIG, resolve
    >>> plain = SimpleNamespace(length_controlled=False, length_optional=False)
    >>> defaults = {"length": None, "length_constraint": None, "length_tolerance": None}
    >>> resolve(plain, defaults, "word", 9, "max", None).mode
    'length'
    >>> resolve(plain, defaults, "word", FROM_CONFIG, FROM_CONFIG, None).mode
    'stock'

    ```
    """
    controlled = config.length_controlled
    if length is None or length is FROM_CONFIG and constraint is None and not controlled:
        defaults = dict.fromkeys(defaults)  # if there is no length, the other options have no effect
    length, other = units_apart(defaults["length"] if length is FROM_CONFIG else length, unit)
    length = listed(length)
    if other is not None:
        constraint = check_pair("max" if constraint is FROM_CONFIG else constraint)
    plain = (length is None or type(length) is int and length == 0) and controlled and config.length_optional
    if constraint is FROM_CONFIG:
        constraint = None if plain else defaults["length_constraint"]
        if tolerance is None and constraint == "exact":
            tolerance = defaults["length_tolerance"]
    mode: Literal["stock", "none", "length"] = "length"
    if constraint is None and not controlled and tolerance is None:
        mode = "stock"
    elif constraint is None and plain:
        mode = "none"
    return Resolved(mode, length, other, constraint, tolerance)


class LengthControlledGeneration:
    """Mixin for every model of this package: it adds a method `generate` that takes a length."""

    length_name = "length"  # of the length among the arguments of a step
    config: PreTrainedConfig
    device: Any  # most subclasses define `device` and `unit_table` as properties
    generation_config: GenerationConfig
    unit_table: Any

    @torch.no_grad()
    @takes_cache
    def generate(
        self,
        inputs=None,
        *args,
        length=FROM_CONFIG,
        length_constraint=FROM_CONFIG,
        length_tolerance=None,
        length_from=None,
        thinking_budget=None,
        cache=None,
        **kwargs,
    ):
        """
        Generate outputs of a requested length. This is `GenerationMixin.generate` with more arguments.

        Unless `max_length` or `max_new_tokens` is set (as an argument or in `generation_config`), the maximum number
        of new tokens comes from the length, and is large enough to cut no output. The length also overrides the
        checkpoint's `min_length`. This method does not generate several candidates and choose the best; the pipeline
        does.

        Args:
            length (`int`, `list[int]`, `torch.LongTensor` or array, *optional*): Requested length in units, for the
                whole batch or for each example. `None` disables a default length. If there is no length, or the length
                is 0, a model with `length_optional` works as a model without length control. Several lengths for a
                single text give one output for each length; the encoder then runs only once, unless it reads the
                length. A dictionary of two units, such as `{"character": 30, "word": 6}`, has a length in the model's
                unit, and a maximum in a second unit. With a dictionary, the argument `tokenizer` is required, and the
                default constraint is `"max"`.
            length_constraint (`str`, *optional*): The constraint. `"max"`: outputs are never longer than `length`.
                `"exact"`: outputs have this length; a warning names outputs for which this is impossible. `"min"`:
                outputs are never shorter than `length`, and at most four times as long. `None`: no constraint. If
                there is no length, the default is `None`. See `LengthConstraintLogitsProcessor`.
            length_tolerance (`int`, `float`, `tuple` or `list`, *optional*): A window for the constraint `"exact"`:
                `length` is the planned length, and the produced length may differ from `length` by at most this
                tolerance. The value is a number of units (4), a share of the length (0.1), a pair of these for shorter
                and longer outputs (`(0, 4)`), or a list with one such item for each example. A share is rounded down,
                to at least one unit; 0 means no window. The default of this option is used only if the constraint is
                also the default.
            length_from (`str` or `list[int]`, *optional*): For a causal model that writes thoughts (reasoning text)
                before the answer: the marker that ends the thoughts, such as `"</think>"`, or its ids. Only the answer
                after the marker is counted, without white space at its start. If the prompt ends with the
                marker and optional white space, the whole output is the answer. Otherwise, if an output has no marker,
                the length of this output is not controlled, and a warning says so. The argument `tokenizer` is
                required.
            thinking_budget (`int`, *optional*): The maximum number of new tokens of thoughts. After this number, the
                marker is added.
            guidance_scale (`float`, *optional*): For a model with `length_optional`, the strength of guidance towards
                the length, see `LengthGuidanceLogitsProcessor`; 1.5 to 3 are useful. Each step then runs the model
                twice.

        The defaults of `length`, `length_constraint` and `length_tolerance` come from the argument
        `generation_config`, or else from the model's `generation_config`, or else from its `config`.

        Raises:
            `TypeError`, `ValueError`: if a length is missing, not an integer, below 1, or too long for the decoder's
                positions; if the number of lengths is not the batch size; if the constraint is unknown; if
                `max_new_tokens` is too small for the lowest allowed length; if a tolerance is given without `"exact"`.
        """
        generate = super().generate  # type: ignore[misc]
        # Pass positional arguments after `inputs` by their names in the base method.
        kwargs |= dict(zip(list(inspect.signature(generate).parameters)[1:], args, strict=False))
        kwargs |= {} if cache is None else {CACHE: cache}
        if callable(kwargs.get("custom_generate")):
            check_stop_strings(self, kwargs)
        if getattr(kwargs.get("generation_config"), "is_assistant", False):  # a draft gets what its caller resolved
            return generate(inputs, **kwargs, **({} if length is FROM_CONFIG else {"length": length}))
        table = self.unit_table  # its device is used, because the first parameter may be offloaded
        if isinstance(length, Target):  # the pipeline has resolved and checked the length
            asked, table = Resolved("length", length, constraint=length_constraint), length.table or table
        else:
            own = defaults_for(self, kwargs.get("generation_config"))
            asked = resolve(self.config, own, table.unit, length, length_constraint, length_tolerance)
        thinks = length_from is not None or thinking_budget is not None
        if thinks:
            self._check_thinking(length_from, thinking_budget, asked.mode != "length")
        if asked.mode == "stock":
            if asked.length is not None:
                refuse_length()
            return generate(inputs, **kwargs)
        rows = self._rows(inputs, kwargs)
        batch_size = 1 if rows is None else len(rows)  # GenerationMixin also uses 1 if there is no input
        if asked.mode == "none":
            none = torch.zeros(batch_size, dtype=torch.long, device=self.device)
            return generate(inputs, **kwargs, length=none)
        if rows is not None and rows.device != table.weights.device:  # a model over several devices
            table = copy.deepcopy(table).to(rows.device)
        target = refuse_none() if asked.length is None else asked.length
        if not isinstance(target, Target):
            many = len(target) if isinstance(target, list) else 1
            many = target.numel() if isinstance(target, torch.Tensor) else many
            if batch_size == 1 and many > 1:
                inputs, kwargs = self._one_text(inputs, kwargs, many)
                batch_size = many
            target = as_target(target, asked.constraint, asked.tolerance, batch_size, table.weights.device)
            if asked.other is not None:
                target = replace(target, other=other_limit(asked.other, kwargs.get("tokenizer"), table, batch_size))
        warn_of_range(target.length, getattr(self.config, "trained_lengths", None), self.unit_table.unit)
        if kwargs.get(CACHE) is not None and (self.config.counts_progress or asked.constraint is not None):
            self._check_cached(kwargs)
        tokenizer, kwargs["inputs"] = kwargs.get("tokenizer"), inputs
        thoughts = thoughts_of(length_from, tokenizer, table, thinking_budget) if thinks else None
        if self.config.length_controlled:
            self._plan(kwargs, target, thoughts, table)
        return generate_within(
            generate, self, table, target, asked.constraint, kwargs, positions=self._positions, thoughts=thoughts
        )

    def _check_cached(self, kwargs: dict) -> None:
        """
        Raise `ValueError` if an encoder-decoder would read all `decoder_input_ids` as later ids of a filled cache,
        because the units of the cached ids would not be counted. Transformers takes the ids for the whole sequence
        only if the mask has their number of columns.
        """
        cached = int(kwargs[CACHE].get_seq_length())
        ids, mask = kwargs.get("decoder_input_ids"), kwargs.get("decoder_attention_mask")
        columns = 1 if ids is None else ids.shape[1]
        is_whole = columns > cached and mask is not None and mask.shape[1] == columns
        if self.config.is_encoder_decoder and cached and not is_whole:
            raise ValueError(
                f"progress cannot be counted from {columns} later decoder ids of a cached sequence; pass all its "
                "decoder_input_ids, with a decoder_attention_mask of the same shape"
            )

    def _plan(self, kwargs: dict, target: Target, thoughts: Thoughts | None, table: UnitTable) -> None:
        """Complete the arguments of `generate` for a length-controlled model: length, thoughts and guidance."""
        kwargs["length"] = target.length
        if self.config.is_encoder_decoder:
            kwargs["prefill_chunk_size"] = None  # a decoder's prompt is short, and progress needs all of it
        if thoughts is not None:
            prompts = self._rows(kwargs["inputs"], kwargs)
            closed = torch.zeros(1) if prompts is None else thoughts.closed(prompts.to(table.weights.device))
            kwargs["prompt"] = replace(kwargs["prompt"], thoughts=thoughts, closed=closed)
        config = kwargs.get("generation_config") or self.generation_config
        scale = kwargs.get("guidance_scale", getattr(config, "guidance_scale", None))
        if scale not in (None, 1):
            self._guide(kwargs, scale, len(target.length))

    def _guide(self, kwargs: dict, scale: float, batch_size: int) -> None:
        """
        Add the logits processor of the length guidance, which needs the encoder's outputs. Raise `ValueError` if the
        model needs a length in each call, if there is a negative prompt, or if the ids only continue a cache.
        """
        if not self.config.length_optional or kwargs.get("negative_prompt_ids") is not None:
            raise ValueError(
                f"guidance_scale={scale} compares the model with itself without a length, so it needs a model with "
                "length_optional=True, and no negative prompt; leave it out"
            )
        span = kwargs.get("prompt")
        if span is not None and span.start:
            raise ValueError(
                f"guidance_scale={scale} reads the whole prompt without a length, so it needs all its ids, got the "
                f"last {span.columns} of {span.start + span.columns}; pass them all, with the cache"
            )
        kwargs["guidance_scale"] = None  # the base class would call the model without length and progress
        if self.config.is_encoder_decoder and kwargs.get("encoder_outputs") is None:
            ids = kwargs.pop("inputs")
            texts = kwargs if ids is None else {**kwargs, "input_ids": ids}
            kwargs |= encode_once(self, texts, torch.arange(batch_size))
            kwargs.pop("inputs_embeds", None)
        elif not self.config.is_encoder_decoder and kwargs.get("attention_mask") is None:
            kwargs["attention_mask"] = mask_of_padding(self, kwargs)
        guide = LengthGuidanceLogitsProcessor(self, float(scale), batch_size, kwargs)
        kwargs["logits_processor"] = [guide, *(kwargs.get("logits_processor") or [])]

    def _check_thinking(self, length_from, budget, without: bool) -> None:
        """Raise `ValueError` if options for thoughts have no effect: for an encoder-decoder, or `without` a length."""
        given = f"length_from={length_from!r}" if budget is None else f"thinking_budget={budget}"
        if self.config.is_encoder_decoder:
            raise ValueError(f"{given} is for causal models, got {type(self).__name__}; leave it out")
        if without:
            raise ValueError(f"{given} needs a length, got none; pass length=75, or leave it out")

    def save_pretrained(self, *args, **kwargs):
        """Save the model, without the default `max_length` that `Seq2SeqTrainer` stores."""
        default = GenerationConfig._get_default_generation_params()["max_length"]
        if self.generation_config.max_length == default:
            self.generation_config.max_length = None
        if vars(self.generation_config).keys() & {*OPTIONS}:  # otherwise loading drops these options
            self.generation_config._from_model_config = False
        return super().save_pretrained(*args, **kwargs)

    def _one_text(self, inputs, kwargs: dict, many: int) -> tuple:
        """
        Return the inputs and keyword arguments for `many` outputs of one text. Run the encoder here, once, if it does
        not read the length.
        """
        rows = torch.zeros(many, dtype=torch.long)  # an index on the CPU works for tensors on any device
        tensors = {name: x for name, x in kwargs.items() if isinstance(x, torch.Tensor) and x.dim() > 1 == len(x)}
        kwargs |= {name: x[rows] for name, x in tensors.items()}
        if (cache := kwargs.get(CACHE)) is not None:  # of one row
            kwargs[CACHE] = copy.deepcopy(cache)
            kwargs[CACHE].batch_repeat_interleave(many)
        given = kwargs.get("encoder_outputs")
        if given is not None:
            kwargs["encoder_outputs"] = rows_of(given, rows)
        ids = kwargs.pop("input_ids", None) if inputs is None else inputs[rows]
        reads_lengths = getattr(self.config, "encoder_length_embedding", False)
        if ids is None or given is not None or reads_lengths or not self.config.is_encoder_decoder:
            return ids, kwargs
        return None, kwargs | encode_once(self, {**tensors, "input_ids": ids[:1]}, rows)

    def _rows(self, inputs, kwargs) -> torch.Tensor | None:
        """Return the first tensor argument that has a row for each example; `None` if there is no such argument."""
        names = ("input_ids", "inputs_embeds", "decoder_input_ids", "encoder_outputs")
        given = next((v for v in (inputs, *map(kwargs.get, names)) if v is not None), None)
        return given if given is None or isinstance(given, torch.Tensor) else given[0]  # `encoder_outputs` is a tuple

    @property
    def _positions(self) -> int | None:
        """Return the number of decoder positions; `None` if there is no limit."""
        positions = getattr(self.config, "max_position_embeddings", None)  # T5 has none
        return positions if self.config.absolute_positions else None

    def _prepare_generation_config(self, generation_config, **kwargs):
        """Keep the arguments in `_OURS`: the base method drops those that are fields of a generation configuration."""
        ours = {name: kwargs.pop(name) for name in _OURS if name in kwargs}
        config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        return config, model_kwargs | ours

    def _get_candidate_generator(self, *args, model_kwargs, assistant_model=None, **kwargs):
        """
        Build the candidate generator of assisted generation. Pass the length to the draft model (`assistant_model`)
        only if this model has length control. The output keeps the constraint with any draft model.
        """
        if assistant_model is not None:
            ours = {name: value for name, value in model_kwargs.items() if name in _OURS}
            model_kwargs = {name: value for name, value in model_kwargs.items() if name not in _OURS}
            if getattr(assistant_model.config, "length_controlled", False):
                names = {self.length_name: assistant_model.length_name}
                model_kwargs |= {names.get(name, name): value for name, value in ours.items()}
        return super()._get_candidate_generator(
            *args, model_kwargs=model_kwargs, assistant_model=assistant_model, **kwargs
        )
