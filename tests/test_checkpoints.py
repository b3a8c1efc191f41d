"""The model of a run: new or from a checkpoint, the mean of checkpoints, what a run repeats and refuses."""

import os
import shutil
from types import SimpleNamespace

import pytest
import recipe_runs
import torch
import transformers
from conftest import SOURCES, TARGETS, build_model, build_model_of, save_in
from family_models import stock_model, tokenizer_of
from recipe_runs import ROWS, assert_same_weights, train, write_predictor
from safetensors.torch import save_file
from transformers.trainer_callback import TrainerState

import hf_lenctrl
from hf_lenctrl.commands import generate
from hf_lenctrl.commands import models as commands_models
from hf_lenctrl.commands.arguments import ModelArguments
from hf_lenctrl.commands.checkpoints import average_checkpoints, check_checkpoint, checkpoints_of, last_checkpoint
from hf_lenctrl.commands.run import remove_tokenizer


def save(folder, **tensors):
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_floats_are_averaged_and_integers_are_those_of_the_last_checkpoint(tmp_path):
    integers = torch.tensor([1, 2], dtype=torch.int32), torch.tensor([4, 7], dtype=torch.int32)
    folders = [
        save(tmp_path / "a", w=torch.tensor([[1.0, 2.0], [3.0, -4.0]]), table=integers[0], flag=torch.tensor([True])),
        save(tmp_path / "b", w=torch.tensor([[3.0, 2.0], [0.0, 4.0]]), table=integers[1], flag=torch.tensor([False])),
    ]
    mean = average_checkpoints(folders)
    expected = {"w": [[2.0, 2.0], [1.5, 0.0]], "table": [4, 7], "flag": [False]}
    assert {name: value.tolist() for name, value in mean.items()} == expected
    assert [mean[name].dtype for name in ("w", "table", "flag")] == [torch.float32, torch.int32, torch.bool]
    # in bfloat16 256 + 1 + 1 stays what it was, and a third of that is 85.5
    folders = [save(tmp_path / str(i), w=torch.tensor([v], dtype=torch.bfloat16)) for i, v in enumerate((256, 1, 1))]
    result = average_checkpoints(folders)["w"]
    assert (result.dtype, result.item()) == (torch.bfloat16, 86.0)


def test_the_last_checkpoint_is_the_whole_one_of_most_steps(tmp_path, caplog):
    for name in ("checkpoint-5", "checkpoint-40", "checkpoint-100", "checkpoint-110", "checkpoint-final"):
        (tmp_path / name).mkdir()
        TrainerState(global_step=7).save_to_json(str(tmp_path / name / "trainer_state.json"))
    (tmp_path / "checkpoint-900").write_text("a file")
    (tmp_path / "checkpoint-110" / "trainer_state.json").unlink()
    assert last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-100")
    assert "checkpoint-110 is incomplete and passed over" in caplog.text
    state = tmp_path / "checkpoint-100" / "trainer_state.json"
    state.write_text(state.read_text()[:-20])
    assert [folder.name for folder in checkpoints_of(tmp_path)] == ["checkpoint-5", "checkpoint-40"]
    assert last_checkpoint(tmp_path / "missing") is None


