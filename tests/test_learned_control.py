"""What training must bring about, on real text: the docstrings of the standard library."""

import importlib.util
import json
import sysconfig
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parents[1]


def load_script(path: str):
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_character_decoder_with_ldpe_meets_its_lengths_after_200_steps(tmp_path):
    """Takase & Okazaki 2019, Table 4, has variance 0.00 for LDPE with a character decoder; 200 steps of 64 suffice."""
    rows = load_script("recipes/headline/docstrings.py").mine([Path(sysconfig.get_path("stdlib"))], progress=False)
    assert len(rows) > 500
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = {
        "train_file": tmp_path / "rows.jsonl",
        "output_dir": tmp_path / "run",
        "test_share": 0.1,
        "max_test_rows": 20,
        "max_steps": 200,
        "d_model": 128,
        "ffn_dim": 256,
        "vocab_size": 2000,
        "max_source_length": 32,
        "learning_rate": 2e-3,
        "warmup_steps": 50,
        "eval_strategy": "no",
        "save_steps": 200,
        "average_checkpoints": 1,
        "generation_num_beams": 1,
        "disable_tqdm": True,
    }
    argv = [str(ROOT / "recipes/headline/small.yaml")]
    argv += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    figures = load_script("recipes/train_seq2seq.py").main(argv)
    variances = [figures[f"test_{n}_variance"] for n in (20, 40, 60)]
    assert max(variances) < 1  # 0.0 where it was measured; on another machine a text may miss by a character or two
