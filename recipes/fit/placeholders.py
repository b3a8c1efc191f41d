"""Protect the parts that a model must not change: placeholders, tags, entities, escapes, accelerators.

A string is cut into pieces. Placeholders at the edge of a piece stay outside the piece. Inside a piece, names and
numbers stand in for placeholders, because a model copies these. `restore` counts the stand-ins in the output.
"""

import re
from collections import Counter
from dataclasses import dataclass

from fitting import control_fault, sentences


ARGUMENT = (
    r"%(?:\(\w+\)|\d+\$)?[-+#0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j|t|L)?[diouxXeEfFgGcrsapn]"
    r"|%(?:\d+\$)?@|%<\w+>[-+#0\d.]*[a-z]"  # Objective-C, Ruby
    r"|%%|%[A-Z]\w*%|%\d+"  # percent signs, Windows variables, Qt
    r"|\{\{[^}]*\}\}|[$#%]?\{[^{}]*\}"  # templates, str.format, ICU arguments
    r"|\$[A-Za-z_]\w*\$"  # web extensions
)
PLACEHOLDER = re.compile(
    r"<xliff:g\b[^<>]*>[^<>]*</xliff:g>"  # Android marks text that must not be translated
    rf"|<\w[^<>]*>(?:{ARGUMENT})</\w+>|{ARGUMENT}"  # an argument may have tags around it
    r"|<[^<>]+>|&#?\w+;"  # tags, entities
    r"|https?://[^\s<>]+|[^\s<>]+@[^\s<>]+\.\w+"  # addresses
)
COUNT = re.compile(r"%(?:\(\w+\)|\d+\$)?[-+#0]*\d*(?:\.\d+)?[hlzjt]*[diuf]|\{n\}|\{count\}|\{num\w*\}")
# an argument without a name or a number, which takes the next value of the program
IN_TURN = re.compile(r"%[-+#0\d.*]*[a-zA-Z@]|\{[:!}]")
ACCELERATOR = re.compile(r"&(?=\w)|(?<!\w)_(?=\w)|(?<=\w)_(?=[A-Za-zÄÖÜäöü])")
LINE = re.compile(r"((?:\r?\n|\t)+)")
# signs that look like an argument in a syntax that `ARGUMENT` lacks
UNKNOWN = re.compile(
    r"[%#$@!:~^&](?=[^\W\d]|[{(\[<])|([~*^+=`])\w[\w.-]*\1|\$\d|%['+#*-]|% +[-+#\d.]*[diouxXeEfFgGcrsap](?![\w'’])"
    r"|\[\[|\]\]|\[\w[^\]]*\]|''|__(?=[^\W_])|(?<=[^\W_])__|\||\\"
)
# one word with signs inside: the format of a date, a language, a file, or the address of a page
NAME = re.compile(
    r"[a-z]{2,3}[-_][A-Z]{2}|[dDmMyYhHsSEa]{1,4}(?:[-/.: ]+[dDmMyYhHsSEa]{1,4})+|\S*[\w}][.=/]+[^\W\d_A-ZÄÖÜ]\S*"
)
# a translation must keep these signs; punctuation differs between languages
SIGNS = re.compile(r"[^\w\s.,;:!?…'\"„“”‚‘’«»‹›–—¿¡-]+|_+")
# these parts stay outside a piece: tags, punctuation, an argument before or after a colon
BEFORE = rf"(?:{ARGUMENT})(?=[\W_]*:)|[^\w%{{<&$»«„“”\"'‚‘’›‹]"
AFTER = rf":[^\w%{{<&$]*(?:{PLACEHOLDER.pattern})|[^\w%@{{}}<>&$;.!?…:,»«„“”\"'‚‘’›‹]"
QUOTES = "„“”»«\"'‚‘’›‹"
# the quotes belong to the placeholder
QUOTED = re.compile(rf"[{QUOTES}](?:{PLACEHOLDER.pattern})[{QUOTES}]|{PLACEHOLDER.pattern}")
# stand-ins in the German or French source, tried in this order; `WRITTEN` has other forms in English
NAMES = [("Tom", "Maria", "Paris"), ("Maria", "Tom", "Boston"), ("Paris", "Boston", "Tom")]
NUMBERS = [("50", "100", "30"), ("100", "50", "20"), ("30", "20", "100")]
WRITTEN = {"Maria": "Mary"}


