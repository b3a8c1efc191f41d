"""The re-ranking of Takase & Okazaki 2019 as published, beside the one of the package."""

import pytest
from reranking import rerank_as_published

from hf_lenctrl import rerank


@pytest.mark.parametrize(
    ("source", "candidates", "published", "ours"),
    [
        # repeated words count
        (
            "police arrested 3 men in oslo",
            ["oslo police arrest", "police police police police", "3 men"],
            [1, 0, 2],  # 3, 4 and 1 words: "3" has no letter
            [0, 2, 1],  # 3, 2 and 1 stems
        ),
        ("police arrested 3 men in oslo", ["3", "a", "men"], [2, 0, 1], [0, 2, 1]),
        ("police arrested men .", ["arresting them", "a man .", "the police"], [0, 2, 1], [0, 2, 1]),  # a tie
        ("prices fell , traders said .", ["prices, fell", "trader ."], [0, 1], [0, 1]),  # "prices," is another word
        ("US trade with China", ["US US", "china"], [1, 0], [0, 1]),  # "US" has no letter from a to z
        ("##:## gmt on ## may", ["## ## ##", "may"], [1, 0], [1, 0]),
        ("police", ["", "thieves"], [0, 1], [0, 1]),
    ],
)
def test_the_published_score_counts_repeated_words_and_ours_each_stem_once(source, candidates, published, ours):
    assert rerank_as_published(source, candidates) == published
    assert rerank(source, candidates) == ours
