"""The method `generate` with a length."""

import copy
import inspect
import logging
import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from transformers import PreTrainedConfig
from transformers.generation import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from .cache import CACHE, takes_cache
from .length_constraint import LengthConstraintLogitsProcessor
from .length_guidance import LengthGuidanceLogitsProcessor
from .length_pair import PairConstraintLogitsProcessor, check_pair, other_limit, units_apart
from .length_units import COST, UnitTable
from .lengths import OPTIONS, Target, as_target, defaults_of, refuse_length, refuse_none
from .thoughts import ThinkingBudgetLogitsProcessor, Thoughts, thoughts_of


logger = logging.getLogger(__name__)

_SAID: set = set()  # keys of the logged warnings
FROM_CONFIG: Any = object()  # None says "no length" and "no constraint"
_OURS = ("length", "decoder_length", "progress", "prompt")
_PER_ROW = ("input_ids", "attention_mask", "inputs_embeds", "decoder_input_ids", "decoder_attention_mask")


@dataclass(frozen=True)
class PromptSpan:
    """The place of a causal model's prompt in a call of `generate`, and where its thoughts end."""

    start: int  # columns of a cache that are not among the ids
    columns: int  # columns of the ids before the output
    thoughts: Thoughts | None = None
    closed: torch.Tensor | None = None  # (batch_size,) whether each prompt closes the thoughts


def prompt_of(model, kwargs: dict) -> tuple[int, int]:
    """Return the number of positions before the output, and how many of them are a causal model's prompt."""
    if model.config.is_encoder_decoder:
        prompt = kwargs.get("decoder_input_ids")
        return (1 if prompt is None else prompt.shape[1]), 0
    given = [kwargs.get(name) for name in ("inputs", "input_ids")]
    length = next((prompt.shape[1] for prompt in given if prompt is not None), 1)
    return length, length


def eos_of(model) -> list[int]:
    """Return the EOS ids, which end an output: the generation configuration's, else the model's."""
    eos = model.generation_config.eos_token_id
    eos = model.config.eos_token_id if eos is None else eos
    # This is a tuple of classes, because the compiler of torch 2.6 does not understand `list | tuple`.
    return [] if eos is None else list(eos) if isinstance(eos, (list, tuple)) else [int(eos)]


