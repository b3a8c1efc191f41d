"""Outputs of several translation systems side by side (Oka et al. 2020), and the tables of `lenctrl reproduce`."""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..conversion import tokenizer_of
from ..evaluation.metrics import translation_metrics
from ..inference.sources import LENGTH_SOURCES
from ..length_units import LENGTH_UNITS, count_texts
from .figures import length_figures, paired_bootstrap, predictor_figures
from .rows import Rows


# units of the reference; in Table 3 tokens, up to 80
LENGTH_GROUPS = {unit: (1, 11, 21, 41, 81) for unit in ("token", "word")}  # where each begins
LENGTH_GROUPS |= {unit: (1, 51, 101, 201, 401) for unit in ("character", "byte", "width")}
SIGNIFICANT = 0.05


@dataclass
class System:
    """
    Outputs of one system, its lengths given in one way.

    Args:
        name (`str`): `"ldpe"`.
        how (`str` or `None`): `"predict"`, `"source"` or `"reference"`; `None` for a plain model.
        outputs (`list[str]`): Texts.
        produced (`list[int]`): Their units.
        requested (`list[int]`, *optional*): Units asked for.
    """

    name: str
    how: str | None
    outputs: list[str]
    produced: list[int]
    requested: list[int] | None = None
    figures: dict[str, Any] = field(default_factory=dict)

    def __str__(self):
        return self.name if self.how is None else f"{self.name}:{self.how}"


def load_systems(
    entries: Sequence[str], output_column: str, reference_column: str, *, unit: str, tokenizer=None
) -> tuple[list[System], list[str], list[int]]:
    """
    Outputs of `recipes/generate.py`, or of another program.

    Args:
        entries (`Sequence[str]`): `"NAME=FILE"`, or `"NAME:WAY=FILE"` with the way that gave the length. All hold the
            same references; `length` and `requested` are used where they count `unit`, else the outputs are counted.
        unit (`str`): Of the lengths.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): For tokens.

    Returns:
        `(list[System], list[str], list[int])`: the systems, the references and their lengths.

    Raises:
        `ValueError`: for an entry of another form, a column that is not there, or references that differ.
    """

    systems: list[System] = []
    references: list[str] = []
    for entry in entries:
        label, _, path = entry.partition("=")
        if not label or not path:
            raise ValueError(f"a system is NAME=FILE or NAME:WAY=FILE, got {entry!r}")
        name, _, how = label.partition(":")
        rows = Rows(path)
        outputs, own = rows.texts(output_column), rows.texts(reference_column)
        references = references or own
        if own != references:
            raise ValueError(f"{path} has other references than {entries[0]}; evaluate outputs of the same rows")
        produced, requested = _lengths_in(unit, rows, outputs, tokenizer, bool(how))
        systems.append(System(name, how or None, outputs, produced, requested))
    return systems, references, count_texts(tokenizer, references, unit, target=True)


def _lengths_in(
    unit: str, rows: Rows, outputs: list[str], tokenizer, were_given: bool
) -> tuple[list[int], list[int] | None]:
    """
    Produced and requested units of a file. It does not name the unit of its `length` and `requested`, but shows it: a
    `length` that counts characters is that of the texts in every row. Tokens may differ from those of the texts, where
    the model spelled a word in another way.
    """
    produced = count_texts(tokenizer, outputs, unit, target=True)
    requested = rows.lengths("requested") if were_given and "requested" in rows.columns else None
    if "length" not in rows.columns:
        return produced, requested
    stated = [int(n) if str(n).isdecimal() else -1 for n in rows.column("length")]
    others = [other for other in LENGTH_UNITS if other != "token"]
    if unit == "token" and -1 not in stated and all(stated != count_texts(None, outputs, u) for u in others):
        return stated, requested
    return produced, requested if stated == produced else None


