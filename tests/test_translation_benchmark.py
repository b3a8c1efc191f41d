"""The table of translation quality at several lengths, on small models."""

import json

import pytest
from conftest import SOURCES, TARGETS, build_model
from transformers import MarianConfig, MarianMTModel

from benchmarks import translation


@pytest.fixture
def models(tmp_path, shared_tokenizer):
    special = {"pad_token_id": 2, "eos_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": 0}
    controlled = build_model("marian", vocab_size=len(shared_tokenizer), length_unit="character")
    controlled.set_unit_table(shared_tokenizer)
    shape = {name: getattr(controlled.config, name) for name in ("d_model", "encoder_layers", "decoder_layers")}
    plain = MarianMTModel(MarianConfig(vocab_size=len(shared_tokenizer), **shape, **special))
    for name, model in (("base", plain), ("controlled", controlled)):
        model.generation_config.max_length = 12
        model.save_pretrained(tmp_path / name)
        shared_tokenizer.save_pretrained(tmp_path / name)
    rows = [{"source": s, "target": t} for s, t in zip(SOURCES, TARGETS, strict=True)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_every_length_is_written_in_every_way_and_met_by_the_exact_one(models, capsys):
    options = ["--model", "controlled", "--base_model", "base", "--test_file", "test.jsonl", "--output_dir", "out"]
    options = [str(models / word) if index % 2 else word for index, word in enumerate(options)]
    translation.main([*options, "--num_beams", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 1 + 6 * 4  # the base; six lengths, three ways and the cut text
    outputs = {path.stem: [json.loads(line) for line in path.open()] for path in (models / "out").glob("*.jsonl")}
    assert len(outputs) == 25
    references = [len(target) for target in TARGETS]
    assert [row["requested"] for row in outputs["reference_exact"]] == references
    assert [row["length"] for row in outputs["reference_exact"]] == references
    assert all(row["length"] <= row["requested"] for row in outputs["own_0.8_max"])
    own = [len(row["output"]) for row in outputs["base"]]
    assert [row["requested"] for row in outputs["own_1.2_cut"]] == [max(1, round(1.2 * n)) for n in own]
    exact = next(line for line in lines if line.startswith("| reference, exact |"))
    assert exact.split("|")[4:7] == [" 0.00 ", " 100.0 ", " 0.0 "]  # error, exact, over
