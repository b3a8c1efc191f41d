"""The length signal for a decoder's token embeddings: the encoding of progress (units so far) and length."""

import logging
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedConfig
from transformers import initialization as init

from .custom_pipeline import custom_pipelines
from .length_encoding import FAIRSEQ_ENCODINGS, LENGTH_ENCODINGS, fairseq_sinusoidal, pre
from .length_head import LengthHeadOutput
from .length_units import Unit, UnitTable
from .lengths import as_length_tensor, given_or_default, plural
from .shards import check_shards


logger = logging.getLogger(__name__)

# Modules of length control. An adapter must train them; otherwise a new projection stays zero, and the length has no
# effect.
LENGTH_MODULES = ["length_projection", "length_embedding", "length_out"]


class LengthProjection(nn.Linear):
    """Linear layer from the length encoding to a pretrained decoder, which starts unchanged: the weights are zero."""


class EncoderLengthEmbedding(nn.Embedding):
    """
    The table W^l of Nguyen et al. 2023, with a row for each length. The row of the requested length is added to each
    input of the encoder (eq. 16). If `length_encoding` is `"learned"`, the row of the remaining length is added to the
    decoder's embeddings (eq. 18). The table starts at zero, so that a pretrained model starts unchanged.
    """


def tell_peft(config) -> None:
    """
    Register in PEFT the default target modules for the model type of a configuration, if a script has imported PEFT.
    The targets are the modules of length control, which an adapter then trains and saves, and some modules of the
    pretrained model. The latter are the query and value projections of attention. If the configuration is of a wrapper
    (see `wrapper`) and PEFT knows the wrapped model, the latter are PEFT's own targets for the wrapped model.
    """
    peft = sys.modules.get("peft.utils")
    if peft is not None:
        attention = ["q", "v"] if hasattr(config, "relative_attention_num_buckets") else ["q_proj", "v_proj"]
        targets = peft.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
        inner = getattr(config, "text_config", None)  # PEFT may know the target modules of the inner model
        attention = targets.get(getattr(inner, "model_type", None), attention)
        targets.setdefault(config.model_type, [*attention, *LENGTH_MODULES])


def init_length_weights(module: nn.Module, config) -> None:
    """Initialize the weights of a module of length control. Weights that were loaded do not change."""
    if isinstance(module, UnitTable):  # a new model, or a checkpoint without a table
        table = UnitTable.from_config(config, module.weights.shape[1])
        init.copy_(module.weights, table.weights)
        init.copy_(module.next_state, table.next_state)
        init.copy_(module.unit_code, table.unit_code)
    elif isinstance(module, (LengthProjection, EncoderLengthEmbedding, LengthHeadOutput)):
        init.zeros_(module.weight)  # so that a pretrained model starts unchanged
    else:
        fill_positions(module, config)


@torch.no_grad()
def fill_positions(module: Any, config) -> None:
    """Fill the positions of Marian or Pegasus with fairseq's sinusoids if `config.sinusoids` is `"fairseq"`."""
    if config.sinusoids == "fairseq" and hasattr(module, "create_weight"):
        rows, dim = module.weight.shape
        module.weight.copy_(fairseq_sinusoidal(torch.arange(rows, device=module.weight.device) + 2, dim))


def refuse_at_zero(module: Any, name: str) -> None:
    """
    Raise `ValueError` if an adapter keeps a module at zero, so that the length has no effect: if DoRA adapts it, which
    divides by the norm of its weights, or if it is frozen in training, because the adapter omits it.
    """
    if any(getattr(module, "use_dora", {}).values()) and not bool(module.weight.any()):
        names = f"exclude_modules={LENGTH_MODULES}, modules_to_save={LENGTH_MODULES}"
        raise ValueError(f"DoRA divides by the norm of modules at zero; pass LoraConfig(use_dora=True, {names})")
    learns = any(p.requires_grad for p in module.parameters())
    if learns or not module.training or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return
    if not any(bool(p.any()) for p in module.parameters()):
        way = f"LoraConfig(modules_to_save=['{name}'])"
        raise ValueError(f"{name} is frozen at zero, so the length has no effect; let the adapter train it: {way}")


