"""Translate interface strings within their maximum lengths; placeholders come back whole.

    python recipes/fit/strings.py --input_file docs/samples/de.json --output_file en.json \\
        --report_dir strings_report --model models/translate_to_english

Reads gettext .po, Android strings.xml and JSON. Only what has no translation, or a too long one, is touched, and each
new text is marked. What the models cannot write within the limit, with every placeholder, and what is doubtful, is
left as it was. The report lists it, with the doubtful text as a suggestion.
"""

import argparse
from functools import partial
from statistics import median

from catalogues import Entry, Gettext, limits, read
from fitting import Fitted, Request, add_options, cell, check_files, columns, fitter, run, write_report
from placeholders import NAMES, Piece, Unprotectable, protect, restore


SURE = -0.2  # a score from which on a text is not doubtful
ALIKE = 80  # chrF to the translation by another path under which it is
BELOW = 0.25  # of a score under the median of the file


def width(text: str) -> int:
    """Columns of the widest line; placeholders count as they are written, tags do not."""
    lines = text.replace("\\n", "\n").replace("\t", " ").replace("\r", "").split("\n")
    return max(columns(line) for line in lines)


def lay_out(source: str, parts: list[Piece | str], mark: str, limit: int | None, outputs: list[str]) -> str | None:
    """The string, or `None` where a placeholder is lost or it is too long."""
    text = restore(parts, outputs, mark, source)
    if text is None or (limit is not None and width(text) - len(mark) > limit):
        return None
    return text


def request(row: Entry, limit: int | None, variant: int) -> Request:
    """A string with one set of stand-ins; raises `Unprotectable`."""
    parts, mark = protect(row.source, variant, row.marked)
    pieces = [part for part in parts if isinstance(part, Piece)]
    texts = [text for part in pieces for text in part.texts]
    if not texts:
        raise Unprotectable("nothing to translate")
    room = limit
    if limit is not None:  # of the sentences, with the stand-ins
        placed = [item for part in pieces for item in part.inside.items()]
        outside = max(len(part.before) + len(part.after) for part in pieces)
        room = max(1, limit - outside - sum(len(held) - len(name) for name, held in placed))
        room += limit * (len(pieces) - 1)  # a line each
    return Request(texts, room, partial(lay_out, row.source, parts, mark, limit))


def best(choices: list[tuple[Fitted, Request]], least: float) -> tuple[Fitted, Request, str]:
    """The most probable of several stand-ins' translations, and why none is good enough, else an empty text."""
    fits = [choice for choice in choices if choice[0].layout is not None]
    chosen, own = max(fits or choices, key=lambda choice: choice[0].score)
    if not fits:
        return chosen, own, "does not fit, or loses a placeholder"
    return chosen, own, "" if chosen.score >= least else f"improbable: {chosen.score:.2f}"


def doubt(score: float, agreement: float, middle: float) -> str:
    """
    Why a text that fits is doubtful, else an empty text.

    Args:
        score (`float`): Its mean log-probability of a token.
        agreement (`float`): chrF, 0 to 100, of its natural translation and the one by another path.
        middle (`float`): The median of the scores of the file.

    >>> doubt(-0.31, 55.0, -0.25), doubt(-0.12, 55.0, -0.25), doubt(-0.45, 100.0, -0.15)
    ('doubtful: another path gives another text', '', 'doubtful: far below the other texts')
    """
    if score < SURE and agreement < ALIKE:
        return "doubtful: another path gives another text"
    return "doubtful: far below the other texts" if score < min(SURE, middle - BELOW) else ""


def wanted(rows: list[Entry], most: dict[str, int], factor: float | None) -> list[tuple[Entry, int | None]]:
    """Entries without a translation or with a too long one, and their limits."""
    found = []
    for row in rows:
        limit = most.get(row.key, row.limit)
        if limit is None and factor is not None:
            limit = max(1, int(factor * width(row.source)))
        too_long = limit is not None and width(row.target or "") > limit
        if row.source.strip() and (not row.target or too_long) or row.fault:
            found.append((row, limit))
    return found


