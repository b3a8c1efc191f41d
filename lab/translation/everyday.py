"""Convert pairs of several corpora, and variants of them, to the files that the translation recipes read.

    python lab/translation/everyday.py tatoeba_de_en.jsonl.gz interface_de_en.jsonl.gz everyday_de_en.jsonl.gz \\
        --output_dir data/everyday --weights developer_tools=0.4 voice_assistants=0.4

An input has a row for each pair: `split` (train, validation or test), `en`, the other language under its code, and
where it has kinds of text, `kind`. The folder receives `train.jsonl`, `validation.jsonl`, `names.jsonl` and
`test_<corpus>.jsonl` for each input with test rows, with the columns `source` and `target`; the source language is not
marked. Training rows are of six sorts:

- the unchanged pairs; of a kind with a weight, that share
- a share of them again with other names, places and numbers on both sides (slots.py)
- sentences with names, places, times, dates, amounts and words of daily life from the templates of slots.py
- the sentences of data/everyday_en_de_fr, several times, because each is there for a word that the others lack
- pairs of one corpus and language joined in twos
- pairs whose source is in lower case or lacks its final mark, as people type

`names.jsonl` tests copying: names that no training row has. Every draw depends on `--seed` alone.
"""

import argparse
import gzip
import json
import random
import re
from pathlib import Path

import written
from slots import HELD_OUT, replace, sentence


Pair = dict[str, str]


def read(path: str) -> tuple[str, list[dict]]:
    """Read a file; return its language and its rows."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    codes = set(rows[0]) - {"split", "en", "group", "kind"}
    if codes not in ({"de"}, {"fr"}) or "en" not in rows[0]:
        raise ValueError(f"{path} must have the columns split, en and de or fr, got {', '.join(rows[0])}")
    return codes.pop(), rows


def pairs(rows: list[dict], code: str, split: str) -> list[dict]:
    """Return the rows of a split with the columns source, target and kind."""
    kept = [row for row in rows if row["split"] == split]
    return [{"source": row[code], "target": row["en"], "kind": row.get("kind", "")} for row in kept]


def has_held_out(row: Pair) -> bool:
    words = set(re.findall(r"\w+", row["target"]))
    return any(words.intersection(names) for names in HELD_OUT.values())


def as_typed(row: Pair, draw: random.Random) -> Pair:
    """Return the pair with a source as people type it: in lower case, without its final mark, or both."""
    source, way = row["source"], draw.randrange(3)
    if way != 1:
        source = source.lower()
    if way != 0:
        source = source.rstrip(" .!?…") or source
    return {"source": source, "target": row["target"]}


def variants(rows: list[Pair], code: str, args: argparse.Namespace, draw: random.Random) -> list[Pair]:
    """Return the variants that a corpus adds to its own pairs."""
    added = []
    for row in rows:
        if draw.random() < args.replace_share and (other := replace(row["source"], row["target"], code, draw)):
            added.append({"source": other[0], "target": other[1]})
        if draw.random() < args.typed_share:
            added.append(as_typed(row, draw))
    whole = [row for row in rows if row["target"][-1:] in ".!?" and len(row["target"]) < 80]
    for _ in range(round(args.glue_share * len(rows)) if len(whole) > 1 else 0):
        first, second = draw.sample(whole, 2)
        added.append({side: f"{first[side]} {second[side]}" for side in ("source", "target")})
    return added


def write(rows: list[Pair], path: Path) -> None:
    lines = [json.dumps({key: row[key] for key in row if key != "kind"}, ensure_ascii=False) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    print(f"{len(rows):,} rows in {path}")


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="jsonl.gz")
    parser.add_argument("--output_dir", required=True, help="folder for the recipes' files")
    parser.add_argument("--weights", nargs="*", default=[], metavar="KIND=SHARE", help="share of a kind that is kept")
    parser.add_argument("--replace_share", type=float, default=1, help="of the pairs, for names, places, numbers")
    parser.add_argument("--sentences", type=int, default=100_000, help="from templates, for each language")
    parser.add_argument("--written_copies", type=int, default=5, help="of each sentence of data/everyday_en_de_fr")
    parser.add_argument("--glue_share", type=float, default=0.05, help="pairs joined in twos, beside the others")
    parser.add_argument("--typed_share", type=float, default=0.05, help="pairs as people type, beside the others")
    parser.add_argument("--max_test_rows", type=int, default=1000, help="test pairs of each corpus")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    weights = {kind: float(share) for kind, _, share in (entry.partition("=") for entry in args.weights)}
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(args.seed)
    train: list[Pair] = []
    validation: list[Pair] = []
    files = [(path, *read(path)) for path in args.files]
    # sources of validation and test rows, which another file may also have
    tested = {row[code] for _, code, rows in files for row in rows if row["split"] != "train"}
    for path, code, rows in files:
        own = [row for row in pairs(rows, code, "train") if draw.random() < weights.get(row["kind"], 1)]
        own = [row for row in own if row["source"] not in tested and not has_held_out(row)]
        train += own + variants(own, code, args, draw)
        validation += pairs(rows, code, "validation")
        if test := pairs(rows, code, "test"):
            write(test[: args.max_test_rows], folder / f"test_{Path(path).name.split('.')[0]}.jsonl")
    codes = list(dict.fromkeys(code for _, code, _ in files))
    for code in codes:
        made = (sentence(code, draw) for _ in range(args.sentences))
        train += [{"source": source, "target": target} for source, target, _ in made]
        own = [row for row in written.pairs(code) if row["source"] not in tested and not has_held_out(row)]
        train += own * args.written_copies + (variants(own, code, args, draw) if args.written_copies else [])
    draw.shuffle(train)
    draw.shuffle(validation)  # the recipes evaluate on the first rows, which should hold every corpus
    write(train, folder / "train.jsonl")
    write(validation, folder / "validation.jsonl")
    draw = random.Random(f"names {args.seed}")  # the test does not depend on the training rows
    held = [(code, *sentence(code, draw, held_out=True)) for code in codes for _ in range(200 // len(codes))]
    names = [{"source": s, "target": t, "names": n, "language": code} for code, s, t, n in held]
    (folder / "names.jsonl").write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in names), encoding="utf-8"
    )
    print(f"{len(names):,} rows in {folder / 'names.jsonl'}")


if __name__ == "__main__":
    main()
