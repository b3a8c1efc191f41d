"""Tests of the tokenizers that are trained on the user's text."""

import pytest
from conftest import SOURCES, TARGETS
from transformers import AutoTokenizer, MarianTokenizer

from hf_lenctrl import LenCtrlMarianConfig, train_marian_tokenizer


SPECIAL = {"</s>": 0, "<unk>": 1, "<pad>": 2}
VOCABULARIES = pytest.mark.parametrize("target_vocabulary", ["character", "shared"])


def target_vocabulary_of(tokenizer) -> dict[str, int]:
    return tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder


def test_a_character_vocabulary_is_the_characters_of_the_targets(character_tokenizer):
    characters = set("".join(TARGETS).replace(" ", "▁"))
    assert character_tokenizer.separate_vocabs is True
    assert character_tokenizer.target_encoder.keys() == SPECIAL.keys() | characters


def test_targets_are_characters_and_sources_subwords(character_tokenizer):
    text = "small text editor"
    target = character_tokenizer(text_target=text)["input_ids"]
    vocabulary = character_tokenizer.target_encoder
    assert target == [vocabulary["▁" if c == " " else c] for c in text] + [0]
    source = character_tokenizer(text)["input_ids"]
    assert source[-1] == 0
    assert len(source) < len(text)
    assert max(map(len, character_tokenizer.encoder.keys() - SPECIAL.keys())) > 2


def test_a_shared_vocabulary_is_one_subword_model_for_both_sides(shared_tokenizer):
    assert shared_tokenizer.separate_vocabs is False
    text = "small text editor"
    ids = shared_tokenizer(text)["input_ids"]
    assert shared_tokenizer(text_target=text)["input_ids"] == ids
    assert ids[-1] == 0
    assert len(ids) < len(text)


def test_a_shared_vocabulary_learns_from_sources_and_targets(tmp_path):
    tokenizer = train_marian_tokenizer(["abc"], ["xyz"], tmp_path, target_vocabulary="shared")
    assert tokenizer.encoder.keys() >= set("abcxyz")


@VOCABULARIES
@pytest.mark.parametrize("with_config", [False, True])
def test_autotokenizer_loads_what_was_saved(target_vocabulary, with_config, tmp_path):
    trained = train_marian_tokenizer(
        SOURCES, TARGETS, tmp_path, vocab_size=80, target_vocabulary=target_vocabulary, model_max_length=40
    )
    if with_config:  # as in the folder of a trained model
        LenCtrlMarianConfig().save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(loaded, MarianTokenizer)
    assert loaded.model_max_length == trained.model_max_length == 40
    assert loaded.separate_vocabs is (target_vocabulary == "character")
    assert (loaded.eos_token_id, loaded.unk_token_id, loaded.pad_token_id) == (0, 1, 2)
    assert loaded.encoder == trained.encoder
    assert target_vocabulary_of(loaded) == target_vocabulary_of(trained)
    for source, target in zip(SOURCES, TARGETS, strict=True):
        assert loaded(source)["input_ids"] == trained(source)["input_ids"]
        ids = loaded(text_target=target)["input_ids"]
        assert ids == trained(text_target=target)["input_ids"]
        assert loaded.decode(ids, skip_special_tokens=True) == target


@VOCABULARIES
def test_decoding_does_not_clean_up_spaces(target_vocabulary, tmp_path):
    text = "it 's here , is n't it ? yes ."  # clean-up would take out five spaces
    train_marian_tokenizer([text], [text], tmp_path, target_vocabulary=target_vocabulary)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ids = loaded(text_target=text)["input_ids"]
    assert loaded.decode(ids, skip_special_tokens=True) == text
    assert loaded.batch_decode([ids], skip_special_tokens=True) == [text]


@VOCABULARIES
def test_vocab_size_is_respected(target_vocabulary, tmp_path):
    tokenizer = train_marian_tokenizer(SOURCES, TARGETS, tmp_path, vocab_size=60, target_vocabulary=target_vocabulary)
    assert len(tokenizer.encoder) == 60  # special tokens included


def test_a_text_too_short_for_vocab_size_gives_fewer_subwords(tmp_path):
    tokenizer = train_marian_tokenizer(["a b"], ["a b"], tmp_path, vocab_size=16_000, target_vocabulary="shared")
    assert set(tokenizer.encoder) >= {*SPECIAL, "▁", "a", "b"}
    assert len(tokenizer.encoder) < 20


@VOCABULARIES
def test_character_coverage_leaves_rare_characters_out(target_vocabulary, tmp_path):
    common, rare = "ありがとうございます", "鬱"
    texts = [common] * 100 + [rare]  # 1,000 characters and one
    options = {"vocab_size": 50, "target_vocabulary": target_vocabulary}
    partial = train_marian_tokenizer(texts, texts, tmp_path / "partial", character_coverage=0.995, **options)
    full = train_marian_tokenizer(texts, texts, tmp_path / "full", character_coverage=1.0, **options)
    for vocabulary in (partial.encoder, target_vocabulary_of(partial)):
        assert vocabulary.keys() >= set(common)
        assert rare not in vocabulary
    assert rare in full.encoder
    assert rare in target_vocabulary_of(full)
    assert partial.unk_token_id in partial(text_target=common + rare)["input_ids"]
    assert full.unk_token_id not in full(text_target=common + rare)["input_ids"]
    assert full.decode(full(text_target=common + rare)["input_ids"], skip_special_tokens=True) == common + rare


@VOCABULARIES
def test_text_may_hold_the_names_of_special_tokens(target_vocabulary, tmp_path):
    texts = [f"{word}</s>{word}<pad>{word}<unk>{word}" for word in ("one", "two", "six")] * 5
    tokenizer = train_marian_tokenizer(texts, texts, tmp_path, vocab_size=100, target_vocabulary=target_vocabulary)
    for vocabulary in (tokenizer.encoder, target_vocabulary_of(tokenizer)):
        assert {token: vocabulary[token] for token in SPECIAL} == SPECIAL
        assert sorted(vocabulary.values()) == list(range(len(vocabulary)))


@VOCABULARIES
def test_texts_may_be_generators_with_blank_entries(target_vocabulary, tmp_path):
    tokenizer = train_marian_tokenizer(
        (text for text in ["", *SOURCES, "  "]),
        (text for text in ["\n", *TARGETS]),
        tmp_path,
        vocab_size=80,
        target_vocabulary=target_vocabulary,
    )
    ids = tokenizer(text_target=TARGETS[0])["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == TARGETS[0]


@pytest.mark.parametrize("target_vocabulary", ["char", "subword", None])
def test_an_unknown_target_vocabulary_is_refused(target_vocabulary, tmp_path):
    with pytest.raises(ValueError, match=f"must be 'character' or 'shared', got {target_vocabulary!r}"):
        train_marian_tokenizer(SOURCES, TARGETS, tmp_path, target_vocabulary=target_vocabulary)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "sources, targets, target_vocabulary",
    [
        ([], [], "shared"),
        ([" ", ""], ["\n"], "shared"),
        ([], TARGETS, "character"),
        (SOURCES, ["", " "], "character"),
    ],
)
def test_no_text_is_an_error(sources, targets, target_vocabulary, tmp_path):
    with pytest.raises(ValueError, match="no text to train a tokenizer on: every source or target is empty"):
        train_marian_tokenizer(sources, targets, tmp_path, vocab_size=80, target_vocabulary=target_vocabulary)
    assert not any(tmp_path.iterdir())