class Unprotectable(ValueError):
    """The error for a string that cannot be split into pieces and restored."""


@dataclass
class Piece:
    """A piece of text: the edges `before` and `after`, its sentences, and `inside`: stand-in -> placeholder."""

    before: str
    texts: list[str]
    after: str
    inside: dict[str, str]


def everything(text: str) -> Counter:
    """
    Count the parts of a text that its translation must keep: placeholders, tags, line ends, signs, numbers.

    >>> dict(everything("100 % of {name}"))
    {'{name}': 1, '%': 1, '{': 1, '}': 1, '100': 1}
    >>> everything("1.000,5") == everything("1,000.5"), everything("1,5") == everything("15")
    (True, False)
    """
    kept = [match[0] for match in PLACEHOLDER.finditer(text)] + re.findall(r"\r?\n|\t", text) + SIGNS.findall(text)
    numbers = re.findall(r"\d+(?:[.,]\d+)*", text)  # without thousands separators, and with a decimal point
    return Counter(kept + [re.sub(r"[.,](?=\d{3}(?!\d))", "", number).replace(",", ".") for number in numbers])


def mark_of(text: str) -> str:
    """Return the mark of the accelerator in a text, `&` or `_`; `""` without an accelerator."""
    found = [m for m in ACCELERATOR.finditer(text) if not any(a <= m.start() < b for a, b in spans(text))]
    return found[0][0] if len(found) == 1 and text.count(found[0][0]) == 1 else ""


def protect(text: str, variant: int = 0, marked: bool = True) -> tuple[list[Piece | str], str]:
    """
    Protect a string: split it into pieces with stand-ins.

    Args:
        variant (`int`): Number of the set of stand-ins, below `len(NAMES)`.
        marked (`bool`): Whether `&` or `_` before a letter marks an accelerator, as in .po files.

    Returns: The pieces, with the line ends between them, and the mark of the accelerator, `""` without one.

    Raises:
        `Unprotectable`: for more placeholders in a piece than stand-ins, a line break inside a sentence, a name, signs
            that may be an unknown placeholder, and a control character.
    """
    if fault := control_fault(text.replace("\r", "")):
        raise Unprotectable(fault)
    if NAME.fullmatch(text.strip()):
        raise Unprotectable("a name or a format, not a text")
    mark = mark_of(text) if marked else ""
    text = text.replace(mark, "") if mark else text
    if not marked and re.search(r"_(?=[^\W_])|(?<=[^\W_])_", without(text)):
        raise Unprotectable("a name with an underscore")
    braces = PLACEHOLDER.sub(lambda match: ("{" if match[0][0] == "{" else " ") * len(match[0]), text)
    if signs := UNKNOWN.search(braces):
        held = text[signs.start() : signs.end() + 1]
        raise Unprotectable(f"signs that may be an unknown placeholder: {held.strip()}")
    parts: list[Piece | str] = []
    lines = LINE.split(text)
    for i, line in enumerate(lines):
        if i % 2 or not line:
            parts.append(line)
            continue
        if i + 2 < len(lines) and lines[i + 1] in ("\n", "\r\n") and re.search(r"[\w,]\s*$", line):
            if re.match(r"\s*[a-zäöü]", lines[i + 2]):
                raise Unprotectable("a line break inside a sentence")
        parts.append(piece(line, variant))
    return parts, mark


def spans(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in PLACEHOLDER.finditer(text)]


