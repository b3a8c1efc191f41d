"""Translate subtitles within the time and the space of each cue.

    python recipes/fit/subtitles.py --input_file docs/samples/film.de.srt --output_file film.en.srt \\
        --report_dir film_report --model models/translate_to_english

The times, the number and the order of the cues do not change. A text that cannot fit is written whole, and the report
lists it. A sentence over several cues is translated as one, and divided again.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from cue_files import difference, left_out, read, replace
from cues import MARKUP, Cue, break_cost, break_lines, whole
from files import write
from fitting import Fitted, Request, add_options, cell, check_files, columns, fitter, run, sentences, write_report

from hf_lenctrl.commands.output_file import check_loss


# Netflix, Timed Text Style Guides, 26 September 2026: characters a second of adult and of children's programs, columns
# of a line. Characters of full width have two columns, so the figures of ja, ko and zh are twice those of the guides.
GUIDES: dict[str, tuple[float, float, int]] = {
    "ar en": (20, 17, 42),
    "bn hi kn ml mr ta te": (22, 18, 42),
    "bg ca cs cy da de el es eu fi fil fr ga gl he hr hu id is it ms nl no pl pt ro ru se sk sr sv tr uk vi": (
        17,
        13,
        42,
    ),
    "ja": (8, 8, 26),
    "ko": (24, 18, 32),
    "th": (17, 13, 35),
    "zh": (18, 14, 32),
}
NETFLIX = {language: guide for languages, guide in GUIDES.items() for language in languages.split()}
TED = 21.0, 42  # TED Translators Cheat-sheet, for all languages
LINES = 2  # lines of a cue in all of these guides
CONTINUED = re.compile(r"[^.!?…。！？؟।۔:\"“”«»)\]♪]$")  # matches a cue that does not end its sentence
# Arrows, addresses and signs that have no other form in another language.
SIGN = re.compile(r"[-=]+>|<[-=]+|\w+://\S*\w|www\.\S*\w|\S+@\S*\w|[@#]\w+|[*=+_|~^#@{}\[\]]")


@dataclass
class Limits:
    """The limits of a cue: characters a second, columns of a line, number of lines."""

    speed: float
    columns: int
    lines: int

    def budget(self, cue: Cue) -> int:
        """Return the columns that the text of a cue may have; a line break counts as a space."""
        return max(0, int(min(self.speed * cue.seconds + 1e-6, self.columns * self.lines + self.lines - 1)))

    def faults(self, cue: Cue, lines: Sequence[str]) -> list[str]:
        """Return the limits that a cue with these visible lines breaks."""
        found = [] if fill(lines) <= self.speed * cue.seconds + 1e-6 else ["speed"]
        found += ["columns"] if any(columns(line) > self.columns for line in lines) else []
        return found + (["lines"] if len(lines) > self.lines else [])


@dataclass
class Passage:
    """Cues that share a sentence, or a single cue: `texts` are the sentences, `turns` their number in each turn."""

    cues: list[Cue]
    texts: list[str] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    def __post_init__(self):
        said = [turn.text for turn in self.cues[0].turns]
        if len(self.cues) > 1:
            said = [" ".join(turn.text for cue in self.cues for turn in cue.turns)]
        for text in said:
            self.turns.append(len(sentences(text)))
            self.texts += sentences(text)


def fill(lines: Sequence[str]) -> int:
    """Return the columns of the lines of a cue; a line break counts as a space."""
    return columns(" ".join(lines))


def passages(cues: Sequence[Cue], most_gap: float, most_cues: int) -> list[Passage]:
    """Join neighbouring cues into passages: cues that share a sentence and are at most `most_gap` ms apart."""
    groups: list[list[Cue]] = []
    for cue in cues:
        last = groups[-1][-1] if groups else None
        if last is not None and len(groups[-1]) < most_cues and continues(last, cue, most_gap):
            groups[-1].append(cue)
        else:
            groups.append([cue])
    return [Passage(group) for group in groups if group[0].turns and not group[0].fault]


def continues(last: Cue, cue: Cue, most_gap: float) -> bool:
    """Return whether a cue continues the sentence of the `last` one; false in songs, sounds and other voices."""
    plain = all(not own.fault and not own.edge and len(own.turns) == 1 for own in (last, cue))
    if not plain or not 0 <= cue.start - last.end <= most_gap:
        return False
    signs = last.turns[0].lead + last.turns[0].tail + cue.turns[0].lead + cue.turns[0].tail
    voices = [re.findall(r"<v[^>]*>", own.before) for own in (last, cue)]
    return not signs and voices[0] == voices[1] and bool(CONTINUED.search(last.turns[0].text))


def lay_out(passage: Passage, limits: Limits, outputs: list[str], loose: bool = False) -> list[list[str]] | None:
    """
    Lay out the translated sentences of a passage in the lines of its cues.

    Args:
        outputs (`list[str]`): The translation of each sentence.
        loose (`bool`): Write the whole text, even over the limits.

    Returns:
        The lines of each cue, or `None` if the text does not fit.
    """
    text = " ".join(outputs)
    if len(passage.cues) > 1:
        return divide(passage.cues, limits, text, loose)
    cue, lines, rest = passage.cues[0], [], list(outputs)
    room, most = max(1, limits.lines // len(cue.turns)), max(1, limits.columns - cue.edge)
    for (lead, _, tail), count in zip(cue.turns, passage.turns, strict=True):
        said, rest = MARKUP.sub("", lead) + " ".join(rest[:count]) + MARKUP.sub("", tail), rest[count:]
        broken = break_lines(said, most, room) or (whole(said, most) if loose else None)
        if broken is None:
            return None
        lines += ["".join(MARKUP.findall(lead)) + broken[0], *broken[1:]]
        lines[-1] += "".join(MARKUP.findall(tail))
    return [lines] if loose or not limits.faults(cue, cue.shown(lines)) else None


def divide(cues: Sequence[Cue], limits: Limits, text: str, loose: bool) -> list[list[str]] | None:
    """Divide a text over several cues, with similar shares as in the source, and at good places to break."""
    words, spoken = text.split(), [len(cue.turns[0].text) for cue in cues]

    @cache
    def best_from(k: int, start: int) -> tuple[float, list[list[str]]] | None:
        """Return the lowest cost of the words from `start` in the cues from number `k`, and the lines of each cue."""
        best: tuple[float, list[list[str]]] | None = None
        after = len(cues) - k - 1
        for end in range(start + 1, len(words) - after + 1) if after else [len(words)]:
            part = " ".join(words[start:end])
            if not loose and columns(part) > limits.budget(cues[k]):
                break
            rest = best_from(k + 1, end) if after else (0.0, [])
            share = columns(part) / columns(text) - spoken[k] / sum(spoken)
            cost = abs(share) * columns(text) + (break_cost(words, end) if after else 0) + (rest[0] if rest else 0)
            if rest is None or (best is not None and best[0] <= cost):
                continue
            lines = break_lines(part, limits.columns, limits.lines)
            lines = lines or (whole(part, limits.columns) if loose else None)
            if lines and (loose or not limits.faults(cues[k], lines)):
                best = cost, [lines, *rest[1]]
        return best

    best = best_from(0, 0)
    if best is None and loose:  # there are fewer words than cues, so the first cue gets all of them
        return [whole(text, limits.columns), *([] for _ in cues[1:])]
    return None if best is None else best[1]


def request(passage: Passage, limits: Limits) -> Request:
    layout: Callable = partial(lay_out, passage, limits)
    turns = passage.cues[0].turns if len(passage.cues) == 1 else []
    signs = passage.cues[0].edge + sum(columns(MARKUP.sub("", turn.lead + turn.tail)) for turn in turns)
    budget = sum(limits.budget(cue) for cue in passage.cues) + len(passage.cues) - 1 - signs
    return Request(passage.texts, max(1, budget), layout)


def rows_of(cues: Sequence[Cue], done: list[tuple[Passage, Fitted]], limits: Limits) -> list[dict]:
    """
    Return a row of the report for each cue: source, natural text, output, and the limits that each text breaks.

    `lines` are the written lines; `None` if the cue does not change.
    """
    rows: list[dict] = []
    for number, cue in enumerate(cues, 1):
        row = {"cue": number, "line": cue.line, "seconds": cue.seconds, "budget": limits.budget(cue)}
        texts = dict.fromkeys(("source", "natural", "output"), cue.shown())
        rows.append(row | texts | {"lines": None, "shortened": False, "fault": cue.fault, "cues": [number]})
    place = {id(cue): k for k, cue in enumerate(cues)}
    for passage, fitted in done:
        natural = lay_out(passage, limits, fitted.natural) or lay_out(passage, limits, fitted.natural, loose=True)
        output = fitted.layout or natural
        numbers = [place[id(cue)] + 1 for cue in passage.cues]
        for cue, before, lines in zip(passage.cues, natural or [], output or [], strict=True):
            changed = {"natural": cue.shown(before), "output": cue.shown(lines), "lines": lines}
            changed |= {"shortened": fitted.outputs != fitted.natural, "score": round(fitted.score, 2)}
            rows[place[id(cue)]] |= changed | {"cues": numbers, "fault": "" if fitted.layout else "cannot fit"}
        source, target = (sorted(SIGN.findall(" ".join(texts))) for texts in (passage.texts, fitted.outputs))
        if source != target:
            stays = {"lines": None, "shortened": False, "fault": f"the output would have {target}, not {source}"}
            for cue in passage.cues:
                rows[place[id(cue)]] |= stays | {"output": cue.shown()}
    for cue, row in zip(cues, rows, strict=True):
        row["over"] = {name: limits.faults(cue, row[name]) for name in ("source", "natural", "output")}
    return rows


def result(content: str, cues: Sequence[Cue], rows: list[dict], encoding: str) -> str:
    """
    Return the content of the file with the texts of the rows.

    If the file cannot hold a text, all cues of its sentence keep their old texts, and their rows get a fault.
    """
    while True:
        pairs = list(zip(cues, rows, strict=True))
        texts = [cue.text if row["lines"] is None else cue.written(row["lines"]) for cue, row in pairs]
        found = difference(content, cues, texts)
        for i, text in enumerate(texts):
            if found is None and text.encode(encoding, errors="ignore").decode(encoding) != text:
                found = i, f"the encoding {encoding} lacks a character of it"
        if found is None:
            return replace(content, cues, texts)
        i, why = found
        if rows[i]["lines"] is None:
            raise ValueError(f"cue {i + 1}, line {cues[i].line}: {why}; nothing was written")
        for k in rows[i]["cues"]:
            row = rows[k - 1]
            fault = f"not written, because {why}" if k == i + 1 else f"stays with cue {i + 1}"
            over = row["over"] | {"output": row["over"]["source"]}
            row |= {"lines": None, "output": row["source"], "shortened": False, "fault": fault, "over": over}


def summary(rows: list[dict], not_cues: Sequence[int] = ()) -> dict:
    """Count the cues over a limit: sources, natural translations and outputs; `not_cues` are lines of `left_out`."""
    over = {name: sum(bool(row["over"][name]) for row in rows) for name in ("source", "natural", "output")}
    flagged = [row["cue"] for row in rows if row["fault"]]
    counts = {"cues": len(rows), "over": over, "shortened": sum(row["shortened"] for row in rows)}
    return counts | {"flagged": flagged, "not_cues": list(not_cues)}


def markdown(rows: list[dict], figures: dict, limits: Limits) -> list[str]:
    """Return the lines of report.md."""
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
        lines += ["", "## Flagged: see to them", "", "A text that cannot fit is written whole. The others stay.", ""]
        lines += ["| cue | line | why | room | source | output |", "|---|---|---|---|---|---|"]
        for row in flagged:
            why = row["fault"] + "".join(f", {name}" for name in row["over"]["output"])
            texts = " | ".join(cell(" ".join(row[name])) for name in ("source", "output"))
            lines.append(f"| {row['cue']} | {row['line']} | {cell(why)} | {row['budget']} | {texts} |")
    if figures["not_cues"]:
        numbers = ", ".join(map(str, figures["not_cues"]))
        lines += ["", "## Left as they are", "", f"Lines with `-->` that are no timing of a cue: {numbers}."]
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
    """Plot the characters a second of each cue, for the natural translation and for the output."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [row for row in rows if row["output"] and row["seconds"] > 0]
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


