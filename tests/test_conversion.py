"""Plain checkpoints given length control: the same model at first, one that obeys after a little training."""

import copy

import peft
import pytest
import torch
from conftest import MARIAN, SHAPE, save_in
from family_models import FAMILIES, SOURCE, controlled_model, stock_model, tokenizer_of
from huggingface_hub.errors import StrictDataclassError
from test_causal import build_plain, make_tokenizer
from transformers import AutoModelForSeq2SeqLM, MarianConfig, MarianMTModel

import hf_lenctrl
from hf_lenctrl import add_length_control, remove_length_control
from hf_lenctrl.length_tokens import LengthTokens


INPUTS = {
    "input_ids": SOURCE,
    "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]),
    "decoder_input_ids": torch.tensor([[2, 30, 31, 32, 33], [2, 40, 41, 42, 43], [2, 50, 51, 52, 53]]),
}


@pytest.fixture(scope="module", params=FAMILIES)
def plain(request):
    return stock_model(request.param)


def family_of(model) -> str:
    return model.config.model_type.removeprefix("lenctrl_")


def convert(model, **options):
    return add_length_control(model, tokenizer=tokenizer_of(family_of(model)), **options)


@torch.no_grad()
def assert_same_logits(converted, plain):
    logits = plain(**INPUTS).logits
    for length in (1, 40, [3, 9, 400]):
        assert torch.equal(converted(**INPUTS, length=length).logits, logits)


@pytest.mark.parametrize(("encoding", "unit"), [("ldpe", "character"), ("lrpe", "token"), ("pre", "word")])
def test_logits_equal_the_plain_models_bit_for_bit_whatever_the_length(plain, encoding, unit):
    converted = convert(plain, length_encoding=encoding, length_unit=unit)
    assert type(converted) is hf_lenctrl.modeling_lenctrl.FAMILIES[family_of(plain)]
    config = converted.config
    assert (config.length_encoding, config.length_unit, config.length_projection) == (encoding, unit, True)
    assert_same_logits(converted, plain)


def test_a_folder_needs_nothing_but_its_path(plain, tmp_path):
    save_in(tmp_path, plain, tokenizer_of(family_of(plain)))
    converted = add_length_control(str(tmp_path), length_unit="character")
    assert_same_logits(converted, plain)
    assert torch.equal(converted.unit_table.weights, convert(plain, length_unit="character").unit_table.weights)


def test_the_plain_model_is_left_as_it_is():
    plain = stock_model("bart").train()
    weights, config = copy.deepcopy(plain.state_dict()), plain.config.to_dict()
    converted = convert(plain)
    with torch.no_grad():
        for parameter in converted.parameters():
            parameter.add_(1)
    converted.generation_config.num_beams = 7
    assert plain.training and not converted.training
    assert all(torch.equal(value, weights[name]) for name, value in plain.state_dict().items())
    assert plain.config.to_dict() == config and plain.generation_config.num_beams != 7


def test_what_the_plain_model_has_is_carried_over(family):
    own = {"dropout": 0.3, "activation_function": "swish", "tie_word_embeddings": family == "bart"}
    plain = stock_model(family, **own).bfloat16()
    fields = {"num_beams": 3, "no_repeat_ngram_size": 2, "length_penalty": 2.0}
    plain.generation_config.update(**fields)
    plain.set_attn_implementation("eager")
    converted = convert(plain, length=30, length_constraint="max")
    assert {parameter.dtype for parameter in converted.parameters()} == {torch.bfloat16}
    config = converted.config
    assert (config.dropout, config.activation_function, config.length_constraint) == (0.3, "swish", "max")
    assert (config.length, config.absolute_positions, config.model_type) == (30, True, f"lenctrl_{family}")
    assert config._attn_implementation == "eager"
    assert {name: getattr(converted.generation_config, name) for name in fields} == fields
    assert (converted.lm_head.weight is converted.model.decoder.embed_tokens.weight) == (family == "bart")
    assert_same_logits(converted, plain)
    limits = {"max_length": 12, "min_length": 5}
    output = converted.generate(SOURCE, length=[1, 9, 40], length_constraint=None, **limits)
    assert output.tolist() == plain.generate(SOURCE, **limits).tolist()


