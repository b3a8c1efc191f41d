"""Compare the outputs of several translation systems: the tables of Oka et al. 2020.

    python lab/reproduce/translations.py --reference_column ja --tokenizer runs/ldpe --bleu_tokenizer ja-mecab \\
        --systems transformer=t.jsonl ldpe:predict=a.jsonl ldpe:reference=b.jsonl --baseline transformer

The files are json, jsonl, csv or parquet (.gz too): outputs of `lenctrl generate`, or of another program. The tables
are printed, and saved in `--output_dir` as `translation.md` and `translation.json`.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_lenctrl.commands.rows import Rows
from hf_lenctrl.conversion import tokenizer_of
from hf_lenctrl.evaluation.metrics import (
    bleu_metric,
    distinct_share,
    length_metrics,
    predictor_figures,
    translation_metrics,
)
from hf_lenctrl.inference.sources import LENGTH_SOURCES
from hf_lenctrl.length_units import LENGTH_UNITS, count_texts


# first and last length of each group, in units of the reference; Table 3 has tokens and drops longer references
LENGTH_GROUPS = {unit: ((1, 10), (11, 20), (21, 40), (41, 80)) for unit in ("token", "word")}
LENGTH_GROUPS |= {unit: ((1, 50), (51, 100), (101, 200), (201, 400)) for unit in ("character", "byte", "width")}
SIGNIFICANT = 0.05
FEW = 30  # sentences; resamples of fewer are so alike that chance looks significant: one sentence has p = 0.001
FIGURES = ("BLEU", "chrF", "LR", "VAR", "distinct")


@dataclass
class System:
    """
    The outputs of one system with one source of its lengths.

    Args:
        name (`str`): `"ldpe"`.
        how (`str` or `None`): `"predict"`, `"source"` or `"reference"`; `None` for a plain model.
        outputs (`list[str]`): Texts.
        produced (`list[int]`): Their units.
        requested (`list[int]`, *optional*): Requested units.
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
    Read the outputs of `lenctrl generate`, or of another program.

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
    Return produced and requested units of a file. The unit of its `length` and `requested` is inferred: `length`
    counts characters if it is the number of characters of the text in every row. Tokens may differ from those of the
    text, because the model may have split a word in another way.
    """
    produced = count_texts(tokenizer, outputs, unit, target=True)
    requested = rows.lengths("requested") if were_given and "requested" in rows.columns else None
    if not {"length", "requested"} <= set(rows.columns):  # only a file of `lenctrl generate` has both columns
        return produced, requested
    stated = [int(n) if str(n).isdecimal() else -1 for n in rows.column("length")]
    others = [other for other in LENGTH_UNITS if other != "token"]
    if unit == "token" and -1 not in stated and all(stated != count_texts(None, outputs, u) for u in others):
        return stated, requested
    return produced, requested if stated == produced else None


def length_figures(produced: Sequence[int], reference: Sequence[int]) -> dict[str, Any]:
    """
    Compute `length_ratio` and `variance` (eq. 4) of outputs against their references, in one unit.

    Oka et al. 2020, section 4.1, write `tgt_len / ref_len` and leave the mean open; here each is summed over the set,
    as in BLEU's brevity penalty. The ratio is `None` if all references are empty.
    """
    figures = length_metrics(produced, reference)
    ratio = sum(produced) / sum(reference) if sum(reference) else None
    return {"length_ratio": ratio, "variance": figures["variance"]}


def paired_bootstrap(
    baseline: Sequence[str],
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    *,
    bleu_tokenizer: str = "13a",
    samples: int = 1000,
) -> list[float]:
    """
    Compute the probability that a system's difference in BLEU from the baseline is chance, by sacrebleu's paired
    bootstrap resampling (its seed is `SACREBLEU_SEED`, 12345 by default).

    Returns:
        `list[float]`: the p-value of each of `systems`.
    """
    bleu = bleu_metric(bleu_tokenizer)
    from sacrebleu.significance import PairedTest

    named: Any = [("baseline", list(baseline)), *((str(i), list(system)) for i, system in enumerate(systems))]
    test = PairedTest(named, {"BLEU": bleu}, [list(references)], test_type="bs", n_samples=samples)
    results: Any = test()[1]["BLEU"]
    # if all resampled differences are 0, none exceeds that of the whole set, and the test would report a rare event
    first, *others = results
    return [1.0 if result.score == first.score else result.p_value for result in others]


@dataclass
class TranslationTables:
    """The results of `translation_tables`; `markdown()` renders them, `to_dict()` is for JSON."""

    unit: str
    systems: list[System]
    baseline: str | None
    lengths: dict[str, dict]
    groups: list[tuple[int, int]]
    group_sizes: list[int]
    left_out: int
    signatures: dict[str, str]

    def to_dict(self) -> dict:
        """Return everything except the texts."""
        return {
            "unit": self.unit,
            "baseline": self.baseline,
            "systems": [{"name": s.name, "length": s.how, **s.figures} for s in self.systems],
            "lengths": self.lengths,
            "groups": [{"range": list(r), "n": n} for r, n in zip(self.groups, self.group_sizes, strict=True)],
            "left_out": self.left_out,
            "signatures": self.signatures,
        }

    def markdown(self) -> str:
        """Return Tables 1, 2 and 3 in the paper's layout; a star marks a significant difference from the baseline."""
        lines = [f"Lengths in {self.unit}s.", "", *self._scores()]
        if self.lengths:
            lines += ["", _row(["length", "MAE", "VAR", "r"]), _row(["---"] * 4)]
            for how, row in self.lengths.items():
                lines.append(_row([how, *(number(row[key], 2) for key in ("mae", "variance", "pearson"))]))
        unknown = [str(s) for s in self.systems if s.how in ("predict", "source") and s.requested is None]
        if unknown:
            lines += ["", f"Not in this table, for want of requested lengths in {self.unit}s: {', '.join(unknown)}."]
        lines += ["", *self._by_length(), ""]
        if self.left_out:
            longest = f"{self.groups[-1][1]} {self.unit}s"
            lines += [f"Left out of the groups, longer than {longest}: {self.left_out} sentences.", ""]
        if self.baseline is not None:
            how = f"paired bootstrap, where there are at least {FEW} sentences"
            lines.append(f"\\* p < {SIGNIFICANT} against {self.baseline}, {how}. ")
        lines += [f"{name}: `{signature}`" for name, signature in self.signatures.items()]
        return "\n".join(lines) + "\n"

    def _scores(self) -> list[str]:
        """Return Table 1, a row for each model, with columns for each way of giving the length."""
        columns = [how for how in LENGTH_SOURCES if any(s.how == how for s in self.systems)] or [""]
        head = [f"{figure} {way}".strip() for way in columns for figure in FIGURES]
        lines = [_row(["model", *head]), _row(["---"] * (1 + len(head)))]
        for name in dict.fromkeys(s.name for s in self.systems):
            cells: list[str] = []
            for way in columns:
                # a plain model has one result, in the first columns
                found = [s for s in self.systems if s.name == name and s.how in (way, None)]
                found = [s for s in found if s.how is not None or way == columns[0]]
                cells += _cells(found[0].figures) if found else [""] * len(FIGURES)
            lines.append(_row([name, *cells]))
        return lines

    def _by_length(self) -> list[str]:
        """Return Table 3, a row for each system, with a column for each group that has sentences."""
        heads = []
        for (low, high), n in zip(self.groups, self.group_sizes, strict=True):
            few = ", not tested" if self.baseline is not None and n < FEW else ""
            heads += [f"{low} to {high} ({n} sentences{few})"] if n else []
        lines = [_row(["BLEU (LR)", *heads]), _row(["---"] * (1 + len(heads)))]
        for system in self.systems:
            values = [  # references without any unit cannot be compared
                "" if group["length_ratio"] is None else f"{_starred(group)} ({group['length_ratio']:.3f})"
                for group in system.figures["groups"]
                if group
            ]
            lines.append(_row([str(system), *values]))
        return lines


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _starred(figures: dict) -> str:
    star = "\\*" if (figures.get("p") is not None and figures["p"] < SIGNIFICANT) else ""
    return f"{figures['bleu']:.2f}{star}"


