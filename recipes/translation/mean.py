"""The weighted mean of two models of one shape, as the shipped translator was made of its two rounds of training.

    python recipes/translation/mean.py runs/first runs/second --share 0.7 --output_dir runs/mean

The mean kept what the second round learned (names, words of daily life) and lost less of what the first one knew.
"""

import argparse
import shutil
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file


def main(argv=None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs=2, help="folders; the second one's files are kept beside the weights")
    parser.add_argument("--share", type=float, default=0.5, help="of the second")
    parser.add_argument("--output_dir", required=True, help="new folder")
    args = parser.parse_args(argv)
    paths = [Path(model, "model.safetensors") for model in args.models]
    shutil.copytree(args.models[1], args.output_dir)
    first, second = (load_file(path) for path in paths)
    weights = {
        name: mean(first[name], value, args.share) if value.is_floating_point() else value
        for name, value in second.items()
    }
    with safe_open(paths[1], "pt") as file:
        save_file(weights, Path(args.output_dir, "model.safetensors"), metadata=file.metadata())


def mean(first, second, share: float):
    """Of two tensors, computed in float32."""
    return ((1 - share) * first.float() + share * second.float()).to(second.dtype)


if __name__ == "__main__":
    main()
