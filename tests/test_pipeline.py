"""The pipeline: text and a length in, text of that length out, from a checkpoint, a plain model or an ensemble."""

import copy
import os
import pickle
import re
import shutil
import subprocess
import sys

import pytest
import torch
from conftest import MARIAN, SHAPE, SOURCES, TARGETS, build_model
from transformers import (
    AutoModelForSeq2SeqLM,
    BertConfig,
    BertModel,
    BertTokenizer,
    MarianConfig,
    MarianMTModel,
    pipeline,
)

import hf_lenctrl
from hf_lenctrl import LengthControlEnsemble, LengthControlledGenerationPipeline, LengthPredictor


TASK = "length-controlled-generation"
UNITS = ["token", "character", "word", "byte"]
KEYS = {"generated_text", "length", "requested_length", "length_unit"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Knows accents and Japanese too, so that characters and bytes differ."""
    texts = [*SOURCES, *TARGETS, "naïve café 日本語"] * 2
    return hf_lenctrl.train_marian_tokenizer(
        texts, texts, tmp_path_factory.mktemp("tokenizer"), vocab_size=160, target_vocabulary="shared"
    )


def controlled(tokenizer, seed: int = 5, **fields):
    """Untrained: without a constraint it writes far past any length."""
    fields = {"length_unit": "character", **fields}
    model = build_model("marian", seed=seed, vocab_size=len(tokenizer), init_std=0.5, **fields)
    model.set_unit_table(tokenizer)
    return model


@pytest.fixture(scope="module")
def model(tokenizer):
    return controlled(tokenizer)


@pytest.fixture(scope="module")
def pipe(model, tokenizer):
    return LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device="cpu")


@pytest.fixture(scope="module")
def plain(tokenizer):
    """A stock Marian model."""
    torch.manual_seed(3)
    shape = {**SHAPE, **MARIAN, "vocab_size": len(tokenizer), "max_position_embeddings": 512, "init_std": 0.5}
    return MarianMTModel(MarianConfig(**shape)).eval()


@pytest.fixture(scope="module")
def plain_pipe(plain, tokenizer):
    return LengthControlledGenerationPipeline(model=plain, tokenizer=tokenizer, device="cpu")


def spy(monkeypatch, model) -> list[dict]:
    """The keyword arguments of each call to `generate`, with the ids that it gave."""
    calls: list[dict] = []
    original = model.generate

    def generate(*args, **kwargs):
        ids = original(*args, **kwargs)
        calls.append({**kwargs, "ids": ids})
        return ids

    monkeypatch.setattr(model, "generate", generate)
    return calls


def independent_length(text: str, unit: str) -> int:
    return {"character": len(text), "word": len(text.split()), "byte": len(text.encode())}[unit]


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


@pytest.mark.slow
def test_a_fresh_process_knows_the_task_in_either_order_of_import(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    use = (
        f"result = pipeline({TASK!r}, model={str(tmp_path)!r}, device='cpu')"
        f"({SOURCES[0]!r}, length=9, length_constraint='exact')\n"
        "assert len(result['generated_text']) == 9, result\n"
    )
    for imports in (
        "import hf_lenctrl\nfrom transformers import pipeline\n",
        "from transformers import pipeline\nimport hf_lenctrl\n",
    ):
        done = subprocess.run(
            [sys.executable, "-c", imports + use], env=os.environ, capture_output=True, text=True, timeout=110
        )
        assert done.returncode == 0, done.stderr[-2000:]


# What comes back


def test_a_text_gives_its_output_with_the_lengths(pipe):
    result = pipe(SOURCES[0], length=12, length_constraint="max")
    assert result.keys() == KEYS
    assert (result["requested_length"], result["length_unit"]) == (12, "character")
    assert 1 <= result["length"] == len(result["generated_text"]) <= 12


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
    for lengths in (wanted, tuple(wanted), torch.tensor(wanted)):
        rows = pipe(SOURCES, length=lengths, length_constraint="exact")
        assert [len(row["generated_text"]) for row in rows] == wanted
        assert [row["requested_length"] for row in rows] == wanted


def test_a_length_of_the_configuration_is_used_where_none_is_given(tokenizer):
    pipe = LengthControlledGenerationPipeline(
        model=controlled(tokenizer, length=7, length_constraint="exact"), tokenizer=tokenizer, device="cpu"
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


def test_like_lengths_share_a_batch_and_the_longest_come_first(pipe, model, monkeypatch):
    calls = spy(monkeypatch, model)
    pipe(SOURCES, length=[5, 40, 12, 39, 6, 13], length_constraint="max", batch_size=2)
    assert [call["length"] for call in calls] == [[40, 39], [13, 12], [6, 5]]


def test_texts_of_one_length_are_batched_by_their_own(plain_pipe, plain, tokenizer, monkeypatch):
    texts = ["small " * 10, "a", "small " * 20, "b", "small " * 15]
    calls = spy(monkeypatch, plain)
    plain_pipe(texts, batch_size=2)
    size = [len(tokenizer(text)["input_ids"]) for text in texts]
    assert size[2] > size[4] > size[0] > size[1]
    seen = [call["attention_mask"].sum(dim=-1).tolist() for call in calls]
    assert seen == [[size[2], size[4]], [size[0], size[1]], [size[3]]]


def test_a_batch_holds_32_texts_unless_told(pipe, model, monkeypatch):
    calls = spy(monkeypatch, model)
    pipe(["a small editor"] * 33, length=1, length_constraint="max")
    assert [len(call["length"]) for call in calls] == [32, 1]


# Lengths from the source


RATIOS = [
    # "naïve café 日本語": 14 characters and 3 words; ï and é take a byte more, 日本語 two more each, so 22 bytes
    ("character", 0.5, 7),
    ("character", 1.25, 18),  # 17.5
    ("word", 1, 3),
    ("word", 0.4, 1),  # 1.2
    ("word", 0.1, 1),  # 0.3, and at least 1
    ("byte", 0.5, 11),
    ("byte", 0.05, 1),
]


@pytest.mark.parametrize(("unit", "ratio", "expected"), RATIOS)
def test_a_ratio_asks_for_a_share_of_the_sources_units(plain_pipe, unit, ratio, expected):
    result = plain_pipe("naïve café 日本語", length_ratio=ratio, length_unit=unit, length_constraint="max")
    assert (result["requested_length"], result["length_unit"]) == (expected, unit)
    assert 1 <= independent_length(result["generated_text"], unit) == result["length"] <= expected


def test_a_ratio_of_tokens_counts_the_sources_own_without_special_ones(plain_pipe, tokenizer):
    source = SOURCES[0]
    pieces = tokenizer.spm_source.encode(source, out_type=str)  # SentencePiece's own count
    result = plain_pipe(source, length_ratio=1, length_unit="token", length_constraint="max")
    assert result["requested_length"] == len(pieces) > 10


def test_a_ratio_is_taken_of_each_text_and_in_the_models_unit(pipe):
    rows = pipe(["abcdefghij", "abcd", "ab"], length_ratio=0.5, length_constraint="exact")
    assert [row["requested_length"] for row in rows] == [5, 2, 1]
    assert [len(row["generated_text"]) for row in rows] == [5, 2, 1]


# Constraints


def test_a_constraint_comes_from_the_call_from_the_configuration_or_from_none(tokenizer):
    free, bound = (
        LengthControlledGenerationPipeline(
            model=controlled(tokenizer, length_constraint=constraint), tokenizer=tokenizer, device="cpu"
        )
        for constraint in (None, "exact")
    )
    assert free(SOURCES[0], length=12)["length"] > 12
    assert free(SOURCES[0], length=12, length_constraint="max")["length"] <= 12
    assert free(SOURCES[0], length=12, length_constraint="exact")["length"] == 12
    assert bound(SOURCES[0], length=12)["length"] == 12
    assert bound(SOURCES[0], length=12, length_constraint=None) == free(SOURCES[0], length=12)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}], ids=["greedy", "beams", "sampling"])
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

    def last_first(source, texts):
        asked.append((source, texts))
        return list(range(len(texts)))[::-1]

    monkeypatch.setattr("hf_lenctrl.pipeline.rerank", last_first)
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


# Progress


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


# Options of the pipeline and of a call


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


# An ensemble


def test_an_ensemble_writes_at_the_length(model, tokenizer):
    ensemble = LengthControlEnsemble([model, controlled(tokenizer, seed=6)])
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
    members = [controlled(tokenizer, seed, length_encoding="none", absolute_positions=True) for seed in (5, 6)]
    pipe = LengthControlledGenerationPipeline(
        model=LengthControlEnsemble(members), tokenizer=tokenizer, device="cpu", length_constraint="exact"
    )
    assert independent_length(pipe(SOURCES[0], length=7, length_unit="byte")["generated_text"], "byte") == 7


# Plain models of this package, and models whose configuration has a limit of its own


@pytest.mark.parametrize("unit", ["character", "byte"])
def test_a_model_without_encoding_is_bound_once_and_in_the_unit_of_the_call(tokenizer, unit):
    fields = {"length_encoding": "none", "absolute_positions": True, "length": 3, "length_constraint": "max"}
    pipe = LengthControlledGenerationPipeline(model=controlled(tokenizer, **fields), tokenizer=tokenizer, device="cpu")
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
    model = controlled(tokenizer, max_position_embeddings=16)
    pipe = LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    assert len(tokenizer(SOURCES[0] * 5)["input_ids"]) > 16
    assert len(pipe([SOURCES[0] * 5, SOURCES[0][:5]], length=5, length_constraint="max")) == 2
    assert "1 of 2 sources are longer than the encoder's 16 tokens and were cut" in caplog.text


# Where the lengths come from


@pytest.fixture(scope="module")
def predictor(tokenizer):
    """Untrained, with a tokenizer of its own; each text gets another length."""
    torch.manual_seed(0)
    encoder = BertModel(
        BertConfig(vocab_size=200, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, initializer_range=1.0)
    )
    words = dict.fromkeys(
        [
            "[PAD]",
            "[UNK]",
            "[CLS]",
            "[SEP]",
            "[MASK]",
            *"abcdefghijklmnopqrstuvwxyz",
            *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"),
        ]
    )
    model = LengthPredictor.from_encoder(encoder, [3, 5, 17, 30], length_unit="character").eval()
    with torch.no_grad():
        model.output.weight.normal_(std=2.0)
    return model, BertTokenizer(vocab={word: i for i, word in enumerate(words)}, model_max_length=512)


def predicted_lengths(predictor, texts):
    model, tokenizer = predictor
    return [model.predict(**tokenizer(text, return_tensors="pt")).item() for text in texts]


def test_predicted_lengths_are_asked_for(pipe, predictor):
    expected = predicted_lengths(predictor, SOURCES)
    assert len(set(expected)) > 1
    rows = pipe(SOURCES, length="predict", predictor=predictor, length_constraint="exact")
    assert [row["requested_length"] for row in rows] == expected
    assert [len(row["generated_text"]) for row in rows] == expected


def test_a_saved_generator_names_its_predictor(model, tokenizer, predictor, tmp_path, monkeypatch):
    monkeypatch.setattr(model.config, "length_predictor", "./predictor")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for part in predictor:
        part.save_pretrained(tmp_path / "predictor")
    found = pipeline(TASK, model=str(tmp_path), device="cpu")
    rows = found(SOURCES, length="predict", length_constraint="max")
    assert [row["requested_length"] for row in rows] == predicted_lengths(predictor, SOURCES)
    by_path = found(SOURCES, length="predict", predictor=str(tmp_path / "predictor"), length_constraint="max")
    assert by_path == rows


def test_the_sources_length_is_asked_for(pipe, plain_pipe, tokenizer):
    rows = pipe(SOURCES, length="source", length_constraint="max")
    assert [row["requested_length"] for row in rows] == [len(source) for source in SOURCES]
    rows = plain_pipe(SOURCES, length="source", length_unit="token", length_constraint="max")
    assert [row["requested_length"] for row in rows] == [len(tokenizer.tokenize(source)) for source in SOURCES]


def test_the_references_length_is_asked_for(pipe, character_tokenizer):
    rows = pipe(SOURCES, length="reference", references=TARGETS, length_constraint="exact")
    assert [row["requested_length"] for row in rows] == [17, 33, 24, 29, 23, 25]
    # tokens of a reference are those of the target side, here characters
    model = build_model(
        "marian",
        vocab_size=len(character_tokenizer),
        decoder_vocab_size=len(character_tokenizer.target_encoder),
        share_encoder_decoder_embeddings=False,
    )
    pipe = LengthControlledGenerationPipeline(model=model, tokenizer=character_tokenizer, device="cpu")
    rows = pipe(SOURCES, length="reference", references=TARGETS, max_new_tokens=3)
    assert [row["requested_length"] for row in rows] == [17, 33, 24, 29, 23, 25]


def test_a_missing_predictor_is_told(pipe):
    with pytest.raises(ValueError, match="length='predict' needs a length predictor; pass predictor='path or Hub"):
        pipe(SOURCES[0], length="predict")


def test_a_predictor_of_another_unit_is_told(plain_pipe, predictor):
    message = "predicts characters, the generator counts bytes; use a predictor trained with length_unit='byte'"
    with pytest.raises(ValueError, match=message):
        plain_pipe(SOURCES[0], length="predict", predictor=predictor, length_unit="byte", length_constraint="max")


def test_a_text_longer_than_the_predictors_encoder_is_told(pipe, predictor):
    with pytest.raises(ValueError, match="512"):
        pipe([SOURCES[0], "a " * 600], length="predict", predictor=predictor)


@pytest.mark.parametrize(
    ("references", "shown"), [(None, "None"), (TARGETS[:2], "2"), ("a text", "'a text'")], ids=["none", "two", "text"]
)
def test_missing_references_are_told(pipe, references, shown):
    with pytest.raises(ValueError, match=f"needs one reference for each of the 6 texts, got {shown}; pass references"):
        pipe(SOURCES, length="reference", references=references)


@pytest.mark.parametrize("length", [5, "source", [5, 6]], ids=str)
@pytest.mark.parametrize(
    ("options", "source"), [({"predictor": "path"}, "predict"), ({"references": ["a"]}, "reference")], ids=str
)
def test_a_predictor_or_references_without_a_use_are_told(pipe, options, source, length):
    message = f"{next(iter(options))} gives the lengths with length='{source}', got length={length!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        pipe(SOURCES[:2], length=length, **options)


def hub_cache(folder, refs: dict) -> str:
    """A cache as `huggingface_hub` writes it, of `user/name` with a branch for each folder of `refs`."""
    repo = folder / "models--user--name"
    (repo / "refs").mkdir(parents=True)
    for i, (branch, source) in enumerate(refs.items()):
        (repo / "refs" / branch).write_text(f"{i:040x}")
        shutil.copytree(source, repo / "snapshots" / f"{i:040x}")
    return str(folder)


def test_the_predictor_comes_from_the_revision_of_the_generator(tokenizer, tmp_path, monkeypatch):  # issue 15.14
    for branch, mean in (("main", 12), ("v1", 31)):
        generator = controlled(tokenizer, length_predictor="./predictor")
        encoder = BertModel(BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
        model = LengthPredictor.from_encoder(encoder, [mean - 1, mean + 1], length_unit="character")
        torch.nn.init.zeros_(model.output.weight)
        torch.nn.init.zeros_(model.output.bias)
        words = BertTokenizer(vocab={word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])})
        for part, path in ((generator, ""), (tokenizer, ""), (model, "predictor"), (words, "predictor")):
            part.save_pretrained(tmp_path / branch / path)
    cache = hub_cache(tmp_path / "cache", {branch: tmp_path / branch for branch in ("main", "v1")})
    options = {"model": "user/name", "device": "cpu", "model_kwargs": {"cache_dir": cache}}
    for revision, expected in ((None, 12), ("v1", 31), ("main", 12)):
        found = pipeline(TASK, revision=revision, **options)
        assert found(SOURCES[0], length="predict", length_constraint="max")["requested_length"] == expected
    alone = AutoModelForSeq2SeqLM.from_pretrained("user/name", revision="v1", cache_dir=cache)
    seen: list[tuple] = []
    load = hf_lenctrl.length_sources.load_predictor

    def spy_on(name, **given):
        seen.append((name, given))
        return load(tmp_path / "v1", subfolder="predictor")

    monkeypatch.setattr("hf_lenctrl.length_sources.load_predictor", spy_on)
    found = LengthControlledGenerationPipeline(model=alone, tokenizer=tokenizer, revision="v1", token="hf_x")
    found(SOURCES[0], length="predict", length_constraint="max")
    found(SOURCES[0], length="predict", predictor="user/other", length_constraint="max")
    assert seen == [
        ("user/name", {"subfolder": "predictor", "revision": "v1", "token": "hf_x"}),
        ("user/other", {"token": "hf_x"}),
    ]
    found = pipeline(TASK, token="hf_y", **options)
    found(SOURCES[0], length="predict", length_constraint="max")
    assert seen[-1][1]["token"] == "hf_y"
    assert b"hf_y" not in pickle.dumps(found.model.config) and "hf_y" not in str(vars(found.model))


@pytest.mark.parametrize("path", ["./../elsewhere", "./a/../../elsewhere", ".//elsewhere"])
def test_a_predictor_outside_the_models_folder_is_refused(model, tokenizer, tmp_path, path):  # issue 15.35
    model.save_pretrained(tmp_path / "model")
    model = hf_lenctrl.LenCtrlMarianMTModel.from_pretrained(tmp_path / "model", length_predictor=path)
    found = LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    with pytest.raises(ValueError, match="a predictor's subfolder must lie inside .*model, got "):
        found(SOURCES[0], length="predict")


# Bad input


@pytest.mark.parametrize("name", ["num_return_sequences", "batch_size", "rerank"])
@pytest.mark.parametrize("number", [-1, 2.5])
def test_a_wrong_number_is_told(pipe, name, number):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1, got {number}"):
        pipe(SOURCES[0], length=5, **{name: number})


@pytest.mark.parametrize("inputs", [None, 5, {"a": 1}])
def test_inputs_that_are_no_texts_are_told(pipe, inputs):
    with pytest.raises(TypeError, match="inputs must be a text or a list of texts, got "):
        pipe(inputs, length=5)


def test_a_ratio_beyond_all_lengths_is_told(plain_pipe):
    with pytest.raises(ValueError, match="length must be under 10000000, got "):
        plain_pipe(SOURCES[0], length_ratio=1e12, length_constraint="max")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([3], "every input must be a text, got 3 at position 0"),
        (["a", None], "every input must be a text, got None at position 1"),
        (["a", ["b"]], r"every input must be a text, got \['b'\] at position 1"),
        ([b"a"], "every input must be a text, got b'a' at position 0"),
    ],
)
def test_an_input_that_is_no_text_is_named(pipe, inputs, message):
    with pytest.raises(TypeError, match=message):
        pipe(inputs, length=5)


@pytest.mark.parametrize("empty", ["", " ", "\t\n"])
@pytest.mark.parametrize("length", [{"length": 5}, {"length_ratio": 0.5}], ids=["length", "ratio"])
def test_an_empty_text_is_named(pipe, empty, length):
    with pytest.raises(ValueError, match="the text at position 1 is empty and has no length to write for; remove it"):
        pipe(["a", empty], **length)


@pytest.mark.parametrize(
    ("length", "error", "message"),
    [
        (2.5, TypeError, r"length must be an int of at least 1, got 2.5 \(float\); pass length=75"),
        (3.0, TypeError, "got 3.0"),
        (float("nan"), TypeError, "got nan"),
        (True, TypeError, r"got True \(bool\)"),
        ("5", ValueError, "one for each text in a list, 'predict', 'source' or 'reference', got '5'"),
        ([5, 2.5], TypeError, r"got 2.5 \(float\)"),
        ([5, None], TypeError, "got None"),
        (torch.tensor([5.0, 2.5]), TypeError, r"got 5.0 \(float\)"),
        (0, ValueError, "length must be at least 1, got 0; pass length=75"),
        (-3, ValueError, "length must be at least 1, got -3"),
        ([5, 0], ValueError, "length must be at least 1, got 0"),
        ([5], ValueError, r"one integer or one for each of the 2 texts, got \[5\]"),
        ([5, 6, 7], ValueError, r"one integer or one for each of the 2 texts, got \[5, 6, 7\]"),
        (None, ValueError, r"no length was given; pass length=40, a list with one for each text, or length_ratio=0.5"),
    ],
    ids=str,
)
def test_a_wrong_length_is_told(pipe, length, error, message):
    with pytest.raises(error, match=message):
        pipe(SOURCES[:2], length=length)


@pytest.mark.parametrize(
    ("name", "meant"), [("lenght", "length"), ("batchsize", "batch_size"), ("reference", "references")]
)
def test_an_option_that_is_misspelt_is_told(pipe, name, meant):
    with pytest.raises(TypeError, match=f"{name}=5 is no option; did you mean {meant}=\\?"):
        pipe(SOURCES[0], **{name: 5})


def test_a_ratio_overrides_the_configurations_length(tokenizer):
    pipe = LengthControlledGenerationPipeline(
        model=controlled(tokenizer, length=7, length_constraint="max"), tokenizer=tokenizer, device="cpu"
    )
    assert pipe("abcdefghij", length_ratio=0.5)["requested_length"] == 5


def test_a_bound_without_a_length_is_told(plain_pipe):
    with pytest.raises(ValueError, match="no length was given; pass length=40"):
        plain_pipe(SOURCES[0], length_constraint="max")


def test_a_length_and_a_ratio_are_too_much(pipe):
    with pytest.raises(ValueError, match="give length or length_ratio, not both: got length=5, length_ratio=0.5"):
        pipe(SOURCES[0], length=5, length_ratio=0.5)


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [(0, "0"), (-0.5, "-0.5"), (float("nan"), "nan"), (float("inf"), "inf"), (True, "True"), ("0.5", "'0.5'")],
)
def test_a_wrong_ratio_is_told(pipe, ratio, shown):
    with pytest.raises(ValueError, match=f"length_ratio must be a number above 0, got {shown}; pass length_ratio=0.5"):
        pipe(SOURCES[0], length_ratio=ratio)


def test_a_unit_the_checkpoint_has_no_table_for_is_told_with_its_own(pipe):
    with pytest.raises(ValueError, match="length_unit='word', but the model was trained to count characters and"):
        pipe(SOURCES[0], length=5, length_unit="word")
    assert pipe(SOURCES[0], length=5, length_unit="character")["length_unit"] == "character"


@pytest.mark.parametrize("options", [{"length": 5, "length_constraint": "max"}, {}], ids=["bound", "natural"])
def test_an_unknown_unit_is_told(plain_pipe, options):
    with pytest.raises(ValueError, match="unit must be one of token, character, word, byte, got 'sentence'"):
        plain_pipe(SOURCES[0], length_unit="sentence", **options)


@pytest.mark.parametrize("constraint", ["min", "", 5])
def test_an_unknown_constraint_is_told(pipe, plain_pipe, constraint):
    for either in (pipe, plain_pipe):
        with pytest.raises(
            ValueError, match=r"must be 'max' \(never longer\), 'exact' or None .*got " + repr(constraint)
        ):
            either(SOURCES[0], length=5, length_constraint=constraint)


@pytest.mark.parametrize("options", [{"length": 5}, {"length_ratio": 0.5}], ids=["length", "ratio"])
def test_a_length_for_a_plain_model_without_a_bound_is_told(plain_pipe, options):
    message = (
        "MarianMTModel has no length control, so a length needs a constraint; pass length_constraint='max' or 'exact'"
    )
    with pytest.raises(ValueError, match=message):
        plain_pipe(SOURCES[0], **options)


@pytest.mark.parametrize("limit", [{"max_new_tokens": 3}, {"max_length": 4}], ids=str)
def test_a_limit_too_small_for_an_exact_length_is_told(pipe, plain_pipe, limit):
    for either in (pipe, plain_pipe):
        unit = {} if either is pipe else {"length_unit": "character"}
        with pytest.raises(
            ValueError,
            match="exactly 90 characters may need .* max_length leaves 4; raise max_length or max_new_tokens",
        ):
            either(SOURCES[0], length=90, length_constraint="exact", **unit, **limit)


def count_encoded(model) -> list[int]:
    """Grows by the texts of each batch that the encoder reads."""
    seen: list[int] = []
    model.get_encoder().register_forward_hook(lambda module, args, output: seen.append(len(output[0])))
    return seen


@pytest.mark.parametrize("num_beams", [1, 3])
def test_several_lengths_of_a_text_are_written_from_one_reading(tokenizer, num_beams):
    model = controlled(tokenizer)
    pipe = LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    options = {"num_beams": num_beams, "length_constraint": "max"}
    alone = [pipe(SOURCES[0], length=n, **options) for n in (20, 5, 40)]
    seen = count_encoded(model)
    assert pipe(SOURCES[0], length=[20, 5, 40], **options) == alone
    assert seen == [1]


def test_several_lengths_of_several_texts_come_in_their_order(tokenizer):
    model = controlled(tokenizer)
    pipe = LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    lengths = [[30, 8], [12], [5, 33, 7], [9, 9], [21], [16, 4]]
    options = {"length_constraint": "exact", "batch_size": 4}
    alone = [
        [pipe(text, length=n, **options) for n in several] for text, several in zip(SOURCES, lengths, strict=True)
    ]
    seen = count_encoded(model)
    assert pipe(SOURCES, length=lengths, **options) == alone
    assert sum(seen) <= len(SOURCES) + 2  # a text whose rows lie in two batches is read twice
    best = pipe(SOURCES[:2], length=[[30, 8], [12]], num_return_sequences=2, length_constraint="max")
    assert [[len(n_best) for n_best in several] for several in best] == [[2, 2], [2]]


@pytest.mark.parametrize(
    "fields", [{"length_encoding": "learned", "encoder_length_embedding": True}, {}], ids=["told", "untold"]
)
def test_generate_writes_one_text_at_several_lengths(tokenizer, fields):
    model = controlled(tokenizer, **fields)
    batch = tokenizer(SOURCES[0], return_tensors="pt")
    alone = [model.generate(**batch, length=n, length_constraint="exact", num_beams=2)[0] for n in (9, 24)]
    seen = count_encoded(model)
    together = model.generate(**batch, length=[9, 24], length_constraint="exact", num_beams=2)
    assert seen == [2 if fields else 1]
    for one, row in zip(alone, together, strict=True):
        assert one.tolist() == row[: len(one)].tolist() and set(row[len(one) :].tolist()) <= {tokenizer.pad_token_id}
    assert torch.equal(
        together,
        model.generate(batch["input_ids"], length=torch.tensor([9, 24]), length_constraint="exact", num_beams=2),
    )


@pytest.mark.parametrize("num_beams", [1, 2])
def test_a_text_that_was_read_is_written_at_several_lengths(model, tokenizer, num_beams):
    batch = tokenizer(SOURCES[0], return_tensors="pt")
    options = {"length": [9, 24], "length_constraint": "exact", "num_beams": num_beams}
    read = {"encoder_outputs": model.get_encoder()(**batch), "attention_mask": batch["attention_mask"]}
    assert torch.equal(model.generate(**read, **options), model.generate(**batch, **options))


def test_a_batch_of_tokens_counts_what_it_is_padded_to(model, tokenizer):
    """A long source beside a long output: each row alone is short."""
    pipe = LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    texts = [" ".join(SOURCES[:3]), "library"]
    tokens = len(tokenizer(texts[0])["input_ids"])
    seen = count_encoded(model)
    pipe(texts, length=[5, tokens], length_constraint="max", batch_tokens=3 * tokens)
    assert seen == [1, 1]


def test_a_plain_model_and_an_ensemble_read_a_text_once_too(plain, model, tokenizer):
    pair = [model, controlled(tokenizer, seed=6)]
    for reader, members in ((plain, [plain]), (LengthControlEnsemble(pair), pair)):
        pipe = LengthControlledGenerationPipeline(model=reader, tokenizer=tokenizer, device="cpu")
        options = {"length_unit": "character", "length_constraint": "max"}
        alone = [pipe(SOURCES[1], length=n, **options)["generated_text"] for n in (10, 25)]
        seen = [count_encoded(member) for member in members]
        assert [out["generated_text"] for out in pipe(SOURCES[1], length=[10, 25], **options)] == alone
        assert seen == [[1]] * len(members)


@pytest.mark.parametrize(
    "length, message",
    [
        ([[5], 7, [8]], "length must hold a list of lengths for every text or for none, got 7 at position 1"),
        ([[5], [], [8]], r"length must hold a list of lengths for every text or for none, got \[\] at position 1"),
        ([[5], [7]], "length must hold a list for each of the 3 texts, got 2"),
        ([[5], [0], [8]], "at least 1, got 0"),
    ],
)
def test_lists_of_lengths_that_fit_no_text_are_refused(pipe, length, message):
    with pytest.raises(ValueError, match=message):
        pipe(SOURCES[:3], length=length)


def test_batches_of_tokens_hold_more_of_what_is_short(model, tokenizer):
    pipe = LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    lengths = [5, 60, 6, 61, 7, 8]
    alone = pipe(SOURCES, length=lengths, length_constraint="max", batch_size=1)
    seen = []
    hook = model.get_encoder().register_forward_hook(
        lambda module, args, output: seen.append(tuple(output[0].shape[:2]))
    )
    assert pipe(SOURCES, length=lengths, length_constraint="max", batch_tokens=210) == alone
    hook.remove()
    assert sum(rows for rows, _ in seen) == 6 and seen[0][0] < seen[-1][0]  # the longest come first
    longest = iter(sorted(lengths, reverse=True))  # the order of the batches' rows
    for rows, width in seen:
        written = max([next(longest) for _ in range(rows)])
        assert rows == 1 or rows * (width + written) <= 210
    with pytest.raises(ValueError, match="batch_tokens must be an integer of at least 1, got 0"):
        pipe(SOURCES, length=5, batch_tokens=0)
