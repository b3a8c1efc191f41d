"""Subtitles: the file around the texts is unchanged, lines are within their limits, nothing is cut silently."""

import json
import re
import textwrap

import cues
import fitting
import pysubs2
import pytest
import subtitles
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_runs import ROOT


FILM = ROOT / "tests" / "breakfast.de.srt"
NETFLIX = subtitles.Limits(17, 42, 2)
VTT = """WEBVTT - a title

STYLE
::cue { color: white }

NOTE Ein Kommentar, der bleibt.

intro
00:01.000 --> 00:03.000 align:start position:10%
<v Tom>Guten Tag!

00:00:04.000 --> 00:00:06.500 line:0
<i>Mein Bruder will</i>
<i>Pilot werden.</i>
"""


def cue(text: str, start: int = 0, end: int = 2000) -> cues.Cue:
    return cues.Cue(start, end, (0, len(text)), text)


WORDS = st.lists(st.text("abc,.", min_size=1, max_size=9), min_size=1, max_size=9)


@given(WORDS, st.integers(5, 30), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_lines_are_within_the_limits_or_the_text_does_not_fit(words, most_columns, most_lines):
    text = " ".join(words)
    # a greedy wrap needs the fewest lines
    greedy = textwrap.wrap(text, most_columns, break_long_words=False, break_on_hyphens=False)
    fits = len(greedy) <= most_lines and max(map(len, greedy)) <= most_columns
    lines = cues.break_lines(text, most_columns, most_lines)
    assert (lines is not None) == fits
    if lines is not None:
        assert " ".join(lines) == text
        assert len(lines) == len(greedy) and max(map(len, lines)) <= most_columns


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("I like him because he is kind.", ["I like him", "because he is kind."]),
        ("He came late, but nobody was angry.", ["He came late,", "but nobody was angry."]),
        ("Don't forget to turn off the light.", ["Don't forget", "to turn off the light."]),
    ],
)
def test_lines_break_where_a_reader_would(text, lines):
    assert cues.break_lines(text, 25, 3) == lines


@pytest.mark.parametrize(
    ("text", "before", "turns", "after"),
    [
        ("{\\an8}<i>Guten\nTag.</i>", "{\\an8}<i>", [("", "Guten Tag.")], "</i>"),
        ("- Wer?\n- Ich\nnicht.", "", [("- ", "Wer?"), ("- ", "Ich nicht.")], ""),
        ("<v Tom>Ja.", "<v Tom>", [("", "Ja.")], ""),
        ("♪ La la ♪", "♪ ", [("", "La la")], " ♪"),
        ("MARIA: Hallo!", "", [("MARIA: ", "Hallo!")], ""),
        ("...", "", [], ""),
        ("- Guten\tTag.\n-", "", [("- ", "Guten Tag.")], ""),
        ("MANN:\nGuten Tag.", "", [("MANN: ", "Guten Tag.")], ""),
    ],
)
def test_markup_and_speakers_are_apart_from_the_text(text, before, turns, after):
    parsed = cue(text)
    assert (parsed.before, parsed.turns, parsed.after, parsed.fault) == (before, turns, after, "")


def test_what_cannot_be_translated_is_a_fault_of_its_cue_alone():
    film = [cue("Gut."), cue("Das ist <i>mein</i> Haus."), cue("Tom &amp; Maria"), cue("<i>\x07Ja.</i>")]
    faults = ["markup inside the text", "an entity inside the text", "a control character, U+0007"]
    assert [own.fault for own in film] == ["", *faults]
    passages = subtitles.passages(film, 1000, 3)
    assert [passage.texts for passage in passages] == [["Gut."]]
    fitted = fitting.Fitted(["Good."], [["Good."]], ["Good."], -0.1)
    rows = subtitles.rows_of(film, [(passages[0], fitted)], NETFLIX)
    assert [rows[i]["output"] for i in (0, 3)] == [["Good."], ["\x07Ja."]]
    assert subtitles.summary(rows)["flagged"] == [2, 3, 4]


def test_mixed_line_ends_and_a_last_number_stay(tmp_path):
    content = "1\r\n00:00:01,000 --> 00:00:02,000\r\nEins\r\nzwei\r\n\n2\n00:00:03,000 --> 00:00:04,000\nEs sind\n5\n"
    (tmp_path / "a.srt").write_bytes(content.encode())
    read, found = cues.read(str(tmp_path / "a.srt"), "utf-8")
    assert [own.text for own in found] == ["Eins\nzwei", "Es sind\n5"]
    written = cues.replace(read, found, ["One\ntwo", "There are\n5"])
    assert written == content.replace("Eins", "One").replace("zwei", "two").replace("Es sind\n", "There are\r\n")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("kind", ["srt", "vtt"])
