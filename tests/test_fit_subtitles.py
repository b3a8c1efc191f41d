"""Subtitles: the file around the texts is unchanged, lines are within their limits, nothing is cut silently."""

import json
import re
import textwrap

import cue_files
import cues
import fitting
import pytest
import subtitles
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_runs import ROOT

from hf_lenctrl.inference.presets import PRESETS


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


def cue(text: str, start: int = 0, end: int = 2000, kind: str = "srt") -> cues.Cue:
    return cues.Cue(start, end, (0, len(text)), text, kind)


ENGLISH = {
    "Guten Tag.": "Good day.",
    "Guten Tag!": "Good day!",
    "Bis morgen.": "See you tomorrow.",
    "Ja.": "Yes.",
    "Nein.": "No.",
    "Eins zwei": "One two",
    "Mein Bruder will Pilot werden.": "My brother wants to be a pilot.",
}


class Model:
    """In place of `Fitter`: translates what ENGLISH has, and writes the natural text alone."""

    def __init__(self, words):
        self.words, self.seen = words, []

    def fit(self, requests):
        self.seen += [sentence for request in requests for sentence in request.sentences]
        natural = [
            [self.words.get(sentence, f"English {n}") for n, sentence in enumerate(request.sentences)]
            for request in requests
        ]
        return [
            fitting.Fitted(said, request.layout(said), said, -0.1)
            for said, request in zip(natural, requests, strict=True)
        ]


@pytest.fixture
def translate(tmp_path, monkeypatch):
    """Run the recipe on a file; return the bytes of the output, the report, and the sentences that the model got."""

    def run(content, kind="srt", words=(), options=(), encoding="utf-8"):
        model = Model(ENGLISH | dict(words))
        monkeypatch.setattr(subtitles, "fitter", lambda args: model)
        monkeypatch.setattr(subtitles, "plot", lambda *_: None)  # it takes half a second
        source, target = tmp_path / f"de.{kind}", tmp_path / f"en.{kind}"
        source.write_bytes(content.encode(encoding) if isinstance(content, str) else content)
        files = ["--input_file", str(source), "--output_file", str(target), "--report_dir", str(tmp_path)]
        subtitles.main([*files, "--overwrite", "--join_gap", "-1", *options])
        report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
        return target.read_bytes(), report, model.seen

    return run


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
        ("{\\an8}<i>Guten\nTag.</i>", "{\\an8}<i>", [("", "Guten Tag.", "")], "</i>"),
        ("- Wer?\n- Ich\nnicht.", "", [("- ", "Wer?", ""), ("- ", "Ich nicht.", "")], ""),
        ("<v Tom>Ja.", "<v Tom>", [("", "Ja.", "")], ""),
        ("♪ La la ♪", "♪ ", [("", "La la", "")], " ♪"),
        ("MARIA: Hallo!", "", [("MARIA: ", "Hallo!", "")], ""),
        ("...", "", [], ""),
        ("- Guten\tTag.\n-", "", [("- ", "Guten Tag.", "")], ""),
        ("MANN:\nGuten Tag.", "", [("MANN: ", "Guten Tag.", "")], ""),
        ("{i}Ja.{/i}", "{i}", [("", "Ja.", "")], "{/i}"),
        ("{lacht} Ja.", "", [("", "{lacht} Ja.", "")], ""),
        ("\\hGuten\\NTag\\h!", "\\h", [("", "Guten Tag !", "")], ""),
    ],
)
def test_markup_and_speakers_are_apart_from_the_text(text, before, turns, after):
    parsed = cue(text)
    assert (parsed.before, parsed.turns, parsed.after, parsed.fault) == (before, turns, after, "")


@pytest.mark.parametrize(
    "name",
    "HÉLÈNE ÖZGÜR ŁUKASZ ИВАН ΓΙΏΡΓΟΣ HE\u0301LE\u0300NE O'BRIEN JEAN-LUC MANN\u00a02 GROẞVATER GROßVATER".split(" "),
)
@pytest.mark.parametrize("colon", [": ", ":", " : ", "\u00a0: "])
def test_capitals_of_any_alphabet_before_a_colon_are_a_speaker(name, colon):
    for dash in ("", "- ", "—", ">> "):
        (turn,) = cue(f"{dash}{name}{colon}Guten Tag.").turns
        assert (turn.lead.strip(), turn.text) == (f"{dash}{name}{colon}".strip(), "Guten Tag.")


