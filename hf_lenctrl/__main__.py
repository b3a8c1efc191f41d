"""`python -m hf_lenctrl`, the same as `lenctrl`."""

from .commands.lenctrl import main


if __name__ == "__main__":
    main()
