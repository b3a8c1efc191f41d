"""Speed of a frozen length: beam-5 generation with transformers against CTranslate2, in float32 and int8.

    python lab/benchmarks/fixed_length.py [--threads 1] [--rounds 5] [--shapes 3x256 6x512]

A length-controlled Marian of random weights (LDPE, tokens) is frozen and exported. All three write a fixed number of
tokens for the same sources, in one process, round by round in turn; a figure is the median over rounds, a ratio that
of a round's times, transformers / CTranslate2, and therefore how many times faster.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import ctranslate2
import torch
import transformers
from ctranslate2.converters.transformers import BartLoader
from timing import Row, alternate, marian_shape, ratio, ratio_row

import hf_lenctrl


def build(shape: str, vocab_size: int):
    """A frozen Marian, layers x d_model, of random weights."""
    config = hf_lenctrl.LenCtrlMarianConfig(**marian_shape(shape, vocab_size), length_encoding="ldpe")
    return hf_lenctrl.freeze_length(hf_lenctrl.LenCtrlMarianMTModel(config), 20)


def translator(frozen, quantization: str, threads: int):
    """The model in CTranslate2, whose tokens are named by their ids."""
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        spec = BartLoader().get_model_spec(frozen)
        names = [str(i) for i in range(frozen.config.vocab_size)]
        spec.register_source_vocabulary(names)
        spec.register_target_vocabulary(names)
        spec.config.eos_token = spec.config.bos_token = "0"
        spec.config.unk_token, spec.config.decoder_start_token = "1", "2"
        spec.validate()
        spec.optimize(quantization=quantization)
        spec.save(folder)
        kind = {"compute_type": quantization, "intra_threads": threads}
        return ctranslate2.Translator(folder, **kind), (Path(folder) / "model.bin").stat().st_size


def measure(shape: str, vocab_size: int, rounds: int, tokens: int, batch: int, threads: int):
    """Beam-5 generation of `tokens` tokens for `batch` sources of 60: systems, seconds of each round, megabytes."""
    torch.manual_seed(0)
    frozen = build(shape, vocab_size)
    ids = torch.randint(3, vocab_size, (batch, 60))
    names = [[str(i) for i in row] for row in ids.tolist()]
    limits = {"beam_size": 5, "min_decoding_length": tokens, "max_decoding_length": tokens}
    options = {"num_beams": 5, "min_new_tokens": tokens, "max_new_tokens": tokens}
    runs: dict[str, Callable] = {"transformers": partial(frozen.generate, ids, **options)}
    megabytes = {"transformers": sum(p.numel() * p.element_size() for p in frozen.parameters()) / 1e6}
    for quantization in ("float32", "int8"):
        model, size = translator(frozen, quantization, threads)
        runs[quantization] = partial(model.translate_batch, names, **limits)
        megabytes[quantization] = size / 1e6
    yield from ((name, each, megabytes[name]) for name, each in alternate(runs, rounds).items())


def rows(shapes: list[str], rounds: int, vocab_size: int, tokens: int, batch_size: int) -> Iterator[Row]:
    """For the suite."""
    for shape in shapes:
        stock: list[float] = []
        for system, seconds, _ in measure(shape, vocab_size, rounds, tokens, batch_size, torch.get_num_threads()):
            if not stock:
                stock = seconds
                continue
            yield ratio_row(f"{shape}: CTranslate2 {system}", stock, seconds, "times as fast as transformers, beam 5")


def main(argv=None) -> None:
    """Print one JSON line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", nargs="+", default=["3x256", "6x512"], help="layers x d_model")
    parser.add_argument("--vocab_size", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=20, help="written for each source")
    parser.add_argument("--batch_size", type=int, default=8)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    transformers.utils.logging.set_verbosity_error()
    versions = {"ctranslate2": ctranslate2.__version__, "transformers": transformers.__version__}
    versions |= {"torch": torch.__version__, "machine": platform.machine()}
    print(json.dumps(versions | {"cores": os.cpu_count(), "threads": args.threads, "rounds": args.rounds}))
    for shape in args.shapes:
        sizes = (args.vocab_size, args.rounds, args.tokens, args.batch_size, args.threads)
        stock: list[float] = []
        for system, seconds, megabytes in measure(shape, *sizes):
            stock = stock or seconds
            figures = {"system": system, "seconds": round(statistics.median(seconds), 4)}
            figures |= {"ratio": round(ratio(stock, seconds), 2), "megabytes": round(megabytes, 1)}
            print(json.dumps({"shape": shape} | figures), flush=True)


if __name__ == "__main__":
    main()
