"""Tests of the configurations: defaults, saving and loading, and every rule with its value."""

import json

import pytest
import transformers
from conftest import RELATIVE
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

import hf_lenctrl
from hf_lenctrl.length_units import LENGTH_UNITS


NAMES = ("Bart", "Marian", "MBart", "Pegasus", "M2M100", "T5", "MT5", "UMT5")
STOCK = [getattr(transformers, f"{name}Config") for name in NAMES]
BASES = {config.model_type: config for config in STOCK}
DEFAULTS = {"length_encoding": "ldpe", "length_unit": "token", "unit_states": 1, "learned_lengths": 512}
DEFAULTS |= dict.fromkeys(("length", "length_constraint", "length_predictor", "length_tokens"))
DEFAULTS |= dict.fromkeys(("length_projection", "encoder_length_embedding", "length_head", "length_optional"), False)
DEFAULTS |= {"sinusoids": "paper", "length_scale": 1, "absolute_positions": False}
NONE = {"length_encoding": "none", "absolute_positions": True}
SCALE = {"length_encoding": "scale", "absolute_positions": True}


@pytest.fixture
def config_class(any_family):
    return getattr(hf_lenctrl, f"LenCtrl{BASES[any_family].__name__}")


def test_defaults_are_the_documented_ones_and_those_of_the_base_model(any_family, config_class):
    config = config_class()
    defaults = {**DEFAULTS, "absolute_positions": any_family in RELATIVE}
    assert {name: getattr(config, name) for name in DEFAULTS} == defaults
    assert config.model_type == f"lenctrl_{any_family}" and isinstance(config, BASES[any_family])
    own, base = config.to_dict(), BASES[any_family]().to_dict()
    different = {name for name in own.keys() | base.keys() if own.get(name) != base.get(name)}
    assert different <= {*DEFAULTS, "model_type", "auto_map"}  # and the note for trust_remote_code


ENCODINGS = "length_encoding must be one of ldpe, lrpe, pre, pre_noise, learned, scale, none, got "
UNITS = f"length_unit must be one of {', '.join(LENGTH_UNITS)}, cost, got "


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"length_encoding": "LDPE"}, ENCODINGS + "'LDPE'"),
        ({"length_unit": "sentence"}, UNITS + "'sentence'"),
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"length": 7.5}, r"'length' with value 7\.5"),
        (
            {"length_encoding": "none", "absolute_positions": False},
            "length_encoding='none' leaves the decoder without",
        ),
        ({"length_encoding": "scale", "absolute_positions": False}, "length_encoding='scale' leaves the decoder"),
        ({**NONE, "length": 5}, "length=5 has no effect with length_encoding='none'"),
        ({"length_constraint": "least"}, "length_constraint must be .* got 'least'"),
        ({**NONE, "length_projection": True}, "length_projection=True .* length_encoding='none'"),
        ({**SCALE, "length_projection": True}, "length_projection=True .* length_encoding='scale'"),
        ({"length_scale": 50}, "length_scale=50 has no effect with length_encoding='ldpe'"),
        ({"sinusoids": "tensor2tensor"}, "sinusoids must be one of paper, fairseq, got 'tensor2tensor'"),
        ({"sinusoids": "fairseq", "length_encoding": "pre"}, "for 'ldpe' and 'lrpe' alone, got length_encoding='pre'"),
        ({"length_tokens": {"kind": "bins", "thresholds": [4, 2]}}, "ascending thresholds"),
        ({"length_tokens": {"kind": "bins", "thresholds": [4, float("nan")]}}, "must be numbers, got .4, nan"),
        ({**SCALE, "length_scale": 0}, "length_scale must be from 1 to 10000000, got 0"),
        (
            {"length_encoding": "learned", "learned_lengths": 10**12},
            "learned_lengths must be from 1 to 10000000, got 1",
        ),
        ({"unit_states": 0}, "unit_states must be from 1 to 256, got 0"),
        ({"unit_states": 10**9}, "unit_states must be from 1 to 256, got 1000000000"),
        ({"trained_lengths": {"1%": -4, "50%": 5, "99%": 6, "max": 6}}, "trained_lengths must hold .* got .*-4"),
        ({"trained_lengths": {"max": 6}}, "trained_lengths must hold lengths for 1%, 50%, 99% and max, got"),
    ],
)
def test_a_broken_rule_is_named_with_its_value(any_family, config_class, fields, message, tmp_path):
    if any_family in RELATIVE and fields.get("absolute_positions") is False:
        message = f"absolute_positions=False has no meaning for {config_class.__name__}"
    with pytest.raises(StrictDataclassError, match=f"(?s){message}"):
        config_class(**fields)
    config_class().save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **fields}), encoding="utf-8")
    with pytest.raises(StrictDataclassError, match=f"(?s){message}"):
        AutoConfig.from_pretrained(tmp_path)
