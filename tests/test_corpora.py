"""The readers of the papers' corpora, on files of the same form written here."""

import json
from importlib.util import find_spec

import pytest
from recipe_runs import load_script, read_rows, write_rows

from hf_lenctrl.commands.arguments import DataArguments
from hf_lenctrl.commands.data import load_splits


corpora = load_script("recipes/headline/corpora.py")


def rows_of(tmp_path, *words) -> list[dict]:
    """What the script writes for files of a folder; other words stay as they are."""
    files = [str(tmp_path / word) if (tmp_path / word).exists() else word for word in words]
    corpora.main([*files, "--output_file", str(tmp_path / "rows.jsonl")])
    return read_rows(tmp_path / "rows.jsonl")


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_an_input_is_not_overwritten(tmp_path):
    (tmp_path / "rows.jsonl").write_text("mine")
    with pytest.raises(SystemExit):
        rows_of(tmp_path, "pairs", "rows.jsonl")
    assert (tmp_path / "rows.jsonl").read_text() == "mine"


def test_the_number_of_paths_is_checked(tmp_path, capsys):
    with pytest.raises(SystemExit):
        rows_of(tmp_path, "duc", "docs")
    assert "duc takes 2 path(s), see the examples above, got 1" in capsys.readouterr().err


def test_gigaword_has_a_text_and_a_headline_a_line(tmp_path, capsys):
    (tmp_path / "train.article.txt").write_text("Shares closed down 0.3 percent .\nSri Lanka closed schools .\n \n")
    (tmp_path / "train.title.txt").write_text("shares close lower\nsri lanka closes schools\nnothing\n")
    rows = rows_of(tmp_path, "lines", "train.article.txt", "train.title.txt")
    assert rows[0] == {"source": "Shares closed down 0.3 percent .", "target": "shares close lower"}
    assert len(rows) == 2 and "2 rows in" in (said := capsys.readouterr().out) and "1 without a text" in said
    rows = rows_of(tmp_path, "lines", "train.article.txt", "train.title.txt", "--namas")
    assert rows[0]["source"] == "shares closed down #.# percent ."
    (tmp_path / "rows.jsonl").unlink()
    (tmp_path / "train.title.txt").write_text("shares close lower\n")
    with pytest.raises(ValueError, match="as many lines each, got 3 in .*article.txt, 1 in .*title.txt"):
        rows_of(tmp_path, "lines", "train.article.txt", "train.title.txt")
    assert not (tmp_path / "rows.jsonl").exists()  # nothing that looks whole


def test_the_four_references_of_duc_are_kept_in_the_form_of_namas(tmp_path):
    (tmp_path / "input.txt").write_text(
        "Cambodian leader Hun Sen rejected 2 demands .\nHonduras braced for a storm .\n"
    )
    for i in range(4):
        (tmp_path / f"task1_ref{i}.txt").write_text(f"Hun Sen rejects {i}\nStorm {i}\n")
    names = [f"task1_ref{i}.txt" for i in range(4)]
    rows = rows_of(tmp_path, "lines", "input.txt", *names, "--namas")
    assert (
        rows[0]["source"] == "cambodian leader hun sen rejected # demands ."
        and rows[0]["target"] == "hun sen rejects #"
    )
    assert rows[1]["references"] == ["Storm 0", "Storm 1", "Storm 2", "Storm 3"]


def test_the_published_test_sets_have_a_tab_between_text_and_headline(tmp_path):
    (tmp_path / "test.txt").write_text("a long text\tits headline\nanother\tone\n")
    assert rows_of(tmp_path, "pairs", "test.txt")[1] == {"source": "another", "target": "one"}
    (tmp_path / "test.txt").write_text("a long text\tits headline\nno headline\n")
    with pytest.raises(
        ValueError, match="line 2 of .*test.txt must be a text, a tab and a headline, got 'no headline'"
    ):
        rows_of(tmp_path, "pairs", "test.txt")


DOCUMENT = """<DOC>
<DOCNO> APW19981016.0240 </DOCNO>
<HEADLINE> Not read </HEADLINE>
<TEXT>
<P>
PHNOM PENH, Cambodia (AP) _ Cambodian leader Hun Sen on Friday rejected
&UR; opposition parties' demands for talks outside the country, accusing them of trying to &quot; make trouble.
</P>
<P>
Talks ended.
</P>
</TEXT>
</DOC>
"""


