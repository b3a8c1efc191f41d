"""Rules of the formats of strings: escapes, shapes of JSON, plurals; and an entry that cannot be written is left."""

import json
from pathlib import Path

import android_files
import catalogues
import polib
import pytest
import strings
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fit_catalogues import PO, copied, opened, written


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        (r"Wie sp\u00e4t\?", "Wie spät?"),
        (r"\u0020Ja\u0020", " Ja "),
        (r"\@home \#1 \"a\" it\'s", '@home #1 "a" it\'s'),
        (r"Ja.\nNein\tUnd", "Ja.\nNein\tUnd"),
        (r"C:\\neu", "C:\\neu"),
        (r"\uD83D\uDE00", "😀"),
        ("  Das ist\n      eine   Zeile. ", "Das ist eine Zeile."),
        ('"  Gut  " so  "  und"  ', "  Gut   so   und"),
        (" <b> Das </b> <i>a</i>", "<b>Das </b><i>a</i>"),
        (r"a \u003c b", "a &lt; b"),
    ],
)
def test_a_string_resource_is_read_as_aapt2_reads_it(markup, text):
    assert android_files.unescape(markup) == text


@pytest.mark.parametrize("markup", [r"Das \q ist", r"\u12", r"\ud83d allein", r"\u0000", "Ende\\"])
def test_an_escape_that_android_does_not_know_is_a_fault(markup, tmp_path):
    _, rows = opened(tmp_path, "a.xml", f'<resources><string name="a">{markup}</string></resources>')
    assert rows[0].fault == "an escape that Android does not know"


TOKENS = st.sampled_from([*"ab \\\"'\n\t@?#&u0\u00a0…", '<b a="c">', "</b>", "<br/>"])


