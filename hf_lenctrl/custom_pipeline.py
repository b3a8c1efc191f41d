"""The pipeline that a checkpoint brings with `trust_remote_code=True`: that of the installed package."""

from pathlib import Path
from typing import Any


# Not "length-controlled-generation": after an import of the package, transformers would ask for `trust_remote_code`.
TASK = "length-control"


class CustomPipeline:
    """
    Build the pipeline of the package for `transformers.pipeline(model=name, trust_remote_code=True)`.

    A checkpoint does not carry the whole pipeline, which is as large as all the code it carries. The package loads the
    model again, because its classes are not those of the checkpoint. Raises `ImportError` where the package is not
    installed.
    """

    # what transformers loads for a pipeline
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
        if not Path(name).is_dir():  # transformers keeps the code of the Hub in a folder named by its commit
            kwargs["revision"] = Path(__file__).parent.name
        return pipeline(name, tokenizer, **kwargs)


def custom_pipelines(auto_class: str) -> dict[str, dict[str, Any]]:
    """Return the entry of `config.json` with which transformers finds the pipeline of a model."""
    return {TASK: {"impl": f"custom_pipeline.{CustomPipeline.__name__}", "pt": [auto_class], "type": "text"}}