def piece(line: str, variant: int) -> Piece | str:
    """Build the piece of a line; return a line without a word unchanged."""
    before, core, after = edges(line, "|<[^<>]+>")
    if re.findall(r"<(\w+)[^<>/]*>", before) != re.findall(r"</(\w+)>", after)[::-1]:
        before, core, after = edges(line, "")  # the tags surround a part of the sentence
    if not re.search(r"[^\W\d_]{2}", without(core)):
        return line
    names, numbers = list(NAMES[variant]), list(NUMBERS[variant])
    if set("{}<>") & set(without(core)):
        raise Unprotectable("a brace or an angle bracket that is not a whole placeholder")
    inside: dict[str, str] = {}

    def stand_in(match: re.Match) -> str:
        held = match[0].strip(QUOTES)
        pool = numbers if COUNT.fullmatch(re.sub(r"<[^<>]+>", "", held)) else names
        if not pool or re.match(r"<[^<>]+>$|&|%%|https?:|[^\s<>%]+@", held):
            raise Unprotectable("a tag, an entity or too many placeholders inside a sentence")
        name = pool.pop(0)
        if re.search(rf"\b{name}\b", core):
            raise Unprotectable(f"the text has the word {name}, which stands in for a placeholder")
        german = match[0] != held and match[0][0] in "„»‚›"
        inside[WRITTEN.get(name, name)] = f'"{held}"' if german else match[0]
        return name

    return Piece(before, sentences(QUOTED.sub(stand_in, core)), after, inside)


def edges(line: str, tags: str) -> tuple[str, str, str]:
    """Split a line into the edge before a piece, the piece, and the edge after it."""
    first, last = re.compile(rf"(?:{BEFORE}{tags})*"), re.compile(rf"(?:{AFTER}{tags})*\Z")
    start = max(match.end() for match in [first.match(line)] if match)  # both patterns match the empty string
    end = start + max(match.start() for match in [last.search(line[start:])] if match)
    return line[:start], line[start:end], line[end:]


def without(text: str) -> str:
    """Return a text with each placeholder replaced by spaces of the same length."""
    return PLACEHOLDER.sub(lambda match: " " * len(match[0]), text)


def restore(parts: list[Piece | str], outputs: list[str], mark: str, source: str) -> str | None:
    """
    Restore a string from its pieces and outputs.

    Args:
        outputs (`list[str]`): The translation of each sentence of the pieces.
        source (`str`): The string that `protect` has split.

    Returns:
        The string, or `None` if it does not have the same placeholders, signs and numbers as the source, or if
        arguments such as `%s`, which a program fills in their order, have another order.
    """
    rest, written = list(outputs), []
    for part in parts:
        if isinstance(part, str):
            written.append(part)
            continue
        text, rest = " ".join(rest[: len(part.texts)]), rest[len(part.texts) :]
        found = {rf"(?<![\w]){name}(?![\w.,]\d|\w|')": placeholder for name, placeholder in part.inside.items()}
        in_turn = [pattern for pattern, placeholder in found.items() if IN_TURN.search(placeholder)]
        places = [match.start() for pattern in in_turn if (match := re.search(pattern, text))]
        if places != sorted(places):
            return None
        for pattern, placeholder in found.items():
            text, times = re.subn(pattern, lambda _, p=placeholder: p, text)  # type: ignore[misc]
            if times != 1:
                return None
        written.append(part.before + text + part.after)
    result = "".join(written)
    if everything(result) != everything(source.replace(mark, "") if mark else source):
        return None
    return accelerate(result, source, mark) if mark else result


def accelerate(text: str, source: str, mark: str) -> str | None:
    """Put the accelerator's mark before the same letter as in the source, or else before the first free letter."""
    key = source[source.index(mark) + 1]
    free = [m.start() for m in re.finditer(r"[^\W\d_]", without(text))]
    places = [i for i in free if text[i].lower() == key.lower()] or free
    return text[: places[0]] + mark + text[places[0] :] if places else None
