"""The plugin of vLLM: requests and masks everywhere, vLLM's own classes where it is installed."""

import importlib.util
import json
import random
import re
import sys
import tomllib

import pytest
import torch
from recipe_runs import ROOT
from test_thoughts import ids_of, split_in_all_ways, tokenizer_with_parts
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from hf_lenctrl import LengthConstraintLogitsProcessor, UnitTable
from hf_lenctrl.engines.requests import Asked, Counter, Point, Row, mask
from hf_lenctrl.thoughts import marker_of


PAGE = (ROOT / "docs" / "vllm.md").read_text(encoding="utf-8")
needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")

ASKED = [
    (None, None),
    ({"other": 3}, None),
    ({"length": None}, None),
    ({"length": 75}, Asked("token", "max", 75, 75)),
    ({"length": 75, "length_unit": "word", "length_constraint": "exact"}, Asked("word", "exact", 75, 75)),
    ({"length": 36, "length_constraint": "exact", "length_tolerance": 0.1}, Asked("token", "exact", 33, 39)),
    ({"length": 36, "length_constraint": "exact", "length_tolerance": [0, 4]}, Asked("token", "exact", 36, 40)),
    ({"length": 9, "length_from": "</think>"}, Asked("token", "max", 9, 9, "</think>")),
    ({"length": 9, "length_from": [4, 5], "thinking_budget": 0}, Asked("token", "max", 9, 9, (4, 5), 0)),
]


@pytest.mark.parametrize("arguments, expected", ASKED, ids=str)
def test_a_request_names_its_length(arguments, expected):
    assert Asked.of(arguments) == expected


EXACT_5 = {"length": 5, "length_constraint": "exact"}
WRONG = {
    "length_unit needs a length, got {'length_unit': 'word'}": {"length_unit": "word"},
    "length must be an int of at least 1, got '75' (str)": {"length": "75"},
    "length_unit must be one of token, character, word, byte, width, ": {"length": 5, "length_unit": "char"},
    "length_unit must be one of token, character, word, byte, width, grapheme, ": {"length": 5, "length_unit": 5},
    "length_constraint must be one of max, exact, min, got 'least'": {"length": 5, "length_constraint": "least"},
    "length='sms' counts the unit sms, got length_unit='byte'": {"length": "sms", "length_unit": "byte"},
    "length_tolerance=2 is a window around an exact length, got": {"length": 5, "length_tolerance": 2},
    "length_tolerance must be units (4), a share of the length": EXACT_5 | {"length_tolerance": [1]},
    "length_from needs a length, got {'length_from': '</think>'}": {"length_from": "</think>"},
    "length_from must be a text or a list of ids, got 3; pass '</think>'": {"length": 5, "length_from": 3},
    "thinking_budget=9 needs what ends the thoughts; pass length_from='</think>'": {"length": 5, "thinking_budget": 9},
    "thinking_budget must be an integer of at least 0, got 0.5": {
        "length": 5,
        "length_from": "a",
        "thinking_budget": 0.5,
    },
}


@pytest.mark.parametrize("message, arguments", WRONG.items())
def test_a_wrong_request_gets_the_rule_the_value_and_the_right_call(message, arguments):
    with pytest.raises(ValueError) as caught:
        Asked.of(arguments)
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith('; pass {"length": 75, "length_unit": "character", "length_constraint": "max"}')


# 0 is EOS, 1 is BOS, which writes nothing; 2, 3 and 4 write 1, 2, 3 tokens
TABLE = UnitTable("token", torch.tensor([[0, 0, 1, 2, 3]]))


def through(rows, count: int = 6) -> list[list[int]]:
    logits = torch.rand(count, 5)
    masked = mask(logits.clone(), rows, {"token": Counter(TABLE, torch.device("cpu"))})
    kept = masked > -torch.inf
    assert torch.equal(masked[kept], logits[kept])
    return [row.nonzero().squeeze(1).tolist() for row in kept]


