"""YAML over defaults, the command line over YAML; and the recipes' YAML files."""

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from transformers import Seq2SeqTrainingArguments

from hf_lenctrl.experiment.arguments import DataArguments, ModelArguments, RunArguments, parse_arguments


CLASSES = (ModelArguments, DataArguments, RunArguments)
HEADLINE = Path(__file__).resolve().parents[1] / "recipes" / "headline"
# what the ten recipes' names say: length encoding and absolute positions
NAMES = {
    "transformer": ("none", True),
    "ldpe": ("ldpe", False),
    "ldpe_pe": ("ldpe", True),
    "lrpe": ("lrpe", False),
    "lrpe_pe": ("lrpe", True),
}


@pytest.fixture
def parse(tmp_path):
    """Parse a YAML text and command-line options into one flat dictionary."""

    def parse(text: str, *options: str) -> dict:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        model, data, run = parse_arguments(CLASSES, [str(path), *options])
        return {**asdict(model), **asdict(data), **asdict(run)}

    return parse


# Precedence


def test_without_yaml_or_options_the_defaults_hold():
    model, data, run = parse_arguments(CLASSES, [])
    assert (model, data, run) == (ModelArguments(), DataArguments(), RunArguments())


def test_yaml_wins_over_defaults_and_the_command_line_over_yaml(parse):
    values = parse("layers: 2\nd_model: 256\n", "--d_model", "64", "--dropout", "0.3")
    assert (values["layers"], values["d_model"], values["dropout"]) == (2, 64, 0.3)
    assert values["attention_heads"] == ModelArguments().attention_heads


def test_the_command_line_is_read_from_sys_argv(parse, monkeypatch, tmp_path):
    (tmp_path / "run.yml").write_text("layers: 3\n")
    monkeypatch.setattr("sys.argv", ["train", str(tmp_path / "run.yml"), "--d_model", "8"])
    model, *_ = parse_arguments(CLASSES)
    assert (model.layers, model.d_model) == (3, 8)


def test_parsing_leaves_the_arguments_of_the_caller_as_they_were(tmp_path):
    (tmp_path / "run.yaml").write_text("layers: 3\n")
    argv = [str(tmp_path / "run.yaml"), "--d_model", "8"]
    parse_arguments(CLASSES, argv)
    assert argv == [str(tmp_path / "run.yaml"), "--d_model", "8"]


# Types


# YAML 1.1 takes 1e-3, without a point, for a string
@pytest.mark.parametrize("written", ["1e-3", "1.0e-3", "0.001", "'1e-3'"])
def test_small_floats_may_be_written_either_way(parse, written):
    value = parse(f"dropout: {written}\n")["dropout"]
    assert value == 0.001 and isinstance(value, float)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("layers: 2", "layers", 2),
        ("max_train_minutes: 1.5", "max_train_minutes", 1.5),
        ("absolute_positions: true", "absolute_positions", True),
        ("absolute_positions: false", "absolute_positions", False),
        ("absolute_positions: 'false'", "absolute_positions", False),
        ("group_column: null", "group_column", None),
        ("rouge_max_bytes: null", "rouge_max_bytes", None),
        ("rouge_max_bytes: 75", "rouge_max_bytes", 75),
        ("test_lengths: [20, 40, 60]", "test_lengths", [20, 40, 60]),
        ("test_lengths: []", "test_lengths", []),
        ("test_lengths: 20", "test_lengths", [20]),  # as on the command line
        ("group_separator: '-'", "group_separator", "-"),
        ("train_file: rows 100%.jsonl", "train_file", "rows 100%.jsonl"),
        ("train_file: 2024-01-01", "train_file", "2024-01-01"),
        ("length_encoding: none", "length_encoding", "none"),
        # issue 15.29: YAML 1.1 takes these for booleans, numbers, times
        ("language: no", "language", "no"),
        ("language: yes", "language", "yes"),
        ("license: 1.10", "license", "1.10"),
        ("train_file: 12:30:45", "train_file", "12:30:45"),
        ("group_separator: 010", "group_separator", "010"),
        ("absolute_positions: on", "absolute_positions", True),
        ("absolute_positions: off", "absolute_positions", False),
        ("test_lengths: ", "test_lengths", []),
        ("test_lengths: null", "test_lengths", []),
        ("language: ", "language", None),
        ("language: 'null'", "language", "null"),
    ],
)
def test_a_yaml_value_has_the_type_of_its_option(parse, text, key, value):
    parsed = parse(text)[key]
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        (["--test_lengths", "5", "6"], "test_lengths", [5, 6]),
        (["--absolute_positions", "false"], "absolute_positions", False),
        (["--absolute_positions"], "absolute_positions", True),
        (["--group_separator", "-"], "group_separator", "-"),
        (["--layers=3"], "layers", 3),
    ],
)
def test_an_option_wins_whatever_its_type(parse, options, key, value):
    text = "test_lengths: [20]\nabsolute_positions: true\ngroup_separator: _\nlayers: 2\n"
    assert parse(text, *options)[key] == value


