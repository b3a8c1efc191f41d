"""What a run says of itself is true: its record, its outputs, its card, what it refuses."""

import json
import logging
import shutil
import sys
from pathlib import Path

import pytest
import recipe_runs
import torch
from conftest import SOURCES
from huggingface_hub import ModelCard
from recipe_runs import ROWS, as_options, assert_same_weights, read_rows, write_rows
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from hf_lenctrl.card import minimal_card
from hf_lenctrl.commands import checkpoints, evaluate, generate
from hf_lenctrl.commands.arguments import DataArguments, ModelArguments, parse_specified
from hf_lenctrl.commands.models import limits
from hf_lenctrl.evaluation import metrics
from hf_lenctrl.evaluation.metrics import lead, rouge_metrics, text_quality
from hf_lenctrl.training.model_card import TrainingRun, model_card


SMALL = recipe_runs.options_of(
    "target_vocabulary=shared group_column=source max_steps=6 save_steps=2 max_test_rows=8 "
    "train_sampling_strategy=group_by_length"
) | {"group_separator": ""}


def train(folder: Path, **options) -> dict:
    return recipe_runs.train(folder, **{**SMALL, **options})


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished run; tests that go on with it copy it."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    # of the test rows one has no target and one is too long
    rows = [{"source": "Nothing is said of this.", "target": " "}, {"source": "Too much.", "target": "word " * 90}]
    test = write_rows(folder.parent / "test_rows.jsonl", [*ROWS[:3], rows[0], *ROWS[20:23], rows[1], ROWS[40]])
    train(folder, test_file=test, **AGAIN)
    return folder


@pytest.fixture
def run(trained, tmp_path) -> Path:
    for name in ("first", "first.jsonl", "test_rows.jsonl"):
        path = trained.parent / name
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / name)
    return tmp_path / "first"


AGAIN = {"max_test_rows": 20, "max_target_length": 80, "test_lengths": [20], "card_examples": 9}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"learning_rate": 1e-2, "rows": ROWS[:-1]}, ["learning_rate=0.001, now 0.01", "train_file=sha256 "]),
        ({"length_encoding": "lrpe", "max_steps": 3}, ["length_encoding=ldpe, now lrpe", "max_steps=6 (trained), n"]),
    ],
)
def test_a_finished_folder_refuses_another_command(run, options, said):
    before = (run / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="holds a run with other options") as refused:
        train(run, **{**AGAIN, "test_file": run.parent / "test_rows.jsonl", **options})
    said = [*said, "Name another --output_dir", "max_steps"]
    assert [words for words in said if words not in str(refused.value)] == []
    assert (run / "model.safetensors").read_bytes() == before


def test_a_run_is_resumed_with_more_steps_and_the_card_says_it(run):
    train(run, **{**AGAIN, "test_file": run.parent / "test_rows.jsonl", "max_steps": 8, "logging_steps": 1})
    record = json.loads((run / "_run" / "run.json").read_text())
    assert [start["step"] for start in record["starts"]] == [0, 6]
    card = (run / "README.md").read_text()
    assert "Steps 0 to 6, then resumed." in card and "Steps 6 to 8 (" in card
    assert "Changed: `max_steps` to 8, `logging_steps`" in card
    assert "- `max_steps`: 8" in card and "num_train_epochs" not in card


def test_a_run_is_not_resumed_on_another_number_of_rows(run):
    path = run / "_run" / "run.json"
    record = json.loads(path.read_text())
    record["starts"][0]["rows"] = 5  # as if a data set of the Hub had changed
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="first was trained on 5 rows, got 106; name another --output_dir"):
        train(run, **{**AGAIN, "test_file": run.parent / "test_rows.jsonl", "max_steps": 8})


@pytest.mark.parametrize(
    "name",
    "README.md test.jsonl model.safetensors checkpoint-7/trainer_state.json test_outputs.jsonl test_20_outputs.jsonl "
    "all_results.json test_results.json report.png training_args.bin tokenizer.json cache.py".split(),
)
def test_files_that_no_run_wrote_are_not_overwritten(tmp_path, name):
    path = tmp_path / "mine" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(ValueError, match=f"mine holds {name.split('/')[0]}, which this run did not write; name ano"):
        train(tmp_path / "mine")
    assert path.read_text() == "mine" and not (tmp_path / "mine" / "_run" / "run.json").exists()


