"""A predictor of output lengths: a pretrained encoder and a linear layer (Oka et al. 2020, section 3.2)."""

import copy
import inspect
import logging
from collections.abc import Sequence
from pathlib import PureWindowsPath
from typing import Any, ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from tqdm.auto import tqdm
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForTextEncoding,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils import can_return_tuple

from .card import CardOnPush
from .length_units import LENGTH_UNITS
from .lengths import LONGEST, check_counts, check_name, plural
from .shards import check_shards


logger = logging.getLogger(__name__)


@strict
class LengthPredictorConfig(PreTrainedConfig):
    """
    Configuration of `LengthPredictor`.

    Args:
        encoder (`PreTrainedConfig` or `dict`, *optional*, defaults to a `BertConfig`): The encoder's configuration. A
            `dict` must have the key `model_type`.
        length_unit (`str`, *optional*, defaults to `"token"`): Unit of the predicted lengths, a name in
            `LENGTH_UNITS`, such as `"token"` or `"character"`.
        target_mean (`float`, *optional*, defaults to 0.0), target_std (`float`, *optional*, defaults to 1.0): Mean and
            standard deviation of the training targets' lengths, in units.
        dropout (`float`, *optional*, defaults to 0.1): Dropout before the linear layer.
        error (`float`, *optional*), error_of_mean (`float`, *optional*): Mean absolute errors on the test rows, in
            units. `error` is the error of the predictor. `error_of_mean` is the error of a constant prediction,
            `target_mean` for every text. `lenctrl train-predictor` sets both.
    """

    model_type = "length_predictor"
    sub_configs: ClassVar = {"encoder": AutoConfig}

    encoder: PreTrainedConfig | dict | None = None
    length_unit: str = "token"
    target_mean: float | int = 0.0
    target_std: float | int = 1.0
    dropout: float | int = 0.1
    error: float | int | None = None
    error_of_mean: float | int | None = None

    def __post_init__(self, **kwargs):
        if self.encoder is None:
            self.encoder = CONFIG_MAPPING["bert"]()
        elif isinstance(self.encoder, dict):
            self.encoder = CONFIG_MAPPING[self.encoder["model_type"]](**self.encoder)
        super().__post_init__(**kwargs)

    def to_diff_dict(self):
        """
        Return the fields that differ from the defaults. The encoder's fields are compared with the encoder's defaults.
        """
        return {**super().to_diff_dict(), "encoder": self.encoder.to_diff_dict()}

    def warning(self) -> str | None:
        """
        Return a warning if the predictor is not better on the test rows than a constant prediction of the mean length.
        Otherwise return `None`.
        """
        if self.error is None or self.error_of_mean is None or self.error < self.error_of_mean:
            return None
        return (
            f"the length predictor is no better than one length for all texts: its mean error is {self.error:.2f} "
            f"{plural(self.length_unit)}, that of the mean of the training lengths, {self.target_mean:.0f}, is "
            f"{self.error_of_mean:.2f}; train it longer or on more rows, or give the length"
        )

    def validate_length_predictor(self):
        check_name("length_unit", self.length_unit, LENGTH_UNITS)
        mean, std = self.target_mean, self.target_std
        if not 0 <= mean < LONGEST or not 0 < std < LONGEST:  # NaN fails both comparisons
            raise ValueError(f"target_mean must be at least 0 and target_std above 0, got {mean} and {std}")
        if getattr(self.encoder, "is_encoder_decoder", False):
            raise ValueError(f"encoder must be an encoder alone, got {self.encoder.model_type!r} with a decoder")


