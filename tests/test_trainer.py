"""What LengthControlTrainer hands to the model: lengths with noise in training alone; what the stock Trainer does."""

import random
from pathlib import Path

import pytest
import torch
from conftest import SOURCES, TARGETS, build_model, controlled_marian, plain_marian
from datasets import Dataset
from torch.nn.functional import cross_entropy, kl_div
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.trainer_pt_utils import LabelSmoother

from hf_lenctrl import DataCollatorForLengthControl, LengthControlTrainer, add_length_control


def arguments(folder: Path, **options) -> Seq2SeqTrainingArguments:
    own = {"per_device_train_batch_size": 3, "report_to": [], "save_strategy": "no", "use_cpu": True}
    return Seq2SeqTrainingArguments(folder, disable_tqdm=True, **{**own, **options})


@pytest.fixture
def pairs(shared_tokenizer) -> list[dict]:
    return [dict(shared_tokenizer(s, text_target=t)) for s, t in zip(SOURCES, TARGETS, strict=True)]


@pytest.fixture
def counting(shared_tokenizer):
    """A model, and the (training, length) of each row that it was given."""
    model, seen = controlled_marian(shared_tokenizer), []
    model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: seen.extend((module.training, n) for n in kwargs["length"].tolist()),
        with_kwargs=True,
    )
    return model, seen


def test_the_stock_trainer_refuses_noise_and_names_ours(counting, pairs, shared_tokenizer, tmp_path):
    model, seen = counting
    collate = DataCollatorForLengthControl(shared_tokenizer, model=model, length_noise=2, overshoot_share=0.2)
    trainer = Seq2SeqTrainer(model, arguments(tmp_path), collate, train_dataset=pairs, eval_dataset=pairs)
    refused = "are for training; use LengthControlTrainer, or pass model= and call model.train"
    for call in (trainer.evaluate, trainer.train):
        with pytest.raises(ValueError, match=refused):
            call()
    model.train()
    args = arguments(tmp_path, num_train_epochs=1, eval_strategy="epoch")
    with pytest.raises(ValueError, match=refused):
        Seq2SeqTrainer(model, args, collate, train_dataset=pairs, eval_dataset=pairs).train()
    assert len(seen) == 6 and all(training for training, _ in seen)  # it trained, but evaluated nothing


def test_noise_is_drawn_in_a_plain_loop(counting, pairs, shared_tokenizer):
    model, _ = counting
    collate = DataCollatorForLengthControl(shared_tokenizer, model=model, length_noise=2)
    torch.manual_seed(0)
    model.train()
    batches = [batch for _ in range(15) for batch in DataLoader(pairs, batch_size=3, collate_fn=collate)]
    exact, drawn = 15 * [len(text) for text in TARGETS], torch.cat([batch["length"] for batch in batches]).tolist()
    assert {n - m for n, m in zip(drawn, exact, strict=True)} == {-2, -1, 0, 1, 2}
    assert drawn[:6] * 15 != drawn  # anew in each epoch
    model.eval()
    with pytest.raises(ValueError, match="are for training; use LengthControlTrainer"):
        collate(pairs)


def test_one_noisy_collator_is_enough_and_evaluation_is_exact(counting, pairs, shared_tokenizer, tmp_path):
    model, seen = counting
    collate = DataCollatorForLengthControl(shared_tokenizer, model=model, length_noise=4, seed=3)
    args = arguments(tmp_path, num_train_epochs=2, eval_strategy="epoch")
    LengthControlTrainer(model, args, collate, train_dataset=pairs, eval_dataset=pairs).train()
    exact = sorted(len(text) for text in TARGETS)
    assert [n for training, n in seen if not training] == 2 * [len(text) for text in TARGETS]
    noisy = [n for training, n in seen if training]
    epochs = [sorted(noisy[i : i + 6]) for i in (0, 6)]
    assert exact not in epochs and epochs[0] != epochs[1]


def test_batches_group_rows_by_their_longer_side(shared_tokenizer, tmp_path):
    draw, model = random.Random(1), build_model("marian", vocab_size=len(shared_tokenizer))
    sides = [(n, max(1, n + draw.randrange(-6, 7))) for n in draw.choices(range(2, 40), k=256)]
    rows = Dataset.from_dict({"input_ids": [[5] * n for n, _ in sides], "labels": [[5] * n for _, n in sides]})
    collate = DataCollatorForLengthControl(shared_tokenizer, model=model)
    args = arguments(tmp_path, per_device_train_batch_size=4, train_sampling_strategy="group_by_length")
    padded = []
    for trainer in (Seq2SeqTrainer, LengthControlTrainer):
        order = list(trainer(model, args, collate, train_dataset=rows)._get_train_sampler())
        assert sorted(order) == list(range(256))
        batches = [[sides[i] for i in order[start : start + 4]] for start in range(0, 256, 4)]
        padded.append(sum(4 * max(side) - sum(side) for batch in batches for side in zip(*batch, strict=True)))
    assert padded[1] < 0.9 * padded[0]


@pytest.mark.parametrize("stock", [True, False])
def test_a_column_named_length_is_not_taken_in_silence(counting, pairs, shared_tokenizer, tmp_path, caplog, stock):
    model, seen = counting
    rows = [{**row, "length": 3} for row in pairs]
    kind = DataCollatorForSeq2Seq if stock else DataCollatorForLengthControl
    args, collate = arguments(tmp_path, max_steps=2), kind(shared_tokenizer, model=model)
    Seq2SeqTrainer(model, args, collate, train_dataset=rows).train()
    assert sorted(n for _, n in seen) == ([3] * 6 if stock else sorted(len(text) for text in TARGETS))
    said = "a column `length` of the rows is taken" if stock else "the column `length` of the rows is not used"
    assert caplog.text.count(said) == 1


