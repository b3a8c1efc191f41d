"""lab/benchmarks/llm.py runs with small models, and its columns are right."""

import json
from collections import Counter

import llm
import peft
import pytest
import torch
from conftest import save_in
from test_causal import build_plain, make_tokenizer

from hf_lenctrl import add_length_control


TEXTS = ["Anna is here at 10.", "We left.", "It ran. It fell."]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[str]:
    """Save a base with length control and an adapter over it, and return the options that name them."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    model = add_length_control(build_plain("llama"), tokenizer=tokenizer, length_unit="character")
    model.make_length_optional()
    save_in(folder / "base", model, tokenizer)
    model.name_or_path = str(folder / "base")
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], modules_to_save=["length_projection"])
    adapted = peft.get_peft_model(model, config)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name or "modules_to_save" in name:
            torch.nn.init.normal_(weight, std=0.3)
    adapted.save_pretrained(folder / "adapter")
    tokenizer.save_pretrained(folder / "adapter")
    return ["--base", str(folder / "base"), "--model", str(folder / "adapter")]


def texts_file(folder) -> str:
    rows = [{"id": k, "kind": "sentence", "text": text} for k, text in enumerate(TEXTS)]
    llm.write_lines(folder / "texts.jsonl", rows)
    return str(folder / "texts.jsonl")


def test_every_row_has_its_outputs_once(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(llm, "Cosine", lambda: lambda texts, others: [0.5] * len(texts))
    monkeypatch.setattr(llm, "BEAMS", 2)
    options = [*folders, "--texts_file", texts_file(tmp_path), "--output_dir", str(tmp_path / "out"), "--settings"]
    path = tmp_path / "out" / "outputs.jsonl"
    llm.main([*options, "max0.6", "--texts", "1", "--rows", "cut", "prompt"])
    first = path.read_text()
    path.write_text(first + '{"id": 0, "sett')
    llm.main([*options, "max0.6", "window1.2", "--texts", "1"])
    assert path.read_text().startswith(first)
    lines = llm.read_lines(path)
    assert Counter(line["row"] for line in lines) == dict.fromkeys(llm.ROWS, 2)
    assert {(line["setting"], line["length"]) for line in lines} == {("max0.6", 11), ("window1.2", 23)}
    assert lines[0]["output"] == "Anna is" and lines[0]["text"] == TEXTS[0]
    rows = json.loads((tmp_path / "out" / "table.json").read_text())
    assert len(rows) == 16 and all(row["cos"] == 0.5 and row["plain"] < 0 for row in rows)
    fits = {row["row"]: row["fits %"] for row in rows if row["setting"] == "max0.6"}
    assert all(fits[row] == 100 for row in ("cut", "filtered", "plain16", "tuned16", "ours"))


def test_the_loss_is_that_of_the_plain_model_before_and_of_the_adapter_after(folders, tmp_path, capsys):
    llm.main([*folders, "--loss", texts_file(tmp_path)])
    before, after = llm.losses(*llm.load(folders[1], folders[3]), TEXTS)
    assert f"3 texts: loss {before:.4f}, with the model {after:.4f}" in capsys.readouterr().out
    plain, tokenizer = build_plain("llama"), make_tokenizer()
    each = [tokenizer(text, return_tensors="pt")["input_ids"] for text in TEXTS]
    sums = [plain(input_ids=ids, labels=ids).loss.item() * (ids.shape[1] - 1) for ids in each]
    assert before == pytest.approx(sum(sums) / sum(ids.shape[1] - 1 for ids in each), rel=1e-5)
    assert abs(after - before) > 1e-4  # the adapter counts


def test_columns():
    line = {"text": "Anna left at 10.", "length": 10, "seconds": 2.0, "cos": 0.5, "plain": -3.0}
    lines = [line | {"output": "Anna left."}, line | {"output": "At 10 Anna left"}]
    found = llm.figures(lines, "10 %")
    assert found == {
        "fits %": 50,
        "MAE": 2.5,
        "cos": 0.5,
        "finished %": 50,
        "kept %": 50,  # the first lost 10
        "plain": -3.0,
        "distinct %": 100,
        "seconds": 2.0,
    }
    assert "MAE" not in llm.figures(lines, "max")


def test_settings_and_prompts():
    assert llm.parse("max0.8") == ("max", 0.8) and llm.parse("window1.2") == ("10 %", 1.2)
    with pytest.raises(ValueError, match="got 'exact0.8'; pass max0.8"):
        llm.parse("exact0.8")
    assert llm.fits("abcd", 4, "max") and not llm.fits("abcde", 4, "max")
    assert llm.fits("a" * 36, 40, "10 %") and not llm.fits("a" * 35, 40, "10 %")
    task = llm.with_number("Hi.", 3, "max")[0]["content"]
    assert task.startswith("Rewrite the text in at most 3 characters.")
    *_, shown, asked = llm.with_countdown("We all left at noon.", 12, "max")
    assert shown["content"].startswith("<6> Rain <5> moved ") and shown["content"].endswith("<1> Sunday. <0>")
    assert "at most 3 words" in asked["content"] and asked["content"].endswith("We all left at noon.")
    assert llm.without_marks("<3> We <2>left <1> early. <0> Done.") == "We left early."


def test_the_sheet_hides_the_rows_and_the_verdicts_come_back(tmp_path, capsys):
    outputs = {"ours": "We left.", "plain16": "We left.", "prompt": "We all left early today."}
    line = {"id": 7, "kind": "sentence", "text": "We left early today.", "setting": "max0.8", "length": 16}
    llm.write_lines(tmp_path / "outputs.jsonl", [line | {"row": row, "output": text} for row, text in outputs.items()])
    options = ["--output_dir", str(tmp_path)]
    llm.main([*options, "--sheet", "--rows", "ours", "prompt", "plain16"])
    (item,) = llm.read_lines(tmp_path / "sheet.jsonl")
    assert item.keys() == {"item", "source", "texts"} and item["item"] == "7 max0.8"
    assert sorted(item["texts"]) == ["A", "B"] and set(item["texts"].values()) == set(outputs.values())
    letters = {text: letter for letter, text in item["texts"].items()}
    verdict = {"item": "7 max0.8", letters["We left."]: "understandable", letters[outputs["prompt"]]: "good"}
    llm.write_lines(tmp_path / "reader.jsonl", [verdict])
    llm.main([*options, "--verdicts", str(tmp_path / "reader.jsonl")])
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "reader.jsonl, ours: 0 good, 1 understandable, 0 wrong, 0 good and fits",
        "reader.jsonl, plain16: 0 good, 1 understandable, 0 wrong, 0 good and fits",
        "reader.jsonl, prompt: 1 good, 0 understandable, 0 wrong, 0 good and fits",
    ]
    with pytest.raises(ValueError, match="got 'fine' for 7 max0.8"):
        llm.count_verdicts(json.loads((tmp_path / "key.json").read_text()), [verdict | dict.fromkeys("AB", "fine")])


def test_the_texts_of_a_subset_come_from_the_whole_file(tmp_path):
    llm.write_lines(tmp_path / "texts.jsonl", [{"id": k} for k in range(10)])
    assert [row["id"] for row in llm.some_texts(tmp_path / "texts.jsonl", 4)] == [0, 2, 5, 7]
    assert len(llm.some_texts(tmp_path / "texts.jsonl", None)) == 10
