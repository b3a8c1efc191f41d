"""`make demo`: ten sentences translated at four lengths each, and a picture of 300 lengths.

    python recipes/translation/translate_demo.py --output_dir demo

Nothing is trained. The German and French sentences were written for this project; none is in the training data.
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


HERE = Path(__file__).resolve().parent
MODELS = HERE.parents[1] / "models"
# sentences of the table, chosen by hand, and lengths in characters at which English has a good sentence
SHOWN = {
    "Sie wartete eine Stunde, aber niemand kam.": [36, 39, 43, 45],
    "Je suis désolé d'être arrivé en retard.": [21, 26, 30, 31],
    "Die Kinder spielen im Garten, obwohl es kalt ist.": [57, 59, 62, 63],
    "Veux-tu dîner avec nous ce soir ?": [37, 42, 43, 46],
    "Das Konzert beginnt heute Abend um acht Uhr.": [45, 49, 53, 54],
    "Il ne veut plus parler de ce problème.": [48, 50, 52, 54],
    "Ich habe meine Schlüssel im Büro vergessen.": [29, 31, 37, 39],
    "J'aimerais apprendre à jouer du piano.": [34, 36, 38, 44],
    "Vergiss nicht, das Licht auszumachen, wenn du gehst.": [47, 50, 51, 52],
    "Peux-tu marcher un peu plus lentement, s'il te plaît ?": [37, 39, 44, 46],
}
LENGTHS = range(15, 81)  # of the picture, in characters


def load(name: str):
    """The pipeline of a model of this repository."""
    task: Any = "length-controlled-generation"  # the stubs of Transformers know its own tasks alone
    options: dict[str, Any] = {"num_beams": 4, "batch_size": 50, "length_unit": "character", "progress_bar": False}
    return pipeline(task, model=str(MODELS / name), device="cpu", **options)


def sentences() -> list[str]:
    """German and French in turn."""
    files = [(HERE / name).read_text(encoding="utf-8").splitlines() for name in ("german.txt", "french.txt")]
    return [sentence for pair in zip(*files, strict=True) for sentence in pair]


def show(plain, controlled, requests: dict[str, list[int]]) -> None:
    """Each sentence, the plain model's translation, and the controlled model's at exact lengths."""
    sources, ranked = list(requests), {"rerank": 16, "rerank_model": (plain.model, plain.tokenizer)}
    outputs = controlled(sources, length=list(requests.values()), length_constraint="exact", **ranked)
    for source, base, rows in zip(sources, plain(sources), outputs, strict=True):
        print(f"\n{source}\n  plain  {base['length']:>3}  {base['generated_text']}")
        for out in rows:
            print(f"  {out['requested_length']:>5}  {out['length']:>3}  {out['generated_text']}")


def measure(plain, controlled, sources: list[str]) -> list[dict]:
    """A row for each sentence: its requested length, drawn from `LENGTHS`, and the lengths that both models write."""
    requested = [LENGTHS[i % len(LENGTHS)] for i in range(len(sources))]
    random.Random(1).shuffle(requested)
    both = zip(sources, requested, plain(sources), controlled(sources, length=requested), strict=True)
    return [
        {"source": source, "requested": n, "plain": base["length"], "controlled": out["length"]}
        for source, n, base, out in both
    ]


def plot(rows: list[dict], path: Path) -> None:
    """Produced against requested length of both models, for `measure`'s rows."""
    import matplotlib

    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4.2), layout="constrained")
    ends = [LENGTHS[0], LENGTHS[-1]]
    axes.fill_between(ends, [0.9 * n for n in ends], [1.1 * n for n in ends], color="#0072B2", alpha=0.15, lw=0)
    asked = [row["requested"] for row in rows]
    style: dict[str, Any] = {"s": 16, "linewidths": 0}
    axes.scatter(asked, [row["plain"] for row in rows], color="0.65", label="plain model", **style)
    axes.scatter(asked, [row["controlled"] for row in rows], color="#0072B2", label="with length control", **style)
    axes.set(xlabel="requested characters", ylabel="produced characters", ylim=(0, 100))
    axes.text(54, 64, "± 10 %", color="#0072B2", ha="center", rotation=36)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def quiet() -> None:
    """Leave out what a reader of the demo does not need."""
    warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
    logging.getLogger("hf_lenctrl").setLevel(logging.ERROR)  # lengths of the picture that are rare in training
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def main(argv=None) -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", default="demo", help="where figures.json and lengths.png go")
    args = parser.parse_args(argv)
    out = Path(args.output_dir)
    out.mkdir(parents=True, exist_ok=True)

    plain, controlled = load("translate_to_english_base"), load("translate_to_english")
    sources = sentences()
    print("Requested and produced characters, length_constraint='exact', the best of 16 by the plain model")
    show(plain, controlled, SHOWN)
    print("\nSentences and lengths were chosen by hand: English has a good sentence of each.")

    rows = measure(plain, controlled, sources)
    print(f"\n{len(rows)} sentences, a length from {LENGTHS[0]} to {LENGTHS[-1]} requested for each, no constraint")
    print(f"{'model':<20} {'mean error':>10} {'exact':>6} {'within 10 %':>12}")
    for label, name in (("plain", "plain"), ("with length control", "controlled")):
        figures = length_metrics([row[name] for row in rows], [row["requested"] for row in rows])
        near = sum(abs(row[name] - row["requested"]) <= 0.1 * row["requested"] for row in rows) / len(rows)
        print(f"{label:<20} {figures['mae']:>10.2f} {figures['exact']:>6.0%} {near:>12.0%}")
    (out / "lengths.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    plot(rows, out / "lengths.png")
    print(f"\nPicture: {out / 'lengths.png'}")
    print("Next: `make finetune-demo` adds length control to the plain model, in minutes")


if __name__ == "__main__":
    quiet()
    main()
