"""Make the rows that teach a chat model to rewrite an English text at a length.

    python lab/causal/rewrite.py tatoeba_de_en.jsonl.gz tatoeba_fr_en.jsonl.gz \
        --headlines debian_headlines.jsonl.gz --titles acl_titles.jsonl.gz --output_dir runs/rewrite

A row is a chat of three messages: the task, a text, and a text of the same meaning in other words, shorter or longer.
The pairs are English texts of one source: of the two or three lengths in `data/everyday_en_de_fr`, and of the
files' rows with the same German or French sentence. Two to four neighbouring sentences make a paragraph. Names and
numbers that both sides share are replaced, so that the model copies them instead of learning some by heart.
`headlines` have the columns `source` and `target`, `titles` the columns `abstract` and `title`.

The list `condensed` of the data set has sentences with shorter texts that keep the whole meaning. `--others` keeps
this number of the other rows, so that these pairs are most of them.

Two groups in a hundred are held out: `validation.jsonl` has rows of these, `held_out.jsonl` all texts of each group.
"""

import argparse
import gzip
import hashlib
import json
import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path


sys.path.append(str(Path(__file__).resolve().parents[1] / "translation"))

import slots  # noqa: E402
import written  # noqa: E402


REWRITE, HEADLINE, TITLE = "Rewrite the text.", "Write a headline.", "Write a title."
SHORTER, LONGER = "Rewrite the text to make it shorter.", "Rewrite the text to make it longer."
DIRECTED = 0.5  # share of the pairs of clearly different lengths whose task names the direction
SHORTEST, LONGEST = 0.45, 1.7  # ratio of a pair's lengths
HELD_OUT = 2  # percent of the groups that are held out
MEN = "Tom John Jim Bill Bob Jack Ken Mike Tony Paul Max Lukas Peter".split()
WOMEN = "Mary Alice Jane Nancy Emily Kate Lucy Linda Anna Julia Marie Lena".split()
_NUMBER = re.compile(r"(?<![\w.,:])\d{2,4}(?![\w.,:]*\w)")


def is_held_out(text: str) -> bool:
    """Return whether the group that begins with this text is held out."""
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % 100 < HELD_OUT


def chat(task: str, text: str, answer: str) -> dict[str, list[dict[str, str]]]:
    """Return a row: the task as system message, the text as the user's, and the answer."""
    contents = {"system": task, "user": text, "assistant": answer}
    return {"messages": [{"role": role, "content": content} for role, content in contents.items()]}


def with_other_names(texts: list[str], draw: random.Random) -> list[str]:
    """Replace the names and numbers that all texts share, by the same ones in each."""
    exchanged: list[tuple[re.Pattern, str]] = []
    for names, pool in ((MEN, slots.MEN), (WOMEN, slots.WOMEN)):
        exchanged += [(re.compile(rf"\b{name}\b"), draw.choice(pool)) for name in names if draw.random() < 0.8]
    for number in sorted(set(_NUMBER.findall(texts[0]))):
        if draw.random() < 0.6:
            other = str(draw.randrange(10 ** (len(number) - 1), 10 ** len(number)))
            exchanged.append((re.compile(rf"(?<![\w.,:]){number}(?![\w.,:]*\w)"), other))
    for pattern, other in exchanged:
        if all(pattern.search(text) for text in texts):
            texts = [pattern.sub(other, text) for text in texts]
    return texts


def pairs_of(texts: Sequence[str], most: int, draw: random.Random) -> list[tuple[str, str]]:
    """Return up to `most` ordered pairs of texts whose lengths are not too far apart."""
    pairs = [(a, b) for a in texts for b in texts if a != b and SHORTEST <= len(b) / len(a) <= LONGEST]
    return draw.sample(pairs, min(most, len(pairs)))


def written_groups() -> list[list[str]]:
    """Return the English texts of each row of `data/everyday_en_de_fr` that has several, with their rewordings."""
    more = written.rewordings()
    groups = ([*line[2:], *more.get(line[2], [])] for line in written.lines())
    return [texts for texts in ([text for text in dict.fromkeys(group) if text] for group in groups) if len(texts) > 1]


def condensed_groups() -> list[list[str]]:
    """Return the sentences of the list `condensed`, each before its shorter texts."""
    return [[row["en"], *row["texts"]] for row in written.read("condensed")]


def condensed_pairs(groups: list[list[str]], draw: random.Random) -> Iterator[tuple[str, str]]:
    """Yield each sentence with its shorter texts, some of these pairs reversed, and paragraphs of two sentences."""
    before: list[str] | None = None
    for group in groups:
        texts = with_other_names(group, draw)
        for i, text in enumerate(texts[1:], 1):
            yield texts[0], text
            if i > 1 and draw.random() < 0.3:
                yield texts[i - 1], text
            if draw.random() < 0.25:
                yield text, texts[0]
        if before is not None and draw.random() < 0.3:
            parts = [(before[0], draw.choice(before[1:])), (texts[0], draw.choice(texts[1:]))]
            yield " ".join(source for source, _ in parts), " ".join(target for _, target in parts)
        before = texts