def warn_of_column(length: torch.Tensor, counted: torch.Tensor, unit: str) -> None:
    """
    Warn if the training lengths in `length (batch_size,)` differ much from the lengths that are counted in the labels,
    `counted (batch_size,)`. The usual cause is a default data collator, which passes any column named `length` as the
    requested length.
    """
    several = length.shape == counted.shape and len(length) > 1
    if several and length.all() and (2 * (length - counted).abs() > counted).all():  # 0 means no length
        logger.warning(
            "training takes length=%s, but the labels have %s %ss; a column `length` of the rows is taken for the "
            "requested length, rename it or make batches with DataCollatorForLengthControl",
            *(length.tolist()[:5], counted.tolist()[:5], unit),
        )


def required_length(length, config, rows: torch.Tensor, training: bool) -> torch.Tensor:
    """
    Return the length of each row, `(batch_size,)`: the argument `length`, or else the default, `config.length`. If
    both are `None` and `config.length_optional` is set, return 0 for each row, which switches length control off. In
    training, `length` is required, because each row has a different length. `rows` is any tensor with the rows and the
    device of the batch.

    Raises:
        `ValueError`: if `length` is `None` in training, even if `config.length_optional` is set; if `length` and
            `config.length` are `None` and `config.length_optional` is not set; or if a length is invalid.
    """
    if length is None and training:
        raise ValueError(
            "training needs the length of each row; pass labels or decoder_input_ids to count it from, or length="
        )
    least = 0 if config.length_optional else 1
    if length is None:
        plain = least == 0 and config.length is None
        length = rows.new_zeros(rows.shape[0], dtype=torch.long) if plain else given_or_default(None, config)
    return as_length_tensor(length, rows.shape[0], rows.device, synchronize=False, least=least)


class LengthSignal:
    """Mixin that gives a decoder a unit table, and the modules of the length encoding."""

    def add_length_signal(self: Any) -> None:
        """Add the modules that the configuration of the decoder requires."""
        config, dim = self.config, self.embed_tokens.embedding_dim
        self.unit_table = UnitTable.from_config(config, self.embed_tokens.num_embeddings)
        if config.length_projection:
            self.length_projection = LengthProjection(dim, dim, bias=False)
        if config.length_encoding == "learned":
            table = EncoderLengthEmbedding if config.encoder_length_embedding else nn.Embedding
            self.length_embedding = table(config.learned_lengths, dim)

    def resize_unit_table(self: Any) -> None:
        """Resize the unit table to the number of token embeddings, see `UnitTable.resized`."""
        size = self.embed_tokens.num_embeddings
        if self.unit_table.weights.shape[1] != size:
            self.unit_table = self.unit_table.resized(size, self.config)

    def count_progress(self: Any, input_ids: torch.Tensor | None, cache=None) -> torch.Tensor:
        """
        Return the number of units produced before each prediction, `(batch_size, sequence_length)`, counted from
        `input_ids`, the ids of the whole sequence. Raise `ValueError` if there are no ids, or if the cache holds
        earlier ids.
        """
        if input_ids is not None and (cache is None or cache.get_seq_length() == 0):
            return self.units_written(input_ids)
        given = "decoder_inputs_embeds" if input_ids is None else "the last token of a cached sequence"
        raise ValueError(f"progress cannot be counted from {given}; pass progress=, or call generate()")

    def units_written(self: Any, input_ids: torch.Tensor) -> torch.Tensor:
        """Return `UnitTable.progress` for `input_ids`, on their device; the table may be on another."""
        table = self.unit_table
        return table.progress(input_ids.to(table.weights.device)).to(input_ids.device)

    def add_signal(self: Any, embeds: torch.Tensor, progress: Any, lengths: torch.Tensor) -> torch.Tensor:
        """
        Return the token embeddings plus the encoding of progress and length. If `length_encoding` is `"scale"`, return
        the embeddings times `lengths / length_scale`.

        Args:
            embeds (`torch.Tensor` of shape `(batch_size, sequence_length, d_model)`): Token embeddings.
            progress (`torch.LongTensor` of shape `(batch_size, sequence_length)`): Number of units produced before
                each prediction; ignored if `length_encoding` is `"scale"`.
            lengths (`torch.LongTensor` of shape `(batch_size,)` or `(batch_size, sequence_length)`): Lengths in units.
                If `length_optional` is set, a length of 0 does not change the embeddings.
        """
        lengths = lengths.view(lengths.shape[0], -1)  # (B, 1 or T); `len` would fix B in an export
        if self.config.length_encoding == "scale":
            factor = lengths.unsqueeze(2).float() / self.config.length_scale  # bfloat16 cannot tell 257 from 256
            return (embeds * factor).to(embeds.dtype)
        encoding = self.encode_length(progress, lengths.clamp(min=1), embeds.shape[2])  # (B, T, d)
        projection = getattr(self, "length_projection", None)
        if projection is not None:
            refuse_at_zero(projection, "length_projection")
            encoding = projection(encoding.to(projection.weight.dtype))
        if self.config.length_optional:
            encoding = encoding * (lengths > 0).unsqueeze(2)
        # Marian's decoder multiplies its `inputs_embeds` by embed_scale; BART's embed_tokens has already done so.
        return embeds + (encoding / getattr(self, "embed_scale", 1.0)).to(embeds)

    def encode_length(self: Any, progress: torch.Tensor, lengths: torch.Tensor, dim: int) -> torch.Tensor:
        """
        Return the encoding of progress and lengths, `(batch_size, sequence_length, dim)`. `progress` has the shape
        `(batch_size, sequence_length)`. `lengths` have this shape or `(batch_size, 1)`.
        """
        config = self.config
        if config.length_encoding == "learned":
            return self.length_embedding((lengths - progress).clamp(0, config.learned_lengths - 1))
        if config.length_encoding == "pre_noise" and self.training:
            return pre(progress, lengths, dim, noise=2 / dim)
        encodings = FAIRSEQ_ENCODINGS if config.sinusoids == "fairseq" else LENGTH_ENCODINGS
        return encodings[config.length_encoding](progress, lengths, dim)  # float32


