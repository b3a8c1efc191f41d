"""Use the length constraint in transformers' continuous batching; see `docs/continuous_batching.md`."""

from collections.abc import Sequence

import torch
from transformers.generation import LogitsProcessorList
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.requests import FutureRequestState, RequestState

from ..length_units import Unit, UnitTable, load_unit
from ..lengths import is_integer
from .requests import FIELDS, Asked, Counter, Point, Row, mask


def add_length_constraint(manager: ContinuousBatchingManager, tokenizer, length_units: Sequence[str] = ()) -> None:
    """
    Enable lengths in the requests of a manager: `manager.add_request(ids, length=75, length_unit="character")`.

    Args:
        manager (`ContinuousBatchingManager`): The result of `model.init_continuous_batching(...)`, not started yet.
        tokenizer: The model's tokenizer.
        length_units (`Sequence[str]`, *optional*): Units whose unit tables (which count the units of token ids) are
            built now, which takes seconds. The table of another unit is built at the first request for this unit,
            while all requests wait. `"module:name"` is a unit of your own; requests use the same name.

    Raises:
        `ValueError`: if the manager has started, uses async batching, compilation or CUDA graphs, or has no EOS; if
            the model is length-controlled; or if the tokenizer cannot count a unit.
    """
    config, model = manager.continuous_batching_config, manager.model
    if manager.is_running() or manager.batch_processor is not None:
        raise ValueError(
            "a constraint is added before a manager starts or warms up, got one that has; call it between "
            "model.init_continuous_batching(...) and manager.start()"
        )
    ahead = ("use_async_batching", "varlen_compile_config", "decode_compile_config")
    hidden = [name for name in ahead if getattr(config, name)] + ["use_cuda_graph"] * any(config.cuda_graph_booleans)
    if hidden:
        raise ValueError(
            f"a constraint counts each token before the next is chosen, which does not work with {', '.join(hidden)}"
            "; pass ContinuousBatchingConfig(use_async_batching=False, use_cuda_graph=False), not compiled"
        )
    if getattr(model.config, "length_controlled", False):
        raise ValueError(
            "a length-controlled model does not get its remaining length in continuous batching; call model.generate"
        )
    if not (eos := _ids(manager.generation_config.eos_token_id)):
        raise ValueError(
            f"a constraint ends texts with EOS, got eos_token_id={manager.generation_config.eos_token_id}; pass a "
            "generation_config that has one"
        )
    constraint = LengthConstraint(tokenizer, model.config.get_text_config().vocab_size, eos, model.device)
    for name in length_units:
        constraint.count(name, load_unit(name))
    manager.logit_processor = _Processors(constraint, manager.logit_processor)


_START = Point(0, 0, 0)


class LengthConstraint(ContinuousBatchingLogitsProcessor):
    """
    A logits processor that masks logits so that each output keeps the requested length, in any unit. The constraint of
    the request says whether this length is a maximum, a minimum or exact.

    The processor stores, by request id, how many units each request of the last step has produced. A request that is
    new, copied or back after an eviction was not in the last step, so its units are counted from its start.
    """

    supported_kwargs: dict[str, type] = dict.fromkeys(FIELDS, object)  # `check` checks their values
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self, tokenizer, vocab_size: int, eos: tuple[int, ...], device: torch.device):
        self.tokenizer, self.vocab_size, self.eos, self.device = tokenizer, vocab_size, eos, device
        self.counters: dict[str, Counter] = {}
        self.rows: list[Row] = []
        self.points: dict[str, Point] = {}  # request of the last step -> its text so far

    def count(self, name: str, unit: str | Unit | None = None) -> None:
        """
        Build the unit table for requests whose unit is called `name`. The table counts `unit`. If `unit` is `None`,
        the table counts the predefined unit `name`. Raise `ValueError` if the unit cannot be counted.
        """
        if name not in self.counters:
            table = UnitTable.from_tokenizer(self.tokenizer, unit or name).padded(self.vocab_size)
            self.counters[name] = Counter(table, self.device)

    def check(self, kwargs: dict) -> None:
        """
        Check the arguments of a request. If there is no unit table yet for the length unit of the request, build this
        table. Raise `ValueError` if the length is invalid, if the unit cannot be counted, or if `length_from` is
        given.
        """
        if (asked := Asked.of(kwargs)) is not None:
            if asked.length_from is not None:
                raise ValueError(
                    f"length_from={asked.length_from!r} does not work in continuous batching; call model.generate, or "
                    "leave it out"
                )
            self.count(asked.unit)

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """
        Fill the tensor of arguments with zeros, because this processor stores its arguments in Python objects instead.
        """
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[FutureRequestState]) -> torch.Tensor:
        """
        Count the units of the new tokens of each request. Row `i` of the next logits belongs to
        `requests_with_new_token[i]`. Rows after the last request are not masked. Return an empty tensor, because this
        processor stores its arguments in Python objects instead.
        """
        known, self.points = self.points, {}
        rows = (self._row(index, request.state, known) for index, request in enumerate(requests_with_new_token))
        self.rows = [row for row in rows if row is not None]
        return torch.empty(0, dtype=torch.int32)

    def _row(self, index: int, state: RequestState, known: dict[str, Point]) -> Row | None:
        if (asked := Asked.of(state.logit_processor_kwargs)) is None:
            return None
        written = state.to_generation_output().generated_tokens  # these include the tokens before an eviction
        before = len(written) - len(state.generated_tokens)
        point = known.get(state.request_id, _START)
        point = _START if len(written) < point.tokens else point  # another request has taken the id
        point = self.counters[asked.unit].after(point, written[point.tokens :])
        self.points[state.request_id] = point
        limit = 2**31 if state.max_new_tokens is None else before + state.max_new_tokens
        return Row(index, asked, point, _ids(state.eos_token_id) or self.eos, limit)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """
        Mask forbidden tokens in the scores `(rows, vocab_size)`, in place, and return the scores. `tensor_arg` is
        unused.
        """
        return mask(scores, self.rows, self.counters) if self.rows else scores


class _Processors(ContinuousBatchingLogitsProcessorList):
    """
    The logits processors of a manager. The constraint is first, so that top-k and top-p choose among allowed tokens.
    """

    def __init__(self, constraint: LengthConstraint, others: ContinuousBatchingLogitsProcessorList):
        processors = LogitsProcessorList([constraint, *others.logits_processor])
        super().__init__(processors, drop_unsupported_processors=False)  # `others` has no unsupported processors
        self.constraint, self.tensors_required = constraint, others.tensors_required + 1

    def check_kwargs(self, kwargs: dict) -> None:
        """
        Raise an error if the arguments of a request are invalid. Only this request fails, because the check runs
        before scheduling.
        """
        super().check_kwargs(kwargs)
        self.constraint.check(kwargs)


def _ids(eos_token_id: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the EOS ids as a sorted tuple. Leave out negative ids, because -1 means no id."""
    given = [] if eos_token_id is None else [eos_token_id] if is_integer(eos_token_id) else eos_token_id
    return tuple(sorted(token for token in given if token >= 0))
