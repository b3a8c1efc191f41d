"""Make a corpus of headlines from apt's package lists: source: long description; target: one-line synopsis.

    sudo apt-get -o Acquire::Languages=en update
    python recipes/headline/debian.py --output_file debian_headlines.jsonl.gz

This works on any Debian or Ubuntu machine. The lists change from release to release, and so does the corpus. Split it
by package family (`group_column: package`, `group_separator: "-"`), since sibling packages share much of their text.
"""

import argparse
import gzip
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path


Row = dict[str, str]
SOURCE_WORDS, TARGET_CHARACTERS, TARGET_WORDS, MOST_SHARED = (20, 150), (10, 80), 2, 2
LIST_ITEM = re.compile(r"([-*+•·o]|\(?\w{1,2}[.)]) ")


def records_of(text: str) -> Iterator[dict[str, str]]:
    """Yield the records of a control file as dictionaries, field -> value; a value may have several lines."""
    for record in text.split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in record.split("\n"):  # a text may contain other line ends, such as U+2028
            if line[:1].isspace():
                fields[name] = f"{fields.get(name, '')}\n{line}"
            elif ":" in line:
                name, value = line.split(":", 1)
                fields[name] = value.strip()
        if fields:
            yield fields


def paragraphs_of(description: str) -> Iterator[str]:
    """Yield the paragraphs of a long description, without lists, preformatted lines, and the lines before them."""
    for paragraph in re.split(r"\n \.(?=\n|$)", description):
        lines = paragraph.strip("\n").split("\n")
        text = " ".join(paragraph.split())
        # Debian Policy 5.6.13: a line that starts with two spaces is preformatted
        listed = any(line.startswith("  ") or LIST_ITEM.match(line.strip()) for line in lines)
        if text and not text.endswith(":") and not listed:
            yield text


def mine(texts: Iterable[str]) -> list[Row]:
    """
    Return the rows of `Translation-en` files, sorted by package; no source and no target occurs twice.

    Raises:
        `ValueError`: if the files hold no pair.
    """
    rows: list[Row] = []
    seen: set[str] = set()
    records = sorted((r for text in texts for r in records_of(text)), key=lambda record: record.get("Package", ""))
    descriptions = [record.get("Description-en", "").partition("\n") for record in records]
    prose = [list(dict.fromkeys(paragraphs_of(long))) for _, _, long in descriptions]
    # paragraphs that all packages of a family share do not distinguish them
    shared = Counter(chain.from_iterable(prose))
    for record, (target, _, _), paragraphs in zip(records, descriptions, prose, strict=True):
        source = " ".join(text for text in paragraphs if shared[text] <= MOST_SHARED)
        if (
            SOURCE_WORDS[0] <= len(source.split()) <= SOURCE_WORDS[1]
            and TARGET_CHARACTERS[0] <= len(target) <= TARGET_CHARACTERS[1]
            and len(target.split()) >= TARGET_WORDS
            and seen.isdisjoint((source, target))
        ):
            seen |= {source, target}
            rows.append({"source": source, "target": target, "package": record["Package"]})
    if not rows:
        raise ValueError(
            "apt's package lists hold no descriptions in English; fetch them with: "
            "sudo apt-get -o Acquire::Languages=en update"
        )
    return rows


def package_lists() -> list[str]:
    """
    Read the `Translation-en` files that apt has fetched; apt itself reads them, in any compression.

    Raises:
        `RuntimeError`: on a machine without apt.
    """
    # in many containers the configuration of apt lists no language
    where = ["apt-get", "-o", "Acquire::Languages=en", "indextargets", "--format", "$(FILENAME)"]
    try:
        files = subprocess.run([*where, "Created-By: Translations"], check=True, capture_output=True, text=True).stdout
        read = ["/usr/lib/apt/apt-helper", "cat-file"]
        return [
            subprocess.run([*read, file], check=True, capture_output=True, text=True).stdout
            for file in files.splitlines()
        ]
    except FileNotFoundError as error:
        raise RuntimeError(
            f"the corpus is made from apt's package lists, and {error.filename} is not on this machine; run it on "
            "Debian or Ubuntu"
        ) from error


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_file", type=Path, default=Path("debian_headlines.jsonl.gz"))
    args = parser.parse_args(argv)
    rows = mine(package_lists())
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    data = text.encode("utf-8")
    args.output_file.write_bytes(gzip.compress(data, mtime=0) if args.output_file.suffix == ".gz" else data)
    lengths = sorted(len(row["target"]) for row in rows)
    marks = ", ".join(f"{mark}%: {lengths[mark * (len(lengths) - 1) // 100]}" for mark in (5, 25, 50, 75, 95))
    print(f"{len(rows)} pairs in {args.output_file}; target characters: {marks}")


if __name__ == "__main__":
    main()
