"""TRL's trainers, which put a head of their own on the base model, train causal models with a length."""

import pickle

import peft
import pytest
import torch
import transformers
from conftest import given_to
from datasets import Dataset
from test_causal import PROMPTS, build, build_plain, encode, make_tokenizer

from hf_lenctrl import length_reward


trl = pytest.importorskip("trl")
add_fused_lm_head = pytest.importorskip("trl.trainer.utils").add_fused_lm_head

ROWS = [
    {"prompt": "a small", "completion": " editor", "chosen": " editor", "rejected": " text with words"},
    {"prompt": "reads and", "completion": " writes images", "chosen": " writes images", "rejected": " other"},
]
COMPLETIONS = [len(row["completion"]) for row in ROWS]
EXTRAS = {"SFT": {}, "DPO": {}, "GRPO": {"num_generations": 2, "max_completion_length": 12}}
COLUMNS = {"SFT": ["prompt", "completion"], "DPO": ["prompt", "chosen", "rejected"], "GRPO": ["prompt"]}


def trainer_of(kind, folder, model, **options):
    fields = {"max_steps": 3, "per_device_train_batch_size": 2, "report_to": "none", "use_cpu": True}
    config = getattr(trl, f"{kind}Config")(str(folder), logging_steps=1, learning_rate=1e-2, **fields, **EXTRAS[kind])
    if kind == "GRPO":
        options["reward_funcs"] = lambda completions, **_: [float(text.count("e")) for text in completions]
    rows = Dataset.from_list(ROWS * 4).select_columns(COLUMNS[kind])
    options |= {"train_dataset": rows, "processing_class": make_tokenizer()}
    return getattr(trl, f"{kind}Trainer")(model, args=config, **options)


@pytest.mark.parametrize("adapter", [False, True], ids=["whole", "adapter"])
@pytest.mark.parametrize("kind", ["SFT", "DPO", "GRPO"])
def test_three_steps_train_the_length(kind, adapter, tmp_path):
    _, model = build("llama", zero=True)
    lengths = given_to(model, "length")
    model.config.length = 9 if kind == "GRPO" else None
    options = {"peft_config": peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear")} if adapter else {}
    if kind == "DPO" and not adapter:
        options["ref_model"] = build("llama", zero=True)[1]
    trainer = trainer_of(kind, tmp_path, model, **options)
    trainer.train()
    assert trainer.state.global_step == 3
    flat = [n for length in lengths for n in torch.as_tensor(length).flatten().tolist()]
    own = {9} if kind == "GRPO" else {*COMPLETIONS, *(len(row["rejected"]) for row in ROWS if kind == "DPO")}
    assert set(flat) == own
    if kind != "GRPO":  # whose rewards may be equal, so that nothing is learnt
        weights = [p for name, p in model.named_parameters() if "length_projection" in name and p.requires_grad]
        assert any(bool(p.any()) for p in weights)


def test_the_loss_is_that_of_the_model_itself(tmp_path):
    _, model = build("llama")
    model.train()
    trainer = trainer_of("SFT", tmp_path, model)
    batch = next(iter(trainer.get_train_dataloader()))
    expected = type(model).forward(model, **batch).loss
    torch.testing.assert_close(trainer.compute_loss(model, dict(batch)), expected)


def test_the_policy_is_scored_at_the_length_that_it_was_asked_for():
    _, model = build("llama")
    model.config.length, prompt = 23, encode(PROMPTS[1:])  # a limit of tokens cuts what is written
    out = model.generate(**prompt, max_new_tokens=5, do_sample=False, output_logits=True, return_dict_in_generate=True)
    columns = prompt["input_ids"].shape[1]
    expected = torch.stack(out.logits, dim=1).log_softmax(-1).max(dim=-1).values  # (1, 5), of the greedy choices
    labels = out.sequences.clone()
    labels[:, :columns] = -100
    add_fused_lm_head(model.train())
    scored = model(out.sequences, labels=labels, fused_lm_head=True).log_probs
    torch.testing.assert_close(scored[:, columns - 1 :], expected, atol=1e-4, rtol=1e-4)
    ended = torch.full_like(labels, -100)
    ended[:, columns] = 1  # an answer of EOS alone is a sample too
    model(out.sequences, labels=ended, fused_lm_head=True)
    model.config.length = None
    with pytest.raises(ValueError, match="every answer must hold at least one character"):
        model(out.sequences, labels=ended, fused_lm_head=True)


def test_twenty_steps_of_grpo_move_the_mean_length(tmp_path):
    transformers.set_seed(0)
    fields = {"num_generations": 16, "max_completion_length": 16, "loss_type": "dr_grpo", "learning_rate": 3e-2}
    fields |= {"max_steps": 20, "per_device_train_batch_size": 32, "logging_steps": 1, "save_strategy": "no"}
    config = trl.GRPOConfig(str(tmp_path), report_to="none", use_cpu=True, **fields)
    rows = Dataset.from_list([{"prompt": row["prompt"], "length": 40} for row in ROWS * 8])
    options = {"reward_funcs": length_reward(), "train_dataset": rows, "processing_class": make_tokenizer()}
    trainer = trl.GRPOTrainer(build_plain("llama"), args=config, **options)
    trainer.train()
    name = "rewards/length_rewards/mean"  # length / 40, as all answers but a few are shorter
    means = [entry[name] for entry in trainer.state.log_history if name in entry]
    assert len(means) == 20 and sum(means[:3]) / 3 < 0.5 and sum(means[-3:]) / 3 > 0.7  # 0.80 to 0.92 of three seeds


def test_the_reward_counts_the_last_message_of_a_chat_in_any_unit():
    chats = [[{"role": "assistant", "content": None}, {"role": "assistant", "content": text}] for text in ("日本", "")]
    columns = {"prompts": ["a", "b"], "completion_ids": [[1], [1]], "trainer_state": None}
    for unit, expected in (("character", [0.5, 0.0]), ("width", [1.0, 0.0]), ("byte", [4 / 6, 0.0])):
        reward = pickle.loads(pickle.dumps(length_reward(unit)))  # for the workers of asynchronous GRPO
        assert reward(completions=chats, length=[4, 4], **columns) == expected
    vowels = length_reward(lambda text: sum(character in "aeiou" for character in text))
    assert vowels(completions=["banana", "aaaa", "b"], length=[(1, 3), [1, 2], [1, 2]]) == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("unit", "columns", "error", "message"),
    [
        (
            "token",
            {"length": [3]},
            ValueError,
            "unit of a text must be one of character, word, .*, arial, got 'token'",
        ),
        ("word", {}, ValueError, "needs a column 'length' in the data set"),
        ("word", {"length": [0]}, ValueError, "length must be at least 1, got 0"),
        ("word", {"length": [[5, 2]]}, ValueError, r"begins with the lowest, got \(5, 2\); pass \(2, 5\)"),
        ("word", {"length": [[5]]}, ValueError, r"a range of lengths is a tuple \(lowest, highest\), got \(5,\)"),
        ("word", {"length": ["5"]}, TypeError, "length must be an int of at least 1, got '5'"),
    ],
)
def test_a_reward_without_a_length_is_refused(unit, columns, error, message):
    with pytest.raises(error, match=message):
        length_reward(unit)(completions=["one two"], **columns)
