"""The measurements run and have their form; no time decides anything here."""

import json
import math

import architectures
import growth
import pytest
import readout
import startup
import suite
import timing
import torch
from conftest import build_model

from hf_lenctrl.length_encoding import ldpe, lrpe


# enough to run through; every part has its entry
TINY = {
    "startup": {"rounds": 1, "shape": "1x64"},
    "overhead": {"shapes": ["1x64"], "families": ["marian", "llama"], "rounds": 2, "vocab_size": 60},
    "length head": {"shapes": ["1x64"], "families": ["bart"], "rounds": 1, "vocab_size": 60},
    "constraints": {"shapes": ["1x64"], "units": ["token"], "rounds": 1, "vocab_size": 400, "batch_size": 1},
    "unit tables": {"rounds": 1, "vocab_size": 400, "batch_size": 2, "tokens": 5},
    "fixed length": {"shapes": ["1x64"], "rounds": 1, "vocab_size": 60, "tokens": 3, "batch_size": 1},
    "batching": {"shape": "1x64", "rounds": 1, "source_tokens": 5, "file_rows": 17},
    "growth": {"shape": "1x64", "rounds": 1, "vocab_size": 60, "lengths": [10, 20], "batches": [1, 2], "repeats": 1},
    "precision": {"shape": "1x64", "rounds": 1, "vocab_size": 60, "backend": "eager"},
    "utilisation": {"shape": "1x64", "rounds": 1, "vocab_size": 60, "batch_size": 2, "tokens": 5, "product": 64},
}


def settings(part: str) -> dict:
    return {**suite.PARTS[part][1], **TINY[part]}


assert TINY.keys() == suite.PARTS.keys()


@pytest.mark.parametrize("part", [pytest.param(p, marks=pytest.mark.slow if p == "startup" else ()) for p in TINY])
def test_a_part_has_rows(part, monkeypatch):
    small = {"Marian": (timing.marian_shape("1x64", 60), *startup.SHAPES["Marian-base"][1:])}
    monkeypatch.setattr(startup, "SHAPES", small)
    monkeypatch.setattr(startup, "IMPORTS", dict.fromkeys(startup.IMPORTS, ""))  # the first texts import all
    if part == "fixed length":
        pytest.importorskip("ctranslate2", reason="the extra 'fast' is not installed")
    torch.compiler.reset()
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


def test_an_exponent_is_the_slope_of_the_logarithms():
    seconds = {size: [3.0 * size, 0.5 * size**2] for size in (10, 40, 160)}
    assert growth.exponents([10, 40, 160], seconds) == pytest.approx([1.0, 2.0])


def test_a_peak_counts_what_stands_at_once():
    def run():
        first = torch.zeros(1000)  # 4,000 bytes
        second = first + 1
        del first
        return second.view(10, 100) + torch.zeros(10, 100)  # `second`, the zeros and the sum

    assert growth.peak(run) == 12_000


def test_what_growth_measures_is_length_control_alone():
    model = build_model("marian", length_encoding="ldpe")
    run = growth.control(model, 2, 7)
    with growth.parents_left_out():
        run()
    assert all(p.grad is None for p in model.parameters())  # neither embeddings nor layers took part


def test_a_reader_finds_the_end_in_ldpe_at_every_length_alike():
    difference = readout.margins(ldpe, 64, 1.0, (30, 50, 75))
    assert difference == pytest.approx([difference[0]] * 3, abs=1e-6)
    assert difference[0] > max(readout.margins(lrpe, 64, 1.0, (30, 50, 75)))
    assert readout.margins(ldpe, 64, 0.5, (30,))[0] > difference[0]  # less noise, more margin
    assert readout.margins(ldpe, 128, 1.0, (30,))[0] > difference[0]  # more columns, independent noise in each


def test_an_architecture_takes_a_length():
    assert architectures.tried("mamba", architectures.small_tokenizer()) == ("works", "")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gemma4_text", "Gemma4ForCausalLM does not take embeddings"),
        ("cpmant", "CpmAntForCausalLM has 1314 embeddings and 290 outputs"),
        ("emu3", "Emu3ForCausalLM cannot be saved with a length"),
        ("reformer", "ReformerModelWithLMHead pads ids to its chunks but not embeddings"),
        ("roberta", "RobertaForCausalLM reads the ids beside their embeddings"),
    ],
)
def test_an_architecture_that_cannot_take_a_length_is_refused_at_conversion(name, reason):
    step, error = architectures.tried(name, architectures.small_tokenizer())
    assert step == "convert" and error.startswith(f"ValueError: {reason}")
