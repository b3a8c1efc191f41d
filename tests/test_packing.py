"""Several pairs in one row: the same loss and gradients as one pair in a row, and one shape for all batches."""

import pytest
import torch
import transformers
from conftest import SOURCES, TARGETS, build_model_of, plain_marian
from test_trainer import arguments
from torch.nn.functional import cross_entropy

from hf_lenctrl import DataCollatorForLengthControl, LengthControlTrainer, add_length_control
from hf_lenctrl.training.packing import PackedRows


PACKING = (120, 50)


@pytest.fixture(scope="module")
def pairs(shared_tokenizer) -> list[dict]:
    texts = [*zip(SOURCES, TARGETS, strict=True), *((target, target[:9]) for target in TARGETS)]
    return [dict(shared_tokenizer(s, text_target=t)) for s, t in texts]


def controlled(family, tokenizer, **fields):
    """A model whose length encoding has an effect, without dropout, in training mode."""
    model = build_model_of(family, vocab_size=len(tokenizer), length_unit="character", **fields)
    model.set_unit_table(tokenizer)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "length_" in name or "embed_positions" in name and weight.requires_grad:
                weight.normal_(std=0.3)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    return model.train()


def loss_and_gradients(model, batch, smoothing):
    model.zero_grad()
    labels = batch.pop("labels")
    logits = model(**batch, use_cache=False).logits
    loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_parity(model, tokenizer, pairs, smoothing=0.1, **options):
    packed = DataCollatorForLengthControl(tokenizer, model=model, packing=PACKING, seed=4, **options)
    alone = DataCollatorForLengthControl(tokenizer, model=model, seed=4, **options)
    for collate in (packed, alone):
        collate.set_epoch(0)
    rows = PackedRows(pairs, PACKING)
    batch = packed([rows[i] for i in range(len(rows))])
    assert len(rows) < len(pairs) / 2 and batch["input_ids"].shape == (len(rows), PACKING[0])
    loss, gradients = loss_and_gradients(model, dict(batch), smoothing)
    expected, own = loss_and_gradients(model, dict(alone(pairs)), smoothing)
    torch.testing.assert_close(loss, expected)
    assert gradients.keys() == own.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, own[name], rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    return batch


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("encoding", ["ldpe", "lrpe", "pre", "learned", "scale"])
def test_packed_pairs_have_the_loss_and_gradients_of_single_ones(family, encoding, attention, pairs, shared_tokenizer):
    model = controlled(family, shared_tokenizer, length_encoding=encoding, absolute_positions=True)
    model.set_attn_implementation(attention)
    assert_parity(model, shared_tokenizer, pairs)


@pytest.mark.parametrize("family", ["mbart", "pegasus", "t5", "umt5"])
def test_the_other_families_do_too(family, pairs, shared_tokenizer):
    model = controlled(family, shared_tokenizer, length_encoding="ldpe", absolute_positions=True)
    assert_parity(model, shared_tokenizer, pairs)


@pytest.mark.parametrize(
    "fields", [{"length_encoding": "lrpe"}, {"length_encoding": "none", "absolute_positions": True}]
)
def test_without_positions_and_without_a_length(family, fields, pairs, shared_tokenizer):
    batch = assert_parity(controlled(family, shared_tokenizer, **fields), shared_tokenizer, pairs, smoothing=0.0)
    assert ("progress" in batch) == ("length" in batch) == (fields["length_encoding"] != "none")


def test_the_draws_are_those_of_single_pairs(pairs, shared_tokenizer):
    model = controlled("marian", shared_tokenizer, length_encoding="ldpe", absolute_positions=True)
    model.make_length_optional()
    shares = {"length_noise": 2, "overshoot_share": 0.3, "no_length_share": 0.3}
    batch = assert_parity(model, shared_tokenizer, pairs, **shares)
    assert (batch["length"] == 0).any() and (batch["labels"][batch["decoder_pair_ids"] > 0] == -100).any()


