"""XLIFF, .xcstrings, .strings, .resx and .properties: what others read, the sizes that they state, and the bytes."""

import html
import json
import plistlib
import re
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import catalogues
import entries
import pytest
import strings
import xml_files
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_runs import ROOT
from test_fit_catalogues import copied, opened, written
from test_fit_formats import filled
from translate.storage.properties import javafile, stringsutf8file
from translate.storage.resx import RESXFile
from translate.storage.xliff import xlifffile
from translate.storage.xliff2 import Xliff2File


XLIFF = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file source-language="de" target-language="en" datatype="plaintext" original="a.c">
    <body>
      <!-- Knöpfe -->
      <trans-unit id="wait" maxwidth="20" size-unit="char">
        <source>Bitte &amp; warten<x id="1"/></source>
        <note>Ein Knopf</note>
      </trans-unit>
      <trans-unit id="save" approved='yes'>
        <source>Speichern</source>
        <target xml:lang="en" state="final">Save the file</target>
      </trans-unit>
      <trans-unit id="copy"><source>Ja</source><target state="new">Ja</target></trans-unit>
      <trans-unit id="empty"><source>Nein</source><target /></trans-unit>
      <trans-unit id="name" translate="no"><source>Hex</source></trans-unit>
    </body>
  </file>
</xliff>
"""
XLIFF_2 = """<?xml version="1.0"?>
<x:xliff xmlns:x="urn:oasis:names:tc:xliff:document:2.0" version="2.1" srcLang="de" trgLang="en">
 <x:file id="f">
  <x:unit id="wait">
   <x:notes><x:note>max 20</x:note></x:notes>
   <x:segment>
    <x:source>Bitte warten</x:source>
   </x:segment>
  </x:unit>
  <x:unit id="two"><x:segment id="s" state="initial"><x:source>Ja.</x:source><x:target>Ja.</x:target></x:segment>
   <x:ignorable><x:source> </x:source></x:ignorable>
   <x:segment state="final" subState="a:b"><x:source>Nein.</x:source><x:target>No.</x:target></x:segment></x:unit>
 </x:file>
</x:xliff>
"""
STRINGS = r"""/* Header, a long
   one */

/* max 20 */
"wait" = "Bitte \"warten\"\n";
"a.b"="Ja";   // about the string before
// in two
// comments
"path" = "C:\\neu";
"only";
"smile" = "\UD83D\UDE00";
"odd" = "\q";
"""
RESX = """<?xml version="1.0" encoding="utf-8"?>
<root>
  <resheader name="version"><value>2.0</value></resheader>
  <data name="Wait" xml:space="preserve">
    <value>Bitte &lt;b&gt;warten&lt;/b&gt;</value>
    <comment>Knopf &amp; Titel. max 20</comment>
  </data>
  <data name="Picture" type="System.Drawing.Bitmap"><value>Bild</value></data>
  <data name="Raw"><value><![CDATA[Ja]]></value></data>
  <data name="Yes"><value>J&#97;</value></data>
</root>
"""
PROPERTIES = r"""# header

! max 20
wait = Bitte \
       warten
