"""Types: what a type checker says of a user's script, and that the options it knows are those that exist."""

import importlib.util
import inspect
import re
import subprocess
import sys

import pytest
from test_readme import ROOT
from transformers import GenerationConfig, GenerationMixin

import hf_lenctrl
from hf_lenctrl.configuration_lenctrl import LengthControlRules
from hf_lenctrl.conversion import ConversionOptions
from hf_lenctrl.inference.options import CallOptions, Defaults, GenerateOptions
from hf_lenctrl.inference.request import Call


SCRIPT = """
import torch
from transformers import MarianMTModel

import hf_lenctrl

pipe = hf_lenctrl.pipeline("folder", device="cpu", num_beams=4)
out = pipe("text", length=40, length_constraint="max", num_beams=2)
n: int = out["length"]
score: float = out["score"]
low, (least, most) = out["low_score"] or False, out["window"]
several: list[hf_lenctrl.GeneratedText] = pipe(["a", "b"], length=[10, 20])
lengths: list = pipe("a", length=[10, 20])
best: list = pipe("a", length=10, num_return_sequences=2)
chat = pipe([{"role": "user", "content": "a"}], length=(10, 20))
wrong: str = chat["length"]  # error
pipe("text", lenght=40)  # error
pipe("text", length=40, length_constrain="max")  # error
hf_lenctrl.pipeline("folder", lenght=40)  # error
out["text"]  # error
hf_lenctrl.add_length_control("folder", length_encodin="ldpe")  # error
plain = MarianMTModel.from_pretrained("folder")
hf_lenctrl.add_length_control(plain)  # error: without the tokenizer
controlled: hf_lenctrl.LenCtrlMarianMTModel = hf_lenctrl.add_length_control(plain, tokenizer=None, length_unit="word")
other: hf_lenctrl.LenCtrlBartModel = hf_lenctrl.add_length_control(plain, tokenizer=None)  # error
hf_lenctrl.lenght_metrics  # error
table = hf_lenctrl.UnitTable.from_tokenizer(None, "character")
units: torch.Tensor = table.weights
counted: torch.Tensor = table.count(units)
text: str = table.weights  # error
table.wieghts + 1  # error
own: hf_lenctrl.UnitTable = controlled.unit_table
number: int = controlled.unit_table  # error
process = hf_lenctrl.LengthConstraintLogitsProcessor(table, [40, 75], "exact", eos_token_id=0, max_length=90)
hf_lenctrl.LengthConstraintLogitsProcessor(table, 75, eos=0)  # error
fitted: list[hf_lenctrl.Fitted] = hf_lenctrl.fit(["a"], 9, unit="word")
hf_lenctrl.fit("a", 9, constrain="max")  # error
hf_lenctrl.LengthConstraintLogitsProcessor("character", 75, eos_token_id=0)  # error
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed: pip install '.[dev]'")
def test_a_type_checker_takes_what_the_documentation_says_and_no_misspelt_keyword(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    # with the options of `make quality`, whose cache it then takes: without one, mypy reads all of transformers
    command = [sys.executable, "-m", "mypy", str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    found = {int(line) for line in re.findall(r"script\.py:(\d+): error", done.stdout)}
    assert found == {i for i, line in enumerate(SCRIPT.splitlines(), start=1) if "# error" in line}, done.stdout


def test_the_options_that_a_type_checker_knows_are_those_that_exist():
    of_generate = {*vars(GenerationConfig()), *inspect.signature(GenerationMixin.generate).parameters}
    assert GenerateOptions.__annotations__.keys() <= of_generate
    own = {name for name, field in Call.__dataclass_fields__.items() if field.init}
    assert CallOptions.__annotations__.keys() - GenerateOptions.__annotations__.keys() == own - {
        "length",
        "num_return_sequences",
    }
    assert own <= Defaults.__annotations__.keys()
    fields = LengthControlRules.__annotations__.keys() - {"absolute_positions", "length_projection", "sinusoids"}
    assert ConversionOptions.__annotations__.keys() == fields | {"cost"}


def test_the_pipeline_of_a_model_takes_defaults_and_refuses_a_misspelt_one():
    pipe = hf_lenctrl.pipeline(ROOT / "models" / "translate_to_english", device="cpu", length_constraint="max")
    assert type(pipe) is hf_lenctrl.LengthControlledGenerationPipeline
    assert pipe("Wir gehen morgen ins Kino.", length=30, choose=False)["length"] <= 30
    with pytest.raises(TypeError, match="pipeline has no option lenght; did you mean length?"):
        hf_lenctrl.pipeline("folder", lenght=40)
