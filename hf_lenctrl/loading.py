"""Loading: the class of a model, sequence-to-sequence or causal, and a tokenizer that has a vocabulary."""

from typing import Any
from weakref import WeakKeyDictionary

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer


_OF_THE_HUB = ("revision", "token", "cache_dir", "local_files_only", "subfolder", "trust_remote_code", "code_revision")
# of each model that `pipeline(...)` loaded; not on the model, which may be pickled with a token
HUB_OPTIONS: WeakKeyDictionary = WeakKeyDictionary()


def auto_class(name, **kwargs):
    """`AutoModelForSeq2SeqLM` or `AutoModelForCausalLM`, by the configuration of `name`; `kwargs` as for these."""
    where = {key: kwargs[key] for key in _OF_THE_HUB if kwargs.get(key) is not None}
    config = kwargs.get("config") or AutoConfig.from_pretrained(name, **where)
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def tokenizer_of(name, **kwargs) -> Any:
    """
    `AutoTokenizer.from_pretrained`, for a folder or a name of the Hub that has a tokenizer.

    Raises:
        `ValueError`: where there is none: transformers makes one without a vocabulary then, or raises a `TypeError`.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **kwargs)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{_no_tokenizer(name)} ({error})") from error
    check_tokenizer(tokenizer, name)
    return tokenizer


def check_tokenizer(tokenizer, name, model=None) -> None:
    """
    See that a tokenizer has a vocabulary, and that it is the model's.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): `None` where none was found.
        name (`str`): Of the model, for messages.
        model (`PreTrainedModel`, *optional*): Whose tokenizer it is to be.

    Raises:
        `ValueError`: without entries beside the special ones, or with other numbers of them than the model's.
    """
    separate = getattr(tokenizer, "separate_vocabs", False)
    special = () if tokenizer is None else {*tokenizer.all_special_tokens, "<mask>"}
    vocabulary = {} if tokenizer is None else tokenizer.target_encoder if separate else tokenizer.get_vocab()
    entries = max((i + 1 for token, i in vocabulary.items() if token.strip("▁") and token not in special), default=0)
    if entries == 0:
        raise ValueError(_no_tokenizer(name))
    rows = entries if model is None else model.get_output_embeddings().weight.shape[0]
    padding = 512 if hasattr(model, "unit_table") else rows  # as `UnitTable.padded` has it; a plain model may have any
    if not entries <= rows < entries + padding:
        raise ValueError(
            f"the tokenizer has {entries} entries, the model {name} writes {rows}; pass the tokenizer that the model "
            "was trained with"
        )


def _no_tokenizer(name) -> str:
    return f"{name} has no tokenizer with a vocabulary; save one there: tokenizer.save_pretrained(...)"


class PipelineModel(AutoModelForSeq2SeqLM):
    """The model's own Auto class, and the Hub options for the predictor in its repository."""

    @classmethod
    def from_pretrained(cls, name, *args, **kwargs):
        model = auto_class(name, **kwargs).from_pretrained(name, *args, **kwargs)
        names = ("revision", "token", "cache_dir", "local_files_only")
        HUB_OPTIONS[model] = {name: kwargs[name] for name in names if kwargs.get(name) is not None}
        return model
