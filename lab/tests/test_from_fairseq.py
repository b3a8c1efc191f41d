"""The converter of the authors' checkpoints: made-up ones against PyTorch's own layers, real ones by golden values."""

import argparse
import json
import math
import shutil
import sys
import types
from collections import OrderedDict
from pathlib import Path

import from_fairseq
import pytest
import torch
from from_fairseq import convert, make_model, make_tokenizer, read_checkpoint
from recipe_runs import run_lenctrl
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer


GOLDEN = Path(__file__).parents[3] / "shared" / "golden"
needs_golden = pytest.mark.skipif(not GOLDEN.is_dir(), reason="shared/golden is not beside the repository")
WIDTH, HEADS, FFN = 16, 2, 24
SOURCE = ["the", "cat", "sat@@", "▁a", "b"]
TARGET = ["@@@@", "a", "b", "c"]
SPECIAL = ["<Lua heritage>", "<pad>", "</s>", "<unk>"]
ARGS = {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "represent_length_by_lrpe": True}
SHORT = {"max_source_positions": 96, "max_target_positions": 96}  # to compute their table takes seconds for 1,024
ARGS |= SHORT | {"represent_length_by_ldpe": False, "ordinary_sinpos": True, "share_all_embeddings": False}


def layers_of_fairseq(side: str, layers: torch.nn.Module, names: dict[str, str]) -> dict[str, torch.Tensor]:
    """The weights of PyTorch's layers under the names that fairseq has for the same parts."""
    state = {}
    for name, value in layers.state_dict().items():
        for own, theirs in names.items():
            name = name.replace(own, theirs)
        state[f"{side}.{name}"] = value
    return state


def make_layers() -> tuple[torch.nn.Module, torch.nn.Module]:
    """Two encoder layers and one decoder layer of PyTorch: post-norm, ReLU."""
    shape = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": FFN, "dropout": 0.0, "batch_first": True}
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(**shape), 2)
    decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(**shape), 1)
    for part in (encoder, decoder):
        for value in part.parameters():
            torch.nn.init.normal_(value, std=0.3)
    return encoder.eval(), decoder.eval()


def make_checkpoint(folder: Path, source: list[str], target: list[str], **changes) -> tuple:
    """A checkpoint with its dictionaries, and PyTorch's layers and tables of embeddings that it was made from."""
    torch.manual_seed(0)
    encoder, decoder = make_layers()
    args = {**ARGS, **changes}
    tables = [torch.randn(len(SPECIAL) + len(symbols), WIDTH) for symbols in (source, target)]
    tables = [tables[0]] * 2 if args["share_all_embeddings"] else tables
    state = {"encoder.version": torch.tensor([2.0]), "decoder.embed_positions_lrpe._float_tensor": torch.zeros(1)}
    state |= {f"{side}.embed_tokens.weight": t for side, t in zip(("encoder", "decoder"), tables, strict=True)}
    names = {"linear": "fc", "norm1": "layer_norms.0", "norm2": "layer_norms.1"}
    state |= layers_of_fairseq("encoder", encoder, names)
    names = {"multihead_attn": "encoder_attn", "linear": "fc", "norm1": "self_attn_layer_norm"}
    names |= {"norm2": "encoder_attn_layer_norm", "norm3": "final_layer_norm"}
    state |= layers_of_fairseq("decoder", decoder, names)
    output = tables[1] if args["share_all_embeddings"] else torch.randn_like(tables[1])
    state |= {} if args["share_all_embeddings"] else {"decoder.embed_out": output}
    for side, symbols in (("source", source), ("target", target)):
        lines = (f"{symbol} {9 - i}\n" for i, symbol in enumerate(symbols))
        (folder / f"dict.{side}.txt").write_text("".join(lines), encoding="utf-8")
    extra = {"epoch": 3, "val_loss": 2.5, **changes.pop("extra_state", {})}
    saved = {"args": argparse.Namespace(**args), "model": OrderedDict(state), "extra_state": extra}
    torch.save(saved, folder / "checkpoint.pt")
    return encoder, decoder, tables, output


def files_in(folder: Path) -> list[Path]:
    return [folder / name for name in ("checkpoint.pt", "dict.source.txt", "dict.target.txt", "model")]


