"""Run the rows of a paper's table, and set them beside the paper's figures.

    python recipes/reproduce/reproduce.py recipes/reproduce/headline_en.yaml --train_file rows.jsonl
    python recipes/reproduce/reproduce.py recipes/reproduce/headline_en.yaml --train_file rows.jsonl --rows ldpe lrpe

`--help` tells the rest.
"""

from hf_lenctrl.commands.reproduce import main


if __name__ == "__main__":
    main()