def test_the_documents_of_duc_give_their_first_sentence_and_four_references(tmp_path):
    short = "<TEXT>\nThe storm grew. It moved to the west (AP) of Honduras and killed 3 men. No one else.\n</TEXT>"
    files = {"docs__d30001t__APW19981016.0240": DOCUMENT, "docs__d30002t__apw19981027.0491": short}
    for reader in "ACEF":
        files[f"models__D30001.P.10.T.{reader}.APW19981016.0240"] = f"Hun Sen rejects talks,\n says {reader}\n"
        files[f"models__D30002.P.10.T.{reader}.APW19981027.0491"] = f"Storm {reader}\n"
    write(tmp_path, **files)
    first, second = rows_of(tmp_path, "duc", "docs", "models")
    text = "cambodian leader hun sen on friday rejected opposition parties ' demands for talks outside the country , "
    assert first["source"] == f"{text}accusing them of trying to make trouble ."
    assert first["references"] == [f"Hun Sen rejects talks, says {reader}" for reader in "ACEF"]
    # shorter than 130 characters, so the second sentence stands behind a comma
    assert second["source"] == "the storm grew , it moved to the west -lrb- ap -rrb- of honduras and killed 3 men ."
    (tmp_path / "docs/d30003t").mkdir()
    (tmp_path / "docs/d30003t/NYT1").write_text(short)
    with pytest.raises(ValueError, match=r"NYT1 must have a text and references in .*models/D30003\*NYT1\*, got 0"):
        rows_of(tmp_path, "duc", "docs", "models")


def test_jnc_is_filtered_ordered_and_split(tmp_path):
    articles = [{"kijiid": f"{i:03}", "kiji": [f"第{i}文。", "次の文。"], "midashi": f"見出し{i}"} for i in range(200)]
    articles[7] |= {"kiji": ["=文。"]}
    articles[8] |= {"midashi": "見出し9"}  # leaves both out
    write_rows(tmp_path / "JNC-corpus.json", articles[::-1])
    rows = rows_of(tmp_path, "jnc", "JNC-corpus.json")
    assert rows[0] == {"source": "第0文。次の文。", "target": "見出し0"} and len(rows) == 197
    assert not {"見出し7", "見出し8", "見出し9"} & {row["target"] for row in rows}
    train, validation, test = (
        rows_of(tmp_path, "jnc", "JNC-corpus.json", "--split", name) for name in ("train", "validation", "test")
    )
    assert [len(part) for part in (train, validation, test)] == [193, 2, 2]  # 98 % of 197, and half of the rest
    assert train + validation + test == rows


def test_the_lead_of_a_japanese_article_has_three_sentences_and_quotations_are_whole():
    text = "彼は「来る。きっと来る。」と言った。二つ目（注。ここ）だ。三つ目。四つ目。"
    assert corpora.lead(text) == "彼は「来る。きっと来る。」と言った。二つ目（注。ここ）だ。三つ目。"
    assert corpora.lead("一つ目。終わり") == "一つ目。終わり"


@pytest.mark.skipif(find_spec("MeCab") is None, reason="MeCab is not installed: pip install 'sacrebleu[ja]'")
def test_jamul_has_a_headline_for_each_length(tmp_path):
    article = "トヨタ自動車は電動車をすべての車種に設定する。二つ目の文。三つ目の文。四つ目の文。"
    headlines = [
        "紙の見出し",
        "トヨタ自動車がすべての車種に電動車を設定する方針を発表",
        "トヨタ自動車が電動車を設定",
        "トヨタ自動車に電動車",
    ]
    lines = ["article,paper,26,13,10", ",".join([article, *headlines])]
    lines += [",".join([article, *headlines[:3], "トヨタ"])]  # shorter than 8
    lines += [",".join([article.replace("電動車", "電=車"), *headlines])]
    lines += [",".join(["別の話題の文です。", *headlines])]  # shares no word
    (tmp_path / "JAMUL.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    source = "トヨタ自動車は電動車をすべての車種に設定する。二つ目の文。三つ目の文。"
    for length, target in zip(("26", "13", "10"), headlines[1:], strict=True):
        assert rows_of(tmp_path, "jamul", "JAMUL.csv", "--length", length) == [{"source": source, "target": target}]


def test_the_highlights_of_a_story_are_its_summary(tmp_path):
    story = "(CNN) -- A first sentence.\n\nA second one.\n\n@highlight\n\nFirst point\n\n@highlight\n\nSecond point"
    write(tmp_path, cnn__a=story, dailymail__b=story)
    (tmp_path / "cnn/a").rename(tmp_path / "cnn/a.story")
    assert rows_of(tmp_path, "stories", "cnn", "dailymail") == [
        {"source": "(CNN) -- A first sentence. A second one.", "target": "First point . Second point ."}
    ]
    with pytest.raises(ValueError, match="dailymail hold no rows of the form 'stories'"):
        rows_of(tmp_path, "stories", "dailymail")


def test_newsroom_is_read_as_it_is(tmp_path):
    rows = [{"url": f"u{i}", "title": "t", "text": f"text {i}", "summary": f"summary {i}"} for i in range(3)]
    file = str(write_rows(tmp_path / "train.jsonl", rows))
    columns = {"source_column": "text", "target_column": "summary"}
    splits = load_splits(DataArguments(train_file=file, validation_share=0, test_share=0, **columns))
    assert splits["train"][2] == json.loads('{"source": "text 2", "target": "summary 2"}')
