"""Report how well texts have the lengths that were asked for: of recipes/generate.py, or of any other system.

    python recipes/evaluate_lengths.py --input_file out.jsonl --output_dir report
    python recipes/evaluate_lengths.py --input_file theirs.csv --output_column summary --length 75
        --reference_column gold
    python recipes/evaluate_lengths.py --input_file out.jsonl --units character word
        --requested_column characters words
    python recipes/evaluate_lengths.py --systems transformer=t.jsonl ldpe:predict=a.jsonl ldpe:reference=b.jsonl
        --reference_column ja --tokenizer runs/ldpe --bleu_tokenizer ja-mecab --baseline transformer

The input is json, jsonl, csv or parquet (.gz too). The report is printed as Markdown; `--output_dir` receives it as
`report.json`, `report.md` and `report.png`. With `--systems` the tables of Oka et al. 2020 are printed for
the outputs of several translation systems, whose lengths were given by `predict`, `source` or `reference`; the folder
receives `translation.json` and `translation.md`.
"""

from hf_lenctrl.experiment.evaluate import main


if __name__ == "__main__":
    main()
