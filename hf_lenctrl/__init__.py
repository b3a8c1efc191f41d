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
    "UnitTable": "length_units",
    "count_units": "length_units",
    "LenCtrlBartModel": "modeling_lenctrl",
    "LenCtrlBartForConditionalGeneration": "modeling_lenctrl",
    "LenCtrlMarianModel": "modeling_lenctrl",
    "LenCtrlMarianMTModel": "modeling_lenctrl",
    "train_marian_tokenizer": "tokenizer_training",
    "DataCollatorForLengthControl": "data_collator",
    "length_metrics": "metrics",
}
__all__ = [*_MODULE_OF, "__version__"]

if TYPE_CHECKING:
    from .configuration_lenctrl import LenCtrlBartConfig as LenCtrlBartConfig
    from .configuration_lenctrl import LenCtrlMarianConfig as LenCtrlMarianConfig
    from .data_collator import DataCollatorForLengthControl as DataCollatorForLengthControl
    from .length_units import UnitTable as UnitTable
    from .length_units import count_units as count_units
    from .metrics import length_metrics as length_metrics
    from .modeling_lenctrl import LenCtrlBartForConditionalGeneration as LenCtrlBartForConditionalGeneration
    from .modeling_lenctrl import LenCtrlBartModel as LenCtrlBartModel
    from .modeling_lenctrl import LenCtrlMarianModel as LenCtrlMarianModel
    from .modeling_lenctrl import LenCtrlMarianMTModel as LenCtrlMarianMTModel
    from .tokenizer_training import train_marian_tokenizer as train_marian_tokenizer


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

    from . import modeling_lenctrl as models

    for base, head in (
        (models.LenCtrlBartModel, models.LenCtrlBartForConditionalGeneration),
        (models.LenCtrlMarianModel, models.LenCtrlMarianMTModel),
    ):
        config = base.config_class
        AutoConfig.register(config.model_type, config, exist_ok=True)
        AutoModel.register(config, base, exist_ok=True)
        AutoModelForSeq2SeqLM.register(config, head, exist_ok=True)
    AutoTokenizer.register(models.LenCtrlBartConfig, fast_tokenizer_class=BartTokenizer, exist_ok=True)
    AutoTokenizer.register(models.LenCtrlMarianConfig, slow_tokenizer_class=MarianTokenizer, exist_ok=True)


_AUTO = "transformers.models.auto.configuration_auto"  # every Auto class imports it
_WATCHED = ("transformers.", f"{__name__}.")


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
            if _AUTO in sys.modules and self in sys.meta_path and not _importing(except_for=fullname):
                sys.meta_path.remove(self)
                _register()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _importing(except_for: str) -> bool:
    """Whether some other module is still executing."""
    return any(
        getattr(getattr(module, "__spec__", None), "_initializing", False)
        for name, module in list(sys.modules.items())
        if name.startswith(_WATCHED) and name != except_for
    )


if _AUTO in sys.modules:
    _register()
else:
    sys.meta_path.insert(0, _RegisterAfterAuto())
