"""Train a predictor of output lengths (Oka et al. 2020, section 3.2).

    lenctrl train-predictor translation/length_predictor_small --train_file rows.jsonl
        --encoder_name_or_path path/to/encoder --target_tokenizer runs/ldpe --output_dir runs/predictor

A YAML file describes a run; options on the command line override it. To resume an interrupted run, repeat the command.
A folder that holds a run with other options raises an error.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import DatasetDict
from tokenizers.trainers import WordPieceTrainer
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizer,
    EarlyStoppingCallback,
    PreTrainedConfig,
    TrainingArguments,
)

from ..card import minimal_card
from ..conversion import tokenizer_of
from ..evaluation.metrics import predictor_figures
from ..length_predictor import LengthPredictor, round_lengths
from ..length_units import LENGTH_UNITS, count_texts
from ..lengths import check_counts, plural
from ..training.upload import HubTrainer
from .arguments import SplitArguments, check_heads, option, parse_arguments
from .data import load_splits
from .record import begun
from .run import check_evaluation, fit, publish, set_up, trained_tokenizer


logger = logging.getLogger("train_length_predictor")
TITLES = {"mean": "mean of the training lengths"}
CHARACTERS = 1000  # a new tokenizer has at most this number of characters, the most frequent ones


@dataclass
class PredictorArguments:
    """Options of the predictor to train: an encoder or the shape of a new one, and the unit of lengths."""

    encoder_name_or_path: str | None = option(None, "Pretrained encoder, such as google-bert/bert-base-uncased")
    layers: int | None = option(None, "New encoder: layers")
    d_model: int | None = option(None, "New encoder: width")
    attention_heads: int | None = option(None, "New encoder: attention heads of each layer")
    vocab_size: int | None = option(None, "New encoder: subwords of its tokenizer")
    dropout: float = option(0.1, "Dropout before the linear layer")
    length_unit: str = option("token", "Unit of lengths", list(LENGTH_UNITS))
    target_tokenizer: str | None = option(None, "Generator or tokenizer that counts the tokens of targets")
    patience: int | None = option(None, "End training after this number of evaluations without a better one")

    def __post_init__(self):
        shape = {name: getattr(self, name) for name in ("layers", "d_model", "attention_heads", "vocab_size")}
        given = [name for name, value in shape.items() if value is not None]
        if len(given) != (len(shape) if self.encoder_name_or_path is None else 0):
            got = f"got --encoder_name_or_path {self.encoder_name_or_path} with {', '.join(given) or 'no shape'}"
            raise ValueError(f"give --encoder_name_or_path, or all of --{', --'.join(shape)} for a new encoder; {got}")
        check_counts(**{name: value for name, value in shape.items() if value is not None})
        if self.d_model is not None and self.attention_heads is not None:
            check_heads(self.d_model, self.attention_heads)
        if self.target_tokenizer is None and self.length_unit == "token":
            raise ValueError(
                "tokens are counted by a tokenizer: give --target_tokenizer, the folder of the generator, or another "
                "unit with --length_unit, as character"
            )
        if self.target_tokenizer is not None and self.length_unit != "token":
            raise ValueError(
                f"--target_tokenizer has no use for {plural(self.length_unit)}, which need no tokenizer; leave it out"
            )


def check_unit(generator: str) -> None:
    """Raise `ValueError` if the model `generator` has lengths in another unit than tokens."""
    unit = "token"
    with suppress(OSError):  # the folder of a tokenizer has no configuration
        unit = PreTrainedConfig.get_config_dict(generator)[0].get("length_unit") or unit
    if unit != "token":
        raise ValueError(
            f"--target_tokenizer counts tokens, and {generator} has lengths in {plural(unit)}; pass --length_unit "
            f"{unit} without --target_tokenizer"
        )


class PredictorTrainer(HubTrainer):
    """A `HubTrainer` whose model card shows `table`: for each split, the errors of predictor and baselines."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.table: dict[str, dict] = {}

    def create_model_card(self, *args, **kwargs):
        if self.is_world_process_zero():
            folder, model = Path(str(self.args.output_dir)), self.accelerator.unwrap_model(self.model)
            measured = f"## Measured\n\n{markdown(self.table)}\n\n{model.config.warning() or ''}" if self.table else ""
            name = self.hub_model_id or folder.resolve().name
            minimal_card(model, name, self.args.hub_revision, measured).save(folder / "README.md")


def train_bert_tokenizer(texts: Iterable[str], vocab_size: int) -> BertTokenizer:
    """Train a `BertTokenizer` on texts. Training again on the same texts gives the same tokenizer."""
    options: dict[str, Any] = {"strip_accents": False}  # stripping accents removes the voicing marks of Japanese
    backend = (new := BertTokenizer(**options)).backend_tokenizer
    counts: Counter[str] = Counter()
    inner: set[str] = set()
    for text in texts:
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text)):
            counts.update(word)
            inner.update(word[1:])
    characters = sorted(sorted(counts, key=lambda c: (-counts[c], c))[:CHARACTERS])
    pieces = [*characters, *(f"##{c}" for c in characters if c in inner)]
    # the trainer would order the characters at random, and this order breaks ties between equally frequent pairs
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*sorted(new.all_special_tokens, key=new.convert_tokens_to_ids), *pieces],
        limit_alphabet=0,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return BertTokenizer(vocab=backend.get_vocab(), **options)


