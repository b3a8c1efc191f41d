"""A range: one output of any length within, chosen among several lengths; and lengths of rows."""

import datasets
import pytest
from conftest import SOURCES, TARGETS, build_model
from hypothesis import given
from hypothesis import strategies as st
from recipe_runs import write_rows, write_texts
from test_causal import PROMPTS, build, make_tokenizer
from transformers import Seq2SeqTrainingArguments

import hf_lenctrl
from hf_lenctrl import LengthControlledGenerationPipeline as Pipeline
from hf_lenctrl.evaluation.metrics import build_compute_metrics
from hf_lenctrl.inference.marks import MarkRunsLogitsProcessor
from hf_lenctrl.inference.sources import plans_of, ratio_ranges


def test_the_lengths_of_a_range_are_spread_evenly_and_a_ratio_without_a_whole_length_is_logged(caplog):
    assert plans_of(30, 42, 3) == [30, 36, 42] and plans_of(30, 42, 5) == [30, 33, 36, 39, 42]
    assert plans_of(10, 12, 9) == [10, 11, 12] and plans_of(10, 20, 1) == [15]
    assert ratio_ranges([3, 40], (0.45, 0.55)) == [(2, 2), (18, 22)]
    assert "1 of 2 texts have no whole length from 0.45 to 0.55 times their own" in caplog.text


@given(counts=st.lists(st.integers(0, 500), min_size=1), low=st.integers(1, 200), more=st.integers(0, 99))
def test_a_range_of_ratios_never_goes_beyond_them(counts, low, more):
    """Hundredths, so that whole numbers tell what is inside; a range without a whole length is the nearest one."""
    for n, (least, most) in zip(counts, ratio_ranges(counts, (low / 100, (low + more) / 100)), strict=True):
        inside = [k for k in range(1, 1500) if low * n <= 100 * k <= (low + more) * n]
        if inside:
            assert (least, most) == (inside[0], inside[-1])
        else:
            assert 1 <= least == most and (least == 1 or abs(100 * least - (low + more / 2) * n) <= 50)


def candidates(pipe, source: str, low: int, high: int, plans: list[int], **options) -> list[tuple[float, str]]:
    """Each text written alone, and the mean log-probability of a token, from the loss at the text's own length."""
    found = []
    inputs = pipe.tokenizer(source, return_tensors="pt")
    options["logits_processor"] = [MarkRunsLogitsProcessor(pipe.tokenizer, pipe.model.config.vocab_size)]
    for n in plans:
        window = {"length_constraint": "exact", "length_tolerance": (n - low, high - n)}
        for ids in pipe.model.generate(**inputs, length=n, **window, **options):
            text = pipe.tokenizer.decode(ids, skip_special_tokens=True)
            end = ids.tolist().index(pipe.model.config.eos_token_id, 1)
            labels = ids[1 : end + 1].unsqueeze(0)  # the loss is a mean over these, EOS among them
            loss = pipe.model(**inputs, labels=labels, decoder_input_ids=ids[:end].unsqueeze(0), length=len(text)).loss
            found.append((-loss.item(), text))
    return found


@pytest.mark.parametrize("beams", [1, 3])
def test_the_text_that_is_likeliest_at_its_own_length_is_returned(pipe, beams):
    ranges = [(9, 15), (4, 4), (20, 31), (10, 11)]
    outputs = pipe(SOURCES[:4], length=ranges, num_beams=beams)
    for out, source, (low, high) in zip(outputs, SOURCES, ranges, strict=False):
        found = candidates(pipe, source, low, high, plans_of(low, high, 3), num_beams=beams)
        text = max(found)[1]
        assert low <= len(text) <= high
        asked = {"requested_length": (low, high), "length_unit": "character"}
        assert out == {"generated_text": text, "length": len(text), **asked}


