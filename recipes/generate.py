"""Write texts of a wanted length.

    python recipes/generate.py --model runs/ldpe --input_file texts.txt --length 40 60 --output_file out.jsonl
    python recipes/generate.py --model runs/ldpe --input_file rows.jsonl --length_column budget --output_file out.jsonl
    python recipes/generate.py --model runs/a runs/b --rerank 20 --length_constraint max ...
    python recipes/generate.py --model runs/ldpe --predictor runs/predictor --length predict ...

The input is a text file, one source a line, or json, jsonl, csv or parquet (.gz too). Each line of the output holds
a row of the input, unchanged and in the input's order, and `requested`, `output` and `length`, the measured one; it
has `source` in any case, and `rank` with `--num_return_sequences`. Several lengths give a line for each.
Several models of one tokenizer write as an ensemble. A command that was stopped goes on where its output file ends
when it is given again. `accelerate launch` splits the texts over processes.
"""

from accelerate import PartialState

from hf_lenctrl.experiment.generate import main


if __name__ == "__main__":
    main()
    PartialState().destroy_process_group()
