"""Whether a trained model plans strings in JSON: train a length-controlled causal model on JSON, and measure it.

    python lab/benchmarks/json_plans.py acl_titles.jsonl.gz runs/causal/base runs/json [--max_steps 300]

An answer is a title and a sentence of its abstract in JSON. In training the model is told what the processor tells it
in generation: in each string its length and the characters so far, elsewhere no length. Every seventh row tells none,
so that the same weights write JSON without a length, too. A run that was stopped goes on.

Prints a table over test abstracts, greedy. A title is complete where the base's first choice behind it, outside of
JSON, is to end the text, and its last word is unfinished where that choice goes on with the word. A sentence is
complete where it ends with a mark. "Left" is the distance to `maxLength`. A folder that holds a trained model is
measured alone.
"""

import argparse
import gzip
import json
import random
import re
import statistics
from pathlib import Path

import torch
from json_strings import XGrammar, compiled
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from hf_lenctrl import LenCtrlForCausalLM, add_length_control
from hf_lenctrl.commands.arguments import has_bfloat16
from hf_lenctrl.commands.identity import identity
from hf_lenctrl.commands.output_file import begin_folder
from hf_lenctrl.engines.json_places import Places, Reader
from hf_lenctrl.engines.json_strings import JsonStringsLogitsProcessor, StringVocabulary
from hf_lenctrl.inference.sentences import goes_on


def schema_of(title: int, sentence: int) -> dict:
    """Two strings of these lengths at most."""
    lengths = {"title": title, "sentence": sentence}
    strings = {name: {"type": "string", "maxLength": length} for name, length in lengths.items()}
    return {"type": "object", "properties": strings, "required": list(strings), "additionalProperties": False}


def prompts_of(tokenizer, rows: list[dict], tokens: int = 32) -> list[str]:
    """The first tokens of each abstract, and the line before a title."""
    ids = tokenizer([row["abstract"] for row in rows], add_special_tokens=False)["input_ids"]
    return [text.replace("\ufffd", "") + "\nTitle:\n" for text in tokenizer.batch_decode([x[:tokens] for x in ids])]


def examples(tokenizer, rows: list[dict], most: int, longest: int = 120) -> list[dict[str, list[int]]]:
    """Ids, labels, progress and length of a title with each sentence that the prompt does not show, `most` in all."""
    data, made = StringVocabulary(tokenizer).data, list[dict[str, list[int]]]()
    rows = random.sample(rows, len(rows))
    for row, prompt in zip(rows, prompts_of(tokenizer, rows), strict=True):
        if len(made) >= most:
            break
        start = tokenizer(prompt)["input_ids"]
        behind = row["abstract"][len(prompt) :]
        for sentence in re.split(r"(?<=[.!?]) (?=[A-Z])", behind)[1:]:
            if not 30 <= len(sentence) <= longest:
                continue
            text = json.dumps({"title": row["title"], "sentence": sentence}, ensure_ascii=False)
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            reader, told = Reader(Places(schema_of(len(row["title"]), len(sentence)))), [(-1, 0)] * len(start)
            for i in ids:
                reader.read(data[i])
                told.append(reader.told if len(made) % 7 else (-1, 0))
            progress, length = (list(x) for x in zip(*told, (-1, 0), strict=True))
            ids = [*start, *ids, tokenizer.eos_token_id]
            labels = [-100] * len(start) + ids[len(start) :]
            made.append({"input_ids": ids, "labels": labels, "progress": progress, "length": length})
    return made