def options(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, min_score=-0.7)
    add = parser.add_argument
    add("--preset", choices=["netflix", "netflix_children", "ted"], default="netflix", help="limits of a style guide")
    add("--language", default="en", help="language of the output, such as en or pt-BR; it selects the Netflix guide")
    add("--speed", type=float, help="characters a second; default: the preset's")
    add("--columns", type=int, help="columns of a line; default: the preset's")
    add("--lines", type=int, help="lines of a cue; default: the preset's")
    add("--join_gap", type=float, default=1.0, help="most seconds between cues that share a sentence; -1: join none")
    add("--join_cues", type=int, default=3, help="most cues that share a sentence")
    add("--overwrite", action="store_true", help="replace --output_file if it exists")
    add("--encoding", default="utf-8", help="encoding of both files")
    args = parser.parse_args(argv)
    try:
        defaults = preset(args.preset, args.language)
        "".encode(args.encoding)
    except (LookupError, ValueError) as error:
        parser.error(str(error))
    for name, value in zip(("speed", "columns", "lines"), defaults, strict=True):
        given = getattr(args, name)
        setattr(args, name, value if given is None else given)
        if not 0 < getattr(args, name) < float("inf"):
            parser.error(f"--{name} must be a number above 0, got {given}")
    return args


def preset(name: str, language: str) -> tuple[float, int, int]:
    """
    Return the limits in a style guide: characters a second, columns of a line, lines of a cue.

    Raises:
        `ValueError`: for a language without a guide.

    >>> preset("netflix", "en"), preset("netflix_children", "pt-BR"), preset("ted", "de")
    ((20, 42, 2), (13, 42, 2), (21.0, 42, 2))
    """
    if name == "ted":
        return *TED, LINES
    code = re.split("[-_]", language.lower())[0]
    if code not in NETFLIX:
        raise ValueError(
            f"--language must be one of {', '.join(sorted(NETFLIX))}, got {language!r}; for another one, pass "
            "--preset ted, or --speed, --columns and --lines with a similar language"
        )
    adults, children, width = NETFLIX[code]
    return children if name == "netflix_children" else adults, width, LINES