def waves(arguments: list[float], base: float = 10000.0) -> torch.Tensor:
    """The sines and then the cosines of each argument, by the authors' exponent: `(positions, WIDTH)`."""
    angles = [[x / base ** (k / (WIDTH // 2 - 1)) for k in range(WIDTH // 2)] for x in arguments]
    return torch.tensor([[*map(math.sin, row), *map(math.cos, row)] for row in angles])


@torch.no_grad()
def logits_of(parts: tuple, source: list[int], ids: list[int], length: int) -> torch.Tensor:
    """Logits of PyTorch's layers for one text, with LRPE + PE."""
    encoder, decoder, (read, written), output = parts
    scale = math.sqrt(WIDTH)
    states = encoder((scale * read[source] + waves([i + 2 for i in range(len(source))])).unsqueeze(0))
    arguments = [t + 2 for t in range(len(ids))]
    inputs = scale * written[ids] + waves(arguments) + waves(arguments, base=length + 1)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(len(ids))
    return decoder(inputs.unsqueeze(0), states, tgt_mask=mask)[0] @ output.T


@pytest.mark.parametrize("shared", [True, False])
def test_a_converted_folder_has_the_logits_of_its_checkpoint_and_generates(tmp_path, shared, monkeypatch):
    symbols = [*TARGET, *SOURCE[:4]]
    source = symbols if shared else SOURCE
    parts = make_checkpoint(tmp_path, source, symbols if shared else TARGET, share_all_embeddings=shared)
    options = [str(path) for path in files_in(tmp_path)]
    from_fairseq.main(
        [options[0], "--source_dictionary", options[1], "--target_dictionary", options[2], "--output_dir", options[3]]
    )
    model = AutoModelForSeq2SeqLM.from_pretrained(options[3])
    tokenizer = AutoTokenizer.from_pretrained(options[3])
    texts = ["the dog dog ▁a cat", " cat  sat@@"]  # two unknown words stay two
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    ids = [2, 5, 6, 4, 7]  # </s> a b @@@@ c
    with torch.no_grad():
        logits = model(**batch, decoder_input_ids=torch.tensor([ids, ids]), length=[9, 6]).logits
    places = {symbol: i for i, symbol in enumerate([*SPECIAL, *source])}
    for row, text, length in zip(logits, texts, (9, 6), strict=True):
        read = [places.get(word, 3) for word in text.split()] + [2]
        torch.testing.assert_close(row, logits_of(parts, read, ids, length), rtol=0, atol=2e-5)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab c"
    assert model.unit_table.count(torch.tensor([ids])).tolist() == [4] and model.config.length_unit == "character"
    settings = model.generation_config
    assert (settings.num_beams, settings.early_stopping, settings.suppress_tokens) == (5, True, [1])
    (tmp_path / "in.txt").write_text("\n".join(texts), encoding="utf-8")
    out = tmp_path / "out.jsonl"
    how = ["--length", "6", "--length_constraint", "max", "--output_file", str(out)]
    run_lenctrl(["generate", "--model", options[3], "--input_file", str(tmp_path / "in.txt"), *how], monkeypatch)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["source"] for row in rows] == texts
    assert all(row["length"] == len(row["output"]) <= 6 and "@" not in row["output"] for row in rows)


def test_words_are_written_with_spaces_and_counted_as_tokens(tmp_path):
    make_checkpoint(tmp_path, SOURCE, ["a", "small", "cat"])
    model = convert(*files_in(tmp_path))
    assert model.config.length_unit == "token" and model.unit_table.count(torch.tensor([[2, 5, 3, 6, 2]])) == 3
    # the ids of the target come first, then the entries that the source has besides
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.decode([5, 6], skip_special_tokens=True) == "small cat"
    assert tokenizer("the cat")["input_ids"] == [7, 6, 2]


class RunsCode:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return shutil.copyfile, (__file__, str(self.path))


class Other:
    pass


@pytest.mark.parametrize("held, named", [(RunsCode, "copyfile"), (Other, "Other")])
def test_a_checkpoint_that_holds_another_class_is_refused_and_runs_nothing(tmp_path, held, named):
    copied = tmp_path / "copied"
    make_checkpoint(tmp_path, SOURCE, TARGET, extra_state={"held": held(copied) if held is RunsCode else held()})
    with pytest.raises(ValueError, match=rf"must hold tensors, plain values and .*holds \S*{named}.*save these two"):
        read_checkpoint(tmp_path / "checkpoint.pt")
    assert not copied.exists()
    (tmp_path / "text.pt").write_text("no checkpoint")
    with pytest.raises(ValueError, match="cannot be read safely"):
        read_checkpoint(tmp_path / "text.pt")
    torch.save({"weight": torch.zeros(1)}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="a dict with 'args' and 'model'"):
        read_checkpoint(tmp_path / "weights.pt")


@pytest.mark.parametrize("legacy", [False, True])
def test_the_meters_of_a_training_run_are_read_without_fairseq(tmp_path, legacy, monkeypatch):
    module = types.ModuleType("fairseq.meters")
    module.AverageMeter = type("AverageMeter", (), {"__module__": "fairseq.meters", "__qualname__": "AverageMeter"})
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "fairseq", types.ModuleType("fairseq"))
        context.setitem(sys.modules, "fairseq.meters", module)
        meter = module.AverageMeter()
        meter.avg = 2.5
        state = {"args": argparse.Namespace(arch="t"), "model": {"a": torch.ones(2)}, "extra_state": {"m": meter}}
        # PyTorch 0.4, with which the authors trained, has the older form
        torch.save(state, tmp_path / "checkpoint.pt", _use_new_zipfile_serialization=not legacy)
    weights, args = read_checkpoint(tmp_path / "checkpoint.pt")
    assert weights["a"].tolist() == [1, 1] and args == {"arch": "t"}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"decoder_normalize_before": True}, "without decoder_normalize_before can be converted, got True"),
        ({"encoder_learned_pos": True}, "without encoder_learned_pos"),
        ({"represent_length_by_ldpe": True}, "got ldpe and lrpe"),
        ({"represent_length_by_lrpe": False, "ordinary_sinpos": False}, "got none of them"),
        ({"share_all_embeddings": True}, "one dictionary, got two that differ"),
    ],
)
def test_another_network_is_refused(tmp_path, changes, message):
    make_checkpoint(tmp_path, SOURCE, ["a", "small", "cat", "sat", "b"], **changes)
    with pytest.raises(ValueError, match=message):
        convert(*files_in(tmp_path))
    assert not (tmp_path / "model").exists()


