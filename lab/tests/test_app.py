"""The page to try a model: its handlers, and the page itself in a browser."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from html import unescape
from itertools import pairwise

import pytest
from huggingface_hub import SpaceCard
from playwright.sync_api import expect
from recipe_runs import ROOT, load_script
from test_browser import WAIT, needs_chromium, opened


SENTENCE = "This package contains a small editor for plain text files."
QUESTION = "Wo ist die Apotheke?"


@pytest.fixture(scope="module", autouse=True)
def gradio():
    """Imported by the worker that runs these tests alone: it takes two seconds."""
    global app, gr
    import gradio as gr

    app = load_script("lab/app/app.py")


@pytest.fixture(scope="module")
def writer(pipe):
    return app.Writer(model=pipe.model, tokenizer=pipe.tokenizer, device="cpu", num_beams=4)


@pytest.fixture(scope="module")
def plain_writer(plain_pipe):
    model, tokenizer = plain_pipe.model, plain_pipe.tokenizer
    return app.Writer(model=model, tokenizer=tokenizer, device="cpu", num_beams=4, max_new_tokens=20)


@pytest.fixture(scope="module")
def shipped():
    return app.load(str(ROOT / "models" / "translate_to_english"))


def components(page) -> dict:
    """Properties of the page's components, by label."""
    return {c["props"]["label"]: c["props"] for c in page.get_config_file()["components"] if c["props"].get("label")}


def texts(html: str, kind: str) -> list[str]:
    """What the elements of a class hold, as a browser shows it."""
    return [unescape(text) for text in re.findall(rf'class="{kind}">([^<]*)<', html)]


def test_the_answer_has_the_translation_its_count_and_the_natural_text(shipped):
    html = app.translate(shipped, QUESTION, 22, "exact")
    text, natural = texts(html, "text")
    assert len(text) == 22 and natural == shipped(QUESTION)["generated_text"]
    assert texts(html, "count met") == ["22 of 22"]
    assert texts(html, "count base") == [str(len(natural))]
    assert html.index("exact 22 characters") < html.index("without a length")


@pytest.mark.parametrize(
    ("produced", "choice", "kind"),
    [(25, "exact", "met"), (24, "exact", "under"), (24, "at most", "met"), (26, "at most", "over")]
    + [(25, "unconstrained", "met"), (26, "unconstrained", "over"), (24, "unconstrained", "under")]
    + [(23, "about", "met"), (27, "about", "met"), (22, "about", "under"), (28, "about", "over")],
)
def test_counts_are_coloured(produced, choice, kind):
    out = {"length": produced, "requested_length": 25} | ({"window": (23, 27)} if choice == "about" else {})
    assert app.kind_of(out, choice) == kind
    assert app.asked(out, choice) == ("about 25 (23 to 27)" if choice == "about" else f"{choice} 25")
    for score, shown in ((-6.9, kind), (-7.1, "doubt" if kind == "met" else kind)):
        assert app.kind_of(out | {"score": score}, choice) == shown


def test_the_slider_follows_the_natural_length(writer, shipped):
    natural = len(shipped(QUESTION)["generated_text"])
    lengths = [app.length_of(shipped, QUESTION, step, 99) for step in app.SHARES]
    assert lengths == [round(share * natural) for share in (0.7, 0.85, 1.2)] and natural > 20
    assert app.steps(50, (40, 55)) == {"as short as possible": 40, "a little shorter": 42, "longer": 55}
    assert app.length_of(writer, SENTENCE, "longer", 33) == 33  # nobody writes a natural text
    page = app.build(shipped)
    step = next(fn for fn in page.fns.values() if fn.api_name == "step").fn
    length, seen, html = step(QUESTION, "longer", 12, "about", ["", "longer"])
    assert length == lengths[2] and "about" in html
    assert step(QUESTION, "longer", 12, "about", seen)[0] == 12  # the visitor's own


def test_the_queue_and_files_have_limits(writer, monkeypatch):
    assert app.build(writer)._queue.max_size == 64
    given = {}
    monkeypatch.setattr(app, "find_model", lambda: "model")
    monkeypatch.setattr(app, "load", lambda name: writer)
    monkeypatch.setattr(gr.Blocks, "launch", lambda self, **options: given.update(options))
    app.main()
    assert given == {"max_file_size": "10kb"}


