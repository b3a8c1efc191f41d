"""A frozen model in CTranslate2: its export, and texts in, texts of the fixed length out."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from .length_units import count_units


logger = logging.getLogger(__name__)

FOLDER = "ctranslate2"  # beside the frozen model and its tokenizer


def _ctranslate2():
    try:
        import ctranslate2
    except ImportError as error:
        raise ImportError("a fixed length at full speed needs CTranslate2: pip install 'hf_lenctrl[fast]'") from error
    return ctranslate2


def check_quantization(quantization: str | None, device: str = "cpu", name: str = "quantization") -> None:
    """
    Raise for weights that this machine cannot compute with.

    Raises:
        `ImportError`: without CTranslate2.
        `ValueError`: for a quantisation that the device lacks, or that there is none of, or a device that is not here.
    """
    try:
        supported = sorted(_ctranslate2().get_supported_compute_types(device))
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"device={device!r} cannot be used here: {error}; use device='cpu'") from error
    if quantization is not None and quantization not in supported:
        raise ValueError(
            f"{name} must be one that this {device} computes in, {', '.join(supported)}, got {quantization!r}; "
            "leave it out for the weights as they are"
        )


@torch.no_grad()
def export_ctranslate2(frozen, tokenizer, output_dir: str | Path, quantization: str | None = None) -> None:
    """
    Write a frozen model in CTranslate2's format.

    Its library's own converter reads what it needs from files and takes `<pad>` for the last entry of each Marian
    vocabulary and its embedding for zero; here entries stay where they are, so that ids are those of the tokenizer.

    Args:
        frozen (`PreTrainedModel`): What `freeze_length` returned.
        tokenizer (`PreTrainedTokenizerBase`): The model's.
        output_dir (`str` or `Path`): A folder that does not exist.
        quantization (`str`, *optional*): `"float32"`, `"int8"`, ... by default the weights as they are.

    Raises:
        `ImportError`: without CTranslate2.
        `ValueError`: for a folder that exists, a quantisation that this CPU lacks, a model that does not say where it
            starts, or whose encoder and decoder have another number of heads.
    """
    check_quantization(quantization)
    from ctranslate2.converters.transformers import BartLoader, M2M100Loader

    output_dir, config, settings = Path(output_dir), frozen.config, frozen.generation_config
    if output_dir.exists():
        raise ValueError(f"{output_dir} exists; name another folder")
    if config.encoder_attention_heads != config.decoder_attention_heads:
        raise ValueError(
            f"CTranslate2 wants as many heads in the encoder as in the decoder, got {config.encoder_attention_heads} "
            f"and {config.decoder_attention_heads}; use the frozen model in transformers"
        )
    if settings.decoder_start_token_id is None:
        raise ValueError(
            "the model does not say where its outputs start; set generation_config.decoder_start_token_id"
        )
    # all families are BART with norms in other places, as the configuration of a frozen model says
    loader = M2M100Loader() if config.model_type == "m2m_100" else BartLoader()
    spec = loader.get_model_spec(frozen)
    separate = getattr(tokenizer, "separate_vocabs", False)
    source = _entries(tokenizer, tokenizer.get_vocab(), frozen.get_encoder().embed_tokens.num_embeddings)
    vocabulary = tokenizer.target_encoder if separate else tokenizer.get_vocab()
    target = _entries(tokenizer, vocabulary, frozen.get_output_embeddings().weight.shape[0])
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    ends = settings.eos_token_id
    spec.config.eos_token = target[ends[0] if isinstance(ends, list) else ends]
    spec.config.bos_token = tokenizer.bos_token or spec.config.eos_token
    spec.config.unk_token = tokenizer.unk_token
    spec.config.decoder_start_token = target[settings.decoder_start_token_id]
    spec.validate()
    spec.optimize(quantization=quantization)
    output_dir.mkdir(parents=True)
    spec.save(str(output_dir))


def _entries(tokenizer, vocabulary: dict[str, int], size: int) -> list[str]:
    """A name for each row of an embedding, also for those that the tokenizer does not know."""
    names = [f"madeupword{i}" for i in range(size)]
    special = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    for name, i in (special | vocabulary).items():
        if i < size:
            names[i] = name
    return names


class FixedLengthTranslator:
    """
    `FixedLengthTranslator(folder)(texts)`: a frozen model at the speed of CTranslate2.

    Args:
        folder (`str` or `Path`): What `recipes/export.py` wrote.
        device (`str`, *optional*, defaults to `"cpu"`): Or `"cuda"`.
        compute_type (`str`, *optional*): `"float32"`, `"int8"`, ... by default the weights' own.
        threads (`int`, *optional*, defaults to 0): Threads of a batch; 0 lets CTranslate2 choose.

    Raises:
        `ImportError`: without CTranslate2.
        `ValueError`: for a folder that holds no export, a quantisation that the device lacks, or no such device.
    """

    def __init__(self, folder: str | Path, *, device: str = "cpu", compute_type: str | None = None, threads: int = 0):
        check_quantization(compute_type, device, "compute_type")
        self.folder = Path(folder)
        if not (self.folder / FOLDER / "model.bin").is_file():
            raise ValueError(
                f"{self.folder} holds no export for CTranslate2; make one: python recipes/export.py model_folder "
                "--length 75 --output_dir out"
            )
        self.tokenizer: Any = AutoTokenizer.from_pretrained(self.folder)
        self.settings = GenerationConfig.from_pretrained(self.folder)
        self.config: Any = AutoConfig.from_pretrained(self.folder)
        self.translator = _ctranslate2().Translator(
            str(self.folder / FOLDER), device=device, compute_type=compute_type or "default", intra_threads=threads
        )
        self.source, self.target = (self._vocabulary(side) for side in ("source", "target"))
        self.number = {name: i for i, name in enumerate(self.target)}

    def _vocabulary(self, side: str) -> list[str]:
        path = self.folder / FOLDER / f"{side}_vocabulary.json"
        path = path if path.is_file() else path.with_name("shared_vocabulary.json")
        return json.loads(path.read_text("utf-8"))

    def __call__(self, texts: str | Sequence[str], *, num_beams: int | None = None, batch_size: int = 32) -> Any:
        """
        Write for each text.

        Args:
            texts (`str` or `list[str]`): Sources; what is longer than the encoder's positions is cut, with a warning.
            num_beams (`int`, *optional*): 1 is greedy; defaults to the generation configuration's.
            batch_size (`int`, *optional*, defaults to 32): Sources generated together; like lengths share a batch.

        Returns:
            `dict` with `generated_text` and `length` (measured, in the model's unit), a list of them for a list.

        Raises:
            `TypeError`, `ValueError`: for inputs that are no texts or empty ones, or a number under 1.
        """
        for name, number in (("num_beams", 1 if num_beams is None else num_beams), ("batch_size", batch_size)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {number!r}")
        rows = [texts] if isinstance(texts, str) else list(texts)
        for i, text in enumerate(rows):
            if not isinstance(text, str):
                raise TypeError(f"every input must be a text, got {text!r} at position {i}")
            if not text.strip():
                raise ValueError(f"the text at position {i} is empty; remove it")
        settings = self.settings
        forced = [] if settings.forced_bos_token_id is None else [self.target[settings.forced_bos_token_id]]
        ends = settings.eos_token_id
        results = self.translator.translate_batch(
            self._sources(rows),
            target_prefix=[forced] * len(rows) if forced else None,
            max_batch_size=batch_size,
            beam_size=num_beams or settings.num_beams or 1,
            length_penalty=1.0 if settings.length_penalty is None else settings.length_penalty,
            repetition_penalty=settings.repetition_penalty or 1.0,
            no_repeat_ngram_size=settings.no_repeat_ngram_size or 0,
            suppress_sequences=[[self.target[i] for i in ids] for ids in settings.bad_words_ids or []] or None,
            end_token=[self.target[i] for i in (ends if isinstance(ends, list) else [ends])],
            max_input_length=0,  # cut above, so that it is told
            max_decoding_length=(settings.max_new_tokens or 256) - (settings.forced_eos_token_id is not None),
            min_decoding_length=settings.min_length or 0,
        )
        written = [self._output(result.hypotheses[0], len(forced)) for result in results]
        return written[0] if isinstance(texts, str) else written

    def _sources(self, texts: list[str]) -> list[list[str]]:
        limit = min(self.tokenizer.model_max_length, self.config.max_position_embeddings)
        ids = self.tokenizer(texts, verbose=False)["input_ids"] if texts else []
        if (long := sum(len(row) > limit for row in ids)) > 0:
            logger.warning(
                "%d of %d sources are longer than the encoder's %d tokens and were cut", long, len(ids), limit
            )
            ids = self.tokenizer(texts, truncation=True, max_length=limit)["input_ids"]
        return [[self.source[i] for i in row] for row in ids]

    def _output(self, tokens: list[str], forced: int) -> dict:
        ids = [self.number[token] for token in tokens]
        text = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        unit = self.config.frozen_length_unit
        # what writes nothing is ruled out, so that every token counts but the forced one
        return {"generated_text": text, "length": len(ids) - forced if unit == "token" else count_units(text, unit)}
