"""Small real models and a real tokenizer, built in memory once for all tests."""

import os


os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here may reach for the Hub
os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread for each of pytest's workers and their subprocesses

import pytest
import torch

import hf_lenctrl


SOURCES = [
    "This package contains a small editor for plain text files. It opens large files fast.",
    "A library to read and write images in many formats, with a simple interface for scripts.",
    "The server answers requests over the network and keeps a log of every connection.",
    "Tools to measure the speed of disks, memory and network cards on a running system.",
    "Documentation for developers who want to write their own modules in Python.",
    "A game of cards for one or two players with several levels and nice sounds.",
]
TARGETS = [
    "small text editor",
    "image reading and writing library",
    "network server with logs",
    "measure disk and memory speed",
    "developer documentation",
    "card game for two players",
]

SHAPE = {
    "vocab_size": 60,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 128,
}
MARIAN = {"pad_token_id": 2, "eos_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": 0}


def build_model(family: str, seed: int = 0, **fields):
    """A tiny model with random weights of its own seed, in eval mode."""
    torch.manual_seed(seed)
    if family == "bart":
        model = hf_lenctrl.LenCtrlBartForConditionalGeneration(hf_lenctrl.LenCtrlBartConfig(**{**SHAPE, **fields}))
    else:
        config = hf_lenctrl.LenCtrlMarianConfig(**{**SHAPE, **MARIAN, "scale_embedding": True, **fields})
        model = hf_lenctrl.LenCtrlMarianMTModel(config)
    return model.eval()


@pytest.fixture(params=["bart", "marian"])
def family(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def shared_tokenizer(tmp_path_factory):
    """One subword vocabulary for source and target."""
    return hf_lenctrl.train_marian_tokenizer(
        SOURCES, TARGETS, tmp_path_factory.mktemp("shared"), vocab_size=120, target_vocabulary="shared"
    )


@pytest.fixture(scope="session")
def character_tokenizer(tmp_path_factory):
    """Subwords on the source side, characters on the target side."""
    return hf_lenctrl.train_marian_tokenizer(
        SOURCES, TARGETS, tmp_path_factory.mktemp("character"), vocab_size=120, target_vocabulary="character"
    )
