"""Teach the translator to reword for a length: it learns to prefer a text that was written for the length to its own.

    python lab/translation/preference.py write --model models/translate_to_english --output_file pairs.jsonl
    python lab/translation/preference.py train pairs.jsonl --model models/translate_to_english \\
        --corpora tatoeba_de_en.jsonl.gz interface_de_en.jsonl.gz everyday_de_en.jsonl.gz --output_dir runs/preference
    python lab/translation/preference.py mix models/translate_to_english runs/preference --output_dir runs/mixed

A model that learns from single texts ends at its length: for "Garde ça pour toi, c'est un secret." and 26 characters
it thinks "Keep it to you, it's a me." likelier than "Don't tell, it's a secret.". `write` writes the model's two best
texts of exactly the length of a text of data/everyday_en_de_fr, and keeps those that are bad: without a length they
are unlikely. `train` adds the loss of CPO (Xu et al. 2024) to the cross entropy, -log sigmoid(beta * (log p(written)
- log p(own))), both at their length. A step has as many other rows, drawn as by epochs.py. A run that died resumes.
`mix` goes back a part of the way, because the trained model has forgotten some names and rare words.
"""

import argparse
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import epochs
import everyday
import torch
import written
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Seq2SeqTrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from hf_lenctrl import DataCollatorForLengthControl, LengthControlledGenerationPipeline, LengthControlTrainer
from hf_lenctrl.inference.ranking import log_probabilities


SHORTEST, LONGEST, SAME = (
    0.55,
    1.55,
    0.03,
)  # shares of the English text's characters; a text of about its length is none
LIKELY, BETTER = 4, 7  # an own text is not bad if its log-probability is so near to the English text's, or to both
SMOOTHING, DROPOUT = 0.1, 0.1
AT_ONCE = 512  # sources of a call


def written_pairs(count: int, seed: int, texts_of: str) -> list[dict[str, Any]]:
    """
    Draw rows with a written text of another length, one for each sentence, in German or in French. `texts_of` names
    the list of the texts, or is `"train"`.
    """
    draw, more, rows = random.Random(seed), written.rewordings(), []
    for line in written.read("condensed" if texts_of == "condensed" else "train"):
        if texts_of == "condensed":
            texts = line["texts"]
        else:
            texts = more.get(line["en"], []) if texts_of == "rewordings" else [line["shorter"], line["longer"]]
        shares = {text: len(text) / len(line["en"]) for text in texts if text}
        fitting = [text for text, q in shares.items() if SHORTEST <= q <= LONGEST and not abs(q - 1) < SAME]
        if len(line["en"]) >= 14 and fitting:
            source = line[draw.choice([code for code in ("de", "fr") if line[code]])]
            rows.append({"source": source, "target": draw.choice(fitting), "natural": line["en"]})
    draw.shuffle(rows)
    return rows[:count]


