"""What stands between a model and its text: `generate` with a length, ensembles, re-ranking."""

import copy
import logging
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation import LogitsProcessorList
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from .configuration_lenctrl import check_constraint
from .length_constraint import LengthConstraintLogitsProcessor, as_length_tensor, check_positive
from .length_units import UnitTable


logger = logging.getLogger(__name__)

_FROM_CONFIG: Any = object()  # None says "no constraint"
_PER_ROW = ("input_ids", "attention_mask", "inputs_embeds", "decoder_input_ids", "decoder_attention_mask")


def refuse_length():
    """Raise for a length that nothing would use."""
    raise ValueError(
        "length was given to a model with length_encoding='none', which cannot use it; leave it out, bound it with "
        "length_constraint='max', or build the model with length_encoding='ldpe', 'lrpe' or 'pre'"
    )


def token_limit(table: UnitTable, length: int, prompt_length: int, positions: int | None) -> int:
    """
    Decoder positions for outputs of `length` units: room for one twice as long, within the model's positions.

    Raises:
        `ValueError`: if the positions cannot hold the length.
    """
    # a word is many tokens to a character decoder; a character is up to four to byte-level BPE
    per_unit = {"token": 2, "byte": 2, "character": 8 if table.states > 3 else 2, "word": 24}
    limit = prompt_length + per_unit[table.unit] * length + 32
    if positions is None:
        return limit
    needed = -(-length // max(int(table.weights.max()), 1)) + 1  # EOS is predicted one position after the last token
    if needed > positions:
        raise ValueError(
            f"length={length} needs at least {needed} decoder positions, the model has {positions}; ask for less "
            f"or use a model with a larger max_position_embeddings or with absolute_positions=False"
        )
    return min(limit, positions + 1)  # the last token is never read


def limited(
    model,
    table: UnitTable,
    length: torch.Tensor,
    constraint: str | None,
    kwargs: dict,
    generation_config,
    limit_of: Callable[[int, int], int],
) -> dict:
    """
    Arguments of `model.generate` with room for the length and, for a constraint, its logits processor.

    Args:
        length (`torch.LongTensor` of shape `(batch_size,)`): Wanted units.
        kwargs (`dict`): The call's own, which win.
        limit_of: Positions for a length and a prompt's length; asked even where the call sets its own, as it raises
            for what the model cannot hold.
    """
    kwargs = dict(kwargs)
    settings = generation_config or model.generation_config

    def given(name):
        return kwargs[name] if kwargs.get(name) is not None else getattr(generation_config, name, None)

    prompt = kwargs.get("decoder_input_ids")
    prompt_length = 1 if prompt is None else prompt.shape[1]
    limit = limit_of(int(length.max()), prompt_length)
    if given("max_new_tokens") is not None:
        limit = prompt_length + given("max_new_tokens")
    elif given("max_length") is not None:
        limit = given("max_length")
    else:  # the model's own limit was not made for this length
        kwargs |= {"max_length": limit, "max_new_tokens": None}
    if generation_config is None and kwargs.get("min_new_tokens") is None:
        kwargs.setdefault("min_length", 0)
    if constraint is not None:
        processor = LengthConstraintLogitsProcessor(
            table,
            length,
            constraint,
            eos_token_id=kwargs.get("eos_token_id", settings.eos_token_id),
            max_length=limit,
            start_length=1 + (kwargs.get("forced_bos_token_id", settings.forced_bos_token_id) is not None),
        )
        kwargs["logits_processor"] = LogitsProcessorList([*(kwargs.get("logits_processor") or []), processor])
    return kwargs


def warn_of_misses(produced: list[int], length: list[int], unit: str) -> None:
    """Log the outputs, `batch_size * n`, that have another length than the one asked for, `batch_size`."""
    length = [item for item in length for _ in range(len(produced) // len(length))]
    missed = [i for i, (has, wanted) in enumerate(zip(produced, length, strict=True)) if has != wanted]
    if missed:
        logger.warning(
            "%d of %d outputs missed their exact length, for want of entries that fit or of positions: "
            "rows %s have %s %ss, not %s",
            *(len(missed), len(produced), missed[:5], [produced[i] for i in missed[:5]], unit),
            [length[i] for i in missed[:5]],
        )


def encode_once(model, inputs, rows: torch.Tensor) -> dict:
    """
    Run the encoder once for each text, and give its states to every row that writes from the text.

    Args:
        inputs (`dict`): `input_ids` of shape `(texts, source_length)` and, where there is padding, `attention_mask`.
        rows (`torch.LongTensor` of shape `(batch_size,)`): For each row the text that it writes from.

    Returns:
        `dict`: `encoder_outputs` and `attention_mask`, as `generate` takes them.
    """
    mask = inputs.get("attention_mask")
    mask = torch.ones_like(inputs["input_ids"]) if mask is None else mask
    states = model.get_encoder()(inputs["input_ids"], attention_mask=mask)[0]  # (texts, source_length, d)
    return {"encoder_outputs": BaseModelOutput(last_hidden_state=states[rows]), "attention_mask": mask[rows]}


class LengthControlledGeneration:
    """`generate` with a length, for a single model and for an ensemble."""

    config: Any
    device: Any

    @property
    def unit_table(self) -> UnitTable:
        """What each entry of the vocabulary writes; `unit_table.count(ids)` measures outputs."""
        raise NotImplementedError

    @torch.no_grad()
    def generate(
        self, inputs=None, generation_config=None, *args, length=None, length_constraint=_FROM_CONFIG, **kwargs
    ):
        """
        `GenerationMixin.generate` with a length.

        Unless the call sets `max_length` or `max_new_tokens` (itself or in `generation_config`), the limit on new
        tokens is made from the length and is generous, so that it cuts no output short; a `min_length` that the
        checkpoint came with gives way to the length too.

        Args:
            length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`, *optional*): Wanted units for
                the whole batch or for each example; defaults to `config.length`. For a single text several lengths
                give as many outputs, and its encoder runs once.
            length_constraint (`str`, *optional*): `"max"`, never longer than `length`; `"exact"`, this length
                wherever the vocabulary allows it, with a warning where it did not; `None`, the model alone. Defaults
                to `config.length_constraint`. See `LengthConstraintLogitsProcessor`.

        Raises:
            `TypeError`, `ValueError`: for a length that is missing, no integer, under 1, of another size than the
                batch or more than the decoder's positions can hold; for a constraint of another name, or one that
                `max_new_tokens` leaves no room for.
        """
        if length_constraint is _FROM_CONFIG:
            length_constraint = self.config.length_constraint
        check_constraint(length_constraint)
        controlled = self.config.length_controlled
        if not controlled and length_constraint is None:
            if length is not None:
                refuse_length()
            return super().generate(inputs, generation_config, *args, **kwargs)
        length = self.config.length if length is None else length
        if length is None:
            raise ValueError(
                "no length was given; pass it to the call, model.generate(**inputs, length=75) or "
                "length=[30, 50, ...] for each example, or set a default: from_pretrained(path, length=75)"
            )
        rows = self._rows(inputs, kwargs)
        batch_size = 1 if rows is None else len(rows)  # as GenerationMixin does when it is given nothing
        table = self.unit_table  # not `self.device`, which is that of a first parameter, offloaded perhaps
        if rows is not None and rows.device != table.weights.device:  # a model over several devices
            table = copy.deepcopy(table).to(rows.device)
        many = length.numel() if isinstance(length, torch.Tensor) else 1  # what is no length is refused below
        many = len(length) if isinstance(length, list | tuple) else many
        if batch_size == 1 and many > 1:
            inputs, kwargs = self._one_text(inputs, kwargs, many)
            batch_size = many
        length = as_length_tensor(length, batch_size, table.weights.device)  # (B,)
        check_positive(length)
        kwargs = limited(self, table, length, length_constraint, kwargs, generation_config, self._token_limit)
        if controlled:
            kwargs["length"] = length
        outputs = super().generate(inputs, generation_config, *args, **kwargs)
        if length_constraint == "exact":
            ids = outputs if isinstance(outputs, torch.Tensor) else outputs.sequences
            warn_of_misses(table.count(ids).tolist(), length.tolist(), table.unit)
        return outputs

    def _one_text(self, inputs, kwargs: dict, many: int) -> tuple:
        """The arguments of `generate` for a text that is to be written several times."""
        rows = torch.zeros(many, dtype=torch.long)  # an index on the CPU goes with tensors of any device
        kwargs = {
            name: value[rows] if name in _PER_ROW and value is not None else value for name, value in kwargs.items()
        }
        given = kwargs.get("encoder_outputs")
        if given is not None:
            kwargs["encoder_outputs"] = BaseModelOutput(last_hidden_state=given[0][rows])
        ids = kwargs.pop("input_ids", None) if inputs is None else inputs[rows]
        if (
            ids is None or given is not None or getattr(self.config, "encoder_length_embedding", False)
        ):  # it reads each length
            return ids, kwargs
        mask = kwargs.pop("attention_mask", None)
        first = {"input_ids": ids[:1], "attention_mask": None if mask is None else mask[:1]}
        return None, kwargs | encode_once(self, first, rows)

    def _rows(self, inputs, kwargs) -> torch.Tensor | None:
        """The first argument with a row for each example."""
        for value in (inputs, kwargs.get("input_ids"), kwargs.get("inputs_embeds"), kwargs.get("decoder_input_ids")):
            if value is not None:
                return value
        return None if kwargs.get("encoder_outputs") is None else kwargs["encoder_outputs"][0]

    def _token_limit(self, length: int, prompt_length: int) -> int:
        """See `token_limit`."""
        absolute = self.config.absolute_positions
        positions = getattr(self.config, "max_position_embeddings", None) if absolute else None  # T5 has none
        return token_limit(self.unit_table, length, prompt_length, positions)


class _Encoders(nn.Module):
    """Encoders side by side: their states lie next to each other in the last dimension."""

    main_input_name = "input_ids"

    def __init__(self, encoders):
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        states = [encoder(input_ids, attention_mask=attention_mask)[0] for encoder in self.encoders]
        return BaseModelOutput(last_hidden_state=torch.cat(states, dim=-1))  # (B, S, sum of widths)


class _Caches(EncoderDecoderCache):
    """The cache of the first model, with those of the others, reordered together."""

    def __init__(self, caches: list[EncoderDecoderCache]):
        super().__init__(caches[0].self_attention_cache, caches[0].cross_attention_cache)
        self.others = caches[1:]

    def reorder_cache(self, beam_idx):
        super().reorder_cache(beam_idx)
        for cache in self.others:
            cache.reorder_cache(beam_idx)


class LengthControlEnsemble(LengthControlledGeneration, PreTrainedModel, GenerationMixin):
    """
    Several checkpoints of one tokenizer as one model: the mean of their probabilities at each step, each with its own
    encoder and cache. For generation: `ensemble.generate(**inputs, length=75, num_beams=5)`.

    Args:
        models (`Sequence[PreTrainedModel]`): Length-controlled models, or plain ones of the classes here
            (`length_encoding="none"`) among them.

    Raises:
        `ValueError`: without models, or when they differ in vocabulary, special tokens or unit.
    """

    main_input_name = "input_ids"
    _supports_sdpa = True

    def __init__(self, models: Sequence[Any]):
        if not models:
            raise ValueError("an ensemble needs at least one model, got none")
        for model in models:
            if not hasattr(model.config, "length_encoding"):
                raise ValueError(
                    f"an ensemble takes this package's models, got a {type(model).__name__}; see add_length_control"
                )
        lead = next((model for model in models if model.config.length_controlled), models[0])
        names = ("eos_token_id", "pad_token_id", "decoder_start_token_id", "length_unit")
        for model in models:
            for name in names:
                if getattr(model.config, name) != getattr(lead.config, name):
                    raise ValueError(
                        f"the models of an ensemble must agree in {name}, got {getattr(lead.config, name)!r} and "
                        f"{getattr(model.config, name)!r}; use checkpoints trained with one tokenizer and unit"
                    )
            if not torch.equal(model.unit_table.weights.cpu(), lead.unit_table.weights.cpu()):
                raise ValueError(
                    "the models of an ensemble must have one vocabulary, their unit tables differ; use checkpoints "
                    "trained with one tokenizer"
                )
        super().__init__(lead.config)
        models = [lead, *(model for model in models if model is not lead)]
        self.models = nn.ModuleList(models)
        self.generation_config = lead.generation_config
        self.encoders = _Encoders([model.get_encoder() for model in models])
        self.eval()

    @property
    def unit_table(self) -> UnitTable:
        """Of the first length-controlled model; all are the same."""
        lead: Any = self.models[0]
        return lead.unit_table

    def get_encoder(self, modality=None):
        """All encoders, see `forward`."""
        return self.encoders

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        decoder_input_ids=None,
        decoder_attention_mask=None,
        encoder_outputs=None,
        past_key_values=None,
        length=None,
        progress=None,
        **kwargs,
    ):
        """Logits are the log of the mean probability: `(batch_size, sequence_length, vocab_size)`."""
        if encoder_outputs is None:
            encoder_outputs = self.encoders(input_ids, attention_mask=attention_mask)
        widths = [model.config.d_model for model in self.models]
        caches = [None] * len(widths) if past_key_values is None else [past_key_values, *past_key_values.others]
        total = None
        for model, states, cache in zip(self.models, encoder_outputs[0].split(widths, dim=-1), caches, strict=True):
            told = {"length": length} if model.config.length_controlled else {}
            told |= {"progress": progress} if model.config.counts_progress else {}
            logits = model(
                attention_mask=attention_mask,
                decoder_input_ids=decoder_input_ids,
                decoder_attention_mask=decoder_attention_mask,
                encoder_outputs=BaseModelOutput(last_hidden_state=states),
                past_key_values=cache,
                use_cache=cache is not None,
                **told,
            ).logits
            log_probabilities = logits.float().log_softmax(dim=-1)  # (B, T, V)
            total = log_probabilities if total is None else torch.logaddexp(total, log_probabilities)
        return Seq2SeqLMOutput(logits=total - math.log(len(self.models)), past_key_values=past_key_values)

    def get_output_embeddings(self):
        """Of the first model; all have one vocabulary."""
        lead: Any = self.models[0]
        return lead.get_output_embeddings()

    def _token_limit(self, length, prompt_length):
        members: Any = self.models
        return min(model._token_limit(length, prompt_length) for model in members)

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        """As the first model does, with progress."""
        return self.models[0].prepare_inputs_for_generation(input_ids, **kwargs)

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs):
        if generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = _Caches(
                [
                    EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
                    for model in self.models
                ]
            )


def rerank(source: str, candidates: Sequence[str], scores: Sequence[float] | None = None) -> list[int]:
    """
    Order candidates by how many words of the source they contain (Takase & Okazaki 2019, section 3.3, n = 20).

    Words are lower-cased runs of letters and digits, compared by their Porter stems; each distinct stem of a candidate
    that stands in the source counts once, so that repeating a word gains nothing. Ties go to the better score.

    Args:
        source (`str`): The text that the candidates were written for.
        candidates (`Sequence[str]`): The n best outputs, best first.
        scores (`Sequence[float]`, *optional*): One for each, higher is better; by default the order given.

    Returns:
        `list[int]`: Indices of `candidates`, the chosen one first.

    Raises:
        `ValueError`: without candidates, or with another number of scores.

    Example:

    ```python
    >>> from hf_lenctrl import rerank
    >>> rerank("Police arrested three men in Oslo", ["two held", "oslo police arrest men", "police in oslo"])
    [1, 2, 0]

    ```
    """
    if not candidates or (scores is not None and len(scores) != len(candidates)):
        given = "no" if scores is None else len(scores)
        raise ValueError(f"rerank needs candidates and a score for each, got {len(candidates)} and {given} scores")
    known = _stems(source)
    overlap = [len(_stems(candidate) & known) for candidate in candidates]
    rank = [-i for i in range(len(candidates))] if scores is None else list(scores)
    return sorted(range(len(candidates)), key=lambda i: (-overlap[i], -rank[i]))


def _stems(text: str) -> set[str]:
    try:
        from nltk.stem.porter import PorterStemmer
    except ImportError as error:
        raise ImportError("rerank compares Porter stems and needs nltk: pip install nltk") from error
    return {PorterStemmer().stem(word) for word in re.findall(r"\w+", text.lower())}
