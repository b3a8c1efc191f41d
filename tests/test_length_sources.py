"""Where the lengths come from: ratios, a predictor, the source, the references; and what is no length."""

import math
import pickle
import re

import pytest
import torch
from conftest import SOURCES, TARGETS, controlled_marian, save_in
from family_models import model_of_characters
from pipeline_calls import independent_length
from recipe_runs import write_predictor
from transformers import AutoModelForSeq2SeqLM, pipeline

import hf_lenctrl
from hf_lenctrl import LengthControlledGenerationPipeline, LengthPredictor
from hf_lenctrl.length_predictor import load_predictor


TASK = "length-controlled-generation"


@pytest.mark.parametrize(
    ("unit", "ratio", "expected"),
    # 17.5 is 18 and 0.3 at least 1
    [("character", 0.5, 7), ("character", 1.25, 18), ("word", 1, 3), ("word", 0.1, 1), ("byte", 0.5, 11)],
)
def test_a_ratio_asks_for_a_share_of_the_sources_units(plain_pipe, unit, ratio, expected):
    # 14 characters and 3 words; ï and é take a byte more, 日本語 two more each, so 22 bytes
    result = plain_pipe("naïve café 日本語", length_ratio=ratio, length_unit=unit, length_constraint="max")
    assert (result["requested_length"], result["length_unit"]) == (expected, unit)
    assert 1 <= independent_length(result["generated_text"], unit) == result["length"] <= expected


def test_the_sources_length_is_asked_for(pipe, plain_pipe, tokenizer):
    rows = pipe(SOURCES, length="source", length_constraint="max")
    assert [row["requested_length"] for row in rows] == [len(source) for source in SOURCES]
    pieces = tokenizer.spm_source.encode(SOURCES, out_type=str)  # SentencePiece's own, none of them special
    for options in ({"length": "source"}, {"length_ratio": 1}):
        rows = plain_pipe(SOURCES, length_unit="token", length_constraint="max", **options)
        assert [row["requested_length"] for row in rows] == [len(row) for row in pieces]


def test_the_references_length_is_asked_for(pipe, character_tokenizer):
    rows = pipe(SOURCES, length="reference", references=TARGETS, length_constraint="exact")
    assert [row["requested_length"] for row in rows] == [17, 33, 24, 29, 23, 25]
    # tokens of a reference are those of the target side, here characters
    model = model_of_characters(character_tokenizer, length_unit="token")
    pipe = LengthControlledGenerationPipeline(model=model, tokenizer=character_tokenizer, device="cpu")
    rows = pipe(SOURCES, length="reference", references=TARGETS, max_new_tokens=3)
    assert [row["requested_length"] for row in rows] == [17, 33, 24, 29, 23, 25]


def test_the_predictor_comes_from_the_revision_of_the_generator(tokenizer, tmp_path, monkeypatch):
    cache = tmp_path / "models--user--name"  # as `huggingface_hub` writes it
    (cache / "refs").mkdir(parents=True)
    generator = controlled_marian(tokenizer, length_predictor="./predictor")
    for branch, commit, mean in (("main", "0" * 40, 12), ("v1", "1" * 40, 31)):
        (cache / "refs" / branch).write_text(commit)
        snapshot = save_in(cache / "snapshots" / commit, generator, tokenizer)
        folder = write_predictor(snapshot / "predictor")
        predictor = LengthPredictor.from_pretrained(folder)
        predictor.config.target_mean = mean - 5  # its output is 5 above
        predictor.save_pretrained(folder)
    options = {"model": "user/name", "device": "cpu", "model_kwargs": {"cache_dir": str(tmp_path)}}
    for revision, expected in ((None, 12), ("v1", 31), ("main", 12)):
        found = pipeline(TASK, revision=revision, **options)
        assert found(SOURCES[0], length="predict", length_constraint="max")["requested_length"] == expected
    alone = AutoModelForSeq2SeqLM.from_pretrained("user/name", revision="v1", cache_dir=tmp_path)
    seen: list[tuple] = []
    load = hf_lenctrl.length_predictor.load_predictor

    def spy_on(name, **given):
        seen.append((name, given))
        return load(folder)

    monkeypatch.setattr("hf_lenctrl.length_predictor.load_predictor", spy_on)
    found = LengthControlledGenerationPipeline(model=alone, tokenizer=tokenizer, revision="v1", token="hf_x")
    found(SOURCES[0], length="predict", length_constraint="max")
    found(SOURCES[0], length="predict", predictor="user/other", length_constraint="max")
    own = {"subfolder": "predictor", "revision": "v1", "token": "hf_x"}
    assert seen == [("user/name", own), ("user/other", {"token": "hf_x"})]
    found = pipeline(TASK, token="hf_y", **options)
    found(SOURCES[0], length="predict", length_constraint="max")
    assert seen[-1][1]["token"] == "hf_y"
    assert b"hf_y" not in pickle.dumps(found.model.config) and "hf_y" not in str(vars(found.model))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"length": "5"}, ValueError, "'predict', 'source' or 'reference', got '5'"),
        ({"length": torch.tensor([5.0, 2.5])}, TypeError, r"got 5.0 \(float\)"),
        ({"length": None}, ValueError, "no length was given"),
        *(({"length": rows}, ValueError, re.escape(f"got {rows}")) for rows in ([5], [[5], 7], [[5], []])),
        ({"length": "predict"}, ValueError, "needs a length predictor"),
        ({"length": "reference"}, ValueError, "one for each of 2 texts, got None"),
        ({"length": 5, "length_ratio": 0.5}, ValueError, "not both: got length=5, length_ratio=0.5"),
        *(({"length_ratio": n}, ValueError, f"above 0, got {n!r}") for n in (0, math.nan, True)),
        ({"length_ratio": 1e12}, ValueError, "under 10000000 for every example, got [0-9, []+]$"),
        ({"length": "reference", "references": "text"}, ValueError, "each of 2 texts, got 'text'"),
        ({"length": 5, "predictor": "path"}, ValueError, "predictor gives the lengths with length='predict'"),
        ({"length": [[5], [6]], "references": ["a"]}, ValueError, "references gives the lengths with length='refere"),
    ],
)
def test_a_wrong_length_is_told(pipe, options, error, message):
    with pytest.raises(error, match=message):
        pipe(SOURCES[:2], **options)


def test_what_the_predictor_cannot_do_is_told(pipe, plain_pipe, tmp_path):
    predictor = load_predictor(write_predictor(tmp_path))
    options = {"length": "predict", "predictor": predictor, "length_constraint": "max"}
    with pytest.raises(ValueError, match="predicts characters, the generator counts bytes; train one for these"):
        plain_pipe(SOURCES[0], length_unit="byte", **options)
    with pytest.raises(ValueError, match="512"):
        pipe([SOURCES[0], "a " * 600], **options)
