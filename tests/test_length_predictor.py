"""The predictor of output lengths: its values, its files, its errors, and the recipe that trains it."""

import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from recipe_runs import isolated
from transformers import AutoModel

from hf_lenctrl.length_predictor import LengthPredictor, LengthPredictorConfig, load_predictor, register, round_lengths


register()

LENGTHS = [2, 4, 4, 4, 5, 5, 7, 9]  # mean 5, standard deviation 2
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["a", "small", "text", "editor", "opens", "large", "files", "fast", "and", "keeps", "them"]
TEXTS = ["a small text editor", "files", "opens large files fast and keeps them", "text and files", "editor opens"]


@pytest.fixture
def tokenizer():
    return transformers.BertTokenizer(vocab={piece: i for i, piece in enumerate([*SPECIAL, *WORDS])})


def encoder_config(family: str = "bert", **fields):
    """A tiny encoder; weights are wide, so that the first state differs from text to text."""
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    if family == "distilbert":
        shape = {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}
    common = {"vocab_size": 16, "max_position_embeddings": 20, "pad_token_id": 0, "initializer_range": 0.5}
    return transformers.AutoConfig.for_model(family, **shape, **common, **fields)


def build(family: str = "bert", lengths=LENGTHS, **fields) -> LengthPredictor:
    """A tiny predictor whose lengths spread over several units, in eval mode."""
    torch.manual_seed(0)
    encoder = AutoModel.from_config(encoder_config(family))
    predictor = LengthPredictor.from_encoder(encoder, lengths, length_unit="token", **fields).eval()
    torch.nn.init.normal_(predictor.output.weight)
    return predictor


def constant(bias: float) -> LengthPredictor:
    """A predictor that gives `bias`, before the mean and the deviation, whatever it reads."""
    predictor = build()
    torch.nn.init.zeros_(predictor.output.weight)
    torch.nn.init.constant_(predictor.output.bias, bias)
    return predictor


IDS = torch.tensor([[2, 5, 6, 7, 8, 3], [2, 11, 3, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])


def test_the_length_is_a_linear_layer_on_the_first_state_back_in_units():
    predictor = build()
    encoder = transformers.BertModel(encoder_config(), add_pooling_layer=False).eval()
    encoder.load_state_dict(predictor.encoder.state_dict())
    weight, bias = predictor.output.weight[0].tolist(), predictor.output.bias.item()
    expected = []
    for ids in ([2, 5, 6, 7, 8, 3], [2, 11, 3]):  # without padding
        state = encoder(torch.tensor([ids])).last_hidden_state[0, 0].tolist()
        expected.append(5 + 2 * (sum(w * s for w, s in zip(weight, state, strict=True)) + bias))
    logits = predictor(IDS, attention_mask=MASK).logits
    assert logits.dtype == torch.float32 and logits.tolist() == pytest.approx(expected, abs=1e-4)
    assert abs(expected[0] - expected[1]) > 0.5  # texts are told apart


def test_the_loss_is_the_squared_error_of_standardised_lengths():
    # 5 + 2 * 0.5 for both; wanted 5 and 9, standardised 0 and 2: (0.5 ** 2 + 1.5 ** 2) / 2
    for as_dict in (True, False):
        output = constant(0.5)(IDS, attention_mask=MASK, labels=torch.tensor([5, 9]), return_dict=as_dict)
        assert (output[0].item(), output[1].tolist()) == (1.25, [6.0, 6.0])


def test_predictions_are_rounded_and_kept_in_range():
    given = torch.tensor([-3.0, 0.2, 1.49, 2.5, 3.5, 7.51, 1e8, float("inf")])
    assert round_lengths(given).tolist() == [1, 1, 1, 2, 4, 8, 9_999_999, 9_999_999]
    with pytest.raises(ValueError, match="predicts NaN"):
        round_lengths(torch.tensor([4.0, float("nan")]))


def test_predict_leaves_dropout_out_and_the_mode_as_it_was():
    predictor = build(dropout=0.9)
    expected = predictor.predict(input_ids=IDS, attention_mask=MASK).tolist()
    predictor.train()
    assert predictor.predict(input_ids=IDS, attention_mask=MASK).tolist() == expected
    assert predictor.training and predictor.encoder.training


def test_lengths_stay_exact_in_bfloat16():
    # bfloat16 knows 256 and 258 but not 257, and 0.2578125 but not 0.257
    predictor = constant(0.0)
    predictor.config.target_mean, predictor.config.target_std = 257.0, 1000.0
    logits = predictor.to(torch.bfloat16)(IDS, attention_mask=MASK).logits
    assert (logits.dtype, logits.tolist()) == (torch.float32, [257.0, 257.0])
    predictor = constant(0.257)
    predictor.config.target_mean, predictor.config.target_std = 0.0, 1000.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = predictor(IDS, attention_mask=MASK, labels=torch.tensor([257, 257]))
    assert output.logits.tolist() == pytest.approx([257.0, 257.0], abs=1e-3)
    assert output.loss.item() == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "xlm-roberta"])
