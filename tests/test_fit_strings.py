"""Interface strings: placeholders come back whole, files keep their structure, and nothing broken is written."""

import doctest
import json
import sys
from pathlib import Path

import polib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree


ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "models"
sys.path.insert(0, str(ROOT / "recipes" / "fit"))

import catalogues  # noqa: E402
import placeholders  # noqa: E402
import strings  # noqa: E402
from placeholders import Piece, Unprotectable  # noqa: E402


sys.path.pop(0)

REAL = Path("/usr/share/locale/de/LC_MESSAGES/dpkg.mo")  # German messages of a Debian package
PO = r"""# a comment of the translators
msgid ""
msgstr ""
"Language: en\n"
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

#. max 20
#: game.c:12
msgid "Das Spiel ist vorbei."
msgstr ""

#, c-format
msgid "Es ist noch %d Zug übrig."
msgid_plural "Es sind noch %d Züge übrig."
msgstr[0] ""
msgstr[1] ""

msgid "Bitte warten Sie."
msgstr "Please wait."

#. Max. length: 10
msgid "Bitte warten Sie noch."
msgstr "Please wait a little longer."

#~ msgid "Alt"
#~ msgstr "Old"
"""
XML = """<?xml version="1.0" encoding="utf-8"?>
<!-- interface -->
<resources xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2">
    <!-- max 12 -->
    <string name="wait">Warten Sie\\'s ab</string>
    <string name="app" translatable="false">Würfel</string>
    <string name="bold"><b>Wichtig</b></string>

    <plurals name="trains">
        <item quantity="one">%d Zug</item>
        <item quantity="other">%d Züge</item>
    </plurals>
    <string name="raw"><![CDATA[<p>Hallo</p>]]></string>
</resources>
"""


def outputs_of(parts: list, change=lambda text: text) -> list[str]:
    """What a model writes that copies each sentence, the names in English."""
    texts = [text for part in parts if isinstance(part, Piece) for text in part.texts]
    return [change(text.replace("Maria", "Mary")) for text in texts]


@pytest.mark.parametrize("module", [placeholders, catalogues, strings])
def test_examples_of_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


HELD = ["%s", "%d", "%1$d", "%(name)s", "{name}", "{0}", "<b>%s</b>"]


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
        assert sum(word in HELD for word in words) > 1  # names and numbers ran out, or a stand-in is in the text
        return
    assert mark == ""
    assert placeholders.restore(parts, outputs_of(parts), mark, source) == source
    inside = [name for part in parts if isinstance(part, Piece) for name in part.inside]
    assert not any(character in text for text in outputs_of(parts) for character in "%{}<>")
    if inside:  # each loss is noticed
        lost = outputs_of(parts, lambda text: text.replace(inside[0], "er"))
        assert placeholders.restore(parts, lost, mark, source) is None
        doubled = outputs_of(parts, lambda text: text.replace(inside[0], f"{inside[0]} und {inside[0]}"))
        assert placeholders.restore(parts, doubled, mark, source) is None


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("%s hat dir geschrieben.", ["Tom hat dir geschrieben."]),
        ("%s: Fehler beim Lesen: %s\n", ["Fehler beim Lesen"]),
        ("Fehler in »%s«.\n", ["Fehler in Tom."]),
        ("Noch %d Züge.", ["Noch 50 Züge."]),
        ("Das Passwort für <b>%1$s</b> ist falsch.", ["Das Passwort für Tom ist falsch."]),
        ("<b>Wichtig</b>", ["Wichtig"]),
        ("&Datei öffnen…", ["Datei öffnen…"]),
        ("100 % der Bilder", ["100 % der Bilder"]),
        ("Ja. Nein.\\nUnd?", ["Ja.", "Nein.", "Und?"]),
    ],
)
def test_the_model_reads_text_alone(source, shown):
    parts, _ = placeholders.protect(source)
    assert [text for part in parts if isinstance(part, Piece) for text in part.texts] == shown


