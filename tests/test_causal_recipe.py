"""The recipe of causal models, from a plain base to a table: issue 19.4."""

import gzip
import json
import sys
from pathlib import Path

import pytest
import torch
import yaml
from peft import PeftModel
from test_causal import make_tokenizer
from transformers import AutoModelForCausalLM

import hf_lenctrl


RECIPES = Path(__file__).resolve().parents[1] / "recipes"
sys.path[:0] = [str(RECIPES), str(RECIPES / "causal")]

import base  # noqa: E402
import measure as evaluate_causal  # noqa: E402
import titles  # noqa: E402
import train_causal_lm  # noqa: E402


sys.path[:2] = []
ROWS = [
    {"split": split, "abstract": f"We write about {word}s and what they are for.", "title": f"The {word}"}
    for split in ("train", "validation", "test")
    for word in ("editor", "format", "image", "other word")
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A base that was pretrained for two steps, and the recipe's YAML made small."""
    folder = tmp_path_factory.mktemp("runs")
    with gzip.open(folder / "rows.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in ROWS))
    base.main([str(folder / "rows.jsonl.gz"), str(folder / "base"), "--max_steps", "2", "--batch_size", "2"])
    fields = yaml.safe_load((RECIPES / "causal" / "acl.yaml").read_text(encoding="utf-8"))
    fields |= {"base_model": str(folder / "base"), "train_file": str(folder / "base" / "data" / "train.jsonl")}
    fields |= {"max_steps": 3, "output_dir": str(folder / "whole"), "bf16": False, "disable_tqdm": True}
    (folder / "small.yaml").write_text(yaml.safe_dump(fields), encoding="utf-8")
    return folder


def test_a_base_a_whole_training_an_adapter_and_their_table(runs, capsys):
    train_causal_lm.main([str(runs / "small.yaml")])
    whole = AutoModelForCausalLM.from_pretrained(runs / "whole")
    assert whole.config.length_unit == "character" and bool(whole.length_projection.weight.any())
    titles = sorted(len(row["title"]) for row in ROWS if row["split"] == "train")  # 9, 10, 10, 14
    assert whole.config.trained_lengths == {"1%": titles[0], "50%": titles[1], "99%": titles[-1], "max": titles[-1]}

    train_causal_lm.main([str(runs / "small.yaml"), "--lora_r", "2", "--output_dir", str(runs / "lora")])
    plain = AutoModelForCausalLM.from_pretrained(runs / "base")
    model = AutoModelForCausalLM.from_pretrained(runs / "lora" / "base")
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(model(ids, length=5).logits, plain(ids).logits)  # not yet trained
    adapted = PeftModel.from_pretrained(model, runs / "lora").merge_and_unload()
    assert bool(adapted.length_projection.weight.any())
    capsys.readouterr()

    test = runs / "base" / "data" / "test.jsonl"
    options = ["--rows", "2", "--lengths", "9", "--output_file", str(runs / "outputs.jsonl")]
    evaluate_causal.main([str(test), str(runs / "base"), str(runs / "whole"), str(runs / "lora"), *options])
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert lines[0] == ["model", "asked", "length", "variance", "MAE", "exact %", "over %", "ROUGE-1"]
    rows = {tuple(cells[:3]): cells[3:] for cells in lines[2:]}
    asked = {"base": ["no length", "named in the prompt", "max", "exact"]}
    asked |= dict.fromkeys(("whole", "lora"), ["unconstrained", "max", "exact"])
    assert set(rows) == {(m, way, n) for m in asked for way in asked[m] for n in ("9", "reference")}
    for model in asked:
        assert rows[model, "exact", "9"][:4] == ["0.000", "0.00", "100.0", "0.0"]
        assert rows[model, "max", "reference"][3] == "0.0"
    options = ["--rows", "2", "--lengths", "2", "--unit", "word", "--asked", "exact"]
    evaluate_causal.main([str(test), str(runs / "base"), *options])
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [cells[2:7] for cells in lines[2:]] == [[n, "0.000", "0.00", "100.0", "0.0"] for n in ("2", "reference")]
    outputs = [json.loads(line) for line in (runs / "outputs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {len(row["output"]) for row in outputs if row["asked"] == "exact" and row["length"] == "9"} == {9}


def test_a_chat_trains_on_what_the_assistant_says():
    tokenizer = make_tokenizer().__class__(tokenizer_object=make_tokenizer()._tokenizer, eos_token="</s>")
    row = {"messages": [{"role": "user", "content": "a small"}, {"role": "assistant", "content": "editor"}] * 2}
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(ValueError, match="does not mark the assistant's turns"):
        train_causal_lm.encode(row, tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    encoded = train_causal_lm.encode(row, tokenizer)
    spoken = [i for i in encoded["labels"] if i != -100]
    assert tokenizer.decode(spoken) == "editor</s>editor</s>"
    assert tokenizer.decode(encoded["input_ids"]) == "a smalleditor</s>" * 2


def test_a_row_that_oversteps_learns_to_stop():
    tokenizer = make_tokenizer().__class__(
        tokenizer_object=make_tokenizer()._tokenizer, eos_token="</s>", pad_token="<pad>"
    )
    table = hf_lenctrl.UnitTable.from_tokenizer(tokenizer, "token")
    row = {"input_ids": [5, 6, 7, 8, 9, 10, 1], "labels": [-100, -100, 7, 8, 9, 10, 1]}
    collate = train_causal_lm.CollatorWithOvershoot(tokenizer, table=table, share=0.0)
    batch = collate([row])
    assert batch["labels"].tolist() == [row["labels"]] and batch["length"].tolist() == [4]
    collate.share = 1.0
    seen = set()
    for _ in range(30):
        batch = collate([row])
        assert batch["progress"].tolist() == [[-1, 0, 1, 2, 3, 4, 4]]  # as of the whole answer
        length = int(batch["length"])
        seen.add(length)
        # the token behind `length` units is the first that should be EOS
        assert batch["labels"].tolist() == [[-100] * (2 + length) + [1] * (5 - length)]
    assert seen == {1, 2, 3}
    with pytest.raises(ValueError, match="rows with one answer each"):
        collate([{"input_ids": [5, 6, 7, 8, 9], "labels": [-100, 6, -100, 8, 1]}])


def test_an_unknown_option_is_refused(runs, capsys):
    with pytest.raises(ValueError, match="no_such_option"):
        train_causal_lm.main([str(runs / "small.yaml"), "--no_such_option", "1"])


def test_the_base_writes_titles_of_several_lengths_for_an_abstract(tmp_path):
    shipped = RECIPES.parent / "models" / "write_titles_base"
    for file in shipped.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "data").mkdir()
    abstract = "We train a neural network to detect hate speech in tweets. " * 4
    real = [{"prompt": f"{abstract}{i}\nTitle:\n", "completion": f"Title {i}"} for i in range(3)]
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in real), encoding="utf-8")
    command = [str(tmp_path), "--prompts", "3", "--titles", "4", "--prompt_tokens", "9", "--batch_size", "1"]
    titles.main(command)
    lines = (tmp_path / "data" / "titles.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    written = [row for row in rows if row not in real]
    assert len(rows) == 3 + len(written) > 6
    assert {row["prompt"] for row in written} == {"We train a neural network to detect hate speech\nTitle:\n"}
    assert len({len(row["completion"]) for row in written}) > 3 and all(len(row["completion"]) > 8 for row in written)

    # a run that was killed in its last line, and the command again
    written_before = (tmp_path / "data" / "written.jsonl").read_bytes()
    (tmp_path / "data" / "written.jsonl").write_bytes(written_before[:-50])
    (tmp_path / "data" / "titles.jsonl").unlink()
    titles.main(command)
    assert (tmp_path / "data" / "written.jsonl").read_bytes() == written_before
    assert (tmp_path / "data" / "titles.jsonl").read_text(encoding="utf-8").splitlines() == lines
    with pytest.raises(ValueError, match="no command with these options began it"):
        titles.main([*command, "--titles", "5"])