@given(st.lists(TOKENS, min_size=1, max_size=9), st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_text_is_escaped_so_that_android_reads_it(tokens, quoted):
    text = "".join(tokens)
    markup = android_files.escape(text, quoted)
    assert android_files.unescape(f'"{markup}"' if quoted else markup) == text


def test_escapes_of_a_strings_xml_are_undone_for_the_model_and_written_again(tmp_path):
    xml = '<resources><string name="a">%s</string><string name="b">Ja</string></resources>'
    for before, source, text, after in (
        (r"Wie sp\u00e4t\?", "Wie spät?", "How late?", "How late?"),
        (r"\@ Ja\nNein", "@ Ja\nNein", "@ Yes\nNo", r"\@ Yes\nNo"),
        (r"\?", "?", "? \\", r"\? \\"),
        (r"\u0020Ja ", " Ja", ' It\'s "it"', r"\u0020It\'s \"it\""),
        ("Ja &amp; Nein", "Ja & Nein", "Yes & no", "Yes &amp; no"),
        ("5 &#60; 6&#xA0;m", "5 &lt; 6\u00a0m", "5 &lt; 6 m", "5 &lt; 6 m"),
        ('"  Ja "', "  Ja ", "  It's ", '"  It\\\'s "'),
    ):
        catalogue, rows = opened(tmp_path, "a.xml", xml % before)
        assert rows[0].source == source
        catalogue.set(rows[0], text)
        assert written(tmp_path, catalogue) == (xml % after).replace("<string", "<!-- fuzzy --><string", 1)


def test_references_and_items_of_a_style_are_no_texts(tmp_path):
    xml = '<resources><style name="s"><item name="c">Rot</item></style><array name="t"><item>Rot</item></array>'
    values = [
        "@string/titel",
        "?attr/x",
        "?android:attr/textColor",
        "@android:string/ok",
        "@*android:string/ok",
        "@null",
    ]
    xml += "".join(f'<string name="v{i}">{value}</string>' for i, value in enumerate(values))
    catalogue, rows = opened(tmp_path, "a.xml", xml + r'<string name="w">\@string/titel</string></resources>')
    assert [row.fault for row in rows] == ["a reference to another resource"] * len(values) + [""]
    assert rows[-1].source == "@string/titel" and catalogue.values == 2


SHAPES = {
    "a web extension": (
        '{"a": {"message": "Hallo $NAME$", "description": "max 9", "placeholders": {"name": {"content": "$1", '
        '"example": "Tom"}}}, "b": {"message": "Ja"}}',
        {"a.message": 9, "b.message": None},
    ),
    "Visual Studio Code": (
        '{"a": {"message": "Ja", "comment": ["Knopf", "max 9"]}, "b": "Nein"}',
        {"a.message": 9, "b": None},
    ),
    "formatjs": (
        '{"a": {"defaultMessage": "Ja", "description": "Knopf", "file": "src/a.js", "start": 1, "end": 2}}',
        {"a.defaultMessage": None},
    ),
    "formatjs, a list": (
        '[{"id": "a.b", "defaultMessage": "Ja", "description": "at most 9 characters"}]',
        {"0.defaultMessage": 9},
    ),
    "Transifex": (
        '{"a": {"string": "Ja", "context": "Knopf", "developer_comment": "grün", "character_limit": 9}}',
        {"a.string": 9},
    ),
    "Lokalise": ('{"a": {"translation": "Ja", "notes": "Knopf"}}', {"a.translation": None}),
    "Smartling": (
        '{"smartling": {"translate_paths": ["*/message"]}, "a": {"message": "Ja", "description": "Knopf"}}',
        {"a.message": None},
    ),
    "go-i18n 1": (
        '[{"id": "a", "translation": {"one": "Ein Zug", "other": "{{.N}} Züge"}}, {"id": "b", "translation": "Ja"}]',
        {"0.translation.one": None, "0.translation.other": None, "1.translation": None},
    ),
    "go-i18n 2": (
        '{"a": {"description": "max 9", "hash": "sha1-1f", "one": "Ein Zug", "other": "{{.N}} Züge"}, "b": "Ja"}',
        {"a.one": 9, "a.other": 9, "b": None},
    ),
    "ARB": (
        '{"@@locale": "de", "a": "Ja {x}", "@a": {"description": "max 9", "placeholders": {"x": {"type": "String", '
        '"example": "Tom"}}}}',
        {"a": 9},
    ),
    "Angular": ('{"locale": "de", "translations": {"a": "Ja"}}', {"translations.a": None}),
    "Jed": (
        '{"domain": "messages", "locale_data": {"messages": {"": {"lang": "de"}, "Yes": ["Ja"]}}}',
        {"locale_data.messages.Yes.0": None},
    ),
    "no known shape": (
        '{"$schema": "https://x.org/y.json", "_comment": "Knopf", "a": {"message": "Ja", "title": "Nein"}, "b": "Ja"}',
        {"a.message": None, "a.title": None, "b": None},
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_of_a_known_shape_of_json_the_texts_alone_are_translated(shape, tmp_path):
    content, limits = SHAPES[shape]
    catalogue, rows = opened(tmp_path, "a.json", content)
    assert {row.key: row.limit for row in rows} == limits
    for row in rows:
        catalogue.set(row, "Yes")
    expected = content  # nothing but these texts changes
    for text in ("Hallo $NAME$", "Ja {x}", "Ja", "Nein", "Ein Zug", "{{.N}} Züge"):
        expected = expected.replace(f'"{text}"', '"Yes"')
    assert written(tmp_path, catalogue) == expected


def test_other_shapes_of_json_are_told_by_their_keys(tmp_path):
    content = '{"buttons": [{"label": "Ja", "icon": "haken"}, {"label": ["Nein"], "icon": "kreuz"}], "icon": "haus"}'
    (tmp_path / "a.json").write_text(content, encoding="utf-8")
    catalogue = catalogues.read(str(tmp_path / "a.json"), json_keys=["label"])
    rows = catalogue.entries
    assert [row.key for row in rows] == ["buttons.0.label", "buttons.1.label.0"] and catalogue.values == 3
    catalogue.set(rows[1], "No")
    assert written(tmp_path, catalogue) == content.replace("Nein", "No")
    (tmp_path / "a.po").write_text(PO, encoding="utf-8")
    with pytest.raises(ValueError, match="json_keys is for .json, .arb, got .*a.po'; leave it out"):
        catalogues.read(str(tmp_path / "a.po"), json_keys=["label"])


def test_of_a_key_that_an_object_has_twice_the_last_value_counts(tmp_path):
    content = '{"a": {"b": "Ja"}, "c": "Gut", "a": "Nein"}'
    catalogue, rows = opened(tmp_path, "a.json", content)
    assert [row.source for row in rows] == ["Gut", "Nein"]
    catalogue.set(rows[1], "No")
    assert written(tmp_path, catalogue) == content.replace("Nein", "No")


VALUES = st.recursive(
    st.text(max_size=5) | st.integers() | st.none() | st.booleans(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=3), inside, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), st.sampled_from([None, 1, "\t"]), st.booleans())
@settings(max_examples=50, deadline=None)
def test_json_that_nothing_is_filled_in_stays_to_the_byte(tmp_path_factory, data, indent, ascii_only):
    path = tmp_path_factory.mktemp("json") / "a.json"
    path.write_bytes(json.dumps(data, indent=indent, ensure_ascii=ascii_only).encode())
    catalogue = catalogues.read(str(path))
    assert catalogue.differences() == [] and catalogue.content() == path.read_bytes()


def test_half_a_character_is_a_fault_of_its_own_key(tmp_path):
    content = '{"a": "Ja", "b": "Wir \\ud83d sind", "c": "\\ud83d\\ude00"}'
    catalogue, rows = opened(tmp_path, "a.json", content)
    assert [row.fault for row in rows] == ["", "half a character (a lone surrogate)", ""]
    json.dumps([row.source for row in rows], ensure_ascii=False).encode()  # the report can be written
    catalogue.set(rows[0], "Yes")
    assert written(tmp_path, catalogue) == content.replace("Ja", "Yes")
    again, _ = copied(tmp_path, ".json", content, content)
    assert written(tmp_path, again) == content


def filled(folder: Path, name: str, content: str, outputs: dict[str, str], existing: dict[str, str] | None = None):
    """The rows of the report and the file, where the models write these outputs."""
    catalogue, entries = opened(folder, name, content)
    rows = [{"key": row.key, "output": outputs.get(row.key), "fault": "", "suggestion": None} for row in entries]

    def build():
        again = catalogues.read(catalogue.path)
        places = {row.key: row for row in again.entries}
        for key, text in (existing or {}).items():
            places[key].target = text
        return again, places

    return {row["key"]: row for row in rows}, written(folder, strings.fill(rows, build))


@pytest.mark.parametrize(
    ("name", "content", "one", "other"),
    [
        (
            "a.xml",
            '<resources><plurals name="a"><item quantity="one">Ein Zug</item><item quantity="other">Züge</item>'
            '</plurals><string name="b">Ja</string></resources>',
            "a[one]",
            "a[other]",
        ),
        ("a.json", '{"a_one": "Ein Zug", "a_other": "Züge", "b": "Ja"}', "a_one", "a_other"),
        ("b.json", '{"a": "Ein Zug", "a_plural": "Züge", "b": "Ja"}', "a", "a_plural"),
        ("c.json", '{"a": {"one": "Ein Zug", "other": "Züge"}, "b": "Ja"}', "a.one", "a.other"),
        (
            "a.po",
            'msgid ""\nmsgstr "Plural-Forms: nplurals=2; plural=(n != 1);\\n"\n\nmsgid "Ein Zug"\n'
            'msgid_plural "Züge"\nmsgstr[0] ""\nmsgstr[1] ""\n\nmsgid "b"\nmsgstr ""\n',
            "1: Ein Zug [0]",
            "1: Ein Zug [1]",
        ),
    ],
)
def test_of_a_plural_all_forms_are_translated_or_none(name, content, one, other, tmp_path):
    rows, text = filled(tmp_path, name, content, {one: "A train", "b": "Yes", "2: b": "Yes"})
    assert "A train" not in text and "Yes" in text
    assert (rows[one]["fault"], rows[one]["suggestion"]) == (
        "another form of the plural has no translation",
        "A train",
    )
    for outputs, existing in (({one: "A train", other: "trains"}, {}), ({one: "A train"}, {other: "trains"})):
        rows, text = filled(tmp_path, name, content, outputs, existing)
        assert "A train" in text and rows[one]["output"] == "A train"


LAST = """msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\\n"

msgid "Ja"
msgstr ""

msgid "Ein Zug"
msgid_plural "Züge"
msgstr[0] \"\""""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_po_file_without_a_final_newline_gets_a_form_at_its_end(newline, tmp_path):
    catalogue, rows = opened(tmp_path, "a.po", LAST.replace("\n", newline))
    for row, text in zip(rows, ("Yes", "A train", "trains"), strict=True):
        catalogue.set(row, text)
    expected = LAST.replace('"Ja"\nmsgstr ""', '"Ja"\nmsgstr "Yes"').replace(
        '[0] ""', '[0] "A train"\nmsgstr[1] "trains"'
    )
    expected = expected.replace('\nmsgid "Ja"', '\n#, fuzzy\nmsgid "Ja"').replace(
        '\nmsgid "Ein', '\n#, fuzzy\nmsgid "Ein'
    )
    assert written(tmp_path, catalogue) == expected.replace("\n", newline)


def test_an_entry_that_would_change_another_is_left_and_the_others_are_written(tmp_path, monkeypatch):
    own = catalogues.Gettext._written

    def broken(self, form, text):
        return own(self, form, text) + ('\nmsgid "x"' if text == "trains" else "")

    monkeypatch.setattr(catalogues.Gettext, "_written", broken)
    rows, text = filled(
        tmp_path, "a.po", LAST, {"1: Ja": "Yes", "2: Ein Zug [0]": "A train", "2: Ein Zug [1]": "trains"}
    )
    assert 'msgstr "Yes"' in text and "train" not in text
    assert rows["1: Ja"]["output"] == "Yes" and "the file would change in" in rows["2: Ein Zug [1]"]["fault"]
    assert "the file would change in" in rows["2: Ein Zug [0]"]["fault"]


def test_the_names_of_translators_and_limits_of_weblate_are_known(tmp_path):
    content = '#, max-length:12\nmsgid "Ja"\nmsgstr ""\n\nmsgid "translator-credits"\nmsgstr ""\n'
    _, rows = opened(tmp_path, "a.po", content)
    assert [(row.limit, row.fault) for row in rows] == [(12, ""), (None, "the names of the translators")]


def test_a_reviewed_text_is_not_replaced_by_default(tmp_path, monkeypatch, capsys):
    class Natural:
        def fit(self, requests):
            return [strings.Fitted(["Wait."], request.layout(["Wait."]), ["Wait."], -0.1) for request in requests]

        def agreement(self, requests):
            return [100.0] * len(requests)

    monkeypatch.setattr(strings, "fitter", lambda args: Natural())
    monkeypatch.chdir(tmp_path)
    Path("a.po").write_text('#. max 10\nmsgid "Bitte warten"\nmsgstr "Please wait a little"\n', encoding="utf-8")
    options = ["--input_file", "a.po", "--output_file", "out.po", "--report_dir", "report", "--model", "m"]
    strings.main(options)
    assert Path("out.po").read_bytes() == Path("a.po").read_bytes()
    report = json.loads(Path("report/report.json").read_text(encoding="utf-8"))
    assert (report["too_long"], report["translated"], report["left"]) == (1, 0, 1)
    assert "limits in the file 1" in capsys.readouterr().out
    strings.main([*options, "--replace_too_long"])  # the text of the output is that of the input: nothing is lost
    entry = polib.pofile("out.po")[0]
    assert (entry.msgstr, entry.flags) == ("Wait.", ["fuzzy"])


@pytest.mark.parametrize(
    ("name", "source", "finished", "option"),
    [
        ("en.json", '{"a": "Ja", "b": "Nein"}', '{"a": "Yes", "b": "Nein"}', "existing_file"),
        ("en.po", 'msgid "Ja"\nmsgstr ""\n', 'msgid "Ja"\nmsgstr "Yes"\n\nmsgid "new"\nmsgstr ""\n', "input_file"),
        (
            "en.xml",
            '<resources><string name="a">Ja</string></resources>',
            '<resources><string name="a">Yes</string></resources>',
            "existing_file",
        ),
    ],
)
def test_finished_translations_in_the_output_file_are_not_overwritten(
    name, source, finished, option, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path(f"de{name}").write_text(source, encoding="utf-8")
    words = ["--input_file", f"de{name}", "--output_file", name, "--report_dir", "report", "--model", "m"]
    Path(name).write_text(finished, encoding="utf-8")
    with pytest.raises(ValueError, match=f"must have no finished translations.* 1 .*pass it as --{option}"):
        strings.main(words)
    assert Path(name).read_text(encoding="utf-8") == finished


def test_files_that_are_no_output_of_the_recipe_are_not_overwritten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.po").write_text('msgid "Yes"\nmsgstr ""\n', encoding="utf-8")
    Path("de.po").write_text('msgid "Yes"\nmsgstr "Ja"\n', encoding="utf-8")
    Path("de.json").write_text('{"a": "Ja"}', encoding="utf-8")
    Path("en.json").write_text('{"a": "Yes",}', encoding="utf-8")  # a slip of the person who corrected it
    words = ["--report_dir", "report", "--model", "m"]
    with pytest.raises(ValueError, match="the output de.po would replace the input de.po"):
        strings.main(["--input_file", "a.po", "--source_file", "de.po", "--output_file", "de.po", *words])
    with pytest.raises(ValueError, match="output_file exists, and cannot be read: en.json: .*; correct or remove it"):
        strings.main(["--input_file", "de.json", "--output_file", "en.json", *words])


def test_machine_translations_in_the_output_file_are_overwritten(tmp_path, monkeypatch):
    def stop(args):
        raise ZeroDivisionError  # the models would be loaded: the files were accepted

    monkeypatch.setattr(strings, "fitter", stop)
    monkeypatch.chdir(tmp_path)
    Path("de.json").write_text('{"a": "Ja", "b": "Nein"}', encoding="utf-8")
    Path("en.json").write_text('{"a": "Yes", "b": "Nein"}', encoding="utf-8")
    Path("en.fuzzy.json").write_text('{"a": "Yes"}', encoding="utf-8")
    with pytest.raises(ZeroDivisionError):
        strings.main(["--input_file", "de.json", "--output_file", "en.json", "--report_dir", "report", "--model", "m"])
