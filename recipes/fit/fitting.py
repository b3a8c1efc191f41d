"""Translate texts within limits, for both recipes: take the natural translation if it fits, else the best that fits.

The plain model, or the length-controlled model without a length, writes the natural translation. If it does not fit,
the length-controlled model writes texts at several shorter lengths, and the plain model writes texts under a maximum.
The plain model scores all texts.
"""

import argparse
import json
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from sacrebleu.metrics import CHRF
from transformers import pipeline
from transformers.utils import logging as transformers_logging
from wcwidth import wcswidth

import hf_lenctrl
from hf_lenctrl.inference.ranking import log_probabilities
from hf_lenctrl.length_units import count_texts


LENGTHS = 8  # number of shorter lengths for each sentence
BEAMS = 4  # outputs for each length
CHOICES = 500  # most combinations of candidates for a text of several sentences
MARKS = ".!?…"
# a dot after these does not end a sentence
ABBREVIATION = re.compile(r"(?:\b(?:\w|Dr|Prof|Nr|St|Hr|Fr|Mr|Mrs|ca|bzw|usw|vgl|Tel)|\d)\.$")
NUMBER = re.compile(
    r"\d+|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|million|half|quarter)\b",
    re.I,
)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # control characters except tab and newline
NEGATION = re.compile(r"\b(?:not|no|never|none|nobody|nothing|nowhere|neither|nor|cannot|without)\b|n't\b", re.I)


@dataclass
class Request:
    """
    A text to translate.

    Args:
        sentences (`list[str]`): The sentences of the text.
        limit (`int` or `None`): Units of all outputs together, with spaces between them. The limit only says which
            lengths to try; `layout` decides.
        layout (`Callable`): From the outputs of the sentences to the written text, or to `None` if it does not fit.
    """

    sentences: list[str]
    limit: int | None
    layout: Callable[[list[str]], Any]


@dataclass
class Fitted:
    """
    The translation of a `Request`.

    Attributes:
        outputs (`list[str]`): The output of each sentence; the natural translation if nothing fits.
        layout: The layout of `outputs`; `None` if nothing fits.
        natural (`list[str]`): The natural translation of each sentence.
        score (`float`): Mean log-probability of the outputs' tokens under the plain model.
    """

    outputs: list[str]
    layout: Any
    natural: list[str]
    score: float


