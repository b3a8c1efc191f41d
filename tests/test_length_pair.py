"""A length in two units: no limit is broken, what no text can keep is refused, and the calls that take one."""

import json
import math
import random

import pytest
import torch
from conftest import controlled_marian, save_in
from test_causal import build, make_tokenizer

import hf_lenctrl
from hf_lenctrl import LengthConstraintLogitsProcessor, UnitTable
from hf_lenctrl.commands import generate
from hf_lenctrl.length_pair import PairConstraintLogitsProcessor, other_limit
from hf_lenctrl.length_units import count_units


# entry 0 is EOS; the others write 1, 2 and 3 units, and 2, 1 and 5 of the other kind
FIRST, SECOND = (UnitTable("token", torch.tensor([units])) for units in ([0, 1, 2, 3], [0, 2, 1, 5]))


def pair(length, most, constraint="max", tables=(FIRST, SECOND), **options):
    first = LengthConstraintLogitsProcessor(tables[0], length, constraint, **{"eos_token_id": 0, **options})
    return PairConstraintLogitsProcessor(first, tables[1], torch.tensor([most] if isinstance(most, int) else most))


@pytest.mark.parametrize(
    ("length", "most", "constraint", "options", "written", "through"),
    [
        (4, 9, "max", {}, [], [0, 1, 2, 3]),
        (4, 4, "max", {}, [], [0, 1, 2]),
        (4, 1, "max", {}, [], [0, 2]),
        (4, 9, "max", {}, [3], [0, 1]),
        (4, 5, "max", {}, [3], [0]),
        (4, 2, "exact", {}, [], [2]),  # 2 + 2 is the only way
        (4, 4, "exact", {}, [], [2]),  # 1 + 1 + 2 would take 5
        (4, 5, "exact", {}, [], [1, 2]),
        (4, 7, "exact", {}, [], [1, 2, 3]),
        (4, 7, "exact", {}, [3], [1]),
        (4, 2, "exact", {"tolerance": (1, 0)}, [2], [2]),  # 3 would take 3 of the other kind
        (4, 3, "exact", {"tolerance": (1, 0)}, [2], [1, 2]),
        (4, 3, "exact", {"tolerance": (1, 0)}, [2, 1], [0]),
    ],
)
def test_the_entries_that_both_limits_allow(length, most, constraint, options, written, through):
    process = pair(length, most, constraint, **options)
    scores = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    found = process(torch.tensor([[0, *written]]), scores.clone())
    allowed = found > -math.inf
    assert allowed[0].nonzero().squeeze(1).tolist() == through
    assert torch.equal(found[allowed], scores[allowed])


def test_where_another_processor_forbids_the_rest_the_text_ends():
    scores = torch.tensor([[0.1, -math.inf, -math.inf, -math.inf]])
    assert pair(4, 4)(torch.tensor([[0, 2]]), scores).argmax() == 0
    assert pair(4, 4, "exact")(torch.tensor([[0, 2]]), scores).argmax() == 0  # too short, but no limit is broken


def test_what_no_text_can_keep_is_refused():
    for most, options in ((1, {}), ([2, 1], {"length": [4, 4]})):
        with pytest.raises(
            ValueError, match="exactly 4 tokens need at least 2 tokens, the limit is 1 tokens; raise it"
        ):
            pair(**{"length": 4, "most": most, "constraint": "exact", **options})
    with pytest.raises(ValueError, match="4 to 6 tokens need at least 2 tokens, the limit is 1"):
        pair(5, 1, "exact", tolerance=1)
    even = UnitTable("token", torch.tensor([[0, 2, 2, 4]]))
    with pytest.raises(ValueError, match="exactly 5 tokens cannot be written"):
        pair(5, 99, "exact", tables=(even, SECOND))


