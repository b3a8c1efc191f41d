"""Mine (body, one-line summary) pairs from the docstrings of the installed packages and the standard library.

    python recipes/headline/docstrings.py --output_dir DIR

The script writes `DIR/train.jsonl` and `DIR/test.jsonl`, with no package in both. It parses files and imports none.
"""

import argparse
import ast
import json
import re
import sysconfig
import textwrap
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from inspect import cleandoc
from itertools import chain, takewhile
from pathlib import Path

from tqdm.auto import tqdm  # type: ignore[import-untyped]


Row = dict[str, str]
TARGET_CHARS, JOINED_CHARS, BODY_WORDS = (10, 80), 100, (15, 120)
# Site-packages is inside the standard library if there is no virtual environment; vendored copies repeat packages.
SKIPPED_DIRS = {"__pycache__", "test", "tests", "idle_test", "site-packages", "dist-packages", "_vendor", "vendored"}
HEADER = re.compile(
    r"(?i:args|arguments|parameters?|params|attributes|returns?|yields?|raises|warns|warnings?|examples?|usages?|notes?"
    r"|references?|see also|keyword arg\w*|inputs?|outputs?|methods|properties|shape|todo|tips?|important|version\w*"
    r"|expected \w+|explanation|doctests?|tests?|options|copyright|authors?|licen[sc]e)( ?\([^)]*\))?( ?:.*)?"
)
# Indented lines, doctests, underlines, fields, directives, fences, tables, markup and list items end the prose.
NOT_PROSE = re.compile(r"\s|>>>|([-=~^*#+_.`])\1{2,}|[:@]\w+[^:`]*:(?!`)|\.\. |[|+<\[{$#%]|([-*•]|\(?\w\d?[.)]) ")
CODE = re.compile(r"[=|<>{}\[\]\\^$#@]|~~|---|\*\*\*|\w\((?!s\))\w|::|https?:|(?i:copyright|licen[sc]e\b|todo|fixme)")
WORD = re.compile(r"[\W_]*[A-Za-z]+([-'’][A-Za-z]+)*[\W_]*")


def is_prose(text: str, min_share: float) -> bool:
    """Return whether at least `min_share` of the words are plain words and nothing in `text` looks like code."""
    words = text.split()
    plain = sum(WORD.fullmatch(word) is not None for word in words)
    return plain >= max(3, min_share * len(words)) and CODE.search(text) is None


def body_of(lines: Sequence[str]) -> str:
    """Return the prose paragraphs at the start of `lines`, as many as fit in a body, joined by a space."""
    prose = takewhile(lambda line: not (NOT_PROSE.match(line) or HEADER.fullmatch(line)), lines)
    body: list[str] = []
    for paragraph in filter(None, map(str.strip, "\n".join(prose).split("\n\n"))):
        words = paragraph.split()
        # A paragraph that does not end like a sentence is a heading, or introduces a list or code that is dropped.
        sentence = paragraph.rstrip(")\"'`*").endswith((".", "!", "?"))
        if not sentence or len(body) + len(words) > BODY_WORDS[1] or not is_prose(paragraph, 0.8):
            break
        body += words
    return " ".join(body)


def pair_of(docstring: str) -> tuple[str, str] | None:
    """Return the (source, target) pair in `docstring`, or `None` if its summary or its body is not usable prose."""
    lines = [line.rstrip() for line in cleandoc(docstring).splitlines()]
    end = lines.index("") if "" in lines else len(lines)
    target = " ".join(" ".join(lines[:end]).split())
    if not TARGET_CHARS[0] <= len(target) <= (TARGET_CHARS[1] if end == 1 else JOINED_CHARS):
        return None
    if not target[0].isalpha() or target[-1] in ":," or HEADER.fullmatch(target) or not is_prose(target, 0.7):
        return None
    source = body_of(lines[end:])
    return (source, target) if len(source.split()) >= BODY_WORDS[0] else None


