"""The data set `data/everyday_en_de_fr`, and what the repository may hold."""

import importlib
import re
import subprocess
from types import SimpleNamespace

import datasets
import pyarrow
import pyarrow.parquet
import pytest
import yaml
from recipe_runs import ROOT

from hf_lenctrl.inference.fitted import lost


FOLDER = ROOT / "data" / "everyday_en_de_fr"
COLUMNS = ["de", "fr", "en", "shorter", "longer", "subject"]
KINDS = {"words": "kind de fr en", "phrases": "de fr en de_done fr_done en_done", "names": "kind de fr en"}
OTHERS = {
    "templates": "de fr en",
    "rewordings": "en texts",
    "condensed": "de fr en texts",
    "alternatives": "longer shorter direction",
}
LISTS = {name: set(columns.split()) for name, columns in (KINDS | OTHERS).items()}
MOST = 82  # MB of tracked files: the weights are 62 of them
LARGE = {  # the only files of more than 1 MB
    "data/everyday_en_de_fr/rewordings.parquet",
    "data/everyday_en_de_fr/train-00000-of-00001.parquet",
    "models/rewrite_english/adapter_model.safetensors",
    "models/rewrite_english/tokenizer.json",
    "models/translate_to_english/model.safetensors",
    "models/translate_to_english/predictor/model.safetensors",
}


@pytest.fixture(scope="module")
def written():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "lab" / "translation")
        yield importlib.import_module("written")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """The data set as `load_dataset` reads it: its splits, their rows, and its lists by name."""
    cache = str(tmp_path_factory.mktemp("cache"))
    lists = {name: datasets.load_dataset(str(FOLDER), name, split="train", cache_dir=cache) for name in LISTS}
    splits = datasets.load_dataset(str(FOLDER), cache_dir=cache)
    rows = {name: part.to_pandas().to_dict("records") for name, part in splits.items()}
    return SimpleNamespace(splits=splits, rows=rows, lists=lists)


def test_the_data_set_loads_with_its_splits_and_lists(loaded):
    assert {name: part.num_rows for name, part in loaded.splits.items()} == {"train": 129_762, "validation": 206}
    assert all(part.column_names == COLUMNS for part in loaded.splits.values())
    found = {name: part.num_rows for name, part in loaded.lists.items()}
    assert found == {
        "words": 5388,
        "phrases": 4111,
        "names": 947,
        "templates": 334,
        "rewordings": 17_677,
        "condensed": 9_328,
        "alternatives": 10_680,
    }
    assert all(set(part.column_names) == LISTS[name] for name, part in loaded.lists.items())
    row = loaded.splits["validation"][0]
    assert (row["de"], row["en"]) == ("Kau nicht an den Fingernägeln!", "Don't bite your nails!")


def test_each_row_has_three_stripped_texts_and_a_subject_in_plain_words(loaded):
    for name, rows in loaded.rows.items():
        assert all(row["de"] and row["fr"] and row["en"] for row in rows), name
        assert all(text == text.strip() and "\t" not in text for row in rows for text in row.values()), name
        assert all(re.fullmatch("(French |German )?[a-z]+( [a-z]+)?", row["subject"]) for row in rows), name


def test_no_sentence_of_the_validation_rows_is_trained_on(loaded):
    for code in ("de", "fr", "en"):
        train, validation = ({row[code] for row in loaded.rows[name]} for name in ("train", "validation"))
        assert not train & validation


def test_the_rewordings_are_of_training_sentences_and_of_other_lengths(loaded):
    lines = loaded.lists["rewordings"]
    assert len({*lines["en"]}) == len(lines) and {*lines["en"]} <= {*loaded.splits["train"]["en"]}
    assert sum(map(len, lines["texts"])) == 81_459
    for en, texts in zip(lines["en"], lines["texts"], strict=True):
        assert texts and len({*texts, en}) == len(texts) + 1, en
        assert all(0.5 <= len(text) / len(en) <= 1.6 for text in texts), en
        assert all(sorted(re.findall(r"\d+", text)) == sorted(re.findall(r"\d+", en)) for text in texts), en


def test_the_condensed_texts_are_shorter_and_keep_names_and_numbers(loaded):
    lines = loaded.lists["condensed"]
    assert len({*lines["en"]}) == len(lines) and sum(map(len, lines["texts"])) == 20_270
    assert all(bool(de) != bool(fr) for de, fr in zip(lines["de"], lines["fr"], strict=True))
    for en, texts in zip(lines["en"], lines["texts"], strict=True):
        assert texts and [*texts] == sorted({*texts}, key=lambda text: (-len(text), texts.index(text))), en
        assert all(0.5 <= len(text) / len(en) <= 0.97 and text[-1] == en[-1] for text in texts), en
        assert not any(lost(en, text) or lost(text, en) for text in texts), en


def test_the_card_has_the_figures_of_the_rows(loaded):
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    header = yaml.safe_load(text.split("---")[1])
    assert header["license"] == "apache-2.0" and header["language"] == ["de", "fr", "en"]
    rows = [row for part in loaded.rows.values() for row in part]
    several = sum(bool(row["shorter"] or row["longer"]) for row in rows)
    assert f"{len(rows):,} sentences" in text and f"{several:,} of them" in text
    empty = [sum(not row[column] for row in rows) for column in ("shorter", "longer")]
    assert "empty in {:,} and in {:,} rows".format(*empty) in text
    train = loaded.rows["train"]
    distinct = [len({row[code] for row in train}) for code in ("de", "fr", "en")]
    assert "{:,} German, {:,} French and {:,} English sentences are distinct".format(*distinct) in text
    texts = {tuple(row[column] for column in COLUMNS[:5]) for row in train}
    assert f"- {len(train) - len(texts)} rows of `train` are there twice" in text
    counts = {name: part.num_rows for name, part in {**loaded.splits, **loaded.lists}.items()}
    assert all(f"| `{name}` | {count:,} |" in text for name, count in counts.items())


def test_a_file_that_is_written_again_has_the_same_bytes(written, tmp_path):
    path = FOLDER / "names.parquet"
    made_by = str(pyarrow.parquet.read_metadata(path).created_by)
    if pyarrow.__version__ not in made_by:
        pytest.skip(f"the file is of {made_by}, another version of pyarrow writes other bytes")
    written.save(written.read("names"), tmp_path / "again.parquet")
    assert (tmp_path / "again.parquet").read_bytes() == path.read_bytes()


@pytest.fixture(scope="module")
def sizes():
    """Bytes of each tracked file."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("this is no clone")
    paths = ((name, ROOT / name) for name in done.stdout.split("\0") if name)
    return {name: path.stat().st_size for name, path in paths if path.is_file()}


def test_the_checkout_stays_small_and_has_no_new_large_file(sizes):
    large = {name for name, size in sizes.items() if size > 1_000_000}
    assert large <= LARGE, f"put these elsewhere, or name them here: {sorted(large - LARGE)}"
    assert sum(sizes.values()) < MOST * 1_000_000
    assert sum(size for name, size in sizes.items() if name.startswith("data/")) < 12_000_000
