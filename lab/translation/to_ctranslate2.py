"""Export the plain model to CTranslate2, which writes the n-best lists of paraphrase.py."""

from pathlib import Path

import torch
from ctranslate2.converters.transformers import BartLoader


@torch.no_grad()
def export_ctranslate2(model, tokenizer, output_dir: str | Path, quantization: str | None = None) -> None:
    """
    Export a plain Marian or BART model to CTranslate2's format, into a folder that does not exist yet. Its
    configuration names the places of the layer norms: `normalize_before` and `normalize_embedding`. CTranslate2's own
    converter takes `<pad>` for the last entry of each Marian vocabulary; here the tokenizer's ids do not change.
    """
    settings = model.generation_config
    spec = BartLoader().get_model_spec(model)  # Marian is BART with norms in other places
    separate = getattr(tokenizer, "separate_vocabs", False)
    source = _entries(tokenizer, tokenizer.get_vocab(), model.get_encoder().embed_tokens.num_embeddings)
    vocabulary = tokenizer.target_encoder if separate else tokenizer.get_vocab()
    target = _entries(tokenizer, vocabulary, model.get_output_embeddings().weight.shape[0])
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    ends = settings.eos_token_id
    spec.config.eos_token = target[ends[0] if isinstance(ends, list) else ends]
    spec.config.bos_token = tokenizer.bos_token or spec.config.eos_token
    spec.config.unk_token = tokenizer.unk_token
    spec.config.decoder_start_token = target[settings.decoder_start_token_id]
    spec.validate()
    spec.optimize(quantization=quantization)
    Path(output_dir).mkdir(parents=True)
    spec.save(str(output_dir))


def _entries(tokenizer, vocabulary: dict[str, int], size: int) -> list[str]:
    """Return a name for each row of an embedding, also for rows that the tokenizer does not know."""
    names = [f"madeupword{i}" for i in range(size)]
    special = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    for name, i in (special | vocabulary).items():
        if i < size:
            names[i] = name
    return names