def test_every_family_learns_and_takes_token_type_ids(family):
    predictor = build(family)
    output = predictor(IDS, attention_mask=MASK, labels=torch.tensor([4, 9]))
    typed = predictor(IDS, attention_mask=MASK, token_type_ids=torch.zeros_like(IDS))
    assert torch.equal(typed.logits, output.logits)
    output.loss.backward()
    gradients = [parameter.grad for parameter in predictor.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)  # no pooler lies idle


def test_an_encoder_is_loaded_without_its_pooler_and_in_float32(tmp_path):
    torch.manual_seed(1)
    encoder = transformers.BertModel(encoder_config()).to(torch.bfloat16)
    encoder.save_pretrained(tmp_path)
    predictor = LengthPredictor.from_encoder(str(tmp_path), LENGTHS, length_unit="byte", dropout=0.3)
    weights = predictor.encoder.state_dict()
    assert weights.keys() == {name for name in encoder.state_dict() if not name.startswith("pooler")}
    assert all(torch.equal(value, encoder.state_dict()[name].float()) for name, value in weights.items())
    assert predictor.dtype == torch.float32
    assert (predictor.config.length_unit, predictor.config.dropout) == ("byte", 0.3)
    given = LengthPredictor.from_encoder(encoder, LENGTHS, length_unit="token")  # one that is given is copied
    torch.nn.init.zeros_(given.get_input_embeddings().weight)
    assert encoder.get_input_embeddings().weight.any() and encoder.pooler is not None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build(lengths=[7, 7, 7]), "must differ, got 3 of mean"),
        (lambda: build(lengths=[]), "must differ, got 0 of mean"),
        (lambda: build("gpt2"), "'gpt2' reads"),
        (lambda: LengthPredictorConfig(target_std=0.0), "target_std above 0, got 0.0 and 0.0"),
        (lambda: LengthPredictorConfig(target_mean=float("nan")), "target_mean must be at least 0 .* got nan and 1.0"),
        (lambda: LengthPredictorConfig(encoder=transformers.BartConfig()), "must be an encoder alone, got 'bart'"),
        (lambda: build().predict_lengths("files", None), "texts must be a list of str, got a single one"),
        (lambda: build().predict_lengths(TEXTS, None, batch_size=-1), "batch_size must be .* at least 1, got -1"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises((ValueError, TypeError, StrictDataclassError), match=message):
        call()


@pytest.mark.parametrize("kind", ["MT5EncoderModel", "path"])
def test_the_encoder_of_t5_predicts_and_comes_back(kind, tmp_path):
    torch.manual_seed(0)
    stock = getattr(transformers, "T5EncoderModel" if kind == "path" else kind)
    model = stock(stock.config_class(vocab_size=16, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)).eval()
    model.save_pretrained(tmp_path / "t5")
    given = str(tmp_path / "t5") if kind == "path" else model
    predictor = LengthPredictor.from_encoder(given, LENGTHS, length_unit="byte").eval()
    torch.nn.init.normal_(predictor.output.weight)
    assert [name for name, _ in predictor.named_parameters() if "decoder" in name] == []
    states = model.encoder(IDS, attention_mask=MASK).last_hidden_state[:, 0]  # (2, 8)
    expected = (5 + 2 * (states @ predictor.output.weight[0] + predictor.output.bias)).tolist()
    assert predictor(IDS, attention_mask=MASK).logits.tolist() == pytest.approx(expected, abs=1e-4)
    predictor.save_pretrained(tmp_path / "predictor")
    loaded, info = LengthPredictor.from_pretrained(tmp_path / "predictor", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert torch.equal(loaded(IDS, attention_mask=MASK).logits, predictor(IDS, attention_mask=MASK).logits)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_saved_predictor_comes_back_as_it_was(family, tmp_path):
    predictor = build(family)
    predictor.save_pretrained(tmp_path)
    for loaded in (LengthPredictor.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path)):
        assert type(loaded) is LengthPredictor
        assert torch.equal(loaded(IDS, attention_mask=MASK).logits, predictor(IDS, attention_mask=MASK).logits)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert (config.target_mean, config.target_std, config.length_unit) == (5.0, 2.0, "token")
    assert type(config.encoder) is type(encoder_config(family))
    assert config.encoder.pad_token_id == 0  # BERT's default, not RoBERTa's


@pytest.mark.parametrize("subfolder", ["a/../../x", "/x", "a\\..\\..\\x", "C:\\x"])
def test_a_subfolder_outside_the_folder_is_refused(subfolder, tmp_path):
    build().save_pretrained(tmp_path / "x")
    (tmp_path / "model" / "a").mkdir(parents=True)
    with pytest.raises(ValueError, match="subfolder must lie inside .*model, got "):
        load_predictor(tmp_path / "model", subfolder=subfolder)


REMOTE = """
import json, sys
import torch
from transformers import AutoConfig, AutoModel
folder, ids, mask = json.loads(sys.argv[1])
config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
model = AutoModel.from_pretrained(folder, trust_remote_code=True)
logits = model(torch.tensor(ids), attention_mask=torch.tensor(mask)).logits
print(json.dumps([type(config).__name__, type(model).__module__.split(".")[0], logits.tolist()]))
"""


@pytest.mark.slow
def test_a_predictor_runs_with_its_own_code_where_the_package_is_not_installed(tmp_path):
    predictor = build()
    predictor.save_pretrained(tmp_path / "predictor")
    shipped = {path.stem for path in (tmp_path / "predictor").glob("*.py")}
    assert {"length_predictor", "length_units", "lengths"} <= shipped
    assert not {"modeling_lenctrl", "generation"} & shipped
    given = str(tmp_path / "predictor"), IDS.tolist(), MASK.tolist()
    name, module, logits = isolated(REMOTE, *given, folder=tmp_path)
    assert (name, module) == ("LengthPredictorConfig", "transformers_modules")
    assert logits == pytest.approx(predictor(IDS, attention_mask=MASK).logits.tolist(), abs=1e-5)


def test_loading_something_else_says_what_is_there(tmp_path):
    encoder_config().save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match="bert holds a 'bert' model, not a length predictor"):
        load_predictor(tmp_path / "bert")
    with pytest.raises(ValueError, match="bert/predictor holds no known model, not a length predictor"):
        load_predictor(tmp_path / "bert", subfolder="predictor")


