"""JSON with lengths in vLLM: our masks behind the bitmask of its grammar, by the tensor operations of its sampler."""

import importlib.util
import json
import random
import re
import sys
from types import ModuleType, SimpleNamespace

import llguidance
import llguidance.hf
import llguidance.torch
import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator
from recipe_runs import ROOT
from test_causal import make_tokenizer

from hf_lenctrl.engines.json_places import Places
from hf_lenctrl.engines.json_requests import JSON, JsonRequest, schema_of
from hf_lenctrl.engines.json_strings import JsonStringsLogitsProcessor


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3, "maxLength": 9},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
PLAIN = json.loads(re.sub(r', "(min|max)Length": \d', "", json.dumps(SCHEMA)))
EOS = 1


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="module")
def new_grammar(tokenizer):
    """What makes the grammar of vLLM's backend "guidance", without lengths, with white space as vLLM has it."""
    entries = llguidance.hf.from_tokenizer(tokenizer, len(tokenizer) + 5)
    options = {"whitespace_flexible": True}
    return lambda: llguidance.LLMatcher(entries, llguidance.LLMatcher.grammar_from_json_schema(PLAIN, options))


def bitmask_of(grammars, size: int) -> torch.Tensor:
    """Return `(rows, words)`; all bits where a row has no grammar."""
    bitmask = torch.full((len(grammars), -(-size // 32)), -1, dtype=torch.int32)
    for i, grammar in enumerate(grammars):
        if grammar is not None:
            llguidance.torch.fill_next_token_bitmask(grammar, bitmask, i)
    return bitmask


def apply_bitmask(logits: torch.Tensor, bitmask: torch.Tensor) -> None:
    """Set -inf where a bit is 0, as vLLM's kernel does before its sampler."""
    is_zero = ((bitmask[:, :, None] >> torch.arange(32)) & 1) == 0
    logits[is_zero.flatten(1)[:, : logits.shape[1]]] = -torch.inf


def draw(logits: torch.Tensor) -> list[int]:
    """Draw an entry of each row: temperature, top-k, softmax, and an exponential race."""
    logits = logits / 0.8
    logits[logits < logits.topk(50).values[:, -1:]] = -torch.inf
    chances = logits.softmax(dim=-1, dtype=torch.float32)
    assert not chances.isnan().any()  # no row is masked whole
    return (chances / torch.empty_like(chances).exponential_()).argmax(dim=-1).tolist()


def test_the_grammar_must_be_the_schema_without_its_lengths():
    assert Places(SCHEMA).plain == PLAIN
    for grammar in (PLAIN, json.dumps(PLAIN)):
        outputs = SimpleNamespace(json=grammar)
        assert schema_of({JSON: SCHEMA}, outputs) == schema_of({JSON: json.dumps(SCHEMA)}, outputs) == SCHEMA
    for grammar in (SimpleNamespace(json=SCHEMA), SimpleNamespace(json=None), None):
        with pytest.raises(ValueError, match="needs a structured output of the schema without lengths, got .*; pass "):
            schema_of({JSON: SCHEMA}, grammar)
    for wrong in ("{", [], {"type": "string", "maxLength": -1}):
        with pytest.raises(ValueError, match="^json_strings: "):
            schema_of({JSON: wrong}, SimpleNamespace(json=PLAIN))


def test_sampled_outputs_are_valid_and_keep_their_lengths(tokenizer, new_grammar):
    torch.manual_seed(0)
    size, rows, request = len(tokenizer) + 5, 40, JsonRequest(SCHEMA, tokenizer)
    grammars, texts = [new_grammar() for _ in range(rows)], [request.start([7, 8])] * rows
    outputs: list[list[int]] = [[] for _ in range(rows)]
    for _ in range(300):
        logits = 3 * torch.randn(rows, size)
        logits[:, [EOS, *tokenizer.convert_tokens_to_ids(['"', "}", "]"])]] += 4
        apply_bitmask(logits, bitmask_of(grammars, size))
        for i, text in enumerate(texts):
            request.mask(logits[i], text)
        for i, token in enumerate(draw(logits)):
            if outputs[i][-1:] != [EOS]:
                grammars[i].consume_tokens([token])
                texts[i] = request.after(texts[i], [token])
                outputs[i].append(token)
    ended = [tokenizer.decode(ids[:-1]) for ids in outputs if ids[-1] == EOS]
    assert len(ended) > 30
    for text in ended:
        Draft202012Validator(SCHEMA).validate(json.loads(text))


def test_a_row_is_masked_and_finished_as_by_the_processor(tokenizer):
    torch.manual_seed(1)
    schema = {"type": "string", "minLength": 2, "maxLength": 8}
    entries = llguidance.hf.from_tokenizer(tokenizer, len(tokenizer))
    grammar = llguidance.LLMatcher.grammar_from_json_schema({"type": "string"}, {"whitespace_flexible": False})
    changed = 0
    for _ in range(30):
        process = JsonStringsLogitsProcessor(schema, tokenizer, grammar="llguidance")
        request, matcher = JsonRequest(schema, tokenizer), llguidance.LLMatcher(entries, grammar)
        text, ids, firsts = request.start(), [], []
        while ids[-1:] != [EOS]:
            logits = 3 * torch.randn(1, len(tokenizer))
            expected = process(torch.tensor([ids], dtype=torch.long), logits)
            apply_bitmask(logits, bitmask_of([matcher], len(tokenizer)))
            firsts.append(int(logits.argmax()))  # what vLLM returns as the best of `logprobs`
            request.mask(logits[0], text)
            assert torch.equal(logits, expected)
            ids += draw(logits)
            text = request.after(text, ids[-1:])
            matcher.consume_tokens(ids[-1:])
        finished = request.lengths.finish(ids, firsts)
        assert finished == process.finish(ids)
        changed += finished != tokenizer.decode(ids[:-1])
    assert changed > 0


def test_a_draft_that_is_no_json_leaves_its_row_alone(tokenizer):
    request, logits = JsonRequest(SCHEMA, tokenizer), torch.zeros(len(tokenizer))
    names = {token: i for token, i in tokenizer.get_vocab().items() if len(token) == 1}
    start = request.after(request.start(), [names[c] for c in '{"na'])
    for wrong in ([-1], [len(tokenizer)], [names[c] for c in '\\x"']):
        after = request.after(start, wrong)
        assert after == (4 + len(wrong), None)
        request.mask(logits, request.after(after, [names["a"]]))
    assert not logits.any()
    assert start.reader.key == b"na"  # the text before the draft is as it was


@pytest.fixture
def plugin(monkeypatch, tokenizer):
    """The module of the plugin, over stand-ins for the few names of vLLM that it imports."""
    names = {
        "config": ["VllmConfig"],
        "logger": [],
        "sampling_params": ["SamplingParams"],
        "tokenizers": [],
        "v1.sample.logits_processor": ["BatchUpdate", "LogitsProcessor"],
        "v1.sample.logits_processor.builtin": [],
        "v1.worker.gpu.sample.logits_processor": ["LogitsContext", "LogitsProcessor", "LogitsProcRequestState"],
    }
    for name, classes in names.items():
        module = ModuleType(f"vllm.{name}")
        for each in classes:
            setattr(
                module, each, type(each, (SimpleNamespace,), {}) if "Processor" not in each else type(each, (), {})
            )
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    errors: list[str] = []
    log = SimpleNamespace(error=lambda text, *given: errors.append(text % given))
    sys.modules["vllm.logger"].init_logger = lambda name: log
    sys.modules["vllm.tokenizers"].cached_tokenizer_from_config = lambda config: tokenizer
    sys.modules["vllm.v1.sample.logits_processor.builtin"].process_dict_updates = None
    states = sys.modules["vllm.v1.worker.gpu.sample.logits_processor"]
    states.LogitsProcRequestState = type("LogitsProcRequestState", (SimpleNamespace,), {})
    path = ROOT / "hf_lenctrl" / "engines" / "vllm.py"
    spec = importlib.util.spec_from_file_location("hf_lenctrl.engines.vllm_beside_stand_ins", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.errors = errors
    return module


def parameters(schema, **extra) -> SimpleNamespace:
    outputs = None if schema is None else SimpleNamespace(json=Places(schema).plain)
    given = {} if schema is None else {JSON: json.dumps(schema)}
    return SimpleNamespace(
        extra_args=given | extra, structured_outputs=outputs, all_stop_token_ids={EOS}, max_tokens=400,
        ignore_eos=False, thinking_token_budget=None, stop=[], stop_token_ids=[],
    )  # fmt: skip


def config_of(reasoning_parser: str = "") -> SimpleNamespace:
    outputs = SimpleNamespace(reasoning_parser=reasoning_parser, enable_in_reasoning=False)
    model = SimpleNamespace(max_model_len=600)
    return SimpleNamespace(model_config=model, additional_config={}, structured_outputs_config=outputs)


def test_the_plugin_refuses_json_behind_thoughts_and_with_another_length(plugin):
    with pytest.raises(ValueError, match="a length does not work with structured_outputs"):
        plugin.LengthConstraint.validate_params(parameters(SCHEMA, length=9))
    without = parameters(SCHEMA)
    without.structured_outputs = None
    with pytest.raises(ValueError, match="json_strings needs a structured output of the schema without lengths"):
        plugin.LengthConstraint.validate_params(without)
    states = plugin.LogitsProcRequestState(device="cpu", vocab_size=5)
    processor = plugin.LengthConstraint(config_of("qwen3"), states)
    assert processor.add_request(0, parameters(SCHEMA))
    assert plugin.errors == [
        "hf_lenctrl cannot keep lengths in JSON, so such outputs are empty: "
        "thoughts are not JSON; serve without a reasoning parser"
    ]
    ended = processor._mask(torch.zeros(1, 5), [], [(0, processor.requests[0])])
    assert ended.tolist() == [[-torch.inf, 0.0, -torch.inf, -torch.inf, -torch.inf]]


def test_the_plugin_masks_rows_of_json_behind_drafts_beside_rows_with_other_lengths(plugin, tokenizer, new_grammar):
    chance = random.Random(0)
    torch.manual_seed(0)
    size, prompt, slots = len(tokenizer) + 5, [7, 8, 9], 6
    token_ids = torch.zeros(slots, 600, dtype=torch.int32)
    token_ids[:, :3] = torch.tensor(prompt)
    lengths = SimpleNamespace(np=np.full(slots, len(prompt)))
    states = plugin.LogitsProcRequestState(
        device="cpu", vocab_size=size, all_token_ids=SimpleNamespace(gpu=token_ids), prompt_len=lengths
    )
    processor = plugin.LengthConstraint(config_of(), states)
    asked = [parameters(SCHEMA)] * 4 + [parameters(None, length=7, length_unit="character"), parameters(None)]
    for slot, params in enumerate(asked):
        plugin.LengthConstraint.validate_params(params)
        assert processor.add_request(slot, params) == (slot < 5)
    grammars = [new_grammar() for _ in range(4)] + [None, None]
    written: list[list[int]] = [[] for _ in range(slots)]
    steps = 0
    while live := [slot for slot in range(slots) if written[slot][-1:] != [EOS] and len(written[slot]) < 200]:
        if steps % 7 == 5:  # a request that was preempted comes back with its text
            processor.add_request(live[0], asked[live[0]])
        rows, masks = [], []  # slot, place, position, token fed
        for slot in chance.sample(live, len(live)):
            ids, grammar = prompt + written[slot], grammars[slot] and grammars[slot].deep_copy()
            fed = ids[-1]
            for place in range(1 + chance.randint(0, 2)):
                rows.append((slot, place, len(ids) - 1 + place, fed))
                masks.append(bitmask_of([grammar], size))
                guess = torch.randn(1, size)
                apply_bitmask(guess, masks[-1])
                fed = int(guess.argmax())  # a draft that the grammar allows, at times one that the lengths do not
                if grammar is not None:
                    grammar.consume_tokens([fed])
        slot_of, places, positions, tokens = map(torch.tensor, zip(*rows, strict=True))
        context = plugin.LogitsContext(
            expanded_idx_mapping=slot_of, expanded_local_pos=places, pos=positions, input_ids=tokens,
            idx_mapping_np=np.array(live),
        )  # fmt: skip
        logits = torch.randn(len(rows), size)
        logits[:, [EOS, *tokenizer.convert_tokens_to_ids(['"', "}", "]"])]] += 2
        logits[:-1].scatter_add_(1, tokens[1:, None], torch.full((len(rows) - 1, 1), 5.0))  # drafts are accepted often
        apply_bitmask(logits, torch.cat(masks))
        drawn, steps = draw(processor.apply(logits, context)), steps + 1
        ended: set[int] = set()
        for i, (slot, place, _, fed) in enumerate(rows):
            if place and fed != written[slot][-1]:
                ended.add(slot)  # the draft before this row was rejected
            if slot in ended or written[slot][-1:] == [EOS]:
                continue
            written[slot].append(drawn[i])
            token_ids[slot, len(prompt) + len(written[slot]) - 1] = drawn[i]
            if grammars[slot] is not None:
                grammars[slot].consume_tokens([drawn[i]])
    assert steps < max(map(len, written))  # drafts were accepted
    texts = [tokenizer.decode(ids[:-1]) for ids in written if ids[-1] == EOS]
    for text in texts[:4]:
        Draft202012Validator(SCHEMA).validate(json.loads(text))
    assert len(texts[4]) <= 7


def test_the_example_of_the_page_runs(monkeypatch, tokenizer, capsys):
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```py\n(from vllm import.*?)^```", page, flags=re.M | re.S)

    class Engine:
        def __init__(self, name):
            self.get_tokenizer = lambda: tokenizer

        def chat(self, messages, params):
            request = JsonRequest(schema_of(params.extra_args, params.structured_outputs), tokenizer)
            ids, logprobs, opening = [], [], tokenizer('{"title": "', add_special_tokens=False)["input_ids"]
            while request.after(request.start(), ids).reader.closed < 12:  # the quote that ends the title
                logits = torch.zeros(len(tokenizer))
                logits[
                    [opening[len(ids)]] if len(ids) < len(opening) else tokenizer.convert_tokens_to_ids(["for"])
                ] = 1
                step = {i: SimpleNamespace(logprob=value) for i, value in enumerate(logits.tolist())}
                request.mask(logits, request.after(request.start(), ids))
                ids.append(int(logits.argmax()))
                logprobs.append(step)
            ids += tokenizer.convert_tokens_to_ids(["}"])
            return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids, logprobs=[*logprobs, step])])]

    module, parameters = ModuleType("vllm"), ModuleType("vllm.sampling_params")
    module.LLM, module.SamplingParams = Engine, lambda **given: SimpleNamespace(**given)
    parameters.StructuredOutputsParams = lambda json: SimpleNamespace(json=json)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", parameters)
    exec(code, {})
    assert capsys.readouterr().out == '{"title": "' + "for" * 13 + '"}\n'  # 40 characters have no room for more