a\:b:Ja
path   C:\\neu\tund\u00e4
cut = \u12
empty=
"""
# name -> content, its entries (key, source, target, limit, fault), new texts, and what changes for them
FILES: dict[str, tuple] = {
    "a.xlf": (
        XLIFF,
        [
            ("wait", 'Bitte & warten<x id="1"/>', "", None, ""),
            ("save", "Speichern", "Save the file", None, ""),
            ("copy", "Ja", "", None, ""),
            ("empty", "Nein", "", None, ""),
        ],
        {"wait": 'Please & wait<x id="1"/>', "save": "Save", "copy": "Ja", "empty": "No"},
        [
            (
                '<x id="1"/></source>\n',
                '<x id="1"/></source>\n        <target state="needs-review-translation">'
                'Please &amp; wait<x id="1"/></target>\n',
            ),
            ("approved='yes'", 'approved="no"'),
            ('state="final">Save the file', 'state="needs-review-translation">Save'),
            ('<target state="new">Ja', '<target state="needs-review-translation">Ja'),
            ("<target />", '<target state="needs-review-translation">No</target>'),
        ],
    ),
    "b.xliff": (
        XLIFF_2,
        [
            ("wait", "Bitte warten", "", 20, ""),
            ("two::s", "Ja.", "", None, ""),
            ("two::2", "Nein.", "No.", None, ""),
        ],
        {"wait": "Please wait", "two::s": "Ja.", "two::2": "Nope."},
        [
            ("<x:segment>", '<x:segment state="initial" subState="hf_lenctrl:fuzzy">'),
            ("warten</x:source>\n", "warten</x:source>\n    <x:target>Please wait</x:target>\n"),
            ('id="s" state="initial"', 'id="s" state="initial" subState="hf_lenctrl:fuzzy"'),
            ('state="final" subState="a:b"', 'state="initial" subState="hf_lenctrl:fuzzy"'),
            (">No.<", ">Nope.<"),
        ],
    ),
    "c.strings": (
        STRINGS,
        [
            ("wait", 'Bitte "warten"\n', "", 20, ""),
            ("a.b", "Ja", "", None, ""),
            ("path", "C:\\neu", "", None, ""),
            ("only", "only", "", None, ""),
            ("smile", "😀", "", None, ""),
            ("odd", r'"\q"', "", None, "an escape that this recipe does not know"),
        ],
        {"wait": 'Please\t"wait"', "a.b": "Yes", "path": "C:\\new", "only": "just", "smile": "Don't…"},
        [
            ("/* max 20 */", "/* fuzzy */\n/* max 20 */"),
            (r'"Bitte \"warten\"\n"', r'"Please\t\"wait\""'),
            ('"a.b"="Ja"', '/* fuzzy */\n"a.b"="Yes"'),
            ("// in two", "/* fuzzy */\n// in two"),
            ("\\neu", "\\new"),
            ('"only"', '/* fuzzy */\n"only" = "just"'),
            (r'"smile" = "\UD83D\UDE00"', '/* fuzzy */\n"smile" = "Don\'t…"'),
        ],
    ),
    "d.resx": (
        RESX,
        [
            ("Wait", "Bitte <b>warten</b>", "", 20, ""),
            ("Raw", "<![CDATA[Ja]]>", "", None, "CDATA or an own XML entity"),
            ("Yes", "Ja", "", None, ""),
        ],
        {"Wait": 'Please <b>"wait"</b> & go', "Yes": "Yes"},
        [
            ('  <data name="Wait"', '  <!-- fuzzy -->\n  <data name="Wait"'),
            ("Bitte &lt;b&gt;warten&lt;/b&gt;", 'Please &lt;b&gt;"wait"&lt;/b&gt; &amp; go'),
            ('  <data name="Yes"', '  <!-- fuzzy -->\n  <data name="Yes"'),
            ("J&#97;", "Yes"),
        ],
    ),
    "e.properties": (
        PROPERTIES,
        [
            ("wait", "Bitte warten", "", 20, ""),
            ("a:b", "Ja", "", None, ""),
            ("path", "C:\\neu\tundä", "", None, ""),
            ("cut", r"\u12", "", None, "an escape that this recipe does not know"),
            ("empty", "", "", None, ""),
        ],
        {"wait": " Please wait", "a:b": "Yes = # !", "path": "C:\\new…😀"},
        [
            ("! max 20", "# fuzzy\n! max 20"),
            ("Bitte \\\n       warten", "\\ Please wait"),
            ("a\\:b:Ja", "# fuzzy\na\\:b:Yes = # !"),
            (r"path   C:\\neu\tund\u00e4", "# fuzzy\n" + r"path   C:\\new\u2026\ud83d\ude00"),
        ],
    ),
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_and_changes_in_its_new_texts_and_their_marks_alone(name, newline, tmp_path):
    content, expected, new, changes = FILES[name]
    catalogue, rows = opened(tmp_path, name, content.replace("\n", newline))
    assert [(row.key, row.source, row.target, row.limit, row.fault) for row in rows] == expected
    for row in rows:
        if row.key in new:
            catalogue.set(row, new[row.key])
    for before, after in changes:
        assert content.count(before) == 1, before
        content = content.replace(before, after)
    assert written(tmp_path, catalogue) == content.replace("\n", newline)
    (tmp_path / "out").rename(tmp_path / f"again-{name}")
    again = catalogues.read(str(tmp_path / f"again-{name}"))  # its own marks are known
    assert {row.key for row in again.entries if row.fuzzy} == new.keys()
    assert {row.key: getattr(row, again.field) for row in again.entries if row.key in new} == new


READERS = {"a.xlf": xlifffile, "b.xliff": Xliff2File, "c.strings": stringsutf8file, "d.resx": RESXFile}
READERS["e.properties"] = javafile


def read_by_toolkit(path: Path, reader) -> dict[str, Any]:
    """The units of a file by key, as translate-toolkit reads it."""
    units = {unit.getid() or "": unit for unit in reader.parsefile(str(path)).units}
    return {re.sub(r".*\x04|(?<=::)segment-|\\", "", key): unit for key, unit in units.items()}


def text_of(unit) -> str:
    """The text of a unit of translate-toolkit, which reads half a character where Java reads a whole one."""
    return (unit.target or unit.source).encode("utf-16", "surrogatepass").decode("utf-16")


@pytest.mark.parametrize("name", FILES)
def test_translate_toolkit_reads_the_new_texts_and_their_marks(name, tmp_path):
    content, _, new, _ = FILES[name]
    # it does not read these
    catalogue, rows = opened(tmp_path, name, content.replace("   // about the string before", "").replace(r"\q", ""))
    for row in rows:
        if row.key in new:
            catalogue.set(row, new[row.key])
    catalogue.save(str(tmp_path / f"out-{name}"))
    units = read_by_toolkit(tmp_path / f"out-{name}", READERS[name])
    expected = {key: text.replace('<x id="1"/>', "") for key, text in new.items()}  # a tag is no text there
    assert {key: text_of(units[key]) for key in new} == expected
    if name != "d.resx":  # it does not read comments of XML
        assert all(units[key].isfuzzy() or "fuzzy" in units[key].getnotes() for key in new)


SIGNS = st.sampled_from("\n\t \"'\\&<>#!=:;%}/*|äß…😀\u00a0\u2028\x85")
TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Cn"), exclude_characters="{") | SIGNS, max_size=12)
TEXTS = TEXTS.filter(lambda text: text.strip() and text[-1] != "\\")  # translate-toolkit misreads it in .strings


def xml_texts(path: Path, parent: str, *names: str) -> list[str | None]:
    """The text of the first of some elements in each parent."""
    parents = ElementTree.fromstring(path.read_bytes()).iter(parent)
    return [next(node.text for name in names for node in parent.iterfind(name)) for parent in parents]


def xml(text: str) -> str:
    return html.escape(text, quote=False)


def localized(path: Path) -> list[str]:
    strings = json.loads(path.read_bytes())["strings"].values()
    return [item["localizations"].get("en", item["localizations"]["de"])["stringUnit"]["value"] for item in strings]


# suffix -> what is before and after the strings; a string with its key and its text; the texts, by another reader
ANY: dict[str, tuple] = {
    ".xlf": (
        '<xliff version="1.2"><file><body>',
        "</body></file></xliff>",
        lambda key, text: f'<trans-unit id="{key}"><source>{xml(text)}</source></trans-unit>',
        lambda path: xml_texts(path, "trans-unit", "target", "source"),
    ),
    ".resx": (
        "<root>",
        "</root>",
        lambda key, text: f'<data name="{key}"><value>{xml(text)}</value></data>',
        lambda path: xml_texts(path, "data", "value"),
    ),
    ".strings": (
        "/* header */\n",
        "\n// end",
        lambda key, text: f'"{key}" = {json.dumps(text, ensure_ascii=False)};',
        lambda path: [text_of(unit) for key, unit in read_by_toolkit(path, stringsutf8file).items() if key],
    ),
    ".properties": (
        "# header\n",
        "\n! end",
        lambda key, text: f"{key}=" + re.sub("....", r"\\u\g<0>", text.encode("utf-16-be").hex()),
        lambda path: [text_of(unit) for key, unit in read_by_toolkit(path, javafile).items() if key],
    ),
    ".xcstrings": (
        '{"sourceLanguage": "de", "strings": {',
        '}, "version": "1.0"}',
        lambda key, text: f'"{key}": {{"localizations": {{"de": {{"stringUnit": {{"value": {json.dumps(text)}}}}}}}}}',
        localized,
    ),
}


@given(st.sampled_from(list(ANY)), st.lists(TEXTS, min_size=3, max_size=3), st.dictionaries(st.integers(0, 2), TEXTS))
@settings(max_examples=100, deadline=None)
def test_any_texts_are_read_and_written_as_others_read_them(tmp_path_factory, suffix, texts, new):
    start, end, string, read = ANY[suffix]
    pieces = [string(f"k{i}", text) for i, text in enumerate(texts)]
    content = start + (",\n" if suffix == ".xcstrings" else "\n\n").join(pieces) + end
    catalogue, rows = opened(tmp_path_factory.mktemp("any"), f"a{suffix}", content)
    own = (lambda text: xml_files.text_of(xml(text))) if suffix == ".xlf" else str
    assert [row.source for row in rows] == [own(text) for text in texts]
    for i, text in new.items():
        catalogue.set(rows[i], own(text))
    path = Path(catalogue.path).with_name(f"b{suffix}")
    catalogue.save(str(path))
    assert read(path) == [new.get(i, text) for i, text in enumerate(texts)]
    output, at = path.read_bytes().decode(), 0
    for part in (start, *(piece for i, piece in enumerate(pieces) if i not in new), end):
        at = output.index(part, at) + len(part)  # it is there to the byte, in its order
    assert new or output == content


CATALOG = """{
  "sourceLanguage" : "de",
  "strings" : {
    "" : {

    },
    "Ja" : {

    },
    "brand" : {
      "shouldTranslate" : false
    },
    "done" : {
      "comment" : "max 20",
      "localizations" : {
        "de" : {
          "stringUnit" : {
            "state" : "translated",
            "value" : "Fertig"
          }
        },
        "en" : {
          "stringUnit" : {
            "state" : "new",
            "value" : "Fertig"
          }
        }
      }
    },
    "trains" : {
      "localizations" : {
        "de" : {
          "variations" : {
            "plural" : {
              "one" : {
                "stringUnit" : {
                  "state" : "translated",
                  "value" : "%lld Zug"
                }
              },
              "other" : {
                "stringUnit" : {
                  "state" : "translated",
                  "value" : "%lld Züge"
                }
              }
            }
          }
        },
        "fr" : {
          "stringUnit" : {
            "state" : "translated",
            "value" : "%lld trains"
          }
        }
      }
    }
  },
  "version" : "1.0"
}"""
ADDED = """"en" : {
          "variations" : {
            "plural" : {
              "one" : {
                "stringUnit" : {
                  "state" : "needs_review",
                  "value" : "%lld train"
                }
              },
              "other" : {
                "stringUnit" : {
                  "state" : "needs_review",
                  "value" : "%lld trains"
                }
              }
            }
          }
        },
        """
ADDED_BELOW_A_KEY = """    "Ja" : {
      "localizations" : {
        "en" : {
          "stringUnit" : {
            "state" : "needs_review",
            "value" : "Yes"
          }
        }
      }
    },"""


def test_a_string_catalog_gets_a_language_as_xcode_writes_it(tmp_path):
    catalogue, rows = opened(tmp_path, "a.xcstrings", CATALOG)
    assert [(row.key, row.source, row.target, row.limit) for row in rows] == [
        ("", "", "", None),
        ("Ja", "Ja", "", None),
        ("done", "Fertig", "", 20),
        ("trains.one", "%lld Zug", "", None),
        ("trains.other", "%lld Züge", "", None),
    ]
    assert catalogue.values == 1 and rows[3].plural == rows[4].plural != ""
    for row, text in zip(rows[1:], ("Yes", "Done", "%lld train", "%lld trains"), strict=True):
        catalogue.set(row, text)
    expected = CATALOG.replace('    "Ja" : {\n\n    },', ADDED_BELOW_A_KEY).replace('"fr" : {', ADDED + '"fr" : {')
    expected = expected.replace(
        '"new",\n            "value" : "Fertig"', '"needs_review",\n            "value" : "Done"'
    )
    assert written(tmp_path, catalogue) == expected
    _, again = opened(tmp_path, "b.xcstrings", expected)
    assert [row.target for row in again if row.fuzzy] == ["Yes", "Done", "%lld train", "%lld trains"]
    report, text = filled(tmp_path, "a.xcstrings", CATALOG, {"Ja": "Yes", "trains.one": "%lld train"})
    assert text == CATALOG.replace('    "Ja" : {\n\n    },', ADDED_BELOW_A_KEY)  # of a plural all forms or none
    assert report["trains.one"]["fault"] == "another form of the plural has no translation"


def test_languages_and_forms_that_a_string_catalog_lacks(tmp_path):
    (tmp_path / "a.xcstrings").write_text(CATALOG)
    french = catalogues.read(str(tmp_path / "a.xcstrings"), language="fr").entries
    assert [row.fault for row in french] == ["", "", "", *["other forms than the source has"] * 2]
    russian = catalogues.read(str(tmp_path / "a.xcstrings"), language="ru")
    russian.set(russian.entries[3], "поезд")  # behind the languages that are there
    texts = json.loads(russian.content())["strings"]["trains"]["localizations"]
    assert [*texts] == ["de", "fr", "ru"]
    assert texts["ru"]["variations"]["plural"]["one"]["stringUnit"] == {"state": "needs_review", "value": "поезд"}
    with pytest.raises(ValueError, match="language must be another one than sourceLanguage, got 'de' for both"):
        catalogues.read(str(tmp_path / "a.xcstrings"), language="de")
    with pytest.raises(ValueError, match="language is for .xcstrings, got .*; leave it out"):
        catalogues.read(str(tmp_path / "a.json"), language="de")
    held = CATALOG.replace('"variations" : {', '"substitutions" : {}, "variations" : {', 1)
    assert [bool(row.fault) for row in opened(tmp_path, "b.xcstrings", held)[1]] == [False, False, False, True, True]


def test_new_copies_of_the_forms_of_a_plural_are_no_translations(tmp_path):
    data = json.loads(CATALOG)
    texts = data["strings"]["trains"]["localizations"]
    texts["en"] = json.loads(json.dumps(texts["de"]).replace('"translated"', '"new"'))
    content = json.dumps(data, ensure_ascii=False, indent=2)
    catalogue, rows = opened(tmp_path, "a.xcstrings", content)
    assert [(row.source, row.target, row.fault) for row in rows[3:]] == [("%lld Zug", "", ""), ("%lld Züge", "", "")]
    catalogue.set(rows[3], "%lld train")
    catalogue.set(rows[4], "%lld trains")
    forms = json.loads(written(tmp_path, catalogue))["strings"]["trains"]["localizations"]["en"]["variations"][
        "plural"
    ]
    assert {form: (unit["stringUnit"]["state"], unit["stringUnit"]["value"]) for form, unit in forms.items()} == {
        "one": ("needs_review", "%lld train"),
        "other": ("needs_review", "%lld trains"),
    }


PLURALS = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
    <!-- max 14 -->
    <key>trains &amp; trams</key>
    <dict>
        <key>NSStringLocalizedFormatKey</key>
        <string>%#@count@</string>
        <key>count</key>
        <dict>
            <key>NSStringFormatSpecTypeKey</key>
            <string>NSStringPluralRuleType</string>
            <key>NSStringFormatValueTypeKey</key>
            <string>lld</string>
            <key>one</key>
            <string>%lld Zug &amp; Tram</string>
            <key>other</key>
            <string>%lld Züge</string>
        </dict>
    </dict>
    <key>files</key>
    <dict>
        <key>NSStringLocalizedFormatKey</key>
        <string>%#@count@ hier</string>
        <key>count</key>
        <dict>
            <key>other</key>
            <string/>
        </dict>
    </dict>
    <key>wide</key>
    <dict>
        <key>NSStringVariableWidthRuleType</key>
        <dict><key>20</key><string>Hallo</string></dict>
    </dict>
</dict>
</plist>
"""


