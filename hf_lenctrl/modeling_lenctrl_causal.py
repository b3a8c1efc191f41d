"""Length control for any causal language model: a wrapper adds the length encoding to its token embeddings."""

import copy
import inspect
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    Cache,
    DynamicCache,
    GenerationMixin,
    PreTrainedModel,
)

from .answers import answer_progress, first_progress
from .cache import CACHE, CACHE_NAMES, takes_cache
from .card import CardOnPush
from .configuration_lenctrl import LenCtrlCausalLMConfig
from .generation import LengthControlledGeneration, PromptSpan, eos_of, prompt_of, warn_once
from .length_signal import (
    LengthSignal,
    StoresUnitTable,
    init_length_weights,
    required_length,
    tell_peft,
    warn_of_column,
)
from .lengths import as_length_tensor


# transformers looks these names up on the outer model, but only the inner model has them. They are private in
# transformers 5.23.
_OF_INNER = (
    "_supports_sdpa",
    "_supports_flash_attn",
    "_supports_flex_attn",
    "_supports_attention_backend",
    "_can_compile_fullgraph",
    "_is_stateful",
    "_supports_default_dynamic_cache",
    "_prepare_cache_for_generation",  # Mamba has a method of its own
    "create_masks_for_generate",
)


class _BaseModel:
    """The base model of a `LenCtrlForCausalLM`, for libraries that add their own head, as TRL's trainers do."""

    def __init__(self, whole: Any):
        self.whole, self.inner = whole, whole.language_model.base_model

    def __getattr__(self, name):
        return getattr(self.inner, name)

    @takes_cache
    def __call__(
        self,
        input_ids=None,
        attention_mask=None,
        *,
        inputs_embeds=None,
        length=None,
        progress=None,
        cache=None,
        **kwargs,
    ):
        """Run `forward` without labels and head: `last_hidden_state (batch_size, sequence_length, d)`."""
        if self.whole.config.length_controlled:
            given = (None, length, progress, cache, attention_mask)
            inputs_embeds = self.whole.embed_with_length(input_ids, inputs_embeds, *given)
            input_ids = None
        kwargs |= {} if cache is None else {CACHE: cache}
        return self.inner(input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs)


