"""A wrapper around any language model, which adds the length encoding to the token embeddings."""

import copy
import inspect
from typing import Any

import torch
from transformers import GenerationMixin, PreTrainedModel
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from .cache import CACHE_NAMES
from .card import CardOnPush
from .generation import LengthControlledGeneration
from .length_signal import LengthSignal, StoresUnitTable, init_length_weights, tell_peft


# transformers looks these names up in the wrapper, but only the inner model has them. They are private in transformers
# 5.23.
_OF_INNER = (
    "_supports_sdpa",
    "_supports_flash_attn",
    "_supports_flex_attn",
    "_supports_attention_backend",
    "_can_compile_fullgraph",
    "_is_stateful",
    "_supports_default_dynamic_cache",
    "_prepare_cache_for_generation",  # Mamba and T5Gemma override this method
    "create_masks_for_generate",
)


class LengthControlWrapper(  # type: ignore[misc, override]
    CardOnPush, StoresUnitTable, LengthControlledGeneration, LengthSignal, PreTrainedModel, GenerationMixin
):
    """
    Base class of the models that wrap an inner model, `language_model`. The wrapper adds the length encoding to the
    token embeddings, and passes the sum to the inner model.

    Args:
        config (`LengthControlRules`): Configuration of the new model. Its `text_config` is the configuration of the
            inner model.
        language_model (`PreTrainedModel`, *optional*): The inner model to wrap. By default it is built from
            `config.text_config`.
    """

    inner_auto_class: type[_BaseAutoModelClass]  # builds the inner model from its configuration
    supports_gradient_checkpointing = True
    # These are private names of transformers 5.23. The wrapper has no attention of its own. Half precision would lose
    # small training steps.
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True
    _keep_in_fp32_modules_strict = {"length_projection", "length_embedding"}

    def __init__(self, config: Any, language_model: PreTrainedModel | None = None):
        config.validate()  # checks values set after construction (`from_pretrained(path, length=75)`)
        super().__init__(config)
        inner: Any = language_model
        if inner is None:
            inner = self.inner_auto_class.from_config(config.text_config)
        self.language_model = inner
        config.text_config = inner.config
        # The setter in transformers 5.23 would also change `text_config`.
        config._attn_implementation_internal = inner.config._attn_implementation
        for name in _OF_INNER:
            if hasattr(inner, name):
                setattr(self, name, getattr(inner, name))
        self._read_by_inner = set(inspect.signature(inner.forward).parameters)
        self.add_length_signal()
        self.post_init()
        tell_peft(config)

    @classmethod
    def around(cls, plain: Any, **fields) -> Any:
        """
        Build a length-controlled model around the model `plain`, which has no length control. The new model is in eval
        mode. `fields` are fields of `LengthControlRules`. Raise `ValueError` if `plain` cannot read a length from
        embeddings, see `check_taken`.
        """
        # A composite configuration passes its choice of attention to the inner configuration. If the choice were None,
        # the causal mask would be missing. transformers 5.23 has only a private name for the choice.
        attention = plain.config._attn_implementation
        config: Any = cls.config_class
        model = cls(config(**fields, text_config=plain.config, attn_implementation=attention), plain)
        for module in (getattr(model, name, None) for name in ("unit_table", "length_projection", "length_embedding")):
            if module is not None:
                module.to(plain.get_input_embeddings().weight.device)
        model.eval().check_taken()
        model.generation_config = copy.deepcopy(plain.generation_config)
        return model

    @torch.no_grad()
    def check_taken(self) -> None:
        """Raise `ValueError` if the inner model cannot read a length from embeddings, or be loaded after saving."""
        plain, embed, reason = self.language_model, self.embed_tokens, ""
        side = "decoder_" if self.config.is_encoder_decoder else ""
        # an encoder-decoder may look for padding ids, so the test avoids padding; a causal model must handle padding
        left_out = self.config.pad_token_id if side else None
        ids = torch.tensor([[i for i in range(5) if i != left_out][:4]], device=plain.device)
        given = {"use_cache": False} | ({"input_ids": ids} if side else {})
        built = type(plain.config) in (self.inner_auto_class._model_mapping or ())  # private in transformers 5.23
        if not built and not hasattr(plain.config, "auto_map"):
            reason = f"cannot be saved with a length, because {self.inner_auto_class.__name__} does not build it"
        elif plain.config.model_type == "reformer":
            reason = "pads ids to its chunks but not embeddings"
        elif plain.config.model_type == "prophetnet":  # training reads more than generation
            reason = "gives a token other logits in a longer text"
        elif (expected := plain(**given, **{f"{side}input_ids": ids}).logits).shape[-1] != embed.num_embeddings:
            reason = f"has {embed.num_embeddings} embeddings and {expected.shape[-1]} outputs"
        else:
            try:
                length = {"length": 4, "progress": torch.zeros_like(ids)} if self.config.length_controlled else {}
                if not torch.equal(expected, self(**given, **{f"{side}input_ids": ids}, **length).logits):
                    reason = "reads the ids as well as their embeddings"
                # no token has these embeddings, just as no token has embeddings with a length
                plain(**given, **{f"{side}inputs_embeds": 2 * embed(ids)})
            except Exception as error:
                reason = f"does not take embeddings in the place of ids ({type(error).__name__}: {error})"
        if reason:
            raise ValueError(f"{type(plain).__name__} {reason}, so it takes no length; use another architecture")

    def _counting_part(self) -> Any:
        return self

    @property
    def embed_tokens(self):
        """Return the token embeddings of the inner model, to which the length encoding is added."""
        return self.language_model.get_input_embeddings()

    def get_input_embeddings(self):
        return self.language_model.get_input_embeddings()

    def set_input_embeddings(self, value):
        self.language_model.set_input_embeddings(value)

    def get_output_embeddings(self):
        return self.language_model.get_output_embeddings()

    def set_output_embeddings(self, new_embeddings):
        self.language_model.set_output_embeddings(new_embeddings)

    def get_decoder(self):
        return self.language_model.get_decoder()

    def is_custom_code(self) -> bool:  # type: ignore[override]
        """Return whether the inner model is of custom code; transformers does not fill the buffers of such a model."""
        return self.language_model.is_custom_code()

    @property
    def loss_function(self):
        """Return the loss function of the inner model."""
        return self.language_model.loss_function

    @loss_function.setter
    def loss_function(self, value):
        self.language_model.loss_function = value

    @torch.no_grad()
    def _init_weights(self, module):
        init_length_weights(module, self.config)  # the inner model initializes its own weights

    def resize_token_embeddings(self, *args, **kwargs):
        """Resize the token embeddings and the unit table, see `_LengthControlBase.resize_token_embeddings`."""
        embeddings = self.language_model.resize_token_embeddings(*args, **kwargs)
        self.resize_unit_table()
        return embeddings

    def _get_candidate_generator(self, generation_config, *args, **kwargs):
        """
        Build the candidate generator, as the base class does. Raise `ValueError` if `assistant_early_exit` is set,
        because transformers 5.23 looks for the layers under a name that the class of the model sets.
        """
        if (layers := generation_config.assistant_early_exit) is not None:
            raise ValueError(
                f"a wrapped model cannot draft with its first layers, got assistant_early_exit={layers}; pass "
                "assistant_model=draft or prompt_lookup_num_tokens=3"
            )
        return super()._get_candidate_generator(generation_config, *args, **kwargs)

    def _run_inner(self, arguments: dict[str, Any], cache, **some):
        """
        Run the inner model with `arguments`, and with the cache and other arguments that it accepts and that are not
        `None`.
        """
        for name in ("output_attentions", "output_hidden_states", "return_dict"):
            if arguments.get(name) is None and getattr(self.config, name) != getattr(self.config.text_config, name):
                arguments[name] = getattr(self.config, name)
        some |= dict.fromkeys(CACHE_NAMES, cache)
        arguments |= {name: x for name, x in some.items() if x is not None and name in self._read_by_inner}
        return self.language_model(**arguments)
