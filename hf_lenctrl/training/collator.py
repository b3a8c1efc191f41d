"""Collators that make training batches with a length for each row."""

import hashlib
import logging
from dataclasses import dataclass, field

import torch
from transformers import DataCollatorForSeq2Seq

from ..answers import answer_progress
from ..length_units import UnitTable
from ..lengths import check_length
from ..thoughts import thoughts_of
from .packing import check_packing, lay_out


logger = logging.getLogger(__name__)


class DrawsByExample:
    """
    Mixin for collators that change examples at random. The random numbers of an example depend only on `seed`, the
    epoch and the example's ids.
    """

    seed: int
    overshoot_share: float
    no_length_share: float

    def __post_init__(self):
        # the epoch is in shared memory, so that persistent dataloader workers see it change
        self._epoch = torch.full((), -1).share_memory_()  # no epoch has begun

    def set_epoch(self, epoch: int) -> None:
        """Set the training epoch, on which the random numbers depend. `ResumableTrainer` calls this method."""
        self._epoch.fill_(epoch)

    def _drawn(self, length, sort, where):
        """
        Return three tensors `(batch_size,)`: which rows are overshoot examples, which have no length, and the shorter
        length of an overshoot example, from half to just below `length`. `sort` and `where` are random numbers.
        """
        over = (sort < self.overshoot_share) & (length > 1)
        without = (sort >= self.overshoot_share) & (sort < self.overshoot_share + self.no_length_share)
        half = (length // 2).clamp(min=1)
        return over, without, half + (where * (length - half)).long()

    def _draw(self, feature) -> list[float]:
        """Draw three pseudo-random numbers in [0, 1) for an example."""
        ids = [torch.as_tensor(feature[name]).tolist() for name in ("input_ids", "labels")]
        key = repr((self.seed, int(self._epoch), *ids)).encode()
        digest = hashlib.blake2b(key, digest_size=24).digest()
        return [(int.from_bytes(digest[i : i + 8], "big") >> 11) / 2**53 for i in (0, 8, 16)]


@dataclass
class DataCollatorForLengthControl(DrawsByExample, DataCollatorForSeq2Seq):
    """
    A `DataCollatorForSeq2Seq` that adds `length`, the requested length of each example. By default this is the number
    of units in the example's labels.

    Args:
        length_unit (`str`, *optional*): The name of a unit, such as `"character"`; by default
            `model.config.length_unit`.
        length (`int` or `str`, *optional*): Requested length of all examples instead of their own lengths, for an
            evaluation. If `"column"`, the requested lengths are in the column `length` of the rows.
        length_noise (`int`, *optional*, defaults to 0): The largest noise w. An integer drawn uniformly from [-w, w]
            is added to each length. The result is at least 1 (Oka et al. 2020, section 3.1). Noise keeps the model
            from relying too much on a predicted length. Only for training: use `LengthControlTrainer`, or call
            `model.train()`.
        overshoot_share (`float`, *optional*, defaults to 0.0): Share of the examples that teach how a text ends,
            drawn again in each epoch. The requested length of such an example is shorter than its target. It is drawn
            uniformly from half of the target's length to just below this length. Only tokens after the requested
            length have labels. In these examples EOS follows only a complete text, so the model learns not to end an
            unfinished text just because no length remains. Only for training, like `length_noise`; needs `model`.
        no_length_share (`float`, *optional*, defaults to 0.0): Share of the examples that are trained without a
            length (`length` is 0), drawn again in each epoch. The model then also learns to work without a length.
            Only for training; needs a `model` with `length_optional`. An example whose column `keep_length` is true
            always has a length. This column is meant for targets that were written for a requested length. Trainer
            drops this column unless `remove_unused_columns=False`.
        packing (`tuple[int, int]`, *optional*): The size of a packed row: the numbers of its source tokens and target
            tokens. A packed row holds several pairs of source and target, so that all batches have one shape. The
            examples are the items of `hf_lenctrl.training.packing.PackedRows`, which `LengthControlTrainer` makes.
            Needs `model`. The batch also has `pair_ids` and `decoder_pair_ids`, which number the pairs in a row,
            `length` for each target token and, if the model uses it, `progress`. See
            `hf_lenctrl.training.packing.lay_out`.
        seed (`int`, *optional*, defaults to 0): Seed of the random numbers. After `LengthControlTrainer` has called
            `set_epoch`, the numbers of an example depend only on the seed, the epoch and the example's ids. They are
            the same in every batch, worker, process and resumed run. Before the first epoch, PyTorch's generator draws
            the numbers.

    Returns (when called):
        The parent's batch and `length (torch.LongTensor of shape (batch_size,))`. If the model has no length control,
        there is no `length`.

    If the rows have a column `length` but the argument `length` is not `"column"`, the column is dropped with a
    warning.

    Raises:
        `TypeError`, `ValueError`: if the labels of an example have length 0, if the column `length` lacks a valid
            requested length, or if examples would be changed at random although no epoch is set and the model is not
            in training mode.

    Example:

    ```python
    >>> import tempfile
    >>> from hf_lenctrl import DataCollatorForLengthControl, train_marian_tokenizer
    >>> texts = ["two words", "one more word"]
    >>> tokenizer = train_marian_tokenizer(texts, texts, tempfile.mkdtemp(), vocab_size=20)
    >>> collate = DataCollatorForLengthControl(tokenizer, length_unit="character")
    >>> collate([tokenizer(text, text_target=text) for text in texts])["length"]
    tensor([ 9, 13])

    ```
    """

    length_unit: str | None = None
    length: int | str | None = None
    length_noise: int = 0
    overshoot_share: float = 0.0
    no_length_share: float = 0.0
    packing: tuple[int, int] | None = None
    seed: int = 0
    unit_table: UnitTable = field(init=False, repr=False)

    def __post_init__(self):
        super().__post_init__()
        config = getattr(self.model, "config", None)
        if self.length_unit is None:
            self.length_unit = getattr(config, "length_unit", None)
        if self.length is not None and self.length != "column":
            check_length(self.length)
        if self.length_noise < 0:
            raise ValueError(f"length_noise must be at least 0, got {self.length_noise}; pass length_noise=2")
        if self.length_noise and self.length is not None:
            raise ValueError(f"length={self.length} does not work with length_noise={self.length_noise}; give one")
        shares = {name: getattr(self, name) for name in ("overshoot_share", "no_length_share")}
        if not all(0 <= share < 1 for share in shares.values()) or sum(shares.values()) > 1:
            raise ValueError(f"shares must be at least 0, under 1, and at most 1 together, got {shares}")
        if self.packing is not None:
            check_packing(self.packing, self.model, self.tokenizer)
        # the `forward` of a model without length control takes no length
        self.controlled = getattr(config, "length_controlled", config is None)
        self.unit_table = UnitTable.from_tokenizer(self.tokenizer, self.length_unit)
        self._warned = False

    @property
    def draws(self) -> bool:
        """Return whether the collator changes examples at random, for training."""
        return bool(self.length_noise or self.overshoot_share or self.no_length_share)

    def __call__(self, features, return_tensors=None):
        if self.packing is None:
            return self._collate(features, return_tensors)
        if not isinstance(features[0], list):
            raise ValueError("packing takes rows of several pairs; wrap the dataset: PackedRows(rows, packing)")
        pairs = [pair for row in features for pair in row]
        batch = self._collate(pairs, return_tensors)
        if getattr(self.model.config, "counts_progress", False):
            batch["progress"] = self.unit_table.progress(batch["decoder_input_ids"])
        counts, pad = torch.tensor([len(pair["labels"]) for pair in pairs]), self.tokenizer.pad_token_id
        fill = {"input_ids": pad, "decoder_input_ids": pad, "labels": self.label_pad_token_id, "length": 1}
        return lay_out(batch, [len(row) for row in features], counts, self.packing, fill)

    def _collate(self, features, return_tensors=None):
        keeps = torch.tensor([bool(row.get("keep_length")) for row in features])  # (B,)
        features = [{name: value for name, value in row.items() if name != "keep_length"} for row in features]
        column = None
        if self.length == "column":
            column = [row.get("length") for row in features]
            for length in column:
                check_length(length)
        if "length" in features[0]:
            if self.controlled and column is None and not self._warned:
                logger.warning("the column `length` of the rows is not used: lengths are counted from the labels")
                self._warned = True
            features = [{name: value for name, value in row.items() if name != "length"} for row in features]
        draws = None
        if self.controlled and self.draws:
            if self._epoch >= 0:
                draws = torch.tensor([self._draw(feature) for feature in features], dtype=torch.float64)  # (B, 3)
            elif getattr(self.model, "training", False):
                draws = torch.rand(len(features), 3, dtype=torch.float64)
            else:  # Seq2SeqTrainer itself evaluates with its training collator
                raise ValueError(
                    "length_noise, overshoot_share and no_length_share are for training; use LengthControlTrainer, or "
                    "pass model= and call model.train()"
                )
        batch = super().__call__(features, return_tensors)
        if not self.controlled:
            return batch
        labels = batch.get("labels")
        if labels is None:
            raise ValueError("every row must have labels; make them by tokenizer(source, text_target=target)")
        ids = labels.masked_fill(labels == self.label_pad_token_id, self.tokenizer.pad_token_id)
        length = self.unit_table.count(ids)  # (B,)
        if bool((length < 1).any()):
            raise ValueError(f"every target must hold at least one {self.length_unit}, got {length.tolist()}")
        if column is not None:
            batch["length"] = length.new_tensor(column)
        else:
            batch["length"] = length if self.length is None else length.new_full(length.shape, self.length)
        if draws is None:
            return batch
        noise = (draws[:, 0] * (2 * self.length_noise + 1)).long() - self.length_noise  # (B,)
        batch["length"] = (batch["length"] + noise).clamp(min=1)
        over, without, shorter = self._drawn(length, draws[:, 1], draws[:, 2])  # (B,) each
        batch["length"] = torch.where(over, shorter, batch["length"]).masked_fill(without & ~keeps, 0)
        if bool(over.any()):
            early = self.unit_table.progress(batch["decoder_input_ids"]) < shorter.unsqueeze(1)  # (B, T)
            batch["labels"] = batch["labels"].masked_fill(over.unsqueeze(1) & early, self.label_pad_token_id)
        return batch


@dataclass
class DataCollatorForAnswers(DrawsByExample, DataCollatorForSeq2Seq):
    """
    A collator for training a causal model. It adds two tensors to the parent's batch: `length`, the requested length
    of each answer, `(batch_size,)`, and `progress`, the units of the answer up to each token,
    `(batch_size, sequence_length)`; see `answer_progress`. `table` is the unit table.

    The requested length is the length of the answer, with two exceptions, drawn again in each epoch. In a share
    `overshoot_share` of the rows, it is shorter than the answer, and only tokens after this length have labels. A
    share `no_length_share` of the rows has no length (0). See `DataCollatorForLengthControl`. The random numbers
    depend only on `seed`, the epoch and the row, so a resumed run has the same batches.

    `length_from` is the end-of-thoughts marker: a text such as `"</think>"`, or its ids. If a row has the marker, the
    answer begins after the marker. The model still learns the thoughts (the reasoning text before the marker), but
    they do not count towards the length.
    """

    table: UnitTable = field(kw_only=True)
    overshoot_share: float = 0.0
    no_length_share: float = 0.0
    seed: int = 0
    length_from: str | list[int] | None = None

    def __call__(self, features, return_tensors=None):
        draws = torch.tensor([self._draw(row) for row in features], dtype=torch.float64)  # (B, 3)
        batch = super().__call__(features, return_tensors)
        eos, labels = self.tokenizer.eos_token_id, batch["labels"]
        thoughts = thoughts_of(self.length_from, self.tokenizer, self.table)
        progress, length = answer_progress(self.table, labels, [eos], thoughts=thoughts)  # (B, T) and (B,)
        over, without, shorter = self._drawn(length, draws[:, 0], draws[:, 1])  # (B,) each
        early = torch.nn.functional.pad(progress, (1, 0), value=-1)[:, :-1] < shorter.unsqueeze(1)  # (B, T)
        batch["labels"] = labels.masked_fill(over.unsqueeze(1) & early, -100)
        return batch | {"progress": progress, "length": torch.where(over, shorter, length).masked_fill(without, 0)}