class LengthPredictor(CardOnPush, PreTrainedModel):
    """
    A model that predicts the length of the output from the input. A linear layer reads the encoder's last hidden state
    at the first position, and is trained by regression (Oka et al. 2020, section 3.2). The loss compares standardised
    lengths, so that one learning rate fits all units. Batches must be padded on the right.
    """

    config_class = LengthPredictorConfig
    base_model_prefix = "predictor"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    # These are private names of transformers 5.23.
    _supports_sdpa = True
    _supports_flash_attn = True
    # The loss is a mean. By default Trainer assumes that a `forward` with **kwargs divides the loss by
    # `num_items_in_batch`.
    accepts_loss_kwargs = False

    def __init__(self, config: LengthPredictorConfig, encoder: PreTrainedModel | None = None):
        config.validate()  # a value set after construction is checked here
        super().__init__(config)
        encoder_config: Any = config.encoder
        if encoder is None:
            kind, options = _encoder_kind(encoder_config)
            encoder = kind.from_config(encoder_config, **options)
        self.encoder: PreTrainedModel = encoder
        # Trainer, saving and `set_attn_implementation` must use the same configuration, not two copies. transformers
        # 5.23 has only a private name for the choice of attention.
        encoder_config._attn_implementation = encoder.config._attn_implementation
        self.encoder.config = encoder_config
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(encoder_config.hidden_size, 1)
        self._accepts_token_type_ids = "token_type_ids" in inspect.signature(encoder.forward).parameters
        self.post_init()

    @classmethod
    def from_encoder(
        cls, name_or_model: str | PreTrainedModel, lengths: Sequence[int], *, length_unit: str, dropout: float = 0.1
    ) -> "LengthPredictor":
        """
        Build an untrained predictor from a pretrained encoder. Raise `ValueError` if the model is not an encoder, or
        if all lengths are equal.

        Args:
            name_or_model (`str` or `PreTrainedModel`): The encoder, given as a Hub name, a folder or a loaded model.
                The weights of a loaded model are copied. A pooler and T5's decoder are left out.
            lengths (`Sequence[int]`): Lengths of the training targets, in units. Their mean and standard deviation
                become `target_mean` and `target_std`.
            length_unit (`str`), dropout (`float`, *optional*): See `LengthPredictorConfig`.
        """
        std, mean = (float(figure) for figure in torch.std_mean(torch.as_tensor(lengths).double(), correction=0))
        if not std > 0:  # `std` is NaN if there are no lengths
            raise ValueError(f"lengths of the training targets must differ, got {len(lengths)} of mean {mean}")
        model: Any = name_or_model
        given = isinstance(model, PreTrainedModel)
        known = model.config if given else AutoConfig.from_pretrained(model, trust_remote_code=False)
        encoder_config: Any = copy.deepcopy(known)
        if type(known) in MODEL_FOR_CAUSAL_LM_MAPPING and type(known) not in MODEL_FOR_MASKED_LM_MAPPING:
            raise ValueError(f"a {known.model_type!r} reads from left to right; use an encoder such as BERT")
        kind, options = _encoder_kind(encoder_config)
        if kind is AutoModelForTextEncoding:
            encoder_config.is_encoder_decoder = encoder_config.use_cache = False
        config = LengthPredictorConfig(
            encoder=encoder_config, length_unit=length_unit, target_mean=mean, target_std=std, dropout=dropout
        )
        if given:
            predictor = cls(config)
            weights = model.base_model.state_dict()
            predictor.encoder.load_state_dict({name: weights[name] for name in predictor.encoder.state_dict()})
            return predictor
        # By default a checkpoint in half precision would be trained in half precision.
        options |= {"config": encoder_config, "dtype": torch.float32, "trust_remote_code": False}
        return cls(config, kind.from_pretrained(model, **options))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """
        Load a predictor, as the base class does. Raise `OSError` if an index of the weights names a file outside the
        predictor's folder (see `shards.check_shards`).
        """
        check_shards(pretrained_model_name_or_path, kwargs.get("subfolder"))
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def get_input_embeddings(self):
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value):
        self.encoder.set_input_embeddings(value)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs,
    ) -> SequenceClassifierOutput:
        """
        Predict lengths. If there are labels, also compute the loss.

        Args:
            input_ids, attention_mask, token_type_ids (`torch.Tensor` of shape `(batch_size, sequence_length)`): The
                sources, padded on the right. An encoder without token types ignores `token_type_ids`.
            labels (`torch.Tensor` of shape `(batch_size,)`, *optional*): Lengths of the targets, in units.

        Returns:
            `SequenceClassifierOutput`: `logits`, a `torch.FloatTensor` of shape `(batch_size,)`, holds the predicted
            lengths in units. With labels, `loss` is the mean squared error of the standardised lengths.
        """
        if token_type_ids is not None and self._accepts_token_type_ids:
            kwargs["token_type_ids"] = token_type_ids
        outputs = self.encoder(input_ids, attention_mask=attention_mask, **kwargs)
        states = self.dropout(outputs.last_hidden_state[:, 0]).float()  # (B, d)
        with torch.autocast(states.device.type, enabled=False):  # bfloat16 cannot tell 257 from 256
            weight, bias = self.output.weight.float(), self.output.bias.float()
            standardised = nn.functional.linear(states, weight, bias).squeeze(-1)  # (B,)
        mean, std, loss = self.config.target_mean, self.config.target_std, None
        if labels is not None:
            if labels.shape != standardised.shape:  # torch would only warn and broadcast
                raise ValueError(f"labels must be a length for each text, got shape {tuple(labels.shape)}")
            loss = nn.functional.mse_loss(standardised, (labels.float() - mean) / std)
        return SequenceClassifierOutput(
            loss=loss,
            logits=standardised * std + mean,
            hidden_states=getattr(outputs, "hidden_states", None),
            attentions=getattr(outputs, "attentions", None),
        )

    @torch.no_grad()
    def predict(self, **batch) -> torch.Tensor:
        """
        Return the predicted lengths in whole units, a `torch.LongTensor` of shape `(batch_size,)`. `batch` has the
        arguments of `forward`.
        """
        training = self.training
        self.eval()
        try:
            return round_lengths(self(**{**batch, "labels": None, "return_dict": True}).logits)
        finally:
            self.train(training)

    def max_source_length(self, tokenizer) -> int | None:
        """
        Return the maximum number of tokens in a source, including special tokens, that both the tokenizer and the
        encoder allow. Return `None` if there is no maximum.
        """
        positions = getattr(self.config.encoder, "max_position_embeddings", None)
        for name, module in self.encoder.named_modules():
            # In RoBERTa and similar models the first position is padding_idx + 1.
            if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
                positions = module.num_embeddings - module.padding_idx - 1
        limits = [tokenizer.model_max_length, *([positions] if positions is not None else [])]
        return min(limits) if min(limits) < LONGEST else None  # tokenizers without a limit say 1e30

    def predict_lengths(
        self,
        texts: Sequence[str],
        tokenizer,
        *,
        batch_size: int = 64,
        truncation: bool = False,
        progress_bar: bool = False,
    ) -> list[int]:
        """
        Predict the length of the output for each text, and return the lengths in `config.length_unit`.

        Args:
            texts (`Sequence[str]`): Sources.
            tokenizer (`PreTrainedTokenizerBase`): The encoder's tokenizer.
            batch_size (`int`, *optional*, defaults to 64): Texts in a batch. Texts of similar lengths share a batch.
            truncation (`bool`, *optional*, defaults to `False`): Cut texts that are too long for the encoder, instead
                of raising `ValueError`.
            progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar.
        """
        if isinstance(texts, str):
            raise TypeError("texts must be a list of str, got a single one")
        check_counts(batch_size=batch_size)
        if len(texts) == 0:
            return []
        limit = self.max_source_length(tokenizer)
        cut = {"truncation": True, "max_length": limit} if truncation and limit is not None else {}
        rows = tokenizer(list(texts), **cut, verbose=False)
        counts = [len(ids) for ids in rows["input_ids"]]
        if limit is not None and max(counts) > limit:
            i = next(i for i, count in enumerate(counts) if count > limit)
            read = f"the predictor's encoder reads at most {limit}; pass truncation=True"
            raise ValueError(f"the text at position {i} has {counts[i]} tokens, {read}")
        order = sorted(range(len(texts)), key=counts.__getitem__, reverse=True)
        lengths = [0] * len(texts)
        starts = range(0, len(order), batch_size)
        for start in tqdm(starts, desc="Predicting lengths", unit="batch", disable=not progress_bar):
            chosen = order[start : start + batch_size]
            batch = {name: [column[i] for i in chosen] for name, column in rows.items()}
            batch = tokenizer.pad(batch, padding_side="right", return_tensors="pt")  # the model reads column 0
            for i, length in zip(chosen, self.predict(**batch.to(self.device)).tolist(), strict=True):
                lengths[i] = length
        return lengths


