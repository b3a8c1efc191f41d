"""Kill `lenctrl generate --engine ray` at random, again and again, and compare its parts with one process.

    python tests/tools/ray_kills.py --rows 20000 --kills 20
    python tests/tools/ray_kills.py --rows 20000 --kills 20 --ray_address 127.0.0.1:6379
    python tests/tools/ray_kills.py --rows 3000 --kills 3 --parquet
    python tests/tools/ray_kills.py --rows 20000 --actors 2

A victim is the command, an actor or the task that reads, with SIGKILL, after a few more parts. A killed command is
repeated. The model is tiny and has random weights; some rows are equal. Prints what was lost, doubled and different.
Without an address each command starts a cluster of its own, which ends with it. With `--parquet` the rows are read
from Parquet and told apart by a column `id`.

With `--actors` nothing is killed: it prints the CPU time of the actors for a row, which a crowded machine does not
change, the rows in a second, and the most memory of the command, of an actor and of the reader, in MiB.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq


ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def make(folder: Path, rows: int, seed: int, parquet: bool, beams: int) -> list[str]:
    """A model and rows, one in fifty twice; returns the options that both commands share."""
    from conftest import SOURCES, TARGETS, build_model

    import hf_lenctrl

    tokenizer = hf_lenctrl.train_marian_tokenizer(
        SOURCES, TARGETS, folder / "tokenizer", vocab_size=120, target_vocabulary="shared"
    )
    model = build_model("marian", vocab_size=len(tokenizer), encoder_layers=1, decoder_layers=1)
    model.set_unit_table(tokenizer)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    draw = random.Random(seed)
    words = " ".join(SOURCES).split()
    lines: list[str] = []
    while len(lines) < rows:
        row = {"source": " ".join(draw.choices(words, k=draw.randint(3, 12))), "budget": draw.randint(5, 20)}
        lines += [json.dumps(row)] * (2 if draw.random() < 0.02 else 1)
    path = folder / ("rows.parquet" if parquet else "rows.jsonl")
    if parquet:
        table = pa.Table.from_pylist([json.loads(line) | {"id": i} for i, line in enumerate(lines[:rows])])
        pq.write_table(table, path, row_group_size=1000)
    else:
        path.write_text("".join(f"{line}\n" for line in lines[:rows]))
    options = ["--model", str(folder / "model"), "--input_file", str(path)]
    return [*options, "--length_column", "budget", "--length_constraint", "max", "--num_beams", str(beams)]


def start(options: list[str], log: Path) -> subprocess.Popen:
    with log.open("a") as file:
        return subprocess.Popen([sys.executable, "-m", "hf_lenctrl", "generate", *options], stderr=file, cwd=ROOT)


def workers(name: str) -> list[psutil.Process]:
    """Processes of Ray that run something with this name."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::") and name in process.cmdline()[0]:
                found.append(process)
        except psutil.Error:
            continue
    return found


def run_killed(options: list[str], folder: Path, kills: int, seed: int) -> Counter:
    """Run the command to its end, with so many kills on the way."""
    draw, killed, command, wait = random.Random(seed), Counter(), start(options, folder / "log"), 1
    before = 0
    while True:
        time.sleep(0.2)
        if command.poll() is not None:
            if command.returncode == 0:
                return killed
            if command.returncode != -signal.SIGKILL:
                raise RuntimeError(f"the command ended with {command.returncode}, see {folder / 'log'}")
            command = start(options, folder / "log")
        parts = len(list((folder / "parts").glob("part-*")))
        if killed.total() == kills or parts < before + wait:
            continue
        kind = draw.choice(["command", "BlockGenerator", "BlockGenerator", "read"])
        victims = [command] if kind == "command" else workers(kind)
        if victims:
            time.sleep(draw.random())
            try:
                draw.choice(victims).send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
            killed[kind] += 1
            before, wait = parts, draw.randint(0, 2)
            print(f"{parts} parts, killed {dict(killed)}", flush=True)


def measure(options: list[str], folder: Path) -> dict[str, float]:
    """Figures of a whole run, those of time from the second part to the last but one."""
    command, seen, most = start(options, folder / "log"), [], Counter()
    while command.poll() is None:
        time.sleep(1)  # a look at all processes costs time of a core
        groups = {"actor": workers("BlockGenerator"), "reader": workers("read")}
        cpu = 0.0
        for kind, processes in {**groups, "command": [psutil.Process(command.pid)]}.items():
            for process in processes:
                try:
                    most[kind] = max(most[kind], process.memory_info().rss >> 20)
                    cpu += sum(process.cpu_times()[:2]) if kind == "actor" else 0
                except psutil.Error:
                    continue
        seen.append((len(list((folder / "parts").glob("part-*"))), cpu, time.monotonic()))
    if command.returncode:
        raise RuntimeError(f"the command ended with {command.returncode}, see {folder / 'log'}")
    whole = [each for each in seen if 2 <= each[0] < seen[-1][0]] or seen[-1:]
    (first, cpu, at), (last, end, until) = whole[0], whole[-1]
    rows = 512 * (last - first)
    rates = {"CPU ms of a row": 1000 * (end - cpu) / rows, "rows in a second": rows / (until - at)} if rows else {}
    return {**rates, **most}


def compare(folder: Path) -> dict[str, int]:
    """What the parts lack, have twice and have otherwise than the one file."""
    whole = [json.loads(line) for line in (folder / "whole.jsonl").read_text().splitlines()]
    parts = [
        json.loads(line)
        for path in sorted((folder / "parts").glob("part-*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    keys = Counter(row["id"] if "id" in row else row.pop("key") for row in parts)
    ours, theirs = (Counter(json.dumps(row, sort_keys=True) for row in rows) for rows in (parts, whole))
    sources = [Counter((row["source"], row["budget"]) for row in rows) for rows in (parts, whole)]
    return {
        "rows": len(whole),
        "lost": (sources[1] - sources[0]).total(),
        "double": sum(count - 1 for count in keys.values()) + (sources[0] - sources[1]).total(),
        "different": (theirs - ours).total(),
        "in another order": sum(a != b for a, b in zip(parts, whole, strict=False)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--actors", type=int, help="measure so many, without kills")
    parser.add_argument("--num_beams", type=int, default=1)
    parser.add_argument("--ray_address")
    parser.add_argument("--parquet", action="store_true")
    parser.add_argument("--folder", help="to keep what is written")
    options = parser.parse_args()
    folder = Path(options.folder or tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    shared = make(folder, options.rows, options.seed, options.parquet, options.num_beams)
    address = ["--ray_address", options.ray_address] if options.ray_address else []
    ray = [*shared, "--engine", "ray", "--output_dir", str(folder / "parts"), *address]
    ray += [*(["--key_column", "id"] if options.parquet else []), "--concurrency"]
    if options.actors:
        figures = measure([*ray, str(options.actors)], folder)
        return print(json.dumps({"rows": options.rows, "actors": options.actors, **figures}))
    if start([*shared, "--output_file", str(folder / "whole.jsonl")], folder / "log").wait():
        raise RuntimeError(f"one process failed, see {folder / 'log'}")
    print("one process is done", flush=True)
    killed = run_killed([*ray, "2"], folder, options.kills, options.seed)
    print(json.dumps({"killed": killed.total(), **killed, **compare(folder)}))


if __name__ == "__main__":
    main()