def test_a_model_whose_checkpoints_were_removed_is_not_overwritten_by_another_run(run):
    for path in run.glob("checkpoint-*"):
        shutil.rmtree(path)
    before = (run / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="first holds config.json, model.safetensors, which this run did not write"):
        train(run, **{**AGAIN, "test_file": run.parent / "test_rows.jsonl", "learning_rate": 1e-2})
    assert (run / "model.safetensors").read_bytes() == before


def test_the_record_holds_no_row_and_no_path(trained):
    text = (trained / "_run" / "run.json").read_text()
    assert str(trained.parent) not in text and "text editor" not in text and "hub_token" not in text
    record = json.loads(text)
    size = (trained.parent / "first.jsonl").stat().st_size
    assert record["options"]["train_file"]["size"] == size
    assert record["starts"][0]["rows"] == 106  # and 14 of the 120 validate


@pytest.mark.parametrize(
    ("loss", "mae", "worse"), [(1.9, 5.4, False), (1.9, 5.6, True), (2.1, 1.0, True), (float("nan"), 5.0, True)]
)
def test_the_mean_is_worse_by_its_loss_or_by_a_tenth_of_its_length_error(loss, mae, worse):
    assert checkpoints.is_worse({"loss": loss, "mae": mae}, {"loss": 2.0, "mae": 5.0}) is worse


def test_a_mean_that_is_worse_than_the_last_is_not_kept(run, monkeypatch):
    original = checkpoints.average_checkpoints

    def mean(folders):
        state = original(folders)
        if len(folders) > 1:
            state["model.shared.weight"].normal_(std=50, generator=torch.Generator().manual_seed(1))
        return state

    monkeypatch.setattr(checkpoints, "average_checkpoints", mean)
    train(run, **{**AGAIN, "test_file": run.parent / "test_rows.jsonl", "average_checkpoints": 2})
    assert_same_weights(run / "checkpoint-6", run)
    told = "Weights: the last checkpoint, not the mean of the checkpoints 4, 6; on the validation rows"
    assert told in (run / "README.md").read_text()