@pytest.mark.parametrize(
    "source",
    [
        "Öffnen &amp; Schließen",
        "{n, plural, one {Bild} other {Bilder}}",
        "Das ist <b>sehr wichtig</b> für uns.",
        "Eine Zeile,\nund noch eine",
        "Von %s, %s, %s und %s gesendet",
        "Tom schreibt an %s und %s und %s",
    ],
)
def test_what_cannot_be_protected_is_refused(source):
    with pytest.raises(Unprotectable):
        placeholders.protect(source)


def test_an_accelerator_keeps_its_letter_or_takes_the_first():
    parts, mark = placeholders.protect("&Datei")
    assert mark == "&"
    assert placeholders.restore(parts, ["Add"], mark, "&Datei") == "A&dd"
    assert placeholders.restore(parts, ["File"], mark, "&Datei") == "&File"
    assert placeholders.protect("_Datei")[1] == "_"
    assert placeholders.protect("&quot;Datei&quot;"[6:11])[1] == ""


@pytest.mark.parametrize(
    ("comment", "limit"),
    [("max 12", 12), ("Max. length: 24", 24), ("maximum width=8", 8), ("MAX_LENGTH:30", 30), ("maximal 9", 9)]
    + [("climax 12", None), ("Shown in 12 places", None), ("", None)],
)
def test_a_limit_is_the_number_after_max(comment, limit):
    assert catalogues.Entry("a", "b", comment=comment).limit == limit


def test_a_po_file_keeps_all_but_what_is_filled(tmp_path):
    (tmp_path / "en.po").write_text(PO, encoding="utf-8")
    catalogue = catalogues.read(str(tmp_path / "en.po"))
    rows = catalogue.entries()
    assert [row.source for row in rows][1:3] == ["Es ist noch %d Zug übrig.", "Es sind noch %d Züge übrig."]
    assert [row.limit for row in rows] == [20, None, None, None, 10]
    catalogue.set(rows[0], "Game over.")
    catalogue.save(str(tmp_path / "out.po"))
    before, after = polib.pofile(PO), polib.pofile(str(tmp_path / "out.po"))
    assert before.metadata == after.metadata and before.header == after.header and len(before) == len(after)
    assert (after[0].msgstr, after[0].flags) == ("Game over.", ["fuzzy"])
    assert (after[0].comment, after[0].occurrences) == (before[0].comment, before[0].occurrences)
    assert [str(entry) for entry in before][1:] == [str(entry) for entry in after][1:]


def test_sources_come_from_another_language(tmp_path):
    (tmp_path / "en_GB.po").write_text('msgid "The game is over."\nmsgstr ""\n\nmsgid "New"\nmsgstr ""\n')
    (tmp_path / "de.po").write_text('msgid "The game is over."\nmsgstr "Das Spiel ist vorbei."\n')
    rows = catalogues.read(str(tmp_path / "en_GB.po"), str(tmp_path / "de.po")).entries()
    assert [(row.source, row.fault) for row in rows] == [
        ("Das Spiel ist vorbei.", ""),
        ("", "no source in source_file"),
    ]


def test_plural_forms_other_than_two_are_flagged(tmp_path):
    (tmp_path / "en.po").write_text(PO.replace("nplurals=2", "nplurals=3"), encoding="utf-8")
    faults = [row.fault for row in catalogues.read(str(tmp_path / "en.po")).entries()]
    assert [bool(fault) for fault in faults] == [False, True, True, False, False]


def test_strings_xml_keeps_all_but_what_is_filled(tmp_path):
    (tmp_path / "strings.xml").write_text(XML, encoding="utf-8")
    catalogue = catalogues.read(str(tmp_path / "strings.xml"))
    rows = {row.key: row for row in catalogue.entries()}
    assert list(rows) == ["wait", "bold", "trains[one]", "trains[other]", "raw"]
    assert (rows["wait"].source, rows["wait"].limit, rows["bold"].source) == ("Warten Sie's ab", 12, "<b>Wichtig</b>")
    assert rows["raw"].fault and not rows["wait"].fault
    catalogue.set(rows["wait"], "Don't hurry")
    catalogue.set(rows["bold"], "<b>Important</b>")
    catalogue.set(rows["trains[other]"], "%d trains")
    catalogue.save(str(tmp_path / "out.xml"))
    text = (tmp_path / "out.xml").read_text(encoding="utf-8")
    expected = XML.replace("Warten Sie\\'s ab", "Don\\'t hurry").replace("Wichtig", "Important")
    expected = expected.replace("%d Züge", "%d trains")
    for before in ("    <!-- max 12 -->", '    <string name="bold">', '    <plurals name="trains">'):
        expected = expected.replace(before, f"    <!-- fuzzy -->\n{before}")
    assert text == expected.replace("    <!-- fuzzy -->\n    <plurals", "    <!-- fuzzy -->\n\n    <plurals")
    assert etree.fromstring(text.encode()).xpath("//string[@name='bold']/b")[0].text == "Important"


