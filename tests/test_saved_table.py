"""Unit tables saved beside a tokenizer: what is read is what was built, and nothing else is."""

import copy

import pytest
import torch
from conftest import save_in
from test_causal import build_plain, make_tokenizer
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import hf_lenctrl
from hf_lenctrl import Unit, UnitTable, length_units, saved_table


@pytest.fixture
def folder(tmp_path):
    return save_in(tmp_path / "llama", build_plain("llama"), make_tokenizer())


@pytest.fixture
def built(monkeypatch):
    """The tables that are built from the entries of a vocabulary, one `True` for each."""
    made, build = [], length_units.UnitVocabulary
    monkeypatch.setattr(length_units, "UnitVocabulary", lambda *given: made.append(True) or build(*given))
    return made


def load(folder):
    return PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.parametrize("unit", ["character", "word", "width", "grapheme"])
def test_a_saved_table_is_read_as_it_was_built(unit, folder, built):
    expected = UnitTable.from_tokenizer(make_tokenizer(), unit)
    file = hf_lenctrl.save_unit_table(load(folder), unit)
    assert (file, len(built)) == (folder / "unit_tables" / f"{unit}.safetensors", 2)
    table = UnitTable.from_tokenizer(load(folder), unit)
    assert len(built) == 2  # read
    assert torch.equal(table.weights, expected.weights)
    assert torch.equal(table.next_state, expected.next_state)
    tokenizer = load(folder)
    ids = tokenizer("two ships", add_special_tokens=False, return_tensors="pt")["input_ids"]
    assert table.count(ids).tolist() == [hf_lenctrl.count_units(tokenizer.decode(ids[0]), unit)]


def test_the_pipeline_of_a_plain_model_reads_a_saved_table(folder, built):
    hf_lenctrl.save_unit_table(load(folder), "width")
    del built[:]
    out = hf_lenctrl.pipeline(str(folder))("two", length=5, length_unit="width", length_constraint="exact")
    assert (out["length"], built) == (5, [])


@pytest.mark.parametrize("change", ["vocabulary", "special", "package", "source"])
def test_a_stale_table_is_built_again_with_a_warning(change, folder, built, monkeypatch, caplog):
    hf_lenctrl.save_unit_table(load(folder), "character")
    del built[:]
    tokenizer = load(folder)
    if change == "vocabulary":
        tokenizer.add_tokens(["lighthouse"])
    elif change == "special":
        tokenizer.add_special_tokens({"additional_special_tokens": [tokenizer.convert_ids_to_tokens(9)]})
    elif change == "package":
        monkeypatch.setattr(saved_table, "columns_version", "0.0.1")
    else:
        monkeypatch.setattr(saved_table, "_SOURCES", ("lengths.py",))
    with caplog.at_level("WARNING"):
        table = UnitTable.from_tokenizer(tokenizer, "character")
    assert built == [True]
    assert "so the table is built again; call hf_lenctrl.save_unit_table(tokenizer, 'character')" in caplog.text
    ids = torch.tensor([[len(tokenizer) - 1, 9]])
    assert table.count(ids).tolist() == [len(tokenizer.decode(ids[0], skip_special_tokens=True))]


def test_a_table_is_stale_for_another_entry_behind_a_gap(tmp_path):
    words = {"</s>": 0, "<unk>": 1, "a": 2}
    for word in ("to", "lighthouse"):  # the highest id is above the number of entries
        backend = Tokenizer(models.WordLevel({**words, word: 9}, unk_token="<unk>"))
        backend.decoder = decoders.Fuse()
        special = {"eos_token": "</s>", "unk_token": "<unk>"}
        PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(tmp_path)
        assert UnitTable.from_tokenizer(load(tmp_path), "character").count(torch.tensor([[9]])).tolist() == [len(word)]
        hf_lenctrl.save_unit_table(load(tmp_path), "character")


def test_a_table_has_a_place_and_a_unit_with_a_name(folder):
    with pytest.raises(ValueError, match=r"name_or_path='', which is not a folder; call tokenizer.save_pretrained"):
        hf_lenctrl.save_unit_table(make_tokenizer(), "word")
    with pytest.raises(ValueError, match="unit of a saved table must be one of token, character"):
        hf_lenctrl.save_unit_table(load(folder), Unit(None, lambda state, character: (1, state)))
    assert not (folder / "unit_tables").exists()


def test_a_tokenizer_of_the_hub_has_its_table_in_the_cache(folder, built, monkeypatch):
    monkeypatch.setattr(saved_table, "try_to_load_from_cache", lambda name, file: str(folder / file))
    tokenizer = copy.deepcopy(make_tokenizer())
    tokenizer.name_or_path = "somebody/llama"
    assert hf_lenctrl.save_unit_table(tokenizer, "byte") == folder / "unit_tables" / "byte.safetensors"
    UnitTable.from_tokenizer(tokenizer, "byte")
    assert built == [True]
