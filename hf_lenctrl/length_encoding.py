"""Sinusoidal encodings of position, remaining length and length ratio: pure functions of tensors.

Every function maps tensors that broadcast to `(batch_size, sequence_length)` to `(batch_size, sequence_length, dim)`
in float32, even columns sine and odd columns cosine. Nothing is looked up in a table, so no length is out of range.
"""

import torch


def _wave(angle: torch.Tensor, dim: int) -> torch.Tensor:
    """Interleave sine and cosine of `angle (..., ceil(dim / 2))` into `(..., dim)`; an odd `dim` ends on a sine."""
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., :dim]


def _exponent(dim: int, device: torch.device) -> torch.Tensor:
    """2i / dim for i = 0 ... ceil(dim / 2) - 1."""
    if dim < 1:
        raise ValueError(f"dim must be at least 1, got {dim}; pass the model's d_model")
    return torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim  # (ceil(dim / 2),)


def sinusoidal(position: torch.Tensor, dim: int) -> torch.Tensor:
    r"""
    PE, `sin(position / 10000^(2i/dim))` and `cos(...)` (Vaswani et al. 2017; Takase & Okazaki 2019, eq. 1-2).

    Args:
        position (`torch.Tensor` of shape `(...)`): Positions, integers or floats, of any sign.
        dim (`int`): Width of the encoding, at least 1.

    Returns:
        `torch.FloatTensor` of shape `(..., dim)`.

    Example:

    ```python
    >>> import torch
    >>> from hf_lenctrl.length_encoding import sinusoidal
    >>> sinusoidal(torch.tensor([0, 1]), dim=4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])

    ```
    """
    return _wave(position.float().unsqueeze(-1) * 10000.0 ** -_exponent(dim, position.device), dim)


def ldpe(progress: torch.Tensor, length: torch.Tensor, dim: int) -> torch.Tensor:
    r"""
    Length-difference encoding: PE of the remaining length, `length - progress` (Takase & Okazaki 2019, eq. 3-4).

    Past the length the remaining length is negative, which the equations continue to define.

    Args:
        progress (`torch.Tensor` of shape `(batch_size, sequence_length)`): Units written before each position.
        length (`torch.Tensor` of shape `(batch_size, 1)`): Wanted units.
        dim (`int`): Width of the encoding, at least 1.

    Returns:
        `torch.FloatTensor` of shape `(batch_size, sequence_length, dim)`.

    Example:

    ```python
    >>> import torch
    >>> from hf_lenctrl.length_encoding import ldpe
    >>> ldpe(torch.tensor([[0, 1, 2]]), torch.tensor([[2]]), dim=2)
    tensor([[[ 0.9093, -0.4161],
             [ 0.8415,  0.5403],
             [ 0.0000,  1.0000]]])

    ```
    """
    return sinusoidal(length.float() - progress.float(), dim)  # in half precision the difference would be rounded


def lrpe(progress: torch.Tensor, length: torch.Tensor, dim: int) -> torch.Tensor:
    r"""
    Length-ratio encoding: `sin(progress / length^(2i/dim))` and `cos(...)` (Takase & Okazaki 2019, eq. 5-6).

    Args:
        progress (`torch.Tensor` of shape `(batch_size, sequence_length)`): Units written before each position.
        length (`torch.Tensor` of shape `(batch_size, 1)`): Wanted units, at least 1.
        dim (`int`): Width of the encoding, at least 1.

    Returns:
        `torch.FloatTensor` of shape `(batch_size, sequence_length, dim)`.
    """
    base = length.float().unsqueeze(-1)  # (B, 1, 1)
    return _wave(progress.float().unsqueeze(-1) * base ** -_exponent(dim, progress.device), dim)


def pre(progress: torch.Tensor, length: torch.Tensor, dim: int) -> torch.Tensor:
    r"""
    Progress-ratio encoding: `sin(r i)` and `cos(r i)` with `r = progress / length` clamped to [0, 1]
    (Botcazou et al. 2026, arXiv 2512.06938). It sees the ratio alone, so that an unseen length is no new input.

    Args:
        progress (`torch.Tensor` of shape `(batch_size, sequence_length)`): Units written before each position.
        length (`torch.Tensor` of shape `(batch_size, 1)`): Wanted units, at least 1.
        dim (`int`): Width of the encoding, at least 1.

    Returns:
        `torch.FloatTensor` of shape `(batch_size, sequence_length, dim)`.
    """
    ratio = (progress.float() / length.float()).clamp(0.0, 1.0).unsqueeze(-1)  # (B, T, 1)
    # r * dim/2 * x_j with x_j = 2 floor(j/2) / dim is r * i
    return _wave(ratio * (_exponent(dim, progress.device) * dim / 2), dim)


LENGTH_ENCODINGS = {"ldpe": ldpe, "lrpe": lrpe, "pre": pre}
