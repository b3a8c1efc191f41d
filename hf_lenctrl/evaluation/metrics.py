"""Metrics of lengths and of text quality, as plain functions, and `compute_metrics` for a Trainer."""

import bisect
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from importlib.metadata import version
from typing import Any

from ..length_units import LENGTH_UNITS, UnitTable, count_texts, count_units
from ..lengths import check_counts, check_name, check_tolerance, is_integer, plural, window_of


logger = logging.getLogger(__name__)


def length_metrics(produced: Sequence[int], requested: Sequence[int], *, tolerance=None) -> dict[str, float]:
    """
    Compare produced with requested lengths, both in the same unit.

    Args:
        produced (`Sequence[int]`), requested (`Sequence[int]`): One length for each output.
        tolerance (`int`, `float`, `tuple` or `list`, *optional*): A window around each requested length, like
            `length_tolerance` of `generate`.

    Returns:
        `dict[str, float]`: `variance` is the mean squared difference (Takase & Okazaki 2019, eq. 8), and `mae` the
            mean absolute difference. `exact` is the share (0 to 1) of outputs that have the requested length, and
            `over` the share of longer outputs. If there is a tolerance, `within` is the share inside the window.

    Raises:
        `ValueError`: if there are no outputs, if the numbers of lengths differ, if a length is no whole number, or if
            the tolerance is invalid.

    Example:

    ```python
    >>> from hf_lenctrl import length_metrics
    >>> length_metrics(produced=[20, 23, 19, 20], requested=[20, 20, 20, 20])
    {'variance': 2.5, 'mae': 1.0, 'exact': 0.5, 'over': 0.25}
    >>> length_metrics(produced=[20, 23, 19, 20], requested=[20, 20, 20, 20], tolerance=0.1)["within"]
    0.75

    ```
    """
    _check_pairs(produced, requested, "produced and requested must have one length for each output")
    if wrong := [n for n in (*produced, *requested) if not _is_whole(n)]:
        raise ValueError(f"lengths must be whole numbers, got {wrong[0]!r}; round them, and leave out missing ones")
    differences = [int(p) - int(r) for p, r in zip(produced, requested, strict=True)]
    n = len(differences)
    figures = {
        "variance": sum(d * d for d in differences) / n,
        "mae": sum(abs(d) for d in differences) / n,
        "exact": sum(d == 0 for d in differences) / n,
        "over": sum(d > 0 for d in differences) / n,
    }
    if tolerance is None:
        return figures
    check_tolerance(tolerance, "exact")
    windows = zip(produced, *window_of([int(r) for r in requested], tolerance), strict=True)
    return figures | {"within": sum(low <= p <= high for p, low, high in windows) / n}


def _is_whole(number) -> bool:
    try:
        return int(number) == number
    except (TypeError, ValueError, OverflowError):  # None and texts, NaN, infinity
        return False


def _check_pairs(ours: Sequence, theirs: Sequence, rule: str) -> None:
    if len(ours) != len(theirs) or len(ours) == 0:
        raise ValueError(f"{rule}, got {len(ours)} and {len(theirs)}")


ROUGE_UNITS = ("word", "character")


class _Characters:
    """A tokenizer for `rouge_score` that splits a text into its characters, except white space."""

    def tokenize(self, text: str) -> list[str]:
        return list("".join(text.split()))


