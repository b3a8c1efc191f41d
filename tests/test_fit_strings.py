"""Interface strings: placeholders come back whole, and nothing broken or doubtful is written."""

import contextlib
import doctest
import json
import re
from functools import partial
from pathlib import Path

import android_files
import catalogues
import cues
import entries
import files
import fitting
import json_files
import placeholders
import polib
import pytest
import strings
import subtitles
import xcstrings_files
import xml_files
from hypothesis import given, settings
from hypothesis import strategies as st
from placeholders import Piece, Unprotectable
from recipe_runs import ROOT
from test_fit_catalogues import PO, XML, opened


MODELS = ROOT / "models"


def texts_of(parts: list) -> list[str]:
    return [text for part in parts if isinstance(part, Piece) for text in part.texts]


@pytest.mark.parametrize(
    "module",
    [
        placeholders,
        catalogues,
        android_files,
        json_files,
        xcstrings_files,
        xml_files,
        files,
        entries,
        strings,
        fitting,
        cues,
        subtitles,
    ],
)
def test_examples_of_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


HELD = ["%s", "%d", "%@", "%1$d", "%(name)s", "{name}", "{0}", "<b>%s</b>"]


@given(
    st.lists(st.sampled_from(["der", "rote", "Hund", "sieht", "müde", "aus", *HELD]), min_size=1, max_size=7),
    st.sampled_from(["", ".", "!", "…", ":", ": %s", "\n", ".\n"]),
    st.sampled_from(["", "%s: ", "<br/>", "\n", "- ", "("]),
    st.integers(0, 2),
)
@settings(max_examples=150, deadline=None)
def test_what_is_taken_apart_is_put_together_again(words, after, before, variant):
    source = before + " ".join(words) + after
    try:
        parts, mark = placeholders.protect(source, variant)
    except Unprotectable:
        # names and numbers ran out, or a stand-in is in the text; or a tag that stands alone is beside a pair
        assert sum(word in HELD for word in words) > 1 or (before == "<br/>" and "<b>%s</b>" in words)
        return
    outputs = [text.replace("Maria", "Mary") for text in texts_of(parts)]  # a copy, the names in English
    assert mark == "" and placeholders.restore(parts, outputs, mark, source) == source
    assert not any(character in text for text in outputs for character in "%{}<>")
    for name in [name for part in parts if isinstance(part, Piece) for name in part.inside][:1]:
        for wrong in ("er", f"{name} und {name}"):  # each loss and each copy is noticed
            changed = [text.replace(name, wrong) for text in outputs]
            assert placeholders.restore(parts, changed, mark, source) is None


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("%s: Fehler beim Lesen: %s\n", ["Fehler beim Lesen"]),
        ("Fehler in »%s«.\n", ["Fehler in Tom."]),
        ("Noch %d Züge.", ["Noch 50 Züge."]),
        ("Das Passwort für <b>%1$s</b> ist falsch.", ["Das Passwort für Tom ist falsch."]),
        ('Noch <ph id="1">%d</ph> Züge.', ["Noch 50 Züge."]),
        ("Fehler in %@ und „%1$@“.", ["Fehler in Tom und Maria."]),
        ("&Datei öffnen…", ["Datei öffnen…"]),
        ("100 % der Bilder", ["100 % der Bilder"]),
        ("Ja. Nein.\nUnd?", ["Ja.", "Nein.", "Und?"]),
        ("Öffnen &amp; Schließen", None),
        ("{n, plural, one {Bild} other {Bilder}}", None),
        ("Das ist <b>sehr wichtig</b> für uns.", None),
        ("Eine Zeile,\nund noch eine", None),
        ("Tom schreibt an %s und %s und %s", None),
    ],
)
def test_the_model_reads_text_alone_and_what_cannot_be_protected_is_refused(source, shown):
    with pytest.raises(Unprotectable) if shown is None else contextlib.nullcontext():
        assert texts_of(placeholders.protect(source)[0]) == shown