@dataclass
class TranslationTables:
    """What `translation_tables` measured; `markdown()` renders it, `to_dict()` is for JSON."""

    unit: str
    systems: list[System]
    baseline: str | None
    lengths: dict[str, dict]
    groups: list[tuple[int, int | None]]
    group_sizes: list[int]
    signatures: dict[str, str]

    def to_dict(self) -> dict:
        """Everything but the texts."""
        return {
            "unit": self.unit,
            "baseline": self.baseline,
            "systems": [{"name": s.name, "length": s.how, **s.figures} for s in self.systems],
            "lengths": self.lengths,
            "groups": [{"range": list(r), "n": n} for r, n in zip(self.groups, self.group_sizes, strict=True)],
            "signatures": self.signatures,
        }

    def markdown(self) -> str:
        """Tables 1, 2 and 3 in the paper's layout; a star is a difference from the baseline that is significant."""
        ways = [how for how in LENGTH_SOURCES if any(s.how == how for s in self.systems)]
        names = list(dict.fromkeys(s.name for s in self.systems))
        columns = ways or [""]
        head = [f"{metric} {way}".strip() for way in columns for metric in ("BLEU", "chrF", "LR", "VAR")]
        lines = [f"Lengths in {self.unit}s.", "", _row(["model", *head]), _row(["---"] * (1 + len(head)))]
        for name in names:
            cells: list[str] = []
            for way in columns:
                # a plain model has one result, which stands in the first columns
                found = [s for s in self.systems if s.name == name and s.how in (way, None)]
                found = [s for s in found if s.how is not None or way == columns[0]]
                cells += _cells(found[0].figures) if found else [""] * 4
            lines.append(_row([name, *cells]))
        if self.lengths:
            lines += ["", _row(["length", "MAE", "VAR", "r"]), _row(["---"] * 4)]
            for how, row in self.lengths.items():
                lines.append(_row([how, *(_number(row[key], 2) for key in ("mae", "variance", "pearson"))]))
        unknown = [str(s) for s in self.systems if s.how in ("predict", "source") and s.requested is None]
        if unknown:
            lines += ["", f"Not in this table, for want of requested lengths in {self.unit}s: {', '.join(unknown)}."]
        groups = [
            f"{low} {'and more' if high is None else f'to {high}'} ({n} sentences)"
            for (low, high), n in zip(self.groups, self.group_sizes, strict=True)
            if n
        ]
        lines += ["", _row(["BLEU (LR)", *groups]), _row(["---"] * (1 + len(groups)))]
        for system in self.systems:
            values = [  # without a unit in the references there is nothing to compare
                "" if group["length_ratio"] is None else f"{group['bleu']:.2f} ({group['length_ratio']:.3f})"
                for group in system.figures["groups"]
                if group
            ]
            lines.append(_row([str(system), *values]))
        lines.append("")
        if self.baseline is not None:
            lines.append(f"\\* p < {SIGNIFICANT} against {self.baseline}, paired bootstrap. ")
        lines += [f"{name}: `{signature}`" for name, signature in self.signatures.items()]
        return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _cells(figures: dict) -> list[str]:
    star = "\\*" if (figures.get("p") is not None and figures["p"] < SIGNIFICANT) else ""
    values = [f"{figures['bleu']:.2f}{star}", f"{figures['chrf']:.2f}"]
    return [*values, _number(figures["length_ratio"], 3), _number(figures["variance"], 3)]


def translation_tables(
    systems: Sequence[System],
    references: Sequence[str],
    reference_lengths: Sequence[int],
    *,
    unit: str = "token",
    bleu_tokenizer: str = "13a",
    baseline: str | None = None,
    samples: int = 1000,
) -> TranslationTables:
    """
    Tables 1 to 3 of Oka et al. 2020 for any systems: BLEU, length ratio and variance for each way of giving the
    length; the error of the lengths themselves; BLEU by the reference's length.

    Args:
        systems (`Sequence[System]`): Outputs for the same sources.
        references (`Sequence[str]`): Texts.
        reference_lengths (`Sequence[int]`): Their units.
        baseline (`str`, *optional*): System that the others are tested against; by its name, `"transformer"`, or with
            its way of giving the length, `"ldpe:source"`.
        samples (`int`, *optional*, defaults to 1000): Resampled sets of the test.

    Raises:
        `ValueError`: for a system with another number of outputs, two of one name, or a baseline that is not there.
    """
    systems = list(systems)
    names = [str(system) for system in systems]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"two systems are called {name!r}; give each a name of its own, or another way: {name}:source"
            )
    for system in systems:
        if system.how is not None and system.how not in LENGTH_SOURCES:
            raise ValueError(
                f"the length of {system.name!r} is given by {', '.join(LENGTH_SOURCES)}, got {system.how!r}"
            )
        if len(system.outputs) != len(references):
            raise ValueError(f"{system} has {len(system.outputs)} outputs for {len(references)} references")
    if baseline is not None and baseline not in names:
        raise ValueError(f"there is no system {baseline!r} to test against, only {', '.join(names)}")
    begins = LENGTH_GROUPS[unit]
    place = [max(1, bisect(begins, n)) - 1 for n in reference_lengths]  # an empty reference is in the first
    groups = [[i for i, k in enumerate(place) if k == group] for group in range(len(begins))]
    ranges = [(low, high and high - 1) for low, high in zip(begins, [*begins[1:], None], strict=True)]
    signatures = {}
    for system in systems:
        figures = translation_metrics(system.outputs, references, bleu_tokenizer=bleu_tokenizer)
        signatures = {name: figures.pop(f"{name.lower()}_signature") for name in ("BLEU", "chrF")}
        figures |= length_figures(system.produced, reference_lengths)
        figures["groups"] = [_group(system, references, reference_lengths, rows, bleu_tokenizer) for rows in groups]
        system.figures = figures
    if baseline is not None:
        lead = systems[names.index(baseline)]
        others = [system for system in systems if system is not lead]
        outputs = [system.outputs for system in others]
        values = paired_bootstrap(lead.outputs, outputs, references, bleu_tokenizer=bleu_tokenizer, samples=samples)
        for system, p in zip(others, values, strict=True):
            system.figures["p"] = p
    lengths = {}
    for system in systems:
        if system.how in ("predict", "source") and system.requested is not None and system.how not in lengths:
            lengths[system.how] = predictor_figures(system.requested, reference_lengths)
    sizes = [len(rows) for rows in groups]
    return TranslationTables(unit, systems, baseline, lengths, ranges, sizes, signatures)


