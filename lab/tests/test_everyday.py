"""Names, places, numbers and times in sentence pairs for the translation recipes."""

import gzip
import importlib
import json
import random
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from recipe_runs import ROOT, read_rows
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianMTModel


@pytest.fixture(scope="module")
def scripts():
    """Modules of the folder by name."""
    names = ("edits", "epochs", "everyday", "plain", "rewordings", "slots", "words", "written")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "lab" / "translation")
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})


class First:
    """Draws the first choice, the smallest number."""

    choice = staticmethod(lambda choices: choices[0])
    randrange = staticmethod(lambda low, high=None: 0 if high is None else low)


@pytest.mark.parametrize(
    "code, source, target, wanted",
    [
        ("de", "Tom kennt Maria.", "Tom knows Mary.", ("Lukas kennt Anna.", "Lukas knows Anna.")),
        # a name that ends in s has no German genitive with s
        ("de", "Toms Auto ist neu.", "Tom's car is new.", ("Pauls Auto ist neu.", "Paul's car is new.")),
        ("fr", "C'est l'ami de Tom.", "He is Alice's friend.", None),  # other names on the two sides
        ("fr", "C'est la voiture de Marie.", "It's Mary's car.", ("C'est la voiture d'Anna.", "It's Anna's car.")),
        ("de", "Ich habe 30 Euro.", "I have 30 euros.", ("Ich habe 13 Euro.", "I have 13 euros.")),
        ("de", "Um 7 Uhr.", "At 7 o'clock.", None),  # an hour may be written otherwise on the other side
    ],
)
def test_names_places_and_numbers_change_on_both_sides(scripts, code, source, target, wanted):
    assert scripts.slots.replace(source, target, code, First) == wanted


def test_times_are_converted(scripts):
    draw = random.Random(1)
    assert {scripts.slots.clock(draw) for _ in range(20_000)} >= {
        ("halb acht", "sept heures et demie", "half past seven"),
        ("Viertel vor drei", "trois heures moins le quart", "a quarter to three"),
        ("14:30 Uhr", "14 h 30", "2:30 p.m."),
        ("12.05 Uhr", "12h05", "12:05 p.m."),
        ("ein Uhr", "une heure", "one o'clock"),
        ("18 Uhr", "18 heures", "6 p.m."),
    }


@pytest.mark.parametrize(
    "word, form, wanted",
    [
        (("der Kunde+n", "le client", "customer"), "acc", ("den Kunden", "le client", "the customer")),
        (("das Hotel", "l'hôtel m", "hotel"), "to", ("zum Hotel", "à l'hôtel", "the hotel")),
        (("der Markt", "le marché", "market"), "dat", ("dem Markt", "du marché", "the market")),
        (("die Schulter", "l'épaule f", "shoulder"), "my", ("meine Schulter", "mon épaule", "my shoulder")),
        (("die Bohnen", "les haricots", "beans"), "no", ("keine Bohnen", "de haricots", "no beans")),
        (("die Zwiebeln", "les oignons", "onions"), "some", ("Zwiebeln", "des oignons", "onions")),
        (("der Regenschirm", "le parapluie", "umbrella"), "one", ("einen Regenschirm", "un parapluie", "an umbrella")),
    ],
)
def test_words_have_their_articles(scripts, word, form, wanted):
    assert scripts.words.forms(*word)[form] == wanted


@pytest.mark.parametrize(
    "german, done, wanted",
    [
        ("die Wäsche aufhängen", "die Wäsche aufgehängt", "die Wäsche aufzuhängen"),
        ("den Termin verschieben", "den Termin verschoben", "den Termin zu verschieben"),
        ("einen Kuchen backen", "einen Kuchen gebacken", "einen Kuchen zu backen"),
        ("die Akten kopieren", "die Akten kopiert", "die Akten zu kopieren"),
        ("die Rede vorbereiten", "die Rede vorbereitet", None),  # "vorzubereiten"; its participle has no "ge"
        ("das Wort wiederholen", "das Wort wiederholt", "das Wort zu wiederholen"),
        ("mit dem Zug fahren", "", None),
    ],
)
def test_an_infinitive_with_zu(scripts, german, done, wanted):
    assert scripts.words._infinitive(german, done) == wanted


