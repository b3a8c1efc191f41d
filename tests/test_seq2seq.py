"""Any encoder-decoder with a length: every architecture against its own stock class."""

import copy
import re

import peft
import pytest
import torch
import transformers
from conftest import FAMILIES, SHAPE, T5_NAMES, given_to, make_tokenizers, save_in
from family_models import controlled_model, stock_model
from family_models import tokenizer_of as family_tokenizer
from huggingface_hub.errors import StrictDataclassClassValidationError
from recipe_runs import ROOT, isolated
from torch.nn.functional import cross_entropy
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    EncoderDecoderModel,
    FSMTConfig,
    FSMTForConditionalGeneration,
    ProphetNetConfig,
    ProphetNetForConditionalGeneration,
)

import hf_lenctrl
from hf_lenctrl.engines.onnx_export import export_onnx
from hf_lenctrl.training.packing import check_packing


BART = {**SHAPE, "init_std": 0.3}
T5 = {new: SHAPE[old] for old, new in T5_NAMES.items()} | {"d_model": 32, "d_kv": 16, "initializer_factor": 0.5}
GEMMA = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
GEMMA |= {"num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 128, "sliding_window": 16}
GEMMA |= {"initializer_range": 0.3}
SIGLIP = {"model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
SIGLIP |= {"num_attention_heads": 2, "image_size": 8, "patch_size": 4}
BERT = {"model_type": "bert", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
BERT |= {"num_attention_heads": 2, "initializer_range": 0.3}
SPARSE = {"num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2, "router_dtype": "float32"}
LONG = {"max_encoder_position_embeddings": 128, "max_decoder_position_embeddings": 64, "attention_window": 8}
# the kind of tokenizer and the configuration of each architecture, small; the table of docs/families.md has these rows
ARCHITECTURES: dict[str, tuple[str, dict]] = {
    "led": ("bart", BART | LONG),
    "longt5": ("t5", T5 | {"local_radius": 8}),
    "pegasus_x": ("pegasus", BART | {"block_size": 16, "num_global_tokens": 4}),
    "bigbird_pegasus": ("pegasus", BART | {"attention_type": "original_full"}),
    "nllb-moe": ("nllb", BART | SPARSE),
    "switch_transformers": ("t5", T5 | SPARSE),
    "t5gemma": ("byte fallback", {"encoder": GEMMA, "decoder": GEMMA}),
    "t5gemma2": (
        "byte fallback",
        {"encoder": {"text_config": GEMMA, "vision_config": SIGLIP, "mm_tokens_per_image": 4}, "decoder": GEMMA},
    ),
    "mvp": ("bart", BART),
    "plbart": ("bart", BART),
    "blenderbot": ("bart", BART),
    "blenderbot-small": ("bart", BART),
    "encoder-decoder": (
        "bert",
        {"encoder": BERT, "decoder": BERT | {"is_decoder": True, "add_cross_attention": True}},
    ),
}
SOURCES = ["small text editor", "image reading and writing library for scripts"]
TARGETS = ["text editor", "developer documentation"]
LENGTHS = [7, 23]


def sized(fields: dict, special: dict) -> dict:
    """The fields of a configuration with the tokenizer's, also in the configurations inside of texts."""
    inner = {name: sized(value, special) for name, value in fields.items() if isinstance(value, dict)}
    return {**fields, **({} if "image_size" in fields else special), **inner}


def tokenizer_of(architecture: str):
    return make_tokenizers()[ARCHITECTURES[architecture][0]]


def build_plain(architecture: str):
    """The stock class, with random weights."""
    torch.manual_seed(1)
    tokenizer = tokenizer_of(architecture)
    start = tokenizer.cls_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    end = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    start = tokenizer.pad_token_id if start is None else start  # T5's
    special = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": start, "eos_token_id": end}
    special |= {"vocab_size": len(tokenizer), "decoder_start_token_id": start}
    plain = AutoModelForSeq2SeqLM.from_config(
        AutoConfig.for_model(architecture, **sized(ARCHITECTURES[architecture][1], special))
    )
    plain.generation_config.update(**{name: special[name] for name in special if name != "vocab_size"})
    return plain.eval()


def build(architecture: str, *, zero: bool = False):
    """The plain model and the controlled one, as `add_length_control` makes it or with a length that is heard."""
    plain = build_plain(architecture)
    model = hf_lenctrl.add_length_control(plain, tokenizer=tokenizer_of(architecture), length_unit="character")
    if not zero:
        torch.manual_seed(2)
        torch.nn.init.normal_(model.length_projection.weight, std=0.3)
    return plain, model


def encode(architecture: str, texts) -> dict:
    batch = tokenizer_of(architecture)(texts, return_tensors="pt", padding=True)
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def labels_of(architecture: str) -> torch.Tensor:
    batch = encode(architecture, TARGETS)
    return batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)


@pytest.fixture(params=ARCHITECTURES)
def architecture(request) -> str:
    return request.param


def test_before_training_it_is_the_stock_model_bit_for_bit_and_it_is_trained_and_saved(architecture, tmp_path):
    plain, model = build(architecture, zero=True)
    assert type(model) is hf_lenctrl.LenCtrlForSeq2SeqLM
    source, labels = encode(architecture, SOURCES), labels_of(architecture)
    with torch.no_grad():
        expected = plain(**source, labels=labels)
        for given in ({"length": 5}, {"length": LENGTHS}, {}):  # without one it is counted from the labels
            found = model(**source, labels=labels, **given)
            assert torch.equal(found.loss, expected.loss)
            real = labels != -100  # some architectures tell padding from other ids
            assert torch.equal(found.logits[real], expected.logits[real])
    options = {"num_beams": 3, "max_new_tokens": 8, "do_sample": False}
    assert torch.equal(model.generate(**source, **options, length=9), plain.generate(**source, **options))
    assert model.conversion_report.new == ("length_projection.weight",)
    assert len(model.conversion_report.kept) == len(list(plain.parameters()))
    assert model.count_labels(labels).tolist() == [11, 23]
    model.train()(**source, labels=labels).loss.backward()
    assert float(model.length_projection.weight.grad.abs().sum()) > 0
    torch.nn.init.normal_(model.length_projection.weight, std=0.3)
    model.eval().save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, length=9)
    assert type(again) is hf_lenctrl.LenCtrlForSeq2SeqLM and again.config.length == 9
    assert again.language_model.config._attn_implementation == model.language_model.config._attn_implementation
    given = {**source, "decoder_input_ids": labels.clamp(min=0)}
    with torch.no_grad():
        logits = model(**given, length=9).logits
        assert torch.equal(again(**given).logits, logits)
        assert not torch.allclose(again(**given, length=3).logits, logits, atol=1e-2)


# mvp, plbart and blenderbot-small have BART's decoder, bigbird_pegasus that of pegasus_x
DECODERS = [name for name in ARCHITECTURES if name not in ("mvp", "plbart", "blenderbot-small", "bigbird_pegasus")]


@pytest.mark.parametrize("architecture", DECODERS)
def test_the_cache_changes_nothing_and_every_length_is_kept(architecture):
    _, model = build(architecture)
    source = encode(architecture, SOURCES)
    options = {"num_beams": 3, "do_sample": False, "max_new_tokens": 24}
    free = model.generate(**source, **options, length=LENGTHS)
    assert torch.equal(free, model.generate(**source, **options, length=LENGTHS, use_cache=False))
    assert model.unit_table.count(free).tolist() != LENGTHS
    exact = {"num_beams": 3, "do_sample": False, "length_constraint": "exact"}
    out = model.generate(**source, **exact, length=LENGTHS)
    texts = tokenizer_of(architecture).batch_decode(out, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert [len(text) for text in texts] == LENGTHS
    alone = model.generate(**encode(architecture, SOURCES[:1]), **exact, length=LENGTHS[0])  # a padded row
    assert out[0, : alone.shape[1]].tolist() == alone[0].tolist()


@pytest.mark.parametrize("architecture", DECODERS)
def test_training_reads_what_generation_read(architecture):
    _, model = build(architecture)
    source = encode(architecture, SOURCES[1:])
    options = {"length": 15, "length_constraint": "exact", "do_sample": False}
    out = model.generate(**source, **options, output_logits=True, return_dict_in_generate=True)
    with torch.no_grad():
        trained = model(**source, decoder_input_ids=out.sequences[:, :-1], labels=out.sequences[:, 1:])
        other = model(**source, labels=out.sequences[:, 1:], length=40)
    steps = torch.stack(out.logits, dim=1)  # (1, T, V)
    torch.testing.assert_close(trained.logits, steps, atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(trained.loss, cross_entropy(steps[0], out.sequences[0, 1:]), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(other.logits, trained.logits, atol=1e-2)


@torch.no_grad()
def test_it_compiles():
    _, model = build("mvp")
    source, labels = encode("mvp", SOURCES), labels_of("mvp")
    expected = model(**source, labels=labels).loss
    torch.compiler.reset()  # what other tests compiled counts as well
    found = torch.compile(model, backend="eager")(**source, labels=labels).loss
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("architecture", ["led", "t5gemma", "encoder-decoder"])
def test_an_adapter_trains_the_length_and_keeps_every_length(architecture, tmp_path):
    _, model = build(architecture)
    source = encode(architecture, SOURCES)
    exact = {"do_sample": False, "length": LENGTHS, "length_constraint": "exact"}
    expected = model.generate(**source, **exact)
    tuned = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear"))
    trained = [name for name, value in tuned.named_parameters() if value.requires_grad]
    assert any("length_projection" in name for name in trained)
    assert torch.equal(tuned.generate(**source, **exact), expected)  # an adapter begins as nothing
    torch.manual_seed(3)
    for name, value in tuned.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.3)
    out = tuned.generate(**source, **exact)
    assert not torch.equal(out, expected) and model.unit_table.count(out).tolist() == LENGTHS
    tuned.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(build(architecture)[1], tmp_path)
    assert torch.equal(again.generate(**source, **exact), out)


TOKENS = {"length_encoding": "none", "length_tokens": hf_lenctrl.LengthTokens("ratio", (0.9, 1.1))}


@pytest.mark.parametrize("way", [{"length_encoding": "pre"}, {"length_encoding": "learned"}, TOKENS])
@torch.no_grad()
def test_every_way_to_give_a_length_starts_as_the_stock_model(way):
    plain, labels, source = build_plain("led"), labels_of("led"), encode("led", SOURCES)
    tokenizer = copy.deepcopy(tokenizer_of("led"))
    if "length_tokens" in way:
        way["length_tokens"].add_to(tokenizer)
        plain.resize_token_embeddings(len(tokenizer))
    model = hf_lenctrl.add_length_control(plain, tokenizer=tokenizer, **way)
    assert torch.equal(model(**source, labels=labels).logits, plain(**source, labels=labels).logits)


def test_the_saved_configuration_has_no_path_of_a_part(tmp_path):
    plain = build_plain("encoder-decoder")
    plain.encoder.save_pretrained(tmp_path / "mine")
    plain.decoder.save_pretrained(tmp_path / "mine too")
    pair = EncoderDecoderModel.from_encoder_decoder_pretrained(tmp_path / "mine", tmp_path / "mine too")
    pair.config.pad_token_id, pair.config.decoder_start_token_id = 0, 1
    tokenizer = tokenizer_of("encoder-decoder")
    hf_lenctrl.add_length_control(pair, tokenizer=tokenizer).save_pretrained(tmp_path / "made")
    assert str(tmp_path) not in (tmp_path / "made" / "config.json").read_text()


def test_arguments_of_the_inner_model_reach_it_and_the_length_does_not_reach_its_encoder():
    plain, model = build("led", zero=True)
    source = encode("led", SOURCES)
    everywhere = torch.ones_like(source["input_ids"])
    expected = plain.generate(**source, global_attention_mask=everywhere, max_new_tokens=9)
    seen = given_to(model.get_encoder(), "length")
    out = model.generate(**source, global_attention_mask=everywhere, max_new_tokens=9, length=5)
    assert torch.equal(out, expected) and not torch.equal(expected, plain.generate(**source, max_new_tokens=9))
    assert seen == []
    model.make_length_optional()
    for text, length in ((0, [5, 7, 5]), (1, 5)):  # the encoder runs before the search
        one = {name: x[text : text + 1] for name, x in (*source.items(), ("global_attention_mask", everywhere))}
        expected = plain.generate(**one, max_new_tokens=9)
        for scale in (None, 2.0):
            out = model.generate(**one, max_new_tokens=9, length=length, guidance_scale=scale)
            assert torch.equal(out, expected.expand(len(out), -1))


def test_the_decoders_positions_limit_a_length():
    _, model = build("led")  # 128 positions in the encoder, 64 in the decoder
    with pytest.raises(ValueError, match="length=4000 needs at least .* the model has 64"):
        model.generate(**encode("led", SOURCES), length=4000)


def test_the_pipeline_chooses_among_candidates_of_it():
    _, model = build("t5gemma")
    model.make_length_optional()
    write = hf_lenctrl.pipeline(model, tokenizer_of("t5gemma"), device="cpu", length_constraint="exact")
    lengths = list(range(5, 15))  # so many share a search by length
    for source, asked in ((SOURCES, LENGTHS), (SOURCES[0], lengths)):
        found = write(source, length=asked)
        assert [len(out["generated_text"]) for out in found] == [out["length"] for out in found] == asked
        assert all(out["score"] < 0 for out in found)


def test_a_draft_model_changes_nothing():
    plain, model = build("pegasus_x")
    source = encode("pegasus_x", SOURCES[:1])
    other = controlled_model("pegasus", length_unit="character", length_constraint="exact")
    options = {"length": 12, "length_constraint": "exact", "do_sample": False}
    for main, draft in ((model, plain), (model, copy.deepcopy(model)), (model, other), (other, model)):
        read = given_to(draft, "length")
        expected = main.generate(**source, **options)
        assert torch.equal(main.generate(**source, **options, assistant_model=draft), expected)
        assert {int(length) for length in read} == (set() if draft is plain else {12})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model, ids: model(ids), "pass decoder_input_ids or labels"),
        (lambda model, ids: model(ids, decoder_input_ids=ids), "no length was given"),
        (lambda model, ids: model.train()(ids, decoder_inputs_embeds=model.embed_tokens(ids)), "progress cannot be"),
        (
            lambda model, ids: check_packing((8, 8), model, None),
            "does not work for a model that wraps another, got led",
        ),
        (lambda model, ids: export_onnx(model, None, "none"), "takes no model that wraps another, got led"),
        (lambda model, ids: hf_lenctrl.LenCtrlSeq2SeqLMConfig(length_head=True), "changes the parts of a wrapped"),
        (lambda model, ids: hf_lenctrl.LenCtrlSeq2SeqLMConfig(absolute_positions=False), "positions of a wrapped"),
    ],
)
def test_what_cannot_be_is_refused(call, words):
    _, model = build("led")
    with pytest.raises((ValueError, StrictDataclassClassValidationError), match=words):
        call(model, torch.tensor([[5, 6]]))


def test_an_architecture_that_takes_no_embeddings_is_refused():
    sizes = {"src_vocab_size": 60, "tgt_vocab_size": 60, "langs": ["en", "de"]}
    plain = FSMTForConditionalGeneration(FSMTConfig(**SHAPE, **sizes))
    with pytest.raises(ValueError, match="decoder of FSMTForConditionalGeneration is not a model.* use another"):
        hf_lenctrl.add_length_control(plain, tokenizer=make_tokenizers()["bart"])
    blind = copy.deepcopy(build_plain("mvp"))  # which reads its ids beside their embeddings
    forward = blind.forward
    blind.forward = lambda decoder_input_ids=None, **kwargs: forward(
        decoder_input_ids=torch.full((1, 4), 9) if decoder_input_ids is None else decoder_input_ids,
        **{name: value for name, value in kwargs.items() if name != "decoder_inputs_embeds"},
    )
    with pytest.raises(ValueError, match="reads the ids as well as their embeddings, so it takes no length"):
        hf_lenctrl.add_length_control(blind, tokenizer=make_tokenizers()["bart"])


def test_prophetnet_is_refused_while_a_longer_text_changes_what_it_reads():
    sizes = {"hidden_size": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 60, "init_std": 0.3}
    sizes |= {f"num_{side}_{part}": 2 for side in ("encoder", "decoder") for part in ("layers", "attention_heads")}
    plain = ProphetNetForConditionalGeneration(ProphetNetConfig(**sizes)).eval()
    ids = torch.tensor([[5, 9, 10, 11, 12, 13]])
    with torch.no_grad():
        whole, part = (plain(input_ids=ids, decoder_input_ids=ids[:, :n], use_cache=False).logits for n in (6, 4))
    assert not torch.allclose(whole[:, :4], part, atol=1e-2)  # if they are equal one day, it need not be refused
    with pytest.raises(ValueError, match="gives a token other logits in a longer text, so it takes no length"):
        hf_lenctrl.add_length_control(plain, tokenizer=make_tokenizers()["bert"])


def test_the_table_of_the_families_has_every_architecture_that_is_tested():
    page = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
    _, own, wrapped, _ = re.search(r"^\| architectures (\|.*\|.*\|)$", page, flags=re.M)[1].split("|")
    assert re.findall(r"`([\w-]+)`", own) == [*FAMILIES]
    assert re.findall(r"`([\w-]+)`", wrapped) == [*ARCHITECTURES]


@pytest.mark.parametrize("family", ["bart", "marian", "m2m_100", "t5"])
def test_pipelines_that_transformers_5_removed_are_here(family):
    plain, tokenizer = stock_model(family), family_tokenizer(family)
    language = {"forced_bos_token_id": tokenizer.get_lang_id("fr")} if family == "m2m_100" else {}
    options = {"num_beams": 3, "max_new_tokens": 12, **language}
    found = hf_lenctrl.pipeline(plain, tokenizer, device="cpu")(TARGETS, **options)
    ids = plain.generate(**tokenizer(TARGETS, return_tensors="pt", padding=True), **options)
    expected = tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert [out["generated_text"] for out in found] == expected
    for task in ("summarization", "translation", "text2text-generation"):
        with pytest.raises(KeyError, match=f"The task {task} has been removed from transformers"):
            transformers.pipeline(task, model=plain, tokenizer=tokenizer)


REMOTE = """
import json, sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
folder, text = json.loads(sys.argv[1])
model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
inputs = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)(text, return_tensors="pt")
ids = model.generate(inputs["input_ids"], length=[9, 20], length_constraint="exact")
print(json.dumps([type(model).__module__.split(".")[0], model.unit_table.count(ids).tolist()]))
"""


@pytest.mark.slow
def test_it_runs_with_its_own_code_where_the_package_is_not_installed(tmp_path):
    folder = save_in(tmp_path / "model", build("t5gemma2")[1], tokenizer_of("t5gemma2"))
    answer = isolated(REMOTE, str(folder), SOURCES[0], folder=tmp_path)
    assert answer == ["transformers_modules", [9, 20]]
