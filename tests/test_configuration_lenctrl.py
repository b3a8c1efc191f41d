"""Tests of the configurations: defaults, saving and loading, and every rule with its message."""

import json
import math

import pytest
from conftest import RELATIVE, build_model, in_names_of
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    BartConfig,
    M2M100Config,
    MarianConfig,
    MBartConfig,
    MT5Config,
    PegasusConfig,
    T5Config,
    UMT5Config,
)

import hf_lenctrl
from hf_lenctrl.lengths import check_constraint, check_length


STOCK_CONFIGS = (
    BartConfig,
    MarianConfig,
    MBartConfig,
    PegasusConfig,
    M2M100Config,
    T5Config,
    MT5Config,
    UMT5Config,
)
BASES = {config.model_type: config for config in STOCK_CONFIGS}
CONFIGS = {family: getattr(hf_lenctrl, f"LenCtrl{config.__name__}") for family, config in BASES.items()}
DEFAULTS = {
    "length_encoding": "ldpe",
    "absolute_positions": False,
    "length_unit": "token",
    "length": None,
    "length_constraint": None,
    "length_projection": False,
    "unit_states": 1,
    "length_predictor": None,
    "length_tokens": None,
    "encoder_length_embedding": False,
    "length_head": False,
    "learned_lengths": 512,
    "length_scale": 1,
}


@pytest.fixture
def config_class(any_family):
    return CONFIGS[any_family]


def test_fields_have_the_documented_defaults(any_family, config_class):
    config = config_class()
    defaults = {**DEFAULTS, "absolute_positions": any_family in RELATIVE}
    assert {name: getattr(config, name) for name in DEFAULTS} == defaults
    assert config.model_type == f"lenctrl_{any_family}"


def test_base_fields_keep_the_base_models_defaults(any_family, config_class):
    own, base = config_class().to_dict(), BASES[any_family]().to_dict()
    different = {name for name in own.keys() | base.keys() if own.get(name) != base.get(name)}
    # only the fields of length control, the type and the note for trust_remote_code
    assert different <= {*DEFAULTS, "model_type", "auto_map"}
    assert isinstance(config_class(), BASES[any_family])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"length_encoding": "lrpe", "absolute_positions": True, "length_unit": "character", "length": 75},
        {"length_encoding": "pre", "length": 1},
        {"length_encoding": "none", "absolute_positions": True},
        {"length_encoding": "none", "absolute_positions": True, "length": 9, "length_constraint": "max"},
        {"length_unit": "word", "unit_states": 3, "length_projection": True, "length_constraint": "exact"},
    ],
)
def test_a_saved_config_loads_as_it_was_through_autoconfig(any_family, config_class, fields, tmp_path):
    fields = {**in_names_of(any_family, decoder_layers=3), **fields}
    config = config_class(d_model=48, **fields)
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is config_class
    expected = {**DEFAULTS, "absolute_positions": any_family in RELATIVE, "d_model": 48, **fields}
    assert {name: getattr(loaded, name) for name in expected} == expected


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"length_encoding": "sinus"},
            "length_encoding must be one of ldpe, lrpe, pre, learned, scale, none, got 'sinus'",
        ),
        (
            {"length_encoding": "LDPE"},
            "length_encoding must be one of ldpe, lrpe, pre, learned, scale, none, got 'LDPE'",
        ),
        (
            {"length_unit": "sentence"},
            "length_unit must be one of token, character, word, byte, width, cost, got 'sentence'",
        ),
        ({"length": 0}, "length must be at least 1, got 0; pass length=75"),
        ({"length": -3}, "length must be at least 1, got -3; pass length=75"),
        (
            {"length_encoding": "none", "absolute_positions": False},
            "length_encoding='none' with absolute_positions=False leaves the decoder without any position; "
            "pass absolute_positions=True",
        ),
        (
            {"length_encoding": "none", "absolute_positions": True, "length": 5},
            "length=5 has no effect with length_encoding='none' and no length_constraint; choose one of ldpe, lrpe, "
            "pre, learned, scale, pass length_constraint='max', or leave length out",
        ),
        (
            {"length_constraint": "min"},
            r"length_constraint must be 'max' \(never longer\), 'exact' or None \(unconstrained\), got 'min'",
        ),
        (
            {"length_encoding": "none", "absolute_positions": True, "length_projection": True},
            "length_projection=True has no encoding to project with length_encoding='none'",
        ),
        (
            {"length_encoding": "scale", "length_projection": True},
            "length_projection=True has no encoding to project with length_encoding='scale'",
        ),
        ({"learned_lengths": 1}, "learned_lengths must be at least 2 rows, got 1"),
        (
            {"length_encoding": "scale", "length_scale": 0},
            "length_scale must be at least 1, got 0; pass the length of a typical target",
        ),
        ({"length_scale": 50}, "length_scale=50 has no effect with length_encoding='ldpe'; leave it out, or pass"),
    ],
)
def test_a_broken_rule_is_named_with_its_value(any_family, config_class, fields, message):
    if any_family in RELATIVE and fields.get("absolute_positions") is False:
        message = f"absolute_positions=False has no meaning for LenCtrl{BASES[any_family].__name__}, whose positions"
    with pytest.raises(StrictDataclassError, match=message):
        config_class(**fields)


