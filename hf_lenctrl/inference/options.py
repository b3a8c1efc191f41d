"""Types of a pipeline call, for type checkers and editors: the options and the output."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import CompileConfig, GenerationConfig, LogitsProcessor, StoppingCriteria
from transformers.generation.streamers import BaseStreamer


if TYPE_CHECKING:
    from ..length_predictor import LengthPredictor


Chat = Sequence[Mapping[str, str]]
Length = int | tuple[int, int] | str | Mapping[str, Any] | None
Predictor = str | Path | tuple["LengthPredictor", PreTrainedTokenizerBase] | None
Tolerance = int | float | tuple[int | float, int | float] | list[Any] | None


class GeneratedText(TypedDict):
    """The output of the pipeline for a text; see `LengthControlledGenerationPipeline`."""

    generated_text: str
    length: int
    requested_length: int | tuple[int, int] | None
    length_unit: str
    window: NotRequired[tuple[int, int]]
    lengths: NotRequired[dict[str, int]]
    score: NotRequired[float]
    low_score: NotRequired[bool]
    finish: NotRequired[str]
    thoughts: NotRequired[str]
    fault: NotRequired[str | None]


class GenerateOptions(TypedDict, total=False):
    """Options of `generate` in transformers; see its `GenerationConfig`."""

    generation_config: GenerationConfig
    logits_processor: Sequence[LogitsProcessor]
    stopping_criteria: Sequence[StoppingCriteria]
    prefix_allowed_tokens_fn: Callable[..., Any] | None
    assistant_model: PreTrainedModel
    streamer: BaseStreamer
    num_beams: int
    early_stopping: bool | str
    length_penalty: float
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    top_h: float
    min_p: float
    typical_p: float
    epsilon_cutoff: float
    eta_cutoff: float
    repetition_penalty: float
    encoder_repetition_penalty: float
    no_repeat_ngram_size: int
    encoder_no_repeat_ngram_size: int
    bad_words_ids: list[list[int]]
    sequence_bias: list[Any] | dict[tuple[int, ...], float]
    suppress_tokens: list[int]
    begin_suppress_tokens: list[int]
    forced_bos_token_id: int | None
    forced_eos_token_id: int | list[int] | None
    decoder_start_token_id: int
    bos_token_id: int
    eos_token_id: int | list[int]
    pad_token_id: int
    max_length: int
    max_new_tokens: int
    min_length: int
    min_new_tokens: int
    max_time: float
    stop_strings: str | list[str]
    guidance_scale: float
    renormalize_logits: bool
    remove_invalid_values: bool
    use_cache: bool
    cache_implementation: str
    cache_config: dict[str, Any]
    prefill_chunk_size: int
    disable_compile: bool
    compile_config: CompileConfig
    prompt_lookup_num_tokens: int
    num_assistant_tokens: int
    output_scores: bool
    output_logits: bool
    output_attentions: bool
    output_hidden_states: bool
    return_dict_in_generate: bool


class CallOptions(GenerateOptions, total=False):
    """
    Options of a pipeline call other than `length` and `num_return_sequences`; see
    `LengthControlledGenerationPipeline`.
    """

    length_ratio: float | tuple[float, float] | None
    length_unit: str | None
    length_constraint: str | None
    length_tolerance: Tolerance
    finish: str | None
    length_from: str | list[int] | None
    thinking_budget: int | None
    predictor: Predictor
    references: Sequence[str] | None
    truncation: bool
    rerank: bool | int
    choose: bool | None
    scores: bool
    min_score: float | None
    on_low_score: str
    batch_size: int | None
    batch_tokens: int | None
    progress_bar: bool | None


class Defaults(CallOptions, total=False):
    """Options that `hf_lenctrl.pipeline` takes as defaults for each call of the pipeline."""

    length: Length | list[Any]
    num_return_sequences: int
