"""Uploads to a Hub on loopback and loads from it by the real client: what comes back, what stays, what is refused."""

import copy
import pickle
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

import pytest
from conftest import SOURCES, save_in
from hub_server import Hub, Worker
from huggingface_hub import ModelCard
from recipe_runs import ROOT, ROWS, TINY, as_options, files_of, steps_of, write_predictor, write_rows
from test_causal import build as controlled_causal_model
from test_causal import make_tokenizer as causal_tokenizer
from transformers import TrainingArguments

from hf_lenctrl.training.upload import NOT_UPLOADED, check_upload, hide_token


WITH_PACKAGE = """
import os, sys
sys.path[:0] = given
import hf_lenctrl, torch, transformers
from hf_lenctrl.commands import train as train_seq2seq
from hf_lenctrl.commands import predictor as train_length_predictor
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
"""
# where it is installed, it must not be used
WITHOUT_PACKAGE = """
import sys
sys.modules["hf_lenctrl"] = None
import torch
torch.set_num_threads(1)
"""
LOAD = """
import hashlib
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
name, sources, options = given
model = AutoModelForSeq2SeqLM.from_pretrained(name, **options).eval()
tokenizer = AutoTokenizer.from_pretrained(name, **options)
inputs = tokenizer(sources, padding=True, return_tensors="pt")
result = {
    "module": type(model).__module__.split(".")[0],
    "tensors": {k: hashlib.sha256(t.numpy().tobytes()).hexdigest() for k, t in model.state_dict().items()},
    "ids": [
        model.generate(**inputs, length=[12, 30], num_beams=n, length_constraint=bound).tolist()
        for n, bound in ((1, None), (3, None), (2, "exact"))
    ],
}
"""
TRAIN = "train_seq2seq.main(given)"


def train(worker: Worker, output_dir: Path, **options):
    """Run the training recipe in a worker; returns what it logged."""
    before = len(worker.log.read_text())
    file = write_rows(output_dir.with_suffix(".jsonl"), ROWS[:60])
    small = {"max_steps": 2, "save_steps": 1, "max_test_rows": 3, "test_lengths": [20], "push_to_hub": True}
    worker(TRAIN, *as_options({"train_file": file, "output_dir": output_dir, **TINY, **small, **options}))
    return worker.log.read_text()[before:]


SECRET = "hf_5ecretOfTheTest"


@pytest.fixture(scope="module")
def hub():
    with Hub(token=SECRET) as hub:
        yield hub


@contextmanager
def signed_in(worker: Worker, token: str | None):
    """A worker with another token, or without one."""
    code = "import os; result = os.environ.pop('HF_TOKEN', None); os.environ.update(given[0])"
    before = worker(code, {"HF_TOKEN": token} if token else {})
    try:
        yield
    finally:
        worker(code, {"HF_TOKEN": before} if before else {})


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    workers, home = [], tmp_path_factory.mktemp("home")  # the Hub's cache, which the workers share

    def start(first: str, **environment):
        modules = tmp_path_factory.mktemp("modules")
        worker = Worker(**{"HF_HOME": str(home), "HF_MODULES_CACHE": str(modules), **environment})
        workers.append(worker)
        worker(first, str(ROOT), str(ROOT / "recipes"))
        return worker

    yield start
    for worker in workers:
        worker.end()


@pytest.fixture(scope="module")
def user(start, hub):
    """Has the package and a token."""
    worker = start(WITH_PACKAGE, HF_ENDPOINT=hub.url, HF_TOKEN=hub.token)
    # `-I` and `conftest` say offline by themselves
    assert worker("import huggingface_hub; result = huggingface_hub.constants.HF_HUB_OFFLINE") is False
    return worker


@pytest.fixture(scope="module")
def stranger(start, hub):
    """Has neither."""
    return start(WITHOUT_PACKAGE, HF_ENDPOINT=hub.url)


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    return write_predictor(tmp_path_factory.mktemp("predictor"))


@pytest.fixture(scope="module")
def short(user, predictor, tmp_path_factory):
    """The folder of a run that uploaded `user/short`."""
    folder = tmp_path_factory.mktemp("run") / "short"
    train(user, folder, hub_model_id="user/short", length_predictor=predictor, save_total_limit=1, seed=1)
    return folder


def load(name: str | Path, **options) -> dict:
    """What `LOAD` finds in this process."""
    known = {"given": [str(name), SOURCES[:2], options]}
    exec(LOAD, known)
    return known["result"]


