"""Figures of the papers' tables: length ratio, errors of a predictor, the paired bootstrap."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..evaluation.metrics import bleu_metric, length_metrics


def length_figures(produced: Sequence[int], reference: Sequence[int]) -> dict[str, Any]:
    """
    `length_ratio` and `variance` (eq. 4) of outputs against their references, in one unit.

    Oka et al. 2020, section 4.1, write `tgt_len / ref_len` and leave the mean open; here each is summed over the set,
    as in BLEU's brevity penalty. The ratio is `None` where all references are empty.
    """
    figures = length_metrics(produced, reference)
    ratio = sum(produced) / sum(reference) if sum(reference) else None
    return {"length_ratio": ratio, "variance": figures["variance"]}


def predictor_figures(predicted: Sequence[int], reference: Sequence[int]) -> dict[str, Any]:
    """`mae`, `variance`, and `pearson` or `None` where a side is constant (Oka et al. 2020, Table 2)."""
    figures = length_metrics(predicted, reference)
    varies = len(set(predicted)) > 1 and len(set(reference)) > 1
    pearson = float(np.corrcoef(predicted, reference)[0, 1]) if varies else None
    return {"mae": figures["mae"], "variance": figures["variance"], "pearson": pearson}


def paired_bootstrap(
    baseline: Sequence[str],
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    *,
    bleu_tokenizer: str = "13a",
    samples: int = 1000,
) -> list[float]:
    """
    Probability that a system's difference in BLEU from the baseline is chance, by sacrebleu's paired bootstrap
    resampling (its seed is `SACREBLEU_SEED`, 12345 by default).

    Returns:
        `list[float]`: p, one for each of `systems`.
    """
    bleu = bleu_metric(bleu_tokenizer)
    from sacrebleu.significance import PairedTest

    named: Any = [("baseline", list(baseline)), *((str(i), list(system)) for i, system in enumerate(systems))]
    test = PairedTest(named, {"BLEU": bleu}, [list(references)], test_type="bs", n_samples=samples)
    results: Any = test()[1]["BLEU"]
    # no resampled difference of equal outputs exceeds their own of 0, which the test takes for the rarest of events
    same = [list(system) == list(baseline) for system in systems]
    return [1.0 if equal else result.p_value for equal, result in zip(same, results[1:], strict=True)]
