"""Registration, saving and loading, code that ships with a checkpoint. What ships runs in a process of its own."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from conftest import FAMILIES, RELATIVE, TARGETS, build_model, build_model_of, make_tokenizers
from processes import output_of
from recipe_runs import isolated, save
from safetensors.torch import load_file, save_file
from test_readme import ENVIRONMENT

from hf_lenctrl.length_units import NOT_FILLED


CLASSES = {
    "t5": ["LenCtrlT5Config", "LenCtrlT5Model", "LenCtrlT5ForConditionalGeneration", "T5Tokenizer"],
    "bart": ["LenCtrlBartConfig", "LenCtrlBartModel", "LenCtrlBartForConditionalGeneration", "RobertaTokenizer"],
    "marian": ["LenCtrlMarianConfig", "LenCtrlMarianModel", "LenCtrlMarianMTModel", "MarianTokenizer"],
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory, shared_tokenizer):
    """A saved character model with its tokenizer for each family, loaded from nowhere but its folder."""
    folders, tokenizers = {}, {**make_tokenizers(), "marian": shared_tokenizer}
    for family in CLASSES:
        tokenizer = tokenizers[family]
        fields = {"vocab_size": len(tokenizer), "length_unit": "character", "length_encoding": "lrpe"}
        model = build_model_of(family, seed=1, **fields, init_std=0.2, tie_word_embeddings=False)
        folders[family] = save(model, tokenizer, tmp_path_factory.mktemp("checkpoints") / f"{family}-model")
    return folders


@pytest.mark.slow
def test_a_fresh_process_finds_public_names_and_auto_classes_and_no_optional_library(checkpoints, tmp_path):
    for family, folder in checkpoints.items():
        shutil.copytree(folder, tmp_path / family)
        # only the registration can name the tokenizer's class now
        path = tmp_path / family / "tokenizer_config.json"
        fields = json.loads(path.read_text())
        del fields["tokenizer_class"]
        path.write_text(json.dumps(fields))
    code = f"""
import json, sys
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer
import hf_lenctrl  # after the Auto classes
optional = {{"datasets", "nltk", "rouge_score", "matplotlib", "evaluate", "peft"}}
loaded = sorted(optional & set(sys.modules))
missing = [name for name in hf_lenctrl.__all__ if not hasattr(hf_lenctrl, name)]
star = {{}}
exec("from hf_lenctrl import *", star)
complete = set(star) >= set(hf_lenctrl.__all__)
autos = AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer
found = {{family: [type(auto.from_pretrained(family)).__name__ for auto in autos] for family in {list(CLASSES)}}}
from transformers.pipelines import PIPELINE_REGISTRY
task = PIPELINE_REGISTRY.check_task("length-controlled-generation")[1]["impl"].__name__
print(json.dumps([loaded, missing, complete, found, task]))
"""
    assert json.loads(output_of(code, cwd=tmp_path, **ENVIRONMENT).splitlines()[-1]) == [
        [],
        [],
        True,
        CLASSES,
        "LengthControlledGenerationPipeline",
    ]


def test_a_saved_model_comes_back_as_it_was(any_family, tokenizers_of_every_kind, tmp_path):
    tokenizer = tokenizers_of_every_kind[any_family]
    fields = {"length_encoding": "pre", "absolute_positions": any_family in RELATIVE, "length": 12}
    fields |= {"length_unit": "character"}
    model = build_model_of(any_family, **fields, init_std=0.2, vocab_size=len(tokenizer))
    model.set_unit_table(tokenizer)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert loaded.config.unit_states == model.unit_table.states > 1
    labels = tokenizer(text_target="small text editor", return_tensors="pt")["input_ids"]
    assert loaded.count_labels(labels).tolist() == [17]
    for name, value in {**fields, "model_type": f"lenctrl_{any_family}"}.items():
        assert getattr(loaded.config, name) == value
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    source = torch.tensor([[11, 12, 13], [21, 22, 23]])
    assert torch.equal(loaded.generate(source, num_beams=2), model.generate(source, num_beams=2))


def without_table(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    for name in ("weights", "next_state"):
        del weights[f"model.decoder.unit_table.{name}"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_checkpoint_that_lost_its_character_table_asks_for_the_tokenizer(checkpoints, family, tmp_path):
    checkpoint = Path(shutil.copytree(checkpoints[family], tmp_path / "checkpoint"))
    load, source = transformers.AutoModelForSeq2SeqLM.from_pretrained, torch.tensor([[7, 8]])
    expected = load(checkpoint).generate(source, length=9)
    without_table(checkpoint)
    model = load(checkpoint)
    assert (model.unit_table.weights == NOT_FILLED).all()
    with pytest.raises(ValueError, match=r"no table of units.*set_unit_table\(tokenizer\)"):
        model.generate(source, length=9)
    model.set_unit_table(transformers.AutoTokenizer.from_pretrained(checkpoint))
    assert torch.equal(model.generate(source, length=9), expected)


def test_a_checkpoint_that_lost_its_token_table_gets_the_default_one(family, tmp_path):
    build_model(family).save_pretrained(tmp_path)
    without_table(tmp_path)
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    special = {"bart": {0, 1, 2}, "marian": {0, 2}}[family]
    assert loaded.unit_table.weights.tolist() == [[int(i not in special) for i in range(60)]]


REMOTE = """
import json, sys
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

