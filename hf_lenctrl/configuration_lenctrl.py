"""Configurations of the length-controlled models: the fields of the base model, and the fields of length control."""

from dataclasses import dataclass
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec
from transformers.models.bart.configuration_bart import BartConfig
from transformers.models.m2m_100.configuration_m2m_100 import M2M100Config
from transformers.models.marian.configuration_marian import MarianConfig
from transformers.models.mbart.configuration_mbart import MBartConfig
from transformers.models.mt5.configuration_mt5 import MT5Config
from transformers.models.pegasus.configuration_pegasus import PegasusConfig
from transformers.models.t5.configuration_t5 import T5Config
from transformers.models.umt5.configuration_umt5 import UMT5Config

from .length_tokens import LengthTokens
from .length_units import COST, LENGTH_UNITS
from .lengths import LONGEST, check_constraint, check_length, check_name, check_tolerance


LENGTH_ENCODING_NAMES = ("ldpe", "lrpe", "pre", "pre_noise", "learned", "scale", "none")
SINUSOIDS = ("paper", "fairseq")


@dataclass(kw_only=True)
class LengthControlRules:
    """
    The fields of every length-controlled configuration. `@strict` checks them each time a configuration is built.

    Fields:
        length_encoding (`str`, defaults to `"ldpe"`): The encoding through which the decoder reads the length.
            `"ldpe"`, `"lrpe"` and `"pre"`: see `hf_lenctrl.length_encoding`. `"pre_noise"`: `"pre"`, but in training
            with Gaussian noise (standard deviation 2 / d_model) on the ratio progress / length, as the authors of PRE
            train it (Botcazou et al. 2026). `"learned"`: an embedding of the remaining length (LenEmb, Kikuchi et al.
            2016; Nguyen et al. 2023, eq. 18-19); if `encoder_length_embedding` is set, the encoder uses the same
            table. `"scale"`: token embeddings are multiplied by the length (LC, Liu et al. 2018; see `length_scale`).
            `"none"`: no encoding.
        encoder_length_embedding (`bool`, defaults to `False`): Add an embedding of the length to each input embedding
            of the encoder (Nguyen et al. 2023, eq. 16-17).
        length_head (`bool`, defaults to `False`): Add a length head to cross-attention: a weighted mean of the inputs
            of this attention over all decoder positions up to the current one (Nguyen et al. 2023, eq. 20-24); see
            `LengthHeadAttention`.
        learned_lengths (`int`, defaults to 512): Number of rows in the embedding tables of `"learned"` and
            `encoder_length_embedding`, one row for each length from 0. Greater lengths share the last row, and lengths
            below 0 share the first row.
        length_scale (`int`, defaults to 1): The number by which `length_encoding="scale"` divides the length before
            the multiplication. The value 1 gives LC as published for a CNN. In a Transformer, embeddings multiplied by
            the full length are so large that they hide the positions. So set this field to a typical target length.
        absolute_positions (`bool`, defaults to `False`): Keep the decoder's own positions and add the length encoding
            ("+PE" in Takase & Okazaki 2019). If `False`, the encoding replaces the positions. Always `True` for T5.
        sinusoids (`str`, defaults to `"paper"`): `"paper"` computes `"ldpe"` and `"lrpe"` by the equations of the
            paper, and does not change the base model's positions. `"fairseq"` computes these encodings, and the
            sinusoidal positions of Marian and Pegasus, by the formulas of Takase & Okazaki's code, for checkpoints
            that were trained with this code.
        length_unit (`str`, defaults to `"token"`): The unit of lengths: `"token"`, or a unit of the decoded text:
            `"character"` (Unicode code points), `"word"` (separated by white space), another name in `LENGTH_UNITS`,
            or `"cost"` (a unit of the user, see `UnitTable.from_tokenizer`). Special tokens count zero.
        length (`int`, *optional*): Default requested length.
        length_constraint (`str`, *optional*): Default constraint: `"max"`, `"exact"` or `"min"`.
        length_tolerance (`int`, `float` or `tuple`, *optional*): With `length_constraint="exact"`, the default window
            around the length: a number of units, a share of the length, or a pair of these for shorter and longer
            outputs. If a call of `generate` or `from_pretrained` sets a constraint, this window is not used.
        length_predictor (`str`, *optional*): Hub name or path of the `LengthPredictor` that the pipeline uses for
            `length="predict"`; `"./name"` is a folder next to this configuration.
        length_tokens (`dict`, *optional*): Tokens before the source that state the requested length, in the form of
            `LengthTokens.to_dict`. The pipeline adds the tokens.
        length_projection (`bool`, defaults to `False`): Pass the length encoding through a linear layer that starts at
            zero, so that a pretrained model starts unchanged; see `add_length_control`.
        length_optional (`bool`, defaults to `False`): Whether the model was also trained on rows without a length. If
            `True`, and no length is given or the length is 0, nothing is added to the embeddings, and the model works
            as a model without length control. If `False`, a model with a length encoding needs a length.
        trained_lengths (`dict`, *optional*): Percentiles of the lengths of the training targets, in units: `"1%"`,
            `"50%"`, `"99%"` and `"max"`. `generate` warns if a length is far outside the range from `"1%"` to `"99%"`.
        unit_states (`int`, defaults to 1): Number of states of the model's `UnitTable`, which is a finite automaton
            over tokens. `set_unit_table` sets this field.
    """

    length_encoding: str = "ldpe"
    absolute_positions: bool = False
    sinusoids: str = "paper"
    length_unit: str = "token"
    length: int | None = None
    length_constraint: str | None = None
    length_tolerance: int | float | list | tuple | None = None
    length_predictor: str | None = None
    length_tokens: dict | None = None
    length_projection: bool = False
    unit_states: int = 1
    encoder_length_embedding: bool = False
    length_head: bool = False
    learned_lengths: int = 512
    length_scale: int = 1
    trained_lengths: dict | None = None
    length_optional: bool = False

    @classmethod
    def from_dict(cls: Any, config_dict, **kwargs):
        """
        Build a configuration from a dictionary, as the base class does. If `kwargs` sets `length_constraint`, ignore
        the saved `length_tolerance`. `generate` also ignores the saved tolerance if its caller sets a constraint.
        """
        if "length_constraint" in kwargs:
            config_dict = {**config_dict, "length_tolerance": None}
        return super().from_dict(config_dict, **kwargs)  # type: ignore[misc]

    @property
    def length_controlled(self: Any) -> bool:
        """
        Return whether the decoder or the encoder reads the length: through a length encoding, or through the length
        embedding of the encoder. Length tokens in the source do not count.
        """
        return self.length_encoding != "none" or self.encoder_length_embedding

    @property
    def counts_progress(self: Any) -> bool:
        """Return whether the decoder reads the progress (the units produced so far)."""
        return self.length_encoding not in ("none", "scale") or self.length_head

    def validate_length_control(self):
        check_name("length_encoding", self.length_encoding, LENGTH_ENCODING_NAMES)
        check_name("length_unit", self.length_unit, (*LENGTH_UNITS, COST))
        check_name("sinusoids", self.sinusoids, SINUSOIDS)
        for name, most in (("length_scale", LONGEST), ("learned_lengths", LONGEST), ("unit_states", 256)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be from 1 to {most}, got {getattr(self, name)}")
        if (known := self.trained_lengths) is not None:
            values = [known.get(name) for name in ("1%", "50%", "99%", "max")]
            if not all(type(value) is int for value in values) or not 0 <= values[0] <= values[-1] < LONGEST:
                raise ValueError(f"trained_lengths must hold lengths for 1%, 50%, 99% and max, got {known}")
        if self.length is not None:
            check_length(self.length)
        check_constraint(self.length_constraint)
        if isinstance(self.length_tolerance, list):  # JSON stores a pair as a list
            self.length_tolerance = tuple(self.length_tolerance)
        check_tolerance(self.length_tolerance, self.length_constraint)
        if hasattr(self, "relative_attention_num_buckets") and not self.absolute_positions:
            raise ValueError(f"absolute_positions=False has no meaning for {type(self).__name__}; leave it out")
        encoding = f"length_encoding={self.length_encoding!r}"
        if self.sinusoids == "fairseq" and self.length_encoding not in ("ldpe", "lrpe", "none"):
            raise ValueError(f"sinusoids='fairseq' has formulas for 'ldpe' and 'lrpe' alone, got {encoding}")
        if self.length_encoding in ("none", "scale") and not self.absolute_positions:
            raise ValueError(f"{encoding} leaves the decoder without any position; pass absolute_positions=True")
        if self.length_tokens is not None:
            LengthTokens(**self.length_tokens)  # raises an error if the fields are invalid
        unused = not self.length_controlled and self.length_tokens is None and self.length_constraint is None
        if self.length is not None and unused:
            raise ValueError(f"length={self.length} has no effect with {encoding}; pass length_constraint='max' too")
        if self.length_encoding in ("none", "scale") and self.length_projection:
            raise ValueError(f"length_projection=True has no encoding to project with {encoding}")
        replaces = not self.absolute_positions or self.encoder_length_embedding or self.length_head
        if self.length_optional and (replaces or self.length_encoding in ("none", "scale")):
            raise ValueError(
                f"length_optional=True can only switch off what is added to the embeddings, got {encoding}, "
                f"{self.absolute_positions=}, {self.encoder_length_embedding=}, {self.length_head=}"
            )
        if self.length_scale != 1 and self.length_encoding != "scale":
            raise ValueError(f"length_scale={self.length_scale} has no effect with {encoding}; leave it out")


@strict
class LenCtrlBartConfig(LengthControlRules, BartConfig):
    """`BartConfig` with the fields of `LengthControlRules`."""

    model_type = "lenctrl_bart"


@strict
class LenCtrlMarianConfig(LengthControlRules, MarianConfig):
    """`MarianConfig` with the fields of `LengthControlRules`."""

    model_type = "lenctrl_marian"


@strict
class LenCtrlMBartConfig(LengthControlRules, MBartConfig):
    """`MBartConfig` with the fields of `LengthControlRules`."""

    model_type = "lenctrl_mbart"


@strict
class LenCtrlPegasusConfig(LengthControlRules, PegasusConfig):
    """`PegasusConfig` with the fields of `LengthControlRules`."""

    model_type = "lenctrl_pegasus"


@strict
class LenCtrlM2M100Config(LengthControlRules, M2M100Config):
    """`M2M100Config` with the fields of `LengthControlRules`."""

    model_type = "lenctrl_m2m_100"


@strict
class LenCtrlT5Config(LengthControlRules, T5Config):
    """`T5Config` with the fields of `LengthControlRules`."""

    model_type = "lenctrl_t5"
    absolute_positions: bool = True


@strict
class LenCtrlMT5Config(LengthControlRules, MT5Config):
    """`MT5Config` with the fields of `LengthControlRules`."""

    model_type = "lenctrl_mt5"
    absolute_positions: bool = True


@strict
class LenCtrlUMT5Config(LengthControlRules, UMT5Config):
    """`UMT5Config` with the fields of `LengthControlRules`."""

    model_type = "lenctrl_umt5"
    absolute_positions: bool = True


def _of_text(name: str) -> property:
    """Build a property that reads and writes the special token id `name` of `text_config`."""
    return property(
        lambda self: getattr(self.text_config, name, None), lambda self, value: setattr(self.text_config, name, value)
    )


@strict
class _HoldsConfig(PreTrainedConfig):
    """Configuration of a wrapper model, which also has the fields of `text_config`, the inner configuration."""

    text_config: dict | PreTrainedConfig | None = None

    pad_token_id = _of_text("pad_token_id")
    bos_token_id = _of_text("bos_token_id")
    eos_token_id = _of_text("eos_token_id")

    def __getattr__(self, name):
        if name.startswith("_") or not isinstance(self.__dict__.get("text_config"), PreTrainedConfig):
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return getattr(self.text_config, name)

    def __setattr__(self, name, value):
        own = name.startswith("_") or name in self.__dict__ or hasattr(type(self), name) or not hasattr(self, name)
        super().__setattr__(name, value) if own else setattr(self.text_config, name, value)

    def to_dict(self):
        """Return the configuration as a dictionary, without the paths that the inner model was loaded from."""
        fields = super().to_dict()
        inner = [fields.get("text_config")]
        while inner:  # the inner configuration may hold others, such as those of an encoder and a decoder
            if isinstance(part := inner.pop(), dict):
                part.pop("_name_or_path", None)
                inner += part.values()
        return fields

    def _get_generation_parameters(self):
        """Return the generation parameters of the inner configuration; transformers 5.23 calls this private method."""
        return self.text_config._get_generation_parameters()

    def convert_rope_params_to_dict(self, **kwargs):
        """Return `kwargs` unchanged, because `text_config` has converted and checked its own fields."""
        return kwargs

    def validate_rope(self):
        """Check nothing, because `text_config` has checked its own fields."""

    validate_architecture = validate_layer_type = validate_rope


@strict
class LenCtrlCausalLMConfig(LengthControlRules, _HoldsConfig):
    """
    Configuration of a wrapped causal language model: the fields of `LengthControlRules`, and `text_config`, the
    configuration of the inner model.
    """

    model_type = "lenctrl_causal_lm"
    sub_configs_defaults = {"text_config": SubConfigSpec(config_class=AutoConfig, model_type="llama")}

    absolute_positions: bool = True

    def validate_causal_length_control(self):
        """
        Raise `ValueError` if the value of a field needs an encoder, or would remove the model's positions or change
        its embeddings of the prompt.
        """
        if not self.absolute_positions:
            raise ValueError("absolute_positions=False would take a causal model's positions away; leave it out")
        for name in ("encoder_length_embedding", "length_head", "length_tokens"):
            if getattr(self, name):
                raise ValueError(f"{name}={getattr(self, name)!r} needs an encoder, which a causal model lacks")
        if self.length_encoding == "scale":
            raise ValueError("length_encoding='scale' would change a causal model's prompt; choose another")


@strict
class LenCtrlSeq2SeqLMConfig(LengthControlRules, _HoldsConfig):
    """
    Configuration of a wrapped encoder-decoder: the fields of `LengthControlRules`, and `text_config`, the
    configuration of the inner model.
    """

    model_type = "lenctrl_seq2seq_lm"
    sub_configs_defaults = {"text_config": SubConfigSpec(config_class=AutoConfig, model_type="bart")}

    absolute_positions: bool = True
    is_encoder_decoder: bool = True

    def get_text_config(self, decoder=None, encoder=None):
        """Return the configuration of the inner model's decoder or encoder, see the base class."""
        return self.text_config.get_text_config(decoder=decoder, encoder=encoder)

    def validate_seq2seq_length_control(self):
        """Raise `ValueError` if the value of a field would change modules of the inner model."""
        if not self.absolute_positions:
            raise ValueError("absolute_positions=False would take the positions of a wrapped model; leave it out")
        for name in ("encoder_length_embedding", "length_head"):
            if getattr(self, name):
                raise ValueError(f"{name}={getattr(self, name)!r} changes the parts of a wrapped model; leave it out")


_configs: Any = LengthControlRules.__subclasses__()
for _config in _configs:
    _config.register_for_auto_class()
__all__ = [_config.__name__ for _config in _configs]
