"""Make the file of edits of a model: English phrases that replace each other in texts of one meaning.

    python lab/translation/edits.py models/translate_to_english/edits.json
    python lab/translation/edits.py models/rewrite_english/edits.json --written

The phrases are learned from the English texts of `data/everyday_en_de_fr`: two or three lengths of each sentence, and
its rewordings. `--written` adds the list `alternatives` of this data set, and allows deletions.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from hf_lenctrl.inference.edits import Edits


sys.path.append(str(Path(__file__).resolve().parent))

import written  # noqa: E402


WRITTEN = 10  # a written pair counts like one that was learned from so many groups
# No deletion removes these words, because the text would mean something else.
KEPT = """
    not no never none nobody nothing nowhere neither nor cannot without hardly barely scarcely rarely seldom unless
    except only almost nearly if whether until till before after against instead less least few fewer too all both each
    every any may might must should ain't aren't can't couldn't daren't didn't doesn't don't hadn't hasn't haven't
    isn't mightn't mustn't needn't shan't shouldn't wasn't weren't won't wouldn't two three four five six seven eight
    nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty
    sixty seventy eighty ninety hundred thousand million half twice a.m. p.m.
""".split()


def groups() -> Iterator[list[str]]:
    """Yield the English texts of each sentence that has several."""
    more = written.rewordings()
    for _, _, text, *others in written.lines():
        texts = [one for one in (text, *others, *more.get(text, [])) if one]
        if len(texts) > 1:
            yield texts


def alternatives() -> Edits:
    """Return the phrases of the list `alternatives`, in the directions in which they may replace each other."""
    counts = {}
    for row in written.read("alternatives"):
        longer, shorter = (tuple(row[column].split()) for column in ("longer", "shorter"))
        if row["direction"] != "lengthen":
            counts[longer, shorter] = WRITTEN
        if row["direction"] != "shorten":
            counts[shorter, longer] = WRITTEN
    return Edits(counts, KEPT)


def main(argv=None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_file", help="json file, which the field choice of a model's configuration names")
    parser.add_argument("--least", type=int, default=3, help="groups of texts that must have a pair of phrases")
    parser.add_argument("--written", action="store_true", help="add the list alternatives, and allow deletions")
    args = parser.parse_args(argv)
    edits = Edits.learn(groups(), least=args.least)
    if args.written:
        other = alternatives()
        edits = Edits(other.counts | edits.counts, other.kept)
    edits.save(args.output_file)
    print(f"{args.output_file}: {len(edits.counts):,} pairs of phrases")


if __name__ == "__main__":
    main()
