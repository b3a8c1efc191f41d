"""A service: a text and a length in, a text of this length out; requests are gathered into batches by length.

    LENCTRL_MODEL=path/or/name uvicorn --app-dir recipes/serve serve:app --port 8000

`POST /generate` takes `{"text", "length", "unit", "constraint", "tolerance"}` and answers with the pipeline's result.
A wrong request gets status 422 and `detail`: the rule, the value, the right call; one too many 503, one that takes too
long 504. `GET /health` says that the model is loaded and how many requests wait. A second worker process holds a
second copy of the model. docs/service.md names the limit on the body that a proxy must set.
"""

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import fastapi
import torch
from fastapi import FastAPI, HTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt
from transformers import StoppingCriteria, pipeline

import hf_lenctrl  # noqa: F401  it registers the task
from hf_lenctrl.length_units import LENGTH_UNITS, check_sources
from hf_lenctrl.lengths import LENGTH_CONSTRAINTS


SHIPPED = Path(__file__).resolve().parents[2] / "models" / "translate_to_english"
WAIT = 0.01  # seconds for which a first request waits for others
LARGEST = 32  # requests in a batch of the model
WAITING, WORK = 1024, 40_000  # requests that wait, and the sum of their lengths; more are answered with status 503
SECONDS = float(os.environ.get("LENCTRL_SECONDS", 60))  # for an answer; later it is status 504
LONGEST_TEXT, LONGEST_OUTPUT = 5000, 2000


def readable(text: str) -> str:
    """Return a text that the pipeline takes too; `ValueError` for others, so that none makes its batch fail."""
    check_sources([text])
    if not text.strip():
        raise ValueError("the text is empty")
    return text


class Request(BaseModel):
    """What a client asks for. The descriptions are the rules that a refusal names, with the first example."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, AfterValidator(readable)] = Field(
        max_length=LONGEST_TEXT,
        description=f"a string of valid Unicode with at least one word and at most {LONGEST_TEXT} characters",
        examples=["Guten Morgen."],
    )
    length: StrictInt = Field(
        ge=1, le=LONGEST_OUTPUT, description=f"an integer from 1 to {LONGEST_OUTPUT}", examples=[40]
    )
    unit: Literal[LENGTH_UNITS] | None = Field(  # type: ignore[valid-type]
        None, description=f"one of {', '.join(LENGTH_UNITS)} (by default the model's)", examples=["character"]
    )
    constraint: Literal[LENGTH_CONSTRAINTS] | None = Field(  # type: ignore[valid-type]
        None, description=f"one of {', '.join(LENGTH_CONSTRAINTS)} (by default the model's)", examples=["max"]
    )
    tolerance: StrictInt | None = Field(
        None,
        ge=0,
        le=LONGEST_OUTPUT,
        description=f'an integer from 0 to {LONGEST_OUTPUT} (with "exact": so many units more or less)',
        examples=[2],
    )


FIELDS: dict[str, Any] = Request.model_fields
CALL = json.dumps({name: field.examples[0] for name, field in FIELDS.items() if field.is_required()})


class Refusal(BaseModel):
    """The answer with status 422: the rule, the value, the right call."""

    detail: str


def shown(value: Any) -> str:
    """A value as JSON, in ASCII: half a character is no valid Unicode. Of a long one the beginning."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else f"{text[:60]}... ({len(text)} characters)"


def refusal(fault: dict) -> str:
    """One sentence on a fault that pydantic found."""
    name = fault["loc"][-1]
    if name in FIELDS:
        value = "nothing" if fault["type"] == "missing" else shown(fault["input"])
        return (
            f'{name} must be {FIELDS[name].description}, got {value}; send "{name}": {shown(FIELDS[name].examples[0])}'
        )
    if fault["type"] == "extra_forbidden":
        return f"the fields of a request are {', '.join(FIELDS)}, got {shown(name)}; send {CALL}"
    return no_object(fault["ctx"]["error"] if fault["type"] == "json_invalid" else shown(fault["input"]))


def no_object(value: Any) -> str:
    """One sentence on a body that is no JSON object."""
    return f"the body must be a JSON object with content-type application/json, got {value}; send {CALL}"


@dataclass
class Waiting:
    """A request and the answer that it waits for."""

    request: Request
    answer: asyncio.Future

    @property
    def kind(self) -> tuple[str, str, bool]:
        """What all requests of one call of the pipeline share."""
        return self.request.unit or "", self.request.constraint or "", self.request.tolerance is not None


class Left(Exception):
    """Nobody waits for the texts of a batch any more."""


