"""Ensembles: the mean probability of checkpoints that differ in encoding, width and positions."""

import pytest
import torch
from conftest import build_model, controlled_marian, plain_marian
from ensemble import LengthControlEnsemble
from family_models import SOURCE
from test_causal import build
from transformers import MarianMTModel

import hf_lenctrl
from hf_lenctrl.cache import CACHE


def members():
    """Mixed in encoding, width and positions, one of them without length control."""
    return [
        build_model("bart", seed=1, init_std=0.2),
        build_model("bart", seed=2, init_std=0.2, length_encoding="none", absolute_positions=True),
        build_model("bart", seed=3, init_std=0.2, length_encoding="pre", d_model=16),
    ]


@pytest.mark.parametrize(("num_beams", "constraint"), [(1, "exact"), (4, None)])
def test_an_ensemble_generates_the_same_without_cache(num_beams, constraint):
    ensemble = LengthControlEnsemble(members())
    options = {"length": [3, 9, 6], "length_constraint": constraint, "num_beams": num_beams, "max_new_tokens": 12}
    options["attention_mask"] = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    cached = ensemble.generate(SOURCE, **options)
    assert cached.tolist() == ensemble.generate(SOURCE, use_cache=False, **options).tolist()
    assert len({row for row in map(tuple, cached.tolist())}) == 3


def test_an_ensemble_keeps_a_bound_and_takes_it_from_the_config_too():
    models = members()
    ensemble = LengthControlEnsemble(models)
    output = ensemble.generate(SOURCE, length=[1, 7, 23], length_constraint="exact", num_beams=3)
    assert ensemble.unit_table.count(output).tolist() == [1, 7, 23]
    models[0].config.length, models[0].config.length_constraint = 5, "exact"
    assert ensemble.unit_table.count(ensemble.generate(SOURCE)).tolist() == [5, 5, 5]


PLAIN = {"length_encoding": "none", "absolute_positions": True}


def pair(first=(), **fields):
    return LengthControlEnsemble([build_model("bart", **dict(first)), build_model("bart", **fields)])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LengthControlEnsemble([build("llama")[0]]), "takes models with an encoder, got a Llama"),
        (lambda: LengthControlEnsemble([build("llama")[1]]), "takes models with an encoder, got a LenCtrlForCausalLM"),
        (lambda: LengthControlEnsemble(members()).generate(SOURCE), "no length was given; pass it to the call"),
        (lambda: pair(PLAIN, **PLAIN).generate(SOURCE, length=5), "given to a model with length_encoding='none'"),
        (lambda: pair(vocab_size=61), "their unit tables differ"),
        *(
            (lambda name=name: pair(**{name: 7}), f"must agree in {name}, got . and 7")
            for name in ("eos_token_id", "pad_token_id", "decoder_start_token_id")
        ),
        (lambda: pair(length_unit="character"), "must agree in length_unit, got 'token' and 'character'"),
    ],
)
def test_what_an_ensemble_cannot_do_is_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_plain_member_is_refused_with_the_line_that_works(shared_tokenizer, tmp_path):
    plain_marian(shared_tokenizer).save_pretrained(tmp_path)
    plain = MarianMTModel.from_pretrained(tmp_path)
    lead = controlled_marian(shared_tokenizer)
    with pytest.raises(ValueError, match="an ensemble takes this package's models, got a MarianMTModel") as refused:
        LengthControlEnsemble([lead, plain])
    options = {**PLAIN, "length_unit": "character"}
    call = ", ".join([repr(str(tmp_path)), *(f"{name}={value!r}" for name, value in options.items())])
    assert str(refused.value).endswith(f"; load it with LenCtrlMarianMTModel.from_pretrained({call})")
    member = hf_lenctrl.LenCtrlMarianMTModel.from_pretrained(tmp_path, **options)
    member.set_unit_table(shared_tokenizer)
    ensemble = LengthControlEnsemble([lead, member])
    output = ensemble.generate(SOURCE, length=[4, 7, 23], length_constraint="exact")
    assert ensemble.unit_table.count(output).tolist() == [4, 7, 23]


def test_an_ensemble_gives_each_encoder_the_length():
    fields = {"init_std": 0.2, "encoder_length_embedding": True, **PLAIN}
    models = [build_model("bart", seed=1, init_std=0.2), build_model("bart", seed=2, **fields)]
    torch.nn.init.normal_(models[1].model.encoder.length_embedding.weight, std=0.5)
    ensemble = LengthControlEnsemble(models)
    options = {"max_new_tokens": 8, "min_new_tokens": 8}
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    inputs = {"input_ids": SOURCE, "attention_mask": mask, "length": [3, 9, 40]}
    output = ensemble.generate(**inputs, **options)
    inputs["decoder_input_ids"] = output[:, :-1]
    mean = torch.stack([model(**inputs).logits.double().softmax(-1) for model in models]).mean(0)
    torch.testing.assert_close(ensemble(**inputs).logits.double(), mean.log(), atol=1e-5, rtol=0)
    mean[:, :, 2] = 0  # EOS is forced in the last position alone
    assert mean.argmax(-1)[:, :-1].tolist() == output[:, 1:-1].tolist()
    several = ensemble.generate(SOURCE[:1], length=[3, 9, 40], **options)
    alone = [ensemble.generate(SOURCE[:1], length=n, **options)[0].tolist() for n in (3, 9, 40)]
    assert several.tolist() == alone


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_a_cached_step_of_an_ensemble_is_a_step_of_the_whole(name):
    ids, progress = torch.tensor([[2, 31, 32], [2, 41, 33], [2, 8, 9]]), torch.tensor([[0, 1, 2]] * 3)
    ensemble = LengthControlEnsemble([build_model("bart", seed=seed, init_std=0.3) for seed in (1, 2)])
    whole = ensemble(SOURCE, decoder_input_ids=ids, length=9, progress=progress).logits
    caches = {}
    ensemble._prepare_cache_for_generation(ensemble.generation_config, caches)
    given = {"length": 9, name: caches[CACHE]}
    ensemble(SOURCE, decoder_input_ids=ids[:, :2], progress=progress[:, :2], **given)
    last = ensemble(SOURCE, decoder_input_ids=ids[:, 2:], progress=progress[:, 2:], **given).logits
    torch.testing.assert_close(last, whole[:, 2:], atol=1e-5, rtol=1e-5)
