"""Length-controlled BART, Marian, mBART, Pegasus, M2M100, T5, mT5 and UMT5: mixins, and classes that combine these
mixins with the unchanged classes of Transformers.
"""

from types import ModuleType
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.models.bart import modeling_bart as bart
from transformers.models.m2m_100 import modeling_m2m_100 as m2m_100
from transformers.models.marian import modeling_marian as marian
from transformers.models.mbart import modeling_mbart as mbart
from transformers.models.mt5 import modeling_mt5 as mt5
from transformers.models.pegasus import modeling_pegasus as pegasus
from transformers.models.t5 import modeling_t5 as t5
from transformers.models.umt5 import modeling_umt5 as umt5
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from .cache import CACHE, takes_cache
from .card import CardOnPush
from .configuration_lenctrl import (
    LenCtrlBartConfig,
    LenCtrlM2M100Config,
    LenCtrlMarianConfig,
    LenCtrlMBartConfig,
    LenCtrlMT5Config,
    LenCtrlPegasusConfig,
    LenCtrlT5Config,
    LenCtrlUMT5Config,
)
from .controlled_parts import (
    CONTROLLED,
    LengthControlledDecoder,
    LengthControlledEncoder,
    PositionsOfIds,
    control,
    pair_mask,
)
from .generation import LengthControlledGeneration
from .length_head import LengthHeadAttention
from .length_signal import CountsLabels, init_length_weights, tell_peft


class _LengthControlBase(CountsLabels):
    """Base class of the models, with and without a head, which adds length control to the parts of a model."""

    config: PreTrainedConfig

    def __init__(self, config):
        config.validate()  # checks values set after construction (`from_pretrained(path, length=75)`)
        checkpointing = getattr(config, "gradient_checkpointing", False)  # building the first part removes this field
        super().__init__(config)
        self.add_length_control()
        self.post_init()
        tell_peft(config)
        if checkpointing:
            self.gradient_checkpointing_enable()

    def add_length_control(self: Any) -> None:
        """Add length control to the encoder and the decoder, which the base class in Transformers has built."""
        if hasattr(self, "model"):
            control(self.model, LengthControlledModel)
        else:  # a base model, or T5 with its language-model head
            control(self.encoder, LengthControlledEncoder)
            control(self.decoder, LengthControlledDecoder)
            if self.config.encoder_length_embedding and self.config.length_encoding == "learned":
                self.encoder.share_length_table(self.decoder)

    def get_decoder(self: Any):
        """Return the decoder, faster than the base class, because `generate` calls this method at each step."""
        return self.base_model.decoder

    def resize_token_embeddings(self: Any, *args, **kwargs):
        """
        Resize the token embeddings and the unit table. Units of new entries, other than tokens, are unknown until the
        caller calls `set_unit_table`.
        """
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        self.get_decoder().resize_unit_table()
        return embeddings

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        init_length_weights(module, self.config)


class LengthControlledModel(_LengthControlBase):
    """Base model, without a language-model head. Its `forward` takes `length`."""

    def forward(self, input_ids=None, attention_mask=None, decoder_input_ids=None, *args, length=None, **kwargs):
        """Run the base model's `forward`. For `length` and `progress`, see `LengthControlledDecoder.forward`."""
        if length is None:
            length = self._length_of_rows(None, decoder_input_ids)
        return super().forward(input_ids, attention_mask, decoder_input_ids, *args, length=length, **kwargs)