def test_the_plurals_of_a_stringsdict_are_read_and_written_as_plistlib_reads_them(tmp_path):
    catalogue, rows = opened(tmp_path, "a.stringsdict", PLURALS)
    assert [(row.key, row.source, row.limit, row.fault, row.plural) for row in rows] == [
        ("trains & trams.count.one", "%lld Zug & Tram", 14, "", "trains & trams"),
        ("trains & trams.count.other", "%lld Züge", 14, "", "trains & trams"),
        ("files.NSStringLocalizedFormatKey", "%#@count@ hier", None, "a variable of a plural in a text", "files"),
        ("files.count.other", "", None, "", "files"),
    ]
    assert catalogue.values == 4  # a format, two types and a text for a width
    catalogue.set(rows[0], "%lld <train> & tram")
    catalogue.set(rows[3], "%d files")
    content = written(tmp_path, catalogue)
    expected = plistlib.loads(PLURALS.encode())
    expected["trains & trams"]["count"]["one"] = "%lld <train> & tram"
    expected["files"]["count"]["other"] = "%d files"
    assert plistlib.loads(content.encode()) == expected
    assert content == PLURALS.replace("%lld Zug &amp; Tram", "%lld &lt;train&gt; &amp; tram").replace(
        "<string/>", "<string>%d files</string>"
    ).replace("    <!-- max 14 -->", "    <!-- fuzzy -->\n    <!-- max 14 -->").replace(
        "    <key>files", "    <!-- fuzzy -->\n    <key>files"
    )
    report, text = filled(tmp_path, "a.stringsdict", PLURALS, {"trains & trams.count.one": "%lld train"})
    assert text == PLURALS  # of a plural all forms or none
    assert report["trains & trams.count.one"]["fault"] == "another form of the plural has no translation"


