"""Small real models and a real tokenizer, built in memory once for all tests."""

import atexit
import functools
import gc
import json
import os
import shutil
import tempfile
from pathlib import Path


os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here may reach for the Hub
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp(prefix="datasets")  # nor leave rows in the user's cache
os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread for each of pytest's workers and their subprocesses

import pytest
import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

import hf_lenctrl
from hf_lenctrl.evaluation.report import LengthReport


gc.disable()  # until the tests are imported: modules stay, and each full collection would look at all of them
atexit.register(shutil.rmtree, os.environ["HF_DATASETS_CACHE"], ignore_errors=True)
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

SHAPE = {"vocab_size": 60, "d_model": 32, "max_position_embeddings": 128, "encoder_layers": 2, "decoder_layers": 2}
SHAPE |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
MARIAN = {"pad_token_id": 2, "eos_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": 0}


def build_model(family: str, seed: int = 0, **fields):
    """A tiny model with random weights of its own seed, in eval mode."""
    torch.manual_seed(seed + 1)  # of 0 some outputs are too plain to tell rows apart
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


def word_tokenizer(*words: str) -> transformers.PreTrainedTokenizerFast:
    """One id a word, from 3 on, and EOS, 0, at the end; an unknown word is 1."""
    vocabulary = {word: i for i, word in enumerate(("</s>", "<unk>", "<pad>", *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


FAMILIES = hf_lenctrl.modeling_lenctrl.FAMILIES
RELATIVE = ("t5", "mt5", "umt5")  # their positions are relative and stay
T5_NAMES = {"encoder_layers": "num_layers", "decoder_layers": "num_decoder_layers"}
T5_NAMES |= {"encoder_attention_heads": "num_heads", "encoder_ffn_dim": "d_ff"}


def in_names_of(family: str, **fields) -> dict:
    """BART's names of a configuration's fields in those of the family; what T5 does not have is left out."""
    if family not in RELATIVE:
        return fields
    without = ("decoder_attention_heads", "decoder_ffn_dim", "max_position_embeddings", "init_std", "scale_embedding")
    renamed = {T5_NAMES.get(name, name): value for name, value in fields.items() if name not in without}
    start = {"decoder_start_token_id": 0, "d_kv": 16, "initializer_factor": 0.5}
    return {**start, **renamed, **({"absolute_positions": True} if "absolute_positions" in fields else {})}


def build_model_of(family: str, seed: int = 0, **fields):
    """`build_model` for all families, with their own special tokens."""
    if family in ("bart", "marian"):
        return build_model(family, seed, **fields)
    torch.manual_seed(seed + 1)  # of 0 some outputs are too plain to tell rows apart
    head = FAMILIES[family]
    start = {"decoder_start_token_id": 2} if family in ("mbart", "m2m_100") else {}  # mBART's configuration names none
    return head(head.config_class(**in_names_of(family, **{**SHAPE, **start, **fields}))).eval()


@pytest.fixture(params=FAMILIES)
def any_family(request) -> str:
    return request.param


# Several scripts, characters of two code points, and white space beside the space
MULTILINGUAL = [*TARGETS, "日本語の文字", "文字の日本語", "naïve café", "😀👍🏽😀", "e\u0301a\u0308"]
MULTILINGUAL += ["a\u3000b\xa0c", "שלום עליכם", "x\u2028y\x85z\u1680w\x1cq", "it's a dog, do n't ."]


@functools.cache
def make_tokenizers():
    """Name -> small tokenizer trained on `MULTILINGUAL`, for every way of decoding."""

    def trained(model, pre_tokenizer, trainer_class, special, **options):
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizer
        trainer = trainer_class(special_tokens=special, show_progress=False, **options)
        tokenizer.train_from_iterator(MULTILINGUAL * 3, trainer)
        return json.loads(tokenizer.to_str())["model"]

    def merges(model):
        return [tuple(pair) for pair in model["merges"]]

    special = ["<s>", "<pad>", "</s>", "<unk>"]
    options = {"vocab_size": 400, "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level = trained(models.BPE(), split, trainers.BpeTrainer, [*special, "<mask>"], **options)
    metaspace = trained(models.BPE(), pre_tokenizers.Metaspace(), trainers.BpeTrainer, special, vocab_size=150)
    options = {"vocab_size": 150, "unk_token": "<unk>"}
    unigram = trained(models.Unigram(), pre_tokenizers.Metaspace(), trainers.UnigramTrainer, special, **options)
    scores = [tuple(entry) for entry in unigram["vocab"]]
    own_special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *scores[4:]]
    names, split = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], pre_tokenizers.BertPreTokenizer()
    word_piece = trained(models.WordPiece(unk_token="[UNK]"), split, trainers.WordPieceTrainer, names, vocab_size=150)

    # unknown characters as bytes, decoded as SentencePiece does (Llama, Gemma)
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *(piece for piece, _ in scores[4:])]
    scored = [(piece, -float(i)) for i, piece in enumerate(pieces)]
    fallback = Tokenizer(models.Unigram(scored, unk_id=3, byte_fallback=True))
    fallback.pre_tokenizer = pre_tokenizers.Metaspace()
    fallback.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )

    folder = Path(tempfile.mkdtemp(prefix="tokenizers"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "text.txt").write_text("\n".join(MULTILINGUAL * 3), encoding="utf-8")
    options = {"input": str(folder / "text.txt"), "model_prefix": str(folder / "spm")}
    sentencepiece.SentencePieceTrainer.train(**options, vocab_size=80, character_coverage=1.0, minloglevel=2)
    spm = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    vocabulary = dict(zip(special, range(4), strict=True)) | {spm.id_to_piece(i): i + 1 for i in range(3, len(spm))}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    files = str(folder / "vocab.json"), str(folder / "spm.model")
    # as in the released checkpoint; the class by itself takes language codes for text
    codes = [f"__{code}__" for code in FAIRSEQ_LANGUAGE_CODES["m2m100"]]
    marian = hf_lenctrl.train_marian_tokenizer(
        MULTILINGUAL * 3, MULTILINGUAL * 3, folder / "marian", vocab_size=150, target_vocabulary="shared"
    )
    return {
        "bart": transformers.BartTokenizer(vocab=byte_level["vocab"], merges=merges(byte_level)),
        "bert": transformers.BertTokenizer(vocab=word_piece["vocab"]),
        "byte fallback": transformers.PreTrainedTokenizerFast(
            tokenizer_object=fallback, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
        ),
        "m2m_100": transformers.M2M100Tokenizer(*files, tgt_lang="en", additional_special_tokens=codes),
        "marian": marian,
        "mbart": transformers.MBartTokenizer(vocab=scores),
        "nllb": transformers.NllbTokenizer(vocab=metaspace["vocab"], merges=merges(metaspace)),
        "pegasus": transformers.PegasusTokenizer(vocab=own_special),
        **dict.fromkeys(RELATIVE, transformers.T5Tokenizer(vocab=own_special)),
    }


@pytest.fixture(scope="session")
def tokenizers_of_every_kind():
    return make_tokenizers()


def size_of(tokenizer) -> int:
    """Entries that an embedding needs, with the codes of languages that `len(tokenizer)` leaves out."""
    return max(len(tokenizer), max(tokenizer.all_special_ids) + 1)


def given_to(module, name: str) -> list:
    """What each later call gives a module by this name."""
    seen: list = []

    def keep(_, args, kwargs):
        if name in kwargs:  # a model of many tests is called in other ways later
            seen.append(kwargs[name])

    module.register_forward_pre_hook(keep, with_kwargs=True)
    return seen


def save_in(folder, *parts):
    """Save models and tokenizers in a folder, and return it."""
    for part in parts:
        part.save_pretrained(folder)
    return folder


def controlled_marian(tokenizer, seed: int = 5, **fields):
    """Untrained: without a constraint it writes far past any length."""
    fields = {"length_unit": "character", "init_std": 0.5, **fields}
    model = build_model("marian", seed=seed, vocab_size=len(tokenizer), **fields)
    model.set_unit_table(tokenizer)
    return model


@pytest.fixture(scope="session")
def saved(character_tokenizer, tmp_path_factory):
    """The folder of an untrained model that counts characters, with a vocabulary for each side."""
    sides = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": len(character_tokenizer.target_encoder)}
    model = controlled_marian(character_tokenizer, **sides)
    return save_in(tmp_path_factory.mktemp("saved"), model, character_tokenizer)


def plain_marian(tokenizer, seed: int = 3, **fields):
    """A stock model, untrained."""
    torch.manual_seed(seed)
    shape = {**SHAPE, **MARIAN, "vocab_size": len(tokenizer), "max_position_embeddings": 512, "init_std": 0.5}
    return transformers.MarianMTModel(transformers.MarianConfig(**shape | fields)).eval()


@pytest.fixture(scope="session")
def pipe(tmp_path_factory):
    """A pipeline that counts characters; its tokenizer knows accents and Japanese, so characters and bytes differ."""
    texts = [*SOURCES, *TARGETS, "naïve café 日本語"] * 2
    tokenizer = hf_lenctrl.train_marian_tokenizer(
        texts, texts, tmp_path_factory.mktemp("accents"), vocab_size=160, target_vocabulary="shared"
    )
    model = controlled_marian(tokenizer)
    return hf_lenctrl.LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device="cpu")


