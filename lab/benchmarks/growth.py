"""How length control's time and memory grow with the target's length and with the batch.

    python lab/benchmarks/growth.py [--threads 1] [--rounds 7]

Length control alone: the decoder's part before its parent's `forward`, and the length head's after it, the parents
being replaced by what hands its input on. An exponent is the slope of a straight line through the logarithms of a
round's times; 1 is proportional. Memory is the most that the tensors of a training step take at once.
"""

import argparse
import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from unittest.mock import patch

import torch
from overhead import build
from timing import Row, alternate, row_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.models.marian.modeling_marian import MarianAttention, MarianDecoder

import hf_lenctrl


def exponents(sizes: list[int], seconds: Mapping[int, list[float]]) -> list[float]:
    """Slope of log seconds over log size, by least squares, for each round."""
    logs = [math.log(size) for size in sizes]
    middle = sum(logs) / len(logs)
    scale = sum((x - middle) ** 2 for x in logs)
    return [
        sum((x - middle) * math.log(y) for x, y in zip(logs, times, strict=True)) / scale
        for times in zip(*(seconds[size] for size in sizes), strict=True)
    ]


class _Peak(TorchDispatchMode):
    """Bytes of the tensors that operations made, the most that stood at once; without what they use inside."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in given:
                storage = tensor.untyped_storage()
                self.now += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
        self.most = max(self.most, self.now)
        return out

    def _free(self, size: int) -> None:
        self.now -= size


def peak(run: Callable[[], object]) -> int:
    """Bytes that a run has allocated at once, beyond those that stood when it began."""
    with _Peak() as counted:
        run()
    return counted.most


def control(model, batch: int, tokens: int) -> Callable[[], object]:
    """A training step's length control, forward and backward; with a length head that of one layer."""
    width = model.config.d_model
    ids = torch.randint(3, model.config.vocab_size, (batch, tokens))
    embeds = torch.randn(batch, tokens, width, requires_grad=True)
    decoder, length = model.model.decoder, torch.full((batch,), tokens)

    def run() -> None:
        progress = decoder.unit_table.progress(ids)
        if model.config.length_head:
            out = decoder.layers[0].encoder_attn(embeds, progress=progress)[0]
        else:
            out = decoder(inputs_embeds=embeds, progress=progress, length=length)
        out.sum().backward()

    return run


def step(model, batch: int, tokens: int, beams: int = 5) -> Callable[[], object]:
    """Length control of a decoding step that sees `tokens` written ones, and of the constraint on them."""
    ids = torch.randint(3, model.config.vocab_size, (batch * beams, tokens))
    embeds, scores = torch.randn(len(ids), 1, model.config.d_model), torch.randn(len(ids), model.config.vocab_size)
    table, length = model.unit_table, [9 * tokens] * batch
    constrained = hf_lenctrl.LengthConstraintLogitsProcessor(table, length, "exact", eos_token_id=0)
    rows = torch.full((len(ids),), 9 * tokens)

    @torch.no_grad()
    def run() -> None:
        model.model.decoder(inputs_embeds=embeds, progress=table.progress(ids)[:, -1:], length=rows)
        constrained(ids, scores)

    return run


def parents_left_out() -> ExitStack:
    """While this stands, the parent's decoder and attention hand on what they are given."""

    def attention(self, states, **_):
        self.heads = states
        return states, None

    stack = ExitStack()
    stack.enter_context(patch.object(MarianDecoder, "forward", lambda self, inputs_embeds, **_: inputs_embeds))
    stack.enter_context(patch.object(MarianAttention, "forward", attention))
    return stack


def rows(
    shape: str, rounds: int, vocab_size: int, lengths: list[int], batches: list[int], repeats: int, memory_batch: int
) -> Iterator[Row]:
    """For the suite."""
    torch.manual_seed(0)
    positions = max(512, max(lengths) + 1)
    stock, ldpe = build("marian", shape, vocab_size, False, positions)
    head = build("marian", shape, vocab_size, True, positions)[1]
    middle = lengths[(len(lengths) - 1) // 2]

    def fitted(name: str, runs: dict[int, Callable[[], object]]) -> Row:
        def repeated(run):
            return lambda: [run() for _ in range(repeats)]

        seconds = alternate({str(size): repeated(run) for size, run in runs.items()}, rounds)
        slopes = exponents(list(runs), {size: seconds[str(size)] for size in runs})
        return row_of(f"{shape}: {name}", slopes, "exponent of time")

    with parents_left_out():
        for name, model in (("LDPE", ldpe), ("length head", head)):
            runs = {n: control(model, 4, n) for n in lengths}
            yield fitted(f"training, {name}, target length {lengths[0]} to {lengths[-1]}", runs)
            runs = {n: control(model, n, middle) for n in batches}
            yield fitted(f"training, {name}, batch of {batches[0]} to {batches[-1]}", runs)
        runs = {n: step(ldpe, 4, n) for n in lengths}
        yield fitted(f"decoding step, LDPE and constraint, target length {lengths[0]} to {lengths[-1]}", runs)
        runs = {n: step(ldpe, n, middle) for n in batches}
        yield fitted(f"decoding step, LDPE and constraint, batch of {batches[0]} to {batches[-1]}", runs)
        own = {n: [float(peak(control(ldpe, memory_batch, n)))] for n in lengths}
        name = f"{shape}: training, LDPE, target length {lengths[0]} to {lengths[-1]}"
        yield row_of(name, exponents(lengths, own), "exponent of peak memory")

    for tokens in (lengths[0], lengths[-1]):
        batch: dict = {"input_ids": torch.randint(3, vocab_size, (memory_batch, 60))}
        batch["labels"] = torch.randint(3, vocab_size, (memory_batch, tokens))
        bytes_of = []
        for model in (stock, ldpe):
            forward = partial(model, **batch)
            forward().loss.backward()  # gradients stand before the step that is measured
            bytes_of.append(peak(lambda forward=forward: forward().loss.backward()))  # type: ignore[misc]
        name, part = f"{shape}: training step, {tokens} target tokens", own[tokens][0]
        yield row_of(name, [100 * (bytes_of[1] / bytes_of[0] - 1)], "% more peak memory than stock")
        yield row_of(name, [100 * part / bytes_of[0]], "% of the stock step's peak memory, length control alone")


SETTINGS: dict = {"shape": "2x128", "vocab_size": 8000, "lengths": [20, 50, 100, 200, 500, 1000]}
SETTINGS |= {"batches": [1, 2, 4, 8, 16, 32, 64], "repeats": 5, "memory_batch": 4}


def main(argv=None) -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    for row in rows(rounds=args.rounds, **SETTINGS):
        print(f"{row.name}: {row.ratio} {row.what} ({row.spread[0]} to {row.spread[1]})", flush=True)


if __name__ == "__main__":
    main()
