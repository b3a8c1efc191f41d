"""The generation recipe with models: each row at its length, from plain models, ensembles and several candidates."""

import pytest
from conftest import SOURCES, TARGETS, build_model
from recipe_runs import load, save, save_stock, write_rows, write_texts

import hf_lenctrl
from hf_lenctrl.commands import generate


@pytest.fixture(scope="module")
def saved(character_tokenizer, tmp_path_factory):
    """An untrained model that counts characters and has a vocabulary for each side, saved with its tokenizer."""
    tokenizer = character_tokenizer
    fields = {"vocab_size": len(tokenizer), "length_unit": "character", "init_std": 0.5}
    fields |= {"decoder_vocab_size": len(tokenizer.target_encoder), "share_encoder_decoder_embeddings": False}
    return save(build_model("marian", seed=5, **fields), tokenizer, tmp_path_factory.mktemp("saved"))


BUDGETS = [9, 30, 4, 9, 17, 1]


def test_every_row_is_written_at_its_own_length_in_the_order_of_the_file(saved, tmp_path):
    rows = [{"text": source, "budget": n} for source, n in zip(SOURCES, BUDGETS, strict=True)]
    file = write_rows(tmp_path / "in.jsonl", rows)
    columns = ("--length_column", "budget", "--source_column", "text")
    written = write_texts(saved, file, *columns, "--num_beams", 1, "--batch_size", 2)
    assert [row["source"] for row in written] == SOURCES
    assert [row["requested"] for row in written] == BUDGETS
    assert [row["length"] for row in written] == [len(row["output"]) for row in written]
    # Each text is what the model writes for that source at that length. It does not know how to end, and the limit of
    # a batch is that of its longest request, so alone it may be stopped earlier.
    model, tokenizer = load(saved)
    for row in written:
        ids = model.generate(**tokenizer(row["source"], return_tensors="pt"), length=row["requested"])
        alone = tokenizer.decode(ids[0], skip_special_tokens=True)
        assert len(alone) >= 30 and row["output"].startswith(alone)
    assert len({row["output"][:30] for row in written}) >= 3  # so that a mix-up would show


def test_a_length_and_a_bound_of_the_model_hold_where_none_is_given(saved, tmp_path, capsys):
    model, tokenizer = load(saved)
    model.config.length, model.config.length_constraint = 8, "exact"
    folder = save(model, tokenizer, tmp_path / "default")
    file = write_rows(tmp_path / "in.jsonl", [{"source": source} for source in SOURCES])
    assert [(row["requested"], row["length"]) for row in write_texts(folder, file)] == [(8, 8)] * 6
    assert "mae 0.000" in capsys.readouterr().err


def test_only_a_line_break_ends_a_text(saved, tmp_path):
    # `str.splitlines` breaks at form feeds and at Unicode separators too, which real text holds
    sources = ["A small\u2028editor.", "A form\x0cfeed.", "A next\x85line."]
    file = tmp_path / "in.txt"
    file.write_bytes("\r\n".join(sources).encode())
    assert [row["source"] for row in write_texts(saved, file, "--length", 5)] == sources


def test_a_length_that_the_model_cannot_hold_is_told_before_anything_is_written(
    monkeypatch, shared_tokenizer, tmp_path
):
    fields = {"length_unit": "token", "absolute_positions": True}  # 128 positions
    model = build_model("marian", vocab_size=len(shared_tokenizer), **fields)
    folder = save(model, shared_tokenizer, tmp_path / "positions")
    batches = []
    original = hf_lenctrl.LenCtrlMarianMTModel.generate

    def counted(self, *args, **kwargs):
        ids = original(self, *args, **kwargs)
        batches.append(ids)
        return ids

    monkeypatch.setattr(hf_lenctrl.LenCtrlMarianMTModel, "generate", counted)
    rows = [{"source": source, "n": n} for source, n in zip(SOURCES, [5, 6, 500, 7, 8, 9], strict=True)]
    file = write_rows(tmp_path / "in.jsonl", rows)
    with pytest.raises(ValueError, match="length=500 needs at least 501 decoder positions, the model has 128"):
        write_texts(folder, file, "--length_column", "n", "--batch_size", 1)
    assert not batches  # no hours of work before the error


# Constraints, ratios, re-ranking, several outputs and several models


def test_lengths_are_those_of_the_source_or_of_the_reference(saved, tmp_path):
    file = write_rows(tmp_path / "in.jsonl", [{"source": s, "gold": t} for s, t in zip(SOURCES, TARGETS, strict=True)])
    options = ("--length_constraint", "max")
    written = write_texts(saved, file, "--length", "source", *options)
    assert [row["requested"] for row in written] == [len(source) for source in SOURCES]
    (tmp_path / "out.jsonl").unlink()
    written = write_texts(saved, file, "--length", "reference", "--reference_column", "gold", *options)
    assert [row["requested"] for row in written] == [17, 33, 24, 29, 23, 25]
    assert [row["gold"] for row in written] == TARGETS


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("--length_ratio 0.4", {"length_ratio": 0.4, "num_beams": 4, "num_return_sequences": 1, "rerank": 0}),
        ("--length_ratio 0.9 1.1 --num_beams 2", {"length_ratio": (0.9, 1.1), "num_beams": 2}),
        ("--length predict --predictor some", {"predictor": "some"}),
        ("--length 5 --rerank 3 --length_unit word", {"rerank": 3, "length_unit": "word"}),
        ("--length 5 --length_constraint exact --length_tolerance 4", {"length_constraint": "exact"}),
        ("--length 5 --do_sample --top_p 0.9", {"do_sample": True, "top_p": 0.9, "num_beams": 1}),
        ("--length 5 --num_return_sequences 3", {"num_return_sequences": 3, "output_scores": True}),
        ("--length 30-42 --length_plans 2 --batch_size 7", {"length_plans": 2, "batch_size": 7}),
        ("--length 6 --batch_tokens 4000", {"batch_tokens": 4000, "batch_size": None}),
    ],
)
def test_options_reach_the_pipeline(words, given):
    args = generate.parse(["--model", "m", "--input_file", "i", "--output_file", "o", *words.split()])
    options = generate.generation_options(args)
    assert {name: options.get(name) for name in given} == given


def test_several_models_are_an_ensemble(saved):
    model, tokenizer = generate.load([str(saved), str(saved)])
    assert type(model) is hf_lenctrl.LengthControlEnsemble and len(model.models) == 2 and len(tokenizer) > 60


@pytest.fixture(scope="module")
def stock(shared_tokenizer, tmp_path_factory):
    return save_stock(tmp_path_factory.mktemp("stock"), shared_tokenizer)


def test_a_stock_model_needs_no_length(stock, tmp_path):
    file = write_rows(tmp_path / "in.jsonl", [{"source": source} for source in SOURCES])
    rows = write_texts(stock, file)
    assert [row["source"] for row in rows] == SOURCES
    assert all(row["requested"] is None and row["length"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("stock", ("--length", 5), "MarianMTModel has no length control.*length_constraint='max' or 'exact'"),
        ("saved", (), "no length was given; pass length=40"),
        (
            "saved",
            ("--length", 4, "--length_unit", "word"),
            "length_unit='word', but the model was trained to count ch",
        ),
    ],
)
def test_what_a_model_cannot_do_is_told(request, tmp_path, model, options, message):
    file = write_rows(tmp_path / "in.jsonl", [{"source": "a"}])
    with pytest.raises(ValueError, match=message):
        write_texts(request.getfixturevalue(model), file, *options)
    assert not (tmp_path / "out.jsonl").exists()
