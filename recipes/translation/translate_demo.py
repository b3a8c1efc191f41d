"""`make demo`: translate ten sentences at several lengths, and plot 100 lengths.

    python recipes/translation/translate_demo.py --output_dir demo

The demo trains nothing. The German and French sentences were written for this project, separately from the training
data; by chance the training data has about 20 of the 300 sentences.
"""

import argparse
import json
import logging
import random
import warnings
from pathlib import Path
from typing import Any

from transformers import pipeline
from transformers.utils import logging as transformers_logging

import hf_lenctrl  # noqa: F401, registers the models and the pipeline
from hf_lenctrl import length_metrics
from hf_lenctrl.inference.sentences import ends


HERE = Path(__file__).resolve().parent
TRANSLATOR = HERE.parents[1] / "models" / "translate_to_english"
# We chose these sentences and lengths (in characters) by hand: English has a good sentence near each length.
SHOWN = {
    "Sie wartete eine Stunde, aber niemand kam.": [32, 42, 45],
    "Je suis désolé d'être arrivé en retard.": [20, 30],
    "Die Kinder spielen im Garten, obwohl es kalt ist.": [46, 52, 68],
    "Veux-tu dîner avec nous ce soir ?": [39, 48],
    "Das Konzert beginnt heute Abend um acht Uhr.": [35, 49],
    "Il ne veut plus parler de ce problème.": [41, 46, 57],
    "Ich habe meine Schlüssel im Büro vergessen.": [34, 36],
    "J'aimerais apprendre à jouer du piano.": [32, 42, 45],
    "Vergiss nicht, das Licht auszumachen, wenn du gehst.": [45, 56, 62],
    "Peux-tu marcher un peu plus lentement, s'il te plaît ?": [33, 44],
}
DRAWN = 100  # number of sentences in the picture
SHARES = (0.8, 1.2)  # the picture's requested lengths as shares of the natural length


def load(folder: Path = TRANSLATOR):
    """Load the pipeline of a model, by default of the shipped translator."""
    task: Any = "length-controlled-generation"  # the stubs of Transformers only know its own tasks
    options: dict[str, Any] = {"num_beams": 4, "batch_size": 50, "length_unit": "character", "progress_bar": False}
    return pipeline(task, model=str(folder), device="cpu", **options)


def sentences() -> list[str]:
    """Return the demo's sentences, German and French alternately."""
    files = [(HERE / name).read_text(encoding="utf-8").splitlines() for name in ("german.txt", "french.txt")]
    return [sentence for pair in zip(*files, strict=True) for sentence in pair]


def show(translate, requests: dict[str, list[int]], plain=None, **options) -> None:
    """Print for each sentence the output of `plain` (by default the same model), and the outputs with a length."""
    sources = list(requests)
    outputs = translate(sources, length=list(requests.values()), **options)
    for source, natural, rows in zip(sources, (plain or translate)(sources), outputs, strict=True):
        print(f"\n{source}\n  natural          {natural['length']:>3}  {natural['generated_text']}")
        for out in rows:
            low, high = out.get("window", [out["requested_length"]] * 2)
            window = "" if low == high else f"{low} to {high}"
            print(f"  {out['requested_length']:>7} {window:>8} {out['length']:>3}  {out['generated_text']}")


def measure(translate, sources: list[str]) -> list[dict]:
    """Return a row for each sentence: a random length near the natural length, and the texts without and with it."""
    draw, natural = random.Random(1), translate(sources)
    requested = [round(draw.uniform(*SHARES) * out["length"]) for out in natural]
    outputs = translate(sources, length=requested)
    return [
        {"source": source, "requested": n, "natural": out["generated_text"], "text": of_length["generated_text"]}
        for source, n, out, of_length in zip(sources, requested, natural, outputs, strict=True)
    ]


def plot(rows: list[dict], path: Path) -> None:
    """Plot the rows of `measure`: lengths of texts without and with a length, against the requested lengths."""
    import matplotlib

    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4.2), layout="constrained")
    asked = [row["requested"] for row in rows]
    style: dict[str, Any] = {"s": 16, "linewidths": 0}
    axes.scatter(asked, [len(row["natural"]) for row in rows], color="0.65", label="without a length", **style)
    axes.scatter(asked, [len(row["text"]) for row in rows], color="#0072B2", label="with a length", **style)
    axes.set(xlabel="requested characters", ylabel="produced characters")
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def quiet() -> None:
    """Hide log messages that a reader of the demo does not need."""
    warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
    logging.getLogger("hf_lenctrl").setLevel(logging.ERROR)  # some lengths of the picture are rare in training
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def main(argv=None) -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", default="demo", help="where figures.json and lengths.png go")
    args = parser.parse_args(argv)
    out = Path(args.output_dir)
    out.mkdir(parents=True, exist_ok=True)

    translate = load()
    print("Requested characters, their window of 10 %, produced characters; natural: without a length")
    show(translate, SHOWN)
    print("\nSentences and lengths were chosen by hand: English has a good sentence near each.")

    rows = measure(translate, sentences()[:DRAWN])
    print(
        f"\n{len(rows)} sentences, not chosen, for each a length of {SHARES[0]} to {SHARES[1]} times its natural one"
    )
    print(f"{'length':<10} {'mean error':>10} {'within 10 %':>12} {'final mark':>11}")
    for label, name in (("without", "natural"), ("with", "text")):
        lengths = [len(row[name]) for row in rows], [row["requested"] for row in rows]
        figures = length_metrics(*lengths, tolerance=0.1)
        whole = sum(ends(row[name]) for row in rows) / len(rows)
        print(f"{label:<10} {figures['mae']:>10.2f} {figures['within']:>12.0%} {whole:>11.0%}")
    (out / "lengths.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    plot(rows, out / "lengths.png")
    print(f"\nPicture: {out / 'lengths.png'}")
    print("Next: `make finetune-demo` adds length control to the plain model, in minutes")


if __name__ == "__main__":
    quiet()
    main()