def docstrings_in(node: ast.AST) -> Iterator[str]:
    """Yield the docstrings of `node` and of the definitions in it."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield ast.get_docstring(node, clean=False) or ""
    # Definitions are statements, so expressions (nearly all of the tree) need no visit.
    for child in chain(*(getattr(node, field, ()) for field in ("body", "orelse", "handlers", "finalbody"))):
        yield from docstrings_in(child)


def python_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield (top-level package name, path) of the files worth reading under `root`."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if SKIPPED_DIRS.isdisjoint(parts):
            yield parts[0].removesuffix(".py"), path


def mine(paths: Iterable[str | Path] | None = None, progress: bool = True) -> list[Row]:
    """Return the sorted pairs of the packages in the folders `paths` (default: standard library, site-packages)."""
    folders = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")] if paths is None else paths
    files = [file for root in dict.fromkeys(Path(path).resolve() for path in folders) for file in python_files(root)]
    rows: dict[str, Row] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # parsing warns about invalid escapes in other people's strings
        for package, path in tqdm(files, desc="Mining docstrings", unit="file", disable=None if progress else True):
            try:
                # Larger files are generated tables: they are slow to parse and hold no prose.
                text = path.read_text(encoding="utf-8-sig") if path.stat().st_size < 1_000_000 else ""
                # Parsing takes most of the time, so a file whose raw strings hold no pair is not parsed.
                promising = any(map(pair_of, re.split("\"\"\"|'''", text)[1::2]))
                found = list(docstrings_in(ast.parse(text))) if promising else []
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                continue  # these are templates, other encodings, or code for other versions of Python
            for source, target in filter(None, map(pair_of, found)):
                folded = re.sub(r"[\W\d_]+", " ", f"{target} {source}".lower())
                rows.setdefault(folded, {"source": source, "target": target, "package": package})
    if not rows:
        raise ValueError(
            f"Mining needs summaries with prose after them: got none in {len(files)} files. Pass folders of packages."
        )
    return sorted(rows.values(), key=lambda row: (row["package"], row["target"], row["source"]))


def split_by_package(rows: Sequence[Row], test_share: float = 0.1) -> tuple[list[Row], list[Row]]:
    """Split `rows` into (train, test) with whole packages, and about `test_share` of the rows, in test."""
    counts = Counter(row["package"] for row in rows)
    if len(counts) < 2:
        raise ValueError(f"Splitting needs rows from 2 packages: got {len(counts)}. Mine more folders.")
    held_out, size = set(), 0
    for package in sorted(counts, key=lambda name: (zlib.crc32(name.encode()), name)):
        # One giant package must not fill most of the test rows, nor lift them far over the share.
        most = min(0.05 * len(rows), 1.2 * test_share * len(rows) - size)
        if size < test_share * len(rows) and counts[package] <= most:
            held_out.add(package)
            size += counts[package]
    held_out = held_out or {min(counts, key=lambda name: (counts[name], name))}
    return [r for r in rows if r["package"] not in held_out], [r for r in rows if r["package"] in held_out]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Mine (body, summary) pairs from the installed docstrings.")
    parser.add_argument("--output_dir", type=Path, required=True, help="Folder for train.jsonl and test.jsonl.")
    output_dir = parser.parse_args(argv).output_dir
    train, test = split_by_package(rows := mine())
    output_dir.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", train), ("test", test)):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part)
        (output_dir / f"{name}.jsonl").write_text(text, encoding="utf-8")
    lengths = sorted(len(row["target"]) for row in rows)
    marks = ", ".join(f"{mark}%: {lengths[mark * (len(lengths) - 1) // 100]}" for mark in (5, 25, 50, 75, 95))
    print(f"{len(rows)} pairs: {len(train)} train, {len(test)} test\ntarget characters: {marks}")
    print(textwrap.fill("held-out packages: " + ", ".join(sorted({row["package"] for row in test})), width=100))


if __name__ == "__main__":
    main()
