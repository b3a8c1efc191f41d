"""Cost of length control: training step and beam-5 generation against the stock class of the same shape.

    python lab/benchmarks/overhead.py [--threads 1] [--rounds 15] [--shapes 2x128 6x512] [--families llama] \\
        [--length_head]

The family llama is a causal model: sources become prompts, and the inner model alone is the stock one.
Both models run in one process, alternating round by round; a round's ratio is controlled / stock, and the figure
printed is the median over rounds. Generation writes a fixed number of tokens, so both do the same work. With
`--length_head` a model with a length head is held against the same one without it.
"""

import argparse
import copy
import json
import os
import platform
import statistics
from collections.abc import Iterator

import torch
import transformers
from timing import alternate, marian_shape, ratio
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
)

import hf_lenctrl
from hf_lenctrl import LenCtrlForCausalLM


FAMILIES = {
    "bart": (BartConfig, BartForConditionalGeneration, "LenCtrlBartConfig", "LenCtrlBartForConditionalGeneration"),
    "marian": (MarianConfig, MarianMTModel, "LenCtrlMarianConfig", "LenCtrlMarianMTModel"),
}


def character_table(vocab_size: int) -> hf_lenctrl.UnitTable:
    """As of a subword vocabulary: units of the first piece, and of later ones."""
    weights = torch.randint(1, 9, (2, vocab_size))
    following = torch.ones(2, vocab_size)
    weights[:, :3] = following[0, :3] = 0
    return hf_lenctrl.UnitTable("character", weights, following)


def build_causal(shape: str, vocab_size: int):
    """A stock causal model and one that holds the same, with length control."""
    layers, d_model = map(int, shape.split("x"))
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=d_model,
        intermediate_size=4 * d_model,
        num_hidden_layers=layers,
        num_attention_heads=max(d_model // 64, 1),
        bos_token_id=1,
        eos_token_id=0,
        pad_token_id=2,
    )
    stock = LlamaForCausalLM(config)
    model = LenCtrlForCausalLM.around(
        copy.deepcopy(stock), length_unit="character", length_projection=True, unit_states=2
    )
    model._modules["unit_table"] = character_table(vocab_size)
    return stock, model.train()


def build(family: str, shape: str, vocab_size: int, length_head: bool, positions: int = 512):
    """
    A stock model and a controlled one (LDPE + absolute positions, characters) of the same shape; or a controlled one
    and the same with a length head.
    """
    if family == "llama":
        return build_causal(shape, vocab_size)
    fields = marian_shape(shape, vocab_size, positions)
    stock_config, stock_class, config_name, class_name = FAMILIES[family]

    def controlled(**more):
        config = getattr(hf_lenctrl, config_name)(**fields, absolute_positions=True, length_unit="character", **more)
        model = getattr(hf_lenctrl, class_name)(config)
        model.model.decoder.unit_table = character_table(vocab_size)
        config.unit_states = 2
        return model

    base = controlled() if length_head else stock_class(stock_config(**fields))
    model = controlled(length_head=length_head)
    model.load_state_dict(base.state_dict(), strict=False)
    return base, model


def batches(family: str, model, vocab_size: int) -> tuple[dict, dict, torch.Tensor]:
    """A training batch for the stock and for the controlled model, and sources: 60 tokens in, 20 out."""
    source, target = torch.randint(3, vocab_size, (16, 60)), torch.randint(3, vocab_size, (16, 20))
    if family != "llama":
        batch = {"input_ids": source, "labels": target}
        return batch, batch | {"length": model.count_labels(target)}, source  # the collator's work in a recipe
    labels = torch.cat([torch.full_like(source, -100), target], dim=1)
    batch = {"input_ids": torch.cat([source, target], dim=1), "labels": labels}
    return batch, batch, source  # a causal model counts the labels itself


def train_step(model, optimizer, batch) -> None:
    """One optimiser step."""
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def measure(
    family: str, shape: str, vocab_size: int, rounds: int, head: bool
) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """
    Training step of 16 pairs (60 and 20 tokens), then beam-5 generation of 20 tokens for 4 sources: name and the
    seconds of each round, `stock` and `controlled`.
    """
    torch.manual_seed(0)
    stock, controlled = build(family, shape, vocab_size, head)
    batch, with_length, source = batches(family, controlled, vocab_size)
    adam, adam_controlled = (torch.optim.AdamW(model.parameters(), lr=1e-5) for model in (stock, controlled))
    yield (
        "training step",
        alternate(
            {
                "stock": lambda: train_step(stock, adam, with_length if head else batch),
                "controlled": lambda: train_step(controlled, adam_controlled, with_length),
            },
            rounds,
        ),
    )
    stock.eval(), controlled.eval()
    small: dict = {"num_beams": 5, "min_new_tokens": 20, "max_new_tokens": 20, "input_ids": source[:4]}
    with_length = small | {"length": 90}
    yield (
        "beam-5 generation",
        alternate(
            {
                "stock": lambda: stock.generate(**(with_length if head else small)),
                "controlled": lambda: controlled.generate(**with_length),
            },
            rounds,
        ),
    )


def main(argv=None) -> None:
    """Print one JSON line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shapes", nargs="+", default=["2x128", "6x512"], help="layers x d_model")
    parser.add_argument("--families", nargs="+", default=[*FAMILIES, "llama"], choices=[*FAMILIES, "llama"])
    parser.add_argument("--vocab_size", type=int, default=8000)
    parser.add_argument("--length_head", action="store_true", help="cost of the length head")
    args = parser.parse_args(argv)
    if args.length_head and "llama" in args.families:
        parser.error("a causal model has no length head; pass --families bart marian")
    torch.set_num_threads(args.threads)
    transformers.utils.logging.set_verbosity_error()
    machine = {"torch": torch.__version__, "transformers": transformers.__version__, "cores": os.cpu_count()}
    print(json.dumps(machine | {"machine": platform.machine(), "threads": args.threads, "rounds": args.rounds}))
    for shape in args.shapes:
        for family in args.families:
            for task, seconds in measure(family, shape, args.vocab_size, args.rounds, args.length_head):
                figures = {f"{name}_s": round(statistics.median(each), 4) for name, each in seconds.items()}
                figures["ratio"] = round(ratio(seconds["controlled"], seconds["stock"]), 4)
                print(json.dumps({"family": family, "shape": shape, "task": task} | figures), flush=True)


if __name__ == "__main__":
    main()
