"""Packing of several pairs of source and target into one row: all batches have one shape and little padding."""

import random
from typing import Any

import torch
from torch.utils.data import Dataset


OPEN = 32  # maximum number of rows that are filled at the same time
ATTENTION = ("sdpa", "eager")  # other implementations accept no mask of pairs


class PackedRows(Dataset):
    """
    A dataset of packed rows. Each item is a list with the pairs (source and target) of one row.
    `DataCollatorForLengthControl(packing=...)` makes the row from these pairs.

    Args:
        pairs: A map-style dataset with `input_ids` and `labels`.
        packing (`tuple[int, int]`): Maximum numbers of source tokens and target tokens in a row.
        seed (`int`, *optional*, defaults to 0): Seed of the order in which pairs are put into rows.
        batch_size (`int`, *optional*, defaults to 1): Number of rows in a batch. To fill the last batch, pairs from
            the rows with the most pairs get rows of their own, until the number of rows is a multiple of `batch_size`
            (or no row has two pairs).

    Raises:
        `ValueError`: if a pair does not fit into a row.
    """

    def __init__(self, pairs: Any, packing: tuple[int, int], seed: int = 0, batch_size: int = 1):
        self.pairs = pairs
        self.rows = _plan(_sizes(pairs, packing), packing, seed)
        largest = max(self.rows, key=len, default=[])
        while len(self.rows) % batch_size and len(largest) > 1:
            self.rows.append([largest.pop()])
            largest = max(self.rows, key=len)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> list:
        return [self.pairs[i] for i in self.rows[at]]


def _sizes(pairs: Any, packing: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the numbers of source tokens and target tokens of each pair. Raise `ValueError` if a pair is too long."""
    sizes = []
    for i in range(len(pairs)):
        pair = pairs[i]
        size = len(pair["input_ids"]), len(pair["labels"])
        if size[0] > packing[0] or size[1] > packing[1]:
            rule = f"every pair must fit into a row of {packing[0]} source and {packing[1]} target tokens"
            raise ValueError(f"{rule}, got {size[0]} and {size[1]} in pair {i}; drop it, or give a larger packing")
        sizes.append(size)
    return sizes


def _plan(sizes: list[tuple[int, int]], packing: tuple[int, int], seed: int) -> list[list[int]]:
    """
    Return the rows as lists of pair indices. Each pair, in random order, goes into the first open row with enough
    room. If a pair needs a new row and `OPEN` rows are open, the fullest is closed.
    """
    order = list(range(len(sizes)))
    random.Random(seed).shuffle(order)
    rows: list[list[int]] = []
    open_rows: list[list[Any]] = []  # source tokens, target tokens, pairs
    for i in order:
        source, target = sizes[i]
        row = next((r for r in open_rows if r[0] + source <= packing[0] and r[1] + target <= packing[1]), None)
        if row is None:
            if len(open_rows) == OPEN:
                open_rows.remove(max(open_rows, key=lambda r: max(r[0] / packing[0], r[1] / packing[1])))
            row = [0, 0, []]
            open_rows.append(row)
            rows.append(row[2])
        row[0] += source
        row[1] += target
        row[2].append(i)
    return rows


def check_packing(packing: tuple[int, int], model: Any, tokenizer: Any) -> None:
    """Raise `ValueError` if the model or the tokenizer does not support packing, or if `packing` is invalid."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "length_encoding") or not config.is_encoder_decoder:
        rule = f"packing needs an encoder-decoder with length control, got {type(model).__name__}"
        raise ValueError(f"{rule}; pass such a model, or leave packing out")
    if hasattr(config, "text_config"):
        kind = config.text_config.model_type
        raise ValueError(f"packing does not work for a model that wraps another, got {kind}; leave packing out")
    if wrong := [name for name in ("length_head", "encoder_length_embedding") if getattr(config, name)]:
        raise ValueError(f"packing needs a length for each pair, but {wrong[0]} has one for a row; leave packing out")
    if config.model_type.endswith("m2m_100"):
        raise ValueError("packing needs positions that can begin anew, but M2M100 counts them from ids; leave it out")
    if (attention := config._attn_implementation) not in ATTENTION:
        raise ValueError(f"packing needs attention with a mask, {' or '.join(ATTENTION)}, got {attention}")
    if tokenizer.padding_side != "right":
        raise ValueError("packing needs a tokenizer that pads on the right; set tokenizer.padding_side='right'")
    positions = getattr(config, "max_position_embeddings", None)
    if min(packing) < 1 or positions is not None and max(packing) > positions:
        most = "" if positions is None else f", and at most the model's {positions} positions"
        raise ValueError(f"packing must be the source and target tokens of a row, at least 1{most}, got {packing}")


def lay_out(batch: Any, sizes: list[int], counts: torch.Tensor, packing: tuple[int, int], fill: Any) -> dict[str, Any]:
    """
    Lay out a batch of N pairs as B packed rows. Row `i` holds the next `sizes[i]` pairs.

    Args:
        batch: The padded pairs: `input_ids` and `attention_mask`, `(N, source_length)`, and columns for the target,
            `(N, target_length)`, or `(N,)` with one value for all target tokens of a pair.
        sizes (`list[int]`): Number of pairs in each row.
        counts (`torch.LongTensor` of shape `(N,)`): Number of target tokens of each pair.
        packing (`tuple[int, int]`): Numbers of source and target positions of a row.
        fill (`dict[str, int]`): The padding value of each column. Columns that are not in `fill` are padded with 0.

    Returns:
        A dictionary: `input_ids` and `pair_ids`, `(B, packing[0])`; the columns for the target and `decoder_pair_ids`,
        `(B, packing[1])`. The pair id of a token says to which pair of the row the token belongs: 1 is the first pair,
        and 0 is padding.
    """
    row = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))  # (N,)
    number = torch.cat([torch.arange(1, size + 1) for size in sizes])  # (N,)
    others = {name: value for name, value in batch.items() if name not in ("input_ids", "attention_mask")}
    sides = (
        (packing[0], batch["attention_mask"].sum(1), {"input_ids": batch["input_ids"], "pair_ids": number}),
        (packing[1], counts, {**others, "decoder_pair_ids": number}),
    )
    found = {}
    for width, tokens, columns in sides:
        end = tokens.cumsum(0)  # (N,)
        before = torch.where(number == 1, end - tokens, 0).cummax(0).values  # tokens in the previous rows
        within = torch.arange(int(tokens.max()))
        used = within < tokens.unsqueeze(1)  # (N, n)
        column = (end - tokens - before).unsqueeze(1) + within  # (N, n)
        at = row.unsqueeze(1).expand_as(used)[used], column[used]
        for name, value in columns.items():
            value = value.unsqueeze(1) if value.dim() == 1 else value[:, : used.shape[1]]
            found[name] = value.new_full((len(sizes), width), fill.get(name, 0))
            found[name][at] = value.expand_as(used)[used]
    return found
