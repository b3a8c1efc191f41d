"""Build the page without a server: a folder of files that any web server, or a page host, can give.

    python lab/browser/build.py [--model models/translate_to_english] [--output_dir lab/browser/dist]

`npm ci` in `lab/browser/` comes first (`make browser` runs both). The model is exported to ONNX in int8; the
libraries are copied from `node_modules/`, so that the page loads nothing from elsewhere.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from hf_lenctrl.commands.export import export
from hf_lenctrl.engines.onnx_export import import_onnxruntime


HERE = Path(__file__).resolve().parent
PAGE = ("index.html", "main.js", "worker.js", "translate.js", "lengths.js")
LIBRARIES = (
    "onnxruntime-web/dist/ort.wasm.min.mjs",
    "onnxruntime-web/dist/ort-wasm-simd-threaded.mjs",
    "onnxruntime-web/dist/ort-wasm-simd-threaded.wasm",
    "@huggingface/tokenizers/dist/tokenizers.min.mjs",
)
OF_MODEL = ("config.json", "generation_config.json", "lenctrl.json", "tokenizer.json", "tokenizer_config.json")


def build(model: str, output_dir: Path, exported: Path | None = None) -> int:
    """Write the page and return its size in bytes."""
    missing = [name for name in LIBRARIES if not (HERE / "node_modules" / name).is_file()]
    if missing:
        raise SystemExit(f"{missing[0]} is missing; run `npm ci` in {HERE.name}/, or `make browser`")
    output_dir.mkdir(parents=True, exist_ok=True)
    for name in PAGE:
        shutil.copy(HERE / name, output_dir)
    for name in LIBRARIES:
        target = output_dir / "vendor" / Path(name).name
        target.parent.mkdir(exist_ok=True)
        shutil.copy(HERE / "node_modules" / name, target)
    with tempfile.TemporaryDirectory() as folder:
        exported = exported or export(model, Path(folder, "model"), "int8")
        if not (exported / "tokenizer.json").is_file():
            raise SystemExit(f"{model} has no tokenizer.json; the page takes a model of one vocabulary")
        for path in (exported / "onnx").glob("*.onnx"):
            _optimize(path, output_dir / "model" / "onnx" / path.name)
        for name in OF_MODEL:
            shutil.copy(exported / name, output_dir / "model")
    return sum(path.stat().st_size for path in output_dir.rglob("*") if path.is_file())


def _optimize(source: Path, target: Path) -> None:
    """Fuse the nodes of a graph now, so that no visitor waits for it; the page then leaves the graph as it is."""
    library = import_onnxruntime()
    target.parent.mkdir(parents=True, exist_ok=True)
    options = library.SessionOptions()
    options.graph_optimization_level = library.GraphOptimizationLevel.ORT_ENABLE_EXTENDED  # not for one processor
    options.optimized_model_filepath = str(target)
    library.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def main(argv=None) -> None:
    """Build, and say how large the page is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(HERE.parents[1] / "models" / "translate_to_english"))
    parser.add_argument("--output_dir", type=Path, default=HERE / "dist")
    parser.add_argument("--exported", type=Path, help="what `lenctrl export` made of the model already")
    args = parser.parse_args(argv)
    size = build(args.model, args.output_dir, args.exported)
    print(f"{args.output_dir}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
