"""Convert the papers' corpora to rows, from the original files, for which a user needs a licence.

    python recipes/headline/corpora.py lines train.article.txt train.title.txt --output_file train.jsonl
    python recipes/headline/corpora.py lines input.txt task1_ref*.txt --output_file duc.jsonl
    python recipes/headline/corpora.py pairs test_75.txt --output_file test_75.jsonl
    python recipes/headline/corpora.py duc docs models/1 --output_file duc.jsonl --namas
    python recipes/headline/corpora.py jnc JNC-corpus.json --split train --output_file train.jsonl
    python recipes/headline/corpora.py jamul JAMUL.csv --length 26 --output_file test_26.jsonl
    python recipes/headline/corpora.py stories cnn/stories dailymail/stories --output_file train.jsonl

- `lines`: a file with a text in each line, and files with the headlines, as the scripts of Rush et al. 2015 (NAMAS)
  write Gigaword and DUC-2004.
- `pairs`: a text, a tab and a headline in each line, as in the published test sets of Takase & Okazaki.
- `duc`: the folders of DUC-2004 task 1: the documents, and the four references of each document.
- `jnc`, `jamul`: the files of the Asahi Shimbun, filtered like in the scripts of asahi-research/Gingo.
- `stories`: a file for each article of CNN/Daily Mail; the summary follows `@highlight`.

A row has `source` and `target`, and `references` if it has several headlines. NEWSROOM and other JSON need no script:
`lenctrl train ... --train_file train.jsonl.gz --source_column text --target_column summary`.
"""

import argparse
import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any


Row = dict[str, Any]
# length -> column of its headline; length -> characters of the shortest headline that is kept
JAMUL_COLUMN, JAMUL_LEAST = {26: 2, 13: 3, 10: 4}, {26: 24, 13: 11, 10: 8}
SHORT_SENTENCE = 130  # characters; if DUC's first sentence is shorter, the second one is added


def row_of(source: str, headlines: Sequence[str]) -> Row:
    """Build a row: `target` is the first headline; `references` are all headlines, if there are several."""
    row: Row = {"source": source, "target": headlines[0]}
    return row | ({"references": list(headlines)} if len(headlines) > 1 else {})


def lines_of(path: Path) -> list[str]:
    """Read the lines of a file; U+2028 and other line ends of Unicode are part of a line."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def read_lines(args: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of a file of texts and of files of headlines; all files have the same number of lines."""
    columns = [lines_of(path) for path in args.files]
    counts = {str(path): len(column) for path, column in zip(args.files, columns, strict=True)}
    if len(columns) < 2 or len(set(counts.values())) > 1:
        told = ", ".join(f"{count} in {path}" for path, count in counts.items())
        raise ValueError(f"a file of texts and files of headlines must have as many lines each, got {told}")
    for source, *headlines in zip(*columns, strict=True):
        yield row_of(source, headlines)