def test_all_but_the_texts_is_unchanged_to_the_byte(tmp_path, newline, kind):
    content = "\ufeff" + (FILM.read_text(encoding="utf-8") if kind == "srt" else VTT)
    path = tmp_path / f"film.{kind}"
    path.write_bytes(content.replace("\n", newline).encode())
    read, found = cues.read(str(path), "utf-8")
    assert cues.replace(read, found, [own.text for own in found]).encode() == path.read_bytes()
    marked = cues.replace(read, found, [f"@{i}@" for i in range(len(found))])
    expected = read
    for i, own in enumerate(found):
        text = own.text.replace("\n", newline)
        if text:
            assert expected.count(text) == 1
            expected = expected.replace(text, f"@{i}@")
    assert re.sub("@32@", "", marked) == expected  # the cue without a text
    assert len(found) == {"srt": 37, "vtt": 2}[kind]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "x", "must be .srt or .vtt"),
        ("a.srt", "hello", "has no cue"),
        ("b.srt", "1\n00:00:01,000 --> 00:00:02,000\nEins\n\nZwei\n", "cue 1 has a blank line inside"),
    ],
)
def test_what_is_no_subtitle_file_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        cues.read(str(tmp_path / name), "utf-8")


def test_budgets_and_faults_are_those_of_the_guide():
    two, ten = cue("x", 0, 2000), cue("x", 0, 10_000)
    assert (NETFLIX.budget(two), NETFLIX.budget(ten)) == (34, 85)  # 2 s × 17; two lines of 42 and a space
    assert (NETFLIX.faults(two, ["a" * 34]), NETFLIX.faults(two, ["a" * 35])) == ([], ["speed"])
    assert (NETFLIX.faults(ten, ["a" * 43]), NETFLIX.faults(ten, ["a", "b", "c"])) == (["columns"], ["lines"])


def test_cues_share_a_sentence_that_the_first_does_not_end():
    film = [cue("Glaubst du, dass", 0, 1000), cue("er kommt?", 1200, 2000), cue("Ja.", 2100, 3000)]
    assert [len(passage.cues) for passage in subtitles.passages(film, 1000, 3)] == [2, 1]
    assert [len(passage.cues) for passage in subtitles.passages(film, 100, 3)] == [1, 1, 1]
    assert subtitles.passages(film, 1000, 3)[0].texts == ["Glaubst du, dass er kommt?"]


def test_a_shared_text_is_divided_within_both_budgets():
    first, second = cue("Glaubst du, dass er dieses Buch", 0, 1500), cue("gelesen hat?", 1500, 2500)
    passage = subtitles.Passage([first, second])
    lines = subtitles.lay_out(passage, NETFLIX, ["Do you think he has read this book?"])
    assert lines == [["Do you think he has read"], ["this book?"]]
    long = "Do you really think that he has already read this book?"
    assert subtitles.lay_out(passage, NETFLIX, [long]) is None
    whole = subtitles.lay_out(passage, NETFLIX, [long], loose=True)
    assert whole is not None and " ".join(" ".join(part) for part in whole) == long


@pytest.mark.slow
def test_a_file_is_translated_within_its_limits(tmp_path, capsys):
    lines = FILM.read_text(encoding="utf-8").split("\n\n")
    # no English sentence says the last in a quarter of a second
    film = "\n\n".join([lines[i] for i in (4, 8, 9, 21, 32)])
    film += "\n\n99\n00:02:00,000 --> 00:02:00,250\nIch habe meinen Schlüssel im Büro vergessen.\n"
    source, target = tmp_path / "de.srt", tmp_path / "en.srt"
    source.write_text(film, encoding="utf-8")
    options = ["--model", str(ROOT / "models" / "translate_to_english"), "--report_dir", str(tmp_path)]
    subtitles.main(["--input_file", str(source), "--output_file", str(target), *options])
    before, after = pysubs2.load(str(source)), pysubs2.load(str(target))
    assert [(e.start, e.end) for e in before] == [(e.start, e.end) for e in after]
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["over"]["output"] == 1 and report["flagged"] == [6]
    assert report["over"]["natural"] > 1 and report["shortened"] >= 1
    texts = [event.plaintext for event in after]
    assert (texts[0], texts[4]) == ("- Where is Tom?\n- He's already in the office.", "")
    assert texts[3].startswith("Didn't you take an umbrella") and "with you" not in texts[3]  # which is too long
    assert texts[5].startswith("I ") and texts[5].endswith("office.")  # whole
    assert "cannot fit" in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert (tmp_path / "report.png").stat().st_size > 1000
    assert "6 cues over a limit" in capsys.readouterr().out
