"""Translate subtitles into the time and the room that each cue has.

    python recipes/fit/subtitles.py --input_file docs/samples/film.de.srt --output_file film.en.srt \\
        --report_dir film_report --model models/translate_to_english

Times, number and order of the cues stay. A text that cannot fit is written whole, and the report lists it. A sentence
that goes over several cues is translated as one and divided again.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path

from cues import Cue, break_cost, break_lines, find, read, replace, visible, whole
from fitting import Fitted, Request, add_options, cell, check_files, columns, fitter, run, sentences, write_report


PRESETS = {  # characters a second, columns a line, lines a cue
    "netflix": (17.0, 42, 2),  # English Template Timed Text Style Guide, adult programs
    "netflix_children": (13.0, 42, 2),  # the same, children's programs
    "ted": (21.0, 42, 2),  # TED Translators Cheat-sheet
}
CONTINUED = re.compile(r"[^.!?…:\"“”«»)\]♪]$")  # a cue that does not end its sentence


@dataclass
class Limits:
    """Characters a second, columns of a line, lines of a cue."""

    speed: float
    columns: int
    lines: int

    def budget(self, cue: Cue) -> int:
        """Columns of the text of a cue, a line break counting as a space."""
        return min(int(self.speed * cue.seconds + 1e-6), self.columns * self.lines + self.lines - 1)

    def faults(self, cue: Cue, lines: Sequence[str]) -> list[str]:
        """The limits that a cue with these lines breaks."""
        found = [] if fill(lines) <= self.speed * cue.seconds + 1e-6 else ["speed"]
        found += ["columns"] if any(columns(line) > self.columns for line in lines) else []
        return found + (["lines"] if len(lines) > self.lines else [])


@dataclass
class Passage:
    """Cues that share a sentence, or one cue; its sentences, and how many of them each turn has."""

    cues: list[Cue]
    texts: list[str] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    def __post_init__(self):
        said = [text for _, text in self.cues[0].turns]
        if len(self.cues) > 1:
            said = [" ".join(text for cue in self.cues for _, text in cue.turns)]
        for text in said:
            self.turns.append(len(sentences(text)))
            self.texts += sentences(text)


def fill(lines: Sequence[str]) -> int:
    """Columns of a cue, a line break counting as a space."""
    return columns(" ".join(lines))


def passages(cues: Sequence[Cue], most_gap: int, most_cues: int) -> list[Passage]:
    """Join neighbours where the first does not end its sentence; `most_gap` milliseconds apart."""
    groups: list[list[Cue]] = []
    for cue in cues:
        last = groups[-1][-1] if groups else None
        joins = (
            last is not None
            and len(groups[-1]) < most_cues
            and cue.start - last.end <= most_gap
            and all(len(c.turns) == 1 and not c.turns[0][0] and not c.fault and "♪" not in c.text for c in (last, cue))
            and CONTINUED.search(last.turns[0][1])
        )
        if joins:
            groups[-1].append(cue)
        else:
            groups.append([cue])
    return [Passage(group) for group in groups if group[0].turns and not group[0].fault]


def lay_out(passage: Passage, limits: Limits, outputs: list[str], loose: bool = False) -> list[list[str]] | None:
    """
    The lines of each cue of a passage.

    Args:
        outputs (`list[str]`): One for each sentence.
        loose (`bool`): Keep the whole text, over the limits.

    Returns:
        `None` where the text does not fit.
    """
    text = " ".join(outputs)
    if len(passage.cues) > 1:
        return divide(passage.cues, limits, text, loose)
    cue, lines, rest = passage.cues[0], [], list(outputs)
    room = max(1, limits.lines // len(cue.turns))
    for (lead, _), count in zip(cue.turns, passage.turns, strict=True):
        said, rest = lead + " ".join(rest[:count]), rest[count:]
        broken = break_lines(said, limits.columns, room) or (whole(said, limits.columns) if loose else None)
        if broken is None:
            return None
        lines += broken
    return [lines] if loose or not limits.faults(cue, lines) else None


def divide(cues: Sequence[Cue], limits: Limits, text: str, loose: bool) -> list[list[str]] | None:
    """A text over several cues: near the share that each has of the source, at a good place."""
    words, spoken = text.split(), [len(cue.turns[0][1]) for cue in cues]
    best: tuple[float, list[list[str]]] | None = None
    for breaks in combinations(range(1, len(words)), len(cues) - 1):
        parts = [" ".join(words[a:b]) for a, b in pairwise((0, *breaks, len(words)))]
        shares = [columns(part) / columns(text) - n / sum(spoken) for part, n in zip(parts, spoken, strict=True)]
        cost = sum(abs(share) * columns(text) for share in shares) + sum(break_cost(words, i) for i in breaks)
        if best is not None and best[0] <= cost:
            continue
        lines = [break_lines(part, limits.columns, limits.lines) for part in parts]
        if loose:
            lines = [own or whole(part, limits.columns) for own, part in zip(lines, parts, strict=True)]
        kept = [own for cue, own in zip(cues, lines, strict=True) if own and (loose or not limits.faults(cue, own))]
        if len(kept) == len(cues):
            best = cost, kept
    if best is None and loose:  # fewer words than cues: the first one has them all
        return [whole(text, limits.columns), *([] for _ in cues[1:])]
    return None if best is None else best[1]


def request(passage: Passage, limits: Limits) -> Request:
    layout: Callable = partial(lay_out, passage, limits)
    leads = sum(columns(lead) for lead, _ in passage.cues[0].turns) if len(passage.cues) == 1 else 0
    budget = sum(limits.budget(cue) for cue in passage.cues) + len(passage.cues) - 1 - leads
    return Request(passage.texts, max(1, budget), layout)


def rows_of(cues: Sequence[Cue], done: list[tuple[Passage, Fitted]], limits: Limits) -> list[dict]:
    """A row of the report for each cue: source, natural and fitted text, what they fill, and the limits they break."""
    rows = []
    for number, cue in enumerate(cues, 1):
        source = visible(cue.text)
        row = {"cue": number, "seconds": cue.seconds, "budget": limits.budget(cue), "source": source}
        rows.append(
            row | {"natural": source, "output": source, "shortened": False, "fault": cue.fault, "cues": [number]}
        )
    place = {id(cue): k for k, cue in enumerate(cues)}
    for passage, fitted in done:
        natural = lay_out(passage, limits, fitted.natural) or lay_out(passage, limits, fitted.natural, loose=True)
        output = fitted.layout or natural
        numbers = [place[id(cue)] + 1 for cue in passage.cues]
        for cue, before, lines in zip(passage.cues, natural or [], output or [], strict=True):
            changed = {"natural": before, "output": lines, "shortened": fitted.outputs != fitted.natural}
            rows[place[id(cue)]] |= changed | {"score": round(fitted.score, 2), "cues": numbers}
            rows[place[id(cue)]]["fault"] = "" if fitted.layout else "cannot fit"
    for cue, row in zip(cues, rows, strict=True):
        row["over"] = {name: limits.faults(cue, row[name]) for name in ("source", "natural", "output")}
    return rows


def summary(rows: list[dict]) -> dict:
    """Cues over the limits, for the source, the natural translation and the output."""
    over = {name: sum(bool(row["over"][name]) for row in rows) for name in ("source", "natural", "output")}
    flagged = [row["cue"] for row in rows if row["fault"]]
    return {"cues": len(rows), "over": over, "shortened": sum(row["shortened"] for row in rows), "flagged": flagged}


def markdown(rows: list[dict], figures: dict, limits: Limits) -> list[str]:
    """The lines of report.md."""
    lines = ["# Subtitles within their limits", ""]
    lines += [
        f"{limits.speed:g} characters a second, {limits.columns} columns a line, {limits.lines} lines a cue.",
        "",
    ]
    lines += ["| text | cues | over a limit |", "|---|---|---|"]
    names = {"source": "source", "natural": "natural translation", "output": "output"}
    lines += [f"| {label} | {len(rows)} | {figures['over'][name]} |" for name, label in names.items()]
    flagged, shorter = [row for row in rows if row["fault"]], [row for row in rows if row["shortened"]]
    if flagged:
        lines += ["", "## Flagged: written whole, see to them", "", "| cue | why | room | source | output |"]
        lines += ["|---|---|---|---|---|"]
        for row in flagged:
            why = row["fault"] + "".join(f", {name}" for name in row["over"]["output"])
            texts = " | ".join(cell(" ".join(row[name])) for name in ("source", "output"))
            lines.append(f"| {row['cue']} | {why} | {row['budget']} | {texts} |")
    if shorter:
        lines += [
            "",
            "## Shortened: read them",
            "",
            "| cue | score | source | natural | output |",
            "|---|---|---|---|---|",
        ]
        for row in shorter:
            texts = " | ".join(cell(" ".join(row[name])) for name in ("source", "natural", "output"))
            lines.append(f"| {row['cue']} | {row['score']} | {texts} |")
    return lines


def plot(rows: list[dict], limits: Limits, path: Path) -> None:
    """Characters a second of each cue, of the natural translation and of the output."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [row for row in rows if row["output"] and row["seconds"]]
    numbers = [row["cue"] for row in shown]
    before, after = ([fill(row[name]) / row["seconds"] for row in shown] for name in ("natural", "output"))
    figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    axes.vlines(numbers, after, before, color="0.8", lw=1)
    axes.scatter(numbers, before, s=18, color="0.6", lw=0, label="natural translation")
    axes.scatter(numbers, after, s=18, color="#0072B2", lw=0, label="output")
    over = [i for i, row in enumerate(shown) if row["over"]["output"]]
    if over:
        points = [numbers[i] for i in over], [after[i] for i in over]
        axes.scatter(*points, s=60, facecolors="none", edgecolors="#D55E00", label="flagged")
    axes.axhline(limits.speed, color="0.3", lw=1, ls="--")
    axes.set(xlabel="cue", ylabel="characters a second", ylim=(0, None))
    axes.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def same_structure(before: str, after: str, kind: str) -> None:
    """Stop unless a second reading finds the same cues at the same times."""
    first, second = find(before.replace("\r\n", "\n"), kind), find(after.replace("\r\n", "\n"), kind)
    if [(cue.start, cue.end) for cue in first] != [(cue.start, cue.end) for cue in second]:
        raise RuntimeError("the output would have other cues than the input; nothing was written")