def load_tokenizer(args: PredictorArguments, texts, output_dir: str):
    """Load the tokenizer of a pretrained encoder, or of the run, which trains it on `texts` once."""

    def train(folder: Path) -> None:
        assert args.vocab_size is not None  # a new encoder has this option
        train_bert_tokenizer(texts, args.vocab_size).save_pretrained(folder)

    name = args.encoder_name_or_path or trained_tokenizer(output_dir, train)
    return tokenizer_of(name, padding_side="right")  # the predictor reads the first position


def new_encoder(args: PredictorArguments, tokenizer, data_args: SplitArguments) -> BertModel:
    """Build a BERT encoder with random weights, in the shape that the options give."""
    width = args.d_model
    assert width is not None  # a new encoder has this option
    shape: dict[str, Any] = {"num_hidden_layers": args.layers, "hidden_size": width, "intermediate_size": 4 * width}
    shape |= {"num_attention_heads": args.attention_heads, "pad_token_id": tokenizer.pad_token_id}
    positions = max(512, data_args.max_source_length or 0)
    return BertModel(BertConfig(**shape, vocab_size=len(tokenizer), max_position_embeddings=positions))


def measure(splits: DatasetDict, args: PredictorArguments, data_args: SplitArguments) -> DatasetDict:
    """
    Strip the texts of all splits. Add the length of each target as `labels`, and of each source as `source_length`.
    Drop rows with an empty text; if the unit is the token, also rows with a target over `max_target_length`. Raise
    `ValueError` if a split has no row left, or if the generator has lengths in another unit.
    """
    unit = args.length_unit
    tokenizer = None
    if args.target_tokenizer is not None:
        check_unit(args.target_tokenizer)
        tokenizer = tokenizer_of(args.target_tokenizer)

    def count(batch):
        sources, targets = ([(text or "").strip() for text in batch[column]] for column in ("source", "target"))
        lengths = {"source_length": count_texts(tokenizer, sources, unit)}
        return {"source": sources, "labels": count_texts(tokenizer, targets, unit, target=True), **lengths}

    for name, rows in splits.items():
        counted = rows.map(count, batched=True, num_proc=data_args.preprocessing_num_workers, desc=f"Counting {name}")
        filled = counted.filter(lambda row: row["source"] and row["labels"] > 0)
        splits[name] = filled.filter(lambda row: tokenizer is None or row["labels"] <= data_args.max_target_length)
        kept, dropped = splits[name], f"{len(rows) - len(filled)} empty, {len(filled) - len(splits[name])} too long"
        logger.info("%s: %d rows kept, %s", name, len(kept), dropped)
        if len(kept) == 0:
            raise ValueError(f"no row of {name} is left ({dropped}); look at the columns and at --max_target_length")
    return splits


def tokenize(splits: DatasetDict, tokenizer, limit: int, data_args: SplitArguments) -> DatasetDict:
    """Tokenize the sources, cut at `limit` tokens. Trainer would take a column `length` for the source's length."""

    def encode(batch):
        cut = [len(ids) > limit for ids in tokenizer(batch["source"], verbose=False)["input_ids"]]
        return {**tokenizer(batch["source"], truncation=True, max_length=limit), "labels": batch["labels"], "cut": cut}

    columns, workers = splits["train"].column_names, data_args.preprocessing_num_workers
    encoded = splits.map(encode, batched=True, num_proc=workers, remove_columns=columns, desc="Tokenising")
    for name, rows in encoded.items():
        logger.info("%s: %d sources cut at %d tokens", name, sum(rows["cut"]), limit)
    return encoded.remove_columns("cut")


def markdown(table: dict[str, dict]) -> str:
    """
    Format the metrics of all splits as a Markdown table, like Table 2 of Oka et al. 2020, with a line for each
    baseline and for the predictor. `table` is `PredictorTrainer.table`: split -> `"source"`, `"mean"` or `"predicted"`
    -> metrics.
    """
    heads = ("split", "lengths", "average error", "variance", "correlation", "error ratio", "different lengths")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for split, row in table.items():
        for name in ("source", "mean", "predicted"):
            if name not in row:  # Table 2 has no predictions for training rows
                continue
            figures, ratio = row[name], row["mae_ratio"] if name == "predicted" else None
            values = [figures["mae"], figures["variance"], figures["pearson"], ratio]
            cells = ["" if value is None else f"{value:.2f}" for value in values]
            lines.append(f"| {split} | {TITLES.get(name, name)} | {' | '.join(cells)} | {figures['different']} |")
    return "\n".join(lines)


def figures_of(found: list[int], lengths: list[int]) -> dict[str, Any]:
    """Return the metrics of `predictor_figures`, and how many `different` lengths were predicted."""
    return predictor_figures(found, lengths) | {"different": len(set(found))}


