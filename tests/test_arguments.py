"""YAML over defaults, the command line over YAML; and the recipes' YAML files."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import yaml
from transformers import Seq2SeqTrainingArguments

from hf_lenctrl.commands import arguments
from hf_lenctrl.commands.arguments import DataArguments, ModelArguments, RunArguments, parse_arguments


CLASSES = (ModelArguments, DataArguments, RunArguments)
ROOT = Path(__file__).resolve().parents[1]
RECIPES = sorted(path for group in ("headline", "translation") for path in (ROOT / "recipes" / group).glob("*.yaml"))
OTHERS = ("predictor",)  # of commands with other options


@pytest.fixture
def parse(tmp_path):
    """Parse a YAML text and command-line options into one flat dictionary."""

    def parse(text: str, *options: str) -> dict:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        model, data, run = parse_arguments(CLASSES, [str(path), *options])
        return {**asdict(model), **asdict(data), **asdict(run)}

    return parse


def test_yaml_wins_over_defaults_and_the_command_line_over_yaml(parse, monkeypatch, tmp_path):
    text = "layers: 2\nd_model: 256\ntest_lengths: [20]\nabsolute_positions: true\ngroup_separator: _\n"
    options = "--d_model=64 --dropout 0.3 --test_lengths 5 6 --absolute_positions false --group_separator -"
    values = parse(text, *options.split())
    assert (values["layers"], values["d_model"], values["dropout"]) == (2, 64, 0.3)
    assert (values["test_lengths"], values["absolute_positions"], values["group_separator"]) == ([5, 6], False, "-")
    assert values["attention_heads"] == ModelArguments().attention_heads
    argv = ["train", str(tmp_path / "run.yaml"), "--d_model", "8"]
    monkeypatch.setattr("sys.argv", argv)
    model, *_ = parse_arguments(CLASSES)
    assert (model.layers, model.d_model) == (2, 8) and argv[1:] == [str(tmp_path / "run.yaml"), "--d_model", "8"]


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        # YAML 1.1 takes 1e-3, without a point, for a string
        ("dropout: 1e-3", "dropout", 0.001),
        ("absolute_positions: 'false'", "absolute_positions", False),
        ("group_column: null", "group_column", None),
        ("test_lengths: [20, 40, 60]", "test_lengths", [20, 40, 60]),
        ("test_lengths: 20", "test_lengths", [20]),  # as on the command line
        ("train_file: rows 100%.jsonl", "train_file", "rows 100%.jsonl"),
        # YAML 1.1 takes these for booleans, numbers, times
        ("language: no", "language", "no"),
        ("train_file: 2024-01-01", "train_file", "2024-01-01"),
        ("group_separator: 010", "group_separator", "010"),
        ("language: 'null'", "language", "null"),
        ("length_encoding: none", "length_encoding", "none"),
    ],
)
def test_a_yaml_value_has_the_type_of_its_option(parse, text, key, value):
    parsed = parse(text)[key]
    assert parsed == value and type(parsed) is type(value)


def test_values_reach_the_training_arguments(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("eval_strategy: no\nreport_to: []\nlr_scheduler_kwargs: {num_cycles: 2}\n")
    (found,) = parse_arguments([Seq2SeqTrainingArguments], [str(path), "--output_dir", str(tmp_path), "--use_cpu"])
    assert (found.eval_strategy, found.report_to, found.lr_scheduler_kwargs) == ("no", [], {"num_cycles": 2})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("layers: true", "layers.*true"),
        ("layers:", "layers"),
        ("family: t5", "family.*t5"),
        ("test_lengths: [20, forty]", "test_lengths.*forty"),
        ("absolute_positions: maybe", "maybe"),
        ("layer: 3\nlayers: 2\ncolour: red\n", r"run.yaml has unknown keys: colour, layer"),
        ("max_validation_rows: 0", "max_validation_rows must be an integer of at least 1, got 0"),
        ("max_source_length: 0", "max_source_length must be an integer of at least 1, got 0"),
        ("test_share: -0.1", "test_share must be at least 0, got -0.1"),
        ("average_checkpoints: 0", "average_checkpoints must be an integer of at least 1, got 0"),
        ("card_examples: -1", "card_examples must be at least 0, got -1"),
        ("layer: 3", r"unknown keys: layer \(did you mean layers\?\)"),
        ("- a\n- b\n", "run.yaml must hold `key: value` lines"),
        ("layers: 2\ntest_lengths: [1, 2\nd_model: 3\n", r'run.yaml could not be read as YAML: .*run.yaml", line 2'),
        ("layers: 2\nd_model: 3\nlayers: 3\n", "run.yaml has layers twice"),
    ],
)
def test_a_wrong_yaml_is_told(parse, text, named, capsys):
    with pytest.raises((SystemExit, ValueError)) as error:
        parse(text)
    assert re.search(named, capsys.readouterr().err + str(error.value), flags=re.S)


def test_what_a_recipe_calls_required_is_given_by_hand(parse, tmp_path):
    assert parse("base_model: required\n", "--base_model=owner/name")["base_model"] == "owner/name"
    continued = parse("base_model: required\n", "--model_name_or_path", "owner/run")
    assert (continued["base_model"], continued["model_name_or_path"]) == (None, "owner/run")
    with pytest.raises(ValueError, match="output_dir is required; give --output_dir"):
        parse_arguments([Seq2SeqTrainingArguments], ["--max_steps", "3", "--use_cpu"])


@pytest.mark.parametrize(
    ("flags", "written", "expected"),
    [
        ("fpu avx512_bf16 amx_tile", "auto", True),
        ("fpu avx512f avx512_bf16x", "auto", False),
        ("fpu avx512f", "true", True),
    ],
)
def test_bfloat16_is_chosen_where_the_cpu_has_it(tmp_path, monkeypatch, flags, written, expected):
    (tmp_path / "run.yaml").write_text(f"bf16: {written}\n")
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    known = {"/proc/cpuinfo": tmp_path / "cpuinfo"}
    monkeypatch.setattr(arguments, "Path", lambda name: known.get(name, Path(name)))
    for words in ([str(tmp_path / "run.yaml")], ["--bf16", written]):
        (found,) = parse_arguments([Seq2SeqTrainingArguments], [*words, "--output_dir", str(tmp_path), "--use_cpu"])
        assert found.bf16 is expected
    if written == "auto" and not torch.accelerator.is_available():  # also without --use_cpu
        (found,) = parse_arguments([Seq2SeqTrainingArguments], [*words, "--output_dir", str(tmp_path)])
        assert (found.bf16, found.use_cpu) == (expected, expected)


def test_every_line_of_a_recipe_says_what_it_is():
    for path in RECIPES:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("# ") and len(lines[0]) < 120, path  # what `lenctrl recipes` prints
        assert [line for line in lines if not re.fullmatch(r"|#.*|\w+: [^#]*[^# ] +# \S.*", line)] == [], path


# what the papers train: length encoding, absolute positions, noise, length tokens
METHODS = {
    "transformer": ("none", False, 0, None),  # the plain model has positions, whatever absolute_positions says
    "pre": ("pre", False, 0, None),
    "ratio_tokens": ("none", False, 0, "ratio"),
    "bin_tokens": ("none", False, 0, "bins"),
}
for name in ("ldpe", "lrpe"):
    METHODS |= {name: (name, False, 0, None), f"{name}_pe": (name, True, 0, None)}
    METHODS |= {f"{name}_noise{n}": (name, False, n, None) for n in (2, 4)}
HEADLINES = {"transformer", "ldpe", "ldpe_pe", "lrpe", "lrpe_pe"}
TRANSLATIONS = {"transformer", "ldpe", "ldpe_noise2", "ldpe_noise4", "lrpe", "lrpe_noise2", "lrpe_noise4"}
COMMANDS = {
    "headline/paper": HEADLINES,
    "headline/paper_as_run": HEADLINES,
    "headline/small": HEADLINES,
    "headline/subword_small": {"transformer", "ldpe", "lrpe", "pre"},
    "translation/paper": TRANSLATIONS,
    "translation/small": TRANSLATIONS | {"ratio_tokens", "bin_tokens"},
}


@pytest.mark.parametrize("recipe", COMMANDS)
def test_the_commands_over_a_recipe_are_the_papers_models(recipe):
    text = (ROOT / "recipes" / f"{recipe}.yaml").read_text(encoding="utf-8")
    found = {}
    for command in re.findall(r"^#   lenctrl train (.*)$", text, flags=re.M):
        model, data, run, args = parse_arguments((*CLASSES, Seq2SeqTrainingArguments), [*command.split(), "--use_cpu"])
        assert command.split()[0] == recipe
        method = (model.length_encoding, model.absolute_positions, run.length_noise, data.length_tokens)
        found[args.output_dir.removeprefix("runs/")] = method
    assert found == {name: METHODS[name] for name in COMMANDS[recipe]}


@pytest.mark.parametrize(
    "path", [path for path in RECIPES if not any(name in path.stem for name in OTHERS)], ids=lambda path: path.stem
)
def test_every_recipe_parses_as_the_training_script_reads_it(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for stage in ("base", "controlled"):  # what later stages start from
        Path("runs", "translation", stage).mkdir(parents=True)
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    words = [str(path), "--output_dir", str(tmp_path), "--use_cpu", "--train_file", "rows.jsonl"]
    words += [f"--{name}=runs/translation/base" for name, value in values.items() if value == "required"]
    *_, training = parse_arguments((*CLASSES, Seq2SeqTrainingArguments), words)
    assert training.predict_with_generate
    assert (training.max_steps > 0) != ("num_train_epochs" in values)  # one would override the other
    assert isinstance(training.learning_rate, float) and 1e-5 < training.learning_rate < 1e-2
    assert isinstance(training.adam_epsilon, float) and training.adam_epsilon <= 1e-8


def test_a_recipe_is_found_by_its_name():
    model, *_, training = parse_arguments((*CLASSES, Seq2SeqTrainingArguments), ["headline/debian", "--use_cpu"])
    assert model.vocab_size == 6000 and training.output_dir == "runs/headline/debian"


def test_the_recipe_of_what_the_authors_ran_has_the_options_of_their_readme():
    values = yaml.safe_load((ROOT / "recipes/headline/paper_as_run.yaml").read_text(encoding="utf-8"))
    # encdec/README.md of github.com/takase/control-length
    expected = {"dropout": 0.3, "learning_rate": 1e-3, "warmup_steps": 4000, "max_grad_norm": 0.0, "seed": 2723}
    expected |= {"num_train_epochs": 100, "gradient_accumulation_steps": 16, "target_vocabulary": "joined"}
    expected |= {"average_checkpoints": 10, "save_total_limit": 10, "save_strategy": "epoch", "adam_beta2": 0.98}
    expected |= {"label_smoothing_factor": 0.1, "generation_num_beams": 5, "lr_scheduler_type": "inverse_sqrt"}
    assert {key: values[key] for key in expected} == expected


def test_the_recipe_of_nguyen_has_the_hyper_parameters_of_section_4():
    values = yaml.safe_load((ROOT / "recipes/headline/nguyen.yaml").read_text(encoding="utf-8"))
    expected = {"layers": 6, "attention_heads": 8, "ffn_dim": 2048, "vocab_size": 50_000, "learning_rate": 1e-4}
    expected |= {"lr_scheduler_type": "constant", "per_device_train_batch_size": 16, "max_grad_norm": 2.0}
    expected |= {"num_train_epochs": 35, "generation_num_beams": 5, "test_lengths": [30, 50, 70]}
    expected |= {"length_unit": "word", "length_head": True, "encoder_length_embedding": True}
    expected |= {"length_encoding": "learned"}
    assert {key: values[key] for key in expected} == expected


def test_the_full_recipes_have_the_hyper_parameters_of_the_papers():
    values = yaml.safe_load((ROOT / "recipes/headline/paper.yaml").read_text(encoding="utf-8"))
    # Vaswani et al. 2017: table 3 (base), sections 5.1-5.4 and 6.1; Takase & Okazaki 2019, section 3 and its footnotes
    expected = {"layers": 6, "d_model": 512, "attention_heads": 8, "ffn_dim": 2048, "dropout": 0.1}
    expected |= {"label_smoothing_factor": 0.1, "lr_scheduler_type": "inverse_sqrt", "adam_beta2": 0.98}
    expected |= {"vocab_size": 16000, "max_steps": 100_000, "warmup_steps": 4000, "average_checkpoints": 5}
    expected |= {"rouge_max_bytes": 75, "test_lengths": [30, 50, 75]}
    assert {key: values[key] for key in expected} == expected
    assert values["learning_rate"] == pytest.approx(512**-0.5 * 4000**-0.5, rel=0.01)
    assert float(values["adam_epsilon"]) == 1e-9
    # five checkpoints to average have to be kept
    assert values["save_total_limit"] >= 5 and 5 * values["save_steps"] <= values["max_steps"]