@pytest.mark.parametrize("length", [True, False, "75", 7.5, 75.0, math.nan, [75]], ids=repr)
def test_a_length_that_is_no_int_is_refused(config_class, length):
    with pytest.raises(StrictDataclassError, match="(?s)field 'length'.*expected int, got " + type(length).__name__):
        config_class(length=length)


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("length_encoding", None, "Field 'length_encoding' expected str, got NoneType"),
        ("length_encoding", 3, "Field 'length_encoding' expected str, got int"),
        ("length_unit", 1, "Field 'length_unit' expected str, got int"),
        ("absolute_positions", "yes", "Field 'absolute_positions' expected bool, got str"),
        ("absolute_positions", 1, "Field 'absolute_positions' expected bool, got int"),
        ("absolute_positions", None, "Field 'absolute_positions' expected bool, got NoneType"),
        ("length_projection", 1, "Field 'length_projection' expected bool, got int"),
        ("length_constraint", True, "(?s)field 'length_constraint'.*expected str, got bool"),
        ("unit_states", "2", "Field 'unit_states' expected int, got str"),
    ],
)
def test_a_field_of_another_type_is_refused(config_class, name, value, message):
    with pytest.raises(StrictDataclassError, match=message):
        config_class(**{name: value})


@pytest.mark.parametrize("length", [1, 75, 10**6])
def test_check_length_accepts_integers_from_one(length):
    check_length(length)


@pytest.mark.parametrize("constraint", [None, "max", "exact"])
def test_check_constraint_accepts_the_known_names(constraint):
    check_constraint(constraint)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"length_encoding": "sinus"}, "length_encoding must be one of .* got 'sinus'"),
        ({"length_unit": "line"}, "length_unit must be one of .* got 'line'"),
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"length": "75"}, "field 'length'"),
    ],
)
def test_a_config_file_that_breaks_a_rule_is_not_loaded(config_class, change, message, tmp_path):
    config_class().save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    with pytest.raises(StrictDataclassError, match=message):
        AutoConfig.from_pretrained(tmp_path)


@pytest.fixture
def saved_model(family, tmp_path):
    build_model(family).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_length_given_to_from_pretrained_is_stored_and_saved(saved_model, tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(saved_model, length=75)
    assert model.config.length == 75
    model.save_pretrained(tmp_path / "again")
    assert AutoConfig.from_pretrained(tmp_path / "again").length == 75
    assert AutoConfig.from_pretrained(saved_model).length is None
