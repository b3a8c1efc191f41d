"""The comparison of ways to a translation as long as its source, and of answers that end with a sentence."""

import json
from pathlib import Path

import finish
import instead
import pytest
import yaml
from conftest import SOURCES, TARGETS
from recipe_runs import save_translators, write_rows


RECIPES = Path(__file__).resolve().parents[1] / "recipes"


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [(20, 22, True), (20, 23, False), (20, 18, True), (20, 17, False), (11, 12, True), (10, 99, True)],
)
def test_what_fits(source, output, expected):
    assert instead.fits("a" * source, "b" * output, 0.1) is expected


@pytest.fixture
def models(shared_tokenizer, tmp_path):
    """A controlled model and a plain one, their test file and a recipe."""
    save_translators(tmp_path, shared_tokenizer)
    write_rows(tmp_path / "test.jsonl", [{"source": a, "target": b} for a, b in zip(SOURCES, TARGETS, strict=True)])
    spec = yaml.safe_load((RECIPES / "translation" / "isometric.yaml").read_text(encoding="utf-8"))
    spec |= {"model": str(tmp_path / "model"), "base_model": str(tmp_path / "base"), "num_beams": 2, "batch_size": 2}
    (tmp_path / "ways.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    return tmp_path, spec


def test_every_way_writes_each_sentence(models, capsys):
    folder, spec = models
    files = ["--test_file", str(folder / "test.jsonl"), "--output_file", str(folder / "out.jsonl")]
    instead.main([str(folder / "ways.yaml"), *files, "--max_rows", "3"])
    table = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [cells[0] for cells in table[2:]] == list(spec["ways"])
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [row["source"] for row in rows] == SOURCES[:3]
    for row in rows:
        assert len(row["outputs"]["base, max"]) <= 1.1 * len(row["source"])
        for name in ("window", "window, greedy", "range"):
            assert instead.fits(row["source"], row["outputs"][name], 0.1), name


def test_the_first_that_fits_is_taken_else_the_best():
    def pipe(sources, **options):
        assert options == {"num_return_sequences": 3}
        return [[{"generated_text": text * n} for n in (10, 6, 3)] for text in ("ab", "ab")]

    sources = ["x" * 12, "x" * 40]
    assert instead.write(pipe, sources, {"of": "base", "n_best": 3}, 0.1) == ["ab" * 6, "ab" * 10]


def test_only_what_does_not_fit_is_sampled_again():
    calls = []

    def pipe(sources, **options):
        calls.append(list(sources))
        return [{"generated_text": "y" * (10 * len(calls) + 2)} for _ in sources]

    assert instead.write(pipe, ["a" * 12, "b" * 32], {"of": "base", "tries": 20}, 0.1) == ["y" * 12, "y" * 32]
    assert calls == [["a" * 12, "b" * 32], ["b" * 32], ["b" * 32]]


def test_the_table_of_finished_sentences(models, capsys):
    folder, _ = models
    write_rows(folder / "prompts.jsonl", [{"prompt": text} for text in SOURCES])
    finish.main([str(folder / "base"), str(folder / "prompts.jsonl"), "--rows", "3", "--length", "30"])
    table = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [cells[0] for cells in table] == ["finish", "---|---|---|---|---", "none", "word", "sentence"]
    assert all(int(cells[-1]) <= 30 for cells in table[2:])