OLD = '<xliff version="1.2"><file><body>{}</body></file></xliff>'
NEW = '<xliff version="2.1" xmlns:s="urn:oasis:names:tc:xliff:sizerestriction:2.0"><file>{}</file></xliff>'
UNIT = "<trans-unit id='a'{}><source>Ja</source></trans-unit>"
GROUP = OLD.format(f'<group maxwidth="9" size-unit="char">{UNIT}</group>')
SEGMENT = "<segment><source>Ja</source></segment>"
TWO = NEW.format("{}<unit id='a'{}>" + SEGMENT + "</unit>")
SIZES: dict[str, dict[str, int] | str] = {
    OLD.format(UNIT.format(' maxwidth="20" size-unit="char"')): {"character": 20},
    OLD.format(UNIT.format(' maxwidth="20" size-unit="byte"')): {"byte": 20},
    OLD.format(UNIT.format(' maxwidth="20" size-unit="col" maxbytes="30"')): {"width": 20, "byte": 30},
    OLD.format(UNIT.format(' maxwidth="20" size-unit="byte" maxbytes="10"')): {"byte": 10},
    OLD.format(UNIT.format(' maxwidth="20"')): {"pixel": 20},  # the default of XLIFF 1.2
    OLD.format(UNIT.format(' maxwidth="20" size-unit="em"')): {"em": 20},
    GROUP.format(""): {"character": 9},
    GROUP.format(' maxwidth="7"'): {"pixel": 7},
    OLD.format(UNIT.format(' maxwidth="many"')): "a limit that is not a maximum: 'many'",
    TWO.format("", ' s:sizeRestriction="20"'): {"character": 20},
    TWO.format("", ' s:sizeRestriction="0,20" s:storageRestriction="30"'): {"character": 20, "byte": 30},
    TWO.format("", ' s:sizeRestriction="5,*"'): {},
    TWO.format("", ' s:sizeRestriction="5,20"'): "a limit that is not a maximum: '5,20'",
    TWO.format('<s:profiles generalProfile="a:b" storageProfile="xliff:utf32"/>', ' s:sizeRestriction="2"'): {
        "a:b": 2
    },
    TWO.format('<s:profiles storageProfile="xliff:utf32"/>', ' s:storageRestriction="2"'): {"character": 2},
    TWO.format('<s:profiles><s:normalization general="nfc"/></s:profiles>', ' s:sizeRestriction="2"'): (
        "a limit of the normalized text"
    ),
    NEW.format(f'<unit s:sizeRestriction="9">{SEGMENT}{SEGMENT}</unit>'): "a limit that several strings share",
    NEW.format(f'<group s:sizeRestriction="9"><unit>{SEGMENT}</unit></group>'): "a limit that several strings share",
}


