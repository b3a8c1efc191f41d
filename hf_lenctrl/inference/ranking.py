"""Rank the candidates for a source, and compute the scores of candidates.

`rerank` prefers candidates that contain more words of the source. `choose` prefers candidates that have a higher
log-probability without a length. `token_log_probabilities` gives a length-controlled model the produced length.
"""

import inspect
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import takewhile
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from ..bounded_generation import encode_once, eos_of, rows_of
from ..cache import CACHE, read_once, without_length
from ..length_units import UnitTable
from .chats import Prompt, as_prompt, prompt_ids
from .prefix_tree import MOST, read_trees, takes_trees
from .sentences import ends, pieces_of, sentence_ends


Pair = tuple[int, str]
_IN_TREES = 256  # texts that are tokenized at once, to be read in trees
_AT_ONCE = 16  # maximum number of outputs in a batch, because their logits take more memory than a step of generation


@dataclass(frozen=True)
class ChoiceConfig:
    """
    The constants of the option `choose`, which chooses among candidates. They are saved with a model, as the
    dictionary `choice` in its configuration. The defaults were chosen on validation rows of
    `models/translate_to_english`.

    Attributes:
        planned_shares (`tuple[float, ...]`): Planned lengths for the constraint `"max"`, as shares of the maximum
            length.
        beams (`int`): Total number of beams and of candidates for a request, divided among its searches.
        natural_room (`int`): Factor of the maximum length of the natural text, which the model generates without a
            planned length. The maximum is `natural_room` times the greatest requested length of the source, plus 32
            units.
        few_lengths (`int`): A source with more requested lengths than this gets one search by length for all its
            lengths.
        shared_beams (`int`): Number of beams in each group of the search by length. If a source has such a search,
            the model also generates the natural text of this source with this number of beams.
        branches (`int`): Number of most likely next entries that the search by length tries for each hypothesis.
        edits (`str`, *optional*): Name of a file in the model's folder or repository, with phrases that may replace
            each other and words that may not be deleted, see `hf_lenctrl.inference.edits.Edits`.
        edit_below (`float`): If the score of the best candidate is below this number of nats, add edited candidates.
    """

    planned_shares: Sequence[float] = (1.0, 0.9, 0.8)
    beams: int = 20
    natural_room: int = 4
    few_lengths: int = 8
    shared_beams: int = 5
    branches: int = 8
    edits: str | None = None
    edit_below: float = -7.0

    @classmethod
    def of(cls, config) -> "ChoiceConfig":
        """
        Read the constants from the field `choice` of a model's configuration. Constants without a value there have
        their defaults. Raise `ValueError` if `choice` has an unknown name.
        """
        own = getattr(config, "choice", None) or {}
        known = [option.name for option in fields(cls)]
        if unknown := [name for name in own if name not in known]:
            raise ValueError(f"choice of the configuration must be one of {', '.join(known)}, got {unknown[0]!r}")
        return cls(**own)


def rerank(source: str, candidates: Sequence[str], scores: Sequence[float] | None = None) -> list[int]:
    """
    Order candidates by how many words of the source they contain, after Takase & Okazaki 2019, section 3.3 (with 20
    candidates).

    The count is our own definition. Words are lower-cased runs of letters and digits, compared by their Porter stems.
    Each distinct stem of a candidate that is in the source counts once, so that a repeated word gains nothing.
    Candidates with equal counts are ordered by score. The authors count repeated words, see
    `lab/reproduce/reranking.py`.

    Args:
        source (`str`): The source of the candidates.
        candidates (`Sequence[str]`): The outputs to order, best first.
        scores (`Sequence[float]`, *optional*): One score for each candidate, higher is better. Without scores,
            candidates with equal counts keep their order.

    Returns:
        `list[int]`: Indices of `candidates`, the best one first.

    Example:

    ```python
    >>> from hf_lenctrl import rerank
    >>> rerank("Police arrested three men in Oslo", ["two held", "oslo police arrest men", "police in oslo"])
    [1, 2, 0]

    ```
    """
    known = _stems(source)
    overlap = [len(_stems(candidate) & known) for candidate in candidates]
    return sorted(range(len(candidates)), key=lambda i: (-overlap[i], 0 if scores is None else -scores[i]))