def token_limit(
    table: UnitTable, target: Target, prompt_length: int, positions: int | None, apart: int = 0
) -> torch.Tensor:
    """
    Return the token limit of each output in decoder positions, `(batch_size,)`: room for twice its target, within the
    model's positions, which also hold a causal model's prompt (`apart`). Raises `ValueError` if these are too few.
    """
    # A word is many tokens in a character decoder; a character is up to four tokens in byte-level BPE.
    per_unit: float = {"token": 2, "byte": 2, "word": 24, "zh_word": 24}.get(table.unit, 8 if table.states > 3 else 2)
    if table.unit in (COST, "arial"):  # a cost needs the average units of an entry
        written = table.weights[min(1, table.states - 1)].clamp(min=0).float()
        per_unit = 8 / float(written.mean())
    room = [math.ceil(per_unit * high) for high in target.high.tolist()]
    limit = target.high.new_tensor(room) + prompt_length + 32  # (B,)
    if positions is None or positions < 1:  # XLNet has -1
        return limit
    length = int((target.low * (target.length > 0)).max())  # a planned length of 0 is no plan, so it needs no room
    needed = -(-length // max(int(table.weights.max()), 1)) + 1  # EOS is predicted one position after the last token
    needed += max(apart - 1, 0)
    if needed > positions:
        way = f"with a prompt shorter than {apart} tokens" if apart else "use another model"
        need = f"length={length} needs at least {needed} decoder positions, the model has {positions}"
        raise ValueError(f"{need}; ask for less, or {way}")
    return limit.clamp(max=positions + 1)  # the decoder never reads the last token


class _OwnLimits(StoppingCriteria):
    """Ends each row at its own limit, so that its output in a batch is the same as alone."""

    def __init__(self, limits: torch.Tensor):
        self.limits = limits  # (B,)

    def __call__(self, input_ids, scores, **kwargs):
        """Return whether each row has ended, `(rows,)`, for ids `(rows, sequence_length)`."""
        return self.limits.repeat_interleave(len(input_ids) // len(self.limits)) <= input_ids.shape[1]


class _ForcedEnds(LogitsProcessor):
    """Forces `forced_eos_token_id` in the last position of each row's own limit."""

    def __init__(self, limits: torch.Tensor, eos_token_id: int | list[int]):
        self.limits, self.eos_token_id, self.first = limits, eos_token_id, int(limits.min())

    def __call__(self, input_ids, scores):
        """Return the scores `(rows, vocab_size)` with forced ends, for ids `(rows, sequence_length)`."""
        if input_ids.shape[1] < self.first - 1:
            return scores
        ends = self.limits.repeat_interleave(len(scores) // len(self.limits)) <= input_ids.shape[1] + 1  # (rows,)
        only_eos = torch.full_like(scores, -math.inf)
        only_eos[:, self.eos_token_id] = 0.0
        return torch.where(ends.unsqueeze(1), only_eos, scores)


class _Options:
    """The options of one call: its arguments, then its generation configuration, then the model's."""

    def __init__(self, model, arguments: dict[str, Any]):
        self.arguments, self.defaults = arguments, model.generation_config
        self.config = arguments.get("generation_config")

    def given(self, name: str) -> Any:
        """Return an option of the call, or `None`; `generate` reads missing options from the checkpoint."""
        value = self.arguments.get(name)
        return getattr(self.config, name, None) if value is None else value

    def in_force(self, name: str) -> Any:
        """Return an option of the call, or the checkpoint's."""
        value = self.given(name)
        return getattr(self.defaults, name) if value is None else value


def rows_of_each(model, arguments: dict[str, Any]) -> int | None:
    """Return how many rows a call makes of each prompt; `None` if it has a cache or a search of its own."""
    options = _Options(model, arguments)
    own = ("custom_generate", "assistant_model", CACHE)
    set_by = ("prompt_lookup_num_tokens", "cache_implementation", "prefill_chunk_size")
    if any(arguments.get(name) is not None for name in own) or any(map(options.in_force, set_by)):
        return None
    if options.in_force("use_cache") is False:
        return None
    return max(options.in_force(name) or 1 for name in ("num_beams", "num_return_sequences"))


def generate_within(
    generate,
    model,
    table: UnitTable,
    target: Target,
    constraint: str | None,
    arguments: dict,
    *,
    positions: int | None,
    thoughts: Thoughts | None = None,
):
    """
    Call `generate` within a length: with a token limit, the constraint, and a warning for missed exact lengths.
    `generate` is a method of `model` (length-controlled or plain) or of its parent class.

    The `table` counts the model's vocabulary in the unit of the `target`. The call's own `arguments` override all
    others. `positions` is the number of decoder positions, `None` for no limit; `thoughts` do not count. Raises
    `ValueError` for a length that does not fit the positions, or an exact length beyond the call's own limit.
    """
    kwargs = dict(arguments)
    options = _Options(model, kwargs)
    before, prompt = prompt_of(model, kwargs)
    # We need this limit even if the call sets its own, because it raises for a length that the model cannot hold.
    room = 0 if thoughts is None else thoughts.room
    own = token_limit(table, target, before + room, positions, prompt)  # (B,)
    processors = list(kwargs.pop("logits_processor", None) or [])
    eos = options.in_force("eos_token_id")
    if eos is None:
        eos = kwargs["eos_token_id"] = model.config.eos_token_id
    limit = _call_limit(options, before)
    if limit is None:  # the model's own limit does not fit this length
        kwargs |= {"max_length": int(own.max()), "max_new_tokens": None}
        if constraint is None and bool((own < own.max()).any()):
            criteria = [*(kwargs.get("stopping_criteria") or []), _OwnLimits(own)]
            kwargs["stopping_criteria"] = StoppingCriteriaList(criteria)
            forced = options.in_force("forced_eos_token_id")
            processors += [] if forced is None else [_ForcedEnds(own, forced)]
    if options.given("min_new_tokens") is None:  # the checkpoint's minimum does not fit this length
        kwargs |= {"min_new_tokens": None, "min_length": options.given("min_length") or 0}
    if constraint is not None:
        start = 0 if prompt else 1 + (options.in_force("forced_bos_token_id") is not None)
        start += 0 if thoughts is None or thoughts.budget is None else room
        positional = {"max_length": own if limit is None else limit, "prompt_length": prompt, "start_length": start}
        processors.append(_constraint_of(table, target, constraint, eos, thoughts, positional))
    if thoughts is not None and target.other is not None:
        raise ValueError(f"length_from={thoughts!r} goes with a length in one unit, got two; leave one of them out")
    if thoughts is not None and thoughts.budget is not None:
        processors.append(ThinkingBudgetLogitsProcessor(thoughts, prompt))
    outputs = generate(**kwargs, logits_processor=LogitsProcessorList(processors))
    ids = outputs if isinstance(outputs, torch.Tensor) else outputs.sequences
    produced = table.count(ids[:, prompt:]) if thoughts is None else _answered(thoughts, ids, prompt, target)
    warn_of_cuts(ids, produced, target, _longest(options, before), model.config.pad_token_id)
    if constraint in ("exact", "min"):
        _warn_of_misses(produced, target, table.unit)
    return outputs


def _call_limit(options: _Options, before: int) -> int | None:
    """Return the call's own limit in positions, behind `before` positions; `None` if it sets none."""
    new = options.given("max_new_tokens")
    return options.given("max_length") if new is None else before + new


def _longest(options: _Options, before: int) -> float:
    """Return the number of positions at which `generate` cuts an output."""
    arguments, config = options.arguments, options.config
    new = arguments.get("max_new_tokens")
    most = arguments.get("max_length") if new is None else before + new
    return most or getattr(config, "max_length", None) or getattr(config, "max_new_tokens", None) or math.inf


def _constraint_of(
    table: UnitTable, target: Target, constraint: str, eos, thoughts: Thoughts | None, positional: dict[str, Any]
) -> LogitsProcessor:
    """Build the logits processor of a target: for one unit, or for two."""
    processor = LengthConstraintLogitsProcessor(
        table, target, constraint, eos_token_id=eos, length_from=thoughts, **positional
    )
    return processor if target.other is None else PairConstraintLogitsProcessor(processor, *target.other)


def _answered(thoughts: Thoughts, ids: torch.Tensor, prompt: int, target: Target) -> torch.Tensor:
    """Count the units of each answer, `(batch_size * n,)`; warn of missing answers, which count as their target."""
    count, state = thoughts.count_and_state(ids.to(thoughts.table.weights.device), prompt)
    begun = state >= 0
    if not bool(begun.all()):
        logger.warning(
            "%d of %d outputs have no %r, so nothing kept their length: rows %s; pass thinking_budget=, or leave "
            "length_from out where the model does not think",
            *(int((~begun).sum()), len(begun), thoughts.marker.marker, (~begun).nonzero().squeeze(1)[:5].tolist()),
        )
    return torch.where(begun, count, target.high.repeat_interleave(len(ids) // len(target.high)).to(count))


def generate_for(model, table: UnitTable, target: Target | None, constraint: str | None, arguments: dict):
    """
    Call `model.generate` for a target, with any model, length-controlled or not; without a target the call does not
    change. The `table` counts the model's vocabulary in the unit of the `target`. `length_from` among the `arguments`
    is a `Thoughts`.
    """
    if getattr(model.config, "length_controlled", False):
        return model.generate(**arguments, length=target, length_constraint=constraint)
    if hasattr(model, "unit_table"):  # a model of this package
        arguments = {**arguments, "length_constraint": None}
    if target is None:
        if "length_from" in arguments:
            raise ValueError(f"length_from={arguments['length_from']!r} goes with a length, got none; pass length=75")
        return model.generate(**arguments)
    positions, thoughts = getattr(model.config, "max_position_embeddings", None), arguments.get("length_from")
    arguments = {name: value for name, value in arguments.items() if name != "length_from"}
    return generate_within(
        model.generate, model, table, target, constraint, arguments, positions=positions, thoughts=thoughts
    )


def defaults_for(model, generation_config=None) -> dict[str, Any]:
    """
    Return the default `lengths.OPTIONS` of a call, see `defaults_of`. Warns once if the generation configuration
    overrides options of the model's configuration.
    """
    found = defaults_of(model.config, model.generation_config, generation_config)
    for name in OPTIONS[:2]:
        own, other = getattr(model.config, name, None), getattr(model.generation_config, name, None)
        if own is not None and other is not None and own != other:
            warn_once(
                (name, own, str(other)),
                "generation_config.%s=%s holds, not config.%s=%s (of from_pretrained too); set it to None, or pass %s",
                *(name, other, name, own, name),
            )
    return found


def warn_once(key: Any, message: str, *values) -> None:
    """Warn once: log a warning unless its key was logged before."""
    if key not in _SAID:
        _SAID.add(key)
        logger.warning(message, *values)


def warn_of_range(length: torch.Tensor, trained: dict | None, unit: str) -> None:
    """Warn, once for a model, of lengths `(batch_size,)` far from those it was trained on; see `trained_lengths`."""
    length = length[length > 0]  # 0 means no length
    if trained and len(length) and bool(((length < 0.9 * trained["1%"]) | (length > 1.1 * trained["99%"])).any()):
        warn_once(
            (unit, *trained.values()),
            "a length of %d to %d %ss was requested; the model was trained on %d to %d (98 %% of its targets, the "
            "longest %d), outside of which its texts are poor",
            *(int(length.min()), int(length.max()), unit, trained["1%"], trained["99%"], trained["max"]),
        )


def warn_of_cuts(ids: torch.Tensor, produced: torch.Tensor, target: Target, limit: float, pad: int | None) -> None:
    """Warn, once for a limit, of outputs `(batch_size * n, positions)` that a limit of tokens cut."""
    low = target.low.repeat_interleave(len(ids) // len(target.low)).to(produced.device)
    cut = (produced < low) & (ids[:, -1] != (-1 if pad is None else pad))
    if ids.shape[1] >= limit and bool(cut.any()):
        warn_once(
            ("cut", limit),
            "%d of %d outputs were cut at %d tokens, before they had their length; leave out max_length, "
            "max_new_tokens and generation_max_length: the limit is made from the length",
            *(int(cut.sum()), len(ids), limit),
        )


def _warn_of_misses(produced: torch.Tensor, target: Target, unit: str) -> None:
    """Warn of misses: log the outputs, `(batch_size * n,)`, whose lengths are not within their targets."""
    copies = len(produced) // len(target.low)
    low, high = (end.repeat_interleave(copies).to(produced.device) for end in (target.low, target.high))
    missed = ((produced < low) | (produced > high)).nonzero().squeeze(1)
    if len(missed):
        first = missed[:5]
        ends = zip(low[first].tolist(), high[first].tolist(), strict=True)
        logger.warning(
            "%d of %d outputs missed their exact length, because no entries fit or positions ran out: "
            "rows %s have %s %ss, not %s",
            *(len(missed), len(produced), first.tolist(), produced[first].tolist(), unit),
            [least if least == most else f"{least} to {most}" for least, most in ends],
        )


def encode_once(model, inputs, rows: torch.Tensor) -> dict:
    """
    Encode each text once, `input_ids (texts, source_length)`, and copy its states to every row of the text; `rows
    (batch_size,)` has the text of each row. Returns `encoder_outputs` and `attention_mask` for `generate`.
    """
    mask = inputs.get("attention_mask")
    mask = torch.ones_like(inputs["input_ids"]) if mask is None else mask
    encoded = model.get_encoder()(inputs["input_ids"], attention_mask=mask)
    return {"encoder_outputs": _rows_of(encoded, rows), "attention_mask": mask[rows]}


def _rows_of(encoded, rows: torch.Tensor) -> ModelOutput:
    """Return the rows of an encoder's outputs: the outputs of each text, in the order of `rows` `(batch_size,)`."""
    if not isinstance(encoded, ModelOutput):
        return BaseModelOutput(last_hidden_state=encoded[0][rows])
    return type(encoded)(**{name: x[rows] for name, x in encoded.items() if isinstance(x, torch.Tensor)})


@dataclass(frozen=True)
class Resolved:
    """The length options of a call of `generate`, after its defaults."""

    # "stock" is a call of the base class, "none" one without a length of a model that reads lengths
    mode: Literal["stock", "none", "length"]
    length: int | list[int] | torch.Tensor | Target | None = None
    other: tuple[str, Any] | None = None  # the limit in a second unit, see `units_apart`
    constraint: str | None = None
    tolerance: int | float | tuple | list | None = None


def resolve(config, defaults: dict[str, Any], unit: str, length, constraint, tolerance) -> Resolved:
    """
    Resolve the length options of a call of `generate`; needs no model.

    Args:
        config (`PreTrainedConfig`): The model's configuration: `length_controlled` and `length_optional`.
        defaults (`dict`): The defaults of the options, see `defaults_for`.
        unit (`str`): The model's unit.
        length, constraint, tolerance: The options of the call, `FROM_CONFIG` where it has none.

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
        defaults = dict.fromkeys(defaults)  # without a length its options have no effect
    length, other = units_apart(defaults["length"] if length is FROM_CONFIG else length, unit)
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


def _number_of(length: Any) -> int:
    """Return the number of lengths in a tensor, a list or a single length."""
    return length.numel() if isinstance(length, torch.Tensor) else len(length) if isinstance(length, list) else 1


class LengthControlledGeneration:
    """`generate` with a length, for every model of this package."""

    config: PreTrainedConfig
    device: Any  # a property of most subclasses, and so is the table
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
        Generate outputs of a length: `GenerationMixin.generate` with more arguments.

        Unless the call sets `max_length` or `max_new_tokens` (itself or in `generation_config`), the limit on new
        tokens comes from the length; it is generous, so that it cuts no output. The length also overrides a
        `min_length` of the checkpoint. This method does not choose among candidates; the pipeline does.

        Args:
            length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`, *optional*): Requested units for
                the whole batch or for each example. `None` switches a default off: a model with `length_optional` is
                then a plain model, also with 0 and without a default. For a single text, each of several lengths gives
                an output, and the encoder runs once. A dictionary of two units, `{"character": 30, "word": 6}`, has a
                length in the model's unit, and a limit in another unit that holds as well; it needs the argument
                `tokenizer`, and its constraint is `"max"` by default.
            length_constraint (`str`, *optional*): `"max"`, never longer than `length`; `"exact"`, this length
                wherever the vocabulary allows it, with a warning where it did not; `"min"`, never shorter, and at most
                four times as long; `None`, unconstrained, the default without a length. See
                `LengthConstraintLogitsProcessor`.
            length_tolerance (`int`, `float`, `tuple` or `list`, *optional*): With `"exact"`, a window: the model plans
                for `length`, and an output may end this far from it and nowhere else. Units (4), a share of the length
                (0.1), a pair of these below and above, `(0, 4)`, or a list with one of these for each example. A
                share is rounded down, to at least one unit; 0 means no window. It has a default only beside the
                default constraint.
            length_from (`str` or `list[int]`, *optional*): For a causal model that thinks, the marker that ends its
                thoughts: `"</think>"`, or ids. Only the answer behind it has the length, without white space at its
                start; before it the model generates as without a length. A marker in the prompt counts if only white
                space follows it. Needs `tokenizer=`. If it never comes, nothing keeps the length, and a warning says
                so.
            thinking_budget (`int`, *optional*): New tokens after which the marker is added, if it has not come.
            guidance_scale (`float`, *optional*): For a model with `length_optional`, guidance towards the length, see
                `LengthGuidanceLogitsProcessor`; 1.5 to 3 are of use. Each step then runs the model twice.

        Defaults come from the call's `generation_config`, then the model's, then `config`.

        Raises:
            `TypeError`, `ValueError`: for a length that is missing, not an integer, below 1, of another size than the
                batch or more than the decoder's positions can hold; for an unknown constraint, or one that
                `max_new_tokens` leaves no room for; for a tolerance without `"exact"`.
        """
        generate = super().generate  # type: ignore[misc]
        controlled = self.config.length_controlled
        # These are the positional arguments behind `inputs`, by their names in the base method.
        kwargs |= dict(zip(list(inspect.signature(generate).parameters)[1:], args, strict=False))
        kwargs |= {} if cache is None else {CACHE: cache}
        own = defaults_for(self, kwargs.get("generation_config"))
        asked = resolve(self.config, own, self.unit_table.unit, length, length_constraint, length_tolerance)
        self._check_thinking(length_from, thinking_budget, asked.mode != "length")
        if asked.mode == "stock":
            if asked.length is not None:
                refuse_length()
            return generate(inputs, **kwargs)
        rows = self._rows(inputs, kwargs)
        batch_size = 1 if rows is None else len(rows)  # GenerationMixin also uses 1 without any input
        if asked.mode == "none":
            none = torch.zeros(batch_size, dtype=torch.long, device=self.device)
            return generate(inputs, **kwargs, length=none)
        requested = refuse_none() if asked.length is None else asked.length
        table = self.unit_table  # not `self.device`, because the first parameter may be offloaded
        if isinstance(requested, Target) and requested.table is not None:
            table = requested.table
        if rows is not None and rows.device != table.weights.device:  # a model over several devices
            table = copy.deepcopy(table).to(rows.device)
        many = _number_of(requested)
        if batch_size == 1 and many > 1:
            inputs, kwargs = self._one_text(inputs, kwargs, many)
            batch_size = many
        target = as_target(requested, asked.constraint, asked.tolerance, batch_size, table.weights.device)
        if asked.other is not None:
            target = replace(target, other=other_limit(asked.other, kwargs.get("tokenizer"), table, batch_size))
        warn_of_range(target.length, getattr(self.config, "trained_lengths", None), self.unit_table.unit)
        thoughts = thoughts_of(length_from, kwargs.get("tokenizer"), table, thinking_budget)
        kwargs["inputs"] = inputs
        if controlled:
            guidance = self._guidance(kwargs)
            kwargs |= self._planned(target, thoughts, table, kwargs)
            if guidance != 1:
                self._guide(kwargs, guidance, batch_size)
        return generate_within(
            generate, self, table, target, asked.constraint, kwargs, positions=self._positions, thoughts=thoughts
        )

    def _planned(self, target: Target, thoughts: Thoughts | None, table: UnitTable, kwargs: dict) -> dict[str, Any]:
        """Return the arguments with which a length-controlled model plans for a target."""
        own: dict[str, Any] = {"length": target.length}
        if self.config.is_encoder_decoder:
            own["prefill_chunk_size"] = None  # a decoder's prompt is short, and progress needs all of it
        if thoughts is not None:
            prompts = self._rows(kwargs["inputs"], kwargs)
            closed = torch.zeros(1) if prompts is None else thoughts.closed(prompts.to(table.weights.device))
            own["prompt"] = replace(kwargs["prompt"], thoughts=thoughts, closed=closed)
        return own

    def _guide(self, kwargs: dict, scale: float, batch_size: int) -> None:
        """Add the guidance towards the length to the arguments; a model with an encoder runs the encoder once."""
        if self.config.is_encoder_decoder and kwargs.get("encoder_outputs") is None:
            texts: dict[str, Any] = {
                "input_ids": kwargs.pop("inputs"),
                "attention_mask": kwargs.pop("attention_mask", None),
            }
            if texts["input_ids"] is None:
                texts["input_ids"] = kwargs.pop("input_ids")
            kwargs |= encode_once(self, texts, torch.arange(batch_size))
        guide = LengthGuidanceLogitsProcessor(self, scale, batch_size, kwargs)
        kwargs["logits_processor"] = [guide, *(kwargs.get("logits_processor") or [])]

    def _check_thinking(self, length_from, budget, without: bool) -> None:
        """Raise `ValueError` for thinking options that have no effect."""
        if length_from is None and budget is None:
            return
        given = f"length_from={length_from!r}" if budget is None else f"thinking_budget={budget}"
        if self.config.is_encoder_decoder:
            raise ValueError(f"{given} is for causal models, got {type(self).__name__}; leave it out")
        if without:
            raise ValueError(f"{given} goes with a length, got none; pass length=75, or leave it out")

    def _guidance(self, kwargs: dict) -> float:
        """Return the scale of the length guidance. Raises `ValueError` where there is no model without a length."""
        config = kwargs.get("generation_config") or self.generation_config
        scale = kwargs.get("guidance_scale", getattr(config, "guidance_scale", None))
        if scale in (None, 1):
            return 1.0
        if not self.config.length_optional or kwargs.get("negative_prompt_ids") is not None:
            raise ValueError(
                f"guidance_scale={scale} compares the model with itself without a length, so it needs a model with "
                "length_optional=True, and no negative prompt; leave it out"
            )
        kwargs["guidance_scale"] = None  # the base class would call the model without length and progress
        return float(scale)

    def save_pretrained(self, *args, **kwargs):
        """Save the model, without the default `max_length` that `Seq2SeqTrainer` stores."""
        default = GenerationConfig._get_default_generation_params()["max_length"]
        if self.generation_config.max_length == default:
            self.generation_config.max_length = None
        if vars(self.generation_config).keys() & {*OPTIONS}:  # otherwise loading drops them
            self.generation_config._from_model_config = False
        return super().save_pretrained(*args, **kwargs)

    def _one_text(self, inputs, kwargs: dict, many: int) -> tuple:
        """Return the arguments of `generate` for several outputs of one text."""
        rows = torch.zeros(many, dtype=torch.long)  # an index on the CPU goes with tensors of any device
        kwargs |= {name: kwargs[name][rows] for name in _PER_ROW if kwargs.get(name) is not None}
        given = kwargs.get("encoder_outputs")
        if given is not None:
            kwargs["encoder_outputs"] = _rows_of(given, rows)
        ids = kwargs.pop("input_ids", None) if inputs is None else inputs[rows]
        reads_lengths = getattr(self.config, "encoder_length_embedding", False)
        if ids is None or given is not None or reads_lengths or not self.config.is_encoder_decoder:
            return ids, kwargs
        mask = kwargs.pop("attention_mask", None)
        first = {"input_ids": ids[:1], "attention_mask": None if mask is None else mask[:1]}
        return None, kwargs | encode_once(self, first, rows)

    def _rows(self, inputs, kwargs) -> torch.Tensor | None:
        """Return the first argument that has a row for each example."""
        names = ("input_ids", "inputs_embeds", "decoder_input_ids", "encoder_outputs")
        given = next((v for v in (inputs, *map(kwargs.get, names)) if v is not None), None)
        return given if given is None or isinstance(given, torch.Tensor) else given[0]  # `encoder_outputs` is a tuple

    @property
    def _positions(self) -> int | None:
        """Number of decoder positions; `None` for no limit."""
        positions = getattr(self.config, "max_position_embeddings", None)  # T5 has none
        return positions if self.config.absolute_positions else None

    def _prepare_generation_config(self, generation_config, **kwargs):
        """Call the base class's method, but keep `length`, which it would remove if a configuration has one."""
        ours = {name: kwargs.pop(name) for name in _OURS if name in kwargs}
        config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        return config, model_kwargs | ours

    def _get_candidate_generator(self, *args, model_kwargs, assistant_model=None, **kwargs):
        """Return the candidates of assisted generation; a plain draft model gets no length; the constraint holds."""
        draft = getattr(assistant_model, "config", None)
        if assistant_model is not None and not getattr(draft, "length_controlled", False):
            model_kwargs = {name: value for name, value in model_kwargs.items() if name not in _OURS}
        return super()._get_candidate_generator(
            *args, model_kwargs=model_kwargs, assistant_model=assistant_model, **kwargs
        )