@pytest.mark.parametrize("content", SIZES)
def test_sizes_that_an_xliff_states_are_limits_or_faults(content, tmp_path):
    _, rows = opened(tmp_path, "a.xlf", content)
    assert SIZES[content] == (rows[0].fault or rows[0].limits)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("<mrk mtype='protected'>Ja</mrk>", "a part that is protected or has a limit of its own"),
        ("<mrk translate='no'>Ja</mrk>", "a part that is protected or has a limit of its own"),
        ("Ja</source><seg-source>Ja</seg-source><source>", "sentences that are marked in a seg-source"),
        ("<![CDATA[Ja]]>", "CDATA or an own XML entity"),
    ],
)
def test_what_an_xliff_says_of_a_text_is_kept(source, fault, tmp_path):
    _, rows = opened(tmp_path, "a.xlf", OLD.format(f"<trans-unit><source>{source}</source></trans-unit>"))
    assert [row.fault for row in rows] == [fault]


def test_plurals_of_an_xliff_are_told_by_gettext_and_by_xcode(tmp_path):
    units = "".join(f'<trans-unit id="{key}"><source>Ja</source></trans-unit>' for key in ("1[0]", "1[1]"))
    group = f'<group restype="x-gettext-plurals" id="1">{units}</group>'
    apple = "".join(
        f'<trans-unit id="n|==|plural.{form}"><source>Ja</source></trans-unit>' for form in ("one", "other")
    )
    _, rows = opened(tmp_path, "a.xlf", OLD.format(group + apple + UNIT.format("")))
    assert [row.plural for row in rows] == ["1", "1", "n", "n", ""]


