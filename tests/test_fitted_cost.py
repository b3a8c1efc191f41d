"""A cost that is fitted to seconds of speech: known costs come back, and those of a real voice are near."""

import json
import random
import shutil
from pathlib import Path
from statistics import mean

import pytest
import spoken
import torch
from conftest import TARGETS
from recipe_runs import ROOT, run_lenctrl, write_rows

import hf_lenctrl
from hf_lenctrl.commands import fit_cost as command
from hf_lenctrl.commands.rows import Rows


KNOWN = {"a": 7, "b": 12, "c": 3, " ": 0, ".": 31, "7": 40}


def texts(count: int) -> list[str]:
    draw = random.Random(0)
    return [
        "".join(draw.choices("aaabbcc ", k=draw.randrange(20, 60))) + draw.choice([".", "7", ""]) for _ in range(count)
    ]


def seconds_of(text: str) -> float:
    return sum(KNOWN[character.lower()] for character in text) / 100


def test_known_costs_come_back():
    spoken = [*texts(300), "AABB"]
    cost = hf_lenctrl.fit_cost(spoken, [seconds_of(text) for text in spoken])
    assert cost.characters == KNOWN
    assert cost("Ab. c7") == 7 + 12 + 31 + 0 + 3 + 40 and cost.seconds("Ab. c7") == pytest.approx(0.93)
    assert cost("") == 0


def test_a_rare_character_costs_about_as_much_as_its_class():
    spoken = texts(300)
    cost = hf_lenctrl.fit_cost([*spoken, "abcz", "q"], [*map(seconds_of, spoken), 0.22, 3.0])
    letter = cost.classes["Ll"]
    assert 7 <= letter <= 9  # of 3 a, 2 b and 2 c, whose costs are 7, 12 and 3
    assert abs(cost.characters["z"] - letter) <= 1  # once, with nothing left for it: not 0
    assert letter < cost.characters["q"] < 40  # once, at 300 units
    assert cost("é") == letter and cost("(") == cost("\u0301") == 0  # never, in a known class and in new ones
    assert cost("日") == cost.other > 0


def test_costs_are_never_below_nothing():
    cost = hf_lenctrl.fit_cost(["a" * n + "x" * (9 - n) for n in range(10)] * 20, [0.1 * n for n in range(10)] * 20)
    assert cost.characters == {"a": 10, "x": 0}
    cost = hf_lenctrl.fit_cost(["ab" * 9, "a" * 9] * 20, [0.45, 0.9] * 20)  # b would cost -5
    assert cost.characters["b"] == 0 and 5 < cost.characters["a"] < 10


def test_a_saved_cost_counts_in_a_table_and_in_a_reward(tmp_path, shared_tokenizer):
    spoken = [f"{text}." for text in TARGETS] * 4
    hf_lenctrl.fit_cost(spoken, [0.05 * len(text) for text in spoken]).save(tmp_path / "cost.json")
    cost = hf_lenctrl.load_cost(tmp_path / "cost.json")
    table = hf_lenctrl.UnitTable.from_tokenizer(shared_tokenizer, cost=cost)
    ids = shared_tokenizer("small editor", add_special_tokens=False)["input_ids"]
    assert int(table.count(torch.tensor([ids]))) == cost("small editor") == 60
    assert hf_lenctrl.length_reward(cost)(completions=["small editor"], length=[120]) == [0.5]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([], []), "texts and the seconds of each, got 0 texts, 0 times"),
        ((["", ""], [0.0, 0.0]), "texts and the seconds of each, got 2 texts, 2 times"),
        ((["a"], [1.0, 2.0]), "got 1 texts, 2 times"),
        ((["a"], [-1.0]), "finite number of at least 0, got -1.0"),
        ((["a"], [float("nan")]), "finite number of at least 0, got nan"),
    ],
)
def test_pairs_that_cannot_be_fitted_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        hf_lenctrl.fit_cost(*given)


def test_the_command_fits_all_rows_and_measures_every_tenth(tmp_path, monkeypatch, capsys):
    rows = [{"line": text, "duration": f"{seconds_of(text):.2f}"} for text in texts(300)]
    write_rows(tmp_path / "pairs.jsonl", rows)
    words = (
        "fit-cost --input_file pairs.jsonl --output_file made/cost.json --text_column line --seconds_column duration"
    )
    monkeypatch.chdir(tmp_path)
    run_lenctrl(words.split(), monkeypatch)
    held_out = mean(float(row["duration"]) for row in rows[9::10])
    assert capsys.readouterr().out == f"30 held-out texts of {held_out:.2f} s: MAE 0.000 s\n"
    assert hf_lenctrl.load_cost("made/cost.json").characters == KNOWN


@pytest.mark.parametrize(("tool", "options"), [(command, []), (spoken, ["--voice", "en"])])
def test_a_file_is_replaced_only_where_that_is_asked_for(tool, options, tmp_path, monkeypatch):
    monkeypatch.setattr(spoken, "spoken_seconds", lambda texts, voice: (seconds_of(text) for text in texts))
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "in.jsonl", [{"source": text, "text": text, "seconds": 1.0} for text in texts(20)])
    Path("out.json").write_text("mine")
    options = ["--input_file", "in.jsonl", "--output_file", "out.json", *options]
    with pytest.raises(ValueError, match="out.json exists; name another output, or replace it with --overwrite"):
        tool.main(options)
    assert Path("out.json").read_text() == "mine"
    tool.main([*options, "--overwrite"])
    assert Path("out.json").read_text() != "mine"


def test_files_that_hold_no_pairs_or_no_cost_are_refused(tmp_path):
    pairs = str(tmp_path / "pairs.jsonl")
    for rows, message in (
        ([{"text": "a", "seconds": None}] * 20, "row 1 of .* 'seconds' must hold a finite number .*, got None"),
        ([{"text": "a", "seconds": 1 - i} for i in range(20)], "row 3 of .* number of at least 0, got -1"),
        ([{"text": "a", "seconds": 1.0}] * 19, "must have at least 20 rows, got 19"),
    ):
        write_rows(tmp_path / "pairs.jsonl", rows)
        with pytest.raises(ValueError, match=message):
            command.main(["--input_file", pairs, "--output_file", str(tmp_path / "cost.json")])
    for other in ({"characters": {"a": 1}}, {"kind": "hf_lenctrl cost", "characters": {"a": 1}}):
        (tmp_path / "cost.json").write_text(json.dumps(other))
        with pytest.raises(ValueError, match="must be a file that `lenctrl fit-cost` wrote, got other JSON"):
            hf_lenctrl.load_cost(tmp_path / "cost.json")


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed: apt-get install espeak-ng")
def test_the_seconds_of_espeak_are_near(tmp_path):
    sample = Rows(str(ROOT / "docs/samples/spoken.jsonl"))
    cost = hf_lenctrl.fit_cost(sample.texts("text"), sample.column("seconds"))
    lines = str(ROOT / "data/everyday_en_de_fr/validation-00000-of-00001.parquet")
    options = [
        "--text_column",
        "en",
        "--voice",
        "en",
        "--count",
        "15",
        "--output_file",
        str(tmp_path / "spoken.jsonl"),
    ]
    spoken.main(["--input_file", lines, *options])
    rows = Rows(str(tmp_path / "spoken.jsonl"))
    errors = [abs(cost.seconds(row["text"]) / row["seconds"] - 1) for row in rows.values]
    assert len(errors) == 15 and mean(errors) < 0.1  # about 0.05; versions of espeak-ng differ
