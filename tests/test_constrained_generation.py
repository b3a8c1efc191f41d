"""`generate` with a constraint, on untrained models of every family, whose outputs would have any length."""

import functools
import logging

import family_models
import pytest
import torch
import transformers
from conftest import SHAPE, build_model
from family_models import NO, SOURCE, controlled_model, lengths_of, stock_model, tokenizer_of
from test_length_units import pieces_of
from transformers import AutoModelForSeq2SeqLM

from hf_lenctrl import UnitTable


random_model = functools.cache(controlled_model)


def forced_start(family):
    """BART is made to start with BOS, mBART and M2M100 with a language code."""
    tokenizer = tokenizer_of(family)
    if family == "m2m_100":  # whose embeddings hold codes that `len(tokenizer)` leaves out
        return {"forced_bos_token_id": tokenizer.get_lang_id("fr")}
    token = {"bart": tokenizer.bos_token, "mbart": "ro_RO"}.get(family)
    return {} if token is None else {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(token)}


# three kinds of tokenizer in every unit, the other families and modes in one
KEPT = [(family, "beams", unit) for family in ("bart", "marian", "t5") for unit in family_models.UNITS]
KEPT += [(family, "beams", "character") for family in ("mbart", "pegasus", "m2m_100")]
KEPT += [("bart", "greedy", "byte"), ("marian", "samples", "word")]


@pytest.mark.parametrize(("family", "mode", "unit"), KEPT)
def test_decoded_outputs_keep_their_bound(family, unit, mode):
    mode, model = family_models.MODES[mode], random_model(family, length_unit=unit)
    lengths = [1, 7, 23]
    copies = mode.get("num_return_sequences", 1)
    bounds = [n for n in lengths for _ in range(copies)]
    options = {"max_new_tokens": 60} if unit == "word" else {}
    options |= forced_start(family) | mode
    torch.manual_seed(0)
    output = model.generate(SOURCE, length=lengths, length_constraint="max", **options)
    produced = lengths_of(family, unit, output)
    assert all(n <= bound for n, bound in zip(produced, bounds, strict=True))
    output = model.generate(SOURCE, length=lengths, length_constraint="exact", **options)
    assert lengths_of(family, unit, output) == bounds
    eos = model.config.eos_token_id
    assert (output[:, 1:] == eos).any(dim=1).all()  # each is complete
    if "forced_bos_token_id" in options:
        assert (output[:, 1] == options["forced_bos_token_id"]).all()


def test_a_forced_start_takes_a_position_of_its_own():
    """Start, BOS, five tokens and EOS need eight positions; with seven the call is refused."""
    model = build_model("bart", init_std=0.3)
    options = {"length": 5, "length_constraint": "exact", "forced_bos_token_id": 0}
    assert model.unit_table.count(model.generate(SOURCE, max_new_tokens=7, **options)).tolist() == [5, 5, 5]
    with pytest.raises(ValueError, match="exactly 5 tokens may need"):
        model.generate(SOURCE, max_new_tokens=6, **options)


def test_the_units_of_a_decoder_prompt_count_towards_the_bound():
    model = build_model("bart", init_std=0.3)
    prompt = torch.tensor([[2, 11, 12, 13], [2, 21, 22, 23]])
    source = SOURCE[:2]
    for limit in (None, 4):
        options = {"length": [3, 6], "length_constraint": "exact", "max_new_tokens": limit}
        output = model.generate(source, decoder_input_ids=prompt, **options)
        assert output[:, :4].tolist() == prompt.tolist()
        assert model.unit_table.count(output).tolist() == [3, 6]


