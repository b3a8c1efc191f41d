"""
Rows and scores of the tasks in this folder, by the published rules of two benchmarks.

- LIFEBench, Zhang et al. 2025 (arXiv 2505.16234): the length deviation, the length score, and the count of words
(`exp/cache.py` of https://github.com/LIFEBench/LIFEBench). The score uses the deviation as a share, because this fits
the constants 5 and 2. The authors' `evaluate_all_results.py` uses percent: 1 % too long would score 14 of 100.
- IFEval, Zhou et al. 2023 (arXiv 2311.07911): the four instructions whose names begin with `length_constraints:`,
  strict and loose (https://github.com/google-research/google-research/tree/master/instruction_following_eval).

Both read a file of rows on this machine, in the form of the published data sets.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

from datasets import Dataset


LENGTHS = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]  # words
CHINESE = {"equal to": "等于", "at most": "至多有", "at least": "至少有"}  # the modes in a Chinese prompt
REFUSAL = 1  # an answer of at most this number of words is a refusal, and is left out
PREFIX = "length_constraints:"


def read_rows(file: str | None) -> list[dict]:
    """Return the rows of a file of JSON lines."""
    if file is None:
        raise ValueError('a task reads a file of rows, got none; pass --metadata \'{"file": "rows.jsonl"}\'')
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").split("\n") if line.strip()]


# ---------------------------------------------------------------- LIFEBench


def lifebench(control: str, file: str | None = None, lengths: list[int] = LENGTHS, **_: Any) -> dict[str, Dataset]:
    """
    Build the documents of a mode (`"equal to"`, `"at most"` or `"at least"`), one for each row and length.

    A row has a `task`, a text with `{word_count_type}` and `{word_count}`, and a `lang`, `"en"` or `"cn"`.
    """
    documents = []
    for row in read_rows(file):
        said = CHINESE[control] if row["lang"] == "cn" else control
        for length in lengths:
            prompt = row["task"].replace("{word_count_type}", said).replace("{word_count}", str(length))
            documents.append({"prompt": prompt, "length": length, "control": control})
    return {"test": Dataset.from_list(documents)}


def count_words(text: str) -> int:
    """
    Count Chinese characters, and words of Latin letters and digits.

    >>> count_words("It's a well-known 3.5 — 你好")
    7
    """
    return len(re.findall(r"[\u4e00-\u9fff]|\b[a-zA-Z0-9'-]+\b", text))


def length_score(words: int, length: int, control: str) -> float:
    """
    Return the length score, from 0 to 100; an allowed length scores 100, and too short costs more than too long.

    >>> [round(length_score(n, 100, "equal to")) for n in (80, 100, 120)]
    [37, 100, 67]
    >>> length_score(20, 100, "at most"), length_score(500, 100, "at least")
    (100.0, 100.0)
    """
    deviation = (words - length) / length
    if (control == "at most" and deviation < 0) or (control == "at least" and deviation > 0):
        return 100.0
    return 100 * math.exp(5 * deviation if deviation < 0 else -2 * deviation)


def judge_length(document: dict, answers: list[str]) -> dict[str, tuple[int, float] | None]:
    """Return the figures of an answer, each as (requested length, value); `None` for a refusal."""
    words, length = count_words(answers[0]), document["length"]
    if words <= REFUSAL:
        return dict.fromkeys(("length_score", "length_deviation", "refused"))
    deviation = 100 * abs(words - length) / length
    score = length_score(words, length, document["control"])
    return {"length_score": (length, score), "length_deviation": (length, deviation), "refused": (length, 0.0)}


def mean_of_lengths(items: list[tuple[int, float] | None]) -> float:
    """
    Return the mean of the means of each length, without refusals; NaN if all answers are refusals.

    >>> mean_of_lengths([(16, 100.0), (16, 50.0), None, (32, 25.0)])
    50.0
    """
    groups: dict[int, list[float]] = {}
    for length, value in filter(None, items):
        groups.setdefault(length, []).append(value)
    means = [sum(own) / len(own) for own in groups.values()]
    return sum(means) / len(means) if means else math.nan


def share_of_refusals(items: list) -> float:
    """Return the share of refusals, in percent."""
    return 100 * items.count(None) / len(items)


# ---------------------------------------------------------------- IFEval


def ifeval(file: str | None = None, **_: Any) -> dict[str, Dataset]:
    """
    Build a document for each row with a length instruction; it holds only the length instructions of the row.

    A row has a `prompt`, an `instruction_id_list`, and `kwargs`, the arguments of each instruction.
    """
    documents = []
    for row in read_rows(file):
        pairs = zip(row["instruction_id_list"], row["kwargs"], strict=True)
        instructions = [[name.removeprefix(PREFIX), given] for name, given in pairs if name.startswith(PREFIX)]
        if instructions:
            documents.append({"prompt": row["prompt"], "instructions": json.dumps(instructions)})  # of any columns
    return {"test": Dataset.from_list(documents)}


def follows(text: str, name: str, given: dict[str, Any]) -> bool:
    """
    Return whether a text follows a length instruction.

    >>> follows("One two three.", "number_words", {"relation": "less than", "num_words": 3})
    False
    >>> follows("Hello there. *** Bye.", "number_paragraphs", {"num_paragraphs": 2})
    True
    """
    if not text.strip():
        return False
    if name == "number_words":
        return _compares(len(re.findall(r"\w+", text)), given["relation"], given["num_words"])
    if name == "number_sentences":
        return _compares(_count_sentences(text), given["relation"], given["num_sentences"])
    if name == "number_paragraphs":
        parts = [bool(part.strip()) for part in re.split(r"\s?\*\*\*\s?", text)]
        return all(parts[1:-1]) and sum(parts) == given["num_paragraphs"]
    if name == "nth_paragraph_first_word":
        return _nth_begins_with(
            text.split("\n\n"), given["num_paragraphs"], given["nth_paragraph"], given["first_word"]
        )
    raise ValueError(f"an instruction of length must be one of IFEval's, got {PREFIX}{name}")


def _compares(count: int, relation: str, threshold: int) -> bool:
    return count < threshold if relation == "less than" else count >= threshold


def _count_sentences(text: str) -> int:
    """Count sentences by NLTK's English Punkt model, which needs `nltk.download("punkt_tab")` once."""
    from nltk.tokenize import PunktTokenizer

    return len(PunktTokenizer("english").tokenize(text))