def _cells(figures: dict) -> list[str]:
    ratio, variance = (number(figures[name], 3) for name in ("length_ratio", "variance"))
    return [_starred(figures), f"{figures['chrf']:.2f}", ratio, variance, f"{figures['distinct']:.2f}"]


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
    Build Tables 1 to 3 of Oka et al. 2020 for any systems: BLEU, length ratio and variance for each source of the
    length, and the share of distinct outputs; the error of the lengths themselves; BLEU by the reference's length. The
    whole set and each group with at least 30 sentences are tested against the baseline.

    Args:
        systems (`Sequence[System]`): Outputs for the same sources.
        references (`Sequence[str]`): Texts.
        reference_lengths (`Sequence[int]`): Their units.
        baseline (`str`, *optional*): System that the others are tested against; by its name, `"transformer"`, or with
            the source of its length, `"ldpe:source"`.
        samples (`int`, *optional*, defaults to 1000): Resampled sets of the test.

    Raises:
        `ValueError`: for a system with another number of outputs, two of one name, or a missing baseline.
    """
    systems = list(systems)
    _check(systems, references, baseline)
    ranges = LENGTH_GROUPS[unit]
    groups = [  # an empty reference is in the first group
        [i for i, n in enumerate(reference_lengths) if low <= max(1, n) <= high] for low, high in ranges
    ]
    signatures = {}
    for system in systems:
        figures = translation_metrics(system.outputs, references, bleu_tokenizer=bleu_tokenizer)
        signatures = {name: figures.pop(f"{name.lower()}_signature") for name in ("BLEU", "chrF")}
        figures |= length_figures(system.produced, reference_lengths)
        figures["distinct"] = distinct_share(system.outputs)
        figures["groups"] = [_group(system, references, reference_lengths, rows, bleu_tokenizer) for rows in groups]
        system.figures = figures
    if baseline is not None and len(systems) > 1:
        for k, rows in enumerate([range(len(references)), *groups]):
            if len(rows) >= FEW:
                for system, p in _significance(systems, baseline, references, rows, bleu_tokenizer, samples):
                    (system.figures["groups"][k - 1] if k else system.figures)["p"] = p
    lengths = {}
    for system in systems:
        if system.how in ("predict", "source") and system.requested is not None and system.how not in lengths:
            lengths[system.how] = predictor_figures(system.requested, reference_lengths)
    sizes = [len(rows) for rows in groups]
    left_out = len(references) - sum(sizes)
    return TranslationTables(unit, systems, baseline, lengths, list(ranges), sizes, left_out, signatures)


def _check(systems: list[System], references: Sequence[str], baseline: str | None) -> None:
    """Raise `ValueError` for systems that `translation_tables` cannot compare."""
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


def _significance(
    systems: list[System], baseline: str, references: Sequence[str], rows: Sequence[int], tokenizer: str, samples: int
) -> list[tuple[System, float]]:
    """Return each system but the baseline, with its p on these rows."""
    others = [system for system in systems if str(system) != baseline]
    lead = next(system for system in systems if str(system) == baseline)
    own, kept, *outputs = (
        [texts[i] for i in rows] for texts in (lead.outputs, references, *(system.outputs for system in others))
    )
    values = paired_bootstrap(own, outputs, kept, bleu_tokenizer=tokenizer, samples=samples)
    return list(zip(others, values, strict=True))


def _group(system: System, references, reference_lengths, rows: list[int], bleu_tokenizer: str) -> dict | None:
    if not rows:
        return None
    outputs, wanted = ([texts[i] for i in rows] for texts in (system.outputs, references))
    produced, lengths = ([values[i] for i in rows] for values in (system.produced, reference_lengths))
    figures = translation_metrics(outputs, wanted, bleu_tokenizer=bleu_tokenizer)
    return {"bleu": figures["bleu"], "length_ratio": length_figures(produced, lengths)["length_ratio"]}


def main(argv=None) -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--systems", nargs="+", required=True, help="NAME=FILE or NAME:WAY=FILE; WAY: predict, source or reference"
    )
    parser.add_argument("--reference_column", required=True, help="column of references")
    parser.add_argument("--output_column", default="output", help="column of the texts")
    parser.add_argument("--units", choices=LENGTH_UNITS, default="token", help="unit of the lengths")
    parser.add_argument("--tokenizer", help="folder or Hub name of the tokenizer that counts tokens")
    parser.add_argument("--baseline", help="system to test the others against")
    parser.add_argument("--bleu_tokenizer", default="13a", help="sacrebleu's, for example ja-mecab")
    parser.add_argument("--output_dir", type=Path, help="folder for translation.md and translation.json")
    args = parser.parse_args(argv)
    if (args.units == "token") != (args.tokenizer is not None):
        parser.error("--units token and --tokenizer go together: the tokenizer counts the tokens")
    if args.output_dir is not None and (args.output_dir / "translation.json").exists():
        parser.error(f"{args.output_dir} holds a translation.json; remove it or name another folder")
    tokenizer = None if args.tokenizer is None else tokenizer_of(args.tokenizer)
    columns = args.output_column, args.reference_column
    systems, references, lengths = load_systems(args.systems, *columns, unit=args.units, tokenizer=tokenizer)
    how = {"unit": args.units, "bleu_tokenizer": args.bleu_tokenizer, "baseline": args.baseline}
    tables = translation_tables(systems, references, lengths, **how)
    print(tables.markdown())
    if args.output_dir is not None:
        args.output_dir.mkdir(parents=True, exist_ok=True)
        (args.output_dir / "translation.md").write_text(tables.markdown(), encoding="utf-8")
        (args.output_dir / "translation.json").write_text(json.dumps(tables.to_dict(), indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
