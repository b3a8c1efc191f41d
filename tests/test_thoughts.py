"""The answers of thinking models: nothing before the marker counts, is masked or hears of a length."""

import functools
import itertools
import json
import math
import random
import re

import pytest
import torch
from conftest import save_in
from test_causal import LLAMA
from tokenizers import Tokenizer, decoders, models
from transformers import AutoConfig, AutoModelForCausalLM, LogitsProcessor, PreTrainedTokenizerFast
from transformers.generation import BaseStreamer

import hf_lenctrl
from hf_lenctrl.commands import causal
from hf_lenctrl.thoughts import thoughts_of
from hf_lenctrl.training.collator import DataCollatorForAnswers


MARKER = "</think>"
# the marker in every way: whole, in parts, with text before and behind it in one entry
PIECES = """
    <s> </s> <pad> <mark> < / t h i n k > </ th ink think think> </think> ?</th ink>ĊĊHel >Ċ >ĊĠ ></ x</think>y
    Ċ ĊĊ Ġ Ġa ĊĠlo H e a b c l lo y . , Ġword æ Ĺ ¥ æĹ¥ æĹ <</ </thi</ d </think
""".split()


@functools.cache
def tokenizer_with_parts() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE({piece: i for i, piece in enumerate(PIECES)}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<pad>", "<mark>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def ids_of(*pieces: str) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


def text_of(ids) -> str:
    """As a user reads it: special tokens are left out, also within a marker."""
    return tokenizer_with_parts().decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def answer_of(ids, marker: str = MARKER) -> str | None:
    """The answer as a reader of the text finds it."""
    _, found, answer = text_of([i for i in ids if i not in (1, 2)]).partition(marker)
    return answer.lstrip(" \t\r\n") if found else None


COUNTS = {"character": len, "word": lambda text: len(text.split()), "byte": lambda text: len(text.encode())}


def split_in_all_ways(text: str):
    """The entries of the vocabulary that write a text, in each way that they can."""
    if not text:
        yield []
    for i, piece in enumerate(PIECES[4:], 4):
        written = piece.replace("Ċ", "\n").replace("Ġ", " ")
        if text.startswith(written):
            yield from ([i, *rest] for rest in split_in_all_ways(text[len(written) :]))


@pytest.mark.parametrize("unit", [*COUNTS, "token"])
def test_the_marker_is_found_however_it_is_split(unit):
    tokenizer = tokenizer_with_parts()
    table = hf_lenctrl.UnitTable.from_tokenizer(tokenizer, unit).padded(len(PIECES) + 3)
    thoughts = thoughts_of(MARKER, tokenizer, table)
    texts = ("a?</think>\n\nHello a.", "</thi</think>y word", "<</think> \n lo")
    ways = [ids for text in texts for ids in split_in_all_ways(text)]
    assert len(ways) > 100
    for ids in ways:
        progress = thoughts.progress(torch.tensor([ids]))[0].tolist()
        for end in range(len(ids) + 1):
            answer = answer_of(ids[:end])
            if answer is None:
                assert progress[end] == -1
            elif unit != "token":
                assert progress[end] == COUNTS[unit](answer), (unit, text_of(ids[:end]))
            else:  # entries that write more than white space behind the marker
                lengths = [len(answer_of(ids[:k]) or "") for k in range(end + 1)]
                first = next((k for k in range(end + 1) if lengths[k]), end + 1)
                assert progress[end] == end + 1 - first
        assert thoughts.marker.split(ids)[1] == answer_of(ids)
    # each row for itself, beside one that still thinks and behind the left padding of its prompt
    rows = [ids for ids in ways if len(ids) == 8][:50] + [ids_of("a", "</", "a", "think", ">", "a", "b", "c")]
    together = thoughts.progress(torch.tensor(rows))
    assert together.tolist() == [thoughts.progress(torch.tensor([row]))[0].tolist() for row in rows]
    assert together[-1].tolist() == [-1] * 9


@functools.cache
def model_of(unit: str | None):
    """A small Llama with random weights; with a unit the same with a length that it hears."""
    torch.manual_seed(1)
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "vocab_size": len(PIECES)}
    fields = LLAMA | {"num_hidden_layers": 1, "initializer_range": 0.6}
    plain = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **special, **fields)).eval()
    if unit is None:
        return plain
    model = hf_lenctrl.add_length_control(plain, tokenizer=tokenizer_with_parts(), length_unit=unit)
    torch.manual_seed(2)
    torch.nn.init.normal_(model.length_projection.weight, std=0.3)
    return model


