"""`make demo`: let the shipped model write, then train a length-controlled and a plain model, and compare them.

    python recipes/headline/demo.py --output_dir demo

The training text is the docstrings of the installed packages: body -> summary line; tests are on packages that
the models never saw. Trains 5 minutes at most for the length-controlled model and 2 for the plain one.
"""

import argparse
import json
import logging
import sys
from pathlib import Path

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer


HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]  # the recipes are scripts, not a package

import docstrings  # noqa: E402

from hf_lenctrl import length_metrics  # noqa: E402
from hf_lenctrl.experiment import train as train_seq2seq  # noqa: E402
from hf_lenctrl.experiment.generate import generate  # noqa: E402


SHIPPED = HERE.parents[1] / "models" / "debian_headlines"
LENGTHS = (20, 40, 60)
TEXTS = (
    "This program plays music files of all common formats. It shows the words of a song while it plays, keeps lists "
    "of what was heard most, and can be steered from a telephone in the same network.",
    "A library that reads and writes spreadsheets without an office suite. It keeps formulas, styles and charts, and "
    "works on files larger than memory. It comes with bindings for Python and a tool for the command line.",
)


def show(folder: Path, lengths: tuple = (30, 50, 75)) -> None:
    """What the shipped model makes of two descriptions, at exact lengths."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    requests = [(text, n) for text in TEXTS for n in lengths]
    rows = generate(model, tokenizer, *map(list, zip(*requests, strict=True)), num_beams=4, length_constraint="exact")
    for i, row in enumerate(rows):
        if i % len(lengths) == 0:
            print(f"\n{row['source']}")
        print(f"  {row['requested']:>5}  {row['output']}  ({row['length']})")


def train(folder: Path, data: Path, extra: list[str]) -> None:
    """One run of the training recipe on the demo's YAML."""
    train_seq2seq.main(
        [str(HERE / "demo.yaml"), "--train_file", str(data / "train.jsonl"), "--output_dir", str(folder), *extra]
    )


def write(folder: Path, sources: list[str], lengths: tuple) -> dict[int | None, list[dict]]:
    """What the model in `folder` writes for each source at each length."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    how = {"num_beams": 4, "batch_size": 50, "length_unit": "character"}  # a plain model knows no unit
    rows = generate(model, tokenizer, sources * len(lengths), [n for n in lengths for _ in sources], **how)
    return {n: rows[i * len(sources) : (i + 1) * len(sources)] for i, n in enumerate(lengths)}


def plot(path: Path, controlled: dict, plain: list[dict]) -> None:
    """Requested against produced length, both models."""
    import matplotlib

    logging.getLogger("matplotlib").setLevel(logging.WARNING)

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    produced = [[row["length"] for row in plain]] * len(LENGTHS)
    for label, colour, shift, values in (
        ("plain Transformer", "#c44e52", -2.2, produced),
        ("length-controlled (LDPE)", "#4c72b0", 2.2, [[row["length"] for row in controlled[n]] for n in LENGTHS]),
    ):
        parts = axes.violinplot(values, [n + shift for n in LENGTHS], widths=4, showmedians=True)
        for name in ("cbars", "cmins", "cmaxes", "cmedians"):
            parts[name].set_color(colour)
        plt.setp(parts["bodies"], facecolor=colour)
        axes.plot([], [], color=colour, label=label)
    axes.plot(LENGTHS, LENGTHS, "k--", linewidth=0.8, label="what was asked for")
    axes.set(xlabel="requested characters", ylabel="produced characters", xticks=LENGTHS, ylim=(0, 110))
    axes.set_title(f"{len(plain)} texts of packages unseen in training, beam 4, no constraint")
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(argv=None) -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", default="demo")
    parser.add_argument("--test_texts", type=int, default=300, help="texts to measure on")
    parser.add_argument("training_options", nargs="*", help="after --: options for recipes/train_seq2seq.py")
    args = parser.parse_args(argv)
    out = Path(args.output_dir)

    print("1/5 The shipped model writes headlines of 30, 50 and 75 characters", flush=True)
    show(SHIPPED)
    print("\n2/5 Mining docstrings of the installed packages", flush=True)
    docstrings.main(["--output_dir", str(out / "data")])
    print("3/5 Training the length-controlled model (LDPE)", flush=True)
    train(out / "model", out / "data", ["--max_train_minutes", "5", *args.training_options])
    print("4/5 Training the plain Transformer", flush=True)
    plain = {"length_encoding": "none", "tokenizer_name_or_path": out / "model"}
    plain |= {"max_train_minutes": 2, "max_steps": 600}
    train(out / "plain", out / "data", [f"--{k}={v}" for k, v in plain.items()] + args.training_options)

    print("5/5 Writing", flush=True)
    with open(out / "data" / "test.jsonl", encoding="utf-8") as file:
        sources = [json.loads(line)["source"] for line in file]
    sources = sources[:: max(1, len(sources) // args.test_texts)][: args.test_texts]
    controlled = write(out / "model", sources, LENGTHS)
    uncontrolled = write(out / "plain", sources, (None,))[None]
    for i in range(0, len(sources), -(-len(sources) // 5)):
        print(f"\n{sources[i][:300]}")
        for n in LENGTHS:
            print(f"  {n:>5}  {controlled[n][i]['output']}  ({controlled[n][i]['length']})")
        print(f"  plain  {uncontrolled[i]['output']}  ({uncontrolled[i]['length']})")

    print(f"\n{len(sources)} texts, lengths in characters, beam 4, unconstrained")
    print(f"{'model':<18} {'requested':>9} {'variance':>9} {'MAE':>7} {'exact %':>8}")
    figures = {}
    for name, rows_at in (
        ("length-controlled", controlled),
        ("plain Transformer", dict.fromkeys(LENGTHS, uncontrolled)),
    ):
        for n in LENGTHS:
            figure = length_metrics([row["length"] for row in rows_at[n]], [n] * len(sources))
            figures[f"{name} {n}"] = figure
            print(f"{name:<18} {n:>9} {figure['variance']:>9.2f} {figure['mae']:>7.2f} {100 * figure['exact']:>8.1f}")
    (out / "figures.json").write_text(json.dumps(figures, indent=1))
    plot(out / "lengths.png", controlled, uncontrolled)
    print(f"\nPlot: {out / 'lengths.png'}   model: {out / 'model'}   Next, with .venv/bin/python:\n")
    print("  import hf_lenctrl; from transformers import AutoModelForSeq2SeqLM as M, AutoTokenizer as T")
    print(f"  tok, model = T.from_pretrained('{out / 'model'}'), M.from_pretrained('{out / 'model'}')")
    print("  print(tok.batch_decode(model.generate(**tok('TEXT', return_tensors='pt'), length=50), True))")


if __name__ == "__main__":
    main()
