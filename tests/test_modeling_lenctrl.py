"""Forward and training of the length-controlled models, held against the untouched Hugging Face classes."""

import inspect
import math

import pytest
import torch
import transformers
from conftest import FAMILIES, MARIAN, RELATIVE, SHAPE, build_model, build_model_of, in_names_of

from hf_lenctrl.cache import CACHE


STOCK = {name: getattr(transformers, head.__name__.removeprefix("LenCtrl")) for name, head in FAMILIES.items()}
ENCODINGS = ["ldpe", "lrpe", "pre"]

SOURCE = torch.tensor([[11, 12, 13, 14, 15], [21, 22, 23, 24, 25]])
# <s> is BART's forced BOS, which like every special token counts zero; the others have none.
DECODER_IDS = {
    **dict.fromkeys(("marian", "mbart", "m2m_100"), torch.tensor([[2, 30, 31, 32, 33], [2, 40, 41, 42, 43]])),
    **dict.fromkeys(("pegasus", *RELATIVE), torch.tensor([[0, 30, 31, 32, 33], [0, 40, 41, 42, 43]])),
    "bart": torch.tensor([[2, 0, 31, 32, 33], [2, 0, 41, 42, 43]]),
}
PROGRESS = {family: [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]] for family in DECODER_IDS}
PROGRESS["bart"] = [[0, 0, 1, 2, 3], [0, 0, 1, 2, 3]]
EOS = {"bart": 2, "marian": 0, "mbart": 2, "pegasus": 1, "m2m_100": 2, **dict.fromkeys(RELATIVE, 1)}
TABLE = [f"decoder.unit_table.{name}" for name in ("weights", "next_state", "unit_code")]


def stock_twin(family, model, **fields):
    """The Hugging Face model of the same shape and weights; also the weights that only one of the two has."""
    base = {**SHAPE, **MARIAN, "scale_embedding": True} if family == "marian" else SHAPE
    if family in ("mbart", "m2m_100"):
        base = {**SHAPE, "decoder_start_token_id": 2}
    fields = in_names_of(family, **{**base, **fields})
    stock = STOCK[family](STOCK[family].config_class(**fields)).eval()
    missing, unexpected = stock.load_state_dict(model.state_dict(), strict=False)
    return stock, missing, unexpected


