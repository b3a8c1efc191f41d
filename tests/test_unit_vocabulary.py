"""What each vocabulary entry writes, for every kind of tokenizer: counts of ids held against the decoded text."""

import copy
import json
import random
from types import SimpleNamespace

import pytest
import sentencepiece
import torch
from conftest import TARGETS
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_length_units import UNITS, decode, pieces_of, progress
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import M2M100Tokenizer, MarianTokenizer, PreTrainedTokenizerFast

from hf_lenctrl import LengthConstraintLogitsProcessor, UnitTable, count_units


# Every kind of tokenizer: counts against decoded text
KINDS = ["bart", "bert", "byte fallback", "m2m_100", "marian", "mbart", "nllb", "pegasus", "t5"]


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tokenizers_of_every_kind):
    """A tokenizer with its tables and the ids that its tests draw from."""
    tokenizer = tokenizers_of_every_kind[request.param]
    special = sorted(set(tokenizer.all_special_ids))
    vocabulary = {piece: i for piece, i in tokenizer.get_vocab().items() if i not in special}
    return SimpleNamespace(
        name=request.param,
        tokenizer=tokenizer,
        tables={unit: UnitTable.from_tokenizer(tokenizer, unit) for unit in UNITS},
        special=special,
        vocabulary=vocabulary,
        blank=[i for piece, i in vocabulary.items() if piece.startswith("▁")] or list(vocabulary.values()),
        # Marian and M2M100 strip white space that ends a text, the tables count it: rows end on one of these
        dark=[i for piece, i in vocabulary.items() if not piece.replace("▁", " ")[-1:].isspace()],
        strips=request.param in ("m2m_100", "marian"),
    )


def assert_counts_the_decoded_text(kind, ids: list[int]) -> str:
    text = decode(kind.tokenizer, ids)
    counted = {unit: int(table.count(torch.tensor([ids]))) for unit, table in kind.tables.items()}
    assert counted == {unit: count_units(text, unit) for unit in kind.tables}, (ids, text)
    return text


SPACES = [*" \n\t\xa0\u1680\u2003\u2009\u2028\u2029\u3000\x1c\x1d\x1e\x1f\x85", "  ", " \u3000"]
LETTERS = [*"日本語〃ïé😀של\u200b", "e\u0301", "a\u0308", "👍🏽", "👨\u200d👩\u200d👧"]
multilingual = st.one_of(
    st.lists(st.sampled_from([*"abcdelmst.,'▁", *LETTERS, *SPACES]), max_size=20).map("".join),
    st.lists(st.sampled_from([*TARGETS, *LETTERS, *SPACES]), max_size=6).map(" ".join),
    st.text(max_size=10),
)
seeds = st.integers(0, 2**32 - 1)


def with_special_tokens(kind, ids: list[int], draw: random.Random, share: float) -> list[int]:
    """The row with special tokens sprinkled in, in runs as well."""
    row: list[int] = []
    for i in ids:
        while draw.random() < share:
            row.append(draw.choice(kind.special))
        row.append(i)
    return row


def pieces_for(kind, text: str, draw: random.Random, longest: int) -> list[int]:
    """Any split of a text into the pieces of a vocabulary that holds all bytes, none with more than `longest`."""
    ids = []
    if kind.name == "bart":
        rest = "".join(pieces_of(text))
        while rest:
            fitting = [n for n in range(1, longest + 1) if rest[:n] in kind.vocabulary]
            size = draw.choice(fitting)
            ids.append(kind.vocabulary[rest[:size]])
            rest = rest[size:]
        return ids
    for character in text.replace(" ", "▁"):
        if longest > 1 and character in kind.vocabulary and draw.random() < 0.5:
            ids.append(kind.vocabulary[character])
        else:
            ids += [kind.vocabulary[f"<0x{byte:02X}>"] for byte in character.replace("▁", " ").encode("utf-8")]
    return ids


@settings(deadline=None, max_examples=80)
@given(text=multilingual)
@example(text="日本語の文字 e\u0301a\u0308\u0323 👨\u200d👩\u200d👧👍🏽 שלום")
@example(text=" \u3000\xa0\xad\x00\x7f\x85\U0010ffff\x1c\u1680a\u2028 b")
@example(text="  small text editor,\n\nnaïve  café")
@example(text="")
def test_the_ids_of_a_text_count_what_they_decode_to(kind, text):
    ids = kind.tokenizer(text + "." if kind.strips else text)["input_ids"]
    decoded = assert_counts_the_decoded_text(kind, [*ids, kind.tokenizer.pad_token_id])
    if kind.name == "bart" and "<" not in text:
        assert decoded == text  # so the counts are those of the text


