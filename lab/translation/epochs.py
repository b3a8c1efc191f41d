"""Make the training rows of one GPU run: for each epoch its own draw, tokenized, with lengths, in blocks of one size.

    python lab/translation/epochs.py tatoeba_de_en.jsonl.gz interface_de_en.jsonl.gz everyday_de_en.jsonl.gz \\
        --model models/translate_to_english --epochs 26 --output_dir runs/epochs
    python lab/translation/train_packed.py runs/epochs --model models/translate_to_english --output_dir runs/packed

The inputs and the sorts of rows are those of everyday.py. Each epoch has another share of the pairs, other names and
templates, and another segmentation of four sources in ten (Kudo 2018): sampled pieces teach the parts of rare words. A
block holds several pairs, one after the other, so all blocks have one shape and few positions are empty. `--model` is
a checkpoint for the tokenizer and the table of units; its weights are not read.
"""

import argparse
import json
import random
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import everyday
import numpy as np
import rewordings
import sentencepiece
import slots
import torch
import written
from safetensors import safe_open

from hf_lenctrl.length_units import UnitTable


SOURCE, TARGET = 96, 80  # tokens of a block; longer pairs are left out
NO_TOKEN, NO_LENGTH = -1, -(2**15)  # a label that does not count; the remaining length of a row without a length
# shares of each corpus, by the beginning of its file's name
SHARES = {"tatoeba": 0.6, "interface": 0.7, "everyday": 1.0}
# shares of these kinds of text, multiplied by the share of the corpus
KINDS = {"developer_tools": 0.3, "voice_assistants": 0.4}
VARIANTS = argparse.Namespace(replace_share=0.15, typed_share=0.04, glue_share=0.03)
REWORDED = 0.12  # share of the pairs that also have a reworded English text
OTHER_LENGTHS = 0.6  # share of the written English texts of other lengths
TEMPLATES = 30_000  # sentences of slots.py, for each language
SAMPLED, ALPHA = 0.4, 0.3  # share of the sources with sampled pieces; smoothing of their probabilities
WITHOUT, OVERSHOOT = 0.3, 0.03  # shares of the pairs without a length, and of those that teach how a text ends

Row = tuple[str, str, bool]  # source, target, and True for a pair that always has its length


def draw_rows(files: list[tuple[str, str, list[dict]]], seed: int, folder: Path | None = None) -> list[Row]:
    """Draw the pairs of an epoch from the files (name, language, rows) and from the written sentences of a folder."""
    draw = random.Random(seed)
    rows: list[Row] = []
    tested = {row[code] for _, code, read in files for row in read if row["split"] != "train"}
    tested |= {row["source"] for code in ("de", "fr") for row in written.pairs(code, "validation")}

    def add(own: list[everyday.Pair], code: str) -> None:
        rows.extend((row["source"], row["target"], False) for row in own)
        rows.extend((row["source"], row["target"], False) for row in everyday.variants(own, code, VARIANTS, draw))
        for row in own:
            if draw.random() < REWORDED and (text := rewordings.reword(row["target"], draw)):
                rows.append((row["source"], text, True))

    def allowed(pair: everyday.Pair) -> bool:
        return pair["source"] not in tested and not everyday.has_held_out(pair)

    for name, code, read in files:
        share = SHARES[name.split("_")[0]]
        pairs = everyday.pairs(read, code, "train")
        add([row for row in pairs if draw.random() < share * KINDS.get(row["kind"], 1) and allowed(row)], code)
    for code in dict.fromkeys(code for _, code, _ in files):
        own = [row for row in written.pairs(code, folder=folder) if allowed(row)]
        add(own, code)
        sources = {row["source"] for row in own}
        lengths = [row for row in written.lengths(code, folder) if row["source"] in sources]
        rows.extend((row["source"], row["target"], True) for row in lengths if draw.random() < OTHER_LENGTHS)
        rows.extend((*slots.sentence(code, draw)[:2], False) for _ in range(TEMPLATES))
    draw.shuffle(rows)
    return rows


