"""Control put on stock parts in place: built once, sent elsewhere, on several devices, in the stock Trainer."""

import copy
import io

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from conftest import FAMILIES, build_model_of, given_to, make_tokenizers, size_of
from family_models import stock_model
from processes import output_of
from test_readme import ENVIRONMENT
from torch._subclasses.fake_tensor import FakeTensorMode

from hf_lenctrl import UnitTable, add_length_control


SOURCE = torch.tensor([[11, 12, 13, 14], [5, 6, 7, 8]])
IDS = torch.tensor([[2, 30, 31, 32], [2, 40, 41, 42]])
FULL = {"length_encoding": "learned", "encoder_length_embedding": True, "length_head": True}


def test_each_part_is_built_once(any_family, monkeypatch):
    model, built = build_model_of(any_family), []
    parts = model.get_encoder(), model.get_decoder()
    untouched = {next(c for c in type(part).__mro__ if c.__module__.startswith("transformers.")) for part in parts}
    for stock in untouched:

        def counted(self, *args, _stock=stock, _init=stock.__init__, **kwargs):
            built.append(_stock.__name__)
            _init(self, *args, **kwargs)

        monkeypatch.setattr(stock, "__init__", counted)
    model = build_model_of(any_family)
    assert len(built) == 2
    FAMILIES[any_family].model_class(model.config)
    assert len(built) == 4


def test_gradient_checkpointing_of_the_configuration_is_honoured(any_family):
    model = build_model_of(any_family, gradient_checkpointing=True)
    flags = [module.gradient_checkpointing for module in model.modules() if hasattr(module, "gradient_checkpointing")]
    assert flags and all(flags)
    assert "gradient_checkpointing" not in model.config.to_dict()  # as in the stock classes, it is used up
    assert not any(getattr(m, "gradient_checkpointing", False) for m in build_model_of(any_family).modules())


def test_a_part_that_is_saved_alone_is_loaded_as_it_was(any_family, tmp_path):
    model = build_model_of(any_family, absolute_positions=True, length_projection=True, **FULL)
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "length" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.unit_table.weights[:, 12] = 3
    for part in (model.get_encoder(), model.get_decoder()):
        part.save_pretrained(tmp_path / type(part).__name__)
        again = type(part).from_pretrained(tmp_path / type(part).__name__)
        with torch.no_grad():
            assert torch.equal(again(SOURCE, length=7)[0], part(SOURCE, length=7)[0])
    assert int(again.unit_table.weights[0, 12]) == 3


# in a process that has built no model
CHILD = """
import torch
models, source, ids = torch.load(sys.argv[1], weights_only=False)
with torch.no_grad():
    written = models[0].generate(source, length=5, length_constraint="exact")
    logits = [model(source, decoder_input_ids=ids, length=6).logits for model in models]
torch.save((logits, models[0].unit_table.count(written).tolist()), sys.argv[1])
"""


def test_a_model_is_pickled_copied_and_sent_to_another_process(tmp_path):
    models = [build_model_of(family, absolute_positions=True, **FULL) for family in ("bart", "m2m_100", "t5")]
    expected = []
    for model in models:
        with torch.no_grad():
            model.generate(SOURCE, length=6, length_constraint="exact")  # a bound leaves nothing behind
            expected.append(model(SOURCE, decoder_input_ids=IDS, length=6).logits)
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):  # which pickles it
                assert type(other.get_decoder()) is type(model.get_decoder())
                assert torch.equal(other(SOURCE, decoder_input_ids=IDS, length=6).logits, expected[-1])
    torch.save((models, SOURCE, IDS), tmp_path / "sent")
    output_of(CHILD, str(tmp_path / "sent"), **ENVIRONMENT)
    received, lengths = torch.load(tmp_path / "sent")
    assert all(map(torch.equal, received, expected)) and lengths == [5, 5]


def test_resizing_positions_of_pegasus_leaves_a_controlled_decoder_without_them():
    model = build_model_of("pegasus", length_encoding="lrpe")
    with torch.no_grad():
        expected = model(SOURCE, decoder_input_ids=IDS, length=6).logits
        model.resize_position_embeddings(200)
        assert model.config.max_position_embeddings == 200
        assert torch.equal(model(SOURCE, decoder_input_ids=IDS, length=6).logits, expected)
    assert not any("decoder.embed_positions" in name for name in model.state_dict())
    beside = build_model_of("pegasus", absolute_positions=True)
    beside.resize_position_embeddings(200)
    assert beside.model.decoder.embed_positions.weight.shape[0] == 200


@pytest.mark.parametrize("family", ["marian", "pegasus"])
def test_sinusoids_of_fairseq_are_the_positions_of_new_loaded_and_resized_models(family, tmp_path):
    model = build_model_of(family, sinusoids="fairseq", absolute_positions=True, d_model=6, max_position_embeddings=40)
    model.save_pretrained(tmp_path)
    # position 2 is their argument 4: sines and cosines of 4, 4 / 100 and 4 / 10000
    expected = torch.tensor([-0.7568025, 0.0399893, 0.0004, -0.6536436, 0.9992001, 0.9999999])
    models = [model, type(model).from_pretrained(tmp_path), model.model_class.from_pretrained(tmp_path)]
    if family == "pegasus":
        models[1].resize_position_embeddings(60)
    for part in (part for found in models for part in (found.get_encoder(), found.get_decoder())):
        torch.testing.assert_close(part.embed_positions.weight[2].detach(), expected, rtol=0, atol=1e-6)