@settings(deadline=None, max_examples=80)
@given(text=multilingual, seed=seeds, size=st.integers(1, 12), share=st.sampled_from([0.0, 0.2, 0.6]))
def test_random_ids_count_what_they_decode_to(kind, text, seed, size, share):
    draw = random.Random(seed)
    if kind.name in ("bart", "byte fallback"):  # whole characters, cut anywhere
        ids = pieces_for(kind, text, draw, longest=size)
    else:
        every = list(kind.vocabulary.values())
        ids = [draw.choice(kind.blank if draw.random() < 0.3 else every) for _ in range(size)]
        ids.append(draw.choice(kind.dark))
    assert_counts_the_decoded_text(kind, [*with_special_tokens(kind, ids, draw, share), kind.special[0]])


def run_one_by_one(table: UnitTable, ids: list[int]) -> tuple[list[int], list[int]]:
    """States and units after each entry, by the rule that the table's docstring states."""
    weights, following = table.weights.tolist(), table.next_state.tolist()
    state = units = 0
    states, progress = [], []
    for i in ids:
        weight = weights[state][i]
        units += weight if weight >= 0 else -weight - 1
        state = following[state][i]
        states.append(state)
        progress.append(units)
    return states, progress


@settings(deadline=None, max_examples=50)
@given(seed=seeds, special=st.sampled_from([0.0, 0.3, 0.8]), text=st.lists(multilingual, max_size=4).map("".join))
def test_long_rows_count_as_the_machine_run_one_entry_at_a_time(kind, seed, special, text):
    draw = random.Random(seed)
    every = list(kind.vocabulary.values())
    ids = [draw.choice(kind.special if draw.random() < special else every) for _ in range(60)]
    rows = [ids]
    if kind.name in ("bart", "byte fallback"):  # rows without a broken character, too
        row = with_special_tokens(kind, pieces_for(kind, text, draw, longest=draw.choice([1, 3])), draw, special)
        rows.append([*row, *[kind.special[0]] * 60][:60])
    for table in kind.tables.values():
        expected = [run_one_by_one(table, row) for row in rows]
        batch = torch.tensor(rows)
        assert table.states_after(batch).tolist() == [states for states, _ in expected]
        assert table.progress(batch).tolist() == [progress for _, progress in expected]
        count, state = table.count_and_state(batch)
        assert count.tolist() == [progress[-1] for _, progress in expected]
        assert state.tolist() == [states[-1] for states, _ in expected]


# What decoding skips, and single bytes
SPECIAL_AND_PLAIN = [("<S>", True), ("<T U>", True), ("<N>", False), ("é", False), ("Ġq", False), ("\n", False)]


@pytest.mark.parametrize("name", KINDS)
def test_what_decoding_skips_weighs_nothing(tokenizers_of_every_kind, name):
    """An `AddedToken(special=True)` is in no `all_special_ids`, and yet fast tokenizers skip it."""
    tokenizer = copy.deepcopy(tokenizers_of_every_kind[name])
    tokenizer.add_tokens([AddedToken(text, special=special) for text, special in SPECIAL_AND_PLAIN])
    added = [tokenizer.convert_tokens_to_ids(text) for text, _ in SPECIAL_AND_PLAIN]
    tables = {unit: UnitTable.from_tokenizer(tokenizer, unit) for unit in UNITS}
    draw = random.Random(0)
    every = list(range(len(tokenizer)))
    checked = 0
    for row in range(300):
        ids = [draw.choice(added if draw.random() < 0.4 else every) for _ in range(row % 7)] + [added[2]]
        text = decode(tokenizer, ids)
        if "\ufffd" in text:
            continue  # bytes that are no text: only the ids know them
        for unit, table in tables.items():
            if (table.weights[0, ids] >= 0).all() and table.weights[1:2, ids].ge(0).all():
                assert int(table.count(torch.tensor([ids]))) == count_units(text, unit), (unit, ids, text)
                checked += 1
    assert checked > 150