def test_an_exact_length_that_cannot_be_is_missed_with_a_warning_and_never_passed(caplog):
    model, options = build_model("marian", init_std=0.3), {"num_beams": 3, "num_return_sequences": 2}
    model.model.decoder.unit_table = UnitTable("token", 2 * model.unit_table.weights)  # only pieces of two
    with caplog.at_level(logging.WARNING, logger="hf_lenctrl.bounded_generation"):
        output = model.generate(SOURCE, length=[3, 6, 7], length_constraint="exact", **options)
        assert model.unit_table.count(output).tolist() == [2, 2, 6, 6, 6, 6]
        (record,) = caplog.records
        assert record.getMessage().startswith("4 of 6 outputs missed their exact length")
        assert record.getMessage().endswith("rows [0, 1, 4, 5] have [2, 2, 6, 6] tokens, not [3, 3, 7, 7]")
        # one that is met, a bound, and no constraint give no warning
        model.generate(SOURCE, length=[2, 4, 8], length_constraint="exact")
        model.generate(SOURCE, length=[3, 5, 7], length_constraint="max")
        model.generate(SOURCE, length=[3, 5, 7], max_new_tokens=3)
        assert len([record for record in caplog.records if "missed" in record.getMessage()]) == 1
        model.generate(SOURCE[:2], length=[3, 6], length_constraint="exact", length_tolerance=[0, 1])
        assert caplog.records[-1].getMessage().startswith("1 of 2 outputs missed their allowed lengths")
        options = {"length": [3, 10], "stopping_criteria": [lambda ids, scores: torch.tensor([ids.shape[1] > 3] * 2)]}
        model.generate(SOURCE[:2], length_constraint="min", **options)
    assert caplog.records[-1].getMessage().endswith("rows [1] have [6] tokens, not ['at least 10']")


def characters(output):
    return lengths_of("marian", "character", output)


def test_length_and_constraint_of_the_config_hold_and_a_call_overrides_them(tmp_path):
    controlled_model("marian", length_unit="character").save_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, length=9, length_constraint="exact")
    assert characters(model.generate(SOURCE)) == [9, 9, 9]
    assert characters(model.generate(SOURCE, length=[2, 9, 5])) == [2, 9, 5]
    assert all(n <= 9 for n in characters(model.generate(SOURCE, length_constraint="max")))
    free = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    off = model.generate(SOURCE, length_constraint=None, max_new_tokens=20)
    assert characters(off) != [9, 9, 9]
    assert off.tolist() == free.generate(SOURCE, length=9, max_new_tokens=20).tolist()
    assert model.generation_config.to_dict() == free.generation_config.to_dict()


def plain_class_model(**fields):
    fields |= {"length_unit": "character", "length_encoding": "none", "absolute_positions": True}
    return controlled_model("marian", **fields)


def test_a_model_that_is_not_told_the_length_takes_one_with_a_constraint_only():
    model = plain_class_model()
    assert characters(model.generate(SOURCE, length=[2, 9, 5], length_constraint="exact")) == [2, 9, 5]
    assert characters(plain_class_model(length=5, length_constraint="exact").generate(SOURCE)) == [5, 5, 5]
    with pytest.raises(ValueError, match="no length was given; pass it to the call"):
        model.generate(SOURCE, length_constraint="max")
    stock = stock_model("marian")
    stock.load_state_dict(model.state_dict(), strict=False)
    free = stock.generate(SOURCE, max_length=12).tolist()
    assert model.generate(SOURCE, max_length=12).tolist() == free
    bound = plain_class_model(length=5, length_constraint="exact")
    assert bound.generate(SOURCE, length_constraint=None, max_length=12).tolist() == free


def test_max_new_tokens_too_small_for_an_exact_length_is_told():
    model = controlled_model("marian", length_unit="token")
    output = model.generate(SOURCE, length=9, length_constraint="exact", max_new_tokens=10)  # nine and EOS
    assert lengths_of("marian", "token", output) == [9, 9, 9]
    for options in ({"max_new_tokens": 9}, {"max_length": 10}):
        for given in (options, {"generation_config": transformers.GenerationConfig(**options)}):
            with pytest.raises(ValueError, match="exactly 9 tokens may need 11 positions .* max_length leaves 10"):
                model.generate(SOURCE, length=9, length_constraint="exact", **given)
    output = model.generate(SOURCE, length=9, length_constraint="max", max_new_tokens=4)
    assert all(n <= 3 for n in lengths_of("marian", "token", output))
    assert (output[:, 1:] == 0).any(dim=1).all()


