"""The training on preferences: lab/translation/preference.py."""

import gzip
import json
import shutil

import pytest
import torch
from recipe_runs import ROOT, load_script
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer


MODEL = ROOT / "models" / "translate_to_english"
PAIRS = [
    {"source": "Wo ist der Bahnhof?", "target": "Where's the station?", "own": "Where is the the is?"},
    {"source": "Il fait très chaud.", "target": "It is hot.", "own": "It's a hot"},
]


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "lab" / "translation")
        yield load_script("lab/translation/preference.py")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model of the translator's kind with random weights, and its tokenizer."""
    folder, tokenizer = tmp_path_factory.mktemp("small"), AutoTokenizer.from_pretrained(MODEL)
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    config = AutoConfig.from_pretrained(MODEL, encoder_attention_heads=2, decoder_attention_heads=2, **sizes)
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(config)
    model.set_unit_table(tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(script, tmp_path_factory):
    """A small data set, and a corpus."""
    folder = tmp_path_factory.mktemp("data")
    rows = [f"Ich sehe {n} Autos.|Je vois {n} voitures.|I can see {n} cars.|I see {n} cars.||" for n in range(10, 40)]
    columns = (*script.written.TEXTS, "subject")
    lines = [dict(zip(columns, row.split("|"), strict=True)) for row in rows]
    script.written.save(lines, folder / "train.parquet")
    held = {**lines[0], "de": "Ja.", "fr": "Oui.", "en": "Yes."}
    script.written.save([held], folder / "validation.parquet")
    script.written.save([{"en": lines[0]["en"], "texts": ["I see ten, no, 10 cars."]}], folder / "rewordings.parquet")
    with gzip.open(folder / "everyday_de_en.jsonl.gz", "wt", encoding="utf-8") as file:
        for n in range(20):
            row = {"split": "train", "de": f"Es sind {n} Tage.", "en": f"It is {n} days.", "kind": "prose"}
            file.write(json.dumps(row) + "\n")
    return folder


def test_pairs_have_one_length_and_a_bad_own_text(script, small, data, tmp_path, monkeypatch):
    monkeypatch.setattr(script.written, "FOLDER", data)

    def scores(model, tokenizer, sources, texts):  # the natural text, the written one, and two own ones
        assert len(sources) == len(texts)
        return [value for _ in range(len(texts) // 4) for value in (-2.0, -9.0, -6.1, -9.1)]

    monkeypatch.setattr(script, "log_probabilities", scores)
    script.main(["write", "--model", str(small), "--rows", "8", "--output_file", str(tmp_path / "pairs.jsonl")])
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(pairs) == 8  # of each two own texts, the second; the first is nearly as likely as the natural text
    for pair in pairs:
        assert pair["target"] == f"I see {''.join(filter(str.isdigit, pair['source']))} cars." != pair["own"]
        assert len(pair["own"]) == len(pair["target"])
    assert len({pair["source"] for pair in pairs}) == 8
    (row,) = script.written_pairs(9, 1, "rewordings")
    assert (row["target"], row["natural"]) == ("I see ten, no, 10 cars.", "I can see 10 cars.")
    texts = {"de": "", "fr": "Je suis vraiment fatigué.", "en": "I am really tired.", "texts": ["I'm really tired."]}
    script.written.save([texts], data / "condensed.parquet")
    (row,) = script.written_pairs(9, 1, "condensed")
    assert row == {"source": texts["fr"], "target": "I'm really tired.", "natural": texts["en"]}


def test_the_loss_is_cross_entropy_and_the_preference_of_written_texts(script, small):
    tokenizer, model = AutoTokenizer.from_pretrained(MODEL), AutoModelForSeq2SeqLM.from_pretrained(small).eval()
    others = [("Ich heiße Anna.", "My name is Anna.", True), ("Danke!", "Thanks!", True)]
    batch = script.Collator(tokenizer, model)([(0, PAIRS, others)])
    trainer = script.PreferenceTrainer.__new__(script.PreferenceTrainer)
    trainer.beta, trainer.weight = 0.3, 0.7
    loss = trainer.compute_loss(model, batch)

    def scored(source, target):  # log-probabilities of each token, and their mean over the vocabulary
        ids = torch.tensor([tokenizer(text_target=target)["input_ids"]])
        given = {**tokenizer(source, return_tensors="pt"), "labels": ids, "length": torch.tensor([len(target)])}
        scores = model(**given).logits.log_softmax(-1)[0]
        return scores[range(ids.shape[1]), ids[0]], scores.mean(-1)

    def entropy(rows):
        found = [scored(*row) for row in rows]
        right, mean = (torch.cat(parts) for parts in zip(*found, strict=True))
        return -(0.9 * right + 0.1 * mean).mean()

    written, own = ([scored(pair["source"], pair[name])[0].sum() for pair in PAIRS] for name in ("target", "own"))
    better = torch.stack(written) - torch.stack(own)
    expected = entropy([row[:2] for row in others]) + entropy([(pair["source"], pair["target"]) for pair in PAIRS])
    torch.testing.assert_close(loss, expected - 0.7 * F.logsigmoid(0.3 * better).mean(), rtol=1e-4, atol=1e-4)


def test_a_run_learns_to_prefer_and_resumes_with_the_same_weights(script, small, data, tmp_path, monkeypatch):
    monkeypatch.setattr(script.written, "FOLDER", data)
    monkeypatch.setattr(script.epochs, "TEMPLATES", 5)
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS), encoding="utf-8")
    command = ["train", str(tmp_path / "pairs.jsonl"), "--model", str(small), "--batch_size", "2", "--use_cpu"]
    command += ["--corpora", str(data / "everyday_de_en.jsonl.gz"), "--max_steps", "110", "--learning_rate", "3e-3"]
    whole, again = ([*command, "--output_dir", str(tmp_path / name)] for name in ("whole", "again"))
    script.main(whole)
    state = json.loads((tmp_path / "whole" / "checkpoint-110" / "trainer_state.json").read_text(encoding="utf-8"))
    logged = [line["preference"] for line in state["log_history"] if "preference" in line]
    assert logged[-1] < 0.6 * logged[0]
    weights = load_file(tmp_path / "whole" / "model.safetensors")
    assert weights["model.shared.weight"].dtype == torch.float16
    config = AutoConfig.from_pretrained(tmp_path / "whole")
    assert config.trained_lengths == AutoConfig.from_pretrained(MODEL).trained_lengths

    step = script.PreferenceTrainer.training_step

    def die(self, *args, **kwargs):
        if self.state.global_step == 105:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(script.PreferenceTrainer, "training_step", die)
        with pytest.raises(KeyboardInterrupt):
            script.main(again)
    script.main(again)
    resumed = load_file(tmp_path / "again" / "model.safetensors")
    assert all(torch.equal(weights[name], resumed[name]) for name in weights)


def test_the_mix_is_between_the_models(script, small, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(small, other)
    weights = load_file(small / "model.safetensors")
    changed = {name: w + 1 if w.is_floating_point() else w for name, w in weights.items()}
    save_file(changed, other / "model.safetensors", {"format": "pt"})
    script.main(["mix", str(small), str(other), "--share", "0.25", "--output_dir", str(tmp_path / "between")])
    found = load_file(tmp_path / "between" / "model.safetensors")
    assert found.keys() == weights.keys()
    for name, weight in found.items():
        expected = weights[name] + 0.25 if weight.is_floating_point() else weights[name]
        torch.testing.assert_close(weight, expected)
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "between")
