"""The recipes, run for real on small models: training, evaluation, resuming, and generation from files."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
import torch
from conftest import SOURCES, TARGETS, build_model
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    BertTokenizer,
    MarianConfig,
    MarianMTModel,
)

import hf_lenctrl
from hf_lenctrl import DataCollatorForLengthControl
from hf_lenctrl.experiment import checkpoints, generate
from hf_lenctrl.experiment import train as train_seq2seq
from hf_lenctrl.experiment.arguments import ModelArguments


ROOT = Path(__file__).resolve().parents[1]


# 120 rows of 60 packages, about 12 of them to be cut for each of validation and test
ROWS = [
    {
        "source": f"{source} This is part {i} of it.",
        "target": f"{target} {i}",
        "package": f"{target.replace(' ', '')[:12]}{i // 2}-{i}",
    }
    for i in range(20)
    for source, target in zip(SOURCES, TARGETS, strict=True)
]
TINY = {
    "d_model": 32,
    "layers": 1,
    "attention_heads": 2,
    "ffn_dim": 32,
    "vocab_size": 150,
    "group_column": "package",
    "group_separator": "-",
    "validation_share": 0.1,
    "test_share": 0.1,
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "predict_with_generate": True,
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
}
ONLY_TRAIN = {"validation_share": 0, "test_share": 0}


def as_options(values: dict) -> list[str]:
    items = ((key, value if isinstance(value, list) else [value]) for key, value in values.items())
    return [word for key, words in items for word in (f"--{key}", *map(str, words))]


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def train(output_dir: Path, without: tuple[str, ...] = (), **options) -> dict:
    """Run the training recipe on ROWS."""
    rows = options.pop("rows", ROWS)
    options = {**{name: value for name, value in TINY.items() if name not in without}, **options}
    file = write_rows(output_dir.with_suffix(".jsonl"), rows)
    return train_seq2seq.main(as_options({"train_file": file, "output_dir": output_dir, **options}))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_same_weights(one: Path, two: Path):
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def load(folder: Path):
    return AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def steps_of(folder: Path) -> int:
    """Training steps that the newest checkpoint has seen."""
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda path: int(path.parent.name[11:]))
    return json.loads(states[-1].read_text())["global_step"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets_cache")


# Training

FIGURES = {"variance", "mae", "exact", "over", "settings"} | {
    f"{rouge}_{part}" for rouge in ("rouge1", "rouge2", "rougeL") for part in ("recall", "f1")
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run with all that a YAML of recipes/headline asks for, small; its folder and the metrics it returned."""
    folder = tmp_path_factory.mktemp("run") / "ldpe"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder.parent / "datasets_cache")
        patch.setattr(checkpoints, "is_worse", lambda mean, last: False)  # the mean is looked at below
        metrics = train(
            folder,
            max_steps=200,  # two seconds, and enough to learn to count to 36
            per_device_train_batch_size=16,
            learning_rate=5e-3,
            dropout=0,
            label_smoothing_factor=0.1,
            eval_strategy="steps",
            eval_steps=100,
            save_steps=50,
            save_total_limit=2,
            average_checkpoints=2,
            max_test_rows=5,
            generation_num_beams=2,
            test_lengths=[24, 30],
            rouge_max_bytes=20,
        )
    return folder, metrics


def test_the_results_hold_every_metric_under_its_name(run):
    folder, metrics = run
    written = json.loads((folder / "all_results.json").read_text())
    assert {f"{name}_{figure}" for name in ("test", "test_24", "test_30") for figure in FIGURES} <= written.keys()
    assert "train_loss" in written
    assert {name: written[name] for name in metrics} == metrics
    for name in ("test", "test_24", "test_30"):
        one = json.loads((folder / f"{name}_results.json").read_text())
        assert all(key.startswith(f"{name}_") or key == "epoch" for key in one)
        assert {key: written[key] for key in one} == one


def test_the_settings_stand_beside_the_results(run):
    _, metrics = run
    assert metrics["test_settings"].startswith("length: characters against the reference; ROUGE: rouge_score ")
    assert metrics["test_24_settings"].startswith("length: characters against 24; ")
    assert "truncation=20 bytes" in metrics["test_30_settings"]


def test_the_model_is_evaluated_by_generation_during_training(run):
    folder, _ = run
    history = json.loads((folder / "checkpoint-200" / "trainer_state.json").read_text())["log_history"]
    evaluations = {entry["step"]: entry for entry in history if "eval_loss" in entry}
    assert list(evaluations) == [100, 200]
    for entry in evaluations.values():
        assert {f"eval_{figure}" for figure in FIGURES} <= entry.keys()
        rows = entry["eval_runtime"] * entry["eval_samples_per_second"]
        assert rows < 40  # about 12 rows of 120, as the share says, and not the others


def test_a_trained_model_writes_texts_of_the_length_asked_for(run):
    # references are 19 to 36 characters long; a model that does not look at the length misses by more
    _, metrics = run
    assert metrics["test_mae"] < 2
    assert metrics["test_24_mae"] < 4 and metrics["test_30_mae"] < 4


def test_the_saved_weights_are_the_mean_of_the_last_checkpoints(run):
    folder, _ = run
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-150", "checkpoint-200"]
    one, last, saved = (weights(path) for path in (folder / "checkpoint-150", folder / "checkpoint-200", folder))
    assert saved.keys() == last.keys()
    for name, value in saved.items():
        expected = (one[name] + last[name]) / 2 if value.is_floating_point() else last[name]
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-7)
    assert any(not torch.equal(saved[name], last[name]) for name in saved)


def test_the_saved_folder_loads_and_writes_at_a_length(run):
    model, tokenizer = load(run[0])
    assert isinstance(model, hf_lenctrl.LenCtrlMarianMTModel) and tokenizer.separate_vocabs
    assert (model.config.length_encoding, model.config.length_unit) == ("ldpe", "character")
    rows = [ROWS[18], ROWS[20]]
    inputs = tokenizer([row["source"] for row in rows], return_tensors="pt", padding=True)
    lengths = [len(row["target"]) for row in rows]
    assert lengths == [19, 26]
    texts = tokenizer.batch_decode(model.generate(**inputs, length=lengths), skip_special_tokens=True)
    assert all(abs(len(text) - n) < 4 for text, n in zip(texts, lengths, strict=True)), texts
    texts = tokenizer.batch_decode(model.generate(**inputs, length=26), skip_special_tokens=True)
    assert abs(len(texts[1]) - 26) < 4, texts


def test_the_metrics_are_those_of_the_saved_model(run):
    # what was tested is what was saved: after averaging, at the asked length, on the rows of the test split
    folder, metrics = run
    model, tokenizer = load(folder)
    args = hf_lenctrl.experiment.arguments.DataArguments(
        train_file=str(folder.with_suffix(".jsonl")),
        max_test_rows=5,
        **{key: TINY[key] for key in ("group_column", "group_separator", "validation_share", "test_share")},
    )
    rows = hf_lenctrl.experiment.data.load_splits(args)["test"]
    inputs = tokenizer(rows["source"][:], return_tensors="pt", padding=True)
    texts = tokenizer.batch_decode(model.generate(**inputs, length=24, num_beams=2), skip_special_tokens=True)
    assert len(texts) == 5
    assert metrics["test_24_mae"] == pytest.approx(sum(abs(len(text) - 24) for text in texts) / 5)


def test_the_model_card_holds_the_figures_of_the_run(run):
    folder, metrics = run
    card = ModelCard.load(folder / "README.md")
    values = {result.metric_name: result.metric_value for result in card.data.eval_results}
    for asked, name in (
        ("the reference's length", "test"),
        ("24 characters", "test_24"),
        ("30 characters", "test_30"),
    ):
        for metric in ("mae", "exact", "rouge1_f1"):
            assert values[f"{metric} at {asked}"] == round(metrics[f"{name}_{metric}"], 4)
    first = json.loads((folder / "test_24_outputs.jsonl").read_text().splitlines()[0])
    assert first["reference"] not in card.text  # no row is published
    assert "- `max_steps`: 200" in card.text and str(folder.parent) not in card.text
    assert (folder / "report.png").is_file() and "report.png" in card.text