@pytest.mark.parametrize(
    "text", ["Hélène: Ja.", "Um 10:30 Uhr.", "UM 10:30 UHR.", "Er sagt: Ja.", "HTTP://A.DE", "日本: Ja."]
)
def test_other_words_before_a_colon_are_text(text):
    assert cue(text).turns == [("", text, "")]


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ("♪ Alle Vögel ♪\n♪ Sind schon da ♪", [("", "Alle Vögel", " ♪"), ("♪ ", "Sind schon da", "")]),
        ("♪ Alle Vögel\n♪ Sind schon da", [("", "Alle Vögel", ""), ("♪ ", "Sind schon da", "")]),
        ("♫ Alle Vögel\nSind schon da ♫", [("", "Alle Vögel", ""), ("", "Sind schon da", "")]),
        ("<i>♪ Alle ♪</i>\n<i>♪ Vögel ♪</i>", [("", "Alle", " ♪"), ("♪ ", "Vögel", "")]),
        ("Er singt.\n♪ La la ♪", [("", "Er singt.", ""), ("♪ ", "La la", "")]),
        ("TOM:\n♪ La la", [("TOM: ♪ ", "La la", "")]),
    ],
)
def test_lines_of_a_song_are_not_joined(text, turns):
    song = cue(text, 0, 9000)
    assert song.turns == turns
    passage = subtitles.Passage([song])
    (lines,) = subtitles.lay_out(passage, NETFLIX, [turn.text for turn in song.turns])
    assert song.written(lines) in (text.replace("</i>\n<i>", "\n"), text.replace(":\n", ": "))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("♫ Alle Vögel ♫", "♫ sind schon da ♫"),
        ("[Musik]", "und er singt."),
        ("<v Tom>Ich", "<v Ida>nicht."),
        ("Ich ♪", "La la"),
    ],
)
def test_songs_sounds_and_other_voices_share_no_sentence(first, second):
    film = [cue(first, 0, 1000, "vtt"), cue(second, 1000, 2000, "vtt")]
    assert [len(passage.cues) for passage in subtitles.passages(film, 1000, 3)] == [1, 1]
    for start, gap in ((500, 1000), (1000, -1000)):  # shown at the same time; --join_gap -1
        film = [cue("Ich glaube,", 0, 1000), cue("er kommt.", start, 2000)]
        assert [len(passage.cues) for passage in subtitles.passages(film, gap, 3)] == [1, 1]


def test_a_text_that_is_no_subtitle_takes_no_time():
    for text in ("a" + " " * 100_000 + "b", "<" * 100_000, "{\\" * 100_000, "</i>" + "\n" * 100_000 + "x"):
        long = cue(text)
        assert (long.fault, long.turns) == ("more than 2000 characters", [])
        assert long.shown()


def test_a_name_without_a_text_is_not_lost():
    assert cue("Ja.\nMARIA:").fault == cue("MARIA:").fault == "a name without a text"


def test_brackets_and_signs_of_a_song_count():
    song, sound = cue("♪ " + "a" * 38 + " ♪", 0, 9000), cue("[" + "a" * 40 + "]", 0, 9000)
    assert (song.edge, sound.edge) == (4, 2)
    for own, most in ((song, 38), (sound, 40)):
        passage = subtitles.Passage([own])
        assert subtitles.lay_out(passage, NETFLIX, ["b" * most]) == [["b" * most]]
        assert subtitles.lay_out(passage, NETFLIX, ["b" * (most + 1)]) is None


