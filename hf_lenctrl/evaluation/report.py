"""A report of how well texts keep their requested lengths: metrics, tables and a plot."""

import html
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import Template

from ..length_units import check_texts, count_texts
from ..lengths import check_counts, check_length, check_range, is_integer, plural
from .metrics import distinct_share, length_metrics


logger = logging.getLogger(__name__)

FILES = ("report.json", "report.md", "report.png")
TEMPLATE = Path(__file__).with_name("report.md")
_Length = int | tuple[int, int]
_MAX_BUCKETS, _MAX_BARS = 8, 50
_UNDER, _EXACT, _OVER = "#0072B2", "#009E73", "#D55E00"  # colours of Okabe & Ito, distinct with any colour vision


@dataclass
class LengthReport:
    """
    A report of how well texts keep their requested lengths, in one or several units.

    Fields:
        units (`dict[str, dict]`): For each unit, a dictionary with the metrics `n` (number of texts), `variance`,
            `mae`, `exact`, `over`, `within_10_percent` and `distinct` (see `length_metrics` and `distinct_share`). The
            option `tolerance` adds the metric `within`. If the requested lengths are ranges, `within` (the share of
            texts inside their ranges) replaces `exact`. Shares are 0 to 1. `buckets` lists ranges of requested
            lengths, each with `low` and `high` (both included) and the same metrics. `worst` lists the texts whose
            lengths differ most from the requested lengths, each with `index` (from 0), `requested`, `produced` and
            `text`.
        lengths (`dict[str, tuple[list[int], list[int]]]`): For each unit, the produced lengths and the requested
            lengths.
        rouge (`dict`, *optional*): Result of `rouge_metrics`, and its `settings`. The report shows both.
        baseline (`dict`, *optional*): Result of `rouge_metrics` for a baseline, and the `name` of the baseline.
        text (`dict`, *optional*): Result of `text_quality`.
        sources (`int`, *optional*): Number of different sources, if the sources are known.
        rows (`dict`, *optional*): Numbers of rows: `read` (all rows of the file), `left_out` (rows that are not in the
            report) and, if some of these have no requested length, `without_length`.
    """

    units: dict[str, dict[str, Any]]
    lengths: dict[str, tuple[list[int], list[int]]] = field(repr=False)
    rouge: dict[str, float | str] | None = None
    baseline: dict[str, Any] | None = None
    text: dict[str, float] | None = None
    sources: int | None = None
    rows: dict[str, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `report.json`: `units` and all fields that are not `None`, except `lengths`."""
        parts = {name: getattr(self, name) for name in ("units", "rouge", "baseline", "text", "sources", "rows")}
        return {name: value for name, value in parts.items() if value is not None}

    def markdown(self) -> str:
        """Render the report as Markdown tables. Long texts are cut."""
        template = Template(TEMPLATE.read_text("utf-8"), trim_blocks=True, keep_trailing_newline=True)
        return template.render(**self.to_dict(), cells=_cells, escape=escape, plural=plural)

    def save(self, folder: str | Path) -> None:
        """Write `report.json`, `report.md` and, if matplotlib is installed, `report.png`. Older files are replaced."""
        folder, picture = Path(folder), "\n![Requested and produced lengths](report.png)\n"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self.plot(folder / "report.png")
        except ImportError as error:
            logger.warning("the report has no picture: %s", error)
            picture = ""
        figures = json.dumps(self.to_dict(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
        markdown = self.markdown() + picture
        for name, text in (("report.json", figures), ("report.md", markdown)):
            # a lone surrogate is invalid UTF-8, but its escape is valid JSON
            (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")

    def plot(self, path: str | Path) -> None:
        """
        Plot two panels for each unit into an image file: produced against requested lengths, and a histogram of the
        differences. Make the folder of the file if it is missing. Raise `ImportError` if matplotlib is not installed.
        """
        try:
            import matplotlib
            from matplotlib.figure import Figure  # pyplot would change the caller's backend and figures
        except ImportError as error:
            raise ImportError('plotting a report needs matplotlib: pip install "hf_lenctrl[plot]"') from error
        style: Any = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True}
        with matplotlib.rc_context(style):
            figure = Figure(figsize=(10, 3.9 * len(self.units)), dpi=150, layout="constrained")
            rows = figure.subplots(len(self.units), 2, squeeze=False, width_ratios=(1, 1.15))
            for (left, right), (unit, figures) in zip(rows, self.units.items(), strict=True):
                produced, requested = self.lengths[unit]
                _plot_lengths(left, produced, requested, unit)
                _plot_differences(right, produced, requested, unit)
                *_, over, within = _shares(figures)
                kept = "exact" if "exact" in figures else "within"
                left.set_title(f"{figures['n']:,} outputs, {within} within ±10 %")
                right.set_title(
                    f"{kept} {100 * figures[kept]:.1f} %, over {over}, MAE {figures['mae']:.2f} {plural(unit)}"
                )
                for axes in (left, right):
                    axes.legend(frameon=False)
                    axes.grid(color="0.9", linewidth=0.8)
                    axes.tick_params(length=0)
                    axes.locator_params(integer=True, nbins=8)
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path)


def length_report(
    predictions: Sequence[str],
    requested: Sequence[_Length] | Mapping[str, Sequence[_Length]],
    *,
    units: Sequence[str] | None = None,
    sources: Sequence[Hashable] | None = None,
    tokenizer=None,
    bucket_width: int | None = None,
    worst: int = 5,
    **window,
) -> LengthReport:
    """
    Report how well the texts of any system keep their requested lengths.

    Args:
        predictions (`Sequence[str]`): Texts, without special tokens.
        requested (`Sequence` or `Mapping[str, Sequence]`): One length or range `(lowest, highest)` for each text. For
            several units, a dictionary with such a list for each unit, `{"character": [...], "word": [...]}`. A range
            counts as the length inside it that is nearest to the length of the text.
        units (`Sequence[str]`, *optional*): The units to report: `"token"`, or names of other units, see
            `count_units`. The default is all units of `requested`, or `"character"` if `requested` is one list.
        sources (`Sequence`, *optional*): The source of each text, for `distinct` (see `distinct_share`).
        tokenizer (`PreTrainedTokenizerBase`, *optional*): Needed if the units include `"token"`. It encodes each text
            again, as a target; special tokens do not count.
        bucket_width (`int`, *optional*): Width of a bucket of requested lengths; buckets begin at multiples of this
            width, and empty buckets are dropped. The default is the smallest of 1, 2, 5, 10, 20, ... with at most 8
            buckets.
        worst (`int`): Number of examples with the largest differences to show; exact outputs are not shown.
        window: The option `tolerance` of `length_metrics`.

    Returns:
        `LengthReport`: with `.to_dict()`, `.markdown()`, `.plot(path)` and `.save(folder)`.

    Raises:
        `TypeError`, `ValueError`: if a prediction is not a text, if there are no predictions, if the number of lengths
            or sources differs, if there are no units, or if a length, unit, width, window or `worst` is invalid.

    Example:

    ```python
    >>> from hf_lenctrl.evaluation.report import length_report
    >>> report = length_report(["a text editor", "card games"], [13, 12])
    >>> report.units["character"]["mae"], report.units["character"]["exact"]
    (1.0, 0.5)
    >>> report.units["character"]["worst"]
    [{'index': 1, 'requested': 12, 'produced': 10, 'text': 'card games'}]

    ```
    """
    if units is None:
        units = list(requested) if isinstance(requested, Mapping) else ["character"]
    units = (units,) if isinstance(units, str) else tuple(units)
    if not units:
        raise ValueError("units must name at least one unit, got none; leave it out, or pass units=['character']")
    if bucket_width is not None:
        check_counts(bucket_width=bucket_width)
    if not is_integer(worst) or worst < 0:
        raise ValueError(f"worst must be an integer of at least 0, got {worst!r}")
    if not isinstance(requested, Mapping) and len(units) == 1:
        requested = {units[0]: requested}
    if not isinstance(requested, Mapping) or not set(units) <= requested.keys():
        got = f"those of {', '.join(requested)}" if isinstance(requested, Mapping) else "one list"
        raise ValueError(f"requested must hold lengths for each unit, {{'{units[0]}': [...], ...}}, got {got}")
    if alone := [requested[unit] for unit in units if not isinstance(requested[unit], Iterable)]:
        raise TypeError(
            f"requested must hold a length for each text, got {alone[0]!r}; pass [{alone[0]!r}] * len(texts)"
        )
    ranged = any(isinstance(length, tuple) for unit in units for length in requested[unit])
    if ranged and window.get("tolerance") is not None:
        raise ValueError(f"a range takes no tolerance, got tolerance={window['tolerance']!r}; leave tolerance out")
    texts = list(predictions)
    check_texts(texts, "prediction")
    sources = None if sources is None else list(sources)  # the items of a pandas Series are found by its index
    report = LengthReport({}, {}, sources=None if sources is None else len({*sources}))
    for unit in units:
        lengths: list[Any] = list(requested[unit])
        for length in lengths:
            (check_range if isinstance(length, tuple) else check_length)(length)
        # JSON has no integers of NumPy
        lengths = [tuple(map(int, item)) if isinstance(item, tuple) else int(item) for item in lengths]
        produced = count_texts(tokenizer, texts, unit, target=True)
        if ranged and len(lengths) == len(produced):
            lengths = [_nearest(length, n) for length, n in zip(lengths, produced, strict=True)]
        report.lengths[unit] = (produced, lengths)
        report.units[unit] = {
            **_figures(texts, sources, produced, lengths, ranged, **window),
            "buckets": _buckets(texts, sources, produced, lengths, bucket_width, ranged, **window),
            "worst": [
                {"index": i, "requested": lengths[i], "produced": produced[i], "text": texts[i]}
                for i in sorted(range(len(texts)), key=lambda i: -abs(produced[i] - lengths[i]))[:worst]
                if produced[i] != lengths[i]
            ],
        }
    return report


def _nearest(length: _Length, produced: int) -> int:
    """Return the length in a range that is nearest to a produced length; a length that is no range unchanged."""
    return min(max(produced, length[0]), length[1]) if isinstance(length, tuple) else length


def _figures(texts, sources, produced: list[int], requested: list[int], ranged: bool, **window) -> dict[str, Any]:
    figures, n = length_metrics(produced, requested, **window), len(produced)
    if ranged:  # the nearest length is met by every length in the range
        figures["within"] = figures.pop("exact")
    within = sum(10 * abs(p - r) <= r for p, r in zip(produced, requested, strict=True))  # integers make this exact
    return {"n": n, **figures, "within_10_percent": within / n, "distinct": distinct_share(texts, sources)}


def _round_width(groups: Callable[[int], int], most: int) -> int:
    """Return the smallest width of 1, 2, 5, 10, 20, ... with at most `most` groups; `groups(width)` counts them."""
    widths = (step * 10**power for power in count() for step in (1, 2, 5))
    return next(width for width in widths if groups(width) <= most)


def _buckets(
    texts, sources, produced: list[int], requested: list[int], width: int | None, ranged: bool, **window
) -> list[dict[str, Any]]:
    width = width or _round_width(lambda width: len({length // width for length in requested}), _MAX_BUCKETS)
    members: dict[int, list[int]] = {}
    for i, length in enumerate(requested):
        members.setdefault(length // width * width, []).append(i)
    return [
        {"low": max(low, 1), "high": low + width - 1}
        | _figures(
            [texts[i] for i in indices],
            None if sources is None else [sources[i] for i in indices],
            [produced[i] for i in indices],
            [requested[i] for i in indices],
            ranged,
            **{k: [own[i] for i in indices] if isinstance(own, list) else own for k, own in window.items()},
        )
        for low, indices in sorted(members.items())
    ]


def _shares(figures: dict[str, Any]) -> list[str]:
    names = ("exact", "distinct", "within", "over", "within_10_percent")
    return [f"{100 * figures[name]:.1f} %" for name in names if name in figures]


def _cells(figures: dict[str, Any]) -> str:
    return f"{figures['n']} | {figures['mae']:.2f} | {figures['variance']:.2f} | {' | '.join(_shares(figures))} |"


def escape(text: Any, most: int | None = None) -> str:
    """
    Return a text as one line, escaped for Markdown and HTML. Replace line breaks and other white space by single
    spaces. Before escaping, cut the line to `most` characters; `None` means no cut.
    """
    text = " ".join(str(text).split())
    text = text if most is None or len(text) <= most else f"{text[: most - 1]}…"
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", html.escape(text, quote=False))


def _plot_lengths(axes, produced: list[int], requested: list[int], unit: str) -> None:
    counts = Counter(zip(requested, produced, strict=True))
    x, y = zip(*counts, strict=True)
    # the area of a point for one output; equal pairs share one larger point
    scale = min(14.0, 260 / max(counts.values()))
    low, high = min(requested), max(requested)
    margin = max(0.06 * (high - low), 0.04 * high, 1)
    ends = [low - margin, high + margin]
    axes.fill_between(ends, [0.9 * v for v in ends], [1.1 * v for v in ends], color="0.88", lw=0, label="±10 %")
    axes.plot(ends, ends, color="0.35", linewidth=1, label="as requested")
    axes.scatter(x, y, [max(4, scale * n) for n in counts.values()], color=_UNDER, alpha=0.5, linewidths=0)
    axes.set_xlim(ends)
    axes.set_xlabel(f"requested length ({plural(unit)})")
    axes.set_ylabel(f"produced length ({plural(unit)})")


def _plot_differences(axes, produced: list[int], requested: list[int], unit: str) -> None:
    differences = [p - r for p, r in zip(produced, requested, strict=True)]
    low, high = min(differences), max(differences)
    # the width depends only on the ends, because the range may have millions of differences that no output has
    width = _round_width(lambda width: high // width - low // width + 1, _MAX_BARS)
    edges = [edge - 0.5 for edge in range(low // width * width, high + width + 1, width)]
    values = [[d for d in differences if (d > 0) - (d < 0) == sign] for sign in (-1, 0, 1)]
    names, colors = ["shorter", "exact", "longer"], [_UNDER, _EXACT, _OVER]
    axes.hist(values, bins=edges, stacked=True, color=colors, label=names, rwidth=0.9)
    axes.set_xlim(min(edges[0], -5.5), max(edges[-1], 5.5))
    axes.set_xlabel(f"produced − requested ({plural(unit)})")
    axes.set_ylabel("number of outputs")
