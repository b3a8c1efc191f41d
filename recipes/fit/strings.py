"""Translate interface strings within their maximum lengths, and keep placeholders unchanged.

    python recipes/fit/strings.py --input_file docs/samples/de.json --output_file en.json \\
        --report_dir strings_report --model models/translate_to_english

The recipe reads .po, XLIFF, .xcstrings, .strings, .stringsdict, strings.xml, JSON, .resx and .properties. It
translates strings without a translation, or with a fuzzy translation that is too long, and marks each new text. A
string does not change if the models cannot write it within the limit with every placeholder, or if the output is
doubtful. The report lists this string, with the output as a suggestion.
"""

import argparse
import html
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from catalogues import KINDS, read, read_limits
from entries import Catalogue, Entry
from fitting import Fitted, Request, add_options, cell, check_files, columns, fitter, run, write_report
from placeholders import NAMES, Piece, Unprotectable, mark_of, protect, restore

from hf_lenctrl.commands.output_file import check_loss
from hf_lenctrl.length_units import count_units


SURE = -0.2  # a text with at least this score is not doubtful
ALIKE = 80  # a text is doubtful if its chrF to a translation by another path is lower
BELOW = 0.25  # a text is doubtful if its score is this far below the median of the file


def size(text: str, unit: str = "width", is_markup: bool = False) -> int:
    """
    Return the units of a text; for `"width"`, the columns of the widest line. Tags do not count.

    Raises:
        `ValueError`: for a unit that the package does not have.

    >>> size("<b>Größe:</b>\\n5 &lt; 6", is_markup=True), size("Größe", "byte"), size("{count} Züge", "word")
    (6, 7, 2)
    """
    shown = re.sub(r"</?[a-zA-Z][^<>]*>", "", text).replace("\t", " ").replace("\r", "")
    shown = html.unescape(shown) if is_markup else shown
    return max(map(columns, shown.split("\n"))) if unit == "width" else count_units(shown, unit)


def fits(row: Entry, text: str, limits: dict[str, int]) -> bool:
    """Return whether a text keeps the limits of an entry; the mark of an accelerator does not count."""
    text = text.replace(mark_of(text), "", 1) if row.marked else text
    return all(size(text, unit, row.is_markup) <= most for unit, most in limits.items())


def lay_out(row: Entry, parts: list[Piece | str], mark: str, limits: dict[str, int], outputs: list[str]) -> str | None:
    """Build the string from `outputs`; return `None` if a placeholder is lost or the string is too long."""
    text = restore(parts, outputs, mark, row.source)
    return text if text is not None and fits(row, text, limits) else None


