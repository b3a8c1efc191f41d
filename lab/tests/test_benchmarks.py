"""The measurements and comparisons run and have their form; no time decides anything here."""

import json
import math

import architectures
import finish
import growth
import instead
import pytest
import startup
import suite
import timing
import torch
import unit_tables
import yaml
from conftest import SOURCES, TARGETS
from recipe_runs import ROOT, read_rows, save_translators, write_rows
from test_report import table_rows

from lab.benchmarks import reading, translation


# enough to run through; every part has its entry
TINY = {
    "startup": {"rounds": 1, "shape": "1x64"},
    "overhead": {"shapes": ["1x64"], "families": ["marian", "llama"], "rounds": 2, "vocab_size": 60},
    "length head": {"shapes": ["1x64"], "families": ["bart"], "rounds": 1, "vocab_size": 60},
    "constraints": {"shapes": ["1x64"], "units": ["token"], "rounds": 1, "vocab_size": 400, "batch_size": 1},
    "unit tables": {"rounds": 1, "vocab_size": 400, "batch_size": 2, "tokens": 5},
    "batching": {"shape": "1x64", "rounds": 1, "source_tokens": 5, "file_rows": 17},
    "growth": {"shape": "1x64", "rounds": 1, "vocab_size": 60, "lengths": [10, 20], "batches": [1, 2], "repeats": 1},
    "precision": {"shape": "1x64", "rounds": 1, "vocab_size": 60, "backend": "eager"},
    "utilisation": {"shape": "1x64", "rounds": 1, "vocab_size": 60, "batch_size": 2, "tokens": 5, "product": 64},
}


def settings(part: str) -> dict:
    return {**suite.PARTS[part][1], **TINY[part]}


assert TINY.keys() == suite.PARTS.keys()


@pytest.mark.parametrize("part", TINY)
def test_a_part_has_rows(part, monkeypatch):
    small = {"Marian": (timing.marian_shape("1x64", 60), *startup.SHAPES["Marian-base"][1:])}
    monkeypatch.setattr(startup, "SHAPES", small)

    def run(command, cwd, **_):  # in this process, which has imported all
        with monkeypatch.context() as patch:
            patch.chdir(cwd)
            exec(command[-1], {})

    monkeypatch.setattr(startup.subprocess, "run", run)
    monkeypatch.setattr(unit_tables, "LENGTH_UNITS", ("token", "character", "word", "grapheme"))
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)  # tests/test_precision.py compiles
    rows = suite.measure(part, settings(part))
    assert rows and len({(row.name, row.what) for row in rows}) == len(rows)
    for row in rows:
        assert row.name and row.what
        assert math.isfinite(row.ratio) and row.spread[0] <= row.ratio <= row.spread[1]


def test_the_suite_keeps_what_it_measured(tmp_path, monkeypatch):
    parts = {name: (suite.PARTS[name][0], settings(name)) for name in ("overhead", "unit tables")}
    monkeypatch.setattr(suite, "PARTS", parts)
    calls: list[str] = []
    row = timing.Row("a name", 1.5, (1.0, 2.0), "time, one / other")
    monkeypatch.setattr(suite, "measure", lambda part, *_: calls.append(part) or [row])
    threads = torch.get_num_threads()
    suite.main(["--output_dir", str(tmp_path), "--parts", "unit tables"])
    assert calls == ["unit tables"]
    suite.main(["--output_dir", str(tmp_path)])  # goes on
    suite.main(["--output_dir", str(tmp_path)])  # has all
    assert calls == ["unit tables", "overhead"]
    suite.main(["--output_dir", str(tmp_path), "--parts", "overhead"])  # anew
    parts["unit tables"][1]["rounds"] += 1
    suite.main(["--output_dir", str(tmp_path)])  # with other settings
    assert calls == ["unit tables", "overhead", "overhead", "unit tables"]
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["parts"]) == ["overhead", "unit tables"]
    assert results["parts"]["overhead"]["cpu"]["rows"] == [["a name", 1.5, [1.0, 2.0], "time, one / other"]]
    assert "| a name | 1.5 (1 to 2) | time, one / other |" in (tmp_path / "results.md").read_text()
    torch.set_num_threads(threads)