@torch.no_grad()
def log_probabilities(model, tokenizer, sources: Sequence, texts: Sequence[str]) -> list[float]:
    """
    Return the log-probability of each text, given its source (sequence-to-sequence model) or prompt (causal model).

    If a length is given, a length-controlled model computes the probability of EOS from the length alone. Without a
    length, this probability depends on the text, so candidates that end like a sentence score higher.

    Args:
        model (`PreTrainedModel`): A model without length control for the same task, such as the model before length
            control was added. Or a model with `length_optional`, which gets no length here.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        sources (`Sequence`): One source for each text; for a causal model, prompts that are texts or chats.
        texts (`Sequence[str]`): Candidates.

    Returns:
        `list[float]`: For each text, the sum over its tokens and EOS. Higher is better.

    Raises:
        `TypeError`: if `sources` or `texts` is a single text instead of a list.
    """
    return [float(chosen.sum()) for chosen, _, _ in _entry_log_probabilities(model, tokenizer, sources, texts)]


@torch.no_grad()
def endings(model, tokenizer, sources: Sequence, texts: Sequence[str]) -> list[tuple[float, float]]:
    """
    Return two numbers for each text, in nats: the log-probability, and the end score. The end score says how likely
    the final punctuation marks and EOS are: it is the lowest of their log-probabilities, each minus the
    log-probability of the most likely entry at the same position. The end score is about 0 where a sentence may end;
    that of "I will be." is -10.
    """
    pieces, found = pieces_of(tokenizer, model.get_output_embeddings().weight.shape[0]), []
    for chosen, best, ids in _entry_log_probabilities(model, tokenizer, sources, texts):
        marks = takewhile(lambda i: not any(map(str.isalnum, pieces[i] or "")), reversed(ids.tolist()))
        end = len(list(marks)) or 1
        found.append((float(chosen.sum()), float((chosen - best)[-end:].min())))
    return found


@torch.no_grad()
def first_changes(model, tokenizer, rows: Sequence[tuple[Any, str, Sequence[str]]]) -> list[list[float]]:
    """
    Compare variants of texts with these texts, at the first vocabulary entry in which they differ. A row has a source,
    a text, and the variants of the text. Return a list for each row, with one number for each variant. The number is
    the log-probability of the variant's entry minus that of the text's entry, given their common prefix. The number is
    0 if the entries do not differ. Only the texts take a forward pass, the variants do not.
    """
    is_seq2seq, changes = model.config.is_encoder_decoder, []
    read = _read(model, tokenizer, [source for source, *_ in rows], [text for _, text, _ in rows])
    for (likely, ids), (*_, several) in zip(read, rows, strict=True):
        own, found = ids.tolist(), []
        options = {"text_target": several} if is_seq2seq else {"text": several, "add_special_tokens": False}
        for others in tokenizer(**options)["input_ids"] if several else []:
            others = others if is_seq2seq else [*others, tokenizer.eos_token_id]  # a variant may be shorter
            place = next((i for i, (a, b) in enumerate(zip(own, others, strict=False)) if a != b), None)
            found.append(0.0 if place is None else float(likely[place, others[place]] - likely[place, own[place]]))
        changes.append(found)
    return changes


