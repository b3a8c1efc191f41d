"""`lenctrl export` as a script."""

from hf_lenctrl.commands.export import main


if __name__ == "__main__":
    main()
