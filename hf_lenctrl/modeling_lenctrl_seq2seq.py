"""A wrapper that adds length control to any encoder-decoder: LED, LongT5, T5Gemma and others."""

import torch
from transformers import AutoModelForSeq2SeqLM

from .cache import takes_cache
from .configuration_lenctrl import LenCtrlSeq2SeqLMConfig
from .length_signal import CountsLabels, required_length
from .lengths import refuse_length
from .wrapper import LengthControlWrapper


class LenCtrlForSeq2SeqLM(CountsLabels, LengthControlWrapper):  # type: ignore[misc, override]
    """
    A wrapper that adds length control to an encoder-decoder, one that `AutoModelForSeq2SeqLM` loads. The wrapper's
    `forward` and `generate` take `length`. Only the decoder reads the length.

    Args:
        config (`LenCtrlSeq2SeqLMConfig`): Configuration of the new model.
        language_model (`PreTrainedModel`, *optional*): The encoder-decoder to wrap. By default it is built from
            `config.text_config`.
    """

    config_class = LenCtrlSeq2SeqLMConfig
    inner_auto_class = AutoModelForSeq2SeqLM
    length_name = "decoder_length"  # `generate` passes arguments with the prefix `decoder_` to no encoder
    accepts_loss_kwargs = False  # see LengthControlledForConditionalGeneration

    @property
    def embed_tokens(self):
        """Return the token embeddings of the decoder. Raise `ValueError` if the decoder has no embeddings."""
        decoder = self.language_model.get_decoder()
        if not hasattr(decoder, "get_input_embeddings"):  # FSMT's decoder lacks this method
            name = type(self.language_model).__name__
            raise ValueError(f"the decoder of {name} is not a model, so it takes no length; use another architecture")
        return decoder.get_input_embeddings()

    @property
    def encoder(self):
        """
        Return the encoder. Through it, `generate` accepts arguments of the encoder, such as LED's
        `global_attention_mask`.
        """
        return self.language_model.get_encoder()

    @property
    def _positions(self) -> int | None:
        """Return the maximum number of decoder positions; `None` if there is no maximum."""
        config = self.config.text_config
        names = ("max_decoder_position_embeddings", "max_position_embeddings")  # LED has the first name
        found = (getattr(part, name, None) for part in (config, self.config.get_text_config(True)) for name in names)
        return next((positions for positions in found if positions is not None), None)

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Shift the labels `(batch_size, target_sequence_length)` to the right, and put the start token first."""
        inner = self.language_model
        if hasattr(inner, "prepare_decoder_input_ids_from_labels"):
            return inner.prepare_decoder_input_ids_from_labels(labels)
        ids = labels.roll(1, dims=1)
        ids[:, 0] = self.config.decoder_start_token_id
        return ids.masked_fill(ids == -100, self.config.pad_token_id)

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
        progress: torch.Tensor | None = None,
        **kwargs,
    ):
        """
        Run the inner model's `forward` with two more arguments, `length` and `progress`.

        For both arguments and for errors, see `LengthControlledForConditionalGeneration.forward`. The other arguments
        are those of the inner model. If `config.length_controlled` is true (the network reads the length), the call
        needs decoder ids, decoder embeddings or labels. If it is false, the call accepts no `length`.
        """
        ids: torch.Tensor | None = decoder_input_ids
        embeds: torch.Tensor | None = decoder_inputs_embeds
        if ids is None and embeds is None and labels is not None:
            ids = self.prepare_decoder_input_ids_from_labels(labels)
        if self.config.length_controlled:
            if ids is None and embeds is None:
                raise ValueError("the decoder has no input; pass decoder_input_ids or labels, or call generate()")
            if length is None:
                length = self._length_of_rows(labels, ids)
            elif self.training:
                self._check_lengths(length, ids if labels is None else labels)
            embeds = self.embed_tokens(ids) if embeds is None else embeds  # (B, T, d)
            if progress is None and self.config.counts_progress:
                # labels are the whole target, so a cache holds only the virtual tokens of prefix tuning
                progress = self.count_progress(ids, cache if labels is None else None)  # (B, T)
            lengths = required_length(length, self.config, embeds, self.training)  # (B,)
            ids, embeds = None, self.add_signal(embeds, progress, lengths)
        elif length is not None:
            refuse_length()
        kwargs |= {"input_ids": input_ids, "attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
        kwargs |= {"decoder_input_ids": ids, "decoder_inputs_embeds": embeds, "labels": labels, "use_cache": use_cache}
        kwargs |= {"decoder_attention_mask": decoder_attention_mask, "encoder_outputs": encoder_outputs}
        return self._run_inner(kwargs, cache)

    def _prepare_generation_config(self, generation_config, **kwargs):
        """
        Rename the argument `length` to `length_name`, so that `generate` does not pass it to the encoder.
        """
        config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        return config, {self.length_name if name == "length" else name: x for name, x in model_kwargs.items()}

    def prepare_inputs_for_generation(self, input_ids, decoder_length=None, **kwargs):  # type: ignore[override]
        """
        Prepare the inner model's inputs. Add the length, and the progress (units so far), counted from all ids of a
        row.
        """
        model_inputs = self.language_model.prepare_inputs_for_generation(input_ids, **kwargs)
        if not self.config.length_controlled:
            return model_inputs
        if self.config.counts_progress:
            progress = self.units_written(input_ids)  # (B * beams, T)
            # Without `contiguous` the stride would grow at each step, and torch.compile would compile again.
            columns = model_inputs["decoder_input_ids"].shape[1]
            model_inputs["progress"] = progress[:, -columns:].contiguous()
        return model_inputs | {"length": decoder_length}


LenCtrlForSeq2SeqLM.register_for_auto_class("AutoModelForSeq2SeqLM")
