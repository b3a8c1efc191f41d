"""The plain base model as the baseline of a translator: its figures, and the warning of a worse one."""

import logging
from types import SimpleNamespace

import pytest
import sacrebleu
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_lenctrl.commands.arguments import ModelArguments, RunArguments
from hf_lenctrl.commands.quality import base_figures, warn_of_baselines


BASE = "models/translate_to_english_base"
SOURCES = ["Das ist gut.", "Ich möchte in den Park gehen.", "Je ne peux pas vivre sans musique."]
REFERENCES = ["That's good.", "I would like to go to the park.", "I can't live without music."]


@pytest.mark.slow
def test_the_base_models_figures_are_sacrebleus_for_its_own_texts(pytestconfig):
    folder = str(pytestconfig.rootpath / BASE)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    texts = [
        tokenizer.decode(
            model.generate(**tokenizer(source, return_tensors="pt"), num_beams=2)[0], skip_special_tokens=True
        )
        for source in SOURCES
    ]
    args = SimpleNamespace(device=torch.device("cpu"), generation_num_beams=2, per_device_eval_batch_size=3)
    parts = ModelArguments(base_model=folder), RunArguments(bleu_tokenizer="13a")
    found = base_figures(SOURCES, REFERENCES, *parts, args, tokenizer)
    assert found == pytest.approx(
        {
            "base_bleu": sacrebleu.corpus_bleu(texts, [REFERENCES]).score,
            "base_chrf": sacrebleu.corpus_chrf(texts, [REFERENCES]).score,
        }
    )
    assert found["base_bleu"] > 30  # it does translate


@pytest.mark.parametrize(("bleu", "warned"), [(30.0, True), (41.0, False)])
def test_a_translator_below_its_base_gets_a_warning(caplog, bleu, warned):
    with caplog.at_level(logging.WARNING, logger="train_seq2seq"):
        warn_of_baselines({"reference": {"bleu": bleu, "base_bleu": 40.0}}, "character")
    told = "at the reference's length the model has bleu 30.0, the base model has 40.0" in caplog.text
    assert told is warned
