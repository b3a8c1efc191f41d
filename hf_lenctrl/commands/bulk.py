"""`lenctrl generate --engine ray`: Ray actors generate texts; only this process writes files, part by part."""

import argparse
import json
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm  # type: ignore[import-untyped]
from transformers import PreTrainedConfig

from ..engines.ray import LengthControlledGenerator
from .identity import identity
from .locking import locked
from .parts import KEY, Parts, keys_of
from .rows import Request, Rows, requests_of


# the outputs do not depend on these options
OTHERS = "input_file output_file output_dir engine concurrency ray_address actor_cpus actor_gpus".split()
READER = 0.1  # the task that reads takes this share of a CPU


def models_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the identities (sizes and hashes) of the models and the predictor, under the names of their options."""
    found: dict[str, Any] = {"model": identity(args.model[0])}
    found |= {f"model {i}": identity(name) for i, name in enumerate(args.model[1:], start=2)}
    name = args.predictor
    if args.way == "predict" and name is None:
        name = PreTrainedConfig.get_config_dict(args.model[0])[0].get("length_predictor")
        name = name and (Path(args.model[0], name) if name.startswith("./") else name)
    return found | ({} if name is None else {"predictor": identity(name)})


def blocks_of(args: argparse.Namespace, size: int) -> Iterator[list[Request]]:
    """Yield the requests of the input, in blocks of `size` rows."""
    added = [] if args.key_column else ["key"]
    lengths = args.length if args.length and args.way is None else [None]
    for rows in Rows.blocks(args.input_file, size):
        yield requests_of(
            rows, args.source_column, args.length_column, lengths=lengths, prefix=args.column_prefix, added=added
        )


def start(args: argparse.Namespace) -> None:
    """
    Connect to the Ray cluster, or start one on this machine. Raise `ValueError` if the cluster is too small, because
    the job would wait for ever.
    """
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # this package sends no usage data
    address = args.ray_address or os.environ.get("RAY_ADDRESS") or "local"
    need = {"CPU": args.concurrency * args.actor_cpus + READER, "GPU": args.concurrency * args.actor_gpus}
    if address == "local":  # these are logical CPUs: if actors need more than the machine has, they take turns
        cpus = max(os.cpu_count() or 1, math.ceil(need["CPU"]))
        ray.init("local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    else:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    has = ray.cluster_resources()
    for name, amount in need.items():
        if amount > has.get(name, 0):
            option = f"--actor_{name.lower()}s"
            raise ValueError(
                f"{args.concurrency} actors and the reader need {amount:g} {name}s, the cluster has "
                f"{has.get(name, 0):g}, and the job would wait for ever; give a smaller --concurrency or {option}"
            )


class BlockGenerator:
    """
    A generator for a dataset whose rows are blocks of rows, as JSON: `{"text": ["...", ...], "number": [1, ...]}`.
    """

    def __init__(self, **options: Any):
        self.generate = LengthControlledGenerator(**options)

    def __call__(self, batch: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Generate an output for each row of each block."""
        return {"block": [json.dumps(self.generate(json.loads(block))) for block in batch["block"]]}


def read_blocks(args: argparse.Namespace, size: int, keys: np.ndarray, todo: np.ndarray) -> Iterator[dict]:
    """Yield the blocks of the input without the rows that are done; `keys` and `todo` have the shape `(rows,)`."""
    first = 0
    for requests in blocks_of(args, size):
        rows = [i for i in range(len(requests)) if todo[first + i]]
        block = {
            "number": [requests[i].number for i in rows],
            "key": [bytes(keys[first + i]).ljust(KEY, b"\0").hex() for i in rows],
            "columns": [requests[i].columns for i in rows],
            "text": [requests[i].source for i in rows],
            "length": [requests[i].length for i in rows],
        }
        if rows:
            yield {"block": [json.dumps(block)]}
        first += len(requests)


def arguments(args: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    """Return the constructor arguments of `BlockGenerator`."""
    given = args.length_column is not None or args.length is not None
    options = {"model": args.model[0], "dtype": args.dtype, **options}
    for name in ("model", "predictor"):  # an actor may run in another folder, so it needs the absolute path
        if options.get(name) and Path(options[name]).exists():
            options[name] = str(Path(options[name]).resolve())
    options["length_column"] = "length" if given and args.way is None else None
    return {**options, "length": args.way} if args.way else options


def job(args: argparse.Namespace, options: dict[str, Any], size: int, keys: np.ndarray, todo: np.ndarray):
    """
    Run the job on Ray; return an iterator over the blocks with outputs, in the order in which they finish.

    One task reads, on the node of this process. A row of the dataset is a block of the input, because Ray would split
    and join blocks of rows. So a row always has the same neighbours in its batch, and the same output, even if the
    command was stopped and repeated.
    """
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = 1  # one byte: a row of the dataset goes to an actor as soon as it is read
    arrays = ray.put((keys, todo))
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}

    def read(_) -> Iterator[dict]:
        return read_blocks(args, size, *ray.get(arrays))

    source = ray.data.from_items([0], override_num_blocks=1)
    blocks = source.map_batches(read, batch_size=None, num_cpus=READER, label_selector=here)
    return blocks.map_batches(
        BlockGenerator,
        fn_constructor_kwargs=arguments(args, options),
        compute=ActorPoolStrategy(size=args.concurrency),
        num_cpus=args.actor_cpus,
        num_gpus=args.actor_gpus,
        batch_size=1,
    ).iter_rows()


def write(args: argparse.Namespace, options: dict[str, Any]) -> None:
    """Generate and write the outputs that the folder does not hold yet."""
    # `generate` without an engine uses the same size, so that the texts are the same
    size = 16 * (args.batch_size or 32)
    folder, requests = args.output_dir, next(blocks_of(args, 1))
    names, args.input_file = requests[0].names, str(Path(args.input_file).resolve())
    own = {name: value for name, value in vars(args).items() if name not in OTHERS} | models_of(args)
    Path(folder).mkdir(parents=True, exist_ok=True)
    with locked(folder):
        parts = Parts(folder, own, args.key_column or names["key"])
        keys = keys_of((request for block in blocks_of(args, size) for request in block), args.key_column)
        todo = ~np.isin(keys, parts.done(keyed=args.key_column is not None))  # (rows,)
        if not todo.any():
            return print(f"{folder} is complete", file=sys.stderr)
        start(args)
        within = 0
        with tqdm(desc="Generating", total=len(keys), initial=int((~todo).sum()), unit="text") as bar:
            for row in job(args, options, size, keys, todo):
                block = json.loads(row["block"])
                rows = [dict(zip(block, values, strict=True)) for values in zip(*block.values(), strict=True)]
                parts.write(rows[0]["number"], [row["key"] for row in rows], (_line(row, names) for row in rows))
                within += sum(row["within"] for row in rows)
                bar.update(len(rows))
    print(f"within {within / todo.sum():.3f}", file=sys.stderr)


def _line(row: dict[str, Any], names: Any) -> str:
    """Return a row of the job as a line of a part."""
    request = Request(row["text"], None, None, row["number"], row["columns"], names)
    output = {"source": row["text"], "requested": row["requested_length"], "output": row["generated_text"]}
    return request.line(output | {"length": row["generated_length"], "key": row["key"]})