def request(row: Entry, limits: dict[str, int], variant: int) -> Request:
    """Build the request of a string with set number `variant` of stand-ins; raise `Unprotectable` if impossible."""
    parts, mark = protect(row.source, variant, row.marked)
    pieces = [part for part in parts if isinstance(part, Piece)]
    texts = [text for part in pieces for text in part.texts]
    if not texts:
        raise Unprotectable("nothing to translate")
    room = None
    if limits:  # estimate the columns that the sentences may have, with the stand-ins
        sizes = [(most, max(1, size(row.source, unit, row.is_markup))) for unit, most in limits.items()]
        limit = min(most * size(row.source) // units for most, units in sizes)
        placed = [item for part in pieces for item in part.inside.items()]
        outside = max(size(part.before) + size(part.after) for part in pieces)
        room = max(1, limit - outside - sum(size(held) - len(name) for name, held in placed))
        room += limit * (len(pieces) - 1)  # each piece has its own line
    return Request(texts, room, partial(lay_out, row, parts, mark, limits))


def best(choices: list[tuple[Fitted, Request]], least: float) -> tuple[Fitted, Request, str]:
    """Return the most probable translation over all sets of stand-ins, its request, and its fault or an empty text."""
    fits = [choice for choice in choices if choice[0].layout is not None]
    chosen, own = max(fits or choices, key=lambda choice: choice[0].score)
    if not fits:
        return chosen, own, "does not fit, or loses a placeholder, a sign or a number"
    return chosen, own, "" if chosen.score >= least else f"improbable: {chosen.score:.2f}"


def doubt(score: float, agreement: float, middle: float) -> str:
    """
    Return the reason why a text that fits is doubtful, or an empty text.

    Args:
        score (`float`): Mean log-probability of the text's tokens.
        agreement (`float`): chrF, 0 to 100, between the natural translation and a translation by another path.
        middle (`float`): Median of the scores in the file.

    >>> doubt(-0.31, 55.0, -0.25), doubt(-0.12, 55.0, -0.25), doubt(-0.45, 100.0, -0.15)
    ('doubtful: another path gives another text', '', 'doubtful: far below the other texts')
    """
    if score < SURE and agreement < ALIKE:
        return "doubtful: another path gives another text"
    return "doubtful: far below the other texts" if score < min(SURE, middle - BELOW) else ""


def limits_of(row: Entry, most: dict[str, int], unit: str, factor: float | None) -> dict[str, int]:
    """
    Return the limits of an entry, unit -> maximum: the limit of its key, or else the limits in the file. Set the
    entry's fault if it has a limit in an unknown unit.

    Args:
        most (`dict[str, int]`): Key -> limit.
        unit (`str`): The unit of these limits, and of limits in comments.
        factor (`float`, *optional*): The limit of other entries, as a multiple of the size of the source.
    """
    if row.key in most:
        return {unit: most[row.key]}
    found = {}
    for name, limit in row.limits.items():
        try:
            size("", name)
            found[name] = limit
        except ValueError:
            row.fault = row.fault or f"its limit is in {name}, which this package cannot count: name it in limits_file"
    if row.limit is not None:
        found[unit] = min(row.limit, found.get(unit, row.limit))
    if not (found or row.limits) and factor is not None:
        found[unit] = max(1, int(factor * size(row.source, unit, row.is_markup)))
    return found


def to_do(rows: list[tuple[Entry, dict[str, int]]], replace: bool = False) -> list[tuple[Entry, dict[str, int]]]:
    """
    Return the entries to translate, with their limits: entries without a translation, or with a fuzzy translation that
    is too long. With `replace` also entries whose finished translation is too long; otherwise these get a fault.
    """
    found = []
    for row, limits in rows:
        if not (row.source.strip() or row.fault) or (row.target and fits(row, row.target, limits)):
            continue
        if row.target and not row.fuzzy and not replace and not row.fault:
            row.fault = "too long, but finished: --replace_too_long replaces it"
        found.append((row, limits))
    return found


def translate(todo: list[tuple[Entry, dict[str, int]]], fit, least: float) -> list[dict]:
    """Translate the entries; return a report row for each: the new text, or the reason why the old text stays."""
    asked: list[tuple[int, Request]] = []
    rows: list[dict] = []
    for i, (row, limits) in enumerate(todo):
        report = {"key": row.key, "source": row.source, "limits": limits, "before": row.target, "output": None}
        rows.append(report | {"fault": row.fault, "score": None, "shortened": False, "suggestion": None})
        if row.fault:
            continue
        try:
            first, parts = request(row, limits, 0), protect(row.source, 0, row.marked)[0]
            variants = len(NAMES) if any(isinstance(p, Piece) and p.inside for p in parts) else 1
            asked += [(i, first), *((i, request(row, limits, k)) for k in range(1, variants))]
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


def fill(done: list[dict], build: Callable[[], tuple[Catalogue, dict[str, Entry]]]) -> Catalogue:
    """
    Fill in the outputs that the file can hold; fill all forms of a plural or none. Other rows lose their output, and
    get a fault.

    Args:
        done (`list[dict]`): The rows of the report.
        build (`Callable`): Returns the file with the translations so far, and its entries by key.
    """

    def filled(rows: list[dict]) -> Catalogue:
        catalogue, places = build()
        for row in rows:
            try:
                catalogue.set(places[row["key"]], row["output"])
            except ValueError as error:
                leave([row], str(error))
        return catalogue

    _, entries = build()
    plurals: dict[str, list[Entry]] = {}
    for entry in entries.values():
        plurals.setdefault(entry.plural or f"key {entry.key}", []).append(entry)
    by_key = {row["key"]: row for row in done}
    filled(written(done))  # sets a fault for texts that the file cannot hold
    for forms in plurals.values():
        own = written([by_key[form.key] for form in forms if form.key in by_key])
        kept = {row["key"] for row in own} | {
            form.key for form in forms if form.target or not (form.source.strip() or form.fault)
        }
        if own and not {form.key for form in forms} <= kept:
            leave(own, "another form of the plural has no translation")
    catalogue = filled(written(done))
    if catalogue.differences():  # some text would change other parts of the file: find it
        for forms in plurals.values():
            own = written([by_key[form.key] for form in forms if form.key in by_key])
            if own and (names := filled(own).differences()):
                leave(own, f"the file would change in {names[:3]}")
        catalogue = filled(written(done))
    return catalogue


def written(rows: list[dict]) -> list[dict]:
    """Return the rows that have an output."""
    return [row for row in rows if row["output"] is not None]


def leave(rows: list[dict], fault: str) -> None:
    """Turn the outputs of rows into suggestions, and set the fault of the rows."""
    for row in rows:
        row |= {"suggestion": row["output"], "output": None, "fault": fault, "shortened": False}


def summary(entries: list[tuple[Entry, dict[str, int]]], rows: list[dict], values: int) -> dict:
    """
    Count the entries: all, without a translation, too long, translated, shortened, left; the entries with a limit in
    the file; and the `values` that are not texts.
    """
    known, done = {row.key: row for row, _ in entries}, written(rows)
    over = sum(not fits(known[row["key"]], row["output"], row["limits"]) for row in done)
    counts = {"entries": len(entries), "other_values": values}
    counts |= {"limits_in_the_file": sum(bool(row.limits or row.limit) for row, _ in entries)}
    counts |= {"missing": sum(not row.target for row, _ in entries)}
    counts |= {"too_long": sum(not fits(row, row.target, limits) for row, limits in entries)}
    counts |= {"translated": len(done), "shortened": sum(row["shortened"] for row in done), "over_limit": over}
    return counts | {"left": len(rows) - len(done)}


def markdown(figures: dict, rows: list[dict]) -> list[str]:
    """Return the lines of report.md."""
    lines = ["# Strings within their limits", "", "| | strings |", "|---|---|"]
    lines += [f"| {name.replace('_', ' ')} | {value} |" for name, value in figures.items()]
    parts = [("Written: read them", [row for row in rows if row["output"] is not None], "output", "score")]
    parts.append(("Left as they were", [row for row in rows if row["output"] is None], "suggestion", "fault"))
    for title, own, text, why in parts:
        if own:
            lines += ["", f"## {title}", "", f"| key | max | {why} | source | {text} |", "|---|---|---|---|---|"]
        for row in own:
            most = ", ".join(f"{limit} {unit}" for unit, limit in row["limits"].items())
            values = (row["key"], most, row[why], row["source"], row[text])
            lines.append(f"| {' | '.join('' if value is None else cell(str(value)) for value in values)} |")
    return lines


def main(argv=None) -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, min_score=-0.25)
    add = parser.add_argument
    add("--source_file", help=".po file of another language: translate its msgstrs, not the msgids of input_file")
    add("--existing_file", help="file with the translations so far, for formats whose files have one language")
    add("--language", help="language of the translations in an .xcstrings file; default: en")
    add("--limits_file", help="CSV with the columns key and max, or a JSON object; overrides limits in input_file")
    add("--limit_unit", default="width", help="unit of limits_file, comments and max_factor; width: columns of a line")
    add("--max_factor", type=float, help="limit of strings without one, as a multiple of the source's size")
    add("--replace_too_long", action="store_true", help="also replace finished translations that are too long")
    add("--json_keys", nargs="+", help="keys of JSON whose values are texts, for an unknown format")
    args = parser.parse_args(argv)
    check_files(args, "input_file", "source_file", "existing_file", "limits_file")
    check_loss(args.output_file, args.input_file, args.source_file, args.limits_file)
    size("", args.limit_unit)  # this raises an error for an unknown unit
    if args.max_factor is not None and not 0 < args.max_factor < float("inf"):
        raise ValueError(f"max_factor must be a number above 0, got {args.max_factor}")
    entries, most, build = open_files(args)
    Path(args.output_file).parent.mkdir(parents=True, exist_ok=True)  # now: an error later would lose the translations
    limited = [(row, limits_of(row, most, args.limit_unit, args.max_factor)) for row in entries]
    rows = translate(to_do(limited, args.replace_too_long), fitter(args), args.min_score)
    catalogue = fill(rows, build)
    catalogue.save(args.output_file)
    figures = summary(limited, rows, catalogue.values)
    write_report(args.report_dir, markdown(figures, rows), {**figures, "rows": rows})
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items()))


