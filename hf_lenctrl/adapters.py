"""Functions that save length control with a PEFT adapter, and load an adapter with its base model."""

import json
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedConfig
from transformers.utils import ADAPTER_CONFIG_NAME, find_adapter_config_file

from .configuration_lenctrl import LengthControlRules
from .length_signal import StoresUnitTable
from .length_units import COST
from .modeling_lenctrl_causal import LenCtrlForCausalLM


OF_THE_HUB = ("revision", "token", "cache_dir", "local_files_only", "subfolder")
_OF_THE_ADAPTER = ("config", "adapter_kwargs", "revision", "subfolder", "code_revision", "_commit_hash", "_from_auto")
BASE = Path("_run", "base_model")  # file with the base model's path in training; `_run/` is never uploaded
_SHAPE = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers")
_STUB = "Model Card for Model ID"  # title of PEFT's empty card


def is_adapter(name, **where) -> bool:
    """
    Return whether `name` is a folder that holds an adapter but no model weights, or a Hub repository that holds an
    adapter. `where` holds options of `from_pretrained`, such as `revision` and `subfolder`.
    """
    where = {key: where[key] for key in OF_THE_HUB if where.get(key) is not None}
    folder = Path(str(name), where.get("subfolder", ""))
    if folder.is_dir():
        weights = [*folder.glob("model*.safetensors*"), *folder.glob("pytorch_model*")]
        return Path(folder, ADAPTER_CONFIG_NAME).is_file() and not weights
    return not Path(str(name)).exists() and find_adapter_config_file(str(name), **where) is not None


def save_control(model, folder: str | Path) -> None:
    """
    Save the configuration of a length-controlled model as `config.json` in `folder`, the folder of its adapter. Then
    `load_adapter` can add length control to the plain base model. `model` is a `PeftModel`; if its base model has no
    length control, save nothing. Also delete the model card in the folder if it is PEFT's empty template.
    """
    config, card = model.get_base_model().config, Path(folder, "README.md")
    if hasattr(config, "length_encoding"):
        not_its = ("architectures", "auto_map", "custom_pipelines")
        fields = {name: value for name, value in config.to_dict().items() if name not in not_its}
        fields.pop("quantization_config", None)  # this field describes how the base model was loaded
        Path(folder, "config.json").write_text(json.dumps(fields, indent=2, default=str) + "\n", encoding="utf-8")
    if card.is_file() and _STUB in card.read_text(encoding="utf-8"):
        card.unlink()


def load_adapter(name, base_model=None, *, merge: bool = True, is_trainable: bool = False, **kwargs) -> Any:
    """
    Load an adapter's base model, add the length control that the adapter's folder stores, and attach the adapter.

    Args:
        name (`str`): Folder or Hub name of the adapter.
        base_model (`str` or `PreTrainedModel`, *optional*): The base model, given as a folder, a Hub name or a loaded
            model. By default it is the base model that is recorded with the adapter.
        merge (`bool`, *optional*, defaults to `True`): Merge the adapter's weights into the model's weights. If
            `False`, return the `PeftModel`.
        is_trainable (`bool`, *optional*, defaults to `False`): Keep the adapter trainable. Only used if `merge=False`.
        kwargs: Options of `from_pretrained` for the base model, such as `dtype`. `revision` and `subfolder` apply only
            to the adapter. `token`, `cache_dir` and `local_files_only` apply to both.

    Returns:
        The model with the adapter. It is in eval mode, unless `merge=False` and `is_trainable=True`.

    Raises:
        `OSError`: if there is no adapter, or if the base model cannot be loaded.
        `ValueError`: if the base model does not have the architecture and size that the adapter needs, or if the
            adapter's unit is `"cost"` and the base model has no length control.
    """
    from peft import PeftConfig, PeftModel

    where = {key: kwargs[key] for key in OF_THE_HUB if kwargs.get(key) is not None}
    try:
        named = PeftConfig.from_pretrained(name, **where).base_model_name_or_path
    except ValueError as error:  # PEFT raises it if there is no file adapter_config.json
        raise OSError(f"{name} is no adapter: {error}; give the folder or the Hub name of one") from error
    config = kwargs.get("config")
    if not hasattr(config, "length_encoding"):
        config = _own_config(name, **where)
    model = base_model if hasattr(base_model, "config") else _load_base(name, base_model, named, kwargs)
    if config is not None and not hasattr(model.config, "length_encoding"):
        tokenizer = AutoTokenizer.from_pretrained(name, **where)
        model = _with_control(model, config, tokenizer, name, kwargs)
    adapted = PeftModel.from_pretrained(model, name, is_trainable=is_trainable, **where)
    if not merge:
        return adapted
    merged = adapted.merge_and_unload().eval()
    for weight in merged.parameters():
        # unfreeze what PEFT froze; torch would copy a frozen head for each row if some positions get no logits
        weight.requires_grad_(weight.is_floating_point())
    merged.name_or_path = merged.config._name_or_path = str(name)
    return merged


