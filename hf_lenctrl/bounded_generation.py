"""Generation with a requested length, for any model: a token limit, a length constraint, and warnings."""

import inspect
import logging
import math
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from .cache import CACHE
from .length_constraint import LengthConstraintLogitsProcessor
from .length_pair import PairConstraintLogitsProcessor
from .length_units import COST, UnitTable
from .lengths import Target, plural
from .thoughts import ThinkingBudgetLogitsProcessor, Thoughts


logger = logging.getLogger(__name__)

_SAID: set = set()  # keys of the logged warnings
_NATURAL_TOKENS = 256  # most new tokens of a text without a length, as in the pipelines of transformers


def prompt_of(model, kwargs: dict) -> tuple[int, int]:
    """
    Return two numbers for the call `model.generate(**kwargs)`: the number of positions before the output, and the
    number of tokens in the prompt. For a causal model, both are the length of the prompt. For an encoder-decoder, the
    first is the number of decoder positions before the output, and the second is 0.
    """
    if model.config.is_encoder_decoder:
        prompt = kwargs.get("decoder_input_ids")
        return (1 if prompt is None else prompt.shape[1]), 0
    given = [kwargs.get(name) for name in ("inputs", "input_ids")]
    length = next((prompt.shape[1] for prompt in given if prompt is not None), 1)
    return length, length


def eos_of(model) -> list[int]:
    """Return the list of EOS ids in the generation configuration, or else in the model's configuration."""
    eos = model.generation_config.eos_token_id
    eos = model.config.eos_token_id if eos is None else eos
    # The compiler of torch 2.6 does not understand `isinstance(eos, list | tuple)`.
    return [] if eos is None else list(eos) if isinstance(eos, (list, tuple)) else [int(eos)]


