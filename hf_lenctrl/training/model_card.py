"""The model card of a training run: how to use the model and request a length, how well outputs keep lengths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Template

from ..card import TEXT, bullets, kind_of, methods_of, usage, write_card
from ..evaluation.report import escape, length_report
from ..length_units import count_units
from ..lengths import plural


TEMPLATE = Path(__file__).with_name("model_card.md")  # the sections after the use of the model
_TASKS = {"summarization": "writes texts", "translation": "translates into texts"}
TASKS = tuple(_TASKS)  # these are tasks of the Hub
_TASKS["text-generation"] = "writes answers"  # this task is for causal models
_LENGTHS, _TEXTS = ("mae", "variance", "exact", "distinct", "within", "over"), ("repeated", "filled_end")
_SHARES = ("exact", "distinct", "within", "over", *_TEXTS)
_BASELINES = ("lead_rouge1_f1", "base_bleu", "base_chrf")
_QUALITY = ("rouge1_f1", "rouge2_f1", "rougeL_f1", "bleu", "chrf")


@dataclass
class TrainingRun:
    """Facts about a training run that its model card shows and that the model's configuration does not hold."""

    tests: dict[str, dict[str, Any]]  # requested length, "reference" or "40" -> figures of `build_compute_metrics`
    outputs: dict[int, list[str]]  # requested length -> outputs, one for each test row
    sources: Sequence[str]  # the sources of the test rows; `references` are in the same order
    references: Sequence[str]
    data: str  # name of a data set on the Hub, or of a file
    on_hub: bool = False
    rows: Mapping[str, int] = field(default_factory=dict)  # split -> number of rows
    settings: Mapping[str, Any] = field(default_factory=dict)  # hyper-parameters, including the noise on lengths
    task: str = "summarization"  # one of TASKS, or "text-generation"
    adapter: str | None = None  # if the model is an adapter, its kind: "LoRA of rank 16"
    base_model: str | None = None  # the run started from this model
    language: str | None = None  # "en"
    license: str | None = None  # "apache-2.0"; by default the licence in the base model's card
    length_unit: str = "character"
    examples: int = 0  # number of test rows to show: their references and outputs, and the first source
    history: Sequence[str] = ()  # sentences: the training, why it ended, which weights were kept

    def save_picture(self, path: str | Path, unit: str, tokenizer=None) -> bool:
        """Plot the lengths of `outputs` into the file `path`, if there are outputs. Return whether there are."""
        texts = [text for written in self.outputs.values() for text in written]
        if texts:
            requested = [length for length, written in self.outputs.items() for _ in written]
            report = length_report(texts, requested, units=[unit], tokenizer=tokenizer if unit == "token" else None)
            report.plot(path)
        return bool(texts)