class WhileAwaited(StoppingCriteria):
    """Raises `Left` between two steps of the model, once nobody waits for any text of its batch."""

    def __init__(self, batch: list[Waiting]):
        self.batch = batch

    def __call__(self, input_ids, scores, **kwargs):
        """`(rows, sequence_length)` -> `(rows,)`, which ends no row."""
        if all(one.answer.done() for one in self.batch):
            raise Left
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class Batcher:
    """
    Gathers requests and runs the model in one thread.

    Args:
        write (`LengthControlledGenerationPipeline`): Called with texts and a length for each.
    """

    def __init__(self, write: Any):
        self.write = write
        self.queue: asyncio.Queue[Waiting | None] = asyncio.Queue()
        self.thread = ThreadPoolExecutor(1)

    async def run(self) -> None:
        """Answer batches until `None` comes out of the queue, which ends it."""
        more = True
        while more:
            found = [await self.queue.get()]
            await asyncio.sleep(WAIT)
            while not self.queue.empty():
                found.append(self.queue.get_nowait())
            more = None not in found
            requests = sorted((w for w in found if w is not None), key=lambda w: (w.kind, w.request.length))
            for _, group in groupby(requests, key=lambda w: w.kind):
                rows = list(group)
                for start in range(0, len(rows), LARGEST):
                    await self.answer(rows[start : start + LARGEST])
        self.thread.shutdown()

    async def answer(self, batch: list[Waiting]) -> None:
        """Answer requests of one kind that are still waited for; where they fail together, each half by itself."""
        batch = [one for one in batch if not one.answer.done()]
        if not batch:
            return
        try:
            results = await asyncio.get_running_loop().run_in_executor(self.thread, self.texts, batch)
        except Exception as error:
            half = len(batch) // 2
            for part in (batch[:half], batch[half:]) if half else ():
                await self.answer(part)
            if not half and not batch[0].answer.done():
                batch[0].answer.set_exception(error)
            return
        for one, result in zip(batch, results, strict=True):
            if not one.answer.done():  # its client may have gone
                one.answer.set_result(result)

    def texts(self, batch: list[Waiting]) -> list[dict]:
        """The pipeline's results for requests of one kind."""
        first = batch[0].request
        # what a request leaves out is the model's own default
        options: dict[str, Any] = {"length_unit": first.unit, "length_constraint": first.constraint}
        options = {name: value for name, value in options.items() if value is not None}
        if first.tolerance is not None:
            options["length_tolerance"] = [w.request.tolerance for w in batch]
        return self.write(
            [w.request.text for w in batch],
            length=[w.request.length for w in batch],
            batch_size=LARGEST,
            progress_bar=False,
            stopping_criteria=[WhileAwaited(batch)],
            **options,
        )


@asynccontextmanager
async def lifespan(app: FastAPI):
    """Load the model, run the queue, and answer at the end what still waits."""
    task: Any = "length-controlled-generation"
    batcher = app.state.batcher = Batcher(pipeline(task, model=os.environ.get("LENCTRL_MODEL", str(SHIPPED))))
    app.state.waiting = app.state.work = 0
    running = app.state.running = asyncio.create_task(batcher.run())
    yield
    await batcher.queue.put(None)
    await running


# a page of the API would load its scripts from elsewhere; /openapi.json has what it shows
app = FastAPI(title="Text of a length", lifespan=lifespan, docs_url=None, redoc_url=None)


@app.exception_handler(RequestValidationError)
async def refuse(_, error: RequestValidationError) -> JSONResponse:
    """What is wrong with a request, a sentence for each fault."""
    return JSONResponse({"detail": ". ".join(refusal(fault) for fault in error.errors())}, status_code=422)


@app.exception_handler(400)
async def refuse_body(_, error: HTTPException) -> JSONResponse:
    """What is wrong with a body that FastAPI cannot read, such as bytes that are no UTF-8."""
    return JSONResponse({"detail": no_object(error.__cause__ or error.detail)}, status_code=422)


@app.get("/health")
async def health() -> dict:
    """That the model is loaded, and how many requests wait for an answer; 503 once the queue has ended."""
    if app.state.running.done():
        raise HTTPException(503, "the queue has ended, and no request is answered; restart the service")
    return {"status": "ok", "waiting": app.state.waiting}


@app.post("/generate", responses={422: {"model": Refusal}})
async def generate(request: Request, http: fastapi.Request) -> dict:
    """The text, its length, the requested one and the unit."""
    state, waiting = app.state, Waiting(request, asyncio.get_running_loop().create_future())
    if state.waiting >= WAITING or state.work + request.length > WORK:
        raise HTTPException(
            503,
            f"at most {WAITING} requests wait, and at most {WORK} units of their lengths, got {state.waiting} and "
            f"{state.work + request.length}; ask again later",
            {"Retry-After": "5"},
        )
    state.waiting += 1
    state.work += request.length
    state.batcher.queue.put_nowait(waiting)
    left: asyncio.Future = asyncio.ensure_future(
        http.receive()
    )  # behind the body comes the end of the connection alone
    try:
        ended = (await asyncio.wait((waiting.answer, left), timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED))[0]
        if waiting.answer in ended:
            return waiting.answer.result()
        raise HTTPException(
            499 if ended else 504, f"there was no answer in {SECONDS:g} seconds; ask again later, or for less"
        )
    except (TypeError, ValueError) as error:
        raise HTTPException(422, str(error)) from error
    finally:
        left.cancel()
        waiting.answer.cancel()  # one that is not answered is not generated
        state.waiting -= 1
        state.work -= request.length
