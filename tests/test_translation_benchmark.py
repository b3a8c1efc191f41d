"""The table of translation quality at several lengths, on small models."""

import json

from conftest import SOURCES, TARGETS
from recipe_runs import save_translators, write_rows

from benchmarks import translation


def test_every_length_is_written_in_every_way_and_met_by_the_exact_one(shared_tokenizer, tmp_path, capsys):
    for model, name in zip(save_translators(tmp_path, shared_tokenizer), ("model", "base"), strict=True):
        model.generation_config.max_length = 12
        model.save_pretrained(tmp_path / name)
    write_rows(tmp_path / "test.jsonl", [{"source": s, "target": t} for s, t in zip(SOURCES, TARGETS, strict=True)])
    options = ["--model", "model", "--base_model", "base", "--test_file", "test.jsonl", "--output_dir", "out"]
    options = [str(tmp_path / word) if index % 2 else word for index, word in enumerate(options)]
    translation.main([*options, "--num_beams", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 1 + 6 * 4  # the base; six lengths, three ways and the cut text
    outputs = {path.stem: [json.loads(line) for line in path.open()] for path in (tmp_path / "out").glob("*.jsonl")}
    assert len(outputs) == 25
    references = [len(target) for target in TARGETS]
    assert [row["requested"] for row in outputs["reference_exact"]] == references
    assert [row["length"] for row in outputs["reference_exact"]] == references
    assert all(row["length"] <= row["requested"] for row in outputs["own_0.8_max"])
    own = [len(row["output"]) for row in outputs["base"]]
    assert [row["requested"] for row in outputs["own_1.2_cut"]] == [max(1, round(1.2 * n)) for n in own]
    exact = next(line for line in lines if line.startswith("| reference, exact |"))
    assert exact.split("|")[4:7] == [" 0.00 ", " 100.0 ", " 0.0 "]  # error, exact, over
