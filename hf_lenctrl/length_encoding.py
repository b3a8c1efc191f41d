"""Sinusoidal encodings of position, remaining length and length ratio: pure functions of tensors.

`ldpe`, `lrpe` and `pre` have three arguments: `progress (batch_size, sequence_length)` is the number of units produced
before each position, `length (batch_size, 1)` is the length in units, at least 1, and `dim` is the width of the
encoding, at least 1. These functions return `(batch_size, sequence_length, dim)` in float32: even columns are sines,
odd columns are cosines. They use no table, so no length is out of range. The functions `fairseq_*` compute the
formulas of the code of Takase & Okazaki (2019), which differ from the equations of their paper.
"""

import math
from functools import lru_cache

import torch


_LOG_10000 = math.log(10000.0)


def _make_columns(dim: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Return two tensors `(dim,)` for the columns `j` of an encoding: the exponent `2 floor(j/2) / dim`, and the phase,
    pi/2 in odd columns, which makes the sine a cosine.
    """
    j = torch.arange(dim, device=device)
    return (j - j % 2).float() / dim, (j % 2) * (math.pi / 2)  # (dim,) each


_kept_columns = lru_cache(maxsize=32)(_make_columns)


def _columns(dim, device):
    # The cache of `_kept_columns` would make torch.compile warn.
    return (_make_columns if torch.compiler.is_compiling() else _kept_columns)(dim, device)


def sinusoidal(position: torch.Tensor, dim: int) -> torch.Tensor:
    """
    Return the sinusoidal encoding PE: `sin(position / 10000^(2i/dim))` in column `2i`, and `cos` of the same angle in
    column `2i + 1` (Vaswani et al. 2017; Takase & Okazaki 2019, eq. 1-2).

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
    exponent, phase = _columns(dim, position.device)
    return torch.addcmul(phase, position.float().unsqueeze(-1), torch.pow(10000.0, -exponent)).sin()


def ldpe(progress: torch.Tensor, length: torch.Tensor, dim: int) -> torch.Tensor:
    """
    Return the length-difference encoding LDPE: the encoding PE (`sinusoidal`) of the remaining length,
    `length - progress` (Takase & Okazaki 2019, eq. 3-4).

    After more than `length` units, the remaining length is negative. The equations hold for negative numbers too.

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
    """
    Return the length-ratio encoding LRPE: `sin(progress / length^(2i/dim))` in column `2i`, and `cos` of the same
    angle in column `2i + 1` (Takase & Okazaki 2019, eq. 5-6).
    """
    exponent, phase = _columns(dim, progress.device)
    frequency = length.float().unsqueeze(-1) ** -exponent  # (B, 1, d)
    return torch.addcmul(phase, progress.float().unsqueeze(-1), frequency).sin()


def pre(progress: torch.Tensor, length: torch.Tensor, dim: int, noise: float = 0.0) -> torch.Tensor:
    """
    Return the progress-ratio encoding PRE: `sin(r i)` in column `2i`, and `cos(r i)` in column `2i + 1`, with
    `r = progress / length` clamped to [0, 1] (Botcazou et al. 2026, arXiv 2512.06938). PRE depends only on the ratio,
    so an unseen length does not lead to inputs outside the trained range.

    `noise` is the standard deviation of Gaussian noise, which is added to the ratio before the clamp, independently
    for each position.
    """
    ratio = (progress.float() / length.float()).unsqueeze(-1)  # (B, T, 1)
    if noise:
        ratio = ratio + noise * torch.randn_like(ratio)
    ratio = ratio.clamp(0.0, 1.0)
    exponent, phase = _columns(dim, progress.device)
    return torch.addcmul(phase, ratio, exponent * (dim / 2)).sin()  # r * dim/2 * x_j with x_j = 2 floor(j/2) / dim


def fairseq_sinusoidal(argument: torch.Tensor, dim: int, log_base: float | torch.Tensor = _LOG_10000) -> torch.Tensor:
    """
    Return the sinusoidal encoding PE by fairseq's formula. With `h = dim // 2`, the first h columns are
    `sin(argument / base^(k / (h - 1)))` for k from 0 to h - 1, and the next h columns are the cosines of the same
    angles. If `dim` is odd, a column of zeros follows.

    Args:
        argument (`torch.Tensor` of shape `(...)`): Integers or floats, of any sign. The function uses them unchanged.
            The first position of fairseq is 2, so the caller must add 2 to positions that start at 0.
        dim (`int`): Width of the encoding, at least 1.
        log_base (`float` or `torch.Tensor` of shape `(..., 1)`, *optional*): Logarithm of the base; the default base
            is 10,000.

    Returns:
        `torch.FloatTensor` of shape `(..., dim)`.
    """
    half = dim // 2
    step = log_base / max(half - 1, 1)
    frequency = (torch.arange(half, device=argument.device).float() * -step).exp()  # (..., h); rounded like fairseq's
    angle = argument.float().unsqueeze(-1) * frequency
    return torch.nn.functional.pad(torch.cat([angle.sin(), angle.cos()], dim=-1), (0, dim % 2))


def fairseq_ldpe(progress: torch.Tensor, length: torch.Tensor, dim: int) -> torch.Tensor:
    """
    Return LDPE as in Takase & Okazaki's code: PE (`fairseq_sinusoidal`) of `length - progress + 2`. Neither `length`
    nor `progress` counts EOS. When EOS should follow, the argument of PE is 2. If the text is one unit too long, the
    argument is 1. The function then returns zeros, because 1 is the index of the padding row in fairseq.
    """
    argument = length.float() - progress.float() + 2  # (B, T)
    return fairseq_sinusoidal(argument, dim) * (argument != 1).unsqueeze(-1)


def fairseq_lrpe(progress: torch.Tensor, length: torch.Tensor, dim: int) -> torch.Tensor:
    """
    Return LRPE as in Takase & Okazaki's code: PE (`fairseq_sinusoidal`) of `progress + 2`, with the base `length + 1`.
    The first position of fairseq is 2. The code of Takase & Okazaki counts EOS in the length; `length` does not.
    """
    return fairseq_sinusoidal(progress.float() + 2, dim, log_base=(length.float() + 1).log().unsqueeze(-1))


# "pre_noise" is "pre" except in training, see `LengthSignal.encode_length`.
LENGTH_ENCODINGS = {"ldpe": ldpe, "lrpe": lrpe, "pre": pre, "pre_noise": pre}
FAIRSEQ_ENCODINGS = {"ldpe": fairseq_ldpe, "lrpe": fairseq_lrpe}
