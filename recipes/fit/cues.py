"""Read and write the text of a cue: its markup, its speakers, and its line breaks."""

import html
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from fitting import MARKS, columns, control_fault


SIGNS = "♩♪♫♬"  # signs of a song
# Tags, {b}, overrides such as {\an8}, and codes of MicroDVD such as {y:i}; other braces are text.
MARKUP = re.compile(r"<[^<>]*>|\{(?:(?:\\|[A-Za-z]:)[^{}]*|/?[biu])\}")
EDGE = rf"(?:{MARKUP.pattern}|\\[Nh]|&(?:nbsp|lrm|rlm);|[{SIGNS}\s])*"
ENTITY = re.compile(r"&#?\w+;")
BACKSLASH = re.compile(r"(?<!\w)[A-Za-z]:\\|\\(?![Nh])")  # matches a path, or an escape other than \N and \h
TIMES = re.compile(r"\d:\d\d.*-->|-->.*\d:\d\d|\d:\d\d:\d\d.*\d:\d\d:\d\d")  # matches an invalid timing
VOICE = r"<v[.\s][^<>]*>"  # a tag of WebVTT that names a speaker
LEAD = re.compile(rf"(?:{VOICE})?(?:(?:[-‐‑–—―]|>>+)\s*)?(?:[{SIGNS}]\s*)*")  # a voice, a dash and signs of a song
NAME = re.compile(r"([^\W\d_](?:\w|[\s.'’&/()#-]|[\u0300-\u036f])+)[:：](?![\d/])\s*")
TAIL = re.compile(rf"[{SIGNS}\s]*(?:</v>)?\Z")
LONGEST = 2000  # characters of a text; a longer text is not a subtitle, and the patterns above are slow on it
SMALL = set(
    "a an the my your his her its our their this that these those I you he she it we they who to of in on at for with"
    " by from into about as not is are was were be been am have has had do does did will would can could should must"
    " may might and or but if than very so no don't doesn't didn't can't won't isn't wasn't I'm I'll I've".split()
)  # a line should not end after these words
START = set(
    "and but or because if when while before after until although though that which who where why how so than in at"
    " for with from to of by about into without over under".split()
)  # a line may end before these words
PARTICLE = set("off up out down back away on".split())  # a break before these would split a verb


class Turn(NamedTuple):
    """The text of one speaker in a cue. `lead` is a voice, dash, name or song sign before it; `tail` follows it."""

    lead: str
    text: str
    tail: str = ""


@dataclass
class Cue:
    """
    A cue.

    Attributes:
        start, end (`int`): Milliseconds.
        span (`tuple[int, int]`): Start and end of the text in the file.
        text (`str`): The text in the file, with lines separated by `"\\n"`.
        kind (`str`): `"srt"` or `"vtt"`.
        newline (`str`): The line end of the file after the timing.
        line (`int`): The line number of the timing.
        before, after (`str`): Markup, brackets and song signs around the whole text.
        turns (`list[Turn]`): The text of each speaker, or each line of a song.
        fault (`str`): The reason why the text cannot be translated, or an empty text.
    """

    start: int
    end: int
    span: tuple[int, int]
    text: str
    kind: str = "srt"
    newline: str = "\n"
    line: int = 0
    before: str = ""
    after: str = ""
    turns: list[Turn] = field(default_factory=list)
    fault: str = ""

    def __post_init__(self):
        if len(self.text) > LONGEST:
            self.fault = f"more than {LONGEST} characters"
            return
        joined = re.sub(r"</(\w+)>\s*\n\s*(<\1\b[^<>]*>)", _joined, self.text)
        match = re.fullmatch(f"({EDGE})(.*?)({EDGE})", joined, flags=re.S)
        assert match is not None  # every part may be empty, so the pattern always matches
        self.before, body, self.after = match.groups()
        if round_ := re.fullmatch(r"([\[(])([^\])]*)([\])])", body):  # brackets around the whole text mean a sound
            self.before, body, self.after = self.before + round_[1], round_[2], round_[3] + self.after
        self.fault = self._fault(body)
        self._take_turns(self._decoded(body))

    def _fault(self, body: str) -> str:
        """Return the reason why a text cannot be translated, or an empty text."""
        entities, bare = ENTITY.findall(body), re.sub(rf"(?m)^{VOICE}|</v>$", "", body)
        if "\n\n" in body:
            return "an empty line inside the text"
        if TIMES.search(body):
            return "times inside the text"
        if MARKUP.search(bare) or "<" in bare:
            return "markup inside the text"
        unknown = self.kind == "srt" or any(html.unescape(entity) == entity for entity in entities)
        if entities and (unknown or re.search("</?v", self._decoded(bare))):  # the text would become a voice
            return "an entity inside the text"
        if BACKSLASH.search(body):
            return "a backslash inside the text"
        return control_fault(self._decoded(body))

    def _decoded(self, text: str) -> str:
        """Decode the escapes of a text's format."""
        text = text.replace("\\N", "\n").replace("\\h", " ").replace("\t", " ")
        return html.unescape(text) if self.kind == "vtt" else text

    def _take_turns(self, text: str) -> None:
        song = any(sign in self.before + self.after for sign in SIGNS)
        for line in text.split("\n"):
            lead = lead_of(line)
            said = line[len(lead) :].strip()
            tail = TAIL.search(said)[0]  # type: ignore[index]  # It matches the empty text.
            said = said.removesuffix(tail)
            last = self.turns[-1] if self.turns else None
            if last and not last.text and last.lead.endswith(": "):  # the name is on its own line
                self.turns[-1] = Turn(last.lead + lead, said, tail)
            elif last and not lead and not last.tail and not song:
                self.turns[-1] = Turn(last.lead, f"{last.text} {said}".strip(), tail)
            elif line.strip():
                self.turns.append(Turn(lead + " " if lead.endswith((":", "：")) else lead, said, tail))
        if not self.fault and any(re.search(r"\w", turn.lead) for turn in self.turns if not turn.text):
            self.fault = "a name without a text"
        self.turns = [turn for turn in self.turns if turn.text]
        if self.turns and not any(re.search(r"\w", turn.text) for turn in self.turns):
            self.turns = []  # there is nothing to translate

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1000

    @property
    def edge(self) -> int:
        """Return the number of columns of the brackets and signs around the text."""
        return columns(self._decoded(MARKUP.sub("", self.before + self.after)).replace("\n", " ").strip())

    def written(self, lines: list[str]) -> str:
        """Return these lines as the text of the cue in the file, with its markup."""
        newline = "\\N" if "\\N" in self.text and "\n" not in self.text else "\n"
        escaped = [_escaped(line) for line in lines] if self.kind == "vtt" else lines
        return f"{self.before}{newline.join(escaped)}{self.after}"

    def shown(self, lines: list[str] | None = None) -> list[str]:
        """Return the visible lines of the cue, or of the cue with these lines."""
        text = self._decoded(MARKUP.sub("", self.text if lines is None else self.written(lines)))
        return [line.strip() for line in text.split("\n") if line.strip()]


