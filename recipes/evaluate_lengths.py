"""`lenctrl evaluate` as a script."""

from hf_lenctrl.commands.evaluate import main


if __name__ == "__main__":
    main()