def paper_encoding(name, progress, length, dim):
    """Takase & Okazaki 2019, eq. 3-6, and Botcazou et al. 2026, entry by entry in float64."""

    def angle(p, wanted, i):
        if name == "ldpe":
            return (wanted - p) / 10000 ** (2 * i / dim)
        if name == "lrpe":
            return p / wanted ** (2 * i / dim)
        return min(p / wanted, 1) * i

    return torch.tensor(
        [
            [[(math.cos if j % 2 else math.sin)(angle(p, wanted, j // 2)) for j in range(dim)] for p in row]
            for row, wanted in zip(progress, length, strict=True)
        ],
        dtype=torch.float64,
    )


def paper_logits(family, model, encoding, length, **fields):
    """Logits of the stock model, whose decoder is handed scaled embeddings + encoding in place of token ids."""
    stock, _, _ = stock_twin(family, model, **fields)
    decoder = stock.get_decoder()
    if not model.config.absolute_positions:
        for positions in (*decoder.embed_positions.parameters(), *decoder.embed_positions.buffers()):
            torch.nn.init.zeros_(positions)
    scale = math.sqrt(model.config.d_model) if getattr(model.config, "scale_embedding", False) else 1.0
    embeds = decoder.embed_tokens.weight[DECODER_IDS[family]].double() * scale
    embeds = embeds + paper_encoding(encoding, PROGRESS[family], length, model.config.d_model)
    if family in ("marian", "pegasus"):
        embeds = embeds / scale  # the stock decoder scales what it is given
    return stock(SOURCE, decoder_inputs_embeds=embeds.float()).logits


def logits(model, length=None, **kwargs):
    decoder_ids = DECODER_IDS[model.config.model_type.removeprefix("lenctrl_")]
    return model(SOURCE, decoder_input_ids=decoder_ids, length=length, **kwargs).logits


# T5's positions are relative and stay, and it scales no embeddings
SCALED = [(family, scale) for family in FAMILIES for scale in (True, False) if scale or family not in RELATIVE]
POSITIONED = [(family, on) for family in FAMILIES for on in (True, False) if on or family not in RELATIVE]


@pytest.mark.parametrize(("any_family", "scale_embedding"), SCALED)
def test_without_encoding_loss_logits_and_states_are_those_of_the_stock_model(any_family, scale_embedding):
    fields = {"scale_embedding": scale_embedding, "attn_implementation": "eager"}
    model = build_model_of(any_family, length_encoding="none", absolute_positions=True, **fields)
    stock, missing, unexpected = stock_twin(any_family, model, **fields)
    assert (missing, [name.removeprefix("model.") for name in unexpected]) == ([], TABLE)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    labels = torch.tensor([[31, 32, 33, EOS[any_family]], [41, EOS[any_family], -100, -100]])
    recorded = {"output_hidden_states": True, "output_attentions": True}
    ours, theirs = (m(SOURCE, attention_mask=mask, labels=labels, **recorded) for m in (model, stock))
    assert torch.equal(ours.loss, theirs.loss)
    assert torch.equal(ours.logits, theirs.logits)
    states = ("decoder_hidden_states", "encoder_hidden_states")
    for name in (*states, "decoder_attentions", "encoder_attentions", "cross_attentions"):
        assert len(ours[name]) == len(theirs[name]) == (3 if name in states else 2)
        assert all(map(torch.equal, ours[name], theirs[name]))


def test_without_encoding_generated_ids_are_those_of_the_stock_model(any_family):
    fields = {"scale_embedding": True, "init_std": 0.2, "tie_word_embeddings": False}
    model = build_model_of(any_family, length_encoding="none", absolute_positions=True, **fields)
    stock, _, _ = stock_twin(any_family, model, **fields)
    outputs = []
    for generator in (model, stock):
        torch.manual_seed(1)  # drawn alike, as greedy outputs of random weights tend to repeat one entry
        outputs.append(generator.generate(SOURCE, num_beams=4, do_sample=True, temperature=4.0, max_new_tokens=12))
    assert torch.equal(*outputs)
    assert not torch.equal(outputs[0][0], outputs[0][1])


@pytest.mark.parametrize(("any_family", "absolute_positions"), POSITIONED)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_logits_follow_the_papers_equations(any_family, encoding, absolute_positions):
    fields = {"scale_embedding": absolute_positions}  # one with each
    told = {"length_encoding": encoding, "absolute_positions": absolute_positions}
    model = build_model_of(any_family, **told, init_std=0.2, **fields)
    expected = paper_logits(any_family, model, encoding, [3, 17], **fields)
    torch.testing.assert_close(logits(model, [3, 17]), expected, atol=2e-5, rtol=1e-5)
    assert not torch.allclose(logits(model, [4, 17])[0], expected[0], atol=1e-3)


def test_forward_takes_every_argument_of_the_stock_forward_and_length(any_family):
    # Trainer drops dataset columns and `generate` refuses arguments that the signature does not name
    ours = inspect.signature(build_model_of(any_family).forward).parameters
    theirs = inspect.signature(STOCK[any_family].forward).parameters
    names = [name for name in theirs if name not in ("self", "return_dict", "kwargs")]
    own = [CACHE if name == "cache" else name for name in ours]
    assert own[: len(names)] == names  # same order, so positional calls mean the same
    assert {"kwargs", "length"} <= set(ours)


def test_base_model_gives_the_hidden_states_under_the_heads_logits(any_family):
    model = build_model_of(any_family)
    if any_family in RELATIVE:  # its head is no wrapper of a base model
        base = FAMILIES[any_family].model_class(model.config).eval()
        assert not base.load_state_dict(model.state_dict(), strict=False).missing_keys
    else:
        base = model.model
    hidden = base(SOURCE, decoder_input_ids=DECODER_IDS[any_family], length=[3, 5]).last_hidden_state
    if getattr(model.config, "scale_decoder_outputs", any_family == "umt5"):
        hidden = hidden * 32**-0.5  # as the head does
    bias = getattr(model, "final_logits_bias", 0)  # M2M100 has none
    assert torch.equal(model.lm_head(hidden) + bias, logits(model, [3, 5]))


def test_embeddings_are_tied_as_in_the_stock_model(any_family):
    model = build_model_of(any_family)
    inner = getattr(model, "model", model)  # T5's head has no model under it
    assert model.lm_head.weight is inner.shared.weight
    base = FAMILIES[any_family].model_class(model.config)  # without a head, which would tie them too
    for part in (inner, base):
        for side in (part.encoder, part.decoder):
            assert side.embed_tokens.weight is part.shared.weight


def test_explicit_length_beats_labels_and_labels_beat_the_default(family):
    model, without = build_model(family, length=7), build_model(family)
    labels = torch.tensor([[31, 32, 33, 34], [41, 42, 43, 44]])

    def wanted(length):
        return without(SOURCE, labels=labels, length=length).logits

    assert not torch.allclose(wanted(4), wanted(7), atol=1e-4)
    assert torch.equal(model(SOURCE, labels=labels).logits, wanted(4))
    assert torch.equal(model(SOURCE, labels=labels, length=9).logits, wanted(9))
    assert torch.equal(logits(model), logits(without, 7))
    assert torch.equal(logits(model, 9), logits(without, 9))


def test_encoder_takes_no_notice_of_length(family):
    encoder = build_model(family).get_encoder()
    plain = encoder(SOURCE).last_hidden_state
    passed_on: set[str] = set()
    for layer in encoder.layers:  # some attention functions refuse arguments that they do not know
        layer.self_attn.register_forward_pre_hook(lambda *call: passed_on.update(call[-1]), with_kwargs=True)
    assert torch.equal(encoder(SOURCE, length=5, progress=torch.zeros(2, 5)).last_hidden_state, plain)
    assert passed_on and not passed_on & {"length", "progress"}


def test_a_row_gets_in_a_padded_batch_what_it_gets_alone_at_the_length_of_its_labels(any_family):
    model = build_model_of(any_family, length_encoding="lrpe", absolute_positions=any_family in RELATIVE, init_std=0.2)
    eos, pad = EOS[any_family], model.config.pad_token_id
    sources = [[11, 12, 13, 14, 15], [21, 22], [16, 17, 18]]
    targets = [[31, eos], [41, 42, 43, 44, 45, 46, eos], [51, 52, 53, eos]]
    source = torch.tensor([row + [pad] * (5 - len(row)) for row in sources])
    mask = torch.tensor([[1] * len(row) + [0] * (5 - len(row)) for row in sources])
    labels = torch.tensor([row + [-100] * (7 - len(row)) for row in targets])
    assert model.count_labels(labels).tolist() == [1, 6, 3]
    batch = model(source, attention_mask=mask, labels=labels)
    losses = []
    for i, target in enumerate(targets):
        alone = model(torch.tensor([sources[i]]), labels=torch.tensor([target]), length=len(target) - 1)  # without EOS
        torch.testing.assert_close(batch.logits[i, : len(target)], alone.logits[0], atol=1e-5, rtol=0)
        losses.append(alone.loss * len(target))
    torch.testing.assert_close(batch.loss, sum(losses) / 13, atol=1e-5, rtol=0)  # 2 + 7 + 4 labels


def test_gradient_checkpointing_changes_neither_loss_nor_gradients(family):
    labels = torch.tensor([[31, 32, 33, EOS[family]], [41, EOS[family], -100, -100]])
    losses, gradients = [], []
    for checkpointing in (False, True):
        model = build_model(family, length_encoding="lrpe", dropout=0.0).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
            assert model.model.decoder.gradient_checkpointing
        loss = model(SOURCE, labels=labels).loss
        loss.backward()
        losses.append(loss)
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert torch.equal(*losses)
    torch.testing.assert_close(*gradients, atol=1e-7, rtol=1e-5)
    for token in (31, 11):  # that only the decoder reads, and only the encoder
        assert gradients[0]["model.shared.weight"][token].abs().sum() > 0


def test_a_cached_step_without_progress_is_refused(family):
    model = build_model(family)
    cache = model(SOURCE, decoder_input_ids=DECODER_IDS[family], length=5, use_cache=True).past_key_values
    with pytest.raises(ValueError, match=r"progress cannot be counted from the last token.*generate\(\)"):
        model(SOURCE, decoder_input_ids=torch.tensor([[7], [8]]), length=5, past_key_values=cache)


def test_generate_continues_a_cache_only_with_all_ids_of_the_decoder(family):
    model, whole, options = build_model(family), DECODER_IDS[family], {"length": 9, "max_new_tokens": 4}
    expected = model.generate(SOURCE, decoder_input_ids=whole, **options)

    def continued(columns: int, **mask) -> torch.Tensor:
        cache = model(SOURCE, decoder_input_ids=whole[:, :-1], length=9, use_cache=True).past_key_values
        return model.generate(SOURCE, decoder_input_ids=whole[:, -columns:], past_key_values=cache, **options, **mask)

    columns = whole.shape[1]
    assert torch.equal(continued(columns, decoder_attention_mask=torch.ones_like(whole)), expected)
    for later in (1, columns):  # without the mask, transformers reads all ids behind the cached ones
        with pytest.raises(ValueError, match=f"progress cannot be counted from {later} later decoder ids of a cached"):
            continued(later)


def test_decoder_embeddings_with_progress_do_as_ids_do(family):
    model = build_model(family)
    embeds = model.model.decoder.embed_tokens(DECODER_IDS[family])
    out = model(SOURCE, decoder_inputs_embeds=embeds, progress=torch.tensor(PROGRESS[family]), length=5)
    assert torch.equal(out.logits, logits(model, 5))


FORWARD = {"decoder_input_ids": torch.tensor([[2, 31], [2, 32]])}
PLAIN = {"length_encoding": "none", "absolute_positions": True}
CHARACTERS = {"length_unit": "character"}
NO_LENGTH = r"no length was given; pass it to the call \(length=75\), or a default to from_pretrained"
NO_UNITS = r"no table of units.*set_unit_table\(tokenizer\)"


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        # a default must not stand in for a bad length; all wrong lengths are in test_lengths.py
        ({"length": 8}, {"length": 0, **FORWARD}, "length must be at least 1"),
        ({"length": 8}, {"length": "5"}, r"got '5' \(str\)"),
        ({}, FORWARD, NO_LENGTH),
        ({}, {}, NO_LENGTH),
        (PLAIN, {"length": 5, **FORWARD}, "length was given to a model with length_encoding='none'"),
        (PLAIN, {"length": 5}, "length was given to a model with length_encoding='none'"),
        ({}, {"labels": torch.tensor([[31, 32], [0, -100]])}, r"at least one token, got \[2, 0\]; drop the rows"),
        (CHARACTERS, {"labels": torch.tensor([[31], [41]])}, NO_UNITS),
        (CHARACTERS, {"length": 5, **FORWARD}, NO_UNITS),
        (CHARACTERS, {"length": 5}, NO_UNITS),
        ({}, {"decoder_inputs_embeds": torch.zeros(2, 3, 32), "length": 5}, "progress cannot be counted from"),
    ],
)
def test_a_wrong_call_is_told(fields, options, message):
    model = build_model("bart", **fields)
    # without labels, ids or embeddings of the decoder: of `generate`
    call = model if options.keys() - {"length"} else model.generate
    with pytest.raises((TypeError, ValueError), match=message):
        call(SOURCE, **options)


@pytest.mark.parametrize("missing", [-1, 512])
def test_tokenizer_of_another_vocabulary_is_refused(shared_tokenizer, missing):
    entries = len(shared_tokenizer)
    model = build_model("bart", **MARIAN, vocab_size=entries + missing, length_unit="character")
    with pytest.raises(ValueError, match=rf"has {entries} entries, the decoder's embedding {entries + missing}"):
        model.set_unit_table(shared_tokenizer)
    with pytest.raises(ValueError, match="no table of units"):  # and nothing was filled on the way
        model(SOURCE, decoder_input_ids=torch.tensor([[2], [2]]), length=5)


@pytest.mark.parametrize("unit", ["token", "character", "word", "byte"])
@pytest.mark.parametrize("padding", [1, 127])
def test_entries_that_pad_the_embedding_are_never_counted(shared_tokenizer, unit, padding):
    entries = len(shared_tokenizer)
    model = build_model("marian", vocab_size=entries + padding, length_unit=unit)
    model.set_unit_table(shared_tokenizer)
    labels = shared_tokenizer(text_target="small text editor", return_tensors="pt")["input_ids"]
    expected = {"token": labels.shape[1] - 1, "character": 17, "word": 3, "byte": 17}  # EOS counts nothing
    assert model.count_labels(labels).tolist() == [expected[unit]]
    assert model.unit_table.weights.shape[1] == entries + padding
    assert (model.unit_table.weights[:, entries:] < 0).all()  # no text holds them, and no output may
    padded = torch.cat([labels, labels.new_full((1, 2), entries)], dim=1)
    assert model.count_labels(padded).tolist() == [expected[unit]]


def test_new_tokens_are_counted_after_the_embeddings_were_resized(family, tmp_path):
    model = build_model(family)
    model.resize_token_embeddings(70)
    labels = torch.tensor([[65, 69, 31, EOS[family]]])
    assert model.count_labels(labels).tolist() == [3]
    expected = model(SOURCE[:1], labels=labels).logits
    assert expected.shape == (1, 4, 70)
    assert model.model.decoder.unit_table.weights.shape == (1, 70)
    model.save_pretrained(tmp_path)
    assert torch.equal(type(model).from_pretrained(tmp_path)(SOURCE[:1], labels=labels).logits, expected)


def test_new_target_tokens_of_marian_with_two_vocabularies_are_counted():
    model = build_model("marian", share_encoder_decoder_embeddings=False, vocab_size=60, decoder_vocab_size=9)
    model.resize_token_embeddings(70)  # the source side, which counts nothing
    assert model.model.decoder.unit_table.weights.shape == (1, 9)
    model.resize_decoder_token_embeddings(12)
    labels = torch.tensor([[8, 11, 0]])
    assert model.count_labels(labels).tolist() == [2]
    assert model(torch.tensor([[69]]), labels=labels).logits.shape == (1, 3, 12)
