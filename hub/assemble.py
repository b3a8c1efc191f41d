"""Make the folder of a custom `generate`, ready for the Hub: with the files of the package that it imports.

python hub/assemble.py length_bound FOLDER
hf upload user/length-bound FOLDER
"""

import re
import shutil
import sys
from pathlib import Path


HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "hf_lenctrl"


def assemble(name: str, folder: Path) -> None:
    """Write the folder; what stands there under the same names is replaced."""
    code = folder / "custom_generate"
    shutil.copytree(HERE / name / "custom_generate", code, dirs_exist_ok=True)
    shutil.copy(HERE / name / "README.md", folder)
    waiting, found = [code / "generate.py"], set()
    while waiting:
        for module in re.findall(r"^\s*from \.+(\w+) import", waiting.pop().read_text(encoding="utf-8"), flags=re.M):
            if module not in found:
                found.add(module)
                (source,) = (*PACKAGE.glob(f"{module}.py"), *PACKAGE.glob(f"inference/{module}.py"))
                text = source.read_text(encoding="utf-8").replace("\nfrom ..", "\nfrom .")  # all in one folder
                (code / source.name).write_text(text, encoding="utf-8")
                waiting.append(code / source.name)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    assemble(sys.argv[1], Path(sys.argv[2]))