def test_weights_saved_in_half_precision_are_those_that_were_tested(tmp_path):
    options = {"max_steps": 2, "save_steps": 2, "max_test_rows": 3, "target_vocabulary": "shared"}
    metrics = train(tmp_path / "run", weights_dtype="float16", **options)
    saved = weights(tmp_path / "run")
    assert {t.dtype for name, t in saved.items() if "unit_table" not in name and t.is_floating_point()} == {
        torch.float16
    }
    full = weights(tmp_path / "run" / "checkpoint-2")
    assert saved.keys() == full.keys() and all(torch.equal(saved[n], t.to(saved[n].dtype)) for n, t in full.items())
    model, tokenizer = load(tmp_path / "run")
    assert model.dtype == torch.float32  # computed with as it was trained
    sources = [json.loads(line) for line in (tmp_path / "run" / "test.jsonl").read_text().splitlines()]
    outputs = [json.loads(line) for line in (tmp_path / "run" / "test_outputs.jsonl").read_text().splitlines()]
    batch = tokenizer([row["source"] for row in sources], text_target=[row["target"] for row in sources])
    collate = DataCollatorForLengthControl(tokenizer, model=model)
    batch = collate([{k: batch[k][i] for k in ("input_ids", "attention_mask", "labels")} for i in range(len(sources))])
    labels = batch.pop("labels")
    batch.pop("decoder_input_ids", None)
    texts = tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
    assert texts == [row["output"] for row in outputs] and len(labels) == len(outputs) and "test_mae" in metrics


def test_a_checkpoint_is_a_model_of_its_own(run):
    model, tokenizer = load(run[0] / "checkpoint-150")
    assert model.generate(**tokenizer(SOURCES[:1], return_tensors="pt"), length=5).shape[0] == 1


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_training_loss_is_label_smoothed_at_the_length_of_the_labels(tmp_path, smoothing):
    # All rows in one batch and a learning rate of zero: the saved model is the one the loss was measured on.
    rows = ROWS[:8]
    metrics = train(
        tmp_path / "run",
        rows=rows,
        max_steps=1,
        learning_rate=0,
        dropout=0,
        label_smoothing_factor=smoothing,
        **ONLY_TRAIN,
    )
    model, tokenizer = load(tmp_path / "run")
    losses = []
    for row in rows:
        labels = torch.tensor([tokenizer(text_target=row["target"])["input_ids"]])
        inputs = tokenizer(row["source"], return_tensors="pt")
        start = torch.cat([torch.tensor([[tokenizer.pad_token_id]]), labels[:, :-1]], dim=1)
        logits = model(**inputs, decoder_input_ids=start, length=len(row["target"])).logits
        log_p = logits.log_softmax(-1)
        wanted = log_p.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        losses.append(-(1 - smoothing) * wanted - smoothing * log_p.mean(-1))
    assert metrics["train_loss"] == pytest.approx(torch.cat(losses, dim=1).mean().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"length_encoding": "lrpe"}, "LenCtrlMarianMTModel"),
        ({"target_vocabulary": "shared", "length_encoding": "pre", "length_unit": "token"}, "LenCtrlMarianMTModel"),
        ({"family": "bart", "target_vocabulary": "shared"}, "LenCtrlBartForConditionalGeneration"),
        (
            {"family": "bart", "target_vocabulary": "shared", "length_encoding": "none", "absolute_positions": True},
            "BartForConditionalGeneration",
        ),
        ({"length_encoding": "none"}, "MarianMTModel"),  # a plain model has positions whatever absolute_positions says
        ({"length_encoding": "none", "absolute_positions": True, "length_head": True}, "LenCtrlMarianMTModel"),
    ],
    ids=["lrpe", "shared-pre-tokens", "bart-shared", "bart-none", "none", "none-head"],
)
def test_every_kind_of_model_trains_is_tested_and_loads(tmp_path, options, kind):
    metrics = train(tmp_path / "run", max_steps=1, max_test_rows=2, test_lengths=[6], **options)
    assert {f"{name}_{figure}" for name in ("test", "test_6") for figure in FIGURES} <= metrics.keys()
    model, tokenizer = load(tmp_path / "run")
    assert type(model).__name__ == kind
    for name in ("length_encoding", "length_unit", "absolute_positions") if kind.startswith("LenCtrl") else ():
        default = "character" if name == "length_unit" else getattr(ModelArguments(), name)
        assert getattr(model.config, name) == options.get(name, default)
    assert getattr(tokenizer, "separate_vocabs", False) == (options.get("target_vocabulary") != "shared")
    length = {} if options.get("length_encoding") == "none" else {"length": 7}
    ids = model.generate(**tokenizer(SOURCES[:1], return_tensors="pt"), **length)
    assert isinstance(tokenizer.decode(ids[0], skip_special_tokens=True), str)


@pytest.mark.parametrize("family", ["marian", "bart"])
def test_outputs_of_the_plain_model_are_not_cut_at_the_default_of_20_tokens(tmp_path, monkeypatch, family):
    # A baseline that cannot write past 20 characters is none. The library's default is `max_length=20`.
    train(
        tmp_path / "run",
        family=family,
        target_vocabulary="shared",
        length_encoding="none",
        absolute_positions=True,
        max_target_length=50,
        max_steps=1,
        max_test_rows=2,
        eval_strategy="steps",  # after an evaluation the Trainer writes defaults into the generation config
        eval_steps=1,
    )
    model, tokenizer = load(tmp_path / "run")
    model.final_logits_bias[:, tokenizer.eos_token_id] = -1e4  # never wants to end
    ids = model.generate(**tokenizer(SOURCES[:1], return_tensors="pt"))
    assert ids.shape[1] >= 50


def test_the_yaml_of_a_recipe_runs(tmp_path):
    file = write_rows(tmp_path / "rows.jsonl", ROWS)
    sizes = {key: TINY[key] for key in ("d_model", "layers", "ffn_dim", "vocab_size", "disable_tqdm", "use_cpu")}
    shares = {"validation_share": 0.1, "test_share": 0.1}
    more = {"max_steps": 2, "save_steps": 1, "eval_steps": 2, "attention_heads": 2, "max_test_rows": 3}
    options = {"train_file": file, "output_dir": tmp_path / "run", **sizes, **shares, **more}
    method = ["--length_encoding", "lrpe", "--absolute_positions", "true"]
    metrics = train_seq2seq.main(["headline/small", *method, *as_options(options)])
    assert {"test_mae", "test_20_mae", "test_40_mae", "test_60_mae"} <= metrics.keys()
    model, _ = load(tmp_path / "run")
    assert (model.config.length_encoding, model.config.absolute_positions) == ("lrpe", True)


@pytest.mark.parametrize("family", ["marian", "bart"])
def test_a_new_model_has_the_shape_of_the_arguments(family, shared_tokenizer):
    args = ModelArguments(
        family=family, layers=3, d_model=48, attention_heads=4, ffn_dim=80, dropout=0.2, activation_function="gelu"
    )
    args.absolute_positions = True
    model = train_seq2seq.build_model(args, shared_tokenizer, max_positions=777)
    config = model.config
    assert (config.encoder_layers, config.decoder_layers, config.d_model) == (3, 3, 48)
    assert (config.encoder_attention_heads, config.decoder_attention_heads) == (4, 4)
    assert (config.encoder_ffn_dim, config.decoder_ffn_dim) == (80, 80)
    assert (config.dropout, config.activation_function, config.max_position_embeddings) == (0.2, "gelu", 777)
    assert (config.absolute_positions, config.length_encoding, config.length_unit) == (True, "ldpe", "character")
    assert config.pad_token_id == 2 and config.eos_token_id == 0 and config.vocab_size == len(shared_tokenizer)
    # the table is that of the tokenizer: "small text editor" is 17 characters
    assert model.count_labels(torch.tensor([shared_tokenizer(text_target=TARGETS[0])["input_ids"]])).tolist() == [17]


