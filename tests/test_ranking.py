"""Candidates in the order of the words that they share with the source, and the scores of a plain model."""

import math

import pytest
from conftest import SOURCES
from family_models import stock_model, tokenizer_of

from hf_lenctrl import rerank
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


def loss_of(model, tokenizer, source: str, text: str, **options) -> float:
    """Minus the stock model's own loss of a single pair, times its tokens."""
    batch = tokenizer(source, text_target=text, return_tensors="pt", **options)
    return -float(model(**batch).loss.detach()) * batch["labels"].shape[1]


def test_a_score_is_the_stock_loss_of_the_pair_alone_and_takes_lists(plain, tokenizer):
    texts = ["a tool", "a longer text for the same source", "b"]
    scores = log_probabilities(plain, tokenizer, SOURCES[:1] * 3, texts)
    for text, score in zip(texts, scores, strict=True):
        assert math.isclose(score, loss_of(plain, tokenizer, SOURCES[0], text), rel_tol=1e-4)
    assert log_probabilities(plain, tokenizer, [], []) == []
    with pytest.raises(TypeError, match="sources must be a list of texts, got 'a'"):
        log_probabilities(plain, tokenizer, "a", ["b"])


def test_a_source_that_the_model_cannot_hold_is_cut():
    model, tokenizer, source = stock_model("bart", max_position_embeddings=16), tokenizer_of("bart"), " ".join(SOURCES)
    expected = loss_of(model, tokenizer, source, "a tool", truncation=True, max_length=16)
    assert log_probabilities(model, tokenizer, [source], ["a tool"]) == pytest.approx([expected], rel=1e-4)
