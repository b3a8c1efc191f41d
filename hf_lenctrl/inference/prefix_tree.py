"""Read several sequences of a causal model in one forward pass that reads each shared prefix once."""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


MOST = 512  # new tokens of a tree after its first row; few long forward passes are faster than many short ones


def takes_trees(model: Any) -> bool:
    """
    Return whether a causal model can read a tree. Such a model uses the attention functions of transformers, which
    take a mask for each pair of tokens; it takes positions, and nothing else says which tokens come before a token.
    """
    if not (model._supports_attention_backend and model._supports_sdpa) or model._is_stateful:
        return False
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    full = all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)  # no sliding window
    one_device = len(set(getattr(model, "hf_device_map", {"": 0}).values())) == 1
    return full and one_device and model.config._attn_implementation in ("eager", "sdpa")


def read_trees(model: Any, rows: Iterable[tuple[Sequence[int], int]]) -> Iterator[torch.Tensor]:
    """
    Yield the log-probabilities of the next token, float32 `(length - start, V)`, for each row `(ids, start)`: those
    after the ids from `start` to the end. Neighbours share a tree while it has at most `MOST` tokens more than its
    first row.
    """
    tree, most = PrefixTree(), 0
    for ids, start in rows:
        if not tree.rows:
            most = MOST + len(ids)
        elif len(tree.ids) + tree.missing(ids) > most:
            yield from tree.read(model)
            tree, most = PrefixTree(), MOST + len(ids)
        tree.add(ids, start)
    if tree.rows:
        yield from tree.read(model)


class PrefixTree:
    """
    Sequences of ids as paths of a tree: two sequences share the tokens of their common prefix.

    Attributes:
        ids (`list[int]`): The tokens of the tree.
        rows (`list[list[int]]`): For each sequence the places in `ids` of its tokens from `start`.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.rows: list[list[int]] = []
        self._before: list[int] = []  # for each token the place of the token before it; -1 for a first token
        self._places: dict[tuple[int, int], int] = {}  # place of the token before, id -> place

    def missing(self, ids: Sequence[int]) -> int:
        """Return how many tokens of a sequence the tree lacks."""
        place = -1
        for known, token in enumerate(ids):
            if (place, token) not in self._places:
                return len(ids) - known
            place = self._places[place, token]
        return 0

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
        self.rows.append(path[start:])

    @torch.no_grad()
    def read(self, model: Any) -> Iterator[torch.Tensor]:
        """
        Yield log-probabilities, float32 `(length - start, V)`, for each sequence, from one forward pass. A sequence's
        tensor is made when it is asked for, because the sequences together may have many more positions than the tree.
        """
        n, device = len(self.ids), model.device
        sees, depth = torch.eye(n, dtype=torch.bool), torch.zeros(n, dtype=torch.long)
        for place, before in enumerate(self._before):
            if before >= 0:
                sees[place] |= sees[before]
                depth[place] = depth[before] + 1
        mask = sees
        if model.config._attn_implementation == "eager":  # which adds the mask
            mask = torch.zeros(n, n, dtype=model.dtype).masked_fill(~sees, torch.finfo(model.dtype).min)
        asked = torch.tensor(sorted({place for row in self.rows for place in row}))
        options: dict[str, Any] = {
            "attention_mask": mask[None, None].to(device),
            "position_ids": depth[None].to(device),
        }
        keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        options |= {"logits_to_keep": asked.to(device)} if keeps else {}
        logits = model(input_ids=torch.tensor([self.ids], device=device), use_cache=False, **options).logits[0]
        scores = (logits if keeps else logits[asked]).float().log_softmax(dim=-1)  # (asked, V)
        del logits
        for row in self.rows:
            yield scores[torch.searchsorted(asked, torch.tensor(row)).to(scores.device)]