def test_what_cannot_be_translated_is_a_fault_of_its_cue_alone():
    film = [cue("Gut."), cue("Das ist <i>mein</i> Haus."), cue("Tom &amp; Maria"), cue("<i>\x07Ja.</i>")]
    faults = ["markup inside the text", "an entity inside the text", "a control character, U+0007"]
    film += [cue("Lies C:\\Neu."), cue("Eins\\tzwei"), cue("Ich <3 dich"), cue("Eins\n\nzwei")]
    faults += ["a backslash inside the text"] * 2 + ["markup inside the text", "an empty line inside the text"]
    film += [cue("Eins\n2\n00:00:03,000 -> 00:00:04,000\nZwei"), cue("Eins\n00:00:O3,000 --> 00:00:04,000")]
    faults += ["times inside the text"] * 2
    assert [own.fault for own in film] == ["", *faults]
    passages = subtitles.passages(film, 1000, 3)
    assert [passage.texts for passage in passages] == [["Gut."]]
    fitted = fitting.Fitted(["Good."], [["Good."]], ["Good."], -0.1)
    rows = subtitles.rows_of(film, [(passages[0], fitted)], NETFLIX)
    assert [rows[i]["output"] for i in (0, 3)] == [["Good."], ["\x07Ja."]]
    assert subtitles.summary(rows)["flagged"] == [2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_mixed_line_ends_and_a_last_number_stay(tmp_path):
    content = "1\r\n00:00:01,000 --> 00:00:02,000\r\nEins\r\nzwei\r\n\n2\n00:00:03,000 --> 00:00:04,000\nEs sind\n5\n"
    (tmp_path / "a.srt").write_bytes(content.encode())
    read, found = cue_files.read(str(tmp_path / "a.srt"), "utf-8")
    assert [own.text for own in found] == ["Eins\nzwei", "Es sind\n5"]
    written = cue_files.replace(read, found, ["One\ntwo", "There are\n5"])
    assert written == content.replace("Eins", "One").replace("zwei", "two").replace("Es sind", "There are")


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("kind", ["srt", "vtt"])
def test_all_but_the_texts_is_unchanged_to_the_byte(tmp_path, newline, kind):
    content = "\ufeff" + (FILM.read_text(encoding="utf-8") if kind == "srt" else VTT)
    path = tmp_path / f"film.{kind}"
    path.write_bytes(content.replace("\n", newline).encode())
    read, found = cue_files.read(str(path), "utf-8")
    assert cue_files.replace(read, found, [own.text for own in found]).encode() == path.read_bytes()
    marked = cue_files.replace(read, found, [f"@{i}@" for i in range(len(found))])
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
        ("a.txt", b"x", "must be .srt or .vtt"),
        ("a.srt", b"hello", "has no cue"),
        (
            "b.srt",
            b"1\n00:00:01,000 --> 00:00:02,000\nSch\xf6n\n",
            "must be utf-8, but line 3 has the byte 0xF6; pass its",
        ),
        ("c.srt", "1\n00:00:01,000 --> 00:00:02,000\nJa\n".encode("utf-16-le"), "has U\\+0000 and no cue; pass its"),
    ],
)
def test_what_is_no_subtitle_file_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        cue_files.read(str(tmp_path / name), "utf-8")


def test_a_file_that_its_encoding_would_change_is_refused(tmp_path):
    (tmp_path / "a.srt").write_bytes("\ufeff00:00:01,000 --> 00:00:02,000\nJa\n".encode("utf-16-be"))
    with pytest.raises(ValueError, match="does not keep its bytes.*pass the exact --encoding"):
        cue_files.read(str(tmp_path / "a.srt"), "utf-16")
    assert [own.text for own in cue_files.read(str(tmp_path / "a.srt"), "utf-16-be")[1]] == ["Ja"]


