"""Edits: phrases that replace each other, and candidates that get them."""

import json
import logging
import shutil

import pytest
import torch
from recipe_runs import ROOT
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_lenctrl
from hf_lenctrl.inference.edits import Edits, Rewording, apply, reword
from hf_lenctrl.inference.ranking import first_changes, log_probabilities


MODEL = ROOT / "models" / "translate_to_english"
SOURCE = "Der Drucker im dritten Stock ist leider schon wieder kaputt."
GROUPS = [
    ["I do not know her.", "I don't know her."],
    ["We do not eat fish here.", "We don't eat fish here.", "We don't really eat fish here."],
    ["They really like it.", "They like it.", "Sadly, they like it."],
]


@pytest.fixture(scope="module")
def pipe():
    return hf_lenctrl.pipeline(MODEL)


def test_phrases_are_learned_from_texts_that_differ_in_one_place():
    once = Edits.learn(GROUPS, least=1).counts
    assert once[("do", "not"), ("don't",)] == once[("don't",), ("do", "not")] == 2
    assert once[("don't",), ("don't", "really")] == once[("eat",), ("really", "eat")] == 1  # with the word beside it
    assert once[("like",), ("really", "like")] == 1 and not any("Sadly" in pair[0] for pair in once)
    with pytest.raises(TypeError, match="a group is a list of texts with the same meaning, got the text 'I do"):
        Edits.learn(GROUPS[0])
    assert Edits.learn(GROUPS, least=2).counts == {(("do", "not"), ("don't",)): 2, (("don't",), ("do", "not")): 2}


def test_an_edit_keeps_spaces_marks_and_the_first_capital():
    edits = Edits({(("do", "not"), ("don't",)): 3, (("also",), (",", "too")): 2, (("eat",), ("have",)): 1})
    text = "Do not go: they eat  also."
    found = [apply(text, [edit]) for edit in edits.of(text)]
    assert found == ["Don't go: they eat  also.", "Do not go: they have  also.", "Do not go: they eat, too."]
    assert apply(text, edits.of(text)[:2]) == "Don't go: they have  also."


@pytest.mark.parametrize(
    "text, expected",
    [
        ("He came, and I left.", ["He came and and I left.", "He came, and I left now."]),  # a space, no mark
        ("And I left", []),  # no mark begins a text
        ("It is 7:30, a/b or 3.5", ["It is 7:30 and a/b or 3.5"]),  # no part of a number or of a path
        ("He waited long, and left", ["He waited long and and left"]),  # no mark beside another
    ],
)
def test_an_edit_beside_a_mark_is_written_as_text_is(text, expected):
    words = (
        (",", "and"),
        ("and", ","),
        (".", "now ."),
        ("7", "seven"),
        ("5", "five"),
        ("a", "the"),
        ("long", "long ,"),
    )
    edits = Edits({(tuple(one.split()), tuple(other.split())): 2 for one, other in words})
    assert [apply(text, [edit]) for edit in edits.of(text)] == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("He waits... I see?!", ["He waits... That I see?!"]),  # no mark follows another one; a sentence has a capital
        ("Dr. A. Poe, in the U.S.", ["Dr. A. Poe and in the U.S."]),  # no full stop of an abbreviation
        ("He (and she) left – and ran", []),  # no mark behind a bracket or a dash
        ("It is in the kids' room, or on kids.org", ["It is in the kids' room and or on kids.org"]),
        ("3 000 kids", ["3 000 children"]),  # no part of a number
        ("At 10 in the morning", ["At 10 a.m."]),  # an abbreviation is one word
    ],
)
def test_an_edit_leaves_longer_expressions_whole(text, expected):
    words = (
        (".", "now ."),
        ("!", "now !"),
        ("and", ","),
        (",", "and"),
        ("I", "that I"),
        ("kids", "children"),
        ("3", "three"),
    )
    learned = Edits.learn([["Come at 10 a.m. to me.", "Come at 10 in the morning to me."]], least=1).counts
    edits = Edits({(tuple(one.split()), tuple(other.split())): 2 for one, other in words} | learned)
    assert [apply(text, [edit]) for edit in edits.of(text)] == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        (  # a sentence keeps its capital letter; "not" stays
            "Sadly, it is not here.",
            ["It is not here.", "Is not here.", "Not here.", "Sadly is not here.", "Sadly not here."]
            + ["Sadly, is not here.", "Sadly, not here.", "Sadly, it not here.", "Sadly, it is not."],
        ),
        ("Ask Tom at 7:30.", ["Tom at 7:30.", "Ask Tom 7:30."]),  # no name and no number leaves
        (
            "He (or she) ate – and ran.",
            ["He (or) ate – and ran.", "He (or she) – and ran.", "He (or she) ate – ran.", "He (or she) ate – and."],
        ),
        ("At 7 o'clock.", ["7 o'clock."]),  # a number keeps its unit
        ("Title\nsome text", ["Title\nsome"]),  # lines stay apart
        ("It rains, now, again.", None),
    ],
)
def test_a_deletion_leaves_a_text_that_is_written_as_text_is(text, expected):
    edits = Edits({}, ["not"])
    found = [apply(text, [edit]) for edit in edits.of(text)]
    if expected is None:  # commas leave with the words beside them, and no mark stands beside another
        assert {"It rains, again.", "It rains.", "It rains again.", "It rains, now."} <= set(found)
        assert not any(mark in one for one in found for mark in (",,", ", ,", ",.", " .", "  "))
    else:
        assert found == expected
    assert Edits({}).of(text) == []


