"""The class for Ray Data, and a job of it where Ray is installed."""

import importlib.util
import re
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import SOURCES
from recipe_runs import ROOT
from transformers import GenerationConfig

from hf_lenctrl import LengthControlledGenerationPipeline
from hf_lenctrl.engines.ray import LengthControlledGenerator


needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")


def test_the_class_adds_columns_and_a_text_has_the_neighbours_of_no_batch(saved):
    generator = LengthControlledGenerator(saved, length_constraint="max", batch_size=2)
    batch = {"id": np.arange(6), "text": np.array(SOURCES, dtype=object), "length": np.array([5, 30, 12, 7, 9, 20])}
    found = generator(batch)
    pipe = LengthControlledGenerationPipeline(model=generator.pipeline.model, tokenizer=generator.pipeline.tokenizer)
    for i, source in enumerate(SOURCES):
        alone = pipe(source, length=int(batch["length"][i]), length_constraint="max")
        assert found["generated_text"][i] == alone["generated_text"]
        assert found["generated_length"][i] == alone["length"] <= batch["length"][i]
    assert list(found) == "id text length generated_text generated_length requested_length within".split()
    assert found["within"] == [True] * 6 and found["requested_length"] == [5, 30, 12, 7, 9, 20]
    assert found["id"] is batch["id"]
    order = [3, 5, 0, 4, 2, 1]
    turned = generator({name: column[order] for name, column in batch.items()})
    assert turned["generated_text"] == [found["generated_text"][i] for i in order]


def test_within_is_the_window_of_the_constraint():
    texts = {"a": 8, "b": 9, "c": 10, "d": 12, "e": 13}

    def pipe(given, **options):
        return [{"generated_text": text, "length": texts[text], "requested_length": 10} for text in given]

    config = SimpleNamespace(length_constraint=None, length_tolerance=None, is_encoder_decoder=True)
    pipe.model = SimpleNamespace(config=config, generation_config=GenerationConfig())
    generator = LengthControlledGenerator.__new__(LengthControlledGenerator)
    generator.pipeline, generator.text_column, generator.length_column = pipe, "text", "length"
    for constraint, window, expected in (
        ("max", {}, "abc"),
        ("exact", {"length_tolerance": (1, 2)}, "bcd"),
        (None, {}, "c"),
    ):
        generator.options = {"length_constraint": constraint, **window}
        found = generator({"text": np.array(list(texts)), "length": np.full(5, 10)})["within"]
        assert found == [text in expected for text in texts], constraint


def test_lengths_may_be_texts_and_ranges(saved):
    generator = LengthControlledGenerator(saved)
    for column in (["5-9", "10-14"], [np.array([5, 9]), np.array([10, 14])]):
        values = np.empty(2, dtype=object)
        values[:] = column
        found = generator({"text": np.array(SOURCES[:2]), "length": values})
        assert found["requested_length"] == [[5, 9], [10, 14]] and found["within"] == [True, True]
        assert all(5 <= n <= 14 for n in found["generated_length"])
    fixed = LengthControlledGenerator(saved, length=6, length_constraint="max")  # reads no column
    assert fixed({"text": np.array(SOURCES[:1])})["requested_length"] == [6]


@pytest.mark.parametrize(
    "options, batch, message",
    [
        ({"num_return_sequences": 2}, {}, "a row has one text and one output, got num_return_sequences=2; leave num"),
        ({"length": [3, 4]}, {}, r"length must be one for all rows, got \[3, 4\]; give a column of lengths"),
        ({}, {"texts": ["a"]}, "the batch has no column 'text', only texts; pass text_column"),
        ({}, {"text": ["a"]}, "the batch has no column 'length', only text; pass length, or length_column"),
        ({}, {"text": ["a"], "length": [2.5]}, "column 'length' must hold integers of at least 1, or ranges of them"),
        ({}, {"text": ["a", "b"], "length": ["5-9", "7"]}, "column 'length' .* only ranges, got 7 beside ranges"),
        ({}, {"text": ["a"], "length": [3], "within": [8]}, "the batch has columns within, which are added here; ren"),
        ({}, {"text": ["a"], "length": [np.nan]}, "column 'length' must hold integers of at least 1.*got .*nan"),
    ],
)
def test_the_class_refuses(saved, options, batch, message):
    with pytest.raises(ValueError, match=message):
        LengthControlledGenerator(saved, **options)({name: np.array(values) for name, values in batch.items()})


@needs_ray
@pytest.mark.slow
def test_the_class_in_map_batches_and_the_example_of_the_page(saved, tmp_path, monkeypatch, capsys):
    import ray

    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "ray.md").read_text(encoding="utf-8")
    ((example, claimed),) = re.findall(r"^```py\n(.*?)^```\s+```text\n(.*?)^```", page, flags=re.M | re.S)
    rows = [{"id": i, "text": f"{SOURCES[i % 6]} {i}", "length": 6 + i % 9} for i in range(24)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    try:
        exec(compile(example, "page", "exec"), {})  # starts Ray
        assert capsys.readouterr().out == claimed
        options = {"model": saved, "length_constraint": "max"}
        how = {"fn_constructor_kwargs": options, "compute": ray.data.ActorPoolStrategy(size=2), "batch_size": 8}
        data = ray.data.read_parquet(str(tmp_path / "rows.parquet"), override_num_blocks=3)
        data.map_batches(LengthControlledGenerator, **how).write_parquet(str(tmp_path / "outputs"))
    finally:
        ray.shutdown()
    written = sorted(pq.read_table(tmp_path / "outputs").to_pylist(), key=lambda row: row["id"])
    columns = {name: np.array([row[name] for row in rows], dtype=object) for name in rows[0]}
    here = LengthControlledGenerator(**options)(columns)
    assert written == [dict(zip(here, values, strict=True)) for values in zip(*here.values(), strict=True)]
    assert all(row["within"] and row["generated_length"] <= row["length"] for row in written)