def model_card(model, run: TrainingRun, name: str, *, picture: bool = False, revision: str | None = None):
    """
    Build the `huggingface_hub.ModelCard` of a run. Its `.data.eval_results` holds the test metrics. For `name` (of the
    model) and `revision` (its branch on the Hub) see `hf_lenctrl.card.usage`. If `picture` is true, the card shows the
    file `report.png`, which must be in the same folder.
    """
    from huggingface_hub import EvalResult, ModelCardData

    config, title = model.config, name.rpartition("/")[2]
    unit, encoding = getattr(config, "length_unit", run.length_unit), getattr(config, "length_encoding", "none")
    methods, base_is_local = methods_of(config), run.base_model is not None and Path(run.base_model).exists()
    first = next(iter(run.tests.values()), {})
    lengths = [name for name in _LENGTHS if name in first]  # `within` needs a window of allowed lengths
    own = [*lengths, *(metric for metric in first if metric in _QUALITY)]
    shown = [*own, *(metric for metric in first if metric in (*_BASELINES, *_TEXTS))]
    results = [
        EvalResult(
            task_type=run.task,
            dataset_type=run.data if run.on_hub else "text",
            dataset_name=run.data,
            dataset_split="test",
            metric_type=metric,
            metric_name=f"{metric} at "
            + (f"{asked} {plural(unit)}" if asked.isdecimal() else f"the {asked}'s length"),
            metric_value=round(figures[metric], 4),
            metric_args={"requested": asked, "settings": figures.get("settings", "")},
        )
        for asked, figures in run.tests.items()
        for metric in own
    ]
    data = ModelCardData(
        model_name=title,
        library_name="peft" if run.adapter else "transformers",
        pipeline_tag=run.task,
        tags=["hf_lenctrl", *(["length-control"] if methods else []), *([encoding] if encoding != "none" else [])],
        base_model=None if base_is_local else run.base_model,
        datasets=[run.data] if run.on_hub else None,
        language=run.language,
        license=run.license or _license_of(run.base_model),
        metrics=own if run.tests else None,
        eval_results=results or None,
    )
    text, length = TEXT, next(iter(run.outputs), None) if run.task != "translation" else None
    if run.examples and run.sources:
        text = run.sources[0]
        if run.task == "translation" and unit != "token":  # a translation needs a length that fits its source
            length = count_units(run.references[0], unit)
    use = usage(config, name, text=text, length=length, revision=revision)
    if methods and not methods[0].startswith("a token"):
        alone = type(config)._auto_class and not run.adapter  # the checkpoint contains the model's code
        elsewhere = ", or with `trust_remote_code=True` where the package is not installed" if alone else ""
        use += (
            f"\n\n**A plain {kind_of(config)} class loads this checkpoint with only a warning, and ignores the "
            f"length.** Load it with `import hf_lenctrl`{elsewhere}."
        )
    base = Path(str(run.base_model)).resolve().name if base_is_local else run.base_model
    if run.adapter:
        own = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        use += (
            f"\n\nThis is an adapter ({run.adapter}, {own / 1e6:.1f}M parameters), which is loaded with its base, "
            f'{escape(str(base))}. Where the base is in a folder: `model_kwargs={{"base_model": "folder"}}`. '
            "`hf_lenctrl.load_adapter` gives the model."
        )
    sections = _sections(run, config, unit, shown, base, picture)
    return write_card(data, escape(title), _about(model, run, methods, unit), use, sections)


def _about(model, run: TrainingRun, methods: list[str], unit: str) -> str:
    """Return the text about the model, and about how the model is given the length."""
    size, config = f"{model.num_parameters() / 1e6:.1f}M parameters", model.config
    kind = kind_of(config)
    if not methods:
        return f"A plain {kind} model ({size}), trained to compare with: only a constraint controls its length."
    tolerance = getattr(config, "length_tolerance", None)
    window = f"By default an output ends within a window around its length, `length_tolerance={tolerance}`. "
    return (
        f"A {kind} model ({size}) that {_TASKS[run.task]} of a requested length, in {plural(unit)}. Made with "
        '`hf_lenctrl`, which also guarantees the length with `length_constraint="max"` or `"exact"`. '
        f"{window if tolerance else ''}How it is given the length:\n\n{bullets(methods)}"
    )


def _sections(run: TrainingRun, config, unit: str, shown: list[str], base: str | None, picture: bool) -> str:
    """Render the sections of the card about the test metrics, the examples and the training."""
    bound, data = getattr(config, "length_constraint", None), escape(run.data)
    versions = (f"{package} {version(package)}" for package in ("hf_lenctrl", "transformers", "torch"))
    template = Template(TEMPLATE.read_text("utf-8"), trim_blocks=True)
    return template.render(
        **{"run": run, "unit": unit, "shown": shown, "base": base, "picture": picture},
        shares=_SHARES,
        escape=escape,
        how=f'with `length_constraint="{bound}"`' if bound else "unconstrained",
        settings=(next(iter(run.tests.values()), {}).get("settings") or "").partition("; ")[2],
        data=f"[{data}](https://huggingface.co/datasets/{quote(run.data)})" if run.on_hub else data,
        trained=getattr(config, "trained_lengths", None),
        versions=", ".join(versions),
    )


def _license_of(base_model: str | None) -> str | None:
    """Return the licence in the base model's card, or `None` if the card cannot be read."""
    from huggingface_hub import ModelCard

    if base_model is None:
        return None
    local = Path(base_model).exists()
    try:
        return ModelCard.load(Path(base_model, "README.md") if local else base_model).data.license
    except Exception:  # there is no card or no network, so the licence is unknown
        return None
