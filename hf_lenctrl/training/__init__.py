"""Tools for training: initial weights, collators, Trainers, tokenizer, model card, upload."""

from .initial_weights import initialize_weights as initialize_weights
