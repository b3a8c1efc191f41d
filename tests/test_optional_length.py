"""A model that was trained on rows without a length too."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from conftest import build_model
from family_models import stock_model, tokenizer_of
from pipeline_calls import spy
from recipe_runs import read_rows, write_texts
from test_causal import build_plain, make_tokenizer
from transformers import GenerationConfig, StopStringCriteria

import hf_lenctrl
from hf_lenctrl import LengthControlledGenerationPipeline, add_length_control
from hf_lenctrl.inference import ranking
from hf_lenctrl.inference.chats import Prompt
from hf_lenctrl.inference.ranking import log_probabilities, rank
from hf_lenctrl.inference.search import SearchByLength, best_of_each


@pytest.fixture(scope="module", params=["marian", "t5", "llama"])
def optional(request):
    """A model whose length projection is not zero, and the stock model that it was made from."""
    causal = request.param == "llama"
    stock = build_plain("llama") if causal else stock_model(request.param)
    tokenizer = make_tokenizer() if causal else tokenizer_of(request.param)
    options = {"length_encoding": "lrpe", "length_unit": "character"}
    model = add_length_control(copy.deepcopy(stock), tokenizer=tokenizer, **options)
    torch.manual_seed(0)
    with torch.no_grad():
        model._counting_part().length_projection.weight.normal_()
    model.make_length_optional()
    return model.eval(), stock.eval()


def test_without_a_length_an_optional_model_is_the_stock_model(optional):
    model, stock = optional
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    options = {"max_new_tokens": 12, "num_beams": 2}
    assert torch.equal(model.generate(**inputs, **options), stock.generate(**inputs, **options))
    model.config.length = 3  # a default, which 0 switches off
    assert torch.equal(model.generate(**inputs, **options, length=0), stock.generate(**inputs, **options))
    model.config.length = None
    with pytest.raises(ValueError, match="no length was given"):  # which a constraint needs
        model.generate(**inputs, length_constraint="max")
    labels = torch.tensor([[5, 6, 7, 8]])
    expected = stock(**inputs, labels=labels).logits
    # row by row: 0 is no length, and a row with a length is another
    both = {name: torch.cat([value, value]) for name, value in (*inputs.items(), ("labels", labels))}
    none, five = model(**both, length=torch.tensor([0, 5])).logits
    assert torch.allclose(none, expected[0], atol=1e-5)
    assert not torch.allclose(five, expected[0], atol=1e-2)


def test_a_text_without_a_length_is_not_cut_at_twenty_tokens(optional, monkeypatch):
    """20 is the default of `generate`; the pipelines of transformers write up to 256 tokens."""
    model, stock = optional
    causal = not model.config.is_encoder_decoder
    tokenizer = make_tokenizer() if causal else tokenizer_of(model.config.model_type.removeprefix("lenctrl_"))
    pipe = LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, scores=False)
    positions = getattr(stock.config, "max_position_embeddings", None)
    calls = spy(monkeypatch, model)
    pipe("a b c")
    prompt = calls[0]["input_ids"].shape[1] if causal else 1
    assert calls[0]["max_new_tokens"] == min(256, 10**9 if positions is None else positions + 1 - prompt)
    pipe("a b c", max_new_tokens=7)
    monkeypatch.setattr(model.generation_config, "max_length", 30)
    pipe("a b c")
    assert [call.get("max_new_tokens") for call in calls[1:]] == [7, None]


def test_rows_without_a_length_train_what_rows_with_one_do_not(optional, caplog):
    model, _ = optional
    ids = torch.tensor([[5, 6, 7, 8]] * 2)
    weight = model._counting_part().length_projection.weight
    model.train()
    for lengths, learns in (([0, 0], False), ([4, 0], True)):
        model.zero_grad()
        model(input_ids=ids, labels=ids, length=torch.tensor(lengths)).loss.backward()
        assert bool(torch.isfinite(weight.grad).all()) and bool(weight.grad.any()) == learns
    model.zero_grad()
    model.eval()
    assert "training takes length" not in caplog.text


def test_what_cannot_be_switched_off_is_not_optional():
    model = build_model("marian", length_encoding="ldpe")  # in place of the positions
    with pytest.raises(ValueError, match="length_optional=True can only switch off"):
        model.make_length_optional()


@pytest.mark.parametrize(
    ("candidates", "plain", "natural", "best"),
    [
        (["He came.", "He came and"], [-9.0, -1.0], "He came and went.", 0),  # finished first
        (["Open", "Open it"], [-9.0, -1.0], "Open file", 1),  # where the natural text is
        (["She went.", "He came."], [-5.0, -4.0], "She went home.", 1),  # the likelier one
        (["It starts tonight..", "It starts now."], [-1.0, -3.0], "It starts tonight.", 1),  # no mark too many
        (["It starts tonight.?", "It starts now."], [-1.0, -3.0], "It starts tonight.", 1),
        (["At 8 p.m.?", "At 8 p.m"], [-3.0, -1.0], "Is it at 8 p.m.?", 0),
        (["It starts tonight. Im.", "It starts now."], [-1.0, -3.0], "It starts tonight.", 1),  # no second sentence
        (["At 8 p.m.", "At 8 p.m"], [-3.0, -1.0], "It is at 8 p.m.", 0),
        (["Wait..", "Wait."], [-9.0, -1.0], "Wait..", 0),  # the natural text, where it fits
    ],
)
def test_the_best_is_finished_and_likely(candidates, plain, natural, best):
    assert max((0, 1), key=lambda k: rank(candidates[k], plain[k], natural)) == best


@pytest.fixture(scope="module", params=["marian", "llama"])
def chooser(request):
    causal = request.param == "llama"
    stock = build_plain("llama") if causal else stock_model("marian")
    tokenizer = make_tokenizer() if causal else tokenizer_of("marian")
    model = add_length_control(stock, tokenizer=tokenizer, length_unit="character")
    model.make_length_optional()
    model.generation_config.max_new_tokens = 20
    return LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer)


def test_a_chosen_text_has_its_length_and_the_best_score(chooser):
    texts = ["one more text", "with other words"]
    for length, constraint, fits in (
        (9, "exact", lambda n: n == 9),
        (9, "max", lambda n: n <= 9),
        ((6, 11), None, lambda n: 6 <= n <= 11),
        ([[5, 9], [7, 12]], "exact", None),
    ):
        options = {} if constraint is None else {"length_constraint": constraint}
        outputs = chooser(texts, length=length, **options)
        if fits is None:
            assert [[out["length"] for out in each] for each in outputs] == length
            continue
        assert all(fits(out["length"]) for out in outputs)
        written = [out["generated_text"] for out in outputs]
        expected = log_probabilities(chooser.model, chooser.tokenizer, texts, written)
        assert [out["score"] for out in outputs] == pytest.approx(expected, abs=1e-3)


def functions_entered(call) -> list[str]:
    """The names of the package's functions in the order of their calls, without comprehensions and lambdas."""
    entered, folder, before = [], str(Path(hf_lenctrl.__file__).parent), sys.getprofile()

    def keep(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(folder) and not code.co_name.startswith("<"):
            entered.append(code.co_qualname)

    sys.setprofile(keep)
    try:
        call()
    finally:
        sys.setprofile(before)
    return entered


@pytest.mark.parametrize("options", [{}, {"length_constraint": "exact", "length_tolerance": 1}])
def test_a_call_checks_each_option_once_and_reaches_its_first_mask_by_few_functions(chooser, options):
    options = {"length": 3, "length_constraint": "max", "max_new_tokens": 6, **options}
    chooser("one", **options)  # makes the rules of the table
    entered = functions_entered(lambda: chooser("one", **options))
    names = [name.rpartition(".")[2] for name in entered]
    once = ("defaults_for", "check_sources", "check_constraint", "check_tolerance", "check_length", "check_counts")
    assert {name: names.count(name) for name in once} == dict.fromkeys(once, 1)
    checks = [name for name in names if name.startswith(("check_", "_check_", "_read_")) or name.endswith("window_of")]
    assert len(checks) == len(set(checks))
    assert not {"resolve", "as_target"} & set(names)  # the target that the pipeline made holds as it is
    first = entered.index("LengthConstraintLogitsProcessor.constrain")
    assert len(set(entered[: first + 1])) <= 91


def test_a_natural_text_that_fits_needs_no_candidates_and_no_more_positions_than_the_model_has(chooser, monkeypatch):
    calls = spy(monkeypatch, chooser.model)
    output = chooser("one more text", length=180, length_constraint="max", max_new_tokens=12)  # of 128 positions
    assert 0 < output["length"] <= 180 and [call["length"] for call in calls] == [[0]]
    texts, options = ["one more text", "with other words"], {"length_constraint": "max", "max_new_tokens": 12}
    first, second = chooser(texts, length=[180, 10], **options)
    assert second["length"] <= 10 < first["length"]
    assert [call["length"] for call in calls[1:]] == [[0, 0], [10, 9, 8, 0]]  # both natural texts, then the second's


def test_many_lengths_of_a_text_share_a_search(chooser, monkeypatch):
    monkeypatch.setattr(chooser.model.config, "choice", {"few_lengths": 3}, raising=False)
    calls = spy(monkeypatch, chooser.model)
    lengths = [[9, 5, 12, 7], [8]]
    outputs = chooser(["one more text", "with other words"], length=lengths, length_constraint="exact")
    assert [[out["length"] for out in each] for each in outputs] == lengths
    assert [[out["requested_length"] for out in each] for each in outputs] == lengths
    assert all(isinstance(out["score"], float) and "generated_text" in out for each in outputs for out in each)
    seen = {(call["num_beams"], "custom_generate" in call): call["length"] for call in calls}
    # the natural text of four lengths; a single length with its plan, none and the natural text
    assert seen == {(1, True): [0], (5, False): [0], (6, False): [8, 0, 0]}


def test_an_option_that_looks_at_the_rows_of_beams_has_beams(chooser, monkeypatch):
    monkeypatch.setattr(chooser.model.config, "choice", {"few_lengths": 3}, raising=False)
    calls, entries = spy(monkeypatch, chooser.model), list(range(chooser.model.config.vocab_size))
    others = ({"encoder_no_repeat_ngram_size": 2}, {"encoder_repetition_penalty": 1.5}, {"guidance_scale": 2.0})
    for option in ({"stop_strings": ["e"]}, {"prefix_allowed_tokens_fn": lambda row, ids: entries}, *others):
        outputs = chooser("one more text", length=[5, 7, 9, 12], length_constraint="max", **option)
        assert all(out["length"] <= n for out, n in zip(outputs, [5, 7, 9, 12], strict=True))
    # the model's configuration has what that of the call leaves out
    monkeypatch.setattr(chooser.model.generation_config, "encoder_no_repeat_ngram_size", 2)
    options = {"length_constraint": "max", "generation_config": GenerationConfig(max_new_tokens=20)}
    assert [out["length"] <= 12 for out in chooser("one more text", length=[5, 7, 9, 12], **options)] == [True] * 4
    assert not any("custom_generate" in call for call in calls)


def test_a_length_that_the_search_does_not_find_is_generated(chooser, monkeypatch):
    result = SearchByLength._result
    monkeypatch.setattr(SearchByLength, "_result", lambda self, ended, *of: result(self, ended[:1], *of))  # nothing
    monkeypatch.setattr(chooser.model.config, "choice", {"few_lengths": 3}, raising=False)
    calls = spy(monkeypatch, chooser.model)
    lengths = [4, 6, 9, 12]
    outputs = chooser("one more text", length=lengths, length_constraint="exact")
    assert [out["length"] for out in outputs] == lengths
    assert "custom_generate" not in calls[-1] and set(calls[-1]["length"]) <= set(lengths)


def test_a_text_that_fits_a_limit_is_a_candidate_of_every_higher_limit(chooser, monkeypatch):
    monkeypatch.setattr(chooser.model.config, "choice", {"few_lengths": 3}, raising=False)
    monkeypatch.setattr(ranking, "rank", lambda text, plain, natural: -plain)  # the longer the better
    lengths = [5, 7, 9, 12, 14]
    outputs = chooser("one more text", length=lengths, length_constraint="max")
    assert all(out["length"] <= n for out, n in zip(outputs, lengths, strict=True))
    scores = [out["score"] for out in outputs]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) > 1


