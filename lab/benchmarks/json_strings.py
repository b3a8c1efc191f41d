"""JSON with strings of a length: xgrammar and llguidance alone beside `JsonStringsLogitsProcessor`.

    python lab/benchmarks/json_strings.py runs/causal/base [--rows 1000] [--bounds 1000 100000 524288] \\
        [--entries 8000]

First the outputs: the model continues a prompt by sampling, in JSON with two strings. Prints for each way the outputs
that are valid, the strings that are too long, the words that are cut, and the mean length. A word is cut where a
string ends, the model's first choice goes on with the word, and that has no room. "No word fits" counts such strings
where no word stands before it, or fewer characters than `minLength`. All outputs are read by the same rule, behind the
entries that the model chose, and "anew", behind those into which the tokenizer splits the same text: where they
differ, so may the first choice. Then the milliseconds of a step in a string of each bound, at its start and in its
last 20 characters, without the model: medians of rounds in turn, of the time of one thread. The first round is not
counted, so what a tokenizer needs once is not, either. `--entries 150000` times a vocabulary of made-up words instead.
"""

import argparse
import copy
import functools
import json
import math
import random
import statistics
import time
from collections import Counter

import torch
from jsonschema import Draft202012Validator
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.generation import LogitsProcessor

from hf_lenctrl.cache import CACHE
from hf_lenctrl.engines.json_grammars import GRAMMARS, compile_schema
from hf_lenctrl.engines.json_places import PLAIN, Places, Reader
from hf_lenctrl.engines.json_strings import JsonStringsLogitsProcessor, forbid
from hf_lenctrl.inference.sentences import goes_on


SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 10, "maxLength": 40},
        "topic": {"type": "string", "maxLength": 20},
    },
    "required": ["title", "topic"],
    "additionalProperties": False,
}
PROMPT = (
    "Sarcasm is hard to detect in short messages. We train a neural network that reads a message together with the "
    "conversation before it. The conversation helps more than any feature of the message itself.\nTitle:\n"
)


def compiled(name: str, schema: dict, tokenizer):
    """What makes a matcher of a grammar engine."""
    return compile_schema(name, schema, tokenizer, len(tokenizer), (tokenizer.eos_token_id,))


class Alone(LogitsProcessor):
    """A grammar engine alone."""

    def __init__(self, new_matcher, rows: int, prompt_length: int):
        self.matchers, self.position = [new_matcher() for _ in range(rows)], prompt_length

    def __call__(self, input_ids, scores):
        """Forbid what the grammar forbids."""
        scores = scores.clone()
        for i, matcher in enumerate(self.matchers):
            for k, entry in enumerate(input_ids[i, self.position :].tolist()):
                if not matcher.ended:
                    matcher.read(entry)
                if k % 100 == 99:  # llguidance has a limit for what is read between two masks
                    matcher.allowed()
            if not matcher.ended:
                forbid(matcher.allowed(), scores[i])
        self.position = input_ids.shape[1]
        return scores


Output = tuple[list[int], str]  # entries, and the text that a user gets


