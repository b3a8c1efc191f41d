"""Bulk generation: the class for Ray Data, keys and parts everywhere, a job where Ray is installed."""

import importlib.util
import json
import re
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import SOURCES
from recipe_runs import ROOT, read_rows, write_rows

from hf_lenctrl import LengthControlledGenerationPipeline
from hf_lenctrl.commands import bulk, generate
from hf_lenctrl.commands.parts import Parts, keys_of
from hf_lenctrl.commands.rows import Request, Rows
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

    config = SimpleNamespace(length_constraint=None, length_tolerance=None)
    pipe.model = SimpleNamespace(config=config, generation_config=None)
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
        ({}, {"text": ["a"], "length": [3], "within": [8]}, "the batch has columns within, which are added here; ren"),
        ({}, {"text": ["a"], "length": [np.nan]}, "column 'length' must hold integers of at least 1.*got .*nan"),
    ],
)
def test_the_class_refuses(saved, options, batch, message):
    with pytest.raises(ValueError, match=message):
        LengthControlledGenerator(saved, **options)({name: np.array(values) for name, values in batch.items()})


def requests(*rows: dict) -> list[Request]:
    return [Request("", None, None, i, json.dumps(row)[1:-1], {}) for i, row in enumerate(rows, start=1)]


def test_a_key_is_that_of_the_row_and_of_equal_rows_before_it():
    keys = keys_of(requests({"a": 1}, {"a": 2}, {"a": 1}, {"a": 1})).tolist()
    assert len(set(keys)) == 4
    assert keys_of(requests({"a": 2}, {"a": 1}, {"a": 5}, {"a": 1})).tolist()[:2] == [keys[1], keys[0]]
    assert keys_of(requests({"a": 1}, {"a": 1}, {"a": 1})).tolist() == [keys[0], keys[2], keys[3]]
    # a column of keys has a value for each row, and none twice
    assert len(set(keys_of(requests({"id": 1}, {"id": "1"}), "id").tolist())) == 2
    with pytest.raises(ValueError, match="rows 1 and 3 have one 'id'; give a column whose values differ"):
        keys_of(requests({"id": 1, "a": 1}, {"id": 2, "a": 2}, {"id": 1, "a": 3}), "id")
    with pytest.raises(ValueError, match="row 2 has no 'id'; give a column that each row has"):
        keys_of(requests({"id": 1}, {"a": 2}), "id")


def test_parts_are_whole_and_tell_what_is_done(tmp_path):
    keys = keys_of(requests({"a": 1}, {"a": 2}, {"a": 3}))
    parts = Parts(tmp_path, {"length": 40}, "key")
    for _ in range(2):  # the same rows again are the same part
        names = [bytes(key).ljust(16, b"\0").hex() for key in keys[:2]]
        parts.write(1, names, [json.dumps({"a": 1, "key": names[0]}), json.dumps({"a": 2, "key": names[1]})])
    assert [path.name[:15] for path in parts.files()] == ["part-000000001-"]
    (tmp_path / "_run" / "part").write_text('{"a": 3, "ke')  # a command was killed here
    again = Parts(tmp_path, {"length": 40}, "key")
    assert np.isin(keys, again.done(keyed=False)).tolist() == [True, True, False]
    with pytest.raises(ValueError, match="no command with these options began it(.|\n)*length=40, now 50"):
        Parts(tmp_path, {"length": 50}, "key")
    named = Parts(tmp_path / "named", {}, "id")
    named.write(1, ["1"], ['{"id": 1}', '{"id": "x"}'])
    rows = requests({"id": "x"}, {"id": 7}, {"id": 1})
    assert np.isin(keys_of(rows, "id"), named.done(keyed=True)).tolist() == [True, False, True]


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet", "txt"])
def test_blocks_are_the_rows_of_the_file(tmp_path, kind):
    path, rows = tmp_path / f"rows.{kind}", [{"source": f"text {i}"} for i in range(7)]
    lines = [json.dumps(row) for row in rows]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    else:
        texts = {"jsonl": "\n\n".join(lines), "json": f"\n [{','.join(lines)}]"}
        path.write_text(texts.get(kind) or "\n".join([*["source"] * (kind == "csv"), *(r["source"] for r in rows)]))
    blocks = list(Rows.blocks(str(path), 3))
    assert [len(block) for block in blocks] == [3, 3, 1] and [block.first for block in blocks] == [1, 4, 7]
    assert [row for block in blocks for row in block.values] == rows == Rows(str(path), plain_text=True).values


def test_a_wrong_row_of_a_later_block_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"source": "a"}\n{"source": "b"}\n{"source": 3}\n')
    args = SimpleNamespace(key_column=None, length=None, way=None, length_column=None)
    args.input_file, args.source_column, args.column_prefix = str(path), "source", ""
    with pytest.raises(ValueError, match="row 3 of .*rows.jsonl: 'source' must hold text, got 3"):
        list(bulk.blocks_of(args, 2))