def test_in_tokens_a_search_by_length_is_a_beam_search():
    tokenizer = tokenizer_of("marian")  # hypotheses of a step have as many tokens
    model = add_length_control(stock_model("marian"), tokenizer=tokenizer, length_unit="token")
    inputs = tokenizer(["one more text", "with other words"], return_tensors="pt", padding=True)
    options = {"length": [3, 5], "length_constraint": "exact"}
    beams = {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.0}
    asked = {"return_dict_in_generate": True, "output_scores": True}
    expected = model.generate(**inputs, **options, **beams, **asked)
    found = model.generate(**inputs, **options, custom_generate=SearchByLength(model.unit_table, 3))
    assert torch.equal(found.sequences, expected.sequences)
    assert torch.allclose(found.sequences_scores, expected.sequences_scores, atol=1e-5)
    search = SearchByLength(model.unit_table, 3)
    again = model.generate(**inputs, **options, custom_generate=search, use_cache=False)
    assert torch.equal(again.sequences, expected.sequences)
    stop = {"custom_generate": search, "tokenizer": tokenizer}
    for own in ({"stop_strings": ["e"]}, {"generation_config": GenerationConfig(stop_strings=["e"])}):
        with pytest.raises(ValueError, match=r"pass stopping_criteria=\[StopStringCriteria\(tokenizer, \['e'\]\)\]"):
            model.generate(**inputs, **options, **stop, **own)
    stop |= {**own, "stop_strings": None, "stopping_criteria": [StopStringCriteria(tokenizer, ["e"])]}
    assert model.generate(**inputs, **options, **stop).lengths.max() <= 5


