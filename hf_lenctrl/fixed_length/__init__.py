"""Models of one fixed length: plain checkpoints, and CTranslate2."""

from .ctranslate2 import FixedLengthTranslator


__all__ = ["FixedLengthTranslator"]
