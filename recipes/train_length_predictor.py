"""Train a predictor of output lengths (Oka et al. 2020, section 3.2).

    python recipes/train_length_predictor.py recipes/translation/length_predictor_small.yaml --train_file rows.jsonl
        --encoder_name_or_path path/to/encoder --target_tokenizer runs/ldpe --output_dir runs/predictor

One YAML file is one run; options on the command line win over it; `--help` lists them all. A run that was stopped
goes on from its last checkpoint when the same command is given again.
"""

from accelerate import PartialState

from hf_lenctrl.experiment.train_length_predictor import main


if __name__ == "__main__":
    main()
    PartialState().destroy_process_group()  # gloo's threads would abort a process that ends with them