@pytest.mark.slow
def test_a_model_comes_back_bit_for_bit_and_with_its_own_code_where_the_package_is_not(user, stranger, short):
    assert user(LOAD, "user/short", SOURCES[:2], {}) == load(short)
    with pytest.raises(RuntimeError, match="trust_remote_code"):
        stranger(LOAD, "user/short", SOURCES[:2], {"trust_remote_code": False})  # else it asks at a terminal
    found = stranger(LOAD, "user/short", SOURCES[:2], {"trust_remote_code": True})
    assert found == {**load(short), "module": "transformers_modules"}


@pytest.mark.slow
def test_all_that_a_reader_needs_is_there_and_nothing_else(hub, short):
    code = {path.name for path in short.glob("*.py")}
    assert len(code) == 24
    tokenizer = {"tokenizer_config.json", "vocab.json", "source.spm", "target.spm", "target_vocab.json"}
    figures = {f"{name}_results.json" for name in ("all", "train", "test", "test_20")}
    predictor = {"config.json", "model.safetensors", "tokenizer_config.json", "tokenizer.json", "length_predictor.py"}
    predictor |= {"character_costs.py", "length_units.py", "lengths.py", "unit_vocabulary.py", "card.py", "shards.py"}
    predictor |= {"text_units.py", "saved_table.py"}
    names = {".gitignore", "README.md", "report.png", "config.json", "generation_config.json", "model.safetensors"}
    files, commits = hub.files("user/short"), hub.repos["user/short"]["commits"]
    assert list(commits[1][1]) == [".gitignore"] and len(commits) == 3  # once, at the end
    assert set(files) == names | code | tokenizer | figures | {f"length_predictor/{name}" for name in predictor}
    for path in files.keys() - {".gitignore"}:
        assert files[path] == (short / path).read_bytes(), path
    assert b'model="user/short"' in files["README.md"] and b"report.png" in files["README.md"]


@pytest.mark.slow
def test_a_run_that_has_ended_is_uploaded_by_its_command_in_one_commit_for_its_owner(user, stranger, hub, tmp_path):
    train(user, tmp_path / "run", push_to_hub=False)
    log = train(user, tmp_path / "run", hub_model_id="user/later", hub_private_repo=True, hub_strategy="end")
    assert "training is finished" in log and steps_of(tmp_path / "run") == 2
    assert [len(files) > 5 for _, files in hub.repos["user/later"]["commits"]] == [False, False, True]
    assert hub.repos["user/later"]["private"]
    assert user(LOAD, "user/later", SOURCES[:2], {}) == load(tmp_path / "run")
    with pytest.raises(RuntimeError, match="OSError: user/later is not a local folder and is not a valid model"):
        stranger(LOAD, "user/later", SOURCES[:2], {"trust_remote_code": True})


MARKERS = [b"zebra quagga okapi", b"jinx quiz vortex"]  # of sources and of targets
PREDICTOR = {"layers": 1, "d_model": 8, "attention_heads": 2, "vocab_size": 60, "length_unit": "character"}
SEQ2SEQ_ONLY = ("ffn_dim", "predict_with_generate", "group_column", "group_separator")
RECIPES = {
    "train_seq2seq": {**{k: v for k, v in TINY.items() if "group" not in k}, "test_lengths": [20], "max_test_rows": 3},
    "train_length_predictor": {**{k: TINY[k] for k in TINY if k not in (*SEQ2SEQ_ONLY, *PREDICTOR)}, **PREDICTOR},
}


def found_in(files: dict[str, bytes], words) -> list[tuple[str, bytes]]:
    return [(path, word) for path, data in files.items() for word in words if word in data]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", list(RECIPES))
