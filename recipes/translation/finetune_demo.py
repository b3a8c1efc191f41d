"""`make finetune-demo`: add length control to the plain translator, live, in minutes, without any download.

    python recipes/translation/finetune_demo.py --output_dir demo/finetune

The training pairs are the plain model's own best translations of 250 sentences: several lengths for each source. The
measure is the length error on 50 other sentences. To resume an interrupted run, repeat the command.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from hf_lenctrl.commands import train


HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]  # the recipes are scripts, not a package

import translate_demo as demo  # noqa: E402


NUM_BEAMS = 12
HELD_OUT = 50
STEPS, EVERY = 300, 50


def n_best(sources: list[str], path: Path) -> None:
    """The plain model's best translations of each source, to a file, one of each length."""
    if path.is_file():
        return
    folder = demo.MODELS / "translate_to_english_base"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    for start in range(0, len(sources), 25):
        batch = sources[start : start + 25]
        ids = model.generate(
            **tokenizer(batch, return_tensors="pt", padding=True), num_beams=NUM_BEAMS, num_return_sequences=NUM_BEAMS
        )
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        for i, source in enumerate(batch):
            best: dict[int, str] = {}
            for text in texts[i * NUM_BEAMS : (i + 1) * NUM_BEAMS]:
                best.setdefault(len(text), text)
            rows += [{"source": source, "target": text} for text in best.values()]
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    part.rename(path)


def errors(folder: Path) -> list[tuple[int, float]]:
    """Steps and mean length error on the held-out sentences, as the Trainer has logged them."""
    last = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    log = json.loads((last / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return [(row["step"], row["eval_mae"]) for row in log if "eval_mae" in row]


def plot(points: list[tuple[int, float]], path: Path) -> None:
    """Error against steps."""
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
    parser.add_argument("--output_dir", default="demo/finetune", help="training text, model and picture")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps")
    args = parser.parse_args(argv)
    out = Path(args.output_dir)
    out.mkdir(parents=True, exist_ok=True)

    print("1/3 The plain model translates 300 sentences, each in several lengths", flush=True)
    sources = demo.sentences()
    n_best(sources[:-HELD_OUT], out / "train.jsonl")
    n_best(sources[-HELD_OUT:], out / "validation.jsonl")
    print("2/3 Training with length control", flush=True)
    options = {"base_model": demo.MODELS / "translate_to_english_base", "output_dir": out / "model"}
    options |= {"train_file": out / "train.jsonl", "validation_file": out / "validation.jsonl", "dropout": 0}
    options |= {"max_steps": args.steps, "eval_steps": EVERY, "save_steps": EVERY, "logging_steps": EVERY}
    options |= {"per_device_train_batch_size": 64, "warmup_steps": 20, "generation_num_beams": 1, "use_cpu": True}
    # few sentences: the new layer learns fast, the rest hardly changes, or it would learn the sentences by heart
    options |= {"learning_rate": 2e-4, "projection_lr_factor": 25, "eval_on_start": True, "max_validation_rows": 150}
    options |= {"no_length_share": 0.25}  # the same model then knows which of several texts of a length is the best
    train.main([str(HERE / "controlled.yaml"), *(f"--{name}={value}" for name, value in options.items())])

    print("3/3 The same sentences before and after", flush=True)
    plain = demo.load("translate_to_english_base")
    task: Any = "length-controlled-generation"
    controlled = pipeline(task, model=str(out / "model"), device="cpu", num_beams=4, progress_bar=False)
    own = plain(sources[-4:])
    requests = {text: [out["length"] - 3, out["length"] + 3] for text, out in zip(sources[-4:], own, strict=True)}
    demo.show(controlled, requests, plain)
    points = errors(out / "model")
    plot(points, out / "error.png")
    print(f"\nMean length error on {HELD_OUT} sentences: {points[0][1]:.1f} characters -> {points[-1][1]:.1f}")
    print(f"Picture: {out / 'error.png'}   model: {out / 'model'}")


if __name__ == "__main__":
    demo.quiet()
    main()