class LenCtrlForCausalLM(  # type: ignore[misc, override]
    CardOnPush, StoresUnitTable, LengthControlledGeneration, LengthSignal, PreTrainedModel, GenerationMixin
):
    """
    Any model of `AutoModelForCausalLM`, with `length` in `forward` and `generate`.

    The length is the answer's. The encoding is added to the last token of the prompt, which predicts the first token
    of the answer, and to the answer's tokens. Nothing is added to the prompt before them, so its cache serves every
    length. Earlier answers of a chat belong to the prompt.

    Args:
        config (`LenCtrlCausalLMConfig`): Configuration of the new model.
        language_model (`PreTrainedModel`, *optional*): The causal model, which becomes a part of this one; by default
            one is built from `config.text_config`.
    """

    config_class = LenCtrlCausalLMConfig
    _checked_lengths = False  # whether the lengths of the first training batch were checked
    supports_gradient_checkpointing = True
    # These are private names of transformers 5.23. This class has no attention, and half precision would lose small
    # steps of training.
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True
    _keep_in_fp32_modules_strict = {"length_projection", "length_embedding"}

    def __init__(self, config: LenCtrlCausalLMConfig, language_model: PreTrainedModel | None = None):
        config.validate()  # checks values set after construction (`from_pretrained(path, length=75)`)
        super().__init__(config)
        inner: Any = AutoModelForCausalLM.from_config(config.text_config) if language_model is None else language_model
        self.language_model = inner
        config.text_config = inner.config
        # The setter of transformers 5.23 would pass the choice on to `text_config` again.
        config._attn_implementation_internal = inner.config._attn_implementation
        for name in _OF_INNER:
            if hasattr(inner, name):
                setattr(self, name, getattr(inner, name))
        self._read_by_inner = set(inspect.signature(inner.forward).parameters)
        # Trainer reads this of a plain model
        self.accepts_loss_kwargs = getattr(inner, "accepts_loss_kwargs", "kwargs" in self._read_by_inner)
        self.add_length_signal()
        self.post_init()
        self.register_forward_pre_hook(LenCtrlForCausalLM._count_answers, with_kwargs=True)
        tell_peft(config)

    @property
    def base_model(self):
        """Base model of the inner model, with the length; its outputs have `last_hidden_state`."""
        return _BaseModel(self)

    @property
    def embed_tokens(self):
        """Token embeddings of the inner model."""
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

    def is_custom_code(self) -> bool:  # type: ignore[override]
        """Whether the inner model is custom code; loading does not fill the buffers of custom code."""
        return self.language_model.is_custom_code()

    @property
    def loss_function(self):
        """Loss function of the inner model, which computes the loss."""
        return self.language_model.loss_function

    @loss_function.setter
    def loss_function(self, value):
        self.language_model.loss_function = value

    @torch.no_grad()
    def _init_weights(self, module):
        init_length_weights(module, self.config)  # the inner model initializes its own weights

    def resize_token_embeddings(self, *args, **kwargs):
        """Resize the embeddings, as the base model does; units of new entries, but tokens, need `set_unit_table`."""
        embeddings = self.language_model.resize_token_embeddings(*args, **kwargs)
        self.resize_unit_table()
        return embeddings

    def _count_answers(self, args, kwargs):
        """
        Count the answers in a hook before `forward`, for trainers that replace `forward`: TRL's passes no labels to
        the base model. Without labels each row has the length `config.length`, as in `generate`.
        """
        labels, length = kwargs.get("labels"), kwargs.get("length")
        replaced = "forward" in vars(self) and self.config.length_controlled
        if not replaced or labels is None or kwargs.get("progress") is not None:
            return None
        if length is None and (length := self.config.length) is not None and self.training:
            message = "training takes config.length=%d for each row; set it to None to count the labels instead"
            warn_once(("trained at", length), message, length)
        progress, own = answer_progress(self.unit_table, labels, eos_of(self), least=int(length is None))
        return args, kwargs | {"progress": progress, "length": own if length is None else length}

    def embed_with_length(self, input_ids, inputs_embeds, labels, length, progress, cache, mask) -> torch.Tensor:
        """Embed tokens, and add the encoding of progress and length: `(batch_size, sequence_length, d)`."""
        embeds = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds  # (B, T, d)
        progress, lengths = self._progress_and_length(labels, length, progress, cache, embeds, mask)
        # `where` keeps the prompt's embeddings bit for bit; a product would not.
        signal = self.add_signal(embeds, progress.clamp(min=0), lengths)
        return torch.where((progress < 0).unsqueeze(2), embeds, signal)

    def _progress_and_length(self, labels, length, progress, cache, embeds, mask):
        """Return progress `(batch_size, sequence_length)` and lengths `(batch_size,)`."""
        rows, columns = embeds.shape[:2]
        if labels is not None and progress is None:
            progress, own = answer_progress(self.unit_table, labels, eos_of(self))
            if length is None:
                return progress, own
            if self.training and not self._checked_lengths and not torch.compiler.is_compiling():
                self._checked_lengths = True
                warn_of_column(as_length_tensor(length, rows, own.device, least=0), own, self.unit_table.unit)
        elif progress is None and self.training:
            raise ValueError(
                "training needs labels, -100 over the prompt, or progress= and length=; leave label smoothing out"
            )
        elif progress is None:
            if getattr(cache, "get_seq_length", int)():
                raise ValueError("progress cannot be counted from a cached sequence; call generate(), or pass it")
            mask = mask if mask is not None and mask.shape == (rows, columns) else None
            progress = first_progress(columns, rows, embeds.device, mask)  # all ids are the prompt
        virtual = columns - progress.shape[1]
        if virtual > 0:  # prompt tuning adds embeddings before the prompt
            progress = torch.nn.functional.pad(progress, (virtual, 0), value=-1)
        return progress, required_length(length, self.config, embeds, self.training)

    @takes_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        cache=None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        length: int | list[int] | torch.Tensor | None = None,
        progress: torch.LongTensor | None = None,
        prompt: PromptSpan | None = None,
        **kwargs,
    ):
        """
        Run the inner model's `forward` with two more arguments.

        Args:
            length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`, *optional*): Requested units of
                each answer. By default they are counted from the labels; without labels `config.length` holds.
            progress (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*): Units of the answer
                produced before each prediction, -1 where no answer is predicted. By default counted from the labels;
                without labels all of `input_ids` is the prompt, and its last token that `attention_mask` does not hide
                predicts the first token of the answer.
            prompt (`PromptSpan`, *optional*): Not used; `generate` with an adapter checks that this name exists.

        Raises:
            `ValueError`: without any length, for a length below 1, for an answer without any unit, for labels
                with several answers in a row, and in training without labels.
        """
        if self.config.length_controlled:
            given = (labels, length, progress, cache, attention_mask)
            inputs_embeds = self.embed_with_length(input_ids, inputs_embeds, *given)
            input_ids = None
        kwargs["use_cache"] = use_cache
        for name in ("output_attentions", "output_hidden_states", "return_dict"):
            if kwargs.get(name) is None and getattr(self.config, name) != getattr(self.config.text_config, name):
                kwargs[name] = getattr(self.config, name)
        some = dict.fromkeys(CACHE_NAMES, cache) | {"position_ids": position_ids, "logits_to_keep": logits_to_keep}
        # not every model has this argument
        kwargs |= {name: x for name, x in some.items() if x is not None and name in self._read_by_inner}
        return self.language_model(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, labels=labels, **kwargs
        )

    @takes_cache
    def generate(self, inputs=None, *args, cache=None, **kwargs):
        """
        Generate answers, see `LengthControlledGeneration.generate`; the length is that of the answer, behind the
        prompt.
        """
        if kwargs.get("inputs_embeds") is not None:
            raise ValueError("generate needs the prompt's ids, got inputs_embeds; pass input_ids")
        if not self.config.length_controlled:
            return super().generate(inputs, *args, **kwargs, **({} if cache is None else {CACHE: cache}))
        columns, mask = prompt_of(self, {**kwargs, "inputs": inputs})[1], kwargs.get("attention_mask")
        start = 0 if mask is None else mask.shape[-1] - columns
        if cache is not None:
            _check_cached(cache, start, columns)
            kwargs[CACHE] = cache
        outputs = super().generate(inputs, *args, **kwargs, prompt=PromptSpan(start, columns))
        for used in (cache, getattr(outputs, CACHE, None)):
            if used is not None:
                self._remove_answer(used, start + columns - 1)
        return outputs

    def _remove_answer(self, cache: Cache, first: int) -> None:
        """
        Remove the answer, from column `first`, from a cache after a call, because it contains the length encoding: the
        next call of a chat then reads the answer as prompt. A cache that cannot be cut is emptied.
        """
        try:
            cache.crop(min(first - int(cache.get_seq_length()), 0))
        except (AttributeError, NotImplementedError, RuntimeError, ValueError):  # it has a fixed size or a window
            if cache.is_compileable:
                cache.reset()  # the tensors of a fixed size stay, for the compiled code
            else:
                cache.layers[:] = DynamicCache(config=self.config.text_config).layers

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids, prompt: PromptSpan | None = None, length=None, **kwargs
    ):
        """
        Prepare the inner model's inputs, and add the progress, counted over the answer, which beam search has already
        reordered.
        """
        model_inputs = self.language_model.prepare_inputs_for_generation(input_ids, **kwargs)
        if not self.config.length_controlled:
            return model_inputs
        columns, given = model_inputs["input_ids"].shape[1], input_ids.shape[1]
        span = PromptSpan(0, given) if prompt is None else prompt
        progress = first_progress(span.columns, len(input_ids), input_ids.device)
        if span.thoughts is not None and span.closed is not None:
            closed = span.closed.repeat_interleave(len(progress) // len(span.closed))
            own = span.thoughts.progress(input_ids[:, span.columns :], closed)
            progress = torch.cat([progress[:, :-1], own], dim=1)
        elif given > span.columns:
            progress = torch.cat([progress, self.units_written(input_ids[:, span.columns :])], dim=1)
        if given < span.columns:  # `prefill_chunk_size` passes a part of the prompt, behind the cached part
            progress = progress[:, : int(kwargs[CACHE].get_seq_length()) - span.start + columns]
        # A slice whose stride grows with each step would make torch.compile compile again.
        return model_inputs | {"progress": progress[:, -columns:].contiguous(), "length": length}


def _check_cached(cache: Cache, start: int, columns: int) -> None:
    """
    Raise `ValueError` if a cache does not end before the ids of a call, `columns` of them behind `start` columns: a
    call removes its answer from the cache, so the next one needs the answer's ids.
    """
    cached = int(cache.get_seq_length())
    if start not in (0, cached) or start == 0 and columns <= cached:
        raise ValueError(
            f"a cache is read up to its answer, at token {cached}, so all ids of the chat are needed, got {columns}"
        )


def is_plain_causal(model: Any) -> bool:
    """Return whether a model is a plain causal model, which `LenCtrlForCausalLM` can contain."""
    config = model.config
    return model.can_generate() and not config.is_encoder_decoder and not hasattr(config, "length_encoding")


@torch.no_grad()
def _check_taken(plain: Any, model: LenCtrlForCausalLM) -> None:
    """Raise `ValueError` for an architecture that a length encoding cannot reach, or that would not load again."""
    reason, embed, ids = "", plain.get_input_embeddings(), torch.arange(4, device=plain.device).unsqueeze(0)
    if type(plain.config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not hasattr(plain.config, "auto_map"):
        reason = "cannot be saved with a length, because AutoModelForCausalLM does not build it"
    elif plain.config.model_type == "reformer":
        reason = "pads ids to its chunks but not embeddings"
    elif (expected := plain(ids, use_cache=False).logits).shape[-1] != embed.num_embeddings:
        reason = f"has {embed.num_embeddings} embeddings and {expected.shape[-1]} outputs"
    else:
        try:
            if not torch.equal(expected, model(ids, use_cache=False, length=4).logits):
                reason = "reads the ids beside their embeddings"
            plain(inputs_embeds=2 * embed(ids), use_cache=False)  # no token has these embeddings, as with a length
        except Exception as error:
            reason = f"does not take embeddings in the place of ids ({type(error).__name__}: {error})"
    if reason:
        raise ValueError(f"{type(plain).__name__} {reason}, so it takes no length; use another architecture")


def control_causal(plain: Any, **fields) -> LenCtrlForCausalLM:
    """
    Build a length-controlled model around `plain`, in eval mode; `fields` are those of `LengthControlRules`. Raises
    `ValueError` for a model that does not accept embeddings instead of ids, or whose outputs then differ.
    """
    # A composite configuration passes its own choice of attention on, and with None the causal mask is missing.
    # transformers 5.23 has no public name for this choice.
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