def test_a_file_of_edits_is_read_and_a_wrong_one_refused(tmp_path):
    edits = Edits.learn(GROUPS, least=1)
    edits.save(tmp_path / "edits.json")
    assert Edits.load(tmp_path / "edits.json").counts == edits.counts
    assert Edits.load(tmp_path / "edits.json").kept is None
    Edits(edits.counts, ["not", "never"]).save(tmp_path / "edits.json")
    assert Edits.load(tmp_path / "edits.json").kept == {"never", "not"}
    for content, problem in [
        ('{"phrases": [["do not", 3]], "kept": null}', "not enough values"),
        ('{"phrases": [["do not", "", 3]], "kept": null}', "a phrase is empty, or a number is below 1"),
        ('{"phrases": []}', "which .*edits.json has not: 'kept'"),
        ('{"phrases": [], "kept": "not"}', "kept is a list of words or null, got 'not'"),
        ('[["do not", "don\'t", 3]]', "words that are never deleted, or null, which .*edits.json has not"),
    ]:
        (tmp_path / "edits.json").write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=problem):
            Edits.load(tmp_path / "edits.json")


def test_the_first_change_is_that_of_the_first_other_token(pipe):
    text, variants = "The printer is broken.", ["The printer was broken.", "A printer is broken.", "The printer is."]
    (changes,) = first_changes(pipe.model, pipe.tokenizer, [(SOURCE, text, variants)])
    ids = [pipe.tokenizer(text_target=one)["input_ids"] for one in (text, *variants)]
    inputs = pipe.tokenizer(SOURCE, return_tensors="pt") | {"length": torch.zeros(1, dtype=torch.long)}
    logits = pipe.model(**inputs, labels=torch.tensor([ids[0]])).logits[0].detach().log_softmax(dim=-1)
    places = [
        next(i for i, pair in enumerate(zip(ids[0], other, strict=False)) if len({*pair}) == 2) for other in ids[1:]
    ]
    expected = [float(logits[i, other[i]] - logits[i, ids[0][i]]) for i, other in zip(places, ids[1:], strict=True)]
    assert changes == pytest.approx(expected, abs=1e-4)


def test_rewordings_fit_and_have_the_scores_of_the_model(pipe):
    edits = Edits.load(MODEL / "edits.json")
    text = "Unfortunately, the printer on the third floor is broken again."
    start = dict(zip([text], log_probabilities(pipe.model, pipe.tokenizer, [SOURCE], [text]), strict=True))
    tasks = [Rewording(SOURCE, start, 50, 58), Rewording(SOURCE, start, 10, 12), Rewording(SOURCE, start, 63, 70)]
    found, none, longer = reword(pipe.model, pipe.tokenizer, edits, tasks, lambda texts: list(map(len, texts)))
    assert none == {}  # no edits make the text so short
    assert longer and all(63 <= len(one) <= 70 for one in longer)
    assert found and all(50 <= len(one) <= 58 for one in found)
    expected = log_probabilities(pipe.model, pipe.tokenizer, [SOURCE] * len(found), list(found))
    assert list(found.values()) == pytest.approx(expected, abs=1e-3)
    assert "Sadly, the printer on the third floor is broken again." in found