def open_files(args: argparse.Namespace) -> tuple[list[Entry], dict[str, int], Callable[[], Any]]:
    """Open the files; return entries with translations so far, limits by key, and the function `build` for `fill`."""
    most = read_limits(args.limits_file)
    options = {"json_keys": args.json_keys, "language": args.language}
    other = None if args.existing_file is None else read(args.existing_file, **options)
    theirs = [] if other is None else other.entries
    catalogue = read(args.input_file, source_file=args.source_file, **options)
    if other is not None and (type(other) is not type(catalogue) or other.field == "target"):
        raise ValueError(
            f"existing_file is for formats with one language, of the kind of input_file, got {args.existing_file!r} "
            f"for {args.input_file!r}; a .po, .xlf or .xcstrings holds its own translations"
        )
    for name, named in (("limits_file", set(most)), ("existing_file", {row.key for row in theirs})):
        if unknown := sorted(named - catalogue.slots.keys()):
            raise ValueError(f"{name} has keys that input_file lacks: {', '.join(unknown[:5])}; remove them")

    def build() -> tuple[Catalogue, dict[str, Entry]]:
        catalogue = read(args.input_file, source_file=args.source_file, **options)
        places = {row.key: row for row in catalogue.entries}
        for row in theirs:
            catalogue.copy(places[row.key], other, row)
        return catalogue, places

    entries = list(build()[1].values())
    check_output(args, entries, options)
    return entries, most, build


