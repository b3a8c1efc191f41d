"""Configurations of the length-controlled models: the base model's fields and those of length control."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers.models.bart.configuration_bart import BartConfig
from transformers.models.m2m_100.configuration_m2m_100 import M2M100Config
from transformers.models.marian.configuration_marian import MarianConfig
from transformers.models.mbart.configuration_mbart import MBartConfig
from transformers.models.pegasus.configuration_pegasus import PegasusConfig

from .length_tokens import LengthTokens
from .length_units import LENGTH_UNITS
from .lengths import check_constraint, check_length


LENGTH_ENCODING_NAMES = ("ldpe", "lrpe", "pre", "learned", "scale", "none")


class LengthControlRules:
    """
    Rules that cross the fields every length-controlled configuration has, run by `@strict` after each construction.

    Fields:
        length_encoding (`str`, defaults to `"ldpe"`): What the decoder is told: `"ldpe"`, `"lrpe"`, `"pre"`
            (see `hf_lenctrl.length_encoding`); `"learned"`, an embedding of the remaining length (LenEmb, Kikuchi et
            al. 2016; Nguyen et al. 2023, eq. 18-19); `"scale"`, token embeddings times the length (LC, Liu et al.
            2018; see `length_scale`); or `"none"` for the base model's decoder.
        encoder_length_embedding (`bool`, defaults to `False`): Add an embedding of the length to each of the encoder's
            inputs (Nguyen et al. 2023, eq. 16-17).
        length_head (`bool`, defaults to `False`): One more head of cross-attention, over what is written (Nguyen et
            al. 2023, eq. 20-24), see `LengthHeadAttention`.
        learned_lengths (`int`, defaults to 512): Rows of the tables of `"learned"` and `encoder_length_embedding`, for
            lengths from 0; a longer one shares the last row, one below 0 the first.
        length_scale (`int`, defaults to 1): What `"scale"` divides the length by, so that one of `length_scale` leaves
            the embeddings as they are. 1 is LC to the letter, made for a CNN; in a Transformer such loud embeddings
            drown the positions, so give the length of a typical target.
        absolute_positions (`bool`, defaults to `False`): Keep the decoder's own positions and add the length encoding
            ("+PE" in Takase & Okazaki 2019); `False` puts the length encoding in their place.
        length_unit (`str`, defaults to `"token"`): What is counted: `"token"`, or of the decoded text `"character"`
            (Unicode code points), `"word"` (separated by white space) or `"byte"` (UTF-8). Special tokens count zero.
        length (`int`, *optional*): Length used when a call gives none.
        length_constraint (`str`, *optional*): Bound used when a call to `generate` gives none: `"max"` or `"exact"`.
        length_predictor (`str`, *optional*): The `LengthPredictor` that the pipeline asks with `length="predict"`, a
            Hub name or a path; `"./name"` is a folder beside this configuration.
        length_tokens (`dict`, *optional*): Tokens before the source that say how long the output shall be, as
            `LengthTokens.to_dict` gives them; the pipeline puts them there.
        length_projection (`bool`, defaults to `False`): Pass the length encoding through a linear layer that starts
            at zero, so that a pretrained model starts as it was; see `add_length_control`.
        unit_states (`int`, defaults to 1): States of the model's `UnitTable`; set with the table.
    """

    @property
    def length_controlled(self: Any) -> bool:
        """Whether the network is told the length."""
        return self.length_encoding != "none" or self.encoder_length_embedding

    @property
    def counts_progress(self: Any) -> bool:
        """Whether the decoder is told what is written."""
        return self.length_encoding not in ("none", "scale") or self.length_head

    def validate_length_control(self):
        if self.length_encoding not in LENGTH_ENCODING_NAMES:
            raise ValueError(
                f"length_encoding must be one of {', '.join(LENGTH_ENCODING_NAMES)}, got {self.length_encoding!r}"
            )
        if self.length_unit not in LENGTH_UNITS:
            raise ValueError(f"length_unit must be one of {', '.join(LENGTH_UNITS)}, got {self.length_unit!r}")
        if self.length is not None:
            check_length(self.length)
        check_constraint(self.length_constraint)
        if self.length_encoding == "none" and not self.absolute_positions:
            raise ValueError(
                "length_encoding='none' with absolute_positions=False leaves the decoder without any position; "
                "pass absolute_positions=True for the plain base model"
            )
        told = self.length_controlled or self.length_tokens is not None
        if self.length_tokens is not None:
            LengthTokens(**self.length_tokens)  # raises for wrong ones
        if not told and self.length is not None and self.length_constraint is None:
            raise ValueError(
                f"length={self.length} has no effect with length_encoding='none' and no length_constraint; choose one "
                f"of {', '.join(LENGTH_ENCODING_NAMES[:-1])}, bound it with length_constraint='max', or leave it out"
            )
        if self.length_encoding in ("none", "scale") and self.length_projection:
            raise ValueError(
                f"length_projection=True has no encoding to project with length_encoding={self.length_encoding!r}"
            )
        if self.learned_lengths < 2:
            raise ValueError(f"learned_lengths must be at least 2 rows, got {self.learned_lengths}")
        if self.length_scale < 1:
            raise ValueError(
                f"length_scale must be at least 1, got {self.length_scale}; pass the length of a typical target"
            )
        if self.length_scale != 1 and self.length_encoding != "scale":
            raise ValueError(
                f"length_scale={self.length_scale} has no effect with length_encoding={self.length_encoding!r}; leave "
                "it out, or pass length_encoding='scale'"
            )


@strict
class LenCtrlBartConfig(LengthControlRules, BartConfig):
    """Configuration of `LenCtrlBartModel`: `BartConfig` and the fields of `LengthControlRules`."""

    model_type = "lenctrl_bart"

    length_encoding: str = "ldpe"
    absolute_positions: bool = False
    length_unit: str = "token"
    length: int | None = None
    length_constraint: str | None = None
    length_predictor: str | None = None
    length_tokens: dict | None = None
    length_projection: bool = False
    unit_states: int = 1
    encoder_length_embedding: bool = False
    length_head: bool = False
    learned_lengths: int = 512
    length_scale: int = 1


@strict
class LenCtrlMarianConfig(LengthControlRules, MarianConfig):
    """Configuration of `LenCtrlMarianModel`: `MarianConfig` and the fields of `LengthControlRules`."""

    model_type = "lenctrl_marian"

    length_encoding: str = "ldpe"
    absolute_positions: bool = False
    length_unit: str = "token"
    length: int | None = None
    length_constraint: str | None = None
    length_predictor: str | None = None
    length_tokens: dict | None = None
    length_projection: bool = False
    unit_states: int = 1
    encoder_length_embedding: bool = False
    length_head: bool = False
    learned_lengths: int = 512
    length_scale: int = 1


@strict
class LenCtrlMBartConfig(LengthControlRules, MBartConfig):
    """Configuration of `LenCtrlMBartModel`: `MBartConfig` and the fields of `LengthControlRules`."""

    model_type = "lenctrl_mbart"

    length_encoding: str = "ldpe"
    absolute_positions: bool = False
    length_unit: str = "token"
    length: int | None = None
    length_constraint: str | None = None
    length_predictor: str | None = None
    length_tokens: dict | None = None
    length_projection: bool = False
    unit_states: int = 1
    encoder_length_embedding: bool = False
    length_head: bool = False
    learned_lengths: int = 512
    length_scale: int = 1


@strict
class LenCtrlPegasusConfig(LengthControlRules, PegasusConfig):
    """Configuration of `LenCtrlPegasusModel`: `PegasusConfig` and the fields of `LengthControlRules`."""

    model_type = "lenctrl_pegasus"

    length_encoding: str = "ldpe"
    absolute_positions: bool = False
    length_unit: str = "token"
    length: int | None = None
    length_constraint: str | None = None
    length_predictor: str | None = None
    length_tokens: dict | None = None
    length_projection: bool = False
    unit_states: int = 1
    encoder_length_embedding: bool = False
    length_head: bool = False
    learned_lengths: int = 512
    length_scale: int = 1


@strict
class LenCtrlM2M100Config(LengthControlRules, M2M100Config):
    """Configuration of `LenCtrlM2M100Model`: `M2M100Config` and the fields of `LengthControlRules`."""

    model_type = "lenctrl_m2m_100"

    length_encoding: str = "ldpe"
    absolute_positions: bool = False
    length_unit: str = "token"
    length: int | None = None
    length_constraint: str | None = None
    length_predictor: str | None = None
    length_tokens: dict | None = None
    length_projection: bool = False
    unit_states: int = 1
    encoder_length_embedding: bool = False
    length_head: bool = False
    learned_lengths: int = 512
    length_scale: int = 1


for _config in (LenCtrlBartConfig, LenCtrlMarianConfig, LenCtrlMBartConfig, LenCtrlPegasusConfig, LenCtrlM2M100Config):
    _config.register_for_auto_class()
