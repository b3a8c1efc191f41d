"""A model card from the run that made the model: what it does, how to ask it for a length, how well it meets it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .report import length_report


TASKS = ("summarization", "translation")  # of the Hub
TEMPLATE = Path(__file__).with_name("model_card.md")
_METHODS = {
    "ldpe": "LDPE, the remaining length as sinusoids (Takase & Okazaki 2019, eq. 3-4)",
    "lrpe": "LRPE, progress and length as a ratio of sinusoids (Takase & Okazaki 2019, eq. 5-6)",
    "pre": "PRE, the share of the length that is written (Botcazou et al. 2026)",
    "learned": "an embedding of the remaining length (Kikuchi et al. 2016)",
    "scale": "the length, multiplied into token embeddings (Liu et al. 2018)",
}
_HYPERPARAMETERS = (
    "max_steps",
    "num_train_epochs",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "label_smoothing_factor",
    "bf16",
    "fp16",
    "seed",
)
_LENGTHS, _SHARES = ("mae", "variance", "exact", "over"), ("exact", "over")
_QUALITY = ("rouge1_f1", "rouge2_f1", "rougeL_f1", "bleu", "chrf")


@dataclass
class TrainingRun:
    """
    What a card says of a run, apart from what the model knows itself.

    Args:
        tests (`dict[str, dict]`): Requested length, `"reference"` or `"40"`, -> figures of
            `hf_lenctrl.metrics.build_compute_metrics`, with their `settings`.
        outputs (`dict[int, list[str]]`): Requested length -> what was written for each test row.
        sources (`Sequence[str]`), references (`Sequence[str]`): Of the test rows.
        data (`str`): Name of the data, on the Hub or of a file.
        on_hub (`bool`, *optional*, defaults to `False`): Whether `data` is a name on the Hub.
        rows (`Mapping[str, int]`, *optional*): Split -> number of rows.
        settings (`Mapping[str, Any]`, *optional*): Hyper-parameters, the noise on lengths among them.
        task (`str`, *optional*, defaults to `"summarization"`): Or `"translation"`.
        base_model (`str`, *optional*): Checkpoint that the run started from.
        language (`str`, *optional*), license (`str`, *optional*): As the Hub writes them, `"en"`, `"apache-2.0"`.

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

    def __post_init__(self):
        if self.task not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}, got {self.task!r}")

    @classmethod
    def of(cls, model_args, data_args, run_args, args, rows: Mapping[str, int]) -> "TrainingRun":
        """A run of `recipes/train_seq2seq.py`, before it is tested, from its arguments and the rows of each split."""
        settings = {name: getattr(run_args, name) for name in ("length_noise", "overshoot_share")}
        settings |= {name: args.to_dict()[name] for name in _HYPERPARAMETERS} | {"processes": args.world_size}
        settings["dropout"] = model_args.dropout
        return cls(
            tests={},
            outputs={},
            sources=[],
            references=[],
            data=data_args.dataset_name or Path(data_args.train_file).name,  # where a file lies is nobody's business
            on_hub=data_args.dataset_name is not None,
            rows=rows,
            settings=settings | {"average_checkpoints": run_args.average_checkpoints},
            task=run_args.task,
            base_model=model_args.base_model or model_args.model_name_or_path,
            language=run_args.language,
            license=run_args.license,
            length_unit=model_args.length_unit,
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


def model_card(model, run: TrainingRun, name: str, *, picture: bool = False):
    """
    Write a card in the Hub's form.

    Args:
        model (`PreTrainedModel`): Length-controlled or plain.
        run (`TrainingRun`): What was done and measured.
        name (`str`): The model's name, `"user/name"` where it has one on the Hub; the usage snippet loads it.
        picture (`bool`, *optional*, defaults to `False`): Whether `report.png` stands beside the card.

    Returns:
        `huggingface_hub.ModelCard`: `.save(folder / "README.md")` writes it; `.data.eval_results` hold the figures.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    config = model.config
    unit, encoding = getattr(config, "length_unit", run.length_unit), getattr(config, "length_encoding", "none")
    methods = [_METHODS[encoding]] if encoding != "none" else []
    if getattr(config, "encoder_length_embedding", False):
        methods.append("a length embedding in the encoder (Nguyen et al. 2023, eq. 16-17)")
    if getattr(config, "length_head", False):
        methods.append("a length head in cross-attention (Nguyen et al. 2023, eq. 20-24)")
    in_decoder = bool(methods)  # what a plain class loses
    if (tokens := getattr(config, "length_tokens", None)) is not None:
        methods.append(f"a token before the source for the length's class ({tokens['kind']})")

    quality = [n for n in next(iter(run.tests.values()), {}) if n in _QUALITY]
    results = [
        EvalResult(
            task_type=run.task,
            dataset_type=run.data if run.on_hub else "text",
            dataset_name=run.data,
            dataset_split="test",
            metric_type=metric,
            metric_name=f"{metric} at {_asked(asked, unit)}",
            metric_value=round(figures[metric], 4),
            metric_args={"requested": asked, "settings": figures.get("settings", "")},
        )
        for asked, figures in run.tests.items()
        for metric in (*_LENGTHS, *quality)
    ]
    base_is_local = run.base_model is not None and Path(run.base_model).exists()
    data = ModelCardData(
        model_name=name.rpartition("/")[2],
        library_name="transformers",
        pipeline_tag=run.task,
        tags=["hf_lenctrl", *(["length-control"] if methods else []), *([encoding] if encoding != "none" else [])],
        base_model=None if base_is_local else run.base_model,
        datasets=[run.data] if run.on_hub else None,
        language=run.language,
        license=run.license,
        metrics=[*_LENGTHS, *quality] if run.tests else None,
        eval_results=results or None,
    )
    shown = [*_LENGTHS, *quality]
    return ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        title=name.rpartition("/")[2],
        name=name,
        family=config.model_type.removeprefix("lenctrl_"),
        size=f"{model.num_parameters() / 1e6:.1f}M",
        unit=unit,
        methods=methods,
        has_control=in_decoder,
        has_code=getattr(type(config), "_auto_class", None) is not None,
        source=repr(run.sources[0]) if run.sources else '"..."',
        length=next(iter(run.outputs), 40),
        n_test=f"{len(run.sources):,}",
        quality_settings=str(next(iter(run.tests.values()), {}).get("settings", "")).partition("; ")[2],
        names=[f"{n} %" if n in _SHARES else n for n in shown],
        figures=[[_asked(asked, ""), *(_figure(n, row[n]) for n in shown)] for asked, row in run.tests.items()],
        picture=picture,
        outputs=list(run.outputs),
        examples=[
            [_cell(text) for text in (run.references[i], *(written[i] for written in run.outputs.values()))]
            for i in range(min(5, len(run.references)))
        ]
        if run.outputs
        else [],
        data=f"[{run.data}](https://huggingface.co/datasets/{run.data})" if run.on_hub else run.data,
        rows=run.rows,
        base_model=Path(run.base_model).name if base_is_local and run.base_model else run.base_model,
        settings=run.settings,
        versions=", ".join(f"{package} {version(package)}" for package in ("hf_lenctrl", "transformers", "torch")),
    )


def _asked(asked: str, unit: str) -> str:
    return f"the {asked}'s length" if not asked.isdecimal() else f"{asked} {unit}s" if unit else asked


def _figure(name: str, value: float) -> str:
    return f"{value * (100 if name in _SHARES else 1):.2f}"


def _cell(text: str, most: int = 120) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= most else f"{text[: most - 1]}…"