def translate(todo: list[tuple[Entry, int | None]], fit, least: float) -> list[dict]:
    """A row of the report for each entry: what it becomes, or why it stays."""
    asked: list[tuple[int, Request]] = []
    rows: list[dict] = []
    for i, (row, limit) in enumerate(todo):
        report = {"key": row.key, "source": row.source, "limit": limit, "before": row.target, "output": None}
        rows.append(report | {"fault": row.fault, "score": None, "shortened": False, "suggestion": None})
        if row.fault:
            continue
        try:
            first, parts = request(row, limit, 0), protect(row.source, 0, row.marked)[0]
            variants = len(NAMES) if any(isinstance(p, Piece) and p.inside for p in parts) else 1
            asked += [(i, first), *((i, request(row, limit, k)) for k in range(1, variants))]
        except Unprotectable as error:
            rows[i]["fault"] = str(error)
            asked = [pair for pair in asked if pair[0] != i]
    choices: dict[int, list[tuple[Fitted, Request]]] = {}
    for (i, own), fitted in zip(asked, fit.fit([own for _, own in asked]), strict=True):
        choices.setdefault(i, []).append((fitted, own))
    chosen = {i: best(several, least) for i, several in choices.items()}
    fits = {i: own for i, (_, own, fault) in chosen.items() if not fault}
    agreement = dict(zip(fits, fit.agreement(list(fits.values())), strict=True))
    middle = median([chosen[i][0].score for i in fits] or [0.0])
    for i, (fitted, _, fault) in chosen.items():
        fault = fault or doubt(fitted.score, agreement[i], middle)
        shortened = not fault and fitted.outputs != fitted.natural
        rows[i] |= {"fault": fault, "score": round(fitted.score, 2), "shortened": shortened}
        rows[i] |= {"output": None if fault else fitted.layout, "suggestion": fitted.layout if fault else None}
        rows[i]["natural"] = " ".join(fitted.natural)
    return rows


def summary(entries: list[Entry], rows: list[dict], most: dict[str, int]) -> dict:
    """Counts of entries: all, without a translation, too long, translated, shortened, left."""
    limited = [(row, most.get(row.key, row.limit)) for row in entries]
    too_long = sum(limit is not None and width(row.target or "") > limit for row, limit in limited)
    done = [row for row in rows if row["output"] is not None]
    over = sum(row["limit"] is not None and width(row["output"]) > row["limit"] for row in done)
    counts = {"entries": len(entries), "missing": sum(not row.target for row in entries), "too_long": too_long}
    counts |= {"translated": len(done), "shortened": sum(row["shortened"] for row in done), "over_limit": over}
    return counts | {"left": sum(row["output"] is None for row in rows)}


def markdown(figures: dict, rows: list[dict]) -> list[str]:
    """The lines of report.md."""
    lines = ["# Strings within their limits", "", "| | strings |", "|---|---|"]
    lines += [f"| {name.replace('_', ' ')} | {value} |" for name, value in figures.items()]
    parts = [("Written: read them", [row for row in rows if row["output"] is not None], "output", "score")]
    parts.append(("Left as they were", [row for row in rows if row["output"] is None], "suggestion", "fault"))
    for title, own, text, why in parts:
        if own:
            lines += ["", f"## {title}", "", f"| key | max | {why} | source | {text} |", "|---|---|---|---|---|"]
        for row in own:
            values = (row["key"], row["limit"], row[why], row["source"], row[text])
            lines.append(f"| {' | '.join('' if value is None else cell(str(value)) for value in values)} |")
    return lines


def main(argv=None) -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, min_score=-0.25)
    parser.add_argument("--source_file", help=".po of another language: its msgstrs are translated, not the msgids")
    parser.add_argument("--existing_file", help="strings.xml or JSON with the translations so far, by key")
    parser.add_argument(
        "--limits_file", help="CSV with the columns key and max, or a JSON object, beside the comments"
    )
    parser.add_argument("--max_factor", type=float, help="limit of a string that has none: times its source's width")
    args = parser.parse_args(argv)
    check_files(args, "input_file", "source_file", "existing_file", "limits_file")
    catalogue = read(args.input_file, args.source_file)
    entries, most = catalogue.entries(), limits(args.limits_file)
    keys = {row.key for row in entries}
    other = None if args.existing_file is None else read(args.existing_file)
    if other is not None and (type(other) is not type(catalogue) or isinstance(other, Gettext)):
        raise ValueError(
            f"existing_file is for strings.xml and JSON, of the kind of input_file, got {args.existing_file!r} for "
            f"{args.input_file!r}; a .po file holds its own translations"
        )
    existing = {} if other is None else {row.key: row.source for row in other.entries()}
    for name, given in (("limits_file", most), ("existing_file", existing)):
        if unknown := sorted(set(given) - keys):
            raise ValueError(f"{name} has keys that input_file lacks: {', '.join(unknown[:5])}; remove them")
    for row in entries:
        row.target = existing.get(row.key, row.target)
    rows = translate(wanted(entries, most, args.max_factor), fitter(args), args.min_score)
    places = {row.key: row for row in entries}
    for key in existing:
        catalogue.copy(places[key], other, key)
    for done in rows:
        if done["output"] is not None:
            try:
                catalogue.set(places[done["key"]], done["output"])
            except ValueError as error:
                done |= {"output": None, "fault": str(error)}
    catalogue.save(args.output_file)
    figures = summary(entries, rows, most)
    write_report(args.report_dir, markdown(figures, rows), {**figures, "rows": rows})
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    run(main, "strings.py")
