"""Batches with length targets."""

from dataclasses import dataclass, field

from transformers import DataCollatorForSeq2Seq

from .configuration_lenctrl import check_length
from .length_units import UnitTable


@dataclass
class DataCollatorForLengthControl(DataCollatorForSeq2Seq):
    """
    `DataCollatorForSeq2Seq` that adds `length`, counted from each example's labels.

    Args:
        length_unit (`str`, *optional*): `"token"` or `"character"`; by default that of `model.config`.
        length (`int`, *optional*): Ask every example for this length instead, to evaluate at one length.

    Returns (when called):
        The parent's batch and `length (torch.LongTensor of shape (batch_size,))`. A model with
        `length_encoding="none"` gets none, since it could not use it.

    Raises:
        `ValueError`: for an example whose labels count zero, with its position in the batch.

    Example:

    ```python
    >>> collator = DataCollatorForLengthControl(tokenizer, model=model)  # doctest: +SKIP
    >>> collator([{"input_ids": [7, 8, 0], "labels": [5, 6, 9, 0]}])["length"]  # doctest: +SKIP
    tensor([3])

    ```
    """

    length_unit: str | None = None
    length: int | None = None
    unit_table: UnitTable = field(init=False, repr=False)

    def __post_init__(self):
        config = getattr(self.model, "config", None)
        if self.length_unit is None:
            self.length_unit = getattr(config, "length_unit", None)
        if self.length_unit is None:
            raise ValueError("length_unit is not known; pass length_unit='token' or 'character', or model=")
        if self.length is not None:
            check_length(self.length)
        self.controlled = getattr(config, "length_encoding", None) != "none"
        self.unit_table = UnitTable.from_tokenizer(self.tokenizer, self.length_unit)

    def __call__(self, features, return_tensors=None):
        batch = super().__call__(features, return_tensors)
        if not self.controlled:
            return batch
        labels = batch["labels"]
        ids = labels.masked_fill(labels == self.label_pad_token_id, self.tokenizer.pad_token_id)
        length = self.unit_table.count(ids)  # (B,)
        if bool((length < 1).any()):
            raise ValueError(
                f"every target must hold at least one {self.length_unit}, got {length.tolist()}; drop empty targets "
                "before training (hf_lenctrl.data.tokenize does)"
            )
        batch["length"] = length if self.length is None else length.new_full(length.shape, self.length)
        return batch
