"""Learn the edits of the translator: English phrases that replace each other in texts of one meaning.

    python lab/translation/edits.py models/translate_to_english/edits.json

The texts are the English ones of `data/everyday_en_de_fr`: two or three lengths of each sentence, and its rewordings.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from hf_lenctrl.inference.edits import Edits


sys.path.append(str(Path(__file__).resolve().parent))

import written  # noqa: E402


def groups() -> Iterator[list[str]]:
    """Yield the English texts of each sentence that has several."""
    more = written.rewordings()
    for _, _, text, *others in written.lines():
        texts = [one for one in (text, *others, *more.get(text, [])) if one]
        if len(texts) > 1:
            yield texts


def main(argv=None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_file", help="json file, which the field choice of a model's configuration names")
    parser.add_argument("--least", type=int, default=3, help="groups of texts that must have a pair of phrases")
    args = parser.parse_args(argv)
    edits = Edits.learn(groups(), least=args.least)
    edits.save(args.output_file)
    print(f"{args.output_file}: {len(edits.counts):,} pairs of phrases")


if __name__ == "__main__":
    main()