def outputs(model, tokenizer, rows: int, batch_size: int) -> dict[str, list[Output]]:
    """The outputs of each way."""
    inputs = tokenizer([PROMPT] * batch_size, return_tensors="pt")
    start = inputs["input_ids"].shape[1]
    made: dict[str, list[Output]] = {"xgrammar": [], "llguidance": [], "lengths": [], "lengths, finished": []}
    grammars = {name: compiled(name, SCHEMA, tokenizer) for name in GRAMMARS}
    for batch in range(rows // batch_size):
        for name in (*GRAMMARS, "lengths"):
            torch.manual_seed(batch)
            ours = JsonStringsLogitsProcessor(SCHEMA, tokenizer, prompt_length=start)
            process = ours if name == "lengths" else Alone(grammars[name], batch_size, start)
            options = {"do_sample": True, "top_k": 50, "max_new_tokens": 150, "use_cache": True}
            whole = model.generate(**inputs, **options, logits_processor=[process])
            ids = whole[:, start:]
            texts = tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            made[name] += zip(ids.tolist(), texts, strict=True)
            if name == "lengths":
                made["lengths, finished"] += zip(ids.tolist(), map(ours.finish, whole.tolist()), strict=True)
    return made


class Judge:
    """Whether the last word of a string is cut: the model's first choice behind it, in the grammar without lengths."""

    def __init__(self, model, tokenizer):
        self.model, self.tokenizer, self.places = model, tokenizer, Places(SCHEMA)
        self.grammar = compiled("xgrammar", self.places.plain, tokenizer)
        self.vocabulary = JsonStringsLogitsProcessor(SCHEMA, tokenizer).vocabulary
        self.prompt = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            self.cache = model(self.prompt, use_cache=True)[CACHE]
        self.first = functools.cache(self._first)

    @torch.no_grad()
    def _first(self, ids: tuple[int, ...]) -> int:
        matcher = self.grammar()
        for i in ids:
            matcher.read(i)
        cache = copy.deepcopy(self.cache)
        scores = self.model(torch.tensor([ids]), **{CACHE: cache}, use_cache=True).logits[:, -1].float()
        return int(forbid(matcher.allowed(), scores[0]).argmax())

    def entries(self, ids: list[int]) -> dict[str, dict[int, int]]:
        """Of each string by its name: how many entries are written where it has so many characters."""
        reader, found = Reader(self.places), dict[str, dict[int, int]]()
        for k, i in enumerate(ids, 1):
            reader.read(self.vocabulary.data[i])
            if reader.inside and reader.key is None and reader.state == PLAIN:
                found.setdefault(str(reader.stack[-1][1]), {})[reader.count] = k
        return found

    def __call__(self, before: tuple[int, ...], value: str, most: int) -> bool:
        """For a string with at most `most` characters that `before` ends with."""
        if not value[-1:].isalnum() or len(value) + self.vocabulary.longest <= most:
            return False
        first = self.first(before)
        full = len(value) + self.vocabulary.facts[PLAIN][0][first] > most
        return bool(full) and goes_on(self.vocabulary.pieces[first])

    def anew(self, before: tuple[int, ...]) -> tuple[int, ...]:
        """The entries into which the tokenizer splits the text of those that the model chose."""
        text = b"".join(self.vocabulary.data[i] for i in before).decode("utf-8", errors="replace")
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def figures(is_cut: Judge, made: list[Output]) -> dict[str, str]:
    """A row of the table."""
    valid, strings, lengths, count = 0, 0, [], Counter[str]()
    for ids, text in made:
        try:
            values = json.loads(text)
        except ValueError:
            continue
        valid += Draft202012Validator(SCHEMA).is_valid(values)
        entries = is_cut.entries(ids)
        for name, value in values.items():
            schema = SCHEMA["properties"][name]  # type: ignore[index]
            most, words = schema["maxLength"], value.rsplit(maxsplit=1)
            fits = len(words) > 1 and len(words[0]) >= schema.get("minLength", 0)
            lengths.append(len(value))
            strings += fits
            count["over"] += len(value) > most
            if (end := entries.get(name, {}).get(len(value))) is None:
                count["within an entry"] += 1
                continue
            before = tuple(ids[:end])
            count["cut" if fits else "no word fits"] += is_cut(before, value, most)
            count["anew"] += fits and is_cut(is_cut.anew(before), value, most)
    return {
        "outputs": str(len(made)),
        "valid": str(valid),
        "strings too long": str(count["over"]),
        "last word cut": f"{count['cut']}, {100 * count['cut'] / max(strings, 1):.1f} %",
        "read anew": f"{count['anew']}, {100 * count['anew'] / max(strings, 1):.1f} %",
        "of strings": str(strings),
        "cut, no word fits": str(count["no word fits"]),
        "not judged": str(count["within an entry"]),
        "mean length": f"{statistics.mean(lengths or [0]):.1f}",
    }


def made_up(entries: int) -> PreTrainedTokenizerFast:
    """A byte-level vocabulary of made-up words, as large as those of today's models."""
    draw = random.Random(0)
    vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for token in ("</s>", '",', '"}', '":', '{"', '","', "Ġthe"):
        vocabulary[token] = len(vocabulary)
    while len(vocabulary) < entries:
        word = "".join(draw.choices("etaoinshrdlucmfwypvbgkjqxz", range(52, 0, -2), k=draw.randint(2, 12)))
        vocabulary.setdefault("Ġ" * draw.randint(0, 1) + word, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


def steps(process, ids: torch.Tensor, scores: torch.Tensor, first: int) -> float:
    """Median milliseconds of the steps from `first` on; what is before is read in one step."""
    times = []
    process(ids[:, : first - 1], scores)
    for k in range(first, ids.shape[1] + 1):
        start = time.thread_time()
        process(ids[:, :k], scores)
        times.append(time.thread_time() - start)
    return 1000 * statistics.median(times)


def cost(tokenizer, bounds: list[int], rounds: int) -> None:
    """Print the table of times."""
    torch.manual_seed(0)
    scores = torch.randn(1, len(tokenizer))
    print(f"\n{len(tokenizer)} entries\n\n| maxLength | | compile ms | step ms | last 20 characters, step ms |")
    print("|---" * 5 + "|")
    opening = '{"title": "'
    for bound in bounds:
        title = {"type": "string", "maxLength": bound}
        schema = {"type": "object", "properties": {"title": title}, "required": ["title"]}
        text = opening + "we read the short text " * (bound // 23 + 1)
        ids = tokenizer(text[: len(opening) + bound], add_special_tokens=False, return_tensors="pt")["input_ids"]
        tail = tokenizer(text[len(opening) + bound - 20 : len(opening) + bound], add_special_tokens=False)["input_ids"]
        made: dict = {name: lambda s=schema, n=name: Alone(compiled(n, s, tokenizer), 1, 0) for name in GRAMMARS}
        made |= {
            f"lengths, {name}": lambda s=schema, n=name: JsonStringsLogitsProcessor(s, tokenizer, grammar=n)
            for name in GRAMMARS
        }
        ways: dict[str, list[tuple[float, ...]]] = {name: [] for name in made}
        for turn in range(rounds + 1):
            for name in list(made)[:: 1 if turn % 2 else -1]:
                start = time.thread_time()
                process = made[name]()
                seconds = time.thread_time() - start
                early = steps(process, ids[:, :60], scores, 10)
                try:
                    late = steps(made[name](), ids, scores, ids.shape[1] - len(tail))
                except RuntimeError:  # llguidance has a limit for the states of a text, one for each character
                    late = math.nan
                ways[name] += [(1000 * seconds, early, late)] if turn else []
        for name, rows in ways.items():
            compile_, early, late = (statistics.median(column) for column in zip(*rows, strict=True))
            print(f"| {bound} | {name} | {compile_:.1f} | {early:.3f} | {late:.3f} |", flush=True)


def main(argv=None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=1000, help="outputs of each way; 0 for the times alone")
    parser.add_argument("--batch_size", type=int, default=50)
    parser.add_argument("--bounds", type=int, nargs="*", default=[1000, 100_000, 524_288])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--entries", type=int, default=0, help="of a made-up vocabulary for the times")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    if args.rows:
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype="float32").eval()
        judge = Judge(model, tokenizer)
        for k, (name, made) in enumerate(outputs(model, tokenizer, args.rows, args.batch_size).items()):
            row = figures(judge, made)
            if k == 0:
                print("| | " + " | ".join(row) + " |\n" + "|---" * (len(row) + 1) + "|")
            print(f"| {name} | " + " | ".join(row.values()) + " |", flush=True)
    if args.bounds:
        cost(made_up(args.entries) if args.entries else tokenizer, args.bounds, args.rounds)


if __name__ == "__main__":
    main()