@pytest.mark.parametrize(
    "text",
    ["layers: six", "layers: 6.5", "layers: true", "dropout: high", "family: t5", "test_lengths: [20, forty]"]
    + ["test_lengths: [20.5]", "absolute_positions: maybe"],
)
def test_a_yaml_value_of_another_type_is_refused_with_its_option(parse, text, capsys):
    # as argparse refuses the same on the command line; HfArgumentParser has an error of its own for booleans
    with pytest.raises((SystemExit, ValueError, TypeError)) as error:
        parse(text)
    message = capsys.readouterr().err + str(error.value)
    key, value = text.split(": ")
    assert key in message or value in message


@pytest.mark.parametrize("empty", ["", "[]"])
def test_an_empty_list_gives_way_to_the_command_line(parse, empty):  # issue 15.29
    assert parse(f"test_lengths: {empty}", "--test_lengths", "7")["test_lengths"] == [7]


def test_a_choice_may_be_no(tmp_path):  # issue 15.29
    path = tmp_path / "run.yaml"
    path.write_text("eval_strategy: no\nreport_to: []\n")
    (training,) = parse_arguments([Seq2SeqTrainingArguments], [str(path), "--output_dir", str(tmp_path), "--use_cpu"])
    assert training.eval_strategy == "no" and training.report_to == []


# Bad input


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers:", "run.yaml: layers has no value; give it one, or take the line out"),
        ("dropout: null", "run.yaml: dropout has no value"),
        ("absolute_positions: ~", "run.yaml: absolute_positions has no value"),
        ("layers: []", "run.yaml: layers takes no list"),
        ("language: []", "run.yaml: language takes no list"),
    ],
)
def test_an_empty_value_of_an_option_that_needs_one_is_refused(parse, text, message):  # issue 15.29
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_unknown_yaml_keys_are_refused_with_their_names(parse):
    with pytest.raises(
        ValueError,
        match="run.yaml has unknown keys: colour, layer; .* hf_lenctrl 0.*, it may be written for another version",
    ):
        parse("layer: 3\nlayers: 2\ncolour: red\n")


def test_yaml_keys_that_are_no_strings_are_unknown(parse):
    with pytest.raises(ValueError, match="unknown keys: .*7"):
        parse("7: a\ncolour: red\n")  # true: or on: are booleans in the same way


def test_an_unknown_option_exits(parse, capsys):
    with pytest.raises(SystemExit) as exit:
        parse("layers: 2\n", "--colour", "red")
    assert exit.value.code == 2
    assert "--colour" in capsys.readouterr().err


def test_a_word_too_many_exits(parse, capsys):
    with pytest.raises(SystemExit):
        parse("layers: 2\n", "second.yaml")
    assert "second.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "kind"), [("- a\n- b\n", "list"), ("just text\n", "str"), ("", "NoneType")])