def _group(system: System, references, reference_lengths, rows: list[int], bleu_tokenizer: str) -> dict | None:
    if not rows:
        return None
    outputs, wanted = ([texts[i] for i in rows] for texts in (system.outputs, references))
    produced, lengths = ([values[i] for i in rows] for values in (system.produced, reference_lengths))
    figures = translation_metrics(outputs, wanted, bleu_tokenizer=bleu_tokenizer)
    return {"bleu": figures["bleu"], "length_ratio": length_figures(produced, lengths)["length_ratio"]}


# The tables of `lenctrl reproduce`, from its results, in the papers' layout

# Tables 1, 2 and 4 of Takase & Okazaki 2019 have recall and variance, Nguyen et al. 2023 have F1
HEADLINES = (
    ("ROUGE recall (1, 2, L)", [f"rouge{n}_recall" for n in "12L"]),
    ("ROUGE F1 (1, 2, L)", [f"rouge{n}_f1" for n in "12L"]),
    ("Variance", ["variance"]),
    ("Mean absolute error / share that is exact", ["mae", "exact"]),
)
TRANSLATION = (("BLEU / length ratio / variance", ["bleu", "length_ratio", "variance"]),)  # Table 1 of Oka et al. 2020


def load_table(path: Path) -> dict:
    """
    A table of recipes/reproduce/, with the options that its `base:` YAMLs give.

    Returns:
        `dict` with `title`, `lengths`, `rows`, `options`, the `paper`'s figures and, for translations, `predictor`.
    """
    spec = yaml.safe_load(path.read_text(encoding="utf-8"))
    for name, base in (
        ("options", spec.pop("base", None)),
        ("predictor", spec.get("predictor", {}).pop("base", None)),
    ):
        if base is not None:
            spec[name] = {**yaml.safe_load((path.parent / base).read_text(encoding="utf-8")), **spec.get(name, {})}
    return spec


def rows_of(spec: dict) -> dict[str, dict]:
    """The table's rows and, for those that the paper trains without the lengths of the test, a second one each."""
    rows = dict(spec["rows"])
    for name in spec.get("unseen", []):
        rows[f"{name}_unseen"] = {**rows[name], "unseen_lengths": spec["lengths"]}
    return rows


def compare_systems(spec: dict, names: list[str], out: Path) -> TranslationTables:
    """Tables 1 to 3 of Oka et al. 2020, for the outputs of the rows `names`; significance against the first."""
    options = spec["options"]
    entries = []
    for name in names:
        for way in spec["lengths"]:
            if (file := out / name / f"outputs_{way}.jsonl").is_file():
                entries.append(f"{name}={file}" if way == "free" else f"{name}:{way}={file}")
    columns = {"output_column": "output", "reference_column": "target"}
    tokenizer = tokenizer_of(out / names[0])
    systems, references, lengths = load_systems(entries, **columns, unit=options["length_unit"], tokenizer=tokenizer)
    how = {"unit": options["length_unit"], "bleu_tokenizer": options["bleu_tokenizer"]}
    baseline = next((s.name for s in systems if s.how is None), None) if len(systems) > 1 else None
    return translation_tables(systems, references, lengths, baseline=baseline, **how)


def render(spec: dict, results: dict[str, dict], out: Path) -> str:
    """Markdown of what is known so far, with the paper's figures in brackets."""
    columns = [str(way) for way in spec["lengths"]]
    lines = [f"# {spec['title']}", "", "In brackets: the paper's figure, on its own data.", ""]
    known = [name for name in rows_of(spec) if name in results]
    for title, measures in TRANSLATION if "predictor" in spec else HEADLINES:
        lines += [f"## {title}", "", "| row | " + " | ".join(columns) + " |", "|" + "---|" * (1 + len(columns))]
        for name in known:
            cells = []
            for i, column in enumerate(columns):
                figures = results[name]["figures"].get(column)
                if figures is None:  # a plain model is free, the others are not
                    cells.append("")
                    continue
                ours = " / ".join(_number(figures[m], 3 if (figures[m] or 0) < 100 else 1) for m in measures)
                paper = [spec.get("paper", {}).get(name, {}).get(m, [])[i : i + 1] for m in measures]
                theirs = " / ".join(str(p[0]) for p in paper if p)
                cells.append(f"{ours} ({theirs})" if theirs else ours)
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines.append("")
    costs = [(name, results[name]) for name in known if "parameters" in results[name]]
    if costs:
        lines += ["## Cost", "", "| row | parameters, millions | minutes of training |", "|---|---|---|"]
        lines += [f"| {name} | {row['parameters'] / 1e6:.2f} | {row['minutes']:.1f} |" for name, row in costs]
        lines.append("")
    if "predictor" in spec and known:
        lines.append(compare_systems(spec, known, out).markdown())
    return "\n".join(lines)