@pytest.mark.parametrize(
    ("source", "output", "written"),
    [
        ("In %s wohnt %s.", "Mary lives in Tom.", None),  # a program would swap the two values
        ("Für %s gibt es %d Züge.", "There are 50 trains for Tom.", None),
        ("In {} wohnt {:>5}.", "Mary lives in Tom.", None),
        (
            "Von %s bis 1500 sind es %d Züge.",
            "From Tom to 1500 there are 50 trains.",
            "From %s to 1500 there are %d trains.",
        ),
        ("In %2$s wohnt %1$s.", "Mary lives in Tom.", "%1$s lives in %2$s."),
        ("In {0} wohnt %s.", "Mary lives in Tom.", "%s lives in {0}."),
        ("In %(a)s wohnt %(b)s.", "Mary lives in Tom.", "%(b)s lives in %(a)s."),
    ],
)
def test_arguments_that_a_program_fills_in_turn_keep_their_order(source, output, written):
    parts, mark = placeholders.protect(source)
    assert placeholders.restore(parts, [output], mark, source) == written


def test_an_accelerator_keeps_its_letter_or_takes_the_first():
    parts, mark = placeholders.protect("&Datei")
    assert placeholders.restore(parts, ["Add"], mark, "&Datei") == "A&dd"
    assert placeholders.restore(parts, ["File"], mark, "&Datei") == "&File"
    marks = {"&Datei": "&", "_Datei": "_", "Da_tei": "_", "Datei": ""}
    assert {text: placeholders.protect(text)[1] for text in marks} == marks
    for text in ("Die Datei user_name ist neu.", "_Datei"):  # not of a .po
        with pytest.raises(Unprotectable, match="a name with an underscore"):
            placeholders.protect(text, marked=False)
    assert placeholders.protect("Sag ___!", marked=False)[1] == ""
    assert strings.size("Gut.\r\nEs regnet.") == len("Es regnet.")


def test_translations_so_far_come_from_a_file_of_the_same_kind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in (("a.json", "{}"), ("b.xml", XML)):
        opened(tmp_path, name, content)
    files = ["--input_file", "a.json", "--existing_file", "b.xml", "--output_file", "out"]
    with pytest.raises(ValueError, match="existing_file is for formats with one language, of the kind of input_file"):
        strings.main([*files, "--report_dir", ".", "--plain_model", str(MODELS / "gone")])


def test_limits_are_read_from_what_spreadsheets_write(tmp_path):
    (tmp_path / "a.csv").write_text("\ufeffkey;max\na;12\nb;\n", encoding="utf-8")
    (tmp_path / "a.JSON").write_text('{"a": 12}')
    assert (
        catalogues.read_limits(str(tmp_path / "a.csv"))
        == catalogues.read_limits(str(tmp_path / "a.JSON"))
        == {"a": 12}
    )
    (tmp_path / "b.csv").write_text("key,max\na,twelve\n")
    with pytest.raises(ValueError, match="of at least 1, got 'twelve' for 'a'"):
        catalogues.read_limits(str(tmp_path / "b.csv"))


def test_a_finished_translation_is_replaced_only_where_that_is_asked_for():
    def todo(most: dict[str, int], factor: float | None, replace: bool) -> dict[str, tuple[int | None, bool]]:
        rows = [entries.Entry(*row) for row in (("a", "Ja", ""), ("b", "Nein", "No"), ("c", "Gut", "Alright"))]
        rows += [entries.Entry("d", "Gut", "Alright", fuzzy=True), entries.Entry("e", "Gut", "Al&right", marked=True)]
        limited = [(row, strings.limits_of(row, most, "character", factor)) for row in rows]
        found = strings.to_do(limited, replace)
        return {row.key: (limits.get("character"), bool(row.fault)) for row, limits in found}

    most = {"c": 5, "d": 5, "e": 7}  # an accelerator's mark has no width
    assert todo(most, None, False) == {"a": (None, False), "c": (5, True), "d": (5, False)}
    assert todo(most, None, True) == {"a": (None, False), "c": (5, False), "d": (5, False)}
    assert todo({}, 2.0, False) == {"a": (4, False), "c": (6, True), "d": (6, False), "e": (6, True)}