# The file, and the texts of its cues as players read them.
WEBVTT = {
    "a note with a timing": (
        "WEBVTT\n\nNOTE\n00:01.000 --> 00:02.000\nAlt.\n\nNOTE 00:01.000 --> 00:02.000\nAlt.\n\n"
        "00:01.000 --> 00:02.000\nJa.\n",
        ["Ja."],
    ),
    "style, region and settings": (
        "WEBVTT Film\nX-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:900000\n\nSTYLE\n::cue(b) { color: red }\n\n"
        "REGION\nid:fred\nwidth:40%\n\nintro\n00:00:01.000 --> 00:00:02.000 region:fred align:left\nGuten Tag.\n",
        ["Guten Tag."],
    ),
    "a line of one space": ("WEBVTT\n\n00:01.000 --> 00:02.000\nEins\n \nzwei\n\n", ["Eins\n \nzwei"]),
    "cues without an empty line": (
        "WEBVTT\n00:01.000 --> 00:02.000\nGuten Tag.\n00:02.000 --> 00:03.000\nJa.\n3\n00:03.000 --> 00:04.000\nNein.",
        ["Guten Tag.", "Ja.", "Nein."],
    ),
    "an arrow that is no timing": (
        "WEBVTT\n\n00:01.000 --> 00:02.000\nJa.\nA --> B\nunsichtbar\n\n00:02.000 --> 00:03.000\nNein.\n",
        ["Ja.", "Nein."],
    ),
    "a name that has an arrow below": ("WEBVTT\n\n-->\n00:01.000 --> 00:02.000\nJa.\n", ["Ja."]),
    "a name that begins as a note": ("WEBVTT\n\nNOTEN\n00:01.000 --> 00:02.000\nJa.\n", ["Ja."]),
    "a text without a timing": ("WEBVTT\n\nEin Titel\nvon uns\n\n00:01.000 --> 00:02.000\nJa.\n", ["Ja."]),
    "inline times": (
        "WEBVTT\n\n00:01.000 --> 00:02.000\nHallo<00:01.500> Welt\n\n00:02.000 --> 00:03.000\nJa.\n",
        ["Hallo<00:01.500> Welt", "Ja."],
    ),
    "hours of three digits, no hours": (
        "WEBVTT\n\n100:00:01.000 --> 100:00:02.000\nJa.\n\n00:59.999-->01:02.000\nNein.\n",
        ["Ja.", "Nein."],
    ),
    "commas": ("WEBVTT\n\n1\n00:00:01,000 --> 00:00:02,000\nJa.\n", ["Ja."]),
    "line separators of Unicode": ("WEBVTT\n\n00:01.000 --> 00:02.000\nEins\u2028\x85zwei\n", ["Eins\u2028\x85zwei"]),
}
SUBRIP = {
    "no empty lines": (
        "1\n00:00:01,000 --> 00:00:02,000\nGuten Tag.\n2\n00:00:02,000 --> 00:00:03,000\nJa.",
        ["Guten Tag.", "Ja."],
    ),
    "no numbers": (
        "00:00:01,000 --> 00:00:02,000\nJa.\n\n00:00:02,000 --> 00:00:03,000\n5\n\n"
        "00:00:03,000 --> 00:00:04,000\nEs sind\n5\n\n00:00:04,000 --> 00:00:05,000\nNein.\n",
        ["Ja.", "5", "Es sind\n5", "Nein."],
    ),
    "coordinates and settings": (
        "1\n00:00:01,000 --> 00:00:02,000 X1:63 X2:223 Y1:43 Y2:58\nJa.\n\n"
        "2\n00:00:02,000 --> 00:00:03,000 line:84%\nNein.\n",
        ["Ja.", "Nein."],
    ),
    "dots, short fractions, no fractions, no hours, spaces": (
        "1\n00:00:01.000 --> 00:00:02.5\nJa.\n\n2\n0:0:3 --> 0:0:4\nNein.\n\n3\n00:04,1-->00:05,2\nJa.\n\n"
        "4\n00: 00: 06, 000 --> 00: 00: 07, 000\nNein.\n",
        ["Ja.", "Nein.", "Ja.", "Nein."],
    ),
    "an arrow in a text": ("1\n00:00:01,000 --> 00:00:02,000\nA --> B\nJa.\n", ["A --> B\nJa."]),
    "escapes": ("1\n00:00:01,000 --> 00:00:02,000\nEins\\Nzwei\\h\n", ["Eins\\Nzwei\\h"]),
    "an empty line behind the timing, and around a number": (
        "1\n\n00:00:01,000 --> 00:00:02,000\n\nJa.\n\n2\n\n00:00:02,000 --> 00:00:03,000\n\nNein.\n\n",
        ["Ja.", "Nein."],
    ),
    "a cue without a text, white space, and a mark of the order of bytes": (
        "\ufeff1 \n 00:00:01,000 --> 00:00:02,000 \n\n \t\n\ufeff2\n00:00:02,000 --> 00:00:03,000\nJa.\n \n",
        ["", "Ja."],
    ),
    "doubled carriage returns": (
        "1\r\r\n00:00:01,000 --> 00:00:02,000\r\r\nEins\r\r\nzwei\r\r\n\r\r\n",
        ["Eins\nzwei"],
    ),
    "text before the first cue": ("Ein Film\n\n1\n00:00:01,000 --> 00:00:02,000\nJa.\n", ["Ja."]),
}
SAMPLES = [("vtt", name, *sample) for name, sample in WEBVTT.items()]
SAMPLES += [("srt", name, *sample) for name, sample in SUBRIP.items()]


WRITTEN = ENGLISH | {
    "Eins\n \nzwei": "One two",
    "Eins\nzwei": "One two",
    "Eins\\Nzwei\\h": "One two\\h",
    "Es sind\n5": "There are 5",
    "A --> B\nJa.": "A --> B Yes.",
}
WORDS = {"Es sind 5": "There are 5", "5": "5", "A --> B Ja.": "A --> B Yes."}


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(("kind", "name", "content", "texts"), SAMPLES, ids=[f"{s[0]}: {s[1]}" for s in SAMPLES])
def test_cues_begin_and_end_where_players_see_them(translate, kind, name, content, texts, newline):
    content = content if "\r" in content else content.replace("\n", newline)
    newline = "\r\r\n" if "\r\r\n" in content else newline
    assert [own.text for own in cue_files.find(content, kind)] == texts
    expected, at = content, 0  # Everything but the texts is there to the byte.
    for text in texts:
        german = text.replace("\n", newline)
        at = expected.index(german, at)
        english = WRITTEN.get(text, german)
        expected = expected[:at] + english + expected[at + len(german) :]
        at += len(english)
    written, report, _ = translate(content, kind, WORDS)
    assert written.decode() == expected
    flagged = [k for k, text in enumerate(texts, 1) if text and text != "5" and text not in WRITTEN]
    assert report["flagged"] == flagged  # What stays in German is in the report.


