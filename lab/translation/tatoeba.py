"""Convert sentence pairs of Tatoeba to the files that the translation recipes read.

    python lab/translation/tatoeba.py tatoeba_de_en.jsonl.gz tatoeba_fr_en.jsonl.gz --output_dir data/tatoeba

An input has a row for each pair: `split` (train, validation or test), `en`, and the other language under its code. The
folder receives `train.jsonl` and `validation.jsonl` of all languages, and `test_<code>.jsonl` for each, with the
columns `source` and `target`; the source language is not marked. The sentences are those of https://tatoeba.org, by
way of https://www.manythings.org/anki, licence CC BY 2.0 FR: name both where you share a model.
"""

import argparse
import gzip
import json
import random
from pathlib import Path


def read(path: str) -> tuple[str, dict[str, list[dict]]]:
    """Read a file; return its language and its pairs by split."""
    splits: dict[str, list[dict]] = {"train": [], "validation": [], "test": []}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    codes = set(rows[0]) - {"split", "en", "group"}
    if len(codes) != 1 or "en" not in rows[0]:
        raise ValueError(f"{path} must have the columns split, en and one language more, got {', '.join(rows[0])}")
    code = codes.pop()
    for row in rows:
        splits[row["split"]].append({"source": row[code], "target": row["en"]})
    return code, splits


def write(rows: list[dict], path: Path) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows):,} pairs in {path}")


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="jsonl.gz, one for each source language")
    parser.add_argument("--output_dir", required=True, help="folder for the recipes' files")
    parser.add_argument("--max_test_rows", type=int, default=1000, help="test pairs of each language")
    args = parser.parse_args(argv)
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    languages: dict[str, dict[str, list[dict]]] = {}
    for path in args.files:
        code, splits = read(path)
        if code in languages:
            raise ValueError(f"{path} is a second file of the language {code}; give one for each language")
        languages[code] = splits
    train = [row for splits in languages.values() for row in splits["train"]]
    validation = [row for splits in languages.values() for row in splits["validation"]]
    random.Random(1).shuffle(validation)  # the recipes evaluate on the first rows, which should hold every language
    write(train, folder / "train.jsonl")
    write(validation, folder / "validation.jsonl")
    for code, splits in languages.items():
        write(splits["test"][: args.max_test_rows], folder / f"test_{code}.jsonl")


if __name__ == "__main__":
    main()
