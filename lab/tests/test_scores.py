"""lab/translation/scores.py: the score of a sentence at every length."""

import re

from recipe_runs import load_script


def test_the_score_of_each_length_is_printed_and_drawn(tmp_path, capsys):
    scores = load_script("lab/translation/scores.py")
    scores.main(["--shares", "0.95", "1.1", "--output_file", str(tmp_path / "scores.png")])
    rows = re.findall(r"^ (\d+) +(-\d+\.\d)  (.+)$", capsys.readouterr().out, flags=re.M)
    assert [int(length) for length, _, _ in rows] == [len(text) for _, _, text in rows] == [28, 29, 30, 31, 32]
    assert max(rows, key=lambda row: float(row[1]))[0] == "29"  # the natural length
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")
