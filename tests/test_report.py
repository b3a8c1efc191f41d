"""The compliance report: every expected figure was counted and worked out by hand."""

import json
import struct
import sys

import numpy as np
import pandas
import pytest

from hf_lenctrl.evaluation.report import LengthReport, length_report


# characters 17, 9, 12, 8, 0, 3; words 3, 2, 2, 2, 0, 1; bytes 17, 9, 12, 13, 0, 3
TEXTS = ["small text editor", "card game", "network logs", "naïve 日本", "", "a|b"]
CHARACTERS = [17, 10, 10, 17, 10, 3]  # differences 0, -1, 2, -9, -10, 0
WORDS = [3, 3, 2, 1, 1, 1]  # differences 0, -1, 0, 1, -1, 0


def table_rows(markdown: str) -> list[list[str]]:
    """Cells of every row of every table, without the rules under the headers."""
    lines = [line for line in markdown.splitlines() if line.startswith("|") and not line.startswith("|--")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def letters(lengths) -> list[str]:
    return ["x" * length for length in lengths]


def test_each_unit_has_its_own_lengths_and_figures():
    requested = {"word": WORDS, "byte": [17, 9, 12, 13, 1, 3]}
    units = length_report(TEXTS, requested, units=("byte", "word")).units
    assert list(units) == ["byte", "word"]
    assert (units["byte"]["exact"], units["byte"]["mae"]) == (5 / 6, 1 / 6)
    assert (units["word"]["variance"], units["word"]["mae"], units["word"]["exact"]) == (0.5, 0.5, 0.5)
    # equal differences stand in the order of the texts
    assert [row["index"] for row in units["word"]["worst"]] == [1, 3, 4]
    # 10 % of 9, 70 and 30, with its ends
    units = length_report(letters([9, 10, 77, 78, 27, 26]), [10, 9, 70, 70, 30, 30], bucket_width=1).units
    within = {bucket["low"]: bucket["within_10_percent"] for bucket in units["character"]["buckets"]}
    assert within == {9: 0.0, 10: 1.0, 30: 0.5, 70: 0.5}
    report = length_report(["aaaa", "bbbbb"], [5, 40], tolerance=[1, 0])  # each text has its window
    assert [bucket["within"] for bucket in report.units["character"]["buckets"]] == [1.0, 0.0]


def test_tokens_are_those_of_the_target_side(character_tokenizer):
    assert len(character_tokenizer("text editor", add_special_tokens=False)["input_ids"]) < 11  # the source's subwords
    report = length_report(["small", "text editor", ""], [5, 11, 1], units="token", tokenizer=character_tokenizer)
    assert report.lengths["token"][0] == [5, 11, 0]  # no special tokens


@pytest.mark.parametrize(
    "requested, expected, width",
    [
        ([10, 19, 20, 39, 100, 4], [(1, 9, 1), (10, 19, 2), (20, 29, 1), (30, 39, 1), (100, 109, 1)], 10),
        (range(1, 9), [(i, i, 1) for i in range(1, 9)], None),
        (range(1, 10), [(1, 1, 1), (2, 3, 2), (4, 5, 2), (6, 7, 2), (8, 9, 2)], None),
        # empty buckets count for nothing, so one long text does not widen the rest
        ([*range(20, 100, 5), 3000], [*((low, low + 19, 4) for low in (20, 40, 60, 80)), (3000, 3019, 1)], None),
    ],
)
def test_buckets_are_round_and_by_default_at_most_8(requested, expected, width):
    report = length_report(letters(requested), list(requested), bucket_width=width)
    assert [(row["low"], row["high"], row["n"]) for row in report.units["character"]["buckets"]] == expected


def test_markdown_has_a_row_for_each_unit_bucket_and_example():
    report = length_report(TEXTS, {"character": CHARACTERS, "word": WORDS}, units=["character", "word"], worst=2)
    header = ["n", "MAE", "variance", "exact", "distinct", "over", "within ±10 %"]
    examples = ["index", "requested", "produced", "difference", "text"]
    assert table_rows(report.markdown()) == [
        ["unit", *header],
        ["character", "6", "3.67", "31.00", "33.3 %", "100.0 %", "16.7 %", "50.0 %"],
        ["word", "6", "0.50", "0.50", "50.0 %", "100.0 %", "16.7 %", "50.0 %"],
        ["requested", *header],
        ["3", "1", "0.00", "0.00", "100.0 %", "100.0 %", "0.0 %", "100.0 %"],
        ["10", "3", "4.33", "35.00", "0.0 %", "100.0 %", "33.3 %", "33.3 %"],
        ["17", "2", "4.50", "40.50", "50.0 %", "100.0 %", "0.0 %", "50.0 %"],
        examples,
        ["4", "10", "0", "-10", ""],
        ["3", "17", "8", "-9", "naïve 日本"],
        ["requested", *header],
        ["1", "3", "0.67", "0.67", "33.3 %", "100.0 %", "33.3 %", "33.3 %"],
        ["2", "1", "0.00", "0.00", "100.0 %", "100.0 %", "0.0 %", "100.0 %"],
        ["3", "2", "0.50", "0.50", "50.0 %", "100.0 %", "0.0 %", "50.0 %"],
        examples,
        ["1", "3", "2", "-1", "card game"],
        ["3", "1", "2", "+1", "naïve 日本"],
    ]
    # (0 + 1 + 4 + 81 + 100 + 0) / 6; within 10 %: 17 of 17, 9 of 10, 3 of 3
    expected = {"variance": 31.0, "mae": 22 / 6, "exact": 2 / 6, "over": 1 / 6, "within_10_percent": 0.5}
    expected["distinct"] = 1.0
    figures = report.to_dict()["units"]["character"]
    assert {**figures, "n": 6, **expected} == figures and figures.keys() - expected == {"n", "worst", "buckets"}
    assert "Takase & Okazaki 2019, eq. 8" in report.markdown()
    wide = length_report(letters([4, 10, 19]), [4, 10, 19], bucket_width=10).markdown()
    assert [row[0] for row in table_rows(wide)][3:] == ["1–9", "10–19"]
    assert "Largest differences" not in wide and "ROUGE" not in wide
    for text, cell in (("a|b *c* <unk>\n# d_e", r"a\|b \*c\* &lt;unk&gt; # d\_e"), ("x" * 101, "x" * 99 + "…")):
        assert table_rows(length_report([text], [500]).markdown())[-1][-1] == cell
    report.rouge = {"rouge1_recall": 12.345, "rouge1_f1": 50.0, "settings": "rouge_score 0.1.2"}
    assert table_rows(report.markdown())[-2:] == [["rouge1_recall", "rouge1_f1"], ["12.35", "50.00"]]
    assert report.markdown().endswith("\nrouge_score 0.1.2\n") and report.to_dict()["rouge"]["rouge1_f1"] == 50.0


def test_the_same_text_of_the_same_source_counts_once():
    texts, requested = ["aa", "aa", "bb", "bb", "ccc"], [2, 2, 2, 2, 3]
    figures = length_report(texts, requested).units["character"]
    assert figures["distinct"] == 3 / 5 and [row["distinct"] for row in figures["buckets"]] == [2 / 4, 1.0]
    report = length_report(texts, requested, sources=["A", "A", "B", "C", "A"])  # bb is of two sources
    figures = report.units["character"]
    assert figures["distinct"] == 3 / 4 and [row["distinct"] for row in figures["buckets"]] == [2 / 3, 1.0]
    assert "the same text of the same source counts once, and the rows have 3 different sources." in report.markdown()
    with pytest.raises(ValueError, match="sources must hold one for each text, got 5 and 4"):
        length_report(texts, requested, sources=["A", "A", "B", "C"])


def test_columns_of_pandas_and_numpy_make_the_report_of_lists(tmp_path):
    texts, requested, sources = ["aa", "aa", "bb", "ccc"], [2, 2, 3, 1], ["A", "A", "B", "A"]
    columns = [pandas.Series(column, index=[7, 2, 1, 3]) for column in (texts, requested, sources)]
    report = length_report(columns[0], columns[1], sources=columns[2])
    assert report == length_report(texts, requested, sources=sources)
    report.save(tmp_path)
    length_report(texts, [*map(np.int64, requested[:3]), (np.int64(1), np.int64(2))]).save(tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["units"]["character"]["mae"] == 0.5


def png_size(path) -> tuple[int, int]:
    return struct.unpack(">II", path.read_bytes()[16:24])


def test_save_writes_json_markdown_and_a_png_where_it_can_be_drawn(tmp_path, monkeypatch, caplog):
    texts = [*TEXTS[:-1], "a\ud800b"]  # a text that is no UTF-8
    report = length_report(texts, {"character": CHARACTERS, "word": WORDS})  # all units that have lengths
    folder = tmp_path / "new" / "report"
    report.save(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["report.json", "report.md", "report.png"]
    text = (folder / "report.json").read_text(encoding="utf-8")
    assert json.loads(text) == report.to_dict()
    assert "naïve 日本" in text
    markdown = (folder / "report.md").read_text(encoding="utf-8")
    assert markdown.startswith(report.markdown())
    assert "(report.png)" in markdown
    assert png_size(folder / "report.png") == (1500, 1170)  # two rows of 10 by 3.9 inches at 150 dots
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report.save(tmp_path / "tables")
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["report.json", "report.md"]
    assert 'no picture: plotting a report needs matplotlib: pip install "hf_lenctrl[plot]"' in caplog.text
    assert "report.png" not in (tmp_path / "tables" / "report.md").read_text()


def test_a_far_difference_makes_no_more_bars_than_a_near_one(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    draw, bars = Axes.hist, []
    monkeypatch.setattr(Axes, "hist", lambda self, x, bins, **k: bars.append(len(bins)) or draw(self, x, bins, **k))
    figures = length_report(letters([3, 3, 40]), [3, 5, 30]).units["character"]
    LengthReport({"character": figures}, {"character": ([3, 3, 40], [10**12, 5, 30])}).save(tmp_path)
    assert png_size(tmp_path / "report.png") == (1500, 585)
    assert len(bars) == 1 and 3 <= bars[0] <= 52  # ends of bars


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"predictions": "text"}, ValueError, "got 4 and 6"),
        ({"predictions": ["a", None]}, TypeError, r"must be a text, got None at position 1"),
        ({"requested": [17, 10, 0, 17, 10, 3]}, ValueError, "at least 1, got 0"),
        ({"requested": 40}, TypeError, r"must hold a length for each text, got 40; pass \[40\]"),
        ({"units": []}, ValueError, "units must name at least one unit, got none"),
        ({"bucket_width": -5}, ValueError, "bucket_width must be an integer of at least 1, got -5"),
        ({"worst": -1}, ValueError, "worst must be an integer of at least 0, got -1"),
        ({"units": ["line"]}, ValueError, "unit of a text must be one of character, word, .*, arial, got 'line'"),
        ({"units": ["character", "word"]}, ValueError, r"for each unit, \{'character': \[...\], ...\}, got one list"),
        ({"requested": {"word": WORDS}, "units": "byte"}, ValueError, r"\{'byte': \[...\], ...\}, got those of word"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        length_report(**{"predictions": TEXTS, "requested": CHARACTERS, **arguments})
