"""Tests of the metrics: every expected figure was worked out by hand; the base model as a baseline."""

import logging
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu
import torch
from conftest import save_in
from transformers import AutoTokenizer, EvalPrediction

from hf_lenctrl import length_metrics, remove_length_control
from hf_lenctrl.commands.arguments import ModelArguments, RunArguments
from hf_lenctrl.commands.quality import base_figures, warn_of_baselines
from hf_lenctrl.evaluation.metrics import (
    bleu_metric,
    build_compute_metrics,
    rouge_metrics,
    rouge_settings,
    text_quality,
    translation_metrics,
)


def test_length_metrics_are_means_over_the_outputs():
    # differences 0, 5, -3, -1, 0: squares 35, absolute values 9, two exact, one over
    actual = length_metrics(produced=[20, 25, 17, 20, 60], requested=[20, 20, 20, 21, 60])
    assert actual == {"variance": 7.0, "mae": 1.8, "exact": 0.4, "over": 0.2}
    assert all(type(value) is float for value in actual.values())
    # every output is two too long: eq. 8 gives 4, the variance about the mean would be 0
    assert length_metrics(np.array([12, 12]), np.array([10, 10])) == {"variance": 4.0, "mae": 2, "exact": 0, "over": 1}
    with pytest.raises(ValueError, match=r"lengths must be whole numbers, got 20\.7; round them"):
        length_metrics([20, 20.7], [20, 20])
    for missing, shown in ((float("nan"), "nan"), (None, "None"), ("a text", "'a text'"), (float("inf"), "inf")):
        with pytest.raises(ValueError, match=f"lengths must be whole numbers, got {shown}; .*leave out missing ones"):
            length_metrics([20, 20], [20, missing])


@pytest.mark.parametrize("language", ["ja", "ko"])
def test_the_message_names_the_package_of_the_language(language, monkeypatch):
    monkeypatch.setitem(sys.modules, f"sacrebleu.tokenizers.tokenizer_{language}_mecab", None)
    package = {"ja": "hf_lenctrl[ja]", "ko": "sacrebleu[ko]"}[language]
    with pytest.raises(ImportError, match=re.escape(f'{language}-mecab\' needs MeCab: pip install "{package}"')):
        bleu_metric(f"{language}-mecab")


@pytest.mark.parametrize("measure", [length_metrics, rouge_metrics, translation_metrics])
@pytest.mark.parametrize(("outputs", "wanted", "counts"), [([], [], "0 and 0"), (["a", "b"], ["a"], "2 and 1")])
def test_what_does_not_pair_up_is_refused(measure, outputs, wanted, counts):
    with pytest.raises(ValueError, match=f"got {counts}"):
        measure(outputs, wanted)


def test_no_texts_have_no_shares():
    with pytest.raises(ValueError, match="shares of the texts, so it needs at least one, got none"):
        text_quality([])


ALL = ("rouge1_recall", "rouge1_f1", "rouge2_recall", "rouge2_f1", "rougeL_recall", "rougeL_f1")


@pytest.mark.parametrize(
    ("prediction", "reference", "options", "expected"),
    [
        # of 6 words 3 are found, all of the prediction's 3; of 5 pairs 2, all of its 2; the subsequence is 3 long
        (
            *("the cat sat", "the cat sat on the mat", {}),
            dict(zip(ALL, (50, 200 / 3, 40, 400 / 7, 50, 200 / 3), strict=True)),
        ),
        ("mat the", "the mat", {}, dict(zip(ALL, (100, 100, 0, 0, 50, 50), strict=True))),  # another order
        ("a red cat", "cat", {}, {"rouge1_recall": 100, "rouge1_f1": 50}),  # recall divides by the reference
        ("editing images", "edit image", {}, {"rouge1_recall": 100}),
        ("editing images", "edit image", {"use_stemmer": False}, {"rouge1_recall": 0}),
        # five bytes of the prediction are "small", and the reference stays whole
        ("small text editor", "small text editor", {"max_bytes": 5}, {"rouge1_recall": 100 / 3, "rouge1_f1": 50}),
        # 7 characters in 10 bytes
        ("ééé cat", "cat", {"max_bytes": 7}, {"rouge1_recall": 0}),
        ("ééé cat", "cat", {"max_bytes": 10}, {"rouge1_recall": 100}),
        # "cat" and three of the four bytes of an emoji, or fewer: only the word is left
        *(("cat😀s", "cat", {"max_bytes": n}, {"rouge1_f1": 100}) for n in (4, 5, 6)),
        *((*texts, {}, dict.fromkeys(ALL, 0)) for texts in (("", "the cat"), ("the cat", ""), ("", ""))),
    ],
)
def test_rouge_of_one_text(prediction, reference, options, expected):
    actual = rouge_metrics([prediction], [reference], **options)
    assert actual.keys() == set(ALL) and {name: actual[name] for name in expected} == pytest.approx(expected)


