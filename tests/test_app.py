"""The page to try a model: its handlers, and the page itself in a browser."""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import gradio as gr
import pytest
import torch
from conftest import MARIAN, SHAPE, SOURCES, build_model
from huggingface_hub import SpaceCard
from playwright.sync_api import expect, sync_playwright
from transformers import MarianConfig, MarianMTModel

from hf_lenctrl import LengthControlledGenerationPipeline


ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("app", ROOT / "app" / "app.py")
assert spec is not None and spec.loader is not None
app = importlib.util.module_from_spec(spec)
spec.loader.exec_module(app)

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WAIT = 120  # seconds; the cores may be busy


@pytest.fixture(scope="module")
def pipe(shared_tokenizer):
    model = build_model("marian", vocab_size=len(shared_tokenizer), length_unit="character", init_std=0.5)
    model.set_unit_table(shared_tokenizer)
    return LengthControlledGenerationPipeline(model=model, tokenizer=shared_tokenizer, device="cpu")


@pytest.fixture(scope="module")
def plain_pipe(shared_tokenizer):
    torch.manual_seed(3)
    shape = {**SHAPE, **MARIAN, "vocab_size": len(shared_tokenizer), "max_position_embeddings": 512, "init_std": 0.5}
    model = MarianMTModel(MarianConfig(**shape)).eval()
    return LengthControlledGenerationPipeline(model=model, tokenizer=shared_tokenizer, device="cpu")


def components(page: gr.Blocks) -> dict:
    """Properties of the page's components, by label."""
    return {c["props"]["label"]: c["props"] for c in page.get_config_file()["components"] if c["props"].get("label")}


def handlers(page: gr.Blocks) -> dict:
    return {fn.api_name: fn.fn for fn in page.fns.values()}


# Lengths


@pytest.mark.parametrize(
    ("written", "lengths"),
    [
        ("30, 50, 75", [30, 50, 75]),
        (" 30;50 75,\n", [30, 50, 75]),
        ("1", [1]),
        ("300", [300]),
        ("8,7,6,5,4,3,2,1", [8, 7, 6, 5, 4, 3, 2, 1]),
        ("40,40", [40, 40]),
    ],
)
def test_lengths_are_read_in_their_order(written, lengths):
    assert app.read_lengths(written) == lengths


@pytest.mark.parametrize("bad", ["0", "-3", "2.5", "1e2", "many", "301", "9" * 5000, "", "1_0", "None"])
def test_a_bad_length_is_told_with_the_rule_and_the_call(bad):
    with pytest.raises(ValueError) as raised:
        app.read_lengths(f"30, {bad}" if bad else bad)
    assert str(raised.value) == (
        f"a length must be an integer from 1 to 300, got '{bad}'; write them like this: 30, 50, 75"
    )


def test_too_many_lengths_are_told():
    with pytest.raises(ValueError, match=r"at most 8 lengths, got 9; write them like this: 30, 50, 75"):
        app.read_lengths("1 2 3 4 5 6 7 8 9")


# Rows of the table


def test_each_length_has_a_row_with_its_measured_length(pipe):
    rows = app.write(pipe, SOURCES[0], "12, 40, 25", "character", "exact")
    assert [row[:3] for row in rows] == [[12, 12, "character"], [40, 40, "character"], [25, 25, "character"]]
    assert [len(row[3]) for row in rows] == [12, 40, 25]


def test_the_sliders_length_makes_one_row(pipe):
    [row] = app.write(pipe, SOURCES[0], 33, "character", "max")
    assert row[0] == 33
    assert row[1] == len(row[3]) <= 33


def test_none_leaves_the_length_to_the_model(pipe):
    free = pipe(SOURCES[0], length=10, length_constraint=None, num_beams=4)
    assert free["length"] > 10  # untrained: it would write past any length
    assert app.write(pipe, SOURCES[0], "10", "character", "none") == [
        [10, free["length"], "character", free["generated_text"]]
    ]


@pytest.mark.parametrize("unit", ["token", "character", "word", "byte"])
def test_a_plain_model_is_bound_in_every_unit(plain_pipe, unit):
    rows = app.write(plain_pipe, SOURCES[0], "5, 9", unit, "exact")
    assert [row[:3] for row in rows] == [[5, 5, unit], [9, 9, unit]]
    if unit == "word":
        assert [len(row[3].split()) for row in rows] == [5, 9]


@pytest.mark.parametrize("text", ["", " \n", None])
def test_an_empty_text_is_told(pipe, text):
    with pytest.raises(ValueError, match="the text must hold at least one word, got .*; enter a text or pick an"):
        app.write(pipe, text, "30", "character", "exact")


# The page


def test_the_unit_of_a_length_controlled_model_is_shown_and_fixed(pipe):
    shown = components(app.build(pipe))
    assert shown["Unit"]["value"] == "character"
    assert not shown["Unit"]["interactive"]
    assert [value for _, value in shown["Constraint"]["choices"]] == ["none", "max", "exact"]


def test_a_plain_model_takes_any_unit_and_needs_a_constraint(plain_pipe):
    shown = components(app.build(plain_pipe))
    assert [value for _, value in shown["Unit"]["choices"]] == ["token", "character", "word", "byte"]
    assert shown["Unit"]["interactive"]
    assert [value for _, value in shown["Constraint"]["choices"]] == ["max", "exact"]


def test_the_page_sends_no_telemetry(pipe):
    assert app.build(pipe).analytics_enabled is False


