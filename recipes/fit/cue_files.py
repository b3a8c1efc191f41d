"""Find the cues of a SubRip or WebVTT file, and replace their texts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from os.path import commonprefix
from pathlib import Path

from cues import Cue
from files import splice


# Real files have commas or dots, short or missing fractions, missing hours, and spaces.
TIME = r"(-?)(?:(\d+) ?: ?)?(\d{1,3}) ?: ?(\d{1,2})(?: ?[.,] ?(\d+))?"
TIMING = re.compile(rf"[\s\ufeff]*{TIME}\s*-->\s*{TIME}(?![\d:])")
NUMBER = re.compile(r"[\s\ufeff]*\d+\s*")
NOTE = re.compile(r"NOTE(?:[ \t]|$)")
# SubRip files that were written twice in text mode have two carriage returns before each newline.
LINE_END = {"srt": re.compile(r"\r{0,2}\n|\r"), "vtt": re.compile(r"\r\n|\n|\r")}


@dataclass
class Line:
    """A line of a file: its text, the start and end of the text, and the end of the line with its line end."""

    text: str
    start: int
    end: int
    stop: int


def read(path: str, encoding: str) -> tuple[str, list[Cue]]:
    """
    Read a file of subtitles; return its content and its cues.

    Raises:
        `ValueError`: for another kind of file, another encoding, and a file without cues.
    """
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in LINE_END:
        raise ValueError(f"subtitles must be .srt or .vtt, got {path!r}; convert them, for example with pysubs2")
    raw = Path(path).read_bytes()
    try:
        content = raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path} must be {encoding}, but line {line} has the byte 0x{raw[error.start]:02X}; "
            "pass its --encoding, for example cp1252 or utf-16"
        ) from error
    if content.encode(encoding, errors="replace") != raw:
        raise ValueError(
            f"{path} does not keep its bytes when it is read and written as {encoding}; "
            "pass the exact --encoding, for example utf-16-be for utf-16"
        )
    cues = find(content, kind)
    if not cues and "\0" in content:
        raise ValueError(f"{path} has U+0000 and no cue; pass its --encoding, for example utf-16-le")
    if not cues:
        raise ValueError(f"{path} has no cue; a cue has a line such as 00:00:01,000 --> 00:00:02,500")
    return content, cues


def find(content: str, kind: str) -> list[Cue]:
    """Return the cues of a file's text."""
    lines = split(content, kind)
    cues = []
    for timing, first, end in (subrip if kind == "srt" else webvtt)(lines):
        while first < end and not lines[first].text.strip():
            first += 1
        while first < end and not lines[end - 1].text.strip():
            end -= 1
        span = (lines[first].start, lines[end - 1].end) if first < end else (lines[timing].stop,) * 2
        match = TIMING.match(lines[timing].text)
        assert match is not None  # `subrip` and `webvtt` return only such lines
        times = milliseconds(*match.groups()[:5]), milliseconds(*match.groups()[5:])
        text = "\n".join(line.text for line in lines[first:end])
        newline = content[lines[timing].end : lines[timing].stop] or "\n"
        cues.append(Cue(*times, span, text, kind=kind, newline=newline, line=timing + 1))
    return cues


def split(content: str, kind: str) -> list[Line]:
    """Return the lines of a file."""
    lines, start = [], 0
    for match in LINE_END[kind].finditer(content):
        lines.append(Line(content[start : match.start()], start, match.start(), match.end()))
        start = match.end()
    return [*lines, Line(content[start:], start, len(content), len(content))]


def subrip(lines: Sequence[Line]) -> list[tuple[int, int, int]]:
    """Return (timing line, first line, end) of each cue; it ends at the next timing, or at the number above that."""
    timings = [i for i, line in enumerate(lines) if TIMING.match(line.text)]
    found = []
    for timing, end in pairwise([*timings, len(lines)]):
        if end < len(lines):
            above = end - 1
            while above > timing and not lines[above].text.strip():
                above -= 1
            # A number belongs to the timing below it. If an empty line is between them, one must also be above it.
            alone = above == end - 1 or not lines[above - 1].text.strip()
            if above > timing and alone and NUMBER.fullmatch(lines[above].text):
                end = above
        found.append((timing, timing + 1, end))
    return found


