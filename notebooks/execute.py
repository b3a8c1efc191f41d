"""Execute notebooks in place and keep their outputs as they are committed: no warnings, no times of execution.

python notebooks/execute.py notebooks/01_quickstart.ipynb
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def execute(path: Path, timeout: int = 1200) -> None:
    """Run one notebook in its own folder; an error stops it, and nothing is written then."""
    notebook = nbformat.read(path, as_version=4)
    # pictures are shown only where no other backend was chosen
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=timeout, coalesce_streams=True, resources=where)
    client.execute(env=environment)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            # warnings and progress bars; they differ from machine to machine
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    # the kernel adds the versions of this machine
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        execute(Path(name).resolve())
        print(name)
