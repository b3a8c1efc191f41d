"""A model card from the run that made the model: what it does, how to ask it for a length, how well it meets it."""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..card import TEXT, kind_of, methods_of, usage
from ..evaluation.report import length_report
from ..length_units import count_units
from ..lengths import check_name


TASKS = ("summarization", "translation")  # of the Hub
TEMPLATE = Path(__file__).with_name("model_card.md")
_HYPERPARAMETERS = (
    *("max_steps", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate"),
    *("lr_scheduler_type", "warmup_steps", "label_smoothing_factor", "bf16", "fp16", "seed"),
)
_LENGTHS, _TEXTS = ("mae", "variance", "exact", "within", "over"), ("repeated", "distinct", "filled_end")
_SHARES = ("exact", "within", "over", *_TEXTS)
_BASELINES = ("lead_rouge1_f1", "base_bleu", "base_chrf")
_QUALITY = ("rouge1_f1", "rouge2_f1", "rougeL_f1", "bleu", "chrf")


@dataclass
class TrainingRun:
    """
    What a card says of a run, apart from what the model knows itself.

    Args:
        tests (`dict[str, dict]`): Requested length, `"reference"` or `"40"`, -> figures of
            `hf_lenctrl.evaluation.metrics.build_compute_metrics`, with their `settings`.
        outputs (`dict[int, list[str]]`): Requested length -> what was written for each test row.
        sources (`Sequence[str]`), references (`Sequence[str]`): Of the test rows.
        data (`str`): Name of the data, on the Hub or of a file.
        on_hub (`bool`, *optional*, defaults to `False`): Whether `data` is a name on the Hub.
        rows (`Mapping[str, int]`, *optional*): Split -> number of rows.
        settings (`Mapping[str, Any]`, *optional*): Hyper-parameters, the noise on lengths among them.
        task (`str`, *optional*, defaults to `"summarization"`): Or `"translation"`.
        base_model (`str`, *optional*): Checkpoint that the run started from.
        language (`str`, *optional*), license (`str`, *optional*): As the Hub writes them, `"en"`, `"apache-2.0"`. By
            default the licence is that of the base model's card.
        examples (`int`, *optional*, defaults to 0): Test rows to publish: their references and outputs, and the first
            source.
        history (`Sequence[str]`, *optional*): Sentences on what was trained, why it ended, which weights were kept.

    Raises:
        `ValueError`: for another task.
    """

    tests: dict[str, dict[str, Any]]
    outputs: dict[int, list[str]]
    sources: Sequence[str]
    references: Sequence[str]
    data: str
    on_hub: bool = False
    rows: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    task: str = "summarization"
    base_model: str | None = None
    language: str | None = None
    license: str | None = None
    length_unit: str = "character"
    examples: int = 0
    history: Sequence[str] = ()

    def __post_init__(self):
        check_name("task", self.task, TASKS)

    @classmethod
    def of(
        cls, model_args, data_args, run_args, args, rows: Mapping[str, int], history: Sequence[str] = ()
    ) -> "TrainingRun":
        """A run of `recipes/train_seq2seq.py`, before it is tested, from its arguments and the rows of each split."""
        settings = {name: getattr(run_args, name) for name in ("length_noise", "overshoot_share")}
        settings |= {name: args.to_dict()[name] for name in _HYPERPARAMETERS} | {"processes": args.world_size}
        settings |= {"dropout": model_args.dropout, "average_checkpoints": run_args.average_checkpoints}
        del settings["num_train_epochs" if args.max_steps > 0 else "max_steps"]  # which the other overrides
        # BLEU is measured for translations alone
        translates = run_args.bleu_tokenizer or model_args.source_language != model_args.target_language
        name = data_args.dataset_name
        on_hub = name is not None and not Path(name).exists()  # `load_dataset` takes folders too
        return cls(
            tests={},
            outputs={},
            sources=[],
            references=[],
            data=name if on_hub else Path(name or data_args.train_file).name,  # not the local path
            on_hub=on_hub,
            rows=rows,
            history=history,
            settings=settings,
            task=run_args.task or ("translation" if translates else "summarization"),
            base_model=model_args.base_model or model_args.model_name_or_path,
            language=run_args.language,
            license=run_args.license,
            length_unit=model_args.length_unit,
            examples=run_args.card_examples,
        )

    def save_picture(self, path: str | Path, unit: str, tokenizer=None) -> bool:
        """
        Draw requested against produced lengths of `outputs`; without outputs nothing is drawn.

        Returns:
            `bool`: Whether there is a picture.

        Raises:
            `ImportError`: without matplotlib.
        """
        texts = [text for written in self.outputs.values() for text in written]
        if texts:
            requested = [length for length, written in self.outputs.items() for _ in written]
            report = length_report(texts, requested, units=[unit], tokenizer=tokenizer if unit == "token" else None)
            report.plot(path)
        return bool(texts)


def model_card(model, run: TrainingRun, name: str, *, picture: bool = False, revision: str | None = None):
    """
    Write a card in the Hub's form.

    Args:
        model (`PreTrainedModel`): Length-controlled or plain.
        run (`TrainingRun`): What was done and measured.
        name (`str`): `"user/name"` on the Hub, or the name of a local folder; the usage snippet loads it.
        picture (`bool`, *optional*, defaults to `False`): Whether `report.png` is beside the card.
        revision (`str`, *optional*): Branch of the model on the Hub, where it is not `main`.

    Returns:
        `huggingface_hub.ModelCard`: `.save(folder / "README.md")` writes it; `.data.eval_results` hold the figures.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    config, title = model.config, name.rpartition("/")[2]
    unit, encoding = getattr(config, "length_unit", run.length_unit), getattr(config, "length_encoding", "none")
    methods, base_is_local = methods_of(config), run.base_model is not None and Path(run.base_model).exists()
    first = next(iter(run.tests.values()), {})
    lengths = [name for name in _LENGTHS if name != "within" or name in first]  # of runs with a tolerance
    own = [*lengths, *(metric for metric in first if metric in _QUALITY)]
    shown = [*own, *(metric for metric in first if metric in (*_BASELINES, *_TEXTS))]
    results = [
        EvalResult(
            task_type=run.task,
            dataset_type=run.data if run.on_hub else "text",
            dataset_name=run.data,
            dataset_split="test",
            metric_type=metric,
            metric_name=f"{metric} at " + (f"{asked} {unit}s" if asked.isdecimal() else f"the {asked}'s length"),
            metric_value=round(figures[metric], 4),
            metric_args={"requested": asked, "settings": figures.get("settings", "")},
        )
        for asked, figures in run.tests.items()
        for metric in own
    ]
    data = ModelCardData(
        model_name=title,
        library_name="transformers",
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
        if run.task == "translation" and unit != "token":  # which has a length of its own
            length = count_units(run.references[0], unit)
    return ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        model=model,
        run=run,
        title=title,
        family=kind_of(config),
        unit=unit,
        methods=methods,
        trained=getattr(config, "trained_lengths", None),
        usage=usage(config, name, text=text, length=length, revision=revision),
        first=first,
        shown=shown,
        shares=_SHARES,
        picture=picture,
        base_model=Path(str(run.base_model)).name if base_is_local else run.base_model,
        versions=[f"{package} {version(package)}" for package in ("hf_lenctrl", "transformers", "torch")],
        escape=escape,
    )


def escape(text: Any, most: int | None = None) -> str:
    """A text in one line, at most `most` characters, that Markdown and HTML show as it is."""
    text = " ".join(str(text).split())
    text = text if most is None or len(text) <= most else f"{text[: most - 1]}…"
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", html.escape(text, quote=False))


def _license_of(base_model: str | None) -> str | None:
    """The licence that the base model's card names, if it can be read."""
    from huggingface_hub import ModelCard

    if base_model is None:
        return None
    local = Path(base_model).exists()
    try:
        return ModelCard.load(Path(base_model, "README.md") if local else base_model).data.license
    except Exception:  # no card, or no network: not known
        return None