def rows_of(path: str) -> Iterator[dict]:
    """Yield the training rows of a file of JSON lines; `.gz` too."""
    with gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if row.get("split", "train") == "train":
                yield row


def translation_groups(paths: Sequence[str]) -> list[list[str]]:
    """Return the English texts of each German or French sentence that has several."""
    groups: dict[str, dict[str, None]] = defaultdict(dict)
    for path in paths:
        for row in rows_of(path):
            if len(row["en"]) > 14:
                groups[row["de"] if "de" in row else row["fr"]].setdefault(row["en"])
    return [list(texts) for texts in groups.values() if len(texts) > 1]


def paragraphs(groups: list[list[str]], draw: random.Random) -> Iterator[tuple[str, str]]:
    """Yield pairs of two to four neighbouring sentences, of any mix of lengths."""
    ways = [lambda texts: min(texts, key=len), lambda texts: max(texts, key=len), draw.choice]
    i = 0
    while i < len(groups):
        size = draw.choice([2, 2, 3, 4])
        part = [with_other_names(group, draw) for group in groups[i : i + size]]
        i += size
        source, target = (" ".join(map(way, part)) for way in (draw.choice(ways), draw.choice(ways)))
        if len(part) > 1 and source != target:
            yield source, target


def task_of(source: str, target: str, draw: random.Random) -> str:
    """Return the task of a pair: to rewrite it or, in some pairs, to make it shorter or longer."""
    ratio = len(target) / len(source)
    if 0.95 < ratio < 1.05 or draw.random() >= DIRECTED:
        return REWRITE
    return SHORTER if ratio < 1 else LONGER


def _share_a_word(first: str, second: str) -> bool:
    words = [{word.lower() for word in re.findall(r"\w+", text)} for text in (first, second)]
    return bool(words[0] & words[1])


def make(args: argparse.Namespace) -> tuple[list[dict], list[dict], list[list[str]]]:
    """Return the training rows, the validation rows and the groups that are held out."""
    draw = random.Random(args.seed)
    groups = written_groups()
    held_out = [group for group in groups if is_held_out(group[0])]
    apart = {text for group in held_out for text in group}
    kept = [group for group in groups if apart.isdisjoint(group)]
    pairs = [pair for group in kept for pair in pairs_of(with_other_names(group, draw), len(group), draw)]
    pairs += paragraphs(kept, draw)
    for group in translation_groups(args.files):
        if apart.isdisjoint(group) and not is_held_out(group[0]):
            some = with_other_names(draw.sample(group, min(4, len(group))), draw)
            # two sentences without a common word seldom have one meaning, and sentences of one length teach little
            pairs += [(a, b) for a, b in pairs_of(some, 1, draw) if abs(len(a) - len(b)) > 2 and _share_a_word(a, b)]
    rows = [chat(task_of(source, target, draw), source, target) for source, target in pairs]
    for path, task, columns, most in (
        (args.headlines, HEADLINE, ("source", "target"), 9000),
        (args.titles, TITLE, ("abstract", "title"), 6000),
    ):
        found = [] if path is None else list(rows_of(path))
        draw.shuffle(found)
        source, target = columns
        # the packages of a family are similar, so a whole family is held out
        found = [row for row in found if not is_held_out(str(row.get("package", row[source])).partition("-")[0])]
        rows += [chat(task, " ".join(row[source].split()[:80]), row[target]) for row in found[:most]]
    draw.shuffle(rows)
    if args.others is not None:
        rows = rows[: args.others]
    condensed = condensed_groups()
    held_out += [group for group in condensed if is_held_out(group[0])]
    condensed = [group for group in condensed if not is_held_out(group[0])]
    rows += [chat(task_of(*pair, draw), *pair) for pair in condensed_pairs(condensed, draw)]
    draw.shuffle(rows)
    validation = [chat(REWRITE, *pair) for group in held_out[:200] for pair in pairs_of(group, 1, draw)]
    return rows, validation, held_out


def main(argv=None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="pairs: jsonl with en, and de or fr")
    parser.add_argument("--headlines", help="jsonl with source and target")
    parser.add_argument("--titles", help="jsonl with abstract and title")
    parser.add_argument("--others", type=int, help="number of the rows that are not `condensed`; all if left out")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder of the three files")
    parser.add_argument("--seed", type=int, default=48, help="of all draws")
    args = parser.parse_args(argv)
    rows, validation, held_out = make(args)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    files = {"train": rows, "validation": validation, "held_out": [{"texts": group} for group in held_out]}
    for name, some in files.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in some)
        (args.output_dir / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        print(f"{name}: {len(some):,} rows")


if __name__ == "__main__":
    main()