@pytest.fixture(scope="module", params=["marian", "m2m_100"])
def stripping_byte_fallback(request, tmp_path_factory):
    """SentencePiece whose unknown characters are bytes, in the two tokenizers that call it from Python."""
    folder = tmp_path_factory.mktemp("fallback")
    (folder / "text.txt").write_text("\n".join(TARGETS * 9), encoding="utf-8")
    options = {"vocab_size": 300, "byte_fallback": True, "hard_vocab_limit": False, "minloglevel": 2}
    options |= {"input": str(folder / "text.txt"), "model_prefix": str(folder / "source")}
    sentencepiece.SentencePieceTrainer.train(**options)
    spm = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.model"))
    special = ["</s>", "<unk>", "<pad>"] if request.param == "marian" else ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = special + [spm.id_to_piece(i) for i in range(3, len(spm))]
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), encoding="utf-8")
    model = str(folder / "source.model")
    if request.param == "marian":
        return MarianTokenizer(model, model, str(vocabulary), clean_up_tokenization_spaces=False)
    return M2M100Tokenizer(str(vocabulary), model)


def test_a_byte_piece_is_the_character_it_decodes_to(stripping_byte_fallback):
    tokenizer = stripping_byte_fallback
    texts = ["a\x0bb", "a\tb", "x\x0b\x0by", "日\x0b本", "a\x1cb", "~{}~", "é"]
    tables = {unit: UnitTable.from_tokenizer(tokenizer, unit) for unit in (*UNITS, "width")}
    kind, vocabulary = SimpleNamespace(tokenizer=tokenizer, tables=tables), tokenizer.get_vocab()
    for text in texts:
        ids = [vocabulary[f"<0x{byte:02X}>"] for byte in text.encode("utf-8")]
        assert assert_counts_the_decoded_text(kind, ids) == text
    ids = [vocabulary[f"<0x{byte:02X}>"] for byte in b"\x0ba\x0ba"]
    assert progress(tokenizer, ids) == [0, 1, 2, 3]


def test_a_control_piece_of_sentencepiece_weighs_nothing(tmp_path):
    """Whoever makes `vocab.json` of all pieces of a SentencePiece model has its `<s>`, which Marian does not name."""
    (tmp_path / "text.txt").write_text("\n".join(TARGETS * 9), encoding="utf-8")
    files = {"input": str(tmp_path / "text.txt"), "model_prefix": str(tmp_path / "source")}
    sentencepiece.SentencePieceTrainer.train(**files, vocab_size=60, hard_vocab_limit=False, minloglevel=2)
    model = str(tmp_path / "source.model")
    spm = sentencepiece.SentencePieceProcessor(model_file=model)
    pieces = [*map(spm.id_to_piece, range(len(spm))), "<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps({p: i for i, p in enumerate(pieces)}), encoding="utf-8")
    tokenizer = MarianTokenizer(model, model, str(tmp_path / "vocab.json"), clean_up_tokenization_spaces=False)
    s, a = tokenizer.convert_tokens_to_ids(["<s>", "a"])
    assert s not in tokenizer.all_special_ids and tokenizer.decode([a, s, a]) == "aa"
    assert progress(tokenizer, [s, a, s, a, a]) == [0, 1, 1, 2, 3]
    assert progress(tokenizer, [s, a, s, a, a], "token") == [0, 1, 1, 2, 3]


def test_a_tokenizer_without_a_decoder_counts_tokens_only():
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    with pytest.raises(ValueError, match="has no decoder, so only tokens can be counted"):
        UnitTable.from_tokenizer(tokenizer, "character")
    assert progress(tokenizer, [1, 0, 1], "token") == [1, 2, 3]


def test_ids_may_have_gaps():
    """A `vocab.txt` with a line twice has a gap, and `len(tokenizer)` is then below the highest id."""
    words = Tokenizer(models.WordPiece({"<unk>": 0, "a": 1, "</s>": 2, "##b": 9}, unk_token="<unk>"))
    words.decoder = decoders.WordPiece()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="</s>")
    assert progress(tokenizer, [5, 1, 9, 5, 9]) == [0, 1, 2, 2, 3]  # decoding skips id 5
    assert progress(tokenizer, [5, 9], "token") == [0, 1]
    table = UnitTable.from_tokenizer(tokenizer, "character")
    scores = LengthConstraintLogitsProcessor(table, 2, "max", eos_token_id=2)(torch.tensor([[1]]), torch.zeros(1, 10))
    assert (scores[0] == 0).nonzero().squeeze(1).tolist() == [2, 9]


@pytest.mark.parametrize("unit", ["character", "byte"])
def test_a_tokenizer_that_changes_text_across_pieces_is_refused(unit):
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    words.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    message = rf"^{unit}s of \w+ cannot be counted piece by piece: \[.*\] decodes to '[abc]+', \d+ {unit}s, not \d+; "
    with pytest.raises(ValueError, match=message + "use length_unit='token'$"):
        UnitTable.from_tokenizer(tokenizer, unit)