ONLY_TRAIN = {"rows": ROWS[:40], "validation_share": 0, "test_share": 0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two checkpoints."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder, **ONLY_TRAIN, max_steps=2, save_steps=1)
    return folder


def test_a_repeated_run_keeps_its_best_checkpoint_and_its_files(tmp_path, monkeypatch):
    monkeypatch.delitem(recipe_runs.TINY, "predict_with_generate")  # texts are written without being told
    options = {"rows": ROWS[:60], "num_train_epochs": 1, "save_steps": 2, "test_share": 0}
    options |= {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "greater_is_better": True}
    options |= {"metric_for_best_model": "loss"}  # the first is the worst, so the best one here is not the last
    train(tmp_path / "run", **options)
    assert_same_weights(tmp_path / "run", tmp_path / "run" / "checkpoint-2")
    assert "eval_variance" in (tmp_path / "run" / "checkpoint-2" / "trainer_state.json").read_text()
    files = [tmp_path / "run" / name for name in ("config.json", "train_results.json", "README.md")]
    before = [path.read_bytes() for path in files]
    assert b"trained_lengths" in before[0] and b"It was trained on lengths from" in before[2]
    train(tmp_path / "run", **options)
    assert_same_weights(tmp_path / "run", tmp_path / "run" / "checkpoint-2")
    assert [path.read_bytes() for path in files] == before


def test_a_run_does_not_go_on_without_its_optimizer(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "checkpoint-2" / "optimizer.pt").unlink()
    with pytest.raises(ValueError, match="checkpoint-2 has no optimizer.pt; remove the folder"):
        train(tmp_path / "run", max_steps=3, **ONLY_TRAIN)


def test_checkpoints_of_sharded_training_and_of_weights_alone_pass(tmp_path):
    check_checkpoint(tmp_path, weights_only=True)
    (tmp_path / "optimizer.pt").touch()
    with pytest.raises(ValueError, match="has no scheduler.pt"):
        check_checkpoint(tmp_path)
    (tmp_path / "pytorch_model_fsdp_0").mkdir()
    check_checkpoint(tmp_path)


def test_a_model_of_another_unit_is_not_trained_further(tmp_path):
    build_model("marian", length_unit="byte").save_pretrained(tmp_path)
    data, rows = SimpleNamespace(length_tokens=None), None
    unit_of = commands_models.unit_and_tokens
    with pytest.raises(ValueError, match="counts bytes, got --length_unit token"):
        unit_of(ModelArguments(model_name_or_path=str(tmp_path), length_unit="token"), data, rows, None)
    for given in (None, "byte"):
        args = ModelArguments(model_name_or_path=str(tmp_path), length_unit=given)
        assert (unit_of(args, data, rows, None)[0], args.length_unit) == ("byte", "byte")
    assert unit_of(ModelArguments(), data, rows, None)[0] == "character"


def test_a_language_is_forced_by_its_token(tmp_path):
    save_in(tmp_path, stock_model("m2m_100"), tokenizer_of("m2m_100"))
    args = ModelArguments(base_model=str(tmp_path), source_language="en", target_language="ja")
    tokenizer = commands_models.load_tokenizer(args, {}, str(tmp_path))
    labels = tokenizer(text_target="text")["input_ids"]
    model = commands_models.build_model(args, tokenizer, 64)
    assert tokenizer.convert_ids_to_tokens(labels)[0] == "__ja__"
    forced = model.generation_config.forced_bos_token_id
    assert forced == labels[0] == commands_models.language_id(tokenizer, "ja")
    args.target_language = "jaa"
    with pytest.raises(ValueError, match=r"the tokenizer knows no language 'jaa' \(did you mean ja\?\)"):
        commands_models.load_tokenizer(args, {}, str(tmp_path))


def test_the_dropout_of_t5_is_the_runs(tmp_path):
    stock_model("t5").save_pretrained(tmp_path)
    args = ModelArguments(base_model=str(tmp_path), dropout=0.0)
    model = commands_models.build_model(args, tokenizer_of("t5"), 64)
    assert {part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)} == {0.0}


def test_a_predictor_fits_its_model_and_stays_inside_it(trained, tmp_path):
    predictor, add = write_predictor(tmp_path / "predictor"), commands_models.add_length_predictor
    model = hf_lenctrl.LenCtrlMarianMTModel.from_pretrained(trained)
    model.config.length_unit = "word"
    with pytest.raises(ValueError, match="predicts characters, the model counts words; train another"):
        add(model, predictor, tmp_path / "none")
    assert not (tmp_path / "none").exists() and model.config.length_predictor is None
    with pytest.raises(ValueError, match="is for models with a length, got a MarianMTModel; leave it out"):
        add(stock_model("marian"), predictor, tmp_path / "none")
    model = hf_lenctrl.LenCtrlMarianMTModel.from_pretrained(trained)
    add(model, predictor, tmp_path / "first")
    model.save_pretrained(tmp_path / "first")
    model = hf_lenctrl.LenCtrlMarianMTModel.from_pretrained(tmp_path / "first")
    add(model, None, tmp_path / "second")  # a run that goes on with this model
    assert model.config.length_predictor == "./length_predictor"
    names = [sorted(path.name for path in (tmp_path / x / "length_predictor").iterdir()) for x in ("first", "second")]
    assert names[0] == names[1] and "training_args.bin" not in names[0]


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_model_without_a_tokenizer_is_refused(family, tmp_path):
    """transformers makes a tokenizer of special tokens alone, with which every output is empty, or a TypeError."""
    build_model_of(family).save_pretrained(tmp_path)
    args = ModelArguments(model_name_or_path=str(tmp_path))
    for load in (
        lambda: transformers.pipeline("length-controlled-generation", model=str(tmp_path)),
        lambda: generate.load(str(tmp_path)),
        lambda: commands_models.load_tokenizer(args, {}, str(tmp_path)),
    ):
        with pytest.raises(ValueError, match="has no tokenizer with a vocabulary; save one there"):
            load()


def test_a_tokenizer_of_another_model_is_refused(shared_tokenizer):
    model = build_model("marian", vocab_size=60)
    with pytest.raises(ValueError, match="tokenizer has 1[0-9]{2} entries, the model .*has 60; pass"):
        hf_lenctrl.LengthControlledGenerationPipeline(model=model, tokenizer=shared_tokenizer, device="cpu")