def round_lengths(lengths: torch.Tensor) -> torch.Tensor:
    """
    Round predicted lengths to integers, and clamp them to the range from 1 to `LONGEST` - 1. Return a
    `torch.LongTensor` of the same shape. A length halfway between two integers is rounded to the even integer. Raise
    `ValueError` if a length is NaN.
    """
    if bool(lengths.isnan().any()):
        raise ValueError("the predictor predicts NaN: its training has diverged; lower its learning rate")
    return lengths.round().clamp(1, LONGEST - 1).long()


def load_predictor(name_or_path, *, subfolder: str = "", dtype="auto", **hub_options):
    """
    Load and return a predictor and its tokenizer. The predictor is in eval mode. Raise `OSError` if the name is
    unknown, and `ValueError` if the model is not a predictor.

    Args:
        name_or_path (`str` or `Path`): Hub name or folder.
        subfolder (`str`, *optional*): Folder of the predictor inside `name_or_path`; `".."` is not allowed.
        dtype, hub_options: Options of `from_pretrained`, such as `revision` and `token`.
    """
    register()
    inside = PureWindowsPath(subfolder)  # splits at both kinds of slashes
    if inside.anchor or ".." in inside.parts:
        raise ValueError(f"a predictor's subfolder must lie inside {name_or_path}, got {subfolder!r}")
    options = {"subfolder": subfolder, **hub_options}
    fields, _ = LengthPredictorConfig.get_config_dict(name_or_path, **options)
    found = fields.get("model_type")
    if found != LengthPredictorConfig.model_type:
        where = f"{name_or_path}/{subfolder}" if subfolder else name_or_path
        what = "no known model" if found is None else f"a {found!r} model"
        raise ValueError(f"{where} holds {what}, not a length predictor")
    predictor = LengthPredictor.from_pretrained(name_or_path, dtype=dtype, **options)
    if warning := predictor.config.warning():
        logger.warning(warning)
    return predictor.eval(), AutoTokenizer.from_pretrained(name_or_path, **options)


def register() -> None:
    """Register the predictor in `AutoConfig` and `AutoModel`."""
    AutoConfig.register(LengthPredictorConfig.model_type, LengthPredictorConfig, exist_ok=True)
    AutoModel.register(LengthPredictorConfig, LengthPredictor, exist_ok=True)


def _encoder_kind(config) -> tuple[Any, dict]:
    """Return the Auto class that builds an encoder, and its arguments, which leave out the unused pooler."""
    if type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING and getattr(type(config), "is_encoder_decoder", False):
        return AutoModelForTextEncoding, {}  # `AutoModel` would add T5's decoder
    classes: Any = MODEL_MAPPING[type(config)]
    encoder_class = classes[0] if isinstance(classes, list | tuple) else classes
    takes = "add_pooling_layer" in inspect.signature(encoder_class).parameters
    return AutoModel, {"add_pooling_layer": False} if takes else {}


# `save_pretrained` then copies this file and the files it imports, for `trust_remote_code=True` without the package.
LengthPredictorConfig.register_for_auto_class()
LengthPredictor.register_for_auto_class("AutoModel")
