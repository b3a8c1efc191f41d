"""`generate` of the best text of each of several lengths, by one search, for any model: see the README."""

import math

import torch
from transformers import GenerationMixin, StopStringCriteria
from transformers.utils import ModelOutput

from .bounded_generation import eos_of, generate_within
from .length_units import known_table
from .lengths import as_target
from .search import SearchByLength


def generate(
    model,
    inputs=None,
    length=None,
    length_unit="token",
    cost=None,
    tokenizer=None,
    beams=4,
    marks=(".", "?", "!"),
    **kwargs,
):
    """
    The best text of each length.

    Args:
        length (`list[int]`): The lengths, in units; a causal model's prompt does not count.
        length_unit (`str`, *optional*, defaults to `"token"`): `"token"`, `"character"`, `"word"`, `"byte"`
            or `"width"`.
        cost (`Callable[[str], int]`, *optional*): Instead of a unit, any cost of a text that is the sum of the costs
            of its characters.
        tokenizer (`PreTrainedTokenizerBase`): The model's.
        beams (`int`, *optional*, defaults to 4): Hypotheses of each number of units.
        marks (`Sequence[str]`, *optional*): A text that ends with one of these marks is better than all others of its
            length.
        kwargs: For `model.generate`.

    Returns:
        `ModelOutput` with a row for each length of each example, in order: `sequences` of shape
        `(batch_size * lengths, positions)`, and their log-probabilities `sequences_scores`, `-inf` for a length of
        which the search found no text; the row is then empty.

    Raises:
        `ValueError`: without a list of lengths or a tokenizer, for a length that the model's positions cannot hold,
            for an option that needs the rows of `generate`, such as `prefix_allowed_tokens_fn`, or for `stop_strings`
            in a generation configuration.
    """
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    prompt = kwargs.get("input_ids") if inputs is None else inputs
    if not isinstance(length, list) or not length or tokenizer is None or prompt is None:
        call = "generate(**inputs, ..., length=[20, 40], tokenizer=tokenizer)"
        raise ValueError(f"search_by_length needs ids, a list of lengths and a tokenizer, as {call}; got {length=}")
    for config in (kwargs.get("generation_config"), model.generation_config):
        if stop_strings := getattr(config, "stop_strings", None):
            rule = "search_by_length takes stop_strings only as an argument"
            call = f"set this to None, and pass stop_strings={stop_strings!r}"
            raise ValueError(f"{rule}, got generation_config.stop_strings={stop_strings!r}; {call}")
    columns = 1 if model.config.is_encoder_decoder else prompt.shape[1]
    unit, size = length_unit if cost is None else cost, model.get_output_embeddings().weight.shape[0]
    table = known_table(tokenizer, unit, size, prompt.device)
    ends = [tokenizer(text_target="a" + mark, add_special_tokens=False)["input_ids"][-1] for mark in marks]
    search = SearchByLength(table, beams, ends)
    if stop_strings := kwargs.pop("stop_strings", None):  # transformers gives a callable no tokenizer for them
        own = StopStringCriteria(tokenizer, stop_strings)
        kwargs["stopping_criteria"] = [*kwargs.get("stopping_criteria", []), own]
    found = generate_within(
        lambda **arguments: GenerationMixin.generate(model, custom_generate=search, **arguments),
        model,
        table,
        as_target(max(length), "exact", (max(length) - min(length), 0), len(prompt), prompt.device),
        "exact",
        {**kwargs, "inputs": inputs, "num_beams": 1, "do_sample": False},
        positions=getattr(model.config.get_text_config(), "max_position_embeddings", None),
    )
    return _best_of_each(found, len(prompt), length, columns, eos_of(model)[0])


def _best_of_each(found: ModelOutput, examples: int, lengths: list[int], columns: int, eos: int) -> ModelOutput:
    """Return the best text of each length of each example; an empty row has EOS behind the `columns` of its prompt."""
    values = zip(found.lengths.tolist(), found.marked.tolist(), found.sequences_scores.tolist(), strict=True)
    texts = list(enumerate(values))
    share, rows, scores = len(texts) // examples, [], []
    for k in range(examples):
        for length in lengths:
            own = [(marked, score, i) for i, (count, marked, score) in texts[k * share :][:share] if count == length]
            _, score, best = max(own, default=(0, -math.inf, k * share))
            row = found.sequences[best].clone()
            if score == -math.inf:
                row[columns:] = eos
            rows.append(row)
            scores.append(score)
    return ModelOutput(sequences=torch.stack(rows), sequences_scores=torch.tensor(scores, device=rows[0].device))