def test_an_edit_that_makes_the_text_fit_may_cost_more(monkeypatch):
    text, other = "We do not see the big house.", "We don't see it."
    costs = {"We don't see the big house.": -0.5, "We do not see it.": -4.0}
    edits = Edits(
        {(("do", "not"), ("don't",)): 1, (("the", "big", "house"), ("it",)): 1, (("don't",), ("do", "not")): 1}
    )

    def changes(model, tokenizer, rows):
        return [[costs[one] for one in several] for _, _, several in rows]

    monkeypatch.setattr("hf_lenctrl.inference.edits.first_changes", changes)

    def found(reach: float, low: int = 0, starts: tuple[str, ...] = (text,)) -> list[str]:
        task = Rewording(text, dict.fromkeys(starts, 0.0), low, 20, 1, 0, reach)
        given = (None, None, edits, [task], lambda texts: list(map(len, texts)))
        return list(*reword(*given, lambda pairs: [costs[one] for _, one in pairs]))

    # the limit asks for 8 characters less: one edit saves 1, the other 11
    assert found(0.0) == [] and found(6.0) == ["We do not see it."]
    assert found(6.0, low=18) == []  # 17 characters are too few
    assert found(6.0, starts=(text, other)) == [other, "We do not see it."]  # which already fits, one edit before


def test_edits_make_the_choice_likelier_and_keep_the_length(pipe, monkeypatch):
    call = {"length": [50, 75], "length_constraint": "exact", "length_tolerance": 0}
    with_edits = pipe(SOURCE, **call)
    monkeypatch.setattr(pipe, "edits", None)
    without = pipe(SOURCE, **call)
    assert [out["length"] for out in with_edits] == [len(out["generated_text"]) for out in with_edits] == [50, 75]
    assert all(more["score"] >= less["score"] for more, less in zip(with_edits, without, strict=True))
    assert with_edits[1]["score"] > without[1]["score"] + 1 and with_edits[1].keys() == without[1].keys()


def test_no_edit_adds_a_token_that_the_call_forbids(pipe):
    words = ["again", "once", "yet"]
    ids = [i for own in pipe.tokenizer(text_target=words, add_special_tokens=False)["input_ids"] for i in own]
    text = pipe(SOURCE, length=75, length_constraint="exact", length_tolerance=0, suppress_tokens=ids)[
        "generated_text"
    ]
    assert len(text) == 75 and not {*pipe.tokenizer(text_target=text)["input_ids"]} & {*ids}


def test_a_model_in_a_subfolder_has_the_edits_and_the_predictor_of_this_folder(tmp_path):
    (tmp_path / "own").symlink_to(MODEL, target_is_directory=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, subfolder="own")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, subfolder="own")
    named = hf_lenctrl.pipeline(tmp_path, model_kwargs={"subfolder": "own"})
    for pipe in (named, hf_lenctrl.pipeline(model, tokenizer)):
        assert pipe.edits is not None and pipe.edits.counts == Edits.load(MODEL / "edits.json").counts
        assert pipe(SOURCE, length="predict", choose=False)["requested_length"] > 20


def test_edits_belong_to_the_model_that_names_them(pipe, tmp_path, caplog):
    pipe.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "edits.json").read_text()) == json.loads(
        (MODEL / "edits.json").read_text()
    )
    (tmp_path / "saved" / "edits.json").unlink()
    with caplog.at_level(logging.INFO):
        assert hf_lenctrl.pipeline(tmp_path / "saved").edits is None
    assert "candidates get no edits, because edits.json is missing" in caplog.text
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    config["choice"]["edits"] = "../edits.json"
    (tmp_path / "saved" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="got '../edits.json'; give its name alone"):
        hf_lenctrl.pipeline(tmp_path / "saved")
    shutil.rmtree(tmp_path / "saved")
