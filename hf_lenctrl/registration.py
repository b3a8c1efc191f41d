"""Registration of the models in the Auto classes and in `pipeline` of transformers, without importing the models.

transformers keeps classes in tables, such as `CONFIG_MAPPING`. Importing a model class takes seconds, so each table
gets a `Lazy` mapping, which imports a class when the class is looked up. Then `import hf_lenctrl` imports no model,
and `lenctrl --help` needs no torch.
"""

import importlib
import sys
from collections.abc import Iterator, MutableMapping
from importlib.abc import MetaPathFinder
from typing import Any


# For each model type in Transformers: our model with a language-model head, our base model, and the tokenizer for
# checkpoints that name no tokenizer. mBART, M2M100 and Pegasus have several tokenizers, so their checkpoints must name
# theirs.
FAMILIES = {
    "bart": ("LenCtrlBartForConditionalGeneration", "LenCtrlBartModel", "BartTokenizer"),
    "marian": ("LenCtrlMarianMTModel", "LenCtrlMarianModel", "MarianTokenizer"),
    "mbart": ("LenCtrlMBartForConditionalGeneration", "LenCtrlMBartModel", None),
    "pegasus": ("LenCtrlPegasusForConditionalGeneration", "LenCtrlPegasusModel", None),
    "m2m_100": ("LenCtrlM2M100ForConditionalGeneration", "LenCtrlM2M100Model", None),
    "t5": ("LenCtrlT5ForConditionalGeneration", "LenCtrlT5Model", "T5Tokenizer"),
    "mt5": ("LenCtrlMT5ForConditionalGeneration", "LenCtrlMT5Model", "T5Tokenizer"),
    "umt5": ("LenCtrlUMT5ForConditionalGeneration", "LenCtrlUMT5Model", "T5Tokenizer"),
}
_CONFIGS = {kind: f"hf_lenctrl.configuration_lenctrl:{base[:-5]}Config" for kind, (_, base, _) in FAMILIES.items()}
_CAUSAL = "hf_lenctrl.configuration_lenctrl:LenCtrlCausalLMConfig"
_SEQ2SEQ = "hf_lenctrl.configuration_lenctrl:LenCtrlSeq2SeqLMConfig"
_PREDICTOR = "hf_lenctrl.length_predictor:LengthPredictor"
_MODELING = "hf_lenctrl.modeling_lenctrl:"
# For each module of transformers: its tables and their new items. A value "module:name" is imported when looked up.
TABLES: dict[str, dict[str, dict[str, str]]] = {
    "transformers.models.auto.configuration_auto": {
        "CONFIG_MAPPING": {
            **{f"lenctrl_{kind}": config for kind, config in _CONFIGS.items()},
            "lenctrl_causal_lm": _CAUSAL,
            "lenctrl_seq2seq_lm": _SEQ2SEQ,
            "length_predictor": f"{_PREDICTOR}Config",
        }
    },
    "transformers.models.auto.modeling_auto": {
        "MODEL_MAPPING": {
            **{_CONFIGS[kind]: _MODELING + base for kind, (_, base, _) in FAMILIES.items()},
            f"{_PREDICTOR}Config": _PREDICTOR,
        },
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING": {
            **{_CONFIGS[kind]: _MODELING + head for kind, (head, _, _) in FAMILIES.items()},
            _SEQ2SEQ: "hf_lenctrl.modeling_lenctrl_seq2seq:LenCtrlForSeq2SeqLM",
        },
        "MODEL_FOR_CAUSAL_LM_MAPPING": {_CAUSAL: "hf_lenctrl.modeling_lenctrl_causal:LenCtrlForCausalLM"},
    },
    "transformers.models.auto.tokenization_auto": {
        "TOKENIZER_MAPPING": {
            _CONFIGS[kind]: f"transformers:{tokenizer}" for kind, (_, _, tokenizer) in FAMILIES.items() if tokenizer
        }
    },
    "transformers.pipelines": {
        "PIPELINE_REGISTRY": {"length-controlled-generation": "hf_lenctrl.inference.pipeline:TASK"}
    },
}


def load(place: str) -> Any:
    """
    Import and return the object that `"module:name"` names. If it is in a module of models, import `adapters` too,
    because `from_pretrained` of a model loads adapters only then.
    """
    module, _, name = place.partition(":")
    if module.startswith("hf_lenctrl.modeling_"):
        importlib.import_module("hf_lenctrl.adapters")
    return getattr(importlib.import_module(module), name)


class Lazy(MutableMapping):
    """
    A mapping that joins two mappings, `known` and `places`. The values of `known` are objects. The values of `places`
    are strings `"module:name"`, and a look-up imports and returns the object with this name. A key of `places` may
    also be such a string, which stands for a class. The look-up key is then the class itself, and iterating over the
    keys imports the class and yields it.
    """

    def __init__(self, known: MutableMapping, places: dict[str, str]):
        self.known, self.places = known, places

    def _place(self, key: Any) -> str | None:
        return self.places.get(f"{key.__module__}:{key.__name__}" if isinstance(key, type) else key)

    def __contains__(self, key: object) -> bool:
        return key in self.known or self._place(key) is not None

    def __getitem__(self, key: Any) -> Any:
        place = None if key in self.known else self._place(key)
        return self.known[key] if place is None else load(place)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.known[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.known[key]

    def __iter__(self) -> Iterator[Any]:
        yield from self.known
        own = (load(key) if ":" in key else key for key in self.places)
        yield from (key for key in own if key not in self.known)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _fill(name: str) -> None:
    """Add the items of `TABLES[name]` to the tables of `name`, an imported module of transformers."""
    for table, places in TABLES[name].items():
        mapping = getattr(sys.modules[name], table)
        # transformers stores registered classes in this attribute, which is private in transformers 5.23.
        attribute = "supported_tasks" if table == "PIPELINE_REGISTRY" else "_extra_content"
        if not isinstance(getattr(mapping, attribute), Lazy):
            setattr(mapping, attribute, Lazy(getattr(mapping, attribute), places))


class _Filler(MetaPathFinder):
    """An import hook: after the other finders have loaded a module in `TABLES`, `_fill` adds our classes to it."""

    def find_spec(self, name, path=None, target=None):
        """Return the import spec of a module in `TABLES`; `None` for all other modules."""
        if name not in TABLES:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                _fill(name)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Register the models in the tables of transformers, now or as soon as their modules are imported."""
    for name in TABLES:
        if name in sys.modules:
            _fill(name)
    if not any(type(finder).__name__ == _Filler.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _Filler())