@pytest.mark.parametrize(("family", "stock"), [("marian", MarianMTModel), ("bart", BartForConditionalGeneration)])
def test_a_new_model_that_is_given_no_length_is_a_stock_model(family, stock, shared_tokenizer):
    shape = {"layers": 1, "d_model": 32, "attention_heads": 2, "ffn_dim": 32}
    args = ModelArguments(family=family, length_encoding="none", **shape)
    model = train_seq2seq.build_model(args, shared_tokenizer, max_positions=64)
    assert type(model) is stock and type(model.config) is stock.config_class
    assert not any("length" in name for name in model.config.to_dict())
    assert model.config.vocab_size == len(shared_tokenizer) and model.config.max_position_embeddings == 64
    for option in ({"length_head": True}, {"encoder_length_embedding": True}, {"length_constraint": "exact"}):
        args = ModelArguments(family=family, length_encoding="none", absolute_positions=True, **shape, **option)
        model = train_seq2seq.build_model(args, shared_tokenizer, max_positions=64)
        assert model.config.model_type == f"lenctrl_{family}"


def test_a_plain_model_is_measured_in_the_unit_of_the_run(tmp_path):
    # 6 tokens are not 6 characters: the figures of the same run in both units differ
    options = {"target_vocabulary": "shared", "length_encoding": "none", "max_steps": 1, "max_test_rows": 2}
    for unit in ("token", "character"):
        figures = train(tmp_path / unit, length_unit=unit, test_lengths=[6], **options)
        assert figures["test_6_settings"].startswith(f"length: {unit}s against 6; ")
        written = [json.loads(line)["target"] for line in (tmp_path / unit / "test.jsonl").read_text().splitlines()]
        assert len(written) == 2
        assert f"| requested {unit}s |" in (tmp_path / unit / "README.md").read_text()
    # what the recipe trained is a plain base model, to which length control can be added
    metrics = train(tmp_path / "base", base_model=tmp_path / "token", max_steps=1, max_test_rows=2)
    assert "test_mae" in metrics and type(load(tmp_path / "base")[0]).__name__ == "LenCtrlMarianMTModel"


@pytest.mark.parametrize("encoding", ["ldpe", "none"])
def test_a_new_model_may_have_fewer_decoder_layers_and_another_attention(encoding, shared_tokenizer):
    shape = {"layers": 3, "decoder_layers": 1, "d_model": 32, "attention_heads": 2, "ffn_dim": 32}
    args = ModelArguments(length_encoding=encoding, **shape)
    for attention in ("sdpa", "eager"):
        args.attn_implementation = attention
        model = train_seq2seq.build_model(args, shared_tokenizer, max_positions=64)
        assert (len(model.get_encoder().layers), len(model.model.decoder.layers)) == (3, 1)
        used = {module.config._attn_implementation for module in model.modules() if hasattr(module, "out_proj")}
        assert used == {attention}


def test_accumulated_gradients_weigh_as_one_batch(tmp_path):
    # The Trainer takes a model whose forward has **kwargs for one that scales its loss by `num_items_in_batch`.
    whole, parts = (
        train(
            tmp_path / f"batch{size}",
            rows=ROWS[:8],
            max_steps=1,
            dropout=0,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=8 // size,
            **ONLY_TRAIN,
        )["train_loss"]
        for size in (8, 2)
    )
    assert parts == pytest.approx(whole, rel=0.05)


# Going on


def test_a_run_that_was_stopped_and_resumed_equals_one_that_was_not(tmp_path, caplog):
    options = {"save_steps": 3, **ONLY_TRAIN}
    train(tmp_path / "whole", max_steps=6, **options)
    train(tmp_path / "parts", max_steps=3, **options)
    assert steps_of(tmp_path / "parts") == 3
    with caplog.at_level("INFO", logger="train_seq2seq"):
        train(tmp_path / "parts", max_steps=6, **options)
    assert f"resuming from {tmp_path / 'parts' / 'checkpoint-3'}" in caplog.text
    assert steps_of(tmp_path / "parts") == 6
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert not torch.equal(  # and training has not stood still
        weights(tmp_path / "whole" / "checkpoint-3")["model.decoder.layers.0.fc1.weight"],
        weights(tmp_path / "whole")["model.decoder.layers.0.fc1.weight"],
    )


def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(tmp_path):
    options = {
        "max_steps": 6,
        "save_steps": 3,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "train_sampling_strategy": "group_by_length",
        "validation_share": 0.1,
        "test_share": 0,
    }
    train(tmp_path / "whole", **options)
    for name in ("checkpoint-3", "tokenizer"):  # what stood there when it was killed in step 4
        shutil.copytree(tmp_path / "whole" / name, tmp_path / "killed" / name)
    train(tmp_path / "killed", **options)
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")


def test_a_finished_run_given_again_is_tested_again_and_not_trained_on(tmp_path):
    options = {"max_steps": 3, "save_steps": 2, "max_test_rows": 2}
    first = train(tmp_path / "run", **options)
    before = weights(tmp_path / "run")
    again = train(tmp_path / "run", **options)
    after = weights(tmp_path / "run")
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    assert again["test_mae"] == first["test_mae"]


def test_training_goes_on_from_a_named_model_and_its_tokenizer(run, tmp_path):
    # a learning rate of zero leaves what was loaded
    train(tmp_path / "next", model_name_or_path=run[0], max_steps=1, learning_rate=0, **ONLY_TRAIN)
    assert_same_weights(run[0], tmp_path / "next")
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (run[0], tmp_path / "next")]
    assert tokenizers[0].get_vocab() == tokenizers[1].get_vocab()


def test_a_named_model_learns(run, tmp_path):
    train(tmp_path / "next", model_name_or_path=run[0], max_steps=1, **ONLY_TRAIN)
    before, after = weights(run[0]), weights(tmp_path / "next")
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_a_tokenizer_may_be_that_of_another_run(run, tmp_path):
    train(tmp_path / "next", ("vocab_size",), tokenizer_name_or_path=run[0], max_steps=1, rows=ROWS[:8], **ONLY_TRAIN)
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (run[0], tmp_path / "next")]
    assert tokenizers[0].target_encoder == tokenizers[1].target_encoder
    assert not (tmp_path / "next" / "tokenizer").exists()


# Bad input, told before any training


@pytest.mark.parametrize("lengths", [[0], [20, -5]])
def test_a_test_length_under_one_is_refused_before_training(tmp_path, lengths):
    with pytest.raises(ValueError, match=f"at least 1, got {lengths[-1]}"):
        train(tmp_path / "run", max_steps=1, test_lengths=lengths)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_bart_with_two_vocabularies_is_refused(tmp_path):
    with pytest.raises(ValueError, match="target_vocabulary"):
        train(tmp_path / "run", family="bart", target_vocabulary="character", max_steps=1)


def test_a_model_without_length_control_is_refused_by_name(tmp_path, shared_tokenizer):
    model = MarianMTModel(MarianConfig(**foreign_shape(shared_tokenizer)))
    model.save_pretrained(tmp_path / "foreign")
    shared_tokenizer.save_pretrained(tmp_path / "foreign")
    with pytest.raises(ValueError, match="foreign"):
        train(tmp_path / "run", model_name_or_path=tmp_path / "foreign", max_steps=1)


def foreign_shape(tokenizer) -> dict:
    layers = {f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in LAYER.items()}
    ids = {"pad_token_id": 2, "eos_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": 0}
    return {"vocab_size": len(tokenizer), "d_model": 32, **layers, **ids}


LAYER = {"layers": 1, "attention_heads": 2, "ffn_dim": 32}


