"""The pipeline: text and a length in, text of that length out, from a checkpoint, a plain model or an ensemble."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from conftest import MARIAN, SHAPE, SOURCES, controlled_marian
from pipeline_calls import independent_length, spy
from transformers import (
    MarianConfig,
    MarianMTModel,
    pipeline,
)

import hf_lenctrl
from hf_lenctrl import LengthControlEnsemble, LengthControlledGenerationPipeline


TASK = "length-controlled-generation"
UNITS = ["token", "character", "word", "byte"]
KEYS = {"generated_text", "length", "requested_length", "length_unit"}


@pytest.fixture(scope="session")
def tokenizer(pipe):
    return pipe.tokenizer


@pytest.fixture(scope="session")
def model(pipe):
    return pipe.model


@pytest.fixture(scope="session")
def plain(plain_pipe):
    return plain_pipe.model


# The task


def test_transformers_loads_a_checkpoint_by_the_name_of_the_task(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = pipeline(TASK, model=str(tmp_path), device="cpu")
    assert type(loaded) is LengthControlledGenerationPipeline
    assert type(loaded.model) is hf_lenctrl.LenCtrlMarianMTModel
    result = loaded(SOURCES[0], length=12, length_constraint="exact")
    assert result.keys() == KEYS
    assert (result["length"], len(result["generated_text"])) == (12, 12)


def test_a_saved_pipeline_loads_by_the_name_of_the_task(model, tokenizer, tmp_path):
    pipeline(TASK, model=model, tokenizer=tokenizer, device="cpu").save_pretrained(tmp_path)
    assert not hasattr(model.config, "custom_pipelines")
    again = pipeline(TASK, model=str(tmp_path), device="cpu")
    assert again(SOURCES[0], length=12, length_constraint="exact")["length"] == 12


@pytest.mark.slow
def test_a_fresh_process_that_imports_the_package_last_knows_the_task(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    code = (
        "from transformers import pipeline\nimport hf_lenctrl\n"
        f"result = pipeline({TASK!r}, model={str(tmp_path)!r}, device='cpu')"
        f"({SOURCES[0]!r}, length=9, length_constraint='exact')\n"
        "assert len(result['generated_text']) == 9, result\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]


# What comes back


def test_a_text_gives_its_output_with_the_lengths(pipe):
    result = pipe(SOURCES[0], length=12, length_constraint="max")
    assert result.keys() == KEYS
    assert (result["requested_length"], result["length_unit"]) == (12, "character")
    assert 1 <= result["length"] == len(result["generated_text"]) <= 12
    assert pipe(SOURCES[0], length=12, length_constraint="max", length_unit="character") == result


def test_a_list_of_one_gives_a_list_of_one(pipe):
    assert pipe([SOURCES[0]], length=4, length_constraint="max") == [
        pipe(SOURCES[0], length=4, length_constraint="max")
    ]


def test_any_iterable_of_texts_is_a_list_of_them(pipe):
    texts = SOURCES[:2]
    assert pipe((text for text in texts), length=4, length_constraint="max") == pipe(
        texts, length=4, length_constraint="max"
    )


def test_no_texts_give_no_outputs(pipe):
    assert pipe([], length=4) == pipe([]) == []


def test_one_length_holds_for_all_and_a_list_for_each(pipe):
    same = pipe(SOURCES, length=8, length_constraint="exact")
    assert [len(row["generated_text"]) for row in same] == [8] * 6
    wanted = [8, 3, 30, 1, 17, 8]
    for lengths in (wanted, torch.tensor(wanted)):
        rows = pipe(SOURCES, length=lengths, length_constraint="exact")
        assert [len(row["generated_text"]) for row in rows] == wanted
        assert [row["requested_length"] for row in rows] == wanted


def test_a_length_of_the_configuration_is_used_where_none_is_given(tokenizer):
    pipe = LengthControlledGenerationPipeline(
        model=controlled_marian(tokenizer, length=7, length_constraint="exact"), tokenizer=tokenizer, device="cpu"
    )
    assert [(row["requested_length"], row["length"]) for row in pipe(SOURCES[:2])] == [(7, 7)] * 2
    assert pipe(SOURCES[0], length=5)["length"] == 5


def test_each_row_is_what_the_model_writes_for_its_source_at_its_length(pipe, model, tokenizer):
    # batched by length, but in the order of the input: a mix-up would pair a row with another text
    lengths = [5, 40, 12, 39, 6, 13]
    rows = pipe(SOURCES, length=lengths, length_constraint="exact", batch_size=2)
    for row, source, length in zip(rows, SOURCES, lengths, strict=True):
        ids = model.generate(**tokenizer(source, return_tensors="pt"), length=length, length_constraint="exact")
        assert row["generated_text"] == tokenizer.decode(ids[0], skip_special_tokens=True)
        assert row["requested_length"] == length
    assert len({row["generated_text"][:5] for row in rows}) >= 3  # so that a mix-up would show


# Constraints


def test_a_constraint_comes_from_the_call_from_the_configuration_or_from_none(tokenizer):
    free, bound = (
        LengthControlledGenerationPipeline(
            model=controlled_marian(tokenizer, length_constraint=constraint), tokenizer=tokenizer, device="cpu"
        )
        for constraint in (None, "exact")
    )
    assert free(SOURCES[0], length=12)["length"] > 12
    assert free(SOURCES[0], length=12, length_constraint="max")["length"] <= 12
    assert free(SOURCES[0], length=12, length_constraint="exact")["length"] == 12
    assert bound(SOURCES[0], length=12)["length"] == 12
    assert bound(SOURCES[0], length=12, length_constraint=None) == free(SOURCES[0], length=12)


@pytest.mark.parametrize(
    ("unit", "options"),
    [*((unit, {"num_beams": 3}) for unit in UNITS), ("byte", {}), ("character", {"do_sample": True})],
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
    rows = plain_pipe(SOURCES[:2], length_unit="character")
    for row, source in zip(rows, SOURCES, strict=False):
        ids = plain.generate(**tokenizer(source, return_tensors="pt"))
        text = tokenizer.decode(ids[0], skip_special_tokens=True)
        expected = {"generated_text": text, "length": len(text), "requested_length": None, "length_unit": "character"}
        assert row == expected


def test_a_plain_models_own_minimum_gives_way_to_the_length(plain, tokenizer, monkeypatch):
    monkeypatch.setattr(plain.generation_config, "min_length", 20)
    pipe = LengthControlledGenerationPipeline(model=plain, tokenizer=tokenizer, device="cpu")
    assert pipe(SOURCES[0], length=4, length_constraint="exact")["length"] == 4


# Several outputs, and re-ranking


def test_several_outputs_are_the_beams_of_each_text_in_their_order(pipe, model, tokenizer):
    options = {"length": 9, "length_constraint": "max", "num_return_sequences": 3}
    rows = pipe(SOURCES[:2], **options)
    for outputs, source in zip(rows, SOURCES, strict=False):
        ids = model.generate(**tokenizer(source, return_tensors="pt"), num_beams=3, **options)
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        assert [output["generated_text"] for output in outputs] == texts and len(set(texts)) == 3
        assert all(output.keys() == KEYS and output["length"] <= 9 for output in outputs)
    assert pipe(SOURCES[0], **options) == rows[0]


def test_as_many_beams_as_outputs_are_kept_and_more_are_left_alone(pipe, model, monkeypatch):
    calls = spy(monkeypatch, model)
    for beams in (1, 5):
        pipe(SOURCES[0], length=5, length_constraint="max", num_return_sequences=3, num_beams=beams)
    assert [(call["num_beams"], call["num_return_sequences"]) for call in calls] == [(3, 3), (5, 3)]


def test_the_beams_of_the_checkpoint_are_kept(tokenizer, monkeypatch):
    model = controlled_marian(tokenizer)
    model.generation_config.num_beams = 5
    pipe = LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    calls = spy(monkeypatch, model)
    one = pipe(SOURCES[0], length=9)
    assert pipe(SOURCES[0], length=9, num_return_sequences=2)[0] == one
    pipe(SOURCES[0], length=9, num_return_sequences=3, num_beams=2)
    pipe(SOURCES[0], length=9, rerank=7, do_sample=True)  # beams that sample are as many as the candidates too
    assert [call.get("num_beams") for call in calls] == [None, 5, 3, 7]


def test_samples_need_no_beams(pipe, model, monkeypatch):
    calls = spy(monkeypatch, model)
    outputs = pipe(SOURCES[0], length=5, length_constraint="max", num_return_sequences=3, do_sample=True)
    assert len(outputs) == 3 and "num_beams" not in calls[0]


# A source and its candidates, best first: which of them have most of its words is told by looking
FOUND = [["nothing of it", "the text editor", "small text editor"], ["network logs of a server", "a server", "cards"]]


def told(monkeypatch, model, tokenizer):
    """Let the model write FOUND, as many candidates as are asked for."""

    def generate(input_ids, num_return_sequences, **_):
        rows = []
        for ids in input_ids:
            source = tokenizer.decode(ids, skip_special_tokens=True)
            rows += (FOUND[0] if "editor" in source else FOUND[1])[:num_return_sequences]
        return tokenizer(text_target=rows, return_tensors="pt", padding=True)["input_ids"]

    monkeypatch.setattr(model, "generate", generate)


def test_the_candidate_with_most_words_of_the_source_is_returned(pipe, model, tokenizer, monkeypatch):
    pytest.importorskip("nltk")
    told(monkeypatch, model, tokenizer)
    rows = pipe([SOURCES[0], SOURCES[2]], length=20, rerank=3)
    # three words of the first source against "text editor" and "it"; five of the second against two and none
    assert [row["generated_text"] for row in rows] == ["small text editor", "network logs of a server"]
    rows = pipe([SOURCES[0], SOURCES[2]], length=20, rerank=3, num_return_sequences=2)
    assert [[row["generated_text"] for row in outputs] for outputs in rows] == [
        ["small text editor", "the text editor"],
        ["network logs of a server", "a server"],
    ]
    # the best of two: the third is not written
    assert pipe(SOURCES[0], length=20, rerank=2)["generated_text"] == "the text editor"


@pytest.mark.parametrize(
    ("options", "candidates"),
    [
        ({"rerank": True}, 20),
        ({"rerank": 4}, 4),
        ({"rerank": 2, "num_return_sequences": 3}, 3),
        ({"rerank": True, "num_beams": 30}, 20),
        ({"rerank": True, "do_sample": True}, 20),
    ],
)
def test_what_is_returned_is_what_rerank_picks_among_all_candidates(
    pipe, model, tokenizer, monkeypatch, options, candidates
):
    calls = spy(monkeypatch, model)
    asked = []

    def last_first(source, texts, scores):
        asked.append((source, texts))
        return list(range(len(texts)))[::-1]

    monkeypatch.setattr("hf_lenctrl.inference.ranking.rerank", last_first)
    result = pipe(SOURCES[0], length=6, length_constraint="max", **options)
    written = tokenizer.batch_decode(calls[0]["ids"], skip_special_tokens=True)
    assert calls[0]["num_return_sequences"] == len(written) == candidates
    assert asked == [(SOURCES[0], written)]
    outputs = result if isinstance(result, list) else [result]
    assert len(outputs) == options.get("num_return_sequences", 1)
    assert [row["generated_text"] for row in outputs] == written[::-1][: len(outputs)]
    assert all(row["length"] == len(row["generated_text"]) for row in outputs)


@pytest.mark.parametrize("rerank", [False, 0])
def test_nothing_is_reranked_unless_asked(pipe, model, monkeypatch, rerank):
    calls = spy(monkeypatch, model)
    pipe(SOURCES[0], length=6, length_constraint="max", rerank=rerank)
    assert "num_return_sequences" not in calls[0] and len(calls[0]["ids"]) == 1


# Options of the pipeline and of a call


@pytest.mark.parametrize(
    ("texts", "options", "shown"),
    [
        (1, {}, False),
        (3, {}, False),
        (3, {"batch_size": 2}, True),
        (3, {"batch_size": 2, "progress_bar": False}, False),
        (1, {"progress_bar": True}, True),
    ],
)
def test_a_bar_is_shown_for_several_batches_unless_told(pipe, capsys, texts, options, shown):
    pipe(SOURCES[:texts], length=1, length_constraint="max", **options)
    stderr = capsys.readouterr().err
    assert ("Generating" in stderr and f"{texts}/{texts}" in stderr) is shown


def test_options_of_the_pipeline_hold_for_every_call_and_those_of_a_call_win(model, tokenizer, monkeypatch):
    pipe = pipeline(
        TASK,
        model=model,
        tokenizer=tokenizer,
        device="cpu",
        length=6,
        length_constraint="exact",
        num_beams=2,
        batch_size=2,
    )
    calls = spy(monkeypatch, model)
    for _ in range(2):
        assert [row["length"] for row in pipe(SOURCES[:3])] == [6] * 3
    assert [(len(call["length"]), call["num_beams"]) for call in calls] == [(2, 2), (1, 2)] * 2
    calls.clear()
    rows = pipe(SOURCES[:3], length=9, length_constraint="max", num_beams=1, batch_size=3)
    assert [row["requested_length"] for row in rows] == [9] * 3
    assert [(len(call["length"]), call["num_beams"], call["length_constraint"]) for call in calls] == [(3, 1, "max")]
    assert pipe(SOURCES[0])["length"] == 6  # a call changes nothing for the next


@pytest.mark.parametrize("limit", [{"max_new_tokens": 3}, {"max_length": 4}], ids=str)
@pytest.mark.parametrize("constraint", ["max", None])
def test_a_limit_on_tokens_is_kept(pipe, model, monkeypatch, limit, constraint):
    calls = spy(monkeypatch, model)
    pipe(SOURCES[:2], length=40, length_constraint=constraint, **limit)
    assert calls[0]["ids"].shape[1] <= 4  # the start and three tokens


@pytest.mark.parametrize("limit", [{"max_new_tokens": 3}, {"max_length": 4}], ids=str)
def test_a_limit_on_a_plain_models_tokens_is_kept_and_leaves_whole_outputs(plain_pipe, plain, monkeypatch, limit):
    calls = spy(monkeypatch, plain)
    result = plain_pipe(SOURCES[0], length=40, length_unit="character", length_constraint="max", **limit)
    ids = calls[0]["ids"][0].tolist()
    assert len(ids) <= 4 and ids[-1] == MARIAN["eos_token_id"]
    assert result["length"] == len(result["generated_text"])


def test_a_logits_processor_of_the_user_stands_beside_the_bound(plain_pipe, tokenizer):
    def no_spaces(input_ids, scores):
        starts = [i for piece, i in tokenizer.get_vocab().items() if "▁" in piece]
        scores[:, starts] = -torch.inf
        return scores

    result = plain_pipe(
        SOURCES[0], length=9, length_unit="character", length_constraint="exact", logits_processor=[no_spaces]
    )
    assert result["length"] == 9 and " " not in result["generated_text"]


# Ensembles, plain models of this package, and models whose configuration has a limit of its own


def test_an_ensemble_writes_at_the_length(model, tokenizer):
    ensemble = LengthControlEnsemble([model, controlled_marian(tokenizer, seed=6)])
    pipe = LengthControlledGenerationPipeline(model=ensemble, tokenizer=tokenizer, device="cpu")
    lengths = [12, 3, 20]
    rows = pipe(SOURCES[:3], length=lengths, length_constraint="exact", num_beams=2, batch_size=2)
    assert [len(row["generated_text"]) for row in rows] == lengths
    for row, source, length in zip(rows, SOURCES, lengths, strict=False):
        ids = ensemble.generate(
            **tokenizer(source, return_tensors="pt"), length=length, length_constraint="exact", num_beams=2
        )
        assert row["generated_text"] == tokenizer.decode(ids[0], skip_special_tokens=True)


def test_an_ensemble_of_plain_models_is_bound_in_any_unit(tokenizer):
    members = [controlled_marian(tokenizer, seed, length_encoding="none", absolute_positions=True) for seed in (5, 6)]
    pipe = LengthControlledGenerationPipeline(
        model=LengthControlEnsemble(members), tokenizer=tokenizer, device="cpu", length_constraint="exact"
    )
    assert independent_length(pipe(SOURCES[0], length=7, length_unit="byte")["generated_text"], "byte") == 7


@pytest.mark.parametrize("unit", ["character", "byte"])
def test_a_model_without_encoding_is_bound_once_and_in_the_unit_of_the_call(tokenizer, unit):
    fields = {"length_encoding": "none", "absolute_positions": True, "length": 3, "length_constraint": "max"}
    pipe = LengthControlledGenerationPipeline(
        model=controlled_marian(tokenizer, **fields), tokenizer=tokenizer, device="cpu"
    )
    result = pipe(SOURCES[0], length=11, length_unit=unit, length_constraint="exact")
    assert (independent_length(result["generated_text"], unit), result["requested_length"]) == (11, 11)
    free = pipe(SOURCES[0], length_constraint=None, max_new_tokens=9)
    assert free["requested_length"] is None and free["length"] > 3


@pytest.mark.parametrize("where", ["model", "call"])
def test_a_limit_in_a_generation_configuration(plain, tokenizer, monkeypatch, where):
    settings = copy.deepcopy(plain.generation_config)
    settings.max_new_tokens = 4
    if where == "model":
        monkeypatch.setattr(plain, "generation_config", settings)
    options = {} if where == "model" else {"generation_config": settings}
    pipe = LengthControlledGenerationPipeline(model=plain, tokenizer=tokenizer, device="cpu")
    options |= {"length": 30, "length_unit": "character"}
    if where == "model":  # was made for no length, and gives way
        assert pipe(SOURCES[0], length_constraint="exact", **options)["length"] == 30
    else:  # is this call's, and holds
        with pytest.raises(ValueError, match="max_length leaves 5; raise max_length or max_new_tokens"):
            pipe(SOURCES[0], length_constraint="exact", **options)


def test_the_bound_leaves_room_within_the_models_positions(tokenizer):
    torch.manual_seed(3)
    shape = {**SHAPE, **MARIAN, "vocab_size": len(tokenizer), "max_position_embeddings": 24, "init_std": 0.5}
    pipe = LengthControlledGenerationPipeline(
        model=MarianMTModel(MarianConfig(**shape)).eval(), tokenizer=tokenizer, device="cpu", length_constraint="max"
    )
    assert pipe(SOURCES[0], length=23, length_unit="token")["length"] <= 23
    with pytest.raises(ValueError, match="length=24 needs at least 25 decoder positions, the model has 24; ask for"):
        pipe(SOURCES[0], length=24, length_unit="token")


def test_a_missed_exact_length_of_a_plain_model_is_told(plain_pipe, caplog):
    def only_eos(input_ids, scores):
        return scores.index_fill(1, torch.arange(1, scores.shape[1]), -torch.inf)

    assert MARIAN["eos_token_id"] == 0
    plain_pipe(SOURCES[:2], length=5, length_unit="token", length_constraint="exact", logits_processor=[only_eos])
    assert (
        "2 of 2 outputs missed their exact length" in caplog.text and "have [0, 0] tokens, not [5, 5]" in caplog.text
    )


def test_a_minimum_of_the_call_is_kept(plain_pipe, plain, monkeypatch):
    calls = spy(monkeypatch, plain)
    plain_pipe(SOURCES[0], length=9, length_unit="token", length_constraint="max", min_length=4)
    assert calls[0]["min_length"] == 4


def test_a_source_longer_than_the_encoder_is_cut_and_told(tokenizer, caplog):
    model = controlled_marian(tokenizer, max_position_embeddings=16)
    pipe = LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    assert len(tokenizer(SOURCES[0] * 5)["input_ids"]) > 16
    assert len(pipe([SOURCES[0] * 5, SOURCES[0][:5]], length=5, length_constraint="max")) == 2
    assert "1 of 2 sources are longer than the encoder's 16 tokens and were cut" in caplog.text


# Refusals


@pytest.mark.parametrize(
    ("inputs", "options", "error", "message"),
    [
        *(
            (SOURCES[0], {name: number}, ValueError, f"{name} must be an integer of at least 1, got {number}")
            for name in ("num_return_sequences", "batch_size", "rerank", "batch_tokens")
            for number in (-1, 2.5, *([0] if "batch" in name else []))
        ),
        *((inputs, {}, TypeError, "inputs must be a text or a list of texts, got ") for inputs in (None, 5, {"a": 1})),
        ([3], {}, TypeError, "every input must be a text, got 3 at position 0"),
        (["a", None], {}, TypeError, "every input must be a text, got None at position 1"),
        (["a", ["b"]], {}, TypeError, r"every input must be a text, got \['b'\] at position 1"),
        (
            ["a", "\ud83d b"],
            {},
            ValueError,
            "every input must be valid Unicode, got .* a lone surrogate at position 1",
        ),
        ([b"a"], {}, TypeError, "every input must be a text, got b'a' at position 0"),
        *(
            (["a", empty], options, ValueError, "the text at position 1 is empty")
            for empty in ("", " ", "\t\n")
            for options in ({}, {"length": None, "length_ratio": 0.5})
        ),
        *((SOURCES[0], {name: 5}, ValueError, name) for name in ("lenght", "batchsize", "reference")),
        (
            SOURCES[0],
            {"length_unit": "word"},
            ValueError,
            "length_unit='word', but the model was trained to count",
        ),
    ],
)
def test_wrong_inputs_and_options_are_told(pipe, inputs, options, error, message):
    with pytest.raises(error, match=message):
        pipe(inputs, **{"length": 5, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length_constraint": "max"}, "no length was given; pass length=40"),
        ({"length_unit": "sentence"}, "unit must be one of token, character, word, byte, width, got 'sentence'"),
        (
            {"length_unit": "sentence", "length": 5, "length_constraint": "max"},
            "unit must be one of token, character, word, byte, width, got 'sentence'",
        ),
        *(
            (
                options,
                "MarianMTModel has no length control, so a length needs a constraint; pass length_con",
            )
            for options in ({"length": 5}, {"length_ratio": 0.5})
        ),
    ],
)
def test_what_a_plain_model_cannot_do_is_told(plain_pipe, options, message):
    with pytest.raises(ValueError, match=message):
        plain_pipe(SOURCES[0], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"length_constraint": constraint}, r"'max' \(never longer\), 'exact' or None .*got " + repr(constraint))
            for constraint in ("min", "", 5)
        ),
        *(
            (
                {"length_constraint": "exact", **limit},
                "exactly 90 characters may need .* max_length leaves 4; raise max_length or max_new_tokens",
            )
            for limit in ({"max_new_tokens": 3}, {"max_length": 4})
        ),
    ],
)
def test_a_constraint_that_cannot_be_is_told_by_both_kinds_of_model(pipe, plain_pipe, options, message):
    for either in (pipe, plain_pipe):
        with pytest.raises(ValueError, match=message):
            either(SOURCES[0], length=90, length_unit="character", **options)