def test_a_limit_below_the_requested_length_is_told_once(counting, pairs, shared_tokenizer, tmp_path, caplog):
    model, _ = counting
    collate = DataCollatorForLengthControl(shared_tokenizer, model=model)
    args = arguments(tmp_path, predict_with_generate=True, generation_max_length=4, per_device_eval_batch_size=2)
    Seq2SeqTrainer(model, args, collate, eval_dataset=pairs, compute_metrics=lambda evaluation: {}).evaluate()
    assert caplog.text.count("outputs were cut at 4 tokens, before they had their length") == 1
    assert "generation_max_length" in caplog.text


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_a_mean_over_tokens_with_smoothing(counting, pairs, shared_tokenizer, tmp_path, smoothing):
    model, _ = counting
    collate = DataCollatorForLengthControl(shared_tokenizer, model=model)
    args = arguments(tmp_path, label_smoothing_factor=smoothing)
    trainer = LengthControlTrainer(model.eval(), args, collate, train_dataset=pairs)
    batch = collate([dict(pair) for pair in pairs])
    with torch.no_grad():
        expected = LabelSmoother(smoothing)(model(**batch), batch["labels"])
        assert float(trainer.compute_loss(model, dict(batch))) == pytest.approx(float(expected), rel=1e-5)


def test_r_drop_is_the_mean_loss_of_two_passes_and_their_divergence(counting, pairs, shared_tokenizer, tmp_path):
    (model, _), logits = counting, []
    collate = DataCollatorForLengthControl(shared_tokenizer, model=model)
    args = arguments(tmp_path, label_smoothing_factor=0.1)
    trainer = LengthControlTrainer(model.train(), args, collate, train_dataset=pairs, r_drop=0.7)
    model.lm_head.register_forward_hook(lambda module, given, output: logits.append(output.detach()))
    batch = collate([dict(pair) for pair in pairs])
    counts = batch["labels"].flatten() != -100
    loss = trainer.compute_loss(model, dict(batch), num_items_in_batch=int(counts.sum())).item()
    assert len(logits) == 1 and len(logits[0]) == 12
    smoothed = cross_entropy(logits[0].flatten(0, 1), batch["labels"].repeat(2, 1).flatten(), label_smoothing=0.1)
    one, two = (part.flatten(0, 1)[counts].log_softmax(1) for part in logits[0].chunk(2))
    assert not torch.equal(one, two)  # dropout differs
    gaps = [kl_div(a, b, reduction="batchmean", log_target=True) for a, b in ((one, two), (two, one))]
    assert loss == pytest.approx(float((smoothed + 0.7 * sum(gaps) / 2).detach()), rel=1e-5)
    model.eval()
    plain = float(LengthControlTrainer(model, args, collate).compute_loss(model, dict(batch)))
    assert float(trainer.compute_loss(model, dict(batch))) == plain and len(logits[-1]) == 6
    with pytest.raises(ValueError, match="r_drop must be at least 0, .* got -1"):
        LengthControlTrainer(model, args, collate, r_drop=-1)


def test_a_loss_of_the_users_own_and_a_collator_without_a_model_are_kept(counting, pairs, shared_tokenizer, tmp_path):
    def own_loss(outputs, labels, num_items_in_batch=None):
        calls.append(len(labels))
        return outputs["logits"].sum() * 0

    (model, seen), calls = counting, []
    collate = DataCollatorForLengthControl(shared_tokenizer, length_unit="character")
    args = arguments(tmp_path, max_steps=1)
    LengthControlTrainer(model, args, collate, train_dataset=pairs, compute_loss_func=own_loss).train()
    assert calls == [3] and len(seen) == 3


def test_an_empty_training_set_is_refused(counting, shared_tokenizer, tmp_path):
    for rows in ([], Dataset.from_list([])):
        with pytest.raises(ValueError, match="train_dataset needs at least one example, got none; leave it out"):
            LengthControlTrainer(
                counting[0], arguments(tmp_path), train_dataset=rows, processing_class=shared_tokenizer
            )


def test_workers_that_outlive_an_epoch_leave_a_resumed_run_as_it_was(pairs, shared_tokenizer, tmp_path):
    own = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "save_strategy": "steps"}
    own |= {"num_train_epochs": 3, "save_steps": 1, "dataloader_multiprocessing_context": "fork"}
    weights = []
    for resumed in (None, 1, 2):  # of two steps in an epoch
        model = controlled_marian(shared_tokenizer, dropout=0.3)
        args = arguments(tmp_path / "run" if resumed is None else tmp_path / "resumed", **own)
        trainer = LengthControlTrainer(model, args, train_dataset=pairs, processing_class=shared_tokenizer)
        trainer.train(resume_from_checkpoint=resumed and str(tmp_path / "run" / f"checkpoint-{resumed}"))
        weights.append(torch.cat([each.detach().flatten() for each in model.parameters()]))
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[0], weights[2])


def test_the_projection_decays_as_the_other_weights(shared_tokenizer, tmp_path):
    model = add_length_control(plain_marian(shared_tokenizer), tokenizer=shared_tokenizer)
    for decay in (0.0, 0.1):
        args, own = arguments(tmp_path, weight_decay=decay), {"projection_lr_factor": 5}
        trainer = LengthControlTrainer(model, args, processing_class=shared_tokenizer, **own)
        assert trainer.create_optimizer().param_groups[-1]["weight_decay"] == decay


@pytest.mark.parametrize("name", ["_issue_warnings_after_load", "_get_eval_sampler", "_get_dataloader"])
def test_the_private_methods_of_trainer_that_this_package_overrides_are_there(name):  # in transformers 5.23
    assert callable(getattr(Seq2SeqTrainer, name))
