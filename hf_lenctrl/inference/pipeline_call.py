"""A call of the pipeline: its options, checked, and a row for each text and length."""

import difflib
import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from transformers import GenerationConfig, GenerationMixin

from ..generation import FROM_CONFIG
from ..length_ranges import is_ranged, plans_of
from ..lengths import check_constraint, check_counts, check_tolerance
from .finish import check_finish


@dataclass
class Call:
    """The options that are not for `generate`, and what the steps of the pipeline make of them."""

    length: Any = None
    length_ratio: Any = None
    length_unit: Any = None
    length_constraint: Any = FROM_CONFIG
    length_tolerance: Any = None
    length_plans: int = 3
    finish: str | None = None
    predictor: Any = None
    references: Sequence[str] | None = None
    truncation: bool = False
    num_return_sequences: int = 1
    rerank: bool | int = False
    rerank_model: Any = None
    batch_size: int | None = None
    batch_tokens: int | None = None
    progress_bar: bool | None = None

    # set by the steps
    texts: list[str] = field(default_factory=list, init=False)  # of each row
    text_of: list[int] = field(default_factory=list, init=False)  # of each row the position of its text in the call
    lengths: list = field(default_factory=list, init=False)
    tolerances: list = field(default_factory=list, init=False)
    first: list = field(default_factory=list, init=False)  # length tokens
    lists: bool = field(default=False, init=False)  # whether there is a list of lengths for each text
    ranged: bool = field(default=False, init=False)  # whether the lengths are ranges
    ranges: list = field(default_factory=list, init=False)  # of each request
    request_of: list[int] = field(default_factory=list, init=False)  # of each row; a range has several rows
    shared: bool = field(default=False, init=False)  # whether rows of one text share its encoder states
    candidates: list[int] = field(default_factory=list, init=False)  # outputs that the model writes for each row
    options: dict[str, Any] = field(default_factory=dict, init=False)  # for `generate`
    defaults: Any = field(default=None, init=False)  # of `generate`, a `GenerationConfig`

    @classmethod
    def of(cls, options: dict, model) -> "Call":
        """The call of these options; raises `TypeError` for one that neither the pipeline nor `generate` knows."""
        own = [option.name for option in fields(cls) if option.init]
        call = cls(**{name: options.pop(name) for name in own if name in options})
        takes = [inspect.signature(method).parameters for method in (model.generate, model.forward)]
        known = {*own, *vars(GenerationConfig()), *inspect.signature(GenerationMixin.generate).parameters}
        known |= {name for parameters in takes for name in parameters} - {"kwargs"}
        for name in options.keys() - known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = (
                f"; did you mean {near[0]}=?" if near else f"; the options are those of generate and {', '.join(own)}"
            )
            raise TypeError(f"{name}={options[name]!r} is no option{meant}")
        call.options, call.defaults = options, options.get("generation_config") or model.generation_config
        call.ranged = is_ranged(call.length) or is_ranged(call.length_ratio)
        return call

    def set_constraint(self, config) -> None:
        """The constraint and the tolerance of the call or of the model; a range is a window."""
        constraint, tolerance = self.length_constraint, self.length_tolerance
        if self.ranged:
            if constraint not in (FROM_CONFIG, "exact") or tolerance is not None:
                given = "length_tolerance" if tolerance is not None else "length_constraint"
                raise ValueError(
                    f"a range holds for every output and has no other window, got {given}={getattr(self, given)!r}; "
                    f"leave {given} out"
                )
            constraint = "exact"
        if constraint is FROM_CONFIG:
            constraint = getattr(config, "length_constraint", None)
        check_constraint(constraint)
        if tolerance is None and constraint == "exact" and not self.ranged:
            tolerance = getattr(config, "length_tolerance", None)
        check_tolerance(tolerance, constraint)
        check_finish(self.finish, constraint, self.length_unit)
        self.length_constraint, self.length_tolerance = constraint, tolerance

    def set_candidates(self, plans: bool) -> None:
        """How many outputs are wanted, checked; with `plans` a range is written at several lengths."""
        self.rerank = 20 if self.rerank is True or self.rerank_model and not self.rerank else self.rerank or 1
        sizes = {"batch_size": self.batch_size, "batch_tokens": self.batch_tokens}
        check_counts(
            num_return_sequences=self.num_return_sequences, rerank=self.rerank, length_plans=self.length_plans
        )
        check_counts(**{name: size for name, size in sizes.items() if size is not None})
        self.length_plans = self.length_plans if self.ranged and plans else 1

    @property
    def wanted(self) -> int:
        """Outputs that are written for each request, to return some of them."""
        return max(self.rerank, self.num_return_sequences)

    def options_for(self, candidates: int) -> dict[str, Any]:
        """Options of `generate` for so many outputs of each row: a search of at least as many beams, or samples."""
        if candidates == 1:
            return self.options
        beams, sample = (
            self.options.get(name) or (name not in self.options and getattr(self.defaults, name, None))
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
            if len(lengths) != len(texts):
                raise ValueError(f"length must hold a list for each of the {len(texts)} texts, got {len(lengths)}")
            for i, several in enumerate(lengths):
                if not isinstance(several, list) or not several:
                    rule = "length must hold a list of lengths for every text or for none"
                    raise ValueError(f"{rule}, got {several!r} at position {i}")
            if self.references is not None:
                raise ValueError("references give one length for each text; leave them out where length holds lists")
            self.length = [n for several in lengths for n in several]
        self.text_of = [i for i in range(len(texts)) for _ in (lengths[i] if self.lists else [None])]
        self.texts = [texts[i] for i in self.text_of]
        self.candidates = [self.wanted] * len(self.texts)
        tolerance = self.length_tolerance
        if isinstance(tolerance, list) and len(tolerance) != len(texts):
            raise ValueError(
                f"length_tolerance must be one for all or a list with one for each of the {len(texts)} texts, got "
                f"{len(tolerance)}; a pair (below, above) is a tuple"
            )
        self.tolerances = [tolerance[i] if isinstance(tolerance, list) else tolerance for i in self.text_of]

    def set_plans(self) -> None:
        """Make a row of each length that the model plans for, in a window that is the range."""
        if not self.ranged:
            return
        self.ranges = self.lengths
        plans = [plans_of(low, high, self.length_plans) for low, high in self.ranges]
        rows = [(i, n) for i, own in enumerate(plans) for n in own]
        # a narrow range has fewer lengths, so each of them is written more often
        self.candidates = [math.ceil(self.wanted / len(plans[i])) for i, _ in rows]
        self.request_of, self.lengths = [i for i, _ in rows], [n for _, n in rows]
        self.texts = [self.texts[i] for i, _ in rows]
        self.text_of = [self.text_of[i] for i, _ in rows]
        self.tolerances = [(n - self.ranges[i][0], self.ranges[i][1] - n) for i, n in rows]


def batches(order: list[int], sizes: list[tuple[int, int]], most_rows: int, most: int | None) -> Iterator[list[int]]:
    """
    Neighbours in `order`, at most so many rows; the number of several rows times what they are padded to, the longest
    of each side (`sizes`: source, output), is within `most`.
    """
    batch: list[int] = []
    source = output = 0
    for i in order:
        source, output = max(source, sizes[i][0]), max(output, sizes[i][1])
        if batch and (len(batch) == most_rows or (most is not None and (source + output) * (len(batch) + 1) > most)):
            yield batch
            batch, (source, output) = [], sizes[i]
        batch.append(i)
    yield batch
