"""`fit`: texts that fit stay, candidates are taken, a model rewords, and no text is cut."""

import asyncio
import math
import re

import pandas
import pytest
import torch
from recipe_runs import as_options, read_rows, run_lenctrl, write_rows
from test_causal import build_plain, make_tokenizer

from hf_lenctrl import LengthControlledGenerationPipeline, Unit, fit, fit_async
from hf_lenctrl.commands import fit as fit_command
from hf_lenctrl.commands.rows import Rows
from hf_lenctrl.inference.edits import Edits
from hf_lenctrl.inference.fit import (
    AGAIN_BEAMS,
    COMPARED,
    FREE_BEAMS,
    INSTRUCTION,
    SHORTER,
    _Job,
    _Request,
)
from hf_lenctrl.inference.fitted import Candidate, lost, similarity
from hf_lenctrl.inference.ranking import endings, log_probabilities


TEXT = "The meeting has been moved to Thursday at 3 p.m."  # 48 characters


def test_a_text_that_fits_stays_byte_for_byte():
    text = "  Café \u0301 at  10. "
    fitted = fit(text, 30, candidates=["Coffee at 10."])
    assert (fitted.text, fitted.origin, fitted.fault, fitted.length) == (text, "source", None, 17)
    assert [out.origin for out in fit([TEXT, "Short."], [48, 6])] == ["source", "source"]


def test_the_best_candidate_that_fits_is_taken():
    candidates = [
        "Meeting moved.",
        "The meeting has been moved to Friday.",
        "The meeting's now Thursday at 3 p.m.",
        "",
    ]
    fitted = fit(TEXT, 40, candidates=candidates[:3])
    assert (fitted.text, fitted.length, fitted.origin, fitted.fault) == (candidates[2], 36, "candidate", None)
    assert [(one.text, one.lost, one.added) for one in fitted.candidates] == [
        (TEXT, (), ()),
        (candidates[0], ("3", "Thursday"), ()),
        (candidates[1], ("3", "Thursday"), ("Friday",)),
        (candidates[2], (), ()),
    ]
    # all that fit have a fault: it is said
    fitted = fit(TEXT, 38, candidates=candidates[:2])
    assert fitted.text == candidates[1] and fitted.fault == "lost: 3, Thursday; added: Friday"


def test_a_text_is_never_cut():
    fitted = fit(TEXT, 20, candidates=["The meeting is now on Thursday."])
    assert (fitted.text, fitted.origin) == (TEXT, "source")
    assert fitted.fault == "no text fits: the nearest of 2 has 31 characters"


def test_exact_takes_a_window():
    options = {"constraint": "exact", "tolerance": 0.1}
    assert fit(TEXT, 44, **options).origin == "source"  # 40 to 48
    assert (
        fit(TEXT, 30, candidates=["Now Thursday, 3 p.m.", "The meeting is Thursday, 3 p.m."], **options).length == 31
    )
    assert fit("ä" * 10, 20, unit="byte", constraint="exact").fault is None


def test_a_function_is_asked_again_with_what_did_not_fit():
    asked = []

    def shorten(text, length, tried):
        asked.append((length, list(tried)))
        return ["Moved to Thursday, 3 p.m., the meeting is.", "Thursday 3 p.m."][len(tried)]

    fitted = fit(["Fits.", TEXT], [10, 20], candidates=shorten)
    assert [out.text for out in fitted] == ["Fits.", "Thursday 3 p.m."]
    assert asked == [(20, []), (20, ["Moved to Thursday, 3 p.m., the meeting is."])]
    assert fit(TEXT, 20, candidates=lambda *_: TEXT + "!", attempts=2).fault == (
        "no text fits: the nearest of 2 has 48 characters"
    )


def test_coroutines_ask_at_the_same_time():
    waiting, met = set(), asyncio.Event()

    async def shorten(text, length, tried):
        waiting.add(text)
        if len(waiting) == 2:
            met.set()
        await asyncio.wait_for(met.wait(), 10)  # ends only if the other text has been asked for too
        return text[:length]

    async def both():
        return await fit_async(["one two three", "four five six"], 8, candidates=shorten)

    assert [out.text for out in asyncio.run(both())] == ["one two ", "four fiv"]
    with pytest.raises(TypeError, match="call `await fit_async"):
        fit("one two three", 8, candidates=shorten)