def test_a_text_that_comes_twice_is_compared_with_the_natural_text_of_its_own_length(chooser, monkeypatch):
    """Beside a short length the natural text has little room, which must not reach the other length."""
    seen: list[tuple] = []
    original = ranking.rank
    monkeypatch.setattr(ranking, "rank", lambda *args: seen.append((args[0], *sorted(args[2]))) or original(*args))
    options = {"length_constraint": "exact", "max_new_tokens": 40}
    alone = [chooser("one more text", length=length, **options)["generated_text"] for length in (12, 1)]
    expected = set(seen)
    seen.clear()
    together = chooser(["one more text"] * 2, length=[12, 1], **options)
    assert [out["generated_text"] for out in together] == alone and set(seen) == expected


def test_a_hypothesis_competes_only_with_those_that_wrote_as_much():
    scores = torch.tensor([-1.0, -2.0, -3.0, -4.0, -0.5])
    example, count = torch.tensor([0, 0, 0, 0, 1]), torch.tensor([5, 5, 4, 5, 5])
    assert best_of_each(scores, example, count, most=1).tolist() == [2, 0, 4]
    assert best_of_each(scores, example, count, most=2).tolist() == [2, 0, 1, 4]


def test_without_a_length_the_pipeline_writes_the_natural_text_whatever_the_models_own_constraint(chooser):
    natural = chooser("one more text")
    inputs = chooser.preprocess([Prompt("one more text")])
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    prompt = 0 if chooser.model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    ids = chooser.model.generate(**inputs)[0, prompt:]
    assert natural["generated_text"] == chooser.tokenizer.decode(ids, skip_special_tokens=True)
    assert natural["requested_length"] is None and "window" not in natural
    chooser.model.config.length_constraint = "exact"
    try:
        assert chooser("one more text") == natural
        assert chooser("one more text", length=9)["length"] == 9
        assert torch.equal(chooser.model.generate(**inputs), chooser.model.generate(**inputs, length=0))
    finally:
        chooser.model.config.length_constraint = None