def test_separate_vocabularies_are_carried_over(character_tokenizer):
    torch.manual_seed(0)
    sizes = {"vocab_size": len(character_tokenizer), "decoder_vocab_size": len(character_tokenizer.target_encoder)}
    own = {**SHAPE, **MARIAN, **sizes, "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
    plain = MarianMTModel(MarianConfig(**own)).eval()
    converted = add_length_control(plain, tokenizer=character_tokenizer, length_unit="character")
    inputs = {"input_ids": torch.tensor([[5, 6, 7]]), "decoder_input_ids": torch.tensor([[2, 5, 6, 7]])}
    with torch.no_grad():
        assert torch.equal(converted(**inputs, length=9).logits, plain(**inputs).logits)
    report = converted.conversion_report
    assert (report.new, report.dropped) == (("model.decoder.length_projection.weight",), ())


def optional(plain, tokenizer):
    """The plain model with a trained length layer, and a length that is optional."""
    model = add_length_control(plain, tokenizer=tokenizer, length_unit="character")
    torch.nn.init.normal_(model._counting_part().length_projection.weight)
    model.make_length_optional()
    model.generation_config.num_beams = 7
    return model


@torch.no_grad()
def test_the_plain_model_comes_out_as_it_went_in(plain, tmp_path):
    save_in(tmp_path, optional(plain, tokenizer_of(family_of(plain))), tokenizer_of(family_of(plain)))
    found = remove_length_control(tmp_path)
    unsaved = {"architectures": None, "dtype": None}  # a model that is saved has them
    assert type(found) is type(plain)
    assert {**found.config.to_dict(), **unsaved} == {**plain.config.to_dict(), **unsaved}
    assert torch.equal(found(**INPUTS).logits, plain(**INPUTS).logits)
    assert found.generation_config.num_beams == 7 and not found.training
    found.save_pretrained(tmp_path / "plain")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "plain")
    assert torch.equal(loaded(**INPUTS).logits, plain(**INPUTS).logits)


@torch.no_grad()
def test_weights_that_stay_in_float32_beside_float16_keep_their_bits(tmp_path):
    save_in(tmp_path, stock_model("t5"), tokenizer_of("t5"))
    plain = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float16)
    dtypes = {name: parameter.dtype for name, parameter in plain.named_parameters()}
    assert {*dtypes.values()} == {torch.float16, torch.float32}  # T5 keeps its output layers
    model = optional(plain, tokenizer_of("t5"))
    for found in (model, remove_length_control(model)):
        assert {name: p.dtype for name, p in found.named_parameters() if name in dtypes} == dtypes
        assert torch.equal(found(**INPUTS).logits, plain(**INPUTS).logits)


@torch.no_grad()
def test_the_model_in_a_wrapper_comes_out_as_a_copy():
    plain, ids = build_plain("llama").bfloat16(), torch.tensor([[5, 6, 7]])
    model, expected = optional(plain, make_tokenizer()), plain(ids).logits
    found = remove_length_control(model)
    assert type(found) is type(plain) and found.generation_config.num_beams == 7
    for parameter in model.parameters():
        parameter.add_(1)
    assert torch.equal(found(ids).logits, expected)


def test_a_model_that_has_no_plain_model_within_is_told():
    fairseq = optional(stock_model("marian"), tokenizer_of("marian"))
    fairseq.config.sinusoids = "fairseq"
    for model in (stock_model("bart"), convert(stock_model("bart")), fairseq):
        with pytest.raises(ValueError, match=f"this {type(model).__name__} has no plain model within"):
            remove_length_control(model)


def test_sinusoids_that_would_replace_a_checkpoints_positions_are_refused():
    with pytest.raises(TypeError, match="add_length_control has no option sinusoids"):
        convert(stock_model("marian"), sinusoids="fairseq")


def test_what_cannot_be_converted_is_told(tmp_path):
    model = controlled_model("bart")
    model.save_pretrained(tmp_path)
    for source in (model, tmp_path):
        with pytest.raises(ValueError, match="LenCtrlBartForConditionalGeneration has length control already"):
            add_length_control(source, tokenizer=tokenizer_of("bart"))
    with pytest.raises(ValueError, match="BartModel does not generate; pass a plain language model"):
        add_length_control(stock_model("bart").model, tokenizer=tokenizer_of("bart"))
    for call in (add_length_control, remove_length_control):
        with pytest.raises(TypeError, match="must be a PreTrainedModel, a folder or a Hub name, got Linear$"):
            call(torch.nn.Linear(1, 1))
        with pytest.raises(TypeError, match=r"got PeftModel; pass model.merge_and_unload\(\)$"):
            call(peft.PeftModel(stock_model("bart"), peft.LoraConfig(target_modules=["q_proj"])))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length_encoding": "none"}, "length_encoding='none' cannot be added; choose one of"),
        ({"length_tokens": LengthTokens("bins", (4,))}, "the tokenizer lacks the length tokens <len_0>, <len_1>;"),
        ({"length_tokens": {"kind": "bins", "thresholds": [4]}}, "the tokenizer lacks the length tokens <len_0>"),
        ({"tokenizer": None}, "needs the tokenizer of the BartForConditionalGeneration"),
        ({"tokenizer": "m2m_100"}, "the tokenizer's target vocabulary has .* entries, the decoder's embedding"),
    ],
)
def test_wrong_options_are_told(options, message):
    name = options.get("tokenizer", "bart")
    tokenizer = tokenizer_of(name) if name else None
    # of the configuration's own checks huggingface_hub makes a StrictDataclassError
    with pytest.raises((ValueError, StrictDataclassError), match=message):
        # up to 511 entries more than the tokenizer's may be padding
        add_length_control(stock_model("bart", vocab_size=1200), **{**options, "tokenizer": tokenizer})