@pytest.mark.parametrize(
    "form, phrase",
    [
        ("do", ("die Tagesordnung verschicken", "envoyer l'ordre du jour", "send out the agenda")),
        ("zu", ("die Tagesordnung zu verschicken", "d'envoyer l'ordre du jour", "send out the agenda")),
        ("zua", ("die Tagesordnung zu verschicken", "envoyer l'ordre du jour", "send out the agenda")),
        ("done", ("die Tagesordnung verschickt", "envoyé l'ordre du jour", "sent out the agenda")),
        ("did", ("die Tagesordnung verschickt", "envoyé l'ordre du jour", "send out the agenda")),
    ],
)
def test_phrases_fit_their_slots(scripts, form, phrase):
    assert phrase in scripts.words.PHRASES[form]
    assert len(scripts.words.PHRASES[form]) > 1000


@pytest.mark.parametrize(
    "text, others",
    [
        ("I'm tired.", {"I am tired."}),
        ("Unable to connect", {f"{how} connect" for how in "Could not|Couldn't|Cannot|Can't|Failed to".split("|")}),
        ("Wait ten minutes.", {"Wait 10 minutes."}),
        ("Why didn't anyone come?", {"Why didn't anybody come?"}),  # never "did not anyone"
        ("This is it.", {None}),  # never "This's"
        ("Don't you know?", {None}),
    ],
)
def test_a_rewording_keeps_grammar_and_meaning(scripts, text, others):
    assert {scripts.rewordings.reword(text, random.Random(seed)) for seed in range(40)} == others


def write(path: Path, code: str, rows: list[tuple[str, str, str, str]]) -> str:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for split, text, english, kind in rows:
            file.write(json.dumps({"split": split, code: text, "en": english, "kind": kind}) + "\n")
    return str(path)


def save_sentences(written, folder: Path, *rows: str) -> None:
    """Save `"Ja|Oui|Yes"`, or with a shorter and a longer English text, as the training split of a data set."""
    texts = ((row.split("|") + ["", ""])[:5] for row in rows)
    written.save([dict(zip(written.TEXTS, fields, strict=True)) for fields in texts], folder / "train.parquet")


def test_the_files_hold_pairs_and_variants_and_no_held_out_name(scripts, tmp_path, monkeypatch):
    everyday, written = scripts.everyday, scripts.written
    save_sentences(
        written, tmp_path, "die Zwiebel|l'oignon|the onion", "Harriet kocht.|Harriet cuisine.|Harriet cooks."
    )
    monkeypatch.setattr(written, "pairs", partial(written.pairs, folder=tmp_path))
    rows = [("train", f"Tom hat {i} Euro.", f"Tom has {i} euros.", "prose") for i in range(20, 60)]
    rows += [("train", "Florian ist da.", "Florian is here.", "prose"), ("train", "Ja", "Yes", "machine")]
    rows += [("validation", "Gut.", "Good.", "prose"), ("test", "Nein.", "No.", "prose")]
    file = write(tmp_path / "small.jsonl.gz", "de", rows)
    options = ["--sentences", "300", "--replace_share", "1", "--weights", "machine=0", "--typed_share", "0.5"]
    options += ["--written_copies", "2"]
    everyday.main([file, "--output_dir", str(tmp_path / "one"), *options])
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["names.jsonl", "test_small.jsonl", "train.jsonl", "validation.jsonl"]
    names, test, train, _ = (read_rows(tmp_path / "one" / name) for name in files)
    assert {"source": "Tom hat 33 Euro.", "target": "Tom has 33 euros."} in train
    assert {"source": "Ja", "target": "Yes"} not in train
    assert train.count({"source": "die Zwiebel", "target": "the onion"}) >= 2  # a written sentence
    assert test == [{"source": "Nein.", "target": "No."}]
    assert any(row["source"].startswith("tom hat") for row in train)  # as people type
    assert any(row["source"].count("Tom") == 2 for row in train)  # two pairs joined
    held_out = {name for names in scripts.slots.HELD_OUT.values() for name in names}
    assert not any(name in row["target"].split() for row in train for name in held_out)
    assert len(names) == 200
    assert all(any(name in row["target"] for name in held_out) for row in names)
    assert all(word in row["target"] for row in names for word in row["names"])
    other = write(tmp_path / "other.jsonl.gz", "de", [("train", "Nein.", "Not at all.", "prose")])
    everyday.main([other, file, "--output_dir", str(tmp_path / "two"), "--sentences", "0", "--written_copies", "0"])
    two = (tmp_path / "two" / "train.jsonl").read_text(encoding="utf-8")
    assert "Nein" not in two and "Tom hat 33 Euro." in two  # a test source of the other file
    assert everyday.has_held_out({"source": "", "target": "Dijon's market is old."})
    file = write(tmp_path / "it.jsonl.gz", "it", [("train", "Sì.", "Yes.", "prose")])
    with pytest.raises(ValueError, match="de or fr.*it"):
        everyday.main([file, "--output_dir", str(tmp_path / "data")])


