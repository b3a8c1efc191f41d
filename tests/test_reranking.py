"""Re-ranking of candidates by the words that they share with the source."""

import pytest

from hf_lenctrl import (
    rerank,
)


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


def test_words_of_other_scripts_count():
    assert rerank("новости из Осло", ["погода", "Новости"]) == [1, 0]


@pytest.mark.parametrize(
    ("candidates", "scores", "message"),
    [
        ([], None, "needs candidates and a score for each, got 0 and no scores"),
        (["a", "b"], [0.5], "got 2 and 1 scores"),
        ([], [], "got 0 and 0 scores"),
    ],
)
def test_missing_candidates_or_scores_are_told(candidates, scores, message):
    with pytest.raises(ValueError, match=message):
        rerank("source", candidates, scores)