def test_a_limit_holds_in_its_unit():
    row = entries.Entry("a", "Größe", comment="max 9", limits={"byte": 7, "character": 12})
    assert strings.limits_of(row, {}, "width", None) == {"byte": 7, "character": 12, "width": 9}
    assert strings.limits_of(row, {}, "byte", None) == {"byte": 7, "character": 12}
    assert strings.limits_of(row, {"a": 3}, "word", None) == {"word": 3}
    assert strings.limits_of(entries.Entry("b", "Wie groß?"), {}, "word", 1.5) == {"word": 3}
    for text, limits, kept in (
        ("Größe", {"byte": 7}, True),
        ("Größen", {"byte": 7}, False),
        ("日本", {"width": 4, "character": 2}, True),
        ("日本", {"width": 3}, False),
        ("a b c", {"word": 3}, True),
        ("a\nbb", {"width": 2}, True),  # the widest line; in other units the whole text
        ("a\nbb", {"character": 3}, False),
    ):
        assert strings.fits(row, text, limits) == kept, (text, limits)
    row.is_markup = True
    assert strings.fits(row, '<x id="1"/>a &lt; b', {"character": 5})  # `&lt;` is one character, a tag is none


def test_a_limit_that_cannot_be_counted_is_a_fault_until_another_is_given(tmp_path):
    content = OLD.format(
        '<trans-unit id="a" maxwidth="90"><source>Ja</source></trans-unit>'
        '<trans-unit id="b" maxwidth="90"><source>Nein</source><target>No</target></trans-unit>'
    )
    for most, faults in (({}, {"a": True}), ({"a": 5}, {"a": False})):
        _, rows = opened(tmp_path, "a.xlf", content)
        todo = strings.to_do([(row, strings.limits_of(row, most, "width", 1.0)) for row in rows])
        assert {row.key: bool(row.fault) for row, _ in todo} == faults  # a finished text stays
        assert not todo[0][0].fault or "its limit is in pixel, which this package cannot count" in todo[0][0].fault