def test_each_draw_has_other_rows_and_no_tested_source(scripts, tmp_path, monkeypatch):
    epochs, written = scripts.epochs, scripts.written
    rows = [("train", f"{word} ist hier.", f"{word} is here.", "prose") for word in ("Brot", "Milch", "Wein")]
    rows += [("test", "Milch ist hier.", "Milch is here.", "prose"), ("validation", "Gut.", "Good.", "prose")]
    file = write(tmp_path / "everyday_de_en.jsonl.gz", "de", rows)
    save_sentences(written, tmp_path, *["Ja, gern.|Oui, volontiers.|Yes, gladly.|Yes, sure.|Yes, please do."] * 9)
    monkeypatch.setattr(epochs, "TEMPLATES", 5)
    read = [(Path(file).name, *scripts.everyday.read(file))]
    one, same, two = (epochs.draw_rows(read, seed, tmp_path) for seed in (1, 1, 2))
    assert one == same != two
    assert ("Brot ist hier.", "Brot is here.", False) in one and "Milch ist hier." not in {row[0] for row in one}
    texts = {row[1:] for row in one if row[0] == "Ja, gern."}
    assert ("Yes, gladly.", False) in texts and ("Yes, please do.", True) in texts  # it always has its length
    with pytest.raises(KeyError):
        epochs.draw_rows([("news_de_en.jsonl.gz", *read[0][1:])], 1, tmp_path)

    save = (tmp_path / "train.parquet").read_bytes()
    (tmp_path / "validation.parquet").write_bytes(save)
    monkeypatch.setattr(written, "FOLDER", tmp_path)
    epochs.main([file, "--output_dir", str(tmp_path / "out"), "--epochs", "2"])
    train, held = (read_rows(tmp_path / "out" / f"{name}.jsonl") for name in ("train", "validation"))
    assert {"source": "Gut.", "target": "Good.", "reworded": False} in held and len(held) == 1 + 2 * 9
    assert sum(row["source"] == "Brot ist hier." and row["target"] == "Brot is here." for row in train) == 2
    assert "Ja, gern." not in {row["source"] for row in train}  # a validation row now


def test_written_sentences_become_pairs_and_lengths(scripts, tmp_path):
    written = scripts.written
    good = "Wo ist er?|Où est-il ?|Where is he?|Where's he?|In which place is he now?"
    save_sentences(written, tmp_path, good)
    assert list(written.pairs("fr", folder=tmp_path)) == [{"source": "Où est-il ?", "target": "Where is he?"}]
    assert [row["target"] for row in written.lengths("de", tmp_path)] == ["Where's he?"]  # the other is twice as long
    condensed = {"de": "", "fr": "Ils ne viennent pas.", "en": "They do not come.", "texts": ["They don't come."]}
    written.save([condensed], tmp_path / "condensed.parquet")
    natural, short = ({"source": condensed["fr"], "target": text} for text in (condensed["en"], *condensed["texts"]))
    assert list(written.pairs("fr", folder=tmp_path))[1:] == [natural]
    assert list(written.lengths("fr", tmp_path))[1:] == [short] and len(list(written.lengths("de", tmp_path))) == 1


def test_the_plain_model_writes_what_the_translator_writes_without_a_length(scripts, tmp_path):
    plain = scripts.plain
    shipped = ROOT / "models" / "translate_to_english"
    plain.main([str(shipped), str(tmp_path / "plain")])
    stock = MarianMTModel.from_pretrained(tmp_path / "plain")
    model = AutoModelForSeq2SeqLM.from_pretrained(shipped, length_constraint=None)
    sources = ["Die Kinder schlafen.", "Où est la gare ?"]
    inputs = AutoTokenizer.from_pretrained(tmp_path / "plain")(sources, padding=True, return_tensors="pt")
    assert stock.generate(**inputs).tolist() == model.generate(**inputs).tolist()


@pytest.mark.parametrize(
    "model, options, pairs", [("translate_to_english", [], "4,082"), ("rewrite_english", ["--written"], "16,094")]
)
def test_the_edits_of_the_models_are_made_from_the_data_set(scripts, tmp_path, capsys, model, options, pairs):
    scripts.edits.main([str(tmp_path / "edits.json"), *options])
    assert (tmp_path / "edits.json").read_bytes() == (ROOT / "models" / model / "edits.json").read_bytes()
    assert capsys.readouterr().out.endswith(f"edits.json: {pairs} pairs of phrases\n")
