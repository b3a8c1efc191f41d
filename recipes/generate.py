"""`lenctrl generate` as a script that `accelerate launch` starts."""

from accelerate import PartialState

from hf_lenctrl.commands.generate import main


if __name__ == "__main__":
    main()
    PartialState().destroy_process_group()
