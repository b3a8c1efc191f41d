"""`hf_lenctrl.metrics` as `evaluate` metrics: made in place, nothing is loaded from the Hub."""

import datasets
import evaluate

from .metrics import length_metrics, rouge_metrics, rouge_settings


class LengthControl(evaluate.Metric):
    """
    `length_metrics` for `evaluate`: predictions and references are produced and requested lengths.

    Example:

    ```python
    >>> from hf_lenctrl.evaluate_metrics import LengthControl
    >>> LengthControl().compute(predictions=[20, 23], references=[20, 20])
    {'variance': 4.5, 'mae': 1.5, 'exact': 0.5, 'over': 0.5}

    ```
    """

    def _info(self):
        return evaluate.MetricInfo(
            description="Variance (Takase & Okazaki 2019, eq. 8), mean absolute error, exact and over-length shares.",
            citation="",
            features=datasets.Features(
                {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
            ),
        )

    def _compute(self, predictions, references):
        return length_metrics(predictions, references)


class TruncatedRouge(evaluate.Metric):
    """`rouge_metrics` for `evaluate`: ROUGE recall and F1, predictions cut to `max_bytes` if that is given."""

    def _info(self):
        return evaluate.MetricInfo(
            description="ROUGE-1, 2 and L, recall and F1, with optional truncation of predictions to n bytes.",
            citation="",
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
            ),
        )

    def _compute(self, predictions, references, max_bytes: int | None = None):
        return {
            **rouge_metrics(predictions, references, max_bytes=max_bytes),
            "settings": rouge_settings(max_bytes),
        }