def token_limit(
    table: UnitTable, target: Target, prompt_length: int, positions: int | None, apart: int = 0
) -> torch.Tensor:
    """
    Return the maximum number of positions of each output, `(batch_size,)`. The limit includes the `prompt_length`
    positions before the output, and leaves room for about twice the target length.

    `positions` is the number of decoder positions; `None` means that there is no maximum. The limit is at most
    `positions + 1`, because the decoder never reads the last token. `apart` is the number of tokens in a causal
    model's prompt; 0 for an encoder-decoder. `prompt_length` already includes these tokens, so `apart` does not change
    the limit. Raise `ValueError` if the `apart` tokens and the lowest allowed length together need more than
    `positions`.
    """
    # A word is many tokens in a character decoder; a character is up to four tokens in byte-level BPE.
    per_unit: float = {"token": 2, "byte": 2, "word": 24, "zh_word": 24}.get(table.unit, 8 if table.states > 3 else 2)
    if table.unit in (COST, "arial"):  # for a cost, use the average units of an entry
        written = table.weights[min(1, table.states - 1)].clamp(min=0).float()
        per_unit = 8 / float(written.mean())
    room = [math.ceil(per_unit * high) for high in target.high.tolist()]
    limit = target.high.new_tensor(room) + prompt_length + 32  # (B,)
    if positions is None or positions < 1:  # XLNet has -1
        return limit
    lows = target.low * (target.length > 0)  # a planned length of 0 means no length
    length = int(lows.max())
    needed = -(-length // max(int(table.weights.max()), 1)) + 1  # EOS is predicted one position after the last token
    needed += max(apart - 1, 0)
    if needed > positions:
        way = f"with a prompt shorter than {apart} tokens" if apart else "use another model"
        asked = f"length={length}" if int(target.high[lows.argmax()]) == length else f"a length of at least {length}"
        need = f"{asked} needs at least {needed} decoder positions, the model has {positions}"
        raise ValueError(f"{need}; ask for less, or {way}")
    return limit.clamp(max=positions + 1)  # the decoder never reads the last token


class _OwnLimits(StoppingCriteria):
    """Stop each row at the token limit of its example, so that an output does not depend on the rest of the batch."""

    def __init__(self, limits: torch.Tensor):
        self.limits = limits  # (B,)

    def __call__(self, input_ids, scores, **kwargs):
        return self.limits.repeat_interleave(len(input_ids) // len(self.limits)) <= input_ids.shape[1]


class _ForcedEnds(LogitsProcessor):
    """Force EOS at the last position of each row, which depends on the token limit of the row's example."""

    def __init__(self, limits: torch.Tensor, eos_token_id: int | list[int]):
        self.limits, self.eos_token_id, self.first = limits, eos_token_id, int(limits.min())

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] < self.first - 1:
            return scores
        ends = self.limits.repeat_interleave(len(scores) // len(self.limits)) <= input_ids.shape[1] + 1  # (rows,)
        only_eos = torch.full_like(scores, -math.inf)
        only_eos[:, self.eos_token_id] = 0.0
        return torch.where(ends.unsqueeze(1), only_eos, scores)


@dataclass
class _Options:
    """The options of a call of `generate`: its arguments, its `generation_config`, and the model's defaults."""

    arguments: dict[str, Any]
    defaults: GenerationConfig  # of the model

    def given(self, name: str) -> Any:
        """Return the value that the call sets as an argument or in `generation_config`; `None` if it sets none."""
        value = self.arguments.get(name)
        return getattr(self.arguments.get("generation_config"), name, None) if value is None else value

    def in_force(self, name: str) -> Any:
        """Return the value that the call sets, or else the model's default."""
        value = self.given(name)
        return getattr(self.defaults, name) if value is None else value


def rows_of_each(model, arguments: dict[str, Any]) -> int | None:
    """
    Return the number of rows that `model.generate(**arguments)` makes for each prompt, as beams or returned sequences.
    Return `None` if the call cannot use a cache from `read_once`. This is the case if the call passes a cache, sets
    `cache_implementation` or `prefill_chunk_size`, uses no cache, or uses assisted or custom generation.
    """
    options = _Options(arguments, model.generation_config)
    own = ("custom_generate", "assistant_model", CACHE)
    set_by = ("prompt_lookup_num_tokens", "cache_implementation", "prefill_chunk_size")
    if any(arguments.get(name) is not None for name in own) or any(map(options.in_force, set_by)):
        return None
    if options.in_force("use_cache") is False:
        return None
    return max(options.in_force(name) or 1 for name in ("num_beams", "num_return_sequences"))


def mask_of_padding(model, arguments: dict[str, Any]) -> torch.Tensor | None:
    """
    Return the attention mask `(batch_size, n)` that `model.generate(**arguments)` of a causal model infers from the
    padding in the prompt, or `None` if the prompt has no ids.
    """
    options = _Options(arguments, model.generation_config)
    ids = next((arguments[name] for name in ("inputs", "input_ids") if arguments.get(name) is not None), None)
    if ids is None:
        return None
    pad, eos = options.in_force("pad_token_id"), options.in_force("eos_token_id")
    # padding that is also an EOS cannot be told from the text
    known = pad is not None and (eos is None or pad not in torch.as_tensor(eos))
    return (ids != pad).long() if known else torch.ones_like(ids)


def check_stop_strings(model, arguments: dict[str, Any]) -> None:
    """
    Raise `ValueError` if the call `model.generate(**arguments)` has stop strings. Use this check if `custom_generate`
    is a function: transformers then does not pass on the tokenizer, although stop strings need it.
    """
    words = arguments.get("stop_strings", _Options(arguments, model.generation_config).in_force("stop_strings"))
    if words:
        raise ValueError(
            f"transformers gives a function as custom_generate no tokenizer for stop_strings={words!r}; set "
            f"stop_strings to None, and pass stopping_criteria=[StopStringCriteria(tokenizer, {words!r})]"
        )


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
    Call `generate` with a token limit that fits the target lengths, and with the constraint. Return its result. Warn
    if outputs are cut at the limit or miss their target lengths.

    Args:
        generate (`Callable`): The method `generate` of `model` or of its parent class.
        model (`PreTrainedModel`): A model with or without length control.
        table (`UnitTable`): The unit table that counts token ids, in the unit of `target`.
        target (`Target`): The target lengths.
        constraint (`str`, *optional*): `"max"`, `"exact"`, `"min"`, or `None` for no constraint.
        arguments (`dict`): Keyword arguments of `generate`. Limits such as `max_new_tokens` override the limits that
            this function would set.
        positions (`int`, *optional*): The number of decoder positions; `None` means that there is no maximum.
        thoughts (`Thoughts`, *optional*): If given, only the answer after the thoughts (reasoning text) counts.

    Raises:
        `ValueError`: if the length does not fit into the positions or a token limit in `arguments`, or if `thoughts`
            is combined with a length in two units.
    """
    kwargs = dict(arguments)
    options = _Options(kwargs, model.generation_config)
    before, prompt = prompt_of(model, kwargs)
    # This limit is always computed, because `token_limit` raises an error if the length needs too many positions.
    room = 0 if thoughts is None else thoughts.room
    own = token_limit(table, target, before + room, positions, prompt)  # (B,)
    processors = list(kwargs.pop("logits_processor", None) or [])
    eos = options.in_force("eos_token_id")
    if eos is None:
        eos = kwargs["eos_token_id"] = model.config.eos_token_id
    new = options.given("max_new_tokens")
    limit = options.given("max_length") if new is None else before + new  # the call's own limit, in positions
    if limit is None:  # the model's own limit does not fit this length
        kwargs |= {"max_length": int(own.max()), "max_new_tokens": None}
        if constraint is None and bool((own < own.max()).any()):
            criteria = [*(kwargs.get("stopping_criteria") or []), _OwnLimits(own)]
            kwargs["stopping_criteria"] = StoppingCriteriaList(criteria)
            forced = options.in_force("forced_eos_token_id")
            processors += [] if forced is None else [_ForcedEnds(own, forced)]
    elif new is None:  # transformers would prefer the model's own limit to the call's `max_length`
        kwargs["max_new_tokens"] = None
    if options.given("min_new_tokens") is None:  # the checkpoint's minimum does not fit this length
        kwargs |= {"min_new_tokens": None, "min_length": options.given("min_length") or 0}
    if constraint is not None:
        start = 0 if prompt else 1 + (options.in_force("forced_bos_token_id") is not None)
        start += 0 if thoughts is None or thoughts.budget is None else room
        process: LogitsProcessor = LengthConstraintLogitsProcessor(
            *(table, target, constraint),
            eos_token_id=eos,
            max_length=own if limit is None else limit,
            prompt_length=prompt,
            start_length=start,
            length_from=thoughts,
        )
        processors.append(process if target.other is None else PairConstraintLogitsProcessor(process, *target.other))
    if thoughts is not None and target.other is not None:
        raise ValueError(f"length_from={thoughts!r} needs a length in one unit, got two; leave one of them out")
    if thoughts is not None and thoughts.budget is not None:
        processors.append(ThinkingBudgetLogitsProcessor(thoughts, prompt))
    outputs = generate(**kwargs, logits_processor=LogitsProcessorList(processors))
    ids = outputs if isinstance(outputs, torch.Tensor) else outputs.sequences
    produced = table.count(ids[:, prompt:]) if thoughts is None else _answered(thoughts, ids, prompt, target)
    longest, pad = _longest(options, before), model.config.pad_token_id
    warn_of_cuts(ids, produced, target, longest, pad, is_given=limit is not None)
    if constraint in ("exact", "min"):
        _warn_of_misses(produced, target, table.unit, is_minimum=constraint == "min")
    return outputs


def _longest(options: _Options, before: int) -> float:
    """Return the position at which `generate` cuts outputs; infinity without a limit."""
    config = options.arguments.get("generation_config")
    configured = {} if config is None else config.to_dict()
    for name, start in (("max_new_tokens", before), ("max_length", 0)):  # transformers prefers `max_new_tokens`
        if most := options.arguments.get(name) or configured.get(name):
            return start + most
    return math.inf


def _answered(thoughts: Thoughts, ids: torch.Tensor, prompt: int, target: Target) -> torch.Tensor:
    """
    Return the number of units of each answer, `(batch_size * n,)` for `n` outputs of each example. An output without
    the end-of-thoughts marker gets a warning and its highest allowed length, so that no later check warns again.
    """
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
    Call `model.generate(**arguments)` with target lengths and a constraint, or without a length if `target` is `None`.
    The model may have length control or not.

    `table` counts the units of token ids, in the unit of `target`. `constraint` is `"max"`, `"exact"`, `"min"` or
    `None`. If `arguments` include `length_from`, its value is a `Thoughts` object. Raise `ValueError` if they include
    `length_from` but `target` is `None`.
    """
    positions = getattr(model.config, "max_position_embeddings", None)
    if target is None:
        arguments = _with_room(model, getattr(model, "_positions", positions), arguments)
    if getattr(model.config, "length_controlled", False):
        return model.generate(**arguments, length=target, length_constraint=constraint)
    if hasattr(model, "unit_table"):  # a model of this package
        arguments = {**arguments, "length_constraint": None}
    if target is None:
        if "length_from" in arguments:
            raise ValueError(f"length_from={arguments['length_from']!r} needs a length, got none; pass length=75")
        return model.generate(**arguments)
    thoughts = arguments.get("length_from")
    arguments = {name: value for name, value in arguments.items() if name != "length_from"}
    return generate_within(
        model.generate, model, table, target, constraint, arguments, positions=positions, thoughts=thoughts
    )


def _with_room(model, positions: int | None, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `generate` for a text without a length, with a token limit if nothing sets one."""
    options = _Options(arguments, model.generation_config)
    if any(options.in_force(name) is not None for name in ("max_length", "max_new_tokens")):
        return arguments  # otherwise transformers cuts the text at 20 tokens
    before = prompt_of(model, arguments)[0]
    # the decoder never reads the last token; XLNet has -1 positions
    room = positions + 1 - before if positions is not None and positions > 0 else _NATURAL_TOKENS
    if room < 1:  # leave the call to transformers, which may extend the positions or tell that they end
        return arguments
    return {**arguments, "max_new_tokens": min(room, _NATURAL_TOKENS)}


def warn_once(key: Any, message: str, *values) -> None:
    """Log a warning, unless a warning with the same key was logged before."""
    if key not in _SAID:
        _SAID.add(key)
        logger.warning(message, *values)


def warn_of_cuts(
    ids: torch.Tensor, produced: torch.Tensor, target: Target, limit: float, pad: int | None, *, is_given: bool
) -> None:
    """
    Warn if outputs stopped at `limit`, the maximum number of tokens, before they reached their lowest allowed length.
    `is_given` says whether the user gave the limit. The warning appears once for each limit that the user gave, and
    once in total for all limits that `generate` computed.

    `ids (batch_size * n, positions)` are the outputs, with `n` outputs for each example. `produced (batch_size * n,)`
    are the lengths of the outputs in units. `pad` is the padding id.
    """
    low = target.low.repeat_interleave(len(ids) // len(target.low)).to(produced.device)
    cut = (produced < low) & (ids[:, -1] != (-1 if pad is None else pad))
    if ids.shape[1] >= limit and bool(cut.any()):
        advice = "its tokens add too few units: train the model longer"
        if is_given:
            advice = "leave out max_length, max_new_tokens and generation_max_length, and the length makes the limit"
        message = "%d of %d outputs were cut at %d tokens, before they had their length; %s"
        warn_once(("cut", limit if is_given else None), message, int(cut.sum()), len(ids), limit, advice)


def _warn_of_misses(produced: torch.Tensor, target: Target, unit: str, *, is_minimum: bool) -> None:
    """
    Warn of lengths in `produced (batch_size * n,)` outside `target`, and name the first five outputs. If `is_minimum`
    is set, the message names only the lowest allowed length of outputs that are too short.
    """
    copies = len(produced) // len(target.low)
    low, high = (end.repeat_interleave(copies).to(produced.device) for end in (target.low, target.high))
    missed = ((produced < low) | (produced > high)).nonzero().squeeze(1)
    if len(missed):
        first = missed[:5]
        rows = list(zip(*(each[first].tolist() for each in (produced, low, high)), strict=True))
        kind = "exact length" if torch.equal(low, high) else "allowed lengths"
        logger.warning(
            "%d of %d outputs missed their %s, because no entries fit, positions ran out or a stop string came first: "
            "rows %s have %s %s, not %s",
            *(len(missed), len(produced), kind, first.tolist(), [n for n, _, _ in rows], plural(unit)),
            [
                f"at least {least}" if is_minimum and n < least else least if least == most else f"{least} to {most}"
                for n, least, most in rows
            ],
        )


def encode_once(model, inputs, rows: torch.Tensor) -> dict:
    """
    Encode each text once, and copy its encoder states to all rows of the text. `inputs` holds
    `input_ids (texts, source_length)`, or `inputs_embeds (texts, source_length, d)`, and any other tensors that the
    encoder reads. `rows (batch_size,)` holds the index of each row's text. Return a dictionary with `encoder_outputs`,
    `attention_mask` and, if there are any, `input_ids` for `generate`, which compares outputs with the source's ids.
    """
    encoder = model.get_encoder()
    reads = inspect.signature(encoder.forward).parameters
    given = {name: x for name, x in inputs.items() if name in reads and isinstance(x, torch.Tensor)}
    read = given["input_ids"] if "input_ids" in given else given["inputs_embeds"]
    mask = given.setdefault("attention_mask", torch.ones(read.shape[:2], dtype=torch.long, device=read.device))
    ids = {name: x[rows] for name, x in given.items() if name == "input_ids"}
    return {"encoder_outputs": rows_of(encoder(**given), rows), "attention_mask": mask[rows], **ids}


def rows_of(value, rows: torch.Tensor) -> Any:
    """
    Select rows of a tensor, or of the tensors in an encoder's outputs: row `i` of the result is row `rows[i]` of
    `value`.
    """
    if isinstance(value, torch.Tensor):
        return value[rows.to(value.device)]
    outputs = value if isinstance(value, ModelOutput) else BaseModelOutput(last_hidden_state=value[0])
    return type(outputs)(**{name: rows_of(x, rows) for name, x in outputs.items() if isinstance(x, torch.Tensor)})