@pytest.mark.parametrize("name", ["one", "several"])
def test_faults_reach_the_page_as_text(pipe, name):
    handler = handlers(app.build(pipe))[name]
    with pytest.raises(gr.Error) as raised:
        handler(SOURCES[0], "<b>", "character", "exact")
    assert raised.value.message.startswith("a length must be an integer from 1 to 300, got '&lt;b&gt;'; ")
    with pytest.raises(gr.Error, match="the model was trained to count characters"):
        handler(SOURCES[0], "30", "word", "exact")


def test_examples_are_requests_that_the_page_takes():
    assert len(app.EXAMPLES) == 3
    for text, lengths in app.EXAMPLES:
        assert len(text) > 100
        assert len(app.read_lengths(lengths)) == 3


# The folder is a Space  (issue 15.39)


def test_the_space_has_the_front_matter_and_the_requirements_of_the_page():
    folder = ROOT / "app"
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == [
        "README.md",
        "app.py",
        "requirements.txt",
    ]
    card = SpaceCard.load(folder / "README.md").data
    assert (card.sdk, card.app_file, card.license) == ("gradio", "app.py", "apache-2.0")
    tested = re.findall(r"^gradio==(.+)", (ROOT / "constraints.txt").read_text(), flags=re.M)
    assert [card.sdk_version] == tested
    assert len(card.short_description) <= 60  # the Hub refuses more
    imported = re.findall(r"^(?:from|import) (\w+)", (folder / "app.py").read_text(), flags=re.M)
    required = re.findall(r"^[\w-]+", (folder / "requirements.txt").read_text(), flags=re.M)
    assert required == ["hf-lenctrl"]  # which brings transformers
    assert set(imported) - sys.stdlib_module_names == {"gradio", "transformers", "hf_lenctrl"}


def test_the_model_is_the_named_one_the_spaces_or_the_repositorys(tmp_path, monkeypatch):
    def found(folder) -> str:
        run = importlib.util.spec_from_file_location("space", folder / "app.py")
        module = importlib.util.module_from_spec(run)
        run.loader.exec_module(module)
        return module.find_model()

    monkeypatch.delenv("LENCTRL_MODEL", raising=False)
    assert found(ROOT / "app") == str(ROOT / "models" / "debian_headlines")
    space = shutil.copytree(ROOT / "app", tmp_path / "space")
    with pytest.raises(ValueError, match="there is no model; set LENCTRL_MODEL to a folder or Hub name, or copy one"):
        found(space)
    (space / "model").mkdir()
    (space / "model" / "config.json").write_text("{}")
    assert found(space) == str(space / "model")
    monkeypatch.setenv("LENCTRL_MODEL", "user/name")
    assert found(space) == "user/name"


# In a browser


@pytest.fixture(scope="module")
def address(pipe, tmp_path_factory):
    """Where `python app/app.py` serves a saved model."""
    folder = tmp_path_factory.mktemp("app")
    pipe.model.save_pretrained(folder / "model")
    pipe.tokenizer.save_pretrained(folder / "model")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "LENCTRL_MODEL": str(folder / "model"),
        "GRADIO_SERVER_NAME": "127.0.0.1",
        "GRADIO_SERVER_PORT": str(port),
    }
    with open(folder / "log", "w+") as log:
        command = [sys.executable, str(ROOT / "app" / "app.py")]
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            end = time.monotonic() + WAIT
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    assert server.poll() is None and time.monotonic() < end, (folder / "log").read_text()[-2000:]
                    time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(timeout=30)


@pytest.fixture
def browser_page(address):
    """The page in Chromium, cut off from everything but the server, and the addresses that it asked for elsewhere."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page()
        page.set_default_timeout(WAIT * 1000)
        elsewhere: list[str] = []

        def refuse(route):
            elsewhere.append(route.request.url)
            route.abort()

        page.route(lambda url: not url.startswith(address), refuse)
        page.goto(address)
        yield page, elsewhere
        browser.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path (Debian: apt-get install chromium)")
def test_a_visitor_gets_the_lengths_asked_for_and_is_told_of_faults(browser_page):
    page, elsewhere = browser_page
    lengths = page.get_by_label("Several lengths, at most 8")
    write = page.get_by_role("button", name="Write several")
    fault = page.get_by_test_id("toast-body")

    def cells(rows: int, column: int) -> list[str]:
        return [page.get_by_test_id(f"cell-{row}-{column}").inner_text().strip() for row in range(rows)]

    # before anything is typed
    write.click()
    expect(fault).to_contain_text("the text must hold at least one word, got ''", timeout=WAIT * 1000)
    page.get_by_test_id("toast-close").click()

    page.get_by_label("Text", exact=True).fill(SOURCES[1])
    lengths.fill("12, 40, 25")
    write.click()
    expect(page.get_by_test_id("cell-2-0")).to_have_text("25", timeout=WAIT * 1000)
    assert cells(3, 0) == cells(3, 1) == ["12", "40", "25"]
    assert cells(3, 2) == ["character"] * 3

    lengths.fill("30, <b>2.5</b>")
    write.click()
    expect(fault).to_contain_text(
        "a length must be an integer from 1 to 300, got '<b>2.5</b>'; write them like this: 30, 50, 75",
        timeout=WAIT * 1000,
    )
    page.get_by_test_id("toast-close").click()

    page.get_by_role("button", name="Write one").click()
    expect(page.get_by_test_id("cell-0-0")).to_have_text("50", timeout=WAIT * 1000)
    assert cells(1, 1) == ["50"]

    assert elsewhere == []