def test_rouge_of_several_references_sums_their_matches():
    # 1 of 2 words and 3 of 4, 0 of 1 pairs of words and 1 of 3; precision 1/3 and 1 of words
    found = rouge_metrics(["one two three"], [["two five", "one three two three"]])
    assert found["rouge1_recall"] == pytest.approx(100 * 4 / 6)
    assert found["rouge2_recall"] == pytest.approx(100 * 1 / 4)
    assert found["rouge1_f1"] == pytest.approx(100 * 2 * (2 / 3) * (2 / 3) / (2 / 3 + 2 / 3))
    assert found["rougeL_recall"] == pytest.approx(100 * 4 / 6)  # "two"; "one two three"
    assert rouge_metrics(["a", "b"], ["a", ["b"]])["rouge1_recall"] == 100
    with pytest.raises(ValueError, match="each prediction needs a reference, got none in row 1; drop the row"):
        rouge_metrics(["a", "b"], ["a", []])


def test_rouge_of_characters_sees_japanese(caplog):
    # 6 of 8 characters, white space left out; 4 of 7 pairs; the longest common subsequence has 6
    actual = rouge_metrics(["日本の 地図です"], ["日本の古い地図で"], unit="character", use_stemmer=False)
    expected = {"rouge1_recall": 600 / 8, "rouge1_f1": 1200 / 15, "rouge2_recall": 400 / 7, "rougeL_recall": 600 / 8}
    assert {name: actual[name] for name in expected} == pytest.approx(expected)
    assert rouge_metrics(["日本"], ["日本"])["rouge1_f1"] == 0  # no word that rouge_score knows
    assert "no reference has a Latin word, so ROUGE of words is 0; compare characters" in caplog.text
    assert ", characters, truncation=none" in rouge_settings(unit="character")
    with pytest.raises(ValueError, match="got 'byte'"):
        rouge_metrics(["a"], ["a"], unit="byte")


def rows(*rows: list[int]) -> np.ndarray:
    """As Trainer hands them over: filled up with -100."""
    width = max(map(len, rows))
    return np.array([row + [-100] * (width - len(row)) for row in rows])


# the first is found to 2/3 (F1 4/5), of its pairs 1/2 (2/3), the second whole
ROUGE = dict(zip(ALL, (100 * 5 / 6, 90.0, 75.0, 100 * 5 / 6, 100 * 5 / 6, 90.0), strict=True))


@pytest.mark.parametrize(
    ("length", "expected", "against"),
    [
        (None, {"variance": 24.5, "mae": 3.5, "exact": 0.5, "over": 0.0}, "the reference"),  # 10 and 9 of 17 and 9
        (9, {"variance": 0.5, "mae": 0.5, "exact": 0.5, "over": 0.5}, "9"),
    ],
)
def test_characters_are_measured(character_tokenizer, length, expected, against):
    tokenizer = character_tokenizer
    pad, blank = tokenizer.pad_token_id, tokenizer.target_encoder["▁"]
    texts = "small text", "card game", "small text editor"
    text, game, whole = (tokenizer(text_target=one)["input_ids"] for one in texts)
    # decoding strips the blank at the end
    predictions = rows([pad, *text[:-1], blank, text[-1]], [pad, *game, pad])
    evaluation = EvalPrediction(predictions=predictions, label_ids=rows(whole, game))
    before = evaluation.predictions.copy(), evaluation.label_ids.copy()
    actual = build_compute_metrics(tokenizer, "character", length=length)(evaluation)
    settings = actual.pop("settings")
    assert actual == pytest.approx(expected | ROUGE | {"distinct": 1.0})
    assert settings.startswith(f"length: characters against {against}; ROUGE: rouge_score ")
    assert "stemmer=True, truncation=none" in settings
    assert (evaluation.predictions == before[0]).all() and (evaluation.label_ids == before[1]).all()
    cut = build_compute_metrics(tokenizer, "character", length=length, max_bytes=4)(evaluation)
    # "smal" is not found in 3 words, "card" in 2: recall 0 and 1/2; the lengths are those of the whole outputs
    assert (cut["rouge1_recall"], cut["mae"]) == (pytest.approx(25.0), expected["mae"])
    assert "truncation=4 bytes" in cut["settings"]


@pytest.mark.parametrize(
    "length, expected",
    [
        (None, {"variance": 2.0, "mae": 1.0, "exact": 0.5, "over": 0.0}),  # 3 and 2 against 5 and 2
        (2, {"variance": 0.5, "mae": 0.5, "exact": 0.5, "over": 0.5}),  # 3 and 2 against 2 and 2
    ],
)
def test_tokens_are_counted_from_ids(character_tokenizer, length, expected):
    tokenizer, (end, unknown, pad) = character_tokenizer, (0, 1, 2)
    a, b, c = 3, 4, 5  # any three pieces
    evaluation = EvalPrediction(
        predictions=rows([pad, a, b, c, end], [pad, a, unknown, end, pad, pad]),
        label_ids=rows([a, b, c, a, b, end], [a, b, end]),
    )
    actual = build_compute_metrics(tokenizer, "token", length=length)(evaluation)
    assert {name: actual[name] for name in expected} == expected
    assert actual["settings"].startswith(f"length: tokens against {length or 'the reference'}; ROUGE: ")