def test_lines_with_an_arrow_that_are_no_timing_are_in_the_report(translate, capsys, tmp_path):
    note = WEBVTT["a note with a timing"][0]
    assert translate(note, "vtt")[1]["not_cues"] == [4, 7]
    assert "2 lines with --> are no timing of a cue" in capsys.readouterr().out
    assert "that are no timing of a cue: 4, 7." in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert translate(WEBVTT["an arrow that is no timing"][0], "vtt")[1]["not_cues"] == [5]
    assert translate(SUBRIP["an arrow in a text"][0], words=WORDS)[1]["not_cues"] == []


def test_escapes_are_undone_for_the_model_and_written_again(translate):
    srt = "00:00:01,000 --> 00:00:04,000\n{\\an8}Mein\\hBruder will\\NPilot werden.\n"
    written, report, seen = translate(srt)
    assert seen == ["Mein Bruder will Pilot werden."]
    assert written.decode() == srt.replace("Mein\\hBruder will\\NPilot werden.", "My brother wants to be a pilot.")
    assert report["rows"][0]["source"] == ["Mein Bruder will", "Pilot werden."]
    arrow = "WEBVTT\n\n00:01.000 --> 00:02.000\n{}\n"
    (written, *_) = translate(arrow.format("Von A --&gt; B."), "vtt", {"Von A --> B.": "A --> B"})
    assert written.decode() == arrow.format("A --&gt; B")
    vtt = "WEBVTT\n\n00:01.000 --> 00:04.000\n&lrm;Tom&nbsp;&amp; Maria &lt;3 &#x266B;\n"
    written, report, seen = translate(vtt, "vtt", {"Tom\xa0& Maria <3": "Tom & Mary <3"})
    assert seen == ["Tom\xa0& Maria <3"]
    assert written.decode() == vtt.replace("Tom&nbsp;&amp; Maria &lt;3 &#x266B;", "Tom &amp; Mary &lt;3 ♫")


@pytest.mark.parametrize(
    ("german", "english"),
    [
        ("<v Tom>Guten Tag.\n<v Ida>Ja.", "<v Tom>Good day.\n<v Ida>Yes."),
        ("<v Tom>Guten Tag.</v>\n<v.loud Ida K.>- Mein Bruder will\nPilot werden.</v>",
         "<v Tom>Good day.</v>\n<v.loud Ida K.>- My brother wants to be a pilot.</v>"),
        ("<v Tom>Mein Bruder will</v>\n<v Tom>Pilot werden.</v>", "<v Tom>My brother wants to be a pilot.</v>"),
        ("<c.yellow>Mein Bruder will</c>\n<c.yellow>Pilot werden.</c>",
         "<c.yellow>My brother wants to be a pilot.</c>"),
    ],
)  # fmt: skip
def test_two_voices_of_a_cue_are_two_speakers(translate, german, english):
    film = f"WEBVTT\n\n00:01.000 --> 00:09.000\n{german}\n"
    written, report, seen = translate(film, "vtt", options=("--columns", "33"))  # tags do not count
    assert written.decode() == film.replace(german, english) and report["flagged"] == []
    assert not any("<" in sentence for sentence in seen)


def test_a_voice_takes_no_room():
    own = cue("<v Tom>Ja.\n<v Ida K.>- Nein.</v>\n<v Tom>Ja.", 0, 9000, "vtt")
    assert subtitles.request(subtitles.Passage([own]), NETFLIX).limit == 85 - 2  # the dash has a space


@pytest.mark.parametrize("text", ["Ja.\n&lt;v Tom> Nein.", "Ja. <v Ida>Nein.", "<c.red>Ja</c>\n<c.blue>Nein.</c>"])
def test_what_would_become_another_voice_or_colour_is_left(translate, text):
    film = f"WEBVTT\n\n00:01.000 --> 00:09.000\n{text}\n"
    written, report, _ = translate(film, "vtt")
    assert written.decode() == film and report["flagged"] == [1]