def read_pairs(args: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of files with a text, a tab and a headline in each line."""
    for path in args.files:
        for i, line in enumerate(lines_of(path), start=1):
            source, tab, target = line.partition("\t")
            if not tab:
                raise ValueError(f"line {i} of {path} must be a text, a tab and a headline, got {line!r}")
            yield row_of(source, [target])


def document_text(path: Path) -> str:
    """Return the content of `<TEXT>` in a DUC document, without entities such as `&amp;`."""
    found = re.search(r"<TEXT>(.*?)(?:</TEXT>|\Z)", path.read_text(encoding="latin-1"), flags=re.S)
    words = re.sub(r"</?P>", " ", found[1] if found else "").split()
    return " ".join(word for word in words if not word.startswith("&"))


def first_sentence(sentences: Sequence[str]) -> str:
    """Return a document's first sentence, the input of Rush et al. 2015: in lower case, in Penn Treebank tokens."""
    from nltk.tokenize.treebank import TreebankWordTokenizer

    first, *others = [sentence.strip() for sentence in sentences]
    if len(first) < SHORT_SENTENCE and others:
        first = f"{first[:-1]} , {others[0]}"
    text = " ".join(TreebankWordTokenizer().tokenize(first.lower()))
    if ")" in text:  # the dateline is removed: "algiers , algeria ( ap ) _ "
        text = re.split(r" (?:--|-|_) ", text, maxsplit=1)[-1]
    for mark, name in (("(", "-lrb-"), (")", "-rrb-"), ("_", ",")):
        text = text.replace(mark, name)
    return text


def read_duc(args: argparse.Namespace) -> Iterator[Row]:
    """
    Yield the rows of DUC-2004: a document is `docs/d30001t/APW19981016.0240`, its first reference is
    `D30001.P.10.T.A.APW19981016.0240`.

    NLTK's Punkt splits the sentences. It learns abbreviations from these documents; Rush et al. use a Punkt model that
    NLTK downloads.
    """
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    folder, references = args.files
    texts = {path: document_text(path) for path in sorted(folder.glob("*/*"))}
    punkt = PunktSentenceTokenizer("\n".join(texts.values()))
    for path, text in texts.items():
        pattern = f"{path.parent.name[:-1].upper()}*{path.name.upper()}*"
        found = sorted(references.glob(pattern))
        if not found or not text:
            raise ValueError(f"{path} must have a text and references in {references}/{pattern}, got {len(found)}")
        headlines = [" ".join(file.read_text(encoding="latin-1").split()) for file in found]
        yield row_of(first_sentence(punkt.tokenize(text)), headlines)


def read_jnc(args: argparse.Namespace) -> Iterator[Row]:
    """
    Yield the rows of `JNC-corpus.json`, a line for each article: the lead sentences `kiji` and the headline `midashi`.

    Articles with a repeated text or headline, or with "=", are dropped. The others are sorted by `kijiid`: the first
    98 % are for training, one half of the rest is for validation, the other half for test.
    """
    (path,) = args.files
    articles = sorted((json.loads(line) for line in lines_of(path)), key=lambda article: article["kijiid"])
    pairs = [("".join(article["kiji"]), article["midashi"]) for article in articles]
    texts, headlines = (Counter(column) for column in zip(*pairs, strict=True))
    kept = [pair for pair in pairs if texts[pair[0]] == headlines[pair[1]] == 1 and "=" not in pair[0]]
    train = int(len(kept) * 0.98)
    test = len(kept) - (len(kept) - train) // 2
    parts = {None: kept, "train": kept[:train], "validation": kept[train:test], "test": kept[test:]}
    yield from (row_of(text, [headline]) for text, headline in parts[args.split])


def lead(article: str, count: int = 3) -> str:
    """Return the first `count` sentences of a Japanese article; a full stop in brackets does not end a sentence."""
    return "".join(re.findall(r"(?:「[^」]*」|（[^）]*）|[^。])*。|(?:「[^」]*」|（[^）]*）|[^。])+", article)[:count])


def read_jamul(args: argparse.Namespace) -> Iterator[Row]:
    """
    Yield the rows of `JAMUL.csv`, which has a header and the columns article, printed headline, and headlines of 26,
    13 and 10 characters.

    The source is the lead, the first three sentences. Articles are dropped if they have "=", if a headline is much
    shorter than its limit, or if a headline shares no word of two characters with the lead.
    """
    from sacrebleu.tokenizers.tokenizer_ja_mecab import TokenizerJaMecab

    cut = TokenizerJaMecab()

    def words(text: str) -> set[str]:
        return {word.lower() for word in cut(text).split() if len(word) > 1}

    (path,) = args.files
    with path.open(encoding="utf-8", newline="") as file:
        for cells in list(csv.reader(file))[1:]:
            source, headlines = lead(cells[0]), {n: cells[column] for n, column in JAMUL_COLUMN.items()}
            long_enough = all(len(headlines[n]) >= least for n, least in JAMUL_LEAST.items())
            known = words(source)
            if long_enough and "=" not in source and all(words(headline) & known for headline in headlines.values()):
                yield row_of(source, [headlines[args.length]])


def read_stories(args: argparse.Namespace) -> Iterator[Row]:
    """
    Yield the rows of folders with `.story` files; the target joins the highlights, as in other work.
    """
    for path in sorted(path for folder in args.files for path in folder.glob("*.story")):
        article, *highlights = path.read_text(encoding="utf-8").split("@highlight")
        sentences = [" ".join(highlight.split()) for highlight in highlights]
        yield row_of(" ".join(article.split()), [" ".join(f"{sentence} ." for sentence in sentences)])


READERS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "lines": read_lines,
    "pairs": read_pairs,
    "duc": read_duc,
    "jnc": read_jnc,
    "jamul": read_jamul,
    "stories": read_stories,
}

FILES = {"duc": 2, "jnc": 1, "jamul": 1}  # number of paths


def as_namas(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows in lower case, with `#` for each digit, as in Rush et al. 2015; references do not change."""
    for row in rows:
        yield row | {name: re.sub(r"\d", "#", row[name].lower()) for name in ("source", "target")}


def main(argv: list[str] | None = None) -> None:
    """Write the rows of a corpus to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=READERS, help="kind of the files, see above")
    parser.add_argument("files", type=Path, nargs="+", help="files or folders, in the order of the examples")
    parser.add_argument("--output_file", type=Path, required=True, help="file of JSON lines")
    parser.add_argument("--namas", action="store_true", help="lower case, and # for each digit, as in Gigaword")
    parser.add_argument("--split", choices=["train", "validation", "test"], help="split of jnc; default: all rows")
    parser.add_argument("--length", type=int, choices=JAMUL_COLUMN, default=26, help="length of jamul's headlines")
    args = parser.parse_args(argv)
    if args.output_file.resolve() in [path.resolve() for path in args.files]:
        parser.error(f"{args.output_file} would replace an input; name another --output_file")
    if len(args.files) != FILES.get(args.kind, len(args.files)):
        parser.error(f"{args.kind} takes {FILES[args.kind]} path(s), see the examples above, got {len(args.files)}")
    rows, count, empty = READERS[args.kind](args), 0, 0
    unfinished = args.output_file.with_name(f"{args.output_file.name}.part")
    with unfinished.open("w", encoding="utf-8") as file:
        for row in as_namas(rows) if args.namas else rows:
            if not row["source"].strip() or not row["target"].strip():
                empty += 1
                continue
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    if not count:
        raise ValueError(f"{', '.join(map(str, args.files))} hold no rows of the form {args.kind!r}")
    unfinished.replace(args.output_file)
    print(f"{count} rows in {args.output_file}; {empty} without a text or a headline are left out")


if __name__ == "__main__":
    main()