def test_no_upload_holds_a_token_a_row_or_a_pickle_of_arguments(user, hub, predictor, tmp_path, recipe):
    source, target = (marker.decode() for marker in MARKERS)
    rows = [row | {"source": f"{row['source']} {source} {i}", "target": f"{target} {i}"} for i, row in enumerate(ROWS)]
    folder, name = tmp_path / "run", f"user/{recipe}"
    (folder / "data").mkdir(parents=True)
    for own in ("rows.csv", "rows.json", "notes.txt", "my_results.json", "data/config.json"):  # a user's
        (folder / own).write_bytes(MARKERS[0])
    options = {"train_file": write_rows(tmp_path / "rows.jsonl", rows), "output_dir": folder, **RECIPES[recipe]}
    options |= {"max_steps": 2, "save_steps": 1, "save_total_limit": 1, "push_to_hub": True, "hub_always_push": True}
    options |= {"hub_model_id": name, "hub_token": SECRET}
    if recipe == "train_seq2seq":
        options["length_predictor"] = predictor
    for steps in (2, 4):  # what the first run leaves in the folder must not go with the second
        with signed_in(user, None):  # the token is an option
            user(f"{recipe}.main(given)", *as_options({**options, "max_steps": steps}))
    local = files_of(folder)
    assert found_in(local, [SECRET.encode()]) == []
    kinds = ["checkpoint-*/optimizer.pt", "test_*.jsonl", "training_args.bin", "_run/run.json", "_run/tokenizer/*"]
    assert all(any(fnmatch(path, kind) for path in local) for kind in kinds)
    commits = [files for _, files in hub.repos[name]["commits"]]
    assert [len(files) > 5 for files in commits] == [False, False, True, True, True][: len(commits)]
    for files in commits:
        assert found_in(files, [SECRET.encode(), *MARKERS]) == []
        assert [path for path in files if path.endswith(("training_args.bin", ".jsonl", ".csv", ".txt"))] == []
    assert {"README.md", "config.json", "model.safetensors", "tokenizer_config.json"} <= commits[-1].keys()
    assert [path for path in commits[-1] if "optimizer" in path or path.startswith(("_", "checkpoint"))] == []


def test_a_token_is_not_pickled_and_is_there_where_it_is_used():
    args = TrainingArguments("x", use_cpu=True, hub_token=SECRET)
    hide_token(args)
    assert args.hub_token == SECRET and copy.deepcopy(args).hub_token == SECRET
    data = pickle.dumps(args)
    assert SECRET.encode() not in data and pickle.loads(data).hub_token is None


REMOTE = """
from transformers import AutoModelForSeq2SeqLM
AutoModelForSeq2SeqLM.from_pretrained(given[0], trust_remote_code=True).push_to_hub("user/remote")
"""
PUSH = """
from hf_lenctrl import LengthPredictor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
folder, predictor, name = given
AutoTokenizer.from_pretrained(folder).push_to_hub(name)  # which leaves the stub of transformers
AutoModelForSeq2SeqLM.from_pretrained(folder).push_to_hub(name, tags=["mine"])
LengthPredictor.from_pretrained(predictor).push_to_hub(name + "-predictor")
AutoModelForSeq2SeqLM.from_pretrained(name).push_to_hub("user/own")
"""


ZEROS = """
from transformers import AutoModelForSeq2SeqLM
model = AutoModelForSeq2SeqLM.from_pretrained(given[0])
for parameter in model.parameters():
    parameter.data.zero_()
model.push_to_hub(given[0])
"""
PIPELINE = """
from transformers import pipeline
name, options = given
write = pipeline(model=name, trust_remote_code=True, device="cpu", **options)
result = [type(write).__name__, bool(write.model.get_input_embeddings().weight.any())]
"""


@pytest.mark.slow
def test_the_pipeline_of_a_checkpoint_loads_the_revision_that_was_asked_for(user, hub, short):
    user(PUSH, short, short / "length_predictor", "user/twice")
    first = hub.repos["user/twice"]["commits"][-1][0]
    user(ZEROS, "user/twice")
    task = "LengthControlledGenerationPipeline"
    assert user(PIPELINE, "user/twice", {"revision": first}) == [task, True]
    assert user(PIPELINE, "user/twice", {}) == [task, False]


@pytest.mark.slow
def test_a_model_that_is_pushed_by_itself_or_by_its_own_code_has_a_card(user, stranger, hub, short, predictor):
    hub.repos["user/own"] = {"private": False, "commits": [("0" * 40, {"README.md": b"---\n---\nmy own words"})]}
    user(PUSH, short, predictor, "user/pushed")
    card = ModelCard(hub.files("user/pushed")["README.md"].decode())
    assert set(card.data.tags) == {"hf_lenctrl", "length-control", "mine"}
    assert 'model="user/pushed"' in card.text and "More Information Needed" not in card.text
    assert "card.py" in hub.files("user/pushed")
    assert 'load_predictor("user/pushed-predictor")' in hub.files("user/pushed-predictor")["README.md"].decode()
    assert b"my own words" in hub.files("user/own")["README.md"]
    with signed_in(stranger, hub.token):
        stranger(REMOTE, short)
    assert 'model="user/remote"' in hub.files("user/remote")["README.md"].decode()
    assert {path.name for path in short.glob("*.py")} <= hub.files("user/remote").keys()


