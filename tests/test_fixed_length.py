"""Frozen models in CTranslate2, exported by the recipe from models that were trained a few seconds."""

import statistics
import sys

import pytest
import torch
from conftest import SOURCES, TARGETS, build_model, save_in
from family_models import controlled_model, tokenizer_of
from huggingface_hub import ModelCard
from recipe_runs import ROWS, load, options_of, train

from hf_lenctrl import FixedLengthTranslator, freeze_length
from hf_lenctrl.commands import export
from hf_lenctrl.commands.export import export_ctranslate2
from hf_lenctrl.fixed_length.ctranslate2 import FOLDER


LENGTH = 24  # characters; of tokens half as many
TEXTS = [row["source"] for row in ROWS[:24]]
# the same source with targets of many lengths, so that only the length tells where to end
OF_MANY_LENGTHS = [
    {"source": source, "target": (f"{target} " * 3)[:n].strip(), "package": f"package{n}"}
    for n in range(10, 38)
    for source, target in zip(SOURCES, TARGETS, strict=True)
]


SHORT = options_of(
    "max_steps=120 per_device_train_batch_size=16 learning_rate=5e-3 dropout=0 save_steps=120 validation_share=0 "
    "test_share=0 predict_with_generate=false"
)


@pytest.fixture(scope="module")
def ctranslate2():
    return pytest.importorskip("ctranslate2", reason="the extra 'fast' is not installed")


@pytest.fixture(scope="module", params=["marian", "bart"])
def trained(request, tmp_path_factory):
    """A folder of Marian with characters of its own, or of BART with shared subwords, and the length to freeze."""
    folder = tmp_path_factory.mktemp("trained") / request.param
    bart = {"rows": ROWS, "family": "bart", "target_vocabulary": "shared", "length_unit": "token"}
    train(folder, **SHORT, **(bart if request.param == "bart" else {"rows": OF_MANY_LENGTHS}))
    return folder, LENGTH if request.param == "marian" else LENGTH // 2


@pytest.fixture(scope="module")
def exported(trained, ctranslate2, tmp_path_factory):
    folder, length = trained
    output = tmp_path_factory.mktemp("exported") / f"{folder.name}-{length}"
    export.main([str(folder), "--length", str(length), "--output_dir", str(output)])
    return output


def written_by(folder, texts, **options) -> list[str]:
    """What the model in a folder writes, with transformers."""
    model, tokenizer = load(folder)
    ids = model.generate(**tokenizer(texts, return_tensors="pt", padding=True), num_beams=1, **options)
    return tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_greedy_outputs_equal_the_frozen_and_the_controlled_models(trained, exported):
    folder, length = trained
    written = FixedLengthTranslator(exported, threads=1)(TEXTS)
    assert all(output.keys() == {"generated_text", "length"} for output in written)
    outputs = [output["generated_text"] for output in written]
    assert len(set(outputs)) > 1
    # of 24 texts one or two may part where two tokens are as likely as each other
    for others in (written_by(exported, TEXTS), written_by(folder, TEXTS, length=length)):
        assert sum(a == b for a, b in zip(outputs, others, strict=True)) >= 22
    if folder.name == "marian":
        assert [output["length"] for output in written] == list(map(len, outputs))
    # a few run away after so short a training
    assert statistics.median(abs(output["length"] - length) for output in written) < 4


def test_one_text_is_one_output_order_is_kept_and_a_cut_is_told(exported, caplog):
    write = FixedLengthTranslator(exported, threads=1)
    outputs = write(TEXTS, batch_size=5)
    assert [write(text) for text in TEXTS[:3]] == outputs[:3]
    assert write(TEXTS[::-1]) == outputs[::-1]
    assert write([]) == []
    assert write([" ".join(SOURCES * 30), TEXTS[0]])[1] == outputs[0]
    assert "1 of 2 sources are longer than 256 tokens and were cut" in caplog.text


def test_the_folder_is_a_plain_model_with_a_card(exported, trained):
    folder, length = trained
    card = ModelCard.load(exported / "README.md")
    unit = "character" if folder.name == "marian" else "token"
    assert f"texts of **{length} {unit}s**" in card.text and card.data.pipeline_tag == "summarization"
    assert (exported / FOLDER / "model.bin").is_file()
    beside = [path.name for path in exported.parent.glob("*/*") if path.parent != exported]
    assert beside == [f"{exported.name}.lock"]  # nothing half made


