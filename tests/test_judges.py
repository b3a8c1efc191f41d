"""LIFEBench and IFEval's instructions of length, scored by the published rules."""

import doctest
import json
import sys

import pytest
from nltk.tokenize import PunktSentenceTokenizer
from recipe_runs import ROOT
from test_causal import build_plain, make_tokenizer

import hf_lenctrl


sys.path.append(str(ROOT / "recipes/judges/tasks"))
import scores  # noqa: E402


SAMPLES = ROOT / "docs/samples"


def test_documents_of_lifebench_are_each_row_at_each_length():
    (documents,) = scores.lifebench("at least", str(SAMPLES / "lifebench.jsonl"), [16, 32], version=1.0).values()
    assert [(row["length"], row["control"]) for row in documents] == [(16, "at least"), (32, "at least")] * 3
    assert documents[1]["prompt"].endswith("The answer must be at least 32 words long.")
    assert documents[4]["prompt"] == "请回答：怎样保存面包？字数必须至少有 16字。"
    with pytest.raises(ValueError, match=r"a file of rows, got none; pass --metadata"):
        scores.lifebench("at least")


# 100 e^(5 d) for a text that is too short, 100 e^(-2 d) for one too long: arXiv 2505.16234
@pytest.mark.parametrize(
    ("words", "control", "score"),
    [
        (90, "equal to", 60.653),
        (110, "equal to", 81.873),
        (200, "equal to", 13.534),
        (100, "equal to", 100.0),
        (90, "at most", 100.0),
        (110, "at most", 81.873),
        (90, "at least", 60.653),
        (110, "at least", 100.0),
    ],
)
def test_the_length_score(words, control, score):
    found = scores.judge_length({"length": 100, "control": control}, ["word, " * words])
    assert found["length_score"] == (100, pytest.approx(score, abs=1e-3))
    assert found["length_deviation"] == (100, abs(words - 100))


def test_refusals_are_left_out_and_counted():
    answers = ["Sorry.", "one two three", "one two", ""]
    found = [scores.judge_length({"length": 3, "control": "equal to"}, [answer]) for answer in answers]
    items = {name: [each[name] for each in found] for name in found[0]}
    assert scores.share_of_refusals(items["refused"]) == 50.0
    assert scores.mean_of_lengths(items["length_deviation"]) == pytest.approx((0 + 100 / 3) / 2)


PARAGRAPHS = "It rains.\n\n'However, it stops.\n\nThe sun comes."


@pytest.mark.parametrize(
    ("text", "name", "given", "expected"),
    [
        ("a well-known word", "number_words", {"relation": "less than", "num_words": 5}, True),  # a, well, known, word
        ("a well-known word", "number_words", {"relation": "less than", "num_words": 4}, False),
        ("a well-known word", "number_words", {"relation": "at least", "num_words": 4}, True),
        (" \n", "number_words", {"relation": "less than", "num_words": 4}, False),
        ("One. Two! Three?", "number_sentences", {"relation": "at least", "num_sentences": 3}, True),
        ("One. Two! Three?", "number_sentences", {"relation": "less than", "num_sentences": 3}, False),
        ("***\nOne.\n***\nTwo.", "number_paragraphs", {"num_paragraphs": 2}, True),
        ("One. *** *** Two.", "number_paragraphs", {"num_paragraphs": 2}, False),
        (PARAGRAPHS, "nth_paragraph_first_word", [3, 2, "however"], True),
        (PARAGRAPHS, "nth_paragraph_first_word", [2, 2, "however"], False),
        (PARAGRAPHS, "nth_paragraph_first_word", [3, 1, "however"], False),
        (PARAGRAPHS, "nth_paragraph_first_word", [3, 4, "however"], False),
    ],
)
def test_an_instruction_of_length(monkeypatch, text, name, given, expected):
    # the English model of Punkt is a download; for these sentences it is not needed
    monkeypatch.setattr("nltk.tokenize.PunktTokenizer", lambda language: PunktSentenceTokenizer())
    if isinstance(given, list):
        given = dict(zip(("num_paragraphs", "nth_paragraph", "first_word"), given, strict=True))
    assert scores.follows(text, name, given) is expected


def test_loose_answers_leave_out_a_frame_and_asterisks():
    document = {"instructions": json.dumps([["number_words", {"relation": "less than", "num_words": 3}]])}
    framed = scores.judge_instructions(document, ["Here it is:\n**Two words**\nDone."])
    assert framed["prompt_level_strict_acc"] is False and framed["inst_level_strict_acc"] == [False]
    assert framed["prompt_level_loose_acc"] is True and framed["inst_level_loose_acc"] == [True]
    assert scores.mean_of_all([[True, False], [True, True]]) == 0.75


def test_the_examples_of_the_scores_are_right():
    assert doctest.testmod(scores).failed == 0


def test_only_instructions_of_length_are_judged():
    (documents,) = scores.ifeval(str(SAMPLES / "ifeval.jsonl")).values()
    assert [[name for name, _ in json.loads(row["instructions"])] for row in documents] == [
        *[["number_words"]] * 2,
        *[["number_paragraphs"], ["nth_paragraph_first_word"]],
    ]


@pytest.mark.slow
def test_the_harness_scores_a_model_that_keeps_its_lengths(monkeypatch):
    pytest.importorskip("lm_eval", reason="lm_eval is not installed: pip install lm_eval")
    monkeypatch.syspath_prepend(str(ROOT / "recipes/judges"))
    import judge

    assert doctest.testmod(judge).failed == 0
    write = hf_lenctrl.LengthControlledGenerationPipeline(model=build_plain("llama"), tokenizer=make_tokenizer())
    asked = []

    class Recorded(judge.LengthModel):
        """Its texts are letters at random, so their words are replaced; their number is that of the model."""

        def _answer(self, request):
            asked.append(request.args[0])
            return "word " * hf_lenctrl.count_units(super()._answer(request), "zh_word")

    found = judge.judge(Recorded(write), "lifebench", file=str(SAMPLES / "lifebench.jsonl"), lengths=[3])
    assert found.keys() == {"lifebench_equal_to", "lifebench_at_most", "lifebench_at_least"}
    assert all(own["length_score"] == 100.0 for own in found.values())
    assert found["lifebench_equal_to"]["length_deviation"] == found["lifebench_equal_to"]["refused"] == 0.0
    assert len(asked) == 9 and asked[0].endswith("equal to 3 words long.")

    class Fixed(judge.LengthModel):
        def _answer(self, request):
            return "Rain.\n\nHowever, it stops.\n\nSun *** and moon."

    found = judge.judge(Fixed(write), "ifeval_length", file=str(SAMPLES / "ifeval.jsonl"))
    names = ("prompt_level_strict_acc", "inst_level_strict_acc", "prompt_level_loose_acc", "inst_level_loose_acc")
    assert found == {"ifeval_length": dict.fromkeys(names, 0.75)}  # not the 100 words