class Fitter:
    """
    A translator within limits.

    Args:
        plain_model (`str`, *optional*): Path or Hub name of a plain model of the task, which writes the natural
            translation and scores the candidates. By default `model` does this; then it must have `length_optional`.
        model (`str`, *optional*): A length-controlled model of the same task. Without this model, only the plain model
            writes shorter texts.
        length_unit (`str`, *optional*): Unit of the limits; default: the unit of `model`, else `"character"`.
        min_score (`float`): Lowest mean log-probability of a token in a shorter text that is used.
        shorten (`bool`): The models shorten text of one language, so the natural text is the source.
    """

    def __init__(
        self, plain_model=None, model=None, *, length_unit=None, min_score=-1.0, shorten=False, batch_size=16
    ):
        task: Any = "length-controlled-generation"  # the stubs of Transformers only know its own tasks
        options: dict[str, Any] = {"batch_size": batch_size, "progress_bar": False}
        if plain_model is None and model is None:
            raise ValueError("a model must be named, got none; pass --model, --plain_model or both")
        self.controlled = None if model is None else pipeline(task, model=model, **options)
        self.plain: Any = self.controlled if plain_model is None else pipeline(task, model=plain_model, **options)
        if plain_model is None and not getattr(self.plain.model.config, "length_optional", False):
            raise ValueError(f"--model {model} needs a length for each text; pass --plain_model too")
        own = None if self.controlled is None else getattr(self.controlled.model.config, "length_unit", None)
        self.unit = length_unit or own or "character"
        self.min_score, self.shorten = min_score, shorten
        self._chrf = CHRF()
        self._natural: dict[str, list[str]] = {}  # sentence -> the plain model's n best translations
        self._shorter: dict[str, set[str]] = {}
        self._scores: dict[tuple[str, str], float] = {}
        self._agreement: dict[str, float] = {}

    def fit(self, requests: Sequence[Request]) -> list[Fitted]:
        """Translate the requests within their limits; a sentence that several requests share is translated once."""
        self._translate(requests)
        open_ = [request for request in requests if not self._fits(request)]
        self._write_shorter(open_)
        return [self._choose(request) for request in requests]

    def count(self, text: str) -> int:
        """Count the units of a text."""
        return count_texts(self.plain.tokenizer, [text], self.unit)[0]

    def agreement(self, requests: Sequence[Request]) -> list[float]:
        """
        Measure how similar the natural translation is to translations by other paths: chrF from 0 to 100, of the least
        similar sentence. The other paths: a source with another final mark, and the length-controlled model.
        """
        new = {sentence for request in requests for sentence in request.sentences} - self._agreement.keys()
        said = [] if self.shorten else sorted(sentence for sentence in new if re.search(r"\w", sentence))
        self._agreement |= dict.fromkeys(new, 100.0)
        if said:
            marked = [text.rstrip(MARKS) if text[-1] in MARKS else f"{text}." for text in said]
            paths = [self.plain(marked, num_beams=BEAMS, length_unit=self.unit)]
            natural = [self._natural[sentence][0].rstrip(MARKS) for sentence in said]
            if self.controlled is not None:
                lengths = [self.count(self._natural[sentence][0]) for sentence in said]
                paths.append(self.controlled(said, num_beams=BEAMS, length=lengths))
            for sentence, text, *outputs in zip(said, natural, *paths, strict=True):
                others = [out["generated_text"].rstrip(MARKS) for out in outputs]
                self._agreement[sentence] = min(self._chrf.sentence_score(other, [text]).score for other in others)
        return [min(self._agreement[sentence] for sentence in request.sentences) for request in requests]

    def _fits(self, request: Request) -> bool:
        return request.layout([self._best(sentence) for sentence in request.sentences]) is not None

    def _best(self, sentence: str) -> str:
        return like(sentence, self._natural[sentence][0])

    def _translate(self, requests: Sequence[Request]) -> None:
        new = list(dict.fromkeys(s for request in requests for s in request.sentences if s not in self._natural))
        said = [] if self.shorten else [sentence for sentence in new if re.search(r"\w", sentence)]
        self._natural |= {sentence: [sentence] for sentence in new if sentence not in said}  # "..." does not change
        if said:
            outputs = self.plain(said, num_beams=2 * BEAMS, num_return_sequences=2 * BEAMS, length_unit=self.unit)
            for sentence, best in zip(said, outputs, strict=True):
                self._natural[sentence] = list(dict.fromkeys(out["generated_text"] for out in best))
        self._score({sentence: self._natural[sentence] for sentence in new})

    def _write_shorter(self, requests: Sequence[Request]) -> None:
        """Generate shorter candidates for each sentence, down to the length at which the whole text fits."""
        wanted: dict[str, set[int]] = {}
        for request in requests:
            counts = [self.count(self._best(sentence)) for sentence in request.sentences]
            total = sum(counts) + len(counts) - 1
            excess = max(0, total - (total if request.limit is None else request.limit))
            for sentence, count in zip(request.sentences, counts, strict=True):
                # a single sentence must save the whole excess; each of several sentences may save a part
                last = count - 1 if len(counts) > 1 else min(count - excess, count - 1)
                first = count - excess if len(counts) > 1 else last - LENGTHS + 1
                steps = range(last, min(first, last) - 1, -max(1, (last - first + 1) // LENGTHS))
                wanted.setdefault(sentence, set()).update(n for n in steps if n > 2)
        wanted = {sentence: own for sentence, own in wanted.items() if own and re.search(r"\w", sentence)}
        if not wanted:
            return
        texts, lengths = list(wanted), [sorted(own) for own in wanted.values()]
        found: dict[str, set[str]] = {sentence: set() for sentence in texts}
        best: dict[str, Any] = {"num_beams": 2 * BEAMS, "num_return_sequences": 2 * BEAMS}
        bound = {"length": [own[-1] for own in lengths], "length_constraint": "max", "length_unit": self.unit}
        for sentence, outputs in zip(texts, self.plain(texts, **bound, **best), strict=True):
            found[sentence] |= {out["generated_text"] for out in outputs}
        if self.controlled is not None:
            best = {"num_beams": BEAMS, "num_return_sequences": BEAMS, "length_constraint": "exact"}
            for sentence, rows in zip(texts, self.controlled(texts, length=lengths, **best), strict=True):
                found[sentence] |= {out["generated_text"] for row in rows for out in row}
        for sentence, outputs in found.items():
            natural = self._natural[sentence][0]
            found[sentence] = {text for text in outputs if text.strip() and keeps(natural, text)}
            self._shorter.setdefault(sentence, set()).update(found[sentence])
        self._score(found)

    def _score(self, texts: dict[str, Any]) -> None:
        pairs = [(sentence, text) for sentence, several in texts.items() for text in several]
        pairs = [pair for pair in dict.fromkeys(pairs) if pair not in self._scores]
        pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        for start in range(0, len(pairs), 64):
            batch = pairs[start : start + 64]
            sources, outputs = zip(*batch, strict=True)
            sums = log_probabilities(self.plain.model, self.plain.tokenizer, sources, outputs)
            # the count includes EOS
            tokens = [len(ids) for ids in self.plain.tokenizer(text_target=list(outputs))["input_ids"]]
            self._scores |= {pair: total / n for pair, total, n in zip(batch, sums, tokens, strict=True)}

    def _candidates(self, sentence: str, several: bool) -> list[tuple[float, float, str]]:
        """Return (value, score, text) of each candidate, the best first; the value adds similarity to the score."""
        natural = self._natural[sentence]
        texts = {*natural, *self._shorter.get(sentence, ())}
        scores = {text: self._scores[sentence, text] for text in texts}
        kept = [text for text in texts if text == natural[0] or scores[text] >= self.min_score]
        # minimum Bayes risk decoding: a text similar to the model's natural one probably has its meaning
        value = {text: scores[text] + self._chrf.sentence_score(text, [natural[0]]).score / 100 for text in kept}
        rows = [(value[text], scores[text], like(sentence, text)) for text in kept]
        rows.sort(key=lambda row: (-row[0], row[2]))
        if several:  # the Pareto front of length and value, spread over the lengths
            best: list[tuple[float, float, str]] = []
            for row in sorted(rows, key=lambda row: (self.count(row[2]), -row[0])):
                best += [row] if not best or row[0] > best[-1][0] else []
            rows = best[::-1]
        return rows

    def _choose(self, request: Request) -> Fitted:
        natural = [self._best(sentence) for sentence in request.sentences]
        scores = [self._scores[sentence, self._natural[sentence][0]] for sentence in request.sentences]
        weights = [len(text) / sum(map(len, natural)) for text in natural]
        layout = request.layout(natural)
        if layout is not None:
            return Fitted(natural, layout, natural, mean(scores, weights))
        pools = [self._candidates(sentence, len(natural) > 1) for sentence in request.sentences]
        most = max(2, int(CHOICES ** (1 / len(pools))))
        choices = list(product(*(pool[:most] for pool in pools)))
        choices.sort(key=lambda rows: -mean([row[0] for row in rows], weights))
        for rows in choices:
            outputs = [row[2] for row in rows]
            if (layout := request.layout(outputs)) is not None:
                return Fitted(outputs, layout, natural, mean([row[1] for row in rows], weights))
        return Fitted(natural, None, natural, mean(scores, weights))


def mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True))


