"""Models in ONNX Runtime: the same texts as in PyTorch, in every family, and what the export refuses."""

import functools
import json
import shlex

import pytest
import torch
from conftest import build_model, save_in
from family_models import controlled_model, stock_model, tokenizer_of
from huggingface_hub import ModelCard
from recipe_runs import ROOT, run_lenctrl
from test_causal import build_plain, make_tokenizer
from test_docs import BLOCKS, run_example
from tokenizers import Tokenizer
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from hf_lenctrl.cache import CACHE
from hf_lenctrl.commands import export
from hf_lenctrl.engines.onnx_export import DECODER, ENCODER, FOLDER, export_onnx
from hf_lenctrl.engines.rules_file import RULES, describe, read_table


onnxruntime = pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")

EVERYDAY = ROOT / "models" / "translate_to_english"
TEXTS = ["small text editor", "image reading and writing library", "measure disk speed"]


def runner(folder):
    from hf_lenctrl.engines.onnx_runner import OnnxModel

    return OnnxModel(folder, threads=1)


@pytest.fixture(scope="module")
def everyday(tmp_path_factory):
    """The shipped translator, exported by the command."""
    output = tmp_path_factory.mktemp("onnx") / "everyday"
    export.main([str(EVERYDAY), "--output_dir", str(output)])
    return output


@pytest.mark.slow
def test_the_runner_writes_what_the_model_writes(everyday):
    files = [ROOT / "recipes" / "translation" / f"{name}.txt" for name in ("german", "french")]
    texts = [text for path in files for text in path.read_text("utf-8").splitlines()[:3]]
    lengths = [max(8, round(len(text) * (0.8 + 0.1 * (i % 5)))) for i, text in enumerate(texts)]
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(EVERYDAY).float(), AutoTokenizer.from_pretrained(everyday)
    batch, other = tokenizer(texts, return_tensors="pt", padding=True), runner(everyday)
    for options in (
        {"length": lengths, "length_constraint": "exact"},
        {"length": lengths, "length_constraint": "exact", "length_tolerance": 0.1},
        {"length": lengths, "length_constraint": "max", "num_beams": 1},
        {},
    ):
        ids = [each.generate(**batch, **options) for each in (other, model)]
        ours, theirs = (tokenizer.batch_decode(rows, skip_special_tokens=True) for rows in ids)
        assert ours == theirs, options
        if options.get("length_constraint") == "exact" and "length_tolerance" not in options:
            assert list(map(len, ours)) == lengths
    assert len(set(ours)) == 6


@pytest.mark.slow
def test_the_folder_has_what_other_engines_look_for(everyday):
    names = {path.relative_to(everyday).as_posix() for path in everyday.rglob("*") if path.is_file()}
    wanted = {f"{FOLDER}/encoder_model.onnx", f"{FOLDER}/decoder_model_merged.onnx", "config.json", "tokenizer.json"}
    assert wanted | {RULES, "generation_config.json", "README.md", "source.spm"} <= names
    assert not any(name.endswith((".py", ".safetensors")) for name in names)
    card = ModelCard.load(everyday / "README.md")
    assert card.data.license_name == ModelCard.load(EVERYDAY / "README.md").data.license_name
    assert "OnnxModel(" in card.text
    decoder = onnxruntime.InferenceSession(everyday / FOLDER / DECODER)
    inputs = [each.name for each in decoder.get_inputs()]
    layers = range(json.loads((everyday / "config.json").read_text())["decoder_layers"])
    cache = [f"{i}.{side}.{kind}" for i in layers for side in ("decoder", "encoder") for kind in ("key", "value")]
    assert inputs[:5] == ["encoder_attention_mask", "input_ids", "encoder_hidden_states", "length", "progress"]
    assert sorted(inputs[5:]) == sorted(f"past_key_values.{name}" for name in cache)
    outputs = [each.name for each in decoder.get_outputs()]
    assert outputs == ["logits", *(name.replace("past_key_values", "present") for name in inputs[5:])]
    # JavaScript's tokenizer gives the ids of Python's
    fast, slow = Tokenizer.from_file(str(everyday / "tokenizer.json")), AutoTokenizer.from_pretrained(everyday)
    texts = (ROOT / "recipes" / "translation" / "german.txt").read_text("utf-8").splitlines()
    assert fast.decode([2, *slow("Hallo!")["input_ids"]]) == slow.decode(slow("Hallo!")["input_ids"][:-1])
    assert [fast.encode(text).ids for text in texts] == [slow(text)["input_ids"] for text in texts]


@pytest.mark.slow
def test_the_pipeline_takes_the_runner(everyday):
    tokenizer = AutoTokenizer.from_pretrained(everyday)
    write = pipeline("length-controlled-generation", model=runner(everyday), tokenizer=tokenizer)
    out = write("Wo ist die Apotheke?", length=22, length_constraint="exact", num_beams=4)
    assert (out["generated_text"], out["length"]) == ("Where is the pharmacy?", 22)