# Several processes


def launch(script: Path, *options, tmp_path: Path) -> subprocess.CompletedProcess:
    """
    `accelerate launch` with two processes on the CPU. Its `--cpu` starts one process only; `--multi_gpu` starts two,
    and the script's own `--use_cpu` lets them talk over gloo.
    """
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "HF_DATASETS_CACHE": str(tmp_path / "datasets_cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        # elsewhere the launcher would look for the settings of this machine
        "HF_HOME": str(tmp_path / "home"),
    }
    return subprocess.run(
        [*command, str(script), *options], env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
def test_two_processes_train_evaluate_and_save_one_model(tmp_path):
    file = write_rows(tmp_path / "rows.jsonl", ROWS)
    options = {
        "train_file": file,
        "output_dir": tmp_path / "run",
        **TINY,
        "max_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_steps": 1,
        "average_checkpoints": 2,
        "test_lengths": 5,
        "generation_num_beams": 2,
    }
    done = launch(ROOT / "recipes" / "train_seq2seq.py", *as_options(options), tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    written = json.loads((tmp_path / "run" / "all_results.json").read_text())
    assert {f"{name}_{figure}" for name in ("test", "test_5") for figure in FIGURES} <= written.keys()
    history = json.loads((tmp_path / "run" / "checkpoint-2" / "trainer_state.json").read_text())["log_history"]
    assert any("eval_mae" in entry for entry in history)
    # of about 96 rows two processes take 16 a step, which is a sixth of an epoch; one process would take 8
    assert 0.28 < written["epoch"] < 0.42
    # an untrained model over 37 letters: ln 37 = 3.6 a letter, not twice as much
    assert 3 < written["train_loss"] < 5
    model, tokenizer = load(tmp_path / "run")
    assert model.generate(**tokenizer(SOURCES[:1], return_tensors="pt"), length=5).shape[0] == 1


# Generation from files


@pytest.fixture(scope="module", params=["character", "shared"])
def saved(request, tmp_path_factory):
    """An untrained model that counts characters, saved with its tokenizer."""
    tokenizer = request.getfixturevalue(f"{request.param}_tokenizer")
    fields = {"vocab_size": len(tokenizer), "length_unit": "character", "init_std": 0.5}
    if request.param == "character":
        fields |= {"decoder_vocab_size": len(tokenizer.target_encoder), "share_encoder_decoder_embeddings": False}
    model = build_model("marian", seed=5, **fields)
    return save(model, tokenizer, tmp_path_factory.mktemp("saved"))


@pytest.fixture(scope="module")
def plain(shared_tokenizer, tmp_path_factory):
    """An untrained model without length control."""
    fields = {"length_encoding": "none", "absolute_positions": True, "length_unit": "character", "init_std": 0.5}
    model = build_model("marian", seed=5, vocab_size=len(shared_tokenizer), **fields)
    return save(model, shared_tokenizer, tmp_path_factory.mktemp("plain"))


def save(model, tokenizer, folder: Path) -> Path:
    model.set_unit_table(tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_texts(model: Path, input_file: Path, *options) -> list[dict]:
    """Run the generation recipe."""
    output_file = input_file.with_name("out.jsonl")
    words = ["--model", str(model), "--input_file", str(input_file), "--output_file", str(output_file)]
    generate.main([*words, "--num_beams", "2", *map(str, options)])  # a later --num_beams wins
    with output_file.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


BUDGETS = [9, 30, 4, 9, 17, 1]


def test_batches_of_tokens_are_not_bound_by_a_number_of_rows(saved, tmp_path, monkeypatch):
    file = tmp_path / "in.txt"
    file.write_text("library\n" * 40, encoding="utf-8")
    rows: list[int] = []
    preprocess = hf_lenctrl.LengthControlledGenerationPipeline.preprocess

    def look(self, texts, **options):
        rows.append(len(texts))
        return preprocess(self, texts, **options)

    monkeypatch.setattr(hf_lenctrl.LengthControlledGenerationPipeline, "preprocess", look)
    assert len(write_texts(saved, file, "--length", 6, "--batch_tokens", 4000)) == 40 == sum(rows)
    assert rows == [40]
    rows.clear()
    (tmp_path / "out.jsonl").unlink()
    write_texts(saved, file, "--length", 6)
    assert rows == [32, 8]


def test_lines_of_text_are_written_at_one_length(saved, tmp_path):
    file = tmp_path / "in.txt"
    file.write_text("\n".join(SOURCES) + "\n", encoding="utf-8")
    rows = write_texts(saved, file, "--length", 12, "--batch_size", 4)
    assert [row["source"] for row in rows] == SOURCES
    assert all(list(row) == ["source", "requested", "output", "length"] for row in rows)
    assert [row["requested"] for row in rows] == [12] * 6
    assert [row["length"] for row in rows] == [len(row["output"]) for row in rows]


@pytest.mark.parametrize("options", [(), ("--batch_size", 2)])
def test_every_row_is_written_at_its_own_length_in_the_order_of_the_file(saved, tmp_path, options):
    rows = [{"text": source, "budget": n} for source, n in zip(SOURCES, BUDGETS, strict=True)]
    file = write_rows(tmp_path / "in.jsonl", rows)
    columns = ("--length_column", "budget", "--source_column", "text")
    written = write_texts(saved, file, *columns, "--num_beams", 1, *options)
    assert [row["source"] for row in written] == SOURCES
    assert [row["requested"] for row in written] == BUDGETS
    assert [row["length"] for row in written] == [len(row["output"]) for row in written]
    # Each text is what the model writes for that source at that length. It does not know how to end, and the limit of
    # a batch is that of its longest request, so alone it may be stopped earlier.
    model, tokenizer = load(saved)
    for row in written:
        ids = model.generate(**tokenizer(row["source"], return_tensors="pt"), length=row["requested"])
        alone = tokenizer.decode(ids[0], skip_special_tokens=True)
        assert len(alone) >= 30 and row["output"].startswith(alone)
    assert len({row["output"][:30] for row in written}) >= 3  # so that a mix-up would show


def test_the_figures_of_the_run_are_printed(saved, tmp_path, capsys):
    file = write_rows(tmp_path / "in.jsonl", [{"source": source} for source in SOURCES])
    rows = write_texts(saved, file, "--length", 12)
    differences = [len(row["output"]) - 12 for row in rows]
    assert f"mae {sum(map(abs, differences)) / 6:.3f}" in capsys.readouterr().err


def test_a_length_of_the_model_is_used_where_none_is_given(saved, tmp_path):
    model, tokenizer = load(saved)
    model.config.length = 8
    folder = save(model, tokenizer, tmp_path / "default")
    file = write_rows(tmp_path / "in.jsonl", [{"source": SOURCES[0]}])
    assert write_texts(folder, file)[0]["requested"] == 8


def test_a_plain_model_needs_no_length(plain, tmp_path):
    file = write_rows(tmp_path / "in.jsonl", [{"source": source} for source in SOURCES])
    rows = write_texts(plain, file)
    assert [row["source"] for row in rows] == SOURCES
    assert all(row["requested"] is None and row["length"] == len(row["output"]) for row in rows)


def test_a_plain_model_refuses_a_length(plain, tmp_path):
    file = write_rows(tmp_path / "in.jsonl", [{"source": SOURCES[0]}])
    with pytest.raises(ValueError, match="has no length control, so a length needs a constraint"):
        write_texts(plain, file, "--length", 12)


def test_tokens_are_counted_where_they_are_the_unit(shared_tokenizer, tmp_path):
    model = build_model("marian", seed=5, vocab_size=len(shared_tokenizer), init_std=0.5)
    folder = save(model, shared_tokenizer, tmp_path / "tokens")
    file = write_rows(tmp_path / "in.jsonl", [{"source": source} for source in SOURCES])
    for row in write_texts(folder, file, "--length", 6):
        model, tokenizer = load(folder)
        ids = model.generate(**tokenizer(row["source"], return_tensors="pt"), length=6, num_beams=2)[0].tolist()
        assert row["length"] == sum(i not in (0, 2) for i in ids)  # all but EOS and padding


def test_only_a_line_break_ends_a_text(saved, tmp_path):
    # `str.splitlines` breaks at form feeds and at Unicode separators too, which real text holds
    sources = ["A small\u2028editor.", "A form\x0cfeed.", "A next\x85line."]
    file = tmp_path / "in.txt"
    file.write_bytes("\r\n".join(sources).encode())
    assert [row["source"] for row in write_texts(saved, file, "--length", 5)] == sources


def test_the_folder_of_the_output_is_made(saved, tmp_path):
    file = tmp_path / "in.txt"
    file.write_text(SOURCES[0])
    out = tmp_path / "new" / "folder" / "out.jsonl"
    words = ["--model", str(saved), "--input_file", str(file), "--output_file", str(out), "--length", "5"]
    generate.main(words)
    assert len(out.read_text().splitlines()) == 1


# Bad input: the model named here does not exist, so each is told before a model is loaded


def refuse(tmp_path, rows, *options, name="in.jsonl"):
    file = tmp_path / name
    write_rows(file, rows) if isinstance(rows, list) else file.write_text(rows, encoding="utf-8")
    write_texts(tmp_path / "no_model", file, *options)


def test_an_output_that_exists_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "out.jsonl").write_text("mine")
    with pytest.raises(ValueError, match="out.jsonl exists, and no command with these options began it; remove it or"):
        refuse(tmp_path, [{"source": "a"}], "--length", 5)
    assert (tmp_path / "out.jsonl").read_text() == "mine"


@pytest.mark.parametrize("options", [(), ("--num_return_sequences", 2)], ids=["one", "n-best"])
def test_a_command_that_was_stopped_goes_on_where_its_output_ends(saved, tmp_path, capsys, options):
    rows = [{"source": f"{source} {i}", "budget": 5 + i % 7, "id": i} for i, source in enumerate(SOURCES * 7)]
    file = write_rows(tmp_path / "in.jsonl", rows)
    options = ("--length_column", "budget", "--batch_size", 1, *options)
    whole = write_texts(saved, file, *options)
    assert [row["id"] for row in whole] == [row["id"] for row in rows for _ in range(len(whole) // len(rows))]
    out = tmp_path / "out.jsonl"
    text = out.read_bytes()
    lines = text.splitlines(keepends=True)
    ends = [0, len(lines[0]) - 9, *(sum(map(len, lines[:n])) + 5 for n in (1, 16, 33, len(lines) - 1))]
    for end in ends:  # in the middle of a line, of the n best, of a block
        out.write_bytes(text[:end])
        assert write_texts(saved, file, *options) == whole
        assert out.read_bytes() == text
    assert write_texts(saved, file, *options) == whole and "is complete" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no command with these options began it"):
        write_texts(saved, file, *options, "--length_constraint", "max")
    write_rows(file, rows[1:])
    with pytest.raises(
        ValueError, match="row 1 of .* is of other input than this command's; remove it or name another"
    ):
        write_texts(saved, file, *options)
    assert out.read_bytes() == text


@pytest.mark.slow
def test_two_processes_write_every_row_once_and_in_order(saved, tmp_path):
    rows = [{"source": f"{source} {i}", "budget": 5 + i % 7} for i, source in enumerate(SOURCES * 7)]
    file = write_rows(tmp_path / "in.jsonl", rows)
    options = ("--length_column", "budget", "--batch_size", 1)
    alone = write_texts(saved, file, *options)
    together = tmp_path / "together" / "out.jsonl"
    words = ["--model", saved, "--input_file", file, "--output_file", together, "--num_beams", 2, *options]
    result = launch(ROOT / "recipes" / "generate.py", *map(str, words), tmp_path=tmp_path)
    assert result.returncode == 0, result.stderr
    assert [json.loads(line) for line in together.read_text().splitlines()] == alone


def test_two_ways_to_give_a_length_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        refuse(tmp_path, [{"source": "a", "n": 5}], "--length", 5, "--length_column", "n")
    assert "give one of --length for all texts, --length_column" in capsys.readouterr().err


@pytest.mark.parametrize("empty", ["", " \t", None])
def test_a_row_without_text_is_named(tmp_path, empty):
    with pytest.raises(ValueError, match="row 2 of .*in.jsonl has no text; remove it"):
        refuse(tmp_path, [{"source": "a"}, {"source": empty}], "--length", 5)


def test_a_line_without_text_is_named(tmp_path):
    with pytest.raises(ValueError, match="row 2 of .*in.txt has no text; remove it"):
        refuse(tmp_path, "one\n\ntwo\n", "--length", 5, name="in.txt")


def test_a_source_that_is_no_text_is_named(tmp_path):
    with pytest.raises(ValueError, match="row 1 of .*in.jsonl"):
        refuse(tmp_path, [{"source": 7}, {"source": 8}], "--length", 5)


@pytest.mark.parametrize("value", [0, -4, 2.5, "ten", "0", True, None, "", [5], float("nan")], ids=repr)
@pytest.mark.parametrize("row", [1, 2])
def test_a_bad_length_is_named_with_its_row(tmp_path, value, row):
    rows = [{"source": "a", "n": 5}, {"source": "b", "n": 5}]
    rows[row - 1]["n"] = value
    with pytest.raises(ValueError, match=f"row {row} of .*in.jsonl: 'n' must hold an integer of at least 1, got") as e:
        refuse(tmp_path, rows, "--length_column", "n")
    assert str(e.value).endswith(f"got {value!r}")


@pytest.mark.parametrize("option", ["--length_column", "--source_column"])
def test_a_missing_column_is_named(tmp_path, option):
    with pytest.raises(ValueError, match="in.jsonl has no column 'budget', only source, n"):
        refuse(tmp_path, [{"source": "a", "n": 3}], option, "budget")


def test_text_has_no_length_column(tmp_path):
    with pytest.raises(ValueError, match="in.txt is plain text and has no column 'n'; use jsonl"):
        refuse(tmp_path, "one\n", "--length_column", "n", name="in.txt")


def test_a_text_file_without_lines_is_refused(tmp_path):
    with pytest.raises(ValueError, match="in.txt has no rows"):
        refuse(tmp_path, "", "--length", 5, name="in.txt")


def test_no_length_anywhere_is_refused_with_both_ways_to_give_one(saved, tmp_path):
    file = write_rows(tmp_path / "in.jsonl", [{"source": "a"}])
    with pytest.raises(ValueError, match="no length was given; pass length=40, a list with one for each text"):
        write_texts(saved, file)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_model_without_length_control_takes_a_length_with_a_bound(tmp_path, shared_tokenizer):
    MarianMTModel(MarianConfig(**foreign_shape(shared_tokenizer))).save_pretrained(tmp_path / "foreign")
    shared_tokenizer.save_pretrained(tmp_path / "foreign")
    file = write_rows(tmp_path / "in.jsonl", [{"source": source} for source in SOURCES])
    with pytest.raises(ValueError, match="MarianMTModel has no length control.*length_constraint='max' or 'exact'"):
        write_texts(tmp_path / "foreign", file, "--length", 5)
    options = ["--length", 5, "--length_unit", "character", "--length_constraint", "exact"]
    assert [row["length"] for row in write_texts(tmp_path / "foreign", file, *options)] == [5] * len(SOURCES)


def test_a_length_that_the_model_cannot_hold_is_told_before_anything_is_written(
    monkeypatch, shared_tokenizer, tmp_path
):
    fields = {"length_unit": "token", "absolute_positions": True}  # 128 positions
    model = build_model("marian", vocab_size=len(shared_tokenizer), **fields)
    folder = save(model, shared_tokenizer, tmp_path / "positions")
    batches = []
    original = hf_lenctrl.LenCtrlMarianMTModel.generate

    def counted(self, *args, **kwargs):
        ids = original(self, *args, **kwargs)
        batches.append(ids)
        return ids

    monkeypatch.setattr(hf_lenctrl.LenCtrlMarianMTModel, "generate", counted)
    rows = [{"source": source, "n": n} for source, n in zip(SOURCES, [5, 6, 500, 7, 8, 9], strict=True)]
    file = write_rows(tmp_path / "in.jsonl", rows)
    with pytest.raises(ValueError, match="length=500 needs at least 501 decoder positions, the model has 128"):
        write_texts(folder, file, "--length_column", "n", "--batch_size", 1)
    assert not batches  # no hours of work before the error


# Bounds, ratios, re-ranking, several outputs and several models


def test_a_bound_is_kept(saved, tmp_path):
    rows = [{"source": source, "n": n} for source, n in zip(SOURCES, BUDGETS, strict=True)]
    for constraint in ("max", "exact"):
        (tmp_path / constraint).mkdir()
        file = write_rows(tmp_path / constraint / "in.jsonl", rows)
        written = write_texts(saved, file, "--length_column", "n", "--length_constraint", constraint)
        assert [row["requested"] for row in written] == BUDGETS
        for row, n in zip(written, BUDGETS, strict=True):
            assert row["length"] == len(row["output"])
            assert len(row["output"]) == n if constraint == "exact" else len(row["output"]) <= n


def test_a_bound_of_the_model_holds_where_none_is_given(saved, tmp_path):
    model, tokenizer = load(saved)
    model.config.length_constraint = "exact"
    folder = save(model, tokenizer, tmp_path / "bound")
    file = write_rows(tmp_path / "in.jsonl", [{"source": source} for source in SOURCES])
    assert [row["length"] for row in write_texts(folder, file, "--length", 7)] == [7] * 6


def test_a_ratio_asks_for_a_share_of_each_source(saved, tmp_path):
    rows = [{"source": text} for text in ("A game of cards.", "One", "A")]  # 16, 3 and 1 characters
    file = write_rows(tmp_path / "in.jsonl", rows)
    written = write_texts(saved, file, "--length_ratio", 0.4, "--length_constraint", "exact")
    assert [row["requested"] for row in written] == [6, 1, 1]  # 6.4, 1.2, and at least 1
    assert [len(row["output"]) for row in written] == [6, 1, 1]


@pytest.mark.parametrize("other", [("--length", 5), ("--length_column", "n")])
def test_a_ratio_beside_a_length_is_refused(tmp_path, capsys, other):
    with pytest.raises(SystemExit):
        refuse(tmp_path, [{"source": "a", "n": 5}], "--length_ratio", 0.5, *other)
    assert "--length_ratio to the source" in capsys.readouterr().err


def test_lengths_are_those_of_the_source_or_of_the_reference(saved, tmp_path):
    file = write_rows(tmp_path / "in.jsonl", [{"source": s, "gold": t} for s, t in zip(SOURCES, TARGETS, strict=True)])
    options = ("--length_constraint", "max")
    written = write_texts(saved, file, "--length", "source", *options)
    assert [row["requested"] for row in written] == [len(source) for source in SOURCES]
    (tmp_path / "out.jsonl").unlink()
    written = write_texts(saved, file, "--length", "reference", "--reference_column", "gold", *options)
    assert [row["requested"] for row in written] == [17, 33, 24, 29, 23, 25]
    assert [row["gold"] for row in written] == TARGETS


def test_lengths_are_predicted(saved, tmp_path):
    encoder = BertModel(BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
    predictor = hf_lenctrl.LengthPredictor.from_encoder(encoder, [6, 8], length_unit="character")
    predictor.output.weight.data.zero_()
    predictor.output.bias.data.fill_(-4.0)  # 4 standard deviations of 1 below the mean of 7
    predictor.save_pretrained(tmp_path / "predictor")
    words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])}
    BertTokenizer(vocab=words).save_pretrained(tmp_path / "predictor")
    file = write_rows(tmp_path / "in.jsonl", [{"source": source} for source in SOURCES])
    written = write_texts(saved, file, "--length", "predict", "--predictor", tmp_path / "predictor")
    assert [row["requested"] for row in written] == [3] * 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--length", "reference"), "--length reference and --reference_column go together"),
        (("--length", 5, "--reference_column", "n"), "--length reference and --reference_column go together"),
        (("--length", 5, "--predictor", "path"), "--predictor goes with --length predict"),
        (("--length", "guess"), "must be an integer of at least 1, 'predict', 'source' or 'reference', got 'guess'"),
        (("--length", 0), "must be an integer of at least 1, 'predict', 'source' or 'reference', got '0'"),
        (("--length", 2.5), "got '2.5'"),
        (("--length", 5, "predict"), "--length takes numbers, or one of 'predict', 'source' and 'reference', got"),
    ],
)
def test_ways_to_a_length_that_do_not_go_together_are_refused(tmp_path, capsys, options, message):
    with pytest.raises(SystemExit):
        refuse(tmp_path, [{"source": "a", "n": 5}], *options)
    assert message in capsys.readouterr().err


