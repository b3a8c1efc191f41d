"""Show how well each length suits a sentence: the score of its text at every length, as a picture and a table.

    python lab/translation/scores.py --text "Ich habe meine Schlüssel im Büro vergessen." --output_file scores.png

The score is the log-probability of the text without a length. It falls at lengths at which the model must add or omit
words.
"""

import argparse
import sys
from pathlib import Path


sys.path.append(str(Path(__file__).resolve().parents[2] / "recipes" / "translation"))

import translate_demo as demo  # noqa: E402


def main(argv=None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default="Ich habe meine Schlüssel im Büro vergessen.", help="German or French")
    parser.add_argument("--shares", type=float, nargs=2, default=(0.6, 1.5), help="of the natural length")
    parser.add_argument("--output_file", default="demo/scores.png", help="picture")
    args = parser.parse_args(argv)
    translate = demo.load()
    natural = translate(args.text)["length"]
    low, high = (round(share * natural) for share in args.shares)
    outputs = translate(args.text, length=list(range(low, high + 1)), length_constraint="exact")
    for out in outputs:
        print(f"{out['length']:>3} {out['score']:>6.1f}  {out['generated_text']}")

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    axes.axvline(natural, color="0.8", label="natural length")
    axes.plot([out["length"] for out in outputs], [out["score"] for out in outputs], marker="o", color="#0072B2", ms=3)
    axes.set(xlabel="characters", ylabel="score (log-probability)")
    axes.legend(frameon=False)
    Path(args.output_file).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.output_file, dpi=150)


if __name__ == "__main__":
    demo.quiet()
    main()