def test_a_long_text_breaks_as_the_cue_broke(translate):
    english = "My brother really wants to be a pilot, and so do I."
    for text, expected in (
        ("Mein Bruder will\\NPilot werden.", "My brother really wants\\Nto be a pilot, and so do I."),
        ("Mein Bruder will\nPilot werden.", "My brother really wants\nto be a pilot, and so do I."),
    ):
        written, _, _ = translate(
            f"00:00:01,000 --> 00:00:09,000\n{text}\n", words={"Mein Bruder will Pilot werden.": english}
        )
        assert written.decode() == f"00:00:01,000 --> 00:00:09,000\n{expected}\n"


@pytest.mark.parametrize(
    ("kind", "english", "why"),
    [
        ("vtt", "\x07", "its text would have a control character, U+0007"),
        ("srt", "a <b> tag", "its text would have markup inside the text"),
        ("srt", "\x07", "its text would have a control character, U+0007"),
        ("srt", "7", "its text would be read as ''"),
    ],
)
def test_a_text_that_the_file_cannot_hold_leaves_its_cue_alone(translate, kind, english, why):
    timings = [f"00:00:0{i}.000 --> 00:00:0{i + 1}.000" for i in range(1, 4)]
    film = "".join(f"{timing}\n{text}\n" for timing, text in zip(timings, ["Guten Tag.", "So.", "Ja."], strict=True))
    film = ("WEBVTT\n\n" if kind == "vtt" else "") + film
    written, report, _ = translate(film, kind, {"So.": english})
    assert written.decode() == film.replace("Guten Tag.", "Good day.").replace("Ja.", "Yes.")
    row = report["rows"][1]
    assert (report["flagged"], row["output"], row["fault"]) == ([2], ["So."], f"not written, because {why}")


def test_a_text_that_the_encoding_cannot_hold_leaves_its_cue_alone(translate):
    film = "00:00:01,000 --> 00:00:02,000\nSchön.\n\n00:00:02,000 --> 00:00:03,000\nJa.\n"
    options = ("--encoding", "latin-1")
    written, report, _ = translate(film, words={"Schön.": "It’s fine."}, options=options, encoding="latin-1")
    assert written == film.replace("Ja.", "Yes.").encode("latin-1")
    assert report["rows"][0]["fault"] == "not written, because the encoding latin-1 lacks a character of it"


@pytest.mark.parametrize(
    ("german", "english", "kept"),
    [
        ("Berlin --> München.", "Berlin -Qwert.", False),
        ("Berlin -> München.", "Berlin -> Munich.", True),
        ("Auf www.film.de.", "On www.film.com.", False),
        ("Auf www.film.de!", "See www.film.de.", True),
        ("Schreib an a@film.de.", "Write to a film.", False),
        ("Das ist #toll.", "That's great.", False),
        ("Ein 20 % höherer Preis.", "A price 20 percent higher.", True),
    ],
)
def test_a_text_that_loses_a_sign_is_not_written(translate, german, english, kept):
    film = f"1\n00:00:01,000 --> 00:00:04,000\n{german}\n"
    written, report, _ = translate(film, words={german: english})
    assert written.decode() == (film.replace(german, english) if kept else film)
    assert report["flagged"] == ([] if kept else [1])
    assert kept or report["rows"][0]["fault"].startswith("the output would have [")


def test_cues_of_one_sentence_stay_together(translate):
    film = "1\n00:00:01,000 --> 00:00:03,000\nIch weiß,\n2\n00:00:03,000 --> 00:00:05,000\nwas du willst.\n3\n"
    film += "00:00:05,000 --> 00:00:06,000\nJa.\n"
    words = {"Ich weiß, was du willst.": "I know, what do 3 want 7:00:00 to 8:00:00"}
    written, report, _ = translate(film, words=words, options=("--join_gap", "1"))
    assert written.decode() == film.replace("Ja.", "Yes.")
    assert sorted(row["fault"][:11] for row in report["rows"]) == ["", "not written", "stays with "]


def test_a_difference_names_the_cue_the_line_and_the_difference():
    film = "1\n00:00:01,000 --> 00:00:02,000\nJa.\n\n2\n00:00:02,000 --> 00:00:03,000\nNein.\n"
    found = cue_files.find(film, "srt")
    assert cue_files.difference(film, found, ["Yes.", "No."]) is None
    lost = cue_files.difference(film, found, ["Yes.", "No.\n\n3\n00:00:04,000 --> 00:00:05,000\nOh."])
    assert lost == (1, "its text would be read as 'No.'")
    damaged = film.replace("00:00:02,000 --> 00:00:03,000", "00:00:02,000 --> 00:00:03,00")
    found[1].end = 2999
    assert cue_files.difference(damaged, found, ["Ja.", "Nein."]) == (1, "its times would be 2000 and 3000 ms")
    rows = [{"lines": None, "cues": [1]}, {"lines": None, "cues": [2]}]
    with pytest.raises(ValueError, match="cue 2, line 6: its times would be 2000 and 3000 ms; nothing was written"):
        subtitles.result(film, found, rows, "utf-8")


