"""How outputs read: unknown words, repetitions, unfinished ends, lost numbers and names, each as a percentage.

    python lab/benchmarks/reading.py --train_file train.jsonl --systems base=out/base.jsonl exact=out/own_exact.jsonl

Each file has a row for each output, with its source and its reference, as `lab/benchmarks/translation.py` writes them.
The references themselves are the first row of the table: what is not zero there is the measure's own error.
"""

import argparse
import json
import re
from collections.abc import Iterable, Sequence

from hf_lenctrl.commands.rows import Rows
from hf_lenctrl.evaluation.metrics import WORD, filled_end, repeats


# English words that end no sentence: articles, conjunctions, and prepositions that are not also adverbs or particles
DANGLING = frozenset(
    "a an the my your his its our their every and or but nor because if unless although while whether than as of at "
    "from into onto upon with without toward towards during until among between against despite".split()
)
FAULTS = (
    "unknown words",
    "repeated",
    "dangling end",
    "filled end",
    "one of these three",
    "no final mark",
    "quotes",
    "numbers",
    "names",
)


def words_of(texts: Iterable[str]) -> set[str]:
    """Lower-cased words of texts, `"don't"` as one word."""
    return {word.lower() for text in texts for word in WORD.findall(text)}


def faults(source: str, reference: str, output: str) -> dict[str, bool]:
    """
    Faults of one output, all but unknown words.

    A name is a capitalised word of the source that the reference keeps as it is, a number a run of digits that it
    keeps; so a language that capitalises its nouns does no harm. A word that the reference itself repeats, or ends
    on, is no fault.

    Example:

    ```python
    >>> from lab.benchmarks.reading import faults
    >>> found = faults("Tom hat 3 Katzen.", "Tom has 3 cats.", "He has has cats and")
    >>> [name for name, there in found.items() if there]
    ['repeated', 'dangling end', 'no final mark', 'numbers', 'names', 'one of these three']

    ```
    """
    last = WORD.findall(output)[-1:]
    names = {word for word in WORD.findall(source) if word[0].isupper()} & set(WORD.findall(reference))
    numbers = set(re.findall(r"\d+", source)) & set(re.findall(r"\d+", reference))
    ends = tuple(".!?\"'”’…)")
    found = {
        "repeated": repeats(output) and not repeats(reference),
        "dangling end": bool(last) and last[0].lower() in DANGLING and last != WORD.findall(reference)[-1:],
        "filled end": filled_end(output) and not reference.endswith(".."),
        "no final mark": reference.endswith(ends) and not output.endswith(ends),
        "quotes": output.count('"') % 2 == 1 or output.count("“") != output.count("”"),
        "numbers": not numbers <= set(re.findall(r"\d+", output)),
        "names": not names <= set(WORD.findall(output)),
    }
    # where a forced length shows
    return found | {"one of these three": found["repeated"] or found["dangling end"] or found["filled end"]}


def reading(rows: Sequence[dict], known: set[str], column: str = "output") -> dict[str, float]:
    """
    Percentages for rows with `source`, `reference` and `output`.

    Args:
        rows (`Sequence[dict]`): Outputs.
        known (`set[str]`): Words of the training targets, see `words_of`.
        column (`str`, *optional*, defaults to `"output"`): Where the texts are.

    Returns:
        `dict`: `unknown words` in percent of the words, every other fault in percent of the texts.
    """
    words = [word.lower() for row in rows for word in WORD.findall(row[column])]
    found = [faults(row["source"], row["reference"], row[column]) for row in rows]
    figures = {"unknown words": 100 * sum(word not in known for word in words) / max(len(words), 1)}
    return figures | {name: 100 * sum(fault[name] for fault in found) / len(rows) for name in FAULTS[1:]}


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", required=True, help="jsonl with the training pairs")
    parser.add_argument("--target_column", default="target", help="its column of targets")
    parser.add_argument("--systems", required=True, nargs="+", help="NAME=FILE")
    args = parser.parse_args(argv)
    with open(args.train_file, encoding="utf-8") as file:
        known = words_of(json.loads(line)[args.target_column] for line in file)
    print("| outputs | rows | " + " | ".join(FAULTS) + " |\n" + "|---" * (2 + len(FAULTS)) + "|")
    for number, entry in enumerate(args.systems):
        name, _, path = entry.partition("=")
        rows = Rows(str(path)).values
        for label, column in [("references", "reference")] * (number == 0) + [(name, "output")]:
            figures = reading(rows, known, column)
            print(f"| {label} | {len(rows)} | " + " | ".join(f"{figures[fault]:.2f}" for fault in FAULTS) + " |")


if __name__ == "__main__":
    main()