class LengthControlledForConditionalGeneration(CardOnPush, _LengthControlBase, LengthControlledGeneration):
    """Model with a language-model head. Its `forward` and `generate` take `length`."""

    # The loss is a mean. By default Trainer would assume that a `forward` with **kwargs divides the loss by
    # `num_items_in_batch`, and would multiply gradients by the number of accumulation steps and of processes.
    accepts_loss_kwargs = False
    model_class: type

    # Every argument has a name here, because Trainer and `generate` drop columns and arguments without a name.
    @takes_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs=None,
        cache=None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        length: int | list[int] | torch.Tensor | None = None,
        progress: torch.LongTensor | None = None,
        pair_ids: torch.LongTensor | None = None,
        decoder_pair_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ):
        """
        Run the base model's `forward` with more arguments.

        Args:
            length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`, *optional*): Requested length in
                units. By default it is counted from `labels`. Without labels, it is counted from `decoder_input_ids`
                in training, and it is `config.length` otherwise.
            progress (`torch.LongTensor` of shape `(batch_size, target_sequence_length)`, *optional*): See
                `LengthControlledDecoder.forward`.
            pair_ids (`torch.LongTensor` of shape `(batch_size, source_sequence_length)`, *optional*): For packed rows,
                which hold several pairs of source and target: the id of each source token's pair, 0 for padding.
                Attention and positions stay within a pair. The attention masks are ignored, and `length` has the shape
                of `progress`.
            decoder_pair_ids (`torch.LongTensor` of shape `(batch_size, target_sequence_length)`, *optional*): The id
                of each target token's pair.

        Raises:
            `ValueError`: if there is no length, if a length is below 1, or if the labels of a row are only padding.
        """
        if labels is not None and cache is not None and progress is None and self.config.counts_progress:
            # In prefix tuning the cache holds virtual tokens, which add no units; the labels are the whole target.
            whole = decoder_input_ids
            ids = self.prepare_decoder_input_ids_from_labels(labels) if whole is None else whole
            progress = self.get_decoder().units_written(ids)
        if pair_ids is not None and decoder_pair_ids is not None:
            if self.config.length_controlled and (length is None or self.config.counts_progress and progress is None):
                raise ValueError("packed rows need length and progress, as DataCollatorForLengthControl makes them")
            within = pair_mask(pair_ids, pair_ids, self.dtype)
            encoder_outputs = self.get_encoder()(input_ids=input_ids, attention_mask=within, pair_ids=pair_ids)
            attention_mask = pair_mask(decoder_pair_ids, pair_ids, self.dtype)
            decoder_attention_mask = pair_mask(decoder_pair_ids, decoder_pair_ids, self.dtype, causal=True)
            kwargs["pair_ids"] = decoder_pair_ids  # type: ignore[typeddict-unknown-key]
        elif length is None:
            length = self._length_of_rows(labels, decoder_input_ids)
        elif self.training and self.config.length_controlled:
            self._check_lengths(length, labels if decoder_input_ids is None else decoder_input_ids)
        return super().forward(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            labels=labels,
            use_cache=use_cache,
            length=length,
            progress=progress,
            **{CACHE: cache},
            **kwargs,
        )

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        """
        Prepare the inputs, as the base class does, and add the progress (units so far). The progress is counted from
        all ids of each row, so it is correct after beam search has reordered the rows.
        """
        model_inputs = super().prepare_inputs_for_generation(input_ids, **kwargs)
        if self.config.counts_progress:
            progress = self.get_decoder().units_written(input_ids)  # (B * beams, T)
            # Without `contiguous` the stride would grow at each step, and torch.compile would compile again.
            model_inputs["progress"] = progress[:, -model_inputs["decoder_input_ids"].shape[1] :].contiguous()
        return model_inputs

    def _reorder_cache(self, cache, beam_idx: torch.Tensor):
        """Reorder only the self-attention cache; the cross-attention cache is the same for all beams."""
        cache.self_attention_cache.reorder_cache(beam_idx)
        return cache


class LenCtrlBartModel(LengthControlledModel, bart.BartModel):
    """`BartModel` whose `forward` takes `length`."""

    config_class = LenCtrlBartConfig


class LenCtrlBartForConditionalGeneration(LengthControlledForConditionalGeneration, bart.BartForConditionalGeneration):
    """`BartForConditionalGeneration` whose `forward` and `generate` take `length`."""

    config_class, model_class = LenCtrlBartConfig, LenCtrlBartModel


class _ResizesDecoder:
    """Mixin for Marian, whose decoder may have its own embeddings, which are resized with the unit table."""

    def resize_decoder_token_embeddings(self: Any, *args, **kwargs):
        embeddings = super().resize_decoder_token_embeddings(*args, **kwargs)
        self.get_decoder().resize_unit_table()
        return embeddings


class LenCtrlMarianModel(_ResizesDecoder, LengthControlledModel, marian.MarianModel):
    """`MarianModel` whose `forward` takes `length`."""

    config_class = LenCtrlMarianConfig


class LenCtrlMarianMTModel(_ResizesDecoder, LengthControlledForConditionalGeneration, marian.MarianMTModel):
    """`MarianMTModel` whose `forward` and `generate` take `length`."""

    config_class, model_class = LenCtrlMarianConfig, LenCtrlMarianModel


class LenCtrlMBartModel(LengthControlledModel, mbart.MBartModel):
    """`MBartModel` whose `forward` takes `length`."""

    config_class = LenCtrlMBartConfig


class LenCtrlMBartForConditionalGeneration(
    LengthControlledForConditionalGeneration, mbart.MBartForConditionalGeneration
):
    """`MBartForConditionalGeneration` whose `forward` and `generate` take `length`."""

    config_class, model_class = LenCtrlMBartConfig, LenCtrlMBartModel


class LenCtrlPegasusModel(LengthControlledModel, pegasus.PegasusModel):
    """`PegasusModel` whose `forward` takes `length`."""

    config_class = LenCtrlPegasusConfig


class LenCtrlPegasusForConditionalGeneration(
    LengthControlledForConditionalGeneration, pegasus.PegasusForConditionalGeneration
):
    """`PegasusForConditionalGeneration` whose `forward` and `generate` take `length`."""

    config_class, model_class = LenCtrlPegasusConfig, LenCtrlPegasusModel


class LenCtrlM2M100Model(LengthControlledModel, m2m_100.M2M100Model):
    """`M2M100Model` whose `forward` takes `length`."""

    config_class = LenCtrlM2M100Config


