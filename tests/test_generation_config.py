"""A length in a generation configuration, and `length=None`, which switches every default off."""

import copy

import pytest
import torch
from conftest import SOURCES, build_model_of, controlled_marian, save_in
from test_causal import PROMPTS, answers, build, encode
from transformers import AutoModelForSeq2SeqLM, GenerationConfig

from hf_lenctrl import LengthControlledGenerationPipeline
from hf_lenctrl.generation import defaults_for


EXACT = {"length": 12, "length_constraint": "exact"}
IDS = torch.tensor([[5, 6, 7, 8, 9]])
OPTIONAL = {"absolute_positions": True, "length_projection": True, "length_optional": True}


@pytest.fixture
def own(tokenizer):
    """A model of its own for each test, which sets its defaults."""
    return controlled_marian(tokenizer)


def pipe_of(model, tokenizer, **options):
    return LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device="cpu", **options)


def set_on(config, **fields):
    for name, value in fields.items():
        setattr(config, name, value)


def units(model, **options):
    return model.unit_table.count(model.generate(IDS, **options)).tolist()


def test_every_family_reads_them_and_the_call_overrides(any_family):
    model = build_model_of(any_family, absolute_positions=True)
    set_on(model.generation_config, length=9, length_constraint="exact")
    assert units(model) == [9]
    assert units(model, length=4) == [4]
    assert units(model, length=[3, 5]) == [3, 5]
    config = GenerationConfig(length=6)
    assert units(model, generation_config=config, num_beams=2) == [6]
    assert units(model, generation_config=config, length=7) == [7]
    model.config.length = 20  # the last of all
    assert units(model) == [9]


def test_the_network_is_given_the_length_too(own):
    unbound, longer = own.generate(IDS, length=12), own.generate(IDS, length=30)
    own.generation_config.length = 30
    assert torch.equal(own.generate(IDS, length=12), unbound)
    assert torch.equal(own.generate(IDS), longer) and not torch.equal(unbound, longer)


def test_a_causal_model_reads_them():
    _, model = build("llama")
    prompt = encode(PROMPTS)
    set_on(model.generation_config, length=9, length_constraint="exact")
    assert answers(model, model.generate(**prompt, do_sample=False), prompt) == [9, 9]
    assert answers(model, model.generate(**prompt, do_sample=False, length=[4, 11]), prompt) == [4, 11]


def test_they_are_saved_and_loaded_and_a_window_too(own, tokenizer, tmp_path):
    set_on(own.generation_config, **EXACT, length_tolerance=(0, 3))
    loaded = AutoModelForSeq2SeqLM.from_pretrained(save_in(tmp_path, own, tokenizer))
    assert defaults_for(loaded) == {**EXACT, "length_tolerance": (0, 3)}
    assert 12 <= units(loaded)[0] <= 15
    assert units(loaded, length_constraint="max")[0] <= 12  # which has no window


@pytest.mark.parametrize("held", ["generation_config", "config"])
def test_the_pipeline_reads_them(own, tokenizer, held):
    pipe = pipe_of(own, tokenizer)
    set_on(getattr(own, held), **EXACT)
    assert [(out["length"], out["requested_length"]) for out in pipe(SOURCES[:2])] == [(12, 12)] * 2
    assert pipe(SOURCES[0], length=7)["length"] == 7
    assert pipe(SOURCES[0], generation_config=GenerationConfig(length=8))["length"] == 8


def test_a_plain_model_in_the_pipeline_reads_them(plain, tokenizer):
    free = pipe_of(plain, tokenizer)(SOURCES[0], length_unit="character")
    model = copy.deepcopy(plain)
    set_on(model.generation_config, **EXACT)
    pipe = pipe_of(model, tokenizer, length_unit="character")
    assert pipe(SOURCES[0])["length"] == 12
    assert pipe(SOURCES[0], length=None) == pipe(SOURCES[0], length_constraint=None) == free
    model.generation_config.length_constraint = None
    with pytest.raises(ValueError, match="so a length needs a constraint"):
        pipe(SOURCES[0])


@pytest.mark.parametrize("held", ["generation_config", "config"])
@pytest.mark.parametrize("fields", [OPTIONAL, {"length_encoding": "none", "absolute_positions": True}])
def test_no_length_switches_a_default_off(tokenizer, held, fields):
    model = controlled_marian(tokenizer, **fields)
    pipe = pipe_of(model, tokenizer)
    free, text = model.generate(IDS), pipe(SOURCES[0])
    set_on(getattr(model, held), **EXACT, length_tolerance=0)
    assert units(model) == [12] and pipe(SOURCES[0])["length"] == 12
    assert torch.equal(model.generate(IDS, length=None), free) and pipe(SOURCES[0], length=None) == text


def test_a_model_that_needs_a_length_says_so_without_its_default(own, tokenizer):
    own.config.length = 12
    for call in (lambda: own.generate(IDS, length=None), lambda: pipe_of(own, tokenizer)(SOURCES[0], length=None)):
        with pytest.raises(ValueError, match="no length was given"):
            call()


@pytest.mark.parametrize(
    "options", [EXACT, {"length_ratio": 0.2, "length_constraint": "max"}, {"length": "predict", "predictor": "a"}]
)
def test_no_length_switches_a_default_of_the_pipeline_off(tokenizer, options):
    model = controlled_marian(tokenizer, **OPTIONAL)
    pipe = pipe_of(model, tokenizer, **options)
    assert pipe(SOURCES[0], length=None) == pipe_of(model, tokenizer)(SOURCES[0])
    assert pipe(SOURCES[0], length=9, length_constraint="exact", predictor=None)["length"] == 9


@pytest.mark.parametrize("name", ["lenght", "length_constrain", "length_tolerence", "length_unit", "lengths"])
def test_another_name_of_a_length_is_refused(own, tokenizer, name):
    config, pipe = GenerationConfig(**{name: 9}, max_length=20, length_penalty=0.5), pipe_of(own, tokenizer)
    for call, inputs in ((own.generate, IDS), (pipe, SOURCES[0])):
        with pytest.raises(ValueError, match=f"length, length_constraint, length_tolerance, got '{name}'"):
            call(inputs, length=5, generation_config=config)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"length": 0.5}, "length must be an int"),
        ({"length": 9, "length_constraint": "least"}, "got 'least'"),
        ({"length": 9, "length_constraint": "max", "length_tolerance": 3}, "a window around an exact length"),
    ],
)
def test_a_wrong_value_is_refused_as_in_a_call(own, given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        own.generate(IDS, generation_config=GenerationConfig(**given))


def test_a_length_without_effect_is_refused_or_told(own, tokenizer, caplog):
    none = controlled_marian(tokenizer, length_encoding="none", absolute_positions=True)
    with pytest.raises(ValueError, match="pass a length_constraint too"):
        none.generate(IDS, generation_config=GenerationConfig(length=9))
    own.config.length, own.generation_config.length = 40, 12
    own.generate(IDS)
    assert "generation_config.length=12 overrides config.length=40" in caplog.text
