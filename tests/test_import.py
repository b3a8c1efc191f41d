"""`import hf_lenctrl`: what it imports, what transformers then knows, and what works without the extras."""

import ast
import json
import subprocess
import sys

import pytest
import transformers
from conftest import FAMILIES
from processes import output_of
from test_readme import ENVIRONMENT, ROOT

import hf_lenctrl
from hf_lenctrl import registration


# what `pip install hf_lenctrl` alone leaves out
EXTRAS = """accelerate datasets pyarrow rouge_score sacrebleu nltk sacremoses matplotlib onnx onnxruntime
    onnxscript peft ray xgrammar llguidance""".split()
WITHOUT_EXTRAS = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))\n"
KNOWN = """
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.pipelines import PIPELINE_REGISTRY, check_task

named = [AutoConfig.for_model(kind) for kind in ("lenctrl_marian", "lenctrl_causal_lm", "length_predictor")]
tables = [AutoModelForSeq2SeqLM, AutoModelForCausalLM, AutoModel]
found = [kind._model_mapping[type(config)] for kind, config in zip(tables, named)]
task = check_task("length-controlled-generation")[1]
print(*(kind.__name__ for kind in [*found, task["impl"], AutoModel._model_mapping[type(named[0])]]))
"""
COMMANDS = """
import contextlib, io, json
from hf_lenctrl.commands.lenctrl import main

said = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main(words)
        except SystemExit as end:
            print(end.code or 0)
    said.append(out.getvalue())
print(json.dumps(said))
"""
ORDERS = [
    "import hf_lenctrl",
    "import transformers.pipelines, hf_lenctrl",
    "from transformers import AutoTokenizer; import hf_lenctrl",
    "import importlib.util, hf_lenctrl; importlib.util.find_spec('transformers.models.auto.modeling_auto')",
    "from hf_lenctrl.inference.pipeline import LengthControlledGenerationPipeline",
    "import hf_lenctrl.configuration_lenctrl, hf_lenctrl.length_predictor",
]


def python(code: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_transformers_knows_the_models_in_whatever_order_modules_are_imported():
    found = "LenCtrlMarianMTModel LenCtrlForCausalLM LengthPredictor LengthControlledGenerationPipeline"
    for first in ORDERS:
        assert output_of(f"{first}\n{KNOWN}", **ENVIRONMENT) == f"{found} LenCtrlMarianModel\n", first


def test_the_import_loads_neither_torch_nor_transformers_and_a_name_comes_when_it_is_used():
    code = "import sys, hf_lenctrl\n"
    code += "print(sorted({'torch', 'transformers'} & sys.modules.keys()), 'UnitTable' in dir(hf_lenctrl))"
    assert python(code) == "[] True\n"
    code = "import hf_lenctrl; hf_lenctrl.count_units\n"
    code += "print('transformers.modeling_utils' in sys.modules, 'count_units' in vars(hf_lenctrl))"
    assert output_of(code, **ENVIRONMENT) == "False True\n"


def test_every_public_name_is_found_where_the_stub_says():
    stub = ast.parse((ROOT / "hf_lenctrl" / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    # "name as name" is what makes a name public for a type checker
    assert all(alias.name == alias.asname for node in imports for alias in node.names)
    for node in imports:
        for alias in node.names:
            assert getattr(hf_lenctrl, alias.name).__module__ == f"hf_lenctrl.{node.module}"
    names = {alias.name for node in imports for alias in node.names}
    assert {*hf_lenctrl.__all__} == {*names, "__version__"} <= {*dir(hf_lenctrl)}
    with pytest.raises(AttributeError, match="module 'hf_lenctrl' has no attribute 'UnitTabel'"):
        hf_lenctrl.UnitTabel  # noqa: B018


def test_every_family_is_in_the_tables():
    assert registration.FAMILIES.keys() == FAMILIES.keys()
    for kind, head in FAMILIES.items():
        config = head.config_class
        assert transformers.CONFIG_MAPPING[f"lenctrl_{kind}"] is config
        assert transformers.AutoModelForSeq2SeqLM._model_mapping[config] is head
        assert transformers.AutoModel._model_mapping[config] is head.model_class
    names = {kind: tokenizer for kind, (_, _, tokenizer) in registration.FAMILIES.items()}
    assert names["marian"] == "MarianTokenizer" and names["mbart"] is None


def test_a_table_keeps_what_others_registered_and_can_be_changed():
    table = registration.Lazy({"a": 1}, {"hf_lenctrl.lengths:Target": "hf_lenctrl.lengths:LONGEST", "b": "math:pi"})
    from hf_lenctrl.lengths import LONGEST, Target

    assert table["a"] == 1 and table[Target] == LONGEST and Target in table and int not in table
    assert list(table) == ["a", Target, "b"] and len(table) == 3
    table["b"] = 2
    assert dict(table) == {"a": 1, "b": 2, Target: LONGEST}
    with pytest.raises(KeyError):
        table["c"]


@pytest.mark.slow
def test_the_core_install_generates_evaluates_and_names_the_extra_that_a_command_needs(tmp_path):
    (tmp_path / "texts.txt").write_text("Wir gehen morgen ins Kino.\n")
    out, model = str(tmp_path / "out.jsonl"), str(ROOT / "models" / "translate_to_english")
    generate = ["--model", model, "--input_file", str(tmp_path / "texts.txt"), "--output_file", out, "--length", "30"]
    lacking = [
        ("train", ["train", "--help"]),
        ("train", ["evaluate", "--input_file", out, "--reference_column", "source"]),
        ("onnx", ["export", model, "--output_dir", str(tmp_path / "onnx")]),
    ]
    commands = [["generate", *generate, "--length_constraint", "max"], ["evaluate", "--input_file", out]]
    commands += [["export", "--help"], *(words for _, words in lacking)]
    said = output_of(WITHOUT_EXTRAS + COMMANDS, json.dumps(commands), **ENVIRONMENT)
    said = json.loads(said.splitlines()[-1])
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert row["length"] == len(row["output"]) <= 30
    assert "| character | 1 |" in said[1] and said[2].startswith("usage: lenctrl export")
    for (extra, _), lines in zip(lacking, said[3:], strict=True):
        assert lines.count("\n") == 1 and f'pip install "hf_lenctrl[{extra}]"' in lines