source, folders = json.loads(sys.argv[1])
answer = {}
for family, folder in folders.items():
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    inputs = tokenizer(source, padding=True, return_tensors="pt")
    answer[family] = {
        "module": type(model).__module__.split(".")[0],
        "names": [type(config).__name__, type(model).__name__, type(tokenizer).__name__],
        "ids": model.generate(**inputs, length=[15, 30], max_new_tokens=20).tolist(),
    }
print(json.dumps(answer))
"""


@pytest.mark.slow
def test_a_checkpoint_runs_with_its_own_code_where_the_package_is_not_installed(checkpoints, tmp_path):
    moved = {family: shutil.copytree(folder, tmp_path / "moved" / family) for family, folder in checkpoints.items()}
    source = TARGETS[:2]
    answer = isolated(REMOTE, source, {family: str(folder) for family, folder in moved.items()}, folder=tmp_path)
    for family, folder in checkpoints.items():
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        inputs = tokenizer(source, padding=True, return_tensors="pt")
        config_name, _, model_name, tokenizer_name = CLASSES[family]
        assert answer[family] == {
            "module": "transformers_modules",
            "names": [config_name, model_name, tokenizer_name],
            "ids": model.generate(**inputs, length=[15, 30], max_new_tokens=20).tolist(),
        }


PIPELINE = """
import json, sys
from transformers import pipeline
(folder,) = json.loads(sys.argv[1])
try:
    pipeline(model=folder, trust_remote_code=True)
except ImportError as error:
    refused = str(error)
del sys.modules["hf_lenctrl"]  # from here on the package is installed
write = pipeline(model=folder, trust_remote_code=True, num_beams=2)
out = write("small text editor", length=15, length_constraint="exact")
print(json.dumps([refused, type(write).__name__, out["length"], write._forward_params]))
"""


@pytest.mark.slow
def test_a_checkpoint_brings_the_pipeline_of_the_installed_package(checkpoints, tmp_path):
    folder = checkpoints["marian"]
    refused, name, length, options = isolated(PIPELINE, str(folder), folder=tmp_path)
    assert "needs the package hf_lenctrl; install it from its repository" in refused
    assert (name, length, options) == ("LengthControlledGenerationPipeline", 15, {"num_beams": 2})
    # with the package, its own task needs no trust, and the base model has no pipeline
    assert transformers.pipeline("length-controlled-generation", model=str(folder)).model.config.length_unit
    base = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).model
    base.save_pretrained(tmp_path / "base")
    assert "custom_pipelines" not in json.loads((tmp_path / "base" / "config.json").read_text())


def test_a_checkpoint_ships_the_code_it_needs_and_no_more(checkpoints, family):
    modules = """
        bounded_generation cache card character_costs configuration_lenctrl controlled_parts custom_pipeline generation
        length_constraint length_encoding length_guidance length_head length_pair length_rules length_signal
        length_tokens length_units lengths modeling_lenctrl shards text_units thoughts unit_vocabulary
    """
    assert sorted(path.stem for path in checkpoints[family].glob("*.py")) == modules.split()


def test_a_base_model_names_its_own_auto_class(any_family, tmp_path):
    FAMILIES[any_family].model_class(build_model_of(any_family).config).save_pretrained(tmp_path)
    auto_map = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert auto_map["AutoModel"] == f"modeling_lenctrl.{FAMILIES[any_family].model_class.__name__}"
    assert type(transformers.AutoModel.from_pretrained(tmp_path)) is FAMILIES[any_family].model_class
