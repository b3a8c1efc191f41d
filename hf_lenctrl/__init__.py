"""Length control for Hugging Face sequence-to-sequence models: ask for a length, get it.

The one place of export and registration. `import hf_lenctrl` is light, as `import transformers` is: names are resolved
when they are used, and the models enter the Auto classes when those are first imported.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from typing import TYPE_CHECKING


__version__ = "0.1.0"

_MODULE_OF = {
    "LenCtrlBartConfig": "configuration_lenctrl",
    "LenCtrlMarianConfig": "configuration_lenctrl",
    "LenCtrlMBartConfig": "configuration_lenctrl",
    "LenCtrlPegasusConfig": "configuration_lenctrl",
    "LenCtrlM2M100Config": "configuration_lenctrl",
    "UnitTable": "length_units",
    "count_units": "length_units",
    "LenCtrlBartModel": "modeling_lenctrl",
    "LenCtrlBartForConditionalGeneration": "modeling_lenctrl",
    "LenCtrlMarianModel": "modeling_lenctrl",
    "LenCtrlMarianMTModel": "modeling_lenctrl",
    "LenCtrlMBartModel": "modeling_lenctrl",
    "LenCtrlMBartForConditionalGeneration": "modeling_lenctrl",
    "LenCtrlPegasusModel": "modeling_lenctrl",
    "LenCtrlPegasusForConditionalGeneration": "modeling_lenctrl",
    "LenCtrlM2M100Model": "modeling_lenctrl",
    "LenCtrlM2M100ForConditionalGeneration": "modeling_lenctrl",
    "LengthConstraintLogitsProcessor": "length_constraint",
    "LengthControlEnsemble": "generation",
    "rerank": "generation",
    "LengthPredictor": "length_predictor",
    "LengthPredictorConfig": "length_predictor",
    "load_predictor": "length_predictor",
    "LengthTokens": "length_tokens",
    "add_length_control": "conversion",
    "freeze_length": "freezing",
    "FixedLengthTranslator": "fixed_length",
    "LengthControlledGenerationPipeline": "pipeline",
    "length_report": "report",
    "train_marian_tokenizer": "tokenizer_training",
    "DataCollatorForLengthControl": "data_collator",
    "length_metrics": "metrics",
    "LengthControlTrainer": "trainer",
}
__all__ = [*_MODULE_OF, "__version__"]

if TYPE_CHECKING:
    from .configuration_lenctrl import LenCtrlBartConfig as LenCtrlBartConfig
    from .configuration_lenctrl import LenCtrlM2M100Config as LenCtrlM2M100Config
    from .configuration_lenctrl import LenCtrlMarianConfig as LenCtrlMarianConfig
    from .configuration_lenctrl import LenCtrlMBartConfig as LenCtrlMBartConfig
    from .configuration_lenctrl import LenCtrlPegasusConfig as LenCtrlPegasusConfig
    from .conversion import add_length_control as add_length_control
    from .data_collator import DataCollatorForLengthControl as DataCollatorForLengthControl
    from .fixed_length import FixedLengthTranslator as FixedLengthTranslator
    from .freezing import freeze_length as freeze_length
    from .generation import LengthControlEnsemble as LengthControlEnsemble
    from .generation import rerank as rerank
    from .length_constraint import LengthConstraintLogitsProcessor as LengthConstraintLogitsProcessor
    from .length_predictor import LengthPredictor as LengthPredictor
    from .length_predictor import LengthPredictorConfig as LengthPredictorConfig
    from .length_predictor import load_predictor as load_predictor
    from .length_tokens import LengthTokens as LengthTokens
    from .length_units import UnitTable as UnitTable
    from .length_units import count_units as count_units
    from .metrics import length_metrics as length_metrics
    from .modeling_lenctrl import LenCtrlBartForConditionalGeneration as LenCtrlBartForConditionalGeneration
    from .modeling_lenctrl import LenCtrlBartModel as LenCtrlBartModel
    from .modeling_lenctrl import LenCtrlM2M100ForConditionalGeneration as LenCtrlM2M100ForConditionalGeneration
    from .modeling_lenctrl import LenCtrlM2M100Model as LenCtrlM2M100Model
    from .modeling_lenctrl import LenCtrlMarianModel as LenCtrlMarianModel
    from .modeling_lenctrl import LenCtrlMarianMTModel as LenCtrlMarianMTModel
    from .modeling_lenctrl import LenCtrlMBartForConditionalGeneration as LenCtrlMBartForConditionalGeneration
    from .modeling_lenctrl import LenCtrlMBartModel as LenCtrlMBartModel
    from .modeling_lenctrl import LenCtrlPegasusForConditionalGeneration as LenCtrlPegasusForConditionalGeneration
    from .modeling_lenctrl import LenCtrlPegasusModel as LenCtrlPegasusModel
    from .pipeline import LengthControlledGenerationPipeline as LengthControlledGenerationPipeline
    from .report import length_report as length_report
    from .tokenizer_training import train_marian_tokenizer as train_marian_tokenizer
    from .trainer import LengthControlTrainer as LengthControlTrainer


def __getattr__(name: str):
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__():
    return sorted(__all__)


def _register() -> None:
    """Enter configs, models and tokenizers into the Auto classes."""
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForSeq2SeqLM,
        AutoTokenizer,
        BartTokenizer,
        MarianTokenizer,
    )

    from . import length_predictor
    from . import modeling_lenctrl as models

    length_predictor.register()
    for head in (
        models.LenCtrlBartForConditionalGeneration,
        models.LenCtrlMarianMTModel,
        models.LenCtrlMBartForConditionalGeneration,
        models.LenCtrlPegasusForConditionalGeneration,
        models.LenCtrlM2M100ForConditionalGeneration,
    ):
        config = head.config_class
        AutoConfig.register(config.model_type, config, exist_ok=True)
        AutoModel.register(config, head.model_class, exist_ok=True)
        AutoModelForSeq2SeqLM.register(config, head, exist_ok=True)
    # the others' checkpoints name their tokenizer: MBart or MBart50, M2M100 or Nllb
    AutoTokenizer.register(models.LenCtrlBartConfig, fast_tokenizer_class=BartTokenizer, exist_ok=True)
    AutoTokenizer.register(models.LenCtrlMarianConfig, slow_tokenizer_class=MarianTokenizer, exist_ok=True)


def _register_pipeline() -> None:
    """Enter the pipeline task."""
    from transformers import AutoModelForSeq2SeqLM
    from transformers.pipelines import PIPELINE_REGISTRY

    from .pipeline import LengthControlledGenerationPipeline

    PIPELINE_REGISTRY.register_pipeline(
        "length-controlled-generation",
        pipeline_class=LengthControlledGenerationPipeline,
        pt_model=AutoModelForSeq2SeqLM,
        type="text",
    )


# once this module of transformers is there -> what is to be done; every Auto class imports the first one
_WAITING = {"transformers.models.auto.configuration_auto": _register, "transformers.pipelines": _register_pipeline}
_WATCHED = ("transformers.", f"{__name__}.")


def _register_what_is_there() -> None:
    for module in [module for module in _WAITING if module in sys.modules]:
        _WAITING.pop(module)()


class _RegisterAfterAuto(importlib.abc.MetaPathFinder):
    """
    Registers once the Auto classes are there. Importing them here would pull in torch, which takes longer than all the
    rest; registering in the middle of their import would meet half-made modules, so the outermost import is awaited.
    """

    def find_spec(self, fullname, path=None, target=None):
        if not fullname.startswith(_WATCHED):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            if _WAITING and not _importing(except_for=fullname):
                _register_what_is_there()
                if not _WAITING and self in sys.meta_path:
                    sys.meta_path.remove(self)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _importing(except_for: str) -> bool:
    """Whether some other module is still executing."""
    return any(
        getattr(getattr(module, "__spec__", None), "_initializing", False)
        for name, module in list(sys.modules.items())
        if name.startswith(_WATCHED) and name != except_for
    )


_register_what_is_there()
if _WAITING:
    sys.meta_path.insert(0, _RegisterAfterAuto())
