"""Candidates in the order of the words that they share with the source, or of a plain model."""

import math

import pytest
import torch
from conftest import SHAPE, SOURCES, build_model, controlled_marian, plain_marian
from recipe_runs import read_rows
from transformers import BartConfig, BartForConditionalGeneration

from hf_lenctrl import LengthControlledGenerationPipeline, rerank
from hf_lenctrl.commands import generate
from hf_lenctrl.inference.ranking import log_probabilities


@pytest.mark.parametrize(
    ("candidates", "scores", "order"),
    [
        # police, arrest, oslo / three, men / none
        (["three men", "police arrests: Oslo!", "a robbery"], None, [1, 0, 2]),
        (["police police police", "police men"], None, [1, 0]),  # a stem counts once
        (["arrest arrests arresting arrested", "men in jail"], None, [1, 0]),  # men, in / one stem
        (["three dogs", "oslo dogs", "four dogs"], None, [0, 1, 2]),  # a tie keeps the order
        (["three dogs", "oslo dogs", "four dogs"], [-2.0, -1.0, -0.5], [1, 0, 2]),  # or goes to the better score
        (["four dogs", "oslo"], [-0.1, -9.0], [1, 0]),  # words before scores
        (["", "POLICE"], None, [1, 0]),
        (["policies"], None, [0]),
    ],
)
def test_candidates_are_ordered_by_the_stems_they_share_with_the_source(candidates, scores, order):
    assert rerank("Police arrested three men in Oslo", candidates, scores) == order
    assert rerank("новости из Осло", ["погода", "Новости"]) == [1, 0]


@pytest.fixture(scope="module")
def plain(shared_tokenizer):
    return plain_marian(shared_tokenizer)


@pytest.fixture(scope="module")
def pipe(shared_tokenizer):
    model = controlled_marian(shared_tokenizer, seed=0)
    return LengthControlledGenerationPipeline(model=model, tokenizer=shared_tokenizer, device="cpu")


def loss_of(model, tokenizer, source: str, text: str) -> float:
    """Minus the stock model's own loss of a single pair, times its tokens."""
    batch = tokenizer(source, text_target=text, return_tensors="pt")
    return -float(model(**batch).loss.detach()) * batch["labels"].shape[1]


def test_a_score_is_the_stock_loss_of_the_pair_alone(plain, shared_tokenizer):
    texts = ["a tool", "a longer text for the same source", "b"]
    scores = log_probabilities(plain, shared_tokenizer, SOURCES[:1] * 3, texts)
    for text, score in zip(texts, scores, strict=True):
        assert math.isclose(score, loss_of(plain, shared_tokenizer, SOURCES[0], text), rel_tol=1e-4)


def test_the_plain_models_favourite_comes_first(pipe, plain, shared_tokenizer, tmp_path):
    options = {"length": 20, "length_constraint": "exact", "num_return_sequences": 6}
    free = [out["generated_text"] for out in pipe(SOURCES[0], **options)]
    ranked = pipe(SOURCES[0], rerank=6, rerank_model=(plain, shared_tokenizer), **options)
    assert [out["length"] for out in ranked] == [20] * 6
    texts = [out["generated_text"] for out in ranked]
    assert sorted(texts) == sorted(free) and texts != free
    scores = [loss_of(plain, shared_tokenizer, SOURCES[0], text) for text in texts]
    assert scores == sorted(scores, reverse=True)
    # a folder, for a batch, and one output for each
    plain.save_pretrained(tmp_path)
    shared_tokenizer.save_pretrained(tmp_path)
    options = {**options, "num_return_sequences": 1, "rerank": 6, "rerank_model": str(tmp_path)}
    assert [out["generated_text"] for out in pipe(SOURCES[:2], **options)][0] == texts[0]


def test_a_source_that_the_model_cannot_hold_is_cut_for_the_choice_too(shared_tokenizer):
    model = build_model("bart", vocab_size=len(shared_tokenizer), length_unit="character", max_position_embeddings=16)
    model.set_unit_table(shared_tokenizer)
    pipe = LengthControlledGenerationPipeline(model=model, tokenizer=shared_tokenizer, device="cpu")
    torch.manual_seed(3)
    shape = {**SHAPE, "vocab_size": len(shared_tokenizer), "max_position_embeddings": 16}
    ranker = BartForConditionalGeneration(BartConfig(**shape)).eval(), shared_tokenizer
    out = pipe(" ".join(SOURCES), length=5, length_constraint="exact", rerank=4, rerank_model=ranker)
    assert out["length"] == 5


def test_without_rerank_there_are_20_candidates(pipe, plain, shared_tokenizer, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "hf_lenctrl.inference.pipeline.log_probabilities",
        lambda model, tokenizer, sources, texts: asked.append(len(texts)) or [0] * len(texts),
    )
    pipe(SOURCES[0], length=10, rerank_model=(plain, shared_tokenizer))
    assert asked == [20]


def test_the_command_takes_it(pipe, plain, shared_tokenizer, tmp_path):
    for model, name in ((pipe.model, "controlled"), (plain, "plain")):
        model.save_pretrained(tmp_path / name)
        shared_tokenizer.save_pretrained(tmp_path / name)
    (tmp_path / "texts.txt").write_text("\n".join(SOURCES[:2]))
    how = ["--length", "20", "--length_constraint", "exact", "--rerank", "4", "--num_beams", "4"]
    for ranked in ([], ["--rerank_model", str(tmp_path / "plain")]):
        files = ["--input_file", str(tmp_path / "texts.txt"), "--output_file", str(tmp_path / f"{len(ranked)}.jsonl")]
        generate.main(["--model", str(tmp_path / "controlled"), *files, *how, *ranked])
    words, model = ([row["output"] for row in read_rows(tmp_path / name)] for name in ("0.jsonl", "2.jsonl"))
    assert [len(text) for text in words + model] == [20] * 4 and words != model
    for first, second, source in zip(words, model, SOURCES, strict=False):
        assert loss_of(plain, shared_tokenizer, source, second) >= loss_of(plain, shared_tokenizer, source, first)


def test_what_is_no_choice_is_refused(pipe, plain, shared_tokenizer):
    with pytest.raises(ValueError, match="rerank_model chooses among several candidates"):
        pipe(SOURCES[0], length=10, rerank_model=(plain, shared_tokenizer), rerank=1)
    with pytest.raises(TypeError, match="sources must be a list of texts, got 'a'"):
        log_probabilities(plain, shared_tokenizer, "a", ["b"])
    assert log_probabilities(plain, shared_tokenizer, [], []) == []
