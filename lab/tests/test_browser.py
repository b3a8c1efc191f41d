"""The page without a server: its reading of lenctrl.json against the package's, and the page itself in a browser."""

import contextlib
import functools
import json
import random
import re
import shutil
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from family_models import controlled_model
from playwright.sync_api import expect, sync_playwright
from recipe_runs import ROOT, load_script

from hf_lenctrl import LengthConstraintLogitsProcessor
from hf_lenctrl.bounded_generation import token_limit
from hf_lenctrl.engines.rules_file import describe
from hf_lenctrl.lengths import as_target


BROWSER = ROOT / "lab" / "browser"
NODE = shutil.which("node")
CPU = torch.device("cpu")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WAIT = 120_000  # milliseconds; the cores may be busy


def draw_cases(model, start: list[int], rows: int) -> list[dict]:
    """Random prefixes, with lengths around what they have written and limits, some of which are too small."""
    draw, table = random.Random(0), model.unit_table
    cases = []
    for row in range(rows):
        new = range(draw.choice((0, 1, 2, 5, 12)))
        ids = [*start, *(draw.randrange(table.weights.shape[1]) for _ in new)]
        units = int(table.count(torch.tensor([ids])))
        high = max(1, units + draw.randint(-3, 25))
        constraint = ("max", "exact")[row % 2]
        low = max(1, high - draw.choice((0, 0, 1, 4))) if constraint == "exact" else high
        limit = len(ids) + draw.choice((2, 3, 4, 6, 10, 40))
        target, best = {"constraint": constraint, "low": low, "high": high}, draw.randrange(table.weights.shape[1])
        cases.append({"ids": ids, "target": target, "limit": limit, "best": best})
    return cases


def allowed_by_python(model, end: list[int], case: dict) -> list[int]:
    target = case["target"]
    low, high = target["low"], target["high"]
    options = {"eos_token_id": end, "tolerance": (high - low, 0) if low < high else None}
    process = LengthConstraintLogitsProcessor(model.unit_table, torch.tensor([high]), target["constraint"], **options)
    process.max_length = case["limit"]  # also one that the constructor refuses as too small
    given = torch.zeros(1, model.unit_table.weights.shape[1])
    given[0, case["best"]] = 5
    return process(torch.tensor([case["ids"]]), given)[0].isfinite().nonzero().squeeze(1).tolist()


@pytest.mark.skipif(NODE is None, reason="no Node.js on the path")
@pytest.mark.parametrize(
    ("family", "unit"),
    [("marian", "character"), ("bart", "character"), ("t5", "width"), ("bart", "word"), ("t5", "word")]
    + [("m2m_100", "byte"), ("marian", "token")],
)
def test_javascript_allows_what_python_allows(family, unit):
    model = controlled_model(family, length_unit=unit)
    rules = describe(model)
    cases = draw_cases(model, rules["start"], rows=500)
    given = json.dumps({"rules": rules, "cases": cases})
    command = [NODE, str(ROOT / "lab" / "tests" / "browser_rules.mjs"), str(BROWSER / "lengths.js")]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(cases)
    silent, positions = set(rules["silent"]), rules["limit"]["positions"]
    differ = []
    for case, line in zip(cases, lines, strict=True):
        assert line["units"] == int(model.unit_table.count(torch.tensor([case["ids"]])))
        target = as_target(case["target"]["high"], None, None, 1, CPU)
        assert line["room"] == int(token_limit(model.unit_table, target, len(rules["start"]), positions))
        wanted = allowed_by_python(model, rules["end"], case)
        writing = [i for i in wanted if i not in silent]  # the script has what is silent in `start` alone
        if line["allowed"] != writing and writing:
            differ.append((case, line["allowed"][:9], writing[:9]))
    assert differ == []


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Where a plain server of files gives the built page."""
    if not (BROWSER / "node_modules").is_dir():
        pytest.skip("the page's libraries are not installed: npm ci in lab/browser/, or make browser")
    pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")
    built = tmp_path_factory.mktemp("browser") / "dist"
    assert load_script("lab/browser/build.py").build(str(ROOT / "models" / "translate_to_english"), built) < 45e6
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(built))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextlib.contextmanager
def opened(address: str):
    """A page in Chromium, cut off from everything but its server, and what it asked for elsewhere."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page()
        page.set_default_timeout(WAIT)
        elsewhere: list[str] = []

        def refuse(route):
            elsewhere.append(route.request.url)
            route.abort()

        page.route(lambda url: not url.startswith((address, "data:")), refuse)
        page.goto(address)
        yield page, elsewhere
        browser.close()


@pytest.fixture
def page(address):
    with opened(address) as found:
        yield found


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (Debian: apt-get install chromium)")


@pytest.mark.slow
@needs_chromium
def test_a_visitor_gets_the_length_of_the_slider_and_nothing_leaves_the_page(page):
    page, elsewhere = page

    def last() -> str:
        """The number of the last request; its answer carries it."""
        return page.locator("body").get_attribute("data-asked")

    source, slider, text, count = (page.locator(f"#{name}") for name in ("source", "length", "text", "count"))
    # the sentence and the length that it starts with, in a window of 10 %
    expect(count).to_have_text(re.compile(r"^\d\d of 55 \(50 to 60\)$"), timeout=WAIT)
    page.locator("#constraint").select_option("exact")
    expect(count).to_have_text("55 of 55", timeout=WAIT)
    assert (slider.get_attribute("min"), slider.get_attribute("max")) == ("9", "99")  # trained lengths
    source.fill("Wo ist die Apotheke?")
    slider.fill("22")
    expect(count).to_have_text("22 of 22", timeout=WAIT)
    expect(text).to_have_text("Where is the pharmacy?")
    for sentence in ("Ich habe gestern ein neues Fahrrad gekauft.", "Il fait très froid ce matin !", "日本 <b>$1</b>"):
        source.fill(sentence)
        for length in (12, 31, 60):
            slider.fill(str(length))
            expect(count).to_have_text(f"{length} of {length}", timeout=WAIT)
            assert len(text.text_content()) == length
    source.fill("Wo ist die Apotheke?")
    for constraint, least, most in (("max", 1, 60), ("range", 54, 66)):
        page.locator("#constraint").select_option(constraint)
        expect(page.locator("body")).to_have_attribute("data-shown", last(), timeout=WAIT)
        assert least <= len(text.text_content()) <= most
    assert elsewhere == []
