"""Ratio classes and length bins: limits by hand, token ids before the source, and models that are told by them."""

import copy

import pytest
import torch
from conftest import SOURCES, TARGETS, controlled_marian, make_tokenizers
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_calls import spy
from recipe_runs import save_stock

from hf_lenctrl import LengthControlledGenerationPipeline, UnitTable
from hf_lenctrl.commands.arguments import DataArguments, ModelArguments
from hf_lenctrl.commands.data import fit_length_tokens, tokenize
from hf_lenctrl.commands.models import build_model
from hf_lenctrl.length_tokens import LengthTokens


def test_terciles_of_the_ratio_and_quantiles_of_the_length_make_classes():
    # ratios .5 .6 .8 1 1.1 2: the second and the fourth are the limits
    tokens = LengthTokens.fit("ratio", [10] * 6, [10, 5, 11, 6, 20, 8])
    assert tokens == LengthTokens("ratio", (0.6, 1.0)) and tokens.tokens == ["<short>", "<normal>", "<long>"]
    given = [tokens.token_for(length, 10) for length in (1, 6, 7, 10, 11, 99)]
    assert given == ["<short>", "<short>", "<normal>", "<normal>", "<long>", "<long>"]
    assert tokens.token_for(5, 0) == "<long>"  # a source of no unit counts as one
    lengths = list(range(1, 21))
    assert LengthTokens.fit("bins", lengths, lengths, bins=4).thresholds == (5, 10, 15)
    assert len(LengthTokens.fit("bins", lengths, lengths).tokens) == 10
    # many of one length: a bin for what is below and at it, and one above
    assert LengthTokens.fit("bins", [1] * 10, [7] * 9 + [12], bins=5) == LengthTokens("bins", (7,))


@given(st.lists(st.integers(1, 60), min_size=2, max_size=80), st.integers(2, 12), st.integers(1, 100))
@settings(deadline=None, max_examples=100)
def test_each_length_has_one_class_and_longer_ones_no_lower_one(lengths, bins, length):
    if len(set(lengths)) == 1:
        with pytest.raises(ValueError, match="too alike to make classes of bins; leave them out"):
            LengthTokens.fit("bins", lengths, lengths, bins=bins)
        return
    tokens = LengthTokens.fit("bins", lengths, lengths, bins=bins)
    classes = [tokens.tokens.index(tokens.token_for(n, 1)) for n in (length, length + 1)]
    assert 0 <= classes[0] <= classes[1] < len(tokens.tokens) <= bins
    assert {tokens.token_for(n, 1) for n in lengths} == set(tokens.tokens)


@pytest.mark.parametrize("kind", ["bart", "bert", "m2m_100", "marian", "mbart", "nllb", "pegasus", "t5", "characters"])
def test_tokens_are_entries_that_write_nothing(kind, character_tokenizer, tmp_path):
    original = character_tokenizer if kind == "characters" else make_tokenizers()[kind]
    tokenizer, tokens = copy.deepcopy(original), LengthTokens("ratio", (0.5, 1.0))
    tokens.add_to(tokenizer)
    tokens.add_to(tokenizer)  # once is enough
    ids = tokenizer.convert_tokens_to_ids(tokens.tokens)
    assert len(set(ids)) == 3 and tokenizer.unk_token_id not in ids
    assert not set(ids) & set(original.get_vocab().values()) and len(tokenizer) == len(original) + 3
    assert tokenizer(TARGETS[0])["input_ids"] == original(TARGETS[0])["input_ids"]
    tokenizer.save_pretrained(tmp_path / "saved")
    again = type(original).from_pretrained(tmp_path / "saved")
    assert again.convert_tokens_to_ids(tokens.tokens) == ids
    for unit in ("token", "character"):
        table = UnitTable.from_tokenizer(again, unit)
        if kind == "characters":  # its target side has a vocabulary of its own, without them
            assert torch.equal(table.weights, UnitTable.from_tokenizer(original, unit).weights)
            continue
        assert table.weights[:2, ids].abs().max() <= 1  # 0, or ~0 where none may end
        assert table.weights[0, ids].tolist() == [0, 0, 0]


def test_tokens_that_would_be_target_entries_are_refused(character_tokenizer):
    tokenizer, entries = copy.deepcopy(character_tokenizer), len(character_tokenizer)
    tokenizer.target_encoder |= {f"word{i}": i for i in range(len(tokenizer.target_encoder), entries + 5)}
    message = f"got {entries} and {entries + 5}; use target_vocabulary=shared"
    with pytest.raises(ValueError, match=message):
        LengthTokens("ratio", (0.5, 1.0)).add_to(tokenizer)