def options(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, min_score=-0.7)
    add = parser.add_argument
    add("--preset", choices=PRESETS, default="netflix", help="limits of a style guide")
    add("--speed", type=float, help="characters a second; default: the preset's")
    add("--columns", type=int, help="columns of a line; default: the preset's")
    add("--lines", type=int, help="lines of a cue; default: the preset's")
    add("--join_gap", type=float, default=1.0, help="seconds between cues that may share a sentence; -1: join none")
    add("--join_cues", type=int, default=3, help="most cues that may share a sentence")
    add("--encoding", default="utf-8", help="of both files")
    args = parser.parse_args(argv)
    for name, value in zip(("speed", "columns", "lines"), PRESETS[args.preset], strict=True):
        given = getattr(args, name)
        setattr(args, name, value if given is None else given)
        if getattr(args, name) <= 0:
            parser.error(f"--{name} must be above 0, got {given}")
    return args


def main(argv=None) -> None:
    """Run the recipe."""
    args = options(argv)
    limits = Limits(args.speed, args.columns, args.lines)
    check_files(args, "input_file")
    content, cues = read(args.input_file, args.encoding)
    kind = Path(args.input_file).suffix.lower().removeprefix(".")
    if Path(args.output_file).suffix.lower() != f".{kind}":
        raise ValueError(f"output_file must be a .{kind} file as input_file is, got {args.output_file!r}")
    spoken = passages(cues, int(1000 * args.join_gap), args.join_cues)
    if args.shorten:  # a cue that fits stays as it is
        spoken = [p for p in spoken if any(limits.faults(cue, visible(cue.text)) for cue in p.cues)]
    done = list(zip(spoken, fitter(args).fit([request(p, limits) for p in spoken]), strict=True))
    rows = rows_of(cues, done, limits)
    changed = {id(cue) for passage, _ in done for cue in passage.cues}
    pairs = zip(cues, rows, strict=True)
    texts = [cue.written(row["output"]) if id(cue) in changed else cue.text for cue, row in pairs]
    result = replace(content, cues, texts)
    same_structure(content, result, kind)
    with open(args.output_file, "w", encoding=args.encoding, newline="") as file:
        file.write(result)
    figures = summary(rows)
    write_report(args.report_dir, markdown(rows, figures, limits), {**figures, "limits": vars(limits), "rows": rows})
    plot(rows, limits, Path(args.report_dir) / "report.png")
    over = figures["over"]
    print(
        f"{len(rows)} cues over a limit: source {over['source']}, natural {over['natural']}, output {over['output']}"
    )
    print(f"{figures['shortened']} shortened, {len(figures['flagged'])} flagged: {args.report_dir}/report.md")


if __name__ == "__main__":
    run(main, "subtitles.py")