def test_each_row_has_its_own_constraint_and_others_stay_as_they_are():
    exact, most = Asked("token", "exact", 6, 6), Asked("token", "max", 6, 6)
    window = Asked("token", "exact", 4, 6)
    rows = [
        Row(0, most, Point(2, 4, 0), (0,), 99),  # 2 remain: no entry of 3
        Row(2, exact, Point(2, 4, 0), (0,), 99),  # EOS is too early
        Row(3, exact, Point(3, 6, 0), (0,), 99),
        Row(4, window, Point(2, 4, 0), (0,), 99),
        Row(5, exact, Point(0, 0, 0), (0,), 3),  # two entries and EOS: both must write 3
    ]
    everything = [0, 1, 2, 3, 4]
    assert through(rows) == [[0, 2, 3], everything, [2, 3], [0], [0, 2, 3], [4]]
    assert through([Row(0, most, Point(3, 5, 0), (0, 4), 99)], 1) == [[0, 2]]
    # in half precision, where no entry is as large as the last one must be
    counters = {"token": Counter(TABLE, torch.device("cpu"))}
    masked = mask(torch.zeros(1, 5, dtype=torch.bfloat16), [Row(0, exact, Point(1, 1, 0), (0,), 3)], counters)
    assert masked.tolist() == [[-torch.inf, -torch.inf, 0.0, 0.0, 0.0]] and masked.dtype == torch.bfloat16
    # of more rows than are masked at once
    entries = 2**21
    table = UnitTable("token", torch.ones(1, entries).index_fill(1, torch.tensor([0]), 0))
    many = [Row(i, Asked("token", "max", i + 1, i + 1), Point(2, 2, 0), (0,), 99) for i in range(3)]
    masked = mask(torch.zeros(3, entries), many, {"token": Counter(table, torch.device("cpu"))})
    assert (masked == 0).sum(dim=1).tolist() == [1, 1, entries]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_second_mask_changes_nothing(dtype):
    """vLLM applies the plugin twice where it is installed, and named on the command line too."""
    counters = {"token": Counter(TABLE, torch.device("cpu"))}
    asked = [Asked("token", "max", 6, 6), Asked("token", "exact", 6, 6), Asked("token", "exact", 4, 6)]
    points = [Point(0, 0, 0), Point(1, 1, 0), Point(2, 4, 0), Point(3, 6, 0)]
    rows = [Row(i, a, p, (0,), 3 + i % 3) for i, (a, p) in enumerate((a, p) for a in asked for p in points)]
    once = mask(torch.randn(12, 5).to(dtype), rows, counters)
    assert torch.equal(mask(once.clone(), rows, counters), once)