def test_sources_begin_with_the_token_of_their_target(shared_tokenizer):
    tokenizer = copy.deepcopy(shared_tokenizer)
    rows = DatasetDict({"train": Dataset.from_dict({"source": SOURCES, "target": TARGETS})})
    arguments = DataArguments(length_tokens="bins", length_bins=2, max_source_length=12)
    tokens = fit_length_tokens(rows["train"], tokenizer, "character", arguments)
    assert tokens == LengthTokens("bins", (24,))  # TARGETS have 17, 33, 24, 29, 23 and 25 characters
    plain, _ = tokenize(rows, tokenizer, DataArguments(max_source_length=11))
    told, reports = tokenize(rows, tokenizer, arguments, length_tokens=tokens, unit="character")
    short, long = tokenizer.convert_tokens_to_ids(["<len_0>", "<len_1>"])
    expected = [[i, *ids] for i, ids in zip([short, long] * 3, plain["train"]["input_ids"], strict=True)]
    assert told["train"]["input_ids"][:] == expected
    assert [len(mask) for mask in told["train"]["attention_mask"]] == [len(ids) for ids in told["train"]["input_ids"]]
    assert all(len(ids) <= 12 for ids in told["train"]["input_ids"]) and reports[0].source_cut > 0
    asked, _ = tokenize(rows, tokenizer, arguments, length_tokens=tokens, unit="character", length=40)
    assert {ids[0] for ids in asked["train"]["input_ids"]} == {long}


@pytest.mark.parametrize("encoding", ["none", "ldpe"])
def test_the_pipeline_puts_the_token_of_the_requested_length_there(shared_tokenizer, tmp_path, monkeypatch, encoding):
    tokenizer, tokens = copy.deepcopy(shared_tokenizer), LengthTokens("ratio", (0.2, 0.5))
    tokens.add_to(tokenizer)
    fields = {"length_encoding": encoding, "absolute_positions": True, "length_tokens": tokens.to_dict()}
    model = controlled_marian(tokenizer, **fields)
    model.save_pretrained(tmp_path)
    assert type(model).from_pretrained(tmp_path).config.length_tokens == {"kind": "ratio", "thresholds": [0.2, 0.5]}
    calls = spy(monkeypatch, model)
    pipe = LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    text = SOURCES[4]  # 75 characters
    rows = pipe([text] * 3, length=[15, 16, 38], batch_size=1, max_new_tokens=5)
    assert [row["requested_length"] for row in rows] == [15, 16, 38]
    plain = tokenizer(text)["input_ids"]
    # the longest is written first
    ids = tokenizer.convert_tokens_to_ids(["<long>", "<normal>", "<short>"])
    assert [call["input_ids"].tolist() for call in calls] == [[[i, *plain]] for i in ids]
    assert [call["attention_mask"].tolist() for call in calls] == [[[1] * (len(plain) + 1)]] * 3
    with pytest.raises(ValueError, match="no length was given"):
        pipe(text)
    if encoding == "none":
        calls.clear()
        out = pipe(text, length=8, length_unit="word", length_constraint="max")  # its source has 13 words
        assert len(out["generated_text"].split()) == out["length"] <= 8


def test_a_plain_checkpoint_gets_rows_for_the_tokens(shared_tokenizer, tmp_path):
    save_stock(tmp_path, shared_tokenizer)
    tokenizer, tokens = copy.deepcopy(shared_tokenizer), LengthTokens("ratio", (0.2, 0.5))
    tokens.add_to(tokenizer)
    arguments = ModelArguments(base_model=str(tmp_path), length_encoding="ldpe", length_unit="character")
    new = build_model(arguments, tokenizer, 64, tokens)
    assert new.get_input_embeddings().num_embeddings == len(tokenizer) == len(shared_tokenizer) + 3
    assert new.unit_table.weights.shape[1] == len(tokenizer)
    assert new.config.length_tokens == tokens.to_dict()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LengthTokens("classes", (1.0,)), "length_tokens must be one of ratio, bins, got 'classes'"),
        (lambda: LengthTokens("bins", (3, 3)), r"length tokens need ascending thresholds, .* got \[3, 3\]"),
        (lambda: LengthTokens("ratio", (1.0,)), r"two for the kind 'ratio', got \[1.0\]"),
        (lambda: LengthTokens.fit("bins", [1, 1], [1, 2], bins=1), "2 training pairs are too alike"),
        (lambda: LengthTokens.fit("ratio", [2, 2], [1, 1]), "2 training pairs .* classes of ratio"),
    ],
)
def test_bad_input_is_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()