def test_yaml_that_is_no_mapping_is_refused(parse, text, kind):
    with pytest.raises(ValueError, match=f"run.yaml must hold `key: value` lines, got {kind}"):
        parse(text)


def test_broken_yaml_is_refused_with_its_file_and_line(parse):
    with pytest.raises((ValueError, yaml.YAMLError), match=r'(?s)run.yaml", line 2'):
        parse("layers: 2\ntest_lengths: [1, 2\nd_model: 3\n")


def test_a_yaml_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing.yaml"):
        parse_arguments(CLASSES, [str(tmp_path / "missing.yaml")])


# The recipes


def load(name: str) -> dict:
    return yaml.safe_load((HEADLINE / f"{name}.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted(HEADLINE.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_parses_as_the_training_script_reads_it(path, tmp_path):
    classes = (*CLASSES, Seq2SeqTrainingArguments)
    model, data, run, training = parse_arguments(
        classes, [str(path), "--output_dir", str(tmp_path), "--use_cpu", "--train_file", "rows.jsonl"]
    )
    assert data.train_file == "rows.jsonl" and training.output_dir == str(tmp_path)
    for name in {"layers", "d_model"} & load(path.stem).keys():
        assert getattr(model, name) == load(path.stem)[name]
    assert training.predict_with_generate and training.max_steps > 0
    assert run.test_lengths == load(path.stem).get("test_lengths", [])
    assert isinstance(training.learning_rate, float) and 1e-4 < training.learning_rate < 1e-2
    assert isinstance(training.adam_epsilon, float) and training.adam_epsilon <= 1e-8


def test_a_mapping_reaches_the_training_arguments(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("lr_scheduler_type: cosine_with_restarts\nlr_scheduler_kwargs: {num_cycles: 2}\n")
    (training,) = parse_arguments([Seq2SeqTrainingArguments], [str(path), "--output_dir", str(tmp_path), "--use_cpu"])
    assert training.lr_scheduler_kwargs == {"num_cycles": 2}


@pytest.mark.parametrize("size", ["", "_small"])
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_holds_what_its_name_says(name, size):
    values = load(name + size)
    assert (values["length_encoding"], values["absolute_positions"]) == NAMES[name]
    assert values["length_unit"] == values["target_vocabulary"] == "character"
    assert values["output_dir"] == f"runs/headline/{name}{size}"


@pytest.mark.parametrize("size", ["", "_small"])
@pytest.mark.parametrize("name", list(NAMES)[1:])
def test_the_five_recipes_of_a_size_differ_in_nothing_else(name, size):
    def lines(recipe):
        text = (HEADLINE / f"{recipe}{size}.yaml").read_text(encoding="utf-8")
        differing = ("#", "length_encoding:", "absolute_positions:", "output_dir:")
        return [line for line in text.splitlines() if not line.startswith(differing)]

    assert lines(name) == lines("transformer")


def test_the_full_recipes_have_the_hyper_parameters_of_the_papers():
    values = load("ldpe")
    # Vaswani et al. 2017: table 3 (base), sections 5.1-5.4 and 6.1; Takase & Okazaki 2019, section 3 and its footnotes
    expected = {
        "layers": 6,
        "d_model": 512,
        "attention_heads": 8,
        "ffn_dim": 2048,
        "dropout": 0.1,
        "label_smoothing_factor": 0.1,
        "vocab_size": 16000,
        "max_steps": 100_000,
        "warmup_steps": 4000,
        "lr_scheduler_type": "inverse_sqrt",
        "adam_beta2": 0.98,
        "average_checkpoints": 5,
        "rouge_max_bytes": 75,
        "test_lengths": [30, 50, 75],
    }
    assert {key: values[key] for key in expected} == expected
    assert values["learning_rate"] == pytest.approx(512**-0.5 * 4000**-0.5, rel=0.01)
    assert float(values["adam_epsilon"]) == 1e-9
    # five checkpoints to average have to be kept
    assert values["save_total_limit"] >= 5 and 5 * values["save_steps"] <= values["max_steps"]
