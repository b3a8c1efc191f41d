"""The shipped translator's rows and training: lab/translation/epochs.py and train_packed.py."""

import gzip
import json
import sys

import numpy as np
import pytest
import torch
from recipe_runs import ROOT, load_script
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_lenctrl.length_predictor import load_predictor


MODEL = ROOT / "models" / "translate_to_english"
PAIRS = [
    ("Wo ist der Bahnhof?", "Where is the train station?"),
    ("Ich heiße Anna.", "My name is Anna."),
    ("Il fait très chaud aujourd'hui.", "It's very hot today."),
    ("Danke!", "Thanks!"),
]
SMALL = "--dim 32 --heads 2 --encoder_layers 2 --encoder_width 48 --decoder_layers 2 --decoder_width 40 --no_compile"


@pytest.fixture(scope="module")
def scripts():
    sys.path.insert(0, str(ROOT / "lab" / "translation"))
    yield load_script("lab/translation/epochs.py"), load_script("lab/translation/train_packed.py")
    sys.path.remove(str(ROOT / "lab" / "translation"))


@pytest.fixture(scope="module")
def epoch(scripts):
    return scripts[0].Packer(MODEL).pack([(*pair, False) for pair in PAIRS * 30], seed=3)


def cut(epoch, number):
    """The arrays of each pair of a block, from its place."""
    for pair in range(1, int(epoch["s_pair"][number].max()) + 1):
        s, t = epoch["s_pair"][number] == pair, epoch["t_pair"][number] == pair
        yield {name: value[number][s if name[0] == "s" else t] for name, value in epoch.items()}


def test_a_block_holds_whole_pairs_with_their_lengths(scripts, epoch):
    tokenizer, kinds, found = AutoTokenizer.from_pretrained(MODEL), set(), []
    for number in range(len(epoch["s"])):
        for pair in cut(epoch, number):
            source = tokenizer.decode(pair["s"], skip_special_tokens=True)
            ids = [*pair["t"][1:], 0]  # the labels of a pair that counts whole
            text = tokenizer.decode(ids, skip_special_tokens=True)
            found.append((source, text))
            assert pair["s"][-1] == 0 and pair["t"][0] == 2
            assert pair["s_at"].tolist() == list(range(len(pair["s"])))
            told = pair["remaining"]
            if told[0] == scripts[0].NO_LENGTH:
                kind = "without"
                assert (told == told[0]).all() and pair["labels"].tolist() == ids
            elif told[0] == len(text):
                kind = "length"
                before = [len(tokenizer.decode(ids[:n], skip_special_tokens=True)) for n in range(len(ids))]
                assert told.tolist() == [len(text) - n for n in before] and pair["labels"].tolist() == ids
            else:
                kind = "overshoot"
                assert len(text) // 2 <= told[0] < len(text)
                assert [a if r <= 0 else -1 for a, r in zip(ids, told, strict=True)] == pair["labels"].tolist()
            kinds.add(kind)
    assert sorted(found) == sorted(PAIRS * 30) and kinds == {"without", "length", "overshoot"}
    pieces = {tuple(pair["s"]) for number in range(len(epoch["s"])) for pair in cut(epoch, number)}
    assert len(pieces) > 2 * len(PAIRS)  # sampled ones too


