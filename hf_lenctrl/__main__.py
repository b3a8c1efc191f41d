"""`python -m hf_lenctrl` is the same as `lenctrl`."""

from .commands.lenctrl import main


if __name__ == "__main__":
    main()