def test_a_choice_that_cannot_be_made_is_refused(chooser):
    for options in ({"num_return_sequences": 2}, {"do_sample": True}, {"length_constraint": None}):
        with pytest.raises(ValueError, match="choose=True takes a model with length_optional"):
            chooser("one", length=9, **{"length_constraint": "max", "choose": True, **options})


def test_texts_under_a_score_are_in_a_second_file_too(chooser, tmp_path, capsys):
    chooser.save_pretrained(tmp_path / "model")
    (tmp_path / "in.txt").write_text("one more text\nwith other words\n", encoding="utf-8")
    given = tmp_path / "model", tmp_path / "in.txt", "--length", 9, "--length_constraint", "exact", "--min_score"
    scores = sorted(row["score"] for row in write_texts(*given, -1000))
    low = tmp_path / "out.jsonl.low.jsonl"
    assert read_rows(low) == [] and scores[0] < scores[1]
    write_texts(*given, sum(scores) / 2)  # another bound takes the texts that are there
    assert "is complete" in capsys.readouterr().err
    assert [row["score"] for row in read_rows(low)] == scores[:1]
    low.write_text(text := low.read_text() + "a note\n")  # of the person who reads it
    with pytest.raises(ValueError, match="low.jsonl exists, with other lines than .*out.jsonl; move it, or name"):
        write_texts(*given, -1000)
    assert low.read_text() == text
    low.unlink()
    (tmp_path / "out.jsonl").unlink()
    assert all(row["score"] < 0 for row in write_texts(*given, -5, "--rerank", 2))  # without a choice too