def test_json_keeps_its_keys_and_indentation(tmp_path):
    data = {"a": {"b": "Hallo"}, "@c": {"description": "max 5"}, "c": "Ja", "d": ["Eins", 2, None]}
    text = json.dumps(data, indent=4, ensure_ascii=False) + "\n"
    (tmp_path / "de.json").write_text(text, encoding="utf-8")
    catalogue = catalogues.read(str(tmp_path / "de.json"))
    rows = catalogue.entries()
    assert [(row.key, row.source, row.limit) for row in rows] == [
        ("a.b", "Hallo", None),
        ("c", "Ja", 5),
        ("d.0", "Eins", None),
    ]
    catalogue.set(rows[2], "One")
    catalogue.save(str(tmp_path / "out.json"))
    assert (tmp_path / "out.json").read_text(encoding="utf-8") == text.replace("Eins", "One")


def test_only_missing_and_too_long_strings_are_touched():
    rows = [
        catalogues.Entry("a", "Ja", ""),
        catalogues.Entry("b", "Nein", "No"),
        catalogues.Entry("c", "Gut", "Alright"),
    ]
    assert [(row.key, limit) for row, limit in strings.wanted(rows, {"c": 5}, None)] == [("a", None), ("c", 5)]
    assert [(row.key, limit) for row, limit in strings.wanted(rows, {}, 2.0)] == [("a", 4), ("c", 6)]


@pytest.mark.skipif(not REAL.exists(), reason="no German messages of dpkg on this machine")
def test_real_messages_come_back_whole():
    refused = 0
    messages = [entry.msgstr for entry in polib.mofile(str(REAL)) if entry.msgstr]
    for message in messages:
        try:
            parts, mark = placeholders.protect(message)
        except Unprotectable:
            refused += 1
            continue
        restored = placeholders.restore(parts, outputs_of(parts), mark, message)
        assert restored is None or placeholders.everything(restored) == placeholders.everything(message)
    assert len(messages) > 500 and refused < len(messages) / 2


@pytest.mark.slow
def test_a_file_is_filled_within_its_limits(tmp_path, capsys):
    (tmp_path / "en.po").write_text(PO, encoding="utf-8")
    options = ["--plain_model", str(MODELS / "translate_to_english_base"), "--report_dir", str(tmp_path)]
    options += ["--model", str(MODELS / "translate_to_english")]
    strings.main(["--input_file", str(tmp_path / "en.po"), "--output_file", str(tmp_path / "out.po"), *options])
    filled = {entry.msgid: entry for entry in polib.pofile(str(tmp_path / "out.po"))}
    game = filled["Das Spiel ist vorbei."]
    assert (game.msgstr, game.flags) == ("The game is over.", ["fuzzy"])
    assert filled["Es ist noch %d Zug übrig."].msgstr_plural[1] == "There are %d trains left."
    assert (filled["Bitte warten Sie."].msgstr, filled["Bitte warten Sie."].flags) == ("Please wait.", [])
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (report["entries"], report["missing"], report["too_long"], report["over_limit"]) == (5, 3, 1, 0)
    assert report["left"] + report["translated"] == 4
    longer = filled["Bitte warten Sie noch."]
    assert longer.msgstr == "Please wait a little longer." or len(longer.msgstr) <= 10  # left, or within
    assert "entries 5" in capsys.readouterr().out
