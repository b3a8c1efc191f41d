"""A tiny model of every family, with a tokenizer of its kind that was trained on text of several scripts."""

import math

import torch
import transformers
from conftest import FAMILIES as CONTROLLED
from conftest import SHAPE, build_model, in_names_of, make_tokenizers

from hf_lenctrl import count_units


NO = -math.inf
UNITS = ["token", "character", "word", "byte"]
CONSTRAINTS = ["max", "exact"]
FAMILIES = ["bart", "mbart", "pegasus", "m2m_100", "marian", "t5"]
# wild outputs, of any length
TINY = {**SHAPE, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 256, "init_std": 0.3}


def tokenizer_of(family: str):
    return make_tokenizers()[family]


def fields_of(family: str, **fields):
    """A tiny configuration's fields for the family's tokenizer."""
    tokenizer = tokenizer_of(family)
    start = tokenizer.pad_token_id if family in ("pegasus", "marian", "t5") else tokenizer.eos_token_id
    fields = {
        **TINY,
        "vocab_size": 108 + tokenizer.encoder_size if family == "m2m_100" else len(tokenizer),  # 100 codes, 8 unused
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": start,
        "scale_embedding": family != "bart",
        **fields,
    }
    return in_names_of(family, **fields)


def stock_model(family: str, **fields):
    """The untouched Hugging Face model, with random weights."""
    head = getattr(transformers, CONTROLLED[family].__name__.removeprefix("LenCtrl"))
    torch.manual_seed(0)
    return head(head.config_class(**fields_of(family, **fields))).eval()


def controlled_model(family: str, **fields):
    """The length-controlled model, with random weights and its tokenizer's table."""
    torch.manual_seed(0)
    model = CONTROLLED[family](CONTROLLED[family].config_class(**fields_of(family, **fields)))
    model.set_unit_table(tokenizer_of(family))
    return model.eval()


def model_of_characters(tokenizer, **fields):
    """Marian with a subword source and a character target, as the recipes make it."""
    own = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False, "init_std": 0.3}
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": len(tokenizer.target_encoder)}
    model = build_model("marian", **{**own, **sizes, "length_unit": "character", **fields})
    model.set_unit_table(tokenizer)
    return model


def lengths_of(family: str, unit: str, ids) -> list[int]:
    """What the outputs count, from the decoded text; tokens are all ids but special ones."""
    tokenizer = tokenizer_of(family)
    if unit == "token":
        silent = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        return [sum(i not in silent for i in row) for row in ids.tolist()]
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return [count_units(text, unit) for text in texts]


SOURCE = torch.tensor([[5, 9, 20, 31], [6, 7, 8, 10], [33, 12, 5, 40]])
MODES = {"greedy": {}, "beams": {"num_beams": 3, "num_return_sequences": 2}}
MODES["samples"] = {"do_sample": True, "num_return_sequences": 3}
