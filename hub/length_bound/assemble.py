"""Make the folder of the custom `generate`, ready for the Hub: with the files of the package that it imports.

python hub/length_bound/assemble.py FOLDER
hf upload user/length-bound FOLDER
"""

import shutil
import sys
from pathlib import Path


HERE = Path(__file__).resolve().parent
NEEDED = (
    *("cache", "character_costs", "generation", "length_constraint", "length_guidance", "length_pair", "length_rules"),
    *("length_units", "lengths", "text_units", "thoughts", "unit_vocabulary"),
)


def assemble(folder: Path) -> None:
    """Write the folder; what stands there under the same names is replaced."""
    shutil.copytree(HERE / "custom_generate", folder / "custom_generate", dirs_exist_ok=True)
    shutil.copy(HERE / "README.md", folder)
    for name in NEEDED:
        shutil.copy(HERE.parents[1] / "hf_lenctrl" / f"{name}.py", folder / "custom_generate")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    assemble(Path(sys.argv[1]))
