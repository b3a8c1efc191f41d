"""Judge the papers' claims by the figures of docs/results, and write docs/results/claims.csv and claims.md anew.

    python lab/reproduce/claims.py
    python lab/reproduce/claims.py --runs runs/reproduce/headline_en runs/reproduce/headline_ja

With `--runs`, folders of run.py, it first writes the figures of their `results.jsonl` to protocol_en.csv and
protocol_ja.csv, and to the tables of methods.md. methods_en.csv and methods_ja.csv have rows by an older protocol. It
prints each claim whose verdict has changed: read its `why` again.

A claim of claims.csv names a `source`. For a CSV file it compares a `measure` of rows, `ldpe > transformer at 75;
ldpe <= 0.02`, at each length or at some of them; `figures` and `verdict` follow. A row or measure that is not there
makes it untested. For another page, a person writes `figures` and `verdict`, and each figure must be on that page.
"""

import argparse
import csv
import operator
import re
from collections import Counter
from pathlib import Path
from statistics import mean, stdev

from run import load_results, load_table, of_seeds, rows_of


DOCS = Path(__file__).resolve().parents[2] / "docs" / "results"
FILES = ("protocol_en.csv", "protocol_ja.csv", "methods_en.csv", "methods_ja.csv")  # the last two by an older one
VERDICTS = ("reproduced", "in part", "not reproduced", "untested")
COMPARISON = re.compile(r"(\w+) ([<>]=?) (\w*[a-z]\w*|[\d.]+)(?: ([+-]) ([\d.]+))?(?: at ([\d ]+))?")
OPERATORS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}
Figures = dict[str, dict[str, dict[int, str]]]  # row -> measure -> length -> figure; for several seeds mean ±deviation


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[dict[str, str]]) -> None:
    """Write a CSV file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def figures_of(path: Path) -> Figures:
    """Return the figures of methods_*.csv or protocol_*.csv, of which a cell has one for each length."""
    rows = read(path)
    first = next(name for name in rows[0] if name.startswith("variance at "))
    lengths = [int(length) for length in first.removeprefix("variance at ").split(" / ")]
    found: Figures = {}
    for row in rows:
        cells = {"variance" if name == first else name: cell.split(" / ") for name, cell in row.items()}
        found[row["row"]] = {
            name: dict(zip(lengths, values, strict=True))
            for name, values in cells.items()
            if len(values) == len(lengths) and all(values)
        }
    return found


def judge(measure: str, comparison: str, figures: Figures) -> tuple[str, str]:
    """
    Return the figures and the verdict of a claim.

    Args:
        measure (`str`): A column of the files, `variance` for that of the lengths.
        comparison (`str`): Separated by `;`, two rows each, or a row and a number: `ldpe > transformer - 1 at 50 75`.

    Raises:
        `ValueError`: for a comparison that does not have this form.
    """
    held: list[bool] = []
    shown: dict[str, dict[int, str]] = {}
    for part in comparison.split("; "):
        if (match := COMPARISON.fullmatch(part)) is None:
            raise ValueError(f"a comparison reads `ldpe > transformer - 1 at 50 75`, got {part!r}")
        row, sign, other, plus, offset, at = match.groups()
        number = other[0].isdecimal()
        if any(measure not in figures.get(name, {}) for name in ([row] if number else [row, other])):
            return "", "untested"
        ours = figures[row][measure]
        lengths = [int(length) for length in at.split()] if at else list(ours)
        theirs = dict.fromkeys(lengths, other) if number else figures[other][measure]
        more = float(offset or 0) * (-1 if plus == "-" else 1)
        for length in lengths:
            one, two = (float(side[length].split(" ±")[0]) for side in (ours, theirs))
            held.append(OPERATORS[sign](one, two + more))
        for name in [row] if number else [row, other]:
            shown.setdefault(name, {}).update({length: figures[name][measure][length] for length in lengths})
    texts = [f"{name} {' / '.join(own[length] for length in sorted(own))}" for name, own in shown.items()]
    verdict = "reproduced" if all(held) else f"in part ({sum(held)} of {len(held)})" if any(held) else "not reproduced"
    return ", ".join(texts), verdict


def judged(claims: list[dict[str, str]], docs: Path = DOCS) -> list[dict[str, str]]:
    """
    Return the claims with the figures and verdicts of the result files.

    Raises:
        `ValueError`: where a figure that a person wrote is not in its source.
    """
    known = {name: figures_of(docs / name) for name in FILES}
    found = []
    for claim in claims:
        own = dict(claim)
        if claim["source"] in known:
            own["figures"], own["verdict"] = judge(claim["measure"], claim["comparison"], known[claim["source"]])
        elif claim["source"]:
            page = (docs / claim["source"]).read_text(encoding="utf-8")
            numbers = re.findall(r"\d+\.\d+", claim["figures"])
            if missing := [number for number in numbers if not re.search(rf"(?<![\d.]){number}(?!\d)", page)]:
                raise ValueError(f"{claim['source']} has no {', '.join(missing)}: judge {claim['claim']!r} again")
        found.append(own)
    return found


def page_of(claims: list[dict[str, str]]) -> str:
    """Return claims.md."""
    counts = Counter(claim["verdict"].split(" (")[0] for claim in claims)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    lines = [
        "# The papers, claim by claim",
        "",
        f"{len(claims)} claims of the papers whose methods are here: {told}.",
        "",
        "Our models are small: 2 + 2 layers of width 192, 1,000 to 1,500 steps, at most 50,000 pairs. Takase &",
        "Okazaki and Oka et al. trained 6 + 6 layers of width 512 on 1.6 to 3.8 million pairs. A claim that is not",
        "reproduced here may still hold at that size.",
        "",
        "*In part* counts the comparisons that hold, at each length that the claim names. After ± stands the standard",
        "deviation of several seeds; a difference that is not larger than it says little, whichever way it turns out.",
        "Rows are named as in [Every method](methods.md).",
    ]
    for paper in dict.fromkeys(claim["paper"] for claim in claims):
        lines += ["", f"## {paper}", "", "| table | claim | our figures | verdict | why |", "|---|---|---|---|---|"]
        for claim in claims:
            if claim["paper"] == paper:
                measure = f"{claim['measure']}: " if claim["figures"] and claim["measure"] else ""
                cells = [claim["table"], claim["claim"], measure + claim["figures"], f"**{claim['verdict']}**"]
                lines.append(f"| {' | '.join([*cells, claim['why']])} |")
    lines += [
        "",
        "## Commands",
        "",
        "```bash",
        "python lab/reproduce/claims.py",
        "```",
        "",
        "It judges the claims of [claims.csv](claims.csv), and writes this page. Where all rows of a claim ran by",
        "the [papers' protocol](methods.md#protocol), the figures are those of [protocol_en.csv](protocol_en.csv) and",
        "[protocol_ja.csv](protocol_ja.csv), of one to three seeds. The others are of",
        "[methods_en.csv](methods_en.csv) and [methods_ja.csv](methods_ja.csv), by the older one.",
        "A test fails where a figure has changed since.",
    ]
    return "\n".join(lines) + "\n"


def short(value: float) -> str:
    """Return a variance with three digits that matter: 0.005, 2.08, 11.5, 1395."""
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def methods_of(folder: Path, old: dict[str, str]) -> list[dict[str, str]]:
    """
    Return the rows of protocol_*.csv.

    Args:
        folder (`Path`): `--output_dir` of run.py; its name is that of the table.
        old (`dict[str, str]`): The names of systems, which no table has.
    """
    spec = load_table(Path(__file__).parent / f"{folder.name}.yaml")
    results, rows = load_results(folder / "results.jsonl"), rows_of(spec)
    more = {seed for name in rows for seed in of_seeds(spec, name)[1:]}
    lengths, found = [str(length) for length in spec["lengths"]], []
    for name in rows:
        seeds = [results[seed] for seed in of_seeds(spec, name) if seed in results]
        if not seeds or name in more:
            continue

        def cell(measure: str, form, factor: float = 1, seeds=seeds) -> str:
            texts = []
            for length in lengths:
                values = [factor * row["figures"][length][measure] for row in seeds]
                spread = f" ±{form(stdev(values))}" if len(values) > 1 else ""
                texts.append(form(mean(values)) + spread)
            return " / ".join(texts)

        one, two = "{:.1f}".format, "{:.2f}".format
        paper = spec["paper"].get(name, {})
        row = {"row": name, "system": old.get(name, name)} if old else {"row": name}
        row[f"variance at {' / '.join(lengths)}"] = cell("variance", short)
        row["the paper's variance"] = " / ".join(map(short, paper.get("variance", [])))
        row |= {"MAE": cell("mae", two), "exact %": cell("exact", one, 100), "over %": cell("over", one, 100)}
        row |= {"distinct %": cell("distinct", one, 100), "ROUGE-1 recall": cell("rouge1_recall", one)}
        row["the paper's ROUGE-1"] = " / ".join(map(one, paper.get("rouge1_recall", [])))
        row |= {"ROUGE-2 recall": cell("rouge2_recall", one), "ROUGE-1 F1": cell("rouge1_f1", one)}
        trained = "loss" in seeds[0]
        row["seeds"] = str(len(seeds))
        row["loss"] = two(mean(each["loss"] for each in seeds)) if trained else ""
        row["weights, millions"] = one(seeds[0]["parameters"] / 1e6) if trained else ""
        row["minutes"] = f"{min(each['minutes'] for each in seeds):.0f}" if trained else ""
        found.append(row)
    return found


def replace_table(page: str, rows: list[dict[str, str]], columns: list[str]) -> str:
    """Return a page with these `columns` of its table that has the lengths of the rows, and a column `distinct %`."""
    first = next(name for name in rows[0] if name.startswith("variance at "))
    table = re.compile(rf"^\| row \|[^\n]*{re.escape(first)}[^\n]*distinct[^\n]*\n(?:\|[^\n]*\n)+", re.M)
    (old,) = table.findall(page)
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(row[column] for column in columns)} |" for row in rows]
    return page.replace(old, "\n".join(lines) + "\n")


def take_figures(folder: Path) -> None:
    """Write the figures of a run to protocol_*.csv and to the table of methods.md."""
    language = folder.name.removeprefix("headline_")
    systems = {row["row"]: row["system"] for row in read(DOCS / f"methods_{language}.csv") if "system" in row}
    rows = methods_of(folder, systems)
    write(DOCS / f"protocol_{language}.csv", rows)
    page = DOCS / "methods.md"
    shown = ("row", "MAE", "exact %", "distinct %", "ROUGE-1 recall", "the paper's ROUGE-1", "seeds", "loss")
    columns = [name for name in rows[0] if name in shown or name.startswith("variance at ")]
    page.write_text(replace_table(page.read_text(encoding="utf-8"), rows, columns), encoding="utf-8")


def main(argv=None) -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, nargs="+", default=[], help="folders of run.py, named as their tables")
    for folder in parser.parse_args(argv).runs:
        take_figures(folder)
    old = read(DOCS / "claims.csv")
    claims = judged(old)
    for before, after in zip(old, claims, strict=True):
        if before["verdict"] != after["verdict"]:
            print(f"{before['verdict'] or 'new'} -> {after['verdict']}: {after['table']}, {after['claim']}")
    write(DOCS / "claims.csv", claims)
    (DOCS / "claims.md").write_text(page_of(claims), encoding="utf-8")


if __name__ == "__main__":
    main()
