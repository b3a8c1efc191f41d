"""The tables of recipes/reproduce/reproduce.py, from its results, in the papers' layout."""

from pathlib import Path

from transformers import AutoTokenizer

from hf_lenctrl.experiment.tables import TranslationTables, load_systems, translation_tables


# Tables 1, 2 and 4 of Takase & Okazaki 2019 have recall and variance, Nguyen et al. 2023 have F1
HEADLINES = (
    ("ROUGE recall (1, 2, L)", [f"rouge{n}_recall" for n in "12L"]),
    ("ROUGE F1 (1, 2, L)", [f"rouge{n}_f1" for n in "12L"]),
    ("Variance", ["variance"]),
    ("Mean absolute error / share that is exact", ["mae", "exact"]),
)
TRANSLATION = (("BLEU / length ratio / variance", ["bleu", "length_ratio", "variance"]),)  # Table 1 of Oka et al. 2020


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
    tokenizer = AutoTokenizer.from_pretrained(out / names[0])
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
                ours = " / ".join(f"{figures[m]:.3f}"[:6] for m in measures)
                paper = [spec.get("paper", {}).get(name, {}).get(m, [])[i : i + 1] for m in measures]
                theirs = " / ".join(str(p[0]) for p in paper if p)
                cells.append(f"{ours} ({theirs})" if theirs else ours)
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines.append("")
    if "predictor" in spec and known:
        lines.append(compare_systems(spec, known, out).markdown())
    return "\n".join(lines)