def _joined(match: re.Match) -> str:
    """Return a line end instead of a tag that ends and begins again in the next line, so that one tag has both."""
    before = re.findall(rf"<{match[1]}\b[^<>]*>", match.string[: match.start()])
    return "\n" if before[-1:] == [match[2]] else match[0]


def _escaped(line: str) -> str:
    """Escape a line for WebVTT, except the tags of a voice."""
    match = re.fullmatch(rf"({VOICE})?(.*?)(</v>)?", line, re.S)
    assert match is not None  # every part may be empty, so the pattern always matches
    return (match[1] or "") + html.escape(match[2], quote=False) + (match[3] or "")


def lead_of(line: str) -> str:
    """
    Return the beginning of a line: a dash, song signs, and a name in capital letters, each optional.

    >>> lead_of("- HÉLÈNE : Bonjour"), lead_of("♪ La la"), lead_of("Um 10:30 Uhr"), lead_of("ИВАН: Да")
    ('- HÉLÈNE : ', '♪ ', '', 'ИВАН: ')
    """
    lead = LEAD.match(line)[0]  # type: ignore[index]  # It matches the empty text.
    name = NAME.match(line, len(lead))
    capitals = name is not None and name[1][0].isupper() and not any(c.islower() and c != "ß" for c in name[1])
    return lead + name[0] if name is not None and capitals else lead


def break_lines(text: str, most_columns: int, most_lines: int) -> list[str] | None:
    """
    Break a text into lines: as few lines as possible, of similar widths, with breaks after punctuation or before a
    conjunction or a preposition.

    Returns:
        `list[str]`, or `None` if the text does not fit.

    >>> break_lines("She waited for an hour, but nobody came.", 30, 2)
    ['She waited for an hour,', 'but nobody came.']
    """
    words = text.split()
    for count in range(1, most_lines + 1):
        found = []
        for breaks in breaks_of(words, most_columns, count):
            lines = [" ".join(words[a:b]) for a, b in pairwise((0, *breaks, len(words)))]
            widths = [columns(line) for line in lines]
            found.append((max(widths) - min(widths) + sum(break_cost(words, i) for i in breaks), lines))
        if found:
            return min(found)[1]
    return None


def breaks_of(words: list[str], most_columns: int, count: int, start: int = 0) -> Iterator[tuple[int, ...]]:
    """Yield each way to break the words from `start` into `count` lines of at most `most_columns`."""
    if columns(" ".join(words[start:])) > most_columns * count + count - 1:
        return
    if count == 1:
        yield ()
        return
    for end in range(start + 1, len(words) - count + 2):
        if columns(" ".join(words[start:end])) > most_columns:
            return
        for rest in breaks_of(words, most_columns, count - 1, end):
            yield end, *rest


def break_cost(words: list[str], i: int) -> int:
    """Return the cost of a line break before word `i`, in columns; a negative cost marks a good place."""
    if words[i - 1][-1] in f"{MARKS},;:":
        return -12
    if words[i - 1] in SMALL or words[i - 1].lower() in SMALL:
        return 12
    if words[i] in PARTICLE:
        return 6
    return -6 if words[i].lower() in START else 0


def whole(text: str, most_columns: int) -> list[str]:
    """Break a text into as many lines as it needs."""
    return textwrap.wrap(text, most_columns, break_long_words=False, break_on_hyphens=False)
