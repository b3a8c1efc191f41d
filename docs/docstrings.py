"""The docstrings' sections as Markdown lists, for mkdocstrings: their types stand in backquotes, which no parser of
docstrings takes off, and the sections of the pipeline and the configurations have titles of their own."""

import re

import griffe


SECTION = re.compile(r"(Args|Fields|Attributes|Raises|Returns|Example)( .*)?:")
ITEM = re.compile(r"(?:^|(?<=\), ))(\w+)(?= \()")


def as_markdown(text: str) -> str:
    """A docstring with bold titles and a list item for each argument."""
    lines, title = [], ""
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if indent == 0 and line:
            title = line if SECTION.fullmatch(line) else ""
            lines += [f"**{line}**", ""] if title else [line]
        elif not title or not line or title.startswith(("Returns", "Example")):
            lines.append(line[4:] if title else line)
        elif indent == 4:
            lines.append("- " + ITEM.sub(r"**\1**", line.strip()))
        else:
            lines.append("  " + line.strip())
    return "\n".join(lines)


class MarkdownSections(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
