"""Any causal language model with a length: the model inside, the encoding added to its token embeddings."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, GenerationMixin, PreTrainedModel

from .configuration_lenctrl import LenCtrlCausalLMConfig
from .generation import LengthControlledGeneration, prompt_of
from .length_signal import LengthSignal, init_length_weights, required_length, tell_peft, warn_of_column
from .length_units import StoresUnitTable, UnitTable
from .lengths import as_length_tensor
from .minimal_card import CardOnPush


# what the library asks the outer model and only the inner one knows
_OF_INNER = (
    "_supports_sdpa",
    "_supports_flash_attn",
    "_supports_flex_attn",
    "_supports_attention_backend",
    "_can_compile_fullgraph",
    "_is_stateful",
    "_supports_default_dynamic_cache",
    "_prepare_cache_for_generation",  # Mamba's has another name
    "create_masks_for_generate",
)


def first_progress(columns: int, rows: int, device) -> torch.Tensor:
    """Progress over a prompt, `(rows, columns)`: 0 on its last token, which predicts the first one, -1 before it."""
    progress = torch.full((rows, columns), -1, dtype=torch.long, device=device)
    progress[:, -1] = 0
    return progress


def answer_progress(table: UnitTable, labels: torch.Tensor, eos: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Progress and length of the answers in a batch. An answer is a run of labels that are not -100; each is counted by
    itself, up to its EOS. The first label of a row is never predicted and belongs to the prompt.

    Args:
        table (`UnitTable`): Of the labels' vocabulary.
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`): As the model reads the ids, not shifted.
        eos (`list[int]`): Ids that end an answer.

    Returns:
        Two `torch.LongTensor` of shape `(batch_size, sequence_length)`: units written after each token of an answer,
        0 on the token before it, -1 elsewhere; and the length of the answer that a position belongs to, 1 elsewhere.

    Raises:
        `ValueError`: for an answer without any unit.
    """
    answer = labels != -100  # (B, T)
    answer[:, 0] = False
    before = torch.nn.functional.pad(answer, (1, 0))[:, :-1]  # (B, T) whether the position to the left is an answer's
    row, start = (answer & ~before).nonzero(as_tuple=True)  # (answers,) each
    end = (answer & ~torch.nn.functional.pad(answer, (0, 1))[:, 1:]).nonzero(as_tuple=True)[1] + 1  # (answers,)
    progress, lengths = torch.full_like(labels, -1), torch.ones_like(labels)
    if len(row) == 0:
        return progress, lengths
    column = start.unsqueeze(1) + torch.arange(int((end - start).max()), device=labels.device)  # (answers, L)
    inside = column < end.unsqueeze(1)  # (answers, L)
    ids = labels[row.unsqueeze(1), column.clamp(max=labels.shape[1] - 1)].masked_fill(~inside, 0)  # (answers, L)
    if eos:
        ends = torch.isin(ids, torch.tensor(eos, device=ids.device)) & inside
        ids = torch.where(ends.cumsum(-1) > 0, eos[0], ids)  # a template's new line behind EOS is no part of the text
    written = table.progress(ids.to(table.weights.device)).to(ids.device)  # (answers, L)
    length = written.gather(1, (end - start - 1).unsqueeze(1))  # (answers, 1)
    if not torch.compiler.is_compiling() and bool((length < 1).any()):
        raise ValueError(
            f"every answer (labels that are not -100) must hold at least one {table.unit}, got "
            f"{length.squeeze(1).tolist()}; drop the rows without one"
        )
    rows = row.unsqueeze(1).expand_as(column)
    progress[rows[inside], column[inside]] = written[inside]
    lengths[rows[inside], column[inside]] = length.expand_as(column)[inside]
    progress[row, start - 1] = 0
    lengths[row, start - 1] = length.squeeze(1)
    return progress, lengths


