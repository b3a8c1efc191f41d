"""The configuration of a frozen model is the stock class's: no field of length control is left in it."""

from conftest import build_model
from transformers import MarianConfig

from hf_lenctrl import freeze_length


def test_a_frozen_models_configuration_has_no_field_of_length_control():
    frozen = freeze_length(build_model("marian", length_encoding="lrpe"), 6)
    own = {"frozen_length", "frozen_length_unit", "normalize_before", "normalize_embedding"}
    assert frozen.config.to_dict().keys() - MarianConfig().to_dict().keys() == own