@pytest.mark.parametrize(
    "words, message",
    [
        ("--output_dir parts", "--output_dir goes with --engine ray"),
        ("", "--output_file is required"),
        ("--engine ray --output_file out", "--engine ray writes parts into a folder: give --output_dir"),
        ("--engine ray --output_dir p --concurrency 0", "--concurrency is at least 1, --actor_cpus above 0 and"),
        ("--engine ray --output_dir p --do_sample", "leave out --do_sample"),
        ("--engine ray --output_dir p --length 3 4", "leave out --length"),
        ("--engine ray --output_dir p --num_return_sequences 2", "leave out --num_return_sequences"),
        ("--engine ray --output_dir p", '--engine ray needs Ray: pip install "hf_lenctrl[ray]"'),
    ],
)
def test_the_command_refuses(words, message, monkeypatch, capsys):
    monkeypatch.setattr(generate, "find_spec", lambda name: None if "needs Ray" in message else name)
    with pytest.raises(SystemExit):
        generate.parse(f"--model org/model --input_file rows.jsonl {words}".split())
    assert message in capsys.readouterr().err


def in_this_process(args, options, size, keys, todo):
    """What Ray's actors return, the last block first."""
    generator = bulk.BlockGenerator(**bulk.arguments(args, options))
    blocks = [generator(block)["block"] for block in bulk.read_blocks(args, size, keys, todo)]
    return [{"block": block} for (block,) in reversed(blocks)]


def rows_of(folder) -> list[dict]:
    return [row for path in sorted(folder.glob("part-*")) for row in read_rows(path)]


WORDS = "--length_column budget --length_constraint max --num_beams 1 --batch_size 2".split()


@pytest.fixture
def command(saved, tmp_path, monkeypatch):
    """Runs the command on rows, two of them equal, in one process without Ray, and returns the rows of its output."""
    rows = [{"source": f"{SOURCES[i % 6]} {i}", "budget": 6 + i % 9} for i in range(39)]
    rows.append(rows[3])
    path = write_rows(tmp_path / "rows.jsonl", rows)
    words = ["--model", str(saved), "--input_file", str(path), *WORDS]

    def run(*more: str) -> list[dict]:
        if more:
            generate.main([*words, "--engine", "ray", "--output_dir", str(tmp_path / "parts"), *more])
            return rows_of(tmp_path / "parts")
        generate.main([*words, "--output_file", str(tmp_path / "whole.jsonl")])
        return read_rows(tmp_path / "whole.jsonl")

    run.path, run.parts = path, tmp_path / "parts"
    return run


def test_the_parts_are_the_output_of_one_process_and_resume(command, monkeypatch, capsys):
    monkeypatch.setattr(generate, "find_spec", lambda name: name)
    monkeypatch.setattr(bulk, "start", lambda args: None)

    def killed(*args):
        yield in_this_process(*args)[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(bulk, "job", killed)
    with pytest.raises(KeyboardInterrupt):
        command("--concurrency", "2")
    assert len(rows_of(command.parts)) == 8  # of 40, in blocks of 32
    monkeypatch.setattr(bulk, "job", in_this_process)
    found = command("--concurrency", "3")  # other machines, the same outputs
    keys = [row.pop("key") for row in found]
    assert len(set(keys)) == 40 and len(list(command.parts.glob("part-*"))) == 2
    assert found == command()
    command("--concurrency", "2")
    assert capsys.readouterr().err.endswith("parts is complete\n")
    with command.path.open("a") as file:
        file.write('{"source": "A new row.", "budget": 9}\n')
    assert [row["source"] for row in command("--concurrency", "2")][40:] == ["A new row."]
    with pytest.raises(ValueError, match="num_beams=1, now 2"):
        command("--num_beams", "2")


@needs_ray
@pytest.mark.slow
def test_two_actors_give_the_output_of_one_process(command):
    import ray

    try:
        found = command("--concurrency", "2", "--actor_cpus", "0.5")
        assert ray.cluster_resources()["CPU"] >= 2
    finally:
        ray.shutdown()
    assert [{name: value for name, value in row.items() if name != "key"} for row in found] == command()


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


@needs_ray
def test_a_cluster_that_is_too_small_is_refused(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "init", lambda *args, **options: None)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    args = SimpleNamespace(concurrency=2, actor_cpus=1.0, actor_gpus=0.0, ray_address="10.0.0.1:6379")
    with pytest.raises(ValueError, match="2 actors and the reader need 2.1 CPUs, the cluster has 2, and the job"):
        bulk.start(args)
    with pytest.raises(ValueError, match="need 2 GPUs, the cluster has 0.*--concurrency or --actor_gpus"):
        bulk.start(SimpleNamespace(**{**vars(args), "actor_cpus": 0.5, "actor_gpus": 1.0}))
