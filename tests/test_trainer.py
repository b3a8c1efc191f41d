"""What LengthControlTrainer hands to the model: lengths with noise in training, without in evaluation."""

import pytest
import torch
from conftest import SOURCES, TARGETS, build_model
from datasets import Dataset
from transformers import Seq2SeqTrainingArguments, TrainerCallback

from hf_lenctrl import DataCollatorForLengthControl, LengthControlTrainer


class StopAt(TrainerCallback):
    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = control.should_training_stop or state.global_step == self.step


def seen_lengths(tokenizer, folder, *, stop_at: int = 0, resume=False, workers: int = 0, accumulate: int = 1):
    """(source ids, length) of every training example in order, and of every evaluation example."""
    rows = [tokenizer(s, text_target=t) for s, t in zip(SOURCES, TARGETS, strict=True)]
    rows = Dataset.from_list([dict(row) for row in rows])
    torch.manual_seed(0)
    model = build_model("marian", vocab_size=len(tokenizer))
    training: list[tuple] = []
    evaluation: list[tuple] = []

    def look(module, args, kwargs):
        sink = training if module.training else evaluation
        sink += zip(map(tuple, kwargs["input_ids"].tolist()), kwargs["length"].tolist(), strict=True)

    model.register_forward_pre_hook(look, with_kwargs=True)
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder),
        num_train_epochs=3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=accumulate,
        dataloader_num_workers=workers,
        save_steps=1,
        seed=7,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    trainer = LengthControlTrainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        eval_dataset=rows,
        train_collator=DataCollatorForLengthControl(tokenizer, model=model, length_noise=4, seed=7),
        data_collator=DataCollatorForLengthControl(tokenizer, model=model),
        processing_class=tokenizer,
        callbacks=[StopAt(stop_at)],
    )
    trainer.train(resume_from_checkpoint=resume)
    trainer.evaluate()
    return training, evaluation


@pytest.fixture(scope="module")
def whole(shared_tokenizer, tmp_path_factory):
    return seen_lengths(shared_tokenizer, tmp_path_factory.mktemp("whole"))


def test_noise_is_drawn_anew_each_epoch_and_off_in_evaluation(whole, shared_tokenizer):
    training, evaluation = whole
    table = DataCollatorForLengthControl(shared_tokenizer, length_unit="token").unit_table
    exact = [int(table.count(torch.tensor([ids]))) for ids in shared_tokenizer(text_target=TARGETS)["input_ids"]]
    assert [length for _, length in evaluation] == exact
    assert len(training) == 3 * len(SOURCES)
    epochs = [training[i : i + len(SOURCES)] for i in range(0, len(training), len(SOURCES))]
    drawn = [[length for _, length in sorted(epoch)] for epoch in epochs]
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 3, 5], ids=["within an epoch", "between epochs", "in the second"])
def test_a_resumed_run_draws_what_the_whole_one_drew(whole, shared_tokenizer, tmp_path, step):
    first, _ = seen_lengths(shared_tokenizer, tmp_path, stop_at=step)
    second, _ = seen_lengths(shared_tokenizer, tmp_path, resume=True)
    assert len(first) == 2 * step and first + second == whole[0]


@pytest.mark.slow
def test_workers_draw_what_one_process_draws(whole, shared_tokenizer, tmp_path):
    assert seen_lengths(shared_tokenizer, tmp_path, workers=2)[0] == whole[0]


@pytest.mark.slow
def test_accumulated_gradients_draw_the_same(whole, shared_tokenizer, tmp_path):
    assert seen_lengths(shared_tokenizer, tmp_path, accumulate=2)[0] == whole[0]