def baselines(split, config) -> dict[str, dict]:
    """Return the metrics of two baselines: `source`, the source's length, and `mean`, that of the training lengths."""
    lengths = split["labels"][:]
    constant = round_lengths(torch.tensor([config.target_mean] * len(lengths))).tolist()
    return {"source": figures_of(split["source_length"][:], lengths), "mean": figures_of(constant, lengths)}


def test_on(name: str, trainer: PredictorTrainer, split, tokenized) -> dict[str, Any]:
    """
    Predict the lengths of a split, and measure the predictor and the baselines. `split` holds the texts and lengths,
    and `tokenized` the same rows as input ids. Save and return the metrics, and add them to `trainer.table`. For the
    split `test`, also write the predictions to `test_predictions.jsonl`.
    """
    result = trainer.predict(tokenized, metric_key_prefix=name)
    values = torch.as_tensor(result.predictions)
    predicted = round_lengths(values).tolist()
    config = trainer.accelerator.unwrap_model(trainer.model).config
    own, others = figures_of(predicted, split["labels"][:]), baselines(split, config)
    ratio = own["mae"] / others["source"]["mae"] if others["source"]["mae"] > 0 else None
    trainer.table[name] = {"predicted": own, **others, "mae_ratio": ratio}
    # each split overwrites these errors, and the test split is the last
    config.error, config.error_of_mean = own["mae"], others["mean"]["mae"]
    if warning := config.warning():
        logger.warning("%s: %s", name, warning)
    figures = {f"{name}_{kind}_{key}": value for kind, row in others.items() for key, value in row.items()}
    figures |= {f"{name}_mae_ratio": ratio, **(result.metrics or {})}
    trainer.save_metrics(name, figures)
    if name == "test" and trainer.is_world_process_zero():
        rows = split.remove_columns("target").rename_column("labels", "reference_length")
        rows = rows.add_column("predicted", values.tolist()).add_column("predicted_length", predicted)
        rows.to_json(Path(str(trainer.args.output_dir), "test_predictions.jsonl"), force_ascii=False)
    return figures


def compute_metrics(result) -> dict[str, float]:
    """Compute the metrics of `predictor_figures` for Trainer."""
    return predictor_figures(round_lengths(torch.as_tensor(result.predictions)).tolist(), result.label_ids.tolist())


def main(argv=None) -> dict:
    """Train and test a predictor. Return the validation and test metrics, also in `<output_dir>/all_results.json`."""
    classes = (PredictorArguments, SplitArguments, TrainingArguments)
    model_args, data_args, args = parse_arguments(classes, argv, __doc__)
    data_args.max_source_length = data_args.max_source_length or 256
    set_up(args)
    with begun(args, model_args, data_args) as record:
        # ---------------------------------------------------------------- data and model
        with args.main_process_first(desc="data"):
            splits = measure(load_splits(data_args), model_args, data_args)
            check_evaluation(args, splits)
            tokenizer = load_tokenizer(model_args, splits["train"]["source"], args.output_dir)
        encoder = model_args.encoder_name_or_path or new_encoder(model_args, tokenizer, data_args)
        unit, lengths = model_args.length_unit, splits["train"]["labels"][:]
        model = LengthPredictor.from_encoder(encoder, lengths, length_unit=unit, dropout=model_args.dropout)
        model.config.pad_token_id = tokenizer.pad_token_id  # otherwise Trainer sets it and warns
        logger.info("%.1fM parameters, targets %.1f %ss", model.num_parameters() / 1e6, model.config.target_mean, unit)
        limits = (data_args.max_source_length, model.max_source_length(tokenizer))
        limit = min(most for most in limits if most is not None)
        with args.main_process_first(desc="tokenising"):
            tokenized = tokenize(splits, tokenizer, limit, data_args)

        # ---------------------------------------------------------------- training
        data = {"train_dataset": tokenized["train"], "eval_dataset": tokenized.get("validation")}
        trainer = PredictorTrainer(model, args, **data, processing_class=tokenizer, compute_metrics=compute_metrics)
        if model_args.patience is not None:
            trainer.add_callback(EarlyStoppingCallback(model_args.patience))
        fit(trainer, record)

        # ---------------------------------------------------------------- Table 2, card, upload
        args.train_sampling_strategy = "random"  # group_by_length would reorder test rows, too
        metrics: dict[str, Any] = {}
        trainer.table["train"] = baselines(splits["train"], model.config)
        for name in sorted(splits.keys() - {"train"}, reverse=True):  # validation, test
            metrics |= test_on(name, trainer, splits[name], tokenized[name])
        if trainer.is_world_process_zero():
            model.config.save_pretrained(args.output_dir)  # the configuration now has the measured errors
            Path(args.output_dir, "predictor_table.json").write_text(json.dumps(trainer.table, indent=1))
            logger.info("lengths of references in %ss\n%s", unit, markdown(trainer.table))
        publish(trainer)
        return metrics