def _own_config(name, **where) -> Any:
    """Return the configuration with length control that is stored with the adapter `name`; `None` if there is none."""
    try:
        fields = PreTrainedConfig.get_config_dict(name, **where)[0]
    except OSError:
        return None
    return AutoConfig.from_pretrained(name, **where) if "length_encoding" in fields else None


def _load_base(name, base_model: str | None, named: str | None, kwargs: dict) -> Any:
    """
    Load the base model of the adapter `name`: `base_model`, or else the folder that the training run recorded, if it
    exists, or else `named`, which `adapter_config.json` names. Raise `OSError` if it cannot be loaded.
    """
    for folder in (Path(str(name)), Path(str(name)).parent):  # a checkpoint's parent is the run's folder
        if base_model is None and Path(folder, BASE).is_file():
            trained_on = Path(folder, BASE).read_text(encoding="utf-8")
            base_model = trained_on if Path(trained_on).is_dir() else None
    base = base_model or named
    not_its = {*_OF_THE_ADAPTER, *LengthControlRules.__annotations__}
    own = {key: value for key, value in kwargs.items() if key not in not_its}
    hub = {key: own[key] for key in OF_THE_HUB if own.get(key) is not None}
    try:
        if base is None:
            raise OSError("its adapter_config.json names none")
        config = AutoConfig.from_pretrained(base, **hub)
        auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        return auto.from_pretrained(base, **own)
    except OSError as error:
        first = str(error).partition("\n")[0]
        raise OSError(
            f"the adapter {name} needs its base model {base}, which cannot be loaded ({first}); give its folder or "
            "Hub name as base_model"
        ) from error


def _with_control(plain, config, tokenizer, name, given: dict) -> Any:
    """
    Build a length-controlled model around the causal model `plain`. The options come from `given`, or else from
    `config`, which is stored with the adapter `name`.
    """
    pairs = {key: (getattr(config.text_config, key, None), getattr(plain.config, key, None)) for key in _SHAPE}
    if wrong := [f"{key}={now}, not {was}" for key, (was, now) in pairs.items() if was != now]:
        raise ValueError(
            f"the adapter {name} belongs to another base than {plain.name_or_path}, which has {'; '.join(wrong)}"
        )
    if config.length_unit == COST:
        raise ValueError(
            f"the adapter {name} counts a cost of its own; pass base_model=add_length_control(..., cost=...)"
        )
    fields = {key: getattr(config, key) for key in LengthControlRules.__annotations__ if key != "unit_states"}
    fields |= {key: value for key, value in given.items() if key in fields}
    model = LenCtrlForCausalLM.around(plain, **fields)
    model.set_unit_table(tokenizer)
    if (choice := getattr(config, "choice", None)) is not None:  # constants of the pipeline, such as its edits
        model.config.choice = choice
    return model


def _from_pretrained(name, **kwargs) -> Any:
    """
    Load the adapter `name` for `from_pretrained` of a length-controlled class. Return `None` if transformers must load
    the model itself: if `name` is no adapter, or if no length control is stored with it. An Auto class passes the base
    model as `name`, and the adapter in `adapter_kwargs`.
    """
    adapter = (kwargs.get("adapter_kwargs") or {}).get("_adapter_model_path")
    if name is None or not is_adapter(adapter or name, **kwargs):
        return None
    if adapter is not None and adapter != name:  # an Auto class found the base `name`, and `kwargs` are for the base
        kwargs = {**kwargs, "base_model": name}
        own = kwargs["adapter_kwargs"]
        if _own_config(adapter, **{key: own[key] for key in OF_THE_HUB if own.get(key) is not None}) is None:
            return None  # transformers then adds the adapter to the length-controlled base model
    return load_adapter(adapter or name, **kwargs)


StoresUnitTable._from_adapter = staticmethod(_from_pretrained)