class Urge(LogitsProcessor):
    """Makes a marker that has begun go on, in any entries, and an end unlikely; a `seed` makes greedy search draw."""

    def __init__(self, marker: str = MARKER, seed: int | None = None):
        self.seed = seed
        texts = [piece.replace("Ċ", "\n").replace("Ġ", " ") for piece in PIECES]
        self.marker, self.more = marker, torch.zeros(len(marker), len(PIECES))
        for read in range(len(marker)):
            rest = marker[read:]
            goes_on = [
                bool(read or "<" in text) and (rest.startswith(text) or text.startswith(rest)) for text in texts
            ]
            self.more[read] = 3.0 * torch.tensor(goes_on)
        self.more[:, 1] = -2.0

    def __call__(self, input_ids, scores):
        texts = [text_of(row[-8:]) for row in input_ids.tolist()]
        reads = [
            next(k for k in range(len(self.marker) - 1, -1, -1) if text.endswith(self.marker[:k])) for text in texts
        ]
        scores = scores + self.more[reads]
        if self.seed is None:
            return scores
        noise = torch.Generator().manual_seed(1000 * self.seed + input_ids.shape[1])
        return scores - torch.empty_like(scores).exponential_(generator=noise).log()  # as a draw from the softmax


def prompts_of(draw: random.Random, rows: int, closed: bool):
    """Prompts that are padded on the left; where `closed`, some end in a thought that is over."""
    letters = [i for i in range(4, len(PIECES)) if "<" not in PIECES[i]]
    ends = [[], [], ids_of("</think>"), ids_of("</", "think", ">ĊĠ", "Ċ"), ids_of("</think>", "a")] if closed else [[]]
    prompts = [[0, *draw.choices(letters, k=draw.randint(1, 6)), *draw.choice(ends)] for _ in range(rows)]
    most = max(map(len, prompts))
    ids = torch.tensor([[2] * (most - len(prompt)) + prompt for prompt in prompts])
    return prompts, {"input_ids": ids, "attention_mask": (ids != 2).long()}


def check_answer(ids, unit, low, high, closed):
    """Whether an answer began; raises where it breaks its length."""
    answer = text_of([i for i in ids if i not in (1, 2)]).lstrip(" \t\r\n") if closed else answer_of(ids)
    if answer is not None:
        assert low <= COUNTS[unit](answer) <= high, (unit, low, high, answer, [PIECES[i] for i in ids])
        assert "\ufffd" not in answer
    return answer is not None


def run(seed: int, rows: int) -> dict[str, int]:
    """A batch of random requests; returns what was met in it. Raises where a rule is broken."""
    draw = random.Random(seed)
    unit, constraint = draw.choice([*COUNTS]), draw.choice(["max", "exact"])
    prompts, batch = prompts_of(draw, rows, closed=draw.random() < 0.3)
    lengths = [draw.randint(1, 14) for _ in range(rows)]
    tolerance = draw.choice([None, 2]) if constraint == "exact" else None
    budget = draw.choice([None, 0, 1, 5, 20])
    how, processors = draw.choice(
        [({"do_sample": True, "top_k": 0}, None), ({"num_beams": 3}, None), ({}, seed), ({}, seed)]
    )
    how = {"do_sample": False, **how, "logits_processor": [Urge(seed=processors)]}
    how |= {"return_dict_in_generate": True, "output_logits": True, "output_scores": True}
    asked = {"length": lengths, "length_constraint": constraint, "length_tolerance": tolerance}
    asked |= {"length_from": MARKER, "thinking_budget": budget, "tokenizer": tokenizer_with_parts()}
    torch.manual_seed(seed)
    out = model_of(unit).generate(**batch, **asked, **how)
    columns = batch["input_ids"].shape[1]
    limit = out.sequences.shape[1] >= 129  # the model has no more positions
    written = out.sequences[:, columns:].tolist()
    met = {"answers": 0, "no answer": 0, "steps compared": 0, "forbidden": 0}
    starts = []
    for ids, prompt, length in zip(written, prompts, lengths, strict=True):
        text = text_of(prompt).rstrip()
        closed = text.endswith(MARKER)
        low = 0 if constraint == "max" else max(1, length - (tolerance or 0))
        low = 0 if limit and 1 not in ids else low
        begun = check_answer(ids, unit, low, length + (tolerance or 0), closed)
        met["answers" if begun else "no answer"] += 1
        assert begun or budget is None or 1 in ids[: budget + 8]
        first = next((k for k in range(len(ids)) if MARKER in text_of(ids[: k + 1])), len(ids))
        starts.append(0 if closed else first + 1)
        assert not {0, 3} & {*ids[starts[-1] :]}  # no special token is in an answer
        assert budget is None or closed or not begun or first < budget + 8  # letters, as the tokenizer has it
    if processors is None:
        return met
    stock = model_of(None).generate(**batch, **how, max_length=129)
    most = 128 if budget is None else budget  # behind so many the budget writes
    for step in range(min(len(stock.logits), len(out.logits), most + 1)):
        same, before = [k for k in range(rows) if step < starts[k]], slice(columns + step)
        assert torch.equal(stock.sequences[same, before], out.sequences[same, before])
        assert torch.equal(stock.logits[step][same], out.logits[step][same])
        if step < most:
            differ = stock.scores[step][same] != out.scores[step][same]
            for row, entry in differ.nonzero().tolist():  # an entry that ends the marker, with too much behind it
                answer = answer_of([*written[same[row]][:step], entry])
                assert answer and float(out.scores[step][same[row], entry]) == -math.inf
                assert constraint == "exact" or len(answer.encode()) > 1
                if int(stock.sequences[same[row], columns + step]) == entry:
                    starts[same[row]] = step + 1  # where the stock model wrote it, the texts part
            met["forbidden"] += len(differ.nonzero())
        met["steps compared"] += len(same)
    return met


