"""What a run says of itself is true: its record, its outputs, its card, what it refuses (issue 18)."""

import json
import logging
import shutil
from pathlib import Path

import datasets
import pytest
import torch
from conftest import SOURCES, TARGETS
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_lenctrl.experiment import checkpoints
from hf_lenctrl.experiment import train as train_command


ROWS = [
    {"source": f"{source} This is part {i} of it.", "target": f"{target} {i}"}
    for i in range(20)
    for source, target in zip(SOURCES, TARGETS, strict=True)
]
TINY = {
    "d_model": 32,
    "layers": 1,
    "attention_heads": 2,
    "ffn_dim": 32,
    "vocab_size": 150,
    "target_vocabulary": "shared",
    "validation_share": 0.1,
    "test_share": 0.1,
    "max_steps": 6,
    "save_steps": 2,
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "predict_with_generate": True,
    "train_sampling_strategy": "group_by_length",
    "max_test_rows": 8,
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
}


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def options_of(**values) -> list[str]:
    items = ((key, value if isinstance(value, list) else [value]) for key, value in values.items())
    return [word for key, words in items for word in (f"--{key}", *map(str, words))]


def train(folder: Path, *, rows: list[dict] = ROWS, **options) -> dict:
    file = write_rows(folder.with_suffix(".jsonl"), rows)
    return train_command.main(options_of(**{"train_file": file, "output_dir": folder, **TINY, **options}))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished run; tests that go on with it copy it."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder.parent / "cache")
        # of the test rows one has no target and one is too long
        rows = [{"source": "Nothing is said of this.", "target": " "}, {"source": "Too much.", "target": "word " * 90}]
        test = write_rows(folder.parent / "test_rows.jsonl", [*ROWS[:3], rows[0], *ROWS[20:23], rows[1], ROWS[40]])
        train(folder, test_file=test, max_test_rows=20, max_target_length=80, test_lengths=[20], card_examples=9)
    return folder


@pytest.fixture
def run(trained, tmp_path) -> Path:
    for name in ("first", "first.jsonl", "test_rows.jsonl"):
        path = trained.parent / name
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / name)
    return tmp_path / "first"


AGAIN = {"max_test_rows": 20, "max_target_length": 80, "test_lengths": [20], "card_examples": 9}


# 18.1: the record of a run


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"learning_rate": 1e-2, "seed": 7}, ["learning_rate=0.001, now 0.01", "seed=42, now 7"]),
        ({"rows": ROWS[:-1], "max_steps": 9}, ["train_file=sha256 "]),
        ({"overshoot_share": 0.2}, ["overshoot_share=0.0, now 0.2"]),
        ({"length_encoding": "lrpe"}, ["length_encoding=ldpe, now lrpe"]),
        ({"max_steps": 3}, ["max_steps=6 (trained), now 3"]),
    ],
)
def test_a_finished_folder_refuses_another_command(run, options, said):  # issue 18.1
    before = (run / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="holds a run with other options") as refused:
        train(run, **{**AGAIN, "test_file": run.parent / "test_rows.jsonl", **options})
    message = str(refused.value)
    assert all(words in message for words in said), message
    assert f"model_name_or_path={run}" in message and "Name another output_dir" in message and "max_steps" in message
    assert (run / "model.safetensors").read_bytes() == before


def test_a_run_may_be_resumed_with_more_steps_and_the_card_says_it(run):  # issue 18.1
    train(run, **{**AGAIN, "test_file": run.parent / "test_rows.jsonl", "max_steps": 8, "logging_steps": 1})
    record = json.loads((run / "run.json").read_text())
    assert [(sitting["from"], sitting["to"]) for sitting in record["sittings"]] == [(0, 6), (6, 8)]
    card = (run / "README.md").read_text()
    assert "Steps 0 to 6 (" in card and "Steps 6 to 8 (" in card and "Changed: `max_steps` to 8, `logging_steps`" in card
    assert "- `max_steps`: 8" in card and "num_train_epochs" not in card


def test_the_record_holds_no_row_and_no_path(trained):  # issue 18.1
    text = (trained / "run.json").read_text()
    assert str(trained.parent) not in text and "text editor" not in text and "hub_token" not in text
    record = json.loads(text)
    size = (trained.parent / "first.jsonl").stat().st_size
    assert record["decides"]["train_file"]["size"] == size and record["files"]["train_file"] == "first.jsonl"
    assert record["rows"]["test"] == 7