def test_a_strategy_that_keeps_checkpoints_on_the_hub_is_refused(tmp_path):
    args = TrainingArguments(str(tmp_path), use_cpu=True, push_to_hub=True, hub_strategy="all_checkpoints")
    with pytest.raises(ValueError, match="hub_strategy=all_checkpoints .* use hub_strategy=end"):
        check_upload(args)


CAUSAL = """
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, name = given
AutoTokenizer.from_pretrained(folder).push_to_hub(name)
AutoModelForCausalLM.from_pretrained(folder).push_to_hub(name)
"""
LOAD_CAUSAL = """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(given[0], trust_remote_code=True)
ids = model.generate(torch.tensor([[5, 6, 7]]), length=[9, 30], length_constraint="exact", do_sample=False)
result = [type(model).__module__.split(".")[0], model.unit_table.count(ids[:, 3:]).tolist()]
"""


@pytest.mark.slow
def test_a_causal_model_is_pushed_with_a_card_and_loads_without_the_package(user, stranger, hub, tmp_path):
    save_in(tmp_path, controlled_causal_model("llama")[1], causal_tokenizer())
    user(CAUSAL, tmp_path, "user/causal")
    card = hub.files("user/causal")["README.md"].decode()
    assert "A llama language model" in card and 'model="user/causal"' in card
    assert stranger(LOAD_CAUSAL, "user/causal") == ["transformers_modules", [9, 30]]


@pytest.mark.slow
def test_an_upload_that_is_not_allowed_is_told_before_training(user, hub, tmp_path):
    train(user, tmp_path / "run", push_to_hub=False)
    before = files_of(tmp_path / "run")
    hub.repos["other/model"] = {"private": False, "commits": [("0" * 40, {"README.md": b"theirs"})]}
    refused = [
        ({"hub_model_id": "user/wrong", "hub_token": "hf_wrong"}, "user/wrong.*Invalid"),
        ({"hub_model_id": "other/new"}, "other/new.*no rights"),
        ({"hub_model_id": "other/model"}, "other/model.*do not own"),  # create_repo is content with it
        ({"hub_model_id": "user/branch", "hub_revision": "dev"}, "user/branch.*dev"),
    ]
    for i, (options, message) in enumerate(refused):
        with pytest.raises(RuntimeError, match=f"(?s)OSError: cannot upload to {message}"):
            train(user, tmp_path / ("run", "new")[i % 2], max_steps=3, **options)  # goes on with one, starts one
    with signed_in(user, None), pytest.raises(RuntimeError, match="(?s)nothing was trained: .*hf auth login"):
        train(user, tmp_path / "new", hub_model_id="user/none")
    assert files_of(tmp_path / "new").keys() == {"_run/lock"} and files_of(tmp_path / "run") == before
    assert hub.files("other/model") == {"README.md": b"theirs"}


@pytest.mark.slow
def test_a_run_whose_upload_fails_is_whole_and_is_uploaded_by_the_same_command(user, hub, tmp_path):
    options = {"hub_model_id": "user/late", "hub_strategy": "end"}
    # as another run left it, so that the last commit is the first that fails
    hub.repos["user/late"] = {"private": False, "commits": [("0" * 40, {".gitignore": NOT_UPLOADED})]}
    message = "(?s)late holds the model, which was not uploaded: .*; repeat the command"
    user("import hf_lenctrl.training.upload as upload; upload.HUB_TIMEOUT = 3")
    found = []
    try:
        for hub.fail["/commit/"] in (500, "hang"):
            with pytest.raises(RuntimeError, match=message):
                train(user, tmp_path / "late", **options)
            found.append(load(tmp_path / "late"))
            assert (tmp_path / "late" / "README.md").is_file() and list(hub.files("user/late")) == [".gitignore"]
    finally:
        hub.fail.clear()
        user("upload.HUB_TIMEOUT = 300")
    log = train(user, tmp_path / "late", **options)
    assert "training is finished" in log and steps_of(tmp_path / "late") == 2
    assert [user(LOAD, "user/late", SOURCES[:2], {})] * 2 == found
