"""Length-controlled BART and Marian: mixins over the untouched Hugging Face classes, then the classes of each
family."""

import torch
from torch import nn
from transformers import initialization as init
from transformers.models.bart.modeling_bart import (
    BartDecoder,
    BartEncoder,
    BartForConditionalGeneration,
    BartModel,
)
from transformers.models.marian.modeling_marian import (
    MarianDecoder,
    MarianEncoder,
    MarianModel,
    MarianMTModel,
)

from .configuration_lenctrl import LenCtrlBartConfig, LenCtrlMarianConfig, check_length
from .length_encoding import LENGTH_ENCODINGS
from .length_units import UnitTable


def as_length_tensor(length, batch_size: int, device: torch.device) -> torch.Tensor:
    """
    Check a requested length and spread it over the batch.

    Args:
        length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`): Wanted units, each at least 1.
        batch_size (`int`): Rows of the batch.
        device (`torch.device`): Where the result goes.

    Returns:
        `torch.LongTensor` of shape `(batch_size,)`.

    Raises:
        `TypeError`: for anything but integers (a `bool`, a float, NaN, a string).
        `ValueError`: for a length under 1, or a list or tensor of another size than the batch.
    """
    if isinstance(length, torch.Tensor):
        if length.dtype.is_floating_point or length.dtype.is_complex or length.dtype == torch.bool:
            raise TypeError(f"length must be an integer tensor, got dtype {length.dtype}; pass length.long()")
    elif isinstance(length, (list, tuple)):
        for item in length:
            check_length(item)
        length = torch.tensor(length, dtype=torch.long)
    else:
        check_length(length)
        return torch.full((batch_size,), length, dtype=torch.long, device=device)
    if length.shape != (batch_size,):
        raise ValueError(
            f"length must hold one integer for each of the {batch_size} examples of the batch, got shape "
            f"{tuple(length.shape)}; pass an int for the whole batch or a list of {batch_size}"
        )
    # Reading a value back from an accelerator would stall a training step, so there only `generate` looks.
    if length.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_positive(length)
    return length.to(device=device, dtype=torch.long)


def _check_positive(length: torch.Tensor) -> None:
    if bool((length < 1).any()):
        raise ValueError(
            f"length must be at least 1 for every example, got {length.tolist()}; drop empty targets or pass length>=1"
        )


class _NoPositions(nn.Module):
    """Stands where the decoder's positions stood when the length encoding replaces them."""

    def forward(self, *args, position_ids: torch.Tensor, **kwargs) -> torch.Tensor:
        return torch.zeros((), device=position_ids.device)


