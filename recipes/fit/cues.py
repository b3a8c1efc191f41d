"""Cues of SubRip and WebVTT files: their text inside the file, its markup, and the place of each line break."""

import re
import textwrap
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path

from fitting import MARKS, columns, control_fault
from pysubs2 import SSAFile


TIMING = re.compile(r"^[^\n]*-->[^\n]*\n?", re.M)
MARKUP = re.compile(r"<[^>]*>|\{[^}]*\}")
EDGE = r"(?:<[^>]*>|\{[^}]*\}|[♪♫\s])*"  # tags, overrides such as {\an8}, notes of a song
LEAD = re.compile(r"(?:[-–—]\s*)?(?:[A-ZÄÖÜ][A-ZÄÖÜ. ]+:\s*)?")  # a dash, a speaker's name in capitals
SMALL = set(
    "a an the my your his her its our their this that these those I you he she it we they who to of in on at for with"
    " by from into about as not is are was were be been am have has had do does did will would can could should must"
    " may might and or but if than very so no don't doesn't didn't can't won't isn't wasn't I'm I'll I've".split()
)  # after which a line should not end
START = set(
    "and but or because if when while before after until although though that which who where why how so than in at"
    " for with from to of by about into without over under".split()
)  # before which it may
PARTICLE = set("off up out down back away on".split())  # of a verb, which a break would part


@dataclass
class Cue:
    """
    A cue.

    Attributes:
        start, end (`int`): Milliseconds.
        span (`tuple[int, int]`): Where its text is in the file.
        text (`str`): As in the file, lines separated by `"\\n"`.
        before, after (`str`): Markup around the whole text; columns do not count it.
        turns (`list[tuple[str, str]]`): Dash or name, and text, of each speaker.
        fault (`str`): Why the text cannot be translated, else empty.
    """

    start: int
    end: int
    span: tuple[int, int]
    text: str
    before: str = ""
    after: str = ""
    turns: list[tuple[str, str]] = field(default_factory=list)
    fault: str = ""

    def __post_init__(self):
        joined = re.sub(r"</(\w+)>\s*\n\s*<\1>", "\n", self.text)  # tags of each line become tags of the cue
        match = re.fullmatch(f"({EDGE})(.*?)({EDGE})", joined, flags=re.S)
        assert match is not None  # every part may be empty
        self.before, body, self.after = match.groups()
        if round_ := re.fullmatch(r"([\[(])([^\])]*)([\])])", body):  # a sound
            self.before, body, self.after = self.before + round_[1], round_[2], round_[3] + self.after
        if MARKUP.search(body):
            self.fault = "markup inside the text"
        if re.search(r"&#?\w+;", body):
            self.fault = "an entity inside the text"
        self.fault = self.fault or control_fault(body)
        for line in body.replace("\t", " ").split("\n"):
            lead = LEAD.match(line)[0]  # type: ignore[index]  # it matches the empty string
            if self.turns and not lead:
                self.turns[-1] = (self.turns[-1][0], f"{self.turns[-1][1]} {line}".strip())
            elif line.strip():
                lead += " " if lead.endswith(":") else ""  # of a name on a line of its own
                self.turns.append((lead, line[len(lead) :].strip()))
        self.turns = [(lead, text) for lead, text in self.turns if text]
        if self.turns and not any(re.search(r"\w", text) for _, text in self.turns):
            self.turns = []  # nothing to translate

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1000

    def written(self, lines: list[str]) -> str:
        """The text of the cue in the file with these lines."""
        return f"{self.before}{chr(10).join(lines)}{self.after}"


def read(path: str, encoding: str) -> tuple[str, list[Cue]]:
    """
    A file's text and its cues; `pysubs2` reads the times.

    Raises:
        `ValueError`: for another kind of file, a file without cues, and a cue with a blank line inside its text.
    """
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in ("srt", "vtt"):
        raise ValueError(f"subtitles must be .srt or .vtt, got {path!r}; convert them, for example with pysubs2")
    with open(path, encoding=encoding, newline="") as file:
        content = file.read()
    plain = content.replace("\r\n", "\n")
    cues = find(plain, kind)
    if not cues:
        raise ValueError(f"{path} has no cue; a cue has a line such as 00:00:01,000 --> 00:00:02,500")
    return content, cues


def find(content: str, kind: str) -> list[Cue]:
    """The cues of a file's text, lines separated by newlines."""
    events = list(SSAFile.from_string(content, format_=kind, keep_html_tags=True))
    timings = [match for match in TIMING.finditer(content)]
    if len(timings) != len(events):
        raise ValueError(f"{len(timings)} lines have -->, but {len(events)} of them two times; mend the file")
    cues = []
    for number, (timing, event) in enumerate(zip(timings, events, strict=True), 1):
        text = re.compile(r"(?:[^\n]*\S[^\n]*(?:\n|\Z))*").match(content, timing.end())[0].rstrip("\n")  # type: ignore[index]
        cues.append(Cue(event.start, event.end, (timing.end(), timing.end() + len(text)), text))
        read, number_last = event.text.replace("\\N", "\n").split(), re.sub(r"\n\d+\s*\Z", "", text)
        # pysubs2 takes a last line of digits for the number of a next cue
        if kind == "srt" and read not in (text.split(), number_last.split()):
            raise ValueError(f"cue {number} has a blank line inside its text, which ends a cue; remove it: {text!r}")
    return cues


def replace(content: str, cues: list[Cue], texts: list[str]) -> str:
    """The file with new texts; everything else is unchanged, line ends too."""
    newline = "\r\n" if "\r\n" in content else "\n"
    # where two characters became one in the text that was searched
    ends = [match.start() - k for k, match in enumerate(re.finditer("\r\n", content))]
    for cue, text in sorted(zip(cues, texts, strict=True), key=lambda pair: -pair[0].span[0]):
        if text != cue.text:
            start, end = (i + bisect_left(ends, i) for i in cue.span)
            content = content[:start] + text.replace("\n", newline) + content[end:]
    return content


def visible(text: str) -> list[str]:
    """A cue's lines without markup."""
    return [line.strip() for line in MARKUP.sub("", text).replace("\t", " ").split("\n") if line.strip()]


def break_lines(text: str, most_columns: int, most_lines: int) -> list[str] | None:
    """
    The best lines: as few as possible, after punctuation, before a conjunction or a preposition, and balanced.

    Returns:
        `list[str]`, or `None` where the text does not fit.

    >>> break_lines("She waited for an hour, but nobody came.", 30, 2)
    ['She waited for an hour,', 'but nobody came.']
    """
    words = text.split()
    for count in range(1, most_lines + 1):
        found = []
        for breaks in combinations(range(1, len(words)), count - 1):
            lines = [" ".join(words[a:b]) for a, b in pairwise((0, *breaks, len(words)))]
            widths = [columns(line) for line in lines]
            if max(widths) <= most_columns:
                cost = max(widths) - min(widths) + sum(break_cost(words, i) for i in breaks)
                found.append((cost, lines))
        if found:
            return min(found)[1]
    return None


def break_cost(words: list[str], i: int) -> int:
    """How bad a break before word `i` is, in columns of imbalance."""
    if words[i - 1][-1] in f"{MARKS},;:":
        return -12
    if words[i - 1] in SMALL or words[i - 1].lower() in SMALL:
        return 12
    if words[i] in PARTICLE:
        return 6
    return -6 if words[i].lower() in START else 0


def whole(text: str, most_columns: int) -> list[str]:
    """As many lines as the text needs."""
    return textwrap.wrap(text, most_columns, break_long_words=False, break_on_hyphens=False)
