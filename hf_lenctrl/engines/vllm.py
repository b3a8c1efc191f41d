"""The length constraint as a plugin of vLLM, for its model runners V1 and V2; see `docs/vllm.md`."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.sample.logits_processor import BatchUpdate
from vllm.v1.sample.logits_processor import LogitsProcessor as V1LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor, LogitsProcRequestState

from ..length_units import known_table, load_unit
from ..thoughts import marker_of
from .json_requests import JSON, JsonRequest, Text, schema_of
from .requests import Asked, Counter, Point, Row, mask


logger = init_logger("vllm.hf_lenctrl")


class Request:
    """
    A running request. If the request has a requested length, `asked` has this length, and `counter` is a `Counter`. If
    the request has length limits of JSON strings, `asked` is `None`, and `counter` is a `JsonRequest`. If an error
    prevents making the counter, `counter` is `None`, and the output is empty.
    """

    def __init__(self, asked: Asked | None, params: SamplingParams, counter: Any):
        self.asked, self.counter = asked, counter
        self.eos = tuple(sorted(params.all_stop_token_ids))
        self.most = params.max_tokens or math.inf
        self.points: dict[int, Point | Text] = {}  # V2: positions of the last step -> the text up to each position
        # V1: the prompt's tokens, and the list of generated tokens, which vLLM extends
        self.prompt: Sequence[int] = ()
        self.tokens: Sequence[int] = ()
        self.point: Point | Text | None = None  # V1: the text that was counted in the last step

    def row(self, index: int, point: Point, longest: int) -> Row:
        """
        Return the `Row` for the logits at `index`, which follow the text at `point`. `longest` is the maximum number
        of output tokens that the model's context allows.
        """
        assert self.asked is not None
        return Row(index, self.asked, point, self.eos, int(min(self.most, longest)))


Place = tuple[int, Request, Any, int]  # a row of logits: index, request, text so far, maximum tokens


class LengthConstraint(LogitsProcessor, V1LogitsProcessor):
    """
    A logits processor that masks logits so that each output keeps the requested length, in any unit. The constraint of
    the request says whether this length is a maximum, a minimum or exact.

    Both model runners of vLLM load all entry points of `vllm.logits_processors`, so this class must work with both.
    Model runner V2 passes the states of its requests to the constructor. Model runner V1 passes a device.
    """

    def __init__(self, vllm_config: VllmConfig, where: Any, is_pin_memory: bool = False):
        self.model_config = vllm_config.model_config
        self.structured_outputs = vllm_config.structured_outputs_config
        self.states = where if isinstance(where, LogitsProcRequestState) else None
        self.device = torch.device(where.device if self.states else where)
        self.vocab_size = self.states.vocab_size if self.states else self.model_config.get_vocab_size()
        self.requests: dict[int, Request] = {}  # slot of V2, or row of V1 -> request
        self.counters: dict[Any, Counter | None] = {}  # `Asked.counted` -> counter
        config = vllm_config.additional_config
        names = config.get("length_units", []) if isinstance(config, dict) else []
        self.units = {name: load_unit(name) for name in names}  # loaded now, because a request cannot import modules
        for name in names:
            self.counters[name] = self._count(name)

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """
        Check the parameters of a request. Raise `ValueError` if the length is invalid, or if another option of the
        request could break the length.
        """
        params, asked = sampling_params, Asked.of(sampling_params.extra_args)
        if (params.extra_args or {}).get(JSON) is not None:
            schema_of(params.extra_args, params.structured_outputs)
        if asked is None:
            return
        breaks = ["ignore_eos", "structured_outputs", "thinking_token_budget"]
        breaks += ["stop", "stop_token_ids", "repetition_detection"] if asked.constraint != "max" else []
        for name in breaks:
            if (value := getattr(params, name, None)) not in (None, False, []):
                raise ValueError(f"a length does not work with {name}, which can end or extend a text, got {value!r}")
        least = asked.low + 1
        if asked.unit == "token" and asked.constraint != "max" and params.max_tokens and params.max_tokens < least:
            raise ValueError(
                f"{asked.low} tokens need {least} with EOS, got max_tokens={params.max_tokens}; pass "
                f"max_tokens={least}"
            )

    def _count(self, unit: str, length_from: str | tuple[int, ...] | None = None) -> Counter:
        tokenizer = cached_tokenizer_from_config(self.model_config)
        marker = None if length_from is None else marker_of(length_from, tokenizer)
        # vLLM makes two objects of this class if its command line names the class of the entry point; with a marker
        # the text of the prompt is read on the CPU
        device = self.device if marker is None else "cpu"
        table = known_table(tokenizer, self.units.get(unit, unit), self.vocab_size, device)
        return Counter(table, self.device, marker)

    def _request(self, params: SamplingParams) -> Request | None:
        if (params.extra_args or {}).get(JSON) is not None:
            return self._json(params)
        asked = Asked.of(params.extra_args)
        if asked is None:
            return None
        if asked.counted not in self.counters:
            try:
                self.counters[asked.counted] = self._count(asked.unit, asked.length_from)
            except Exception as error:  # a tokenizer may raise any error, and one request must not end the engine
                logger.error("hf_lenctrl cannot count %ss, so outputs in them are empty: %s", asked.unit, error)
                self.counters[asked.counted] = None
        return Request(asked, params, self.counters[asked.counted])

    def _json(self, params: SamplingParams) -> Request:
        strings = None
        try:
            schema = schema_of(params.extra_args, params.structured_outputs)
            config = self.structured_outputs
            if config.reasoning_parser and not config.enable_in_reasoning:
                raise ValueError("thoughts are not JSON; serve without a reasoning parser")
            strings = JsonRequest(schema, cached_tokenizer_from_config(self.model_config))
        except Exception as error:  # a tokenizer may raise any error, and one request must not end the engine
            logger.error("hf_lenctrl cannot keep lengths in JSON, so such outputs are empty: %s", error)
        return Request(None, params, strings)

    def _mask(self, logits: torch.Tensor, rows: list[Place], ended: list[tuple[int, Request]]) -> torch.Tensor:
        lengths = [request.row(index, point, most) for index, request, point, most in rows if request.asked]
        if lengths:
            logits = mask(logits, lengths, {counted: counter for counted, counter in self.counters.items() if counter})
        for index, request, text, _ in rows:
            if isinstance(request.counter, JsonRequest):
                request.counter.mask(logits[index], text)
        for index, request in ended:
            logits[index] = -math.inf
            logits[index, list(request.eos)] = 0.0
        return logits

    def apply(self, logits: torch.Tensor, ctx: LogitsContext | None = None) -> torch.Tensor:
        """
        Mask the tokens that the constraints forbid.

        Args:
            logits (`torch.FloatTensor` of shape `(rows, vocab_size)`): Logits, changed in place.
            ctx (`LogitsContext`, *optional*): Description of the rows of this step; only V2 passes it.
        """
        if ctx is None:
            return self._mask(logits, *self._listed())
        if self.states is not None and any(slot in self.requests for slot in ctx.idx_mapping_np.tolist()):
            return self._mask(logits, *self._drafted(ctx, self.states))
        return logits

    # Model runner V2

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """
        Add a request to the slot `req_idx`. Return whether the request has a requested length or length limits of JSON
        strings.
        """
        self.requests.pop(req_idx, None)
        if (request := self._request(sampling_params)) is not None:
            self.requests[req_idx] = request
        return request is not None

    def _drafted(self, ctx: LogitsContext, states: LogitsProcRequestState):
        """
        Return two lists. (1) For each row of logits to mask: a `Place`, the tuple of row index, request, text before
        the next token, and maximum number of tokens. (2) For each row in which only EOS is allowed: a pair of row
        index and request. Such a row belongs to a request without a counter (see `Request`).

        The table says how a row gets its text. A draft is a token that speculative decoding proposes.

        | row | text in the `Place` |
        |---|---|
        | inside a prompt | no `Place`, because no token is sampled after this row |
        | the first token, or the first after a preemption | counted from the start of the output |
        | the first row of any later step | the previous step's text up to its last accepted draft, plus one token |
        | a draft | the text of the row before, plus the draft |
        """
        rows: list[Place] = []
        ended: list[tuple[int, Request]] = []
        facts = (ctx.expanded_idx_mapping, ctx.expanded_local_pos, ctx.pos, ctx.input_ids)
        for index, (slot, local, position, token) in enumerate(torch.stack([f.long() for f in facts]).T.tolist()):
            request, prompt = self.requests.get(slot), int(states.prompt_len.np[slot])
            if request is None or position < prompt - 1:  # no token is sampled after a part of a prompt
                continue
            if request.counter is None:
                ended.append((index, request))
                continue
            known = request.points.get(position - 1)
            if local == 0:
                request.points = {}
            if known is None:
                point = self._recounted(request.counter, states.all_token_ids.gpu[slot, : position + 1], prompt)
            else:
                point = request.counter.after(known, [token])
            request.points[position] = point
            rows.append((index, request, point, self.model_config.max_model_len - prompt))
        return rows, ended

    @staticmethod
    def _recounted(counter: Any, ids: torch.Tensor, prompt: int) -> Any:
        """
        Count an output from its start, and return its `Point` (or its `Text`, for JSON). `ids (positions,)` are the
        prompt and the output; the first `prompt` ids are the prompt.
        """
        tokens = ids.tolist()
        return counter.after(counter.start(tokens[:prompt]), tokens[prompt:])

    # Model runner V1

    def is_argmax_invariant(self) -> bool:
        """Return `False`, because the constraint also changes greedy search."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Update `requests` after vLLM has added, removed or moved some requests."""
        process_dict_updates(self.requests, batch_update, self._listed_request)

    def _listed_request(self, params, prompt, tokens) -> Request | None:
        if (request := self._request(params)) is not None:
            request.prompt, request.tokens = prompt or (), tokens
        return request

    def _listed(self):
        """
        Return two lists. (1) For each row of logits to mask: a `Place`, the tuple of row index, request, text so far,
        and maximum number of tokens. (2) For each row in which only EOS is allowed: a pair of row index and request.
        The request of such a row has no counter (see `Request`), or vLLM gives -1 instead of its last token.
        """
        rows: list[Place] = []
        ended: list[tuple[int, Request]] = []
        for index, request in sorted(self.requests.items()):
            counter, tokens, point = request.counter, request.tokens, request.point
            if counter is None or -1 in tokens[-1:]:
                if counter is not None:
                    logger.error_once(
                        "vLLM hides the tokens of its V1 runner from an entry point, so outputs with a length end; "
                        "serve with --logits-processors hf_lenctrl.engines.vllm:LengthConstraint"
                    )
                ended.append((index, request))
                continue
            if point is None or len(tokens) < point.tokens:  # the request is new, or vLLM removed tokens
                point = counter.start(request.prompt)
            request.point = point = counter.after(point, tokens[point.tokens :])
            rows.append((index, request, point, self.model_config.max_model_len - len(request.prompt)))
        return rows, ended