def test_several_outputs_of_a_text_follow_each_other_and_keep_its_columns(saved, tmp_path):
    rows = [{"source": source, "key": i} for i, source in enumerate(SOURCES)]
    file = write_rows(tmp_path / "in.jsonl", rows)
    options = ("--length", 9, "--length_constraint", "max", "--batch_size", 4)
    written = write_texts(saved, file, *options, "--num_return_sequences", 3)
    assert [row["source"] for row in written] == [source for source in SOURCES for _ in range(3)]
    assert [row["key"] for row in written] == [i for i in range(6) for _ in range(3)]
    model, tokenizer = load(saved)
    inputs = tokenizer(SOURCES[4], return_tensors="pt")
    ids = model.generate(**inputs, length=9, length_constraint="max", num_beams=3, num_return_sequences=3)
    assert [row["output"] for row in written[12:15]] == tokenizer.batch_decode(ids, skip_special_tokens=True)


def test_the_candidate_with_most_words_of_the_source_is_written(saved, tmp_path, monkeypatch):
    pytest.importorskip("nltk")
    asked = []

    def candidates(self, input_ids, num_return_sequences, **_):
        asked.append(num_return_sequences)
        texts = ["a game", "cards for two players", "nice sounds"]
        return load(saved)[1](text_target=texts * len(input_ids), return_tensors="pt", padding=True)["input_ids"]

    monkeypatch.setattr(hf_lenctrl.LenCtrlMarianMTModel, "generate", candidates)
    file = write_rows(tmp_path / "in.jsonl", [{"source": SOURCES[5]}])
    assert [row["output"] for row in write_texts(saved, file, "--length", 20, "--rerank", 3)] == [
        "cards for two players"
    ]
    assert asked == [3]