@pytest.mark.slow
def test_the_runner_writes_many_lengths_of_several_texts(everyday):
    """A search by length has other numbers of rows for each text at each step."""
    models = runner(everyday), AutoModelForSeq2SeqLM.from_pretrained(EVERYDAY).float()
    tokenizer, lengths = AutoTokenizer.from_pretrained(everyday), [list(range(16, 26)), list(range(20, 29))]
    texts, written = ["Wo ist die Apotheke?", "Das Museum ist montags geschlossen."], []
    for model in models:
        write = pipeline("length-controlled-generation", model=model, tokenizer=tokenizer)
        rows = write(texts, length=lengths, length_constraint="exact")
        written.append([[out["generated_text"] for out in each] for each in rows])
    ours, theirs = written
    assert ours == theirs and [[len(text) for text in each] for each in ours] == lengths


def test_the_cache_follows_its_rows_whatever_their_number():
    from hf_lenctrl.engines.onnx_runner import _Past

    names = [f"past_key_values.0.{side}.key" for side in ("decoder", "encoder")]
    past = _Past({name: ["rows", 1, "positions", 1] for name in names}, 2)
    past.update({name.replace("past_key_values", "present"): torch.tensor([[[[1.0]]], [[[2.0]]]]) for name in names})
    for rows, left in (
        ([0, 0, 1, 1], [1, 1, 2, 2]),
        ([1, 2, 2, 3], [1, 2, 2, 2]),  # as many rows as before, but of other texts
        ([1], [2]),
    ):
        past.reorder_cache(torch.tensor(rows))
        assert [past.tensors[name].flatten().tolist() for name in names] == [left, left]


