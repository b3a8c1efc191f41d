"""A call of the pipeline: its options, checked, and a record for each row that the model generates."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from ..generation import FROM_CONFIG, defaults_for
from ..length_pair import check_pair, units_apart
from ..lengths import Target, as_target, check_counts, check_length, check_name, tolerances_of, window_of
from .finish import check_finish
from .sources import is_ranged, plans_of


LOW_SCORES = ("flag", "natural", "error")
LENGTH_PLANS = 3  # lengths of a range, evenly spread, that its candidates are generated at
# of the choice among candidates: lengths planned below a limit, as shares of it, and candidates of each
PLANNED_SHARES = (1.0, 0.9, 0.8)
CHOICE_BEAMS = 24  # and as many candidates, divided among these searches; takes the time of 16 beams of one search
NATURAL_ROOM = 4  # times the length, for the natural text
FEW_LENGTHS = 8  # of one text, with candidates of their own; more lengths share a search by length
SHARED_BEAMS = 5  # of this search, in each group, and of the natural text beside it
_WITH_A_LENGTH = (
    *("length_constraint", "length_tolerance", "finish", "length_from", "thinking_budget"),
    *("predictor", "references", "choose"),
)


def switches_off(options: dict) -> bool:
    """Whether a call says that it has no length, `length=None`."""
    return options.get("length", 0) is None and options.get("length_ratio") is None


def over(defaults: dict, options: dict) -> dict:
    """The options of a call over those of its pipeline; a length of the call, or none, in place of one there."""
    gone = {"length", "length_ratio"} if options.keys() & {"length", "length_ratio"} else set()
    gone |= set(_WITH_A_LENGTH) if switches_off(options) else set()
    return {name: value for name, value in defaults.items() if name not in gone} | options


@dataclass
class Row:
    """A text that is generated at one length; a range of lengths has a row for each length planned."""

    text: str
    place: int  # of the text in the call
    request: int  # of the text and its length or range in the call; of a natural text its longest
    tolerance: Any
    candidates: int  # outputs that the model generates
    asked: Any = None  # the length or the range
    length: Any = None  # an `int`, or None for a model that needs none
    token: int | None = None  # of the length, before the source
    size: tuple[int, int] = (0, 0)  # positions of the source, units of the output; see `batches`
    outputs: list[dict] | None = None
    told: int | None = None  # where the model plans for another length, or for none, 0
    natural: bool = False  # no constraint either, but for a limit far away
    search: bool = False  # a `SearchByLength`, for all lengths of the text
    spare: bool = False  # generated where that search has nothing that fits
    most: int | None = None  # of another unit, `Call.other`


@dataclass
class Call:
    """The options that are not for `generate`, and the rows."""

    length: Any = None
    length_ratio: Any = None
    length_unit: Any = None
    length_constraint: Any = FROM_CONFIG
    length_tolerance: Any = None
    finish: str | None = None
    length_from: Any = None
    thinking_budget: int | None = None
    predictor: Any = None
    references: Sequence[str] | None = None
    truncation: bool = False
    num_return_sequences: int = 1
    rerank: bool | int = False
    choose: bool | None = None
    min_score: float | None = None
    on_low_score: str = "flag"
    batch_size: int | None = None
    batch_tokens: int | None = None
    progress_bar: bool | None = None

    # set by the steps
    rows: list[Row] = field(default_factory=list, init=False)
    lists: bool = field(default=False, init=False)  # whether there is a list of lengths for each text
    other: tuple[str, Any] | None = field(default=None, init=False)  # another unit and its limit, for all or for each
    other_table: Any = field(default=None, init=False)  # of that unit
    ranged: bool = field(default=False, init=False)  # whether the lengths are ranges
    plans: int = field(default=1, init=False)  # lengths of a range
    shared: bool = field(default=False, init=False)  # whether rows of one text share its encoder states
    options: dict[str, Any] = field(default_factory=dict, init=False)  # for `generate`
    defaults: Any = field(default=None, init=False)  # of `generate`, a `GenerationConfig`
    own: dict[str, Any] = field(default_factory=dict, init=False)  # the length and its options that are not the call's

    @classmethod
    def of(cls, options: dict, model) -> "Call":
        """The call of these options; those that it does not take are for `generate`, which refuses unknown ones."""
        names, off = [option.name for option in fields(cls) if option.init], switches_off(options)
        call = cls(**{name: options.pop(name) for name in names if name in options})
        own = defaults_for(model, options.get("generation_config"))
        plans = getattr(model.config, "length_controlled", False) or getattr(model.config, "length_tokens", None)
        off = off or call.length_constraint is None and not plans  # a length is nothing to the model
        call.own = dict.fromkeys(own) if off else own
        call.options, call.defaults = options, options.get("generation_config") or model.generation_config
        call.ranged = is_ranged(call.length) or is_ranged(call.length_ratio)
        return call

    def set_unit(self, own: str | None) -> None:
        """The unit of the call, else the model's `own`, else the first of a length in two units; and the other."""
        first = next(iter(self.length), None) if isinstance(self.length, Mapping) else None
        self.length_unit = self.length_unit or own or first or "token"
        self.length, self.other = units_apart(self.length, self.length_unit)
        self.ranged = self.ranged or is_ranged(self.length)
        if self.other is not None and self.finish is not None:
            raise ValueError(f"finish={self.finish!r} goes with one limit, got two; pass a length in one unit")

    def set_constraint(self, config) -> None:
        """The constraint and the tolerance of the call or of the model; a range is a window."""
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
            unasked = self.length is None and self.length_ratio is None and self.own["length"] is None
            plain = unasked and getattr(config, "length_optional", False)
            constraint = None if plain else self.own["length_constraint"]
            if tolerance is None and constraint == "exact":
                tolerance = self.own["length_tolerance"]
        check_finish(self.finish, constraint, self.length_unit)
        self.length_constraint, self.length_tolerance = constraint, tolerance

    def set_candidates(self, plans: bool) -> None:
        """How many outputs are wanted, checked; with `plans` a range is generated at several lengths."""
        self.rerank = 20 if self.rerank is True else self.rerank or 1
        names = ("num_return_sequences", "rerank", "batch_size", "batch_tokens")
        check_counts(**{name: getattr(self, name) for name in names if getattr(self, name) is not None})
        self.plans = LENGTH_PLANS if self.ranged and plans else 1

    def set_choice(self, optional: bool) -> None:
        """Whether the best of several candidates is chosen; by default where the model can and nothing is against."""
        sample = self.options.get("do_sample", self.defaults.do_sample)
        others = self.wanted > 1 or self.finish is not None or sample
        others = (
            others
            or self.other is not None
            or self.options.get("streamer") is not None
            or self.length_from is not None
        )
        able = optional and self.length_constraint is not None and not others
        self.choose = able if self.choose is None else self.choose
        if self.choose and not able:
            raise ValueError(
                "choose=True takes a model with length_optional and a length_constraint, and no finish, sampling, "
                "streamer, second unit, length_from, rerank or num_return_sequences; leave choose or these out"
            )

    def check_score(self, needs_length: bool) -> None:
        """Raise `ValueError` for a wrong or useless `min_score` or `on_low_score`."""
        check_name("on_low_score", self.on_low_score, LOW_SCORES)
        if self.min_score is None:
            if self.on_low_score != "flag":
                raise ValueError(f"on_low_score={self.on_low_score!r} needs a min_score; pass min_score=-4")
            return
        number = isinstance(self.min_score, int | float) and not isinstance(self.min_score, bool)
        if not number or math.isnan(self.min_score):
            raise ValueError(f"min_score must be a number, a log-probability as -4, got {self.min_score!r}")
        if needs_length:
            raise ValueError(
                f"min_score={self.min_score} takes a model that also writes without a length (a plain one, or one "
                "with length_optional), because the score is the log-probability without a length; leave min_score out"
            )

    def check_streamer(self) -> None:
        """Raise `ValueError` for a streamer of several outputs, or of one that another text may replace."""
        if self.options.get("streamer") is None:
            return
        if len(self.rows) > 1:
            raise ValueError(f"a streamer takes one text of one length, got {len(self.rows)}; call once for each")
        if self.on_low_score == "natural":
            raise ValueError("on_low_score='natural' replaces a text that was streamed; leave it or streamer out")

    def check_thinking(self, causal: bool) -> None:
        """Raise `ValueError` for `length_from` with what scores a text behind its prompt alone, or an encoder."""
        if self.length_from is None:
            return
        others = {"min_score": self.min_score is not None, "a range of lengths": self.ranged}
        others["a second unit"] = self.other is not None
        others["a streamer and finish"] = self.finish is not None and self.options.get("streamer") is not None
        if not causal or any(others.values()):
            other = next((name for name, is_so in others.items() if is_so), "an encoder-decoder model")
            raise ValueError(f"length_from={self.length_from!r} goes without {other}; leave one of them out")

    def flag_low(self, outputs: list[tuple[Row, dict]]) -> list[tuple[Row, dict]]:
        """Add `low_score` to the outputs, and return those under the `min_score`; raises where these are an error."""
        if self.min_score is None:
            return []
        for _, out in outputs:
            out["low_score"] = out["score"] < self.min_score
        low = [(row, out) for row, out in outputs if out["low_score"]]
        if low and self.on_low_score == "error":
            first = "{generated_text!r} ({score:.1f})".format_map(low[0][1])
            raise ValueError(
                f"the score must be at least min_score={self.min_score}, got {len(low)} of {len(outputs)} texts under "
                f"it, the first is {first}; ask for another length, or pass on_low_score='flag' or 'natural'"
            )
        return low

    def natural_options(self) -> dict[str, Any]:
        """The options of a call that gives the natural texts with their scores; the others are as by default."""
        options = {option.name: option.default for option in fields(self) if option.init}
        own = {name: getattr(self, name) for name in ("length_unit", "batch_size", "batch_tokens")}
        search = {"return_dict_in_generate", "output_scores"}
        rest = {name: value for name, value in self.options.items() if name not in search}
        return {**options, **own, **rest, "progress_bar": False, "min_score": -math.inf}

    @property
    def wanted(self) -> int:
        """Outputs that are generated for each request, to return some of them."""
        return max(self.rerank, self.num_return_sequences)

    def options_for(self, candidates: int) -> dict[str, Any]:
        """Options of `generate` for so many outputs of each row: a search of at least as many beams, or samples."""
        if candidates == 1 and not self.choose:
            return self.options
        # a choice has as many beams as candidates, whatever the model's default
        defaults = self.options.get("generation_config") if self.choose else self.defaults
        beams, sample = (
            self.options.get(name) or (name not in self.options and getattr(defaults, name, None))
            for name in ("num_beams", "do_sample")
        )
        beams = beams or 1
        options = {**self.options, "num_return_sequences": candidates}
        return options if sample and beams == 1 else {**options, "num_beams": max(beams, candidates)}

    def set_rows(self, texts: list[str], single: bool) -> None:
        """Make a row of each text, or of each length of each text."""
        lengths = [self.length] if single and isinstance(self.length, list) else self.length
        self.lists = isinstance(lengths, list) and any(isinstance(n, list) for n in lengths)
        if self.lists:
            if len(lengths) != len(texts) or not all(isinstance(n, list) and n for n in lengths):
                raise ValueError(
                    f"length must hold a list of lengths for each of the {len(texts)} texts or for none, got {lengths}"
                )
            self.length = [n for several in lengths for n in several]
        for i, (text, own) in enumerate(zip(texts, tolerances_of(self.length_tolerance, len(texts)), strict=True)):
            for _ in lengths[i] if self.lists else [None]:
                self.rows.append(Row(text, i, len(self.rows), own, self.wanted))

    def set_lengths(self, lengths: list) -> None:
        """Of each row; a range or a choice has a row for each length that the model plans for, in its window."""
        planned = []
        for row, asked in zip(self.rows, lengths, strict=True):
            row.asked = row.length = asked
            rows = [row]
            if self.ranged:
                low, high = asked
                plans = plans_of(low, high, self.plans)
                # a narrow range has fewer lengths, so each of them is generated more often
                candidates = math.ceil(self.wanted / len(plans))
                rows = [replace(row, length=n, tolerance=(n - low, high - n), candidates=candidates) for n in plans]
            elif self.choose and self.length_constraint == "max":
                told = dict.fromkeys(max(1, round(share * asked)) for share in PLANNED_SHARES)
                rows = [replace(row, told=n) for n in told]
            if self.choose:  # and a row without a plan; `_share` adds another
                candidates = max(1, CHOICE_BEAMS // (len(rows) + 2))
                rows = [replace(row, candidates=candidates) for row in [*rows, replace(rows[0], told=0)]]
            planned += rows
        self.rows = planned
        if self.choose:
            self._share()

    def _share(self) -> None:
        """
        Add what the lengths of a text share: a row for its natural text, and for more than a few lengths a search by
        length. Then the own rows of a length are only for what this search does not find.
        """
        texts: dict[int, list[Row]] = {}
        for row in self.rows:
            texts.setdefault(row.place, []).append(row)
        self.rows = []
        for rows in texts.values():
            longest = max(rows, key=lambda row: self.window(row)[1])
            high, lengths = self.window(longest)[1], len({row.request for row in rows})
            natural = self._free(longest, NATURAL_ROOM * high + 32, 0)
            if lengths > FEW_LENGTHS:
                natural = replace(natural, candidates=SHARED_BEAMS)
                search = self._free(longest, high, min(self.window(row)[0] for row in rows))
                rows = [replace(row, spare=True) for row in rows if row.told != 0]
                rows.append(replace(search, candidates=SHARED_BEAMS, search=True))
            self.rows += [*rows, replace(natural, natural=True)]

    def _free(self, row: Row, high: int, low: int) -> Row:
        """The row without a plan, of any length between these."""
        # with "max" there is none, or one that `generate` refuses
        tolerance = row.tolerance if self.length_constraint == "max" else (high - low, 0)
        return replace(row, length=high, tolerance=tolerance, told=0)

    def stages(self) -> Iterator[list[Row]]:
        """
        The rows that are generated, all at once. But under `max` the natural texts come first, because where one fits
        it is chosen; the other constraints are seldom met by them, and one batch is faster than two.
        """
        needed = [row for row in self.rows if not row.spare]
        if not self.choose or self.length_constraint != "max":
            yield needed
            return
        first = [row for row in needed if row.natural]
        yield first
        natural = {row.place: row.outputs[0]["length"] for row in first if row.outputs}
        yield [row for row in needed if not row.natural and (row.search or row.asked < natural[row.place])]

    def pools(self) -> list[tuple[list[Row], list[dict]]]:
        """
        The rows of each request, and all outputs for its text that fit; else its own, where no text has the length.
        """
        texts: dict[int, list[dict]] = {}
        requests: dict[int, list[Row]] = {}
        for row in self.rows:
            texts.setdefault(row.place, []).extend(row.outputs or [])
            requests.setdefault(row.request, []).append(row)
        pools = []
        for rows in requests.values():
            low, high = self.window(rows[0])
            outputs = [out for out in texts[rows[0].place] if low <= out["length"] <= high]
            own = [row for row in rows if not row.natural and not row.search]
            pools.append((own, outputs or [out for row in own for out in row.outputs or []]))
        return pools

    def set_other(self, texts: int) -> None:
        """The limit of each row in another unit."""
        if self.other is None:
            return
        unit, most = self.other
        several = most if isinstance(most, list) else [most] * texts
        for limit in several:
            check_length(limit)
        if len(several) != texts:
            raise ValueError(f"a limit in {unit}s is one for all or for each of the {texts} texts, got {most}")
        for row in self.rows:
            row.most = several[row.place]

    def target(self, rows: list[Row], device: torch.device, table=None) -> Target | None:
        """What is asked of the rows of a batch, with the `table` of another unit; `None` where nothing is."""
        windows = any(row.tolerance is not None for row in rows)
        if rows[0].length is None and not windows:
            return None
        tolerance = [row.tolerance or 0 for row in rows] if windows else None
        target = as_target([row.length for row in rows], self.length_constraint, tolerance, len(rows), device)
        told = [row.length if row.told is None else row.told for row in rows]
        other = None if table is None else (table, target.length.new_tensor([row.most for row in rows]))
        return replace(target, length=target.length.new_tensor(told), other=other)

    def shown_window(self, row: Row) -> dict[str, tuple[int, int]]:
        """Return `{"window": (36, 44)}` for a request of one length that has a window."""
        if self.ranged or row.tolerance is None or row.asked is None:
            return {}
        low, high = self.window(row)
        return {"window": (low, high)} if low < high else {}

    def window(self, row: Row) -> tuple[int, int]:
        """The lowest and the highest length that a row may have."""
        if self.ranged:
            return row.asked
        if self.length_constraint == "max":
            return 0, row.asked
        (low,), (high,) = window_of([row.asked], row.tolerance or 0)
        return low, high


def batches(groups: list[list[Row]], most_groups: int, most: int | None) -> Iterator[list[Row]]:
    """
    Rows of neighbouring groups, at most so many groups; the number of several rows times what they are padded to, the
    longest of each side (their `size`), is within `most`.
    """
    batch: list[Row] = []
    count = source = output = 0
    for group in groups:
        own = [max(sizes) for sizes in zip(*(row.size for row in group), strict=True)]
        source, output = max(source, own[0]), max(output, own[1])
        if batch and (
            count == most_groups or (most is not None and (source + output) * (len(batch) + len(group)) > most)
        ):
            yield batch
            batch, count, (source, output) = [], 0, own
        batch, count = batch + group, count + 1
    yield batch