def test_several_models_write_as_an_ensemble(shared_tokenizer, tmp_path):
    folders = []
    for seed in (5, 6):
        fields = {"vocab_size": len(shared_tokenizer), "length_unit": "character", "init_std": 0.5}
        folders.append(save(build_model("marian", seed=seed, **fields), shared_tokenizer, tmp_path / str(seed)))
    file = write_rows(tmp_path / "in.jsonl", [{"source": source} for source in SOURCES[:2]])
    written = write_texts(folders[0], file, "--length", 15, "--length_constraint", "max", "--model", *folders)
    ensemble = hf_lenctrl.LengthControlEnsemble([load(folder)[0] for folder in folders])
    options = {"length": 15, "length_constraint": "max", "num_beams": 2}
    outputs = []
    for model in (ensemble, *ensemble.models):
        ids = model.generate(**shared_tokenizer(SOURCES[:2], return_tensors="pt", padding=True), **options)
        outputs.append(shared_tokenizer.batch_decode(ids, skip_special_tokens=True))
    assert [row["output"] for row in written] == outputs[0]
    assert outputs[0] not in outputs[1:]


@pytest.fixture
def stub(monkeypatch):
    """The recipe without a model: the output is the source in capitals, and its characters are the length."""

    def write(model, tokenizer, sources, lengths, num_return_sequences=1, **_):
        lengths = [None] * len(sources) if isinstance(lengths, str) else lengths
        return [
            {"source": source, "requested": length or 3, "output": source.upper() + "!" * k, "length": len(source) + k}
            for source, length in zip(sources, lengths, strict=True)
            for k in range(num_return_sequences)
        ]

    monkeypatch.setattr(generate, "load", lambda *_: (None, None))
    monkeypatch.setattr(generate, "generate", write)


