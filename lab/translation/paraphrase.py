"""Make translations of other lengths for the training of controlled.yaml from the plain model's own n-best lists.

    python lab/translation/paraphrase.py --model runs/translation/base --train_file data/train.jsonl \
        --output_file data/train_lengths.jsonl

A source with one reference shows a model one length. Among the plain model's twenty best translations are shorter and
longer ones that are just as good: "It's", "It has", "that" or no "that". This script keeps those that score near the
best, read well (see lab/benchmarks/reading.py), and differ in length, and writes them after the pairs themselves. A
source whose best translation is far from its reference is left out: the model does not know its words. With
`--rewordings` it adds pairs whose English is said in other words, by the rules of rewordings.py, with `--written` the
English texts of other lengths in data/everyday_en_de_fr. It needs CTranslate2: `pip install '.[fast]'`.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sacrebleu import sentence_chrf
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_lenctrl.commands.rows import Rows


sys.path.append(str(Path(__file__).resolve().parents[2]))  # lab/ is not an installed package

from lab.benchmarks.reading import WORD, faults, words_of  # noqa: E402
from lab.translation import written  # noqa: E402
from lab.translation.rewordings import reword  # noqa: E402


NUM_BEAMS = 20
GAP, FLOOR = 0.45, -0.75  # log-probability per token: largest distance to the best one, and the minimum
NEAR = 40  # the smallest chrF, in percent, of the best translation to its reference
BATCH = 1000


def n_best(model_folder: str, sources: list[str]) -> Iterator[tuple[str, list[str], list[float]]]:
    """Yield each source with its translations, the best first, and their log-probabilities per token."""
    import ctranslate2

    from lab.translation.to_ctranslate2 import export_ctranslate2

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(model_folder, dtype="float32")
    model.config.normalize_before = model.config.normalize_embedding = False  # Marian's values, which its config lacks
    eos = tokenizer.eos_token
    options = {"beam_size": NUM_BEAMS, "num_hypotheses": NUM_BEAMS, "return_scores": True, "end_token": eos}
    options |= {"max_batch_size": 4096, "batch_type": "tokens", "max_decoding_length": 80}
    with tempfile.TemporaryDirectory() as folder:
        export_ctranslate2(model, tokenizer, Path(folder, "model"), "int8")
        translator = ctranslate2.Translator(str(Path(folder, "model")), compute_type="int8")
        for start in range(0, len(sources), BATCH):
            batch = sources[start : start + BATCH]
            tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(batch)["input_ids"]]
            for source, found in zip(batch, translator.translate_batch(tokens, **options), strict=True):
                ids: list[Any] = [tokenizer.convert_tokens_to_ids(hypothesis) for hypothesis in found.hypotheses]
                texts = tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
                yield source, texts, found.scores
            print(f"{start + len(batch)} of {len(sources)} sources", flush=True)


def select(source: str, texts: list[str], scores: list[float], known: set[str]) -> list[str]:
    """
    Select the translations to train on: near the best in score, without a fault that the best does not have, one of
    each length.
    """
    best, lowest, kept = texts[0], max(scores[0] - GAP, FLOOR), dict[int, str]()
    for text, score in zip(texts, scores, strict=True):
        words = {word.lower() for word in WORD.findall(text)}
        if score >= lowest and words and words <= known and not any(faults(source, best, text).values()):
            kept.setdefault(len(text), text)
    return list(kept.values())


def main(argv=None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="plain model")
    parser.add_argument("--train_file", required=True, help="jsonl with source and target")
    parser.add_argument("--output_file", required=True, help="jsonl: the pairs, and each new one `copies` times")
    parser.add_argument("--sources", type=int, default=16000, help="so many sources are translated")
    parser.add_argument("--copies", type=int, default=2, help="of each new pair")
    parser.add_argument("--rewordings", type=float, default=0, help="share of the pairs, where a rule fits")
    parser.add_argument("--written", type=int, default=0, help="copies of each written text of another length")
    args = parser.parse_args(argv)
    pairs = Rows(args.train_file).values
    known = words_of(pair["target"] for pair in pairs)
    sources = sorted({pair["source"] for pair in pairs})
    draw = random.Random(3)
    draw.shuffle(sources)
    references: dict[str, list[str]] = {}
    for pair in pairs:
        references.setdefault(pair["source"], []).append(pair["target"])
    rows = [{"source": pair["source"], "target": pair["target"]} for pair in pairs]
    for source, texts, scores in n_best(args.model, sources[: args.sources]):
        if sentence_chrf(texts[0], references[source]).score >= NEAR:
            kept = select(source, texts, scores, known)
            rows += [{"source": source, "target": text} for text in kept] * args.copies
    new = [(pair["source"], reword(pair["target"], draw)) for pair in pairs if draw.random() < args.rewordings]
    rows += [{"source": source, "target": text} for source, text in new if text is not None]
    lengths = [row for code in ("de", "fr") for row in written.lengths(code)]
    # the other rows are test rows, or held out
    rows += [row for row in lengths if row["source"] in references] * args.written
    part = Path(args.output_file + ".part")
    part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    part.rename(args.output_file)
    print(f"{len(pairs)} pairs and {len(rows) - len(pairs)} new ones ({args.copies} copies)")


if __name__ == "__main__":
    main()