def test_without_a_natural_text_there_is_one_text_with_the_remaining_length_under_each_token(writer):
    html = app.translate(writer, SENTENCE, 25, "exact")
    assert "without a length" not in html
    [text] = texts(html, "text")
    *pieces, end = re.findall(r'class="token"><div>([^<]*)</div>', html)
    assert end == "end"
    pieces = [unescape(piece).replace("␣", " ") for piece in pieces]
    assert "".join(pieces) == text
    # each token was chosen with what the pieces before it had left; the end with nothing
    left = [25 - len("".join(pieces[:i])) for i in range(len(pieces) + 1)]
    assert texts(html, "left") == [str(number) for number in left]
    assert left[-1] == 0


TWO = "Es regnet heute. Wir bleiben zu Hause."


@pytest.mark.parametrize(
    ("text", "length", "message"),
    [(text, 30, "at least one word, got ") for text in ("", " \n", None)]
    + [(TWO, 30, "at most 300 characters, got more than one sentence"), ("a" * 301, 30, "got 301 characters")]
    + [(SENTENCE, length, "from 1 to 120, got ") for length in (0, 121, 2.5, None, "30", True, float("nan"))],
)
def test_what_the_page_does_not_take_is_refused(writer, text, length, message):
    with pytest.raises(ValueError, match=message):
        app.translate(writer, text, length, "exact")


def test_a_sentence_may_hold_marks():
    lists = [ROOT / "recipes" / "translation" / f"{name}.txt" for name in ("german", "french")]
    sentences = [text for path in lists for text in path.read_text(encoding="utf-8").splitlines()]
    sentences += ["Am 3. Mai kommt Dr. Frey, z. B. mit Prof. Lang.", "„Kommst du?“, fragte sie."]
    sentences += ["« Viens ! » dit-il."]
    assert [text for text in sentences if app.NEXT_SENTENCE.search(text)] == []
    assert all(map(app.NEXT_SENTENCE.search, ("Tu viens ? Je pars.", "Er rief: „Halt!“ Dann war es still.")))
    pairs = [f"{one} {two}" for one, two in pairwise(sentences[:300]) if len(one.split()[-1]) > 3]
    assert len(pairs) > 200 and all(map(app.NEXT_SENTENCE.search, pairs))


def test_the_slider_has_the_trained_lengths(writer, monkeypatch):
    for trained, expected in ((None, (1, 120, 30)), ({"1%": 30, "50%": 40, "99%": 66, "max": 90}, (30, 66, 30))):
        monkeypatch.setattr(writer.model.config, "trained_lengths", trained, raising=False)
        slider = components(app.build(writer))["Length in characters"]
        assert (slider["minimum"], slider["maximum"], slider["value"]) == expected


def test_texts_and_faults_are_escaped_and_there_is_no_telemetry(writer, monkeypatch):
    page = app.build(writer)
    translate = next(fn for fn in page.fns.values() if fn.api_name == "translate")
    # a choice made while a text is generated is answered next
    assert page.analytics_enabled is False and translate.trigger_mode == "always_last"
    with pytest.raises(gr.Error) as raised:
        translate.fn(SENTENCE, "<b>", "exact")
    assert "got '&lt;b&gt;'" in raised.value.message
    evil = {"generated_text": "<b onclick='x'>&", "length": 16, "requested_length": 16, "ids": [2, 0], "units": [0, 0]}
    monkeypatch.setattr(app.Writer, "__call__", lambda self, text, **options: evil)
    html = app.translate(writer, SENTENCE, 16, "exact")
    assert texts(html, "text") == ["<b onclick='x'>&"] and "<b" not in html and "'x'" not in html


def test_a_plain_model_needs_a_constraint(writer, plain_writer):
    def choices(writer) -> list[str]:
        return [value for _, value in components(app.build(writer))["Constraint"]["choices"]]

    assert choices(writer) == ["about", "at most", "exact", "unconstrained"]
    assert choices(plain_writer) == ["about", "at most", "exact"]
    assert texts(app.translate(plain_writer, SENTENCE, 12, "exact"), "count met") == ["12 of 12"]


