"""Comparison of a model with a baseline: cut sources or, for translation, the base model before training."""

import logging

import torch
from transformers import AutoModelForSeq2SeqLM

from ..evaluation.metrics import lead, rouge_metrics, text_quality, translation_metrics
from ..inference.options import CallOptions
from ..inference.pipeline import LengthControlledGenerationPipeline
from .arguments import ModelArguments, RunArguments
from .models import language_id


logger = logging.getLogger("train_seq2seq")


def base_figures(sources, references, model_args: ModelArguments, run_args: RunArguments, args, tokenizer) -> dict:
    """Return BLEU and chrF of the base model as it was before training, as `base_bleu` and `base_chrf`."""
    assert model_args.base_model is not None
    base = AutoModelForSeq2SeqLM.from_pretrained(model_args.base_model, dtype=torch.float32).to(args.device).eval()
    options: CallOptions = {"num_beams": args.generation_num_beams or 1, "batch_size": args.per_device_eval_batch_size}
    if model_args.target_language is not None:
        options["forced_bos_token_id"] = language_id(tokenizer, model_args.target_language)
    pipe = LengthControlledGenerationPipeline(model=base, tokenizer=tokenizer, device=args.device)
    written = pipe(list(sources), **options)
    texts = [output["generated_text"] for output in written]
    found = translation_metrics(texts, references, bleu_tokenizer=run_args.bleu_tokenizer or "13a")
    return {f"base_{name}": found[name] for name in ("bleu", "chrf")}


def quality(
    outputs, sources, references, requested: list[int], length: int | None, trainer, data, model_args, run_args
) -> dict:
    """
    Return the metrics of `text_quality` for test outputs, and metrics of a baseline to compare the model with. The
    baseline does not use the outputs. For tasks other than translation, it is the beginning of each source, cut at the
    requested length and measured by ROUGE (`lead_rouge1_f1`, ...). For translation, it is the base model without a
    length. This baseline is measured only if `length` is `None`, which means that the requested lengths are those of
    the references, and only if the run has a base model and a BLEU tokenizer.
    """
    found: dict[str, float] = text_quality(outputs)
    if trainer.run.task != "translation":
        pairs = zip(sources, requested, strict=True)
        texts = [lead(source, units, data.unit, data.tokenizer) for source, units in pairs]
        rouge = rouge_metrics(texts, references, max_bytes=run_args.rouge_max_bytes, unit=run_args.rouge_unit)
        found |= {f"lead_{name}": value for name, value in rouge.items() if name.endswith("f1")}
    elif length is None and model_args.base_model is not None and run_args.bleu_tokenizer is not None:
        found |= base_figures(sources, references, model_args, run_args, trainer.args, data.tokenizer)
    return found


def warn_of_baselines(tests: dict[str, dict], unit: str) -> None:
    """Warn of each test, a requested length or `"reference"`, in which the model is worse than its baseline."""
    names = {"rouge1_f1": ("lead_rouge1_f1", "the source cut at the length"), "bleu": ("base_bleu", "the base model")}
    for requested, figures in tests.items():
        at = f"{requested} {unit}s" if requested.isdecimal() else "the reference's length"
        for name, (baseline, what) in names.items():
            if name in figures and figures[name] < figures.get(baseline, 0.0):
                logger.warning(
                    f"at {at} the model has {name} {figures[name]:.1f}, {what} has {figures[baseline]:.1f}: exact "
                    "lengths do not make it useful; train longer, or on more rows"
                )