def total(batches: int, rows: int) -> dict[str, int]:
    met = [run(seed, rows) for seed in range(batches)]
    return {name: sum(one[name] for one in met) for name in met[0]}


def test_random_runs_keep_the_length_behind_the_marker_and_are_the_stock_model_before_it():
    met = total(12, 8)
    assert met["answers"] > 50 and met["steps compared"] > 90


KINDS = ["bart", "byte fallback", "mbart", "nllb", "pegasus", "t5"]


@pytest.mark.parametrize(
    ("kind", "unit"), [*itertools.product(KINDS, COUNTS), ("byte fallback", "width"), ("nllb", "width")]
)
def test_answers_of_every_kind_of_tokenizer_are_counted_as_they_read(kind, unit, tokenizers_of_every_kind):
    tokenizer, draw = tokenizers_of_every_kind[kind], random.Random(3)
    table = hf_lenctrl.UnitTable.from_tokenizer(tokenizer, unit)
    thoughts = thoughts_of("e", tokenizer, table)  # which many entries have in them
    size, answers = len(tokenizer), 0
    pieces = [i for i in range(size) if i not in tokenizer.all_special_ids and "\ufffd" not in tokenizer.decode([i])]
    for _ in range(40):
        text = "".join(draw.choices("ae né日😀 x\u3000", k=draw.randint(0, 6)))  # whose characters are split
        middle = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = [*draw.choices(pieces, k=2), *middle, *draw.choices(pieces, k=3)]
        ids = [i for i in ids if i not in tokenizer.all_special_ids]
        count, state = (int(x) for x in thoughts.count_and_state(torch.tensor([ids], dtype=torch.long)))
        before, answer = thoughts.marker.split(ids)
        text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        if "\ufffd" in text:
            continue
        assert (state < 0) == (answer is None) == ("e" not in text)
        if answer is not None:
            assert answer == text.partition("e")[2].lstrip(" \t\r\n") and before == text.partition("e")[0].strip()
            assert count == hf_lenctrl.count_units(answer, unit)
            answers += 1
    assert answers > 10


@pytest.mark.parametrize("unit", COUNTS)
def test_thoughts_and_answers_are_counted_one_entry_a_step(unit, tokenizers_of_every_kind):
    tokenizer, draw = tokenizers_of_every_kind["bart"], random.Random(3)
    thoughts = thoughts_of("e", tokenizer, hf_lenctrl.UnitTable.from_tokenizer(tokenizer, unit))
    ids = torch.tensor([draw.choices(range(len(tokenizer)), k=12) for _ in range(40)])
    ids[:5, 2] = tokenizer.convert_tokens_to_ids("e")  # a prompt that begins the answer
    count, state = thoughts.count_and_state(ids[:, :3], 3)
    for end in range(4, 13):
        count, state = thoughts.after(count, state, ids[:, end - 1])
        expected = thoughts.count_and_state(ids[:, :end], 3)
        assert [count.tolist(), state.tolist()] == [each.tolist() for each in expected]
    assert 5 < int((state >= 0).sum()) < 40  # some answers begin, some do not