def main(argv=None) -> None:
    """Run the recipe."""
    args = options(argv)
    limits = Limits(args.speed, args.columns, args.lines)
    check_files(args, "input_file")
    kind, output = Path(args.input_file).suffix.lower(), Path(args.output_file)
    content, cues = read(args.input_file, args.encoding)
    if output.suffix.lower() != kind or output.is_dir():
        raise ValueError(f"output_file must be a {kind} file as input_file is, got {args.output_file!r}")
    check_loss(output, args.input_file, overwrite=args.overwrite)
    output.parent.mkdir(parents=True, exist_ok=True)  # now, because an error after the translation would lose it
    spoken = passages(cues, 1000 * args.join_gap, args.join_cues)
    if args.shorten:  # a cue that fits does not change
        spoken = [p for p in spoken if any(limits.faults(cue, cue.shown()) for cue in p.cues)]
    done = list(zip(spoken, fitter(args).fit([request(p, limits) for p in spoken]), strict=True))
    rows = rows_of(cues, done, limits)
    write(args.output_file, result(content, cues, rows, args.encoding).encode(args.encoding))
    figures = summary(rows, left_out(content, cues, kind.removeprefix(".")))
    write_report(args.report_dir, markdown(rows, figures, limits), {**figures, "limits": vars(limits), "rows": rows})
    plot(rows, limits, Path(args.report_dir) / "report.png")
    over = figures["over"]
    print(
        f"{len(rows)} cues over a limit: source {over['source']}, natural {over['natural']}, output {over['output']}"
    )
    print(f"{figures['shortened']} shortened, {len(figures['flagged'])} flagged: {args.report_dir}/report.md")
    if figures["not_cues"]:
        print(f"{len(figures['not_cues'])} lines with --> are no timing of a cue, and stay with the text below them")


if __name__ == "__main__":
    run(main, "subtitles.py")
