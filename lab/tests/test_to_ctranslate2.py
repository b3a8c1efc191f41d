"""lab/translation/to_ctranslate2.py: an exported plain model writes as in transformers."""

import pytest
import torch
from family_models import stock_model, tokenizer_of


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_an_exported_marian_writes_as_in_transformers(quantization, tmp_path):
    library = pytest.importorskip("ctranslate2", reason="the extra 'fast' is not installed")
    if quantization == "int8" and "int8" not in library.get_supported_compute_types("cpu"):
        pytest.skip("this CPU has no int8")
    from lab.translation.to_ctranslate2 import export_ctranslate2

    model, tokenizer = stock_model("marian"), tokenizer_of("marian")
    model.config.normalize_before = model.config.normalize_embedding = False
    with torch.no_grad():  # the converter takes Marian's start for a zero embedding
        model.model.decoder.embed_tokens.weight[tokenizer.pad_token_id].zero_()
    export_ctranslate2(model, tokenizer, tmp_path / "out", quantization)
    translator = library.Translator(str(tmp_path / "out"), intra_threads=1)
    ids = tokenizer("small text editor", return_tensors="pt")["input_ids"]
    options = {"max_new_tokens": 12, "num_beams": 1, "do_sample": False, "forced_eos_token_id": None}
    expected = model.generate(ids, **options, bad_words_ids=None)[0, 1:].tolist()
    how = {"beam_size": 1, "max_decoding_length": 12, "return_end_token": True}
    result = translator.translate_batch([tokenizer.convert_ids_to_tokens(ids[0].tolist())], **how)
    found = tokenizer.convert_tokens_to_ids(result[0].hypotheses[0])
    assert len(set(expected)) > 1
    assert found == expected if quantization is None else len(found) > 0