class LenCtrlForCausalLM(  # type: ignore[misc]
    CardOnPush, LengthControlledGeneration, StoresUnitTable, LengthSignal, PreTrainedModel, GenerationMixin
):
    """
    Any model of `AutoModelForCausalLM`, with `length` in `forward` and `generate`.

    The length is the answer's: the encoding stands on the last token of the prompt, which predicts the answer's first
    token, and on the answer's tokens. Nothing is added to the prompt before it, so its cache serves every length.

    Args:
        config (`LenCtrlCausalLMConfig`): Of the new model.
        language_model (`PreTrainedModel`, *optional*): The causal model itself, which becomes a part of this one; by
            default one is built from `config.text_config`.
    """

    config_class = LenCtrlCausalLMConfig
    _looked = False  # at the lengths of a first batch in training
    supports_gradient_checkpointing = True
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True  # this class attends to nothing
    # small steps of training would be lost in half precision
    _keep_in_fp32_modules_strict = {"length_projection", "length_embedding"}

    def __init__(self, config: LenCtrlCausalLMConfig, language_model: PreTrainedModel | None = None):
        config.validate()  # a value set after construction (`from_pretrained(path, length=75)`) is checked here
        super().__init__(config)
        inner: Any = language_model
        if inner is None:
            inner = AutoModelForCausalLM.from_config(config.text_config)
        self.language_model = inner
        config.text_config = inner.config
        config._attn_implementation_internal = inner.config._attn_implementation
        for name in _OF_INNER:
            if hasattr(inner, name):
                setattr(self, name, getattr(inner, name))
        self._read_by_inner = set(inspect.signature(inner.forward).parameters)
        # as Trainer finds out for a plain model
        self.accepts_loss_kwargs = getattr(inner, "accepts_loss_kwargs", "kwargs" in self._read_by_inner)
        self.add_length_signal()
        self.post_init()
        tell_peft(config)

    @property
    def unit_table(self) -> UnitTable:  # type: ignore[override]
        """What each entry of the vocabulary writes; `unit_table.count(ids)` measures outputs."""
        return self._modules["unit_table"]  # type: ignore[return-value]

    @property
    def embed_tokens(self):
        """The inner model's token embeddings."""
        return self.language_model.get_input_embeddings()

    def get_input_embeddings(self):
        return self.language_model.get_input_embeddings()

    def set_input_embeddings(self, value):
        self.language_model.set_input_embeddings(value)

    def get_output_embeddings(self):
        return self.language_model.get_output_embeddings()

    def set_output_embeddings(self, new_embeddings):
        self.language_model.set_output_embeddings(new_embeddings)

    def get_decoder(self):
        return self.language_model.get_decoder()

    @torch.no_grad()
    def _init_weights(self, module):
        init_length_weights(module, self.config)  # the inner model has given its own weights theirs

    def set_unit_table(self, tokenizer, *, cost: Callable[[str], int] | None = None) -> None:
        """
        Fill the table of units for the model's vocabulary; it is saved with the model. `length_unit="cost"` needs a
        `cost`, see `UnitTable.from_tokenizer`; a saved model counts it without the function.

        Raises:
            `ValueError`: when the tokenizer's vocabulary is not the model's, or cannot be counted in its unit.
        """
        table = UnitTable.from_tokenizer(tokenizer, self.config.length_unit, cost=cost)
        table = table.to(self.unit_table.weights.device)
        self._modules["unit_table"] = table.padded(self.embed_tokens.num_embeddings)
        self.config.unit_states = table.states

    def resize_token_embeddings(self, *args, **kwargs):
        """The base model's method; tokens new to a model that counts characters must be counted: `set_unit_table`."""
        embeddings = self.language_model.resize_token_embeddings(*args, **kwargs)
        if self.unit_table.weights.shape[1] != embeddings.num_embeddings:
            self._modules["unit_table"] = self.unit_table.resized(embeddings.num_embeddings, self.config)
        return embeddings

    def _eos(self) -> list[int]:
        eos = self.generation_config.eos_token_id
        eos = self.config.eos_token_id if eos is None else eos
        return [] if eos is None else list(eos) if isinstance(eos, list | tuple) else [int(eos)]

    def _progress_and_length(self, labels, length, progress, past_key_values, embeds):
        """Progress `(batch_size, sequence_length)` and lengths, of rows `(batch_size,)` or of positions."""
        rows, columns = embeds.shape[:2]
        if labels is not None and progress is None:
            progress, own = answer_progress(self.unit_table, labels, self._eos())
            if length is None:
                return progress, own
            if self.training and not self._looked and not torch.compiler.is_compiling():
                self._looked = True
                counted = own.masked_fill(progress < 0, 0).amax(1)  # of a row with several answers the longest
                warn_of_column(as_length_tensor(length, rows, counted.device), counted, self.unit_table.unit)
        elif progress is None and self.training:
            raise ValueError(
                "training needs labels, -100 over the prompt, to know where the answer is; pass labels, or progress= "
                "and length= (a Trainer with label smoothing keeps the labels to itself: leave it out)"
            )
        elif progress is None:
            seen = getattr(past_key_values, "get_seq_length", int)()
            if seen:
                raise ValueError(
                    "progress cannot be counted from the last tokens of a cached sequence; call generate(), or pass "
                    "progress=(batch_size, sequence_length) with the units written before each prediction"
                )
            progress = first_progress(columns, rows, embeds.device)  # all that came in is the prompt
        virtual = columns - progress.shape[1]
        if virtual > 0:  # prompt tuning puts embeddings of its own before the prompt
            progress = torch.nn.functional.pad(progress, (virtual, 0), value=-1)
        if length is not None:
            return progress, as_length_tensor(length, rows, embeds.device, synchronize=False)
        return progress, required_length(length, self.config, embeds, self.training)

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values=None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        length: int | list[int] | torch.Tensor | None = None,
        progress: torch.LongTensor | None = None,
        **kwargs,
    ):
        """
        The inner model's `forward` with two more arguments.

        Args:
            length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`, *optional*): Requested units of
                every answer of a row. Without it each answer has the length that is counted from its labels; without
                labels `config.length` holds.
            progress (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*): Units of the answer
                written before each prediction, -1 where no answer is predicted. Counted from the labels; without
                labels all of `input_ids` is the prompt, and its last token predicts the answer's first.

        Raises:
            `ValueError`: without any length, for a length under 1, for an answer without any unit, and in training
                without labels.
        """
        if self.config.length_controlled:
            embeds = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds  # (B, T, d)
            progress, lengths = self._progress_and_length(labels, length, progress, past_key_values, embeds)
            # where, not a product: the prompt's embeddings stay what they were, bit for bit
            signal = self.add_signal(embeds, progress.clamp(min=0), lengths)
            inputs_embeds = torch.where((progress < 0).unsqueeze(2), embeds, signal)
            input_ids = None
        kwargs |= {"past_key_values": past_key_values, "use_cache": use_cache, "logits_to_keep": logits_to_keep}
        kwargs["position_ids"] = position_ids
        kwargs = {name: value for name, value in kwargs.items() if self._reads(name, value)}
        return self.language_model(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, labels=labels, **kwargs
        )

    def _reads(self, name: str, value) -> bool:
        """Whether an argument goes to the inner model: not one that is empty, or that its `forward` does not know."""
        optional = name in ("past_key_values", "position_ids", "logits_to_keep")
        return not optional or (value is not None and name in self._read_by_inner)

    def generate(self, inputs=None, *args, **kwargs):
        """`LengthControlledGeneration.generate`; the length is that of the answer, behind the prompt that came in."""
        if kwargs.get("inputs_embeds") is not None:
            raise ValueError("generate needs the prompt's ids, got inputs_embeds; pass input_ids")
        if self.config.length_controlled:
            kwargs["prompt_length"] = prompt_of(self, {**kwargs, "inputs": inputs})[1]
        return super().generate(inputs, *args, **kwargs)

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids, prompt_length: int = 0, length=None, **kwargs
    ):
        """The inner model's method, and progress, counted over the answer, which beam search has already reordered."""
        model_inputs = self.language_model.prepare_inputs_for_generation(input_ids, **kwargs)
        if not self.config.length_controlled:
            return model_inputs
        progress = first_progress(prompt_length, len(input_ids), input_ids.device)
        if input_ids.shape[1] > prompt_length:
            progress = torch.cat([progress, self.units_written(input_ids[:, prompt_length:])], dim=1)
        columns = model_inputs["input_ids"].shape[1]
        # a slice whose stride grows with each step would make torch.compile compile again
        return model_inputs | {"progress": progress[:, -columns:].contiguous(), "length": length}


