"""The recipes at the size of the papers, on a small file and a small model."""

import json

import pytest
import torch
from recipe_runs import ROWS, TINY, as_options, load, write_rows

from hf_lenctrl.commands import train as train_seq2seq


SMALL = {name: TINY[name] for name in ("d_model", "layers", "attention_heads", "ffn_dim", "vocab_size", "use_cpu")}
SMALL |= {"validation_share": 0.1, "test_share": 0.1, "max_validation_rows": 2, "max_test_rows": 2}
SMALL |= {"preprocessing_num_workers": 1, "per_device_train_batch_size": 48, "generation_num_beams": 2}
SMALL |= {"test_lengths": [5], "warmup_steps": 0, "disable_tqdm": True, "group_column": "source"}


@pytest.mark.parametrize(
    ("recipe", "options", "settings"),
    [
        ("paper", {"max_steps": 2, "save_steps": 1}, "length: characters against 5; "),
        # two epochs of a step each, and their mean
        ("paper_as_run", {"num_train_epochs": 2, "gradient_accumulation_steps": 2}, "length: characters against 5; "),
        ("nguyen", {"num_train_epochs": 1, "per_device_train_batch_size": 96}, "length: words against 5; "),
    ],
)
def test_a_recipe_of_a_papers_size_trains_and_tests(recipe, options, settings, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", ROWS)
    where = {"train_file": rows, "output_dir": tmp_path / "run"}
    metrics = train_seq2seq.main([f"headline/{recipe}", *as_options({**SMALL, **options, **where})])
    assert metrics["test_5_settings"].startswith(settings)
    model, tokenizer = load(tmp_path / "run")
    config, decoder = model.config, model.get_decoder()
    if recipe == "nguyen":
        assert (config.length_head, config.encoder_length_embedding, config.length_encoding) == (True, True, "learned")
        assert decoder.length_embedding.weight.shape == (512, 32) and not config.length_projection
    else:
        assert decoder.unit_table.count(tokenizer(text_target=["small text"], return_tensors="pt").input_ids) == 10
        one_table = model.get_encoder().embed_tokens.weight is decoder.embed_tokens.weight
        assert one_table is (recipe == "paper_as_run")
        ids = tokenizer(text_target="small text")["input_ids"]
        names = tokenizer.convert_ids_to_tokens(ids) if one_table else None
        assert names in (None, [*"small▁text", "</s>"])
        assert torch.equal(decoder.embed_tokens.weight, model.get_output_embeddings().weight)
    if recipe == "paper_as_run":
        state = json.loads((tmp_path / "run" / "checkpoint-2" / "trainer_state.json").read_text())
        assert (state["epoch"], state["global_step"]) == (2, 2)
