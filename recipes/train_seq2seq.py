"""Train a length-controlled sequence-to-sequence model.

    python recipes/train_seq2seq.py recipes/headline/ldpe_small.yaml --train_file headlines.jsonl --output_dir
    runs/ldpe

One YAML file is one run; options on the command line win over it; `--help` lists them all. A run that was stopped
goes on from its last checkpoint when the same command is given again.
"""

import json
import logging
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

import hf_lenctrl
from hf_lenctrl.arguments import DataArguments, ModelArguments, RunArguments, parse_arguments
from hf_lenctrl.callbacks import TimeBudget
from hf_lenctrl.checkpoints import average_checkpoints, last_checkpoint
from hf_lenctrl.data import load_splits, tokenize
from hf_lenctrl.data_collator import DataCollatorForLengthControl
from hf_lenctrl.metrics import build_compute_metrics
from hf_lenctrl.tokenizer_training import train_marian_tokenizer


logger = logging.getLogger("train_seq2seq")


def load_tokenizer(args: ModelArguments, texts: datasets.Dataset, output_dir: str):
    """The named tokenizer, that of the run to go on with, or one trained on the training texts."""
    folder = Path(output_dir, "tokenizer")
    name = args.tokenizer_name_or_path or args.model_name_or_path
    if name is not None:
        return AutoTokenizer.from_pretrained(name)
    if not (folder / "tokenizer_config.json").is_file():
        logger.info("training a tokenizer: %d source subwords, %s target", args.vocab_size, args.target_vocabulary)
        return train_marian_tokenizer(
            texts["source"],
            texts["target"],
            folder,
            vocab_size=args.vocab_size,
            target_vocabulary=args.target_vocabulary,
        )
    return AutoTokenizer.from_pretrained(folder)


def build_model(args: ModelArguments, tokenizer, max_positions: int) -> Any:
    """The named checkpoint, or a new model of the given shape for the tokenizer."""
    if args.model_name_or_path is not None:
        return AutoModelForSeq2SeqLM.from_pretrained(args.model_name_or_path)
    separate = getattr(tokenizer, "separate_vocabs", False)
    shape: dict[str, Any] = {
        "d_model": args.d_model,
        "dropout": args.dropout,
        "activation_function": args.activation_function,
        "scale_embedding": True,
        "max_position_embeddings": max_positions,
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "forced_eos_token_id": tokenizer.eos_token_id,
        "length_encoding": args.length_encoding,
        "absolute_positions": args.absolute_positions,
        "length_unit": args.length_unit,
    }
    for side in ("encoder", "decoder"):
        shape |= {
            f"{side}_layers": args.layers,
            f"{side}_attention_heads": args.attention_heads,
            f"{side}_ffn_dim": args.ffn_dim,
        }
    model: Any
    if args.family == "bart":
        shape |= {"decoder_start_token_id": tokenizer.eos_token_id}
        model = hf_lenctrl.LenCtrlBartForConditionalGeneration(hf_lenctrl.LenCtrlBartConfig(**shape))
    else:
        shape |= {"decoder_start_token_id": tokenizer.pad_token_id}
        if separate:
            shape |= {
                "decoder_vocab_size": len(tokenizer.target_encoder),
                "share_encoder_decoder_embeddings": False,
            }
        model = hf_lenctrl.LenCtrlMarianMTModel(hf_lenctrl.LenCtrlMarianConfig(**shape))
    model.set_unit_table(tokenizer)
    # Token embeddings of variance 1 once scaled (Vaswani et al. 2017, section 3.4), as loud as the positions: with
    # smaller ones the encoder of a post-norm model forgets its words before the decoder has learned to look at them.
    for embedding in (model.get_encoder().embed_tokens, model.get_decoder().embed_tokens):
        torch.nn.init.normal_(embedding.weight, std=args.d_model**-0.5)
        torch.nn.init.zeros_(embedding.weight[tokenizer.pad_token_id])
    return model


def main(argv=None) -> dict:
    """Run the recipe; returns the metrics that it also writes to `<output_dir>/all_results.json`."""
    classes = (ModelArguments, DataArguments, RunArguments, Seq2SeqTrainingArguments)
    model_args, data_args, run_args, args = parse_arguments(classes, argv, __doc__)
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.INFO)
    transformers.utils.logging.set_verbosity(args.get_process_log_level())
    set_seed(args.seed)

    # ---------------------------------------------------------------- data
    splits = load_splits(data_args)
    with args.main_process_first(desc="tokenizer"):
        tokenizer = load_tokenizer(model_args, splits["train"], args.output_dir)
    with args.main_process_first(desc="tokenising"):
        tokenized, reports = tokenize(splits, tokenizer, data_args)
    for report in reports:
        logger.info(report)

    # ---------------------------------------------------------------- model
    longest = max(data_args.max_source_length, data_args.max_target_length) + 1
    model = build_model(model_args, tokenizer, max_positions=max(512, longest))
    logger.info("%s with %.1fM parameters", type(model).__name__, model.num_parameters() / 1e6)
    collator = DataCollatorForLengthControl(tokenizer, model=model)
    unit = model.config.length_unit

    # ---------------------------------------------------------------- training
    trainer = Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=tokenized["train"],
        eval_dataset=tokenized.get("validation"),
        data_collator=collator,
        processing_class=tokenizer,
        compute_metrics=build_compute_metrics(tokenizer, unit, max_bytes=run_args.rouge_max_bytes),
    )
    if run_args.max_train_minutes is not None:
        trainer.add_callback(TimeBudget(run_args.max_train_minutes))
    checkpoint = args.resume_from_checkpoint or last_checkpoint(args.output_dir)
    if checkpoint is not None:
        logger.info("going on from %s", checkpoint)
    result = trainer.train(resume_from_checkpoint=checkpoint)
    if run_args.average_checkpoints > 1:
        folders = sorted(Path(args.output_dir).glob("checkpoint-*"), key=lambda p: int(p.name.rsplit("-", 1)[1]))
        folders = folders[-run_args.average_checkpoints :]
        logger.info("averaging %s", ", ".join(folder.name for folder in folders))
        # safetensors leave tied weights and Marian's fixed positions out, so not every name is there
        model.load_state_dict(average_checkpoints(folders), strict=False)
        model.tie_weights()
    trainer.save_model()
    trainer.save_metrics("train", result.metrics)

    # ---------------------------------------------------------------- test
    if "test" not in tokenized:
        return result.metrics
    metrics: dict[str, Any] = dict(result.metrics)
    for length in [None, *run_args.test_lengths]:
        name = "test" if length is None else f"test_{length}"
        trainer.data_collator = DataCollatorForLengthControl(tokenizer, model=model, length=length)
        trainer.compute_metrics = build_compute_metrics(
            tokenizer, unit, length=length, max_bytes=run_args.rouge_max_bytes
        )
        figures = trainer.predict(tokenized["test"], metric_key_prefix=name).metrics or {}
        trainer.save_metrics(name, figures)  # as soon as it is known
        logger.info(json.dumps(figures, indent=1))
        metrics |= figures
    return metrics


if __name__ == "__main__":
    main()
