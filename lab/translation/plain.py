"""Extract the plain model from a translator that also works without a length: the same weights, and no length layer.

    python lab/translation/plain.py models/translate_to_english runs/plain

The result is a stock `MarianMTModel`, which generates the same texts as the translator without a length. The
benchmarks compare with it.
"""

import argparse

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel

import hf_lenctrl  # noqa: F401, registers the models


def main(argv=None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a Marian model with length_optional")
    parser.add_argument("output_dir", help="new folder")
    args = parser.parse_args(argv)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model)
    if not (getattr(model.config, "length_optional", False) and model.config.model_type == "lenctrl_marian"):
        raise ValueError(f"{args.model} must be a Marian model with length_optional; it has no plain model within")
    fields = MarianConfig().to_dict().keys() - {"model_type", "architectures", "transformers_version"}
    config = MarianConfig(**{name: value for name, value in model.config.to_dict().items() if name in fields})
    plain = MarianMTModel(config).to(model.dtype)
    weights = {name: value for name, value in model.state_dict().items() if name in plain.state_dict()}
    plain.load_state_dict(weights)
    plain.generation_config = model.generation_config
    plain.save_pretrained(args.output_dir)
    AutoTokenizer.from_pretrained(args.model).save_pretrained(args.output_dir)


if __name__ == "__main__":
    main()