def test_a_folder_where_nothing_was_trained_takes_another_command(tmp_path):  # issue 18.1
    folder = tmp_path / "run"
    with pytest.raises(ValueError, match="target_vocabulary"):
        train(folder, family="bart", target_vocabulary="character")
    train(folder, max_steps=1, test_share=0, vocab_size=140)
    record = json.loads((folder / "run.json").read_text())
    assert record["decides"]["vocab_size"] == 140 and AutoTokenizer.from_pretrained(folder).vocab_size <= 140


# 18.2: averaging


def test_only_late_checkpoints_are_averaged_and_without_rows_nothing_is_compared(tmp_path, caplog):  # issue 18.2
    with caplog.at_level(logging.INFO):
        options = {"average_checkpoints": 5, "warmup_steps": 4, "max_steps": 7, "validation_share": 0, "test_share": 0}
        train(tmp_path / "run", **options)
    assert "Weights: the mean of the checkpoints 6, 7, compared with none" in caplog.text
    states = [load_file(tmp_path / "run" / name / "model.safetensors") for name in ("checkpoint-6", "checkpoint-7", ".")]
    name = "model.decoder.layers.0.fc1.weight"
    torch.testing.assert_close(states[2][name], (states[0][name] + states[1][name]) / 2)
    assert "mean of the checkpoints 6, 7" in (tmp_path / "run" / "README.md").read_text()


@pytest.mark.parametrize("ruined", [False, True])
def test_the_better_of_mean_and_last_is_kept(run, monkeypatch, caplog, ruined):  # issue 18.2
    original = checkpoints.average_checkpoints

    def mean(folders):
        state = original(folders)
        weight = state["model.decoder.layers.0.fc2.weight"]
        if ruined and len(folders) > 1:
            weight.normal_(std=50, generator=torch.Generator().manual_seed(1))
        return state

    monkeypatch.setattr(checkpoints, "average_checkpoints", mean)
    with caplog.at_level(logging.INFO):
        options = {**AGAIN, "test_file": run.parent / "test_rows.jsonl", "average_checkpoints": 2}
        train(run, **options)
    last, saved = (load_file(folder / "model.safetensors") for folder in (run / "checkpoint-6", run))
    same = all(torch.equal(last[name], saved[name]) for name in saved)
    assert same == ruined
    told = "Weights: the last checkpoint, not the mean" if ruined else "Weights: the mean"
    assert f"{told} of the checkpoints 4, 6; on the validation rows the last has loss " in caplog.text
    assert told in (run / "README.md").read_text()


# 18.3: outputs in the order of the rows


def test_outputs_stand_in_the_order_of_the_test_rows(trained):  # issue 18.3
    rows = read_rows(trained / "test.jsonl")
    assert len(rows) == 9
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(trained), AutoTokenizer.from_pretrained(trained)
    for name in ("test_outputs.jsonl", "test_20_outputs.jsonl"):
        outputs = read_rows(trained / name)
        assert [row["source"] for row in outputs] == [row["source"] for row in rows]
        assert [row["reference"] for row in outputs] == [row["target"] for row in rows]
        assert {i: row["dropped"] for i, row in enumerate(outputs) if "dropped" in row} == {
            3: "empty text",
            7: "target over 80 tokens",
        }
        for row in outputs:
            if "dropped" in row:
                assert row["output"] is None
                continue
            requested = 20 if "20" in name else len(row["reference"])
            ids = model.generate(**tokenizer(row["source"], return_tensors="pt"), length=requested)
            written = tokenizer.decode(ids[0], skip_special_tokens=True, clean_up_tokenization_spaces=False)
            assert (row["requested"], row["output"], row["length"]) == (requested, written, len(written))
    card = ModelCard.load(trained / "README.md").text
    published = [line.split(" | ")[0].removeprefix("| ") for line in card.splitlines() if line.startswith("| ")]
    assert published[-7:] == [row["target"] for i, row in enumerate(rows) if i not in (3, 7)]
    assert rows[0]["source"] in card  # the example's source and reference are of one row
