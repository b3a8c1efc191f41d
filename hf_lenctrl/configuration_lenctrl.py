"""Configurations of the length-controlled models: the base model's fields and four more."""

from huggingface_hub.dataclasses import strict
from transformers.models.bart.configuration_bart import BartConfig
from transformers.models.marian.configuration_marian import MarianConfig


LENGTH_ENCODING_NAMES = ("ldpe", "lrpe", "pre", "none")
LENGTH_UNITS = ("token", "character")


def check_length(length) -> None:
    """Raise unless `length` is a Python `int` of at least 1 (`bool` is none)."""
    if isinstance(length, bool) or not isinstance(length, int):
        raise TypeError(
            f"length must be an int of at least 1, got {length!r} ({type(length).__name__}); pass length=75"
        )
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}; pass length=75")


class LengthControlRules:
    """
    Rules that cross the fields every length-controlled configuration has, run by `@strict` after each construction.

    Fields:
        length_encoding (`str`, defaults to `"ldpe"`): What the decoder is told: `"ldpe"`, `"lrpe"`, `"pre"`
            (see `hf_lenctrl.length_encoding`), or `"none"` for the base model without length control.
        absolute_positions (`bool`, defaults to `False`): Keep the decoder's own positions and add the length encoding
            ("+PE" in Takase & Okazaki 2019); `False` puts the length encoding in their place.
        length_unit (`str`, defaults to `"token"`): What is counted: `"token"`, or `"character"` (Unicode code points
            of the decoded text). Special tokens count zero.
        length (`int`, *optional*): Length used when a call gives none.
    """

    def validate_length_control(self):
        if self.length_encoding not in LENGTH_ENCODING_NAMES:
            raise ValueError(
                f"length_encoding must be one of {', '.join(LENGTH_ENCODING_NAMES)}, got {self.length_encoding!r}"
            )
        if self.length_unit not in LENGTH_UNITS:
            raise ValueError(f"length_unit must be one of {', '.join(LENGTH_UNITS)}, got {self.length_unit!r}")
        if self.length is not None:
            check_length(self.length)
        if self.length_encoding == "none" and not self.absolute_positions:
            raise ValueError(
                "length_encoding='none' with absolute_positions=False leaves the decoder without any position; "
                "pass absolute_positions=True for the plain base model"
            )
        if self.length_encoding == "none" and self.length is not None:
            raise ValueError(
                f"length={self.length} has no effect with length_encoding='none'; "
                f"choose one of {', '.join(LENGTH_ENCODING_NAMES[:-1])} or leave length out"
            )


@strict
class LenCtrlBartConfig(LengthControlRules, BartConfig):
    """Configuration of `LenCtrlBartModel`: `BartConfig` and the fields of `LengthControlRules`."""

    model_type = "lenctrl_bart"

    length_encoding: str = "ldpe"
    absolute_positions: bool = False
    length_unit: str = "token"
    length: int | None = None


@strict
class LenCtrlMarianConfig(LengthControlRules, MarianConfig):
    """Configuration of `LenCtrlMarianModel`: `MarianConfig` and the fields of `LengthControlRules`."""

    model_type = "lenctrl_marian"

    length_encoding: str = "ldpe"
    absolute_positions: bool = False
    length_unit: str = "token"
    length: int | None = None


LenCtrlBartConfig.register_for_auto_class()
LenCtrlMarianConfig.register_for_auto_class()
