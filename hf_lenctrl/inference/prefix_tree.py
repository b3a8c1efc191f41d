"""Read several sequences of a causal model in one forward pass that reads each shared prefix once."""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


MOST = 512  # tokens of a tree; one forward pass of 512 tokens is much faster than many short ones


def takes_trees(model: Any) -> bool:
    """
    Return whether a causal model can read a tree: it takes positions and a mask for each pair of tokens, and nothing
    else says which tokens come before a token.
    """
    reads = inspect.signature(model.forward).parameters
    if "position_ids" not in reads or getattr(model, "_is_stateful", False) or getattr(model.config, "alibi", False):
        return False
    full = all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)  # no sliding window
    return full and model.config._attn_implementation in ("eager", "sdpa")


def read_trees(model: Any, rows: Iterable[tuple[Sequence[int], int]]) -> Iterator[torch.Tensor]:
    """
    Yield the log-probabilities of the next token, float32 `(length - start, V)`, for each row `(ids, start)`: those
    after the ids from `start` to the end. Neighbours share a tree until it has `MOST` tokens.
    """
    tree = PrefixTree()
    for ids, start in rows:
        if tree.ids and len(tree.ids) + len(ids) > MOST:
            yield from tree.read(model)
            tree = PrefixTree()
        tree.add(ids, start)
    yield from tree.read(model)


class PrefixTree:
    """Sequences of ids as paths of a tree: two sequences share the tokens of their common prefix."""

    def __init__(self) -> None:
        self.ids: list[int] = []  # of each token of the tree
        self._before: list[int] = []  # the place of the token before it, -1 at the root
        self._places: dict[tuple[int, int], int] = {}  # place of the token before, id -> place
        self._rows: list[list[int]] = []  # of each sequence, the places of its tokens from `start`

    def add(self, ids: Sequence[int], start: int) -> None:
        """Add a sequence; `read` gives the log-probabilities after its ids from `start` to the end."""
        place, path = -1, []
        for token in ids:
            key = place, token
            if key not in self._places:
                self._places[key] = len(self.ids)
                self.ids.append(token)
                self._before.append(place)
            place = self._places[key]
            path.append(place)
        self._rows.append(path[start:])

    @torch.no_grad()
    def read(self, model: Any) -> list[torch.Tensor]:
        """Return log-probabilities, float32 `(length - start, V)`, for each sequence, from one forward pass."""
        if not self.ids:
            return []
        n, device = len(self.ids), model.device
        sees, depth = torch.eye(n, dtype=torch.bool), torch.zeros(n, dtype=torch.long)
        for place, before in enumerate(self._before):
            if before >= 0:
                sees[place] |= sees[before]
                depth[place] = depth[before] + 1
        mask = torch.zeros(1, 1, n, n, dtype=model.dtype).masked_fill(~sees, torch.finfo(model.dtype).min)
        asked = torch.tensor(sorted({place for row in self._rows for place in row}), dtype=torch.long)
        options: dict[str, Any] = {"attention_mask": mask.to(device), "position_ids": depth.to(device).unsqueeze(0)}
        reads = inspect.signature(model.forward).parameters
        options |= {"logits_to_keep": asked.to(device)} if "logits_to_keep" in reads else {}
        logits = model(input_ids=torch.tensor([self.ids], device=device), use_cache=False, **options).logits[0]
        if "logits_to_keep" not in reads:
            logits = logits[asked]
        scores = logits.float().log_softmax(dim=-1)  # (asked, V)
        rows = [torch.searchsorted(asked, torch.tensor(row, dtype=torch.long)) for row in self._rows]
        return [scores[row.to(device)] for row in rows]
