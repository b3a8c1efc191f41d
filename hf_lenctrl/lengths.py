"""What a requested length is, checked once."""

import torch


LENGTH_CONSTRAINTS = ("max", "exact")
LONGEST = 10**7  # no model writes more; sums of units stay far from overflow


def check_length(length) -> None:
    """Raise unless `length` is a Python `int` from 1 to `LONGEST` - 1 (`bool` is none)."""
    if isinstance(length, bool) or not isinstance(length, int):
        raise TypeError(
            f"length must be an int of at least 1, got {length!r} ({type(length).__name__}); pass length=75"
        )
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}; pass length=75")
    if length >= LONGEST:
        raise ValueError(f"length must be under {LONGEST}, got {length}; pass length=75")


def check_constraint(constraint) -> None:
    """Raise unless `constraint` is None or one of `LENGTH_CONSTRAINTS`."""
    if constraint is not None and constraint not in LENGTH_CONSTRAINTS:
        raise ValueError(
            f"length_constraint must be 'max' (never longer), 'exact' or None (the model alone), got {constraint!r}"
        )


def as_length_tensor(length, batch_size: int, device: torch.device) -> torch.Tensor:
    """
    Check a requested length and spread it over the batch.

    Args:
        length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`): Wanted units, each at least 1.
        batch_size (`int`): Rows of the batch.
        device (`torch.device`): Where the result goes.

    Returns:
        `torch.LongTensor` of shape `(batch_size,)`.

    Raises:
        `TypeError`: for anything but integers (a `bool`, a float, NaN, a string).
        `ValueError`: for a length under 1, or a list or tensor of another size than the batch.
    """
    if isinstance(length, torch.Tensor):
        if length.dtype.is_floating_point or length.dtype.is_complex or length.dtype == torch.bool:
            raise TypeError(f"length must be an integer tensor, got dtype {length.dtype}; pass length.long()")
    elif isinstance(length, (list, tuple)):
        for item in length:
            check_length(item)
        length = torch.tensor(length, dtype=torch.long)
    else:
        check_length(length)
        return torch.full((batch_size,), length, dtype=torch.long, device=device)
    if length.shape != (batch_size,):
        raise ValueError(
            f"length must hold one integer for each of the {batch_size} examples of the batch, got shape "
            f"{tuple(length.shape)}; pass an int for the whole batch or a list of {batch_size}"
        )
    # Reading a value back from an accelerator would stall a training step, so there only `generate` looks.
    if length.device.type == "cpu" and not torch.compiler.is_compiling():
        check_positive(length)
    return length.to(device=device, dtype=torch.long)


def check_positive(length: torch.Tensor) -> None:
    """Raise unless every length is at least 1."""
    if bool((length < 1).any()):
        raise ValueError(
            f"length must be at least 1 for every example, got {length.tolist()}; drop empty targets or pass length>=1"
        )