def webvtt(lines: Sequence[Line]) -> list[tuple[int, int, int]]:
    """
    Return (timing line, first line, end) of each cue.

    Only an empty line or a line with `-->` ends a text, as in the parser of the W3C recommendation. Two differences
    keep the author's meaning: a `NOTE` ends at the next empty line, even if it has a timing; and a number directly
    above a timing is the identifier of the cue, even without an empty line before the number.
    """

    def skip(i: int, arrows: bool = False) -> int:
        while i < len(lines) and lines[i].text and (arrows or "-->" not in lines[i].text):
            i += 1
        return i

    found = []
    i = skip(1) if lines[0].text.removeprefix("\ufeff").startswith("WEBVTT") else 0
    while i < len(lines):
        if not lines[i].text:
            i += 1
        elif NOTE.match(lines[i].text):
            i = skip(i, arrows=True)
        elif (timing := skip(i)) == len(lines) or timing > i + 1 or not lines[timing].text:
            i = timing  # STYLE, REGION, or a block that players ignore
        else:
            i = skip(timing + 1)
            if i < len(lines) and lines[i].text and i > timing + 1 and NUMBER.fullmatch(lines[i - 1].text):
                i -= 1
            if TIMING.match(lines[timing].text):
                found.append((timing, timing + 1, i))
    return found


def milliseconds(sign: str, hours: str | None, minutes: str, seconds: str, fraction: str | None) -> int:
    """
    Return a time in milliseconds.

    >>> milliseconds("", "1", "02", "03", "5")
    3723500
    """
    whole = (int(hours or 0) * 60 + int(minutes)) * 60 + int(seconds)
    value = whole * 1000 + int((fraction or "0").ljust(3, "0")[:3])
    return -value if sign else value


def left_out(content: str, cues: Sequence[Cue], kind: str) -> list[int]:
    """Return the numbers of the lines with `-->` that are neither the timing of a cue nor inside its text."""
    timings = {cue.line for cue in cues}
    found = [(n, line.start) for n, line in enumerate(split(content, kind), 1) if "-->" in line.text]
    spans = [cue.span for cue in cues if "-->" in cue.text]
    return [n for n, at in found if n not in timings and not any(start <= at < end for start, end in spans)]


def replace(content: str, cues: Sequence[Cue], texts: Sequence[str]) -> str:
    """Return the content of the file with new texts of the cues; all other characters stay."""
    pairs = zip(cues, texts, strict=True)
    return splice(content, [(cue.span, text.replace("\n", cue.newline)) for cue, text in pairs if text != cue.text])


def difference(content: str, cues: Sequence[Cue], texts: Sequence[str]) -> tuple[int, str] | None:
    """
    Read the file with new texts again.

    Returns:
        The index of the first cue that would be read differently from the given text, and the difference; or `None`.
        The characters outside the texts are compared too.
    """
    result = replace(content, cues, texts)
    again = find(result, cues[0].kind)
    for i, (cue, text, new) in enumerate(zip(cues, texts, again, strict=False)):
        if (new.start, new.end) != (cue.start, cue.end):
            return i, f"its times would be {new.start} and {new.end} ms"
        if new.text != text:
            return i, f"its text would be read as {new.text!r}"
        if text != cue.text and new.fault:
            return i, f"its text would have {new.fault}"
    if len(again) != len(cues):
        return min(len(again), len(cues)) - 1, f"{len(again)} cues would be read, not {len(cues)}"
    before = splice(result, [(new.span, content[slice(*cue.span)]) for cue, new in zip(cues, again, strict=True)])
    if before != content:
        at = len(commonprefix([before, content]))
        i = max((i for i, cue in enumerate(cues) if cue.span[0] <= at), default=0)
        return i, f"{content[at : at + 20]!r} around its text would be {before[at : at + 20]!r}"
    return None