class LenCtrlM2M100ForConditionalGeneration(
    LengthControlledForConditionalGeneration, m2m_100.M2M100ForConditionalGeneration
):
    """`M2M100ForConditionalGeneration` whose `forward` and `generate` take `length`."""

    config_class, model_class = LenCtrlM2M100Config, LenCtrlM2M100Model

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """
        Return the decoder input ids: the labels, shifted to the right. `DataCollatorForSeq2Seq` calls this method,
        which `M2M100ForConditionalGeneration` lacks.
        """
        return m2m_100.shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)


class LenCtrlT5Model(LengthControlledModel, t5.T5Model):
    """`T5Model` whose `forward` takes `length`."""

    config_class = LenCtrlT5Config


class LenCtrlT5ForConditionalGeneration(LengthControlledForConditionalGeneration, t5.T5ForConditionalGeneration):
    """`T5ForConditionalGeneration` whose `forward` and `generate` take `length`."""

    config_class, model_class = LenCtrlT5Config, LenCtrlT5Model


class LenCtrlMT5Model(LengthControlledModel, mt5.MT5Model):
    """`MT5Model` whose `forward` takes `length`."""

    config_class = LenCtrlMT5Config


class LenCtrlMT5ForConditionalGeneration(LengthControlledForConditionalGeneration, mt5.MT5ForConditionalGeneration):
    """`MT5ForConditionalGeneration` whose `forward` and `generate` take `length`."""

    config_class, model_class = LenCtrlMT5Config, LenCtrlMT5Model


class LenCtrlUMT5Model(LengthControlledModel, umt5.UMT5Model):
    """`UMT5Model` whose `forward` takes `length`."""

    config_class = LenCtrlUMT5Config


class LenCtrlUMT5ForConditionalGeneration(LengthControlledForConditionalGeneration, umt5.UMT5ForConditionalGeneration):
    """`UMT5ForConditionalGeneration` whose `forward` and `generate` take `length`."""

    config_class, model_class = LenCtrlUMT5Config, LenCtrlUMT5Model


def _make_parts(head: Any, stock: ModuleType) -> None:
    """
    Create the classes `LenCtrl{Family}{Encoder,Decoder,Attention}` of a model family for the function `control`, from
    the classes in `stock`, a module of Transformers. They exist as soon as this module is imported, so that another
    process can unpickle a model.
    """
    family = head.model_class.__name__.removeprefix("LenCtrl").removesuffix("Model")
    parts = {"Encoder": LengthControlledEncoder, "Decoder": LengthControlledDecoder, "Attention": LengthHeadAttention}
    if family == "M2M100":
        parts["SinusoidalPositionalEmbedding"] = PositionsOfIds
    for part, mixin in parts.items():
        base = getattr(stock, f"{family}{part}", None) or getattr(stock, f"{family}Stack")  # T5 has one class for both
        name = f"LenCtrl{family}{part}"
        fields = {"__module__": __name__, "__doc__": f"`{base.__name__}` with length control; see `{mixin.__name__}`."}
        if part in ("Encoder", "Decoder"):
            fields["config_class"] = head.config_class
        globals()[name] = CONTROLLED[mixin, base] = type(name, (mixin, base), fields)
    CONTROLLED[LengthControlledModel, getattr(stock, f"{family}Model")] = head.model_class
    for made in (globals()[f"LenCtrl{family}Encoder"], globals()[f"LenCtrl{family}Decoder"], head.model_class):
        # transformers records hidden states and attentions only for registered classes. transformers 5.23 registers a
        # class in `__init__`, but `control` replaces a class later. There is no public function for this.
        dict.__setitem__(_CAN_RECORD_REGISTRY, str(made), made._can_record_outputs)


# Our model class for each model type of Transformers; NLLB's checkpoints have the type m2m_100. Conversion,
# registration and the classes of the parts use this table.
FAMILIES: dict[str, Any] = {
    "bart": LenCtrlBartForConditionalGeneration,
    "marian": LenCtrlMarianMTModel,
    "mbart": LenCtrlMBartForConditionalGeneration,
    "pegasus": LenCtrlPegasusForConditionalGeneration,
    "m2m_100": LenCtrlM2M100ForConditionalGeneration,
    "t5": LenCtrlT5ForConditionalGeneration,
    "mt5": LenCtrlMT5ForConditionalGeneration,
    "umt5": LenCtrlUMT5ForConditionalGeneration,
}
for _type, _head in FAMILIES.items():
    _make_parts(_head, globals()[_type])
    # `save_pretrained` then copies this file and its imports, for `trust_remote_code=True` without the package.
    _head.model_class.register_for_auto_class("AutoModel")
    _head.register_for_auto_class("AutoModelForSeq2SeqLM")
__all__ = [_class.__name__ for _head in FAMILIES.values() for _class in (_head, _head.model_class)]
