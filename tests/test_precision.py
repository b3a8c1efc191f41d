"""bfloat16, static caches and torch.compile: the same lengths, and in float32 the same ids."""

import pytest
import torch
from conftest import SOURCES, build_model, build_model_of
from recipe_runs import ROWS, assert_same_weights, train, weights, write_rows, write_texts
from test_modeling_lenctrl import paper_encoding
from torch._dynamo.utils import counters
from transformers.models.bart.modeling_bart import BartDecoder
from transformers.models.marian.modeling_marian import MarianDecoder


HALF = torch.bfloat16  # it knows 256 and 258, but not 257
PARENTS = {"bart": BartDecoder, "marian": MarianDecoder}


@pytest.fixture(autouse=True)
def fresh_compiler(caplog):
    """Neither graphs nor counts of other tests; and none of the thousand lines that are logged of a failed one."""
    caplog.set_level("WARNING", logger="torch")
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


@pytest.fixture
def quick_compile(monkeypatch):
    """`torch.compile` without inductor, which takes a minute for what is traced in seconds."""
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: compile_(model, **{**options, "backend": "eager"}))


def graphs() -> tuple[int, int]:
    """How many were compiled, and where one had to end before its time."""
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


@pytest.mark.parametrize(("encoding", "autocast"), [("ldpe", False), ("lrpe", True), ("pre", False)])
def test_lengths_past_256_are_told_apart(family, encoding, autocast, monkeypatch):
    model = build_model(family, length_encoding=encoding)
    model.model.decoder.embed_tokens.weight.data.zero_()
    model = model if autocast else model.to(HALF)
    seen = []
    parent = PARENTS[family].forward

    def watch(self, *args, inputs_embeds=None, **kwargs):
        seen.append(inputs_embeds)
        return parent(self, *args, inputs_embeds=inputs_embeds, **kwargs)

    monkeypatch.setattr(PARENTS[family], "forward", watch)
    progress = torch.tensor([[0, 255, 256, 257], [0, 1, 2, 700], [3, 514, 515, 516]])
    length = torch.tensor([257, 701, 1027])
    with torch.autocast("cpu", dtype=HALF, enabled=autocast):
        model(torch.full((3, 2), 31), decoder_input_ids=torch.full((3, 4), 31), length=length, progress=progress)
    assert seen[0].dtype == (torch.float32 if autocast else HALF)
    scale = getattr(model.model.decoder, "embed_scale", 1.0)
    expected = paper_encoding(encoding, progress.tolist(), length.tolist(), model.config.d_model)
    # half a step of the type's eight bits below 1, and float32's own error in large angles
    atol = 1e-3 if autocast else 2**-8
    torch.testing.assert_close(seen[0].double() * scale, expected, atol=atol, rtol=0)


REQUESTS = [  # texts and their tokens, lengths; no two sizes of a batch are equal, which a graph would rely on
    ((3, 5), [4, 9, 6]),
    ((2, 7), [12, 5]),
]


def write_all(model, requests: int = 2, **options) -> list[list]:
    """Every request greedily and with beams, with and without a bound."""
    draw = torch.Generator().manual_seed(0)
    written = []
    for size, length in REQUESTS[:requests]:
        ids = torch.randint(5, model.config.vocab_size, size, generator=draw)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "length": length}
        for beams in (1, 3):
            for constraint in (None, "exact"):
                ids = model.generate(**inputs, num_beams=beams, length_constraint=constraint, max_length=24, **options)
                written.append(ids.tolist())
    return written


def with_a_head_that_counts(model):
    """Draw the weights of a length head; they begin as zeros, which hide its sums."""
    for name, weight in model.named_parameters():
        if name.endswith("length_out.weight"):
            torch.nn.init.normal_(weight, std=0.5)
    return model


@pytest.mark.parametrize(
    ("any_family", "fields"),
    [(family, {}) for family in ("bart", "marian", "m2m_100", "t5")]
    + [(family, {name: True}) for family in ("bart", "marian") for name in ("length_head", "absolute_positions")],
    ids=str,
)
def test_a_static_cache_writes_the_same(any_family, fields):
    model = with_a_head_that_counts(build_model_of(any_family, init_std=0.2, **fields))
    assert write_all(model, requests=1, cache_implementation="static") == write_all(model, requests=1)


def test_sums_of_a_length_head_end_where_a_static_cache_begins():
    model = with_a_head_that_counts(build_model("marian", length_head=True, init_std=0.2))
    ids = torch.tensor([[2, 30, 31, 32]])
    options = {"decoder_input_ids": ids, "length": 9, "max_new_tokens": 5}  # a prompt of several tokens
    options |= {"output_logits": True, "return_dict_in_generate": True}
    expected = model.generate(torch.tensor([[11, 12]]), **options)
    found = model.generate(torch.tensor([[11, 12]]), **options, cache_implementation="static")
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(expected.logits))  # wrong sums may keep the ids


@pytest.mark.slow
def test_two_compiled_graphs_write_the_same_for_all_lengths_and_batches(quick_compile):
    model = with_a_head_that_counts(build_model("marian", init_std=0.2, length_head=True))
    expected = write_all(model)
    model.forward = torch.compile(model.forward, dynamic=True)
    assert write_all(model, cache_implementation="static", disable_compile=True) == expected
    assert graphs() == (2, 0)  # a first step, which fills the cross-attention's cache, and later ones


BUDGETS = [9, 14, 4, 9, 7, 2]


def test_a_compiled_recipe_writes_the_same(saved, tmp_path, quick_compile):
    file = write_rows(tmp_path / "in.jsonl", [{"source": s, "n": n} for s, n in zip(SOURCES, BUDGETS, strict=True)])
    options = ["--length_column", "n", "--batch_size", 4, "--length_constraint", "exact"]
    plain = write_texts(saved, file, *options)
    (tmp_path / "out.jsonl").unlink()
    assert write_texts(saved, file, *options, "--compile") == plain
    assert graphs() == (2, 0)
    assert [row["length"] for row in plain] == BUDGETS


COMPILED = {"torch_compile": True, "torch_compile_backend": "eager"}


@pytest.mark.slow
def test_compiled_training_has_one_graph_resumes_and_saves_plain_names(tmp_path):
    # an epoch with batches of many lengths, the last of fewer rows
    options = {"rows": ROWS[:62], "num_train_epochs": 1, "max_steps": -1, "save_steps": 5, "test_lengths": [12]}
    options |= {"length_head": True, "absolute_positions": True}
    metrics = train(tmp_path / "plain", **options)
    compiled = train(tmp_path / "compiled", **options, **COMPILED)
    assert graphs() == (1, 0)
    assert compiled["train_loss"] == pytest.approx(metrics["train_loss"], rel=1e-5)
    assert compiled["test_12_mae"] == metrics["test_12_mae"]
    first = weights(tmp_path / "plain")
    assert first.keys() == weights(tmp_path / "compiled").keys() == weights(tmp_path / "compiled/checkpoint-5").keys()
    assert not [name for name in first if "_orig_mod" in name]
    train(tmp_path / "resumed", **options, **COMPILED, resume_from_checkpoint=tmp_path / "compiled" / "checkpoint-5")
    assert_same_weights(tmp_path / "compiled", tmp_path / "resumed")