def own_texts(pipe: LengthControlledGenerationPipeline, rows: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield pairs of a written text and a bad own one, of the same length."""
    options: dict[str, Any] = {"length_constraint": "exact", "length_tolerance": 0, "choose": False, "scores": False}
    options |= {"num_beams": 4, "num_return_sequences": 2, "batch_size": 64}
    rows = sorted(rows, key=lambda row: len(row["target"]))
    found = pipe([row["source"] for row in rows], length=[len(row["target"]) for row in rows], **options)
    own = [[out["generated_text"] for out in outputs] for outputs in found]
    texts = [text for row, two in zip(rows, own, strict=True) for text in (row["natural"], row["target"], *two)]
    sources = [row["source"] for row in rows for _ in range(4)]
    scores = iter(log_probabilities(pipe.model, pipe.tokenizer, sources, texts))
    for row, two in zip(rows, own, strict=True):
        natural, target = next(scores), next(scores)
        for text in two:
            score = next(scores)
            good = score > natural - LIKELY or score > max(target, natural - BETTER)
            if text not in (row["target"], row["natural"]) and not good:
                yield {"source": row["source"], "target": row["target"], "own": text}


def write(args: argparse.Namespace) -> None:
    """Write the pairs."""
    pipe = LengthControlledGenerationPipeline(
        model=AutoModelForSeq2SeqLM.from_pretrained(args.model, dtype="float32").eval(),
        tokenizer=AutoTokenizer.from_pretrained(args.model),
    )
    rows = written_pairs(args.rows, args.seed, args.texts)
    part = Path(args.output_file + ".part")
    with part.open("w", encoding="utf-8") as file:
        for start in range(0, len(rows), AT_ONCE):
            for pair in own_texts(pipe, rows[start : start + AT_ONCE]):
                file.write(json.dumps(pair, ensure_ascii=False) + "\n")
            print(f"{min(start + AT_ONCE, len(rows))} of {len(rows)} rows", flush=True)
    part.rename(args.output_file)


def similar(rows: list, size: int, key: Callable, seed: int) -> list[list]:
    """Return batches of rows of similar length, in random order."""
    draw, batches = random.Random(seed), []
    rows = draw.sample(rows, len(rows))
    for start in range(0, len(rows) - size + 1, 20 * size):
        part = sorted(rows[start : start + 20 * size], key=key)
        own = [part[i : i + size] for i in range(0, len(part) - size + 1, size)]
        batches += draw.sample(own, len(own))
    return batches


class Steps(Dataset):
    """The rows of each step: pairs, and other rows (source, target, always with a length)."""

    def __init__(self, pairs: list[dict[str, str]], rows: list[epochs.Row], steps: int, size: int):
        self.pairs: list[list] = []
        self.rows: list[list] = []
        while len(self.pairs) < steps:
            self.pairs += similar(pairs, size, lambda pair: len(pair["target"]), len(self.pairs))
        while len(self.rows) < steps:
            self.rows += similar(rows, size, lambda row: len(row[1]), len(self.rows))
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, at: int) -> tuple[int, list, list]:
        return at, self.pairs[at], self.rows[at]


class Collator:
    """A collator of one step: batches `told`, the written texts before the own ones, and `others`."""

    def __init__(self, tokenizer, model):
        self.tokenizer, self.collate = tokenizer, DataCollatorForLengthControl(tokenizer, model=model)

    def _encode(self, source: str, target: str) -> dict[str, list[int]]:
        ids = self.tokenizer(source)["input_ids"][: epochs.SOURCE]
        return {"input_ids": ids, "labels": self.tokenizer(text_target=target)["input_ids"][: epochs.TARGET]}

    def __call__(self, steps: list[tuple[int, list, list]]) -> dict[str, dict[str, torch.Tensor]]:
        ((at, pairs, rows),) = steps
        told = [self._encode(pair["source"], pair[name]) for name in ("target", "own") for pair in pairs]
        others = self.collate([self._encode(source, target) for source, target, _ in rows])
        kind, share = torch.rand(2, len(rows), generator=torch.Generator().manual_seed(at))
        always, length = torch.tensor([row[2] for row in rows]), others["length"]
        over = (kind < epochs.OVERSHOOT) & (length > 1) & ~always
        without = (kind >= epochs.OVERSHOOT) & (kind < epochs.OVERSHOOT + epochs.WITHOUT) & ~always
        half = (length // 2).clamp(min=1)
        shorter = half + (share * (length - half)).long()
        early = self.collate.unit_table.progress(others["decoder_input_ids"]) < shorter.unsqueeze(1)
        others["labels"] = others["labels"].masked_fill(over.unsqueeze(1) & early, -100)
        others["length"] = torch.where(over, shorter, length).masked_fill(without, 0)
        return {"told": dict(self.collate(told)), "others": dict(others)}


class PreferenceTrainer(LengthControlTrainer):
    """A trainer with the loss of CPO on pairs, and cross entropy on their written texts and on other rows."""

    beta, weight = 0.2, 1.0
    shown: list[float] = []

    def remember_lengths(self) -> None:
        """Keep the model's `trained_lengths`."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        others, told = inputs["others"], inputs["told"]
        logits = model(**others, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), others["labels"].flatten(), label_smoothing=SMOOTHING)
        labels, count = told["labels"], len(told["labels"]) // 2
        one = {name: told[name][:count] for name in ("input_ids", "attention_mask")}  # both texts have this source
        states = model.get_encoder()(**one).last_hidden_state
        given = {name: told[name] for name in ("attention_mask", "labels", "length")}
        scores = model(encoder_outputs=(torch.cat([states, states]),), use_cache=False, **given).logits.log_softmax(-1)
        seen = labels != -100  # (2B, T)
        chosen = scores.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1) * seen  # (2B, T)
        better = chosen[:count].sum(1) - chosen[count:].sum(1)  # (B,)
        smooth = (scores[:count].mean(-1) * seen[:count]).sum()
        written = -((1 - SMOOTHING) * chosen[:count].sum() + SMOOTHING * smooth) / seen[:count].sum()
        preference = -F.logsigmoid(self.beta * better).mean()
        self.shown = [loss.item(), written.item(), preference.item(), (better > 0).float().mean().item()]
        return loss + written + self.weight * preference

    def log(self, logs, start_time=None):
        if self.shown:
            names = ("others", "written", "preference", "ordered")
            logs = {**logs, **dict(zip(names, (round(value, 3) for value in self.shown), strict=True))}
        super().log(logs, start_time)