def test_an_epoch_has_no_tested_source_and_another_draw_for_another_seed(scripts, tmp_path, monkeypatch):
    epochs = scripts[0]
    rows = [
        {"split": split, "de": f"{word} ist hier.", "en": f"{word} is here.", "kind": "prose"}
        for split, word in (("train", "Brot"), ("test", "Milch"), ("train", "Milch"), ("train", "Wein"))
    ]
    path = tmp_path / "everyday_de_en.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    line = ("Ja, gern.", "Oui, volontiers.", "Yes, gladly.", "Yes, sure.", "Yes, please do.")
    written = epochs.written
    written.save([dict(zip(written.TEXTS, line, strict=True))] * 9, tmp_path / "train.parquet")
    monkeypatch.setattr(epochs, "TEMPLATES", 5)
    read = [(path.name, *epochs.everyday.read(str(path)))]
    one, same, two = (epochs.draw_rows(read, seed, tmp_path) for seed in (1, 1, 2))
    assert one == same != two
    assert ("Brot ist hier.", "Brot is here.", False) in one and "Milch ist hier." not in {row[0] for row in one}
    texts = {row[1:] for row in one if row[0] == "Ja, gern."}
    assert ("Yes, gladly.", False) in texts and ("Yes, please do.", True) in texts  # it always has its length
    with pytest.raises(KeyError):
        epochs.draw_rows([("news_de_en.jsonl.gz", *read[0][1:])], 1, tmp_path)


def test_the_trained_model_computes_what_the_package_computes(scripts, epoch, tmp_path):
    train = scripts[1]
    np.savez(tmp_path / "0.npz", **epoch)
    np.savez(tmp_path / "validation_all.npz", **epoch)
    out = tmp_path / "out"
    options = [str(tmp_path), "--model", str(MODEL), "--output_dir", str(out), *SMALL.split(), "--blocks", "4"]
    options += ["--steps", "12", "--learning_rate", "3e-3", "--warmup_steps", "2"]
    kept = {}
    save = train.Trainer.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.Trainer, "save", lambda self: (kept.update(trainer=self), save(self)))
        train.main(options)
    trainer, model = kept["trainer"], AutoModelForSeq2SeqLM.from_pretrained(out, dtype=torch.float32)
    assert model.config.d_model == 32 and model.config.length_optional
    assert model.config.trained_lengths["max"] == max(len(text) for _, text in PAIRS)
    assert load_predictor(out / "predictor")[0].config.length_unit == "character"
    with pytest.raises(ValueError, match="at least 5000 blocks"):
        train.main([*options, "--blocks", "5000"])
    weights = {name.removeprefix("model."): value for name, value in model.state_dict().items()}
    trainer.model.load_state_dict({name: weights[name] for name in trainer.model.state_dict()})  # rounded to float16
    assert weights["decoder.length_projection.weight"].abs().sum() > 0
    blocks = {name: torch.from_numpy(value[:3]).long() for name, value in epoch.items()}
    with torch.no_grad():
        logits = trainer.model.eval()(blocks) @ trainer.model.shared.weight.t()
        for number in range(3):
            for pair in range(1, int(epoch["s_pair"][number].max()) + 1):
                s, t = blocks["s_pair"][number] == pair, blocks["t_pair"][number] == pair
                first = int(blocks["remaining"][number][t][0])
                alone = model(
                    input_ids=blocks["s"][number][s][None],
                    decoder_input_ids=blocks["t"][number][t][None],
                    length=torch.tensor([max(first, 0)]),
                ).logits
                torch.testing.assert_close(alone[0], logits[number][t], rtol=0, atol=1e-4)


def test_the_gradient_is_that_of_the_loss(scripts):
    torch.manual_seed(0)
    logits = torch.randn(10, 30, requires_grad=True)
    labels = torch.tensor([4, 0, -1, 29, 7])
    one, two = logits.log_softmax(1).chunk(2)
    counts = labels >= 0
    entropy = F.cross_entropy(logits, labels.repeat(2), ignore_index=-1, label_smoothing=0.1)
    divergence = sum(
        F.kl_div(a[counts], b[counts], reduction="batchmean", log_target=True) for a, b in ((one, two), (two, one))
    )
    (entropy + 0.7 * divergence / 2).backward()
    gradient, nll, kl = scripts[1].gradient_of(logits.detach(), labels, 0.1, 0.7)
    torch.testing.assert_close(gradient, logits.grad)
    torch.testing.assert_close(nll, F.cross_entropy(logits.detach(), labels.repeat(2), ignore_index=-1))
    torch.testing.assert_close(kl, divergence.detach() / 2)