def test_m2m100_starts_bit_for_bit_with_padding_on_the_left_and_among_the_decoder_ids():
    plain = stock_model("m2m_100")  # which pads with 1
    model = add_length_control(plain, tokenizer=make_tokenizers()["m2m_100"], **FULL)
    batch = {
        "input_ids": torch.tensor([[1, 1, 5, 8, 9], [7, 4, 2, 6, 5]]),
        "attention_mask": torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]),
        "decoder_input_ids": torch.tensor([[2, 1, 5, 6], [2, 9, 1, 4]]),
    }
    assert torch.equal(model(**batch, length=9).logits, plain(**batch).logits)
    # and without ids there is nothing to leave out
    batch["inputs_embeds"] = plain.get_input_embeddings()(batch.pop("input_ids"))
    assert torch.equal(model(**batch, length=9).logits, plain(**batch).logits)


def test_training_without_anything_to_count_refuses_the_default(family):
    model = build_model_of(family, length=50).train()
    target = {"decoder_inputs_embeds": torch.zeros(2, 4, 32), "progress": torch.zeros(2, 4, dtype=torch.long)}
    with pytest.raises(ValueError, match="training needs the length of each row; pass labels or"):
        model(SOURCE, **target)
    model(SOURCE, **target, length=3)
    model.eval()(SOURCE, **target)
    for other in (model.train(), FAMILIES[family].model_class(model.config).train()):
        given = given_to(other.get_decoder(), "length")
        other(SOURCE, decoder_input_ids=IDS)  # all that is left where the Trainer smooths the labels
        assert given[0].tolist() == [3, 3]


@pytest.mark.parametrize(("family", "where"), [("bart", "cpu"), ("t5", "disk")])
def test_offloaded_models_generate_what_they_did(family, where, tmp_path):
    tokenizer = make_tokenizers()[family]
    fields = {"absolute_positions": True, "length_projection": True, "length_unit": "character", **FULL}
    model = build_model_of(family, **fields, vocab_size=size_of(tokenizer))
    model.set_unit_table(tokenizer)
    calls = [
        (SOURCE, {"length": [4, 7], "num_beams": 2}),
        (SOURCE, {"length": [4, 7], "length_constraint": "exact"}),
        (SOURCE[:1], {"length": [4, 7]}),  # one text, several lengths
    ]
    expected = [model.generate(source, max_new_tokens=20, **options) for source, options in calls]
    if where == "cpu":
        cpu_offload(model, execution_device=torch.device("cpu"))
    else:
        disk_offload(model, str(tmp_path), execution_device=torch.device("cpu"))
    assert model.device.type == "meta"
    for (source, options), ids in zip(calls, expected, strict=True):
        assert torch.equal(model.generate(source, max_new_tokens=20, **options), ids)
    model.set_unit_table(tokenizer)
    assert model.unit_table.weights.device.type == "cpu"


OTHER = torch.device("lazy")  # any that is not the CPU


@pytest.mark.parametrize(("family", "encoding"), [("marian", "ldpe"), ("t5", "learned")])
def test_table_and_projection_may_be_on_another_device_than_the_embeddings(family, encoding):
    with FakeTensorMode(allow_non_fake_inputs=True):  # tensors without values, on devices that need not be there
        model = build_model_of(family, length_encoding=encoding, absolute_positions=True, length_projection=True)
        decoder = model.get_decoder()
        table = decoder.unit_table
        decoder.unit_table = UnitTable("token", table.weights.to(OTHER), table.next_state.to(OTHER))
        decoder.unit_table._filled = True
        moved = {"length_projection": torch.nn.Linear(32, 32, bias=False, device=OTHER)}
        if encoding == "learned":
            moved["length_embedding"] = torch.nn.Embedding(512, 32, device=OTHER)
        for name, module in moved.items():  # as accelerate's hooks do, which bring no result back
            setattr(decoder, name, module)
            module.register_forward_pre_hook(lambda module, args: tuple(value.to(OTHER) for value in args))
        logits = model(SOURCE, decoder_input_ids=IDS, length=3).logits
    assert (logits.shape, logits.device.type) == ((2, 4, 60), "cpu")


def test_a_model_is_exported_for_batches_of_any_size():
    tokenizer = make_tokenizers()["marian"]
    fields = {"length_unit": "character", "vocab_size": len(tokenizer), **FULL}
    model = build_model_of("marian", absolute_positions=True, **fields)
    model.set_unit_table(tokenizer)
    batch, text = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("text", min=2, max=64)
    given = {"input_ids": SOURCE, "decoder_input_ids": IDS, "length": torch.tensor([3, 9]), "use_cache": False}
    shapes = {"input_ids": {0: batch}, "decoder_input_ids": {0: batch, 1: text}, "length": {0: batch}}
    program = torch.export.export(model, (), given, dynamic_shapes={**shapes, "use_cache": None})
    other = {
        "input_ids": torch.cat([SOURCE, SOURCE + 1, SOURCE]),
        "decoder_input_ids": torch.cat([IDS, IDS[:, [0, 2, 3, 1]], IDS])[:, [0, 1, 2, 3, 1]],
        "length": torch.tensor([2, 3, 4, 5, 6, 7]),
    }
    with torch.no_grad():
        expected = model(**other).logits
        torch.testing.assert_close(program.module()(**other, use_cache=False).logits, expected, atol=1e-5, rtol=1e-5)
