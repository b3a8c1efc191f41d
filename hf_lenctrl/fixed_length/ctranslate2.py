"""A frozen model in CTranslate2: texts in, texts of the fixed length out."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from ..length_units import count_texts


logger = logging.getLogger(__name__)

FOLDER = "ctranslate2"  # the folder lies beside the frozen model and its tokenizer


def import_ctranslate2():
    """Import ctranslate2, or raise `ImportError` with the install command."""
    try:
        import ctranslate2
    except ImportError as error:
        raise ImportError('a fixed length at full speed needs CTranslate2: pip install "hf_lenctrl[fast]"') from error
    return ctranslate2


class FixedLengthTranslator:
    """
    A frozen model at the speed of CTranslate2: `FixedLengthTranslator(folder)(texts)`.

    Args:
        folder (`str` or `Path`): A folder that `lenctrl export` made.
        device (`str`, *optional*, defaults to `"cpu"`): `"cpu"` or `"cuda"`.
        compute_type (`str`, *optional*): `"float32"`, `"int8"`, ...; by default the type of the weights.
        threads (`int`, *optional*, defaults to 0): Threads of a batch; 0 lets CTranslate2 choose.

    Raises:
        `ImportError`: without CTranslate2.
    """

    def __init__(self, folder: str | Path, *, device: str = "cpu", compute_type: str | None = None, threads: int = 0):
        library, self.folder = import_ctranslate2(), Path(folder)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(self.folder)
        self.settings = GenerationConfig.from_pretrained(self.folder)
        self.config: Any = AutoConfig.from_pretrained(self.folder)
        self.translator = library.Translator(
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
        Generate a text for each source; return a `dict` with `generated_text` and `length` (measured, in the model's
        unit), or a list of them for a list.

        Args:
            texts (`str` or `list[str]`): Sources; a source longer than the encoder's positions is cut, with a warning.
            num_beams (`int`, *optional*): Beams; 1 is greedy. By default that of the generation configuration.
            batch_size (`int`, *optional*, defaults to 32): Sources generated together; similar lengths share a batch.
        """
        rows = [texts] if isinstance(texts, str) else list(texts)
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
            max_input_length=0,  # `_sources` has cut them, with a warning
            max_decoding_length=(settings.max_new_tokens or 256) - (settings.forced_eos_token_id is not None),
            min_decoding_length=settings.min_length or 0,
        )
        written = [self._output(result.hypotheses[0], len(forced)) for result in results]
        return written[0] if isinstance(texts, str) else written

    def _sources(self, texts: list[str]) -> list[list[str]]:
        limit = min(self.tokenizer.model_max_length, self.config.max_position_embeddings)
        ids = self.tokenizer(texts, verbose=False)["input_ids"] if texts else []
        if (long := sum(len(row) > limit for row in ids)) > 0:
            logger.warning("%d of %d sources are longer than %d tokens and were cut", long, len(ids), limit)
            ids = self.tokenizer(texts, truncation=True, max_length=limit)["input_ids"]
        return [[self.source[i] for i in row] for row in ids]

    def _output(self, tokens: list[str], forced: int) -> dict:
        ids = [self.number[token] for token in tokens]
        text = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        unit = self.config.frozen_length_unit
        # entries that add no text are forbidden, so every token counts except the forced one
        length = len(ids) - forced if unit == "token" else count_texts(self.tokenizer, [text], unit)[0]
        return {"generated_text": text, "length": length}