SPECIAL = [("<mark>", [3]), ([3], [3]), ("a<mark>", [31, 3]), ([31, 3], [31, 3])]


@pytest.mark.parametrize(("marker", "ids"), SPECIAL, ids=str)
def test_the_marker_may_be_a_special_token_or_ids(marker, ids):
    tokenizer, model = tokenizer_with_parts(), model_of("character")
    thoughts = thoughts_of(marker, tokenizer, model.unit_table)
    rows = [[30, *ids, 24, 32, 33, 1, 2], [30, *ids[:-1], 31, *ids, 27, 1]]
    rows = torch.tensor([(row + [2] * 9)[:9] for row in rows])
    assert thoughts.progress(rows)[0].tolist() == [-1] * (1 + len(ids)) + [0, 0, 1, 2, 2, 2] + [2] * (3 - len(ids))
    begins = int((thoughts.progress(rows)[1] >= 0).nonzero()[0])
    assert begins == 1 + 2 * len(ids)
    assert thoughts.marker.split(rows[0].tolist()) == ("e", "bc")
    how = {"length": 4, "length_constraint": "exact", "do_sample": False}
    prompt = torch.tensor([[0, 31, 32]])
    out = model.generate(prompt, **how, length_from=marker, thinking_budget=3, tokenizer=tokenizer)[0, 3:].tolist()
    assert out[3 : 3 + len(ids)] == ids
    answer = tokenizer.decode(out[3 + len(ids) :], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert len(answer.lstrip(" \n")) == 4


def test_a_marker_of_ids_is_not_found_as_text():
    table = hf_lenctrl.UnitTable.from_tokenizer(tokenizer_with_parts(), "token")
    thoughts = thoughts_of(ids_of("</", "think", ">"), tokenizer_with_parts(), table)
    assert thoughts.progress(torch.tensor([ids_of("</think>", "a", "</", "think>")])).tolist() == [[-1] * 5]
    written = torch.tensor([ids_of("</", "</", "think", ">", "a")])
    assert thoughts.progress(written).tolist() == [[-1, -1, -1, -1, 0, 1]]


def test_a_prompt_that_ends_in_a_marker_begins_the_answer():
    thoughts = thoughts_of(MARKER, tokenizer_with_parts(), model_of("character").unit_table)
    prompts = {
        ("</think>",): True,
        ("a", "</", "think", ">ĊĠ", "Ċ"): True,
        ("x</think>y",): False,
        ("</think>", "a"): False,
        ("<", "t", "h", "i", "n", "k", ">", "Ċ"): False,
        ("</think>", "<mark>", "Ċ"): False,
        ("</", "t", "h", "ink>ĊĊHel"): False,
    }
    for pieces, closed in prompts.items():
        ids = torch.tensor([[2, 2, 0, *ids_of(*pieces), *ids_of("b", "c")]])
        assert thoughts.closed(ids[:, :-2]).tolist() == [closed], pieces
        assert thoughts.progress(ids[:, -2:], torch.tensor([closed])).tolist() == [
            [0, 1, 2] if closed else [-1, -1, -1]
        ]


def test_the_cache_beams_chunks_and_drafts_change_nothing():
    model, tokenizer = model_of("character"), tokenizer_with_parts()
    _, batch = prompts_of(random.Random(4), 3, closed=False)
    asked = {"length": [5, 9, 2], "length_constraint": "exact", "length_from": MARKER, "thinking_budget": 4}
    asked |= {"tokenizer": tokenizer, "do_sample": False}
    for beams in (1, 3):
        expected = model.generate(**batch, **asked, num_beams=beams)
        assert torch.equal(model.generate(**batch, **asked, num_beams=beams, use_cache=False), expected)
        assert torch.equal(model.generate(**batch, **asked, num_beams=beams, prefill_chunk_size=2), expected)
    alone = {name: x[1:2] for name, x in batch.items()}
    single = asked | {"length": 9}
    expected = model.generate(**alone, **single)
    for draft in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": model_of(None)}):
        assert torch.equal(model.generate(**alone, **single, **draft), expected)


def test_training_reads_what_generation_read():
    model, tokenizer = model_of("character"), tokenizer_with_parts()
    prompt = torch.tensor([[0, *ids_of("a", "b", "<")]])
    asked = {"length": 7, "length_constraint": "exact", "length_from": MARKER, "thinking_budget": 4}
    how = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True, "tokenizer": tokenizer}
    out = model.generate(prompt, **asked, **how)
    labels = out.sequences[0].tolist()
    rows = [{"input_ids": labels, "labels": [-100] * 4 + labels[4:]}]
    rows += [{"input_ids": [0, *ids_of("a", "b", "c"), 1], "labels": [-100, -100, *ids_of("b", "c"), 1]}]
    collate = DataCollatorForAnswers(tokenizer, table=model.unit_table, length_from=MARKER)
    batch = collate(rows)
    assert batch["length"].tolist() == [7, 2]  # a row without thoughts is all answer
    begin = 4 + 4 + 8 - 1  # the prompt, the budget and the marker in letters; its last letter predicts the answer
    progress = batch["progress"][0].tolist()
    assert progress[:begin] == [-1] * begin and progress[begin] == 0 and progress[len(labels) - 1] == 7
    assert batch["progress"][1, :5].tolist() == [-1, 0, 1, 2, 2]
    with torch.no_grad():
        trained = model(**{name: x[:1, : len(labels)] if x.ndim == 2 else x[:1] for name, x in batch.items()})
        other = model(out.sequences, labels=batch["labels"][:1], length=30, progress=batch["progress"][:1])
        stock = model_of(None)(out.sequences)
    steps = torch.stack(out.logits, dim=1)  # (1, answer, V)
    torch.testing.assert_close(trained.logits[:, 3:-1], steps, atol=2e-4, rtol=1e-4)
    assert torch.equal(trained.logits[:, :begin], stock.logits[:, :begin])
    assert torch.equal(trained.logits[:, :begin], other.logits[:, :begin])
    assert not torch.allclose(trained.logits[:, begin:], other.logits[:, begin:], atol=1e-2)
    with pytest.raises(ValueError, match="every answer must hold at least one character, got \\[0\\]"):
        collate(
            [{"input_ids": [0, *ids_of("a", "</think>", "Ċ"), 1], "labels": [-100, *ids_of("a", "</think>", "Ċ"), 1]}]
        )