def spaced_tokenizer() -> PreTrainedTokenizerFast:
    """Decodes as Llama 2: the space before the first word of a text is dropped."""
    pieces = ["<s>", "</s>", "<unk>", "▁the", "▁cat", "s", "▁"]
    backend = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens(["<s>", "</s>", "<unk>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def test_an_output_is_counted_as_it_is_decoded_after_its_prompt():
    tokenizer = spaced_tokenizer()
    tables = {unit: UnitTable.from_tokenizer(tokenizer, unit) for unit in ("character", "word", "byte", "width")}
    counters = {unit: Counter(table, torch.device("cpu")) for unit, table in tables.items()}
    units = {
        (unit, tuple(prompt)): counter.after(counter.start(prompt), [4, 5]).units  # "▁cat", "s"
        for unit, counter in counters.items()
        for prompt in ([], [0], [0, 3])
    }
    # "cats" where it stands first, else " cats"
    for unit in ("character", "byte", "width"):
        assert [units[unit, prompt] for prompt in ((), (0,), (0, 3))] == [4, 4, 5]
    assert {units["word", prompt] for prompt in ((), (0,), (0, 3))} == {1}
    word = counters["word"]
    assert word.after(word.start([3]), [5, 5]).units == 1  # "s" after "the" is a word of the output
    assert word.after(word.start([3]), [-1]) == word.after(word.start([3]), [0])  # a draft that will be rejected


def test_the_examples_of_the_page_ask_for_what_they_say():
    bodies = re.findall(r"-d '(\{.*?\})'", PAGE, flags=re.S)
    assert [Asked.of(json.loads(body)["vllm_xargs"]) for body in bodies] == [Asked("character", "max", 75, 75)]
    codes = re.findall(r"^```py\n(.*?)^```", PAGE, flags=re.M | re.S)
    for code in codes:
        compile(code, "page", "exec")
    asked = [re.findall(r"(?:extra_args=|answer = )(\{.*?\})", code) for code in codes]
    expected = [Asked("word", "exact", 18, 22), Asked("character", "max", 90, 90, "</think>", 500)]
    assert [Asked.of(json.loads(arguments)) for (arguments,) in asked] == expected


def test_thoughts_are_left_alone_and_the_answer_is_masked_as_by_the_processor():
    tokenizer, draw = tokenizer_with_parts(), random.Random(5)
    table = UnitTable.from_tokenizer(tokenizer, "character")
    counter = Counter(table, torch.device("cpu"), marker_of("</think>", tokenizer))
    counters = {("character", "</think>"): counter}
    ways = [ids for text in ("a?</think>\n\nHello a", "b</think> lo") for ids in split_in_all_ways(text)]
    met = [0, 0, 0]
    for _ in range(40):
        prompt = draw.choice([[0, 31], ids_of("a", "</think>", "Ċ"), []])
        budget, constraint = draw.choice([None, 3]), draw.choice(["max", "exact"])
        asked = Asked("character", constraint, 6, 6, "</think>", budget)
        ids, rows = draw.choice(ways), []
        for end in range(len(ids) + 1):
            point = counter.after(counter.start(prompt), ids[:end])
            assert counter.after(counter.after(counter.start(prompt), ids[: end // 2]), ids[end // 2 : end]) == point
            rows.append((ids[:end], Row(0, asked, point, (1,), 500)))
        for written, row in rows:
            if row.point.units > 6:
                continue
            logits, given = torch.rand(1, table.weights.shape[1]), torch.tensor([prompt + written], dtype=torch.long)
            own = {"eos_token_id": 1, "max_length": len(prompt) + 500, "prompt_length": len(prompt)}
            own |= {"length_from": "</think>", "tokenizer": tokenizer}
            expected = LengthConstraintLogitsProcessor(table, 6, constraint, **own)(given, logits)
            masked = mask(logits.clone(), [row], counters)
            over = None if budget is None or row.point.state >= 0 else row.point.tokens - budget
            if over is not None and 0 <= over < 8:  # the marker in letters
                assert masked.isfinite().nonzero()[:, 1].tolist() == ids_of("</think>"[over])
                met[0] += 1
            else:
                assert torch.equal(masked, expected)
                met[1 + (row.point.state >= 0)] += 1
    assert min(met) > 20


def test_the_entry_point_names_the_class():
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert entries == {"vllm.logits_processors": {"length": "hf_lenctrl.engines.vllm:LengthConstraint"}}
    assert "hf_lenctrl.engines.vllm:LengthConstraint" in PAGE  # what a V1 runner is given


@pytest.fixture(scope="module")
def batches():
    sys.path.insert(0, str(ROOT / "tests" / "tools"))
    import vllm_batches

    sys.path.pop(0)
    return vllm_batches


@needs_vllm
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
@pytest.mark.parametrize("runner", ["run_v1", "run_v2"])
def test_no_batch_breaks_a_constraint(batches, kind, runner):
    bench = batches.Bench(kind, seed=1)
    getattr(batches, runner)(bench, 150)
    found = bench.found
    assert found["CONSTRAINTS BROKEN"] == found["MASKS THAT DIFFER"] == found["DECLINED WRONGLY"] == 0
    assert found["masks compared"] > 50 and found["texts"] > 15 and found["preempted"] > 10
    assert found["swapped"] > 10 if runner == "run_v1" else found["drafts accepted"] > 50


REFUSED = {
    "a length does not work with ignore_eos, which can end or extend a text, got True": {"ignore_eos": True},
    "a length does not work with stop, which can end or extend a text, got ['.']": {"stop": "."},
    "a length does not work with stop_token_ids, which can end or extend a text, got [7]": {"stop_token_ids": [7]},
    "a length does not work with repetition_detection": {
        "repetition_detection": {"max_pattern_size": 2, "min_count": 3}
    },
    "9 tokens need 10 with EOS, got max_tokens=9; pass max_tokens=10": {"max_tokens": 9},
}


@needs_vllm
@pytest.mark.parametrize("message, options", REFUSED.items())
def test_vllm_refuses_what_would_break_a_length(batches, message, options):
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams
    from vllm.v1.worker.gpu.sample.logits_processor import build_custom_logits_processors_params_validator

    validate = build_custom_logits_processors_params_validator((batches.NAME,))
    asked = {"length": 9, "length_constraint": "exact"}
    with pytest.raises(VLLMValidationError, match=re.escape(message)):
        validate(SamplingParams(extra_args=asked, **{"max_tokens": 20, **options}))
    validate(SamplingParams(extra_args=asked, max_tokens=20))
    validate(SamplingParams(**options))
    if "stop" in options:  # a text that ends sooner is not too long
        validate(SamplingParams(extra_args={"length": 9}, **options))


@needs_vllm
def test_two_objects_of_the_plugin_share_their_tables(batches):
    from hf_lenctrl.engines.vllm import LengthConstraint

    config = batches.Bench("byte-level", seed=1).config
    first, second = (LengthConstraint(config, torch.device("cpu"))._count("character") for _ in range(2))
    assert first.table is second.table


@needs_vllm
def test_an_output_ends_where_its_tokens_are_hidden_or_cannot_be_counted(batches, tmp_path):
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate

    from hf_lenctrl.engines.vllm import LengthConstraint

    backend = Tokenizer(models.WordLevel({"</s>": 0, "a": 1, "b": 2}, unk_token="b"))  # without a decoder
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    config = batches.config_of(str(tmp_path), 3)
    plugin = LengthConstraint(config, torch.device("cpu"))
    outputs: list[list[int]] = [[], [1], []]
    added = []
    for i, unit in enumerate(["token", "token", "character"]):
        params = SamplingParams(max_tokens=9, extra_args={"length": 2, "length_unit": unit})
        params.update_from_generation_config({}, 0)
        added.append((i, params, [1], outputs[i]))
    plugin.update_state(BatchUpdate(batch_size=4, removed=[], added=added, moved=[]))
    one, rest = [0.0, -torch.inf, -torch.inf], [0.0, 0.0, 0.0]
    assert plugin.apply(torch.zeros(4, 3)).tolist() == [rest, rest, one, rest]
    outputs[1].append(-1)  # which vLLM's V1 runner replaces for processors that its command line names
    assert plugin.apply(torch.zeros(4, 3)).tolist() == [rest, one, one, rest]
    outputs[1][-1] = 2
    assert plugin.apply(torch.zeros(4, 3)).tolist() == [rest, one, one, rest]  # two tokens: it is full
    del outputs[1][1:]  # vLLM takes tokens back
    assert plugin.apply(torch.zeros(4, 3)).tolist() == [rest, rest, one, rest]
    with pytest.raises(ValueError, match="no decoder, so only tokens can be counted"):
        LengthConstraint(batches.config_of(str(tmp_path), 3, length_units=["word"]), torch.device("cpu"))