def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pad to the longest row; the loss ignores the padding."""
    fill, width = {"input_ids": 0, "labels": -100, "progress": -1, "length": 0}, max(len(x["labels"]) for x in rows)
    return {
        name: torch.tensor([x[name] + [empty] * (width - len(x[name])) for x in rows]) for name, empty in fill.items()
    }


def train(base: str, tokenizer, rows: list[dict], args) -> None:
    """Train the model and save it."""
    args.output_dir.mkdir(parents=True, exist_ok=True)
    set_seed(1)
    made = examples(tokenizer, rows, 32 * args.max_steps)
    print(f"{len(made):,} rows", flush=True)
    options = TrainingArguments(
        output_dir=str(args.output_dir),
        max_steps=args.max_steps,
        per_device_train_batch_size=32,
        train_sampling_strategy="group_by_length",
        learning_rate=6e-4,
        lr_scheduler_type="cosine",
        warmup_steps=0.05,
        weight_decay=0.05,
        adam_beta2=0.98,
        bf16=has_bfloat16(),
        use_cpu=not torch.cuda.is_available(),
        logging_steps=25,
        save_steps=100,
        save_total_limit=1,
        seed=1,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    plain = AutoModelForCausalLM.from_pretrained(base, dtype="float32")
    model = add_length_control(plain, tokenizer=tokenizer, length_encoding="ldpe", length_unit="character")
    trainer = Trainer(model=model, args=options, data_collator=collate, train_dataset=made)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(args.output_dir)))
    trainer.save_model()


class Judge:
    """What the base, outside of JSON, would write behind a title: `"complete"`, `"unfinished"` (the word) or `""`."""

    def __init__(self, base, tokenizer):
        self.base, self.tokenizer = base, tokenizer
        self.pieces = StringVocabulary(tokenizer).pieces

    @torch.no_grad()
    def __call__(self, prompt: str, title: str) -> str:
        """Read a title behind its prompt."""
        first = int(self.base(**self.tokenizer(prompt + title, return_tensors="pt")).logits[0, -1].argmax())
        if first == self.tokenizer.eos_token_id:
            return "complete"
        return "unfinished" if title[-1:].isalnum() and goes_on(self.pieces[first]) else ""


def outputs(model, tokenizer, prompts: list[str], schema: dict, way: str) -> list[str]:
    """What a model writes: with xgrammar alone, with the lengths, or told them as well."""
    texts = []
    for k in range(0, len(prompts), 50):
        inputs = tokenizer(prompts[k : k + 50], return_tensors="pt", padding=True, padding_side="left")
        rows, start = inputs["input_ids"].shape
        lengths = JsonStringsLogitsProcessor(schema, tokenizer, prompt_length=start)
        plain = schema if way == "xgrammar" else lengths.places.plain
        grammar = XGrammar(compiled(plain, tokenizer), rows, len(tokenizer), start)
        mask = grammar if way in ("xgrammar", "told alone") else lengths
        options = {"length": lengths} if way.startswith("told") else {}
        out = model.generate(**inputs, **options, logits_processor=[mask], max_new_tokens=150, do_sample=False)
        texts += [lengths.finish(ids) for ids in out.tolist()]
    return texts


def figures(judge: Judge, prompts: list[str], texts: list[str], schema: dict) -> dict[str, list[float]]:
    """Of each valid output, what the table averages."""
    found: dict[str, list[float]] = {}
    most = {name: string["maxLength"] for name, string in schema["properties"].items()}
    for prompt, text in zip(prompts, texts, strict=True):
        try:
            values = json.loads(text)
        except ValueError:
            values = {}
        found.setdefault("valid", []).append(100 * (values.keys() == most.keys()))
        if values.keys() != most.keys():
            continue
        verdict = judge(prompt, values["title"])
        found.setdefault("title complete", []).append(100 * (verdict == "complete"))
        found.setdefault("its last word unfinished", []).append(100 * (verdict == "unfinished"))
        found.setdefault("sentence complete", []).append(100 * values["sentence"].endswith((".", "!", "?")))
        for name, value in values.items():
            found.setdefault(f"left, {name}", []).append(abs(most[name] - len(value)))
            found.setdefault("too long", []).append(100 * (len(value) > most[name]))
    return found


def main(argv=None) -> None:
    """Train and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="JSON lines with split, abstract and title")
    parser.add_argument("base", help="plain model that writes titles")
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--max_steps", type=int, default=300)
    parser.add_argument("--rows", type=int, default=100, help="test abstracts")
    parser.add_argument("--lengths", type=int, nargs="+", default=[60, 90], help="of titles; sentences: 30 more")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    with gzip.open(args.data, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    tokenizer = AutoTokenizer.from_pretrained(args.base)
    options = {"data": identity(args.data), "base": identity(args.base), "max_steps": args.max_steps}
    begin_folder(args.output_dir, options, any(args.output_dir.glob("c*")))  # config.json, checkpoint-*
    if not (args.output_dir / "config.json").exists():
        train(args.base, tokenizer, [row for row in rows if row["split"] == "train"], args)
    test = [row for row in rows if row["split"] == "test"]
    test = random.Random(1).sample(test, args.rows)
    prompts = prompts_of(tokenizer, test)
    base = AutoModelForCausalLM.from_pretrained(args.base, dtype="float32").eval()
    model = LenCtrlForCausalLM.from_pretrained(args.output_dir).eval()
    judge = Judge(base, tokenizer)
    own = [judge(prompt, row["title"]) for prompt, row in zip(prompts, test, strict=True)]
    print(
        "true titles: " + ", ".join(f"{100 * own.count(x) / len(own):.1f} % {x}" for x in ("complete", "unfinished"))
    )
    ways = {
        "base, xgrammar alone": (base, "xgrammar"),
        "base, lengths": (base, "lengths"),
        "trained, lengths": (model.language_model, "lengths"),
        "trained and told, lengths": (model, "told"),
        "trained and told, no mask": (model, "told alone"),
    }
    for k, (name, (writer, way)) in enumerate(ways.items()):
        found: dict[str, list[float]] = {}
        for length in args.lengths:
            schema = schema_of(length, length + 30)
            texts = outputs(writer, tokenizer, prompts, schema, way)
            for column, values in figures(judge, prompts, texts, schema).items():
                found.setdefault(column, []).extend(values)
        if k == 0:
            print("| | " + " | ".join(found) + " |\n" + "|---" * (len(found) + 1) + "|")
        print(f"| {name} | " + " | ".join(f"{statistics.mean(x):.1f}" for x in found.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
