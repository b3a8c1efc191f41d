"""BLEU, chrF, length ratio, significance and the tables: figures by hand or from sacrebleu's own command line."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from recipe_runs import ROOT, write_rows
from run import render
from translations import System, length_figures, load_systems, main, paired_bootstrap, translation_tables

from hf_lenctrl.evaluation.metrics import predictor_figures, translation_metrics


ENGLISH = ["the cat sat on the mat", "a dog ran through the long grass", "rain fell all day in the hills"]
WORSE = ["the cat sat on a mat", "the dog ran in long grass", "it rained for a day"]
JAPANESE = ["彼はついにそれが真実だと認めた。", "猫がマットの上に座った。"]
JAPANESE_OUTPUTS = ["彼はそれが真実だとついに認めた。", "犬がマットの上に座りました。"]


@pytest.mark.parametrize(
    ("outputs", "references", "tokenizer"), [(WORSE, ENGLISH, "13a"), (JAPANESE_OUTPUTS, JAPANESE, "ja-mecab")]
)
def test_scores_are_those_of_sacrebleus_command_line(tmp_path, outputs, references, tokenizer):
    for name, texts in (("out", outputs), ("ref", references)):
        (tmp_path / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
    words = [sys.executable, "-m", "sacrebleu", str(tmp_path / "ref"), "-i", str(tmp_path / "out"), "-b", "-w", "6"]
    words += ["-m", "bleu", "chrf", "--tokenize", tokenizer]
    bleu, chrf = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    figures = translation_metrics(outputs, references, bleu_tokenizer=tokenizer)
    assert 0 < bleu < 100 and figures["bleu"] == pytest.approx(bleu, abs=1e-6)
    assert figures["chrf"] == pytest.approx(chrf, abs=1e-6)
    assert f"tok:{tokenizer}" in figures["bleu_signature"]
    assert figures["chrf_signature"].endswith(f"version:{sacrebleu.__version__}")


def test_predictor_figures_are_those_of_numpy():
    predicted, reference = [4, 7, 9, 12], [5, 7, 8, 15]
    expected = {"mae": 5 / 4, "variance": 11 / 4, "pearson": float(np.corrcoef(predicted, reference)[0, 1])}
    assert predictor_figures(predicted, reference) == pytest.approx(expected)
    assert predictor_figures([3, 3], [2, 4])["pearson"] is None


def test_significance():
    references = [f"{a} {b} {c} {d} {a} {b}" for a in "abcd" for b in "efgh" for c in "ijk" for d in "lm"]
    baseline = [text.replace("a", "x").replace("e", "y") if i % 2 else text for i, text in enumerate(references)]
    same, better = paired_bootstrap(baseline, [baseline, references], references, samples=200)
    assert better < 0.05 < same == 1.0
    # other texts, but no word of the references in either
    assert paired_bootstrap(["x y z"] * 40, [["v w"] * 40], references[:40], samples=200) == [1.0]


def systems_of(names: dict[str, list[str]]) -> list[System]:
    systems = []
    for label, outputs in names.items():
        name, _, how = label.partition(":")
        produced = [len(text.split()) for text in outputs]
        systems.append(
            System(name, how or None, outputs, produced, ([6, 6, 8] * len(outputs))[: len(outputs)] if how else None)
        )
    return systems


def test_tables_hold_each_system_where_it_belongs():
    lengths = [6, 7, 11] * 10  # of the references: two groups
    systems = {"transformer": WORSE, "ldpe:predict": ENGLISH, "ldpe:source": WORSE, "lrpe:source": WORSE}
    systems = {name: texts * 10 for name, texts in systems.items()}
    options = {"unit": "word", "baseline": "transformer", "samples": 100}
    tables = translation_tables(systems_of(systems), ENGLISH * 10, lengths, **options)
    lines = tables.markdown().splitlines()
    columns = [
        f"{figure} {way}" for way in ("predict", "source") for figure in ("BLEU", "chrF", "LR", "VAR", "distinct")
    ]
    assert lines[2] == f"| model | {' | '.join(columns)} |"
    bleu, chrf = (translation_metrics(WORSE, ENGLISH)[name] for name in ("bleu", "chrf"))
    # WORSE has 6, 6 and 5 words, ENGLISH 6, 7 and 7
    plain = f"{bleu:.2f} | {chrf:.2f} | {17 / 24:.3f} | {(0 + 1 + 36) / 3:.3f} | 0.10"  # 3 of 30 texts
    assert lines[4] == f"| transformer | {plain} |  |  |  |  |  |"
    assert lines[5].startswith(f"| ldpe | 100.00\\* | 100.00 | {20 / 24:.3f} | {16 / 3:.3f} | 0.10 | {plain}")
    assert lines[6] == f"| lrpe |  |  |  |  |  | {plain} |"
    # requested 6, 6, 8 for references of 6, 7, 11
    assert f"| predict | {4 / 3:.2f} | {10 / 3:.2f} | {np.corrcoef([6, 6, 8], lengths[:3])[0, 1]:.2f} |" in lines
    assert "| BLEU (LR) | 1 to 10 (20 sentences, not tested) | 11 to 20 (10 sentences, not tested) |" in lines
    assert f"| ldpe:predict | 100.00 ({13 / 13:.3f}) | 100.00 ({7 / 11:.3f}) |" in lines
    assert lines[-2].startswith("BLEU: `nrefs:1|") and lines[-1].startswith("chrF: `nrefs:1|")
    json.dumps(tables.to_dict(), allow_nan=False)


def test_each_length_group_of_30_sentences_has_a_star_of_its_own(tmp_path):
    words = [f"w{i}" for i in range(41)]
    short = [" ".join(words[i : i + 8]) for i in range(30)]
    # in the second group chance alone tells the systems apart: one errs in 15 sentences, the other in 14
    middle = [" ".join(words[i : i + 12]) for i in range(29)] + [" ".join(words[5:17])]
    long = [" ".join(words[i : i + 25]) for i in range(3)]
    wrong = [text.replace(" w", " x", 3) for text in short], [text.replace(" w", " x", 3) for text in middle]
    plain = wrong[0] + [wrong[1][i] if i % 2 else text for i, text in enumerate(middle)] + long
    other = short + [wrong[1][i] if i and i % 2 == 0 else text for i, text in enumerate(middle)] + ["x"] * 3
    references, systems = short + middle + long, {"transformer": plain, "ldpe:source": other}
    lengths = [len(text.split()) for text in references]
    options = {"unit": "word", "baseline": "transformer", "samples": 200}
    tables = translation_tables(systems_of(systems), references, lengths, **options)
    groups = tables.systems[1].figures["groups"]
    for k, rows in enumerate((slice(0, 30), slice(30, 60))):
        for name, texts in (("ref", references), ("a", plain), ("b", other)):
            (tmp_path / name).write_text("\n".join(texts[rows]) + "\n")
        command = (
            f"-m sacrebleu {tmp_path}/ref -i {tmp_path}/a {tmp_path}/b -m bleu --paired-bs --paired-bs-n 200 -f json"
        )
        found = subprocess.run([sys.executable, *command.split()], capture_output=True, text=True, check=True).stdout
        assert groups[k]["p"] == pytest.approx(json.loads(found)[1]["BLEU"]["p_value"], abs=1e-4)
    assert groups[0]["p"] < 0.05 < groups[1]["p"] and "p" not in groups[2]  # 3 sentences are too few to tell
    lines = tables.markdown().splitlines()
    heads = "1 to 10 (30 sentences) | 11 to 20 (30 sentences) | 21 to 40 (3 sentences, not tested)"
    assert f"| BLEU (LR) | {heads} |" in lines
    row = next(line for line in lines if line.startswith("| ldpe:source | 1"))
    assert [("\\*" in cell) for cell in row.split("|")[2:5]] == [True, False, False]
    assert "\\* p < 0.05 against transformer, paired bootstrap, where there are at least 30 sentences. " in lines


def test_a_set_of_less_than_30_sentences_is_not_tested():
    systems = systems_of({"transformer": WORSE[:1] * 29, "ldpe": ENGLISH[:1] * 29})
    tables = translation_tables(systems, ENGLISH[:1] * 29, [6] * 29, unit="word", baseline="transformer")
    assert "p" not in tables.systems[1].figures and "| ldpe | 100.00 |" in tables.markdown()
    # sacrebleu finds a difference of one sentence as rare as it can
    assert paired_bootstrap(WORSE[:1], [ENGLISH[:1]], ENGLISH[:1]) == [pytest.approx(1 / 1001)]


@pytest.mark.parametrize(
    ("unit", "lengths", "sizes", "left_out"),
    [
        ("token", [1, 10, 11, 20, 21, 40, 41, 80, 81, 900, 0], [3, 2, 2, 2], "80 tokens: 2 sentences."),
        ("character", [0, 50, 51, 100, 101, 200, 201, 400, 401], [2, 2, 2, 2], "400 characters: 1 sentences."),
        ("width", [50, 401], [1, 0, 0, 0], "400 widths: 1 sentences."),
        ("word", [80, 1], [1, 0, 0, 1], None),
    ],
)
def test_groups_are_those_of_the_unit_and_longer_sentences_are_left_out(unit, lengths, sizes, left_out):
    texts = [f"w{i} x y z" for i in range(len(lengths))]
    tables = translation_tables(systems_of({"a": texts}), texts, lengths, unit=unit)
    most = 80 if unit in ("token", "word") else 400
    assert tables.group_sizes == sizes
    assert tables.to_dict()["left_out"] == len(texts) - sum(sizes)
    assert tables.to_dict()["groups"][-1] == {"range": [most // 2 + 1, most], "n": sizes[-1]}
    line = next((line for line in tables.markdown().splitlines() if line.startswith("Left out")), None)
    assert line == (None if left_out is None else f"Left out of the groups, longer than {left_out}")


def test_an_unknown_tokenizer_is_refused():
    with pytest.raises(ValueError, match="none, zh"):
        translation_metrics(["a"], ["a"], bleu_tokenizer="moses")


@pytest.mark.parametrize(
    ("systems", "options", "message"),
    [
        ({"a": ENGLISH}, {"baseline": "b"}, "no system 'b' .* only a"),
        ({"a:guess": ENGLISH}, {}, "predict, source, reference, got 'guess'"),
        ({"a": ENGLISH[:2]}, {}, "a has 2 outputs for 3 references"),
        ({"a": ENGLISH, "a:": ENGLISH}, {}, "two systems are called 'a'"),
    ],
)
def test_systems_that_cannot_be_compared_are_refused(systems, options, message):
    with pytest.raises(ValueError, match=message):
        translation_tables(systems_of(systems), ENGLISH, [6, 7, 7], **options)


def write(path: Path, outputs, references=ENGLISH, **columns) -> str:
    columns = {"source": ["s"] * len(outputs), "output": outputs, "ref": references, **columns}
    return str(write_rows(path, [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]))


def test_systems_of_different_units_are_measured_in_one(tmp_path, shared_tokenizer):
    characters = [len(text) for text in WORSE]
    tokens = [len(shared_tokenizer.tokenize(text)) for text in WORSE]
    other_spelling = [n + 1 for n in tokens]  # tokens of another segmentation of the same text
    files = {
        "c:predict": write(tmp_path / "c.jsonl", WORSE, requested=[20, 30, 40], length=characters),
        "t:predict": write(tmp_path / "t.jsonl", WORSE, requested=[5, 6, 7], length=other_spelling),
        "w:predict": write(tmp_path / "w.jsonl", WORSE, requested=[2, 3, 4], length=[6, 6, 5]),
    }
    entries = [f"{name}={path}" for name, path in files.items()]
    for unit, produced, requested in (
        ("character", [characters] * 3, [[20, 30, 40], None, None]),
        ("word", [[6, 6, 5]] * 3, [None, None, [2, 3, 4]]),
        ("token", [tokens, other_spelling, tokens], [None, [5, 6, 7], None]),
    ):
        systems, references, lengths = load_systems(entries, "output", "ref", unit=unit, tokenizer=shared_tokenizer)
        assert unit != "token" or lengths == [len(shared_tokenizer.tokenize(text)) for text in ENGLISH]
        assert references == ENGLISH and [(s.name, s.how) for s in systems] == [(n, "predict") for n in "ctw"]
        assert [system.produced for system in systems] == produced
        assert [system.requested for system in systems] == requested
        tables = translation_tables(systems, ENGLISH, [6, 7, 7], unit=unit)
        unknown = [name for name, lengths in zip(files, requested, strict=True) if lengths is None]
        assert f"for want of requested lengths in {unit}s: {', '.join(unknown)}." in tables.markdown()
        assert list(tables.lengths) == ["predict"]


def test_files_that_do_not_go_together_are_told(tmp_path):
    a, b = write(tmp_path / "a.jsonl", WORSE), write(tmp_path / "b.jsonl", WORSE, references=WORSE)
    with pytest.raises(ValueError, match="b.jsonl has other references than t=.*a.jsonl"):
        load_systems([f"t={a}", f"l={b}"], "output", "ref", unit="word")
    with pytest.raises(ValueError, match="a system is NAME=FILE or NAME:WAY=FILE, got 'a.jsonl'"):
        load_systems(["a.jsonl"], "output", "ref", unit="word")
    with pytest.raises(ValueError, match="a.jsonl has no column 'gold', only source, output, ref"):
        load_systems([f"t={a}"], "output", "gold", unit="word")


def test_the_script_prints_and_saves_the_tables(capsys, tmp_path):
    plain, controlled = write(tmp_path / "a.jsonl", WORSE), write(tmp_path / "b.jsonl", ENGLISH, requested=[6, 6, 8])
    words = ["--systems", f"transformer={plain}", f"ldpe:source={controlled}", "--reference_column", "ref"]
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "--units token and --tokenizer go together" in capsys.readouterr().err
    words += ["--units", "word", "--output_dir", str(tmp_path / "report")]
    main([*words, "--baseline", "transformer"])
    printed = capsys.readouterr().out
    assert "| ldpe | 100.00" in printed and "p < 0.05 against transformer" in printed
    assert (tmp_path / "report" / "translation.md").read_text(encoding="utf-8").strip() == printed.strip()
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "holds a translation.json; remove it or name another folder" in capsys.readouterr().err


def test_where_all_references_are_empty_there_is_no_ratio(capsys, tmp_path):
    assert length_figures([3, 2], [0, 0]) == {"length_ratio": None, "variance": 6.5}
    # of the sums, not the mean of the ratios; ((5)^2 + (-5)^2 + (-6)^2) / 3
    assert length_figures([10, 5, 14], [5, 10, 20]) == pytest.approx({"length_ratio": 29 / 35, "variance": 86 / 3})
    words = "one two three four five six seven eight nine ten eleven twelve"
    file = write(tmp_path / "a.jsonl", ["a b", words], references=["", words])
    options = ["--reference_column", "ref", "--units", "word"]
    main(["--systems", f"t={file}", *options, "--output_dir", str(tmp_path / "report")])
    printed = capsys.readouterr().out
    assert "| BLEU (LR) | 1 to 10 (1 sentences) | 11 to 20 (1 sentences) |" in printed
    assert "| t |  | 100.00 (1.000) |" in printed
    figures = json.loads((tmp_path / "report" / "translation.json").read_text())["systems"][0]
    assert figures["groups"][0]["length_ratio"] is None and figures["length_ratio"] == pytest.approx(14 / 12)
    file = write(tmp_path / "b.jsonl", ["a b", "c d"], references=["", ""])
    main(["--systems", f"t={file}", *options])
    assert "| t | 0.00 | 0.00 |  | 4.000 |" in capsys.readouterr().out


def test_a_table_of_the_papers_leaves_a_ratio_that_is_not_there_empty(tmp_path, shared_tokenizer):
    shared_tokenizer.save_pretrained(tmp_path / "plain")
    write(tmp_path / "plain" / "outputs_free.jsonl", ["a b", "c d"], ["", ""], target=["", ""])
    options = {"length_unit": "word", "bleu_tokenizer": "13a"}
    table = {"title": "T", "lengths": ["free"], "rows": {"plain": {}}, "options": options, "predictor": {}}
    figures = {"bleu": 0.0, "length_ratio": None, "variance": 4.0, "distinct": 1.0}
    assert "| plain | 0.000 /  / 4.000 / 1.000 |" in render(table, {"plain": {"figures": {"free": figures}}}, tmp_path)


def test_no_script_has_the_name_of_a_library():
    # Python looks first in the folder of the script that it runs
    folders = (ROOT / "recipes", ROOT / "lab" / "reproduce", ROOT / "recipes" / "fit")
    names = [path.stem for folder in folders for path in folder.glob("*.py")]
    code = "import importlib.util, sys; print([n for n in sys.argv[1:] if importlib.util.find_spec(n)])"
    done = subprocess.run([sys.executable, "-I", "-c", code, *names], capture_output=True, text=True, check=True)
    assert len(names) >= 15 and done.stdout.strip() == "[]"
