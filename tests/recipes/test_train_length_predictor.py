"""The recipe that trains a length predictor."""

import json
from pathlib import Path

import pytest
import torch
from recipe_runs import ROOT, read_rows, write_rows

from hf_lenctrl.commands import predictor as recipe
from hf_lenctrl.commands.predictor import PredictorArguments
from hf_lenctrl.length_predictor import load_predictor
from hf_lenctrl.length_units import UnitTable


WORDS = ["a", "small", "text", "editor", "opens", "large", "files", "fast", "and", "keeps", "them"]


# The target writes every word of the source twice
ROWS = [
    {"source": " ".join(WORDS[(i + j) % 11] for j in range(1 + i % 9)), "target": " ".join(["tu"] * 2 * (1 + i % 9))}
    for i in range(260)
]
SHAPE = ["--layers=1", "--d_model=32", "--attention_heads=2", "--vocab_size=60"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Options that name the rows: 200, 30 and 30; two rows of train are empty, in two ways."""
    folder = tmp_path_factory.mktemp("rows")
    empty = [{"source": " ", "target": "tu"}, {"source": "text", "target": ""}]
    splits = {"train": ROWS[:200] + empty, "validation": ROWS[200:230], "test": ROWS[230:]}
    files = [f"--{name}_file={write_rows(folder / f'{name}.jsonl', rows)}" for name, rows in splits.items()]
    return [*files, "--source_column=source", "--target_column=target"]


def train(data, output_dir, *options, shape=SHAPE, unit="--length_unit=word"):
    yaml = str(ROOT / "recipes" / "translation" / "length_predictor_small.yaml")
    quick = "--use_cpu --disable_tqdm=true --eval_steps=10 --save_steps=10 --logging_steps=10".split()
    rates = "--learning_rate=3e-3 --lr_scheduler_type=constant --per_device_train_batch_size=16".split()
    return recipe.main([yaml, *data, *quick, *rates, *shape, unit, f"--output_dir={output_dir}", *options])


def test_the_recipe_trains_resumes_and_writes_table_2(data, tmp_path):
    first = train(data, tmp_path, "--max_steps=10")
    assert not (tmp_path / "checkpoint-20").exists()
    metrics = train(data, tmp_path, "--max_steps=60")  # from the tenth step on
    state = json.loads((tmp_path / "checkpoint-60" / "trainer_state.json").read_text())
    assert [entry["step"] for entry in state["log_history"] if "loss" in entry] == [10, 20, 30, 40, 50, 60]
    assert metrics["test_mae"] < first["test_mae"] / 2

    table = json.loads((tmp_path / "predictor_table.json").read_text())
    assert list(table) == ["train", "validation", "test"]
    # a source of n words, n from 1 to 9, has a target of 2 n, so that it errs by n: rows 230 to 259
    counts = [1 + i % 9 for i in range(230, 260)]
    assert table["test"]["source"]["mae"] == pytest.approx(sum(counts) / 30)
    assert table["test"]["source"]["variance"] == pytest.approx(sum(n * n for n in counts) / 30)
    assert table["test"]["source"]["pearson"] == pytest.approx(1.0)
    # targets of training have 9.94 words on average: 200 rows, 22 times 1 to 9 and once 1 and 2
    assert table["test"]["mean"]["mae"] == pytest.approx(sum(abs(2 * n - 10) for n in counts) / 30)
    # the 200 rows of train: sources of 1 to 9 words 22 times, and of 1 and 2 words once more
    errors = {"mae": (22 * 45 + 3) / 200, "variance": (22 * 285 + 5) / 200, "pearson": 1.0, "different": 9}
    assert table["train"].keys() == {"source", "mean"} and table["train"]["source"] == pytest.approx(errors)
    assert table["train"]["mean"]["mae"] == pytest.approx((22 * (2 * (8 + 6 + 4 + 2) + 0) + 8 + 6) / 200)
    card = (tmp_path / "README.md").read_text()
    assert "| train | source | 4.96 | 31.38 | 1.00 |  | 9 |" in card and "| train | predicted |" not in card

    rows = read_rows(tmp_path / "test_predictions.jsonl")
    assert [row["source"] for row in rows] == [row["source"] for row in ROWS[230:]]
    assert [row["reference_length"] for row in rows] == [2 * n for n in counts]
    assert [row["source_length"] for row in rows] == counts
    predictor, tokenizer = load_predictor(tmp_path)
    assert predictor.config.length_unit == "word"
    assert predictor.config.target_mean == pytest.approx(sum(2 * (1 + i % 9) for i in range(200)) / 200)
    predicted_lengths = predictor.predict_lengths([row["source"] for row in rows], tokenizer)
    assert predicted_lengths == [row["predicted_length"] for row in rows]
    errors = [row["predicted_length"] - row["reference_length"] for row in rows]
    mae = sum(map(abs, errors)) / 30
    assert table["test"]["predicted"]["mae"] == pytest.approx(mae)
    assert table["test"]["mae_ratio"] == pytest.approx(mae / (sum(counts) / 30))
    assert json.loads((tmp_path / "all_results.json").read_text())["test_mae"] == pytest.approx(mae)

    weights = (tmp_path / "model.safetensors").read_bytes()
    assert train(data, tmp_path, "--max_steps=60")["test_mae"] == metrics["test_mae"]
    assert (tmp_path / "model.safetensors").read_bytes() == weights  # a finished run is not trained on


def test_a_predictor_that_is_no_better_than_one_length_is_told_wherever_it_is_used(
    data, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(recipe, "round_lengths", lambda lengths: torch.full_like(lengths, 11, dtype=torch.long))
    train(data, tmp_path, "--max_steps=1")
    errors = [abs(2 * (1 + i % 9) - 11) for i in range(230, 260)]  # both
    figures = {"mae": sum(errors) / 30, "variance": sum(e * e for e in errors) / 30, "pearson": None, "different": 1}
    table = json.loads((tmp_path / "predictor_table.json").read_text())["test"]
    assert table["mean"] == table["predicted"] == pytest.approx(figures)
    told = "the length predictor is no better than one length for all texts: its mean error is "
    told += f"{figures['mae']:.2f} words"
    assert f"test: {told}" in caplog.text
    row = f"| test | mean of the training lengths | {figures['mae']:.2f} | {figures['variance']:.2f} |  |  | 1 |"
    card = (tmp_path / "README.md").read_text()
    assert row in card and told in card
    caplog.clear()
    load_predictor(tmp_path)  # as `--length predict` does
    assert told in caplog.text


def test_the_tokens_of_a_generator_that_was_trained_on_are_the_same(data, tmp_path, shared_tokenizer):
    generator, folder = tmp_path / "generator", tmp_path / "tokens"
    shared_tokenizer.save_pretrained(generator)
    unit = ["--length_unit=token", f"--target_tokenizer={generator}", "--max_target_length=200"]
    (generator / "config.json").write_text('{"model_type": "marian"}')
    train(data, folder, "--max_steps=1", *unit)
    (generator / "config.json").write_text('{"model_type": "marian", "length_predictor": "./length_predictor"}')
    train(data, folder, "--max_steps=1", *unit)
    vocabulary = next(path for path in (generator / "vocab.json", generator / "tokenizer.json") if path.is_file())
    vocabulary.write_text(vocabulary.read_text() + " ")
    with pytest.raises(ValueError, match=r"differ:\n  \* target_tokenizer=(vocab|tokenizer).json sha256 \w{8}, now "):
        train(data, folder, "--max_steps=1", *unit)


def test_tokens_of_a_generator_with_lengths_in_another_unit_are_refused(data, tmp_path, shared_tokenizer):
    shared_tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "lenctrl_marian", "length_unit": "character"}')
    options = recipe.parse_arguments((recipe.SplitArguments,), data)[0]
    arguments = PredictorArguments(target_tokenizer=str(tmp_path), encoder_name_or_path="any")
    with pytest.raises(ValueError, match="has lengths in characters; pass --length_unit character without --target"):
        recipe.measure(recipe.load_splits(options), arguments, options)


def test_the_best_checkpoint_is_kept_and_training_ends_without_progress(data, tmp_path):
    # a rate of zero: the second evaluation is no better than the first
    train(data, tmp_path, "--max_steps=60", "--learning_rate=0", "--patience=1")
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-10", "checkpoint-20"]
    state = json.loads((tmp_path / "checkpoint-20" / "trainer_state.json").read_text())
    assert Path(state["best_model_checkpoint"]).name == "checkpoint-10"
    table = json.loads((tmp_path / "predictor_table.json").read_text())
    train(data, tmp_path, "--max_steps=60", "--learning_rate=0", "--patience=1")  # has ended, and stays so
    assert not (tmp_path / "checkpoint-30").exists()
    assert json.loads((tmp_path / "predictor_table.json").read_text()) == table


def test_tokens_are_those_that_the_generator_counts(data, tmp_path, shared_tokenizer):
    shared_tokenizer.save_pretrained(tmp_path / "generator")
    options = recipe.parse_arguments((recipe.SplitArguments,), data)[0]
    arguments = PredictorArguments(target_tokenizer=str(tmp_path / "generator"), encoder_name_or_path="any")
    options.max_target_length = 20
    splits = recipe.measure(recipe.load_splits(options), arguments, options)
    table = UnitTable.from_tokenizer(shared_tokenizer, "token")
    kept = []
    for row in ROWS[:200]:
        count = int(table.count(torch.tensor([shared_tokenizer(text_target=row["target"])["input_ids"]])))
        if count <= 20:
            kept.append((row["source"], count, len(shared_tokenizer.tokenize(row["source"]))))
    assert 0 < len(kept) < 200  # some targets are too long
    train_split = splits["train"]
    assert list(zip(*(train_split[c] for c in ("source", "labels", "source_length")), strict=True)) == kept
    options.max_target_length = 1
    with pytest.raises(ValueError, match=r"no row of train is left \(2 empty, 200 too long\); look at the columns"):
        recipe.measure(recipe.load_splits(options), arguments, options)


def test_a_trained_tokenizer_tells_voiced_syllables_apart(tmp_path):
    arguments = PredictorArguments(layers=1, d_model=8, attention_heads=2, vocab_size=40, length_unit="word")
    tokenizer = recipe.load_tokenizer(arguments, ["がぎ 日本語", "かき 日本", "Text"] * 5, str(tmp_path))
    assert tokenizer("がぎ")["input_ids"] != tokenizer("かき")["input_ids"]
    assert tokenizer.tokenize("日本") == ["日", "本"]
    assert tokenizer("TEXT")["input_ids"] == tokenizer("text")["input_ids"]
    again = recipe.load_tokenizer(arguments, ["other text"], str(tmp_path))  # that of the run
    assert again.get_vocab() == tokenizer.get_vocab()


def test_one_text_gives_one_tokenizer():
    # every word and every pair of characters once, so that ties alone decide
    texts = ["".join(chr(97 + (7 * i * j + i) % 26) for j in range(9)) for i in range(26)]
    first, *others = (recipe.train_bert_tokenizer(texts, 90).get_vocab() for _ in range(5))
    assert len(first) == 90
    assert all(vocabulary == first for vocabulary in others)
    assert [first[piece] for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "all of --layers, --d_model, --attention_heads, --vocab_size for .* None with no shape"),
        (
            {"encoder_name_or_path": "bert", "layers": 2, "d_model": 8},
            "encoder_name_or_path bert with layers, d_model",
        ),
        (
            {"encoder_name_or_path": "bert"},
            "give --target_tokenizer, the folder of the generator, or another unit with --length_unit",
        ),
        (
            {"layers": 1, "d_model": 8, "attention_heads": 3, "vocab_size": 9, "length_unit": "word"},
            "--d_model must be a multiple of --attention_heads 3, got 8",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PredictorArguments(**options)


@pytest.mark.parametrize("name", ["length_predictor", "length_predictor_small"])
def test_every_key_of_the_yaml_files_is_known(name):
    classes = (PredictorArguments, recipe.SplitArguments, recipe.TrainingArguments)
    encoder = [] if name == "length_predictor" else ["--encoder_name_or_path=bert"]
    path = str(ROOT / "recipes" / "translation" / f"{name}.yaml")
    predictor, _, args = recipe.parse_arguments(classes, [path, "--target_tokenizer=x", "--use_cpu", *encoder])
    assert predictor.length_unit == "token"
    assert (args.load_best_model_at_end, args.metric_for_best_model, args.greater_is_better) == (True, "mae", False)
    assert args.eval_steps == args.save_steps
