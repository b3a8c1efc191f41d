"""Guidance: the model with its length against itself without one."""

import pytest
import torch
from test_optional_length import optional  # noqa: F401

from hf_lenctrl.cache import CACHE
from hf_lenctrl.length_guidance import LengthGuidanceLogitsProcessor


SOURCES = {
    "input_ids": torch.tensor([[2, 2, 5, 6, 7, 8], [5, 9, 4, 6, 8, 7]]),
    "attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]),
}


def sources_of(model) -> dict:
    """Return two texts, of which the first is padded: on the left for a causal model, else on the right."""
    if not model.config.is_encoder_decoder:
        return dict(SOURCES)
    return {name: torch.stack([x[0].roll(-2), x[1]]) for name, x in SOURCES.items()}


def without_length(model, ids: torch.Tensor, stock) -> torch.Tensor:
    """Return the stock model's log-probabilities of the next entry, without any cache."""
    sources = {name: x.repeat_interleave(len(ids) // 2, dim=0) for name, x in sources_of(model).items()}
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            return stock(**sources, decoder_input_ids=ids).logits[:, -1].log_softmax(dim=-1)
        new = torch.ones(len(ids), ids.shape[1] - sources["attention_mask"].shape[1], dtype=torch.long)
        mask = torch.cat([sources["attention_mask"], new], dim=1)
        places = (mask.cumsum(dim=1) - 1).clamp(min=0)
        return stock(ids, attention_mask=mask, position_ids=places).logits[:, -1].log_softmax(dim=-1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 3},
        {"do_sample": True, "num_return_sequences": 2},
        {"num_beams": 4, "num_return_sequences": 2},
    ],
    ids=["greedy", "beams", "samples", "n best"],
)
def test_guided_scores_follow_the_formula_at_each_step(optional, options, monkeypatch):  # noqa: F811
    model, stock = optional
    steps, call = [], LengthGuidanceLogitsProcessor.__call__

    def checked(self, input_ids, scores):
        guided = call(self, input_ids, scores)
        own, without = scores.log_softmax(dim=-1), without_length(model, input_ids, stock)
        expected = without + 2.5 * (own - without)
        low = own < own.max(dim=-1, keepdim=True).values - 4
        expected = torch.where(low & (expected > own), own, expected).log_softmax(dim=-1)
        assert torch.allclose(guided, expected, atol=1e-4)
        steps.append(float((guided - own).abs().max()))
        return guided

    monkeypatch.setattr(LengthGuidanceLogitsProcessor, "__call__", checked)
    torch.manual_seed(0)
    model.generate(**sources_of(model), length=[9, 14], guidance_scale=2.5, length_constraint="max", **options)
    assert len(steps) > 3 and max(steps) > 0.1


def test_with_beams_only_the_newest_ids_are_read(optional, monkeypatch):  # noqa: F811
    model, _ = optional
    origins, find = [], LengthGuidanceLogitsProcessor._origin

    def seen(self, ids):
        origins.append(find(self, ids))
        return origins[-1]

    monkeypatch.setattr(LengthGuidanceLogitsProcessor, "_origin", seen)
    model.generate(**sources_of(model), length=12, guidance_scale=2.0, length_constraint="exact", num_beams=3)
    assert origins[0] is None and len(origins) > 3
    assert all(rows is not None and sorted({int(i) // 3 for i in rows}) == [0, 1] for rows in origins[1:])


def test_the_scale_of_1_changes_nothing(optional):  # noqa: F811
    model, _ = optional
    call = {**sources_of(model), "length": 10, "length_constraint": "max", "num_beams": 2}
    assert torch.equal(model.generate(**call, guidance_scale=1.0), model.generate(**call))


def test_the_constraint_holds_under_guidance(optional):  # noqa: F811
    model, _ = optional
    ids = model.generate(
        **sources_of(model), length=[7, 13], guidance_scale=3.0, length_constraint="exact", num_beams=4
    )
    start = 1 if model.config.is_encoder_decoder else SOURCES["input_ids"].shape[1]
    assert model.unit_table.count(ids[:, start:]).tolist() == [7, 13]


def test_embeddings_of_a_source_are_guided_as_its_ids(optional):  # noqa: F811
    model, _ = optional
    if not model.config.is_encoder_decoder:
        pytest.skip("a causal model needs the ids of its prompt")
    sources, options = sources_of(model), {"length": [7, 13], "guidance_scale": 3.0, "length_constraint": "exact"}
    embeds = model.get_input_embeddings()(sources["input_ids"]) * getattr(model.get_encoder(), "embed_scale", 1)
    given = {"inputs_embeds": embeds, "attention_mask": sources["attention_mask"]}
    assert torch.equal(model.generate(**given, **options), model.generate(**sources, **options))


def test_padding_in_a_prompt_is_recognized_without_a_mask(optional):  # noqa: F811
    model, _ = optional
    if model.config.is_encoder_decoder:
        pytest.skip("transformers infers no mask of a source")
    options = {"length": [7, 13], "guidance_scale": 3.0, "length_constraint": "exact"}
    assert model.config.pad_token_id == 2
    expected = model.generate(**SOURCES, **options)
    assert torch.equal(model.generate(SOURCES["input_ids"], **options), expected)


def test_guidance_needs_a_model_without_its_length(optional):  # noqa: F811
    model, _ = optional
    call = {**sources_of(model), "length": 10, "guidance_scale": 2.0}
    with pytest.raises(ValueError, match=r"guidance_scale=2.0 .* no negative prompt; leave it out"):
        model.generate(**call, negative_prompt_ids=SOURCES["input_ids"])
    model.config.length_optional = False
    try:
        with pytest.raises(ValueError, match=r"guidance_scale=2.0 .* needs a model with length_optional=True"):
            model.generate(**call)
    finally:
        model.config.length_optional = True


def test_guidance_needs_all_ids_of_a_continued_text(optional):  # noqa: F811
    model, _ = optional
    if model.config.is_encoder_decoder:
        pytest.skip("a causal model alone reads later ids")
    ids, options = torch.tensor([[5, 9, 4, 6, 8, 7]]), {"length": 9, "length_constraint": "max", "do_sample": False}
    cache = model.generate(ids[:, :4], **options, return_dict_in_generate=True)[CACHE]
    later = {"input_ids": ids[:, 3:], "attention_mask": torch.ones_like(ids), "cache": cache}
    with pytest.raises(ValueError, match=r"reads the whole prompt .* the last 3 of 6; pass them all"):
        model.generate(**later, **options, guidance_scale=2.0)
    expected = model.generate(ids, **options, guidance_scale=2.0)
    assert torch.equal(model.generate(ids, **options, guidance_scale=2.0, cache=cache), expected)
