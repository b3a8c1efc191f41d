"""Measure the time in which espeak-ng speaks each text, as rows for `lenctrl fit-cost`.

    python recipes/fit/spoken.py --input_file data/everyday_en_de_fr/train-00000-of-00001.parquet --text_column de \\
        --voice de --count 2000 --output_file spoken.de.jsonl

The script needs the program espeak-ng, a package of Debian. For another voice, write the rows yourself: a JSON line
with `text` and `seconds` for each recording.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
import wave
from collections.abc import Iterable, Iterator
from pathlib import Path

from tqdm.auto import tqdm  # type: ignore[import-untyped]

from hf_lenctrl.commands.output_file import check_loss
from hf_lenctrl.commands.rows import Rows


def spoken_seconds(texts: Iterable[str], voice: str) -> Iterator[float]:
    """Yield the speaking time of each text in seconds, for a voice of espeak-ng."""
    if shutil.which("espeak-ng") is None:
        raise FileNotFoundError("espeak-ng is not installed: apt-get install espeak-ng")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "spoken.wav"))
        for text in texts:
            subprocess.run(["espeak-ng", "-v", voice, "-w", path, "--", text], check=True)
            with wave.open(path) as sound:
                yield sound.getnframes() / sound.getframerate()


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--input_file", required=True, help="texts: txt, json, jsonl, csv, parquet (.gz too)")
    add("--output_file", required=True, help="JSON lines")
    add("--overwrite", action="store_true", help="replace --output_file if it exists")
    add("--text_column", default="source", help="column of the texts")
    add("--voice", required=True, help="voice of espeak-ng, such as de or en-us; `espeak-ng --voices` lists them")
    add("--count", type=int, help="number of texts, spread evenly over the file; default: all")
    args = parser.parse_args(argv)
    check_loss(args.output_file, args.input_file, overwrite=args.overwrite)
    texts = list(dict.fromkeys(Rows(args.input_file, plain_text=True).texts(args.text_column)))
    count = min(args.count or len(texts), len(texts))
    chosen = [texts[k * len(texts) // count] for k in range(count)]
    with open(args.output_file, "w", encoding="utf-8") as file:
        for text, seconds in zip(chosen, tqdm(spoken_seconds(chosen, args.voice), total=count), strict=True):
            print(json.dumps({"text": text, "seconds": round(seconds, 3)}, ensure_ascii=False), file=file)


if __name__ == "__main__":
    main()