def test_rounds_alternate_after_one_that_warms_up():
    calls: list[str] = []
    seconds = timing.alternate({name: lambda name=name: calls.append(name) for name in "abc"}, 2)
    assert "".join(calls) == "abc" + "cba" + "abc"
    assert {name: len(each) for name, each in seconds.items()} == {"a": 2, "b": 2, "c": 2}
    # a row has the median and the middle half of the rounds
    row = timing.ratio_row("name", [1.0, 4.0, 9.0, 16.0, 50.0], [1.0, 2.0, 3.0, 4.0, 5.0], "what")
    assert row == ("name", 3.0, (2.0, 4.0), "what")
    assert timing.row_of("name", [7.0], "what").spread == (7.0, 7.0)


def test_a_peak_counts_what_stands_at_once():
    def run():
        first = torch.zeros(1000)  # 4,000 bytes
        second = first + 1
        del first
        return second.view(10, 100) + torch.zeros(10, 100)  # `second`, the zeros and the sum

    assert growth.peak(run) == 12_000


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gemma4_text", "Gemma4ForCausalLM does not take embeddings"),
        ("emu3", "Emu3ForCausalLM cannot be saved with a length"),
        ("reformer", "ReformerModelWithLMHead pads ids to its chunks but not embeddings"),
        ("roberta", "RobertaForCausalLM reads the ids beside their embeddings"),
    ],
)
def test_an_architecture_that_cannot_take_a_length_is_refused_at_conversion(name, reason):
    step, error = architectures.tried(name, architectures.small_tokenizer())
    assert step == "convert" and error.startswith(f"ValueError: {reason}")


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("Tom bought 3 books.", []),
        ("Tom Tom bought 3 books.", ["repeated"]),
        ("Tom bought bought 3 books.", ["repeated"]),
        ("Tom bought a book bought a book 3.", []),  # three words, twice: not what is looked for
        ("Tom bought 3 books of", ["dangling end", "no final mark"]),
        ("Tom bought 3 books of.", ["dangling end"]),
        ("Tom bought 3 books,.", ["filled end"]),
        ("Tom bought 3 books", ["no final mark"]),
        ('Tom bought "3 books.', ["quotes"]),
        ("Tom bought “3” books.", []),
        ("Tom bought 33 books.", ["numbers"]),
        ("He bought 3 books.", ["names"]),
    ],
)
def test_each_fault_is_found_and_nothing_else(output, found):
    faults = reading.faults("Tom hat 3 Bücher gekauft.", "Tom bought 3 books.", output)
    three = {"repeated", "dangling end", "filled end"} & set(found)
    assert [name for name, there in faults.items() if there] == found + ["one of these three"] * bool(three)


