"""`make finetune-demo`: add length control to a plain translator, in minutes, without a download.

    python recipes/translation/finetune_demo.py --output_dir demo/finetune

The plain translator is the plain model inside the shipped translator. The training pairs are short sentences of
data/everyday_en_de_fr, each with two or three English texts. The demo measures the length error on 60 sentences that
are not in the training data. To resume an interrupted run, repeat the command.
"""

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
from transformers import AutoTokenizer, pipeline

from hf_lenctrl import remove_length_control
from hf_lenctrl.commands import train


HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]  # the recipes are scripts and not a package

import translate_demo as demo  # noqa: E402


DATA = HERE.parents[1] / "data" / "everyday_en_de_fr"
LONGEST = 45  # characters of the first English text
# shares of the first English text's characters; a shorter text says less, a longer one is wordy
LEAST, MOST = 0.6, 1.45
SOURCES, HELD_OUT = 2000, 60
STEPS, EVERY = 60, 15
# We chose these by hand, as for `make demo`: they are not in the training data, and English has a good sentence at
# each length.
SHOWN = {
    "Sie wartete eine Stunde, aber niemand kam.": [36, 40],
    "Je suis désolé d'être arrivé en retard.": [22, 26, 30],
    "Die Kinder spielen im Garten, obwohl es kalt ist.": [50, 54, 61],
    "Veux-tu dîner avec nous ce soir ?": [37, 42, 46, 48],
}


def several(split: str, folder: Path = DATA) -> list[tuple[str, list[str]]]:
    """
    Return the sources of a split, `train` or `validation`, in German and French alternately, with two or three English
    texts each. No English text occurs twice.
    """
    found = {}
    (file,) = folder.glob(f"{split}*.parquet")
    for number, row in enumerate(pyarrow.parquet.read_table(file).to_pylist()):
        low, high = LEAST * len(row["en"]), MOST * len(row["en"])
        texts = [text for text in (row["en"], row["shorter"], row["longer"]) if low <= len(text) <= high]
        if len(texts) > 1:
            found[row["en"]] = row[("de", "fr")[number % 2]], texts
    return list(found.values())


def pairs() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return training and validation rows with the columns `source` and `target`; no source is in both."""
    rows = []
    for split, count in (("train", SOURCES), ("validation", HELD_OUT)):
        short = [(source, texts) for source, texts in several(split) if len(texts[0]) <= LONGEST]
        chosen = random.Random(1).sample(short, count)
        rows.append([{"source": source, "target": text} for source, texts in chosen for text in texts])
    return rows[0], rows[1]


def errors(folder: Path) -> list[tuple[int, float]]:
    """Return steps and mean length error on the held-out sentences from the Trainer's log."""
    last = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    log = json.loads((last / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return [(row["step"], row["eval_mae"]) for row in log if "eval_mae" in row]


def plot(points: list[tuple[int, float]], path: Path) -> None:
    """Plot the length error against the steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    axes.plot(*zip(*points, strict=True), marker="o", color="#0072B2")
    axes.set(xlabel="training steps", ylabel="mean length error (characters)", ylim=(0, None))
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(argv=None) -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", default="demo/finetune", help="training text, models and picture")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps")
    args = parser.parse_args(argv)
    out = Path(args.output_dir)
    out.mkdir(parents=True, exist_ok=True)

    for name, rows in zip(("train", "validation"), pairs(), strict=True):
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (out / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        print(f"{name}: {len(rows)} pairs", flush=True)
    plain = out / "plain"
    remove_length_control(demo.TRANSLATOR).save_pretrained(plain)
    AutoTokenizer.from_pretrained(demo.TRANSLATOR).save_pretrained(plain)
    print("1/2 Training with length control", flush=True)
    options: dict[str, Any] = {"base_model": plain, "output_dir": out / "model"}
    options |= {"train_file": out / "train.jsonl", "validation_file": out / "validation.jsonl", "dropout": 0}
    options |= {"max_steps": args.steps, "eval_steps": EVERY, "save_steps": EVERY, "logging_steps": EVERY}
    options |= {"per_device_train_batch_size": 64, "warmup_steps": 20, "generation_num_beams": 1, "use_cpu": True}
    options |= {"learning_rate": 3e-4, "projection_lr_factor": 20, "eval_on_start": True}
    options |= {"no_length_share": 0.1}  # so the model can also score which of several texts of a length is the best
    train.main([str(HERE / "controlled.yaml"), *(f"--{name}={value}" for name, value in options.items())])

    print("2/2 Sentences and lengths chosen by hand; natural: the plain model's text", flush=True)
    task: Any = "length-controlled-generation"
    controlled = pipeline(task, model=str(out / "model"), device="cpu", num_beams=4, progress_bar=False)
    demo.show(controlled, SHOWN, demo.load(plain), length_constraint="exact")
    points = errors(out / "model")
    plot(points, out / "error.png")
    print(f"\nMean length error on {HELD_OUT} sentences: {points[0][1]:.1f} characters -> {points[-1][1]:.1f}")
    print(f"Picture: {out / 'error.png'}   model: {out / 'model'}")


if __name__ == "__main__":
    demo.quiet()
    main()