LINES = st.lists(
    st.one_of(
        st.sampled_from(
            ["", " ", "1", "2", "NOTE", "NOTE x", "STYLE", "A --> B", "-->", "♪ La ♪", "<i>Ja.</i>", "Ja.", "\\N"]
        ),
        st.sampled_from(
            ["00:00:01,000 --> 00:00:02,000", "00:02.5 --> 00:03.000 line:0", "&amp;", "\u2028", "\x85", "\x0c"]
        ),
        st.text(max_size=5),
    ),
    max_size=12,
)


@given(LINES, st.sampled_from(["\n", "\r\n", "\r", "\r\r\n"]), st.sampled_from(["srt", "vtt"]), st.booleans())
@settings(max_examples=500, deadline=None)
def test_any_file_comes_back_to_the_byte_with_its_new_texts(lines, newline, kind, mark):
    content = ("\ufeff" if mark else "") + newline.join(["WEBVTT", "", *lines] if kind == "vtt" else lines)
    found = cue_files.find(content, kind)
    own = [each.text for each in found]
    assert cue_files.replace(content, found, own) == content
    if not found:
        return
    assert cue_files.difference(content, found, own) is None
    texts = ["Quiet." if each.turns and not each.fault else each.text for each in found]
    assert cue_files.difference(content, found, texts) is None
    written = cue_files.replace(content, found, texts)
    # An independent count: the same characters around the texts.
    assert len(written) - sum("Quiet." == text for text in texts) * 6 == len(content) - sum(
        each.span[1] - each.span[0] for each, text in zip(found, texts, strict=True) if text == "Quiet."
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("en.srt", [], "en.srt exists; name another output, or replace it with --overwrite"),
        ("de.srt", ["--overwrite"], "would replace the input de.srt"),
        ("report.md", [], "report.md is no report of this recipe; name another report_dir"),
    ],
)
def test_files_of_somebody_are_not_overwritten(name, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "de.srt").write_text("00:00:01,000 --> 00:00:02,000\nJa.\n")
    (tmp_path / "link.srt").symlink_to("de.srt")
    (tmp_path / name).touch()
    before = (tmp_path / name).read_text()
    output = "link.srt" if name == "de.srt" else "en.srt"
    words = ["--input_file", "de.srt", "--output_file", output, "--report_dir", ".", "--plain_model", "none"]
    with pytest.raises(ValueError, match=message):
        subtitles.main([*words, *options])
    assert (tmp_path / name).read_text() == before


def test_the_file_is_written_aside_and_renamed(translate, tmp_path, monkeypatch):
    film = "00:00:01,000 --> 00:00:02,000\nJa.\n"
    (tmp_path / "en.srt").write_text("from yesterday")
    seen = []
    replace = type(tmp_path).replace
    monkeypatch.setattr(type(tmp_path), "replace", lambda self, to: (seen.append(self.read_text()), replace(self, to)))
    assert translate(film)[0].decode() == film.replace("Ja.", "Yes.")
    assert seen == [film.replace("Ja.", "Yes.")]  # it was whole before it had its name

    def full(self, content):
        self.touch()
        raise OSError("No space left on device")

    (tmp_path / "en.srt.part").write_text("of somebody")
    monkeypatch.setattr(type(tmp_path), "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        subtitles.write(str(tmp_path / "en.srt"), b"x")
    assert (tmp_path / "en.srt").read_text() == film.replace("Ja.", "Yes.")
    assert [path.read_text() for path in tmp_path.glob("*.part")] == ["of somebody"]


@pytest.mark.parametrize(
    ("name", "language", "speed", "width"),
    [
        ("netflix", "en", 20, 42),
        ("netflix_children", "en", 17, 42),
        ("netflix", "en_GB", 20, 42),
        ("netflix", "de", 17, 42),
        ("netflix_children", "fr", 13, 42),
        ("netflix", "ar", 20, 42),
        ("netflix_children", "hi", 18, 42),
        ("netflix", "ja", 8, 26),  # 4 and 13 characters of full width
        ("netflix", "ko-KR", 24, 32),
        ("netflix_children", "zh-Hans", 14, 32),
        ("ted", "xx", 21, 42),
    ],
)
def test_presets_are_those_of_the_language_of_the_output(name, language, speed, width):
    files = ["--input_file", "a.srt", "--output_file", "b.srt", "--report_dir", "c"]
    args = subtitles.options([*files, "--preset", name, "--language", language])
    assert (args.speed, args.columns, args.lines) == (speed, width, 2)
    if (name, language) == ("netflix", "en"):
        assert PRESETS["netflix"] == ("width", width)  # `length="netflix"` is a line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--language", "xx"], "--language must be one of ar, bg, .* got 'xx'"),
        (["--encoding", "utf-9"], "unknown encoding: utf-9"),
        (["--speed", "nan"], "--speed must be a number above 0, got nan"),
        (["--speed", "inf"], "--speed must be a number above 0, got inf"),
    ],
)
def test_options_that_say_nothing_are_refused(options, message, capsys):
    with pytest.raises(SystemExit):
        subtitles.options(["--input_file", "a.srt", "--output_file", "b.srt", "--report_dir", "c", *options])
    assert re.search(message, capsys.readouterr().err)


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
    for mark in ".!?…。？؟।":
        film = [cue(f"Ja{mark}", 0, 1000), cue("Nein", 1000, 2000)]
        assert len(subtitles.passages(film, 1000, 3)) == 2


