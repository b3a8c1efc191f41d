"""Train a length-controlled sequence-to-sequence model.

    python recipes/train_seq2seq.py recipes/headline/ldpe_small.yaml --train_file rows.jsonl --output_dir runs/ldpe

One YAML file is one run; options on the command line win over it; `--help` lists them all. A run that was stopped
goes on from its last checkpoint when the same command is given again.
"""

from accelerate import PartialState

from hf_lenctrl.experiment.train import main


if __name__ == "__main__":
    main()
    PartialState().destroy_process_group()  # gloo's threads would abort a process that ends with them