def test_percentages_are_of_words_and_of_texts(tmp_path, capsys):
    rows = [
        {"source": "Hallo.", "reference": "Hello there.", "output": "Hello theree."},
        {"source": "Nein!", "reference": "No!", "output": "No no no"},
    ]
    figures = reading.reading(rows, {"hello", "there", "no"})
    assert figures["unknown words"] == 20  # theree, of five words
    assert (figures["repeated"], figures["no final mark"], figures["names"]) == (50, 50, 0)
    train = write_rows(tmp_path / "train.jsonl", [{"target": "No, hello there."}])
    reading.main(["--train_file", str(train), "--systems", f"a={write_rows(tmp_path / 'out.jsonl', rows)}"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| references | 2 | " + " | ".join(["0.00"] * 9) + " |"
    assert lines[3].startswith("| a | 2 | 20.00 | 50.00 | 0.00 |")


@pytest.fixture
def models(shared_tokenizer, tmp_path):
    """A controlled model and a plain one of short texts, their test file and a recipe."""
    for model, name in zip(save_translators(tmp_path, shared_tokenizer), ("model", "base"), strict=True):
        model.generation_config.max_length = 12
        model.save_pretrained(tmp_path / name)
    write_rows(tmp_path / "test.jsonl", [{"source": a, "target": b} for a, b in zip(SOURCES, TARGETS, strict=True)])
    spec = yaml.safe_load((ROOT / "lab" / "benchmarks" / "isometric.yaml").read_text(encoding="utf-8"))
    spec |= {"model": str(tmp_path / "model"), "base_model": str(tmp_path / "base"), "num_beams": 2, "batch_size": 4}
    (tmp_path / "ways.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    return tmp_path, spec


def test_every_way_writes_each_sentence(models, capsys):
    folder, spec = models
    files = ["--test_file", str(folder / "test.jsonl"), "--output_file", str(folder / "out.jsonl")]
    instead.main([str(folder / "ways.yaml"), *files, "--max_rows", "2"])
    assert [cells[0] for cells in table_rows(capsys.readouterr().out)[1:]] == list(spec["ways"])
    rows = read_rows(folder / "out.jsonl")
    assert [row["source"] for row in rows] == SOURCES[:2]
    for row in rows:
        assert len(row["outputs"]["base, max"]) <= 1.1 * len(row["source"])
        for name in ("window", "window, greedy", "range"):
            assert instead.fits(row["source"], row["outputs"][name], 0.1), name


def test_the_first_that_fits_is_taken_else_the_best():
    pairs = [(20, 22), (20, 23), (20, 18), (20, 17), (11, 12), (10, 99)]  # up to 10 characters anything does
    found = [instead.fits("a" * source, "b" * output, 0.1) for source, output in pairs]
    assert found == [True, False, True, False, True, True]

    def pipe(sources, **options):
        assert options == {"num_return_sequences": 3}
        return [[{"generated_text": text * n} for n in (10, 6, 3)] for text in ("ab", "ab")]

    sources = ["x" * 12, "x" * 40]
    assert instead.write(pipe, sources, {"of": "base", "n_best": 3}, 0.1) == ["ab" * 6, "ab" * 10]


def test_the_table_of_finished_sentences(models, capsys):
    folder, _ = models
    write_rows(folder / "prompts.jsonl", [{"prompt": text} for text in SOURCES])
    finish.main([str(folder / "base"), str(folder / "prompts.jsonl"), "--rows", "3", "--length", "30"])
    table = table_rows(capsys.readouterr().out)
    assert [cells[0] for cells in table] == ["finish", "none", "word", "sentence"]
    assert all(int(cells[-1]) <= 30 for cells in table[1:])


def test_every_length_is_written_in_every_way_and_met_by_the_exact_one(models, capsys):
    folder, _ = models
    named = {"model": "model", "base_model": "base", "test_file": "test.jsonl", "output_dir": "out"}
    translation.main([*(f"--{key}={folder / name}" for key, name in named.items()), "--num_beams", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 1 + 6 * 4  # the base; six lengths, three ways and the cut text
    outputs = {path.stem: read_rows(path) for path in (folder / "out").glob("*.jsonl")}
    assert len(outputs) == 25
    references = [len(target) for target in TARGETS]
    assert [row["requested"] for row in outputs["reference_exact"]] == references
    assert [row["length"] for row in outputs["reference_exact"]] == references
    assert all(row["length"] <= row["requested"] for row in outputs["own_0.8_max"])
    own = [len(row["output"]) for row in outputs["base"]]
    assert [row["requested"] for row in outputs["own_1.2_cut"]] == [max(1, round(1.2 * n)) for n in own]
    exact = next(line for line in lines if line.startswith("| reference, exact |"))
    assert exact.split("|")[4:7] == [" 0.00 ", " 100.0 ", " 0.0 "]  # error, exact, over
