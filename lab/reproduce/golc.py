"""Train by GOLC, global optimisation under length constraint (Makino et al. 2019): minimum risk training on samples.

    python lab/reproduce/golc.py lab/translation/golc.yaml --train_file rows.jsonl

It takes the options of `lenctrl train`, and those of GOLC.

    risk     = sum over y' in S(x) of Q(y' | x) D(y, y'),    Q(y' | x) = p(y' | x)^alpha / sum over S(x) of the same
    D(y, y') = -ROUGE(y, trim(y', c)) + max(0, c(y') - c)
    loss     = (1 - lambda) cross-entropy + lambda risk

S(x) are `golc_samples` outputs sampled from the model at `golc_temperature`, c(y') the units of one, and c the limit:
the requested length or, for a model without control, the length of the reference y. trim cuts at the limit, so that
units beyond it gain nothing. ROUGE is ROUGE-L F1, 0 to 1. `golc_alpha` is the sharpness of Shen et al. (2016). With
`length_constraint=exact` every sample has its length, and the risk is about the wording alone. D is written from a
summary of the paper; its constants are not those of the paper.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from transformers import Seq2SeqTrainingArguments

from hf_lenctrl.commands import train
from hf_lenctrl.commands.arguments import DataArguments, ModelArguments, RunArguments, parse_specified
from hf_lenctrl.evaluation.metrics import lead, rouge_scorer
from hf_lenctrl.length_units import count_units
from hf_lenctrl.training.trainer import LengthControlTrainer


@dataclass
class GolcArguments(RunArguments):
    """The options of a run, with those of GOLC."""

    objective: str = field(
        default="golc", metadata={"help": "Cross-entropy with the risk of samples", "choices": ["golc"]}
    )
    golc_lambda: float = field(default=0.5, metadata={"help": "Weight of GOLC's risk, 0 to 1; cross-entropy the rest"})
    golc_samples: int = field(default=8, metadata={"help": "Outputs that GOLC samples for each source"})
    golc_temperature: float = field(default=1.0, metadata={"help": "Temperature of GOLC's samples"})
    golc_alpha: float = field(default=0.05, metadata={"help": "Sharpness of GOLC's weights over samples"})

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.golc_lambda <= 1:
            raise ValueError(f"golc_lambda must be above 0 and at most 1, got {self.golc_lambda}; use lenctrl train")
        if self.golc_samples < 2:
            raise ValueError(f"golc_samples must be at least 2, to weigh one against another; got {self.golc_samples}")
        for name in ("golc_temperature", "golc_alpha"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


def penalised_rouge(
    outputs: list[str], references: list[str], limits: list[int], unit: str, tokenizer, rouge_unit: str = "word"
) -> list[float]:
    """
    Compute D(y, y') of each output; lower is better. `rouge_unit` is the `unit` of `rouge_metrics`.
    """
    scorer = rouge_scorer(["rougeL"], rouge_unit)
    found = []
    for output, reference, limit in zip(outputs, references, limits, strict=True):
        if unit == "token":
            units = len(tokenizer(text_target=output, add_special_tokens=False)["input_ids"])
        else:
            units = count_units(output, unit)
        text = output if units <= limit else lead(output, limit, unit, tokenizer)
        found.append(-scorer.score(reference, text)["rougeL"].fmeasure + max(0, units - limit))
    return found


def expected_risk(log_probabilities: torch.Tensor, losses: torch.Tensor, alpha: float) -> torch.Tensor:
    """
    Compute the risk, averaged over the batch.

    Args:
        log_probabilities (`torch.Tensor` of shape `(batch_size, samples)`): log p(y' | x), sums over tokens.
        losses (`torch.Tensor` of shape `(batch_size, samples)`): D(y, y').
        alpha (`float`): Sharpness of Q.
    """
    weights = (alpha * log_probabilities.float()).softmax(dim=-1)  # (B, n)
    return (weights * losses).sum(dim=-1).mean()


class GolcTrainer(LengthControlTrainer):
    """
    `LengthControlTrainer` whose loss is mixed with the risk of sampled outputs.

    Args:
        options (`GolcArguments`): The options of GOLC, and `rouge_unit`.
    """

    processing_class: Any

    def __init__(self, *args, options: GolcArguments, **kwargs):
        super().__init__(*args, **kwargs)
        self.golc = options

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        found: Any = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not model.training:
            return found
        loss, outputs = found if return_outputs else (found, None)
        risk = self.risk(model, inputs) / self.args.gradient_accumulation_steps
        loss = (1 - self.golc.golc_lambda) * loss + self.golc.golc_lambda * risk
        return (loss, outputs) if return_outputs else loss

    def sample(self, model, inputs) -> torch.Tensor:
        """Sample outputs of the current model: `(batch_size * samples, positions)`."""
        model = self.accelerator.unwrap_model(model)
        controlled = getattr(model.config, "length_controlled", False)
        names = ("input_ids", "attention_mask", *(["length"] if controlled else []))
        limit = {} if controlled else {"max_new_tokens": 2 * inputs["labels"].shape[1]}
        how = {"do_sample": True, "top_k": 0, "temperature": self.golc.golc_temperature, "num_beams": 1}
        model.eval()  # samples have no dropout, like generated outputs
        try:
            given = {name: inputs[name] for name in names}
            return model.generate(**given, **limit, **how, num_return_sequences=self.golc.golc_samples)
        finally:
            model.train()

    def risk(self, model, inputs) -> torch.Tensor:
        """Compute the risk of new samples, with its gradient."""
        n, tokenizer, table = self.golc.golc_samples, self.processing_class, self.train_collator.unit_table
        samples = self.sample(model, inputs)
        padding, config = tokenizer.pad_token_id, self.accelerator.unwrap_model(model).config
        references = inputs["labels"].masked_fill(inputs["labels"] == -100, padding)
        limits = inputs.get("length")
        limits = table.to(references.device).count(references) if limits is None else limits  # (B,)
        decode = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        outputs, targets = (tokenizer.batch_decode(ids, **decode) for ids in (samples, references))
        targets = [target for target in targets for _ in range(n)]
        room = limits.repeat_interleave(n).tolist()
        losses = penalised_rouge(
            outputs, targets, room, self.train_collator.length_unit, tokenizer, self.golc.rouge_unit
        )

        repeated = {name: inputs[name].repeat_interleave(n, dim=0) for name in ("input_ids", "attention_mask")}
        if getattr(config, "length_controlled", False):
            repeated["length"] = limits.repeat_interleave(n)
        ids, written = samples[:, :-1], samples[:, 1:]
        ended = (written == config.eos_token_id).long()
        own = (ended.cumsum(1) - ended) == 0  # (B * n, T), the tokens up to EOS
        logits = model(**repeated, decoder_input_ids=ids, use_cache=False).logits
        chosen = logits.float().log_softmax(-1).gather(-1, written.unsqueeze(-1)).squeeze(-1)  # (B * n, T)
        total = chosen.masked_fill(~own, 0.0).sum(-1).view(-1, n)  # (B, n)
        return expected_risk(total, torch.tensor(losses, device=total.device).view(-1, n), self.golc.golc_alpha)


def main(argv=None) -> dict:
    """Run the recipe and return the metrics, like `lenctrl train`."""
    classes = (ModelArguments, DataArguments, GolcArguments, Seq2SeqTrainingArguments)
    arguments, specified = parse_specified(classes, argv, __doc__)
    model_args, data_args, run_args, args = arguments
    trainer_class = partial(GolcTrainer, options=run_args)
    return train.run(model_args, data_args, run_args, args, trainer_class, specified=specified)


if __name__ == "__main__":
    main()
