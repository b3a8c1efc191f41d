"""`lenctrl evaluate` as a script."""

from hf_lenctrl.experiment.evaluate import main


if __name__ == "__main__":
    main()