def test_only_late_checkpoints_are_averaged_and_without_rows_nothing_is_compared(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        options = {"average_checkpoints": 5, "warmup_steps": 4, "max_steps": 7, "validation_share": 0, "test_share": 0}
        train(tmp_path / "run", **options)
    assert "Weights: the mean of the checkpoints 6, 7, compared with none" in caplog.text
    folders = [tmp_path / "run" / name for name in ("checkpoint-6", "checkpoint-7", ".")]
    states = [load_file(folder / "model.safetensors") for folder in folders]
    name = "model.decoder.layers.0.fc1.weight"
    torch.testing.assert_close(states[2][name], (states[0][name] + states[1][name]) / 2)


def test_outputs_stand_in_the_order_of_the_test_rows(trained):
    rows = read_rows(trained / "test.jsonl")
    assert len(rows) == 9
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(trained), AutoTokenizer.from_pretrained(trained)
    for name in ("test_outputs.jsonl", "test_20_outputs.jsonl"):
        outputs = read_rows(trained / name)
        assert [row["source"] for row in outputs] == [row["source"] for row in rows]
        assert [row["reference"] for row in outputs] == [row["target"] for row in rows]
        dropped = {i: row["dropped"] for i, row in enumerate(outputs) if "dropped" in row}
        assert dropped == {3: "empty text", 7: "target over 80 tokens"}
        assert all(row["output"] is None for row in outputs if "dropped" in row)
        for row in outputs[:2]:
            requested = 20 if "20" in name else len(row["reference"])
            ids = model.generate(**tokenizer(row["source"], return_tensors="pt"), length=requested)
            written = tokenizer.decode(ids[0], skip_special_tokens=True, clean_up_tokenization_spaces=False)
            assert (row["requested"], row["output"], row["length"]) == (requested, written, len(written))
    card = ModelCard.load(trained / "README.md").text
    published = [line.split(" | ")[0].removeprefix("| ") for line in card.splitlines() if line.startswith("| ")]
    assert published[-7:] == [row["target"] for i, row in enumerate(rows) if i not in (3, 7)]
    assert rows[0]["source"] in card  # the example's source and reference are of one row


def test_the_trained_lengths_are_kept_and_a_request_outside_is_told_once(run, caplog):
    config = json.loads((run / "config.json").read_text())
    counts = sorted(len(row["target"]) for row in read_rows(run.parent / "first.jsonl"))
    assert config["trained_lengths"]["max"] == counts[-1] == 36
    assert config["trained_lengths"]["1%"] == 19 and config["trained_lengths"]["50%"] in range(24, 30)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(run), AutoTokenizer.from_pretrained(run)
    batch = tokenizer(SOURCES[0], return_tensors="pt")
    model.generate(**batch, length=30)
    model.generate(**batch, length=18)  # one character below the range
    assert "was requested" not in caplog.text
    for _ in range(2):
        model.generate(**batch, length=90)
    assert caplog.text.count("a length of 90 to 90 characters was requested; the model was trained on 19 to 3") == 1
    card = (run / "README.md").read_text()
    assert "trained on lengths from 19 to 3" in card and "longest 36" in card


def test_texts_that_read_badly_are_counted():
    texts = ["a text editor", "a text editor", "an an editor", "of the of the", "card games..", "cards,."]
    assert text_quality(texts) == {"repeated": 2 / 6, "filled_end": 2 / 6}
    assert lead("a café here", 6, "character") == "a café" and lead("a café here", 6, "byte") == "a caf"
    assert lead(" one two  three", 2, "word") == "one two"
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    assert lead(f"a{family}b", 2, "grapheme") == f"a{family}" and lead("日本", 3, "width") == "日"


def test_the_lead_of_a_long_source_needs_few_counts(monkeypatch):
    counted = []
    count = metrics.count_units
    monkeypatch.setattr(metrics, "count_units", lambda text, unit: counted.append(text) or count(text, unit))
    assert metrics.lead("e\u0301" * 2000, 40, "grapheme") == "e\u0301" * 40 and len(counted) < 20


def test_a_test_shows_the_lead_baseline_and_warns_of_a_model_under_it(trained, run, caplog):
    figures = json.loads((trained / "test_20_results.json").read_text())
    rows = [row for row in read_rows(trained / "test_20_outputs.jsonl") if row["output"] is not None]
    expected = rouge_metrics([row["source"][:20] for row in rows], [row["reference"] for row in rows])["rouge1_f1"]
    assert figures["test_20_lead_rouge1_f1"] == pytest.approx(expected) and expected > figures["test_20_rouge1_f1"]
    assert figures["test_20_distinct"] == len({row["output"] for row in rows}) / len(rows)
    assert 0 < json.loads((trained / "all_results.json").read_text())["test_distinct"] <= 1
    card = (trained / "README.md").read_text()
    assert "lead_rouge1_f1" in card and "the source, cut at the" in card and "distinct" in card
    with caplog.at_level(logging.WARNING):
        train(run, **AGAIN, test_file=run.parent / "test_rows.jsonl")
    assert f"at 20 characters the model has rouge1_f1 {figures['test_20_rouge1_f1']:.1f}" in caplog.text
    assert f"the source cut at the length has {expected:.1f}" in caplog.text


def test_evaluate_shows_the_baseline_and_leaves_out_dropped_rows(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    options = ["--input_file", trained / "test_20_outputs.jsonl", "--reference_column", "reference"]
    evaluate.main([*map(str, options), "--output_dir", str(tmp_path / "report")])
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    figures = json.loads((trained / "test_20_results.json").read_text())
    assert report["units"]["character"]["n"] == 7
    assert report["baseline"]["rouge1_f1"] == pytest.approx(figures["test_20_lead_rouge1_f1"])
    assert report["units"]["character"]["distinct"] == figures["test_20_distinct"]
    text = capsys.readouterr().out
    assert (
        "lead, `source` cut at the requested length" in text
        and "2 of 9 rows left out: they" in text
        and "filled end 0.0 %" in text
    )
    assert not (tmp_path / "report" / "report.png").exists() and (tmp_path / "report" / "report.md").is_file()


def test_a_missing_part_is_told_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.setitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", None)
    with pytest.raises(ImportError, match=r"ja-mecab. needs MeCab: pip install .hf_lenctrl\[ja\]"):
        train(tmp_path / "run", bleu_tokenizer="ja-mecab")
    assert not (tmp_path / "run" / "_run" / "run.json").exists()  # so that the folder takes another command


def test_a_model_reads_as_many_tokens_as_it_was_trained_on(trained, tmp_path, caplog):
    start = tmp_path / "start"
    shutil.copytree(trained, start, ignore=shutil.ignore_patterns("checkpoint-*"))
    tokenizer = AutoTokenizer.from_pretrained(start)
    tokenizer.model_max_length = 12
    tokenizer.save_pretrained(start)
    options = {"max_steps": 1, "test_share": 0, "validation_share": 0}
    train(tmp_path / "next", model_name_or_path=start, max_source_length=20, **options)
    assert AutoTokenizer.from_pretrained(tmp_path / "next").model_max_length == 20
    long = [row["source"] for row in ROWS[:106]]
    assert "sources are longer than 20 tokens and were cut; raise --max_source_length" in caplog.text  # over a tenth
    caplog.clear()
    pipe = pipeline("length-controlled-generation", model=str(tmp_path / "next"), device="cpu")
    assert len(pipe.tokenizer(long[0])["input_ids"]) > 20
    pipe([long[0], "A game."], length=20, length_constraint="max")
    assert "1 of 2 sources are longer than 20 tokens, the tokenizer's model_max_length, and were cut" in caplog.text


def test_targets_are_no_longer_than_the_decoder(trained, tmp_path):
    """By default; a longer one is refused before the training."""
    base = shutil.copytree(trained, tmp_path / "base", ignore=shutil.ignore_patterns("checkpoint-*"))
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 40, "absolute_positions": True}))

    def found(**options):
        argv = as_options({"model_name_or_path": base, "train_file": "x.jsonl", **options})
        arguments, specified = parse_specified((ModelArguments, DataArguments), argv)
        return limits(*arguments, None, specified)

    assert found() == (40, 40) and found(max_target_length=30) == (40, 30)
    with pytest.raises(ValueError, match="--max_target_length 41, but the decoder of .* has 40 positions"):
        found(max_target_length=41)