@functools.cache
def pipe_of(unit: str | None) -> hf_lenctrl.LengthControlledGenerationPipeline:
    own = hf_lenctrl.LengthControlledGenerationPipeline
    return own(model=model_of(unit), tokenizer=tokenizer_with_parts(), device="cpu")


@pytest.mark.parametrize("kind", ["plain", "controlled"])
@pytest.mark.parametrize("unit", ["character", "token"])
def test_the_pipeline_gives_answer_and_thoughts(kind, unit):
    write = pipe_of(unit if kind == "controlled" else None)
    asked = {"length_from": MARKER, "thinking_budget": 5, "length_unit": unit, "length_constraint": "exact"}
    outputs = write(["ab", "a", "ba</think>"], length=[4, 6, 5], **asked, do_sample=False)
    assert [out["length"] for out in outputs] == [4, 6, 5] and all(out["fault"] is None for out in outputs)
    assert write("a", length=6, **asked, do_sample=False) == outputs[1]
    for out in outputs:
        assert MARKER not in out["thoughts"] and out["generated_text"][:1] not in " \n"
        assert unit == "token" or len(out["generated_text"]) == out["length"]
    assert outputs[0]["thoughts"] and outputs[2]["thoughts"] == ""
    several = write("ab", length=[3, 4], **asked, num_beams=3, num_return_sequences=2, do_sample=False)
    assert [[out["length"] for out in own] for own in several] == [[3, 3], [4, 4]]


def test_an_answer_that_never_begins_is_said(caplog):
    write = pipe_of("character")
    asked = {"length": 3, "length_from": "abcabc", "length_constraint": "max", "do_sample": False}
    out = write("ab", **asked, max_new_tokens=30)
    assert out["fault"] == "the output has no 'abcabc', so it has no answer, and nothing kept the length"
    assert (out["generated_text"], out["length"]) == ("", 0) and len(out["thoughts"]) > 3
    assert "1 of 1 outputs have no 'abcabc', so nothing kept their length: rows [0]" in caplog.text
    assert "were cut" not in caplog.text
    assert write("ab", **asked, thinking_budget=6)["fault"] is None