def _nth_begins_with(paragraphs: list[str], count: int, place: int, word: str) -> bool:
    """Return whether a text has `count` paragraphs, and paragraph `place`, from 1, begins with `word`."""
    written = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    if place > written or not (words := paragraphs[place - 1].split()):
        return False
    first = re.split(r"[.,?!'\"]", words[0].lstrip("'").lstrip('"'), maxsplit=1)[0]
    return written == count and first.lower() == word.lower()


def loose(text: str) -> list[str]:
    """Return the forms of a text for loose scores: without its first line, its last line, or its asterisks."""
    lines = text.split("\n")
    forms = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*forms, *(form.replace("*", "") for form in forms)]


def judge_instructions(document: dict, answers: list[str]) -> dict[str, Any]:
    """Return whether an answer follows all instructions, and whether it follows each; strict and loose."""
    found: dict[str, Any] = {}
    for kind, forms in (("strict", answers[:1]), ("loose", loose(answers[0]))):
        instructions = json.loads(document["instructions"])
        followed = [any(follows(form, name, given) for form in forms) for name, given in instructions]
        found |= {f"prompt_level_{kind}_acc": all(followed), f"inst_level_{kind}_acc": followed}
    return found


def mean_of_all(items: list[list[bool]]) -> float:
    """Return the share of followed instructions."""
    every = [followed for item in items for followed in item]
    return sum(every) / len(every)
