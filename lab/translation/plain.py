"""Save the plain model within a translator that also works without a length: the same weights, and no length layer.

    python lab/translation/plain.py models/translate_to_english runs/plain

The benchmarks compare with it.
"""

import argparse

from transformers import AutoTokenizer

from hf_lenctrl import remove_length_control


def main(argv=None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a model with length_optional")
    parser.add_argument("output_dir", help="new folder")
    args = parser.parse_args(argv)
    remove_length_control(args.model).save_pretrained(args.output_dir)
    AutoTokenizer.from_pretrained(args.model).save_pretrained(args.output_dir)


if __name__ == "__main__":
    main()