LIMITS = {
    "max 20": 20, "Max. length: 10": 10, "maximum width=8": 8, "MAX_LENGTH:30": 30, "maxLength: 40": 40,
    "Character limit: 30": 30, "at most 12 characters": 12, "max length is 12": 12, "[CHAR LIMIT=30]": 30,
    "max. 1,000": 1000, "max 1'000": 1000, "max. 1.000 Zeichen": 1000, "max 1 000 characters": 1000,
    "30-character limit": 30, "30 characters max": 30, "30 chars or less": 30, "fewer than 20 characters": 19,
    "no more than 20 characters": 20, "must not exceed 40 characters": 40, "Limit: 30 characters": 30,
    "höchstens 12 Zeichen": 12, "Maximale Länge: 12": 12, "longueur maximale : 30": 30, "30 caractères maximum": 30,
    "max number of characters: 25": 25, "max 20 (characters)": 20, "(max 15)": 15, "max 15 - a button": 15,
    "max 20\na button": 20, "A title. max 20\nShown in the bar": 20, "max 40 characters, in a list max 12": 12,
    "max 12\ncharacters": 12, "max line length 40": 40, "The maximum is 20.": 20,
    # other units, and numbers that limit something else
    "Shown above files of max 25 MB.": None, "files of max 25\nMB": None, "max 2 lines": None, "max 2\nlines": None,
    "max-width: 200px": None, "max 200 px": None, "max 20 (px)": None, "max 12.5": None, "max 1,5": None,
    "max 25%": None, "max 3x": None, "max 10-12 characters": None, "max 1, 2 or 3 files": None, "max 12 words": None,
    "max 500 bytes": None, "max number of files: 25": None, "max retries 5": None, "up to 20 files": None,
    "takes no longer than 5 minutes": None, "at least 12 characters": None, "Rate limit: 30": None, "max 0": None,
    "[CHAR LIMIT=NONE]": None, "climax 12": None, "Shown in 12 places": None,
}  # fmt: skip


@pytest.mark.parametrize("comment", LIMITS)
def test_a_number_of_a_comment_is_a_limit_with_a_unit_of_text_or_with_nothing_behind_it(comment):
    assert entries.Entry("a", "b", comment=comment).limit == LIMITS[comment]


ARGUMENTS = [
    "% d", "% 5d", "%'d", "%K", "@name", "@{name}", "!name", ":name", "#name", "$name", "$1", "$t(key)", "[[name]]",
    "[name]", "__name__", "~name~", "*name*", "`name`", "&name", "^name", "a||b", "a|b", "C:\\neu", "\\1",
]  # fmt: skip


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_what_may_be_an_argument_of_an_unknown_syntax_is_not_translated(argument):
    for text in (f"{argument} Bilder gefunden", f"Das ist {argument}, sagt er.", f"Das ist {argument}"):
        with pytest.raises(Unprotectable, match="signs that may be an unknown placeholder|a name with an underscore"):
            placeholders.protect(text, marked=False)


SIGNS = ["der", "Hund", "100 %", "A/B", "5 €", "(alt)", "+", "→", "3,5", "#", "%s"]


@given(st.lists(st.sampled_from(SIGNS), max_size=5, unique=True))
@settings(max_examples=100, deadline=None)
def test_an_output_without_a_sign_or_a_number_of_the_source_is_noticed(words):
    source = " ".join(["Das", *words, "ist"])
    parts, mark = placeholders.protect(source, 0, marked=False)
    whole = texts_of(parts)[0]
    assert placeholders.restore(parts, [whole], mark, source) == source
    for match in re.finditer(r"[%/€()+→#]|\d+", whole):
        changed = whole[: match.start()] + whole[match.end() :]
        assert placeholders.restore(parts, [changed], mark, source) is None


@pytest.mark.parametrize("text", ["dd.MM.yyyy", "YYYY-MM-DD", "logo.png", "img/logo", "{name}.txt", "de-AT"])
def test_the_name_of_a_file_and_the_format_of_a_date_are_no_texts(text):
    with pytest.raises(Unprotectable, match="a name or a format"):
        placeholders.protect(text, marked=False)


class Scored:
    """Translations, scores and agreements that are written down."""

    def __init__(self, texts: dict[str, tuple[str, float, float]]):
        self.texts = texts

    def fit(self, requests):
        found = []
        for request in requests:
            text, score, _ = self.texts[request.sentences[0]]
            found.append(fitting.Fitted([text], request.layout([text]), [text], score))
        return found

    def agreement(self, requests):
        return [self.texts[request.sentences[0]][2] for request in requests]