def rouge_scorer(names: Sequence[str], unit: str = "word", use_stemmer: bool = True):
    """
    Build the `RougeScorer` of `rouge_score` for the metrics `names`, such as `"rouge1"`. `unit` is `"word"` or
    `"character"`, see `rouge_metrics`.
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise ImportError('ROUGE needs rouge_score: pip install "hf_lenctrl[train]"') from error

    check_name("unit of ROUGE", unit, ROUGE_UNITS)
    return RougeScorer(list(names), tokenizer=_rouge_tokenizer(unit, use_stemmer))


def _rouge_tokenizer(unit: str, use_stemmer: bool) -> Any:
    from rouge_score.tokenizers import DefaultTokenizer

    return _Characters() if unit == "character" else DefaultTokenizer(use_stemmer)


def _model_average(scores: Sequence[Any], sizes: Sequence[int]) -> tuple[float, float]:
    """
    Return recall and F1 of one prediction by the model average of `rouge_metrics`. `sizes` are the numbers of n-grams.
    """
    if len(scores) == 1:
        return scores[0].recall, scores[0].fmeasure
    recall = sum(score.recall * size for score, size in zip(scores, sizes, strict=True)) / max(1, sum(sizes))
    precision = sum(score.precision for score in scores) / len(scores)
    return recall, 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def rouge_metrics(
    predictions: Sequence[str],
    references: Sequence[str | Sequence[str]],
    *,
    max_bytes: int | None = None,
    use_stemmer: bool = True,
    unit: str = "word",
) -> dict[str, float]:
    """
    Compute the mean recall and F1 of ROUGE-1, ROUGE-2 and ROUGE-L, in percent, by `rouge_score`.

    Args:
        predictions (`Sequence[str]`): Texts.
        references (`Sequence[str]` or `Sequence[Sequence[str]]`): One reference for each prediction, or a list of
            references, as in DUC 2004. With several references, recall is the number of n-grams in all references that
            match, divided by the number of n-grams in all references (Lin 2004, eq. 1). This is the model average, the
            default of ROUGE-1.5.5 (`-f A`), not the score of the best reference (`-f B`).
        max_bytes (`int`, *optional*): Cut each prediction to this number of UTF-8 bytes first (75 in DUC 2004), and
            drop a character that is cut in two. References are not cut.
        use_stemmer (`bool`, *optional*, defaults to `True`): Compare Porter stems, like ROUGE-1.5.5 `-m`.
        unit (`str`, *optional*, defaults to `"word"`): `"word"` is a run of ASCII letters and digits, as `rouge_score`
            defines it. `"character"` is for Japanese and Chinese, which have no such words.

    Returns:
        `dict[str, float]`: `rouge1_recall`, `rouge1_f1`, and so on.

    Raises:
        `ValueError`: if there are no predictions, if the numbers of predictions and references differ, if a prediction
            has no reference, if `max_bytes` is below 1, or if the unit is unknown.

    Example:

    ```python
    >>> from hf_lenctrl.evaluation.metrics import rouge_metrics
    >>> round(rouge_metrics(["a small editor"], [["an editor", "a small text editor"]])["rouge1_recall"], 1)
    66.7

    ```
    """
    if max_bytes is not None:
        check_counts(max_bytes=max_bytes)
    _check_pairs(predictions, references, "each prediction needs one reference")
    lists = [[own] if isinstance(own, str) else list(own) for own in references]
    if (row := next((i for i, own in enumerate(lists) if not own), None)) is not None:
        raise ValueError(f"each prediction needs a reference, got none in row {row}; drop the row")
    names = ["rouge1", "rouge2", "rougeL"]
    scorer, tokenize = rouge_scorer(names, unit, use_stemmer), _rouge_tokenizer(unit, use_stemmer).tokenize
    if unit == "word" and not any(re.search("[A-Za-z0-9]", reference) for own in lists for reference in own):
        logger.warning("no reference has a Latin word, so ROUGE of words is 0; compare characters: unit='character'")
    totals = {f"{name}_{part}": 0.0 for name in names for part in ("recall", "f1")}
    for prediction, own in zip(predictions, lists, strict=True):
        if max_bytes is not None:
            prediction = prediction.encode("utf-8")[:max_bytes].decode("utf-8", errors="ignore")
        scores = [scorer.score(reference, prediction) for reference in own]
        for name in names:
            # the number of n-grams of each reference; for ROUGE-L the number of words
            sizes = [max(0, len(tokenize(text)) - (name == "rouge2")) for text in own] if len(own) > 1 else [1]
            recall, f1 = _model_average([score[name] for score in scores], sizes)
            totals[f"{name}_recall"] += recall
            totals[f"{name}_f1"] += f1
    return {name: 100 * total / len(predictions) for name, total in totals.items()}


def rouge_settings(max_bytes: int | None = None, use_stemmer: bool = True, unit: str = "word") -> str:
    """Return a signature of the ROUGE settings, to print with a score."""
    cut = "none" if max_bytes is None else f"{max_bytes} bytes"
    words = f"stemmer={use_stemmer}" if unit == "word" else f"{unit}s"
    return f"rouge_score {version('rouge_score')}, {words}, truncation={cut}, mean over examples x 100"


def build_compute_metrics(
    tokenizer,
    length_unit: str,
    *,
    length: int | Sequence[int] | None = None,
    tolerance=None,
    max_bytes: int | None = None,
    rouge_unit: str = "word",
    bleu_tokenizer: str | None = None,
) -> Callable:
    """
    Build the function `compute_metrics` for a `Seq2SeqTrainer` with `predict_with_generate=True`. It takes an
    `EvalPrediction`, and returns a dictionary with the `length_metrics`, `distinct` (see `distinct_share`), ROUGE (or
    BLEU and chrF), and `settings`, a text that describes the metrics. It raises `ValueError` if the predictions are
    not generated ids.

    The function warns if nearly all outputs are the same text although the sources differ. To compare the sources, set
    `include_for_metrics=["inputs"]` in the training arguments. Otherwise the function compares the references.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Decodes the outputs and the references.
        length_unit (`str`): Unit of the lengths, one of `LENGTH_UNITS`.
        length (`int` or `list[int]`, *optional*): The requested length of all examples, or a list with one for each;
            by default the length of each reference.
        tolerance (`int`, `float`, `tuple` or `list`, *optional*): Adds `within`, see `length_metrics`.
        max_bytes (`int`, *optional*), rouge_unit (`str`, *optional*): See `rouge_metrics`.
        bleu_tokenizer (`str`, *optional*): Measure BLEU with this tokenizer, and chrF, instead of ROUGE.
    """
    check_name("length_unit", length_unit, LENGTH_UNITS)
    table = UnitTable.from_tokenizer(tokenizer, "token") if length_unit == "token" else None

    def measure(ids) -> tuple[list[str], list[int]]:
        import torch

        ids = torch.as_tensor(ids)
        ids = ids.masked_fill(ids == -100, tokenizer.pad_token_id)
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return texts, count_texts(tokenizer, texts, length_unit) if table is None else table.count(ids).tolist()

    def sources_of(evaluation) -> list[tuple[int, ...]]:
        rows, padding = getattr(evaluation, "inputs", None), {-100, tokenizer.pad_token_id}
        rows = evaluation.label_ids if rows is None else rows
        return [tuple(int(token) for token in row if int(token) not in padding) for row in rows]

    def compute_metrics(evaluation) -> dict:
        if isinstance(evaluation.predictions, tuple) or getattr(evaluation.predictions, "ndim", 2) != 2:  # logits
            raise ValueError("the metrics need generated ids; set predict_with_generate=True")
        predictions, produced = measure(evaluation.predictions)
        references, reference_lengths = measure(evaluation.label_ids)
        requested = reference_lengths if length is None else length
        requested = [requested] * len(produced) if is_integer(requested) else requested
        if bleu_tokenizer is None:
            quality = rouge_metrics(predictions, references, max_bytes=max_bytes, unit=rouge_unit)
            settings = f"ROUGE: {rouge_settings(max_bytes, unit=rouge_unit)}"
        else:
            quality = translation_metrics(predictions, references, bleu_tokenizer=bleu_tokenizer)
            settings = f"BLEU: {quality.pop('bleu_signature')}; chrF: {quality.pop('chrf_signature')}"
        against = "the reference" if length is None else length if is_integer(length) else "lengths of the rows"
        settings = f"length: {plural(length_unit)} against {against}; {settings}"
        sources = sources_of(evaluation)
        _warn_of_alike(predictions, sources, requested)
        figures = length_metrics(produced, requested, tolerance=tolerance)
        return {**figures, "distinct": distinct_share(predictions, sources), **quality, "settings": settings}

    return compute_metrics


_MANY, _ALIKE = 10, 0.9  # for a warning: minimum number of outputs of shared lengths, share of equal texts


def _warn_of_alike(texts: Sequence[str], sources: Sequence[Hashable], requested: Sequence[int]) -> None:
    """Warn if nearly all outputs, in total or of each length, are one text although the sources differ."""
    whole = Counter(text for _, text in {*zip(sources, texts, strict=True)})
    groups: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for length, _, text in {*zip(requested, sources, texts, strict=True)}:
        groups[length][text] += 1
    shared = [group for group in groups.values() if group.total() > 1]  # a length with one source proves nothing
    for parts, least in (([whole], 2), (shared, _MANY)):
        count, alike = (sum(part.total() for part in parts), sum(max(part.values()) for part in parts))
        if count >= least and alike >= _ALIKE * count:
            each = "" if parts[0] is whole else ", one for each length"
            logger.warning(
                f"all outputs are alike: {alike} of {count} outputs for different sources are the same text{each}, "
                f"such as {whole.most_common(1)[0][0]!r}. The model does not read its source yet; train it for more "
                "steps, and judge it by its loss and `distinct`, because its lengths may be exact long before"
            )
            return


def translation_metrics(
    outputs: Sequence[str], references: Sequence[str], *, bleu_tokenizer: str = "13a"
) -> dict[str, Any]:
    """
    Compute corpus BLEU and chrF by sacrebleu.

    Args:
        outputs (`Sequence[str]`), references (`Sequence[str]`): Texts, one reference for each output.
        bleu_tokenizer (`str`, *optional*, defaults to `"13a"`): A tokenizer of sacrebleu: `"ja-mecab"` for Japanese,
            `"zh"`, `"ko-mecab"`, `"char"`, ...

    Returns:
        `dict`: the scores `bleu` and `chrf`, 0 to 100, and their signatures, `bleu_signature` and `chrf_signature`.

    Raises:
        `ImportError`: if sacrebleu, or MeCab for Japanese, is not installed.
        `ValueError`: if there are no outputs, if the number of references is different, or if the tokenizer is
            unknown.
    """
    _check_pairs(outputs, references, "each output needs one reference")
    bleu = bleu_metric(bleu_tokenizer)
    from sacrebleu.metrics.chrf import CHRF

    metrics = {"bleu": bleu, "chrf": CHRF()}
    figures = {name: metric.corpus_score(outputs, [references]).score for name, metric in metrics.items()}
    return figures | {f"{name}_signature": str(metric.get_signature()) for name, metric in metrics.items()}


def predictor_figures(predicted: Sequence[int], reference: Sequence[int]) -> dict[str, Any]:
    """
    Compare predicted lengths with the lengths of references (Oka et al. 2020, Table 2). Return `mae` and `variance`
    (see `length_metrics`), and the correlation `pearson`, which is `None` if either list is constant.
    """
    import numpy as np

    figures, varies = length_metrics(predicted, reference), len(set(predicted)) > 1 and len(set(reference)) > 1
    pearson = float(np.corrcoef(predicted, reference)[0, 1]) if varies else None
    return {"mae": figures["mae"], "variance": figures["variance"], "pearson": pearson}


def bleu_metric(tokenizer: str) -> Any:
    """Build the BLEU metric of sacrebleu with the named tokenizer. Raise errors like `translation_metrics`."""
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError as error:
        raise ImportError('BLEU needs sacrebleu: pip install "hf_lenctrl[train]"') from error
    check_name("bleu_tokenizer", tokenizer, BLEU.TOKENIZERS)
    try:
        return BLEU(tokenize=tokenizer)
    except (ImportError, RuntimeError) as error:
        package = "hf_lenctrl[ja]" if tokenizer == "ja-mecab" else f"sacrebleu[{tokenizer.partition('-')[0]}]"
        raise ImportError(f'bleu_tokenizer={tokenizer!r} needs MeCab: pip install "{package}"') from error


# The functions below measure how texts read, without a reference.

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_FILLED = re.compile(r"([.!?,;:])\s*\1$|[,;:]\s*[.!?]$")


def repeats(text: str) -> bool:
    """
    Return whether a text repeats a word, or a pair of words, immediately: "the the", "of the of the". Ignore case and
    punctuation.
    """
    words = [word.lower() for word in WORD.findall(text)]
    return any(words[i : i + n] == words[i + n : i + 2 * n] for n in (1, 2) for i in range(len(words) - 2 * n + 1))


def filled_end(text: str) -> bool:
    """Return whether a text ends with extra punctuation, such as `".."` or `",."`, that only fills an exact length."""
    return bool(_FILLED.search(text))


def text_quality(texts: Sequence[str]) -> dict[str, float]:
    """
    Return two shares of the texts, from 0 to 1: `"repeated"` is the share for which the function `repeats` is true,
    and `"filled_end"` is the share for which the function `filled_end` is true. A text of the exact length can still
    have these faults.

    Raises:
        `ValueError`: if there are no texts.

    Example:

    ```python
    >>> from hf_lenctrl.evaluation.metrics import text_quality
    >>> text_quality(["a text editor", "a text editor", "an an editor", "card games.."])
    {'repeated': 0.25, 'filled_end': 0.25}

    ```
    """
    n = len(texts)
    if n == 0:
        raise ValueError("text_quality gives shares of the texts, so it needs at least one, got none")
    return {"repeated": sum(map(repeats, texts)) / n, "filled_end": sum(map(filled_end, texts)) / n}


def distinct_share(texts: Sequence[str], sources: Sequence[Hashable] | None = None) -> float:
    """
    Return the number of distinct texts divided by the number of texts, 0 to 1. The share is low if a model meets its
    lengths but ignores its sources. If `sources` has the source of each text, equal pairs of source and text are
    counted as one text.

    Raises:
        `ValueError`: if `texts` is empty, or if the numbers of texts and sources differ.

    Example:

    ```python
    >>> from hf_lenctrl.evaluation.metrics import distinct_share
    >>> texts = ["card games", "card games", "a text editor", "card games"]
    >>> distinct_share(texts)
    0.5
    >>> distinct_share(texts, sources=["A game.", "A game.", "An editor.", "A plant."])  # "A game." is there twice
    0.6666666666666666

    ```
    """
    sources = range(len(texts)) if sources is None else sources
    _check_pairs(texts, sources, "sources must hold one for each text")
    return len(set(texts)) / len({*zip(sources, texts, strict=True)})


def lead(source: str, length: int, unit: str, tokenizer=None) -> str:
    """
    Return the first `length` units of a source. A summary must be better than this lead baseline. In the unit `"x"`,
    in which a longer text may count less, the lead may end within an emoji.
    """
    if unit == "character":
        return source[:length]
    if unit == "word":
        return " ".join(source.split()[:length])
    if unit == "byte":
        return source.encode("utf-8")[:length].decode("utf-8", errors="ignore")
    if unit != "token":
        ends = range(len(source) + 1)  # a search, because a count of each beginning of an article takes seconds
        return source[: bisect.bisect_right(ends, length, key=lambda end: count_units(source[:end], unit)) - 1]
    # count the tokens as in outputs
    ids = tokenizer(text_target=source, add_special_tokens=False)["input_ids"]
    return tokenizer.decode(ids[:length], skip_special_tokens=True)
