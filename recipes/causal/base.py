"""Pretrain a small causal language model on abstracts and titles, without lengths.

    python recipes/causal/base.py acl_titles.jsonl.gz runs/causal/base

The model is a stock `LlamaForCausalLM` of 7 million parameters with a byte-level BPE, for a machine with two cores.
Each line of the file is a JSON object with `split`, `abstract` and `title`. A text is the abstract, a line `Title:`,
the title. To resume an interrupted run, repeat the command.
"""

import argparse
import gzip
import json
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import TemplateProcessing
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from hf_lenctrl.commands.arguments import has_bfloat16
from hf_lenctrl.commands.identity import identity
from hf_lenctrl.commands.output_file import begin_folder


SEPARATOR = "\nTitle:\n"  # a new line before the title, so that its first word has no space to count


def read_rows(path: str, split: str) -> list[dict]:
    """Read the rows of one split."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [row for row in map(json.loads, lines) if row["split"] == split]


def train_tokenizer(rows: list[dict], folder: Path) -> PreTrainedTokenizerFast:
    """Load the byte-level BPE of 8,000 entries from `folder`, or train it on the training split."""
    if (folder / "tokenizer.json").exists():
        return PreTrainedTokenizerFast.from_pretrained(folder)
    bpe = ByteLevelBPETokenizer()
    texts = (row["abstract"] + SEPARATOR + row["title"] for row in rows)
    bpe.train_from_iterator(texts, vocab_size=8000, special_tokens=["<s>", "</s>", "<pad>"])
    bpe._tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", padding_side="left"
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def pairs_of(tokenizer, rows: list[dict], abstract_tokens: int) -> list[dict]:
    """Return rows with `prompt`, the first tokens of an abstract and the separator, and `completion`, the title."""
    ids = tokenizer([row["abstract"] for row in rows], add_special_tokens=False)["input_ids"]
    texts = tokenizer.batch_decode([abstract[:abstract_tokens] for abstract in ids])
    return [
        {"prompt": text.replace("\ufffd", "") + SEPARATOR, "completion": row["title"]}
        for text, row in zip(texts, rows, strict=True)
    ]


def tokenize(tokenizer, pairs: list[dict]) -> list[dict]:
    """Tokenize prompt and completion of each pair as one text that ends with EOS."""
    prompts = tokenizer([pair["prompt"] for pair in pairs])["input_ids"]
    titles = tokenizer([pair["completion"] for pair in pairs], add_special_tokens=False)["input_ids"]
    end = [tokenizer.eos_token_id]
    return [{"input_ids": prompt + title + end} for prompt, title in zip(prompts, titles, strict=True)]


def main(argv=None) -> None:
    """Run the pretraining."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--max_steps", type=int, default=3000)
    parser.add_argument("--abstract_tokens", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=1.5e-3)
    args = parser.parse_args(argv)

    options = {name: value for name, value in vars(args).items() if name not in ("data", "output_dir")}
    begin_folder(
        args.output_dir, options | {"data": identity(args.data)}, (args.output_dir / "tokenizer.json").exists()
    )
    set_seed(1)
    rows = {split: read_rows(args.data, split) for split in ("train", "validation", "test")}
    tokenizer = train_tokenizer(rows["train"], args.output_dir)
    pairs = {split: pairs_of(tokenizer, these, args.abstract_tokens) for split, these in rows.items()}
    (args.output_dir / "data").mkdir(exist_ok=True)
    for split, these in pairs.items():  # `lenctrl train` and measure.py read these files
        lines = [json.dumps(pair, ensure_ascii=False) + "\n" for pair in these]
        (args.output_dir / "data" / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=704,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="eager",  # type: ignore[call-arg]  # this is the fastest for short rows on a CPU
    )
    model = LlamaForCausalLM(config)
    print(f"{model.num_parameters():,} parameters")

    def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
        batch = tokenizer.pad(examples, padding_side="right", return_tensors="pt")
        return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}

    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(args.output_dir),
            max_steps=args.max_steps,
            per_device_train_batch_size=args.batch_size,
            per_device_eval_batch_size=args.batch_size,
            learning_rate=args.learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=0.05,
            weight_decay=0.05,
            adam_beta2=0.98,
            bf16=has_bfloat16(),
            use_cpu=not torch.cuda.is_available(),
            logging_steps=50,
            eval_strategy="steps",
            eval_steps=1000,
            save_steps=500,
            save_total_limit=1,
            seed=1,
            report_to="none",
            disable_tqdm=True,
        ),
        data_collator=collate,
        train_dataset=tokenize(tokenizer, pairs["train"]),
        eval_dataset=tokenize(tokenizer, pairs["validation"]),
        processing_class=tokenizer,
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(args.output_dir)))
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    trainer.save_model()


if __name__ == "__main__":
    main()