def test_weights_without_a_place_and_those_that_are_missing_are_named(tmp_path):
    make_checkpoint(tmp_path, SOURCE, TARGET)
    state, args = read_checkpoint(tmp_path / "checkpoint.pt")
    state["decoder.project_in_dim.weight"] = state.pop("decoder.layers.0.fc2.bias")
    with pytest.raises(ValueError, match=r"lacks .*decoder\.layers\.0\.fc2\.bias.* has .*project_in_dim"):
        make_model(state, args, shared=False)


@pytest.mark.parametrize(
    "text, message",
    [
        ("a 3\n", "decoder's dictionary has 5 entries, but its embeddings have 8 rows"),
        ("a 3\nb\n", r"an entry, a space and its count, got 'b\\n' in line 2 of .*dict\.target\.txt"),
        ("a 3\nb 2\na 1\nc 1\n", "must hold every entry once"),
    ],
)
def test_another_dictionary_is_refused(tmp_path, text, message):
    make_checkpoint(tmp_path, SOURCE, TARGET)
    (tmp_path / "dict.target.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        convert(*files_in(tmp_path))


def golden(name: str) -> tuple:
    """Arrays, facts, and the state of the model of a golden file."""
    numpy = pytest.importorskip("numpy")
    arrays = {key: torch.from_numpy(value) for key, value in numpy.load(GOLDEN / f"{name}.npz").items()}
    facts = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return arrays, facts, {key[8:]: value for key, value in arrays.items() if key.startswith("weights/")}


def right_padded(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """The authors' sources, which are padded on the left, as ours are."""
    texts = [row[row != 1] for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=1)
    return {"input_ids": ids, "attention_mask": (ids != 1).long()}


@needs_golden
@pytest.mark.parametrize("name", ["ldpe", "lrpe_pe"])
def test_trained_models_give_the_authors_logits_and_texts(name):
    arrays, facts, state = golden(f"reference_trained_{name}")
    tokenizer = make_tokenizer(facts["symbols"])
    model = make_model(state, facts["args"] | SHORT, shared=True, length_unit="character")
    model.set_unit_table(tokenizer)
    source, ids = right_padded(arrays["test6/src_tokens"]), arrays["test6/prev_output_tokens"]
    with torch.no_grad():
        logits = model(**source, decoder_input_ids=ids, length=arrays["test6/target_length"] - 1).logits
    # not their teacher-forced logits, which have another row's padding
    expected = arrays["test6/logits_incremental_first256"]  # (6, T, 256); T is where their LDPE raises
    known = (ids != 1)[:, : expected.shape[1]]
    difference = (logits[:, : expected.shape[1], :256] - expected).abs()
    assert float(difference[known].max()) < 1e-5
    first = arrays["test6/logits_full_row0_all_vocab"]  # (85, 1992)
    assert float((logits[0] - first).abs()[ids[0] != 1].max()) < 1e-5
    for length in (20, 40, 60):
        expected = facts["decoded"][str(length)]
        texts = tokenizer.batch_decode(
            model.generate(**source, length=length, num_return_sequences=5), skip_special_tokens=True
        )
        assert texts[::5] == [best for best, *_ in expected]
        if name == "ldpe":  # fairseq keeps the first five that end, transformers the best of those; here they agree
            assert texts == [text for texts in expected for text in texts]


FLAGS = {"represent_length_by_lrpe": "lrpe", "represent_length_by_ldpe": "ldpe", "ordinary_sinpos": "pe"}


@needs_golden
@pytest.mark.parametrize("batch", ["row0_longest", "row0_short"])
@pytest.mark.parametrize("variant", ["pe", "lrpe", "ldpe", "lrpe_pe", "ldpe_pe"])
def test_every_variant_gives_the_authors_logits_and_beams(variant, batch):
    arrays, facts, state = golden("reference_random_model")
    args = SHORT | {flag: name in variant.split("_") for flag, name in FLAGS.items()}
    args |= {"encoder_attention_heads": facts["heads"], "decoder_attention_heads": facts["heads"]}
    model = make_model(state, args, shared=True)
    names = ("src_tokens", "prev_output_tokens", "target_length", "logits_incremental")
    rows, ids, lengths, expected = (arrays[f"{variant}/{batch}/{name}"] for name in names)
    kept = lengths > 1  # one text is empty
    source, ids = right_padded(rows[kept]), ids[kept]
    length = {} if variant == "pe" else {"length": lengths[kept] - 1}
    with torch.no_grad():
        logits = model(**source, decoder_input_ids=ids, **length).logits
    steps = expected.shape[1]  # fewer where their LDPE raises
    difference = (logits[:, :steps] - expected[kept]).abs()[(ids != 1)[:, :steps]]
    assert float(difference.max()) < 1e-5
    model.generation_config.forced_eos_token_id = None
    for length in (8, 12):
        most = length + 3  # with EOS, by which their search ends every hypothesis at its own score

        def only_eos_at_the_end(ids, scores, most=most):
            return scores.where(torch.arange(scores.shape[1]) == 2, -math.inf) if ids.shape[1] == most else scores

        asked = {} if variant == "pe" else {"length": length}
        options = {"num_return_sequences": 5, "output_scores": True, "return_dict_in_generate": True}
        options |= {"max_new_tokens": most, "logits_processor": [only_eos_at_the_end]}
        found = model.generate(**source, **asked, **options)
        beams = arrays[f"{variant}/{batch}/beam5_len{length}/tokens"][kept].long()  # (B, 5, most)
        assert torch.equal(found.sequences[:, 1:].view_as(beams), beams)
        scores = arrays[f"{variant}/{batch}/beam5_len{length}/scores"][kept].float()
        torch.testing.assert_close(found.sequences_scores.view_as(scores), scores, rtol=0, atol=1e-5)