def test_a_shared_text_is_divided_within_both_budgets():
    first, second = cue("Glaubst du, dass er dieses Buch", 0, 1500), cue("gelesen hat?", 1500, 2500)
    passage = subtitles.Passage([first, second])
    lines = subtitles.lay_out(passage, NETFLIX, ["Do you think he has read this book?"])
    assert lines == [["Do you think he has read"], ["this book?"]]
    long = "Do you really think that he has already read this book?"
    assert subtitles.lay_out(passage, NETFLIX, [long]) is None
    whole = subtitles.lay_out(passage, NETFLIX, [long], loose=True)
    assert whole is not None and " ".join(" ".join(part) for part in whole) == long


def test_long_sentences_and_many_lines_take_no_time():
    words = "the train is late and nobody knows,"
    assert cues.break_lines(f"{words} " * 9, 12, 24) is None  # an exhaustive search would take years
    lines = cues.break_lines(f"{words} " * 9, 42, 9)
    assert lines is not None and " ".join(lines) == " ".join([words] * 9)
    passage = subtitles.Passage([cue(words, 2500 * i, 2500 * (i + 1)) for i in range(8)])
    parts = subtitles.lay_out(passage, NETFLIX, [" ".join([words] * 8)])
    assert parts == [[words]] * 8
    assert subtitles.lay_out(passage, NETFLIX, [" ".join([words] * 10)]) is None


@pytest.mark.slow
def test_a_file_is_translated_within_its_limits(tmp_path, capsys):
    lines = FILM.read_text(encoding="utf-8").split("\n\n")
    # no English sentence says the last in a quarter of a second
    film = "\n\n".join([lines[i] for i in (4, 8, 9, 21, 32)])
    film += "\n\n99\n00:02:00,000 --> 00:02:00,250\nIch habe meinen Schlüssel im Büro vergessen.\n"
    source, target = tmp_path / "de.srt", tmp_path / "en.srt"
    source.write_text(film, encoding="utf-8")
    options = ["--model", str(ROOT / "models" / "translate_to_english"), "--report_dir", str(tmp_path)]
    options += ["--preset", "netflix_children"]
    subtitles.main(["--input_file", str(source), "--output_file", str(target), *options])
    before, after = (path.read_text(encoding="utf-8").split("\n\n") for path in (source, target))
    assert [part.split("\n")[:2] for part in before] == [part.split("\n")[:2] for part in after]  # number and times
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["over"]["output"] == 1 and report["flagged"] == [6]
    assert report["over"]["natural"] > 1 and report["shortened"] >= 1
    texts = ["\n".join(part.rstrip("\n").split("\n")[2:]) for part in after]
    assert (texts[0], texts[4]) == ("- Where's Tom?\n- He's already in the office.", "")
    assert texts[3].startswith("Didn't you take an umbrella") and "with you" not in texts[3]  # which is too long
    assert texts[5].startswith("I ") and texts[5].endswith("office.")  # whole
    assert "cannot fit" in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert (tmp_path / "report.png").stat().st_size > 1000
    assert "6 cues over a limit" in capsys.readouterr().out
