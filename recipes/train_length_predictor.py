"""`lenctrl train-predictor` as a script that `accelerate launch` starts."""

from accelerate import PartialState

from hf_lenctrl.commands.predictor import main


if __name__ == "__main__":
    main()
    PartialState().destroy_process_group()  # gloo's threads would abort a process that ends with them
