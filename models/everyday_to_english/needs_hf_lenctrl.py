"""This model needs the package: `pip install .` in a clone of it, and `import hf_lenctrl` before it is loaded."""

from hf_lenctrl import LenCtrlMarianConfig, LenCtrlMarianMTModel  # noqa: F401
