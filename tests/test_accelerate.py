"""Several processes, by the configurations of recipes/accelerate."""

import gc
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import recipe_runs
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
from conftest import SOURCES, build_model_of
from recipe_runs import ROOT, ROWS, TINY, assert_same_weights, load, read_rows, train, weights, write_rows
from torch.distributed.fsdp import FullyShardedDataParallel

from hf_lenctrl.training.collator import DataCollatorForLengthControl


CONFIGURATIONS = ROOT / "recipes" / "accelerate"
FEW = ROWS[:38]
# plain steps: Adam would make of the smallest difference between two gradients around zero a whole step
ALL_AT_ONCE = recipe_runs.options_of(
    "optim=sgd learning_rate=0.1 max_grad_norm=0.0 dropout=0 max_steps=1 target_vocabulary=shared "
    "label_smoothing_factor=0.1 validation_share=0 test_share=0"
)
NOISE = {"length_noise": 4, "num_train_epochs": 2, "save_strategy": "no", "validation_share": 0, "test_share": 0}
# with other seeds the untrained model writes nothing for some rows; of the test rows the last batch is not full
TESTED = recipe_runs.options_of(
    "seed=1 save_steps=1 average_checkpoints=2 eval_strategy=steps eval_steps=2 max_validation_rows=5 max_test_rows=7 "
    "per_device_eval_batch_size=2 length_noise=2 validation_share=0.2 test_share=0.2"
)
REQUESTS = [{"source": f"{source} {i}", "budget": 2 + i % 5} for i, source in enumerate(SOURCES * 7)]
GENERATED = ["--length_column", "budget", "--batch_size", "1", "--length_constraint", "max"]  # two blocks

# Runs of the recipes one after the other in the same processes, which took long enough to import them; each process
# writes what its collator made of each example.
DRIVER = """
import json, runpy, sys
from accelerate import PartialState
from hf_lenctrl.commands import train as train_seq2seq
from hf_lenctrl.training.collator import DataCollatorForLengthControl

seen = []
collate = DataCollatorForLengthControl.__call__
def look(self, features, return_tensors=None):
    batch = collate(self, features, return_tensors)
    if self.length_noise:
        seen.extend([int(self._epoch), f["input_ids"], int(n)] for f, n in zip(features, batch["length"]))
    return batch
DataCollatorForLengthControl.__call__ = look
_, recipes, plan, *options = sys.argv
plan = json.load(open(plan))
for run in plan["runs"]:
    seen.clear()
    train_seq2seq.main([*run["options"], *options])
    state = PartialState()
    assert state.num_processes == 2 and state.device.type == "cpu", state
    with open(f"{run['folder']}/seen_{state.process_index}.json", "w") as file:
        json.dump(seen, file)

sys.argv[1:] = plan["generate"]
runpy.run_path(f"{recipes}/generate.py", run_name="__main__")
"""


def words(values: dict) -> list[str]:
    return [f"--{key}={value}" for key, value in values.items()]


