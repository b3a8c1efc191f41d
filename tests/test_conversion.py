"""Plain checkpoints given length control: the same model at first, one that obeys after a little training."""

import copy
import math

import pytest
import torch
import transformers
from conftest import SHAPE
from family_models import FAMILIES, SOURCE, controlled_model, stock_model, tokenizer_of
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForSeq2SeqLM, LEDConfig, LEDForConditionalGeneration, MarianConfig, MarianMTModel

import hf_lenctrl
from hf_lenctrl import DataCollatorForLengthControl, add_length_control, train_marian_tokenizer


ENCODINGS = ["ldpe", "lrpe", "pre"]
PROJECTION = "model.decoder.length_projection.weight"


def projection_of(model) -> str:
    return PROJECTION if hasattr(model, "model") else PROJECTION.removeprefix("model.")


CLASSES = hf_lenctrl.modeling_lenctrl.FAMILIES
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


# What it starts as


@pytest.mark.parametrize("unit", ["token", "character", "word", "byte"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_logits_equal_the_plain_models_bit_for_bit_whatever_the_length(plain, encoding, unit):
    converted = convert(plain, length_encoding=encoding, length_unit=unit)
    assert type(converted) is CLASSES[family_of(plain)]
    config = converted.config
    assert (config.length_encoding, config.length_unit, config.length_projection) == (encoding, unit, True)
    assert_same_logits(converted, plain)


def test_steps_with_a_cache_give_the_plain_models_logits(plain):
    converted = convert(plain, length_unit="character")
    encoded = plain.get_encoder()(SOURCE)
    past = theirs = None
    for t in range(4):
        step = {"encoder_outputs": encoded, "decoder_input_ids": INPUTS["decoder_input_ids"][:, t : t + 1]}
        mine = converted(**step, past_key_values=past, length=9, progress=torch.full((3, 1), t))
        other = plain(**step, past_key_values=theirs)
        assert torch.equal(mine.logits, other.logits)
        past, theirs = mine.past_key_values, other.past_key_values


# From a folder and from memory


def test_a_folder_needs_nothing_but_its_path(plain, tmp_path):
    plain.save_pretrained(tmp_path)
    tokenizer_of(family_of(plain)).save_pretrained(tmp_path)
    for path in (tmp_path, str(tmp_path)):
        converted = add_length_control(path, length_unit="character")
        assert_same_logits(converted, plain)
        assert torch.equal(converted.unit_table.weights, convert(plain, length_unit="character").unit_table.weights)


def test_a_saved_model_loads_through_the_auto_class_with_the_same_logits(plain, tmp_path):
    converted = convert(plain, length_unit="character", length=9, length_constraint="exact")
    with torch.no_grad():
        converted.get_parameter(projection_of(converted)).normal_(std=0.1)
    converted.save_pretrained(tmp_path)
    loaded, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is type(converted)
    assert not any(info.values())
    with torch.no_grad():
        for length in (1, [3, 9, 400]):
            assert torch.equal(loaded(**INPUTS, length=length).logits, converted(**INPUTS, length=length).logits)
    assert loaded.unit_table.count(loaded.generate(SOURCE)).tolist() == [9, 9, 9]
    assert type(loaded.generation_config) is transformers.GenerationConfig


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
    assert plain.config.to_dict() == config
    assert plain.generation_config.num_beams != 7


@pytest.mark.parametrize("from_folder", [False, True])
@pytest.mark.parametrize("family", ["bart", "marian"])
def test_what_the_plain_model_has_is_carried_over(family, tmp_path, from_folder):
    plain = stock_model(
        family, dropout=0.3, activation_function="swish", tie_word_embeddings=family == "bart"
    ).bfloat16()
    fields = {"num_beams": 3, "no_repeat_ngram_size": 2, "length_penalty": 2.0}
    plain.generation_config.update(**fields)
    source: object = plain
    if from_folder:
        plain.save_pretrained(tmp_path)
        source = tmp_path
    else:
        plain.set_attn_implementation("eager")
    converted = add_length_control(source, tokenizer=tokenizer_of(family), length=30, length_constraint="max")
    assert {parameter.dtype for parameter in converted.parameters()} == {torch.bfloat16}
    config = converted.config
    assert (config.dropout, config.activation_function, config.length_constraint) == (0.3, "swish", "max")
    assert (config.length, config.absolute_positions, config.model_type) == (30, True, f"lenctrl_{family}")
    assert config._attn_implementation == plain.config._attn_implementation
    assert {name: getattr(converted.generation_config, name) for name in fields} == fields
    assert (converted.lm_head.weight is converted.model.decoder.embed_tokens.weight) == (family == "bart")
    assert_same_logits(converted, plain)
    for use_cache in (True, False):
        limits = {"max_length": 12, "min_length": 5, "use_cache": use_cache}
        output = converted.generate(SOURCE, length=[1, 9, 40], length_constraint=None, **limits)
        assert output.tolist() == plain.generate(SOURCE, **limits).tolist()


def test_separate_vocabularies_are_carried_over(character_tokenizer):
    torch.manual_seed(0)
    plain = MarianMTModel(
        MarianConfig(
            **{**SHAPE, "vocab_size": len(character_tokenizer)},
            decoder_vocab_size=len(character_tokenizer.target_encoder),
            share_encoder_decoder_embeddings=False,
            tie_word_embeddings=False,
            pad_token_id=2,
            eos_token_id=0,
            decoder_start_token_id=2,
        )
    ).eval()
    converted = add_length_control(plain, tokenizer=character_tokenizer, length_unit="character")
    inputs = {"input_ids": torch.tensor([[5, 6, 7]]), "decoder_input_ids": torch.tensor([[2, 5, 6, 7]])}
    with torch.no_grad():
        assert torch.equal(converted(**inputs, length=9).logits, plain(**inputs).logits)
    assert converted.conversion_report.dropped == ()
    assert converted.conversion_report.new == (PROJECTION,)


def test_the_report_names_every_parameter_kept_new_and_dropped(plain):
    report = convert(plain).conversion_report
    names = [name for name, _ in plain.named_parameters()]
    assert sorted(report.kept) == sorted(names)
    assert report.new == (projection_of(plain),)
    assert report.dropped == ()
    assert str(report) == f"{len(names)} parameters kept, new: ['{projection_of(plain)}'], dropped: []"


# Errors


def test_what_cannot_be_converted_is_told(tmp_path):
    plain = LEDForConditionalGeneration(LEDConfig(**SHAPE, attention_window=4))
    with pytest.raises(ValueError, match="LEDForConditionalGeneration is of no known family.* got 'led'"):
        add_length_control(plain, tokenizer=tokenizer_of("bart"))
    model = controlled_model("bart")
    model.save_pretrained(tmp_path)
    for source in (model, tmp_path):
        with pytest.raises(ValueError, match="has length control already.* got 'lenctrl_bart'"):
            add_length_control(source, tokenizer=tokenizer_of("bart"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length_encoding": "none"}, "length_encoding='none' cannot be added; choose one of"),
        ({"length_unit": "syllable"}, "unit must be one of token, .* got 'syllable'"),
        ({"length_constraint": "min"}, "length_constraint must be 'max' .* got 'min'"),
        ({"length": 0}, "length must be at least 1, got 0"),
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


# What training brings. The source names a letter, the target spells on from it; where it stops is anyone's guess, so
# that the plain model learns to spell and stops where it likes.

ALPHABET = "abcdefghij"
LONGEST = 16
WANTED = [2, 5, 8, 11, 14]


def spelled(letter: int, count: int) -> str:
    return "".join(ALPHABET[(letter + i) % len(ALPHABET)] for i in range(count))


def train(model, tokenizer, steps, rate):
    collate = DataCollatorForLengthControl(tokenizer, model=model, length_unit="character")
    controlled = hasattr(model.config, "length_encoding")
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    draw = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(steps):
        letters = torch.randint(len(ALPHABET), (32,), generator=draw).tolist()
        counts = torch.randint(1, LONGEST + 1, (32,), generator=draw).tolist()
        batch = encode(collate, tokenizer, letters, counts, controlled)
        model(**batch).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()


def encode(collate, tokenizer, letters, counts, controlled):
    pairs = zip(letters, counts, strict=True)
    batch = collate([tokenizer(ALPHABET[i], text_target=spelled(i, n)) for i, n in pairs])
    if not controlled:
        batch.pop("length", None)
    return batch


def every_target(model, tokenizer, controlled):
    collate = DataCollatorForLengthControl(tokenizer, model=model, length_unit="character")
    letters, counts = zip(*((i, n) for i in range(0, 10, 3) for n in range(1, LONGEST + 1)), strict=True)
    with torch.no_grad():
        return model(**encode(collate, tokenizer, letters, counts, controlled)).loss.item()


def mean_absolute_error(model, tokenizer):
    source = tokenizer(list(ALPHABET), return_tensors="pt")
    errors = []
    for length in WANTED:
        output = model.generate(**source, length=length, max_new_tokens=40)
        texts = tokenizer.batch_decode(output, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        errors += [abs(len(text) - length) for text in texts]
    return sum(errors) / len(errors)


@pytest.mark.slow
def test_a_converted_model_learns_the_length_and_forgets_nothing(tmp_path):
    texts = [spelled(i, n) for i in range(len(ALPHABET)) for n in range(1, LONGEST + 1)]
    tokenizer = train_marian_tokenizer(ALPHABET, texts, tmp_path, vocab_size=40, target_vocabulary="character")
    torch.manual_seed(0)
    plain = MarianMTModel(
        MarianConfig(
            **{**SHAPE, "vocab_size": len(tokenizer), "encoder_layers": 1},
            decoder_vocab_size=len(tokenizer.target_encoder),
            share_encoder_decoder_embeddings=False,
            tie_word_embeddings=False,
            scale_embedding=True,
            pad_token_id=2,
            eos_token_id=0,
            decoder_start_token_id=2,
            forced_eos_token_id=0,
        )
    )
    train(plain, tokenizer, steps=140, rate=5e-3)
    learned = every_target(plain, tokenizer, controlled=False)
    # guessing where to stop costs ln(16) nats a target, over 9.5 entries on average: 0.29; guessing letters, ln(10)
    assert learned < math.log(10) / 4

    converted = add_length_control(plain, tokenizer=tokenizer, length_unit="character")
    assert every_target(converted, tokenizer, controlled=True) == learned
    before = mean_absolute_error(converted, tokenizer)
    train(converted, tokenizer, steps=170, rate=3e-3)
    assert every_target(converted, tokenizer, controlled=True) <= learned
    assert mean_absolute_error(converted, tokenizer) <= before / 2