@pytest.fixture(scope="module")
def rewrite():
    """A plain causal model with random weights and a chat template, under the constraint."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    return LengthControlledGenerationPipeline(model=build_plain("llama").eval(), tokenizer=tokenizer)


def test_a_model_rewords_what_nothing_else_fits(rewrite):
    seen = []
    inner = rewrite.preprocess
    rewrite.preprocess = lambda prompts, **how: seen.extend(each.text for each in prompts) or inner(prompts, **how)
    texts, lengths = ["Fits.", TEXT, "A text without any name is here."], [9, 12, 17]
    fitted = fit(texts, lengths, model=rewrite, instruction="Say it shorter.")
    assert [out.origin for out in fitted] == ["source", "model", "model"]
    assert all(out.length == len(out.text) <= n for out, n in zip(fitted, lengths, strict=True))
    assert fit(TEXT, 12, model=rewrite, num_beams=1).length <= 12
    assert set(seen[:-4]) == {f"system: Say it shorter.\nuser: {text}\n" for text in texts[1:]}
    assert fitted[1].fault.startswith("lost: 3, Thursday") and fitted[1].fault.endswith("unfinished")
    # the score is the log-probability of the text and its end behind the prompt
    tokenizer, out = rewrite.tokenizer, fitted[2]
    prompt, answer = (
        tokenizer(text)["input_ids"] for text in (f"system: Say it shorter.\nuser: {texts[2]}\n", out.text)
    )
    ids = torch.tensor([prompt + answer + [tokenizer.eos_token_id]])
    with torch.no_grad():
        logits = rewrite.model(ids).logits.log_softmax(dim=-1)[0, len(prompt) - 1 : -1]
    assert out.score == pytest.approx(logits.gather(1, ids[0, len(prompt) :, None]).sum().item(), abs=1e-3)


def test_a_blank_text_stays_and_one_without_a_unit_is_reworded(rewrite):
    blank, counted = fit([" " * 9, "It is short."], 8, model=rewrite)
    assert (blank.text, blank.origin, counted.origin) == (" " * 9, "source", "model")
    marks = Unit(False, lambda state, character: (int(character == "!"), state))
    assert fit("Stop. Go.", 2, unit=marks, constraint="min", model=rewrite).text.count("!") >= 2


def test_a_candidate_with_a_fault_does_not_keep_the_model_from_rewording(rewrite):
    fitted = fit(TEXT, 20, candidates=["Meeting moved."], model=rewrite)
    origins = [one.origin for one in fitted.candidates]
    assert origins[:2] == ["source", "candidate"] and "model" in origins[2:]


def test_a_text_of_several_sentences_is_reworded_sentence_by_sentence(rewrite):
    seen = []
    inner = rewrite.preprocess
    rewrite.preprocess = lambda prompts, **how: seen.extend(each.text for each in prompts) or inner(prompts, **how)
    try:
        fit("It rained.  Mr. Weber stayed at home!\n", 30, model=rewrite, instruction="Shorter.")
    finally:
        rewrite.preprocess = inner
    sentences = ["It rained.", "Mr. Weber stayed at home!"]
    assert set(list(dict.fromkeys(seen))[:2]) == {f"system: Shorter.\nuser: {one}\n" for one in sentences}


def test_the_best_combination_of_sentences_that_fits_is_taken():
    job = _Job("One two three. Four five six.", 24, candidates=None, attempts=1)
    (request,) = job.requests

    def part(source, *others):
        texts = [Candidate(source, len(source), "source", score=-1.0, ending=0.0, recall=-1.0)]
        texts += [Candidate(text, len(text), "model", score=s, ending=end, recall=-9.0) for text, s, end in others]
        return _Request(source, 99, 0, 99, texts)

    first = part("One two three.", ("One two.", -3.0, 0.0), ("One, two", -0.1, 0.0))  # the last has no final mark
    second = part("Four five six.", ("Four five.", -2.0, 0.0), ("Four six.", -0.1, -12.0))  # and this a broken end
    # 14 + 1 + 10 is one too long, 8 + 1 + 14 fits, and 8 + 1 + 10 too, but it keeps less
    assert job._combined(request, [first, second], ["", " "]) == ["One two. Four five six."]
    request.high = 25
    assert job._combined(request, [first, second], ["", " "]) == ["One two three. Four five."]
    request.high = 18
    assert job._combined(request, [first, second], ["", " "]) == []


def test_the_source_is_edited_and_a_text_is_worth_more_if_it_tells_the_source(rewrite, monkeypatch):
    source = "They do not really like it."
    monkeypatch.setattr(rewrite, "edits", Edits({(("do", "not"), ("don't",)): 3}, kept=["not"]))
    monkeypatch.setattr(_Job, "_generate", lambda self, requests: None)
    fitted = fit(source, 26, constraint="exact", model=rewrite, unit="character")
    assert fitted.text == "They don't really like it." and fitted.origin == "model"
    monkeypatch.setattr(_Job, "_reword_freely", lambda self, requests: None)
    fitted = fit(source, 18, model=rewrite, unit="character")
    texts = {one.text: one for one in fitted.candidates}
    assert len(texts) == 1 + COMPARED and all(re.search("not|don't", text, re.I) for text in texts)
    prompts = [[{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": text}] for text in texts]
    recalls = log_probabilities(rewrite.model, rewrite.tokenizer, prompts, [source] * len(texts))
    assert [one.recall for one in texts.values()][1:] == pytest.approx(recalls[1:], abs=1e-3)
    assert texts[source].recall is None
    monkeypatch.setattr(rewrite, "edits", None)
    assert fit(source, len(source) - 1, model=rewrite, unit="character").fault.startswith("no text fits")


@pytest.mark.parametrize("trees", [True, False])
def test_several_texts_are_edited_like_each_alone(rewrite, trees, monkeypatch):
    if not trees:  # as for a model with a sliding window
        monkeypatch.setattr("hf_lenctrl.inference.ranking.takes_trees", lambda model: False)
    pairs = {(("do", "not"), ("don't",)): 3, (("really",), ("truly",)): 2, (("like", "it"), ("love", "it")): 1}
    monkeypatch.setattr(rewrite, "edits", Edits(pairs))
    monkeypatch.setattr(_Job, "_reword_freely", lambda self, requests: None)
    sources = ["They do not really like it.", "You do not like it at all.", "We really like it and do not sleep."]
    lengths = [len(source) - 1 for source in sources]
    alone = [fit(source, n, model=rewrite, unit="character") for source, n in zip(sources, lengths, strict=True)]
    together = fit(sources, lengths, model=rewrite, unit="character")
    assert [out.text for out in together] == [out.text for out in alone] and len({out.text for out in alone}) == 3
    assert [out.score for out in together] == pytest.approx([out.score for out in alone], abs=1e-3)
    assert all("fit" not in (out.fault or "") and len(out.candidates) > 2 for out in alone)


def test_a_text_gets_a_planned_length_only_if_no_edited_text_fits(rewrite, monkeypatch):
    sources, planned = ["They do not really like it.", "They like it."], []
    monkeypatch.setattr(rewrite, "edits", Edits({(("do", "not"), ("don't",)): 3}))
    monkeypatch.setattr(_Job, "_reword_freely", lambda self, requests: None)
    monkeypatch.setattr(_Job, "_generate", lambda self, requests: planned.append([one.source for one in requests]))
    fit(sources, [26, 12], model=rewrite, unit="character")
    fit(sources, [26, 30], constraint="exact", model=rewrite, unit="character")
    monkeypatch.setattr(rewrite, "edits", None)
    fit(sources, [26, 12], model=rewrite, unit="character")
    assert [each for each in planned if each] == [sources[1:], sources[1:], sources]


def test_a_long_text_is_shortened_without_a_planned_length_and_then_edited(rewrite, monkeypatch):
    source = "They really do not like it at all."
    wrote = ["They do not like it at all.", "They like it", "They do not like it at all, Anna."]  # long, no mark, name
    calls = []

    def write(prompts, **options):
        calls.append((prompts, options["length_constraint"], options["num_return_sequences"]))
        return [[{"generated_text": f" {text}"} for text in wrote] for _ in prompts]

    scored = []
    monkeypatch.setattr(rewrite, "edits", Edits({(("do", "not"), ("don't",)): 3}))
    monkeypatch.setattr(type(rewrite), "__call__", lambda self, prompts, **options: write(prompts, **options))
    reworded = "hf_lenctrl.inference.fit.reword"

    def edit(model, tokenizer, edits, tasks, count, score):
        scored.extend(list(task.starts) for task in tasks)
        return [{"They don't like it at all.": -1.0} for _ in tasks]

    monkeypatch.setattr(reworded, edit)
    fitted = fit(source, 26, model=rewrite, unit="character")
    first, second = (
        [{"role": "system", "content": SHORTER}, {"role": "user", "content": x}] for x in (source, wrote[0])
    )
    assert calls == [([first], None, FREE_BEAMS), ([second], None, AGAIN_BEAMS)]  # a rewording is shortened again
    assert scored == [[source], ["They do not like it at all."]]
    assert fitted.text == "They don't like it at all." and fitted.origin == "model" and fitted.fault is None
    assert {one.text for one in fitted.candidates} == {source, fitted.text, *wrote}


def test_the_starts_are_texts_that_keep_much_or_come_near_the_limit():
    def text(length: int, recall: float, **more) -> Candidate:
        return Candidate(f"{'a' * (length - 1)}.", length, "model", score=-1.0, ending=0.0, recall=recall, **more)

    source = Candidate(f"{'s' * 39}.", 40, "source")
    # 10 characters are too many: a text may lose 2 nats for each one that it saves
    texts = [
        text(38, -9.0),
        text(32, -20.0),
        text(32, -22.5),
        text(30, -25.5),
        text(26, -25.5),
        text(31, -1.0, lost=("Anna",)),
    ]
    assert _Request(source.text, 30, 28, 30, [source, *texts]).starts() == [2, 1, 4, 3, 5]  # 26 are too few
    assert _Request(source.text, 30, 0, 30, [source, *texts]).starts() == [2, 1, 4, 5, 3]


def test_the_defaults_of_a_pipeline_do_not_plan_the_texts_that_are_shortened(rewrite, monkeypatch):
    given = {"length": 30, "length_constraint": "exact", "length_tolerance": 4}
    pipe = LengthControlledGenerationPipeline(model=rewrite.model, tokenizer=rewrite.tokenizer, **given)
    monkeypatch.setattr(_Job, "_generate", lambda self, requests: None)
    texts = []
    for each in (rewrite, pipe):
        monkeypatch.setattr(each, "edits", Edits({(("do", "not"), ("don't",)): 3}))
        fitted = fit("They really do not like it at all.", 26, model=each, unit="character")
        texts.append([one.text for one in fitted.candidates])
    assert texts[0] == texts[1] and len(texts[0]) > FREE_BEAMS // 2


def test_the_value_of_a_text_counts_what_it_keeps():
    values = [
        Candidate("One.", 4, "model", score=score, ending=-1.0, recall=recall).value("One two.")
        for score, recall in ((-2.0, -10.0), (-4.0, -5.0), (-1.0, None))
    ]
    assert values == [pytest.approx(-13.0), pytest.approx(-10.0), -math.inf]
    assert Candidate("One two.", 8, "candidate").value("One two.") == 1


def test_an_end_is_as_likely_as_its_last_mark_beside_the_likeliest_entry(rewrite):
    tokenizer, model = rewrite.tokenizer, rewrite.model
    prompt, text = "user: a\n", "a text"
    ids = torch.tensor([tokenizer(prompt)["input_ids"] + tokenizer(text)["input_ids"]])
    with torch.no_grad():
        last = model(ids).logits.log_softmax(dim=-1)[0, -1]
    ((_, ending),) = endings(model, tokenizer, [prompt], [text])
    assert ending == pytest.approx(float(last[tokenizer.eos_token_id] - last.max()), abs=1e-4) and ending < 0


def test_none_means_no_candidates():
    assert [len(out.candidates) for out in fit([TEXT, TEXT], 20, candidates=[["x", "", " "], None])] == [2, 1]
    assert len(fit(TEXT, 20, candidates=lambda *_: None).candidates) == 1


@pytest.mark.parametrize("candidates", [[["x"], ["y", None]], [["x"], 5], lambda text, *_: text[0] == "O" or 5])
def test_an_invalid_candidate_is_told_with_its_text(candidates):
    message = r"the candidates of the text at position \d must be a text, a list of texts or None, got .*(None|5|True)"
    with pytest.raises(TypeError, match=message) as caught:
        fit(["Fits.", "One two three four five six."], 20, candidates=candidates)
    assert "at position 1 must" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"length": 0}, ValueError, "length must be at least 1"),
        ({"length": [4, 5]}, ValueError, "for each of the 1 texts"),
        ({"length": (4, 5), "texts": [TEXT] * 2}, ValueError, r"the tuple \(4, 5\); fit takes no range"),
        ({"constraint": None}, ValueError, "pass constraint='max', 'exact' or 'min'"),
        ({"tolerance": 3}, ValueError, "window around an exact length"),
        ({"candidates": 5, "texts": [TEXT] * 2}, ValueError, "a list of texts for each of the 2 texts, got"),
        ({"candidates": "Short."}, ValueError, "a list of texts for each"),
        ({"unit": "pixel"}, ValueError, "unit of a text"),
        ({"unit": "token"}, ValueError, "pass model="),
        ({"texts": [3]}, TypeError, "must be a text, got 3"),
        ({"texts": {"text": TEXT}}, TypeError, "inputs must be a text or a list of texts"),
        ({"texts": pandas.DataFrame({"text": [TEXT]})}, TypeError, "inputs must be a text or a list of texts"),
        ({"candidates": {"text": "Short."}}, TypeError, "must be a text, a list of texts or None"),
        ({"lenght": 5}, TypeError, "fit has no option 'lenght', only candidates, attempts, unit"),
        ({"attempts": 0}, ValueError, "attempts must be an integer of at least 1"),
    ],
)
def test_bad_input_is_refused(change, error, words):
    with pytest.raises(error, match=words):
        fit(**{"texts": TEXT, "length": 20, **change})


def test_names_are_words_with_a_capital_inside_a_sentence():
    assert lost("I live in Berlin. We moved here.", "We live here.") == ("Berlin",)
    assert lost("Call Dr. Jones at 10:30, please.", "Call him at 10:30.") == ("Dr", "Jones")
    assert lost("Anna sang.", "She sang.") == ()  # at the beginning a capital says nothing


def test_the_command_fits_rows_and_resumes(tmp_path, rewrite, capsys, monkeypatch):
    rewrite.save_pretrained(tmp_path / "model")
    rows = [{"id": i, "source": TEXT, "budget": max(20, 60 - i), "others": ["Thursday, 3 p.m."]} for i in range(80)]
    rows[70] |= {"source": "A text without any name is here.", "budget": 14, "others": []}
    file = write_rows(tmp_path / "rows.jsonl", rows)
    options = {"input_file": file, "output_file": tmp_path / "out.jsonl", "length_column": "budget"}
    options |= {"candidates_column": "others", "model": tmp_path / "model"}
    run_lenctrl(["fit", *as_options(options)], monkeypatch)
    written = (tmp_path / "out.jsonl").read_bytes()
    outputs = read_rows(tmp_path / "out.jsonl")
    assert [row["id"] for row in outputs] == list(range(80))
    assert [row["origin"] for row in outputs[:14]] == ["source"] * 13 + ["candidate"]  # 60 to 48, then 47 characters
    assert outputs[20]["output"] == "Thursday, 3 p.m." and outputs[20]["fault"] is None
    assert outputs[70]["origin"] == "model" and outputs[70]["length"] == len(outputs[70]["output"]) <= 14
    lines = written.splitlines(keepends=True)
    (tmp_path / "out.jsonl").write_bytes(b"".join(lines[:70]) + lines[70][:20])  # as a killed command leaves it
    run_lenctrl(["fit", *as_options(options)], monkeypatch)
    assert (tmp_path / "out.jsonl").read_bytes() == written
    run_lenctrl(["fit", *as_options(options)], monkeypatch)
    assert "is complete" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--base_model=b", "--dtype=float16", "--instruction=Shorten.", "--num_beams=3"])
def test_the_command_refuses_an_option_of_a_model_without_one(option, capsys):
    words = ["--input_file=in.txt", "--output_file=out.jsonl", "--length=20", option]
    with pytest.raises(SystemExit):
        fit_command.main(words)
    assert f"{option.partition('=')[0]} is for a model: add --model;" in capsys.readouterr().err
    assert fit_command.parse([*words, "--model=m"]).model == "m"


def test_a_length_that_fit_refuses_leaves_no_file_and_is_told_with_its_row(tmp_path):
    file = write_rows(tmp_path / "rows.jsonl", [{"source": TEXT, "n": 20}, {"source": TEXT, "n": "20-30"}])
    options = {"input_file": file, "output_file": tmp_path / "out.jsonl"}
    for wrong, message in (
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"length_column": "n"}, "row 2 of .*: 'n' must hold an integer of at least 1, got '20-30'"),
    ):
        with pytest.raises(ValueError, match=message):
            fit_command.main(as_options(options | wrong))
    fit_command.main(as_options(options | {"length": 200}))  # no other options began the file
    assert [row["output"] for row in read_rows(tmp_path / "out.jsonl")] == [TEXT, TEXT]


def test_the_command_refuses_candidates_that_are_no_list(tmp_path):
    file = write_rows(tmp_path / "rows.jsonl", [{"source": TEXT, "others": ["a"]}, {"source": TEXT, "others": "b"}])
    options = {"input_file": file, "output_file": tmp_path / "out.jsonl", "length": 20, "candidates_column": "others"}
    with pytest.raises(ValueError, match="row 2 of .*'others' must hold a list of texts, got 'b'"):
        fit_command.main(as_options(options))


def test_the_command_reads_candidates_from_csv_and_an_empty_cell_means_none(tmp_path):
    cells = ['"[""a, b"", ""c""]"', "", "null", "[]"]
    (tmp_path / "rows.csv").write_text("source,others\n" + "".join(f"one two,{cell}\n" for cell in cells))
    assert fit_command.candidates_of(Rows(str(tmp_path / "rows.csv")), "others") == [["a, b", "c"], [], [], []]
    file = write_rows(tmp_path / "rows.jsonl", [{"others": None}, {"others": ["a"]}, {"source": "no others"}])
    assert fit_command.candidates_of(Rows(str(file)), "others") == [[], ["a"], []]
    (tmp_path / "rows.csv").write_text("source,others\none two,a b\n")
    with pytest.raises(ValueError, match=r"row 1 of .* must hold a list of texts, as \[\"one\", \"two\"\], got 'a b'"):
        fit_command.candidates_of(Rows(str(tmp_path / "rows.csv")), "others")


@pytest.mark.parametrize(
    ("text", "other", "wanted"),
    [
        ("the cat", "The cat", 5 * 3 / (4 + 4 * 4)),  # hec, eca, cat of theca: The is another trigram
        ("aaaa", "aaa", 5 * 1 / (2 + 4 * 1)),  # each as often as it is there
        ("a b c", "abc", 1.0),  # spaces do not count
        ("", "abc", 0.0),
        ("ab", "", 0.0),
        # matches of trigrams in sacreBLEU's chrF, and the trigrams of either text
        ("She went home early.", "She left for home.", 5 * 3 / (15 + 4 * 13)),
        ("It is late", "It's late now", 5 * 3 / (6 + 4 * 9)),
    ],
)
def test_similarity_is_the_f_score_of_character_trigrams(text, other, wanted):
    assert similarity(text, other) == pytest.approx(wanted)