def _entry_log_probabilities(
    model, tokenizer, sources, texts
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """
    Yield three tensors `(T,)` for each text, EOS included: the log-probability of each id, the highest of any entry at
    the same position, and the ids.
    """
    for scores, ids in _read(model, tokenizer, sources, texts):
        yield scores.gather(-1, ids.unsqueeze(-1)).squeeze(-1), scores.amax(dim=-1), ids


def _read(model, tokenizer, sources, texts) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield two tensors for each text, EOS included: the log-probabilities `(T, V)` at its positions, and its ids."""
    for name, given in (("sources", sources), ("texts", texts)):
        if isinstance(given, str):
            raise TypeError(f"{name} must be a list of texts, got {given!r}; pass [{name}]")
    is_seq2seq, prompts = model.config.is_encoder_decoder, [as_prompt(source, tokenizer) for source in sources]
    if is_seq2seq or not takes_trees(without_length(model)):
        yield from _of_rows(model, tokenizer, prompts, texts)
        return
    for start in range(0, len(texts), _IN_TREES):
        part = slice(start, start + _IN_TREES)
        yield from _of_trees(model, tokenizer, prompts[part], texts[part])


def _of_rows(model, tokenizer, prompts: list[Prompt], texts) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield what `_read` yields, from batches that have a row for each text."""
    logits_of = _of_targets if model.config.is_encoder_decoder else _of_answers
    for start in range(0, len(texts), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        logits, ids, kept = logits_of(model, tokenizer, prompts[part], texts[part])
        scores = logits.float().log_softmax(dim=-1)  # (B, T, V)
        for row, own in enumerate(kept):
            yield scores[row, own], ids[row, own]


def _of_trees(model, tokenizer, prompts: list[Prompt], texts) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """
    Yield what `_read` yields, from prefix trees. Read all texts as rows instead if any prompt has no tokens, or if any
    prompt and its text together have more than `MOST` tokens.
    """
    different = list(dict.fromkeys(prompts))
    before = dict(zip(different, prompt_ids(tokenizer, different), strict=True))
    answers = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    answers = [[*answer, tokenizer.eos_token_id] for answer in answers]
    rows = [
        ([*before[prompt], *answer[:-1]], len(before[prompt]) - 1)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    if any(not own for own in before.values()) or any(len(ids) > MOST for ids, _ in rows):
        yield from _of_rows(model, tokenizer, prompts, texts)
        return
    for scores, answer in zip(read_trees(without_length(model), rows), answers, strict=True):
        yield scores, torch.tensor(answer, device=scores.device)


def _of_targets(model, tokenizer, prompts: list[Prompt], texts) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """
    Return three tensors for `B` texts of a sequence-to-sequence model: logits `(B, T, V)`, ids with EOS `(B, T)`, and
    the mask `(B, T)`, false at padding.
    """
    positions = getattr(model.config, "max_position_embeddings", None) or 10**9
    limit = min(tokenizer.model_max_length, positions)
    padded = {"padding": True, "truncation": True, "max_length": limit, "return_tensors": "pt"}
    each = list(dict.fromkeys(prompt.text for prompt in prompts))  # only once, because a source has many candidates
    inputs = tokenizer(each, **padded).to(model.device)
    labels = tokenizer(text_target=list(texts), **padded).to(model.device)
    ids, kept = labels["input_ids"], labels["attention_mask"].bool()  # (B, T)
    encoded = encode_once(model, inputs, torch.tensor([each.index(prompt.text) for prompt in prompts]))
    if getattr(model.config, "length_optional", False):
        encoded["length"] = torch.zeros(len(ids), dtype=torch.long, device=model.device)  # no length
    labels = ids.masked_fill(~kept, -100)
    # with labels the model would also compute the loss
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    given = {"labels": labels} if shift is None else {"decoder_input_ids": shift(labels), "use_cache": False}
    return model(**encoded, **given).logits, ids, kept


def _of_answers(model, tokenizer, prompts: list[Prompt], texts) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return logits, ids and mask of texts of a causal model, as `_of_targets`. It reads a shared prompt once."""
    plain = without_length(model)
    filler = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    def padded(rows: list[list[int]], side: str) -> tuple[torch.Tensor, torch.Tensor]:
        ids = [torch.tensor(row, device=model.device) for row in rows]
        own = [torch.ones_like(row) for row in ids]
        return tuple(pad_sequence(x, True, value, side) for x, value in ((ids, filler), (own, 0)))  # type: ignore

    before, before_mask = padded(prompt_ids(tokenizer, prompts), "left")  # (B, P)
    answers = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    ids, kept = padded([answer + [tokenizer.eos_token_id] for answer in answers], "right")  # (B, T)
    mask = torch.cat([before_mask, kept], dim=1)
    inputs: dict[str, Any] = {"input_ids": torch.cat([before, ids], dim=1)[:, :-1], "attention_mask": mask[:, :-1]}
    options = {"position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)[:, :-1], "logits_to_keep": ids.shape[1]}
    inputs |= {name: value for name, value in options.items() if name in inspect.signature(plain.forward).parameters}
    cache = read_once(plain, before, before_mask)
    if cache is not None:
        for name in {"input_ids", "position_ids"} & inputs.keys():
            inputs[name] = inputs[name][:, before.shape[1] - 1 :]
        inputs[CACHE] = cache
    return plain(**inputs).logits[:, -ids.shape[1] :], ids, kept.bool()


def _stems(text: str) -> set[str]:
    try:
        from nltk.stem.porter import PorterStemmer
    except ImportError as error:
        raise ImportError('rerank compares Porter stems and needs nltk: pip install "hf_lenctrl[train]"') from error
    return {PorterStemmer().stem(word) for word in re.findall(r"\w+", text.lower())}


@torch.no_grad()
def token_log_probabilities(
    model, table: UnitTable, ids: torch.Tensor, inputs: dict, prompt: int, *, controlled: bool
) -> list[float]:
    """
    Return the mean log-probability per token, EOS included, of each output, under the model that generated the output.

    A length-controlled model (`controlled`) gets the produced length of the output, not the planned length. The model
    expects EOS at the produced length and nowhere else, so the means of texts of different lengths are comparable.

    Args:
        model (`PreTrainedModel`): The model that generated the outputs.
        table (`UnitTable`): Unit table of the model's unit, which counts the produced lengths.
        ids (`torch.LongTensor` of shape `(outputs, sequence_length)`): The ids that `generate` returned. The outputs
            of a source follow each other.
        inputs (`dict`): The arguments of this call of `generate`, with one row for each source.
        prompt (`int`): Number of positions of a causal model's prompt in `ids`; 0 for an encoder-decoder.
        controlled (`bool`): Whether the model is length-controlled.
    """
    copies, eos = len(ids) // len(inputs["attention_mask"]), torch.tensor(eos_of(model), device=ids.device)
    rows = torch.arange(len(ids), device=ids.device)
    given = {name: rows_of(value, rows // copies) for name, value in inputs.items() if value is not None}
    targets = ids[:, 1:]  # (outputs, T - 1)
    written = torch.arange(1, ids.shape[1], device=ids.device) >= prompt
    ends = torch.isin(targets, eos) & written
    written = written & (ends.cumsum(dim=-1) - ends.int() == 0)  # up to and including the first EOS
    if controlled:
        given["length"] = table.count(ids[:, prompt:]).clamp(min=1)
    if prompt:
        mask = torch.nn.functional.pad(given["attention_mask"], (0, ids.shape[1] - prompt), value=1)
        given |= {"input_ids": ids, "attention_mask": mask}
        if "position_ids" in inspect.signature(model.forward).parameters:  # because the prompts are padded on the left
            given["position_ids"] = (mask.cumsum(dim=-1) - 1).clamp(min=0)
        if controlled:
            progress = torch.nn.functional.pad(table.progress(ids[:, prompt:]), (1, 0))  # before each answer token
            given["progress"] = torch.nn.functional.pad(progress, (prompt - 1, 0), value=-1)
    else:
        given["decoder_input_ids"] = ids[:, :-1]
    means: list[float] = []
    for start in range(0, len(ids), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        own = {name: rows_of(value, rows[part]) for name, value in given.items()}
        logits = model(**own).logits[:, : targets.shape[1]]  # (outputs, T - 1, V)
        chosen = logits.float().log_softmax(dim=-1).gather(-1, targets[part].unsqueeze(-1)).squeeze(-1)
        kept = written[part]
        means += ((chosen * kept).sum(dim=-1) / kept.sum(dim=-1).clamp(min=1)).tolist()
    return means


def rank(text: str, plain: float, natural: str) -> tuple[int, float]:
    """
    Return the rank of a candidate as a pair; higher is better.

    `text` is the candidate, and `plain` its log-probability without a length (`log_probabilities`). `natural` is the
    text that the model generates without a length. A candidate equal to `natural` has the highest rank, because no
    choice is needed if the natural length is allowed.

    If `natural` ends like a sentence, a candidate ranks higher if it also ends like a sentence and has no more
    sentences than `natural`, because a piece of a second sentence only fills the length. If two candidates do not
    differ in this, the log-probability decides.
    """
    if text == natural:
        return 2, math.inf
    whole = ends(text) and len(sentence_ends(text)) <= max(1, len(sentence_ends(natural)))
    return int(whole or not ends(natural)), plain


def choose(
    model,
    tokenizer,
    pools: Sequence[Sequence[Pair]],
    natural: Mapping[int, str],
    plain: dict[Pair, float],
    sources_at: Mapping[int, Prompt],
) -> list[Pair]:
    """
    Return the best candidate of each pool, by `rank`. A pool has the candidates for one request. A candidate is a
    `Pair`: the place (index) of its source in the input, and a text.

    `natural` maps each place to the text that the model generates without a length, and `sources_at` maps each place
    to the source. `plain` maps candidates to their log-probabilities without a length, as far as a search by length
    has computed them. This function computes the missing ones, and adds them to `plain` in place.
    """
    add_scores(model, tokenizer, {pair for pool in pools for pair in pool}, plain, sources_at)
    return [max(pool, key=lambda pair: rank(pair[1], plain[pair], natural[pair[0]])) for pool in pools]


def add_scores(model, tokenizer, pairs: Iterable[Pair], plain: dict[Pair, float], sources_at: Mapping[int, Prompt]):
    """Add to `plain` the log-probability without a length of each candidate in `pairs` that `plain` does not have."""
    # The texts of a source stay together, so that its encoder runs once or twice. Similar sizes need less padding.
    order = sorted(
        set(pairs) - plain.keys(), key=lambda pair: (len(sources_at[pair[0]].text), pair[0], len(pair[1]), pair[1])
    )
    sources, texts = [sources_at[place] for place, _ in order], [text for _, text in order]
    plain |= zip(order, log_probabilities(model, tokenizer, sources, texts), strict=True)
