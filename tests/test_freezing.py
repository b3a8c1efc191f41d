"""A length frozen into a plain model: the controlled model's logits and outputs, from the stock classes alone."""

import copy
import functools
import logging
import subprocess
import sys
from functools import partial

import pytest
import torch
import transformers
from conftest import FAMILIES, RELATIVE, build_model, build_model_of
from family_models import controlled_model, model_of_characters, stock_model, tokenizer_of
from huggingface_hub import ModelCard
from safetensors.torch import load_file

from hf_lenctrl import LengthControlEnsemble, add_length_control, freeze_length
from hf_lenctrl.commands.export import frozen_card


ENCODINGS = ["ldpe", "lrpe", "pre", "learned"]
STOCK = {family: head.__name__.removeprefix("LenCtrl") for family, head in FAMILIES.items()}
STOCK["m2m_100"] = STOCK["pegasus"]  # its own class saves no positions
FAMILIES = [family for family in FAMILIES if family not in RELATIVE]  # freezing needs a table of positions
CASES = [("bart", encoding, False) for encoding in ENCODINGS]
CASES += [(family, encoding, True) for family in FAMILIES for encoding in ("ldpe", "none")]
# what stands before the text, and writes nothing: the start, then BART's forced BOS, M2M100's language code
STARTS = {"bart": [2, 0], "marian": [2], "mbart": [2], "pegasus": [0], "m2m_100": [2, 59]}
SOURCE = torch.tensor([[11, 12, 13, 14, 15, 1], [21, 22, 23, 24, 25, 26]])
LENGTH = 20
ROWS = 128  # positions of the models
TABLE = "model.decoder.embed_positions.weight"


def inputs_of(family: str) -> dict[str, torch.Tensor]:
    """The sources, and for the decoder 40 ordinary entries after what stands before them."""
    text = torch.randint(10, 59, (2, 40), generator=torch.Generator().manual_seed(1))
    ids = torch.cat([torch.tensor([STARTS[family]] * 2), text], dim=1)
    return {"input_ids": SOURCE, "attention_mask": (SOURCE != 1).long(), "decoder_input_ids": ids}


@functools.cache
def controlled(family: str, encoding: str, absolute: bool):
    # outputs as loud as a trained model's, so that equal ones say something
    model = build_model_of(family, length_encoding=encoding, absolute_positions=absolute, init_std=0.2)
    if len(STARTS[family]) == 2:
        model.generation_config.forced_bos_token_id = STARTS[family][1]
        model.unit_table.weights[:, STARTS[family][1]] = 0
    model.generation_config.decoder_start_token_id = STARTS[family][0]
    return model


@torch.no_grad()
def logits(model, family: str, **options) -> torch.Tensor:
    return model(**inputs_of(family), **options).logits


LOAD = """
import json, sys, torch
from transformers import AutoModelForSeq2SeqLM
cases, results = torch.load(sys.argv[1]), {}
for folder, inputs in cases.items():
    model, info = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    with torch.no_grad():
        results[folder] = type(model).__name__, not any(info.values()), model(**inputs).logits
assert "hf_lenctrl" not in sys.modules
torch.save(results, sys.argv[2])
"""