class _KeepsUnitTable:
    """Unit table of new models, of checkpoints that bring none, and after the embeddings were resized."""

    def resize_token_embeddings(self, *args, **kwargs):
        """The base model's method; tokens new to a character model must be counted again: `set_unit_table`."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        self.get_decoder().resize_unit_table()
        return embeddings

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, UnitTable):  # `init` leaves alone what was loaded
            init.copy_(module.weights, UnitTable.from_config(self.config, len(module.weights)).weights)


class LengthControlledEncoder(_KeepsUnitTable):
    """Encoder that leaves length to the decoder: `generate` and the models hand both the same keyword arguments."""

    def forward(self, *args, length=None, progress=None, **kwargs):
        return super().forward(*args, **kwargs)


class LengthControlledDecoder(_KeepsUnitTable):
    """
    Decoder that adds a length encoding to its token embeddings.

    The sum is handed to the parent's `forward` as `inputs_embeds`; nothing of it is copied. Without
    `config.absolute_positions` the decoder's own positions are left out, as in the papers' LDPE and LRPE.
    """

    def __init__(self, config):
        config.validate()  # a value set after construction (`from_pretrained(path, length=75)`) is checked here
        super().__init__(config)
        self.unit_table = UnitTable.from_config(config, self.embed_tokens.num_embeddings)
        if not config.absolute_positions:
            self.embed_positions = _NoPositions()

    def resize_unit_table(self) -> None:
        """Give the unit table as many entries as the embedding has, new ones as in `UnitTable.from_config`."""
        old, size = self.unit_table.weights, self.embed_tokens.num_embeddings
        if old.shape[0] != size:
            new = UnitTable.from_config(self.config, size).to(old.device)
            new.weights[: len(old)] = old[:size]
            self.unit_table = new

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        *,
        inputs_embeds: torch.Tensor | None = None,
        past_key_values=None,
        length: int | list[int] | torch.Tensor | None = None,
        progress: torch.LongTensor | None = None,
        **kwargs,
    ):
        """
        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`): Decoder input ids.
            length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`, *optional*): Wanted units;
                defaults to `config.length`.
            progress (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*): Units written before
                each prediction; counted from `input_ids` when not given. A step with a filled cache, which sees the
                last token alone, and a call with embeddings instead of ids must bring it.

        Raises:
            `ValueError`: without any length, where progress can neither be counted nor was given, or past the last
                absolute position.
        """
        given = input_ids if inputs_embeds is None else inputs_embeds
        if given is not None and self.config.absolute_positions and not torch.compiler.is_compiling():
            tokens = given.shape[1]
            seen = 0 if past_key_values is None else past_key_values.get_seq_length()
            if seen + tokens > self.config.max_position_embeddings:
                raise ValueError(
                    f"the decoder was given {seen + tokens} tokens, its absolute positions end at "
                    f"{self.config.max_position_embeddings}; ask for less, or use a model with a larger "
                    "max_position_embeddings or with absolute_positions=False"
                )
        if self.config.length_encoding == "none":
            if length is not None:
                raise ValueError(
                    "length was given to a model with length_encoding='none', which cannot use it; leave it out, or "
                    "build the model with length_encoding='ldpe', 'lrpe' or 'pre'"
                )
            return super().forward(input_ids, inputs_embeds=inputs_embeds, past_key_values=past_key_values, **kwargs)
        if progress is None:
            if input_ids is None:
                raise ValueError(
                    "progress cannot be counted from decoder_inputs_embeds; pass decoder_input_ids, or "
                    "progress=(batch_size, sequence_length) with the units written before each position"
                )
            if past_key_values is not None and past_key_values.get_seq_length() > 0:
                raise ValueError(
                    "progress cannot be counted from the last token of a cached sequence; call generate(), or pass "
                    "progress=(batch_size, sequence_length) with the units written before each position"
                )
            progress = self.unit_table.progress(input_ids)  # (B, T)
        length = self.config.length if length is None else length
        if length is None:
            raise ValueError(
                "no length was given; pass it to the call (model.generate(**inputs, length=75), model(..., length=75) "
                "or labels to count it from) or set a default: from_pretrained(path, length=75)"
            )
        lengths = as_length_tensor(length, progress.shape[0], progress.device)  # (B,)
        encode = LENGTH_ENCODINGS[self.config.length_encoding]
        encoding = encode(progress, lengths.unsqueeze(1), self.config.d_model)  # (B, T, d), float32
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)  # (B, T, d)
        # Marian's decoder multiplies the embeddings it is given by embed_scale, BART's did so in embed_tokens
        encoding = encoding / getattr(self, "embed_scale", 1.0)
        return super().forward(
            inputs_embeds=inputs_embeds + encoding.to(inputs_embeds.dtype), past_key_values=past_key_values, **kwargs
        )


class LengthControlledModel(_KeepsUnitTable):
    """Encoder and decoder of the classes named by the family, in the base model's place."""

    encoder_class: type
    decoder_class: type

    def __init__(self, config):
        super().__init__(config)
        self.encoder = self.encoder_class(config)
        self.decoder = self.decoder_class(config)
        self.post_init()

    def set_unit_table(self, tokenizer) -> None:
        """
        Fill the table of units for the decoder's vocabulary; it is saved with the model.

        Raises:
            `ValueError`: when the tokenizer's vocabulary is not the decoder's.
        """
        table = UnitTable.from_tokenizer(tokenizer, self.config.length_unit).to(self.decoder.unit_table.weights.device)
        if table.weights.shape != self.decoder.unit_table.weights.shape:
            raise ValueError(
                f"the tokenizer's target vocabulary has {table.weights.shape[0]} entries, the decoder's embedding "
                f"{self.decoder.unit_table.weights.shape[0]}; pass the tokenizer this model was built for"
            )
        self.decoder.unit_table = table