# mBART's graphs are BART's with one norm more
FAMILIES = {
    "bart": {"length_encoding": "learned", "encoder_length_embedding": True, "absolute_positions": True}
    | {"length_unit": "character"},
    "m2m_100": {"length_encoding": "pre", "absolute_positions": True},
    "t5": {"length_encoding": "scale", "length_unit": "word"},
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model of a family, its tokenizer, and a runner of its export."""

    @functools.cache
    def exported(family: str):
        model, tokenizer = controlled_model(family, **FAMILIES[family]), tokenizer_of(family)
        folder = tmp_path_factory.mktemp(family)
        if family == "bart":
            torch.nn.init.normal_(model.get_encoder().length_table.weight)  # zero says nothing of the length
        export_onnx(model, tokenizer, folder)
        return model, tokenizer, runner(folder)

    return exported


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_runs(exported, family):
    model, tokenizer, other = exported(family)
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    batch.pop("token_type_ids", None)
    for number in (2, 3) if family == "t5" else (7, 23):  # T5 counts words
        options = {"length": number, "num_beams": 3, "length_constraint": "exact"}
        ours, theirs = other.generate(**batch, **options), model.generate(**batch, **options)
        assert ours.tolist() == theirs.tolist()
        assert other.unit_table.count(ours).tolist() == [number] * len(TEXTS)
        assert other.generate(**batch, **options, use_cache=False).tolist() == ours.tolist()
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    for given in ({}, {"length": 9}, {"length": [4, 9, 7]}):  # without a length it is counted from the labels
        ours, theirs = (each(**batch, labels=labels, **given).logits[labels != -100] for each in (other, model))
        torch.testing.assert_close(ours, theirs.detach(), atol=1e-3, rtol=1e-3)
    ids = batch["input_ids"]
    step = {**batch, "decoder_input_ids": ids[:, -1:], "length": 9}
    for each in (other, model) if model.config.counts_progress else ():
        cache = each(**batch, decoder_input_ids=ids[:, :-1], length=9, use_cache=True)[CACHE]
        with pytest.raises(ValueError, match="progress cannot be counted from the last token of a cached sequence"):
            each(**step, cache=cache)


@pytest.mark.slow
def test_the_command_and_the_example_of_the_page_run(tmp_path, monkeypatch):
    """With a small model in place of the shipped one, in int8."""
    fields = {"length_encoding": "lrpe", "length_projection": True, "length_unit": "character"}
    model, tokenizer = controlled_model("marian", **fields), tokenizer_of("marian")
    save_in(tmp_path / "models" / "translate_to_english", model, tokenizer)
    monkeypatch.chdir(tmp_path)
    ((_, _, command), (_, _, example)) = [block for block in BLOCKS["onnx"] if block[0] in ("bash", "python")]
    run_lenctrl(shlex.split(command)[1:], monkeypatch)
    run_example(example, None)
    other = runner("runs/onnx")
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    ids = other.generate(**batch, length=23, num_beams=3, length_constraint="exact")
    assert other.unit_table.count(ids).tolist() == [23] * len(TEXTS)
    one = torch.tensor([[2, 5, 9, 20]])
    given = {**tokenizer(TEXTS[:1], return_tensors="pt"), "decoder_input_ids": one, "length": torch.tensor([12])}
    logits = [m(**given).logits for m in (model, other)]
    apart = (logits[0] - logits[1]).detach().abs().mean() / logits[0].std()
    assert 0 < apart < 0.1
    import onnx

    saved = {weight.data_type for weight in onnx.load(f"runs/onnx/{FOLDER}/{ENCODER}").graph.initializer}
    assert onnx.TensorProto.UINT8 in saved


@pytest.mark.slow
def test_drafts_leave_the_text_as_it_is(exported):
    model, tokenizer, other = exported("bart")
    batch = {name: each[:, :9] for name, each in tokenizer(TEXTS[:1], return_tensors="pt").items()}
    for options in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": model}):
        for length in (7, 23):
            asked = {"length": length, "length_constraint": "exact", "num_beams": 1, "do_sample": False}
            expected = other.generate(**batch, **asked)
            assert other.generate(**batch, **asked, **options).tolist() == expected.tolist()


@pytest.mark.slow
def test_the_runner_keeps_a_length_in_another_unit_than_the_trained_one(exported):
    model, tokenizer, other = exported("bart")
    written = []
    for each in (other, model):
        write = pipeline("length-controlled-generation", model=each, tokenizer=tokenizer)
        given = [
            {"length": 4, "length_unit": "word", "length_constraint": "exact"},
            {"length": 9, "length_unit": "utf16", "length_constraint": "max"},
            {"length": {"character": 20, "word": 3}},
        ]
        written.append([[out["generated_text"] for out in write(TEXTS, **options)] for options in given])
    words, code_units, both = written[0]
    assert written[0] == written[1]
    assert [len(text.split()) for text in words] == [4, 4, 4]
    assert all(len(text.encode("utf-16-le")) <= 18 for text in code_units) and any(code_units)
    assert all(len(text) <= 20 and len(text.split()) <= 3 for text in both) and any(both)


def test_the_table_is_read_as_it_was_written(tmp_path):
    for family, unit in (("bart", "character"), ("marian", "word"), ("t5", "byte")):
        model = controlled_model(family, length_unit=unit)
        (tmp_path / RULES).write_text(json.dumps(describe(model)))
        table = read_table(tmp_path)
        assert table.unit == unit
        assert torch.equal(table.weights, model.unit_table.weights)
        assert torch.equal(table.next_state, model.unit_table.next_state)
    (tmp_path / RULES).write_text(json.dumps({**describe(model), "version": 1}))
    with pytest.raises(ValueError, match="must be of version 2, got 1; export the model again"):
        read_table(tmp_path)


def test_the_rules_say_what_a_small_vocabulary_costs():
    """Marian's three states: at the start, in a word, after a space, in which no text ends."""
    tokenizer, model = tokenizer_of("marian"), controlled_model("marian", length_unit="character")
    rules = describe(model)
    assert (rules["unit"], rules["states"], rules["start"], rules["end"]) == ("character", 3, [2], [0])
    assert rules["last"] == [[0], [0], [None]]
    entries = tokenizer.get_vocab()
    kind = rules["classes"][rules["class_of"][entries["▁a"]]]
    # the first word has no space before it; after a space of its own there are two
    assert (kind["units"], kind["next"], kind["cost"]) == ([1, 2, 2], [1, 1, 1], [1, 2, 2])
    assert rules["limit"] == {"per_unit": 2.0, "more": 32, "positions": None}
    assert rules["silent"] == sorted({entries["<unk>"], entries["<pad>"]})


def test_what_the_export_does_not_take_is_told(tmp_path):
    tokenizer = tokenizer_of("marian")
    with pytest.raises(ValueError, match="takes a length-controlled model with an encoder, got a MarianMTModel"):
        export_onnx(stock_model("marian"), tokenizer, tmp_path)
    with pytest.raises(ValueError, match="without a length head, .* got length_head=True"):
        export_onnx(build_model("marian", length_head=True), tokenizer, tmp_path)
    with pytest.raises(ValueError, match="must be one of float32, int8, got 'int4'"):
        export_onnx(controlled_model("marian"), tokenizer, tmp_path, "int4")
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match="out exists; remove it or name another folder: --output_dir"):
        export.main([str(EVERYDAY), "--output_dir", str(tmp_path / "out")])
    for part in (build_plain("llama"), make_tokenizer()):
        part.save_pretrained(tmp_path / "llama")
    with pytest.raises(ValueError, match="takes a length-controlled model with an encoder, got a LlamaForCausalLM"):
        export.main([str(tmp_path / "llama"), "--output_dir", str(tmp_path / "new")])


def test_a_killed_or_failed_export_leaves_nothing_in_the_way(tmp_path, monkeypatch):
    save_in(tmp_path / "model", controlled_model("marian"), tokenizer_of("marian"))
    half = tmp_path / "_run" / "out.part" / "model.safetensors"  # of a command that was killed
    half.parent.mkdir(parents=True)
    half.write_text("half")
    with pytest.raises(ValueError, match="must be one of float32, int8, got 'int3'"):
        export.export(tmp_path / "model", tmp_path / "out", "int3")
    assert not half.parent.exists() and not (tmp_path / "out").exists()
    monkeypatch.setattr(export, "export_onnx", lambda *args: (args[2].mkdir(), (args[2] / "new").touch()))
    export.export(tmp_path / "model", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "new"]