def test_a_range_holds_for_all_texts_and_a_list_has_one_for_each(pipe):
    same = pipe(SOURCES[:3], length=(5, 9))
    assert [out["requested_length"] for out in same] == [(5, 9)] * 3
    assert same == pipe(SOURCES[:3], length=[(5, 9)] * 3) and same[0] == pipe(SOURCES[0], length=(5, 9))
    several = pipe(SOURCES[0], length=[(5, 9), (20, 24)])
    assert [out["requested_length"] for out in several] == [(5, 9), (20, 24)] and several[0] == same[0]
    assert pipe(SOURCES[:2], length=[[(5, 9), (20, 24)], [(5, 9)]]) == [several, [same[1]]]
    assert pipe(SOURCES[:3], length=(5, 9), batch_size=2) == same  # the rows of a text may lie in two batches


def test_several_outputs_of_a_range_are_the_best_of_all_its_candidates(pipe):
    found = candidates(pipe, SOURCES[0], 9, 30, plans_of(9, 30, 3), num_beams=2, num_return_sequences=2)
    texts = list(dict.fromkeys(text for _, text in sorted(found, reverse=True)))
    outputs = pipe(SOURCES[0], length=(9, 30), num_return_sequences=4, num_beams=2)
    assert [out["generated_text"] for out in outputs] == texts[:4]


def test_narrow_ranges_have_as_many_outputs_as_wide_ones(pipe):
    ranges = [(12, 12), (9, 30), (20, 21), (12, 13)]
    several = pipe(SOURCES[:4], length=ranges, num_return_sequences=3)
    for outputs, source, (low, high) in zip(several, SOURCES, ranges, strict=False):
        assert len(outputs) == 3 and all(low <= out["length"] <= high for out in outputs)
        assert outputs == pipe(source, length=(low, high), num_return_sequences=3)  # its neighbours change nothing
    best = pipe(SOURCES[:4], length=ranges, rerank=3)
    assert [out["requested_length"] for out in best] == ranges


def test_a_plain_model_and_a_causal_model_keep_a_range(plain_pipe):
    for unit in ("token", "character", "word", "byte"):
        outputs = plain_pipe(SOURCES[:3], length=(3, 6), length_unit=unit, num_beams=2, max_new_tokens=40)
        assert all(3 <= out["length"] <= 6 for out in outputs)
    _, model = build("llama")
    write = Pipeline(model=model, tokenizer=make_tokenizer(), device="cpu")
    outputs = write(PROMPTS, length=[(5, 9), (12, 20)], do_sample=False)
    assert [out["requested_length"] for out in outputs] == [(5, 9), (12, 20)]
    assert all(low <= len(out["generated_text"]) <= high for out in outputs for low, high in [out["requested_length"]])
    assert write(PROMPTS[0], length=(5, 9), do_sample=False) == outputs[0]  # alone as in the padded batch


def test_a_range_that_no_text_can_have_is_left_empty():
    plain, _ = build("llama")
    options = {"length_encoding": "ldpe", "length_unit": "cost", "cost": lambda text: 3 * len(text)}
    model = hf_lenctrl.add_length_control(plain, tokenizer=make_tokenizer(), **options)
    outputs = Pipeline(model=model, tokenizer=make_tokenizer(), device="cpu")(PROMPTS, length=(1, 2), do_sample=False)
    assert [(out["generated_text"], out["length"]) for out in outputs] == [("", 0)] * len(PROMPTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": (30, 20)}, r"pass \(20, 30\)"),
        ({"length": (10, 20, 30)}, r"got \(10, 20, 30\)"),
        ({"length": [(10, 20), 30]}, "only lengths or only ranges, got 30 beside ranges; .* range from 30 to 30"),
        ({"length": (0, 5)}, "at least 1, got 0"),
        ({"length_ratio": (1.1, 0.9)}, "above 0, got"),
        ({"length": (5, 9), "length_constraint": None}, "leave length_constraint out"),
        ({"length": (5, 9), "length_tolerance": 2}, "leave length_tolerance out"),
        (
            {"length": 5, "length_tolerance": [1, 2], "length_constraint": "exact"},
            r"each of the 1 texts, got \[1, 2\]",
        ),
    ],
)
def test_a_wrong_range_is_told(pipe, options, message):
    with pytest.raises(ValueError, match=message):
        pipe(SOURCES[0], **options)


