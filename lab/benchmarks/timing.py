"""What the measurements share: rounds that alternate, and ratios of a round's times."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch


def alternate(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each run in each of `rounds`, after one that warms up; the order is turned round each time."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds + 1):
        for name in list(runs)[:: 1 if i % 2 == 0 else -1]:
            start = time.perf_counter()
            runs[name]()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            if i > 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Median over rounds of the ratio of two times of one round."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def sides(layers: int, d_model: int) -> dict[str, int]:
    """Fields of a configuration: layers, heads and feed-forward width of encoder and decoder."""
    fields = {"d_model": d_model}
    for side in ("encoder", "decoder"):
        fields |= {f"{side}_layers": layers, f"{side}_attention_heads": max(d_model // 64, 1)}
        fields |= {f"{side}_ffn_dim": 4 * d_model}
    return fields


def marian_shape(shape: str, vocab_size: int, positions: int = 512) -> dict:
    """Fields of a Marian configuration, `layers x d_model`."""
    layers, d_model = map(int, shape.split("x"))
    fields: dict = {"vocab_size": vocab_size, "max_position_embeddings": positions, **sides(layers, d_model)}
    fields |= {"pad_token_id": 2, "bos_token_id": None, "eos_token_id": 0, "forced_eos_token_id": 0}
    return fields | {"decoder_start_token_id": 2, "scale_embedding": True}