class Packer:
    """A packer of pairs into blocks, with the tokenizer and the unit table of a checkpoint."""

    def __init__(self, model: str | Path):
        self.pieces = sentencepiece.SentencePieceProcessor(str(Path(model, "source.spm")))
        vocabulary = json.loads(Path(model, "vocab.json").read_text(encoding="utf-8"))
        config = json.loads(Path(model, "config.json").read_text(encoding="utf-8"))
        names = [self.pieces.id_to_piece(i) for i in range(self.pieces.get_piece_size())]
        self.ids = np.array([vocabulary.get(name, vocabulary["<unk>"]) for name in names], np.int32)
        self.pad, self.end = config["pad_token_id"], config["eos_token_id"]
        with safe_open(Path(model, "model.safetensors"), "np") as file:
            parts = (file.get_tensor(f"model.decoder.unit_table.{name}") for name in ("weights", "next_state"))
            self.table = UnitTable(config["length_unit"], *map(torch.from_numpy, parts))

    def encode(self, texts: list[str], sampled: np.ndarray | None = None) -> list[np.ndarray]:
        """Encode each text as ids with the end token."""
        found = self.pieces.encode(texts)
        for i in () if sampled is None else np.flatnonzero(sampled):
            found[i] = self.pieces.encode(texts[i], enable_sampling=True, alpha=ALPHA, nbest_size=-1)
        return [np.append(self.ids[pieces], self.end) for pieces in found]

    def progress(self, ids: np.ndarray) -> np.ndarray:
        """Return the units before each token of a text, and after the last one: `(tokens + 1,)`."""
        return self.table.progress(torch.from_numpy(np.append(self.pad, ids))[None])[0].numpy()

    def pack(self, rows: list[Row], seed: int, natural: bool = False) -> dict[str, np.ndarray]:
        """
        Pack pairs into blocks of int16, `(blocks, 96)` for source `s` and `(blocks, 80)` for target `t`: ids,
        positions (`s_at`, `t_at`), the number of the pair in its block from 1 (`s_pair`, `t_pair`; 0 for padding), the
        remaining length, and the labels. With `natural` no row has a length.
        """
        rng = np.random.default_rng(seed)
        sources = self.encode([row[0] for row in rows], None if natural else rng.random(len(rows)) < SAMPLED)
        targets = self.encode([row[1] for row in rows])
        kind, share = rng.random(len(rows)), rng.random(len(rows))
        blocks: list[list[int]] = []  # the open blocks: number, source tokens, target tokens, pairs
        places, count = [], 0
        for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
            if max(len(source) / SOURCE, len(target) / TARGET) > 1 or min(len(source), len(target)) < 2:
                continue
            fits = (b for b in blocks if b[1] + len(source) <= SOURCE and b[2] + len(target) <= TARGET)
            block = next(fits, None)
            if block is None:
                if len(blocks) == 32:
                    blocks.remove(max(blocks, key=lambda b: max(b[1] / SOURCE, b[2] / TARGET)))
                block = [count, 0, 0, 0]
                blocks.append(block)
                count += 1
            block[3] += 1
            places.append((i, *block))
            block[1] += len(source)
            block[2] += len(target)
        packed = {
            name: np.zeros((count, SOURCE if name[0] == "s" else TARGET), np.int16)
            for name in ("s", "s_at", "s_pair", "t", "t_at", "t_pair", "remaining", "labels")
        }
        packed["s"][:] = packed["t"][:] = self.pad
        packed["labels"][:] = NO_TOKEN
        for i, at_block, s, t, number in places:
            source, target = sources[i], targets[i]
            at = slice(s, s + len(source))
            packed["s"][at_block, at] = source
            packed["s_at"][at_block, at] = np.arange(len(source))
            packed["s_pair"][at_block, at] = number
            at = slice(t, t + len(target))
            before = self.progress(target)
            length, labels = before[-1], target
            if kind[i] < OVERSHOOT and length > 1 and not natural:
                length = max(length // 2, 1) + int(share[i] * (length - max(length // 2, 1)))
                labels = np.where(before[:-1] < length, NO_TOKEN, target)
            told = not natural and (rows[i][2] or not OVERSHOOT <= kind[i] < OVERSHOOT + WITHOUT)
            packed["remaining"][at_block, at] = length - before[:-1] if told else NO_LENGTH
            packed["labels"][at_block, at] = labels
            packed["t"][at_block, at] = np.append(self.pad, target[:-1])
            packed["t_at"][at_block, at] = np.arange(len(target))
            packed["t_pair"][at_block, at] = number
        return packed


def make_epoch(paths: list[str], model: str, seed: int, folder: str) -> str:
    """Write `{seed}.npz`, and with seed 0 two files of validation rows: from the corpora, and from written lines."""
    files = [(Path(path).name, *everyday.read(path)) for path in paths]
    packer = Packer(model)
    if seed == 0:
        kept = [row for _, code, rows in files for row in everyday.pairs(rows, code, "validation")]
        lines = [row for code in ("de", "fr") for row in written.pairs(code, "validation")]
        for name, held in (("corpora", kept), ("written", lines)):
            pairs = [(row["source"], row["target"], False) for row in held]
            np.savez(Path(folder, f"validation_{name}.npz"), **packer.pack(pairs, 0, natural=True))  # type: ignore[arg-type]
    rows = draw_rows(files, seed)
    packed = packer.pack(rows, seed)
    whole = Path(folder, f"{seed}.new.npz")
    np.savez(whole, **packed)  # type: ignore[arg-type]
    whole.rename(Path(folder, f"{seed}.npz"))
    return f"epoch {seed}: {len(rows):,} rows in {len(packed['s']):,} blocks"


def main(argv=None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="jsonl.gz, as for everyday.py, named by corpus")
    parser.add_argument("--model", required=True, help="checkpoint with the tokenizer and the table of units")
    parser.add_argument("--output_dir", required=True, help="folder for a file of each epoch")
    parser.add_argument("--epochs", type=int, default=26)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    args = parser.parse_args(argv)
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(args.workers) as pool:
        made = [pool.submit(make_epoch, args.files, args.model, seed, args.output_dir) for seed in range(args.epochs)]
        for task in made:
            print(task.result(), flush=True)


if __name__ == "__main__":
    main()
