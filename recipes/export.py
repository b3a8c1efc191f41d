"""`lenctrl export` as a script."""

from hf_lenctrl.experiment.export import main


if __name__ == "__main__":
    main()
