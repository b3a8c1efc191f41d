"""Weights are read from a model's own folder alone."""

import json

import pytest
from conftest import build_model
from recipe_runs import save, save_stock, write_predictor
from transformers import AutoModelForSeq2SeqLM, pipeline

import hf_lenctrl
from hf_lenctrl.commands import generate
from hf_lenctrl.length_predictor import load_predictor


@pytest.fixture
def others(tmp_path, shared_tokenizer):
    """Folders of models whose index names the weights of another model, and how each is loaded."""
    model = build_model("marian", vocab_size=len(shared_tokenizer), length_unit="character")
    folders = {
        "controlled": save(model, shared_tokenizer, tmp_path / "controlled"),
        "plain": save_stock(tmp_path / "plain", shared_tokenizer),
        "predictor": write_predictor(tmp_path / "predictor"),
    }
    for name, folder in folders.items():
        (folder / "model.safetensors").rename(tmp_path / f"{name}.safetensors")
    return folders


def point(folder, name: str) -> None:
    index = {"metadata": {}, "weight_map": {"model.shared.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("where", ["../{}.safetensors", "/{}.safetensors", "sub/../../{}.safetensors", r"..\{}"])
def test_an_index_that_names_files_outside_its_folder_is_not_followed(others, where, tmp_path):
    load = {
        "controlled": AutoModelForSeq2SeqLM.from_pretrained,
        "plain": hf_lenctrl.add_length_control,
        "predictor": load_predictor,
    }
    for name, folder in others.items():
        point(folder, shard := where.format(name))
        with pytest.raises(OSError, match="names .*, which lies outside its folder; do not load this") as refused:
            load[name](folder)
        assert repr(shard) in str(refused.value)
    (tmp_path / "texts.txt").write_text("A text.")
    point(others["plain"], "../plain.safetensors")
    with pytest.raises(OSError, match="which lies outside its folder"):
        pipeline("length-controlled-generation", model=str(others["plain"]))
    words = ["--input_file", str(tmp_path / "texts.txt"), "--output_file", str(tmp_path / "out.jsonl")]
    with pytest.raises(OSError, match="which lies outside its folder"):
        generate.main([*words, "--model", str(others["plain"])])


def test_a_model_in_shards_loads(tmp_path, shared_tokenizer):
    model = build_model("marian", vocab_size=len(shared_tokenizer), length_unit="character")
    model.set_unit_table(shared_tokenizer)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    loaded = hf_lenctrl.LenCtrlMarianMTModel.from_pretrained(tmp_path)
    assert loaded.model.shared.weight.equal(model.model.shared.weight)


def test_the_index_of_a_variant_is_checked_and_another_file_is_left_alone(tmp_path, shared_tokenizer):
    model = build_model("marian", vocab_size=len(shared_tokenizer))
    model.save_pretrained(tmp_path / "model", variant="fp16", max_shard_size="20KB")
    (tmp_path / "model" / "pages.index.json").write_text("[]")  # a search engine's
    load = hf_lenctrl.LenCtrlMarianMTModel.from_pretrained
    assert load(tmp_path / "model", variant="fp16").model.shared.weight.equal(model.model.shared.weight)
    index = tmp_path / "model" / "model.safetensors.index.fp16.json"
    index.write_text(index.read_text().replace('": "model', '": "../model'))
    with pytest.raises(OSError, match="names .*, which lies outside its folder; do not load this"):
        load(tmp_path / "model", variant="fp16")
