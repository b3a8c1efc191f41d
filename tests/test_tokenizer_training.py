"""Tests of the tokenizers that are trained on the user's text."""

import pytest
from conftest import SOURCES, TARGETS
from transformers import AutoTokenizer, MarianTokenizer

from hf_lenctrl import LenCtrlMarianConfig, train_marian_tokenizer


SPECIAL = {"</s>": 0, "<unk>": 1, "<pad>": 2}
VOCABULARIES = pytest.mark.parametrize("target_vocabulary", ["character", "joined", "shared"])


def target_vocabulary_of(tokenizer) -> dict[str, int]:
    return tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder


def test_targets_are_characters_and_sources_subwords_or_both_are_subwords(character_tokenizer, shared_tokenizer):
    text = "small text editor"
    assert character_tokenizer.target_encoder.keys() == SPECIAL.keys() | set("".join(TARGETS).replace(" ", "▁"))
    target = character_tokenizer(text_target=text)["input_ids"]
    vocabulary = character_tokenizer.target_encoder
    assert target == [vocabulary["▁" if c == " " else c] for c in text] + [0]
    source = character_tokenizer(text)["input_ids"]
    assert source[-1] == 0
    assert len(source) < len(text)
    assert max(map(len, character_tokenizer.encoder.keys() - SPECIAL.keys())) > 2
    shared = shared_tokenizer(text)["input_ids"]
    assert shared_tokenizer(text_target=text)["input_ids"] == shared
    assert shared[-1] == 0 and len(shared) < len(text)


def test_a_joined_vocabulary_has_the_characters_among_the_subwords(tmp_path):
    tokenizer = train_marian_tokenizer(SOURCES, TARGETS, tmp_path, vocab_size=80, target_vocabulary="joined")
    target = tokenizer(text_target="small text")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(target) == [*"small▁text", "</s>"]
    source = tokenizer("small text file")["input_ids"]
    assert len(source) < len("small text file") and set(source) & set(target) - {0}  # one id on both sides
    pieces = set("".join(TARGETS).replace(" ", "▁")) | SPECIAL.keys()
    assert pieces <= tokenizer.get_vocab().keys() and max(tokenizer.get_vocab().values()) == len(tokenizer) - 1


@VOCABULARIES
def test_autotokenizer_loads_what_was_saved(target_vocabulary, tmp_path):
    spaced = "it 's here , is n't it ? yes ."  # clean-up would take out five spaces
    sources, targets = (text for text in ["", *SOURCES, "  "]), (text for text in ["\n", *TARGETS, spaced])
    options = {"vocab_size": 80, "target_vocabulary": target_vocabulary, "model_max_length": 40}
    trained = train_marian_tokenizer(sources, targets, tmp_path, **options)
    more = 2 if target_vocabulary == "joined" else 0  # "'" and "?", which no source has
    assert len(trained.encoder) == 80 + more  # special tokens included
    for config in (None, LenCtrlMarianConfig()):  # and as in the folder of a trained model
        if config is not None:
            config.save_pretrained(tmp_path)
        loaded = AutoTokenizer.from_pretrained(tmp_path)
        assert isinstance(loaded, MarianTokenizer) and loaded.model_max_length == 40
        assert loaded.separate_vocabs is (target_vocabulary == "character")
        assert (loaded.eos_token_id, loaded.unk_token_id, loaded.pad_token_id) == (0, 1, 2)
        for target in [*TARGETS, spaced]:
            ids = loaded(text_target=target)["input_ids"]
            assert ids == trained(text_target=target)["input_ids"]
            assert loaded.decode(ids, skip_special_tokens=True) == target
        assert loaded(SOURCES)["input_ids"] == trained(SOURCES)["input_ids"]


@VOCABULARIES
def test_character_coverage_leaves_rare_characters_out(target_vocabulary, tmp_path):
    common, rare = "ありがとうございます", "鬱"
    texts = [common] * 100 + [rare]  # 1,000 characters and one
    options = {"vocab_size": 50, "target_vocabulary": target_vocabulary}
    partial = train_marian_tokenizer(texts, texts, tmp_path / "partial", character_coverage=0.995, **options)
    full = train_marian_tokenizer(texts, texts, tmp_path / "full", character_coverage=1.0, **options)
    for vocabulary in (partial.encoder, target_vocabulary_of(partial)):
        assert vocabulary.keys() >= set(common) and rare not in vocabulary
    assert partial.unk_token_id in partial(text_target=common + rare)["input_ids"]
    assert full.decode(full(text_target=common + rare)["input_ids"], skip_special_tokens=True) == common + rare


@VOCABULARIES
def test_text_may_hold_the_names_of_special_tokens(target_vocabulary, tmp_path):
    texts = [f"{word}</s>{word}<pad>{word}<unk>{word}" for word in ("one", "two", "six")] * 5
    tokenizer = train_marian_tokenizer(texts, texts, tmp_path, vocab_size=100, target_vocabulary=target_vocabulary)
    for vocabulary in (tokenizer.encoder, target_vocabulary_of(tokenizer)):
        assert {token: vocabulary[token] for token in SPECIAL} == SPECIAL
        assert sorted(vocabulary.values()) == list(range(len(vocabulary)))


@pytest.mark.parametrize(
    "sources, targets, target_vocabulary",
    [([" ", ""], ["\n"], "shared"), ([], TARGETS, "character"), (SOURCES, ["", " "], "character")],
)
def test_no_text_and_an_unknown_vocabulary_are_errors(sources, targets, target_vocabulary, tmp_path):
    with pytest.raises(ValueError, match="no text to train a tokenizer on: every source or target is empty"):
        train_marian_tokenizer(sources, targets, tmp_path, vocab_size=80, target_vocabulary=target_vocabulary)
    with pytest.raises(ValueError, match="must be one of character, joined, shared, got 'char'"):
        train_marian_tokenizer(SOURCES, TARGETS, tmp_path, target_vocabulary="char")
    assert not any(tmp_path.iterdir())


@VOCABULARIES
def test_missing_texts_are_left_out(tmp_path, target_vocabulary):
    options = {"vocab_size": 80, "target_vocabulary": target_vocabulary}
    tokenizer = train_marian_tokenizer([*SOURCES, None, " "], [None, *TARGETS], tmp_path / "a", **options)
    expected = train_marian_tokenizer(SOURCES, TARGETS, tmp_path / "b", **options)
    assert tokenizer.get_vocab() == expected.get_vocab()