def train(args: argparse.Namespace) -> None:
    """Train on pairs and on other rows."""
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="sdpa")
    for module in model.modules():
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = DROPOUT
    pairs = [json.loads(line) for path in args.pairs for line in Path(path).read_text(encoding="utf-8").splitlines()]
    files = [(Path(path).name, *everyday.read(path)) for path in args.corpora]
    drawn = [row for row in epochs.draw_rows(files, args.seed) if row[0].strip() and 0 < len(row[1].strip()) < 200]
    reworded = [row for row in drawn if row[2]]
    half = args.max_steps * args.batch_size // 2
    rows = drawn[:half] + random.Random(args.seed).sample(reworded, min(half, len(reworded)))
    options: dict[str, Any] = {"learning_rate": args.learning_rate, "warmup_steps": 20, "lr_scheduler_type": "linear"}
    options |= {"adam_beta2": 0.98, "adam_epsilon": 1e-9, "seed": args.seed, "max_steps": args.max_steps}
    options |= {"save_steps": 100, "save_total_limit": 1, "logging_steps": 20, "report_to": "none"}
    options |= {"train_sampling_strategy": "sequential", "remove_unused_columns": False, "disable_tqdm": True}
    trainer = PreferenceTrainer(
        model,
        Seq2SeqTrainingArguments(args.output_dir, per_device_train_batch_size=1, use_cpu=args.use_cpu, **options),
        DataCollatorForLengthControl(tokenizer, model=model),
        train_dataset=Steps(pairs, rows, args.max_steps, args.batch_size),
        train_collator=Collator(tokenizer, model),
        processing_class=tokenizer,
        weights_dtype="float16",
    )
    trainer.beta, trainer.weight = args.beta, args.weight
    last = get_last_checkpoint(args.output_dir) if Path(args.output_dir).is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    trainer.save_model()


def mix(args: argparse.Namespace) -> None:
    """Save the model between two of the same shape (Wortsman et al. 2022), with the other files of the first."""
    shutil.copytree(args.models[0], args.output_dir)
    one, two = (load_file(Path(path, "model.safetensors")) for path in args.models)
    between = {
        name: weight.float().lerp(two[name].float(), args.share).to(weight.dtype)
        if weight.is_floating_point()
        else weight
        for name, weight in one.items()
    }
    save_file(between, Path(args.output_dir, "model.safetensors"), {"format": "pt"})


def main(argv=None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    writing = parts.add_parser("write", help="write pairs of a written text and a bad own one")
    writing.add_argument("--rows", type=int, default=12000, help="sentences; one in four has no bad text")
    lists = ("train", "rewordings", "condensed")
    writing.add_argument("--texts", choices=lists, default="train", help="list of the data set with the written texts")
    writing.add_argument("--output_file", required=True)
    training = parts.add_parser("train", help="train on the pairs")
    training.add_argument("pairs", nargs="+", help="files of `write`")
    training.add_argument("--corpora", nargs="+", required=True, help="jsonl.gz, as for epochs.py")
    training.add_argument("--output_dir", required=True)
    training.add_argument("--max_steps", type=int, default=1000)
    training.add_argument("--batch_size", type=int, default=32, help="pairs of a step, and other rows")
    training.add_argument("--learning_rate", type=float, default=1.5e-4)
    training.add_argument("--beta", type=float, default=0.2)
    training.add_argument("--weight", type=float, default=1.0, help="of the preference, beside cross entropies of 1")
    training.add_argument("--use_cpu", action="store_true")
    mixing = parts.add_parser("mix", help="save the model between two models")
    mixing.add_argument("models", nargs=2)
    mixing.add_argument("--share", type=float, default=0.45, help="of the second model")
    mixing.add_argument("--output_dir", required=True)
    for part in (writing, training):
        part.add_argument("--model", required=True)
        part.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    {"write": write, "train": train, "mix": mix}[args.part](args)


if __name__ == "__main__":
    main()
