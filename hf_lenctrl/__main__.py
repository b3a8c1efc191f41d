"""Entry point of `python -m hf_lenctrl`, which runs the command `lenctrl`."""

from .commands.lenctrl import main


if __name__ == "__main__":
    main()
