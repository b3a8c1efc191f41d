"""`lenctrl train` for causal models, as a script that `accelerate launch` starts."""

from accelerate import PartialState

from hf_lenctrl.commands.causal import main


if __name__ == "__main__":
    main()
    PartialState().destroy_process_group()  # a process that ends while gloo's threads run would abort
