"""The class that loads a model: sequence-to-sequence or causal."""

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM


_OF_THE_HUB = ("revision", "token", "cache_dir", "local_files_only", "subfolder", "trust_remote_code", "code_revision")


def auto_class(name, **kwargs):
    """`AutoModelForSeq2SeqLM` or `AutoModelForCausalLM`, by the configuration of `name`; `kwargs` as for these."""
    where = {key: kwargs[key] for key in _OF_THE_HUB if kwargs.get(key) is not None}
    config = kwargs.get("config") or AutoConfig.from_pretrained(name, **where)
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
