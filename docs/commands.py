"""The page of the commands, from their options.

    python docs/commands.py

writes `docs/commands.md`. A test compares the page with what this makes.
"""

from pathlib import Path

from hf_lenctrl.commands import causal, evaluate, export, fit, fit_cost, generate, predictor, train
from hf_lenctrl.commands.arguments import CommandParser, DataArguments, ModelArguments, RunArguments, SplitArguments
from hf_lenctrl.commands.predictor import PredictorArguments


PAGE = Path(__file__).with_suffix(".md")
TRAINER = (
    "\nBesides these it takes every option of [`{0}`](https://huggingface.co/docs/transformers/main_classes/trainer)."
    " A YAML has the same names, `bf16` may be `auto`, and what it calls `required` is given on the command line."
)


def table(parser: CommandParser) -> str:
    """The options of a command."""
    lines = ["| option | default | |", "|---|---|---|"]
    for action in parser._actions[1:]:  # without --help
        option = action.option_strings[0] if action.option_strings else action.dest
        if option.startswith("--no_") and action.const is False:  # of options that are true by default
            continue
        default = "required" if action.required else "" if action.default in (None, [], "") else f"`{action.default}`"
        choices = "" if action.choices is None else f": {', '.join(f'`{choice}`' for choice in action.choices)}"
        lines.append(f"| `{option}` | {default} | {action.help or ''}{choices} |")
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    seq2seq, single = TRAINER.format("Seq2SeqTrainingArguments"), TRAINER.format("TrainingArguments")
    commands = {
        "train": (train.__doc__ + seq2seq, CommandParser([ModelArguments, DataArguments, RunArguments])),
        "train, causal models": (causal.__doc__ + single, CommandParser([causal.CausalArguments])),
        "train-predictor": (predictor.__doc__ + single, CommandParser([PredictorArguments, SplitArguments])),
        "generate": (generate.__doc__, generate.make_parser()),
        "fit": (fit.__doc__, fit.make_parser()),
        "fit-cost": (fit_cost.__doc__, fit_cost.make_parser()),
        "evaluate": (evaluate.__doc__, evaluate.make_parser()),
        "export": (export.__doc__, export.make_parser()),
    }
    parts = ["# Commands\n\nEvery option of `lenctrl`. `python docs/commands.py` writes this page."]
    for name, (text, parser) in commands.items():
        parts.append(f"## lenctrl {name}\n\n{text.strip()}\n\n{table(parser)}")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
