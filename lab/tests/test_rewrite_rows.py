"""The rows of lab/causal/rewrite.py: pairs of one meaning, held-out groups kept apart."""

import json
import random

from lab.causal import rewrite


def test_names_and_numbers_are_replaced_on_both_sides():
    texts = ["Tom paid 120 euros on May 3.", "Tom paid just 120 euros on May 3.", "Tom has paid 120 euros."]
    for seed in range(20):
        first, second, third = rewrite.with_other_names(list(texts), random.Random(seed))
        name, number = first.split()[0], first.split()[2]
        assert first == f"{name} paid {number} euros on May 3."  # what only two of them share stays
        assert second == f"{name} paid just {number} euros on May 3." and third == f"{name} has paid {number} euros."
        assert len(number) == 3
    alone = ["Tom left.", "He left."]
    assert rewrite.with_other_names(list(alone), random.Random(0)) == alone


def test_half_of_the_pairs_that_become_shorter_or_longer_say_so():
    draw = random.Random(0)
    tasks = [[rewrite.task_of("x" * 100, "x" * length, draw) for _ in range(400)] for length in (80, 98, 104, 130)]
    assert [len(set(some)) for some in tasks] == [2, 1, 1, 2] and tasks[1][0] == tasks[2][0] == "Rewrite the text."
    assert 160 < tasks[0].count("Rewrite the text to make it shorter.") < 240
    assert 160 < tasks[3].count("Rewrite the text to make it longer.") < 240


def test_files_hold_chats_and_no_group_is_on_both_sides(tmp_path, monkeypatch):
    lines = [
        (f"Satz {i}.", f"Phrase {i}.", f"Sentence x{i} is here.", f"Here is x{i} now.", "") for i in range(10, 400)
    ]
    monkeypatch.setattr(rewrite.written, "lines", lambda: iter(lines))
    condensed = [[f"The shop on street {i} is closed.", f"Shop on street {i} is closed."] for i in range(10, 200)]
    monkeypatch.setattr(rewrite, "condensed_groups", lambda: condensed)
    rows = [{"split": split, "de": "Er ging.", "en": f"He {verb} away again{end}"} for split, verb, end in
            (("train", "went", "."), ("train", "just walked", " now."), ("test", "ran", " from us."))]  # fmt: skip
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "titles.jsonl").write_text(json.dumps({"split": "train", "abstract": "word " * 100, "title": "A"}))
    command = [
        str(tmp_path / "pairs.jsonl"),
        "--titles",
        str(tmp_path / "titles.jsonl"),
        "--output_dir",
        str(tmp_path),
    ]
    rewrite.main(command)
    train, validation, held_out = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "validation", "held_out")
    )
    assert [message["role"] for message in train[0]["messages"]] == ["system", "user", "assistant"]
    texts = {text for group in held_out for text in group["texts"]}
    contents = [[message["content"] for message in row["messages"]] for row in train]
    assert held_out and validation and not texts & {text for row in contents for text in row[1:]}
    pairs = [row[1:] for row in contents if row[0].startswith("Rewrite the text")]
    assert ["He went away again.", "He just walked away again now."] in pairs or [
        "He just walked away again now.", "He went away again."] in pairs  # fmt: skip
    assert not any("He ran" in text for row in contents for text in row)
    shorter = [row for row in pairs if row[0].startswith("The shop") and row[1].startswith("Shop")]
    assert 180 < len(shorter) <= 190 + 60  # a few groups are held out, and some pairs of groups make a paragraph
    assert any(row[0].startswith("Shop") for row in pairs)  # some pairs are reversed
    assert ["Write a title.", " ".join(["word"] * 80), "A"] in contents
    assert all(0.45 <= len(row[2]) / len(row[1]) <= 1.7 for row in contents if row[1].count(".") == 1)

    rewrite.main([*command, "--others", "0"])
    only = [json.loads(line)["messages"][1]["content"] for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert only and all("hop on street" in text for text in only)