def generated(file: Path, *options) -> str:
    """The recipe's output file as it stands."""
    write_texts(Path("stub"), file, *options)
    return file.with_name("out.jsonl").read_bytes().decode()


ODD = [  # a row, and what JSON readers make of it: other numbers, dates, escapes, key orders, a key that comes twice
    '{"id": 12345678901234567890123, "text": "ab", "day": "2024-01-01", "x": 1.10, "e": 1e5, "n": "007"}',
    '{ "text" : "c\\u00e9", "nested": {"b": [1.0, null, {}], "a": true}, "k": 1, "k": 2, "day": "not a day"}',
    '{"x": "now text", "text": "日本\u2028", "none": null, "id": -0, "nan": NaN}',
]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_rows_of_jsonl_pass_through_as_they_are_written(stub, tmp_path, ending):  # issue 15.6
    file = tmp_path / "in.jsonl"
    file.write_bytes(("\ufeff" + ending.join([ODD[0], "", *ODD[1:]]) + ending).encode())
    text = generated(file, "--source_column", "text", "--length", 4)
    added = [("ab", "AB"), ("cé", "CÉ"), ("日本\u2028", "日本\u2028")]
    for line, row, (source, output) in zip(text.split("\n"), [r[1:-1].strip() for r in ODD], added, strict=False):
        ours = f'"source": "{source}", "requested": 4, "output": "{output}", "length": {len(source)}'
        assert line == "{" + row + ", " + ours + "}"
    assert text.count("\n") == 3


def test_rows_of_a_json_list_come_on_a_line_each_and_keep_their_numbers(stub, tmp_path):  # issue 15.6
    file = tmp_path / "in.json"
    file.write_text('[\n {\n  "source": "a, ]",\n  "x": 1.10,\n  "l": [\n   1\n  ]\n }\n , {"source":"}"}]\n')
    assert generated(file, "--length", 4) == (
        '{"source": "a, ]", "x": 1.10, "l": [ 1 ], "requested": 4, "output": "A, ]", "length": 4}\n'
        '{"source":"}", "requested": 4, "output": "}", "length": 1}\n'
    )


def test_cells_of_csv_pass_through_as_text(stub, tmp_path):  # issue 15.6
    file = tmp_path / "in.csv"
    file.write_bytes(
        b"\xef\xbb\xbfid,source,day,code,missing\r\n12345678901234567890123,NA,2024-01-01,007,\r\n"
        b'1.10,"two\nlines, ""quoted""",nan,+1e3,NaN\r\n'
    )
    rows = [json.loads(line) for line in generated(file, "--length", 4).splitlines()]
    assert [{k: row[k] for k in ("id", "source", "day", "code", "missing")} for row in rows] == [
        {"id": "12345678901234567890123", "source": "NA", "day": "2024-01-01", "code": "007", "missing": ""},
        {"id": "1.10", "source": 'two\nlines, "quoted"', "day": "nan", "code": "+1e3", "missing": "NaN"},
    ]


def test_parquet_keeps_its_types(stub, tmp_path):  # issue 15.6
    columns = {"source": ["a", "b"], "n": [1, None], "x": [1.0, float("nan")], "code": ["007", "NA"], "l": [[1], []]}
    datasets.Dataset.from_dict(columns).to_parquet(tmp_path / "in.parquet")
    lines = generated(tmp_path / "in.parquet", "--length", 4).splitlines()
    assert lines[0].startswith('{"source": "a", "n": 1, "x": 1.0, "code": "007", "l": [1], "requested": 4')
    assert lines[1].startswith('{"source": "b", "n": null, "x": null, "code": "NA", "l": [], "requested": 4')


@pytest.mark.parametrize("name", ["requested", "output", "length"])
def test_a_column_of_an_outputs_name_is_refused_with_the_way_out(stub, tmp_path, name):  # issue 15.6
    row = {"source": "ab", "id": 1, name: "mine"}
    with pytest.raises(ValueError, match=f"in.jsonl has columns {name}, and so has the output; rename yours, or"):
        refuse(tmp_path, [row], "--length", 4)
    file = write_rows(tmp_path / "in.jsonl", [row])
    written = json.loads(generated(file, "--length", 4, "--column_prefix", "new_"))
    assert written == row | {"new_requested": 4, "new_output": "AB", "new_length": 2}
    write_rows(file, [row | {"new_output": 1}])
    (tmp_path / "out.jsonl").unlink()
    with pytest.raises(ValueError, match="has columns new_output, and"):
        write_texts(Path("stub"), file, "--length", 4, "--column_prefix", "new_")


def test_columns_named_source_and_requested_are_kept(stub, tmp_path):  # issue 15.6
    file = write_rows(tmp_path / "in.jsonl", [{"text": "ab", "source": "a newspaper", "requested": 7}])
    line = generated(file, "--source_column", "text", "--length_column", "requested")
    assert line == '{"text": "ab", "source": "a newspaper", "requested": 7, "output": "AB", "length": 2}\n'


def test_rows_may_differ_in_types_and_columns(stub, tmp_path):  # issue 15.6
    rows = [{"source": "ab", "id": 1}, {"source": "c", "id": "x"}, {"source": "d", "tags": {"a": 1}}, {"source": "e"}]
    lines = generated(write_rows(tmp_path / "in.jsonl", rows), "--length", 4).splitlines()
    assert [{k: row[k] for k in row if k in ("source", "id", "tags")} for row in map(json.loads, lines)] == rows


def test_a_changed_column_is_other_input(stub, tmp_path):
    file = write_rows(tmp_path / "in.jsonl", [{"source": "ab", "id": 1}])
    generated(file, "--length", 4)
    write_rows(file, [{"source": "ab", "id": 2}])
    with pytest.raises(ValueError, match="row 1 of .* is of other input than this command's"):
        generated(file, "--length", 4)


@pytest.mark.parametrize("name", ["in[1].jsonl", "in.txt.gz", "[!i]n.txt", "in.parquet.gz", "in::1.csv.gz"])
def test_files_of_any_name_and_packed_ones_are_read(stub, tmp_path, name):  # issue 15.8, 15.28
    data = {"jsonl": b'{"source": "ab"}', "txt": b"ab", "csv": b"source\nab\n"}.get(name.split(".")[1])
    if data is None:
        datasets.Dataset.from_dict({"source": ["ab"]}).to_parquet(tmp_path / "p")
        data = (tmp_path / "p").read_bytes()
    (tmp_path / "inn.jsonl").write_text('{"source": "other"}')
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert json.loads(generated(tmp_path / name, "--length", 4))["output"] == "AB"


