"""Train models: initial weights, collator, Trainer, tokenizer, model card, upload."""

from .initial_weights import initialize_weights as initialize_weights