def test_an_answer_is_finished_and_thoughts_are_not():
    write = pipe_of(None)
    asked = {"length_from": MARKER, "thinking_budget": 20, "length_unit": "character", "length_constraint": "max"}
    asked |= {"do_sample": False, "logits_processor": [Urge(seed=5)]}
    texts = ["a", "b", "ab", "ba", "c", "bc"]
    whole = write(texts, length=9, **asked)
    outputs = write(texts, length=9, finish="word", **asked)
    assert [out["thoughts"] for out in outputs] == [out["thoughts"] for out in whole]
    assert all(out["length"] == len(out["generated_text"]) <= 9 for out in outputs)
    assert {out["finish"] for out in outputs} & {"word", "cut"}


def test_tokens_of_thoughts_are_streamed_too():
    class Streamer(BaseStreamer):
        def __init__(self):
            self.ids = []

        def put(self, value):
            self.ids += value.flatten().tolist()

        def end(self):
            pass

    streamer, ids = Streamer(), torch.tensor([[0, 31, 32]])
    asked = {"length": 6, "length_constraint": "exact", "length_from": MARKER, "thinking_budget": 3}
    asked |= {"tokenizer": tokenizer_with_parts(), "do_sample": False}
    out = model_of("character").generate(ids, **asked, streamer=streamer)
    assert streamer.ids == out[0].tolist()
    assert len(answer_of(streamer.ids)) == 6


CALLS = {
    "length_from='</think>' needs the model's tokenizer; pass tokenizer=tokenizer": {"tokenizer": None},
    "length_from must not be empty, got ''; pass '</think>'": {"length_from": ""},
    "length_from must be a text or a list of ids, got 7; pass '</think>'": {"length_from": 7},
    "length_from must be a text or a list of ids, got [0.5]": {"length_from": [0.5]},
    "length_from must be what the tokenizer can encode, got '§'; pass another marker": {"length_from": "§"},
    "thinking_budget must be an integer of at least 0, got -1; pass 500": {"thinking_budget": -1},
    "thinking_budget=9 needs what ends the thoughts; pass length_from='</think>'": {
        "length_from": None, "thinking_budget": 9,
    },
    "exactly 3 characters may need 22 positions with start and EOS, max_length leaves 15": {
        "thinking_budget": 12, "max_new_tokens": 15,
    },
}  # fmt: skip


@pytest.mark.parametrize(("message", "options"), CALLS.items())
def test_what_cannot_be_is_refused(message, options):
    asked = {"length": 3, "length_constraint": "exact", "length_from": MARKER, "tokenizer": tokenizer_with_parts()}
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        model_of("character").generate(torch.tensor([[0, 31]]), **asked | options)


def test_what_has_no_effect_is_refused(pipe):
    asked = {"length_from": MARKER}
    with pytest.raises(ValueError, match="length_from='</think>' needs a length, got none; pass length=75"):
        pipe_of(None)("a", **asked)
    with pytest.raises(ValueError, match="length_from='</think>' does not work with a range of lengths"):
        pipe_of("character")("a", length=(3, 5), **asked)
    with pytest.raises(ValueError, match="length_from='</think>' does not work with min_score"):
        pipe_of(None)("a", length=3, length_constraint="max", min_score=-4, **asked)
    with pytest.raises(ValueError, match="length_from='</think>' does not work with an encoder-decoder model"):
        pipe("a", length=3, **asked)
    with pytest.raises(ValueError, match="length_from='</think>' is for causal models, got LenCtrlMarianMTModel"):
        pipe.model.generate(torch.tensor([[5, 0]]), length=3, **asked, tokenizer=pipe.tokenizer)


def test_a_run_trains_and_evaluates_on_lengths_behind_the_marker(tmp_path):
    base = save_in(tmp_path / "base", model_of(None), tokenizer_with_parts())
    rows = [{"prompt": "ab", "completion": "ac</think>bbc"}, {"prompt": "b", "completion": "bc"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--base_model", base, "--train_file", tmp_path / "rows.jsonl", "--length_from", MARKER, "--use_cpu"]
    words += ["--max_steps", 1, "--report_to", "none"]
    options, args = causal.parse([*map(str, words), "--output_dir", str(tmp_path / "run")])
    trainer = causal.make_trainer(options, args, tokenizer_with_parts())
    assert trainer.model.config.trained_lengths == {"1%": 2, "50%": 2, "99%": 3, "max": 3}
    for collate in (trainer.data_collator, trainer.train_collator):
        assert collate([trainer.train_dataset[0]])["length"].tolist() == [3]
    trainer.train()
    with pytest.raises(ValueError, match="length_from='</think>' is for models with a length"):
        causal.parse([*map(str, words), "--output_dir", str(tmp_path / "run"), "--length_encoding", "none"])