def sentences(text: str) -> list[str]:
    """
    Split a text after each final mark with a space after it, but not after abbreviations and ordinal numbers.

    >>> sentences("Komm am 3. Mai. Dr. Maier ist da! Ja?")
    ['Komm am 3. Mai.', 'Dr. Maier ist da!', 'Ja?']
    """
    found: list[str] = []
    for part in re.split(r"(?<=[.!?…])\s+|(?<=[.!?…][\"“”»«'])\s+", text.strip()):
        if found and ABBREVIATION.search(found[-1]):
            found[-1] += f" {part}"
        else:
            found.append(part)
    return found


def like(source: str, text: str) -> str:
    """
    Replace a final dot of the text by the final mark of the source, or remove it if the source has no final mark.

    >>> like("Alle Bilder", "All pictures."), like("Wählen Sie:", "Choose."), like("Los!", "Go.")
    ('All pictures', 'Choose:', 'Go!')
    """
    end = source[-1:]
    if end == "." or not text.endswith("."):
        return text
    return text.rstrip(".") + (end if end in "!…,;:" else "") or text


def keeps(natural: str, text: str) -> bool:
    """
    Return whether a shorter text keeps numbers and negation (English words) and the final mark of the natural text.

    >>> keeps("I didn't leave the door open.", "I left the door open.")
    False
    """
    same_numbers = NUMBER.findall(natural) == NUMBER.findall(text)
    same_end = natural[-1:] == text[-1:] or not {natural[-1:], text[-1:]} & set(MARKS)
    return same_numbers and same_end and bool(NEGATION.search(natural)) == bool(NEGATION.search(text))


