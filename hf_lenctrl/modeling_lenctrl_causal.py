"""A wrapper that adds length control to any causal language model."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, Cache, DynamicCache, PreTrainedModel

from .answers import answer_progress, first_progress
from .bounded_generation import eos_of, prompt_of, warn_once
from .cache import CACHE, takes_cache
from .configuration_lenctrl import LenCtrlCausalLMConfig
from .generation import PromptSpan
from .length_signal import required_length, warn_of_column
from .lengths import as_length_tensor
from .wrapper import LengthControlWrapper


class _BaseModel:
    """The inner model of the wrapper `whole` without its head, which libraries such as TRL call to add a head."""

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
        """Run the model without its head. For `length` and `progress`, see `LenCtrlForCausalLM.forward`."""
        if self.whole.config.length_controlled:
            given = (None, length, progress, cache, attention_mask)
            inputs_embeds = self.whole.embed_with_length(input_ids, inputs_embeds, *given)
            input_ids = None
        kwargs |= {} if cache is None else {CACHE: cache}
        return self.inner(input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs)


class LenCtrlForCausalLM(LengthControlWrapper):
    """
    A wrapper that adds length control to a causal model, one that `AutoModelForCausalLM` loads. The wrapper's
    `forward` and `generate` take `length`.

    `length` is the length of the answer. The length encoding is added to the answer tokens, and to the last prompt
    token, which predicts the first answer token. Earlier prompt tokens get no encoding, so the same prompt cache works
    for all lengths. Earlier answers of a chat belong to the prompt.

    Args:
        config (`LenCtrlCausalLMConfig`): Configuration of the new model.
        language_model (`PreTrainedModel`, *optional*): The causal model to wrap. By default it is built from
            `config.text_config`.
    """

    config_class = LenCtrlCausalLMConfig
    inner_auto_class = AutoModelForCausalLM
    _checked_lengths = False  # whether the lengths of the first training batch were checked

    def __init__(self, config: LenCtrlCausalLMConfig, language_model: PreTrainedModel | None = None):
        super().__init__(config, language_model)
        # Trainer then treats the wrapper like the inner model
        self.accepts_loss_kwargs = getattr(self.language_model, "accepts_loss_kwargs", "kwargs" in self._read_by_inner)
        self.register_forward_pre_hook(LenCtrlForCausalLM._count_answers, with_kwargs=True)

    @property
    def base_model(self):
        """
        Return the inner model without its head, in a wrapper that takes `length`. Its outputs have
        `last_hidden_state`.
        """
        return _BaseModel(self)

    def _count_answers(self, args, kwargs):
        """
        Add the progress and the length of the answers in the labels to the arguments of `forward`. This hook is needed
        only if a trainer, such as TRL's, replaces `forward` and passes no labels to the base model. A length that
        `forward` gets, or else `config.length`, overrides the counted length.
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
        """
        Return the token embeddings, `(batch_size, sequence_length, d)`. At positions that predict a token of an
        answer, they include the encoding of progress and length. For the arguments see `forward`; `mask` is its
        `attention_mask`.
        """
        embeds = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds  # (B, T, d)
        progress, lengths = self._progress_and_length(labels, length, progress, cache, embeds, mask)
        # `where` keeps the prompt's embeddings bit for bit; a product would not.
        signal = self.add_signal(embeds, progress.clamp(min=0), lengths)
        return torch.where((progress < 0).unsqueeze(2), embeds, signal)

    def _progress_and_length(self, labels, length, progress, cache, embeds, mask):
        """
        Return the progress `(batch_size, sequence_length)` and the lengths `(batch_size,)` of the answers: those that
        are given, or else those of the labels. Without progress and labels, all ids are the prompt.
        """
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
        Run the inner model's `forward` with more arguments.

        Args:
            length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`, *optional*): Requested length of
                each answer, in units. By default it is counted from the labels; without labels, it is `config.length`.
            progress (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*): Number of units of the
                answer produced before each prediction; -1 at positions that predict no token of an answer. By default
                it is counted from the labels. If there are no labels, all `input_ids` are the prompt, and the last
                token that is not padding predicts the first token of the answer.
            prompt (`PromptSpan`, *optional*): Ignored. `generate` passes this argument itself. In a model with an
                adapter, `generate` raises an error for each argument that is not in the signature of `forward`.

        Raises:
            `ValueError`: if there is no length, if a length is below 1, if an answer has no units, if the labels of a
                row have several answers, or if labels are missing in training.
        """
        if self.config.length_controlled:
            given = (labels, length, progress, cache, attention_mask)
            inputs_embeds = self.embed_with_length(input_ids, inputs_embeds, *given)
            input_ids = None
        kwargs |= {"input_ids": input_ids, "attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
        kwargs |= {"labels": labels, "use_cache": use_cache}
        # not every model accepts `position_ids` and `logits_to_keep`
        return self._run_inner(kwargs, cache, position_ids=position_ids, logits_to_keep=logits_to_keep)

    @takes_cache
    def generate(self, inputs=None, *args, cache=None, **kwargs):
        """
        Generate answers. See `LengthControlledGeneration.generate`. `length` is the length of the answer only, not of
        the prompt.
        """
        if kwargs.get("inputs_embeds") is not None:
            raise ValueError("generate needs the prompt's ids, got inputs_embeds; pass input_ids")
        if not self.config.length_controlled or "prompt" in kwargs:  # a draft gets the span from its caller
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
        Truncate the cache at column `first`. The states of the last prompt token and of the answer contain the length
        encoding, and the next call of a chat reads the answer as prompt. Empty a cache that cannot be truncated.
        """
        try:
            cache.crop(min(first - int(cache.get_seq_length()), 0))
        except (AttributeError, NotImplementedError, RuntimeError, ValueError):  # a static or sliding-window cache
            if cache.is_compileable:
                cache.reset()  # the compiled code needs the same tensors
            else:
                cache.layers[:] = DynamicCache(config=self.config.text_config).layers

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids, prompt: PromptSpan | None = None, length=None, **kwargs
    ):
        """
        Prepare the inputs of the inner model, and add the progress (units of the answer so far). The progress is
        counted from all ids of the answer, so it is correct after beam search has reordered the rows.
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
        if given < span.columns:  # with `prefill_chunk_size`, this is the next part of the prompt
            progress = progress[:, : int(kwargs[CACHE].get_seq_length()) - span.start + columns]
        # Without `contiguous` the stride would grow at each step, and torch.compile would compile again.
        return model_inputs | {"progress": progress[:, -columns:].contiguous(), "length": length}


def _check_cached(cache: Cache, start: int, columns: int) -> None:
    """
    Raise `ValueError` if the ids of a call do not continue the cache: they must follow its `start` columns, or begin
    with the cached ids. Each call removes its answer from the cache, so the next one must pass the answer's ids.
    """
    cached = int(cache.get_seq_length())
    if start not in (0, cached) or start == 0 and columns <= cached:
        raise ValueError(
            f"the cache holds only the {cached} tokens before its answer, so pass all ids of the chat, got {columns}"
        )


LenCtrlForCausalLM.register_for_auto_class("AutoModelForCausalLM")
