"""Lengths in transformers' continuous batching: its own manager on a CPU, against `generate` with one request."""

import gc

import pytest
import torch
from test_causal import PROMPTS, build, build_plain, make_tokenizer
from transformers import CompileConfig, ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.requests import RequestState

from hf_lenctrl import UnitTable
from hf_lenctrl.bounded_generation import generate_for
from hf_lenctrl.engines.continuous import add_length_constraint
from hf_lenctrl.lengths import as_target


IDS = [make_tokenizer()(text)["input_ids"] for text in PROMPTS]
NEW = 24  # tokens that a request may have, with EOS
ASKED = [
    {"length": 9},
    {"length": 12, "length_unit": "character"},
    {"length": 11, "length_unit": "character", "length_constraint": "exact"},
    {"length": 20, "length_unit": "byte", "length_constraint": "exact"},
    {"length": 15, "length_constraint": "exact", "length_tolerance": 0.2},
    {},
]


@pytest.fixture(scope="module")
def model():
    model = build_plain("llama")
    model.generation_config.max_new_tokens = NEW
    return model


def manager_of(model, blocks: int = 64, batch: int = 8, **fields):
    """A manager with small pages, so that its prompts are read in parts (`batch` tokens a step)."""
    options = {"page_size": 4, "num_blocks": blocks, "max_batch_tokens": batch, **fields}
    config = GenerationConfig(**{**model.generation_config.to_dict(), **options.pop("generation", {})})
    return model.init_continuous_batching(config, ContinuousBatchingConfig(**options))


def answers(manager, requests) -> list:
    """The results of `(ids, arguments)` in their order; with copies of a request after it."""
    manager.start()
    try:
        names = [manager.add_request(ids, **arguments) for ids, arguments in requests]
        count = len(names) * manager.num_return_sequences
        results = [manager.get_result(timeout=60) for _ in range(count)]
    finally:
        manager.stop()
    found = {result.request_id: result for result in results}
    return [found[name] for name in sorted(found, key=lambda name: (names.index(name.split("__")[0]), name))]


@pytest.fixture(scope="module")
def alone(model):
    """What `generate` writes for each of `ASKED`, as tokens."""
    texts = []
    for i, asked in enumerate(ASKED):
        ids, table = IDS[i % 2], UnitTable.from_tokenizer(make_tokenizer(), asked.get("length_unit", "token"))
        constraint, tolerance = asked.get("length_constraint", "max"), asked.get("length_tolerance")
        target = as_target(asked["length"], constraint, tolerance, 1, model.device) if asked else None
        arguments = {"inputs": torch.tensor([ids]), "do_sample": False, "max_new_tokens": NEW}
        texts.append(generate_for(model, table, target, constraint, arguments)[0, len(ids) :].tolist())
    return texts


def requests() -> list:
    return [(IDS[i % 2], asked) for i, asked in enumerate(ASKED)]


def test_requests_with_and_without_a_length_get_what_generate_writes(model, alone):
    manager = manager_of(model)
    add_length_constraint(manager, make_tokenizer())
    wrong = [(IDS[0], {"length": 0}), (IDS[0], {"length_unit": "word"}), (IDS[0], {"longth": 3})]
    results = answers(manager, [*wrong, *requests()])
    assert [result.error for result in results[3:]] == [None] * len(ASKED)
    assert [result.generated_tokens for result in results[3:]] == alone
    texts = [make_tokenizer().decode(ids, skip_special_tokens=True) for ids in alone]
    assert len(alone[0]) == 10 and alone[0][-1] == 1
    assert len(texts[1]) <= 12 and len(texts[2]) == 11 and len(texts[3].encode()) == 20
    assert 12 <= len(alone[4]) - 1 <= 18 and len(alone[5]) == NEW
    # a wrong request fails alone
    call = 'pass {"length": 75, "length_unit": "character", "length_constraint": "max"}'
    assert results[0].error == f"length must be at least 1, got 0; {call}"
    assert results[1].error == f"length_unit needs a length, got {{'length_unit': 'word'}}; {call}"
    assert "Unknown logit_processor_kwargs: {'longth'}" in results[2].error


def test_evicted_requests_go_on_where_they_were(model, alone, monkeypatch):
    evicted, create = [], RequestState.create_equivalent_initial_request
    fields = RequestState.__dataclass_fields__.keys()

    def watched(state):
        evicted.append(len(state.generated_tokens))
        assert vars(state).keys() <= fields  # the constraint writes nothing into the state of a request
        return create(state)

    monkeypatch.setattr(RequestState, "create_equivalent_initial_request", watched)
    manager = manager_of(model, blocks=20, batch=32)
    add_length_constraint(manager, make_tokenizer())
    results = answers(manager, requests())
    assert any(evicted), evicted  # some in the middle of a text
    assert [result.generated_tokens for result in results] == alone


def test_the_constraint_comes_before_sampling_and_holds_for_each_copy(model, alone):
    # one token is kept: where it were chosen before the constraint, this would forbid it
    generation = {"do_sample": True, "top_k": 1, "temperature": 0.5, "num_return_sequences": 2}
    manager = manager_of(model, generation=generation)
    add_length_constraint(manager, make_tokenizer(), length_units=["character"])
    assert list(manager.logit_processor.constraint.counters) == ["character"]
    results = answers(manager, requests()[:3])
    assert [result.generated_tokens for result in results] == [text for text in alone[:3] for _ in range(2)]


REFUSED = {
    "which does not work with use_async_batching; pass": {"use_async_batching": True},
    "which does not work with varlen_compile_config; pass": {"varlen_compile_config": CompileConfig()},
    "which does not work with use_cuda_graph; pass": {},
    "got eos_token_id=-1; pass a generation_config that has one": {"generation": {"eos_token_id": None}},
    "a length-controlled model does not get its remaining length": {},
}


@pytest.mark.parametrize("message, fields", REFUSED.items())
def test_a_manager_that_cannot_keep_lengths_is_refused(model, message, fields):
    manager = manager_of(build("llama", zero=True)[1] if "controlled" in message else model, **fields)
    if "graph" in message:  # without a GPU transformers turns graphs off
        manager.continuous_batching_config.use_cuda_graph = (False, True)
    with pytest.raises(ValueError, match=message):
        add_length_constraint(manager, make_tokenizer())


def test_a_request_may_take_the_name_of_one_that_ended_and_a_running_manager_is_refused(model):
    manager = manager_of(model)
    add_length_constraint(manager, make_tokenizer())
    manager.start()
    try:
        for length in (9, 3):
            manager.add_request(IDS[0], "a", length=length, length_constraint="exact")
            assert len(manager.get_result(timeout=60).generated_tokens) == length + 1
        with pytest.raises(ValueError, match="before a manager starts or warms up"):
            add_length_constraint(manager, make_tokenizer())
    finally:
        manager.stop()
    # of ended requests nothing is kept but the counts of the last step
    assert manager.logit_processor.constraint.points.keys() == {"a"}
    assert not any(type(held) is RequestState for held in gc.get_objects())
