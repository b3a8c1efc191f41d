"""Compile a JSON Schema to masks over a vocabulary, with xgrammar or llguidance."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np


GRAMMARS = ("xgrammar", "llguidance")


class _XGrammar:
    def __init__(self, matcher, bitmask):
        self.matcher, self.bitmask = matcher, bitmask

    @property
    def ended(self) -> bool:
        return self.matcher.is_terminated()

    def read(self, entry: int) -> bool:
        return self.matcher.accept_token(entry)

    def allowed(self) -> np.ndarray:
        self.matcher.fill_next_token_bitmask(self.bitmask, 0)
        return self.bitmask.numpy()[0]

    def copy(self) -> "_XGrammar":
        return _XGrammar(self.matcher.fork(), self.bitmask)


class _LLGuidance:
    def __init__(self, matcher, bitmask: np.ndarray, eos: tuple[int, ...], ended: bool = False):
        self.matcher, self.bitmask, self.eos, self.ended = matcher, bitmask, eos, ended

    def read(self, entry: int) -> bool:
        if entry in self.eos:  # the matcher does not read EOS; it stops if nothing else can follow
            self.ended = self.matcher.is_accepting()
            return self.ended
        return self.matcher.try_consume_tokens([entry]) == 1

    def allowed(self) -> np.ndarray:
        self.matcher.unsafe_compute_mask_ptr(self.bitmask.ctypes.data, self.bitmask.nbytes)
        if error := self.matcher.get_error():  # such as a limit of the parser; the mask would then end the output
            raise RuntimeError(f"llguidance cannot read on: {error}")
        return self.bitmask

    def copy(self) -> "_LLGuidance":
        return _LLGuidance(self.matcher.deep_copy(), self.bitmask, self.eos, self.ended)


# The state of an output in a grammar. `read` reads an entry and returns whether the grammar allows the entry. If not,
# nothing more may be read. `allowed` returns the entries that may follow, as bits (words,). `ended` says whether EOS
# was read.
Matcher = _XGrammar | _LLGuidance


def compile_schema(
    name: str, schema: dict[str, Any], tokenizer, size: int, eos: tuple[int, ...]
) -> Callable[[], Matcher]:
    """
    Compile a JSON Schema. Return a function that makes a new `Matcher` for the start of a text.

    Args:
        name (`str`): `"xgrammar"` or `"llguidance"`.
        schema (`dict`): A JSON Schema.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        size (`int`): Number of entries in the vocabulary.
        eos (`tuple[int, ...]`): Ids that end an output.

    Raises:
        `ImportError`: if the library is not installed.
        `ValueError`: if llguidance cannot compile the schema.
    """
    bits = np.empty(-(-size // 32), dtype=np.int32)
    try:
        if name == "xgrammar":
            import xgrammar

            info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size, stop_token_ids=list(eos))
            compiler = xgrammar.GrammarCompiler(info, max_threads=1)
            grammar = compiler.compile_json_schema(json.dumps(schema), any_whitespace=False)
            bitmask = xgrammar.allocate_token_bitmask(1, size)
            return lambda: _XGrammar(xgrammar.GrammarMatcher(grammar), bitmask)
        from llguidance import LLMatcher

        entries = _entries(tokenizer, size, eos)
    except ImportError as error:
        call = f'pip install "hf_lenctrl[{"json" if name == "xgrammar" else name}]"'
        raise ImportError(f"JsonStringsLogitsProcessor needs {name}: {call}") from error
    written = LLMatcher.grammar_from_json_schema(
        schema, {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    )
    first = LLMatcher(entries, written)
    if message := first.get_error():
        raise ValueError(f"llguidance cannot compile the schema: {message}")
    return lambda: _LLGuidance(first.deep_copy(), bits, eos)


@cache
def _entries(tokenizer, size: int, eos: tuple[int, ...]):
    """
    Convert a tokenizer to llguidance's tokenizer, for `size` vocabulary entries and the EOS ids `eos`. The result is
    cached, because the conversion takes a second.
    """
    from llguidance.hf import from_tokenizer

    return from_tokenizer(tokenizer, size, list(eos))