@pytest.fixture(scope="module")
def from_stock_classes(tmp_path_factory):
    """Case -> class, whether every weight was found, and logits, of a process that knows nothing of this package."""
    folder = tmp_path_factory.mktemp("frozen")
    inputs = {}
    for case in CASES:
        path = folder / "-".join(map(str, case))
        freeze_length(controlled(*case), LENGTH).save_pretrained(path)
        inputs[str(path)] = inputs_of(case[0])
    torch.save(inputs, folder / "inputs.pt")
    files = [str(folder / "inputs.pt"), str(folder / "results.pt")]
    run = subprocess.run([sys.executable, "-c", LOAD, *files], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    results = torch.load(files[1])
    return {case: results[str(folder / "-".join(map(str, case)))] for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_stock_class_loads_it_and_has_the_controlled_models_logits(from_stock_classes, case):
    family, encoding, _ = case
    name, complete, produced = from_stock_classes[case]
    assert name == ("M2M100ForConditionalGeneration" if encoding == "none" and family == "m2m_100" else STOCK[family])
    assert complete
    expected = logits(controlled(*case), family, **({} if encoding == "none" else {"length": LENGTH}))
    torch.testing.assert_close(produced, expected, rtol=0, atol=1e-5)
    if encoding != "none":  # else equal logits would say nothing
        assert (logits(controlled(*case), family, length=LENGTH + 9) - expected).abs().max() > 1e-2


@pytest.mark.parametrize("family", ["bart", "marian"])
def test_a_length_may_be_that_of_the_table_without_what_stands_before_the_text(family):
    freeze_length(controlled(family, "ldpe", False), ROWS - len(STARTS[family]))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_model_freezes_with_its_projection(family):
    model = add_length_control(stock_model(family), tokenizer=tokenizer_of(family))
    with torch.no_grad():
        model.model.decoder.length_projection.weight.normal_(std=0.3)
    # entries that write, whatever the tokenizer
    ordinary = model.unit_table.weights[0].nonzero().squeeze(1)[5:25].unsqueeze(0)
    start = model.config.decoder_start_token_id
    inputs = {"input_ids": ordinary[:, :6], "decoder_input_ids": torch.cat([torch.tensor([[start]]), ordinary], dim=1)}
    with torch.no_grad():
        expected = model(**inputs, length=12).logits
        produced = freeze_length(model, 12)(**inputs).logits
        assert (model(**inputs, length=13).logits - expected).abs().max() > 1e-2
    torch.testing.assert_close(produced, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("encoding", ["ldpe", "none"])
def test_positions_of_fairseq_are_saved_with_the_frozen_model(tmp_path, encoding):
    fields = {"length_encoding": encoding, "absolute_positions": True, "sinusoids": "fairseq"}
    model = build_model("marian", **fields, init_std=0.2)
    freeze_length(model, LENGTH).save_pretrained(tmp_path)
    frozen = transformers.MarianMTModel.from_pretrained(tmp_path).eval()  # which would compute its own
    expected = logits(model, "marian", **({} if encoding == "none" else {"length": LENGTH}))
    torch.testing.assert_close(logits(frozen, "marian"), expected, rtol=0, atol=1e-5)


def test_a_second_save_by_marians_class_drops_its_table(tmp_path):
    freeze_length(controlled("marian", "ldpe", False), LENGTH).save_pretrained(tmp_path / "one")
    assert TABLE in load_file(tmp_path / "one" / "model.safetensors")
    transformers.MarianMTModel.from_pretrained(tmp_path / "one").save_pretrained(tmp_path / "two")
    assert TABLE not in load_file(tmp_path / "two" / "model.safetensors")  # what the docstring and the card warn of
    build_model("marian", length_encoding="none", absolute_positions=True).save_pretrained(tmp_path / "other")
    assert TABLE not in load_file(tmp_path / "other" / "model.safetensors")  # the class is as it was


def test_the_model_given_is_left_as_it_is_and_what_it_has_is_carried_over(caplog):
    model = build_model("bart", length_encoding="ldpe", length_constraint="exact").bfloat16().train()
    model.generation_config.bad_words_ids = [[1], [30, 31]]
    weights, config = copy.deepcopy(model.state_dict()), model.config.to_dict()
    with caplog.at_level(logging.WARNING):
        frozen = freeze_length(model, LENGTH)
    assert "length_constraint='exact' is no part of a frozen model" in caplog.text
    assert {parameter.dtype for parameter in frozen.parameters()} == {torch.bfloat16}
    assert frozen.lm_head.weight is frozen.model.decoder.embed_tokens.weight
    assert frozen.generation_config.bad_words_ids == [[1], [30, 31], [0]]
    own = frozen.config.to_dict().keys() - transformers.BartConfig().to_dict().keys()
    assert {"frozen_length", "frozen_length_unit"} <= own and not {n for n in own if n.startswith("length")}
    with torch.no_grad():
        for parameter in frozen.parameters():
            parameter.add_(1)
    assert model.training and not frozen.training
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert model.config.to_dict() == config and model.generation_config.max_new_tokens is None


@pytest.mark.parametrize("absolute", [True, False])
def test_limits_are_those_that_the_controlled_model_chooses(absolute, monkeypatch):
    model = build_model("marian", length_encoding="ldpe", absolute_positions=absolute)
    model.generation_config.update(num_beams=3, length_penalty=2.0, min_length=50, max_length=60)
    chosen = {}
    ids = torch.zeros(1, 2, dtype=torch.long)
    watched = lambda self, *_, **options: chosen.update(options) or ids  # noqa: E731
    monkeypatch.setattr(transformers.GenerationMixin, "generate", watched)
    for length, limit in ((7, 2 * 7 + 32), (90, ROWS if absolute else 2 * 90 + 32)):
        model.generate(SOURCE, length=length)
        assert chosen["max_length"] == limit + 1  # with the start
        settings = freeze_length(model, length).generation_config
        # a table ends, where encodings made on the way do not
        assert (settings.max_new_tokens, settings.max_length) == (min(limit, ROWS), None)
        assert (settings.num_beams, settings.length_penalty, settings.min_length) == (3, 2.0, 0)


def bart():
    return controlled("bart", "ldpe", True)


def other(family, **fields):
    return partial(build_model_of, family, **fields)


@pytest.mark.parametrize(
    ("make", "length", "message"),
    [
        (other("marian", length_encoding="scale"), 5, "can be frozen, got length_encoding='scale'"),
        (other("marian", encoder_length_embedding=True), 5, "can be frozen, .* encoder_length_embedding=True"),
        (other("marian", length_head=True), 5, "can be frozen, .* length_head=True"),
        (other("marian", length_tokens={"kind": "bins", "thresholds": [5]}), 5, "can be frozen, .* length_tokens="),
        (
            partial(controlled_model, "marian", length_unit="character"),
            5,
            "every entry writes one character; .* lenctrl export --format onnx",
        ),
        # one byte an entry, of which the later ones of a character write none
        (
            partial(controlled_model, "bart", length_unit="character"),
            5,
            "every entry writes one character; .* lenctrl export --format onnx",
        ),
        (other("marian", length_unit="character"), 5, "call model.set_unit_table"),
        (bart, 0, "length must be .* got 0"),
        (bart, 127, "length=127 .* positions, the model has 128"),
        (partial(controlled, "marian", "ldpe", True), 128, "length=128 .* positions, the model has 128"),
        (other("t5"), 5, "takes one length-controlled model .* got a LenCtrlT5ForConditionalGeneration"),
        (partial(stock_model, "bart"), 5, "takes one length-controlled model .* got a BartForConditionalGeneration"),
        (lambda: LengthControlEnsemble([bart(), bart()]), 5, "takes one .* got a LengthControlEnsemble"),
    ],
)
def test_what_cannot_be_frozen_is_told(make, length, message):
    with pytest.raises((TypeError, ValueError), match=f"(?s){message}"):
        freeze_length(make(), length)


def test_targets_that_begin_with_what_is_not_forced_or_writes_nothing_are_told(character_tokenizer):
    # BART's tokenizer begins each target with <s>, M2M100's with a language code
    for family, token in (("bart", "<s>"), ("m2m_100", "__en__")):
        model, tokenizer = controlled_model(family), tokenizer_of(family)
        with pytest.raises(ValueError, match=rf"begin with \['{token}'\].* set model.generation_config.forced_bos"):
            freeze_length(model, 5, tokenizer=tokenizer)
        model.generation_config.forced_bos_token_id = tokenizer.convert_tokens_to_ids(token)
        freeze_length(model, 5, tokenizer=tokenizer)

    # of a character vocabulary with a dummy prefix, every target begins with a space that decoding strips
    class WithPrefix:
        decode = character_tokenizer.decode
        convert_ids_to_tokens = character_tokenizer.convert_ids_to_tokens

        def __call__(self, text_target):
            space = character_tokenizer.target_encoder["▁"]
            return {"input_ids": [space, *character_tokenizer(text_target=text_target)["input_ids"]]}

    with pytest.raises(ValueError, match=r"targets of the WithPrefix begin with \['▁'\], which write nothing"):
        freeze_length(model_of_characters(character_tokenizer), 5, tokenizer=WithPrefix())


def test_the_card_states_the_length(tmp_path):
    frozen = freeze_length(controlled("marian", "ldpe", True), 75)
    frozen.config.frozen_length_unit = "character"
    (tmp_path / "README.md").write_text("---\nlanguage: ja\nlicense: mit\ntags: [ldpe]\n---\n# short\n", "utf-8")
    card = frozen_card(frozen, tmp_path)
    card.save(tmp_path / "card.md")
    card = ModelCard.load(tmp_path / "card.md")
    assert (card.data.language, card.data.license, card.data.library_name) == ("ja", "mit", "transformers")
    assert "fixed-length" in card.data.tags
    assert "texts of **75 characters**" in card.text and "copy this folder" in card.text
    assert "saved again" not in frozen_card(freeze_length(controlled("bart", "ldpe", True), 5), tmp_path / "no").text
