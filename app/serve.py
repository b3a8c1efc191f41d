"""A service: a text and a length in, a text of this length out; requests are gathered into batches by length.

    LENCTRL_MODEL=path/or/name uvicorn --app-dir app serve:app --port 8000

`POST /generate` takes `{"text", "length", "unit", "constraint", "tolerance"}` and answers with the pipeline's result.
A wrong request gets status 422 and `detail`: the rule, the value, the right call. A second worker process holds a
second copy of the model.
"""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, StrictInt
from transformers import pipeline

import hf_lenctrl  # noqa: F401  it registers the task


SHIPPED = Path(__file__).resolve().parents[1] / "models" / "translate_to_english"
WAIT = 0.01  # seconds for which a first request waits for others
LARGEST = 32  # requests in a batch of the model
WAITING = 1024  # requests in the queue; more are answered with status 503
LONGEST_TEXT, LONGEST_OUTPUT = 5000, 2000


class Request(BaseModel):
    """What a client asks for; a field with another name is refused."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]
    length: Annotated[StrictInt, Field(ge=1, le=LONGEST_OUTPUT)]
    unit: Literal["token", "character", "word", "byte", "width"] | None = None  # by default the model's
    constraint: Literal["max", "exact"] | None = None  # by default the model's
    tolerance: Annotated[StrictInt, Field(ge=0)] | None = None  # with "exact": so many units more or less


@dataclass
class Waiting:
    """A request and the answer that it waits for."""

    request: Request
    answer: asyncio.Future

    @property
    def kind(self) -> tuple[str, str, bool]:
        """What all requests of one call of the pipeline share."""
        return self.request.unit or "", self.request.constraint or "", self.request.tolerance is not None


class Batcher:
    """
    Gathers requests and runs the model in one thread.

    Args:
        write (`LengthControlledGenerationPipeline`): Called with texts and a length for each.
    """

    def __init__(self, write: Any):
        self.write = write
        self.queue: asyncio.Queue[Waiting | None] = asyncio.Queue(WAITING)
        self.thread = ThreadPoolExecutor(1)

    async def run(self) -> None:
        """Answer batches until `None` comes out of the queue, which ends it."""
        more = True
        while more:
            batch = [await self.queue.get()]
            await asyncio.sleep(WAIT)
            while not self.queue.empty():
                batch.append(self.queue.get_nowait())
            more = None not in batch
            found = sorted((w for w in batch if w is not None), key=lambda w: (w.kind, w.request.length))
            for _, group in groupby(found, key=lambda w: w.kind):
                await self.answer(list(group))
        self.thread.shutdown()

    async def answer(self, group: list[Waiting]) -> None:
        """Answer requests of one kind; where they fail together, each by itself."""
        first = group[0].request
        # what a request leaves out is the model's own default
        options: dict[str, Any] = {"length_unit": first.unit, "length_constraint": first.constraint}
        options = {name: value for name, value in options.items() if value is not None}
        if first.tolerance is not None:
            options["length_tolerance"] = [w.request.tolerance for w in group]
        texts, lengths = [w.request.text for w in group], [w.request.length for w in group]

        def call():
            return self.write(
                texts,
                length=lengths,
                batch_size=LARGEST,
                progress_bar=False,
                **options,
            )

        try:
            results = await asyncio.get_running_loop().run_in_executor(self.thread, call)
        except Exception as error:
            if len(group) > 1:
                for one in group:
                    await self.answer([one])
            elif not group[0].answer.done():
                group[0].answer.set_exception(error)
            return
        for one, result in zip(group, results, strict=True):
            if not one.answer.done():  # its client may have gone
                one.answer.set_result(result)


@asynccontextmanager
async def lifespan(app: FastAPI):
    """Load the model, run the queue, and answer at the end what still waits."""
    task: Any = "length-controlled-generation"
    batcher = app.state.batcher = Batcher(pipeline(task, model=os.environ.get("LENCTRL_MODEL", str(SHIPPED))))
    running = asyncio.create_task(batcher.run())
    yield
    await batcher.queue.put(None)
    await running


app = FastAPI(title="Text of a length", lifespan=lifespan)


@app.exception_handler(RequestValidationError)
async def refuse(_, error: RequestValidationError) -> JSONResponse:
    """What is wrong with a request, without the text itself, which may be no valid Unicode."""
    found = [{name: fault[name] for name in ("type", "loc", "msg")} for fault in error.errors()]
    return JSONResponse({"detail": found}, status_code=422)


@app.post("/generate")
async def generate(request: Request) -> dict:
    """The text, its length, the requested one and the unit."""
    waiting = Waiting(request, asyncio.get_running_loop().create_future())
    try:
        app.state.batcher.queue.put_nowait(waiting)
    except asyncio.QueueFull:
        raise HTTPException(503, f"{WAITING} requests wait already; ask again later") from None
    try:
        return await waiting.answer
    except (TypeError, ValueError) as error:
        raise HTTPException(422, str(error)) from error
