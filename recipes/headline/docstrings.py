"""Mine (body, one-line summary) pairs from the docstrings of the installed packages and the standard library.

    python recipes/headline/docstrings.py --output_dir DIR

Writes `DIR/train.jsonl` and `DIR/test.jsonl`, one `{"source": ..., "target": ..., "package": ...}` a line. No package
has rows in both. The files are parsed, never imported, so mining runs none of the packages' code.
"""

import argparse
import ast
import json
import os
import re
import sys
import sysconfig
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from inspect import cleandoc
from itertools import zip_longest
from pathlib import Path

from tqdm.auto import tqdm  # type: ignore[import-untyped]


MAX_FILE_BYTES = 1_000_000  # larger files are generated tables: slow to parse, nothing to read
TARGET_CHARS, JOINED_CHARS, BODY_WORDS = (10, 80), 100, (15, 120)
# Site-packages lies inside the standard library when there is no virtual environment; vendored copies repeat packages.
SKIPPED_DIRS = {"__pycache__", "test", "tests", "idle_test", "site-packages", "dist-packages", "_vendor", "vendored"}

HEADER = re.compile(
    r"(args|arguments|parameters?|params|attributes|returns?|yields?|raises|warns|warnings?|examples?|usages?|notes?"
    r"|references?|see also|keyword arg\w*|inputs?|outputs?|methods|properties|shape|todo|tips?|important|version\w*"
    r"|expected \w+|other parameters|explanation|doctests?|tests?|options|syntax|copyright|authors?|licen[sc]e)\b"
    r"( ?\([^)]*\))?( ?:.*|\s*)",
    re.IGNORECASE,
)
# Doctests, underlines, fields, directives, fences, tables, list items, markup: prose has ended.
NOT_PROSE = re.compile(r">>>|([-=~^*#+_.`])\1{2,}|[:@]\w+[^:`]*:(?!`)|\.\. |[|+<\[{$#%]|([-*•]|\(?(\d+|[a-zA-Z])[.)]) |\S+::$")
CODE = re.compile(r"[=|<>{}\[\]\\^$#@]|->|\w\((?!s\))\w|::|https?:|\w+\.\w+\(|\b(copyright|licen[sc]e|todo|fixme)\b", re.I)
UNDERLINE = re.compile(r"\s*([-=~^*#])\1{2,}\s*")
SENTENCE_END = re.compile(r"""[.!?][)\]"'`*]*$""")
WORD = re.compile(r"[\W_]*[A-Za-z]+([-'’][A-Za-z]+)*[\W_]*")


def is_prose(text: str, min_share: float) -> bool:
    """Whether at least `min_share` of the words are plain words and nothing in `text` looks like code."""
    words = text.split()
    plain = sum(WORD.fullmatch(word) is not None for word in words)
    return plain >= max(3.0, min_share * len(words)) and CODE.search(text) is None


def body_of(lines: Sequence[str]) -> str:
    """Return the prose paragraphs at the start of `lines`, as many as fit in a body, joined by a space."""
    paragraphs: list[list[str]] = [[]]
    for line, following in zip_longest(lines, lines[1:], fillvalue=""):
        if line[:1].isspace() or HEADER.fullmatch(line) or NOT_PROSE.match(line) or UNDERLINE.fullmatch(following):
            break
        paragraphs[-1].extend(line.split())
        if not line:
            paragraphs.append([])
    body: list[str] = []
    for words in filter(None, paragraphs):
        text = " ".join(words)
        # A paragraph that does not end like a sentence is a heading, or leads to the list or the code left out.
        if len(body) + len(words) > BODY_WORDS[1] or not SENTENCE_END.search(text) or not is_prose(text, 0.8):
            break
        body += words
    return " ".join(body)


def pair_of(docstring: str) -> tuple[str, str] | None:
    """Return the (source, target) pair in `docstring`, or `None` if its summary or its body is not usable prose."""
    lines = [line.rstrip() for line in cleandoc(docstring).splitlines()]
    end = lines.index("") if "" in lines else len(lines)
    target = " ".join(" ".join(lines[:end]).split())
    low, high = TARGET_CHARS
    if not low <= len(target) <= (high if end == 1 else JOINED_CHARS) or target.endswith((":", ",")):
        return None
    if not target[0].isalpha() or HEADER.fullmatch(target) or not is_prose(target, 0.7):
        return None
    source = body_of(lines[end:])
    return (source, target) if len(source.split()) >= BODY_WORDS[0] else None


def docstrings_in(node: ast.AST) -> Iterator[str]:
    """Yield the docstrings of `node` and of what is defined in it."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node, clean=False)
        if docstring:
            yield docstring
    # Definitions are statements, so expressions (nearly all of the tree) need no visit.
    for field in ("body", "orelse", "handlers", "finalbody"):
        children = getattr(node, field, None)
        for child in children if isinstance(children, list) else []:
            yield from docstrings_in(child)


def python_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield (top-level package name, path) of the files worth parsing under `root`."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name not in SKIPPED_DIRS)
        for name in sorted(names):
            path = Path(folder, name)
            if name.endswith(".py") and not name.startswith("test_") and path.stat().st_size <= MAX_FILE_BYTES:
                yield path.relative_to(root).parts[0].removesuffix(".py"), path


def mine(paths: Iterable[str | Path] | None = None, progress: bool = True) -> list[dict[str, str]]:
    """
    Mine the docstrings of all the Python files under some folders.

    Args:
        paths (`Iterable[str | Path]`, *optional*):
            Folders whose children are packages. Defaults to the standard library and the site-packages.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show a progress bar, on terminals only.

    Returns:
        `list[dict[str, str]]`: Sorted rows with the keys `"source"`, `"target"` and `"package"`.
    """
    if paths is None:
        paths = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    roots = list(dict.fromkeys(Path(path).resolve() for path in paths))
    files = [file for root in roots for file in python_files(root)]
    rows: dict[str, dict[str, str]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # parsing warns about the invalid escapes in other people's strings
        for package, path in tqdm(files, desc="Mining docstrings", unit="file", disable=None if progress else True):
            try:
                text = path.read_text(encoding="utf-8-sig")
                if '"""' not in text and "'''" not in text:
                    continue
                found = list(docstrings_in(ast.parse(text)))
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                continue  # templates, other encodings, code for other versions of Python
            for source, target in filter(None, map(pair_of, found)):
                folded = re.sub(r"[\W\d_]+", " ", f"{target} {source}".lower())
                rows.setdefault(folded, {"source": source, "target": target, "package": package})
    return sorted(rows.values(), key=lambda row: (row["package"], row["target"], row["source"]))