@pytest.mark.parametrize("family", ["marian", "bart"])
def test_a_new_model_has_the_shape_of_the_arguments(family, shared_tokenizer):
    shape = {"layers": 3, "d_model": 48, "attention_heads": 4, "ffn_dim": 80, "dropout": 0.2}
    args = ModelArguments(family=family, activation_function="gelu", absolute_positions=True, **shape)
    model = commands_models.build_model(args, shared_tokenizer, max_positions=777)
    config = model.config
    assert (config.encoder_layers, config.decoder_layers, config.d_model) == (3, 3, 48)
    assert (config.encoder_attention_heads, config.decoder_attention_heads) == (4, 4)
    assert (config.encoder_ffn_dim, config.decoder_ffn_dim) == (80, 80)
    assert (config.dropout, config.activation_function, config.max_position_embeddings) == (0.2, "gelu", 777)
    assert (config.absolute_positions, config.length_encoding, config.length_unit) == (True, "ldpe", "character")
    assert config.pad_token_id == 2 and config.eos_token_id == 0 and config.vocab_size == len(shared_tokenizer)
    # the table is that of the tokenizer: "small text editor" is 17 characters
    assert model.count_labels(torch.tensor([shared_tokenizer(text_target=TARGETS[0])["input_ids"]])).tolist() == [17]


SMALL = {"layers": 1, "d_model": 32, "attention_heads": 2, "ffn_dim": 32}


@pytest.mark.parametrize(
    ("family", "stock"), [("marian", transformers.MarianMTModel), ("bart", transformers.BartForConditionalGeneration)]
)
def test_a_new_model_that_is_given_no_length_is_a_stock_model(family, stock, shared_tokenizer):
    args = ModelArguments(family=family, length_encoding="none", **SMALL)
    model = commands_models.build_model(args, shared_tokenizer, max_positions=64)
    assert type(model) is stock and type(model.config) is stock.config_class
    for option in ({"length_head": True}, {"encoder_length_embedding": True}, {"length_constraint": "exact"}):
        args = ModelArguments(family=family, length_encoding="none", absolute_positions=True, **SMALL, **option)
        model = commands_models.build_model(args, shared_tokenizer, max_positions=64)
        assert model.config.model_type == f"lenctrl_{family}"


def test_a_new_model_may_have_other_decoder_layers_and_another_attention(shared_tokenizer):
    for encoding in ("ldpe", "none"):
        args = ModelArguments(length_encoding=encoding, attn_implementation="eager", **SMALL, decoder_layers=2)
        model = commands_models.build_model(args, shared_tokenizer, max_positions=64)
        assert (len(model.get_encoder().layers), len(model.model.decoder.layers)) == (1, 2)
        used = {module.config._attn_implementation for module in model.modules() if hasattr(module, "out_proj")}
        assert used == {"eager"}


def killed(*args, **kwargs):
    raise KeyboardInterrupt


def test_a_run_keeps_a_tokenizer_only_when_it_is_whole(tmp_path, monkeypatch):
    args, own, texts = ModelArguments(vocab_size=120), tmp_path / "_run", {"source": SOURCES, "target": TARGETS}

    def names():
        return [path.name for path in own.iterdir()]

    with monkeypatch.context() as patch:
        patch.setattr(transformers.MarianTokenizer, "save_vocabulary", killed)
        with pytest.raises(KeyboardInterrupt):
            commands_models.load_tokenizer(args, texts, str(tmp_path))
    assert names() == ["tokenizer.part"]
    (own / "tokenizer.part" / "vocab.json").write_text("{")
    for _ in range(2):  # trained, then read
        tokenizer = commands_models.load_tokenizer(args, texts, str(tmp_path))
        ids = tokenizer(text_target="small")["input_ids"]
        assert len(ids) == 6 and 1 not in ids and ids[-1] == 0  # five characters, all known, and the end
        assert names() == ["tokenizer"] and "tokenizer.part" not in tokenizer.name_or_path
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_tokenizer(tmp_path)
    assert names() == ["tokenizer.part"]


def test_positions_that_no_checkpoint_holds_are_not_trained(shared_tokenizer, tmp_path):
    model = build_model("marian", vocab_size=len(shared_tokenizer), length_unit="token", absolute_positions=True)
    model.save_pretrained(tmp_path)
    loaded = commands_models.build_model(ModelArguments(model_name_or_path=str(tmp_path)), shared_tokenizer, 128)
    frozen = {name for name, weight in loaded.named_parameters() if not weight.requires_grad}
    assert frozen == {f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}
