"""What a training run needs: collator, Trainer, tokenizer, model card, upload."""