def test_a_doubtful_text_is_a_suggestion_of_the_report_alone():
    texts = {
        "Bitte warten.": ("Please wait.", -0.1, 40.0),  # as sure as that needs no second path
        "Datei löschen?": ("File this file?", -0.31, 55.0),
        "Kein Zugang.": ("Don't go.", -0.49, 100.0),
        "Das Spiel ist vorbei.": ("The game is over.", -0.15, 100.0),
        "Guten Tag!": ("Go away!", -1.0, 100.0),
    }
    todo = [(entries.Entry(str(i), source), {}) for i, source in enumerate(texts)]
    todo.append((entries.Entry("bell", "Hallo\x07"), {"width": 20}))
    rows = strings.translate(todo, Scored(texts), -0.5)
    assert [row["output"] for row in rows] == ["Please wait.", None, None, "The game is over.", None, None]
    assert [row["suggestion"] for row in rows] == [None, "File this file?", "Don't go.", None, "Go away!", None]
    other, below = "doubtful: another path gives another text", "doubtful: far below the other texts"
    faults = ["", other, below, "", "improbable: -1.00", "a control character, U+0007"]  # the median is -0.23
    assert [row["fault"] for row in rows] == faults
    assert f"| {other} | Datei löschen? | File this file? |" in "\n".join(strings.markdown({}, rows))


@pytest.mark.parametrize(
    ("recipe", "name", "content"),
    [(strings, "c.po", b'msgid "a'), (subtitles, "b.srt", b"\xff\xfe\x00"), (subtitles, "gone.srt", None)],
)
def test_a_missing_or_wrong_file_ends_a_recipe_with_one_line(recipe, name, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fitting, "quiet", lambda: None)
    if content is not None:
        Path(name).write_bytes(content)
    words = ["--input_file", name, "--output_file", f"out-{name}", "--report_dir", "report", "--plain_model", "none"]
    with pytest.raises(SystemExit) as end:
        fitting.run(partial(recipe.main, words), "recipe.py")
    assert end.value.code.startswith("recipe.py: ") and "\n" not in end.value.code
    assert content is not None or f"input_file must be a file that exists, got '{name}'" in end.value.code


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max_factor", "inf"], "max_factor must be a number above 0, got inf"),
        (["--max_factor", "nan"], "max_factor must be a number above 0, got nan"),
        (["--max_factor", "0"], "max_factor must be a number above 0, got 0"),
        (["--limits_file", "list.json"], "limits_file must hold a JSON object, key to limit, got '\\["),
        (["--output_file", "en.po"], "output_file must be a .json file as input_file is, got 'en.po'"),
        (["--output_file", "en"], "output_file must be a .json file as input_file is, got 'en'"),
        (["--report_dir", "list.json"], "File exists: 'list.json'"),
    ],
)
def test_options_that_cannot_be_kept_are_refused_before_models_are_loaded(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("de.json").write_text('{"a": "Ja"}', encoding="utf-8")
    Path("list.json").write_text('[{"a": 3}]', encoding="utf-8")
    files = ["--input_file", "de.json", "--output_file", "new/en.json", "--report_dir", "report"]
    with pytest.raises((ValueError, OSError), match=message):
        strings.main([*files, "--plain_model", "none", *options])


def test_folders_of_the_output_are_made_before_models_are_loaded(tmp_path, monkeypatch):
    def stop(*args, **options):
        raise KeyError([Path(name).is_dir() for name in ("new", "report")])

    monkeypatch.setattr(fitting, "Fitter", stop)
    monkeypatch.chdir(tmp_path)
    Path("de.json").write_text('{"a": "Ja"}', encoding="utf-8")
    with pytest.raises(KeyError, match="True, True"):
        strings.main(["--input_file", "de.json", "--output_file", "new/en.json", "--report_dir", "report"])


@pytest.mark.slow
def test_a_file_is_filled_within_its_limits(tmp_path, capsys):
    (tmp_path / "en.po").write_text(PO, encoding="utf-8")
    options = ["--model", str(MODELS / "translate_to_english"), "--report_dir", str(tmp_path)]
    strings.main(["--input_file", str(tmp_path / "en.po"), "--output_file", str(tmp_path / "out.po"), *options])
    filled = {entry.msgid: entry for entry in polib.pofile(str(tmp_path / "out.po"))}
    game = filled["Das Spiel ist vorbei."]
    assert (game.msgstr, game.flags) == ("The game is over.", ["fuzzy"])
    assert filled["Es ist noch %d Zug übrig."].msgstr_plural[1] == "There are still %d trains left."
    assert (filled["Bitte warten Sie."].msgstr, filled["Bitte warten Sie."].flags) == ("Please wait.", [])
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (report["entries"], report["missing"], report["too_long"], report["over_limit"]) == (5, 3, 1, 0)
    assert report["left"] + report["translated"] == 4
    longer = filled["Bitte warten Sie noch."]
    assert longer.msgstr == "Please wait a little longer." or len(longer.msgstr) <= 10  # left, or within
    assert "entries 5" in capsys.readouterr().out
