"""Freeze a length into a model, and export it for CTranslate2.

    python recipes/export.py runs/ldpe --length 75 --output_dir runs/ldpe-75
    python recipes/export.py runs/ldpe --length 75 --output_dir runs/ldpe-75-int8 --quantization int8

The folder receives a plain transformers model with its tokenizer and a card, and in `ctranslate2/` the same model for
CTranslate2. `hf_lenctrl.FixedLengthTranslator(folder)(texts)` writes with it. Needs `pip install 'hf-lenctrl[fast]'`.
"""

from hf_lenctrl.experiment.export import main


if __name__ == "__main__":
    main()