def test_the_recipe_keeps_the_limits_of_an_xliff(tmp_path, monkeypatch, capsys):
    class Model:
        def fit(self, requests):
            rooms = [request.limit for request in requests]
            assert rooms == [4, 8]  # 5 of 6 bytes of "Größe"... in columns; 8 characters
            texts = [[["Größe"], ["Size"]], [["Please wait."], ["Wait."]]]
            return [
                next(
                    strings.Fitted(text, layout, text, -0.1)
                    for text in own
                    if (layout := request.layout(text)) is not None
                )
                for own, request in zip(texts, requests, strict=True)
            ]

        def agreement(self, requests):
            return [100.0] * len(requests)

    monkeypatch.setattr(strings, "fitter", lambda args: Model())
    monkeypatch.chdir(tmp_path)
    content = OLD.format(
        '<trans-unit id="a" maxwidth="6" size-unit="byte"><source>Größe</source></trans-unit>'
        '<trans-unit id="b" maxwidth="8" size-unit="char"><source>Bitte warten.</source></trans-unit>'
        '<trans-unit id="c" maxwidth="8"><source>Ja.</source></trans-unit>'
    )
    Path("a.xlf").write_text(content, encoding="utf-8")
    strings.main(["--input_file", "a.xlf", "--output_file", "b.xlf", "--report_dir", "report", "--model", "m"])
    state = '<target state="needs-review-translation">'
    expected = content.replace("Größe</source>", f"Größe</source>{state}Size</target>")
    expected = expected.replace("warten.</source>", f"warten.</source>{state}Wait.</target>")
    assert Path("b.xlf").read_text(encoding="utf-8") == expected
    assert "limits in the file 3, missing 3, too long 0, translated 2" in capsys.readouterr().out
    assert "| c |  | its limit is in pixel" in Path("report/report.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="unit of a text must be .* got 'pixels'"):
        strings.main(
            [
                "--input_file",
                "a.xlf",
                "--output_file",
                "c",
                "--report_dir",
                "r",
                "--model",
                "m",
                "--limit_unit",
                "pixels",
            ]
        )


LATIN = '<?xml version="1.0" encoding="iso-8859-1"?>'
DATA = '<root><data name="a"><value>%s</value></data></root>'
MARKED = DATA.replace("<data", "<!-- fuzzy --><data")


@pytest.mark.parametrize(
    ("name", "raw", "text", "expected"),
    [
        ("a.strings", '"a" = "Ja";'.encode("utf-16"), "Yes…", '/* fuzzy */\n"a" = "Yes…";'.encode("utf-16")),
        ("b.strings", b'\xef\xbb\xbf"a" = "Ja";', "Yes", b'\xef\xbb\xbf/* fuzzy */\n"a" = "Yes";'),
        ("c.properties", "a=schön".encode("iso-8859-1"), "é…", "# fuzzy\na=é\\u2026".encode("iso-8859-1")),
        ("d.properties", "a=schön".encode(), "é…", "# fuzzy\na=é…".encode()),
        ("e.resx", f"{LATIN}{DATA % 'é'}".encode("latin-1"), "é…", f"{LATIN}{MARKED % 'é&#8230;'}".encode("latin-1")),
    ],
)
def test_an_encoding_and_its_mark_stay(name, raw, text, expected, tmp_path):
    (tmp_path / name).write_bytes(raw)
    catalogue = catalogues.read(str(tmp_path / name))
    catalogue.set(catalogue.entries[0], text)
    catalogue.save(str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.xlf", "<xliff><file>", "a.xlf: not valid XML: no element found: line 1"),
        ("b.xlf", "<resources/>", "b.xlf: the root of XLIFF must be xliff, got 'resources'"),
        ("c.strings", '"a" = "b";\n"c" = d e;\n', "c.strings: no key with a value in line 2: .*d e"),
        ("d.xcstrings", '{"strings": {}}', "d.xcstrings: not a string catalog of Xcode: 'sourceLanguage'"),
        ("h.stringsdict", "<a/>", "h.stringsdict: the root of a .stringsdict must be a plist of a dict, got 'a'"),
        ("f.resx", '<?xml version="1.0" encoding="utf-9"?><root/>', "f.resx: unknown encoding: utf-9"),
        ("e.xcstrings", '{"sourceLanguage": "de", "strings": {"a": 1}}', "e.xcstrings: not a string catalog of Xcode"),
        (
            "g.txt",
            "",
            "strings must be .po, .pot, .xlf, .xliff, .xcstrings, .strings, .stringsdict, .xml, ",
        ),
    ],
)
def test_what_is_no_such_file_is_refused(name, content, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        opened(tmp_path, name, content)


def test_a_string_in_the_line_of_another_is_marked_above_it(tmp_path):
    catalogue, rows = opened(tmp_path, "a.strings", '"a" = "Ja"; "b" = "Nein";')
    catalogue.set(rows[1], "No")
    content = written(tmp_path, catalogue)
    assert content == '"a" = "Ja"; \n/* fuzzy */\n"b" = "No";'
    assert [row.fuzzy for row in opened(tmp_path, "b.strings", content)[1]] == [False, True]


def test_a_text_that_a_file_cannot_hold_is_refused(tmp_path):
    for name, content, text, message in (
        ("a.properties", "a={0} Bild", "It's {0}", "an apostrophe beside an argument"),
        ("b.xlf", OLD.format(UNIT.format("")), "a < b", "the output is not valid XML"),
    ):
        catalogue, rows = opened(tmp_path, name, content)
        with pytest.raises(ValueError, match=message):
            catalogue.set(rows[0], text)
        catalogue.set(rows[0], "Its {0}")


@pytest.mark.parametrize(
    ("kind", "own", "other", "expected"),
    [
        (".strings", '"a" = "Ja";\n"b";', '/* fuzzy */\n"a" = "Y\\q";\n"b" = "B";', '"a" = "Y\\q";\n"b" = "B";'),
        (".properties", "a = Ja\nb:Nein", "b = \\u004eo\na=Y\\u12", "a = Y\\u12\nb:\\u004eo"),
        (
            ".resx",
            "<root><data name='a'><value/></data><data name='b'><value>Ja</value></data></root>",
            "<root><data name='b'><value /></data><data name='a'><value><![CDATA[Hi]]></value></data></root>",
            "<root><data name='a'><value><![CDATA[Hi]]></value></data><data name='b'><value></value></data></root>",
        ),
    ],
)
def test_translations_so_far_are_copied_to_the_byte(kind, own, other, expected, tmp_path):
    catalogue, _ = copied(tmp_path, kind, own, other)
    assert written(tmp_path, catalogue).replace("/* fuzzy */\n", "") == expected


@pytest.mark.slow
def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    command = re.findall(
        r"^python recipes/fit/strings.py (.*?)```", (ROOT / "docs" / "strings.md").read_text(), re.M | re.S
    )
    for folder in ("docs", "models"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    strings.main(shlex.split(command[0].replace("\\\n", "")))
    texts = {key: unit.target for key, unit in read_by_toolkit(tmp_path / "en.xlf", xlifffile).items()}
    assert texts == {"wait": "Please wait a moment.", "trains": "There are still %d trains left.", "over": None}
    report = (tmp_path / "strings_report" / "report.md").read_text(encoding="utf-8")
    assert "its limit is in pixel, which this package cannot count" in report
