"""Batches of the pipeline: rows of like lengths, so many tokens, and one reading of a text for several lengths."""

import pytest
import torch
from conftest import SOURCES, controlled_marian, given_to
from pipeline_calls import spy

from hf_lenctrl import LengthControlledGenerationPipeline


def test_like_lengths_share_a_batch_and_the_longest_come_first(pipe, model, monkeypatch):
    calls = spy(monkeypatch, model)
    pipe(SOURCES, length=[5, 40, 12, 39, 6, 13], length_constraint="max", batch_size=2)
    assert [call["length"] for call in calls] == [[40, 39], [13, 12], [6, 5]]
    calls.clear()
    pipe(["a small editor"] * 33, length=1, length_constraint="max")
    assert [len(call["length"]) for call in calls] == [32, 1]


def test_texts_of_one_length_are_batched_by_their_own(plain_pipe, plain, tokenizer, monkeypatch):
    texts = ["small " * 10, "a", "small " * 20, "b", "small " * 15]
    calls = spy(monkeypatch, plain)
    plain_pipe(texts, batch_size=2)
    size = [len(tokenizer(text)["input_ids"]) for text in texts]
    assert size[2] > size[4] > size[0] > size[1]
    seen = [call["attention_mask"].sum(dim=-1).tolist() for call in calls]
    assert seen == [[size[2], size[4]], [size[0], size[1]], [size[3]]]


def count_encoded(model) -> list[int]:
    """Grows by the texts of each batch that the encoder reads."""
    seen: list[int] = []
    model.get_encoder().register_forward_hook(lambda module, args, output: seen.append(len(output[0])))
    return seen


def test_several_lengths_of_several_texts_come_in_their_order(tokenizer):
    model = controlled_marian(tokenizer)
    pipe = LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    lengths = [[30, 8], [12], [5, 33, 7], [9, 9], [21], [16, 4]]
    options = {"length_constraint": "exact", "batch_size": 4}
    rows = zip(SOURCES, lengths, strict=True)
    alone = [[pipe(text, length=n, **options) for n in several] for text, several in rows]
    seen = count_encoded(model)
    assert pipe(SOURCES, length=lengths, **options) == alone
    assert sum(seen) <= len(SOURCES) + 2  # a text whose rows lie in two batches is read twice
    best = pipe(SOURCES[:2], length=[[30, 8], [12]], num_return_sequences=2, length_constraint="max")
    assert [[len(n_best) for n_best in several] for several in best] == [[2, 2], [2]]


@pytest.mark.parametrize("fields", [{"length_encoding": "learned", "encoder_length_embedding": True}, {}])
def test_generate_writes_one_text_at_several_lengths(tokenizer, fields):
    model = controlled_marian(tokenizer, **fields)
    batch = tokenizer(SOURCES[0], return_tensors="pt")
    alone = [model.generate(**batch, length=n, length_constraint="exact", num_beams=2)[0] for n in (9, 24)]
    seen = count_encoded(model)
    together = model.generate(**batch, length=[9, 24], length_constraint="exact", num_beams=2)
    assert seen == [2 if fields else 1]
    for one, row in zip(alone, together, strict=True):
        assert one.tolist() == row[: len(one)].tolist() and set(row[len(one) :].tolist()) <= {tokenizer.pad_token_id}
    options = {"length": torch.tensor([9, 24]), "length_constraint": "exact", "num_beams": 2}
    assert torch.equal(together, model.generate(batch["input_ids"], **options))
    if not fields:  # a text that was read before
        read = {"encoder_outputs": model.get_encoder()(**batch), "attention_mask": batch["attention_mask"]}
        assert torch.equal(together, model.generate(**read, **options))


def test_options_about_the_entries_of_the_source_hold_for_a_text_that_is_read_once(tokenizer):
    model = controlled_marian(tokenizer, length_optional=True, absolute_positions=True)
    pipe = LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device="cpu", choose=False)
    batch, exact = tokenizer(SOURCES[1], return_tensors="pt"), {"length_constraint": "exact"}
    source = {*batch["input_ids"][0].tolist()} - {tokenizer.eos_token_id}

    def shared(**options) -> list[int]:
        rows = model.generate(**batch, length=[12, 20], **exact, **options).tolist()
        texts = [row["generated_text"] for row in pipe(SOURCES[1], length=[12, 20], **exact, **options)]
        assert texts == tokenizer.batch_decode(rows, skip_special_tokens=True)
        return [len(source.intersection(row)) for row in rows]

    for others in ({}, {"guidance_scale": 2.0}):
        assert min(shared(**others)) > 0
        assert shared(encoder_no_repeat_ngram_size=1, **others) == [0, 0]
        assert shared(encoder_repetition_penalty=1e-9, **others) == [0, 0]


def test_a_plain_model_reads_a_text_once_too(plain, tokenizer):
    pipe = LengthControlledGenerationPipeline(model=plain, tokenizer=tokenizer, device="cpu")
    options = {"length_unit": "character", "length_constraint": "max"}
    alone = [pipe(SOURCES[1], length=n, **options)["generated_text"] for n in (10, 25)]
    seen = count_encoded(plain)
    assert [out["generated_text"] for out in pipe(SOURCES[1], length=[10, 25], **options)] == alone
    assert seen == [1]


def test_batches_of_tokens_hold_more_of_what_is_short(pipe, model):
    lengths = [5, 60, 6, 61, 7, 8]
    texts = [" ".join(SOURCES[:3]), *SOURCES[1:]]  # a long source beside short ones: each row alone is short
    alone = pipe(texts, length=lengths, length_constraint="max", batch_size=1)
    read = given_to(model.get_encoder(), "input_ids")
    assert pipe(texts, length=lengths, length_constraint="max", batch_tokens=210) == alone
    seen = [tuple(ids.shape) for ids in read]
    assert sum(rows for rows, _ in seen) == 6 and seen[0][0] < max(rows for rows, _ in seen)  # the longest come first
    longest = iter(sorted(lengths, reverse=True))  # the order of the batches' rows
    for rows, width in seen:
        written = max([next(longest) for _ in range(rows)])
        assert rows == 1 or rows * (width + written) <= 210