@lru_cache(maxsize=100_000)
def columns(text: str) -> int:
    """
    Return the display columns of one line, by the rules of terminals; a control character has no column.

    >>> columns("日本"), columns("a\\x07b")
    (4, 2)
    """
    return wcswidth(CONTROL.sub("", text))


def control_fault(text: str) -> str:
    """Return the fault of a text with a control character, which is not translated; else an empty text."""
    found = CONTROL.search(text)
    return "" if found is None else f"a control character, U+{ord(found[0]):04X}"


def add_options(parser: argparse.ArgumentParser, min_score: float) -> None:
    """Add the options of both recipes."""
    add = parser.add_argument
    add("--input_file", required=True, help="the file with the texts to translate")
    add("--output_file", required=True, help="the translated file")
    add("--report_dir", required=True, help="folder for report.md and report.json")
    add("--model", help="length-controlled model, for texts that do not fit")
    add("--plain_model", help="model for natural texts and scores; default: --model, if it has length_optional")
    add("--length_unit", help="unit of the limits; default: the model's unit")
    add("--min_score", type=float, default=min_score, help="lowest mean log-probability of a token in a used text")
    add("--shorten", action="store_true", help="the models shorten text of one language, and do not translate")


def check_files(args: argparse.Namespace, *names: str) -> None:
    """Raise `ValueError` if a file that an option in `names` names does not exist."""
    for name in names:
        path = getattr(args, name)
        if path is not None and not Path(path).is_file():
            raise ValueError(f"{name} must be a file that exists, got {path!r}; check the path")


def fitter(args: argparse.Namespace) -> Fitter:
    """Build the `Fitter` of the options."""
    check_report(args.report_dir)
    options = {"length_unit": args.length_unit, "min_score": args.min_score, "shorten": args.shorten}
    return Fitter(args.plain_model, args.model, **options)


def check_report(folder: str) -> None:
    """
    Make the folder of the report. Raise `ValueError` if it holds another report than those of `write_report`, which
    replaces its own.
    """
    found = [path for name in ("report.json", "report.md", "report.png") if (path := Path(folder, name)).exists()]
    try:
        ours = isinstance(json.loads(found[0].read_text(encoding="utf-8"))["rows"], list) if found else True
    except (ValueError, LookupError, TypeError):
        ours = False
    if not ours:
        raise ValueError(f"{found[0]} is no report of this recipe; name another report_dir")
    Path(folder).mkdir(parents=True, exist_ok=True)  # now: an error later would lose the report


def write_report(folder: str, lines: list[str], report: dict) -> None:
    """Write `report.md` and `report.json`."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (path / "report.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def cell(text: str) -> str:
    """Escape a text for a Markdown table."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " / ")


def run(main: Callable[[], None], name: str) -> None:
    """Run a recipe; an error in an option or a file ends it with one line and status 1."""
    quiet()
    try:
        main()
    except Exception as error:
        last = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        ours = {Path(__file__).resolve().parent, Path(hf_lenctrl.__file__).resolve().parent} & set(last.parents)
        # XML errors are SyntaxErrors
        of_a_file = isinstance(error, (OSError, SyntaxError, UnicodeError, json.JSONDecodeError))
        if not of_a_file and not (isinstance(error, ValueError) and ours):
            raise
        sys.exit(f"{name}: {' '.join(str(error).split())}")


def quiet() -> None:
    """Hide log messages that a reader of the report does not need."""
    warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
    logging.getLogger("hf_lenctrl").setLevel(logging.ERROR)  # some candidates have lengths that are rare in training
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
