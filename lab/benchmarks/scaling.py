"""Training pairs per second of one process and of two, a copy of the model in each, by accelerate on CPUs.

    python lab/benchmarks/scaling.py --threads 1

Each process takes batches of its own of `--batch_size` pairs, so that two would do twice the work in the same time
were there no gradients to exchange and cores enough. A JSON line for each, with the threads that each process had and
how many cores were busy with other work when it began.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import gather_object

import hf_lenctrl


CONFIGURATION = Path(__file__).resolve().parents[2] / "recipes" / "accelerate" / "cpu_2procs.yaml"


def measure(args: argparse.Namespace) -> dict | None:
    """Pairs per second of the processes together; the first one knows."""
    busy = round(psutil.cpu_percent(interval=1.0) * (os.cpu_count() or 1) / 100, 1)
    torch.set_num_threads(args.threads)
    accelerator = Accelerator(cpu=True)
    shape: dict[str, Any] = {"vocab_size": 4000, "d_model": args.d_model, "max_position_embeddings": 64}
    shape |= {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": 1}
    for side in ("encoder", "decoder"):
        shape |= {f"{side}_layers": 2, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 4 * args.d_model}
    torch.manual_seed(0)
    config = hf_lenctrl.LenCtrlMarianConfig(length_encoding="ldpe", length_unit="token", **shape)
    model = hf_lenctrl.LenCtrlMarianMTModel(config)
    parameters = model.num_parameters()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    torch.manual_seed(accelerator.process_index)
    source, labels = torch.randint(2, 4000, (2, args.batch_size, args.tokens))
    model.train()

    def step() -> None:
        accelerator.backward(model(input_ids=source, labels=labels).loss)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2):
        step()
    accelerator.wait_for_everyone()
    start = time.perf_counter()
    for _ in range(args.steps):
        step()
    accelerator.wait_for_everyone()
    seconds = time.perf_counter() - start
    threads = gather_object([torch.get_num_threads()])
    if not accelerator.is_main_process:
        return None
    count = accelerator.num_processes
    return {
        "processes": count,
        "threads_of_each": threads,
        "cores": os.cpu_count(),
        "busy_cores_before": busy,
        "parameters": parameters,
        "batch_of_each": args.batch_size,
        "pairs_per_second": round(count * args.steps * args.batch_size / seconds, 1),
    }


def main(argv=None) -> None:
    """Print a JSON line for one process and one for two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--batch_size", type=int, default=32, help="of each process")
    parser.add_argument("--tokens", type=int, default=24, help="of each source and target")
    parser.add_argument("--d_model", type=int, default=128)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--one", action="store_true", help="measure in this process, or those launched, alone")
    args = parser.parse_args(argv)
    if args.one:
        if (figures := measure(args)) is not None:
            print(json.dumps(figures))
        PartialState().destroy_process_group()
        return
    words = [__file__, "--one", *(f"--{k}={v}" for k, v in vars(args).items() if k != "one")]
    launcher = ["-m", "accelerate.commands.launch", "--config_file", str(CONFIGURATION)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "CUDA_VISIBLE_DEVICES": ""}
    one: float | None = None
    for command in (words, [*launcher, *words]):
        done = subprocess.run(
            [sys.executable, *command], env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        figures = json.loads(done.stdout.splitlines()[-1])
        one = one or figures["pairs_per_second"]
        figures["times_one_process"] = round(figures["pairs_per_second"] / one, 2)
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
