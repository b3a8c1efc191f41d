"""Files of interface strings: their structure stays, and an entry changes nothing but itself."""

import json
from pathlib import Path
from xml.etree import ElementTree

import catalogues
import pytest


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


def opened(folder: Path, name: str, content: str):
    """The catalogue of a file with this content, and its entries."""
    (folder / name).write_text(content, encoding="utf-8", newline="")
    catalogue = catalogues.read(str(folder / name))
    return catalogue, catalogue.entries


def written(folder: Path, catalogue) -> str:
    catalogue.save(str(folder / "out"))
    return (folder / "out").read_bytes().decode()


def copied(folder: Path, kind: str, own: str, other: str):
    """The catalogue of `own` with the texts that `other` has, and its entries by key."""
    (catalogue, rows), (existing, theirs) = opened(folder, f"own{kind}", own), opened(folder, f"other{kind}", other)
    by_key = {row.key: row for row in rows}
    for row in theirs:
        catalogue.copy(by_key[row.key], existing, row)
    return catalogue, by_key


STRANGE = r"""msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

#. a bell
msgid "Glocke\a x"
msgstr "Bell\a x"

#, c-format, fuzzy
#| msgid "Es ist noch %d Zug da."
msgid "Es ist noch %d Zug übrig."
msgid_plural   "Es sind noch %d Züge übrig."
msgstr[0] ""
msgstr[1] "Trains"
#, c-format
#| msgid "Gute"
msgctxt "page"
msgid "Gut"
msgstr ""
"old"

#. no flag yet
#| msgid "Nei"
msgid "Nein, das ist eine Zeile, die so lang ist, dass kein Werkzeug sie in einer Zeile lassen würde."
msgstr ""

#~| msgid "Ur"
#~ msgid "Alt"
#~ msgstr "Old"

# behind the last entry
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_po_file_changes_in_the_lines_of_filled_texts_alone(newline, tmp_path):
    catalogue, rows = opened(tmp_path, "a.po", STRANGE.replace("\n", newline))
    assert [bool(row.fault) for row in rows] == [True, False, False, False, False]  # \a
    for row, text in zip(rows[1:], ["%d train", "%d trains", 'A "good"\npage', "No."], strict=True):
        catalogue.set(row, text)
    expected = STRANGE.replace('msgstr[0] ""', 'msgstr[0] "%d train"').replace('"Trains"', '"%d trains"')
    expected = expected.replace("#, c-format\n", "#, fuzzy, c-format\n")
    expected = expected.replace('"old"', r'"A \"good\"\n"' + '\n"page"')
    expected = expected.replace('#| msgid "Nei"', '#, fuzzy\n#| msgid "Nei"')
    expected = expected.replace('würde."\nmsgstr ""', 'würde."\nmsgstr "No."')
    assert written(tmp_path, catalogue) == expected.replace("\n", newline)


def test_nothing_is_written_where_another_entry_would_change(tmp_path, monkeypatch):
    for name, content in (("a.po", STRANGE), ("a.json", '{"a": "Bell", "b": "Nein"}'), ("a.xml", XML)):
        catalogue, rows = opened(tmp_path, name, content)
        catalogue.set(rows[1], "No")
        changed = catalogue.content().replace(b"Bell", b"Ball").replace(b"max 12", b"max 13")
        monkeypatch.setattr(catalogue, "content", lambda changed=changed: changed)
        with pytest.raises(ValueError, match="the output would differ from input_file in .* nothing was written"):
            catalogue.save(str(tmp_path / f"out-{name}"))
    assert {path.name for path in tmp_path.iterdir()} == {"a.po", "a.json", "a.xml"}


def test_a_json_file_has_its_marks_beside_it(tmp_path):
    own = '{"a": "Ja", "b": "Nein", "c": "Gut"}'
    catalogue, rows = opened(tmp_path, "own.json", own)
    catalogue.set(rows[1], "No")
    catalogue.save(str(tmp_path / "other.json"))
    assert json.loads((tmp_path / "other.fuzzy.json").read_text()) == {"b": "No"}
    # another run that takes the translations so far keeps the marks of those that nobody changed
    for now, marks in (("No", {"b": "No"}), ("Nope", {})):
        again, _ = copied(tmp_path, ".json", own, json.dumps({"a": "Yes", "b": now}))
        again.save(str(tmp_path / "next.json"))
        assert json.loads((tmp_path / "next.json").read_text()) == {"a": "Yes", "b": now, "c": "Gut"}
        assert json.loads((tmp_path / "next.fuzzy.json").read_text()) == marks


def test_sources_come_from_another_language(tmp_path):
    (tmp_path / "en_GB.po").write_text('msgid "The game is over."\nmsgstr ""\n\nmsgid "New"\nmsgstr ""\n')
    (tmp_path / "de.po").write_text('msgid "The game is over."\nmsgstr "Das Spiel ist vorbei."\n')
    rows = catalogues.read(str(tmp_path / "en_GB.po"), source_file=str(tmp_path / "de.po")).entries
    assert [row.source for row in rows] == ["Das Spiel ist vorbei.", ""]
    assert [row.fault for row in rows] == ["", "no source in source_file"]


def test_plural_forms_other_than_two_and_characters_that_the_file_cannot_hold_are_refused(tmp_path):
    _, rows = opened(tmp_path, "two.po", PO)
    assert [row.source for row in rows][1:3] == ["Es ist noch %d Zug übrig.", "Es sind noch %d Züge übrig."]
    assert [row.limit for row in rows] == [20, None, None, None, 10]
    _, rows = opened(tmp_path, "en.po", PO.replace("nplurals=2", "nplurals=3"))
    assert [bool(row.fault) for row in rows] == [False, True, True, False, False]
    (tmp_path / "a.po").write_bytes(PO.replace("UTF-8", "ISO-8859-1").encode("iso-8859-1"))
    catalogue = catalogues.read(str(tmp_path / "a.po"))
    with pytest.raises(ValueError, match="the file is ISO-8859-1, which has no '…'"):
        catalogue.set(catalogue.entries[0], "Game over…")


def test_strings_xml_keeps_all_but_what_is_filled(tmp_path):
    catalogue, entries = opened(tmp_path, "strings.xml", XML)
    rows = {row.key: row for row in entries}
    assert list(rows) == ["wait", "bold", "trains[one]", "trains[other]", "raw"]
    assert (rows["wait"].source, rows["wait"].limit, rows["bold"].source) == ("Warten Sie's ab", 12, "<b>Wichtig</b>")
    assert rows["raw"].fault and not rows["wait"].fault
    catalogue.set(rows["wait"], "Don't hurry")
    catalogue.set(rows["bold"], "<b>Important</b>")
    catalogue.set(rows["trains[other]"], "%d trains")
    text = written(tmp_path, catalogue)
    expected = XML.replace("Warten Sie\\'s ab", "Don\\'t hurry").replace("Wichtig", "Important")
    expected = expected.replace("%d Züge", "%d trains")
    for before in ("    <!-- max 12 -->", '    <string name="bold">', '    <plurals name="trains">'):
        expected = expected.replace(before, f"    <!-- fuzzy -->\n{before}")
    assert text == expected.replace("    <!-- fuzzy -->\n    <plurals", "    <!-- fuzzy -->\n\n    <plurals")
    assert ElementTree.fromstring(text).find("string[@name='bold']/b").text == "Important"


def test_a_string_that_others_share_the_name_of_is_filled_by_itself(tmp_path):
    xml = '<resources><string name="a" product="tablet">Eins</string><string name="a">Zwei</string></resources>'
    marked = xml.replace("<string ", "<!-- fuzzy --><string ")
    data = '{"@a.b": {"description": "max 5"},\n    "a": {"b": "Eins", "d": [2, null]}, "a.b": "Zwei", "c": 1.50}'
    for name, content, keys, expected in (
        ("a.xml", xml, {"a (tablet)": None, "a": None}, marked),
        ("a.json", data, {"a.b": None, "a.b (2)": 5}, data),
    ):
        catalogue, rows = opened(tmp_path, name, content)
        assert {row.key: row.limit for row in rows} == keys
        for row, text in zip(rows, ("One", "Two"), strict=True):
            catalogue.set(row, text)
        assert written(tmp_path, catalogue) == expected.replace("Eins", "One").replace("Zwei", "Two")


ENTITY = '<resources><string name="a">&app; <![CDATA[<b>]]></string></resources>'


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("name", "encoding", "content"),
    [
        ("a.json", "utf-8-sig", '{"x": ["ä", "y"],\n "z":{"e":"f"}, "u": "\\u00e4", "w": "Gut\\r\\nso"}'),
        ("b.xml", "iso-8859-1", '<?xml version="1.0" encoding="iso-8859-1"?>\n<resources>\n<!-- ä --></resources>'),
        ("d.xml", "utf-8", f'<!DOCTYPE resources [<!ENTITY app "<b>App</b>">]>\n{ENTITY}'),
    ],
)
def test_a_file_that_nothing_is_filled_in_stays_to_the_byte(name, encoding, content, newline, tmp_path):
    path = tmp_path / name
    path.write_bytes(content.replace("\n", newline).encode(encoding))
    catalogue = catalogues.read(str(path))
    catalogue.save(str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == path.read_bytes()


def test_quotes_around_a_string_and_what_another_file_has_stay(tmp_path):
    own = '<resources>\n<!-- max 9 -->\n<plurals name="p"><item quantity="one">Zug</item>'
    own += '<item quantity="other">Züge</item></plurals>\n'
    own += '<string name="q">"  Gut  "</string>\n<string name="r">Ja</string><string name="s">Ja</string></resources>'
    other = '<string name="r"><![CDATA[<b>Hi</b>]]></string><!-- fuzzy --><string name="s">"  Yes\\\' "</string>'
    catalogue, rows = copied(tmp_path, ".xml", own, f"<resources>{other}</resources>")
    assert rows["q"].source == "  Gut  "
    for key, text in (("q", "  Tom & 'Jerry'  "), ("p[one]", "train"), ("p[other]", "trains")):
        catalogue.set(rows[key], text)
    with pytest.raises(ValueError, match="the output is not valid XML"):
        catalogue.set(rows["q"], "a < b")
    text = written(tmp_path, catalogue)
    assert '<string name="q">"  Tom &amp; \\\'Jerry\\\'  "</string>' in text
    assert other in text and text.count("<!-- fuzzy -->") == 3  # the plurals once, and that of the other file
