"""The measurements and comparisons run and have their form; no time decides anything here."""

import json

import architectures
import constraints
import instead
import overhead
import pytest
import timing
import torch
import yaml
from conftest import TARGETS
from recipe_runs import ROOT, read_rows, save_translators, write_rows
from test_report import table_rows

from lab.benchmarks import reading, translation


@pytest.mark.parametrize(
    ("script", "options", "tasks"),
    [
        (overhead, "--families marian llama", 4),
        (overhead, "--families bart --length_head", 2),
        (constraints, "--units token --batch_size 1", 2),
    ],
)
def test_a_measurement_has_a_ratio_for_each_task(script, options, tasks, capsys):
    threads, size = torch.get_num_threads(), 400 if script is constraints else 60
    script.main(f"--shapes 1x64 --rounds 1 --vocab_size {size} {options}".split())
    torch.set_num_threads(threads)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 1 + tasks and all(line["ratio"] > 0 for line in lines[1:])


def test_rounds_alternate_after_one_that_warms_up():
    calls: list[str] = []
    seconds = timing.alternate({name: lambda name=name: calls.append(name) for name in "abc"}, 2)
    assert "".join(calls) == "abc" + "cba" + "abc"
    assert {name: len(each) for name, each in seconds.items()} == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gemma4_text", "Gemma4ForCausalLM does not take embeddings"),
        ("emu3", "Emu3ForCausalLM cannot be saved with a length"),
        ("reformer", "ReformerModelWithLMHead pads ids to its chunks but not embeddings"),
        ("roberta", "RobertaForCausalLM reads the ids as well as their embeddings"),
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


REFERENCES = TARGETS[1:] + TARGETS[:1]


@pytest.fixture
def models(shared_tokenizer, tmp_path):
    """A controlled model and a plain one of short texts, their test file and a recipe with fewer beams and tries."""
    for model, name in zip(save_translators(tmp_path, shared_tokenizer), ("model", "base"), strict=True):
        model.generation_config.max_length = 12
        model.save_pretrained(tmp_path / name)
    write_rows(tmp_path / "test.jsonl", [{"source": a, "target": b} for a, b in zip(TARGETS, REFERENCES, strict=True)])
    spec = yaml.safe_load((ROOT / "lab" / "benchmarks" / "isometric.yaml").read_text(encoding="utf-8"))
    spec |= {"model": str(tmp_path / "model"), "base_model": str(tmp_path / "base"), "num_beams": 2, "batch_size": 4}
    spec["ways"]["base, window, 16 beams"]["num_beams"] = 4
    spec["ways"]["retry"]["tries"] = 3
    (tmp_path / "ways.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    return tmp_path, spec


def test_every_way_writes_each_sentence(models, capsys):
    folder, spec = models
    files = ["--test_file", str(folder / "test.jsonl"), "--output_file", str(folder / "out.jsonl")]
    instead.main([str(folder / "ways.yaml"), *files, "--max_rows", "2"])
    assert [cells[0] for cells in table_rows(capsys.readouterr().out)[1:]] == list(spec["ways"])
    rows = read_rows(folder / "out.jsonl")
    assert [row["source"] for row in rows] == TARGETS[:2]
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


def test_every_length_is_written_in_every_way_and_met_by_the_exact_one(models, monkeypatch, capsys):
    folder, _ = models
    monkeypatch.setattr(translation, "RATIOS", (0.8, 1.2))
    named = {"model": "model", "base_model": "base", "test_file": "test.jsonl", "output_dir": "out"}
    translation.main([*(f"--{key}={folder / name}" for key, name in named.items()), "--num_beams", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 1 + 3 * 4  # the base; three lengths, three ways and the cut text
    outputs = {path.stem: read_rows(path) for path in (folder / "out").glob("*.jsonl")}
    assert len(outputs) == 13
    references = [len(target) for target in REFERENCES]
    assert [row["requested"] for row in outputs["reference_exact"]] == references
    assert [row["length"] for row in outputs["reference_exact"]] == references
    assert all(row["length"] <= row["requested"] for row in outputs["own_0.8_max"])
    own = [len(row["output"]) for row in outputs["base"]]
    assert [row["requested"] for row in outputs["own_1.2_cut"]] == [max(1, round(1.2 * n)) for n in own]
    exact = next(line for line in lines if line.startswith("| reference, exact |"))
    assert exact.split("|")[4:7] == [" 0.00 ", " 100.0 ", " 0.0 "]  # error, exact, over
