"""Cost of length control: training step and beam-5 generation against the stock class of the same shape.

    python benchmarks/overhead.py [--threads 1] [--rounds 15] [--shapes 2x128 6x512] [--length_head]

Both models run in one process, alternating round by round; a round's ratio is controlled / stock, and the figure
printed is the median over rounds. Generation writes a fixed number of tokens, so both do the same work. With
`--length_head` a model with a length head is held against the same one without it.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Iterator

import torch
import transformers
from transformers import BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel

import hf_lenctrl


FAMILIES = {
    "bart": (BartConfig, BartForConditionalGeneration, "LenCtrlBartConfig", "LenCtrlBartForConditionalGeneration"),
    "marian": (MarianConfig, MarianMTModel, "LenCtrlMarianConfig", "LenCtrlMarianMTModel"),
}


def build(family: str, layers: int, d_model: int, vocab_size: int, length_head: bool):
    """
    A stock model and a controlled one (LDPE + absolute positions, characters) of the same shape; or a controlled one
    and the same with a length head.
    """
    shape: dict = {"vocab_size": vocab_size, "d_model": d_model, "max_position_embeddings": 512}
    for side in ("encoder", "decoder"):
        shape |= {f"{side}_layers": layers, f"{side}_attention_heads": d_model // 64, f"{side}_ffn_dim": 4 * d_model}
    shape |= {"pad_token_id": 2, "bos_token_id": None, "eos_token_id": 0, "forced_eos_token_id": 0}
    shape |= {"decoder_start_token_id": 2, "scale_embedding": True}
    stock_config, stock_class, config_name, class_name = FAMILIES[family]

    def controlled(**fields):
        config = getattr(hf_lenctrl, config_name)(**shape, absolute_positions=True, length_unit="character", **fields)
        model = getattr(hf_lenctrl, class_name)(config)
        weights = torch.randint(1, 9, (2, vocab_size))  # as of a subword vocabulary: the first piece, later ones
        following = torch.ones(2, vocab_size)
        weights[:, :3] = following[0, :3] = 0
        model.model.decoder.unit_table = hf_lenctrl.UnitTable("character", weights, following)
        config.unit_states = 2
        return model

    base = controlled() if length_head else stock_class(stock_config(**shape))
    model = controlled(length_head=length_head)
    model.load_state_dict(base.state_dict(), strict=False)
    return base, model


def train_step(model, optimizer, batch) -> float:
    """Seconds of one optimiser step."""
    start = time.perf_counter()
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - start


def generate(model, batch, tokens: int, **options) -> float:
    """Seconds of writing `tokens` tokens with beam 5."""
    start = time.perf_counter()
    model.generate(**batch, num_beams=5, min_new_tokens=tokens, max_new_tokens=tokens, **options)
    return time.perf_counter() - start


def ratios(stock_run, controlled_run, rounds: int) -> dict[str, float]:
    """Median over rounds, the order turned round each time."""
    stock_run(), controlled_run()  # warm up
    seconds = []
    for i in range(rounds):
        runs = (stock_run, controlled_run) if i % 2 == 0 else (controlled_run, stock_run)
        first, second = runs[0](), runs[1]()
        seconds.append((first, second) if i % 2 == 0 else (second, first))
    return {
        "stock_s": round(statistics.median(s for s, _ in seconds), 4),
        "controlled_s": round(statistics.median(c for _, c in seconds), 4),
        "ratio": round(statistics.median(c / s for s, c in seconds), 4),
    }


def measure(
    family: str, shape: str, vocab_size: int, rounds: int, head: bool
) -> Iterator[tuple[str, dict[str, float]]]:
    """Training step of 16 pairs (60 and 20 tokens), then beam-5 generation of 20 tokens for 4 sources."""
    layers, d_model = map(int, shape.split("x"))
    torch.manual_seed(0)
    stock, controlled = build(family, layers, d_model, vocab_size, head)
    batch = {"input_ids": torch.randint(3, vocab_size, (16, 60)), "labels": torch.randint(3, vocab_size, (16, 20))}
    with_length = batch | {"length": controlled.count_labels(batch["labels"])}  # the collator's work in a recipe
    adam, adam_controlled = (torch.optim.AdamW(model.parameters(), lr=1e-5) for model in (stock, controlled))
    yield (
        "training step",
        ratios(
            lambda: train_step(stock, adam, with_length if head else batch),
            lambda: train_step(controlled, adam_controlled, with_length),
            rounds,
        ),
    )
    stock.eval(), controlled.eval()
    small = {"input_ids": batch["input_ids"][:4]}
    yield (
        "beam-5 generation",
        ratios(
            lambda: generate(stock, small, 20, **({"length": 90} if head else {})),
            lambda: generate(controlled, small, 20, length=90),
            rounds,
        ),
    )


def main(argv=None) -> None:
    """Print one JSON line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shapes", nargs="+", default=["2x128", "6x512"], help="layers x d_model")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--vocab_size", type=int, default=8000)
    parser.add_argument("--length_head", action="store_true", help="cost of the length head")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    transformers.utils.logging.set_verbosity_error()
    machine = {"torch": torch.__version__, "transformers": transformers.__version__, "cores": os.cpu_count()}
    print(json.dumps(machine | {"machine": platform.machine(), "threads": args.threads, "rounds": args.rounds}))
    for shape in args.shapes:
        for family in args.families:
            for task, figures in measure(family, shape, args.vocab_size, args.rounds, args.length_head):
                print(json.dumps({"family": family, "shape": shape, "task": task} | figures), flush=True)


if __name__ == "__main__":
    main()
