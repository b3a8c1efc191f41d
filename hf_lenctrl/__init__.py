"""Length control for Hugging Face sequence-to-sequence models: ask for a length, get it.

The one place of export and of registration: with this import the Auto classes and `pipeline` know the models.
"""

import sys
from typing import TYPE_CHECKING

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartTokenizer,
    MarianTokenizer,
    T5Tokenizer,
)
from transformers.pipelines import PIPELINE_REGISTRY

from . import configuration_lenctrl as _configurations
from . import length_predictor as _length_predictor
from . import modeling_lenctrl as _models
from .adapters import load_adapter
from .configuration_lenctrl import *  # noqa: F403
from .conversion import PipelineModel, add_length_control
from .evaluation.metrics import length_metrics
from .evaluation.report import length_report
from .fixed_length.ctranslate2 import FixedLengthTranslator
from .fixed_length.freezing import freeze_length
from .inference.ensemble import LengthControlEnsemble
from .inference.fit import Fitted, fit, fit_async
from .inference.pipeline import LengthControlledGenerationPipeline
from .inference.ranking import rerank
from .length_constraint import LengthConstraintLogitsProcessor
from .length_predictor import LengthPredictor, LengthPredictorConfig, load_predictor
from .length_tokens import LengthTokens
from .length_units import UnitTable, count_units
from .modeling_lenctrl import *  # noqa: F403
from .modeling_lenctrl_causal import LenCtrlForCausalLM
from .training.collator import DataCollatorForLengthControl
from .training.tokenizer import train_marian_tokenizer


if TYPE_CHECKING:
    from .training.trainer import LengthControlTrainer

__version__ = "0.1.0"
__all__ = [
    *_configurations.__all__,
    *_models.__all__,
    "DataCollatorForLengthControl",
    "FixedLengthTranslator",
    "LenCtrlForCausalLM",
    "LengthConstraintLogitsProcessor",
    "LengthControlEnsemble",
    "LengthControlTrainer",
    "LengthControlledGenerationPipeline",
    "LengthPredictor",
    "LengthPredictorConfig",
    "LengthTokens",
    "UnitTable",
    "Fitted",
    "add_length_control",
    "count_units",
    "fit",
    "fit_async",
    "freeze_length",
    "load_adapter",
    "length_metrics",
    "length_report",
    "load_predictor",
    "rerank",
    "train_marian_tokenizer",
    "__version__",
]


def __getattr__(name: str):
    """`LengthControlTrainer` when it is used: Trainer imports `datasets`, which generation does without."""
    if name != "LengthControlTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .training.trainer import LengthControlTrainer

    return LengthControlTrainer


# where public names stood before 0.2
for _old, _new in {
    "data_collator": "training.collator",
    "ensemble": "inference.ensemble",
    "freezing": "fixed_length.freezing",
    "metrics": "evaluation.metrics",
    "pipeline": "inference.pipeline",
    "report": "evaluation.report",
    "reranking": "inference.ranking",
    "tokenizer_training": "training.tokenizer",
}.items():
    sys.modules[f"{__name__}.{_old}"] = sys.modules[f"{__name__}.{_new}"]

# for checkpoints that do not name their tokenizer; MBart, M2M100 and Pegasus have several, so theirs must
_TOKENIZERS = {"bart": BartTokenizer, "marian": MarianTokenizer, **dict.fromkeys(("t5", "mt5", "umt5"), T5Tokenizer)}

_length_predictor.register()
for _family, _head in _models.FAMILIES.items():
    _config = _head.config_class
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModel.register(_config, _head.model_class, exist_ok=True)
    AutoModelForSeq2SeqLM.register(_config, _head, exist_ok=True)
    if _family in _TOKENIZERS:
        AutoTokenizer.register(_config, tokenizer_class=_TOKENIZERS[_family], exist_ok=True)
AutoConfig.register("lenctrl_causal_lm", LenCtrlForCausalLM.config_class, exist_ok=True)
AutoModelForCausalLM.register(LenCtrlForCausalLM.config_class, LenCtrlForCausalLM, exist_ok=True)
PIPELINE_REGISTRY.register_pipeline(
    "length-controlled-generation",
    pipeline_class=LengthControlledGenerationPipeline,
    pt_model=PipelineModel,
    type="text",
)