def outputs_for(tokenizer, texts, sources, references=None) -> EvalPrediction:
    """Texts as a Trainer hands them over, with their inputs."""
    ids = [
        rows(*(tokenizer(text_target=text)["input_ids"] for text in column))
        for column in (texts, references or sources, sources)
    ]
    return EvalPrediction(predictions=ids[0], label_ids=ids[1], inputs=ids[2])


def test_distinct_counts_the_texts_of_different_sources(character_tokenizer, caplog):
    measure = build_compute_metrics(character_tokenizer, "character", length=4)
    texts, sources = ["card", "card", "text", "card"], ["game", "game", "editor", "small"]
    found = outputs_for(character_tokenizer, texts, sources, references=["card", "game", "text", "small"])
    assert measure(found)["distinct"] == 2 / 3  # "game" has two references and one text
    found.inputs = None
    assert measure(found)["distinct"] == 2 / 4
    assert "alike" not in caplog.text


@pytest.mark.parametrize(
    ("texts", "sources", "length", "warning"),
    [
        (
            ["card"] * 9 + ["text"],
            "abcdefghij",
            4,
            "9 of 10 outputs for different sources are the same text, such as 'c",
        ),
        (["card"] * 8 + ["text", "game"], "abcdefghij", 4, None),
        (["card"] * 10, "aaaaaaaaaa", 4, None),  # one source
        # a model that only counts writes one text for each length
        (
            ["card", "cards"] * 5,
            "abcdefghij",
            [4, 5] * 5,
            "10 of 10 outputs for different sources are the same text, one",
        ),
        (["card", "cards"] * 5, "abcdefghij", [4, 4, 5, 5, 4] * 2, None),
        (["card", "cards", "text"], "abc", [4, 5, 4], None),
    ],
)
def test_outputs_that_are_all_alike_get_a_warning(character_tokenizer, caplog, texts, sources, length, warning):
    found = outputs_for(character_tokenizer, texts, list(sources))
    build_compute_metrics(character_tokenizer, "character", length=length)(found)
    assert (warning in caplog.text) if warning else ("alike" not in caplog.text)
    assert warning is None or "all outputs are alike" in caplog.text


@pytest.mark.parametrize("unit", ["token", "character"])
def test_an_empty_output_has_length_zero(character_tokenizer, unit):
    ids = character_tokenizer(text_target="text")["input_ids"]
    evaluation = EvalPrediction(predictions=rows([2, 0, 2], [-100] * 3), label_ids=rows(ids, ids))  # padding and EOS
    actual = build_compute_metrics(character_tokenizer, unit, length=4)(evaluation)
    assert [actual[name] for name in ("mae", "exact", "over", "rouge1_recall")] == [4.0, 0.0, 0.0, 0.0]


def test_predictions_that_are_no_generated_ids_are_refused(character_tokenizer):
    logits, labels = np.zeros((2, 3, 4)), np.zeros((2, 3), dtype=int)
    for predictions in (logits, (logits, labels)):
        with pytest.raises(ValueError, match="need generated ids; set predict_with_generate=True"):
            build_compute_metrics(character_tokenizer, "character")(EvalPrediction(predictions, labels))


SOURCES = ["Das ist gut.", "Ich möchte in den Park gehen.", "Je ne peux pas vivre sans musique."]
REFERENCES = ["That's good.", "I would like to go to the park.", "I can't live without music."]


@pytest.mark.slow
def test_the_base_models_figures_are_sacrebleus_for_its_own_texts(pytestconfig, tmp_path):
    translator, folder = pytestconfig.rootpath / "models" / "translate_to_english", str(tmp_path)
    tokenizer, model = AutoTokenizer.from_pretrained(translator), remove_length_control(translator)
    save_in(folder, model, tokenizer)
    ids = [model.generate(**tokenizer(source, return_tensors="pt"), num_beams=2)[0] for source in SOURCES]
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    args = SimpleNamespace(device=torch.device("cpu"), generation_num_beams=2, per_device_eval_batch_size=3)
    parts = ModelArguments(base_model=folder), RunArguments(bleu_tokenizer="13a")
    found = base_figures(SOURCES, REFERENCES, *parts, args, tokenizer)
    bleu, chrf = (score(texts, [REFERENCES]).score for score in (sacrebleu.corpus_bleu, sacrebleu.corpus_chrf))
    assert found == pytest.approx({"base_bleu": bleu, "base_chrf": chrf})
    assert found["base_bleu"] > 30  # it does translate


@pytest.mark.parametrize(("bleu", "warned"), [(30.0, True), (41.0, False)])
def test_a_translator_below_its_base_gets_a_warning(caplog, bleu, warned):
    with caplog.at_level(logging.WARNING, logger="train_seq2seq"):
        warn_of_baselines({"reference": {"bleu": bleu, "base_bleu": 40.0}}, "character")
    told = "at the reference's length the model has bleu 30.0, the base model has 40.0" in caplog.text
    assert told is warned
