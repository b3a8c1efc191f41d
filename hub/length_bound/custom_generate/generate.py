"""`generate` with a length that no output exceeds (or that each has exactly), for any model: see the README."""

from transformers import GenerationMixin

from .bounded_generation import generate_within
from .length_units import known_table
from .lengths import as_target


def generate(
    model,
    inputs=None,
    length=None,
    length_unit="token",
    length_constraint="max",
    length_tolerance=None,
    tokenizer=None,
    cost=None,
    **kwargs,
):
    """
    `model.generate` within a length.

    Args:
        length (`int`, `list[int]` or `torch.LongTensor` of shape `(batch_size,)`): Units, for all rows or for each; a
            causal model's prompt does not count.
        length_unit (`str` or `Unit`, *optional*, defaults to `"token"`): One of `LENGTH_UNITS`, or your own.
        length_constraint (`str`, *optional*, defaults to `"max"`): `"max"`, never longer; `"exact"`, this length;
            `"min"`, never shorter.
        length_tolerance (`int`, `float`, `tuple` or `list`, *optional*): With `"exact"`, a window around the length:
            units (4), a share (0.1), a pair of these, below and above, or a list with one of these for each row.
        tokenizer (`PreTrainedTokenizerBase`): The model's.
        cost (`Callable[[str], int]`, *optional*): Instead of a unit, any cost of a text that is the sum of the costs
            of its characters.
        kwargs: For `model.generate`.

    Raises:
        `ValueError`: without a length or a tokenizer, for a causal model without ids, or for a length that the model's
            positions cannot hold.
    """
    if length is None or tokenizer is None:
        raise ValueError("length_bound needs length= and tokenizer=, as generate(..., length=75, tokenizer=tokenizer)")
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    prompt = kwargs.get("input_ids") if inputs is None else inputs
    if prompt is None and "inputs_embeds" in kwargs:
        if not model.config.is_encoder_decoder:
            raise ValueError("length_bound needs the prompt's ids, got inputs_embeds; pass input_ids")
        prompt = kwargs["inputs_embeds"]
    device = model.device if prompt is None else prompt.device
    rows = 1 if prompt is None else len(prompt)
    unit, size = length_unit if cost is None else cost, model.get_output_embeddings().weight.shape[0]
    table = known_table(tokenizer, unit, size, device)
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return generate_within(
        lambda **arguments: GenerationMixin.generate(model, **arguments),
        model,
        table,
        as_target(length, length_constraint, length_tolerance, rows, device),
        length_constraint,
        {**kwargs, "inputs": inputs, "tokenizer": tokenizer},
        positions=positions,
    )