def test_the_pipeline_keeps_the_window_of_each_text(pipe):
    options = {"length": [12, 20, 9], "length_constraint": "exact"}
    outputs = pipe(SOURCES[:3], **options, length_tolerance=[0, (0, 8), 0.25], batch_size=2)
    assert all(a <= out["length"] <= b for out, a, b in zip(outputs, (12, 20, 7), (12, 28, 11), strict=True))
    assert outputs[1] == pipe(SOURCES[1], length=20, length_constraint="exact", length_tolerance=(0, 8))


def test_the_command_takes_windows_and_ranges(saved, tmp_path, capsys):
    texts, rows, out = tmp_path / "texts.txt", tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    texts.write_text("\n".join(SOURCES[:3]), encoding="utf-8")
    write_rows(rows, [{"source": s, "budget": [5 + i, 9 + i]} for i, s in enumerate(SOURCES[:3])])
    ways = [
        (texts, ["--length", "8-12"], [(8, 12)] * 3),
        (texts, ["--length_ratio", 0.5, 0.75], ratio_ranges([len(s) for s in SOURCES[:3]], (0.5, 0.75))),
        (rows, ["--length_column", "budget"], [(5, 9), (6, 10), (7, 11)]),
        (texts, ["--length", 10, "--length_constraint", "exact", "--length_tolerance", 0.2], [(8, 12)] * 3),
        (texts, ["--length", 10, "--length_constraint", "exact", "--length_tolerance", 0, 3], [(10, 13)] * 3),
    ]
    for file, options, expected in ways:
        lines = write_texts(saved, file, *options)
        assert [low <= row["length"] <= high for row, (low, high) in zip(lines, expected, strict=True)] == [True] * 3
        asked = [row.get("requested") for row in lines]
        assert asked == ([10] * 3 if "--length_tolerance" in options else [list(ends) for ends in expected])
        assert "within 1.000" in capsys.readouterr().err
        out.unlink()
    lines = write_texts(saved, texts, "--length", "12-13", "--num_return_sequences", 5)
    expected = [(source, rank) for source in SOURCES[:3] for rank in range(1, 6)]
    assert [(row["source"], row["rank"]) for row in lines] == expected
    assert {row["length"] for row in lines} <= {12, 13}
    mixed = tmp_path / "mixed.csv"
    mixed.write_text("source,n\nOne text.,12-13\nAnother.,9\n", encoding="utf-8")
    with pytest.raises(ValueError, match="row 2 of .*'n' must hold a range in each row or in none, got 9; write 9-9"):
        write_texts(saved, mixed, "--length_column", "n")


def test_a_trainer_evaluates_each_row_at_its_own_length(shared_tokenizer, tmp_path):
    lengths = [3, 9, 5, 12, 4, 7]
    rows = [dict(shared_tokenizer(s, text_target=t)) for s, t in zip(SOURCES, TARGETS, strict=True)]
    rows = [row | {"length": n} for row, n in zip(rows, lengths, strict=True)]
    model = build_model("marian", vocab_size=len(shared_tokenizer), length_constraint="exact", length_tolerance=(0, 1))
    parts = {
        "args": Seq2SeqTrainingArguments(str(tmp_path), predict_with_generate=True, use_cpu=True, report_to="none"),
        "data_collator": hf_lenctrl.DataCollatorForLengthControl(shared_tokenizer, model=model, length="column"),
        "compute_metrics": build_compute_metrics(shared_tokenizer, "token", length=lengths, tolerance=(0, 1)),
    }
    evaluated = {"eval_dataset": datasets.Dataset.from_list(rows), "processing_class": shared_tokenizer}
    trainer = hf_lenctrl.LengthControlTrainer(model=model, **parts, **evaluated)
    figures = trainer.evaluate()
    assert figures["eval_within"] == 1.0 and figures["eval_mae"] <= 1.0
    assert "tokens against lengths of the rows" in figures["eval_settings"]
    with pytest.raises(TypeError, match="length must be an int"):
        trainer.data_collator([{name: value for name, value in rows[0].items() if name != "length"}])
