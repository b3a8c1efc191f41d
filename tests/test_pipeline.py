"""The pipeline: text and a length in, text of that length out, from a checkpoint or a plain model."""

import numpy as np
import pandas
import pytest
import torch
from conftest import SOURCES, controlled_marian
from family_models import UNITS, stock_model, tokenizer_of
from pipeline_calls import independent_length, spy
from transformers import pipeline

import hf_lenctrl
from hf_lenctrl import LengthControlledGenerationPipeline


TASK = "length-controlled-generation"
KEYS = {"generated_text", "length", "requested_length", "length_unit"}


def test_transformers_loads_a_checkpoint_by_the_name_of_the_task(model, tokenizer, tmp_path):
    pipeline(TASK, model=model, tokenizer=tokenizer, device="cpu").save_pretrained(tmp_path)
    assert TASK not in model.config.custom_pipelines  # which would ask for `trust_remote_code`
    loaded = pipeline(TASK, model=str(tmp_path), device="cpu")
    assert type(loaded) is LengthControlledGenerationPipeline
    assert type(loaded.model) is hf_lenctrl.LenCtrlMarianMTModel
    result = loaded(SOURCES[0], length=12, length_constraint="exact")
    assert result.keys() == KEYS
    assert (result["length"], len(result["generated_text"])) == (12, 12)


def test_a_text_gives_its_output_with_the_lengths(pipe):
    result = pipe(SOURCES[0], length=12, length_constraint="max")
    assert result.keys() == KEYS
    assert (result["requested_length"], result["length_unit"]) == (12, "character")
    assert 1 <= result["length"] == len(result["generated_text"]) <= 12
    options = {"length": 12, "length_constraint": "max"}
    assert pipe(SOURCES[0], **options, length_unit="character") == result
    assert pipe((text for text in SOURCES[:1]), **options) == pipe([SOURCES[0]], **options) == [result]
    assert pipe([], length=4) == pipe([]) == []


def test_each_row_is_what_the_model_writes_for_its_source_at_its_length(pipe, model, tokenizer):
    # batched by length, but in the order of the input: a mix-up would pair a row with another text
    lengths = [5, 40, 12, 39, 6, 13]
    rows = pipe(SOURCES, length=torch.tensor(lengths), length_constraint="exact", batch_size=2)
    for row, source, length in zip(rows, SOURCES, lengths, strict=True):
        ids = model.generate(**tokenizer(source, return_tensors="pt"), length=length, length_constraint="exact")
        assert row["generated_text"] == tokenizer.decode(ids[0], skip_special_tokens=True)
        assert row["requested_length"] == length
    assert len({row["generated_text"][:5] for row in rows}) >= 3  # so that a mix-up would show
    assert pipe(SOURCES, length=pandas.Series(lengths), length_constraint="exact", batch_size=2) == rows
    several = pipe(SOURCES[0], length=np.array([5, 9]), length_constraint="exact")
    assert several == pipe(SOURCES[0], length=[5, 9], length_constraint="exact")
    assert pipe(SOURCES[0], length=torch.tensor([5]), length_constraint="exact") == several[0]


def test_a_constraint_comes_from_the_call_from_the_configuration_or_from_none(tokenizer):
    models = (controlled_marian(tokenizer, length_constraint=constraint) for constraint in (None, "exact"))
    parts = {"tokenizer": tokenizer, "device": "cpu"}
    free, bound = (LengthControlledGenerationPipeline(model=model, **parts) for model in models)
    assert free(SOURCES[0], length=12)["length"] > 12
    assert free(SOURCES[0], length=12, length_constraint="max")["length"] <= 12
    assert free(SOURCES[0], length=12, length_constraint="exact")["length"] == 12
    assert bound(SOURCES[0], length=12)["length"] == 12
    assert bound(SOURCES[0], length=12, length_constraint=None) == free(SOURCES[0], length=12)
    bound.model.config.length = 7
    assert [(row["requested_length"], row["length"]) for row in bound(SOURCES[:2])] == [(7, 7)] * 2