def test_int8_weights_are_smaller_and_write_of_the_same_length(exported, trained, tmp_path, ctranslate2):
    if "int8" not in ctranslate2.get_supported_compute_types("cpu"):
        pytest.skip("this CPU has no int8")
    folder, length = trained
    output = tmp_path / "int8"
    export.main([str(folder), "--length", str(length), "--output_dir", str(output), *"--quantization int8".split()])
    sizes = [(path / FOLDER / "model.bin").stat().st_size for path in (output, exported)]
    assert sizes[0] < sizes[1]  # positions, most of a small model, stay as they are
    write = FixedLengthTranslator(output, threads=1)
    assert write.translator.compute_type.startswith("int8")
    assert statistics.median(abs(out["length"] - length) for out in write(TEXTS)) < 4


@pytest.mark.parametrize("family", ["bart", "marian", "mbart", "pegasus", "m2m_100"])
def test_every_family_and_tokenizer_writes_as_in_transformers(family, tmp_path, ctranslate2):
    tokenizer = tokenizer_of(family)
    model = controlled_model(family, absolute_positions=True)
    with torch.no_grad():  # CTranslate2's converter takes Marian's start for a zero embedding; a tied one learns
        model.model.decoder.embed_tokens.weight[tokenizer.pad_token_id].normal_(std=2.0)
    forced = {"bart": "<s>", "m2m_100": "__en__"}.get(family)
    if forced is not None:
        model.generation_config.forced_bos_token_id = tokenizer.convert_tokens_to_ids(forced)
    frozen = freeze_length(model, 12, tokenizer=tokenizer)
    frozen.generation_config.max_new_tokens = 30
    save_in(tmp_path, frozen, tokenizer)
    export_ctranslate2(frozen, tokenizer, tmp_path / FOLDER)
    texts = ["small text editor", "it's a dog", "network server with logs"]
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    ids = frozen.generate(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
    expected = tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    outputs = FixedLengthTranslator(tmp_path, threads=1)(texts)
    assert [output["generated_text"] for output in outputs] == expected


def test_the_librarys_own_converter_reads_a_frozen_bart(tmp_path, ctranslate2):
    """With no code of this package: the configuration holds what transformers 5 no longer says."""
    from ctranslate2.converters import TransformersConverter

    tokenizer = tokenizer_of("bart")
    frozen = freeze_length(controlled_model("bart"), 12)
    TransformersConverter(str(save_in(tmp_path / "frozen", frozen, tokenizer))).convert(str(tmp_path / "out"))
    translator = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    ids = tokenizer("small text editor", return_tensors="pt")["input_ids"]
    expected = frozen.generate(ids, max_new_tokens=15, bad_words_ids=None, forced_eos_token_id=None)[0, 1:].tolist()
    options = {"beam_size": 1, "max_decoding_length": 15, "min_decoding_length": 0, "return_end_token": True}
    result = translator.translate_batch([tokenizer.convert_ids_to_tokens(ids[0].tolist())], **options)
    assert tokenizer.convert_tokens_to_ids(result[0].hypotheses[0]) == expected


def test_a_killed_export_leaves_nothing_in_the_way(tmp_path, monkeypatch):
    save_in(tmp_path / "model", controlled_model("marian"), tokenizer_of("marian"))
    monkeypatch.setattr(export, "import_ctranslate2", lambda: None)
    monkeypatch.setattr(export, "_export_frozen", lambda *args: (args[3].mkdir(), (args[3] / "new").touch()))
    half = tmp_path / "_run" / "out.part" / "model.safetensors"  # of a command that was killed
    half.parent.mkdir(parents=True)
    half.write_text("half")
    export.export(tmp_path / "model", 24, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"] and not half.parent.exists()


def test_what_cannot_be_exported_is_told_and_leaves_no_folder(trained, exported, tmp_path, monkeypatch):
    plain = build_model("marian", length_encoding="none", absolute_positions=True)
    save_in(tmp_path / "plain", plain, tokenizer_of("marian"))
    for arguments, message in (
        ((trained[0], 24, exported), "exists; remove it or name another folder"),
        ((trained[0], 24, tmp_path / "out", "int3"), "int3"),
        ((trained[0], 600, tmp_path / "out"), "length=600 .* ask for"),
        ((tmp_path / "plain", 20, tmp_path / "out"), "length_encoding='none', which has no length to freeze"),
    ):
        with pytest.raises(ValueError, match=message):
            export.export(*arguments)
    frozen = freeze_length(controlled_model("bart", decoder_attention_heads=4), 5)
    with pytest.raises(ValueError, match=r"as many heads in the encoder as in the decoder, got \(2, 4\)"):
        export_ctranslate2(frozen, tokenizer_of("bart"), tmp_path / "out")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("[!p]*/*")) == ["_run/out.lock"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_run", "plain"]
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    for call in (lambda: export.export("runs/ldpe", 24, tmp_path / "out"), lambda: FixedLengthTranslator(tmp_path)):
        with pytest.raises(ImportError, match='needs CTranslate2: pip install "hf_lenctrl.fast."'):
            call()
