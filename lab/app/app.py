"""A page to try a translator: a sentence and a length in, a translation of this length out, the natural one beside it.

    python lab/app/app.py
    LENCTRL_MODEL=path/or/name python lab/app/app.py

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
from hf_lenctrl.inference.candidates import Candidate


HERE = Path(__file__).resolve().parent
MODELS = [HERE / "model", HERE.parents[1] / "models" / "translate_to_english"]  # of a Space, of the repository
QUEUE, LARGEST_FILE = 64, "10kb"  # requests that wait, and what a visitor may send as a file
LONGEST_TEXT = 300  # characters; the models know single sentences
# the end of a sentence and the start of the next; "3. Mai" and "Dr. Frey" hold none
NEXT_SENTENCE = re.compile(r"(?:[^\W\d_]{3}(?<!Prof)[.…]+|[!?]+)[\s\"'“”’»)]*\s[\s\"'„“«(]*[A-ZÀ-Þ]")
LONGEST = 120  # of the slider, where the configuration does not name the lengths of the training
# what the page calls a constraint: options of the pipeline
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "about": {"length_constraint": "exact", "length_tolerance": 0.1},
    "at most": {"length_constraint": "max"},
    "exact": {"length_constraint": "exact"},
    "unconstrained": {"length_constraint": None},
}
SHARES = {"as short as possible": 0.7, "a little shorter": 0.85, "longer": 1.2}  # of the natural length
DOUBTFUL = -7.0  # under this score most texts do not read well (docs/results/outputs.md)
EXAMPLES = [
    "Je voudrais réserver une table pour deux personnes ce soir.",
    "Ich kann dieses Fenster nicht öffnen.",
    "Der Film war so langweilig, dass ich eingeschlafen bin.",
    "J'aimerais apprendre à jouer du piano.",
    "Peux-tu marcher un peu plus lentement, s'il te plaît ?",
]
CSS = """
.row {margin: .6em 0} .label {color: var(--block-title-text-color); font-size: .85em}
.text {font-size: 1.15em; overflow-wrap: anywhere}
.count {color: #fff; border-radius: .6em; padding: 0 .5em; font-weight: 600}
.met {background: #15803d} .doubt {background: #a16207}
.over {background: #b91c1c} .under {background: #b45309} .base {background: #6b7280}
.tokens {display: flex; flex-wrap: wrap; gap: .5em .25em} .token {min-width: 2.2em; font-family: monospace}
.bar {height: .35em; background: #0072B2; border-radius: .2em} .track {background: #8884; border-radius: .2em}
.left {font-size: .8em; opacity: .7}
"""


class Writer(LengthControlledGenerationPipeline):
    """The pipeline, with the ids of each output and its progress, `units` after each id."""

    def postprocess(self, outputs, **options) -> list[Candidate]:  # type: ignore[override]
        candidates, ids = super().postprocess(outputs, **options), outputs["ids"].cpu()
        progress = self._unit_table(options["call"].unit).to("cpu").progress(ids)
        for candidate, row, units in zip(candidates, ids, progress, strict=True):
            candidate.output |= {"ids": row.tolist(), "units": units.tolist()}
        return candidates


def load(model: str) -> Any:
    """The pipeline of a folder or a name on the Hub."""
    task: Any = "length-controlled-generation"  # the stubs of Transformers know its own tasks alone
    return pipeline(task, model=model, pipeline_class=Writer, num_beams=4)


def is_controlled(pipe: LengthControlledGenerationPipeline) -> bool:
    """Whether the model is given the length; any other has the constraint alone, and needs one."""
    config = pipe.model.config
    return getattr(config, "length_controlled", False) or getattr(config, "length_tokens", None) is not None


def is_optional(pipe: LengthControlledGenerationPipeline) -> bool:
    """Whether the model also writes without a length."""
    return getattr(pipe.model.config, "length_optional", False)


def unit_of(pipe: LengthControlledGenerationPipeline) -> str:
    """The unit that the model counts; characters for a plain model."""
    return pipe.model.config.length_unit if is_controlled(pipe) else "character"


def length_range(pipe: LengthControlledGenerationPipeline) -> tuple[int, int]:
    """The slider's ends: the lengths that nearly all training targets had, where the configuration names them."""
    trained = getattr(pipe.model.config, "trained_lengths", None) or {}
    return int(trained.get("1%", 1)), int(trained.get("99%", LONGEST))


def kind_of(out: dict, choice: str) -> str:
    """The colour's class of a count."""
    low, high = out.get("window", [out["requested_length"]] * 2)
    if out["length"] <= high and (choice == "at most" or low <= out["length"]):
        return "doubt" if out.get("score", 0.0) < DOUBTFUL else "met"
    return "over" if out["length"] > high else "under"


def asked(out: dict, choice: str) -> str:
    """What was requested, with its window: `about 40 (36 to 44)`."""
    low, high = out.get("window", [out["requested_length"]] * 2)
    return f"{choice} {out['requested_length']}" + (f" ({low} to {high})" if low < high else "")


def steps(natural: int, ends: tuple[int, int]) -> dict[str, int]:
    """A length for each of the `SHARES` of the natural length, within the ends of the slider."""
    low, high = ends
    return {name: min(max(round(share * natural), low), high) for name, share in SHARES.items()}


def row(label: str, text: str, count: str, kind: str) -> str:
    """A text with its coloured count, as HTML."""
    badge = f'<span class="count {kind}">{escape(count)}</span>'
    label = f'<div class="label">{escape(label)} {badge}</div>'
    return f'<div class="row">{label}<div class="text">{escape(text)}</div></div>'


def tokens(pipe: LengthControlledGenerationPipeline, out: dict) -> str:
    """Each token and, under it, the length that remained when the decoder chose it, as HTML."""
    decode, requested, cells = pipe.tokenizer.decode, out["requested_length"], []
    before = shown = 0
    for place, units in enumerate(out["units"]):
        # what this token adds to the text; the start of the decoder adds nothing
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        end = len(decode(out["ids"][: place + 1], **options))
        is_end = place > 0 and out["ids"][place] == pipe.tokenizer.eos_token_id
        if end > shown or is_end:
            piece, remaining = out["generated_text"][shown:end] or "end", requested - before
            bar = f'<div class="bar" style="width: {max(0, min(100, round(100 * remaining / requested)))}%"></div>'
            cells.append(
                f'<div class="token"><div>{escape(piece.replace(" ", "␣"))}</div><div class="track">{bar}</div>'
                f'<div class="left">{remaining}</div></div>'
            )
        before, shown = units, max(end, shown)
        if is_end:
            break
    title = "The remaining length when each token was written"
    return f'<div class="row"><div class="label">{title}</div><div class="tokens">{"".join(cells)}</div></div>'


def translate(pipe: Writer, text: str, length: float, choice: str) -> str:
    """
    The page's answer, as HTML.

    Raises:
        `ValueError`: for a text without a word or of more than a sentence, and a length that is not on the slider.
    """
    low, high = length_range(pipe)
    text = (text or "").strip()
    if not text:
        raise ValueError(f"the text must hold at least one word, got {text!r}; enter a sentence or pick an example")
    if len(text) > LONGEST_TEXT or NEXT_SENTENCE.search(text):
        found = f"{len(text)} characters" if len(text) > LONGEST_TEXT else "more than one sentence"
        raise ValueError(
            f"the text must be one sentence of at most {LONGEST_TEXT} characters, got {found}; enter one "
            "sentence at a time"
        )
    if isinstance(length, bool) or not isinstance(length, int | float) or not low <= length <= high or length % 1:
        raise ValueError(f"the length must be an integer from {low} to {high}, got {length!r}; use the slider")
    if choice not in CONSTRAINTS:
        raise ValueError(f"the constraint must be one of {', '.join(CONSTRAINTS)}, got {choice!r}")
    unit, requested = unit_of(pipe), int(length)
    out = pipe(text, length=requested, length_unit=unit, **CONSTRAINTS[choice])
    kind, count = kind_of(out, choice), f"{out['length']} of {requested}"
    count += ", may not read well" if kind == "doubt" else ""
    parts = [row(f"{asked(out, choice)} {unit}s", out["generated_text"], count, kind)]
    if is_optional(pipe):
        plain = pipe(text, length_unit=unit)
        parts.append(row("without a length", plain["generated_text"], str(plain["length"]), "base"))
    return "".join([*parts, tokens(pipe, out)])


def length_of(pipe: Writer, text: str, step: str, length: float) -> int:
    """The slider's length of a step for a text, by its natural length; `length` where that is not known."""
    text = (text or "").strip()
    if not is_optional(pipe) or step not in SHARES or not text or len(text) > LONGEST_TEXT:
        return int(length)
    return steps(pipe(text, length_unit=unit_of(pipe))["length"], length_range(pipe))[step]


def build(pipe: Writer) -> gr.Blocks:
    """The page."""
    low, high = length_range(pipe)
    choices = [name for name, given in CONSTRAINTS.items() if given["length_constraint"] or is_controlled(pipe)]

    def answer(*request):
        try:
            return translate(pipe, *request)
        except ValueError as error:
            raise gr.Error(escape(str(error), quote=False), print_exception=False) from error  # it is shown as HTML

    def answer_step(text, step, length, choice, seen):
        if [text, step] != seen:  # else the visitor's own length stays
            length = length_of(pipe, text, step, length)
        return length, [text, step], answer(text, length, choice)

    with gr.Blocks(title="Translate to a length", analytics_enabled=False) as page:
        what = "Enter a German or French sentence. The page translates it into English of the length that you choose."
        gr.Markdown(f"# Translate to a length\n{what} **This is a small model for everyday sentences.**")
        text = gr.Textbox(EXAMPLES[0], label="Sentence", lines=1, autofocus=True)  # with one line Enter submits
        step = gr.Radio([*SHARES], value="a little shorter", label="Beside the natural translation")
        seen = gr.State([EXAMPLES[0], "a little shorter"])
        first = length_of(pipe, EXAMPLES[0], "a little shorter", min(max(30, low), high))
        length = gr.Slider(low, high, value=first, step=1, label=f"Length in {unit_of(pipe)}s")
        constraint = gr.Radio(choices, value="about", label="Constraint")
        button = gr.Button("Translate", variant="primary")
        output = gr.HTML(css_template=CSS)
        gr.Examples([[example] for example in EXAMPLES], [text])
        # a small machine runs the model once at a time; a choice made meanwhile is answered next
        once: dict[str, Any] = {"concurrency_limit": 1, "concurrency_id": "model", "trigger_mode": "always_last"}
        following = [button.click, text.submit, step.input]  # the slider follows the text
        given, changed = [text, step, length, constraint, seen], [length, seen, output]
        gr.on(following, answer_step, given, changed, api_name="step", **once)
        chosen = [length.release, constraint.input]
        gr.on(chosen, answer, [text, length, constraint], output, api_name="translate", **once)
    return page.queue(max_size=QUEUE)


def find_model() -> str:
    """The model that the variable names, or else the first of `MODELS` that is there."""
    found = [str(folder) for folder in MODELS if (folder / "config.json").is_file()]
    model = os.environ.get("LENCTRL_MODEL") or next(iter(found), None)
    if model is None:
        raise ValueError("there is no model; set LENCTRL_MODEL to a folder or Hub name, or copy one to model/")
    return model


def main() -> None:
    """Serve `find_model()`."""
    # the page takes no files; larger bodies are refused
    build(load(find_model())).launch(max_file_size=LARGEST_FILE)


if __name__ == "__main__":
    main()
