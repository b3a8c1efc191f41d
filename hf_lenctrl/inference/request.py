"""The checked options of a pipeline call, and the requests that are made from these options."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig

from ..generation import FROM_CONFIG, defaults_for
from ..length_pair import check_pair, units_apart
from ..length_units import COST, Unit, as_unit, count_texts
from ..lengths import check_constraint, check_counts, check_length, check_name, check_tolerance, plural, window_of
from .chats import Prompt
from .finish import check_finish
from .options import Length, Predictor, Tolerance
from .presets import limit_of
from .sources import is_ranged, plans_of, requested_lengths


LOW_SCORES = ("flag", "natural", "error")
LENGTH_PLANS = 3  # number of planned lengths of a range
_WITH_A_LENGTH = (
    *("length_constraint", "length_tolerance", "finish", "length_from", "thinking_budget"),
    *("predictor", "references", "choose"),
)


@dataclass(frozen=True)
class Request:
    """
    A source with its requested length.

    Attributes:
        source (`Prompt`): The source.
        place (`int`): Index of the source in the input of the pipeline.
        requested (`int` or `tuple[int, int]`, *optional*): The requested length, or the range; `None` if no length is
            requested.
        low, high (`int`): The lowest and the highest allowed length, in units; 0 if no length is requested.
        planned (`tuple[int, ...]`): The planned lengths, in the requested unit. The decoder is conditioned on one of
            them. A range has several planned lengths.
        limit (`int`, *optional*): The maximum length in the second unit, see `Call.other`.
        rate (`float`): Number of units of the model for one requested unit. The method `plan` multiplies by this
            number.
    """

    source: Prompt
    place: int
    requested: int | tuple[int, int] | None = None
    low: int = 0
    high: int = 0
    planned: tuple[int, ...] = ()
    limit: int | None = None
    rate: float = 1.0

    def plan(self, length: int) -> int:
        """Convert a planned length from the requested unit to the unit that the model plans in."""
        return max(1, round(self.rate * length))

    def fits(self, length: int) -> bool:
        """Return whether a produced length is in the window of the request."""
        return self.low <= length <= self.high


@dataclass(frozen=True)
class Abilities:
    """The abilities of a model that concern length, from its configuration."""

    unit: str | None  # unit in which the model was trained to count
    is_controlled: bool  # whether the model has a length encoding
    needs_unit: bool  # whether the model counts only in its own unit
    is_optional: bool  # whether the model also generates without a length
    is_causal: bool

    @classmethod
    def of(cls, config: PreTrainedConfig) -> "Abilities":
        """Return the abilities of a model with this configuration."""
        controlled = getattr(config, "length_controlled", False)
        return cls(
            unit=getattr(config, "length_unit", None),
            is_controlled=controlled,
            needs_unit=controlled or getattr(config, "length_tokens", None) is not None,
            is_optional=getattr(config, "length_optional", False),
            is_causal=not config.is_encoder_decoder,
        )


def switches_off(options: Mapping[str, Any]) -> bool:
    """Return whether the options of a pipeline call switch the length off with `length=None`."""
    return options.get("length", 0) is None and options.get("length_ratio") is None


@dataclass
class Call:
    """The checked options of a pipeline call. The method `read` builds this object."""

    length: Length | list[Any] = None
    length_ratio: float | tuple[float, float] | None = None
    length_unit: str | Unit | Callable[[str], int] | None = None
    length_constraint: str | None = FROM_CONFIG
    length_tolerance: Tolerance = None
    finish: str | None = None
    length_from: str | list[int] | None = None
    thinking_budget: int | None = None
    predictor: Predictor = None
    references: Sequence[str] | None = None
    truncation: bool = False
    num_return_sequences: int = 1
    rerank: bool | int = False
    choose: bool | None = None
    scores: bool = True
    min_score: float | None = None
    on_low_score: str = "flag"
    batch_size: int | None = None
    batch_tokens: int | None = None
    progress_bar: bool | None = None

    able: Abilities = field(init=False)  # abilities of the model
    options: dict[str, Any] = field(default_factory=dict, init=False)  # all other options, for `generate`
    defaults: GenerationConfig = field(default_factory=GenerationConfig, init=False)  # defaults of `generate`
    own: dict[str, Any] = field(default_factory=dict, init=False)  # the model's defaults for the length options
    unit: str | Unit = field(default="token", init=False)  # unit of the length
    planned_unit: str | None = field(default=None, init=False)  # the model's unit, if it differs from `unit`
    other: tuple[str, Any] | None = field(default=None, init=False)  # second unit and its limit, for all texts or each
    ranged: bool = field(default=False, init=False)  # whether the lengths are ranges
    plans: int = field(default=1, init=False)  # maximum number of planned lengths of a range
    outputs: int = field(default=1, init=False)  # number of candidates for each request; the best are returned

    @classmethod
    def read(cls, given: Mapping[str, Any], model, defaults: Mapping[str, Any], batch_size: int = 32) -> "Call":
        """
        Build a `Call`, and check the options. `given` are the options of the call, and `defaults` those of the
        pipeline. If the call gives `length` or `length_ratio` (even as `None`), the defaults of both are dropped.
        Unknown options are passed to `generate`, which raises an error if it does not know them either. `batch_size`
        is the default batch size.
        """
        gone = {"length", "length_ratio"} if given.keys() & {"length", "length_ratio"} else set()
        gone |= set(_WITH_A_LENGTH) if switches_off(given) else set()
        options = {**{name: value for name, value in defaults.items() if name not in gone}, **given}
        names = [option.name for option in fields(cls) if option.init]
        call = cls(**{name: options[name] for name in names if name in options})
        call.able = Abilities.of(model.config)
        call.options = {name: value for name, value in options.items() if name not in names}
        own = defaults_for(model, call.options.get("generation_config"))
        is_off = switches_off(options) or call.length_constraint is None and not call.able.needs_unit
        call.own = dict.fromkeys(own) if is_off else own  # the options of a length have no defaults then
        call.defaults = copy.copy(model.generation_config)
        # as in `generate`, what the call's own configuration leaves out comes from the model's
        passed = vars(call.options.get("generation_config") or call.defaults)
        vars(call.defaults).update({name: value for name, value in passed.items() if value is not None})
        call._read_unit()
        call._read_constraint()
        if call.batch_size is None and call.batch_tokens is None:
            call.batch_size = batch_size
        call._read_candidates()
        if call.min_score is not None or call.on_low_score != "flag":
            call._check_score()
        if call.length_from is not None:
            call._check_thinking()
        return call

    def _read_unit(self) -> None:
        """Set the unit (the given one, or that of the model or of the length, or tokens) and the second unit."""
        if isinstance(self.length, str):
            name = self.length
            self.length, self.length_unit = limit_of(self.length, self.length_unit)
            if self.length != name and self.length_constraint is FROM_CONFIG:
                self.length_constraint = "max"
        first = None
        if isinstance(self.length, Mapping):
            first = next(iter(self.length), None)
            named = [unit for unit, length in self.length.items() if isinstance(length, str)]
            # the unit of a limit with a name, such as {"word": 3, "grapheme": "bluesky"}
            self.length_unit = self.length_unit or next(iter(named), None)
        self.unit = as_unit(self.length_unit or self.able.unit or first or "token")
        if isinstance(self.length, Mapping):
            self.length, self.other = units_apart(self.length, self.unit)
            self.length, _ = limit_of(self.length, self.unit)
        # an array of NumPy or pandas; a tensor has a length for each text, never several of one text
        if hasattr(self.length, "tolist") and not isinstance(self.length, torch.Tensor):
            self.length = self.length.tolist()  # type: ignore[union-attr]
        self.ranged = is_ranged(self.length) or isinstance(self.length_ratio, tuple)
        if self.other is not None and self.finish is not None:
            raise ValueError(f"finish={self.finish!r} needs one limit, got two; pass a length in one unit")
        if self.able.needs_unit and self.unit != self.able.unit:
            self.planned_unit = self.able.unit
            if self.planned_unit == COST:
                raise ValueError(
                    f"a model that plans in a cost has lengths in this alone, got length_unit={str(self.unit)!r}; "
                    "leave length_unit out"
                )

    def _read_constraint(self) -> None:
        """
        Set the constraint and the tolerance: the given ones, or else those of the model. A range is an `"exact"`
        window; two units have the default `"max"`.
        """
        constraint, tolerance = self.length_constraint, self.length_tolerance
        if self.other is not None and not self.ranged:
            constraint = check_pair("max" if constraint is FROM_CONFIG else constraint)
        if self.ranged:
            if constraint not in (FROM_CONFIG, "exact") or tolerance is not None:
                given = "length_tolerance" if tolerance is not None else "length_constraint"
                raise ValueError(
                    f"a range holds for every output and has no other window, got {given}={getattr(self, given)!r}; "
                    f"leave {given} out"
                )
            constraint = "exact"
        if constraint is FROM_CONFIG:
            is_without = self.length is None and self.length_ratio is None and self.own["length"] is None
            constraint = None if is_without and self.able.is_optional else self.own["length_constraint"]
            if tolerance is None and constraint == "exact":
                tolerance = self.own["length_tolerance"]
        if self.finish is not None:
            check_finish(self.finish, constraint, self.unit)
        self.length_constraint, self.length_tolerance = constraint, tolerance

    def _read_candidates(self) -> None:
        """
        Set the number of candidates and of planned lengths, and `choose`, which is true by default where possible.
        """
        self.rerank = 20 if self.rerank is True else self.rerank or 1
        names = ("num_return_sequences", "rerank", "batch_size", "batch_tokens")
        check_counts(**{name: getattr(self, name) for name in names if getattr(self, name) is not None})
        self.outputs = max(self.rerank, self.num_return_sequences)
        self.plans = LENGTH_PLANS if self.ranged and self.able.needs_unit else 1
        streamer = self.options.get("streamer")
        others = (
            self.outputs > 1
            or any(option is not None for option in (self.finish, self.other, self.length_from, streamer))
            or self.options.get("do_sample", self.defaults.do_sample)
        )
        is_able = self.able.is_optional and self.length_constraint is not None and not others
        self.choose = is_able if self.choose is None else self.choose
        if self.choose and not is_able:
            raise ValueError(
                "choose=True takes a model with length_optional and a length_constraint, and no finish, sampling, "
                "streamer, second unit, length_from, rerank or num_return_sequences; leave choose or these out"
            )

    def _check_score(self) -> None:
        """Raise `ValueError` if the score options are invalid, or if the model cannot generate without a length."""
        check_name("on_low_score", self.on_low_score, LOW_SCORES)
        if self.min_score is None:
            raise ValueError(f"on_low_score={self.on_low_score!r} needs a min_score; pass min_score=-4")
        is_number = isinstance(self.min_score, int | float) and not isinstance(self.min_score, bool)
        if not is_number or math.isnan(self.min_score):
            raise ValueError(f"min_score must be a number, a log-probability as -4, got {self.min_score!r}")
        if self.able.needs_unit and not self.able.is_optional:
            raise ValueError(
                f"min_score={self.min_score} takes a model that also writes without a length (a plain one, or one "
                "with length_optional), because the score is the log-probability without a length; leave min_score out"
            )

    def _check_thinking(self) -> None:
        """Raise `ValueError` if `length_from` is used with a model or an option that does not support thoughts."""
        others = {
            "an encoder-decoder model": not self.able.is_causal,
            "min_score": self.min_score is not None,
            "a range of lengths": self.ranged,
            "a second unit": self.other is not None or self.planned_unit is not None,
            "a streamer and finish": self.finish is not None and self.options.get("streamer") is not None,
        }
        for other, is_given in others.items():
            if is_given:
                raise ValueError(f"length_from={self.length_from!r} does not work with {other}; leave one of them out")

    def check_streamer(self, outputs: int) -> None:
        """Raise `ValueError` if a streamer would get several outputs, or a text that may be replaced afterwards."""
        if outputs > 1:
            raise ValueError(f"a streamer takes one text of one length, got {outputs}; call once for each")
        if self.on_low_score == "natural":
            raise ValueError("on_low_score='natural' replaces a text that was streamed; leave it or streamer out")

    def natural_options(self) -> dict[str, Any]:
        """
        Return the options of a call that generates texts without a length, and their scores. They keep the unit, the
        batch size and the options of `generate`.
        """
        options = {option.name: option.default for option in fields(self) if option.init}
        own = {"length_unit": self.unit, "batch_size": self.batch_size, "batch_tokens": self.batch_tokens}
        search = {"return_dict_in_generate", "output_scores"}
        rest = {name: value for name, value in self.options.items() if name not in search}
        return {**options, **own, **rest, "progress_bar": False, "min_score": -math.inf}

    def lengths_of(
        self,
        prompts: Sequence[Prompt],
        model,
        tokenizer,
        predict: Callable[..., list[int]],
        length: Length | list[Any],
    ) -> list | None:
        """
        Return a list with the requested length or range of each prompt. If the model generates without a length,
        return `None` instead of a list. `length` is the option `length` of the call. A list must
        have one item for each prompt, so the caller flattens a list of lists. `predict` is `Predictors.predict`. Raise
        `ValueError` if the options contradict each other.
        """
        texts, ratio = [prompt.text for prompt in prompts], self.length_ratio
        if any(prompt.is_chat for prompt in prompts) and (ratio is not None or length in ("source", "predict")):
            given = f"length_ratio={ratio}" if ratio is not None else f"length={length!r}"
            raise ValueError(f"a chat has no length of its own for {given}; pass length=75, or the text alone")
        for name, source in (("predictor", "predict"), ("references", "reference")):
            if getattr(self, name) is not None and not (isinstance(length, str) and length == source):
                raise ValueError(f"{name} gives the lengths with length={source!r}, got length={length!r}")
        length = self.own["length"] if length is None and ratio is None else length
        is_without = length is None and ratio is None
        if self.length_constraint is None and not self.able.needs_unit:
            if is_without:
                return None
            raise ValueError(
                f"{type(model).__name__} has no length control, so a length needs a constraint; pass "
                "length_constraint='max' or 'exact', or use a length-controlled model"
            )
        if is_without and self.able.is_optional and self.length_constraint is None:
            return None
        options = {"batch_size": self.batch_size or 32, "truncation": self.truncation}
        return requested_lengths(
            texts,
            length,
            unit=self.unit,
            tokenizer=tokenizer,
            ratio=ratio,
            references=self.references,
            predict=lambda texts: predict(texts, self.unit, self.predictor, **options),
        )

    def windows(self, lengths: Sequence, tolerance: Tolerance) -> list[tuple[int, int]]:
        """Return the lowest and the highest allowed length of each requested length or range."""
        if self.ranged:
            return list(lengths)
        if self.length_constraint == "max":
            return [(0, high) for high in lengths]
        tolerance = 0 if tolerance is None else tolerance
        return list(zip(*window_of(lengths, tolerance, self.length_constraint), strict=True))

    def rates(self, prompts: Sequence[Prompt], tokenizer) -> list[float]:
        """
        Return for each source its length in the model's unit, divided by its length in the requested unit, because the
        model plans only in its own unit.
        """
        texts, units = [prompt.text for prompt in prompts], (self.planned_unit or self.unit, self.unit)
        own, requested = (count_texts(tokenizer, texts, unit) for unit in units)
        return [planned / max(1, count) for planned, count in zip(own, requested, strict=True)]


def requests_of(
    call: Call, prompts: Sequence[Prompt], is_single: bool, model, tokenizer, predict: Callable[..., list[int]]
) -> tuple[list[Request], bool]:
    """
    Return two values: the requests of a pipeline call, and whether each source has a list of lengths. There is one
    request for each source or, if each source has a list, one for each length of each source. `is_single` says whether
    the input is a single source, and `predict` is `Predictors.predict`. Raise `TypeError` or `ValueError` if a length
    or an option is invalid.
    """
    length, count = call.length, len(prompts)
    several = [length] if is_single and isinstance(length, list) else length
    has_lists = isinstance(several, list) and any(isinstance(own, list) for own in several)
    places = list(range(count))
    if isinstance(several, list) and has_lists:
        if len(several) != count or not all(isinstance(own, list) and own for own in several):
            raise ValueError(
                f"length must hold a list of lengths for each of the {count} texts or for none, got {several}"
            )
        length = [item for own in several for item in own]
        places = [place for place, own in enumerate(several) for _ in own]
    limits = [None] * count if call.other is None else _limits_of(*call.other, count)
    for place, prompt in enumerate(prompts):
        if not prompt.text.strip():
            raise ValueError(f"the text at position {place} is empty; remove it")
    sources = [prompts[place] for place in places]
    check_constraint(call.length_constraint)
    check_tolerance(call.length_tolerance, call.length_constraint)
    lengths = call.lengths_of(sources, model, tokenizer, predict, length)
    if lengths is None:
        return [Request(source, place) for source, place in zip(sources, places, strict=True)], has_lists
    tolerance = call.length_tolerance
    if isinstance(tolerance, list):
        if len(tolerance) != count:
            raise ValueError(f"length_tolerance needs one item for each of the {count} texts, got {tolerance}")
        tolerance = [tolerance[place] for place in places]
    requests, rates = [], [1.0] * count if call.planned_unit is None else call.rates(prompts, tokenizer)
    for source, place, own, (low, high) in zip(
        sources, places, lengths, call.windows(lengths, tolerance), strict=True
    ):
        planned = tuple(plans_of(low, high, call.plans)) if call.ranged else (own,)
        requests.append(Request(source, place, own, low, high, planned, limits[place], rates[place]))
    return requests, has_lists


def _limits_of(unit: str, limit, count: int) -> list:
    """Return the limit of each source in the second unit. `limit` is one number, or a list or array of them."""
    limit = limit.tolist() if hasattr(limit, "tolist") else limit
    limits = limit if isinstance(limit, list) else [limit] * count
    for item in limits:
        check_length(item)
    if len(limits) != count:
        raise ValueError(f"a limit in {plural(unit)} is one for all or for each of the {count} texts, got {limit}")
    return limits