@pytest.fixture(scope="session")
def plain_pipe(pipe):
    """The same of a stock Marian model."""
    model = plain_marian(pipe.tokenizer)
    return hf_lenctrl.LengthControlledGenerationPipeline(model=model, tokenizer=pipe.tokenizer, device="cpu")


@pytest.fixture(scope="session")
def tokenizer(pipe):
    return pipe.tokenizer


@pytest.fixture(scope="session")
def model(pipe):
    return pipe.model


@pytest.fixture(scope="session")
def plain(plain_pipe):
    return plain_pipe.model


LAB = Path(__file__).parent / "lab"
DRAWN = (
    "test_demo",
    "test_docs",
    "test_evaluate",
    "test_fit_subtitles",
    "test_honest_runs",
    "test_readme",
    "test_report",
)


@pytest.fixture(scope="module", autouse=True)
def pictures(request):
    """A report's picture takes half a second to draw: an empty file, but in the files that are about pictures."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.stem not in DRAWN:
            patch.setattr(LengthReport, "plot", lambda self, path: Path(path).touch())
        yield


LONGEST = ("test_onnx", "test_docs", "test_notebooks", "test_smollm2", "test_precision", "test_reproduce")


def pytest_collection_modifyitems(items):
    """The tests of the lab last, and in each part the longest files first, so that no worker waits for another."""
    items.sort(key=lambda item: (item.path.is_relative_to(LAB), item.path.stem not in LONGEST))
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # a twelfth of the time went to collections
    gc.enable()


def pytest_sessionfinish():
    gc.freeze()  # pytest collects five times at the end


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch):
    """A warning that is logged once in a process is logged in each test that causes it."""
    monkeypatch.setattr("hf_lenctrl.bounded_generation._SAID", set())
