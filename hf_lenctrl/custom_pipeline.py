"""
The class that builds the pipeline of a checkpoint for `trust_remote_code=True`. `save_pretrained` copies this file
into the checkpoint. The copy calls the installed package `hf_lenctrl`.
"""

from pathlib import Path
from typing import Any


# The package has another task name. With the same name, transformers would ask for `trust_remote_code` after an import
# of the package.
TASK = "length-control"


class CustomPipeline:
    """
    Builder of the package's pipeline for `transformers.pipeline(model=name, trust_remote_code=True)`.

    A checkpoint has copies of the model classes. It has no copy of the pipeline, because this would double the code in
    the checkpoint. So the builder calls the installed package, which loads the model again with its own classes. Raise
    `ImportError` if the package is not installed.
    """

    # transformers reads these names to decide what it loads for a pipeline
    _load_tokenizer = True
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = False

    def __new__(cls, model, tokenizer, task=None, **kwargs) -> Any:
        name = model.name_or_path
        try:
            from hf_lenctrl import pipeline
        except ImportError as error:
            raise ImportError(
                f"the pipeline of {name} needs the package hf_lenctrl; install it from its repository, or load the "
                "model alone, with trust_remote_code=True, and call generate"
            ) from error
        if not Path(name).is_dir():  # transformers stores code from the Hub in a folder named after the commit
            kwargs["revision"] = Path(__file__).parent.name
        return pipeline(name, tokenizer, **kwargs)


def custom_pipelines(auto_class: str) -> dict[str, dict[str, Any]]:
    """
    Return the value of the field `custom_pipelines` in `config.json`. It tells transformers which class builds the
    pipeline of a model, and which Auto class (`auto_class`, such as `"AutoModelForCausalLM"`) loads the model.
    """
    return {TASK: {"impl": f"custom_pipeline.{CustomPipeline.__name__}", "pt": [auto_class], "type": "text"}}