def test_the_space_has_the_front_matter_and_the_requirements_of_the_page():
    folder = ROOT / "lab" / "app"
    card = SpaceCard.load(folder / "README.md").data
    assert (card.sdk, card.app_file, card.license) == ("gradio", "app.py", "apache-2.0")
    tested = re.findall(r"^gradio==(.+)", (ROOT / "constraints.txt").read_text(), flags=re.M)
    assert [card.sdk_version] == tested
    assert len(card.short_description) <= 60  # the Hub refuses more
    imported = re.findall(r"^(?:from|import) (\w+)", (folder / "app.py").read_text(), flags=re.M)
    required = re.findall(r"^[\w-]+", (folder / "requirements.txt").read_text(), flags=re.M)
    assert required == ["hf-lenctrl"]  # which brings transformers
    assert set(imported) - sys.stdlib_module_names == {"gradio", "transformers", "hf_lenctrl"}


def test_the_model_is_the_named_ones_the_spaces_or_the_repositorys(tmp_path, monkeypatch):
    def found(folder) -> str:
        return load_script(folder / "app.py").find_model()

    monkeypatch.delenv("LENCTRL_MODEL", raising=False)
    assert found(ROOT / "lab" / "app") == str(ROOT / "models" / "translate_to_english")
    space = shutil.copytree(ROOT / "lab" / "app", tmp_path / "space")
    with pytest.raises(ValueError, match="there is no model; set LENCTRL_MODEL to a folder or Hub name, or copy one"):
        found(space)
    (space / "model").mkdir()
    (space / "model" / "config.json").write_text("{}")
    assert found(space) == str(space / "model")
    monkeypatch.setenv("LENCTRL_MODEL", "user/name")
    assert found(space) == "user/name"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Where `python lab/app/app.py` serves the shipped model."""
    folder = tmp_path_factory.mktemp("app")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment |= {"GRADIO_SERVER_NAME": "127.0.0.1", "GRADIO_SERVER_PORT": str(port)}
    environment.pop("LENCTRL_MODEL", None)
    with open(folder / "log", "w+") as log:
        command = [sys.executable, str(ROOT / "lab" / "app" / "app.py")]
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            end = time.monotonic() + WAIT / 1000
            while socket.socket().connect_ex(("127.0.0.1", port)):
                assert server.poll() is None and time.monotonic() < end, (folder / "log").read_text()[-2000:]
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(timeout=30)


@pytest.fixture
def browser_page(address):
    with opened(address) as found:
        yield found


@pytest.mark.slow
@needs_chromium
def test_a_visitor_gets_the_length_asked_for_and_is_told_of_faults(browser_page):
    page, elsewhere = browser_page
    page.set_viewport_size({"width": 390, "height": 844})  # a phone
    translate = page.get_by_role("button", name="Translate")
    fault = page.get_by_test_id("toast-body")
    wait = {"timeout": WAIT}

    sentence = page.get_by_label("Sentence")
    expect(page.get_by_text("a small model for everyday sentences")).to_be_visible(**wait)

    # Enter runs the example that the page starts with
    expect(sentence).to_have_value(app.EXAMPLES[0])
    sentence.press("Enter")
    expect(page.locator(".count.met, .count.doubt")).to_be_visible(**wait)

    sentence.fill(TWO)
    translate.click()
    expect(fault).to_contain_text("must be one sentence of at most 300 characters, got more than one sentence", **wait)
    page.get_by_test_id("toast-close").click()

    page.get_by_text(app.EXAMPLES[2], exact=True).click()
    expect(page.get_by_label("Sentence")).to_have_value(app.EXAMPLES[2], **wait)
    page.get_by_role("radio", name="at most").click()  # asks at once
    expect(page.get_by_text(re.compile(r"at most \d+ characters"))).to_be_visible(**wait)
    assert page.locator(".count.base").count() == 1
    # no scrolling to the side
    assert page.evaluate("document.documentElement.scrollWidth") <= 390 and elsewhere == []
