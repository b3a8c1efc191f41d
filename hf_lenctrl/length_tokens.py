"""Length tokens: a token before the source states the requested length, as a ratio class or a length bin."""

import bisect
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from .lengths import check_name


LENGTH_TOKEN_KINDS = ("ratio", "bins")
_RATIO_TOKENS = ("<short>", "<normal>", "<long>")


@dataclass(frozen=True)
class LengthTokens:
    """
    Classes of output lengths. Each class has a token, which is put before the source.

    There are two kinds. `"ratio"` has the classes short, normal and long, by the ratio of target length to source
    length (Lakew et al. 2019). `"bins"` has a class for each range of the target length (Fan et al. 2018). `fit`
    chooses quantiles of the training data as thresholds, so that all tokens occur about equally often.

    Args:
        kind (`str`): `"ratio"` or `"bins"`.
        thresholds (`tuple[float, ...]`): Upper limits of all classes except the last, in ascending order. They are
            ratios for `"ratio"`, and units for `"bins"`. A value that equals a limit belongs to the lower class.

    Raises:
        `ValueError`: if `kind` is unknown, if the thresholds are not ascending numbers, or if `"ratio"` does not have
            exactly two thresholds.

    Example:

    ```python
    >>> from hf_lenctrl.length_tokens import LengthTokens
    >>> tokens = LengthTokens.fit("bins", source_lengths=[9, 9, 9, 9], target_lengths=[2, 4, 7, 9], bins=2)
    >>> tokens.thresholds, tokens.token_for(length=4, source_length=9), tokens.token_for(length=8, source_length=9)
    ((4,), '<len_0>', '<len_1>')

    ```
    """

    kind: str
    thresholds: tuple[float, ...]

    def __post_init__(self):
        object.__setattr__(self, "thresholds", tuple(self.thresholds))  # JSON stores a list
        check_name("length_tokens", self.kind, LENGTH_TOKEN_KINDS)
        limits = self.thresholds
        if not all(isinstance(limit, int | float) and math.isfinite(limit) for limit in limits):
            raise ValueError(f"thresholds of length tokens must be numbers, got {list(limits)}")
        ascend = limits and all(low < high for low, high in zip(limits, limits[1:], strict=False))
        if not ascend or (self.kind == "ratio" and len(limits) != 2):
            raise ValueError(f"length tokens need ascending thresholds, two for the kind 'ratio', got {list(limits)}")

    @classmethod
    def fit(
        cls, kind: str, source_lengths: Sequence[int], target_lengths: Sequence[int], *, bins: int = 10
    ) -> "LengthTokens":
        """
        Build the classes from the source and target lengths of training pairs, which must be in the same unit. For the
        kind `"ratio"`, the thresholds are terciles. For the kind `"bins"`, there are `bins` ranges, or fewer if many
        targets have the same length. Raise `ValueError` if the pairs are too similar for several classes.
        """
        values: list[float] = sorted(
            target / max(source, 1) if kind == "ratio" else target
            for source, target in zip(source_lengths, target_lengths, strict=True)
        )
        classes = len(_RATIO_TOKENS) if kind == "ratio" else bins
        # Each limit is the last value of its class; the last class must keep a value.
        largest = max((value for value in values if value < values[-1]), default=None)
        limits: set[float] = set()
        if largest is not None:
            ends = (values[-(-len(values) * i // classes) - 1] for i in range(1, classes))
            limits = {min(value, largest) for value in ends}
        if not limits or (kind == "ratio" and len(limits) != 2):
            raise ValueError(f"{len(values)} training pairs are too alike to make classes of {kind}; leave them out")
        return cls(kind, tuple(sorted(limits)))

    @property
    def tokens(self) -> list[str]:
        """Return the tokens of the classes, the shortest class first."""
        if self.kind == "ratio":
            return list(_RATIO_TOKENS)
        return [f"<len_{i}>" for i in range(len(self.thresholds) + 1)]

    def token_for(self, length: int, source_length: int) -> str:
        """Return the token for an output of `length` units and a source of `source_length` units."""
        value = length / max(source_length, 1) if self.kind == "ratio" else length
        return self.tokens[bisect.bisect_left(self.thresholds, value)]

    def to_dict(self) -> dict:
        """Return the fields as a dictionary for a configuration. `LengthTokens(**fields)` restores the object."""
        return {**asdict(self), "thresholds": list(self.thresholds)}

    def check_in(self, tokenizer) -> None:
        """
        Raise `ValueError` if the vocabulary of a tokenizer lacks a length token, because the model would read an
        unknown token in its place.
        """
        known = tokenizer.get_vocab()
        if missing := [token for token in self.tokens if token not in known]:
            calls = "LengthTokens.add_to(tokenizer) and model.resize_token_embeddings(len(tokenizer))"
            raise ValueError(f"the tokenizer lacks the length tokens {', '.join(missing)}; call {calls}")

    def add_to(self, tokenizer) -> None:
        """
        Add the length tokens that the vocabulary of a tokenizer lacks. They become special tokens, so they add no
        units. Raise `ValueError` if the tokenizer has a separate target vocabulary that is larger than the source
        vocabulary.
        """
        missing = [token for token in self.tokens if token not in tokenizer.get_vocab()]
        if missing and getattr(tokenizer, "separate_vocabs", False):
            source, target = len(tokenizer), len(tokenizer.target_encoder)
            if source < target:  # their ids would collide with target entries
                got = f"got {source} and {target}; use target_vocabulary=shared"
                raise ValueError(f"length tokens need as many source entries as target entries, {got}")
        if missing:
            tokenizer.add_special_tokens({"additional_special_tokens": missing}, replace_extra_special_tokens=False)
