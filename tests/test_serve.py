"""The service: a server of its own process, asked by real HTTP clients."""

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from processes import Process
from recipe_runs import ROOT


SENTENCES = [
    "Ich kann dieses Fenster nicht öffnen.",
    "Der Film war so langweilig, dass ich eingeschlafen bin.",
    "J'aimerais apprendre à jouer du piano.",
    "Wir haben gestern im Garten gearbeitet.",
]
UP = 180  # seconds to load, on busy cores
FOLDER = ROOT / "recipes" / "serve"
CLIENT = httpx.Client(timeout=180, limits=httpx.Limits(max_connections=None))
sys.path.append(str(FOLDER))
import serve  # noqa: E402


@pytest.fixture(scope="module")
def address():
    """Of a server, once it answers; what waits at its end is answered."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LENCTRL_SECONDS": "900"}  # busy cores
    command = ["--app-dir", str(FOLDER), "serve:app", "--port", port, "--log-level", "warning"]
    server = Process("runpy.run_module('uvicorn', run_name='__main__')", *command, **environment)
    address = f"http://127.0.0.1:{port}"
    end = time.monotonic() + UP
    while True:
        assert server.poll() is None and time.monotonic() < end, server.log.read_text()[-3000:]
        try:
            assert httpx.get(f"{address}/health", timeout=5).json() == {"status": "ok", "waiting": 0}
            break
        except httpx.TransportError:
            time.sleep(0.2)
    yield address
    with ThreadPoolExecutor(6) as pool:
        waiting = [pool.submit(ask, address, text=SENTENCES[k % 4], length=30 + k) for k in range(6)]
        while True:  # until all are accepted
            answered = sum(one.done() for one in waiting)
            if answered + httpx.get(f"{address}/health", timeout=60).json()["waiting"] == 6:
                break
            time.sleep(0.01)
        os.kill(server.pid, signal.SIGINT)
        answers = [one.result() for one in waiting]
    assert [answer.status_code for answer in answers] == [200] * 6
    assert [answer.json()["requested_length"] for answer in answers] == list(range(30, 36))
    assert server.wait(60) == 0


def ask(address: str, **request) -> httpx.Response:
    return CLIENT.post(f"{address}/generate", json=request)


def test_parallel_requests_are_answered_each_with_its_own(address):
    requests = [
        {"text": SENTENCES[k % 4], "length": 20 + k, "constraint": ("exact", "max", None)[k % 3], "unit": "character"}
        for k in range(12)
    ]
    for k in range(0, 12, 3):
        requests[k]["tolerance"] = k // 3  # a window of its own
    # white space for Python alone, refused before it is in a batch
    requests.append({"text": "\x1c", "length": 30, "constraint": "exact"})
    alone = {text: ask(address, text=text, length=36, constraint="max").json() for text in SENTENCES[:2]}
    with ThreadPoolExecutor(14) as pool:
        same = [pool.submit(ask, address, text=text, length=36, constraint="max") for text in alone]
        answers = list(pool.map(lambda request: ask(address, **request), requests))
    assert [answer.status_code for answer in answers] == [200] * 12 + [422]
    for request, answer in zip(requests[:12], answers[:12], strict=True):
        out = answer.json()
        assert (out["requested_length"], out["length_unit"]) == (request["length"], "character")
        assert out["length"] == len(out["generated_text"])
        off = abs(out["length"] - request["length"])
        assert request["constraint"] != "exact" or off <= request.get("tolerance", 0)
        assert request["constraint"] != "max" or out["length"] <= request["length"]
    for waiting, out in zip(same, alone.values(), strict=True):  # as alone, but for the last digits of a score
        assert waiting.result().json() == out | {"score": pytest.approx(out["score"], abs=1e-4)}


TEXT, LENGTH = "text must be a string of valid Unicode", "length must be an integer from 1 to 2000, got "


@pytest.mark.parametrize(
    "change, rules",
    [
        *(({"length": n}, [f'{LENGTH}{json.dumps(n)}; send "length": 40']) for n in (0, "40", None)),
        ({"length": ...}, [f"{LENGTH}nothing"]),
        *(({"text": text}, [TEXT, f"got {json.dumps(text)}; send"]) for text in ("", "  ", "\x1c", "\x1d \x85", 7)),
        ({"text": "x" * 5001}, [TEXT, f'"{"x" * 59}... (5003 characters)']),
        (
            {"constraint": "least"},
            ["constraint must be one of max, exact, min", 'got "least"; send "constraint": "max"'],
        ),
        ({"tolerance": -1}, ["tolerance must be an integer from 0", 'got -1; send "tolerance": 2']),
        ({"tolerance": 2001}, ["tolerance must be an integer from 0 to 2000", 'got 2001; send "tolerance": 2']),
        ({"unit": "line"}, ["unit must be one of token, character, word, ", 'got "line"']),
        ({"lenght": 4}, ["the fields of a request are text, length, unit, constraint, tolerance", 'got "lenght"']),
        ({"tolerance": 3, "constraint": "max"}, ["length_tolerance=", "exact"]),  # this is the pipeline's
        (b'{"text": "Hallo \\ud83d", "length": 30}', [TEXT, '"Hallo \\ud83d"; send "text"']),  # half a character
        (b"[]", ["the body must be a JSON object", "got []; send"]),
        # FastAPI itself answers these with status 400, without a rule
        (b'{"text": "Hallo \xff"}', ["the body must be a JSON object", "codec can't decode byte 0xff", "; send {"]),
        (b'{"length": 1' + 5000 * b"0" + b"}", ["the body must be a JSON object", "value has 5001 digits"]),
    ],
)
def test_a_refusal_has_the_rule_the_value_and_the_right_call(address, change, rules):
    body = change
    if isinstance(change, dict):
        request = {"text": SENTENCES[0], "length": 30, **change}
        body = json.dumps({name: value for name, value in request.items() if value is not ...}).encode()
    answer = CLIENT.post(f"{address}/generate", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422 and [rule for rule in rules if rule not in answer.json()["detail"]] == []


def test_a_service_whose_queue_has_ended_is_not_well(monkeypatch):
    async def work():
        await (running := asyncio.create_task(asyncio.sleep(0)))
        monkeypatch.setattr(serve.app.state, "running", running, raising=False)
        await serve.health()

    with pytest.raises(serve.HTTPException, match="503"):
        asyncio.run(work())


def test_requests_of_one_kind_are_one_call_sorted_by_length_in_one_thread():
    calls, threads = [], set()

    def write(texts, length, **options):
        calls.append((options.get("length_unit"), options.get("length_constraint"), length))
        threads.add(threading.get_ident())
        if "bad" in texts:
            raise ValueError("a bad text")
        return [{"generated_text": text.upper()} for text in texts]

    async def work():
        batcher = serve.Batcher(write)
        kinds = [(3, "max", "a"), (1, "exact", "b"), (2, "max", "c"), (9, "max", "bad"), (4, None, "d")]
        waiting = []
        for length, constraint, text in kinds:
            request = serve.Request(text=text, length=length, constraint=constraint)
            waiting.append(serve.Waiting(request, asyncio.get_running_loop().create_future()))
            batcher.queue.put_nowait(waiting[-1])
        batcher.queue.put_nowait(None)
        await batcher.run()
        return [one.answer.exception() or one.answer.result()["generated_text"] for one in waiting]

    *written, error, other = asyncio.run(work())
    assert written == ["A", "B", "C"] and str(error) == "a bad text" and other == "D"
    # without a constraint the pipeline is given none, and takes the model's default
    assert calls[:3] == [(None, None, [4]), (None, "exact", [1]), (None, "max", [2, 3, 9])]
    # a batch that fails is halved
    assert calls[3:] == [(None, "max", [2]), (None, "max", [3, 9]), (None, "max", [3]), (None, "max", [9])]
    assert len(threads) == 1 and threading.get_ident() not in threads


def waiting_for(text: str, **request) -> serve.Waiting:
    """A request, in a running loop."""
    return serve.Waiting(serve.Request(text=text, **request), asyncio.get_running_loop().create_future())


def test_one_bad_request_of_32_costs_eleven_calls_and_not_33():
    calls = []

    def write(texts, length, **options):
        calls.append(len(texts))
        if "bad" in texts:
            raise ValueError("a bad text")
        return [{"generated_text": text} for text in texts]

    async def work():
        batcher = serve.Batcher(write)
        batch = [waiting_for("bad" if k == 9 else str(k), length=5) for k in range(32)]
        await batcher.answer(batch)
        return [one.answer.exception() is None for one in batch]

    assert asyncio.run(work()) == [k != 9 for k in range(32)]
    assert sorted(calls) == [1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32]


def test_what_nobody_waits_for_is_not_generated_and_stops_the_model():
    written, steps = [], []

    def write(texts, length, stopping_criteria, **options):
        written.append(texts)
        for step in range(200):  # as the model's steps
            steps.append(step)
            stopping_criteria[0](serve.torch.zeros(len(texts), 1), None)
            time.sleep(0.01)
        return [{"generated_text": text} for text in texts]

    async def work():
        batcher = serve.Batcher(write)
        gone, running = waiting_for("gone", length=5), waiting_for("running", length=5)
        gone.answer.cancel()
        task = asyncio.create_task(batcher.answer([gone, running]))
        await asyncio.sleep(0.1)
        running.answer.cancel()
        await asyncio.wait_for(task, 10)
        await batcher.answer([gone])

    asyncio.run(work())
    assert written == [["running"]] and 0 < len(steps) < 200


def test_a_client_who_leaves_delays_nobody(address):
    long = " ".join(SENTENCES * 8)
    with ThreadPoolExecutor(4) as pool:  # clients that wait for half a second

        def leave(_):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{address}/generate", json={"text": long, "length": 500}, timeout=0.5)

        list(pool.map(leave, range(4)))
    end = time.monotonic() + 30
    while httpx.get(f"{address}/health", timeout=60).json()["waiting"] and time.monotonic() < end:
        time.sleep(0.1)
    assert httpx.get(f"{address}/health", timeout=60).json() == {"status": "ok", "waiting": 0}
    assert ask(address, text=SENTENCES[0], length=30).status_code == 200


class Connection:
    """A request of HTTP whose client stays."""

    async def receive(self):
        await asyncio.sleep(60)


@pytest.mark.parametrize(("waiting", "work"), [(1024, 1024), (20, 39_990)])
def test_more_requests_or_more_work_than_the_limit_is_refused(monkeypatch, waiting, work):
    monkeypatch.setattr(serve.app.state, "waiting", waiting, raising=False)
    monkeypatch.setattr(serve.app.state, "work", work, raising=False)

    async def call():
        await serve.generate(serve.Request(text="a", length=11), Connection())

    with pytest.raises(serve.HTTPException, match="503: at most 1024 requests wait, and at most 40000 units"):
        asyncio.run(call())
    assert (serve.app.state.waiting, serve.app.state.work) == (waiting, work)


def test_an_answer_that_takes_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr(serve, "SECONDS", 0.05)

    async def call():
        for name, value in {"waiting": 0, "work": 0, "batcher": serve.Batcher(None)}.items():
            monkeypatch.setattr(serve.app.state, name, value, raising=False)
        with pytest.raises(serve.HTTPException, match="504: there was no answer in 0.05 seconds"):
            await serve.generate(serve.Request(text="a", length=11), Connection())
        [left] = [serve.app.state.batcher.queue.get_nowait()]
        return left.answer.cancelled()

    assert asyncio.run(call()) and (serve.app.state.waiting, serve.app.state.work) == (0, 0)


def test_the_service_loads_nothing_from_elsewhere(address):
    assert [httpx.get(f"{address}/{page}").status_code for page in ("docs", "redoc")] == [404, 404]
    assert "/generate" in httpx.get(f"{address}/openapi.json").json()["paths"]
