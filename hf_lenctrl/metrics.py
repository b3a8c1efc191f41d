"""How well lengths were met, and ROUGE: plain functions of lengths and texts, and what a Trainer calls."""

from collections.abc import Callable, Sequence
from importlib.metadata import version

from .configuration_lenctrl import check_length
from .length_units import UnitTable, count_units


def length_metrics(produced: Sequence[int], requested: Sequence[int]) -> dict[str, float]:
    """
    Compare produced with requested lengths, both in the same unit.

    Args:
        produced (`Sequence[int]`): Units of each output.
        requested (`Sequence[int]`): Units asked for, one for each output.

    Returns:
        `dict[str, float]`: `variance`, the mean squared difference (Takase & Okazaki 2019, eq. 8); `mae`, the mean
        absolute difference; `exact` and `over`, the shares (0 to 1) that have the length and that exceed it.

    Raises:
        `ValueError`: without outputs, or when the two differ in number.

    Example:

    ```python
    >>> from hf_lenctrl import length_metrics
    >>> length_metrics(produced=[20, 23, 19, 20], requested=[20, 20, 20, 20])
    {'variance': 2.5, 'mae': 1.0, 'exact': 0.5, 'over': 0.25}

    ```
    """
    if len(produced) != len(requested) or len(produced) == 0:
        raise ValueError(
            f"produced and requested must have one length for each output, got {len(produced)} and {len(requested)}"
        )
    differences = [int(p) - int(r) for p, r in zip(produced, requested, strict=True)]
    n = len(differences)
    return {
        "variance": sum(d * d for d in differences) / n,
        "mae": sum(abs(d) for d in differences) / n,
        "exact": sum(d == 0 for d in differences) / n,
        "over": sum(d > 0 for d in differences) / n,
    }


ROUGE_UNITS = ("word", "character")


class _Characters:
    """What `rouge_score` takes for a tokenizer: text without white space, character by character."""

    def tokenize(self, text: str) -> list[str]:
        return [character for character in text if not character.isspace()]


def rouge_metrics(
    predictions: Sequence[str],
    references: Sequence[str],
    *,
    max_bytes: int | None = None,
    use_stemmer: bool = True,
    unit: str = "word",
) -> dict[str, float]:
    """
    Mean ROUGE-1, 2 and L, recall and F1, in percent, by `rouge_score`.

    Args:
        predictions (`Sequence[str]`), references (`Sequence[str]`): Texts, one reference for each prediction.
        max_bytes (`int`, *optional*): Cut each prediction to so many UTF-8 bytes first (75 in DUC 2004); a character
            cut in two is left out. References stay whole.
        use_stemmer (`bool`, *optional*, defaults to `True`): Porter stems, as ROUGE-1.5.5 `-m`.
        unit (`str`, *optional*, defaults to `"word"`): `"word"`, which to `rouge_score` is ASCII letters and digits
            alone; `"character"` for Japanese and Chinese, where a text has no such word.

    Returns:
        `dict[str, float]`: `rouge1_recall`, `rouge1_f1`, and so on.

    Raises:
        `ValueError`: without predictions, when the two differ in number, for `max_bytes` under 1, or another unit.
    """
    from rouge_score.rouge_scorer import RougeScorer

    if max_bytes is not None and max_bytes < 1:
        raise ValueError(f"max_bytes must be at least 1, got {max_bytes}; leave it out to keep predictions whole")
    if len(predictions) != len(references) or len(predictions) == 0:
        raise ValueError(f"each prediction needs one reference, got {len(predictions)} and {len(references)}")
    if unit not in ROUGE_UNITS:
        raise ValueError(f"unit of ROUGE must be one of {', '.join(ROUGE_UNITS)}, got {unit!r}")
    names = ("rouge1", "rouge2", "rougeL")
    scorer = RougeScorer(
        list(names), use_stemmer=use_stemmer, tokenizer=_Characters() if unit == "character" else None
    )
    totals = {f"{name}_{part}": 0.0 for name in names for part in ("recall", "f1")}
    for prediction, reference in zip(predictions, references, strict=True):
        if max_bytes is not None:
            prediction = prediction.encode("utf-8")[:max_bytes].decode("utf-8", errors="ignore")
        for name, score in scorer.score(reference, prediction).items():
            totals[f"{name}_recall"] += score.recall
            totals[f"{name}_f1"] += score.fmeasure
    return {name: 100 * total / len(predictions) for name, total in totals.items()}


def rouge_settings(max_bytes: int | None = None, use_stemmer: bool = True, unit: str = "word") -> str:
    """Signature to print beside a ROUGE score."""
    cut = "none" if max_bytes is None else f"{max_bytes} bytes"
    words = f"stemmer={use_stemmer}" if unit == "word" else f"{unit}s"
    return f"rouge_score {version('rouge_score')}, {words}, truncation={cut}, mean over examples x 100"


def build_compute_metrics(
    tokenizer,
    length_unit: str,
    *,
    length: int | None = None,
    max_bytes: int | None = None,
    rouge_unit: str = "word",
    bleu_tokenizer: str | None = None,
) -> Callable:
    """
    `compute_metrics` for a `Seq2SeqTrainer` with `predict_with_generate=True`.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Decodes predictions and labels.
        length_unit (`str`): `"token"` or `"character"`.
        length (`int`, *optional*): The length every example was asked for; by default that of its reference.
        max_bytes (`int`, *optional*): See `rouge_metrics`.
        rouge_unit (`str`, *optional*, defaults to `"word"`): The unit of `rouge_metrics`.
        bleu_tokenizer (`str`, *optional*): Measure BLEU and chrF (`hf_lenctrl.translation_metrics`) instead of ROUGE.

    Returns:
        `Callable`: From `EvalPrediction` to the figures of `length_metrics` and of quality, with their settings.
    """
    if length is not None:
        check_length(length)
    table = UnitTable.from_tokenizer(tokenizer, length_unit)

    def measure(ids) -> tuple[list[str], list[int]]:
        import torch

        ids = torch.as_tensor(ids)
        ids = ids.masked_fill(ids == -100, tokenizer.pad_token_id)
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if length_unit == "token":
            return texts, table.count(ids).tolist()
        return texts, [count_units(text, length_unit) for text in texts]

    def compute_metrics(evaluation) -> dict:
        predictions, produced = measure(evaluation.predictions)
        references, reference_lengths = measure(evaluation.label_ids)
        requested = reference_lengths if length is None else [length] * len(produced)
        if bleu_tokenizer is None:
            quality = rouge_metrics(predictions, references, max_bytes=max_bytes, unit=rouge_unit)
            settings = f"ROUGE: {rouge_settings(max_bytes, unit=rouge_unit)}"
        else:
            from .translation_metrics import translation_metrics

            quality = translation_metrics(predictions, references, bleu_tokenizer=bleu_tokenizer)
            settings = f"BLEU: {quality.pop('bleu_signature')}; chrF: {quality.pop('chrf_signature')}"
        asked = "the reference" if length is None else length
        settings = f"length: {length_unit}s against {asked}; {settings}"
        return {**length_metrics(produced, requested), **quality, "settings": settings}

    return compute_metrics