def test_a_bound_works_after_a_call_in_inference_mode():
    model = build_model("bart", init_std=0.3)
    with torch.inference_mode():
        inside = model.generate(SOURCE, length=[1, 2, 3], length_constraint="exact")
    assert inside.tolist() == model.generate(SOURCE, length=[1, 2, 3], length_constraint="exact").tolist()
    longer = model.generate(SOURCE, length=[5, 9, 13], length_constraint="exact")  # rows not seen before
    assert model.unit_table.count(longer).tolist() == [5, 9, 13]
    with torch.inference_mode():
        made_inside = build_model("bart", init_std=0.3)
        made_inside.generate(SOURCE, length=4, length_constraint="exact")
    output = made_inside.generate(SOURCE, length=6, length_constraint="exact")
    assert made_inside.unit_table.count(output).tolist() == [6] * 3


@pytest.mark.parametrize("where", ["config", "model"])
def test_eos_comes_from_the_models_own_configuration(where):
    model = build_model("bart", init_std=0.3)
    if where == "model":
        model.generation_config.eos_token_id = None
    config = transformers.GenerationConfig() if where == "config" else None
    output = model.generate(SOURCE, config, length=[1, 7, 23], length_constraint="exact")
    assert model.unit_table.count(output).tolist() == [1, 7, 23]
    assert (output[:, 1:] == 2).any(dim=1).all()


def test_a_bound_samples_with_invalid_values_removed():
    """`InfNanRemoveLogitsProcessor` writes the least number for -inf, and dividing it by a temperature gives -inf."""
    model = build_model("bart", init_std=0.3)
    torch.manual_seed(0)
    options = {"remove_invalid_values": True, "do_sample": True, "temperature": 0.5, "forced_bos_token_id": 0}
    output = model.generate(SOURCE, length=[1, 7, 23], length_constraint="exact", min_new_tokens=9, **options)
    assert model.unit_table.count(output).tolist() == [1, 7, 23]


def test_an_ngram_ban_cuts_no_character_of_several_bytes():
    """The text so far has every byte that continues a character, and none may stand a second time."""
    tokenizer, model = tokenizer_of("bart"), controlled_model("bart", length_unit="character")
    text = "".join(bytes([0xE4, 0x80 + i, 0x81 + i]).decode() for i in range(0, 64, 2))
    model.final_logits_bias[0, tokenizer.convert_tokens_to_ids(pieces_of("日")[0])] = 1e3  # begins one all the same
    prompt = torch.tensor([[2, *tokenizer.convert_tokens_to_ids(pieces_of(text))]])
    options = {"length": 34, "length_constraint": "exact", "no_repeat_ngram_size": 1}
    output = model.generate(SOURCE[:1], decoder_input_ids=prompt, **options)
    written = tokenizer.decode(output[0], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert written.startswith(text) and len(written) == 34 and "\ufffd" not in written


DRAFTS = {
    "controlled": lambda: build_model("bart", seed=3, init_std=0.2),
    "plain class": lambda: build_model("bart", seed=3, length_encoding="none", absolute_positions=True),
    "stock": lambda: transformers.BartForConditionalGeneration(transformers.BartConfig(**SHAPE)).eval(),
}


@pytest.mark.parametrize(
    ("draft", "constraint"), [("controlled", None), ("plain class", "max"), ("stock", "exact"), ("stock", None)]
)
def test_assisted_generation_gives_what_greedy_does(draft, constraint):
    model = build_model("bart", init_std=0.2)
    torch.manual_seed(3)
    assistant = DRAFTS[draft]()
    options = {"length": 9, "length_constraint": constraint, "max_new_tokens": 20}
    expected = model.generate(SOURCE[:1], **options)
    assert model.generate(SOURCE[:1], assistant_model=assistant, **options).tolist() == expected.tolist()
    assert constraint is None or int(model.unit_table.count(expected)) <= 9


@pytest.mark.parametrize("constraint", [None, "max"])
def test_logits_processors_may_be_positional(constraint):
    model = build_model("bart", init_std=0.3)

    def only_seven(input_ids, scores):
        return torch.full_like(scores, NO).index_fill(1, torch.tensor([7]), 0.0)

    for arguments, named in (((SOURCE, None, [only_seven]), {}), ((SOURCE,), {"logits_processor": [only_seven]})):
        output = model.generate(*arguments, **named, length=5, length_constraint=constraint, max_new_tokens=4)
        assert output[:, 1:4].tolist() == [[7, 7, 7]] * 3