def is_plain_causal(model: Any) -> bool:
    """Whether a model is one that `LenCtrlForCausalLM` can hold."""
    config = model.config
    return model.can_generate() and not config.is_encoder_decoder and not hasattr(config, "length_encoding")


@torch.no_grad()
def _check_taken(plain: Any, model: LenCtrlForCausalLM) -> None:
    """Raise `ValueError` for an architecture that a length encoding cannot reach, or that would not load again."""
    name, embed = type(plain).__name__, plain.get_input_embeddings()
    if type(plain.config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not hasattr(plain.config, "auto_map"):
        raise ValueError(
            f"{name} cannot be saved with a length, because AutoModelForCausalLM does not build it from its "
            f"{type(plain.config).__name__}; use another architecture"
        )
    if plain.config.model_type == "reformer":
        raise ValueError(
            f"{name} pads ids to its chunks but not embeddings, so a length encoding cannot reach it; use another "
            "architecture"
        )
    ids = torch.arange(4, device=plain.device).unsqueeze(0)
    expected = plain(ids, use_cache=False).logits
    if expected.shape[-1] != embed.num_embeddings:
        raise ValueError(
            f"{name} has {embed.num_embeddings} embeddings and {expected.shape[-1]} outputs, a length needs as many "
            "of one as of the other; use another architecture"
        )
    try:
        same = torch.equal(expected, model(ids, use_cache=False, length=4).logits)
        plain(inputs_embeds=2 * embed(ids), use_cache=False)  # no token's, as with a length
    except Exception as error:
        raise ValueError(
            f"{name} does not take embeddings in the place of ids, so a length encoding cannot reach it; use another "
            f"architecture ({type(error).__name__}: {error})"
        ) from error
    if not same:
        raise ValueError(
            f"{name} reads the ids beside their embeddings, so a length encoding cannot reach it alone; use another "
            "architecture"
        )


def control_causal(plain: Any, **fields) -> LenCtrlForCausalLM:
    """
    A length-controlled model around `plain`, in eval mode; `fields` are those of `LengthControlRules`.

    Raises:
        `ValueError`: for a model that does not take embeddings instead of ids, or whose outputs then differ.
    """
    # a composite configuration hands its own choice of attention down, and with None the causal mask is missing
    attention = plain.config._attn_implementation
    fields |= {"text_config": plain.config, "attn_implementation": attention}
    config = LenCtrlCausalLMConfig(**fields)
    model = LenCtrlForCausalLM(config, plain).eval()
    for module in (getattr(model, name, None) for name in ("unit_table", "length_projection", "length_embedding")):
        if module is not None:
            module.to(plain.get_input_embeddings().weight.device)
    _check_taken(plain, model)
    model.generation_config = copy.deepcopy(plain.generation_config)
    return model


LenCtrlForCausalLM.register_for_auto_class("AutoModelForCausalLM")