@pytest.mark.parametrize(
    ("unit", "options"), [*((unit, {"num_beams": 3}) for unit in UNITS), ("character", {"do_sample": True})]
)
def test_a_plain_model_stays_within_its_bound_in_every_unit(plain_pipe, unit, options):
    torch.manual_seed(0)
    lengths = [1, 3, 8, 2, 5, 4]
    for constraint in ("max", "exact"):
        rows = plain_pipe(SOURCES, length=lengths, length_unit=unit, length_constraint=constraint, **options)
        assert [row["requested_length"] for row in rows] == lengths
        assert {row["length_unit"] for row in rows} == {unit}
        for row, length in zip(rows, lengths, strict=True):
            if unit != "token":
                assert row["length"] == independent_length(row["generated_text"], unit)
            assert row["length"] == length if constraint == "exact" else row["length"] <= length


def test_a_plain_model_counts_tokens_unless_told(plain_pipe, plain, monkeypatch):
    calls = spy(monkeypatch, plain)
    result = plain_pipe(SOURCES[0], length=4, length_constraint="exact")
    assert result["length_unit"] == "token"
    assert result["length"] == sum(i not in (0, 2) for i in calls[0]["ids"][0].tolist()) == 4  # no EOS, no padding


def test_a_plain_model_without_length_and_constraint_writes_what_it_writes(plain_pipe, plain, tokenizer):
    """Up to 256 tokens, not up to the 20 of the default of `generate`."""
    rows = plain_pipe(SOURCES[:2], length_unit="character")
    for row, source in zip(rows, SOURCES, strict=False):
        ids = plain.generate(**tokenizer(source, return_tensors="pt"), max_new_tokens=256)
        text = tokenizer.decode(ids[0], skip_special_tokens=True)
        expected = {"generated_text": text, "length": len(text), "requested_length": None, "length_unit": "character"}
        assert row == expected


def test_several_outputs_are_the_beams_of_each_text_in_their_order(pipe, model, tokenizer):
    options = {"length": 9, "length_constraint": "max", "num_return_sequences": 3}
    rows = pipe(SOURCES[:2], **options)
    for outputs, source in zip(rows, SOURCES, strict=False):
        ids = model.generate(**tokenizer(source, return_tensors="pt"), num_beams=3, **options)
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        assert [output["generated_text"] for output in outputs] == texts and len(set(texts)) == 3
        assert all(output.keys() == KEYS and output["length"] <= 9 for output in outputs)
    assert pipe(SOURCES[0], **options) == rows[0]


@pytest.mark.parametrize(
    ("own", "options", "beams", "outputs"),
    [
        (1, {"num_return_sequences": 3, "do_sample": True}, None, 3),
        (1, {"rerank": 0}, None, None),
        (5, {"num_return_sequences": 2}, 5, 2),
        (5, {"num_return_sequences": 3, "num_beams": 2}, 3, 3),
        (5, {"rerank": 7, "do_sample": True}, 7, 7),  # beams that sample are as many as the candidates too
    ],
)
def test_beams_are_enough_and_those_of_the_checkpoint_are_kept(pipe, model, monkeypatch, own, options, beams, outputs):
    monkeypatch.setattr(model.generation_config, "num_beams", own)
    calls = spy(monkeypatch, model)
    pipe(SOURCES[0], length=5, length_constraint="max", **options)
    assert (calls[0].get("num_beams"), calls[0].get("num_return_sequences")) == (beams, outputs)


@pytest.mark.parametrize(
    ("options", "candidates"),
    [({"rerank": True}, 20), ({"rerank": 2, "num_return_sequences": 3}, 3), ({"rerank": 4, "do_sample": True}, 4)],
)
def test_rerank_picks_among_all_candidates(pipe, model, tokenizer, monkeypatch, options, candidates):
    calls = spy(monkeypatch, model)
    asked = []

    def last_first(source, texts, scores):
        asked.append((source, texts))
        return list(range(len(texts)))[::-1]

    monkeypatch.setattr("hf_lenctrl.inference.candidates.rerank", last_first)
    result = pipe(SOURCES[0], length=6, length_constraint="max", **options)
    written = tokenizer.batch_decode(calls[0]["ids"], skip_special_tokens=True)
    assert calls[0]["num_return_sequences"] == len(written) == candidates
    assert asked == [(SOURCES[0], written)]
    outputs = result if isinstance(result, list) else [result]
    assert len(outputs) == options.get("num_return_sequences", 1)
    assert [row["generated_text"] for row in outputs] == written[::-1][: len(outputs)]