def launch(tmp_path: Path, configuration: str, *command, **environment) -> subprocess.CompletedProcess:
    """`accelerate launch --config_file ...` as a user writes it, without the settings and the GPU of this machine."""
    own = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, **own, "HF_HOME": str(tmp_path / "home"), **environment}
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", CONFIGURATIONS / configuration]
    command = [*map(str, launcher), *map(str, command)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The folder with what two processes did, one run after the other."""
    folder = tmp_path_factory.mktemp("two")
    runs = []
    for name, rows, options in (
        ("step", ROWS[:8], {**ALL_AT_ONCE, "per_device_train_batch_size": 4}),
        ("noise", ROWS[:16], {**NOISE, "per_device_train_batch_size": 4}),
        ("whole", FEW, {**TESTED, "max_steps": 4}),
        ("parts", FEW, {**TESTED, "max_steps": 2}),
        ("parts", FEW, {**TESTED, "max_steps": 4}),
    ):
        file = write_rows(folder / f"{name}.jsonl", rows)
        options = {**TINY, **options, "train_file": file, "output_dir": folder / name}
        del options["use_cpu"]
        runs.append({"folder": str(folder / name), "options": words(options)})
    (folder / "driver.py").write_text(DRIVER)
    (folder / "together").mkdir()
    where = {"model": folder / "whole", "input_file": write_rows(folder / "in.jsonl", REQUESTS)}
    where["output_file"] = folder / "together" / "out.jsonl"
    generate = [*words(where), "--num_beams=2", *GENERATED]
    (folder / "runs.json").write_text(json.dumps({"runs": runs, "generate": generate}))
    done = launch(folder, "cpu_2procs.yaml", folder / "driver.py", ROOT / "recipes", folder / "runs.json", "--use_cpu")
    assert done.returncode == 0, done.stderr[-3000:]
    (folder / "log").write_text(done.stderr)
    return folder


def seen_by(folder: Path) -> list[list]:
    """(epoch, source, length) of each training example, for each process."""
    processes = [json.loads(path.read_text()) for path in sorted(folder.glob("seen_*.json"))]
    return [[(epoch, tuple(ids), length) for epoch, ids, length in examples] for examples in processes]


@pytest.mark.slow
def test_a_step_of_two_processes_is_that_of_one_with_all_their_rows(two, tmp_path):
    # targets of many lengths: were each process to take the mean of its own tokens, those of the process with fewer
    # would weigh more
    train(tmp_path / "one", rows=ROWS[:8], per_device_train_batch_size=8, **ALL_AT_ONCE)
    one, both = weights(tmp_path / "one"), weights(two / "step")
    # Both add the same products up in another order: in float32 that changes a gradient by some 1e-7 of its largest
    # terms, and a weight by a tenth of that, the learning rate. Weights in another proportion move by 1e-3 and more.
    assert one.keys() == both.keys()
    for name, value in one.items():
        torch.testing.assert_close(both[name], value, rtol=0, atol=1e-6)
    train(tmp_path / "start", rows=ROWS[:8], **{**ALL_AT_ONCE, "learning_rate": 0})
    start = weights(tmp_path / "start")
    assert max(float((one[name] - start[name]).abs().max()) for name in one if one[name].is_floating_point()) > 1e-2


@pytest.mark.slow
def test_noise_is_a_function_of_seed_epoch_and_example(two):
    _, tokenizer = load(two / "noise")
    collate = DataCollatorForLengthControl(tokenizer, length_unit="character", length_noise=4, seed=42)
    rows = [dict(tokenizer(row["source"], text_target=row["target"])) for row in ROWS[:16]]
    alone = []
    for epoch in (0, 1):
        collate.set_epoch(epoch)
        lengths = collate([dict(row) for row in rows])["length"].tolist()
        alone += [(epoch, tuple(row["input_ids"]), length) for row, length in zip(rows, lengths, strict=True)]
    first, second = seen_by(two / "noise")
    assert len(first) == len(second) == 16 and not {row[:2] for row in first} & {row[:2] for row in second}
    assert sorted(first + second) == sorted(alone)


@pytest.mark.slow
def test_two_processes_evaluate_every_row_once_and_in_order(two):
    folder = two / "whole"
    rows, outputs = read_rows(folder / "test.jsonl"), read_rows(folder / "test_outputs.jsonl")
    assert len(rows) == 7 and [out["reference"] for out in outputs] == [row["target"] for row in rows]
    model, tokenizer = load(folder)
    for row, out in zip(rows, outputs, strict=True):
        ids = model.generate(**tokenizer(row["source"], return_tensors="pt"), length=len(row["target"]))
        alone = tokenizer.decode(ids[0], skip_special_tokens=True)
        # the limit of a batch is that of its longest request
        assert out["output"].startswith(alone) or alone.startswith(out["output"])
        assert bool(alone) == bool(out["output"])
    assert len({out["output"] for out in outputs}) > 1
    history = json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in history if "eval_mae" in entry] == [2, 4]
    assert "the mean of the checkpoints 3, 4" in (folder / "README.md").read_text()


@pytest.mark.slow
def test_two_processes_go_on_as_if_they_had_not_stopped_and_another_number_does_not(two):
    assert "resuming from" in (two / "log").read_text() and recipe_runs.steps_of(two / "parts") == 4
    assert_same_weights(two / "whole", two / "parts")
    assert (two / "whole" / "test_outputs.jsonl").read_text() == (two / "parts" / "test_outputs.jsonl").read_text()
    with pytest.raises(ValueError, match=r"(?s)holds a run with other options.*\* processes=2, now 1$"):
        train(two / "parts", rows=FEW, **{**TESTED, "max_steps": 6})


@pytest.mark.slow
def test_two_processes_write_every_row_once_and_in_order(two):
    alone = recipe_runs.write_texts(two / "whole", two / "in.jsonl", *GENERATED)
    assert [row["budget"] for row in alone] == [row["budget"] for row in REQUESTS]
    assert read_rows(two / "together" / "out.jsonl") == alone


EXPECTED = {
    "cpu_2procs.yaml": (DistributedType.MULTI_GPU, 1, 2),
    "deepspeed_zero3.yaml": (DistributedType.DEEPSPEED, 1, 2),
    "fsdp.yaml": (DistributedType.FSDP, 1, 2),
    "multi_gpu.yaml": (DistributedType.MULTI_GPU, 1, 2),
    "multi_node.yaml": (DistributedType.MULTI_GPU, 2, 16),
    "single_gpu.yaml": (DistributedType.NO, 1, 1),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_accelerate_reads_a_configuration_and_needs_no_more(name, caplog):
    kind, machines, processes = EXPECTED[name]
    config = load_config_from_file(str(CONFIGURATIONS / name))  # refuses unknown keys
    assert (config.distributed_type, config.num_machines, config.num_processes) == (kind, machines, processes)
    args = launch_command_parser().parse_args(["--config_file", str(CONFIGURATIONS / name), "script.py"])
    with caplog.at_level("WARNING"):
        args, _, _ = _validate_launch_command(args)
    assert "had defaults used instead" not in caplog.text
    assert (args.mixed_precision, args.use_cpu) == ("no", False)
    text = (CONFIGURATIONS / name).read_text()
    assert re.findall(r"--config_file (\S+)", text) == [f"recipes/accelerate/{name}"]
    assert "recipes/train_seq2seq.py" in text and len(list(CONFIGURATIONS.glob("*.yaml"))) == len(EXPECTED)


@pytest.fixture
def process_group():
    """A process group of this process alone. Its threads end here, not where a fork collects what is left of it."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
    gc.collect()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_fsdp_wraps_layers_and_the_models_compute_and_generate_what_they_did(any_family, monkeypatch, process_group):
    # as far as a CPU goes: accelerate refuses to shard there, so the wrapper of its plugin is put on by hand
    command = ["--config_file", str(CONFIGURATIONS / "fsdp.yaml")]
    if any_family in ("marian", "pegasus"):  # as the file says
        name = any_family.capitalize()
        command += ["--fsdp_transformer_layer_cls_to_wrap", f"{name}EncoderLayer,{name}DecoderLayer"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args([*command, "script.py"]))
    for key, value in prepare_multi_gpu_env(args).items():
        if key.startswith("FSDP_"):
            monkeypatch.setenv(key, value)
    monkeypatch.setenv("FSDP_SYNC_MODULE_STATES", "false")  # asks for a device
    model, plain = build_model_of(any_family), build_model_of(any_family)
    plugin = FullyShardedDataParallelPlugin()
    plugin.set_auto_wrap_policy(model)
    assert (plugin.fsdp_version, plugin.state_dict_type.name) == (1, "FULL_STATE_DICT")
    policy, device = plugin.auto_wrap_policy, torch.device("cpu")
    sharded = FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=True, device_id=device)
    assert sum(isinstance(module, FullyShardedDataParallel) for module in sharded.modules()) >= 5  # four layers
    ids, labels = torch.tensor([[11, 12, 13], [21, 22, 23]]), torch.tensor([[31, 32, 33], [41, 42, 43]])
    losses = [each(ids, labels=labels).loss for each in (sharded, plain)]
    assert torch.equal(*losses)
    losses[0].backward()
    options = {"length": 5, "max_new_tokens": 4}
    with FullyShardedDataParallel.summon_full_params(sharded):  # as Seq2SeqTrainer does
        assert torch.equal(model.generate(ids, **options), plain.generate(ids, **options))


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="accelerate shards on a GPU only")
@pytest.mark.parametrize("name", ["fsdp", "deepspeed_zero3"])
def test_sharded_training_runs(tmp_path, name):
    if name == "deepspeed_zero3":
        pytest.importorskip("deepspeed")
    file = write_rows(tmp_path / "rows.jsonl", FEW)
    options = {**TINY, **TESTED, "family": "bart", "target_vocabulary": "shared", "max_steps": 2, "use_cpu": False}
    options |= {"train_file": file, "output_dir": tmp_path / "run"}
    script = ROOT / "recipes" / "train_seq2seq.py"
    visible = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}
    done = launch(tmp_path, f"{name}.yaml", "--num_processes", 1, script, *words(options), **visible)
    assert done.returncode == 0, done.stderr[-3000:]
    load(tmp_path / "run")
