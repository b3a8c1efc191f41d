"""Runs of the recipes on rows and models small enough for a test."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import torch
import transformers
from conftest import SOURCES, TARGETS, build_model, plain_marian
from processes import output_of
from safetensors.torch import load_file

import hf_lenctrl
from hf_lenctrl.commands import generate, lenctrl
from hf_lenctrl.commands import train as train_seq2seq


ROOT = Path(__file__).resolve().parents[1]


def options_of(text: str) -> dict[str, str]:
    """`"layers=1 dropout=0"` as a dictionary."""
    return dict(word.split("=") for word in text.split())


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
TINY = options_of(
    "d_model=32 layers=1 attention_heads=2 ffn_dim=32 vocab_size=150 group_column=package group_separator=- "
    "validation_share=0.1 test_share=0.1 per_device_train_batch_size=8 per_device_eval_batch_size=32 "
    "learning_rate=1e-3 lr_scheduler_type=constant "
    "predict_with_generate=true report_to=none disable_tqdm=true use_cpu=true"
)
FIGURES = {"variance", "mae", "exact", "over", "settings"} | {
    f"{rouge}_{part}" for rouge in ("rouge1", "rouge2", "rougeL") for part in ("recall", "f1")
}
ONLY_TRAIN = {"validation_share": 0, "test_share": 0}


def as_options(values: dict) -> list[str]:
    items = ((key, value if isinstance(value, list) else [value]) for key, value in values.items())
    return [word for key, words in items for word in (f"--{key}", *map(str, words))]


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def read_rows(path: Path) -> list[dict]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def train(output_dir: Path, **options) -> dict:
    """Run the training recipe on ROWS."""
    rows = options.pop("rows", ROWS)
    file = write_rows(output_dir.with_suffix(".jsonl"), rows)
    return train_seq2seq.main(as_options({"train_file": file, "output_dir": output_dir, **TINY, **options}))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_same_weights(one: Path, two: Path):
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def load(folder: Path):
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def steps_of(folder: Path) -> int:
    """Training steps that the newest checkpoint has seen."""
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda path: int(path.parent.name[11:]))
    return json.loads(states[-1].read_text())["global_step"]


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
    return read_rows(output_file)


def save_stock(folder: Path, tokenizer) -> Path:
    plain_marian(tokenizer, seed=4).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_predictor(folder: Path) -> Path:
    """A length predictor that says 12 characters for every text; with files beside it that are none of a model."""
    config = transformers.BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    encoder = transformers.BertModel(config)
    model = hf_lenctrl.LengthPredictor.from_encoder(encoder, [6, 8], length_unit="character")
    model.output.weight.data.zero_()
    model.output.bias.data.fill_(5.0)  # standard deviations of 1 above the mean of 7
    model.save_pretrained(folder)
    words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])}
    transformers.BertTokenizer(vocab=words).save_pretrained(folder)
    (folder / "training_args.bin").write_bytes(b"pickle")
    (folder / "checkpoint-1").mkdir()
    return folder


def save_translators(folder: Path, tokenizer, model: str = "model", base: str = "base"):
    """A controlled model that counts characters, and a plain one, saved with their tokenizer; returns them."""
    fields = {"vocab_size": len(tokenizer), "max_position_embeddings": 512}
    controlled = build_model("marian", length_encoding="ldpe", length_unit="character", **fields)
    plain = plain_marian(tokenizer)
    save(controlled, tokenizer, folder / model)
    for part in (plain, tokenizer):
        part.save_pretrained(folder / base)
    return controlled, plain


def run_lenctrl(words: list[str], monkeypatch) -> None:
    """As `lenctrl words...`, but in this process, which has imported what takes longest."""
    monkeypatch.setattr(sys, "argv", ["lenctrl"])
    try:
        lenctrl.main(words)
    except SystemExit as end:
        assert not end.code, f"lenctrl {' '.join(words)} ended with {end.code}"


def load_script(path: str):
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def isolated(code: str, *given, folder: Path):
    """What a Python without the package prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_MODULES_CACHE": str(folder / "modules")}
    # an editable install of the package is hidden
    code = "import sys; sys.modules['hf_lenctrl'] = None\n" + code
    return json.loads(output_of(code, json.dumps(given), cwd=folder, **environment).splitlines()[-1])