@pytest.mark.parametrize("kind", ["bart", "bert", "byte fallback", "marian", "t5"])
def test_random_texts_keep_both_limits(kind, tokenizers_of_every_kind):
    tokenizer, draw = tokenizers_of_every_kind[kind], random.Random(kind)
    torch.manual_seed(0)
    units = ("character", "word", "byte", "token", "width")
    tables = {unit: UnitTable.from_tokenizer(tokenizer, unit) for unit in units}
    eos = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    written = 0
    for run in range(18):
        first, second = draw.choice(["character", "word", "byte", "token"]), draw.choice(units)
        if first == second or {first, second} == {"word", "width"}:  # combining marks count in neither, without end
            continue
        lengths = {unit: draw.randint(1, 5 if unit == "word" else 20) for unit in (first, second)}
        options = {"tolerance": (draw.randint(0, 3), draw.randint(0, 3))} if run % 3 == 2 else {}
        options |= {"eos_token_id": eos, "max_length": 200, "tables": (tables[first], tables[second])}
        constraint = "max" if run % 3 == 0 else "exact"
        try:
            process = pair([lengths[first]] * 2, [lengths[second]] * 2, constraint, **options)
        except ValueError as error:
            assert constraint == "exact" and "need at least" in str(error)
            continue
        ids, bias = torch.full((2, 1), eos), 3 * torch.randn(tables[first].weights.shape[1])
        while ids.shape[1] < 2 or (ids.shape[1] < 200 and not bool((ids[:, 1:] == eos).any(dim=1).all())):
            chosen = process(ids, 2 * torch.randn(2, len(bias)) + bias).softmax(dim=-1).multinomial(1)
            chosen[(ids[:, 1:] == eos).any(dim=1)] = eos
            ids = torch.cat([ids, chosen], dim=1)
        low, high = int(process.first.low[0]), int(process.first.high[0])
        for row, text in zip(ids[:, 1:], tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
            produced = {unit: int(tables[unit].count(row.unsqueeze(0))) for unit in (first, second)}
            assert produced[first] <= high and produced[second] <= lengths[second]
            assert constraint == "max" or produced[first] >= low
            written += 1
            for unit in {first, second} - {"token"} if "�" not in text and not text.endswith(" ") else ():
                assert count_units(text, unit) <= produced[unit]
    assert written >= 8


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    tokenizer = make_tokenizer()
    folder = tmp_path_factory.mktemp("pair")
    tokenizer = tokenizer.from_pretrained(save_in(folder, tokenizer))
    for name, part in zip(("plain", "controlled"), build("llama"), strict=True):
        save_in(folder / name, part, tokenizer)
    return folder


@pytest.mark.parametrize("name", ["plain", "controlled"])
def test_the_pipeline_takes_a_length_in_two_units(causal, name):
    write = hf_lenctrl.pipeline(str(causal / name), do_sample=True)
    likely = write.tokenizer.convert_tokens_to_ids([*"abc", "Ġ"])
    options = {"sequence_bias": {(i,): 7.0 for i in likely}}
    texts = ["a small editor", "b", "c"]
    for out, most in zip(write(texts, length={"character": 30, "word": [3, 2, 1]}, **options), (3, 2, 1), strict=True):
        text = out["generated_text"]
        assert out["lengths"] == {"character": len(text), "word": len(text.split())}
        assert len(text) <= 30 and out["lengths"]["word"] <= most and out["length_unit"] == "character"
    exact = write(texts[0], length={"character": [20, 12], "word": 2}, length_constraint="exact", **options)
    assert [len(out["generated_text"]) for out in exact] == [20, 12]
    assert all(out["lengths"]["word"] <= 2 for out in exact)
    beams = {"num_beams": 3, "do_sample": False, **options}
    out = write(texts[0], length={"character": (20, 22), "token": 21}, **beams)
    assert 20 <= out["length"] <= 22 and out["lengths"]["token"] <= 21 and out["requested_length"] == (20, 22)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"length": {"character": 3}},
            "has two, one of them 'character', got {'character': 3}; pass length={'character'",
        ),
        ({"length": {"character": 3, "word": 2, "byte": 3}}, "has two, one of them 'character'"),
        ({"length": {"byte": 3, "word": 2}}, "one of them 'character', got {'byte': 3, 'word': 2}"),
        ({"length": {"character": 3, "line": 2}}, "unit of a length must be one of token, .* got 'line'"),
        ({"length": {"character": 3, "word": 0}}, "length must be at least 1, got 0"),
        ({"length": {"character": 3, "word": [2, 3]}}, r"one for all or for each of the 1 texts, got \[2, 3\]"),
        (
            {"length": {"character": 3, "word": 2}, "length_constraint": None},
            "two units needs a constraint, got N",
        ),
        ({"length": {"character": 3, "word": 2}, "finish": "word"}, "finish='word' needs one limit, got two"),
        ({"length": {"character": 5, "word": 4}, "length_constraint": "exact", "choose": True}, "second unit"),
    ],
)
def test_a_wrong_length_in_two_units_is_refused(causal, options, message):
    with pytest.raises(ValueError, match=message):
        hf_lenctrl.pipeline(str(causal / "controlled"))("a small editor", **options)