def test_every_text_of_an_optional_model_has_the_score_of_the_stock_models_loss(chooser):
    texts = ["one more text", "with other words"]
    plain = {"return_dict_in_generate": True, "output_scores": True, "num_beams": 2, "min_score": -1e9}
    for options in (
        {},
        {"length": 9, "choose": False},
        {"length": 9, "length_constraint": None},
        {"length": 9, **plain},
        {"length": 9, **plain, "min_score": None, "choose": False},
    ):
        outputs = chooser(texts, **{"length_constraint": "max", **options} if "length" in options else options)
        written = [out["generated_text"] for out in outputs]
        expected = log_probabilities(chooser.model, chooser.tokenizer, texts, written)
        assert [out["score"] for out in outputs] == pytest.approx(expected, abs=1e-3)
    several = chooser(texts[0], length=9, length_constraint="max", num_beams=2, num_return_sequences=2)
    assert all(isinstance(out["score"], float) for out in several)


def test_texts_under_a_score_are_flagged_replaced_or_an_error(chooser):
    texts, options = ["one more text", "with other words"], {"length": 9, "length_constraint": "exact"}
    scored, natural = chooser(texts, **options), chooser(texts)
    low, high = sorted(out["score"] for out in scored)
    options["min_score"] = (low + high) / 2
    for way in ("flag", "natural"):
        outputs = chooser(texts, **options, on_low_score=way)
        for out, before, free in zip(outputs, scored, natural, strict=True):
            bad = before["score"] == pytest.approx(low)
            assert out["low_score"] is bad and out["requested_length"] == 9
            expected = free if bad and way == "natural" else before
            assert (out["generated_text"], out["length"]) == (expected["generated_text"], expected["length"])
            assert out["score"] == pytest.approx(expected["score"], abs=1e-3)
    with pytest.raises(ValueError, match=r"at least min_score=-.*, got 1 of 2 texts under it, the first is '.*' \(-"):
        chooser(texts, **options, on_low_score="error")
    several = chooser(texts[0], length=[7, 9], length_constraint="max", min_score=0, on_low_score="natural")
    assert [out["generated_text"] for out in several] == [natural[0]["generated_text"]] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_low_score": "natural"}, "on_low_score='natural' needs a min_score; pass min_score=-4"),
        ({"min_score": -4, "on_low_score": "drop"}, "on_low_score must be one of flag, natural, error, got 'drop'"),
        ({"min_score": "-4"}, "min_score must be a number"),
        ({"min_score": float("nan")}, "min_score must be a number"),
    ],
)
def test_a_wrong_min_score_is_refused(chooser, options, message):
    with pytest.raises(ValueError, match=message):
        chooser("one more text", length=9, length_constraint="max", **options)


def test_a_plain_model_has_a_score_with_a_min_score_and_one_that_needs_a_length_has_none():
    tokenizer = tokenizer_of("marian")
    plain = LengthControlledGenerationPipeline(model=stock_model("marian"), tokenizer=tokenizer)
    options = {"length": 9, "length_constraint": "max", "length_unit": "character"}
    out = plain("one more text", **options, min_score=-1e9)
    [score] = log_probabilities(plain.model, tokenizer, ["one more text"], [out["generated_text"]])
    assert out["score"] == pytest.approx(score, abs=1e-3) and out["low_score"] is False
    model = add_length_control(stock_model("marian"), tokenizer=tokenizer, length_unit="character")
    needs = LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer)
    with pytest.raises(ValueError, match="min_score=-4 takes a model that also writes without a length"):
        needs("one more text", **options, min_score=-4)
