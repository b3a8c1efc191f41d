"""The class that loads a model: sequence-to-sequence or causal."""

from weakref import WeakKeyDictionary

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM


_OF_THE_HUB = ("revision", "token", "cache_dir", "local_files_only", "subfolder", "trust_remote_code", "code_revision")
# of each model that `pipeline(...)` loaded; not on the model, which may be pickled with a token
HUB_OPTIONS: WeakKeyDictionary = WeakKeyDictionary()


def auto_class(name, **kwargs):
    """`AutoModelForSeq2SeqLM` or `AutoModelForCausalLM`, by the configuration of `name`; `kwargs` as for these."""
    where = {key: kwargs[key] for key in _OF_THE_HUB if kwargs.get(key) is not None}
    config = kwargs.get("config") or AutoConfig.from_pretrained(name, **where)
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


class PipelineModel(AutoModelForSeq2SeqLM):
    """The model's own Auto class, and the Hub options for the predictor in its repository."""

    @classmethod
    def from_pretrained(cls, name, *args, **kwargs):
        model = auto_class(name, **kwargs).from_pretrained(name, *args, **kwargs)
        names = ("revision", "token", "cache_dir", "local_files_only")
        HUB_OPTIONS[model] = {name: kwargs[name] for name in names if kwargs.get(name) is not None}
        return model