def check_output(args: argparse.Namespace, entries: list[Entry], options: dict[str, Any]) -> None:
    """
    Raise `ValueError` if output_file has another format than input_file, or exists and cannot be read, or has finished
    translations that would be lost.
    """
    path, kind = Path(args.output_file), Path(args.input_file).suffix
    if KINDS.get(path.suffix.lower()) is not KINDS[kind.lower()]:
        raise ValueError(f"output_file must be a {kind} file as input_file is, got {args.output_file!r}")
    if not path.exists() or (args.existing_file and path.resolve() == Path(args.existing_file).resolve()):
        return
    try:
        there = read(str(path), **options)
    except (OSError, ValueError) as error:  # perhaps a slip of the person who corrected it
        raise ValueError(f"output_file exists, and cannot be read: {error}; correct or remove it") from error
    known = {(row.key, text) for row in entries for text in (row.source, row.target)}
    texts = [(row.key, getattr(row, there.field)) for row in there.entries if not row.fuzzy]
    if finished := [key for key, text in texts if text and (key, text) not in known]:
        option = "--input_file" if there.field == "target" else "--existing_file"
        raise ValueError(
            f"output_file must have no finished translations, which would be lost, got {args.output_file!r} with "
            f"{len(finished)} ({', '.join(finished[:3])}); pass it as {option}, or remove it"
        )


if __name__ == "__main__":
    run(main, "strings.py")