def test_options_of_the_pipeline_hold_for_every_call_and_those_of_a_call_win(model, tokenizer, monkeypatch):
    own = {"length": 6, "length_constraint": "exact", "num_beams": 2, "batch_size": 2}
    pipe = pipeline(TASK, model=model, tokenizer=tokenizer, device="cpu", **own)
    calls = spy(monkeypatch, model)
    for _ in range(2):
        assert [row["length"] for row in pipe(SOURCES[:3])] == [6] * 3
    assert [(len(call["length"]), call["num_beams"]) for call in calls] == [(2, 2), (1, 2)] * 2
    calls.clear()
    rows = pipe(SOURCES[:3], length=9, length_constraint="max", num_beams=1, batch_size=3)
    assert [row["requested_length"] for row in rows] == [9] * 3
    assert [(len(call["length"]), call["num_beams"], call["length_constraint"]) for call in calls] == [(3, 1, "max")]
    assert pipe(SOURCES[0])["length"] == 6  # a call changes nothing for the next


def test_a_model_without_encoding_is_bound_once_and_in_the_unit_of_the_call(tokenizer):
    fields = {"length_encoding": "none", "absolute_positions": True, "length": 3, "length_constraint": "max"}
    model = controlled_marian(tokenizer, **fields)
    pipe = LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    result = pipe(SOURCES[0], length=11, length_unit="byte", length_constraint="exact")
    assert (independent_length(result["generated_text"], "byte"), result["requested_length"]) == (11, 11)
    free = pipe(SOURCES[0], length_constraint=None, max_new_tokens=9)
    assert free["requested_length"] is None and free["length"] > 3


def test_the_bound_leaves_room_within_the_models_positions():
    parts = {"model": stock_model("marian", max_position_embeddings=24), "tokenizer": tokenizer_of("marian")}
    pipe, options = LengthControlledGenerationPipeline(**parts), {"length_unit": "token", "length_constraint": "max"}
    assert pipe(SOURCES[0], length=23, **options)["length"] <= 23
    with pytest.raises(ValueError, match="length=24 needs at least 25 decoder positions, the model has 24; ask for"):
        pipe(SOURCES[0], length=24, **options)


def test_a_source_longer_than_the_encoder_is_cut_and_told(tokenizer, caplog):
    model = controlled_marian(tokenizer, max_position_embeddings=16)
    pipe = LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    assert len(tokenizer(SOURCES[0] * 5)["input_ids"]) > 16
    assert len(pipe([SOURCES[0] * 5, SOURCES[0][:5]], length=5, length_constraint="max")) == 2
    assert "1 of 2 sources are longer than the encoder's 16 tokens and were cut" in caplog.text


@pytest.mark.parametrize(
    ("inputs", "options", "error", "message"),
    [
        *(
            (SOURCES[0], {name: number}, ValueError, f"{name} must be an integer of at least 1, got {number}")
            for name, number in (("num_return_sequences", -1), ("batch_size", 0), ("rerank", 2.5), ("batch_tokens", 0))
        ),
        (5, {}, TypeError, "a text or a list of texts"),
        (["a", ["b"]], {}, TypeError, r"\['b'\] at position 1"),
        (["a", "\ud83d b"], {}, ValueError, "a lone surrogate at position 1"),
        (["a", "\t\n"], {}, ValueError, "the text at position 1 is empty"),
        *((SOURCES[0], {name: 5}, ValueError, name) for name in ("lenght", "reference")),
    ],
)
def test_wrong_inputs_and_options_are_told(pipe, inputs, options, error, message):
    with pytest.raises(error, match=message):
        pipe(inputs, **{"length": 5, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length_constraint": "max"}, "no length was given"),
        ({"length_unit": "sentence"}, "got 'sentence'"),
        *((given, "has no length control, so a length needs") for given in ({"length": 5}, {"length_ratio": 0.5})),
        ({"length_tolerance": 2}, "a window around an exact length"),
        ({"length": 90, "length_constraint": "least"}, "got 'least'"),
        ({"length": 90, "length_constraint": "exact", "max_length": 4}, "exactly 90 tokens may need .* leaves 4"),
    ],
)
def test_what_a_plain_model_cannot_do_is_told(plain_pipe, options, message):
    with pytest.raises(ValueError, match=message):
        plain_pipe(SOURCES[0], **options)
