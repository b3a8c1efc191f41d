"""A text that must reach a length is not filled up with marks."""

import math

import pytest
import torch
from test_causal import PROMPTS, build_plain, make_tokenizer
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import hf_lenctrl
from hf_lenctrl.inference.marks import MarkRunsLogitsProcessor


def ids_of(texts: str) -> list[int]:
    return make_tokenizer().convert_tokens_to_ids(list(texts))


@pytest.mark.parametrize(
    ("text", "avoided"),
    [("a", ""), (".", "."), (",", ".,?!"), ("?", ".,?"), ("!", ".,!"), (".a", ""), ("a.,", ".,?!")],
)
def test_a_mark_follows_another_only_in_a_known_pair(text, avoided):
    process = MarkRunsLogitsProcessor(make_tokenizer(), 310)  # an embedding that is larger than the vocabulary
    scores = process(torch.tensor([ids_of("a" * (4 - len(text)) + text)]), torch.zeros(1, 310))
    assert [mark for mark, i in zip(".,?!a", ids_of(".,?!a"), strict=True) if scores[0, i] < 0] == list(avoided)
    assert bool(scores.isfinite().all())


def test_white_space_does_not_hide_a_mark():
    """SentencePiece writes it as ▁, and an entry may have several marks."""
    vocabulary = {token: i for i, token in enumerate(["</s>", "▁.", "...", ".", "▁a", "##."])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="</s>")), eos_token="</s>"
    )
    process = MarkRunsLogitsProcessor(tokenizer, 6)
    rows = process(torch.tensor([[1], [2], [4]]), torch.zeros(3, 6)) < 0
    assert rows.int().tolist() == [[0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 0, 1], [0, 0, 0, 0, 0, 0]]


def favour(others: float):
    """A processor that makes the point the likeliest entry, and changes the scores of all others."""
    (point,) = ids_of(".")

    def process(input_ids, scores):
        changed = scores + others
        changed[:, point] = 1000.0
        return changed

    return process


def test_the_pipeline_fills_a_length_with_marks_only_where_nothing_else_fits():
    write = hf_lenctrl.LengthControlledGenerationPipeline(model=build_plain("llama"), tokenizer=make_tokenizer())
    options = {"length": 12, "length_constraint": "exact", "length_unit": "character", "do_sample": False}
    texts = [out["generated_text"] for out in write(PROMPTS, logits_processor=[favour(0.0)], **options)]
    assert [len(text) for text in texts] == [12, 12] and all("." in text and ".." not in text for text in texts)
    out = write(PROMPTS[0], logits_processor=[favour(-math.inf)], **options)
    assert out["generated_text"] == "." * 12