def test_generate_takes_a_length_in_two_units(character_tokenizer):
    model = controlled_marian(character_tokenizer)
    ids = character_tokenizer(["a small editor", "card games"], return_tensors="pt", padding=True)
    length = {"character": [25, 14], "word": 3}
    for options in ({}, {"num_beams": 3}, {"length_constraint": "exact"}, {"do_sample": True}):
        out = model.generate(**ids, length=length, tokenizer=character_tokenizer, **options)
        texts = character_tokenizer.batch_decode(out, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert all(len(text) <= n and len(text.split()) <= 3 for text, n in zip(texts, (25, 14), strict=True))
        assert "length_constraint" not in options or model.unit_table.count(out).tolist() == [25, 14]
    with pytest.raises(ValueError, match="needs a tokenizer to count words; pass tokenizer=tokenizer"):
        model.generate(**ids, length=length)
    with pytest.raises(ValueError, match="length must be one for all or for each of the 2 examples"):
        model.generate(**ids, length={"character": 25, "word": [3]}, tokenizer=character_tokenizer)


def test_the_table_of_the_second_unit_is_built_once(character_tokenizer):
    table = UnitTable.from_tokenizer(character_tokenizer, "character")
    found = [other_limit(("word", most), character_tokenizer, table, 1) for most in (3, 4)]
    assert found[0][0] is found[1][0]
    assert [most.tolist() for _, most in found] == [[3], [4]]


def test_the_command_takes_a_second_limit(causal, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("a small editor\ncard games\n")
    words = (
        f"--model {causal / 'controlled'} --input_file {tmp_path / 'in.txt'} --length 12 --second_limit word=1".split()
    )
    for _ in range(2):  # the second finds it complete
        generate.main([*words, "--length_constraint", "exact", "--output_file", str(tmp_path / "out.jsonl")])
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["length"] for row in rows] == [12, 12] and all(len(row["output"].split()) <= 1 for row in rows)
    assert "is complete" in capsys.readouterr().err
    for wrong in ("word", "word=0", "line=3"):
        with pytest.raises(SystemExit):
            generate.main([*words, "--second_limit", wrong, "--output_file", str(tmp_path / "no.jsonl")])
        assert f"must be a unit and a number of at least 1, word=6, got '{wrong}'" in capsys.readouterr().err
    same = [*words, "--second_limit", "character=9", "--output_file", str(tmp_path / "no.jsonl")]
    rule = "--second_limit takes another unit than the length, which counts characters, got character=9"
    with pytest.raises(ValueError, match=f"{rule}; pass --second_limit word=6"):
        generate.main(same)


def test_a_named_limit_may_stand_second(causal):
    pipe = hf_lenctrl.pipeline(causal / "plain")
    out = pipe("a small editor", length={"word": 2, "character": "commit_subject"})
    assert out["requested_length"] == 50 and len(out["generated_text"].split()) <= 2


def test_the_command_takes_a_named_limit_with_a_second_limit(causal, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("a small editor\n")
    words = f"--model {causal / 'controlled'} --input_file {tmp_path / 'in.txt'} --length commit_subject".split()
    generate.main([*words, "--second_limit", "word=2", "--output_file", str(tmp_path / "out.jsonl")])
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert row["requested"] == 50 and row["length"] <= 50 and len(row["output"].split()) <= 2
    same = [*words, "--second_limit", "character=9", "--output_file", str(tmp_path / "no.jsonl")]
    with pytest.raises(ValueError, match="another unit than the length, which counts characters, got character=9"):
        generate.main(same)


def test_at_the_last_position_the_text_ends_between_characters():
    """Entry 1 writes the first byte of a character, entry 2 the second one, entry 3 nothing."""
    first, second = (
        UnitTable(unit, torch.tensor(weights), torch.tensor([[0, 1, 0, 0], [1, 1, 0, 1]]))
        for unit, weights in (
            ("character", [[0, 1, ~1, 0], [~0, ~1, 0, ~0]]),
            ("byte", [[0, 1, ~1, 0], [~0, ~1, 1, ~0]]),
        )
    )
    process = pair(2, 12, "exact", (first, second), max_length=8)
    scores = torch.tensor([[0.1, 0.4, 0.3, 0.2]])
    for written, best in ((4, 1), (5, 0)):  # entries 1 and 2 fit before the EOS at the last position, and do not
        assert process(torch.tensor([[0] + [3] * written]), scores).argmax() == best


def test_a_maximum_needs_few_columns_although_entries_are_dear():
    dear = UnitTable("cost", torch.tensor([[0, *range(1, 1001)]]))
    process = pair(9000, 7, tables=(dear, UnitTable("token", torch.tensor([[0, *[1] * 1000]]))))
    assert process.needs.shape[2] < 10
