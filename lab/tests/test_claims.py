"""The claims of the papers: their verdicts, the figures that they are judged by, and the page."""

import csv
import json

import claims
import pytest


FIGURES = {
    "ldpe": {"variance": {30: "0.010", 75: "0.030 ±0.002"}, "ROUGE-1": {30: "16.0", 75: "20.0"}},
    "plain": {"variance": {30: "200", 75: "1300"}, "ROUGE-1": {30: "16.0", 75: "16.7"}},
}


def test_verdicts_of_the_page_are_those_of_the_result_files():
    found = claims.read(claims.DOCS / "claims.csv")
    assert claims.judged(found) == found
    assert claims.page_of(found) == (claims.DOCS / "claims.md").read_text(encoding="utf-8")
    verdicts = {claim["verdict"].split(" (")[0] for claim in found}
    assert verdicts <= set(claims.VERDICTS)
    assert all(claim["why"] for claim in found if claim["verdict"] != "reproduced")
    assert all(claim["comparison"] for claim in found if claim["source"].endswith(".csv"))


@pytest.mark.parametrize(
    ("measure", "comparison", "figures", "verdict"),
    [
        ("variance", "ldpe < plain", "ldpe 0.010 / 0.030 ±0.002, plain 200 / 1300", "reproduced"),
        ("variance", "ldpe <= 0.02", "ldpe 0.010 / 0.030 ±0.002", "in part (1 of 2)"),
        ("ROUGE-1", "ldpe > plain at 30", "ldpe 16.0, plain 16.0", "not reproduced"),
        ("ROUGE-1", "plain > ldpe - 1 at 30", "plain 16.0, ldpe 16.0", "reproduced"),
        ("ROUGE-1", "plain >= ldpe; ldpe > plain at 75", "plain 16.0 / 16.7, ldpe 16.0 / 20.0", "in part (2 of 3)"),
        ("ROUGE-2", "ldpe > plain", "", "untested"),
        ("ROUGE-1", "ldpe > lrpe", "", "untested"),
    ],
)
def test_a_claim_is_judged_by_its_comparisons(measure, comparison, figures, verdict):
    assert claims.judge(measure, comparison, FIGURES) == (figures, verdict)


def test_a_comparison_that_cannot_be_read_is_refused():
    with pytest.raises(ValueError, match="reads `ldpe > transformer - 1 at 50 75`, got 'ldpe better than plain'"):
        claims.judge("ROUGE-1", "ldpe better than plain", FIGURES)


def test_a_figure_that_changed_is_seen(tmp_path):
    for name in claims.FILES:
        (tmp_path / name).write_text("row,variance at 30 / 75\nldpe,0.010 / 0.030\n")
    (tmp_path / "page.md").write_text("BLEU 26.63 and 127.68")
    by_rule = {"source": "methods_en.csv", "measure": "variance", "comparison": "ldpe <= 0.02", "claim": "exact"}
    by_rule |= {"figures": "ldpe 0.010 / 0.010", "verdict": "reproduced"}
    (found,) = claims.judged([by_rule], tmp_path)
    assert found == by_rule | {"figures": "ldpe 0.010 / 0.030", "verdict": "in part (1 of 2)"}
    by_hand = {"source": "page.md", "claim": "better", "figures": "26.63 and 27.68", "verdict": "reproduced"}
    with pytest.raises(ValueError, match="page.md has no 27.68: judge 'better' again"):
        claims.judged([by_hand], tmp_path)


def test_figures_of_a_run_are_written_with_the_spread_of_its_seeds(tmp_path, monkeypatch):
    def line(row, variance, **more):
        measures = dict.fromkeys(
            ("mae", "exact", "over", "distinct", "rouge1_recall", "rouge2_recall", "rouge1_f1"), 0.5
        )
        return {
            "row": row,
            "figures": {n: {**measures, "variance": variance} for n in ("30", "50", "75")},
        } | more

    folder = tmp_path / "headline_en"
    folder.mkdir()
    costs = {"loss": 2.5, "parameters": 3_300_000, "minutes": 7.0}
    lines = [line("ldpe", 0.01, **costs), line("ldpe_seed2", 0.03, **costs), line("cut_off", 45.678)]
    (folder / "results.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    (tmp_path / "methods_en.csv").write_text("row,system\nldpe,LDPE\n")
    table = "| row | variance at 30 / 50 / 75 | distinct % |\n|---|---|---|\n| ldpe | 9 / 9 / 9 | 3 |\n"
    (tmp_path / "methods.md").write_text(f"before\n\n{table}\nafter\n")
    monkeypatch.setattr(claims, "DOCS", tmp_path)
    claims.take_figures(folder)
    with (tmp_path / "protocol_en.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    # the deviation of 0.01 and 0.03 is 0.02 by the root of 2
    assert first["variance at 30 / 50 / 75"] == "0.020 ±0.014 / 0.020 ±0.014 / 0.020 ±0.014"
    assert first["system"] == "LDPE" and first["seeds"] == "2" and first["the paper's ROUGE-1"] == "47.3 / 50.2 / 54.0"
    assert first["exact %"] == "50.0 ±0.0 / 50.0 ±0.0 / 50.0 ±0.0" and first["loss"] == "2.50"
    assert second["system"] == "cut_off" and second["variance at 30 / 50 / 75"] == "45.7 / 45.7 / 45.7"
    assert second["loss"] == second["the paper's variance"] == ""
    page = (tmp_path / "methods.md").read_text()
    assert page.startswith("before\n\n| row | variance at 30 / 50 / 75 | MAE | exact % | distinct % |")
    assert page.endswith(" |\n\nafter\n") and "| ldpe | 0.020 ±0.014" in page and "9 / 9 / 9" not in page
    assert claims.figures_of(tmp_path / "protocol_en.csv")["ldpe"]["variance"][75] == "0.020 ±0.014"