def test_texts_keep_their_order_whatever_the_batch_size(tokenizer):
    predictor = build()
    expected = []
    for text in TEXTS:
        ids = torch.tensor([[2, *(5 + WORDS.index(word) for word in text.split()), 3]])
        expected.append(max(1, round(predictor(ids).logits.item())))
    assert len(set(expected)) > 1
    for batch_size in (1, 2, 3, 64):
        assert predictor.predict_lengths(TEXTS, tokenizer, batch_size=batch_size) == expected
    tokenizer.padding_side = "left"  # as a generator's may be; the first position is read
    assert predictor.predict_lengths(TEXTS, tokenizer) == expected
    assert predictor.predict_lengths([], tokenizer) == []


@pytest.mark.parametrize("family, limit", [("distilbert", 20), ("roberta", 19)])
def test_a_text_may_be_as_long_as_the_encoder_reads(family, limit, tokenizer):
    predictor = build(family)
    assert predictor.max_source_length(tokenizer) == limit
    longest = " ".join(["text"] * (limit - 2))  # and [CLS], [SEP]
    (length,) = predictor.predict_lengths([longest], tokenizer)
    too_long = f"{longest} files"
    with pytest.raises(ValueError, match=f"position 1 has {limit + 1} tokens, .* most {limit}; pass truncation=True"):
        predictor.predict_lengths(["files", too_long], tokenizer)
    assert predictor.predict_lengths([too_long], tokenizer, truncation=True) == [length]
    with pytest.raises((IndexError, RuntimeError, ValueError)):  # the limit is the encoder's own
        predictor(torch.full((1, limit + 1), 7))
    tokenizer.model_max_length = 6  # may be lower
    assert predictor.max_source_length(tokenizer) == 6