def test_rows_hold_each_pair_once_fill_the_batches_and_depend_on_the_seed(pairs):
    found = [PackedRows(pairs, PACKING, seed, batch_size=5) for seed in (1, 1, 2)]
    assert found[0].rows == found[1].rows != found[2].rows
    assert [len(rows) for rows in found] == [5, 5, 5]
    assert sorted(i for row in found[0].rows for i in row) == list(range(12))
    for row in (found[0][at] for at in range(5)):
        assert sum(len(pair["input_ids"]) for pair in row) <= 120 and sum(len(pair["labels"]) for pair in row) <= 50
    with pytest.raises(ValueError, match=r"row of 20 source and 50 target tokens, got \d+ and \d+ in pair 0"):
        PackedRows(pairs, (20, 50))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length_head": True}, "but length_head has one for a row"),
        ({"encoder_length_embedding": True}, "but encoder_length_embedding has one for a row"),
        ({"family": "m2m_100"}, "M2M100 counts them from ids"),
        ({"packing": (129, 50)}, r"at most the model's 128 positions, got \(129, 50\)"),
        ({"packing": (0, 50)}, r"at least 1.*, got \(0, 50\)"),
        ({"plain": True}, "packing needs an encoder-decoder with length control, got MarianMTModel"),
        ({"attention": "flex_attention"}, "sdpa or eager, got flex_attention"),
        ({"padding_side": "left"}, "pads on the right"),
    ],
)
def test_what_cannot_be_packed_is_refused(fields, message, shared_tokenizer, monkeypatch):
    options = {"family": "marian", "packing": PACKING, "length_encoding": "ldpe", "absolute_positions": True, **fields}
    family, packing = options.pop("family"), options.pop("packing")
    monkeypatch.setattr(shared_tokenizer, "padding_side", options.pop("padding_side", "right"))
    attention = options.pop("attention", None)
    model = plain_marian(shared_tokenizer) if options.pop("plain", False) else build_model_of(family, **options)
    if attention is not None:
        model.config._attn_implementation = attention
    with pytest.raises(ValueError, match=message):
        DataCollatorForLengthControl(shared_tokenizer, length_unit="token", model=model, packing=packing)


def test_a_batch_of_single_pairs_and_rows_without_lengths_are_refused(pairs, shared_tokenizer):
    model = controlled("marian", shared_tokenizer, length_encoding="ldpe")
    collate = DataCollatorForLengthControl(shared_tokenizer, model=model, packing=PACKING)
    with pytest.raises(ValueError, match=r"wrap the dataset: PackedRows\(rows, packing\)"):
        collate(pairs)
    batch = collate([pairs[:2]])
    with pytest.raises(ValueError, match="packed rows need length and progress"):
        model(**{name: value for name, value in batch.items() if name != "progress"})


def test_the_trainer_packs_training_rows_alone_and_resumes(pairs, shared_tokenizer, tmp_path):
    def trainer(folder, **options):
        torch.manual_seed(0)
        control = {"length_encoding": "ldpe", "length_unit": "character", "tokenizer": shared_tokenizer}
        model = add_length_control(plain_marian(shared_tokenizer), **control)
        collate = DataCollatorForLengthControl(shared_tokenizer, model=model, packing=PACKING, overshoot_share=0.2)
        shape = {"per_device_train_batch_size": 2, "max_steps": 6, "save_strategy": "steps", "save_steps": 3}
        args = arguments(tmp_path / folder, **shape, label_smoothing_factor=0.1, seed=3, **options)
        made = LengthControlTrainer(model, args, collate, train_dataset=pairs, eval_dataset=pairs)
        seen = []
        model.get_encoder().register_forward_pre_hook(
            lambda module, given, kwargs: seen.append((module.training, tuple(kwargs["input_ids"].shape))),
            with_kwargs=True,
        )
        return made, seen

    whole, seen = trainer("whole")
    whole.train()
    assert seen == 6 * [(True, (2, 120))]
    assert whole.model.config.trained_lengths["max"] == max(len(text) for text in TARGETS)
    whole.evaluate()
    assert [kind for kind, _ in seen[6:]] == 2 * [False] and seen[6][1][0] == 8
    resumed, seen = trainer("resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert len(seen) == 3
    for name, weight in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], weight, rtol=0, atol=0, msg=name)
    with pytest.raises(ValueError, match="packing needs train_sampling_strategy=random, got group_by_length"):
        trainer("grouped", train_sampling_strategy="group_by_length")


@pytest.mark.skipif(transformers.__version__ < "5.23", reason="transformers before 5.23 compiles a wrapper twice")
def test_batches_of_one_shape_compile_once(pairs, shared_tokenizer, tmp_path):
    model = controlled("marian", shared_tokenizer, length_encoding="ldpe", absolute_positions=True)
    collate = DataCollatorForLengthControl(shared_tokenizer, model=model, packing=PACKING)
    options = {"torch_compile": True, "torch_compile_backend": "eager", "per_device_train_batch_size": 2}
    trainer = LengthControlTrainer(model, arguments(tmp_path, max_steps=4, **options), collate, train_dataset=pairs)
    torch.compiler.reset()  # what other tests compiled would count as a first time
    with torch._dynamo.config.patch(error_on_recompile=True):
        trainer.train()
    assert trainer.accelerator.state.dynamo_plugin.dynamic is not True
