"""The commands of `lenctrl` and their shared code. No other module of the package imports this folder."""
