"""A page to try a model: text and lengths in, texts of these lengths out, side by side.

    python app/app.py
    LENCTRL_MODEL=path/or/name python app/app.py

This folder is a Space of the Hub, see its README.md.
"""

import os
import re
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from transformers import pipeline

from hf_lenctrl import LengthControlledGenerationPipeline
from hf_lenctrl.length_units import LENGTH_UNITS


HERE = Path(__file__).resolve().parent
MODELS = [HERE / "model", HERE.parent / "models" / "debian_headlines"]  # of a Space, of the repository
LONGEST, MOST = 300, 8  # units and texts of one request: visitors of a Space wait for each other
COLUMNS = {"requested_length": "requested", "length": "measured", "length_unit": "unit", "generated_text": "text"}
WIDTHS: list[Any] = ["12%", "12%", "12%", "64%"]
EXAMPLES = [
    [
        "This program shows the weather of the next days in the panel of the desktop. It asks several services, "
        "draws temperature and rain as curves, and warns before storms.",
        "20, 40, 60",
    ],
    [
        "A library to read and write calendars. It understands repeated events and time zones, finds appointments "
        "that overlap, and comes with a small tool for the command line.",
        "30, 50, 75",
    ],
    [
        "Two players move stones over a board of hexagons and try to reach the other side first. The computer plays "
        "at five levels; games can be saved, taken back and sent by mail.",
        "25, 50, 100",
    ],
]


def read_lengths(written: str) -> list[int]:
    """The lengths in "30, 50, 75"."""
    call = "write them like this: 30, 50, 75"
    parts = re.split(r"[\s,;]+", written.strip(" \t\n,;"))
    if len(parts) > MOST:
        raise ValueError(f"one request takes at most {MOST} lengths, got {len(parts)}; {call}")
    lengths = [int(part) if re.fullmatch(r"[0-9]{1,9}", part) else 0 for part in parts]
    for part, length in zip(parts, lengths, strict=True):
        if not 1 <= length <= LONGEST:
            raise ValueError(f"a length must be an integer from 1 to {LONGEST}, got {part!r}; {call}")
    return lengths


def write(
    pipe: LengthControlledGenerationPipeline, text: str, lengths: str | int, unit: str, constraint: str
) -> list[list]:
    """A row of the table for each length."""
    if not (text or "").strip():
        raise ValueError(f"the text must hold at least one word, got {text!r}; enter a text or pick an example")
    wanted = read_lengths(str(lengths))
    bound = None if constraint == "none" else constraint
    outputs = pipe([text] * len(wanted), length=wanted, length_unit=unit, length_constraint=bound, num_beams=4)
    return [[output[key] for key in COLUMNS] for output in outputs]


def build(pipe: LengthControlledGenerationPipeline) -> gr.Blocks:
    """The page."""
    config = pipe.model.config
    told = getattr(config, "length_controlled", False) or getattr(config, "length_tokens", None) is not None
    # a model that is told the length counts in its own unit; any other has only the bound, which counts in every unit
    units = [config.length_unit] if told else list(LENGTH_UNITS)
    about = f"This model plans for a length in **{units[0]}s**" if told else "This model is not told the length"

    def answer(*asked):
        try:
            return write(pipe, *asked)
        except ValueError as error:
            raise gr.Error(escape(str(error), quote=False), print_exception=False) from error  # it is shown as HTML

    with gr.Blocks(title="Ask for a length", analytics_enabled=False) as page:
        gr.Markdown(f"# Ask for a length, get it\n{about}; a constraint guarantees it: never longer, or exactly it.")
        text = gr.Textbox(label="Text", lines=4)
        with gr.Row():
            unit = gr.Dropdown(units, value=units[0], label="Unit", interactive=not told)
            constraint = gr.Radio(["none"] * told + ["max", "exact"], value="exact", label="Constraint")
        with gr.Row(equal_height=True):
            length = gr.Slider(1, LONGEST, value=50, step=1, label="One length", scale=3)
            one = gr.Button("Write one", min_width=150)
            several = gr.Textbox("30, 50, 75", label=f"Several lengths, at most {MOST}", scale=3)
            many = gr.Button("Write several", variant="primary", min_width=150)
        table = gr.Dataframe(headers=list(COLUMNS.values()), column_widths=WIDTHS, wrap=True, interactive=False)
        gr.Examples(EXAMPLES, [text, several])
        # both buttons share a queue: a small machine runs the model once at a time
        shared: dict[str, Any] = {"outputs": table, "concurrency_limit": 1, "concurrency_id": "model"}
        one.click(answer, [text, length, unit, constraint], api_name="one", **shared)
        asked = [many.click, several.submit]
        gr.on(asked, answer, [text, several, unit, constraint], api_name="several", **shared)
    return page


def find_model() -> str:
    """The model that LENCTRL_MODEL names, or else the one of the Space or of the repository."""
    found = [str(folder) for folder in MODELS if (folder / "config.json").is_file()]
    named = os.environ.get("LENCTRL_MODEL")
    if not named and not found:
        raise ValueError("there is no model; set LENCTRL_MODEL to a folder or Hub name, or copy one to model/")
    return named or found[0]


def main() -> None:
    """Serve `find_model()`."""
    task: Any = "length-controlled-generation"  # the stubs of Transformers know its own tasks alone
    build(pipeline(task, model=find_model())).launch()


if __name__ == "__main__":
    main()
