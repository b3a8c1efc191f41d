"""`hf_lenctrl.evaluation.metrics` as `evaluate` metrics: made in place, nothing is loaded from the Hub."""

import datasets
import evaluate

from .metrics import length_metrics, rouge_metrics, rouge_settings


def _info(description: str, kind: str) -> evaluate.MetricInfo:
    columns = {name: datasets.Value(kind) for name in ("predictions", "references")}
    return evaluate.MetricInfo(description=description, citation="", features=datasets.Features(columns))


class LengthControl(evaluate.Metric):
    """
    `length_metrics` for `evaluate`: predictions and references are produced and requested lengths.

    Example:

    ```python
    >>> from hf_lenctrl.evaluation.evaluate_metrics import LengthControl
    >>> LengthControl().compute(predictions=[20, 23], references=[20, 20])
    {'variance': 4.5, 'mae': 1.5, 'exact': 0.5, 'over': 0.5}

    ```
    """

    def _info(self):
        text = "Variance (Takase & Okazaki 2019, eq. 8), mean absolute error, exact and over-length shares."
        return _info(text, "int64")

    def _compute(self, predictions, references, tolerance=None):
        return length_metrics(predictions, references, tolerance=tolerance)


class TruncatedRouge(evaluate.Metric):
    """`rouge_metrics` for `evaluate`: ROUGE recall and F1, predictions cut to `max_bytes` if that is given."""

    def _info(self):
        text = "ROUGE-1, 2 and L, recall and F1, with optional truncation of predictions to n bytes."
        return _info(text, "string")

    def _compute(self, predictions, references, max_bytes: int | None = None):
        figures = rouge_metrics(predictions, references, max_bytes=max_bytes)
        return {**figures, "settings": rouge_settings(max_bytes)}
