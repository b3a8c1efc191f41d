"""The recipe of causal models, from a plain base to a table."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from conftest import save_in
from hub_server import Hub, Worker
from recipe_runs import ROOT, as_options, files_of, load_script, read_rows, write_rows
from safetensors.torch import load_file
from test_causal import build_plain, make_tokenizer
from test_report import table_rows
from transformers import AutoModelForCausalLM, AutoTokenizer, BartConfig, LlamaConfig, TrainingArguments

import hf_lenctrl
from hf_lenctrl.commands import causal, train
from hf_lenctrl.commands.answer_rows import encode, load_answers
from hf_lenctrl.training.collator import DataCollatorForAnswers
from hf_lenctrl.training.trainer import computes_columns


RECIPES = ROOT / "recipes"
base, titles = (load_script(f"recipes/causal/{name}.py") for name in ("base", "titles"))
evaluate_causal = load_script("lab/causal/measure.py")
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
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "LlamaConfig", lambda **fields: LlamaConfig(**{**fields, **sizes}))
        base.main([str(folder / "rows.jsonl.gz"), str(folder / "base"), "--max_steps", "2", "--batch_size", "2"])
    fields = yaml.safe_load((RECIPES / "causal" / "acl.yaml").read_text(encoding="utf-8"))
    fields |= {"base_model": str(folder / "base"), "train_file": str(folder / "base" / "data" / "train.jsonl")}
    fields |= {"output_dir": str(folder / "whole"), "bf16": False, "disable_tqdm": True}
    fields |= {"no_length_share": 0.5, "max_steps": 3}
    (folder / "small.yaml").write_text(yaml.safe_dump(fields), encoding="utf-8")
    return folder


@pytest.mark.parametrize("lora_r, dtype", [(0, torch.float32), (2, torch.float16)])
def test_weights_that_are_trained_are_float32(runs, tmp_path, lora_r, dtype):
    half = AutoModelForCausalLM.from_pretrained(runs / "base", dtype=torch.float16)
    half.save_pretrained(tmp_path / "half")
    tokenizer = AutoTokenizer.from_pretrained(runs / "base")
    rows = load_answers(str(runs / "base" / "data" / "train.jsonl"), tokenizer, 512)
    options = causal.CausalArguments(str(tmp_path / "half"), "", length_encoding="none", lora_r=lora_r)
    args = TrainingArguments(str(tmp_path / "run"), use_cpu=True)
    model = causal.build(options, args, tokenizer, rows)
    frozen = {weight.dtype for name, weight in model.named_parameters() if "lora" not in name}
    trained = {weight.dtype for weight in model.parameters() if weight.requires_grad}
    assert (frozen, trained) == ({dtype}, {torch.float32})


def test_a_base_a_whole_training_an_adapter_and_their_table(runs, capsys):
    train.main([str(runs / "small.yaml")])
    whole = AutoModelForCausalLM.from_pretrained(runs / "whole")
    assert whole.config.length_unit == "character" and bool(whole.length_projection.weight.any())
    titles = sorted(len(row["title"]) for row in ROWS if row["split"] == "train")  # 9, 10, 10, 14
    assert whole.config.trained_lengths == {"1%": titles[0], "50%": titles[1], "99%": titles[-1], "max": titles[-1]}

    train.main([str(runs / "small.yaml"), "--lora_r", "2", "--output_dir", str(runs / "lora")])
    plain = AutoModelForCausalLM.from_pretrained(runs / "base")
    adapted = AutoModelForCausalLM.from_pretrained(runs / "lora")
    assert bool(adapted.length_projection.weight.any()) and not (runs / "lora" / "base").exists()
    ids, model = torch.tensor([[5, 6, 7]]), hf_lenctrl.load_adapter(runs / "lora", merge=False)
    with model.disable_adapter(), torch.no_grad():
        assert torch.equal(model(ids, length=5).logits, plain(ids).logits)  # the base is the plain one
    capsys.readouterr()

    test = runs / "base" / "data" / "test.jsonl"
    options = ["--rows", "2", "--lengths", "9", "--output_file", str(runs / "outputs.jsonl")]
    evaluate_causal.main([str(test), str(runs / "base"), str(runs / "whole"), *options])
    lines = table_rows(capsys.readouterr().out)
    assert lines[0] == ["model", "asked", "length", "variance", "MAE", "exact %", "over %", "ROUGE-1", "whole %"]
    rows = {tuple(cells[:3]): cells[3:] for cells in lines[1:]}
    asked = {"base": ["no length", "named in the prompt", "max", "exact"]}
    asked["whole"] = ["no length", "unconstrained", "max", "exact", "max, chosen", "exact, chosen"]
    assert set(rows) == {(m, way, n) for m in asked for way in asked[m] for n in ("9", "reference")}
    for model in asked:
        assert rows[model, "exact", "9"][:4] == ["0.000", "0.00", "100.0", "0.0"]
        assert rows[model, "max", "reference"][3] == "0.0"
    assert rows["whole", "exact, chosen", "9"][:4] == ["0.000", "0.00", "100.0", "0.0"]
    assert evaluate_causal.whole(["An editor", "The edi", "12"], {"the", "an", "editor"}) == pytest.approx(100 / 3)
    options = ["--rows", "2", "--lengths", "2", "--unit", "word", "--asked", "exact"]
    evaluate_causal.main([str(test), str(runs / "lora"), *options])
    lines = table_rows(capsys.readouterr().out)
    assert [cells[2:7] for cells in lines[1:]] == [[n, "0.000", "0.00", "100.0", "0.0"] for n in ("2", "reference")]
    outputs = read_rows(runs / "outputs.jsonl")
    assert {len(row["output"]) for row in outputs if row["asked"] == "exact" and row["length"] == "9"} == {9}


def test_an_adapter_is_trained_further(runs, tmp_path):
    def run(name, *options):
        train.main([str(runs / "small.yaml"), "--max_steps", "2", "--output_dir", str(tmp_path / name), *options])
        return load_file(tmp_path / name / "adapter_model.safetensors")

    first = run("first", "--lora_r", "2", "--weights_dtype", "float16")
    more = ["--adapter", str(tmp_path / "first")]
    same, other = run("same", *more, "--learning_rate", "0"), run("other", *more)
    assert {weight.dtype for weight in other.values()} == {torch.float32}
    assert all(torch.equal(first[name].float(), weight) for name, weight in same.items())
    assert all(not torch.equal(first[name].float(), weight) for name, weight in other.items())
    assert bool(hf_lenctrl.load_adapter(tmp_path / "other").length_projection.weight.any())
    with pytest.raises(ValueError, match="length_encoding=ldpe, got lrpe; give length_encoding=ldpe"):
        run("refused", *more, "--length_encoding", "lrpe")
    with pytest.raises(ValueError, match="has a rank already, got lora_r=4"):
        run("refused", *more, "--lora_r", "4")


@pytest.mark.parametrize("target", ["q_proj,v_proj", "self_attn.q_proj,v_proj", r".*\.(q|v)_proj"])
@pytest.mark.parametrize("encoding", ["ldpe", "none"])
def test_the_layers_of_an_adapter_are_names_or_an_expression(runs, tmp_path, target, encoding):
    words = ["--lora_r", "2", "--lora_target", target, "--max_steps", "1", "--output_dir", str(tmp_path / "run")]
    words += ["--length_encoding", encoding, "--overshoot_share", "0", "--no_length_share", "0"]
    train.main([str(runs / "small.yaml"), *words])
    names = load_file(tmp_path / "run" / "adapter_model.safetensors")
    assert {name.split(".")[-3] for name in names if "lora_" in name} == {"q_proj", "v_proj"}


def test_an_adapter_without_a_length_is_trained_further(runs, tmp_path):
    plain = ["--length_encoding", "none", "--no_length_share", "0", "--overshoot_share", "0", "--max_steps", "2"]
    for name, options in (("first", ["--lora_r", "2"]), ("more", ["--adapter", str(tmp_path / "first")])):
        train.main([str(runs / "small.yaml"), *plain, *options, "--output_dir", str(tmp_path / name)])
    first, more = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("first", "more"))
    assert first.keys() == more.keys() and not torch.equal(*(list(own.values())[0] for own in (first, more)))


@pytest.mark.parametrize("length", [True, False])
def test_training_computes_the_logits_of_answers_only(runs, tmp_path, length):
    none = [] if length else ["--length_encoding", "none", "--no_length_share", "0", "--overshoot_share", "0"]
    options, args = causal.parse([str(runs / "small.yaml"), *none, "--output_dir", str(tmp_path / "run")])
    trainer = causal.make_trainer(options, args, causal.load_tokenizer(options))
    inner = getattr(trainer.model, "language_model", trainer.model)
    columns, hook = [], inner.lm_head.register_forward_hook(lambda *given: columns.append(given[2].shape[1]))
    batch = next(iter(trainer.get_train_dataloader()))
    labels, losses = batch["labels"], []
    trainer.model.train()
    for short in (trainer._short, False):
        trainer._short = short
        losses.append(trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=(labels != -100).sum()))
    hook.remove()
    assert columns == [int((labels[:, 1:] != -100).any(dim=0).sum()), labels.shape[1]] and columns[0] < columns[1]
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("family, is_able", [("llama", True), ("gpt2", True), ("bart", False)])
def test_a_loss_that_takes_no_columns_gets_all_logits(family, is_able):
    small = {"d_model": 16, "decoder_layers": 1, "decoder_ffn_dim": 16, "decoder_attention_heads": 2}
    small |= {"vocab_size": 20, "is_decoder": True, "is_encoder_decoder": False}
    bart = AutoModelForCausalLM.from_config(BartConfig(**small)) if family == "bart" else None
    assert computes_columns(bart or build_plain(family)) is is_able


def test_a_chat_trains_on_what_the_assistant_says():
    tokenizer = make_tokenizer().__class__(tokenizer_object=make_tokenizer()._tokenizer, eos_token="</s>")
    row = {"messages": [{"role": "user", "content": "a small"}, {"role": "assistant", "content": "editor"}] * 2}
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(ValueError, match="does not mark the assistant's turns"):
        encode(row, tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    for many, encoded in enumerate(encode(row, tokenizer), start=1):  # an earlier answer is prompt
        prompt = tokenizer("a smalleditor</s>" * (many - 1) + "a small")["input_ids"]
        answer = tokenizer("editor</s>")["input_ids"]
        assert encoded == {"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer}
    assert many == 2
    with pytest.raises(ValueError, match="no answer, a message of role assistant"):
        encode({"messages": row["messages"][:1]}, tokenizer)


def test_a_row_that_oversteps_learns_how_an_answer_ends():
    tokenizer = make_tokenizer()
    table = hf_lenctrl.UnitTable.from_tokenizer(tokenizer, "token")
    row = {"input_ids": [5, 6, 7, 8, 9, 10, 1], "labels": [-100, -100, 7, 8, 9, 10, 1]}
    collate = DataCollatorForAnswers(tokenizer, table=table)
    batch = collate([row])
    assert batch["labels"].tolist() == [row["labels"]] and batch["length"].tolist() == [4]
    collate.overshoot_share = 1.0
    seen = set()
    for epoch in range(30):
        collate.set_epoch(epoch)
        batch = collate([row])
        assert collate([row])["length"].tolist() == batch["length"].tolist()  # in each batch of an epoch
        assert batch["progress"].tolist() == [[-1, 0, 1, 2, 3, 4, 4]]  # as of the whole answer
        length = int(batch["length"])
        seen.add(length)
        # the token behind `length` units is the first with a label
        assert batch["labels"].tolist() == [[-100] * (2 + length) + row["labels"][2 + length :]]
    assert seen == {2, 3}
    collate.overshoot_share, collate.no_length_share = 0.0, 1.0
    batch = collate([row])
    assert batch["length"].tolist() == [0] and batch["labels"].tolist() == [row["labels"]]
    with pytest.raises(ValueError, match="a row holds one answer"):
        collate([{"input_ids": [5, 6, 7, 8, 9], "labels": [-100, 6, -100, 8, 1]}])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--length_encoding", "none"], "overshoot_share=0.05 is for models with a length"),
        (["--max_length", "2"], "no row of .*train.jsonl has at most max_length=2 tokens, the shortest has [0-9]+"),
        (["--lora_r", "2", "--lora_target", "q_porj"], "lora_r=2 and lora_target=q_porj give no adapter: No modules"),
        (
            ["--validation_file", "blank.jsonl", "--length_unit", "word"],
            "row 2 of blank.jsonl: the answer has no words",
        ),
        (["--train_file", "rows.jsonl"], "row 2 of rows.jsonl: .*must be texts.*got completion=''; correct"),
    ],
)
def test_what_has_no_effect_and_no_answer_is_refused(runs, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.jsonl"), [{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": ""}])
    write_rows(Path("blank.jsonl"), [{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": " \n"}])
    with pytest.raises(ValueError, match=message):
        train.main([str(runs / "small.yaml"), "--output_dir", "run", *options])


LORA = ["--lora_r", "2"]
WEIGHTS = "adapter_model.safetensors"
SIX_STEPS = ["--max_steps", "6", "--save_steps", "1", "--save_total_limit", "9", "--overshoot_share", "0.5"]
SIX_STEPS += ["--per_device_train_batch_size", "1"]  # an epoch and a half


@pytest.fixture(scope="module")
def six_steps(runs, tmp_path_factory):
    """Runs the recipe in a folder; and the folder of a run that was not stopped."""
    whole = tmp_path_factory.mktemp("six") / "whole"

    def run(folder, *options):
        yaml = str(runs / "small.yaml")
        train.main([yaml, *SIX_STEPS, *LORA, "--output_dir", str(folder), *options])
        return files_of(folder)

    run(whole)
    return run, whole


def test_a_repeated_run_trains_nothing(six_steps, tmp_path, caplog):
    run, whole = six_steps
    shutil.copytree(whole, tmp_path / "run")
    with caplog.at_level("INFO"):
        again = run(tmp_path / "run")
    assert "training is finished" in caplog.text
    assert again.keys() == files_of(whole).keys() and "checkpoint-6/optimizer.pt" in again
    assert again[WEIGHTS] == (whole / WEIGHTS).read_bytes()
    with pytest.raises(ValueError, match=r"max_steps=6 \(trained\), now 4"):
        run(tmp_path / "run", "--max_steps", "4")


def test_a_resumed_run_has_the_weights_of_a_whole_one(six_steps, tmp_path):
    run, whole = six_steps
    for name in ("checkpoint-2", "checkpoint-3", "_run"):  # in the middle of an epoch
        shutil.copytree(whole / name, tmp_path / name)
    (tmp_path / "checkpoint-3" / "trainer_state.json").unlink()  # it was killed while it saved
    resumed = run(tmp_path)
    assert resumed[WEIGHTS] == (whole / WEIGHTS).read_bytes()
    assert [json.loads(resumed[f"checkpoint-{n}/trainer_state.json"])["global_step"] for n in (3, 6)] == [3, 6]


def test_evaluation_has_no_overshoot(runs, tmp_path):
    options = ["--validation_file", str(runs / "base" / "data" / "train.jsonl"), "--overshoot_share", "0.9"]
    options += ["--eval_strategy", "steps", "--eval_steps", "1", "--learning_rate", "0", "--output_dir", str(tmp_path)]
    train.main([str(runs / "small.yaml"), *options])
    state = json.loads((tmp_path / "checkpoint-3" / "trainer_state.json").read_text())
    losses = [entry["eval_loss"] for entry in state["log_history"] if "eval_loss" in entry]
    assert len(losses) == 3 and len(set(losses)) == 1


SECRET = "hf_secret123"
PUSH = """
from hf_lenctrl.commands import train
train.main(given[1:])
"""


def test_no_file_holds_the_token_and_no_upload_rows_or_arguments(runs, tmp_path):
    files = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    adapter = {"README.md", "adapter_config.json", "adapter_model.safetensors", *files[3:]}
    adapter |= {"config.json"}
    figures = {"all_results.json", "train_results.json"}
    with Hub(token=SECRET) as hub:
        worker = Worker(HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "home"))
        worker("import os, sys; sys.path[:0] = given", str(ROOT))
        try:
            for name, lora, expected in (("whole", 0, {"README.md", *files}), ("lora", 2, adapter)):
                folder = tmp_path / name
                options = {"output_dir": folder, "lora_r": lora, "save_steps": 2, "hub_token": SECRET}
                options |= {"hub_model_id": f"user/{name}", "hub_strategy": "end"}
                folder.mkdir()
                (folder / "rows.jsonl").write_text('{"prompt": "a"}\n')
                given = [str(runs / "small.yaml"), "--push_to_hub", *as_options(options)]
                worker(PUSH, str(RECIPES), *given)
                assert [path for path, data in files_of(folder).items() if SECRET.encode() in data] == []
                pushed = hub.files(f"user/{name}").keys() - {".gitattributes", ".gitignore"}
                assert {path for path in pushed if not path.endswith(".py")} == expected | figures
        finally:
            worker.end()


def test_the_base_writes_titles_of_several_lengths_for_an_abstract(tmp_path, runs):
    model, tokenizer = (cls.from_pretrained(runs / "base") for cls in (AutoModelForCausalLM, AutoTokenizer))
    # random weights seldom end a text: this makes the end more probable with each token
    model.generation_config.exponential_decay_length_penalty = (4, 2.0)
    save_in(tmp_path, model, tokenizer)
    (tmp_path / "data").mkdir()
    abstract = "We write about editors and what they are for. " * 4
    real = [{"prompt": f"{abstract}{i}\nTitle:\n", "completion": f"Title {i}"} for i in range(3)]
    write_rows(tmp_path / "data" / "train.jsonl", real)
    command = [str(tmp_path), "--prompts", "3", "--titles", "4", "--prompt_tokens", "9", "--batch_size", "1"]
    titles.main(command)
    rows = read_rows(tmp_path / "data" / "titles.jsonl")
    written = [row for row in rows if row not in real]
    assert len(rows) == 3 + len(written) > 6
    assert {row["prompt"] for row in written} == {"We write about editors and what they are\nTitle:\n"}
    assert len({len(row["completion"]) for row in written}) > 3 and all(len(row["completion"]) > 8 for row in written)

    # a run that was killed in its last line, and the command again
    written_before = (tmp_path / "data" / "written.jsonl").read_bytes()
    (tmp_path / "data" / "written.jsonl").write_bytes(written_before[:-50])
    (tmp_path / "data" / "titles.jsonl").unlink()
    titles.main(command)
    assert (tmp_path / "data" / "written.jsonl").read_bytes() == written_before
    assert read_rows(tmp_path / "data" / "titles.jsonl") == rows
    with pytest.raises(ValueError, match="no command with these options began it"):
        titles.main([*command, "--titles", "5"])
