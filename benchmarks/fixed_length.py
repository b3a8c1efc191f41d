"""Speed of a frozen length: beam-5 generation with transformers against CTranslate2, in float32 and int8.

    python benchmarks/fixed_length.py [--threads 1] [--rounds 5] [--shapes 3x256 6x512]

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
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ctranslate2
import torch
import transformers
from ctranslate2.converters.transformers import BartLoader

import hf_lenctrl


def build(shape: str, vocab_size: int):
    """A frozen Marian, layers x d_model, of random weights."""
    layers, d_model = map(int, shape.split("x"))
    fields: dict = {"vocab_size": vocab_size, "d_model": d_model, "max_position_embeddings": 512}
    for side in ("encoder", "decoder"):
        fields |= {f"{side}_layers": layers, f"{side}_attention_heads": d_model // 64, f"{side}_ffn_dim": 4 * d_model}
    fields |= {"pad_token_id": 2, "eos_token_id": 0, "forced_eos_token_id": 0, "decoder_start_token_id": 2}
    config = hf_lenctrl.LenCtrlMarianConfig(**fields, scale_embedding=True, length_encoding="ldpe")
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
    """Beam-5 generation of `tokens` tokens for `batch` sources of 60."""
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
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds + 1):  # the first one warms up
        for name in list(runs)[:: 1 if i % 2 == 0 else -1]:
            start = time.perf_counter()
            runs[name]()
            if i > 0:
                seconds[name].append(time.perf_counter() - start)
    for name, measured in seconds.items():
        pairs = zip(seconds["transformers"], measured, strict=True)
        yield {
            "system": name,
            "seconds": round(statistics.median(measured), 4),
            "ratio": round(statistics.median(stock / own for stock, own in pairs), 2),
            "megabytes": round(megabytes[name], 1),
        }


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
        for figures in measure(shape, *sizes):
            print(json.dumps({"shape": shape} | figures), flush=True)


if __name__ == "__main__":
    main()