_OF_THE_HUB = ("cache_dir", "local_files_only", "revision", "subfolder", "token", "trust_remote_code")


class StoresUnitTable:
    """
    Mixin for a model that saves a unit table with its weights. The model's configuration names the unit.

    `loaded_subfolder` is the argument `subfolder` of `from_pretrained`, because the configuration names only the
    folder or repository above it, and the pipeline finds more files beside the weights.
    """

    config: PreTrainedConfig
    loaded_subfolder: str = ""
    # The package sets this function, which loads adapters. If the package is missing, transformers loads adapters.
    _from_adapter: Callable[..., Any] | None = None

    def _counting_part(self: Any) -> Any:
        """Return the part of the model that has the unit table: the decoder, or a causal model itself."""
        return self.get_decoder() if self.config.is_encoder_decoder else self

    @property
    def unit_table(self) -> UnitTable:
        """
        Return the unit table, which says how many units each entry adds. `unit_table.count(ids)` measures outputs.
        """
        table = self._counting_part()._modules.get("unit_table")
        if table is None:  # `hasattr` needs this error, for example when accelerate rebuilds the model to compile it
            raise AttributeError(f"{type(self).__name__} has no unit table yet")
        return table

    def set_unit_table(self, tokenizer, *, cost: Unit | Callable[[str], int] | None = None) -> None:
        """
        Build the unit table of the decoder's vocabulary, and store it in the model, which saves the table. If
        `length_unit` is `"cost"`, pass `cost`, see `UnitTable.from_tokenizer`. A loaded model already has a table.
        Raise `ValueError` if the tokenizer does not match the decoder or the unit.
        """
        part, old = self._counting_part(), self.unit_table.weights  # the table has the embedding's size
        table = UnitTable.from_tokenizer(tokenizer, self.config.length_unit, cost=cost).to(old.device)
        part.unit_table = table.padded(old.shape[1])
        self.config.unit_states = part.config.unit_states = table.states  # T5's parts have copies of the configuration

    def make_length_optional(self) -> None:
        """
        Set `length_optional`, for a model that will also be trained on rows without a length (see `no_length_share` of
        the collator). Raise `ValueError` unless length control only adds an encoding to the decoder's embeddings.
        """
        for config in (self.config, self._counting_part().config):  # T5's parts have copies of the configuration
            config.length_optional = True
            config.validate_length_control()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """
        Load a model, as the base class does. If an argument changes the checkpoint's `length_unit`, build the unit
        table again with the tokenizer in the same folder, and drop `trained_lengths`; raise `ValueError` if the folder
        has no tokenizer. If the folder holds an adapter, load its base model too, and merge the adapter into the base
        model.
        """
        check_shards(pretrained_model_name_or_path, kwargs.get("subfolder"))
        if cls._from_adapter is not None:
            model = cls._from_adapter(pretrained_model_name_or_path, **kwargs)
            if model is not None:
                return model
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)  # type: ignore[misc]
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        if pretrained_model_name_or_path is None:
            return loaded
        model.loaded_subfolder = kwargs.get("subfolder") or ""
        where = {name: kwargs[name] for name in _OF_THE_HUB if kwargs.get(name) is not None}
        saved = PreTrainedConfig.get_config_dict(pretrained_model_name_or_path, **where)[0].get("length_unit")
        unit = model.config.length_unit
        if saved in (None, unit):
            counted = model.unit_table.loaded_unit
            if counted != unit:
                raise ValueError(
                    f"the configuration in {pretrained_model_name_or_path} has length_unit={unit!r}, but the table "
                    f"there counts {plural(counted)}; write {counted!r} there"
                )
            return loaded
        try:
            tokenizer = AutoTokenizer.from_pretrained(pretrained_model_name_or_path, **where)
        except (OSError, ValueError, TypeError) as error:  # a tokenizer without its files raises TypeError
            name = f"{pretrained_model_name_or_path}, which counts {saved}s,"
            raise ValueError(f"{name} has no tokenizer to count {plural(unit)} with; save one there") from error
        model.set_unit_table(tokenizer)
        if "trained_lengths" not in kwargs:
            model.config.trained_lengths = None  # those of the checkpoint are in its unit
        return loaded

    def save_pretrained(self: Any, *args, **kwargs):
        """
        Save the model, as the base class does. Raise `ValueError` if the unit of the table is not
        `config.length_unit`.
        """
        counted, unit = self.unit_table.unit, self.config.length_unit
        if counted != unit:
            call = "call model.set_unit_table(tokenizer) before saving"
            raise ValueError(f"config.length_unit={unit!r}, but the model's table counts {plural(counted)}; {call}")
        vars(self.config).pop("custom_pipelines", None)
        if self._auto_class is not None and self.can_generate():  # the checkpoint names its pipeline too
            self.config.custom_pipelines = custom_pipelines(self._auto_class)
        return super().save_pretrained(*args, **kwargs)  # type: ignore[misc]


