"""Make the rows of recipes/translation/everyday_packed.yaml: a new draw of the pairs for each pass over them.

    python lab/translation/epochs.py tatoeba_de_en.jsonl.gz interface_de_en.jsonl.gz everyday_de_en.jsonl.gz \\
        --output_dir data/epochs
    lenctrl train translation/everyday_packed --train_file data/epochs/train.jsonl \\
        --validation_file data/epochs/validation.jsonl

The inputs and the sorts of rows are those of everyday.py. Each draw has another share of the pairs, and other names
and templates. `reworded` is true for a target of another length than the natural one, which always has its length.
"""

import argparse
import json
import random
from collections.abc import Iterable
from pathlib import Path

import everyday
import rewordings
import slots
import written


# of the recipe: tokens of a packed row; shares of the pairs that teach how a text ends, and of those without a length
SOURCE, TARGET = 96, 80
OVERSHOOT, WITHOUT = 0.03, 0.3
# shares of each corpus, by the beginning of its file's name
SHARES = {"tatoeba": 0.6, "interface": 0.7, "everyday": 1.0}
# shares of these kinds of text, multiplied by the share of the corpus
KINDS = {"developer_tools": 0.3, "voice_assistants": 0.4}
VARIANTS = argparse.Namespace(replace_share=0.15, typed_share=0.04, glue_share=0.03)
REWORDED = 0.12  # share of the pairs that also have a reworded English text
OTHER_LENGTHS = 0.6  # share of the written English texts of other lengths
TEMPLATES = 30_000  # sentences of slots.py, for each language

Row = tuple[str, str, bool]  # source, target, and True for a reworded target


def draw_rows(files: list[tuple[str, str, list[dict]]], seed: int, folder: Path | None = None) -> list[Row]:
    """Draw the pairs of an epoch from the files (name, language, rows) and from the written sentences of a folder."""
    draw = random.Random(seed)
    rows: list[Row] = []
    tested = {row[code] for _, code, read in files for row in read if row["split"] != "train"}
    tested |= {row["source"] for code in ("de", "fr") for row in written.pairs(code, "validation")}

    def add(own: list[everyday.Pair], code: str) -> None:
        rows.extend((row["source"], row["target"], False) for row in own)
        rows.extend((row["source"], row["target"], False) for row in everyday.variants(own, code, VARIANTS, draw))
        for row in own:
            if draw.random() < REWORDED and (text := rewordings.reword(row["target"], draw)):
                rows.append((row["source"], text, True))

    def allowed(pair: everyday.Pair) -> bool:
        return pair["source"] not in tested and not everyday.has_held_out(pair)

    for name, code, read in files:
        share = SHARES[name.split("_")[0]]
        pairs = everyday.pairs(read, code, "train")
        add([row for row in pairs if draw.random() < share * KINDS.get(row["kind"], 1) and allowed(row)], code)
    for code in dict.fromkeys(code for _, code, _ in files):
        own = [row for row in written.pairs(code, folder=folder) if allowed(row)]
        add(own, code)
        sources = {row["source"] for row in own}
        lengths = [row for row in written.lengths(code, folder) if row["source"] in sources]
        rows.extend((row["source"], row["target"], True) for row in lengths if draw.random() < OTHER_LENGTHS)
        rows.extend((*slots.sentence(code, draw)[:2], False) for _ in range(TEMPLATES))
    draw.shuffle(rows)
    return rows


def write(rows: Iterable[Row], path: Path) -> None:
    """Append rows to a file."""
    columns = ("source", "target", "reworded")
    with path.open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")


def main(argv=None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="jsonl.gz, as for everyday.py, named by corpus")
    parser.add_argument("--output_dir", required=True, help="new folder for train.jsonl and validation.jsonl")
    parser.add_argument("--epochs", type=int, default=26, help="draws, of about 936,000 rows with the six corpora")
    args = parser.parse_args(argv)
    folder = Path(args.output_dir)
    folder.mkdir(parents=True)
    files = [(Path(path).name, *everyday.read(path)) for path in args.files]
    held = [row for _, code, rows in files for row in everyday.pairs(rows, code, "validation")]
    held += [row for code in ("de", "fr") for row in written.pairs(code, "validation")]
    random.Random(0).shuffle(held)  # the recipe evaluates on the first rows
    write(((row["source"], row["target"], False) for row in held), folder / "validation.jsonl")
    for seed in range(args.epochs):
        rows = draw_rows(files, seed)
        write(rows, folder / "train.jsonl")
        print(f"draw {seed}: {len(rows):,} rows", flush=True)


if __name__ == "__main__":
    main()