class LengthControlledForConditionalGeneration(_KeepsUnitTable):
    """Language-model head with `length` in `forward` and `generate`."""

    # The loss is a mean. Trainer takes the **kwargs of `forward` for a promise to divide it by `num_items_in_batch`
    # and would multiply gradients by the number of accumulation steps and of processes.
    accepts_loss_kwargs = False
    model_class: type

    def __init__(self, config):
        super().__init__(config)
        self.model = self.model_class(config)
        self.post_init()

    def set_unit_table(self, tokenizer) -> None:
        """Fill the table of units for the decoder's vocabulary; see `LengthControlledModel.set_unit_table`."""
        self.model.set_unit_table(tokenizer)

    # Every name is written out: Trainer keeps the columns and `generate` accepts the arguments that it finds here.
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs=None,
        past_key_values=None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        length: int | list[int] | torch.Tensor | None = None,
        progress: torch.LongTensor | None = None,
        **kwargs,
    ):
        """
        The base model's `forward` with two more arguments.

        Args:
            length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`, *optional*): Wanted units.
                Without it they are counted from `labels` (the training rule of Takase & Okazaki 2019, section 3.1),
                else `config.length` holds.
            progress (`torch.LongTensor` of shape `(batch_size, target_sequence_length)`, *optional*): See
                `LengthControlledDecoder.forward`.

        Raises:
            `ValueError`: without any length, for a length under 1, and for labels with nothing but padding.
        """
        if labels is not None and length is None and self.config.length_encoding != "none":
            length = self.count_labels(labels)
        return super().forward(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            labels=labels,
            use_cache=use_cache,
            length=length,
            progress=progress,
            **kwargs,
        )

    def count_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Units of each row of `labels (batch_size, target_sequence_length)`, -100 for padding; never 0."""
        length = self.model.decoder.unit_table.count(labels.masked_fill(labels == -100, self.config.pad_token_id))
        if not torch.compiler.is_compiling() and bool((length < 1).any()):
            raise ValueError(
                f"every row of labels must hold at least one {self.config.length_unit}, got {length.tolist()}; "
                "drop the rows whose target is empty or all padding"
            )
        return length

    @torch.no_grad()
    def generate(self, inputs=None, generation_config=None, *args, length=None, **kwargs):
        """
        `GenerationMixin.generate` with a length.

        Unless the call sets `max_length` or `max_new_tokens` (itself or in `generation_config`), the limit on new
        tokens is made from the length and is generous, so that it cuts no output short.

        Args:
            length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`, *optional*): Wanted units for
                the whole batch or for each example; defaults to `config.length`.

        Raises:
            `TypeError`, `ValueError`: for a length that is missing, no integer, under 1, of another size than the
                batch or more than the decoder's positions can hold.
        """
        if self.config.length_encoding == "none":
            if length is not None:
                kwargs["length"] = length  # refused by the decoder, with the reason
            return super().generate(inputs, generation_config, *args, **kwargs)
        length = self.config.length if length is None else length
        if length is None:
            raise ValueError(
                "no length was given; pass it to the call, model.generate(**inputs, length=75) or "
                "length=[30, 50, ...] for each example, or set a default: from_pretrained(path, length=75)"
            )
        length = as_length_tensor(length, self._batch_size(inputs, kwargs), self.device)  # (B,)
        _check_positive(length)
        prompt = kwargs.get("decoder_input_ids")
        prompt_length = 1 if prompt is None else prompt.shape[1]
        limit = self._token_limit(int(length.max()), prompt_length)
        given = [generation_config.max_length, generation_config.max_new_tokens] if generation_config else []
        given += [kwargs.get("max_length"), kwargs.get("max_new_tokens")]
        if all(value is None for value in given):
            kwargs.update(max_length=limit, max_new_tokens=None)
        return super().generate(inputs, generation_config, *args, length=length, **kwargs)

    def _batch_size(self, inputs, kwargs) -> int:
        for value in (inputs, kwargs.get("input_ids"), kwargs.get("inputs_embeds"), kwargs.get("decoder_input_ids")):
            if value is not None:
                return value.shape[0]
        if kwargs.get("encoder_outputs") is not None:
            return kwargs["encoder_outputs"][0].shape[0]
        return 1  # as GenerationMixin does when it is given nothing

    def _token_limit(self, length: int, prompt_length: int) -> int:
        """Decoder positions for outputs of `length` units: room for an output twice as long, within the positions."""
        limit = prompt_length + 2 * length + 32
        if not self.config.absolute_positions:
            return limit
        positions = self.config.max_position_embeddings
        largest = int(self.model.decoder.unit_table.weights.max())
        needed = -(-length // max(largest, 1)) + 1  # EOS is predicted one position after the last token
        if needed > positions:
            raise ValueError(
                f"length={length} needs at least {needed} decoder positions, the model has {positions}; ask for less "
                f"or use a model with a larger max_position_embeddings or with absolute_positions=False"
            )
        return min(limit, positions + 1)  # the last token is never read

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        """Add progress, counted over the whole running sequence, which beam search has already reordered."""
        model_inputs = super().prepare_inputs_for_generation(input_ids, **kwargs)
        if self.config.length_encoding != "none":
            progress = self.model.decoder.unit_table.progress(input_ids)  # (B * beams, T)
            model_inputs["progress"] = progress[:, -model_inputs["decoder_input_ids"].shape[1] :]
        return model_inputs


class LenCtrlBartEncoder(LengthControlledEncoder, BartEncoder):
    """`BartEncoder` that ignores length."""

    config_class = LenCtrlBartConfig


class LenCtrlBartDecoder(LengthControlledDecoder, BartDecoder):
    """`BartDecoder` with a length encoding; see `LengthControlledDecoder`."""

    config_class = LenCtrlBartConfig


class LenCtrlBartModel(LengthControlledModel, BartModel):
    """`BartModel` whose `forward` takes `length`."""

    config_class = LenCtrlBartConfig
    encoder_class = LenCtrlBartEncoder
    decoder_class = LenCtrlBartDecoder


class LenCtrlBartForConditionalGeneration(LengthControlledForConditionalGeneration, BartForConditionalGeneration):
    """`BartForConditionalGeneration` whose `forward` and `generate` take `length`."""

    config_class = LenCtrlBartConfig
    model_class = LenCtrlBartModel


class LenCtrlMarianEncoder(LengthControlledEncoder, MarianEncoder):
    """`MarianEncoder` that ignores length."""

    config_class = LenCtrlMarianConfig


class LenCtrlMarianDecoder(LengthControlledDecoder, MarianDecoder):
    """`MarianDecoder` with a length encoding; see `LengthControlledDecoder`."""

    config_class = LenCtrlMarianConfig


class LenCtrlMarianModel(LengthControlledModel, MarianModel):
    """`MarianModel` whose `forward` takes `length`."""

    config_class = LenCtrlMarianConfig
    encoder_class = LenCtrlMarianEncoder
    decoder_class = LenCtrlMarianDecoder

    def resize_decoder_token_embeddings(self, *args, **kwargs):
        embeddings = super().resize_decoder_token_embeddings(*args, **kwargs)
        self.decoder.resize_unit_table()
        return embeddings


class LenCtrlMarianMTModel(LengthControlledForConditionalGeneration, MarianMTModel):
    """`MarianMTModel` whose `forward` and `generate` take `length`."""

    config_class = LenCtrlMarianConfig
    model_class = LenCtrlMarianModel

    def resize_decoder_token_embeddings(self, *args, **kwargs):
        embeddings = super().resize_decoder_token_embeddings(*args, **kwargs)
        self.model.decoder.resize_unit_table()
        return embeddings


# `save_pretrained` then ships this file and those it imports, for `trust_remote_code=True` without the package
LenCtrlBartModel.register_for_auto_class("AutoModel")
LenCtrlBartForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")
LenCtrlMarianModel.register_for_auto_class("AutoModel")
LenCtrlMarianMTModel.register_for_auto_class("AutoModelForSeq2SeqLM")