class CountsLabels(StoresUnitTable):
    """Mixin for an encoder-decoder, which counts the length of a row in its labels if `forward` gets none."""

    _checked_lengths = False  # whether the lengths of the first training batch were checked

    def count_labels(self: Any, labels: torch.Tensor) -> torch.Tensor:
        """
        Return the number of units in each row of `labels`, `(batch_size,)`. Raise `ValueError` if a row has none.
        """
        ids = labels.masked_fill(labels == -100, self.config.pad_token_id)
        length = self._counting_part().units_written(ids)[:, -1].contiguous()
        if not torch.compiler.is_compiling() and bool((length < 1).any()):
            rule = f"every row of labels must hold at least one {self.config.length_unit}"
            raise ValueError(f"{rule}, got {length.tolist()}; drop the rows whose target is empty")
        return length

    def _length_of_rows(self: Any, labels, decoder_input_ids):
        """
        Return the lengths for a call of `forward` without `length`. Count them in the labels (Takase & Okazaki 2019,
        section 3.1). If there are no labels (label smoothing may remove them), count them in `decoder_input_ids` in
        training, and return `config.length` otherwise. Return `None` if the model is not length-controlled, or if
        there is nothing to count in training.
        """
        ids = decoder_input_ids if labels is None and self.training else labels
        if not self.config.length_controlled or ids is None and self.training:
            return None
        return self.config.length if ids is None else self.count_labels(ids)

    def _check_lengths(self: Any, length, ids: torch.Tensor | None) -> None:
        """Warn if the lengths of the first training batch differ much from its labels, see `warn_of_column`."""
        if (
            self._checked_lengths
            or ids is None
            or not isinstance(length, torch.Tensor)
            or torch.compiler.is_compiling()
        ):
            return
        self._checked_lengths = True
        counted = self._counting_part().units_written(ids.masked_fill(ids == -100, self.config.pad_token_id))[:, -1]
        warn_of_column(length, counted, self.config.length_unit)
