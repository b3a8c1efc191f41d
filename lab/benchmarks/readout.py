"""How far one linear reader can tell the last position from the 15 before it, in an encoding under noise.

    python lab/benchmarks/readout.py [--dim 192] [--noise 0.5]

The reader is Fisher's, fitted on the encodings of all lengths from 20 to 80 under independent noise of the given
standard deviation. The embeddings of tokens, to which an encoding is added, had 0.5 in the trained models of
docs/results/methods.md; dropout adds to it. Printed at each length is the reader's value at the end less its largest
before it, over the noise in that value: with 3 there is hardly an error, with 0.3 there are many.
"""

import argparse
from collections.abc import Callable, Sequence

import torch

from hf_lenctrl.length_encoding import ldpe, lrpe, pre


def margins(encoding: Callable, dim: int, noise: float, lengths: Sequence[int]) -> list[float]:
    """At each of `lengths`, the margin of the end over the positions before it, in deviations of the noise."""
    length = torch.arange(20, 81).unsqueeze(-1)
    remaining = torch.arange(16).expand(len(length), -1)
    encoded = encoding(length - remaining, length, dim).double()  # (lengths, 16, dim)
    centred = encoded.flatten(0, 1) - encoded.mean((0, 1))
    covariance = centred.T @ centred / len(centred) + noise**2 * torch.eye(dim, dtype=torch.double)
    reader = torch.linalg.solve(covariance, encoded[:, 0].mean(0) - encoded.mean((0, 1)))
    value = encoded @ reader  # (lengths, 16)
    margin = (value[:, 0] - value[:, 1:].amax(1)) / (noise * reader.norm())
    return [margin[requested - 20].item() for requested in lengths]


def main(argv=None) -> None:
    """Print a line for each encoding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=192)
    parser.add_argument("--noise", type=float, default=0.5)
    args = parser.parse_args(argv)
    for encoding in (ldpe, lrpe, pre):
        figures = margins(encoding, args.dim, args.noise, (30, 50, 75))
        print(f"{encoding.__name__}: " + " / ".join(f"{figure:.2f}" for figure in figures) + " at 30 / 50 / 75")


if __name__ == "__main__":
    main()
