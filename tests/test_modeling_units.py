"""Models that count characters, words and bytes, and vocabularies that grow."""

import pytest
import torch
from conftest import MARIAN, TARGETS, build_model
from test_modeling_lenctrl import EOS, SOURCE, paper_logits


def test_character_progress_is_the_length_of_the_decoded_prefix(family, shared_tokenizer):
    fields = {**MARIAN, "vocab_size": len(shared_tokenizer)}
    model = build_model(family, **fields, length_unit="character", init_std=0.2)
    model.set_unit_table(shared_tokenizer)
    rows = [[2, *shared_tokenizer(text_target=text)["input_ids"][:4]] for text in TARGETS[:2]]
    progress = [[len(shared_tokenizer.decode(row[:t], skip_special_tokens=True)) for t in range(1, 6)] for row in rows]
    assert progress[0][0] == 0
    assert progress[0][-1] > 4  # subwords write more than a character each, or the unit would not show
    decoder_ids = torch.tensor(rows)
    expected = paper_logits(family, model, "ldpe", decoder_ids, progress, [17, 33], **fields)
    result = model(SOURCE, decoder_input_ids=decoder_ids, length=[17, 33]).logits
    torch.testing.assert_close(result, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("missing", [-1, 512])
def test_tokenizer_of_another_vocabulary_is_refused(shared_tokenizer, missing):
    entries = len(shared_tokenizer)
    model = build_model("bart", **MARIAN, vocab_size=entries + missing, length_unit="character")
    with pytest.raises(ValueError, match=rf"has {entries} entries, the decoder's embedding {entries + missing}"):
        model.set_unit_table(shared_tokenizer)
    with pytest.raises(ValueError, match="no table of units"):  # and nothing was filled on the way
        model(SOURCE, decoder_input_ids=torch.tensor([[2], [2]]), length=5)


@pytest.mark.parametrize("unit", ["token", "character", "word", "byte"])
@pytest.mark.parametrize("padding", [1, 127])
def test_entries_that_pad_the_embedding_are_never_counted(shared_tokenizer, unit, padding):
    entries = len(shared_tokenizer)
    model = build_model("marian", vocab_size=entries + padding, length_unit=unit)
    model.set_unit_table(shared_tokenizer)
    labels = shared_tokenizer(text_target="small text editor", return_tensors="pt")["input_ids"]
    expected = {"token": labels.shape[1] - 1, "character": 17, "word": 3, "byte": 17}  # EOS counts nothing
    assert model.count_labels(labels).tolist() == [expected[unit]]
    assert model.unit_table.weights.shape[1] == entries + padding
    assert (model.unit_table.weights[:, entries:] < 0).all()  # no text holds them, and no output may
    padded = torch.cat([labels, labels.new_full((1, 2), entries)], dim=1)
    assert model.count_labels(padded).tolist() == [expected[unit]]


def test_new_tokens_are_counted_after_the_embeddings_were_resized(family, tmp_path):
    model = build_model(family)
    model.resize_token_embeddings(70)
    labels = torch.tensor([[65, 69, 31, EOS[family]]])
    assert model.count_labels(labels).tolist() == [3]
    expected = model(SOURCE[:1], labels=labels).logits
    assert expected.shape == (1, 4, 70)
    assert model.model.decoder.unit_table.weights.shape == (1, 70)
    model.save_pretrained(tmp_path)
    assert torch.equal(type(model).from_pretrained(tmp_path)(SOURCE[:1], labels=labels).logits, expected)


def test_new_target_tokens_of_marian_with_two_vocabularies_are_counted():
    model = build_model("marian", share_encoder_decoder_embeddings=False, vocab_size=60, decoder_vocab_size=9)
    model.resize_token_embeddings(70)  # the source side, which counts nothing
    assert model.model.decoder.unit_table.weights.shape == (1, 9)
    model.resize_decoder_token_embeddings(12)
    labels = torch.tensor([[8, 11, 0]])
    assert model.count_labels(labels).tolist() == [2]
    assert model(torch.tensor([[69]]), labels=labels).logits.shape == (1, 3, 12)