@pytest.mark.parametrize("name", ["in.txt", "in.txt.gz"])
def test_a_byte_order_mark_is_no_part_of_the_first_text(stub, tmp_path, name):  # issue 15.30
    data = b"\xef\xbb\xbfab\ncd\n"
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    rows = [json.loads(line) for line in generated(tmp_path / name, "--length", 4).splitlines()]
    assert [(row["source"], row["length"]) for row in rows] == [("ab", 2), ("cd", 2)]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"source": "a"}\n{"source": \n', "could not be read as jsonl: line 2: Expecting value"),
        ("a.jsonl", b'{"source": "a"}\n7\n', "could not be read as jsonl: a row must be an object, got 7"),
        ("a.json", b'[{"source": "a"}, {"source"', "could not be read as json: Expecting ':' delimiter"),
        ("a.json", b"[1]", "could not be read as json: a row must be an object, got 1"),
        ("a.jsonl", "{'source': 'é'}".encode("latin-1"), "could not be read as jsonl: 'utf-8' codec can't decode"),
        ("a.csv", b"source,id\na,1\nb,2,3\n", "could not be read as csv: line 3 has 3 cells, the header has 2"),
        ("a.csv", b'source\n"a\nb\n', "could not be read as csv: unexpected end of data"),
        ("a.csv", b"source,id,id\na,1,2\n", "could not be read as csv: two columns have one name: source, id, id"),
        ("a.jsonl.gz", b"no gzip", "could not be read as jsonl: Not a gzipped file"),
        ("a.parquet", b"no parquet", "could not be read as parquet: "),
        ("a.jsonl", b"\n", "has no rows"),
        ("a.csv", b"source,id\n", "has no rows"),
        ("a.xml", b"", "must end in .txt, .json, .jsonl, .csv, .parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=f"{name} {message}"):
        write_texts(tmp_path / "no_model", tmp_path / name, "--length", 4)


def test_whole_numbers_of_pandas_and_of_csv_are_lengths(stub, tmp_path):  # issue 18.15
    file = write_rows(tmp_path / "in.jsonl", [{"source": "a", "n": n} for n in (40.0, "40", 40)])
    lines = generated(file, "--length_column", "n").splitlines()
    assert [(json.loads(line)["n"], json.loads(line)["requested"]) for line in lines] == [
        (40.0, 40),
        ("40", 40),
        (40, 40),
    ]
    (tmp_path / "out.jsonl").unlink()
    (tmp_path / "in.csv").write_text("source,n\na,40\nb,30.0\n")
    lines = generated(tmp_path / "in.csv", "--length_column", "n").splitlines()
    assert [(json.loads(line)["n"], json.loads(line)["requested"]) for line in lines] == [("40", 40), ("30.0", 30)]


def test_each_text_is_written_at_several_lengths(stub, tmp_path):  # issue 18.15
    file = write_rows(tmp_path / "in.jsonl", [{"source": "ab", "id": 1}, {"source": "c", "id": 2}])
    rows = [json.loads(line) for line in generated(file, "--length", 30, 50, 75).splitlines()]
    assert [(row["id"], row["requested"]) for row in rows] == [(i, n) for i in (1, 2) for n in (30, 50, 75)]


def test_n_best_outputs_have_a_rank(stub, tmp_path):  # issue 18.15
    file = write_rows(tmp_path / "in.jsonl", [{"source": "ab", "id": 1}, {"source": "c", "id": 2}])
    rows = [json.loads(line) for line in generated(file, "--length", 4, "--num_return_sequences", 2).splitlines()]
    assert [(row["id"], row["rank"], row["output"]) for row in rows] == [
        (1, 1, "AB"),
        (1, 2, "AB!"),
        (2, 1, "C"),
        (2, 2, "C!"),
    ]


@pytest.fixture(scope="module")
def stock(shared_tokenizer, tmp_path_factory):
    """A stock Marian checkpoint."""
    folder = tmp_path_factory.mktemp("stock")
    torch.manual_seed(4)
    MarianMTModel(MarianConfig(**foreign_shape(shared_tokenizer), init_std=0.5)).save_pretrained(folder)
    shared_tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("unit", ["character", "byte", "word"])
def test_a_plain_models_bound_counts_the_unit_that_is_named(stock, tmp_path, unit):
    file = write_rows(tmp_path / "in.jsonl", [{"source": source} for source in SOURCES])
    count = {"character": len, "byte": lambda text: len(text.encode()), "word": lambda text: len(text.split())}[unit]
    for row in write_texts(stock, file, "--length", 4, "--length_unit", unit, "--length_constraint", "exact"):
        assert count(row["output"]) == row["length"] == row["requested"] == 4


def test_a_unit_other_than_the_models_is_refused(saved, tmp_path):
    file = write_rows(tmp_path / "in.jsonl", [{"source": "a"}])
    with pytest.raises(ValueError, match="length_unit='word', but the model was trained to count characters"):
        write_texts(saved, file, "--length", 4, "--length_unit", "word")


# Length control for a plain checkpoint

PROJECTION = "model.decoder.length_projection.weight"


def test_a_plain_checkpoint_is_given_length_control_by_training(stock, tmp_path):
    yaml = str(ROOT / "recipes" / "headline" / "pretrained.yaml")
    options = {
        "train_file": write_rows(tmp_path / "rows.jsonl", ROWS),
        "output_dir": tmp_path / "run",
        "base_model": stock,
        "length_constraint": "max",
        "max_steps": 3,
        "warmup_steps": 0,
        "validation_share": 0.1,
        "test_share": 0.1,
        "max_test_rows": 4,
        "generation_num_beams": 1,
        "disable_tqdm": True,
        "use_cpu": True,
        "per_device_train_batch_size": 8,
        "dropout": 0.35,
    }
    metrics = train_seq2seq.main([yaml, *as_options(options)])
    assert {f"test_{figure}" for figure in FIGURES} <= metrics.keys()
    model, tokenizer = load(tmp_path / "run")
    config = model.config
    assert type(model) is hf_lenctrl.LenCtrlMarianMTModel and config.length_projection
    assert config.dropout == 0.35 and "- `dropout`: 0.35" in (tmp_path / "run" / "README.md").read_text("utf-8")
    assert (config.length_encoding, config.length_unit, config.length_constraint) == ("ldpe", "character", "max")
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(stock).get_vocab()
    before, after = weights(stock), weights(tmp_path / "run")
    assert after[PROJECTION].abs().max() > 0  # it starts at zero
    assert any(not torch.equal(before[name], after[name]) for name in before)
    # three small steps leave the checkpoint's weights about where they were; new ones would be far off
    for name in before:
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=5e-3)
    rows = [json.loads(line) for line in (tmp_path / "run" / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    known = {(row["source"], row["target"]) for row in ROWS}
    assert len(rows) == 4 and all((row["source"], row["target"]) in known for row in rows)
    shutil.copy(tmp_path / "run" / "test.jsonl", tmp_path / "in.jsonl")
    written = write_texts(tmp_path / "run", tmp_path / "in.jsonl", "--length", 12)
    assert [row["target"] for row in written] == [row["target"] for row in rows]
    assert all(len(row["output"]) <= 12 for row in written)


def test_a_base_model_beside_a_model_to_go_on_with_is_refused(stock, run, tmp_path):
    with pytest.raises(ValueError, match="starts a run and model_name_or_path=.* goes on with one; give one of them"):
        train(tmp_path / "next", base_model=stock, model_name_or_path=run[0], max_steps=1, rows=ROWS[:8], **ONLY_TRAIN)


def test_a_plain_checkpoint_to_go_on_with_is_refused_with_the_option_for_it(stock, tmp_path):
    message = f"{stock} holds a MarianMTModel, which has no length control; give it as base_model={stock} to add it"
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "next", model_name_or_path=stock, max_steps=1, rows=ROWS[:8], **ONLY_TRAIN)


def test_a_base_model_with_length_control_is_refused(run, tmp_path):
    with pytest.raises(ValueError, match="has length control already; give it as model_name_or_path="):
        train(tmp_path / "next", base_model=run[0], max_steps=1, rows=ROWS[:8], **ONLY_TRAIN)


def test_a_base_model_without_an_encoding_is_refused(stock, tmp_path):
    with pytest.raises(
        ValueError, match="length_encoding='none' cannot be added to a model that stays as it was; choose"
    ):
        shape = ("vocab_size", "d_model", "layers", "attention_heads", "ffn_dim")
        train(tmp_path / "next", shape, base_model=stock, length_encoding="none", max_steps=1, **ONLY_TRAIN)
