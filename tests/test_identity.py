"""Resumed commands know models and data by what they hold: a change is seen, another name is none."""

import json
import shutil

import pytest

from hf_lenctrl.commands.identity import identity, short


FILES = """config.json generation_config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors
    model.safetensors.index.json odd.safetensors pytorch_model.bin tokenizer.json spiece.model vocab.txt
    length_predictor/model.safetensors length_predictor/tokenizer.json""".split()


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    for name in (*FILES, "README.md", "test_outputs.jsonl", "checkpoint-2/model.safetensors", "_run/run.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize("name", FILES)
def test_a_model_is_another_one_where_a_file_that_is_loaded_changes(model, name):
    before = identity(model)
    (model / name).write_text("[]")  # of the same size
    after = identity(model)
    assert [key for key in before if before[key] != after[key]] == [name]
    # the first eight of `printf "{}" | sha256sum`
    assert short(before, after) == f"{name} sha256 44136fa3" and short(after, before).startswith(f"{name} sha256 ")


def test_a_model_is_the_same_in_another_folder_and_beside_other_files(model, tmp_path):
    before = identity(model)
    for name in ("README.md", "test_outputs.jsonl", "checkpoint-2/model.safetensors", "_run/run.json", "out.jsonl"):
        (model / name).write_text("other")
    assert identity(shutil.copytree(model, tmp_path / "copy")) == before
    assert str(tmp_path) not in json.dumps(before)


def test_an_adapter_is_another_one_on_another_base(model, tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(model)}))
    (adapter / "adapter_model.safetensors").write_text("weights")
    before = identity(adapter)
    (model / "config.json").write_text("[]")
    after = identity(adapter)
    assert [name for name in before if before[name] != after[name]] == ["base/config.json"]
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "org/name"}')
    assert identity(adapter)["base"] == "org/name"  # which cannot be asked for its commit here


def test_a_model_on_the_hub_is_known_by_its_commit(monkeypatch):
    commits = iter(["1f", "2e"])
    found = "hf_lenctrl.commands.identity.PreTrainedConfig.get_config_dict"
    monkeypatch.setattr(found, lambda name: ({"_commit_hash": next(commits)}, {}))
    assert [identity("org/name"), identity("org/name")] == ["org/name at 1f", "org/name at 2e"]