def test_the_card_of_a_translator_speaks_of_translation_at_a_sensible_length(trained):
    model = AutoModelForSeq2SeqLM.from_pretrained(trained)
    run = TrainingRun({}, {20: ["x"]}, ["Das ist ein Haus."], ["This is a house."], "rows.jsonl", task="translation")
    card = model_card(model, run, "translator").text
    median = model.config.trained_lengths["50%"]
    assert "translates into texts of a requested length" in card and f"length={median}, " in card
    run.examples = 1
    assert "text = 'Das ist ein Haus.'" in (card := model_card(model, run, "translator").text)
    assert "length=16, " in card  # of its own reference
    assert f"length={median}, " in minimal_card(model, "translator").text


def test_n_best_lines_have_rank_score_and_row_and_sampling_is_repeatable(trained, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"source": text, "id": i} for i, text in enumerate(SOURCES[:2])])
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(trained), AutoTokenizer.from_pretrained(trained)
    options = ["--model", str(trained), "--input_file", str(source)]
    options += ["--length", "9", "12", "--length_constraint", "max"]
    generate.main([*options, "--num_return_sequences", "2", "--num_beams", "3", "--output_file", f"{tmp_path}/beams"])
    lines = read_rows(tmp_path / "beams")
    expected = [(row, length, rank) for row in (1, 2) for length in (9, 12) for rank in (1, 2)]
    assert [(line["row"], line["requested"], line["rank"]) for line in lines] == expected
    beams = {"num_beams": 3, "num_return_sequences": 2, "return_dict_in_generate": True, "output_scores": True}
    batch = tokenizer(SOURCES[1], return_tensors="pt")
    expected = model.generate(**batch, length=9, length_constraint="max", **beams).sequences_scores.tolist()
    assert [line["score"] for line in lines[4:6]] == pytest.approx(expected, rel=1e-4)
    sample = [*options, "--do_sample", "--top_p", "0.9", "--no_repeat_ngram_size", "2", "--repetition_penalty", "1.1"]
    for name, seed in (("one", "1"), ("same", "1"), ("other", "2")):
        generate.main([*sample, "--seed", seed, "--output_file", str(tmp_path / name)])
    one, same, other = (read_rows(tmp_path / name) for name in ("one", "same", "other"))
    assert one == same != other and "score" not in one[0] and one[0]["id"] == 0
    with pytest.raises(SystemExit):
        generate.main([*options, "--top_p", "0.9", "--output_file", str(tmp_path / "refused")])
